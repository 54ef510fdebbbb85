//! When Kafka deletes what is not archived yet: deadlines, the early cut, what will be lost.
//!
//! Owns the meaning of a topic's settings for that, and the forecast. Asks nobody and knows no clock: logs and times are
//! handed in. Does not cut and does not read: [`crate::archive`] does, in the order that deadlines say.
//!
//! What Kafka does (`UnifiedLog.deleteOldSegments`): a segment goes when its largest timestamp is older than
//! `retention.ms`, or while what is left without it is at least `retention.bytes`, the active one too, and only from the
//! log start on. Other brokers delete record by record. So what holds everywhere is taken: no record goes before its own
//! timestamp + `retention.ms`, and none while fewer than `retention.bytes` are from it to the log end.

use crate::record::TopicPartition;
use std::collections::BTreeMap;

/// A topic's settings that decide when its records go, in Kafka's terms (`kafka-configs.sh --describe`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogSettings {
    /// `retention.ms`; `None`: no record goes because of its age.
    pub retention_ms: Option<i64>,
    /// `retention.bytes`, of each partition; `None`: none goes because of the log's size.
    pub retention_bytes: Option<u64>,
    /// `segment.bytes`: what goes at a time.
    pub segment_bytes: Option<u64>,
    /// `segment.ms`.
    pub segment_ms: Option<i64>,
    /// `cleanup.policy` has `compact`: a later record with the same key takes the place of an earlier one.
    pub compacted: bool,
    /// `message.timestamp.type` is `LogAppendTime`; `None` where it is not told.
    pub log_append_time: Option<bool>,
    /// Whether anybody told how long records are kept.
    pub source: Source,
}

/// Who said how long records are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// Nobody: the brokers do not describe it.
    #[default]
    Unknown,
    Brokers,
    /// `--retention`, or the configuration file.
    Given,
}

impl LogSettings {
    /// Names of what is asked for.
    pub const NAMES: [&str; 6] =
        ["retention.ms", "retention.bytes", "segment.bytes", "segment.ms", "cleanup.policy", "message.timestamp.type"];

    /// From what brokers describe. Values that are no numbers count as not told.
    pub fn parse(described: &BTreeMap<String, String>) -> Self {
        let number = |name: &str| described.get(name)?.trim().parse::<i64>().ok();
        // -1: without limit.
        let limit = |name: &str| number(name).filter(|n| *n >= 0);
        let size = |name: &str| limit(name).map(i64::cast_unsigned);
        let policy = described.get("cleanup.policy").map_or("delete", String::as_str);
        let deletes = policy.split(',').any(|p| p.trim() == "delete");
        Self {
            retention_ms: limit("retention.ms").filter(|_| deletes),
            retention_bytes: size("retention.bytes").filter(|_| deletes),
            segment_bytes: size("segment.bytes"),
            segment_ms: limit("segment.ms"),
            compacted: policy.split(',').any(|p| p.trim() == "compact"),
            log_append_time: described.get("message.timestamp.type").map(|t| t == "LogAppendTime"),
            source: if described.contains_key("retention.ms") { Source::Brokers } else { Source::Unknown },
        }
    }

    /// With the `retention.ms` that the operator gave in place of the brokers'.
    #[must_use]
    pub fn given(self, retention_ms: Option<i64>) -> Self {
        match retention_ms {
            Some(ms) => Self { retention_ms: Some(ms), source: Source::Given, ..self },
            None => self,
        }
    }
}

/// What helps where programs keep the source record's timestamp in dead letters, as Kafka Connect and Kafka Streams do.
pub const OVERDUE_CURE: &str = "If the program that writes them keeps the timestamp of the source record (Kafka Connect and \
     Kafka Streams do), set message.timestamp.type=LogAppendTime on the topic: then they are kept as long as others";

