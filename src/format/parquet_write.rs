//! Records to Parquet.
//!
//! Owns encodings, compression, row groups and footer metadata. Values are gathered in [`super::columns`], a batch of
//! rows goes into the Parquet writer, which compresses page by page: what is held is mostly compressed already.

use super::columns::{Arena, Column as Gathered, internal};
use super::row;
use super::schema::{self, Column, Type, Values};
use crate::error::Result;
use crate::record::Headers;
use ahash::AHashSet;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, ArrayAccessor, RecordBatch};
use arrow_schema::{DataType, Field, SchemaRef};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use std::hash::Hash;
use std::sync::Arc;

/// A row group ends at whichever comes first: many small ones cost readers more, few large ones prune less.
const GROUP_ROWS: usize = 128 << 10;
const GROUP_BYTES: usize = 64 << 20;
/// Rows and bytes that wait in builders.
const BATCH_ROWS: usize = 4096;
const BATCH_BYTES: usize = 4 << 20;
/// What a header takes while it waits, however short it is: views of its name and value, and its places in the list.
const HEADER_BYTES: usize = 64;
/// Measured on VAST's dead letters: level 3 takes twice the time, and makes values and headers larger, not smaller.
const ZSTD: i32 = 1;
/// Of each column, as all of them wait side by side until theirs are full: with Parquet's usual 1 MiB two objects at a time
/// held 100 MiB.
const PAGE_BYTES: usize = 256 << 10;
const DICTIONARY_BYTES: usize = 512 << 10;
/// Values of a column that are looked at before it is decided how to write it.
const SAMPLE: usize = 64;
/// So few values in a dictionary are as good as compressed, if they are no longer than this, in the mean of a column.
const FEW: usize = 4;
const SHORT: usize = 64;

pub(super) struct Sink {
    schema: SchemaRef,
    leaves: Vec<Leaf>,
    metadata: Vec<KeyValue>,
    /// From the first batch on, which tells how columns are written.
    writer: Option<ArrowWriter<Vec<u8>>>,
    columns: Vec<Gathered>,
    arena: Arena,
    /// The column that comes next.
    column: usize,
    batch_rows: usize,
    batch_bytes: usize,
    group_rows: usize,
    group_bytes: usize,
    /// Bytes that the writer held after the last batch.
    held: usize,
}

impl Sink {
    /// `metadata`: of the footer, names and values.
    pub(super) fn new(columns: &[Column], metadata: &[(&str, &str)]) -> Result<Self> {
        let pair = |(name, value): &(&str, &str)| KeyValue::new((*name).to_owned(), (*value).to_owned());
        Ok(Self {
            schema: schema::arrow_views_of(columns),
            leaves: columns.iter().enumerate().flat_map(|(i, c)| leaves(i, c)).collect(),
            metadata: metadata.iter().map(pair).collect(),
            writer: None,
            columns: columns.iter().map(|c| Gathered::new(c.ty, 0)).collect(),
            arena: Arena::default(),
            column: 0,
            batch_rows: 0,
            batch_bytes: 0,
            group_rows: 0,
            group_bytes: 0,
            held: 0,
        })
    }

    /// How many rows there will be, if it is known, and chunks that most of their bytes are in. Before the first row.
    pub(super) fn foresee(&mut self, columns: &[Column], rows: u64, arena: &[Bytes]) {
        let rows = usize::try_from(rows).unwrap_or(BATCH_ROWS).min(BATCH_ROWS);
        self.columns = columns.iter().map(|c| Gathered::new(c.ty, rows)).collect();
        self.arena = Arena::new(arena);
    }

    fn next(&mut self) -> Option<(&mut Gathered, &mut Arena)> {
        let column = self.columns.get_mut(self.column);
        self.column += 1;
        column.map(|column| (column, &mut self.arena))
    }

