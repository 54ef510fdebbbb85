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
mod key;
mod table;
mod value;

pub(crate) use code::host_label;
pub(crate) use table::{Field, PipelineSource};

use crate::error::{Error, Result};
use crate::record::{Decoded, PayloadState, RawRecord};
use decode::Decoder;
use index::Index;
use sha2::{Digest, Sha256};
use table::Table;
use value::Notes;

/// The dialect of a record that no table matches.
pub const UNKNOWN: &str = "unknown";

/// Counts the changes of this module's code that make it decode a record differently; part of [`Dialects::digest`].
const DECODER_VERSION: u32 = 1;

const BUILTIN: [(&str, &str); 5] = [
    ("knative.toml", include_str!("../../schemas/dialects/knative.toml")),
    ("connect.toml", include_str!("../../schemas/dialects/connect.toml")),
    ("share-group.toml", include_str!("../../schemas/dialects/share-group.toml")),
    ("streams.toml", include_str!("../../schemas/dialects/streams.toml")),
    ("spring.toml", include_str!("../../schemas/dialects/spring.toml")),
];

/// All dialect tables, ready to decode with. Share it behind an `Arc`.
#[derive(Debug)]
pub struct Dialects {
    tables: Vec<Table>,
    texts: Vec<String>,
    index: Index,
}

impl Dialects {
    /// The tables that come with the program.
    ///
    /// # Panics
    /// Never: a test parses them.
    pub fn builtin() -> Self {
        Self::from_tables(BUILTIN).expect("the built-in tables are valid")
    }

    /// The built-in tables and the user's own, each as `(file name for messages, TOML text)`. A user's table with a
    /// built-in name takes its place.
    pub fn with_user_tables<'t>(user: impl IntoIterator<Item = (&'t str, &'t str)>) -> Result<Self> {
        let user = Self::parse(user)?;
        let builtin = Self::parse(BUILTIN)?.into_iter().filter(|(b, _)| user.iter().all(|(u, _)| u.name != b.name));
        Ok(Self::compile(builtin.chain(user.iter().cloned()).collect()))
    }

    /// Exactly these tables, each as `(file name for messages, TOML text)`.
    pub fn from_tables<'t>(tables: impl IntoIterator<Item = (&'t str, &'t str)>) -> Result<Self> {
        Self::parse(tables).map(Self::compile)
    }

    fn parse<'t>(tables: impl IntoIterator<Item = (&'t str, &'t str)>) -> Result<Vec<(Table, String)>> {
        let mut parsed: Vec<(Table, String)> = Vec::new();
        for (file, text) in tables {
            let table = Table::parse(file, text)?;
            if parsed.iter().any(|(t, _)| t.name == table.name) {
                return Err(Error::config(format!("{file}: name: `{}` is another table's name too", table.name)));
            }
            parsed.push((table, text.to_owned()));
        }
        Ok(parsed)
    }

    fn compile(parsed: Vec<(Table, String)>) -> Self {
        let (tables, texts): (Vec<_>, Vec<_>) = parsed.into_iter().unzip();
        let index = Index::new(&tables);
        Self { tables, texts, index }
    }

    /// Reads what a record's headers say (and, for structured CloudEvents, its value). `topic` and `partition` are
    /// where the dead letter is.
    pub fn decode<'a>(&'a self, topic: &str, partition: i32, raw: &RawRecord<'a>) -> Decoded<'a> {
        let mut notes = Notes::default();
        let walk = self.index.walk(raw, &mut notes);
        Decoder { tables: &self.tables, index: &self.index, walk: &walk, notes }.decode(topic, partition, raw)
    }

    /// For each of the record's headers, in order, whether a restore leaves it out: it belongs to one of the dialects
    /// found on the record. The program's own headers are the restore's business.
    pub fn strips(&self, raw: &RawRecord<'_>) -> Vec<bool> {
        let walk = self.index.walk_headers(raw);
        let on_record = self.tables.iter().zip(&walk.found).filter(|(table, found)| found.matches(table));
        let strips: Vec<_> = on_record.map(|(table, _)| &table.strip).collect();
        let stripped = |name: &[u8]| {
            strips.iter().any(|s| {
                s.names.iter().any(|n| n.as_bytes() == name)
                    || s.prefixes.iter().any(|p| name.starts_with(p.as_bytes()))
            })
        };
        raw.headers.iter().map(|h| stripped(h.name)).collect()
    }

    /// The dialects' names in the order of their tables, without `unknown`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tables.iter().map(|t| t.name.as_str())
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
    /// descriptions) and the decoder's version.
    pub fn digest(&self) -> String {
        let mut sha = Sha256::new();
        sha.update(DECODER_VERSION.to_be_bytes());
        for text in &self.texts {
            let mut out = String::new();
            // A table that is there has been parsed.
            let mut table: toml::Table = toml::from_str(text).unwrap_or_default();
            table.remove("description");
            canonical(&toml::Value::Table(table), &mut out);
            sha.update((out.len() as u64).to_be_bytes());
            sha.update(out);
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
mod tests;
