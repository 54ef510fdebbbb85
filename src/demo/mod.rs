//! `demo`: the whole way of a dead letter on an embedded broker and a local folder.
//!
//! Owns the demo's records and the commands it runs. Runs none of them: the command line does, with the same code as
//! for a user. Invariant: records, their order and their offsets are the same on every run.

use crate::error::{Error, Result};
use crate::kafka::{Connection, MockBroker, NewRecord, Producer};
use crate::record::Header;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// As five programs write them. The first is the VAST documentation's.
const RECORDS: &str = include_str!("records.json");

/// Where the dead letters come from, each with its partitions; a restore puts them back there.
const ORIGINS: [(&str, i32); 5] = [("default", 1), ("shop.orders", 2), ("orders", 2), ("payments", 2), ("mail", 2)];

/// All of the demo's dead-letter topics and none of their origins.
const DEAD_LETTER_TOPICS: &str = "^.*dl[qt]";

/// Which failures are restored.
const CLASS: &[&str] = &["--error-class", "java.sql.SQLException"];

/// A key, value or header: null, text, or bytes that are no text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Bytes {
    Text(String),
    Hex { hex: String },
}

impl Bytes {
    fn to_vec(&self) -> Vec<u8> {
        match self {
            Self::Text(text) => text.clone().into_bytes(),
            Self::Hex { hex } => {
                let byte = |i| u8::from_str_radix(hex.get(i..i + 2).unwrap_or_default(), 16).unwrap_or_default();
                (0..hex.len()).step_by(2).map(byte).collect()
            }
        }
    }
}

#[derive(Deserialize)]
struct Record {
    topic: String,
    partition: i32,
    timestamp: i64,
    key: Option<Bytes>,
    value: Option<Bytes>,
    headers: Vec<(String, Option<Bytes>)>,
}

fn records() -> Result<Vec<Record>> {
    serde_json::from_str(RECORDS).map_err(|e| Error::internal(format!("the demo's records: {e}")))
}

/// Fills the broker with the demo's dead letters; their number. Blocks.
///
/// # Errors
/// If the embedded broker does not take them.
pub fn produce(broker: &MockBroker) -> Result<usize> {
    const TIMEOUT: Duration = Duration::from_secs(10);
    let records = records()?;
    let mut topics: BTreeMap<&str, i32> = BTreeMap::from(ORIGINS);
    for r in &records {
        let partitions = topics.entry(&r.topic).or_default();
        *partitions = (*partitions).max(r.partition + 1);
    }
    for (topic, partitions) in topics {
        broker.create_topic(topic, partitions)?;
    }
    let producer = Producer::new(&Connection::new(&broker.brokers()), None)?;
    for (token, r) in records.iter().enumerate() {
        let (key, value) = (r.key.as_ref().map(Bytes::to_vec), r.value.as_ref().map(Bytes::to_vec));
        let headers: Vec<_> = r.headers.iter().map(|(name, v)| (name, v.as_ref().map(Bytes::to_vec))).collect();
        let record = NewRecord {
            topic: &r.topic,
            partition: Some(r.partition),
            key: key.as_deref(),
            value: value.as_deref(),
            headers: headers.iter().map(|(name, v)| Header { name: name.as_bytes(), value: v.as_deref() }),
            timestamp_ms: Some(r.timestamp),
            token,
        };
        producer.send(record, TIMEOUT)?;
    }
    producer.flush(TIMEOUT)?;
    for ack in producer.acks() {
        ack.result?;
    }
    Ok(records.len())
}

/// One command of the demo.
pub struct Step {
    pub heading: &'static str,
    /// Without the program's name.
    pub args: Vec<String>,
}

