//! From what the walk found to the decoded columns: hops, the newest failure, and the tables' rules.
//!
//! Owns the order of failures on a record. Invariant: `error_*`, `attempts` and `origin_*` come from one failure, the
//! newest; hops are oldest first; linear in what was found.

use super::code;
use super::index::{Found, Hit, Index, RESTORE_COUNT, Slot, Walk};
use super::key;
use super::table::{Code, Encoding, Field, FieldKind, NullRule, Source, Table, TimeRule, Which};
use super::value::{self, Notes, Value};
use crate::record::{Decoded, Hop, PayloadState, RawRecord, TimestampType};
use std::borrow::Cow;

/// A failure's columns, by [`Field`].
#[derive(Debug, Default)]
struct Columns<'a>([Value<'a>; Field::ALL.len()]);

impl<'a> Columns<'a> {
    fn get(&self, field: Field) -> &Value<'a> {
        &self.0[field as usize]
    }
    fn or<'c>(&'c self, event: &'c Self, field: Field) -> &'c Value<'a> {
        if field.is_event() { event.get(field) } else { self.get(field) }
    }
    fn text(&self, field: Field) -> Option<&Cow<'a, str>> {
        match self.get(field) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
    fn int(&self, field: Field) -> Option<i64> {
        match self.get(field) {
            Value::Int(n) => Some(*n),
            _ => None,
        }
    }
    fn int32(&self, field: Field) -> Option<i32> {
        self.int(field).and_then(|n| n.try_into().ok())
    }
    fn set(&mut self, field: Field, value: Value<'a>) {
        self.0[field as usize] = value;
    }
    fn take_text(&mut self, field: Field) -> Option<Cow<'a, str>> {
        match std::mem::take(&mut self.0[field as usize]) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// One failure: which of a table's hits are its own.
struct Failure {
    table: usize,
    /// Of the hits that hops are made of.
    hits: Vec<usize>,
    /// Place among the record's failures: where its last header is.
    position: usize,
    /// The table's newest failure, to which the headers belong that are replaced each time.
    newest: bool,
}

/// Splits a table's hits into failures, in header order. A new one begins where a header of the current one comes
/// again, or a second header for the origin's topic, partition or offset.
fn failures(table_index: usize, table: &Table, slots: &[Slot], found: &Found<'_>) -> Vec<Failure> {
    let mut failures: Vec<Failure> = Vec::new();
    // Who set a slot or a position field last: (failure's number from 1, header's position).
    let mut slot_seen = vec![0usize; slots.len()];
    let mut field_seen = [(0usize, 0usize); Field::ALL.len()];
    for (i, hit) in found.hits.iter().enumerate() {
        let slot = &slots[hit.slot];
        if !slot.in_hop {
            continue;
        }
        let number = failures.len();
        let (seen_in, seen_at) = field_seen[slot.field as usize];
        let second = slot.field.is_position() && seen_in == number && seen_at != hit.position;
        if number == 0 || slot_seen[hit.slot] == number || second {
            failures.push(Failure { table: table_index, hits: Vec::new(), position: 0, newest: false });
        }
        let number = failures.len();
        slot_seen[hit.slot] = number;
        field_seen[slot.field as usize] = (number, hit.position);
        if let Some(failure) = failures.last_mut() {
            failure.hits.push(i);
            failure.position = hit.position;
        }
    }
    if failures.is_empty() {
        let position = found.last_position;
        failures.push(Failure { table: table_index, hits: Vec::new(), position, newest: false });
    }
    if table.newest == Which::First {
        failures.reverse();
        // Prepended headers push the older ones back: keep the table's failures together.
        failures.iter_mut().for_each(|f| f.position = found.last_position);
    }
    if let Some(newest) = failures.last_mut() {
        newest.newest = true;
    }
    failures
}

pub(crate) struct Decoder<'a, 'w> {
    pub tables: &'a [Table],
    pub index: &'a Index,
    pub walk: &'w Walk<'a>,
    pub notes: Notes,
}

