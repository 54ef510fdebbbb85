//! What a restore needs of a Kafka cluster, and Kafka as that.
//!
//! Two traits, so that a simulated cluster can stand in Kafka's place under the same code. Decides nothing.

use super::batch::{Batch, Row};
use super::plan::Timestamps;
use crate::error::{Error, Result};
use crate::host::{self, blocking};
use crate::kafka::{self, Admin, Connection, Consumer, NewRecord, Producer, Refusal, TopicInfo, Transactions};
use crate::record::{RawBatch, RawRecord, TopicPartition};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// What topics tell of their settings, by topic and name.
pub type Settings = BTreeMap<String, BTreeMap<String, String>>;

/// Brokers that are restored to.
#[async_trait]
pub trait Target: Send + Sync {
    /// Waits for the brokers to answer; all their topics. `to` must be one of them.
    async fn describe(&self, to: Option<&str>, timeout: Duration) -> Result<Vec<TopicInfo>>;

    /// All topics.
    async fn topics(&self, timeout: Duration) -> Result<Vec<TopicInfo>>;

    /// Those of the settings `names` that each topic tells.
    async fn settings(&self, topics: &[String], names: &[&str], timeout: Duration) -> Result<Settings>;

    /// Those of the topics that this user may not write to, as far as the brokers tell.
    async fn unwritable(&self, topics: &[String], timeout: Duration) -> Result<BTreeSet<String>>;

    /// `limit`: see [`Producer::with_limit`].
    async fn producer(&self, transactional_id: Option<&str>, limit: Option<u64>) -> Result<Box<dyn Produce>>;

    /// Hands over each record that comes into these topics from now on, until the answer is dropped.
    async fn watch(&self, topics: Vec<String>, seen: Seen, timeout: Duration) -> Result<Watching>;

    /// The offset that a group has on a topic's partition 0; `None` if it never committed one.
    async fn committed(&self, group: &str, topic: &str, timeout: Duration) -> Result<Option<i64>>;
}

/// What is done with a record that came in.
pub type Seen = Box<dyn FnMut(&TopicPartition, &RawRecord<'_>) + Send>;

/// Topics are watched as long as it lives.
#[derive(Debug, Default)]
pub struct Watching {
    over: Arc<AtomicBool>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
    }
}

/// What became of records that were sent.
#[derive(Debug, Default)]
pub struct Told {
    /// Row of the batch, partition, offset.
    pub taken: Vec<(usize, i32, i64)>,
    /// Not now and not later; perhaps for one that was sent along.
    pub refused: Vec<(usize, Refusal)>,
    /// Why nothing is known of the others.
    pub failed: Option<Error>,
}

/// A producer; what its transactions promise is said at [`Producer`].
#[async_trait]
pub trait Produce: Send + Sync {
    async fn init_transactions(&self, timeout: Duration) -> Result<Transactions>;

    async fn begin(&self) -> Result<()>;

    /// Sends these rows of a batch, in order, and waits for the answer to each. With transactions one refusal ends it.
    async fn send(&self, batch: &Arc<Batch>, rows: &[usize], timestamps: Timestamps, timeout: Duration) -> Told;

    /// See [`Producer::commit_transaction`].
    async fn commit(&self, group: &str, topic: &str, offset: i64, timeout: Duration) -> Result<()>;

    async fn abort(&self, timeout: Duration) -> Result<()>;

    /// Why this producer can do nothing any more, if so: fenced by another, for one.
    fn fatal(&self) -> Option<Error>;
}

/// A real cluster.
pub struct Kafka {
    connection: Connection,
}

impl Kafka {
    pub fn new(connection: Connection) -> Self {
        Self { connection }
    }
}

fn all() -> [String; 1] {
    ["^".to_owned()]
}

#[async_trait]
impl Target for Kafka {
    async fn describe(&self, to: Option<&str>, timeout: Duration) -> Result<Vec<TopicInfo>> {
        let (connection, to) = (self.connection.clone(), to.map(str::to_owned));
        blocking(move || {
            let admin = Admin::new(&connection)?;
            admin.wait(timeout)?;
            admin.topics(to.as_slice(), Duration::from_secs(30)).map_err(|e| e.context("--to"))?;
            admin.topics(&all(), Duration::from_secs(30))
        })
        .await
    }

    async fn topics(&self, timeout: Duration) -> Result<Vec<TopicInfo>> {
        let connection = self.connection.clone();
        blocking(move || Admin::new(&connection)?.topics(&all(), timeout)).await
    }

    async fn settings(&self, topics: &[String], names: &[&str], timeout: Duration) -> Result<Settings> {
        kafka::topic_settings(&self.connection, topics, names, timeout).await
    }

    async fn unwritable(&self, topics: &[String], timeout: Duration) -> Result<BTreeSet<String>> {
        let (connection, topics) = (self.connection.clone(), topics.to_vec());
        blocking(move || Admin::new(&connection)?.unwritable(&topics, timeout)).await
    }

    async fn producer(&self, transactional_id: Option<&str>, limit: Option<u64>) -> Result<Box<dyn Produce>> {
        let (connection, id) = (self.connection.clone(), transactional_id.map(str::to_owned));
        let transactional = id.is_some();
        let producer = blocking(move || Producer::with_limit(&connection, id.as_deref(), limit)).await?;
        Ok(Box::new(Producing { producer: Arc::new(producer), transactional, tokens: AtomicUsize::new(0) }))
    }

