//! One selection of records for list, summary, discard and restore. Pure.
//!
//! Owns what a filter may say ([`FilterDoc`], also its form in a restore's plan), whether it makes sense
//! ([`Filter::new`]), whether a record matches, and what of the ledger cannot match. Reads neither flags nor files.
//! Invariant: pruning never leaves out a record that matches.

mod expression;
mod prune;

pub use prune::is_exact;

use crate::error::{Error, Result};
use crate::format::ArchivedRecord;
use crate::record::RecordId;
use chrono::{DateTime, NaiveDate, TimeZone, Utc};
use expression::columns::OfRecord;
use expression::{Expression, Verdict};
use regex::Regex;
use roaring::RoaringTreemap;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// What a user asked for, as plain values. Lists mean any of; an empty one means all. A text beginning with `^` is a
/// regular expression, any other has to be equal.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FilterDoc {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub topic: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub partition: Vec<i32>,
    /// First offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset_from: Option<i64>,
    /// Exclusive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset_to: Option<i64>,
    /// Kafka timestamp, milliseconds since 1970, inclusive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<i64>,
    /// Exclusive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pipeline: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dialect: Vec<String>,
    /// The full name, or its last segment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub error_class: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub error_code: Vec<i32>,
    /// Regular expressions, found anywhere in the message.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub error_message: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub event_id: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub origin_topic: Vec<String>,
    /// `topic/partition/offset[@gN]`. An empty list selects nothing, and so is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_id: Option<Vec<String>>,
    /// A condition in SQL's words.
    #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// As many of what matches, chosen by a hash of their ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<u64>,
    /// The largest hash that is chosen, once it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_to: Option<u64>,
    /// The first of what is left, in order of topic, partition, generation and offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// Offsets by topic, then generation and partition.
pub type Positions = BTreeMap<String, BTreeMap<(u32, i32), RoaringTreemap>>;

/// Whether a record is selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    Yes,
    No,
    /// It is not, as its types are not those that the condition asks for.
    Unjudged(String),
}

/// Records that could not be judged, and so are not selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unjudged {
    pub records: u64,
    pub first: RecordId,
    pub why: String,
}

impl Unjudged {
    /// Adds `other` to what there is.
    pub fn add(all: &mut Option<Self>, other: Option<Self>) {
        match (all, other) {
            (Some(all), Some(other)) => all.records += other.records,
            (all @ None, other) => *all = other,
            (Some(_), None) => {}
        }
    }
}

impl std::fmt::Display for Unjudged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let records = if self.records == 1 { "1 record" } else { &format!("{} records", self.records) };
        write!(
            f,
            "{records} could not be judged by --where, and so {} not selected: of {}, {}",
            if self.records == 1 { "is" } else { "are" },
            self.first,
            self.why
        )
    }
}

/// A text to be equal to, or a regular expression to be found.
#[derive(Debug, Clone)]
enum Text {
    Exact(String),
    Regex(Regex),
}

impl Text {
    fn parse(flag: &str, text: &str) -> Result<Self> {
        if text.starts_with('^') { regex(flag, text).map(Self::Regex) } else { Ok(Self::Exact(text.to_owned())) }
    }
    fn matches(&self, value: &str) -> bool {
        match self {
            Self::Exact(text) => text == value,
            Self::Regex(regex) => regex.is_match(value),
        }
    }
}

fn regex(flag: &str, text: &str) -> Result<Regex> {
    Regex::new(text).map_err(|e| {
        // The library's message is several lines with a marker under the place; the last line says what is wrong.
        let text_of = e.to_string();
        let why = text_of.lines().last().unwrap_or_default().trim().trim_start_matches("error: ");
        Error::config(format!("{flag} {text:?} is not a regular expression: {why}"))
    })
}

fn any(texts: &[Text], value: Option<&str>) -> bool {
    texts.is_empty() || value.is_some_and(|v| texts.iter().any(|t| t.matches(v)))
}

/// A selection that makes sense. Its serialized form is canonical: equal selections, equal bytes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(try_from = "FilterDoc", into = "FilterDoc")]
pub struct Filter {
    doc: FilterDoc,
    topic: Vec<Text>,
    pipeline: Vec<Text>,
    dialect: Vec<Text>,
    error_class: Vec<Text>,
    error_message: Vec<Regex>,
    event_id: Vec<Text>,
    origin_topic: Vec<Text>,
    record_ids: Option<BTreeSet<RecordId>>,
    /// Of the record ids, whichever partition they are in.
    offsets: BTreeSet<i64>,
    /// These and no others, see [`Self::exactly`].
    exactly: Option<Arc<Positions>>,
    expression: Option<Expression>,
}

