//! Which records are discarded, after all dispositions. Pure.
//!
//! Owns what dispositions come to, and what a further one would change. Invariant: of several about one record the
//! newest, by its number, holds.

use super::documents::{Action, End, Offsets, Place, Stored};
use crate::format::ArchivedRecord;
use crate::record::RecordId;
use roaring::RoaringTreemap;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What a disposition says besides the records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub number: u32,
    pub at_us: i64,
    /// As given, else as seen.
    pub by: String,
    pub reason: String,
}

#[derive(Debug, Default)]
struct Discarded {
    standing: RoaringTreemap,
    /// Of each disposition, in their order.
    by: Vec<(usize, RoaringTreemap)>,
}

/// What the dispositions of an archive come to.
#[derive(Debug, Default)]
pub struct Standing {
    partitions: HashMap<Place, Discarded>,
    said: Vec<Said>,
    end: End,
}

/// The same for one topic partition in one generation.
#[derive(Debug, Clone, Copy, Default)]
pub struct PartitionStanding<'a>(Option<(&'a Discarded, &'a [Said])>);

impl Standing {
    /// Adds the next one.
    pub fn add(&mut self, stored: Stored) {
        let Stored { doc, end, at_us, offsets } = stored;
        for (place, offsets) in offsets {
            let of = self.partitions.entry(place).or_default();
            match doc.action {
                Action::Discard => of.standing |= &offsets,
                Action::Undo => of.standing -= &offsets,
            }
            of.by.push((self.said.len(), offsets));
        }
        let by = doc.by.unwrap_or_else(|| format!("{}@{}", doc.user, doc.host));
        self.said.push(Said { number: doc.number, at_us, by, reason: doc.reason });
        self.end = end;
    }

    pub fn end(&self) -> &End {
        &self.end
    }

    /// Whether any record is discarded.
    pub fn any(&self) -> bool {
        self.partitions.values().any(|of| !of.standing.is_empty())
    }

    /// How many are.
    pub fn records(&self) -> u64 {
        self.partitions.values().map(|of| of.standing.len()).sum()
    }

    pub fn of(&self, topic: &str, generation: u32, partition: i32) -> PartitionStanding<'_> {
        let of = self.partitions.get(&(topic.to_owned(), generation, partition));
        PartitionStanding(of.map(|of| (of, &self.said[..])))
    }
}

impl<'a> PartitionStanding<'a> {
    /// How many of its records are discarded.
    pub fn records(&self) -> u64 {
        self.0.map_or(0, |(of, _)| of.standing.len())
    }

    /// The discard of this record that holds.
    pub fn of(&self, offset: i64) -> Option<&'a Said> {
        let ((of, said), offset) = (self.0?, u64::try_from(offset).ok()?);
        if !of.standing.contains(offset) {
            return None;
        }
        let (number, _) = of.by.iter().rev().find(|(_, offsets)| offsets.contains(offset))?;
        said.get(*number)
    }
}

/// Records are counted by these.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    pub topic: String,
    pub pipeline: String,
    pub error_class: Option<String>,
}

/// Different groups that are kept apart: an error class can hold anything.
const MAX_GROUPS: usize = 5000;

/// Records that a filter selects.
#[derive(Debug, Default)]
pub struct Selection {
    pub records: u64,
    groups: BTreeMap<Group, Offsets>,
    /// Of them, those that a finished restore lists.
    restored: Offsets,
    /// Record ids that were asked for, and not selected.
    pub not_found: BTreeSet<RecordId>,
}

/// What a disposition of a [`Selection`] would change.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub records: u64,
    pub groups: BTreeMap<Group, u64>,
    pub offsets: Offsets,
    /// Of the records: restored before.
    pub restored: u64,
}

impl Selection {
    /// `asked`: the record ids that were named.
    pub fn new(asked: Option<&BTreeSet<RecordId>>) -> Self {
        Self { not_found: asked.cloned().unwrap_or_default(), ..Self::default() }
    }

    pub fn add(&mut self, record: &ArchivedRecord<'_>, restored: bool) {
        let id = &record.id;
        self.not_found.remove(id);
        let Ok(offset) = u64::try_from(id.offset) else { return };
        self.records += 1;
        let mut group = Group {
            topic: id.topic.clone(),
            pipeline: record.pipeline.to_owned(),
            error_class: record.decoded.error_class.as_deref().map(str::to_owned),
        };
        if self.groups.len() >= MAX_GROUPS && !self.groups.contains_key(&group) {
            group = Group { pipeline: "(others)".into(), error_class: Some("(others)".into()), ..group };
        }
        let place = || (id.topic.clone(), id.generation, id.partition);
        self.groups.entry(group).or_default().entry(place()).or_default().insert(offset);
        if restored {
            self.restored.entry(place()).or_default().insert(offset);
        }
    }

    /// What `action` would change: a discard what is not discarded, an undo what is.
    pub fn change(&self, action: Action, standing: &Standing) -> Change {
        let mut change = Change::default();
        for (group, of_group) in &self.groups {
            for (place, selected) in of_group {
                let discarded = standing.partitions.get(place).map(|of| &of.standing);
                let changed = match (action, discarded) {
                    (Action::Discard, None) => selected.clone(),
                    (Action::Discard, Some(discarded)) => selected - discarded,
                    (Action::Undo, None) => RoaringTreemap::new(),
                    (Action::Undo, Some(discarded)) => selected & discarded,
                };
                if changed.is_empty() {
                    continue;
                }
                change.records += changed.len();
                *change.groups.entry(group.clone()).or_default() += changed.len();
                let restored = self.restored.get(place);
                change.restored += restored.map_or(0, |restored| restored.intersection_len(&changed));
                *change.offsets.entry(place.clone()).or_default() |= changed;
            }
        }
        change
    }
}

#[cfg(test)]
mod tests;