/// A time as people say it: `45 s`, `12 min`, `3 h 20 min`, `6 d 4 h`.
pub fn words(ms: i64) -> String {
    let (sign, seconds) = (if ms < 0 { "-" } else { "" }, ms.unsigned_abs() / 1000);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |n: u64, unit: &str, rest: u64, small: &str| match rest {
        0 => format!("{sign}{n} {unit}"),
        _ => format!("{sign}{n} {unit} {rest} {small}"),
    };
    match seconds {
        0..100 => format!("{sign}{seconds} s"),
        100..3600 => format!("{sign}{minutes} min"),
        3600..172_800 => two(hours, "h", minutes % 60, "min"),
        _ => two(days, "d", hours % 24, "h"),
    }
}

/// What a record takes in the log besides key, value and headers, at most: a batch of its own (61 bytes), and lengths. Dead
/// letters come one by one.
const ON_DISK: u64 = 80;

/// One partition at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Log {
    /// First offset that the leader has.
    pub start: i64,
    /// Next offset to archive.
    pub next: i64,
    /// Last stable offset: what is behind it is of transactions that are open.
    pub stable: i64,
    /// Log end: next offset to be written.
    pub end: i64,
    /// Timestamp of the first record at or behind `next`, ms since 1970; `None` where there is none, or none is known.
    pub oldest_ms: Option<i64>,
    /// Bytes of the offsets from `next` to `end`, as far as they can be estimated.
    pub lag_bytes: Option<u64>,
}

impl Log {
    /// Offsets that are in the log and not archived, those of open transactions included. An upper bound of records:
    /// markers and aborted ones take offsets too.
    pub fn lag(&self) -> u64 {
        between(self.next.max(self.start), self.end)
    }

    /// Of them, those that nobody can read before a transaction ends.
    pub fn hidden(&self) -> u64 {
        between(self.stable.max(self.next), self.end)
    }

    /// At most so many bytes of the log are from `next` on: what `retention.bytes` is compared with.
    fn disk_bytes(&self) -> Option<u64> {
        Some(self.lag_bytes?.saturating_add(self.lag().saturating_mul(ON_DISK)))
    }

    /// Offsets that went before they were archived, and of which the ledger does not know yet.
    pub fn gone(&self) -> u64 {
        between(self.next, self.start)
    }
}

fn between(from: i64, to: i64) -> u64 {
    u64::try_from(to.saturating_sub(from)).unwrap_or(0)
}

/// Which limit deletes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// `retention.ms`
    Time,
    /// `retention.bytes`
    Size,
}

/// When the oldest record that is not archived may go, at the earliest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Deadline {
    /// Milliseconds since 1970; in the past if Kafka may delete it at its next look
    /// (`log.retention.check.interval.ms`).
    pub at_ms: i64,
    pub limit: Limit,
    /// Of the time or size that was given, what is left: 1 = all, 0 or less = none.
    pub left: f64,
}

/// The deadline of what is not archived of a partition; `None` if nothing is waiting, or nothing is known to delete it.
/// `growth`: bytes a second that are written to the log.
pub fn deadline(log: &Log, settings: &LogSettings, growth: Option<f64>, now_ms: i64) -> Option<Deadline> {
    if log.lag() == 0 {
        return None;
    }
    // -1: it has none, and ages from when its segment was written.
    let by_time = log.oldest_ms.filter(|ms| *ms >= 0).zip(settings.retention_ms).map(|(oldest, retention)| {
        let at_ms = oldest.saturating_add(retention);
        Deadline { at_ms, limit: Limit::Time, left: share(at_ms.saturating_sub(now_ms), retention) }
    });
    let by_size = log.disk_bytes().zip(settings.retention_bytes).and_then(|(lag, size)| {
        let room = size.saturating_sub(lag);
        let left = if size == 0 { 0.0 } else { room as f64 / size as f64 };
        let at_ms = match growth {
            _ if room == 0 => now_ms,
            Some(growth) if growth > 0.0 => now_ms.saturating_add((room as f64 / growth * 1000.0) as i64),
            _ => return None,
        };
        Some(Deadline { at_ms, limit: Limit::Size, left })
    });
    match (by_time, by_size) {
        (Some(time), Some(size)) => Some(if size.at_ms < time.at_ms { size } else { time }),
        (time, size) => time.or(size),
    }
}

