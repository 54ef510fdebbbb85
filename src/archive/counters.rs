//! What an archiver has done so far, and how it is: written where it happens, read by progress display and metrics.
//!
//! Does not know how any of it is shown. Invariant: nothing on a record's way waits here; a topic's counters are looked
//! up once for each partition, and the rest is atomics.

use super::board::Board;
use crate::cut::Tally;
use crate::format::refetched::State;
use crate::host;
use crate::ledger::{GapKind, loss_words};
use crate::store::Created;
use prometheus_client::metrics::histogram::Histogram;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Topics that are counted apart. Those that come later are counted together, under [`OTHER_TOPICS`].
pub const TOPICS: usize = 1_000;
/// No topic can have this name.
pub const OTHER_TOPICS: &str = "(other)";
/// Dialects that are counted apart; those that come later are `other`.
pub const DIALECTS: usize = 50;
pub const OTHER_DIALECTS: &str = "other";

/// How often it is told of a topic that pipelines share objects.
const TELL_SHARED_MS: i64 = 60 * 60 * 1000;

/// Upper bounds in seconds: from a local folder's cut to one that waits for its store.
const CUT_SECONDS: [f64; 12] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];

/// What was done so far.
#[derive(Debug)]
pub struct Counters {
    topics: Mutex<BTreeMap<String, Arc<TopicCounters>>>,
    dialects: Mutex<BTreeMap<String, Decodes>>,
    pub cut_seconds: Histogram,
    pub vitals: Vitals,
    pub board: Arc<Board>,
    /// Of `archive --refetch`; `None` without it.
    originals: Mutex<Option<OriginalCounts>>,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            topics: Mutex::default(),
            dialects: Mutex::default(),
            cut_seconds: Histogram::new(CUT_SECONDS),
            vitals: Vitals::default(),
            board: Arc::default(),
            originals: Mutex::default(),
        }
    }
}

/// Of one topic.
#[derive(Debug, Default)]
pub struct TopicCounters {
    read_records: AtomicU64,
    read_bytes: AtomicU64,
    archived_records: AtomicU64,
    found_records: AtomicU64,
    cuts: AtomicU64,
    cuts_found: AtomicU64,
    objects: AtomicU64,
    object_bytes: AtomicU64,
    shared_records: AtomicU64,
    /// When it was told that pipelines share objects, ms since 1970; 0 before.
    shared_told_ms: AtomicI64,
    gaps: [AtomicU64; GapKind::ALL.len()],
}

/// A moment's [`TopicCounters`], of one topic or of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    pub read_records: u64,
    pub read_bytes: u64,
    /// Rows of `cuts`.
    pub archived_records: u64,
    /// Rows of `cuts_found`.
    pub found_records: u64,
    /// Cuts that this run committed, those that an earlier run began included.
    pub cuts: u64,
    /// Cuts of this run whose manifest was there already, byte for byte. By this run, with the reply lost, or by another
    /// archiver that finished the same intent at the same moment and counts it: nothing tells these apart.
    pub cuts_found: u64,
    /// Data objects of this run, counted likewise.
    pub objects: u64,
    pub object_bytes: u64,
    /// Rows of `cuts` in objects that several pipelines share.
    pub shared_records: u64,
    /// Offsets that retention took before they were archived.
    pub lost: u64,
    /// Offsets in gaps, in the order of [`GapKind::ALL`].
    pub gaps: [u64; GapKind::ALL.len()],
}

/// Records of one dialect in data objects of this run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Decodes {
    pub records: u64,
    /// Of them, those of which something could not be decoded.
    pub problems: u64,
}

/// Originals of dead letters that were looked for in the topics that they came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OriginalCounts {
    pub states: BTreeMap<State, u64>,
    /// Of the last look: those that got no answer, and are looked for again.
    pub unanswered: u64,
}

/// Whether the program is well, as far as its threads can tell.
#[derive(Debug, Default)]
pub struct Vitals {
    /// The brokers, and the store, have answered since the start.
    pub brokers_answered: AtomicBool,
    pub store_answered: AtomicBool,
    /// When the poll thread turned last, ms since 1970; 0 before it does.
    heartbeat_ms: AtomicI64,
    /// Since when the brokers do not answer, ms since 1970; 0 while they do.
    kafka_failing_since_ms: AtomicI64,
    pub memory_budget: AtomicUsize,
    /// Open batches, and those on their way with the objects that they become.
    pub memory_used: AtomicUsize,
    /// Reading waits until memory is free.
    pub paused: AtomicBool,
}

