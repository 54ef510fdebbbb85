//! What goes into each column, and back: the one place where a record and the table of columns meet.
//!
//! Both directions walk the columns in the order of [`super::schema::COLUMNS`]; the formats only carry values.
//! Invariant: what [`Writer`] wrote, [`read`] gives back, raw parts byte for byte.

use super::{ArchivedRecord, FileContext};
use crate::error::{Error, Result};
use crate::record::{Decoded, Headers, PayloadState, RawRecord, RecordId, TimestampType, as_text};
use std::borrow::Cow;
use std::fmt::Write;

/// 10000-01-01: engines clamp, fail or panic from here on.
const END_US: i64 = 253_402_300_800_000_000;

/// Takes one record's columns in order. Implemented by each format.
pub trait Columns {
    fn text(&mut self, value: Option<&str>);
    fn bytes(&mut self, value: Option<&[u8]>);
    fn int32(&mut self, value: Option<i32>);
    fn int64(&mut self, value: Option<i64>);
    /// Microseconds since 1970, within 1970 to 9999.
    fn timestamp(&mut self, value: Option<i64>);
    fn headers(&mut self, headers: Headers<'_>);
}

/// Bytes as text if they are valid UTF-8 without U+0000 (which engines cut at or refuse), else as bytes.
pub fn split(value: Option<&[u8]>) -> (Option<&str>, Option<&[u8]>) {
    match value {
        None => (None, None),
        Some(bytes) => match as_text(bytes) {
            Some(text) => (Some(text), None),
            None => (None, Some(bytes)),
        },
    }
}

/// A header's name as text, and exactly where that text is lossy.
pub fn header_name(name: &[u8]) -> (Cow<'_, str>, Option<&[u8]>) {
    match str::from_utf8(name) {
        Ok(text) => (Cow::Borrowed(text), None),
        Err(_) => (String::from_utf8_lossy(name), Some(name)),
    }
}

/// `None` outside 1970 to 9999.
pub fn within_years(us: i64) -> Option<i64> {
    (0..END_US).contains(&us).then_some(us)
}

pub(super) fn size(bytes: Option<&[u8]>) -> Option<i32> {
    bytes.map(|b| i32::try_from(b.len()).unwrap_or(i32::MAX))
}

/// Fills the columns of one object's records.
pub struct Writer<'a> {
    context: FileContext<'a>,
    generation: i32,
    archived_at_us: i64,
    /// `topic/partition/`, then each record's offset and generation.
    id: String,
    id_stem: usize,
    text: String,
}

impl<'a> Writer<'a> {
    pub fn new(context: &FileContext<'a>) -> Self {
        let id = format!("{}/{}/", context.topic, context.partition);
        Self {
            context: *context,
            generation: i32::try_from(context.generation).unwrap_or(i32::MAX),
            archived_at_us: context.archived_at_us.clamp(0, END_US - 1),
            id_stem: id.len(),
            id,
            text: String::new(),
        }
    }

    pub fn write(&mut self, raw: &RawRecord<'_>, d: &Decoded<'_>, pipeline: &str, out: &mut impl Columns) {
        let c = &self.context;
        self.id.truncate(self.id_stem);
        let _ = write!(self.id, "{}", raw.offset);
        if c.generation > 1 {
            let _ = write!(self.id, "@g{}", c.generation);
        }

        out.text(Some(&self.id));
        out.text(c.cluster_id);
        out.text(Some(c.topic));
        out.int32(Some(self.generation));
        out.int32(Some(c.partition));
        out.int64(Some(raw.offset));
        out.timestamp(raw.timestamp_ms.checked_mul(1000).and_then(within_years));
        out.int64(Some(raw.timestamp_ms));
        out.text(Some(raw.timestamp_type.as_str()));
        for part in [raw.key, raw.value] {
            let (text, bytes) = split(part);
            out.text(text);
            out.bytes(bytes);
        }
        out.int32(size(raw.key));
        out.int32(size(raw.value));
        out.headers(raw.headers);
        out.text(Some(pipeline));
        out.text(Some(&d.dialect));
        out.text(Some(hex(&d.failure_key, &mut [0; 32])));
        out.timestamp(d.failed_at_us.and_then(within_years));
        out.text(d.error_class.as_deref());
        out.text(d.error_message.as_deref());
        out.int32(d.error_code);
        out.text(d.error_stage.as_deref());
        out.text(d.error_component.as_deref());
        out.text(d.error_destination.as_deref());
        out.text(d.error_stacktrace.as_deref());
        out.int32(d.attempts);
        out.text(d.origin_topic.as_deref());
        out.int32(d.origin_partition);
        out.int64(d.origin_offset);
        out.timestamp(d.origin_timestamp_us.and_then(within_years));
        out.text(d.origin_group.as_deref());
        out.text(d.event_id.as_deref());
        out.text(d.event_source.as_deref());
        out.text(d.event_type.as_deref());
        out.text(d.event_subject.as_deref());
        out.timestamp(d.event_time_us.and_then(within_years));
        out.text(d.content_type.as_deref());
        out.text(Some(d.payload_state.as_str()));
        out.int32(Some(d.prior_restores));
        self.text.clear();
        for (i, problem) in d.problems.iter().enumerate() {
            self.text.push_str(if i == 0 { "" } else { PROBLEM_SEPARATOR });
            self.text.push_str(problem);
        }
        out.text((!d.problems.is_empty()).then_some(&self.text));
        out.timestamp(Some(self.archived_at_us));
    }
}

