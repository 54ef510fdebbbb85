//! What the archive needs of a Kafka cluster, and Kafka as that.
//!
//! Two traits, so that a simulated cluster can stand in Kafka's place under the same code. Decides nothing.

use crate::error::{Error, Result};
use crate::host;
use crate::kafka::{
    self, Admin, Connection, Consumer, Message, Peeked, Polled, RangeReader, Rebalance, TopicId, TopicInfo,
};
use crate::record::{RawBatch, TopicPartition};
use crate::retention::LogSettings;
use async_trait::async_trait;
use roaring::RoaringTreemap;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// How long brokers may take to answer a question.
const ASK: Duration = Duration::from_secs(10);
const LOOKING: usize = 8;
/// How long a reader of a range may get nothing.
const PATIENCE: Duration = Duration::from_secs(60);

/// Offsets and checksums of records.
pub type Checksums = BTreeSet<(i64, u64)>;

/// What brokers say of themselves and of topics.
#[derive(Debug, Clone)]
pub struct Described {
    /// `None` where the brokers do not tell it.
    pub cluster_id: Option<String>,
    pub topics: Vec<TopicInfo>,
}

/// Brokers, as partitions' tasks ask them. Every error that may pass by itself is [`crate::Kind::Unavailable`].
#[async_trait]
pub trait Cluster: Send + Sync {
    /// Waits for the brokers to answer, and finds topics by exact name, or by regular expression from `^` on.
    async fn describe(&self, topics: &[String], timeout: Duration) -> Result<Described>;

    fn consumer(&self, group: &str) -> Result<Box<dyn Poll>>;

    /// Log start and last stable offset, from the partition's leader.
    async fn watermarks(&self, tp: &TopicPartition) -> Result<(i64, i64)>;

    /// The log end, records of open transactions included.
    async fn log_end(&self, tp: &TopicPartition) -> Result<i64>;

    async fn topic_id(&self, tp: &TopicPartition) -> Result<TopicId>;

    /// What decides when records of these topics go; topics that do not tell it are left out.
    async fn settings(&self, topics: &[String]) -> Result<BTreeMap<String, LogSettings>>;

    /// Log start, last stable offset and log end of each partition whose leader answers.
    async fn logs(&self, partitions: &[TopicPartition]) -> Result<BTreeMap<TopicPartition, (i64, i64, i64)>>;

    /// The first record at or behind each offset, of open transactions too, where there is one.
    async fn peek(&self, at: &[(TopicPartition, i64)]) -> Result<BTreeMap<TopicPartition, Peeked>>;

    /// First offset of each partition at or behind its Kafka timestamp, milliseconds since 1970; `None` where there is none.
    async fn offsets_for_times(&self, at: &[(TopicPartition, i64)]) -> Result<BTreeMap<TopicPartition, Option<i64>>>;

    /// First offset at or behind a Kafka timestamp, milliseconds since 1970.
    async fn offset_for_time(&self, tp: &TopicPartition, ms: i64) -> Result<Option<i64>>;

    /// The group's committed offset.
    async fn committed(&self, group: &str, tp: &TopicPartition) -> Result<Option<i64>>;

    /// Committed records with `from <= offset < to` that are in `offsets`. `from` must be in the log.
    ///
    /// # Errors
    /// [`crate::Kind::Failed`] if it is not, or not any more.
    async fn read(&self, tp: &TopicPartition, from: i64, to: i64, offsets: Arc<RoaringTreemap>) -> Result<RawBatch>;

    /// First committed record with `from <= offset < to` that `checksums` has not. `from` must be in
    /// the log.
    ///
    /// # Errors
    /// As [`Cluster::read`].
    async fn first_other(
        &self,
        tp: &TopicPartition,
        from: i64,
        to: i64,
        checksums: Arc<Checksums>,
    ) -> Result<Option<i64>>;

    /// Whether the leader lets nobody read from `offset` behind a record of `leader_epoch`: its log does not have that
    /// epoch up to there (KIP-320), or not that offset. Brokers without leader epochs refuse only the latter.
    async fn refuses(&self, tp: &TopicPartition, offset: i64, leader_epoch: i32) -> Result<bool>;
}

/// A record that a poll brought, not copied yet.
pub trait Incoming {
    fn topic(&self) -> &str;
    fn partition(&self) -> i32;
    fn offset(&self) -> i64;
    /// # Errors
    /// [`crate::Kind::Corrupt`] if it cannot be parsed.
    fn copy_into(&self, batch: &mut RawBatch) -> Result<()>;
}

