//! One hash map over the header names of all tables, and the single walk over a record's headers with it.
//!
//! Owns detection and the collecting of what the tables ask for. Reads no value: that is [`super::decode`].
//! Invariant: each header is looked at once, whatever the number of tables.

use super::code;
use super::table::{Code, Field, Prefer, Source, Table};
use super::value::Notes;
use crate::record::RawRecord;
use std::borrow::Cow;
use std::collections::HashMap;

/// The tool's own header: how often a record was restored before.
pub(crate) const RESTORE_COUNT: &str = "dlq-archiver-restore-count";
const CONTENT_TYPE: &str = "content-type";
/// What the Kafka binding puts before an attribute's name in binary mode.
const ATTRIBUTE_PREFIX: &str = "ce_";

/// One header that one table reads into one field.
#[derive(Debug)]
pub(crate) struct Slot {
    pub field: Field,
    pub source: Source,
    /// Repeated with each failure, so a part of a hop.
    pub in_hop: bool,
    /// Of the field's headers the newest is preferred, not the first that is listed.
    pub newest_first: bool,
}

#[derive(Debug, Clone, Copy)]
enum Use {
    All { table: usize, bit: u64 },
    Any { table: usize },
    None { table: usize },
    Slot { table: usize, slot: usize },
    ContentType,
    RestoreCount,
}

#[derive(Debug)]
pub(crate) struct Index {
    names: HashMap<Box<[u8]>, Vec<Use>>,
    any_prefixes: Vec<(Box<[u8]>, usize)>,
    /// By table; the slots of a field in the order of its `from`.
    pub slots: Vec<Vec<Slot>>,
    structured: bool,
}

/// A header that fills a slot. `position` is its place among the record's headers, the attributes of a structured
/// event after them.
#[derive(Debug)]
pub(crate) struct Hit<'a> {
    pub slot: usize,
    pub position: usize,
    pub value: Option<Cow<'a, [u8]>>,
}

/// What one table found on a record.
#[derive(Debug, Default)]
pub(crate) struct Found<'a> {
    pub hits: Vec<Hit<'a>>,
    pub last_position: usize,
    all: u64,
    any: bool,
    none: bool,
}

#[derive(Debug)]
pub(crate) struct Walk<'a> {
    /// By table.
    pub found: Vec<Found<'a>>,
    /// The last such header's value, null being `Some(None)`.
    pub restore_count: Option<Option<&'a [u8]>>,
    content_type: Option<&'a [u8]>,
}

impl Index {
    pub fn new(tables: &[Table]) -> Self {
        let mut names: HashMap<Box<[u8]>, Vec<Use>> = HashMap::new();
        let mut add = |name: &str, u: Use| names.entry(name.as_bytes().into()).or_default().push(u);
        let mut any_prefixes = Vec::new();
        let mut slots = Vec::new();
        for (t, table) in tables.iter().enumerate() {
            let d = &table.detect;
            for (i, name) in d.all.iter().enumerate() {
                add(name, Use::All { table: t, bit: 1 << i });
            }
            d.any.iter().for_each(|name| add(name, Use::Any { table: t }));
            d.none.iter().for_each(|name| add(name, Use::None { table: t }));
            any_prefixes.extend(d.any_prefix.iter().map(|p| (p.as_bytes().into(), t)));
            let mut table_slots = Vec::new();
            for (&field, rule) in &table.fields {
                for source in &rule.from {
                    add(&source.header, Use::Slot { table: t, slot: table_slots.len() });
                    let mut source = source.clone();
                    source.encoding = Some(rule.encoding_of(field, &source));
                    let in_hop = !field.is_event() && !table.replaced.contains(&field);
                    let newest_first = rule.prefer == Prefer::Newest;
                    table_slots.push(Slot { field, source, in_hop, newest_first });
                }
            }
            slots.push(table_slots);
        }
        add(CONTENT_TYPE, Use::ContentType);
        add(RESTORE_COUNT, Use::RestoreCount);
        let structured = tables.iter().any(|t| t.code.contains(&Code::CloudeventsStructured));
        Self { names, any_prefixes, slots, structured }
    }

