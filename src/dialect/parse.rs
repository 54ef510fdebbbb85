//! Reading a dialect table: from TOML text, with the checks that serde cannot make.
//!
//! Owns errors and their lines, and tables that extend another. The keys are [`super::table`]'s. Invariant: a [`Table`]
//! that was parsed is valid.

use super::json;
use super::table::{Code, Field, FieldKind, FieldRule, PipelineSource, Source, Table, Unit};
use crate::error::{Error, Result};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// A table that is another one with other header names.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Renamed {
    name: String,
    description: String,
    extends: String,
    /// A header's name, or what names begin with, to what stands there instead.
    rename: BTreeMap<String, String>,
    pipeline: Option<Vec<PipelineSource>>,
}

impl Table {
    /// Parses and checks a table; `file` is named in the error, `base` finds the table that it extends.
    pub fn parse<'t>(file: &str, text: &str, base: impl Fn(&str) -> Option<&'t Self>) -> Result<Self> {
        let wrong = |(key, reason): (String, String)| {
            Error::config(format!("{file}: {}{key}: {reason}", place_of(text, &key).unwrap_or_default()))
        };
        let extends = toml::from_str::<toml::Table>(text).is_ok_and(|t| t.contains_key("extends"));
        let table = match extends {
            true => toml::from_str::<Renamed>(text)
                .map_err(|e| parse_error(file, text, &e))?
                .renamed(base)
                .map_err(wrong)?,
            false => toml::from_str::<Self>(text).map_err(|e| parse_error(file, text, &e))?,
        };
        table.check().map_err(wrong)?;
        Ok(table)
    }

    fn check(&self) -> Result<(), (String, String)> {
        let no = |key: &str, reason: &str| Err((key.to_owned(), reason.to_owned()));
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !self.name.starts_with(|c: char| c.is_ascii_lowercase()) || !self.name.chars().all(plain) {
            return no("name", "must be lower-case letters, digits and `-`, a letter first");
        }
        if self.name.len() > 40 || self.name == super::UNKNOWN {
            return no("name", "must be at most 40 characters and not `unknown`");
        }
        let d = &self.detect;
        if d.all.is_empty() && d.any.is_empty() && d.any_prefix.is_empty() {
            return no("detect", "needs one of `all`, `any`, `any_prefix`");
        }
        if d.all.len() > 64 {
            return no("detect.all", "must be at most 64 names");
        }
        if !self.opt_in && self.code.iter().any(|code| code.is_of_payload()) {
            return no("code", "what reads every record's key or value needs `opt_in = true`");
        }
        let lists = [
            ("detect.all", &d.all),
            ("detect.any", &d.any),
            ("detect.any_prefix", &d.any_prefix),
            ("detect.none", &d.none),
            ("strip.names", &self.strip.names),
            ("strip.prefixes", &self.strip.prefixes),
        ];
        if self.code.contains(&Code::JsonValue) && d.any_prefix.iter().any(|p| p.starts_with(json::ROOT)) {
            return no("detect.any_prefix", "paths into the value are asked for by their whole name");
        }
        let mut all = self.clone();
        let paths = all.headers_mut().filter(|h| h.starts_with(json::ROOT));
        if let Some(bad) =
            self.code.contains(&Code::JsonValue).then_some(paths).and_then(|mut p| p.find(|h| !json::is_path(h)))
        {
            return no("code", &format!("`{bad}` is no path into a JSON value, such as $.a.b[0] or $.a.*.b"));
        }
        for (key, original) in [("restore.key", &self.restore.key), ("restore.value", &self.restore.value)] {
            if original.as_ref().is_some_and(|o| o.header.is_empty()) {
                return no(key, "names no header");
            }
        }
        for (key, names) in lists {
            if names.iter().any(String::is_empty) {
                return no(key, "an empty name would match anything or nothing");
            }
        }
        for (field, rule) in &self.fields {
            let key = format!("fields.{}", field.name());
            if rule.from.is_empty() {
                return no(&format!("{key}.from"), "names no header");
            }
            if rule.always && !field.is_event() {
                return no(&format!("{key}.always"), "only event_* and content_type can be read on every record");
            }
            for (i, source) in rule.from.iter().enumerate() {
                let key = format!("{key}.from[{i}]");
                check_source(*field, rule, source).map_err(|(k, reason)| (format!("{key}.{k}"), reason.to_owned()))?;
                if rule.from[..i].iter().any(|s| s.header == source.header && s.after.is_none()) {
                    return no(&key, "this header is already in the list");
                }
            }
        }
        if let Some(f) = self.replaced.iter().find(|f| f.is_event() || !self.fields.contains_key(f)) {
            return no("replaced", &format!("`{}` is an event field or not in [fields]", f.name()));
        }
        let key = &self.failure_key;
        if key.fields.iter().all(|f| key.optional.contains(f)) {
            return no("failure_key.fields", "needs a field that is not optional");
        }
        if key.fields.contains(&Field::ErrorStacktrace) {
            return no("failure_key.fields", "a stack trace is no identity");
        }
        if key.optional.iter().any(|f| !key.fields.contains(f)) {
            return no("failure_key.optional", "names a field that is not in `fields`");
        }
        Ok(())
    }
}

