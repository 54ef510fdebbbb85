//! Originals of headers-only dead letters on a real Kafka, by the real program: byte for byte, each once, whatever is
//! killed; and never another record in an original's place.
//!
//! Wants `DLQ_ARCHIVER_BROKERS`; skipped with a notice without it, failed if `DLQ_ARCHIVER_REQUIRE_SERVICES=1`.

mod support;

use dlq_archiver::format::Format;
use dlq_archiver::format::refetched::{self, State};
use dlq_archiver::kafka::{Admin, Connection, NewRecord, Producer, RangeReader, TopicId};
use dlq_archiver::record::{Header, RawBatch, RawRecord, TopicPartition};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use support::Run;

const PATIENCE: Duration = Duration::from_secs(60);

fn brokers() -> Option<String> {
    let brokers = std::env::var("DLQ_ARCHIVER_BROKERS").ok().filter(|b| !b.is_empty());
    if brokers.is_none() {
        let required = std::env::var("DLQ_ARCHIVER_REQUIRE_SERVICES").is_ok_and(|v| v == "1");
        assert!(!required, "DLQ_ARCHIVER_BROKERS is not set, and DLQ_ARCHIVER_REQUIRE_SERVICES=1");
        eprintln!("skipped: DLQ_ARCHIVER_BROKERS is not set (make services)");
    }
    brokers
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

type Headers = Vec<(Vec<u8>, Option<Vec<u8>>)>;
/// Timestamp, key, value, headers.
type Facts = (i64, Option<Vec<u8>>, Option<Vec<u8>>, Headers);

fn facts(r: &RawRecord<'_>) -> Facts {
    let headers = r.headers.iter().map(|h| (h.name.to_vec(), h.value.map(<[u8]>::to_vec))).collect();
    (r.timestamp_ms, r.key.map(<[u8]>::to_vec), r.value.map(<[u8]>::to_vec), headers)
}

fn plain(n: usize, size: usize) -> Facts {
    let value = format!("{n:>size$}").into_bytes();
    (now_ms() - 5000, Some(n.to_string().into_bytes()), Some(value), vec![(b"n".to_vec(), Some(n.to_string().into()))])
}

/// Everything that is easy to lose.
fn odd() -> Vec<Facts> {
    let h = |name: &[u8], value: Option<&[u8]>| (name.to_vec(), value.map(<[u8]>::to_vec));
    vec![
        (1_790_000_000_000, None, None, vec![]),
        (1, Some(vec![]), Some(vec![]), vec![h(b"", Some(b"")), h(b"", None)]),
        (5, Some(b"k".to_vec()), None, vec![h(b"dup", Some(b"1")), h(b"dup", None), h(b"dup", Some(b"1"))]),
        (7, Some(b"\0\xff".to_vec()), Some(b"a\0b".to_vec()), vec![h(b"\xff\xfe", Some(b"\0")), h(b"a\0b", None)]),
        (9, None, Some(vec![0xee; 900_000]), vec![h(b"big", Some(&[7; 50_000]))]),
        (11, None, Some("U+2028 \u{2028} \u{85} \"\\ \u{1f389}".into()), vec![]),
    ]
}

/// Key and value.
type Payload<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

/// Where a dead letter says that its original is.
#[derive(Clone)]
struct Letter<'a> {
    topic: &'a str,
    partition: i32,
    offset: i64,
    /// Key and value, where they were copied.
    copy: Option<Payload<'a>>,
}

fn bare(topic: &str, partition: i32, offset: i64) -> Letter<'_> {
    Letter { topic, partition, offset, copy: None }
}

struct World {
    brokers: String,
    connection: Connection,
    folder: tempfile::TempDir,
    name: String,
}

impl World {
    fn new(brokers: &str, name: &str) -> Self {
        let name = format!("refetch-{name}-{}-{}", std::process::id(), now_ms());
        let folder = tempfile::tempdir().unwrap();
        Self { brokers: brokers.to_owned(), connection: Connection::new(brokers), folder, name }
    }

