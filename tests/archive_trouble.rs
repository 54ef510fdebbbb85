//! `archive` when something fails in the middle: a bug in a task, a store that hangs, brokers that go silent, a topic
//! that goes, retention that moves, a ledger that was lost.
//!
//! Each trouble is made at an exact point, by a store that calls back before it does what it is asked. Runs on the
//! embedded broker, and on a real Kafka too if `DLQ_ARCHIVER_BROKERS` names one.

use async_trait::async_trait;
use bytes::Bytes;
use dlq_archiver::archive::{self, Counters, From, Options, Outcome, StoreUse};
use dlq_archiver::catalog::{Catalog, Reading};
use dlq_archiver::cut::{CutPolicy, Tables};
use dlq_archiver::error::{Error, Kind, Result};
use dlq_archiver::filter::{Filter, FilterDoc};
use dlq_archiver::format::Format;
use dlq_archiver::kafka::{Admin, Connection, MockBroker, NewRecord, Producer, TopicId};
use dlq_archiver::ledger::{GapKind, Genesis, Intent, Manifest};
use dlq_archiver::record::{Header, TopicPartition};
use dlq_archiver::routing::{Condition, Rule};
use dlq_archiver::stage::{self, Stage};
use dlq_archiver::store::{Created, Head, Listing, MemoryStore, ObjectMeta, Store};
use dlq_archiver::topics::{TopicMatch, TopicSettings};
use dlq_archiver::verify;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Called with what is asked for and the key; what it returns is the answer if it is an error.
type Hook = Box<dyn Fn(&str, &str) -> BoxFuture<'static, Result<()>> + Send + Sync>;

struct Hooked {
    inner: Arc<dyn Store>,
    hook: Hook,
}

impl std::fmt::Debug for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl Store for Hooked {
    fn url(&self) -> &str {
        self.inner.url()
    }
    fn check_key(&self, key: &str) -> Result<()> {
        self.inner.check_key(key)
    }
    async fn create(&self, key: &str, body: Bytes, meta: &ObjectMeta) -> Result<Created> {
        (self.hook)("create", key).await?;
        let created = self.inner.create(key, body, meta).await?;
        (self.hook)("created", key).await?;
        Ok(created)
    }
    async fn get(&self, key: &str) -> Result<Option<Bytes>> {
        self.inner.get(key).await
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        self.inner.get_range(key, range).await
    }
    async fn head(&self, key: &str) -> Result<Option<Head>> {
        (self.hook)("head", key).await?;
        self.inner.head(key).await
    }
    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: Option<usize>) -> Result<Listing> {
        (self.hook)("list", prefix).await?;
        self.inner.list(prefix, start_after, limit).await
    }
    async fn list_folders(&self, prefix: &str) -> Result<Vec<String>> {
        self.inner.list_folders(prefix).await
    }
}

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

fn hooked(
    inner: &Arc<dyn Store>,
    hook: impl Fn(&str, &str) -> BoxFuture<'static, Result<()>> + Send + Sync + 'static,
) -> Arc<dyn Store> {
    Arc::new(Hooked { inner: inner.clone(), hook: Box::new(hook) })
}

fn once(topic: &str) -> Options {
    Options {
        new_generation: false,
        topics: vec![topic.to_owned()],
        once: true,
        group: None,
        from: From::Earliest,
        format: Format::Parquet,
        policy: CutPolicy::default(),
        retention: None,
        safety: 0.5,
        files_per_day: None,
        topics_settings: Vec::new(),
        memory: 64 << 20,
        cut_min_age: Duration::from_secs(5),
        store_use: StoreUse::default(),
        start_timeout: Duration::from_secs(30),
        wait: Duration::from_secs(30),
        committed: None,
    }
}

/// Runs `archive`, which has to end by itself.
async fn run(options: Options, store: &Arc<dyn Store>, connection: &Connection) -> Result<Outcome> {
    run_with(options, store, connection, Tables::builtin()).await
}

async fn run_with(
    options: Options,
    store: &Arc<dyn Store>,
    connection: &Connection,
    tables: Tables,
) -> Result<Outcome> {
    let (_stage, stage) = stage::channel();
    let counters = Arc::new(Counters::default());
    let run = archive::run(options, store.clone(), connection.clone(), tables, counters, stage);
    tokio::time::timeout(Duration::from_secs(120), run).await.expect("it waits for ever")
}

