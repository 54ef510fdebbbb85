//! `archive --listen`: the real program on an embedded broker, scraped and probed over HTTP; and that rules and dashboard
//! name what there is.

#[allow(dead_code, reason = "each test program uses a part")]
mod broker;
mod common;

use broker::{Broker, program, text};
use common::fixtures;
use dlq_archiver::archive::Counters;
use dlq_archiver::health::Limits;
use dlq_archiver::metrics::Monitor;
use dlq_archiver::store::Requests;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// An archiver that runs on, and listens.
struct Archiver {
    child: Child,
    address: String,
}

impl Drop for Archiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Archiver {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "it ended without listening");
            if let Some((_, rest)) = line.split_once("listening on http://") {
                break rest.split(": ").next().unwrap().to_owned();
            }
        };
        // So that the program never waits for a reader.
        std::thread::spawn(move || log.read_to_end(&mut Vec::new()));
        Self { child, address }
    }

    /// Status and body.
    fn get(&self, path: &str, accept: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn scrape(&self) -> String {
        let (status, body) = self.get("/metrics", "application/openmetrics-text;version=1.0.0");
        assert!(status == 200 && body.ends_with("\n# EOF\n"), "{body}");
        body
    }

    /// Asks until it is so.
    fn until(&self, what: &str, so: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !so(self) {
            assert!(began.elapsed() < Duration::from_secs(60), "{what}: {}", self.scrape());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Ends it by SIGTERM; how long that took.
    fn end(mut self) -> Duration {
        let began = Instant::now();
        assert!(Command::new("kill").arg(self.child.id().to_string()).status().unwrap().success());
        assert!(self.child.wait().unwrap().success());
        began.elapsed()
    }
}

/// Sum of all samples of a name, those that have `labels` in them.
fn value(scrape: &str, name: &str, labels: &str) -> f64 {
    let samples = scrape.lines().filter(|l| l.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
    samples.filter(|l| l.contains(labels)).map(|l| l.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}

fn archive(broker: &Broker, folder: &Path, more: &[&str]) -> Command {
    let archive = format!("file://{}", folder.display());
    let mut args = vec!["archive", "--topic", "^.*", "--archive", &archive, "--listen", "127.0.0.1:0"];
    args.extend(more);
    broker.command(&args)
}

#[test]
fn what_was_archived_is_counted_and_the_archiver_is_ready() {
    let broker = Broker::with_fixtures(&["connect", "streams"]);
    let count = fixtures("connect").len() + fixtures("streams").len();
    let folder = tempfile::tempdir().unwrap();
    let archiver = Archiver::start(archive(&broker, folder.path(), &["--cut-age", "1s"]));
    let archived = |a: &Archiver| value(&a.scrape(), "dlq_archiver_records_archived_total", "");
    archiver.until("all is archived", |a| archived(a) as usize == count);
    let scrape = archiver.scrape();
    let of = |name: &str, labels: &str| value(&scrape, name, labels) as usize;
    assert_eq!(of("dlq_archiver_records_read_total", ""), count);
    assert_eq!(of("dlq_archiver_records_decoded_total", "dialect=\"connect\""), fixtures("connect").len());
    assert_eq!(of("dlq_archiver_records_decoded_total", ""), count);
    let (mut objects, mut bytes) = (0, 0);
    for file in walk(&folder.path().join("data")) {
        (objects, bytes) = (objects + 1, bytes + fs::metadata(file).unwrap().len());
    }
    assert_eq!(of("dlq_archiver_objects_total", ""), objects);
    assert_eq!(of("dlq_archiver_object_bytes_total", ""), bytes as usize);
    assert_eq!(of("dlq_archiver_cut_duration_seconds_count", ""), of("dlq_archiver_cuts_total", ""));
    assert_eq!(of("dlq_archiver_archived_offset", ""), count, "each partition from offset 0 on");
    assert!(of("dlq_archiver_store_request_duration_seconds_count", "operation=\"create\",outcome=\"ok\"") > objects);
    assert_eq!(of("dlq_archiver_memory_budget_bytes", ""), 512 << 20);
    archiver.until("its memory is free", |a| value(&a.scrape(), "dlq_archiver_memory_used_bytes", "") == 0.0);
    assert_eq!(of("dlq_archiver_unavailable_since_timestamp_seconds", ""), 0);
    assert!(value(&scrape, "process_resident_memory_bytes", "") > 1e6);
    assert_eq!(of("dlq_archiver_ready", ""), 1);
    archiver.until("it is ready", |a| a.get("/readyz", "").0 == 200);
    assert_eq!(archiver.get("/livez", ""), (200, "{\"alive\":true}\n".into()));
    assert_eq!(archiver.get("/", "").0, 404);
    // For `promtool check metrics`: scripts/promtool.sh.
    if let Some(file) = std::env::var_os("DLQ_ARCHIVER_SCRAPE") {
        fs::write(file, archiver.get("/metrics", "text/plain").1).unwrap();
    }
    // A client that is in the middle of its request keeps nothing from ending.
    let mut slow = TcpStream::connect(&archiver.address).unwrap();
    slow.write_all(b"GET /metrics HT").unwrap();
    let took = archiver.end();
    assert!(took < Duration::from_secs(10), "{took:?}");
}

fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    entries.flat_map(|p| if p.is_dir() { walk(&p) } else { vec![p] }).collect()
}

#[test]
fn a_stopped_partition_makes_it_unready_and_not_dead() {
    let broker = Broker::with_fixtures(&["connect", "streams"]);
    let folder = tempfile::tempdir().unwrap();
    let once = archive(&broker, folder.path(), &["--once"]).output().unwrap();
    assert!(once.status.success(), "{}", text(&once.stderr));
    let genesis = walk(&folder.path().join("ledger")).into_iter().find(|p| p.ends_with("0/genesis.json")).unwrap();
    let topic = genesis.ancestors().nth(2).unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    fs::write(&genesis, "{").unwrap();
    let archiver = Archiver::start(archive(&broker, folder.path(), &[]));
    let stopped = format!("dlq_archiver_stopped{{topic=\"{topic}\",partition=\"0\"}} 1.0");
    archiver.until("it is stopped", |a| a.scrape().contains(&stopped));
    let (status, body) = archiver.get("/readyz", "");
    let document: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &document["reasons"][0]["what"]), (503, &format!("{topic}/0").into()), "{body}");
    assert!(document["reasons"][0]["why"].as_str().unwrap().starts_with("stopped: "), "{body}");
    assert_eq!(archiver.get("/livez", "").0, 200);
    assert_eq!(value(&archiver.scrape(), "dlq_archiver_partitions_stopped", ""), 1.0);
    assert_eq!(value(&archiver.scrape(), "dlq_archiver_ready", ""), 0.0);
}

#[test]
fn a_store_that_is_down_is_told_while_it_is_waited_for() {
    let broker = Broker::with_fixtures(&["connect"]);
    // Nobody listens there.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endpoint = format!("http://{closed}");
    let args = ["archive", "--topic", "^.*", "--archive", "s3://bucket/dlq", "--listen", "127.0.0.1:0"];
    let mut command = broker.command(&args);
    command.args(["--endpoint-url", &endpoint]).env("AWS_ACCESS_KEY_ID", "a").env("AWS_SECRET_ACCESS_KEY", "b");
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let archiver = Archiver::start(command);
    let since = |a: &Archiver| value(&a.scrape(), "dlq_archiver_unavailable_since_timestamp_seconds", "what=\"store\"");
    archiver.until("the store is missed", |a| since(a) > 0.0);
    let first = since(&archiver);
    assert!((before - 1.0..before + 60.0).contains(&first), "{first} {before}");
    let (status, body) = archiver.get("/readyz", "");
    assert_eq!(status, 503);
    assert!(body.contains("{\"what\":\"store\",\"why\":\"it has not answered since the start\"}"), "{body}");
    assert_eq!(archiver.get("/livez", "").0, 200);
    archiver.until("it is asked again", |a| {
        value(&a.scrape(), "dlq_archiver_store_request_duration_seconds_count", "outcome=\"unavailable\"") > 1.0
    });
    assert_eq!(since(&archiver), first, "one outage has one beginning");
}

/// A way to S3 that can be closed.
struct Way {
    port: u16,
    to: String,
    open: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Way {
    fn new(to: &str) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self { port, to: to.to_owned(), open: Arc::default(), streams: Arc::default() }
    }

    fn open(&self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).unwrap();
        listener.set_nonblocking(true).unwrap();
        self.open.store(true, Relaxed);
        let (open, streams, to) = (self.open.clone(), self.streams.clone(), self.to.clone());
        std::thread::spawn(move || {
            while open.load(Relaxed) {
                let Ok((client, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                };
                client.set_nonblocking(false).unwrap();
                let server = TcpStream::connect(&to).unwrap();
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                streams.lock().unwrap().extend([client, server]);
            }
        });
    }

    fn close(&self) {
        self.open.store(false, Relaxed);
        std::thread::sleep(Duration::from_millis(50));
        self.streams.lock().unwrap().drain(..).for_each(|s| drop(s.shutdown(Shutdown::Both)));
    }
}

/// On a real S3, if there is one.
#[test]
fn an_outage_of_the_store_is_told_and_so_is_its_end() {
    let (Ok(bucket), Ok(endpoint)) = (std::env::var("LOCALSTACK_BUCKET"), std::env::var("AWS_ENDPOINT_URL")) else {
        assert!(std::env::var_os("DLQ_ARCHIVER_REQUIRE_SERVICES").is_none(), "LOCALSTACK_BUCKET is not set");
        return eprintln!("skipped: run make up, and source localstack/.run/env");
    };
    let records = fixtures("connect");
    let broker = Broker::with(&records);
    let way = Way::new(endpoint.trim_start_matches("http://"));
    way.open();
    let (archive, endpoint) =
        (format!("s3://{bucket}/metrics-{}", uuid::Uuid::new_v4()), format!("http://127.0.0.1:{}", way.port));
    let args = ["archive", "--topic", "^.*", "--archive", &archive, "--endpoint-url", &endpoint, "--cut-age", "1s"];
    let mut command = broker.command(&args);
    command.args(["--listen", "127.0.0.1:0"]);
    let archiver = Archiver::start(command);
    let archived = |a: &Archiver| value(&a.scrape(), "dlq_archiver_records_archived_total", "") as usize;
    let since = |a: &Archiver| value(&a.scrape(), "dlq_archiver_unavailable_since_timestamp_seconds", "what=\"store\"");
    archiver.until("all is archived", |a| archived(a) == records.len());
    assert_eq!(since(&archiver), 0.0);
    way.close();
    broker.produce(&records);
    archiver.until("the store is missed", |a| since(a) > 0.0);
    let first = since(&archiver);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(since(&archiver), first, "one outage has one beginning");
    assert_eq!((archived(&archiver), archiver.get("/livez", "").0), (records.len(), 200));
    // Kafka has the records, and there is time.
    assert_eq!(archiver.get("/readyz", "").0, 200);
    way.open();
    archiver.until("the rest is archived", |a| archived(a) == 2 * records.len());
    archiver.until("the store is back", |a| since(a) == 0.0);
}

#[test]
fn an_address_that_is_taken_ends_the_start() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let start = |listen: &str| {
        let args = ["archive", "--topic", "t", "--archive", "memory:", "--brokers", "127.0.0.1:1", "--listen", listen];
        broker::failure(&program(&args).output().unwrap())
    };
    let (code, message) = start(&address);
    assert_eq!(code, 2);
    assert!(message.contains(&address) && message.contains("another program listens there"), "{message}");
    let (code, message) = start("nonsense");
    assert!(code == 2 && message.contains("--listen \"nonsense\" is not an address"), "{message}");
}