const PROBLEM_SEPARATOR: &str = "; ";

pub(super) fn hex<'b>(bytes: &[u8; 16], out: &'b mut [u8; 32]) -> &'b str {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (pair, b) in out.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(b >> 4)];
        pair[1] = DIGITS[usize::from(b & 15)];
    }
    std::str::from_utf8(out).unwrap_or_default()
}

pub(super) fn unhex(text: &str) -> Option<[u8; 16]> {
    let is_hex = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let bits = is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten()?;
    Some(bits.to_be_bytes())
}

/// Gives one record's columns in order. Implemented by each format; a column that is not read gives `None`.
/// Headers are not asked for: the format puts them into an arena.
pub trait Cells<'a> {
    fn text(&mut self) -> Result<Option<Cow<'a, str>>>;
    fn bytes(&mut self) -> Result<Option<Cow<'a, [u8]>>>;
    fn int32(&mut self) -> Result<Option<i32>>;
    fn int64(&mut self) -> Result<Option<i64>>;
    fn timestamp(&mut self) -> Result<Option<i64>>;
    fn skip(&mut self);
}

/// One record's columns but for its headers, as read.
pub struct Row<'a> {
    id: RecordId,
    cluster_id: Option<Cow<'a, str>>,
    timestamp_ms: i64,
    timestamp_type: TimestampType,
    key: Option<Cow<'a, [u8]>>,
    value: Option<Cow<'a, [u8]>>,
    key_size: Option<i32>,
    value_size: Option<i32>,
    pipeline: Cow<'a, str>,
    decoded: Decoded<'a>,
    archived_at_us: i64,
}

/// Columns that [`read`] skips: the record's position and its timestamp stand in others, exactly.
pub(super) const SAID_BY_OTHERS: [&str; 2] = ["record_id", "kafka_timestamp"];

/// Reads one row. `payload` says whether key, value and headers are there to be read.
pub fn read<'a>(cells: &mut impl Cells<'a>, payload: bool) -> Result<Row<'a>> {
    cells.skip(); // record_id: the columns that follow say the same
    let cluster_id = cells.text()?;
    let topic = required(cells.text()?, "kafka_topic")?;
    let generation = required(cells.int32()?, "topic_generation")?;
    let partition = required(cells.int32()?, "kafka_partition")?;
    let offset = required(cells.int64()?, "kafka_offset")?;
    cells.skip(); // kafka_timestamp: the next is exact
    let timestamp_ms = required(cells.int64()?, "kafka_timestamp_ms")?;
    let timestamp_type = cells.text()?;
    let key = join(cells, "kafka_key")?;
    let value = join(cells, "kafka_value")?;
    let (key_size, value_size) = (cells.int32()?, cells.int32()?);
    if payload {
        for (name, bytes, told) in [("kafka_key", &key, key_size), ("kafka_value", &value, value_size)] {
            if size(bytes.as_deref()) != told {
                return Err(Error::corrupt(format!("offset {offset}: {name} and {name}_size contradict each other")));
            }
        }
    }
    cells.skip(); // kafka_headers
    let pipeline = required(cells.text()?, "pipeline_name")?;
    let decoded = Decoded {
        dialect: required(cells.text()?, "dialect")?,
        failure_key: parsed(cells.text()?, "failure_key", unhex)?,
        failed_at_us: cells.timestamp()?,
        error_class: cells.text()?,
        error_message: cells.text()?,
        error_code: cells.int32()?,
        error_stage: cells.text()?,
        error_component: cells.text()?,
        error_destination: cells.text()?,
        error_stacktrace: cells.text()?,
        attempts: cells.int32()?,
        origin_topic: cells.text()?,
        origin_partition: cells.int32()?,
        origin_offset: cells.int64()?,
        origin_timestamp_us: cells.timestamp()?,
        origin_group: cells.text()?,
        event_id: cells.text()?,
        event_source: cells.text()?,
        event_type: cells.text()?,
        event_subject: cells.text()?,
        event_time_us: cells.timestamp()?,
        content_type: cells.text()?,
        payload_state: parsed(cells.text()?, "payload_state", PayloadState::parse)?,
        prior_restores: required(cells.int32()?, "prior_restores")?,
        problems: match cells.text()? {
            None => Vec::new(),
            Some(text) => text.split(PROBLEM_SEPARATOR).map(|p| Cow::Owned(p.to_owned())).collect(),
        },
        hops: Vec::new(),
    };
    Ok(Row {
        id: RecordId {
            topic: topic.into_owned(),
            generation: u32::try_from(generation).map_err(|_| bad("topic_generation"))?,
            partition,
            offset,
        },
        cluster_id,
        timestamp_ms,
        timestamp_type: parsed(timestamp_type, "kafka_timestamp_type", TimestampType::parse)?,
        key,
        value,
        key_size,
        value_size,
        pipeline,
        decoded,
        archived_at_us: required(cells.timestamp()?, "archived_at")?,
    })
}

