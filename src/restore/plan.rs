//! What a restore is to do: its plan as stored, and what becomes of each record. Pure: nothing here reads, sends or
//! asks the time.
//!
//! Owns [`PlanDoc`], the rules ([`Rules::decide`]) and the counts that a dry run shows. Invariants: a record is never
//! restored as something it was not, nor a second time without being asked, nor into a dead-letter topic.

use super::past::PastPartition;
use crate::dialect::{Dialects, restore_target};
use crate::error::{Error, Result};
use crate::filter::FilterDoc;
use crate::format::ArchivedRecord;
use crate::ledger::sha256_hex;
use crate::record::{Header, PayloadState, RawRecord};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Headers of this program's own, which a restore takes off.
pub const OWN_HEADERS: &[u8] = b"dlq-archiver-";

/// The one timestamp that cannot be sent: the Kafka library takes it for "now".
const UNSENDABLE_TIMESTAMP: i64 = 0;

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

/// What the outcome depends on besides the filter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleOptions {
    /// Target topic of all records; their origin if null.
    pub to: Option<String>,
    pub timestamps: Timestamps,
    pub include_restored: bool,
    pub allow_dead_letter_target: bool,
}

/// One object that a restore reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanObject {
    pub key: String,
    pub sha256: String,
}

/// One cut that a restore reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanCut {
    pub manifest: String,
    pub topic: String,
    pub partition: i32,
    pub generation: u32,
    pub from: i64,
    /// Matching records.
    pub selected: u64,
    pub objects: Vec<PlanObject>,
}

/// `restores/<id>/plan.json`: fixed before the first record is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanDoc {
    pub version: u32,
    pub restore_id: String,
    pub archive_id: String,
    /// SHA-256 over the command: the same command finds its plan.
    pub digest: String,
    /// RFC 3339.
    pub created_at: String,
    /// `user@host`.
    pub created_by: String,
    pub program_version: String,
    pub dialects_digest: String,
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

/// Why a record is not restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    AlreadyRestored,
    UnfinishedRestore,
    NotCopied,
    UnknownOrigin,
    DeadLetterTarget,
    MissingTarget,
    Timestamp,
}

impl Why {
    pub fn text(self) -> &'static str {
        match self {
            Self::AlreadyRestored => "already restored (--include-restored to send it again)",
            Self::UnfinishedRestore => "perhaps restored by an unfinished restore: finish that one first",
            Self::NotCopied => "headers only: key and value were never copied into the dead letter",
            Self::UnknownOrigin => "its headers do not tell where it came from (--to TOPIC)",
            Self::DeadLetterTarget => "target is a dead-letter topic (--allow-dead-letter-target)",
            Self::MissingTarget => "target topic does not exist",
            Self::Timestamp => "its timestamp is 0, which cannot be sent (--timestamps now)",
        }
    }
    /// Whether the record was asked for and is not where it should be, so that the command has to say so.
    pub fn is_failure(self) -> bool {
        self != Self::AlreadyRestored
    }
}

/// Where a record goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub topic: String,
    /// `None`: by key.
    pub partition: Option<i32>,
}

/// What becomes of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Send(Place),
    /// With the target topic, where that is the reason.
    Skip(Why, Option<String>),
}

/// What decides about a record.
pub struct Rules<'a> {
    pub options: &'a RuleOptions,
    pub dialects: &'a Dialects,
    /// Partitions of each topic that can be a target.
    pub targets: &'a BTreeMap<String, i32>,
    /// Topics of this archive's ledger.
    pub archived: &'a BTreeSet<String>,
}

