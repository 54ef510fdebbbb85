//! What the S3 store sends, and what it makes of answers: against a scripted server, and for credentials and
//! buckets against a real one where it runs (`make up`).
//!
//! Settings come from the environment, as for users. So each case runs in a child of its own: this test binary
//! again, with only the variables of the case.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlq_archiver::Kind;
use dlq_archiver::store::{self, Created, ObjectMeta, StoreOptions};

const KEYS: [(&str, &str); 4] = [
    ("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE"),
    ("AWS_SECRET_ACCESS_KEY", "the-secret"),
    ("AWS_REGION", "eu-west-1"),
    ("AWS_EC2_METADATA_DISABLED", "true"),
];

/// Runs in the child: one call, its outcome on standard output.
#[tokio::test]
#[ignore = "run by the other tests, in a process of its own"]
async fn child() {
    let call = std::env::var("CHILD_CALL").unwrap_or_default();
    let url = std::env::var("CHILD_URL").unwrap_or_default();
    let outcome = async {
        let store = store::open(&url, &StoreOptions::default()).await?;
        let meta = ObjectMeta::new("text/plain").with("rows", "1");
        Ok(match call.as_str() {
            "create" => format!("{:?}", store.create("a b/k", "hello".into(), &meta).await?),
            "create twice" => {
                store.create("k1", "hello".into(), &meta).await?;
                format!("{:?}", store.create("k2", "hello".into(), &meta).await?)
            }
            "create after a failure" => {
                let failed = store.create("k1", "hello".into(), &meta).await.unwrap_err();
                let refused = store.refuses_condition();
                format!("{:?} {refused} {:?}", failed.kind(), store.create("k2", "hello".into(), &meta).await?)
            }
            "create plainly" => {
                assert!(store.set_plain(true).is_some());
                let first = store.create("k", "hello".into(), &meta).await?;
                format!("{first:?} {:?}", store.create("k", "hello".into(), &meta).await?)
            }
            "get" => format!("{:?}", store.get("k").await?),
            "head" => format!("{:?}", store.head("k").await?.is_some()),
            "list" => format!("{:?}", store.list("", None, None).await?.objects.len()),
            other => panic!("{other}"),
        })
    };
    let outcome: dlq_archiver::Result<String> = outcome.await;
    match outcome {
        Ok(text) => println!("OUTCOME Ok {text}"),
        Err(error) => println!("OUTCOME {:?} {error}", error.kind()),
    }
}

