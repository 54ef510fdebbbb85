//! Dispositions as they are stored: `dispositions/<number>.json`. Pure.
//!
//! Owns their form, and whether one is what it should be at its place in the chain. Invariant: a disposition names
//! offsets that it changes, each once, and the hash of the one before.

use crate::error::{Error, Result};
use crate::filter::FilterDoc;
use crate::layout;
use crate::ledger::{decode_offsets, encode_offsets, from_bytes, sha256_hex};
use chrono::DateTime;
use roaring::RoaringTreemap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Not to be restored.
    Discard,
    /// Takes a discard back.
    Undo,
}

/// One decision about records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DispositionDoc {
    pub version: u32,
    pub archive_id: String,
    /// From 1, one up for each of the archive.
    pub number: u32,
    /// Hex SHA-256 of the bytes of the disposition before; null in the first.
    pub previous_sha256: Option<String>,
    pub action: Action,
    /// RFC 3339.
    pub at: String,
    /// Who decided, as given.
    pub by: Option<String>,
    /// Who gave the command, as seen.
    pub user: String,
    pub host: String,
    /// Random, so that a process knows its own document.
    pub process: String,
    pub program_version: String,
    pub reason: String,
    pub filter: FilterDoc,
    /// Records that the filter selected.
    pub selected: u64,
    /// Those of them that are changed.
    pub records: u64,
    /// What they are. Sums up to `records`.
    pub counts: Vec<CountDoc>,
    /// Where they are. Sums up to `records`.
    pub partitions: Vec<PartitionDoc>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountDoc {
    pub topic: String,
    pub pipeline: String,
    pub error_class: Option<String>,
    pub records: u64,
}

/// Records of one topic partition, in one generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionDoc {
    pub topic: String,
    pub partition: i32,
    pub generation: u32,
    pub records: u64,
    /// A roaring treemap in its portable format, base64.
    pub offsets: String,
}

/// A topic partition in one generation: topic, generation, partition.
pub type Place = (String, u32, i32);

/// Offsets of each partition.
pub type Offsets = BTreeMap<Place, RoaringTreemap>;

pub fn partition_docs(offsets: &Offsets) -> Result<Vec<PartitionDoc>> {
    let doc = |((topic, generation, partition), offsets): (&Place, &RoaringTreemap)| {
        Ok(PartitionDoc {
            topic: topic.clone(),
            partition: *partition,
            generation: *generation,
            records: offsets.len(),
            offsets: encode_offsets(offsets)?,
        })
    };
    offsets.iter().map(doc).collect()
}

/// Where the chain of dispositions ends: what the next one has to follow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct End {
    /// 0 before the first.
    pub number: u32,
    /// Hex SHA-256 of the last one's bytes.
    pub sha256: Option<String>,
}

impl End {
    pub fn behind(number: u32, bytes: &[u8]) -> Self {
        Self { number, sha256: Some(sha256_hex(bytes)) }
    }
}

/// A disposition that was read, and found to be whole.
#[derive(Debug, Clone)]
pub struct Stored {
    pub doc: DispositionDoc,
    pub end: End,
    /// Microseconds since 1970.
    pub at_us: i64,
    pub offsets: Offsets,
}

impl Stored {
    /// Reads one that is to follow `before`.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] if it does not, or is damaged.
    pub fn read(key: &str, bytes: &[u8], before: &End, archive_id: &str) -> Result<Self> {
        let doc: DispositionDoc = from_bytes(key, bytes)?;
        let end = End::behind(doc.number, bytes);
        if doc.archive_id != archive_id {
            return Err(damaged(key, &format!("it is of archive {}", doc.archive_id)));
        }
        if before.number.checked_add(1) != Some(doc.number) || layout::disposition_key(doc.number) != key {
            return Err(damaged(key, &format!("it is number {}, not the one behind {}", doc.number, before.number)));
        }
        if doc.previous_sha256 != before.sha256 {
            return Err(damaged(key, "it does not have the SHA-256 of the one before: one of the two was changed"));
        }
        Self::of(doc, end).map_err(|e| damaged(key, e.message()))
    }

