//! What becomes of each record. Pure: nothing here reads, sends or asks the time.
//!
//! Owns the rules ([`Rules::judge`]), and what a record is when it is sent ([`Made`]). Invariants: a record is never
//! restored as something it was not, nor a second time or against a discard without being asked, nor into a dead-letter
//! topic, nor more often than is allowed.

use super::attempts::Attempts;
use super::headers::{HeaderRules, Sendable};
use super::past::{Disposition, PastPartition};
use super::plan::{Partitioning, RuleOptions, Timestamps};
use super::values::Values;
use super::why::{Skip, Why};
use super::window::{Window, is_before};
use crate::dialect::{Dialects, Restorable, TopicDecoder, UNKNOWN, restore_target};
use crate::format::ArchivedRecord;
use crate::format::refetched::Original;
use crate::record::{Header, PayloadState, RawRecord};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// The one timestamp that cannot be sent: the Kafka library takes it for "now".
const UNSENDABLE_TIMESTAMP: i64 = 0;

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
    Send {
        place: Place,
        /// How often its failure is restored then: 1 for the first time.
        attempt: u32,
        /// With another value than is archived.
        corrected: bool,
        /// With a null value.
        tombstone: bool,
    },
    Skip(Skip),
}

/// What decides about a record.
#[derive(Clone, Copy)]
pub struct Rules<'a> {
    pub options: &'a RuleOptions,
    /// As the options have them.
    pub headers: &'a HeaderRules,
    pub values: &'a Values,
    /// How often failures were restored before.
    pub attempts: &'a Attempts,
    pub dialects: &'a Dialects,
    /// Partitions of each topic that can be a target.
    pub targets: &'a BTreeMap<String, i32>,
    /// `max.message.bytes` of each topic that tells it.
    pub limits: &'a BTreeMap<String, u64>,
    /// Timestamps that each topic takes and keeps, where it tells it.
    pub windows: &'a BTreeMap<String, Window>,
    /// Topics that may not be written to.
    pub unwritable: &'a BTreeSet<String>,
    /// Topics of this archive's ledger.
    pub archived: &'a BTreeSet<String>,
}

