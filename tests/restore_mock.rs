//! Restores into the embedded broker, by the real program: with transactions, and where the broker has none.

mod support;

use dlq_archiver::format::Format;
use dlq_archiver::kafka::{Connection, MockBroker, RangeReader};
use dlq_archiver::record::{RawBatch, TopicPartition};
use std::ops::ControlFlow;
use std::time::Duration;
use support::{Run, TestArchive};

fn restore(archive: &TestArchive, broker: &MockBroker, args: &[&str]) -> Run {
    let brokers = broker.brokers();
    let mut all = vec!["restore", "--brokers", &brokers];
    all.extend_from_slice(args);
    archive.run(&all)
}

fn read(broker: &MockBroker, topic: &str, records: i64) -> RawBatch {
    let mut batch = RawBatch::new();
    let reader = RangeReader::new(&Connection::new(&broker.brokers())).unwrap();
    reader
        .read(&TopicPartition::new(topic, 0), 0, records, Duration::from_secs(20), |m| {
            m.copy_into(&mut batch)?;
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    batch
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_event_goes_back_to_its_topic() {
    let archive = TestArchive::of_fixtures(Format::Parquet).await;
    let broker = MockBroker::start().unwrap();
    broker.create_topic("default", 1).unwrap();
    let done = restore(&archive, &broker, &["--record-id", "default-dlt/7/0", "-o", "json"]).json();
    assert_eq!((&done["restored"], &done["delivery"]), (&1.into(), &"transactional".into()), "{done}");
    let batch = read(&broker, "default", 1);
    let raw = batch.get(0);
    assert_eq!(raw.headers.len(), 13);
    assert!(raw.headers.iter().all(|h| !h.name.starts_with(b"ce_knativeerror")));
    let fixtures = support::fixtures();
    let source = fixtures[&("default-dlt".to_owned(), 7)].get(0);
    assert_eq!((raw.key, raw.value, raw.timestamp_ms), (source.key, source.value, source.timestamp_ms));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_transactions_it_says_so_and_delivers_plainly() {
    let archive = TestArchive::of_fixtures(Format::Parquet).await;
    let broker = MockBroker::start().unwrap();
    broker.without_transactions().unwrap();
    broker.create_topic("default", 1).unwrap();
    let args = ["--topic", "default-dlt", "--partition", "7", "--to", "default"];
    let refused = restore(&archive, &broker, &[&args[..], &["--delivery", "transactional"]].concat());
    assert!(refused.fails(2).contains("--delivery plain"), "{refused:?}");
    let run = restore(&archive, &broker, &args);
    assert!(run.ok().contains("at least once"), "{run:?}");
    assert!(run.ok().contains("the brokers have no transactions"), "{run:?}");
    let fixtures = support::fixtures();
    let source = &fixtures[&("default-dlt".to_owned(), 7)];
    let batch = read(&broker, "default", source.len() as i64);
    for (raw, source) in batch.iter().zip(source.iter()) {
        assert_eq!((raw.key, raw.value, raw.timestamp_ms), (source.key, source.value, source.timestamp_ms));
    }
}