fn produce(connection: &Connection, tp: &TopicPartition, count: usize, size: usize) {
    let producer = Producer::new(connection, None).unwrap();
    let value = vec![b'x'; size];
    for token in 0..count {
        let (topic, partition, value) = (tp.topic.as_str(), Some(tp.partition), Some(&value[..]));
        let headers = std::iter::empty();
        let record = NewRecord { topic, partition, key: None, value, headers, timestamp_ms: None, token };
        producer.send(record, Duration::from_secs(10)).unwrap();
    }
    producer.flush(Duration::from_secs(30)).unwrap();
    assert!(producer.acks().iter().all(|ack| ack.result.is_ok()));
}

/// A broker with `count` records in each of so many partitions.
fn broker(topic: &str, partitions: i32, count: usize) -> (MockBroker, Connection) {
    let broker = MockBroker::start().unwrap();
    broker.create_topic(topic, partitions).unwrap();
    let connection = Connection::new(&broker.brokers());
    for partition in 0..partitions {
        produce(&connection, &TopicPartition::new(topic, partition), count, 10);
    }
    (broker, connection)
}

/// Offsets in the archive, in order.
async fn archived(store: &Arc<dyn Store>) -> Vec<i64> {
    let catalog = Catalog::open(store.clone()).await.unwrap();
    let filter = Filter::default();
    let selected = catalog.select(&filter).await.unwrap();
    let mut cuts = catalog.cuts(selected, &filter, Reading::RESTORE);
    let mut all = Vec::new();
    while let Some(cut) = cuts.next().await.unwrap() {
        all.extend(cut.iter().map(|r| r.raw.offset));
    }
    all
}

async fn document<T: serde::de::DeserializeOwned>(store: &Arc<dyn Store>, key: &str) -> T {
    serde_json::from_slice(&store.get(key).await.unwrap().expect(key)).unwrap()
}

fn passed() -> BoxFuture<'static, Result<()>> {
    async { Ok(()) }.boxed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_panics_stops_its_partition_and_no_other() {
    let (_broker, connection) = broker("bug-dlq", 3, 20);
    let inner = memory();
    let store = hooked(&inner, |op, key| {
        assert!(op != "create" || !key.starts_with("data/") || !key.contains("bug-dlq-1-"), "as a bug would");
        passed()
    });
    // Each record is over the budget: reading goes on only if the memory of batches that a panic took is let go.
    let outcome = run(Options { memory: 1, ..once("bug-dlq") }, &store, &connection).await.unwrap();
    let [(tp, error)] = &outcome.stopped[..] else { panic!("{:?}", outcome.stopped) };
    assert_eq!((tp.partition, error.kind(), outcome.exit_code()), (1, Kind::Internal, 1), "{error}");
    assert_eq!(outcome.counted.archived_records, 40);
    // The next run finishes what was begun.
    let outcome = run(once("bug-dlq"), &inner, &connection).await.unwrap();
    assert_eq!((outcome.exit_code(), outcome.counted.archived_records), (0, 20));
    assert_eq!(archived(&inner).await.len(), 60);
}

