//! `dlq-archiver refetch`.

use super::args::{ArchiveArgs, KafkaArgs, StoreCreateArg, bytes, duration};
use super::config::Config;
use super::filter::FilterArgs;
use super::output::{self, Output, OutputArgs};
use super::progress::{Progress, human_bytes};
use super::{signals, text};
use crate::archive::plainly;
use crate::catalog::Catalog;
use crate::error::{Error, Result};
use crate::format::refetched::State;
use crate::refetch::{self, Brokers, Counters, Options, Outcome};
use crate::stage::Stage;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Share groups' dead letters have headers only, or key and value without headers and timestamp. As long as \
    the topic that a record came from still has it, it is read from there, and kept under refetched/ in the archive; what is \
    archived stays as it is. `restore`, `show` and `list` use it. What is done is not done again: give the command as often as you \
    like, from a job too.\n\n\
    Originals that are not there any more are noted with why (gone: deleted by retention or compaction; topic_missing; \
    recreated: the topic is another one of that name; mismatch: another record than the copy in the dead letter), and not \
    looked for again without --again.\n\n\
    Exit codes: 0 each has an answer; 1 some brokers or topics gave none, or store or brokers do not answer; 2 wrong usage \
    or configuration.\n\n\
    Examples:\n  \
    dlq-archiver refetch --archive s3://compliance/dlq --brokers kafka:9092\n  \
    dlq-archiver refetch --archive s3://compliance/dlq --topic orders-dlq --since 2h --again"
)]
pub struct Args {
    /// Look also for originals that were looked for before, and were not there
    #[arg(long)]
    again: bool,

    /// Memory for originals, at least 1MiB
    #[arg(id = "refetch_memory", long = "memory", default_value = "128MiB", value_parser = memory, value_name = "SIZE")]
    memory: usize,

    /// How long brokers may hand out nothing before a topic is left to the next run
    #[arg(long, default_value = "60s", value_parser = duration, value_name = "DURATION", env = "DLQ_ARCHIVER_REFETCH_TIMEOUT", help_heading = "Patience")]
    refetch_timeout: Duration,

    /// As for archive, but auto does not find out: it is conditional
    #[arg(long, value_enum, default_value_t, env = "DLQ_ARCHIVER_STORE_CREATE", help_heading = "Archive")]
    store_create: StoreCreateArg,

    /// How long brokers may take to answer for the first time (ms, s, m, h, d)
    #[arg(long, default_value = "60s", value_parser = duration, value_name = "DURATION", env = "DLQ_ARCHIVER_START_TIMEOUT", help_heading = "Patience")]
    start_timeout: Duration,

    /// How long what was read may take to be written after the first SIGTERM or Ctrl-C
    #[arg(long, default_value = "20s", value_parser = duration, value_name = "DURATION", env = "DLQ_ARCHIVER_GRACE", help_heading = "Patience")]
    grace: Duration,

    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    store: ArchiveArgs,
    #[command(flatten)]
    kafka: KafkaArgs,
}

fn memory(text: &str) -> Result<usize, String> {
    match bytes(text)? {
        size if size < 1 << 20 => Err("it must be at least 1MiB".into()),
        size => Ok(size),
    }
}

pub async fn run(args: Args, config: &Config) -> Result<u8> {
    let options = Options {
        filter: args.filter.filter()?,
        again: args.again,
        memory: args.memory,
        deadline: None,
        dialects: Arc::new(config.dialects()?),
    };
    let brokers = Brokers::new(&args.kafka.connection(config)?, args.refetch_timeout)?;
    let store = args.store.read().await?;
    let catalog = Catalog::open(store.clone()).await?;
    brokers.check(catalog.archive().kafka_cluster_id.as_deref(), args.start_timeout).await?;
    let stage = signals::shutdown_saying(args.grace, "what is not written is looked for by the next run")?;
    if args.store_create == StoreCreateArg::Plain {
        plainly(&*store, &stage).await?;
    }
    let (counters, began) = (Arc::new(Counters::default()), Instant::now());
    let shown = counters.clone();
    let progress = tokio::spawn(async move {
        let mut progress = Progress::start(None);
        loop {
            tokio::time::sleep(Duration::from_millis(250)).await;
            progress
                .update(shown.answered(), || format!("{} of {} originals looked for", shown.answered(), shown.found()));
        }
    });
    let work = refetch::run(&options, &catalog, &brokers, &counters, &stage);
    let outcome = tokio::select! {
        outcome = work => outcome,
        () = stage.reaches(Stage::Abandon) => Err(Error::failed("stopped; the same command again goes on")),
    };
    progress.abort();
    let _ = progress.await;
    let outcome = outcome?;
    print(&outcome, began.elapsed(), args.output.output)?;
    Ok(u8::from(outcome.stopped || !outcome.unanswered.is_empty()))
}

fn print(outcome: &Outcome, took: Duration, output: Output) -> Result<()> {
    let w = &outcome.written;
    let states = State::ALL.map(|state| (state, w.states.get(&state).copied().unwrap_or(0)));
    let unanswered: u64 = outcome.unanswered.iter().map(|u| u.records).sum();
    if output != Output::Table {
        let document = json!({
            "looked_for": outcome.looked_for,
            "states": states.iter().map(|(state, n)| (state.as_str(), *n)).collect::<BTreeMap<_, _>>(),
            "found": w.found,
            "still": outcome.still.iter().map(|(state, n)| (state.as_str(), *n)).collect::<BTreeMap<_, _>>(),
            "without_origin": outcome.without_origin,
            "unanswered": outcome.unanswered.iter().map(|u| json!({
                "topic": u.topic, "records": u.records, "error": u.error.message()
            })).collect::<Vec<_>>(),
            "stopped": outcome.stopped,
            "objects": w.objects,
            "bytes_stored": w.bytes,
            "fetch_requests": outcome.fetches,
            "seconds": took.as_secs_f64(),
        });
        return output::line(&text::escaped(&document.to_string()));
    }
    let mut out = output::Out::new();
    out.line(&format!(
        "{} looked for in {:.1} s: {} read again, {} ({})",
        text::count(outcome.looked_for, "original"),
        took.as_secs_f64(),
        states[0].1,
        text::count(w.objects, "object"),
        human_bytes(w.bytes)
    ))?;
    for (state, n) in states.iter().skip(1).filter(|(_, n)| *n > 0) {
        out.line(&format!("  {n} {}: {}", state.as_str(), state.text()))?;
    }
    for (state, n) in &outcome.still {
        out.line(&format!("  {n} {} as before: {}", state.as_str(), state.text()))?;
    }
    if outcome.without_origin > 0 {
        out.line(&format!("  {} do not tell where they came from", text::count(outcome.without_origin, "record")))?;
    }
    for u in &outcome.unanswered {
        let topic = text::clean(&u.topic);
        out.line(&format!("  {} of topic {topic} without an answer: {}", u.records, text::clean(u.error.message())))?;
    }
    if unanswered > 0 || outcome.stopped {
        out.line("the same command again looks for what has no answer yet")?;
    }
    out.flush()
}
