//! The real program with a configuration file: what is in force, what is refused, topics with settings of their own,
//! and the form of the log.
//!
//! Runs on the embedded broker.

mod support;

use dlq_archiver::kafka::{Connection, MockBroker, NewRecord, Producer};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{Run, program};

struct Files(tempfile::TempDir);

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

impl Files {
    fn new(toml: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Its user's alone, as what is in it may be.
        mode(folder.path(), 0o700);
        fs::write(folder.path().join("c.toml"), toml).unwrap();
        Self(folder)
    }
    fn config(&self) -> PathBuf {
        self.0.path().join("c.toml")
    }
    fn archive(&self) -> PathBuf {
        self.0.path().join("archive")
    }
    fn program(&self) -> Command {
        let mut command = program();
        command.env("DLQ_ARCHIVER_CONFIG", self.config());
        command
    }
    fn run(&self, args: &[&str]) -> Run {
        self.program().args(args).output().unwrap().into()
    }
}

/// A broker with `count` records in the one partition of each topic.
fn broker(topics: &[&str], count: usize) -> MockBroker {
    let broker = MockBroker::start().unwrap();
    let producer = Producer::new(&Connection::new(&broker.brokers()), None).unwrap();
    for topic in topics {
        broker.create_topic(topic, 1).unwrap();
        for token in 0..count {
            let (headers, value) = (std::iter::empty(), Some(&b"value"[..]));
            let record = NewRecord { topic, partition: Some(0), key: None, value, headers, timestamp_ms: None, token };
            producer.send(record, Duration::from_secs(10)).unwrap();
        }
    }
    producer.flush(Duration::from_secs(30)).unwrap();
    assert!(producer.acks().iter().all(|ack| ack.result.is_ok()));
    broker
}

/// Rows and pipelines of a topic's cuts, in order.
fn cuts(archive: &Path, topic: &str) -> Vec<(u64, Vec<String>)> {
    let Ok(folder) = fs::read_dir(archive.join("ledger").join(topic).join("0")) else { return Vec::new() };
    let mut names: Vec<_> = folder.map(|e| e.unwrap().path()).filter(|p| p.is_file()).collect();
    names.sort();
    let manifest = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        let number = name.strip_suffix(".json").is_some_and(|n| n.len() == 20 && n.bytes().all(|b| b.is_ascii_digit()));
        let document: Value = number.then(|| serde_json::from_slice(&fs::read(path).unwrap()).unwrap())?;
        let pipelines = document["objects"].as_array().unwrap().iter();
        let pipelines = pipelines.map(|o| o["pipeline"].as_str().unwrap().to_owned()).collect();
        Some((document["rows"].as_u64().unwrap(), pipelines))
    };
    names.iter().filter_map(manifest).collect()
}

const TOPICS: &str = r#"
topic = ["^.*-dlq$"]
cut-records = 50

[topics."^small"]
cut-records = 10
pipeline = "all small ones"

[topics."small-named-dlq"]
cut-records = 25
"#;

#[test]
fn topics_of_one_process_are_cut_and_routed_each_by_its_own_table() {
    let files = Files::new(TOPICS);
    let broker = broker(&["small-a-dlq", "small-named-dlq", "other-dlq"], 100);
    let archive = format!("file://{}", files.archive().display());
    files.run(&["archive", "--once", "--brokers", &broker.brokers(), "--archive", &archive]).ok();
    let of = |topic| cuts(&files.archive(), topic);
    let cut = |rows, pipeline: &str| (rows, vec![pipeline.to_owned()]);
    assert_eq!(of("small-a-dlq"), vec![cut(10, "all small ones"); 10]);
    assert_eq!(of("small-named-dlq"), vec![cut(25, "small-named-dlq"); 4]);
    assert_eq!(of("other-dlq"), vec![cut(50, "other-dlq"); 2]);
    // The archive is whole, with or without the file.
    support::run(&["verify", "--archive", &archive, "--brokers", &broker.brokers()]).ok();
    files.run(&["verify", "--archive", &archive]).ok();
    let all =
        support::run(&["list", "--archive", &archive, "--pipeline", "all small ones", "--limit", "0", "-o", "jsonl"]);
    assert_eq!(all.lines().len(), 100);
    // A live topic is shown under the pipeline that it will be archived under.
    let tail = ["tail", "-b", &broker.brokers(), "--once", "-t", "small-a-dlq", "-n", "1", "-o", "jsonl"];
    assert_eq!(files.run(&tail).lines()[0]["pipeline_name"], "all small ones");
    assert_eq!(support::run(&tail).lines()[0]["pipeline_name"], "small-a-dlq");
}

