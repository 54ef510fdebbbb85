//! What earlier restores did with each record. Pure.

use crate::format::restored::Restored;
use roaring::RoaringTreemap;
use std::collections::{BTreeMap, HashMap};

/// Where a record went, and by which restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Went {
    pub target: String,
    pub restore_id: String,
}

/// Offsets, by their number in [`Past::went`].
#[derive(Debug, Default)]
struct Listed {
    all: RoaringTreemap,
    by: BTreeMap<usize, RoaringTreemap>,
}

#[derive(Debug, Default)]
struct Offsets {
    finished: Listed,
    unfinished: Listed,
}

/// Every record that an earlier restore lists.
#[derive(Debug, Default)]
pub struct Past {
    partitions: HashMap<(String, u32, i32), Offsets>,
    went: Vec<Went>,
}

/// The same for one topic partition in one generation.
#[derive(Debug, Clone, Copy, Default)]
pub struct PastPartition<'a>(Option<(&'a Offsets, &'a [Went])>);

impl Past {
    /// `finished`: by the list of a finished restore; else by what an unfinished one wrote down so far, of which its
    /// last batch may not have become visible.
    pub fn add(&mut self, row: &Restored, finished: bool) {
        let Ok(offset) = u64::try_from(row.id.offset) else { return };
        let same = |w: &Went| w.target == row.target_topic && w.restore_id == row.restore_id;
        // Lists have long stretches of one target.
        let went = self.went.iter().rposition(same).unwrap_or_else(|| {
            self.went.push(Went { target: row.target_topic.clone(), restore_id: row.restore_id.clone() });
            self.went.len() - 1
        });
        let partition = (row.id.topic.clone(), row.id.generation, row.id.partition);
        let offsets = self.partitions.entry(partition).or_default();
        let listed = if finished { &mut offsets.finished } else { &mut offsets.unfinished };
        listed.all.insert(offset);
        listed.by.entry(went).or_default().insert(offset);
    }

    pub fn of(&self, topic: &str, generation: u32, partition: i32) -> PastPartition<'_> {
        let offsets = self.partitions.get(&(topic.to_owned(), generation, partition));
        PastPartition(offsets.map(|o| (o, &self.went[..])))
    }
}

impl<'a> PastPartition<'a> {
    /// Where a finished restore put it; of several, one.
    pub fn finished(&self, offset: i64) -> Option<&'a Went> {
        self.find(offset, |o| &o.finished)
    }
    /// Where an unfinished restore may have put it.
    pub fn unfinished(&self, offset: i64) -> Option<&'a Went> {
        self.find(offset, |o| &o.unfinished)
    }

    fn find(&self, offset: i64, of: impl Fn(&'a Offsets) -> &'a Listed) -> Option<&'a Went> {
        let ((offsets, went), offset) = (self.0?, u64::try_from(offset).ok()?);
        let listed = of(offsets);
        if !listed.all.contains(offset) {
            return None;
        }
        let (number, _) = listed.by.iter().rev().find(|(_, offsets)| offsets.contains(offset))?;
        went.get(*number)
    }
}