impl Vitals {
    /// The poll thread turns.
    pub(super) fn beat(&self) {
        self.heartbeat_ms.store(host::now_us() / 1000, Relaxed);
    }

    /// The poll thread ended as it should.
    pub(super) fn rest(&self) {
        self.heartbeat_ms.store(i64::MAX, Relaxed);
    }

    /// Since when the poll thread has not turned; `None` before its first turn and after its last.
    pub fn heartbeat_ms(&self) -> Option<i64> {
        Some(self.heartbeat_ms.load(Relaxed)).filter(|at| *at != 0 && *at != i64::MAX)
    }

    /// Whether the brokers answer. At the end of an outage: how long it was, ms, for one of those who tell it.
    pub(super) fn kafka(&self, answers: bool) -> Option<i64> {
        let now_ms = host::now_us() / 1000;
        if answers {
            let since = self.kafka_failing_since_ms.swap(0, Relaxed);
            return (since != 0).then(|| now_ms.saturating_sub(since));
        }
        // Another thread may have told it first.
        let _ = self.kafka_failing_since_ms.compare_exchange(0, now_ms, Relaxed, Relaxed);
        None
    }

    pub fn kafka_failing_since_ms(&self) -> Option<i64> {
        Some(self.kafka_failing_since_ms.load(Relaxed)).filter(|at| *at != 0)
    }
}