const ROUTES: &str = r#"
topic = ["^.*-dlq$"]

[[routes]]
match.topic = "^(?<team>[a-z]+)-x-dlq$"
match.payload_state = "present"
pipeline = "team ${team}"

[[routes]]
match = { pipeline = "*-dlq", dialect = "unknown" }
pipeline = "strays"

[topics.own-dlq]
pipeline = "own"
"#;

#[test]
fn rules_name_pipelines_before_topics_and_dialects_and_are_tried_without_writing() {
    let files = Files::new(ROUTES);
    let broker = broker(&["pay-x-dlq", "other-dlq", "own-dlq"], 20);
    let (brokers, archive) = (broker.brokers(), format!("file://{}", files.archive().display()));
    let topics = ["-t", "pay-x-dlq", "-t", "other-dlq", "-t", "own-dlq"];
    let live = [&["routes", "try", "-b", &brokers, "--limit", "15"][..], &topics].concat();
    let table = files.run(&live);
    let rows: Vec<Vec<&str>> = table.ok().lines().map(|l| l.split("  ").map(str::trim).collect()).collect();
    let cells = |row: &Vec<&str>| row.iter().filter(|c| !c.is_empty()).map(|c| (*c).to_owned()).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    assert_eq!(rows[0], ["PIPELINE", "RECORDS", "BY", "PATH NAME"], "{table:?}");
    let expected = [
        ["own", "15", "topic", "own"],
        ["strays", "15", "rule 2", "strays"],
        ["team pay", "15", "rule 1", "p-team-pay.ced8acf7"],
    ];
    assert_eq!(rows[1..4], expected);
    assert!(table.out.ends_with("\n45 records in 3 pipelines\n") && !files.archive().exists(), "{table:?}");
    // All of them, from the beginning on.
    let one = ["routes", "try", "-b", &brokers, "-t", "pay-x-dlq", "--from-beginning", "-o", "jsonl"];
    let lines = files.run(&one).lines();
    assert_eq!(lines.len(), 20);
    let of = |line: &Value| ["record_id", "pipeline_name", "by", "rule"].map(|key| line[key].clone());
    assert_eq!(of(&lines[0]), [json!("pay-x-dlq/0/0"), json!("team pay"), json!("rule"), json!(1)]);

    // What is archived under these rules, and what others would make of it.
    files.run(&["archive", "--once", "--brokers", &brokers, "--archive", &archive]).ok();
    let pipelines = |topic| cuts(&files.archive(), topic).into_iter().flat_map(|(_, names)| names).collect::<Vec<_>>();
    assert_eq!(
        [pipelines("pay-x-dlq"), pipelines("other-dlq"), pipelines("own-dlq")].concat(),
        ["team pay", "strays", "own"]
    );
    let tail = ["tail", "-b", &brokers, "--once", "-t", "pay-x-dlq", "-n", "1", "-o", "jsonl"];
    assert_eq!(files.run(&tail).lines()[0]["pipeline_name"], "team pay");
    let later = Files::new("[[routes]]\nmatch.topic = \"*\"\npipeline = \"all\"");
    let archived = ["routes", "try", "--archive", &archive, "-o", "jsonl"];
    let lines = later.run(&[&archived[..], &["--pipeline", "own"]].concat()).lines();
    let of = |line: &Value| ["pipeline_name", "archived_pipeline_name", "by"].map(|key| line[key].clone());
    assert_eq!((lines.len(), of(&lines[19])), (20, [json!("all"), json!("own"), json!("rule")]));
    assert_eq!(later.run(&[&archived[..], &["--limit", "25"]].concat()).lines().len(), 25);
    let none = support::run(&["routes", "try", "-b", &brokers]);
    assert!(none.fails(2).contains("give --topic TOPIC for live ones"), "{none:?}");
}

