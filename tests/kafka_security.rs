//! TLS, client certificates and SASL against a real Kafka, by the real program: what lets it in, and what it says when it
//! is not let in.
//!
//! Wants the listeners of `localstack/up.sh` (LOCALSTACK_KAFKA_*); skipped with a notice without them, failed if
//! `DLQ_ARCHIVER_REQUIRE_SERVICES=1`.

mod support;

use dlq_archiver::kafka::{Admin, Connection, NewRecord, Producer};
use dlq_archiver::record::TopicPartition;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use support::Run;

const PATIENCE: Duration = Duration::from_secs(60);
/// Within which a refusal is told, two looks of a second each and what else runs on the machine.
const AT_ONCE: Duration = Duration::from_secs(15);

struct Kafka {
    plaintext: String,
    sasl: String,
    mtls: String,
    tls: PathBuf,
    user: String,
    password: String,
}

/// `None` where the tests are to be skipped.
static KAFKA: LazyLock<Option<Kafka>> = LazyLock::new(|| {
    let var = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let kafka = || {
        Some(Kafka {
            plaintext: var("DLQ_ARCHIVER_BROKERS")?,
            sasl: var("LOCALSTACK_KAFKA_SASL_SSL")?,
            mtls: var("LOCALSTACK_KAFKA_MTLS")?,
            tls: var("LOCALSTACK_KAFKA_TLS_DIR")?.into(),
            user: var("LOCALSTACK_KAFKA_USER")?,
            password: var("LOCALSTACK_KAFKA_PASSWORD")?,
        })
    };
    let kafka = kafka();
    if kafka.is_none() {
        let required = std::env::var("DLQ_ARCHIVER_REQUIRE_SERVICES").is_ok_and(|v| v == "1");
        assert!(!required, "LOCALSTACK_KAFKA_SASL_SSL is not set: run make down, make up, and source its env");
        eprintln!("skipped: LOCALSTACK_KAFKA_SASL_SSL is not set (make up)");
    }
    kafka
});

