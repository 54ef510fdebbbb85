//! Notices a transaction that stays open: everything behind it is hidden, and ages.
//!
//! Only tells: a read_committed consumer stands at the last stable offset, and its lag says 0.

use super::partition::Partition;
use crate::host;
use std::time::{Duration, Instant};

/// How often an idle partition is looked at.
pub(super) const LOOK: Duration = Duration::from_secs(60);
/// Before it is told again.
const SILENCE: Duration = Duration::from_secs(600);

/// Where the last stable offset stands, and since when.
#[derive(Debug, Default)]
pub(super) struct Hanging {
    stands: Option<(i64, Instant)>,
    told: Option<Instant>,
}

impl Hanging {
    pub(super) async fn look(&mut self, partition: &Partition) {
        let (cluster, tp) = (partition.cluster(), &partition.tp);
        // A broker that does not answer is told elsewhere.
        let (Ok((_, stable)), Ok(end)) = (cluster.watermarks(tp).await, cluster.log_end(tp).await) else { return };
        if let Some((offsets, since)) = self.stuck(stable, end, host::now()) {
            tracing::warn!(
                "{tp}: a transaction has been open for at least {} s: the {offsets} offsets from {stable} on cannot be read \
                 before it ends, and grow old meanwhile. Kafka's `kafka-transactions.sh find-hanging` finds it, its `abort` \
                 ends it",
                since.as_secs()
            );
        }
    }

    /// Hidden offsets and for how long, if that is to be told now.
    fn stuck(&mut self, stable: i64, end: i64, now: Instant) -> Option<(i64, Duration)> {
        let since = match self.stands {
            Some((at, since)) if at == stable && end > stable => since,
            _ => {
                self.stands = (end > stable).then_some((stable, now));
                self.told = None;
                return None;
            }
        };
        if self.told.is_some_and(|told| now.saturating_duration_since(told) < SILENCE) {
            return None;
        }
        self.told = Some(now);
        Some((end - stable, now.saturating_duration_since(since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_stable_offset_that_stands_still_below_the_log_end_is_told_now_and_then() {
        let (mut hanging, start) = (Hanging::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        assert_eq!(hanging.stuck(5, 9, at(0)), None);
        assert_eq!(hanging.stuck(5, 12, at(60)), Some((7, Duration::from_secs(60))));
        assert_eq!(hanging.stuck(5, 12, at(120)), None);
        assert_eq!(hanging.stuck(5, 12, at(660)), Some((7, Duration::from_secs(660))));
        // It moved.
        assert_eq!(hanging.stuck(8, 12, at(720)), None);
        assert_eq!(hanging.stuck(12, 12, at(780)), None);
        assert_eq!(hanging.stuck(12, 12, at(840)), None);
    }
}