fn run(call: &str, url: &str, variables: &[(&str, &str)]) -> String {
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
        .env_clear()
        .env("HOME", home.path())
        .env("CHILD_CALL", call)
        .env("CHILD_URL", url)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let outcome = text.lines().find_map(|line| line.split_once("OUTCOME ").map(|(_, outcome)| outcome.to_owned()));
    outcome.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

fn kind(outcome: &str, kind: Kind) {
    assert!(outcome.starts_with(&format!("{kind:?} ")), "{outcome}");
    assert!(!outcome.contains("the-secret"), "{outcome}");
}

/// What one request looked like: request line and headers, names in lower case.
#[derive(Debug, Clone)]
struct Request {
    line: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// Gives each request the next answer, the last one again and again.
struct Scripted {
    url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Scripted {
    fn start(answers: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for (at, stream) in listener.incoming().enumerate() {
                let mut reader = BufReader::new(stream.unwrap());
                if reader.fill_buf().is_ok_and(|start| start.first() == Some(&0x16)) {
                    // A TLS greeting: answered as a plain server would.
                    let _ = reader.get_mut().write_all(answers[0].as_bytes());
                    continue;
                }
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                let mut headers = BTreeMap::new();
                loop {
                    let mut header = String::new();
                    reader.read_line(&mut header).unwrap();
                    let Some((name, value)) = header.trim_end().split_once(':') else { break };
                    headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
                }
                let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                seen.lock().unwrap().push(Request { line: line.trim_end().to_owned(), headers, body });
                let answer = answers.get(at).or(answers.last()).unwrap();
                reader.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        });
        Self { url, requests }
    }

    fn run(&self, call: &str, more: &[(&str, &str)]) -> String {
        let mut variables = KEYS.to_vec();
        variables.push(("AWS_ENDPOINT_URL", &self.url));
        variables.extend_from_slice(more);
        run(call, "s3://bucket/some/prefix", &variables)
    }

    fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

fn refusal(status: &str, code: &str, message: &str) -> String {
    answer(status, &format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>"))
}

#[test]
fn a_create_is_one_plain_put_with_a_condition_and_checksums() {
    let server = Scripted::start(vec![answer("200 OK", "")]);
    assert_eq!(server.run("create", &[]), format!("Ok {:?}", Created::New));
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    let Request { line, headers, body } = &requests[0];
    assert_eq!(line.split('?').next().unwrap().trim_end_matches(" HTTP/1.1"), "PUT /bucket/some/prefix/a%20b/k");
    assert_eq!(body, b"hello");
    for (name, value) in [
        ("if-none-match", "*"),
        ("content-md5", "XUFAKrxLKna5cZ2REBfFkg=="),
        ("x-amz-checksum-sha256", "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ="),
        ("content-type", "text/plain"),
        ("x-amz-meta-rows", "1"),
        ("content-length", "5"),
    ] {
        assert_eq!(headers.get(name).map(String::as_str), Some(value), "{name}: {headers:?}");
    }
    // Several stores refuse these.
    for name in ["content-encoding", "x-amz-trailer", "x-amz-sdk-checksum-algorithm", "x-amz-checksum-crc32", "expect"]
    {
        assert!(!headers.contains_key(name), "{name}: {headers:?}");
    }
}

#[test]
fn a_store_without_the_checksum_header_gets_the_md5_alone_and_keeps_the_condition() {
    for refused in [
        refusal("400 Bad Request", "InvalidArgument", "Unsupported header 'x-amz-checksum-sha256' received."),
        refusal("501 Not Implemented", "NotImplemented", "A header you provided is not implemented"),
    ] {
        let server = Scripted::start(vec![refused, answer("200 OK", "")]);
        assert_eq!(server.run("create twice", &[]), "Ok New");
        let sent: Vec<_> = server
            .requests()
            .iter()
            .map(|request| {
                assert!(request.headers.contains_key("content-md5"));
                assert_eq!(request.headers["if-none-match"], "*");
                request.headers.contains_key("x-amz-checksum-sha256")
            })
            .collect();
        assert_eq!(sent, [true, false, false]);
    }
}

#[test]
fn a_store_without_the_condition_is_refused() {
    let server = Scripted::start(vec![refusal("501 Not Implemented", "NotImplemented", "If-None-Match")]);
    let outcome = server.run("create", &[]);
    kind(&outcome, Kind::Config);
    assert!(outcome.contains("If-None-Match"), "{outcome}");
    assert!(server.requests().iter().all(|request| request.headers["if-none-match"] == "*"));
}

#[test]
fn a_refused_condition_is_not_blamed_on_the_checksum() {
    // Both tries of the first object; the next one has its checksum again.
    let refused = refusal("501 Not Implemented", "NotImplemented", "A header you provided is not implemented");
    let server = Scripted::start(vec![refused.clone(), refused, answer("200 OK", "")]);
    assert_eq!(server.run("create after a failure", &[]), "Ok Config true New");
    let with_sha256 = |request: &Request| request.headers.contains_key("x-amz-checksum-sha256");
    assert_eq!(server.requests().iter().map(with_sha256).collect::<Vec<_>>(), [true, false, true]);
}

#[test]
fn a_plain_create_looks_first_and_sends_no_condition() {
    let absent = answer("404 Not Found", "");
    let server = Scripted::start(vec![absent, answer("200 OK", ""), answer("200 OK", "")]);
    assert_eq!(server.run("create plainly", &[]), "Ok New Exists");
    let requests = server.requests();
    let methods: Vec<_> = requests.iter().map(|request| request.line.split(' ').next().unwrap()).collect();
    assert_eq!(methods, ["HEAD", "PUT", "HEAD"]);
    assert!(requests.iter().all(|request| !request.headers.contains_key("if-none-match")), "{requests:?}");
    assert!(requests[1].headers.contains_key("x-amz-checksum-sha256"), "{requests:?}");
}

#[test]
fn a_conflict_is_tried_again_and_then_waited_out() {
    let conflict = refusal("409 Conflict", "ConditionalRequestConflict", "At the same time");
    let exists = refusal("412 Precondition Failed", "PreconditionFailed", "It is there");
    let server = Scripted::start(vec![conflict.clone(), conflict.clone(), exists]);
    assert_eq!(server.run("create", &[]), "Ok Exists");
    assert_eq!(server.requests().len(), 3);
    let server = Scripted::start(vec![conflict]);
    kind(&server.run("create", &[]), Kind::Unavailable);
}

#[test]
fn a_write_whose_reply_was_lost_answers_exists() {
    // The connection breaks without an answer; the SDK sends the request again.
    let server =
        Scripted::start(vec![String::new(), refusal("412 Precondition Failed", "PreconditionFailed", "It is there")]);
    assert_eq!(server.run("create", &[]), "Ok Exists");
}

#[test]
fn a_server_in_trouble_is_unavailable_after_three_tries() {
    for refused in [
        refusal("503 Slow Down", "SlowDown", "Please reduce your request rate."),
        refusal("500 Internal Server Error", "InternalError", "We are sorry"),
        answer("502 Bad Gateway", "<html>nginx</html>"),
    ] {
        for call in ["create", "get", "head", "list"] {
            let server = Scripted::start(vec![refused.clone()]);
            let outcome = server.run(call, &[]);
            kind(&outcome, Kind::Unavailable);
            assert!(outcome.contains(&server.url), "{outcome}");
            assert_eq!(server.requests().len(), 3, "{call}: {outcome}");
        }
    }
}

#[test]
fn a_download_that_breaks_off_is_tried_again() {
    let part = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhe".to_owned();
    let server = Scripted::start(vec![part.clone(), part.clone(), answer("200 OK", "hello")]);
    assert_eq!(server.run("get", &[]), "Ok Some(b\"hello\")");
    let server = Scripted::start(vec![part]);
    kind(&server.run("get", &[]), Kind::Unavailable);
}

#[test]
fn something_that_is_no_s3_server_is_told() {
    let page =
        "HTTP/1.1 404 Not Found\r\ncontent-type: text/html\r\ncontent-length: 9\r\nconnection: close\r\n\r\n<p>No</p>";
    let welcome =
        "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 9\r\nconnection: close\r\n\r\n<p>Hi</p>";
    for (call, answer) in [("create", page), ("list", page), ("list", welcome), ("get", page)] {
        let server = Scripted::start(vec![answer.to_owned()]);
        let outcome = server.run(call, &[]);
        kind(&outcome, Kind::Config);
        assert!(outcome.contains("no S3 server"), "{call}: {outcome}");
    }
}

#[test]
fn the_region_of_the_bucket_is_named() {
    let moved = "HTTP/1.1 301 Moved Permanently\r\nx-amz-bucket-region: eu-north-1\r\n\
                 content-length: 0\r\nconnection: close\r\n\r\n";
    let server = Scripted::start(vec![moved.to_owned()]);
    let outcome = server.run("head", &[]);
    kind(&outcome, Kind::Config);
    assert!(outcome.contains("AWS_REGION=eu-north-1"), "{outcome}");
}

#[test]
fn access_denied_names_the_policy_and_whose_keys() {
    let server = Scripted::start(vec![refusal("403 Forbidden", "AccessDenied", "Access\nDenied.")]);
    let outcome = server.run("get", &[]);
    kind(&outcome, Kind::Config);
    for part in ["s3:ListBucket", "Environment", "AKIA…", "s3://bucket/some/prefix/k", &server.url] {
        assert!(outcome.contains(part), "{part}: {outcome}");
    }
    // A HEAD has no body to say so in.
    let server = Scripted::start(vec!["HTTP/1.1 403 Forbidden\r\nconnection: close\r\n\r\n".to_owned()]);
    let outcome = server.run("head", &[]);
    kind(&outcome, Kind::Config);
    assert!(outcome.contains("s3:ListBucket"), "{outcome}");
}

#[test]
fn an_endpoint_for_s3_goes_before_the_general_one_and_a_profile_works() {
    let server = Scripted::start(vec![answer("200 OK", "hello")]);
    let nowhere = "http://127.0.0.1:1";
    let mut variables = KEYS.to_vec();
    variables.extend([("AWS_ENDPOINT_URL", nowhere), ("AWS_ENDPOINT_URL_S3", server.url.as_str())]);
    assert_eq!(run("get", "s3://bucket", &variables), "Ok Some(b\"hello\")");

    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config");
    let text = format!(
        "[profile ops]\naws_access_key_id = AKIAPROFILE\naws_secret_access_key = the-secret\nendpoint_url = {}\n",
        server.url
    );
    std::fs::write(&config, text).unwrap();
    let config = config.display().to_string();
    // No region either: with an endpoint of one's own it does not matter.
    let variables =
        [("AWS_CONFIG_FILE", config.as_str()), ("AWS_PROFILE", "ops"), ("AWS_EC2_METADATA_DISABLED", "true")];
    assert_eq!(run("get", "s3://bucket", &variables), "Ok Some(b\"hello\")");
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert!(requests[1].headers["authorization"].contains("AKIAPROFILE"), "{requests:?}");
    assert!(requests[1].headers["authorization"].contains("/us-east-1/s3/"), "{requests:?}");
}

#[test]
fn without_credentials_it_says_how_to_set_them() {
    let server = Scripted::start(vec![answer("200 OK", "hello")]);
    let variables = [("AWS_ENDPOINT_URL", server.url.as_str()), ("AWS_EC2_METADATA_DISABLED", "true")];
    let outcome = run("get", "s3://bucket", &variables);
    kind(&outcome, Kind::Config);
    assert!(outcome.contains("AWS_PROFILE"), "{outcome}");
    assert!(server.requests().is_empty());
}

#[test]
fn without_a_region_on_aws_it_says_how_to_set_it() {
    let outcome = run("get", "s3://bucket", &[("AWS_EC2_METADATA_DISABLED", "true")]);
    kind(&outcome, Kind::Config);
    assert!(outcome.contains("AWS_REGION"), "{outcome}");
}

#[test]
fn https_to_a_plain_server_is_told() {
    let server = Scripted::start(vec![answer("200 OK", "hello")]);
    let https = server.url.replace("http://", "https://");
    let outcome = server.run("get", &[("AWS_ENDPOINT_URL", &https)]);
    kind(&outcome, Kind::Config);
    assert!(outcome.contains("type http://"), "{outcome}");
}

#[test]
fn an_endpoint_that_nobody_listens_at_is_unavailable() {
    for endpoint in ["http://127.0.0.1:1", "http://no-such-host.invalid:9000", "http://192.0.2.1:9000"] {
        let mut variables = KEYS.to_vec();
        variables.push(("AWS_ENDPOINT_URL", endpoint));
        let started = Instant::now();
        let outcome = run("get", "s3://bucket", &variables);
        kind(&outcome, Kind::Unavailable);
        assert!(outcome.contains(endpoint), "{outcome}");
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}: {outcome}", started.elapsed());
    }
}

/// The environment of the running S3 server, or None with a notice.
fn real() -> Option<(String, Vec<(String, String)>)> {
    let Ok(bucket) = std::env::var("LOCALSTACK_BUCKET") else {
        let required = std::env::var("DLQ_ARCHIVER_REQUIRE_SERVICES").is_ok_and(|value| value == "1");
        assert!(!required, "LOCALSTACK_BUCKET is not set: run make up, and source its env");
        let _ = writeln!(std::io::stderr(), "S3 errors: skipped: run make up");
        return None;
    };
    let names = ["AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"];
    Some((bucket, names.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?))).collect()))
}

