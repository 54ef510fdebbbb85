//! Two processes of one restore, the second's steps between two chosen ones of the first.

use super::super::audit::{Closing, Process};
use super::super::batch::Batch;
use super::super::pieces::{Piece, redone};
use super::super::plan::{Timestamps, sample, sample_cut};
use super::super::target::Kafka;
use super::super::turn;
use super::*;
use crate::error::Kind;
use crate::format::restored::{self, Restored};
use crate::kafka::{Admin, Connection};
use crate::record::{RawBatch, RecordId};
use crate::restore::values::Values;
use crate::store::{Created, Head, Listing, MemoryStore, ObjectMeta, Store};
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Mutex;

const TOPIC: &str = "target";

#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Before,
    Behind,
}

type Meanwhile = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A store where something happens before or behind the n-th listing of a folder.
struct Between {
    store: MemoryStore,
    when: When,
    prefix: &'static str,
    meanwhile: Mutex<(usize, Option<Meanwhile>)>,
}

impl Between {
    fn new(
        store: &MemoryStore,
        when: When,
        prefix: &'static str,
        nth: usize,
        meanwhile: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        Self { store: store.clone(), when, prefix, meanwhile: Mutex::new((nth, Some(Box::pin(meanwhile)))) }
    }

    fn due(&self, prefix: &str) -> Option<Meanwhile> {
        let mut meanwhile = self.meanwhile.lock().unwrap();
        if prefix != self.prefix || meanwhile.0 == 0 {
            return None;
        }
        meanwhile.0 -= 1;
        if meanwhile.0 == 0 { meanwhile.1.take() } else { None }
    }
}

impl std::fmt::Debug for Between {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.store.fmt(f)
    }
}

#[async_trait]
impl Store for Between {
    fn url(&self) -> &str {
        self.store.url()
    }
    fn check_key(&self, key: &str) -> Result<()> {
        self.store.check_key(key)
    }
    async fn create(&self, key: &str, body: Bytes, meta: &ObjectMeta) -> Result<Created> {
        self.store.create(key, body, meta).await
    }
    async fn get(&self, key: &str) -> Result<Option<Bytes>> {
        self.store.get(key).await
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        self.store.get_range(key, range).await
    }
    async fn head(&self, key: &str) -> Result<Option<Head>> {
        self.store.head(key).await
    }
    async fn list(&self, prefix: &str, after: Option<&str>, limit: Option<usize>) -> Result<Listing> {
        let due = self.due(prefix);
        if self.when == When::Behind {
            let listing = self.store.list(prefix, after, limit).await;
            if let Some(meanwhile) = due {
                meanwhile.await;
            }
            return listing;
        }
        if let Some(meanwhile) = due {
            meanwhile.await;
        }
        self.store.list(prefix, after, limit).await
    }
    async fn list_folders(&self, prefix: &str) -> Result<Vec<String>> {
        self.store.list_folders(prefix).await
    }
}

fn plan(id: &str, delivery: Delivery) -> PlanDoc {
    PlanDoc { delivery, targets: BTreeMap::from([(TOPIC.to_owned(), 1)]), ..sample(id, vec![sample_cut("x", 0..4)]) }
}

fn by(name: &str) -> Process {
    Process { user: format!("{name}@host"), now: "2026-10-08T00:00:00Z".into(), id: name.into() }
}

async fn put_piece(folder: &Folder<'_>, start: u64, end: u64, run: u32) -> Piece {
    let row = |n: u64| Restored {
        id: RecordId { topic: "dlq".into(), generation: 1, partition: 0, offset: n as i64 },
        target_topic: TOPIC.into(),
        target_partition: 0,
        target_offset: (u64::from(run) * 100 + n) as i64,
        restore_id: "x".into(),
        restored_at_us: 0,
        failure_key: [n as u8; 16],
        attempt: 1,
        correction: None,
    };
    let piece = Piece { start, end, run };
    folder.put_piece(piece, &(start..end).map(row).collect::<Vec<_>>()).await.unwrap();
    piece
}

struct World {
    target: Arc<dyn Target>,
    store: MemoryStore,
    plan: PlanDoc,
    topic: String,
}

