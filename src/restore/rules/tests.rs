//! Tests of the rules, and of batches made by them.

use super::*;
use crate::disposition::documents::{self, Action};
use crate::filter::FilterDoc;
use crate::format::restored::Restored;
use crate::record::{Decoded, RawBatch, RecordId, TimestampType};
use crate::restore::batch::{Batcher, Limits, Row};
use crate::restore::counts::{Counts, Repeats};
use crate::restore::past::Past;
use crate::restore::plan::digest;
use proptest::prelude::*;

mod again;

const CONNECT: [(&str, &str); 3] =
    [("__connect.errors.topic", "orders"), ("__connect.errors.partition", "1"), ("__connect.errors.offset", "5")];

struct World {
    options: RuleOptions,
    dialects: Dialects,
    targets: BTreeMap<String, i32>,
    archived: BTreeSet<String>,
    limits: BTreeMap<String, u64>,
    windows: BTreeMap<String, Window>,
    past: Past,
    headers: HeaderRules,
    values: Values,
    attempts: Attempts,
    unwritable: BTreeSet<String>,
}

impl World {
    fn new() -> Self {
        Self {
            options: RuleOptions::default(),
            dialects: Dialects::builtin(),
            targets: BTreeMap::from([("orders".into(), 2), ("narrow".into(), 1), ("failures".into(), 1)]),
            archived: BTreeSet::from(["failures".into()]),
            limits: BTreeMap::new(),
            windows: BTreeMap::new(),
            past: Past::default(),
            headers: HeaderRules::default(),
            values: Values::default(),
            attempts: Attempts::default(),
            unwritable: BTreeSet::new(),
        }
    }
    fn rules(&self) -> Rules<'_> {
        Rules {
            options: &self.options,
            headers: &self.headers,
            values: &self.values,
            attempts: &self.attempts,
            dialects: &self.dialects,
            targets: &self.targets,
            limits: &self.limits,
            windows: &self.windows,
            unwritable: &self.unwritable,
            archived: &self.archived,
        }
    }
    fn decoder(&self) -> TopicDecoder<'_> {
        self.dialects.of_topic("failures")
    }
    fn decide(&self, batch: &RawBatch, i: usize) -> Verdict {
        let mut decoder = self.decoder();
        let record = archived(batch, i, PayloadState::Present);
        self.rules().decide(&mut decoder, &record, None, self.past.of("failures", 1, 0))
    }
}

fn skipped(why: Why, target: Option<&str>) -> Verdict {
    Verdict::Skip(Skip::of(why, target))
}

fn archived(batch: &RawBatch, i: usize, payload_state: PayloadState) -> ArchivedRecord<'_> {
    let raw = batch.get(i);
    ArchivedRecord {
        id: RecordId { topic: "failures".into(), generation: 1, partition: 0, offset: raw.offset },
        cluster_id: None,
        raw,
        key_size: None,
        value_size: None,
        decoded: Decoded { dialect: "unknown".into(), payload_state, ..Decoded::default() },
        pipeline: "p",
        archived_at_us: 0,
    }
}

fn push(batch: &mut RawBatch, offset: i64, timestamp_ms: i64, value: Option<&[u8]>, headers: &[(&str, &str)]) {
    let headers = headers.iter().map(|(n, v)| Header { name: n.as_bytes(), value: Some(v.as_bytes()) });
    batch.push(offset, timestamp_ms, TimestampType::CreateTime, -1, Some(b"k"), value, headers);
}

fn one(headers: &[(&str, &str)]) -> RawBatch {
    let mut batch = RawBatch::new();
    push(&mut batch, 0, 1, Some(b"v"), headers);
    batch
}

fn place(topic: &str, partition: Option<i32>) -> Place {
    Place { topic: topic.into(), partition }
}

fn sent_to(topic: &str, partition: Option<i32>) -> Verdict {
    Verdict::Send { place: place(topic, partition), attempt: 1, corrected: false, tombstone: false }
}

#[test]
fn dead_letter_names() {
    for name in
        ["orders-dlq", "dlq.orders", "orders.DLT", "x_dlt", "dead-letter-orders", "a.dead_letters", "DeadLetter"]
    {
        assert!(is_dead_letter_name(name), "{name}");
    }
    for name in ["orders", "dlqorders", "adult", "dead.end", "letter-dead", "dead-x-letter", "my-deadlettering"] {
        assert!(!is_dead_letter_name(name), "{name}");
    }
}

