//! Tests of the chain, in a store in memory.

use super::*;
use crate::archive::ledger::open_archive;
use crate::error::Kind;
use crate::format::ArchivedRecord;
use crate::record::{Decoded, RawRecord, RecordId, TimestampType};
use crate::store::{Head, Listing, MemoryStore, ObjectMeta, Store};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

async fn catalog(store: Arc<dyn Store>) -> Catalog {
    let (id, now) = ("4c2f27f0-0000-4000-8000-000000000001", "2026-11-01T00:00:00.000000Z");
    open_archive(&*store, "parquet", None, id, now).await.unwrap();
    Catalog::open(store).await.unwrap()
}

fn records(offsets: Range<i64>) -> Selection {
    let mut selection = Selection::default();
    for offset in offsets {
        let raw = RawRecord {
            offset,
            timestamp_ms: 0,
            timestamp_type: TimestampType::CreateTime,
            leader_epoch: -1,
            key: None,
            value: None,
            headers: Default::default(),
        };
        let record = ArchivedRecord {
            id: RecordId { topic: "failures".into(), generation: 1, partition: 0, offset },
            cluster_id: None,
            raw,
            key_size: None,
            value_size: None,
            decoded: Decoded::default(),
            pipeline: "p",
            archived_at_us: 0,
        };
        selection.add(&record, false);
    }
    selection
}

fn request(action: Action, process: &str) -> Request {
    Request {
        action,
        reason: "a test".into(),
        by: Some("ann".into()),
        user: "u".into(),
        host: "h".into(),
        process: process.into(),
        filter: Filter::default(),
    }
}

async fn discarded(catalog: &Catalog, offsets: Range<i64>) -> Vec<i64> {
    let standing = load(catalog).await.unwrap();
    let of = standing.of("failures", 1, 0);
    offsets.filter(|offset| of.of(*offset).is_some()).collect()
}

#[tokio::test]
async fn of_two_discards_at_once_the_loser_takes_the_next_number() {
    let catalog = catalog(Arc::new(MemoryStore::new())).await;
    let (one, two) = (load(&catalog).await.unwrap(), load(&catalog).await.unwrap());
    let first = write(&catalog, one, &records(0..4), &request(Action::Discard, "1")).await.unwrap().unwrap();
    let second = write(&catalog, two, &records(2..6), &request(Action::Discard, "2")).await.unwrap().unwrap();
    assert_eq!((first.number, first.records), (1, 4));
    assert_eq!(
        (second.number, second.selected, second.records),
        (2, 4, 2),
        "what the first has is not discarded again"
    );
    assert_eq!(discarded(&catalog, 0..9).await, [0, 1, 2, 3, 4, 5]);
}

/// What it looked at was taken back by another process before it wrote.
#[tokio::test]
async fn a_discard_that_loses_to_an_undo_still_discards() {
    let catalog = catalog(Arc::new(MemoryStore::new())).await;
    write(&catalog, Standing::default(), &records(0..4), &request(Action::Discard, "1")).await.unwrap();
    let looked = load(&catalog).await.unwrap();
    write(&catalog, load(&catalog).await.unwrap(), &records(0..4), &request(Action::Undo, "2")).await.unwrap();
    let third = write(&catalog, looked, &records(2..6), &request(Action::Discard, "3")).await.unwrap().unwrap();
    assert_eq!((third.number, third.records), (3, 4));
    assert_eq!(discarded(&catalog, 0..9).await, [2, 3, 4, 5]);
}

#[tokio::test]
async fn of_two_that_discard_the_same_one_has_nothing_to_do() {
    let catalog = catalog(Arc::new(MemoryStore::new())).await;
    let (one, two) = (load(&catalog).await.unwrap(), load(&catalog).await.unwrap());
    assert!(write(&catalog, one, &records(0..4), &request(Action::Discard, "1")).await.unwrap().is_some());
    assert!(write(&catalog, two, &records(0..4), &request(Action::Discard, "2")).await.unwrap().is_none());
    assert_eq!(load(&catalog).await.unwrap().end().number, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_at_once_make_one_chain() {
    let catalog = catalog(Arc::new(MemoryStore::new())).await;
    let writers = (0..16i64).map(|n| {
        let catalog = catalog.clone();
        tokio::spawn(async move {
            let standing = load(&catalog).await.unwrap();
            let request = request(Action::Discard, &n.to_string());
            write(&catalog, standing, &records(n * 3..n * 3 + 3), &request).await.unwrap().unwrap().number
        })
    });
    let mut numbers: Vec<u32> = futures::future::try_join_all(writers).await.unwrap();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=16).collect::<Vec<_>>());
    assert_eq!(discarded(&catalog, 0..60).await, (0..48).collect::<Vec<_>>());
}