/// A rule or a panel on a name that does not exist is silent for ever.
#[test]
fn rules_and_dashboard_name_metrics_that_there_are() {
    let (counters, requests) = (Arc::new(Counters::default()), Requests::default());
    // Of `--refetch`, which not every archiver has.
    counters.add_originals(&BTreeMap::new(), 0);
    let monitor = Monitor::new(counters, requests, Limits::default(), Box::new(|_| 0.5));
    let page = monitor.page("/metrics", "").unwrap().body;
    let mut there = BTreeSet::new();
    for (name, kind) in page.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.split_once(' ')) {
        there.insert(name.to_owned());
        if kind == "histogram" {
            there.extend(["_bucket", "_sum", "_count"].map(|suffix| format!("{name}{suffix}")));
        }
    }
    let name = regex::Regex::new(r"\b(?:dlq_archiver|process)_[a-z0-9_]+").unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (file, least) in [
        ("deploy/prometheus/alerts.yaml", 12),
        ("deploy/prometheus/alerts_test.yaml", 6),
        ("deploy/grafana/dashboard.json", 25),
        ("README.md", 8),
    ] {
        let text = fs::read_to_string(root.join(file)).unwrap();
        let named: BTreeSet<&str> = name.find_iter(&text).map(|m| m.as_str()).collect();
        assert!(named.len() >= least, "{file}: {named:?}");
        for name in named {
            assert!(there.contains(name), "{file}: there is no metric {name}");
        }
    }
}
