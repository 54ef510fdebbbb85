//! The columns of a record, once: the Arrow schema, the order of JSONL keys and `schemas/record.md` all come from
//! [`COLUMNS`].
//!
//! Owns names, types and meanings. What fills a column is [`super::row`]. Invariant: names and types are for good; a
//! later schema version only adds columns at the end.

use arrow_schema::{DataType, Field, Fields, Schema, TimeUnit};
use std::sync::{Arc, LazyLock};

/// In the footer of every Parquet file and in every intent.
pub const SCHEMA_VERSION: u32 = 1;

/// Footer metadata: which columns, which program, which intent.
pub const META_SCHEMA_VERSION: &str = "dlq-archiver.schema_version";
pub const META_PROGRAM_VERSION: &str = "dlq-archiver.program_version";
pub const META_INTENT: &str = "dlq-archiver.intent";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    Text,
    Bytes,
    Int32,
    Int64,
    /// Microseconds since 1970, UTC.
    Timestamp,
    /// List of struct, see [`header_fields`].
    Headers,
}

/// How a column's values are distributed, which decides its encoding and statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Few distinct values: dictionary.
    Repeating,
    /// Mostly distinct: no dictionary.
    Distinct,
    /// Mostly distinct, and looked up one by one: a bloom filter as well.
    LookedUp,
    /// Long and of no use to pruning: neither dictionary nor statistics.
    Payload,
}

pub struct Column {
    pub name: &'static str,
    pub ty: Type,
    pub required: bool,
    pub values: Values,
    pub meaning: &'static str,
    /// Empty where a value has none.
    pub unit: &'static str,
    pub source: &'static str,
}

pub(super) const fn column(
    name: &'static str,
    ty: Type,
    required: bool,
    values: Values,
    meaning: &'static str,
    unit: &'static str,
    source: &'static str,
) -> Column {
    Column { name, ty, required, values, meaning, unit, source }
}

use Type::*;
use Values::*;

/// `R`equired or `N`ullable.
const R: bool = true;
const N: bool = false;

#[rustfmt::skip]
pub const COLUMNS: [Column; 43] = [
    column("record_id", Text, R, Distinct, "the record's position in its dead-letter topic, and so its name: `topic/partition/offset`, with `@g2` from a topic's second generation on", "", "position"),
    column("kafka_cluster_id", Text, N, Repeating, "id of the Kafka cluster; null where the broker does not tell it", "", "broker"),
    column("kafka_topic", Text, R, Repeating, "the dead-letter topic", "", "position"),
    column("topic_generation", Int32, R, Repeating, "1 for the first topic of that name, one more each time it was deleted and made anew, or its log truncated", "", "ledger"),
    column("kafka_partition", Int32, R, Repeating, "partition of the dead-letter topic", "", "position"),
    column("kafka_offset", Int64, R, Distinct, "offset in that partition", "", "position"),
    column("kafka_timestamp", Timestamp, N, Distinct, "the Kafka timestamp; null where it is absent or outside 1970 to 9999. It may be the source record's and not the failure's: see `failed_at`", "µs, UTC", "record"),
    column("kafka_timestamp_ms", Int64, N, Distinct, "the Kafka timestamp exactly as Kafka had it, -1 for none", "ms since 1970", "record"),
    column("kafka_timestamp_type", Text, N, Repeating, "which clock set it: `CreateTime` or `LogAppendTime`", "", "record"),
    column("kafka_key_text", Text, N, Payload, "the key, if it is valid UTF-8 without U+0000", "", "record"),
    column("kafka_key_bytes", Bytes, N, Payload, "the key, if it is anything else", "", "record"),
    column("kafka_value_text", Text, N, Payload, "the value, if it is valid UTF-8 without U+0000", "", "record"),
    column("kafka_value_bytes", Bytes, N, Payload, "the value, if it is anything else", "", "record"),
    column("kafka_key_size", Int32, N, Repeating, "length of the key; null = the key is null in Kafka, 0 = it is empty", "bytes", "record"),
    column("kafka_value_size", Int32, N, Repeating, "length of the value; null = the value is null in Kafka, 0 = it is empty", "bytes", "record"),
    column("kafka_headers", Headers, R, Payload, "all headers in order, repeats kept. `name_bytes` is set only where the name is not UTF-8 (`name` then has U+FFFD); of `value_text` and `value_bytes` at most one is set, both null = the value is null in Kafka", "", "record"),
    column("pipeline_name", Text, R, Repeating, "the pipeline that the record was routed to: exact, where the `pipeline` folder is escaped", "", "routing"),
    column("dialect", Text, R, Repeating, "the header convention that filled the columns below; `unknown` where none matched", "", "dialect"),
    column("failure_key", Text, R, LookedUp, "32 hex digits: the same for one failure, however often it was dead-lettered", "", "dialect"),
    column("failed_at", Timestamp, N, Distinct, "when it failed, where the dialect tells it", "µs, UTC", "dialect"),
    column("error_class", Text, N, Repeating, "kind of error, as an exception's class or an error's name", "", "dialect"),
    column("error_message", Text, N, Repeating, "the error's message", "", "dialect"),
    column("error_code", Int32, N, Repeating, "numeric error code, as an HTTP status", "", "dialect"),
    column("error_stage", Text, N, Repeating, "the step of processing that failed", "", "dialect"),
    column("error_component", Text, N, Repeating, "the class or component that failed", "", "dialect"),
    column("error_destination", Text, N, Repeating, "where the record was being delivered to", "", "dialect"),
    column("error_stacktrace", Text, N, Payload, "the stack trace", "", "dialect"),
    column("attempts", Int32, N, Repeating, "attempts that were made", "count", "dialect"),
    column("origin_topic", Text, N, Repeating, "the topic that the record came from", "", "dialect"),
    column("origin_partition", Int32, N, Repeating, "its partition there", "", "dialect"),
    column("origin_offset", Int64, N, Distinct, "its offset there", "", "dialect"),
    column("origin_timestamp", Timestamp, N, Distinct, "its timestamp there", "µs, UTC", "dialect"),
    column("origin_group", Text, N, Repeating, "the consumer group or connector that failed on it", "", "dialect"),
    column("event_id", Text, N, LookedUp, "CloudEvents `id`", "", "event"),
    column("event_source", Text, N, Repeating, "CloudEvents `source`", "", "event"),
    column("event_type", Text, N, Repeating, "CloudEvents `type`", "", "event"),
    column("event_subject", Text, N, Distinct, "CloudEvents `subject`", "", "event"),
    column("event_time", Timestamp, N, Distinct, "CloudEvents `time`", "µs, UTC", "event"),
    column("content_type", Text, N, Repeating, "media type of the value", "", "event"),
    column("payload_state", Text, R, Repeating, "`present`; `tombstone` (the original's value was null); `not_copied` (a share group's headers-only record); `copied_bare` (value without its original headers and timestamp)", "", "dialect"),
    column("prior_restores", Int32, R, Repeating, "how often the record had been restored before it failed this time; whether it was restored since is in the dispositions", "count", "record"),
    column("decode_problems", Text, N, Repeating, "what could not be decoded, joined by `; `; null = nothing", "", "dialect"),
    column("archived_at", Timestamp, R, Repeating, "time of the cut that archived the record", "µs, UTC", "ledger"),
];

