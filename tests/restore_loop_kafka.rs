//! A consumer that fails on everything: its records go to a dead-letter topic, are archived, restored, and fail again.
//! Real brokers, the real program, nothing simulated.

#[path = "support/live.rs"]
#[allow(dead_code, reason = "each test program uses a part")]
mod live;
mod support;

use dlq_archiver::kafka::{Admin, Connection, NewRecord, Producer, RangeReader};
use dlq_archiver::record::{Header, RawBatch, TopicPartition};
use live::{PATIENCE, brokers};
use std::ops::ControlFlow;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use support::Run;

/// How a program tells where a record came from.
#[derive(Clone, Copy, PartialEq)]
enum Tells {
    /// As Kafka Connect: topic, partition and offset.
    Position,
    /// As SmallRye: topic and partition, with a header that says which offset it was; the failure has no key of its own.
    TopicAlone,
}

struct World {
    brokers: String,
    orders: String,
    /// URL of a folder.
    archive: String,
    _dir: tempfile::TempDir,
    over: Arc<AtomicBool>,
    consumer: Option<JoinHandle<i64>>,
}

impl World {
    /// Brokers with `n` orders, and a consumer that dead-letters each of them, and each that comes later.
    async fn new(brokers: &str, name: &str, n: i64, tells: Tells) -> Self {
        let orders = live::fresh(&format!("loop-{name}"));
        let connection = Connection::new(brokers);
        for topic in [orders.clone(), format!("{orders}-dlq")] {
            live::topic(&connection, &topic, 1).await;
        }
        let producer = Producer::new(&connection, None).unwrap();
        for i in 0..n {
            let (text, none) = (format!("order {i}"), std::iter::empty::<Header<'_>>());
            let value = Some(text.as_bytes());
            send(&producer, &orders, Some(b"k"), value, none);
        }
        while !producer.flush_step().unwrap() {}
        let over = Arc::new(AtomicBool::new(false));
        let consumer = Some(fail_on_all(connection, orders.clone(), over.clone(), tells));
        let dir = tempfile::tempdir().unwrap();
        let archive = format!("file://{}/archive", dir.path().display());
        Self { brokers: brokers.to_owned(), orders, archive, _dir: dir, over, consumer }
    }

    fn run(&self, command: &str, args: &[&str]) -> Run {
        support::run(&[&[command, "--archive", &self.archive, "--brokers", &self.brokers], args].concat())
    }

    fn records(&self, topic: &str) -> i64 {
        let admin = Admin::new(&Connection::new(&self.brokers)).unwrap();
        admin.watermarks(&TopicPartition::new(topic, 0), PATIENCE).unwrap().1
    }

    /// Waits until the consumer has failed on all that is there, and archives that.
    fn archive_failures(&self, records: i64) {
        let (dlq, until) = (format!("{}-dlq", self.orders), Instant::now() + PATIENCE);
        while self.records(&dlq) < records {
            assert!(Instant::now() < until, "{} of {records} dead letters", self.records(&dlq));
            std::thread::sleep(Duration::from_millis(50));
        }
        self.run("archive", &["--once", "--topic", &dlq]).ok();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        if let Some(consumer) = self.consumer.take() {
            let _ = consumer.join();
        }
    }
}

fn send<'h>(
    producer: &Producer,
    topic: &str,
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: impl Iterator<Item = Header<'h>>,
) {
    let record = NewRecord { topic, partition: Some(0), key, value, headers, timestamp_ms: None, token: 0 };
    producer.send(record, PATIENCE).unwrap();
}

