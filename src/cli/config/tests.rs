//! The file beneath the command line: what wins, what is refused and how it is told.

use super::*;
use crate::cli::Command as Sub;

/// The command line with a file of this text, and without the environment of this process.
fn with(text: &str, line: &[&str]) -> Result<Parsed, Refused> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.toml");
    std::fs::write(&path, text).unwrap();
    let argv = [&["dlq-archiver", "--config", path.to_str().unwrap()], line].concat();
    parse(&argv.iter().map(OsString::from).collect::<Vec<_>>())
}

fn raw(parsed: &Parsed, id: &str) -> Vec<String> {
    let values = leaf(&parsed.config.matches).get_raw(id).into_iter().flatten();
    values.map(|v| v.to_str().unwrap().to_owned()).collect()
}

#[track_caller]
fn ok(text: &str, line: &[&str]) -> Parsed {
    match with(text, line) {
        Ok(parsed) => parsed,
        Err(Refused::File(e)) => panic!("{e}"),
        Err(Refused::Usage(e)) => panic!("{e}"),
    }
}

#[track_caller]
fn refused(text: &str) -> String {
    match with(text, &["summary"]) {
        Err(Refused::File(e)) if e.exit_code() == 2 => {
            e.message().split_once("c.toml:").unwrap_or_else(|| panic!("{e}")).1.to_owned()
        }
        Err(e) => panic!(
            "not by the file: {}",
            match e {
                Refused::File(e) => e.to_string(),
                Refused::Usage(e) => e.to_string(),
            }
        ),
        Ok(_) => panic!("taken: {text}"),
    }
}

/// Clap keeps an option under its field's name; the file has its long name.
#[test]
fn every_key_is_the_name_of_its_option() {
    let (mut commands, mut keys) = (vec![Cli::command()], 0);
    while let Some(command) = commands.pop() {
        commands.extend(command.get_subcommands().cloned());
        for arg in command.get_arguments() {
            let Some(key) = key(arg) else { continue };
            keys += 1;
            assert!(key.ends_with(arg.get_long().unwrap()), "{key}");
            assert_eq!(arg.get_env().unwrap().to_str().unwrap(), format!("DLQ_ARCHIVER_{}", id(&key).to_uppercase()));
        }
    }
    assert!(keys > 40, "{keys}");
}

/// What sends records, or asks nobody, is typed each time.
#[test]
fn no_key_says_yes_or_selects_records() {
    for key in [
        "yes",
        "dry-run",
        "all",
        "include-restored",
        "include-discarded",
        "undo",
        "reason",
        "disposition",
        "allow-dead-letter-target",
        "take-over",
        "since",
        "pipeline",
        "config",
        "verbose",
    ] {
        assert!(refused(&format!("{key} = true")).contains("there is no such key"), "{key}");
    }
}

#[test]
fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
    let text = "topic = [\"a\", \"^b{1,2}$\"]\ncut-age = \"1h\"\nformat = \"jsonl\"\nonce = true\ncut-records = 5\nlog-format = \"json\"\nbatch = 7";
    let parsed = ok(text, &["archive", "--cut-age", "2h"]);
    // A comma in a list's text is the text's.
    assert_eq!(raw(&parsed, "topic"), ["a", "^b{1,2}$"]);
    assert_eq!(
        [raw(&parsed, "cut_age"), raw(&parsed, "format"), raw(&parsed, "once")].concat(),
        ["2h", "jsonl", "true"]
    );
    assert_eq!(raw(&parsed, "grace"), ["20s"]);
    assert_eq!(raw(&parsed, "log_format"), ["json"]);
    assert_eq!(parsed.config.place_of("cut-age"), None);
    assert!(parsed.config.place_of("cut-records").unwrap().ends_with("c.toml:5"));
    // Of another command.
    assert_eq!(parsed.config.place_of("batch"), None);
    let parsed = ok(text, &["archive", "-t", "x,y"]);
    assert_eq!(raw(&parsed, "topic"), ["x", "y"]);
    let parsed = ok(text, &["restore", "--all"]);
    assert_eq!(raw(&parsed, "batch"), ["7"]);
    let Sub::Restore(_) = parsed.cli.command else { panic!() };
    // A text of its own is split as the variable's would be.
    assert_eq!(raw(&ok("topic = \"a,b\"", &["archive"]), "topic"), ["a", "b"]);
    assert_eq!(raw(&ok("topic = \"a\"\nonce = false", &["archive", "--once"]), "once"), ["true"]);
}

#[test]
fn what_a_file_has_is_still_missing_without_it() {
    let Err(Refused::Usage(e)) = with("cut-age = \"1h\"", &["archive"]) else { panic!() };
    assert_eq!(e.kind(), clap::error::ErrorKind::MissingRequiredArgument);
}

