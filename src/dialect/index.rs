//! One hash map over the header names of all tables, and the single walk over a record's headers with it.
//!
//! Owns detection and the collecting of what the tables ask for. Reads no value: that is [`super::decode`].
//! Invariant: each header is looked at once, whatever the number of tables.

use super::json::{self, Paths};
use super::table::{Code, Field, Original, Prefer, Source, Table};
use super::value::Notes;
use super::{code, uber};
use crate::record::{Headers, RawRecord};
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
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hit {
    pub slot: usize,
    pub position: usize,
}

/// What one table found on a record.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub hits: Vec<Hit>,
    pub last_position: usize,
    all: u64,
    any: bool,
    /// By a header that it must not have, by its topic, or as what it reads is damaged.
    excluded: bool,
}

/// What the names on a record mean to the tables: the same for all records that have the same ones, in the same order.
#[derive(Debug)]
pub(crate) struct Walk {
    /// By table.
    pub found: Vec<Found>,
    /// What tables take for the original's key and value, later ones in place of earlier ones: table and position.
    pub keys: Vec<(usize, usize)>,
    pub values: Vec<(usize, usize)>,
    /// The last such header's position.
    pub restore_count: Option<usize>,
    content_types: Vec<usize>,
}

/// A record's values, by their positions.
#[derive(Debug)]
pub(crate) struct Values<'a> {
    headers: Vec<Option<&'a [u8]>>,
    /// Of what was read of key and value.
    payload: Vec<Option<Cow<'a, [u8]>>>,
}

impl<'a> Values<'a> {
    pub fn of_headers(raw: &RawRecord<'a>) -> Self {
        let mut headers = Vec::with_capacity(raw.headers.len());
        headers.extend(raw.headers.values());
        Self { headers, payload: Vec::new() }
    }

    pub fn get(&self, position: usize) -> Option<Cow<'a, [u8]>> {
        match position.checked_sub(HEADERS) {
            Some(header) => self.header(header).map(Cow::Borrowed),
            None => self.payload.get(position).cloned().flatten(),
        }
    }

    fn header(&self, number: usize) -> Option<&'a [u8]> {
        self.headers.get(number).copied().flatten()
    }
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
    pub fn walk<'a>(&self, raw: &RawRecord<'a>, opted: &[usize], notes: &mut Notes) -> (Walk, Values<'a>) {
        let (mut walk, mut values) = (self.walk_headers(raw.headers), Values::of_headers(raw));
        if self.is_structured(&walk, &values) {
            self.walk_attributes(raw, &mut walk, &mut values, notes);
        }
        if self.reads_payload_for(opted) {
            if opted.iter().any(|t| self.payloads[*t].json_value) {
                self.walk_json(raw, &mut walk, &mut values, notes);
            }
            if opted.iter().any(|t| self.payloads[*t].uber_key) {
                self.walk_uber(raw, &mut walk, &mut values, notes);
            }
        }
        self.leave_out(&mut walk, opted);
        if !values.payload.is_empty() {
            walk.found.iter_mut().for_each(|found| found.hits.sort_by_key(|hit| hit.position));
        }
        (walk, values)
    }

    /// Tables that are read only on topics that ask for them match nothing elsewhere.
    pub fn leave_out(&self, walk: &mut Walk, opted: &[usize]) {
        for t in self.opt_in.iter().filter(|t| !opted.contains(t)) {
            walk.found[*t].excluded = true;
        }
    }

    /// Whether these tables read key or value of every record.
    pub fn reads_payload_for(&self, opted: &[usize]) -> bool {
        opted.iter().any(|t| self.reads_payload(*t))
    }

    /// Whether the value holds the whole event, by the last `content-type` that is not null.
    pub fn is_structured(&self, walk: &Walk, values: &Values<'_>) -> bool {
        let mut content_type = walk.content_types.iter().rev().filter_map(|number| values.header(*number));
        self.structured && content_type.next().is_some_and(code::is_structured)
    }

    fn walk_json<'a>(&self, raw: &RawRecord<'a>, walk: &mut Walk, values: &mut Values<'a>, notes: &mut Notes) {
        // A tombstone holds nothing, and is none the worse for it.
        let Some(value) = raw.value else { return };
        let whole = self.paths.read(value, |name, text| {
            let uses = self.payload_names.get(name.as_bytes());
            walk.put(&self.slots, uses, values.payload.len());
            values.payload.push(text.map(bytes_of));
        });
        if !whole {
            // A part of one tells nothing.
            let of_json = self.payloads.iter().zip(&mut walk.found).filter(|(p, _)| p.json_value);
            of_json.for_each(|(_, found)| found.excluded = true);
            notes.add("value", "no JSON document");
        }
    }

    fn walk_uber<'a>(&self, raw: &RawRecord<'a>, walk: &mut Walk, values: &mut Values<'a>, notes: &mut Notes) {
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
            walk.put(&self.slots, self.payload_names.get(name.as_bytes()), values.payload.len());
            values.payload.push(Some(value));
        }
    }

    /// Whether the table reads more than headers.
    pub fn reads_payload(&self, t: usize) -> bool {
        self.payloads[t].json_value || self.payloads[t].uber_key
    }

    pub fn walk_headers(&self, headers: Headers<'_>) -> Walk {
        let found = std::iter::repeat_with(Found::default).take(self.slots.len()).collect();
        let (keys, values) = (Vec::new(), Vec::new());
        let mut walk = Walk { found, keys, values, restore_count: None, content_types: Vec::new() };
        for (number, name) in headers.names().iter().enumerate() {
            self.put(&mut walk, HEADERS + number, name);
        }
        walk
    }

    fn walk_attributes<'a>(&self, raw: &RawRecord<'a>, walk: &mut Walk, values: &mut Values<'a>, notes: &mut Notes) {
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
            self.put(walk, values.payload.len(), name.as_bytes());
            values.payload.push(value.map(bytes_of));
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

    fn put(&self, walk: &mut Walk, position: usize, name: &[u8]) {
        walk.put(&self.slots, self.names.get(name), position);
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

impl Walk {
    fn put(&mut self, slots: &[Vec<Slot>], uses: Option<&Vec<Use>>, position: usize) {
        for u in uses.into_iter().flatten() {
            match *u {
                Use::All { table, bit } => self.found[table].all |= bit,
                Use::Any { table } => self.found[table].any = true,
                Use::None { table } => self.found[table].excluded = true,
                Use::Slot { table, slot } => self.found[table].hits.push(Hit { slot, position }),
                Use::Key { table } => self.keys.push((table, position)),
                Use::Value { table } => self.values.push((table, position)),
                // These two are headers alone: what the value holds under such a name is none.
                Use::ContentType => self.content_types.extend(position.checked_sub(HEADERS)),
                Use::RestoreCount => self.restore_count = position.checked_sub(HEADERS).map(|_| position),
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
