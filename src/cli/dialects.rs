//! `dlq-archiver dialects`.

use super::args::{ArchiveArgs, KafkaArgs, duration};
use super::config::Config;
use super::filter::FilterArgs;
use super::list::tell_unjudged;
use super::output::{self, Documents, Out, Output, OutputArgs};
use super::table::{Column, Table};
use super::{record, text};
use crate::archive;
use crate::catalog::{Catalog, Reading};
use crate::cut::Tables;
use crate::dialect::{Dialects, UNKNOWN};
use crate::error::{Error, Result, did_you_mean};
use crate::format::{ArchivedRecord, Projection};
use crate::record::{Decoded, Hop, RawRecord, RecordId};
use crate::tail::{self, Start};
use crate::topics::{TopicMatch, TopicSettings};
use regex::Regex;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// The dialects that are known: the program's own and those of --dialect-file
    List {
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Print a dialect's table, to read it or to begin one of your own with it
    Show {
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Show what a table makes of records, of a live topic or of an archive. Writes nothing, joins no group
    Try(Box<TryArgs>),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dlq-archiver dialects show spring > my.toml; edit my.toml\n  \
    dlq-archiver dialects try my.toml --topic orders-dlq --brokers kafka:9092\n  \
    dlq-archiver dialects try my.toml --archive s3://compliance/dlq --dialect unknown --limit 50\n  \
    dlq-archiver archive --dialect-file my.toml ...\n\n\
    With --topic the topic is read; with --archive on the command line, or with neither where a variable or the file names \
    one, the archive.\n\n\
    The format: schemas/dialects/README.md in the sources, and dialect.schema.json beside it for editors.")]
pub struct TryArgs {
    /// A table's file, or the name of a dialect that is known
    #[arg(value_name = "FILE")]
    table: String,

    /// How many records: the newest of each topic, the first that match in an archive
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    store: ArchiveArgs,

    /// How long the brokers may take to answer for the first time (ms, s, m, h, d)
    #[arg(long, default_value = "15s", value_parser = duration, value_name = "DURATION", env = "DLQ_ARCHIVER_START_TIMEOUT")]
    start_timeout: Duration,
    #[command(flatten)]
    kafka: KafkaArgs,
}

pub async fn run(command: Command, config: &Config) -> Result<u8> {
    match command {
        Command::List { output } => list(&config.dialects()?, output.output)?,
        Command::Show { name } => {
            let dialects = config.dialects()?;
            let (_, text) = dialects.show(&name).ok_or_else(|| unknown(&name, &dialects))?;
            output::line(text.trim_end())?;
        }
        Command::Try(args) => tried(*args, config).await?,
    }
    Ok(0)
}

fn unknown(name: &str, dialects: &Dialects) -> Error {
    let near = did_you_mean(name, dialects.names());
    let near = if near.is_empty() { ".".to_owned() } else { near };
    Error::config(format!(
        "there is no dialect {name:?}{near} `dlq-archiver dialects list` has them all; a table of your own is known with \
         --dialect-file FILE"
    ))
}

fn list(dialects: &Dialects, output: Output) -> Result<()> {
    let mut out = Out::new();
    if output == Output::Table {
        let mut table =
            Table::new(vec![Column::whole("DIALECT"), Column::whole("TOPICS"), Column::wide("DESCRIPTION")]);
        for (name, description, opt_in) in dialects.described() {
            let topics = if opt_in { "that name it" } else { "all" };
            table.row(vec![name.into(), topics.into(), description.into()], &mut out)?;
        }
        table.finish(&mut out)?;
        return out.flush();
    }
    let mut documents = Documents::new(output == Output::Json);
    for (name, description, opt_in) in dialects.described() {
        let document = json!({"dialect": name, "opt_in": opt_in, "description": description});
        documents.document(&document.to_string(), &mut out)?;
    }
    documents.finish(&mut out)?;
    out.flush()
}

/// All known dialects and the one to try, which is read on every topic; and its name.
fn tables(table: &str, config: &Config) -> Result<(Tables, String)> {
    let path = PathBuf::from(table);
    let known = config.dialects()?;
    let (known, name) = match known.names().any(|name| name == table) && !path.exists() {
        true => (known, table.to_owned()),
        // A word that is no path is a dialect's name, mistyped.
        false if !path.exists() && !table.contains(['.', '/']) => return Err(unknown(table, &known)),
        false if !path.exists() => return Err(Error::config(format!("cannot read {table}: there is no such file"))),
        false => {
            let dialects = config.dialects_with(&[path])?;
            let name = dialects.names().last().unwrap_or(UNKNOWN).to_owned();
            (dialects, name)
        }
    };
    // An empty pattern is found in every topic's name.
    let every = Regex::new("").map_err(|e| Error::internal(format!("an empty pattern: {e}")))?;
    let every = TopicSettings { dialects: vec![name.clone()], ..TopicSettings::of(TopicMatch::Pattern(every)) };
    let dialects = known.with_topics(&[every])?;
    Ok((Tables::of(dialects, |routing| config.routing(routing)), name))
}

async fn tried(args: TryArgs, config: &Config) -> Result<()> {
    let (tables, name) = tables(&args.table, config)?;
    let filter = args.filter.filter()?;
    let doc = filter.doc().clone();
    let mut trial = Trial::new(name, args.output.output);
    // A variable or the file name the archive for other commands too: what is asked for by --topic is live then.
    let typed = config.is_typed("archive");
    if typed || (args.store.archive.is_some() && doc.topic.is_empty()) {
        let catalog = Catalog::open(args.store.read().await?).await?;
        let selected = catalog.select(&filter).await?;
        let mut cuts = catalog.cuts(selected, &filter, Reading::ALL);
        while let Some(cut) = cuts.next().await? {
            for row in cut.iter() {
                if trial.records == args.limit {
                    return trial.end();
                }
                let decoded = tables.dialects.decode(&row.id.topic, row.id.partition, &row.raw);
                trial.record(&tables, &row.id, &row.raw, decoded)?;
            }
        }
        tell_unjudged(cuts.unjudged());
        return trial.end();
    }
    if doc.topic.is_empty() {
        return Err(Error::config("nothing to try it on: give --topic (and --brokers), or --archive"));
    }
    let options = tail::Options {
        topics: doc.topic.clone(),
        partitions: doc.partition.clone(),
        start: Start::Last(args.limit as usize),
        once: true,
        limit: None,
        filter,
        start_timeout: args.start_timeout,
        cluster_id: false,
    };
    let connection = args.kafka.connection(config)?;
    let reading = tokio::task::spawn_blocking(move || {
        tail::run(&options, &connection, &tables, &AtomicBool::new(false), &mut |record| match record {
            Some(r) => trial.record(&tables, &r.id, &r.raw, r.decoded.clone()),
            None => Ok(()),
        })?;
        trial.end()
    });
    reading.await.map_err(|e| Error::internal(format!("the reading thread failed: {e}")))?
}

/// What was made of the records so far.
struct Trial {
    name: String,
    out: Out,
    documents: Option<Documents>,
    records: u32,
    dialects: BTreeMap<String, u32>,
    /// Of the dialect that is tried: how many of its records have the column.
    columns: BTreeMap<String, u32>,
    /// Header names that no table knows, of its records and of unknown ones.
    unread: BTreeMap<String, u32>,
    problems: u32,
}

/// Names that are told of headers that no table knows.
const UNREAD: usize = 30;

impl Trial {
    fn new(name: String, output: Output) -> Self {
        let documents = (output != Output::Table).then(|| Documents::new(output == Output::Json));
        let (dialects, columns, unread) = Default::default();
        Self { name, out: Out::new(), documents, records: 0, dialects, columns, unread, problems: 0 }
    }

    fn record(&mut self, tables: &Tables, id: &RecordId, raw: &RawRecord<'_>, decoded: Decoded<'_>) -> Result<()> {
        let decoded = decoded.into_owned();
        let hops = decoded.hops.clone();
        let dialect = decoded.dialect.to_string();
        let pipeline = tables.routing.pipeline(&id.topic, &decoded).into_owned();
        let columns = columns(id, raw, decoded, &pipeline);
        self.records += 1;
        *self.dialects.entry(dialect.clone()).or_default() += 1;
        self.problems += u32::from(!columns["decode_problems"].is_null());
        if dialect == self.name {
            for (column, value) in &columns {
                *self.columns.entry(column.clone()).or_default() += u32::from(!value.is_null());
            }
        }
        if dialect == self.name || dialect == UNKNOWN {
            for header in raw.headers.iter().filter(|h| !tables.dialects.knows(h.name)) {
                *self.unread.entry(String::from_utf8_lossy(header.name).into_owned()).or_default() += 1;
            }
        }
        match &mut self.documents {
            Some(documents) => {
                let mut document = Map::from_iter([("record_id".to_owned(), json!(id.to_string()))]);
                document.extend(columns);
                document.insert("hops".into(), hops.iter().map(hop).collect());
                documents.document(&record::line(&document), &mut self.out)
            }
            None => self.block(id, &columns, &hops),
        }
    }

    fn block(&mut self, id: &RecordId, columns: &Map<String, Value>, hops: &[Hop<'_>]) -> Result<()> {
        self.out.line(&text::clean(&id.to_string()))?;
        for (column, value) in columns.iter().filter(|(_, value)| !value.is_null()) {
            let value = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            // One line each; a stack trace is known by its first.
            let mut lines = value.lines();
            let first = lines.next().unwrap_or_default();
            let more = if lines.next().is_some() { " ..." } else { "" };
            self.out.line(&format!("  {column:18} {}{more}", text::clean(first)))?;
        }
        if hops.len() > 1 {
            let origins = hops.iter().map(|h| format!("{} {}", h.dialect, h.topic.as_deref().unwrap_or("?")));
            let chain = origins.collect::<Vec<_>>().join(", then ");
            self.out.line(&format!("  {:18} {}", "failures", text::clean(&chain)))?;
        }
        self.out.line("")
    }

    fn end(mut self) -> Result<()> {
        if let Some(documents) = self.documents {
            documents.finish(&mut self.out)?;
        } else if self.records > 0 {
            let counts = |counts: &BTreeMap<String, u32>| {
                let all = counts.iter().map(|(name, n)| format!("{} {n}", text::clean(name)));
                all.collect::<Vec<_>>().join(", ")
            };
            self.out.line(&format!("{}: {}", text::count(self.records.into(), "record"), counts(&self.dialects)))?;
            let mine = self.dialects.get(&self.name).copied().unwrap_or_default();
            if mine == 0 {
                self.out.line(&format!("None has what [detect] of {} asks for.", self.name))?;
            } else {
                let (filled, empty): (BTreeMap<_, _>, _) = self.columns.into_iter().partition(|(_, n)| *n > 0);
                self.out.line(&format!("Columns of {}: {}", self.name, counts(&filled)))?;
                let empty: Vec<String> = empty.into_keys().collect();
                self.out.line(&format!("Always null: {}", empty.join(", ")))?;
            }
            if self.problems > 0 {
                self.out.line(&format!("{} with problems.", text::count(self.problems.into(), "record")))?;
            }
            if !self.unread.is_empty() {
                let more = self.unread.len().saturating_sub(UNREAD);
                let shown: BTreeMap<_, _> = self.unread.into_iter().take(UNREAD).collect();
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                self.out.line(&format!("Headers that no table reads: {}{more}", counts(&shown)))?;
            }
        }
        self.out.flush()?;
        if self.records == 0 {
            output::tell("No record to try it on: the topics are empty, or none matches.");
        }
        Ok(())
    }
}

/// The columns that decoding fills, in the schema's order.
fn columns(id: &RecordId, raw: &RawRecord<'_>, decoded: Decoded<'_>, pipeline: &str) -> Map<String, Value> {
    let raw_columns =
        |name: &str| name.starts_with("kafka_") || ["record_id", "archived_at", "topic_generation"].contains(&name);
    let record = ArchivedRecord {
        id: id.clone(),
        cluster_id: None,
        raw: *raw,
        key_size: None,
        value_size: None,
        decoded,
        pipeline,
        archived_at_us: archive::now_us(),
    };
    let all = record::columns(&record, Projection::All);
    all.into_iter().filter(|(name, _)| !raw_columns(name)).collect()
}

fn hop(h: &Hop<'_>) -> Value {
    json!({"dialect": h.dialect, "topic": h.topic, "partition": h.partition, "offset": h.offset, "group": h.group,
        "error_class": h.error_class, "error_message": h.error_message})
}
