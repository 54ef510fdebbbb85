//! One hash map over the header names of all tables, and the single walk over a record's headers with it.
//!
//! Owns detection and the collecting of what the tables ask for. Reads no value: that is [`super::decode`].
//! Invariant: each header is looked at once, whatever the number of tables.

use super::json::{self, Paths};
use super::table::{Code, Field, Original, Prefer, Source, Table};
use super::value::Notes;
use super::{code, uber};
use crate::record::RawRecord;
use ahash::AHashMap;
use std::borrow::Cow;

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
    Key { table: usize },
    Value { table: usize },
    ContentType,
    RestoreCount,
}

impl Use {
    fn table(self) -> Option<usize> {
        match self {
            Self::All { table, .. } | Self::Any { table } | Self::None { table } | Self::Slot { table, .. } => {
                Some(table)
            }
            Self::Key { table } | Self::Value { table } => Some(table),
            Self::ContentType | Self::RestoreCount => None,
        }
    }
}

/// Whether a table means a part of key or value by this name, and no header.
fn is_of_payload(table: &Table, name: &str) -> bool {
    table.code.contains(&Code::JsonValue) && json::is_path(name)
        || table.code.contains(&Code::UberKey) && uber::FIELDS.contains(&name)
}

#[derive(Debug)]
pub(crate) struct Index {
    // The tables choose what is in it, so that no record can make its hashes collide.
    names: AHashMap<Box<[u8]>, Vec<Use>>,
    /// What tables read of keys and values: no header is taken for it.
    payload_names: AHashMap<Box<[u8]>, Vec<Use>>,
    /// By their first byte: most headers have none that could fit.
    any_prefixes: Vec<Vec<(Box<[u8]>, usize)>>,
    /// By table: what [`Found::all`] has to be.
    all: Vec<u64>,
    /// By table; the slots of a field in the order of its `from`.
    pub slots: Vec<Vec<Slot>>,
    structured: bool,
    /// By table: what it reads of a payload.
    payloads: Vec<PayloadCode>,
    paths: Paths,
    opt_in: Vec<usize>,
}

#[derive(Debug, Clone, Copy, Default)]
struct PayloadCode {
    json_value: bool,
    uber_key: bool,
}

/// Positions of headers begin here, behind all that key and value can hold: who writes into those does it before
/// others append headers.
const HEADERS: usize = 1 << 32;

/// A header that fills a slot. `position` is its place among the record's headers; what is read of key and value comes
/// before them.
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
    /// By a header that it must not have, by its topic, or as what it reads is damaged.
    excluded: bool,
}

