//! A record's whole way on a real Kafka, by the real program: topic, archive, restored topic. What comes out is what went
//! in, byte for byte and in order, less what the record's dialect strips.
//!
//! Wants `DLQ_ARCHIVER_BROKERS`. A seed is printed; `ROUND_TRIP_SEED=... cargo test --release --test round_trip_kafka`
//! makes the same records again, `ROUND_TRIP_RECORDS` another number of them.

mod common;
#[path = "support/live.rs"]
mod live;
mod support;

use common::fixtures;
use dlq_archiver::dialect::{Dialects, restore_target};
use dlq_archiver::kafka::{Connection, NewRecord, Producer};
use dlq_archiver::record::{Header, PayloadState, RawBatch, RawRecord, RecordId, TimestampType};
use dlq_archiver::topics::{TopicMatch, TopicSettings};
use live::{PATIENCE, fresh};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;
use support::Run;

const PARTITIONS: i32 = 4;

/// Records of one topic, by partition.
type Logs = BTreeMap<i32, RawBatch>;

/// All that must be the same.
#[derive(Debug, PartialEq)]
struct Facts {
    timestamp_ms: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

fn facts(r: &RawRecord<'_>) -> Facts {
    Facts {
        timestamp_ms: r.timestamp_ms,
        key: r.key.map(<[u8]>::to_vec),
        value: r.value.map(<[u8]>::to_vec),
        headers: r.headers.iter().map(|h| (h.name.to_vec(), h.value.map(<[u8]>::to_vec))).collect(),
    }
}

/// What a restore itself adds, and nothing else of the program's own.
fn is_added(name: &[u8]) -> bool {
    matches!(name, b"dlq-archiver-restore-id" | b"dlq-archiver-restore-count")
}

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect();
        bytes.truncate(length);
        bytes
    }
    /// Mostly small.
    fn size(&mut self) -> usize {
        match self.below(1000) {
            0 => 50_000 + self.below(250_000),
            1..10 => 1000 + self.below(20_000),
            10..200 => 0,
            _ => self.below(200),
        }
    }
    fn text(&mut self, length: usize) -> Vec<u8> {
        const ODD: &[&str] =
            &["a", "ß", "\0", "\"", "\\", "\n", "\u{2028}", "\u{85}", "\u{feff}", "🎉", "{", "'", "\u{fffd}"];
        let mut text = String::new();
        while text.len() < length {
            let odd: &&str = self.of(ODD);
            text.push_str(odd);
        }
        text.into_bytes()
    }
    /// Null, empty, text, bytes.
    fn part(&mut self) -> Option<Vec<u8>> {
        let size = self.size();
        match self.below(8) {
            0 => None,
            1 => Some(Vec::new()),
            2..5 => Some(self.text(size)),
            _ => Some(self.bytes(size)),
        }
    }
}

/// Of a dialect, and what such a header can be.
fn dialect_value(rng: &mut Rng) -> Option<Vec<u8>> {
    const VALUES: &[&[u8]] = &[
        b"0",
        b"3",
        b"7",
        b"-1",
        b"99999999999999999999",
        b"orders",
        b"",
        b"five hundred",
        b"\0\0\0\x05",
        b"\xff\xfe",
    ];
    (!rng.one_in(10)).then(|| rng.of(VALUES).to_vec())
}

