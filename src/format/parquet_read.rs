//! Records from Parquet.
//!
//! Owns the check that a file has this schema, projection, and the way from Arrow arrays back to records. Columns
//! that a later schema version added are passed over. Invariant: a damaged or foreign file is an error of kind
//! corrupt, never a panic.

use super::row::{self, Cells};
use super::schema::{self, COLUMNS, Column, Type};
use super::{ArchivedRecord, Projection};
use crate::error::{Error, Result};
use crate::record::{Header, Headers, RawBatch, TimestampType};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, BinaryArray, Int32Array, Int64Array, ListArray, RecordBatch, StringArray};
use arrow_array::{PrimitiveArray, TimestampMicrosecondArray};
use arrow_schema::Schema;
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::statistics::Statistics;
use std::borrow::Cow;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Uncompressed bytes that are decoded at once, about.
const BATCH_BYTES: i64 = 8 << 20;
const BATCH_ROWS: i64 = 1024;
/// What a value takes at least.
const VALUE_BYTES: i64 = 32;

/// Returns the rows of groups that were not wanted.
pub(super) fn read(
    data: Bytes,
    projection: Projection,
    wanted: &dyn Fn(&Group<'_>) -> bool,
    visit: &mut dyn FnMut(ArchivedRecord<'_>) -> Result<ControlFlow<()>>,
) -> Result<u64> {
    let payload = projection == Projection::All;
    // What other columns say exactly is not read.
    let asked = |c: &Column| (payload || !c.is_payload()) && !row::SAID_BY_OTHERS.contains(&c.name);
    let (mut reader, skipped) = open(&COLUMNS, schema::META_SCHEMA_VERSION, data, asked, Some(wanted))?;
    rows_of(&mut reader, &COLUMNS, payload, &mut |cells, headers| {
        row::read(cells, payload)?.with(headers, &mut *visit)
    })?;
    Ok(skipped)
}

/// Hands over each row's cells, in the order of the columns, and its headers. `version`: the name of their version in the
/// footer.
pub(super) fn rows(
    ours: &[Column],
    version: &str,
    data: Bytes,
    payload: bool,
    visit: &mut dyn FnMut(&mut Batch<'_>, Headers<'_>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let (mut reader, _) = open(ours, version, data, |c| payload || !c.is_payload(), None)?;
    rows_of(&mut reader, ours, payload, visit)
}

fn rows_of(
    reader: &mut ParquetRecordBatchReader,
    ours: &[Column],
    payload: bool,
    visit: &mut dyn FnMut(&mut Batch<'_>, Headers<'_>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    while let Some(batch) = next(reader)? {
        let headers = if payload { headers(&batch)? } else { RawBatch::new() };
        let none = no_headers();
        let mut row = Batch { columns: columns(ours, &batch)?, column: 0, row: 0 };
        for i in 0..batch.num_rows() {
            (row.row, row.column) = (i, 0);
            let headers = if payload { headers.get(i).headers } else { none.get(0).headers };
            if visit(&mut row, headers)?.is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

pub(super) fn offsets(data: Bytes) -> Result<Vec<i64>> {
    let (mut reader, _) = open(&COLUMNS, schema::META_SCHEMA_VERSION, data, |c| c.name == "kafka_offset", None)?;
    let mut offsets = Vec::new();
    while let Some(batch) = next(&mut reader)? {
        offsets.extend_from_slice(batch.column(0).as_primitive::<Int64Type>().values());
    }
    Ok(offsets)
}

fn corrupt(what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("not a readable Parquet object of this archive: {what}"))
}

/// The Parquet library is meant to answer with errors, but its decoders can panic on damaged bytes.
fn guarded<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| Err(corrupt("its pages are damaged")))
}

fn next(reader: &mut ParquetRecordBatchReader) -> Result<Option<RecordBatch>> {
    guarded(|| reader.next().transpose().map_err(corrupt))
}

fn open(
    ours: &[Column],
    version: &str,
    data: Bytes,
    wanted: impl Fn(&Column) -> bool,
    groups: Option<&dyn Fn(&Group<'_>) -> bool>,
) -> Result<(ParquetRecordBatchReader, u64)> {
    guarded(|| {
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(data, options).map_err(corrupt)?;
        let file = builder.metadata().file_metadata();
        let version = file
            .key_value_metadata()
            .and_then(|pairs| pairs.iter().find(|p| p.key == version))
            .and_then(|p| p.value.as_deref()?.parse::<u32>().ok());
        if version.is_none_or(|v| v == 0) {
            return Err(corrupt("its footer has no schema version"));
        }
        check(ours, builder.schema())?;
        let roots: Vec<usize> = (0..ours.len()).filter(|i| wanted(&ours[*i])).collect();
        let mask = ProjectionMask::roots(builder.parquet_schema(), roots);
        let (builder, skipped) = match groups {
            Some(wanted) => pruned(builder, wanted)?,
            None => (builder, 0),
        };
        let groups = builder.metadata().row_groups();
        let sum = |of: fn(&RowGroupMetaData) -> i64| groups.iter().map(of).fold(0, i64::saturating_add);
        let rows = sum(RowGroupMetaData::num_rows).max(1);
        // Many headers take next to nothing in a file, and much in memory.
        let values = sum(|g| g.columns().iter().map(ColumnChunkMetaData::num_values).max().unwrap_or(0));
        let bytes = sum(RowGroupMetaData::total_byte_size).max(values.saturating_mul(VALUE_BYTES));
        let batch = (BATCH_BYTES / (bytes / rows).max(1)).clamp(1, BATCH_ROWS) as usize;
        let reader = builder.with_projection(mask).with_batch_size(batch).build().map_err(corrupt)?;
        Ok((reader, skipped))
    })
}

/// Leaves out the row groups that are not wanted, and counts their rows.
fn pruned(builder: Builder, wanted: &dyn Fn(&Group<'_>) -> bool) -> Result<(Builder, u64)> {
    let (mut kept, mut skipped) = (Vec::new(), 0);
    for (i, group) in builder.metadata().row_groups().iter().enumerate() {
        let place = |name: &str| group.columns().iter().position(|c| c.column_path().string() == name);
        let range = |name: &str| match group.column(place(name)?).statistics()? {
            Statistics::Int64(s) => s.min_opt().copied().zip(s.max_opt().copied()),
            _ => None,
        };
        let facts = Group {
            offsets: range("kafka_offset"),
            timestamps_ms: range("kafka_timestamp_ms"),
            event_ids: place("event_id").map(|column| (&builder, i, column)),
        };
        match wanted(&facts) {
            true => kept.push(i),
            false => skipped += u64::try_from(group.num_rows()).unwrap_or(0),
        }
    }
    Ok((builder.with_row_groups(kept), skipped))
}

type Builder = ParquetRecordBatchReaderBuilder<Bytes>;

/// What a file tells of one row group, as far as it does.
pub struct Group<'b> {
    /// The least and the greatest.
    pub offsets: Option<(i64, i64)>,
    pub timestamps_ms: Option<(i64, i64)>,
    /// Where their bloom filter is; it is read only where it is asked.
    event_ids: Option<(&'b Builder, usize, usize)>,
}

impl Group<'_> {
    pub fn may_have_event(&self, id: &str) -> bool {
        let filter = self.event_ids.map(|(file, group, column)| file.get_row_group_column_bloom_filter(group, column));
        // What cannot be read rules nothing out.
        filter.and_then(|read| read.ok().flatten()).is_none_or(|ids| ids.check(id))
    }
}

/// The file begins with this version's columns, in order.
fn check(ours: &[Column], file: &Schema) -> Result<()> {
    let ours = schema::arrow_schema_of(ours);
    for (i, want) in ours.fields().iter().enumerate() {
        match file.fields().get(i) {
            Some(has) if has.name() == want.name() && has.data_type() == want.data_type() => {}
            Some(has) => {
                let (has, ty) = (has.name(), has.data_type());
                return Err(corrupt(format!(
                    "column {i} is {has} of {ty}, not {} of {}",
                    want.name(),
                    want.data_type()
                )));
            }
            None => return Err(corrupt(format!("it has no column {}", want.name()))),
        }
    }
    Ok(())
}

/// One batch's arrays by their place in the table of columns.
pub(super) struct Batch<'a> {
    columns: Vec<Values<'a>>,
    column: usize,
    row: usize,
}

#[derive(Clone, Copy)]
enum Values<'a> {
    NotRead,
    Text(&'a StringArray),
    Bytes(&'a BinaryArray),
    Int32(&'a Int32Array),
    Int64(&'a Int64Array),
    Timestamp(&'a TimestampMicrosecondArray),
}

fn columns<'b>(ours: &[Column], batch: &'b RecordBatch) -> Result<Vec<Values<'b>>> {
    let missing = |c: &Column| corrupt(format!("column {} has another type than its footer says", c.name));
    ours.iter()
        .map(|c| {
            let Some(array) = batch.column_by_name(c.name) else { return Ok(Values::NotRead) };
            match c.ty {
                Type::Text => array.as_string_opt().map(Values::Text),
                Type::Bytes => array.as_binary_opt().map(Values::Bytes),
                Type::Int32 => array.as_primitive_opt::<Int32Type>().map(Values::Int32),
                Type::Int64 => array.as_primitive_opt::<Int64Type>().map(Values::Int64),
                Type::Timestamp => array.as_primitive_opt::<TimestampMicrosecondType>().map(Values::Timestamp),
                Type::Headers => Some(Values::NotRead),
            }
            .ok_or_else(|| missing(c))
        })
        .collect()
}

impl<'a> Batch<'a> {
    fn next(&mut self) -> Values<'a> {
        let values = self.columns.get(self.column).copied().unwrap_or(Values::NotRead);
        self.column += 1;
        values
    }
    fn wrong<T>(&self) -> Result<Option<T>> {
        Err(Error::internal(format!("column {} is read as another type", self.column - 1)))
    }
}

fn primitive<T: arrow_array::ArrowPrimitiveType>(array: &PrimitiveArray<T>, row: usize) -> Option<T::Native> {
    array.is_valid(row).then(|| array.value(row))
}

impl<'a> Cells<'a> for Batch<'a> {
    fn text(&mut self) -> Result<Option<Cow<'a, str>>> {
        match self.next() {
            Values::Text(a) => Ok(a.is_valid(self.row).then(|| Cow::Borrowed(a.value(self.row)))),
            Values::NotRead => Ok(None),
            _ => self.wrong(),
        }
    }
    fn bytes(&mut self) -> Result<Option<Cow<'a, [u8]>>> {
        match self.next() {
            Values::Bytes(a) => Ok(a.is_valid(self.row).then(|| Cow::Borrowed(a.value(self.row)))),
            Values::NotRead => Ok(None),
            _ => self.wrong(),
        }
    }
    fn int32(&mut self) -> Result<Option<i32>> {
        match self.next() {
            Values::Int32(a) => Ok(primitive(a, self.row)),
            Values::NotRead => Ok(None),
            _ => self.wrong(),
        }
    }
    fn int64(&mut self) -> Result<Option<i64>> {
        match self.next() {
            Values::Int64(a) => Ok(primitive(a, self.row)),
            Values::NotRead => Ok(None),
            _ => self.wrong(),
        }
    }
    fn timestamp(&mut self) -> Result<Option<i64>> {
        match self.next() {
            Values::Timestamp(a) => Ok(primitive(a, self.row)),
            Values::NotRead => Ok(None),
            _ => self.wrong(),
        }
    }
    fn skip(&mut self) {
        self.column += 1;
    }
}

/// One record without headers.
fn no_headers() -> RawBatch {
    let mut none = RawBatch::new();
    none.push(0, 0, TimestampType::CreateTime, -1, None, None, std::iter::empty());
    none
}

/// The headers of all rows, in an arena of records that have nothing else.
fn headers(batch: &RecordBatch) -> Result<RawBatch> {
    let missing = || corrupt("column kafka_headers has another type than its footer says");
    let list: &ListArray = batch.column_by_name("kafka_headers").and_then(|a| a.as_list_opt()).ok_or_else(missing)?;
    let fields = list.values().as_struct_opt().ok_or_else(missing)?;
    let (Some(name), Some(name_bytes), Some(value_text), Some(value_bytes)) = (
        fields.column_by_name("name").and_then(|a| a.as_string_opt::<i32>()),
        fields.column_by_name("name_bytes").and_then(|a| a.as_binary_opt::<i32>()),
        fields.column_by_name("value_text").and_then(|a| a.as_string_opt::<i32>()),
        fields.column_by_name("value_bytes").and_then(|a| a.as_binary_opt::<i32>()),
    ) else {
        return Err(missing());
    };
    let header = |i: usize| Header {
        name: if name_bytes.is_valid(i) { name_bytes.value(i) } else { name.value(i).as_bytes() },
        value: match (value_text.is_valid(i), value_bytes.is_valid(i)) {
            (true, _) => Some(value_text.value(i).as_bytes()),
            (false, true) => Some(value_bytes.value(i)),
            (false, false) => None,
        },
    };
    let mut out = RawBatch::new();
    for range in list.value_offsets().windows(2) {
        let range = range[0] as usize..range[1] as usize;
        out.push(0, 0, TimestampType::CreateTime, -1, None, None, range.map(header));
    }
    Ok(out)
}
