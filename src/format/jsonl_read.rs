//! Records from JSON lines.
//!
//! Owns decompression and the way from a line's text back to a record. Keys may come in any order and unknown ones
//! are passed over (a later schema version's); a missing one is an error. Invariant: a damaged or foreign file is an
//! error of kind corrupt, never a panic.

use super::row::{self, Cells};
use super::schema::{COLUMNS, Column, Type};
use super::{ArchivedRecord, Compression, Projection};
use crate::error::{Error, Result};
use crate::record::{Header, Headers, RawBatch, TimestampType};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::DateTime;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;

pub(super) fn read(
    compression: Compression,
    data: &[u8],
    projection: Projection,
    visit: &mut dyn FnMut(ArchivedRecord<'_>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let payload = projection == Projection::All;
    rows(&COLUMNS, compression, data, payload, &mut |line, headers| {
        row::read(line, payload)?.with(headers, &mut *visit)
    })
}

/// Hands over each line's cells, in the order of the columns, and its headers.
pub(super) fn rows(
    columns: &'static [Column],
    compression: Compression,
    data: &[u8],
    payload: bool,
    visit: &mut dyn FnMut(&mut Line<'_>, Headers<'_>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    match compression {
        Compression::None => lines(columns, data, payload, visit),
        Compression::Gzip => lines(columns, buffered(flate2::read::MultiGzDecoder::new(data)), payload, visit),
        Compression::Zstd => {
            let decoder = zstd::stream::read::Decoder::with_buffer(data).map_err(corrupt)?;
            lines(columns, buffered(decoder), payload, visit)
        }
    }
}

fn buffered<R: std::io::Read>(reader: R) -> BufReader<R> {
    BufReader::with_capacity(256 << 10, reader)
}

fn corrupt(what: impl fmt::Display) -> Error {
    Error::corrupt(format!("not a readable JSONL object of this archive: {what}"))
}

fn lines(
    columns: &'static [Column],
    mut reader: impl BufRead,
    payload: bool,
    visit: &mut dyn FnMut(&mut Line<'_>, Headers<'_>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let mut line = Vec::new();
    for number in 1u64.. {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(corrupt)? == 0 {
            return Ok(());
        }
        let in_line = |e: &dyn fmt::Display| corrupt(format!("line {number}: {e}"));
        if line.pop() != Some(b'\n') {
            return Err(in_line(&"it ends within the line"));
        }
        let text = std::str::from_utf8(&line).map_err(|e| in_line(&e))?;
        let mut json = serde_json::Deserializer::from_str(text);
        let mut parsed = Keys { columns, payload }.deserialize(&mut json).map_err(|e| in_line(&e))?;
        json.end().map_err(|e| in_line(&e))?;
        let headers = parsed.headers().map_err(|e| e.context(format!("line {number}")))?;
        let flow = visit(&mut parsed, headers.get(0).headers).map_err(|e| e.context(format!("line {number}")))?;
        if flow.is_break() {
            return Ok(());
        }
    }
    Ok(())
}

/// A line's values by their place in the table of columns.
pub(super) struct Line<'a> {
    columns: &'static [Column],
    cells: Vec<Cell<'a>>,
    column: usize,
    payload: bool,
}

#[derive(Default)]
enum Cell<'a> {
    #[default]
    Missing,
    Null,
    Text(Cow<'a, str>),
    Number(i64),
    Headers(Vec<HeaderCell<'a>>),
}

/// A string that is borrowed from the line where it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct HeaderCell<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    name_bytes: Option<Text<'a>>,
    #[serde(borrow)]
    value_text: Option<Text<'a>>,
    #[serde(borrow)]
    value_bytes: Option<Text<'a>>,
}

/// What a line is read by.
struct Keys {
    columns: &'static [Column],
    payload: bool,
}

impl<'de> DeserializeSeed<'de> for Keys {
    type Value = Line<'de>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Line<'de>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Keys {
    type Value = Line<'de>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an archived record")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Line<'de>, A::Error> {
        let Self { columns, payload } = self;
        let mut cells: Vec<Cell<'de>> = std::iter::repeat_with(Cell::default).take(columns.len()).collect();
        let mut expected = 0;
        while let Some(Text(key)) = map.next_key()? {
            let at = match columns.get(expected) {
                Some(c) if c.name == key => Some(expected),
                _ => columns.iter().position(|c| c.name == key),
            };
            let Some(at) = at else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let cell = match columns[at].ty {
                Type::Text | Type::Bytes | Type::Timestamp => {
                    map.next_value::<Option<Text<'de>>>()?.map(|t| Cell::Text(t.0))
                }
                Type::Int32 | Type::Int64 => map.next_value::<Option<i64>>()?.map(Cell::Number),
                Type::Headers => map.next_value::<Option<Vec<HeaderCell<'de>>>>()?.map(Cell::Headers),
            };
            cells[at] = cell.unwrap_or(Cell::Null);
            expected = at + 1;
        }
        Ok(Line { columns, cells, column: 0, payload })
    }
}

fn unbase64(text: &str) -> Result<Vec<u8>> {
    STANDARD.decode(text).map_err(|e| Error::corrupt(format!("not base64: {e}")))
}

impl<'a> Line<'a> {
    /// Takes the next cell; [`Cell::Null`] for a payload column that is not wanted.
    fn next(&mut self) -> Result<Cell<'a>> {
        let (cell, column) = (self.cells.get_mut(self.column), self.columns.get(self.column));
        self.column += 1;
        match (cell.map(std::mem::take), column) {
            (Some(Cell::Missing) | None, column) => {
                Err(Error::corrupt(format!("it has no {}", column.map_or("such column", |c| c.name))))
            }
            (Some(_), Some(c)) if !self.payload && c.is_payload() => Ok(Cell::Null),
            (Some(cell), _) => Ok(cell),
        }
    }

    fn wrong<T>(&self) -> Result<T> {
        Err(Error::internal(format!("column {} is read as another type", self.column - 1)))
    }

    fn text_cell(&mut self) -> Result<Option<Cow<'a, str>>> {
        match self.next()? {
            Cell::Text(text) => Ok(Some(text)),
            Cell::Null => Ok(None),
            _ => self.wrong(),
        }
    }

    /// A batch of one record that has nothing but the line's headers.
    fn headers(&mut self) -> Result<RawBatch> {
        let mut owned = Vec::new();
        for (cell, column) in self.cells.iter().zip(self.columns) {
            match cell {
                Cell::Headers(headers) if self.payload => {
                    for h in headers {
                        let name = match &h.name_bytes {
                            Some(Text(exact)) => Cow::Owned(unbase64(exact)?),
                            None => Cow::Borrowed(h.name.as_bytes()),
                        };
                        let value = match (&h.value_text, &h.value_bytes) {
                            (Some(Text(text)), _) => Some(Cow::Borrowed(text.as_bytes())),
                            (None, Some(Text(bytes))) => Some(Cow::Owned(unbase64(bytes)?)),
                            (None, None) => None,
                        };
                        owned.push((name, value));
                    }
                }
                Cell::Null if column.ty == Type::Headers => {
                    return Err(Error::corrupt("column kafka_headers is null where it must not be"));
                }
                _ => {}
            }
        }
        let headers = owned.iter().map(|(name, value)| Header { name, value: value.as_deref() });
        let mut out = RawBatch::new();
        out.push(0, 0, TimestampType::CreateTime, -1, None, None, headers);
        Ok(out)
    }
}

impl<'a> Cells<'a> for Line<'a> {
    fn text(&mut self) -> Result<Option<Cow<'a, str>>> {
        self.text_cell()
    }
    fn bytes(&mut self) -> Result<Option<Cow<'a, [u8]>>> {
        Ok(match self.text_cell()? {
            Some(text) => Some(Cow::Owned(unbase64(&text)?)),
            None => None,
        })
    }
    fn int32(&mut self) -> Result<Option<i32>> {
        let number = self.int64()?;
        number.map(i32::try_from).transpose().map_err(|_| Error::corrupt("a number is out of range"))
    }
    fn int64(&mut self) -> Result<Option<i64>> {
        match self.next()? {
            Cell::Number(n) => Ok(Some(n)),
            Cell::Null => Ok(None),
            _ => self.wrong(),
        }
    }
    fn timestamp(&mut self) -> Result<Option<i64>> {
        let Some(text) = self.text_cell()? else { return Ok(None) };
        let time = DateTime::parse_from_rfc3339(&text).map_err(|e| Error::corrupt(format!("{text}: {e}")))?;
        Ok(Some(time.timestamp_micros()))
    }
    fn skip(&mut self) {
        self.column += 1;
    }
}
