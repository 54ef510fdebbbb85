//! `dlq-archiver routes try`.
//!
//! Asks live topics or an archive, and writes nothing. Invariant: what it prints is what `archive` would do with the same
//! configuration.

use super::args::{ArchiveArgs, KafkaArgs, duration};
use super::config::Config;
use super::filter::FilterArgs;
use super::list::{tell_none, tell_unjudged};
use super::output::{self, Documents, Out, Output, OutputArgs};
use super::table::{Column, Table};
use super::text;
use crate::catalog::{Catalog, Reading};
use crate::cut::Tables;
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::format::ArchivedRecord;
use crate::layout;
use crate::routing::By;
use crate::tail::{self, Options, Start};
use serde_json::json;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Which pipelines records would be routed to, and by which rule; writes nothing
    Try(Box<Args>),
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Live topics are read as `tail` reads them: the last records of each, or from --since or the beginning on. With \
    --archive on the command line it is archived records, of the newest cuts first; a variable or the file alone do not \
    count, as they name the archive for other commands too.\n\n\
    PIPELINE is the exact name (pipeline_name), PATH NAME its folder. BY: the number of the rule in the file, from 1; topic (its \
    table [topics.\"NAME\"]), dialect (its default) or fallback (the dead-letter topic).\n\n\
    Examples:\n  \
    dlq-archiver routes try --config dlq-archiver.toml --brokers kafka:9092 --topic default-dlt\n  \
    dlq-archiver routes try --config dlq-archiver.toml --archive s3://compliance/dlq --since 7d -o jsonl"
)]
pub struct Args {
    /// So many records: the last of each topic that match; with --since, --from-beginning or --archive of all
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,

    /// Begin with the oldest records of live topics
    #[arg(long, conflicts_with = "since")]
    from_beginning: bool,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    filter: FilterArgs,

    /// How long the brokers may take to answer for the first time (ms, s, m, h, d)
    #[arg(long, default_value = "15s", value_parser = duration, value_name = "DURATION", env = "DLQ_ARCHIVER_START_TIMEOUT")]
    start_timeout: Duration,

    #[command(flatten)]
    store: ArchiveArgs,
    #[command(flatten)]
    kafka: KafkaArgs,
}

pub async fn run(command: Command, config: &Config) -> Result<u8> {
    let Command::Try(args) = command;
    let (filter, tables) = (args.filter.filter()?, config.tables()?);
    let tried = Tried::new(args.output.output);
    if config.is_typed("archive") {
        archived(&args, &filter, &tables, tried).await?;
    } else {
        live(&args, filter, tables, tried, config).await?;
    }
    Ok(0)
}

async fn archived(args: &Args, filter: &Filter, tables: &Tables, mut tried: Tried) -> Result<()> {
    let catalog = Catalog::open(args.store.read().await?).await?;
    let mut selected = catalog.select(filter).await?;
    selected.sort_by_key(|s| Reverse(s.objects.iter().filter_map(|o| o.max_timestamp_ms).max()));
    let stacktraces = tables.routing.asks_for("error_stacktrace");
    let reading = if stacktraces { Reading::ALL } else { Reading::LIST };
    let mut cuts = catalog.cuts(selected, filter, reading);
    while tried.records < u64::from(args.limit) {
        let Some(cut) = cuts.next().await? else { break };
        let left = usize::try_from(u64::from(args.limit) - tried.records).unwrap_or(usize::MAX);
        for i in cut.len().saturating_sub(left)..cut.len() {
            let record = cut.get(i);
            let was = record.pipeline;
            tried.add(&record, Some(was), tables)?;
        }
    }
    let none = tried.finish()? == 0;
    tell_unjudged(cuts.unjudged());
    if none && args.output.output == Output::Table {
        tell_none(&catalog, filter).await?;
    }
    Ok(())
}

