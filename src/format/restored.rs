//! Lists of restored records: flat Parquet that SQL engines read beside the data, joined by `record_id`.
//!
//! Owns the columns ([`schema`]) and both ways. Which lists there are, and what is in them, is the restore's business.
//! Invariants: names and types are for good, a later version adds columns at the end; a list's bytes are a function of
//! its rows.

use super::row::{hex, unhex};
use crate::error::{Error, Result};
use crate::record::RecordId;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Int32Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};
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
const META_VERSION: &str = "dlq-archiver.restored_version";
const BATCH_ROWS: usize = 8192;

/// One record that went back into Kafka, and where to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    pub id: RecordId,
    pub target_topic: String,
    pub target_partition: i32,
    pub target_offset: i64,
    pub restore_id: String,
    /// Microseconds since 1970.
    pub restored_at_us: i64,
    pub failure_key: [u8; 16],
    /// How often its failure was restored, this time included.
    pub attempt: u32,
    pub correction: Option<Correction>,
}

/// Of a record that was sent with another value than is archived: hex SHA-256 of both, `None` where the value is null.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Correction {
    pub archived_sha256: Option<String>,
    pub restored_sha256: Option<String>,
}

/// The names are those that the data has for the same things.
pub fn schema() -> Arc<Schema> {
    let field = |name: &str, ty| Field::new(name, ty, false);
    Arc::new(Schema::new(vec![
        field("kafka_topic", DataType::Utf8),
        field("topic_generation", DataType::Int32),
        field("kafka_partition", DataType::Int32),
        field("kafka_offset", DataType::Int64),
        field("record_id", DataType::Utf8),
        field("target_topic", DataType::Utf8),
        field("target_partition", DataType::Int32),
        field("target_offset", DataType::Int64),
        field("restore_id", DataType::Utf8),
        field("restored_at", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))),
        field("failure_key", DataType::Utf8),
        field("attempt", DataType::Int32),
        field("value_corrected", DataType::Boolean),
        Field::new("archived_value_sha256", DataType::Utf8, true),
        Field::new("restored_value_sha256", DataType::Utf8, true),
    ]))
}

fn internal(error: impl std::fmt::Display) -> Error {
    Error::internal(format!("a list of restored records could not be encoded: {error}"))
}

pub fn encode(rows: &[Restored]) -> Result<Vec<u8>> {
    let zstd = Compression::ZSTD(ZstdLevel::try_new(3).map_err(internal)?);
    let properties = WriterProperties::builder()
        .set_compression(zstd)
        .set_key_value_metadata(Some(vec![KeyValue::new(META_VERSION.to_owned(), VERSION.to_owned())]))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema(), Some(properties)).map_err(internal)?;
    for rows in rows.chunks(BATCH_ROWS) {
        let text = |of: &dyn Fn(&Restored) -> String| -> ArrayRef {
            Arc::new(rows.iter().map(|r| Some(of(r))).collect::<StringArray>())
        };
        let int32 = |of: &dyn Fn(&Restored) -> i32| -> ArrayRef {
            Arc::new(rows.iter().map(of).collect::<Vec<_>>().into_iter().map(Some).collect::<Int32Array>())
        };
        let int64 = |of: &dyn Fn(&Restored) -> i64| rows.iter().map(of).collect::<Vec<_>>();
        let corrected = |of: &dyn Fn(&Correction) -> Option<String>| -> ArrayRef {
            Arc::new(rows.iter().map(|r| r.correction.as_ref().and_then(of)).collect::<StringArray>())
        };
        let columns = vec![
            text(&|r| r.id.topic.clone()),
            int32(&|r| i32::try_from(r.id.generation).unwrap_or(i32::MAX)),
            int32(&|r| r.id.partition),
            Arc::new(Int64Array::from(int64(&|r| r.id.offset))),
            text(&|r| r.id.to_string()),
            text(&|r| r.target_topic.clone()),
            int32(&|r| r.target_partition),
            Arc::new(Int64Array::from(int64(&|r| r.target_offset))),
            text(&|r| r.restore_id.clone()),
            Arc::new(TimestampMicrosecondArray::from(int64(&|r| r.restored_at_us)).with_timezone("UTC")),
            text(&|r| hex(&r.failure_key, &mut [0; 32]).to_owned()),
            int32(&|r| i32::try_from(r.attempt).unwrap_or(i32::MAX)),
            Arc::new(BooleanArray::from_iter(rows.iter().map(|r| Some(r.correction.is_some())))),
            corrected(&|c| c.archived_sha256.clone()),
            corrected(&|c| c.restored_sha256.clone()),
        ];
        writer.write(&RecordBatch::try_new(schema(), columns).map_err(internal)?).map_err(internal)?;
    }
    writer.into_inner().map_err(internal)
}

