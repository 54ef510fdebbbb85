//! A Kafka record as it was received, byte for byte, and where it was.
//!
//! Owns the raw bytes ([`RawBatch`], an arena) and the views on them ([`RawRecord`]). Decodes nothing: that is
//! [`crate::dialect`]. Invariant: key, value, header names and header values are the broker's bytes; null, empty
//! and absent stay three things; headers keep their order and repeats.

use super::headers::{Header, Headers, Names};
use super::text::is_plain;
use bytes::Bytes;
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
        self.key.map_or(0, <[u8]>::len)
            + self.value.map_or(0, <[u8]>::len)
            + self.headers.names.bytes.len()
            + self.headers.values.len()
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
    /// Which of the batch's [`NamesAt`].
    names: u32,
    values_bytes: u32,
    values_first: u32,
    /// See [`Headers::are_plain`].
    plain: bool,
}

/// Where one set of header names is.
#[derive(Debug, Clone, Copy)]
struct NamesAt {
    chunk: u32,
    start: u32,
    bytes: u32,
    lens_first: u32,
    len: u32,
}

/// Sets of names that a record's are compared with, before it is taken for one of its own.
const COMPARED: usize = 8;
const CHUNK: usize = 1 << 20;
/// Records that are asked for before they are wanted, and bytes of what is long: behind those the processor goes on.
const AHEAD: usize = 2;
const BEGINNING: usize = 4 << 10;
const CACHE_LINE: usize = 64;
/// What a batch keeps beside its records, at most: there may be one for each of many partitions.
const SCRATCH: usize = 16 << 10;

/// Has the processor load these into its cache. Nothing else comes of it.
fn prefetch<T>(items: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..size_of_val(items).min(BEGINNING)).step_by(CACHE_LINE) {
        // SAFETY: within the slice; and a prefetch reads nothing, whatever the address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(items.as_ptr().cast::<i8>().add(at));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = items;
}

/// Records of one partition in the order they were read, their bytes in a chunked arena (chunks do not move, so
/// growing copies nothing). Header names are there once for the records that have the same ones, of which most are near
/// each other.
#[derive(Default)]
pub struct RawBatch {
    /// Those that are full.
    chunks: Vec<Bytes>,
    open: Vec<u8>,
    /// Capacity of all of them.
    arena: usize,
    metas: Vec<Meta>,
    names: Vec<NamesAt>,
    /// The one that came last.
    last_names: usize,
    name_lens: Vec<u32>,
    value_lens: Vec<i32>,
    payload: usize,
    /// Of each record, if they are wanted.
    checksums: Option<Checksums>,
}

#[derive(Default)]
struct Checksums {
    each: Vec<u64>,
    scratch: Vec<u8>,
}

impl RawBatch {
    pub fn new() -> Self {
        Self::default()
    }

    /// One that has each record's checksum at once: while its bytes are near, and before anything can become of them.
    pub fn with_checksums() -> Self {
        Self { checksums: Some(Checksums::default()), ..Self::default() }
    }

