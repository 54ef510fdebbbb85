//! `schemas/restores/` against documents that the program writes: every field is in the schema, is required unless it may be
//! absent, and nothing else is let in.

mod support;

use dlq_archiver::format::Format;
use dlq_archiver::format::ranges;
use dlq_archiver::format::restored;
use dlq_archiver::kafka::MockBroker;
use dlq_archiver::restore::audit::{Closing, RunDoc};
use dlq_archiver::restore::why::Why;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use support::{Rec, TestArchive, batch};

const MS: i64 = 1_791_417_600_000;
const NAMES: [&str; 5] = ["plan", "draft", "done", "order", "run"];

/// Fields that may be absent, and where they are.
const OPTIONAL: [(&str, &str); 6] =
    [("", "by"), ("", "reason"), ("", "draft"), ("", "closing"), ("", "closed"), ("/options", "values_sha256")];
/// Objects whose fields are no names of fields.
const MAPS: [&str; 7] =
    ["targets", "windows", "skipped", "restored_by_target", "skipped_by_reason", "filter", "headers"];

fn schema(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("schemas/restores/{name}.schema.json"));
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn validator(name: &str) -> jsonschema::Validator {
    let schema = schema(name);
    assert!(jsonschema::meta::is_valid(&schema), "{name} is no schema");
    jsonschema::draft202012::new(&schema).unwrap()
}

fn objects(at: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.push(at.to_owned());
            fields.iter().for_each(|(name, v)| objects(&format!("{at}/{name}"), v, found));
        }
        Value::Array(items) => items.iter().enumerate().for_each(|(i, v)| objects(&format!("{at}/{i}"), v, found)),
        _ => {}
    }
}

