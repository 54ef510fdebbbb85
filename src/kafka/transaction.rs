//! A producer's transactions: records and a restore's progress, visible together or not at all.
//!
//! Owns the calls that may not return, and the progress that is read back. Does not produce: see [`super::producer`].

use super::producer::{Context, Producer, serve};
use super::{Connection, error};
use crate::error::{Error, Result};
use rdkafka::consumer::Consumer as _;
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::producer::{BaseProducer, Producer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka_sys as sys;
use std::ffi::{CStr, CString};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Whether brokers have transactions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transactions {
    Ready,
    /// They said they have not, with these words.
    Unsupported(String),
}

/// How much longer than its own timeout a call of librdkafka may take. `rd_kafka_send_offsets_to_transaction` waits for
/// a coordinator that is gone without looking at its timeout, for ever if it does not come back.
const OVERTIME: Duration = Duration::from_secs(5);
/// One step of beginning, in milliseconds. librdkafka asks again twice a second, and tells what was answered when a step
/// is over.
const STEP_MS: i32 = 2000;

impl Producer {
    /// Fences older producers of this transactional id and ends their open transaction: when this returns `Ready`, what
    /// they had begun is either committed or never will be.
    pub fn init_transactions(&self, timeout: Duration) -> Result<Transactions> {
        let doing = "the brokers do not start a transaction";
        // SAFETY: the client is live; the call takes no other pointer.
        let begun =
            self.call(timeout, move |client, ms| unsafe { sys::rd_kafka_init_transactions(client, ms.min(STEP_MS)) });
        match begun {
            Ok(()) => Ok(Transactions::Ready),
            Err((Code::UnsupportedFeature | Code::UnsupportedVersion, why)) => Ok(Transactions::Unsupported(why)),
            Err((code, text)) => Err(super::classify(doing, Some(code), &text)),
        }
    }

    pub fn begin_transaction(&self) -> Result<()> {
        // SAFETY: as above.
        self.transact("cannot begin a transaction", Duration::ZERO, |client, _| unsafe {
            sys::rd_kafka_begin_transaction(client)
        })
    }

    /// Commits the records and, in the same transaction, `offset` as the group's progress on `topic`'s partition 0.
    /// No consumer of that group ever joins. Every record must have been flushed.
    ///
    /// # Errors
    /// [`crate::Kind::Fenced`] if another process took the transactional id over. After
    /// [`crate::Kind::Unavailable`] it is not known whether the transaction was committed: [`committed`] tells, once
    /// the transactional id was initialised anew.
    pub fn commit_transaction(&self, group: &str, topic: &str, offset: i64, timeout: Duration) -> Result<()> {
        let doing = "cannot commit a transaction";
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, 0, Offset::Offset(offset)).map_err(|e| error(doing, &e, None))?;
        let group = GroupMetadata::new(group)?;
        // SAFETY: list and group are live for the call, which copies both.
        self.transact(doing, timeout, move |client, ms| unsafe {
            sys::rd_kafka_send_offsets_to_transaction(client, list.ptr(), group.as_ptr(), ms)
        })?;
        // SAFETY: as above.
        self.transact(doing, timeout, |client, ms| unsafe { sys::rd_kafka_commit_transaction(client, ms) })
    }

    /// Commits records alone, without progress.
    pub fn commit_plain(&self, timeout: Duration) -> Result<()> {
        // SAFETY: as above.
        self.transact("cannot commit a transaction", timeout, |client, ms| unsafe {
            sys::rd_kafka_commit_transaction(client, ms)
        })
    }

    /// Ends the transaction without its records. Acknowledgements that were not taken are dropped.
    pub fn abort_transaction(&self, timeout: Duration) -> Result<()> {
        // In short steps: each waits for acknowledgements that only `serve`, between them, can take.
        // SAFETY: as above.
        self.transact("cannot abort a transaction", timeout, |client, ms| unsafe {
            sys::rd_kafka_abort_transaction(client, ms.min(20))
        })?;
        drop(self.acks());
        Ok(())
    }

    fn transact(
        &self,
        doing: &str,
        timeout: Duration,
        call: impl Fn(*mut sys::rd_kafka_t, i32) -> *mut sys::rd_kafka_error_t + Send + 'static,
    ) -> Result<()> {
        self.call(timeout, call).map_err(|(code, text)| super::classify(doing, Some(code), &text))
    }

    /// Calls until it succeeds, fails for good, or `timeout` is over: librdkafka resumes a call that timed out. On a
    /// thread of its own, which is left alone if the call does not return.
    fn call(
        &self,
        timeout: Duration,
        call: impl Fn(*mut sys::rd_kafka_t, i32) -> *mut sys::rd_kafka_error_t + Send + 'static,
    ) -> std::result::Result<(), (Code, String)> {
        let no_answer = || {
            let said = self.inner.context().last.get().unwrap_or_else(|| "no answer".into());
            (Code::OperationTimedOut, said)
        };
        if self.stuck.load(Relaxed) {
            return Err(no_answer());
        }
        let deadline = Instant::now() + timeout;
        let (done, answer) = mpsc::channel();
        let inner = self.inner.clone();
        let spawned = std::thread::Builder::new().name("transaction".into()).spawn(move || {
            // Nobody may wait any more.
            let _ = done.send(call_until(&inner, deadline, &call));
        });
        spawned.map_err(|e| (Code::Fail, format!("cannot start a thread: {e}")))?;
        answer.recv_timeout(timeout.saturating_add(OVERTIME)).unwrap_or_else(|_| {
            self.stuck.store(true, Relaxed);
            Err(no_answer())
        })
    }
}

