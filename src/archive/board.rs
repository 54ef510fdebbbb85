//! What is known of each partition while the archive runs: for deadlines, metrics and messages.
//!
//! Written by the poll thread, the partitions' tasks and the look-out, read by whoever asks. Decides nothing, and nothing
//! of it goes into the ledger.

use crate::record::TopicPartition;
use crate::retention::{self, Deadline, Log, LogSettings, Loss};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use tokio::sync::Notify;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Standing {
    /// Its ledger is loaded, or what was begun is finished.
    #[default]
    Starting,
    Reading,
    /// Read to the end that was seen at start (`--once`).
    Finished,
    /// It cannot go on: why.
    Stopped(String),
}

/// One partition. Times are ms since 1970.
#[derive(Debug, Clone, Default)]
pub struct Known {
    pub standing: Standing,
    /// The assignment whose task ended with [`Standing::Stopped`]: the poll thread may not know yet.
    pub ended: Option<u64>,
    /// Next offset to archive, by the ledger; `None` until that is loaded.
    pub archived: Option<i64>,
    /// When `archived` moved, or the ledger was loaded.
    pub archived_at_ms: i64,
    /// Since when something of it waits to be archived, as the look-out saw it.
    pub waiting_since_ms: Option<i64>,
    /// Next offset to read.
    pub read: i64,
    /// Timestamp of the oldest record that was read and is not archived.
    pub oldest_read_ms: Option<i64>,
    /// Timestamp of the next record to read, or of the last one before it; -1 where it has none.
    pub unread_ms: Option<i64>,
    /// With `--once`: where reading ends.
    pub until: Option<i64>,
    /// Next offset to read at the last look.
    pub(super) read_then: Option<i64>,
    /// Where reading stood when `unread_ms` was looked at.
    pub(super) peeked_at: Option<i64>,
    /// When its leader told last how the log stands.
    pub told_at_ms: Option<i64>,
    /// Key, value and headers of an average record.
    pub record_bytes: Option<u64>,
    /// Records that were past `retention.ms` when they were read.
    pub overdue: u64,
    /// As the leader told it at the last look; `next` and `oldest_ms` filled in.
    pub log: Log,
    pub settings: LogSettings,
    /// Offsets a second that are written to it.
    pub growth: Option<f64>,
    pub deadline: Option<Deadline>,
    /// What will be lost of it at the present rate.
    pub forecast: Option<Loss>,
}

impl Known {
    /// Timestamp of the oldest record that is not archived, as far as known.
    pub fn oldest_ms(&self) -> Option<i64> {
        self.oldest_read_ms.or(self.unread_ms.filter(|ms| *ms >= 0 && self.log.end > self.read))
    }

    /// Where what can be read ends, as it was seen last.
    pub(super) fn end(&self) -> i64 {
        self.until.map_or(self.log.stable, |until| until.min(self.log.stable))
    }

    /// Has something to read that may be deleted before that.
    pub(super) fn is_behind(&self) -> bool {
        let going = matches!(self.standing, Standing::Starting | Standing::Reading);
        going && self.settings.retention_ms.is_some() && self.archived.is_some() && self.end() > self.read
    }
}

/// All partitions that this process has.
#[derive(Debug, Default)]
pub struct Board {
    partitions: Mutex<BTreeMap<TopicPartition, Known>>,
    /// A partition's ledger was loaded.
    pub(super) loaded: Notify,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<TopicPartition, Known>> {
        self.partitions.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A partition that this process has from now on.
    pub(crate) fn add(&self, tp: &TopicPartition) {
        self.lock().insert(tp.clone(), Known::default());
    }

    /// Changes what is known of a partition. Word of one that was given away, from a task that finishes its cut, is let go.
    pub(crate) fn update(&self, tp: &TopicPartition, change: impl FnOnce(&mut Known)) {
        if let Some(known) = self.lock().get_mut(tp) {
            change(known);
        }
    }

    pub(super) fn archived(&self, tp: &TopicPartition, next: i64, now_ms: i64) {
        let mut new = false;
        self.update(tp, |known| {
            new = known.archived.is_none();
            if known.archived != Some(next) {
                (known.archived, known.archived_at_ms) = (Some(next), now_ms);
            }
        });
        if new {
            self.loaded.notify_one();
        }
    }

    /// Another member of the group has it now.
    pub(super) fn remove(&self, tp: &TopicPartition) {
        self.lock().remove(tp);
    }

    pub fn all(&self) -> BTreeMap<TopicPartition, Known> {
        self.lock().clone()
    }

    /// What an outage puts at risk, in words.
    pub(super) fn risk(&self, tp: &TopicPartition, now_ms: i64) -> String {
        let partitions = self.lock();
        let Some(known) = partitions.get(tp) else { return "Kafka keeps the records until retention".into() };
        // As it is now, not as it was at the last look.
        let end = known.log.end.max(known.read);
        let log =
            Log { next: known.archived.unwrap_or(known.log.next), end, oldest_ms: known.oldest_ms(), ..known.log };
        let lag = log.lag();
        match retention::deadline(&log, &known.settings, None, now_ms) {
            Some(deadline) if deadline.at_ms <= now_ms => {
                format!(
                    "its {lag} offsets that are not archived are past retention: Kafka may delete the first of them now"
                )
            }
            Some(deadline) => format!(
                "Kafka may delete the first of its {lag} offsets that are not archived in {}, from {} on",
                retention::words(deadline.at_ms.saturating_sub(now_ms)),
                super::rfc3339(deadline.at_ms.saturating_mul(1000))
            ),
            None if end > 0 && lag == 0 => "nothing of it is waiting to be archived".into(),
            None => "Kafka keeps the records until retention".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_that_was_given_away_does_not_come_back_by_a_late_cut() {
        let (board, tp) = (Board::default(), TopicPartition::new("t", 0));
        board.add(&tp);
        board.archived(&tp, 7, 1);
        assert_eq!(board.all()[&tp].archived, Some(7));
        board.remove(&tp);
        board.archived(&tp, 9, 2);
        assert!(board.all().is_empty());
    }
}
