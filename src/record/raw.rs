//! A Kafka record as it was received, byte for byte, and where it was.
//!
//! Owns the raw bytes ([`RawBatch`], an arena) and the views on them ([`RawRecord`]). Decodes nothing: that is
//! [`crate::dialect`]. Invariant: key, value, header names and header values are the broker's bytes; null, empty
//! and absent stay three things; headers keep their order and repeats.

use std::fmt;
use twox_hash::XxHash3_64;

/// Which clock set a record's timestamp (Kafka's `message.timestamp.type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TimestampType {
    #[default]
    CreateTime,
    LogAppendTime,
}

impl TimestampType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CreateTime => "CreateTime",
            Self::LogAppendTime => "LogAppendTime",
        }
    }
    pub fn parse(s: &str) -> Option<Self> {
        match s {
            "CreateTime" => Some(Self::CreateTime),
            "LogAppendTime" => Some(Self::LogAppendTime),
            _ => None,
        }
    }
}

/// A partition of a dead-letter topic, in one generation of that topic (1 is the first).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicPartition {
    pub topic: String,
    pub partition: i32,
}

impl TopicPartition {
    pub fn new(topic: impl Into<String>, partition: i32) -> Self {
        Self { topic: topic.into(), partition }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// Partitions in order, for people: `orders-dlq 0-11, 14; mail-dlt 0`. At most `most` ranges are told.
pub fn in_ranges<'p>(partitions: impl IntoIterator<Item = &'p TopicPartition>, most: usize) -> String {
    let mut ranges: Vec<(&str, i32, i32)> = Vec::new();
    for tp in partitions {
        match ranges.last_mut() {
            Some((topic, _, to)) if *topic == tp.topic && to.checked_add(1) == Some(tp.partition) => *to = tp.partition,
            _ => ranges.push((&tp.topic, tp.partition, tp.partition)),
        }
    }
    let (mut text, mut before) = (String::new(), None);
    for (topic, from, to) in ranges.iter().take(most) {
        match before {
            Some(before) if before == topic => text.push_str(", "),
            Some(_) => text.push_str(&format!("; {topic} ")),
            None => text.push_str(&format!("{topic} ")),
        }
        text.push_str(&if from == to { from.to_string() } else { format!("{from}-{to}") });
        before = Some(topic);
    }
    if ranges.len() > most {
        text.push_str(", ...");
    }
    text
}

/// A record's position in its dead-letter topic, and so its id: `topic/partition/offset`, with `@g2` from a
/// topic's second generation on. Kafka topic names have no `/`, so the text form parses back.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordId {
    pub topic: String,
    pub generation: u32,
    pub partition: i32,
    pub offset: i64,
}

impl RecordId {
    /// Parses `topic/partition/offset[@gN]`; `None` if it has another form.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let (topic, partition, rest) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() || topic.is_empty() {
            return None;
        }
        let (offset, generation) = match rest.split_once("@g") {
            Some((offset, generation)) => (offset, generation.parse().ok().filter(|g| *g >= 2)?),
            None => (rest, 1),
        };
        let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        if !digits(partition) || !digits(offset) {
            return None;
        }
        Some(Self {
            topic: topic.to_owned(),
            generation,
            partition: partition.parse().ok()?,
            offset: offset.parse().ok()?,
        })
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.topic, self.partition, self.offset)?;
        if self.generation > 1 {
            write!(f, "@g{}", self.generation)?;
        }
        Ok(())
    }
}

/// One header: its name as bytes (names need not be UTF-8), and its value, `None` being Kafka's null.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    pub name: &'a [u8],
    pub value: Option<&'a [u8]>,
}

/// A record's headers, in order, repeats kept. Cheap to copy and to walk.
#[derive(Clone, Copy, Default)]
pub struct Headers<'a> {
    lens: &'a [HeaderLen],
    bytes: &'a [u8],
}

impl<'a> Headers<'a> {
    pub fn len(&self) -> usize {
        self.lens.len()
    }
    pub fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }
    pub fn iter(&self) -> impl Iterator<Item = Header<'a>> + Clone + use<'a> {
        let (lens, mut bytes) = (self.lens, self.bytes);
        lens.iter().map(move |len| {
            let (name, rest) = bytes.split_at(len.name as usize);
            let (value, rest) = rest.split_at(len.value.max(0) as usize);
            bytes = rest;
            Header { name, value: (len.value >= 0).then_some(value) }
        })
    }
}

