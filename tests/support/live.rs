//! A real Kafka, for tests that want one: `DLQ_ARCHIVER_BROKERS`. Skipped with a notice without it, failed if
//! `DLQ_ARCHIVER_REQUIRE_SERVICES=1`.

use dlq_archiver::format::restored::{self, Restored};
use dlq_archiver::kafka::{Admin, Connection, RangeReader};
use dlq_archiver::record::{RawBatch, TopicPartition};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub const PATIENCE: Duration = Duration::from_secs(60);

/// The brokers, or `None` where the test is to be skipped.
pub fn brokers() -> Option<String> {
    let brokers = std::env::var("DLQ_ARCHIVER_BROKERS").ok().filter(|b| !b.is_empty());
    if brokers.is_none() {
        let required = std::env::var("DLQ_ARCHIVER_REQUIRE_SERVICES").is_ok_and(|v| v == "1");
        assert!(!required, "DLQ_ARCHIVER_BROKERS is not set, and DLQ_ARCHIVER_REQUIRE_SERVICES=1");
        eprintln!("skipped: DLQ_ARCHIVER_BROKERS is not set (make up)");
    }
    brokers
}

/// A topic name that no other run has.
pub fn fresh(name: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    format!("{name}-{}-{}-{}", std::process::id(), since.as_micros(), NUMBER.fetch_add(1, Relaxed))
}

/// A topic that takes and keeps records of any time.
pub async fn topic(connection: &Connection, name: &str, partitions: i32) {
    let any_time = [("message.timestamp.after.max.ms", "9223372036854775807"), ("retention.ms", "-1")];
    match Admin::create_topic(connection, name, partitions, &any_time).await {
        // A broker that is slow to answer is asked twice.
        Err(e) if e.to_string().contains("TopicAlreadyExists") => {}
        created => created.unwrap(),
    }
    let admin = Admin::new(connection).unwrap();
    let names = [name.to_owned()];
    let until = Instant::now() + PATIENCE;
    while !admin.topics(&names, PATIENCE).is_ok_and(|t| t[0].partitions.len() == partitions as usize) {
        assert!(Instant::now() < until, "{name} does not appear");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What readers of committed records see in a topic, by partition.
pub fn read(connection: &Connection, topic: &str) -> BTreeMap<i32, RawBatch> {
    let admin = Admin::new(connection).unwrap();
    let partitions = admin.topics(&[topic.to_owned()], PATIENCE).unwrap()[0].partitions.clone();
    let reader = RangeReader::new(connection).unwrap();
    let mut all = BTreeMap::new();
    for partition in partitions {
        let tp = TopicPartition::new(topic, partition);
        let (low, high) = admin.watermarks(&tp, PATIENCE).unwrap();
        let mut batch = RawBatch::new();
        if low < high {
            let copied = reader.read(&tp, low, high, PATIENCE, |m| {
                m.copy_into(&mut batch)?;
                Ok(ControlFlow::Continue(()))
            });
            copied.unwrap();
        }
        all.insert(partition, batch);
    }
    all
}

/// What the final lists of one restore say, as SQL engines would read them.
pub fn lists(folder: &Path) -> Vec<Restored> {
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let mut rows = Vec::new();
    for path in files.iter().filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("records-")) {
        restored::read(std::fs::read(path).unwrap().into(), |row| rows.push(row)).unwrap();
    }
    rows
}
