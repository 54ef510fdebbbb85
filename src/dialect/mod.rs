//! Dead-letter dialects: which program dead-lettered a record, and what its headers say.
//!
//! Owns the tables (`schemas/dialects/*.toml`, compiled in, and the user's own) and how they are applied. Does not
//! route ([`crate::routing`]), filter or restore. Pure: no clock, no environment, no I/O.
//!
//! Invariants: decoding never fails and never panics, whatever the bytes; it is linear in the record's size, each
//! header looked at once; it adds to the raw record and changes nothing of it; a problem note holds no payload.

mod code;
mod decode;
mod index;
mod json;
mod key;
pub(crate) use key::of_position as position_key;
mod parse;
mod plan;
mod shapes;
mod table;
mod uber;
mod value;

pub(crate) use code::host_label;
pub use shapes::TopicDecoder;
pub(crate) use table::{Field, PipelineSource};

use crate::error::{Error, Result, did_you_mean};
use crate::record::{Decoded, PayloadState, RawRecord};
use crate::topics::{TopicSettings, position_of};
use decode::Decoder;
use index::{Index, Values, Walk};
use plan::Plan;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use table::Table;
use value::Notes;

/// The dialect of a record that no table matches.
pub const UNKNOWN: &str = "unknown";

/// Counts the changes of this module's code that make it decode a record differently; part of [`Dialects::digest`].
const DECODER_VERSION: u32 = 1;

/// Files of `schemas/dialects`, compiled in.
macro_rules! builtin {
    ($($name:literal)*) => { [$(($name, include_str!(concat!("../../schemas/dialects/", $name)))),*] };
}

const BUILTIN: [(&str, &str); 16] = builtin! {
    "knative.toml" "connect.toml" "share-group.toml" "streams.toml" "spring.toml" "spring-cloud-stream.toml"
    "smallrye.toml" "watermill.toml" "karafka.toml" "karafka-original.toml" "micronaut.toml" "helidon.toml"
    "wolverine.toml" "dapr.toml" "uber.toml" "lambda.toml"
};

/// All dialect tables, ready to decode with. Share it behind an `Arc`.
#[derive(Debug)]
pub struct Dialects {
    tables: Vec<Table>,
    texts: Vec<String>,
    /// Of each table, what decoding depends on.
    meanings: Vec<String>,
    index: Index,
    topics: Vec<TopicSettings>,
    /// Of each of these, the tables that its settings name; empty if none does.
    opted: Vec<Vec<usize>>,
}

#[derive(Clone)]
struct Parsed {
    table: Table,
    text: String,
    meaning: String,
}

/// What is restored of a record.
#[derive(Debug, PartialEq, Eq)]
pub struct Restorable<'a> {
    pub key: Option<Cow<'a, [u8]>>,
    pub value: Option<Cow<'a, [u8]>>,
    /// Of each header, whether it is left out.
    pub strips: Vec<bool>,
    /// Whether it may get headers that say that it was restored.
    pub marks: bool,
}

/// A record's key and value.
pub type Payload<'a> = (Option<Cow<'a, [u8]>>, Option<Cow<'a, [u8]>>);

impl Dialects {
    /// The tables that come with the program.
    ///
    /// # Panics
    /// Never: a test parses them.
    pub fn builtin() -> Self {
        Self::from_tables(BUILTIN).expect("the built-in tables are valid")
    }

