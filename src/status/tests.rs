//! Every level with its reason, and every piece of advice: on what the pure part is handed.

use super::advice::Advice;
use super::facts::{Conditional, Cut, Facts, Kafka, Ledger, Lost, Oldest, Partition, Seen, Unreadable};
use super::report::{Level, Report, Rules, Threshold, Why, judge};
use crate::ledger::{Counts, DataObject, Gap, GapKind, Genesis, LEDGER_VERSION, Manifest};
use crate::record::TopicPartition;
use crate::retention::{Limit, LogSettings, Source};

const HOUR: i64 = 3_600_000;
const NOW: i64 = 1_796_083_200_000;

const RULES: Rules = Rules {
    warning: Threshold::Share(0.5),
    critical: Threshold::Share(0.2),
    lost_within_ms: 24 * HOUR,
    interval_ms: None,
};

fn seen(age_ms: i64) -> Seen {
    Seen { timestamp_ms: NOW - age_ms, bytes: 100, headers: 3 }
}

fn log(start: i64, stable: i64, end: i64, oldest: Oldest) -> Kafka {
    Kafka::Log { start, stable, end, oldest, hidden: Oldest::None }
}

/// Archived up to offset 100, one cut two hours ago; the log has `0..end`, and what waits is an hour old.
fn partition(end: i64) -> Partition {
    let oldest = if end > 100 { Oldest::Is(seen(HOUR)) } else { Oldest::None };
    let cut = Cut { at_ms: NOW - 2 * HOUR, rows: 100, objects: 1, oldest_ms: Some(NOW - 3 * HOUR), ..Cut::default() };
    Partition {
        tp: TopicPartition::new("orders-dlq", 0),
        ledgers: vec![Ledger { generation: 1, topic_id: Some("id-1".into()), next: 100, cuts: vec![cut] }],
        unreadable: None,
        kafka: log(0, end, end, oldest),
        settings: LogSettings {
            retention_ms: Some(10 * HOUR),
            log_append_time: Some(false),
            source: Source::Brokers,
            ..LogSettings::default()
        },
        topic_id: Some("id-1".into()),
        sample: None,
    }
}

fn facts(partitions: Vec<Partition>) -> Facts {
    Facts { now_ms: NOW, conditional: Conditional::Kept, partitions, ..Facts::default() }
}

fn of(p: Partition) -> Report {
    judge(&facts(vec![p]), &RULES)
}

fn whys(report: &Report) -> Vec<(Level, Why)> {
    report.partitions.iter().flat_map(|p| p.standing.reasons.iter().map(|r| (r.level, r.why))).collect()
}

fn advised(report: &Report) -> Vec<&'static str> {
    report.advice.iter().map(|a| a.name).collect()
}

fn aged(age_ms: i64) -> Partition {
    Partition { kafka: log(0, 110, 110, Oldest::Is(seen(age_ms))), ..partition(110) }
}

#[test]
fn all_is_archived() {
    let report = of(partition(100));
    assert_eq!((report.level, report.exit_code(), whys(&report).as_slice()), (Level::Ok, 0, &[][..]));
    assert_eq!(report.headline(), "1 topic, 1 partition: all of it is archived");
    assert_eq!(advised(&report), [""; 0]);
    assert_eq!(report.topics[0].standing.last_cut_ms, Some(NOW - 2 * HOUR));
}

#[test]
fn what_waits_has_a_size_an_age_and_a_deadline() {
    let report = of(partition(110));
    let s = &report.topics[0].standing;
    assert_eq!((s.waiting, s.waiting_bytes, s.oldest_ms), (10, Some(1000), Some(NOW - HOUR)));
    assert_eq!(s.deadline.map(|d| (d.at_ms, d.limit, d.left)), Some((NOW + 9 * HOUR, Limit::Time, 0.9)));
    assert_eq!((report.level, report.exit_code()), (Level::Ok, 0));
    assert_eq!(
        report.headline(),
        "1 topic, 1 partition: 10 offsets wait to be archived, the first may be deleted in 9 h"
    );
}

#[test]
fn levels_come_by_the_share_that_is_left() {
    for (age, level) in [(4, Level::Ok), (5, Level::Warning), (7, Level::Warning), (8, Level::Critical)] {
        let report = of(aged(age * HOUR));
        assert_eq!(report.level, level, "{age}");
        assert_eq!(report.exit_code(), u8::from(level == Level::Critical), "{age}");
    }
    let report = of(aged(8 * HOUR));
    assert_eq!(whys(&report), [(Level::Critical, Why::Deadline)]);
    assert_eq!(
        report.headline(),
        "1 of 1 topic: orders-dlq: Kafka may delete the first of 10 waiting offsets in 2 h: 20% of \
         retention.ms is left"
    );
    assert_eq!(advised(&report), ["deadline"]);
}

