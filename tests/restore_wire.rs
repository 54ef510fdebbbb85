//! What a restore says to a broker that has neither transactions nor idempotence nor compression, such as VAST's: read
//! off the wire, by a proxy in front of the embedded broker.

mod support;
#[path = "support/wire.rs"]
#[allow(dead_code, reason = "each test program uses a part")]
mod wire;

use dlq_archiver::format::Format;
use dlq_archiver::kafka::{Connection, MockBroker, RangeReader};
use dlq_archiver::record::{RawBatch, TopicPartition};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;
use support::{Run, TestArchive};
use wire::{
    ADD_OFFSETS_TO_TXN, ADD_PARTITIONS_TO_TXN, API_VERSIONS, Body, DESCRIBE_CONFIGS, END_TXN, FIND_COORDINATOR,
    INIT_PRODUCER_ID, METADATA, PRODUCE, Produce, TXN_OFFSET_COMMIT, Wire,
};

/// VAST's broker has none of them.
const FORBIDDEN: [i16; 6] =
    [INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT, DESCRIBE_CONFIGS];

/// KIP-714: librdkafka asks for it of brokers that offer it, as the embedded one does.
const GET_TELEMETRY_SUBSCRIPTIONS: i16 = 71;

/// All that a plain restore asks for.
const ALLOWED: [i16; 5] = [PRODUCE, METADATA, FIND_COORDINATOR, API_VERSIONS, GET_TELEMETRY_SUBSCRIPTIONS];

/// The embedded broker with VAST's topic, and the proxy before it.
struct Site {
    archive: TestArchive,
    broker: MockBroker,
    wire: Wire,
}

impl Site {
    async fn new(vast: bool) -> Self {
        let (archive, broker) = (TestArchive::of_fixtures(Format::Parquet).await, MockBroker::start().unwrap());
        if vast {
            broker.without_transactions().unwrap();
        }
        broker.create_topic("default", 1).unwrap();
        let wire = Wire::to(&broker.brokers());
        Self { archive, broker, wire }
    }

    /// VAST's dead letters, back to where they came from.
    fn replay(&self, args: &[&str]) -> Run {
        let all = ["restore", "--brokers", &self.wire.address(), "--topic", "default-dlt", "-o", "json"];
        self.archive.run(&[&all[..], args].concat())
    }

    /// What is in VAST's topic, not asked through the proxy.
    fn arrived(&self, records: i64) -> RawBatch {
        let mut batch = RawBatch::new();
        let reader = RangeReader::new(&Connection::new(&self.broker.brokers())).unwrap();
        let read = reader.read(&TopicPartition::new("default", 0), 0, records, Duration::from_secs(20), |m| {
            m.copy_into(&mut batch)?;
            Ok(ControlFlow::Continue(()))
        });
        read.unwrap();
        batch
    }

    /// That it was all said through the proxy, and nothing that such a broker does not have.
    fn was_plain(&self, records: i64) {
        let offered = self.wire.offered();
        for request in self.wire.requests() {
            assert!(ALLOWED.contains(&request.api) && offered.contains(&request.api), "{request:?}");
            assert_eq!(request.client_id.as_deref(), Some("dlq-archiver"), "{request:?}");
            assert_ne!(request.body, Body::FindCoordinator { of_transactions: true }, "{request:?}");
        }
        let produced = self.wire.produced();
        for Produce { transactional_id, acks, batches } in &produced {
            assert_eq!((transactional_id, *acks), (&None, -1), "{produced:?}");
            for b in batches {
                let sequence = (b.transactional, b.producer_id, b.producer_epoch, b.base_sequence);
                assert_eq!((b.magic, b.compression, sequence), (2, 0, (false, -1, -1, -1)), "{b:?}");
            }
        }
        // The proxy lets no answer with another port through, so the program knows none: what is in the topic passed it.
        let passed: i32 = produced.iter().flat_map(|p| &p.batches).map(|b| b.records).sum();
        assert_eq!(i64::from(passed), records);
    }
}

/// Partition and offset of the fixtures that say where they came from, as a restore goes through them. The one in
/// structured mode, 0/0, has no subject.
const REPLAYED: [(i32, i64); 9] = [(0, 1), (0, 2), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4), (7, 0), (7, 1)];

