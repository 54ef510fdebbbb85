//! What earlier restores did with each record. Pure.

use crate::record::RecordId;
use roaring::RoaringTreemap;
use std::collections::HashMap;

#[derive(Debug, Default)]
struct Offsets {
    finished: RoaringTreemap,
    unfinished: RoaringTreemap,
}

/// Every record that an earlier restore lists.
#[derive(Debug, Default)]
pub struct Past {
    partitions: HashMap<(String, u32, i32), Offsets>,
}

/// The same for one topic partition in one generation.
#[derive(Debug, Clone, Copy, Default)]
pub struct PastPartition<'a>(Option<&'a Offsets>);

impl Past {
    /// `finished`: by the list of a finished restore; else by what an unfinished one wrote down so far, of which its
    /// last batch may not have become visible.
    pub fn add(&mut self, id: &RecordId, finished: bool) {
        let Ok(offset) = u64::try_from(id.offset) else { return };
        let offsets = self.partitions.entry((id.topic.clone(), id.generation, id.partition)).or_default();
        if finished {
            offsets.finished.insert(offset)
        } else {
            offsets.unfinished.insert(offset)
        };
    }

    pub fn of(&self, topic: &str, generation: u32, partition: i32) -> PastPartition<'_> {
        PastPartition(self.partitions.get(&(topic.to_owned(), generation, partition)))
    }
}

impl PastPartition<'_> {
    pub fn finished(&self, offset: i64) -> bool {
        self.0.is_some_and(|o| u64::try_from(offset).is_ok_and(|offset| o.finished.contains(offset)))
    }
    pub fn unfinished(&self, offset: i64) -> bool {
        self.0.is_some_and(|o| u64::try_from(offset).is_ok_and(|offset| o.unfinished.contains(offset)))
    }
}