impl Row<'_> {
    /// The record, for as long as `then` runs.
    pub fn with<T>(self, headers: Headers<'_>, then: impl FnOnce(ArchivedRecord<'_>) -> T) -> T {
        then(ArchivedRecord {
            raw: RawRecord {
                offset: self.id.offset,
                timestamp_ms: self.timestamp_ms,
                timestamp_type: self.timestamp_type,
                leader_epoch: -1,
                key: self.key.as_deref(),
                value: self.value.as_deref(),
                headers,
            },
            id: self.id,
            cluster_id: self.cluster_id.as_deref(),
            key_size: self.key_size,
            value_size: self.value_size,
            decoded: self.decoded,
            pipeline: &self.pipeline,
            archived_at_us: self.archived_at_us,
        })
    }
}

pub(super) fn bad(column: &str) -> Error {
    Error::corrupt(format!("column {column} has a value that was never written there"))
}

pub(super) fn required<T>(value: Option<T>, column: &str) -> Result<T> {
    value.ok_or_else(|| Error::corrupt(format!("column {column} is null where it must not be")))
}

pub(super) fn parsed<T>(value: Option<Cow<'_, str>>, column: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T> {
    parse(&required(value, column)?).ok_or_else(|| bad(column))
}

/// Text and bytes columns of one value back into its bytes.
pub(super) fn join<'a>(cells: &mut impl Cells<'a>, name: &str) -> Result<Option<Cow<'a, [u8]>>> {
    match (cells.text()?, cells.bytes()?) {
        (Some(_), Some(_)) => Err(Error::corrupt(format!("{name}_text and {name}_bytes are both set"))),
        (Some(Cow::Borrowed(text)), None) => Ok(Some(Cow::Borrowed(text.as_bytes()))),
        (Some(Cow::Owned(text)), None) => Ok(Some(Cow::Owned(text.into_bytes()))),
        (None, bytes) => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_utf8_without_nul() {
        assert_eq!(split(None), (None, None));
        assert_eq!(split(Some(b"")), (Some(""), None));
        assert_eq!(split(Some("größe".as_bytes())), (Some("größe"), None));
        assert_eq!(split(Some(b"a\0b")), (None, Some(&b"a\0b"[..])));
        assert_eq!(split(Some(b"\xff")), (None, Some(&b"\xff"[..])));
        assert_eq!(header_name(b"a\xff"), ("a\u{fffd}".into(), Some(&b"a\xff"[..])));
        assert_eq!(header_name(b"a"), ("a".into(), None));
    }

    #[test]
    fn hex_both_ways() {
        let key: [u8; 16] = std::array::from_fn(|i| (i * 17) as u8);
        let mut out = [0; 32];
        let text = hex(&key, &mut out);
        assert_eq!(text, "00112233445566778899aabbccddeeff");
        assert_eq!(unhex(text), Some(key));
        assert_eq!(unhex("+0112233445566778899aabbccddeeff"), None);
    }

    #[test]
    fn years_beyond_9999_are_no_timestamps() {
        assert_eq!(within_years(-1), None);
        assert_eq!(within_years(0), Some(0));
        assert_eq!(within_years(END_US - 1), Some(END_US - 1));
        assert_eq!(within_years(END_US), None);
    }
}
