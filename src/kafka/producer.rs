//! Produces records byte for byte: repeated headers, null and empty values, names that are not UTF-8, timestamps.
//!
//! Without idempotence and compression, as brokers with a part of Kafka's protocol demand; with a transactional id
//! when records and progress must become visible together.

use super::{Connection, LastError, error};
use crate::error::{Error, Result};
use crate::record::Header;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::DeliveryResult;
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseProducer, Producer as _, ProducerContext};
use rdkafka_sys as sys;
use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A record to produce. All bytes are copied by librdkafka before the call returns.
#[derive(Debug, Clone)]
pub struct NewRecord<'a, H> {
    pub topic: &'a str,
    /// `None`: by key, as Kafka's default partitioner of librdkafka (`murmur2_random`, the Java client's) does.
    pub partition: Option<i32>,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: H,
    /// Milliseconds since 1970, -1 for none; `None` = now. [`UNSENDABLE_TIMESTAMP`] cannot be sent.
    pub timestamp_ms: Option<i64>,
    /// Comes back with the acknowledgement.
    pub token: usize,
}

/// The one timestamp that librdkafka cannot send: it takes 0 for "now".
pub const UNSENDABLE_TIMESTAMP: i64 = 0;

/// librdkafka's default of `batch.size`.
const BATCH_SIZE: u64 = 1_000_000;

/// librdkafka's `RD_KAFKA_PARTITION_UA`: the partitioner chooses.
const BY_KEY: i32 = -1;

/// Why a topic takes a record in no attempt: it is the record, or one that was sent together with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    TooLarge,
    Timestamp,
    /// Other rules of the topic: one that is compacted takes no record without a key.
    Invalid,
}

impl Refusal {
    fn of(code: Option<Code>) -> Option<Self> {
        match code? {
            Code::MessageSizeTooLarge | Code::MessageBatchTooLarge => Some(Self::TooLarge),
            Code::InvalidTimestamp => Some(Self::Timestamp),
            Code::InvalidRecord | Code::InvalidDifferentRecord => Some(Self::Invalid),
            _ => None,
        }
    }
}

/// The broker's answer for one record.
#[derive(Debug, Clone)]
pub struct Ack {
    pub token: usize,
    /// Partition and offset, or why it was not taken.
    pub result: Result<(i32, i64)>,
    /// Where it was not taken and never will be. Brokers refuse all that was sent together: what is refused when it
    /// was sent alone is refused for its own sake.
    pub refusal: Option<Refusal>,
}

#[derive(Default)]
pub(super) struct Context {
    acks: Mutex<Vec<Ack>>,
    pub(super) last: LastError,
}

impl Context {
    fn push(&self, ack: Ack) {
        self.acks.lock().unwrap_or_else(|e| e.into_inner()).push(ack);
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        super::log(level, facility, message, &self.last);
    }
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", "{error}: {reason}");
        self.last.set(reason);
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = usize;
    fn delivery(&self, result: &DeliveryResult<'_>, token: usize) {
        let (result, refusal) = match result {
            Ok(m) => (Ok((m.partition(), m.offset())), None),
            // Thrown away since another one of its transaction failed: that one's answer says why.
            Err((e, _)) if matches!(e.rdkafka_error_code(), Some(Code::PurgeQueue | Code::PurgeInflight)) => return,
            Err((e, m)) => {
                let doing = format!("topic {} did not take a record", m.topic());
                (Err(error(&doing, e, None)), Refusal::of(e.rdkafka_error_code()))
            }
        };
        self.push(Ack { token, result, refusal });
    }
}

/// A producer; dropped without [`Producer::flush`], records not yet acknowledged may be lost.
pub struct Producer {
    /// Shared with a call that never returned: librdkafka may not be destroyed under it.
    pub(super) inner: Arc<BaseProducer<Context>>,
    /// A call never returned: nothing of transactions can be asked any more.
    pub(super) stuck: AtomicBool,
}

impl Producer {
    /// # Errors
    /// [`crate::Kind::Config`] if librdkafka refuses the settings.
    pub fn new(connection: &Connection, transactional_id: Option<&str>) -> Result<Self> {
        Self::with_limit(connection, transactional_id, None)
    }

