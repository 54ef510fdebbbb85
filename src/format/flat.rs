//! Flat lists in Parquet, beside the data: what the kinds of them share.
//!
//! Owns how they are compressed and versioned, and the way back to columns of the types that a list has. Which columns
//! those are is each list's own. Invariant: a damaged or foreign file is an error of kind corrupt, never a panic.

use crate::error::{Error, Result};
use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, ArrayRef, BooleanArray, PrimitiveArray, RecordBatch, StringArray};
use arrow_schema::Schema;
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Rows that are encoded and decoded at once.
pub(super) const ROWS: usize = 8192;

/// One kind of list.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    /// As in "a list of restored records".
    pub what: &'static str,
    /// Key of its version in the footer, and the version.
    pub version: (&'static str, &'static str),
}

impl Kind {
    fn internal(self, error: impl std::fmt::Display) -> Error {
        Error::internal(format!("{} could not be encoded: {error}", self.what))
    }

    fn corrupt(self, what: impl std::fmt::Display) -> Error {
        Error::corrupt(format!("not readable as {}: {what}", self.what))
    }

    /// The bytes of a list; `batches` has its columns, in the order of the schema.
    pub fn encode(self, schema: &Arc<Schema>, batches: impl Iterator<Item = Vec<ArrayRef>>) -> Result<Vec<u8>> {
        let zstd = Compression::ZSTD(ZstdLevel::try_new(3).map_err(|e| self.internal(e))?);
        let (name, version) = self.version;
        let properties = WriterProperties::builder()
            .set_compression(zstd)
            .set_key_value_metadata(Some(vec![KeyValue::new(name.to_owned(), version.to_owned())]))
            .build();
        let mut writer =
            ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties)).map_err(|e| self.internal(e))?;
        for columns in batches {
            let batch = RecordBatch::try_new(schema.clone(), columns).map_err(|e| self.internal(e))?;
            writer.write(&batch).map_err(|e| self.internal(e))?;
        }
        writer.into_inner().map_err(|e| self.internal(e))
    }

    /// Hands over all batches, in order.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] for a file that is damaged, or no Parquet.
    pub fn read(self, data: Bytes, mut each: impl FnMut(&Columns<'_>) -> Result<()>) -> Result<()> {
        // The Parquet library's decoders can panic on damaged bytes.
        let read = catch_unwind(AssertUnwindSafe(|| {
            let builder = ParquetRecordBatchReaderBuilder::try_new(data).map_err(|e| self.corrupt(e))?;
            for batch in builder.with_batch_size(ROWS).build().map_err(|e| self.corrupt(e))? {
                let batch = batch.map_err(|e| self.corrupt(e))?;
                each(&Columns { kind: self, batch: &batch })?;
            }
            Ok(())
        }));
        read.unwrap_or_else(|_| Err(self.corrupt("its pages are damaged")))
    }
}

/// Columns by name. What has nulls where there are to be none is corrupt.
pub(super) struct Columns<'b> {
    kind: Kind,
    batch: &'b RecordBatch,
}

impl<'b> Columns<'b> {
    pub fn rows(&self) -> usize {
        self.batch.num_rows()
    }

    fn column(&self, name: &str) -> Result<&'b ArrayRef> {
        self.batch.column_by_name(name).ok_or_else(|| self.kind.corrupt(format!("it has no column {name}")))
    }

    /// A value that is none of this column.
    pub fn wrong(&self, name: &str) -> Error {
        self.kind.corrupt(format!("column {name} has another type, or nulls, or a value that is none of it"))
    }

    fn whole<A: Array>(&self, name: &str, array: Option<&'b A>) -> Result<&'b A> {
        array.filter(|a| a.null_count() == 0).ok_or_else(|| self.wrong(name))
    }

    pub fn text(&self, name: &str) -> Result<&'b StringArray> {
        self.whole(name, self.column(name)?.as_string_opt::<i32>())
    }

    /// Of each row, if it is not null.
    pub fn optional_text(&self, name: &str) -> Result<impl Fn(usize) -> Option<String> + use<'b>> {
        let texts = self.column(name)?.as_string_opt::<i32>().ok_or_else(|| self.wrong(name))?;
        Ok(|row| texts.is_valid(row).then(|| texts.value(row).to_owned()))
    }

    fn numbers<T: ArrowPrimitiveType>(&self, name: &str) -> Result<&'b PrimitiveArray<T>> {
        self.whole(name, self.column(name)?.as_primitive_opt::<T>())
    }

    pub fn int32(&self, name: &str) -> Result<&'b PrimitiveArray<Int32Type>> {
        self.numbers(name)
    }

    pub fn int64(&self, name: &str) -> Result<&'b PrimitiveArray<Int64Type>> {
        self.numbers(name)
    }

    /// Microseconds since 1970.
    pub fn timestamps(&self, name: &str) -> Result<&'b PrimitiveArray<TimestampMicrosecondType>> {
        self.numbers(name)
    }

    pub fn booleans(&self, name: &str) -> Result<&'b BooleanArray> {
        self.whole(name, self.column(name)?.as_boolean_opt())
    }
}