    /// Copies one record in. Lengths over 2 GiB cannot come from Kafka (its sizes are int32) and are refused by
    /// the caller's broker long before. The headers are walked twice.
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
        let known = self.names_of(headers.clone());
        let (values_first, lens_first) = (self.value_lens.len() as u32, self.name_lens.len() as u32);
        let (mut names_bytes, mut values_bytes) = (0usize, 0usize);
        for h in headers.clone() {
            self.value_lens.push(h.value.map_or(-1, |v| v.len() as i32));
            values_bytes += h.value.map_or(0, <[u8]>::len);
            names_bytes += h.name.len();
        }
        let payload = key.map_or(0, <[u8]>::len) + value.map_or(0, <[u8]>::len) + values_bytes + names_bytes;
        let need = if known.is_some() { payload - names_bytes } else { payload };
        if self.open.capacity() - self.open.len() < need {
            // Doubling from exactly the first record: many batches hold one record, few hold a million.
            let size = match self.open.capacity() {
                0 => 0,
                size => (size * 2).clamp(4 << 10, CHUNK),
            };
            self.seal();
            self.open = Vec::with_capacity(need.max(size));
            self.arena += self.open.capacity();
        }
        let (chunk_index, chunk) = (self.chunks.len() as u32, &mut self.open);
        self.last_names = known.unwrap_or_else(|| {
            let start = chunk.len() as u32;
            for h in headers.clone() {
                chunk.extend_from_slice(h.name);
                self.name_lens.push(h.name.len() as u32);
            }
            let len = self.name_lens.len() as u32 - lens_first;
            self.names.push(NamesAt { chunk: chunk_index, start, bytes: names_bytes as u32, lens_first, len });
            self.names.len() - 1
        });
        let start = chunk.len();
        for part in [key, value].into_iter().flatten() {
            chunk.extend_from_slice(part);
        }
        let values_start = chunk.len();
        for part in headers.filter_map(|h| h.value) {
            chunk.extend_from_slice(part);
        }
        let plain = is_plain(&chunk[values_start..]);
        self.payload += payload;
        self.metas.push(Meta {
            offset,
            timestamp_ms,
            timestamp_type,
            leader_epoch,
            chunk: chunk_index,
            start: start as u32,
            key: key.map_or(-1, |k| k.len() as i32),
            value: value.map_or(-1, |v| v.len() as i32),
            names: self.last_names as u32,
            values_bytes: values_bytes as u32,
            values_first,
            plain,
        });
        if let Some(Checksums { mut each, mut scratch }) = self.checksums.take() {
            each.push(self.get(self.len() - 1).checksum(&mut scratch));
            if scratch.capacity() > SCRATCH {
                scratch = Vec::new();
            }
            self.checksums = Some(Checksums { each, scratch });
        }
    }

    /// [`RawRecord::checksum`] of the `i`-th record.
    ///
    /// # Panics
    /// If `i >= len()`.
    pub fn checksum(&self, i: usize, scratch: &mut Vec<u8>) -> u64 {
        match &self.checksums {
            Some(kept) => kept.each[i],
            None => self.get(i).checksum(scratch),
        }
    }

    /// Where these headers' names are already: among the newest sets, and the one that came last.
    fn names_of<'h>(&self, headers: impl Iterator<Item = Header<'h>> + Clone) -> Option<usize> {
        let newest = self.names.len().saturating_sub(COMPARED)..self.names.len();
        let mut candidates = std::iter::once(self.last_names).chain(newest.rev()).filter(|i| *i < self.names.len());
        candidates.find(|i| headers.clone().map(|h| h.name).eq(self.names(*i).iter()))
    }

    fn names(&self, i: usize) -> Names<'_> {
        let at = &self.names[i];
        let bytes = &self.chunk(at.chunk)[at.start as usize..][..at.bytes as usize];
        Names { bytes, lens: &self.name_lens[at.lens_first as usize..][..at.len as usize] }
    }

    fn chunk(&self, i: u32) -> &[u8] {
        self.chunks.get(i as usize).map_or(&self.open[..], |chunk| chunk)
    }

    /// Ends the chunk that is being filled: what comes next begins another.
    pub fn seal(&mut self) {
        if self.open.capacity() > 0 {
            self.chunks.push(Bytes::from(std::mem::take(&mut self.open)));
        }
    }

    /// The chunks that the records' bytes are in, but for the one that is being filled. Keys, values and headers of
    /// [`Self::get`] point into them.
    pub fn chunks(&self) -> &[Bytes] {
        &self.chunks
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
        self.arena
            + self.metas.capacity() * size_of::<Meta>()
            + self.names.capacity() * size_of::<NamesAt>()
            + (self.name_lens.capacity() + self.value_lens.capacity()) * size_of::<i32>()
            + self
                .checksums
                .as_ref()
                .map_or(0, |kept| kept.each.capacity() * size_of::<u64>() + kept.scratch.capacity())
    }

    /// The `i`-th record pushed.
    ///
    /// # Panics
    /// If `i >= len()`.
    pub fn get(&self, i: usize) -> RawRecord<'_> {
        let m = &self.metas[i];
        let mut rest = &self.chunk(m.chunk)[m.start as usize..];
        let mut take = |len: i32| {
            let (head, tail) = rest.split_at(len.max(0) as usize);
            rest = tail;
            (len >= 0).then_some(head)
        };
        let (key, value) = (take(m.key), take(m.value));
        let names = self.names(m.names as usize);
        let value_lens = &self.value_lens[m.values_first as usize..][..names.len()];
        RawRecord {
            offset: m.offset,
            timestamp_ms: m.timestamp_ms,
            timestamp_type: m.timestamp_type,
            leader_epoch: m.leader_epoch,
            key,
            value,
            headers: Headers { names, values: &rest[..m.values_bytes as usize], value_lens, plain: m.plain },
        }
    }

    /// Records by their numbers, in this order, which may be any. Those that come next are asked for ahead: from where they
    /// lie apart no processor guesses it, and a good part of the time went into waiting for memory.
    ///
    /// # Panics
    /// If a number is not below `len()`.
    pub fn pick<'b>(&'b self, numbers: &'b [u32]) -> impl Iterator<Item = RawRecord<'b>> {
        numbers.iter().enumerate().map(move |(n, &number)| {
            let ahead = |by: usize| numbers.get(n + by).and_then(|&next| self.metas.get(next as usize));
            if let Some(meta) = ahead(2 * AHEAD) {
                prefetch(std::slice::from_ref(meta));
            }
            if let Some(meta) = ahead(AHEAD) {
                let parts = [meta.key, meta.value].map(|len| len.max(0) as usize);
                let len = parts.iter().sum::<usize>() + meta.values_bytes as usize;
                prefetch(&self.chunk(meta.chunk)[meta.start as usize..][..len]);
                prefetch(
                    &self.value_lens[meta.values_first as usize..][..self.names[meta.names as usize].len as usize],
                );
            }
            self.get(number as usize)
        })
    }

    /// Of the `i`-th record.
    ///
    /// # Panics
    /// If `i >= len()`.
    pub fn offset(&self, i: usize) -> i64 {
        self.metas[i].offset
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
    fn what_is_picked_ahead_or_kept_is_the_record_itself() {
        let mut batches = [RawBatch::new(), RawBatch::with_checksums()];
        let long = vec![b'v'; CHUNK];
        let texts: [&[u8]; 5] = [b"", b"a", b"12345678", b"123456789\x7f", "größe".as_bytes()];
        for offset in 0..40 {
            let value = if offset % 7 == 0 { &long[..] } else { texts[offset % 5] };
            let values = [Some(texts[offset % 3]), None, Some(texts[offset % 4]), (offset % 2 == 0).then_some(value)];
            let headers = values.into_iter().map(|value| Header { name: b"h", value });
            for b in &mut batches {
                b.push(offset as i64, 5, TimestampType::CreateTime, -1, None, Some(value), headers.clone());
            }
        }
        let numbers: Vec<u32> = (0..40).map(|n| n * 17 % 40).collect();
        for b in &batches {
            let picked: Vec<_> = b.pick(&numbers).map(|r| (r.offset, r.value, r.headers.iter().collect())).collect();
            let got = numbers.iter().map(|n| b.get(*n as usize));
            let got: Vec<(_, _, Vec<_>)> = got.map(|r| (r.offset, r.value, r.headers.iter().collect())).collect();
            assert_eq!(picked, got);
            let (mut scratch, mut of_batch) = (Vec::new(), Vec::new());
            for (i, record) in b.iter().enumerate() {
                assert_eq!(b.checksum(i, &mut of_batch), record.checksum(&mut scratch));
                assert_eq!(b.offset(i), record.offset);
                let plain = |v: Option<&[u8]>| v.is_none_or(|v| v.iter().all(|b| (1..=0x7f).contains(b)));
                assert_eq!(record.headers.are_plain(), record.headers.values().all(plain), "{i}");
            }
        }
        assert_eq!(batches[1].pick(&[]).count(), 0);
        let arena = |b: &RawBatch| b.memory() - b.checksums.as_ref().map_or(0, |kept| 8 * kept.each.capacity());
        let [without, with] = batches.each_ref().map(arena);
        assert!(with <= without + SCRATCH, "{with} and {without}: a batch of long records keeps one of them twice");
    }

    /// Sets of names that differ only in where one name ends, come back after many others, or are as long as a chunk.
    #[test]
    fn header_names_are_kept_once_and_come_back_as_they_were() {
        let long = vec![b'n'; CHUNK + 1];
        let sets: Vec<Vec<&[u8]>> =
            vec![vec![b"ab", b"c"], vec![b"a", b"bc"], vec![], vec![b""], vec![b"", b""], vec![&long]];
        let numbered: Vec<String> = (0..40).map(|n| format!("n{n}")).collect();
        let all = || sets.iter().cloned().chain(numbered.iter().map(|n| vec![n.as_bytes()]));
        let mut batch = RawBatch::new();
        for (i, names) in all().chain(all()).enumerate() {
            let values = [Some(&b"v"[..]), None];
            let headers = names.iter().zip(values.into_iter().cycle()).map(|(name, value)| Header { name, value });
            batch.push(i as i64, 0, TimestampType::CreateTime, 0, None, None, headers.clone());
            batch.push(i as i64, 0, TimestampType::CreateTime, 0, None, None, headers);
        }
        for (i, names) in all().chain(all()).enumerate() {
            for record in [batch.get(2 * i), batch.get(2 * i + 1)] {
                let headers: Vec<_> = record.headers.iter().collect();
                assert_eq!(headers.iter().map(|h| h.name).collect::<Vec<_>>(), names, "{i}");
                assert!(headers.iter().enumerate().all(|(n, h)| h.value.is_some() == (n % 2 == 0)));
                let bytes: usize = headers.iter().map(|h| h.name.len() + h.value.map_or(0, <[u8]>::len)).sum();
                assert_eq!(record.payload_len(), bytes);
            }
        }
        assert!(batch.memory() < 8 * CHUNK, "{}: twice, and not once for each record", batch.memory());
    }

    #[test]
    fn checksum_tells_null_from_empty() {
        let mut b = RawBatch::new();
        b.push(1, 2, TimestampType::CreateTime, 0, None, Some(b"v"), std::iter::empty());
        b.push(1, 2, TimestampType::CreateTime, 0, Some(b""), Some(b"v"), std::iter::empty());
        let mut scratch = Vec::new();
        assert_ne!(b.get(0).checksum(&mut scratch), b.get(1).checksum(&mut scratch));
    }
}