fn fail_on_all(connection: Connection, orders: String, over: Arc<AtomicBool>, tells: Tells) -> JoinHandle<i64> {
    std::thread::spawn(move || {
        let (producer, dlq) = (Producer::new(&connection, None).unwrap(), format!("{orders}-dlq"));
        let reader = RangeReader::new(&connection).unwrap();
        let tp = TopicPartition::new(&orders, 0);
        let mut next = 0;
        while !over.load(Relaxed) {
            let read = reader.read(&tp, next, i64::MAX, Duration::from_millis(500), |m| {
                let mut batch = RawBatch::new();
                m.copy_into(&mut batch)?;
                let raw = batch.get(0);
                let at = raw.offset.to_string();
                let added: &[(&str, &str)] = match tells {
                    Tells::Position => &[
                        ("__connect.errors.topic", &orders),
                        ("__connect.errors.partition", "0"),
                        ("__connect.errors.offset", &at),
                    ],
                    Tells::TopicAlone => &[("__connect.errors.topic", &orders), ("__connect.errors.partition", "0")],
                };
                let added = added.iter().map(|(n, v)| Header { name: n.as_bytes(), value: Some(v.as_bytes()) });
                send(&producer, &dlq, raw.key, raw.value, raw.headers.iter().chain(added));
                next = raw.offset + 1;
                Ok(if over.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            });
            drop(read);
            let _ = producer.flush_step();
        }
        next
    })
}

/// Each turn archives what failed, and restores all that is not restored: as a scheduled job would, for ever.
async fn loops(name: &str, tells: Tells, args: &[&str]) {
    let Some(brokers) = brokers() else { return };
    const ORDERS: i64 = 20;
    let world = World::new(&brokers, name, ORDERS, tells).await;
    let all = [&["--all", "-o", "json"], args].concat();
    for turn in 1..=3 {
        world.archive_failures(turn * ORDERS);
        let done = world.run("restore", &all).json();
        assert_eq!(done["restored"], ORDERS, "{name}, {turn}: {done}");
    }
    world.archive_failures(4 * ORDERS);
    let sent = world.records(&world.orders);
    for _ in 0..2 {
        let stopped = world.run("restore", &all).json_of_failed();
        assert_eq!(stopped["to_restore"], 0, "{name}: {stopped}");
        let attempts = stopped["skipped"].as_array().unwrap().iter().find(|skip| skip["reason"] == "attempts");
        assert_eq!(attempts.unwrap()["records"], ORDERS, "{name}: {stopped}");
    }
    assert_eq!(world.records(&world.orders), sent, "nothing is sent any more");
    let more = [&all[..], &["--max-attempts", "4"]].concat();
    assert_eq!(world.run("restore", &more).json()["restored"], ORDERS, "{name}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_ends_at_the_cap_by_the_positions_in_the_lists() {
    loops("positions", Tells::Position, &["--no-restore-headers"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_ends_at_the_cap_by_the_headers_of_restored_records() {
    loops("headers", Tells::TopicAlone, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_ends_at_the_cap_without_transactions() {
    loops("plain", Tells::Position, &["--delivery", "plain"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_whose_records_fail_again_stops_behind_as_many_as_are_allowed() {
    let Some(brokers) = brokers() else { return };
    const ORDERS: i64 = 400;
    for delivery in ["transactional", "plain"] {
        let world = World::new(&brokers, delivery, ORDERS, Tells::Position).await;
        world.archive_failures(ORDERS);
        let brokers = world.brokers.clone();
        let mut command = support::program();
        command.args(["restore", "--archive", &world.archive, "--brokers", &brokers, "--all", "--yes"]);
        command.args(["--delivery", delivery, "--rate", "20/s", "--abort-on-failures", "30"]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let run = Run::from(child.wait_with_output().unwrap());
        assert!(run.code == 1 && run.err.contains("more than the 30 of --abort-on-failures"), "{delivery}: {run:?}");
        // How many were on their way by then hangs on the machine: a batch is a second long.
        let list = |text: &str| text.split(" of 400 selected records are done").next().unwrap().to_owned();
        let done: u64 = list(&run.err).rsplit(' ').next().unwrap().parse().unwrap();
        assert!((31..ORDERS as u64).contains(&done), "{delivery}: {done} were sent: {run:?}");
        let id = run.err.split("--resume ").nth(1).unwrap().split(',').next().unwrap().to_owned();
        let rest = ["--resume", &id, "--abort-on-failures", "off", "-o", "json"];
        assert_eq!(world.run("restore", &rest).json()["restored"], ORDERS, "{delivery}");
    }
}
