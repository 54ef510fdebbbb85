//! `tail`: reads dead-letter topics as they are, decodes, and shows.
//!
//! Owns where reading begins, following and ending. Decodes with the archive's tables, writes nothing anywhere.
//! Invariant: no group is joined and no offset committed, so that looking never changes what an archiver or a
//! consumer does.

use crate::cut::Tables;
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::format::ArchivedRecord;
use crate::kafka::{Admin, Connection, Consumer, Polled};
use crate::record::{RawBatch, RecordId, TopicPartition};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Where reading begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With the last records of each topic that match, by time over its partitions.
    Last(usize),
    Beginning,
    /// With the first record at or behind this Kafka timestamp, milliseconds since 1970.
    Since(i64),
}

#[derive(Debug, Clone)]
pub struct Options {
    /// Exact names, or regular expressions that begin with `^`.
    pub topics: Vec<String>,
    /// All if empty.
    pub partitions: Vec<i32>,
    pub start: Start,
    /// End where the partitions ended at start.
    pub once: bool,
    /// End after this many events.
    pub limit: Option<u64>,
    /// On decoded columns and time; topics and partitions are above.
    pub filter: Filter,
    pub start_timeout: Duration,
    /// Ask for the cluster's id.
    pub cluster_id: bool,
}

/// How long one question to a broker may take.
const ASK: Duration = Duration::from_secs(10);
/// How often new topics and partitions are looked for.
const REFRESH: Duration = Duration::from_secs(30);
/// How long the last records of the topics may take to come before those that came are shown.
const BACKLOG: Duration = Duration::from_secs(10);
/// Reading back further than this at a time is told.
const TELL_BACK: i64 = 100_000;
/// How long an outage is waited out where the end is known; else for ever.
const OUTAGE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy)]
struct Position {
    next: i64,
    /// The end that was seen at start.
    end: i64,
}

/// A record that was read and not yet shown.
struct Kept {
    tp: TopicPartition,
    batch: RawBatch,
}

impl Kept {
    fn time(&self) -> i64 {
        self.batch.get(0).timestamp_ms
    }
}

/// Takes each dead letter as the archive would have it, but for `archived_at_us`; `None` when there is nothing more
/// for now.
pub type Show<'s> = dyn FnMut(Option<&ArchivedRecord<'_>>) -> Result<()> + 's;

/// Runs until `stop`, or until an end that the options name. Blocks: run it on a thread of its own.
///
/// # Errors
/// [`crate::Kind::Config`] for topics or partitions that are not there and for refused connections,
/// [`crate::Kind::Unavailable`] if no broker answers at start; what `show` returns.
pub fn run(
    options: &Options,
    connection: &Connection,
    tables: &Tables,
    stop: &AtomicBool,
    show: &mut Show<'_>,
) -> Result<()> {
    let admin = Admin::new(connection)?;
    admin.wait(options.start_timeout)?;
    let found = partitions(&admin, options)?;
    if found.is_empty() && options.once {
        return Err(Error::config(format!("no topic matches {}: nothing to show", options.topics.join(", "))));
    }
    if found.is_empty() {
        tracing::warn!("no topic matches {} yet: waiting for one", options.topics.join(", "));
    }
    let mut positions = BTreeMap::new();
    for tp in found {
        let (low, end) = admin.watermarks(&tp, ASK)?;
        let next = match options.start {
            // The last records are read back to, at the most, here.
            Start::Beginning | Start::Last(_) => low,
            Start::Since(since) => since_offset(&admin, &tp, (low, end), since),
        };
        positions.insert(tp, Position { next, end });
    }
    let cluster_id = if options.cluster_id { admin.cluster_id(Duration::from_secs(2)) } else { None };
    let consumer = Consumer::new(connection, "dlq-archiver-tail")?;
    let mut tail = Tail {
        options,
        admin,
        consumer,
        tables,
        stop,
        cluster_id,
        positions,
        shown: 0,
        refreshed: Instant::now(),
        outage: None,
    };
    match options.start {
        Start::Last(n) if tail.backlog(n, show)?.is_break() => return Ok(()),
        Start::Last(_) => {}
        Start::Beginning | Start::Since(_) => tail.assign()?,
    }
    tail.follow(show)
}

/// The partitions to read.
fn partitions(admin: &Admin, options: &Options) -> Result<Vec<TopicPartition>> {
    let topics = admin.topics(&options.topics, ASK)?;
    let wanted = |p: &i32| options.partitions.is_empty() || options.partitions.contains(p);
    let found: Vec<_> = topics
        .iter()
        .flat_map(|t| t.partitions.iter().filter(|p| wanted(p)).map(|p| TopicPartition::new(&t.name, *p)))
        .collect();
    if let Some(absent) = options.partitions.iter().find(|p| !found.iter().any(|tp| tp.partition == **p))
        && !topics.is_empty()
    {
        let have: Vec<_> = topics.iter().map(|t| format!("{} has {}", t.name, t.partitions.len())).collect();
        return Err(Error::config(format!("--partition {absent} does not exist: {}, from 0", have.join(", "))));
    }
    Ok(found)
}

