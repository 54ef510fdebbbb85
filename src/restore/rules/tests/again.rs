//! Tests of what is restored once more, to where, with which headers and values.

use super::*;
use crate::dialect;
use crate::restore::headers::HeaderOptions;
use crate::topics::{TopicMatch, TopicSettings};

/// One that came from `origin`, with a failure of its own.
fn came_from(offset: i64, origin: i64) -> RawBatch {
    let mut batch = RawBatch::new();
    let at = origin.to_string();
    push(&mut batch, offset, 1, Some(b"v"), &[CONNECT[0], CONNECT[1], (CONNECT[2].0, &at)]);
    batch
}

fn attempt(world: &World, batch: &RawBatch, failure: u8) -> Option<u32> {
    let mut record = archived(batch, 0, PayloadState::Present);
    record.decoded.failure_key = [failure; 16];
    record.archived_at_us = 10;
    match world.rules().decide(&mut world.decoder(), &record, None, world.past.of("failures", 1, 0)) {
        Verdict::Send { attempt, .. } => Some(attempt),
        Verdict::Skip(skip) => {
            assert_eq!(skip.why, Why::Attempts);
            None
        }
    }
}

#[test]
fn a_failure_that_comes_back_is_restored_as_often_as_is_allowed_over_all_generations() {
    let mut world = World::new();
    world.options.max_attempts = Some(3);
    // Each restore sends the newest dead letter; it fails again as another one, from where it was sent to.
    for (generation, target) in [(1, 100), (2, 200), (3, 300)] {
        let (offset, origin) = (generation, target - 100);
        assert_eq!(attempt(&world, &came_from(offset, origin), offset as u8), Some(generation as u32));
        world.attempts.add(&Restored {
            target_topic: "orders".into(),
            target_partition: 1,
            target_offset: target,
            attempt: generation as u32,
            ..restored(offset, "r")
        });
    }
    assert_eq!(attempt(&world, &came_from(4, 300), 4), None, "it came back a third time");
    assert_eq!(attempt(&world, &came_from(4, 301), 4), Some(1), "another record beside it");
    world.options.max_attempts = Some(4);
    assert_eq!(attempt(&world, &came_from(4, 300), 4), Some(4));
    world.options.max_attempts = None;
    assert_eq!(attempt(&world, &came_from(4, 300), 4), Some(4));
}

#[test]
fn a_return_is_known_by_its_header_its_failure_key_or_its_own_position() {
    let mut world = World::new();
    let told = one(&[CONNECT[0], ("dlq-archiver-restore-count", "7")]);
    assert_eq!(attempt(&world, &told, 9), Some(8), "no list has it: it came from another archive");
    world.attempts.add(&Restored { attempt: 2, ..restored(0, "r") });
    assert_eq!(attempt(&world, &came_from(5, 5), 0), Some(3), "the same failure, at another position");
    assert_eq!(attempt(&world, &one(&CONNECT), 9), Some(3), "the same record");
    assert_eq!(attempt(&world, &told, 0), Some(8), "the highest number holds");
    assert_eq!(attempt(&world, &came_from(5, 5), 9), Some(1));
}

#[test]
fn what_was_archived_before_a_restore_began_is_no_return_from_it() {
    let mut world = World::new();
    world.attempts.add(&Restored {
        restored_at_us: 5,
        target_topic: "orders".into(),
        target_partition: 1,
        ..restored(0, "r")
    });
    world.attempts.add(&Restored { attempt: 2, restored_at_us: 20, ..restored(0, "s") });
    assert_eq!(attempt(&world, &came_from(5, 5), 0), Some(2), "of the first restore, not of the later one");
    assert_eq!(attempt(&world, &came_from(5, 0), 9), Some(2), "by where the first one sent it");
    world.attempts = Attempts::default();
    world.attempts.add(&Restored { restored_at_us: 20, ..restored(0, "s") });
    assert_eq!(attempt(&world, &came_from(5, 5), 0), Some(1));
    assert_eq!(attempt(&world, &one(&CONNECT), 9), Some(2), "but the same record was restored");
}

/// A topic that was made anew has the same positions again, of other records.
#[test]
fn a_record_without_a_failure_key_is_the_same_as_no_other() {
    let mut world = World::new();
    let key = dialect::position_key("failures", 0, 0);
    world.attempts.add(&Restored { failure_key: key, attempt: 3, ..restored(0, "r") });
    let batch = one(&[]);
    let mut record = archived(&batch, 0, PayloadState::Present);
    record.decoded.failure_key = key;
    record.id.generation = 2;
    record.archived_at_us = 10;
    let decoded = world.dialects.decode("failures", 0, &record.raw);
    assert_eq!(world.attempts.of(&record, &decoded).number, 0);
}

