//! What a disposition changes, as ranges of offsets: flat Parquet that SQL engines read beside the data.
//!
//! Owns the columns ([`schema`]) and both ways. What a disposition is, and which ranges it has, is [`crate::disposition`]'s
//! business. Invariant: names and types are for good, a later version adds columns at the end.

use crate::error::{Error, Result};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const VERSION: &str = "1";
const META_VERSION: &str = "dlq-archiver.ranges_version";
const BATCH_ROWS: usize = 8192;

/// What each row of a disposition says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub number: u32,
    /// `discard` or `undo`.
    pub action: String,
    /// Microseconds since 1970.
    pub at_us: i64,
    pub by: Option<String>,
    pub user: String,
    pub host: String,
    pub reason: String,
}

/// Offsets of one topic partition in one generation, each of a record that is changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    pub topic: String,
    pub generation: u32,
    pub partition: i32,
    pub from: i64,
    /// Exclusive.
    pub to: i64,
}

/// The names are those that the data, and the disposition, have for the same things.
pub fn schema() -> Arc<Schema> {
    let field = |name: &str, ty| Field::new(name, ty, false);
    Arc::new(Schema::new(vec![
        field("number", DataType::Int64),
        field("action", DataType::Utf8),
        field("at", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))),
        Field::new("by", DataType::Utf8, true),
        field("user", DataType::Utf8),
        field("host", DataType::Utf8),
        field("reason", DataType::Utf8),
        field("kafka_topic", DataType::Utf8),
        field("topic_generation", DataType::Int32),
        field("kafka_partition", DataType::Int32),
        field("offset_from", DataType::Int64),
        field("offset_to", DataType::Int64),
    ]))
}

fn internal(error: impl std::fmt::Display) -> Error {
    Error::internal(format!("ranges of a disposition could not be encoded: {error}"))
}

pub fn encode(said: &Said, ranges: impl IntoIterator<Item = Range>) -> Result<Vec<u8>> {
    let zstd = Compression::ZSTD(ZstdLevel::try_new(3).map_err(internal)?);
    let properties = WriterProperties::builder()
        .set_compression(zstd)
        .set_key_value_metadata(Some(vec![KeyValue::new(META_VERSION.to_owned(), VERSION.to_owned())]))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema(), Some(properties)).map_err(internal)?;
    let (mut ranges, mut rows) = (ranges.into_iter(), Vec::with_capacity(BATCH_ROWS));
    loop {
        rows.clear();
        rows.extend(ranges.by_ref().take(BATCH_ROWS));
        if rows.is_empty() {
            return writer.into_inner().map_err(internal);
        }
        writer.write(&batch(said, &rows)?).map_err(internal)?;
    }
}

fn batch(said: &Said, rows: &[Range]) -> Result<RecordBatch> {
    let same = |text: Option<&str>| -> ArrayRef { Arc::new(rows.iter().map(|_| text).collect::<StringArray>()) };
    let int64 = |of: &dyn Fn(&Range) -> i64| Int64Array::from(rows.iter().map(of).collect::<Vec<_>>());
    let int32 = |of: &dyn Fn(&Range) -> i32| Int32Array::from(rows.iter().map(of).collect::<Vec<_>>());
    let at = TimestampMicrosecondArray::from(vec![said.at_us; rows.len()]).with_timezone("UTC");
    let columns: Vec<ArrayRef> = vec![
        Arc::new(int64(&|_| said.number.into())),
        same(Some(&said.action)),
        Arc::new(at),
        same(said.by.as_deref()),
        same(Some(&said.user)),
        same(Some(&said.host)),
        same(Some(&said.reason)),
        Arc::new(rows.iter().map(|r| Some(&r.topic[..])).collect::<StringArray>()),
        Arc::new(int32(&|r| i32::try_from(r.generation).unwrap_or(i32::MAX))),
        Arc::new(int32(&|r| r.partition)),
        Arc::new(int64(&|r| r.from)),
        Arc::new(int64(&|r| r.to)),
    ];
    RecordBatch::try_new(schema(), columns).map_err(internal)
}

