//! What a verification finds: damage, notes, totals. Pure.
//!
//! Owns their words, and what to do about each kind of damage. Invariant: one line of damage names one place, what was
//! expected there and what was found.

use serde::Serialize;
use std::fmt;

/// Kinds of damage. Their names are stable: programs read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    ArchiveMissing,
    ArchiveDamaged,
    GenesisMissing,
    GenesisDamaged,
    ManifestMissing,
    ManifestDamaged,
    IntentMissing,
    IntentDamaged,
    /// A manifest or genesis is not the one that its successor hashed.
    ChainBroken,
    CutsOverlap,
    /// Intent and manifest of one cut say different things.
    CutDisagrees,
    CheckpointDamaged,
    UnknownVersion,
    ObjectMissing,
    ObjectSize,
    ObjectSha256,
    ObjectUnreadable,
    /// Its rows are not those that intent and manifest name.
    ObjectRows,
    /// A record in it is not the one that the intent names.
    ObjectRecords,
    OffsetTwice,
    /// A list of originals that were read again.
    RefetchListDamaged,
    DispositionMissing,
    /// Or is of records that are not archived.
    DispositionDamaged,
    /// What SQL engines read of a disposition is not what it says.
    DispositionRanges,
    /// A document or list of a restore is gone.
    RestoreMissing,
    /// It is not the one that its hash is of.
    RestoreDamaged,
    /// Under `data/`, and named by no manifest and no intent.
    Orphan,
    ReceiptArchive,
    ReceiptPartition,
    ReceiptCutOff,
    ReceiptChanged,
    KafkaMissing,
    KafkaDiffers,
}

impl What {
    /// As in documents.
    pub fn name(self) -> String {
        serde_json::to_value(self).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
    }

