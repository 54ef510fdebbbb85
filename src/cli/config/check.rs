//! `dlq-archiver config check`: what is in force for `archive`, and where it comes from.
//!
//! Asks neither broker nor store. Invariant: what it refuses, `archive` refuses, with the same words; no secret is
//! printed.

use super::{Config, key, leaf, secret};
use crate::archive::Options;
use crate::cli::args::duration_text;
use crate::cli::logging::Directives;
use crate::cli::output::{self, Out, Output};
use crate::cli::progress::human_bytes;
use crate::cli::table::{Column, Table};
use crate::cli::{Cli, archive, text};
use crate::cut::CutPolicy;
use crate::error::Result;
use crate::kafka::Connection;
use crate::routing::{Routing, Rule};
use crate::topics::{TopicMatch, TopicSettings, settings_of};
use clap::CommandFactory;
use clap::parser::ValueSource;
use serde_json::{Map, Value, json};
use std::time::Duration;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// What is in force for archive, and where it comes from; asks neither broker nor store
    Check(Box<Args>),
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Takes all options of archive. Secrets are not shown. Exit code 2, with the reason, if archive would \
    refuse it.\n\nExamples:\n  \
    dlq-archiver config check --config dlq-archiver.toml --partitions 12 --pipelines 10\n  \
    DLQ_ARCHIVER_CONFIG=dlq-archiver.toml dlq-archiver config check -o json"
)]
pub struct Args {
    #[command(flatten)]
    archive: archive::Args,

    /// Partitions of the topics, for the number of files a day
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000), help_heading = "Files a day")]
    partitions: u64,

    /// Pipelines whose records are in one cut, for the number of files a day
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000), help_heading = "Files a day")]
    pipelines: u64,
}

/// More files a day than this are told.
const MANY: f64 = 10_000.0;

pub async fn run(command: Command, config: &Config) -> Result<u8> {
    let Command::Check(args) = command;
    let (options, connection) = args.archive.prepare(config).await?;
    let tables = args.archive.tables(config)?;
    let topics = topics(&options, config, &tables.routing, &args);
    let found = Found {
        settings: settings(config),
        variables: if args.archive.is_in_s3() { variables() } else { Vec::new() },
        warnings: warnings(&topics, &options, config),
        topics,
        rules: rules(config).map(|(rule, place)| (rule.clone(), place)).collect(),
        connection,
        partitions: args.partitions,
        pipelines: args.pipelines,
    };
    match args.archive.output() {
        Output::Table => table(&found)?,
        Output::Json | Output::Jsonl => output::line(&document(&found).to_string())?,
    }
    Ok(0)
}

/// All that is told.
struct Found {
    settings: Vec<Setting>,
    /// Of the AWS SDK: names and values, as far as they are shown.
    variables: Vec<(String, String)>,
    connection: Connection,
    topics: Vec<Topic>,
    rules: Vec<(Rule, String)>,
    warnings: Vec<String>,
    partitions: u64,
    pipelines: u64,
}

/// What of the environment decides how the store is reached.
fn variables() -> Vec<(String, String)> {
    const PROXIES: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];
    let heeded = |name: &str| name.starts_with("AWS_") || PROXIES.contains(&name.to_ascii_uppercase().as_str());
    let all = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let all = all.filter(|(name, value)| heeded(name) && !value.is_empty());
    let shown = |value: &std::ffi::OsStr, name: &str| secret::variable(name, &value.to_string_lossy()).into_owned();
    let mut all: Vec<_> = all.map(|(name, value)| (name.clone(), shown(&value, &name))).collect();
    all.sort();
    all
}

/// One option of archive.
struct Setting {
    key: String,
    value: Option<String>,
    source: &'static str,
    /// Its flag, variable, or place in the file.
    from: Option<String>,
}

fn settings(config: &Config) -> Vec<Setting> {
    let mut command = Cli::command();
    command.build();
    let path = ["config", "check"];
    let command = path.iter().try_fold(&command, |command, name| command.find_subcommand(name));
    let matches = leaf(&config.matches);
    let options = command.into_iter().flat_map(clap::Command::get_arguments);
    let options = options
        .filter_map(|arg| Some((arg, key(arg).or(arg.get_long().filter(|l| *l == "config").map(str::to_owned))?)));
    let setting = |(arg, key): (&clap::Arg, String)| {
        let id = arg.get_id().as_str();
        let raw = matches.try_get_raw(id).ok().flatten();
        let raw = raw.map(|values| values.map(|v| v.to_string_lossy()).collect::<Vec<_>>().join(", "));
        let variable = arg.get_env().map(|v| v.to_string_lossy().into_owned());
        let (source, from) = match (matches.value_source(id), config.place_of(&key)) {
            (Some(ValueSource::CommandLine), _) => ("flag", Some(format!("--{key}"))),
            (Some(ValueSource::EnvVariable), _) => ("variable", variable),
            (_, Some(place)) => ("file", Some(place)),
            _ => ("default", None),
        };
        Setting { key, value: raw.map(|text| secret::addresses(&text).into_owned()), source, from }
    };
    options.map(setting).collect()
}