#[test]
fn levels_come_by_the_time_that_is_left() {
    let rules = Rules { warning: Threshold::Time(6 * HOUR), critical: Threshold::Time(2 * HOUR), ..RULES };
    for (age, level) in [(3, Level::Ok), (4, Level::Warning), (8, Level::Critical)] {
        assert_eq!(judge(&facts(vec![aged(age * HOUR)]), &rules).level, level, "{age}");
    }
}

#[test]
fn retention_bytes_counts_once_it_is_reached() {
    let sized = |bytes| {
        let p = partition(110);
        let settings = LogSettings { retention_bytes: Some(bytes), retention_ms: None, ..p.settings };
        of(Partition { settings, ..p })
    };
    // 10 offsets of 100 bytes, and 80 each that a log takes besides.
    assert_eq!(sized(1801).level, Level::Ok);
    let report = sized(1800);
    assert_eq!(whys(&report), [(Level::Critical, Why::Deadline)]);
    assert!(report.headline().contains("over retention.bytes"), "{}", report.headline());
}

#[test]
fn offsets_that_are_gone_are_critical_and_a_loss() {
    let report = of(Partition { kafka: log(105, 110, 110, Oldest::Is(seen(HOUR))), ..partition(110) });
    assert_eq!(whys(&report), [(Level::Critical, Why::Gone)]);
    assert_eq!((report.exit_code(), report.topics[0].standing.gone), (3, 5));
    let told = "5 offsets (100..105) are lost: retention deleted them before they were archived; the ledger does not have that";
    assert!(report.headline().contains(told), "{}", report.headline());
    assert_eq!(advised(&report), ["loss"]);
    // All that was there is gone.
    let report = of(Partition { kafka: log(110, 110, 110, Oldest::None), ..partition(110) });
    assert_eq!((whys(&report).as_slice(), report.exit_code()), (&[(Level::Critical, Why::Gone)][..], 3));
}

fn with_gap(age_ms: i64, lost: Lost) -> Report {
    let mut p = partition(100);
    p.ledgers[0].cuts.push(Cut { at_ms: NOW - age_ms, lost, ..Cut::default() });
    of(p)
}

#[test]
fn a_loss_is_critical_for_a_day_and_told_for_ever() {
    let lost = Lost { lost: 1, expired: 2, unknown: 4, compacted: 8 };
    let report = with_gap(HOUR, lost);
    assert_eq!((whys(&report).as_slice(), report.exit_code()), (&[(Level::Critical, Why::Lost)][..], 3));
    assert_eq!((report.topics[0].standing.lost, report.topics[0].standing.lost_recently), (lost, 7));
    let report = with_gap(25 * HOUR, lost);
    assert_eq!((report.level, report.exit_code(), report.topics[0].standing.lost.records()), (Level::Ok, 0, 7));
    // Compaction is what was asked for.
    let report = with_gap(HOUR, Lost { compacted: 8, ..Lost::default() });
    assert_eq!((report.level, report.exit_code()), (Level::Ok, 0));
}

#[test]
fn something_else_that_is_critical_wins_over_a_loss() {
    let mut p = aged(9 * HOUR);
    p.ledgers[0].cuts.push(Cut { at_ms: NOW, lost: Lost { lost: 1, ..Lost::default() }, ..Cut::default() });
    let report = of(p);
    assert_eq!((report.exit_code(), advised(&report)), (1, vec!["loss"]));
    let unknown = Partition { tp: TopicPartition::new("z", 0), kafka: Kafka::NoAnswer, ..partition(100) };
    let mut lost = partition(100);
    lost.ledgers[0].cuts[0].lost.lost = 1;
    let report = judge(&facts(vec![lost, unknown]), &RULES);
    assert_eq!((report.level, report.exit_code()), (Level::Critical, 1));
}