impl Rules<'_> {
    /// Whether `topic` is refused as a target.
    pub fn is_dead_letter(&self, topic: &str) -> bool {
        !self.options.allow_dead_letter_target && (self.archived.contains(topic) || is_dead_letter_name(topic))
    }

    /// What becomes of a record.
    pub fn decide(&self, record: &ArchivedRecord<'_>, past: PastPartition<'_>) -> Verdict {
        let (id, raw) = (&record.id, &record.raw);
        let decoded = self.dialects.decode(&id.topic, id.partition, raw);
        // The archive's column, too: the tables may have learned since, or forgotten.
        if [decoded.payload_state, record.decoded.payload_state].contains(&PayloadState::NotCopied) {
            return Verdict::Skip(Why::NotCopied, None);
        }
        if !self.options.include_restored {
            if past.finished(id.offset) {
                return Verdict::Skip(Why::AlreadyRestored, None);
            }
            if past.unfinished(id.offset) {
                return Verdict::Skip(Why::UnfinishedRestore, None);
            }
        }
        let origin = restore_target(&decoded);
        let Some(topic) = self.options.to.as_deref().or(origin.map(|o| o.0)) else {
            return Verdict::Skip(Why::UnknownOrigin, None);
        };
        let skip = |why| Verdict::Skip(why, Some(topic.to_owned()));
        if self.is_dead_letter(topic) {
            return skip(Why::DeadLetterTarget);
        }
        let Some(partitions) = self.targets.get(topic) else { return skip(Why::MissingTarget) };
        if self.options.timestamps == Timestamps::Keep && raw.timestamp_ms == UNSENDABLE_TIMESTAMP {
            return Verdict::Skip(Why::Timestamp, None);
        }
        let partition = origin.and_then(|o| o.1).filter(|p| (0..*partitions).contains(p));
        Verdict::Send(Place { topic: topic.to_owned(), partition })
    }

    /// The headers that a restored record keeps, in order.
    pub fn headers<'r>(&self, raw: &RawRecord<'r>) -> Vec<Header<'r>> {
        let strips = self.dialects.strips(raw);
        let kept = raw.headers.iter().zip(strips).filter(|(h, strip)| !strip && !h.name.starts_with(OWN_HEADERS));
        kept.map(|(h, _)| h).collect()
    }
}

/// Whether a name has `dlq`, `dlt`, `deadletter` or `dead-letter` as a word between `.`, `-` and `_`.
pub fn is_dead_letter_name(topic: &str) -> bool {
    let words: Vec<String> = topic.split(['.', '-', '_']).map(str::to_ascii_lowercase).collect();
    words.iter().any(|w| matches!(w.as_str(), "dlq" | "dlt" | "deadletter" | "deadletters"))
        || words.windows(2).any(|w| w[0] == "dead" && matches!(w[1].as_str(), "letter" | "letters"))
}

/// What is to be restored, in a group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    pub target: String,
    pub pipeline: String,
    pub error_class: Option<String>,
}

/// Records that are skipped for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    pub records: u64,
    /// Id of the first.
    pub example: String,
}

/// Different groups that are kept apart: an error class can hold anything.
const MAX_GROUPS: usize = 5000;

/// What a plan comes to, as a dry run shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    pub selected: u64,
    pub to_restore: u64,
    pub groups: BTreeMap<Group, u64>,
    pub targets: BTreeSet<String>,
    pub skipped: BTreeMap<(Why, Option<String>), Skipped>,
    /// Of those to restore: their original headers and timestamp were not copied into the dead letter.
    pub bare: u64,
    /// Of those to restore: null values.
    pub tombstones: u64,
}

impl Counts {
    pub fn add(&mut self, record: &ArchivedRecord<'_>, verdict: &Verdict) {
        self.selected += 1;
        match verdict {
            Verdict::Send(place) => {
                self.to_restore += 1;
                self.bare += u64::from(record.decoded.payload_state == PayloadState::CopiedBare);
                self.tombstones += u64::from(record.raw.value.is_none());
                if !self.targets.contains(&place.topic) {
                    self.targets.insert(place.topic.clone());
                }
                let mut group = Group {
                    target: place.topic.clone(),
                    pipeline: record.pipeline.to_owned(),
                    error_class: record.decoded.error_class.as_deref().map(str::to_owned),
                };
                if self.groups.len() >= MAX_GROUPS && !self.groups.contains_key(&group) {
                    group = Group { error_class: Some("(others)".into()), pipeline: "(others)".into(), ..group };
                }
                *self.groups.entry(group).or_default() += 1;
            }
            Verdict::Skip(why, topic) => {
                let key = match self.skipped.len() {
                    0..MAX_GROUPS => (*why, topic.clone()),
                    _ => (*why, None),
                };
                let example = || Skipped { records: 0, example: record.id.to_string() };
                self.skipped.entry(key).or_insert_with(example).records += 1;
            }
        }
    }

    pub fn by_reason(&self) -> BTreeMap<Why, u64> {
        let mut reasons = BTreeMap::new();
        for ((why, _), skipped) in &self.skipped {
            *reasons.entry(*why).or_default() += skipped.records;
        }
        reasons
    }
}

#[cfg(test)]
mod tests;
