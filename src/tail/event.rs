//! One dead letter as `tail` shows it: a line, in full, or as the archive's JSONL would have it. Pure.

use crate::cut::PROGRAM_VERSION;
use crate::error::Result;
use crate::format::{Compression, Encoder, FileContext, Format};
use crate::record::{Decoded, RawRecord};
use crate::terminal::{Style, exact, paint, safe};
use chrono::{DateTime, SecondsFormat};
use std::borrow::Cow;
use std::fmt::Write;

/// A dead letter, read and decoded.
pub struct Event<'a> {
    /// Where the brokers tell it, and it was asked for.
    pub cluster_id: Option<&'a str>,
    pub topic: &'a str,
    pub partition: i32,
    pub raw: RawRecord<'a>,
    pub decoded: Decoded<'a>,
    pub pipeline: Cow<'a, str>,
}

/// Where a field is not known.
const NONE: &str = "-";

impl Event<'_> {
    fn position(&self) -> String {
        format!("{}/{}/{}", self.topic, self.partition, self.raw.offset)
    }

    /// The Kafka timestamp in UTC.
    fn time(&self) -> String {
        let time = (self.raw.timestamp_ms >= 0).then(|| DateTime::from_timestamp_millis(self.raw.timestamp_ms));
        time.flatten().map_or_else(|| NONE.to_owned(), |t| t.to_rfc3339_opts(SecondsFormat::Millis, true))
    }

    /// The event's source and type, else where the record was before it failed.
    fn source(&self) -> Option<String> {
        let d = &self.decoded;
        if d.event_source.is_some() || d.event_type.is_some() {
            let parts = [d.event_source.as_deref(), d.event_type.as_deref()];
            return Some(parts.into_iter().flatten().collect::<Vec<_>>().join(" "));
        }
        let mut source = d.origin_topic.as_deref()?.to_owned();
        if let Some(partition) = d.origin_partition {
            let _ = write!(source, "/{partition}");
            if let Some(offset) = d.origin_offset {
                let _ = write!(source, "/{offset}");
            }
        }
        Some(source)
    }

    /// The element's path (VAST), else the event's subject.
    fn subject(&self) -> Option<Cow<'_, str>> {
        let header = self.raw.headers.iter().find(|h| h.name == b"ce_elementpath").and_then(|h| h.value);
        if let Some(path) = header {
            return Some(String::from_utf8_lossy(path));
        }
        let structured =
            self.decoded.content_type.as_deref().is_some_and(|t| {
                t.get(..CLOUDEVENTS.len()).is_some_and(|start| start.eq_ignore_ascii_case(CLOUDEVENTS))
            });
        if structured
            && let Some(value) = self.raw.value
            && let Ok(event) = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(value)
            && let Some(path) = event.get("elementpath").and_then(|p| p.as_str())
        {
            return Some(Cow::Owned(path.to_owned()));
        }
        self.decoded.event_subject.as_deref().map(Cow::Borrowed)
    }

    fn failure(&self) -> Option<Cow<'_, str>> {
        match (self.decoded.error_code, self.decoded.error_class.as_deref()) {
            (Some(code), Some(class)) => Some(Cow::Owned(format!("{code} {class}"))),
            (Some(code), None) => Some(Cow::Owned(code.to_string())),
            (None, class) => class.map(Cow::Borrowed),
        }
    }

    /// Who failed: the destination, connector or group.
    fn failed_by(&self) -> Option<&str> {
        let d = &self.decoded;
        [&d.error_destination, &d.origin_group, &d.error_component].into_iter().find_map(|f| f.as_deref())
    }

    /// Time, event (id, else position), source and type, element path or subject, error code and class, destination or
    /// connector or group, message. Fields are two spaces apart; `-` stands for one that is not known.
    pub fn line(&self, colour: bool) -> String {
        let d = &self.decoded;
        let id = d.event_id.as_deref().map_or_else(|| Cow::Owned(self.position()), Cow::Borrowed);
        let fields = [
            (Some(Cow::Owned(self.time())), Style::Faint),
            (Some(id), Style::Strong),
            (self.source().map(Cow::Owned), Style::Name),
            (self.subject(), Style::Plain),
            (self.failure(), Style::Failure),
            (self.failed_by().map(Cow::Borrowed), Style::Name),
            (d.error_message.as_deref().map(Cow::Borrowed), Style::Message),
        ];
        let mut line = String::new();
        for (i, (field, style)) in fields.iter().enumerate() {
            line.push_str(if i == 0 { "" } else { "  " });
            match field.as_deref().filter(|f| !f.is_empty()) {
                Some(text) => line.push_str(&paint(&safe(text), *style, colour)),
                None => line.push_str(&paint(NONE, Style::Faint, colour)),
            }
        }
        line
    }

    /// Everything the broker sent, then the decoded line. Several lines, without the last line's end.
    pub fn full(&self, colour: bool) -> String {
        let (raw, label) = (&self.raw, |text: &str| paint(text, Style::Faint, colour).into_owned());
        let mut out = format!(
            "{}  {}  {} {}\n",
            paint(&self.position(), Style::Strong, colour),
            self.time(),
            raw.timestamp_type.as_str(),
            raw.timestamp_ms
        );
        for h in raw.headers.iter() {
            // A name is text nearly always; where it is not, it must not look like one that is.
            let name = match std::str::from_utf8(h.name) {
                Ok(name) if !name.is_empty() && !name.contains(|c: char| c == '"' || c == ' ') => safe(name),
                _ => Cow::Owned(exact(Some(h.name))),
            };
            let _ = writeln!(out, "  {} {}: {}", label("header"), paint(&name, Style::Name, colour), exact(h.value));
        }
        let _ = writeln!(out, "  {}    {}", label("key"), exact(raw.key));
        let _ = writeln!(out, "  {}  {}", label("value"), exact(raw.value));
        let _ = write!(out, "  {}", self.line(colour));
        if let Some(problems) = self.decoded.problems_text() {
            let _ = write!(out, "\n  {}", paint(&format!("not decoded: {}", safe(&problems)), Style::Failure, colour));
        }
        out
    }

    /// The record's columns as one JSON object, without a line end; `archived_at` is null.
    ///
    /// # Errors
    /// Never, as long as lines are not compressed.
    pub fn json(&self) -> Result<String> {
        let context = FileContext {
            cluster_id: self.cluster_id,
            topic: self.topic,
            partition: self.partition,
            generation: 1,
            archived_at_us: 0,
            intent_key: "",
            program_version: PROGRAM_VERSION,
        };
        let mut encoder = Encoder::new(Format::Jsonl(Compression::None), &context)?;
        encoder.push(&self.raw, &self.decoded, &self.pipeline)?;
        let mut line = String::from_utf8_lossy(&encoder.finish()?).trim_end().to_owned();
        // The last column is the one thing the archive knows and a topic does not.
        if let Some(at) = line.rfind(ARCHIVED_AT) {
            line.truncate(at + ARCHIVED_AT.len());
            line.push_str("null}");
        }
        Ok(line)
    }
}