    /// `limit`: the smallest `max.message.bytes` of the topics. Brokers hold it against all records that are sent
    /// together, so no more of them are than it allows.
    pub fn with_limit(connection: &Connection, transactional_id: Option<&str>, limit: Option<u64>) -> Result<Self> {
        let mut config = connection.client_config();
        config
            .set("acks", "all")
            .set("compression.type", "none")
            .set("partitioner", "murmur2_random")
            // A topic that was deleted is not to come back empty, with other settings.
            .set("allow.auto.create.topics", "false");
        if config.get("message.max.bytes").is_none() {
            // The broker's and topic's limits decide, not the client's default of 1 MB. Less than the 100 MiB above
            // which brokers close the connection instead of answering.
            config.set("message.max.bytes", "104792064");
        }
        if let Some(limit) = limit {
            let set = config.get("batch.size").and_then(|size| size.parse().ok()).unwrap_or(BATCH_SIZE);
            config.set("batch.size", limit.min(set).max(1).to_string());
        }
        if config.get("linger.ms").is_none() {
            config.set("linger.ms", "5");
        }
        match transactional_id {
            Some(id) => config.set("transactional.id", id).set("enable.idempotence", "true"),
            // One request in flight keeps the order that idempotence would have kept.
            None => config
                .set("enable.idempotence", "false")
                .set("max.in.flight.requests.per.connection", "1")
                .set("request.timeout.ms", "30000"),
        };
        let inner = config.create_with_context(Context::default()).map_err(|e| {
            Error::config(format!("cannot set up the Kafka producer: {e}. Check -X and --kafka-config"))
        })?;
        Ok(Self { inner: Arc::new(inner), stuck: AtomicBool::new(false) })
    }

    fn error(&self, doing: &str, e: &KafkaError) -> Error {
        error(doing, e, self.inner.context().last.get())
    }

