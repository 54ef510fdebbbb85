//! The real program's `tail` against an embedded broker that has the golden fixtures' records.

mod broker;
mod common;

use broker::{Broker, failure, moved, program};
use common::fixtures;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

const ALL: [&str; 8] = [
    "vast",
    "connect",
    "connect-no-context",
    "share-group-copied",
    "share-group-headers-only",
    "streams",
    "spring-dlt",
    "spring-retry-topics",
];

fn everything() -> (Broker, usize) {
    (Broker::with_fixtures(&ALL), ALL.iter().map(|name| fixtures(name).len()).sum())
}

const VAST_LINE: &str = "2026-10-08T14:11:27.032Z  default-dlt/7/0  87982405058579  \
    vastdata.com:checked-uploads.f1c78fd2-63e7-408c-9e7b-0bd4a3fd3341 vastdata.com:Element.ElementCreated  \
    docs-src/checked/tiny.txt  500  \
    http://picky-nbdpm6d3aaaaa.dataengine-ns-da47bae0-aefd-4e85-a5a9-2020d6a2cb91.svc.cluster.local  \
    checked/tiny.txt is 4 bytes, need at least 10";

#[test]
fn one_line_for_each_dead_letter_of_every_dialect() {
    let (broker, count) = everything();
    let lines = broker.lines(&["tail", "--topic", "^.*", "--from-beginning", "--once"]);
    assert_eq!(lines.len(), count, "{lines:#?}");
    let has = |line: &str| assert!(lines.iter().any(|l| l == line), "{line} is not in {lines:#?}");
    has(VAST_LINE);
    has("2025-10-09T08:53:22.000Z  shop.orders-dlq/0/2  -  shop.orders/0/1  -  java.sql.SQLException  \
         orders-to-warehouse  null value in column \"body\" violates not-null constraint");
    has("2026-11-29T17:54:41.599Z  dlq.billing/0/0  -  orders/0/0  -  -  billing  Offset rejected by client.");
    has("2025-10-09T08:53:20.000Z  payments-dlq/0/0  -  payments/0/0  -  java.lang.IllegalStateException  -  \
         score overflow for length 25");
    has("2025-10-09T08:53:21.000Z  shop.orders-dlq-bare/0/0  -  -  -  -  -  -");
    // The same by the last records of each topic, and by name.
    let last = broker.lines(&["tail", "--topic", "^.*", "-n", "1000", "--once"]);
    assert_eq!(last.len(), count);
    assert_eq!(
        broker.lines(&["tail", "--topic", "default-dlt", "-n", "1000", "--once", "--partition", "7"])[0],
        VAST_LINE
    );
}

#[test]
fn the_last_records_of_a_topic_come_first_by_default() {
    let one = fixtures("connect-no-context").remove(0);
    // Partition 1 is older than the last ten.
    let at = |i: i64| moved(&one, "many-dlq", i32::from(i < 5), 1_700_000_000_000 + i * 1000);
    let broker = Broker::with(&(0..20).map(at).collect::<Vec<_>>());
    let ids = |lines: Vec<String>| -> Vec<String> {
        lines.iter().map(|l| l.split("  ").nth(1).unwrap().to_owned()).collect()
    };
    let want: Vec<_> = (5..15).map(|offset| format!("many-dlq/0/{offset}")).collect();
    assert_eq!(ids(broker.lines(&["tail", "-t", "many-dlq", "--once"])), want);
    let want: Vec<_> = ["many-dlq/1/4", "many-dlq/0/0"].map(str::to_owned).into();
    let all = ids(broker.lines(&["tail", "-t", "many-dlq", "--once", "-n", "100"]));
    assert_eq!((all.len(), &all[4..6]), (20, &want[..]));
    assert_eq!(ids(broker.lines(&["tail", "-t", "many-dlq", "--limit", "2"])).len(), 2);
    let none = broker.command(&["tail", "-t", "many-dlq", "--once", "-n", "0"]).output().unwrap();
    assert_eq!((none.status.code(), none.stdout.as_slice()), (Some(0), &b""[..]));
    assert_eq!(broker::text(&none.stderr), "No dead letter to show: the topics are empty, or none matches.\n");
}