impl PartialEq for Filter {
    fn eq(&self, other: &Self) -> bool {
        self.doc == other.doc
    }
}

impl TryFrom<FilterDoc> for Filter {
    type Error = Error;
    fn try_from(doc: FilterDoc) -> Result<Self> {
        Self::new(doc)
    }
}

impl From<Filter> for FilterDoc {
    fn from(filter: Filter) -> Self {
        filter.doc
    }
}

impl Filter {
    /// # Errors
    /// [`crate::Kind::Config`] for what is not understood, and for what no record can match.
    pub fn new(mut doc: FilterDoc) -> Result<Self> {
        let negative = |n: Option<i64>| n.is_some_and(|n| n < 0);
        if negative(doc.offset_from) || negative(doc.offset_to) || doc.partition.iter().any(|p| *p < 0) {
            return Err(Error::config("offsets and partitions are not negative"));
        }
        if doc.offset_to.is_some_and(|to| to <= doc.offset_from.unwrap_or(0)) {
            return Err(Error::config(format!(
                "--offsets {}..{} selects nothing: the end is exclusive and has to be above the start",
                doc.offset_from.map_or_else(String::new, |from| from.to_string()),
                doc.offset_to.unwrap_or_default()
            )));
        }
        if let (Some(since), Some(until)) = (doc.since_ms, doc.until_ms)
            && since >= until
        {
            return Err(Error::config(format!(
                "--since {} is not before --until {}: no record can match",
                rfc3339_ms(since),
                rfc3339_ms(until)
            )));
        }
        // An unset variable in a script, most likely: it would match everything, or nothing.
        let texts = [
            ("--topic", &doc.topic),
            ("--pipeline", &doc.pipeline),
            ("--dialect", &doc.dialect),
            ("--error-class", &doc.error_class),
            ("--error-message", &doc.error_message),
            ("--event-id", &doc.event_id),
            ("--origin-topic", &doc.origin_topic),
        ];
        if let Some((flag, _)) = texts.iter().find(|(_, given)| given.iter().any(String::is_empty)) {
            return Err(Error::config(format!("{flag} is empty: leave it out, or say what it has to match")));
        }
        let record_ids = doc.record_id.as_deref().map(parse_ids).transpose()?;
        let lists = [
            &mut doc.topic,
            &mut doc.pipeline,
            &mut doc.dialect,
            &mut doc.error_class,
            &mut doc.error_message,
            &mut doc.event_id,
            &mut doc.origin_topic,
        ];
        for list in lists {
            list.sort_unstable();
            list.dedup();
        }
        for list in [&mut doc.partition, &mut doc.error_code] {
            list.sort_unstable();
            list.dedup();
        }
        doc.record_id = record_ids.as_ref().map(|ids| ids.iter().map(RecordId::to_string).collect());
        if doc.limit == Some(0) || doc.sample == Some(0) {
            return Err(Error::config("--limit and --sample of 0 select nothing: leave them out"));
        }
        let expression = doc.condition.as_deref().map(Expression::new).transpose()?;
        let texts = |flag: &str, list: &[String]| list.iter().map(|t| Text::parse(flag, t)).collect::<Result<Vec<_>>>();
        let filter = Self {
            topic: texts("--topic", &doc.topic)?,
            pipeline: texts("--pipeline", &doc.pipeline)?,
            dialect: texts("--dialect", &doc.dialect)?,
            error_class: texts("--error-class", &doc.error_class)?,
            error_message: doc.error_message.iter().map(|t| regex("--error-message", t)).collect::<Result<_>>()?,
            event_id: texts("--event-id", &doc.event_id)?,
            origin_topic: texts("--origin-topic", &doc.origin_topic)?,
            offsets: record_ids.iter().flatten().map(|id| id.offset).collect(),
            record_ids,
            exactly: None,
            expression,
            doc,
        };
        filter.check_ids()?;
        Ok(filter)
    }

    /// A filter for one record.
    pub fn of_record(id: &RecordId) -> Self {
        Self {
            doc: FilterDoc { record_id: Some(vec![id.to_string()]), ..FilterDoc::default() },
            record_ids: Some(BTreeSet::from([id.clone()])),
            offsets: BTreeSet::from([id.offset]),
            ..Self::default()
        }
    }

    /// A filter for records that are known. Its document does not name them.
    pub fn exactly(positions: Positions) -> Self {
        Self { exactly: Some(Arc::new(positions)), ..Self::default() }
    }