/// See [`Producer::call`].
fn call_until(
    producer: &BaseProducer<Context>,
    deadline: Instant,
    call: &impl Fn(*mut sys::rd_kafka_t, i32) -> *mut sys::rd_kafka_error_t,
) -> std::result::Result<(), (Code, String)> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
        let failed = call(producer.client().native_ptr(), ms);
        if failed.is_null() {
            return Ok(());
        }
        // SAFETY: an error that is not null belongs to us; its text lives until it is destroyed.
        let (code, text, retriable) = unsafe {
            let code: Code = sys::rd_kafka_error_code(failed).into();
            let text = CStr::from_ptr(sys::rd_kafka_error_string(failed)).to_string_lossy().into_owned();
            let retriable = sys::rd_kafka_error_is_retriable(failed) != 0;
            sys::rd_kafka_error_destroy(failed);
            (code, text, retriable)
        };
        // What a broker does not have it does not have later; librdkafka would ask on.
        if !retriable || code == Code::UnsupportedVersion || Instant::now() >= deadline {
            return Err((code, text));
        }
        serve(producer);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A group without a member (KIP-447): brokers take its offsets in a transaction.
struct GroupMetadata(*mut sys::rd_kafka_consumer_group_metadata_t);

// SAFETY: a plain copy of names and numbers that no other thread has.
unsafe impl Send for GroupMetadata {}

impl GroupMetadata {
    fn new(group: &str) -> Result<Self> {
        let name = CString::new(group).map_err(|_| Error::config("a group name cannot hold NUL"))?;
        // SAFETY: the name is copied.
        Ok(Self(unsafe { sys::rd_kafka_consumer_group_metadata_new(name.as_ptr()) }))
    }

    fn as_ptr(&self) -> *mut sys::rd_kafka_consumer_group_metadata_t {
        self.0
    }
}

impl Drop for GroupMetadata {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        unsafe { sys::rd_kafka_consumer_group_metadata_destroy(self.0) }
    }
}

/// The offset that a group has on a topic's partition 0 (a restore's progress); `None` if it never committed one. Waits
/// for a coordinator that is moving.
pub fn committed(connection: &Connection, group: &str, topic: &str, timeout: Duration) -> Result<Option<i64>> {
    let deadline = Instant::now() + timeout;
    let consumer = super::Consumer::new(connection, group)?;
    loop {
        match committed_once(&consumer, group, topic, timeout) {
            Err(e) if e.is_unavailable() && Instant::now() < deadline => {
                tracing::debug!("{e}");
                std::thread::sleep(Duration::from_millis(200));
            }
            other => return other,
        }
    }
}

fn committed_once(consumer: &super::Consumer, group: &str, topic: &str, timeout: Duration) -> Result<Option<i64>> {
    let doing = format!("cannot read the progress of group {group}");
    let mut list = TopicPartitionList::new();
    list.add_partition(topic, 0);
    let list =
        consumer.inner().committed_offsets(list, timeout).map_err(|e| error(&doing, &e, consumer.last_error()))?;
    let elements = list.elements();
    let element = elements.first().ok_or_else(|| Error::unavailable(doing.clone()))?;
    element.error().map_err(|e| error(&doing, &e, None))?;
    Ok(match element.offset() {
        Offset::Offset(offset) => Some(offset),
        _ => None,
    })
}
