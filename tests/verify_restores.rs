//! `verify` finds each kind of damage in what restores and dispositions leave, and nothing where there is none.

mod support;

use dlq_archiver::format::{Format, ranges};
use dlq_archiver::kafka::MockBroker;
use dlq_archiver::layout;
use dlq_archiver::verify::{self, Counters, Options, Receipt, Report, What};
use std::fs;
use std::sync::Arc;
use support::{Rec, TestArchive, batch};

const MS: i64 = 1_791_417_600_000;

/// Two restores, the first with a corrected value, the second with a record that it skips.
async fn restored() -> (TestArchive, [String; 2]) {
    let mut archive = TestArchive::new(Format::Parquet).await;
    let record = |offset| Rec { offset, timestamp_ms: MS, value: Some(b"old"), ..Rec::default() };
    archive.cut("orders-dlq", 0, 0, 10, batch(&(0..10).map(record).collect::<Vec<_>>()), vec![]).await;
    let broker = MockBroker::start().unwrap();
    broker.create_topic("orders", 1).unwrap();
    let values = archive.path("values/orders-dlq/0");
    fs::create_dir_all(&values).unwrap();
    fs::write(values.join("3"), "new").unwrap();
    let dir = archive.path("values").display().to_string();
    archive.run(&["discard", "--record-id", "orders-dlq/0/9", "--reason", "INC-1"]).ok();
    let restore = |args: &[&str]| {
        let brokers = broker.brokers();
        let all = [&["restore", "--brokers", &brokers, "--to", "orders", "-o", "json"], args].concat();
        archive.run(&all).json()["restore_id"].as_str().unwrap().to_owned()
    };
    let ids = [restore(&["--value-from-dir", &dir]), restore(&["--all"])];
    (archive, ids)
}

async fn verify_with(archive: &TestArchive, options: Options) -> Report {
    let report = verify::run(options, archive.store.clone(), Arc::new(Counters::default())).await.unwrap();
    for d in &report.damage {
        assert!(!d.expected.is_empty() && !d.found.is_empty() && d.next.len() > 20, "{d:?}");
    }
    report
}

async fn verify(archive: &TestArchive) -> Report {
    verify_with(archive, Options::default()).await
}

#[track_caller]
fn only(report: &Report, kind: What, at: &str) {
    let found: Vec<_> = report.damage.iter().map(|d| (d.kind, d.at.as_str())).collect();
    assert_eq!(found, [(kind, at)], "{:#?}", report.damage);
}

fn order(number: u64) -> String {
    format!("restores/order-{number:010}.json")
}