/// On real brokers: the embedded one keeps no progress.
async fn world() -> Option<World> {
    let Some(brokers) = std::env::var("DLQ_ARCHIVER_BROKERS").ok().filter(|b| !b.is_empty()) else {
        let required = std::env::var("DLQ_ARCHIVER_REQUIRE_SERVICES").is_ok_and(|v| v == "1");
        assert!(!required, "DLQ_ARCHIVER_BROKERS is not set, and DLQ_ARCHIVER_REQUIRE_SERVICES=1");
        eprintln!("skipped: DLQ_ARCHIVER_BROKERS is not set");
        return None;
    };
    let connection = Connection::new(&brokers);
    let topic = format!("restore-ahead-{}", uuid::Uuid::new_v4());
    Admin::create_topic(&connection, &topic, 1, &[]).await.unwrap();
    let mut plan = plan("x", Delivery::Transactional);
    (plan.targets, plan.group) = (BTreeMap::from([(topic.clone(), 1)]), topic.clone());
    let target: Arc<dyn Target> = Arc::new(Kafka::new(connection));
    Some(World { target, store: MemoryStore::new(), plan, topic })
}

impl World {
    async fn look(&self, store: &dyn Store, sink: Option<Sink>) -> Result<Ahead> {
        Ahead::look(&self.target, &Folder::new(store, "x"), &self.plan, sink, None).await
    }

    /// Another process of the restore: it begins the first run, and has half of the records listed and committed.
    fn another(&self) -> impl Future<Output = ()> + Send + 'static {
        let (target, store, plan) = (self.target.clone(), self.store.clone(), self.plan.clone());
        let topic = self.topic.clone();
        async move {
            let folder = Folder::new(&store, "x");
            let mut ahead = Ahead::look(&target, &folder, &plan, None, None).await.unwrap();
            assert_eq!((ahead.run, ahead.start(&plan).unwrap()), (1, Some(0)));
            ahead.sink.begin_progress(&topic).await.unwrap();
            assert!(folder.begin_run(1, 0, &by("bob")).await.unwrap());
            put_piece(&folder, 0, 2, 1).await;
            open_transaction(&mut ahead.sink).await;
            ahead.sink.commit(&topic, 2).await.unwrap();
        }
    }
}