    /// Queues one record, waiting for room in librdkafka's queue for at most `timeout`. One that is too large for
    /// librdkafka itself is refused by an acknowledgement, as brokers do it.
    ///
    /// # Errors
    /// What librdkafka refuses at once (unknown partition); [`crate::Kind::Unavailable`] if the queue stays full.
    pub fn send<'h, H: Iterator<Item = Header<'h>>>(&self, record: NewRecord<'_, H>, timeout: Duration) -> Result<()> {
        if record.timestamp_ms == Some(UNSENDABLE_TIMESTAMP) {
            return Err(Error::failed("a record with timestamp 0 (1970-01-01) cannot be sent with that timestamp"));
        }
        let headers: Vec<Header<'h>> = record.headers.collect();
        let topic = CString::new(record.topic).map_err(|_| Error::config("a topic name cannot hold NUL"))?;
        let deadline = Instant::now() + timeout;
        loop {
            match self.try_send(
                &topic,
                record.partition,
                record.key,
                record.value,
                &headers,
                record.timestamp_ms,
                record.token,
            ) {
                Ok(()) => return Ok(()),
                Err(Code::QueueFull) if Instant::now() < deadline => {
                    self.serve();
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(code) => {
                    let doing = format!("cannot send to {}", record.topic);
                    let e = self.error(&doing, &KafkaError::MessageProduction(code));
                    let refusal = Refusal::of(Some(code));
                    if refusal.is_none() {
                        return Err(e);
                    }
                    self.inner.context().push(Ack { token: record.token, result: Err(e), refusal });
                    return Ok(());
                }
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn try_send(
        &self,
        topic: &CString,
        partition: Option<i32>,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[Header<'_>],
        timestamp_ms: Option<i64>,
        token: usize,
    ) -> std::result::Result<(), Code> {
        use sys::rd_kafka_vtype_t as T;
        let part = |bytes: Option<&[u8]>| sys::rd_kafka_vu_s__bindgen_ty_1__bindgen_ty_1 {
            // A pointer that is not null with size 0 is an empty value; null is null.
            ptr: bytes.map_or(std::ptr::null_mut(), |b| b.as_ptr().cast_mut().cast::<c_void>()),
            size: bytes.map_or(0, <[u8]>::len),
        };
        let unit = |vtype, u| sys::rd_kafka_vu_t { vtype, u };
        type U = sys::rd_kafka_vu_s__bindgen_ty_1;
        // SAFETY: librdkafka copies topic, key and value (F_COPY) and takes the header list only when it returns no
        // error, else it is destroyed here. The array outlives the call.
        unsafe {
            let list = sys::rd_kafka_headers_new(headers.len());
            for h in headers {
                let value = h.value.map_or(std::ptr::null(), |v| v.as_ptr().cast::<c_void>());
                sys::rd_kafka_header_add(
                    list,
                    h.name.as_ptr().cast(),
                    h.name.len() as isize,
                    value,
                    h.value.map_or(-1, |v| v.len() as isize),
                );
            }
            let mut units = vec![
                unit(T::RD_KAFKA_VTYPE_TOPIC, U { cstr: topic.as_ptr() }),
                unit(T::RD_KAFKA_VTYPE_PARTITION, U { i32_: partition.unwrap_or(BY_KEY) }),
                unit(T::RD_KAFKA_VTYPE_MSGFLAGS, U { i: sys::RD_KAFKA_MSG_F_COPY }),
                unit(T::RD_KAFKA_VTYPE_KEY, U { mem: part(key) }),
                unit(T::RD_KAFKA_VTYPE_VALUE, U { mem: part(value) }),
                unit(T::RD_KAFKA_VTYPE_OPAQUE, U { ptr: token as *mut c_void }),
                unit(T::RD_KAFKA_VTYPE_HEADERS, U { headers: list }),
            ];
            if let Some(timestamp) = timestamp_ms {
                units.push(unit(T::RD_KAFKA_VTYPE_TIMESTAMP, U { i64_: timestamp }));
            }
            let failed = sys::rd_kafka_produceva(self.inner.client().native_ptr(), units.as_ptr(), units.len());
            if failed.is_null() {
                return Ok(());
            }
            let code = sys::rd_kafka_error_code(failed);
            sys::rd_kafka_error_destroy(failed);
            sys::rd_kafka_headers_destroy(list);
            Err(code.into())
        }
    }

    /// The acknowledgements since the last call.
    pub fn acks(&self) -> Vec<Ack> {
        self.serve();
        std::mem::take(&mut *self.inner.context().acks.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// Waits until every queued record is acknowledged or failed. Not with rust-rdkafka's `flush` and `poll`: the first
    /// waits out steps of 100 ms, the second spins through the last millisecond of its timeout.
    pub fn flush(&self, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            if self.flush_step()? {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(self.unacknowledged());
            }
        }
    }

    /// Waits for a moment; whether every queued record is acknowledged or failed.
    pub fn flush_step(&self) -> Result<bool> {
        self.serve();
        // SAFETY: the client is live. It waits for at most 2 ms, asleep.
        let code = unsafe { sys::rd_kafka_flush(self.inner.client().native_ptr(), 2) };
        match code {
            sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(true),
            sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR__TIMED_OUT => Ok(false),
            _ => Err(self.error("records were not acknowledged", &KafkaError::Flush(code.into()))),
        }
    }

    /// The error for records that were waited for too long, with what the connection said last.
    pub fn unacknowledged(&self) -> Error {
        self.error("records were not acknowledged", &KafkaError::Flush(Code::OperationTimedOut))
    }

    fn serve(&self) {
        serve(&self.inner);
    }

    /// Why this producer can do nothing any more, if so: fenced by another, for one.
    pub fn fatal(&self) -> Option<Error> {
        let mut text = [0u8; 512];
        // SAFETY: the buffer is as long as said, and librdkafka ends the text with NUL within it.
        let code = unsafe {
            sys::rd_kafka_fatal_error(self.inner.client().native_ptr(), text.as_mut_ptr().cast(), text.len())
        };
        if code == sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
            return None;
        }
        let text = CStr::from_bytes_until_nul(&text).map_or_else(|_| "".into(), CStr::to_string_lossy);
        Some(super::classify("the producer cannot go on", Some(code.into()), &text))
    }
}

/// Takes the acknowledgements that are there.
pub(super) fn serve(producer: &BaseProducer<Context>) {
    let taken = || producer.context().acks.lock().unwrap_or_else(|e| e.into_inner()).len();
    let mut before = taken();
    loop {
        // One event, of many acknowledgements or of something else.
        producer.poll(Duration::ZERO);
        let now = taken();
        if now == before {
            return;
        }
        before = now;
    }
}
