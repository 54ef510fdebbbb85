//! `status` against brokers: before, during and after a loss, an open transaction, topics that were never archived, were
//! deleted or made anew; on the embedded broker, with brokers and stores that do not answer, and how much it asks for.
//!
//! Runs on a real Kafka where `DLQ_ARCHIVER_BROKERS` names one, else on the embedded broker alone.

mod support;

use async_trait::async_trait;
use bytes::Bytes;
use dlq_archiver::archive::cluster::Kafka;
use dlq_archiver::archive::ledger;
use dlq_archiver::error::Result;
use dlq_archiver::format::Format;
use dlq_archiver::kafka::{Admin, Connection, MockBroker, NewRecord, Producer};
use dlq_archiver::record::TopicPartition;
use dlq_archiver::status::facts::Conditional;
use dlq_archiver::status::{Options, Watcher};
use dlq_archiver::store::{Created, Head, Listing, MemoryStore, ObjectMeta, Store};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use support::{Run, TestArchive, run};

fn now_ms() -> i64 {
    chrono::Utc::now().timestamp_millis()
}

fn produce(connection: &Connection, tp: &TopicPartition, count: usize, timestamp_ms: i64) {
    let producer = Producer::new(connection, None).unwrap();
    send(&producer, tp, count, timestamp_ms);
}

fn send(producer: &Producer, tp: &TopicPartition, count: usize, timestamp_ms: i64) {
    for token in 0..count {
        let (topic, partition, timestamp_ms) = (tp.topic.as_str(), Some(tp.partition), Some(timestamp_ms));
        let (value, headers) = (Some(&b"0123456789"[..]), std::iter::empty());
        let record = NewRecord { topic, partition, key: None, value, headers, timestamp_ms, token };
        producer.send(record, Duration::from_secs(10)).unwrap();
    }
    producer.flush(Duration::from_secs(30)).unwrap();
    assert!(producer.acks().iter().all(|ack| ack.result.is_ok()));
}

/// An archive in a folder, and brokers.
struct Rig {
    folder: tempfile::TempDir,
    connection: Connection,
}

impl Rig {
    fn new(connection: Connection) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), connection }
    }

    /// With a real Kafka; `None`, with a notice, where there is none and none is required.
    fn kafka() -> Option<Self> {
        let brokers = std::env::var("DLQ_ARCHIVER_BROKERS").ok();
        if brokers.is_none() {
            assert!(std::env::var_os("DLQ_ARCHIVER_REQUIRE_SERVICES").is_none(), "DLQ_ARCHIVER_BROKERS is not set");
            eprintln!("skipped: run make up, and source localstack/.run/env");
        }
        brokers.map(|b| Self::new(Connection::new(&b)))
    }

    async fn topic(&self, name: &str, config: &[(&str, &str)]) -> TopicPartition {
        let name = format!("{name}-{}-dlq", uuid::Uuid::new_v4().simple());
        Admin::create_topic(&self.connection, &name, 1, config).await.unwrap();
        TopicPartition::new(name, 0)
    }

    fn run(&self, args: &[&str]) -> Run {
        let url = format!("file://{}/archive", self.folder.path().display());
        let mut all = vec![args[0], "--archive", &url, "--brokers", self.connection.brokers()];
        all.extend_from_slice(&args[1..]);
        run(&all)
    }

    fn archive(&self, tp: &TopicPartition) -> Run {
        self.run(&["archive", "--once", "--topic", &tp.topic])
    }

    /// The table's exit code and lines.
    fn table(&self, args: &[&str]) -> (i32, String) {
        let done = self.run(&[&["status"], args].concat());
        assert_eq!(done.err, "", "{done:?}");
        (done.code, done.out)
    }

    fn json(&self, args: &[&str]) -> Value {
        let done = self.run(&[&["status", "-o", "json"], args].concat());
        let document: Value = serde_json::from_str(&done.out).unwrap_or_else(|e| panic!("{e}: {done:?}"));
        assert_eq!(document["exit_code"], done.code, "{done:?}");
        document
    }

    fn nagios(&self, args: &[&str]) -> (i32, String) {
        let done = self.run(&[&["status", "--nagios"], args].concat());
        assert_eq!((done.out.lines().count(), done.err.as_str()), (1, ""), "{done:?}");
        (done.code, done.out)
    }
}

