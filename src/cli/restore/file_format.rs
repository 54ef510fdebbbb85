//! How `restore --to-file` writes a record: a JSON line, the JSON of kcat, or a format of kcat's letters.
//!
//! Owns the bytes of one record, and what a reader cannot get back from them. Invariants: a JSON line loses nothing;
//! what the other two lose is what kcat loses, and is told.

use crate::cli::text;
use crate::format::row::{header_name, split};
use crate::record::RecordId;
use crate::restore::rules::{Made, Place};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;

/// What stands for a partition or an offset that there is none of.
const NONE: i32 = -1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileFormat {
    Jsonl,
    Kcat,
    Letters(Vec<Part>),
}

/// A piece of a format, in the order of its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Text(Vec<u8>),
    Key,
    KeyLen,
    Value,
    ValueLen,
    ValueLenBinary,
    Headers,
    Topic,
    Partition,
    Offset,
    Timestamp,
}

/// What of a record cannot be read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    NoText,
    NullAsEmpty,
    Split,
    Headers,
}

impl Loss {
    pub fn text(self) -> &'static str {
        match self {
            Self::NoText => {
                "bytes that are not UTF-8 stand in the JSON as they are, as kcat -J writes them; JSON readers refuse or \
                 replace them. --file-format jsonl has them in base64"
            }
            Self::NullAsEmpty => {
                "a null key or value is written as nothing, like an empty one. %K and %S tell them apart (-1), kcat -P -Z \
                 sends both as null, --file-format jsonl loses nothing"
            }
            Self::Split => {
                "key, value or headers contain a text that follows them in the format, and a reader splits them there. \
                 Put another text between them, their lengths before them (%K, %S, %R), or use --file-format jsonl"
            }
            Self::Headers => {
                "%h separates headers by ',' and '=' and writes null as NULL, and theirs contain that. --file-format jsonl \
                 loses nothing"
            }
        }
    }
}

/// Parses `--file-format`.
pub fn parse(text: &str) -> Result<FileFormat, String> {
    match text {
        "jsonl" => Ok(FileFormat::Jsonl),
        "kcat" => Ok(FileFormat::Kcat),
        text if text.contains('%') => letters(text).map(FileFormat::Letters),
        _ => Err(r"it is jsonl, kcat, or a text with kcat's letters, such as '%k\t%s\n'".into()),
    }
}

