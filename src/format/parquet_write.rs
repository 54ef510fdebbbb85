//! Records to Parquet.
//!
//! Owns encodings, compression, row groups and footer metadata. Rows go straight into Arrow builders, a batch of
//! them into the Parquet writer, which compresses page by page: what is held is mostly compressed already.

use super::row::{self, header_name, split};
use super::schema::{self, Column, Type, Values};
use crate::error::{Error, Result};
use crate::record::Headers;
use arrow_array::builder::{BinaryBuilder, Int32Builder, Int64Builder, StringBuilder, TimestampMicrosecondBuilder};
use arrow_array::{ArrayRef, ListArray, RecordBatch, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use std::sync::Arc;

/// A row group ends at whichever comes first: many small ones cost readers more, few large ones prune less.
const GROUP_ROWS: usize = 128 << 10;
const GROUP_BYTES: usize = 64 << 20;
/// Rows and bytes that wait in builders.
const BATCH_ROWS: usize = 4096;
const BATCH_BYTES: usize = 4 << 20;
/// Measured: level 3 takes a tenth off stack traces and JSON values (at three quarters of level 1's speed), nothing
/// off short columns.
const PAYLOAD_ZSTD: i32 = 3;
const OTHER_ZSTD: i32 = 1;

pub(super) struct Sink {
    schema: SchemaRef,
    writer: ArrowWriter<Vec<u8>>,
    builders: Vec<Builder>,
    /// The column that comes next.
    column: usize,
    batch_rows: usize,
    batch_bytes: usize,
    group_rows: usize,
    group_bytes: usize,
    /// Bytes that the writer held after the last batch.
    held: usize,
}

enum Builder {
    Text(StringBuilder),
    Bytes(BinaryBuilder),
    Int32(Int32Builder),
    Int64(Int64Builder),
    Timestamp(TimestampMicrosecondBuilder),
    Headers(Box<HeadersBuilder>),
}

struct HeadersBuilder {
    offsets: Vec<i32>,
    name: StringBuilder,
    name_bytes: BinaryBuilder,
    value_text: StringBuilder,
    value_bytes: BinaryBuilder,
}

impl Sink {
    /// `metadata`: of the footer, names and values.
    pub(super) fn new(columns: &[Column], metadata: &[(&str, &str)]) -> Result<Self> {
        let properties = properties(columns, metadata)?;
        let options = ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
        let schema = schema::arrow_schema_of(columns);
        let writer = ArrowWriter::try_new_with_options(Vec::new(), schema.clone(), options).map_err(internal)?;
        Ok(Self {
            schema,
            writer,
            builders: columns.iter().map(|c| Builder::new(c.ty)).collect(),
            column: 0,
            batch_rows: 0,
            batch_bytes: 0,
            group_rows: 0,
            group_bytes: 0,
            held: 0,
        })
    }

    fn next(&mut self) -> Option<&mut Builder> {
        let builder = self.builders.get_mut(self.column);
        self.column += 1;
        builder
    }

    pub(super) fn end_row(&mut self, payload: usize) -> Result<()> {
        self.column = 0;
        self.batch_rows += 1;
        self.batch_bytes += payload;
        if self.batch_rows < BATCH_ROWS && self.batch_bytes < BATCH_BYTES {
            return Ok(());
        }
        self.write_batch()?;
        if self.group_rows >= GROUP_ROWS || self.group_bytes >= GROUP_BYTES {
            (self.group_rows, self.group_bytes) = (0, 0);
            self.writer.flush().map_err(internal)?;
        }
        Ok(())
    }

    fn write_batch(&mut self) -> Result<()> {
        if self.batch_rows == 0 {
            return Ok(());
        }
        let arrays = self.builders.iter_mut().map(Builder::finish).collect::<Result<Vec<_>>>()?;
        let batch = RecordBatch::try_new(self.schema.clone(), arrays).map_err(internal)?;
        self.writer.write(&batch).map_err(internal)?;
        self.group_rows += self.batch_rows;
        self.group_bytes += self.batch_bytes;
        (self.batch_rows, self.batch_bytes) = (0, 0);
        self.held = self.writer.bytes_written() + self.writer.memory_size();
        Ok(())
    }

    pub(super) fn estimated_len(&self) -> usize {
        self.held + self.batch_bytes
    }

    pub(super) fn finish(mut self) -> Result<Vec<u8>> {
        self.write_batch()?;
        self.writer.into_inner().map_err(internal)
    }
}

fn internal(error: impl std::fmt::Display) -> Error {
    Error::internal(format!("Parquet could not be encoded: {error}"))
}

fn properties(columns: &[Column], metadata: &[(&str, &str)]) -> Result<WriterProperties> {
    let zstd = |level| ZstdLevel::try_new(level).map(Compression::ZSTD).map_err(internal);
    let payload_zstd = zstd(PAYLOAD_ZSTD)?;
    let pair = |(name, value): &(&str, &str)| KeyValue::new((*name).to_owned(), (*value).to_owned());
    let mut builder = WriterProperties::builder()
        .set_compression(zstd(OTHER_ZSTD)?)
        .set_max_row_group_row_count(Some(2 * GROUP_ROWS))
        .set_key_value_metadata(Some(metadata.iter().map(pair).collect()));
    for (path, values) in columns.iter().flat_map(leaves) {
        builder = builder.set_column_dictionary_enabled(path.clone(), values == Values::Repeating);
        if values == Values::LookedUp {
            // Sized for a full row group, then folded down to the rows that there are.
            builder = builder
                .set_column_bloom_filter_fpp(path.clone(), 0.01)
                .set_column_bloom_filter_max_ndv(path.clone(), (GROUP_ROWS + BATCH_ROWS) as u64);
        }
        if values == Values::Payload || path.parts().len() > 1 {
            builder = builder
                .set_column_compression(path.clone(), payload_zstd)
                .set_column_statistics_enabled(path, EnabledStatistics::None);
        }
    }
    Ok(builder.build())
}

/// The Parquet columns of one of ours: itself, or a header's fields.
fn leaves(column: &Column) -> Vec<(ColumnPath, Values)> {
    if column.ty != Type::Headers {
        return vec![(ColumnPath::from(column.name), column.values)];
    }
    // The same names in every record; many values too, and what does not repeat soon ends the dictionary.
    let fields = schema::header_fields();
    let path = |f: &str| ColumnPath::new(vec![column.name.into(), "list".into(), "element".into(), f.into()]);
    fields.iter().map(|f| (path(f.name()), Values::Repeating)).collect()
}

impl Builder {
    fn new(ty: Type) -> Self {
        match ty {
            Type::Text => Self::Text(StringBuilder::new()),
            Type::Bytes => Self::Bytes(BinaryBuilder::new()),
            Type::Int32 => Self::Int32(Int32Builder::new()),
            Type::Int64 => Self::Int64(Int64Builder::new()),
            Type::Timestamp => Self::Timestamp(TimestampMicrosecondBuilder::new().with_timezone("UTC")),
            Type::Headers => Self::Headers(Box::new(HeadersBuilder {
                offsets: vec![0],
                name: StringBuilder::new(),
                name_bytes: BinaryBuilder::new(),
                value_text: StringBuilder::new(),
                value_bytes: BinaryBuilder::new(),
            })),
        }
    }

    fn finish(&mut self) -> Result<ArrayRef> {
        Ok(match self {
            Self::Text(b) => Arc::new(b.finish()),
            Self::Bytes(b) => Arc::new(b.finish()),
            Self::Int32(b) => Arc::new(b.finish()),
            Self::Int64(b) => Arc::new(b.finish()),
            Self::Timestamp(b) => Arc::new(b.finish()),
            Self::Headers(b) => b.finish()?,
        })
    }
}

impl HeadersBuilder {
    fn push(&mut self, headers: Headers<'_>) {
        for h in headers.iter() {
            let (name, name_bytes) = header_name(h.name);
            let (value_text, value_bytes) = split(h.value);
            self.name.append_value(name);
            self.name_bytes.append_option(name_bytes);
            self.value_text.append_option(value_text);
            self.value_bytes.append_option(value_bytes);
        }
        self.offsets.push(self.name_len());
    }

    fn name_len(&self) -> i32 {
        i32::try_from(arrow_array::builder::ArrayBuilder::len(&self.name)).unwrap_or(i32::MAX)
    }

    fn finish(&mut self) -> Result<ArrayRef> {
        let offsets = OffsetBuffer::new(std::mem::replace(&mut self.offsets, vec![0]).into());
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.name.finish()),
            Arc::new(self.name_bytes.finish()),
            Arc::new(self.value_text.finish()),
            Arc::new(self.value_bytes.finish()),
        ];
        let structs = StructArray::try_new(schema::header_fields(), columns, None).map_err(internal)?;
        let list = ListArray::try_new(schema::header_element(), offsets, Arc::new(structs), None).map_err(internal)?;
        Ok(Arc::new(list))
    }
}

// A value for a column of another type is a bug that `tests/schemas.rs` finds: the batch then has columns of
// unequal length and is refused as a whole.
impl row::Columns for Sink {
    fn text(&mut self, value: Option<&str>) {
        if let Some(Builder::Text(b)) = self.next() {
            b.append_option(value);
        }
    }
    fn bytes(&mut self, value: Option<&[u8]>) {
        if let Some(Builder::Bytes(b)) = self.next() {
            b.append_option(value);
        }
    }
    fn int32(&mut self, value: Option<i32>) {
        if let Some(Builder::Int32(b)) = self.next() {
            b.append_option(value);
        }
    }
    fn int64(&mut self, value: Option<i64>) {
        if let Some(Builder::Int64(b)) = self.next() {
            b.append_option(value);
        }
    }
    fn timestamp(&mut self, value: Option<i64>) {
        if let Some(Builder::Timestamp(b)) = self.next() {
            b.append_option(value);
        }
    }
    fn headers(&mut self, headers: Headers<'_>) {
        if let Some(Builder::Headers(b)) = self.next() {
            b.push(headers);
        }
    }
}