/// A read_committed consumer stands at the last stable offset: its lag says 0.
#[test]
fn an_open_transaction_is_a_risk_and_not_a_lag_of_0() {
    let hidden = |age_ms| {
        let first = Oldest::Is(seen(age_ms));
        let kafka = Kafka::Log { start: 0, stable: 100, end: 103, oldest: first, hidden: first };
        of(Partition { kafka, ..partition(103) })
    };
    let young = hidden(60_000);
    assert_eq!((young.level, young.topics[0].standing.hidden, young.topics[0].standing.waiting), (Level::Ok, 3, 3));
    let old = hidden(16 * 60_000);
    assert_eq!(whys(&old), [(Level::Warning, Why::OpenTransaction)]);
    assert_eq!((old.exit_code(), advised(&old)), (0, vec!["open_transaction"]));
    assert_eq!(old.partitions[0].hidden_since_ms, Some(NOW - 16 * 60_000));
    assert_eq!(whys(&hidden(9 * HOUR))[0], (Level::Critical, Why::Deadline));
}

#[test]
fn a_partition_that_was_never_archived_is_at_risk_once_it_has_records() {
    let never = |end, age| Partition {
        ledgers: Vec::new(),
        kafka: log(5, end, end, if end > 5 { Oldest::Is(seen(age)) } else { Oldest::None }),
        ..partition(100)
    };
    assert_eq!(of(never(5, 0)).level, Level::Ok);
    let report = of(never(9, HOUR));
    assert_eq!((whys(&report).as_slice(), report.exit_code()), (&[(Level::Warning, Why::NeverArchived)][..], 0));
    assert_eq!((report.topics[0].standing.waiting, report.partitions[0].archived_to), (4, None));
    assert_eq!(advised(&report), ["archive_it"]);
    assert_eq!(whys(&of(never(9, 9 * HOUR)))[0], (Level::Critical, Why::Deadline));
}

#[test]
fn a_topic_that_is_not_the_archived_one_is_critical() {
    let anew = of(Partition { topic_id: Some("id-2".into()), ..partition(110) });
    assert_eq!((whys(&anew).as_slice(), anew.exit_code()), (&[(Level::Critical, Why::MadeAnew)][..], 1));
    assert_eq!(advised(&anew), ["new_generation"]);
    let short = of(partition(99));
    assert_eq!((whys(&short).as_slice(), short.exit_code()), (&[(Level::Critical, Why::Truncated)][..], 1));
    assert_eq!(advised(&short), ["new_generation"]);
    // Where brokers tell no ids, nothing is concluded; and the newest generation counts.
    assert_eq!(of(Partition { topic_id: None, ..partition(110) }).level, Level::Ok);
    let mut p = partition(110);
    p.ledgers.insert(0, Ledger { generation: 1, topic_id: Some("id-0".into()), next: 999, cuts: Vec::new() });
    p.ledgers[1].generation = 2;
    let report = of(p);
    assert_eq!((report.level, report.partitions[0].generation), (Level::Ok, Some(2)));
}

#[test]
fn a_topic_that_is_gone_is_told_and_no_error() {
    let report = of(Partition { kafka: Kafka::Absent, ..partition(100) });
    assert_eq!((whys(&report).as_slice(), report.exit_code()), (&[(Level::Ok, Why::NotInKafka)][..], 0));
}

#[test]
fn no_answer_is_unknown_and_never_ok() {
    let report = of(Partition { kafka: Kafka::NoAnswer, ..partition(100) });
    assert_eq!((whys(&report).as_slice(), report.exit_code()), (&[(Level::Unknown, Why::NoAnswer)][..], 1));
    assert!(report.topics[0].standing.silent && !of(partition(100)).topics[0].standing.silent);
    let oldest = of(Partition { kafka: log(0, 110, 110, Oldest::Unknown), ..partition(110) });
    assert_eq!(whys(&oldest), [(Level::Unknown, Why::OldestUnknown)]);
    let untimed = Oldest::Is(Seen { timestamp_ms: -1, ..seen(0) });
    assert_eq!(whys(&of(Partition { kafka: log(0, 110, 110, untimed), ..partition(110) })).len(), 1);
    let brokers = Facts { brokers_error: Some("no broker answers".into()), ..facts(Vec::new()) };
    let report = judge(&brokers, &RULES);
    assert_eq!(
        (report.level, report.exit_code(), report.headline().as_str()),
        (Level::Unknown, 1, "no broker answers")
    );
    let store = Unreadable { why: "503".into(), damaged: false };
    assert_eq!(whys(&of(Partition { unreadable: Some(store), ..partition(100) })), [(Level::Unknown, Why::NoAnswer)]);
}