#[test]
fn records_go_where_they_came_from() {
    let mut world = World::new();
    assert_eq!(world.decide(&one(&CONNECT), 0), sent_to("orders", Some(1)));
    world.options.to = Some("narrow".into());
    assert_eq!(world.decide(&one(&CONNECT), 0), sent_to("narrow", None), "partition 1 is not there: by key");
    assert_eq!(world.decide(&one(&[]), 0), sent_to("narrow", None));
}

fn restored(offset: i64, restore_id: &str) -> Restored {
    Restored {
        id: RecordId { topic: "failures".into(), generation: 1, partition: 0, offset },
        target_topic: "elsewhere".into(),
        target_partition: 0,
        target_offset: 0,
        restore_id: restore_id.into(),
        restored_at_us: 0,
        failure_key: [offset as u8; 16],
        attempt: 1,
        correction: None,
    }
}

#[test]
fn a_record_that_is_larger_than_its_target_takes_is_found_in_planning() {
    let mut world = World::new();
    let batch = one(&CONNECT);
    // 61 of the batch, 1 of the record's length, 3, key and value with a length each, 1 for no headers.
    let size = 61 + 1 + 3 + 2 + 2 + 1;
    assert_eq!(sent_size(Some(b"k"), Some(b"v"), &[]), size, "the stripped headers do not count");
    world.limits = BTreeMap::from([("orders".into(), size as u64)]);
    assert_eq!(world.decide(&batch, 0), sent_to("orders", Some(1)));
    world.limits = BTreeMap::from([("orders".into(), size as u64 - 1)]);
    assert_eq!(world.decide(&batch, 0), skipped(Why::TooLarge, Some("orders")));
    world.options.to = Some("narrow".into());
    assert_eq!(world.decide(&batch, 0), sent_to("narrow", None), "a topic that tells no limit");
}

const NOW: i64 = 1_796_000_000_000;
const HOUR: i64 = 3_600_000;
const WEEK: i64 = 7 * 24 * HOUR;

fn window(settings: &[(&str, &str)]) -> Option<Window> {
    let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Window::of(&settings.collect(), NOW)
}

#[test]
fn how_long_a_topic_keeps_records_by_its_settings() {
    let week = ("retention.ms", "604800000");
    let delete = ("cleanup.policy", "delete");
    let keeps = |settings: &[(&str, &str)]| window(settings).unwrap().keeps_from_ms;
    assert_eq!(keeps(&[week, delete]), NOW - WEEK + HOUR);
    assert_eq!(keeps(&[week, ("cleanup.policy", "compact, delete")]), NOW - WEEK + HOUR);
    assert_eq!(keeps(&[week, ("cleanup.policy", "compact")]), 0);
    assert_eq!(keeps(&[("retention.ms", "-1"), delete]), 0);
    assert_eq!(keeps(&[("retention.ms", "9223372036854775807"), delete]), 0);
    assert_eq!(keeps(&[week, delete, ("message.timestamp.type", "LogAppendTime")]), 0);
    assert_eq!(keeps(&[week, delete, ("message.timestamp.type", "CreateTime")]), NOW - WEEK + HOUR);
    // New records are sent to a topic that keeps them for a minute.
    assert_eq!(keeps(&[("retention.ms", "60000"), delete]), NOW - 54_000);

    let takes = |age| window(&[week, delete, ("message.timestamp.before.max.ms", age)]).unwrap().takes_from_ms;
    assert_eq!((takes("9223372036854775807"), takes("5000"), takes("x")), (0, NOW - 5000, 0));

    for untold in [&[][..], &[week], &[delete], &[("retention.ms", "a week"), delete]] {
        assert_eq!(window(untold), None, "{untold:?}");
    }
}