#[derive(Debug)]
pub(crate) struct Walk<'a> {
    /// By table.
    pub found: Vec<Found<'a>>,
    /// What tables take for the original's key and value, later ones in place of earlier ones.
    pub keys: Vec<(usize, Option<Cow<'a, [u8]>>)>,
    pub values: Vec<(usize, Option<Cow<'a, [u8]>>)>,
    /// The last such header's value, null being `Some(None)`.
    pub restore_count: Option<Option<&'a [u8]>>,
    content_type: Option<&'a [u8]>,
    /// The position of what is read next of key and value.
    payload: usize,
}

impl Index {
    pub fn new(tables: &[Table]) -> Self {
        let mut names: AHashMap<Box<[u8]>, Vec<Use>> = AHashMap::new();
        let mut payload_names: AHashMap<Box<[u8]>, Vec<Use>> = AHashMap::new();
        let mut add = |name: &str, u: Use| {
            let of_payload = u.table().is_some_and(|t| is_of_payload(&tables[t], name));
            let names = if of_payload { &mut payload_names } else { &mut names };
            names.entry(name.as_bytes().into()).or_default().push(u);
        };
        let mut any_prefixes = vec![Vec::new(); 256];
        let mut slots = Vec::new();
        for (t, table) in tables.iter().enumerate() {
            let d = &table.detect;
            for (i, name) in d.all.iter().enumerate() {
                add(name, Use::All { table: t, bit: 1 << i });
            }
            d.any.iter().for_each(|name| add(name, Use::Any { table: t }));
            d.none.iter().for_each(|name| add(name, Use::None { table: t }));
            for prefix in &d.any_prefix {
                if let Some(first) = prefix.as_bytes().first() {
                    any_prefixes[usize::from(*first)].push((prefix.as_bytes().into(), t));
                }
            }
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
            let originals =
                [(&table.restore.key, Use::Key { table: t }), (&table.restore.value, Use::Value { table: t })];
            for (original, u) in originals {
                if let Some(Original { header, .. }) = original {
                    add(header, u);
                }
            }
        }
        add(CONTENT_TYPE, Use::ContentType);
        add(RESTORE_COUNT, Use::RestoreCount);
        let structured = tables.iter().any(|t| t.code.contains(&Code::CloudeventsStructured));
        let payload = |t: &Table| PayloadCode {
            json_value: t.code.contains(&Code::JsonValue),
            uber_key: t.code.contains(&Code::UberKey),
        };
        let payloads: Vec<_> = tables.iter().map(payload).collect();
        let mut paths = Paths::default();
        if payloads.iter().any(|p| p.json_value) {
            payload_names.keys().filter_map(|name| str::from_utf8(name).ok()).for_each(|name| {
                paths.add(name);
            });
        }
        let opt_in = tables.iter().enumerate().filter(|(_, t)| t.opt_in).map(|(i, _)| i).collect();
        let all = tables.iter().map(|t| (0..t.detect.all.len()).fold(0, |bits, i| bits | 1u64 << i)).collect();
        Self { names, payload_names, any_prefixes, all, slots, structured, payloads, paths, opt_in }
    }

    /// Walks the headers; then, if the record is a structured CloudEvent, its attributes; then what the tables in
    /// `opted` read of key and value.
    pub fn walk<'a>(&self, raw: &RawRecord<'a>, opted: &[usize], notes: &mut Notes) -> Walk<'a> {
        let mut walk = self.walk_headers(raw);
        if self.structured && walk.content_type.is_some_and(code::is_structured) {
            self.walk_attributes(raw, &mut walk, notes);
        }
        let asks = |of: fn(&PayloadCode) -> bool| opted.iter().any(|t| of(&self.payloads[*t]));
        if asks(|p| p.json_value) {
            self.walk_json(raw, &mut walk, notes);
        }
        if asks(|p| p.uber_key) {
            self.walk_uber(raw, &mut walk, notes);
        }
        for t in self.opt_in.iter().filter(|t| !opted.contains(t)) {
            walk.found[*t].excluded = true;
        }
        if walk.payload > 0 {
            walk.found.iter_mut().for_each(|found| found.hits.sort_by_key(|hit| hit.position));
        }
        walk
    }

    fn walk_json<'a>(&self, raw: &RawRecord<'a>, walk: &mut Walk<'a>, notes: &mut Notes) {
        // A tombstone holds nothing, and is none the worse for it.
        let Some(value) = raw.value else { return };
        let whole = self.paths.read(value, |name, text| {
            let uses = self.payload_names.get(name.as_bytes());
            walk.put(&self.slots, uses, walk.payload, text.map(bytes_of), None);
            walk.payload += 1;
        });
        if !whole {
            // A part of one tells nothing.
            let of_json = self.payloads.iter().zip(&mut walk.found).filter(|(p, _)| p.json_value);
            of_json.for_each(|(_, found)| found.excluded = true);
            notes.add("value", "no JSON document");
        }
    }

    fn walk_uber<'a>(&self, raw: &RawRecord<'a>, walk: &mut Walk<'a>, notes: &mut Notes) {
        let Some(fields) = uber::fields(raw.key.unwrap_or_default()) else {
            notes.add("key", "no message of Uber's consumer proxy");
            return;
        };
        // Without a topic it tells of no original; with one, what is absent is 0.
        if fields[1].is_none() {
            return;
        }
        for (name, part) in uber::FIELDS.into_iter().zip(fields) {
            let value = match part {
                Some(uber::Part::Bytes(bytes)) => Cow::Borrowed(bytes),
                Some(uber::Part::Number(n)) => Cow::Owned(n.to_string().into_bytes()),
                None if name == uber::KEY => continue,
                None => Cow::Borrowed(&b"0"[..]),
            };
            walk.put(&self.slots, self.payload_names.get(name.as_bytes()), walk.payload, Some(value), None);
            walk.payload += 1;
        }
    }

    /// Whether the table reads more than headers.
    pub fn reads_payload(&self, t: usize) -> bool {
        self.payloads[t].json_value || self.payloads[t].uber_key
    }

    pub fn walk_headers<'a>(&self, raw: &RawRecord<'a>) -> Walk<'a> {
        let found = std::iter::repeat_with(Found::default).take(self.slots.len()).collect();
        let mut walk =
            Walk { found, keys: Vec::new(), values: Vec::new(), restore_count: None, content_type: None, payload: 0 };
        for (position, header) in raw.headers.iter().enumerate() {
            self.put(&mut walk, HEADERS + position, header.name, header.value.map(Cow::Borrowed), header.value);
        }
        walk
    }

    fn walk_attributes<'a>(&self, raw: &RawRecord<'a>, walk: &mut Walk<'a>, notes: &mut Notes) {
        let named = |name: &str| format!("{ATTRIBUTE_PREFIX}{name}");
        let mut found = Vec::new();
        let read = code::attributes(
            raw.value.unwrap_or_default(),
            |name| self.knows(named(name).as_bytes()),
            |name, value| found.push((named(name), value)),
        );
        if !read {
            notes.add("structured CloudEvent", "the value is no JSON object");
            return;
        }
        for (name, value) in found {
            let position = walk.payload;
            self.put(walk, position, name.as_bytes(), value.map(bytes_of), None);
            walk.payload += 1;
        }
    }

    pub fn knows(&self, name: &[u8]) -> bool {
        self.names.contains_key(name) || self.prefixes(name).next().is_some()
    }

    /// Whose prefixes the name begins with.
    fn prefixes(&self, name: &[u8]) -> impl Iterator<Item = usize> {
        let near = name.first().map_or(&[][..], |first| &self.any_prefixes[usize::from(*first)]);
        near.iter().filter(move |(prefix, _)| name.starts_with(prefix)).map(|(_, table)| *table)
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
        walk.put(&self.slots, self.names.get(name), position, value, raw);
        for table in self.prefixes(name) {
            walk.found[table].any = true;
            walk.found[table].last_position = walk.found[table].last_position.max(position);
        }
    }
}

