//! What a restore is to do: its plan as stored, and what becomes of each record. Pure: nothing here reads, sends or
//! asks the time.
//!
//! Owns [`PlanDoc`] and the rules ([`Rules::decide`]). Invariants: a record is never restored as something it was not,
//! nor a second time or against a discard without being asked, nor into a dead-letter topic.

use super::past::{Disposition, PastPartition};
use crate::dialect::{Dialects, Restorable, UNKNOWN, restore_target};
use crate::error::{Error, Result};
use crate::filter::FilterDoc;
use crate::format::ArchivedRecord;
use crate::format::refetched::Original;
use crate::ledger::sha256_hex;
use crate::record::{Header, PayloadState, RawRecord};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
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
    /// Left out where it is not set: plans and digests are those of versions that did not have it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub include_discarded: bool,
    pub allow_dead_letter_target: bool,
}

/// Which timestamps a topic takes and keeps. 0: all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Records from before it are deleted, or soon will be.
    pub keeps_from_ms: i64,
    /// Records from before it are refused.
    pub takes_from_ms: i64,
}

/// A record that a topic would keep for less than this is not sent.
const MIN_KEPT_MS: i64 = 3_600_000;

impl Window {
    /// Settings of a topic that it follows from.
    pub const SETTINGS: [&str; 4] =
        ["retention.ms", "cleanup.policy", "message.timestamp.type", "message.timestamp.before.max.ms"];

    /// By a topic's settings; `None` if they do not tell how long it keeps records.
    pub fn of(settings: &BTreeMap<String, String>, now_ms: i64) -> Option<Self> {
        let number = |name: &str| settings.get(name)?.parse::<i64>().ok();
        let (retention, policy) = (number("retention.ms")?, settings.get("cleanup.policy")?);
        // The topic's own time replaces the record's.
        if settings.get("message.timestamp.type").is_some_and(|t| t == "LogAppendTime") {
            return Some(Self::default());
        }
        let from = |age: i64| now_ms.saturating_sub(age).max(0);
        let deletes = retention >= 0 && policy.split(',').any(|p| p.trim() == "delete");
        // Of a short retention a tenth, so that new records are sent.
        let kept = retention - MIN_KEPT_MS.min(retention / 10);
        let takes = number("message.timestamp.before.max.ms").filter(|age| *age >= 0);
        Some(Self { keeps_from_ms: if deletes { from(kept) } else { 0 }, takes_from_ms: takes.map_or(0, from) })
    }
}

/// Whether it is from before `from`. No time (-1) is before nothing.
fn is_before(timestamp_ms: i64, from: i64) -> bool {
    (0..from).contains(&timestamp_ms)
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
    /// Files of originals that take the place of dead letters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refetched: Vec<PlanObject>,
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

    /// Whether a restore of these cuts by this filter may select a record that this plan selects: it reads one of the
    /// same data objects, and does not name other records.
    pub fn overlaps(&self, cuts: &[PlanCut], filter: &FilterDoc) -> bool {
        if let (Some(a), Some(b)) = (&self.filter.record_id, &filter.record_id) {
            let a: BTreeSet<&String> = a.iter().collect();
            if !b.iter().any(|id| a.contains(id)) {
                return false;
            }
        }
        let keys = |cuts: &[PlanCut]| cuts.iter().flat_map(|c| &c.objects).map(|o| o.key.clone()).collect();
        let (a, b): (BTreeSet<String>, BTreeSet<String>) = (keys(&self.cuts), keys(cuts));
        !a.is_disjoint(&b)
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
    Discarded,
    NotCopied,
    OtherDialects,
    UnknownOrigin,
    DeadLetterTarget,
    MissingTarget,
    Timestamp,
    Expired,
    TooLarge,
    Refused,
}

impl Why {
    pub fn text(self) -> &'static str {
        match self {
            Self::AlreadyRestored => "already restored",
            Self::UnfinishedRestore => "perhaps restored, by a restore that did not end",
            Self::Discarded => "discarded: not to be restored",
            Self::NotCopied => {
                "key and value of the original are not in the dead letter: headers only, or an envelope without them"
            }
            Self::OtherDialects => {
                "archived as of a dialect that is not found on it now: it could go as what it is not"
            }
            Self::UnknownOrigin => "its headers do not tell where it came from",
            Self::DeadLetterTarget => "target is a dead-letter topic",
            Self::MissingTarget => "target topic does not exist",
            Self::Timestamp => "its timestamp is 0, or refused by the target",
            Self::Expired => "older than the target keeps: Kafka would delete it at once",
            Self::TooLarge => "larger than the target's max.message.bytes",
            Self::Refused => "refused by the target",
        }
    }
    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::AlreadyRestored => "--include-restored sends it again",
            Self::UnfinishedRestore => {
                "finish that restore with --resume ID. If it was taken over, compare restores/ID/sent with the target, and \
                 send what is missing there with --record-id and --include-restored"
            }
            Self::Discarded => {
                "`show ID` says by whom and why. `dlq-archiver discard --undo` takes it back; --include-discarded sends it all \
                 the same"
            }
            Self::NotCopied => {
                "`dlq-archiver refetch` reads them from the topics that they came from, as long as those have them; then give \
                 the command again. `show ID` says what came of it. Copying is switched on where the records are dead-lettered"
            }
            Self::UnknownOrigin => "name the target with --to TOPIC",
            Self::OtherDialects => {
                "give the --config and --dialect-file that `archive` had (`show ID` has the dialect, `dialects list` those that \
                 are known)"
            }
            Self::DeadLetterTarget => {
                "name another with --to TOPIC; --allow-dead-letter-target sends it there all the same"
            }
            Self::MissingTarget => "create the topic, or name another with --to TOPIC; then give the command again",
            Self::Timestamp => "--timestamps now sends it with the time of the restore",
            Self::Expired => {
                "use --timestamps now; or raise retention.ms of TARGET above the record's age (kafka-configs.sh \
                 --bootstrap-server BROKERS --alter --entity-type topics --entity-name TARGET --add-config \
                 retention.ms=MS), then give the command again"
            }
            Self::TooLarge => {
                "raise max.message.bytes on the target topic, then give the command again: what was restored is skipped \
                 (with --include-restored, name the records with --record-id)"
            }
            Self::Refused => {
                "see what the topic demands (cleanup.policy=compact: a key), or name another with --to TOPIC; then give \
                 the command again"
            }
        }
    }
    /// Whether it is about single records, so that one wants to know which.
    pub fn is_of_record(self) -> bool {
        matches!(self, Self::TooLarge | Self::Refused | Self::Timestamp | Self::UnfinishedRestore)
    }
    /// Whether the target would not take or keep it.
    pub fn is_of_target(self) -> bool {
        matches!(self, Self::TooLarge | Self::Expired | Self::Timestamp)
    }
    /// Whether the record was asked for and is not where it should be, so that the command has to say so.
    pub fn is_failure(self) -> bool {
        !matches!(self, Self::AlreadyRestored | Self::Discarded)
    }
    /// Whether a restore lists the records that it skips for it. Of those that were restored before there is a list.
    pub fn is_listed(self) -> bool {
        self != Self::AlreadyRestored
    }
}