/// A consumer as the poll thread uses it; what each call does is said at [`Consumer`].
pub trait Poll: Send {
    fn subscribe(&mut self, topics: &[String]) -> Result<()>;
    fn take(&mut self, partitions: &[TopicPartition]);
    fn poll(&mut self, timeout: Duration, record: &mut dyn FnMut(&dyn Incoming)) -> Polled;
    fn rebalance(&mut self) -> Option<Rebalance>;
    /// (partition, next offset, leader epoch of the record right before it or -1)
    fn read_from(&mut self, starts: &[(TopicPartition, i64, i32)]) -> Result<()>;
    fn pause(&mut self, partitions: &[TopicPartition]) -> Result<()>;
    fn resume(&mut self, partitions: &[TopicPartition]) -> Result<()>;
    fn positions(&self) -> Vec<(TopicPartition, i64)>;
    fn commit(&mut self, tp: &TopicPartition, offset: i64, wait: bool);
    fn leave(&mut self);
    fn last_error(&self) -> Option<String>;
}

/// A real cluster.
pub struct Kafka {
    connection: Connection,
    admin: Arc<Admin>,
    /// Asks for the offsets of the group.
    group: OnceLock<Arc<Admin>>,
    /// Sees records of open transactions.
    uncommitted: OnceLock<Arc<Admin>>,
    /// Clients at a time that look into logs: each has threads, connections and what it fetches ahead.
    looking: Semaphore,
}

impl Kafka {
    pub fn new(connection: Connection) -> Result<Self> {
        let admin = Arc::new(Admin::new(&connection)?);
        Ok(Self {
            connection,
            admin,
            group: OnceLock::new(),
            uncommitted: OnceLock::new(),
            looking: Semaphore::new(LOOKING),
        })
    }
}

impl Kafka {
    async fn look(&self) -> Result<SemaphorePermit<'_>> {
        self.looking.acquire().await.map_err(|_| Error::internal("semaphore closed"))
    }
}

/// A client that is made at its first use.
fn once(cell: &OnceLock<Arc<Admin>>, make: impl FnOnce() -> Result<Admin>) -> Result<Arc<Admin>> {
    if let Some(admin) = cell.get() {
        return Ok(admin.clone());
    }
    let admin = Arc::new(make()?);
    Ok(cell.get_or_init(|| admin).clone())
}

#[async_trait]
impl Cluster for Kafka {
    async fn describe(&self, topics: &[String], timeout: Duration) -> Result<Described> {
        let (admin, topics) = (self.admin.clone(), topics.to_vec());
        host::blocking(move || {
            admin.wait(timeout)?;
            let topics = admin.topics(&topics, Duration::from_secs(30))?;
            Ok(Described { cluster_id: admin.cluster_id(ASK), topics })
        })
        .await
    }

    fn consumer(&self, group: &str) -> Result<Box<dyn Poll>> {
        Ok(Box::new(Consumer::new(&self.connection, group)?))
    }

    async fn watermarks(&self, tp: &TopicPartition) -> Result<(i64, i64)> {
        let (admin, tp) = (self.admin.clone(), tp.clone());
        host::blocking(move || admin.watermarks(&tp, ASK)).await
    }

    async fn log_end(&self, tp: &TopicPartition) -> Result<i64> {
        let admin = once(&self.uncommitted, || Admin::read_uncommitted(&self.connection))?;
        let tp = tp.clone();
        host::blocking(move || admin.watermarks(&tp, ASK)).await.map(|(_, end)| end)
    }

    async fn topic_id(&self, tp: &TopicPartition) -> Result<TopicId> {
        let (admin, tp) = (self.admin.clone(), tp.clone());
        host::blocking(move || admin.topic_id(&tp, ASK)).await
    }

    async fn settings(&self, topics: &[String]) -> Result<BTreeMap<String, LogSettings>> {
        let settings = kafka::topic_settings(&self.connection, topics, &LogSettings::NAMES, ASK).await?;
        Ok(settings.into_iter().map(|(topic, told)| (topic, LogSettings::parse(&told))).collect())
    }

    async fn logs(&self, partitions: &[TopicPartition]) -> Result<BTreeMap<TopicPartition, (i64, i64, i64)>> {
        let (committed, partitions) = (self.admin.clone(), partitions.to_vec());
        let uncommitted = once(&self.uncommitted, || Admin::read_uncommitted(&self.connection))?;
        host::blocking(move || {
            let ends = uncommitted.watermarks_of(&partitions, ASK)?;
            let stable = committed.watermarks_of(&partitions, ASK)?;
            let both = ends.into_iter().filter_map(|(tp, (start, end))| {
                let (_, stable) = stable.get(&tp)?;
                Some((tp, (start, *stable, end)))
            });
            Ok(both.collect())
        })
        .await
    }

