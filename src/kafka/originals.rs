//! Reads single offsets, many at a time: those of originals that dead letters speak of.
//!
//! Owns how few fetches that takes: partitions are read side by side, so that one request has records of several; what
//! lies close together is read through, a wide gap is sought over. Does not judge what it finds. Invariant: each offset
//! that was asked for is told once, as a record or as absent, or it is not told at all.

use super::{Connection, Consumer, Message, Polled};
use crate::error::{Error, Result};
use crate::record::TopicPartition;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Partitions that are read side by side.
const SIDE_BY_SIDE: usize = 32;
/// Bytes that are rather read through than sought over: about what is fetched ahead of a partition.
const GAP_BYTES: u64 = 4 << 20;
/// Bytes of a record before one was seen.
const GUESS: u64 = 1024;
/// How long brokers may take to answer a seek.
const SEEK: Duration = Duration::from_secs(10);

/// What is asked of one partition: offsets that lie in its log, ascending, each once.
pub struct Wanted {
    pub tp: TopicPartition,
    pub offsets: Vec<i64>,
}

/// A partition while it is read.
struct Part {
    tp: TopicPartition,
    offsets: Vec<i64>,
    /// The next of them.
    next: usize,
    /// Records that were seen, and their bytes.
    seen: (u64, u64),
}

impl Part {
    fn wanted(&self) -> Option<i64> {
        self.offsets.get(self.next).copied()
    }

    /// Whether so much lies before the next offset that it is better sought.
    fn is_far(&self, position: i64) -> bool {
        let mean = self.seen.1.checked_div(self.seen.0).unwrap_or(GUESS).max(1);
        self.wanted().is_some_and(|wanted| {
            u64::try_from(wanted.saturating_sub(position)).unwrap_or(0).saturating_mul(mean) > GAP_BYTES
        })
    }
}

/// Tells what is at an offset; `None`: no record.
pub type Tell<'t> = dyn FnMut(&TopicPartition, i64, Option<&Message<'_>>) -> Result<ControlFlow<()>> + 't;

/// A consumer of its own with a dummy group that is never joined or committed.
pub struct OriginalsReader {
    consumer: Consumer,
}

impl OriginalsReader {
    /// # Errors
    /// [`crate::Kind::Config`] if librdkafka refuses the settings.
    pub fn new(connection: &Connection) -> Result<Self> {
        let mut config = connection.consumer_config("dlq-archiver-refetch");
        for (key, value) in [
            // Share groups are given records of open and aborted transactions, too, unless they are set otherwise.
            ("isolation.level", "read_uncommitted"),
            ("fetch.wait.max.ms", "50"),
            ("fetch.message.max.bytes", "4194304"),
            // Fetch requests are counted there.
            ("statistics.interval.ms", "100"),
        ] {
            config.set(key, value);
        }
        Ok(Self { consumer: Consumer::of(config)? })
    }

    /// Fetch requests that were sent so far.
    pub fn fetches(&self) -> u64 {
        // Served by a poll; nothing is assigned now.
        let until = Instant::now() + Duration::from_millis(250);
        while Instant::now() < until {
            self.consumer.poll(Duration::from_millis(50), |_| {});
        }
        self.consumer.fetches()
    }

