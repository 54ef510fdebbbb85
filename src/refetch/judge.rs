//! Whether what lies at an offset is the original that a dead letter speaks of. Pure.
//!
//! Invariant: another topic's record is never taken for the original where ids, times, log ends or a copy tell the two
//! apart. Kafka tells no topic's time of creation, and a share group's dead letter not the topic's id.

use crate::dialect::Payload;
use crate::format::refetched::State;
use crate::record::RawRecord;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How far the clocks of producers, brokers and this machine may be apart, milliseconds.
pub const CLOCKS_MS: i64 = 60_000;

/// A topic's id, as it was told at some time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sighting {
    pub topic: String,
    pub topic_id: String,
    /// Milliseconds since 1970.
    pub at_ms: i64,
}

/// When each id of each topic was seen, first and last.
#[derive(Debug, Clone, Default)]
pub struct Sightings(BTreeMap<String, BTreeMap<String, (i64, i64)>>);

/// Whether a topic is the one that it was when a dead letter was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    Same,
    Other,
    Unknown,
}

/// What a dead letter tells of when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed {
    /// Where its dialect tells it. Milliseconds since 1970.
    pub at_ms: Option<i64>,
    /// It was archived then.
    pub archived_ms: i64,
}

impl Failed {
    fn at_the_latest(self) -> i64 {
        self.at_ms.unwrap_or(self.archived_ms)
    }
}

impl Sightings {
    pub fn add(&mut self, s: &Sighting) {
        let seen = self.0.entry(s.topic.clone()).or_default().entry(s.topic_id.clone()).or_insert((s.at_ms, s.at_ms));
        *seen = (seen.0.min(s.at_ms), seen.1.max(s.at_ms));
    }

    /// `id`: the topic's now.
    pub fn identity(&self, topic: &str, id: Option<&str>, failed: Failed) -> Identity {
        let (Some(id), Some(ids)) = (id, self.0.get(topic)) else { return Identity::Unknown };
        // What was seen with this id before it failed was this topic then.
        let before = |(first, _): &(i64, i64)| failed.at_ms.is_some_and(|at| first.saturating_add(CLOCKS_MS) <= at);
        if ids.get(id).is_some_and(before) {
            return Identity::Same;
        }
        // What had another id when it had failed already is younger than the failure.
        let behind = |(_, last): &(i64, i64)| *last >= failed.at_the_latest().saturating_add(CLOCKS_MS);
        match ids.iter().any(|(other, seen)| other != id && behind(seen)) {
            true => Identity::Other,
            false => Identity::Unknown,
        }
    }
}

/// Before anything is read: `None` if it is worth reading. `log`: its first offset and its end.
pub fn before_reading(identity: Identity, offset: i64, log: Option<(i64, i64)>) -> Option<State> {
    match (identity, log) {
        (Identity::Other, _) => Some(State::Recreated),
        // No such partition, or a log that never came so far: partitions and logs do not shrink.
        (_, None) => Some(State::Recreated),
        (_, Some((_, end))) if offset >= end => Some(State::Recreated),
        (_, Some((start, _))) if offset < start => Some(State::Gone),
        _ => None,
    }
}

