//! `list`, `show` and `summary`: the real program on archives in a folder.

mod support;

use dlq_archiver::format::{Compression, Format};
use dlq_archiver::ledger::{Gap, GapKind};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead as _, Read as _};
use std::process::Stdio;
use support::{Rec, TestArchive, batch, program, run};

async fn fixtures() -> TestArchive {
    TestArchive::of_fixtures(Format::Parquet).await
}

fn ids(rows: &[Value]) -> Vec<&str> {
    rows.iter().map(|r| r["record_id"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn list_has_every_record_once_in_every_output() {
    let total: usize = support::fixtures().values().map(|b| b.len()).sum();
    for format in [Format::Parquet, Format::Jsonl(Compression::Zstd)] {
        let archive = TestArchive::of_fixtures(format).await;
        let rows = archive.run(&["list", "-o", "jsonl"]).lines();
        assert_eq!(rows.len(), total);
        let mut unique = ids(&rows);
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), total);
        let array = archive.run(&["list", "-o", "json"]).json();
        assert_eq!(array.as_array().unwrap(), &rows);
        let table = archive.run(&["list"]);
        assert_eq!(table.ok().lines().count(), total + 1);
        assert!(table.err.starts_with("12 records without all of the original: 0 read again"), "{}", table.err);
        let default = rows.iter().find(|r| r["record_id"] == "default-dlt/7/0").unwrap();
        assert_eq!(default["error_code"], 500);
        assert_eq!(default["kafka_timestamp"], "2026-10-08T14:11:27.032000Z");
        assert!(default["kafka_value_size"].as_i64().unwrap() > 100);
        assert!(default.get("kafka_value_text").is_none() && default.get("kafka_headers").is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn list_with_payload_has_the_schemas_columns_in_order() {
    let archive = fixtures().await;
    let rows = archive.run(&["list", "-o", "jsonl", "--payload", "--record-id", "default-dlt/7/0"]).lines();
    let names: Vec<_> = rows[0].as_object().unwrap().keys().map(String::as_str).collect();
    let columns: Vec<_> = dlq_archiver::format::schema::COLUMNS.iter().map(|c| c.name).collect();
    assert_eq!(names, columns);
    assert!(rows[0]["kafka_value_text"].as_str().unwrap().starts_with("{\"Records\""));
    assert_eq!(
        rows[0]["kafka_headers"][0],
        json!({"name": "ce_specversion", "name_bytes": null, "value_text": "1.0", "value_bytes": null})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_come_with_the_newest_last() {
    let archive = fixtures().await;
    let mut all = archive.run(&["list", "-o", "jsonl"]).lines();
    all.sort_by_key(|r| r["kafka_timestamp_ms"].as_i64());
    for limit in [1, 5, 17, 1000] {
        let newest = archive.run(&["list", "-o", "jsonl", "--newest", &limit.to_string()]).lines();
        let times = |rows: &[Value]| rows.iter().map(|r| r["kafka_timestamp_ms"].as_i64().unwrap()).collect::<Vec<_>>();
        assert_eq!(times(&newest), times(&all[all.len().saturating_sub(limit)..]));
    }
    let table = archive.run(&["list", "--newest", "2"]);
    assert_eq!(table.ok().lines().count(), 3);
    assert_eq!(table.err, "These are the newest 2; there are more: --limit 0 lists all.\n");
    assert_eq!(archive.run(&["list", "--limit", "0"]).ok().lines().count(), all.len() + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_select_what_they_say() {
    let archive = fixtures().await;
    let all = archive.run(&["list", "-o", "jsonl"]).lines();
    let check = |flags: &[&str], matches: &dyn Fn(&Value) -> bool| {
        let args = [&["list", "-o", "jsonl"], flags].concat();
        let rows = archive.run(&args).lines();
        let want: Vec<_> = all.iter().filter(|r| matches(r)).cloned().collect();
        assert!(!want.is_empty() && want.len() < all.len(), "{flags:?} has to tell some from others");
        assert_eq!(ids(&rows), ids(&want), "{flags:?}");
        let summary = archive.run(&[&["summary", "-o", "json"], flags].concat()).json();
        assert_eq!(summary["records"], want.len(), "{flags:?}");
        let exact = archive.run(&[&["summary", "-o", "json", "--exact"], flags].concat()).json();
        assert_eq!(exact["records"], want.len(), "{flags:?}");
        let by_day = archive.run(&[&["summary", "-o", "json", "--by", "event-type,date"], flags].concat()).json();
        assert_eq!(by_day["objects_counted_from_manifests"], 0);
        assert_eq!(by_day["records"], want.len(), "{flags:?}");
    };
    let text = |r: &Value, column: &str| r[column].as_str().unwrap_or_default().to_owned();
    check(&["--topic", "default-dlt"], &|r| r["kafka_topic"] == "default-dlt");
    check(&["-t", "^dlq", "-t", "mail-dlt"], &|r| {
        text(r, "kafka_topic").starts_with("dlq") || r["kafka_topic"] == "mail-dlt"
    });
    check(&["--partition", "1,7"], &|r| r["kafka_partition"] == 1 || r["kafka_partition"] == 7);
    check(&["--offsets", "1..3"], &|r| (1..3).contains(&r["kafka_offset"].as_i64().unwrap()));
    check(&["--offsets", "..2"], &|r| r["kafka_offset"].as_i64().unwrap() < 2);
    check(&["--since", "2026-11-20"], &|r| text(r, "kafka_timestamp").as_str() >= "2026-11-20");
    check(&["--until", "2026-10-08T14:11:27.032Z"], &|r| {
        text(r, "kafka_timestamp").as_str() < "2026-10-08T14:11:27.032"
    });
    check(&["--pipeline", "picky"], &|r| r["pipeline_name"] == "picky");
    check(&["--dialect", "streams"], &|r| r["dialect"] == "streams");
    check(&["--error-code", "500"], &|r| r["error_code"] == 500);
    check(&["--error-class", "SQLException"], &|r| r["error_class"] == "java.sql.SQLException");
    check(&["--error-class", "^java"], &|r| text(r, "error_class").starts_with("java"));
    check(&["--error-message", "(?i)REFUSED"], &|r| text(r, "error_message").contains("refused"));
    check(&["--origin-topic", "orders"], &|r| r["origin_topic"] == "orders");
    let event = text(all.iter().find(|r| !r["event_id"].is_null()).unwrap(), "event_id");
    check(&["--event-id", &event], &|r| r["event_id"] == event.as_str());
    check(&["--record-id", "mail-dlt/0/1", "--record-id", "default-dlt/3/0"], &|r| {
        r["record_id"] == "mail-dlt/0/1" || r["record_id"] == "default-dlt/3/0"
    });
    check(&["--where", "error_code >= 500 OR error_class LIKE 'java.sql.%'"], &|r| {
        r["error_code"].as_i64() >= Some(500) || text(r, "error_class").starts_with("java.sql.")
    });
    check(&["--where", "kafka_timestamp >= '2026-11-20' AND dialect <> 'vast'", "--partition", "0"], &|r| {
        let since = text(r, "kafka_timestamp").as_str() >= "2026-11-20";
        since && r["dialect"] != "vast" && r["kafka_partition"] == 0
    });
    let asked_by_header = "headers['__connect.errors.topic'] = 'orders' OR headers['ce_specversion'] IS NOT NULL";
    let by_header = archive.run(&["list", "-o", "jsonl", "--payload", "--where", asked_by_header]).lines();
    let has = |r: &Value| r["kafka_headers"].as_array().unwrap().iter().any(|h| h["name"] == "ce_specversion");
    assert!(by_header.iter().any(has) && by_header.len() < all.len());
    // What was read to judge is not printed unasked.
    let bare = archive.run(&["list", "-o", "jsonl", "--where", asked_by_header]).lines();
    assert_eq!(ids(&bare), ids(&by_header));
    assert!(bare[0].get("kafka_headers").is_none() && bare[0]["kafka_value_size"] == by_header[0]["kafka_value_size"]);
}

/// 600 KiB that do not compress, of events `<name>0` to `<name>1999`.
async fn events(archive: &mut TestArchive, name: &str, from: i64) {
    let mut state = 1u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8 | 0x80
    };
    let rows: Vec<(String, Vec<u8>)> =
        (0..2000).map(|i| (format!("{name}{i}"), (0..300).map(|_| noise()).collect())).collect();
    let records: Vec<_> = (from..)
        .zip(&rows)
        .map(|(offset, (id, value))| Rec {
            offset,
            value: Some(value),
            headers: vec![
                (b"ce_specversion", Some(b"1.0")),
                (b"ce_id", Some(id.as_bytes())),
                (b"ce_knativeerrorcode", Some(b"500")),
            ],
            ..Rec::default()
        })
        .collect();
    archive.cut("default-dlt", 0, from, from + 2000, batch(&records), Vec::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_whose_bloom_filter_has_not_the_event_is_not_fetched() {
    let mut archive = TestArchive::new(Format::Parquet).await;
    events(&mut archive, "a", 0).await;
    events(&mut archive, "b", 2000).await;
    for id in ["a7", "b1999"] {
        assert_eq!(archive.run(&["list", "--event-id", id, "-o", "jsonl"]).lines().len(), 1, "{id}");
    }
    assert_eq!(archive.run(&["list", "--event-id", "^[ab]7$", "-o", "jsonl"]).lines().len(), 2);
    // Who fetches the first object notices that it is longer than its manifest says.
    let first =
        archive.run(&["show", "default-dlt/0/0", "-o", "json"]).json()["data_object"].as_str().unwrap().to_owned();
    let path = archive.path(&first);
    let mut bytes = std::fs::read(&path).unwrap();
    assert!(bytes.len() > 300 << 10, "{}", bytes.len());
    bytes.push(0);
    std::fs::write(&path, &bytes).unwrap();
    for missed in [&["--event-id", "b1999"][..], &["--event-id", "b7", "--event-id", "b8"]] {
        assert!(archive.run(&[&["list", "-o", "jsonl"], missed].concat()).lines().len() <= 2);
        archive.run(&[&["summary"], missed].concat()).ok();
    }
    for read in [&["--event-id", "a7"][..], &["--event-id", "^b7$"], &["--event-id", "b7", "--event-id", "a8"]] {
        assert!(archive.run(&[&["list", "-o", "jsonl"], read].concat()).fails(1).contains(&first), "{read:?}");
    }
}

/// Orders of which some are no JSON, and some have another type.
async fn orders() -> TestArchive {
    let mut archive = TestArchive::new(Format::Parquet).await;
    for partition in 0..2 {
        for cut in 0..3 {
            let values: Vec<_> = (cut * 10..cut * 10 + 10)
                .map(|i| match i % 5 {
                    3 => "not json".to_owned(),
                    4 => format!("{{\"order\": {{\"id\": \"{i}\"}}}}"),
                    _ => format!("{{\"order\": {{\"id\": {i}}}}}"),
                })
                .collect();
            let records: Vec<_> = (cut * 10..cut * 10 + 10)
                .zip(&values)
                .map(|(offset, value)| Rec { offset, value: Some(value.as_bytes()), ..Rec::default() })
                .collect();
            archive.cut("orders-dlq", partition, cut * 10, cut * 10 + 10, batch(&records), Vec::new()).await;
        }
    }
    archive
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_cannot_be_judged_are_not_selected_and_told_once() {
    let archive = orders().await;
    let told = "24 records could not be judged by --where, and so are not selected: of orders-dlq/0/3, its value is not \
                JSON";
    for args in [&["list", "-o", "jsonl"][..], &["list"], &["summary", "-o", "jsonl"], &["list", "--newest", "500"]] {
        let run = archive.run(&[args, &["--where", "value_json.order.id >= 5"]].concat());
        assert_eq!(run.code, 0);
        assert_eq!(run.err.matches("could not be judged").count(), 1, "{run:?}");
        assert!(run.err.starts_with(told), "{run:?}");
    }
    let rows = archive.run(&["list", "-o", "jsonl", "--where", "value_json.order.id IN (5, 6, 7, 8, 9)"]).lines();
    assert_eq!(
        ids(&rows),
        ["orders-dlq/0/5", "orders-dlq/0/6", "orders-dlq/0/7", "orders-dlq/1/5", "orders-dlq/1/6", "orders-dlq/1/7"]
    );
    let sampled = archive.run(&["list", "-o", "jsonl", "--sample", "1", "--where", "value_json.order.id >= 5"]);
    assert!(sampled.err.starts_with(told), "a sample's cuts alone would not have all: {sampled:?}");
    let wrong = archive.run(&["list", "--where", "value_json.order.id >= 5 AND eror_code = 1"]);
    assert!(
        wrong.fails(2).contains("--where at character 30: there is no column \"eror_code\"; did you mean"),
        "{wrong:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_takes_the_first_in_order_and_a_sample_is_the_same_each_time() {
    let archive = orders().await;
    let list = |args: &[&str]| archive.run(&[&["list", "-o", "jsonl"], args].concat()).lines();
    let all = list(&[]);
    for n in [1, 9, 10, 11, 25, 30, 31, 60, 1000] {
        assert_eq!(ids(&list(&["--limit", &n.to_string()])), ids(&all[..n.min(60)]), "{n}");
    }
    let odd = list(&["--where", "kafka_offset >= 15", "--limit", "20"]);
    assert_eq!((odd.len(), &odd[15]["record_id"]), (20, &json!("orders-dlq/1/15")));

    let of = |n: usize| list(&["--sample", &n.to_string()]);
    let (ten, twenty) = (of(10), of(20));
    assert_eq!((ids(&ten), ids(&of(10))), (ids(&of(10)), ids(&ten)));
    assert_eq!((ten.len(), twenty.len(), of(60).len(), of(61).len()), (10, 20, 60, 60));
    assert!(ids(&ten).iter().all(|id| ids(&twenty).contains(id)), "a larger sample has the smaller one");
    let at = |r: &Value| (r["kafka_partition"].as_i64(), r["kafka_offset"].as_i64());
    assert!(ten.iter().map(at).is_sorted());
    assert!(ten.iter().any(|r| at(r).0 == Some(0)) && ten.iter().any(|r| at(r).0 == Some(1)));
    assert_ne!(ids(&ten), ids(&all[..10]), "not the first");
    assert_eq!(ids(&list(&["--sample", "10", "--limit", "4"])), ids(&ten[..4]), "a limit is taken from the sample");
    let newest = list(&["--sample", "10", "--newest", "4"]);
    assert!(newest.len() == 4 && ids(&newest).iter().all(|id| ids(&ten).contains(id)));
    assert_eq!(archive.run(&["list", "--sample", "10"]).ok().lines().count(), 11);
    for (args, told) in
        [(&["--sample", "0"][..], "0 is not in 1.."), (&["--newest", "1", "--limit", "1"], "cannot be used with")]
    {
        let run = archive.run(&[&["list"], args].concat());
        assert!(run.code == 2 && run.err.contains(told), "{run:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_matches_is_no_error_and_says_what_there_is() {
    let archive = fixtures().await;
    let list = archive.run(&["list", "--topic", "typo"]);
    assert_eq!((list.code, list.out.as_str()), (0, ""));
    assert!(
        list.err.starts_with(
            "No archived record matches. Likely: nothing archived matches --topic; the archive has topics default-dlt, \
             dlq.billing,"
        ),
        "{list:?}"
    );
    let old = archive.run(&["list", "--pipeline", "picky", "--until", "2020-01-01"]).err;
    assert!(old.contains("nothing archived matches --until; archived records are from 2025-10-09"), "{old}");
    assert_eq!(archive.run(&["list", "--topic", "typo", "-o", "json"]).ok(), "[]\n");
    assert_eq!(archive.run(&["list", "--topic", "typo", "-o", "jsonl"]).ok(), "");
    assert!(
        archive.run(&["list", "--event-id", "none"]).err.starts_with("No archived record matches. Likely: no record")
    );
    let empty = TestArchive::new(Format::Parquet).await;
    assert_eq!(empty.run(&["list"]).err, "The archive has no records yet.\n");
    assert_eq!(empty.run(&["summary"]).err, "The archive has no records yet.\n");
}

/// It was said to have no records yet.
#[tokio::test(flavor = "multi_thread")]
async fn an_archive_whose_ledger_was_deleted_is_not_empty() {
    let archive = fixtures().await;
    std::fs::remove_dir_all(archive.path("ledger")).unwrap();
    for args in [&["list"][..], &["summary"], &["show", "default-dlt/7/0"]] {
        let run = archive.run(args);
        assert!(run.code == 1 && run.err.contains("something deleted ledger/"), "{run:?}");
    }
}

/// They were left out without a word.
#[tokio::test(flavor = "multi_thread")]
async fn record_ids_that_are_not_in_the_archive_are_told() {
    let archive = fixtures().await;
    let ids = ["--record-id", "default-dlt/7/0", "--record-id", "default-dlt/7/999", "--record-id", "none/0/1"];
    for limit in [["--limit", "0"], ["--newest", "1"], ["--newest", "100"]] {
        let run = archive.run(&[&["list", "-o", "jsonl"], &limit[..], &ids[..]].concat());
        assert_eq!(run.lines().len(), 1);
        assert_eq!(run.err, "2 of 3 record ids not in the archive: default-dlt/7/999, none/0/1\n");
    }
    let run = archive.run(&["list", "--record-id", "default-dlt/7/0", "--pipeline", "none"]);
    assert!(run.err.contains("1 of 1 record ids not in the archive, or not matched: default-dlt/7/0"), "{run:?}");
    assert_eq!(archive.run(&["list", "--record-id", "default-dlt/7/0"]).err, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn dates_and_partitions_are_in_order_and_other_groups_by_size() {
    let archive = fixtures().await;
    let groups =
        |by: &str| archive.run(&["summary", "-o", "json", "--by", by]).json()["groups"].as_array().unwrap().clone();
    let dates: Vec<_> = groups("date").iter().map(|g| g["dt"].as_str().unwrap().to_owned()).collect();
    assert!(dates.len() > 1 && dates.is_sorted(), "{dates:?}");
    let at = |g: &Value| (g["kafka_topic"].to_string(), g["kafka_partition"].as_i64().unwrap());
    assert!(groups("topic,partition").iter().map(at).is_sorted());
    assert!(groups("topic").iter().rev().map(|g| g["records"].as_u64().unwrap()).is_sorted());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_control_character_of_a_record_reaches_the_terminal() {
    let mut archive = TestArchive::new(Format::Parquet).await;
    let bad = "\u{1b}[31mred\u{1b}[0m\u{1b}]0;t\u{7}\r\n\u{9b}2J\u{202e}e\u{200b}nd".as_bytes();
    let records = batch(&[Rec {
        value: Some(bad),
        key: Some(bad),
        headers: vec![
            (b"__streams.errors.exception", Some(bad)),
            (b"__streams.errors.message", Some(bad)),
            (b"__streams.errors.stacktrace", Some(bad)),
            (b"x\x1b[31m", Some(b"\x1b\x00\xff")),
            (b"\x1b\xff", None),
        ],
        ..Rec::default()
    }]);
    archive.cut("bad-dlt", 0, 0, 1, records, Vec::new()).await;
    for args in [
        &["list"][..],
        &["list", "-o", "json", "--payload"],
        &["show", "bad-dlt/0/0"],
        &["show", "bad-dlt/0/0", "-o", "json"],
        &["summary", "--by", "error-message,error-class"],
        &["summary", "-o", "json", "--by", "error-message"],
    ] {
        let run = archive.run(args);
        let odd: Vec<char> = run.ok().chars().filter(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}').collect();
        assert!(odd.is_empty(), "{args:?}: {odd:?}");
        assert!(run.out.contains("red"), "{args:?}");
        let program = args.contains(&"json");
        assert_eq!(run.out.contains('\u{200b}'), program, "{args:?}");
        assert_eq!(run.out.contains("<U+202E>e<U+200B>nd"), !program, "{args:?}");
    }
    let back = archive.run(&["list", "-o", "jsonl", "--payload"]).lines();
    assert_eq!(back[0]["kafka_value_text"].as_str().unwrap().as_bytes(), bad);
}

#[tokio::test(flavor = "multi_thread")]
async fn show_has_every_column_header_and_hop() {
    let archive = fixtures().await;
    let out = archive.run(&["show", "default-dlt/7/0"]).ok().to_owned();
    for column in &dlq_archiver::format::schema::COLUMNS {
        let apart = column.name.starts_with("kafka_key_") || column.name.starts_with("kafka_value_");
        if !apart && !["kafka_headers", "error_stacktrace"].contains(&column.name) {
            assert!(out.lines().any(|l| l.split_whitespace().next() == Some(column.name)), "{}: {out}", column.name);
        }
    }
    assert!(out.contains("kafka_key_size        null\n"), "{out}");
    assert!(out.contains("data object           data/dt=2026-10-08/pipeline=picky/default-dlt-7-0"), "{out}");
    assert!(out.contains("\nkey: null\n"), "{out}");
    assert!(out.contains("        \"eventVersion\": \"2.2\",\n"), "{out}");
    assert!(out.find("ce_specversion").unwrap() < out.find("ce_id").unwrap());

    let document = archive.run(&["show", "default-dlt/7/0", "-o", "json"]).json();
    let listed = archive.run(&["list", "--payload", "-o", "jsonl", "--record-id", "default-dlt/7/0"]).lines();
    for (column, value) in listed[0].as_object().unwrap() {
        assert_eq!(&document[column], value, "{column}");
    }
    assert!(archive.path(document["data_object"].as_str().unwrap()).exists());
    assert!(archive.path(document["manifest"].as_str().unwrap()).exists());
    assert_eq!(archive.run(&["show", "default-dlt/7/0", "-o", "jsonl"]).lines(), [document]);

    // Dead-lettered by way of retry topics: several failures, the oldest first.
    let rows = archive.run(&["list", "-o", "jsonl", "--dialect", "^spring"]).lines();
    let chains = rows.iter().map(|r| archive.run(&["show", r["record_id"].as_str().unwrap(), "-o", "json"]).json());
    let longest = chains.max_by_key(|d| d["hops"].as_array().unwrap().len()).unwrap();
    assert!(!longest["hops"].as_array().unwrap().is_empty());
    let shown = archive.run(&["show", longest["record_id"].as_str().unwrap()]).ok().to_owned();
    assert!(shown.contains("more characters, --full)"), "{shown}");
    assert!(shown.contains("kafka_deliveryAttempt") && shown.contains("0x000000"), "{shown}");
    assert!(!archive.run(&["show", "--full", longest["record_id"].as_str().unwrap()]).ok().contains("--full"));
}

/// One partition from offset 10: a cut 10..20 with record 10, a gap 20..30 of each kind, and a second generation.
async fn with_gaps() -> TestArchive {
    let mut archive = TestArchive::new(Format::Parquet).await;
    let record = |offset| batch(&[Rec { offset, value: Some(b"v"), ..Rec::default() }]);
    archive.cut("orders-dlq", 0, 10, 20, record(10), Vec::new()).await;
    let gap = |from, to, kind| Gap { from, to, kind };
    let gaps = vec![
        gap(20, 23, GapKind::Lost),
        gap(23, 25, GapKind::Expired),
        gap(25, 26, GapKind::Compacted),
        gap(26, 28, GapKind::Unknown),
    ];
    archive.cut("orders-dlq", 0, 20, 30, record(29), gaps).await;
    archive.cut_in("orders-dlq", 0, 2, 0, 5, record(3), Vec::new()).await;
    archive
}

#[tokio::test(flavor = "multi_thread")]
async fn show_says_why_a_record_is_not_there() {
    let archive = with_gaps().await;
    for (id, why) in [
        ("orders-dlq/0/9", "before its start, 10"),
        ("orders-dlq/0/30", "not in the archive yet: this partition is archived up to 30"),
        ("orders-dlq/0/9223372036854775806", "is archived up to 30"),
        ("orders-dlq/0/9223372036854775807", "is archived up to 30"),
        ("orders-dlq/0/26", "whether a record was there is not known"),
        ("orders-dlq/0/11", "was no record: a transaction marker"),
        ("orders-dlq/0/20", "lies in a gap: retention deleted it before it was read"),
        ("orders-dlq/0/24", "lies in a gap: it was read, but retention"),
        ("orders-dlq/0/25", "compacted away before it was stored"),
        ("orders-dlq/0/3@g3", "it has generation 1, 2"),
        ("orders-dlq/1/0", "it has no partition 1"),
        ("order-dlq/0/10", "it has no such topic, only orders-dlq"),
    ] {
        let run = archive.run(&["show", id]);
        let error = run.fails(1);
        assert!(error.contains(id) && error.contains(why), "{error}");
    }
    assert!(archive.run(&["show", "orders-dlq/0"]).fails(2).contains("is not a record id"));
    archive.run(&["show", "orders-dlq/0/29"]).ok();
    let second = archive.run(&["show", "orders-dlq/0/3@g2", "-o", "json"]).json();
    assert_eq!((&second["record_id"], &second["topic_generation"]), (&json!("orders-dlq/0/3@g2"), &json!(2)));
    assert_eq!(archive.run(&["list", "--record-id", "orders-dlq/0/3@g2", "-o", "jsonl"]).lines().len(), 1);
    assert_eq!(archive.run(&["list", "--record-id", "orders-dlq/0/3", "-o", "jsonl"]).lines().len(), 0);
    assert_eq!(
        ids(&archive.run(&["list", "-o", "jsonl"]).lines()),
        ["orders-dlq/0/10", "orders-dlq/0/29", "orders-dlq/0/3@g2"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn summary_counts_from_manifests_what_the_records_say() {
    let archive = fixtures().await;
    let all = archive.run(&["list", "-o", "jsonl"]).lines();
    let summary = archive.run(&["summary", "-o", "json"]).json();
    assert_eq!(summary["records"], all.len());
    assert_eq!(summary["objects_read"], 0);
    let exact = archive.run(&["summary", "-o", "json", "--exact"]).json();
    assert_eq!(exact["times_are_exact"], true);
    assert!(!archive.run(&["summary", "--exact"]).ok().contains('~'));
    for group in exact["groups"].as_array().unwrap() {
        assert_eq!(group["times_are_exact"], true);
        let fields = ["pipeline_name", "dialect", "error_class", "error_code"];
        let of = all.iter().filter(|r| fields.iter().all(|f| r[*f] == group[*f]));
        let times: Vec<_> = of.map(|r| r["kafka_timestamp_ms"].as_i64().unwrap()).collect();
        assert_eq!(group["records"], times.len(), "{group}");
        let first = chrono::DateTime::parse_from_rfc3339(group["first"].as_str().unwrap()).unwrap();
        assert_eq!(Some(first.timestamp_millis()), times.iter().min().copied(), "{group}");
        let rough = summary["groups"].as_array().unwrap().iter();
        let rough: Vec<_> = rough.filter(|g| fields.iter().all(|f| g[*f] == group[*f])).collect();
        assert_eq!((rough.len(), &rough[0]["records"]), (1, &group["records"]));
        if rough[0]["times_are_exact"] == true {
            assert_eq!((&rough[0]["first"], &rough[0]["last"]), (&group["first"], &group["last"]));
        }
        assert!(
            rough[0]["first"].as_str() <= group["first"].as_str()
                && rough[0]["last"].as_str() >= group["last"].as_str()
        );
    }
    let lines = archive.run(&["summary", "-o", "jsonl", "--by", "topic"]).lines();
    assert_eq!(lines.iter().map(|l| l["records"].as_u64().unwrap()).sum::<u64>(), all.len() as u64);
    let table = archive.run(&["summary", "--by", "topic,partition"]).ok().to_owned();
    assert!(table.starts_with("TOPIC") && table.contains(&format!("\n{} records from ", all.len())), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn summary_counts_failures_by_their_key_in_groups_and_over_them() {
    let archive = fixtures().await;
    let rows = archive.run(&["list", "-o", "jsonl"]).lines();
    let keys = |rows: &[&Value]| rows.iter().map(|r| r["failure_key"].as_str().unwrap()).collect::<BTreeSet<_>>().len();
    let all: Vec<&Value> = rows.iter().collect();
    let summary = archive.run(&["summary", "--distinct", "--by", "topic", "-o", "json"]).json();
    assert_eq!((&summary["records"], &summary["failures"]), (&rows.len().into(), &keys(&all).into()));
    for group in summary["groups"].as_array().unwrap() {
        let of: Vec<&Value> = rows.iter().filter(|r| r["kafka_topic"] == group["kafka_topic"]).collect();
        assert_eq!((&group["records"], &group["failures"]), (&of.len().into(), &keys(&of).into()), "{group}");
    }
    // One event of VAST failed twice, so that there are fewer failures than records.
    let vast =
        archive.run(&["summary", "--distinct", "--topic", "default-dlt", "--partition", "7", "-o", "json"]).json();
    assert_eq!((&vast["records"], &vast["failures"]), (&2.into(), &1.into()));
    let table = archive.run(&["summary", "--distinct"]);
    assert!(table.ok().contains("RECORDS  FAILURES  FIRST"), "{table:?}");
    assert!(table.out.contains(" failures, by failure_key"), "{table:?}");
    assert!(archive.run(&["summary", "-o", "json"]).json().get("failures").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn summary_tells_what_was_lost() {
    let archive = with_gaps().await;
    let summary = archive.run(&["summary", "-o", "json"]).json();
    assert_eq!(
        (&summary["offsets_lost"], &summary["offsets_expired"], &summary["offsets_compacted"]),
        (&json!(3), &json!(2), &json!(1))
    );
    assert_eq!(summary["offsets_unknown"], 2);
    assert_eq!(archive.run(&["summary", "-o", "json", "--offsets", "21..24"]).json()["offsets_lost"], 2);
    let table = archive.run(&["summary"]).ok().to_owned();
    let told = "\n5 offsets are lost, and 2 more may be: retention deleted them before they were archived\n\
                1 offsets were compacted away before they were archived\n";
    assert!(table.contains(told), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_is_an_error_that_names_the_object() {
    let archive = fixtures().await;
    let document = archive.run(&["show", "mail-dlt/0/0", "-o", "json"]).json();
    let key = document["data_object"].as_str().unwrap();
    let path = archive.path(key);
    let bytes = std::fs::read(&path).unwrap();

    let mut flipped = bytes.clone();
    flipped[100] ^= 1;
    std::fs::write(&path, &flipped).unwrap();
    let run = archive.run(&["show", "mail-dlt/0/0"]);
    assert!(run.fails(1).contains(key) && run.err.contains("SHA-256"), "{run:?}");
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let run = archive.run(&["list", "--topic", "mail-dlt", "-o", "jsonl"]);
    assert!(run.fails(1).contains(key), "{run:?}");
    std::fs::remove_file(&path).unwrap();
    let run = archive.run(&["list", "--topic", "mail-dlt", "--newest", "5"]);
    assert!(run.fails(1).contains(key) && run.err.contains("missing"), "{run:?}");
    // Others are as they were.
    archive.run(&["list", "--topic", "default-dlt"]).ok();

    let gaps = with_gaps().await;
    std::fs::remove_file(gaps.path("ledger/orders-dlq/0/00000000000000000010.json")).unwrap();
    let run = gaps.run(&["list"]);
    assert!(run.fails(1).contains("orders-dlq/0: the ledger does not tile"), "{run:?}");
    std::fs::remove_file(gaps.path("ledger/orders-dlq/0/genesis.json")).unwrap();
    assert!(gaps.run(&["summary"]).fails(1).contains("genesis.json is missing"));
}

/// Nothing was said for a minute.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_is_told_for_what() {
    let archive = fixtures().await;
    // Takes connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let endpoint = format!("http://{address}");
    let of_store = ["--archive", "s3://dlq/none", "--endpoint-url", &endpoint];
    let of_brokers = ["--archive", archive.url(), "--brokers", &address];
    let no = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"];
    let runs = [
        ([&["list"][..], &of_store].concat(), "waiting for the store at s3://dlq/none, for 5 s so far"),
        ([&["restore", "--all", "-n"][..], &of_brokers].concat(), "no broker answers yet (brokers 127.0.0.1:"),
        ([&["archive", "--topic", "t"][..], &of_brokers].concat(), "no broker answers yet (brokers 127.0.0.1:"),
    ];
    let told: Vec<_> = runs
        .iter()
        .map(|(args, told)| {
            let mut command = program();
            command.args(args).envs(no.map(|name| (name, "x"))).stdout(Stdio::null()).stderr(Stdio::piped());
            (command.spawn().unwrap(), told)
        })
        .collect();
    let began = std::time::Instant::now();
    for (mut child, told) in told {
        let lines = std::io::BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.map(Result::unwrap).find(|line| line.contains(told));
        assert!(line.is_some() && began.elapsed().as_secs() < 40, "{told}: {:?}", began.elapsed());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_use_is_one_line() {
    let archive = fixtures().await;
    for (args, why) in [
        (&["list", "--offsets", "5..5"][..], "selects nothing"),
        (&["list", "--offsets", "x"], "is not a range"),
        (&["list", "--since", "2026-10-09", "--until", "2026-10-08"], "no record can match"),
        (&["list", "--since", "yesterday"], "--since: \"yesterday\" is not a time"),
        (&["list", "--since", "1700000000"], "did you mean 1700000000000 (2023-11-14T22:13:20Z)?"),
        (&["list", "--payload"], "--payload goes with -o json or -o jsonl"),
        (&["list", "--error-message", "("], "is not a regular expression: unclosed group"),
        (&["list", "--record-id", "nope"], "is not a record id"),
        (&["list", "--record-id", "@/no/such/file"], "cannot be read"),
        (&["list", "--record-id", "mail-dlt/0/0", "--topic", "other"], "contradicts"),
        (&["summary", "--offsets", "9..1"], "selects nothing"),
        (&["show", "x"], "is not a record id"),
    ] {
        let run = archive.run(args);
        let error = run.fails(2);
        assert!(error.contains(why), "{args:?}: {error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let there = format!("file://{}", folder.path().display());
    let absent = format!("{there}/absent");
    for command in [&["list"][..], &["summary"], &["show", "a/0/0"]] {
        for (url, why) in [
            (there.as_str(), "no archive at file://"),
            (absent.as_str(), "absent"),
            ("flie:///dir", "s3://BUCKET/PREFIX or file:///DIR"),
            ("", "type s3://BUCKET/PREFIX"),
            ("s3://AKIAKEY:s3cr3t@dlq/x", "s3://***@dlq/x"),
        ] {
            let run = run(&[command, &["--archive", url]].concat());
            let error = run.fails(2);
            assert!(error.contains(why) && !error.contains("s3cr3t"), "{command:?} {url}: {error}");
        }
        let absent = run(command);
        let error = absent.fails(2);
        assert!(error.contains("DLQ_ARCHIVER_ARCHIVE") && error.contains("s3://BUCKET/PREFIX"), "{error}");
    }
    assert!(!folder.path().join("absent").exists());
}

/// `-vv` was thousands of lines of the AWS SDK.
#[tokio::test(flavor = "multi_thread")]
async fn more_log_lines_are_of_the_program_alone() {
    let nobody = ["list", "--archive", "s3://bucket/x", "--endpoint-url", "http://127.0.0.1:1", "-vv"];
    let keys = [("AWS_ACCESS_KEY_ID", "k"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_REGION", "us-east-1")];
    let output = program().args(nobody).envs(keys).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.lines().all(|l| l.contains("dlq_archiver") || l.starts_with("dlq-archiver: ")), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_pipe_ends_it_quietly() {
    let mut archive = TestArchive::new(Format::Parquet).await;
    let value = vec![b'x'; 100];
    let records: Vec<_> = (0..20_000).map(|offset| Rec { offset, value: Some(&value), ..Rec::default() }).collect();
    archive.cut("big-dlt", 0, 0, 20_000, batch(&records), Vec::new()).await;
    let mut child = program()
        .args(["list", "-o", "jsonl", "--payload", "--archive", archive.url()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 100];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

/// `cargo test --release --test cli_read -- --ignored --nocapture`: how long looking takes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn two_thousand_cuts() {
    let mut archive = TestArchive::new(Format::Parquet).await;
    let value = vec![b'x'; 300];
    for cut in 0..2000i64 {
        let records: Vec<_> = (0..100)
            .map(|i| Rec {
                offset: cut * 100 + i,
                timestamp_ms: 1_790_000_000_000 + cut * 900_000 + i,
                value: Some(&value),
                headers: vec![
                    (b"__streams.errors.exception", Some(if i % 2 == 0 { b"java.lang.A" } else { b"java.lang.B" })),
                    (b"__streams.errors.message", Some(b"score overflow")),
                ],
                ..Rec::default()
            })
            .collect();
        archive.cut("orders-dlq", 0, cut * 100, cut * 100 + 100, batch(&records), Vec::new()).await;
    }
    for args in [
        &["list"][..],
        &["list", "--since", "2026-10-05", "--until", "2026-10-06", "--limit", "0"],
        &["list", "-o", "jsonl"],
        &["show", "orders-dlq/0/123456"],
        &["summary"],
        &["summary", "--exact"],
        &["summary", "--by", "error-message"],
    ] {
        let start = std::time::Instant::now();
        let lines = archive.run(args).ok().lines().count();
        println!("{:>7.0} ms {lines:>7} lines  {}", start.elapsed().as_secs_f64() * 1e3, args.join(" "));
    }
}