fn letters(text: &str) -> Result<Vec<Part>, String> {
    let (mut parts, mut literal, mut rest) = (Vec::new(), Vec::new(), text.chars());
    while let Some(c) = rest.next() {
        match (c, if matches!(c, '%' | '\\') { rest.next() } else { None }) {
            ('%', Some('%')) => literal.push(b'%'),
            ('%', letter) => {
                let part = letter.and_then(part).ok_or_else(|| {
                    let letter = letter.map(String::from).unwrap_or_default();
                    format!(
                        "%{letter} is not known: %k key, %s value, %h headers, %t topic, %p partition, %o offset, %T \
                         timestamp, %K length of the key, %S of the value, %R of the value in 4 bytes, %% for %"
                    )
                })?;
                parts.extend((!literal.is_empty()).then(|| Part::Text(std::mem::take(&mut literal))));
                parts.push(part);
            }
            ('\\', Some('n')) => literal.push(b'\n'),
            ('\\', Some('r')) => literal.push(b'\r'),
            ('\\', Some('t')) => literal.push(b'\t'),
            ('\\', Some('0')) => literal.push(0),
            ('\\', Some('\\')) => literal.push(b'\\'),
            ('\\', escape) => {
                let hex = rest.as_str().get(..2).filter(|hex| escape == Some('x') && !hex.starts_with('+'));
                let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).ok_or_else(|| {
                    let escape = escape.map(String::from).unwrap_or_default();
                    format!(r"\{escape} is not known: \n, \r, \t, \0, \\, or \xHH with two hex digits")
                })?;
                literal.push(byte);
                rest.nth(1);
            }
            (c, _) => literal.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    parts.extend((!literal.is_empty()).then_some(Part::Text(literal)));
    Ok(parts)
}

fn part(letter: char) -> Option<Part> {
    Some(match letter {
        'k' => Part::Key,
        'K' => Part::KeyLen,
        's' => Part::Value,
        'S' => Part::ValueLen,
        'R' => Part::ValueLenBinary,
        'h' => Part::Headers,
        't' => Part::Topic,
        'p' => Part::Partition,
        'o' => Part::Offset,
        'T' => Part::Timestamp,
        _ => return None,
    })
}

impl FileFormat {
    /// Appends one record; what is lost of it.
    pub fn write(&self, id: &RecordId, place: &Place, made: &Made<'_>, out: &mut Vec<u8>) -> BTreeSet<Loss> {
        let mut losses = BTreeSet::new();
        match self {
            Self::Jsonl => jsonl(id, place, made, out),
            Self::Kcat => kcat(place, made, out, &mut losses),
            Self::Letters(parts) => write_parts(parts, place, made, out, &mut losses),
        }
        losses
    }
}

/// The names are those that the archive has for the same things.
fn jsonl(id: &RecordId, place: &Place, made: &Made<'_>, out: &mut Vec<u8>) {
    let base64 = |bytes: Option<&[u8]>| -> Value { bytes.map(|b| STANDARD.encode(b)).into() };
    let ((key_text, key_bytes), (value_text, value_bytes)) = (split(made.key.as_deref()), split(made.value.as_deref()));
    let headers = made.headers.iter().map(|h| {
        let ((name, name_bytes), (text, bytes)) = (header_name(h.name), split(h.value));
        json!({
            "name": name, "name_bytes": base64(name_bytes), "value_text": text, "value_bytes": base64(bytes)
        })
    });
    let line = json!({
        "record_id": id.to_string(),
        "target_topic": place.topic,
        "target_partition": place.partition,
        "kafka_timestamp_ms": made.raw.timestamp_ms,
        "kafka_key_text": key_text,
        "kafka_key_bytes": base64(key_bytes),
        "kafka_value_text": value_text,
        "kafka_value_bytes": base64(value_bytes),
        "kafka_headers": headers.collect::<Vec<_>>(),
    });
    out.extend_from_slice(text::escaped(&line.to_string()).as_bytes());
    out.push(b'\n');
}

/// As kcat does it: headers are one list of names and values in turn, left out where there are none.
fn kcat(place: &Place, made: &Made<'_>, out: &mut Vec<u8>, losses: &mut BTreeSet<Loss>) {
    let mut bytes = |out: &mut Vec<u8>, bytes: Option<&[u8]>| match bytes {
        Some(bytes) => json_string(bytes, out, losses),
        None => out.extend_from_slice(b"null"),
    };
    out.extend_from_slice(b"{\"topic\":");
    bytes(out, Some(place.topic.as_bytes()));
    let (partition, timestamp) = (place.partition.unwrap_or(NONE), made.raw.timestamp_ms);
    let _ = write!(out, r#","partition":{partition},"offset":{NONE},"tstype":"create","ts":{timestamp}"#);
    for (i, header) in made.headers.iter().enumerate() {
        out.extend_from_slice(if i == 0 { b",\"headers\":[" } else { b"," });
        bytes(out, Some(header.name));
        out.push(b',');
        bytes(out, header.value);
    }
    out.extend_from_slice(if made.headers.is_empty() { b",\"key\":" } else { b"],\"key\":" });
    bytes(out, made.key.as_deref());
    out.extend_from_slice(b",\"payload\":");
    bytes(out, made.value.as_deref());
    out.extend_from_slice(b"}\n");
}

fn json_string(bytes: &[u8], out: &mut Vec<u8>, losses: &mut BTreeSet<Loss>) {
    out.push(b'"');
    for chunk in bytes.utf8_chunks() {
        let quoted = Value::from(chunk.valid()).to_string();
        let quoted = text::escaped(&quoted);
        out.extend_from_slice(quoted.get(1..quoted.len() - 1).unwrap_or_default().as_bytes());
        if !chunk.invalid().is_empty() {
            out.extend_from_slice(chunk.invalid());
            losses.insert(Loss::NoText);
        }
    }
    out.push(b'"');
}

fn write_parts(parts: &[Part], place: &Place, made: &Made<'_>, out: &mut Vec<u8>, losses: &mut BTreeSet<Loss>) {
    let (key, value) = (made.key.as_deref(), made.value.as_deref());
    let number = |n: i64, out: &mut Vec<u8>| drop(write!(out, "{n}"));
    let len = |bytes: Option<&[u8]>| bytes.map_or(i64::from(NONE), |b| b.len() as i64);
    for (i, part) in parts.iter().enumerate() {
        let from = out.len();
        match part {
            Part::Text(text) => out.extend_from_slice(text),
            Part::Key => out.extend_from_slice(key.unwrap_or_default()),
            Part::Value => out.extend_from_slice(value.unwrap_or_default()),
            Part::KeyLen => number(len(key), out),
            Part::ValueLen => number(len(value), out),
            Part::ValueLenBinary => out.extend_from_slice(&(len(value) as i32).to_be_bytes()),
            Part::Headers => headers(made, out, losses),
            Part::Topic => out.extend_from_slice(place.topic.as_bytes()),
            Part::Partition => number(place.partition.unwrap_or(NONE).into(), out),
            Part::Offset => number(NONE.into(), out),
            Part::Timestamp => number(made.raw.timestamp_ms, out),
        }
        let (is_null, lens): (_, &[Part]) = match part {
            Part::Key => (key.is_none(), &[Part::KeyLen]),
            Part::Value => (value.is_none(), &[Part::ValueLen, Part::ValueLenBinary]),
            Part::Headers => (false, &[]),
            _ => continue,
        };
        if is_null && !parts.iter().any(|p| lens.contains(p)) {
            losses.insert(Loss::NullAsEmpty);
        }
        let written = &out[from..];
        let splits = |part: &Part| matches!(part, Part::Text(text) if written.windows(text.len()).any(|w| w == text));
        // Who knows how long it is need not look for its end.
        if !parts[..i].iter().any(|p| lens.contains(p)) && parts[i + 1..].iter().any(splits) {
            losses.insert(Loss::Split);
        }
    }
}

/// `name=value,name=value`.
fn headers(made: &Made<'_>, out: &mut Vec<u8>, losses: &mut BTreeSet<Loss>) {
    for (i, header) in made.headers.iter().enumerate() {
        out.extend_from_slice(if i == 0 { b"" } else { b"," });
        out.extend_from_slice(header.name);
        out.push(b'=');
        out.extend_from_slice(header.value.unwrap_or(b"NULL"));
        let has = |bytes: &[u8], separators: &[u8]| bytes.iter().any(|b| separators.contains(b));
        if has(header.name, b",=") || header.value.is_some_and(|value| value == b"NULL" || has(value, b",")) {
            losses.insert(Loss::Headers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Header, Headers, RawRecord, TimestampType};
    use std::borrow::Cow;

    type Bytes<'a> = Option<&'a [u8]>;

    fn write(format: &str, key: Bytes<'_>, value: Bytes<'_>, headers: &[(&[u8], Bytes<'_>)]) -> (Vec<u8>, Vec<Loss>) {
        let raw = RawRecord {
            offset: 7,
            timestamp_ms: 5,
            timestamp_type: TimestampType::LogAppendTime,
            leader_epoch: -1,
            key: None,
            value: None,
            headers: Headers::default(),
        };
        let headers = headers.iter().map(|(name, value)| Header { name, value: *value }).collect();
        let (key, value) = (key.map(Cow::Borrowed), value.map(Cow::Borrowed));
        let made = Made { raw, key, value, headers, attempt: 1, archived_value: None };
        let id = RecordId { topic: "a-dlq".into(), generation: 1, partition: 0, offset: 7 };
        let place = Place { topic: "a".into(), partition: Some(3) };
        let mut out = Vec::new();
        let losses = parse(format).unwrap().write(&id, &place, &made, &mut out);
        (out, losses.into_iter().collect())
    }

    #[test]
    fn each_letter_is_what_kcat_writes_for_it() {
        let headers: [(&[u8], Bytes<'_>); 3] = [(b"a", Some(b"1")), (b"b", None), (b"\xff", Some(b""))];
        let (out, losses) = write(r"%t[%p]%o@%T %K:%k %S:%R%s {%h}%%\x41\0\r\\ä", Some(b"k\xff"), None, &headers);
        assert_eq!(out, b"a[3]-1@5 2:k\xff -1:\xff\xff\xff\xff {a=1,b=NULL,\xff=}%A\0\r\\\xc3\xa4");
        assert_eq!(losses, []);
        assert_eq!(write("%R%s", None, Some(b"ab"), &[]).0, b"\0\0\0\x02ab");
    }

    #[test]
    fn what_a_format_means_is_told_where_it_is_not_known() {
        let known = parse("%k %z").unwrap_err();
        assert!(known.starts_with("%z is not known: %k key, %s value"), "{known}");
        for (wrong, why) in [("%", "% is not"), (r"%k\q", r"\q is not"), (r"%k\", r"\ is not")] {
            assert!(parse(wrong).unwrap_err().starts_with(why), "{wrong}");
        }
        for wrong in [r"%k\x4", r"%k\xg1", r"%k\x+1", r"%k\x", r"%k\xä"] {
            assert!(parse(wrong).unwrap_err().contains(r"\x is not known"), "{wrong}");
        }
        assert!(parse("csv").unwrap_err().contains("jsonl, kcat"));
    }

    #[test]
    fn a_loss_is_one_only_where_a_reader_cannot_know_better() {
        let losses = |format, key, value| write(format, key, value, &[]).1;
        assert_eq!(losses(r"%k\t%s\n", Some(b"k"), Some(b"a\tb")), [], "split at the first");
        assert_eq!(losses(r"%k\t%s\n", Some(b"k\t"), Some(b"a")), [Loss::Split]);
        assert_eq!(losses(r"%k\t%s\n", Some(b"k\n"), Some(b"a")), [Loss::Split], "records are split first");
        assert_eq!(losses(r"%k\t%s\n", Some(b"k"), Some(b"a\nb")), [Loss::Split]);
        assert_eq!(losses(r"%S %s\n", None, Some(b"a\nb")), [], "its length is before it");
        assert_eq!(losses(r"%s %S\n", None, Some(b"a\nb")), [Loss::Split]);
        assert_eq!(losses(r"%s\n", None, Some(b"")), [], "the key was not asked for");
        assert_eq!(losses(r"%k\n", None, None), [Loss::NullAsEmpty]);
        assert_eq!(losses(r"%k %K\n", None, None), []);
        assert_eq!(losses(r"%s\n", None, None), [Loss::NullAsEmpty]);
        assert_eq!(losses("kcat", None, Some(b"")), []);
        assert_eq!(losses("kcat", Some(b"\xff"), Some(b"\0")), [Loss::NoText]);
        let headers = |name: &[u8], value| write("%h", None, None, &[(name, value)]).1;
        assert_eq!(headers(b"a", Some(b"b=c")), []);
        assert_eq!(headers(b"a", None), []);
        for (name, value) in [(&b"a"[..], &b"NULL"[..]), (b"a", b"b,c"), (b"a=b", b""), (b"a,b", b"")] {
            assert_eq!(headers(name, Some(value)), [Loss::Headers], "{name:?} {value:?}");
        }
    }

    #[test]
    fn null_empty_text_and_bytes_stand_apart_in_json() {
        let (out, _) = write("kcat", Some(b""), None, &[(b"a", Some(b"\"\n\x01")), (b"a", None)]);
        let want = json!({"topic": "a", "partition": 3, "offset": -1, "tstype": "create", "ts": 5,
            "headers": ["a", "\"\n\u{1}", "a", null], "key": "", "payload": null});
        assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), want);
        assert_eq!(
            write("kcat", None, Some(b"a\xffb"), &[]).0,
            br#"{"topic":"a","partition":3,"offset":-1,"tstype":"create","ts":5,"key":null,"payload":"aXb"}
"#
            .map(|b| if b == b'X' { 0xff } else { b })
        );
        let (out, losses) = write("jsonl", Some(b""), Some(b"\xff"), &[(b"\xfe", None), (b"b", Some(b"\0"))]);
        let line: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&line["kafka_key_text"], &line["kafka_key_bytes"]), (&"".into(), &Value::Null));
        assert_eq!((&line["kafka_value_text"], &line["kafka_value_bytes"]), (&Value::Null, &"/w==".into()));
        assert_eq!(line["kafka_headers"][0]["name_bytes"], "/g==");
        assert_eq!(
            (&line["kafka_headers"][0]["value_text"], &line["kafka_headers"][0]["value_bytes"]),
            (&Value::Null, &Value::Null)
        );
        assert_eq!(line["kafka_headers"][1]["value_bytes"], "AA==");
        assert_eq!(losses, []);
    }
}
