//! One rule of the configuration: what it asks of a record, and the pipeline's name that it makes. Pure.
//!
//! Owns which fields there are, what matches them, and captures in names. Does not know the order of rules, nor how a
//! file writes them. Invariant: whether a rule matches, and the name, depend on topic and decoded columns alone.

use crate::error::did_you_mean;
use crate::filter::short_class;
use crate::record::Decoded;
use regex::Regex;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;

/// What rules are asked about. Many ask for the same field: its text is made once.
pub(super) struct Subject<'a> {
    topic: &'a str,
    /// The pipeline's name without any rule.
    default: &'a str,
    d: &'a Decoded<'a>,
    texts: [OnceCell<Option<Cow<'a, str>>>; FIELDS.len()],
}

impl<'a> Subject<'a> {
    pub fn new(topic: &'a str, default: &'a str, d: &'a Decoded<'a>) -> Self {
        Self { topic, default, d, texts: [const { OnceCell::new() }; FIELDS.len()] }
    }

    pub fn text(&self, field: usize) -> Option<&str> {
        self.texts.get(field)?.get_or_init(|| FIELDS.get(field).and_then(|(_, value)| value(self))).as_deref()
    }
}

/// A field's text; `None` where the column is null, which nothing matches.
type Value = for<'a> fn(&Subject<'a>) -> Option<Cow<'a, str>>;

macro_rules! text {
    ($column:ident) => {
        (stringify!($column), |s| s.d.$column.as_deref().map(Cow::Borrowed))
    };
}

macro_rules! number {
    ($column:ident) => {
        (stringify!($column), |s| s.d.$column.map(|n| n.to_string().into()))
    };
}

/// The decoded columns that are texts or numbers, by their names in the archive, and what else there is to match.
const FIELDS: [(&str, Value); 24] = [
    (TOPIC, |s| Some(s.topic.into())),
    ("pipeline", |s| Some(s.default.into())),
    ("dialect", |s| Some((&*s.d.dialect).into())),
    ("failure_key", |s| Some(s.d.failure_key_hex().into())),
    text!(error_class),
    text!(error_message),
    number!(error_code),
    text!(error_stage),
    text!(error_component),
    text!(error_destination),
    text!(error_stacktrace),
    number!(attempts),
    text!(origin_topic),
    number!(origin_partition),
    number!(origin_offset),
    text!(origin_group),
    text!(event_id),
    text!(event_source),
    text!(event_type),
    text!(event_subject),
    text!(content_type),
    ("payload_state", |s| Some(s.d.payload_state.as_str().into())),
    ("prior_restores", |s| Some(s.d.prior_restores.to_string().into())),
    ("decode_problems", |s| s.d.problems_text().map(Cow::Owned)),
];

const TOPIC: &str = "topic";

/// A field, and what it has to be.
#[derive(Debug, Clone)]
pub struct Condition {
    /// Its place in [`FIELDS`].
    pub(super) field: usize,
    /// As the file has it.
    text: String,
    pattern: Pattern,
}

#[derive(Debug, Clone)]
enum Pattern {
    /// All of the text.
    Exact,
    /// The same, with `*` in it: what is between them.
    Pieces(Vec<String>),
    /// The same, with `?` in it too.
    Glob(Regex),
    /// Found in the text; it begins with `^`.
    Regex(Regex),
}

impl Condition {
    /// # Errors
    /// Why it is none.
    pub fn parse(field: &str, text: &str) -> Result<Self, String> {
        let Some(field) = FIELDS.iter().position(|(name, _)| *name == field) else {
            let near = did_you_mean(&field.replace('-', "_"), FIELDS.iter().map(|(name, _)| *name));
            let all = || FIELDS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            let hint = if near.is_empty() { format!(". Fields are {}", all()) } else { near };
            return Err(format!("there is no such field{hint}"));
        };
        if text.is_empty() {
            return Err("it is empty and matches nothing: leave it out, or say what it has to match".into());
        }
        let pattern = if text.starts_with('^') {
            Pattern::Regex(Regex::new(text).map_err(|e| {
                let why = e.to_string();
                let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ");
                format!("{text:?} is not a regular expression: {why}")
            })?)
        } else if text.contains('*') && !text.contains('?') {
            Pattern::Pieces(text.split('*').map(str::to_owned).collect())
        } else if text.contains('?') {
            Pattern::Glob(glob(text).map_err(|e| format!("{text:?} is too long a pattern: {e}"))?)
        } else {
            Pattern::Exact
        };
        Ok(Self { field, text: text.to_owned(), pattern })
    }

