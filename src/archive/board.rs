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

    /// What an outage puts at risk that these wait for, in words: the one whose records go first.
    pub(super) fn risk(&self, waiting: &[TopicPartition], now_ms: i64) -> String {
        let partitions = self.lock();
        let known = waiting.iter().filter_map(|tp| Some((tp, partitions.get(tp)?)));
        // As it is now, not as it was at the last look.
        let logs = known.map(|(tp, known)| {
            let end = known.log.end.max(known.read);
            let next = known.archived.unwrap_or(known.log.next);
            let log = Log { next, end, oldest_ms: known.oldest_ms(), ..known.log };
            (tp, retention::deadline(&log, &known.settings, None, now_ms), log)
        });
        let logs: Vec<_> = logs.collect();
        let first = logs.iter().filter_map(|(tp, deadline, log)| Some((tp, (*deadline)?, log.lag())));
        let of = |tp: &TopicPartition| if waiting.len() > 1 { format!("{tp} comes first: ") } else { String::new() };
        match first.min_by_key(|(_, deadline, _)| deadline.at_ms) {
            Some((tp, deadline, lag)) if deadline.at_ms <= now_ms => {
                format!(
                    "{}its {lag} offsets that are not archived are past retention: Kafka may delete the first of them now",
                    of(tp)
                )
            }
            Some((tp, deadline, lag)) => format!(
                "{}Kafka may delete the first of its {lag} offsets that are not archived in {}, from {} on",
                of(tp),
                retention::words(deadline.at_ms.saturating_sub(now_ms)),
                super::rfc3339(deadline.at_ms.saturating_mul(1000))
            ),
            None if logs.len() == waiting.len() && logs.iter().all(|(.., log)| log.end > 0 && log.lag() == 0) => {
                "nothing of it is waiting to be archived".into()
            }
            None => "Kafka keeps the records until retention".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_that_wait_the_one_whose_records_go_first_is_told() {
        let (board, tp) = (Board::default(), |partition| TopicPartition::new("t", partition));
        for (partition, end, oldest_ms) in [(0, 9, 50_000), (1, 7, 20_000), (2, 5, 90_000)] {
            board.add(&tp(partition));
            board.archived(&tp(partition), 5, 1);
            board.update(&tp(partition), |known| {
                known.settings.retention_ms = Some(100_000);
                (known.read, known.log.end, known.oldest_read_ms) = (end, end, Some(oldest_ms));
            });
        }
        let risk = |partitions: &[i32], now| board.risk(&partitions.iter().map(|p| tp(*p)).collect::<Vec<_>>(), now);
        let told = risk(&[0, 1, 2], 60_000);
        assert!(told.starts_with("t/1 comes first: Kafka may delete the first of its 2 offsets that are"), "{told}");
        assert!(risk(&[0, 1], 120_000).starts_with("t/1 comes first: its 2 offsets that are not archived are past"));
        assert!(
            risk(&[0], 60_000).starts_with("Kafka may delete the first of its 4 offsets"),
            "one alone needs no name"
        );
        assert_eq!(risk(&[2], 60_000), "nothing of it is waiting to be archived");
        assert_eq!(risk(&[7], 60_000), "Kafka keeps the records until retention");
    }

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
