//! One partition as the poll thread has it: what is read, from where, and the open batch.
//!
//! Asks and tells nobody: [`super::reader`] does. Invariant: the batch holds every record of `from..next` that a
//! read_committed consumer is given, in order.

use super::cluster::Incoming;
use super::counters::TopicCounters;
use super::messages::{Due, LastRecord};
use crate::cut::CutPolicy;
use crate::error::Result;
use crate::host;
use crate::record::RawBatch;
use crate::retention::{self, LogSettings};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Its task reads the ledger.
    Starting,
    Reading,
    /// Read to the end that was seen at start (`--once`).
    Finished,
    Stopped,
}

pub struct Part {
    pub assignment: u64,
    pub policy: CutPolicy,
    /// Share of the retention at which a batch is cut at the latest.
    safety: f64,
    /// Of its topic.
    counters: Arc<TopicCounters>,
    pub state: State,
    /// Start of the open batch.
    pub from: i64,
    /// Next offset expected.
    pub next: i64,
    /// Log end seen at start.
    pub end: i64,
    /// Before `next`, as far as known.
    last: Option<LastRecord>,
    pub batch: RawBatch,
    /// Since when the open batch, or a position without records, waits.
    pub since: Instant,
    /// When something came last, or reading was resumed.
    pub moved: Instant,
    pub paused: bool,
    /// The consumer was told from where to read. Before that it may bring what it fetched from elsewhere.
    pub placed: bool,
    /// Batches that were handed over and are not done.
    pub jobs: usize,
    /// Memory of these, and what its task reserved.
    out: usize,
    /// When something of that was let go last, or there was none of it.
    let_go: Instant,
    /// Memory that its batch may have before it is cut.
    pub room: usize,
    pub settings: LogSettings,
    /// `retention.bytes` is near.
    pub pressing: bool,
    /// Of the next record to read, or of the last one that was: ms since 1970.
    pub unread_ms: Option<i64>,
    /// Oldest timestamp in the open batch.
    oldest_ms: Option<i64>,
    /// Of batches that were handed over: where each ends, and its oldest timestamp.
    handed: VecDeque<(i64, Option<i64>)>,
    /// Records that were read, and their bytes.
    read: (u64, u64),
    /// Of them, those that were past `retention.ms`.
    pub overdue: u64,
    /// Older ones were, at the last look.
    overdue_below_ms: i64,
}

impl Part {
    pub fn starting(assignment: u64, counters: Arc<TopicCounters>, policy: CutPolicy, safety: f64) -> Self {
        Self {
            assignment,
            counters,
            policy,
            safety,
            state: State::Starting,
            from: 0,
            next: 0,
            end: 0,
            last: None,
            batch: RawBatch::with_checksums(),
            since: host::now(),
            moved: host::now(),
            paused: true,
            placed: false,
            jobs: 0,
            out: 0,
            let_go: host::now(),
            room: usize::MAX,
            settings: LogSettings::default(),
            pressing: false,
            unread_ms: None,
            oldest_ms: None,
            handed: VecDeque::new(),
            read: (0, 0),
            overdue: 0,
            overdue_below_ms: i64::MIN,
        }
    }

    /// The same partition under a new assignment. What is known of its topic and was counted stays: until the next look,
    /// which may be a minute off, it would be cut as if Kafka kept its records for ever.
    pub fn anew(&self, assignment: u64) -> Self {
        Self {
            settings: self.settings,
            pressing: self.pressing,
            read: self.read,
            overdue: self.overdue,
            overdue_below_ms: self.overdue_below_ms,
            ..Self::starting(assignment, self.counters.clone(), self.policy, self.safety)
        }
    }

    /// Its task said from where to read; `end`: where it is done, if it is anywhere.
    pub fn start(&mut self, offset: i64, last: Option<LastRecord>, end: i64, once: bool) {
        self.state = if once && offset >= end { State::Finished } else { State::Reading };
        (self.from, self.next, self.end, self.last) = (offset, offset, end, last);
        self.batch = RawBatch::with_checksums();
        self.placed = false;
        self.oldest_ms = None;
        self.since = host::now();
    }

    /// No more is read; the open batch is let go, as Kafka has it.
    pub fn stop(&mut self) {
        self.state = State::Stopped;
        self.batch = RawBatch::with_checksums();
    }