#[test]
fn a_record_that_its_target_would_delete_at_once_is_not_sent() {
    let mut world = World::new();
    let at = |timestamp_ms| {
        let mut batch = RawBatch::new();
        push(&mut batch, 0, timestamp_ms, Some(b"v"), &CONNECT);
        batch
    };
    let (sent, expired) = (sent_to("orders", Some(1)), skipped(Why::Expired, Some("orders")));
    assert_eq!(world.decide(&at(NOW - 7 * WEEK), 0), sent, "the topic does not tell");
    world.windows = BTreeMap::from([(
        "orders".into(),
        Window { keeps_from_ms: NOW - WEEK + HOUR, takes_from_ms: 0, needs_key: false },
    )]);
    assert_eq!(world.decide(&at(NOW - 7 * WEEK), 0), expired);
    assert_eq!(world.decide(&at(NOW - WEEK + HOUR - 1), 0), expired, "it would be kept for less than an hour");
    assert_eq!(world.decide(&at(NOW - WEEK + HOUR), 0), sent);
    assert_eq!(world.decide(&at(NOW + WEEK), 0), sent);
    assert_eq!(world.decide(&at(-1), 0), sent, "no time is not old");
    world.windows =
        BTreeMap::from([("orders".into(), Window { keeps_from_ms: 0, takes_from_ms: NOW - 5, needs_key: false })]);
    assert_eq!(world.decide(&at(NOW - 6), 0), skipped(Why::Timestamp, Some("orders")));
    world.windows =
        BTreeMap::from([("orders".into(), Window { keeps_from_ms: NOW, takes_from_ms: NOW, needs_key: false })]);
    world.options.timestamps = Timestamps::Now;
    assert_eq!(world.decide(&at(NOW - 7 * WEEK), 0), sent);
    assert_eq!(world.decide(&at(0), 0), sent);
}

#[test]
fn repeats_of_one_failure_are_counted() {
    let batch = one(&CONNECT);
    let mut counts = Counts::new(None);
    for key in [1, 1, 1, 2, 3, 3] {
        let mut record = archived(&batch, 0, PayloadState::Present);
        record.decoded.failure_key = [key; 16];
        counts.add(&record, None, false, &sent_to("orders", None));
        counts.add(&record, None, false, &skipped(Why::UnknownOrigin, None));
    }
    assert_eq!(counts.repeats, Repeats { records: 5, failures: 2 });
}

#[test]
fn ids_that_are_not_there_are_told() {
    let id = |offset| RecordId { topic: "failures".into(), generation: 1, partition: 0, offset };
    let mut counts = Counts::new(Some(&BTreeSet::from([id(0), id(9)])));
    let batch = one(&CONNECT);
    counts.add(&archived(&batch, 0, PayloadState::Present), None, false, &sent_to("orders", None));
    assert_eq!(counts.not_found, BTreeSet::from([id(9)]));
    assert!(counts.has_failures());
}

#[test]
fn a_headers_only_record_is_restored_as_its_original_where_that_was_read_again() {
    let mut world = World::new();
    let mut batch = RawBatch::new();
    let group = [("__dlq.errors.topic", "narrow"), ("__dlq.errors.partition", "0"), ("__dlq.errors.offset", "1")];
    let headers = |of: &'static [(&'static str, &'static str)]| {
        of.iter().map(|(n, v)| Header { name: n.as_bytes(), value: Some(v.as_bytes()) })
    };
    let all: Vec<_> = group.iter().map(|(n, v)| Header { name: n.as_bytes(), value: Some(v.as_bytes()) }).collect();
    batch.push(0, NOW, TimestampType::CreateTime, -1, None, None, all.into_iter());
    let own = headers(&[("own", "header"), ("dlq-archiver-restore-id", "x")]);
    batch.push(1, NOW - 5, TimestampType::CreateTime, -1, Some(b"k"), Some(b"v"), own);
    // It was a dead letter itself: its true origin is elsewhere.
    push(&mut batch, 1, NOW, Some(b"v"), &CONNECT);
    let letter = archived(&batch, 0, PayloadState::NotCopied);
    let past = || world.past.of("failures", 1, 0);
    let original = |i| Original { topic: "narrow", partition: 0, raw: batch.get(i) };
    let rules = world.rules();
    assert_eq!(rules.decide(&mut world.decoder(), &letter, Some(&original(1)), past()), sent_to("narrow", Some(0)));
    assert_eq!(
        rules
            .made(&mut world.decoder(), &letter, Some(&original(1)), 1)
            .unwrap()
            .headers
            .iter()
            .map(|h| h.name)
            .collect::<Vec<_>>(),
        [b"own"]
    );
    assert_eq!(rules.decide(&mut world.decoder(), &letter, Some(&original(2)), past()), sent_to("orders", Some(1)));
    let mut counts = Counts::default();
    counts.add(&letter, Some(&original(1)), false, &sent_to("narrow", Some(0)));
    assert_eq!((counts.refetched, counts.bare, counts.tombstones), (1, 0, 0));
    // What the target takes is asked of the original.
    world.windows =
        BTreeMap::from([("narrow".into(), Window { keeps_from_ms: NOW - 4, takes_from_ms: 0, needs_key: false })]);
    let verdict =
        world.rules().decide(&mut world.decoder(), &letter, Some(&original(1)), world.past.of("failures", 1, 0));
    assert_eq!(verdict, skipped(Why::Expired, Some("narrow")));
}

