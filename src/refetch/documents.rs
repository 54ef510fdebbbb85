//! The lists of originals, as they are stored: `refetched/ledger/<topic>/<partition>/<from>.<number>.json`. Pure.
//!
//! Owns their form and what several of one cut come to. Invariant: what a list names is in the store, whole, under the
//! hash that it has; a file that was written and is in no list yet is found by its name, which is the next one.

use super::judge::Sighting;
use crate::error::Result;
use crate::format::refetched::State;
use crate::ledger::decode_offsets;
use roaring::RoaringTreemap;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// One list of one cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListDoc {
    pub version: u32,
    pub archive_id: String,
    pub topic: String,
    pub partition: i32,
    pub generation: u32,
    /// The cut's offsets; `to` is exclusive.
    pub from: i64,
    pub to: i64,
    /// From 1.
    pub number: u32,
    /// RFC 3339.
    pub written_at: String,
    pub program_version: String,
    /// Ids that source topics had.
    pub sources: Vec<Sighting>,
    pub objects: Vec<ObjectDoc>,
    /// Keys of data objects whose records each have a row by now, or need none.
    pub whole: Vec<String>,
}

/// One file of originals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectDoc {
    pub key: String,
    /// The data object whose records' originals these are.
    pub data_object: String,
    /// Bytes as stored.
    pub size: u64,
    pub rows: u64,
    /// Hex SHA-256 of the bytes as stored.
    pub sha256: String,
    /// Offsets of the dead letters: a roaring treemap in its portable format, base64.
    pub offsets: String,
    /// Those whose original is there, in the same form.
    pub refetched: String,
    /// Rows of each state.
    pub states: BTreeMap<State, u64>,
}

impl ObjectDoc {
    /// Rows that have an original.
    pub fn refetched_rows(&self) -> u64 {
        self.states.get(&State::Refetched).copied().unwrap_or(0)
    }
}

/// A file of originals, its offsets read.
#[derive(Debug, Clone)]
pub struct Sidecar {
    pub doc: ObjectDoc,
    pub offsets: RoaringTreemap,
    pub refetched: RoaringTreemap,
}

impl Sidecar {
    /// # Errors
    /// [`crate::Kind::Corrupt`] if its offsets are damaged.
    pub fn new(doc: ObjectDoc) -> Result<Self> {
        let (offsets, refetched) = (decode_offsets(&doc.offsets)?, decode_offsets(&doc.refetched)?);
        Ok(Self { doc, offsets, refetched })
    }
}

/// What is known of one cut's originals.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// In the order of their lists.
    pub sidecars: Vec<Sidecar>,
    pub whole: BTreeSet<String>,
    /// Ids that source topics had.
    pub sources: Vec<Sighting>,
    /// Of the lists.
    pub last_number: u32,
}

impl Known {
    /// # Errors
    /// [`crate::Kind::Corrupt`] if the list is damaged.
    pub fn add(&mut self, list: &ListDoc) -> Result<()> {
        self.last_number = self.last_number.max(list.number);
        self.whole.extend(list.whole.iter().cloned());
        self.sources.extend(list.sources.iter().cloned());
        for object in &list.objects {
            // Two processes may have listed it.
            if !self.sidecars.iter().any(|s| s.doc.key == object.key) {
                self.sidecars.push(Sidecar::new(object.clone())?);
            }
        }
        Ok(())
    }

    /// Files that the originals of one data object have.
    pub fn rounds(&self, data_object: &str) -> u32 {
        self.sidecars.iter().filter(|s| s.doc.data_object == data_object).count() as u32
    }

    /// Whether the record has a row, and whether its original is there.
    pub fn of(&self, offset: i64) -> Option<bool> {
        let offset = u64::try_from(offset).ok()?;
        let mut rows = self.sidecars.iter().filter(|s| s.offsets.contains(offset)).peekable();
        rows.peek()?;
        Some(rows.any(|s| s.refetched.contains(offset)))
    }

    /// Whether a record is to be looked for; `again`: also if it was, and was not there.
    pub fn is_open(&self, offset: i64, again: bool) -> bool {
        match self.of(offset) {
            None => true,
            Some(refetched) => again && !refetched,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::encode_offsets;

    fn object(key: &str, offsets: &[u64], refetched: &[u64]) -> ObjectDoc {
        let bitmap = |offsets: &[u64]| encode_offsets(&offsets.iter().copied().collect()).unwrap();
        ObjectDoc {
            key: key.into(),
            data_object: "data/x.parquet".into(),
            size: 1,
            rows: offsets.len() as u64,
            sha256: String::new(),
            offsets: bitmap(offsets),
            refetched: bitmap(refetched),
            states: BTreeMap::new(),
        }
    }

    #[test]
    fn an_original_that_was_gone_is_not_asked_for_again_unless_told_so() {
        let mut known = Known::default();
        let list = |number, objects| ListDoc {
            version: 1,
            archive_id: String::new(),
            topic: "t".into(),
            partition: 0,
            generation: 1,
            from: 0,
            to: 9,
            number,
            written_at: String::new(),
            program_version: String::new(),
            sources: Vec::new(),
            objects,
            whole: Vec::new(),
        };
        known.add(&list(1, vec![object("r1", &[1, 2, 3], &[1])])).unwrap();
        known.add(&list(2, vec![object("r1", &[1, 2, 3], &[1]), object("r2", &[2], &[2])])).unwrap();
        assert_eq!((known.last_number, known.rounds("data/x.parquet"), known.rounds("data/y.parquet")), (2, 2, 0));
        assert_eq!([0, 1, 2, 3].map(|o| known.of(o)), [None, Some(true), Some(true), Some(false)]);
        assert_eq!([0, 1, 2, 3].map(|o| known.is_open(o, false)), [true, false, false, false]);
        assert_eq!([0, 1, 2, 3].map(|o| known.is_open(o, true)), [true, false, false, true]);
    }
}
