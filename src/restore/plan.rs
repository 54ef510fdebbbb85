//! What a restore is to do, as it is stored. Pure.
//!
//! Owns [`PlanDoc`], fixed before the first record is sent, and [`DraftDoc`], what a dry run keeps of one. What becomes
//! of each record is [`super::rules`]. Invariant: a plan names each record that it selects.

use super::headers::HeaderOptions;
use super::why::Why;
use super::window::Window;
use crate::error::{Error, Result};
use crate::filter::{FilterDoc, Positions};
use crate::ledger::{decode_offsets, encode_offsets, sha256_hex};
use roaring::RoaringTreemap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// How records get into Kafka.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// Records and progress in one transaction: each exactly once.
    Transactional,
    /// Acknowledged by all replicas, progress in the bucket after each batch: each at least once.
    Plain,
}

impl Delivery {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Transactional => "transactional",
            Self::Plain => "plain",
        }
    }
}

/// Which timestamp a restored record gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timestamps {
    /// The archived record's.
    #[default]
    Keep,
    /// The time of the restore.
    Now,
}

/// Which partition of its target a record goes to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Partitioning {
    /// The one that it came from, if that is known and the target has it; else by its key.
    #[default]
    Origin,
    /// By its key; without one, to any.
    Key,
    /// To this one.
    Number(i32),
}

/// What the outcome depends on besides the filter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleOptions {
    /// Target topic of all records; their origin if null.
    pub to: Option<String>,
    pub partition: Partitioning,
    pub timestamps: Timestamps,
    pub headers: HeaderOptions,
    pub include_restored: bool,
    pub include_discarded: bool,
    pub allow_dead_letter_target: bool,
    /// A failure that was restored so often is not restored again. None: as often as one likes.
    pub max_attempts: Option<u32>,
    /// SHA-256 of the corrected values, see [`super::values`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values_sha256: Option<String>,
}

/// One object that a restore reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanObject {
    pub key: String,
    pub sha256: String,
}

fn write_offsets<S: Serializer>(offsets: &RoaringTreemap, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    encode_offsets(offsets).map_err(serde::ser::Error::custom)?.serialize(serializer)
}

fn read_offsets<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<RoaringTreemap, D::Error> {
    decode_offsets(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// One cut that a restore reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanCut {
    pub manifest: String,
    pub topic: String,
    pub partition: i32,
    pub generation: u32,
    pub from: i64,
    /// Selected records.
    pub selected: u64,
    /// Their offsets: a roaring treemap in its portable format, base64.
    #[serde(serialize_with = "write_offsets", deserialize_with = "read_offsets")]
    pub offsets: RoaringTreemap,
    pub objects: Vec<PlanObject>,
    /// Files of originals that take the place of dead letters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refetched: Vec<PlanObject>,
}

impl PlanCut {
    /// Topic, partition, generation, first offset.
    pub fn place(&self) -> (String, i32, u32, i64) {
        (self.topic.clone(), self.partition, self.generation, self.from)
    }
}

/// `restores/<id>/plan.json`: fixed before the first record is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanDoc {
    pub version: u32,
    pub restore_id: String,
    pub archive_id: String,
    /// SHA-256 over the command: the same command finds its plan.
    pub digest: String,
    /// RFC 3339.
    pub created_at: String,
    /// `user@host`, as seen.
    pub created_by: String,
    /// Who decided, as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub program_version: String,
    pub dialects_digest: String,
    /// The dry run whose plan this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft: Option<String>,
    /// What was asked for. What is sent is in `cuts`.
    pub filter: FilterDoc,
    pub options: RuleOptions,
    pub delivery: Delivery,
    /// Consumer group that keeps the progress, and transactional id. Its end is random: a copy of the archive has the
    /// same restore ids.
    pub group: String,
    /// Why this delivery.
    pub delivery_reason: String,
    /// Topics that records go to, and how many partitions each had.
    pub targets: BTreeMap<String, i32>,
    /// Which timestamps they take and keep, where they tell it: by the time of the plan, so that each run of it decides
    /// the same.
    #[serde(default)]
    pub windows: BTreeMap<String, Window>,
    pub selected: u64,
    pub to_restore: u64,
    pub skipped: BTreeMap<Why, u64>,
    /// In order; a record's number in them, from 0, is what progress counts.
    pub cuts: Vec<PlanCut>,
}

impl PlanDoc {
    /// The topic on whose partition 0 progress is kept, in the transaction that has the records.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] for a plan without targets, which is never written.
    pub fn progress_topic(&self) -> Result<&str> {
        let first = self.targets.keys().next();
        first.map(String::as_str).ok_or_else(|| Error::corrupt(format!("restore {} has no target", self.restore_id)))
    }

    /// Whether it selects one of the records of these cuts.
    pub fn overlaps(&self, cuts: &[PlanCut]) -> bool {
        let own: BTreeMap<&str, &RoaringTreemap> = self.cuts.iter().map(|c| (&c.manifest[..], &c.offsets)).collect();
        cuts.iter().any(|c| own.get(&c.manifest[..]).is_some_and(|own| !own.is_disjoint(&c.offsets)))
    }
}

/// The records that cuts name.
pub fn positions<'a>(cuts: impl IntoIterator<Item = &'a PlanCut>) -> Positions {
    let mut positions = Positions::new();
    for cut in cuts {
        *positions.entry(cut.topic.clone()).or_default().entry((cut.generation, cut.partition)).or_default() |=
            &cut.offsets;
    }
    positions
}

