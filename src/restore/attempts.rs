//! How often each failure was restored before, over all restores and all generations of dead letters. Pure.
//!
//! A dead letter is the return of a record that was restored if its restore-count header says so; if it came from a
//! position that a restore's list names; or if it has the failure key of one in a list. Each row of a list has its
//! number, so along a chain of returns they add up.
//!
//! Owns what is kept of the lists for that: some bytes a row. Invariant: of several ways to know, the highest number holds.

use crate::format::ArchivedRecord;
use crate::format::restored::Restored;
use crate::record::Decoded;
use roaring::RoaringTreemap;
use std::collections::{BTreeMap, HashMap};

/// Offsets, by the number of their attempt.
type ByAttempt = BTreeMap<u32, RoaringTreemap>;

/// See the module.
#[derive(Debug, Default)]
pub struct Attempts {
    /// Where records were: topic, generation, partition.
    archived: HashMap<(String, u32, i32), ByAttempt>,
    /// Where they went: topic, partition.
    sent: HashMap<String, HashMap<i32, ByAttempt>>,
    /// Half of a failure's key. Enough: a wrong one in 2^64 / rows.
    failures: HashMap<u64, u32>,
}

fn half(key: &[u8; 16]) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| key[i]))
}

fn add(to: &mut ByAttempt, attempt: u32, offset: i64) {
    if let Ok(offset) = u64::try_from(offset) {
        to.entry(attempt).or_default().insert(offset);
    }
}

fn newest(of: Option<&ByAttempt>, offset: i64) -> u32 {
    let (Some(of), Ok(offset)) = (of, u64::try_from(offset)) else { return 0 };
    of.iter().rev().find(|(_, offsets)| offsets.contains(offset)).map_or(0, |(attempt, _)| *attempt)
}

impl Attempts {
    /// Adds a row of a restore's list.
    pub fn add(&mut self, row: &Restored) {
        let place = (row.id.topic.clone(), row.id.generation, row.id.partition);
        add(self.archived.entry(place).or_default(), row.attempt, row.id.offset);
        if !self.sent.contains_key(&row.target_topic) {
            self.sent.insert(row.target_topic.clone(), HashMap::new());
        }
        if let Some(of_topic) = self.sent.get_mut(&row.target_topic) {
            add(of_topic.entry(row.target_partition).or_default(), row.attempt, row.target_offset);
        }
        let of_failure = self.failures.entry(half(&row.failure_key)).or_default();
        *of_failure = row.attempt.max(*of_failure);
    }

    /// How often the failure of a record was restored before. `decoded`: by the dialects of now.
    pub fn of(&self, record: &ArchivedRecord<'_>, decoded: &Decoded<'_>) -> u32 {
        let told = u32::try_from(decoded.prior_restores).unwrap_or(0);
        if self.failures.is_empty() {
            return told;
        }
        let id = &record.id;
        let before = newest(self.archived.get(&(id.topic.clone(), id.generation, id.partition)), id.offset);
        let of_failure = |key| self.failures.get(&half(key)).copied().unwrap_or(0);
        let came_from = || {
            let (topic, partition) = (decoded.origin_topic.as_deref()?, decoded.origin_partition?);
            let of = self.sent.get(topic)?.get(&partition);
            Some(newest(of, decoded.origin_offset?))
        };
        let ways = [
            told,
            before,
            of_failure(&record.decoded.failure_key),
            of_failure(&decoded.failure_key),
            came_from().unwrap_or(0),
        ];
        ways.into_iter().max().unwrap_or(0)
    }
}