    /// Whether the field's text is what it has to be.
    pub(super) fn matches(&self, value: &str) -> bool {
        let whole = |value: &str| match &self.pattern {
            Pattern::Exact => self.text == value,
            Pattern::Pieces(pieces) => is_made_of(pieces, value),
            Pattern::Glob(pattern) | Pattern::Regex(pattern) => pattern.is_match(value),
        };
        // As the filter's --error-class: a regular expression is for the full name.
        let or_short = self.name() == "error_class" && !matches!(self.pattern, Pattern::Regex(_));
        whole(value) || or_short && whole(short_class(value))
    }

    /// The field's.
    fn name(&self) -> &'static str {
        FIELDS.get(self.field).map_or("", |(name, _)| name)
    }

    fn regex(&self) -> Option<&Regex> {
        match &self.pattern {
            Pattern::Regex(regex) => Some(regex),
            _ => None,
        }
    }
}

/// Whether a text begins with the first piece, ends with the last, and has the others in between, in order.
fn is_made_of(pieces: &[String], text: &str) -> bool {
    let [first, between @ .., last] = pieces else { return false };
    let rest = text.strip_prefix(first.as_str()).and_then(|rest| rest.strip_suffix(last.as_str()));
    let found = |rest: &'_ str, piece: &String| rest.find(piece.as_str()).map(|at| at + piece.len());
    rest.is_some_and(|mut rest| {
        between.iter().all(|piece| match found(rest, piece) {
            Some(end) => {
                rest = &rest[end..];
                true
            }
            None => false,
        })
    })
}

/// `*` is any text, `?` one character, and nothing else is special.
fn glob(text: &str) -> Result<Regex, regex::Error> {
    let mut pattern = String::from(r"(?s)\A");
    for c in text.chars() {
        match c {
            '*' => pattern.push_str(".*"),
            '?' => pattern.push('.'),
            c => pattern.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
        }
    }
    Regex::new(&(pattern + r"\z"))
}

/// Conditions that all have to hold, and the name that follows.
#[derive(Debug, Clone)]
pub struct Rule {
    conditions: Vec<Condition>,
    name: Vec<Part>,
    /// The name as the file has it.
    text: String,
}

/// A part of a pipeline's name.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    /// A group of this condition's regular expression.
    Group(usize, usize),
}

impl Rule {
    /// `name`: a text in which `${1}` or `${group}` stand for what groups of the regular expressions have captured.
    ///
    /// # Errors
    /// Why it is no name, or names no group.
    pub fn new(conditions: Vec<Condition>, name: &str) -> Result<Self, String> {
        if name.trim().is_empty() {
            return Err("a pipeline has a name".into());
        }
        let (mut parts, mut rest) = (Vec::new(), name);
        while let Some((before, behind)) = rest.split_once("${") {
            let (group, behind) = behind.split_once('}').ok_or("a ${ is not closed by }")?;
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            parts.push(reference(&conditions, group)?);
            rest = behind;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Self { conditions, name: parts, text: name.to_owned() })
    }

    /// Whether records of this topic can match.
    pub(super) fn is_for(&self, topic: &str) -> bool {
        self.conditions.iter().filter(|c| c.name() == TOPIC).all(|c| c.matches(topic))
    }

    pub(super) fn all(&self) -> &[Condition] {
        &self.conditions
    }

    /// The pipeline's name where all conditions hold, if it is not empty.
    pub(super) fn name(&self, subject: &Subject<'_>) -> Option<String> {
        let mut name = String::new();
        for part in &self.name {
            match part {
                Part::Text(text) => name.push_str(text),
                Part::Group(condition, group) => {
                    let condition = self.conditions.get(*condition)?;
                    let captures = condition.regex()?.captures(subject.text(condition.field)?)?;
                    name.push_str(captures.get(*group).map_or("", |group| group.as_str()));
                }
            }
        }
        (!name.trim().is_empty()).then_some(name)
    }

