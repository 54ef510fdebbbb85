//! From values to the decoded columns: hops, the newest failure, and the tables' rules.
//!
//! Which value is read for what is the [`Plan`]'s. Invariant: `error_*`, `attempts` and `origin_*` come from one failure, the
//! newest; hops are oldest first; linear in what was found.

use super::code;
use super::index::{Index, RESTORE_COUNT, Slot, Values};
use super::key;
use super::plan::{Failure, Plan, Read};
use super::table::{Code, Encoding, Field, FieldKind, NullRule, Source, Table, TimeRule};
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

/// Reads one record's values as a [`Plan`] says.
pub(crate) struct Decoder<'a, 'w> {
    pub tables: &'a [Table],
    pub index: &'a Index,
    pub plan: &'w Plan,
    pub values: &'w Values<'a>,
    pub notes: Notes,
}

impl<'a> Decoder<'a, '_> {
    pub fn decode(mut self, topic: &str, partition: i32, raw: &RawRecord<'a>) -> Decoded<'a> {
        let plan = self.plan;
        let mut event = Columns::default();
        for (table, reads) in &plan.event {
            self.read(*table, reads, &mut event);
        }
        let mut failure_key = None;
        let mut newest = Columns::default();
        let mut hops = Vec::with_capacity(plan.failures.len());
        for (i, failure) in plan.failures.iter().enumerate() {
            let is_newest = i + 1 == plan.failures.len();
            let table = &self.tables[failure.table];
            let mut columns = self.failure(failure, &event);
            if is_newest {
                self.times(table, raw, &mut columns);
            }
            failure_key = failure_key.or_else(|| key::of_failure(table, |f| columns.or(&event, f)));
            hops.push(hop(table, &columns));
            if is_newest {
                newest = columns;
            }
        }
        let decoded = Decoded {
            dialect: self.dialect(),
            failure_key: failure_key.unwrap_or_else(|| key::of_position(topic, partition, raw.offset)),
            payload_state: self.payload_state(raw),
            prior_restores: self.prior_restores(),
            hops,
            ..Decoded::default()
        };
        columns_into(newest, event, self.notes, decoded)
    }

    /// The columns that the plan has of the newest failure and of the event, and no others.
    pub fn newest_only(mut self) -> Decoded<'a> {
        let plan = self.plan;
        let mut event = Columns::default();
        for (table, reads) in &plan.event {
            self.read(*table, reads, &mut event);
        }
        let newest = plan.failures.last().map(|failure| self.failure(failure, &event)).unwrap_or_default();
        let decoded = Decoded { dialect: self.dialect(), ..Decoded::default() };
        columns_into(newest, event, self.notes, decoded)
    }

    fn dialect(&self) -> Cow<'a, str> {
        Cow::Borrowed(self.plan.failures.last().map_or(super::UNKNOWN, |f| &self.tables[f.table].name))
    }

    /// The columns of one failure, without the event's.
    fn failure(&mut self, failure: &Failure, event: &Columns<'a>) -> Columns<'a> {
        let mut columns = Columns::default();
        self.read(failure.table, &failure.reads, &mut columns);
        if failure.newest && self.tables[failure.table].code.contains(&Code::Vast) {
            self.vast(event, &mut columns);
        }
        columns
    }

    /// Reads values into the columns that are still empty.
    fn read(&mut self, table: usize, reads: &[Read], columns: &mut Columns<'a>) {
        let index = self.index;
        let slots = &index.slots[table];
        // A field can be settled and null. Its values follow each other.
        let mut settled = None;
        for read in reads {
            let slot = &slots[read.slot];
            let field = slot.field;
            if settled == Some(field) || *columns.get(field) != Value::None {
                continue;
            }
            if let Some(value) = self.read_slot(slot, self.values.get(read.position)) {
                columns.set(field, value);
                settled = Some(field);
            }
        }
    }

    /// `None` sends the reader on to the field's next header.
    fn read_slot(&mut self, slot: &Slot, value: Option<Cow<'a, [u8]>>) -> Option<Value<'a>> {
        let Source { header, .. } = &slot.source;
        let Some(bytes) = value else {
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
    fn payload_state(&self, raw: &RawRecord<'a>) -> PayloadState {
        let state = |table: &Table| match (raw.key, raw.value) {
            (None, None) => table.payload.null_key_and_value,
            (_, None) => table.payload.null_value,
            _ => table.payload.otherwise,
        };
        let states = || self.plan.failures.iter().map(|f| state(&self.tables[f.table]));
        let lossy = [PayloadState::NotCopied, PayloadState::CopiedBare];
        let lost = lossy.into_iter().find(|l| states().any(|s| s == *l));
        lost.or_else(|| states().next_back()).unwrap_or(match raw.value {
            None => PayloadState::Tombstone,
            Some(_) => PayloadState::Present,
        })
    }

    fn prior_restores(&mut self) -> i32 {
        let Some(position) = self.plan.restore_count else { return 0 };
        let value = self.values.get(position).unwrap_or_default();
        let count = value::integer_field(&value, Encoding::Decimal, 0, Field::Attempts);
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