fn strings(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

impl Kafka {
    fn file(&self, name: &str) -> String {
        self.tls.join(name).to_str().unwrap().to_owned()
    }

    /// A topic with records of `size` bytes.
    async fn topic(&self, name: &str, records: usize, size: usize) -> String {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let topic = format!("security-{name}-{}-{}", std::process::id(), since.as_micros());
        let connection = Connection::new(&self.plaintext);
        Admin::create_topic(&connection, &topic, 1, &[]).await.unwrap();
        self.produce(&topic, records, size);
        topic
    }

    fn produce(&self, topic: &str, records: usize, size: usize) {
        let producer = Producer::new(&Connection::new(&self.plaintext), None).unwrap();
        let value = vec![b'x'; size];
        for token in 0..records {
            let (value, headers) = (Some(&value[..]), std::iter::empty());
            let record = NewRecord { topic, partition: Some(0), key: None, value, headers, timestamp_ms: None, token };
            producer.send(record, PATIENCE).unwrap();
        }
        producer.flush(PATIENCE).unwrap();
        assert!(producer.acks().into_iter().all(|ack| ack.result.is_ok()));
    }

    fn tls(&self, brokers: &str, protocol: &str) -> Vec<String> {
        let (protocol, ca) =
            (format!("security.protocol={protocol}"), format!("ssl.ca.location={}", self.file("ca.pem")));
        strings(&["-b", brokers, "-X", &protocol, "-X", &ca])
    }

    fn sasl(&self, mechanism: &str, user: &str, password: &str) -> Vec<String> {
        let (user, password) = (format!("sasl.username={user}"), format!("sasl.password={password}"));
        let mechanism = format!("sasl.mechanism={mechanism}");
        with(self.tls(&self.sasl, "SASL_SSL"), &["-X", &mechanism, "-X", &user, "-X", &password])
    }

    fn token(&self, rest: &[&str]) -> Vec<String> {
        with(with(self.tls(&self.sasl, "SASL_SSL"), &["-X", "sasl.mechanism=OAUTHBEARER"]), rest)
    }
}

fn with(mut args: Vec<String>, more: &[&str]) -> Vec<String> {
    args.extend(strings(more));
    args
}

/// The same at other brokers.
fn at(args: Vec<String>, brokers: &str) -> Vec<String> {
    with(args, &["-X", &format!("bootstrap.servers={brokers}")])
}

fn archive_once(folder: &Path, topic: &str, args: &[String]) -> Run {
    let archive = format!("file://{}", folder.display());
    let mut all =
        strings(&["archive", "--once", "-o", "json", "--log-format", "json", "--topic", topic, "--archive", &archive]);
    all.extend_from_slice(args);
    support::program().args(all).output().unwrap().into()
}

/// An unsecured JWS, as a token endpoint gives it.
fn jws(subject: &str) -> String {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD as B64;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let claims = format!(r#"{{"sub":"{subject}","iat":{now},"exp":{}}}"#, now + 3600);
    format!("{}.{}.", B64.encode(r#"{"alg":"none"}"#), B64.encode(claims))
}

/// A token endpoint: its address, and how often it gave a token. It wants the secret `right`.
fn token_endpoint() -> (String, Arc<AtomicUsize>) {
    use base64::Engine as _;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/token", listener.local_addr().unwrap());
    let given = Arc::new(AtomicUsize::new(0));
    let counted = given.clone();
    let right = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode("archiver:right"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = vec![0; 8192];
            let n = stream.read(&mut request).unwrap_or(0);
            let (status, body) = if String::from_utf8_lossy(&request[..n]).contains(&right) {
                counted.fetch_add(1, Relaxed);
                (
                    "200 OK",
                    format!(r#"{{"access_token":"{}","token_type":"bearer","expires_in":3600}}"#, jws("archiver")),
                )
            } else {
                ("401 Unauthorized", r#"{"error":"invalid_client"}"#.to_owned())
            };
            let head = "Content-Type: application/json\r\nConnection: close";
            let _ = write!(stream, "HTTP/1.1 {status}\r\n{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
    });
    (url, given)
}

fn oidc(kafka: &Kafka, endpoint: &str, secret: &str) -> Vec<String> {
    let (endpoint, secret) =
        (format!("sasl.oauthbearer.token.endpoint.url={endpoint}"), format!("sasl.oauthbearer.client.secret={secret}"));
    let client = "sasl.oauthbearer.client.id=archiver";
    kafka.token(&["-X", "sasl.oauthbearer.method=oidc", "-X", client, "-X", &secret, "-X", &endpoint])
}

#[tokio::test]
async fn each_way_of_logging_in_archives_all_records() {
    let Some(kafka) = &*KAFKA else { return };
    let topic = kafka.topic("ways", 300, 100).await;
    let (endpoint, given) = token_endpoint();
    let both = tempfile::NamedTempFile::new().unwrap();
    let read = |name: &str| std::fs::read(kafka.tls.join(name)).unwrap();
    std::fs::write(both.path(), [read("client.pem"), read("client-key.pem")].concat()).unwrap();
    let java = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "bootstrap.servers={}\nsecurity.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={}\n\
         ssl.keystore.type=PEM\nssl.keystore.location={}\nssl.endpoint.identification.algorithm=\n",
        kafka.mtls,
        kafka.file("ca.pem"),
        both.path().display()
    );
    std::fs::write(java.path(), text).unwrap();
    let file = |path: &str| strings(&["--kafka-config", path]);
    let unsecured =
        ["-X", "enable.sasl.oauthbearer.unsecure.jwt=true", "-X", "sasl.oauthbearer.config=principal=archiver"];
    let ways = [
        ("SCRAM-SHA-512", kafka.sasl("SCRAM-SHA-512", &kafka.user, &kafka.password)),
        ("SCRAM-SHA-512 by a file", file(&kafka.file("scram.properties"))),
        ("SCRAM-SHA-256", kafka.sasl("SCRAM-SHA-256", &kafka.user, &kafka.password)),
        ("PLAIN", kafka.sasl("PLAIN", &kafka.user, &kafka.password)),
        ("a client certificate", file(&kafka.file("mtls.properties"))),
        ("a client certificate by the Java client's names", file(java.path().to_str().unwrap())),
        ("a token, unsecured", kafka.token(&unsecured)),
        ("a token of an endpoint", oidc(kafka, &endpoint, "right")),
    ];
    let ways = ways.into_iter().filter(|(way, _)| cfg!(feature = "oidc") || *way != "a token of an endpoint");
    for (way, args) in ways {
        let folder = tempfile::tempdir().unwrap();
        let run = archive_once(folder.path(), &topic, &args);
        assert_eq!((run.code, run.json()["records"].as_u64()), (0, Some(300)), "{way}: {run:?}");
        assert!(!run.err.contains(&kafka.password), "{way}: a secret in the log");
    }
    assert!(given.load(Relaxed) > 0);
}

#[tokio::test]
async fn a_restore_in_transactions_over_sasl_ssl() {
    let Some(kafka) = &*KAFKA else { return };
    let (from, to) = (kafka.topic("restored", 300, 100).await, kafka.topic("target", 0, 0).await);
    let folder = tempfile::tempdir().unwrap();
    let login = kafka.sasl("SCRAM-SHA-512", &kafka.user, &kafka.password);
    archive_once(folder.path(), &from, &login).ok();
    let archive = format!("file://{}", folder.path().display());
    let mut args =
        strings(&["restore", "--archive", &archive, "--all", "--to", &to, "--yes", "--delivery", "transactional"]);
    args.extend(login);
    let run: Run = support::program().args(args).output().unwrap().into();
    assert_eq!(run.code, 0, "{run:?}");
    let admin = Admin::new(&Connection::new(&kafka.plaintext)).unwrap();
    let (low, high) = admin.watermarks(&TopicPartition::new(&to, 0), PATIENCE).unwrap();
    assert!((low, high) >= (0, 301), "300 records and a marker at least: {low}..{high}");
    let folder = tempfile::tempdir().unwrap();
    let run = archive_once(folder.path(), &to, &strings(&["-b", &kafka.plaintext]));
    assert_eq!(run.json()["records"].as_u64(), Some(300));
}

/// A port with a certificate that has expired.
fn expired(kafka: &Kafka) -> (Child, String, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let openssl = |args: &[&str]| {
        let done = Command::new("openssl").args(args).output().expect("openssl is needed");
        assert!(done.status.success(), "{done:?}");
    };
    let (key, csr, cert, ext) = (file("key.pem"), file("csr"), file("cert.pem"), file("ext"));
    std::fs::write(&ext, "subjectAltName=IP:127.0.0.1").unwrap();
    openssl(&["req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout", &key, "-subj", "/CN=old", "-out", &csr]);
    let (ca, ca_key) = (kafka.file("ca.pem"), kafka.file("ca-key.pem"));
    let signed = ["x509", "-req", "-in", &csr, "-CA", &ca, "-CAkey", &ca_key, "-set_serial", "7", "-days", "-1"];
    openssl(&[&signed[..], &["-extfile", &ext, "-out", &cert]].concat());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let server = Command::new("openssl")
        .args(["s_server", "-accept", &address, "-cert", &cert, "-key", &key, "-quiet"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    (server, address, folder)
}

#[tokio::test]
async fn what_is_refused_ends_within_seconds_with_one_line_that_says_what_to_do() {
    let Some(kafka) = &*KAFKA else { return };
    let topic = kafka.topic("refused", 0, 0).await;
    let (mut server, expired, _folder) = expired(kafka);
    let (endpoint, _) = token_endpoint();
    let scram = |password: &str| kafka.sasl("SCRAM-SHA-512", &kafka.user, password);
    let localhost = format!("localhost:{}", kafka.sasl.rsplit(':').next().unwrap());
    let other_ca = format!("ssl.ca.location={}", kafka.file("other-ca.pem"));
    let own = [
        "-X",
        &format!("ssl.certificate.location={}", kafka.file("other-ca.pem")),
        "-X",
        &format!("ssl.key.location={}", kafka.file("other-ca-key.pem")),
    ];
    let no_jws = ["-X", "enable.sasl.oauthbearer.unsecure.jwt=true", "-X", "sasl.oauthbearer.config=nonsense"];
    let cases = [
        ("wrong password", scram("hunter2"), vec!["refuses the user", "sasl.password"]),
        ("unknown user", kafka.sasl("SCRAM-SHA-512", "nobody", "hunter2"), vec!["refuses the user"]),
        ("wrong password, PLAIN", kafka.sasl("PLAIN", &kafka.user, "hunter2"), vec!["refuses the user"]),
        ("wrong CA", with(scram(&kafka.password), &["-X", &other_ca]), vec!["no CA in ssl.ca.location (", "signed it"]),
        ("no CA", strings(&["-b", &kafka.mtls, "-X", "security.protocol=SSL"]), vec!["Set ssl.ca.location"]),
        (
            "no client certificate",
            kafka.tls(&kafka.mtls, "SSL"),
            vec!["wants a client certificate", "ssl.key.location"],
        ),
        (
            "another's certificate",
            with(kafka.tls(&kafka.mtls, "SSL"), &own),
            vec!["does not accept the client certificate in"],
        ),
        ("plaintext at TLS", strings(&["-b", &kafka.mtls]), vec!["speaks TLS on this port", "set SSL"]),
        ("plaintext at SASL_SSL", strings(&["-b", &kafka.sasl]), vec!["speaks TLS on this port", "SASL_SSL"]),
        ("TLS at plaintext", kafka.tls(&kafka.plaintext, "SSL"), vec!["speaks no TLS on this port", "set PLAINTEXT"]),
        (
            "SASL_SSL at plaintext",
            at(scram("hunter2"), &kafka.plaintext),
            vec!["speaks no TLS on this port", "set SASL_PLAINTEXT"],
        ),
        (
            "SASL at plaintext",
            with(at(scram("hunter2"), &kafka.plaintext), &["-X", "security.protocol=SASL_PLAINTEXT"]),
            vec!["takes no SASL on this port", "set PLAINTEXT"],
        ),
        (
            "SASL_PLAINTEXT at SASL_SSL",
            with(scram("hunter2"), &["-X", "security.protocol=SASL_PLAINTEXT"]),
            vec!["speaks TLS on this port", "set SASL_SSL"],
        ),
        ("no SASL at SASL_SSL", kafka.tls(&kafka.sasl, "SSL"), vec!["if it wants SASL, set SASL_SSL"]),
        (
            "another host's certificate",
            at(scram(&kafka.password), &localhost),
            vec!["it is for another host", "advertised.listeners"],
        ),
        ("an expired certificate", kafka.tls(&expired, "SSL"), vec!["it has expired"]),
        ("Kerberos, the default", kafka.tls(&kafka.sasl, "SASL_SSL"), vec!["set sasl.mechanism"]),
        ("no way to a token", kafka.token(&[]), vec!["sasl.oauthbearer.token.endpoint.url"]),
        ("a token that is none", kafka.token(&no_jws), vec!["sasl.oauthbearer"]),
        (
            "a secret that the endpoint refuses",
            oidc(kafka, &endpoint, "hunter2"),
            vec![if cfg!(feature = "oidc") { "no token" } else { "--features oidc" }, "sasl.oauthbearer."],
        ),
    ];
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for (case, args, told) in &cases {
            let (topic, failed) = (&topic, &failed);
            scope.spawn(move || {
                let (folder, began) = (tempfile::tempdir().unwrap(), Instant::now());
                let run = archive_once(folder.path(), topic, args);
                eprintln!("{case}: {:.1} s: {}", began.elapsed().as_secs_f32(), run.err.trim_end());
                let clear = run.code == 2
                    && began.elapsed() < AT_ONCE
                    && run.err.lines().count() == 1
                    && told.iter().all(|part| run.err.contains(part))
                    && !["hunter2", &kafka.password].iter().any(|secret| run.err.contains(secret));
                if !clear {
                    failed.lock().unwrap().push(format!("{case}: {run:?}"));
                }
            });
        }
    });
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(failed.lock().unwrap().is_empty(), "{:#?}", failed.lock().unwrap());
}

/// Kafka's own tools, for what librdkafka's clients cannot set.
fn kafka_tool(kafka: &Kafka, tool: &str, args: &[&str]) {
    let classpath = std::env::var("LOCALSTACK_KAFKA_CLASSPATH").unwrap();
    let mut command = Command::new("java");
    command.args(["-XX:TieredStopAtLevel=1", "-cp", &classpath, &format!("org.apache.kafka.tools.{tool}")]);
    let done = command.args(["--bootstrap-server", &kafka.plaintext]).args(args).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

#[tokio::test]
async fn an_acl_that_is_missing_is_told_with_what_it_is_for() {
    let Some(kafka) = &*KAFKA else { return };
    let topics =
        [kafka.topic("hidden", 1, 1).await, kafka.topic("described", 1, 1).await, kafka.topic("open", 1, 1).await];
    let [hidden, described, open] = &topics;
    let add = |acl: &[&str]| kafka_tool(kafka, "AclCommand", &[&["--add"], acl].concat());
    // What has an ACL is closed for all others.
    add(&["--allow-principal", "User:other", "--operation", "All", "--topic", hidden, "--group", hidden]);
    add(&["--allow-principal", &format!("User:{}", kafka.user), "--operation", "Describe", "--topic", described]);
    let login = kafka.sasl("SCRAM-SHA-512", &kafka.user, &kafka.password);
    for (topic, group, told) in [
        (hidden, open, "or this user may not describe it"),
        (described, open, "The user lacks an ACL: Read and Describe on the topic"),
        (open, hidden, "The user lacks an ACL: Read on the consumer group"),
    ] {
        let (folder, began) = (tempfile::tempdir().unwrap(), Instant::now());
        let run = archive_once(folder.path(), topic, &with(login.clone(), &["--group", group]));
        assert!(run.code == 2 && run.err.lines().last().unwrap().contains(told), "{run:?}");
        assert!(began.elapsed() < AT_ONCE, "{run:?}");
    }
}

#[tokio::test]
async fn a_target_that_may_not_be_written_to_is_found_before_anything_is_sent() {
    let Some(kafka) = &*KAFKA else { return };
    let (from, to) = (kafka.topic("written-from", 5, 10).await, kafka.topic("read-only", 0, 0).await);
    let folder = tempfile::tempdir().unwrap();
    let login = kafka.sasl("SCRAM-SHA-512", &kafka.user, &kafka.password);
    archive_once(folder.path(), &from, &login).ok();
    let archive = format!("file://{}", folder.path().display());
    let restore = |more: &[&str]| -> Run {
        let args = strings(&["restore", "--archive", &archive, "--all", "--to", &to]);
        support::program().args(args).args(login.clone()).args(more).output().unwrap().into()
    };
    assert_eq!(restore(&["-n", "-o", "json"]).json()["to_restore"], 5, "nothing forbids it");
    let user = format!("User:{}", kafka.user);
    kafka_tool(
        kafka,
        "AclCommand",
        &["--add", "--allow-principal", &user, "--operation", "Describe", "--operation", "Read", "--topic", &to],
    );
    let until = Instant::now() + PATIENCE;
    loop {
        let dry = restore(&["-n", "-o", "json"]).json_of_failed();
        if dry["skipped"][0]["reason"] == "not_writable" {
            assert_eq!(dry["skipped"][0]["records"], 5, "{dry}");
            break;
        }
        assert!(Instant::now() < until, "{dry}");
    }
    let refused = restore(&[]);
    assert!(refused.code == 1 && refused.out.contains("--operation Write"), "{refused:?}");
    kafka_tool(kafka, "AclCommand", &["--add", "--allow-principal", &user, "--operation", "Write", "--topic", &to]);
    let until = Instant::now() + PATIENCE;
    while restore(&["--no-restore-headers", "--delivery", "plain"]).code != 0 {
        assert!(Instant::now() < until, "it may be written to");
    }
}

/// An archiver that follows a topic.
struct Archiver {
    child: Child,
    log: Arc<Mutex<String>>,
    _folder: tempfile::TempDir,
}

impl Archiver {
    fn start(topic: &str, group: &str, args: &[String]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let archive = format!("file://{}", folder.path().display());
        let own =
            ["archive", "-o", "json", "--topic", topic, "--group", group, "--archive", &archive, "--cut-age", "1s"];
        let mut command = support::program();
        let mut child = command.args(own).args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (mut stderr, lines) = (child.stderr.take().unwrap(), log.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = stderr.read(&mut bytes) {
                lines.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..n]));
            }
        });
        Self { child, log, _folder: folder }
    }

    #[track_caller]
    fn until(&mut self, what: &str, holds: impl Fn(&str) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !holds(&self.log.lock().unwrap()) {
            assert!(self.child.try_wait().unwrap().is_none(), "it ended: {}", self.log.lock().unwrap());
            assert!(Instant::now() < until, "no {what}: {}", self.log.lock().unwrap());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends it by SIGTERM: its last line, and its log.
    fn end(mut self) -> (String, String) {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        let mut out = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        let status = self.child.wait().unwrap();
        let log = self.log.lock().unwrap().clone();
        assert!(status.success(), "{status}: {log}");
        (out, log)
    }
}

/// What the archiver has told the group.
fn committed(kafka: &Kafka, group: &str, topic: &str) -> Option<i64> {
    let admin = Admin::of_group(&Connection::new(&kafka.plaintext), group).unwrap();
    admin.committed(&TopicPartition::new(topic, 0), PATIENCE).unwrap()
}

#[tokio::test]
async fn a_password_that_is_changed_during_a_run_is_told_and_waited_out() {
    let Some(kafka) = &*KAFKA else { return };
    let topic = kafka.topic("password", 10, 100).await;
    let user = format!("user-{topic}");
    let set = |password: &str| {
        let scram = format!("SCRAM-SHA-512=[iterations=4096,password={password}]");
        let of = ["--alter", "--entity-type", "users", "--entity-name", &user, "--add-config", &scram];
        kafka_tool(kafka, "ConfigCommand", &of);
    };
    set("first");
    let mut archiver = Archiver::start(&topic, &topic, &kafka.sasl("SCRAM-SHA-512", &user, "first"));
    archiver.until("reading", |log| log.contains("reading 1 partition"));
    set("second");
    // Sessions end after 5 s.
    archiver.until("warning", |log| log.contains("invalid credentials"));
    kafka.produce(&topic, 10, 100);
    std::thread::sleep(Duration::from_secs(2));
    set("first");
    let until = Instant::now() + PATIENCE;
    while committed(kafka, &topic, &topic) != Some(20) {
        assert!(Instant::now() < until, "it did not go on: {}", archiver.log.lock().unwrap());
        std::thread::sleep(Duration::from_millis(200));
    }
    let (out, log) = archiver.end();
    assert!(out.contains(r#""records":20,"#), "{out}{log}");
    assert!(!log.contains("first") && !log.contains("second"), "{log}");
}

#[tokio::test]
async fn a_quota_slows_the_archiver_and_costs_neither_records_nor_its_place_in_the_group() {
    let Some(kafka) = &*KAFKA else { return };
    let topic = kafka.topic("quota", 2000, 1000).await;
    let client = format!("client-{topic}");
    let quota = "consumer_byte_rate=150000";
    let of = ["--alter", "--entity-type", "clients", "--entity-name", &client, "--add-config", quota];
    kafka_tool(kafka, "ConfigCommand", &of);
    // Not by SASL: here its logins are over before a quota lets the broker answer.
    let login = strings(&["--kafka-config", &kafka.file("mtls.properties")]);
    let small = ["-X", "fetch.message.max.bytes=100000", "-X", "session.timeout.ms=6000"];
    let time = |group: &str, args: Vec<String>| {
        let mut archiver = Archiver::start(&topic, group, &with(args, &small));
        archiver.until("reading", |log| log.contains("reading 1 partition"));
        let began = Instant::now();
        let until = began + PATIENCE;
        while committed(kafka, group, &topic) != Some(2000) {
            assert!(Instant::now() < until, "{}", archiver.log.lock().unwrap());
            std::thread::sleep(Duration::from_millis(100));
        }
        let took = began.elapsed();
        let (out, log) = archiver.end();
        // A rebalance would have let it read some again.
        let counted: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(
            (counted["records"].as_u64(), counted["bytes_read"].as_u64()),
            (Some(2000), Some(2_000_000)),
            "{log}"
        );
        assert!(log.matches("reading").count() == 1 && !log.contains("WARN"), "{log}");
        took
    };
    let free = time(&format!("{topic}-free"), login.clone());
    let slowed = time(&format!("{topic}-slowed"), with(login, &["--client-id", &client]));
    eprintln!("2 MB: {free:?} without a quota, {slowed:?} with 150 KB/s");
    assert!(slowed > Duration::from_secs(5) && slowed > free + Duration::from_secs(2), "{slowed:?}, {free:?} without");
}