/// Why a record is not restored, and what it is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Skip {
    pub why: Why,
    /// Where it would go; where it went, if it was restored.
    pub target: Option<String>,
    /// The restore that did it, or perhaps did.
    pub restore_id: Option<String>,
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
    Skip(Skip),
}

impl Skip {
    fn of(why: Why, target: Option<&str>) -> Self {
        Self { why, target: target.map(str::to_owned), restore_id: None }
    }
}

/// What decides about a record.
pub struct Rules<'a> {
    pub options: &'a RuleOptions,
    pub dialects: &'a Dialects,
    /// Partitions of each topic that can be a target.
    pub targets: &'a BTreeMap<String, i32>,
    /// `max.message.bytes` of each topic that tells it.
    pub limits: &'a BTreeMap<String, u64>,
    /// Timestamps that each topic takes and keeps, where it tells it.
    pub windows: &'a BTreeMap<String, Window>,
    /// Topics of this archive's ledger.
    pub archived: &'a BTreeSet<String>,
}

impl Rules<'_> {
    /// Whether `topic` is refused as a target.
    pub fn is_dead_letter(&self, topic: &str) -> bool {
        !self.options.allow_dead_letter_target && (self.archived.contains(topic) || is_dead_letter_name(topic))
    }

    /// What becomes of a record, as [`Self::judge`] has it.
    pub fn decide(
        &self,
        record: &ArchivedRecord<'_>,
        original: Option<&Original<'_>>,
        past: PastPartition<'_>,
    ) -> Verdict {
        match self.judge(record, original, past) {
            Ok((place, _)) => Verdict::Send(place),
            Err(skip) => Verdict::Skip(skip),
        }
    }

    /// Where a record goes and what it is there, or why it is not restored. With its original, that is what is restored.
    pub fn judge<'r>(
        &self,
        record: &ArchivedRecord<'r>,
        original: Option<&Original<'r>>,
        past: PastPartition<'_>,
    ) -> std::result::Result<(Place, Made<'r>), Skip> {
        let skip = |why, target: Option<&str>| Err(Skip::of(why, target));
        let id = &record.id;
        // First: what is accepted as lost needs no remedy.
        if !self.options.include_discarded && matches!(past.disposition(id.offset), Disposition::Discarded(_)) {
            return skip(Why::Discarded, None);
        }
        let decoded = self.dialects.decode(&id.topic, id.partition, &record.raw);
        // Without the table that it was decoded with, an envelope would go as if it were the record in it.
        let found = |name: &str| decoded.hops.iter().any(|hop| hop.dialect == name);
        if original.is_none() && record.decoded.dialect != UNKNOWN && !found(&record.decoded.dialect) {
            return skip(Why::OtherDialects, None);
        }
        // The archive's column, too: the tables may have learned since, or forgotten.
        let states = [decoded.payload_state, record.decoded.payload_state];
        if original.is_none() && states.contains(&PayloadState::NotCopied) {
            return skip(Why::NotCopied, None);
        }
        // What was read again may be a dead letter itself, and lack its own original.
        let first = original.map(|o| self.dialects.decode(o.topic, o.partition, &o.raw));
        if first.as_ref().is_some_and(|first| first.payload_state == PayloadState::NotCopied) {
            return skip(Why::NotCopied, None);
        }
        let Some(made) = self.made(record, original) else {
            return skip(Why::NotCopied, None);
        };
        if !self.options.include_restored {
            let done = past.finished(id.offset).map(|went| (Why::AlreadyRestored, went));
            let perhaps = || past.unfinished(id.offset).map(|went| (Why::UnfinishedRestore, went));
            if let Some((why, went)) = done.or_else(perhaps) {
                let (target, restore_id) = (Some(went.target.clone()), Some(went.restore_id.clone()));
                return Err(Skip { why, target, restore_id });
            }
        }
        // Then it has a true origin of its own, too.
        let origin = match (&first, original) {
            (Some(first), Some(o)) => restore_target(first).or(Some((o.topic, Some(o.partition)))),
            _ => restore_target(&decoded),
        };
        let raw = &made.raw;
        let Some(topic) = self.options.to.as_deref().or(origin.map(|o| o.0)) else {
            return skip(Why::UnknownOrigin, None);
        };
        if self.is_dead_letter(topic) {
            return skip(Why::DeadLetterTarget, Some(topic));
        }
        let Some(partitions) = self.targets.get(topic) else {
            return skip(Why::MissingTarget, Some(topic));
        };
        if self.options.timestamps == Timestamps::Keep {
            let window = self.windows.get(topic).copied().unwrap_or_default();
            if raw.timestamp_ms == UNSENDABLE_TIMESTAMP || is_before(raw.timestamp_ms, window.takes_from_ms) {
                return skip(Why::Timestamp, Some(topic));
            }
            if is_before(raw.timestamp_ms, window.keeps_from_ms) {
                return skip(Why::Expired, Some(topic));
            }
        }
        if self.limits.get(topic).is_some_and(|limit| made.is_larger(*limit)) {
            return skip(Why::TooLarge, Some(topic));
        }
        let partition = origin.and_then(|o| o.1).filter(|p| (0..*partitions).contains(p));
        Ok((Place { topic: topic.to_owned(), partition }, made))
    }

    /// What is restored of a record: its original that was read again, or else what the dead letter holds of it; `None`
    /// where it does not hold it.
    pub fn made<'r>(&self, record: &ArchivedRecord<'r>, original: Option<&Original<'r>>) -> Option<Made<'r>> {
        let (topic, raw) = original.map_or((record.id.topic.as_str(), record.raw), |o| (o.topic, o.raw));
        let Restorable { key, value, strips } = self.dialects.restorable(topic, &raw)?;
        let kept = raw.headers.iter().zip(strips).filter(|(h, strip)| !strip && !h.name.starts_with(OWN_HEADERS));
        let headers = kept.map(|(h, _)| h).collect();
        Some(Made { raw, key, value, headers })
    }
}

