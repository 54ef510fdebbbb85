//! How fast records are read, measured only while there is something left to read.
//!
//! A straight line through many notes of how much was read so far: brokers with quotas, and fetches, bring records in
//! bursts, and a difference between two moments is off by a burst. Asks nobody; times are handed in.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Less than this tells nothing.
const SHORTEST: f64 = 5.0;

#[derive(Debug, Default)]
pub(super) struct Rate {
    last: Option<(Instant, u64)>,
    /// Seconds and records since the note before, since the last look.
    pending: Vec<(f64, u64)>,
    /// Seconds in which something was left to read, without idle ones, and records that were read in them; ascending.
    notes: VecDeque<(f64, u64)>,
    /// Nothing was left to read at the last look.
    idle: bool,
}

impl Rate {
    /// So many records were read so far.
    pub fn note(&mut self, now: Instant, read: u64) {
        if let Some((then, before)) = self.last.replace((now, read)) {
            let seconds = now.saturating_duration_since(then).as_secs_f64();
            self.pending.push((seconds, read.saturating_sub(before)));
        }
    }

    /// Without partitions there is nothing to read.
    pub fn rest(&mut self) {
        (self.last, self.idle) = (None, false);
        self.pending.clear();
    }

    /// What was noted since the last look counts if something was left to read then and now; else a part of it was idle.
    /// `window`: how far back the rate is measured.
    pub fn look(&mut self, behind: bool, window: Duration) {
        let pending = std::mem::take(&mut self.pending);
        let was_idle = std::mem::replace(&mut self.idle, !behind);
        if !behind || was_idle {
            return;
        }
        if self.notes.is_empty() {
            self.notes.push_back((0.0, 0));
        }
        for (seconds, records) in pending {
            let (t, n) = self.notes.back().copied().unwrap_or_default();
            self.notes.push_back((t + seconds, n + records));
        }
        let newest = self.notes.back().map_or(0.0, |(t, _)| *t);
        while self.notes.get(1).is_some_and(|(t, _)| newest - t >= window.as_secs_f64()) {
            self.notes.pop_front();
        }
    }

    /// Records a second; `None` if it is not known yet. The slope of the line with the least squared distance.
    pub fn per_second(&self) -> Option<f64> {
        let (first, last) = (self.notes.front()?, self.notes.back()?);
        if last.0 - first.0 < SHORTEST {
            return None;
        }
        let points = || self.notes.iter().map(|(t, n)| (t - first.0, (n - first.1) as f64));
        let count = self.notes.len() as f64;
        let (t, n) = points().fold((0.0, 0.0), |sum, (t, n)| (sum.0 + t, sum.1 + n));
        let (mean_t, mean_n) = (t / count, n / count);
        let (over, under) = points()
            .fold((0.0, 0.0), |sum, (t, n)| (sum.0 + (t - mean_t) * (n - mean_n), sum.1 + (t - mean_t).powi(2)));
        Some((over / under).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host;

    /// A note each second; the number of records read by then.
    fn rate_of(rate: &mut Rate, begin: Instant, seconds: std::ops::RangeInclusive<u64>, read: impl Fn(u64) -> u64) {
        for s in seconds {
            rate.note(begin + Duration::from_secs(s), read(s));
        }
    }

    const WINDOW: Duration = Duration::from_secs(80);

    /// What was read in idle minutes is no rate: a topic that got its first backlog was forecast as lost.
    #[test]
    fn the_rate_is_of_times_at_which_something_was_left_to_read() {
        let (mut rate, begin) = (Rate::default(), host::now());
        rate_of(&mut rate, begin, 0..=4, |s| s * 100);
        rate.look(true, WINDOW);
        assert_eq!(rate.per_second(), None, "less than 5 s");
        rate_of(&mut rate, begin, 5..=10, |s| s * 100);
        rate.look(true, WINDOW);
        assert_eq!(rate.per_second(), Some(100.0));
        rate_of(&mut rate, begin, 11..=500, |_| 1000);
        rate.look(false, WINDOW);
        rate_of(&mut rate, begin, 501..=1000, |s| if s < 995 { 1000 } else { 1500 });
        rate.look(true, WINDOW);
        assert_eq!(rate.per_second(), Some(100.0), "idle for a part");
        rate_of(&mut rate, begin, 1001..=1010, |s| 1500 + (s - 1000) * 100);
        rate.look(true, WINDOW);
        assert_eq!(rate.per_second(), Some(100.0), "idle minutes do not count");
    }

    #[test]
    fn what_was_read_long_ago_is_forgotten() {
        let (mut rate, begin) = (Rate::default(), host::now());
        for (seconds, speed) in [(1..=100, 10), (101..=180, 0)] {
            rate_of(&mut rate, begin, seconds, |s| if speed > 0 { s * speed } else { 1000 });
            rate.look(true, WINDOW);
        }
        assert_eq!(rate.per_second(), Some(0.0));
        assert!(rate.notes.len() <= 82);
    }

    /// Quotas let bytes through in bursts: 2,700 records at once, every 12 s, are 225 a second.
    #[test]
    fn bursts_move_it_little() {
        for phase in 0..12 {
            let (mut rate, begin) = (Rate::default(), host::now());
            rate_of(&mut rate, begin, 0..=100, |s| (s + phase) / 12 * 2700);
            rate.look(true, Duration::from_secs(96));
            let told = rate.per_second().unwrap();
            assert!((told - 225.0).abs() < 225.0 * 0.03, "{phase}: {told}");
        }
    }
}
