//! A restore into a real Kafka that is killed at one exact place: before a final list, between a transaction's commit and
//! the next batch, and so on. The same command again sends nothing twice, and its lists are complete.
//!
//! Wants `DLQ_ARCHIVER_BROKERS`. Where it is killed is where it waits: for an answer that a proxy holds, or in a file of
//! the archive that is a named pipe.

#[path = "support/live.rs"]
mod live;
mod support;
#[path = "support/wire.rs"]
#[allow(dead_code, reason = "each test program uses a part")]
mod wire;

use dlq_archiver::format::Format;
use dlq_archiver::kafka::Connection;
use live::{PATIENCE, fresh};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use support::{Rec, TestArchive};
use wire::{END_TXN, PRODUCE, Side, Wire};

const RECORDS: usize = 12;
const BATCH: usize = 3;

/// Where it is killed.
#[derive(Debug, Clone, Copy)]
enum At {
    /// When it creates this object of the restore.
    Object(&'static str),
    /// When this many of such requests or answers have passed.
    Wire(Side, i16, usize),
}

/// A file that holds whoever reads it: what is there already is read by who would create it.
struct Trap(PathBuf);

impl Trap {
    fn set(path: PathBuf) -> Self {
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the name ends with NUL and outlives the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0, "{}", path.display());
        Self(path)
    }

