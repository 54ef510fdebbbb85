//! What `summary` counts by: columns, and where each is known from.

use crate::cli::disposition::name;
use crate::cli::text;
use crate::filter::is_exact;
use crate::format::ArchivedRecord;
use crate::layout;
use crate::ledger::{Counts, DataObject, Manifest};
use crate::restore::past::Disposition;
use clap::ValueEnum;
use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Field {
    Topic,
    Partition,
    Pipeline,
    Date,
    Dialect,
    ErrorClass,
    ErrorCode,
    ErrorStage,
    ErrorComponent,
    ErrorDestination,
    ErrorMessage,
    OriginTopic,
    OriginGroup,
    EventSource,
    EventType,
    PayloadState,
    // What became of it, see `cli::disposition`.
    Disposition,
}

/// A column's value; numbers stay numbers in documents.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cell {
    Null,
    Number(i64),
    Text(String),
}

impl Cell {
    pub fn text(text: Option<&str>) -> Self {
        text.map_or(Self::Null, |t| Self::Text(t.to_owned()))
    }
    pub fn number(number: Option<i32>) -> Self {
        number.map_or(Self::Null, |n| Self::Number(n.into()))
    }
    pub fn json(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Number(n) => (*n).into(),
            Self::Text(t) => t.as_str().into(),
        }
    }
    pub fn shown(&self) -> String {
        match self {
            Self::Null => "-".into(),
            Self::Number(n) => n.to_string(),
            Self::Text(t) if t.is_empty() => "\"\"".into(),
            Self::Text(t) => text::clean(t).into_owned(),
        }
    }
}

impl Field {
    pub fn title(self) -> &'static str {
        match self {
            Self::Topic => "TOPIC",
            Self::Partition => "PARTITION",
            Self::Pipeline => "PIPELINE",
            Self::Date => "DATE",
            Self::Dialect => "DIALECT",
            Self::ErrorClass => "ERROR CLASS",
            Self::ErrorCode => "CODE",
            Self::ErrorStage => "STAGE",
            Self::ErrorComponent => "COMPONENT",
            Self::ErrorDestination => "DESTINATION",
            Self::ErrorMessage => "MESSAGE",
            Self::OriginTopic => "ORIGIN TOPIC",
            Self::OriginGroup => "ORIGIN GROUP",
            Self::EventSource => "EVENT SOURCE",
            Self::EventType => "EVENT TYPE",
            Self::PayloadState => "PAYLOAD",
            Self::Disposition => "DISPOSITION",
        }
    }

    /// The column's name in the archive's schema; what became of a record is in none.
    pub fn name(self) -> &'static str {
        match self {
            Self::Topic => "kafka_topic",
            Self::Partition => "kafka_partition",
            Self::Pipeline => "pipeline_name",
            Self::Date => "dt",
            Self::Dialect => "dialect",
            Self::ErrorClass => "error_class",
            Self::ErrorCode => "error_code",
            Self::ErrorStage => "error_stage",
            Self::ErrorComponent => "error_component",
            Self::ErrorDestination => "error_destination",
            Self::ErrorMessage => "error_message",
            Self::OriginTopic => "origin_topic",
            Self::OriginGroup => "origin_group",
            Self::EventSource => "event_source",
            Self::EventType => "event_type",
            Self::PayloadState => "payload_state",
            Self::Disposition => "disposition",
        }
    }

    pub fn is_number(self) -> bool {
        matches!(self, Self::Partition | Self::ErrorCode)
    }

    /// From a manifest; `None` if it does not say.
    pub fn counted(self, m: &Manifest, o: &DataObject, c: &Counts) -> Option<Cell> {
        Some(match self {
            Self::Topic => Cell::text(Some(&m.topic)),
            Self::Partition => Cell::number(Some(m.partition)),
            Self::Pipeline => Cell::text(Some(o.pipeline.as_deref()?)),
            Self::Date => Cell::text(Some(&o.dt)),
            Self::Dialect if is_exact(c) => Cell::text(Some(&c.dialect)),
            Self::ErrorClass if is_exact(c) => Cell::text(c.error_class.as_deref()),
            Self::ErrorCode if is_exact(c) => Cell::number(c.error_code),
            _ => return None,
        })
    }

    pub fn of(self, r: &ArchivedRecord<'_>, disposition: &Disposition<'_>) -> Cell {
        let d = &r.decoded;
        match self {
            Self::Topic => Cell::text(Some(&r.id.topic)),
            Self::Partition => Cell::number(Some(r.id.partition)),
            Self::Pipeline => Cell::text(Some(r.pipeline)),
            Self::Date => Cell::Text(layout::dt(r.raw.timestamp_ms)),
            Self::Dialect => Cell::text(Some(&d.dialect)),
            Self::ErrorClass => Cell::text(d.error_class.as_deref()),
            Self::ErrorCode => Cell::number(d.error_code),
            Self::ErrorStage => Cell::text(d.error_stage.as_deref()),
            Self::ErrorComponent => Cell::text(d.error_component.as_deref()),
            Self::ErrorDestination => Cell::text(d.error_destination.as_deref()),
            Self::ErrorMessage => Cell::text(d.error_message.as_deref()),
            Self::OriginTopic => Cell::text(d.origin_topic.as_deref()),
            Self::OriginGroup => Cell::text(d.origin_group.as_deref()),
            Self::EventSource => Cell::text(d.event_source.as_deref()),
            Self::EventType => Cell::text(d.event_type.as_deref()),
            Self::PayloadState => Cell::text(Some(d.payload_state.as_str())),
            Self::Disposition => Cell::text(Some(name(disposition))),
        }
    }
}