/// `restores/draft-<id>.json`: what a dry run has shown, so that exactly that can be carried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DraftDoc {
    pub version: u32,
    pub archive_id: String,
    /// RFC 3339.
    pub created_at: String,
    /// `user@host`.
    pub created_by: String,
    pub program_version: String,
    #[serde(flatten)]
    pub content: DraftContent,
}

/// What of a draft makes its id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DraftContent {
    pub dialects_digest: String,
    pub filter: FilterDoc,
    pub options: RuleOptions,
    pub selected: u64,
    pub to_restore: u64,
    pub skipped: BTreeMap<Why, u64>,
    pub cuts: Vec<PlanCut>,
}

/// Hex digits of an id that is made of a hash.
pub const ID_DIGITS: usize = 12;

impl DraftContent {
    /// The same content has the same id.
    pub fn id(&self, archive_id: &str) -> Result<String> {
        let bytes = serde_json::to_vec(&(archive_id, self))
            .map_err(|e| Error::internal(format!("cannot write a draft's digest: {e}")))?;
        let mut id = sha256_hex(&bytes);
        id.truncate(ID_DIGITS);
        Ok(id)
    }
}

/// Identifies a command: the same one again resumes its unfinished plan. `since` and `until` are as typed, so that
/// `2h` is the same command an hour later.
pub fn digest(
    archive_id: &str,
    filter: &FilterDoc,
    since: Option<&str>,
    until: Option<&str>,
    options: &RuleOptions,
    delivery: &str,
) -> Result<String> {
    let filter = FilterDoc { since_ms: None, until_ms: None, ..filter.clone() };
    let bytes = serde_json::to_vec(&(archive_id, filter, since, until, options, delivery))
        .map_err(|e| Error::internal(format!("cannot write a plan's digest: {e}")))?;
    Ok(sha256_hex(&bytes))
}

/// The same for the draft of a dry run.
pub fn draft_digest(archive_id: &str, draft: &str, delivery: &str) -> Result<String> {
    let bytes = serde_json::to_vec(&(archive_id, "draft", draft, delivery))
        .map_err(|e| Error::internal(format!("cannot write a plan's digest: {e}")))?;
    Ok(sha256_hex(&bytes))
}

/// A cut of `dlq/0` from the first of these offsets on.
#[cfg(test)]
pub fn sample_cut(manifest: &str, offsets: std::ops::Range<u64>) -> PlanCut {
    PlanCut {
        manifest: manifest.into(),
        topic: "dlq".into(),
        partition: 0,
        generation: 1,
        from: 0,
        selected: offsets.end - offsets.start,
        offsets: offsets.collect(),
        objects: vec![PlanObject { key: "data/x".into(), sha256: String::new() }],
        refetched: Vec::new(),
    }
}

/// A plan of these cuts, without targets.
#[cfg(test)]
pub fn sample(id: &str, cuts: Vec<PlanCut>) -> PlanDoc {
    let selected = cuts.iter().map(|cut| cut.selected).sum();
    PlanDoc {
        version: 1,
        restore_id: id.into(),
        archive_id: "a".into(),
        digest: String::new(),
        created_at: "2026-10-08T00:00:00Z".into(),
        created_by: "ann@host".into(),
        by: None,
        reason: None,
        program_version: String::new(),
        dialects_digest: String::new(),
        draft: None,
        filter: FilterDoc::default(),
        options: RuleOptions::default(),
        delivery: Delivery::Plain,
        group: format!("group-{id}"),
        delivery_reason: String::new(),
        targets: BTreeMap::new(),
        windows: BTreeMap::new(),
        selected,
        to_restore: selected,
        skipped: BTreeMap::new(),
        cuts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{from_bytes, to_bytes};

    #[test]
    fn restores_overlap_by_the_records_they_select() {
        let plan = sample("r", vec![sample_cut("a", 0..4), sample_cut("b", 9..12)]);
        assert!(plan.overlaps(&[sample_cut("c", 0..4), sample_cut("b", 11..20)]));
        assert!(!plan.overlaps(&[sample_cut("b", 12..20)]), "other records of the same cut");
        assert!(!plan.overlaps(&[sample_cut("c", 0..4)]), "the same offsets of another cut");
    }

    #[test]
    fn a_plan_comes_back_with_its_offsets() {
        let plan = sample("r", vec![sample_cut("a", 5..100_000)]);
        assert_eq!(from_bytes::<PlanDoc>("plan.json", &to_bytes(&plan).unwrap()).unwrap(), plan);
    }

    #[test]
    fn a_draft_has_the_id_of_its_content() {
        let content = |selected| DraftContent {
            dialects_digest: "d".into(),
            filter: FilterDoc::default(),
            options: RuleOptions::default(),
            selected,
            to_restore: 4,
            skipped: BTreeMap::from([(Why::Expired, 1)]),
            cuts: vec![sample_cut("a", 0..4)],
        };
        let id = content(5).id("archive").unwrap();
        assert_eq!((id.len(), &id), (ID_DIGITS, &content(5).id("archive").unwrap()));
        assert_ne!(id, content(6).id("archive").unwrap());
        assert_ne!(id, content(5).id("another").unwrap());
        let doc = DraftDoc {
            version: 1,
            archive_id: "archive".into(),
            created_at: String::new(),
            created_by: String::new(),
            program_version: String::new(),
            content: content(5),
        };
        let back: DraftDoc = from_bytes("draft", &to_bytes(&doc).unwrap()).unwrap();
        assert_eq!(back.content.id("archive").unwrap(), id);
    }
}