    /// Takes a document apart, wherever it stands in the chain.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] if what it says does not hold together.
    pub fn of(doc: DispositionDoc, end: End) -> Result<Self> {
        let at = DateTime::parse_from_rfc3339(&doc.at);
        let at_us = at.map_err(|e| Error::corrupt(format!("{:?} is no time: {e}", doc.at)))?.timestamp_micros();
        let mut offsets = Offsets::new();
        for p in &doc.partitions {
            let of = decode_offsets(&p.offsets)?;
            if of.len() != p.records || of.max().is_some_and(|last| i64::try_from(last).is_err()) {
                return Err(Error::corrupt(format!(
                    "{} offsets of {}/{}, not {}",
                    of.len(),
                    p.topic,
                    p.partition,
                    p.records
                )));
            }
            if offsets.insert((p.topic.clone(), p.generation, p.partition), of).is_some() {
                return Err(Error::corrupt(format!("{}/{} is in it twice", p.topic, p.partition)));
            }
        }
        let sum = |records: &mut dyn Iterator<Item = u64>| records.fold(0, u64::saturating_add);
        let of_counts = sum(&mut doc.counts.iter().map(|c| c.records));
        let of_partitions = sum(&mut doc.partitions.iter().map(|p| p.records));
        if [of_counts, of_partitions] != [doc.records; 2] || doc.records > doc.selected {
            return Err(Error::corrupt(format!(
                "its counts do not add up: {} records, {of_counts} by kind, {of_partitions} by partition",
                doc.records
            )));
        }
        Ok(Self { doc, end, at_us, offsets })
    }
}

fn damaged(key: &str, what: &str) -> Error {
    Error::corrupt(format!(
        "{key} is damaged: {what}. Restore it from an older version or a copy of the bucket: what was discarded is not known \
         until then"
    ))
}

/// A disposition of one partition, `failures/0`.
#[cfg(test)]
pub fn sample(before: &End, action: Action, at: &str, offsets: &[u64]) -> (DispositionDoc, Stored) {
    let offsets: RoaringTreemap = offsets.iter().copied().collect();
    let records = offsets.len();
    let count = CountDoc { topic: "failures".into(), pipeline: "p".into(), error_class: None, records };
    let doc = DispositionDoc {
        version: crate::ledger::LEDGER_VERSION,
        archive_id: "a".into(),
        number: before.number + 1,
        previous_sha256: before.sha256.clone(),
        action,
        at: at.into(),
        by: None,
        user: "u".into(),
        host: "h".into(),
        process: String::new(),
        program_version: String::new(),
        reason: format!("reason {}", before.number + 1),
        filter: FilterDoc::default(),
        selected: records,
        records,
        counts: vec![count],
        partitions: partition_docs(&[(("failures".into(), 1, 0), offsets)].into()).unwrap(),
    };
    let end = End::behind(doc.number, &crate::ledger::to_bytes(&doc).unwrap());
    (doc.clone(), Stored::of(doc, end).unwrap())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::to_bytes;

    const AT: &str = "2026-12-01T00:00:00.000000Z";

    #[test]
    fn a_disposition_is_refused_where_it_does_not_belong_or_does_not_add_up() {
        let (first, stored) = sample(&End::default(), Action::Discard, AT, &[1, 2, 1 << 40]);
        let (second, _) = sample(&stored.end, Action::Undo, AT, &[2]);
        let read = |doc: &DispositionDoc, key: &str, before: &End, id: &str| {
            Stored::read(key, &to_bytes(doc).unwrap(), before, id)
        };
        let (one, two) = (layout::disposition_key(1), layout::disposition_key(2));
        assert_eq!(read(&first, &one, &End::default(), "a").unwrap().offsets, stored.offsets);
        assert_eq!(read(&second, &two, &stored.end, "a").unwrap().at_us, 1_796_083_200_000_000);
        let changed = |change: &dyn Fn(&mut DispositionDoc)| {
            let mut doc = second.clone();
            change(&mut doc);
            doc
        };
        let double = |d: &mut DispositionDoc| d.partitions.push(d.partitions[0].clone());
        let negative = encode_offsets(&[u64::MAX].into_iter().collect()).unwrap();
        for (what, doc, key, before, id) in [
            ("another archive", second.clone(), &two, &stored.end, "b"),
            ("another number", second.clone(), &one, &stored.end, "a"),
            ("not the next", second.clone(), &two, &End::default(), "a"),
            ("another hash", second.clone(), &two, &End { number: 1, sha256: Some("0".into()) }, "a"),
            ("a version to come", changed(&|d| d.version = 2), &two, &stored.end, "a"),
            ("no time", changed(&|d| d.at = "noon".into()), &two, &stored.end, "a"),
            ("fewer than selected", changed(&|d| d.selected = 0), &two, &stored.end, "a"),
            ("counts", changed(&|d| d.counts[0].records = 9), &two, &stored.end, "a"),
            ("records", changed(&|d| d.records = 0), &two, &stored.end, "a"),
            ("offsets", changed(&|d| d.partitions[0].records = 9), &two, &stored.end, "a"),
            ("no bitmap", changed(&|d| d.partitions[0].offsets = "!".into()), &two, &stored.end, "a"),
            ("no offset", changed(&|d| d.partitions[0].offsets = negative.clone()), &two, &stored.end, "a"),
            ("a partition twice", changed(&double), &two, &stored.end, "a"),
        ] {
            let error = read(&doc, key, before, id).expect_err(what);
            assert_eq!(error.kind(), crate::Kind::Corrupt, "{what}");
        }
        assert!(Stored::read(&two, b"{", &stored.end, "a").is_err());
    }
}
