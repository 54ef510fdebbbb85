//! Records to JSON lines.
//!
//! Owns the text of a line and its compression. Every key is always written, in the order of the columns; bytes are
//! base64, timestamps RFC 3339 in UTC with six decimals. Lines are compressed as they come.

use super::Compression;
use super::row::{self, header_name, split};
use super::schema::Column;
use crate::error::{Error, Result};
use crate::record::Headers;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Datelike, Timelike};
use flate2::write::GzEncoder;
use std::io::Write;

/// Measured: twice as fast as level 6, and 7 % larger.
const GZIP_LEVEL: u32 = 4;
const ZSTD_LEVEL: i32 = 3;

pub(super) struct Sink {
    /// `{"first":`, then `,"next":`.
    keys: Vec<String>,
    out: Output,
    line: Vec<u8>,
    scratch: String,
    column: usize,
    /// Bytes of lines that may still be inside the compressor.
    inside: usize,
}

enum Output {
    None(Vec<u8>),
    Gzip(GzEncoder<Vec<u8>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl Sink {
    pub(super) fn new(columns: &[Column], compression: Compression) -> Result<Self> {
        let key = |(i, c): (usize, &Column)| format!("{}\"{}\":", if i == 0 { '{' } else { ',' }, c.name);
        let keys = columns.iter().enumerate().map(key).collect();
        let out = match compression {
            Compression::None => Output::None(Vec::new()),
            // No name and a time of 0: the bytes depend on the lines alone.
            Compression::Gzip => Output::Gzip(GzEncoder::new(Vec::new(), flate2::Compression::new(GZIP_LEVEL))),
            Compression::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), ZSTD_LEVEL).map_err(internal)?;
                encoder.include_checksum(true).map_err(internal)?;
                Output::Zstd(encoder)
            }
        };
        Ok(Self { keys, out, line: Vec::new(), scratch: String::new(), column: 0, inside: 0 })
    }

    fn key(&mut self) {
        if let Some(key) = self.keys.get(self.column) {
            self.line.extend_from_slice(key.as_bytes());
        }
        self.column += 1;
    }

    fn null(&mut self) {
        self.line.extend_from_slice(b"null");
    }

    fn base64(&mut self, bytes: &[u8]) {
        self.scratch.clear();
        STANDARD.encode_string(bytes, &mut self.scratch);
        self.line.push(b'"');
        self.line.extend_from_slice(self.scratch.as_bytes());
        self.line.push(b'"');
    }

    fn text_value(&mut self, value: Option<&str>) {
        match value {
            Some(text) => string(&mut self.line, text),
            None => self.null(),
        }
    }

    fn bytes_value(&mut self, value: Option<&[u8]>) {
        match value {
            Some(bytes) => self.base64(bytes),
            None => self.null(),
        }
    }

    fn number(&mut self, value: Option<i64>) {
        match value {
            Some(n) => {
                let _ = write!(self.line, "{n}");
            }
            None => self.null(),
        }
    }

    pub(super) fn end_row(&mut self) -> Result<()> {
        self.line.extend_from_slice(b"}\n");
        self.column = 0;
        match &mut self.out {
            Output::None(out) => out.extend_from_slice(&self.line),
            Output::Gzip(out) => out.write_all(&self.line).map_err(internal)?,
            Output::Zstd(out) => out.write_all(&self.line).map_err(internal)?,
        }
        self.inside = (self.inside + self.line.len()).min(1 << 20);
        self.line.clear();
        Ok(())
    }

    pub(super) fn estimated_len(&self) -> usize {
        match &self.out {
            Output::None(out) => out.len(),
            Output::Gzip(out) => out.get_ref().len() + self.inside,
            Output::Zstd(out) => out.get_ref().len() + self.inside,
        }
    }

    pub(super) fn finish(self) -> Result<Vec<u8>> {
        match self.out {
            Output::None(out) => Ok(out),
            Output::Gzip(out) => out.finish().map_err(internal),
            Output::Zstd(out) => out.finish().map_err(internal),
        }
    }
}

fn internal(error: impl std::fmt::Display) -> Error {
    Error::internal(format!("JSON lines could not be compressed: {error}"))
}