#[test]
fn check_shows_rules_and_refuses_wrong_ones_with_their_line() {
    let files = Files::new(ROUTES);
    let args =
        ["config", "check", "-b", "k:1", "--archive", "s3://bucket/x", "--max-pipelines", "4", "--pipelines", "9"];
    let document = files.run(&[&args[..], &["-o", "json"]].concat()).json();
    let config = files.config().display().to_string();
    assert_eq!(document["routes"][1]["match"], json!({"pipeline": "*-dlq", "dialect": "unknown"}));
    assert_eq!(document["routes"][0]["pipeline"], "team ${team}");
    let places = [&document["routes"][0]["from"], &document["routes"][1]["from"]];
    assert_eq!(places, [&format!("{config}:5"), &format!("{config}:10")]);
    // One topic's records may be of several pipelines now, and no more than have objects.
    let own = &document["topics"][0];
    assert_eq!((&own["topic"], &own["pipeline"], &own["by_rules"]), (&"own-dlq".into(), &"own".into(), &true.into()));
    assert_eq!(own["files_per_day"].as_f64(), Some(5.0 * 96.0));
    let table = files.run(&args);
    assert!(table.ok().contains("topic = \"^(?<team>[a-z]+)-x-dlq$\", payload_state = \"present\""), "{table:?}");
    assert!(table.out.contains("by rules, else own"), "{table:?}");
    let key = document["settings"].as_array().unwrap().iter().find(|s| s["key"] == "max-pipelines").unwrap();
    assert_eq!((&key["value"], &key["source"]), (&"4".into(), &"flag".into()));
    for (text, told) in [
        ("[[routes]]\npipeline = \"x\"", "2: [[routes]] 1: it has no condition"),
        ("[[routes]]\nmatch.topic = \"a\"", "2: [[routes]] 1: it has no pipeline"),
        (
            "[[routes]]\nmatch.topic = \"a\"\npipelin = \"x\"",
            "3: [[routes]] 1: pipelin: there is no such key; did you mean \"pipeline\"?",
        ),
        (
            "[[routes]]\ntopic = \"a\"\npipeline = \"x\"",
            "2: [[routes]] 1: topic: there is no such key. A condition is part of match: write match.topic",
        ),
        (
            "[[routes]]\nmatch.error-class = \"a\"\npipeline = \"x\"",
            "2: [[routes]] 1: match.error-class: there is no such field; did you mean \"error_class\"?",
        ),
        (
            "[[routes]]\nmatch.topic = [\"a\"]\npipeline = \"x\"",
            "2: [[routes]] 1: match.topic: it takes one text or number",
        ),
        (
            "[[routes]]\nmatch.topic = \"^(\"\npipeline = \"x\"",
            "2: [[routes]] 1: match.topic: \"^(\" is not a regular expression: unclosed group",
        ),
        (
            "[[routes]]\nmatch.topic = \"a\"\n\npipeline = \"${1}\"",
            "4: [[routes]] 1: pipeline: ${1}: the rule has no regular expression",
        ),
        (
            "[[routes]]\nmatch.topic = \"a\"\npipeline = \"x\"\n[[routes]]\nmatch.x = 1\npipeline = \"x\"",
            "5: [[routes]] 2: match.x: there is no such field",
        ),
        ("max-pipelines = 0", "1: max-pipelines: \"0\": expected a number from 1 to 10000"),
    ] {
        let told_by = Files::new(text).run(&["list", "--archive", "file:///x"]);
        assert!(told_by.fails(2).contains(&format!("c.toml:{told}")), "{text:?}: {told_by:?}");
    }
}

#[test]
fn a_topic_with_a_short_age_is_cut_while_others_wait() {
    let files = Files::new("topic = \"^.*-dlq$\"\ncut-age = \"1h\"\n[topics.fast-dlq]\ncut-age = \"300ms\"");
    let broker = broker(&["fast-dlq", "slow-dlq"], 10);
    let archive = format!("file://{}", files.archive().display());
    let mut command = files.program();
    command.args(["archive", "--brokers", &broker.brokers(), "--archive", &archive]).stderr(Stdio::null());
    let mut archiver = command.stdout(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    while cuts(&files.archive(), "fast-dlq").is_empty() && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(100));
    }
    std::thread::sleep(Duration::from_secs(2));
    let (fast, slow) = (cuts(&files.archive(), "fast-dlq"), cuts(&files.archive(), "slow-dlq"));
    assert!(Command::new("kill").arg(archiver.id().to_string()).status().unwrap().success());
    assert_eq!(archiver.wait().unwrap().code(), Some(0));
    assert_eq!((fast.iter().map(|c| c.0).sum::<u64>(), slow), (10, vec![]));
    assert_eq!(cuts(&files.archive(), "slow-dlq").iter().map(|c| c.0).sum::<u64>(), 10);
}

