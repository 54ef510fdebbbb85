//! What earlier restores did with each record, and what people decided about it. Pure.

use crate::disposition::standing::{PartitionStanding, Said, Standing};
use crate::format::restored::Restored;
use roaring::RoaringTreemap;
use std::collections::{BTreeMap, HashMap};

/// Where a record went, and by which restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Went {
    pub target: String,
    pub restore_id: String,
    /// When the restore's first records there were acknowledged, microseconds since 1970.
    pub since_us: i64,
}

/// What became of an archived record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition<'a> {
    Open,
    Restored(&'a Went),
    /// Not to be restored.
    Discarded(&'a Said),
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

/// Every record that an earlier restore lists, and every one that is discarded.
#[derive(Debug, Default)]
pub struct Past {
    pub discards: Standing,
    partitions: HashMap<(String, u32, i32), Offsets>,
    went: Vec<Went>,
}

/// The same for one topic partition in one generation.
#[derive(Debug, Clone, Copy, Default)]
pub struct PastPartition<'a> {
    restored: Option<(&'a Offsets, &'a [Went])>,
    discards: PartitionStanding<'a>,
}

impl Past {
    /// Nothing was restored.
    pub fn of_discards(discards: Standing) -> Self {
        Self { discards, ..Self::default() }
    }

    /// `finished`: by the list of a finished restore; else by what an unfinished one wrote down so far, of which its
    /// last batch may not have become visible.
    pub fn add(&mut self, row: &Restored, finished: bool) {
        let Ok(offset) = u64::try_from(row.id.offset) else { return };
        let same = |w: &Went| w.target == row.target_topic && w.restore_id == row.restore_id;
        // Lists have long stretches of one target.
        let went = self.went.iter().rposition(same).unwrap_or_else(|| {
            self.went.push(Went {
                target: row.target_topic.clone(),
                restore_id: row.restore_id.clone(),
                since_us: row.restored_at_us,
            });
            self.went.len() - 1
        });
        if let Some(went) = self.went.get_mut(went) {
            went.since_us = went.since_us.min(row.restored_at_us);
        }
        let partition = (row.id.topic.clone(), row.id.generation, row.id.partition);
        let offsets = self.partitions.entry(partition).or_default();
        let listed = if finished { &mut offsets.finished } else { &mut offsets.unfinished };
        listed.all.insert(offset);
        listed.by.entry(went).or_default().insert(offset);
    }

    pub fn of(&self, topic: &str, generation: u32, partition: i32) -> PastPartition<'_> {
        let offsets = self.partitions.get(&(topic.to_owned(), generation, partition));
        PastPartition {
            restored: offsets.map(|o| (o, &self.went[..])),
            discards: self.discards.of(topic, generation, partition),
        }
    }
}

impl<'a> PastPartition<'a> {
    /// By the newest of restores and dispositions. A restore is as old as its first batch: who discards while it runs
    /// has the last word.
    pub fn disposition(&self, offset: i64) -> Disposition<'a> {
        match (self.finished(offset), self.discards.of(offset)) {
            (Some(went), Some(said)) if went.since_us > said.at_us => Disposition::Restored(went),
            (_, Some(said)) => Disposition::Discarded(said),
            (Some(went), None) => Disposition::Restored(went),
            (None, None) => Disposition::Open,
        }
    }
    /// Where a finished restore put it; of several, the newest.
    pub fn finished(&self, offset: i64) -> Option<&'a Went> {
        self.find(offset, |o| &o.finished)
    }
    /// Where an unfinished restore may have put it.
    pub fn unfinished(&self, offset: i64) -> Option<&'a Went> {
        self.find(offset, |o| &o.unfinished)
    }

    fn find(&self, offset: i64, of: impl Fn(&'a Offsets) -> &'a Listed) -> Option<&'a Went> {
        let ((offsets, went), offset) = (self.restored?, u64::try_from(offset).ok()?);
        let listed = of(offsets);
        if !listed.all.contains(offset) {
            return None;
        }
        let by = listed.by.iter().filter(|(_, offsets)| offsets.contains(offset));
        by.filter_map(|(number, _)| went.get(*number)).max_by_key(|went| went.since_us)
    }
}
