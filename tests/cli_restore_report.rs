//! `restore list`, `status` and `report`, and `discard list`: the real program on archives in a folder.

mod support;

use dlq_archiver::format::Format;
use dlq_archiver::format::ranges::{self, Range};
use dlq_archiver::format::restored;
use dlq_archiver::kafka::MockBroker;
use dlq_archiver::layout;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use support::{Rec, Run, TestArchive, batch};

const MS: i64 = 1_791_417_600_000;

/// Twenty orders in two cuts, and a broker that has their topic.
async fn orders() -> (TestArchive, MockBroker) {
    let mut archive = TestArchive::new(Format::Parquet).await;
    for from in [0, 10] {
        let record = |offset| Rec { offset, timestamp_ms: MS, value: Some(b"{\"id\": 1}"), ..Rec::default() };
        archive
            .cut("orders-dlq", 0, from, from + 10, batch(&(from..from + 10).map(record).collect::<Vec<_>>()), vec![])
            .await;
    }
    let broker = MockBroker::start().unwrap();
    broker.create_topic("orders", 1).unwrap();
    (archive, broker)
}

fn restore(archive: &TestArchive, broker: &MockBroker, args: &[&str]) -> Value {
    let brokers = broker.brokers();
    archive.run(&[&["restore", "--brokers", &brokers, "--to", "orders", "-o", "json"], args].concat()).json()
}

/// A subcommand; its own flags come behind it.
fn ask(archive: &TestArchive, args: &[&str]) -> Run {
    support::run(&[args, &["--archive", archive.url()]].concat())
}

fn path(archive: &TestArchive, id: &str, name: &str) -> PathBuf {
    archive.path(&format!("restores/{id}/{name}"))
}

