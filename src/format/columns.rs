//! Values on their way into Arrow arrays, column by column.
//!
//! Text and bytes become view arrays: those of a record stay where they are, in the batch's arena, and a view points to
//! them; the rest is copied into one buffer beside it. Parquet's pages are then the first copy of a value. Pure.

use super::row::{header_name, split};
use super::schema::{self, Type};
use crate::error::{Error, Result};
use crate::record::{Headers, Names, OwnedNames};
use arrow_array::builder::make_view;
use arrow_array::types::{
    BinaryViewType, ByteViewType, Int32Type, Int64Type, StringViewType, TimestampMicrosecondType,
};
use arrow_array::{ArrayRef, ArrowPrimitiveType, GenericByteViewArray, ListArray, PrimitiveArray, StructArray};
use arrow_buffer::{Buffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use bytes::Bytes;
use std::sync::Arc;

/// A view holds so many bytes itself.
const INLINE: usize = 12;

/// Where the bytes of views are: the chunks of an arena, and what was copied.
#[derive(Default)]
pub(super) struct Arena {
    buffers: Vec<Buffer>,
    /// Addresses of each chunk, ascending, and its number.
    chunks: Vec<(std::ops::Range<usize>, u32)>,
    /// The one that was found last: records come in the order of the arena.
    last: usize,
    copied: Vec<u8>,
    /// More was copied than a view's 32 bits can tell.
    overflown: bool,
}

impl Arena {
    pub fn new(chunks: &[Bytes]) -> Self {
        let range = |chunk: &Bytes| chunk.as_ptr() as usize..chunk.as_ptr() as usize + chunk.len();
        let mut ranges: Vec<_> = chunks.iter().map(range).zip(0..).collect();
        ranges.sort_unstable_by_key(|(range, _)| range.start);
        let buffers = chunks.iter().cloned().map(Buffer::from).collect();
        Self { buffers, chunks: ranges, last: 0, ..Self::default() }
    }

    fn view(&mut self, bytes: &[u8]) -> u128 {
        if bytes.len() <= INLINE {
            return make_view(bytes, 0, 0);
        }
        let (start, end) = (bytes.as_ptr() as usize, bytes.as_ptr() as usize + bytes.len());
        let holds = |(range, _): &(std::ops::Range<usize>, u32)| range.start <= start && end <= range.end;
        if !self.chunks.get(self.last).is_some_and(holds) {
            self.last = self.chunks.partition_point(|(range, _)| range.start <= start).saturating_sub(1);
        }
        match self.chunks.get(self.last).filter(|chunk| holds(chunk)) {
            // Kafka's records are below 2 GiB, and so are chunks.
            Some((range, number)) => make_view(bytes, *number, (start - range.start) as u32),
            None => {
                let offset = self.copied.len() as u32;
                self.overflown |= self.copied.len() + bytes.len() > u32::MAX as usize;
                self.copied.extend_from_slice(bytes);
                make_view(bytes, self.buffers.len() as u32, offset)
            }
        }
    }

    /// The buffers of all views so far; the next ones copy into a new one.
    ///
    /// # Errors
    /// If a record is so large that its columns do not fit into 4 GiB.
    pub fn take(&mut self) -> Result<Arc<[Buffer]>> {
        if self.overflown {
            return Err(internal("a record's columns take more than 4 GiB"));
        }
        let next = Vec::with_capacity(self.copied.len());
        let copied = Buffer::from_vec(std::mem::replace(&mut self.copied, next));
        Ok(self.buffers.iter().cloned().chain([copied]).collect())
    }
}

/// One column's values.
pub(super) enum Column {
    Text(Views),
    Bytes(Views),
    Int32(Numbers<Int32Type>),
    Int64(Numbers<Int64Type>),
    Timestamp(Numbers<TimestampMicrosecondType>),
    Headers(Box<HeaderLists>),
}

pub(super) struct Views {
    views: Vec<u128>,
    nulls: NullBufferBuilder,
    capacity: usize,
}

impl Views {
    fn new(capacity: usize) -> Self {
        Self { views: Vec::with_capacity(capacity), nulls: NullBufferBuilder::new(capacity), capacity }
    }

    pub fn put(&mut self, arena: &mut Arena, value: Option<&[u8]>) {
        match value {
            Some(bytes) => {
                self.views.push(arena.view(bytes));
                self.nulls.append_non_null();
            }
            None => {
                self.views.push(0);
                self.nulls.append_null();
            }
        }
    }

    fn put_nulls(&mut self, n: usize) {
        self.views.resize(self.views.len() + n, 0);
        self.nulls.append_n_nulls(n);
    }

    /// Puts values once more that are in there already.
    fn repeat(&mut self, range: std::ops::Range<usize>) {
        for i in range {
            let view = self.views[i];
            let is_valid = self.nulls.is_valid(i);
            self.views.push(view);
            self.nulls.append(is_valid);
        }
    }

    /// # Safety
    /// Each view was made by the arena whose buffers these are; and of a `str`, if the array is one of text.
    unsafe fn finish<T: ByteViewType + ?Sized>(&mut self, buffers: &Arc<[Buffer]>) -> ArrayRef {
        let views = std::mem::replace(&mut self.views, Vec::with_capacity(self.capacity));
        let nulls = self.nulls.finish();
        // SAFETY: the caller's.
        Arc::new(unsafe { GenericByteViewArray::<T>::new_unchecked(ScalarBuffer::from(views), buffers.clone(), nulls) })
    }
}

pub(super) struct Numbers<T: ArrowPrimitiveType> {
    values: Vec<T::Native>,
    nulls: NullBufferBuilder,
    capacity: usize,
}

impl<T: ArrowPrimitiveType> Numbers<T> {
    fn new(capacity: usize) -> Self {
        Self { values: Vec::with_capacity(capacity), nulls: NullBufferBuilder::new(capacity), capacity }
    }

    pub fn put(&mut self, value: Option<T::Native>) {
        self.values.push(value.unwrap_or_default());
        self.nulls.append(value.is_some());
    }

    fn finish(&mut self) -> PrimitiveArray<T> {
        let values = std::mem::replace(&mut self.values, Vec::with_capacity(self.capacity));
        PrimitiveArray::new(ScalarBuffer::from(values), self.nulls.finish())
    }
}

/// A record's header names, as they were put.
struct Before {
    names: OwnedNames,
    /// Where their views begin.
    start: usize,
    /// None has bytes beside its text.
    all_text: bool,
}

/// The four fields of each header, and where each record's begin.
pub(super) struct HeaderLists {
    ends: Vec<i32>,
    /// The names of the record before, and where their views begin: most records have the same.
    before: Option<Before>,
    name: Views,
    name_bytes: Views,
    value_text: Views,
    value_bytes: Views,
}

impl HeaderLists {
    pub fn put(&mut self, arena: &mut Arena, headers: Headers<'_>) {
        self.put_names(arena, headers.names());
        if headers.are_plain() {
            headers.values().for_each(|value| self.value_text.put(arena, value));
            self.value_bytes.put_nulls(headers.len());
        } else {
            for value in headers.values() {
                let (value_text, value_bytes) = split(value);
                self.value_text.put(arena, value_text.map(str::as_bytes));
                self.value_bytes.put(arena, value_bytes);
            }
        }
        self.ends.push(i32::try_from(self.name.views.len()).unwrap_or(i32::MAX));
    }

    fn put_names(&mut self, arena: &mut Arena, names: Names<'_>) {
        if let Some(before) = &self.before
            && before.names.get() == names
        {
            let range = before.start..before.start + names.len();
            self.name.views.extend_from_within(range.clone());
            self.name.nulls.append_n_non_nulls(names.len());
            if before.all_text {
                self.name_bytes.put_nulls(names.len());
            } else {
                self.name_bytes.repeat(range);
            }
            return;
        }
        let (start, mut all_text) = (self.name.views.len(), true);
        for name in names.iter() {
            let (name, name_bytes) = header_name(name);
            all_text &= name_bytes.is_none();
            self.name.put(arena, Some(name.as_bytes()));
            self.name_bytes.put(arena, name_bytes);
        }
        self.before = Some(Before { names: names.to_owned(), start, all_text });
    }

    fn finish(&mut self, buffers: &Arc<[Buffer]>) -> Result<ArrayRef> {
        // Views are of these buffers.
        self.before = None;
        let offsets = OffsetBuffer::new(std::mem::replace(&mut self.ends, vec![0]).into());
        // SAFETY: `put` alone makes these views, by the sink's one arena; names and text of `str`s, or of ASCII.
        let columns: Vec<ArrayRef> = unsafe {
            vec![
                self.name.finish::<StringViewType>(buffers),
                self.name_bytes.finish::<BinaryViewType>(buffers),
                self.value_text.finish::<StringViewType>(buffers),
                self.value_bytes.finish::<BinaryViewType>(buffers),
            ]
        };
        let structs = StructArray::try_new(schema::header_views(), columns, None).map_err(internal)?;
        let element = schema::header_element_of(schema::header_views());
        let list = ListArray::try_new(element, offsets, Arc::new(structs), None).map_err(internal)?;
        Ok(Arc::new(list))
    }
}

impl Column {
    /// `rows`: of a batch.
    pub fn new(ty: Type, rows: usize) -> Self {
        match ty {
            Type::Text => Self::Text(Views::new(rows)),
            Type::Bytes => Self::Bytes(Views::new(rows)),
            Type::Int32 => Self::Int32(Numbers::new(rows)),
            Type::Int64 => Self::Int64(Numbers::new(rows)),
            Type::Timestamp => Self::Timestamp(Numbers::new(rows)),
            Type::Headers => {
                // Some for each record; more of them grow.
                let fields = || Views::new(8 * rows);
                Self::Headers(Box::new(HeaderLists {
                    ends: vec![0],
                    before: None,
                    name: fields(),
                    name_bytes: fields(),
                    value_text: fields(),
                    value_bytes: fields(),
                }))
            }
        }
    }

    /// The values so far; the next ones begin a new array. `buffers`: of the arena that all views were made by.
    pub fn finish(&mut self, buffers: &Arc<[Buffer]>) -> Result<ArrayRef> {
        Ok(match self {
            // SAFETY: the sink's one arena makes the views, and its `text` takes nothing but `str`s.
            Self::Text(views) => unsafe { views.finish::<StringViewType>(buffers) },
            // SAFETY: as above.
            Self::Bytes(views) => unsafe { views.finish::<BinaryViewType>(buffers) },
            Self::Int32(numbers) => Arc::new(numbers.finish()),
            Self::Int64(numbers) => Arc::new(numbers.finish()),
            Self::Timestamp(numbers) => Arc::new(numbers.finish().with_timezone("UTC")),
            Self::Headers(lists) => lists.finish(buffers)?,
        })
    }
}

pub(super) fn internal(error: impl std::fmt::Display) -> Error {
    Error::internal(format!("Parquet could not be encoded: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{Array, BinaryViewArray};

    #[test]
    fn views_point_into_the_arena_and_the_rest_is_copied() {
        let chunks = [Bytes::from(vec![b'a'; 100]), Bytes::from(vec![b'b'; 50]), Bytes::new()];
        let mut arena = Arena::new(&chunks);
        let elsewhere = [b'c'; 20];
        let mut views = Views::new(0);
        let values: [Option<&[u8]>; 7] = [
            Some(&chunks[1][10..50]),
            Some(&chunks[0][..100]),
            None,
            Some(&elsewhere),
            Some(b""),
            Some(&chunks[0][90..]),
            Some(&chunks[1][..]),
        ];
        values.iter().for_each(|value| views.put(&mut arena, *value));
        assert_eq!(arena.copied.len(), elsewhere.len());
        let buffers = arena.take().unwrap();
        // SAFETY: made by this arena.
        let array = unsafe { views.finish::<BinaryViewType>(&buffers) };
        let array = array.as_any().downcast_ref::<BinaryViewArray>().unwrap();
        assert_eq!(array.iter().collect::<Vec<_>>(), values);
        // As Arrow itself checks it.
        BinaryViewArray::try_new(array.views().clone(), buffers, array.nulls().cloned()).unwrap();
        views.put(&mut arena, Some(&elsewhere[1..]));
        let buffers = arena.take().unwrap();
        // SAFETY: made by this arena.
        let array = unsafe { views.finish::<BinaryViewType>(&buffers) };
        assert_eq!((array.len(), buffers.last().map(|b| b.len())), (1, Some(19)));
    }
}
