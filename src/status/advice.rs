//! What helps: each piece of advice once a topic, or once for the archive. Pure.

use super::facts::{Conditional, Facts, Kafka, Ledger, Oldest, Partition};
use super::report::{PartitionReport, Rules, Why};
use crate::retention::{self, Limit, LogSettings, Source};

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    /// `None`: about the archive.
    pub topic: Option<String>,
    pub name: &'static str,
    pub text: String,
}

/// A retention below this leaves no time for anything.
const SHORT_MS: i64 = 10 * 60_000;
/// Data objects in a day above which files are too small.
const OBJECTS_A_DAY: u64 = 10_000;
const DAY_MS: i64 = 24 * 3_600_000;
/// Cuts of a partition that count as its newest.
const NEWEST: usize = 5;

/// `reports` are of `facts.partitions`, in the same order.
pub fn advise(facts: &Facts, reports: &[PartitionReport], rules: &Rules) -> Vec<Advice> {
    let mut all = Vec::new();
    let of_topics = facts.partitions.chunk_by(|a, b| a.tp.topic == b.tp.topic);
    for (partitions, reports) in of_topics.zip(reports.chunk_by(|a, b| a.tp.topic == b.tp.topic)) {
        let Some(first) = partitions.first() else { continue };
        let mut tell = |name, text: String| all.push(Advice { topic: Some(first.tp.topic.clone()), name, text });
        of_standing(reports, &mut tell);
        of_settings(partitions, reports, rules, &mut tell);
        if is_undecoded(partitions) {
            tell(
                "no_headers",
                "its records have no headers, and so tell nothing of their errors. If Kafka Connect writes them, set \
                 errors.deadletterqueue.context.headers.enable=true on the connector"
                    .into(),
            );
        }
    }
    for expiry in &facts.originals {
        all.push(Advice { topic: Some(expiry.topic.clone()), name: "refetch", text: expiry.text(facts.now_ms) });
    }
    let day = facts.now_ms.saturating_sub(DAY_MS);
    let ledgers = facts.partitions.iter().flat_map(|p| &p.ledgers);
    let objects: u64 = ledgers.flat_map(|l| l.since(day)).map(|c| c.objects).sum();
    if objects > OBJECTS_A_DAY {
        let text = format!(
            "{objects} data objects in the last day: many small files make queries slow. A longer `archive --cut-age`, or \
             --files-per-day, makes fewer and larger ones"
        );
        all.push(Advice { topic: None, name: "many_objects", text });
    }
    if facts.conditional == Conditional::NotKept {
        let text = "the store does not keep If-None-Match: * on PUT: be sure that only one archiver writes at a time";
        all.push(Advice { topic: None, name: "one_writer", text: text.into() });
    }
    all
}

