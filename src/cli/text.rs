//! Data as text for people: nothing in it moves the cursor, changes colours or hides other text.
//!
//! Invariant: what [`clean`] and [`quoted`] give holds no control character and none that is not seen (general
//! category Cf: zero-width, order of writing), whatever the record held.

use crate::filter::has_time;
use chrono::{DateTime, SecondsFormat};
use std::borrow::Cow;
use std::fmt::Write;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Characters that terminals act on, or that change the order in which text is shown.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}' | '\u{61c}')
}

/// General category Cf (Unicode 17), which is not seen and may change how what is around it looks.
fn is_format(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}'
        | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0001}' | '\u{e0020}'..='\u{e007f}')
}

/// Text in one line: white space runs are one space, escape sequences of colours and cursors are gone. Other control and
/// format characters are shown as `<U+200B>`, so that two names that differ do not look the same.
pub fn clean(text: &str) -> Cow<'_, str> {
    cleaned(text, false)
}

/// The same, but lines and tabs stay.
pub fn clean_lines(text: &str) -> Cow<'_, str> {
    cleaned(text, true)
}

fn cleaned(text: &str, lines: bool) -> Cow<'_, str> {
    if !text.contains(|c| is_unsafe(c) || is_format(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\u{1b}' => rest = &rest[sequence(rest)..],
            '\n' | '\t' if lines => out.push(c),
            '\n' | '\r' | '\t' | '\u{85}' | '\u{2028}' | '\u{2029}' if !out.ends_with([' ', '\n']) => out.push(' '),
            '\n' | '\r' | '\t' | '\u{85}' | '\u{2028}' | '\u{2029}' => {}
            c if is_unsafe(c) || is_format(c) => {
                let _ = write!(out, "<U+{:04X}>", u32::from(c));
            }
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// The length of `[`, parameters and final byte of a control sequence; 0 if it is none. Other sequences have ends that
/// may be missing: taking those out could take text out as well.
fn sequence(rest: &str) -> usize {
    let Some(body) = rest.strip_prefix('[') else { return 0 };
    let end = body.bytes().position(|b| !(0x20..=0x3f).contains(&b));
    end.filter(|end| (0x40..=0x7e).contains(&body.as_bytes()[*end])).map_or(0, |end| 1 + end + 1)
}

/// A JSON string for people: control and format characters are all escaped, those that JSON allows too.
pub fn quoted(text: &str) -> String {
    shown(&serde_json::Value::from(text).to_string()).into_owned()
}

/// A JSON text for people: as [`escaped`], and what is not seen is escaped too.
pub fn shown(json: &str) -> Cow<'_, str> {
    with_escapes(json, |c| (is_unsafe(c) || is_format(c)) && c != '\n')
}

/// A JSON text for programs whose control characters are all escaped. They can only stand inside its strings.
pub fn escaped(json: &str) -> Cow<'_, str> {
    with_escapes(json, |c| is_unsafe(c) && c != '\n')
}

fn with_escapes(json: &str, escape: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !json.contains(&escape) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if escape(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// `1 record`, `2 records`.
pub fn count(n: u64, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

pub fn width(text: &str) -> usize {
    text.width()
}

/// As much of it as fits into `most` columns, with `…` at its end if something was left out.
pub fn fitted(text: &str, most: usize) -> Cow<'_, str> {
    if text.width() <= most {
        return Cow::Borrowed(text);
    }
    let mut used = 0;
    let end = text.char_indices().find(|(_, c)| {
        used += c.width().unwrap_or(0);
        used + 1 > most
    });
    Cow::Owned(format!("{}…", &text[..end.map_or(text.len(), |(i, _)| i)]))
}

/// `2026-10-08 14:11:27Z`, or `-` for a timestamp that is absent or beyond what a date can say.
pub fn time(ms: i64) -> String {
    match DateTime::from_timestamp_millis(ms) {
        Some(t) if has_time(ms) => t.format("%Y-%m-%d %H:%M:%SZ").to_string(),
        _ => "-".into(),
    }
}

/// RFC 3339 with milliseconds, or `None` as for [`time`].
pub fn rfc3339_ms(ms: i64) -> Option<String> {
    DateTime::from_timestamp_millis(ms).filter(|_| has_time(ms)).map(|t| t.to_rfc3339_opts(SecondsFormat::Millis, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_escape_sequence_reaches_a_terminal() {
        assert_eq!(clean("plain größe 日本"), "plain größe 日本");
        assert_eq!(clean("\u{1b}[31;1mred\u{1b}[0m\u{1b}[2J!"), "red!");
        assert_eq!(clean("\u{1b}]0;title\u{7}after"), "]0;title<U+0007>after");
        assert_eq!(clean("a\r\n\tb\u{9b}31mc\u{7f}\0"), "a b<U+009B>31mc<U+007F><U+0000>");
        assert_eq!(clean("\u{1b}[31"), "[31");
        assert_eq!(clean("\u{1b}[31ä"), "[31ä");
        assert_eq!(clean("user\u{202e}txt.exe"), "user<U+202E>txt.exe");
        assert_eq!(clean_lines("a\r\n\tb\u{1b}[A"), "a \n\tb");
        assert_eq!(quoted("a\u{1b}\u{9b}\u{7f}\"\n"), r#""a\u001b\u009b\u007f\"\n""#);
    }

    #[test]
    fn what_is_not_seen_is_shown() {
        assert_eq!(clean("ad\u{200b}min\u{feff}"), "ad<U+200B>min<U+FEFF>");
        assert_eq!(clean_lines("a\n\u{2066}b\u{e0041}"), "a\n<U+2066>b<U+E0041>");
        assert_eq!(quoted("a\u{200b}\u{e0041}"), r#""a\u200b\udb40\udc41""#);
        assert_eq!(serde_json::from_str::<String>(&quoted("\u{e0041}\u{202e}")).unwrap(), "\u{e0041}\u{202e}");
        // Programs get the character, but for those that a terminal acts on.
        assert_eq!(escaped("\"\u{200b}\u{202e}\""), "\"\u{200b}\\u202e\"");
    }

    #[test]
    fn one_of_them_is_singular() {
        assert_eq!([0, 1, 2].map(|n| count(n, "cut")), ["0 cuts", "1 cut", "2 cuts"]);
    }

    #[test]
    fn cut_to_columns() {
        assert_eq!(fitted("abcdef", 6), "abcdef");
        assert_eq!(fitted("abcdef", 5), "abcd…");
        assert_eq!(fitted("日本語", 5), "日本…");
        assert_eq!(fitted("日本語", 4), "日…");
        assert_eq!(fitted("abc", 1), "…");
    }

    #[test]
    fn times() {
        assert_eq!(time(1_791_468_687_032), "2026-10-08 14:11:27Z");
        assert_eq!(time(-1), "-");
        assert_eq!(time(i64::MAX), "-");
    }
}
