//! Records to Parquet, in the order in which they come, with Arrow's and Parquet's own settings but for zstd 1.
//!
//! `raw`: ten columns and the list of headers. `all`: the archive's columns, filled from the headers by their names, for
//! VAST's dead letters only; no dialects, nothing is grouped, nothing is hashed but the failure key, which is a column.

use crate::{Result, consume};
use arrow_array::builder::{
    ArrayBuilder, BinaryBuilder, Int32Builder, Int64Builder, ListBuilder, StringBuilder, StructBuilder,
    TimestampMicrosecondBuilder,
};
use arrow_array::{Array as _, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Fields, Schema, TimeUnit};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use sha2::{Digest as _, Sha256};
use std::hint::black_box;
use std::sync::Arc;

/// Rows of an Arrow batch, and bytes of records in a file.
const BATCH: usize = 4096;
const FILE: usize = 128 << 20;

#[derive(Clone, Copy, PartialEq)]
enum Type {
    Text,
    Bytes,
    Int32,
    Int64,
    Time,
}
use Type::*;

const RAW: [(&str, Type); 10] = [
    ("kafka_topic", Text),
    ("kafka_partition", Int32),
    ("kafka_offset", Int64),
    ("kafka_timestamp", Time),
    ("kafka_timestamp_ms", Int64),
    ("kafka_timestamp_type", Text),
    ("kafka_key", Bytes),
    ("kafka_value", Bytes),
    ("kafka_key_size", Int32),
    ("kafka_value_size", Int32),
];

const ALL: [(&str, Type); 42] = [
    ("record_id", Text),
    ("kafka_cluster_id", Text),
    ("kafka_topic", Text),
    ("topic_generation", Int32),
    ("kafka_partition", Int32),
    ("kafka_offset", Int64),
    ("kafka_timestamp", Time),
    ("kafka_timestamp_ms", Int64),
    ("kafka_timestamp_type", Text),
    ("kafka_key_text", Text),
    ("kafka_key_bytes", Bytes),
    ("kafka_value_text", Text),
    ("kafka_value_bytes", Bytes),
    ("kafka_key_size", Int32),
    ("kafka_value_size", Int32),
    ("pipeline_name", Text),
    ("dialect", Text),
    ("failure_key", Text),
    ("failed_at", Time),
    ("error_class", Text),
    ("error_message", Text),
    ("error_code", Int32),
    ("error_stage", Text),
    ("error_component", Text),
    ("error_destination", Text),
    ("error_stacktrace", Text),
    ("attempts", Int32),
    ("origin_topic", Text),
    ("origin_partition", Int32),
    ("origin_offset", Int64),
    ("origin_timestamp", Time),
    ("origin_group", Text),
    ("event_id", Text),
    ("event_source", Text),
    ("event_type", Text),
    ("event_subject", Text),
    ("event_time", Time),
    ("content_type", Text),
    ("payload_state", Text),
    ("prior_restores", Int32),
    ("decode_problems", Text),
    ("archived_at", Time),
];