#[test]
fn every_reason_to_skip() {
    let mut world = World::new();
    assert_eq!(world.decide(&one(&[]), 0), skipped(Why::UnknownOrigin, None));
    let from = |topic| [("__connect.errors.topic", topic), ("__connect.errors.partition", "0"), CONNECT[2]];
    assert_eq!(world.decide(&one(&from("gone")), 0), skipped(Why::MissingTarget, Some("gone")));
    assert_eq!(world.decide(&one(&from("failures")), 0), skipped(Why::DeadLetterTarget, Some("failures")));
    assert_eq!(world.decide(&one(&from("x-dlq")), 0), skipped(Why::DeadLetterTarget, Some("x-dlq")));

    let mut batch = RawBatch::new();
    push(&mut batch, 3, UNSENDABLE_TIMESTAMP, Some(b"v"), &CONNECT);
    assert_eq!(world.decide(&batch, 0), skipped(Why::Timestamp, Some("orders")));
    world.options.timestamps = Timestamps::Now;
    assert_eq!(world.decide(&batch, 0), sent_to("orders", Some(1)));
    world.unwritable = BTreeSet::from(["orders".into()]);
    assert_eq!(world.decide(&batch, 0), skipped(Why::NotWritable, Some("orders")));
    world.unwritable.clear();

    let by = |why, restore: &str| {
        let (target, restore_id) = (Some("elsewhere".into()), Some(restore.into()));
        Verdict::Skip(Skip { why, target, restore_id })
    };
    world.past.add(&restored(3, "r-1"), false);
    assert_eq!(world.decide(&batch, 0), by(Why::UnfinishedRestore, "r-1"));
    world.past.add(&restored(3, "r-2"), true);
    world.past.add(&restored(4, "r-3"), true);
    assert_eq!(world.decide(&batch, 0), by(Why::AlreadyRestored, "r-2"));
    world.options.include_restored = true;
    assert_eq!(world.decide(&batch, 0), sent_to("orders", Some(1)));

    world.options.allow_dead_letter_target = true;
    assert_eq!(world.decide(&one(&from("failures")), 0), sent_to("failures", Some(0)));
    assert_eq!(world.decide(&one(&from("x-dlq")), 0), skipped(Why::MissingTarget, Some("x-dlq")));
}

fn discard(world: &mut World, action: Action, at: &str, offsets: &[u64]) {
    let stored = documents::sample(world.past.discards.end(), action, at, offsets).1;
    world.past.discards.add(stored);
}

#[test]
fn a_discarded_record_is_not_restored_until_that_is_taken_back_or_asked_for() {
    let (mut world, batch) = (World::new(), one(&CONNECT));
    discard(&mut world, Action::Discard, "2026-12-01T00:00:00Z", &[0]);
    assert_eq!(world.decide(&batch, 0), skipped(Why::Discarded, None));
    assert_eq!(
        world.decide(&one(&[]), 0),
        skipped(Why::Discarded, None),
        "accepted as lost: what else it lacks is not told"
    );
    world.options.include_restored = true;
    assert_eq!(world.decide(&batch, 0), skipped(Why::Discarded, None));
    world.options = RuleOptions { include_discarded: true, ..RuleOptions::default() };
    assert_eq!(world.decide(&batch, 0), sent_to("orders", Some(1)));
    world.options = RuleOptions::default();
    discard(&mut world, Action::Undo, "2026-12-01T00:00:00Z", &[0]);
    assert_eq!(world.decide(&batch, 0), sent_to("orders", Some(1)));
    assert!(!Why::Discarded.is_failure() && Why::Discarded.is_listed() && !Why::AlreadyRestored.is_listed());
}

