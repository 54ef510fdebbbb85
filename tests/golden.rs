//! Every record of every fixture, decoded, routed and stripped, against columns that were written by hand.

mod common;

use common::{fixtures, folder};
use dlq_archiver::dialect::{Dialects, restore_target};
use dlq_archiver::record::{Decoded, RawRecord};
use dlq_archiver::routing::Routing;
use dlq_archiver::topics::{TopicMatch, TopicSettings};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// All that a record decodes to, by the expected files' names; null columns are left out.
fn decoded(dialects: &Dialects, topic: &str, raw: &RawRecord<'_>, d: &Decoded<'_>) -> BTreeMap<String, Value> {
    let target = restore_target(d);
    let left: Vec<String> = (raw.headers.iter().zip(dialects.strips(topic, raw)))
        .filter(|(_, strip)| !strip)
        .map(|(h, _)| String::from_utf8_lossy(h.name).into_owned())
        .collect();
    let all = json!({
        "dialect": d.dialect,
        "failure_key": d.failure_key_hex(),
        "failed_at_us": d.failed_at_us,
        "error_class": d.error_class,
        "error_message": d.error_message,
        "error_code": d.error_code,
        "error_stage": d.error_stage,
        "error_component": d.error_component,
        "error_destination": d.error_destination,
        "error_stacktrace": d.error_stacktrace,
        "attempts": d.attempts,
        "origin_topic": d.origin_topic,
        "origin_partition": d.origin_partition,
        "origin_offset": d.origin_offset,
        "origin_timestamp_us": d.origin_timestamp_us,
        "origin_group": d.origin_group,
        "event_id": d.event_id,
        "event_source": d.event_source,
        "event_type": d.event_type,
        "event_subject": d.event_subject,
        "event_time_us": d.event_time_us,
        "content_type": d.content_type,
        "payload_state": d.payload_state.as_str(),
        "prior_restores": d.prior_restores,
        "problems": (!d.problems.is_empty()).then_some(&d.problems),
        "pipeline": Routing::default().pipeline(topic, d),
        "hops": d.hops.len(),
        "restore_topic": target.map(|t| t.0),
        "restore_partition": target.and_then(|t| t.1),
        "headers": left,
    });
    let Value::Object(mut all) = all else { unreachable!() };
    // Where they are not the dead letter's own.
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match dialects.original(topic, raw) {
        None => drop(all.insert("restore_payload".to_owned(), "not held".into())),
        Some((key, value)) => {
            if key.as_deref() != raw.key {
                all.insert("restore_key".to_owned(), key.as_deref().map(text).into());
                all.insert("restore_key_null".to_owned(), key.is_none().then_some(1).into());
            }
            if value.as_deref() != raw.value {
                all.insert("restore_value".to_owned(), value.as_deref().map(text).into());
            }
        }
    }
    all.into_iter().filter(|(_, v)| !v.is_null()).collect()
}

fn same(expected: &toml::Value, is: &Value) -> bool {
    if let (Some(long), Some(is)) = (expected.as_table(), is.as_str()) {
        let sha: String = Sha256::digest(is).iter().map(|b| format!("{b:02x}")).collect();
        return long["len"].as_integer() == Some(is.len() as i64)
            && is.starts_with(long["prefix"].as_str().unwrap())
            && long["sha256"].as_str() == Some(&sha);
    }
    serde_json::to_value(expected).unwrap() == *is
}

/// The built-in dialects; two topics ask for those that are read only if asked for.
fn dialects() -> Dialects {
    let asks = |topic: &str, dialect: &str| TopicSettings {
        dialects: vec![dialect.to_owned()],
        ..TopicSettings::of(TopicMatch::parse(topic).unwrap())
    };
    Dialects::builtin().with_topics(&[asks("trips-dlq", "uber"), asks("failed-records", "lambda")]).unwrap()
}

fn check(name: &str) {
    let dialects = dialects();
    let text = fs::read_to_string(folder().join(format!("{name}.expected.toml"))).unwrap();
    let expected: toml::Table = toml::from_str(&text).unwrap();
    let common = expected["common"].as_table().unwrap();
    let records = expected["record"].as_array().unwrap();
    let fixtures = fixtures(name);
    assert_eq!(fixtures.len(), records.len(), "{name}: records");
    let mut wrong = Vec::new();
    for (fixture, record) in fixtures.iter().zip(records) {
        let raw = fixture.batch.get(0);
        let id = format!("{}/{}/{}", fixture.topic, fixture.partition, raw.offset);
        assert_eq!(record["id"].as_str(), Some(id.as_str()), "{name}: order of the records");
        let mut wanted = common.clone();
        for column in record.get("null").and_then(|n| n.as_array()).into_iter().flatten() {
            assert!(
                wanted.remove(column.as_str().unwrap()).is_some(),
                "{name}: {id}: null {column} is not in [common]"
            );
        }
        wanted.extend(record.as_table().unwrap().clone().into_iter().filter(|(k, _)| k != "id" && k != "null"));
        let d = dialects.decode(&fixture.topic, fixture.partition, &raw);
        let is = decoded(&dialects, &fixture.topic, &raw, &d);
        let mut columns: Vec<&String> = wanted.keys().chain(is.keys()).collect();
        columns.sort();
        columns.dedup();
        for column in columns {
            let (wanted, is) = (wanted.get(column), is.get(column));
            let agree = match (wanted, is) {
                (Some(wanted), Some(is)) => same(wanted, is),
                _ => false,
            };
            if !agree {
                wrong.push(format!("{name}: {id}: {column}: expected {wanted:?}, is {is:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_fixture_has_expected_columns() {
    let names = |folder: PathBuf, suffix: &str| {
        let files = fs::read_dir(folder).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = files.filter_map(|f| f.strip_suffix(suffix).map(str::to_owned)).collect();
        names.sort();
        names
    };
    assert_eq!(names(folder().join("fixtures"), ".jsonl"), names(folder(), ".expected.toml"));
}

macro_rules! golden {
    ($($test:ident: $name:literal,)*) => { $(#[test] fn $test() { check($name); })* };
}

golden! {
    vast: "vast",
    connect: "connect",
    connect_no_context: "connect-no-context",
    share_group_headers_only: "share-group-headers-only",
    share_group_copied: "share-group-copied",
    streams: "streams",
    spring_dlt: "spring-dlt",
    spring_retry_topics: "spring-retry-topics",
    spring_cloud_stream: "spring-cloud-stream",
    smallrye: "smallrye",
    smallrye_captured: "smallrye-captured",
    watermill: "watermill",
    watermill_captured: "watermill-captured",
    karafka: "karafka",
    karafka_original: "karafka-original",
    micronaut: "micronaut",
    helidon: "helidon",
    wolverine: "wolverine",
    dapr: "dapr",
    uber: "uber",
    lambda: "lambda",
    neo4j: "neo4j",
    chain: "chain",
    connect_stages: "connect-stages",
    spring_key: "spring-key",
    streams_keys: "streams-keys",
}