/// A value on its way into its column.
enum Cell<'a> {
    Null,
    Text(&'a str),
    Bytes(&'a [u8]),
    Int(i64),
}

enum Column {
    Text(StringBuilder),
    Bytes(BinaryBuilder),
    Int32(Int32Builder),
    Int64(Int64Builder),
    Time(TimestampMicrosecondBuilder),
}

impl Column {
    fn new(ty: Type) -> Self {
        match ty {
            Text => Self::Text(StringBuilder::new()),
            Bytes => Self::Bytes(BinaryBuilder::new()),
            Int32 => Self::Int32(Int32Builder::new()),
            Int64 => Self::Int64(Int64Builder::new()),
            Time => Self::Time(TimestampMicrosecondBuilder::new().with_timezone("UTC")),
        }
    }

    fn push(&mut self, cell: &Cell<'_>) {
        match (self, cell) {
            (Self::Text(b), Cell::Text(text)) => b.append_value(text),
            (Self::Text(b), _) => b.append_null(),
            (Self::Bytes(b), Cell::Bytes(bytes)) => b.append_value(bytes),
            (Self::Bytes(b), _) => b.append_null(),
            (Self::Int32(b), Cell::Int(n)) => b.append_value(*n as i32),
            (Self::Int32(b), _) => b.append_null(),
            (Self::Int64(b), Cell::Int(n)) => b.append_value(*n),
            (Self::Int64(b), _) => b.append_null(),
            (Self::Time(b), Cell::Int(n)) => b.append_value(*n),
            (Self::Time(b), _) => b.append_null(),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Text(b) => ArrayBuilder::finish(b),
            Self::Bytes(b) => ArrayBuilder::finish(b),
            Self::Int32(b) => ArrayBuilder::finish(b),
            Self::Int64(b) => ArrayBuilder::finish(b),
            Self::Time(b) => ArrayBuilder::finish(b),
        }
    }
}

fn data_type(ty: Type) -> DataType {
    match ty {
        Text => DataType::Utf8,
        Bytes => DataType::Binary,
        Int32 => DataType::Int32,
        Int64 => DataType::Int64,
        Time => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
    }
}

fn header_fields(all: bool) -> Fields {
    let name = Field::new("name", DataType::Utf8, false);
    if !all {
        return Fields::from(vec![name, Field::new("value", DataType::Binary, true)]);
    }
    Fields::from(vec![
        name,
        Field::new("name_bytes", DataType::Binary, true),
        Field::new("value_text", DataType::Utf8, true),
        Field::new("value_bytes", DataType::Binary, true),
    ])
}

struct Sink {
    schema: Arc<Schema>,
    columns: Vec<Column>,
    headers: ListBuilder<StructBuilder>,
    /// Headers have bytes beside text.
    all: bool,
    writer: ArrowWriter<Vec<u8>>,
    rows: usize,
    bytes: usize,
    encoded: usize,
    /// Values of each column that are not null.
    found: Vec<usize>,
}

impl Sink {
    fn writer(schema: &Arc<Schema>) -> Result<ArrowWriter<Vec<u8>>> {
        let zstd = Compression::ZSTD(ZstdLevel::try_new(1)?);
        let properties = WriterProperties::builder().set_compression(zstd).build();
        Ok(ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties))?)
    }

    fn new(all: bool) -> Result<Self> {
        let columns: &[_] = if all { &ALL } else { &RAW };
        let element = Field::new("element", DataType::Struct(header_fields(all)), false);
        let mut fields: Vec<_> = columns.iter().map(|(name, ty)| Field::new(*name, data_type(*ty), true)).collect();
        fields.push(Field::new("kafka_headers", DataType::List(Arc::new(element.clone())), false));
        let schema = Arc::new(Schema::new(fields));
        let headers = ListBuilder::new(StructBuilder::from_fields(header_fields(all), 0)).with_field(element);
        Ok(Self {
            writer: Self::writer(&schema)?,
            schema,
            columns: columns.iter().map(|(_, ty)| Column::new(*ty)).collect(),
            headers,
            all,
            rows: 0,
            bytes: 0,
            encoded: 0,
            found: vec![0; columns.len()],
        })
    }

    fn push(&mut self, message: &BorrowedMessage<'_>, cells: &[Cell<'_>]) -> Result<()> {
        self.columns.iter_mut().zip(cells).for_each(|(column, cell)| column.push(cell));
        for header in message.headers().iter().flat_map(|h| h.iter()) {
            let fields = self.headers.values();
            fields.field_builder::<StringBuilder>(0).ok_or("name")?.append_value(header.key);
            if self.all {
                let text = header.value.and_then(|v| str::from_utf8(v).ok());
                let bytes = header.value.filter(|_| text.is_none());
                fields.field_builder::<BinaryBuilder>(1).ok_or("name_bytes")?.append_null();
                fields.field_builder::<StringBuilder>(2).ok_or("value_text")?.append_option(text);
                fields.field_builder::<BinaryBuilder>(3).ok_or("value_bytes")?.append_option(bytes);
            } else {
                fields.field_builder::<BinaryBuilder>(1).ok_or("value")?.append_option(header.value);
            }
            fields.append(true);
            self.bytes += header.key.len() + header.value.map_or(0, <[u8]>::len);
        }
        self.headers.append(true);
        self.bytes += message.key_len() + message.payload_len();
        self.rows += 1;
        if self.rows.is_multiple_of(BATCH) {
            self.batch()?;
        }
        if self.bytes >= FILE {
            self.file()?;
        }
        Ok(())
    }

    fn batch(&mut self) -> Result<()> {
        let mut arrays: Vec<ArrayRef> = self.columns.iter_mut().map(Column::finish).collect();
        self.found.iter_mut().zip(&arrays).for_each(|(found, array)| *found += array.len() - array.null_count());
        arrays.push(Arc::new(self.headers.finish()));
        self.writer.write(&RecordBatch::try_new(self.schema.clone(), arrays)?)?;
        Ok(())
    }

    fn file(&mut self) -> Result<()> {
        self.batch()?;
        let writer = std::mem::replace(&mut self.writer, Self::writer(&self.schema)?);
        let file = black_box(writer.into_inner()?);
        self.encoded += file.len();
        self.bytes = 0;
        Ok(())
    }
}

pub fn run(brokers: &str, topic: &str, all: bool) -> Result<()> {
    let mut sink = Sink::new(all)?;
    let mut read = consume::each(brokers, topic, |message| {
        if all { push_all(&mut sink, topic, message) } else { push_raw(&mut sink, topic, message) }
    })?;
    sink.file()?;
    let names = sink.schema.fields().iter().map(|field| field.name().clone());
    read["found"] = names.zip(sink.found).collect();
    read["encoded"] = sink.encoded.into();
    println!("{read}");
    Ok(())
}

fn bytes(value: Option<&[u8]>) -> Cell<'_> {
    value.map_or(Cell::Null, Cell::Bytes)
}

fn text(value: Option<&[u8]>) -> Cell<'_> {
    value.and_then(|v| str::from_utf8(v).ok()).map_or(Cell::Null, Cell::Text)
}

