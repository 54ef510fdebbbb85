//! How many requests the archive makes: for a cut, at a start, and at a start of a ledger that has grown old.

use crate::broker::Broker;
use crate::exec::{Machine, WORLD};
use crate::faults::Faults;
use crate::rng::Rng;
use async_trait::async_trait;
use bytes::Bytes;
use dlq_archiver::Result;
use dlq_archiver::archive::cluster::{Checksums, Cluster, Described, Poll};
use dlq_archiver::archive::{self, Counters, From, Options, StoreUse};
use dlq_archiver::cut::{CutPolicy, Tables};
use dlq_archiver::format::{Compression, Format};
use dlq_archiver::host;
use dlq_archiver::kafka::{Peeked, TopicId};
use dlq_archiver::record::{RawBatch, TopicPartition};
use dlq_archiver::retention::LogSettings;
use dlq_archiver::stage;
use dlq_archiver::store::{Created, Head, Listing, MemoryStore, ObjectMeta, Store};
use futures::FutureExt;
use roaring::RoaringTreemap;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Counts = BTreeMap<&'static str, u64>;

#[derive(Clone)]
struct Counted<T> {
    inner: T,
    counts: Arc<Mutex<Counts>>,
}

impl<T> Counted<T> {
    fn new(inner: T) -> Self {
        Self { inner, counts: Arc::default() }
    }

    fn count(&self, what: &'static str) -> &T {
        *self.counts.lock().unwrap().entry(what).or_default() += 1;
        &self.inner
    }

    /// Since the last call.
    fn taken(&self) -> Counts {
        std::mem::take(&mut self.counts.lock().unwrap())
    }
}

impl std::fmt::Debug for Counted<MemoryStore> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Counted")
    }
}

#[async_trait]
impl Store for Counted<MemoryStore> {
    fn url(&self) -> &str {
        "counted:"
    }
    fn check_key(&self, key: &str) -> Result<()> {
        self.inner.check_key(key)
    }
    async fn create(&self, key: &str, body: Bytes, meta: &ObjectMeta) -> Result<Created> {
        self.count("PUT").create(key, body, meta).await
    }
    async fn get(&self, key: &str) -> Result<Option<Bytes>> {
        self.count("GET").get(key).await
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        self.count("GET").get_range(key, range).await
    }
    async fn head(&self, key: &str) -> Result<Option<Head>> {
        self.count("HEAD").head(key).await
    }
    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: Option<usize>) -> Result<Listing> {
        // As S3's pages.
        self.count("LIST").list(prefix, start_after, Some(limit.unwrap_or(1000).min(1000))).await
    }
    async fn list_folders(&self, prefix: &str) -> Result<Vec<String>> {
        self.count("LIST").list_folders(prefix).await
    }
}

#[async_trait]
impl Cluster for Counted<Broker> {
    async fn describe(&self, topics: &[String], timeout: Duration) -> Result<Described> {
        self.count("describe").describe(topics, timeout).await
    }
    fn consumer(&self, group: &str) -> Result<Box<dyn Poll>> {
        self.inner.consumer(group)
    }
    async fn watermarks(&self, tp: &TopicPartition) -> Result<(i64, i64)> {
        self.count("offsets").watermarks(tp).await
    }
    async fn log_end(&self, tp: &TopicPartition) -> Result<i64> {
        self.count("offsets").log_end(tp).await
    }
    async fn topic_id(&self, tp: &TopicPartition) -> Result<TopicId> {
        self.count("topic id").topic_id(tp).await
    }
    async fn committed(&self, group: &str, tp: &TopicPartition) -> Result<Option<i64>> {
        self.count("committed").committed(group, tp).await
    }
    async fn settings(&self, topics: &[String]) -> Result<BTreeMap<String, LogSettings>> {
        self.count("look").settings(topics).await
    }
    async fn logs(&self, partitions: &[TopicPartition]) -> Result<BTreeMap<TopicPartition, (i64, i64, i64)>> {
        self.count("look").logs(partitions).await
    }
    async fn peek(&self, at: &[(TopicPartition, i64)]) -> Result<BTreeMap<TopicPartition, Peeked>> {
        self.count("look").peek(at).await
    }
    async fn offsets_for_times(&self, at: &[(TopicPartition, i64)]) -> Result<BTreeMap<TopicPartition, Option<i64>>> {
        self.count("look").offsets_for_times(at).await
    }
    async fn offset_for_time(&self, tp: &TopicPartition, ms: i64) -> Result<Option<i64>> {
        self.count("offsets").offset_for_time(tp, ms).await
    }
    async fn first_other(
        &self,
        tp: &TopicPartition,
        from: i64,
        to: i64,
        checksums: Arc<Checksums>,
    ) -> Result<Option<i64>> {
        self.count("read").first_other(tp, from, to, checksums).await
    }
    async fn refuses(&self, tp: &TopicPartition, offset: i64, leader_epoch: i32) -> Result<bool> {
        self.count("leader epoch").refuses(tp, offset, leader_epoch).await
    }
    async fn read(&self, tp: &TopicPartition, from: i64, to: i64, offsets: Arc<RoaringTreemap>) -> Result<RawBatch> {
        self.count("read").read(tp, from, to, offsets).await
    }
}

struct Counting {
    machine: Machine,
    store: Counted<MemoryStore>,
    cluster: Counted<Broker>,
}