    /// Waits until somebody reads it; who is held for as long as this lives.
    fn wait(&self, child: &mut Child) -> File {
        let until = Instant::now() + PATIENCE;
        loop {
            match File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&self.0) {
                Ok(file) => return file,
                // Nobody reads.
                Err(e) if e.raw_os_error() == Some(libc::ENXIO) => {}
                Err(e) => panic!("{e}"),
            }
            assert!(Instant::now() < until, "nobody comes to {}", self.0.display());
            assert!(child.try_wait().unwrap().is_none(), "it ended before {}", self.0.display());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

struct World {
    brokers: String,
    connection: Connection,
    archive: TestArchive,
    to: String,
    delivery: &'static str,
    batch: usize,
}

impl World {
    async fn new(brokers: &str, delivery: &'static str, batch: usize) -> Self {
        let connection = Connection::new(brokers);
        let to = fresh("crash");
        live::topic(&connection, &to, 1).await;
        let mut archive = TestArchive::new(Format::Parquet).await;
        let values: Vec<String> = (0..RECORDS).map(|i| i.to_string()).collect();
        let records: Vec<Rec<'_>> = (values.iter().enumerate())
            .map(|(i, v)| Rec { offset: i as i64, timestamp_ms: 1, value: Some(v.as_bytes()), ..Rec::default() })
            .collect();
        archive.cut("crash-dlq", 0, 0, RECORDS as i64, support::batch(&records), Vec::new()).await;
        Self { brokers: brokers.to_owned(), connection, archive, to, delivery, batch }
    }

    fn args(&self, brokers: &str) -> Vec<String> {
        let (to, batch) = (self.to.clone(), self.batch.to_string());
        let args = ["restore", "--archive", self.archive.url(), "--brokers", brokers, "--all", "--to", &to];
        let more = ["--delivery", self.delivery, "--batch", &batch, "-o", "json"];
        args.iter().chain(&more).map(|arg| (*arg).to_owned()).collect()
    }

    /// The folder of the one restore there is.
    fn folder(&self) -> PathBuf {
        let entries = std::fs::read_dir(self.archive.path("restores")).unwrap();
        let mut folders: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).filter(|path| path.is_dir()).collect();
        assert_eq!(folders.len(), 1, "{folders:?}");
        folders.remove(0)
    }

    /// Starts it and kills it there.
    fn kill(&self, at: At) {
        let wire = Wire::to(&self.brokers);
        // By then it has a folder.
        let first = wire.hold(Side::Request, PRODUCE, 0);
        let mut command = support::program();
        let mut child =
            command.args(self.args(&wire.address())).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        first.wait();
        match at {
            At::Object(name) => {
                let trap = Trap::set(self.folder().join(name));
                first.release();
                let held = trap.wait(&mut child);
                child.kill().unwrap();
                assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
                drop(held);
            }
            At::Wire(side, api, pass) => {
                // The one that is held now counts, too.
                let passed = wire.requests().iter().filter(|r| r.api == api).count()
                    + usize::from((side, api) == (Side::Request, PRODUCE));
                let held = wire.hold(side, api, pass.checked_sub(passed).unwrap());
                first.release();
                held.wait();
                child.kill().unwrap();
                assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
            }
        }
    }

    /// How often each value is there.
    fn values(&self) -> BTreeMap<usize, usize> {
        let mut values = BTreeMap::new();
        for raw in live::read(&self.connection, &self.to)[&0].iter() {
            *values.entry(std::str::from_utf8(raw.value.unwrap()).unwrap().parse().unwrap()).or_default() += 1;
        }
        values
    }

    /// The same command again goes on, and says what is where.
    fn ends(&self, after: &str) {
        let run = support::run(&self.args(&self.brokers).iter().map(String::as_str).collect::<Vec<_>>());
        assert!(run.err.contains("resuming restore"), "{after}: {run:?}");
        let done = run.json();
        assert_eq!(done["restored"], RECORDS, "{after}: {done}");
        assert!(self.folder().join("done.json").is_file());
        let read = live::read(&self.connection, &self.to);
        let listed = live::lists(&self.folder());
        let ids: BTreeSet<_> = listed.iter().map(|row| row.id.offset).collect();
        assert_eq!((listed.len(), ids.len()), (RECORDS, RECORDS), "{after}: each is listed once");
        for row in listed {
            let at = read[&0].iter().find(|r| r.offset == row.target_offset);
            let value = at.unwrap_or_else(|| panic!("{after}: {row:?} is not there")).value;
            assert_eq!(value, Some(row.id.offset.to_string().as_bytes()), "{after}: the list says what is where");
        }
        let again = support::run(&self.args(&self.brokers).iter().map(String::as_str).collect::<Vec<_>>()).json();
        assert_eq!((&again["selected"], &again["to_restore"]), (&RECORDS.into(), &0.into()), "{after}");
    }
}

/// Killed there, when so many records can be read in the target; how often each is there at the end.
async fn killed(delivery: &'static str, batch: usize, at: At, visible: usize) -> Option<BTreeMap<usize, usize>> {
    let brokers = live::brokers()?;
    let world = World::new(&brokers, delivery, batch).await;
    world.kill(at);
    let after = format!("{delivery}, killed at {at:?}");
    let until = Instant::now() + PATIENCE;
    // What is committed may become visible a moment later.
    while world.values().values().sum::<usize>() != visible {
        assert!(Instant::now() < until, "{after}: {:?}", world.values());
        std::thread::sleep(Duration::from_millis(50));
    }
    for name in ["done.json", "records-00000.parquet"] {
        let there = matches!(at, At::Object("done.json")) && name != "done.json";
        assert_eq!(world.folder().join(name).exists(), there, "{after}: {name}");
    }
    world.ends(&after);
    Some(world.values())
}

async fn nothing_is_sent_twice(delivery: &'static str, batch: usize, at: At, visible: usize) {
    let Some(values) = killed(delivery, batch, at, visible).await else { return };
    let once: BTreeMap<usize, usize> = (0..RECORDS).map(|i| (i, 1)).collect();
    assert_eq!(values, once, "{delivery}, killed at {at:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_before_the_final_lists_nothing_is_sent_twice() {
    for delivery in ["transactional", "plain"] {
        for object in ["records-00000.parquet", "done.json"] {
            nothing_is_sent_twice(delivery, BATCH, At::Object(object), RECORDS).await;
        }
    }
    // Without transactions the end is a run of its own.
    nothing_is_sent_twice("plain", BATCH, At::Object("run-2.json"), RECORDS).await;
}

/// The first commit is of progress alone: that nothing is sent yet.
#[tokio::test(flavor = "multi_thread")]
async fn killed_before_it_learns_of_a_commit_nothing_is_sent_twice() {
    for batches in [1, 2, RECORDS / BATCH] {
        nothing_is_sent_twice("transactional", BATCH, At::Wire(Side::Answer, END_TXN, batches), batches * BATCH).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_a_batch_and_the_next_nothing_is_sent_twice() {
    for delivery in ["transactional", "plain"] {
        nothing_is_sent_twice(delivery, 1, At::Wire(Side::Request, PRODUCE, 5), 5).await;
    }
}

/// What plain delivery cannot know: the records are there, and no list says so. With transactions they are not.
#[tokio::test(flavor = "multi_thread")]
async fn killed_before_a_batch_is_listed_only_plain_delivery_sends_it_again() {
    let answer = At::Wire(Side::Answer, PRODUCE, RECORDS - 1);
    nothing_is_sent_twice("transactional", 1, answer, RECORDS - 1).await;
    let Some(values) = killed("plain", 1, answer, RECORDS).await else { return };
    let last_twice: BTreeMap<usize, usize> = (0..RECORDS).map(|i| (i, 1 + usize::from(i == RECORDS - 1))).collect();
    assert_eq!(values, last_twice);
}