const BEFORE: u8 = 1;
const BEHIND: u8 = 2;
const TWICE: u8 = 3;

/// Fails, once, before or behind the next create; or sends it twice, as a lost reply makes a client do.
#[derive(Debug, Clone, Default)]
struct Faulty(MemoryStore, Arc<AtomicU8>);

#[async_trait::async_trait]
impl Store for Faulty {
    fn url(&self) -> &str {
        self.0.url()
    }
    fn check_key(&self, key: &str) -> Result<()> {
        self.0.check_key(key)
    }
    async fn create(&self, key: &str, body: Bytes, meta: &ObjectMeta) -> Result<Created> {
        let fault = self.1.swap(0, SeqCst);
        if fault == BEFORE {
            return Err(Error::unavailable("no answer"));
        }
        let created = self.0.create(key, body.clone(), meta).await?;
        match fault {
            BEHIND => Err(Error::unavailable("no answer")),
            TWICE => self.0.create(key, body, meta).await,
            _ => Ok(created),
        }
    }
    async fn get(&self, key: &str) -> Result<Option<Bytes>> {
        self.0.get(key).await
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        self.0.get_range(key, range).await
    }
    async fn head(&self, key: &str) -> Result<Option<Head>> {
        self.0.head(key).await
    }
    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: Option<usize>) -> Result<Listing> {
        self.0.list(prefix, start_after, limit).await
    }
    async fn list_folders(&self, prefix: &str) -> Result<Vec<String>> {
        self.0.list_folders(prefix).await
    }
}

#[tokio::test]
async fn a_discard_that_was_killed_did_all_or_nothing_and_the_same_again_does_the_rest() {
    for (fault, there) in [(BEFORE, 0), (BEHIND, 4)] {
        let store = Faulty::default();
        let catalog = catalog(Arc::new(store.clone())).await;
        store.1.store(fault, SeqCst);
        let killed = write(&catalog, Standing::default(), &records(0..4), &request(Action::Discard, "1")).await;
        assert_eq!(killed.unwrap_err().kind(), Kind::Unavailable);
        assert_eq!(discarded(&catalog, 0..9).await.len(), there);
        let standing = load(&catalog).await.unwrap();
        let again = write(&catalog, standing, &records(0..4), &request(Action::Discard, "2")).await.unwrap();
        assert_eq!(again.is_some(), there == 0);
        assert_eq!(discarded(&catalog, 0..9).await, [0, 1, 2, 3]);
    }
}

#[tokio::test]
async fn a_reply_that_was_lost_does_not_make_it_two() {
    let store = Faulty::default();
    let catalog = catalog(Arc::new(store.clone())).await;
    store.1.store(TWICE, SeqCst);
    let doc = write(&catalog, Standing::default(), &records(0..4), &request(Action::Discard, "1")).await.unwrap();
    assert_eq!(doc.unwrap().number, 1);
    assert_eq!(load(&catalog).await.unwrap().end().number, 1);
}

/// A shorter answer would have restored what was discarded.
#[tokio::test]
async fn a_disposition_that_is_gone_or_changed_is_an_error_and_no_shorter_answer() {
    let store = MemoryStore::new();
    let catalog = catalog(Arc::new(store.clone())).await;
    for n in 0..3i64 {
        let standing = load(&catalog).await.unwrap();
        write(&catalog, standing, &records(n..n + 1), &request(Action::Discard, "1")).await.unwrap();
    }
    let key = layout::disposition_key(2);
    let genuine = store.get(&key).await.unwrap().unwrap();
    store.remove_behind_the_back(&key);
    let gone = load(&catalog).await.unwrap_err();
    assert_eq!(gone.kind(), Kind::Corrupt);
    assert!(gone.message().starts_with("dispositions/0000000002.json is missing"), "{gone}");
    let changed = String::from_utf8(genuine.to_vec()).unwrap().replace("a test", "a fact");
    store.replace_behind_the_back(&key, changed.into());
    let broken = load(&catalog).await.unwrap_err();
    assert!(broken.message().starts_with("dispositions/0000000003.json is damaged"), "{broken}");
    store.replace_behind_the_back(&key, genuine);
    assert_eq!(discarded(&catalog, 0..9).await, [0, 1, 2]);
    let odd = "dispositions/note.txt";
    store.create(odd, Bytes::new(), &ObjectMeta::default()).await.unwrap();
    assert_eq!(load(&catalog).await.unwrap_err().kind(), Kind::Corrupt, "{odd}");
}
