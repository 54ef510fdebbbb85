//! What the poll thread says of its partitions: in the log, and on the board.
//!
//! Changes nothing of what is read: that is [`super::reader`].

use super::board::Standing;
use super::part::State;
use super::reader::Reader;
use crate::record::{TopicPartition, in_ranges};
use std::collections::BTreeSet;
use std::time::Duration;

/// A member of the group that has no partition for this long says so.
pub(super) const WAITING: Duration = Duration::from_secs(5);
/// Ranges of partitions that a log line names.
const NAMED: usize = 10;

impl Reader {
    /// One line for each change of what is read.
    pub(super) fn tell_partitions(&mut self) {
        let now: BTreeSet<TopicPartition> = self.each().map(|(tp, _)| tp).collect();
        let taken: Vec<_> = self.told.difference(&now).collect();
        let gone = match taken.len() {
            0 => String::new(),
            n => format!("; {n} went to other members of the group: {}", in_ranges(taken, NAMED)),
        };
        if now.is_empty() {
            self.tell_waiting(&gone);
        } else if now != self.told {
            let what = if now.len() == 1 { "partition" } else { "partitions" };
            tracing::info!("reading {} {what}: {}{gone}", now.len(), in_ranges(&now, NAMED));
        }
        self.waiting_since = None;
        self.told = now;
    }

    pub(super) fn tell_waiting(&self, gone: &str) {
        if self.counters.vitals.kafka_failing_since_ms().is_some() {
            tracing::warn!("waiting for partitions: the brokers do not answer{gone}");
            return;
        }
        tracing::info!(
            "waiting for partitions: other members of the group have them, or one that was killed is still counted until \
             its session.timeout.ms is over{gone}"
        );
    }

    /// Tells how far each partition is.
    pub(super) fn publish(&self) {
        let once = self.options().once;
        for (tp, part) in self.each() {
            let standing = match part.state {
                State::Starting => Standing::Starting,
                State::Reading => Standing::Reading,
                State::Finished => Standing::Finished,
                // Its task says why.
                State::Stopped => continue,
            };
            self.board.update(&tp, |known| {
                if known.ended != Some(part.assignment) {
                    known.standing = standing;
                }
                if part.state == State::Starting {
                    return;
                }
                known.read = part.next;
                known.until = once.then_some(part.end);
                known.oldest_read_ms = part.oldest_read_ms();
                known.unread_ms = part.unread_ms.or(known.unread_ms);
                known.record_bytes = part.record_bytes().or(known.record_bytes);
                known.overdue = part.overdue;
            });
        }
    }
}
