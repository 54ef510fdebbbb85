//! A condition in SQL's words (`--where`), for what no other filter says. Pure.
//!
//! Owns what a condition means: three values as in SQL, and a fourth for a record that cannot be judged, as it has
//! another type than the condition asks for. [`parse`] owns the words, [`columns`] what a record has. Invariants: it ends
//! within a time that its length and the record's bound, it never panics, and what a part of a record's columns rules out, all of
//! them do.

pub(super) mod columns;
mod parse;

use crate::error::Result;
use columns::{Number, Value};
use regex::Regex;
use serde_json::Value as Json;
use std::borrow::Cow;
use std::cmp::Ordering;

/// A condition that was understood.
#[derive(Debug, Clone)]
pub(super) struct Expression(Condition);

#[derive(Debug, Clone)]
enum Condition {
    All(Vec<Condition>),
    Any(Vec<Condition>),
    Not(Box<Condition>),
    Compare(Operand, Comparison, Operand),
    /// Equal to one of them.
    In(Operand, Vec<Literal>),
    IsNull(Operand),
    Matches(Operand, Regex),
    /// A truth value.
    Is(Operand),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    Unequal,
    Less,
    AtMost,
    More,
    AtLeast,
}

#[derive(Debug, Clone)]
enum Operand {
    Literal(Literal),
    /// Its place in [`columns::all`].
    Column(usize),
    /// A part of the value as JSON, and how it was written.
    Json(Vec<Step>, String),
    /// The last header of that name.
    Header(String),
    Call(Function, Box<Operand>),
}

#[derive(Debug, Clone)]
enum Literal {
    Bool(bool),
    Number(Number),
    Text(String),
    /// Microseconds since 1970.
    Time(i64),
}

#[derive(Debug, Clone)]
enum Step {
    Field(String),
    Index(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Function {
    Lower,
    Upper,
    Length,
}

/// What is asked of a record, or of what is known of many.
pub(super) trait Subject {
    /// `None`: not known.
    fn column(&self, column: usize) -> Option<Value<'_>>;
    fn header(&self, name: &str) -> Option<Value<'_>>;
    /// The value as JSON.
    fn json(&self) -> Parsed<'_>;
}

pub(super) enum Parsed<'a> {
    NotKnown,
    NotJson,
    /// `None`: the record's value is null.
    Json(Option<&'a Json>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict<'e> {
    True,
    False,
    /// Something that it asks for is null.
    Null,
    Unjudged(Why<'e>),
}

/// Why a record cannot be judged. No value of it is in here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why<'e> {
    NotKnown,
    NotJson,
    Type { what: &'e str, is: &'static str, wanted: &'static str },
}

impl std::fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotKnown => f.write_str("not all of it is known"),
            Self::NotJson => f.write_str("its value is not JSON"),
            Self::Type { what, is, wanted } => write!(f, "{what} is {is}, where the condition wants {wanted}"),
        }
    }
}

impl Expression {
    /// # Errors
    /// [`crate::Kind::Config`] that says what is not understood, and where.
    pub fn new(text: &str) -> Result<Self> {
        parse::condition(text).map(Self)
    }

    /// Whether it asks for key, value, headers or stack trace.
    pub fn needs_payload(&self) -> bool {
        self.0.needs_payload()
    }

    /// What cannot be true, whatever the parts that cannot be judged are, is null.
    pub fn judge(&self, subject: &impl Subject) -> Verdict<'_> {
        match self.0.judge(subject) {
            Verdict::Unjudged(_) if !self.0.may_hold(subject) => Verdict::Null,
            verdict => verdict,
        }
    }
}

impl Condition {
    fn needs_payload(&self) -> bool {
        match self {
            Self::All(all) | Self::Any(all) => all.iter().any(Self::needs_payload),
            Self::Not(not) => not.needs_payload(),
            Self::Compare(a, _, b) => a.needs_payload() || b.needs_payload(),
            Self::In(a, _) | Self::IsNull(a) | Self::Matches(a, _) | Self::Is(a) => a.needs_payload(),
        }
    }

    fn may_hold(&self, subject: &impl Subject) -> bool {
        match self {
            Self::All(all) => all.iter().all(|condition| condition.may_hold(subject)),
            Self::Any(any) => any.iter().any(|condition| condition.may_hold(subject)),
            other => !matches!(other.judge(subject), Verdict::False | Verdict::Null),
        }
    }