    async fn watch(&self, topics: Vec<String>, mut seen: Seen, timeout: Duration) -> Result<Watching> {
        let connection = self.connection.clone();
        let consumer = blocking(move || {
            let admin = Admin::new(&connection)?;
            let mut starts = Vec::new();
            for topic in admin.topics(&topics, timeout)? {
                for partition in topic.partitions {
                    let tp = TopicPartition::new(&topic.name, partition);
                    let (_, end) = admin.watermarks(&tp, timeout)?;
                    starts.push((tp, end));
                }
            }
            let consumer = Consumer::new(&connection, "dlq-archiver-returns")?;
            consumer.read_from(starts.iter().map(|(tp, end)| (tp, *end, -1)))?;
            Ok(consumer)
        })
        .await?;
        let watching = Watching::default();
        let over = watching.over.clone();
        host::thread("returns", move || {
            let mut batch = RawBatch::new();
            let mut from = None;
            consumer.poll(Duration::from_millis(200), |m| {
                if m.copy_into(&mut batch).is_ok() {
                    from = Some(TopicPartition::new(m.topic(), m.partition()));
                }
            });
            if let Some(tp) = from {
                seen(&tp, &batch.get(0));
            }
            !over.load(Relaxed)
        })?;
        Ok(watching)
    }

    async fn committed(&self, group: &str, topic: &str, timeout: Duration) -> Result<Option<i64>> {
        let (connection, group, topic) = (self.connection.clone(), group.to_owned(), topic.to_owned());
        blocking(move || kafka::committed(&connection, &group, &topic, timeout)).await
    }
}

struct Producing {
    producer: Arc<Producer>,
    transactional: bool,
    /// Tokens that were given out: late answers to an attempt that was aborted are none to the next.
    tokens: AtomicUsize,
}

impl Producing {
    async fn call<T: Send + 'static>(&self, call: impl FnOnce(&Producer) -> Result<T> + Send + 'static) -> Result<T> {
        let producer = self.producer.clone();
        blocking(move || call(&producer)).await
    }
}

#[async_trait]
impl Produce for Producing {
    async fn init_transactions(&self, timeout: Duration) -> Result<Transactions> {
        self.call(move |producer| producer.init_transactions(timeout)).await
    }

    async fn begin(&self) -> Result<()> {
        self.call(Producer::begin_transaction).await
    }

    async fn send(&self, batch: &Arc<Batch>, rows: &[usize], timestamps: Timestamps, timeout: Duration) -> Told {
        let first_token = self.tokens.fetch_add(batch.rows.len(), Relaxed);
        let (batch, rows, transactional) = (batch.clone(), rows.to_vec(), self.transactional);
        let sent = self.call(move |producer| {
            Ok(Sending { producer, batch: &batch, timestamps, transactional, first_token, timeout }.send(&rows))
        });
        sent.await.unwrap_or_else(|e| Told { failed: Some(e), ..Told::default() })
    }

    async fn commit(&self, group: &str, topic: &str, offset: i64, timeout: Duration) -> Result<()> {
        let (group, topic) = (group.to_owned(), topic.to_owned());
        self.call(move |producer| producer.commit_transaction(&group, &topic, offset, timeout)).await
    }

    async fn abort(&self, timeout: Duration) -> Result<()> {
        self.call(move |producer| producer.abort_transaction(timeout)).await
    }

    fn fatal(&self) -> Option<Error> {
        self.producer.fatal()
    }
}

/// Rows on their way.
struct Sending<'a> {
    producer: &'a Producer,
    batch: &'a Batch,
    timestamps: Timestamps,
    transactional: bool,
    first_token: usize,
    timeout: Duration,
}

impl Sending<'_> {
    fn send(&self, rows: &[usize]) -> Told {
        let mut told = Told::default();
        for &row in rows {
            let Some(Row { place, .. }) = self.batch.rows.get(row) else { continue };
            let raw = self.batch.raw.get(row);
            let record = NewRecord {
                topic: &place.topic,
                partition: place.partition,
                key: raw.key,
                value: raw.value,
                headers: raw.headers.iter(),
                timestamp_ms: (self.timestamps == Timestamps::Keep).then_some(raw.timestamp_ms),
                token: self.first_token + row,
            };
            if let Err(e) = self.producer.send(record, self.timeout) {
                // What brokers say of those before it may tell more.
                self.wait(&mut told);
                told.failed = told.failed.or_else(|| Some(self.named(row, e)));
                return told;
            }
        }
        self.wait(&mut told);
        told
    }

    fn named(&self, row: usize, e: Error) -> Error {
        match self.batch.rows.get(row) {
            Some(row) => e.context(format!("record {}", row.id)),
            None => e,
        }
    }

    /// Waits for the answers to what was sent.
    fn wait(&self, told: &mut Told) {
        let began = host::now();
        loop {
            let flushed = self.producer.flush_step();
            // What a broker said of one record tells more than that not all were acknowledged.
            for ack in self.producer.acks() {
                let Some(row) = ack.token.checked_sub(self.first_token) else { continue };
                match (ack.result, ack.refusal) {
                    (Ok((partition, offset)), _) => told.taken.push((row, partition, offset)),
                    (Err(_), Some(refusal)) => told.refused.push((row, refusal)),
                    (Err(e), None) => told.failed = told.failed.take().or_else(|| Some(self.named(row, e))),
                }
            }
            // With transactions one refusal ends all: the library sends no more, and what it had is to be redone.
            if told.failed.is_some() || self.transactional && !told.refused.is_empty() {
                return;
            }
            match flushed {
                Ok(true) => return,
                Ok(false) if host::since(began) < self.timeout => {}
                Ok(false) => told.failed = Some(self.producer.unacknowledged()),
                Err(e) => told.failed = Some(e),
            }
            if told.failed.is_some() {
                return;
            }
        }
    }
}