/// Hands over every row, in order.
///
/// # Errors
/// [`crate::Kind::Corrupt`] for a file that is damaged or no such list.
pub fn read(data: Bytes, mut row: impl FnMut(&Said, Range)) -> Result<()> {
    // The Parquet library's decoders can panic on damaged bytes.
    catch_unwind(AssertUnwindSafe(|| decode(data, &mut row))).unwrap_or_else(|_| Err(corrupt("its pages are damaged")))
}

fn corrupt(what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("not readable as ranges of a disposition: {what}"))
}

fn decode(data: Bytes, row: &mut dyn FnMut(&Said, Range)) -> Result<()> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(data).map_err(corrupt)?;
    let reader = builder.with_batch_size(BATCH_ROWS).build().map_err(corrupt)?;
    for batch in reader {
        let batch = batch.map_err(corrupt)?;
        let column = |name: &str| batch.column_by_name(name).ok_or_else(|| corrupt(format!("it has no column {name}")));
        let wrong = |name: &str| corrupt(format!("column {name} has another type, or nulls"));
        let text = |name| column(name)?.as_string_opt::<i32>().ok_or_else(|| wrong(name));
        let whole = |name| text(name).and_then(|a| if a.null_count() == 0 { Ok(a) } else { Err(wrong(name)) });
        let int32 = |name| {
            column(name)?.as_primitive_opt::<Int32Type>().filter(|a| a.null_count() == 0).ok_or_else(|| wrong(name))
        };
        let int64 = |name| {
            column(name)?.as_primitive_opt::<Int64Type>().filter(|a| a.null_count() == 0).ok_or_else(|| wrong(name))
        };
        let at = column("at")?.as_primitive_opt::<TimestampMicrosecondType>().filter(|a| a.null_count() == 0);
        let (number, action, at) = (int64("number")?, whole("action")?, at.ok_or_else(|| wrong("at"))?);
        let (by, user, host, reason) = (text("by")?, whole("user")?, whole("host")?, whole("reason")?);
        let (topic, generation) = (whole("kafka_topic")?, int32("topic_generation")?);
        let (partition, from, to) = (int32("kafka_partition")?, int64("offset_from")?, int64("offset_to")?);
        for i in 0..batch.num_rows() {
            let said = Said {
                number: u32::try_from(number.value(i)).map_err(|_| wrong("number"))?,
                action: action.value(i).to_owned(),
                at_us: at.value(i),
                by: by.is_valid(i).then(|| by.value(i).to_owned()),
                user: user.value(i).to_owned(),
                host: host.value(i).to_owned(),
                reason: reason.value(i).to_owned(),
            };
            let range = Range {
                topic: topic.value(i).to_owned(),
                generation: u32::try_from(generation.value(i)).map_err(|_| wrong("topic_generation"))?,
                partition: partition.value(i),
                from: from.value(i),
                to: to.value(i),
            };
            row(&said, range);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(by: Option<&str>) -> Said {
        Said {
            number: 7,
            action: "undo".into(),
            at_us: 1_796_083_200_000_000,
            by: by.map(str::to_owned),
            user: "u".into(),
            host: "h".into(),
            reason: "größe".into(),
        }
    }

    fn ranges(n: i64) -> Vec<Range> {
        let range = |i| Range { topic: "a-dlq".into(), generation: 2, partition: 3, from: i * 10, to: i * 10 + 4 };
        (0..n).map(range).collect()
    }

    #[test]
    fn rows_come_back() {
        for (n, by) in [(0, None), (1, Some("ann")), (20_000, None)] {
            let mut back = Vec::new();
            let bytes = encode(&said(by), ranges(n)).unwrap();
            read(bytes.into(), |of, range| {
                assert_eq!(*of, said(by));
                back.push(range);
            })
            .unwrap();
            assert_eq!(back, ranges(n));
        }
    }

    #[test]
    fn damage_is_an_error() {
        let whole = encode(&said(None), ranges(100)).unwrap();
        assert!(read(Bytes::from_static(b"PAR1"), |_, _| {}).is_err());
        for at in (0..whole.len()).step_by(7) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x55;
            let _ = read(bytes.into(), |_, _| {});
        }
    }
}