/// With a filter, the last N were once those of the last N records that match, often none.
#[test]
fn the_last_records_are_the_last_that_match() {
    let (other, wanted) = (fixtures("streams").remove(0), fixtures("vast").remove(0));
    let at = |i: i64| {
        // Partition 0 has a match at every 100th record; partition 1 has one, newer than all.
        let from = if i % 100 == 0 || i == 1999 { &wanted } else { &other };
        moved(from, "many-dlq", i32::from(i >= 1500), 1_700_000_000_000 + i * 1000)
    };
    let broker = Broker::with(&(0..2000).map(at).collect::<Vec<_>>());
    let tail = |args: &[&str]| -> Vec<String> {
        let args = [&["tail", "-t", "many-dlq", "--dialect", "knative", "--once"], args].concat();
        broker.lines(&args).iter().map(|l| l.split("  ").nth(1).unwrap().to_owned()).collect()
    };
    let last = |n: usize| -> Vec<String> {
        let of = |i: i64| if i < 1500 { format!("many-dlq/0/{i}") } else { format!("many-dlq/1/{}", i - 1500) };
        let all: Vec<_> = (0..2000).step_by(100).chain([1999]).map(of).collect();
        all[all.len().saturating_sub(n)..].to_vec()
    };
    for n in [1, 2, 6, 7, 10, 1000] {
        assert_eq!(tail(&["-n", &n.to_string()]), last(n), "{n}");
    }
    assert_eq!(tail(&["-n", "3", "--partition", "0"]), ["many-dlq/0/1200", "many-dlq/0/1300", "many-dlq/0/1400"]);
    assert!(broker.lines(&["tail", "-t", "many-dlq", "--error-code", "1", "--once", "-o", "jsonl"]).is_empty());
}

#[test]
fn raw_shows_every_header_key_and_value() {
    let (broker, _) = everything();
    let lines = broker.lines(&["tail", "-t", "shop.orders-dlq", "--raw", "--from-beginning", "--once"]);
    assert_eq!(lines[0], "shop.orders-dlq/0/0  2025-10-09T08:53:21.000Z  CreateTime 1760000001000");
    assert_eq!(lines[1..4], ["  dup: \"a\"", "  dup: \"b\"", "  __connect.errors.topic: \"shop.orders\""]);
    let has = |line: &str| assert!(lines.iter().any(|l| l == line), "{line} is not in {lines:#?}");
    has("  trace-id: null");
    has("  empty: \"\"");
    has("  bin: 0x00000005 (4 bytes)");
    has("  key: null");
    has("  key: \"\" (empty)");
    has("  key (3 bytes, text): o-4");
    has("  value: 0x00fffe0ac328 (6 bytes)");
    has("  value: null");
    has("  value (15 bytes, text): not json at all");
    assert!(
        lines.iter().any(|l| l.starts_with("  2025-10-09T08:53:21.000Z  shop.orders-dlq/0/0  -  shop.orders/1/0  "))
    );
    let json = "  value (440 bytes, text): {\"Records\": [{\"eventVersion\": \"2.2\"";
    let vast = broker.lines(&["tail", "-t", "default-dlt", "--partition", "7", "--raw", "--limit", "1"]);
    assert_eq!(vast.len(), 1 + 16 + 2 + 1);
    assert!(vast[18].starts_with(json), "{vast:#?}");
    assert_eq!(vast[19].trim_start(), VAST_LINE);
}

#[test]
fn json_lines_have_the_archives_columns() {
    let (broker, count) = everything();
    let lines = broker.lines(&["tail", "-t", "^.*", "--from-beginning", "--once", "-o", "jsonl"]);
    let parsed: Vec<serde_json::Map<String, serde_json::Value>> =
        lines.iter().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(parsed.len(), count);
    let names = dlq_archiver::format::schema::COLUMNS.map(|c| c.name);
    assert!(parsed.iter().all(|r| r.keys().map(String::as_str).eq(names)));
    let vast = parsed.iter().find(|r| r["record_id"] == "default-dlt/7/0").unwrap();
    assert_eq!(vast["error_message"], "checked/tiny.txt is 4 bytes, need at least 10");
    assert_eq!((&vast["error_code"], &vast["dialect"]), (&500.into(), &"knative".into()));
    assert_eq!(vast["kafka_timestamp_ms"], 1_791_468_687_032_i64);

    let document = broker.lines(&["tail", "-t", "^.*", "--from-beginning", "--once", "-o", "json"]).concat();
    let document: Vec<serde_json::Value> = serde_json::from_str(&document).unwrap();
    assert_eq!(document.len(), count);
    let none = broker.lines(&["tail", "-t", "^.*", "--once", "-o", "json", "--dialect", "nothing"]);
    assert_eq!(none, ["[]"]);
}

