//! Whether an archiver is well: alive, and getting on with its work. Pure.
//!
//! Health is about progress: that nothing is archived is fine while nothing is waiting, or while what waits has time.
//! Owns the two decisions and their words. Knows no HTTP and asks nobody: the archive's board is handed in.

use crate::error::few;
use crate::record::TopicPartition;
use crate::retention::{Deadline, Limit, Log, LogSettings, words};

/// The poll thread turns several times a second.
const HEARTBEAT_MS: i64 = 60_000;
/// How long a partition may stand still though its deadline is near and its batch old enough: an early cut and its upload
/// take less.
const STANDSTILL_MS: i64 = 60_000;
/// How long a store may be away while something waits.
const STORE_AWAY_MS: i64 = 300_000;
/// How long a partition's log may be unknown: it is asked for once a minute, and what waits there is not known either.
const UNTOLD_MS: i64 = 300_000;
/// Partitions that a reason names.
const NAMED: usize = 3;

/// One partition. Times are ms since 1970.
#[derive(Debug, Clone, Default)]
pub struct Partition {
    /// Why it cannot go on.
    pub stopped: Option<String>,
    /// As it was seen last, with what is archived now.
    pub log: Log,
    pub archived_at_ms: i64,
    /// When its leader told last how its log stands.
    pub told_at_ms: Option<i64>,
    /// Since when something waits.
    pub waiting_since_ms: Option<i64>,
    pub deadline: Option<Deadline>,
    pub settings: LogSettings,
    /// Share of the retention after which its records are cut at the latest.
    pub safety: f64,
}

impl Partition {
    /// Of the time or size after which its oldest record goes, what is left now; `None` if nothing is known to delete it.
    pub fn left(&self, now_ms: i64) -> Option<f64> {
        let deadline = self.deadline.filter(|_| self.log.lag() > 0)?;
        match (deadline.limit, self.settings.retention_ms) {
            (Limit::Time, Some(retention)) if retention > 0 => {
                Some(deadline.at_ms.saturating_sub(now_ms) as f64 / retention as f64)
            }
            _ => Some(deadline.left),
        }
    }

    /// For how long nobody has told how its log stands, ms. One that is archived is told by its records.
    fn untold(&self, now_ms: i64) -> i64 {
        // Before its ledger is loaded, nobody asks.
        let since = Some(self.archived_at_ms).filter(|at| *at > 0).max(self.told_at_ms);
        since.map_or(0, |at| now_ms.saturating_sub(at))
    }

    /// For how long it has been able to get on and has not, ms.
    fn stands(&self, now_ms: i64) -> i64 {
        let waiting = self.waiting_since_ms.unwrap_or(now_ms);
        now_ms.saturating_sub(waiting.max(self.archived_at_ms))
    }
}

/// What the operator gave.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// Below this share of the retention a partition has to get on.
    pub ready_below: f64,
    /// How long a batch may wait though its deadline is near.
    pub cut_min_age_ms: i64,
}

/// What readiness is decided from.
#[derive(Debug, Clone, Default)]
pub struct Inputs {
    pub brokers_answered: bool,
    pub store_answered: bool,
    pub store_away_since_ms: Option<i64>,
    pub limits: Limits,
}

/// What is not well, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// `brokers`, `store`, or a partition.
    pub what: String,
    pub why: String,
}

/// Whether the poll thread turns. `heartbeat_ms`: its last turn; `None` before the first and after the last, which are
/// bounded by `--start-timeout` and `--grace`.
pub fn is_alive(heartbeat_ms: Option<i64>, now_ms: i64) -> bool {
    heartbeat_ms.is_none_or(|at| now_ms.saturating_sub(at) <= HEARTBEAT_MS)
}

/// What keeps the archiver from being ready; nothing if it is.
pub fn unready<'p>(
    inputs: &Inputs,
    partitions: impl IntoIterator<Item = (&'p TopicPartition, &'p Partition)>,
    now_ms: i64,
) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let mut add = |what: &str, why: String| reasons.push(Reason { what: what.to_owned(), why });
    if !inputs.brokers_answered {
        add("brokers", "they have not answered since the start".into());
    } else if !inputs.store_answered {
        add("store", "it has not answered since the start".into());
    }
    let mut waiting = 0;
    let (mut untold, mut longest) = (Vec::new(), 0);
    for (tp, partition) in partitions {
        waiting += partition.log.lag();
        if let Some(why) = &partition.stopped {
            add(&tp.to_string(), format!("stopped: {why}"));
        } else if let Some(why) = expiring(inputs, partition, now_ms) {
            add(&tp.to_string(), why);
        } else if partition.untold(now_ms) > UNTOLD_MS {
            longest = longest.max(partition.untold(now_ms));
            untold.push(tp);
        }
    }
    if !untold.is_empty() {
        let (n, since) = (untold.len(), words(longest));
        let what = if n == 1 { "partition" } else { "partitions" };
        add("brokers", format!("for {since} they have not told the offsets of {n} {what}: {}", few(untold, NAMED)));
    }
    let away = inputs.store_away_since_ms.map(|since| now_ms.saturating_sub(since));
    if let Some(away) = away.filter(|away| *away > STORE_AWAY_MS && waiting > 0) {
        add("store", format!("it has not answered for {}, and {waiting} offsets are waiting", words(away)));
    }
    reasons
}