/// Everything that producers can send and that is easy to lose. Two of three tell the partition that they are in, so that
/// a restore has to put them into the same again.
fn hostile(rng: &mut Rng, count: usize) -> Logs {
    let names: BTreeSet<Vec<u8>> = STRIPPED
        .iter()
        .flat_map(|(name, ..)| fixtures(name))
        .flat_map(|f| f.batch.get(0).headers.iter().map(|h| h.name.to_vec()).collect::<Vec<_>>())
        .collect();
    let names: Vec<_> = names.into_iter().collect();
    let mut logs: Logs = (0..PARTITIONS).map(|p| (p, RawBatch::new())).collect();
    for _ in 0..count {
        let partition = rng.below(PARTITIONS as usize) as i32;
        let mut headers: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
        for _ in 0..*rng.of(&[0, 0, 1, 2, 3, 5, 9]) {
            let header = match rng.below(12) {
                0 => (Vec::new(), rng.part()),
                1 => (b"\xff\xfe\0".to_vec(), rng.part()),
                2 => (rng.text(12), rng.part()),
                3 => (rng.bytes(5), rng.part()),
                4 if rng.one_in(100) => (rng.bytes(40_000), Some(Vec::new())),
                4 | 5 => (b"dup".to_vec(), rng.part()),
                6 => match headers.last() {
                    Some(last) => last.clone(),
                    None => (b"kept".to_vec(), None),
                },
                _ => (rng.of(&names).clone(), dialect_value(rng)),
            };
            headers.push(header);
        }
        headers.retain(|(name, _)| !name.starts_with(b"dlq-archiver-"));
        if !rng.one_in(3) {
            for (name, value) in [("topic", "orders".to_owned()), ("partition", partition.to_string())] {
                let at = rng.below(headers.len() + 1);
                headers.insert(at, (format!("__connect.errors.{name}").into_bytes(), Some(value.into_bytes())));
            }
        }
        let key = if rng.one_in(3) { Some(rng.of(&["a", "b", "schlüssel"]).as_bytes().to_vec()) } else { rng.part() };
        let value = rng.part();
        let batch = logs.get_mut(&partition).unwrap();
        batch.push(
            batch.len() as i64,
            // Not 0: librdkafka sends the time of sending instead.
            match rng.below(20) {
                0 => *rng.of(&[-1, 1, 253_402_300_799_999, 253_402_300_800_000, i64::MAX, -2, i64::MIN]),
                _ => 1_791_400_000_000 + rng.below(200_000_000) as i64,
            },
            TimestampType::CreateTime,
            -1,
            key.as_deref(),
            value.as_deref(),
            headers.iter().map(|(name, value)| Header { name, value: value.as_deref() }),
        );
    }
    logs
}

/// Fixtures in this order, over all partitions.
fn of_fixtures<'n>(names: impl Iterator<Item = &'n str>) -> Logs {
    let mut logs: Logs = (0..PARTITIONS).map(|p| (p, RawBatch::new())).collect();
    for (i, fixture) in names.flat_map(fixtures).enumerate() {
        let (batch, r) = (logs.get_mut(&(i as i32 % PARTITIONS)).unwrap(), fixture.batch.get(0));
        let offset = batch.len() as i64;
        batch.push(offset, r.timestamp_ms, TimestampType::CreateTime, -1, r.key, r.value, r.headers.iter());
    }
    logs
}

fn produce(connection: &Connection, topic: &str, logs: &Logs) {
    let producer = Producer::new(connection, None).unwrap();
    let mut sent = 0;
    for (partition, batch) in logs {
        for raw in batch.iter() {
            let (key, value, headers) = (raw.key, raw.value, raw.headers.iter());
            let (partition, timestamp_ms) = (Some(*partition), Some(raw.timestamp_ms));
            producer
                .send(NewRecord { topic, partition, key, value, headers, timestamp_ms, token: sent }, PATIENCE)
                .unwrap();
            sent += 1;
        }
    }
    producer.flush(PATIENCE).unwrap();
    let acks = producer.acks();
    assert_eq!(acks.len(), sent);
    assert!(acks.iter().all(|ack| ack.result.is_ok()), "{:?}", acks.iter().find(|ack| ack.result.is_err()));
}

/// What is to become of a record.
#[derive(Debug, PartialEq)]
enum Fate {
    /// In this partition, if it tells one that there is.
    Restored(Option<i32>, Facts),
    /// Key and value are not in it.
    NotCopied,
}

/// By the tables of the library.
fn fate(dialects: &Dialects, topic: &str, partition: i32, raw: &RawRecord<'_>) -> Fate {
    let decoded = dialects.decode(topic, partition, raw);
    let Some(made) = dialects.restorable(topic, raw) else { return Fate::NotCopied };
    if decoded.payload_state == PayloadState::NotCopied {
        return Fate::NotCopied;
    }
    let mut facts = facts(raw);
    let mut strips = made.strips.into_iter();
    facts.headers.retain(|_| !strips.next().unwrap());
    (facts.key, facts.value) = (made.key.map(|k| k.into_owned()), made.value.map(|v| v.into_owned()));
    let partition = restore_target(&decoded).and_then(|o| o.1).filter(|p| (0..PARTITIONS).contains(p));
    Fate::Restored(partition, facts)
}

/// Java's partitioner, and so librdkafka's `murmur2_random`.
fn partition_of(key: &[u8]) -> i32 {
    const M: u32 = 0x5bd1_e995;
    let mut h: u32 = 0x9747_b28c ^ key.len() as u32;
    let (words, rest) = key.as_chunks::<4>();
    for word in words {
        let k = u32::from_le_bytes(*word).wrapping_mul(M);
        h = h.wrapping_mul(M) ^ (k ^ (k >> 24)).wrapping_mul(M);
    }
    if !rest.is_empty() {
        h ^= rest.iter().rev().fold(0, |bytes, b| bytes << 8 | u32::from(*b));
        h = h.wrapping_mul(M);
    }
    h = (h ^ (h >> 13)).wrapping_mul(M);
    ((h ^ (h >> 15)) & 0x7fff_ffff) as i32 % PARTITIONS
}

