//! Reading a topic to the end that it has at the start, with librdkafka's own settings.

use crate::Result;
use dlq_archiver::dialect::Dialects;
use dlq_archiver::record::{Header, RawBatch, TimestampType};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde_json::{Value, json};
use std::hint::black_box;
use std::time::Duration;

pub const PATIENCE: Duration = Duration::from_secs(60);

/// A consumer of the whole topic, and how many partitions it has.
pub fn of_all(brokers: &str, topic: &str) -> Result<(BaseConsumer, usize)> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "bare")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .create()?;
    let metadata = consumer.fetch_metadata(Some(topic), PATIENCE)?;
    let partitions = metadata.topics().first().map_or(0, |t| t.partitions().len());
    let mut all = TopicPartitionList::new();
    for partition in 0..i32::try_from(partitions)? {
        all.add_partition_offset(topic, partition, Offset::Beginning)?;
    }
    consumer.assign(&all)?;
    Ok((consumer, partitions))
}

/// Hands each record to `then`, those of a partition in order. Returns how many there were, and the bytes of their keys and
/// values.
pub fn each(brokers: &str, topic: &str, mut then: impl FnMut(&BorrowedMessage<'_>) -> Result<()>) -> Result<Value> {
    let (consumer, partitions) = of_all(brokers, topic)?;
    let (mut records, mut bytes, mut ends) = (0u64, 0usize, 0);
    while ends < partitions {
        match consumer.poll(PATIENCE).ok_or("nothing came for a minute")? {
            Ok(message) => {
                records += 1;
                bytes += message.key_len() + message.payload_len();
                then(&message)?;
            }
            Err(KafkaError::PartitionEOF(_)) => ends += 1,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(json!({"records": records, "bytes": bytes}))
}

pub fn drop_all(brokers: &str, topic: &str) -> Result<()> {
    println!("{}", each(brokers, topic, |_| Ok(()))?);
    Ok(())
}

pub fn decode(brokers: &str, topic: &str) -> Result<()> {
    let dialects = Dialects::builtin();
    let mut decoder = dialects.of_topic(topic);
    let read = each(brokers, topic, |message| {
        let mut batch = RawBatch::new();
        let headers = message.headers().into_iter().flat_map(|all| (0..all.count()).map(|i| all.get(i)));
        let headers = headers.map(|h| Header { name: h.key.as_bytes(), value: h.value });
        let headers: Vec<_> = headers.collect();
        let timestamp = message.timestamp().to_millis().unwrap_or(-1);
        let (key, value) = (message.key(), message.payload());
        batch.push(message.offset(), timestamp, TimestampType::CreateTime, 0, key, value, headers.into_iter());
        black_box(decoder.decode(message.partition(), &batch.get(0)));
        Ok(())
    })?;
    println!("{read}");
    Ok(())
}