#[test]
fn check_shows_what_is_in_force_and_where_it_comes_from() {
    let files = Files::new(
        "topic = [\"a-dlq\", \"^b\"]\narchive = \"s3://bucket/x\"\ncut-age = \"5m\"\ngroup = \"of-file\"\n[kafka]\n\
         sasl.username = \"me\"\nsasl.password = \"hunter2\"\n[topics.\"^a\"]\ncut-age = \"30m\"\npipeline = \"one\"\n\
         [topics.\"^b\"]\nretention = \"2d\"",
    );
    let args = ["config", "check", "-b", "k:1", "--cut-records", "7", "-X", "ssl.key.password=hunter2"];
    let more = ["--endpoint-url", "http://h:9000", "--partitions", "100", "--pipelines", "10"];
    let run = |output| -> Run {
        let mut command = files.program();
        command.env("DLQ_ARCHIVER_CUT_BYTES", "1MiB").env("DLQ_ARCHIVER_GROUP", "of-variable");
        command.env("AWS_SECRET_ACCESS_KEY", "hunter2").env("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE");
        command.env("AWS_REGION", "eu-west-1");
        command.args(args).args(more).args(["-o", output]).output().unwrap().into()
    };
    let (table, json) = (run("table"), run("json"));
    for run in [&table, &json] {
        assert!(!run.out.contains("hunter2") && run.err.is_empty(), "{run:?}");
    }
    let document = json.json();
    let setting = |key: &str| {
        let found = document["settings"].as_array().unwrap().iter().find(|s| s["key"] == key).unwrap();
        [&found["value"], &found["source"], &found["from"]].map(|v| v.as_str().unwrap_or("null").to_owned())
    };
    let config = files.config().display().to_string();
    assert_eq!(setting("cut-records"), ["7", "flag", "--cut-records"]);
    assert_eq!(setting("cut-bytes"), ["1MiB", "variable", "DLQ_ARCHIVER_CUT_BYTES"]);
    assert_eq!(setting("group"), ["of-variable", "variable", "DLQ_ARCHIVER_GROUP"]);
    assert_eq!(setting("cut-age"), ["5m", "file", &format!("{config}:3")]);
    assert_eq!(setting("topic"), ["a-dlq, ^b", "file", &format!("{config}:1")]);
    assert_eq!(setting("memory"), ["512MiB", "default", "null"]);
    assert_eq!(setting("region"), ["null", "default", "null"]);
    assert_eq!(setting("endpoint-url")[0], "http://h:9000");
    let variables = document["variables"].as_array().unwrap().iter();
    let variables: Vec<_> = variables.map(|v| [&v["variable"], &v["value"]].map(|v| v.as_str().unwrap())).collect();
    for shown in [["AWS_ACCESS_KEY_ID", "...MPLE"], ["AWS_REGION", "eu-west-1"], ["AWS_SECRET_ACCESS_KEY", "(hidden)"]]
    {
        assert!(variables.contains(&shown), "{variables:?}");
    }
    assert_eq!(setting("log-format"), ["text", "variable", "DLQ_ARCHIVER_LOG_FORMAT"]);
    assert_eq!(setting("config"), [&config, "variable", "DLQ_ARCHIVER_CONFIG"]);
    let kafka = |name: &str| {
        document["kafka"].as_array().unwrap().iter().find(|p| p["property"] == name).unwrap()["value"].clone()
    };
    assert_eq!(kafka("sasl.username"), "me");
    assert_eq!([kafka("sasl.password"), kafka("ssl.key.password")], ["(hidden)", "(hidden)"]);
    let topics = document["topics"].as_array().unwrap().iter();
    let topics: Vec<_> = topics
        .map(|t| {
            let [name, pipeline] = [&t["topic"], &t["pipeline"]].map(|v| v.as_str().unwrap_or("-"));
            let [age, retention] = [&t["cut_age_seconds"], &t["retention_seconds"]].map(|v| v.as_f64().unwrap_or(-1.0));
            (name, age, retention, pipeline, t["files_per_day"].as_f64().unwrap())
        })
        .collect();
    let expected = [
        ("a-dlq", 1800.0, -1.0, "one", 4_800.0),
        ("^a", 1800.0, -1.0, "one", 4_800.0),
        ("^b", 300.0, 172_800.0, "-", 288_000.0),
        ("(others)", 300.0, -1.0, "-", 288_000.0),
    ];
    assert_eq!(topics, expected);
    assert_eq!(document["warnings"].as_array().unwrap().len(), 2);
    assert!(table.ok().contains("WARNING: ^b: 288000 files a day are more than 10000"), "{table:?}");
    // Lengthened until they are fewer.
    let fewer = files.run(&[&args[..], &more[..], &["--files-per-day", "10000", "-o", "json"]].concat()).json();
    assert_eq!(
        (fewer["warnings"].as_array().unwrap().len(), &fewer["topics"][2]["files_per_day"]),
        (0, &10_000.0.into())
    );
}

