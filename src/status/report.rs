//! Judges what was found out: what is safe, what is at risk and when, what was lost. Pure.
//!
//! Owns levels, their thresholds and reasons, and the exit code. What helps is [`super::advice`]'s.

use super::advice::{self, Advice};
use super::facts::{Conditional, Facts, Kafka, Lost, Oldest, Partition};
use crate::ledger::{GapKind, loss_words};
use crate::record::TopicPartition;
use crate::retention::{self, Deadline, Limit, Log, LogSettings, Source};

/// In order of what wins: what is known to be bad goes before what is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    #[default]
    Ok,
    Warning,
    Unknown,
    Critical,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Unknown => "unknown",
            Self::Critical => "critical",
        }
    }
}

/// How much must be left of a partition's retention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Threshold {
    /// Of `retention.ms` or `retention.bytes`: 1 = all.
    Share(f64),
    /// Milliseconds up to the deadline.
    Time(i64),
}

impl Threshold {
    fn reached(self, deadline: &Deadline, now_ms: i64) -> bool {
        match self {
            Self::Share(share) => deadline.left <= share,
            Self::Time(ms) => deadline.at_ms.saturating_sub(now_ms) <= ms,
        }
    }
}

/// What is judged by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rules {
    pub warning: Threshold,
    pub critical: Threshold,
    /// Milliseconds since a cut that recorded a loss, for as long as that is critical.
    pub lost_within_ms: i64,
    /// How often a job runs `archive --once`.
    pub interval_ms: Option<i64>,
}

/// How long a transaction may be open before it is told.
pub const OPEN_TOO_LONG_MS: i64 = 15 * 60_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The topic was deleted and made anew.
    MadeAnew,
    /// The log ends below what is archived.
    Truncated,
    LedgerDamaged,
    /// Offsets went that the ledger does not know of yet.
    Gone,
    /// The ledger has recent gaps.
    Lost,
    Deadline,
    OpenTransaction,
    NeverArchived,
    NoAnswer,
    RetentionUnknown,
    OldestUnknown,
    NotInKafka,
    /// A job runs less often than its records go.
    ShortRetention,
}

impl Why {
    pub fn name(self) -> &'static str {
        match self {
            Self::MadeAnew => "made_anew",
            Self::Truncated => "truncated",
            Self::LedgerDamaged => "ledger_damaged",
            Self::Gone => "gone",
            Self::Lost => "lost",
            Self::Deadline => "deadline",
            Self::OpenTransaction => "open_transaction",
            Self::NeverArchived => "never_archived",
            Self::NoAnswer => "no_answer",
            Self::RetentionUnknown => "retention_unknown",
            Self::OldestUnknown => "oldest_unknown",
            Self::NotInKafka => "not_in_kafka",
            Self::ShortRetention => "short_retention",
        }
    }

    /// For a column.
    pub fn short(self) -> &'static str {
        match self {
            Self::MadeAnew => "topic made anew",
            Self::Truncated => "log truncated",
            Self::LedgerDamaged => "ledger damaged",
            Self::Gone | Self::Lost => "records lost",
            Self::Deadline => "near deletion",
            Self::OpenTransaction => "open transaction",
            Self::NeverArchived => "never archived",
            Self::NoAnswer => "no answer",
            Self::RetentionUnknown => "retention unknown",
            Self::OldestUnknown => "age unknown",
            Self::NotInKafka => "not in Kafka",
            Self::ShortRetention => "retention too short",
        }
    }

    fn is_loss(self) -> bool {
        matches!(self, Self::Gone | Self::Lost)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    pub level: Level,
    pub why: Why,
    pub text: String,
}