/// As VAST's documentation has it: to the topic that the subject names, without a key, as they are but for
/// `ce_knativeerror*`.
async fn replayed_as_documented(args: &[&str], reason: &str) {
    let site = Site::new(true).await;
    let done = site.replay(args).json_of_failed();
    assert_eq!(done["skipped_such_as"][0]["record_id"], "default-dlt/0/0", "{done}");
    assert_eq!((&done["restored"], &done["delivery"]), (&REPLAYED.len().into(), &"plain".into()), "{done}");
    assert!(done["delivery_reason"].as_str().unwrap().starts_with(reason), "{done}");
    assert!(FORBIDDEN.iter().all(|key| !site.wire.offered().contains(key)), "it is no such broker");
    let fixtures = support::fixtures();
    let arrived = site.arrived(REPLAYED.len() as i64);
    assert_eq!(arrived.len(), REPLAYED.len());
    for (raw, (partition, offset)) in arrived.iter().zip(REPLAYED) {
        let batch = &fixtures[&("default-dlt".to_owned(), partition)];
        let source = batch.iter().find(|r| r.offset == offset).unwrap();
        assert_eq!((raw.key, raw.value, raw.timestamp_ms), (None, source.value, source.timestamp_ms));
        let own: [&[u8]; 2] = [b"dlq-archiver-restore-id", b"dlq-archiver-restore-count"];
        let failed: [&[u8]; 3] = [b"ce_knativeerrordest", b"ce_knativeerrorcode", b"ce_knativeerrordata"];
        let is: Vec<_> = raw.headers.iter().filter(|h| !own.contains(&h.name)).collect();
        let want: Vec<_> = source.headers.iter().filter(|h| !failed.contains(&h.name)).collect();
        assert_eq!(is, want, "{partition}/{offset}");
    }
    site.was_plain(REPLAYED.len() as i64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_to_vast_asks_for_nothing_that_vast_does_not_have() {
    // What the broker offers says it: not even a producer id is asked for.
    replayed_as_documented(&[], "the brokers have no transactions").await;
    replayed_as_documented(&["--delivery", "plain"], "asked for").await;
}

/// librdkafka asks twice a second until it is told to stop. It went on for 90 s, 176 times.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_offers_transactions_and_refuses_them_is_taken_at_its_word() {
    let site = Site::new(false).await;
    site.broker.refuses_transactions();
    let done = site.replay(&[]).json_of_failed();
    assert_eq!((&done["restored"], &done["delivery"]), (&REPLAYED.len().into(), &"plain".into()), "{done}");
    let requests = site.wire.requests().into_iter();
    let asked: Vec<i16> = requests.map(|r| r.api).filter(|api| FORBIDDEN.contains(api)).collect();
    assert!((1..=10).contains(&asked.len()) && asked.iter().all(|api| *api == INIT_PRODUCER_ID), "{asked:?}");
}

/// A setting that all clients of a site have is not to break a restore to a broker that cannot take it.
#[tokio::test(flavor = "multi_thread")]
async fn settings_of_the_user_do_not_make_a_plain_restore_say_what_vast_does_not_understand() {
    let site = Site::new(true).await;
    let mut sent = 0;
    // By every name that librdkafka has for them.
    for setting in [
        "compression.type=zstd",
        "compression.codec=zstd",
        "acks=1",
        "request.required.acks=1",
        "max.in.flight=5",
        "max.in.flight.requests.per.connection=5",
    ] {
        // Which of two names of one setting was taken was chance.
        for _ in 0..5 {
            let done = site.replay(&["--include-restored", "--delivery", "plain", "-X", setting]).json_of_failed();
            assert_eq!(done["restored"], REPLAYED.len(), "{done}");
            sent += REPLAYED.len() as i64;
        }
    }
    site.was_plain(sent);
    for setting in ["enable.idempotence=true", "transactional.id=x"] {
        let refused = site.replay(&["--include-restored", "-X", setting]);
        assert!(refused.fails(2).contains("cannot be set"), "{refused:?}");
    }
}

/// What the tests above find nowhere, the proxy would see: transactions.
#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_sees_transactions() {
    let site = Site::new(false).await;
    let done = site.replay(&["--delivery", "transactional"]).json_of_failed();
    assert_eq!((&done["restored"], &done["delivery"]), (&REPLAYED.len().into(), &"transactional".into()), "{done}");
    let asked: BTreeSet<i16> = site.wire.keys();
    for key in FORBIDDEN.iter().filter(|key| **key != DESCRIBE_CONFIGS) {
        assert!(asked.contains(key), "{key} of {asked:?}");
    }
    assert!(site.wire.requests().iter().any(|r| r.body == Body::FindCoordinator { of_transactions: true }));
    let produced = site.wire.produced();
    assert!(!produced.is_empty());
    for Produce { transactional_id, acks, batches } in &produced {
        assert!(transactional_id.as_ref().is_some_and(|id| id.contains("restore")) && *acks == -1, "{produced:?}");
        for b in batches {
            assert!(b.transactional && b.producer_id >= 0 && b.producer_epoch >= 0 && b.base_sequence >= 0, "{b:?}");
        }
    }
}

/// And compression, fewer acknowledgements, idempotence without transactions.
#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_sees_compression_and_idempotence() {
    for (settings, compression, acks, idempotent) in [
        (&[("compression.type", "zstd")][..], 4, -1, false),
        (&[("compression.type", "gzip"), ("acks", "1")], 1, 1, false),
        (&[("compression.type", "none"), ("enable.idempotence", "true")], 0, -1, true),
    ] {
        let site = Site::new(false).await;
        let mut config = rdkafka::ClientConfig::new();
        config.set("bootstrap.servers", site.wire.address());
        settings.iter().for_each(|(name, value)| {
            config.set(*name, *value);
        });
        let producer: BaseProducer = config.create().unwrap();
        producer.send(BaseRecord::<(), _>::to("default").payload(&"x".repeat(10_000))).map_err(|e| e.0).unwrap();
        producer.flush(Duration::from_secs(20)).unwrap();
        let produced = site.wire.produced();
        assert_eq!((produced[0].acks, produced[0].batches[0].compression), (acks, compression), "{produced:?}");
        assert_eq!(produced[0].batches[0].producer_id >= 0, idempotent, "{produced:?}");
        assert_eq!(site.wire.keys().contains(&INIT_PRODUCER_ID), idempotent);
    }
}