fn run_real(call: &str, url: &str, real: &[(String, String)], instead: &[(&str, &str)]) -> String {
    let mut variables: Vec<(&str, &str)> = real.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    variables.extend_from_slice(instead);
    run(call, url, &variables)
}

#[test]
fn a_missing_bucket_is_told() {
    let Some((_, environment)) = real() else { return };
    for call in ["create", "get", "list"] {
        let outcome = run_real(call, "s3://no-such-bucket-here/x", &environment, &[]);
        kind(&outcome, Kind::Config);
        let told = "bucket no-such-bucket-here does not exist: create it, or correct --archive";
        assert!(outcome.contains(told), "{call}: {outcome}");
    }
}

#[test]
fn wrong_credentials_are_told() {
    let Some((bucket, environment)) = real() else { return };
    for call in ["create", "get", "list", "head"] {
        let outcome = run_real(call, &format!("s3://{bucket}/x"), &environment, &[("AWS_ACCESS_KEY_ID", "AKIAWRONG")]);
        kind(&outcome, Kind::Config);
        assert!(outcome.contains("access key AKIA…"), "{call}: {outcome}");
        let wrong = [("AWS_SECRET_ACCESS_KEY", "the-secret")];
        let outcome = run_real(call, &format!("s3://{bucket}/x"), &environment, &wrong);
        kind(&outcome, Kind::Config);
    }
}
