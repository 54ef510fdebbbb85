//! Keys, values and headers for people: null, empty, text, JSON and bytes each in a form of their own.
//!
//! Invariant: JSON is only indented. Numbers, escapes and repeated keys stay as they were written.

use super::progress::human_bytes;
use super::text;
use crate::format::row::split;
use std::borrow::Cow;
use std::fmt::Write;

/// How much is shown.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Characters of a line.
    line: usize,
    /// Lines of a block.
    lines: usize,
    /// Bytes of a binary block.
    binary: usize,
}

impl Limits {
    pub const NONE: Self = Self { line: usize::MAX, lines: usize::MAX, binary: usize::MAX };
    pub const TERMINAL: Self = Self { line: 500, lines: 40, binary: 256 };

    /// A line, with how much was left out.
    pub fn line<'a>(self, line: &'a str) -> Cow<'a, str> {
        match line.char_indices().nth(self.line) {
            None => Cow::Borrowed(line),
            Some((at, _)) => {
                let left = line[at..].chars().count();
                Cow::Owned(format!("{}… ({left} more characters, --full)", &line[..at]))
            }
        }
    }

    /// Lines, indented.
    pub fn lines(self, block: &str) -> String {
        let mut out = String::new();
        let mut lines = block.lines();
        for line in lines.by_ref().take(self.lines) {
            let _ = writeln!(out, "  {}", self.line(line));
        }
        let left = lines.count();
        if left > 0 {
            let _ = writeln!(out, "  … ({left} more lines, --full)");
        }
        out
    }
}

/// A header's name; one that is not UTF-8 with its bytes.
pub fn name(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) if !text.is_empty() => text::clean(text).into_owned(),
        Ok(_) => "\"\"".into(),
        Err(_) => format!("0x{}", hex(name)),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A value in one line.
pub fn inline(value: Option<&[u8]>, limits: Limits) -> String {
    match split(value) {
        (None, None) => "null".into(),
        (Some(text), _) => limits.line(&text::quoted(text)).into_owned(),
        (None, Some(bytes)) => {
            let shown = &bytes[..bytes.len().min(limits.binary)];
            let more = if shown.len() < bytes.len() { "…" } else { "" };
            format!("0x{}{more} ({} bytes)", hex(shown), bytes.len())
        }
    }
}

/// A value in a part of its own, with its name.
pub fn block(name: &str, value: Option<&[u8]>, limits: Limits) -> String {
    let size = |bytes: usize| match bytes {
        0..1024 => format!("{bytes} bytes"),
        _ => format!("{bytes} bytes, {}", human_bytes(bytes as u64)),
    };
    match split(value) {
        (None, None) => format!("\n{name}: null\n"),
        (Some(""), _) => format!("\n{name}: \"\" (empty)\n"),
        (Some(text), _) => {
            let (kind, body) = match indented(text) {
                Some(json) => ("JSON", Cow::Owned(json)),
                None => ("text", Cow::Borrowed(text)),
            };
            let body = if kind == "JSON" { text::shown(&body) } else { text::clean_lines(&body) };
            format!("\n{name} ({}, {kind})\n{}", size(text.len()), limits.lines(&body))
        }
        (None, Some(bytes)) => {
            let mut out = format!("\n{name} ({}, no text)\n", size(bytes.len()));
            dump(&bytes[..bytes.len().min(limits.binary)], &mut out);
            if bytes.len() > limits.binary {
                let _ = writeln!(out, "  … ({} more bytes, --full)", bytes.len() - limits.binary);
            }
            out
        }
    }
}

/// Sixteen bytes a line, in hex and as far as they are ASCII.
fn dump(bytes: &[u8], out: &mut String) {
    for (i, line) in bytes.chunks(16).enumerate() {
        let _ = write!(out, "  {:08x}  ", i * 16);
        for at in 0..16 {
            let _ = match line.get(at) {
                Some(b) => write!(out, "{b:02x} "),
                None => write!(out, "   "),
            };
        }
        let ascii = |b: &u8| if b.is_ascii_graphic() || *b == b' ' { char::from(*b) } else { '.' };
        let _ = writeln!(out, " {}", line.iter().map(ascii).collect::<String>());
    }
}

