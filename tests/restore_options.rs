//! What an operator decides about a restore, by the real program and the embedded broker: plans, headers, partitions,
//! corrected values, attempts, rate.

mod support;

use dlq_archiver::format::Format;
use dlq_archiver::kafka::{Connection, MockBroker, NewRecord, Producer, RangeReader};
use dlq_archiver::record::{Header, RawBatch, TopicPartition};
use serde_json::Value;
use std::ops::ControlFlow;
use std::process::Stdio;
use std::time::{Duration, Instant};
use support::{Rec, Run, TestArchive, batch};

/// 2026-10-08.
const MS: i64 = 1_791_417_600_000;

fn restore(archive: &TestArchive, broker: &MockBroker, args: &[&str]) -> Run {
    let brokers = broker.brokers();
    archive.run(&[&["restore", "--brokers", &brokers], args].concat())
}

fn read(broker: &MockBroker, tp: (&str, i32), records: i64) -> RawBatch {
    let mut batch = RawBatch::new();
    let reader = RangeReader::new(&Connection::new(&broker.brokers())).unwrap();
    let tp = TopicPartition::new(tp.0, tp.1);
    let read = reader.read(&tp, 0, records, Duration::from_secs(20), |m| {
        m.copy_into(&mut batch)?;
        Ok(ControlFlow::Continue(()))
    });
    read.unwrap();
    batch
}

fn texts(headers: dlq_archiver::record::Headers<'_>) -> Vec<String> {
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    headers.iter().map(|h| format!("{}={}", text(h.name), h.value.map(text).unwrap_or_default())).collect()
}

const CONNECT: [&str; 3] = ["__connect.errors.topic", "__connect.errors.partition", "__connect.errors.offset"];

/// Dead letters of `orders/<partition>`, of the offsets `from..to` there.
async fn failed_orders(archive: &mut TestArchive, origin_partition: i32, from: i64, to: i64) {
    let numbers: Vec<_> = (from..to).map(|n| n.to_string()).collect();
    let partition = origin_partition.to_string();
    let records: Vec<_> = (from..)
        .zip(&numbers)
        .map(|(offset, number)| Rec {
            offset,
            timestamp_ms: MS + offset,
            key: Some(b"k"),
            value: Some(number.as_bytes()),
            headers: vec![
                (CONNECT[0].as_bytes(), Some(b"orders")),
                (CONNECT[1].as_bytes(), Some(partition.as_bytes())),
                (CONNECT[2].as_bytes(), Some(number.as_bytes())),
                (b"traceparent", Some(b"00-1")),
                (b"tenant", Some(b"a")),
            ],
        })
        .collect();
    archive.cut("orders-dlq", 0, from, to, batch(&records), Vec::new()).await;
}