    /// The built-in tables and the user's own, each as `(file name for messages, TOML text)`. A user's table with a
    /// built-in name takes its place; one that extends another extends a built-in one.
    pub fn with_user_tables<'t>(user: impl IntoIterator<Item = (&'t str, &'t str)>) -> Result<Self> {
        let builtin = Self::parse(BUILTIN, &[])?;
        let user = Self::parse(user, &builtin)?;
        let kept = builtin.into_iter().filter(|b| user.iter().all(|u| u.table.name != b.table.name));
        Ok(Self::compile(kept.chain(user.iter().cloned()).collect()))
    }

    /// Exactly these tables, each as `(file name for messages, TOML text)`.
    pub fn from_tables<'t>(tables: impl IntoIterator<Item = (&'t str, &'t str)>) -> Result<Self> {
        Self::parse(tables, &[]).map(Self::compile)
    }

    fn parse<'t>(tables: impl IntoIterator<Item = (&'t str, &'t str)>, bases: &[Parsed]) -> Result<Vec<Parsed>> {
        let mut parsed: Vec<Parsed> = Vec::new();
        for (file, text) in tables {
            let base = |name: &str| bases.iter().find(|b| b.table.name == name);
            let table = Table::parse(file, text, |name| base(name).map(|b| &b.table))?;
            if parsed.iter().any(|p| p.table.name == table.name) {
                return Err(Error::config(format!("{file}: name: `{}` is another table's name too", table.name)));
            }
            let mut meaning = String::new();
            // What was parsed is TOML.
            let mut own: toml::Table = toml::from_str(text).unwrap_or_default();
            own.remove("description");
            let extends = own.get("extends").and_then(|e| e.as_str()).and_then(base);
            canonical(&toml::Value::Table(own), &mut meaning);
            meaning.extend(extends.map(|b| b.meaning.as_str()));
            parsed.push(Parsed { table, text: text.to_owned(), meaning });
        }
        Ok(parsed)
    }

    fn compile(parsed: Vec<Parsed>) -> Self {
        let (mut tables, mut texts, mut meanings) = (Vec::new(), Vec::new(), Vec::new());
        for p in parsed {
            tables.push(p.table);
            texts.push(p.text);
            meanings.push(p.meaning);
        }
        let index = Index::new(&tables);
        Self { tables, texts, meanings, index, topics: Vec::new(), opted: Vec::new() }
    }

    /// The same, with the dialects that the settings of topics name: those are read on their records, too.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] for a name that no dialect has.
    pub fn with_topics(self, topics: &[TopicSettings]) -> Result<Self> {
        let number = |topic: &TopicSettings, name: &String| {
            self.tables.iter().position(|t| t.name == *name).ok_or_else(|| {
                let near = did_you_mean(name, self.names());
                Error::config(format!(
                    "[topics.{:?}] dialects: there is no dialect {name:?}{near}",
                    topic.topic.as_str()
                ))
            })
        };
        let numbers = |topic: &TopicSettings| topic.dialects.iter().map(|name| number(topic, name)).collect();
        let opted: Vec<Vec<usize>> = topics.iter().map(numbers).collect::<Result<_>>()?;
        match opted.iter().all(Vec::is_empty) {
            true => Ok(self),
            false => Ok(Self { topics: topics.to_vec(), opted, ..self }),
        }
    }

    /// The tables that are read on this topic's records because its settings say so.
    fn opted(&self, topic: &str) -> &[usize] {
        if self.opted.is_empty() {
            return &[];
        }
        position_of(&self.topics, topic).map_or(&[], |i| &self.opted[i])
    }

    /// Reads what a record's headers say (and, for structured CloudEvents and the dialects of its topic alone, key and
    /// value). `topic` and `partition` are where the dead letter is.
    pub fn decode<'a>(&'a self, topic: &str, partition: i32, raw: &RawRecord<'a>) -> Decoded<'a> {
        let (plan, values, notes) = self.plan(self.opted(topic), raw, |_| true);
        self.decoder(&plan, &values, notes).decode(topic, partition, raw)
    }

    /// Decodes many records of one topic: what was found out about the names on one is kept for the next.
    pub fn of_topic<'t>(&'t self, topic: &'t str) -> TopicDecoder<'t> {
        TopicDecoder::new(self, topic)
    }

    fn plan<'a>(
        &self,
        opted: &[usize],
        raw: &RawRecord<'a>,
        wanted: impl Fn(Field) -> bool,
    ) -> (Plan, Values<'a>, Notes) {
        let mut notes = Notes::default();
        let (walk, values) = self.index.walk(raw, opted, &mut notes);
        (Plan::new(&self.tables, &self.index, &walk, wanted), values, notes)
    }

    fn decoder<'a, 'w>(&'a self, plan: &'w Plan, values: &'w Values<'a>, notes: Notes) -> Decoder<'a, 'w> {
        Decoder { tables: &self.tables, index: &self.index, plan, values, notes }
    }

    /// All that a restore needs of a record, in one walk: [`Self::original`] and [`Self::strips`].
    pub fn restorable<'a>(&self, topic: &str, raw: &RawRecord<'a>) -> Option<Restorable<'a>> {
        let (walk, values) = self.walk(topic, raw);
        self.restorable_of(&walk, &values, raw)
    }

    fn restorable_of<'a>(&self, walk: &Walk, values: &Values<'a>, raw: &RawRecord<'a>) -> Option<Restorable<'a>> {
        let (key, value) = self.original_of(walk, values, raw)?;
        let marks = self.on_record(walk).all(|t| self.tables[t].restore.marks);
        Some(Restorable { key, value, strips: self.strips_of(walk, raw), marks })
    }

    /// The original's key and value, which some dialects write elsewhere than in the dead letter's own; most have them
    /// there. `None` where the dead letter does not hold them.
    pub fn original<'a>(&self, topic: &str, raw: &RawRecord<'a>) -> Option<Payload<'a>> {
        let (walk, values) = self.walk(topic, raw);
        self.original_of(&walk, &values, raw)
    }

    /// For each of the record's headers, in order, whether a restore leaves it out: it belongs to one of the dialects
    /// found on the record. The program's own headers are the restore's business.
    pub fn strips(&self, topic: &str, raw: &RawRecord<'_>) -> Vec<bool> {
        self.strips_of(&self.walk(topic, raw).0, raw)
    }

    fn walk<'a>(&self, topic: &str, raw: &RawRecord<'a>) -> (Walk, Values<'a>) {
        self.index.walk(raw, self.opted(topic), &mut Notes::default())
    }

    fn original_of<'a>(&self, walk: &Walk, values: &Values<'a>, raw: &RawRecord<'a>) -> Option<Payload<'a>> {
        let mut elsewhere = self.on_record(walk).filter(|t| !self.tables[*t].restore.is_none());
        let Some(t) = elsewhere.next() else { return Some((raw.key.map(Cow::Borrowed), raw.value.map(Cow::Borrowed))) };
        let once = |all: &[(usize, usize)]| all.iter().filter(|(table, _)| *table == t).count() <= 1;
        // Of two that could be it none is taken: one in the other, or two records in one envelope.
        if elsewhere.next().is_some() || self.index.reads_payload(t) && !(once(&walk.keys) && once(&walk.values)) {
            return None;
        }
        let last = |all: &[(usize, usize)]| {
            all.iter().rev().find(|(table, _)| *table == t).map(|(_, position)| values.get(*position))
        };
        let restore = &self.tables[t].restore;
        let key = match &restore.key {
            Some(from) => value::original(last(&walk.keys).flatten(), from.encoding)?,
            None => raw.key.map(Cow::Borrowed),
        };
        let value = match &restore.value {
            Some(from) => value::original(last(&walk.values)?, from.encoding)?,
            None => raw.value.map(Cow::Borrowed),
        };
        Some((key, value))
    }

    fn strips_of(&self, walk: &Walk, raw: &RawRecord<'_>) -> Vec<bool> {
        let strips: Vec<_> = self.on_record(walk).map(|t| &self.tables[t].strip).collect();
        raw.headers.iter().map(|h| strips.iter().any(|strip| strip.has(h.name))).collect()
    }

    /// The tables whose dialect the record has.
    fn on_record(&self, walk: &Walk) -> impl Iterator<Item = usize> {
        (0..self.tables.len()).filter(|t| walk.matches(&self.index, *t, &self.tables[*t]))
    }

    /// The dialects' names in the order of their tables, without `unknown`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tables.iter().map(|t| t.name.as_str())
    }

    /// Each dialect's name, description, and whether it is read only on topics that name it.
    pub fn described(&self) -> impl Iterator<Item = (&str, &str, bool)> {
        self.tables.iter().map(|t| (t.name.as_str(), t.description.as_str(), t.opt_in))
    }

    /// Whether any table has a use for a header of this name.
    pub fn knows(&self, header: &[u8]) -> bool {
        self.index.knows(header) || self.tables.iter().any(|t| t.strip.has(header))
    }

    /// Whether records of this dialect may be without what the original had: [`PayloadState::NotCopied`] or
    /// [`PayloadState::CopiedBare`]. True for a dialect that these tables do not know.
    pub fn may_lack_original(&self, name: &str) -> bool {
        let table = self.tables.iter().find(|t| t.name == name);
        table.map_or(name != UNKNOWN, |t| {
            let p = &t.payload;
            [p.null_key_and_value, p.null_value, p.otherwise].into_iter().any(PayloadState::lacks_original)
        })
    }

    /// A dialect's one-line description and its table's TOML text.
    pub fn show(&self, name: &str) -> Option<(&str, &str)> {
        let i = self.tables.iter().position(|t| t.name == name)?;
        Some((&self.tables[i].description, &self.texts[i]))
    }

    /// What names the pipeline by default, for each dialect.
    pub(crate) fn pipelines(&self) -> impl Iterator<Item = (&str, &[PipelineSource])> {
        self.tables.iter().map(|t| (t.name.as_str(), t.pipeline.as_slice()))
    }

    /// Hex SHA-256 over all that decoding depends on: the tables in their order (not comments, layout or
    /// descriptions), the topics that have dialects of their own, and the decoder's version.
    pub fn digest(&self) -> String {
        let mut sha = Sha256::new();
        sha.update(DECODER_VERSION.to_be_bytes());
        for meaning in &self.meanings {
            sha.update((meaning.len() as u64).to_be_bytes());
            sha.update(meaning);
        }
        for (topic, opted) in self.topics.iter().zip(&self.opted) {
            sha.update(format!("topic {:?} {opted:?}\n", topic.topic.as_str()));
        }
        hex(&sha.finalize())
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A TOML value in one form: keys sorted, strings quoted, no white space.
fn canonical(value: &toml::Value, out: &mut String) {
    match value {
        toml::Value::Table(table) => {
            let mut keys: Vec<_> = table.iter().collect();
            keys.sort_by_key(|(key, _)| key.as_str());
            out.push('{');
            for (key, value) in keys {
                out.push_str(&format!("{key:?}:"));
                canonical(value, out);
                out.push(',');
            }
            out.push('}');
        }
        toml::Value::Array(values) => {
            out.push('[');
            for value in values {
                canonical(value, out);
                out.push(',');
            }
            out.push(']');
        }
        toml::Value::String(s) => out.push_str(&format!("{s:?}")),
        other => out.push_str(&other.to_string()),
    }
}

/// Where a restore goes by default: topic and partition of the oldest hop, the true origin. `None` where the record
/// does not tell, and on a record read back from the archive, which has no hops: decode it again.
pub fn restore_target<'d>(d: &'d Decoded<'_>) -> Option<(&'d str, Option<i32>)> {
    let oldest = d.hops.first()?;
    Some((oldest.topic.as_deref()?, oldest.partition))
}

#[cfg(test)]
mod payload_tests;
#[cfg(test)]
mod tests;