fn share(part: i64, of: i64) -> f64 {
    if of > 0 { part as f64 / of as f64 } else { 0.0 }
}

/// When a batch has to be cut whose oldest record has this timestamp: `safety` (0 to 1) of `retention.ms` after it.
/// Milliseconds since 1970; `None` if no record goes because of its age.
pub fn cut_by(oldest_ms: i64, settings: &LogSettings, safety: f64) -> Option<i64> {
    let retention = settings.retention_ms?;
    // A record without a timestamp (-1) ages from when its segment was written.
    (oldest_ms >= 0).then(|| oldest_ms.saturating_add((retention as f64 * safety) as i64))
}

/// Whether so much is waiting that it has to be cut for its size: `safety` (0 to 1) of `retention.bytes`.
pub fn pressing(log: &Log, settings: &LogSettings, safety: f64) -> bool {
    log.disk_bytes().zip(settings.retention_bytes).is_some_and(|(lag, size)| lag as f64 >= size as f64 * safety)
}

/// Bytes a second that a log grows by, where so many offsets come, with records of so many bytes.
pub fn growth(offsets: f64, record_bytes: u64) -> f64 {
    offsets * record_bytes.saturating_add(ON_DISK) as f64
}

/// What is to be read of a partition, and when it goes.
#[derive(Debug, Clone, PartialEq)]
pub struct Backlog {
    pub tp: TopicPartition,
    /// Next offset to read.
    pub next: i64,
    pub end: i64,
    /// Offset and timestamp (ms since 1970) of records from `next` on, both ascending; in between it is interpolated.
    pub profile: Vec<(i64, i64)>,
    pub retention_ms: Option<i64>,
    /// It is being read.
    pub begun: bool,
}

/// What will be lost of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    pub tp: TopicPartition,
    pub offsets: u64,
    /// When the first of them goes, ms since 1970.
    pub from_ms: i64,
    /// Between which timestamps the lost records are, ms since 1970.
    pub timestamps: (i64, i64),
}

impl Backlog {
    /// Timestamp of the record at an offset.
    fn timestamp(&self, offset: i64) -> Option<i64> {
        let behind = self.profile.partition_point(|(o, _)| *o <= offset);
        let before = behind.checked_sub(1).and_then(|i| self.profile.get(i));
        match (before, self.profile.get(behind)) {
            (Some((a, at)), Some((b, bt))) => {
                let way = (offset as f64 - *a as f64) / (*b as f64 - *a as f64);
                Some((*at as f64 + (*bt as f64 - *at as f64) * way) as i64)
            }
            (Some((_, t)), None) | (None, Some((_, t))) => Some(*t),
            (None, None) => None,
        }
    }

    fn expires(&self) -> i64 {
        let at = self.timestamp(self.next).filter(|t| *t >= 0).zip(self.retention_ms).map(|(t, r)| t.saturating_add(r));
        at.unwrap_or(i64::MAX)
    }

    /// The log start at a time, as far as age moves it.
    fn start_at(&self, ms: i64) -> i64 {
        let Some(oldest) = self.retention_ms.map(|r| ms.saturating_sub(r)) else { return i64::MIN };
        let kept = self.profile.partition_point(|(_, t)| *t <= oldest);
        let before = kept.checked_sub(1).and_then(|i| self.profile.get(i));
        match (before, self.profile.get(kept)) {
            (None, _) => i64::MIN,
            (Some(_), None) => self.end,
            (Some((a, at)), Some((b, bt))) => {
                let way = (oldest as f64 - *at as f64) / (*bt as f64 - *at as f64).max(1.0);
                (*a as f64 + (*b as f64 - *a as f64) * way).ceil() as i64
            }
        }
    }

    /// Moves behind what is gone at `ms`.
    fn lose(&mut self, ms: i64) -> Option<Loss> {
        let start = self.start_at(ms).min(self.end);
        let offsets = between(self.next, start);
        if offsets == 0 {
            return None;
        }
        let at = |offset| self.timestamp(offset).unwrap_or(-1);
        let loss = Loss { tp: self.tp.clone(), offsets, from_ms: ms, timestamps: (at(self.next), at(start - 1)) };
        self.next = start;
        Some(loss)
    }