#[test]
fn check_refuses_what_archive_would() {
    let files = Files::new("topic = [\"a*\"]\narchive = \"s3://bucket/x\"\nbrokers = \"k:1\"");
    let told = files.run(&["config", "check"]);
    assert!(
        told.fails(2).contains("--topic \"a*\" is no topic's name") && told.err.contains("(topic is set in "),
        "{told:?}"
    );
    assert!(told.err.trim_end().ends_with("c.toml:1)"), "{told:?}");
    let told = files.run(&["config", "check", "-t", "a"]);
    assert_eq!(told.ok().lines().next().unwrap().split_whitespace().next(), Some("SETTING"));
    // What only the start of `archive` found, after it had waited for brokers.
    let archive = |args: &[&str]| files.run(&[&["archive", "-t", "a", "--start-timeout", "1s"], args].concat());
    for (args, why) in [
        (["--listen", "9464"], "--listen \"9464\" is not an address"),
        (["--listen", "0.0.0.0:99999"], "--listen \"0.0.0.0:99999\" is not an address"),
        (["--ready-below", "2"], "expected a share from 0 to 1"),
        (["--endpoint-url", "h:9000"], "--endpoint-url \"h:9000\" must begin with http"),
        (["--endpoint-url", "http://u:hunter2@h:9000"], "--endpoint-url must be http://HOST:PORT"),
    ] {
        let told = files.run(&[&["config", "check", "-t", "a"], &args[..]].concat());
        for told in [told, archive(&args)] {
            assert!(told.code == 2 && told.err.contains(why) && !told.err.contains("hunter2"), "{told:?}");
        }
    }
    let mut told = files.program();
    let told: Run =
        told.args(["config", "check", "-t", "a"]).env("AWS_ENDPOINT_URL", "h:9000").output().unwrap().into();
    assert!(told.fails(2).contains("the endpoint URL in the AWS configuration \"h:9000\" must begin"), "{told:?}");
    let told = files.run(&["config", "check", "-t", "a", "-X", "group.id=x"]);
    assert!(told.fails(2).contains("-X group.id cannot be set"), "{told:?}");
    let files = Files::new("cut-age = \"15x\"");
    for command in ["archive", "list", "config"] {
        let told = files.run(&[&[command][..], if command == "config" { &["check"] } else { &[] }].concat());
        assert!(
            told.fails(2).ends_with("c.toml:1: cut-age: \"15x\": unknown unit \"x\": use ms, s, m, h or d"),
            "{told:?}"
        );
    }
    let told: Run = program().args(["list", "--config", "/no/such.toml"]).output().unwrap().into();
    assert!(told.fails(2).contains("cannot read --config /no/such.toml"), "{told:?}");
}

#[test]
fn a_table_of_no_topic_and_a_module_that_is_none_are_told() {
    let files = Files::new(
        "topic = [\"a-dlq\", \"^orders\"]\narchive = \"file:///x\"\nlog-level = \"info,dlq_archiver::archve=debug\"\n\
         [topics.a-dlt]\n[topics.\"^a\"]\n[topics.\"^b\"]\n[topics.orders-x]\n[topics.mail-dlq]",
    );
    let warnings = |args: &[&str]| {
        let told = files.run(&[&["config", "check", "-b", "k:1", "-o", "json"], args].concat()).json();
        let warnings = told["warnings"].as_array().unwrap().iter().map(|w| w.as_str().unwrap().to_owned());
        warnings.collect::<Vec<_>>()
    };
    // Two patterns may have a topic in common.
    let told = warnings(&[]);
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[0].starts_with("[topics.\"a-dlt\"] is of no topic") && told[1].contains("mail-dlq"), "{told:?}");
    assert!(told[2].contains("dlq_archiver::archve: there is no such module"), "{told:?}");
    assert_eq!(warnings(&["-t", "a-dlq", "--log-level", "info"]).len(), 4);
}

