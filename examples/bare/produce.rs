//! Sends the records of one topic to another as fast as librdkafka alone does it: what a restore's speed is measured
//! against. The records are read into memory first; the clock runs from the first record to the last acknowledgement.
//!
//! The first COUNT records that FROM gives, each to the partition that it has there. All replicas acknowledge, nothing is
//! compressed; `--transactions`: idempotent, so many records each.

use crate::Result;
use crate::consume::{self, PATIENCE};
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Message as _, OwnedHeaders, OwnedMessage};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use std::time::{Duration, Instant};

fn read(brokers: &str, topic: &str, count: usize) -> Result<Vec<(OwnedMessage, Option<OwnedHeaders>)>> {
    let (consumer, _) = consume::of_all(brokers, topic)?;
    let mut records = Vec::with_capacity(count);
    while records.len() < count {
        let mut owned = match consumer.poll(PATIENCE).ok_or("the topic has fewer records")? {
            Ok(message) => message.detach(),
            Err(KafkaError::PartitionEOF(_)) => continue,
            Err(e) => return Err(e.into()),
        };
        let headers = owned.detach_headers();
        records.push((owned, headers));
    }
    Ok(records)
}

fn send(producer: &BaseProducer, to: &str, (message, headers): (OwnedMessage, Option<OwnedHeaders>)) -> Result<()> {
    let mut record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(to).partition(message.partition());
    record.key = message.key();
    record.payload = message.payload();
    record.timestamp = message.timestamp().to_millis();
    record.headers = headers;
    loop {
        match producer.send(record) {
            Ok(()) => return Ok(()),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                producer.poll(Duration::from_millis(1));
                record = back;
            }
            Err((e, _)) => return Err(e.into()),
        }
    }
}

pub fn run(brokers: &str, from: &str, to: &str, count: usize, rest: &[&str]) -> Result<()> {
    let records = read(brokers, from, count)?;
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("acks", "all").set("compression.type", "none").set("linger.ms", "5");
    let size: usize = match rest {
        ["--transactions", size] => {
            config.set("transactional.id", to);
            size.parse()?
        }
        _ => 0,
    };
    let producer: BaseProducer = config.create()?;
    producer.client().fetch_metadata(Some(to), PATIENCE)?;
    if size > 0 {
        producer.init_transactions(PATIENCE)?;
    }
    let (begin, total) = (Instant::now(), records.len());
    for (n, record) in records.into_iter().enumerate() {
        if size > 0 && n % size == 0 {
            producer.begin_transaction()?;
        }
        send(&producer, to, record)?;
        if size > 0 && ((n + 1) % size == 0 || n + 1 == total) {
            // Left to itself, the library waits for acknowledgements in steps of 100 ms here.
            while producer.in_flight_count() > 0 {
                producer.poll(Duration::from_millis(1));
            }
            producer.commit_transaction(PATIENCE)?;
        }
        producer.poll(Duration::ZERO);
    }
    while producer.in_flight_count() > 0 {
        producer.poll(Duration::from_millis(1));
    }
    println!("{:.3}", total as f64 / begin.elapsed().as_secs_f64());
    Ok(())
}
