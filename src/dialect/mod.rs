//! Dead-letter dialects: which program dead-lettered a record, and what its headers say.

use crate::error::Result;
use crate::record::{Decoded, RawRecord};

/// All dialect tables, compiled for decoding. Cheap to share behind an `Arc`.
#[derive(Debug)]
pub struct Dialects;

impl Dialects {
    /// The tables that come with the program.
    pub fn builtin() -> Self {
        todo!()
    }
    /// The built-in tables and the user's own, `(file name for messages, TOML text)`. A user's table with a
    /// built-in name replaces it.
    pub fn with_user_tables<'t>(_user: impl IntoIterator<Item = (&'t str, &'t str)>) -> Result<Self> {
        todo!()
    }
    /// Exactly these tables.
    pub fn from_tables<'t>(_tables: impl IntoIterator<Item = (&'t str, &'t str)>) -> Result<Self> {
        todo!()
    }
    /// Reads what the headers say. Never fails, never panics, linear in the record's size.
    pub fn decode<'a>(&'a self, _topic: &str, _partition: i32, _raw: &RawRecord<'a>) -> Decoded<'a> {
        todo!()
    }
    /// For each header of the record, in order, whether a restore leaves it out.
    pub fn strips(&self, _raw: &RawRecord<'_>) -> Vec<bool> {
        todo!()
    }
    /// Names of the dialects, in table order, without `unknown`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::empty()
    }
    /// A table's description and its TOML text.
    pub fn show(&self, _name: &str) -> Option<(&str, &str)> {
        todo!()
    }
    /// Hex SHA-256 over what the tables mean (comments and descriptions apart) and the decoder's version.
    pub fn digest(&self) -> String {
        todo!()
    }
}

/// Where a restore goes by default: topic and partition of the oldest hop, the true origin.
pub fn restore_target<'d>(d: &'d Decoded<'_>) -> Option<(&'d str, Option<i32>)> {
    let oldest = d.hops.first()?;
    Some((oldest.topic.as_deref()?, oldest.partition))
}