impl Rules<'_> {
    /// What becomes of a record, as [`Self::judge`] has it.
    pub fn decide(
        &self,
        decoder: &mut TopicDecoder<'_>,
        record: &ArchivedRecord<'_>,
        original: Option<&Original<'_>>,
        past: PastPartition<'_>,
    ) -> Verdict {
        match self.judge(decoder, record, original, past) {
            Ok((place, made)) => {
                let (attempt, corrected) = (made.attempt, made.archived_value.is_some());
                Verdict::Send { place, attempt, corrected, tombstone: made.value.is_none() }
            }
            Err(skip) => Verdict::Skip(skip),
        }
    }

    /// Where a record goes and what it is there, or why it is not restored. With its original, that is what is restored.
    /// `decoder`: of [`Self::dialects`], for the record's topic.
    pub fn judge<'r>(
        &'r self,
        decoder: &mut TopicDecoder<'_>,
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
        debug_assert_eq!(decoder.topic(), id.topic);
        let decoded = decoder.decode(id.partition, &record.raw);
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
        let before = self.attempts.of(record, &decoded);
        let attempt = before.number.saturating_add(1);
        let made = match self.made(decoder, record, original, attempt) {
            Ok(made) => made,
            Err(why) => return skip(why, None),
        };
        if !self.options.include_restored {
            let done = past.finished(id.offset).map(|went| (Why::AlreadyRestored, went));
            let perhaps = || past.unfinished(id.offset).map(|went| (Why::UnfinishedRestore, went));
            if let Some((why, went)) = done.or_else(perhaps) {
                let (target, restore_id) = (Some(went.target.clone()), Some(went.restore_id.clone()));
                return Err(Skip { why, target, restore_id });
            }
        }
        if self.options.max_attempts.is_some_and(|most| attempt > most) {
            return Err(Skip { why: Why::Attempts, target: None, restore_id: before.restore_id.map(str::to_owned) });
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
        if is_dead_letter(topic, self.options, self.archived) {
            return skip(Why::DeadLetterTarget, Some(topic));
        }
        let Some(partitions) = self.targets.get(topic) else {
            return skip(Why::MissingTarget, Some(topic));
        };
        if self.unwritable.contains(topic) {
            return skip(Why::NotWritable, Some(topic));
        }
        let there = |p: &i32| (0..*partitions).contains(p);
        let partition = match self.options.partition {
            Partitioning::Origin => origin.and_then(|o| o.1).filter(there),
            Partitioning::Key => None,
            Partitioning::Number(p) if !there(&p) => return skip(Why::MissingPartition, Some(topic)),
            Partitioning::Number(p) => Some(p),
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
        let window = self.windows.get(topic);
        if window.is_some_and(|window| window.needs_key) && made.key.is_none() {
            return skip(Why::Refused, Some(topic));
        }
        if self.limits.get(topic).is_some_and(|limit| made.size() as u64 > *limit) {
            return skip(Why::TooLarge, Some(topic));
        }
        Ok((Place { topic: topic.to_owned(), partition }, made))
    }

    /// What is restored of a record: its original that was read again, or else what the dead letter holds of it.
    ///
    /// # Errors
    /// Why it cannot be told what it is.
    pub fn made<'r>(
        &'r self,
        decoder: &mut TopicDecoder<'_>,
        record: &ArchivedRecord<'r>,
        original: Option<&Original<'r>>,
        attempt: u32,
    ) -> std::result::Result<Made<'r>, Why> {
        let raw = original.map_or(record.raw, |o| o.raw);
        let restorable = original.map_or_else(|| decoder.restorable(&raw), |o| self.dialects.restorable(o.topic, &raw));
        let Restorable { key, value, strips, marks } = restorable.ok_or(Why::NotCopied)?;
        let headers = self.headers.apply(raw.headers.iter().zip(strips), Sendable { marks, attempt });
        let own = record.raw.value;
        // Of a dead letter that holds the record elsewhere than in its value, lists print what is of no use here.
        let elsewhere = original.is_some() || value.as_deref() != own;
        let given =
            self.values.get(&record.id).filter(|given| *given != value.as_deref() && !(elsewhere && *given == own));
        let (value, archived_value) = match given {
            Some(given) if elsewhere && is_envelope(decoder, record, given) => return Err(Why::WrongValue),
            Some(given) => (given.map(Cow::Borrowed), Some(value)),
            None => (value, None),
        };
        Ok(Made { raw, key, value, headers, attempt, archived_value })
    }
}

/// Whether the record has its original inside of it, with this value in place of its own.
fn is_envelope(decoder: &mut TopicDecoder<'_>, record: &ArchivedRecord<'_>, value: Option<&[u8]>) -> bool {
    let inside = decoder.restorable(&RawRecord { value, ..record.raw });
    inside.is_some_and(|inside| inside.value.as_deref() != value)
}

/// A record as it is restored: of `raw` its timestamp and offset.
pub struct Made<'r> {
    pub raw: RawRecord<'r>,
    pub key: Option<Cow<'r, [u8]>>,
    pub value: Option<Cow<'r, [u8]>>,
    /// That it keeps, in order, and those that are added.
    pub headers: Vec<Header<'r>>,
    /// How often its failure is restored then.
    pub attempt: u32,
    /// Of a corrected one: the value that is archived.
    pub archived_value: Option<Option<Cow<'r, [u8]>>>,
}

impl Made<'_> {
    /// Bytes, see [`sent_size`].
    fn size(&self) -> usize {
        sent_size(self.key.as_deref(), self.value.as_deref(), &self.headers)
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

/// Whether `topic` is refused as a target. `archived`: topics of this archive's ledger.
pub fn is_dead_letter(topic: &str, options: &RuleOptions, archived: &BTreeSet<String>) -> bool {
    !options.allow_dead_letter_target && (archived.contains(topic) || is_dead_letter_name(topic))
}

/// Whether a name has `dlq`, `dlt`, `deadletter` or `dead-letter` as a word between `.`, `-` and `_`.
pub fn is_dead_letter_name(topic: &str) -> bool {
    let words: Vec<String> = topic.split(['.', '-', '_']).map(str::to_ascii_lowercase).collect();
    words.iter().any(|w| matches!(w.as_str(), "dlq" | "dlt" | "deadletter" | "deadletters"))
        || words.windows(2).any(|w| w[0] == "dead" && matches!(w[1].as_str(), "letter" | "letters"))
}

#[cfg(test)]
mod tests;
