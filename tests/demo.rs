//! The real program's `demo`.

use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

fn demo(dir: &std::path::Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlq-archiver"));
    command.arg("demo").arg("--dir").arg(dir);
    // Settings for a real archive must not reach the demo's commands.
    command.env("DLQ_ARCHIVER_TOPIC", "something-else").env("DLQ_ARCHIVER_FORMAT", "jsonl");
    command.env("DLQ_ARCHIVER_CUT_RECORDS", "1").env("DLQ_ARCHIVER_BROKERS", "192.0.2.1:9");
    command
}

#[test]
fn plays_to_its_end_and_shows_the_commands() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("it's new");
    let began = Instant::now();
    let output = demo(&dir).output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!((output.status.code(), err.as_str()), (Some(0), ""), "{out}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert!(!out.contains('\x1b'), "no colour into a pipe");
    let has = |text: &str| assert!(out.contains(text), "{text} is not in\n{out}");
    has("$ dlq-archiver tail --brokers 127.0.0.1:");
    has("87982405058579  vastdata.com:checked-uploads.f1c78fd2-63e7-408c-9e7b-0bd4a3fd3341 ");
    has("  docs-src/checked/tiny.txt  500  http://picky-nbdpm6d3aaaaa.dataengine-ns-");
    has("  checked/tiny.txt is 4 bytes, need at least 10\n");
    has("archived 16 records of 12 partitions in 7 cuts: 7 objects");
    has("$ dlq-archiver summary --archive 'file://");
    has("$ dlq-archiver show --archive 'file://");
    has("shop.orders  orders-to-warehouse  java.sql.SQLException        3\n");
    has("restored 3 of 3 selected records (transactional delivery");
    has(
        "shop.orders/0/1  2026-10-08T09:00:03.000Z  CreateTime 1791450003000\n  trace-id: null\n  empty: \"\"\n  dlq-archiver-restore-id: \"",
    );
    has("  dlq-archiver-restore-count: \"1\"\n  key (3 bytes, text): o-3\n  value: null\n");
    has("  key: \"\" (empty)\n  value: \"\" (empty)\n");
    has("      3  already restored");
    has("default-dlt-7-00000000000000000000-00000000000000000002.parquet");
    has("SELECT pipeline_name");
    let quoted = dir.canonicalize().unwrap().display().to_string().replace('\'', "''");
    has(&format!("FROM read_parquet('{quoted}/data/**/*.parquet'"));

    // Nothing is left running.
    let broker = out.split_once("--brokers ").unwrap().1.split(' ').next().unwrap();
    assert!(TcpStream::connect(broker).is_err(), "{broker} still listens");

    // What it printed can be typed: by a shell, on the files that are left.
    let show = out.lines().find_map(|l| l.strip_prefix("$ dlq-archiver show ")).unwrap();
    let program = env!("CARGO_BIN_EXE_dlq-archiver");
    let again = Command::new("sh").args(["-c", &format!("'{program}' show {show}")]).output().unwrap();
    assert!(again.status.success() && !again.stdout.is_empty());
    assert!(out.contains(std::str::from_utf8(&again.stdout).unwrap()));

    // Never into a folder that has something in it.
    let output = demo(&dir).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), err.contains("is not empty")), (Some(2), true), "{err}");
}

#[test]
fn tells_the_same_story_every_time() {
    let play = || {
        let folder = tempfile::tempdir().unwrap();
        let output = demo(&folder.path().join("a")).output().unwrap();
        let out = String::from_utf8(output.stdout).unwrap();
        let place = folder.path().canonicalize().unwrap();
        let port = out.split("127.0.0.1:").nth(1).unwrap().split([',', ' ']).next().unwrap().to_owned();
        let out = out.replace(place.to_str().unwrap(), "DIR").replace(&format!("127.0.0.1:{port}"), "BROKER");
        // Sizes and ids hang on times and on chance.
        out.lines().filter(|l| l.contains("  docs-src/") || l.starts_with("$ ")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(play(), play());
}