#[test]
fn of_restores_and_discards_the_newest_is_what_became_of_a_record() {
    let mut world = World::new();
    let at = |at_us, restore: &str| Restored { restored_at_us: at_us, ..restored(3, restore) };
    let of = |world: &World| match world.past.of("failures", 1, 0).disposition(3) {
        Disposition::Open => "open".to_owned(),
        Disposition::Restored(went) => went.restore_id.clone(),
        Disposition::Discarded(said) => said.reason.clone(),
    };
    assert_eq!(of(&world), "open");
    world.past.add(&at(5, "r-1"), false);
    assert_eq!(of(&world), "open", "perhaps is not restored");
    world.past.add(&at(10, "r-2"), true);
    world.past.add(&at(7, "r-3"), true);
    assert_eq!(of(&world), "r-2");
    discard(&mut world, Action::Discard, "1970-01-01T00:00:00.000020Z", &[3]);
    assert_eq!(of(&world), "reason 1");
    // It began before the discard, and went on.
    world.past.add(&at(15, "r-4"), true);
    world.past.add(&at(25, "r-4"), true);
    assert_eq!(of(&world), "reason 1");
    world.past.add(&at(21, "r-5"), true);
    assert_eq!(of(&world), "r-5", "it was asked to include discarded ones");
    let batch = {
        let mut batch = RawBatch::new();
        push(&mut batch, 3, 1, Some(b"v"), &CONNECT);
        batch
    };
    let Verdict::Skip(skip) = world.decide(&batch, 0) else { panic!("sent twice") };
    assert_eq!((skip.why, skip.restore_id.as_deref()), (Why::AlreadyRestored, Some("r-5")));
}

#[test]
fn a_headers_only_record_is_never_a_tombstone() {
    let mut world = World::new();
    world.options.to = Some("orders".into());
    world.options.include_restored = true;
    world.options.allow_dead_letter_target = true;
    let group = [("__dlq.errors.topic", "orders"), ("__dlq.errors.partition", "0"), ("__dlq.errors.offset", "1")];
    let headers: Vec<_> = group.into_iter().chain([("__dlq.errors.group", "g")]).collect();
    let mut batch = RawBatch::new();
    let all = headers.iter().map(|(n, v)| Header { name: n.as_bytes(), value: Some(v.as_bytes()) });
    batch.push(0, 1, TimestampType::CreateTime, -1, None, None, all);
    push(&mut batch, 1, 1, None, &CONNECT);
    assert_eq!(world.decide(&batch, 0), skipped(Why::NotCopied, None));
    let sent = Verdict::Send { place: place("orders", Some(1)), attempt: 1, corrected: false, tombstone: true };
    assert_eq!(world.decide(&batch, 1), sent, "a real tombstone");
    let by_archive = archived(&batch, 1, PayloadState::NotCopied);
    let verdict = world.rules().decide(&mut world.decoder(), &by_archive, None, world.past.of("failures", 1, 0));
    assert_eq!(verdict, skipped(Why::NotCopied, None), "the archive said so");
}

#[test]
fn the_same_command_has_the_same_digest() {
    let filter = |since| FilterDoc { since_ms: Some(since), ..FilterDoc::default() };
    let options = RuleOptions::default();
    let of = |filter: &FilterDoc, since| digest("a", filter, Some(since), None, &options, "auto").unwrap();
    assert_eq!(of(&filter(1), "2h"), of(&filter(2), "2h"), "two hours ago is another time by then");
    assert_ne!(of(&filter(1), "2h"), of(&filter(1), "3h"));
    let to = RuleOptions { to: Some("x".into()), ..RuleOptions::default() };
    assert_ne!(of(&filter(1), "2h"), digest("a", &filter(1), Some("2h"), None, &to, "auto").unwrap());
    assert_ne!(of(&filter(1), "2h"), digest("b", &filter(1), Some("2h"), None, &options, "auto").unwrap());
}

#[derive(Debug, Clone)]
struct Record {
    size: usize,
    headers: Vec<&'static str>,
    skipped: bool,
}

fn record() -> impl Strategy<Value = Record> {
    let name = prop::sample::select(vec![
        "__connect.errors.topic",
        "__connect.errors.stage",
        "dlq-archiver-restore-count",
        "ce_id",
        "x",
        "x",
        "",
    ]);
    (0..40usize, prop::collection::vec(name, 0..6), any::<bool>()).prop_map(|(size, headers, skipped)| Record {
        size,
        headers,
        skipped,
    })
}