impl Counting {
    fn new() -> Self {
        let rng = Rng::new(1);
        let machine = Machine::new(rng.clone(), 1_790_000_000_000_000);
        host::simulate(Some(Arc::new(machine.clone())));
        let faults = Faults::new(rng.clone(), &Default::default());
        faults.stop();
        let broker = Broker::new(machine.clone(), rng, faults, &[("t", 1)], true, false);
        Self { machine, store: Counted::new(MemoryStore::new()), cluster: Counted::new(broker) }
    }

    /// Records of three pipelines at most.
    fn produce(&self, records: i64) {
        let tp = TopicPartition::new("t", 0);
        let end = || self.cluster.inner.with_log("t", 0, |log| log.end()).unwrap();
        let until = end() + records;
        while end() < until {
            self.cluster.inner.stir(&tp);
        }
        self.cluster.inner.settle();
    }

    /// `archive --once`: requests to the store, and questions to the brokers.
    fn once(&self, max_records: usize) -> (Counts, Counts) {
        let options = Options {
            topics: vec!["t".into()],
            once: true,
            group: None,
            from: From::Earliest,
            new_generation: false,
            format: Format::Jsonl(Compression::None),
            policy: CutPolicy { max_records, max_bytes: usize::MAX, max_age: Duration::from_secs(3600) },
            retention: None,
            safety: 0.5,
            files_per_day: None,
            topics_settings: Vec::new(),
            memory: 1 << 30,
            cut_min_age: Duration::from_secs(5),
            store_use: StoreUse::default(),
            start_timeout: Duration::from_secs(60),
            wait: Duration::from_secs(60),
            committed: None,
        };
        let (store, cluster) = (Arc::new(self.store.clone()), Arc::new(self.cluster.clone()));
        let ended = Arc::new(Mutex::new(None));
        let told = ended.clone();
        let run = async move {
            let (_stage, receiver) = stage::channel();
            let (tables, counters) = (Arc::new(Tables::builtin()), Arc::new(Counters::default()));
            let outcome = archive::run_on(options, store, cluster, tables, counters, receiver).await;
            *told.lock().unwrap() = Some(outcome);
        };
        self.machine.spawn_in(WORLD, run.boxed());
        self.machine.run_until(Duration::from_secs(100_000), || ended.lock().unwrap().is_some());
        let outcome = ended.lock().unwrap().take().expect("it ends").unwrap();
        assert!(outcome.stopped.is_empty(), "{outcome:?}");
        (self.store.taken(), self.cluster.taken())
    }

    fn keys(&self, part: &str) -> u64 {
        let keys = self.store.inner.list_all("").now_or_never().unwrap().unwrap();
        keys.iter().filter(|o| o.key.contains(part)).count() as u64
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        host::simulate(None);
    }
}

/// A cut: its intent, its objects, its manifest, and one question for the topic's id. Each hundredth: a checkpoint,
/// for which the manifests are read.
#[test]
fn a_cut_costs_two_requests_and_one_for_each_object() {
    let counting = Counting::new();
    counting.produce(20);
    counting.once(5);
    let (cuts, objects) = (counting.keys(".intent."), counting.keys("data/"));
    counting.produce(1500);
    let (store, cluster) = counting.once(5);
    let (cuts, objects) = (counting.keys(".intent.") - cuts, counting.keys("data/") - objects);
    let checkpoints = counting.keys("checkpoints/");
    println!("{cuts} cuts with {objects} objects, {checkpoints} checkpoints: {store:?} {cluster:?}");
    assert!(cuts > 200 && checkpoints >= 2);
    // One more asks at the opening whether the store creates conditionally.
    assert_eq!(store["PUT"], 1 + 2 * cuts + objects + checkpoints, "{store:?}");
    assert!(store["GET"] <= 100 * checkpoints + 10, "{store:?}");
    assert!(store.get("HEAD").copied().unwrap_or(0) <= 2 && store["LIST"] <= 4, "{store:?}");
    // Looks are once a minute, for all partitions together.
    let questions: u64 = cluster.iter().filter(|(what, _)| **what != "look").map(|(_, n)| n).sum();
    assert!(questions <= cuts + 15, "{cluster:?}");
}

/// Whatever the age of its ledger.
#[test]
fn a_start_costs_a_handful_of_requests() {
    let counting = Counting::new();
    let mut starts = Vec::new();
    for records in [150, 3000] {
        counting.produce(records);
        counting.once(1);
        let (store, mut cluster) = counting.once(1);
        // Beside the start, and told by the clock.
        cluster.remove("look");
        println!("{} cuts: {store:?} {cluster:?}", counting.keys(".intent."));
        starts.push((store, cluster));
    }
    assert!(counting.keys(".intent.") > 1000);
    let sums = |counts: &Counts| counts.values().sum::<u64>();
    let (store, cluster): (Vec<_>, Vec<_>) = starts.iter().map(|(store, cluster)| (sums(store), sums(cluster))).unzip();
    // One GET more where the newest cut has no record, as its offsets were markers.
    assert!(store[0].abs_diff(store[1]) <= 1 && cluster[0] == cluster[1], "{starts:?}");
    assert!(store.iter().all(|n| *n <= 12) && cluster[0] <= 9, "{starts:?}");
}
