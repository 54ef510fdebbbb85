//! The group consumer: polls, tells rebalances, reads from given offsets, commits.
//!
//! Decides nothing: what a partition's next offset is comes from the ledger, through the caller. The rebalance
//! callback only takes note.

use super::wake::Waker;
use super::{Connection, LastError, Message, error};
use crate::error::{Error, Result};
use crate::record::TopicPartition;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaRespErr;
use rdkafka_sys as sys;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Partitions that the group gave or took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rebalance {
    /// Ours now; nothing is read before [`Consumer::read_from`].
    Assigned(Vec<TopicPartition>),
    Revoked(Vec<TopicPartition>),
}

#[derive(Default)]
pub(super) struct Context {
    rebalances: Mutex<VecDeque<Rebalance>>,
    /// Fetch requests, where statistics are asked for.
    fetches: AtomicU64,
    pub(super) last: LastError,
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        super::log(level, facility, message, &self.last);
    }
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", "{error}: {reason}");
        self.last.set(reason);
    }
    /// Parsed as far as it is needed: [`rdkafka::Statistics`] refuses all for one field that it does not know.
    fn stats_raw(&self, statistics: &[u8]) {
        let statistics: serde_json::Value = serde_json::from_slice(statistics).unwrap_or_default();
        let brokers = statistics["brokers"].as_object().into_iter().flatten();
        self.fetches.store(brokers.filter_map(|(_, b)| b["req"]["Fetch"].as_u64()).sum(), Relaxed);
    }
}

fn partitions(list: &TopicPartitionList) -> Vec<TopicPartition> {
    list.elements().iter().map(|e| TopicPartition::new(e.topic(), e.partition())).collect()
}

impl ConsumerContext for Context {
    /// Takes note, and assigns nothing yet: what is read, and from where, is said by [`Consumer::read_from`] once the
    /// caller knows. The protocol is eager (`range,roundrobin`).
    fn rebalance(&self, consumer: &BaseConsumer<Self>, code: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let done = if code == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            self.push(Rebalance::Assigned(partitions(list)));
            consumer.assign(&TopicPartitionList::new())
        } else {
            self.push(Rebalance::Revoked(partitions(list)));
            consumer.unassign()
        };
        if let Err(e) = done {
            tracing::warn!("cannot follow a rebalance of the group: {e}");
        }
    }
    fn commit_callback(&self, result: Result<(), KafkaError>, _: &TopicPartitionList) {
        if let Err(e) = result {
            tracing::debug!("the group's offset was not committed ({e}); the ledger has it");
        }
    }
}

impl Context {
    fn push(&self, rebalance: Rebalance) {
        self.rebalances.lock().unwrap_or_else(|e| e.into_inner()).push_back(rebalance);
    }
}

/// What one poll brought besides a record, which goes to the callback.
#[derive(Debug)]
pub enum Polled {
    /// A record was handed to the callback.
    Record,
    /// Nothing within the timeout, or an event that asks for nothing.
    Idle,
    /// Some partition was read to its end; [`Consumer::positions`] tells which.
    End,
    /// Some partition's position is no longer in its log.
    OutOfRange,
    Failed(Error),
}

/// A classic-protocol consumer with the settings that the archive's exactness needs.
pub struct Consumer {
    /// Before the client, which it needs to its end.
    waker: Waker,
    inner: BaseConsumer<Context>,
}

impl Consumer {
    /// # Errors
    /// [`crate::Kind::Config`] if librdkafka refuses the settings.
    pub fn new(connection: &Connection, group: &str) -> Result<Self> {
        Self::of(connection.consumer_config(group))
    }

    pub(super) fn of(config: ClientConfig) -> Result<Self> {
        let inner: BaseConsumer<Context> = config.create_with_context(Context::default()).map_err(|e| {
            Error::config(format!("cannot set up the Kafka consumer: {e}. Check -X and --kafka-config"))
        })?;
        // SAFETY: fields are dropped in their order.
        let waker = unsafe { Waker::new(inner.client().native_ptr()) };
        Ok(Self { waker, inner })
    }

    pub(super) fn inner(&self) -> &BaseConsumer<Context> {
        &self.inner
    }

    /// What librdkafka last said about its connections.
    pub fn last_error(&self) -> Option<String> {
        self.inner.context().last.get()
    }

    /// Fetch requests that were sent, as of the last statistics.
    pub(super) fn fetches(&self) -> u64 {
        self.inner.context().fetches.load(Relaxed)
    }

    /// Joins the group for these topics; names that begin with `^` are regular expressions.
    pub fn subscribe(&self, topics: &[String]) -> Result<()> {
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        self.inner.subscribe(&topics).map_err(|e| error("cannot subscribe", &e, None))
    }

    /// Takes partitions without a group, as if a rebalance had assigned them.
    pub fn take(&self, topic_partitions: &[TopicPartition]) {
        self.inner.context().push(Rebalance::Assigned(topic_partitions.to_vec()));
    }