    /// Of the record right before the next one; -1 where there is none. A marker in between may be of a later epoch, and
    /// with the record's own the leader would say that its log is another one.
    pub fn leader_epoch(&self) -> i32 {
        self.last.filter(|last| last.offset + 1 == self.next).map_or(-1, |last| last.leader_epoch)
    }

    /// Takes a record into the open batch, and counts it; whether it is one of ours.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] if its headers cannot be parsed.
    pub fn take(&mut self, message: &dyn Incoming, once: bool) -> Result<bool> {
        let offset = message.offset();
        // Not told to read yet, or fetched before it was told to read from elsewhere.
        if self.state != State::Reading || !self.placed || offset < self.next {
            return Ok(false);
        }
        if once && offset >= self.end {
            // Everything below the end was read: what is left below it are markers and the like.
            self.next = self.end;
            return Ok(false);
        }
        if self.batch.is_empty() {
            self.since = host::now();
        }
        let before = self.batch.payload_len();
        message.copy_into(&mut self.batch)?;
        self.next = offset + 1;
        let Some(record) = self.batch.last() else { return Ok(false) };
        let timestamp = record.timestamp_ms;
        self.last = Some(LastRecord { offset, leader_epoch: record.leader_epoch });
        self.moved = host::now();
        self.unread_ms = Some(timestamp);
        // -1: it has none.
        if timestamp >= 0 && self.oldest_ms.is_none_or(|oldest| timestamp < oldest) {
            self.oldest_ms = Some(timestamp);
        }
        self.overdue += u64::from(timestamp >= 0 && timestamp < self.overdue_below_ms);
        let bytes = self.batch.payload_len() - before;
        self.read = (self.read.0 + 1, self.read.1 + bytes as u64);
        self.counters.read(1, bytes as u64);
        Ok(true)
    }

    /// What the look-out knows. `once`: the end is the one that was seen at start.
    pub fn heed(&mut self, due: &Due, once: bool) {
        (self.settings, self.pressing) = (due.settings, due.pressing);
        let retention = due.settings.retention_ms;
        self.overdue_below_ms = retention.map_or(i64::MIN, |ms| (host::now_us() / 1000).saturating_sub(ms));
        if let Some((offset, ms)) = due.unread
            && offset >= self.next
        {
            self.unread_ms = Some(ms);
        }
        if !once {
            self.end = self.end.max(due.end);
        }
    }

    /// Lets the open batch go: its range, and its records.
    pub fn close(&mut self) -> (i64, i64, RawBatch) {
        let range = (self.from, self.next);
        self.handed.push_back((self.next, self.oldest_ms.take()));
        self.jobs += 1;
        self.from = self.next;
        self.since = host::now();
        let mut batch = std::mem::replace(&mut self.batch, RawBatch::with_checksums());
        batch.seal();
        (range.0, range.1, batch)
    }

    /// So much memory is taken by what is on its way.
    pub fn hand_over(&mut self, memory: usize) {
        if self.out == 0 {
            self.let_go = host::now();
        }
        self.out += memory;
    }

    /// And is free again.
    pub fn let_go(&mut self, memory: usize) {
        self.out = self.out.saturating_sub(memory);
        self.let_go = host::now();
    }

    /// Memory of what is on its way, if none of it was let go for so long.
    pub fn waiting(&self, long: Duration) -> usize {
        if host::since(self.let_go) >= long { self.out } else { 0 }
    }

    /// Whether the open batch is as large as it may be.
    pub fn is_full(&self) -> bool {
        let batch = &self.batch;
        self.policy.due(batch.len(), batch.payload_len(), Duration::ZERO)
            || !batch.is_empty() && batch.memory() >= self.room
    }

    /// All below `next` is archived.
    pub fn archived(&mut self, next: i64) {
        while self.handed.front().is_some_and(|(to, _)| *to <= next) {
            self.handed.pop_front();
        }
    }

    /// Timestamp of the oldest record that was read and is not archived.
    pub fn oldest_read_ms(&self) -> Option<i64> {
        self.handed.iter().filter_map(|(_, oldest)| *oldest).chain(self.oldest_ms).min()
    }

    /// Whether the open batch has to be cut before its time, lest Kafka deletes what a crash would lose.
    pub fn is_urgent(&self) -> bool {
        let by = self.oldest_ms.and_then(|oldest| retention::cut_by(oldest, &self.settings, self.safety));
        !self.batch.is_empty() && (self.pressing || by.is_some_and(|by| host::now_us() / 1000 >= by))
    }