impl fmt::Debug for Headers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A view on one record. `timestamp_ms` is milliseconds since 1970, exactly as Kafka had it, -1 for none.
#[derive(Debug, Clone, Copy)]
pub struct RawRecord<'a> {
    pub offset: i64,
    pub timestamp_ms: i64,
    pub timestamp_type: TimestampType,
    /// Leader epoch of the record's batch; -1 where unknown.
    pub leader_epoch: i32,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: Headers<'a>,
}

impl RawRecord<'_> {
    /// Bytes of key, value, header names and header values.
    pub fn payload_len(&self) -> usize {
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len) + self.headers.bytes.len()
    }

    /// 64-bit XXH3 over offset, timestamp, key, value and headers, each length-prefixed, null apart from empty.
    /// Keyless and stable: it is written into intents and compared by another process later.
    pub fn checksum(&self, scratch: &mut Vec<u8>) -> u64 {
        fn put(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
            match bytes {
                None => out.extend_from_slice(&u32::MAX.to_le_bytes()),
                Some(b) => {
                    out.extend_from_slice(&(b.len() as u32).to_le_bytes());
                    out.extend_from_slice(b);
                }
            }
        }
        scratch.clear();
        scratch.extend_from_slice(&self.offset.to_le_bytes());
        scratch.extend_from_slice(&self.timestamp_ms.to_le_bytes());
        put(scratch, self.key);
        put(scratch, self.value);
        scratch.extend_from_slice(&(self.headers.len() as u32).to_le_bytes());
        for h in self.headers.iter() {
            put(scratch, Some(h.name));
            put(scratch, h.value);
        }
        XxHash3_64::oneshot(scratch)
    }
}

#[derive(Debug, Clone, Copy)]
struct HeaderLen {
    name: u32,
    /// -1 = null.
    value: i32,
}

#[derive(Debug, Clone, Copy)]
struct Meta {
    offset: i64,
    timestamp_ms: i64,
    timestamp_type: TimestampType,
    leader_epoch: i32,
    chunk: u32,
    start: u32,
    /// -1 = null.
    key: i32,
    value: i32,
    headers_bytes: u32,
    headers_first: u32,
    headers_len: u32,
}

const CHUNK: usize = 1 << 20;

/// Records of one partition in the order they were read, their bytes in a chunked arena (chunks do not move, so
/// growing copies nothing).
#[derive(Default)]
pub struct RawBatch {
    chunks: Vec<Vec<u8>>,
    metas: Vec<Meta>,
    header_lens: Vec<HeaderLen>,
    payload: usize,
}

impl RawBatch {
    pub fn new() -> Self {
        Self::default()
    }

    /// Copies one record in. Lengths over 2 GiB cannot come from Kafka (its sizes are int32) and are refused by
    /// the caller's broker long before.
    #[allow(clippy::too_many_arguments)]
    pub fn push<'h>(
        &mut self,
        offset: i64,
        timestamp_ms: i64,
        timestamp_type: TimestampType,
        leader_epoch: i32,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: impl Iterator<Item = Header<'h>> + Clone,
    ) {
        let headers_first = self.header_lens.len() as u32;
        let mut headers_bytes = 0usize;
        for h in headers.clone() {
            let value = h.value.map_or(-1, |v| v.len() as i32);
            self.header_lens.push(HeaderLen { name: h.name.len() as u32, value });
            headers_bytes += h.name.len() + value.max(0) as usize;
        }
        let need = key.map_or(0, <[u8]>::len) + value.map_or(0, <[u8]>::len) + headers_bytes;
        let fits = self.chunks.last().is_some_and(|c| c.capacity() - c.len() >= need);
        if !fits {
            // Doubling from exactly the first record: many batches hold one record, few hold a million.
            let size = self.chunks.last().map_or(0, |c| (c.capacity() * 2).clamp(4 << 10, CHUNK));
            self.chunks.push(Vec::with_capacity(need.max(size)));
        }
        let chunk_index = self.chunks.len() - 1;
        let chunk = &mut self.chunks[chunk_index];
        let start = chunk.len();
        for part in [key, value].into_iter().flatten() {
            chunk.extend_from_slice(part);
        }
        for h in headers {
            chunk.extend_from_slice(h.name);
            chunk.extend_from_slice(h.value.unwrap_or_default());
        }
        self.payload += need;
        self.metas.push(Meta {
            offset,
            timestamp_ms,
            timestamp_type,
            leader_epoch,
            chunk: chunk_index as u32,
            start: start as u32,
            key: key.map_or(-1, |k| k.len() as i32),
            value: value.map_or(-1, |v| v.len() as i32),
            headers_bytes: headers_bytes as u32,
            headers_first,
            headers_len: self.header_lens.len() as u32 - headers_first,
        });
    }

    pub fn push_record(&mut self, r: &RawRecord<'_>) {
        self.push(r.offset, r.timestamp_ms, r.timestamp_type, r.leader_epoch, r.key, r.value, r.headers.iter());
    }

    pub fn len(&self) -> usize {
        self.metas.len()
    }
    pub fn is_empty(&self) -> bool {
        self.metas.is_empty()
    }
    /// Bytes of keys, values and headers.
    pub fn payload_len(&self) -> usize {
        self.payload
    }
    /// Memory held, in bytes.
    pub fn memory(&self) -> usize {
        self.chunks.iter().map(Vec::capacity).sum::<usize>()
            + self.metas.capacity() * size_of::<Meta>()
            + self.header_lens.capacity() * size_of::<HeaderLen>()
    }

    /// The `i`-th record pushed.
    ///
    /// # Panics
    /// If `i >= len()`.
    pub fn get(&self, i: usize) -> RawRecord<'_> {
        let m = &self.metas[i];
        let mut rest = &self.chunks[m.chunk as usize][m.start as usize..];
        let mut take = |len: i32| {
            let (head, tail) = rest.split_at(len.max(0) as usize);
            rest = tail;
            (len >= 0).then_some(head)
        };
        let (key, value) = (take(m.key), take(m.value));
        let lens = &self.header_lens[m.headers_first as usize..][..m.headers_len as usize];
        RawRecord {
            offset: m.offset,
            timestamp_ms: m.timestamp_ms,
            timestamp_type: m.timestamp_type,
            leader_epoch: m.leader_epoch,
            key,
            value,
            headers: Headers { lens, bytes: &rest[..m.headers_bytes as usize] },
        }
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = RawRecord<'_>> {
        (0..self.len()).map(|i| self.get(i))
    }

    pub fn last(&self) -> Option<RawRecord<'_>> {
        self.len().checked_sub(1).map(|i| self.get(i))
    }
}