fn of_standing(reports: &[PartitionReport], tell: &mut impl FnMut(&'static str, String)) {
    let has = |why| reports.iter().any(|r| r.standing.reasons.iter().any(|reason| reason.why == why));
    if has(Why::MadeAnew) || has(Why::Truncated) {
        tell(
            "new_generation",
            "what is archived stays. `archive --new-generation` goes on beside it; if the topic should not have changed, \
             find out who did that first"
                .into(),
        );
    }
    if has(Why::LedgerDamaged) {
        tell("verify", "`dlq-archiver verify` tells what of its ledger is damaged, and what to do".into());
    }
    if has(Why::Gone) || has(Why::Lost) {
        let recorded = if has(Why::Gone) { ". The next run records what is gone" } else { "" };
        let cure = "raise retention.ms of the topic (kafka-configs.sh --alter), and let `archive` run all the time or more often";
        tell("loss", format!("{cure}{recorded}"));
    } else if reports.iter().any(|r| r.standing.reasons.iter().any(|reason| reason.why == Why::Deadline)) {
        tell(
            "deadline",
            "see that `archive` runs and what its log says; raise retention.ms of the topic now (kafka-configs.sh --alter)"
                .into(),
        );
    }
    if has(Why::NeverArchived) {
        tell(
            "archive_it",
            "start `archive` with it in --topic; the archive begins at the oldest record there is".into(),
        );
    }
    if has(Why::OpenTransaction) {
        tell(
            "open_transaction",
            "Kafka's `kafka-transactions.sh find-hanging` finds a transaction that nobody will end, its `abort` ends it; \
             see first whether the producer still runs"
                .into(),
        );
    }
    if has(Why::RetentionUnknown) {
        tell(
            "retention",
            "give --retention, such as 7d, or let this user describe the topic's configuration (DescribeConfigs)"
                .into(),
        );
    }
}

fn of_settings(
    partitions: &[Partition],
    reports: &[PartitionReport],
    rules: &Rules,
    tell: &mut impl FnMut(&'static str, String),
) {
    let settings = reports.first().map(|r| r.settings).unwrap_or_default();
    if is_overdue(partitions, reports, &settings) && settings.log_append_time != Some(true) {
        tell(
            "timestamps",
            format!("records of it are past retention.ms before they are archived. {}", retention::OVERDUE_CURE),
        );
    }
    if settings.compacted {
        tell(
            "compacted",
            "it is compacted: records with the same key replace each other, also before they are archived. Set \
             cleanup.policy=delete"
                .into(),
        );
    }
    let Some(retention_ms) = settings.retention_ms.filter(|_| settings.source != Source::Unknown) else { return };
    let kept = retention::words(retention_ms);
    match rules.interval_ms {
        Some(interval) if retention_ms <= interval => tell(
            "short_retention",
            format!(
                "it keeps records for {kept}, and `archive --once` runs every {}: what comes and goes in between is lost. \
                 Raise retention.ms, or run it more often",
                retention::words(interval)
            ),
        ),
        _ if retention_ms < SHORT_MS => {
            let text =
                format!("it keeps records for {kept} only: an outage of that length loses some. Raise retention.ms");
            tell("short_retention", text);
        }
        _ => {}
    }
}

/// Whether records are past `retention.ms` while they wait, or were when they were cut.
fn is_overdue(partitions: &[Partition], reports: &[PartitionReport], settings: &LogSettings) -> bool {
    let mut deadlines = reports.iter().filter_map(|r| r.standing.deadline);
    let waits = deadlines.any(|d| d.limit == Limit::Time && d.left <= 0.0);
    let newest = partitions.iter().filter_map(|p| p.ledgers.last()).flat_map(|l| l.cuts.iter().rev().take(NEWEST));
    let mut overdue = newest.filter_map(|c| Some(c.at_ms.saturating_sub(c.oldest_ms?)));
    waits || settings.retention_ms.is_some_and(|retention| overdue.any(|age| age > retention))
}

/// Whether no dialect knew any of the newest records, and those that were looked at have no headers.
fn is_undecoded(partitions: &[Partition]) -> bool {
    let newest = || partitions.iter().filter_map(|p| p.ledgers.last()).flat_map(|l| l.cuts.iter().rev().take(NEWEST));
    let rows: u64 = newest().map(|c| c.rows).sum();
    let undecoded: u64 = newest().map(|c| c.undecoded).sum();
    let mut seen = partitions.iter().filter_map(|p| match (&p.kafka, p.sample) {
        (_, Some(sample)) => Some(sample),
        (Kafka::Log { oldest: Oldest::Is(seen), .. }, None) => Some(*seen),
        _ => None,
    });
    let first = seen.next();
    rows == undecoded && first.is_some_and(|s| s.headers == 0) && seen.all(|s| s.headers == 0)
}

/// Whether it would help to look at an archived record of this ledger's topic.
pub fn wants_sample(ledger: &Ledger) -> bool {
    let newest = || ledger.cuts.iter().rev().take(NEWEST);
    newest().any(|c| c.rows > 0) && newest().all(|c| c.rows == c.undecoded)
}
