//! What one broker tells of topics: their ids, and whether this user may write to them. librdkafka's DescribeTopics, which
//! is a Metadata request.

use super::consumer::Context;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka_sys as sys;
use std::ffi::{CStr, CString};
use std::time::Duration;

/// Topics that are described in one request.
pub const AT_A_TIME: usize = 500;

/// Asks one broker. The controller, whom librdkafka asks otherwise, is none that every broker names.
pub fn topic_id(
    consumer: &BaseConsumer<Context>,
    topic: &str,
    broker: i32,
    timeout: Duration,
) -> std::result::Result<Option<String>, Code> {
    let told = topic_ids(consumer, &[topic], broker, timeout)?;
    told.into_iter().next().map_or(Err(Code::UnknownTopicOrPartition), |(_, id)| id)
}

/// What one broker tells of a topic: its id, where it has one.
pub type Told = std::result::Result<Option<String>, Code>;

/// The same for several topics, each with its name.
pub fn topic_ids(
    consumer: &BaseConsumer<Context>,
    topics: &[&str],
    broker: i32,
    timeout: Duration,
) -> std::result::Result<Vec<(String, Told)>, Code> {
    // SAFETY: `describe` hands over descriptions that are live.
    describe(consumer, topics, (broker, false), timeout, |topic| unsafe { topic_id_of(topic) })
}

/// Whether this user may write to each of the topics; `None` where the broker does not tell.
pub fn writable(
    consumer: &BaseConsumer<Context>,
    topics: &[&str],
    broker: i32,
    timeout: Duration,
) -> std::result::Result<Vec<(String, Option<bool>)>, Code> {
    // SAFETY: `describe` hands over descriptions that are live.
    describe(consumer, topics, (broker, true), timeout, |topic| unsafe { may_write(topic) })
}

/// What `read` makes of the description of each topic. `asked`: the broker, and whether for what this user may do.
fn describe<T>(
    consumer: &BaseConsumer<Context>,
    topics: &[&str],
    asked: (i32, bool),
    timeout: Duration,
    read: impl Fn(*const sys::rd_kafka_TopicDescription_t) -> T,
) -> std::result::Result<Vec<(String, T)>, Code> {
    let (broker, operations) = asked;
    use sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR;
    let names: Vec<CString> = topics.iter().filter_map(|topic| CString::new(*topic).ok()).collect();
    let client = consumer.client().native_ptr();
    let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: every pointer below comes from librdkafka, is checked where it may be null, is used before what owns it
    // is destroyed, and is destroyed once. The client outlives the call.
    unsafe {
        let mut names: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
        let topics = sys::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len());
        let options =
            sys::rd_kafka_AdminOptions_new(client, sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS);
        sys::rd_kafka_AdminOptions_set_request_timeout(options, millis, std::ptr::null_mut(), 0);
        sys::rd_kafka_AdminOptions_set_broker(options, broker, std::ptr::null_mut(), 0);
        if operations {
            let refused = sys::rd_kafka_AdminOptions_set_include_authorized_operations(options, 1);
            if !refused.is_null() {
                sys::rd_kafka_error_destroy(refused);
            }
        }
        let queue = sys::rd_kafka_queue_new(client);
        sys::rd_kafka_DescribeTopics(client, topics, options, queue);
        let event = sys::rd_kafka_queue_poll(queue, millis.saturating_add(500));
        let answer = if event.is_null() {
            Err(sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR__TIMED_OUT.into())
        } else {
            let code = sys::rd_kafka_event_error(event);
            if code == RD_KAFKA_RESP_ERR_NO_ERROR {
                let mut count = 0usize;
                let result = sys::rd_kafka_event_DescribeTopics_result(event);
                let found = sys::rd_kafka_DescribeTopics_result_topics(result, &mut count);
                let each = (0..count).map(|i| *found.add(i));
                Ok(each.map(|topic| (topic_name_of(topic), read(topic))).collect())
            } else {
                Err(code.into())
            }
        };
        if !event.is_null() {
            sys::rd_kafka_event_destroy(event);
        }
        sys::rd_kafka_queue_destroy(queue);
        sys::rd_kafka_AdminOptions_destroy(options);
        sys::rd_kafka_TopicCollection_destroy(topics);
        answer
    }
}

/// # Safety
/// `description` must be live.
unsafe fn topic_name_of(description: *const sys::rd_kafka_TopicDescription_t) -> String {
    // SAFETY: by the caller; the name belongs to the description.
    unsafe { CStr::from_ptr(sys::rd_kafka_TopicDescription_name(description)).to_string_lossy().into_owned() }
}

/// # Safety
/// `description` must be live.
unsafe fn topic_id_of(description: *const sys::rd_kafka_TopicDescription_t) -> Result<Option<String>, Code> {
    // SAFETY: by the caller; the id belongs to the description, its text to the id.
    unsafe {
        let failed = sys::rd_kafka_TopicDescription_error(description);
        if !failed.is_null() {
            let code = sys::rd_kafka_error_code(failed);
            if code != sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
                return Err(code.into());
            }
        }
        let id = sys::rd_kafka_TopicDescription_topic_id(description);
        if id.is_null() {
            return Ok(None);
        }
        let halves = (sys::rd_kafka_Uuid_most_significant_bits(id), sys::rd_kafka_Uuid_least_significant_bits(id));
        Ok((halves != (0, 0)).then(|| uuid_text(halves.0, halves.1)))
    }
}

/// As Kafka prints a topic's id (`org.apache.kafka.common.Uuid`), in its tools and in share groups' dead letters: base64
/// for URLs, without padding. librdkafka's own text is the other base64.
fn uuid_text(most: i64, least: i64) -> String {
    URL_SAFE_NO_PAD.encode([most.to_be_bytes(), least.to_be_bytes()].concat())
}

/// # Safety
/// `description` must be live.
unsafe fn may_write(description: *const sys::rd_kafka_TopicDescription_t) -> Option<bool> {
    use sys::rd_kafka_AclOperation_t::{RD_KAFKA_ACL_OPERATION_ALL, RD_KAFKA_ACL_OPERATION_WRITE};
    let mut count = 0usize;
    // SAFETY: by the caller; the operations belong to the description, and there are `count` of them.
    unsafe {
        let operations = sys::rd_kafka_TopicDescription_authorized_operations(description, &mut count);
        if operations.is_null() || count == 0 {
            return None;
        }
        let may = [RD_KAFKA_ACL_OPERATION_WRITE, RD_KAFKA_ACL_OPERATION_ALL];
        Some((0..count).any(|i| may.contains(&*operations.add(i))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of all topics have an id with one of the two characters that the two kinds of base64 write otherwise: their
    /// originals were told as of a topic that does not exist.
    #[test]
    fn ids_are_written_as_kafka_prints_them() {
        assert_eq!(uuid_text(0, 1), "AAAAAAAAAAAAAAAAAAAAAQ");
        assert_eq!(uuid_text(-1, -1), "_____________________w");
        assert_eq!(uuid_text(i64::from_be_bytes([0xfb, 0xef, 0xbe, 0, 0, 0, 0, 0]), 0), "----AAAAAAAAAAAAAAAAAA");
    }
}