/// What the demo runs, in order.
pub fn steps(brokers: &str, archive: &str) -> Vec<Step> {
    let step = |heading, args: &[&str]| Step { heading, args: args.iter().map(|a| (*a).to_owned()).collect() };
    vec![
        step(
            "Dead letters as they come in, whichever program wrote them",
            &["tail", "--brokers", brokers, "--topic", DEAD_LETTER_TOPICS, "--from-beginning", "--once"],
        ),
        step(
            "Archive them all, up to what is there now",
            &["archive", "--brokers", brokers, "--topic", DEAD_LETTER_TOPICS, "--archive", archive, "--once"],
        ),
        step("What failed", &["summary", "--archive", archive]),
        step("Which records, by pipeline", &["list", "--archive", archive, "--pipeline", "orders-to-warehouse"]),
        step("One of them, with everything that was on it", &["show", "--archive", archive, "default-dlt/7/0"]),
        step(
            "The warehouse is repaired: what would its failures' restore do",
            &[&["restore", "--brokers", brokers, "--archive", archive], CLASS, &["--dry-run"]].concat(),
        ),
        step(
            "Restore them to the topic that they came from",
            &[&["restore", "--brokers", brokers, "--archive", archive], CLASS, &["--yes"]].concat(),
        ),
        step(
            "Read them back: as they were before they failed, and marked as restored",
            &["tail", "--brokers", brokers, "--topic", "shop.orders", "--from-beginning", "--once", "--raw"],
        ),
        step(
            "None is restored twice",
            &[&["restore", "--brokers", brokers, "--archive", archive], CLASS, &["--yes"]].concat(),
        ),
    ]
}

/// A word as a shell takes it.
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Queries of the files below `folder`, each with what it tells.
pub fn queries(folder: &str) -> [(&'static str, String); 2] {
    let files = format!("read_parquet('{}/data/**/*.parquet', hive_partitioning = true)", folder.replace('\'', "''"));
    [
        (
            "What fails, where",
            format!(
                "SELECT pipeline_name, dialect, coalesce(error_code::VARCHAR, error_class) AS error, count(*) AS records\n\
                 FROM {files}\nGROUP BY ALL ORDER BY ALL"
            ),
        ),
        (
            "Inside the payload: which uploads a function refused, and why",
            format!(
                "SELECT event_id, kafka_value_text->>'$.Records[0].s3.object.key' AS object, error_message\n\
                 FROM {files}\nWHERE dialect = 'knative' AND error_code = 500 ORDER BY kafka_timestamp"
            ),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cut::Tables;
    use crate::record::{RawBatch, TimestampType};
    use std::collections::BTreeSet;

    #[test]
    fn the_records_are_of_five_dialects_and_decode_without_problems() {
        let tables = Tables::builtin();
        let (mut dialects, mut batch) = (BTreeSet::new(), RawBatch::new());
        let records = records().unwrap();
        for (i, r) in records.iter().enumerate() {
            let (key, value) = (r.key.as_ref().map(Bytes::to_vec), r.value.as_ref().map(Bytes::to_vec));
            let headers: Vec<_> = r.headers.iter().map(|(n, v)| (n, v.as_ref().map(Bytes::to_vec))).collect();
            let headers = headers.iter().map(|(n, v)| Header { name: n.as_bytes(), value: v.as_deref() });
            let time = TimestampType::CreateTime;
            batch.push(i as i64, r.timestamp, time, -1, key.as_deref(), value.as_deref(), headers);
            let raw = batch.get(i);
            let decoded = tables.dialects.decode(&r.topic, r.partition, &raw);
            assert_eq!(decoded.problems, Vec::<&str>::new(), "{}", r.topic);
            let (target, partition) = crate::dialect::restore_target(&decoded).unwrap();
            let origin = ORIGINS.iter().find(|(name, _)| *name == target).unwrap();
            assert!(partition.is_none_or(|p| p < origin.1));
            dialects.insert(decoded.dialect.into_owned());
        }
        assert_eq!(dialects.len(), 5, "{dialects:?}");
        let pattern = regex::Regex::new(DEAD_LETTER_TOPICS).unwrap();
        assert!(records.iter().all(|r| pattern.is_match(&r.topic)));
        assert!(!ORIGINS.iter().any(|(name, _)| pattern.is_match(name)));
    }

    #[test]
    fn words_for_a_shell() {
        assert_eq!(shell_word("--topic"), "--topic");
        assert_eq!(shell_word("^.*dl[qt]"), "'^.*dl[qt]'");
        assert_eq!(shell_word("it's"), "'it'\\''s'");
        assert_eq!(shell_word(""), "''");
    }
}