#[test]
fn a_damaged_ledger_is_critical() {
    let damaged = Some(Unreadable { why: "it does not tile".into(), damaged: true });
    let report = of(Partition { unreadable: damaged, ledgers: Vec::new(), ..partition(100) });
    assert_eq!((whys(&report).as_slice(), report.exit_code()), (&[(Level::Critical, Why::LedgerDamaged)][..], 1));
    assert_eq!(advised(&report), ["verify"]);
}

#[test]
fn without_a_retention_what_waits_is_unknown() {
    let p = |end| Partition { settings: LogSettings::default(), ..partition(end) };
    let report = of(p(110));
    assert_eq!((whys(&report).as_slice(), report.exit_code()), (&[(Level::Unknown, Why::RetentionUnknown)][..], 1));
    assert_eq!(advised(&report), ["retention"]);
    assert_eq!(of(p(100)).level, Level::Ok);
    let given = Partition { settings: LogSettings::default().given(Some(10 * HOUR)), ..partition(110) };
    assert_eq!(of(given).level, Level::Ok);
    // Kept for ever is something else.
    let forever = LogSettings { retention_ms: None, ..partition(110).settings };
    let report = of(Partition { settings: forever, ..partition(110) });
    assert_eq!((report.level, report.topics[0].standing.deadline), (Level::Ok, None));
}

#[test]
fn markers_alone_are_nothing_that_waits_for_a_deadline() {
    let report = of(Partition { kafka: log(0, 101, 101, Oldest::None), ..partition(101) });
    assert_eq!((report.level, report.topics[0].standing.deadline), (Level::Ok, None));
}

#[test]
fn records_that_are_past_retention_on_arrival_have_a_cure() {
    let waits = of(aged(11 * HOUR));
    assert_eq!((waits.exit_code(), advised(&waits)), (1, vec!["deadline", "timestamps"]));
    assert!(waits.advice[1].text.contains("message.timestamp.type=LogAppendTime"), "{:?}", waits.advice);
    let mut archived = partition(100);
    archived.ledgers[0].cuts[0].oldest_ms = Some(NOW - 13 * HOUR);
    assert_eq!(advised(&of(archived.clone())), ["timestamps"]);
    archived.settings.log_append_time = Some(true);
    assert_eq!(advised(&of(archived)), [""; 0]);
}

#[test]
fn advice_on_a_topics_settings() {
    let with = |settings| advised(&of(Partition { settings, ..partition(100) })).join(" ");
    let settings = partition(100).settings;
    assert_eq!(with(settings), "");
    assert_eq!(with(LogSettings { compacted: true, ..settings }), "compacted");
    let mut short = partition(100);
    short.settings.retention_ms = Some(9 * 60_000);
    short.ledgers[0].cuts[0].oldest_ms = None;
    assert_eq!(advised(&of(short.clone())), ["short_retention"]);
    short.settings.retention_ms = Some(HOUR);
    assert_eq!(advised(&of(short.clone())), [""; 0]);
    let hourly = Rules { interval_ms: Some(HOUR), ..RULES };
    assert_eq!(advised(&judge(&facts(vec![short]), &hourly)), ["short_retention"]);
}

/// What comes and goes between two runs is never seen: nothing waits, and all looks well.
#[test]
fn a_job_that_runs_less_often_than_records_go_is_a_warning() {
    let every = |interval_ms| judge(&facts(vec![partition(100)]), &Rules { interval_ms: Some(interval_ms), ..RULES });
    assert_eq!(every(9 * HOUR).level, Level::Ok);
    let report = every(10 * HOUR);
    assert_eq!((whys(&report).as_slice(), report.exit_code()), (&[(Level::Warning, Why::ShortRetention)][..], 0));
    let told = "1 of 1 topic: orders-dlq: it keeps records for 10 h, and `archive --once` runs every 10 h (--interval)";
    assert_eq!(report.headline(), told);
    // It is the topic's, and no partition's.
    let two = [0, 1].map(|p| Partition { tp: TopicPartition::new("orders-dlq", p), ..partition(100) });
    assert_eq!(judge(&facts(two.into()), &Rules { interval_ms: Some(10 * HOUR), ..RULES }).headline(), told);
    let absent = Partition { kafka: Kafka::Absent, ..partition(100) };
    assert_eq!(judge(&facts(vec![absent]), &Rules { interval_ms: Some(99 * HOUR), ..RULES }).level, Level::Ok);
}

