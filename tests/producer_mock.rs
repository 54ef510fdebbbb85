//! What the producer sends is what the reader gets, byte for byte, on the embedded broker.

use dlq_archiver::Kind;
use dlq_archiver::kafka::{Connection, MockBroker, NewRecord, Producer, RangeReader, Transactions};
use dlq_archiver::record::{Header, RawBatch, RawRecord, TopicPartition};
use std::ops::ControlFlow;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

type Part = Option<&'static [u8]>;

struct Case {
    key: Part,
    value: Part,
    headers: Vec<(&'static [u8], Part)>,
    timestamp_ms: i64,
}

fn cases() -> Vec<Case> {
    let plain = |headers| Case { key: Some(b"k"), value: Some(b"v"), headers, timestamp_ms: 1_791_468_687_032 };
    vec![
        plain(vec![(b"a\0b", Some(b"nul in the middle")), (b"\0", Some(b"only nul")), (b"a\0", None)]),
        plain(vec![(b"\xff\xfe", Some(b"not UTF-8")), ("größe".as_bytes(), Some(b"\0\x01"))]),
        plain(vec![(b"dup", Some(b"1")), (b"dup", None), (b"dup", Some(b"")), (b"dup", Some(b"1"))]),
        plain(vec![(b"", Some(b"no name")), (b"", None)]),
        Case { key: None, value: None, headers: vec![], timestamp_ms: 1 },
        Case { key: Some(b""), value: Some(b""), headers: vec![(b"x", Some(b""))], timestamp_ms: -1 },
        Case { key: Some(b"\xff\0"), value: None, headers: vec![], timestamp_ms: i64::from(i32::MAX) },
        Case { key: None, value: Some(b""), headers: vec![], timestamp_ms: 253_402_300_800_000 },
    ]
}

fn headers(case: &Case) -> Vec<Header<'static>> {
    case.headers.iter().map(|(name, value)| Header { name, value: *value }).collect()
}

fn assert_same(raw: &RawRecord<'_>, case: &Case) {
    assert_eq!((raw.key, raw.value, raw.timestamp_ms), (case.key, case.value, case.timestamp_ms));
    assert_eq!(raw.headers.iter().collect::<Vec<_>>(), headers(case));
}

/// Fails too if librdkafka lays its headers out in another way than `kafka/message.rs` reads them.
#[test]
fn header_names_with_nul_survive() {
    let broker = MockBroker::start().unwrap();
    broker.create_topic("names", 1).unwrap();
    let connection = Connection::new(&broker.brokers());
    let producer = Producer::new(&connection, None).unwrap();
    let cases = cases();
    for (token, case) in cases.iter().enumerate() {
        let record = NewRecord {
            topic: "names",
            partition: Some(0),
            key: case.key,
            value: case.value,
            headers: headers(case).into_iter(),
            timestamp_ms: Some(case.timestamp_ms),
            token,
        };
        producer.send(record, PATIENCE).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
    let acks = producer.acks();
    let told: Vec<_> = acks.iter().map(|a| (a.token, a.result.clone().unwrap())).collect();
    assert_eq!(told, (0..cases.len()).map(|i| (i, (0, i as i64))).collect::<Vec<_>>());

    let mut batch = RawBatch::new();
    let reader = RangeReader::new(&connection).unwrap();
    reader
        .read(&TopicPartition::new("names", 0), 0, cases.len() as i64, PATIENCE, |m| {
            m.copy_into(&mut batch)?;
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    assert_eq!(batch.len(), cases.len());
    for (raw, case) in batch.iter().zip(&cases) {
        assert_same(&raw, case);
    }
}

#[test]
fn a_timestamp_that_would_become_now_is_refused() {
    let broker = MockBroker::start().unwrap();
    broker.create_topic("zero", 1).unwrap();
    let producer = Producer::new(&Connection::new(&broker.brokers()), None).unwrap();
    let record = NewRecord {
        topic: "zero",
        partition: Some(0),
        key: None,
        value: None,
        headers: std::iter::empty(),
        timestamp_ms: Some(0),
        token: 0,
    };
    assert!(producer.send(record, PATIENCE).is_err());
}

/// librdkafka waits for a group coordinator that is gone without looking at the call's timeout: a restore hung for ever.
#[test]
fn a_commit_whose_coordinator_is_gone_ends_in_time() {
    let broker = MockBroker::start_brokers(2).unwrap();
    broker.create_topic("t", 1).unwrap();
    broker.part_coordinators("restore").unwrap();
    let producer = Producer::new(&Connection::new(&broker.brokers()), Some("restore")).unwrap();
    assert_eq!(producer.init_transactions(PATIENCE).unwrap(), Transactions::Ready);
    producer.begin_transaction().unwrap();
    producer.commit_transaction("restore", "t", 0, PATIENCE).unwrap();
    producer.begin_transaction().unwrap();
    broker.stop_broker(2).unwrap();
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let second = Duration::from_secs(1);
        let committed = producer.commit_transaction("restore", "t", 1, second).map_err(|e| e.kind());
        let aborted = producer.abort_transaction(second).map_err(|e| e.kind());
        drop(producer);
        sender.send((committed, aborted)).unwrap();
    });
    let ended = ended.recv_timeout(Duration::from_secs(60)).expect("it hangs");
    assert_eq!(ended, (Err(Kind::Unavailable), Err(Kind::Unavailable)));
}