    /// A topic with two partitions whose id has a character that not every base64 has, and the id, as the broker writes it
    /// in dead letters where it could not find the name.
    async fn topic_with_id_of_dashes(&self) -> (String, String) {
        let admin = Admin::new(&self.connection).unwrap();
        for n in 0..100 {
            let source = self.topic_of(&format!("source{n}"));
            self.topic(&source, 2).await;
            match admin.topic_id(&TopicPartition::new(&source, 0), PATIENCE).unwrap() {
                TopicId::Is(id) if id.contains(['-', '_']) => return (source, id),
                TopicId::Is(_) => {}
                other => panic!("{other:?}"),
            }
        }
        panic!("no such id in 100 topics");
    }

    fn topic_of(&self, of: &str) -> String {
        format!("{}-{of}", self.name)
    }

    async fn topic(&self, name: &str, partitions: i32) {
        Admin::create_topic(&self.connection, name, partitions, &[("retention.ms", "-1")]).await.unwrap();
        let admin = Admin::new(&self.connection).unwrap();
        let until = Instant::now() + PATIENCE;
        let names = [name.to_owned()];
        while !admin.topics(&names, PATIENCE).is_ok_and(|t| t[0].partitions.len() == partitions as usize) {
            assert!(Instant::now() < until, "{name} does not appear");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn produce<'r>(&self, topic: &str, records: impl Iterator<Item = (i32, &'r Facts)>) {
        let producer = Producer::new(&self.connection, None).unwrap();
        for (token, (partition, (timestamp_ms, key, value, headers))) in records.enumerate() {
            let headers = headers.iter().map(|(name, value)| Header { name, value: value.as_deref() });
            let (key, value) = (key.as_deref(), value.as_deref());
            let (partition, timestamp_ms) = (Some(partition), Some(*timestamp_ms));
            let record = NewRecord { topic, partition, key, value, headers, timestamp_ms, token };
            producer.send(record, PATIENCE).unwrap();
        }
        producer.flush(PATIENCE).unwrap();
        producer.acks().into_iter().for_each(|ack| assert!(ack.result.is_ok()));
    }

    fn show(&self, id: &str) -> String {
        support::run(&["show", "--archive", &self.url(), id]).ok().to_owned()
    }

