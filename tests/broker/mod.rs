//! An embedded broker with the golden fixtures' records in it, and the real program run against it.

use crate::common::{Fixture, fixtures};
use dlq_archiver::kafka::{Connection, MockBroker, NewRecord, Producer};
use dlq_archiver::record::{RawBatch, TimestampType};
use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::time::Duration;

pub struct Broker {
    mock: MockBroker,
    producer: Producer,
}

impl Broker {
    /// A broker that has these records.
    pub fn with(records: &[Fixture]) -> Self {
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

    pub fn produce(&self, records: &[Fixture]) {
        for (token, f) in records.iter().enumerate() {
            let raw = f.batch.get(0);
            let record = NewRecord {
                topic: &f.topic,
                partition: Some(f.partition),
                key: raw.key,
                value: raw.value,
                headers: raw.headers.iter(),
                timestamp_ms: Some(raw.timestamp_ms),
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

    /// A broker that has these fixtures.
    pub fn with_fixtures(names: &[&str]) -> Self {
        let records: Vec<_> = names.iter().flat_map(|name| fixtures(name)).collect();
        Self::with(&records)
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

/// The same record elsewhere, or at another time.
#[allow(dead_code)]
pub fn moved(f: &Fixture, topic: &str, partition: i32, timestamp_ms: i64) -> Fixture {
    let (raw, mut batch) = (f.batch.get(0), RawBatch::new());
    batch.push(0, timestamp_ms, TimestampType::CreateTime, -1, raw.key, raw.value, raw.headers.iter());
    Fixture { topic: topic.to_owned(), partition, batch }
}

/// The real program, without settings from the environment.
pub fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlq-archiver"));
    for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("DLQ_ARCHIVER_")) {
        command.env_remove(name);
    }
    command.env("DLQ_ARCHIVER_LOG_FORMAT", "text").args(args);
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
