//! What the archive needs of a Kafka cluster, and Kafka as that.
//!
//! Two traits, so that a simulated cluster can stand in Kafka's place under the same code. Decides nothing.

use crate::error::{Error, Kind, Result};
use crate::host;
use crate::kafka::{Admin, Connection, Consumer, Message, Polled, RangeReader, Rebalance, TopicInfo};
use crate::record::{RawBatch, TopicPartition};
use async_trait::async_trait;
use roaring::RoaringTreemap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// How long brokers may take to answer a question.
const ASK: Duration = Duration::from_secs(10);

/// What brokers say of themselves and of topics.
#[derive(Debug, Clone)]
pub struct Described {
    /// `None` where the brokers do not tell it.
    pub cluster_id: Option<String>,
    pub topics: Vec<TopicInfo>,
}

/// Brokers, as partitions' tasks ask them. Every error that may pass by itself is [`Kind::Unavailable`].
#[async_trait]
pub trait Cluster: Send + Sync {
    /// Waits for the brokers to answer, and finds topics by exact name, or by regular expression from `^` on.
    async fn describe(&self, topics: &[String], timeout: Duration) -> Result<Described>;

    fn consumer(&self, group: &str) -> Result<Box<dyn Poll>>;

    /// Log start and last stable offset, from the partition's leader.
    async fn watermarks(&self, tp: &TopicPartition) -> Result<(i64, i64)>;

    /// `None` where the brokers do not tell ids.
    async fn topic_id(&self, topic: &str) -> Result<Option<String>>;

    /// First offset at or behind a Kafka timestamp, milliseconds since 1970.
    async fn offset_for_time(&self, tp: &TopicPartition, ms: i64) -> Result<Option<i64>>;

    /// Committed records with `from <= offset < to` that are in `offsets`. `from` must be in the log.
    ///
    /// # Errors
    /// [`Kind::Failed`] if it is not, or not any more.
    async fn read(&self, tp: &TopicPartition, from: i64, to: i64, offsets: Arc<RoaringTreemap>) -> Result<RawBatch>;
}

/// A record that a poll brought, not copied yet.
pub trait Incoming {
    fn topic(&self) -> &str;
    fn partition(&self) -> i32;
    fn offset(&self) -> i64;
    /// # Errors
    /// [`Kind::Corrupt`] if it cannot be parsed.
    fn copy_into(&self, batch: &mut RawBatch) -> Result<()>;
}

/// A consumer as the poll thread uses it; what each call does is said at [`Consumer`].
pub trait Poll: Send {
    fn subscribe(&mut self, topics: &[String]) -> Result<()>;
    fn take(&mut self, partitions: &[TopicPartition]);
    fn poll(&mut self, timeout: Duration, record: &mut dyn FnMut(&dyn Incoming)) -> Polled;
    fn rebalance(&mut self) -> Option<Rebalance>;
    /// (partition, next offset, leader epoch of the record before it or -1)
    fn read_from(&mut self, starts: &[(TopicPartition, i64, i32)]) -> Result<()>;
    fn pause(&mut self, partitions: &[TopicPartition]) -> Result<()>;
    fn resume(&mut self, partitions: &[TopicPartition]) -> Result<()>;
    fn positions(&self) -> Vec<(TopicPartition, i64)>;
    fn commit(&mut self, tp: &TopicPartition, offset: i64, wait: bool);
    fn leave(&mut self);
    fn last_error(&self) -> Option<String>;
}
