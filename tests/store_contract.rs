//! One suite that every store passes: in memory, a local folder, and S3 where one is running (`make up`).

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use dlq_archiver::Kind;
use dlq_archiver::store::{self, Created, MemoryStore, ObjectMeta, Store, StoreOptions};
use futures::StreamExt as _;

/// A store to write to, and what must live as long as it.
type Opened = (Arc<dyn Store>, Option<tempfile::TempDir>);

async fn memory() -> Option<Opened> {
    Some((Arc::new(MemoryStore::new()), None))
}

async fn folder() -> Option<Opened> {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { create_missing: true, ..Default::default() };
    let store = store::open(&format!("file://{}/archive", dir.path().display()), &options).await.unwrap();
    Some((store, Some(dir)))
}

async fn s3() -> Option<Opened> {
    let (Ok(_), Ok(bucket)) = (std::env::var("AWS_ENDPOINT_URL"), std::env::var("LOCALSTACK_BUCKET")) else {
        let required = std::env::var("DLQ_ARCHIVER_REQUIRE_SERVICES").is_ok_and(|value| value == "1");
        assert!(!required, "AWS_ENDPOINT_URL and LOCALSTACK_BUCKET are not set: run make up, and source its env");
        // Not through eprintln, which the test harness keeps to itself.
        let _ = writeln!(std::io::stderr(), "S3 store: skipped: run make up");
        return None;
    };
    let url = format!("s3://{bucket}/contract/{}", uuid::Uuid::new_v4());
    Some((store::open(&url, &StoreOptions::default()).await.unwrap(), None))
}

macro_rules! contract {
    ($($test:ident),* $(,)?) => {
        mod in_memory { $(#[tokio::test(flavor = "multi_thread")] async fn $test() {
            if let Some((store, _kept)) = super::memory().await { super::$test(store).await }
        })* }
        mod in_a_folder { $(#[tokio::test(flavor = "multi_thread")] async fn $test() {
            if let Some((store, _kept)) = super::folder().await { super::$test(store).await }
        })* }
        mod in_s3 { $(#[tokio::test(flavor = "multi_thread")] async fn $test() {
            if let Some((store, _kept)) = super::s3().await { super::$test(store).await }
        })* }
    };
}

contract!(
    an_object_is_created_once,
    of_many_creators_one_wins,
    bodies_come_back_as_they_were,
    an_existing_large_object_is_not_sent_in_vain,
    names_with_odd_characters,
    metadata_comes_back,
    absent_objects,
    ranges,
    lists_in_byte_order,
    lists_below_a_prefix,
    lists_page_by_page,
    lists_more_than_a_thousand,
    lists_folders,
    keys_that_cannot_be_stored,
);

fn meta() -> ObjectMeta {
    ObjectMeta::default()
}

async fn fill(store: &Arc<dyn Store>, keys: impl IntoIterator<Item = String>) {
    futures::stream::iter(keys)
        .for_each_concurrent(16, |key| async move {
            let body = Bytes::from(vec![b'x'; key.len() % 7]);
            assert_eq!(store.create(&key, body, &meta()).await.unwrap(), Created::New, "{key}");
        })
        .await;
}

async fn keys(store: &Arc<dyn Store>, prefix: &str, after: Option<&str>, limit: Option<usize>) -> (Vec<String>, bool) {
    let page = store.list(prefix, after, limit).await.unwrap();
    (page.objects.into_iter().map(|object| object.key).collect(), page.truncated)
}

async fn an_object_is_created_once(store: Arc<dyn Store>) {
    let key = "ledger/t/0/00000000000000000000.json";
    assert_eq!(store.create(key, "first".into(), &meta()).await.unwrap(), Created::New);
    assert_eq!(store.create(key, "second".into(), &meta()).await.unwrap(), Created::Exists);
    assert_eq!(store.create(key, "first".into(), &meta()).await.unwrap(), Created::Exists);
    assert_eq!(store.get(key).await.unwrap().unwrap(), "first");
}