    /// When the next record to read may be deleted, ms since 1970.
    pub fn expires_ms(&self) -> i64 {
        let at = self.unread_ms.and_then(|unread| retention::cut_by(unread, &self.settings, 1.0));
        at.unwrap_or(i64::MAX)
    }

    /// Key, value and headers of an average record; `None` before the first.
    pub fn record_bytes(&self) -> Option<u64> {
        self.read.1.checked_div(self.read.0)
    }

    /// The consumer's position: behind markers, aborted and compacted records too.
    pub fn follow(&mut self, position: i64, once: bool) {
        // Records behind the end were handed out too, and let go: the position is behind them.
        let position = if once { position.min(self.end) } else { position };
        if self.state == State::Reading && self.placed && position > self.next {
            (self.next, self.moved) = (position, host::now());
        }
    }

    /// Is read, and brought nothing for longer than `wait`.
    pub fn is_silent(&self, wait: Duration) -> bool {
        self.state == State::Reading && !self.paused && host::since(self.moved) > wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::TimestampType;

    #[test]
    fn with_once_a_position_behind_the_end_is_the_end() {
        let mut part = Part::starting(1, Arc::default(), CutPolicy::default(), 0.5);
        part.start(3, None, 7, true);
        part.follow(9, true);
        assert_eq!(part.next, 3, "a position of before the consumer was told from where to read");
        part.placed = true;
        part.follow(9, true);
        assert_eq!((part.next, part.state), (7, State::Reading));
        part.start(3, None, 7, false);
        part.placed = true;
        part.follow(9, false);
        assert_eq!(part.next, 9);
        part.start(7, None, 7, true);
        assert_eq!(part.state, State::Finished);
        part.follow(9, true);
        assert_eq!(part.next, 7);
    }

    struct At(i64);

    impl Incoming for At {
        fn topic(&self) -> &str {
            "t"
        }
        fn partition(&self) -> i32 {
            0
        }
        fn offset(&self) -> i64 {
            self.0
        }
        fn copy_into(&self, batch: &mut RawBatch) -> Result<()> {
            batch.push(self.0, 1, TimestampType::CreateTime, 0, None, None, std::iter::empty());
            Ok(())
        }
    }

    /// Found by simulation: the batch had what the consumer had fetched behind the offset that it was to begin at.
    #[test]
    fn what_was_fetched_from_elsewhere_is_not_taken_before_the_consumer_is_told() {
        let mut part = Part::starting(1, Arc::default(), CutPolicy::default(), 0.5);
        part.start(3, None, 9, false);
        assert_eq!((part.take(&At(5), false).unwrap(), part.next), (false, 3));
        part.placed = true;
        assert!(part.take(&At(3), false).unwrap());
        assert_eq!((part.next, part.batch.len()), (4, 1));
    }

    /// After a position out of range nothing was cut early for a minute, and `overdue` went back to 0.
    #[test]
    fn a_partition_that_begins_anew_is_as_urgent_as_before() {
        let mut part = Part::starting(1, Arc::default(), CutPolicy::default(), 0.5);
        let settings = LogSettings { retention_ms: Some(1000), ..LogSettings::default() };
        part.heed(&Due { settings, unread: None, end: 9, pressing: false }, false);
        let read = |part: &mut Part| {
            part.start(3, None, 9, false);
            part.placed = true;
            part.take(&At(3), false).unwrap();
        };
        read(&mut part);
        assert!(part.is_urgent(), "a record of 1970 is past it");
        let mut part = part.anew(2);
        assert!((part.assignment, part.state, part.is_urgent()) == (2, State::Starting, false), "nothing is read yet");
        read(&mut part);
        assert!((part.is_urgent(), part.overdue, part.record_bytes()) == (true, 2, Some(0)));
    }

    #[test]
    fn paused_or_moving_partitions_are_not_silent() {
        let wait = Duration::from_secs(10);
        let mut part = Part::starting(1, Arc::default(), CutPolicy::default(), 0.5);
        part.start(0, None, 7, true);
        part.placed = true;
        let Some(before) = Instant::now().checked_sub(wait * 2) else { return };
        part.moved = before;
        assert!(!part.is_silent(wait), "paused");
        part.paused = false;
        assert!(part.is_silent(wait));
        part.follow(0, true);
        assert!(part.is_silent(wait), "the same position again is no move");
        part.follow(1, true);
        assert!(!part.is_silent(wait));
    }
}