    /// Record ids that the other flags exclude one and all.
    fn check_ids(&self) -> Result<()> {
        let Some(ids) = &self.record_ids else { return Ok(()) };
        if ids.iter().any(|id| self.may_match_partition(&id.topic, id.partition) && self.offset_matches(id.offset)) {
            return Ok(());
        }
        Err(Error::config(
            "--record-id contradicts --topic, --partition or --offsets: no record can match. Leave one of them out",
        ))
    }

    pub fn doc(&self) -> &FilterDoc {
        &self.doc
    }

    /// Whether every record matches, of which a sample or the first may be chosen.
    pub fn is_all(&self) -> bool {
        let chosen = FilterDoc { sample: None, sample_to: None, limit: None, ..self.doc.clone() };
        chosen == FilterDoc::default() && self.exactly.is_none()
    }

    /// Whether key, value, headers or stack trace are asked for.
    pub fn needs_payload(&self) -> bool {
        self.expression.as_ref().is_some_and(Expression::needs_payload)
    }

    /// The same, with the sample that was drawn: of hashes up to `to`.
    #[must_use]
    pub fn sampled(mut self, to: u64) -> Self {
        self.doc.sample_to = Some(to);
        self
    }

    /// What a sample is drawn by.
    pub fn hash(id: &RecordId) -> u64 {
        XxHash3_64::oneshot(id.to_string().as_bytes())
    }

    /// The record ids asked for, if any were.
    pub fn record_ids(&self) -> Option<&BTreeSet<RecordId>> {
        self.record_ids.as_ref()
    }

    /// Whether a record is selected, `limit` and a sample that is not drawn yet aside. Where
    /// [`Self::needs_payload`], it has to have been read with its payload.
    pub fn matches(&self, record: &ArchivedRecord<'_>) -> bool {
        self.judge(record) == Judgement::Yes
    }

    /// As [`Self::matches`].
    pub fn judge(&self, record: &ArchivedRecord<'_>) -> Judgement {
        if !self.columns_match(record) {
            return Judgement::No;
        }
        if let Some(expression) = &self.expression {
            match expression.judge(&OfRecord::new(record)) {
                Verdict::True => {}
                Verdict::False | Verdict::Null => return Judgement::No,
                Verdict::Unjudged(why) => return Judgement::Unjudged(why.to_string()),
            }
        }
        match self.doc.sample_to {
            Some(to) if Self::hash(&record.id) > to => Judgement::No,
            _ => Judgement::Yes,
        }
    }

    fn columns_match(&self, record: &ArchivedRecord<'_>) -> bool {
        let (id, d) = (&record.id, &record.decoded);
        self.may_match_partition(&id.topic, id.partition)
            && self.offset_matches(id.offset)
            && self.time_matches(record.raw.timestamp_ms)
            && any(&self.pipeline, Some(record.pipeline))
            && any(&self.dialect, Some(&d.dialect))
            && self.class_matches(d.error_class.as_deref())
            && self.code_matches(d.error_code)
            && any(&self.event_id, d.event_id.as_deref())
            && any(&self.origin_topic, d.origin_topic.as_deref())
            && self.record_ids.as_ref().is_none_or(|ids| ids.contains(id))
            && self.is_named(id)
            && (self.error_message.is_empty()
                || d.error_message.as_deref().is_some_and(|m| self.error_message.iter().any(|r| r.is_match(m))))
    }

    fn is_named(&self, id: &RecordId) -> bool {
        self.exactly.as_ref().is_none_or(|positions| {
            let of = positions.get(&id.topic).and_then(|of| of.get(&(id.generation, id.partition)));
            of.zip(u64::try_from(id.offset).ok()).is_some_and(|(of, offset)| of.contains(offset))
        })
    }

    fn offset_matches(&self, offset: i64) -> bool {
        self.doc.offset_from.is_none_or(|from| from <= offset) && self.doc.offset_to.is_none_or(|to| offset < to)
    }

    /// A record without a Kafka timestamp (the column is null, as in SQL) matches no time.
    fn time_matches(&self, ms: i64) -> bool {
        if self.doc.since_ms.is_none() && self.doc.until_ms.is_none() {
            return true;
        }
        has_time(ms)
            && self.doc.since_ms.is_none_or(|since| since <= ms)
            && self.doc.until_ms.is_none_or(|until| ms < until)
    }

    /// By the full name, as regular expressions too, or by the last segment, as `list` shows it.
    fn class_matches(&self, class: Option<&str>) -> bool {
        any(&self.error_class, class)
            || class
                .map(short_class)
                .is_some_and(|short| self.error_class.iter().any(|t| matches!(t, Text::Exact(text) if text == short)))
    }