    pub(super) fn end_row(&mut self, payload: usize, headers: usize) -> Result<()> {
        self.column = 0;
        self.batch_rows += 1;
        self.batch_bytes += payload.max(headers.saturating_mul(HEADER_BYTES));
        if self.batch_rows < BATCH_ROWS && self.batch_bytes < BATCH_BYTES {
            return Ok(());
        }
        self.write_batch(false)?;
        if self.group_rows >= GROUP_ROWS || self.group_bytes >= GROUP_BYTES {
            (self.group_rows, self.group_bytes) = (0, 0);
            self.make_room();
            self.writer.as_mut().map_or(Ok(()), ArrowWriter::flush).map_err(internal)?;
        }
        Ok(())
    }

    /// `last`: no other comes behind it.
    fn write_batch(&mut self, last: bool) -> Result<()> {
        if self.batch_rows == 0 && self.writer.is_some() {
            return Ok(());
        }
        let buffers = self.arena.take()?;
        let arrays = self.columns.iter_mut().map(|column| column.finish(&buffers)).collect::<Result<Vec<_>>>()?;
        drop(buffers);
        let batch = RecordBatch::try_new(self.schema.clone(), arrays).map_err(internal)?;
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => none.insert(self::writer(&self.leaves, &self.metadata, &batch, last)?),
        };
        if batch.num_rows() > 0 {
            writer.write(&batch).map_err(internal)?;
        }
        self.group_rows += self.batch_rows;
        self.group_bytes += self.batch_bytes;
        (self.batch_rows, self.batch_bytes) = (0, 0);
        self.held = writer.bytes_written() + writer.memory_size();
        Ok(())
    }

    /// What is flushed next is written into memory that it fits into: a buffer that grows is there twice for a while.
    fn make_room(&mut self) {
        if let Some(writer) = &mut self.writer {
            // Headers of pages, and the footer, are some percent of small objects.
            let next = writer.in_progress_size();
            writer.inner_mut().reserve_exact(next + next / 16 + (64 << 10));
        }
    }

    pub(super) fn estimated_len(&self) -> usize {
        self.held + self.batch_bytes
    }

    pub(super) fn finish(mut self) -> Result<Vec<u8>> {
        self.write_batch(true)?;
        self.make_room();
        self.writer.map_or(Ok(Vec::new()), ArrowWriter::into_inner).map_err(internal)
    }
}

/// A Parquet column of one of ours: itself, or a header's field.
struct Leaf {
    column: usize,
    /// Which of a header's fields.
    field: Option<usize>,
    path: ColumnPath,
    values: Values,
}

fn leaves(i: usize, column: &Column) -> Vec<Leaf> {
    if column.ty != Type::Headers {
        return vec![Leaf { column: i, field: None, path: ColumnPath::from(column.name), values: column.values }];
    }
    let path = |f: &str| ColumnPath::new(vec![column.name.into(), "list".into(), "element".into(), f.into()]);
    let fields = schema::header_fields();
    let leaf = |(n, f): (usize, &Arc<Field>)| Leaf {
        column: i,
        field: Some(n),
        path: path(f.name()),
        // The same names in every record; of the values all differ, but for a few headers': zstd finds what repeats, and
        // a dictionary is a detour.
        values: if f.name() == "name" { Values::Repeating } else { Values::Payload },
    };
    fields.iter().enumerate().map(leaf).collect()
}

impl Leaf {
    fn array<'b>(&self, batch: &'b RecordBatch) -> &'b dyn Array {
        let column = batch.column(self.column);
        match self.field {
            None => column,
            Some(field) => column.as_list::<i32>().values().as_struct().column(field),
        }
    }
}

/// What the values of a column are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nature {
    AllNull,
    /// Of an object's few rows: few values, as far as a sample tells, and short ones.
    Few,
    Repeating,
    /// Most of them differ.
    Distinct,
}

