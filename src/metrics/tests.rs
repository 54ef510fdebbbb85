//! What is scraped and probed, from counters and a board that are filled by hand.

use super::*;
use crate::cut::{self, CutRange, Tables};
use crate::format::{Compression, Format};
use crate::ledger::{Genesis, LEDGER_VERSION};
use crate::record::{Header, RawBatch, TimestampType};
use crate::retention::{Deadline, Limit};
use crate::store::Created;
use std::collections::BTreeSet;

const OPEN: &str = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";

fn monitor(counters: &Arc<Counters>) -> Monitor {
    Monitor::new(
        counters.clone(),
        Requests::default(),
        Limits { ready_below: 0.1, cut_min_age_ms: 0 },
        Box::new(|_| 0.5),
    )
}

fn lines(monitor: &Monitor, accept: &str) -> Vec<String> {
    let page = monitor.page("/metrics", accept).unwrap();
    assert_eq!(page.status, 200);
    page.body.lines().map(str::to_owned).collect()
}

fn has(lines: &[String], line: &str) {
    assert!(lines.iter().any(|l| l == line), "{line} is not in {lines:#?}");
}

#[test]
fn counters_and_board_become_series() {
    let counters = Arc::new(Counters::default());
    let topic = counters.topic("t-dlq");
    topic.read(7, 700);
    topic.cut(7, Created::New);
    topic.object(90);
    topic.shared(4);
    topic.gap(GapKind::Lost, 3);
    let now = now_us() / 1000;
    let tp = &TopicPartition::new("t-dlq", 2);
    counters.board.add(tp);
    counters.board.update(tp, |k| {
        (k.archived, k.archived_at_ms, k.unread_ms) = (Some(10), 1_500, Some(now - 1000));
        k.log = Log { start: 3, next: 8, stable: 12, end: 15, ..Log::default() };
        k.deadline = Some(Deadline { at_ms: 2_500, limit: Limit::Size, left: 0.25 });
        (k.read, k.record_bytes) = (10, Some(100));
    });
    let open = lines(&monitor(&counters), OPEN);
    assert_eq!(open.last().unwrap(), "# EOF");
    for line in [
        "dlq_archiver_records_archived_total{topic=\"t-dlq\"} 7",
        "dlq_archiver_read_bytes_total{topic=\"t-dlq\"} 700",
        "dlq_archiver_object_bytes_total{topic=\"t-dlq\"} 90",
        "dlq_archiver_shared_records_total{topic=\"t-dlq\"} 4",
        "dlq_archiver_gap_offsets_total{topic=\"t-dlq\",kind=\"lost\"} 3",
        "dlq_archiver_gap_offsets_total{topic=\"t-dlq\",kind=\"compacted\"} 0",
        "dlq_archiver_lag_offsets{topic=\"t-dlq\",partition=\"2\"} 5.0",
        "dlq_archiver_hidden_offsets{topic=\"t-dlq\",partition=\"2\"} 3.0",
        "dlq_archiver_lag_bytes{topic=\"t-dlq\",partition=\"2\"} 500.0",
        "dlq_archiver_deadline_timestamp_seconds{topic=\"t-dlq\",partition=\"2\"} 2.5",
        "dlq_archiver_retention_left_ratio{topic=\"t-dlq\",partition=\"2\"} 0.25",
        "dlq_archiver_last_archived_timestamp_seconds{topic=\"t-dlq\",partition=\"2\"} 1.5",
        "dlq_archiver_stopped{topic=\"t-dlq\",partition=\"2\"} 0.0",
        "dlq_archiver_partitions_assigned 1",
        "dlq_archiver_unavailable_since_timestamp_seconds{what=\"store\"} 0.0",
        "dlq_archiver_ready 0",
        "# TYPE dlq_archiver_records_archived counter",
    ] {
        has(&open, line);
    }
    // A client that knows Prometheus' own format only.
    let old = lines(&monitor(&counters), "text/plain");
    assert!(!old.iter().any(|l| l == "# EOF"));
    has(&old, "# TYPE dlq_archiver_records_archived_total counter");
    has(&old, "dlq_archiver_records_archived_total{topic=\"t-dlq\"} 7");
    has(&old, &format!("dlq_archiver_build_info{{version=\"{PROGRAM_VERSION}\"}} 1"));
}

#[test]
fn originals_are_counted_by_what_became_of_them() {
    let counters = Arc::new(Counters::default());
    let of = |counters| lines(&monitor(counters), OPEN).into_iter().filter(|l| l.contains("original")).count();
    assert_eq!(of(&counters), 0, "without --refetch");
    let gone = |n| BTreeMap::from([(refetched::State::Gone, n)]);
    counters.add_originals(&gone(2), 5);
    counters.add_originals(&gone(1), 4);
    let open = lines(&monitor(&counters), OPEN);
    has(&open, "dlq_archiver_originals_total{state=\"gone\"} 3");
    has(&open, "dlq_archiver_originals_total{state=\"refetched\"} 0");
    has(&open, "dlq_archiver_originals_unanswered 4");
}

#[test]
fn a_partition_that_has_nothing_waiting_has_no_deadline() {
    let counters = Arc::new(Counters::default());
    let tp = &TopicPartition::new("t", 0);
    counters.board.add(tp);
    counters.board.update(tp, |k| {
        // Archived since the last look.
        k.archived = Some(15);
        k.unread_ms = Some(1);
        k.log = Log { next: 8, stable: 15, end: 15, ..Log::default() };
        k.deadline = Some(Deadline { at_ms: 1, limit: Limit::Time, left: -1.0 });
    });
    let lines = lines(&monitor(&counters), OPEN);
    has(&lines, "dlq_archiver_lag_offsets{topic=\"t\",partition=\"0\"} 0.0");
    for name in ["deadline_timestamp_seconds{", "retention_left_ratio{", "oldest_unarchived_timestamp_seconds{"] {
        assert!(!lines.iter().any(|l| l.contains(name)), "{lines:#?}");
    }
}