    /// Fields and what they have to be, in the order of the file.
    pub fn conditions(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.conditions.iter().map(|c| (c.name(), c.text.as_str()))
    }

    /// The name as the file has it.
    pub fn pipeline(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (field, text)) in self.conditions().enumerate() {
            write!(f, "{}{field} = {text:?}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// The group that `${group}` names: by its name, or by its number where only one condition is a regular expression.
fn reference(conditions: &[Condition], group: &str) -> Result<Part, String> {
    let regexes: Vec<_> = conditions.iter().enumerate().filter_map(|(i, c)| Some((i, c.name(), c.regex()?))).collect();
    let of_regexes = "names have groups of regular expressions, which begin with ^";
    if let Ok(number) = group.parse::<usize>() {
        return match regexes.as_slice() {
            [] => Err(format!("${{{group}}}: the rule has no regular expression; {of_regexes}")),
            [(i, _, regex)] if number < regex.captures_len() => Ok(Part::Group(*i, number)),
            [(_, field, regex)] => {
                Err(format!("${{{group}}}: the regular expression of {field} has {} groups", regex.captures_len() - 1))
            }
            _ => Err(format!(
                "${{{group}}}: several regular expressions have groups of this number; give it a name, as in (?<team>...) and \
                 ${{team}}"
            )),
        };
    }
    let named = regexes.iter().flat_map(|(i, field, regex)| {
        let names = regex.capture_names().enumerate();
        names.filter_map(move |(number, name)| Some((*i, *field, number, name?)))
    });
    let named: Vec<_> = named.collect();
    match named.iter().filter(|(.., name)| *name == group).collect::<Vec<_>>().as_slice() {
        [(i, _, number, _)] => Ok(Part::Group(*i, *number)),
        [] => {
            let near = did_you_mean(group, named.iter().map(|(.., name)| *name));
            let hint = if near.is_empty() { format!("; {of_regexes}, such as (?<team>...)") } else { near };
            Err(format!("${{{group}}}: no regular expression of the rule has such a group{hint}"))
        }
        [(_, a, ..), (_, b, ..), ..] => Err(format!("${{{group}}}: both {a} and {b} have such a group")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::{By, Routing};

    fn rule(conditions: &[(&str, &str)], name: &str) -> Result<Rule, String> {
        let conditions = conditions.iter().map(|(field, text)| Condition::parse(field, text));
        Rule::new(conditions.collect::<Result<_, _>>()?, name)
    }

    /// What the rule makes of an ordinary failure.
    fn name(rule: &Rule) -> Option<String> {
        let d = Decoded {
            dialect: "spring".into(),
            error_class: Some("java.sql.SQLException".into()),
            error_message: Some("no\nway".into()),
            error_code: Some(-503),
            origin_topic: Some("payments.eu.orders".into()),
            origin_group: Some("group-7".into()),
            ..Decoded::default()
        };
        let routing = Routing::default().with_rules(std::slice::from_ref(rule));
        let (name, by) = routing.of_topic("eu-dlq").route(&d);
        (by == By::Rule(0)).then(|| name.into_owned())
    }

    #[test]
    fn every_decoded_column_that_is_text_or_a_number_is_a_field() {
        let page = include_str!("../../schemas/record.md");
        let rows = page.lines().filter_map(|line| line.split('|').map(str::trim).collect::<Vec<_>>().try_into().ok());
        let decoded = rows.filter(|[_, column, ty, _, _, _, from, _]: &[&str; 8]| {
            let plain = ["BYTE_ARRAY (STRING)", "INT32", "INT64"].contains(ty);
            plain && (["dialect", "event"].contains(from) || *column == "`prior_restores`")
        });
        let mut expected: Vec<&str> = decoded.map(|row| row[1].trim_matches('`')).chain([TOPIC, "pipeline"]).collect();
        let mut fields: Vec<&str> = FIELDS.iter().map(|(name, _)| *name).collect();
        expected.sort_unstable();
        fields.sort_unstable();
        assert_eq!(fields, expected);
    }

    #[test]
    fn globs_are_of_all_of_a_text_and_regular_expressions_are_found_in_it() {
        for (field, text, matches) in [
            ("topic", "eu-dlq", true),
            ("topic", "eu", false),
            ("topic", "^eu", true),
            ("topic", "*-dlq", true),
            ("topic", "?u-*q", true),
            ("topic", "?-dlq", false),
            ("origin_topic", "payments.*", true),
            ("origin_topic", "*", true),
            ("origin_topic", "*.eu.*", true),
            ("origin_topic", "*.*.*.*", false),
            // No character is of two pieces.
            ("topic", "eu-*-dlq", false),
            ("topic", "eu*u-dlq", false),
            ("topic", "e*u*d*q", true),
            ("origin_topic", "payments?eu*", true),
            // A dot is a dot.
            ("origin_topic", "payments.eu.order?s", false),
            ("topic", "eu.dlq", false),
            ("error_message", "no*y", true),
            ("error_message", "no?way", true),
            ("error_code", "-503", true),
            ("error_code", "-5??", true),
            ("error_code", "^-5", true),
            ("error_code", "503", false),
            ("error_class", "SQLException", true),
            ("error_class", "java.sql.SQLException", true),
            ("error_class", "SQL*", true),
            ("error_class", "^SQL", false),
            ("pipeline", "group-*", true),
            ("dialect", "spring", true),
            ("payload_state", "present", true),
            ("prior_restores", "0", true),
            ("failure_key", "0000*", true),
            // Null is matched by nothing.
            ("event_id", "*", false),
            ("attempts", "^", false),
            ("decode_problems", "*", false),
        ] {
            assert_eq!(name(&rule(&[(field, text)], "x").unwrap()).is_some(), matches, "{field} = {text:?}");
        }
        // All of them.
        assert_eq!(name(&rule(&[("topic", "eu-dlq"), ("error_code", "1")], "x").unwrap()), None);
        assert_eq!(name(&rule(&[("error_code", "-503"), ("topic", "us-dlq")], "x").unwrap()), None);
    }

    #[test]
    fn names_have_what_groups_captured_and_an_empty_one_is_no_match() {
        let topic = ("topic", "^(?<region>eu|us)-(x)?");
        let origin = ("origin_topic", r"^(?<team>\w+)\.\w+\.(?<what>\w+)");
        for (conditions, text, named) in [
            (&[topic][..], "team-${1}", Some("team-eu")),
            (&[topic], "${region}${2}", Some("eu")),
            (&[topic], "${2}", None),
            (&[topic], " ${2} ", None),
            (&[topic], "${0}!", Some("eu-!")),
            (&[topic, origin], "${team}/${what}@${region}", Some("payments/orders@eu")),
            // Globs have no groups.
            (&[("error_code", "*"), origin], "${2}$ {1} $1", Some("orders$ {1} $1")),
            (&[topic], "größe / x", Some("größe / x")),
        ] {
            assert_eq!(name(&rule(conditions, text).unwrap()).as_deref(), named, "{text}");
        }
        for (conditions, text, why) in [
            (&[topic][..], "${3}", "topic has 2 groups"),
            (&[topic, origin], "${1}", "give it a name"),
            (&[topic], "${regoin}", "did you mean \"region\"?"),
            (&[("topic", "eu*")], "${1}", "no regular expression"),
            (&[("topic", "eu*")], "${team}", "no regular expression of the rule has such a group"),
            (&[topic, ("error_message", "^(?<region>.)")], "${region}", "both topic and error_message"),
            (&[topic], "a${1", "not closed"),
            (&[topic], " ", "has a name"),
            (&[("error-clas", "x")], "x", "did you mean \"error_class\"?"),
            (&[("failed_at", "x")], "x", "there is no such field"),
            (&[("topic", "^(")], "x", "unclosed group"),
            (&[("topic", "")], "x", "it is empty"),
        ] {
            let told = rule(conditions, text).unwrap_err();
            assert!(told.contains(why), "{text}: {told}");
        }
    }
}