struct World {
    brokers: String,
    connection: Connection,
    folder: tempfile::TempDir,
    /// What is in each dead-letter topic.
    sources: BTreeMap<String, Logs>,
    fates: BTreeMap<RecordId, Fate>,
}

impl World {
    fn run(&self, args: &[&str]) -> Run {
        let config = self.folder.path().join("dlq-archiver.toml");
        support::program()
            .args(args)
            .args(["--config", config.to_str().unwrap(), "--brokers", &self.brokers])
            .output()
            .unwrap()
            .into()
    }

    fn archive(&self, format: &[&str]) -> String {
        let url = format!("file://{}/{}", self.folder.path().display(), format.join(""));
        let mut args =
            vec!["archive", "--once", "--quiet", "--archive", &url, "--cut-records", "9000", "--max-pipelines", "3"];
        self.sources.keys().for_each(|topic| args.extend(["--topic", topic]));
        self.run(&[&args[..], format].concat()).ok();
        url
    }

    /// Restores all to a new topic, and compares.
    async fn comes_back(&self, url: &str, delivery: &str) {
        let to = fresh("round-trip-restored");
        live::topic(&self.connection, &to, PARTITIONS).await;
        let args =
            ["restore", "--archive", url, "--all", "--yes", "--include-restored", "--to", &to, "--batch", "2000"];
        let began = Instant::now();
        let done = self.run(&[&args[..], &["--delivery", delivery, "-o", "json"]].concat()).json_of_failed();
        let took = began.elapsed();
        assert_eq!(done["delivery"], delivery);
        let folder = Path::new(url.strip_prefix("file://").unwrap());
        self.skipped(folder, &done);

        let restored = live::read(&self.connection, &to);
        let at: BTreeMap<(i32, i64), RawRecord<'_>> =
            restored.iter().flat_map(|(p, batch)| batch.iter().map(|r| ((*p, r.offset), r))).collect();
        let mut went: BTreeMap<RecordId, (i32, i64)> = BTreeMap::new();
        for row in live::lists(&folder.join("restores").join(done["restore_id"].as_str().unwrap())) {
            let twice = went.insert(row.id.clone(), (row.target_partition, row.target_offset));
            assert!(twice.is_none() && row.target_topic == to, "{row:?}");
        }
        let places: BTreeSet<_> = went.values().copied().collect();
        assert!(places.iter().eq(at.keys()), "{delivery}: the lists have each record of the target once");
        let mut last: BTreeMap<(&str, i32, i32), i64> = BTreeMap::new();
        let mut wanted = 0;
        for (id, fate) in &self.fates {
            let Fate::Restored(partition, want) = fate else { continue };
            wanted += 1;
            let place = went.get(id).unwrap_or_else(|| panic!("{id} is not restored"));
            let mut is = facts(&at[place]);
            is.headers.retain(|(name, _)| !is_added(name));
            assert!(is == *want, "{delivery}: {id}\nrestored {is:?}\nexpected {want:?}");
            let by_key = want.key.as_deref().map(partition_of);
            assert!(
                partition.or(by_key).is_none_or(|p| p == place.0),
                "{id} is in partition {}: {partition:?}, {by_key:?}",
                place.0
            );
            // Ids of a partition come in the order of offsets.
            let before = last.insert((&id.topic, id.partition, place.0), place.1);
            assert!(before.is_none_or(|before| before < place.1), "{id} is before its elder");
        }
        assert_eq!((wanted, at.len()), (went.len(), went.len()), "nothing else came");
        println!("{delivery} of {}: {wanted} records in {took:.1?}, the same", folder.file_name().unwrap().display());
    }