#[test]
fn ten_thousand_pipelines_add_no_series() {
    let (tables, counters) =
        (Tables::with_routing(|routing| routing.with_max_pipelines(10_000)), Arc::new(Counters::default()));
    let mut batch = RawBatch::new();
    for i in 0..10_000 {
        let connector = format!("pipe-{i}");
        let error = format!("com.example.Failure{i}");
        let headers = [
            ("__connect.errors.topic", "orders"),
            ("__connect.errors.partition", "0"),
            ("__connect.errors.offset", "1"),
            ("__connect.errors.connector.name", connector.as_str()),
            ("__connect.errors.exception.class.name", error.as_str()),
        ];
        let headers = headers.iter().map(|(name, v)| Header { name: name.as_bytes(), value: Some(v.as_bytes()) });
        batch.push(i, 0, TimestampType::CreateTime, 0, None, Some(b"x"), headers);
    }
    let groups = cut::group(&batch, "t", 0, &tables);
    assert_eq!(groups.len(), 10_000, "each record is of a pipeline of its own");
    let genesis = Genesis {
        version: LEDGER_VERSION,
        archive_id: "a".into(),
        topic: "t".into(),
        partition: 0,
        generation: 1,
        topic_id: None,
        first_offset: 0,
        previous_sha256: None,
        created_at: String::new(),
    };
    let format = Format::Jsonl(Compression::None);
    let range = CutRange { from: 0, to: 10_000, cut_at_us: 0 };
    let intent = cut::intent(&genesis, range, &batch, &groups, Vec::new(), format, &tables).unwrap();
    for (object, group) in intent.objects.iter().zip(&groups) {
        let rows = group.rows.iter().map(|&row| batch.get(row as usize));
        let encoded = cut::encode(&intent, object, None, rows, format, &tables, "").unwrap();
        counters.decoded(&encoded.tally);
        counters.topic("t").object(encoded.object.size);
    }
    let lines = lines(&monitor(&counters), OPEN);
    has(&lines, "dlq_archiver_objects_total{topic=\"t\"} 10000");
    has(&lines, "dlq_archiver_records_decoded_total{dialect=\"connect\"} 10000");
    assert!(!lines.iter().any(|l| l.contains("pipe-") || l.contains("Failure")));
    assert!(lines.len() < 200, "{}", lines.len());
}

#[test]
fn beyond_a_thousand_partitions_the_most_pressing_are_shown() {
    let counters = Arc::new(Counters::default());
    for p in 0..3_000 {
        let tp = &TopicPartition::new("t", p);
        counters.board.add(tp);
        counters.board.update(tp, |k| {
            k.log = Log { end: 5, stable: 5, ..Log::default() };
            match p {
                2_999 => k.standing = Standing::Stopped("damage".into()),
                2_000.. => k.deadline = Some(Deadline { at_ms: i64::from(p), limit: Limit::Time, left: 0.5 }),
                _ => {}
            }
        });
    }
    let lines = lines(&monitor(&counters), OPEN);
    let of = |name: &str| lines.iter().filter(|l| l.starts_with(&format!("dlq_archiver_{name}{{"))).count();
    assert_eq!((of("lag_offsets"), of("stopped"), of("deadline_timestamp_seconds")), (1_000, 1_000, 999));
    has(&lines, "dlq_archiver_stopped{topic=\"t\",partition=\"2999\"} 1.0");
    has(&lines, "dlq_archiver_partitions_omitted 2000");
    has(&lines, "dlq_archiver_partitions_assigned 3000");
    has(&lines, "dlq_archiver_partitions_stopped 1");
}

#[test]
fn probes_say_what_and_why() {
    let counters = Arc::new(Counters::default());
    let monitor = monitor(&counters);
    let page = |path| monitor.page(path, "").map(|p| (p.status, p.body)).unwrap();
    let (status, body) = page("/readyz");
    assert_eq!(status, 503);
    assert!(body.contains("\"what\":\"brokers\"") && body.contains("\"ready\":false"), "{body}");
    counters.vitals.brokers_answered.store(true, Relaxed);
    counters.vitals.store_answered.store(true, Relaxed);
    assert_eq!(page("/readyz").0, 200);
    assert_eq!(page("/livez"), (200, "{\"alive\":true}\n".into()));
    for p in 0..150 {
        let tp = &TopicPartition::new("t", p);
        counters.board.add(tp);
        counters.board.update(tp, |k| k.standing = Standing::Stopped("it \"broke\"".into()));
    }
    let (status, body) = page("/readyz");
    let document: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &document["more_reasons"]), (503, &50.into()));
    assert_eq!(document["reasons"][0]["why"], "stopped: it \"broke\"");
    assert!(monitor.page("/", "").is_none());
}

/// Names and help are what `promtool check metrics` asks for.
#[test]
fn names_follow_conventions() {
    let lines = lines(&monitor(&Arc::default()), "");
    let types: BTreeSet<(&str, &str)> =
        lines.iter().filter_map(|l| l.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    assert!(types.len() > 30, "{types:?}");
    for (name, kind) in types {
        assert!(name.starts_with("dlq_archiver_") || name.starts_with("process_"), "{name}");
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name} {kind}");
        assert!(lines.iter().any(|l| l.starts_with(&format!("# HELP {name} "))), "{name} has no help");
    }
}
