//! Colours of a line's pieces, where colour is wanted.

use std::borrow::Cow;

/// What a piece is, and so how it looks.
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
    fn colour_only_if_asked() {
        assert_eq!(paint("x", Style::Failure, false), "x");
        assert_eq!(paint("x", Style::Failure, true), "\x1b[31mx\x1b[0m");
    }
}