    async fn peek(&self, at: &[(TopicPartition, i64)]) -> Result<BTreeMap<TopicPartition, Peeked>> {
        let _permit = self.look().await?;
        let (connection, at) = (self.connection.clone(), at.to_vec());
        host::blocking(move || kafka::peek(&connection, &at, ASK)).await
    }

    async fn offsets_for_times(&self, at: &[(TopicPartition, i64)]) -> Result<BTreeMap<TopicPartition, Option<i64>>> {
        let (admin, at) = (self.admin.clone(), at.to_vec());
        host::blocking(move || admin.offsets_for_times(&at, ASK)).await
    }

    async fn offset_for_time(&self, tp: &TopicPartition, ms: i64) -> Result<Option<i64>> {
        let (admin, tp) = (self.admin.clone(), tp.clone());
        host::blocking(move || admin.offset_for_time(&tp, ms, ASK)).await
    }

    async fn committed(&self, group: &str, tp: &TopicPartition) -> Result<Option<i64>> {
        let admin = once(&self.group, || Admin::of_group(&self.connection, group))?;
        let tp = tp.clone();
        host::blocking(move || admin.committed(&tp, ASK)).await
    }

    async fn read(&self, tp: &TopicPartition, from: i64, to: i64, offsets: Arc<RoaringTreemap>) -> Result<RawBatch> {
        let (connection, tp) = (self.connection.clone(), tp.clone());
        host::blocking(move || {
            let mut batch = RawBatch::new();
            RangeReader::new(&connection)?.read(&tp, from, to, PATIENCE, |message| {
                if offsets.contains(message.offset() as u64) {
                    message.copy_into(&mut batch)?;
                }
                Ok(ControlFlow::Continue(()))
            })?;
            Ok(batch)
        })
        .await
    }

    async fn first_other(
        &self,
        tp: &TopicPartition,
        from: i64,
        to: i64,
        checksums: Arc<Checksums>,
    ) -> Result<Option<i64>> {
        let _permit = self.look().await?;
        let (connection, tp) = (self.connection.clone(), tp.clone());
        host::blocking(move || {
            let (mut other, mut scratch) = (None, Vec::new());
            RangeReader::new(&connection)?.read(&tp, from, to, PATIENCE, |message| {
                let mut batch = RawBatch::new();
                message.copy_into(&mut batch)?;
                let same = checksums.contains(&(message.offset(), batch.get(0).checksum(&mut scratch)));
                if same {
                    return Ok(ControlFlow::Continue(()));
                }
                other = Some(message.offset());
                Ok(ControlFlow::Break(()))
            })?;
            Ok(other)
        })
        .await
    }

    async fn refuses(&self, tp: &TopicPartition, offset: i64, leader_epoch: i32) -> Result<bool> {
        let _permit = self.look().await?;
        let (connection, tp) = (self.connection.clone(), tp.clone());
        host::blocking(move || RangeReader::new(&connection)?.is_refused(&tp, offset, leader_epoch, ASK)).await
    }
}

impl Incoming for Message<'_> {
    fn topic(&self) -> &str {
        Message::topic(self)
    }
    fn partition(&self) -> i32 {
        Message::partition(self)
    }
    fn offset(&self) -> i64 {
        Message::offset(self)
    }
    fn copy_into(&self, batch: &mut RawBatch) -> Result<()> {
        Message::copy_into(self, batch)
    }
}

impl Poll for Consumer {
    fn subscribe(&mut self, topics: &[String]) -> Result<()> {
        Consumer::subscribe(self, topics)
    }
    fn take(&mut self, partitions: &[TopicPartition]) {
        Consumer::take(self, partitions);
    }
    fn poll(&mut self, timeout: Duration, record: &mut dyn FnMut(&dyn Incoming)) -> Polled {
        Consumer::poll(self, timeout, |message| record(message))
    }
    fn rebalance(&mut self) -> Option<Rebalance> {
        Consumer::rebalance(self)
    }
    fn read_from(&mut self, starts: &[(TopicPartition, i64, i32)]) -> Result<()> {
        Consumer::read_from(self, starts.iter().map(|(tp, offset, epoch)| (tp, *offset, *epoch)))
    }
    fn pause(&mut self, partitions: &[TopicPartition]) -> Result<()> {
        Consumer::pause(self, partitions)
    }
    fn resume(&mut self, partitions: &[TopicPartition]) -> Result<()> {
        Consumer::resume(self, partitions)
    }
    fn positions(&self) -> Vec<(TopicPartition, i64)> {
        Consumer::positions(self)
    }
    fn commit(&mut self, tp: &TopicPartition, offset: i64, wait: bool) {
        Consumer::commit(self, tp, offset, wait);
    }
    fn leave(&mut self) {
        Consumer::leave(self);
    }
    fn last_error(&self) -> Option<String> {
        Consumer::last_error(self)
    }
}