/// As text, or else as bytes.
fn text_and_bytes(value: Option<&[u8]>) -> (Cell<'_>, Cell<'_>) {
    match value.map(|v| str::from_utf8(v).map_err(|_| v)) {
        None => (Cell::Null, Cell::Null),
        Some(Ok(text)) => (Cell::Text(text), Cell::Null),
        Some(Err(bytes)) => (Cell::Null, Cell::Bytes(bytes)),
    }
}

fn hex(bytes: &[u8]) -> String {
    let digit = |n: u8| char::from(b"0123456789abcdef"[usize::from(n)]);
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 15));
    }
    text
}

fn int(value: Option<i64>) -> Cell<'static> {
    value.map_or(Cell::Null, Cell::Int)
}

fn size(value: Option<&[u8]>) -> Cell<'static> {
    int(value.map(|v| v.len() as i64))
}

fn push_raw(sink: &mut Sink, topic: &str, message: &BorrowedMessage<'_>) -> Result<()> {
    let ms = message.timestamp().to_millis();
    let (key, value) = (message.key(), message.payload());
    let cells = [
        Cell::Text(topic),
        Cell::Int(message.partition().into()),
        Cell::Int(message.offset()),
        int(ms.map(|ms| ms * 1000)),
        int(ms),
        Cell::Text("CreateTime"),
        bytes(key),
        bytes(value),
        size(key),
        size(value),
    ];
    sink.push(message, &cells)
}

fn push_all(sink: &mut Sink, topic: &str, message: &BorrowedMessage<'_>) -> Result<()> {
    let (mut id, mut source, mut event_type, mut subject, mut event_time) = (None, None, None, None, None);
    let (mut code, mut data, mut destination, mut content_type) = (None, None, None, None);
    let (mut partition, mut offset) = (None, None);
    for header in message.headers().iter().flat_map(|h| h.iter()) {
        match header.key {
            "ce_id" => id = header.value,
            "ce_source" => source = header.value,
            "ce_type" => event_type = header.value,
            "ce_subject" => subject = header.value,
            "ce_time" => event_time = header.value,
            "ce_knativeerrorcode" => code = header.value,
            "ce_knativeerrordata" => data = header.value,
            "ce_knativeerrordest" => destination = header.value,
            "ce_knativekafkapartition" => partition = header.value,
            "ce_knativekafkaoffset" => offset = header.value,
            "content-type" => content_type = header.value,
            _ => {}
        }
    }
    let number = |value: Option<&[u8]>| value.and_then(|v| str::from_utf8(v).ok()?.parse::<i64>().ok());
    let record_id = format!("{topic}/{}/{}", message.partition(), message.offset());
    let failure = Sha256::new()
        .chain_update(source.unwrap_or_default())
        .chain_update(id.unwrap_or_default())
        .chain_update(destination.unwrap_or_default())
        .finalize();
    let failure = hex(&failure[..16]);
    let message_text = data.and_then(|d| STANDARD.decode(d).ok());
    let host = destination.and_then(|d| str::from_utf8(d).ok()?.strip_prefix("http://"));
    let pipeline = host.and_then(|h| h.split('.').next());
    let time = event_time.and_then(|t| chrono::DateTime::parse_from_rfc3339(str::from_utf8(t).ok()?).ok());
    let origin = subject.and_then(|s| str::from_utf8(s).ok()?.split('.').nth(1));
    let ms = message.timestamp().to_millis();
    let (key, value) = (message.key(), message.payload());
    let ((key_text, key_bytes), (value_text, value_bytes)) = (text_and_bytes(key), text_and_bytes(value));
    let cells = [
        Cell::Text(&record_id),
        Cell::Text("wMzfd4vLSsyWkmi1HiHUDg"),
        Cell::Text(topic),
        Cell::Int(1),
        Cell::Int(message.partition().into()),
        Cell::Int(message.offset()),
        int(ms.map(|ms| ms * 1000)),
        int(ms),
        Cell::Text("CreateTime"),
        key_text,
        key_bytes,
        value_text,
        value_bytes,
        size(key),
        size(value),
        pipeline.map_or(Cell::Null, Cell::Text),
        Cell::Text("knative"),
        Cell::Text(&failure),
        int(ms.map(|ms| ms * 1000)),
        Cell::Null, // error_class
        text(message_text.as_deref()),
        int(number(code)),
        Cell::Null,
        pipeline.map_or(Cell::Null, Cell::Text),
        text(destination),
        Cell::Null,
        Cell::Null, // attempts
        origin.map_or(Cell::Null, Cell::Text),
        int(number(partition)),
        int(number(offset)),
        Cell::Null,
        Cell::Null,
        text(id),
        text(source),
        text(event_type),
        text(subject),
        int(time.map(|t| t.timestamp_micros())),
        text(content_type),
        Cell::Text("present"),
        Cell::Int(0),
        Cell::Null,
        Cell::Int(1_791_300_000_000_000),
    ];
    sink.push(message, &cells)
}