impl fmt::Debug for RawBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_hundred_partitions_are_one_short_line() {
        let all: Vec<_> = (0..500).map(|p| TopicPartition::new("a", p)).collect();
        assert_eq!(in_ranges(&all, 8), "a 0-499");
        assert_eq!(in_ranges(all.iter().step_by(2), 3), "a 0, 2, 4, ...");
        let some = [("a", 0), ("a", 2), ("b", 3), ("b", 4), ("c", 5)].map(|(t, p)| TopicPartition::new(t, p));
        assert_eq!(in_ranges(&some, 8), "a 0, 2; b 3-4; c 5");
        assert_eq!(in_ranges(&[], 8), "");
    }

    #[test]
    fn bytes_come_back_as_they_went_in() {
        let mut b = RawBatch::new();
        let headers = [
            Header { name: b"dup", value: Some(b"a") },
            Header { name: b"dup", value: None },
            Header { name: b"\xff\xfe", value: Some(b"") },
        ];
        b.push(7, -1, TimestampType::LogAppendTime, 3, None, Some(b""), headers.iter().copied());
        b.push(9, 5, TimestampType::CreateTime, -1, Some(b""), None, std::iter::empty());
        let big = vec![1u8; 3 * CHUNK];
        b.push(10, 5, TimestampType::CreateTime, -1, Some(b"k"), Some(&big), std::iter::empty());
        let r = b.get(0);
        assert_eq!((r.offset, r.key, r.value), (7, None, Some(&b""[..])));
        assert_eq!(r.headers.iter().collect::<Vec<_>>(), headers);
        assert_eq!((b.get(1).key, b.get(1).value, b.get(1).headers.len()), (Some(&b""[..]), None, 0));
        assert_eq!(b.get(2).value, Some(&big[..]));
    }

    #[test]
    fn checksum_tells_null_from_empty() {
        let mut b = RawBatch::new();
        b.push(1, 2, TimestampType::CreateTime, 0, None, Some(b"v"), std::iter::empty());
        b.push(1, 2, TimestampType::CreateTime, 0, Some(b""), Some(b"v"), std::iter::empty());
        let mut scratch = Vec::new();
        assert_ne!(b.get(0).checksum(&mut scratch), b.get(1).checksum(&mut scratch));
    }

    #[test]
    fn record_ids_parse_back() {
        for id in ["default-dlt/7/0", "a.b/0/12@g2"] {
            assert_eq!(RecordId::parse(id).unwrap().to_string(), id);
        }
        for bad in ["", "a/b/c", "a/1", "a/1/2/3", "a/-1/2", "a/1/2@g1", "a/1/+2", "/1/2"] {
            assert!(RecordId::parse(bad).is_none(), "{bad}");
        }
    }
}
