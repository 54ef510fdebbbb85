//! What a record is: raw ([`RawRecord`], the broker's bytes) and decoded ([`Decoded`], what a dialect made of them).

mod decoded;
mod headers;
mod position;
mod raw;
mod text;

pub use decoded::{Decoded, Hop, PayloadState};
pub use headers::{Header, Headers, Names, OwnedNames};
pub use position::{RecordId, TopicPartition, in_ranges};
pub use raw::{RawBatch, RawRecord, TimestampType};
pub use text::as_text;