/// What one topic, the topics of one table, or all others have.
struct Topic {
    topic: String,
    policy: CutPolicy,
    retention: Option<Duration>,
    safety: f64,
    pipeline: Option<String>,
    /// Rules may come before it.
    ruled: bool,
    /// With so many partitions and pipelines of such topics.
    files: f64,
}

/// Named topics, then the tables that have none of these names, then the rest.
fn topics(options: &Options, config: &Config, routing: &Routing, args: &Args) -> Vec<Topic> {
    let named: Vec<&str> = options.topics.iter().map(String::as_str).filter(|t| !t.starts_with('^')).collect();
    let one = |topic: &str, own: Option<&TopicSettings>| {
        let mut policy = own.map_or(options.policy, |own| own.policy(options.policy));
        let pipeline = own.and_then(|own| own.pipeline.clone());
        // Many topics: some rule may be for some of them.
        let ruled = if named.contains(&topic) { routing.of_topic(topic).is_ruled() } else { !config.rules.is_empty() };
        let most = (routing.max_pipelines() as u64).saturating_add(1);
        let objects = if pipeline.is_some() && !ruled { 1 } else { args.pipelines.min(most) };
        if let Some(files) = options.files_per_day {
            policy.max_age = policy.age_for(files, args.partitions, objects);
        }
        let cuts = Duration::from_secs(24 * 60 * 60).as_secs_f64() / policy.max_age.as_secs_f64();
        Topic {
            topic: topic.to_owned(),
            policy,
            retention: own.and_then(|own| own.retention).or(options.retention),
            safety: own.and_then(|own| own.safety).unwrap_or(options.safety),
            pipeline,
            ruled,
            files: args.partitions as f64 * objects as f64 * cuts,
        }
    };
    let tables = &options.topics_settings;
    let mut all: Vec<_> = named.iter().map(|name| one(name, settings_of(tables, name))).collect();
    let others = tables.iter().filter(|t| !named.contains(&t.topic.as_str()));
    all.extend(others.map(|own| one(own.topic.as_str(), Some(own))));
    if options.topics.len() > named.len() {
        all.push(one("(others)", None));
    }
    all
}

/// Each rule, and where it stands.
fn rules(config: &Config) -> impl Iterator<Item = (&Rule, String)> {
    config.rules.iter().zip(config.file.routes.iter().map(|route| config.file.place(route.line)))
}

fn warnings(topics: &[Topic], options: &Options, config: &Config) -> Vec<String> {
    let many = topics.iter().filter(|t| t.files > MANY);
    let many = many.map(|t| {
        format!(
            "{}: {:.0} files a day are more than {MANY}: queries and listings get slow. A longer cut-age makes them fewer, \
             and so does files-per-day",
            t.topic, t.files
        )
    });
    let idle = options.topics_settings.iter().filter(|table| !may_be_used(table, &options.topics));
    let idle = idle.map(|table| {
        format!(
            "[topics.{:?}] is of no topic: none of topic ({}) is or matches it",
            table.topic.as_str(),
            options.topics.join(", ")
        )
    });
    let levels = config.matches_of::<Directives>("log_level");
    many.chain(idle).chain(levels.into_iter().flat_map(Directives::unknown)).collect()
}

/// Whether a topic that is archived may have this table. Two patterns may have one in common.
fn may_be_used(table: &TopicSettings, topics: &[String]) -> bool {
    let named = |topic: &str| settings_of(std::slice::from_ref(table), topic).is_some();
    topics.iter().any(|topic| match (topic.starts_with('^'), &table.topic) {
        (false, _) => named(topic),
        (true, TopicMatch::Name(name)) => crate::kafka::pattern(topic).is_ok_and(|pattern| pattern.is_match(name)),
        (true, TopicMatch::Pattern(_)) => true,
    })
}

