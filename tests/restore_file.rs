//! `restore --to-file`, by the real program: what it writes is what a restore sends, to the byte; what it cannot write
//! without loss, and what it skips, is told. Where kcat is installed, it is asked what it would have written.

mod common;
mod support;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dlq_archiver::format::Format;
use dlq_archiver::kafka::{Admin, Connection, MockBroker, NewRecord, Producer, RangeReader};
use dlq_archiver::record::{RawBatch, RawRecord, TopicPartition};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::{Rec, Run, TestArchive, batch};

const PATIENCE: Duration = Duration::from_secs(20);
/// 2026-10-08.
const MS: i64 = 1_791_417_600_000;

type Bytes = Option<Vec<u8>>;
/// Timestamp, key, value, headers.
type Facts = (i64, Bytes, Bytes, Vec<(Vec<u8>, Bytes)>);

fn facts(r: &RawRecord<'_>) -> Facts {
    let headers = r.headers.iter().map(|h| (h.name.to_vec(), h.value.map(<[u8]>::to_vec))).collect();
    (r.timestamp_ms, r.key.map(<[u8]>::to_vec), r.value.map(<[u8]>::to_vec), headers)
}

/// A value that is either text or base64.
fn bytes(line: &Value, name: &str) -> Bytes {
    let (text, bytes) = (&line[format!("{name}_text")], &line[format!("{name}_bytes")]);
    assert!(text.is_null() || bytes.is_null(), "{line}");
    let text = text.as_str().map(|text| text.as_bytes().to_vec());
    text.or_else(|| bytes.as_str().map(|bytes| STANDARD.decode(bytes).unwrap()))
}

/// A line, decoded by what the README says of it.
fn decoded(line: &Value) -> Facts {
    let headers = line["kafka_headers"].as_array().unwrap().iter().map(|h| {
        let name = h["name_bytes"].as_str().map(|bytes| STANDARD.decode(bytes).unwrap());
        (name.unwrap_or_else(|| h["name"].as_str().unwrap().as_bytes().to_vec()), bytes(h, "value"))
    });
    let ms = line["kafka_timestamp_ms"].as_i64().unwrap();
    (ms, bytes(line, "kafka_key"), bytes(line, "kafka_value"), headers.collect())
}

