//! The format of a dialect table: what a TOML file may say.
//!
//! Owns the names and meanings of the keys (`schemas/dialects/README.md` documents them). Does not read files: that is
//! [`super::parse`]; does not decode: that is [`super::decode`].

use crate::record::PayloadState;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};
use std::collections::BTreeMap;
use std::fmt;

/// The columns that a table can fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Field {
    ErrorClass,
    ErrorMessage,
    ErrorCode,
    ErrorStage,
    ErrorComponent,
    ErrorDestination,
    ErrorStacktrace,
    Attempts,
    OriginTopic,
    OriginPartition,
    OriginOffset,
    OriginTimestamp,
    OriginGroup,
    FailedAt,
    EventId,
    EventSource,
    EventType,
    EventSubject,
    EventTime,
    ContentType,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldKind {
    Text,
    Integer,
    Time,
}

impl Field {
    pub const ALL: [Self; 20] = [
        Self::ErrorClass,
        Self::ErrorMessage,
        Self::ErrorCode,
        Self::ErrorStage,
        Self::ErrorComponent,
        Self::ErrorDestination,
        Self::ErrorStacktrace,
        Self::Attempts,
        Self::OriginTopic,
        Self::OriginPartition,
        Self::OriginOffset,
        Self::OriginTimestamp,
        Self::OriginGroup,
        Self::FailedAt,
        Self::EventId,
        Self::EventSource,
        Self::EventType,
        Self::EventSubject,
        Self::EventTime,
        Self::ContentType,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::ErrorClass => "error_class",
            Self::ErrorMessage => "error_message",
            Self::ErrorCode => "error_code",
            Self::ErrorStage => "error_stage",
            Self::ErrorComponent => "error_component",
            Self::ErrorDestination => "error_destination",
            Self::ErrorStacktrace => "error_stacktrace",
            Self::Attempts => "attempts",
            Self::OriginTopic => "origin_topic",
            Self::OriginPartition => "origin_partition",
            Self::OriginOffset => "origin_offset",
            Self::OriginTimestamp => "origin_timestamp",
            Self::OriginGroup => "origin_group",
            Self::FailedAt => "failed_at",
            Self::EventId => "event_id",
            Self::EventSource => "event_source",
            Self::EventType => "event_type",
            Self::EventSubject => "event_subject",
            Self::EventTime => "event_time",
            Self::ContentType => "content_type",
        }
    }

    pub fn kind(self) -> FieldKind {
        match self {
            Self::ErrorCode | Self::Attempts | Self::OriginPartition | Self::OriginOffset => FieldKind::Integer,
            Self::OriginTimestamp | Self::FailedAt | Self::EventTime => FieldKind::Time,
            _ => FieldKind::Text,
        }
    }

    /// Describes the event, not its failure, so it belongs to the record whatever hops it has.
    pub fn is_event(self) -> bool {
        matches!(
            self,
            Self::EventId
                | Self::EventSource
                | Self::EventType
                | Self::EventSubject
                | Self::EventTime
                | Self::ContentType
        )
    }

    /// A failure has one of these: a second header for it is another failure's.
    pub fn is_position(self) -> bool {
        matches!(self, Self::OriginTopic | Self::OriginPartition | Self::OriginOffset)
    }
}

/// How a header's bytes are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Encoding {
    Text,
    Base64,
    Base64OrText,
    Decimal,
    BeInt32,
    BeInt64,
    BeSigned,
    DecimalOrBe,
    Rfc3339,
}

impl Encoding {
    pub fn fits(self, kind: FieldKind) -> bool {
        match self {
            Self::Text | Self::Base64 | Self::Base64OrText => kind == FieldKind::Text,
            Self::Decimal | Self::BeInt32 | Self::BeInt64 | Self::BeSigned | Self::DecimalOrBe => {
                kind != FieldKind::Text
            }
            Self::Rfc3339 => kind == FieldKind::Time,
        }
    }
}

