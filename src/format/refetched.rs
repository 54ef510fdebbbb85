//! Originals that were read again from their source topics: flat files beside the data, joined by `record_id`.
//!
//! Owns their columns and both ways, in the archive's own format. Which originals are asked for, and what becomes of
//! each, is [`crate::refetch`]'s. Invariants: names and types are for good, a later version adds columns at the end; an
//! original comes back byte for byte.

use super::row::{self, Cells, Columns};
use super::schema::{Column, Type::*, Values::*, column};
use super::{Format, jsonl, jsonl_read, parquet_read, parquet_write};
use crate::error::{Error, Result};
use crate::record::{RawRecord, RecordId, TimestampType};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::ops::ControlFlow;

/// In the footer of every Parquet file.
pub const REFETCHED_VERSION: u32 = 1;
const META_VERSION: &str = "dlq-archiver.refetched_version";
const META_PROGRAM_VERSION: &str = super::schema::META_PROGRAM_VERSION;

const R: bool = true;
const N: bool = false;

/// The names are those that the data has for the same things; those of payload and timestamp are the original's.
#[rustfmt::skip]
pub const REFETCHED: [Column; 21] = [
    column("record_id", Text, R, Distinct, "the dead letter whose original this is: joins with the data", "", "position"),
    column("kafka_topic", Text, R, Repeating, "the dead-letter topic", "", "position"),
    column("topic_generation", Int32, R, Repeating, "as in the data", "", "ledger"),
    column("kafka_partition", Int32, R, Repeating, "partition of the dead-letter topic", "", "position"),
    column("kafka_offset", Int64, R, Distinct, "offset of the dead letter", "", "position"),
    column("state", Text, R, Repeating, "`refetched`: the original is in this row; else there is none, and why: `gone`, `topic_missing`, `recreated`, `mismatch`", "", "refetch"),
    column("source_topic", Text, N, Repeating, "topic that the original was read from; where the dead letter has a topic id, the name that the brokers gave for it", "", "dialect"),
    column("source_topic_id", Text, N, Repeating, "its id when it was read; null where the brokers do not tell it", "", "broker"),
    column("source_partition", Int32, N, Repeating, "partition of the original", "", "dialect"),
    column("source_offset", Int64, N, Distinct, "offset of the original", "", "dialect"),
    column("kafka_timestamp", Timestamp, N, Distinct, "the original's Kafka timestamp; null where it is absent or outside 1970 to 9999", "µs, UTC", "original"),
    column("kafka_timestamp_ms", Int64, N, Distinct, "the original's Kafka timestamp exactly as Kafka had it, -1 for none", "ms since 1970", "original"),
    column("kafka_timestamp_type", Text, N, Repeating, "which clock set it: `CreateTime` or `LogAppendTime`", "", "original"),
    column("kafka_key_text", Text, N, Payload, "the original's key, if it is valid UTF-8 without U+0000", "", "original"),
    column("kafka_key_bytes", Bytes, N, Payload, "the original's key, if it is anything else", "", "original"),
    column("kafka_value_text", Text, N, Payload, "the original's value, if it is valid UTF-8 without U+0000", "", "original"),
    column("kafka_value_bytes", Bytes, N, Payload, "the original's value, if it is anything else", "", "original"),
    column("kafka_key_size", Int32, N, Repeating, "length of the key; null = the key is null in Kafka, 0 = it is empty", "bytes", "original"),
    column("kafka_value_size", Int32, N, Repeating, "length of the value; null = the value is null in Kafka, 0 = it is empty", "bytes", "original"),
    column("kafka_headers", Headers, R, Payload, "all headers of the original, as in the data; none unless `state` is `refetched`", "", "original"),
    column("refetched_at", Timestamp, R, Repeating, "when it was looked for", "µs, UTC", "refetch"),
];

/// What became of an original that was looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Refetched,
    /// Deleted by retention, or by compaction.
    Gone,
    TopicMissing,
    /// The topic is another one than the dead letter speaks of: made anew since.
    Recreated,
    /// The record there is another one than the dead letter has a copy of.
    Mismatch,
}

impl State {
    pub const ALL: [Self; 5] = [Self::Refetched, Self::Gone, Self::TopicMissing, Self::Recreated, Self::Mismatch];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refetched => "refetched",
            Self::Gone => "gone",
            Self::TopicMissing => "topic_missing",
            Self::Recreated => "recreated",
            Self::Mismatch => "mismatch",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.as_str() == text)
    }

    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Refetched => "read again",
            Self::Gone => "deleted from their topic, by retention or compaction",
            Self::TopicMissing => "their topic does not exist",
            Self::Recreated => "their topic was made anew since",
            Self::Mismatch => "another record is at their offset now",
        }
    }
}

