//! Whether a Parquet object has an event, from its footer and bloom filters alone. Pure.
//!
//! Owns where in an object they are. Invariant: what cannot be read rules nothing out.

use parquet::bloom_filter::Sbbf;
use parquet::file::metadata::ParquetMetaDataReader;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes at an object's end that have all of its footer, mostly.
pub const TAIL: u64 = 64 << 10;

/// Length of the footer, and the magic number.
const END: usize = 8;

/// What an object's last bytes tell.
#[derive(Debug, PartialEq, Eq)]
pub enum Tail {
    /// So many last bytes are needed.
    Short(u64),
    /// Where the bloom filters of `event_id` are, one for each row group.
    Filters(Vec<Range<u64>>),
}

/// `None`: it has no filters, or is not read here.
pub fn event_filters(tail: &[u8], size: u64) -> Option<Tail> {
    let (rest, end) = tail.split_last_chunk::<END>()?;
    let (length, magic) = end.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length);
    let needed = u64::from(length) + END as u64;
    if magic != b"PAR1" || needed > size {
        return None;
    }
    let Some(from) = rest.len().checked_sub(length as usize) else { return Some(Tail::Short(needed)) };
    let footer = rest.get(from..)?;
    // The library is meant to answer with errors, but can panic on damaged bytes.
    let metadata = catch_unwind(|| ParquetMetaDataReader::decode_metadata(footer)).ok()?.ok()?;
    let filter = |group: &parquet::file::metadata::RowGroupMetaData| {
        let column = group.columns().iter().find(|c| c.column_path().string() == "event_id")?;
        let from = u64::try_from(column.bloom_filter_offset()?).ok()?;
        let to = from.checked_add(u64::try_from(column.bloom_filter_length()?).ok()?)?;
        (from < to && to <= size).then_some(from..to)
    };
    metadata.row_groups().iter().map(filter).collect::<Option<_>>().map(Tail::Filters)
}

/// Whether the filter's row group may have one of these events.
pub fn may_have(filter: &[u8], events: &[&str]) -> bool {
    let read = catch_unwind(AssertUnwindSafe(|| {
        Sbbf::from_bytes(filter).map(|filter| events.iter().any(|event| filter.check(*event)))
    }));
    !matches!(read, Ok(Ok(false)))
}