/// What a null header value means for its field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NullRule {
    /// As if the header were absent: the next header of `from` is tried.
    #[default]
    Next,
    /// The field is null.
    Stop,
}

/// Which of several same-named headers is the newest, or is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Which {
    First,
    #[default]
    Last,
}

/// Which of the different headers of `from` fills the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Prefer {
    /// The first in the list.
    #[default]
    Listed,
    /// The newest by its place on the record.
    Newest,
}

/// What an integer in a timestamp field counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Unit {
    S,
    #[default]
    Ms,
    Us,
    Ns,
}

/// One header that can fill a field: its name alone, or a table.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub header: String,
    /// Falls back to the field's, then to `text` or `decimal` by the field's kind.
    pub encoding: Option<Encoding>,
    pub null: NullRule,
    pub before: Option<String>,
    pub after: Option<String>,
    pub add: i32,
    pub unit: Unit,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceTable {
    header: String,
    encoding: Option<Encoding>,
    #[serde(default)]
    null: NullRule,
    before: Option<String>,
    after: Option<String>,
    #[serde(default)]
    add: i32,
    #[serde(default)]
    unit: Unit,
}

impl<'de> Deserialize<'de> for Source {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SourceVisitor;
        impl<'de> Visitor<'de> for SourceVisitor {
            type Value = Source;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a header name or a table with `header`")
            }
            fn visit_str<E>(self, header: &str) -> Result<Source, E> {
                Ok(Source {
                    header: header.to_owned(),
                    encoding: None,
                    null: NullRule::default(),
                    before: None,
                    after: None,
                    add: 0,
                    unit: Unit::default(),
                })
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Source, A::Error> {
                let t = SourceTable::deserialize(MapAccessDeserializer::new(map))?;
                let SourceTable { header, encoding, null, before, after, add, unit } = t;
                Ok(Source { header, encoding, null, before, after, add, unit })
            }
        }
        deserializer.deserialize_any(SourceVisitor)
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table such as { from = [\"HEADER\"] }")]
pub(crate) struct FieldRule {
    /// The first of these that the record has fills the field, or the newest, by `prefer`.
    pub from: Vec<Source>,
    #[serde(default)]
    pub prefer: Prefer,
    pub encoding: Option<Encoding>,
    /// Which of several same-named headers of a replaced or event field; by default the table's newest.
    pub pick: Option<Which>,
    /// Event fields only: read on every record, whichever dialect it has.
    #[serde(default)]
    pub always: bool,
}

/// A record has the dialect if it has every `all`, no `none`, and one of `any` and `any_prefix` if there are such.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Detect {
    pub all: Vec<String>,
    pub any: Vec<String>,
    pub any_prefix: Vec<String>,
    pub none: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Strip {
    pub names: Vec<String>,
    pub prefixes: Vec<String>,
}

impl Strip {
    pub fn has(&self, header: &[u8]) -> bool {
        self.names.iter().any(|n| n.as_bytes() == header)
            || self.prefixes.iter().any(|p| header.starts_with(p.as_bytes()))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", remote = "PayloadState")]
enum PayloadStateName {
    Present,
    Tombstone,
    NotCopied,
    CopiedBare,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Payload {
    #[serde(with = "PayloadStateName")]
    pub null_key_and_value: PayloadState,
    #[serde(with = "PayloadStateName")]
    pub null_value: PayloadState,
    #[serde(with = "PayloadStateName")]
    pub otherwise: PayloadState,
}

impl Default for Payload {
    fn default() -> Self {
        Self {
            null_key_and_value: PayloadState::Tombstone,
            null_value: PayloadState::Tombstone,
            otherwise: PayloadState::Present,
        }
    }
}

/// When the dead letter's own Kafka timestamp tells a time of the failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TimeRule {
    #[default]
    Never,
    Record,
    RecordIfCreateTime,
    RecordIfLogAppendTime,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Timestamps {
    pub failed_at: TimeRule,
    pub origin_timestamp: TimeRule,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FailureKey {
    pub fields: Vec<Field>,
    #[serde(default)]
    pub optional: Vec<Field>,
}

impl Default for FailureKey {
    fn default() -> Self {
        Self {
            fields: vec![Field::OriginGroup, Field::OriginTopic, Field::OriginPartition, Field::OriginOffset],
            optional: vec![Field::OriginGroup],
        }
    }
}

/// What a pipeline is named after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum PipelineSource {
    Field(Field),
    /// First label of the host in `error_destination`.
    DestinationHost,
}

impl TryFrom<String> for PipelineSource {
    type Error = String;
    fn try_from(name: String) -> Result<Self, String> {
        if name == "destination_host" {
            return Ok(Self::DestinationHost);
        }
        let field = Field::ALL.into_iter().find(|f| f.name() == name && f.kind() == FieldKind::Text);
        field.map(Self::Field).ok_or_else(|| format!("`{name}` is neither a text field nor `destination_host`"))
    }
}

/// Rules that a table cannot say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Code {
    CloudeventsStructured,
    Vast,
    /// What the value's JSON holds is read as headers, see [`super::json`].
    JsonValue,
    /// What the key's protobuf message holds is read as headers, see [`super::uber`].
    UberKey,
}

impl Code {
    /// Reads key or value of every record, so that it is for topics only that ask for it.
    pub fn is_of_payload(self) -> bool {
        matches!(self, Self::JsonValue | Self::UberKey)
    }
}

/// Where the dead letter holds the original's key or value, if not as its own.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Original {
    pub header: String,
    #[serde(default)]
    pub encoding: OriginalEncoding,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OriginalEncoding {
    #[default]
    Bytes,
    Base64,
}

/// What a restore takes in place of the dead letter's own key and value.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Restored {
    pub key: Option<Original>,
    pub value: Option<Original>,
    /// Whether a restored record may have headers that say so.
    pub marks: bool,
}

impl Default for Restored {
    fn default() -> Self {
        Self { key: None, value: None, marks: true }
    }
}

impl Restored {
    /// The dead letter's own key and value are the original's.
    pub fn is_none(&self) -> bool {
        self.key.is_none() && self.value.is_none()
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    pub name: String,
    pub description: String,
    /// Applies to topics only whose configuration names it.
    #[serde(default)]
    pub opt_in: bool,
    #[serde(default)]
    pub code: Vec<Code>,
    #[serde(default)]
    pub newest: Which,
    /// Fields whose headers the program replaces; the others are repeated, a set for each failure.
    #[serde(default)]
    pub replaced: Vec<Field>,
    #[serde(default)]
    pub pipeline: Vec<PipelineSource>,
    pub detect: Detect,
    #[serde(default)]
    pub fields: BTreeMap<Field, FieldRule>,
    #[serde(default)]
    pub payload: Payload,
    #[serde(default)]
    pub timestamps: Timestamps,
    #[serde(default)]
    pub failure_key: FailureKey,
    #[serde(default)]
    pub strip: Strip,
    #[serde(default)]
    pub restore: Restored,
}

impl Table {
    /// Every header name that the table has.
    pub fn headers_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let d = &mut self.detect;
        let detect = [&mut d.all, &mut d.any, &mut d.any_prefix, &mut d.none];
        let strip = [&mut self.strip.names, &mut self.strip.prefixes];
        let fields = self.fields.values_mut().flat_map(|f| &mut f.from).map(|s| &mut s.header);
        let restore = [&mut self.restore.key, &mut self.restore.value].into_iter().flatten().map(|o| &mut o.header);
        detect.into_iter().flatten().chain(strip.into_iter().flatten()).chain(fields).chain(restore)
    }
}

impl FieldRule {
    pub fn encoding_of(&self, field: Field, source: &Source) -> Encoding {
        source.encoding.or(self.encoding).unwrap_or(match field.kind() {
            FieldKind::Text => Encoding::Text,
            FieldKind::Integer | FieldKind::Time => Encoding::Decimal,
        })
    }
}