/// Hands over every row, in order.
///
/// # Errors
/// [`crate::Kind::Corrupt`] for a file that is damaged or no such list.
pub fn read(data: Bytes, mut row: impl FnMut(Restored)) -> Result<()> {
    // The Parquet library's decoders can panic on damaged bytes.
    catch_unwind(AssertUnwindSafe(|| decode(data, &mut row))).unwrap_or_else(|_| Err(corrupt("its pages are damaged")))
}

fn corrupt(what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("not a readable list of restored records: {what}"))
}

fn decode(data: Bytes, row: &mut dyn FnMut(Restored)) -> Result<()> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(data).map_err(corrupt)?;
    let reader = builder.with_batch_size(BATCH_ROWS).build().map_err(corrupt)?;
    for batch in reader {
        let batch = batch.map_err(corrupt)?;
        let column = |name: &str| batch.column_by_name(name).ok_or_else(|| corrupt(format!("it has no column {name}")));
        let wrong = |name: &str| corrupt(format!("column {name} has another type, or nulls"));
        let text =
            |name| column(name)?.as_string_opt::<i32>().filter(|a| a.null_count() == 0).ok_or_else(|| wrong(name));
        let int32 = |name| {
            column(name)?.as_primitive_opt::<Int32Type>().filter(|a| a.null_count() == 0).ok_or_else(|| wrong(name))
        };
        let int64 = |name| {
            column(name)?.as_primitive_opt::<Int64Type>().filter(|a| a.null_count() == 0).ok_or_else(|| wrong(name))
        };
        let at = column("restored_at")?
            .as_primitive_opt::<TimestampMicrosecondType>()
            .ok_or_else(|| wrong("restored_at"))?;
        let (topic, target_topic, restore_id) = (text("kafka_topic")?, text("target_topic")?, text("restore_id")?);
        let (generation, partition) = (int32("topic_generation")?, int32("kafka_partition")?);
        let target_partition = int32("target_partition")?;
        let (offset, target_offset) = (int64("kafka_offset")?, int64("target_offset")?);
        let (failure_key, attempt) = (text("failure_key")?, int32("attempt")?);
        let corrected = column("value_corrected")?.as_boolean_opt().filter(|a| a.null_count() == 0);
        let corrected = corrected.ok_or_else(|| wrong("value_corrected"))?;
        let sha256 = |name| column(name)?.as_string_opt::<i32>().ok_or_else(|| wrong(name));
        let (archived, restored) = (sha256("archived_value_sha256")?, sha256("restored_value_sha256")?);
        let at_row = |a: &StringArray, i| a.is_valid(i).then(|| a.value(i).to_owned());
        for i in 0..batch.num_rows() {
            row(Restored {
                id: RecordId {
                    topic: topic.value(i).to_owned(),
                    generation: u32::try_from(generation.value(i)).map_err(|_| wrong("topic_generation"))?,
                    partition: partition.value(i),
                    offset: offset.value(i),
                },
                target_topic: target_topic.value(i).to_owned(),
                target_partition: target_partition.value(i),
                target_offset: target_offset.value(i),
                restore_id: restore_id.value(i).to_owned(),
                restored_at_us: at.value(i),
                failure_key: unhex(failure_key.value(i)).ok_or_else(|| wrong("failure_key"))?,
                attempt: u32::try_from(attempt.value(i)).map_err(|_| wrong("attempt"))?,
                correction: corrected
                    .value(i)
                    .then(|| Correction { archived_sha256: at_row(archived, i), restored_sha256: at_row(restored, i) }),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(n: i64) -> Vec<Restored> {
        (0..n)
            .map(|i| Restored {
                id: RecordId {
                    topic: "größe-dlq".into(), generation: 1 + (i % 2) as u32, partition: 7, offset: i * 3
                },
                target_topic: "orders".into(),
                target_partition: (i % 5) as i32,
                target_offset: i,
                restore_id: "0123456789ab-1".into(),
                restored_at_us: 1_791_468_687_032_000 + i,
                failure_key: [i as u8; 16],
                attempt: i as u32,
                correction: (i % 3 == 0).then(|| Correction {
                    archived_sha256: (i % 2 == 0).then(|| "a".repeat(64)),
                    restored_sha256: (i % 4 == 0).then(|| "b".repeat(64)),
                }),
            })
            .collect()
    }

    #[test]
    fn rows_come_back() {
        for n in [0, 1, 20_000] {
            let mut back = Vec::new();
            read(encode(&rows(n)).unwrap().into(), |r| back.push(r)).unwrap();
            assert_eq!(back, rows(n));
        }
    }

    #[test]
    fn damage_is_an_error() {
        let whole = encode(&rows(100)).unwrap();
        assert!(read(Bytes::from_static(b"PAR1"), |_| {}).is_err());
        for at in (0..whole.len()).step_by(7) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x55;
            let _ = read(bytes.into(), |_| {});
        }
    }
}