    /// What the operator does next.
    pub fn next(self) -> &'static str {
        match self {
            Self::ArchiveMissing | Self::ArchiveDamaged | Self::GenesisMissing | Self::GenesisDamaged => {
                "restore it from an older version or a copy of the bucket; nothing is archived until then"
            }
            Self::ManifestMissing => {
                "restore it from an older version or a copy of the bucket, and see what deletes objects there"
            }
            Self::IntentMissing => "restore it from an older version or a copy of the bucket",
            Self::ManifestDamaged | Self::IntentDamaged | Self::CheckpointDamaged => {
                "compare it with an older version or a copy of the bucket, restore that, and see who wrote"
            }
            Self::ChainBroken => {
                "this object or the one that names its hash was changed: compare both with an older version or a copy of \
                 the bucket"
            }
            Self::CutsOverlap | Self::OffsetTwice => {
                "find out which of the two is genuine in an older version or a copy of the bucket; readers of data/ see \
                 rows twice until then"
            }
            Self::CutDisagrees => {
                "intent or manifest was changed: compare both with an older version or a copy of the bucket"
            }
            Self::RefetchListDamaged => {
                "restore it from an older version or a copy of the bucket; or remove it, if its files are there: the next \
                 `dlq-archiver refetch` lists them again"
            }
            Self::DispositionMissing | Self::DispositionDamaged => {
                "restore it from an older version or a copy of the bucket: `restore` and `list` stop until then, as what was \
                 discarded is not known"
            }
            Self::DispositionRanges => {
                "it or the document beside it was changed: compare both with an older version or a copy of the bucket. If the \
                 document is genuine, remove this one: the next `dlq-archiver discard` writes it anew"
            }
            Self::RestoreMissing | Self::RestoreDamaged => {
                "restore it from an older version or a copy of the bucket: what was restored, and by whom, is not known for \
                 certain until then"
            }
            Self::UnknownVersion => "verify with the newer program that wrote it",
            Self::ObjectMissing => {
                "restore it from an older version or a copy of the bucket; or archive the topic to another address \
                 while Kafka still has these offsets"
            }
            Self::ObjectSize | Self::ObjectSha256 | Self::ObjectUnreadable => {
                "restore it from an older version or a copy of the bucket: readers get wrong rows or errors until then"
            }
            Self::ObjectRows | Self::ObjectRecords => {
                "object and manifest, or the intent, were replaced: compare all three with an older version or a copy of \
                 the bucket"
            }
            Self::Orphan => {
                "something else wrote it, or its ledger was cut off: readers of data/ see its rows. Look into it, then \
                 restore the ledger or remove the object"
            }
            Self::ReceiptArchive => "check --archive and --expect: they are of different archives",
            Self::ReceiptPartition | Self::ReceiptCutOff => {
                "objects were removed since the receipt: restore them from an older version or a copy of the bucket"
            }
            Self::ReceiptChanged => {
                "it was changed since the receipt: restore it from an older version or a copy of the bucket"
            }
            Self::KafkaMissing => {
                "keep these offsets before retention takes them: archive the topic to another address; then report this"
            }
            Self::KafkaDiffers => {
                "the topic was made anew or truncated, or intent and object were replaced: compare with an older version \
                 or a copy of the bucket"
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Damage {
    /// Key of an object, or `topic/partition from..to` in Kafka.
    pub at: String,
    pub kind: What,
    pub expected: String,
    pub found: String,
    pub next: &'static str,
}

impl Damage {
    pub fn new(kind: What, at: impl Into<String>, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self { at: at.into(), kind, expected: expected.into(), found: found.into(), next: kind.next() }
    }
}

/// What is worth knowing and no damage.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Note {
    pub at: String,
    pub note: String,
}

/// What the manifests add up to, and what was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Totals {
    pub partitions: u64,
    pub cuts: u64,
    pub open_cuts: u64,
    pub rows: u64,
    pub objects: u64,
    /// Of the data objects, as stored.
    pub bytes: u64,
    /// Offsets in recorded gaps: `lost` and `expired`.
    pub lost_offsets: u64,
    /// Offsets in recorded gaps of which nobody knows whether they were records.
    pub unknown_offsets: u64,
    /// Offsets in recorded gaps that were compacted away.
    pub compacted_offsets: u64,
    /// Originals that were read again, and are kept beside the data.
    pub originals: u64,
    pub dispositions: u64,
    /// Records that are discarded.
    pub discarded: u64,
    /// Plans of restores.
    pub restores: u64,
    /// Records that ended restores have in their lists.
    pub restored: u64,
    /// Records that were read from Kafka and compared.
    pub kafka_records: u64,
    /// Offsets that Kafka has behind the archive's ends; null where Kafka was not asked.
    pub not_archived_offsets: Option<u64>,
    pub damage: u64,
}

/// Some offsets, as ranges; beyond the first few only counted.
#[derive(Debug, Clone, Default)]
pub(super) struct Offsets {
    ranges: Vec<(i64, i64)>,
    count: u64,
}

const RANGES: usize = 8;

impl Offsets {
    pub(super) fn add(&mut self, offset: i64) {
        self.count += 1;
        let (end, room) = (offset.saturating_add(1), self.ranges.len() < RANGES);
        match self.ranges.last_mut() {
            Some((_, to)) if *to == offset => *to = end,
            _ if room => self.ranges.push((offset, end)),
            _ => {}
        }
    }
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl fmt::Display for Offsets {
    /// `2 (5..6, 9..10)`; ends are exclusive.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        let ranges: Vec<String> = self.ranges.iter().map(|(from, to)| format!("{from}..{to}")).collect();
        let shown: i128 = self.ranges.iter().map(|(from, to)| i128::from(*to) - i128::from(*from)).sum();
        let more = if shown < i128::from(self.count) { ", ..." } else { "" };
        write!(f, "{} ({}{more})", self.count, ranges.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_ranges_and_few() {
        let mut offsets = Offsets::default();
        [5, 6, 7, 9].into_iter().for_each(|o| offsets.add(o));
        assert_eq!(offsets.to_string(), "4 (5..8, 9..10)");
        (20..60).step_by(2).for_each(|o| offsets.add(o));
        assert!(offsets.to_string().ends_with("30..31, ...)"), "{offsets}");
    }

    #[test]
    fn names_are_those_of_documents() {
        assert_eq!(What::ObjectSha256.name(), "object_sha256");
        assert_eq!(What::KafkaMissing.name(), "kafka_missing");
    }
}
