//! The text of a configuration file: keys with their values, and where each stands.
//!
//! Knows the file's form and the names of its tables, not what keys there are ([`super`]). Pure. Invariant: keys and
//! tables are in the order of the file, and every error names file and line.

use crate::error::{Error, Result};
use toml::de::{DeTable, DeValue};

/// One key of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    pub key: String,
    pub value: Value,
    /// Of the key, from 1.
    pub line: usize,
}

/// A value as the command line would have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Bool(bool),
    /// A text or a number.
    One(String),
    List(Vec<String>),
}

impl Value {
    /// A list is joined with commas, as librdkafka has lists.
    pub fn text(&self) -> String {
        self.texts().join(",")
    }

    pub fn texts(&self) -> Vec<String> {
        match self {
            Self::Bool(yes) => vec![yes.to_string()],
            Self::One(text) => vec![text.clone()],
            Self::List(texts) => texts.clone(),
        }
    }
}

/// `[topics."..."]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    pub topic: String,
    pub line: usize,
    pub settings: Vec<Setting>,
}

/// A configuration file. The default is one that sets nothing.
#[derive(Debug, Clone, Default)]
pub struct File {
    /// Its path, as given.
    pub name: String,
    pub settings: Vec<Setting>,
    pub kafka: Vec<Setting>,
    pub topics: Vec<Table>,
}

impl File {
    /// # Errors
    /// [`crate::Kind::Config`] with file, line and reason.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let at = |start: usize, why: &str| Error::config(format!("{name}:{}: {why}", line(text, start)));
        let root = DeTable::parse(text).map_err(|e| {
            let start = e.span().map_or(0, |span| span.start);
            // Of its line the key alone: the rest may be a password.
            let of_key = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            let (before, behind) = text.split_at_checked(start).unwrap_or_default();
            let begin = before.trim_end_matches(of_key).len();
            let end = start + behind.len() - behind.trim_start_matches(of_key).len();
            let key = text.get(begin..end).unwrap_or_default();
            match e.message().trim() {
                "duplicate key" => at(start, &format!("{key}: it stands there twice: keep one")),
                why if why.starts_with("key with no value") => at(start, &format!("{key}: this is not TOML: {why}")),
                why => at(start, &format!("this is not TOML: {why}")),
            }
        })?;
        let all = |table| -> Result<Vec<Setting>> {
            let settings = in_order(table).into_iter();
            settings
                .map(|(key, start, value)| {
                    Ok(Setting {
                        value: plain(value).map_err(|why| at(start, &format!("{key}: {why}")))?,
                        key: key.to_owned(),
                        line: line(text, start),
                    })
                })
                .collect()
        };
        let mut file = Self { name: name.to_owned(), ..Self::default() };
        for (key, start, value) in in_order(root.get_ref()) {
            match (key, value) {
                ("kafka", DeValue::Table(table)) => {
                    properties(table, "", text, &mut file.kafka).map_err(|(start, why)| at(start, &why))?;
                }
                ("topics", DeValue::Table(table)) => {
                    for (topic, start, value) in in_order(table) {
                        let DeValue::Table(table) = value else {
                            return Err(at(start, &format!("topics: {topic} is no table: write [topics.{topic:?}]")));
                        };
                        file.topics.push(Table {
                            topic: topic.to_owned(),
                            line: line(text, start),
                            settings: all(table)?,
                        });
                    }
                }
                ("topic", DeValue::Table(table)) => {
                    let name = in_order(table).first().map_or("NAME", |(name, ..)| name);
                    return Err(at(
                        start,
                        &format!("topic is a list of names; settings of one are in [topics.{name:?}]"),
                    ));
                }
                ("kafka" | "topics", _) => return Err(at(start, &format!("{key} is a table: write [{key}]"))),
                (_, value) => file.settings.push(Setting {
                    value: plain(value).map_err(|why| at(start, &format!("{key}: {why}")))?,
                    key: key.to_owned(),
                    line: line(text, start),
                }),
            }
        }
        Ok(file)
    }

    /// `FILE:LINE`.
    pub fn place(&self, line: usize) -> String {
        format!("{}:{line}", self.name)
    }
}

/// The line of a byte, from 1.
fn line(text: &str, start: usize) -> usize {
    1 + text.bytes().take(start).filter(|b| *b == b'\n').count()
}