/// Where an original is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source<'a> {
    pub topic: Cow<'a, str>,
    pub topic_id: Option<Cow<'a, str>>,
    pub partition: i32,
    pub offset: i64,
}

impl Source<'_> {
    pub fn into_owned(self) -> Source<'static> {
        Source {
            topic: Cow::Owned(self.topic.into_owned()),
            topic_id: self.topic_id.map(|id| Cow::Owned(id.into_owned())),
            partition: self.partition,
            offset: self.offset,
        }
    }
}

/// An original that was read again, and where it was.
#[derive(Debug, Clone, Copy)]
pub struct Original<'a> {
    pub topic: &'a str,
    pub partition: i32,
    pub raw: RawRecord<'a>,
}

/// One row.
#[derive(Debug, Clone)]
pub struct Row<'a> {
    /// The dead letter.
    pub id: RecordId,
    pub state: State,
    pub source: Source<'a>,
    /// With [`State::Refetched`] only. Its offset is the source's; its leader epoch is not kept.
    pub original: Option<RawRecord<'a>>,
    /// Microseconds since 1970.
    pub refetched_at_us: i64,
}

/// Makes one file.
///
/// # Errors
/// [`crate::Kind::Internal`] if it cannot be encoded.
pub fn encode<'r>(format: Format, program_version: &str, rows: impl Iterator<Item = Row<'r>>) -> Result<Vec<u8>> {
    match format {
        Format::Parquet => {
            let metadata = [(META_VERSION, &*REFETCHED_VERSION.to_string()), (META_PROGRAM_VERSION, program_version)];
            let mut sink = parquet_write::Sink::new(&REFETCHED, &metadata)?;
            for row in rows {
                write(&row, &mut sink);
                let size = |raw: &RawRecord<'_>| (raw.payload_len(), raw.headers.len());
                let (payload, headers) = row.original.as_ref().map(size).unwrap_or_default();
                sink.end_row(payload, headers)?;
            }
            sink.finish()
        }
        Format::Jsonl(compression) => {
            let mut sink = jsonl::Sink::new(&REFETCHED, compression)?;
            for row in rows {
                write(&row, &mut sink);
                sink.end_row()?;
            }
            sink.finish()
        }
    }
}

/// A row's columns, in order.
pub fn write(row: &Row<'_>, out: &mut impl Columns) {
    let (original, source) = (row.original.as_ref(), &row.source);
    out.text(Some(&row.id.to_string()));
    out.text(Some(&row.id.topic));
    out.int32(Some(i32::try_from(row.id.generation).unwrap_or(i32::MAX)));
    out.int32(Some(row.id.partition));
    out.int64(Some(row.id.offset));
    out.text(Some(row.state.as_str()));
    out.text(Some(&source.topic));
    out.text(source.topic_id.as_deref());
    out.int32(Some(source.partition));
    out.int64(Some(source.offset));
    let ms = original.map(|o| o.timestamp_ms);
    out.timestamp(ms.and_then(|ms| ms.checked_mul(1000)).and_then(row::within_years));
    out.int64(ms);
    out.text(original.map(|o| o.timestamp_type.as_str()));
    for part in [original.and_then(|o| o.key), original.and_then(|o| o.value)] {
        let (text, bytes) = row::split(part);
        out.text(text);
        out.bytes(bytes);
    }
    out.int32(row::size(original.and_then(|o| o.key)));
    out.int32(row::size(original.and_then(|o| o.value)));
    out.headers(original.map_or_else(crate::record::Headers::default, |o| o.headers));
    out.timestamp(Some(row.refetched_at_us).and_then(row::within_years));
}

/// Hands over every row, in order, until `visit` says [`ControlFlow::Break`]. Without `payload` a row has its state, and
/// no original.
///
/// # Errors
/// [`crate::Kind::Corrupt`] for a file that is damaged or not of these columns.
pub fn read(
    format: Format,
    data: Bytes,
    payload: bool,
    visit: &mut dyn FnMut(Row<'_>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    match format {
        Format::Parquet => parquet_read::rows(&REFETCHED, META_VERSION, data, payload, &mut |cells, headers| {
            decode(cells, headers, payload, visit)
        }),
        Format::Jsonl(compression) => {
            jsonl_read::rows(&REFETCHED, compression, &data, payload, &mut |cells, headers| {
                decode(cells, headers, payload, visit)
            })
        }
    }
}