const CLOUDEVENTS: &str = "application/cloudevents";
const ARCHIVED_AT: &str = ",\"archived_at\":";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cut::Tables;
    use crate::record::{Header, RawBatch, TimestampType};

    fn with_event<T>(headers: &[(&str, Option<&str>)], value: Option<&[u8]>, then: impl FnOnce(&Event<'_>) -> T) -> T {
        let tables = Tables::builtin();
        let mut batch = RawBatch::new();
        let headers: Vec<_> =
            headers.iter().map(|(n, v)| Header { name: n.as_bytes(), value: v.map(str::as_bytes) }).collect();
        let time = TimestampType::CreateTime;
        batch.push(7, 1_791_468_687_032, time, -1, None, value, headers.iter().copied());
        let raw = batch.get(0);
        let decoded = tables.dialects.decode("dlt", 3, &raw);
        let pipeline = tables.routing.pipeline("dlt", &decoded).into_owned();
        then(&Event { cluster_id: Some("c"), topic: "dlt", partition: 3, raw, decoded, pipeline: pipeline.into() })
    }

    const VAST: [(&str, Option<&str>); 9] = [
        ("ce_specversion", Some("1.0")),
        ("ce_id", Some("87982405058579")),
        ("ce_source", Some("vastdata.com:uploads.f1c7")),
        ("ce_type", Some("vastdata.com:Element.ElementCreated")),
        ("ce_subject", Some("vast-broker-docs-kafka.default")),
        ("ce_elementpath", Some("docs-src/tiny.txt")),
        ("ce_knativeerrorcode", Some("500")),
        ("ce_knativeerrordata", Some("dG9vIHNtYWxsCg==")),
        ("ce_knativeerrordest", Some("http://size-check-abc.ns.svc.cluster.local")),
    ];

    #[test]
    fn a_line_has_every_field_in_order() {
        let line = with_event(&VAST, Some(b"{}"), |e| e.line(false));
        assert_eq!(
            line,
            "2026-10-08T14:11:27.032Z  87982405058579  vastdata.com:uploads.f1c7 vastdata.com:Element.ElementCreated  \
             docs-src/tiny.txt  500  http://size-check-abc.ns.svc.cluster.local  too small\\n"
        );
        assert!(with_event(&VAST, None, |e| e.line(true)).contains("\x1b[31m500\x1b[0m"));
    }

    #[test]
    fn an_unknown_record_is_shown_by_its_position() {
        assert_eq!(with_event(&[], Some(b"x"), |e| e.line(false)), "2026-10-08T14:11:27.032Z  dlt/3/7  -  -  -  -  -");
    }

    #[test]
    fn escape_sequences_in_data_do_not_reach_the_terminal() {
        let headers =
            [("__connect.errors.topic", Some("t")), ("__connect.errors.exception.message", Some("\x1b]0;x\x07\n"))];
        let (line, full) = with_event(&headers, Some(b"\x1b[2J"), |e| (e.line(false), e.full(false)));
        assert!(line.ends_with("\\x1b]0;x\\x07\\n"), "{line}");
        assert!(!full.contains(|c: char| c.is_control() && c != '\n'), "{full}");
    }

    #[test]
    fn the_element_path_of_a_structured_event_is_in_its_value() {
        let value = br#"{"specversion":"1.0","id":"1","source":"s","type":"t","subject":"sub","elementpath":"a/b"}"#;
        let headers = [("content-type", Some("application/cloudevents+json; charset=UTF-8"))];
        assert!(with_event(&headers, Some(value), |e| e.line(false)).contains("  a/b  "));
    }

    #[test]
    fn json_has_the_archives_columns_and_no_archived_at() {
        let json = with_event(&VAST, Some(b"{\"archived_at\":1}"), |e| e.json().unwrap());
        let parsed: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&json).unwrap();
        let names: Vec<_> = parsed.keys().map(String::as_str).collect();
        assert_eq!(names, crate::format::schema::COLUMNS.map(|c| c.name));
        assert_eq!((&parsed["error_code"], &parsed["record_id"]), (&500.into(), &"dlt/3/7".into()));
        assert!(parsed["archived_at"].is_null());
    }
}