proptest! {
    #[test]
    fn batches_have_every_record_once_in_order(
        records in prop::collection::vec(record(), 0..60),
        max_records in 1..8usize,
        max_bytes in 1..200usize,
        skip in 0..10usize,
    ) {
        let world = World::new();
        let rules = world.rules();
        let mut source = RawBatch::new();
        for (i, r) in records.iter().enumerate() {
            let headers: Vec<_> = r.headers.iter().map(|n| (*n, "value")).collect();
            push(&mut source, i as i64 * 2, 7, Some(&vec![1; r.size]), &headers);
        }
        let skip = skip.min(records.len());
        let mut batcher = Batcher::new(Limits { records: max_records, bytes: max_bytes }, skip as u64);
        let mut batches = Vec::new();
        for (i, r) in records.iter().enumerate().skip(skip) {
            let record = archived(&source, i, PayloadState::Present);
            let judged = match r.skipped {
                true => Err(Skip::of(Why::UnknownOrigin, None)),
                false => Ok((Place { topic: "orders".into(), partition: None }, rules.made(&mut world.decoder(), &record, None, 1).unwrap())),
            };
            batches.extend(batcher.push(&record.id, [0; 16], judged));
        }
        batches.extend(batcher.finish());

        let mut next = skip as u64;
        let mut offsets = Vec::new();
        for batch in &batches {
            prop_assert_eq!(batch.start, next);
            prop_assert!(batch.end > batch.start && batch.rows.len() <= max_records);
            next = batch.end;
            prop_assert_eq!(batch.rows.len(), batch.raw.len());
            let before_last: usize = batch.raw.iter().take(batch.raw.len().max(1) - 1).map(|r| r.payload_len()).sum();
            prop_assert!(batch.raw.len() < 2 || before_last < max_bytes);
            for (raw, Row { id, .. }) in batch.raw.iter().zip(&batch.rows) {
                prop_assert_eq!(id.offset, raw.offset);
                offsets.push(raw.offset);
                let record = &records[(raw.offset / 2) as usize];
                let kept: Vec<&[u8]> = raw.headers.iter().map(|h| h.name).collect();
                let on_connect = record.headers.contains(&"__connect.errors.topic")
                    || record.headers.contains(&"__connect.errors.stage");
                let want: Vec<&[u8]> = record.headers.iter()
                    .filter(|n| !(n.starts_with("dlq-archiver-") || on_connect && n.starts_with("__connect.errors.")))
                    .map(|n| n.as_bytes())
                    .collect();
                prop_assert_eq!(kept, want);
            }
        }
        prop_assert_eq!(next, records.len() as u64);
        let want: Vec<i64> = (skip..records.len()).filter(|i| !records[*i].skipped).map(|i| i as i64 * 2).collect();
        prop_assert_eq!(offsets, want);
    }
}

#[test]
fn what_was_read_again_and_is_headers_only_itself_is_no_tombstone() {
    let world = World::new();
    let mut batch = RawBatch::new();
    let group = |topic: &'static str| {
        [("__dlq.errors.topic", topic), ("__dlq.errors.partition", "0"), ("__dlq.errors.offset", "1")]
            .map(|(n, v)| Header { name: n.as_bytes(), value: Some(v.as_bytes()) })
    };
    batch.push(0, NOW, TimestampType::CreateTime, -1, None, None, group("narrow").into_iter());
    batch.push(1, NOW, TimestampType::CreateTime, -1, None, None, group("orders").into_iter());
    let letter = archived(&batch, 0, PayloadState::NotCopied);
    let original = Original { topic: "narrow", partition: 0, raw: batch.get(1) };
    let verdict = world.rules().decide(&mut world.decoder(), &letter, Some(&original), world.past.of("failures", 1, 0));
    assert_eq!(verdict, skipped(Why::NotCopied, None));
}

#[test]
fn a_record_of_a_dialect_that_is_not_known_now_is_not_sent_as_it_is() {
    let world = World::new();
    let mut batch = RawBatch::new();
    push(&mut batch, 0, NOW, Some(b"v"), &CONNECT);
    let mut record = archived(&batch, 0, PayloadState::Present);
    let decide = |record: &ArchivedRecord<'_>| {
        world.rules().decide(&mut world.decoder(), record, None, world.past.of("failures", 1, 0))
    };
    record.decoded.dialect = "connect".into();
    assert!(matches!(decide(&record), Verdict::Send { .. }));
    record.decoded.dialect = "lambda".into();
    assert_eq!(decide(&record), skipped(Why::OtherDialects, None));
    // Nothing was known of it, and something is now.
    record.decoded.dialect = "unknown".into();
    assert!(matches!(decide(&record), Verdict::Send { .. }));
}