fn decode<'a>(
    cells: &mut impl Cells<'a>,
    headers: crate::record::Headers<'_>,
    payload: bool,
    visit: &mut dyn FnMut(Row<'_>) -> Result<ControlFlow<()>>,
) -> Result<ControlFlow<()>> {
    cells.skip(); // record_id: the columns that follow say the same
    let topic = row::required(cells.text()?, "kafka_topic")?.into_owned();
    let generation = row::required(cells.int32()?, "topic_generation")?;
    let partition = row::required(cells.int32()?, "kafka_partition")?;
    let offset = row::required(cells.int64()?, "kafka_offset")?;
    let state = row::parsed(cells.text()?, "state", State::parse)?;
    let source = Source {
        topic: row::required(cells.text()?, "source_topic")?,
        topic_id: cells.text()?,
        partition: row::required(cells.int32()?, "source_partition")?,
        offset: row::required(cells.int64()?, "source_offset")?,
    };
    cells.skip(); // kafka_timestamp: the next is exact
    let (timestamp_ms, timestamp_type) = (cells.int64()?, cells.text()?);
    let (key, value) = (row::join(cells, "kafka_key")?, row::join(cells, "kafka_value")?);
    let sizes = [cells.int32()?, cells.int32()?];
    if payload && [row::size(key.as_deref()), row::size(value.as_deref())] != sizes {
        return Err(Error::corrupt(format!("offset {offset}: key or value and its size contradict each other")));
    }
    cells.skip(); // kafka_headers
    let refetched_at_us = row::required(cells.timestamp()?, "refetched_at")?;
    let original = match state {
        State::Refetched if payload => Some(RawRecord {
            offset: source.offset,
            timestamp_ms: row::required(timestamp_ms, "kafka_timestamp_ms")?,
            timestamp_type: row::parsed(timestamp_type, "kafka_timestamp_type", TimestampType::parse)?,
            leader_epoch: -1,
            key: key.as_deref(),
            value: value.as_deref(),
            headers,
        }),
        _ => None,
    };
    let generation = u32::try_from(generation).map_err(|_| row::bad("topic_generation"))?;
    visit(Row { id: RecordId { topic, generation, partition, offset }, state, source, original, refetched_at_us })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Header, RawBatch};

    fn rows(batch: &RawBatch) -> Vec<Row<'_>> {
        let of = |offset: i64, state, original| Row {
            id: RecordId { topic: "größe-dlq".into(), generation: 2, partition: 7, offset },
            state,
            source: Source { topic: "orders".into(), topic_id: None, partition: 3, offset: offset * 2 },
            original,
            refetched_at_us: 1_791_468_687_032_000,
        };
        let mut rows: Vec<_> = batch.iter().map(|raw| of(raw.offset / 2, State::Refetched, Some(raw))).collect();
        rows.extend(State::ALL[1..].iter().enumerate().map(|(i, state)| of(100 + i as i64, *state, None)));
        rows
    }

    fn batch() -> RawBatch {
        let mut batch = RawBatch::new();
        let headers = [
            Header { name: b"dup", value: Some(b"a") },
            Header { name: b"dup", value: None },
            Header { name: b"\xff\0", value: Some(b"") },
        ];
        batch.push(0, -1, TimestampType::LogAppendTime, -1, None, Some(b""), headers.into_iter());
        batch.push(2, 5, TimestampType::CreateTime, -1, Some(b"\xff"), None, std::iter::empty());
        batch.push(4, i64::MAX, TimestampType::CreateTime, -1, Some(b"k"), Some(b"a\0"), std::iter::empty());
        batch
    }

    #[test]
    fn originals_come_back_byte_for_byte_in_every_format() {
        let batch = batch();
        for format in Format::ALL {
            let bytes: Bytes = encode(format, "0", rows(&batch).into_iter()).unwrap().into();
            for payload in [true, false] {
                let mut expected = rows(&batch).into_iter();
                let compare = &mut |row: Row<'_>| {
                    let mut want = expected.next().unwrap();
                    want.original = want.original.filter(|_| payload);
                    assert_eq!(format!("{row:?}"), format!("{want:?}"), "{format:?}");
                    Ok(ControlFlow::Continue(()))
                };
                read(format, bytes.clone(), payload, compare).unwrap();
                assert!(expected.next().is_none());
            }
        }
    }

    #[test]
    fn damage_is_an_error() {
        let batch = batch();
        for format in [Format::Parquet, Format::Jsonl(super::super::Compression::None)] {
            let whole = encode(format, "0", rows(&batch).into_iter()).unwrap();
            for at in 0..whole.len() {
                let mut bytes = whole.clone();
                bytes[at] ^= 0x55;
                let _ = read(format, bytes.into(), true, &mut |_| Ok(ControlFlow::Continue(())));
            }
        }
        let data = encode(Format::Parquet, "0", std::iter::empty()).unwrap();
        assert!(
            super::super::read(Format::Parquet, data.into(), super::super::Projection::All, &mut |_| panic!()).is_err()
        );
    }
}
