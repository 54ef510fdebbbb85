//! What a condition can ask of a record: the archive's columns by name, their values, and how values compare. Pure.

use super::{Parsed, Subject};
use crate::format::ArchivedRecord;
use crate::format::row::{split, within_years};
use crate::format::schema::{COLUMNS, Type};
use chrono::{DateTime, NaiveDate, NaiveDateTime};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::cmp::Ordering;

/// Exact up to what JSON and columns have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    Int(i128),
    Float(f64),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(Cow<'a, str>),
    /// Microseconds since 1970.
    Time(i64),
    /// Null or not is all that can be asked.
    Other(&'static str),
}

impl<'a> Value<'a> {
    pub fn text(text: Option<&'a str>) -> Self {
        text.map_or(Self::Null, |text| Self::Text(Cow::Borrowed(text)))
    }

    pub fn int(int: Option<impl Into<i128>>) -> Self {
        int.map_or(Self::Null, |int| Self::Number(Number::Int(int.into())))
    }

    fn time(us: Option<i64>) -> Self {
        us.and_then(within_years).map_or(Self::Null, Self::Time)
    }

    fn owned(text: Option<String>) -> Self {
        text.map_or(Self::Null, |text| Self::Text(Cow::Owned(text)))
    }

    pub fn of_json(json: &'a Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(is) => Self::Bool(*is),
            Json::String(text) => Self::Text(Cow::Borrowed(text)),
            Json::Array(_) => Self::Other("an array"),
            Json::Object(_) => Self::Other("an object"),
            Json::Number(n) => match n.as_i128() {
                Some(int) => Self::Number(Number::Int(int)),
                None => n.as_f64().map_or(Self::Null, |float| Self::Number(Number::Float(float))),
            },
        }
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "true or false",
            Self::Number(_) => "a number",
            Self::Text(_) => "text",
            Self::Time(_) => "a time",
            Self::Other(kind) => kind,
        }
    }
}

/// How two values compare; `None` where one is null.
///
/// # Errors
/// Of different types.
pub fn compare(a: &Value<'_>, b: &Value<'_>) -> Result<Option<Ordering>, ()> {
    use Value::*;
    Ok(match (a, b) {
        (Null, _) | (_, Null) => None,
        (Bool(a), Bool(b)) => Some(a.cmp(b)),
        (Text(a), Text(b)) => Some(a.cmp(b)),
        (Time(a), Time(b)) => Some(a.cmp(b)),
        (Text(a), Time(b)) => Some(time_us(a).ok_or(())?.cmp(b)),
        (Time(a), Text(b)) => Some(a.cmp(&time_us(b).ok_or(())?)),
        (Value::Number(a), Value::Number(b)) => match (a, b) {
            (self::Number::Int(a), self::Number::Int(b)) => Some(a.cmp(b)),
            (a, b) => a.float().partial_cmp(&b.float()),
        },
        _ => return Err(()),
    })
}

impl Number {
    fn float(self) -> f64 {
        match self {
            Self::Int(int) => int as f64,
            Self::Float(float) => float,
        }
    }
}

/// A time as a text: RFC 3339, or a date or a date with a time, in UTC. Microseconds since 1970.
pub fn time_us(text: &str) -> Option<i64> {
    let naive = |format| NaiveDateTime::parse_from_str(text, format).ok();
    DateTime::parse_from_rfc3339(text).map(|time| time.timestamp_micros()).ok().or_else(|| {
        let date = NaiveDate::parse_from_str(text, "%Y-%m-%d").ok().and_then(|date| date.and_hms_opt(0, 0, 0));
        let time = date.or_else(|| naive("%Y-%m-%d %H:%M:%S%.f")).or_else(|| naive("%Y-%m-%dT%H:%M:%S%.f"));
        time.map(|time| time.and_utc().timestamp_micros())
    })
}

type Get = for<'a> fn(&'a ArchivedRecord<'a>) -> Value<'a>;

macro_rules! text {
    ($column:ident) => {
        (stringify!($column), |r| Value::text(r.decoded.$column.as_deref()))
    };
}

macro_rules! int {
    ($column:ident) => {
        (stringify!($column), |r| Value::int(r.decoded.$column))
    };
}