/// `--once` leaves them behind, and the headline said only that offsets wait.
#[test]
fn the_headline_tells_what_an_open_transaction_hides() {
    let open = |age| {
        let first = Oldest::Is(seen(age));
        let kafka = Kafka::Log { start: 0, stable: 105, end: 110, oldest: first, hidden: Oldest::Is(seen(60_000)) };
        of(Partition { kafka, ..partition(110) }).headline()
    };
    assert_eq!(
        open(HOUR),
        "1 topic, 1 partition: 10 offsets wait to be archived, the first may be deleted in 9 h; 5 offsets are hidden behind an \
         open transaction"
    );
    assert!(open(9 * HOUR).ends_with("10% of retention.ms is left; 5 offsets are hidden behind an open transaction"));
    let first = Oldest::Is(seen(HOUR));
    let kafka = Kafka::Log { start: 0, stable: 100, end: 110, oldest: first, hidden: first };
    let told = of(Partition { kafka, ..partition(110) }).headline();
    assert!(told.contains("an open transaction hides 10 offsets") && !told.contains("are hidden"), "told once: {told}");
}

/// The headline was the brokers', under the level of the loss.
#[test]
fn with_the_brokers_away_a_loss_is_still_what_is_told_first() {
    let mut p = Partition { kafka: Kafka::NoAnswer, ..partition(100) };
    p.ledgers[0].cuts[0].lost.unknown = 3;
    let away = |p| judge(&Facts { brokers_error: Some("no broker answers".into()), ..facts(vec![p]) }, &RULES);
    let report = away(p);
    assert_eq!((report.level, report.exit_code()), (Level::Critical, 1));
    assert_eq!(
        report.headline(),
        "1 of 1 topic: orders-dlq: 3 offsets may be lost: retention deleted them before they were archived, and whether all of \
         them were records is not known (by cuts of the last 24 h); besides, no broker answers"
    );
    let report = away(Partition { kafka: Kafka::NoAnswer, ..partition(100) });
    assert_eq!((report.level, report.headline().as_str()), (Level::Unknown, "no broker answers"));
}

/// A topic that this user may no longer describe was told as deleted, and all was well.
#[test]
fn a_topic_that_may_not_be_described_is_unknown_and_not_gone() {
    let report = of(Partition { kafka: Kafka::NotTold, ..partition(100) });
    assert_eq!((whys(&report).as_slice(), report.exit_code()), (&[(Level::Unknown, Why::NoAnswer)][..], 1));
    assert!(report.topics[0].standing.silent);
}

#[test]
fn records_without_headers_that_nobody_decodes() {
    let undecoded = |rows, headers| {
        let mut p = partition(100);
        p.ledgers[0].cuts[0].undecoded = rows;
        p.sample = Some(Seen { headers, ..seen(HOUR) });
        advised(&of(p)).join(" ")
    };
    assert_eq!(undecoded(100, 0), "no_headers");
    assert_eq!(undecoded(100, 1), "");
    assert_eq!(undecoded(99, 0), "");
    // One that waits is as good as one that was archived; without any nothing is concluded.
    let mut p = partition(110);
    p.ledgers[0].cuts[0].undecoded = 100;
    p.kafka = log(0, 110, 110, Oldest::Is(Seen { headers: 0, ..seen(HOUR) }));
    assert_eq!(advised(&of(p.clone())), ["no_headers"]);
    p.kafka = log(0, 100, 100, Oldest::None);
    assert_eq!(advised(&of(p)), [""; 0]);
}

#[test]
fn advice_on_the_archive() {
    let mut p = partition(100);
    p.ledgers[0].cuts[0].objects = 10_001;
    let all = Facts { conditional: Conditional::NotKept, ..facts(vec![p.clone()]) };
    let report = judge(&all, &RULES);
    assert_eq!((advised(&report), report.level), (vec!["many_objects", "one_writer"], Level::Ok));
    assert!(report.advice.iter().all(|a| a.topic.is_none()));
    p.ledgers[0].cuts[0].at_ms = NOW - 25 * HOUR;
    assert_eq!(of(p).advice, []);
}