/// Keys, where they begin, and values.
fn in_order<'t>(table: &'t DeTable<'_>) -> Vec<(&'t str, usize, &'t DeValue<'t>)> {
    let mut all: Vec<_> =
        table.iter().map(|(key, value)| (key.get_ref().as_ref(), key.span().start, value.get_ref())).collect();
    all.sort_by_key(|(_, start, _)| *start);
    all
}

fn plain(value: &DeValue<'_>) -> Result<Value, String> {
    match value {
        DeValue::Boolean(yes) => Ok(Value::Bool(*yes)),
        DeValue::Array(array) if array.is_empty() => Err("the list is empty: leave the key out".into()),
        DeValue::Array(array) => {
            array.iter().map(|item| scalar(item.get_ref())).collect::<Result<_, _>>().map(Value::List)
        }
        other => scalar(other).map(Value::One),
    }
}

fn scalar(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.as_ref().to_owned()),
        DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
            .map(|n| n.to_string())
            .map_err(|_| "the number is too large".into()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Boolean(yes) => Ok(yes.to_string()),
        DeValue::Datetime(time) => Ok(time.to_string()),
        DeValue::Array(_) => Err("a list in a list is no value".into()),
        DeValue::Table(_) => Err("a table is no value here; tables are [kafka] and [topics.\"NAME\"]".into()),
    }
}

/// Properties have dots in their names, which are tables in TOML unless they are quoted.
fn properties(table: &DeTable<'_>, before: &str, text: &str, found: &mut Vec<Setting>) -> Result<(), (usize, String)> {
    for (key, start, value) in in_order(table) {
        let key = format!("{before}{key}");
        match value {
            DeValue::Table(table) => properties(table, &format!("{key}."), text, found)?,
            other => {
                let value = scalar(other).map_err(|why| (start, format!("[kafka] {key}: {why}")))?;
                found.push(Setting { key, value: Value::One(value), line: line(text, start) });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_lines_and_the_files_order() {
        let text = "topic = [\"b\", \"^a{1,2}\"]\narchive = \"x\"\nonce = true\ncut-records = 1_000\n\n[topics.z]\n\
                    cut-age = \"1h\"\n[topics.\"^a\"]\n[kafka]\nssl.ca.location = \"p\"\n\"security.protocol\" = \"SSL\"\n";
        let file = File::parse("f", text).unwrap();
        let one = |key: &str, value: &str, line| Setting { key: key.into(), value: Value::One(value.into()), line };
        assert_eq!(file.settings[0].value, Value::List(vec!["b".into(), "^a{1,2}".into()]));
        assert_eq!(file.settings[1], one("archive", "x", 2));
        assert_eq!(file.settings[2].value, Value::Bool(true));
        assert_eq!(file.settings[3], one("cut-records", "1000", 4));
        let tables: Vec<_> = file.topics.iter().map(|t| (t.topic.as_str(), t.line, t.settings.len())).collect();
        assert_eq!(tables, [("z", 6, 1), ("^a", 8, 0)]);
        assert_eq!(file.kafka, [one("ssl.ca.location", "p", 10), one("security.protocol", "SSL", 11)]);
    }

    #[test]
    fn what_is_wrong_is_told_with_file_and_line() {
        for (text, told) in [
            ("a = 1\nb = ", "f:2: this is not TOML: "),
            ("a = 1\na = 2", "f:2: a: it stands there twice"),
            ("[topics.x]\n[topics.x]", "f:2: topics.x: it stands there twice"),
            ("a = 1\ncut-age: \"1h\"", "f:2: cut-age: this is not TOML: key with no value, expected `=`"),
            ("\n[topic.\"^a\"]\ncut-age = 1", "f:2: topic is a list of names; settings of one are in [topics.\"^a\"]"),
            ("topic = []", "f:1: topic: the list is empty"),
            ("\n[archive]\nx = 1", "f:2: archive: a table is no value here"),
            ("kafka = 1", "f:1: kafka is a table"),
            ("topics.x = 1", "f:1: topics: x is no table"),
            ("[topics.x]\ny = {z = 1}", "f:2: y: a table is no value"),
            ("[kafka]\nx = [1]", "f:2: [kafka] x: a list"),
        ] {
            let e = File::parse("f", text).unwrap_err();
            assert!(e.exit_code() == 2 && e.message().starts_with(told), "{text:?}: {e}");
        }
    }
}