/// Its deadline is near, and it does not get on.
fn expiring(inputs: &Inputs, partition: &Partition, now_ms: i64) -> Option<String> {
    // A batch may wait for as long as --safety lets it.
    let below = inputs.limits.ready_below.min(1.0 - partition.safety);
    let left = partition.left(now_ms).filter(|left| *left < below)?;
    let stands = partition.stands(now_ms);
    if stands < STANDSTILL_MS.saturating_add(inputs.limits.cut_min_age_ms) {
        return None;
    }
    let (lag, hidden) = (partition.log.lag(), partition.log.hidden());
    let open = match hidden {
        0 => String::new(),
        _ => format!("; {hidden} of them are behind an open transaction"),
    };
    Some(format!(
        "{:.0} % of the retention is left for the first of {lag} offsets, and none was archived for {}{open}",
        left.max(0.0) * 100.0,
        words(stands)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: i64 = 60_000;
    const HOUR: i64 = 60 * MIN;
    const NOW: i64 = 1_000 * HOUR;

    fn inputs() -> Inputs {
        let limits = Limits { ready_below: 0.1, cut_min_age_ms: 5_000 };
        Inputs { brokers_answered: true, store_answered: true, store_away_since_ms: None, limits }
    }

    /// Retention of 10 h, of which so many minutes are left for the first of 5 offsets.
    fn waiting(left_min: i64, waiting_min: i64, archived_min: i64) -> Partition {
        Partition {
            log: Log { next: 10, stable: 15, end: 15, ..Log::default() },
            archived_at_ms: NOW - archived_min * MIN,
            told_at_ms: Some(NOW - MIN),
            waiting_since_ms: Some(NOW - waiting_min * MIN),
            deadline: Some(Deadline { at_ms: NOW + left_min * MIN, limit: Limit::Time, left: 0.9 }),
            settings: LogSettings { retention_ms: Some(10 * HOUR), ..LogSettings::default() },
            safety: 0.5,
            ..Partition::default()
        }
    }

    fn reasons(inputs: &Inputs, partition: &Partition) -> Vec<String> {
        let tp = TopicPartition::new("t", 3);
        unready(inputs, [(&tp, partition)], NOW).into_iter().map(|r| format!("{}: {}", r.what, r.why)).collect()
    }

    #[test]
    fn it_is_not_ready_before_brokers_and_store_have_answered() {
        let nothing = Inputs::default();
        assert_eq!(reasons(&nothing, &Partition::default()), ["brokers: they have not answered since the start"]);
        let brokers = Inputs { brokers_answered: true, ..nothing };
        assert_eq!(reasons(&brokers, &Partition::default()), ["store: it has not answered since the start"]);
        assert!(unready(&inputs(), [], NOW).is_empty());
    }

    #[test]
    fn an_idle_topic_is_ready() {
        let idle = Partition { log: Log { next: 15, end: 15, ..Log::default() }, ..waiting(-HOUR, 900, 9000) };
        assert!(reasons(&inputs(), &idle).is_empty());
    }

    #[test]
    fn a_partition_that_waits_for_its_cut_with_time_left_is_ready() {
        assert!(reasons(&inputs(), &waiting(590, 14, 14)).is_empty());
        assert!(reasons(&inputs(), &waiting(61, 500, 500)).is_empty(), "just above the share");
    }

    #[test]
    fn a_partition_near_its_deadline_that_stands_still_is_not_ready() {
        let want = ["t/3: 5 % of the retention is left for the first of 5 offsets, and none was archived for 5 min"];
        assert_eq!(reasons(&inputs(), &waiting(30, 500, 5)), want);
        let past = ["t/3: 0 % of the retention is left for the first of 5 offsets, and none was archived for 2 min"];
        assert_eq!(reasons(&inputs(), &waiting(-30, 2, 500)), past);
        let lower = Inputs { limits: Limits { ready_below: 0.01, ..inputs().limits }, ..inputs() };
        assert!(reasons(&lower, &waiting(30, 500, 5)).is_empty());
    }

    #[test]
    fn a_partition_near_its_deadline_that_gets_on_is_ready() {
        assert!(reasons(&inputs(), &waiting(30, 500, 0)).is_empty());
    }

    /// Connect keeps the source record's timestamp: such a record is past its deadline when it comes, on a topic where
    /// nothing was archived for long.
    #[test]
    fn a_record_that_is_old_on_arrival_has_its_minute() {
        assert!(reasons(&inputs(), &waiting(-9000, 1, 90_000)).is_empty(), "5 s of --cut-min-age come on top");
        assert_eq!(reasons(&inputs(), &waiting(-9000, 2, 90_000)).len(), 1);
        let later = Inputs { limits: Limits { cut_min_age_ms: 10 * MIN, ..inputs().limits }, ..inputs() };
        assert!(reasons(&later, &waiting(-9000, 10, 90_000)).is_empty());
        assert_eq!(reasons(&later, &waiting(-9000, 11, 90_000)).len(), 1);
    }

    /// With `--safety 1` batches are cut when their retention is over.
    #[test]
    fn a_batch_that_safety_lets_wait_is_no_standstill() {
        let late = |left| Partition { safety: 1.0, ..waiting(left, 500, 500) };
        assert!(reasons(&inputs(), &late(30)).is_empty());
        assert_eq!(reasons(&inputs(), &late(-1)).len(), 1);
    }

    /// The look-out asks once a minute, and not at all while brokers are away: the share must not stay what it was.
    #[test]
    fn what_is_left_is_reckoned_anew() {
        assert!(waiting(30, 0, 0).left(NOW).is_some_and(|left| (left - 0.05).abs() < 1e-9));
        let by_size = Some(Deadline { at_ms: NOW, limit: Limit::Size, left: 0.04 });
        assert_eq!(reasons(&inputs(), &Partition { deadline: by_size, ..waiting(0, 9, 9) }).len(), 1);
        assert!(reasons(&inputs(), &Partition { deadline: None, ..waiting(0, 900, 900) }).is_empty());
    }

    #[test]
    fn an_open_transaction_is_named() {
        let hidden = Partition { log: Log { next: 10, stable: 12, end: 15, ..Log::default() }, ..waiting(30, 9, 9) };
        assert!(reasons(&inputs(), &hidden)[0].ends_with("; 3 of them are behind an open transaction"));
    }

    #[test]
    fn a_stopped_partition_is_not_ready() {
        let stopped = Partition { stopped: Some("the topic was made anew".into()), ..Partition::default() };
        assert_eq!(reasons(&inputs(), &stopped), ["t/3: stopped: the topic was made anew"]);
    }

    #[test]
    fn a_store_that_is_away_matters_after_five_minutes_while_something_waits() {
        let away = |min: i64| Inputs { store_away_since_ms: Some(NOW - min * MIN), ..inputs() };
        assert!(reasons(&away(5), &waiting(590, 9, 9)).is_empty());
        assert_eq!(
            reasons(&away(6), &waiting(590, 9, 9)),
            ["store: it has not answered for 6 min, and 5 offsets are waiting"]
        );
        assert!(reasons(&away(60), &Partition::default()).is_empty(), "nothing is waiting");
    }

    /// With the brokers away all was ready for as long as a deadline was far: the log was as it had been told last.
    #[test]
    fn partitions_whose_log_nobody_tells_are_not_ready() {
        let untold = |min: i64| Partition { told_at_ms: Some(NOW - min * MIN), ..waiting(590, 9, 9_000) };
        assert!(reasons(&inputs(), &untold(5)).is_empty());
        assert_eq!(
            reasons(&inputs(), &untold(6)),
            ["brokers: for 6 min they have not told the offsets of 1 partition: t/3"]
        );
        // It was never told, and its ledger is loaded; and one that is not.
        let never = Partition { told_at_ms: None, ..waiting(590, 9, 7) };
        assert!(reasons(&inputs(), &never)[0].starts_with("brokers: for 7 min"));
        assert!(reasons(&inputs(), &Partition::default()).is_empty());
        // It is archived, so it is read.
        assert!(reasons(&inputs(), &Partition { archived_at_ms: NOW, ..untold(6) }).is_empty());
        let all: Vec<_> = (0..9).map(|p| (TopicPartition::new("t", p), untold(i64::from(p) + 4))).collect();
        let told = unready(&inputs(), all.iter().map(|(tp, p)| (tp, p)), NOW);
        assert_eq!(told.len(), 1, "one for all of them: {told:?}");
        assert_eq!(told[0].why, "for 12 min they have not told the offsets of 7 partitions: t/2, t/3, t/4 and 4 more");
    }

    #[test]
    fn it_is_alive_while_the_poll_thread_turns() {
        assert!(is_alive(None, NOW) && is_alive(Some(NOW - 60_000), NOW) && is_alive(Some(NOW + 5), NOW));
        assert!(!is_alive(Some(NOW - 60_001), NOW));
    }
}
