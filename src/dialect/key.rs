//! The failure key: one failure's identity, however often it is dead-lettered.
//!
//! Owns the byte layout. It is in archived columns for good: changing it would part a failure from its return.
//!
//! SHA-256, cut to its first 16 bytes, over a sequence of fields. Each field is a 4-byte big-endian length and that
//! many bytes; a null field is the length `ff ff ff ff` and no bytes. Numbers are decimal ASCII, times such numbers in
//! microseconds. The sequence is
//!
//! - for a failure whose table's `failure_key` is known (every field that is not optional has a value, and not an empty
//!   text, which tells no two failures apart): the text `failure`, the dialect's name, then the table's
//!   `failure_key.fields` in their order. Of several failures on a record the oldest whose key is known counts, so that
//!   the key stays when a dead letter is dead-lettered again;
//! - else: the text `record`, then the record's own topic, partition and offset.

use super::table::{Field, Table};
use super::value::Value;
use sha2::{Digest, Sha256};

#[derive(Default)]
struct Key(Sha256);

impl Key {
    fn put(&mut self, field: Option<&[u8]>) {
        // Kafka's sizes are int32, so a length never is the null's.
        let len = field.map_or(u32::MAX, |f| f.len() as u32);
        self.0.update(len.to_be_bytes());
        self.0.update(field.unwrap_or_default());
    }
    fn put_text(&mut self, field: impl ToString) {
        self.put(Some(field.to_string().as_bytes()));
    }
    fn finish(self) -> [u8; 16] {
        let digest = self.0.finalize();
        std::array::from_fn(|i| digest[i])
    }
}

pub(crate) fn of_failure<'c>(table: &Table, column: impl Fn(Field) -> &'c Value<'c>) -> Option<[u8; 16]> {
    let rule = &table.failure_key;
    // Before anything is hashed: many failures without a key cost nothing then.
    let nothing =
        |f: Field| matches!(column(f), Value::None) || matches!(column(f), Value::Text(text) if text.is_empty());
    if rule.fields.iter().any(|f| nothing(*f) && !rule.optional.contains(f)) {
        return None;
    }
    let mut key = Key::default();
    key.put_text("failure");
    key.put_text(&table.name);
    for field in &rule.fields {
        match column(*field) {
            Value::Text(text) => key.put(Some(text.as_bytes())),
            Value::Int(n) => key.put_text(n),
            Value::None => key.put(None),
        }
    }
    Some(key.finish())
}

pub(crate) fn of_position(topic: &str, partition: i32, offset: i64) -> [u8; 16] {
    let mut key = Key::default();
    key.put_text("record");
    key.put_text(topic);
    key.put_text(partition);
    key.put_text(offset);
    key.finish()
}
