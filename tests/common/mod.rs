//! Dead letters as programs really wrote them, from `tests/golden/fixtures`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dlq_archiver::record::{Header, RawBatch, TimestampType};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// One record.
pub struct Fixture {
    pub topic: String,
    pub partition: i32,
    pub batch: RawBatch,
}

fn bytes(v: &Value) -> Option<Vec<u8>> {
    v.as_str().map(|s| STANDARD.decode(s).unwrap())
}

pub fn fixtures(name: &str) -> Vec<Fixture> {
    let text = fs::read_to_string(folder().join(format!("fixtures/{name}.jsonl"))).unwrap();
    text.lines()
        .map(|line| {
            let r: Value = serde_json::from_str(line).unwrap();
            let headers: Vec<(Vec<u8>, Option<Vec<u8>>)> = r["headers"]
                .as_array()
                .unwrap()
                .iter()
                .map(|h| (h[0].as_str().unwrap().as_bytes().to_vec(), bytes(&h[1])))
                .collect();
            let mut batch = RawBatch::new();
            batch.push(
                r["offset"].as_i64().unwrap(),
                r["timestamp"].as_i64().unwrap(),
                TimestampType::parse(r["timestamp_type"].as_str().unwrap()).unwrap(),
                -1,
                bytes(&r["key"]).as_deref(),
                bytes(&r["value"]).as_deref(),
                headers.iter().map(|(name, value)| Header { name, value: value.as_deref() }),
            );
            Fixture {
                topic: r["topic"].as_str().unwrap().to_owned(),
                partition: r["partition"].as_i64().unwrap() as i32,
                batch,
            }
        })
        .collect()
}
