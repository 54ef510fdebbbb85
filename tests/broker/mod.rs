//! An embedded broker with the golden fixtures' records in it, and the real program run against it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dlq_archiver::kafka::{Connection, MockBroker, NewRecord, Producer};
use dlq_archiver::record::Header;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

pub struct Record {
    pub topic: String,
    pub partition: i32,
    pub timestamp_ms: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

fn bytes(v: &Value) -> Option<Vec<u8>> {
    v.as_str().map(|s| STANDARD.decode(s).unwrap())
}

/// The records of `tests/golden/fixtures/<name>.jsonl`.
pub fn fixture(name: &str) -> Vec<Record> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/fixtures/{name}.jsonl"));
    let text = std::fs::read_to_string(path).unwrap();
    let record = |line: &str| {
        let r: Value = serde_json::from_str(line).unwrap();
        let headers = r["headers"].as_array().unwrap().iter();
        Record {
            topic: r["topic"].as_str().unwrap().to_owned(),
            partition: r["partition"].as_i64().unwrap() as i32,
            timestamp_ms: r["timestamp"].as_i64().unwrap(),
            key: bytes(&r["key"]),
            value: bytes(&r["value"]),
            headers: headers.map(|h| (h[0].as_str().unwrap().as_bytes().to_vec(), bytes(&h[1]))).collect(),
        }
    };
    text.lines().map(record).collect()
}

pub struct Broker {
    mock: MockBroker,
    producer: Producer,
}

impl Broker {
    /// A broker that has these records.
    pub fn with(records: &[Record]) -> Self {
        let mock = MockBroker::start().unwrap();
        let producer = Producer::new(&Connection::new(&mock.brokers()), None).unwrap();
        let broker = Self { mock, producer };
        let mut topics: BTreeMap<&str, i32> = BTreeMap::new();
        for r in records {
            let partitions = topics.entry(&r.topic).or_default();
            *partitions = (*partitions).max(r.partition + 1);
        }
        for (topic, partitions) in topics {
            broker.mock.create_topic(topic, partitions).unwrap();
        }
        broker.produce(records);
        broker
    }

    pub fn produce(&self, records: &[Record]) {
        for (token, r) in records.iter().enumerate() {
            let headers = r.headers.iter().map(|(name, value)| Header { name, value: value.as_deref() });
            let record = NewRecord {
                topic: &r.topic,
                partition: Some(r.partition),
                key: r.key.as_deref(),
                value: r.value.as_deref(),
                headers,
                timestamp_ms: Some(r.timestamp_ms),
                token,
            };
            self.producer.send(record, Duration::from_secs(5)).unwrap();
        }
        self.producer.flush(Duration::from_secs(10)).unwrap();
        let acks = self.producer.acks();
        assert_eq!(acks.len(), records.len());
        for ack in acks {
            ack.result.unwrap();
        }
    }

    /// The program with `--brokers` of this broker.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = program(args);
        command.args(["--brokers", &self.mock.brokers()]);
        command
    }

    /// Runs the program to its end; its lines on standard output. It must succeed and log nothing.
    pub fn lines(&self, args: &[&str]) -> Vec<String> {
        let output = self.command(args).output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""), "{args:?}");
        text(&output.stdout).lines().map(str::to_owned).collect()
    }
}

/// The real program, without settings from the environment.
pub fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlq-archiver"));
    for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("DLQ_ARCHIVER_")) {
        command.env_remove(name);
    }
    command.args(args);
    command
}

/// Exit code and the one line on standard error of a command that fails.
#[allow(dead_code)]
pub fn failure(output: &Output) -> (i32, String) {
    let stderr = text(&output.stderr);
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(output.stdout.is_empty());
    (output.status.code().unwrap(), stderr.trim_end().to_owned())
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