#[test]
fn what_is_wrong_is_told_with_line_and_key_and_not_as_a_flag() {
    for (text, told) in [
        ("\ncut-age = \"15x\"", "2: cut-age: \"15x\": unknown unit \"x\": use ms, s, m, h or d"),
        ("cut-age = 0", "1: cut-age: \"0\": it must be above 0"),
        ("format = \"csv\"", "1: format: \"csv\": it is one of parquet, jsonl"),
        ("cut-records = 0", "1: cut-records: \"0\": 0 is not in 1.."),
        ("cut-records = \"many\"", "1: cut-records: \"many\": expected a whole number"),
        ("ready-below = 2", "1: ready-below: \"2\": expected a share"),
        ("[topics.a]\nretention = 0", "2: [topics.\"a\"] retention: \"0\": it must be above 0"),
        ("once = \"yes\"", "1: once: it takes true or false"),
        ("cut-bytes = [\"1k\"]", "1: cut-bytes: it takes one value, not a list"),
        // Of a command that does not run.
        ("batch = 0", "1: batch: \"0\": 0 is not in 1..=100000"),
        ("cut_age = \"1h\"", "1: cut_age: there is no such key; did you mean \"cut-age\"?"),
        ("cut-agee = \"1h\"", "1: cut-agee: there is no such key; did you mean \"cut-age\"?"),
        ("[topics.a]\n[topics.\"^b(\"]", "2: [topics.\"^b(\"] it is not a regular expression: unclosed group"),
        ("[topics.a]\ncut_bytes = 1", "2: [topics.\"a\"] cut_bytes: there is no such key; did you mean \"cut-bytes\"?"),
        ("[topics.a]\nsafety = 1.5", "2: [topics.\"a\"] safety: \"1.5\": expected a share"),
        ("[topics.a]\ncut-records = 0", "2: [topics.\"a\"] cut-records: \"0\": expected a number above 0"),
        ("[topics.a]\npipeline = \" \"", "2: [topics.\"a\"] pipeline: \" \": a pipeline has a name"),
    ] {
        let e = refused(text);
        assert!(e.starts_with(told), "{text:?}: {e}");
    }
    let Err(Refused::File(e)) = parse(&["x", "--config", "/no/such", "archive"].map(OsString::from)) else { panic!() };
    assert!(e.message().starts_with("cannot read --config /no/such: "), "{e}");
}

#[test]
fn an_error_of_an_option_says_where_the_file_sets_it() {
    let parsed = ok("topic = \"a*\"\ngroup = \"\"", &["archive", "--group", "g"]);
    let told = parsed.config.explain(Error::config("--topic \"a*\" is no topic's name"));
    assert!(told.message().ends_with("c.toml:1)") && told.message().contains("name (topic is set in "), "{told}");
    assert_eq!(parsed.config.explain(Error::config("--group is empty")).message(), "--group is empty");
    assert_eq!(parsed.config.explain(Error::config("--topics is none")).message(), "--topics is none");
}

#[test]
fn properties_of_the_file_are_checked_and_lie_under_the_command_lines() {
    let text = "brokers = \"a:1\"\n[kafka]\nbootstrap.servers = \"b:1\"\n\"client.id\" = \"file\"\nsocket.nagle.disable = true";
    let connection = |text, more: &[&str]| {
        let Sub::Archive(args) = ok(text, &[&["archive", "-t", "x"], more].concat()).cli.command else { panic!() };
        args.kafka().connection(&ok(text, &[&["archive", "-t", "x"], more].concat()).config)
    };
    let c = connection(text, &[]).unwrap();
    // A variable wins over the file.
    let brokers = std::env::var("DLQ_ARCHIVER_BROKERS").unwrap_or("a:1".into());
    assert_eq!(
        (c.brokers(), c.get("client.id"), c.get("socket.nagle.disable")),
        (&*brokers, Some("file"), Some("true"))
    );
    let c = connection(text, &["-X", "client.id=flag", "-b", "c:1"]).unwrap();
    assert_eq!((c.brokers(), c.get("client.id")), ("c:1", Some("flag")));
    let brokers = std::env::var("DLQ_ARCHIVER_BROKERS").unwrap_or("b:1".into());
    assert_eq!(connection("[kafka]\nmetadata.broker.list = \"b:1\"", &[]).unwrap().brokers(), brokers);
    for (text, told) in [
        ("[kafka]\n\n\"group.id\" = \"x\"", "c.toml:3: [kafka] group.id cannot be set"),
        ("[kafka]\nsecurty.protocol = \"SSL\"", "c.toml:2: [kafka] securty.protocol: librdkafka has no such property"),
        ("[kafka]\nssl.ca.location = \"/no/such\"", "c.toml:2: [kafka] ssl.ca.location: the file"),
    ] {
        let e = connection(text, &["-b", "a:1"]).unwrap_err();
        assert!(e.exit_code() == 2 && e.message().contains(told), "{e}");
    }
}

/// `deploy/dlq-archiver.toml` is what people copy.
#[test]
fn the_example_file_has_every_key_of_archive_and_each_is_taken() {
    let text = include_str!("../../../deploy/dlq-archiver.toml");
    let plain = Config::parse("example", text).unwrap();
    assert_eq!((plain.topics.len(), plain.file.kafka.len()), (2, 3));
    let all: Vec<&str> =
        text.lines().map(|l| l.strip_prefix('#').filter(|l| !l.starts_with(' ')).unwrap_or(l)).collect();
    let all = Config::parse("example", &all.join("\n")).unwrap();
    let there: BTreeSet<&str> = all.file.settings.iter().map(|s| s.key.as_str()).collect();
    let mut command = Cli::command();
    command.build();
    for name in ["archive", "restore", "status"] {
        let missing = command.find_subcommand(name).unwrap().get_arguments().filter_map(key);
        let missing: Vec<_> = missing.filter(|key| !there.contains(key.as_str())).collect();
        assert!(missing.is_empty(), "of {name}: {missing:?}");
    }
}