impl Renamed {
    fn renamed<'t>(self, base: impl Fn(&str) -> Option<&'t Table>) -> Result<Table, (String, String)> {
        let Some(base) = base(&self.extends) else {
            return Err(("extends".to_owned(), format!("`{}` is no built-in dialect", self.extends)));
        };
        let mut table = base.clone();
        let mut used = BTreeSet::new();
        for header in table.headers_mut() {
            let best =
                self.rename.iter().filter(|(old, _)| header.starts_with(old.as_str())).max_by_key(|(o, _)| o.len());
            if let Some((old, new)) = best {
                *header = format!("{new}{}", &header[old.len()..]);
                used.insert(old);
            }
        }
        if let Some(old) = self.rename.keys().find(|old| !used.contains(old)) {
            let reason = format!("`{}` has no header that begins with `{old}`: see `dialects show`", self.extends);
            return Err(("rename".to_owned(), reason));
        }
        (table.name, table.description) = (self.name, self.description);
        table.pipeline = self.pipeline.unwrap_or(table.pipeline);
        Ok(table)
    }
}

/// A parser's error with the line and what stands there.
fn parse_error(file: &str, text: &str, e: &toml::de::Error) -> Error {
    let line = e.span().map(|s| text[..s.start.min(text.len())].matches('\n').count());
    let place = line
        .map_or(String::new(), |n| format!("line {}: `{}`: ", n + 1, text.lines().nth(n).unwrap_or_default().trim()));
    Error::config(format!("{file}: {place}{}", e.message()))
}

/// `line N: ` of a key such as `fields.error_class.from[1]` or `detect.all`: where its own name first stands, after its
/// section's.
fn place_of(text: &str, key: &str) -> Option<String> {
    let mut from = 0;
    let lines: Vec<&str> = text.lines().collect();
    for part in key.split('.').map(|part| part.split(['[', '/']).next().unwrap_or(part)) {
        let names = |line: &str| {
            let line = line.trim_start().trim_start_matches('[');
            line.strip_prefix(part).is_some_and(|rest| rest.trim_start().starts_with(['=', ']', '.']))
        };
        match lines[from..].iter().position(|line| names(line)) {
            Some(found) => from += found,
            None if from > 0 => break,
            None => return None,
        }
    }
    Some(format!("line {}: ", from + 1))
}

fn check_source(field: Field, rule: &FieldRule, source: &Source) -> Result<(), (&'static str, &'static str)> {
    if source.header.is_empty() {
        return Err(("header", "is empty"));
    }
    let encoding = source.encoding.or(rule.encoding);
    if encoding.is_some_and(|e| !e.fits(field.kind())) {
        return Err(("encoding", "does not fit a field of this type"));
    }
    let cuts = [&source.before, &source.after];
    if cuts.iter().any(|c| c.is_some()) && field.kind() != FieldKind::Text {
        return Err(("before/after", "cut text fields only; a number is read from a header that holds nothing else"));
    }
    if cuts.iter().any(|c| c.as_deref() == Some("")) {
        return Err(("before/after", "is empty"));
    }
    if source.add != 0 && field.kind() != FieldKind::Integer {
        return Err(("add", "adds to integer fields only"));
    }
    if source.unit != Unit::Ms && field.kind() != FieldKind::Time {
        return Err(("unit", "is for timestamps only"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