/// As a restore that was killed behind its first batch leaves it.
fn unfinished(archive: &TestArchive, id: &str) {
    for name in ["done.json", "records-00000.parquet"] {
        fs::remove_file(path(archive, id, name)).unwrap();
    }
    fs::remove_file(archive.path("restores/order-0000000002.json")).unwrap();
    let sent = path(archive, id, "sent");
    let mut pieces: Vec<PathBuf> = fs::read_dir(sent).unwrap().map(|f| f.unwrap().path()).collect();
    pieces.sort();
    pieces.drain(1..).for_each(|piece| fs::remove_file(piece).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_without_restores_says_so() {
    let (archive, _broker) = orders().await;
    assert_eq!(ask(&archive, &["restore", "list"]).ok(), "nothing was restored from this archive\n");
    assert_eq!(ask(&archive, &["restore", "status"]).ok(), "no restore is unfinished\n");
    assert_eq!(ask(&archive, &["discard", "list"]).ok(), "nothing was discarded in this archive\n");
    for command in [["restore", "list"], ["restore", "status"], ["discard", "list"]] {
        assert_eq!(ask(&archive, &[&command[..], &["-o", "json"]].concat()).json(), serde_json::json!([]));
        assert_eq!(ask(&archive, &[&command[..], &["-o", "jsonl"]].concat()).ok(), "");
    }
    let told = ask(&archive, &["restore", "report", "0123456789ab-1"]);
    assert!(told.fails(2).contains("there is no restore 0123456789ab-1 in this archive. It has none yet"), "{told:?}");
    for id in ["../../x", "", "."] {
        ask(&archive, &["restore", "report", id]).fails(2);
        ask(&archive, &["restore", "status", id]).fails(2);
    }
    let nowhere = support::run(&["restore", "list", "--archive", "file:///nonexistent-dlq"]);
    assert_eq!(nowhere.code, 2, "{nowhere:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_is_told_with_who_when_why_what_and_where_to() {
    let (archive, broker) = orders().await;
    let (by, reason) = ("Ann <ann@example.org>", "INC-1: <b>fixed</b>\u{202e}");
    let first = restore(&archive, &broker, &["--offsets", "0..5", "--by", by, "--reason", reason]);
    let second = restore(&archive, &broker, &["--topic", "orders-dlq"]);
    let (one, two) = (first["restore_id"].as_str().unwrap(), second["restore_id"].as_str().unwrap());
    // Nothing but restores is read.
    fs::rename(archive.path("data"), archive.path("elsewhere")).unwrap();
    fs::rename(archive.path("ledger"), archive.path("elsewhere-too")).unwrap();

    let listed = ask(&archive, &["restore", "list", "-o", "jsonl"]).lines();
    assert_eq!(
        listed.iter().map(|r| r["restore_id"].as_str().unwrap()).collect::<Vec<_>>(),
        [two, one],
        "the newest first"
    );
    let row = &listed[1];
    assert_eq!((&row["by"], &row["reason"], &row["state"]), (&by.into(), &reason.into(), &"done".into()), "{row}");
    assert_eq!((&row["selected"], &row["restored"], &row["skipped"]), (&5.into(), &5.into(), &0.into()));
    assert_eq!(
        (&listed[0]["restored"], &listed[0]["skipped"], &listed[0]["by"]),
        (&15.into(), &5.into(), &Value::Null)
    );
    assert!(listed[0]["seen_by"].as_str().unwrap().contains('@'), "{row}");
    let table = ask(&archive, &["restore", "list"]);
    assert!(table.ok().lines().next().unwrap().starts_with("ID "), "{table:?}");
    assert!(table.ok().contains("INC-1: <b>fixed</b><U+202E>") && !table.ok().contains('\u{202e}'), "{table:?}");

    let status = ask(&archive, &["restore", "status", one]);
    assert!(status.ok().starts_with(&format!("restore {one}: done\n")), "{status:?}");

    let report = ask(&archive, &["restore", "report", one, "-o", "json", "--rows", "3"]).json();
    assert_eq!((&report["filter"]["offset_from"], &report["filter"]["offset_to"]), (&0.into(), &5.into()), "{report}");
    assert_eq!((&report["restored_by_target"]["orders"], &report["order"]["holds"]), (&5.into(), &true.into()));
    let entries = report["order"]["entries"].as_array().unwrap();
    let events: Vec<_> =
        entries.iter().map(|e| (e["number"].as_u64().unwrap(), e["event"].as_str().unwrap())).collect();
    assert_eq!(events, [(1, "begun"), (2, "ended")]);
    assert_eq!(entries[0]["of_sha256"], support::sha256(&fs::read(path(&archive, one, "plan.json")).unwrap()).as_str());
    assert_eq!((&entries[0]["of_sha256"], &entries[1]["of_sha256"]), (&report["plan_sha256"], &report["done_sha256"]));
    assert_eq!(entries[1]["previous_sha256"], entries[0]["sha256"]);
    assert_eq!(report["order"]["documents"], 4);
    let list = &report["lists"][0];
    assert_eq!(
        list["sha256"],
        support::sha256(&fs::read(archive.path(list["key"].as_str().unwrap())).unwrap()).as_str()
    );
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "{report}");
    assert_eq!((&rows[1]["record_id"], &rows[1]["target_topic"]), (&"orders-dlq/0/1".into(), &"orders".into()));
    assert_eq!(
        ask(&archive, &["restore", "report", one, "-o", "json", "--rows", "0"]).json()["rows"],
        serde_json::json!([])
    );

    let table = ask(&archive, &["restore", "report", two]);
    for words in [
        "dead-letter topic is orders-dlq",
        "15 of 15 restored records",
        "the order of all restores holds",
        "already restored",
    ] {
        assert!(table.ok().contains(words), "{words}: {table:?}");
    }

    let page = ask(&archive, &["restore", "report", one, "-o", "html"]);
    let page = page.ok();
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"), "{page}");
    assert!(
        page.contains("INC-1: &lt;b&gt;fixed&lt;/b&gt;&lt;U+202E&gt;") && page.contains("Ann &lt;ann@example.org&gt;"),
        "{page}"
    );
    for missing in ["<b>", "<script", "src=", "href=", "url(", "@import", "\u{202e}"] {
        assert!(!page.contains(missing), "{missing}: {page}");
    }
    for there in ["offset is 0 or above", "orders-dlq/0/4", "size:A4", report["plan_sha256"].as_str().unwrap()] {
        assert!(page.contains(there), "{there}: {page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_restore_is_told_with_how_far_it_is_and_what_to_do() {
    let (archive, broker) = orders().await;
    let done = restore(&archive, &broker, &["--all", "--batch", "5", "--reason", "INC-2"]);
    let id = done["restore_id"].as_str().unwrap();
    unfinished(&archive, id);
    let status = ask(&archive, &["restore", "status"]);
    assert_eq!(status.code, 1, "{status:?}");
    let resume = format!("--resume {id}");
    for words in [
        "unfinished: 5 of 20",
        "at least 5 of 20 selected records are done (25 %)",
        "run 1, begun at",
        "INC-2",
        &resume,
        "--take-over",
    ] {
        assert!(status.out.contains(words), "{words}: {status:?}");
    }
    assert!(!status.out.contains("stalled"), "it was heard of a moment ago: {status:?}");
    let told = ask(&archive, &["restore", "status", id, "-o", "jsonl"]);
    assert_eq!((told.code, told.out.lines().count()), (1, 1), "{told:?}");
    let told: Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!(
        (&told["done_at_least"], &told["stalled"], &told["restored"]),
        (&5.into(), &false.into(), &Value::Null),
        "{told}"
    );
    assert_eq!(told["last_batch_at"], told["last_heard_at"], "{told}");
    let report = ask(&archive, &["restore", "report", id]);
    assert!(report.ok().contains("the first 5 of what is listed so far"), "{report:?}");

    // Hours ago.
    let piece = fs::read_dir(path(&archive, id, "sent")).unwrap().next().unwrap().unwrap().path();
    let mut rows = Vec::new();
    restored::read(fs::read(&piece).unwrap().into(), |row| rows.push(row)).unwrap();
    rows.iter_mut().for_each(|row| row.restored_at_us -= 7_200_000_000);
    fs::write(&piece, restored::encode(&rows).unwrap()).unwrap();
    let name = path(&archive, id, "run-1.json");
    let mut run: Value = serde_json::from_slice(&fs::read(&name).unwrap()).unwrap();
    run["started_at"] = "2026-10-08T00:00:00.000000Z".into();
    fs::write(&name, run.to_string()).unwrap();
    let heard = ask(&archive, &["restore", "status"]);
    assert!(!heard.out.contains("stalled"), "its plan is new: {heard:?}");
    let name = path(&archive, id, "plan.json");
    let mut plan: Value = serde_json::from_slice(&fs::read(&name).unwrap()).unwrap();
    plan["created_at"] = "2026-10-08T00:00:00.000000Z".into();
    fs::write(&name, plan.to_string()).unwrap();
    let stalled = ask(&archive, &["restore", "status"]);
    assert!(stalled.out.contains(", looks stalled") && stalled.out.contains("(2 h ago)"), "{stalled:?}");
    assert!(stalled.out.contains(&format!("next: `dlq-archiver restore {resume}`")), "{stalled:?}");

    // A plan whose command was killed before it began a run.
    fs::remove_file(path(&archive, id, "run-1.json")).unwrap();
    fs::remove_file(&piece).unwrap();
    let planned = ask(&archive, &["restore", "status"]);
    assert!(planned.code == 1 && planned.out.contains("no run has begun: nothing was sent"), "{planned:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_tells_what_does_not_fit_its_hash() {
    let (archive, broker) = orders().await;
    let done = restore(&archive, &broker, &["--all"]);
    let id = done["restore_id"].as_str().unwrap();
    let changed = |file: PathBuf, from: &str, to: &str, says: &str| {
        let genuine = fs::read(&file).unwrap();
        let text = String::from_utf8_lossy(&genuine).replace(from, to);
        assert_ne!(text.as_bytes(), genuine, "{says}");
        fs::write(&file, text).unwrap();
        for output in ["table", "html", "json"] {
            let told = ask(&archive, &["restore", "report", id, "-o", output]);
            assert!(told.code == 4 && told.out.contains(says), "{says}: {told:?}");
        }
        fs::write(&file, genuine).unwrap();
    };
    changed(path(&archive, id, "plan.json"), "transactions", "transaction", "plan.json is another one");
    changed(path(&archive, id, "done.json"), "\"runs\":1", "\"runs\":2", "done.json is another one");
    changed(path(&archive, id, "records-00000.parquet"), "PAR1", "PAR2", "records-00000.parquet is another one");
    changed(
        archive.path("restores/order-0000000001.json"),
        ":1",
        ": 1",
        "order-0000000002.json or the one before it was changed",
    );
    fs::remove_file(archive.path("restores/order-0000000001.json")).unwrap();
    let told = ask(&archive, &["restore", "report", id]);
    assert!(told.code == 4 && told.out.contains("order-0000000001.json is missing"), "{told:?}");
    fs::remove_file(archive.path("restores/order-0000000002.json")).unwrap();
    let told = ask(&archive, &["restore", "report", id]);
    assert!(told.code == 4 && told.out.contains("the order of restores does not have it"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn corrected_values_are_told_with_both_hashes() {
    let (archive, broker) = orders().await;
    let values = archive.path("values/orders-dlq/0");
    fs::create_dir_all(&values).unwrap();
    fs::write(values.join("3"), "{\"id\": 3}").unwrap();
    let dir = archive.path("values");
    let done = restore(&archive, &broker, &["--value-from-dir", dir.to_str().unwrap()]);
    let id = done["restore_id"].as_str().unwrap();
    let report = ask(&archive, &["restore", "report", id, "-o", "json", "--rows", "0"]).json();
    assert_eq!(report["corrected"]["records"], 1, "{report}");
    let first = &report["corrected"]["first"][0];
    assert_eq!(first["record_id"], "orders-dlq/0/3");
    assert_eq!(first["archived_value_sha256"], support::sha256(b"{\"id\": 1}").as_str());
    assert_eq!(first["restored_value_sha256"], support::sha256(b"{\"id\": 3}").as_str());
    let page = ask(&archive, &["restore", "report", id, "-o", "html"]);
    assert!(page.ok().contains(&support::sha256(b"{\"id\": 3}")), "{page:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn subcommands_take_variables_and_no_flag_of_a_restore() {
    let (archive, _broker) = orders().await;
    let mut command = support::program();
    let of_variable: Run =
        command.env("DLQ_ARCHIVER_ARCHIVE", archive.url()).args(["restore", "list"]).output().unwrap().into();
    assert_eq!(of_variable.ok(), "nothing was restored from this archive\n");
    for args in [["restore", "--all", "list"], ["discard", "--all", "list"]] {
        let mixed = support::run(&args);
        assert_eq!(mixed.code, 2, "{mixed:?}");
    }
    for (command, words) in [("restore", ["list", "status", "report"]), ("discard", ["list", "--undo", "--reason"])] {
        let help = support::run(&[command, "--help"]);
        assert!(words.iter().all(|word| help.ok().contains(word)), "{help:?}");
    }
    let help = support::run(&["restore", "status", "--help"]);
    assert!(help.ok().contains("Exit codes: 0 none of those told is unfinished; 1 some is"), "{help:?}");
}

fn discard(archive: &TestArchive, args: &[&str]) -> Value {
    archive.run(&[&["discard", "-o", "json", "--reason", "INC-3"], args].concat()).json()
}

/// Each as number, action, from, to.
fn rows(archive: &TestArchive, number: u32) -> Vec<(u32, String, i64, i64)> {
    let (mut rows, bytes) = (Vec::new(), fs::read(archive.path(&layout::ranges_key(number))).unwrap());
    ranges::read(bytes.into(), |said, range: Range| {
        assert_eq!((&range.topic[..], range.generation, range.partition), ("orders-dlq", 1, 0));
        assert_eq!(said.reason, "INC-3");
        rows.push((said.number, said.action.clone(), range.from, range.to));
    })
    .unwrap();
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn discards_are_listed_and_lie_there_as_ranges() {
    let (archive, _broker) = orders().await;
    discard(&archive, &["--offsets", "2..8", "--by", "Ann"]);
    discard(&archive, &["--undo", "--record-id", "orders-dlq/0/4", "--record-id", "orders-dlq/0/6"]);
    let listed = ask(&archive, &["discard", "list", "-o", "json"]).json();
    let told: Vec<_> = listed.as_array().unwrap().iter().map(|d| (&d["number"], &d["action"], &d["records"])).collect();
    assert_eq!(told, [(&2.into(), &"undo".into(), &2.into()), (&1.into(), &"discard".into(), &6.into())], "{listed}");
    assert_eq!((&listed[1]["by"], &listed[1]["object"]), (&"Ann".into(), &layout::disposition_key(1).into()));
    assert_eq!(
        listed[1]["sha256"],
        support::sha256(&fs::read(archive.path(&layout::disposition_key(1))).unwrap()).as_str()
    );
    let table = ask(&archive, &["discard", "list"]);
    assert!(table.ok().contains("undo") && table.ok().contains("INC-3") && table.ok().contains("Ann"), "{table:?}");

    let undo = |from| (2, "undo".to_owned(), from, from + 1);
    assert_eq!(rows(&archive, 1), [(1, "discard".to_owned(), 2, 8)]);
    assert_eq!(rows(&archive, 2), [undo(4), undo(6)]);
}

/// Killed between the document and its Parquet.
#[tokio::test(flavor = "multi_thread")]
async fn ranges_that_a_killed_discard_left_out_are_written_by_the_next() {
    let (archive, _broker) = orders().await;
    discard(&archive, &["--offsets", "2..8"]);
    let (document, before) = (archive.path(&layout::disposition_key(1)), rows(&archive, 1));
    let bytes = fs::read(&document).unwrap();
    fs::remove_file(archive.path(&layout::ranges_key(1))).unwrap();
    let none = archive.run(&["discard", "--offsets", "2..8", "--reason", "x", "--dry-run"]);
    assert!(none.ok().contains("0 of 6"), "{none:?}");
    assert!(!archive.path(&layout::ranges_key(1)).exists(), "a dry run writes nothing");
    assert_eq!(discard(&archive, &["--offsets", "2..8"])["records"], 0);
    assert_eq!(rows(&archive, 1), before);
    assert_eq!(fs::read(&document).unwrap(), bytes);
    assert!(!archive.path(&layout::ranges_key(2)).exists());
}

/// Its Parquet tells that there was one: a shorter answer would have restored what was discarded.
#[tokio::test(flavor = "multi_thread")]
async fn the_newest_discard_that_was_removed_without_its_ranges_is_an_error() {
    let (archive, _broker) = orders().await;
    discard(&archive, &["--offsets", "2..8"]);
    fs::remove_file(archive.path(&layout::disposition_key(1))).unwrap();
    let told = ask(&archive, &["discard", "list"]);
    assert!(told.err.contains("dispositions/0000000001.json is missing"), "{told:?}");
    assert_eq!(told.code, 1, "{told:?}");
}
