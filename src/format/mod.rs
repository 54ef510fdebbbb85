//! Data objects: records to bytes ([`Encoder`]) and back ([`read`]), as Parquet or as JSON lines.
//!
//! Owns the columns ([`schema`]), what goes into each ([`row`]) and both encodings. Decides neither what is in an
//! object nor its name. Invariant: an object's bytes are a function of the records and of [`FileContext`] alone (no
//! clock, no chance), and key, value, headers and timestamp are read back byte for byte.

mod columns;
mod flat;
mod jsonl;
mod jsonl_read;
pub mod lookup;
mod parquet_read;
mod parquet_write;
pub mod ranges;
pub mod refetched;
pub mod restored;
pub mod row;
pub mod schema;

use crate::error::Result;
use crate::record::{Decoded, RawRecord, RecordId};
use bytes::Bytes;
use std::ops::ControlFlow;

pub use parquet_read::Group;
pub use schema::SCHEMA_VERSION;

/// How the lines of a JSONL object are compressed. It may change during an archive's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Compression {
    None,
    #[default]
    Gzip,
    Zstd,
}

/// How records are encoded. Parquet or JSONL is fixed for an archive, see [`Format::archive_name`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Format {
    #[default]
    Parquet,
    Jsonl(Compression),
}

impl Format {
    pub const ALL: [Self; 4] =
        [Self::Parquet, Self::Jsonl(Compression::Gzip), Self::Jsonl(Compression::Zstd), Self::Jsonl(Compression::None)];

    /// The extension of object names, without the dot.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Jsonl(Compression::None) => "jsonl",
            Self::Jsonl(Compression::Gzip) => "jsonl.gz",
            Self::Jsonl(Compression::Zstd) => "jsonl.zst",
        }
    }

    /// The format of an object, by its key's extension.
    pub fn of_key(key: &str) -> Option<Self> {
        let is = |f: &Self| key.strip_suffix(f.extension()).is_some_and(|stem| stem.ends_with('.'));
        Self::ALL.into_iter().find(is)
    }

    /// The format with this [`extension`](Self::extension), as intents have it.
    pub fn of_extension(extension: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.extension() == extension)
    }

    /// What `archive.json` has. An archive keeps it for ever: a `*.parquet` glob would miss rows in JSONL.
    pub fn archive_name(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Jsonl(_) => "jsonl",
        }
    }

    /// The media type of the objects.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Parquet => "application/vnd.apache.parquet",
            Self::Jsonl(Compression::None) => "application/x-ndjson",
            Self::Jsonl(Compression::Gzip) => "application/gzip",
            Self::Jsonl(Compression::Zstd) => "application/zstd",
        }
    }
}

/// What all records of one object have in common.
#[derive(Debug, Clone, Copy)]
pub struct FileContext<'a> {
    pub cluster_id: Option<&'a str>,
    pub topic: &'a str,
    pub partition: i32,
    pub generation: u32,
    /// The cut's time as its intent fixes it, microseconds since 1970.
    pub archived_at_us: i64,
    pub intent_key: &'a str,
    pub program_version: &'a str,
}

/// Makes one object, record by record in the order of offsets. Without any record it makes a valid empty one.
pub struct Encoder<'a> {
    row: row::Writer<'a>,
    out: Output,
}

enum Output {
    Parquet(Box<parquet_write::Sink>),
    Jsonl(Box<jsonl::Sink>),
}

impl<'a> Encoder<'a> {
    pub fn new(format: Format, context: &FileContext<'a>) -> Result<Self> {
        Self::of_rows(format, context, 0, &[])
    }

