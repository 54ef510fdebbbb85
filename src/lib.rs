//! dlq-archiver: drains Kafka dead-letter topics into Parquet or JSONL on S3-compatible storage, and restores
//! archived records to Kafka.

pub mod archive;
pub mod catalog;
pub mod cli;
pub mod cut;
pub mod demo;
pub mod dialect;
pub mod disposition;
pub mod error;
pub mod filter;
pub mod format;
pub mod health;
pub mod host;
pub mod http;
pub mod kafka;
pub mod layout;
pub mod ledger;
pub mod metrics;
pub mod record;
pub mod refetch;
pub mod restore;
pub mod retention;
pub mod routing;
pub mod stage;
pub mod status;
pub mod store;
pub mod tail;
pub mod topics;
pub mod verify;

pub use error::{Error, Kind, Result};