impl row::Columns for Sink {
    fn text(&mut self, value: Option<&str>) {
        self.key();
        self.text_value(value);
    }
    fn bytes(&mut self, value: Option<&[u8]>) {
        self.key();
        self.bytes_value(value);
    }
    fn int32(&mut self, value: Option<i32>) {
        self.key();
        self.number(value.map(i64::from));
    }
    fn int64(&mut self, value: Option<i64>) {
        self.key();
        self.number(value);
    }
    fn timestamp(&mut self, value: Option<i64>) {
        self.key();
        match value.and_then(DateTime::from_timestamp_micros) {
            Some(t) => timestamp(&mut self.line, t),
            None => self.null(),
        }
    }
    fn headers(&mut self, headers: Headers<'_>) {
        self.key();
        self.line.push(b'[');
        for (i, h) in headers.iter().enumerate() {
            let (name, name_bytes) = header_name(h.name);
            let (value_text, value_bytes) = split(h.value);
            self.line.extend_from_slice(if i == 0 { b"{\"name\":" } else { b",{\"name\":" });
            self.text_value(Some(&name));
            self.line.extend_from_slice(b",\"name_bytes\":");
            self.bytes_value(name_bytes);
            self.line.extend_from_slice(b",\"value_text\":");
            self.text_value(value_text);
            self.line.extend_from_slice(b",\"value_bytes\":");
            self.bytes_value(value_bytes);
            self.line.push(b'}');
        }
        self.line.push(b']');
    }
}

/// `"2026-10-08T00:00:00.000000Z"`, for years of four digits.
fn timestamp(out: &mut Vec<u8>, t: DateTime<chrono::Utc>) {
    fn digits(out: &mut Vec<u8>, mut n: u32, width: usize) {
        let at = out.len() + width;
        out.resize(at, b'0');
        for place in out[at - width..].iter_mut().rev() {
            *place = b'0' + (n % 10) as u8;
            n /= 10;
        }
    }
    let parts = [
        (t.year().unsigned_abs(), 4, b'-'),
        (t.month(), 2, b'-'),
        (t.day(), 2, b'T'),
        (t.hour(), 2, b':'),
        (t.minute(), 2, b':'),
        (t.second(), 2, b'.'),
        (t.timestamp_subsec_micros(), 6, b'Z'),
    ];
    out.push(b'"');
    for (n, width, then) in parts {
        digits(out, n, width);
        out.push(then);
    }
    out.push(b'"');
}

/// Bytes that may begin something to escape: controls, quote, backslash, and the first byte of U+0085, U+2028 and
/// U+2029, which some line readers take for the end of a line.
const SPECIAL: [bool; 256] = {
    let mut special = [false; 256];
    let mut b = 0;
    while b < 0x20 {
        special[b] = true;
        b += 1;
    }
    special[b'"' as usize] = true;
    special[b'\\' as usize] = true;
    special[0xc2] = true;
    special[0xe2] = true;
    special
};

fn string(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    out.reserve(bytes.len() + 2);
    out.push(b'"');
    let (mut done, mut at) = (0, 0);
    while let Some(step) = bytes[at..].iter().position(|b| SPECIAL[usize::from(*b)]) {
        at += step;
        let (escape, len): (&[u8], usize) = match &bytes[at..] {
            [b'"', ..] => (b"\\\"", 1),
            [b'\\', ..] => (b"\\\\", 1),
            [b'\n', ..] => (b"\\n", 1),
            [b'\r', ..] => (b"\\r", 1),
            [b'\t', ..] => (b"\\t", 1),
            [0xc2, 0x85, ..] => (b"\\u0085", 2),
            [0xe2, 0x80, 0xa8, ..] => (b"\\u2028", 3),
            [0xe2, 0x80, 0xa9, ..] => (b"\\u2029", 3),
            [control @ ..0x20, ..] => {
                out.extend_from_slice(&bytes[done..at]);
                let _ = write!(out, "\\u{control:04x}");
                at += 1;
                done = at;
                continue;
            }
            _ => {
                at += 1;
                continue;
            }
        };
        out.extend_from_slice(&bytes[done..at]);
        out.extend_from_slice(escape);
        at += len;
        done = at;
    }
    out.extend_from_slice(&bytes[done..]);
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_survives_and_no_line_end_is_left() {
        let text: String = (0..0x3000).filter_map(char::from_u32).chain("😀\u{10ffff}".chars()).collect();
        let mut out = Vec::new();
        string(&mut out, &text);
        let json = String::from_utf8(out).unwrap();
        assert!(!json.contains(|c: char| c < ' ' || matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}')));
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }

    #[test]
    fn timestamps_have_six_decimals_and_z() {
        for (us, want) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (1_791_417_600_000_001, "2026-10-08T00:00:00.000001Z"),
            (253_402_300_799_999_999, "9999-12-31T23:59:59.999999Z"),
        ] {
            let mut out = Vec::new();
            timestamp(&mut out, DateTime::from_timestamp_micros(us).unwrap());
            assert_eq!(String::from_utf8(out).unwrap(), format!("\"{want}\""));
        }
    }
}