impl Column {
    /// Left out under [`Projection::NoPayload`](super::Projection::NoPayload).
    pub fn is_payload(&self) -> bool {
        self.values == Payload
    }

    fn field(&self) -> Field {
        Field::new(self.name, self.ty.arrow(), !self.required)
    }

    /// The type in Parquet's own words, as `schemas/record.md` has it.
    pub fn parquet_type(&self) -> &'static str {
        match self.ty {
            Text => "BYTE_ARRAY (STRING)",
            Bytes => "BYTE_ARRAY",
            Int32 => "INT32",
            Int64 => "INT64",
            Timestamp => "INT64 (TIMESTAMP, MICROS, UTC)",
            Headers => "LIST of struct {name, name_bytes, value_text, value_bytes}",
        }
    }
}

impl Type {
    fn arrow(self) -> DataType {
        match self {
            Text => DataType::Utf8,
            Bytes => DataType::Binary,
            Int32 => DataType::Int32,
            Int64 => DataType::Int64,
            Timestamp => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Headers => DataType::List(header_element()),
        }
    }
}

/// One header. `name` is always there.
pub fn header_fields() -> Fields {
    Fields::from(vec![
        Field::new("name", DataType::Utf8, false),
        Field::new("name_bytes", DataType::Binary, true),
        Field::new("value_text", DataType::Utf8, true),
        Field::new("value_bytes", DataType::Binary, true),
    ])
}

/// The list's inner field has the name that Parquet's LIST convention asks for.
pub(super) fn header_element() -> Arc<Field> {
    header_element_of(header_fields())
}

pub(super) fn header_element_of(fields: Fields) -> Arc<Field> {
    Arc::new(Field::new("element", DataType::Struct(fields), false))
}

/// As [`header_fields`], in the types that values are gathered in; they are the same in Parquet.
pub(super) fn header_views() -> Fields {
    static VIEWS: LazyLock<Fields> = LazyLock::new(|| header_fields().iter().map(|f| view(f)).collect());
    VIEWS.clone()
}

fn view(field: &Field) -> Arc<Field> {
    Arc::new(field.clone().with_data_type(match field.data_type() {
        DataType::Utf8 => DataType::Utf8View,
        DataType::Binary => DataType::BinaryView,
        DataType::List(_) => DataType::List(header_element_of(header_views())),
        other => other.clone(),
    }))
}

/// As [`arrow_schema_of`], in the types that values are gathered in; they are the same in Parquet.
pub(super) fn arrow_views_of(columns: &[Column]) -> Arc<Schema> {
    Arc::new(Schema::new(columns.iter().map(|c| view(&c.field())).collect::<Vec<_>>()))
}

/// The Arrow schema of [`COLUMNS`].
pub fn arrow_schema() -> Arc<Schema> {
    static SCHEMA: LazyLock<Arc<Schema>> = LazyLock::new(|| arrow_schema_of(&COLUMNS));
    Arc::clone(&SCHEMA)
}

pub fn arrow_schema_of(columns: &[Column]) -> Arc<Schema> {
    Arc::new(Schema::new(columns.iter().map(Column::field).collect::<Vec<_>>()))
}