#[tokio::test(flavor = "multi_thread")]
async fn restores_that_are_whole_are_counted() {
    let (archive, _) = restored().await;
    for quick in [false, true] {
        let report = verify_with(&archive, Options { quick, ..Options::default() }).await;
        assert!(report.damage.is_empty() && report.notes.is_empty(), "{report:#?}");
        assert_eq!((report.totals.restores, report.totals.restored), (2, 9));
        assert_eq!((report.restores.number, report.dispositions.number), (4, 1));
    }
    let told = archive.run(&["verify"]);
    assert!(told.ok().contains(", 2 restores (9 records)"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_object_that_was_changed_or_removed_is_damage() {
    let (archive, [one, two]) = restored().await;
    let of = |id: &str, name: &str| format!("restores/{id}/{name}");
    let (changed, missing) = (What::RestoreDamaged, What::RestoreMissing);
    for key in [
        of(&one, "plan.json"),
        of(&two, "done.json"),
        of(&one, "values.jsonl"),
        of(&two, "records-00000.parquet"),
        of(&two, "skipped-00000.jsonl"),
    ] {
        let genuine = fs::read(archive.path(&key)).unwrap();
        fs::write(archive.path(&key), [&genuine[..], b" "].concat()).unwrap();
        only(&verify(&archive).await, changed, &key);
        fs::remove_file(archive.path(&key)).unwrap();
        let report = verify(&archive).await;
        only(&report, missing, &key);
        let quick = verify_with(&archive, Options { quick: true, ..Options::default() }).await;
        only(&quick, missing, &key);
        fs::write(archive.path(&key), genuine).unwrap();
    }
    assert!(verify(&archive).await.damage.is_empty());
    fs::write(archive.path(&of(&two, "run-1.json")), "{").unwrap();
    only(&verify(&archive).await, changed, &of(&two, "run-"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_with_a_hole_or_a_document_that_was_changed_is_damage() {
    let (archive, [one, _]) = restored().await;
    let genuine = fs::read(archive.path(&order(2))).unwrap();
    fs::remove_file(archive.path(&order(2))).unwrap();
    let report = verify(&archive).await;
    only(&report, What::RestoreMissing, &order(2));
    assert!(report.notes.iter().any(|n| n.at.contains(&one) && n.note.contains("has ended")), "{:?}", report.notes);
    fs::write(archive.path(&order(2)), [&genuine[..], b"\n"].concat()).unwrap();
    only(&verify(&archive).await, What::RestoreDamaged, &order(2));
    // Another restore's end, written as the program writes it.
    let other = String::from_utf8(genuine.clone()).unwrap().replace("\"open_from\":2", "\"open_from\":1");
    let other = if other.as_bytes() == genuine { other.replace("\"open_from\":1", "\"open_from\":2") } else { other };
    assert_ne!(other.as_bytes(), genuine);
    fs::write(archive.path(&order(2)), other).unwrap();
    only(&verify(&archive).await, What::ChainBroken, &order(3));
    fs::write(archive.path(&order(2)), String::from_utf8(genuine).unwrap().replace("\"version\":1", "\"version\":2"))
        .unwrap();
    only(&verify(&archive).await, What::UnknownVersion, &order(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_restore_leaves_out_is_noted_and_no_damage() {
    let (archive, [_, two]) = restored().await;
    fs::remove_file(archive.path(&order(4))).unwrap();
    let report = verify(&archive).await;
    assert!(report.damage.is_empty(), "{:#?}", report.damage);
    assert!(
        report.notes[0].note.contains("it has ended, and the order of restores does not say so yet"),
        "{report:#?}"
    );

    for name in ["done.json", "records-00000.parquet", "skipped-00000.jsonl"] {
        fs::remove_file(archive.path(&format!("restores/{two}/{name}"))).unwrap();
    }
    let report = verify(&archive).await;
    assert!(report.damage.is_empty(), "{:#?}", report.damage);
    assert!(report.notes[0].note.contains(&format!("`dlq-archiver restore status {two}`")), "{report:#?}");

    // It was begun: its runs say so.
    fs::remove_file(archive.path(&order(3))).unwrap();
    only(&verify(&archive).await, What::RestoreMissing, &order(3));
    fs::remove_file(archive.path(&format!("restores/{two}/run-1.json"))).unwrap();
    let report = verify(&archive).await;
    assert!(report.damage.is_empty(), "{:#?}", report.damage);
    assert!(report.notes[0].note.contains("a plan that never had its turn"), "{report:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_of_both_chains_that_were_removed_or_changed_are_found_by_a_receipt() {
    let (archive, [_, two]) = restored().await;
    let receipt = verify(&archive).await.receipt("2026-12-02T00:00:00.000000Z".into()).unwrap();
    let expecting = |receipt: &Receipt| Options { expect: Some(receipt.clone()), ..Options::default() };
    assert!(verify_with(&archive, expecting(&receipt)).await.damage.is_empty());
    let older = Receipt { restores: None, dispositions: None, ..receipt.clone() };
    let text = serde_json::to_string(&older).unwrap();
    assert!(!text.contains("restores") && !text.contains("dispositions"), "as before they were kept: {text}");
    let older = Receipt::parse("older", text.as_bytes()).unwrap();

    fs::remove_file(archive.path(&order(4))).unwrap();
    only(&verify_with(&archive, expecting(&receipt)).await, What::ReceiptCutOff, &order(4));
    assert!(verify_with(&archive, expecting(&older)).await.damage.is_empty());
    fs::remove_file(archive.path(&order(3))).unwrap();
    fs::remove_dir_all(archive.path(&format!("restores/{two}"))).unwrap();
    let report = verify_with(&archive, expecting(&receipt)).await;
    only(&report, What::ReceiptCutOff, &order(4));
    assert_eq!(report.damage[0].found, "nothing: the newest one is 2");
    assert!(verify_with(&archive, expecting(&older)).await.damage.is_empty(), "nothing else knows of it");

    let receipt = verify(&archive).await.receipt("2026-12-02T00:00:00.000000Z".into()).unwrap();
    let (key, parquet) = (layout::disposition_key(1), archive.path(&layout::ranges_key(1)));
    let genuine = fs::read_to_string(archive.path(&key)).unwrap();
    fs::write(archive.path(&key), genuine.replace("INC-1", "INC-2")).unwrap();
    fs::remove_file(&parquet).unwrap();
    only(&verify_with(&archive, expecting(&receipt)).await, What::ReceiptChanged, &key);
    assert!(verify_with(&archive, expecting(&older)).await.damage.is_empty());
    fs::remove_file(archive.path(&key)).unwrap();
    only(&verify_with(&archive, expecting(&receipt)).await, What::ReceiptCutOff, &key);
    assert!(verify_with(&archive, expecting(&older)).await.damage.is_empty());
    // A receipt of an archive that had neither.
    let none = Receipt { restores: Some(Default::default()), dispositions: Some(Default::default()), ..receipt };
    assert!(verify_with(&archive, expecting(&none)).await.damage.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_for_sql_engines_that_say_something_else_are_damage() {
    let (archive, _) = restored().await;
    let (key, document) = (layout::ranges_key(1), layout::disposition_key(1));
    let genuine = fs::read(archive.path(&key)).unwrap();
    let mut rows = Vec::new();
    ranges::read(genuine.clone().into(), |said, range| rows.push((said.clone(), range))).unwrap();
    let (said, range) = rows.remove(0);
    let more = ranges::Range { from: 0, to: 1, ..range.clone() };
    let other = ranges::Said { reason: "another".into(), ..said.clone() };
    for bytes in [
        ranges::encode(&said, []).unwrap(),
        ranges::encode(&said, [range.clone(), more.clone()]).unwrap(),
        ranges::encode(&said, [more]).unwrap(),
        ranges::encode(&other, [range]).unwrap(),
        b"PAR1".to_vec(),
    ] {
        fs::write(archive.path(&key), bytes).unwrap();
        only(&verify(&archive).await, What::DispositionRanges, &key);
    }
    fs::remove_file(archive.path(&key)).unwrap();
    let report = verify(&archive).await;
    assert!(report.damage.is_empty(), "{:#?}", report.damage);
    assert_eq!(report.notes[0].at, key, "{report:#?}");
    fs::write(archive.path(&key), genuine).unwrap();
    fs::remove_file(archive.path(&document)).unwrap();
    only(&verify(&archive).await, What::DispositionMissing, &document);
}