    /// The same, where it is known how many records there will be, and that most of their bytes are in these chunks.
    pub fn of_rows(format: Format, context: &FileContext<'a>, rows: u64, arena: &[Bytes]) -> Result<Self> {
        let metadata = [
            (schema::META_SCHEMA_VERSION, &*SCHEMA_VERSION.to_string()),
            (schema::META_PROGRAM_VERSION, context.program_version),
            (schema::META_INTENT, context.intent_key),
        ];
        let out = match format {
            Format::Parquet => {
                let mut sink = parquet_write::Sink::new(&schema::COLUMNS, &metadata)?;
                sink.foresee(&schema::COLUMNS, rows, arena);
                Output::Parquet(Box::new(sink))
            }
            Format::Jsonl(compression) => Output::Jsonl(Box::new(jsonl::Sink::new(&schema::COLUMNS, compression)?)),
        };
        Ok(Self { row: row::Writer::new(context), out })
    }

    pub fn push(&mut self, raw: &RawRecord<'_>, decoded: &Decoded<'_>, pipeline: &str) -> Result<()> {
        match &mut self.out {
            Output::Parquet(sink) => {
                self.row.write(raw, decoded, pipeline, &mut **sink);
                sink.end_row(raw.payload_len(), raw.headers.len())
            }
            Output::Jsonl(sink) => {
                self.row.write(raw, decoded, pipeline, &mut **sink);
                sink.end_row()
            }
        }
    }

    /// Memory held, in bytes: what is encoded so far, and what is not encoded yet.
    pub fn estimated_len(&self) -> usize {
        match &self.out {
            Output::Parquet(sink) => sink.estimated_len(),
            Output::Jsonl(sink) => sink.estimated_len(),
        }
    }

    pub fn finish(self) -> Result<Vec<u8>> {
        match self.out {
            Output::Parquet(sink) => sink.finish(),
            Output::Jsonl(sink) => sink.finish(),
        }
    }
}

/// A record as an object has it. Raw parts are byte for byte what [`Encoder::push`] got, but for `leader_epoch`
/// (-1: not a column) and `decoded.hops` (empty: read again from the headers).
#[derive(Debug, Clone)]
pub struct ArchivedRecord<'a> {
    pub id: RecordId,
    pub cluster_id: Option<&'a str>,
    /// With [`Projection::NoPayload`] key and value are `None` and there are no headers.
    pub raw: RawRecord<'a>,
    /// Sizes of key and value in bytes, `None` for null; known under every projection.
    pub key_size: Option<i32>,
    pub value_size: Option<i32>,
    pub decoded: Decoded<'a>,
    pub pipeline: &'a str,
    pub archived_at_us: i64,
}

/// Which columns are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Projection {
    #[default]
    All,
    /// Without key, value, headers and stack trace: for lists and summaries.
    NoPayload,
}

/// Reads an object's records in order, until `visit` says [`ControlFlow::Break`]. A file that is damaged or not of
/// this schema is [`Kind::Corrupt`](crate::Kind::Corrupt).
pub fn read(
    format: Format,
    data: Bytes,
    projection: Projection,
    visit: &mut dyn FnMut(ArchivedRecord<'_>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    read_groups(format, data, projection, &|_| true, visit).map(|_| ())
}

/// As [`read`], without the row groups that are not wanted, where the format has any. Returns how many records those have.
pub fn read_groups(
    format: Format,
    data: Bytes,
    projection: Projection,
    wanted: &dyn Fn(&Group<'_>) -> bool,
    visit: &mut dyn FnMut(ArchivedRecord<'_>) -> Result<ControlFlow<()>>,
) -> Result<u64> {
    match format {
        Format::Parquet => parquet_read::read(data, projection, wanted, visit),
        Format::Jsonl(compression) => jsonl_read::read(compression, &data, projection, visit).map(|()| 0),
    }
}

/// The Kafka offsets of an object's records, in order, and nothing else read where the format allows.
pub fn offsets(format: Format, data: Bytes) -> Result<Vec<i64>> {
    match format {
        Format::Parquet => parquet_read::offsets(data),
        Format::Jsonl(compression) => {
            let mut offsets = Vec::new();
            jsonl_read::read(compression, &data, Projection::NoPayload, &mut |r| {
                offsets.push(r.raw.offset);
                Ok(ControlFlow::Continue(()))
            })?;
            Ok(offsets)
        }
    }
}
