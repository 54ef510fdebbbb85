//! Strangers' text for a terminal.
//!
//! Owns how keys, values, headers and messages are shown to people. Invariant: what it returns moves no cursor, sets
//! no colour and hides no text: control, escape, direction and line-end characters come out as `\n`, `\x1b`,
//! `\u{202e}`.

use std::borrow::Cow;
use std::fmt::Write;

/// Control characters, and those that reorder or break a line without being seen.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Text on one line, harmless; borrowed where nothing had to change.
pub fn safe(text: &str) -> Cow<'_, str> {
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    text.chars().for_each(|c| push_safe(&mut out, c));
    Cow::Owned(out)
}

fn push_safe(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if is_harmful(c) && c.is_ascii() => {
            let _ = write!(out, "\\x{:02x}", u32::from(c));
        }
        c if is_harmful(c) => {
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        }
        c => out.push(c),
    }
}

/// Bytes so that null, empty, text and binary cannot be taken for each other: `null`, `""`, `"text"` (backslashes
/// doubled), `hex 00ff (2 bytes)`.
pub fn exact(bytes: Option<&[u8]>) -> String {
    let Some(bytes) = bytes else { return "null".to_owned() };
    match std::str::from_utf8(bytes) {
        Ok(text) if !bytes.contains(&0) => {
            let mut out = String::with_capacity(text.len() + 2);
            out.push('"');
            for c in text.chars() {
                match c {
                    '\\' => out.push_str("\\\\"),
                    c => push_safe(&mut out, c),
                }
            }
            out.push('"');
            out
        }
        _ => {
            let mut out = String::with_capacity(bytes.len() * 2 + 24);
            out.push_str("hex ");
            for b in bytes {
                let _ = write!(out, "{b:02x}");
            }
            let _ = write!(out, " ({} byte{})", bytes.len(), if bytes.len() == 1 { "" } else { "s" });
            out
        }
    }
}

/// What a piece of a line is, and so how it is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Plain,
    Faint,
    Strong,
    Name,
    Failure,
    Message,
}

/// The text in its style, or as it is.
pub fn paint(text: &str, style: Style, colour: bool) -> Cow<'_, str> {
    let code = match style {
        _ if !colour => return Cow::Borrowed(text),
        Style::Plain => return Cow::Borrowed(text),
        Style::Faint => "2",
        Style::Strong => "1",
        Style::Name => "36",
        Style::Failure => "31",
        Style::Message => "33",
    };
    Cow::Owned(format!("\x1b[{code}m{text}\x1b[0m"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_reaches_the_terminal() {
        let nasty: String = (0..0x2100).filter_map(char::from_u32).collect();
        assert!(!safe(&nasty).contains(is_harmful));
        assert!(!exact(Some(nasty[1..].as_bytes())).contains(is_harmful));
        assert_eq!(safe("\x1b[2J\n\u{202e}größe \\n"), "\\x1b[2J\\n\\u{202e}größe \\n");
        assert!(matches!(safe("größe 🎉"), Cow::Borrowed(_)));
    }

    #[test]
    fn null_empty_text_and_binary_differ() {
        for (bytes, shown) in [
            (None, "null"),
            (Some(&b""[..]), "\"\""),
            (Some(b"null"), "\"null\""),
            (Some(b"a\\n\nb"), "\"a\\\\n\\nb\""),
            (Some(b"\0\0\0\x05"), "hex 00000005 (4 bytes)"),
            (Some(b"\xff"), "hex ff (1 byte)"),
        ] {
            assert_eq!(exact(bytes), shown);
        }
    }

    #[test]
    fn colour_only_if_asked() {
        assert_eq!(paint("x", Style::Failure, false), "x");
        assert_eq!(paint("x", Style::Failure, true), "\x1b[31mx\x1b[0m");
    }
}