/// Records of a cut whose manifest was there already were counted as archived by this run.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_that_is_found_archived_is_told_apart() {
    let (_broker, connection) = broker("found-dlq", 2, 100);
    let inner = memory();
    let lost = AtomicUsize::new(0);
    let store = hooked(&inner, move |op, key| {
        let manifest = key.starts_with("ledger/found-dlq/1/") && key.ends_with("0.json");
        if op != "created" || !manifest || lost.fetch_add(1, Ordering::Relaxed) > 0 {
            return passed();
        }
        async { Err(Error::unavailable("the reply is lost")) }.boxed()
    });
    let counted = run(once("found-dlq"), &store, &connection).await.unwrap().counted;
    assert_eq!((counted.archived_records, counted.cuts), (100, 1));
    assert_eq!((counted.found_records, counted.cuts_found), (100, 1));
    assert_eq!(archived(&inner).await.len(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_a_start_that_hangs() {
    let (_broker, connection) = broker("hang-dlq", 1, 1);
    let (reached, mut listing) = watch::channel(false);
    let store = hooked(&memory(), move |op, key| {
        if op == "list" && key.starts_with("ledger/hang-dlq") {
            reached.send_replace(true);
            return futures::future::pending().boxed();
        }
        passed()
    });
    let (stage, receiver) = stage::channel();
    let counters = Arc::new(Counters::default());
    let mut run =
        tokio::spawn(archive::run(once("hang-dlq"), store, connection, Tables::builtin(), counters, receiver));
    listing.wait_for(|reached| *reached).await.unwrap();
    stage.send(Stage::Finish);
    tokio::time::timeout(Duration::from_secs(2), &mut run).await.expect_err("the first signal lets it finish");
    stage.send(Stage::Abandon);
    tokio::time::timeout(Duration::from_secs(5), run).await.expect("it waits for ever").unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_that_go_silent_are_not_waited_for_without_end() {
    let (broker, connection) = broker("silent-dlq", 1, 100);
    broker.without_fetches();
    let store = memory();
    let wait = Duration::from_secs(2);
    let began = Instant::now();
    let outcome = run(Options { wait, ..once("silent-dlq") }, &store, &connection).await.unwrap();
    let [(_, error)] = &outcome.stopped[..] else { panic!("{:?}", outcome.stopped) };
    assert!(error.message().starts_with("nothing came from offset 0 on, short of 100, for 2 s"), "{error}");
    assert_eq!((error.kind(), outcome.exit_code(), outcome.counted.cuts), (Kind::Unavailable, 1, 0));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn a_slow_answer_does_not_turn_topic_ids_off() {
    let (broker, connection) = broker("slow-dlq", 1, 1);
    let (admin, tp) = (Admin::new(&connection).unwrap(), TopicPartition::new("slow-dlq", 0));
    let ask = |ms| admin.topic_id(&tp, Duration::from_millis(ms));
    let Ok(TopicId::Is(id)) = ask(5000) else { panic!("the embedded broker has ids") };
    broker.slow(Duration::from_secs(2)).unwrap();
    assert_eq!(ask(200).unwrap_err().kind(), Kind::Unavailable);
    broker.slow(Duration::ZERO).unwrap();
    assert_eq!(ask(10_000).unwrap(), TopicId::Is(id));
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_without_topic_ids_are_not_waited_for() {
    let (broker, connection) = broker("old-dlq", 1, 10);
    broker.without_topic_ids().unwrap();
    let (store, began) = (memory(), Instant::now());
    let outcome = run(once("old-dlq"), &store, &connection).await.unwrap();
    assert_eq!((outcome.exit_code(), outcome.counted.archived_records), (0, 10));
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    let genesis: Genesis = document(&store, "ledger/old-dlq/0/genesis.json").await;
    assert_eq!(genesis.topic_id, None);
}

/// What was read of it is archived; what Kafka deleted before it was read is not waited for.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_deleted_while_it_is_drained_stops_its_partition() {
    let Some(mut connection) = kafka() else { return };
    let tp = TopicPartition::new(format!("gone-{}-dlq", uuid::Uuid::new_v4().simple()), 0);
    Admin::create_topic(&connection, &tp.topic, 1, &[]).await.unwrap();
    produce(&connection, &tp, 2000, 10_000);
    // So that most of it is still in Kafka when it goes.
    for (key, value) in [("fetch.message.max.bytes", "20000"), ("queued.max.messages.kbytes", "100")] {
        connection.set(key, value).unwrap();
    }
    let inner = memory();
    let (deleting, topic, admin) = (Arc::new(AtomicUsize::new(0)), tp.topic.clone(), connection.clone());
    let store = hooked(&inner, move |op, key| {
        if op != "create" || !key.ends_with(".intent.json") || deleting.fetch_add(1, Ordering::Relaxed) > 0 {
            return passed();
        }
        let (topic, admin) = (topic.clone(), admin.clone());
        async move {
            Admin::delete_topic(&admin, &topic).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(())
        }
        .boxed()
    });
    let policy = CutPolicy { max_records: 20, ..CutPolicy::default() };
    let options = Options { policy, memory: 500_000, wait: Duration::from_secs(3), ..once(&tp.topic) };
    let outcome = run(options, &store, &connection).await.unwrap();
    assert_eq!(outcome.exit_code(), 1);
    assert!(outcome.stopped.iter().all(|(other, _)| *other == tp), "{:?}", outcome.stopped);
    let there = archived(&inner).await;
    assert_eq!(there.len() as u64, outcome.counted.archived_records);
    assert!((1..2000).contains(&there.len()), "{}", there.len());
    assert_eq!(there, (0..there.len() as i64).collect::<Vec<_>>());
}

/// A cut is begun and its program dies; retention takes some of its records before the next start looks, and more of
/// them while it recovers.
#[tokio::test(flavor = "multi_thread")]
async fn retention_that_moves_during_recovery_is_told() {
    let Some(connection) = kafka() else { return };
    let tp = TopicPartition::new(format!("expire-{}-dlq", uuid::Uuid::new_v4().simple()), 0);
    Admin::create_topic(&connection, &tp.topic, 1, &[]).await.unwrap();
    produce(&connection, &tp, 100, 10);
    let inner = memory();
    let dies = hooked(&inner, |op, key| {
        let dies = op == "create" && key.starts_with("data/");
        async move { if dies { Err(Error::failed("as if killed")) } else { Ok(()) } }.boxed()
    });
    assert_eq!(run(once(&tp.topic), &dies, &connection).await.unwrap().exit_code(), 1);
    Admin::delete_records(&connection, &tp, 10).await.unwrap();
    let (admin, partition) = (connection.clone(), tp.clone());
    let moving = hooked(&inner, move |op, _| {
        let (admin, partition, moves) = (admin.clone(), partition.clone(), op == "head");
        async move { if moves { Admin::delete_records(&admin, &partition, 30).await } else { Ok(()) } }.boxed()
    });
    let outcome = run(once(&tp.topic), &moving, &connection).await.unwrap();
    assert_eq!((outcome.exit_code(), outcome.counted.lost), (3, 30), "{:?}", outcome.stopped);
    assert_eq!(outcome.counted.archived_records, 70);
    assert_eq!(archived(&inner).await, (30..100).collect::<Vec<_>>());
    let manifest: Manifest = document(&inner, &format!("ledger/{}/0/{:020}.json", tp.topic, 0)).await;
    let gaps: Vec<_> = manifest.gaps.iter().map(|g| (g.from, g.to, g.kind)).collect();
    assert_eq!(gaps, [(0, 30, GapKind::Expired)]);
}

/// A cut is begun under a topic's own pipeline, and its program dies. The next start has another configuration.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_of_a_topics_own_pipeline_is_finished_where_its_intent_says() {
    let (_broker, connection) = broker("own-dlq", 1, 100);
    let inner = memory();
    let dies = hooked(&inner, |op, key| {
        let dies = op == "create" && key.starts_with("data/");
        async move { if dies { Err(Error::failed("as if killed")) } else { Ok(()) } }.boxed()
    });
    let own =
        TopicSettings { pipeline: Some("night shift".into()), ..TopicSettings::of(TopicMatch::parse("^own").unwrap()) };
    let tables = Tables::with_topics(&[own]);
    assert_ne!(tables.routing_digest, Tables::builtin().routing_digest);
    let digest = tables.routing_digest.clone();
    assert_eq!(run_with(once("own-dlq"), &dies, &connection, tables).await.unwrap().exit_code(), 1);
    let outcome = run(once("own-dlq"), &inner, &connection).await.unwrap();
    assert_eq!((outcome.exit_code(), outcome.counted.archived_records), (0, 100));
    let intent: Intent = document(&inner, &format!("ledger/own-dlq/0/{:020}.intent.json", 0)).await;
    assert_eq!(intent.routing_digest, digest);
    let manifest: Manifest = document(&inner, &format!("ledger/own-dlq/0/{:020}.json", 0)).await;
    let objects: Vec<_> = manifest.objects.iter().map(|o| (o.pipeline.as_deref(), o.rows)).collect();
    assert_eq!(objects, [(Some("night shift"), 100)]);
    assert_eq!(archived(&inner).await, (0..100).collect::<Vec<_>>());
    let options = verify::Options { kafka: Some(connection), ..verify::Options::default() };
    let report = verify::run(options, inner, Arc::default()).await.unwrap();
    assert_eq!((report.exit_code(), report.totals.damage), (0, 0), "{:?}", report.damage);
}

/// A cut is begun under rules that make more pipelines than may have objects, and its program dies when the first of them
/// are there. The next start has other rules and another bound.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_begun_under_other_rules_and_another_bound_is_finished_as_its_intent_says() {
    let broker = MockBroker::start().unwrap();
    broker.create_topic("ruled-dlq", 1).unwrap();
    let connection = Connection::new(&broker.brokers());
    let producer = Producer::new(&connection, None).unwrap();
    for token in 0..60 {
        // n0 30 times, ten others three times each.
        let origin = if token % 2 == 0 { "n0".to_owned() } else { format!("n{}", token % 20) };
        let header = Header { name: b"__streams.errors.topic", value: Some(origin.as_bytes()) };
        let (topic, value) = ("ruled-dlq", Some(&b"value"[..]));
        let (headers, timestamp_ms) = (std::iter::once(header), Some(1_791_300_000_000));
        let record = NewRecord { topic, partition: Some(0), key: None, value, headers, timestamp_ms, token };
        producer.send(record, Duration::from_secs(10)).unwrap();
    }
    producer.flush(Duration::from_secs(30)).unwrap();
    assert!(producer.acks().iter().all(|ack| ack.result.is_ok()));
    let rules = |name: &str| {
        let rule = Rule::new(vec![Condition::parse("origin_topic", "^n(.+)").unwrap()], name).unwrap();
        move |max| Tables::with_routing(|r| r.with_rules(&[rule]).with_max_pipelines(max))
    };
    let inner = memory();
    let dies = hooked(&inner, |op, key| {
        let dies = op == "create" && key.starts_with("data/") && !key.contains("pipeline=team-0/");
        async move { if dies { Err(Error::failed("as if killed")) } else { Ok(()) } }.boxed()
    });
    let begun = rules("team-${1}")(3);
    let digest = begun.routing_digest.clone();
    assert_eq!(run_with(once("ruled-dlq"), &dies, &connection, begun).await.unwrap().exit_code(), 1);
    let intent: Intent = document(&inner, &format!("ledger/ruled-dlq/0/{:020}.intent.json", 0)).await;
    assert_eq!((intent.routing_digest, intent.objects.len()), (digest, 4));
    assert!(intent.objects[3].key.contains("/pipeline=shared.00000000/"), "{:?}", intent.objects[3].key);
    let finished = rules("other-${1}")(1);
    let outcome = run_with(once("ruled-dlq"), &inner, &connection, finished).await.unwrap();
    assert_eq!((outcome.exit_code(), outcome.counted.archived_records), (0, 60));
    let there = inner.list_all("data/").await.unwrap().into_iter().map(|o| o.key).collect::<BTreeSet<_>>();
    assert_eq!(there, intent.objects.iter().map(|o| o.key.clone()).collect());
    let catalog = Catalog::open(inner.clone()).await.unwrap();
    for n in [0, 1, 3, 7, 11, 19] {
        let filter = FilterDoc { pipeline: vec![format!("team-{n}")], ..FilterDoc::default() };
        let filter = Filter::new(filter).unwrap();
        let mut cuts = catalog.cuts(catalog.select(&filter).await.unwrap(), &filter, Reading::RESTORE);
        let cut = cuts.next().await.unwrap().unwrap();
        assert_eq!(cut.len(), if n == 0 { 30 } else { 3 }, "team-{n}");
        assert!(cut.iter().all(|r| r.decoded.origin_topic.as_deref() == Some(format!("n{n}").as_str())));
    }
    let options = verify::Options { kafka: Some(connection), ..verify::Options::default() };
    let report = verify::run(options, inner, Arc::default()).await.unwrap();
    assert_eq!((report.exit_code(), report.totals.damage), (0, 0), "{:?}", report.damage);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_ledger_is_not_begun_anew() {
    let (_broker, connection) = broker("lost-dlq", 1, 10);
    let store = memory();
    assert_eq!(run(once("lost-dlq"), &store, &connection).await.unwrap().exit_code(), 0);
    // All but the ledger, as a lifecycle rule leaves it.
    let without = copy(&store, |key| !key.starts_with("ledger/")).await;
    let error = run(once("lost-dlq"), &without, &connection).await.unwrap_err();
    assert!(error.kind() == Kind::Corrupt && error.message().contains("its ledger/ is gone"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_group_has_committed_where_the_archive_ends() {
    let (_broker, connection) = broker("hint-dlq", 1, 10);
    let store = memory();
    let outcome = run(once("hint-dlq"), &store, &connection).await.unwrap();
    tokio::task::spawn_blocking(move || {
        let admin = Admin::of_group(&connection, &outcome.archive.default_group()).unwrap();
        let committed =
            |partition| admin.committed(&TopicPartition::new("hint-dlq", partition), Duration::from_secs(5));
        assert_eq!((committed(0).unwrap(), committed(1).unwrap()), (Some(10), None));
    })
    .await
    .unwrap();
}

async fn copy(store: &Arc<dyn Store>, keep: impl Fn(&str) -> bool) -> Arc<dyn Store> {
    let copy = memory();
    for object in store.list_all("").await.unwrap().iter().filter(|o| keep(&o.key)) {
        let bytes = store.get(&object.key).await.unwrap().unwrap();
        copy.create(&object.key, bytes, &ObjectMeta::default()).await.unwrap();
    }
    copy
}

/// A real Kafka; `None`, with a notice, where there is none and none is required.
fn kafka() -> Option<Connection> {
    let brokers = std::env::var("DLQ_ARCHIVER_BROKERS").ok();
    if brokers.is_none() {
        assert!(std::env::var_os("DLQ_ARCHIVER_REQUIRE_SERVICES").is_none(), "DLQ_ARCHIVER_BROKERS is not set");
        eprintln!("skipped: run make up, and source localstack/.run/env");
    }
    brokers.map(|b| Connection::new(&b))
}