    fn code_matches(&self, code: Option<i32>) -> bool {
        self.doc.error_code.is_empty() || code.is_some_and(|c| self.doc.error_code.contains(&c))
    }
}

/// An error class without its package, if it looks like one that has a package.
pub fn short_class(class: &str) -> &str {
    match class.rsplit_once('.') {
        Some((package, name)) if !name.is_empty() && !package.contains(char::is_whitespace) => name,
        _ => class,
    }
}

/// 10000-01-01: timestamps from here on are null in the archive's columns.
const END_MS: i64 = 253_402_300_800_000;

/// Whether a Kafka timestamp is one in the archive's columns: there, and within 1970 to 9999.
pub fn has_time(ms: i64) -> bool {
    (0..END_MS).contains(&ms)
}

/// A time for people, or the number if a date cannot say it.
pub fn rfc3339_ms(ms: i64) -> String {
    DateTime::from_timestamp_millis(ms)
        .map_or_else(|| ms.to_string(), |t| t.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true))
}

fn parse_ids(texts: &[String]) -> Result<BTreeSet<RecordId>> {
    if texts.is_empty() {
        return Err(Error::config("--record-id names no record: the file is empty"));
    }
    texts.iter().map(|text| parse_id(text)).collect()
}

/// # Errors
/// [`crate::Kind::Config`] that says how a record id looks.
pub fn parse_id(text: &str) -> Result<RecordId> {
    RecordId::parse(text).ok_or_else(|| {
        Error::config(format!(
            "{text:?} is not a record id: it is TOPIC/PARTITION/OFFSET, as `list` prints it, such as orders-dlq/0/42"
        ))
    })
}

/// `A..B` with B exclusive and either side open, or a single offset.
///
/// # Errors
/// [`crate::Kind::Config`] for anything else.
pub fn parse_offsets(text: &str) -> Result<(Option<i64>, Option<i64>)> {
    let side = |s: &str| match s {
        "" => Some(None),
        s if s.bytes().all(|b| b.is_ascii_digit()) => s.parse().ok().map(Some),
        _ => None,
    };
    let parsed = match text.trim().split_once("..") {
        Some((from, to)) => side(from).zip(side(to)),
        None => side(text.trim()).and_then(|one| one.map(|n: i64| (Some(n), n.checked_add(1)))),
    };
    parsed.filter(|(from, to)| from.is_some() || to.is_some()).ok_or_else(|| {
        Error::config(format!("--offsets {text:?} is not a range: use 100..200 (200 excluded), 100.., ..200, or 100"))
    })
}

/// Numbers below are more likely seconds: as milliseconds they lie before March 1973.
const LEAST_MS: i64 = 100_000_000_000;

/// A time as users give it: RFC 3339, a date (`2026-10-08`, its first moment in UTC), milliseconds since 1970 (at
/// least 10^11), or how long ago (`90s`, `15m`, `2h`, `7d`). Returns milliseconds since 1970.
///
/// # Errors
/// [`crate::Kind::Config`] for anything else.
pub fn parse_time(text: &str, now_ms: i64) -> Result<i64> {
    let text = text.trim();
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Ok(time.timestamp_millis());
    }
    if let Ok(date) = NaiveDate::parse_from_str(text, "%Y-%m-%d")
        && let Some(start) = date.and_hms_opt(0, 0, 0)
    {
        return Ok(Utc.from_utc_datetime(&start).timestamp_millis());
    }
    if text.len() >= 9
        && text.bytes().all(|b| b.is_ascii_digit())
        && let Ok(ms) = text.parse::<i64>()
    {
        if ms >= LEAST_MS {
            return Ok(ms);
        }
        return Err(Error::config(format!(
            "{text:?} would be {}, as a number is milliseconds since 1970: did you mean {} ({})?",
            rfc3339_ms(ms),
            ms * 1000,
            rfc3339_ms(ms * 1000)
        )));
    }
    let ago = text.char_indices().last().and_then(|(i, unit)| {
        let unit_ms = match unit {
            's' => 1000,
            'm' => 60_000,
            'h' => 3_600_000,
            'd' => 86_400_000,
            _ => return None,
        };
        text[..i].parse::<u32>().ok().map(|n| i64::from(n) * unit_ms)
    });
    ago.map(|ago| now_ms - ago).ok_or_else(|| {
        Error::config(format!(
            "{text:?} is not a time: use 2026-10-08, 2026-10-08T14:11:24Z, milliseconds since 1970, or 2h for two hours ago"
        ))
    })
}

#[cfg(test)]
mod tests;