/// Where records at or behind `since` begin at the earliest. Brokers that cannot seek by time answer with an error, or
/// as if no record were that young; then it is the log's start, and the records before `since` are filtered out.
fn since_offset(admin: &Admin, tp: &TopicPartition, (low, end): (i64, i64), since: i64) -> i64 {
    if low >= end {
        return end;
    }
    match admin.offset_for_time(tp, since, ASK) {
        Ok(Some(offset)) => offset.clamp(low, end),
        // A broker that can seek by time finds something behind 1970 in a log that is not empty.
        Ok(None) if matches!(admin.offset_for_time(tp, 0, ASK), Ok(Some(_))) => end,
        other => {
            let why = other.err().map_or(String::new(), |e| format!(" ({e})"));
            tracing::debug!("{tp}: the broker cannot seek by time{why}: reading from the log's start");
            low
        }
    }
}

struct Tail<'t> {
    options: &'t Options,
    admin: Admin,
    consumer: Consumer,
    tables: &'t Tables,
    stop: &'t AtomicBool,
    cluster_id: Option<String>,
    positions: BTreeMap<TopicPartition, Position>,
    shown: u64,
    refreshed: Instant,
    /// Since when the brokers do not answer, once that was told.
    outage: Option<Instant>,
}

impl Tail<'_> {
    /// Reads every partition from its position.
    fn assign(&self) -> Result<()> {
        self.consumer.read_from(self.positions.iter().map(|(tp, p)| (tp, p.next, -1)))
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn at_ends(&self) -> bool {
        self.positions.values().all(|p| p.next >= p.end)
    }

    /// The next record, if one comes within `timeout`; else keeps positions and assignment right.
    fn poll(&mut self, timeout: Duration) -> Result<Option<Kept>> {
        let mut got = None;
        let polled = self.consumer.poll(timeout, |m| {
            let mut batch = RawBatch::new();
            let copied = m.copy_into(&mut batch);
            got = Some((TopicPartition::new(m.topic(), m.partition()), m.offset(), copied.map(|()| batch)));
        });
        match polled {
            Polled::Record => {
                if let Some(since) = self.outage.take() {
                    tracing::info!("records come again, after {} s", since.elapsed().as_secs());
                }
                let Some((tp, offset, copied)) = got else { return Ok(None) };
                if let Some(position) = self.positions.get_mut(&tp) {
                    position.next = offset + 1;
                }
                match copied {
                    Ok(batch) => return Ok(Some(Kept { tp, batch })),
                    Err(e) => tracing::warn!("{tp}/{offset} is not shown: {e}"),
                }
            }
            Polled::OutOfRange => self.back_into_range()?,
            Polled::Failed(e) if e.is_unavailable() => {
                if self.outage.is_none() {
                    tracing::warn!("{e}; waiting for the brokers");
                    self.outage = Some(Instant::now());
                }
            }
            Polled::Failed(e) => return Err(e),
            Polled::Idle | Polled::End => {
                // Behind transaction markers and aborted records.
                for (tp, offset) in self.consumer.positions() {
                    if let Some(position) = self.positions.get_mut(&tp) {
                        position.next = position.next.max(offset);
                    }
                }
            }
        }
        match self.outage {
            Some(since) if self.options.once && since.elapsed() > OUTAGE => {
                let why = self.consumer.last_error().map_or(String::new(), |e| format!(": {e}"));
                Err(Error::unavailable(format!("the brokers do not answer since {} s{why}", since.elapsed().as_secs())))
            }
            _ => Ok(None),
        }
    }

    /// Retention overtook a position, or a topic was made anew: goes on where its log begins now.
    fn back_into_range(&mut self) -> Result<()> {
        for (tp, position) in &mut self.positions {
            let Ok((low, high)) = self.admin.watermarks(tp, ASK) else { continue };
            if position.next < low {
                tracing::warn!("{tp}: offsets {}..{low} were deleted before they could be shown", position.next);
                position.next = low;
            } else if position.next > high {
                tracing::warn!("{tp}: the log ends at {high}, before {}: the topic was made anew", position.next);
                position.next = low;
            }
        }
        self.assign()
    }

    /// Looks for topics and partitions that are new, and reads them from their start.
    fn refresh(&mut self) -> Result<()> {
        self.refreshed = Instant::now();
        let found = match partitions(&self.admin, self.options) {
            Ok(found) => found,
            Err(e) => {
                tracing::debug!("cannot look for new partitions: {e}");
                return Ok(());
            }
        };
        let before = self.positions.len();
        for tp in found {
            if !self.positions.contains_key(&tp)
                && let Ok((low, _)) = self.admin.watermarks(&tp, ASK)
            {
                tracing::info!("{tp} is new");
                self.positions.insert(tp, Position { next: low, end: low });
            }
        }
        if self.positions.len() > before { self.assign() } else { Ok(()) }
    }

    /// Shows the last `n` records of each topic that match. Reads back in growing steps, and no further than the topic
    /// needs; what is behind the ends seen at start is left to follow.
    fn backlog(&mut self, n: usize, show: &mut Show<'_>) -> Result<ControlFlow<()>> {
        let mut follow = std::mem::take(&mut self.positions);
        let back = |p: &Position| Back { low: p.next, from: p.end, ..Back::default() };
        let mut partitions: BTreeMap<_, _> = follow.iter().map(|(tp, p)| (tp.clone(), back(p))).collect();
        follow.values_mut().for_each(|p| p.next = p.end);
        // A transaction of one record takes two offsets.
        let mut step = i64::try_from(n).unwrap_or(i64::MAX).saturating_mul(2);
        while !self.stopped() {
            for tp in unfinished(&partitions, n) {
                let back = &partitions[&tp];
                self.positions
                    .insert(tp, Position { next: back.from.saturating_sub(step).max(back.low), end: back.from });
            }
            if self.positions.is_empty() {
                break;
            }
            if step > TELL_BACK {
                tracing::info!("fewer than {n} records match so far: reading {step} offsets further back");
            }
            let from: Vec<i64> = self.positions.values().map(|p| p.next).collect();
            let mut read = self.read_back(n)?;
            let mut whole = true;
            for ((tp, p), from) in std::mem::take(&mut self.positions).into_iter().zip(from) {
                let (Some(back), Some(after)) = (partitions.get_mut(&tp), follow.get_mut(&tp)) else { continue };
                whole &= p.next >= p.end;
                // What the newest step lacks will follow; an older one would leave a hole.
                match p.next < p.end {
                    true if p.end == after.end => after.next = p.next,
                    true => continue,
                    false => {}
                }
                let older = read.remove(&tp).unwrap_or_default();
                back.add(older, from, n);
            }
            if !whole {
                if !self.stopped() {
                    tracing::warn!("the brokers are slow to answer: older records that match may be missing");
                }
                break;
            }
            step = step.saturating_mul(4);
        }
        let mut topics: BTreeMap<String, Vec<Vec<Kept>>> = BTreeMap::new();
        for (tp, back) in partitions {
            topics.entry(tp.topic).or_default().push(back.read.kept.into());
        }
        let topics = topics.into_values().map(|partitions| last_merged(partitions, n, Kept::time)).collect();
        self.positions = follow;
        for record in last_merged(topics, usize::MAX, Kept::time) {
            if self.show(&record, show)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        self.assign()?;
        Ok(ControlFlow::Continue(()))
    }

    /// Reads every partition from its position to its end: the last `n` records of each that match.
    fn read_back(&mut self, n: usize) -> Result<BTreeMap<TopicPartition, Step>> {
        self.assign()?;
        let mut read: BTreeMap<TopicPartition, Step> = BTreeMap::new();
        let mut moved = Instant::now();
        let mut done = Vec::new();
        while !self.at_ends() && !self.stopped() && moved.elapsed() < BACKLOG {
            if let Some(record) = self.poll(POLL)? {
                moved = Instant::now();
                let offset = record.batch.get(0).offset;
                if self.positions.get(&record.tp).is_some_and(|p| offset < p.end) {
                    let step = read.entry(record.tp.clone()).or_default();
                    step.oldest_ms.get_or_insert(record.time());
                    if self.decoded(&record, |event| self.options.filter.matches(event)) {
                        step.kept.push_back(record);
                        if step.kept.len() > n {
                            step.kept.pop_front();
                        }
                    }
                }
            }
            let reached: Vec<_> = (self.positions.iter().filter(|(tp, p)| p.next >= p.end && !done.contains(*tp)))
                .map(|(tp, _)| tp.clone())
                .collect();
            if !reached.is_empty() {
                self.consumer.pause(&reached)?;
                done.extend(reached);
            }
        }
        self.consumer.resume(&done)?;
        Ok(read)
    }

    /// Shows records as they come.
    fn follow(&mut self, show: &mut Show<'_>) -> Result<()> {
        let mut timeout = Duration::ZERO;
        while !(self.stopped() || self.options.once && self.at_ends()) {
            match self.poll(timeout)? {
                Some(record) => {
                    timeout = Duration::ZERO;
                    if self.show(&record, show)?.is_break() {
                        return Ok(());
                    }
                }
                None => {
                    // Nothing at hand: what was shown must be seen before the next wait.
                    show(None)?;
                    timeout = POLL;
                }
            }
            if !self.options.once && self.refreshed.elapsed() >= REFRESH {
                self.refresh()?;
            }
        }
        Ok(())
    }

    /// Decodes and shows a record that is selected; breaks at the limit.
    fn show(&mut self, record: &Kept, show: &mut Show<'_>) -> Result<ControlFlow<()>> {
        let (tp, raw) = (&record.tp, record.batch.get(0));
        if self.options.once && self.positions.get(tp).is_some_and(|p| raw.offset >= p.end) {
            return Ok(ControlFlow::Continue(()));
        }
        let shown = self.decoded(record, |event| match self.options.filter.matches(event) {
            true => show(Some(event)).map(|()| 1),
            false => Ok(0),
        })?;
        self.shown += shown;
        let at_limit = self.options.limit.is_some_and(|limit| self.shown >= limit);
        Ok(if at_limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// The record as the archive would have it.
    fn decoded<T>(&self, record: &Kept, then: impl FnOnce(&ArchivedRecord<'_>) -> T) -> T {
        let (tp, raw) = (&record.tp, record.batch.get(0));
        let decoded = self.tables.dialects.decode(&tp.topic, tp.partition, &raw);
        let pipeline = self.tables.routing.pipeline(&tp.topic, &decoded).into_owned();
        let size = |bytes: Option<&[u8]>| bytes.map(|b| i32::try_from(b.len()).unwrap_or(i32::MAX));
        then(&ArchivedRecord {
            id: RecordId { topic: tp.topic.clone(), generation: 1, partition: tp.partition, offset: raw.offset },
            cluster_id: self.cluster_id.as_deref(),
            raw,
            key_size: size(raw.key),
            value_size: size(raw.value),
            decoded,
            pipeline: &pipeline,
            archived_at_us: 0,
        })
    }
}

/// How far one partition was read back.
#[derive(Default)]
struct Back {
    /// Its log's start.
    low: i64,
    /// What is before was not read yet.
    from: i64,
    read: Step,
}

/// What reading back found.
#[derive(Default)]
struct Step {
    /// The last records that match, in order.
    kept: VecDeque<Kept>,
    /// Time of the first record, whether it matches or not.
    oldest_ms: Option<i64>,
}

impl Back {
    /// Takes what lies from `from` up to where it began; keeps the last `n`.
    fn add(&mut self, mut older: Step, from: i64, n: usize) {
        self.from = from;
        older.kept.append(&mut self.read.kept);
        older.kept.drain(..older.kept.len().saturating_sub(n));
        older.oldest_ms = older.oldest_ms.or(self.read.oldest_ms);
        self.read = older;
    }
}

/// The partitions that may have more of their topic's last `n`: not those that have as many themselves, nor those that
/// were read back to a time before the topic's last `n` so far.
fn unfinished(partitions: &BTreeMap<TopicPartition, Back>, n: usize) -> Vec<TopicPartition> {
    let mut times: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for (tp, back) in partitions {
        times.entry(&tp.topic).or_default().extend(back.read.kept.iter().map(Kept::time));
    }
    times.values_mut().for_each(|times| times.sort_unstable_by_key(|ms| Reverse(*ms)));
    let open = |(tp, back): &(&TopicPartition, &Back)| {
        let nth = n.checked_sub(1).and_then(|last| times.get(tp.topic.as_str())?.get(last));
        back.from > back.low
            && back.read.kept.len() < n
            && nth.zip(back.read.oldest_ms).is_none_or(|(nth, oldest)| oldest > *nth)
    };
    partitions.iter().filter(open).map(|(tp, _)| tp.clone()).collect()
}

/// The last `n` of several sequences, merged by time; none is taken out of its own order.
fn last_merged<T>(mut sequences: Vec<Vec<T>>, n: usize, time: impl Fn(&T) -> i64) -> Vec<T> {
    let mut merged = Vec::new();
    while merged.len() < n {
        let newest = sequences.iter_mut().filter(|s| !s.is_empty()).max_by_key(|s| s.last().map(&time));
        let Some(record) = newest.and_then(Vec::pop) else { break };
        merged.push(record);
    }
    merged.reverse();
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_records_keep_their_partitions_order() {
        let time = |t: &(char, i64)| t.1;
        // Connect keeps the source's timestamps: within a partition they need not ascend.
        let partitions = || vec![vec![('a', 5), ('a', 1), ('a', 9)], vec![('b', 2), ('b', 7)], vec![]];
        assert_eq!(last_merged(partitions(), 3, time), [('b', 2), ('b', 7), ('a', 9)]);
        assert_eq!(last_merged(partitions(), 9, time), [('a', 5), ('a', 1), ('b', 2), ('b', 7), ('a', 9)]);
        assert!(last_merged(partitions(), 0, time).is_empty());
    }
}