impl TopicCounters {
    pub(crate) fn read(&self, records: u64, bytes: u64) {
        self.read_records.fetch_add(records, Relaxed);
        self.read_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn cut(&self, rows: u64, created: Created) {
        let (records, cuts) = match created {
            Created::New => (&self.archived_records, &self.cuts),
            Created::Exists => (&self.found_records, &self.cuts_found),
        };
        records.fetch_add(rows, Relaxed);
        cuts.fetch_add(1, Relaxed);
    }

    pub(crate) fn object(&self, bytes: u64) {
        self.objects.fetch_add(1, Relaxed);
        self.object_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn shared(&self, rows: u64) {
        self.shared_records.fetch_add(rows, Relaxed);
    }

    /// Whether it is time to tell that pipelines share objects.
    pub(super) fn tells_shared(&self) -> bool {
        let (told, now) = (self.shared_told_ms.load(Relaxed), host::now_us() / 1000);
        now - told >= TELL_SHARED_MS && self.shared_told_ms.compare_exchange(told, now, Relaxed, Relaxed).is_ok()
    }

    pub(crate) fn gap(&self, kind: GapKind, offsets: u64) {
        for (counter, _) in self.gaps.iter().zip(GapKind::ALL).filter(|(_, k)| *k == kind) {
            counter.fetch_add(offsets, Relaxed);
        }
    }

    fn get(&self) -> Counted {
        let gaps = self.gaps.each_ref().map(|gap| gap.load(Relaxed));
        let lost = gaps.iter().zip(GapKind::ALL).filter(|(_, kind)| kind.is_loss());
        Counted {
            read_records: self.read_records.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            archived_records: self.archived_records.load(Relaxed),
            found_records: self.found_records.load(Relaxed),
            cuts: self.cuts.load(Relaxed),
            cuts_found: self.cuts_found.load(Relaxed),
            objects: self.objects.load(Relaxed),
            object_bytes: self.object_bytes.load(Relaxed),
            shared_records: self.shared_records.load(Relaxed),
            lost: lost.map(|(offsets, _)| offsets).sum(),
            gaps,
        }
    }
}

impl Counted {
    /// What was found lost, in words.
    pub fn losses(&self) -> Option<String> {
        let of = |unsure: bool| {
            let kinds = self.gaps.iter().zip(GapKind::ALL);
            kinds.filter(|(_, k)| k.is_loss() && (*k == GapKind::Unknown) == unsure).map(|(offsets, _)| offsets).sum()
        };
        loss_words(of(false), of(true))
    }

    fn add(mut self, other: &Self) -> Self {
        self.read_records += other.read_records;
        self.read_bytes += other.read_bytes;
        self.archived_records += other.archived_records;
        self.found_records += other.found_records;
        self.cuts += other.cuts;
        self.cuts_found += other.cuts_found;
        self.objects += other.objects;
        self.object_bytes += other.object_bytes;
        self.shared_records += other.shared_records;
        self.lost += other.lost;
        for (gap, more) in self.gaps.iter_mut().zip(other.gaps) {
            *gap += more;
        }
        self
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Counters {
    /// What a look for originals came to; the first has nothing.
    pub fn add_originals(&self, found: &BTreeMap<State, u64>, unanswered: u64) {
        let mut originals = lock(&self.originals);
        let counts = originals.get_or_insert_default();
        found.iter().for_each(|(state, n)| *counts.states.entry(*state).or_default() += n);
        counts.unanswered = unanswered;
    }

    pub fn originals(&self) -> Option<OriginalCounts> {
        lock(&self.originals).clone()
    }

    /// A topic's own, for as long as a partition of it is worked on.
    pub fn topic(&self, topic: &str) -> Arc<TopicCounters> {
        let mut topics = lock(&self.topics);
        let full = topics.len() >= TOPICS && !topics.contains_key(topic);
        topics.entry(if full { OTHER_TOPICS } else { topic }.to_owned()).or_default().clone()
    }

    pub fn topics(&self) -> BTreeMap<String, Counted> {
        lock(&self.topics).iter().map(|(topic, counters)| (topic.clone(), counters.get())).collect()
    }

    /// What all topics come to.
    pub fn get(&self) -> Counted {
        lock(&self.topics).values().fold(Counted::default(), |sum, topic| sum.add(&topic.get()))
    }

    /// What a data object's records decoded to.
    pub fn decoded(&self, tally: &Tally) {
        let mut dialects = lock(&self.dialects);
        for (dialect, records, problems) in tally.iter() {
            let full = dialects.len() >= DIALECTS && !dialects.contains_key(dialect);
            let decodes = dialects.entry(if full { OTHER_DIALECTS } else { dialect }.to_owned()).or_default();
            decodes.records += records;
            decodes.problems += problems;
        }
    }

    pub fn dialects(&self) -> BTreeMap<String, Decodes> {
        lock(&self.dialects).clone()
    }

    pub(super) fn cut_took(&self, time: Duration) {
        self.cut_seconds.observe(time.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_and_dialects_beyond_the_bound_are_counted_together() {
        let counters = Counters::default();
        for i in 0..TOPICS + 100 {
            counters.topic(&format!("t{i}")).read(1, 10);
        }
        counters.topic("t0").read(1, 10);
        let topics = counters.topics();
        assert_eq!((topics.len(), topics["t0"].read_records, topics[OTHER_TOPICS].read_records), (TOPICS + 1, 2, 100));
        assert_eq!(counters.get().read_bytes, 10 * (TOPICS as u64 + 101));
        for i in 0..DIALECTS + 5 {
            let mut tally = Tally::default();
            tally.add(&format!("d{i}"), i % 2 == 0);
            counters.decoded(&tally);
        }
        let dialects = counters.dialects();
        assert_eq!(dialects.len(), DIALECTS + 1);
        assert_eq!(dialects[OTHER_DIALECTS], Decodes { records: 5, problems: 3 });
    }

    /// The end of an outage was not told at all, or would be by each thread that saw it.
    #[test]
    fn the_end_of_an_outage_is_told_by_one() {
        let vitals = Vitals::default();
        assert_eq!((vitals.kafka(true), vitals.kafka(false), vitals.kafka(false)), (None, None, None));
        assert!(vitals.kafka_failing_since_ms().is_some());
        assert!(vitals.kafka(true).is_some_and(|ms| ms >= 0));
        assert_eq!((vitals.kafka(true), vitals.kafka_failing_since_ms()), (None, None));
    }

    #[test]
    fn compacted_offsets_are_a_gap_and_no_loss() {
        let counters = Counters::default();
        for (kind, offsets) in GapKind::ALL.into_iter().zip([1, 20, 300, 4000]) {
            counters.topic("t").gap(kind, offsets);
        }
        assert_eq!((counters.get().lost, counters.get().gaps), (4021, [1, 20, 300, 4000]));
        let told = "21 offsets are lost, and 4000 more may be: retention deleted them before they were archived";
        assert_eq!(counters.get().losses().as_deref(), Some(told));
        assert_eq!(Counted::default().losses(), None);
    }
}