    fn judge(&self, subject: &impl Subject) -> Verdict<'_> {
        match self {
            Self::All(all) => {
                let mut verdict = Verdict::True;
                for condition in all {
                    match condition.judge(subject) {
                        Verdict::False => return Verdict::False,
                        other => verdict = verdict.weaker(other),
                    }
                }
                verdict
            }
            Self::Any(any) => {
                let mut verdict = Verdict::False;
                for condition in any {
                    match condition.judge(subject) {
                        Verdict::True => return Verdict::True,
                        other => verdict = verdict.weaker(other),
                    }
                }
                verdict
            }
            Self::Not(not) => match not.judge(subject) {
                Verdict::True => Verdict::False,
                Verdict::False => Verdict::True,
                other => other,
            },
            Self::Compare(a, comparison, b) => match (a.value(subject), b.value(subject)) {
                (Ok(x), Ok(y)) => match columns::compare(&x, &y) {
                    Ok(order) => of(order.map(|order| comparison.holds(order))),
                    Err(()) if b.is_json() && !a.is_json() => b.unfit(&y, x.kind()),
                    Err(()) => a.unfit(&x, y.kind()),
                },
                (Err(why), _) | (_, Err(why)) => Verdict::Unjudged(why),
            },
            Self::In(a, list) => match a.value(subject) {
                Ok(x) => {
                    let mut verdict = if matches!(x, Value::Null) { Verdict::Null } else { Verdict::False };
                    for literal in list {
                        let y = literal.value();
                        match columns::compare(&x, &y) {
                            Ok(Some(Ordering::Equal)) => return Verdict::True,
                            Ok(_) => {}
                            Err(()) => verdict = verdict.weaker(a.unfit(&x, y.kind())),
                        }
                    }
                    verdict
                }
                Err(why) => Verdict::Unjudged(why),
            },
            Self::IsNull(a) => match a.value(subject) {
                Ok(value) => of(Some(matches!(value, Value::Null))),
                Err(why) => Verdict::Unjudged(why),
            },
            Self::Matches(a, regex) => match a.value(subject) {
                Ok(Value::Null) => Verdict::Null,
                Ok(Value::Text(text)) => of(Some(regex.is_match(&text))),
                Ok(other) => a.unfit(&other, "text"),
                Err(why) => Verdict::Unjudged(why),
            },
            Self::Is(a) => match a.value(subject) {
                Ok(Value::Null) => Verdict::Null,
                Ok(Value::Bool(is)) => of(Some(is)),
                Ok(other) => a.unfit(&other, "true or false"),
                Err(why) => Verdict::Unjudged(why),
            },
        }
    }
}

fn of<'e>(truth: Option<bool>) -> Verdict<'e> {
    match truth {
        Some(true) => Verdict::True,
        Some(false) => Verdict::False,
        None => Verdict::Null,
    }
}

impl<'e> Verdict<'e> {
    /// What cannot be judged is weaker than null, and that than a truth value.
    fn weaker(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unjudged(why), _) | (_, Self::Unjudged(why)) => Self::Unjudged(why),
            (Self::Null, _) | (_, Self::Null) => Self::Null,
            _ => self,
        }
    }
}

impl Comparison {
    fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::Unequal => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::AtMost => order.is_le(),
            Self::More => order.is_gt(),
            Self::AtLeast => order.is_ge(),
        }
    }
}

impl Literal {
    fn value(&self) -> Value<'_> {
        match self {
            Self::Bool(is) => Value::Bool(*is),
            Self::Number(number) => Value::Number(*number),
            Self::Text(text) => Value::Text(Cow::Borrowed(text)),
            Self::Time(us) => Value::Time(*us),
        }
    }
}

impl Operand {
    fn needs_payload(&self) -> bool {
        match self {
            Self::Literal(_) => false,
            Self::Column(column) => columns::is_payload(*column),
            Self::Json(..) | Self::Header(_) => true,
            Self::Call(_, inner) => inner.needs_payload(),
        }
    }

    /// Of a type that only the record tells.
    fn is_json(&self) -> bool {
        match self {
            Self::Json(..) => true,
            Self::Call(_, inner) => inner.is_json(),
            _ => false,
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Literal(_) => "a constant",
            Self::Column(column) => columns::name(*column),
            Self::Json(_, text) => text,
            Self::Header(name) => name,
            Self::Call(_, inner) => inner.name(),
        }
    }

    fn unfit(&self, value: &Value<'_>, wanted: &'static str) -> Verdict<'_> {
        Verdict::Unjudged(Why::Type { what: self.name(), is: value.kind(), wanted })
    }

    fn value<'v, 'e: 'v>(&'e self, subject: &'v impl Subject) -> Result<Value<'v>, Why<'e>> {
        match self {
            Self::Literal(literal) => Ok(literal.value()),
            Self::Column(column) => subject.column(*column).ok_or(Why::NotKnown),
            Self::Header(name) => subject.header(name).ok_or(Why::NotKnown),
            Self::Json(path, _) => match subject.json() {
                Parsed::NotKnown => Err(Why::NotKnown),
                Parsed::NotJson => Err(Why::NotJson),
                Parsed::Json(json) => Ok(json.and_then(|json| walk(json, path)).map_or(Value::Null, Value::of_json)),
            },
            Self::Call(function, inner) => match (inner.value(subject)?, function) {
                (Value::Null, _) => Ok(Value::Null),
                (Value::Text(text), Function::Lower) => Ok(Value::Text(text.to_lowercase().into())),
                (Value::Text(text), Function::Upper) => Ok(Value::Text(text.to_uppercase().into())),
                (Value::Text(text), Function::Length) => Ok(Value::Number(Number::Int(text.chars().count() as i128))),
                (other, _) => Err(Why::Type { what: inner.name(), is: other.kind(), wanted: "text" }),
            },
        }
    }
}

fn walk<'j>(json: &'j Json, path: &[Step]) -> Option<&'j Json> {
    path.iter().try_fold(json, |at, step| match step {
        Step::Field(name) => at.get(name),
        Step::Index(index) => at.get(index),
    })
}

#[cfg(test)]
mod tests;