async fn live(args: &Args, filter: Filter, tables: Tables, mut tried: Tried, config: &Config) -> Result<()> {
    let doc = filter.doc();
    if doc.topic.is_empty() {
        return Err(Error::config(
            "no records to try: give --topic TOPIC for live ones, or --archive URL for archived ones",
        ));
    }
    let start = match doc.since_ms {
        Some(since) => Start::Since(since),
        None if args.from_beginning => Start::Beginning,
        None => Start::Last(args.limit as usize),
    };
    let options = Options {
        topics: doc.topic.clone(),
        partitions: doc.partition.clone(),
        start,
        once: true,
        limit: (!matches!(start, Start::Last(_))).then_some(args.limit.into()),
        filter,
        start_timeout: args.start_timeout,
        cluster_id: false,
    };
    let connection = args.kafka.connection(config)?;
    let (stop, told) = (Arc::new(AtomicBool::new(false)), args.output.output == Output::Table);
    let stopped = stop.clone();
    let reading = tokio::task::spawn_blocking(move || {
        tail::run(&options, &connection, &tables, &stopped, &mut |record| match record {
            Some(record) => tried.add(record, None, &tables),
            None => Ok(()),
        })?;
        if tried.finish()? == 0 && told {
            output::tell("No dead letter to try: the topics are empty, or none matches.");
        }
        Ok(())
    });
    tokio::pin!(reading);
    let failed = |e| Error::internal(format!("the reading thread failed: {e}"));
    tokio::select! {
        done = &mut reading => done.map_err(failed)?,
        interrupted = super::signals::interrupted() => {
            interrupted?;
            stop.store(true, Ordering::Relaxed);
            // What was read so far is shown.
            tokio::time::timeout(Duration::from_secs(2), &mut reading).await.map_or(Ok(()), |done| done.map_err(failed)?)
        }
    }
}

/// Records that were routed: by pipeline, or printed one by one.
struct Tried {
    records: u64,
    groups: HashMap<(String, By), u64>,
    documents: Option<Documents>,
    out: Out,
}

impl Tried {
    fn new(output: Output) -> Self {
        let documents = (output != Output::Table).then(|| Documents::new(output == Output::Json));
        Self { records: 0, groups: HashMap::new(), documents, out: Out::new() }
    }

    /// `was`: the pipeline that it was archived under.
    fn add(&mut self, record: &ArchivedRecord<'_>, was: Option<&str>, tables: &Tables) -> Result<()> {
        self.records += 1;
        let mut routing = tables.routing.of_topic(&record.id.topic);
        let (pipeline, by) = routing.route(&record.decoded);
        let Some(documents) = &mut self.documents else {
            *self.groups.entry((pipeline.into_owned(), by)).or_default() += 1;
            return Ok(());
        };
        let (name, rule) = named(by);
        let document = json!({
            "record_id": record.id.to_string(),
            "pipeline_name": pipeline,
            "path_name": layout::escape(&pipeline),
            "by": name,
            "rule": rule,
            "archived_pipeline_name": was,
        });
        documents.document(&text::escaped(&document.to_string()), &mut self.out)
    }

    /// Returns how many records there were.
    fn finish(self) -> Result<u64> {
        let Self { records, groups, documents, mut out } = self;
        match documents {
            Some(documents) => documents.finish(&mut out)?,
            None if records > 0 => table(records, groups, &mut out)?,
            None => {}
        }
        out.flush()?;
        Ok(records)
    }
}

fn table(records: u64, groups: HashMap<(String, By), u64>, out: &mut Out) -> Result<()> {
    let mut sorted: Vec<_> = groups.into_iter().collect();
    sorted.sort_by(|(a, many), (b, more)| more.cmp(many).then_with(|| a.cmp(b)));
    let columns = [Column::wide("PIPELINE"), Column::number("RECORDS"), Column::whole("BY"), Column::new("PATH NAME")];
    let mut table = Table::new(columns.to_vec());
    let mut names: Vec<&str> = sorted.iter().map(|((name, _), _)| name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let pipelines = names.len() as u64;
    for ((name, by), records) in &sorted {
        let by = match named(*by) {
            (by, Some(number)) => format!("{by} {number}"),
            (by, None) => by.to_owned(),
        };
        let path = layout::escape(name).into_owned();
        table.row(vec![text::clean(name).into_owned(), records.to_string(), by, path], out)?;
    }
    table.finish(out)?;
    out.line(&format!("\n{} in {}", text::count(records, "record"), text::count(pipelines, "pipeline")))
}

/// What named a pipeline, and the rule's number as people count.
fn named(by: By) -> (&'static str, Option<usize>) {
    match by {
        By::Rule(rule) => ("rule", Some(rule + 1)),
        By::Topic => ("topic", None),
        By::Dialect => ("dialect", None),
        By::Fallback => ("fallback", None),
    }
}
