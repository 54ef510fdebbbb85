//! The real `archive` against brokers: records of any bytes come out of the archive as they are in the topic.
//!
//! Runs on the embedded broker, and on a real Kafka too if `DLQ_ARCHIVER_BROKERS` names one.

#[allow(dead_code, reason = "only the runner is needed")]
mod broker;
#[allow(dead_code, reason = "only the runner is needed")]
mod common;

use broker::program;
use dlq_archiver::catalog::{Catalog, Reading};
use dlq_archiver::filter::Filter;
use dlq_archiver::kafka::{Admin, Connection, MockBroker, NewRecord, Producer, RangeReader};
use dlq_archiver::layout;
use dlq_archiver::record::{Header, RawBatch, RawRecord, TopicPartition};
use dlq_archiver::store::{self, StoreOptions};
use std::ops::ControlFlow;
use std::time::Duration;

type Headers = Vec<(Vec<u8>, Option<Vec<u8>>)>;

struct Odd {
    timestamp_ms: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Headers,
}

/// Everything that is easy to lose: null against empty, repeats, names that are not UTF-8 or hold NUL, sizes.
fn odd_records() -> Vec<Odd> {
    let of = |key: Option<&[u8]>, value: Option<&[u8]>, headers: Headers| Odd {
        timestamp_ms: 1_760_000_000_000,
        key: key.map(<[u8]>::to_vec),
        value: value.map(<[u8]>::to_vec),
        headers,
    };
    let header = |name: &[u8], value: Option<&[u8]>| (name.to_vec(), value.map(<[u8]>::to_vec));
    let mut records = vec![
        of(None, None, vec![]),
        of(Some(b""), Some(b""), vec![header(b"", Some(b"")), header(b"", None)]),
        of(Some(b"k"), None, vec![header(b"dup", Some(b"1")), header(b"dup", None), header(b"dup", Some(b"1"))]),
        of(
            Some(b"\x00\xff"),
            Some(b"a\x00b"),
            vec![header(b"\xff\xfe", Some(b"\x00")), header("ä".as_bytes(), Some(b"x"))],
        ),
        of(
            None,
            Some(b"nul"),
            vec![header(b"a\x00b", Some(b"v")), header(b"a\x00b", None), header(b"\x00", Some(b""))],
        ),
        of(Some(&[7; 4096]), Some(&vec![b'x'; 1 << 20]), vec![]),
        of(None, Some(b"300"), (0..300).map(|i| header(format!("h{i}").as_bytes(), Some(&[i as u8; 10]))).collect()),
        of(None, Some("U+2028 \u{2028} \u{85} \u{feff} \"\\ \u{1f389}".as_bytes()), vec![]),
        of(None, Some(b"big header"), vec![header(b"big", Some(&vec![0xee; 200_000]))]),
    ];
    // Not 0: librdkafka sends the time of sending instead.
    for timestamp_ms in [1, 253_402_300_799_999, 253_402_300_800_000, i64::MAX] {
        records.push(Odd { timestamp_ms, ..of(None, Some(b"time"), vec![]) });
    }
    records
}

fn produce(connection: &Connection, topic: &str, records: &[Odd]) {
    let producer = Producer::new(connection, None).unwrap();
    for (token, r) in records.iter().enumerate() {
        let headers = r.headers.iter().map(|(name, value)| Header { name, value: value.as_deref() });
        let (key, value) = (r.key.as_deref(), r.value.as_deref());
        let timestamp_ms = Some(r.timestamp_ms);
        let record = NewRecord { topic, partition: Some(0), key, value, headers, timestamp_ms, token };
        producer.send(record, Duration::from_secs(10)).unwrap();
    }
    producer.flush(Duration::from_secs(30)).unwrap();
    for ack in producer.acks() {
        ack.result.unwrap();
    }
}

