//! Tests of what is restored once more, to where, with which headers and values.

use super::*;
use crate::restore::headers::HeaderOptions;

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
    match world.rules().decide(&record, None, world.past.of("failures", 1, 0)) {
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
    let judged = rules.judge(&record, None, world.past.of("failures", 1, 0));
    let mut batcher = Batcher::new(Limits { records: 1, bytes: 1000 }, 0);
    let sent = batcher.push(&record.id, [0; 16], judged).unwrap();
    assert_eq!(sent.raw.get(0).value, Some(&b"corrected"[..]));
    let correction = sent.rows[0].correction.clone().unwrap();
    let sha256 = |value: &[u8]| Some(crate::ledger::sha256_hex(value));
    assert_eq!((correction.archived_sha256, correction.restored_sha256), (sha256(b"v"), sha256(b"corrected")));
}