impl Nature {
    /// `whole`: these are all values that there will be.
    fn of(array: &dyn Array, whole: bool) -> Self {
        if array.null_count() == array.len() {
            return if whole { Self::AllNull } else { Self::Repeating };
        }
        // A view's lower half begins with its length.
        let short =
            |views: &[u128]| views.iter().map(|view| *view as u32 as usize).sum::<usize>() <= SHORT * views.len();
        match array.data_type() {
            DataType::Utf8View => {
                let array = array.as_string_view();
                Self::of_values(array, whole && short(array.views()))
            }
            DataType::BinaryView => {
                let array = array.as_binary_view();
                Self::of_values(array, whole && short(array.views()))
            }
            DataType::Int32 => Self::of_values(array.as_primitive::<Int32Type>(), whole),
            DataType::Int64 => Self::of_values(array.as_primitive::<Int64Type>(), whole),
            _ => Self::of_values(array.as_primitive::<TimestampMicrosecondType>(), whole),
        }
    }

    /// `few`: it is asked whether these are few; of more that come nothing is known.
    fn of_values<A: ArrayAccessor + Copy>(array: A, few: bool) -> Self
    where
        A::Item: Eq + Hash,
    {
        // From all over: what comes first may all be of one hour.
        let rows = (0..array.len()).step_by(array.len().div_ceil(SAMPLE).max(1));
        let sample: Vec<A::Item> = rows.filter(|i| array.is_valid(*i)).map(|i| array.value(i)).collect();
        let distinct = sample.iter().collect::<AHashSet<_>>().len();
        if 2 * distinct > sample.len().max(2) {
            return Self::Distinct;
        }
        let telling = sample.len() >= SAMPLE / 4 || array.len() <= SAMPLE;
        if few && telling && distinct <= FEW { Self::Few } else { Self::Repeating }
    }
}

/// How columns are written is decided by the first batch: `last` if there is no other. So it is a function of the records.
fn writer(leaves: &[Leaf], metadata: &[KeyValue], batch: &RecordBatch, last: bool) -> Result<ArrowWriter<Vec<u8>>> {
    let mut builder = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD).map_err(internal)?))
        .set_data_page_size_limit(PAGE_BYTES)
        .set_dictionary_page_size_limit(DICTIONARY_BYTES)
        .set_max_row_group_row_count(Some(2 * GROUP_ROWS))
        // Of so few rows each column has a page or two: an index of those says nothing new.
        .set_statistics_enabled(if last { EnabledStatistics::Chunk } else { EnabledStatistics::Page })
        .set_offset_index_disabled(last)
        .set_key_value_metadata(Some(metadata.to_vec()));
    for leaf in leaves {
        let path = || leaf.path.clone();
        let nature = Nature::of(leaf.array(batch), last);
        let dictionary = leaf.values == Values::Repeating && !matches!(nature, Nature::AllNull | Nature::Distinct);
        builder = builder.set_column_dictionary_enabled(path(), dictionary);
        // There is nothing to compress, and a codec for each column takes its time where objects are small. Which list a
        // header is of is something.
        if leaf.field.is_none() && (nature == Nature::AllNull || dictionary && nature == Nature::Few) {
            builder = builder.set_column_compression(path(), Compression::UNCOMPRESSED);
        }
        if leaf.values == Values::LookedUp && nature != Nature::AllNull {
            // Sized for a full row group unless all rows are here, then folded down to what there is.
            let rows = if last { batch.num_rows().max(1) } else { GROUP_ROWS + BATCH_ROWS };
            builder =
                builder.set_column_bloom_filter_fpp(path(), 0.01).set_column_bloom_filter_max_ndv(path(), rows as u64);
        }
        if leaf.values == Values::Payload || leaf.field.is_some() {
            builder = builder.set_column_statistics_enabled(path(), EnabledStatistics::None);
        }
    }
    let options = ArrowWriterOptions::new().with_properties(builder.build()).with_skip_arrow_metadata(true);
    ArrowWriter::try_new_with_options(Vec::new(), batch.schema(), options).map_err(internal)
}

