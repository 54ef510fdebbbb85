//! dlq-archiver: drains Kafka dead-letter topics into Parquet or JSONL on S3-compatible storage, and restores
//! archived records to Kafka.

pub mod error;
pub mod format;
pub mod layout;
pub mod record;

pub use error::{Error, Kind, Result};