/// The embedded broker cannot seek by time: it answers as if no record were that young.
#[test]
fn since_works_where_the_broker_cannot_seek_by_time() {
    let broker = Broker::with_fixtures(&["vast"]);
    let all = fixtures("vast").iter().map(|f| f.batch.get(0).timestamp_ms).collect::<Vec<_>>();
    let since = 1_791_468_759_101_i64;
    let want = all.iter().filter(|t| **t >= since).count();
    assert!(want > 0 && want < all.len());
    for time in [since.to_string(), "2026-10-08T14:12:39.101Z".to_owned()] {
        assert_eq!(broker.lines(&["tail", "-t", "default-dlt", "--once", "--since", &time]).len(), want, "{time}");
    }
    assert_eq!(broker.lines(&["tail", "-t", "default-dlt", "--once", "--since", "2026-10-07"]).len(), all.len());
}

#[test]
fn filters_by_what_was_decoded() {
    let (broker, _) = everything();
    let count = |filter: &[&str]| {
        let args = [&["tail", "-t", "^.*", "--from-beginning", "--once", "-o", "jsonl"], filter].concat();
        broker.lines(&args).len()
    };
    assert_eq!(count(&["--dialect", "streams"]), fixtures("streams").len());
    assert_eq!(count(&["--dialect", "streams", "--error-code", "500"]), 0);
    assert!(count(&["--error-code", "500"]) > 0);
    assert_eq!(count(&["--pipeline", "orders-to-warehouse"]), fixtures("connect").len());
    assert_eq!(count(&["--error-class", "SQLException"]), count(&["--error-class", "java.sql.SQLException"]));
    assert_eq!(
        count(&["--error-class", "java.sql.SQLException"])
            + count(&["--error-class", "org.apache.kafka.connect.errors.DataException"]),
        count(&["--error-class", "^java\\.sql\\.|^org\\.apache\\.kafka\\.connect\\.errors\\.Data"])
    );
}

#[test]
fn follows_until_ctrl_c() {
    let broker = Broker::with_fixtures(&["vast"]);
    let next = fixtures("vast").iter().filter(|f| f.partition == 7).count();
    let mut child = broker.command(&["tail", "-t", "default-dlt", "-n", "1"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    broker.produce(&[moved(&fixtures("vast")[0], "default-dlt", 7, 1_791_468_687_033)]);
    assert_eq!(
        lines.next().unwrap().unwrap(),
        VAST_LINE.replace("27.032Z", "27.033Z").replace("/7/0 ", &format!("/7/{next} "))
    );
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(lines.next().is_none());
}

#[test]
fn says_in_one_line_what_is_wrong() {
    let broker = Broker::with_fixtures(&["streams"]);
    let (code, line) = failure(&broker.command(&["tail", "-t", "payment-dlq"]).output().unwrap());
    assert_eq!(code, 2);
    assert!(line.contains("\"payment-dlq\" does not exist") && line.contains("payments-dlq"), "{line}");
    let (code, line) = failure(&broker.command(&["tail", "-t", "payments-dlq", "--partition", "5"]).output().unwrap());
    assert_eq!((code, line.contains("payments-dlq has 3, from 0")), (2, true), "{line}");
    let (code, line) = failure(&broker.command(&["tail", "-t", "^nosuch", "--once"]).output().unwrap());
    assert_eq!((code, line.contains("no topic matches ^nosuch")), (2, true), "{line}");
    let (code, _) = failure(&broker.command(&["tail", "-t", "payments-dlq", "--since", "soon"]).output().unwrap());
    assert_eq!(code, 2);
    let (code, line) =
        failure(&broker.command(&["tail", "-t", "payments-dlq", "--raw", "-o", "json"]).output().unwrap());
    assert_eq!((code, line.contains("--raw")), (2, true), "{line}");

    let (code, line) = failure(&program(&["tail", "-t", "x"]).output().unwrap());
    assert_eq!((code, line.contains("--brokers")), (2, true), "{line}");
    let began = Instant::now();
    let nobody = ["tail", "-t", "x", "--brokers", "127.0.0.1:1", "--start-timeout", "2s"];
    let (code, line) = failure(&program(&nobody).output().unwrap());
    assert_eq!((code, line.contains("127.0.0.1:1")), (1, true), "{line}");
    assert!(began.elapsed() < Duration::from_secs(10));
}