    /// Tells what is at each offset, partition by partition in order of offsets, until `tell` breaks.
    ///
    /// # Errors
    /// [`crate::Kind::Unavailable`] if nothing moves for `patience`, or the brokers' refusal. What was told is told.
    pub fn read(&self, wanted: Vec<Wanted>, patience: Duration, tell: &mut Tell<'_>) -> Result<()> {
        let mut waiting = wanted.into_iter().filter(|w| !w.offsets.is_empty()).peekable();
        while waiting.peek().is_some() {
            let parts = waiting.by_ref().take(SIDE_BY_SIDE);
            let parts: Vec<Part> =
                parts.map(|w| Part { tp: w.tp, offsets: w.offsets, next: 0, seen: (0, 0) }).collect();
            let flow = self.side_by_side(parts, patience, tell);
            self.consumer.read_from([])?;
            if flow?.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn side_by_side(&self, mut parts: Vec<Part>, patience: Duration, tell: &mut Tell<'_>) -> Result<ControlFlow<()>> {
        let numbers: HashMap<(String, i32), usize> =
            parts.iter().enumerate().map(|(i, p)| ((p.tp.topic.clone(), p.tp.partition), i)).collect();
        self.begin(&parts)?;
        let (mut open, mut moved, mut last) = (parts.len(), Instant::now(), Vec::new());
        // Records of one partition come in stretches.
        let mut current = 0;
        while open > 0 {
            let mut flow = Ok(ControlFlow::Continue(()));
            let mut at = None;
            let polled = self.consumer.poll(Duration::from_millis(100), |m| {
                if parts.get(current).is_none_or(|p| p.tp.partition != m.partition() || p.tp.topic != m.topic()) {
                    let Some(number) = numbers.get(&(m.topic().to_owned(), m.partition())) else { return };
                    current = *number;
                }
                let Some(part) = parts.get_mut(current) else { return };
                at = Some(m.offset());
                part.seen = (part.seen.0 + 1, part.seen.1 + m.size() as u64);
                flow = take(part, m.offset(), Some(m), tell);
            });
            if flow?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            match (polled, at) {
                (Polled::Record, Some(offset)) => {
                    moved = Instant::now();
                    let Some(part) = parts.get_mut(current) else { continue };
                    if self.follow(part, offset.saturating_add(1), patience)? {
                        open -= 1;
                    }
                    continue;
                }
                // Retention was here meanwhile: what the log lost is asked for again by the caller.
                (Polled::OutOfRange, _) => {
                    return Err(Error::unavailable("the log lost offsets while they were read"));
                }
                (Polled::Failed(e), _) if !e.is_unavailable() => return Err(e),
                _ => {}
            }
            // Behind the last record of a log there may be markers, and before its end a hole.
            let positions = self.consumer.positions();
            for (tp, position) in &positions {
                let Some(part) = parts.iter_mut().find(|p| p.tp == *tp && p.wanted().is_some()) else { continue };
                if take(part, *position, None, tell)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                if self.follow(part, *position, patience)? {
                    open -= 1;
                }
            }
            if positions != last {
                (last, moved) = (positions, Instant::now());
            }
            if moved.elapsed() > patience {
                let why = self.consumer.last_error().map_or(String::new(), |e| format!(" ({e})"));
                return Err(Error::unavailable(format!("nothing came for {} s{why}", patience.as_secs())));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn begin(&self, parts: &[Part]) -> Result<()> {
        self.consumer.read_from(parts.iter().filter_map(|p| Some((&p.tp, p.wanted()?, -1))))?;
        // A pause outlives an assignment.
        self.consumer.resume(&parts.iter().map(|p| p.tp.clone()).collect::<Vec<_>>())
    }

    /// Goes on behind `position`; whether nothing is left to do.
    fn follow(&self, part: &mut Part, position: i64, patience: Duration) -> Result<bool> {
        let Some(wanted) = part.wanted() else {
            // No more of it.
            self.consumer.pause(std::slice::from_ref(&part.tp))?;
            return Ok(true);
        };
        if part.is_far(position)
            && let Err(e) = self.consumer.seek(&part.tp, wanted, -1, SEEK.min(patience))
        {
            tracing::debug!("{e}; reading through");
        }
        Ok(false)
    }
}

/// Tells the offsets that a record at `offset`, or a position there, answers.
fn take(part: &mut Part, offset: i64, record: Option<&Message<'_>>, tell: &mut Tell<'_>) -> Result<ControlFlow<()>> {
    while let Some(wanted) = part.wanted().filter(|wanted| *wanted < offset || *wanted == offset && record.is_some()) {
        part.next += 1;
        if tell(&part.tp, wanted, record.filter(|_| wanted == offset))?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_gaps_are_sought_and_narrow_ones_read_through() {
        let tp = TopicPartition::new("t", 0);
        let part = |offsets: Vec<i64>, seen| Part { tp: tp.clone(), offsets, next: 0, seen };
        assert!(!part(vec![4096], (0, 0)).is_far(0) && part(vec![4097], (0, 0)).is_far(0));
        assert!(part(vec![100], (1, 1 << 20)).is_far(0), "large records: few of them are far");
        assert!(!part(vec![1_000_000], (10, 10)).is_far(0), "small records: many of them are near");
        assert!(!part(vec![], (0, 0)).is_far(0) && !part(vec![5], (0, 0)).is_far(9));
    }

    #[test]
    fn what_lies_before_a_record_is_absent_and_each_offset_is_told_once() {
        let mut part = Part { tp: TopicPartition::new("t", 0), offsets: vec![3, 5, 9], next: 0, seen: (0, 0) };
        let mut told = Vec::new();
        for position in [3, 6, 6, 9, 10, 12] {
            let flow = take(&mut part, position, None, &mut |_, offset, record| {
                told.push((position, offset, record.is_some()));
                Ok(ControlFlow::Continue(()))
            });
            assert!(flow.unwrap().is_continue());
        }
        assert_eq!(told, [(6, 3, false), (6, 5, false), (10, 9, false)]);
    }
}