#[track_caller]
fn check(name: &str, document: &Value) {
    let validator = validator(name);
    let problems: Vec<String> =
        validator.iter_errors(document).map(|e| format!("{}: {e}", e.instance_path())).collect();
    assert!(problems.is_empty(), "{name}: {problems:#?}\n{document:#}");
    let mut pointers = Vec::new();
    objects("", document, &mut pointers);
    for at in pointers {
        let is_map = |at: &str| MAPS.iter().any(|map| at.ends_with(&format!("/{map}")));
        if ["/targets", "/restored_by_target"].iter().all(|map| !at.ends_with(map)) {
            let mut with_more = document.clone();
            with_more.pointer_mut(&at).unwrap()["one_more"] = json!(1);
            assert!(!validator.is_valid(&with_more), "{name}: another field in {at:?} is let in");
        }
        for field in document.pointer(&at).unwrap().as_object().unwrap().keys() {
            let mut without = document.clone();
            without.pointer_mut(&at).unwrap().as_object_mut().unwrap().remove(field);
            let may = is_map(&at) || OPTIONAL.contains(&(&at[..], &field[..]));
            if !may {
                assert!(!validator.is_valid(&without), "{name}: {at}/{field} is not required");
            } else if !at.ends_with("/targets") {
                assert!(validator.is_valid(&without), "{name}: {at}/{field} is required");
            }
        }
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_that_the_program_writes_are_those_of_the_schemas() {
    let mut archive = TestArchive::new(Format::Parquet).await;
    let record = |offset| Rec { offset, timestamp_ms: MS, value: Some(b"old"), ..Rec::default() };
    archive.cut("orders-dlq", 0, 0, 10, batch(&(0..10).map(record).collect::<Vec<_>>()), vec![]).await;
    let broker = MockBroker::start().unwrap();
    broker.create_topic("orders", 1).unwrap();
    let values = archive.path("values/orders-dlq/0");
    fs::create_dir_all(&values).unwrap();
    fs::write(values.join("3"), "new").unwrap();
    let dir = archive.path("values").display().to_string();
    archive.run(&["discard", "--record-id", "orders-dlq/0/9", "--reason", "INC-1"]).ok();
    let brokers = broker.brokers();
    let restore = |args: &[&str]| {
        archive.run(&[&["restore", "--brokers", &brokers, "--to", "orders", "-o", "json"], args].concat()).json()
    };
    restore(&["--value-from-dir", &dir, "--by", "Ann", "--reason", "INC-2", "--delivery", "plain"]);
    let headers = ["--strip", "^x-.*", "--keep", "x-a", "--add-header", "a=b", "--no-restore-headers"];
    restore(&[&["--topic", "orders-dlq", "--offsets", "0..9", "--target-partition", "0"][..], &headers].concat());
    let draft = restore(&["--all", "--dry-run", "--include-restored", "--timestamps", "now", "--include-discarded"]);
    let draft = draft["plan"].as_str().unwrap();
    archive.run(&["restore", "--brokers", &brokers, "--plan", draft]).ok();

    let mut seen = BTreeSet::new();
    let mut look = |path: &Path| {
        let name = path.file_name().unwrap().to_str().unwrap().split(['-', '.']).next().unwrap().to_owned();
        if path.extension().is_some_and(|e| e == "json") {
            check(&name, &json(path));
            seen.insert(name);
        }
    };
    for entry in fs::read_dir(archive.path("restores")).unwrap().map(|e| e.unwrap().path()) {
        match entry.is_dir() {
            true => fs::read_dir(&entry).unwrap().for_each(|e| look(&e.unwrap().path())),
            false => look(&entry),
        }
    }
    assert_eq!(seen, NAMES.map(str::to_owned).into());
}

#[test]
fn a_run_that_ends_a_restore_and_what_is_none() {
    let run = |closing| RunDoc {
        version: 1,
        start: 0,
        started_at: "2026-10-08T14:11:24.228703Z".into(),
        started_by: "ann@host".into(),
        process: "x".into(),
        program_version: "0.1.0".into(),
        closing,
    };
    let closing = Closing { reason: "made way".into(), uncertain: false };
    let document = serde_json::to_value(run(Some(closing))).unwrap();
    check("run", &document);
    for (pointer, wrong) in [("/start", json!(-1)), ("/started_at", json!("noon")), ("/closing/uncertain", json!("no"))]
    {
        let mut document = document.clone();
        *document.pointer_mut(pointer).unwrap() = wrong;
        assert!(!validator("run").is_valid(&document), "{pointer}");
    }
}

#[test]
fn every_reason_to_skip_is_in_the_schemas() {
    let known = schema("done")["properties"]["skipped_by_reason"]["propertyNames"]["enum"].clone();
    let known: Vec<Why> = serde_json::from_value(known).unwrap();
    // An enum's last variant has all before it.
    assert_eq!(known.len(), Why::Refused as usize + 1);
}

#[test]
fn every_field_says_what_it_is() {
    fn described(at: &str, schema: &Value, missing: &mut Vec<String>) {
        for group in ["properties", "$defs"] {
            for (name, part) in schema[group].as_object().into_iter().flatten() {
                let at = format!("{at}/{name}");
                if part["description"].as_str().is_none_or(|d| d.len() < 10) {
                    missing.push(at.clone());
                }
                described(&at, part, missing);
            }
        }
    }
    let mut missing = Vec::new();
    NAMES.iter().for_each(|name| described(name, &schema(name), &mut missing));
    assert!(missing.is_empty(), "without a description: {missing:?}");
}

/// The tables of columns in the documentation.
#[test]
fn columns_of_flat_lists_are_documented() {
    for (file, text, schema) in [
        ("restores.md", include_str!("../schemas/restores.md"), restored::schema()),
        ("dispositions.md", include_str!("../schemas/dispositions.md"), ranges::schema()),
    ] {
        let rows = text.split("| column |").nth(1).unwrap().lines().skip(2).take_while(|line| line.starts_with("| "));
        let names: Vec<&str> = rows.map(|row| row.split(" | ").next().unwrap().trim_start_matches("| ")).collect();
        let columns: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        assert_eq!(names, columns, "{file}");
    }
}