    /// All that is left, when it expires.
    fn lose_all(&mut self) -> Option<Loss> {
        let (offsets, from_ms) = (between(self.next, self.end), self.expires());
        if offsets == 0 || from_ms == i64::MAX {
            return None;
        }
        let at = |offset| self.timestamp(offset).unwrap_or(-1);
        let loss = Loss { tp: self.tp.clone(), offsets, from_ms, timestamps: (at(self.next), at(self.end - 1)) };
        self.next = self.end;
        Some(loss)
    }
}

impl Loss {
    fn add(&mut self, later: &Self) {
        self.offsets = self.offsets.saturating_add(later.offsets);
        self.timestamps.1 = later.timestamps.1;
    }
}

/// Steps of a forecast: their error is far below what interpolation makes.
const STEPS: u64 = 5_000;

/// By how much another partition's deadline must be nearer before it is read in place of the one that is: a change throws
/// away what was fetched. Milliseconds.
pub fn margin_ms(shortest_retention_ms: i64) -> i64 {
    (shortest_retention_ms / 50).max(2_000)
}

/// What will be lost if `rate` offsets a second are read from now on, one partition after the other, nearest deadline
/// first, as the archiver does when it is late. In order of when it is lost. What is written from now on is left out.
pub fn forecast(mut backlogs: Vec<Backlog>, rate: f64, now_ms: i64) -> Vec<Loss> {
    let margin = margin_ms(backlogs.iter().filter_map(|b| b.retention_ms).min().unwrap_or(0));
    let mut losses: BTreeMap<TopicPartition, Loss> = BTreeMap::new();
    let total: u64 = backlogs.iter().map(|b| between(b.next, b.end)).sum();
    let step = (total / STEPS).max(1);
    let mut now = now_ms as f64;
    let mut turn = backlogs.iter().position(|b| b.begun);
    loop {
        for b in &mut backlogs {
            let Some(lost) = b.lose(now as i64) else { continue };
            losses.entry(b.tp.clone()).and_modify(|loss| loss.add(&lost)).or_insert(lost);
        }
        let open = |i: usize| backlogs[i].next < backlogs[i].end;
        let expires = |i: &usize| {
            let at = backlogs[*i].expires();
            if turn == Some(*i) { at.saturating_sub(margin) } else { at }
        };
        let Some(i) = (0..backlogs.len()).filter(|i| open(*i)).min_by_key(expires) else { break };
        if rate <= 0.0 {
            // Nothing is read, and all that has a deadline goes.
            for lost in backlogs.iter_mut().filter_map(Backlog::lose_all) {
                losses.entry(lost.tp.clone()).and_modify(|loss| loss.add(&lost)).or_insert(lost);
            }
            break;
        }
        let read = step.min(between(backlogs[i].next, backlogs[i].end));
        backlogs[i].next += read.cast_signed();
        now += read as f64 / rate * 1000.0;
        turn = Some(i);
    }
    let mut losses: Vec<_> = losses.into_values().collect();
    losses.sort_by(|a, b| (a.from_ms, &a.tp).cmp(&(b.from_ms, &b.tp)));
    losses
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    fn described(pairs: &[(&str, &str)]) -> LogSettings {
        LogSettings::parse(&pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn settings_mean_what_kafka_means() {
        let kafka =
            described(&[("retention.ms", "604800000"), ("retention.bytes", "-1"), ("cleanup.policy", "delete")]);
        assert_eq!((kafka.retention_ms, kafka.retention_bytes, kafka.compacted), (Some(604_800_000), None, false));
        assert_eq!(kafka.source, Source::Brokers);
        let forever = described(&[("retention.ms", "-1")]);
        assert_eq!((forever.retention_ms, forever.source), (None, Source::Brokers));
        // A topic that is only compacted is not deleted by age.
        let compact = described(&[("retention.ms", "1000"), ("retention.bytes", "5"), ("cleanup.policy", "compact")]);
        assert_eq!((compact.retention_ms, compact.retention_bytes, compact.compacted), (None, None, true));
        let both = described(&[("retention.ms", "1000"), ("cleanup.policy", "compact, delete")]);
        assert_eq!((both.retention_ms, both.compacted), (Some(1000), true));
        assert_eq!(described(&[]).source, Source::Unknown);
        assert_eq!(described(&[]).given(Some(5)).retention_ms, Some(5));
        assert_eq!(described(&[("message.timestamp.type", "LogAppendTime")]).log_append_time, Some(true));
    }

    #[test]
    fn the_deadline_is_the_earlier_of_time_and_size_and_nothing_waiting_has_none() {
        // 10 offsets: 800 bytes besides.
        let log = Log { start: 0, next: 10, stable: 20, end: 20, oldest_ms: Some(HOUR), lag_bytes: Some(600) };
        let settings = LogSettings { retention_ms: Some(4 * HOUR), ..LogSettings::default() };
        let at = |log: &Log, settings: &LogSettings, growth| deadline(log, settings, growth, 2 * HOUR);
        let time = at(&log, &settings, None).unwrap();
        assert_eq!((time.at_ms, time.limit, time.left), (5 * HOUR, Limit::Time, 0.75));
        let sized = LogSettings { retention_bytes: Some(1800), ..settings };
        // 400 bytes of room, one a second: 400 s.
        let size = at(&log, &sized, Some(1.0)).unwrap();
        assert_eq!((size.at_ms, size.limit, size.left), (2 * HOUR + 400_000, Limit::Size, 400.0 / 1800.0));
        // It does not grow: age comes first.
        assert_eq!(at(&log, &sized, Some(0.0)).unwrap().limit, Limit::Time);
        // Over the size already.
        let over = at(&Log { lag_bytes: Some(1500), ..log }, &sized, None).unwrap();
        assert_eq!((over.at_ms, over.left), (2 * HOUR, 0.0));
        assert_eq!(at(&Log { next: 20, ..log }, &sized, Some(1.0)), None);
        // Past it.
        let early = LogSettings { retention_ms: Some(HOUR / 2), ..settings };
        assert!(at(&log, &early, None).unwrap().left < 0.0);
        // A record without a timestamp is not of 1970.
        assert_eq!(at(&Log { oldest_ms: Some(-1), ..log }, &settings, None), None);
    }

    #[test]
    fn lag_counts_what_the_log_still_has_and_open_transactions_are_no_lag_of_nought() {
        let log = Log { start: 15, next: 10, stable: 20, end: 25, ..Log::default() };
        assert_eq!((log.lag(), log.hidden(), log.gone()), (10, 5, 5));
        let ahead = Log { start: 0, next: 30, stable: 25, end: 25, ..Log::default() };
        assert_eq!((ahead.lag(), ahead.hidden(), ahead.gone()), (0, 0, 0));
        let all_hidden = Log { start: 0, next: 10, stable: 10, end: 25, ..Log::default() };
        assert_eq!((all_hidden.lag(), all_hidden.hidden()), (15, 15));
    }

    #[test]
    fn a_batch_is_cut_at_a_share_of_the_retention_of_its_oldest_record() {
        let settings = LogSettings { retention_ms: Some(60_000), retention_bytes: Some(100), ..LogSettings::default() };
        assert_eq!(cut_by(1_000, &settings, 0.5), Some(31_000));
        assert_eq!(cut_by(-1, &settings, 0.5), None);
        assert_eq!(cut_by(1_000, &LogSettings::default(), 0.5), None);
        let log = |bytes, lag| Log { end: lag, lag_bytes: Some(bytes), ..Log::default() };
        assert!(!pressing(&log(49, 0), &settings, 0.5) && pressing(&log(50, 0), &settings, 0.5));
        assert!(!pressing(&log(u64::MAX, 1), &LogSettings::default(), 0.5));
        assert!(!pressing(&Log { lag_bytes: None, ..log(0, 99) }, &settings, 0.5), "nothing is known of their size");
    }

    /// Dead letters come one by one, each in a batch of its own: 10 bytes of payload take 80 more in the log.
    #[test]
    fn small_records_reach_retention_bytes_long_before_their_payload_does() {
        let settings = LogSettings { retention_bytes: Some(100_000), ..LogSettings::default() };
        let log = Log { end: 1_200, lag_bytes: Some(12_000), ..Log::default() };
        assert!(pressing(&log, &settings, 0.5));
        assert_eq!(deadline(&log, &settings, None, 5).map(|d| (d.at_ms, d.left)), Some((5, 0.0)));
        assert_eq!(growth(2.0, 10), 180.0);
    }

    /// `n` offsets from 0 on, their timestamps evenly from `first` to `last` seconds.
    fn backlog(partition: i32, n: i64, first: i64, last: i64, retention: i64) -> Backlog {
        Backlog {
            tp: TopicPartition::new("t", partition),
            next: 0,
            end: n,
            profile: vec![(0, first * 1000), (n - 1, last * 1000)],
            retention_ms: Some(retention * 1000),
            begun: false,
        }
    }

    fn lost(losses: &[Loss]) -> Vec<(i32, u64)> {
        losses.iter().map(|l| (l.tp.partition, l.offsets)).collect()
    }

    #[test]
    fn what_can_be_read_in_time_is_not_forecast_as_lost() {
        let both = vec![backlog(0, 1000, 0, 100, 200), backlog(1, 1000, 0, 100, 300)];
        // The first is read within 100 s, before 200 s; the second within 200 s.
        assert_eq!(forecast(both, 10.0, 100_000), []);
    }

    #[test]
    fn a_forecast_follows_deadlines() {
        // 1 goes from 110 s on, all of it at 210 s; 0 from 400 s on.
        let both = || vec![backlog(0, 1000, 0, 100, 400), backlog(1, 1000, 0, 100, 110)];
        // 5 a second: by 110 s 50 are read; then 10 a second go, and reading stands at the log start: half of it is lost.
        let losses = forecast(both(), 5.0, 100_000);
        assert_eq!(losses.len(), 1, "{losses:?}");
        assert!((440..=480).contains(&losses[0].offsets) && losses[0].tp.partition == 1, "{losses:?}");
        // Nothing is read.
        let none = forecast(both(), 0.0, 100_000);
        assert_eq!(lost(&none), [(1, 1000), (0, 1000)]);
        assert_eq!((none[0].from_ms, none[1].from_ms), (110_000, 400_000));
    }

    #[test]
    fn without_retention_nothing_is_forecast() {
        let mut b = backlog(0, 1000, 0, 100, 1);
        b.retention_ms = None;
        assert_eq!(forecast(vec![b.clone()], 0.0, i64::MAX / 2), []);
        assert_eq!(forecast(vec![b], 1.0, i64::MAX / 2), []);
    }

    #[test]
    fn times_in_words() {
        let all = [0, 99_999, 100_000, HOUR, HOUR * 3 + 20 * 60_000, HOUR * 47, HOUR * 49, HOUR * 168, -90_000];
        let said = ["0 s", "99 s", "1 min", "1 h", "3 h 20 min", "47 h", "2 d 1 h", "7 d", "-90 s"];
        assert_eq!(all.map(words), said);
        words(i64::MIN);
    }

    #[test]
    fn extreme_numbers_make_no_panic() {
        let mut b = backlog(0, 1000, 0, 100, 1);
        b.profile = vec![(0, i64::MIN), (5, i64::MAX)];
        b.retention_ms = Some(i64::MAX);
        b.end = i64::MAX;
        let _ = forecast(vec![b], 1e300, i64::MIN);
        let log = Log { start: i64::MIN, next: i64::MIN, end: i64::MAX, oldest_ms: Some(i64::MAX), ..Log::default() };
        let settings = LogSettings { retention_ms: Some(i64::MAX), ..LogSettings::default() };
        let _ = (log.lag(), deadline(&log, &settings, Some(f64::MAX), i64::MIN));
    }
}