/// A record as it is restored: of `raw` its timestamp and offset.
pub struct Made<'r> {
    pub raw: RawRecord<'r>,
    pub key: Option<Cow<'r, [u8]>>,
    pub value: Option<Cow<'r, [u8]>>,
    /// That it keeps, in order.
    pub headers: Vec<Header<'r>>,
}

impl Made<'_> {
    /// Whether it, sent alone, is more than `limit` bytes.
    fn is_larger(&self, limit: u64) -> bool {
        sent_size(self.key.as_deref(), self.value.as_deref(), &self.headers) as u64 > limit
    }
}

/// A record batch's header in Kafka's protocol.
const BATCH_HEADER: usize = 61;

/// Bytes of a record batch with this record alone, uncompressed: what `max.message.bytes` is about.
pub fn sent_size(key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header<'_>]) -> usize {
    // Zigzag: a length counts twice, and -1 (null) is 1.
    let varint = |n: usize| (usize::BITS - ((2 * n) | 1).leading_zeros()).div_ceil(7) as usize;
    let bytes = |b: Option<&[u8]>| b.map_or(1, |b| varint(b.len()) + b.len());
    let headers_size: usize = headers.iter().map(|h| bytes(Some(h.name)) + bytes(h.value)).sum();
    // Attributes, and the differences to the batch's timestamp and offset, which are 0.
    let record = 3 + bytes(key) + bytes(value) + varint(headers.len()) + headers_size;
    BATCH_HEADER + varint(record) + record
}

/// Whether a name has `dlq`, `dlt`, `deadletter` or `dead-letter` as a word between `.`, `-` and `_`.
pub fn is_dead_letter_name(topic: &str) -> bool {
    let words: Vec<String> = topic.split(['.', '-', '_']).map(str::to_ascii_lowercase).collect();
    words.iter().any(|w| matches!(w.as_str(), "dlq" | "dlt" | "deadletter" | "deadletters"))
        || words.windows(2).any(|w| w[0] == "dead" && matches!(w[1].as_str(), "letter" | "letters"))
}

#[cfg(test)]
mod tests;