async fn open_transaction(sink: &mut Sink) {
    let batch = Batch { start: 0, end: 2, raw: RawBatch::new(), rows: Vec::new(), skipped: Vec::new() };
    assert!(sink.send(&batch.into(), Timestamps::Keep).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_commits_behind_the_lists_is_no_damage() {
    let Some(world) = world().await else { return };
    let store = Between::new(&world.store, When::Behind, "restores/x/run-", 2, world.another());
    let ahead = world.look(&store, None).await.unwrap();
    assert_eq!((ahead.run, ahead.start(&world.plan).unwrap()), (1, Some(0)));
    let folder = Folder::new(&store, "x");
    assert!(!folder.begin_run(1, 0, &by("ann")).await.unwrap(), "the other has this run");
    let again = world.look(&store, None).await.unwrap();
    assert_eq!((again.run, again.start(&world.plan).unwrap()), (2, Some(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_run_of_the_same_number_is_no_damage() {
    let Some(world) = world().await else { return };
    let store = Between::new(&world.store, When::Before, "restores/x/sent/", 2, world.another());
    let ahead = world.look(&store, None).await.unwrap();
    assert_eq!((ahead.run, ahead.start(&world.plan).unwrap()), (2, Some(2)));
    assert!(ahead.sent.last.unwrap().contains("bob@host"), "it can be said who runs");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_process_that_wrote_the_plan_does_not_redo_what_another_listed() {
    let Some(world) = world().await else { return };
    let (target, group) = (&world.target, &world.plan.group);
    let late = Sink::open(target, group, Asked::Exactly(Delivery::Transactional), None).await.unwrap().0;
    let mut other = world.look(&world.store, None).await.unwrap();
    let folder = Folder::new(&world.store, "x");
    other.sink.begin_progress(&world.topic).await.unwrap();
    assert!(folder.begin_run(1, 0, &by("bob")).await.unwrap());
    open_transaction(&mut other.sink).await;
    put_piece(&folder, 0, 2, 1).await;
    // Its batch is not committed, so a second run begins where it did: it must not be committed any more.
    let ahead = world.look(&world.store, Some(late)).await.unwrap();
    assert_eq!((ahead.run, ahead.start(&world.plan).unwrap()), (2, Some(0)));
    assert!(folder.begin_run(2, 0, &by("ann")).await.unwrap());
    assert_eq!(other.sink.commit(&world.topic, 2).await.unwrap_err().kind(), Kind::Fenced);
    assert_eq!(world.look(&world.store, None).await.unwrap().start(&world.plan).unwrap(), Some(0));
}

#[tokio::test]
async fn a_restore_that_another_process_of_it_carries_out_does_not_make_way() {
    let memory = MemoryStore::new();
    let (before, own) = (plan("before", Delivery::Plain), plan("x", Delivery::Plain));
    for plan in [&before, &own] {
        Folder::new(&memory, &plan.restore_id).create_plan(plan, &Values::default()).await.unwrap();
    }
    turn::take(&memory, &before, &by("zoe")).await.unwrap();
    // Behind its look at the one before: that ends, and another process has its turn.
    let (store, plans) = (memory.clone(), (before.clone(), own.clone()));
    let meanwhile = async move {
        let (before, own) = plans;
        let closing = Closing { reason: "taken over".into(), uncertain: false };
        assert!(Folder::new(&store, &before.restore_id).close(1, 0, &by("zoe"), closing).await.unwrap());
        turn::take(&store, &own, &by("bob")).await.unwrap();
        assert!(Folder::new(&store, "x").begin_run(1, 0, &by("bob")).await.unwrap());
    };
    let store = Between::new(&memory, When::Behind, "restores/before/run-", 1, meanwhile);
    turn::take(&store, &own, &by("ann")).await.unwrap();
    assert!(Folder::new(&memory, "x").sent().await.unwrap().closing.is_none());
    assert!(!Folder::new(&memory, "x").is_over().await.unwrap());
}

#[tokio::test]
async fn a_restore_that_made_way_stays_closed_for_its_other_process() {
    let memory = MemoryStore::new();
    let (before, own) = (plan("before", Delivery::Plain), plan("x", Delivery::Plain));
    for plan in [&before, &own] {
        Folder::new(&memory, &plan.restore_id).create_plan(plan, &Values::default()).await.unwrap();
    }
    turn::take(&memory, &before, &by("zoe")).await.unwrap();
    let refused = turn::take(&memory, &own, &by("ann")).await.unwrap_err();
    assert!(refused.message().contains("restore before of the same records"), "{refused}");
    turn::take(&memory, &own, &by("bob")).await.unwrap();
    let sent = Folder::new(&memory, "x").sent().await.unwrap();
    assert!(sent.closing.is_some(), "the run that follows stops at this");
}

#[tokio::test]
async fn plainly_a_run_that_was_taken_over_leaves_the_last_list_to_the_later_one() {
    let (store, plan) = (MemoryStore::new(), plan("x", Delivery::Plain));
    let folder = Folder::new(&store, "x");
    assert!(folder.begin_run(1, 0, &by("ann")).await.unwrap());
    put_piece(&folder, 0, 2, 1).await;
    // The second begins, while the first sends its last batch.
    assert!(folder.begin_run(2, 2, &by("bob")).await.unwrap());
    put_piece(&folder, 2, 4, 1).await;
    assert!(!folder.begin_run(2, 4, &by("ann")).await.unwrap(), "the first does not end it");
    put_piece(&folder, 2, 4, 2).await;
    assert!(folder.begin_run(3, 4, &by("bob")).await.unwrap());
    let sent = folder.sent().await.unwrap();
    assert_eq!(redone(&sent.pieces, &sent.runs), 2, "and what is there twice is told");
    let done = folder.finish(&plan, &sent, "now", None).await.unwrap();
    assert_eq!((done.restored, done.lists.len()), (4, 1));
    let mut offsets = Vec::new();
    restored::read(store.get(&done.lists[0].key).await.unwrap().unwrap(), |row| offsets.push(row.target_offset))
        .unwrap();
    assert_eq!(offsets, [100, 101, 202, 203], "each record once, where it is");
}
