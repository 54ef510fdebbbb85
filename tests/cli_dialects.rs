//! `dialects`: the real program, on an embedded broker and on an archive in a folder.

mod broker;
mod common;
mod support;

use broker::{Broker, failure, program};
use serde_json::Value;
use std::path::PathBuf;
use support::TestArchive;

/// A table in a file of its own.
struct File(PathBuf);

impl File {
    fn new(test: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("dlq-archiver-{}-{test}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Reads what Connect leaves on a record without its own headers: a header of the producing application.
const MINE: &str = r#"
name = "mine"
description = "Mine"
pipeline = ["error_class"]
[detect]
all = ["dup"]
[fields]
error_class = { from = ["dup"] }
attempts = { from = ["dup"] }
[strip]
names = ["dup"]
"#;

#[test]
fn all_dialects_are_listed_and_each_shows_its_table() {
    let list = program(&["dialects", "list", "-o", "jsonl"]).output().unwrap();
    let names: Vec<String> = String::from_utf8(list.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["dialect"].as_str().unwrap().to_owned())
        .collect();
    let files = std::fs::read_dir("schemas/dialects").unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<String> = files.filter_map(|f| f.strip_suffix(".toml").map(str::to_owned)).collect();
    let mut sorted = names.clone();
    sorted.sort();
    files.sort();
    assert_eq!(sorted, files, "every file is compiled in");
    for name in names {
        let show = program(&["dialects", "show", &name]).output().unwrap();
        let file = std::fs::read_to_string(format!("schemas/dialects/{name}.toml")).unwrap();
        assert_eq!(String::from_utf8(show.stdout).unwrap(), file);
    }
    let (code, error) = failure(&program(&["dialects", "show", "sprign"]).output().unwrap());
    assert_eq!(code, 2);
    assert!(error.contains("there is no dialect \"sprign\"; did you mean \"spring\"?"), "{error}");
}

#[test]
fn a_table_is_tried_on_a_live_topic_and_on_an_archive() {
    let file = File::new("tried", MINE);
    let broker = Broker::with_fixtures(&["connect-no-context"]);
    let topic = "shop.orders-dlq-bare";
    let lines = broker.lines(&["dialects", "try", file.path(), "--topic", topic]);
    let text = lines.join("\n");
    for told in [
        "4 records: mine 1, unknown 3",
        "shop.orders-dlq-bare/0/0\n  pipeline_name      b\n  dialect            mine\n",
        "decode_problems    dup: not a decimal integer",
        "Columns of mine: decode_problems 1, dialect 1, error_class 1, ",
        "Always null: attempts, ",
        "1 record with problems.",
        "Headers that no table reads: bin 1, empty 1, trace-id 1",
    ] {
        assert!(text.contains(told), "{told:?} is not in\n{text}");
    }
    // In place of the one in use, which has its name.
    let old = File::new("in-use", &MINE.replace("\"dup\"", "\"nothing\""));
    let again = broker.lines(&["dialects", "try", file.path(), "--topic", topic, "--dialect-file", old.path()]);
    assert_eq!(again, lines);
    let json = broker.lines(&["dialects", "try", file.path(), "--topic", topic, "-o", "jsonl"]);
    let first: Value = serde_json::from_str(&json[0]).unwrap();
    assert_eq!((&first["dialect"], &first["error_class"], json.len()), (&"mine".into(), &"b".into(), 4));
    // The header is there twice: two failures, the oldest first.
    assert_eq!((&first["hops"][0]["error_class"], &first["hops"][1]["error_class"]), (&"a".into(), &"b".into()));
    // In use: `tail` reads it, too.
    let tail = broker.lines(&["tail", "--topic", topic, "--once", "--dialect-file", file.path(), "--dialect", "mine"]);
    assert_eq!(tail.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_tried_on_archived_records_and_shown_with_them() {
    let file = File::new("archived", MINE);
    let archive = TestArchive::of_fixtures(dlq_archiver::format::Format::Parquet).await;
    let args = ["dialects", "try", file.path(), "--archive", archive.url(), "--dialect", "unknown", "-o", "jsonl"];
    let rows = support::run(&args).lines();
    assert!(rows.len() >= 4 && rows.iter().any(|r| r["dialect"] == "mine"), "{rows:#?}");
    // --topic asks for the live topic, whatever archive the environment names.
    let args = ["dialects", "try", file.path(), "-t", "a", "-b", "127.0.0.1:1", "--start-timeout", "1s"];
    let (_, error) = failure(&program(&args).env("DLQ_ARCHIVER_ARCHIVE", archive.url()).output().unwrap());
    assert!(error.contains("127.0.0.1:1"), "{error}");
    let id = "shop.orders-dlq-bare/0/0";
    let shown = archive.run(&["show", id, "-o", "json", "--dialect-file", file.path()]).json();
    assert_eq!((&shown["dialect"], &shown["hops"][0]["dialect"]), (&"unknown".into(), &"mine".into()), "{shown:#}");
}

#[test]
fn a_wrong_table_is_refused_with_line_and_reason() {
    let file = File::new("wrong", &MINE.replace("[detect]", "[detcet]"));
    for args in [
        &["dialects", "try"][..],
        &["dialects", "list", "--dialect-file"],
        &["config", "check", "-t", "a", "-b", "b:1", "--archive", "file:///a", "--dialect-file"],
    ] {
        let (code, error) = failure(&program(&[args, &[file.path()]].concat()).output().unwrap());
        assert!(code == 2 && error.contains("wrong.toml: line 5: `[detcet]`: unknown field"), "{args:?}: {error}");
    }
    let file = File::new("short", &MINE.replace("error_class = {", "error_class = \"x\" #"));
    let (code, error) = failure(&program(&["dialects", "list", "--dialect-file", file.path()]).output().unwrap());
    assert!(code == 2 && error.contains("expected a table such as { from = "), "{error}");
    let (code, error) = failure(&program(&["dialects", "list", "--dialect-file", "/no/such.toml"]).output().unwrap());
    assert!(code == 2 && error.contains("cannot read --dialect-file /no/such.toml"), "{error}");
    let (code, error) = failure(&program(&["dialects", "try", "no-such.toml", "-t", "a"]).output().unwrap());
    assert!(code == 2 && error.contains("cannot read no-such.toml"), "{error}");
    let (code, error) = failure(&program(&["dialects", "try", "spring"]).output().unwrap());
    assert!(code == 2 && error.contains("give --topic (and --brokers), or --archive"), "{error}");
}