fn table(found: &Found) -> Result<()> {
    let Found { settings, variables, connection, topics, rules, warnings, partitions, pipelines } = found;
    let mut out = Out::new();
    let clean = |text: &str| text::clean(text).into_owned();
    let mut table = Table::new(vec![Column::whole("SETTING"), Column::new("VALUE"), Column::whole("FROM")]);
    for s in settings {
        let from = s.from.as_ref().map_or_else(|| s.source.to_owned(), |from| format!("{} {from}", s.source));
        table.row(vec![s.key.clone(), clean(s.value.as_deref().unwrap_or("-")), clean(&from)], &mut out)?;
    }
    table.finish(&mut out)?;
    out.line("")?;
    if !variables.is_empty() {
        let mut table = Table::new(vec![Column::whole("VARIABLE OF S3"), Column::new("VALUE")]);
        for (name, value) in variables {
            table.row(vec![clean(name), clean(value)], &mut out)?;
        }
        table.finish(&mut out)?;
        out.line("")?;
    }
    let mut table = Table::new(vec![Column::whole("KAFKA PROPERTY"), Column::new("VALUE"), Column::whole("FROM")]);
    for (name, value, place) in connection.in_force() {
        table.row(vec![clean(name), clean(&secret::property(name, value)), clean(place)], &mut out)?;
    }
    table.finish(&mut out)?;
    out.line("")?;
    let columns = ["CUT RECORDS", "CUT BYTES", "CUT AGE", "RETENTION", "SAFETY", "PIPELINE"].map(Column::whole);
    let mut table =
        Table::new([vec![Column::new("TOPIC")], columns.to_vec(), vec![Column::number("FILES A DAY")]].concat());
    for t in topics {
        let cells = vec![
            clean(&t.topic),
            t.policy.max_records.to_string(),
            human_bytes(t.policy.max_bytes as u64),
            duration_text(t.policy.max_age),
            t.retention.map_or_else(|| "as told".into(), duration_text),
            t.safety.to_string(),
            format!(
                "{}{}",
                if t.ruled { "by rules, else " } else { "" },
                t.pipeline.as_deref().map_or_else(|| "by dialect".into(), clean)
            ),
            format!("{:.0}", t.files),
        ];
        table.row(cells, &mut out)?;
    }
    table.finish(&mut out)?;
    if !rules.is_empty() {
        out.line("")?;
        let columns = [Column::number("RULE"), Column::wide("MATCH"), Column::new("PIPELINE"), Column::whole("FROM")];
        let mut table = Table::new(columns.to_vec());
        for (i, (rule, place)) in rules.iter().enumerate() {
            let cells = vec![(i + 1).to_string(), clean(&rule.to_string()), clean(rule.pipeline()), clean(place)];
            table.row(cells, &mut out)?;
        }
        table.finish(&mut out)?;
    }
    out.line(&format!(
        "\nFiles a day: partitions ({partitions}) x pipelines ({pipelines}; 1 where a table names it) x cuts a day, where each \
         cut comes by its age; --partitions and --pipelines say how many there are."
    ))?;
    for warning in warnings {
        out.line(&format!("WARNING: {}", text::clean(warning)))?;
    }
    out.flush()
}

fn document(found: &Found) -> Value {
    let Found { settings, variables, connection, topics, rules, warnings, partitions, pipelines } = found;
    let variables = variables.iter().map(|(name, value)| json!({"variable": name, "value": value}));
    let settings = settings.iter().map(|s| json!({"key": s.key, "value": s.value, "source": s.source, "from": s.from}));
    let kafka = connection.in_force();
    let kafka = kafka
        .iter()
        .map(|(name, value, place)| json!({"property": name, "value": secret::property(name, value), "from": place}));
    let seconds = |d: Duration| d.as_secs_f64();
    let of_topics = topics.iter().map(|t| {
        json!({
            "topic": t.topic,
            "cut_records": t.policy.max_records,
            "cut_bytes": t.policy.max_bytes,
            "cut_age_seconds": seconds(t.policy.max_age),
            "retention_seconds": t.retention.map(seconds),
            "safety": t.safety,
            "pipeline": t.pipeline,
            "by_rules": t.ruled,
            "files_per_day": t.files.round(),
        })
    });
    let routes = rules.iter().map(|(rule, place)| {
        let conditions: Map<_, _> = rule.conditions().map(|(field, text)| (field.to_owned(), text.into())).collect();
        json!({"match": conditions, "pipeline": rule.pipeline(), "from": place})
    });
    json!({
        "settings": settings.collect::<Vec<_>>(),
        "variables": variables.collect::<Vec<_>>(),
        "kafka": kafka.collect::<Vec<_>>(),
        "topics": of_topics.collect::<Vec<_>>(),
        "routes": routes.collect::<Vec<_>>(),
        "partitions": partitions,
        "pipelines": pipelines,
        "warnings": warnings,
    })
}