/// Of the record at the offset; `copy`: key and value that the dead letter has of the original.
pub fn of_record(identity: Identity, failed: Failed, copy: Option<&Payload<'_>>, found: &RawRecord<'_>) -> State {
    if identity != Identity::Same && found.timestamp_ms > failed.at_the_latest().saturating_add(CLOCKS_MS) {
        return State::Recreated;
    }
    if copy.is_some_and(|(key, value)| (key.as_deref(), value.as_deref()) != (found.key, found.value)) {
        return State::Mismatch;
    }
    State::Refetched
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{RawBatch, TimestampType};
    use std::borrow::Cow;

    const AT: i64 = 1_791_000_000_000;

    fn record(timestamp_ms: i64, key: Option<&[u8]>, value: Option<&[u8]>) -> RawBatch {
        let mut batch = RawBatch::new();
        batch.push(7, timestamp_ms, TimestampType::CreateTime, -1, key, value, std::iter::empty());
        batch
    }

    fn failed(at_ms: Option<i64>) -> Failed {
        Failed { at_ms, archived_ms: AT + 1_000_000 }
    }

    fn seen(sightings: &[(&str, i64)]) -> Sightings {
        let mut all = Sightings::default();
        for (id, at_ms) in sightings {
            all.add(&Sighting { topic: "orders".into(), topic_id: (*id).into(), at_ms: *at_ms });
        }
        all
    }

    #[test]
    fn a_topic_made_anew_is_known_by_ids_that_were_seen_before() {
        let of = |sightings: &[(&str, i64)], id, at| seen(sightings).identity("orders", id, failed(at));
        let (long_before, behind) = (AT - CLOCKS_MS, AT + CLOCKS_MS);
        assert_eq!(of(&[("a", long_before)], Some("a"), Some(AT)), Identity::Same);
        assert_eq!(of(&[("a", behind)], Some("b"), Some(AT)), Identity::Other);
        assert_eq!(of(&[("a", behind)], Some("a"), Some(AT)), Identity::Unknown, "made anew in between?");
        assert_eq!(of(&[("a", long_before)], Some("b"), Some(AT)), Identity::Unknown, "before or behind the failure?");
        assert_eq!(of(&[("a", AT)], Some("a"), Some(AT)), Identity::Unknown, "clocks differ");
        assert_eq!(of(&[("a", AT)], Some("b"), Some(AT)), Identity::Unknown, "clocks differ");
        assert_eq!(of(&[("a", long_before)], Some("a"), None), Identity::Unknown, "when it failed is not known");
        assert_eq!(of(&[("a", behind)], None, Some(AT)), Identity::Unknown);
        assert_eq!(of(&[("a", long_before), ("b", behind)], Some("a"), Some(AT)), Identity::Same);
    }

    #[test]
    fn logs_do_not_shrink_and_retention_takes_the_oldest() {
        assert_eq!(before_reading(Identity::Unknown, 5, Some((0, 6))), None);
        assert_eq!(before_reading(Identity::Unknown, 6, Some((0, 6))), Some(State::Recreated));
        assert_eq!(before_reading(Identity::Unknown, 5, Some((6, 9))), Some(State::Gone));
        assert_eq!(before_reading(Identity::Unknown, 5, Some((6, 6))), Some(State::Gone));
        assert_eq!(before_reading(Identity::Unknown, 5, None), Some(State::Recreated));
        assert_eq!(before_reading(Identity::Other, 5, Some((0, 6))), Some(State::Recreated));
    }

    #[test]
    fn a_record_that_is_younger_than_the_failure_is_not_the_original() {
        let judge = |identity, at, ms| {
            let found = record(ms, Some(b"k"), Some(b"v"));
            of_record(identity, failed(at), None, &found.get(0))
        };
        assert_eq!(judge(Identity::Unknown, Some(AT), AT + CLOCKS_MS), State::Refetched);
        assert_eq!(judge(Identity::Unknown, Some(AT), AT + CLOCKS_MS + 1), State::Recreated);
        assert_eq!(judge(Identity::Same, Some(AT), i64::MAX), State::Refetched, "a producer's clock, then");
        assert_eq!(judge(Identity::Unknown, None, AT + 1_000_000), State::Refetched, "before it was archived");
        assert_eq!(judge(Identity::Unknown, None, AT + 2_000_000), State::Recreated);
        assert_eq!(judge(Identity::Unknown, Some(AT), -1), State::Refetched, "no time");
    }

    #[test]
    fn a_copy_has_to_be_equal_null_and_empty_apart() {
        let judge = |key: Option<&[u8]>, value: Option<&[u8]>| {
            let (copy, found) = ((Some(Cow::Borrowed(&b""[..])), None), record(AT, key, value));
            of_record(Identity::Same, failed(Some(AT)), Some(&copy), &found.get(0))
        };
        assert_eq!(judge(Some(b""), None), State::Refetched);
        assert_eq!(judge(None, None), State::Mismatch);
        assert_eq!(judge(Some(b""), Some(b"")), State::Mismatch);
    }
}
