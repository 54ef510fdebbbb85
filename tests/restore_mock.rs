//! Restores into the embedded broker, by the real program: with transactions, and where the broker has none.

mod support;

use dlq_archiver::format::Format;
use dlq_archiver::kafka::{Connection, MockBroker, RangeReader};
use dlq_archiver::record::{RawBatch, TopicPartition};
use std::ops::ControlFlow;
use std::process::Stdio;
use std::time::{Duration, Instant};
use support::{Rec, Run, TestArchive, batch};

fn restore(archive: &TestArchive, broker: &MockBroker, args: &[&str]) -> Run {
    let brokers = broker.brokers();
    let mut all = vec!["restore", "--brokers", &brokers];
    all.extend_from_slice(args);
    archive.run(&all)
}

fn read(broker: &MockBroker, topic: &str, records: i64) -> RawBatch {
    let mut batch = RawBatch::new();
    let reader = RangeReader::new(&Connection::new(&broker.brokers())).unwrap();
    reader
        .read(&TopicPartition::new(topic, 0), 0, records, Duration::from_secs(20), |m| {
            m.copy_into(&mut batch)?;
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    batch
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_event_goes_back_to_its_topic() {
    let archive = TestArchive::of_fixtures(Format::Parquet).await;
    let broker = MockBroker::start().unwrap();
    broker.create_topic("default", 1).unwrap();
    let done = restore(&archive, &broker, &["--record-id", "default-dlt/7/0", "-o", "json"]).json();
    assert_eq!((&done["restored"], &done["delivery"]), (&1.into(), &"transactional".into()), "{done}");
    let batch = read(&broker, "default", 1);
    let raw = batch.get(0);
    let names: Vec<_> = raw.headers.iter().map(|h| String::from_utf8_lossy(h.name).into_owned()).collect();
    assert_eq!(
        (names.len(), &names[13..]),
        (15, &["dlq-archiver-restore-id", "dlq-archiver-restore-count"].map(str::to_owned)[..])
    );
    assert!(raw.headers.iter().all(|h| !h.name.starts_with(b"ce_knativeerror")));
    let fixtures = support::fixtures();
    let source = fixtures[&("default-dlt".to_owned(), 7)].get(0);
    assert_eq!((raw.key, raw.value, raw.timestamp_ms), (source.key, source.value, source.timestamp_ms));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_transactions_it_says_so_and_delivers_plainly() {
    let archive = TestArchive::of_fixtures(Format::Parquet).await;
    let broker = MockBroker::start().unwrap();
    broker.without_transactions().unwrap();
    broker.create_topic("default", 1).unwrap();
    let args = ["--topic", "default-dlt", "--partition", "7", "--to", "default"];
    let refused = restore(&archive, &broker, &[&args[..], &["--delivery", "transactional"]].concat());
    assert!(refused.code == 2 && refused.err.contains("--delivery plain"), "{refused:?}");
    assert!(refused.err.contains("2 records are repeats of 1 failure "), "{refused:?}");
    let run = restore(&archive, &broker, &args);
    assert!(run.ok().contains("at least once"), "{run:?}");
    assert!(run.ok().contains("the brokers have no transactions"), "{run:?}");
    assert!(run.err.contains("not known how long Kafka keeps records in default:"), "{run:?}");
    let fixtures = support::fixtures();
    let source = &fixtures[&("default-dlt".to_owned(), 7)];
    let batch = read(&broker, "default", source.len() as i64);
    for (raw, source) in batch.iter().zip(source.iter()) {
        assert_eq!((raw.key, raw.value, raw.timestamp_ms), (source.key, source.value, source.timestamp_ms));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_discarded_is_skipped_listed_and_sent_when_that_is_asked_for_or_taken_back() {
    let archive = TestArchive::of_fixtures(Format::Parquet).await;
    let broker = MockBroker::start().unwrap();
    broker.create_topic("default", 1).unwrap();
    let select = ["--topic", "default-dlt", "--partition", "7", "--to", "default", "-o", "json"];
    let restore = |more: &[&str]| restore(&archive, &broker, &[&select[..], more].concat());
    let of = |more: &[&str]| {
        archive
            .run(&[&["discard", "--record-id", "default-dlt/7/0", "--reason", "INC-1"], more].concat())
            .ok()
            .to_owned()
    };
    of(&[]);
    let dry = restore(&["--dry-run"]).json();
    let skipped = &dry["skipped"][0];
    assert_eq!(
        (&skipped["reason"], &skipped["record_ids"][0]),
        (&"discarded".into(), &"default-dlt/7/0".into()),
        "{dry}"
    );
    assert!(skipped["remedy"].as_str().unwrap().contains("--undo"), "{dry}");
    let all = dry["selected"].as_u64().unwrap();
    let done = restore(&[]).json();
    assert_eq!((&done["restored"], &done["skipped_by_reason"]["discarded"]), (&(all - 1).into(), &1.into()), "{done}");
    let listed = std::fs::read_to_string(archive.path(done["skipped_lists"][0]["key"].as_str().unwrap())).unwrap();
    assert!(listed.contains("default-dlt/7/0") && listed.contains("discarded"), "{listed}");

    let sent = restore(&["--include-discarded"]).json();
    assert_eq!(
        (&sent["restored"], &sent["skipped_by_reason"]["already_restored"]),
        (&1.into(), &(all - 1).into()),
        "{sent}"
    );
    assert_eq!(archive.run(&["show", "default-dlt/7/0", "-o", "json"]).json()["disposition"], "restored", "the newest");

    of(&["--undo"]);
    assert_eq!(restore(&["--include-restored", "--dry-run"]).json()["to_restore"], all);
    let by =
        |by: &str| archive.run(&["list", "--topic", "default-dlt", "--disposition", by, "-o", "jsonl"]).lines().len();
    assert_eq!(by("restored") as u64, all);
    of(&[]);
    assert_eq!((by("restored") as u64, by("discarded")), (all - 1, 1), "what was restored can be discarded");
}

/// A plan from before the discard, and a run from behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_is_resumed_skips_what_was_discarded_since_its_plan() {
    let mut archive = TestArchive::new(Format::Parquet).await;
    let many: Vec<Rec> = (0..2000).map(|offset| Rec { offset, timestamp_ms: 1, ..Rec::default() }).collect();
    archive.cut("many-dlt", 0, 0, 2000, batch(&many), Vec::new()).await;
    let broker = MockBroker::start().unwrap();
    broker.create_topic("default", 1).unwrap();
    let brokers = broker.brokers();
    // The embedded broker keeps no progress of a transaction.
    let args = ["--topic", "many-dlt", "--to", "default", "--yes", "--delivery", "plain", "-o", "json"];
    let mut command = support::program();
    command.args(["restore", "--archive", archive.url(), "--brokers", &brokers, "--batch", "1"]).args(args);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let folder = || {
        let folders = std::fs::read_dir(archive.path("restores")).into_iter().flatten().flatten();
        folders.map(|f| f.path()).find(|f| f.join("sent").exists())
    };
    let until = Instant::now() + Duration::from_secs(60);
    while folder().is_none() {
        assert!(Instant::now() < until, "nothing was sent");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let id = folder().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    let told = archive.run(&["discard", "--record-id", "many-dlt/0/1999", "--reason", "INC-1", "-o", "json"]).json();
    assert_eq!(told["unfinished_restores"][0]["restore_id"], id.as_str(), "{told}");
    let done = restore(&archive, &broker, &args).json();
    assert_eq!((&done["restore_id"], &done["restored"]), (&id.into(), &1999.into()), "{done}");
    assert_eq!(done["skipped_by_reason"]["discarded"], 1, "{done}");
    assert_eq!(done["skipped_such_as"][0]["record_id"], "many-dlt/0/1999", "{done}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_gone_for_too_long_ends_it_with_what_to_do() {
    let archive = TestArchive::of_fixtures(Format::Parquet).await;
    for delivery in ["transactional", "plain"] {
        let broker = MockBroker::start().unwrap();
        broker.create_topic("default", 1).unwrap();
        let brokers = broker.brokers();
        let mut command = support::program();
        let args = ["--brokers", &brokers, "--all", "--to", "default", "--batch", "1", "--delivery", delivery];
        // Not the 50 seconds that it waits by itself.
        command.args(["restore", "--archive", archive.url(), "-X", "message.timeout.ms=3000"]).args(args);
        let mut child =
            command.args(["--include-restored"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pieces = || {
            let folders = std::fs::read_dir(archive.path("restores")).into_iter().flatten();
            let sent = folders.filter_map(|f| std::fs::read_dir(f.ok()?.path().join("sent")).ok());
            sent.map(Iterator::count).sum::<usize>()
        };
        let (before, until) = (pieces(), Instant::now() + Duration::from_secs(60));
        while pieces() < before + 2 && child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "no progress");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(broker);
        let run: Run = child.wait_with_output().unwrap().into();
        assert_eq!(run.code, 1, "{delivery}: {run:?}");
        assert!(run.err.contains("records are done and listed") && run.err.contains("--resume"), "{delivery}: {run:?}");
        assert!(!run.err.contains("panicked"), "{run:?}");
        std::fs::remove_dir_all(archive.path("restores")).unwrap();
    }
}

/// 2026-10-08.
const MS: i64 = 1_791_417_600_000;

/// `n` orders in cuts of ten, by id in the value.
async fn orders(n: i64) -> TestArchive {
    let mut archive = TestArchive::new(Format::Parquet).await;
    for from in (0..n).step_by(10) {
        let values: Vec<_> = (from..from + 10).map(|id| format!("{{\"id\": {id}}}")).collect();
        let records: Vec<_> = (from..)
            .zip(&values)
            .map(|(offset, value)| Rec {
                offset,
                timestamp_ms: MS + offset,
                value: Some(value.as_bytes()),
                ..Rec::default()
            })
            .collect();
        archive.cut("orders-dlq", 0, from, from + 10, batch(&records), Vec::new()).await;
    }
    archive
}

fn values(broker: &MockBroker, topic: &str, records: i64) -> Vec<String> {
    read(broker, topic, records).iter().map(|r| String::from_utf8(r.value.unwrap().to_vec()).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_condition_and_a_limit_select_what_is_sent() {
    let archive = orders(40).await;
    let broker = MockBroker::start().unwrap();
    broker.create_topic("orders", 1).unwrap();
    let args =
        ["--to", "orders", "--where", "value_json.id >= 5 AND value_json.id <> 7", "--limit", "12", "-o", "json"];
    let dry = restore(&archive, &broker, &[&args[..], &["--dry-run"]].concat()).json();
    assert_eq!((&dry["selected"], &dry["not_judged"]), (&12.into(), &serde_json::Value::Null), "{dry}");
    let done = restore(&archive, &broker, &args).json();
    assert_eq!(done["restored"], 12, "{done}");
    let want: Vec<_> = (5..18).filter(|id| *id != 7).map(|id| format!("{{\"id\": {id}}}")).collect();
    assert_eq!(values(&broker, "orders", 12), want);
    // The same records again, which are restored: not the next twelve.
    let again = restore(&archive, &broker, &args).json();
    assert_eq!((&again["selected"], &again["to_restore"]), (&12.into(), &0.into()), "{again}");
    let wrong = restore(&archive, &broker, &["--where", "value_json.id >"]);
    assert!(wrong.code == 2 && wrong.err.contains("--where: Expected: an expression"), "{wrong:?}");
    let unjudged = restore(&archive, &broker, &["--to", "orders", "--where", "value_json.id = '5'", "--dry-run"]);
    assert!(
        unjudged.out.contains("40 records could not be judged by --where") || unjudged.err.contains("40 records"),
        "{unjudged:?}"
    );
    let none = restore(&archive, &broker, &["--to", "orders", "--limit", "5"]);
    assert!(none.fails(2).contains("nothing selects records"), "a limit is no filter: {none:?}");
}

/// Killed in the middle; meanwhile more is archived, which another sample would be drawn from.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_goes_on_has_the_sample_of_its_plan() {
    let mut archive = orders(200).await;
    let sampled = archive.run(&["list", "-o", "jsonl", "--sample", "30", "--limit", "25"]).lines();
    let want: Vec<_> = sampled.iter().map(|r| format!("{{\"id\": {}}}", r["kafka_offset"])).collect();
    assert_eq!(want.len(), 25);
    let broker = MockBroker::start().unwrap();
    broker.create_topic("orders", 1).unwrap();
    let brokers = broker.brokers();
    // The embedded broker keeps no progress of a transaction.
    let args = ["--to", "orders", "--all", "--sample", "30", "--limit", "25", "--delivery", "plain", "--batch", "1"];
    let mut command = support::program();
    command
        .args(["restore", "--archive", archive.url(), "--brokers", &brokers])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let pieces = || {
        let folders = std::fs::read_dir(archive.path("restores")).into_iter().flatten();
        let sent = folders.filter_map(|f| std::fs::read_dir(f.ok()?.path().join("sent")).ok());
        sent.map(Iterator::count).sum::<usize>()
    };
    let until = Instant::now() + Duration::from_secs(60);
    while pieces() < 3 && child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "no progress");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let records: Vec<_> = (200..400).map(|offset| Rec { offset, timestamp_ms: MS, ..Rec::default() }).collect();
    archive.cut("orders-dlq", 0, 200, 400, batch(&records), Vec::new()).await;
    let more = archive.run(&["list", "-o", "jsonl", "--sample", "30", "--limit", "25"]).lines();
    assert!(more.iter().map(|r| &r["record_id"]).ne(sampled.iter().map(|r| &r["record_id"])));
    let done = restore(&archive, &broker, &[&args[..9], &["-o", "json"]].concat()).json();
    assert_eq!(done["selected"], 25, "{done}");
    // The batch in which it was killed may have come twice.
    let mut got = values(&broker, "orders", 25);
    got.dedup();
    assert!(got.len() >= 23 && want.starts_with(&got), "{got:?}");
}
