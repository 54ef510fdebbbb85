//! Which headers a restored record has. Pure.
//!
//! Owns what is taken off besides the dialects' own headers, what is kept of them, and what is added. Invariant: without
//! options a record has the headers that it had before it failed, in their order, and behind them the two that say that
//! it was restored.

use crate::error::{Error, Result};
use crate::record::Header;
use regex::bytes::Regex;
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// Headers of this program's own, which a restore takes off.
pub const OWN_HEADERS: &[u8] = b"dlq-archiver-";
/// Which restore sent a record.
pub const RESTORE_ID: &str = "dlq-archiver-restore-id";
/// How often its failure was restored, this time included.
pub const RESTORE_COUNT: &str = "dlq-archiver-restore-count";

/// What a user asked for. Names are equal, or match as a regular expression if they begin with `^`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderOptions {
    /// Taken off, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strip: Vec<String>,
    /// Kept, whatever else says that they are taken off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keep: Vec<String>,
    /// Name and value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<(String, String)>,
    /// Without [`RESTORE_ID`] and [`RESTORE_COUNT`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unmarked: bool,
}

#[derive(Debug, Clone)]
enum Name {
    Exact(Vec<u8>),
    Regex(Regex),
}

impl Name {
    fn parse(flag: &str, text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Error::config(format!("{flag} is empty: give a header's name")));
        }
        if !text.starts_with('^') {
            return Ok(Self::Exact(text.as_bytes().to_vec()));
        }
        Regex::new(text).map(Self::Regex).map_err(|e| {
            let e = e.to_string();
            let why = e.lines().last().unwrap_or_default().trim().trim_start_matches("error: ").to_owned();
            Error::config(format!("{flag} {text:?} is not a regular expression: {why}"))
        })
    }
    fn matches(&self, name: &[u8]) -> bool {
        match self {
            Self::Exact(exact) => exact == name,
            Self::Regex(regex) => regex.is_match(name),
        }
    }
}

/// The options, ready to be applied.
#[derive(Debug, Clone, Default)]
pub struct HeaderRules {
    strip: Vec<Name>,
    keep: Vec<Name>,
    add: Vec<(String, String)>,
    /// Value of [`RESTORE_ID`].
    restore_id: Option<String>,
}

/// What else decides about a record's headers.
#[derive(Debug, Clone, Copy)]
pub struct Sendable {
    /// Whether its dialect takes the headers that say that it was restored.
    pub marks: bool,
    /// Value of [`RESTORE_COUNT`].
    pub attempt: u32,
}

/// Attempts are counted up to this: headers may say anything.
pub const COUNTED: u32 = 999;

/// Numbers as headers' values, so that none has to be made for each record.
static NUMBERS: LazyLock<Vec<String>> = LazyLock::new(|| (0..=COUNTED).map(|n| n.to_string()).collect());

impl HeaderRules {
    /// `restore_id`: of a draft, one of the length that it will have.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] for what is no name.
    pub fn new(options: &HeaderOptions, restore_id: &str) -> Result<Self> {
        let names = |flag, given: &[String]| given.iter().map(|text| Name::parse(flag, text)).collect::<Result<_>>();
        if let Some((name, _)) = options.add.iter().find(|(name, _)| name.as_bytes().starts_with(OWN_HEADERS)) {
            return Err(Error::config(format!(
                "--add-header {name}: names beginning with dlq-archiver- are the program's own"
            )));
        }
        Ok(Self {
            strip: names("--strip", &options.strip)?,
            keep: names("--keep", &options.keep)?,
            add: options.add.clone(),
            restore_id: (!options.unmarked).then(|| restore_id.to_owned()),
        })
    }

    /// The headers that are sent, of those of a record, each with whether its dialect takes it off.
    pub fn apply<'r>(&'r self, headers: impl Iterator<Item = (Header<'r>, bool)>, of: Sendable) -> Vec<Header<'r>> {
        let any = |names: &[Name], header: &Header<'_>| names.iter().any(|name| name.matches(header.name));
        let kept = headers.filter(|(header, stripped)| {
            !header.name.starts_with(OWN_HEADERS)
                && (!(*stripped || any(&self.strip, header)) || any(&self.keep, header))
        });
        let mut sent: Vec<Header<'r>> = kept.map(|(header, _)| header).collect();
        let added = self.add.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let id = self.restore_id.as_deref().filter(|_| of.marks);
        let number = NUMBERS.get(of.attempt.min(COUNTED) as usize).map(String::as_str);
        let marks = id.map(|id| (RESTORE_ID, id)).into_iter().chain(id.and(number).map(|n| (RESTORE_COUNT, n)));
        sent.extend(added.chain(marks).map(|(n, v)| Header { name: n.as_bytes(), value: Some(v.as_bytes()) }));
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h(name: &str) -> Header<'_> {
        Header { name: name.as_bytes(), value: None }
    }

    fn sent(options: HeaderOptions, marks: bool) -> Vec<String> {
        let rules = HeaderRules::new(&options, "0123456789ab-1").unwrap();
        let of =
            [("a", false), ("err", true), ("dlq-archiver-restore-count", false), ("traceparent", false), ("a", false)];
        let sent = rules.apply(of.iter().map(|(name, strip)| (h(name), *strip)), Sendable { marks, attempt: 2 });
        let text = |h: &Header<'_>| match h.value {
            None => String::from_utf8_lossy(h.name).into_owned(),
            Some(v) => format!("{}={}", String::from_utf8_lossy(h.name), String::from_utf8_lossy(v)),
        };
        sent.iter().map(text).collect()
    }

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn headers_keep_their_order_and_the_marks_come_last() {
        let marks = ["dlq-archiver-restore-id=0123456789ab-1", "dlq-archiver-restore-count=2"];
        let none = HeaderOptions::default;
        assert_eq!(sent(none(), true), [&["a", "traceparent", "a"], &marks[..]].concat());
        assert_eq!(sent(none(), false), ["a", "traceparent", "a"]);
        assert_eq!(sent(HeaderOptions { unmarked: true, ..none() }, true), ["a", "traceparent", "a"]);
        let add = vec![("x".to_owned(), "1=2".to_owned())];
        assert_eq!(sent(HeaderOptions { add, ..none() }, false), ["a", "traceparent", "a", "x=1=2"]);
    }

    #[test]
    fn keep_wins_over_strip_and_dialects_but_not_for_marks_of_an_earlier_restore() {
        let all =
            HeaderOptions { strip: list(&["^"]), keep: list(&["traceparent", "^dlq"]), ..HeaderOptions::default() };
        assert_eq!(sent(all, false), ["traceparent"]);
        let some = HeaderOptions { strip: list(&["a"]), keep: list(&["^er"]), ..HeaderOptions::default() };
        assert_eq!(sent(some, false), ["err", "traceparent"]);
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let refused = |options: HeaderOptions| HeaderRules::new(&options, "x").unwrap_err().message().to_owned();
        assert!(refused(HeaderOptions { strip: list(&["^("]), ..HeaderOptions::default() }).starts_with("--strip"));
        assert!(refused(HeaderOptions { keep: list(&[""]), ..HeaderOptions::default() }).starts_with("--keep"));
        let add = vec![("dlq-archiver-x".to_owned(), String::new())];
        assert!(refused(HeaderOptions { add, ..HeaderOptions::default() }).contains("the program's own"));
    }
}
