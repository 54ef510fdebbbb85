//! A dead letter as `tail` shows it to people: one line, or in full. Nothing in it acts on the terminal.

use super::bytes::{Limits, inline, name};
use super::paint::{Style, paint};
use super::text::{clean, rfc3339_ms};
use crate::format::ArchivedRecord;
use crate::format::row::split;
use crate::record::Decoded;
use std::borrow::Cow;
use std::fmt::Write;

/// Where a field is not known.
const NONE: &str = "-";
const CLOUDEVENTS: &str = "application/cloudevents";

fn time(r: &ArchivedRecord<'_>) -> String {
    rfc3339_ms(r.raw.timestamp_ms).unwrap_or_else(|| NONE.into())
}

/// The event's source and type, else where the record was before it failed.
fn source(d: &Decoded<'_>) -> Option<String> {
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
fn subject<'r>(r: &'r ArchivedRecord<'_>) -> Option<Cow<'r, str>> {
    let header = r.raw.headers.iter().find(|h| h.name == b"ce_elementpath").and_then(|h| h.value);
    if let Some(path) = header {
        return Some(String::from_utf8_lossy(path));
    }
    // A structured event has its attributes in the value.
    let of_type = |t: &str| t.get(..CLOUDEVENTS.len()).is_some_and(|start| start.eq_ignore_ascii_case(CLOUDEVENTS));
    if r.decoded.content_type.as_deref().is_some_and(of_type)
        && let Some(value) = r.raw.value
        && let Ok(event) = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(value)
        && let Some(path) = event.get("elementpath").and_then(|p| p.as_str())
    {
        return Some(Cow::Owned(path.to_owned()));
    }
    r.decoded.event_subject.as_deref().map(Cow::Borrowed)
}

fn failure<'d>(d: &'d Decoded<'_>) -> Option<Cow<'d, str>> {
    match (d.error_code, d.error_class.as_deref()) {
        (Some(code), Some(class)) => Some(Cow::Owned(format!("{code} {class}"))),
        (Some(code), None) => Some(Cow::Owned(code.to_string())),
        (None, class) => class.map(Cow::Borrowed),
    }
}

/// Who failed: the destination, connector or group.
fn failed_by<'d>(d: &'d Decoded<'_>) -> Option<&'d str> {
    [&d.error_destination, &d.origin_group, &d.error_component].into_iter().find_map(|f| f.as_deref())
}

/// Time, record id, event id, source and type, element path or subject, error code and class, destination or connector
/// or group, message. Fields are two spaces apart; `-` stands for one that is not known.
pub fn line(r: &ArchivedRecord<'_>, colour: bool) -> String {
    let d = &r.decoded;
    let fields = [
        (Some(Cow::Owned(time(r))), Style::Faint),
        (Some(Cow::Owned(r.id.to_string())), Style::Strong),
        (d.event_id.as_deref().map(Cow::Borrowed), Style::Plain),
        (source(d).map(Cow::Owned), Style::Name),
        (subject(r), Style::Plain),
        (failure(d), Style::Failure),
        (failed_by(d).map(Cow::Borrowed), Style::Name),
        (d.error_message.as_deref().map(Cow::Borrowed), Style::Message),
    ];
    let mut line = String::new();
    for (i, (field, style)) in fields.iter().enumerate() {
        line.push_str(if i == 0 { "" } else { "  " });
        match field.as_deref().map(clean).filter(|f| !f.trim().is_empty()) {
            Some(text) => line.push_str(&paint(&text, *style, colour)),
            None => line.push_str(&paint(NONE, Style::Faint, colour)),
        }
    }
    line
}

/// Everything the broker sent, then the decoded line. Several lines, without the last one's end.
pub fn full(r: &ArchivedRecord<'_>, colour: bool) -> String {
    let mut out = format!(
        "{}  {}  {} {}\n",
        paint(&clean(&r.id.to_string()), Style::Strong, colour),
        time(r),
        r.raw.timestamp_type.as_str(),
        r.raw.timestamp_ms
    );
    for h in r.raw.headers.iter() {
        let _ = writeln!(out, "  {}: {}", paint(&name(h.name), Style::Name, colour), inline(h.value, Limits::NONE));
    }
    let _ = writeln!(out, "  {}", part("key", r.raw.key));
    let _ = writeln!(out, "  {}", part("value", r.raw.value));
    let _ = write!(out, "  {}", line(r, colour));
    if let Some(problems) = r.decoded.problems_text() {
        let _ = write!(out, "\n  {}", paint(&format!("not decoded: {}", clean(&problems)), Style::Failure, colour));
    }
    out
}

/// Key or value in one line. Text stands as it is if nothing in it acts on a terminal, so that JSON can be copied.
fn part(name: &str, value: Option<&[u8]>) -> String {
    match split(value) {
        (None, None) => format!("{name}: null"),
        (Some(""), _) => format!("{name}: \"\" (empty)"),
        (Some(text), _) if clean(text) == text => format!("{name} ({} bytes, text): {text}", text.len()),
        (Some(text), _) => format!("{name} ({} bytes, text, escaped): {}", text.len(), inline(value, Limits::NONE)),
        (None, Some(_)) => format!("{name}: {}", inline(value, Limits::NONE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cut::Tables;
    use crate::record::{Header, RawBatch, RecordId, TimestampType};

    fn with<T>(headers: &[(&str, Option<&str>)], value: Option<&[u8]>, then: fn(&ArchivedRecord<'_>) -> T) -> T {
        let tables = Tables::builtin();
        let mut batch = RawBatch::new();
        let headers: Vec<_> =
            headers.iter().map(|(n, v)| Header { name: n.as_bytes(), value: v.map(str::as_bytes) }).collect();
        let time = TimestampType::CreateTime;
        batch.push(7, 1_791_468_687_032, time, -1, None, value, headers.iter().copied());
        let raw = batch.get(0);
        let decoded = tables.dialects.decode("dlt", 3, &raw);
        let id = RecordId { topic: "dlt".into(), generation: 1, partition: 3, offset: 7 };
        let (key_size, value_size) = (None, value.map(|v| v.len() as i32));
        let pipeline = "p";
        then(&ArchivedRecord { id, cluster_id: None, raw, key_size, value_size, decoded, pipeline, archived_at_us: 0 })
    }

    const VAST: [(&str, Option<&str>); 9] = [
        ("ce_specversion", Some("1.0")),
        ("ce_id", Some("87982405058579")),
        ("ce_source", Some("vastdata.com:uploads.f1c7")),
        ("ce_type", Some("vastdata.com:Element.ElementCreated")),
        ("ce_subject", Some("vast-broker-docs-kafka.default")),
        ("ce_elementpath", Some("docs-src/tiny.txt")),
        ("ce_knativeerrorcode", Some("500")),
        ("ce_knativeerrordata", Some("dG9vIHNtYWxsCm9yIGxhdGU=")),
        ("ce_knativeerrordest", Some("http://size-check-abc.ns.svc.cluster.local")),
    ];

    #[test]
    fn a_line_has_every_field_in_order() {
        assert_eq!(
            with(&VAST, Some(b"{}"), |e| line(e, false)),
            "2026-10-08T14:11:27.032Z  dlt/3/7  87982405058579  vastdata.com:uploads.f1c7 vastdata.com:Element.ElementCreated  \
             docs-src/tiny.txt  500  http://size-check-abc.ns.svc.cluster.local  too small or late"
        );
        assert!(with(&VAST, None, |e| line(e, true)).contains("\x1b[31m500\x1b[0m"));
    }

    #[test]
    fn an_unknown_record_is_shown_by_its_position() {
        assert_eq!(with(&[], Some(b"x"), |e| line(e, false)), "2026-10-08T14:11:27.032Z  dlt/3/7  -  -  -  -  -  -");
    }

    #[test]
    fn escape_sequences_in_data_do_not_reach_the_terminal() {
        let headers = [
            ("__connect.errors.topic", Some("t\x1b[2J\u{200b}")),
            ("__connect.errors.exception.message", Some("\x1b]0;x\x07\r\nfake line")),
            ("n\x1b[31m", Some("\x1b[31m")),
        ];
        let (line, full) = with(&headers, Some(b"\x1b[2J{\n}"), |e| (line(e, false), full(e, false)));
        assert!(!line.contains(char::is_control) && line.ends_with("fake line"), "{line}");
        assert!(line.contains("t<U+200B>") && full.contains("\"t\\u001b[2J\\u200b\""), "{line} {full}");
        assert!(!full.contains(|c: char| c.is_control() && c != '\n'), "{full}");
        assert!(full.contains("  value (7 bytes, text, escaped): \"\\u001b[2J{\\n}\"\n"), "{full}");
    }

    #[test]
    fn the_element_path_of_a_structured_event_is_in_its_value() {
        let value = br#"{"specversion":"1.0","id":"1","source":"s","type":"t","subject":"sub","elementpath":"a/b"}"#;
        let headers = [("content-type", Some("application/CloudEvents+json; charset=UTF-8"))];
        assert!(with(&headers, Some(value), |e| line(e, false)).contains("  a/b  "));
    }
}