fn bytes_of(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

impl<'a> Walk<'a> {
    fn put(
        &mut self,
        slots: &[Vec<Slot>],
        uses: Option<&Vec<Use>>,
        position: usize,
        value: Option<Cow<'a, [u8]>>,
        raw: Option<&'a [u8]>,
    ) {
        for u in uses.into_iter().flatten() {
            match *u {
                Use::All { table, bit } => self.found[table].all |= bit,
                Use::Any { table } => self.found[table].any = true,
                Use::None { table } => self.found[table].excluded = true,
                Use::Slot { table, slot } => {
                    self.found[table].hits.push(Hit { slot, position, value: value.clone() });
                }
                Use::Key { table } => self.keys.push((table, value.clone())),
                Use::Value { table } => self.values.push((table, value.clone())),
                Use::ContentType => self.content_type = raw.or(self.content_type),
                Use::RestoreCount => self.restore_count = Some(raw),
            }
            match *u {
                // The event's own headers say nothing about when it failed.
                Use::Slot { table, slot } if slots[table][slot].field.is_event() => {}
                Use::All { table, .. } | Use::Any { table } | Use::Slot { table, .. } => {
                    self.found[table].last_position = self.found[table].last_position.max(position);
                }
                _ => {}
            }
        }
    }

    /// Whether the record is of this table's dialect.
    pub fn matches(&self, index: &Index, t: usize, table: &Table) -> bool {
        let (found, d) = (&self.found[t], &table.detect);
        found.all == index.all[t] && !found.excluded && (found.any || d.any.is_empty() && d.any_prefix.is_empty())
    }
}