    /// Writes dead letters as a share group does (Kafka 4.4), and archives them.
    fn fail(&self, letters: &[Letter<'_>], format: &str) {
        self.send(letters);
        self.run("archive", &["--once", "--topic", &self.topic_of("dlq"), "--format", format]).ok();
    }

    fn send(&self, letters: &[Letter<'_>]) {
        let dlq = self.topic_of("dlq");
        let facts: Vec<(i32, Facts)> = (letters.iter())
            .map(|l| {
                let header = |name: &str, value: String| (name.as_bytes().to_vec(), Some(value.into_bytes()));
                let headers = vec![
                    header("__dlq.errors.topic", l.topic.to_owned()),
                    header("__dlq.errors.partition", l.partition.to_string()),
                    header("__dlq.errors.offset", l.offset.to_string()),
                    header("__dlq.errors.group", "g".to_owned()),
                ];
                let (key, value) = l.copy.unwrap_or_default();
                (l.partition % 2, (now_ms(), key.map(<[u8]>::to_vec), value.map(<[u8]>::to_vec), headers))
            })
            .collect();
        self.produce(&dlq, facts.iter().map(|(partition, facts)| (*partition, facts)));
    }

    fn url(&self) -> String {
        format!("file://{}", self.folder.path().display())
    }

    fn command(&self, name: &str, args: &[&str]) -> std::process::Command {
        let mut command = support::program();
        command.args([name, "--archive", &self.url(), "--brokers", &self.brokers]).args(args);
        command
    }

    fn run(&self, name: &str, args: &[&str]) -> Run {
        self.command(name, args).output().unwrap().into()
    }

    fn refetch(&self, args: &[&str]) -> Value {
        self.run("refetch", &[&["-o", "json"], args].concat()).json()
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        walk(&self.folder.path().join("refetched"), &mut files);
        files.retain(|f| Format::of_key(&f.to_string_lossy()).is_some());
        files.sort();
        files
    }

    /// What a plain glob over `refetched/` gives: state, source and original of each row of each dead letter.
    #[allow(clippy::type_complexity)]
    fn rows(&self) -> BTreeMap<String, Vec<(State, (String, i32, i64), Option<Facts>)>> {
        let mut rows: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for file in self.files() {
            let format = Format::of_key(&file.to_string_lossy()).unwrap();
            let bytes = std::fs::read(&file).unwrap();
            let read = refetched::read(format, bytes.into(), true, &mut |row| {
                let s = &row.source;
                let source = (s.topic.to_string(), s.partition, s.offset);
                rows.entry(row.id.to_string()).or_default().push((row.state, source, row.original.as_ref().map(facts)));
                Ok(ControlFlow::Continue(()))
            });
            read.unwrap();
        }
        rows
    }

    fn states(&self) -> BTreeMap<State, usize> {
        let mut states = BTreeMap::new();
        for rows in self.rows().into_values() {
            assert_eq!(rows.len(), 1, "one row each");
            *states.entry(rows[0].0).or_default() += 1;
        }
        states
    }

    fn read(&self, topic: &str, partition: i32) -> RawBatch {
        let admin = Admin::new(&self.connection).unwrap();
        let tp = TopicPartition::new(topic, partition);
        let (low, high) = admin.watermarks(&tp, PATIENCE).unwrap();
        let mut batch = RawBatch::new();
        if low < high {
            let copy =
                |m: &dlq_archiver::kafka::Message<'_>| m.copy_into(&mut batch).map(|()| ControlFlow::Continue(()));
            RangeReader::new(&self.connection).unwrap().read(&tp, low, high, PATIENCE, copy).unwrap();
        }
        batch
    }

    fn verify(&self) {
        support::run(&["verify", "--archive", &self.url()]).ok();
    }
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.map(|e| e.unwrap().path()) {
        if path.is_dir() { walk(&path, files) } else { files.push(path) }
    }
}

async fn every_byte_comes_back(format: &str) {
    let Some(brokers) = brokers() else { return };
    let world = World::new(&brokers, format);
    let (source, dlq, to) = (world.topic_of("source"), world.topic_of("dlq"), world.topic_of("to"));
    world.topic(&source, 2).await;
    world.topic(&dlq, 2).await;
    world.topic(&to, 2).await;
    let records = odd();
    world.produce(&source, records.iter().flat_map(|r| [(0, r), (1, r)]));
    let mut letters: Vec<_> = (0..records.len() as i64).map(|offset| bare(&source, 0, offset)).collect();
    for (offset, (_, key, value, _)) in records.iter().enumerate() {
        let copy = Some((key.as_deref(), value.as_deref()));
        // One whose key and value are null cannot be told from one that was not copied.
        letters.push(Letter { topic: &source, partition: 1, offset: offset as i64, copy });
    }
    world.fail(&letters, format);
    let before = std::fs::read_dir(world.folder.path()).unwrap().count();
    let done = world.refetch(&[]);
    assert_eq!((&done["looked_for"], &done["states"]["refetched"]), (&12.into(), &12.into()), "{done}");
    assert_eq!(std::fs::read_dir(world.folder.path()).unwrap().count(), before + 1, "refetched/ and nothing else");
    let originals: Vec<RawBatch> = (0..2).map(|p| world.read(&source, p)).collect();
    let rows = world.rows();
    assert_eq!(rows.len(), 12);
    for of_letter in rows.values() {
        let [(state, (topic, partition, offset), original)] = &of_letter[..] else {
            panic!("{} rows", of_letter.len())
        };
        assert_eq!((*state, topic), (State::Refetched, &source));
        let there = facts(&originals[*partition as usize].get(*offset as usize));
        assert!(original.as_ref() == Some(&there), "{topic}/{partition}/{offset}");
    }
    let again = world.refetch(&[]);
    assert_eq!((&again["looked_for"], &again["objects"]), (&0.into(), &0.into()), "{again}");
    world.verify();
    // The original goes back, not the dead letter.
    let args = ["--all", "--to", &to, "--timestamps", "keep", "--no-restore-headers", "-o", "json"];
    let plan = world.run("restore", &[&args[..], &["--dry-run"]].concat()).json();
    assert_eq!((&plan["to_restore"], &plan["refetched"]), (&12.into(), &12.into()), "{plan}");
    assert_eq!(plan["without_original_headers"], 0);
    world.run("restore", &args).ok();
    for (partition, originals) in originals.iter().enumerate() {
        // The transaction's marker may come a moment after its commit.
        let until = Instant::now() + PATIENCE;
        let restored = loop {
            let restored = world.read(&to, partition as i32);
            if restored.len() >= originals.len() || Instant::now() > until {
                break restored;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let mut back: Vec<_> = restored.iter().map(|r| facts(&r)).collect();
        let mut want: Vec<_> = originals.iter().map(|r| facts(&r)).collect();
        back.sort();
        want.sort();
        assert!(back == want, "{} records, {} expected", back.len(), want.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_byte_comes_back_in_parquet() {
    every_byte_comes_back("parquet").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_byte_comes_back_in_json_lines() {
    every_byte_comes_back("jsonl").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_the_original_is_told_and_not_taken_for_it() {
    let Some(brokers) = brokers() else { return };
    let world = World::new(&brokers, "states");
    let (dlq, anew, missing) = (world.topic_of("dlq"), world.topic_of("anew"), world.topic_of("missing"));
    let (source, id) = world.topic_with_id_of_dashes().await;
    world.topic(&dlq, 2).await;
    world.topic(&anew, 1).await;
    let mut records: Vec<Facts> = (0..20).map(|n| plain(n, 10)).collect();
    world.produce(&source, records.iter().map(|r| (0, r)));
    // Written behind the failure: what a topic made anew has at the offset.
    records.iter_mut().for_each(|r| r.0 = now_ms() + 600_000);
    world.produce(&anew, records.iter().map(|r| (0, r)));
    Admin::delete_records(&world.connection, &TopicPartition::new(&source, 0), 5).await.unwrap();
    let wrong = Some((Some(&b"12"[..]), Some(&b"something else"[..])));
    let letters = [
        bare(&source, 0, 4),
        bare(&source, 0, 5),
        bare(&source, 0, 20),
        bare(&source, 1, 0),
        bare(&source, 7, 0),
        bare(&anew, 0, 3),
        bare(&missing, 0, 0),
        Letter { topic: &source, partition: 0, offset: 12, copy: wrong },
        bare(&id, 0, 6),
    ];
    world.fail(&letters, "parquet");
    let done = world.refetch(&[]);
    assert_eq!(done["unanswered"].as_array().unwrap().len(), 0, "{done}");
    let by_source: BTreeMap<(String, i32, i64), State> =
        world.rows().into_values().flatten().map(|(state, source, _)| (source, state)).collect();
    let want = [
        State::Gone,
        State::Refetched,
        State::Recreated,
        State::Recreated,
        State::Recreated,
        State::Recreated,
        State::TopicMissing,
        State::Mismatch,
        State::Refetched,
    ];
    for (l, want) in letters.iter().zip(want) {
        let topic = if l.topic == id { &source } else { l.topic };
        assert_eq!(by_source[&(topic.to_owned(), l.partition, l.offset)], want, "{} {}", l.topic, l.offset);
    }
    assert_eq!(world.refetch(&[])["looked_for"], 0, "an answer is an answer");
    // None of them is restored as something else.
    let plan = world.run("restore", &["--all", "--dry-run", "-o", "json"]).json_of_failed();
    assert_eq!((&plan["to_restore"], &plan["refetched"]), (&3.into(), &2.into()), "{plan}");
    assert_eq!(plan["originals_not_found"], 7, "{plan}");
    // The topic appears after all.
    world.topic(&missing, 1).await;
    world.produce(&missing, [(0, &plain(0, 10))].into_iter());
    assert_eq!(world.refetch(&[])["looked_for"], 0);
    let again = world.refetch(&["--again"]);
    assert_eq!((&again["looked_for"], &again["states"]["refetched"]), (&7.into(), &1.into()), "{again}");
    let again = world.refetch(&["--again"]);
    assert_eq!(again["states"]["refetched"], 0);
    assert_eq!(again["still"], serde_json::json!({"gone": 1, "mismatch": 1, "recreated": 4}), "{again}");
    world.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_was_seen_with_another_id_is_known_to_be_made_anew() {
    let Some(brokers) = brokers() else { return };
    let world = World::new(&brokers, "anew");
    let (source, dlq) = (world.topic_of("source"), world.topic_of("dlq"));
    world.topic(&source, 1).await;
    world.topic(&dlq, 2).await;
    let records: Vec<Facts> = (0..4).map(|n| plain(n, 10)).collect();
    world.produce(&source, records.iter().map(|r| (0, r)));
    world.fail(&[bare(&source, 0, 0), bare(&source, 0, 1)], "parquet");
    let first =
        support::run(&["list", "--archive", &world.url(), "--limit", "0", "-o", "jsonl"]).lines()[0]["record_id"]
            .as_str()
            .unwrap()
            .to_owned();
    assert_eq!(world.refetch(&["--record-id", &first])["states"]["refetched"], 1);
    // As if the sighting had been long after the failure: the list's times are moved.
    let list = walk_lists(&world);
    let text = std::fs::read_to_string(&list).unwrap();
    let doc: Value = serde_json::from_str(&text).unwrap();
    let at = doc["sources"][0]["at_ms"].as_i64().unwrap();
    std::fs::write(&list, text.replace(&at.to_string(), &(at + 120_000).to_string())).unwrap();
    Admin::delete_topic(&world.connection, &source).await.unwrap();
    std::thread::sleep(Duration::from_secs(2));
    world.topic(&source, 1).await;
    // The same offsets, and timestamps from before the failure.
    world.produce(&source, records.iter().map(|r| (0, r)));
    let done = world.refetch(&[]);
    assert_eq!((&done["looked_for"], &done["states"]["recreated"]), (&1.into(), &1.into()), "{done}");
}

fn walk_lists(world: &World) -> PathBuf {
    let mut files = Vec::new();
    walk(&world.folder.path().join("refetched/ledger"), &mut files);
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0)
}

/// `n` originals in so many partitions, every second of which was dead-lettered.
async fn many(world: &World, partitions: i32, n: usize, size: usize) {
    let (source, dlq) = (world.topic_of("source"), world.topic_of("dlq"));
    world.topic(&source, partitions).await;
    world.topic(&dlq, 2).await;
    let records: Vec<Facts> = (0..2 * n).map(|i| plain(i, size)).collect();
    world.produce(&source, records.iter().enumerate().map(|(i, r)| (i as i32 % partitions, r)));
    let letters: Vec<_> = (0..2 * n)
        .filter(|i| (i / partitions as usize).is_multiple_of(2))
        .map(|i| bare(&source, i as i32 % partitions, (i / partitions as usize) as i64))
        .collect();
    world.fail(&letters, "parquet");
}

fn assert_each_once(world: &World, n: usize) {
    assert_eq!(world.states(), BTreeMap::from([(State::Refetched, n)]));
    let source = world.topic_of("source");
    let mut logs: BTreeMap<i32, RawBatch> = BTreeMap::new();
    for (_, (_, partition, offset), original) in world.rows().into_values().flatten() {
        let log = logs.entry(partition).or_insert_with(|| world.read(&source, partition));
        assert!(original == Some(facts(&log.get(offset as usize))), "{partition}/{offset}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn originals_of_many_partitions_come_with_few_fetches() {
    let Some(brokers) = brokers() else { return };
    let world = World::new(&brokers, "many");
    many(&world, 100, 20_000, 500).await;
    let done = world.refetch(&[]);
    assert_eq!(done["states"]["refetched"], 20_000, "{done}");
    let (fetches, seconds) = (done["fetch_requests"].as_u64().unwrap(), done["seconds"].as_f64().unwrap());
    eprintln!("20000 originals of 100 partitions: {fetches} fetch requests, {:.0} a second", 20_000.0 / seconds);
    assert!((1..2000).contains(&fetches), "{done}");
    assert_each_once(&world, 20_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_run_is_completed_by_the_next_and_nothing_is_there_twice() {
    let Some(brokers) = brokers() else { return };
    let world = World::new(&brokers, "killed");
    many(&world, 4, 8_000, 2000).await;
    for kill_at in [1, 3, 4] {
        let args = ["--memory", "1MiB", "-o", "json"];
        let mut child = world.command("refetch", &args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let until = Instant::now() + PATIENCE;
        let want = world.files().len() + kill_at;
        while world.files().len() < want && child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "no progress");
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let before: usize = world.rows().len();
    // The worst moment: a file is there, and its list is not.
    let mut lists = Vec::new();
    walk(&world.folder.path().join("refetched/ledger"), &mut lists);
    lists.sort();
    std::fs::remove_file(lists.last().unwrap()).unwrap();
    let done = world.refetch(&[]);
    assert!(done["found"].as_u64().unwrap() > 0, "{done}");
    eprintln!("{before} of 8000 were there when it was killed; {done}");
    assert_each_once(&world, 8_000);
    assert_eq!(world.refetch(&[])["looked_for"], 0);
    world.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn several_at_once_write_each_original_once() {
    let Some(brokers) = brokers() else { return };
    let world = World::new(&brokers, "several");
    many(&world, 4, 4_000, 500).await;
    let start = || {
        let mut command = world.command("refetch", &["--memory", "1MiB", "-o", "json"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..4).map(|_| start()).collect();
    for child in children {
        Run::from(child.wait_with_output().unwrap()).ok();
    }
    assert_each_once(&world, 4_000);
    world.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn archive_reads_originals_behind_its_commits_and_status_tells_what_goes() {
    let Some(brokers) = brokers() else { return };
    let world = World::new(&brokers, "beside");
    let (source, dlq) = (world.topic_of("source"), world.topic_of("dlq"));
    Admin::create_topic(&world.connection, &source, 1, &[("retention.ms", "7200000")]).await.unwrap();
    world.topic(&dlq, 2).await;
    let records: Vec<Facts> = (0..3).map(|n| plain(n, 10)).collect();
    std::thread::sleep(Duration::from_secs(1));
    world.produce(&source, records.iter().map(|r| (0, r)));
    world.fail(&[bare(&source, 0, 0), bare(&source, 0, 1)], "parquet");
    let id = format!("{dlq}/0/0");
    let advice = |status: &Value| -> Vec<String> {
        let all = status["advice"].as_array().unwrap().iter();
        all.filter(|a| a["name"] == "refetch").map(|a| a["text"].as_str().unwrap().to_owned()).collect()
    };
    let told = advice(&world.run("status", &["-o", "json", "--topic", &dlq, "--no-probe"]).json());
    assert!(told.len() == 1 && told[0].contains("in 1 h 59 min") && told[0].contains(&source), "{told:?}");
    let shown = world.show(&id);
    assert!(shown.contains("original: not looked for yet"), "{shown}");
    // Nothing new is archived: what is open is found in the ledger.
    let args = ["--once", "--refetch", "--topic", &dlq];
    world.run("archive", &args).ok();
    assert_eq!(world.states(), BTreeMap::from([(State::Refetched, 2)]));
    let shown = world.show(&id);
    assert!(
        shown.contains(&format!("original {source}/0/0: refetched")) && shown.contains("original value"),
        "{shown}"
    );
    // And of a new cut.
    let record = plain(9, 10);
    world.produce(&source, [(0, &record)].into_iter());
    let letter = [bare(&source, 0, 3)];
    world.send(&letter);
    world.run("archive", &args).ok();
    assert_eq!(world.states(), BTreeMap::from([(State::Refetched, 3)]));
    assert_eq!(
        advice(&world.run("status", &["-o", "json", "--topic", &dlq, "--no-probe"]).json()),
        Vec::<String>::new()
    );
    let summary = support::run(&["summary", "--archive", &world.url(), "-o", "json"]).json();
    assert_eq!(summary["refetched"], 3, "{summary}");
    let list = support::run(&["list", "--archive", &world.url()]);
    assert!(list.err.contains("3 records without all of the original: 3 read again"), "{list:?}");
    world.verify();
}

/// How fast: `cargo test --release --test refetch_kafka -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn a_hundred_thousand_originals_of_16_partitions() {
    let Some(brokers) = brokers() else { return };
    let world = World::new(&brokers, "large");
    many(&world, 16, 100_000, 500).await;
    let done = world.refetch(&[]);
    assert_eq!(done["states"]["refetched"], 100_000, "{done}");
    let (fetches, seconds) = (done["fetch_requests"].as_u64().unwrap(), done["seconds"].as_f64().unwrap());
    eprintln!("100000 originals of 16 partitions: {fetches} fetch requests, {:.0} a second", 100_000.0 / seconds);
    assert_each_once(&world, 100_000);
}