#[test]
fn the_partition_is_the_origins_or_the_keys_or_the_one_that_is_named() {
    let mut world = World::new();
    for (partition, goes) in [
        (Partitioning::Origin, sent_to("orders", Some(1))),
        (Partitioning::Key, sent_to("orders", None)),
        (Partitioning::Number(0), sent_to("orders", Some(0))),
        (Partitioning::Number(2), skipped(Why::MissingPartition, Some("orders"))),
    ] {
        world.options.partition = partition;
        assert_eq!(world.decide(&one(&CONNECT), 0), goes);
    }
}

/// `list` prints the dead letter's own value, which is not what is restored of an envelope or of one whose original was
/// read again.
#[test]
fn a_corrected_value_is_that_of_the_record_and_not_of_its_envelope() {
    let mut world = World::new();
    let of = TopicSettings::of(TopicMatch::parse("failures").unwrap());
    let asks = TopicSettings { dialects: vec!["lambda".into()], ..of };
    world.dialects = Dialects::builtin().with_topics(&[asks]).unwrap();
    let inner = |payload: &str| {
        let key = "aw==";
        format!(
            r#"{{"requestContext": {{"condition": "RetryAttemptsExhausted"}}, "payload": {{"eventSource": "SelfManagedKafka", "records": {{"orders-1": [{{"topic": "orders", "partition": 1, "offset": 3, "timestamp": 1, "timestampType": "CREATE_TIME", "key": "{key}", "value": "{payload}", "headers": []}}]}}}}}}"#
        )
    };
    let envelope = inner("dg==");
    let mut batch = RawBatch::new();
    push(&mut batch, 0, 1, Some(envelope.as_bytes()), &[]);
    let mut record = archived(&batch, 0, PayloadState::Present);
    let decoded = world.dialects.decode("failures", 0, &record.raw);
    record.decoded.dialect = decoded.dialect.into_owned().into();
    let judge = |world: &World, value: &str| {
        let mut values = Values::default();
        values.add(record.id.clone(), Some(value.as_bytes().to_vec())).unwrap();
        let rules = Rules { values: &values, ..world.rules() };
        let judged = rules.judge(&mut world.decoder(), &record, None, world.past.of("failures", 1, 0));
        judged.map(|(_, made)| (made.value.map(|v| v.into_owned()), made.archived_value.is_some())).map_err(|s| s.why)
    };
    world.options.to = Some("orders".into());
    assert_eq!(judge(&world, &envelope), Ok((Some(b"v".to_vec()), false)), "as it is: nothing is corrected");
    assert_eq!(judge(&world, "v"), Ok((Some(b"v".to_vec()), false)), "the same value is no correction");
    assert_eq!(judge(&world, "w"), Ok((Some(b"w".to_vec()), true)));
    assert_eq!(judge(&world, &inner("dw==")), Err(Why::WrongValue), "an envelope in place of the record in it");
}

#[test]
fn headers_that_are_added_count_in_the_size() {
    let mut world = World::new();
    let plain = sent_size(Some(b"k"), Some(b"v"), &[]) as u64;
    world.limits = BTreeMap::from([("orders".into(), plain)]);
    assert_eq!(world.decide(&one(&CONNECT), 0), sent_to("orders", Some(1)));
    world.headers = HeaderRules::new(&HeaderOptions::default(), "0123456789ab-1").unwrap();
    assert_eq!(world.decide(&one(&CONNECT), 0), skipped(Why::TooLarge, Some("orders")));
}

#[test]
fn a_corrected_value_is_sent_and_both_hashes_are_listed() {
    let mut world = World::new();
    let batch = one(&CONNECT);
    let record = archived(&batch, 0, PayloadState::Present);
    world.values.add(record.id.clone(), Some(b"corrected".to_vec())).unwrap();
    let rules = world.rules();
    let judged = rules.judge(&mut world.decoder(), &record, None, world.past.of("failures", 1, 0));
    let mut batcher = Batcher::new(Limits { records: 1, bytes: 1000 }, 0);
    let sent = batcher.push(&record.id, [0; 16], judged).unwrap();
    assert_eq!(sent.raw.get(0).value, Some(&b"corrected"[..]));
    let correction = sent.rows[0].correction.clone().unwrap();
    let sha256 = |value: &[u8]| Some(crate::ledger::sha256_hex(value));
    assert_eq!((correction.archived_sha256, correction.restored_sha256), (sha256(b"v"), sha256(b"corrected")));
}