async fn of_many_creators_one_wins(store: Arc<dyn Store>) {
    for round in 0..12 {
        let key = format!("ledger/t/{round}/genesis.json");
        let creators = (0..12).map(|creator| {
            let (store, key) = (Arc::clone(&store), key.clone());
            tokio::spawn(async move {
                let body = Bytes::from(format!("{creator}").repeat(1000));
                (store.create(&key, body.clone(), &meta()).await.unwrap(), body)
            })
        });
        let answers = futures::future::join_all(creators).await;
        let won: Vec<_> = answers.into_iter().map(Result::unwrap).filter(|(made, _)| *made == Created::New).collect();
        assert_eq!(won.len(), 1, "round {round}");
        assert_eq!(store.get(&key).await.unwrap().unwrap(), won[0].1, "round {round}");
    }
}

async fn bodies_come_back_as_they_were(store: Arc<dyn Store>) {
    let large: Vec<u8> = (0..20u32 << 18).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    assert_eq!(large.len(), 20 << 20);
    for (key, body) in [("empty", Vec::new()), ("zeros", vec![0; 3]), ("large", large)] {
        assert_eq!(store.create(key, body.clone().into(), &meta()).await.unwrap(), Created::New);
        assert_eq!(store.head(key).await.unwrap().unwrap().size, body.len() as u64);
        assert!(store.get(key).await.unwrap().unwrap() == body, "{key} differs");
    }
}

async fn an_existing_large_object_is_not_sent_in_vain(store: Arc<dyn Store>) {
    let body = Bytes::from(vec![7; 20 << 20]);
    assert_eq!(store.create("large", body.clone(), &meta()).await.unwrap(), Created::New);
    for _ in 0..3 {
        assert_eq!(store.create("large", body.clone(), &meta()).await.unwrap(), Created::Exists);
    }
}

async fn names_with_odd_characters(store: Arc<dyn Store>) {
    let names = [
        "data/dt=2026-10-08/pipeline=größe 7/t-0-1-2.parquet",
        "data/a+b/c%20d/e%2Ff",
        "data/~!@$&'(),;:[]{}|^`/#?<>\"*",
        "data/日本語/😀.json",
        "data/ leading and trailing /x",
        "data/..a/b..",
        "_under/.hidden",
    ];
    for name in names {
        let made = store.create(name, name.into(), &meta()).await;
        assert_eq!(made.unwrap(), Created::New, "{name}");
    }
    for name in names {
        assert_eq!(store.get(name).await.unwrap().unwrap(), name);
        assert_eq!(store.create(name, "other".into(), &meta()).await.unwrap(), Created::Exists, "{name}");
        let (found, _) = keys(&store, name, None, None).await;
        assert_eq!(found, [name]);
    }
    let listed: BTreeSet<String> = store.list_all("").await.unwrap().into_iter().map(|object| object.key).collect();
    assert_eq!(listed, names.iter().map(|name| name.to_string()).collect());
}

async fn metadata_comes_back(store: Arc<dyn Store>) {
    // The SHA-256 of "abc": S3 stores get it as the checksum too, and refuse a wrong one.
    let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let meta = ObjectMeta::new("application/vnd.apache.parquet")
        .with("sha256", sha256)
        .with("rows", "3")
        .with("missing", "4,7-9; x=\"y\"");
    assert_eq!(store.create("x", "abc".into(), &meta).await.unwrap(), Created::New);
    let head = store.head("x").await.unwrap().unwrap();
    assert_eq!(head.size, 3);
    if store.url().starts_with("file:") {
        assert_eq!(head.meta, ObjectMeta::default());
    } else {
        assert_eq!(head.meta, meta);
    }
    if store.url().starts_with("s3:") {
        let error = store.create("z", "abd".into(), &meta).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Internal, "{error}");
        assert_eq!(store.get("z").await.unwrap(), None);
    }
    let error = store.create("y", "abc".into(), &meta.with("missing", "ä")).await.unwrap_err();
    assert!(error.message().contains("missing"), "{error}");
}