// A value for a column of another type is a bug that `tests/schemas.rs` finds: the batch then has columns of
// unequal length and is refused as a whole.
impl row::Columns for Sink {
    fn text(&mut self, value: Option<&str>) {
        if let Some((Gathered::Text(views), arena)) = self.next() {
            views.put(arena, value.map(str::as_bytes));
        }
    }
    fn bytes(&mut self, value: Option<&[u8]>) {
        if let Some((Gathered::Bytes(views), arena)) = self.next() {
            views.put(arena, value);
        }
    }
    fn int32(&mut self, value: Option<i32>) {
        if let Some((Gathered::Int32(numbers), _)) = self.next() {
            numbers.put(value);
        }
    }
    fn int64(&mut self, value: Option<i64>) {
        if let Some((Gathered::Int64(numbers), _)) = self.next() {
            numbers.put(value);
        }
    }
    fn timestamp(&mut self, value: Option<i64>) {
        if let Some((Gathered::Timestamp(numbers), _)) = self.next() {
            numbers.put(value);
        }
    }
    fn headers(&mut self, headers: Headers<'_>) {
        if let Some((Gathered::Headers(lists), arena)) = self.next() {
            lists.put(arena, headers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::FileContext;
    use crate::record::{Decoded, Header, RawBatch, TimestampType};
    use arrow_array::StringViewArray;

    fn nature(values: impl Iterator<Item = Option<String>>, whole: bool) -> Nature {
        Nature::of(&values.collect::<StringViewArray>(), whole)
    }

    /// A hundred thousand empty headers a record: by their bytes alone some hundred million waited for a batch to be full.
    #[test]
    fn headers_count_however_short_they_are() {
        let context = FileContext {
            cluster_id: None,
            topic: "t",
            partition: 0,
            generation: 1,
            archived_at_us: 0,
            intent_key: "i",
            program_version: "0",
        };
        let (mut sink, mut row) = (Sink::new(&schema::COLUMNS, &[]).unwrap(), row::Writer::new(&context));
        let mut batch = RawBatch::new();
        let headers = (0..100_000).map(|_| Header { name: b"", value: None });
        batch.push(0, 0, TimestampType::CreateTime, 0, None, None, headers);
        for _ in 0..3 {
            row.write(&batch.get(0), &Decoded::default(), "p", &mut sink);
            sink.end_row(0, 100_000).unwrap();
            assert_eq!(sink.batch_rows, 0);
        }
    }

    /// Taken for few by a sample, long texts that are rare would be in the object as they are.
    #[test]
    fn only_short_values_that_are_few_all_over_go_without_a_codec() {
        let of = |n: usize, value: fn(usize) -> String| (0..n).map(move |i| Some(value(i)));
        assert_eq!(nature(of(1000, |i| format!("status {}", i % 3)), true), Nature::Few);
        assert_eq!(nature(of(1000, |i| format!("status {}", i % 3)), false), Nature::Repeating, "more come");
        assert_eq!(nature(of(1, |_| "one".into()), true), Nature::Few, "all of a small object is looked at");
        let rare = |i: usize| if i % 20 == 7 { format!("{i}{}", "x".repeat(2000)) } else { "timeout".into() };
        assert_eq!(nature(of(4000, rare), true), Nature::Repeating);
        // Of one hour first, and then of many.
        let later = |i: usize| if i < 500 { "a".into() } else { format!("b{}", i % 9) };
        assert_eq!(nature(of(1000, later), true), Nature::Repeating);
        assert_eq!(nature(of(1000, |i| i.to_string()), true), Nature::Distinct);
        assert_eq!(nature((0..9).map(|_| None), true), Nature::AllNull);
        assert_eq!(nature((0..9).map(|_| None), false), Nature::Repeating);
        let sparse = (0..1000).map(|i| (i % 500 == 0).then(|| "rare".to_owned()));
        assert_eq!(nature(sparse, true), Nature::Repeating, "too few to tell");
    }
}