    /// What is told as skipped is what has no key and value, and nothing else.
    fn skipped(&self, folder: &Path, done: &serde_json::Value) {
        let mut told = BTreeSet::new();
        for list in done["skipped_lists"].as_array().unwrap() {
            for line in std::fs::read_to_string(folder.join(list["key"].as_str().unwrap())).unwrap().lines() {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                assert_eq!(line["reason"], "not_copied", "{line}");
                told.insert(RecordId::parse(line["record_id"].as_str().unwrap()).unwrap());
            }
        }
        let want: BTreeSet<_> =
            self.fates.iter().filter(|(_, f)| **f == Fate::NotCopied).map(|(id, _)| id.clone()).collect();
        assert!(told == want, "{:?}", told.symmetric_difference(&want).take(10).collect::<Vec<_>>());
        assert_eq!(done["skipped_by_reason"]["not_copied"], want.len(), "{done}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_back_is_what_went_in() {
    let Some(brokers) = live::brokers() else { return };
    let of = |name: &str| std::env::var(name).ok().and_then(|v| v.parse().ok());
    let seed = of("ROUND_TRIP_SEED").unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64);
    println!("ROUND_TRIP_SEED={seed}");
    let connection = Connection::new(&brokers);
    let name = |name: &str| fresh(&format!("round-trip-{name}-dlq"));
    let plain = STRIPPED.iter().map(|f| f.0).filter(|name| !["uber", "lambda"].contains(name));
    let (uber, lambda) = (name("uber"), name("lambda"));
    let sources = BTreeMap::from([
        (name("hostile"), hostile(&mut Rng(seed), of("ROUND_TRIP_RECORDS").unwrap_or(100_000) as usize)),
        (name("fixtures"), of_fixtures(plain)),
        (uber.clone(), of_fixtures(["uber"].into_iter())),
        (lambda.clone(), of_fixtures(["lambda"].into_iter())),
    ]);
    let began = Instant::now();
    let mut bytes = 0;
    for (topic, logs) in &sources {
        live::topic(&connection, topic, PARTITIONS).await;
        produce(&connection, topic, logs);
        // The reader is the program's own, so what it reads is compared with what was made.
        let read = live::read(&connection, topic);
        for (partition, batch) in logs {
            assert_eq!(read[partition].len(), batch.len());
            for (is, was) in read[partition].iter().zip(batch.iter()) {
                assert!(
                    is.offset == was.offset && facts(&is) == facts(&was),
                    "{topic}/{partition}: {is:?}, produced {was:?}"
                );
            }
            bytes += batch.payload_len();
        }
    }
    println!("{} MB produced and read in {:.1?}", bytes / 1_000_000, began.elapsed());

    let folder = tempfile::tempdir().unwrap();
    let opted = [(&uber, "uber"), (&lambda, "lambda")];
    let mut config = String::new();
    opted
        .iter()
        .for_each(|(topic, dialect)| write!(config, "[topics.\"{topic}\"]\ndialects = [\"{dialect}\"]\n").unwrap());
    std::fs::write(folder.path().join("dlq-archiver.toml"), config).unwrap();
    let asks = |(topic, dialect): (&String, &str)| TopicSettings {
        dialects: vec![dialect.to_owned()],
        ..TopicSettings::of(TopicMatch::parse(topic).unwrap())
    };
    let dialects = Dialects::builtin().with_topics(&opted.map(asks)).unwrap();
    let mut fates = BTreeMap::new();
    for (topic, logs) in &sources {
        for (partition, batch) in logs {
            for raw in batch.iter() {
                let id = RecordId { topic: topic.clone(), generation: 1, partition: *partition, offset: raw.offset };
                fates.insert(id, fate(&dialects, topic, *partition, &raw));
            }
        }
    }
    let world = World { brokers, connection, folder, sources, fates };
    for format in [&["--format", "parquet"][..], &["--format", "jsonl"]] {
        let began = Instant::now();
        let url = world.archive(format);
        println!("archived with {} in {:.1?}", format.join(" "), began.elapsed());
        for delivery in ["transactional", "plain"] {
            world.comes_back(&url, delivery).await;
        }
    }
}

/// Of each fixture, which headers a restore leaves out: those that begin so; and the records, by number, that keep all
/// of theirs, as they have not enough of the dialect.
const STRIPPED: &[(&str, &[&str], &[usize])] = &[
    ("vast", &["ce_knativeerrorcode", "ce_knativeerrordata", "ce_knativeerrordest"], &[]),
    ("connect", &["__connect.errors."], &[]),
    ("connect-no-context", &[], &[]),
    ("connect-stages", &["__connect.errors."], &[]),
    ("share-group-copied", &["__dlq.errors."], &[]),
    ("share-group-headers-only", &["__dlq.errors."], &[]),
    ("streams", &["__streams.errors."], &[]),
    ("streams-keys", &["__streams.errors."], &[]),
    ("neo4j", &["__streams.errors."], &[]),
    ("chain", &["__connect.errors.", "__dlq.errors.", "kafka_dlt-"], &[]),
    ("spring-dlt", &["kafka_dlt-", "kafka_deliveryAttempt"], &[]),
    (
        "spring-retry-topics",
        &["kafka_dlt-", "kafka_exception-", "kafka_original-", "retry_topic-", "kafka_deliveryAttempt"],
        &[],
    ),
    ("spring-key", &["kafka_dlt-", "kafka_deliveryAttempt"], &[0]),
    ("spring-cloud-stream", &["x-original-", "x-exception-"], &[]),
    ("smallrye", &["dead-letter-", "deserialization-failure-", "delayed-retry-"], &[]),
    ("smallrye-captured", &["dead-letter-", "deserialization-failure-", "delayed-retry-"], &[]),
    ("watermill", &["reason_poisoned", "topic_poisoned", "handler_poisoned", "subscriber_poisoned"], &[]),
    ("watermill-captured", &["reason_poisoned", "topic_poisoned", "handler_poisoned", "subscriber_poisoned"], &[]),
    ("karafka", &["source_"], &[]),
    ("karafka-original", &["original_"], &[1]),
    ("micronaut", &["micronaut-kafka-"], &[]),
    ("helidon", &["dlq-error", "dlq-orig-", "helidon_messaging_dead_letter_"], &[]),
    ("wolverine", &["exception-", "failed-at", "original-"], &[2]),
    ("dapr", &["__key", "__topic", "__partition", "__offset", "__timestamp"], &[1]),
    ("uber", &[], &[]),
    ("lambda", &[], &[]),
];

/// The golden files' words on what a restore leaves, sends in the dead letter's place, and cannot send: against the list
/// above, and against the library.
#[test]
fn what_is_stripped_of_each_fixture_is_what_the_golden_files_say() {
    let listed: BTreeSet<String> = STRIPPED.iter().map(|f| f.0.to_owned()).collect();
    let files = std::fs::read_dir(common::folder().join("fixtures")).unwrap();
    let there = files.map(|f| f.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned());
    assert_eq!(there.collect::<BTreeSet<_>>(), listed);
    let asks = |topic: &str, dialect: &str| TopicSettings {
        dialects: vec![dialect.to_owned()],
        ..TopicSettings::of(TopicMatch::parse(topic).unwrap())
    };
    let dialects =
        Dialects::builtin().with_topics(&[asks("trips-dlq", "uber"), asks("failed-records", "lambda")]).unwrap();
    for (name, stripped, untouched) in STRIPPED {
        let text = std::fs::read_to_string(common::folder().join(format!("{name}.expected.toml"))).unwrap();
        let golden: toml::Table = toml::from_str(&text).unwrap();
        let (common, records) = (golden["common"].as_table().unwrap(), golden["record"].as_array().unwrap());
        for (i, (fixture, record)) in fixtures(name).iter().zip(records).enumerate() {
            let raw = fixture.batch.get(0);
            let nulls = record.get("null").and_then(|n| n.as_array()).into_iter().flatten();
            let is_null = |column: &str| nulls.clone().any(|n| n.as_str() == Some(column));
            let says = |column: &str| record.get(column).or(common.get(column)).filter(|_| !is_null(column));
            let kept = |h: &Header<'_>| {
                untouched.contains(&i) || !stripped.iter().any(|begin| h.name.starts_with(begin.as_bytes()))
            };
            let mut want = facts(&raw);
            want.headers =
                raw.headers.iter().filter(kept).map(|h| (h.name.to_vec(), h.value.map(<[u8]>::to_vec))).collect();
            let names: Vec<_> = want.headers.iter().map(|(name, _)| std::str::from_utf8(name).unwrap()).collect();
            let golden: Vec<_> =
                says("headers").unwrap().as_array().unwrap().iter().map(|n| n.as_str().unwrap()).collect();
            assert_eq!(names, golden, "{name}: record {i}");
            let text = |column: &str| says(column).map(|text| text.as_str().unwrap().as_bytes().to_vec());
            want.key = if says("restore_key_null").is_some() { None } else { text("restore_key").or(want.key) };
            want.value = text("restore_value").or(want.value);
            let held =
                says("restore_payload").is_none() && says("payload_state").unwrap().as_str() != Some("not_copied");
            match fate(&dialects, &fixture.topic, fixture.partition, &raw) {
                Fate::Restored(_, is) => assert!(held && is == want, "{name}: record {i}: {is:?}, expected {want:?}"),
                Fate::NotCopied => assert!(!held, "{name}: record {i}"),
            }
        }
    }
}
