//! A record as a document: the columns of the archive's schema by name.

use super::text;
use crate::format::row::{Columns, Writer, header_name, split};
use crate::format::schema::{COLUMNS, Column};
use crate::format::{ArchivedRecord, FileContext, Projection, refetched};
use crate::record::Headers;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

/// The record's columns in their order, values as in a JSONL archive. Without its payload, those columns are left out.
pub fn columns(r: &ArchivedRecord<'_>, projection: Projection) -> Map<String, Value> {
    let context = FileContext {
        cluster_id: r.cluster_id,
        topic: &r.id.topic,
        partition: r.id.partition,
        generation: r.id.generation,
        archived_at_us: r.archived_at_us,
        intent_key: "",
        program_version: "",
    };
    let mut sink = Sink { out: Map::new(), columns: COLUMNS.iter(), payload: projection == Projection::All };
    Writer::new(&context).write(&r.raw, &r.decoded, r.pipeline, &mut sink);
    // Known without the payload too.
    sink.out.insert("kafka_key_size".into(), r.key_size.into());
    sink.out.insert("kafka_value_size".into(), r.value_size.into());
    sink.out
}

/// A row of originals, in the same way.
pub fn original(row: &refetched::Row<'_>) -> Map<String, Value> {
    let mut sink = Sink { out: Map::new(), columns: refetched::REFETCHED.iter(), payload: true };
    refetched::write(row, &mut sink);
    sink.out
}

/// A document in one line, safe to print.
pub fn line(document: &Map<String, Value>) -> String {
    let json = serde_json::to_string(document).unwrap_or_default();
    match text::escaped(&json) {
        std::borrow::Cow::Borrowed(_) => json,
        std::borrow::Cow::Owned(escaped) => escaped,
    }
}

struct Sink {
    out: Map<String, Value>,
    columns: std::slice::Iter<'static, Column>,
    payload: bool,
}

impl Sink {
    fn put(&mut self, value: impl FnOnce() -> Value) {
        let Some(column) = self.columns.next() else { return };
        if self.payload || !column.is_payload() {
            self.out.insert(column.name.to_owned(), value());
        }
    }
}

fn base64(bytes: Option<&[u8]>) -> Value {
    bytes.map(|b| STANDARD.encode(b)).into()
}

impl Columns for Sink {
    fn text(&mut self, value: Option<&str>) {
        self.put(|| value.into());
    }
    fn bytes(&mut self, value: Option<&[u8]>) {
        self.put(|| base64(value));
    }
    fn int32(&mut self, value: Option<i32>) {
        self.put(|| value.into());
    }
    fn int64(&mut self, value: Option<i64>) {
        self.put(|| value.into());
    }
    fn timestamp(&mut self, value: Option<i64>) {
        self.put(|| value.map(crate::archive::rfc3339).into());
    }
    fn headers(&mut self, headers: Headers<'_>) {
        self.put(|| {
            let header = |h: crate::record::Header<'_>| {
                let (name, name_bytes) = header_name(h.name);
                let (value_text, value_bytes) = split(h.value);
                serde_json::json!({
                    "name": name,
                    "name_bytes": base64(name_bytes),
                    "value_text": value_text,
                    "value_bytes": base64(value_bytes),
                })
            };
            headers.iter().map(header).collect::<Vec<_>>().into()
        });
    }
}