/// Every user of the machine could read the brokers' password, and nothing said so.
#[test]
fn a_file_with_passwords_that_everybody_can_read_is_told() {
    let files = Files::new("topic = \"a\"\narchive = \"file:///x\"\n[kafka]\nsasl.username = \"me\"");
    let folder = files.0.path();
    let properties = folder.join("kafka.properties");
    fs::write(&properties, "sasl.password=hunter2\n").unwrap();
    let check = || {
        let told = files.run(&["config", "check", "-b", "k:1", "--kafka-config", properties.to_str().unwrap()]);
        assert!(told.code == 0 && !told.out.contains("hunter2") && !told.err.contains("hunter2"), "{told:?}");
        told.err
    };
    mode(&properties, 0o644);
    assert_eq!(check(), "", "nobody gets into the folder");
    mode(folder, 0o755);
    let told = check();
    assert!(told.contains(&format!("chmod o-r {}", properties.display())) && told.lines().count() == 1, "{told}");
    mode(&properties, 0o640);
    assert_eq!(check(), "");
    // The name of a user is no secret.
    fs::write(&properties, "sasl.username=me\n").unwrap();
    mode(&properties, 0o644);
    assert_eq!(check(), "");
}

#[test]
fn the_example_is_taken() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/dlq-archiver.toml");
    let told: Run = program()
        .args(["config", "check", "--config", example, "-X", "sasl.password=p", "-o", "json"])
        .output()
        .unwrap()
        .into();
    let topics = &told.json()["topics"];
    assert_eq!((&topics[0]["topic"], &topics[0]["cut_age_seconds"]), (&"default-dlt".into(), &900.0.into()));
    assert_eq!((&topics[1]["pipeline"], &topics[1]["cut_age_seconds"]), (&"orders".into(), &3600.0.into()));
}

#[test]
fn a_log_that_is_piped_is_json_unless_it_is_told_to_be_text() {
    let files = Files::new("topic = \"log-dlq\"");
    let broker = broker(&["log-dlq"], 3);
    let archive = format!("file://{}", files.archive().display());
    let args = ["archive", "--once", "--brokers", &broker.brokers(), "--archive", &archive];
    let told: Run = files.program().env_remove("DLQ_ARCHIVER_LOG_FORMAT").args(args).output().unwrap().into();
    told.ok();
    let lines: Vec<Value> =
        told.err.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect();
    for line in &lines {
        for key in ["timestamp", "level", "target", "message"] {
            assert!(line[key].is_string(), "{key}: {line}");
        }
    }
    let cut = lines.iter().find(|l| l["message"] == "archived").unwrap();
    assert_eq!((&cut["level"], &cut["topic"], &cut["rows"]), (&"INFO".into(), &"log-dlq".into(), &3.into()));
    let text = files.run(&args);
    assert!(text.err.lines().count() > 0 && text.err.lines().all(|l| !l.starts_with('{')), "{text:?}");
    assert!(files.run(&[&args[..], &["--log-level", "warn"]].concat()).err.is_empty());
}

#[test]
fn a_wrong_log_level_is_refused_by_name() {
    let told = support::run(&["list", "--archive", "file:///x", "--log-level", "info,librdkafka=loud"]);
    assert!(told.code == 2 && told.err.contains("\"librdkafka=loud\": \"loud\" is no level"), "{told:?}");
    let told: Run =
        program().env("DLQ_ARCHIVER_LOG", "loud").args(["list", "--archive", "file:///x"]).output().unwrap().into();
    assert!(told.fails(2).contains("DLQ_ARCHIVER_LOG: \"loud\""), "{told:?}");
    let files = Files::new("log-level = \"loud\"");
    assert!(files.run(&["list", "--archive", "file:///x"]).fails(2).contains("c.toml:1: log-level: "));
}