async fn absent_objects(store: Arc<dyn Store>) {
    store.create("a/b/c", "x".into(), &meta()).await.unwrap();
    for key in ["a", "a/b", "a/b/c/d", "a/b/cc", "nothing/at/all"] {
        assert_eq!(store.get(key).await.unwrap(), None, "{key}");
        assert_eq!(store.head(key).await.unwrap(), None, "{key}");
        let error = store.get_range(key, 0..1).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Failed, "{error}");
        assert!(error.message().contains(key), "{error}");
    }
}

async fn ranges(store: Arc<dyn Store>) {
    store.create("x", "0123456789".into(), &meta()).await.unwrap();
    for (range, bytes) in [(0..10, "0123456789"), (0..1, "0"), (3..7, "3456"), (9..10, "9"), (4..4, ""), (10..10, "")] {
        assert_eq!(store.get_range("x", range.clone()).await.unwrap(), bytes, "{range:?}");
    }
    #[allow(clippy::reversed_empty_ranges)]
    for range in [0..11, 9..20, 10..11, 20..30, 5..4, 11..11] {
        let error = store.get_range("x", range.clone()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Failed, "{range:?}: {error}");
    }
}

async fn lists_in_byte_order(store: Arc<dyn Store>) {
    let mut all: Vec<String> = ["a-b/x", "a.b", "a/b", "a/b.c", "a/b-c/d", "a/bb", "a0", "aé", "aA", "Z", "a/c/d/e/f"]
        .map(str::to_owned)
        .to_vec();
    fill(&store, all.clone()).await;
    all.sort_unstable();
    assert_eq!(keys(&store, "", None, None).await, (all.clone(), false));
    let listed = store.list_all("").await.unwrap();
    assert_eq!(listed.iter().map(|object| object.key.clone()).collect::<Vec<_>>(), all);
    assert!(listed.iter().all(|object| object.size == object.key.len() as u64 % 7));
    // From every key, and from between any two.
    for (at, after) in all.iter().enumerate() {
        let rest = all[at + 1..].to_vec();
        assert_eq!(keys(&store, "", Some(after), None).await.0, rest, "after {after:?}");
        assert_eq!(
            keys(&store, "", Some(&format!("{after}\u{20}")), None).await.0,
            rest,
            "after {after:?} and a space"
        );
    }
}

async fn lists_below_a_prefix(store: Arc<dyn Store>) {
    fill(&store, ["t/1/a", "t/1/b", "t/10/a", "t/2/a", "t1", "u/1"].map(str::to_owned)).await;
    for (prefix, found) in [
        ("t/1/", vec!["t/1/a", "t/1/b"]),
        ("t/1", vec!["t/1/a", "t/1/b", "t/10/a"]),
        ("t", vec!["t/1/a", "t/1/b", "t/10/a", "t/2/a", "t1"]),
        ("t/1/a", vec!["t/1/a"]),
        ("t/1/a/", vec![]),
        ("x/", vec![]),
    ] {
        assert_eq!(keys(&store, prefix, None, None).await.0, found, "{prefix}");
    }
    // A start before the prefix hides nothing, one behind it everything.
    assert_eq!(keys(&store, "t/1/", Some("a"), None).await.0, ["t/1/a", "t/1/b"]);
    assert_eq!(keys(&store, "t/1/", Some("t/1/"), None).await.0, ["t/1/a", "t/1/b"]);
    assert_eq!(keys(&store, "t/1/", Some("t/1/a"), None).await.0, ["t/1/b"]);
    assert_eq!(keys(&store, "t/1/", Some("t/2/a"), None).await.0, [""; 0]);
}