/// Names as in [`COLUMNS`], and two short ones. Headers have names of their own.
const VALUES: [(&str, Get); 44] = [
    ("record_id", |r| Value::owned(Some(r.id.to_string()))),
    ("kafka_cluster_id", |r| Value::text(r.cluster_id)),
    ("kafka_topic", |r| Value::text(Some(&r.id.topic))),
    ("topic_generation", |r| Value::int(Some(r.id.generation))),
    ("kafka_partition", |r| Value::int(Some(r.id.partition))),
    ("kafka_offset", |r| Value::int(Some(r.id.offset))),
    ("kafka_timestamp", |r| Value::time(r.raw.timestamp_ms.checked_mul(1000))),
    ("kafka_timestamp_ms", |r| Value::int(Some(r.raw.timestamp_ms))),
    ("kafka_timestamp_type", |r| Value::text(Some(r.raw.timestamp_type.as_str()))),
    ("kafka_key_text", |r| Value::text(split(r.raw.key).0)),
    ("kafka_key_bytes", |r| split(r.raw.key).1.map_or(Value::Null, |_| Value::Other("bytes"))),
    ("kafka_value_text", |r| Value::text(split(r.raw.value).0)),
    ("kafka_value_bytes", |r| split(r.raw.value).1.map_or(Value::Null, |_| Value::Other("bytes"))),
    ("kafka_key_size", |r| Value::int(r.key_size)),
    ("kafka_value_size", |r| Value::int(r.value_size)),
    ("pipeline_name", |r| Value::text(Some(r.pipeline))),
    ("dialect", |r| Value::text(Some(&r.decoded.dialect))),
    ("failure_key", |r| Value::owned(Some(r.decoded.failure_key_hex()))),
    ("failed_at", |r| Value::time(r.decoded.failed_at_us)),
    text!(error_class),
    text!(error_message),
    int!(error_code),
    text!(error_stage),
    text!(error_component),
    text!(error_destination),
    text!(error_stacktrace),
    int!(attempts),
    text!(origin_topic),
    int!(origin_partition),
    int!(origin_offset),
    ("origin_timestamp", |r| Value::time(r.decoded.origin_timestamp_us)),
    text!(origin_group),
    text!(event_id),
    text!(event_source),
    text!(event_type),
    text!(event_subject),
    ("event_time", |r| Value::time(r.decoded.event_time_us)),
    text!(content_type),
    ("payload_state", |r| Value::text(Some(r.decoded.payload_state.as_str()))),
    ("prior_restores", |r| Value::int(Some(r.decoded.prior_restores))),
    ("decode_problems", |r| Value::owned(r.decoded.problems_text())),
    ("archived_at", |r| Value::time(Some(r.archived_at_us))),
    ("key", |r| Value::text(split(r.raw.key).0)),
    ("value", |r| Value::text(split(r.raw.value).0)),
];

pub fn find(name: &str) -> Option<usize> {
    VALUES.iter().position(|(known, _)| known.eq_ignore_ascii_case(name))
}

pub fn names() -> impl Iterator<Item = &'static str> {
    VALUES.iter().map(|(name, _)| *name)
}

pub fn name(column: usize) -> &'static str {
    VALUES.get(column).map_or("", |(name, _)| name)
}

/// Short names are texts.
pub fn type_of(column: usize) -> Type {
    COLUMNS.iter().find(|c| c.name == name(column)).map_or(Type::Text, |c| c.ty)
}

/// Short names are of key and value.
pub fn is_payload(column: usize) -> bool {
    COLUMNS.iter().find(|c| c.name == name(column)).is_none_or(|c| c.is_payload())
}

/// One record that is to be judged.
pub struct OfRecord<'r> {
    record: &'r ArchivedRecord<'r>,
    json: OnceCell<Option<Json>>,
}

impl<'r> OfRecord<'r> {
    pub fn new(record: &'r ArchivedRecord<'r>) -> Self {
        Self { record, json: OnceCell::new() }
    }
}

impl Subject for OfRecord<'_> {
    fn column(&self, column: usize) -> Option<Value<'_>> {
        VALUES.get(column).map(|(_, get)| get(self.record))
    }

    fn header(&self, name: &str) -> Option<Value<'_>> {
        let named = self.record.raw.headers.iter().filter(|h| h.name == name.as_bytes()).last();
        Some(Value::text(named.and_then(|h| split(h.value).0)))
    }

    fn json(&self) -> Parsed<'_> {
        let Some(value) = self.record.raw.value else { return Parsed::Json(None) };
        match self.json.get_or_init(|| serde_json::from_slice(value).ok()) {
            Some(json) => Parsed::Json(Some(json)),
            None => Parsed::NotJson,
        }
    }
}
