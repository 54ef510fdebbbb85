//! `verify` finds each kind of damage, and nothing where there is none.

mod support;

use bytes::Bytes;
use dlq_archiver::cut::{self, CutRange, Tables};
use dlq_archiver::disposition::documents::{DispositionDoc, partition_docs};
use dlq_archiver::filter::{Filter, FilterDoc};
use dlq_archiver::format::{Compression, Format};
use dlq_archiver::kafka::{Connection, Consumer, MockBroker, NewRecord, Producer, RangeReader};
use dlq_archiver::layout;
use dlq_archiver::ledger::{self, Checkpoint, Gap, GapKind, Genesis, Intent, IntentObject, Manifest, plan, to_bytes};
use dlq_archiver::record::{RawBatch, TopicPartition};
use dlq_archiver::store::{Created, Head, Listing, MemoryStore, ObjectMeta, Store};
use dlq_archiver::verify::{self, Counters, Options, Receipt, Report, What};
use serde_json::Value;
use std::fs;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;
use support::{Rec, TestArchive, batch};

const TOPIC: &str = "aa-dlt";
const PREFIX: &str = "ledger/aa-dlt/0/";
const DAY: i64 = 86_400_000;

/// Records of two days in turn: two objects in a cut.
fn records(offsets: impl IntoIterator<Item = i64>) -> RawBatch {
    let values: Vec<(i64, String)> = offsets.into_iter().map(|o| (o, format!("value {o}"))).collect();
    let record = |offset: i64, value| Rec { offset, timestamp_ms: offset % 2 * DAY, value, ..Rec::default() };
    batch(&values.iter().map(|(o, value)| record(*o, Some(value.as_bytes()))).collect::<Vec<_>>())
}

/// Three cuts of ten offsets in one partition, one cut in another.
async fn sample() -> TestArchive {
    let mut archive = TestArchive::new(Format::Parquet).await;
    for from in [0, 10, 20] {
        archive.cut(TOPIC, 0, from, from + 10, records(from..from + 10), vec![]).await;
    }
    archive.cut("bb-dlt", 3, 5, 9, records([5, 8]), vec![]).await;
    archive
}

async fn verify_with(store: Arc<dyn Store>, options: Options) -> Report {
    verify::run(options, store, Arc::new(Counters::default())).await.unwrap()
}

async fn verify(archive: &TestArchive) -> Report {
    verify_with(archive.store.clone(), Options::default()).await
}

async fn verify_quick(archive: &TestArchive) -> Report {
    verify_with(archive.store.clone(), Options { quick: true, ..Options::default() }).await
}

async fn expecting(archive: &TestArchive, receipt: &Receipt) -> Report {
    verify_with(archive.store.clone(), Options { expect: Some(receipt.clone()), ..Options::default() }).await
}

async fn receipt(archive: &TestArchive) -> Receipt {
    verify(archive).await.receipt("2026-12-02T00:00:00.000000Z".into()).unwrap()
}

fn found(report: &Report) -> Vec<(What, &str)> {
    assert_eq!(report.totals.damage, report.damage.len() as u64);
    assert_eq!(report.exit_code(), if report.damage.is_empty() { 0 } else { 4 });
    for d in &report.damage {
        assert!(!d.expected.is_empty() && !d.found.is_empty() && d.next.len() > 20, "{d:?}");
    }
    report.damage.iter().map(|d| (d.kind, d.at.as_str())).collect()
}

#[track_caller]
fn only(report: &Report, kind: What, at: &str) {
    assert_eq!(found(report), [(kind, at)], "{:#?}", report.damage);
}

