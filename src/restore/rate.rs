//! How fast records may be sent.
//!
//! Owns the pace. Invariant: over any time no more than the rate and one batch; what was not used is not made up for.

use super::batch::Limits;
use crate::host;
use std::time::Duration;

/// Most a second; `None`: as fast as it goes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rate {
    pub records: Option<f64>,
    pub bytes: Option<f64>,
}

impl Rate {
    /// Batches are no larger than what is sent in a second.
    pub fn within(self, limits: Limits) -> Limits {
        let most = |limit: usize, rate: Option<f64>| rate.map_or(limit, |rate| limit.min((rate as usize).max(1)));
        Limits { records: most(limits.records, self.records), bytes: most(limits.bytes, self.bytes) }
    }

    /// The time that so much takes at least.
    fn time(self, records: usize, bytes: usize) -> Duration {
        let of = |count: usize, rate: Option<f64>| rate.map_or(0.0, |rate| count as f64 / rate);
        let seconds = of(records, self.records).max(of(bytes, self.bytes));
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

/// When the next batch may be sent.
pub struct Pace {
    rate: Rate,
    last: std::time::Instant,
    /// From `last` on.
    pause: Duration,
}

impl Pace {
    pub fn new(rate: Rate) -> Self {
        Self { rate, last: host::now(), pause: Duration::ZERO }
    }

    /// How long to wait now.
    pub fn left(&self) -> Duration {
        self.pause.saturating_sub(host::since(self.last))
    }

    /// A batch is sent now.
    pub fn sends(&mut self, records: usize, bytes: usize) {
        (self.last, self.pause) = (host::now(), self.rate.time(records, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_a_second_long_at_most() {
        let limits = Limits { records: 500, bytes: 4000 };
        let rate = |records, bytes| Rate { records, bytes }.within(limits);
        assert_eq!(rate(None, None), limits);
        assert_eq!(rate(Some(10.0), Some(1e9)), Limits { records: 10, bytes: 4000 });
        assert_eq!(rate(Some(0.1), None).records, 1);
    }

    #[test]
    fn the_stricter_of_two_rates_holds() {
        let rate = Rate { records: Some(100.0), bytes: Some(1000.0) };
        assert_eq!(rate.time(50, 10), Duration::from_millis(500));
        assert_eq!(rate.time(1, 2000), Duration::from_secs(2));
        assert_eq!(Rate::default().time(usize::MAX, usize::MAX), Duration::ZERO);
        assert_eq!(Rate { records: Some(1e-300), bytes: None }.time(1, 0), Duration::MAX);
    }
}