    /// Walks the headers; then, if the record is a structured CloudEvent, its attributes.
    pub fn walk<'a>(&self, raw: &RawRecord<'a>, notes: &mut Notes) -> Walk<'a> {
        let mut walk = self.walk_headers(raw);
        if self.structured && walk.content_type.is_some_and(code::is_structured) {
            self.walk_attributes(raw, &mut walk, notes);
        }
        walk
    }

    pub fn walk_headers<'a>(&self, raw: &RawRecord<'a>) -> Walk<'a> {
        let found = std::iter::repeat_with(Found::default).take(self.slots.len()).collect();
        let mut walk = Walk { found, restore_count: None, content_type: None };
        for (position, header) in raw.headers.iter().enumerate() {
            self.put(&mut walk, position, header.name, header.value.map(Cow::Borrowed), header.value);
        }
        walk
    }

    fn walk_attributes<'a>(&self, raw: &RawRecord<'a>, walk: &mut Walk<'a>, notes: &mut Notes) {
        let named = |name: &str| format!("{ATTRIBUTE_PREFIX}{name}");
        let mut found = Vec::new();
        let read = code::attributes(
            raw.value.unwrap_or_default(),
            |name| self.asks_for(named(name).as_bytes()),
            |name, value| found.push((named(name), value)),
        );
        if !read {
            notes.add("structured CloudEvent", "the value is no JSON object");
            return;
        }
        let first = raw.headers.len();
        for (i, (name, value)) in found.into_iter().enumerate() {
            let value = value.map(|v| match v {
                Cow::Borrowed(v) => Cow::Borrowed(v.as_bytes()),
                Cow::Owned(v) => Cow::Owned(v.into_bytes()),
            });
            self.put(walk, first + i, name.as_bytes(), value, None);
        }
    }

    fn asks_for(&self, name: &[u8]) -> bool {
        self.names.contains_key(name) || self.any_prefixes.iter().any(|(prefix, _)| name.starts_with(prefix))
    }

    /// `raw` is the value as a header has it, for the two headers that no table reads.
    fn put<'a>(
        &self,
        walk: &mut Walk<'a>,
        position: usize,
        name: &[u8],
        value: Option<Cow<'a, [u8]>>,
        raw: Option<&'a [u8]>,
    ) {
        for u in self.names.get(name).into_iter().flatten() {
            match *u {
                Use::All { table, bit } => walk.found[table].all |= bit,
                Use::Any { table } => walk.found[table].any = true,
                Use::None { table } => walk.found[table].none = true,
                Use::Slot { table, slot } => {
                    walk.found[table].hits.push(Hit { slot, position, value: value.clone() });
                }
                Use::ContentType => walk.content_type = raw.or(walk.content_type),
                Use::RestoreCount => walk.restore_count = Some(raw),
            }
            match *u {
                // The event's own headers say nothing about when it failed.
                Use::Slot { table, slot } if self.slots[table][slot].field.is_event() => {}
                Use::All { table, .. } | Use::Any { table } | Use::Slot { table, .. } => {
                    walk.found[table].last_position = position;
                }
                _ => {}
            }
        }
        for (prefix, table) in &self.any_prefixes {
            if name.starts_with(prefix) {
                walk.found[*table].any = true;
                walk.found[*table].last_position = position;
            }
        }
    }
}

impl Found<'_> {
    pub fn matches(&self, table: &Table) -> bool {
        let d = &table.detect;
        let all = d.all.iter().enumerate().fold(0, |bits, (i, _)| bits | 1u64 << i);
        self.all == all && !self.none && (self.any || d.any.is_empty() && d.any_prefix.is_empty())
    }
}