async fn lists_page_by_page(store: Arc<dyn Store>) {
    let all: Vec<String> = (0..10).map(|at| format!("l/{at:020}.json")).collect();
    fill(&store, all.clone()).await;
    assert_eq!(keys(&store, "l/", None, Some(4)).await, (all[..4].to_vec(), true));
    assert_eq!(keys(&store, "l/", Some(&all[3]), Some(4)).await, (all[4..8].to_vec(), true));
    assert_eq!(keys(&store, "l/", Some(&all[7]), Some(4)).await, (all[8..].to_vec(), false));
    assert_eq!(keys(&store, "l/", None, Some(10)).await, (all.clone(), false));
    assert_eq!(keys(&store, "l/", None, Some(1)).await, (all[..1].to_vec(), true));
    // From where nothing is: the ledger does so after a checkpoint.
    assert_eq!(keys(&store, "l/", Some("l/00000000000000000004"), Some(3)).await.0, all[4..7]);
    assert_eq!(keys(&store, "l/", Some("l/00000000000000000099"), None).await, (vec![], false));
}

async fn lists_more_than_a_thousand(store: Arc<dyn Store>) {
    let all: Vec<String> = (0..2100).map(|at| format!("m/{}/{at:020}", at / 1500)).collect();
    fill(&store, all.clone()).await;
    let (first, truncated) = keys(&store, "m/", None, None).await;
    assert_eq!((first, truncated), (all[..1000].to_vec(), true));
    assert_eq!(keys(&store, "m/", None, Some(1700)).await, (all[..1700].to_vec(), true));
    assert_eq!(keys(&store, "m/", None, Some(5000)).await, (all.clone(), false));
    let listed: Vec<String> = store.list_all("m/").await.unwrap().into_iter().map(|object| object.key).collect();
    assert_eq!(listed, all);
}

async fn lists_folders(store: Arc<dyn Store>) {
    let below = (0..1200).map(|at| format!("many/{at:04}/x"));
    fill(&store, below.chain(["data/dt=2/p/x", "data/dt=1/x", "data/dt=1/y", "data/x", "top"].map(str::to_owned)))
        .await;
    assert_eq!(store.list_folders("").await.unwrap(), ["data/", "many/"]);
    assert_eq!(store.list_folders("data/").await.unwrap(), ["data/dt=1/", "data/dt=2/"]);
    assert_eq!(store.list_folders("data/dt=2").await.unwrap(), ["data/dt=2/"]);
    assert_eq!(store.list_folders("data/dt=2/").await.unwrap(), ["data/dt=2/p/"]);
    assert_eq!(store.list_folders("data").await.unwrap(), ["data/"]);
    assert_eq!(store.list_folders("absent/").await.unwrap(), [""; 0]);
    let many = store.list_folders("many/").await.unwrap();
    assert_eq!(many, (0..1200).map(|at| format!("many/{at:04}/")).collect::<Vec<_>>());
}

async fn keys_that_cannot_be_stored(store: Arc<dyn Store>) {
    let widest = ["x".repeat(200), "y".repeat(200), "z".repeat(200), "u".repeat(200)].join("/");
    store.check_key(&widest).unwrap();
    assert_eq!(store.create(&widest, "wide".into(), &meta()).await.unwrap(), Created::New);
    assert_eq!(store.get(&widest).await.unwrap().unwrap(), "wide");
    let long = "x".repeat(201);
    let deep = ["x"; 451].join("/");
    for key in ["", "/a", "a/", "a//b", "../a", "a/./b", "a\nb", "a\\b", ".tmp/a", long.as_str(), deep.as_str()] {
        assert_eq!(store.check_key(key).unwrap_err().kind(), Kind::Failed, "{key:?}");
        assert_eq!(store.create(key, "x".into(), &meta()).await.unwrap_err().kind(), Kind::Failed, "{key:?}");
        assert_eq!(store.get(key).await.unwrap_err().kind(), Kind::Failed, "{key:?}");
        assert_eq!(store.head(key).await.unwrap_err().kind(), Kind::Failed, "{key:?}");
    }
}

#[tokio::test]
async fn the_address_comes_back_as_typed() {
    let options = StoreOptions { create_missing: true, ..Default::default() };
    assert_eq!(store::open("memory:", &options).await.unwrap().url(), "memory:");
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", dir.path().display());
    assert_eq!(store::open(&url, &options).await.unwrap().url(), url);
}