/// One partition, or all of a topic.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Standing {
    pub level: Level,
    /// Worst first.
    pub reasons: Vec<Reason>,
    /// Brokers did not tell how its log stands, or not all of it: what waits, is hidden or gone is not known.
    pub silent: bool,
    /// Offsets that are in the log and not archived.
    pub waiting: u64,
    /// What they take, estimated from the first of them.
    pub waiting_bytes: Option<u64>,
    pub hidden: u64,
    pub gone: u64,
    pub oldest_ms: Option<i64>,
    pub deadline: Option<Deadline>,
    pub last_cut_ms: Option<i64>,
    pub lost: Lost,
    /// Of the records in `lost`, those of recent cuts.
    pub lost_recently: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct PartitionReport {
    pub tp: TopicPartition,
    /// The newest; `None`: never archived.
    pub generation: Option<u32>,
    pub archived_to: Option<i64>,
    /// `None` without an answer.
    pub log: Option<Log>,
    pub hidden_since_ms: Option<i64>,
    pub settings: LogSettings,
    pub standing: Standing,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TopicReport {
    pub topic: String,
    pub partitions: usize,
    pub settings: LogSettings,
    pub standing: Standing,
}

#[derive(Debug, Clone)]
pub struct Report {
    pub at_ms: i64,
    pub archive_id: String,
    pub url: String,
    pub conditional: Conditional,
    pub brokers_error: Option<String>,
    pub level: Level,
    /// By name.
    pub topics: Vec<TopicReport>,
    pub partitions: Vec<PartitionReport>,
    pub advice: Vec<Advice>,
}

pub fn judge(facts: &Facts, rules: &Rules) -> Report {
    let partitions: Vec<PartitionReport> =
        facts.partitions.iter().map(|p| judge_partition(p, rules, facts.now_ms)).collect();
    let topics: Vec<TopicReport> = partitions.chunk_by(|a, b| a.tp.topic == b.tp.topic).map(topic).collect();
    let advice = advice::advise(facts, &partitions, rules);
    let unknown = if facts.brokers_error.is_some() { Level::Unknown } else { Level::Ok };
    let level = topics.iter().map(|t| t.standing.level).max().unwrap_or_default().max(unknown);
    Report {
        at_ms: facts.now_ms,
        archive_id: facts.archive_id.clone(),
        url: facts.url.clone(),
        conditional: facts.conditional.clone(),
        brokers_error: facts.brokers_error.clone(),
        level,
        topics,
        partitions,
        advice,
    }
}

fn judge_partition(p: &Partition, rules: &Rules, now_ms: i64) -> PartitionReport {
    let newest = p.ledgers.last();
    let mut lost = Lost::default();
    p.ledgers.iter().flat_map(|l| &l.cuts).for_each(|c| lost.add(&c.lost));
    let mut recent = Lost::default();
    let since = now_ms.saturating_sub(rules.lost_within_ms);
    p.ledgers.iter().flat_map(|l| l.since(since)).for_each(|c| recent.add(&c.lost));
    let mut report = PartitionReport {
        tp: p.tp.clone(),
        generation: newest.map(|l| l.generation),
        archived_to: newest.map(|l| l.next),
        log: None,
        hidden_since_ms: None,
        settings: p.settings,
        standing: Standing {
            last_cut_ms: p.ledgers.iter().rev().find_map(|l| l.cuts.last()).map(|c| c.at_ms),
            lost_recently: recent.records(),
            lost,
            silent: matches!(p.kafka, Kafka::NoAnswer | Kafka::NotTold),
            ..Standing::default()
        },
    };
    let mut reasons = Vec::new();
    let mut tell = |level, why, text: String| reasons.push(Reason { level, why, text });
    if let Some(unreadable) = &p.unreadable {
        let (level, why) = match unreadable.damaged {
            true => (Level::Critical, Why::LedgerDamaged),
            false => (Level::Unknown, Why::NoAnswer),
        };
        tell(level, why, unreadable.why.clone());
    }
    if let Some(told) = loss_words(recent.lost.saturating_add(recent.expired), recent.unknown) {
        let text = format!("{told} (by cuts of the last {})", retention::words(rules.lost_within_ms));
        tell(Level::Critical, Why::Lost, text);
    }
    if let (Some(interval), Some(kept)) = (rules.interval_ms, p.settings.retention_ms)
        && kept <= interval
        && p.kafka != Kafka::Absent
    {
        let (kept, interval) = (retention::words(kept), retention::words(interval));
        let text = format!("it keeps records for {kept}, and `archive --once` runs every {interval} (--interval)");
        tell(Level::Warning, Why::ShortRetention, text);
    }
    match &p.kafka {
        Kafka::NoAnswer => tell(Level::Unknown, Why::NoAnswer, "its leader does not tell how the log stands".into()),
        Kafka::NotTold => {
            let text = "the brokers do not tell whether it is there: may this user describe it?";
            tell(Level::Unknown, Why::NoAnswer, text.into());
        }
        Kafka::Absent => {
            tell(Level::Ok, Why::NotInKafka, "Kafka does not have it any more; what is archived stays".into());
        }
        Kafka::Log { .. } if p.unreadable.is_some() => {}
        Kafka::Log { start, stable, end, oldest, hidden } => {
            judge_log(p, (*start, *stable, *end), (oldest, hidden), rules, now_ms, &mut report, &mut tell);
        }
    }
    reasons.sort_by_key(|r| std::cmp::Reverse(r.level));
    report.standing.level = reasons.first().map_or(Level::Ok, |r| r.level);
    report.standing.reasons = reasons;
    report
}

fn judge_log(
    p: &Partition,
    (start, stable, end): (i64, i64, i64),
    (oldest, hidden): (&Oldest, &Oldest),
    rules: &Rules,
    now_ms: i64,
    report: &mut PartitionReport,
    tell: &mut impl FnMut(Level, Why, String),
) {
    let newest = p.ledgers.last();
    let next = newest.map_or(start, |l| l.next);
    let timestamp = |o: &Oldest| match o {
        Oldest::Is(seen) if seen.timestamp_ms >= 0 => Some(seen.timestamp_ms),
        _ => None,
    };
    let mut log = Log { start, next, stable, end, oldest_ms: timestamp(oldest), lag_bytes: None };
    if let (Oldest::Is(seen), true) = (oldest, log.lag() > 0) {
        log.lag_bytes = Some(seen.bytes.saturating_mul(log.lag()));
    }
    report.log = Some(log);
    let known = newest.and_then(|l| l.topic_id.as_ref()).zip(p.topic_id.as_ref());
    if let Some((archived, now)) = known.filter(|(archived, now)| archived != now) {
        // Offsets of two topics do not compare.
        let text =
            format!("the topic was deleted and made anew (its id was {archived}, is {now}): nothing of it is archived");
        return tell(Level::Critical, Why::MadeAnew, text);
    }
    if end < next {
        let text =
            format!("its log ends at {end}, below what is archived ({next}): it was truncated, or the topic made anew");
        return tell(Level::Critical, Why::Truncated, text);
    }
    let standing = &mut report.standing;
    (standing.waiting, standing.hidden, standing.gone) = (log.lag(), log.hidden(), log.gone());
    (standing.waiting_bytes, standing.oldest_ms) = (log.lag_bytes, log.oldest_ms.filter(|_| log.lag() > 0));
    if log.gone() > 0 {
        let what = format!("{} offsets ({next}..{start})", log.gone());
        let text = format!("{}; the ledger does not have that yet", GapKind::Lost.words(&what));
        tell(Level::Critical, Why::Gone, text);
    }
    if log.lag() == 0 || *oldest == Oldest::None {
        return;
    }
    if newest.is_none() {
        tell(Level::Warning, Why::NeverArchived, format!("{} offsets, and no archiver has begun with it", log.lag()));
    }
    standing.deadline = retention::deadline(&log, &p.settings, None, now_ms);
    if let Some(deadline) = &standing.deadline {
        let level = match () {
            () if rules.critical.reached(deadline, now_ms) => Level::Critical,
            () if rules.warning.reached(deadline, now_ms) => Level::Warning,
            () => Level::Ok,
        };
        if level > Level::Ok {
            tell(level, Why::Deadline, deadline_words(deadline, log.lag(), now_ms));
        }
    }
    if p.settings.source == Source::Unknown {
        tell(Level::Unknown, Why::RetentionUnknown, "the brokers do not tell how long it keeps records".into());
    } else if log.oldest_ms.is_none() && p.settings.retention_ms.is_some() {
        let text = match oldest {
            Oldest::Is(_) => "its oldest waiting record has no timestamp: when it goes is not known",
            _ => "its oldest waiting record could not be read: when it goes is not known",
        };
        tell(Level::Unknown, Why::OldestUnknown, text.into());
    }
    if log.hidden() > 0 {
        report.hidden_since_ms = timestamp(hidden);
        let age = report.hidden_since_ms.map(|ms| now_ms.saturating_sub(ms));
        let late = standing.deadline.is_some_and(|d| rules.warning.reached(&d, now_ms));
        if late || age.is_none_or(|age| age >= OPEN_TOO_LONG_MS) {
            let since = age.map_or_else(String::new, |age| format!(" of {} ago", retention::words(age)));
            let text = format!("an open transaction hides {} offsets from {stable} on, the first{since}", log.hidden());
            tell(Level::Warning, Why::OpenTransaction, text);
        }
    }
}

fn deadline_words(deadline: &Deadline, waiting: u64, now_ms: i64) -> String {
    let left = deadline.at_ms.saturating_sub(now_ms);
    match deadline.limit {
        Limit::Size => {
            format!("its {waiting} waiting offsets are over retention.bytes: Kafka may delete the first now")
        }
        Limit::Time if left <= 0 => {
            let past = retention::words(left.saturating_neg());
            format!("Kafka may delete the first of {waiting} waiting offsets now: {past} past retention.ms")
        }
        Limit::Time => {
            let percent = (deadline.left * 100.0).floor();
            let left = retention::words(left);
            format!(
                "Kafka may delete the first of {waiting} waiting offsets in {left}: {percent}% of retention.ms is left"
            )
        }
    }
}

fn topic(partitions: &[PartitionReport]) -> TopicReport {
    let mut all = Standing::default();
    let mut reasons: Vec<(i64, Reason)> = Vec::new();
    // What holds for each of them is the topic's, and told once.
    let each_has = |r: &&Reason| partitions.iter().all(|p| p.standing.reasons.contains(r));
    let of_all: Vec<&Reason> =
        partitions.first().map_or(Vec::new(), |p| p.standing.reasons.iter().filter(each_has).collect());
    for p in partitions {
        let s = &p.standing;
        all.level = all.level.max(s.level);
        let place = if partitions.len() > 1 { format!("partition {}: ", p.tp.partition) } else { String::new() };
        let of_topic = |r: &Reason| Reason { text: format!("{place}{}", r.text), ..r.clone() };
        // Of those that are near deletion the nearest is told first.
        let first = |r: &Reason| s.deadline.filter(|_| r.why == Why::Deadline).map_or(i64::MIN, |d| d.at_ms);
        reasons.extend(s.reasons.iter().filter(|r| !of_all.contains(r)).map(|r| (first(r), of_topic(r))));
        all.silent |= s.silent;
        all.waiting = all.waiting.saturating_add(s.waiting);
        if s.waiting > 0 {
            // Of all or of none.
            let before = if all.waiting == s.waiting { Some(0) } else { all.waiting_bytes };
            all.waiting_bytes = before.zip(s.waiting_bytes).map(|(a, b): (u64, u64)| a.saturating_add(b));
        }
        all.hidden = all.hidden.saturating_add(s.hidden);
        all.gone = all.gone.saturating_add(s.gone);
        all.oldest_ms = [all.oldest_ms, s.oldest_ms].into_iter().flatten().min();
        if let Some(deadline) = s.deadline.filter(|d| all.deadline.is_none_or(|a| d.at_ms < a.at_ms)) {
            all.deadline = Some(deadline);
        }
        all.last_cut_ms = all.last_cut_ms.max(s.last_cut_ms);
        all.lost.add(&s.lost);
        all.lost_recently = all.lost_recently.saturating_add(s.lost_recently);
    }
    reasons.extend(of_all.into_iter().map(|r| (i64::MIN, r.clone())));
    reasons.sort_by_key(|(first, r)| (std::cmp::Reverse(r.level), *first));
    all.reasons = reasons.into_iter().map(|(_, reason)| reason).collect();
    let first = partitions.first();
    TopicReport {
        topic: first.map(|p| p.tp.topic.clone()).unwrap_or_default(),
        partitions: partitions.len(),
        settings: first.map(|p| p.settings).unwrap_or_default(),
        standing: all,
    }
}

impl Standing {
    /// Of the reasons, the one that is told first.
    fn decides(&self) -> Option<Why> {
        self.reasons.first().map(|r| r.why)
    }
}

impl TopicReport {
    /// For how many other partitions holds what is told first, in words.
    fn others(&self) -> String {
        let first = self.standing.reasons.first();
        let same = |r: &&Reason| first.is_some_and(|first| (first.why, first.level) == (r.why, r.level));
        match self.standing.reasons.iter().filter(same).count().saturating_sub(1) {
            0 => String::new(),
            n => format!(" (and {n} more of its {} partitions)", self.partitions),
        }
    }
}

impl Report {
    /// 1: something is critical that is no loss, or could not be found out; 3: records were lost of late.
    pub fn exit_code(&self) -> u8 {
        let reasons = || self.partitions.iter().flat_map(|p| &p.standing.reasons);
        let bad = |r: &Reason| r.level >= Level::Unknown && !r.why.is_loss();
        match () {
            () if self.brokers_error.is_some() || reasons().any(bad) => 1,
            () if reasons().any(|r| r.why.is_loss()) => 3,
            () => 0,
        }
    }

    pub fn total(&self, of: impl Fn(&Standing) -> u64) -> u64 {
        self.topics.iter().map(|t| of(&t.standing)).fold(0, u64::saturating_add)
    }

    /// The earliest of all.
    pub fn deadline(&self) -> Option<Deadline> {
        self.topics.iter().filter_map(|t| t.standing.deadline).min_by_key(|d| d.at_ms)
    }

    /// The smallest share that is left of a partition's retention.
    pub fn left(&self) -> Option<f64> {
        self.partitions.iter().filter_map(|p| p.standing.deadline).map(|d| d.left).min_by(f64::total_cmp)
    }

    /// The state in words, in one line, without its level: what decided it first.
    pub fn headline(&self) -> String {
        match &self.brokers_error {
            // What the ledger alone tells is bad enough.
            Some(error) if self.level == Level::Critical => format!("{}; besides, {error}", self.standing()),
            Some(error) => error.clone(),
            None => self.standing(),
        }
    }

    fn standing(&self) -> String {
        let count = |n: usize, noun: &str| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
        let bad: Vec<&TopicReport> = self.topics.iter().filter(|t| t.standing.level == self.level).collect();
        let hidden = match self.total(|s| s.hidden) {
            n if n > 0 && !bad.iter().any(|t| t.standing.decides() == Some(Why::OpenTransaction)) => {
                format!("; {n} offsets are hidden behind an open transaction")
            }
            _ => String::new(),
        };
        if self.level > Level::Ok {
            let worst =
                |t: &&TopicReport| Some(format!("{}: {}{}", t.topic, t.standing.reasons.first()?.text, t.others()));
            let told: Vec<String> = bad.iter().filter_map(worst).take(2).collect();
            let more =
                bad.len().checked_sub(told.len()).filter(|n| *n > 0).map(|n| format!("; {}", count(n, "more topic")));
            let more = more.unwrap_or_default();
            return format!(
                "{} of {}: {}{more}{hidden}",
                bad.len(),
                count(self.topics.len(), "topic"),
                told.join("; ")
            );
        }
        let all = format!("{}, {}", count(self.topics.len(), "topic"), count(self.partitions.len(), "partition"));
        match (self.total(|s| s.waiting), self.deadline()) {
            (0, _) => format!("{all}: all of it is archived"),
            (n, None) => format!("{all}: {n} offsets wait to be archived, and nothing deletes them{hidden}"),
            (n, Some(deadline)) => format!(
                "{all}: {n} offsets wait to be archived, the first may be deleted in {}{hidden}",
                retention::words(deadline.at_ms.saturating_sub(self.at_ms))
            ),
        }
    }
}
