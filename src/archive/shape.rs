//! The shape of what is left to read of each partition: which of its offsets are how old.
//!
//! Asks the brokers for offsets by time, for the forecast alone. Does not forecast: [`crate::retention`] does.

use super::board::Known;
use super::cluster::Cluster;
use crate::record::TopicPartition;
use crate::retention::Backlog;
use std::collections::BTreeMap;

/// Parts that a partition's time is divided into, from its oldest record to now.
const SAMPLES: i64 = 24;
/// How often the part that the newest record is in is halved: a log that is no longer written ends somewhere in there.
const HALVINGS: u32 = 6;

/// What is left of each partition. Each round is one request to each leader.
pub(super) async fn backlogs(
    cluster: &dyn Cluster,
    behind: &BTreeMap<&TopicPartition, &Known>,
    now_ms: i64,
) -> Vec<Backlog> {
    let mut shapes: Vec<_> = behind.iter().map(|(tp, k)| (*tp, *k, Shape::new(k, now_ms))).collect();
    loop {
        let ask = shapes.iter().filter_map(|(tp, _, shape)| Some(((*tp).clone(), shape.next?)));
        let ask: Vec<_> = ask.collect();
        if ask.is_empty() {
            break;
        }
        match cluster.offsets_for_times(&ask).await {
            Ok(told) => shapes.iter_mut().for_each(|(tp, _, shape)| shape.take(told.get(*tp).copied())),
            // Brokers that cannot seek by time: what is known has to do.
            Err(e) => {
                tracing::debug!("{e}");
                break;
            }
        }
    }
    let all = shapes.into_iter().map(|(tp, k, shape)| Backlog {
        tp: tp.clone(),
        next: shape.from,
        end: shape.end,
        profile: shape.profile(),
        retention_ms: k.settings.retention_ms,
        begun: k.oldest_read_ms.is_some(),
    });
    all.collect()
}

/// Of one partition. Times are ms since 1970.
struct Shape {
    /// Offsets `from..end` are left.
    from: i64,
    end: i64,
    now_ms: i64,
    /// Offsets and their times, both ascending.
    points: Vec<(i64, i64)>,
    /// The time to ask for; `None`: enough is known.
    next: Option<i64>,
    /// Between two samples.
    step: i64,
    /// No record is so late.
    behind: Option<i64>,
    halvings: u32,
}

impl Shape {
    fn new(k: &Known, now_ms: i64) -> Self {
        let (from, end) = (k.read.max(k.log.start), k.end());
        let oldest = k.unread_ms.unwrap_or(now_ms);
        // What is past retention already needs no shape.
        let first = oldest.max(now_ms.saturating_sub(k.settings.retention_ms.unwrap_or(i64::MAX)));
        let step = (now_ms.saturating_sub(first) / SAMPLES).max(1);
        let next = (oldest >= 0 && first <= now_ms).then_some(first);
        Self { from, end, now_ms, points: vec![(from, oldest)], next, step, behind: None, halvings: 0 }
    }

    /// The offset at the time that was asked for: `None` if its leader did not tell, `Some(None)` if no record is so late.
    fn take(&mut self, told: Option<Option<i64>>) {
        let (Some(ms), Some(&(last, last_ms))) = (self.next.take(), self.points.last()) else { return };
        let Some(offset) = told else { return };
        let mut before = last_ms;
        match offset.filter(|offset| *offset < self.end) {
            None => self.behind = Some(ms),
            Some(offset) => {
                before = ms;
                if offset > last && ms > last_ms {
                    self.points.push((offset, ms));
                } else if ms > last_ms
                    && let Some(point) = self.points.last_mut()
                {
                    // The record there is no older than this.
                    point.1 = ms;
                }
            }
        }
        self.next = match self.behind {
            None => Some(ms.saturating_add(self.step)).filter(|next| *next <= self.now_ms),
            Some(behind) => {
                self.halvings += 1;
                (self.halvings <= HALVINGS && behind - before > 1).then(|| i64::midpoint(before, behind))
            }
        };
    }

    fn profile(mut self) -> Vec<(i64, i64)> {
        let newest = self.behind.unwrap_or(self.now_ms);
        if let Some(&(last, ms)) = self.points.last()
            && last < self.end
            && ms < newest
        {
            self.points.push((self.end, newest));
        }
        self.points
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retention::{Log, LogSettings};

    /// Read up to 10 of 110, the next record of 1,000 s, kept for 100 s. The log's offsets by time, as a leader tells them.
    fn shape(now_ms: i64, leader: impl Fn(i64) -> Option<Option<i64>>) -> Vec<(i64, i64)> {
        let log = Log { stable: 110, end: 110, ..Log::default() };
        let settings = LogSettings { retention_ms: Some(100_000), ..LogSettings::default() };
        let known = Known { read: 10, unread_ms: Some(1_000_000), log, settings, ..Known::default() };
        let (mut shape, mut asked) = (Shape::new(&known, now_ms), 0);
        while let Some(ms) = shape.next {
            shape.take(leader(ms));
            asked += 1;
            assert!(asked <= SAMPLES + 1 + i64::from(HALVINGS));
        }
        shape.profile()
    }

    #[test]
    fn a_leader_that_does_not_tell_leaves_a_straight_line() {
        assert_eq!(shape(1_080_000, |_| None), [(10, 1_000_000), (110, 1_080_000)]);
    }

    #[test]
    fn a_log_that_is_written_has_its_newest_record_now() {
        // One offset each second, and the last ten of them at once.
        let points = shape(1_080_000, |ms| Some(Some(10 + (ms - 1_000_000) / 1000)));
        assert_eq!((points[0], points.len()), ((10, 1_000_000), 26), "{points:?}");
        assert_eq!(points[24..], [(89, 1_079_992), (110, 1_080_000)]);
        assert!(points.is_sorted(), "{points:?}");
    }

    /// The newest record of a log that was written minutes ago counted as new: it would be there for long, so the forecast
    /// said.
    #[test]
    fn a_log_that_is_no_longer_written_ends_when_it_was() {
        // A hundred offsets in 5 s.
        let leader = |ms: i64| Some(Some(10 + (ms - 1_000_000) / 50).filter(|offset| *offset < 110));
        let points = shape(1_090_000, leader);
        let (end, newest) = *points.last().unwrap();
        assert!(end == 110 && (1_005_000..1_005_100).contains(&newest), "{points:?}");
        assert!(points.is_sorted(), "{points:?}");
    }

    #[test]
    fn where_nothing_was_written_for_a_while_the_next_record_is_no_older_than_that() {
        let points = shape(1_072_000, |ms| Some(Some(10 + (ms - 1_030_000).max(0) / 1000)));
        assert_eq!(points[..2], [(10, 1_030_000), (13, 1_033_000)]);
    }

    #[test]
    fn records_of_the_future_or_without_a_time_are_not_asked_for() {
        let log = Log { stable: 9, end: 9, ..Log::default() };
        for unread in [5_000, -1] {
            let shape = Shape::new(&Known { unread_ms: Some(unread), log, ..Known::default() }, 4_000);
            assert_eq!((shape.next, shape.profile()[0]), (None, (0, unread)));
        }
    }
}
