//! dlq-archiver: drains Kafka dead-letter topics into Parquet or JSONL on S3-compatible storage, and restores
//! archived records to Kafka.

pub mod dialect;
pub mod error;
pub mod record;
pub mod routing;

pub use error::{Error, Kind, Result};
