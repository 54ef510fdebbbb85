//! The decoded record: what a dialect read out of headers (and for a few dialects key or value).
//!
//! These are additions to the raw record, never a replacement. Timestamps are microseconds since 1970, UTC.
//! Column names and meanings are those of `schemas/record.md`.

use std::borrow::Cow;

/// What the value of a dead letter stands for, so that a restore never makes up a tombstone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PayloadState {
    /// The value is the original's.
    #[default]
    Present,
    /// The original's value was null.
    Tombstone,
    /// Key and value were not copied into the dead letter (KIP-1191 with copying off).
    NotCopied,
    /// Key and value were copied, the original headers and timestamp were not (KIP-1191 with copying on).
    CopiedBare,
}

impl PayloadState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Tombstone => "tombstone",
            Self::NotCopied => "not_copied",
            Self::CopiedBare => "copied_bare",
        }
    }
    /// Whether something of the original is not in the dead letter.
    pub fn lacks_original(self) -> bool {
        matches!(self, Self::NotCopied | Self::CopiedBare)
    }
    pub fn parse(s: &str) -> Option<Self> {
        [Self::Present, Self::Tombstone, Self::NotCopied, Self::CopiedBare].into_iter().find(|p| p.as_str() == s)
    }
}

/// One failure in a chain of dead-letterings, as far as its headers tell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hop<'a> {
    pub dialect: Cow<'a, str>,
    pub topic: Option<Cow<'a, str>>,
    pub partition: Option<i32>,
    pub offset: Option<i64>,
    pub timestamp_us: Option<i64>,
    pub group: Option<Cow<'a, str>>,
    pub error_class: Option<Cow<'a, str>>,
    pub error_message: Option<Cow<'a, str>>,
}

/// The decoded columns of one record. `error_*`, `attempts` and `origin_*` belong to the newest failure.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Decoded<'a> {
    /// Name of the dialect table that filled the columns; `unknown` where none matched.
    pub dialect: Cow<'a, str>,
    /// First 128 bits of the failure's SHA-256: the same for one failure, however often dead-lettered.
    pub failure_key: [u8; 16],
    pub failed_at_us: Option<i64>,
    pub error_class: Option<Cow<'a, str>>,
    pub error_message: Option<Cow<'a, str>>,
    pub error_code: Option<i32>,
    pub error_stage: Option<Cow<'a, str>>,
    pub error_component: Option<Cow<'a, str>>,
    pub error_destination: Option<Cow<'a, str>>,
    pub error_stacktrace: Option<Cow<'a, str>>,
    /// Attempts that were made.
    pub attempts: Option<i32>,
    pub origin_topic: Option<Cow<'a, str>>,
    pub origin_partition: Option<i32>,
    pub origin_offset: Option<i64>,
    pub origin_timestamp_us: Option<i64>,
    pub origin_group: Option<Cow<'a, str>>,
    pub event_id: Option<Cow<'a, str>>,
    pub event_source: Option<Cow<'a, str>>,
    pub event_type: Option<Cow<'a, str>>,
    pub event_subject: Option<Cow<'a, str>>,
    pub event_time_us: Option<i64>,
    pub content_type: Option<Cow<'a, str>>,
    pub payload_state: PayloadState,
    /// From the record's own `dlq-archiver-restore-count` header; 0 where it has none.
    pub prior_restores: i32,
    /// What could not be decoded, one short note each; empty = nothing to report.
    pub problems: Vec<Cow<'a, str>>,
    /// The chain of failures, oldest first. Its first entry's topic and partition are the true origin, where a
    /// restore goes. Not a column: read again from the headers when needed, so empty on a record read back.
    pub hops: Vec<Hop<'a>>,
}

fn own(field: Option<Cow<'_, str>>) -> Option<Cow<'static, str>> {
    field.map(|f| Cow::Owned(f.into_owned()))
}

impl Hop<'_> {
    pub fn into_owned(self) -> Hop<'static> {
        Hop {
            dialect: Cow::Owned(self.dialect.into_owned()),
            topic: own(self.topic),
            partition: self.partition,
            offset: self.offset,
            timestamp_us: self.timestamp_us,
            group: own(self.group),
            error_class: own(self.error_class),
            error_message: own(self.error_message),
        }
    }
}

impl Decoded<'_> {
    pub fn into_owned(self) -> Decoded<'static> {
        Decoded {
            dialect: Cow::Owned(self.dialect.into_owned()),
            failure_key: self.failure_key,
            failed_at_us: self.failed_at_us,
            error_class: own(self.error_class),
            error_message: own(self.error_message),
            error_code: self.error_code,
            error_stage: own(self.error_stage),
            error_component: own(self.error_component),
            error_destination: own(self.error_destination),
            error_stacktrace: own(self.error_stacktrace),
            attempts: self.attempts,
            origin_topic: own(self.origin_topic),
            origin_partition: self.origin_partition,
            origin_offset: self.origin_offset,
            origin_timestamp_us: self.origin_timestamp_us,
            origin_group: own(self.origin_group),
            event_id: own(self.event_id),
            event_source: own(self.event_source),
            event_type: own(self.event_type),
            event_subject: own(self.event_subject),
            event_time_us: self.event_time_us,
            content_type: own(self.content_type),
            payload_state: self.payload_state,
            prior_restores: self.prior_restores,
            problems: self.problems.into_iter().map(|p| Cow::Owned(p.into_owned())).collect(),
            hops: self.hops.into_iter().map(Hop::into_owned).collect(),
        }
    }

    /// `decode_problems` as the column has it: joined by `; `, `None` where there is none.
    pub fn problems_text(&self) -> Option<String> {
        (!self.problems.is_empty()).then(|| self.problems.join("; "))
    }

    /// `failure_key` as the column has it: 32 lower-case hex digits.
    pub fn failure_key_hex(&self) -> String {
        self.failure_key.iter().map(|b| format!("{b:02x}")).collect()
    }
}
