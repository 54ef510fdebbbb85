//! What a disposition changes, as ranges of offsets: flat Parquet that SQL engines read beside the data.
//!
//! Owns the columns ([`schema`]) and both ways. What a disposition is, and which ranges it has, is [`crate::disposition`]'s
//! business. Invariant: names and types are for good, a later version adds columns at the end.

use super::flat::{self, Kind};
use crate::error::Result;
use arrow_array::{ArrayRef, Int32Array, Int64Array, StringArray, TimestampMicrosecondArray};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use bytes::Bytes;
use std::sync::Arc;

const KIND: Kind = Kind { what: "ranges of a disposition", version: ("dlq-archiver.ranges_version", "1") };

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

pub fn encode(said: &Said, ranges: impl IntoIterator<Item = Range>) -> Result<Vec<u8>> {
    let mut ranges = ranges.into_iter();
    let batches = std::iter::from_fn(|| {
        let rows: Vec<Range> = ranges.by_ref().take(flat::ROWS).collect();
        (!rows.is_empty()).then(|| columns(said, &rows))
    });
    KIND.encode(&schema(), batches)
}

fn columns(said: &Said, rows: &[Range]) -> Vec<ArrayRef> {
    let same = |text: Option<&str>| -> ArrayRef { Arc::new(rows.iter().map(|_| text).collect::<StringArray>()) };
    let int64 = |of: &dyn Fn(&Range) -> i64| Int64Array::from(rows.iter().map(of).collect::<Vec<_>>());
    let int32 = |of: &dyn Fn(&Range) -> i32| Int32Array::from(rows.iter().map(of).collect::<Vec<_>>());
    let at = TimestampMicrosecondArray::from(vec![said.at_us; rows.len()]).with_timezone("UTC");
    vec![
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
    ]
}

/// Hands over every row, in order.
///
/// # Errors
/// [`crate::Kind::Corrupt`] for a file that is damaged or no such list.
pub fn read(data: Bytes, mut row: impl FnMut(&Said, Range)) -> Result<()> {
    KIND.read(data, |c| {
        let (number, action, at) = (c.int64("number")?, c.text("action")?, c.timestamps("at")?);
        let (by, user) = (c.optional_text("by")?, c.text("user")?);
        let (host, reason) = (c.text("host")?, c.text("reason")?);
        let (topic, generation) = (c.text("kafka_topic")?, c.int32("topic_generation")?);
        let (partition, from, to) = (c.int32("kafka_partition")?, c.int64("offset_from")?, c.int64("offset_to")?);
        for i in 0..c.rows() {
            let said = Said {
                number: u32::try_from(number.value(i)).map_err(|_| c.wrong("number"))?,
                action: action.value(i).to_owned(),
                at_us: at.value(i),
                by: by(i),
                user: user.value(i).to_owned(),
                host: host.value(i).to_owned(),
                reason: reason.value(i).to_owned(),
            };
            let range = Range {
                topic: topic.value(i).to_owned(),
                generation: u32::try_from(generation.value(i)).map_err(|_| c.wrong("topic_generation"))?,
                partition: partition.value(i),
                from: from.value(i),
                to: to.value(i),
            };
            row(&said, range);
        }
        Ok(())
    })
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