/// Discards these records of the sample's first topic.
fn discard(archive: &TestArchive, offsets: &str) {
    let args = ["discard", "--topic", TOPIC, "--offsets", offsets, "--reason", "a test"];
    archive.run(&args).ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn dispositions_that_are_whole_are_counted_and_no_orphans() {
    let archive = sample().await;
    discard(&archive, "5..15");
    discard(&archive, "12..20");
    archive.run(&["discard", "--topic", TOPIC, "--offsets", "5..6", "--undo", "--reason", "a test"]).ok();
    for report in [verify(&archive).await, verify_quick(&archive).await] {
        assert!(found(&report).is_empty(), "{report:?}");
        assert_eq!((report.totals.dispositions, report.totals.discarded), (3, 14));
    }
    let run = archive.run(&["verify"]);
    assert!(run.ok().contains("3 dispositions (14 discarded)"), "{run:?}");
    let other = archive.run(&["verify", "--topic", "bb-dlt"]);
    assert_eq!(other.code, 0, "those of another topic: {other:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disposition_that_was_removed_or_changed_is_damage() {
    let archive = sample().await;
    for offsets in ["0..1", "1..2", "2..3"] {
        discard(&archive, offsets);
    }
    let (two, three) = (layout::disposition_key(2), layout::disposition_key(3));
    let genuine = fs::read(archive.path(&two)).unwrap();
    fs::remove_file(archive.path(&two)).unwrap();
    only(&verify(&archive).await, What::DispositionMissing, &two);
    let changed = String::from_utf8(genuine.clone()).unwrap().replace("a test", "a lie");
    fs::write(archive.path(&two), changed).unwrap();
    only(&verify_quick(&archive).await, What::ChainBroken, &three);
    let ranges = layout::ranges_key(2);
    assert_eq!(
        found(&verify(&archive).await),
        [(What::DispositionRanges, &ranges[..]), (What::ChainBroken, &three[..])],
        "its Parquet says what it said"
    );
    fs::write(archive.path(&two), [&genuine[..], b" "].concat()).unwrap();
    only(&verify(&archive).await, What::DispositionDamaged, &two);
    fs::write(archive.path(&two), genuine).unwrap();
    fs::write(archive.path("dispositions/x"), "").unwrap();
    only(&verify(&archive).await, What::DispositionDamaged, "dispositions/x");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disposition_of_what_is_not_archived_is_damage() {
    let archive = sample().await;
    discard(&archive, "28..30");
    fs::remove_file(archive.path(&layout::ranges_key(1))).unwrap();
    let key = layout::disposition_key(1);
    let mut doc: DispositionDoc = ledger::from_bytes(&key, &fs::read(archive.path(&key)).unwrap()).unwrap();
    // One that is archived, one behind the end.
    let offsets = [(TOPIC.to_owned(), 1, 0), ("cc-dlt".to_owned(), 1, 0)];
    doc.partitions = partition_docs(&offsets.map(|at| (at, [29].into_iter().collect())).into()).unwrap();
    fs::write(archive.path(&key), to_bytes(&doc).unwrap()).unwrap();
    let report = verify(&archive).await;
    only(&report, What::DispositionDamaged, &key);
    assert!(report.damage[0].found.contains("cc-dlt/0"), "{report:?}");
    let other = verify_with(archive.store.clone(), Options { filter: of_topic(TOPIC), ..Options::default() }).await;
    assert!(found(&other).is_empty(), "{other:?}");
}

/// A manifest that was removed with its cut: its records are named elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn the_newest_cut_that_was_removed_is_found_by_its_dispositions() {
    let archive = sample().await;
    discard(&archive, "25..26");
    let (manifest, intent) = (layout::manifest_key(PREFIX, 20), layout::intent_key(PREFIX, 20));
    let m: Manifest = ledger::from_bytes(&manifest, &fs::read(archive.path(&manifest)).unwrap()).unwrap();
    for key in m.objects.iter().map(|o| &o.key).chain([&manifest, &intent]) {
        fs::remove_file(archive.path(key)).unwrap();
    }
    only(&verify(&archive).await, What::DispositionDamaged, &layout::disposition_key(1));
}

fn of_topic(topic: &str) -> Filter {
    Filter::new(FilterDoc { topic: vec![topic.into()], ..FilterDoc::default() }).unwrap()
}

fn manifest_key(from: i64) -> String {
    layout::manifest_key(PREFIX, from)
}

fn read<T: serde::de::DeserializeOwned>(archive: &TestArchive, key: &str) -> T {
    serde_json::from_slice(&fs::read(archive.path(key)).unwrap()).unwrap()
}

fn write(archive: &TestArchive, key: &str, bytes: &[u8]) {
    let path = archive.path(key);
    let _ = fs::remove_file(&path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn remove(archive: &TestArchive, key: &str) {
    fs::remove_file(archive.path(key)).unwrap();
}

fn edit<T: serde::de::DeserializeOwned + serde::Serialize>(
    archive: &TestArchive,
    key: &str,
    change: impl FnOnce(&mut T),
) {
    let mut document: T = read(archive, key);
    change(&mut document);
    write(archive, key, &to_bytes(&document).unwrap());
}

/// Keys of a cut's objects.
fn objects(archive: &TestArchive, from: i64) -> Vec<String> {
    read::<Manifest>(archive, &manifest_key(from)).objects.into_iter().map(|o| o.key).collect()
}

/// An intent behind the last cut, and its objects with the rows that `kept` lets through.
fn begin(
    archive: &TestArchive,
    from: i64,
    to: i64,
    batch: &RawBatch,
    kept: fn(i64) -> bool,
) -> (Intent, Vec<cut::Encoded>) {
    let tables = Tables::builtin();
    let genesis: Genesis = read(archive, &layout::genesis_key(PREFIX));
    let groups = cut::group(batch, TOPIC, 0, &tables);
    let range = CutRange { from, to, cut_at_us: support::CUT_AT_US };
    let intent = cut::intent(&genesis, range, batch, &groups, vec![], Format::Parquet, &tables).unwrap();
    let key = layout::intent_key(PREFIX, from);
    write(archive, &key, &to_bytes(&intent).unwrap());
    let encode = |(o, g): (_, &cut::Group)| {
        let rows = g.rows.iter().map(|i| batch.get(*i as usize)).filter(|r| kept(r.offset));
        cut::encode(&intent, o, Some("cluster-1"), rows, Format::Parquet, &tables, &key).unwrap()
    };
    let encoded = intent.objects.iter().zip(&groups).map(encode).collect();
    (intent, encoded)
}

/// Commits what was begun, as the manifest behind `before`.
fn commit(archive: &TestArchive, before: i64, intent: &Intent, objects: Vec<cut::Encoded>, gaps: Vec<Gap>) {
    let previous = fs::read(archive.path(&manifest_key(before))).unwrap();
    let last: Manifest = serde_json::from_slice(&previous).unwrap();
    for o in &objects {
        write(archive, &o.object.key, &o.bytes);
    }
    let manifest = Manifest {
        sequence: last.sequence + 1,
        from: intent.from,
        to: intent.to,
        rows: objects.iter().map(|o| o.object.rows).sum(),
        objects: objects.into_iter().map(|o| o.object).collect(),
        gaps,
        previous_sha256: support::sha256(&previous),
        ..last
    };
    write(archive, &manifest_key(intent.from), &to_bytes(&manifest).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_of_every_kind_of_cut_has_no_damage() {
    for format in [Format::Parquet, Format::Jsonl(Compression::Gzip)] {
        let archive = TestArchive::of_fixtures(format).await;
        let report = verify(&archive).await;
        assert_eq!(found(&report), []);
        let total: usize = support::fixtures().values().map(|b| b.len()).sum();
        assert_eq!((report.totals.rows, report.totals.open_cuts), (total as u64, 0));
        assert_eq!(found(&verify_quick(&archive).await), []);
    }
    let mut archive = sample().await;
    let lost = Gap { from: 30, to: 40, kind: GapKind::Lost };
    archive.cut(TOPIC, 0, 30, 40, RawBatch::new(), vec![lost]).await;
    archive.cut(TOPIC, 0, 40, 44, RawBatch::new(), vec![]).await;
    archive.genesis("c-dlt", 0, 1, 77).await;
    for generation in [1, 2] {
        archive.cut_in("d-dlt", 0, generation, 0, 10, records(0..10), vec![]).await;
    }
    // Recovered: of one object some rows, of the other none.
    let batch = records(44..54);
    let (intent, encoded) = begin(&archive, 44, 54, &batch, |o| o % 2 == 0 && o > 48);
    assert_eq!(encoded.iter().filter(|o| o.object.rows == 0).count(), 1);
    let gaps = plan::recovery_gaps((44..54).filter(|o| !(o % 2 == 0 && *o > 48)), 48);
    commit(&archive, 40, &intent, encoded, gaps);
    // Begun, and one of two objects written.
    let (_, encoded) = begin(&archive, 54, 60, &records(54..60), |_| true);
    write(&archive, &encoded[0].object.key, &encoded[0].bytes);
    for report in [verify(&archive).await, verify_quick(&archive).await] {
        assert_eq!(found(&report), [], "{:#?}", report.damage);
        let t = report.totals;
        assert_eq!((t.partitions, t.cuts, t.open_cuts, t.rows), (5, 9, 1, 30 + 2 + 10 + 10 + 2));
        assert_eq!((t.lost_offsets, t.compacted_offsets), (10 + 4, 4));
        let notes: Vec<_> = report.notes.iter().map(|n| n.at.as_str()).collect();
        assert_eq!(notes, [layout::intent_key(PREFIX, 54)]);
    }
    let receipt = receipt(&archive).await;
    assert_eq!(found(&expecting(&archive, &receipt).await), []);
    let heads: Vec<_> = receipt.partitions.iter().map(|p| (p.topic.as_str(), p.generation, p.sequence, p.to)).collect();
    assert_eq!(
        heads,
        [
            ("aa-dlt", 1, Some(5), 54),
            ("bb-dlt", 1, Some(0), 9),
            ("c-dlt", 1, None, 77),
            ("d-dlt", 1, Some(0), 10),
            ("d-dlt", 2, Some(0), 10)
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generation_that_does_not_follow_the_one_before() {
    let mut archive = sample().await;
    archive.cut_in("d-dlt", 0, 1, 0, 10, records(0..10), vec![]).await;
    archive.cut_in("d-dlt", 0, 2, 0, 10, records(0..10), vec![]).await;
    // A cut that came into the first generation behind its end.
    archive.cut_in("d-dlt", 0, 1, 10, 20, records(10..20), vec![]).await;
    let key = layout::genesis_key(&layout::ledger_prefix("d-dlt", 0, 2));
    only(&verify(&archive).await, What::ChainBroken, &key);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_deleted() {
    let archive = sample().await;
    let key = &objects(&archive, 10)[1];
    remove(&archive, key);
    only(&verify(&archive).await, What::ObjectMissing, key);
    only(&verify_quick(&archive).await, What::ObjectMissing, key);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_truncated() {
    let archive = sample().await;
    let key = &objects(&archive, 10)[1];
    let bytes = fs::read(archive.path(key)).unwrap();
    write(&archive, key, &bytes[..bytes.len() - 1]);
    only(&verify(&archive).await, What::ObjectSize, key);
    only(&verify_quick(&archive).await, What::ObjectSize, key);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bit_flipped() {
    let archive = sample().await;
    let key = &objects(&archive, 10)[1];
    let mut bytes = fs::read(archive.path(key)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    write(&archive, key, &bytes);
    only(&verify(&archive).await, What::ObjectSha256, key);
    assert_eq!(found(&verify_quick(&archive).await), [], "a folder stores no hashes");
}

#[tokio::test(flavor = "multi_thread")]
async fn quick_compares_the_hash_that_the_store_has() {
    let archive = sample().await;
    let key = &objects(&archive, 10)[1];
    for other in [false, true] {
        let store = MemoryStore::new();
        for o in archive.store.list_all("").await.unwrap() {
            let bytes = archive.store.get(&o.key).await.unwrap().unwrap();
            let sha256 = if other && o.key == *key { "0".repeat(64) } else { support::sha256(&bytes) };
            store.create(&o.key, bytes, &ObjectMeta::default().with("sha256", sha256)).await.unwrap();
        }
        let report = verify_with(Arc::new(store), Options { quick: true, ..Options::default() }).await;
        if other { only(&report, What::ObjectSha256, key) } else { assert_eq!(found(&report), []) }
    }
}

/// Replaces an object of the newest cut and makes its manifest say so.
fn replace(archive: &TestArchive, batch: &RawBatch, change: impl FnOnce(&mut Manifest)) -> String {
    let intent: Intent = read(archive, &layout::intent_key(PREFIX, 20));
    let object = &intent.objects[0];
    let rows = batch.iter();
    let tables = Tables::builtin();
    let encoded = cut::encode(&intent, object, Some("cluster-1"), rows, Format::Parquet, &tables, "ledger/x").unwrap();
    write(archive, &object.key, &encoded.bytes);
    edit(archive, &manifest_key(20), |m: &mut Manifest| {
        m.objects[0] = encoded.object;
        m.rows = m.objects.iter().map(|o| o.rows).sum();
        change(m);
    });
    object.key.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_replaced_with_a_manifest_that_vouches_for_it() {
    let archive = sample().await;
    let forged: Vec<_> = (20..30)
        .step_by(2)
        .map(|offset| Rec { offset, value: Some(if offset == 24 { b"forged" } else { b"value " }), ..Rec::default() })
        .collect();
    let key = replace(&archive, &batch(&forged), |_| {});
    only(&verify(&archive).await, What::ObjectRecords, &key);
    assert_eq!(found(&verify_quick(&archive).await), []);
}

/// Readers take a shared object's pipelines from its rows.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_whose_rows_are_of_other_pipelines_than_its_intent_says() {
    let archive = sample().await;
    let key = layout::intent_key(PREFIX, 20);
    let rows = records([20, 22, 24, 26, 28]);
    let intent: Intent = read(&archive, &key);
    let other = IntentObject { pipeline: Some("other".into()), ..intent.objects[0].clone() };
    let tables = Tables::builtin();
    let encoded = cut::encode(&intent, &other, None, rows.iter(), Format::Parquet, &tables, &key).unwrap();
    write(&archive, &other.key, &encoded.bytes);
    edit(&archive, &manifest_key(20), |m: &mut Manifest| {
        (m.objects[0].size, m.objects[0].sha256) = (encoded.object.size, encoded.object.sha256);
    });
    only(&verify(&archive).await, What::ObjectRecords, &other.key);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_taken_out_of_an_object_and_its_manifest() {
    let archive = sample().await;
    replace(&archive, &records([20, 22, 26, 28]), |_| {});
    only(&verify_quick(&archive).await, What::CutDisagrees, &manifest_key(20));
    // The manifest counts it, the object lacks it.
    let archive = sample().await;
    let key = replace(&archive, &records([20, 22, 26, 28]), |m| {
        (m.rows, m.objects[0].rows, m.objects[0].counts[0].rows) = (10, 5, 5);
    });
    only(&verify(&archive).await, What::ObjectRows, &key);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_made_up() {
    let archive = sample().await;
    let gap = Gap { from: 24, to: 25, kind: GapKind::Lost };
    replace(&archive, &records([20, 22, 26, 28]), |m| m.gaps.push(gap));
    only(&verify_quick(&archive).await, What::CutDisagrees, &manifest_key(20));
}

/// It would hide records from `--since` and `--until`.
#[tokio::test(flavor = "multi_thread")]
async fn timestamps_of_a_newest_manifest_edited() {
    let archive = sample().await;
    edit(&archive, &manifest_key(20), |m: &mut Manifest| m.objects[1].max_timestamp_ms = Some(DAY - 1));
    only(&verify(&archive).await, What::ObjectRows, &objects(&archive, 20)[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offset_twice_in_one_object() {
    let archive = sample().await;
    let key = replace(&archive, &records([20, 22, 24, 24, 26, 28]), |m| {
        (m.rows, m.objects[0].rows, m.objects[0].counts[0].rows) = (10, 5, 5);
    });
    only(&verify(&archive).await, What::OffsetTwice, &key);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offset_in_two_objects_of_a_cut() {
    let archive = sample().await;
    let key = layout::intent_key(PREFIX, 20);
    edit(&archive, &key, |i: &mut Intent| {
        i.objects[1].offsets = i.objects[0].offsets.clone();
    });
    only(&verify_quick(&archive).await, What::OffsetTwice, &key);
}

#[tokio::test(flavor = "multi_thread")]
async fn cuts_that_overlap() {
    let archive = sample().await;
    let (intent, encoded) = begin(&archive, 28, 35, &records(28..35), |_| true);
    commit(&archive, 20, &intent, encoded, vec![]);
    only(&verify(&archive).await, What::CutsOverlap, &manifest_key(28));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_edited() {
    let archive = sample().await;
    edit(&archive, &manifest_key(10), |m: &mut Manifest| m.objects[0].counts[0].error_class = Some("x".into()));
    only(&verify(&archive).await, What::ChainBroken, &manifest_key(10));
    // Where it ends: told as an edit, not as a hole.
    let archive = sample().await;
    edit(&archive, &manifest_key(10), |m: &mut Manifest| m.to = 19);
    let report = verify_quick(&archive).await;
    let key = manifest_key(10);
    assert_eq!(found(&report), [(What::ChainBroken, key.as_str()), (What::CutDisagrees, key.as_str())]);
    // The newest one: by what it says of its objects.
    let archive = sample().await;
    edit(&archive, &manifest_key(20), |m: &mut Manifest| m.rows = 9);
    only(&verify_quick(&archive).await, What::ManifestDamaged, &manifest_key(20));
    let changes: [fn(&mut Manifest); 2] = [
        |m| m.cut_at_us += 1,
        |m| {
            m.rows -= m.objects[1].rows;
            m.objects.truncate(1);
        },
    ];
    for change in changes {
        let archive = sample().await;
        edit(&archive, &manifest_key(20), change);
        only(&verify_quick(&archive).await, What::CutDisagrees, &manifest_key(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_of_another_archive_partition_or_shape() {
    let changes: [fn(&mut Value); 6] = [
        |m| {
            let key = m["objects"][0]["key"].as_str().unwrap().replace(".parquet", ".jsonl");
            m["objects"][0]["key"] = key.into();
        },
        |m| m["archive_id"] = "4c2f27f0-0000-4000-8000-000000000002".into(),
        |m| m["partition"] = 1.into(),
        |m| m["topic_id"] = "x7Gb1cVTQ0uZ0n0sZ2m_-w".into(),
        |m| m["sequence"] = 7.into(),
        |m| m["note"] = "one field more".into(),
    ];
    for change in changes {
        let archive = sample().await;
        edit(&archive, &manifest_key(20), change);
        only(&verify_quick(&archive).await, What::ManifestDamaged, &manifest_key(20));
    }
    let archive = sample().await;
    write(&archive, &manifest_key(20), b"{}");
    only(&verify_quick(&archive).await, What::ManifestDamaged, &manifest_key(20));
    let archive = sample().await;
    edit(&archive, &manifest_key(20), |m: &mut Value| m["version"] = 2.into());
    only(&verify_quick(&archive).await, What::UnknownVersion, &manifest_key(20));
}

/// A name that no store takes ended it as a failure of the store.
#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_names_objects_elsewhere() {
    for name in ["data/../../elsewhere.parquet", "data/dt=2026-12-01/pipeline=other/x-0-0.parquet"] {
        let archive = sample().await;
        edit(&archive, &manifest_key(20), |m: &mut Value| m["objects"][0]["key"] = name.into());
        let report = verify(&archive).await;
        assert!(found(&report).contains(&(What::ObjectMissing, name)), "{:?}", found(&report));
        assert!(found(&report).contains(&(What::CutDisagrees, &manifest_key(20))), "{:?}", found(&report));
        remove(&archive, &manifest_key(20).replace(".json", ".intent.json"));
        let report = verify(&archive).await;
        assert!(found(&report).contains(&(What::ManifestDamaged, &manifest_key(20))), "{:?}", found(&report));
        assert_eq!(report.exit_code(), 4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_removed() {
    let archive = sample().await;
    remove(&archive, &manifest_key(10));
    only(&verify(&archive).await, What::ManifestMissing, &manifest_key(10));
    // With its intent: its objects are named by nothing.
    let keys = objects(&sample().await, 10);
    remove(&archive, &layout::intent_key(PREFIX, 10));
    let report = verify(&archive).await;
    let (first, second, key) = (keys[0].as_str(), keys[1].as_str(), manifest_key(10));
    assert_eq!(found(&report), [(What::Orphan, first), (What::Orphan, second), (What::ManifestMissing, key.as_str())]);
    // The first one.
    let archive = sample().await;
    remove(&archive, &manifest_key(0));
    only(&verify(&archive).await, What::ManifestMissing, &manifest_key(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn newest_manifests_cut_off_are_found_by_a_receipt() {
    let archive = sample().await;
    let receipt = receipt(&archive).await;
    assert_eq!(found(&expecting(&archive, &receipt).await), []);
    remove(&archive, &manifest_key(20));
    let report = verify(&archive).await;
    assert_eq!((found(&report).len(), report.totals.open_cuts), (0, 1), "as if it was being written");
    only(&expecting(&archive, &receipt).await, What::ReceiptCutOff, PREFIX);
    let other = sample().await;
    for key in objects(&other, 20) {
        remove(&archive, &key);
    }
    remove(&archive, &layout::intent_key(PREFIX, 20));
    assert_eq!(found(&verify(&archive).await), [], "nothing is left that names it");
    only(&expecting(&archive, &receipt).await, What::ReceiptCutOff, PREFIX);
    // An archive that went on since is as expected.
    let mut archive = sample().await;
    let receipt = self::receipt(&archive).await;
    archive.cut(TOPIC, 0, 30, 40, records(30..40), vec![]).await;
    assert_eq!(found(&expecting(&archive, &receipt).await), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newest_manifest_edited_so_that_all_agrees_is_found_by_a_receipt() {
    let archive = sample().await;
    let receipt = receipt(&archive).await;
    edit(&archive, &manifest_key(20), |m: &mut Manifest| m.objects[0].counts[0].error_class = Some("Forged".into()));
    assert_eq!(found(&verify(&archive).await), []);
    only(&expecting(&archive, &receipt).await, What::ReceiptChanged, PREFIX);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_partition_removed_is_found_by_a_receipt() {
    let archive = sample().await;
    let receipt = receipt(&archive).await;
    fs::remove_dir_all(archive.path("ledger/bb-dlt")).unwrap();
    let report = verify(&archive).await;
    let kinds: Vec<_> = found(&report).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [What::Orphan, What::Orphan]);
    let orphans: Vec<String> = report.damage.iter().map(|d| d.at.clone()).collect();
    orphans.iter().for_each(|key| remove(&archive, key));
    assert_eq!(found(&verify(&archive).await), []);
    only(&expecting(&archive, &receipt).await, What::ReceiptPartition, "ledger/bb-dlt/3/");
    // Not asked for.
    let filter = Filter::new(FilterDoc { topic: vec![TOPIC.into()], ..FilterDoc::default() }).unwrap();
    let options = Options { filter, expect: Some(receipt.clone()), ..Options::default() };
    assert_eq!(found(&verify_with(archive.store.clone(), options).await), []);
    let other = Receipt { archive_id: "4c2f27f0-0000-4000-8000-000000000002".into(), ..receipt };
    only(&expecting(&archive, &other).await, What::ReceiptArchive, "archive.json");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_intent_removed_or_edited() {
    let key = layout::intent_key(PREFIX, 10);
    let archive = sample().await;
    remove(&archive, &key);
    only(&verify(&archive).await, What::IntentMissing, &key);
    let changes: [fn(&mut Intent); 4] = [
        |i| i.objects[0].key.push('x'),
        |i| i.objects[0].rows = 4,
        |i| i.objects[0].checksums.truncate(8),
        |i| i.from = 9,
    ];
    for change in changes {
        let archive = sample().await;
        edit(&archive, &key, change);
        only(&verify_quick(&archive).await, What::IntentDamaged, &key);
    }
    // Still in itself right: told where it differs from the manifest, or from the records.
    let archive = sample().await;
    edit(&archive, &key, |i: &mut Intent| i.cut_at_us += 1);
    only(&verify_quick(&archive).await, What::CutDisagrees, &manifest_key(10));
    let archive = sample().await;
    edit(&archive, &key, |i: &mut Intent| i.objects[0].checksums = i.objects[1].checksums.clone());
    only(&verify(&archive).await, What::ObjectRecords, &objects(&archive, 10)[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_genesis_removed_or_edited() {
    let key = layout::genesis_key(PREFIX);
    let archive = sample().await;
    remove(&archive, &key);
    only(&verify(&archive).await, What::GenesisMissing, &key);
    let archive = sample().await;
    edit(&archive, &key, |g: &mut Genesis| g.created_at = "2020-01-01T00:00:00.000000Z".into());
    only(&verify(&archive).await, What::ChainBroken, &key);
    let archive = sample().await;
    edit(&archive, &key, |g: &mut Genesis| g.partition = 4);
    let report = verify(&archive).await;
    assert_eq!(found(&report), [(What::GenesisDamaged, key.as_str()), (What::ChainBroken, key.as_str())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn archive_json_removed_is_damage_and_no_archive_is_not() {
    let archive = sample().await;
    remove(&archive, "archive.json");
    only(&verify(&archive).await, What::ArchiveMissing, "archive.json");
    let empty = verify::run(Options::default(), Arc::new(MemoryStore::new()), Arc::default()).await;
    assert_eq!(empty.unwrap_err().exit_code(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_nothing_names() {
    let archive = sample().await;
    let key = layout::data_key("bb-dlt", 3, 1, 9, 12, "1970-01-01", Some("bb-dlt"), "parquet");
    write(&archive, &key, b"x");
    write(&archive, "data/README.txt", b"x");
    assert_eq!(found(&verify(&archive).await), [(What::Orphan, "data/README.txt"), (What::Orphan, key.as_str())]);
    let of = |topic: &str| Filter::new(FilterDoc { topic: vec![topic.into()], ..FilterDoc::default() }).unwrap();
    let options = |topic| Options { filter: of(topic), ..Options::default() };
    let report = verify_with(archive.store.clone(), options("^bb-")).await;
    only(&report, What::Orphan, &key);
    assert_eq!(report.totals.partitions, 1);
    assert_eq!(found(&verify_with(archive.store.clone(), options(TOPIC)).await), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_that_do_not_agree() {
    let mut archive = TestArchive::new(Format::Parquet).await;
    let mut manifests = Vec::new();
    for from in 0..102 {
        let m = archive.cut(TOPIC, 0, from, from + 1, RawBatch::new(), vec![]).await;
        manifests.push((m, Bytes::from(fs::read(archive.path(&manifest_key(from))).unwrap())));
    }
    let bytes = fs::read(archive.path(&layout::genesis_key(PREFIX))).unwrap();
    let genesis: Genesis = serde_json::from_slice(&bytes).unwrap();
    let checkpoint = Checkpoint::of(&genesis, manifests[..100].to_vec(), support::sha256(&bytes)).unwrap();
    let key = layout::checkpoint_key(PREFIX, 100);
    write(&archive, &key, &to_bytes(&checkpoint).unwrap());
    assert_eq!(found(&verify(&archive).await), []);
    let changes: [fn(&mut Checkpoint); 4] = [
        |c| c.manifests[40].manifest.cut_at_us += 1,
        |c| c.previous_sha256 = "0".repeat(64),
        |c| c.manifests[99].sha256 = "0".repeat(64),
        |c| {
            let m = &mut c.manifests[99];
            m.manifest.cut_at_us += 1;
            m.sha256 = ledger::sha256_hex(&to_bytes(&m.manifest).unwrap());
        },
    ];
    for change in changes {
        let mut edited = checkpoint.clone();
        change(&mut edited);
        write(&archive, &key, &to_bytes(&edited).unwrap());
        only(&verify(&archive).await, What::CheckpointDamaged, &key);
    }
    // It finds manifests cut off below its end.
    write(&archive, &key, &to_bytes(&checkpoint).unwrap());
    for from in 98..102 {
        remove(&archive, &manifest_key(from));
        remove(&archive, &layout::intent_key(PREFIX, from));
    }
    only(&verify(&archive).await, What::CheckpointDamaged, &key);
}

/// Calls a function before data/ is listed.
struct Meanwhile<F>(Arc<dyn Store>, F);

impl<F> std::fmt::Debug for Meanwhile<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

type Result<T> = dlq_archiver::Result<T>;

#[async_trait::async_trait]
impl<F: Fn() + Send + Sync> Store for Meanwhile<F> {
    fn url(&self) -> &str {
        self.0.url()
    }
    fn check_key(&self, key: &str) -> Result<()> {
        self.0.check_key(key)
    }
    async fn create(&self, key: &str, body: Bytes, meta: &ObjectMeta) -> Result<Created> {
        self.0.create(key, body, meta).await
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
        if prefix == "data/" {
            (self.1)();
        }
        self.0.list(prefix, start_after, limit).await
    }
    async fn list_folders(&self, prefix: &str) -> Result<Vec<String>> {
        self.0.list_folders(prefix).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_archiver_writes_meanwhile_is_no_orphan() {
    let archive = Arc::new(sample().await);
    let writing = archive.clone();
    let write = move || {
        let (intent, encoded) = begin(&writing, 30, 40, &records(30..40), |_| true);
        commit(&writing, 20, &intent, encoded, vec![]);
    };
    let report = verify_with(Arc::new(Meanwhile(archive.store.clone(), write)), Options::default()).await;
    assert_eq!(found(&report), []);
    assert_eq!(report.totals.cuts, 4);
    assert_eq!(verify(&archive).await.totals.cuts, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_and_outputs_of_the_program() {
    let archive = sample().await;
    let file = tempfile::tempdir().unwrap();
    let path = |name: &str| file.path().join(name).display().to_string();
    let last = path("last.json");
    let ok = archive.run(&["verify", "--receipt", &last, "-o", "json"]).json();
    assert_eq!(ok["damage"], serde_json::json!([]));
    assert_eq!((ok["totals"]["rows"].as_u64(), ok["totals"]["objects"].as_u64()), (Some(32), Some(8)));
    assert!(archive.run(&["verify", "-q"]).ok().starts_with("no damage: 32 records in 8 objects"));
    let written: Receipt = serde_json::from_slice(&fs::read(&last).unwrap()).unwrap();
    assert_eq!((written.archive_id, written.rows), (archive.archive.archive_id.clone(), 32));
    archive.run(&["verify", "--quick", "--expect", &last, "--receipt", &last]).ok();

    let key = objects(&archive, 20).remove(0);
    remove(&archive, &key);
    remove(&archive, &manifest_key(20));
    let run = archive.run(&["verify", "--expect", &last, "--receipt", &path("new.json"), "-o", "json"]);
    assert_eq!(run.code, 4, "{run:?}");
    assert!(run.err.contains("no receipt was written") && !fs::exists(path("new.json")).unwrap(), "{run:?}");
    let document: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(document["totals"]["damage"], 1);
    let damage = document["damage"][0].as_object().unwrap();
    assert_eq!(damage.keys().collect::<Vec<_>>(), ["at", "kind", "expected", "found", "next"]);
    assert_eq!((&damage["kind"], &damage["at"]), (&"receipt_cut_off".into(), &PREFIX.into()));
    let run = archive.run(&["verify", "--expect", &last, "-o", "jsonl"]);
    let lines: Vec<Value> = run.out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!((run.code, lines.len()), (4, 3), "damage, the open cut, totals");
    assert_eq!(lines[2]["totals"]["open_cuts"], 1);
    let run = archive.run(&["verify", "--expect", &last]);
    assert!(run.out.starts_with("receipt_cut_off  ledger/aa-dlt/0/\n    expected  manifest 2"), "{run:?}");

    assert!(archive.run(&["verify", "--expect", &path("none")]).fails(2).contains("with --receipt FILE alone"));
    assert!(
        archive
            .run(&["verify", "--expect", &archive.path("archive.json").display().to_string()])
            .fails(2)
            .contains("not a receipt")
    );
    assert!(archive.run(&["verify", "--receipt", &path("no/such/folder")]).fails(2).contains("cannot be written"));
    let nobody = ["verify", "--brokers", "127.0.0.1:1", "--start-timeout", "1s"];
    assert!(archive.run(&nobody).fails(1).contains("no broker answers"));
}

/// It said "no damage" of nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_not_in_the_archive_is_wrong_usage() {
    let archive = sample().await;
    let told = archive.run(&["verify", "--topic", "aa-dlq"]).fails(2).to_owned();
    assert!(
        told.contains("no topic aa-dlq in this archive; it has aa-dlt, bb-dlt; did you mean \"aa-dlt\"?"),
        "{told}"
    );
    assert!(archive.run(&["verify", "--topic", "aa-dlt", "--topic", "^zz"]).fails(2).contains("no topic ^zz"));
    assert!(archive.run(&["verify", "--topic", "^b"]).ok().contains(" 1 partition"));
    let empty = TestArchive::new(Format::Parquet).await;
    assert!(empty.run(&["verify", "--topic", "a"]).fails(2).contains("it has no topics yet"));
    assert!(empty.run(&["verify"]).ok().starts_with("no damage"));
}

/// Of records in Kafka that no archiver had read, nothing was said.
#[tokio::test(flavor = "multi_thread")]
async fn what_kafka_has_and_is_not_archived_yet_is_noted() {
    let (mock, connection, batch) = broker();
    mock.create_topic("bb-dlt", 3).unwrap();
    let mut archive = archived(each(&batch).filter(|r| r.get(0).offset < 6), 6, vec![]).await;
    archive.cut("bb-dlt", 1, 0, 1, records([0]), vec![]).await;
    let noted =
        |report: &Report, at: &str, text: &str| report.notes.iter().any(|n| n.at == at && n.note.contains(text));
    let report = against(&archive, &connection).await;
    assert_eq!((found(&report), report.totals.not_archived_offsets), (vec![], Some(4)));
    assert!(noted(&report, "Kafka", "4 offsets are not archived yet (aa-dlt/0: 4)"), "{:?}", report.notes);
    assert!(noted(&report, "bb-dlt", "no ledger of: bb-dlt 0, 2."), "{:?}", report.notes);
    assert!(!report.notes.iter().any(|n| n.note.contains("committed")), "{:?}", report.notes);
    assert_eq!(verify(&archive).await.totals.not_archived_offsets, None);

    let group = archive.archive.default_group();
    let committed = |offset| {
        let (connection, group) = (connection.clone(), group.clone());
        let commit =
            move || Consumer::new(&connection, &group).unwrap().commit(&TopicPartition::new(TOPIC, 0), offset, true);
        tokio::task::spawn_blocking(commit)
    };
    committed(6).await.unwrap();
    assert!(!noted(&against(&archive, &connection).await, "aa-dlt/0", "committed"));
    committed(9).await.unwrap();
    let report = against(&archive, &connection).await;
    assert_eq!(found(&report), []);
    assert!(noted(&report, "aa-dlt/0", "has committed offset 9, and the ledger ends at 6"), "{:?}", report.notes);
}

/// A broker with ten records, and what a consumer reads of them.
fn broker() -> (MockBroker, Connection, RawBatch) {
    let mock = MockBroker::start().unwrap();
    mock.create_topic(TOPIC, 1).unwrap();
    let connection = Connection::new(&mock.brokers());
    let producer = Producer::new(&connection, None).unwrap();
    for token in 0..10 {
        let value = format!("value {token}");
        let record = NewRecord {
            topic: TOPIC,
            partition: Some(0),
            key: None,
            value: Some(value.as_bytes()),
            headers: std::iter::empty(),
            timestamp_ms: Some(DAY * (1 + token as i64 % 2)),
            token,
        };
        producer.send(record, Duration::from_secs(5)).unwrap();
    }
    producer.flush(Duration::from_secs(10)).unwrap();
    let mut batch = RawBatch::new();
    let reader = RangeReader::new(&connection).unwrap();
    let read = reader.read(&TopicPartition::new(TOPIC, 0), 0, 10, Duration::from_secs(30), |m| {
        m.copy_into(&mut batch)?;
        Ok(ControlFlow::Continue(()))
    });
    read.unwrap();
    assert_eq!(batch.len(), 10);
    (mock, connection, batch)
}

/// Cuts `0..4` and `4..to` of these records.
async fn archived(records: impl Iterator<Item = RawBatch>, to: i64, gaps: Vec<Gap>) -> TestArchive {
    let mut archive = TestArchive::new(Format::Parquet).await;
    edit(&archive, "archive.json", |a: &mut Value| a["kafka_cluster_id"] = Value::Null);
    let (mut first, mut second) = (RawBatch::new(), RawBatch::new());
    for r in records {
        let r = r.get(0);
        if r.offset < 4 { first.push_record(&r) } else { second.push_record(&r) }
    }
    archive.cut(TOPIC, 0, 0, 4, first, vec![]).await;
    archive.cut(TOPIC, 0, 4, to, second, gaps).await;
    archive
}

fn each(batch: &RawBatch) -> impl Iterator<Item = RawBatch> {
    batch.iter().map(|r| {
        let mut one = RawBatch::new();
        one.push_record(&r);
        one
    })
}

async fn against(archive: &TestArchive, connection: &Connection) -> Report {
    let kafka = Some(connection.clone());
    let options = Options { kafka, start_timeout: Duration::from_secs(30), quick: true, ..Options::default() };
    verify_with(archive.store.clone(), options).await
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_has_what_the_archive_has_not() {
    let (_mock, connection, batch) = broker();
    let archive = archived(each(&batch), 10, vec![]).await;
    let report = against(&archive, &connection).await;
    assert_eq!((found(&report), report.totals.kafka_records), (vec![], 10));

    let archive = archived(each(&batch).filter(|r| ![2, 7, 8].contains(&r.get(0).offset)), 10, vec![]).await;
    let report = against(&archive, &connection).await;
    assert_eq!(found(&report), [(What::KafkaMissing, "aa-dlt/0 0..4"), (What::KafkaMissing, "aa-dlt/0 4..10")]);
    assert!(report.damage[1].found.contains("2 (7..9)"), "{:?}", report.damage);
    assert_eq!(found(&verify(&archive).await), [], "the archive alone cannot know");

    let gap = vec![Gap { from: 7, to: 9, kind: GapKind::Lost }];
    let archive = archived(each(&batch).filter(|r| ![7, 8].contains(&r.get(0).offset)), 10, gap).await;
    let report = against(&archive, &connection).await;
    assert_eq!(found(&report), []);
    assert!(report.notes[0].note.contains("in gaps"), "{:?}", report.notes);

    // A cut that is gone leaves its offsets to nobody.
    let archive = archived(each(&batch), 10, vec![]).await;
    remove(&archive, &manifest_key(0));
    remove(&archive, &layout::intent_key(PREFIX, 0));
    let report = against(&archive, &connection).await;
    let missing: Vec<_> = report.damage.iter().filter(|d| d.kind == What::KafkaMissing).collect();
    assert!(missing.len() == 1 && missing[0].found.contains("4 (0..4)"), "{:?}", report.damage);
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_has_another_record_than_the_archive() {
    let (_mock, connection, batch) = broker();
    let other =
        |r: RawBatch| if r.get(0).offset == 6 { support::batch(&[Rec { offset: 6, ..Rec::default() }]) } else { r };
    let archive = archived(each(&batch).map(other), 10, vec![]).await;
    let report = against(&archive, &connection).await;
    only(&report, What::KafkaDiffers, "aa-dlt/0 4..10");
    assert!(report.damage[0].found.contains("1 (6..7)"), "{:?}", report.damage);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_kafka_is_no_damage() {
    let (_mock, connection, batch) = broker();
    let archive = archived(each(&batch), 11, vec![]).await;
    let report = against(&archive, &connection).await;
    assert_eq!(found(&report), []);
    assert!(report.notes[0].note.contains("log ends at 10"), "{:?}", report.notes);
    edit(&archive, "archive.json", |a: &mut Value| a["kafka_cluster_id"] = "another".into());
    let options = Options { kafka: Some(connection), start_timeout: Duration::from_secs(30), ..Options::default() };
    let refused = verify::run(options, archive.store.clone(), Arc::default()).await.unwrap_err();
    assert!(refused.exit_code() == 2 && refused.message().contains("cluster"), "{refused}");
}