#[test]
fn advice_comes_once_a_topic_and_the_worst_partition_decides() {
    let at = |topic: &str, partition, age| Partition { tp: TopicPartition::new(topic, partition), ..aged(age) };
    let all = vec![at("a", 0, 8 * HOUR), at("a", 1, 9 * HOUR), at("b", 0, 5 * HOUR), at("c", 0, HOUR)];
    let report = judge(&facts(all), &RULES);
    let topics: Vec<_> =
        report.topics.iter().map(|t| (t.topic.as_str(), t.standing.level, t.standing.waiting)).collect();
    assert_eq!(topics, [("a", Level::Critical, 20), ("b", Level::Warning, 10), ("c", Level::Ok, 10)]);
    assert_eq!(report.topics[0].standing.waiting_bytes, Some(2000));
    // The nearest, and how many more there are.
    let told = "1 of 3 topics: a: partition 1: Kafka may delete the first of 10 waiting offsets in 1 h: 10% of retention.ms is \
                left (and 1 more of its 2 partitions)";
    assert_eq!(report.headline(), told);
    assert_eq!(report.topics[0].standing.deadline.map(|d| d.at_ms), Some(NOW + HOUR));
    assert!((report.left().unwrap() - 0.1).abs() < 1e-9);
    let three = judge(&facts(["a", "b", "c"].map(|topic| at(topic, 0, 11 * HOUR)).into()), &RULES);
    let each = "Kafka may delete the first of 10 waiting offsets now: 1 h past retention.ms";
    assert_eq!(three.headline(), format!("3 of 3 topics: a: {each}; b: {each}; 1 more topic"));
    let advice: Vec<_> = report.advice.iter().map(|Advice { topic, name, .. }| (topic.as_deref(), *name)).collect();
    assert_eq!(advice, [(Some("a"), "deadline"), (Some("b"), "deadline")]);
}

#[test]
fn a_ledger_is_made_of_its_manifests_once() {
    let genesis = Genesis {
        version: LEDGER_VERSION,
        archive_id: String::new(),
        topic: "t".into(),
        partition: 0,
        generation: 1,
        topic_id: None,
        first_offset: 10,
        previous_sha256: None,
        created_at: String::new(),
    };
    let counts = |dialect: &str, rows| Counts { dialect: dialect.into(), error_class: None, error_code: None, rows };
    let object = DataObject {
        key: "k".into(),
        dt: "d".into(),
        pipeline: Some("p".into()),
        size: 1,
        rows: 5,
        sha256: String::new(),
        min_offset: Some(13),
        max_offset: Some(19),
        min_timestamp_ms: Some(7),
        max_timestamp_ms: Some(9),
        counts: vec![counts("connect", 2), counts("unknown", 3)],
    };
    let manifest = |from, to| Manifest {
        version: LEDGER_VERSION,
        archive_id: String::new(),
        topic: "t".into(),
        partition: 0,
        generation: 1,
        topic_id: None,
        sequence: 0,
        from,
        to,
        cut_at_us: 5_000_000,
        schema_version: 1,
        leader_epoch: -1,
        rows: 5,
        objects: vec![object.clone()],
        gaps: vec![
            Gap { from, to: from + 3, kind: GapKind::Lost },
            Gap { from: from + 3, to: from + 4, kind: GapKind::Unknown },
        ],
        previous_sha256: String::new(),
    };
    let mut ledger = Ledger::of(&genesis);
    assert_eq!(ledger.next, 10);
    ledger.add(&[manifest(10, 20)]);
    // The newest is read again.
    ledger.add(&[manifest(10, 20), manifest(20, 30)]);
    assert_eq!((ledger.next, ledger.cuts.len()), (30, 2));
    let lost = Lost { lost: 3, unknown: 1, ..Lost::default() };
    let cut = Cut { at_ms: 5000, lost, rows: 5, undecoded: 3, objects: 1, oldest_ms: Some(7) };
    assert_eq!(ledger.cuts, [cut; 2]);
    assert_eq!((ledger.since(5000).count(), ledger.since(5001).count()), (2, 0));
}

#[test]
fn extreme_numbers_make_no_panic() {
    let far = Oldest::Is(Seen { timestamp_ms: i64::MAX, bytes: u64::MAX, headers: 0 });
    let kafka = Kafka::Log { start: i64::MIN, stable: i64::MIN, end: i64::MAX, oldest: far, hidden: far };
    let mut p = Partition { kafka, ..partition(100) };
    p.settings.retention_ms = Some(i64::MAX);
    p.settings.retention_bytes = Some(0);
    p.ledgers[0].next = i64::MIN;
    for now_ms in [i64::MIN, 0, i64::MAX] {
        let all = Facts { now_ms, ..facts(vec![p.clone(), Partition { ledgers: Vec::new(), ..p.clone() }]) };
        let _ = judge(&all, &RULES).headline();
    }
}
