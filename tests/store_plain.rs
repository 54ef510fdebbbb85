//! `archive` on stores that do not keep "create only if absent": a small S3 server that ignores the condition, does not
//! know it, or loses races. What it is asked is kept. Records come from the embedded broker.

use dlq_archiver::kafka::{Connection, MockBroker, NewRecord, Producer};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::{Run, program};

mod support;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lack {
    Ignores,
    /// 501
    Refuses,
    /// Looks, waits, writes.
    LosesRaces,
}

/// A PUT: its key, and whether it had a condition.
type Put = (String, bool);

struct FakeS3 {
    url: String,
    puts: Arc<Mutex<Vec<Put>>>,
}

#[derive(Default)]
struct Objects(Mutex<BTreeMap<String, Vec<u8>>>);

impl FakeS3 {
    fn start(lack: Lack) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (puts, objects) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Objects::default()));
        let seen = puts.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (seen, objects) = (seen.clone(), objects.clone());
                std::thread::spawn(move || serve(stream.unwrap(), lack, &seen, &objects));
            }
        });
        Self { url, puts }
    }

    fn archive(&self) -> Command {
        let mut command = program();
        command
            .env("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
            .env("AWS_SECRET_ACCESS_KEY", "the-secret")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ENDPOINT_URL", &self.url)
            .env("DLQ_ARCHIVER_ARCHIVE", "s3://bucket/archive");
        command
    }

    fn run(&self, args: &[&str]) -> Run {
        self.archive().args(args).output().unwrap().into()
    }

    fn puts(&self) -> Vec<Put> {
        self.puts.lock().unwrap().clone()
    }
}

/// One request of one connection.
fn serve(stream: TcpStream, lack: Lack, puts: &Mutex<Vec<Put>>, objects: &Objects) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let mut headers = BTreeMap::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        let Some((name, value)) = header.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let mut body = vec![0; headers.get("content-length").map_or(0, |length| length.parse().unwrap())];
    reader.read_exact(&mut body).unwrap();
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let key = unescaped(path.strip_prefix("/bucket").unwrap().trim_start_matches('/'));
    let stored = |key: &str| objects.0.lock().unwrap().get(key).cloned();
    let (status, answer) = match method {
        "PUT" => {
            let condition = headers.contains_key("if-none-match");
            puts.lock().unwrap().push((key.clone(), condition));
            match lack {
                Lack::Refuses if condition => ("501 Not Implemented", error("NotImplemented")),
                Lack::LosesRaces if condition && stored(&key).is_some() => {
                    ("412 Precondition Failed", error("PreconditionFailed"))
                }
                _ => {
                    if lack == Lack::LosesRaces {
                        std::thread::sleep(Duration::from_millis(30));
                    }
                    objects.0.lock().unwrap().insert(key, body);
                    ("200 OK", Vec::new())
                }
            }
        }
        "GET" if key.is_empty() => ("200 OK", objects.list(query)),
        _ => match (stored(&key), headers.get("range")) {
            (None, _) => ("404 Not Found", error("NoSuchKey")),
            (Some(body), None) => ("200 OK", body),
            (Some(body), Some(range)) => {
                let (from, to) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
                let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
                ("206 Partial Content", body[from..=to.min(body.len() - 1)].to_vec())
            }
        },
    };
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", answer.len());
    let stream = reader.get_mut();
    stream.write_all(head.as_bytes()).unwrap();
    if method != "HEAD" {
        stream.write_all(&answer).unwrap();
    }
}

fn error(code: &str) -> Vec<u8> {
    format!("<Error><Code>{code}</Code><Message>A header or a key</Message></Error>").into_bytes()
}

fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes().iter();
    while let Some(byte) = rest.next() {
        let hex = |rest: &mut std::slice::Iter<'_, u8>| char::from(*rest.next().unwrap()).to_digit(16).unwrap() as u8;
        bytes.push(if *byte == b'%' { hex(&mut rest) * 16 + hex(&mut rest) } else { *byte });
    }
    String::from_utf8(bytes).unwrap()
}