fn names(reasons: &Value) -> Vec<&str> {
    reasons.as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_seen_while_it_happens_and_after_it() {
    let Some(rig) = Rig::kafka() else { return };
    let tp = rig.topic("loss", &[("retention.ms", "36000000")]).await;
    produce(&rig.connection, &tp, 10, now_ms());
    assert_eq!(rig.archive(&tp).code, 0);
    let (code, before) = rig.table(&[]);
    eprintln!("{before}");
    assert!(code == 0 && before.starts_with("ok: 1 topic, 1 partition: all of it is archived\n"), "{before}");
    let (code, line) = rig.nagios(&[]);
    assert!(code == 0 && line.starts_with("DLQ OK - 1 topic"), "{line}");
    assert!(line.contains(" | waiting=0;;;0 waiting_bytes=0B;;;0 hidden=0;;;0 gone=0;;0;0 lost=0;"), "{line}");

    // Records wait, the oldest for 6 of 10 hours, then for 9.
    produce(&rig.connection, &tp, 10, now_ms() - 6 * 3_600_000);
    let document = rig.json(&[]);
    let topic = &document["topics"][0];
    assert_eq!((&document["state"], &topic["waiting_offsets"]), (&Value::from("warning"), &Value::from(10)));
    assert_eq!((&topic["waiting_bytes"], &topic["deleted_by"]), (&Value::from(100), &Value::from("retention.ms")));
    assert_eq!((&topic["retention_ms"], &topic["retention_source"]), (&36_000_000.into(), &"brokers".into()));
    let left = topic["left"].as_f64().unwrap();
    assert!((0.39..0.4).contains(&left), "{left}");
    assert_eq!(document["conditional_create"], true);
    let (code, line) = rig.nagios(&[]);
    assert!(code == 1 && line.starts_with("DLQ WARNING - ") && line.contains(" left=40.0%;50:;20: "), "{line}");
    assert_eq!(rig.nagios(&["--critical", "5h", "--warning", "9h"]).0, 2);
    let (_, waiting) = rig.table(&[]);
    eprintln!("{waiting}");

    // Some of them go.
    Admin::delete_records(&rig.connection, &tp, 15).await.unwrap();
    let (code, during) = rig.table(&[]);
    eprintln!("{during}");
    assert_eq!(code, 3, "{during}");
    assert!(
        during.starts_with("CRITICAL: ") && during.contains("5 offsets (10..15) are lost: retention deleted them"),
        "{during}"
    );
    let document = rig.json(&[]);
    assert_eq!(
        (&document["partitions"][0]["gone_offsets"], &document["partitions"][0]["lost"]),
        (&5.into(), &0.into())
    );
    assert_eq!(rig.nagios(&[]).0, 2);

    assert_eq!(rig.archive(&tp).code, 3);
    let (code, after) = rig.table(&[]);
    eprintln!("{after}");
    assert!(code == 3 && after.contains("CRITICAL: records lost") && after.contains("5 new"), "{after}");
    let document = rig.json(&[]);
    let partition = &document["partitions"][0];
    assert_eq!((&partition["gone_offsets"], &partition["lost"]), (&0.into(), &5.into()));
    assert_eq!((&partition["lost_recently"], &partition["archived_to"]), (&5.into(), &20.into()));
    assert_eq!(names(&partition["reasons"]), ["lost"]);
    // It is told for ever, and critical for a while.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let (code, old) = rig.table(&["--lost-within", "1s", "--partitions"]);
    eprintln!("{old}");
    assert!(code == 0 && old.starts_with("ok: "), "{old}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_is_not_a_lag_of_0() {
    let Some(rig) = Rig::kafka() else { return };
    let tp = rig.topic("open", &[]).await;
    produce(&rig.connection, &tp, 10, now_ms());
    assert_eq!(rig.archive(&tp).code, 0);
    let connection = rig.connection.clone();
    let open = tp.clone();
    let producer = tokio::task::spawn_blocking(move || {
        let producer = Producer::new(&connection, Some(&open.topic)).unwrap();
        producer.init_transactions(Duration::from_secs(30)).unwrap();
        producer.begin_transaction().unwrap();
        send(&producer, &open, 3, now_ms() - 20 * 60_000);
        producer
    });
    let producer = producer.await.unwrap();
    // The archive sees nothing to do.
    assert_eq!(rig.archive(&tp).code, 0);
    let document = rig.json(&[]);
    let partition = &document["partitions"][0];
    eprintln!("{}", rig.table(&[]).1);
    assert_eq!((&partition["hidden_offsets"], &partition["waiting_offsets"]), (&3.into(), &3.into()));
    assert_eq!((&partition["last_stable_offset"], &partition["log_end"]), (&10.into(), &13.into()));
    assert_eq!((names(&partition["reasons"]), &document["state"]), (vec!["open_transaction"], &"warning".into()));
    assert!(document["advice"].to_string().contains("kafka-transactions.sh find-hanging"), "{document}");
    tokio::task::spawn_blocking(move || producer.abort_transaction(Duration::from_secs(30)).unwrap()).await.unwrap();
    // What is left is aborted records and a marker.
    assert_eq!(rig.archive(&tp).code, 0);
    let document = rig.json(&[]);
    assert_eq!((&document["state"], &document["topics"][0]["hidden_offsets"]), (&"ok".into(), &0.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_that_were_never_archived_are_deleted_or_made_anew() {
    let Some(rig) = Rig::kafka() else { return };
    let (kept, never) =
        (rig.topic("kept", &[]).await, rig.topic("never", &[("cleanup.policy", "compact,delete")]).await);
    produce(&rig.connection, &kept, 10, now_ms());
    assert_eq!(rig.archive(&kept).code, 0);
    // By default those of the ledger.
    let document = rig.json(&[]);
    assert_eq!((document["topics"].as_array().unwrap().len(), &document["state"]), (1, &"ok".into()));
    let both = format!("^({}|{})$", kept.topic, never.topic);
    assert_eq!(rig.json(&["--topic", &both])["state"], "ok");
    let producer = Producer::new(&rig.connection, None).unwrap();
    let (topic, value, headers) = (never.topic.as_str(), Some(&b"x"[..]), std::iter::empty());
    let record = NewRecord { topic, partition: Some(0), key: Some(b"k"), value, headers, timestamp_ms: None, token: 0 };
    producer.send(record, Duration::from_secs(10)).unwrap();
    producer.flush(Duration::from_secs(30)).unwrap();
    let document = rig.json(&["--topic", &both]);
    let [first, second] = &document["topics"].as_array().unwrap()[..] else { panic!("{document}") };
    assert_eq!((names(&first["reasons"]), names(&second["reasons"])), (vec![], vec!["never_archived"]));
    let advice: Vec<_> = document["advice"].as_array().unwrap().iter().map(|a| a["name"].as_str().unwrap()).collect();
    assert_eq!(advice, ["no_headers", "archive_it", "compacted", "no_headers"]);

    let mistyped = rig.run(&["status", "--topic", "no-such-dlq"]);
    assert!(mistyped.fails(2).contains("is neither in the archive nor on the brokers"), "{mistyped:?}");

    Admin::delete_topic(&rig.connection, &kept.topic).await.unwrap();
    let gone = || async {
        for _ in 0..100 {
            let document = rig.json(&[]);
            if document["topics"][0]["reasons"].to_string().contains("not_in_kafka") {
                return document;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the topic is still there");
    };
    let document = gone().await;
    assert_eq!((&document["state"], &document["exit_code"]), (&"ok".into(), &0.into()));
    Admin::create_topic(&rig.connection, &kept.topic, 1, &[]).await.unwrap();
    produce(&rig.connection, &kept, 20, now_ms());
    let document = rig.json(&[]);
    eprintln!("{}", rig.table(&[]).1);
    assert_eq!((names(&document["topics"][0]["reasons"]), &document["exit_code"]), (vec!["made_anew"], &1.into()));
    assert!(document["advice"].to_string().contains("--new-generation"), "{document}");
    assert_eq!(rig.run(&["archive", "--once", "--topic", &kept.topic, "--new-generation"]).code, 0);
    let document = rig.json(&[]);
    assert_eq!((&document["state"], &document["partitions"][0]["generation"]), (&"ok".into(), &2.into()));
}

/// DescribeConfigs gets no answer there: it must not cost the others theirs.
#[test]
fn brokers_that_do_not_tell_retention_are_done_without() {
    let broker = MockBroker::start().unwrap();
    broker.create_topic("mock-dlq", 3).unwrap();
    let rig = Rig::new(Connection::new(&broker.brokers()));
    let tp = TopicPartition::new("mock-dlq", 0);
    produce(&rig.connection, &tp, 10, now_ms());
    assert_eq!(rig.archive(&tp).code, 0);
    produce(&rig.connection, &tp, 10, now_ms() - 24 * 3_600_000);
    let began = Instant::now();
    let document = rig.json(&["--retention", "7d"]);
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    let topic = &document["topics"][0];
    assert_eq!((&document["state"], &topic["waiting_offsets"]), (&"ok".into(), &10.into()));
    assert_eq!((&topic["retention_source"], &topic["partitions"]), (&"given".into(), &3.into()));
    assert!((0.85..0.86).contains(&topic["left"].as_f64().unwrap()), "{document}");
    assert_eq!(rig.nagios(&["--retention", "25h"]).0, 2);
    let (code, line) = rig.nagios(&["--timeout", "4s"]);
    assert!(code == 3 && line.contains("do not tell how long it keeps records"), "{line}");
    let (_, jsonl) = rig.table(&["--retention", "7d", "-o", "jsonl"]);
    let kinds: Vec<String> = (jsonl.lines())
        .map(|l| serde_json::from_str::<Value>(l).unwrap().as_object().unwrap().keys().next().unwrap().clone())
        .collect();
    assert_eq!(kinds, ["topic", "partition", "partition", "partition", "advice", "status"]);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_and_stores_that_do_not_answer_are_unknown_in_time() {
    let archive = TestArchive::of_fixtures(Format::Parquet).await;
    // Takes connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let limit = ["--timeout", "1500ms", "--brokers", &address];
    for store in [archive.url().to_owned(), "s3://dlq/none".into()] {
        let endpoint = format!("http://{address}");
        let args = [&["status", "--nagios", "--archive", &store, "--endpoint-url", &endpoint], &limit[..]].concat();
        let began = Instant::now();
        let done: Run = support::program()
            .args(args)
            .envs([("AWS_ACCESS_KEY_ID", "k"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_REGION", "us-east-1")])
            .output()
            .unwrap()
            .into();
        assert!(done.code == 3 && done.out.starts_with("DLQ UNKNOWN - "), "{done:?}");
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}: {done:?}", began.elapsed());
    }
    // What is not known is no figure. The table has what the ledger says.
    let line = archive.run(&[&["status", "--nagios"], &limit[..]].concat()).out;
    assert!(line.contains(" | waiting=U;;;0 waiting_bytes=U;;;0 hidden=U;;;0 gone=U;;0;0 lost=0;;;0 "), "{line}");
    let done = archive.run(&[&["status"], &limit[..]].concat());
    eprintln!("{}", done.out);
    assert!(done.code == 1 && done.out.starts_with("unknown: ") && done.out.contains("default-dlt"), "{done:?}");
    let wrong = archive.run(&["status", "--nagios"]);
    assert!(wrong.code == 3 && wrong.out.starts_with("DLQ UNKNOWN - no brokers"), "{wrong:?}");
    assert_eq!(archive.run(&["status", "--nagios", "--no-such-flag"]).code, 3);
    let swapped = archive.run(&[&["status", "--warning", "0.1"], &limit[..]].concat());
    assert!(swapped.fails(2).contains("--critical is above --warning"), "{swapped:?}");
}

#[test]
fn a_watch_ends_with_the_last_state() {
    let broker = MockBroker::start().unwrap();
    broker.create_topic("watch-dlq", 1).unwrap();
    let rig = Rig::new(Connection::new(&broker.brokers()));
    let tp = TopicPartition::new("watch-dlq", 0);
    produce(&rig.connection, &tp, 10, now_ms());
    assert_eq!(rig.archive(&tp).code, 0);
    let url = format!("file://{}/archive", rig.folder.path().display());
    let args = ["status", "--archive", &url, "--brokers", rig.connection.brokers(), "--watch", "1", "--timeout", "6s"];
    let mut child = support::program().args(args).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    // A line with the time, then the table, each time anew.
    for _ in 0..2 {
        let drawn: Vec<String> = lines.by_ref().take(3).collect();
        assert!(drawn[0].ends_with("Z  dlq-archiver status") && drawn[1].starts_with("ok: "), "{drawn:?}");
        assert!(lines.find(|line| line.starts_with("archive: ") || line.starts_with("watch-dlq: ")).is_some());
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(lines.all(|line| !line.contains('\u{1b}')));
}

/// Counts what is asked for.
#[derive(Debug)]
struct Counting {
    inner: MemoryStore,
    requests: AtomicUsize,
    writes: AtomicUsize,
    keeps: bool,
}

#[async_trait]
impl Store for Counting {
    fn url(&self) -> &str {
        self.inner.url()
    }
    fn check_key(&self, key: &str) -> Result<()> {
        self.inner.check_key(key)
    }
    fn set_plain(&self, _: bool) -> Option<Duration> {
        Some(Duration::ZERO)
    }
    async fn create(&self, key: &str, body: Bytes, meta: &ObjectMeta) -> Result<Created> {
        self.requests.fetch_add(1, Relaxed);
        self.writes.fetch_add(1, Relaxed);
        let created = self.inner.create(key, body, meta).await?;
        Ok(if self.keeps { created } else { Created::New })
    }
    async fn get(&self, key: &str) -> Result<Option<Bytes>> {
        self.requests.fetch_add(1, Relaxed);
        self.inner.get(key).await
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        self.inner.get_range(key, range).await
    }
    async fn head(&self, key: &str) -> Result<Option<Head>> {
        self.requests.fetch_add(1, Relaxed);
        self.inner.head(key).await
    }
    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: Option<usize>) -> Result<Listing> {
        self.requests.fetch_add(1, Relaxed);
        self.inner.list(prefix, start_after, limit).await
    }
    async fn list_folders(&self, prefix: &str) -> Result<Vec<String>> {
        self.requests.fetch_add(1, Relaxed);
        self.inner.list_folders(prefix).await
    }
}

/// An archive of one topic with so many partitions, of so many cuts each; looked at twice, and what each look asked.
async fn looked(partitions: i32, cuts: i64, probe: bool, keeps: bool) -> (Conditional, [usize; 2], usize) {
    let inner = MemoryStore::new();
    // Of no cluster: the embedded broker has an id of its own.
    let (id, now) = ("4c2f27f0-0000-4000-8000-000000000001", "2026-11-01T00:00:00.000000Z");
    ledger::open_archive(&inner, "parquet", None, id, now).await.unwrap();
    let mut archive = TestArchive::on(Arc::new(inner.clone()), Format::Parquet).await;
    for partition in 0..partitions {
        for cut in 0..cuts {
            archive.cut("many-dlq", partition, cut * 10, cut * 10 + 10, support::batch(&[]), Vec::new()).await;
        }
    }
    let zero = AtomicUsize::default;
    let store = Arc::new(Counting { inner, requests: zero(), writes: zero(), keeps });
    let broker = MockBroker::start().unwrap();
    let kafka = Arc::new(Kafka::new(Connection::new(&broker.brokers())).unwrap());
    let timeout = Duration::from_secs(10);
    let options = Options { topics: Vec::new(), retention: None, topics_settings: Vec::new(), timeout, probe };
    let watcher = Watcher::new(options, store.clone(), kafka).unwrap();
    let facts = watcher.look().await;
    let first = store.requests.swap(0, Relaxed);
    let facts = facts.unwrap();
    assert_eq!(facts.partitions.len(), partitions as usize);
    let again = watcher.look().await.unwrap();
    assert_eq!(again.partitions.iter().map(|p| p.ledgers.clone()).collect::<Vec<_>>(), {
        facts.partitions.iter().map(|p| p.ledgers.clone()).collect::<Vec<_>>()
    });
    assert!(facts.partitions.iter().all(|p| p.ledgers[0].cuts.len() as i64 == cuts));
    (facts.conditional, [first, store.requests.load(Relaxed)], store.writes.load(Relaxed))
}

#[tokio::test(flavor = "multi_thread")]
async fn few_requests_are_made_and_only_what_is_new_is_read_again() {
    let (conditional, requests, writes) = looked(50, 4, false, true).await;
    assert_eq!((conditional, writes), (Conditional::NotAsked, 0));
    // archive.json, and two listings of folders; for each partition the later generation, genesis, two listings, cuts.
    assert_eq!(requests, [3 + 50 * (4 + 4), 3 + 50 * (4 + 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn whether_the_store_keeps_the_condition_is_found_out_once() {
    assert_eq!(looked(1, 1, true, true).await, (Conditional::Kept, [3 + 5 + 2, 3 + 5], 1));
    assert_eq!(looked(1, 1, true, false).await, (Conditional::NotKept, [3 + 5 + 2, 3 + 5], 1));
}