fn lines(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// The standard output and error of a run that may write what is no text.
fn raw(archive: &TestArchive, args: &[&str]) -> (i32, Vec<u8>, String) {
    let output = support::program().args(["restore", "--archive", archive.url()]).args(args).output().unwrap();
    (output.status.code().unwrap(), output.stdout, String::from_utf8(output.stderr).unwrap())
}

fn export(archive: &TestArchive, args: &[&str]) -> Run {
    archive.run(&[&["restore"], args].concat())
}

/// All of a topic, with their partitions.
fn read(broker: &MockBroker, topic: &str, partitions: i32) -> Vec<(i32, Facts)> {
    let connection = Connection::new(&broker.brokers());
    let (admin, reader) = (Admin::new(&connection).unwrap(), RangeReader::new(&connection).unwrap());
    let mut all = Vec::new();
    for partition in 0..partitions {
        let tp = TopicPartition::new(topic, partition);
        let (low, high) = admin.watermarks(&tp, PATIENCE).unwrap();
        let mut batch = RawBatch::new();
        if low < high {
            let copy =
                |m: &dlq_archiver::kafka::Message<'_>| m.copy_into(&mut batch).map(|()| ControlFlow::Continue(()));
            reader.read(&tp, low, high, PATIENCE, copy).unwrap();
        }
        all.extend(batch.iter().map(|r| (partition, facts(&r))));
    }
    all
}

/// An archive of the records of one file of fixtures.
async fn of_fixture(name: &str) -> TestArchive {
    let mut logs: BTreeMap<(String, i32), BTreeMap<i64, common::Fixture>> = BTreeMap::new();
    for fixture in common::fixtures(name) {
        let log = logs.entry((fixture.topic.clone(), fixture.partition)).or_default();
        log.insert(fixture.batch.get(0).offset, fixture);
    }
    let mut archive = TestArchive::new(Format::Parquet).await;
    for ((topic, partition), records) in logs {
        let mut all = RawBatch::new();
        records.values().for_each(|fixture| all.push_record(&fixture.batch.get(0)));
        archive.cut(&topic, partition, 0, all.last().unwrap().offset + 1, all, Vec::new()).await;
    }
    archive
}

/// Restores all that a line was written for, and finds each line's record in the topic that it names.
fn same_as_restored(archive: &TestArchive, broker: &MockBroker, exported: &[Value], name: &str) {
    let mut topics: BTreeMap<String, i32> = BTreeMap::new();
    for line in exported {
        let partitions = topics.entry(line["target_topic"].as_str().unwrap().to_owned()).or_insert(1);
        *partitions = line["target_partition"].as_i64().map_or(0, |p| p as i32 + 1).max(*partitions);
    }
    for (topic, partitions) in &topics {
        broker.create_topic(topic, *partitions).unwrap();
    }
    let brokers = broker.brokers();
    let args = ["--all", "--allow-dead-letter-target", "--brokers", &brokers, "-o", "json"];
    let restored = export(archive, &[&args[..], &["--no-restore-headers"]].concat());
    assert!(restored.code < 2, "{name}: {restored:?}");
    let mut left: Vec<(String, i32, Facts)> = Vec::new();
    for (topic, partitions) in &topics {
        left.extend(read(broker, topic, *partitions).into_iter().map(|(p, facts)| (topic.clone(), p, facts)));
    }
    for line in exported {
        let (facts, partition) = (decoded(line), line["target_partition"].as_i64());
        let at = left.iter().position(|(topic, p, there)| {
            *topic == line["target_topic"]
                && partition.is_none_or(|partition| partition == i64::from(*p))
                && *there == facts
        });
        left.remove(at.unwrap_or_else(|| panic!("{name}: not restored like this: {line}")));
    }
    assert!(left.is_empty(), "{name}: restored and not exported: {left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_fixture_is_exported_as_it_is_restored() {
    let mut names: Vec<_> = std::fs::read_dir(common::folder().join("fixtures")).unwrap().collect();
    names.sort_by_key(|entry| entry.as_ref().unwrap().path());
    let mut all = 0;
    for entry in names {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let archive = of_fixture(name).await;
        // By the rule that no broker is needed for: what comes back as a dead letter goes, too.
        let exported = export(&archive, &["--all", "--allow-dead-letter-target", "--to-file", "-"]);
        assert!(exported.code < 2, "{name}: {exported:?}");
        assert!(!archive.path("restores").exists(), "{name}: nothing was put back");
        let exported = lines(&exported.out);
        all += exported.len();
        same_as_restored(&archive, &MockBroker::start().unwrap(), &exported, name);
    }
    assert!(all > 50, "{all} records");
}

/// Everything that is easy to lose.
fn odd() -> RawBatch {
    let header = |name: &'static [u8], value: Option<&'static [u8]>| (name, value);
    let text = "U+2028 \u{2028} \u{85} \"\\ \u{1f389} \u{7f}\u{9b}31m";
    let rec = |offset, key: Option<&'static [u8]>, value: Option<&'static [u8]>, headers| Rec {
        offset,
        timestamp_ms: MS + offset,
        key,
        value,
        headers,
    };
    batch(&[
        rec(0, None, None, vec![]),
        rec(1, Some(b""), Some(b""), vec![header(b"", Some(b"")), header(b"", None)]),
        rec(2, Some(b"k"), None, vec![header(b"dup", Some(b"1")), header(b"dup", None), header(b"dup", Some(b"1"))]),
        rec(3, Some(b"\0\xff"), Some(b"a\0b"), vec![header(b"\xff\xfe", Some(b"\0")), header(b"a\0b", None)]),
        rec(4, None, Some(text.as_bytes()), vec![header("größe".as_bytes(), Some(text.as_bytes()))]),
        rec(5, Some(b"\xe2\x80"), Some(b"a\xff\xc3\xa4\n\xf0\x9f"), vec![header(b"a,b", Some(b"\xff"))]),
        // What Kafka's library cannot send, a file can have; and none.
        Rec { offset: 6, timestamp_ms: 0, ..Rec::default() },
        Rec { offset: 7, timestamp_ms: -1, ..Rec::default() },
    ])
}

async fn of_odd() -> TestArchive {
    let mut archive = TestArchive::new(Format::Jsonl(dlq_archiver::format::Compression::None)).await;
    archive.cut("odd-dlq", 0, 0, 8, odd(), Vec::new()).await;
    archive
}

#[tokio::test(flavor = "multi_thread")]
async fn json_lines_lose_nothing() {
    let archive = of_odd().await;
    let run = export(&archive, &["--all", "--to", "odd", "--to-file", "-"]);
    let lines = run.lines();
    let want: Vec<Facts> = odd().iter().map(|r| facts(&r)).collect();
    assert_eq!(lines.iter().map(decoded).collect::<Vec<_>>(), want);
    let ids: Vec<_> = lines.iter().map(|line| line["record_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids, (0..8).map(|offset| format!("odd-dlq/0/{offset}")).collect::<Vec<_>>());
    assert!(lines.iter().all(|line| line["target_topic"] == "odd" && line["target_partition"].is_null()), "{run:?}");
    assert!(!run.err.contains("without loss"), "{run:?}");
    assert!(run.err.contains("wrote 8 of 8 selected records to standard output"), "{run:?}");
    let keys: Vec<_> = lines[0].as_object().unwrap().keys().map(String::as_str).collect();
    let want =
        ["record_id", "target_topic", "target_partition", "kafka_timestamp_ms", "kafka_key_text", "kafka_key_bytes"];
    assert_eq!(keys, [&want[..], &["kafka_value_text", "kafka_value_bytes", "kafka_headers"]].concat());
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    for key in keys {
        assert!(readme.contains(&format!("`{key}`")), "the README has {key}");
    }
    let jumps = |c: char| c.is_control() && c != '\n' || matches!(c, '\u{2028}');
    assert!(!run.out.contains(jumps), "no control character reaches a terminal");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_other_formats_lose_is_told_with_how_many() {
    let archive = of_odd().await;
    let all = ["--all", "--to", "odd", "--to-file", "-", "--file-format"];
    let (code, out, err) = raw(&archive, &[&all[..], &["kcat"]].concat());
    assert_eq!(code, 0, "{err}");
    // Odd keys, values and headers in two of them.
    assert!(err.contains("2 records not written without loss: bytes that are not UTF-8"), "{err}");
    assert!(
        out.windows(5).any(|w| w == b"\"\\u00") && out.windows(3).any(|w| w == b"a\xff\xc3"),
        "as kcat writes them"
    );
    let (code, out, err) = raw(&archive, &[&all[..], &[r"%T|%K|%k|%S|%s|%R|%h|%t|%p|%o\n"]].concat());
    assert_eq!(code, 0, "{err}");
    let first = format!("{MS}|-1||-1||\u{0}\u{0}\u{0}\u{0}||odd|-1|-1\n").into_bytes();
    let first: Vec<u8> = first.into_iter().map(|b| if b == 0 { 0xff } else { b }).collect();
    assert!(out.starts_with(&first), "{:?}", String::from_utf8_lossy(&out));
    assert!(out.windows(20).any(|w| w.starts_with(b"|2|\0\xff|3|a\0b|\0\0\0\x03|")), "{out:?}");
    assert!(err.contains("1 record not written without loss: %h"), "a name with a comma: {err}");
    let (_, out, err) = raw(&archive, &[&all[..], &[r"%k\t%s\n"]].concat());
    assert!(err.contains("5 records not written without loss: a null key or value"), "{err}");
    assert!(err.contains("1 record not written without loss: key, value or headers contain"), "{err}");
    assert!(out.starts_with(b"\t\n\t\nk\t\n\0\xff\ta\0b\n"), "{out:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_appears_once_it_is_whole_and_takes_the_place_of_none() {
    let archive = TestArchive::of_fixtures(Format::Parquet).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.jsonl");
    let at = path.to_str().unwrap();
    let there = || std::fs::read_dir(folder.path()).unwrap().count();
    let select = ["--topic", "default-dlt", "--to", "default"];
    let to = |at: &str, more: &[&str]| export(&archive, &[&select[..], &["--to-file", at], more].concat());

    let dry = to(at, &["--dry-run", "-o", "json"]).json();
    assert_eq!(there(), 0, "a dry run writes nothing");
    let run = to(at, &[]);
    assert_eq!(run.ok(), "", "what is told is on standard error");
    let written = std::fs::read_to_string(&path).unwrap();
    assert_eq!((written.lines().count() as u64, there()), (dry["to_restore"].as_u64().unwrap(), 1));
    assert!(run.err.contains(&format!("wrote {} of {} selected records to {at}", dry["to_restore"], dry["selected"])));
    assert_eq!(written, to("-", &[]).ok());
    assert!(!archive.path("restores").exists(), "nothing was put back");

    for more in [&[][..], &["--dry-run"]] {
        let again = to(at, more);
        assert!(again.fails(2).contains("exists, and is left as it is"), "{again:?}");
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), written);
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    assert!(to(link.to_str().unwrap(), &[]).fails(2).contains("exists"));
    let nowhere = to(folder.path().join("no/folder").to_str().unwrap(), &[]);
    assert!(nowhere.fails(2).contains("its folder: entity not found"), "{nowhere:?}");
    // In the folder that it is run in.
    let mut here = support::program();
    here.current_dir(folder.path()).args(["restore", "--archive", archive.url()]).args(select);
    let here: Run = here.args(["--to-file", "here.jsonl"]).output().unwrap().into();
    here.ok();
    assert_eq!(std::fs::read_to_string(folder.path().join("here.jsonl")).unwrap(), written);
    assert_eq!(there(), 3, "no temporary file is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_in_the_middle_leaves_no_file() {
    let mut archive = TestArchive::new(Format::Parquet).await;
    let mut damaged = String::new();
    for from in [0, 10] {
        let records: Vec<_> =
            (from..from + 10).map(|offset| Rec { offset, timestamp_ms: MS, ..Rec::default() }).collect();
        let manifest = archive.cut("orders-dlq", 0, from, from + 10, batch(&records), Vec::new()).await;
        damaged.clone_from(&manifest.objects[0].key);
    }
    let object = archive.path(&damaged);
    let mut content = std::fs::read(&object).unwrap();
    content[20] ^= 1;
    std::fs::remove_file(&object).unwrap();
    std::fs::write(&object, content).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let run = export(&archive, &["--all", "--to", "a", "--to-file", folder.path().join("x").to_str().unwrap()]);
    assert!(run.fails(1).contains(&damaged), "{run:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_in_the_middle_leaves_no_file() {
    let mut archive = TestArchive::new(Format::Parquet).await;
    for from in (0..200_000).step_by(20_000) {
        let records: Vec<_> =
            (from..from + 20_000).map(|offset| Rec { offset, timestamp_ms: MS, ..Rec::default() }).collect();
        archive.cut("orders-dlq", 0, from, from + 20_000, batch(&records), Vec::new()).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let files = || std::fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().path()).collect::<Vec<_>>();
    let mut child = support::program()
        .args(["restore", "--archive", archive.url(), "--all", "--to", "a", "--to-file"])
        .arg(folder.path().join("x"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Some of it is written.
    while files().iter().all(|f| std::fs::metadata(f).map_or(0, |f| f.len()) == 0) {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it wrote");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_ne!(files(), [folder.path().join("x")], "under another name");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let run: Run = child.wait_with_output().unwrap().into();
    assert!(run.fails(1).contains("was not written"), "{run:?}");
    assert_eq!(files(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_skipped_is_told_by_reason_with_the_remedy_and_the_exit_code_of_a_restore() {
    let archive = TestArchive::of_fixtures(Format::Parquet).await;
    let headers_only = export(&archive, &["--topic", "dlq.billing", "--to-file", "-"]);
    assert_eq!((headers_only.code, headers_only.out.as_str()), (1, ""), "no tombstone: {headers_only:?}");
    let told = [
        "skipped: key and value of the original are not in the dead letter",
        "`dlq-archiver refetch`",
        "dlq.billing/0/0",
    ];
    assert!(told.iter().all(|text| headers_only.err.contains(text)), "{headers_only:?}");

    let select = ["--topic", "default-dlt", "--partition", "7"];
    let of = |more: &[&str]| export(&archive, &[&select[..], more].concat());
    let all = of(&["--to-file", "-"]).lines().len();
    archive.run(&["discard", "--record-id", "default-dlt/7/0", "--reason", "INC-1"]).ok();
    let discarded = of(&["--to-file", "-"]);
    assert_eq!(discarded.lines().len(), all - 1, "a discard is no failure");
    assert!(
        discarded.err.contains("1 skipped: discarded") && discarded.err.contains("default-dlt/7/0"),
        "{discarded:?}"
    );
    assert_eq!(of(&["--to-file", "-", "--include-discarded"]).lines().len(), all);

    let broker = MockBroker::start().unwrap();
    broker.create_topic("default", 1).unwrap();
    of(&["--brokers", &broker.brokers()]).ok();
    let restored = of(&["--to-file", "-"]);
    assert_eq!(restored.ok(), "");
    assert!(
        restored.err.contains(&format!(
            "{} skipped: already restored; a new command or dry run with --include-restored",
            all - 1
        )),
        "{restored:?}"
    );
    assert_eq!(of(&["--to-file", "-", "--include-restored"]).lines().len(), all - 1);

    let missing = export(&archive, &["--record-id", "default-dlt/7/4711", "--to-file", "-"]);
    assert_eq!((missing.code, missing.out.as_str()), (1, ""));
    assert!(missing.err.contains("1 record id selected nothing"), "{missing:?}");
    let none = export(&archive, &["--topic", "nope", "--to-file", "-"]);
    assert!(none.ok().is_empty() && none.err.contains("nothing archived matches --topic"), "{none:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_record_came_from_is_not_guessed_and_a_dead_letter_topic_is_refused() {
    let mut archive = TestArchive::new(Format::Parquet).await;
    let records: Vec<_> = (0..3).map(|offset| Rec { offset, timestamp_ms: MS, ..Rec::default() }).collect();
    archive.cut("orders-dlq", 0, 0, 3, batch(&records), Vec::new()).await;
    let unknown = export(&archive, &["--all", "--to-file", "-"]);
    assert_eq!((unknown.code, unknown.out.as_str()), (1, ""));
    assert!(unknown.err.contains("3 skipped: its headers do not tell where it came from; name the target with --to"));
    let dead = export(&archive, &["--all", "--to", "orders-dlq", "--to-file", "-"]);
    assert!(dead.fails(2).contains("is a dead-letter topic"), "{dead:?}");
    assert_eq!(
        export(&archive, &["--all", "--to", "orders-dlq", "--allow-dead-letter-target", "--to-file", "-"])
            .lines()
            .len(),
        3
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_records_are_selected_as_by_a_restore() {
    let mut archive = TestArchive::new(Format::Parquet).await;
    for from in (0..60).step_by(10) {
        let values: Vec<_> = (from..from + 10).map(|id| format!("{{\"id\": {id}}}")).collect();
        let records: Vec<_> = (from..)
            .zip(&values)
            .map(|(offset, value)| Rec { offset, timestamp_ms: MS, value: Some(value.as_bytes()), ..Rec::default() })
            .collect();
        archive.cut("orders-dlq", 0, from, from + 10, batch(&records), Vec::new()).await;
    }
    for select in [
        &["--all", "--limit", "12"][..],
        &["--all", "--sample", "15", "--limit", "11"],
        &["--where", "value_json.id > 7 AND value_json.id < 40", "--sample", "5"],
        &["--offsets", "15..25"],
    ] {
        let ids = |lines: Vec<Value>| -> Vec<String> {
            lines.iter().map(|line| line["record_id"].as_str().unwrap().to_owned()).collect()
        };
        let exported = ids(export(&archive, &[select, &["--to", "a", "--to-file", "-"]].concat()).lines());
        let filters = select.iter().copied().filter(|flag| *flag != "--all");
        let listed = ids(archive.run(&["list", "-o", "jsonl"].into_iter().chain(filters).collect::<Vec<_>>()).lines());
        assert_eq!(exported, listed, "{select:?}");
        assert!(!exported.is_empty());
    }
    assert!(export(&archive, &["--to", "a", "--to-file", "-"]).fails(2).contains("nothing selects records"));
}

/// Produces to partition 0.
fn produce(broker: &MockBroker, topic: &str, records: &RawBatch) {
    let producer = Producer::new(&Connection::new(&broker.brokers()), None).unwrap();
    for (token, r) in records.iter().enumerate() {
        let (partition, timestamp_ms, headers) = (Some(0), Some(r.timestamp_ms), r.headers.iter());
        let record = NewRecord { topic, partition, key: r.key, value: r.value, headers, timestamp_ms, token };
        producer.send(record, PATIENCE).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_original_that_was_read_again_is_exported_in_the_dead_letters_place() {
    let broker = MockBroker::start().unwrap();
    let headers = vec![(&b"a"[..], Some(&b"\xff"[..])), (b"a", None)];
    let originals = [
        Rec { offset: 0, timestamp_ms: MS, key: Some(b"k"), value: Some(b"v"), headers },
        Rec { offset: 1, timestamp_ms: MS + 1, ..Rec::default() },
    ];
    let letter = |offset, at: &'static [u8]| Rec {
        offset,
        timestamp_ms: MS + 1000,
        headers: vec![
            (b"__dlq.errors.topic", Some(b"orders")),
            (b"__dlq.errors.partition", Some(b"0")),
            (b"__dlq.errors.offset", Some(at)),
            (b"__dlq.errors.group", Some(b"g")),
        ],
        ..Rec::default()
    };
    for (topic, records) in [("orders", &originals[..]), ("orders-dlq", &[letter(0, b"1"), letter(1, b"0")])] {
        broker.create_topic(topic, 1).unwrap();
        produce(&broker, topic, &batch(records));
    }
    let folder = tempfile::tempdir().unwrap();
    let (url, brokers) = (format!("file://{}", folder.path().display()), broker.brokers());
    let run = |command: &str, args: &[&str]| support::run(&[&[command, "--archive", &url], args].concat());
    run("archive", &["--brokers", &brokers, "--topic", "orders-dlq", "--once"]).ok();
    let before = run("restore", &["--all", "--to-file", "-"]);
    assert_eq!((before.code, before.out.as_str()), (1, ""), "{before:?}");
    let done = run("refetch", &["--brokers", &brokers, "-o", "json"]).json();
    assert_eq!(done["states"]["refetched"], 2, "{done}");
    let lines = run("restore", &["--all", "--to-file", "-"]).lines();
    let originals = batch(&originals);
    let want = [originals.get(1), originals.get(0)].map(|r| facts(&r));
    assert_eq!(lines.iter().map(decoded).collect::<Vec<_>>(), want);
    let ids: Vec<_> = lines.iter().map(|line| line["record_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["orders-dlq/0/0", "orders-dlq/0/1"]);
    assert!(lines.iter().all(|line| line["target_topic"] == "orders" && line["target_partition"] == 0), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_pipe_ends_it_quietly() {
    let mut archive = TestArchive::new(Format::Parquet).await;
    let value = vec![b'x'; 100];
    let records: Vec<_> = (0..20_000).map(|offset| Rec { offset, value: Some(&value), ..Rec::default() }).collect();
    archive.cut("big-dlt", 0, 0, 20_000, batch(&records), Vec::new()).await;
    for format in ["jsonl", "kcat", r"%s\n"] {
        let mut child = support::program()
            .args([
                "restore",
                "--archive",
                archive.url(),
                "--all",
                "--to",
                "a",
                "--to-file",
                "-",
                "--file-format",
                format,
            ])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 100];
        child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""), "{format}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_about_kafka_is_refused_where_it_is_typed_and_ignored_where_it_is_set() {
    let archive = TestArchive::of_fixtures(Format::Parquet).await;
    let select = ["--record-id", "default-dlt/7/0", "--to-file", "-"];
    for (more, why) in [
        (&["--delivery", "plain"][..], "--delivery is about Kafka"),
        (&["--batch", "5"], "--batch is about Kafka"),
        (&["--batch-bytes", "5MiB"], "--batch-bytes is about Kafka"),
        (&["-o", "json"], "-o is for --dry-run here"),
    ] {
        let run = export(&archive, &[&select[..], more].concat());
        assert!(run.fails(2).contains(why), "{run:?}");
    }
    for (args, why) in [
        (&["--take-over"][..], "cannot be used with"),
        (&["--resume", "x"], "cannot be used with"),
        (&["--timestamps", "now"], "cannot be used with"),
        (&["--file-format", "%k%z"], "%z is not known: %k key"),
        (&["--file-format", "csv"], "jsonl, kcat, or a text with kcat's letters"),
    ] {
        let run = export(&archive, &[&select[..], args].concat());
        assert!(run.code == 2 && run.out.is_empty() && run.err.contains(why), "{run:?}");
    }
    let alone = export(&archive, &["--all", "--file-format", "kcat"]);
    assert!(alone.code == 2 && alone.err.contains("--to-file"), "{alone:?}");
    let mut set = support::program();
    set.envs([("DLQ_ARCHIVER_DELIVERY", "plain"), ("DLQ_ARCHIVER_BATCH", "5"), ("DLQ_ARCHIVER_BROKERS", "nowhere:1")]);
    let set: Run = set.args(["restore", "--archive", archive.url()]).args(select).output().unwrap().into();
    assert_eq!(set.lines().len(), 1);
}

fn has_kcat() -> bool {
    let has = Command::new("kcat").arg("-V").output().is_ok_and(|output| output.status.success());
    if !has {
        eprintln!("skipped: kcat is not installed");
    }
    has
}

fn kcat(broker: &MockBroker, args: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new("kcat")
        .args(["-b", &broker.brokers(), "-q"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "kcat {args:?}");
    output.stdout
}

/// Without what only a broker gives a record.
fn unplaced(json: &[u8]) -> Vec<Value> {
    let text = String::from_utf8_lossy(json);
    let mut lines = lines(&text);
    for line in &mut lines {
        let object = line.as_object_mut().unwrap();
        object.retain(|key, _| !["partition", "offset", "broker"].contains(&key.as_str()));
    }
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn kcat_writes_the_same_of_what_is_restored() {
    if !has_kcat() {
        return;
    }
    let mut archive = TestArchive::new(Format::Parquet).await;
    // kcat cuts names and values of headers at NUL; and 0 cannot be sent.
    let mut records = RawBatch::new();
    let cut =
        |r: &RawRecord<'_>| r.headers.iter().any(|h| h.name.contains(&0) || h.value.is_some_and(|v| v.contains(&0)));
    odd().iter().filter(|r| !cut(r) && r.timestamp_ms > 0).for_each(|r| records.push_record(&r));
    assert_eq!(records.len(), 5);
    archive.cut("odd-dlq", 0, 0, 8, records, Vec::new()).await;
    let broker = MockBroker::start().unwrap();
    broker.create_topic("odd", 1).unwrap();
    let select = ["--all", "--to", "odd"];
    export(&archive, &[&select[..], &["--no-restore-headers", "--brokers", &broker.brokers()]].concat()).ok();
    let of = |format: &str| {
        let (code, out, err) =
            raw(&archive, &[&select[..], &["--include-restored", "--to-file", "-", "--file-format", format]].concat());
        assert_eq!(code, 0, "{err}");
        out
    };
    let consume = ["-C", "-t", "odd", "-o", "beginning", "-e"];
    let ours = of("kcat");
    let theirs = kcat(&broker, &[&consume[..], &["-J"]].concat(), b"");
    assert_eq!(unplaced(&ours), unplaced(&theirs));
    // Bytes that are no text, too; but for the partition, and escapes that JSON leaves open.
    assert!(ours.windows(3).any(|w| w == b"a\xff\xc3") && theirs.windows(3).any(|w| w == b"a\xff\xc3"));
    for format in [r"%k\t%s\n", r"%t %T %K %k %S %s %R [%h] %% \x41\n", r"%h|%s\r\n"] {
        let theirs = kcat(&broker, &[&consume[..], &["-f", format]].concat(), b"");
        assert_eq!(String::from_utf8_lossy(&of(format)), String::from_utf8_lossy(&theirs), "{format}");
        assert!(of(format) == theirs, "{format}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kcat_sends_what_is_piped_into_it() {
    if !has_kcat() {
        return;
    }
    let archive = TestArchive::of_fixtures(Format::Parquet).await;
    let broker = MockBroker::start().unwrap();
    broker.create_topic("orders", 1).unwrap();
    let select = ["--topic", "default-dlt", "--to", "orders", "--to-file", "-"];
    let exported = export(&archive, &select).lines();
    let (code, piped, err) = raw(&archive, &[&select[..], &["--file-format", r"%k\t%s\n"]].concat());
    assert!(code == 0 && err.contains("a null key or value") && !err.contains("contain a text"), "{err}");
    kcat(&broker, &["-P", "-t", "orders", "-K", r"\t"], &piped);
    let sent: Vec<_> = read(&broker, "orders", 1).into_iter().map(|(_, facts)| (facts.1, facts.2)).collect();
    // What is told: null arrives as empty.
    let want = exported.iter().map(decoded).map(|facts| (facts.1.or(Some(vec![])), facts.2.or(Some(vec![]))));
    let want: Vec<_> = want.collect();
    assert_eq!(sent, want);
    assert!(!sent.is_empty());
}