impl Objects {
    /// ListObjectsV2.
    fn list(&self, query: &str) -> Vec<u8> {
        let query: BTreeMap<&str, String> =
            query.split('&').filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k, unescaped(v))).collect();
        let get = |name: &str| query.get(name).map_or("", String::as_str);
        let after = get("start-after").max(get("continuation-token"));
        let limit = query.get("max-keys").map_or(1000, |n| n.parse().unwrap());
        let (prefix, folders) = (get("prefix"), !get("delimiter").is_empty());
        let objects = self.0.lock().unwrap();
        let found: Vec<_> = objects.iter().filter(|(k, _)| k.starts_with(prefix) && k.as_str() > after).collect();
        let mut xml = String::from("<ListBucketResult>");
        if folders {
            let slash = |key: &String| key[prefix.len()..].find('/').map(|at| key[..=prefix.len() + at].to_owned());
            for folder in found.iter().filter_map(|(key, _)| slash(key)).collect::<std::collections::BTreeSet<_>>() {
                write!(xml, "<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>").unwrap();
            }
        } else {
            for (key, body) in found.iter().take(limit) {
                write!(xml, "<Contents><Key>{key}</Key><Size>{}</Size></Contents>", body.len()).unwrap();
            }
            if found.len() > limit {
                let token = found[limit - 1].0;
                write!(xml, "<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>")
                    .unwrap();
            }
        }
        (xml + "</ListBucketResult>").into_bytes()
    }
}

fn produce(connection: &Connection, count: usize) {
    let producer = Producer::new(connection, None).unwrap();
    for token in 0..count {
        let (topic, value) = ("plain-dlq", Some(&b"dead"[..]));
        let headers = std::iter::empty();
        let record = NewRecord { topic, partition: Some(0), key: None, value, headers, timestamp_ms: None, token };
        producer.send(record, Duration::from_secs(10)).unwrap();
    }
    producer.flush(Duration::from_secs(30)).unwrap();
    assert!(producer.acks().iter().all(|ack| ack.result.is_ok()));
}

fn broker(count: usize) -> (MockBroker, Connection) {
    let broker = MockBroker::start().unwrap();
    broker.create_topic("plain-dlq", 1).unwrap();
    let connection = Connection::new(&broker.brokers());
    produce(&connection, count);
    (broker, connection)
}

const ARCHIVE: [&str; 6] = ["archive", "--once", "-t", "plain-dlq", "-o", "json"];

fn told(run: &Run) {
    for part in ["ONLY WITH ONE WRITER AT A TIME", "s3://bucket/archive", "SeaweedFS", "Waiting 63 s"] {
        assert!(run.err.contains(part), "{part}: {run:?}");
    }
}

/// Slow: each start waits for what a crashed archiver may have sent.
fn exact_with_one_archiver(lack: Lack) {
    let server = FakeS3::start(lack);
    let (broker, connection) = broker(10);
    for (more, rows) in [(0, 10), (5, 5)] {
        produce(&connection, more);
        let began = Instant::now();
        let run = server.run(&[&ARCHIVE[..], &["--brokers", &broker.brokers()]].concat());
        assert_eq!(run.json()["records"], rows, "{run:?}");
        assert!(began.elapsed() > Duration::from_secs(63), "{:?}", began.elapsed());
        told(&run);
    }
    assert_eq!(server.run(&["list", "-o", "jsonl"]).lines().len(), 15);
    server.run(&["verify"]).ok();
    if lack == Lack::Refuses {
        // A restore does not find out by itself, and says what to give.
        let restore = ["restore", "--all", "--to", "plain-dlq", "--allow-dead-letter-target", "--brokers"];
        let run = server.run(&[&restore[..], &[&broker.brokers()]].concat());
        assert!(run.code == 2 && run.err.contains("--store-create plain"), "{run:?}");
    }
    let puts = server.puts();
    let puts = puts.iter().filter(|(key, _)| !key.starts_with("archive/restores/"));
    let (description, others): (Vec<_>, Vec<_>) = puts.partition(|(key, _)| key == "archive/archive.json");
    // Genesis, and for each of two cuts intent, data, manifest: each written once, without a condition.
    assert_eq!(others.len(), 7, "{others:?}");
    assert!(others.iter().all(|(_, condition)| !condition), "{others:?}");
    let keys: std::collections::BTreeSet<_> = others.iter().map(|(key, _)| key).collect();
    assert_eq!(keys.len(), others.len(), "{others:?}");
    assert!(!description.is_empty());
}

