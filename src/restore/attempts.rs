//! How often each failure was restored before, over all restores and all generations of dead letters. Pure.
//!
//! A dead letter is the return of a record that was restored if its restore-count header says so; if it came from a
//! position that a restore's list names; or if it has the failure key of one in a list. Each row of a list has its
//! number, so along a chain of returns they add up.
//!
//! What was archived before a restore began is no return from it, whatever it looks like.
//!
//! Owns what is kept of the lists for that: some bytes a row. Invariant: of several ways to know, the highest number holds.

use crate::dialect;
use crate::format::ArchivedRecord;
use crate::format::restored::Restored;
use crate::record::Decoded;
use roaring::RoaringTreemap;
use std::collections::{BTreeMap, HashMap};

/// Offsets, by the number of their attempt and the restore.
type ByAttempt = BTreeMap<(u32, u32), RoaringTreemap>;

/// A row of a failure, in a list of all of it.
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
    /// Where records were: topic, generation, partition.
    archived: HashMap<(String, u32, i32), ByAttempt>,
    /// Where they went: topic, partition.
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

/// Headers may say anything.
const MOST: u32 = 999;

fn half(key: &[u8; 16]) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| key[i]))
}

fn add(to: &mut ByAttempt, by: (u32, u32), offset: i64) {
    if let Ok(offset) = u64::try_from(offset) {
        to.entry(by).or_default().insert(offset);
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
        let place = (row.id.topic.clone(), row.id.generation, row.id.partition);
        add(self.archived.entry(place).or_default(), by, row.id.offset);
        if !self.sent.contains_key(&row.target_topic) {
            self.sent.insert(row.target_topic.clone(), HashMap::new());
        }
        if let Some(of_topic) = self.sent.get_mut(&row.target_topic) {
            add(of_topic.entry(row.target_partition).or_default(), by, row.target_offset);
        }
        // A record's own position is no failure that another one can have: a topic that was made anew has it again.
        let own = dialect::position_key(&row.id.topic, row.id.partition, row.id.offset);
        if row.failure_key != own
            && let Ok(newest) = u32::try_from(self.rows.len())
        {
            let before = self.failures.insert(half(&row.failure_key), newest).unwrap_or(NONE);
            self.rows.push(Row { attempt: by.0, restore: by.1, before });
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
        let told = u32::try_from(decoded.prior_restores).unwrap_or(0).min(MOST);
        let (id, at) = (&record.id, record.archived_at_us);
        let came_from = || {
            let (topic, partition) = (decoded.origin_topic.as_deref()?, decoded.origin_partition?);
            self.at(self.sent.get(topic)?.get(&partition), decoded.origin_offset?, Some(at))
        };
        let listed = (!self.restores.is_empty()).then(|| {
            let own = self.archived.get(&(id.topic.clone(), id.generation, id.partition));
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
