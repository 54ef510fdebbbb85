//! Corrected values: what some records are restored with in place of what is archived. Pure.
//!
//! Owns their form: JSON lines of `record_id` and, as in the archive, `kafka_value_text` or `kafka_value_bytes`. Says nothing
//! of where a user has them. Invariant: a value is for one record, by its id.

use crate::error::{Error, Result};
use crate::filter::parse_id;
use crate::ledger::sha256_hex;
use crate::record::RecordId;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const TEXT: &str = "kafka_value_text";
const BYTES: &str = "kafka_value_bytes";

/// By record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Values(BTreeMap<RecordId, Option<Vec<u8>>>);

impl Values {
    /// The value that a record is sent with; the inner `None` is a null.
    pub fn get(&self, id: &RecordId) -> Option<Option<&[u8]>> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(id).map(|value| value.as_deref())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn ids(&self) -> impl Iterator<Item = &RecordId> {
        self.0.keys()
    }

    /// # Errors
    /// [`crate::Kind::Config`] if the record has another value already.
    pub fn add(&mut self, id: RecordId, value: Option<Vec<u8>>) -> Result<()> {
        match self.0.insert(id.clone(), value.clone()) {
            Some(before) if before != value => {
                Err(Error::config(format!("there are two different values for {id}: leave one of them out")))
            }
            _ => Ok(()),
        }
    }

    /// Adds JSON lines, of which `record_id` and the value are read: as `list -o jsonl --payload` prints them.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] with the line that is wrong.
    pub fn add_lines(&mut self, text: &str) -> Result<()> {
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            self.add_line(line).map_err(|e| e.context(format!("line {number}")))?;
        }
        Ok(())
    }

    fn add_line(&mut self, line: &str) -> Result<()> {
        let object: Map<String, Value> =
            serde_json::from_str(line).map_err(|e| Error::config(format!("it is no JSON object: {e}")))?;
        let Some(Value::String(id)) = object.get("record_id") else {
            return Err(Error::config("it has no \"record_id\": TOPIC/PARTITION/OFFSET, as `list` prints it"));
        };
        let (text, bytes) = (object.get(TEXT), object.get(BYTES));
        let value = match (text.unwrap_or(&Value::Null), bytes.unwrap_or(&Value::Null)) {
            _ if text.or(bytes).is_none() => {
                return Err(Error::config(format!(
                    "it has no {TEXT:?} (a text, or null for a tombstone) and no {BYTES:?}: `list -o jsonl --payload` \
                     prints them"
                )));
            }
            (Value::Null, Value::Null) => None,
            (Value::String(text), Value::Null) => Some(text.clone().into_bytes()),
            (Value::Null, Value::String(text)) => {
                Some(BASE64.decode(text).map_err(|e| Error::config(format!("its {BYTES:?} is no base64: {e}")))?)
            }
            (Value::String(_), Value::String(_)) => {
                return Err(Error::config(format!("it has both {TEXT:?} and {BYTES:?}: make one of them null")));
            }
            _ => {
                return Err(Error::config(format!(
                    "its {TEXT:?} is no text: JSON in it has to be escaped, as `list` prints it"
                )));
            }
        };
        self.add(parse_id(id)?, value)
    }

    /// As they are stored.
    pub fn to_lines(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for (id, value) in &self.0 {
            let line = match value.as_deref().map(|value| (std::str::from_utf8(value), value)) {
                None => json!({"record_id": id.to_string(), TEXT: null}),
                Some((Ok(text), _)) => json!({"record_id": id.to_string(), TEXT: text}),
                Some((Err(_), bytes)) => json!({"record_id": id.to_string(), BYTES: BASE64.encode(bytes)}),
            };
            serde_json::to_writer(&mut bytes, &line)
                .map_err(|e| Error::internal(format!("corrected values could not be encoded: {e}")))?;
            bytes.push(b'\n');
        }
        Ok(bytes)
    }

    /// Hex SHA-256 of them as they are stored; `None` if there are none.
    pub fn sha256(&self) -> Result<Option<String>> {
        if self.is_empty() { Ok(None) } else { Ok(Some(sha256_hex(&self.to_lines()?))) }
    }
}

/// Hex SHA-256 of a value.
pub fn value_sha256(value: Option<&[u8]>) -> Option<String> {
    value.map(sha256_hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_as_they_were_stored() {
        let mut values = Values::default();
        for (id, value) in
            [("a/0/1", Some(&b"{\"x\": 1}"[..])), ("a/0/2@g2", None), ("b/1/0", Some(b"\xff")), ("b/1/1", Some(b""))]
        {
            values.add(parse_id(id).unwrap(), value.map(<[u8]>::to_vec)).unwrap();
        }
        let mut again = Values::default();
        again.add_lines(std::str::from_utf8(&values.to_lines().unwrap()).unwrap()).unwrap();
        assert_eq!(again, values);
        assert_eq!(again.get(&parse_id("a/0/2@g2").unwrap()), Some(None));
        assert_eq!(again.get(&parse_id("a/0/2").unwrap()), None);
        assert_eq!(Values::default().sha256().unwrap(), None);
    }

    #[test]
    fn what_is_no_value_is_refused_with_its_line() {
        for (line, says) in [
            ("[]", "no JSON object"),
            (r#"{"kafka_value_text": "x"}"#, "record_id"),
            (r#"{"record_id": "a", "kafka_value_text": "x"}"#, "not a record id"),
            (r#"{"record_id": "a/0/1"}"#, "--payload"),
            (r#"{"record_id": "a/0/1", "kafka_value_text": {"x": 1}}"#, "escaped"),
            (r#"{"record_id": "a/0/1", "kafka_value_text": "x", "kafka_value_bytes": "eA=="}"#, "both"),
            (r#"{"record_id": "a/0/1", "kafka_value_text": null, "kafka_value_bytes": "?"}"#, "base64"),
            (r#"{"record_id": "a/0/0", "kafka_value_text": "y"}"#, "two different"),
        ] {
            let mut values = Values::default();
            let first = r#"{"record_id": "a/0/0", "kafka_value_text": "x"}"#;
            let error = values
                .add_lines(&format!(
                    "{first}

{line}
"
                ))
                .unwrap_err();
            assert!(error.message().contains("line 3") && error.message().contains(says), "{line}: {error}");
        }
    }
}