/// JSON objects and arrays with line breaks and indents, and nothing else changed. `None` for other text.
fn indented(text: &str) -> Option<String> {
    let text = text.trim();
    if !text.starts_with(['{', '[']) || serde_json::from_str::<serde::de::IgnoredAny>(text).is_err() {
        return None;
    }
    let mut out = String::with_capacity(text.len() * 2);
    let (mut depth, mut empty) = (0usize, false);
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth));
    };
    let mut rest = text.char_indices();
    while let Some((at, c)) = rest.next() {
        match c {
            '"' => {
                let mut escape = false;
                let end = rest.find(|(_, c)| {
                    let ends = *c == '"' && !escape;
                    escape = *c == '\\' && !escape;
                    ends
                });
                out.push_str(&text[at..end.map_or(text.len(), |(end, _)| end + 1)]);
            }
            '{' | '[' => {
                out.push(c);
                empty = text[at + 1..].trim_start().starts_with(['}', ']']);
                if !empty {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            '}' | ']' => {
                if !std::mem::take(&mut empty) {
                    depth = depth.saturating_sub(1);
                    line(&mut out, depth);
                }
                out.push(c);
            }
            ',' => {
                out.push(c);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => out.push(c),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_only_indented() {
        let text = r#"{"a": 1.10,"a":123456789012345678901234567890,"b":[],"c":{ },"d":["x, {y}: \"z\\",null]}"#;
        let want = "{\n  \"a\": 1.10,\n  \"a\": 123456789012345678901234567890,\n  \"b\": [],\n  \"c\": {},\n  \"d\": [\n    \
                    \"x, {y}: \\\"z\\\\\",\n    null\n  ]\n}";
        assert_eq!(indented(text).unwrap(), want);
        for other in ["", "1", "\"x\"", "{", "[1,]", "not json"] {
            assert_eq!(indented(other), None, "{other}");
        }
        // Strings that look like brackets at an object's end.
        assert_eq!(indented(r#"["{"]"#).unwrap(), "[\n  \"{\"\n]");
        assert_eq!(indented(r#"["["]"#).unwrap(), "[\n  \"[\"\n]");
    }

    #[test]
    fn null_empty_text_and_bytes_stand_apart() {
        let all = Limits::NONE;
        assert_eq!(inline(None, all), "null");
        assert_eq!(inline(Some(b""), all), "\"\"");
        assert_eq!(inline(Some(b"null"), all), "\"null\"");
        assert_eq!(inline(Some(b"\0\x01"), all), "0x0001 (2 bytes)");
        assert_eq!(inline(Some(b"\x1b[31m"), all), r#""\u001b[31m""#);
        assert_eq!(name(b"a\xff"), "0x61ff");
        assert_eq!(block("key", None, all), "\nkey: null\n");
        assert_eq!(block("key", Some(b""), all), "\nkey: \"\" (empty)\n");
        assert_eq!(block("key", Some(b"a b"), all), "\nkey (3 bytes, text)\n  a b\n");
        assert!(block("key", Some(b"ab\0"), all).contains("61 62 00"));
    }

    #[test]
    fn what_is_left_out_is_told() {
        let few = Limits { line: 3, lines: 2, binary: 4 };
        assert_eq!(few.line("äbcdef"), "äbc… (3 more characters, --full)");
        assert_eq!(few.lines("a\nb\nc\nd"), "  a\n  b\n  … (2 more lines, --full)\n");
        assert_eq!(inline(Some(b"\0\0\0\0\0"), few), "0x00000000… (5 bytes)");
    }
}