    /// Reads these partitions, each from its offset, in place of those read before; what was fetched and not handed
    /// out is dropped. `leader_epoch`: of the record right before that offset, -1 if unknown: when the leader changes
    /// later, librdkafka asks with it whether the log diverged (KIP-320). At once it asks only after
    /// [`Consumer::seek`].
    ///
    /// Offsets are absolute, and no seek is used to begin: librdkafka repeats the look-up of a logical offset that a seek
    /// overtook, half a second later, and then reads from there, past records that nobody has seen.
    pub fn read_from<'p>(&self, starts: impl IntoIterator<Item = (&'p TopicPartition, i64, i32)>) -> Result<()> {
        let mut list = TopicPartitionList::new();
        let mut epochs = Vec::new();
        for (tp, offset, leader_epoch) in starts {
            list.add_partition_offset(&tp.topic, tp.partition, Offset::Offset(offset))
                .map_err(|e| error(&format!("cannot assign {tp}"), &e, None))?;
            epochs.push(leader_epoch);
        }
        for (i, epoch) in epochs.into_iter().enumerate().filter(|(_, epoch)| *epoch >= 0) {
            // SAFETY: the list has as many elements as epochs were pushed, in the same order.
            unsafe { sys::rd_kafka_topic_partition_set_leader_epoch((*list.ptr()).elems.add(i), epoch) };
        }
        self.inner.assign(&list).map_err(|e| error("cannot assign partitions", &e, None))
    }

    /// Moves a partition that is read to an absolute offset; with a leader epoch its leader is asked whether its log has
    /// that epoch up to there, before anything is read.
    ///
    /// # Errors
    /// [`crate::Kind::Unavailable`] if it is not being read yet, or not moved within `timeout`.
    pub(super) fn seek(&self, tp: &TopicPartition, offset: i64, leader_epoch: i32, timeout: Duration) -> Result<()> {
        let doing = format!("cannot move to offset {offset} of {tp}");
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&tp.topic, tp.partition, Offset::Offset(offset))
            .map_err(|e| error(&doing, &e, None))?;
        let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: list and client live during the call; an error that is not null belongs to us.
        unsafe {
            sys::rd_kafka_topic_partition_set_leader_epoch((*list.ptr()).elems, leader_epoch);
            let failed = sys::rd_kafka_seek_partitions(self.inner.client().native_ptr(), list.ptr(), millis);
            if !failed.is_null() {
                let code: Code = sys::rd_kafka_error_code(failed).into();
                sys::rd_kafka_error_destroy(failed);
                return Err(Error::unavailable(format!("{doing}: {code}")));
            }
        }
        let elements = list.elements();
        elements.iter().try_for_each(|e| e.error()).map_err(|e| Error::unavailable(format!("{doing}: {e}")))
    }

    /// Waits at most `timeout` for one record or event. Must be called at least every `max.poll.interval.ms`.
    pub fn poll(&self, timeout: Duration, mut record: impl FnMut(&Message<'_>)) -> Polled {
        match self.inner.poll(timeout) {
            None => Polled::Idle,
            Some(Ok(message)) => {
                record(&Message::new(&message));
                Polled::Record
            }
            Some(Err(KafkaError::PartitionEOF(_))) => Polled::End,
            Some(Err(e)) => match e.rdkafka_error_code() {
                Some(Code::AutoOffsetReset | Code::OffsetOutOfRange | Code::LogTruncation) => Polled::OutOfRange,
                // Told again by the metadata refresh or by the group's coordinator when it is over.
                Some(
                    Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition | Code::PollExceeded,
                ) => {
                    tracing::debug!("consumer: {e}");
                    Polled::Idle
                }
                _ => Polled::Failed(error("cannot read", &e, self.last_error())),
            },
        }
    }

    /// The next rebalance that happened during a poll.
    pub fn rebalance(&self) -> Option<Rebalance> {
        self.inner.context().rebalances.lock().unwrap_or_else(|e| e.into_inner()).pop_front()
    }

    pub fn pause(&self, topic_partitions: &[TopicPartition]) -> Result<()> {
        self.inner.pause(&list_of(topic_partitions)).map_err(|e| error("cannot pause", &e, None))
    }

    pub fn resume(&self, topic_partitions: &[TopicPartition]) -> Result<()> {
        self.inner.resume(&list_of(topic_partitions)).map_err(|e| error("cannot resume", &e, None))?;
        self.waker.wake(topic_partitions);
        Ok(())
    }

    /// Where the consumer is in each partition it reads: behind the last record, and behind transaction markers and
    /// aborted records that came after it. Local, asks no broker.
    pub fn positions(&self) -> Vec<(TopicPartition, i64)> {
        let Ok(list) = self.inner.position() else { return Vec::new() };
        list.elements()
            .iter()
            .filter_map(|e| match e.offset() {
                Offset::Offset(offset) => Some((TopicPartition::new(e.topic(), e.partition()), offset)),
                _ => None,
            })
            .collect()
    }

    /// Tells the group how far the archive is. A hint for people and lag monitors; failure is not an error.
    pub fn commit(&self, tp: &TopicPartition, offset: i64, wait: bool) {
        let mut list = TopicPartitionList::new();
        let mode = if wait { CommitMode::Sync } else { CommitMode::Async };
        let done = list
            .add_partition_offset(&tp.topic, tp.partition, Offset::Offset(offset))
            .and_then(|()| self.inner.commit(&list, mode));
        if let Err(e) = done {
            tracing::debug!("the group's offset of {tp} was not committed ({e}); the ledger has it");
        }
    }

    /// Leaves the group. Rebalance callbacks still run in the polls that follow, until the client is dropped.
    pub fn leave(&self) {
        self.inner.unsubscribe();
    }
}

fn list_of(topic_partitions: &[TopicPartition]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(topic_partitions.len());
    for tp in topic_partitions {
        list.add_partition(&tp.topic, tp.partition);
    }
    list
}