async fn world(n: i64, partitions: i32) -> (TestArchive, MockBroker) {
    let mut archive = TestArchive::new(Format::Parquet).await;
    failed_orders(&mut archive, 0, 0, n).await;
    let broker = MockBroker::start().unwrap();
    broker.create_topic("orders", partitions).unwrap();
    (archive, broker)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_carried_out_as_it_was_shown_whatever_came_since() {
    let (mut archive, broker) = world(20, 1).await;
    let dry = restore(&archive, &broker, &["--topic", "orders-dlq", "--reason", "INC-1", "-n", "-o", "json"]).json();
    let id = dry["plan"].as_str().unwrap().to_owned();
    assert_eq!((dry["to_restore"].as_u64(), id.len()), (Some(20), 12), "{dry}");
    let again = restore(&archive, &broker, &["--topic", "orders-dlq", "-n"]);
    assert!(again.ok().contains(&format!("plan {id}: `dlq-archiver restore --plan {id}`")), "the same plan: {again:?}");
    failed_orders(&mut archive, 0, 20, 40).await;
    archive.run(&["discard", "--record-id", "orders-dlq/0/3", "--reason", "INC-1"]).ok();
    let done = restore(&archive, &broker, &["--plan", &id, "--by", "Ann", "--reason", "INC-1", "-o", "json"]).json();
    assert_eq!((&done["selected"], &done["restored"]), (&20.into(), &19.into()), "{done}");
    assert_eq!(done["skipped_by_reason"]["discarded"], 1, "{done}");
    let plan = std::fs::read(archive.path(&format!("restores/{}/plan.json", done["restore_id"].as_str().unwrap())));
    let plan: Value = serde_json::from_slice(&plan.unwrap()).unwrap();
    assert_eq!((&plan["by"], &plan["reason"], &plan["draft"]), (&"Ann".into(), &"INC-1".into(), &id.as_str().into()));
    assert_eq!(plan["filter"]["topic"][0], "orders-dlq", "what was asked for");
    let twice = restore(&archive, &broker, &["--plan", &id, "-o", "json"]).json();
    assert_eq!((&twice["to_restore"], &twice["plan"]), (&0.into(), &Value::Null), "{twice}");
    for (args, says) in [
        (vec!["--plan", "0123456789ab"], "there is no such plan"),
        (vec!["--plan", "../x"], "there is no such plan"),
        (vec!["--plan", &id, "--topic", "orders-dlq"], "leave the filters out"),
        (vec!["--plan", &id, "--to", "x"], "cannot be used with"),
    ] {
        let refused = restore(&archive, &broker, &args);
        assert!(refused.code == 2 && refused.err.contains(says), "{refused:?}");
    }
    let draft = archive.path(&format!("restores/draft-{id}.json"));
    let changed = std::fs::read_to_string(&draft).unwrap().replace("\"selected\":20", "\"selected\":21");
    std::fs::write(&draft, changed).unwrap();
    assert!(restore(&archive, &broker, &["--plan", &id]).fails(1).contains("is not what the dry run wrote"));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_operators_with_one_plan_send_it_once() {
    let (archive, broker) = world(300, 1).await;
    let dry = restore(&archive, &broker, &["--all", "-n", "-o", "json"]).json();
    let id = dry["plan"].as_str().unwrap();
    let brokers = broker.brokers();
    let start = || {
        let mut command = support::program();
        command.args(["restore", "--archive", archive.url(), "--brokers", &brokers, "--plan", id, "--batch", "10"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let both = [start(), start()].map(|child| Run::from(child.wait_with_output().unwrap()));
    assert!(both.iter().any(|run| run.code == 0), "{both:?}");
    let rows = read(&broker, ("orders", 0), 300);
    let mut values: Vec<_> = rows.iter().map(|r| r.value.unwrap().to_vec()).collect();
    values.sort();
    values.dedup();
    assert_eq!((rows.len(), values.len()), (300, 300), "{both:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_are_stripped_kept_and_added_as_asked() {
    let (archive, broker) = world(1, 1).await;
    let sent = |args: &[&str]| {
        let again = ["--all", "--include-restored", "-o", "json"];
        let done = restore(&archive, &broker, &[&again[..], args].concat()).json();
        assert_eq!(done["restored"], 1, "{done}");
        done["restore_id"].as_str().unwrap().to_owned()
    };
    let id = sent(&[]);
    sent(&["--no-restore-headers", "--strip", "tenant", "--keep", "^__connect.errors.off", "--add-header", "x=1=2"]);
    sent(&["--no-restore-headers", "--strip", "^", "--keep", "traceparent"]);
    sent(&["--add-header", "x="]);
    let read = read(&broker, ("orders", 0), 4);
    let marks = |id: &str, n: u32| format!("dlq-archiver-restore-id={id} dlq-archiver-restore-count={n}");
    let headers: Vec<_> = read.iter().map(|r| texts(r.headers).join(" ")).collect();
    assert_eq!(headers[0], format!("traceparent=00-1 tenant=a {}", marks(&id, 1)));
    assert_eq!(headers[1], "__connect.errors.offset=0 traceparent=00-1 x=1=2");
    assert_eq!(headers[2], "traceparent=00-1");
    assert!(
        headers[3].starts_with("traceparent=00-1 tenant=a x= dlq-") && headers[3].ends_with("count=4"),
        "{headers:?}"
    );
    for (args, says) in [
        (["--strip", "^("], "--strip \"^(\" is not a regular expression"),
        (["--add-header", "x"], "it is NAME=VALUE"),
        (["--add-header", "dlq-archiver-x=1"], "the program's own"),
        (["--target-partition", "-1"], "origin, key, or a partition's number"),
        (["--rate", "0/s"], "above 0"),
        (["--abort-on-failures", "x"], "a number of records, or off"),
    ] {
        let refused = restore(&archive, &broker, &[&["--all"], &args[..]].concat());
        assert!(refused.code == 2 && refused.err.contains(says), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_partition_is_as_asked() {
    let (archive, broker) = world(4, 3).await;
    let sent = |args: &[&str]| restore(&archive, &broker, &[&["--all", "--include-restored"], args].concat());
    sent(&["--target-partition", "2"]).ok();
    assert_eq!(read(&broker, ("orders", 2), 4).len(), 4);
    let none = sent(&["--target-partition", "3"]);
    assert!(none.out.contains("target topic has no such partition") && none.code == 1, "{none:?}");
    sent(&[]).ok();
    assert_eq!(read(&broker, ("orders", 0), 4).len(), 4, "the origin's");
}

#[tokio::test(flavor = "multi_thread")]
async fn corrected_values_are_sent_in_place_of_the_archived_ones_and_both_hashes_are_kept() {
    let (archive, broker) = world(5, 1).await;
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("orders-dlq/0")).unwrap();
    std::fs::write(dir.path().join("orders-dlq/0/2"), b"corrected\xff").unwrap();
    let dir = dir.path().to_str().unwrap();
    // Without a filter, what there are values for.
    let dry = restore(&archive, &broker, &["--value-from-dir", dir, "-n", "-o", "json"]).json();
    assert_eq!(dry["to_restore"], 1, "{dry}");
    let plan = dry["plan"].as_str().unwrap();
    let done = restore(&archive, &broker, &["--plan", plan, "-o", "json"]).json();
    assert_eq!(done["restored"], 1, "{done}");
    assert_eq!(read(&broker, ("orders", 0), 1).get(0).value, Some(&b"corrected\xff"[..]));
    let list = std::fs::read(archive.path(done["lists"][0]["key"].as_str().unwrap())).unwrap();
    let mut rows = Vec::new();
    dlq_archiver::format::restored::read(list.into(), |row| rows.push(row)).unwrap();
    let correction = rows[0].correction.clone().unwrap();
    assert_eq!(correction.archived_sha256, Some(support::sha256(b"2")));
    assert_eq!(correction.restored_sha256, Some(support::sha256(b"corrected\xff")));
    // What `list` prints, edited.
    let lines = archive.run(&["list", "--record-id", "orders-dlq/0/4", "-o", "jsonl", "--payload"]).ok().to_owned();
    let file = tempfile::NamedTempFile::new().unwrap();
    let edited = lines.replace("\"kafka_value_text\":\"4\"", "\"kafka_value_text\":\"four\"");
    assert_ne!(edited, lines);
    std::fs::write(file.path(), edited).unwrap();
    let file = file.path().to_str().unwrap();
    restore(&archive, &broker, &["--value-from", file]).ok();
    assert_eq!(read(&broker, ("orders", 0), 2).get(1).value, Some(&b"four"[..]));
    for (args, says) in [
        (["--value-from", "/no/such"], "cannot be read"),
        (["--value-from-dir", "/no/such"], "cannot be read"),
        (["--value-from", "/dev/null"], "has no line"),
    ] {
        let refused = restore(&archive, &broker, &args);
        assert!(refused.fails(2).contains(says), "{refused:?}");
    }
    // Values for records that the filter does not select are told.
    let other = restore(&archive, &broker, &["--value-from", file, "--record-id", "orders-dlq/0/1", "-n"]);
    assert!(
        other.err.contains("1 of the corrected values") || other.out.contains("1 of the corrected values"),
        "{other:?}"
    );
}

/// A program that dead-letters each record that it gets, `limit` of them, from behind those that came before.
fn fail(broker: &MockBroker, records: i64) -> Vec<Rec<'static>> {
    let failed = read(broker, ("orders", 0), records);
    let leak = |bytes: &[u8]| -> &'static [u8] { Box::leak(bytes.to_vec().into_boxed_slice()) };
    let newest = failed.iter().last().unwrap();
    let at: &'static [u8] = leak(newest.offset.to_string().as_bytes());
    let kept = newest.headers.iter().map(|h| (leak(h.name), h.value.map(leak))).collect::<Vec<_>>();
    let added = [(CONNECT[0], &b"orders"[..]), (CONNECT[1], b"0"), (CONNECT[2], at)];
    let headers = kept.into_iter().chain(added.map(|(name, value)| (name.as_bytes(), Some(value)))).collect();
    vec![Rec { offset: 0, timestamp_ms: MS, key: Some(b"k"), value: newest.value.map(leak), headers }]
}

/// With the headers that say so, and without: then by the positions in the lists.
#[tokio::test(flavor = "multi_thread")]
async fn what_fails_again_after_each_restore_is_sent_as_often_as_is_allowed() {
    for marks in [&[][..], &["--no-restore-headers"]] {
        let (mut archive, broker) = world(1, 1).await;
        // In 2096: behind each restore.
        archive.cut_at_us = 4_000_000_000_000_000;
        for generation in 1..=3 {
            let all = [&["--all", "-o", "json"], marks].concat();
            let dry = restore(&archive, &broker, &[&all[..], &["-n"]].concat()).json();
            if generation > 1 {
                assert_eq!(
                    dry["restored_before"][0],
                    serde_json::json!({"attempt": generation, "records": 1}),
                    "{dry}"
                );
            }
            let done = restore(&archive, &broker, &all).json();
            assert_eq!(done["restored"], 1, "{marks:?}, {generation}: {done}");
            let mut again = fail(&broker, generation);
            again[0].offset = generation;
            archive.cut("orders-dlq", 0, generation, generation + 1, batch(&again), Vec::new()).await;
        }
        let stopped = restore(&archive, &broker, &[&["--all"], marks].concat());
        assert!(stopped.code == 1 && stopped.out.contains("0 of 4 selected records to restore"), "{stopped:?}");
        assert!(stopped.out.contains("as often as --max-attempts allows"), "{stopped:?}");
        let more =
            restore(&archive, &broker, &[&["--all", "--max-attempts", "4", "-o", "json"], marks].concat()).json();
        assert_eq!(more["restored"], 1, "{more}");
        let forced =
            restore(&archive, &broker, &[&["--all", "--include-restored", "-o", "json"], marks].concat()).json();
        assert_eq!(forced["restored"], 4, "{forced}");
        // The first one was archived before all restores: it is no return, and has been sent twice.
        for (most, sent) in [("2", 0), ("3", 1)] {
            let both =
                [&["--all", "--include-restored", "--max-attempts", most, "-o", "json", "-n"][..], marks].concat();
            let dry = restore(&archive, &broker, &both).json_of_failed();
            assert_eq!(dry["to_restore"], sent, "{most}: {dry}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_stops_when_more_fail_again_than_is_allowed_and_goes_on_when_told_to() {
    let (archive, broker) = world(300, 1).await;
    broker.create_topic("orders-dlq", 1).unwrap();
    let brokers = broker.brokers();
    let mut command = support::program();
    command.args([
        "restore",
        "--archive",
        archive.url(),
        "--brokers",
        &brokers,
        "--all",
        "--yes",
        "--delivery",
        "plain",
    ]);
    command.args(["--rate", "20/s", "--abort-on-failures", "5", "-o", "json"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A program that fails on each record.
    let producer = Producer::new(&Connection::new(&brokers), None).unwrap();
    let failing = std::thread::spawn(move || {
        let broker = Connection::new(&brokers);
        let (mut next, until) = (0, Instant::now() + Duration::from_secs(30));
        while next < 10 && Instant::now() < until {
            let reader = RangeReader::new(&broker).unwrap();
            let _ = reader.read(&TopicPartition::new("orders", 0), next, next + 1, Duration::from_secs(1), |m| {
                let mut batch = RawBatch::new();
                m.copy_into(&mut batch)?;
                let raw = batch.get(0);
                let at = raw.offset.to_string();
                let added = [(CONNECT[0], "orders"), (CONNECT[1], "0"), (CONNECT[2], at.as_str())];
                let added = added.map(|(n, v)| Header { name: n.as_bytes(), value: Some(v.as_bytes()) });
                let record = NewRecord {
                    topic: "orders-dlq",
                    partition: Some(0),
                    key: raw.key,
                    value: raw.value,
                    headers: raw.headers.iter().chain(added),
                    timestamp_ms: Some(raw.timestamp_ms),
                    token: 0,
                };
                producer.send(record, Duration::from_secs(5))?;
                next = raw.offset + 1;
                Ok(ControlFlow::Continue(()))
            });
            producer.flush_step().unwrap();
        }
    });
    let run = Run::from(child.wait_with_output().unwrap());
    failing.join().unwrap();
    assert!(run.code == 1 && run.err.contains("have failed again, such as orders-dlq/0/"), "{run:?}");
    assert!(run.err.contains("more than the 5 of --abort-on-failures"), "{run:?}");
    let id = run.err.split("--resume ").nth(1).unwrap().split(',').next().unwrap().to_owned();
    let done = restore(&archive, &broker, &["--resume", &id, "-o", "json", "--abort-on-failures", "off"]).json();
    assert_eq!((&done["restored"], &done["runs"]), (&300.into(), &2.into()), "{done}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_sent_than_the_rate_allows() {
    let (archive, broker) = world(60, 1).await;
    let began = Instant::now();
    restore(&archive, &broker, &["--all", "--rate", "20/s,1MiB/s", "--delivery", "plain"]).ok();
    // Three batches of a second, the last of which nothing waits for.
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(read(&broker, ("orders", 0), 60).len(), 60);
}

/// VAST: an event goes to every pipeline that is linked to its trigger.
#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_names_other_functions_that_a_replay_reaches() {
    let mut archive = TestArchive::new(Format::Parquet).await;
    let event = |offset, function: &'static str, source: &'static str| Rec {
        offset,
        timestamp_ms: MS,
        value: Some(b"{}"),
        headers: vec![
            (b"ce_knativeerrordest", Some(function.as_bytes())),
            (b"ce_source", Some(source.as_bytes())),
            (b"ce_id", Some(b"7")),
        ],
        ..Rec::default()
    };
    let events = [
        event(0, "http://resize.ns.svc/", "trigger-1"),
        event(1, "http://scan.ns.svc/", "trigger-1"),
        event(2, "http://other.ns.svc/", "trigger-2"),
    ];
    archive.cut("default-dlt", 0, 0, 3, batch(&events), Vec::new()).await;
    let broker = MockBroker::start().unwrap();
    broker.create_topic("default", 1).unwrap();
    let dry = |id: &str| restore(&archive, &broker, &["--record-id", id, "--to", "default", "-n", "-o", "json"]).json();
    assert_eq!(dry("default-dlt/0/0")["also_reaches"], serde_json::json!({"trigger-1": ["http://scan.ns.svc/"]}));
    assert_eq!(dry("default-dlt/0/2")["also_reaches"], serde_json::json!({}));
    let text = restore(&archive, &broker, &["--record-id", "default-dlt/0/1", "--to", "default", "-n"]);
    assert!(text.ok().contains("others that have failed on its events are http://resize.ns.svc/. What"), "{text:?}");
}
