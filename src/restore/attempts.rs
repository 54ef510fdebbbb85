//! How often each failure was restored before, over all restores and all generations of dead letters. Pure.
//!
//! A dead letter is the return of a record that was restored if its restore-count header says so; if it came from a
//! position that a restore's list names; or if it has the failure key of one in a list. Each row of a list has its
//! number, so along a chain of returns they add up.
//!
//! What was archived before a restore began is no return from it, whatever it looks like.
//!
//! Owns what is kept of the lists for that: some bytes a row. Invariant: of several ways to know, the highest number holds.

use super::headers::COUNTED;
use crate::dialect;
use crate::format::ArchivedRecord;
use crate::format::restored::Restored;
use crate::record::Decoded;
use roaring::RoaringTreemap;
use std::collections::{BTreeMap, HashMap};

/// Offsets, by the number of their attempt and the restore.
type ByAttempt = BTreeMap<(u32, u32), RoaringTreemap>;

/// What one restore did of a failure, in a list of all restores of it.
#[derive(Debug, Clone, Copy)]
struct Row {
    attempt: u32,
    restore: u32,
    /// The row before; [`NONE`] at the end.
    before: u32,
}

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Restore {
    id: String,
    /// When its first records were acknowledged, microseconds since 1970.
    since_us: i64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Attempts {
    restores: Vec<Restore>,
    /// Where records were: topic; generation and partition.
    archived: HashMap<String, HashMap<(u32, i32), ByAttempt>>,
    /// Where they went: topic; partition.
    sent: HashMap<String, HashMap<i32, ByAttempt>>,
    /// The newest row of each failure, by half of its key. Enough: a wrong one in 2^64 / rows.
    failures: HashMap<u64, u32>,
    rows: Vec<Row>,
}

/// How often a failure was restored, and by which restore the last time, if a list has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Before<'a> {
    pub number: u32,
    pub restore_id: Option<&'a str>,
}

fn half(key: &[u8; 16]) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| key[i]))
}

fn add(to: &mut ByAttempt, by: (u32, u32), offset: i64) {
    if let Ok(offset) = u64::try_from(offset) {
        to.entry(by).or_default().insert(offset);
    }
}

/// With a topic's part, without a copy of its name for each row.
fn of_topic<V: Default>(all: &mut HashMap<String, V>, topic: &str, then: impl FnOnce(&mut V)) {
    match all.get_mut(topic) {
        Some(part) => then(part),
        None => then(all.entry(topic.to_owned()).or_default()),
    }
}

impl Attempts {
    /// Adds a row of a restore's list.
    pub fn add(&mut self, row: &Restored) {
        let same = |r: &Restore| r.id == row.restore_id;
        let restore = self.restores.iter().rposition(same).unwrap_or_else(|| {
            self.restores.push(Restore { id: row.restore_id.clone(), since_us: row.restored_at_us });
            self.restores.len() - 1
        });
        if let Some(of) = self.restores.get_mut(restore) {
            of.since_us = of.since_us.min(row.restored_at_us);
        }
        let by = (row.attempt, u32::try_from(restore).unwrap_or(NONE));
        of_topic(&mut self.archived, &row.id.topic, |of| {
            add(of.entry((row.id.generation, row.id.partition)).or_default(), by, row.id.offset);
        });
        of_topic(&mut self.sent, &row.target_topic, |of| {
            add(of.entry(row.target_partition).or_default(), by, row.target_offset);
        });
        // A record's own position is no failure that another one can have: a topic that was made anew has it again.
        let own = dialect::position_key(&row.id.topic, row.id.partition, row.id.offset);
        if row.failure_key != own {
            self.add_failure(half(&row.failure_key), by);
        }
    }

    fn add_failure(&mut self, key: u64, (attempt, restore): (u32, u32)) {
        let before = self.failures.get(&key).copied().unwrap_or(NONE);
        // Lists come one restore after the other: a failure with a million repeats is one row of each.
        if let Some(row) = self.rows.get_mut(before as usize).filter(|row| row.restore == restore) {
            row.attempt = row.attempt.max(attempt);
        } else if let Ok(newest) = u32::try_from(self.rows.len()) {
            self.failures.insert(key, newest);
            self.rows.push(Row { attempt, restore, before });
        }
    }

    /// Whether what was archived then can have come back from a restore: not if it was there before.
    fn is_later(&self, restore: u32, archived_at_us: i64) -> bool {
        self.restores.get(restore as usize).is_some_and(|restore| restore.since_us < archived_at_us)
    }

    fn at(&self, of: Option<&ByAttempt>, offset: i64, archived_at_us: Option<i64>) -> Option<(u32, u32)> {
        let (of, offset) = (of?, u64::try_from(offset).ok()?);
        let known = of.iter().rev().filter(|(_, offsets)| offsets.contains(offset)).map(|(by, _)| *by);
        known.into_iter().find(|by| archived_at_us.is_none_or(|at| self.is_later(by.1, at)))
    }

    fn of_failure(&self, key: &[u8; 16], archived_at_us: i64) -> Option<(u32, u32)> {
        let (mut next, mut most) = (*self.failures.get(&half(key))?, None);
        while let Some(row) = self.rows.get(next as usize) {
            if self.is_later(row.restore, archived_at_us) {
                most = most.max(Some((row.attempt, row.restore)));
            }
            next = row.before;
        }
        most
    }

    /// How often the failure of a record was restored before. `decoded`: by the dialects of now.
    pub fn of(&self, record: &ArchivedRecord<'_>, decoded: &Decoded<'_>) -> Before<'_> {
        let told = u32::try_from(decoded.prior_restores).unwrap_or(0).min(COUNTED);
        let (id, at) = (&record.id, record.archived_at_us);
        let came_from = || {
            let (topic, partition) = (decoded.origin_topic.as_deref()?, decoded.origin_partition?);
            self.at(self.sent.get(topic)?.get(&partition), decoded.origin_offset?, Some(at))
        };
        let listed = (!self.restores.is_empty()).then(|| {
            let own = self.archived.get(&id.topic).and_then(|of| of.get(&(id.generation, id.partition)));
            let ways = [
                self.at(own, id.offset, None),
                self.of_failure(&record.decoded.failure_key, at),
                self.of_failure(&decoded.failure_key, at),
                came_from(),
            ];
            ways.into_iter().flatten().max()
        });
        match listed.flatten() {
            Some((number, restore)) if number >= told => {
                let restore = self.restores.get(restore as usize);
                Before { number, restore_id: restore.map(|restore| restore.id.as_str()) }
            }
            _ => Before { number: told, restore_id: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RecordId;

    /// Each look at a failure went through all rows of it: a plan of as many repeats never came to its end.
    #[test]
    fn a_failure_with_many_repeats_is_one_row_of_each_restore() {
        let mut attempts = Attempts::default();
        for (restore, attempt) in [("r-1", 1), ("r-2", 2)] {
            for offset in 0..1000 {
                attempts.add(&Restored {
                    id: RecordId { topic: "failures".into(), generation: 1, partition: 0, offset },
                    target_topic: "orders".into(),
                    target_partition: 0,
                    target_offset: offset,
                    restore_id: restore.into(),
                    restored_at_us: 5,
                    failure_key: [7; 16],
                    attempt,
                    correction: None,
                });
            }
        }
        assert_eq!(attempts.rows.len(), 2);
        assert_eq!(attempts.of_failure(&[7; 16], 6), Some((2, 1)));
        assert_eq!(attempts.of_failure(&[7; 16], 5), None, "archived before both");
    }
}
