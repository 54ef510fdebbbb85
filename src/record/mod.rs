//! What a record is: raw ([`RawRecord`], the broker's bytes) and decoded ([`Decoded`], what a dialect made of them).

mod decoded;
mod raw;

pub use decoded::{Decoded, Hop, PayloadState};
pub use raw::{Header, Headers, RawBatch, RawRecord, RecordId, TimestampType, TopicPartition, in_ranges};