/// All that must be the same.
type Facts = (i64, i64, &'static str, Option<Vec<u8>>, Option<Vec<u8>>, Headers);

fn facts(r: &RawRecord<'_>) -> Facts {
    let headers = r.headers.iter().map(|h| (h.name.to_vec(), h.value.map(<[u8]>::to_vec))).collect();
    let (key, value) = (r.key.map(<[u8]>::to_vec), r.value.map(<[u8]>::to_vec));
    (r.offset, r.timestamp_ms, r.timestamp_type.as_str(), key, value, headers)
}

fn in_topic(connection: &Connection, topic: &str, count: i64) -> Vec<Facts> {
    let mut batch = RawBatch::new();
    let reader = RangeReader::new(connection).unwrap();
    reader
        .read(&TopicPartition::new(topic, 0), 0, count, Duration::from_secs(30), |m| {
            m.copy_into(&mut batch)?;
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    batch.iter().map(|r| facts(&r)).collect()
}

async fn in_archive(url: &str) -> Vec<Facts> {
    let store = store::open(url, &StoreOptions::default()).await.unwrap();
    let catalog = Catalog::open(store).await.unwrap();
    let filter = Filter::default();
    let selected = catalog.select(&filter).await.unwrap();
    let mut all = Vec::new();
    let mut cuts = catalog.cuts(selected, &filter, Reading::RESTORE);
    while let Some(cut) = cuts.next().await.unwrap() {
        all.extend(cut.iter().map(|r| facts(&r.raw)));
    }
    all
}

async fn archived_as_they_are(brokers: &str, topic: &str) {
    let connection = Connection::new(brokers);
    let records = odd_records();
    produce(&connection, topic, &records);
    let theirs = in_topic(&connection, topic, records.len() as i64);
    // The reader is the archiver's own, so what it reads is compared with what was produced first.
    let produced: Vec<_> = records.iter().map(|r| (&r.key, &r.value, &r.headers)).collect();
    assert_eq!(theirs.iter().map(|f| (&f.3, &f.4, &f.5)).collect::<Vec<_>>(), produced);

    let folder = tempfile::tempdir().unwrap();
    for format in
        [&["--format", "parquet"][..], &["--format", "jsonl"], &["--format", "jsonl", "--compression", "zstd"]]
    {
        let url = format!("file://{}/{}", folder.path().display(), format.join(""));
        let args = ["archive", "--once", "--topic", topic, "--brokers", brokers, "--archive", &url, "--quiet"];
        let out = program(&args).args(format).output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
        assert_eq!(in_archive(&url).await, theirs, "{format:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_records_survive_the_embedded_broker() {
    let broker = MockBroker::start().unwrap();
    broker.create_topic("odd-dlq", 1).unwrap();
    archived_as_they_are(&broker.brokers(), "odd-dlq").await;
}

/// Found by the model in tests/model/ledger.rs: another archiver recovers a cut, can prove nothing any more, creates its
/// object without rows and dies. The cut's own writer then finds that object, and its manifest told no gap.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_an_object_lacks_are_a_gap_for_the_cuts_own_writer_too() {
    let broker = MockBroker::start().unwrap();
    broker.create_topic("slow-dlq", 1).unwrap();
    broker.create_topic("other-dlq", 1).unwrap();
    let brokers = broker.brokers();
    produce(&Connection::new(&brokers), "slow-dlq", &odd_records()[..3]);
    let folder = tempfile::tempdir().unwrap();
    let archive = |name: &str, topic: &str| {
        let url = format!("file://{}/{name}", folder.path().display());
        let args = ["archive", "--once", "--topic", topic, "--brokers", &brokers, "--archive", &url, "--quiet"];
        let out = program(&args).args(["--format", "jsonl", "--compression", "none"]).output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    };
    let manifest = |name: &str| {
        let path = folder.path().join(name).join("ledger/slow-dlq/0/00000000000000000000.json");
        serde_json::from_slice::<dlq_archiver::ledger::Manifest>(&std::fs::read(path).unwrap()).unwrap()
    };
    archive("sound", "slow-dlq");
    let sound = manifest("sound");
    assert_eq!((sound.rows, sound.gaps.len(), sound.objects.len()), (3, 0, 1));
    archive("late", "other-dlq");
    let object = folder.path().join("late").join(&sound.objects[0].key);
    std::fs::create_dir_all(object.parent().unwrap()).unwrap();
    std::fs::write(object, "").unwrap();
    archive("late", "slow-dlq");
    let late = manifest("late");
    let gaps: Vec<_> = late.gaps.iter().map(|gap| (gap.from, gap.to)).collect();
    assert_eq!((late.rows, gaps), (0, vec![(0, 3)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_records_survive_kafka() {
    let Some(brokers) = brokers() else { return };
    let topic = format!("odd-{}-dlq", uuid::Uuid::new_v4().simple());
    let config = [
        ("retention.ms", "-1"),
        ("max.message.bytes", "10485760"),
        ("message.timestamp.after.max.ms", "9223372036854775807"),
    ];
    Admin::create_topic(&Connection::new(&brokers), &topic, 1, &config).await.unwrap();
    archived_as_they_are(&brokers, &topic).await;
}

/// A topic deleted and made anew: its partition stops, and the archive of the old one is not touched.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_made_anew_stops_its_partition() {
    let Some(brokers) = brokers() else { return };
    let connection = Connection::new(&brokers);
    let topic = format!("anew-{}-dlq", uuid::Uuid::new_v4().simple());
    // Some of the records are old.
    let forever = [("retention.ms", "-1")];
    Admin::create_topic(&connection, &topic, 1, &forever).await.unwrap();
    let five: Vec<_> = odd_records().into_iter().take(5).collect();
    produce(&connection, &topic, &five);
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}/a", folder.path().display());
    let archive = || {
        let args = ["archive", "--once", "--topic", &topic, "--brokers", &brokers, "--archive", &url, "--quiet"];
        program(&args).output().unwrap()
    };
    assert_eq!(archive().status.code(), Some(0));
    let before = in_archive(&url).await;
    Admin::delete_topic(&connection, &topic).await.unwrap();
    // Deletion is not over when the broker says so.
    for _ in 0..100 {
        if Admin::create_topic(&connection, &topic, 1, &forever).await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // More records than before: offsets alone do not tell.
    produce(&connection, &topic, &five);
    produce(&connection, &topic, &five);
    let out = archive();
    assert_eq!(out.status.code(), Some(1));
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(told.contains("deleted and made anew") && told.contains("--new-generation"), "{told}");
    assert_eq!(in_archive(&url).await, before);

    // Asked to, it goes on beside the old archive, and tells what retention took of the new log meanwhile: it began at
    // the new log's start, and nobody knew. Once more, there is nothing to do.
    Admin::delete_records(&connection, &TopicPartition::new(&topic, 0), 3).await.unwrap();
    for code in [3, 0] {
        let args =
            ["archive", "--once", "--topic", &topic, "--brokers", &brokers, "--archive", &url, "--new-generation"];
        let out = program(&args).output().unwrap();
        assert_eq!(out.status.code(), Some(code), "{out:?}");
    }
    let out = program(&["list", "--archive", &url, "--limit", "0", "-o", "jsonl"]).output().unwrap();
    let ids: Vec<String> = String::from_utf8(out.stdout)
        .unwrap()
        .lines()
        .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["record_id"].as_str().unwrap().to_owned())
        .collect();
    let count = |end: &str| ids.iter().filter(|id| id.ends_with(end)).count();
    assert_eq!((ids.len(), count("@g2")), (12, 7), "{ids:?}");
    let out = program(&["verify", "--archive", &url, "--brokers", &brokers]).output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{out:?}");
}

/// A new archive on top of an old one's ledger would mix formats and lose the group's name.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_archive_json_is_not_made_anew() {
    let broker = MockBroker::start().unwrap();
    broker.create_topic("lost-dlq", 1).unwrap();
    let brokers = broker.brokers();
    produce(&Connection::new(&brokers), "lost-dlq", &odd_records());
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().display());
    let archive = || {
        let args = ["archive", "--once", "--topic", "lost-dlq", "--brokers", &brokers, "--archive", &url, "--quiet"];
        program(&args).output().unwrap()
    };
    assert_eq!(archive().status.code(), Some(0));
    std::fs::remove_file(folder.path().join("archive.json")).unwrap();
    let out = archive();
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("archive.json is missing"), "{out:?}");
    assert!(!folder.path().join("archive.json").exists());
}

/// The ledger of one of two topics is lost: the group's offset gives it away.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_without_the_ledger_that_its_group_remembers_is_told() {
    let broker = MockBroker::start().unwrap();
    let brokers = broker.brokers();
    for topic in ["kept-dlq", "lost-dlq"] {
        broker.create_topic(topic, 1).unwrap();
        produce(&Connection::new(&brokers), topic, &odd_records());
    }
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().display());
    let archive = || {
        let topics = ["--topic", "kept-dlq", "--topic", "lost-dlq"];
        let args = ["archive", "--once", "--brokers", &brokers, "--archive", &url];
        let out = program(&args).args(topics).output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{out:?}");
        String::from_utf8(out.stderr).unwrap()
    };
    for opened in ["archive created", "archive opened"] {
        let told = archive();
        assert!(told.contains(opened) && told.contains("reading 2 partitions: kept-dlq 0; lost-dlq 0"), "{told}");
        assert!(!told.contains("has committed offset"));
    }
    std::fs::remove_dir_all(folder.path().join("ledger/lost-dlq")).unwrap();
    let told = archive();
    let count = odd_records().len();
    let warning = format!("has committed offset {count}, and the ledger ends at 0");
    assert!(told.lines().any(|l| l.contains("lost-dlq/0") && l.contains(&warning)), "{told}");
    assert!(!told.contains("kept-dlq/0: the group"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistyped_topic_leaves_no_folder_behind() {
    let broker = MockBroker::start().unwrap();
    broker.create_topic("kept-dlq", 1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}/new", folder.path().display());
    let archive = |topic: &str| {
        let brokers = broker.brokers();
        let args = ["archive", "--once", "--topic", topic, "--brokers", &brokers, "--archive", &url];
        let out = program(&args).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{out:?}");
        assert!(!folder.path().join("new").exists());
        String::from_utf8(out.stderr).unwrap()
    };
    assert!(archive("*dlq").contains("A regular expression begins with ^"));
    assert!(archive("^.*-dlt$").contains("no topic matches"));
    assert!(archive("kept-dlt").contains("did you mean \"kept-dlq\"?"));
}

/// A member of the group that gets nothing looked as if it hung.
#[tokio::test(flavor = "multi_thread")]
async fn an_archiver_without_a_partition_says_that_it_waits() {
    let broker = MockBroker::start().unwrap();
    broker.create_topic("one-dlq", 1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (url, brokers) = (format!("file://{}/a", folder.path().display()), broker.brokers());
    let start = |name: &str| {
        let log = folder.path().join(name);
        let args = ["archive", "--topic", "one-dlq", "--brokers", &brokers, "--archive", &url];
        let child = program(&args).stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
        (child, log)
    };
    let mut both = [start("1"), start("2")];
    let told = |text: &str| {
        (["1", "2"].iter()).any(|name| std::fs::read_to_string(folder.path().join(name)).unwrap().contains(text))
    };
    let began = std::time::Instant::now();
    let wanted = ["reading 1 partition: one-dlq 0", "waiting for partitions: other members"];
    while !wanted.iter().all(|text| told(text)) && began.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for (child, _) in &mut both {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(wanted.iter().all(|text| told(text)), "{:?}", both.map(|(_, log)| std::fs::read_to_string(log)));
}

/// Of each name one record, but for the first few.
const FLOOD: usize = 10_000;
const LARGE: usize = 5;
const OWN: usize = 20;

/// A rule whose captures are ids: each record has a pipeline of its own.
async fn many_names_make_few_objects(brokers: &str, topic: &str) {
    let of = |i: usize| {
        let name = format!("team {}/{}", ["ä", "x"][i % 2], if i < FLOOD { i } else { i % LARGE });
        (name, 1_791_300_000_000 + (i % 2) as i64 * 86_400_000)
    };
    let all: Vec<(String, i64)> = (0..FLOOD + 10 * LARGE).map(of).collect();
    let connection = Connection::new(brokers);
    let producer = Producer::new(&connection, None).unwrap();
    for (token, (name, timestamp_ms)) in all.iter().enumerate() {
        let header = Header { name: b"__streams.errors.topic", value: Some(name.as_bytes()) };
        let (value, headers) = (Some(&b"value"[..]), std::iter::once(header));
        let timestamp_ms = Some(*timestamp_ms);
        let record = NewRecord { topic, partition: Some(0), key: None, value, headers, timestamp_ms, token };
        producer.send(record, Duration::from_secs(10)).unwrap();
    }
    producer.flush(Duration::from_secs(60)).unwrap();
    assert!(producer.acks().iter().all(|ack| ack.result.is_ok()));

    let folder = tempfile::tempdir().unwrap();
    let (url, config) = (format!("file://{}/a", folder.path().display()), folder.path().join("c.toml"));
    let rule = "max-pipelines = 20\n[[routes]]\nmatch.origin_topic = \"^team (?<id>.*)\"\npipeline = \"${id}\"\n";
    std::fs::write(&config, rule).unwrap();
    let config = config.to_str().unwrap();
    let run = |args: &[&str]| {
        let out = program(args).args(["--archive", &url]).output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    // Several cuts, of which one line tells.
    let archive =
        ["archive", "--once", "--topic", topic, "--brokers", brokers, "--config", config, "--cut-records", "2600"];
    let (_, told) = run(&archive);
    assert_eq!(told.matches("pipelines of a cut share an object for each date").count(), 1, "{told}");

    let prefix = layout::ledger_prefix(topic, 0, 1);
    let ledger = std::fs::read_dir(folder.path().join("a").join(prefix)).unwrap().map(|e| e.unwrap().path());
    let manifests = ledger.filter(|p| p.is_file()).filter_map(|path| {
        let name = path.file_stem()?.to_str()?.parse::<i64>().ok();
        name.map(|_| serde_json::from_slice::<dlq_archiver::ledger::Manifest>(&std::fs::read(&path).unwrap()).unwrap())
    });
    let manifests: Vec<_> = manifests.collect();
    assert!(manifests.len() >= 3, "{}", manifests.len());
    for manifest in &manifests {
        for dt in ["2026-10-06", "2026-10-07"] {
            let of_date: Vec<_> = manifest.objects.iter().filter(|o| o.dt == dt).collect();
            assert!(of_date.len() <= OWN + 1, "{}", of_date.len());
            assert_eq!(of_date.iter().filter(|o| o.pipeline.is_none()).count(), 1);
        }
        assert_eq!(manifest.objects.iter().filter(|o| !o.dt.starts_with("2026-10-0")).count(), 0);
    }

    // Each row is found under its own name.
    let lines = |args: &[&str]| -> Vec<(i64, String)> {
        let (out, _) = run(&[args, &["--limit", "0", "-o", "jsonl"]].concat());
        let row = |line: &str| {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            (row["kafka_offset"].as_i64().unwrap(), row["pipeline_name"].as_str().unwrap().to_owned())
        };
        out.lines().map(row).collect()
    };
    let name = |i: usize| all[i].0.strip_prefix("team ").unwrap().to_owned();
    let expected: Vec<_> = (0..all.len()).map(|i| (i as i64, name(i))).collect();
    assert_eq!(lines(&["list"]), expected);
    for i in (0..all.len()).step_by(1_003) {
        let wanted: Vec<_> = expected.iter().filter(|(_, other)| *other == name(i)).cloned().collect();
        assert_eq!(lines(&["list", "--pipeline", &name(i)]), wanted);
    }
    let of_many = expected.iter().filter(|(_, name)| name.starts_with("x/99")).count();
    assert_eq!((lines(&["list", "--pipeline", "^x/99"]).len(), of_many), (56, 56));
    let (summary, _) = run(&["summary", "--by", "pipeline", "-o", "json"]);
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    let names = expected.iter().map(|(_, name)| name).collect::<std::collections::BTreeSet<_>>().len();
    let counted = (summary["records"].as_u64(), summary["groups"].as_array().unwrap().len());
    assert_eq!(counted, (Some(all.len() as u64), names));
    run(&["verify", "--brokers", brokers]);
    let plan = [
        "restore",
        "--dry-run",
        "--brokers",
        brokers,
        "--pipeline",
        "x/9999",
        "--to",
        topic,
        "--allow-dead-letter-target",
        "-o",
        "json",
    ];
    let out = program(&plan).args(["--archive", &url]).output().unwrap();
    let plan: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{out:?}"));
    assert_eq!(plan["selected"], 1, "{plan}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_pipelines_make_few_objects_with_the_embedded_broker() {
    let broker = MockBroker::start().unwrap();
    broker.create_topic("flood-dlq", 1).unwrap();
    many_names_make_few_objects(&broker.brokers(), "flood-dlq").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_pipelines_make_few_objects_with_kafka() {
    let Some(brokers) = brokers() else { return };
    let topic = format!("flood-{}-dlq", uuid::Uuid::new_v4().simple());
    Admin::create_topic(&Connection::new(&brokers), &topic, 1, &[("retention.ms", "-1")]).await.unwrap();
    many_names_make_few_objects(&brokers, &topic).await;
}

/// The brokers of a real Kafka; `None`, with a notice, where there is none and none is required.
fn brokers() -> Option<String> {
    let brokers = std::env::var("DLQ_ARCHIVER_BROKERS").ok();
    if brokers.is_none() {
        assert!(std::env::var_os("DLQ_ARCHIVER_REQUIRE_SERVICES").is_none(), "DLQ_ARCHIVER_BROKERS is not set");
        eprintln!("skipped: run make up, and source localstack/.run/env");
    }
    brokers
}
