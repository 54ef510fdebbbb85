//! `schemas/` says what the program writes: the record as a table, the JSON Schema of a line, and the schemas for
//! engines are compared with the code's columns and with objects really written.

use bytes::Bytes;
use dlq_archiver::dialect::Dialects;
use dlq_archiver::format::refetched::{REFETCHED, REFETCHED_VERSION};
use dlq_archiver::format::schema::{COLUMNS, Column, Type};
use dlq_archiver::format::{Compression, Encoder, FileContext, Format, SCHEMA_VERSION};
use dlq_archiver::record::{Decoded, Header, PayloadState, RawBatch, TimestampType};
use parquet::basic::{LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::Type as ParquetType;
use serde_json::Value;

const RECORD_MD: &str = include_str!("../schemas/record.md");
const REFETCHED_MD: &str = include_str!("../schemas/refetched.md");
const RECORD_SCHEMA: &str = include_str!("../schemas/record.schema.json");

/// Two records: one with everything, one with as little as Kafka allows.
fn object(format: Format) -> Vec<u8> {
    object_of(format, 1)
}

/// Of three different records, so many times.
fn object_of(format: Format, times: usize) -> Vec<u8> {
    let context = FileContext {
        cluster_id: Some("MkU3OEVBNTcwNTJENDM2Qg"),
        topic: "default-dlt",
        partition: 7,
        generation: 2,
        archived_at_us: 1_791_417_600_000_000,
        intent_key: "ledger/default-dlt/7/g2/00000000000000000000.intent.json",
        program_version: "0.1.0",
    };
    let full = Decoded {
        dialect: "knative".into(),
        failure_key: [0xab; 16],
        failed_at_us: Some(1),
        error_class: Some("http".into()),
        error_message: Some("line\nbreak \u{2028} \"quote\"".into()),
        error_code: Some(500),
        error_stage: Some("deliver".into()),
        error_component: Some("dispatcher".into()),
        error_destination: Some("http://size-check".into()),
        error_stacktrace: Some("at a\n\tat b".into()),
        attempts: Some(3),
        origin_topic: Some("orders".into()),
        origin_partition: Some(1),
        origin_offset: Some(i64::MAX),
        origin_timestamp_us: Some(0),
        origin_group: Some("group".into()),
        event_id: Some("2026-10-08".into()),
        event_source: Some("vast:s3".into()),
        event_type: Some("ObjectCreated".into()),
        event_subject: Some("bucket/key".into()),
        event_time_us: Some(253_402_300_799_999_999),
        content_type: Some("application/json".into()),
        payload_state: PayloadState::Present,
        prior_restores: 1,
        problems: vec!["one".into(), "two".into()],
        hops: Vec::new(),
    };
    let headers = [
        Header { name: b"ce_id", value: Some(b"1") },
        Header { name: b"ce_id", value: None },
        Header { name: b"\xff", value: Some(b"\xff\0") },
    ];
    let mut raws = RawBatch::new();
    raws.push(
        0,
        1_791_417_600_000,
        TimestampType::CreateTime,
        1,
        Some(b"key"),
        Some(b"{\"order\":5}"),
        headers.into_iter(),
    );
    raws.push(1, 1, TimestampType::LogAppendTime, 1, Some(b"\xff"), Some(b"\0"), std::iter::empty());
    raws.push(2, -1, TimestampType::CreateTime, 1, None, None, std::iter::empty());
    let mut encoder = Encoder::new(format, &context).unwrap();
    let bare = Decoded { dialect: "unknown".into(), payload_state: PayloadState::Tombstone, ..Decoded::default() };
    for _ in 0..times {
        encoder.push(&raws.get(0), &full, "size-check").unwrap();
        encoder.push(&raws.get(1), &full, "007").unwrap();
        encoder.push(&raws.get(2), &bare, "default-dlt").unwrap();
    }
    encoder.finish().unwrap()
}

fn table_of(columns: &[Column]) -> String {
    let mut table =
        String::from("| column | Parquet type | nullable | meaning | unit | from |\n|---|---|---|---|---|---|\n");
    for c in columns {
        let nullable = if c.required { "no" } else { "yes" };
        let (ty, meaning, unit, source) = (c.parquet_type(), c.meaning, c.unit, c.source);
        table += &format!("| `{}` | {ty} | {nullable} | {meaning} | {unit} | {source} |\n", c.name);
    }
    table
}

#[test]
fn refetched_md_is_the_table_of_its_columns() {
    let table = table_of(&REFETCHED);
    assert!(REFETCHED_MD.contains(&table), "schemas/refetched.md must have this table:\n\n{table}");
    assert!(REFETCHED_MD.contains(&format!("Columns, version {REFETCHED_VERSION}:\n")));
}

#[test]
fn record_md_is_the_table_of_columns() {
    let table = table_of(&COLUMNS);
    assert!(RECORD_MD.contains(&table), "schemas/record.md must have this table:\n\n{table}");
    assert!(RECORD_MD.contains(&format!("schema version {SCHEMA_VERSION}\n")));
}

/// A field of a Parquet schema in the words of `schemas/record.md`.
fn in_words(field: &ParquetType) -> String {
    if field.is_group() {
        assert_eq!(field.get_basic_info().logical_type_ref(), Some(&LogicalType::List));
        let list = &field.get_fields()[0];
        let element = &list.get_fields()[0];
        assert_eq!((list.name(), element.name()), ("list", "element"));
        let fields: Vec<_> = element.get_fields().iter().map(|f| f.name()).collect();
        for f in element.get_fields() {
            let want = if f.name().ends_with("_bytes") { "BYTE_ARRAY" } else { "BYTE_ARRAY (STRING)" };
            assert_eq!(in_words(f), want);
            let optional = f.get_basic_info().repetition() == Repetition::OPTIONAL;
            assert_eq!(optional, f.name() != "name");
        }
        return format!("LIST of struct {{{}}}", fields.join(", "));
    }
    match (field.get_physical_type(), field.get_basic_info().logical_type_ref()) {
        (Physical::BYTE_ARRAY, Some(LogicalType::String)) => "BYTE_ARRAY (STRING)".into(),
        (Physical::INT64, Some(LogicalType::Timestamp(t))) if t.is_adjusted_to_u_t_c && t.unit == TimeUnit::MICROS => {
            "INT64 (TIMESTAMP, MICROS, UTC)".into()
        }
        (physical, None) => physical.to_string(),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_written_parquet_file_has_those_columns() {
    let reader = SerializedFileReader::new(Bytes::from(object(Format::Parquet))).unwrap();
    let file = reader.metadata().file_metadata();
    let fields = file.schema().get_fields();
    assert_eq!(fields.len(), COLUMNS.len());
    for (field, column) in fields.iter().zip(&COLUMNS) {
        assert_eq!(field.name(), column.name);
        assert_eq!(in_words(field), column.parquet_type(), "{}", column.name);
        let required = field.get_basic_info().repetition() == Repetition::REQUIRED;
        assert_eq!(required, column.required, "{}", column.name);
    }
    let meta: Vec<_> = file.key_value_metadata().unwrap().iter().map(|p| (&*p.key, p.value.as_deref())).collect();
    assert_eq!(
        meta,
        [
            ("dlq-archiver.schema_version", Some("1")),
            ("dlq-archiver.program_version", Some("0.1.0")),
            ("dlq-archiver.intent", Some("ledger/default-dlt/7/g2/00000000000000000000.intent.json")),
        ]
    );
}

#[test]
fn blooms_and_statistics_are_where_they_are_of_use() {
    // Pages have an index where there are more than a page or two.
    for (times, indexed) in [(1, false), (2000, true)] {
        let reader = SerializedFileReader::new(Bytes::from(object_of(Format::Parquet, times))).unwrap();
        for chunk in reader.metadata().row_group(0).columns() {
            let path = chunk.column_path().string();
            let looked_up = ["failure_key", "event_id"].contains(&&*path);
            assert_eq!(chunk.bloom_filter_offset().is_some(), looked_up, "{path}");
            let payload = ["kafka_key_", "kafka_value_", "kafka_headers", "error_stacktrace"];
            let payload = payload.iter().any(|p| path.starts_with(p)) && !path.ends_with("_size");
            assert_eq!(chunk.statistics().is_none(), payload, "{path}");
            assert_eq!(chunk.column_index_offset().is_none(), payload || !indexed, "{path}");
            assert_eq!(chunk.offset_index_offset().is_some(), indexed, "{path}");
        }
    }
}

#[test]
fn written_lines_fit_the_json_schema() {
    let schema: Value = serde_json::from_str(RECORD_SCHEMA).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let text = String::from_utf8(object(Format::Jsonl(Compression::None))).unwrap();
    assert_eq!(text.lines().count(), 3);
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let keys: Vec<_> = line.as_object().unwrap().keys().collect();
        assert_eq!(keys, COLUMNS.iter().map(|c| c.name).collect::<Vec<_>>());
        let errors: Vec<_> = validator.iter_errors(&line).map(|e| format!("{e} at {}", e.instance_path())).collect();
        assert!(errors.is_empty(), "{errors:#?}");
    }
    let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(first["kafka_timestamp"], "2026-10-08T00:00:00.000000Z");
    assert_eq!(first["kafka_headers"][2]["value_bytes"], "/wA=");
    assert!(!validator.is_valid(&serde_json::json!({})));
}

#[test]
fn the_json_schema_is_the_table_of_columns() {
    let schema: Value = serde_json::from_str(RECORD_SCHEMA).unwrap();
    let properties = schema["properties"].as_object().unwrap();
    let names: Vec<_> = COLUMNS.iter().map(|c| c.name).collect();
    assert_eq!(properties.keys().collect::<Vec<_>>(), names);
    assert_eq!(schema["required"], serde_json::json!(names));
    for c in &COLUMNS {
        let ty = match c.ty {
            Type::Text | Type::Bytes | Type::Timestamp => "string",
            Type::Int32 | Type::Int64 => "integer",
            Type::Headers => "array",
        };
        let want = if c.required { serde_json::json!(ty) } else { serde_json::json!([ty, "null"]) };
        let property = &properties[c.name];
        assert_eq!(property["type"], want, "{}", c.name);
        assert_eq!(property["contentEncoding"] == "base64", c.ty == Type::Bytes, "{}", c.name);
        assert_eq!(property["format"] == "date-time", c.ty == Type::Timestamp, "{}", c.name);
    }
}

/// Every engine's schema has all columns in order, each as `line` says.
fn assert_engine(file: &str, text: &str, line: impl Fn(&Column) -> String) {
    let want = COLUMNS.iter().map(|c| format!("    {}", line(c))).collect::<Vec<_>>().join(",\n");
    assert!(text.contains(&want), "schemas/engines/{file} must have:\n\n{want}");
}

#[test]
fn schemas_for_engines_have_every_column() {
    let [mut duckdb, mut spark, mut clickhouse] = ["", "", ""].map(|_| String::new());
    for (i, field) in ["name", "name_bytes", "value_text", "value_bytes"].into_iter().enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        duckdb += &format!("{comma}{field} VARCHAR");
        spark += &format!("{comma}{field}: STRING");
        clickhouse += &format!("{comma}{field} {}", if i == 0 { "String" } else { "Nullable(String)" });
    }
    assert_engine("duckdb.sql", include_str!("../schemas/engines/duckdb.sql"), |c| {
        let ty = match c.ty {
            Type::Text | Type::Bytes => "VARCHAR".to_owned(),
            Type::Int32 => "INTEGER".to_owned(),
            Type::Int64 => "BIGINT".to_owned(),
            Type::Timestamp => "TIMESTAMPTZ".to_owned(),
            Type::Headers => format!("STRUCT({duckdb})[]"),
        };
        format!("{}: '{ty}'", c.name)
    });
    assert_engine("spark.py", include_str!("../schemas/engines/spark.py"), |c| {
        let ty = match c.ty {
            Type::Text | Type::Bytes => "STRING".to_owned(),
            Type::Int32 => "INT".to_owned(),
            Type::Int64 => "BIGINT".to_owned(),
            Type::Timestamp => "TIMESTAMP".to_owned(),
            Type::Headers => format!("ARRAY<STRUCT<{spark}>>"),
        };
        format!("{} {ty}", c.name)
    });
    assert_engine("clickhouse.sql", include_str!("../schemas/engines/clickhouse.sql"), |c| {
        let ty = match c.ty {
            Type::Text | Type::Bytes => "String".to_owned(),
            Type::Int32 => "Int32".to_owned(),
            Type::Int64 => "Int64".to_owned(),
            Type::Timestamp => "DateTime64(6, 'UTC')".to_owned(),
            Type::Headers => format!("Array(Tuple({clickhouse}))"),
        };
        if c.required { format!("{} {ty}", c.name) } else { format!("{} Nullable({ty})", c.name) }
    });
    assert_engine("polars.py", include_str!("../schemas/engines/polars.py"), |c| {
        let ty = match c.ty {
            Type::Text | Type::Bytes | Type::Timestamp => "pl.String",
            Type::Int32 => "pl.Int32",
            Type::Int64 => "pl.Int64",
            Type::Headers => {
                "pl.List(pl.Struct({\"name\": pl.String, \"name_bytes\": pl.String, \
                 \"value_text\": pl.String, \"value_bytes\": pl.String}))"
            }
        };
        format!("\"{}\": {ty}", c.name)
    });
}

/// `dialect.schema.json` is for editors: it takes what the program takes, and no more.
#[test]
fn the_schema_of_dialect_tables_is_the_programs() {
    let schema: Value = serde_json::from_str(include_str!("../schemas/dialects/dialect.schema.json")).unwrap();
    assert!(jsonschema::meta::is_valid(&schema));
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let takes = |text: &str| {
        let table: toml::Table = toml::from_str(text).unwrap();
        let by_schema = validator.is_valid(&serde_json::to_value(table).unwrap());
        let by_program = Dialects::with_user_tables([("t.toml", text)]).is_ok();
        assert_eq!(by_schema, by_program, "{text}");
        by_schema
    };
    let dialects = Dialects::builtin();
    for name in dialects.names() {
        assert!(takes(dialects.show(name).unwrap().1), "{name}");
    }
    let readme = include_str!("../schemas/dialects/README.md");
    let examples: Vec<&str> = readme.split("```toml\n").skip(1).map(|t| t.split("```").next().unwrap()).collect();
    assert!(examples.len() == 2 && examples.iter().all(|text| takes(text)));
    let kinds = [("text", "error_class"), ("decimal", "attempts"), ("rfc3339", "failed_at"), ("be-int32", "event_id")];
    for (encoding, field) in kinds {
        for other in [field, "origin_offset", "event_time", "content_type"] {
            takes(&format!(
                "name = \"x\"\ndescription = \"\"\n[detect]\nany = [\"h\"]\n[fields]\n{other} = {{ from = [\"h\"], encoding = \"{encoding}\" }}"
            ));
        }
    }
    for wrong in [
        "name = \"X\"\ndescription = \"\"\n[detect]\nany = [\"h\"]",
        "name = \"unknown\"\ndescription = \"\"\n[detect]\nany = [\"h\"]",
        "name = \"x\"\ndescription = \"\"\n[detect]\nnone = [\"h\"]",
        "name = \"x\"\ndescription = \"\"\n[detect]\nany = []",
        "name = \"x\"\n[detect]\nany = [\"h\"]",
        "name = \"x\"\ndescription = \"\"\nmore = 1\n[detect]\nany = [\"h\"]",
        "name = \"x\"\ndescription = \"\"\nextends = \"spring\"",
        "name = \"x\"\ndescription = \"\"\nextends = \"spring\"\n[rename]\n[detect]\nany = [\"h\"]",
        "name = \"x\"\ndescription = \"\"\npipeline = [\"attempts\"]\n[detect]\nany = [\"h\"]",
        "name = \"x\"\ndescription = \"\"\n[detect]\nany = [\"h\"]\n[fields]\nattempts = { from = [{ header = \"h\", unit = \"ms\", before = \"x\" }] }",
        "name = \"x\"\ndescription = \"\"\n[detect]\nany = [\"h\"]\n[fields]\nattempts = { from = [\"h\"], always = true }",
    ] {
        assert!(!takes(wrong), "{wrong}");
    }
}
