//! One partition as the poll thread has it: what is read, from where, and the open batch.
//!
//! Asks and tells nobody: [`super::reader`] does. Invariant: the batch holds every record of `from..next` that a
//! read_committed consumer is given, in order.

use super::cluster::Incoming;
use super::messages::LastRecord;
use crate::error::Result;
use crate::host;
use crate::record::RawBatch;
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
    /// Batches that were handed over and are not done.
    pub jobs: usize,
}

impl Part {
    pub fn starting(assignment: u64) -> Self {
        Self {
            assignment,
            state: State::Starting,
            from: 0,
            next: 0,
            end: 0,
            last: None,
            batch: RawBatch::new(),
            since: host::now(),
            moved: host::now(),
            paused: true,
            jobs: 0,
        }
    }

    /// Its task said from where to read; `end`: where it is done, if it is anywhere.
    pub fn start(&mut self, offset: i64, last: Option<LastRecord>, end: i64, once: bool) {
        self.state = if once && offset >= end { State::Finished } else { State::Reading };
        (self.from, self.next, self.end, self.last) = (offset, offset, end, last);
        self.batch = RawBatch::new();
        self.since = host::now();
    }

    /// No more is read; the open batch is let go, as Kafka has it.
    pub fn stop(&mut self) {
        self.state = State::Stopped;
        self.batch = RawBatch::new();
    }

    /// Of the record right before the next one; -1 where there is none. A marker in between may be of a later epoch, and
    /// with the record's own the leader would say that its log is another one.
    pub fn leader_epoch(&self) -> i32 {
        self.last.filter(|last| last.offset + 1 == self.next).map_or(-1, |last| last.leader_epoch)
    }

    /// Takes a record into the open batch; the bytes it brought, `None` if it is none of ours.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] if its headers cannot be parsed.
    pub fn take(&mut self, message: &dyn Incoming, once: bool) -> Result<Option<usize>> {
        let offset = message.offset();
        // Not told to read yet, or fetched before it was told to read from elsewhere.
        if self.state != State::Reading || offset < self.next {
            return Ok(None);
        }
        if once && offset >= self.end {
            // Everything below the end was read: what is left below it are markers and the like.
            self.next = self.end;
            return Ok(None);
        }
        if self.batch.is_empty() {
            self.since = host::now();
        }
        let before = self.batch.payload_len();
        message.copy_into(&mut self.batch)?;
        self.next = offset + 1;
        self.last = self.batch.last().map(|r| LastRecord { offset, leader_epoch: r.leader_epoch });
        self.moved = host::now();
        Ok(Some(self.batch.payload_len() - before))
    }

    /// The consumer's position: behind markers, aborted and compacted records too.
    pub fn follow(&mut self, position: i64, once: bool) {
        // Records behind the end were handed out too, and let go: the position is behind them.
        let position = if once { position.min(self.end) } else { position };
        if self.state == State::Reading && position > self.next {
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

    #[test]
    fn with_once_a_position_behind_the_end_is_the_end() {
        let mut part = Part::starting(1);
        part.start(3, None, 7, true);
        part.follow(9, true);
        assert_eq!((part.next, part.state), (7, State::Reading));
        part.start(3, None, 7, false);
        part.follow(9, false);
        assert_eq!(part.next, 9);
        part.start(7, None, 7, true);
        assert_eq!(part.state, State::Finished);
        part.follow(9, true);
        assert_eq!(part.next, 7);
    }

    #[test]
    fn paused_or_moving_partitions_are_not_silent() {
        let wait = Duration::from_secs(10);
        let mut part = Part::starting(1);
        part.start(0, None, 7, true);
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