#[test]
fn a_store_that_ignores_the_condition_is_told_and_exact_with_one_archiver() {
    exact_with_one_archiver(Lack::Ignores);
}

#[test]
fn a_store_that_does_not_know_the_condition_is_told_and_exact_with_one_archiver() {
    exact_with_one_archiver(Lack::Refuses);
}

#[test]
fn with_conditional_such_a_store_is_refused() {
    let (broker, _connection) = broker(1);
    for lack in [Lack::Ignores, Lack::Refuses] {
        let server = FakeS3::start(lack);
        let more = ["--brokers", &broker.brokers(), "--store-create", "conditional"];
        let run = server.run(&[&ARCHIVE[..], &more].concat());
        let error = run.fails(2);
        assert!(error.contains("If-None-Match") && error.contains("s3://bucket/archive"), "{error}");
        assert!(server.puts().iter().all(|(key, condition)| key == "archive/archive.json" && *condition));
    }
}

#[test]
fn a_plain_start_writes_nothing_while_it_waits_and_ends_at_once_when_asked() {
    let server = FakeS3::start(Lack::Refuses);
    let (broker, _connection) = broker(1);
    let mut child = server
        .archive()
        .args(ARCHIVE)
        .args(["--brokers", &broker.brokers(), "--store-create", "plain"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut err = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    while !err.contains("Waiting") {
        assert_ne!(stderr.read_line(&mut err).unwrap(), 0, "{err}");
    }
    std::thread::sleep(Duration::from_secs(2));
    let began = Instant::now();
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    stderr.read_to_string(&mut err).unwrap();
    let run = Run { err, ..child.wait_with_output().unwrap().into() };
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    told(&run);
    assert!(run.err.contains("nothing is done yet"), "{run:?}");
    assert_eq!(server.puts(), []);
}

#[test]
fn a_store_that_loses_races_is_found_by_the_probe() {
    let (broker, _connection) = broker(1);
    for (lack, found) in [(Lack::LosesRaces, "loses races"), (Lack::Ignores, "loses races"), (Lack::Refuses, "501")] {
        let server = FakeS3::start(lack);
        let run = server.run(&[&ARCHIVE[..], &["--brokers", &broker.brokers(), "--probe-race"]].concat());
        let error = run.err.lines().last().unwrap_or_default();
        assert!(run.code == 2 && error.contains(found) && error.contains("s3://bucket/archive"), "{run:?}");
        assert!(server.puts().iter().all(|(key, _)| key.starts_with("archive/probe/")));
    }
}

#[test]
fn the_probe_does_not_go_with_plain() {
    let (broker, _connection) = broker(1);
    let server = FakeS3::start(Lack::Refuses);
    let more = ["--brokers", &broker.brokers(), "--probe-race", "--store-create", "plain"];
    server.run(&[&ARCHIVE[..], &more].concat()).fails(2);
}

#[test]
fn a_store_that_keeps_the_condition_passes_the_probe_and_verify_takes_its_keys_for_no_orphans() {
    let (broker, _connection) = broker(1);
    let dir = tempfile::tempdir().unwrap();
    let mut archives = vec![format!("file://{}/archive", dir.path().display())];
    match std::env::var("LOCALSTACK_BUCKET") {
        Ok(bucket) => archives.push(format!("s3://{bucket}/probe-race/{}", uuid::Uuid::new_v4())),
        Err(_) => {
            let required = std::env::var("DLQ_ARCHIVER_REQUIRE_SERVICES").is_ok_and(|value| value == "1");
            assert!(!required, "LOCALSTACK_BUCKET is not set: run make up, and source its env");
            let _ = writeln!(std::io::stderr(), "probe on S3: skipped: run make up");
        }
    }
    for archive in archives {
        let run = |args: &[&str]| Run::from(program().args(args).args(["--archive", &archive]).output().unwrap());
        let first = run(&[&ARCHIVE[..], &["--brokers", &broker.brokers(), "--probe-race"]].concat());
        assert_eq!(first.json()["records"], 1, "{first:?}");
        assert!(first.err.contains("25 rounds of 12 creators"), "{first:?}");
        assert!(first.err.contains("no race was lost"), "{first:?}");
        assert!(!first.err.contains("ONE WRITER"), "{first:?}");
        run(&["verify"]).ok();
    }
}