impl<'a> Decoder<'a, '_> {
    pub fn decode(mut self, topic: &str, partition: i32, raw: &RawRecord<'a>) -> Decoded<'a> {
        let mut all: Vec<Failure> = Vec::new();
        for (t, found) in self.walk.found.iter().enumerate() {
            if self.walk.matches(self.index, t, &self.tables[t]) {
                all.extend(failures(t, &self.tables[t], &self.index.slots[t], found));
            }
        }
        all.sort_by_key(|f| f.position);
        let event = self.event(&all);
        let mut failure_key = None;
        let mut newest = Columns::default();
        let mut hops = Vec::with_capacity(all.len());
        for (i, failure) in all.iter().enumerate() {
            let is_newest = i + 1 == all.len();
            let table = &self.tables[failure.table];
            let mut columns = self.failure(failure, is_newest, &event);
            if is_newest {
                self.times(table, raw, &mut columns);
            }
            failure_key = failure_key.or_else(|| key::of_failure(table, |f| columns.or(&event, f)));
            hops.push(hop(table, &columns));
            if is_newest {
                newest = columns;
            }
        }
        let dialect = all.last().map_or(super::UNKNOWN, |f| &self.tables[f.table].name);
        let decoded = Decoded {
            dialect: Cow::Borrowed(dialect),
            failure_key: failure_key.unwrap_or_else(|| key::of_position(topic, partition, raw.offset)),
            payload_state: self.payload_state(&all, raw),
            prior_restores: self.prior_restores(),
            hops,
            ..Decoded::default()
        };
        columns_into(newest, event, self.notes, decoded)
    }

    /// The event's own columns: by the newest failure's table first, then the others on the record, then those that
    /// read them always.
    fn event(&mut self, all: &[Failure]) -> Columns<'a> {
        let mut columns = Columns::default();
        let mut on_record = vec![false; self.tables.len()];
        all.iter().for_each(|f| on_record[f.table] = true);
        let newest = all.last().map(|f| f.table);
        for t in newest.into_iter().chain((0..self.tables.len()).filter(|t| Some(*t) != newest)) {
            if self.walk.found[t].hits.is_empty() {
                continue;
            }
            let wanted = |s: &Slot| {
                let rule = self.tables[t].fields.get(&s.field);
                s.field.is_event() && (on_record[t] || rule.is_some_and(|r| r.always))
            };
            let picked = self.pick(t, wanted);
            self.read(t, &picked, &mut columns);
        }
        columns
    }

    /// Of each wanted slot that is not part of a hop, the hit that counts.
    fn pick(&self, t: usize, wanted: impl Fn(&Slot) -> bool) -> Vec<Option<usize>> {
        let (table, slots) = (&self.tables[t], &self.index.slots[t]);
        let mut picked = vec![None; slots.len()];
        for (i, hit) in self.walk.found[t].hits.iter().enumerate() {
            let slot = &slots[hit.slot];
            if slot.in_hop || !wanted(slot) {
                continue;
            }
            let which = table.fields.get(&slot.field).and_then(|r| r.pick).unwrap_or(table.newest);
            if which == Which::Last || picked[hit.slot].is_none() {
                picked[hit.slot] = Some(i);
            }
        }
        picked
    }

    /// The columns of one failure, without the event's: those are the record's, and copying them for each of many
    /// failures would not be linear.
    fn failure(&mut self, failure: &Failure, is_newest: bool, event: &Columns<'a>) -> Columns<'a> {
        let t = failure.table;
        let slots = &self.index.slots[t];
        // A stack trace is read for the columns only, where it is borrowed.
        let wanted = |field: Field| is_newest || field != Field::ErrorStacktrace;
        let mut picked = if failure.newest {
            self.pick(t, |s| !s.field.is_event() && wanted(s.field))
        } else {
            vec![None; slots.len()]
        };
        for &i in &failure.hits {
            let slot = self.walk.found[t].hits[i].slot;
            if wanted(slots[slot].field) {
                picked[slot] = Some(i);
            }
        }
        let mut columns = Columns::default();
        self.read(t, &picked, &mut columns);
        if failure.newest && self.tables[t].code.contains(&Code::Vast) {
            self.vast(event, &mut columns);
        }
        columns
    }

    /// Reads picked hits into the columns that are still empty, a field's in the order of preference.
    fn read(&mut self, t: usize, picked: &[Option<usize>], columns: &mut Columns<'a>) {
        let (slots, hits) = (&self.index.slots[t], &self.walk.found[t].hits);
        let mut order: Vec<(usize, &Hit<'a>)> = picked.iter().flatten().map(|&i| (hits[i].slot, &hits[i])).collect();
        if slots.iter().any(|s| s.newest_first) {
            let newest = self.tables[t].newest;
            order.sort_by_key(|&(slot, hit)| match (slots[slot].newest_first, newest) {
                (false, _) => (slots[slot].field, slot),
                (true, Which::First) => (slots[slot].field, hit.position),
                (true, Which::Last) => (slots[slot].field, usize::MAX - hit.position),
            });
        }
        // A field can be settled and null.
        let mut settled = [false; Field::ALL.len()];
        for (slot, hit) in order {
            let slot = &slots[slot];
            let field = slot.field;
            if settled[field as usize] || *columns.get(field) != Value::None {
                continue;
            }
            if let Some(value) = self.read_slot(slot, hit) {
                columns.set(field, value);
                settled[field as usize] = true;
            }
        }
    }

    /// `None` sends the reader on to the field's next header.
    fn read_slot(&mut self, slot: &Slot, hit: &Hit<'a>) -> Option<Value<'a>> {
        let Source { header, .. } = &slot.source;
        let Some(bytes) = hit.value.clone() else {
            return (slot.source.null == NullRule::Stop).then_some(Value::None);
        };
        let encoding = slot.source.encoding.unwrap_or(Encoding::Text);
        let read = match slot.field.kind() {
            FieldKind::Text => {
                let Some(text) = value::encoded_text(bytes, encoding, header, &mut self.notes) else {
                    return Some(Value::None);
                };
                return self.cut(slot, text);
            }
            FieldKind::Integer => value::integer_field(&bytes, encoding, slot.source.add, slot.field),
            FieldKind::Time => value::time_field(&bytes, encoding, slot.source.unit),
        };
        Some(read.map(|n| n.map_or(Value::None, Value::Int)).unwrap_or_else(|what| {
            self.notes.add(header, what);
            Value::None
        }))
    }

    fn cut(&mut self, slot: &Slot, text: Cow<'a, str>) -> Option<Value<'a>> {
        let source = &slot.source;
        let text = match &source.after {
            Some(mark) => part(&text, |s| s.split_once(mark.as_str()).map(|(_, after)| after))?,
            None => text,
        };
        let before = |mark: &String| part(&text, |s| s.split_once(mark.as_str()).map(|(before, _)| before));
        let text = source.before.as_ref().and_then(before).unwrap_or(text);
        if slot.field == Field::OriginTopic && text.is_empty() {
            self.notes.add(&source.header, "an empty topic name");
            return Some(Value::None);
        }
        Some(Value::Text(text))
    }

    /// VAST tells the origin's topic in the subject and the function in the destination.
    fn vast(&mut self, event: &Columns<'a>, columns: &mut Columns<'a>) {
        if !event.text(Field::EventSource).is_some_and(|source| code::is_vast(source)) {
            return;
        }
        if let Some(subject) = event.text(Field::EventSubject) {
            match part(subject, code::vast_topic) {
                Some(topic) => columns.set(Field::OriginTopic, Value::Text(topic)),
                None => self.notes.add("ce_subject", "no topic after a broker view's name"),
            }
        }
        let function = columns.text(Field::ErrorDestination).and_then(|d| part(d, code::vast_function));
        if let Some(function) = function {
            columns.set(Field::ErrorComponent, Value::Text(function));
        }
    }

    /// Times that the record's own timestamp tells, where no header did.
    fn times(&mut self, table: &Table, raw: &RawRecord<'a>, columns: &mut Columns<'a>) {
        let rules = [
            (Field::FailedAt, table.timestamps.failed_at),
            (Field::OriginTimestamp, table.timestamps.origin_timestamp),
        ];
        for (field, rule) in rules {
            let applies = match rule {
                TimeRule::Never => false,
                TimeRule::Record => true,
                TimeRule::RecordIfCreateTime => raw.timestamp_type == TimestampType::CreateTime,
                TimeRule::RecordIfLogAppendTime => raw.timestamp_type == TimestampType::LogAppendTime,
            };
            // Where nothing came from anywhere, there is no original whose time it could be.
            let nobodys = field == Field::OriginTimestamp && *columns.get(Field::OriginTopic) == Value::None;
            if !applies || nobodys || *columns.get(field) != Value::None {
                continue;
            }
            match value::kafka_time(raw.timestamp_ms) {
                Ok(us) => columns.set(field, us.map_or(Value::None, Value::Int)),
                Err(what) => self.notes.add("kafka timestamp", what),
            }
        }
    }

    /// What was not copied once is missing for ever, so an older failure's `not_copied` and `copied_bare` stay.
    fn payload_state(&self, all: &[Failure], raw: &RawRecord<'a>) -> PayloadState {
        let state = |table: &Table| match (raw.key, raw.value) {
            (None, None) => table.payload.null_key_and_value,
            (_, None) => table.payload.null_value,
            _ => table.payload.otherwise,
        };
        let states = || all.iter().map(|f| state(&self.tables[f.table]));
        let lossy = [PayloadState::NotCopied, PayloadState::CopiedBare];
        let lost = lossy.into_iter().find(|l| states().any(|s| s == *l));
        lost.or_else(|| states().next_back()).unwrap_or(match raw.value {
            None => PayloadState::Tombstone,
            Some(_) => PayloadState::Present,
        })
    }

    fn prior_restores(&mut self) -> i32 {
        let Some(value) = self.walk.restore_count else { return 0 };
        let count = value::integer_field(value.unwrap_or_default(), Encoding::Decimal, 0, Field::Attempts);
        count.ok().flatten().and_then(|n| n.try_into().ok()).unwrap_or_else(|| {
            self.notes.add(RESTORE_COUNT, "not a count");
            0
        })
    }
}

/// A part of a text, borrowed for as long as the text is.
fn part<'a>(text: &Cow<'a, str>, find: impl for<'s> Fn(&'s str) -> Option<&'s str>) -> Option<Cow<'a, str>> {
    match text {
        Cow::Borrowed(s) => find(s).map(Cow::Borrowed),
        Cow::Owned(s) => find(s).map(|p| Cow::Owned(p.to_owned())),
    }
}

fn hop<'a>(table: &'a Table, columns: &Columns<'a>) -> Hop<'a> {
    Hop {
        dialect: Cow::Borrowed(&table.name),
        topic: columns.text(Field::OriginTopic).cloned(),
        partition: columns.int32(Field::OriginPartition),
        offset: columns.int(Field::OriginOffset),
        timestamp_us: columns.int(Field::OriginTimestamp),
        group: columns.text(Field::OriginGroup).cloned(),
        error_class: columns.text(Field::ErrorClass).cloned(),
        error_message: columns.text(Field::ErrorMessage).cloned(),
    }
}

fn columns_into<'a>(mut c: Columns<'a>, mut event: Columns<'a>, notes: Notes, decoded: Decoded<'a>) -> Decoded<'a> {
    Decoded {
        failed_at_us: c.int(Field::FailedAt),
        error_class: c.take_text(Field::ErrorClass),
        error_message: c.take_text(Field::ErrorMessage),
        error_code: c.int32(Field::ErrorCode),
        error_stage: c.take_text(Field::ErrorStage),
        error_component: c.take_text(Field::ErrorComponent),
        error_destination: c.take_text(Field::ErrorDestination),
        error_stacktrace: c.take_text(Field::ErrorStacktrace),
        attempts: c.int32(Field::Attempts),
        origin_topic: c.take_text(Field::OriginTopic),
        origin_partition: c.int32(Field::OriginPartition),
        origin_offset: c.int(Field::OriginOffset),
        origin_timestamp_us: c.int(Field::OriginTimestamp),
        origin_group: c.take_text(Field::OriginGroup),
        event_id: event.take_text(Field::EventId),
        event_source: event.take_text(Field::EventSource),
        event_type: event.take_text(Field::EventType),
        event_subject: event.take_text(Field::EventSubject),
        event_time_us: event.int(Field::EventTime),
        content_type: event.take_text(Field::ContentType),
        problems: notes.into_vec(),
        ..decoded
    }
}
