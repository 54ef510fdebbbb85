//! Lists of restored records: flat Parquet that SQL engines read beside the data, joined by `record_id`.
//!
//! Owns the columns ([`schema`]) and both ways. Which lists there are, and what is in them, is the restore's business.
//! Invariants: names and types are for good, a later version adds columns at the end; a list's bytes are a function of
//! its rows.

use super::flat::{self, Kind};
use super::row::{hex, unhex};
use crate::error::Result;
use crate::record::RecordId;
use arrow_array::{ArrayRef, BooleanArray, Int32Array, Int64Array, StringArray, TimestampMicrosecondArray};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use bytes::Bytes;
use std::sync::Arc;

const KIND: Kind = Kind { what: "a list of restored records", version: ("dlq-archiver.restored_version", "1") };

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

pub fn encode(rows: &[Restored]) -> Result<Vec<u8>> {
    KIND.encode(&schema(), rows.chunks(flat::ROWS).map(columns))
}

fn columns(rows: &[Restored]) -> Vec<ArrayRef> {
    let text = |of: &dyn Fn(&Restored) -> String| -> ArrayRef {
        Arc::new(rows.iter().map(|r| Some(of(r))).collect::<StringArray>())
    };
    let int32 = |of: &dyn Fn(&Restored) -> i32| -> ArrayRef {
        Arc::new(Int32Array::from(rows.iter().map(of).collect::<Vec<_>>()))
    };
    let int64 = |of: &dyn Fn(&Restored) -> i64| rows.iter().map(of).collect::<Vec<_>>();
    let corrected = |of: &dyn Fn(&Correction) -> Option<String>| -> ArrayRef {
        Arc::new(rows.iter().map(|r| r.correction.as_ref().and_then(of)).collect::<StringArray>())
    };
    vec![
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
    ]
}

/// Hands over every row, in order.
///
/// # Errors
/// [`crate::Kind::Corrupt`] for a file that is damaged or no such list.
pub fn read(data: Bytes, mut row: impl FnMut(Restored)) -> Result<()> {
    KIND.read(data, |c| {
        let (topic, target_topic, restore_id) =
            (c.text("kafka_topic")?, c.text("target_topic")?, c.text("restore_id")?);
        let (generation, partition) = (c.int32("topic_generation")?, c.int32("kafka_partition")?);
        let (offset, at) = (c.int64("kafka_offset")?, c.timestamps("restored_at")?);
        let (target_partition, target_offset) = (c.int32("target_partition")?, c.int64("target_offset")?);
        let (failure_key, attempt) = (c.text("failure_key")?, c.int32("attempt")?);
        let corrected = c.booleans("value_corrected")?;
        let archived = c.optional_text("archived_value_sha256")?;
        let restored = c.optional_text("restored_value_sha256")?;
        for i in 0..c.rows() {
            row(Restored {
                id: RecordId {
                    topic: topic.value(i).to_owned(),
                    generation: u32::try_from(generation.value(i)).map_err(|_| c.wrong("topic_generation"))?,
                    partition: partition.value(i),
                    offset: offset.value(i),
                },
                target_topic: target_topic.value(i).to_owned(),
                target_partition: target_partition.value(i),
                target_offset: target_offset.value(i),
                restore_id: restore_id.value(i).to_owned(),
                restored_at_us: at.value(i),
                failure_key: unhex(failure_key.value(i)).ok_or_else(|| c.wrong("failure_key"))?,
                attempt: u32::try_from(attempt.value(i)).map_err(|_| c.wrong("attempt"))?,
                correction: corrected
                    .value(i)
                    .then(|| Correction { archived_sha256: archived(i), restored_sha256: restored(i) }),
            });
        }
        Ok(())
    })
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
