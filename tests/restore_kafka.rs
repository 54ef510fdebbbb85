//! Restores into a real Kafka, by the real program: byte for byte, and never twice, whatever is killed.
//!
//! Wants `DLQ_ARCHIVER_BROKERS`; skipped with a notice without it, failed if `DLQ_ARCHIVER_REQUIRE_SERVICES=1`.

#[path = "support/live.rs"]
#[allow(dead_code, reason = "each test program uses a part")]
mod live;
mod support;

use dlq_archiver::format::Format;
use dlq_archiver::format::restored::{self, Restored};
use dlq_archiver::kafka::{Admin, Connection, Refusal};
use dlq_archiver::record::{Header, RawBatch, RawRecord, RecordId};
use dlq_archiver::restore::batch::{Batch, Row};
use dlq_archiver::restore::delivery::{Answer, Asked, Sink};
use dlq_archiver::restore::plan::{Delivery, Timestamps};
use dlq_archiver::restore::rules::Place;
use dlq_archiver::restore::target::{Kafka, Target};
use live::{PATIENCE, brokers};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use support::{Rec, Run, TestArchive};

/// A topic name that no other run has.
fn fresh(name: &str) -> String {
    live::fresh(&format!("restore-{name}"))
}

struct World {
    brokers: String,
    connection: Connection,
    archive: TestArchive,
}

impl World {
    fn new(brokers: &str, archive: TestArchive) -> Self {
        Self { brokers: brokers.to_owned(), connection: Connection::new(brokers), archive }
    }

    async fn topic(&self, name: &str, partitions: i32) {
        live::topic(&self.connection, name, partitions).await;
    }

    fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        let mut all = vec!["restore", "--archive", self.archive.url(), "--brokers", &self.brokers];
        all.extend_from_slice(args);
        all
    }

    fn restore(&self, args: &[&str]) -> Run {
        support::run(&self.args(args))
    }

    fn start(&self, args: &[&str]) -> Child {
        let mut command = support::program();
        command.args(self.args(args)).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// What readers of committed records see in a topic, by partition.
    fn read(&self, topic: &str) -> BTreeMap<i32, RawBatch> {
        live::read(&self.connection, topic)
    }

    /// Values in a topic, each with how often it is there.
    fn values(&self, topic: &str) -> BTreeMap<Vec<u8>, usize> {
        let mut values = BTreeMap::new();
        for batch in self.read(topic).values() {
            for raw in batch.iter() {
                *values.entry(raw.value.unwrap().to_vec()).or_default() += 1;
            }
        }
        values
    }

    fn restores(&self) -> PathBuf {
        self.archive.path("restores")
    }

    /// The folder of each restore.
    fn folders(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(self.restores()) else { return Vec::new() };
        entries.map(|e| e.unwrap().path()).filter(|path| path.is_dir()).collect()
    }

    /// The folder of the one restore there is.
    fn folder(&self) -> PathBuf {
        let mut folders = self.folders();
        assert_eq!(folders.len(), 1, "{folders:?}");
        folders.remove(0)
    }

    fn pieces(&self) -> usize {
        self.folders().iter().filter_map(|f| std::fs::read_dir(f.join("sent")).ok()).map(Iterator::count).sum()
    }

    /// What the lists of all finished restores say, as SQL engines would read them.
    fn lists(&self) -> Vec<Restored> {
        let mut rows = Vec::new();
        for folder in self.folders() {
            for file in std::fs::read_dir(folder).unwrap() {
                let path = file.unwrap().path();
                if path.file_name().unwrap().to_str().unwrap().starts_with("records-") {
                    restored::read(std::fs::read(path).unwrap().into(), |row| rows.push(row)).unwrap();
                }
            }
        }
        rows
    }

    /// Waits until the running restore has written this many more pieces; whether it got there before it ended.
    fn wait_for_pieces(&self, child: &mut Child, more: usize) -> bool {
        let (want, until) = (self.pieces() + more, Instant::now() + PATIENCE);
        while self.pieces() < want {
            assert!(Instant::now() < until, "no progress");
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

type Headers = Vec<(&'static [u8], Option<&'static [u8]>)>;

/// An archive of `n` records of one topic with two partitions, failed on their way from `origin`.
async fn numbered(origin: &str, n: usize) -> TestArchive {
    let mut archive = TestArchive::new(Format::Parquet).await;
    let dlq = format!("{origin}-dlq");
    for partition in 0..2 {
        let mut records = Vec::new();
        let values: Vec<String> = (0..n / 2).map(|i| format!("{partition}/{i}")).collect();
        for (i, value) in values.iter().enumerate() {
            let origin_partition: &[u8] = if i % 3 == 0 { b"0" } else { b"1" };
            records.push(Rec {
                offset: i as i64,
                timestamp_ms: 1_791_468_687_032 + i as i64,
                key: Some(value.as_bytes()),
                value: Some(value.as_bytes()),
                headers: vec![
                    (b"__connect.errors.topic", Some(origin.as_bytes())),
                    (b"__connect.errors.partition", Some(origin_partition)),
                    (b"trace", Some(b"kept")),
                ],
            });
        }
        // Several cuts, so that batches go over their ends.
        for (number, cut) in records.chunks(n.div_ceil(7)).enumerate() {
            let from = (number * n.div_ceil(7)) as i64;
            archive.cut(&dlq, partition, from, from + cut.len() as i64, support::batch(cut), Vec::new()).await;
        }
    }
    archive
}

fn expected(n: usize) -> impl Iterator<Item = Vec<u8>> {
    (0..2).flat_map(move |p| (0..n / 2).map(move |i| format!("{p}/{i}").into_bytes()))
}

fn assert_exactly_once(world: &World, topic: &str, n: usize) {
    let values = world.values(topic);
    for value in expected(n) {
        let times = values.get(&value).copied().unwrap_or(0);
        assert_eq!(times, 1, "{} is there {times} times", String::from_utf8_lossy(&value));
    }
    assert_eq!(values.len(), n);
    // The order of each archived partition is kept in each target partition.
    for batch in world.read(topic).values() {
        let mut last = BTreeMap::new();
        for raw in batch.iter() {
            let value = std::str::from_utf8(raw.value.unwrap()).unwrap();
            let (partition, i) = value.split_once('/').unwrap();
            let before = last.insert(partition.to_owned(), i.parse::<usize>().unwrap());
            assert!(before.is_none_or(|b| b < i.parse().unwrap()), "{value} after {before:?}");
        }
    }
    let listed = world.lists();
    assert_eq!(listed.len(), n);
    let read = world.read(topic);
    for row in listed {
        let raw = at(&read, &row);
        let value = format!("{}/{}", row.id.partition, row.id.offset);
        assert_eq!(raw.value.unwrap(), value.as_bytes(), "the list says what is where");
    }
}

fn at<'b>(read: &'b BTreeMap<i32, RawBatch>, row: &Restored) -> RawRecord<'b> {
    let batch = &read[&row.target_partition];
    let found = batch.iter().find(|r| r.offset == row.target_offset);
    found.unwrap_or_else(|| panic!("{row:?} is not there"))
}

/// Key, value, timestamp, headers.
type Odd = (Option<&'static [u8]>, Option<&'static [u8]>, i64, Headers);

fn odd_records() -> Vec<Odd> {
    vec![
        (Some(b"k"), Some(b"v"), 1_791_468_687_032, vec![(b"a\0b", Some(b"nul")), (b"a\0", None), (b"", Some(b""))]),
        (None, Some(b""), 1, vec![(b"\xff\xfe", Some(b"\0\x01")), ("größe".as_bytes(), None)]),
        (Some(b""), None, -1, vec![(b"dup", Some(b"1")), (b"dup", None), (b"dup", Some(b"")), (b"dup", Some(b"1"))]),
        (Some(b"\xff\0"), Some(&[0xee; 70_000]), 253_402_300_800_000, vec![]),
        (None, None, 5, vec![(b"dlq-archiver-restore-count", Some(b"3")), (b"kept", Some(b"yes"))]),
    ]
}

async fn odd_archive(origin: &str) -> TestArchive {
    let mut batch = RawBatch::new();
    for (offset, (key, value, timestamp_ms, mut headers)) in odd_records().into_iter().enumerate() {
        let topic: &'static [u8] = Box::leak(origin.to_owned().into_boxed_str()).as_bytes();
        headers.insert(headers.len() / 2, (b"__connect.errors.topic", Some(topic)));
        headers.push((b"__connect.errors.partition", Some(b"2")));
        support::push(&mut batch, &Rec { offset: offset as i64, timestamp_ms, key, value, headers });
    }
    let mut archive = TestArchive::new(Format::Parquet).await;
    let to = batch.len() as i64;
    archive.cut(&format!("{origin}-dlq"), 0, 0, to, batch, Vec::new()).await;
    archive
}

async fn every_byte_comes_back(delivery: &str) {
    let Some(brokers) = brokers() else { return };
    let origin = fresh("bytes");
    let world = World::new(&brokers, odd_archive(&origin).await);
    world.topic(&origin, 3).await;
    // One of them says that it was restored before.
    let exact = ["--no-restore-headers", "--max-attempts", "999"];
    let done = world.restore(&[&["--all", "--delivery", delivery, "-o", "json"], &exact[..]].concat()).json();
    assert_eq!(done["restored"], 5);
    assert_eq!(done["delivery"], delivery);
    let read = world.read(&origin);
    assert_eq!(read[&2].len(), 5, "{read:?}");
    for (raw, (key, value, timestamp_ms, headers)) in read[&2].iter().zip(odd_records()) {
        assert_eq!((raw.key, raw.value, raw.timestamp_ms), (key, value, timestamp_ms));
        let own = |name: &[u8]| name.starts_with(b"dlq-archiver-");
        let want: Vec<_> =
            headers.iter().filter(|h| !own(h.0)).map(|(name, value)| Header { name, value: *value }).collect();
        assert_eq!(raw.headers.iter().collect::<Vec<_>>(), want);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_byte_comes_back_in_transactions() {
    every_byte_comes_back("transactional").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_byte_comes_back_plainly() {
    every_byte_comes_back("plain").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_event_goes_back_as_documented() {
    let Some(brokers) = brokers() else { return };
    let world = World::new(&brokers, TestArchive::of_fixtures(Format::Jsonl(Default::default())).await);
    let dry = world.restore(&["--record-id", "default-dlt/7/0", "--dry-run", "-o", "json"]);
    let dry: serde_json::Value = serde_json::from_str(&dry.out).unwrap();
    let by = if dry["to_restore"] == 1 { "groups" } else { "skipped" };
    assert_eq!(dry[by][0]["target"], "default", "{dry}");
    // Another topic than that, which may exist with any retention.
    let to = fresh("documented");
    world.topic(&to, 1).await;
    world.restore(&["--record-id", "default-dlt/7/0", "--to", &to, "--no-restore-headers"]).ok();
    let lists = world.lists();
    assert_eq!((lists.len(), &lists[0].target_topic), (1, &to));
    let read = world.read(&to);
    let raw = at(&read, &lists[0]);
    assert_eq!(raw.headers.len(), 13);
    assert!(raw.headers.iter().all(|h| !h.name.starts_with(b"ce_knativeerror")));
    assert_eq!((raw.key, raw.timestamp_ms), (None, 1_791_468_687_032));
    let fixtures = support::fixtures();
    assert_eq!(raw.value, fixtures[&("default-dlt".to_owned(), 7)].get(0).value);
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_only_records_are_never_restored() {
    let Some(brokers) = brokers() else { return };
    let world = World::new(&brokers, TestArchive::of_fixtures(Format::Parquet).await);
    let to = fresh("bare");
    world.topic(&to, 1).await;
    let run = world.restore(&["--dialect", "share-group", "--to", &to, "--delivery", "plain", "-o", "json"]);
    assert_eq!(run.code, 1, "what cannot be restored is told: {run:?}");
    let document: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    let skipped = document["skipped_by_reason"]["not_copied"].as_u64().unwrap();
    let restored = document["restored"].as_u64().unwrap();
    assert!(skipped > 0 && restored > 0, "{document}");
    assert_eq!(world.read(&to)[&0].len() as u64, restored);
    let fixtures = support::fixtures();
    for row in world.lists() {
        let source = &fixtures[&(row.id.topic.clone(), row.id.partition)];
        let raw = source.iter().find(|r| r.offset == row.id.offset).unwrap();
        assert!(raw.key.is_some() || raw.value.is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_restore_is_not_repeated_unless_asked() {
    let Some(brokers) = brokers() else { return };
    let origin = fresh("again");
    let world = World::new(&brokers, numbered(&origin, 100).await);
    world.topic(&origin, 2).await;
    world.restore(&["--topic", &format!("{origin}-dlq"), "--offsets", "0..30"]).ok();
    assert_eq!(world.values(&origin).len(), 60);
    let again = world.restore(&["--topic", &format!("{origin}-dlq"), "--offsets", "0..30", "-o", "json"]).json();
    assert_eq!((&again["to_restore"], &again["skipped"][0]["reason"]), (&0.into(), &"already_restored".into()));
    // Another command that selects them too.
    let all = world.restore(&["--all", "-o", "json"]).json();
    assert_eq!((&all["restored"], &all["skipped_by_reason"]["already_restored"]), (&40.into(), &60.into()));
    assert_exactly_once(&world, &origin, 100);
    world.restore(&["--partition", "1", "--include-restored"]).ok();
    let values = world.values(&origin);
    assert_eq!((values[&b"0/7"[..]], values[&b"1/7"[..]]), (1, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_writes_nothing() {
    let Some(brokers) = brokers() else { return };
    let origin = fresh("dry");
    let world = World::new(&brokers, numbered(&origin, 2000).await);
    world.topic(&origin, 2).await;
    let dry = world.restore(&["--all", "--dry-run", "-o", "json"]).json();
    assert_eq!((&dry["to_restore"], &dry["groups"][0]["target"]), (&2000.into(), &origin.as_str().into()));
    assert!(world.restore(&["--all", "--dry-run"]).ok().contains("2000 of 2000"));
    let left: Vec<_> = std::fs::read_dir(world.restores()).unwrap().map(|f| f.unwrap().file_name()).collect();
    let is_draft = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("draft-");
    assert!(left.len() == 1 && left.iter().all(is_draft), "nothing but the plan that it shows: {left:?}");
    assert!(world.values(&origin).is_empty());
    let refused = world.restore(&["--all"]);
    assert!(refused.fails(2).contains("--yes"), "{refused:?}");
    assert!(world.folders().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_targets_are_refused() {
    let Some(brokers) = brokers() else { return };
    let origin = fresh("wrong");
    let world = World::new(&brokers, numbered(&origin, 10).await);
    assert!(world.restore(&[]).fails(2).contains("--all"));
    assert!(world.restore(&["--all", "--partition", "1"]).fails(2).contains("--all"));
    assert!(world.restore(&["--all", "--to", &fresh("missing")]).fails(2).contains("does not exist"));
    let dlq = format!("{origin}-dlq");
    world.topic(&dlq, 1).await;
    assert!(world.restore(&["--all", "--to", &dlq]).fails(2).contains("--allow-dead-letter-target"));
    for args in [&["--all", "-o", "json"][..], &["--all", "-o", "json", "--dry-run"]] {
        let document = world.restore(args).json_of_failed();
        assert_eq!((&document["skipped"][0]["reason"], &document["to_restore"]), (&"missing_target".into(), &0.into()));
    }
    assert!(!world.restores().exists(), "nothing was to be sent, so nothing is written");
    world.restore(&["--all", "--to", &dlq, "--allow-dead-letter-target"]).ok();
    assert_eq!(world.values(&dlq).len(), 10);
}

/// Kills the same command again and again, then lets it finish.
async fn killed(delivery: &str) -> Option<(World, String, usize)> {
    let brokers = brokers()?;
    let (origin, n) = (fresh("killed"), 3000);
    let world = World::new(&brokers, numbered(&origin, n).await);
    world.topic(&origin, 2).await;
    let args = ["--all", "--yes", "--batch", "20", "--delivery", delivery, "-o", "json"];
    let mut kills = 0;
    for more in [1, 7, 20, 3] {
        let mut child = world.start(&args);
        kills += usize::from(world.wait_for_pieces(&mut child, more));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(kills >= 3, "it was too fast to be killed half-way");
    assert!(world.lists().is_empty());
    let unfinished = world.restore(&["--all", "--yes", "--delivery", delivery, "--dry-run", "-o", "json"]).json();
    assert!(unfinished["unfinished"]["restore_id"].is_string(), "{unfinished}");
    // Another command does not send what the unfinished one may have sent.
    let other = world.restore(&["--partition", "0", "--offsets", "0..1", "--dry-run", "-o", "json"]).json_of_failed();
    assert_eq!(other["skipped"][0]["reason"], "unfinished_restore", "{other}");
    let run = world.restore(&args);
    assert!(run.err.contains("resuming restore"), "{run:?}");
    let done = run.json();
    assert_eq!(done["restored"].as_u64(), Some(n as u64));
    Some((world, origin, n))
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_half_way_in_transactions_nothing_is_twice_and_nothing_missing() {
    let Some((world, origin, n)) = killed("transactional").await else { return };
    assert_exactly_once(&world, &origin, n);
    let again = world.restore(&["--all", "-o", "json"]).json();
    assert_eq!(again["to_restore"], 0);
    assert_exactly_once(&world, &origin, n);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_half_way_plainly_nothing_is_missing() {
    let Some((world, origin, n)) = killed("plain").await else { return };
    let values = world.values(&origin);
    assert!(expected(n).all(|v| values.contains_key(&v)), "nothing is missing");
    let repeated: usize = values.values().map(|times| times - 1).sum();
    assert!(repeated <= 4 * 20, "at most a batch for each kill: {repeated}");
    assert_eq!(world.lists().len(), n, "each is listed once");
}

/// Kills of the long test.
const KILLS: usize = 100;

/// Kills it at any moment of a run: before it has begun, while a batch is on its way, at its end.
async fn killed_a_hundred_times(delivery: &str) {
    let Some(brokers) = brokers() else { return };
    let seed = std::env::var("KILLS_SEED").ok().and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or_else(|| now_ms().cast_unsigned());
    println!("KILLS_SEED={seed}");
    let mut state = seed;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (origin, n, batch) = (fresh("kills"), 24_000, 20);
    let world = World::new(&brokers, numbered(&origin, n).await);
    world.topic(&origin, 2).await;
    let size = batch.to_string();
    let args = ["--all", "--yes", "--batch", &size, "--delivery", delivery, "-o", "json"];
    let (mut idle, mut midway) = (0, 0);
    for kill in 0..KILLS {
        let before = world.pieces();
        let mut child = world.start(&args);
        if random(4) > 0 {
            let there = world.wait_for_pieces(&mut child, 1 + random(6) as usize);
            assert!(there, "all was sent before kill {kill}: more records are needed");
        }
        std::thread::sleep(Duration::from_millis(random(40)));
        child.kill().unwrap();
        child.wait().unwrap();
        if world.pieces() > before { midway += 1 } else { idle += 1 }
    }
    let run = world.restore(&args);
    let done = run.json();
    assert_eq!(done["restored"].as_u64(), Some(n as u64), "{run:?}");
    let values = world.values(&origin);
    assert!(expected(n).all(|v| values.contains_key(&v)), "nothing is missing");
    let repeated: usize = values.values().map(|times| times - 1).sum();
    println!(
        "{delivery}: {KILLS} kills, {midway} of them after a batch, {idle} before; {repeated} of {n} records came twice"
    );
    match delivery {
        "transactional" => assert_exactly_once(&world, &origin, n),
        _ => {
            assert!(repeated <= KILLS * batch, "at most a batch for each kill: {repeated}");
            assert!(run.err.contains("what it sent since its last list arrives twice"), "it is told: {run:?}");
        }
    }
    assert_eq!(world.lists().len(), n, "each is listed once");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes some minutes"]
async fn killed_a_hundred_times_in_transactions_each_record_is_there_once() {
    killed_a_hundred_times("transactional").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes some minutes"]
async fn killed_a_hundred_times_plainly_nothing_is_missing_and_repeats_are_bounded() {
    killed_a_hundred_times("plain").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_it_after_the_open_batch() {
    let Some(brokers) = brokers() else { return };
    let (origin, n) = (fresh("signal"), 2000);
    let world = World::new(&brokers, numbered(&origin, n).await);
    world.topic(&origin, 2).await;
    let args = ["--all", "--yes", "--batch", "20"];
    let mut child = world.start(&args);
    assert!(world.wait_for_pieces(&mut child, 3));
    let killed = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let run: Run = child.wait_with_output().unwrap().into();
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.err.contains("Run the same command to resume"), "{run:?}");
    world.restore(&args).ok();
    assert_exactly_once(&world, &origin, n);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_processes_the_later_takes_over() {
    let Some(brokers) = brokers() else { return };
    let (origin, n) = (fresh("two"), 3000);
    let world = World::new(&brokers, numbered(&origin, n).await);
    world.topic(&origin, 2).await;
    let args = ["--all", "--yes", "--batch", "10"];
    let mut first = world.start(&args);
    assert!(world.wait_for_pieces(&mut first, 5));
    world.restore(&args).ok();
    let first: Run = first.wait_with_output().unwrap().into();
    assert_eq!(first.code, 1, "{first:?}");
    assert!(first.err.contains("another run of it took over"), "{first:?}");
    assert_exactly_once(&world, &origin, n);
}

/// The same command twice, the second up to this much later.
const APART: [u64; 10] = [0, 0, 0, 5, 20, 50, 80, 120, 200, 300];

/// Both processes of each round, and how often each value is there.
async fn twins(delivery: &str, check: impl Fn(&World, &str, usize, &[Run])) {
    let Some(brokers) = brokers() else { return };
    for apart in APART {
        let (origin, n) = (fresh("twins"), 400);
        let world = World::new(&brokers, numbered(&origin, n).await);
        world.topic(&origin, 2).await;
        let args = ["--all", "--yes", "--batch", "10", "--delivery", delivery];
        let first = world.start(&args);
        std::thread::sleep(Duration::from_millis(apart));
        let twins = [first, world.start(&args)];
        let runs = twins.map(|child| Run::from(child.wait_with_output().unwrap()));
        assert!(runs.iter().any(|run| run.code == 0), "one goes on: {runs:?}");
        for run in runs.iter().filter(|run| run.code != 0) {
            let told = ["another run of it took over", "the same command was started by another process"];
            assert!(run.code == 1 && told.iter().any(|text| run.err.contains(text)), "{apart} ms: {run:?}");
            assert!(run.err.to_lowercase().contains("wait for"), "what to do is said: {run:?}");
        }
        check(&world, &origin, n, &runs);
        assert!(world.restore(&["--all", "--yes"]).ok().contains("0 of 400"), "nothing is left");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_command_twice_at_once_sends_each_record_once_in_transactions() {
    twins("transactional", |world, origin, n, _| assert_exactly_once(world, origin, n)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_command_twice_at_once_loses_nothing_plainly_and_tells_repeats() {
    twins("plain", |world, origin, n, runs| {
        let values = world.values(origin);
        assert!(expected(n).all(|v| values.contains_key(&v)), "nothing is missing");
        let repeated: usize = values.values().map(|times| times - 1).sum();
        println!("{repeated} of {n} twice");
        assert!(repeated <= 10 * 10, "what one sent between the other's look and its start: {repeated}");
        let told = runs.iter().any(|run| run.err.contains("arrives twice") || run.err.contains("have them twice"));
        assert!(repeated == 0 || told, "{repeated}: {runs:?}");
        let listed: std::collections::BTreeSet<_> = world.lists().into_iter().map(|row| row.id).collect();
        assert_eq!((listed.len(), world.lists().len()), (n, n), "each is listed once");
        let read = world.read(origin);
        for row in world.lists() {
            let value = format!("{}/{}", row.id.partition, row.id.offset);
            assert_eq!(at(&read, &row).value.unwrap(), value.as_bytes(), "the list says what is where");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_that_expired_is_noticed() {
    let Some(brokers) = brokers() else { return };
    let (origin, n) = (fresh("expired"), 2000);
    let world = World::new(&brokers, numbered(&origin, n).await);
    world.topic(&origin, 2).await;
    let args = ["--all", "--yes", "--batch", "20"];
    let mut child = world.start(&args);
    assert!(world.wait_for_pieces(&mut child, 3));
    child.kill().unwrap();
    child.wait().unwrap();
    // As if its group had expired.
    let plan = world.folder().join("plan.json");
    let text = std::fs::read_to_string(&plan).unwrap();
    std::fs::write(&plan, text.replace("\"group\":\"dlq", "\"group\":\"another-dlq")).unwrap();
    let refused = world.restore(&args);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("--take-over"), "{refused:?}");
    let run = world.restore(&["--all", "--yes", "--take-over", "-o", "json"]);
    assert_eq!(run.code, 1, "what is perhaps restored is told: {run:?}");
    let document: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    let of = |why: &str| document["skipped_by_reason"][why].as_u64().unwrap();
    assert_eq!(of("unfinished_restore"), 20, "the last batch: {document}");
    let all = document["restored"].as_u64().unwrap() + of("unfinished_restore") + of("already_restored");
    assert_eq!(all, n as u64);
    assert!(world.values(&origin).values().all(|times| *times == 1), "nothing is twice");
}

/// Records of `sizes` bytes each, without key where `keyless`, that failed on their way from `origin`.
async fn sized(origin: &str, sizes: &[usize], keyless: &[usize]) -> TestArchive {
    let mut archive = TestArchive::new(Format::Parquet).await;
    let values: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(i, size)| format!("{i:0size$}").into_bytes()).collect();
    let records = values.iter().enumerate().map(|(i, value)| Rec {
        offset: i as i64,
        timestamp_ms: 1_791_468_687_032,
        key: (!keyless.contains(&i)).then_some(&value[..10]),
        value: Some(value),
        headers: vec![
            (b"__connect.errors.topic", Some(origin.as_bytes())),
            (b"__connect.errors.partition", Some(b"0")),
        ],
    });
    let records: Vec<Rec<'_>> = records.collect();
    archive.cut(&format!("{origin}-dlq"), 0, 0, sizes.len() as i64, support::batch(&records), Vec::new()).await;
    archive
}

async fn small_topic(world: &World, name: &str, config: &[(&str, &str)]) {
    Admin::create_topic(&world.connection, name, 1, config).await.unwrap();
    let (admin, until) = (Admin::new(&world.connection).unwrap(), Instant::now() + PATIENCE);
    while admin.topics(&[name.to_owned()], PATIENCE).is_err() {
        assert!(Instant::now() < until, "{name} does not appear");
    }
}

const ANY_TIME: [(&str, &str); 2] = [("message.timestamp.after.max.ms", "9223372036854775807"), ("retention.ms", "-1")];

async fn set_config(world: &World, topic: &str, name: &str, value: &str) {
    use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
    let mut config = rdkafka::ClientConfig::new();
    let admin: AdminClient<_> = config.set("bootstrap.servers", &world.brokers).create().unwrap();
    let mut alter = AlterConfig::new(ResourceSpecifier::Topic(topic));
    for (name, value) in ANY_TIME {
        alter = alter.set(name, value);
    }
    let altered = admin.alter_configs([&alter.set(name, value)], &AdminOptions::new()).await.unwrap();
    assert!(altered.iter().all(Result::is_ok), "{altered:?}");
}

async fn a_record_that_is_too_large_does_not_block_the_others(delivery: &str) {
    let Some(brokers) = brokers() else { return };
    let origin = fresh("large");
    // Together they are more than the topic takes at once, too.
    let mut sizes = vec![300; 40];
    (sizes[3], sizes[17]) = (5000, 2500);
    let world = World::new(&brokers, sized(&origin, &sizes, &[]).await);
    small_topic(&world, &origin, &[&ANY_TIME[..], &[("max.message.bytes", "2000")]].concat()).await;
    let dry = world.restore(&["--all", "--dry-run", "--delivery", delivery, "-o", "json"]).json_of_failed();
    assert_eq!((&dry["to_restore"], &dry["skipped"][0]["reason"]), (&38.into(), &"too_large".into()), "{dry}");
    let ids = [format!("{origin}-dlq/0/3"), format!("{origin}-dlq/0/17")];
    assert_eq!(dry["skipped"][0]["record_ids"], serde_json::json!(ids));

    let run = world.restore(&["--all", "--delivery", delivery]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.out.contains("restored 38 of 40") && run.out.contains("raise max.message.bytes"), "{run:?}");
    assert!(ids.iter().all(|id| run.out.contains(id.as_str())), "{run:?}");
    assert_eq!(world.values(&origin).len(), 38);
    let skipped = std::fs::read_to_string(world.folder().join("skipped-00000.jsonl")).unwrap();
    assert!(skipped.lines().count() == 2 && skipped.contains(&ids[0]) && skipped.contains("too_large"), "{skipped}");

    // As it says: raise the limit, and give the command again.
    set_config(&world, &origin, "max.message.bytes", "10000").await;
    let again = world.restore(&["--all", "--delivery", delivery, "-o", "json"]).json();
    assert_eq!((&again["restored"], &again["skipped_by_reason"]["already_restored"]), (&2.into(), &38.into()));
    let values = world.values(&origin);
    assert!(values.len() == 40 && values.values().all(|times| *times == 1), "{values:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_too_large_does_not_block_the_others_in_transactions() {
    a_record_that_is_too_large_does_not_block_the_others("transactional").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_too_large_does_not_block_the_others_plainly() {
    a_record_that_is_too_large_does_not_block_the_others("plain").await;
}

fn row(id: RecordId, place: Place) -> Row {
    Row { id, place, failure_key: [0; 16], attempt: 1, correction: None }
}

/// Where the brokers did not tell the limit, records are refused when they are sent: with all that are sent along.
async fn what_a_topic_refuses_is_left_out(delivery: Delivery) {
    let Some(brokers) = brokers() else { return };
    let topic = fresh("refuses");
    let world = World::new(&brokers, TestArchive::new(Format::Parquet).await);
    small_topic(&world, &topic, &[&ANY_TIME[..], &[("max.message.bytes", "2000")]].concat()).await;
    let mut batch = Batch { start: 0, end: 40, raw: RawBatch::new(), rows: Vec::new(), skipped: Vec::new() };
    for i in 0..40i64 {
        let value = format!("{i:0size$}", size = if [3, 4, 20].contains(&i) { 4000 + i as usize } else { 300 });
        let rec = Rec { offset: i, timestamp_ms: 1, key: None, value: Some(value.as_bytes()), headers: Vec::new() };
        support::push(&mut batch.raw, &rec);
        let id = RecordId { topic: "dlq".into(), generation: 1, partition: 0, offset: i };
        batch.rows.push(row(id, Place { topic: topic.clone(), partition: Some(0) }));
    }
    let batch = Arc::new(batch);
    let target: Arc<dyn Target> = Arc::new(Kafka::new(world.connection.clone()));
    let (mut sink, _) = Sink::open(&target, &topic, Asked::Exactly(delivery), None).await.unwrap();
    // A batch before it and one behind it: the producer goes on.
    for round in 0..3 {
        let answers = sink.send(&batch, Timestamps::Keep).await.unwrap();
        for (i, answer) in answers.iter().enumerate() {
            let refused = *answer == Answer::Refused(Refusal::TooLarge);
            assert_eq!(refused, [3, 4, 20].contains(&i), "round {round}, record {i}: {answer:?}");
        }
        sink.commit(&topic, 40 * (round + 1)).await.unwrap();
    }
    let values = world.values(&topic);
    assert!(values.len() == 37 && values.values().all(|times| *times == 3), "{values:?}");
    if delivery == Delivery::Transactional {
        assert_eq!(sink.progress(&topic).await.unwrap(), Some(120));
        let read = world.read(&topic);
        let number = |raw: RawRecord<'_>| std::str::from_utf8(raw.value.unwrap()).unwrap().parse::<i64>().unwrap();
        let numbers: Vec<i64> = read[&0].iter().map(number).collect();
        assert!(numbers.chunks(37).all(|chunk| chunk.is_sorted()), "the order is kept: {numbers:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_topic_refuses_is_left_out_of_a_transaction() {
    what_a_topic_refuses_is_left_out(Delivery::Transactional).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_topic_refuses_is_left_out_plainly() {
    what_a_topic_refuses_is_left_out(Delivery::Plain).await;
}

/// Nothing is sent behind the last refusal, so it is the next batch that meets what the library miscounted.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_which_all_is_refused_does_not_stop_the_next() {
    let Some(brokers) = brokers() else { return };
    let topic = fresh("all-refused");
    let world = World::new(&brokers, TestArchive::new(Format::Parquet).await);
    let config = [&ANY_TIME[..], &[("max.message.bytes", "2000")]].concat();
    Admin::create_topic(&world.connection, &topic, 2, &config).await.unwrap();
    let target: Arc<dyn Target> = Arc::new(Kafka::new(world.connection.clone()));
    let exactly = Asked::Exactly(Delivery::Transactional);
    let (mut sink, _) = Sink::open(&target, &topic, exactly, None).await.unwrap();
    let records = [(0, 9), (0, 5000), (1, 9), (0, 9), (0, 4500), (1, 4000), (1, 9), (0, 9), (1, 3000), (1, 9)];
    for (i, (partition, length)) in records.into_iter().enumerate() {
        let mut batch =
            Batch { start: i as u64, end: i as u64 + 1, raw: RawBatch::new(), rows: Vec::new(), skipped: Vec::new() };
        let value = "x".repeat(length);
        let value = Some(value.as_bytes());
        support::push(
            &mut batch.raw,
            &Rec { offset: i as i64, timestamp_ms: 1, key: None, value, headers: Vec::new() },
        );
        let id = RecordId { topic: "dlq".into(), generation: 1, partition: 0, offset: i as i64 };
        batch.rows.push(row(id, Place { topic: topic.clone(), partition: Some(partition) }));
        let answers = sink.send(&Arc::new(batch), Timestamps::Keep).await.unwrap_or_else(|e| panic!("batch {i}: {e}"));
        assert_eq!(answers == [Answer::Refused(Refusal::TooLarge)], length > 2000, "batch {i}: {answers:?}");
        sink.commit(&topic, i as u64 + 1).await.unwrap_or_else(|e| panic!("batch {i}: {e}"));
    }
    assert_eq!(world.read(&topic).values().map(RawBatch::len).collect::<Vec<_>>(), [3, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compacted_topic_refuses_records_without_key_and_takes_the_others() {
    let Some(brokers) = brokers() else { return };
    for delivery in ["transactional", "plain"] {
        let origin = fresh("compacted");
        let world = World::new(&brokers, sized(&origin, &[40; 30], &[2, 3, 29]).await);
        small_topic(&world, &origin, &[&ANY_TIME[..], &[("cleanup.policy", "compact")]].concat()).await;
        let run = world.restore(&["--all", "--delivery", delivery, "-o", "json"]);
        assert_eq!(run.code, 1, "{run:?}");
        let document: serde_json::Value = serde_json::from_str(&run.out).unwrap();
        assert_eq!(document["skipped_by_reason"], serde_json::json!({"refused": 3}), "{document}");
        assert_eq!(world.values(&origin).len(), 27);
        let again = world.restore(&["--all", "--delivery", delivery]);
        assert_eq!(again.code, 1, "still not done: {again:?}");
        assert_eq!(world.values(&origin).len(), 27);
    }
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

const HOUR: i64 = 3_600_000;
const WEEK: i64 = 7 * 24 * HOUR;
/// Kafka's default.
const KEEPS_A_WEEK: (&str, &str) = ("retention.ms", "604800000");

/// `n` records with these timestamps, one after the other.
async fn dated(origin: &str, n: usize, timestamps: &[i64]) -> TestArchive {
    let mut archive = TestArchive::new(Format::Parquet).await;
    let values: Vec<String> = (0..n).map(|i| i.to_string()).collect();
    let records = values.iter().enumerate().map(|(i, value)| Rec {
        offset: i as i64,
        timestamp_ms: timestamps[i % timestamps.len()],
        key: Some(b"k"),
        value: Some(value.as_bytes()),
        headers: vec![(b"__connect.errors.topic", Some(origin.as_bytes()))],
    });
    let records: Vec<Rec<'_>> = records.collect();
    archive.cut(&format!("{origin}-dlq"), 0, 0, n as i64, support::batch(&records), Vec::new()).await;
    archive
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_kafka_would_delete_at_once_are_not_sent_and_not_called_restored() {
    let Some(brokers) = brokers() else { return };
    let (origin, now) = (fresh("expired-on-arrival"), now_ms());
    let dates = [now - 7 * WEEK, now - HOUR, -1, now - WEEK + HOUR / 2, now - WEEK + 2 * HOUR];
    let world = World::new(&brokers, dated(&origin, 5, &dates).await);
    small_topic(&world, &origin, &[KEEPS_A_WEEK]).await;
    let dry = world.restore(&["--all", "--dry-run", "-o", "json"]).json_of_failed();
    assert_eq!((&dry["to_restore"], &dry["skipped"][0]["reason"]), (&3.into(), &"expired".into()), "{dry}");
    assert_eq!(
        dry["skipped"][0]["record_ids"],
        serde_json::json!([format!("{origin}-dlq/0/0"), format!("{origin}-dlq/0/3")])
    );
    assert_eq!(dry["retention_unknown"], serde_json::json!([]));
    let run = world.restore(&["--all"]);
    assert!(run.code == 1 && run.out.contains("restored 3 of 5"), "{run:?}");
    assert!(
        run.out.contains("2 skipped: older than the target keeps") && run.out.contains("--timestamps now"),
        "{run:?}"
    );
    let skipped = std::fs::read_to_string(world.folder().join("skipped-00000.jsonl")).unwrap();
    assert_eq!(skipped.lines().filter(|l| l.contains("expired") && l.contains(&origin)).count(), 2, "{skipped}");
    // Longer than Kafka takes here to find what is to be deleted.
    std::thread::sleep(Duration::from_secs(7));
    assert_eq!(world.values(&origin).len(), 3, "what was called restored is there");

    // As it says: with the time of the restore, or once the topic keeps them.
    let second = format!("{origin}-dlq/0/3");
    world.restore(&["--record-id", &second, "--timestamps", "now"]).ok();
    assert_eq!(world.values(&origin).len(), 4);
    set_config(&world, &origin, "cleanup.policy", "delete").await;
    world.restore(&["--all"]).ok();
    let values = world.values(&origin);
    assert!(values.len() == 5 && values.values().all(|times| *times == 1), "{values:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn old_records_go_to_topics_that_keep_them() {
    let Some(brokers) = brokers() else { return };
    for setting in [("message.timestamp.type", "LogAppendTime"), ("cleanup.policy", "compact"), ("retention.ms", "-1")]
    {
        let (origin, now) = (fresh("kept"), now_ms());
        let world = World::new(&brokers, dated(&origin, 2, &[now - 7 * WEEK, now - 8 * WEEK]).await);
        let config = BTreeMap::from([KEEPS_A_WEEK, setting]);
        small_topic(&world, &origin, &config.into_iter().collect::<Vec<_>>()).await;
        world.restore(&["--all"]).ok();
        assert_eq!(world.lists().len(), 2, "{setting:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_a_topic_refuses_for_their_age_are_found_in_planning() {
    let Some(brokers) = brokers() else { return };
    let (origin, now) = (fresh("refused-age"), now_ms());
    let world = World::new(&brokers, dated(&origin, 4, &[now - 2 * HOUR, now]).await);
    small_topic(&world, &origin, &[KEEPS_A_WEEK, ("message.timestamp.before.max.ms", "3600000")]).await;
    let dry = world.restore(&["--all", "--dry-run", "-o", "json"]).json_of_failed();
    assert_eq!((&dry["to_restore"], &dry["skipped"][0]["reason"]), (&2.into(), &"timestamp".into()), "{dry}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_goes_on_skips_what_its_plan_found_too_old() {
    let Some(brokers) = brokers() else { return };
    let (origin, n, now) = (fresh("old-resumed"), 2000, now_ms());
    let world = World::new(&brokers, dated(&origin, n, &[now - 7 * WEEK, now]).await);
    small_topic(&world, &origin, &[KEEPS_A_WEEK]).await;
    let args = ["--all", "--yes", "--batch", "10", "-o", "json"];
    let mut child = world.start(&args);
    assert!(world.wait_for_pieces(&mut child, 3));
    child.kill().unwrap();
    child.wait().unwrap();
    // It would keep them all by now.
    set_config(&world, &origin, "cleanup.policy", "delete").await;
    let unfinished = world.restore(&[&args[..], &["--dry-run"]].concat()).json_of_failed();
    assert_eq!(unfinished["skipped"], serde_json::json!({"expired": 1000}), "{unfinished}");
    let done = world.restore(&args).json_of_failed();
    assert_eq!((&done["restored"], &done["skipped_by_reason"]), (&1000.into(), &serde_json::json!({"expired": 1000})));
    let again = world.restore(&args).json();
    assert_eq!(again["restored"], 1000, "{again}");
    let values = world.values(&origin);
    assert!(values.len() == n && values.values().all(|times| *times == 1), "each once");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_selected_is_said_with_the_likely_reason() {
    let Some(brokers) = brokers() else { return };
    let origin = fresh("nothing");
    let world = World::new(&brokers, numbered(&origin, 10).await);
    world.topic(&origin, 2).await;
    let run = world.restore(&["--pipeline", "mistyped", "--partition", "1"]);
    assert!(run.ok().contains("none of 10 archived records matches (0 were read"), "{run:?}");
    assert!(run.ok().contains("nothing archived matches --pipeline"), "{run:?}");
    let run = world.restore(&["--offsets", "3..4", "--event-id", "x"]);
    assert!(run.ok().contains("no record matches all"), "{run:?}");
    let there = format!("{origin}-dlq/0/1");
    let run = world.restore(&["--record-id", &there, "--record-id", "gone/0/1", "--record-id", "gone/0/2"]);
    assert_eq!(run.code, 1, "what was asked for by name is not there: {run:?}");
    assert!(run.err.contains("gone/0/1 gone/0/2") && run.out.contains("restored 1 of 1"), "{run:?}");
    let again = world.restore(&["--record-id", &there]);
    let restore_id = world.folder().file_name().unwrap().to_str().unwrap().to_owned();
    assert!(again.ok().contains(&origin) && again.ok().contains(&restore_id), "it names who did it: {again:?}");
    let gone = world.restore(&["--record-id", "gone/0/1"]);
    assert!(gone.code == 1 && gone.out.contains("nothing selected"), "{gone:?}");
}

/// A restore of everything, killed half-way.
async fn half(name: &str, n: usize) -> Option<(World, String, String)> {
    let brokers = brokers()?;
    let origin = fresh(name);
    let world = World::new(&brokers, numbered(&origin, n).await);
    world.topic(&origin, 2).await;
    let mut child = world.start(&["--all", "--yes", "--batch", "10"]);
    assert!(world.wait_for_pieces(&mut child, 5));
    child.kill().unwrap();
    child.wait().unwrap();
    let id = world.folder().file_name().unwrap().to_str().unwrap().to_owned();
    Some((world, origin, id))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_overlaps_an_unfinished_one_is_refused_and_told_how_to_resume_it() {
    let Some((world, origin, id)) = half("overlap", 2000).await else { return };
    let refused = world.restore(&["--offsets", "0..900", "--yes"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains(&format!("restore --resume {id}")), "{refused:?}");
    let dry = world.restore(&["--offsets", "0..900", "--dry-run", "-o", "json"]).json_of_failed();
    assert_eq!(dry["overlapping"][0]["restore_id"], id.as_str());
    assert!(world.restore(&["--resume", "../../x"]).fails(2).contains(&id), "unfinished ones are named");
    assert!(world.restore(&["--resume", &id, "--partition", "1"]).fails(2).contains("leave the filters out"));
    world.restore(&["--resume", &id]).ok();
    assert_exactly_once(&world, &origin, 2000);
    assert!(world.restore(&["--resume", &id]).fails(2).contains("has ended"));
    assert!(world.restore(&["--offsets", "0..900"]).ok().contains("0 of 1800"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_taken_over_is_sent_once() {
    let Some((world, origin, id)) = half("taken", 2000).await else { return };
    // One that is alive is fenced.
    let mut alive = world.start(&["--resume", &id, "--batch", "1"]);
    assert!(world.wait_for_pieces(&mut alive, 3));
    world.restore(&["--partition", "1", "--take-over"]).ok();
    let alive: Run = alive.wait_with_output().unwrap().into();
    assert_eq!(alive.code, 1, "{alive:?}");
    assert!(alive.err.contains("another run of it took over"), "{alive:?}");
    assert!(world.restore(&["--resume", &id]).fails(2).contains("has ended"));
    world.restore(&["--all", "--yes"]).ok();
    assert_exactly_once(&world, &origin, 2000);
}

#[tokio::test(flavor = "multi_thread")]
async fn restores_that_overlap_and_begin_at_the_same_moment_send_nothing_twice() {
    let Some(brokers) = brokers() else { return };
    let (origin, n) = (fresh("race"), 600);
    let world = World::new(&brokers, numbered(&origin, n).await);
    world.topic(&origin, 2).await;
    let ranges: Vec<String> = (0..6).map(|i| format!("{}..{}", i * 20, 200 + i * 20)).collect();
    let start = |range: &String| world.start(&["--offsets", range, "--yes", "--batch", "20"]);
    let (mut ended, mut rounds) = (0, 0);
    while ended < ranges.len() {
        let children: Vec<Child> = ranges.iter().map(start).collect();
        let runs: Vec<Run> = children.into_iter().map(|c| c.wait_with_output().unwrap().into()).collect();
        for run in &runs {
            assert!(run.code == 0 || run.err.contains("nothing was sent"), "{run:?}");
        }
        let ok = runs.iter().filter(|run| run.code == 0).count();
        assert!(ok > 0 || rounds < 5, "none goes on: {runs:?}");
        (ended, rounds) = (ok, rounds + 1);
    }
    world.restore(&["--all", "--yes"]).ok();
    let values = world.values(&origin);
    assert!(values.len() == n && values.values().all(|times| *times == 1), "{values:?}");
    assert_eq!(world.lists().len(), n);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_is_deleted_midway_ends_it_with_a_clear_message() {
    let Some(brokers) = brokers() else { return };
    for delivery in ["transactional", "plain"] {
        let (origin, n) = (fresh("deleted"), 3000);
        let world = World::new(&brokers, numbered(&origin, n).await);
        world.topic(&origin, 2).await;
        let args = ["--all", "--yes", "--batch", "2", "--delivery", delivery];
        let mut child = world.start(&args);
        assert!(world.wait_for_pieces(&mut child, 5));
        Admin::delete_topic(&world.connection, &origin).await.unwrap();
        let run: Run = child.wait_with_output().unwrap().into();
        assert_eq!(run.code, 1, "{delivery}: {run:?}");
        assert!(run.err.contains(&format!("Target topic {origin} was deleted")), "{delivery}: {run:?}");
        assert!(run.err.contains("--resume"), "{delivery}: {run:?}");
        // Not even the producer's questions for it bring it back, empty.
        let admin = Admin::new(&world.connection).unwrap();
        assert!(admin.topics(std::slice::from_ref(&origin), PATIENCE).is_err(), "{origin} is back");
    }
}

/// `cargo test --release --test restore_kafka -- --ignored --nocapture how_fast`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn how_fast() {
    let Some(brokers) = brokers() else { return };
    for delivery in ["transactional", "plain"] {
        let (origin, n) = (fresh("fast"), 200_000);
        let world = World::new(&brokers, numbered(&origin, n).await);
        world.topic(&origin, 2).await;
        let began = Instant::now();
        world.restore(&["--all", "--dry-run"]).ok();
        let dry = began.elapsed();
        world.restore(&["--all", "--yes", "--delivery", delivery]).ok();
        let took = (began.elapsed() - dry).as_secs_f64();
        println!("{delivery}: {n} records in {took:.1} s ({:.0} a second), dry run {dry:?}", n as f64 / took);
        assert_exactly_once(&world, &origin, n);
    }
}
