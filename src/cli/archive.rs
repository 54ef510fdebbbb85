//! `dlq-archiver archive`.

use super::args::{ArchiveArgs, KafkaArgs, StoreCreateArg, bytes, cut_age, cut_bytes, duration, share};
use super::config::Config;
use super::listen::ListenArgs;
use super::output::{self, Output, OutputArgs};
use super::progress::{Progress, human_bytes};
use super::{signals, text};
use crate::archive::cluster::Kafka;
use crate::archive::{self, Counters, From, Options, Outcome, StoreCreate, StoreUse};
use crate::catalog::Catalog;
use crate::cut::{CutPolicy, Tables};
use crate::error::{Error, Result};
use crate::filter::{Filter, FilterDoc};
use crate::format::{Compression, Format};
use crate::kafka::Connection;
use crate::refetch::Brokers;
use crate::refetch::expiry::Watch;
use crate::refetch::follow::Follow;
use crate::routing::MAX_PIPELINES;
use crate::stage::StageReceiver;
use crate::store::{Measured, Requests, Store};
use crate::topics::TopicSettings;
use clap::ValueEnum;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of originals that are held at a time beside the archiving.
const ORIGINALS: usize = 64 << 20;
/// Between two lines on originals that Kafka will delete.
const EXPIRY: Duration = Duration::from_secs(600);
/// What Kafka deletes within a day is a warning.
const SOON_MS: i64 = 24 * 3_600_000;
/// Committed cuts that wait for their originals; of more, all of the ledger is looked at.
const COMMITTED: usize = 1024;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dlq-archiver archive --brokers kafka:9092 --topic orders-dlq --archive s3://compliance/dlq\n  \
    dlq-archiver archive --once --topic '^.*-dlq$' --archive file:///var/dlq\n\n\
    At the end, -o json prints: archive_id; partitions; records, cuts (archived by this run); records_found, cuts_found \
    (found archived already, by another archiver or by a request whose reply was lost); bytes_read; objects, bytes_stored; \
    lost (offsets that retention took before); stopped (partitions, each with its error).")]
pub struct Args {
    /// Dead-letter topic to drain, or a regular expression that begins with ^; repeatable
    #[arg(short, long, required = true, env = "DLQ_ARCHIVER_TOPIC", value_delimiter = ',')]
    topic: Vec<String>,

    /// Drain up to the last stable offsets seen at start, then exit
    #[arg(long, env = "DLQ_ARCHIVER_ONCE")]
    once: bool,

    /// Consumer group; by default one of the archive's own
    #[arg(long, env = "DLQ_ARCHIVER_GROUP")]
    group: Option<String>,

    /// Where a partition begins that the archive does not have yet: earliest, latest, or a time (RFC 3339, date, milliseconds since 1970, or 2h for two hours ago)
    #[arg(long, default_value = "earliest", value_name = "WHERE", env = "DLQ_ARCHIVER_FROM")]
    from: String,

    /// Format of the data objects; an archive keeps the first one
    #[arg(long, value_enum, default_value_t, env = "DLQ_ARCHIVER_FORMAT")]
    format: FormatArg,

    /// Compression of --format jsonl [default: gzip]
    #[arg(long, value_enum, env = "DLQ_ARCHIVER_COMPRESSION")]
    compression: Option<CompressionArg>,

    /// Cut after this many records of a partition
    #[arg(long, default_value_t = 1_000_000, env = "DLQ_ARCHIVER_CUT_RECORDS", value_name = "N", value_parser = clap::value_parser!(u64).range(1..),
          help_heading = "Cut policy")]
    cut_records: u64,

    /// Cut after this many bytes of a partition (keys, values and headers): bytes, or KiB, MiB, GiB
    #[arg(long, default_value = "128MiB", value_parser = cut_bytes, value_name = "SIZE", env = "DLQ_ARCHIVER_CUT_BYTES", help_heading = "Cut policy")]
    cut_bytes: usize,

    /// Cut when the oldest record of an open batch was read this long ago: seconds, or ms, s, m, h, d
    #[arg(long, default_value = "15m", value_parser = cut_age, value_name = "DURATION", env = "DLQ_ARCHIVER_CUT_AGE", help_heading = "Cut policy")]
    cut_age: Duration,

    /// Wait longer with a cut than --cut-age where more data objects a day than this would come of it, over all
    /// partitions; at most 24h
    #[arg(long, value_name = "N", env = "DLQ_ARCHIVER_FILES_PER_DAY", value_parser = clap::value_parser!(u64).range(1..),
          help_heading = "Cut policy")]
    files_per_day: Option<u64>,

    /// Pipelines of a cut that have data objects of their own, the ones with the most records. The others share one for each
    /// date, in the folder pipeline=shared.00000000; the column pipeline_name has each record's own
    #[arg(long, value_name = "N", default_value_t = MAX_PIPELINES, env = "DLQ_ARCHIVER_MAX_PIPELINES", value_parser = max_pipelines,
          help_heading = "Cut policy")]
    max_pipelines: usize,

    /// Share of a record's retention.ms (or of retention.bytes) at which it is cut at the latest, whatever --cut-age says: 0.5
    /// leaves half of it for outages
    #[arg(long, default_value = "0.5", value_parser = share, value_name = "SHARE", env = "DLQ_ARCHIVER_SAFETY", help_heading = "Deadlines")]
    safety: f64,

    /// A batch is not cut before this age because of its deadline. Bounds the number of objects where records are past their
    /// retention on arrival
    #[arg(long, default_value = "5s", value_parser = duration, value_name = "DURATION", env = "DLQ_ARCHIVER_CUT_MIN_AGE", help_heading = "Deadlines")]
    cut_min_age: Duration,

    /// How long the topics keep records, where the brokers do not tell retention.ms; per topic, in the file, it stands
    /// above what they tell
    #[arg(long, value_parser = duration, value_name = "DURATION", env = "DLQ_ARCHIVER_RETENTION", help_heading = "Deadlines")]
    retention: Option<Duration>,

    /// Memory for records and the objects that they become, over all partitions, at least 4MiB; one cut is at most two
    /// thirds of it, and 1GiB. The program takes some 100MiB besides, and up to 160MiB with many partitions, tiny records or
    /// values that do not compress
    #[arg(long, default_value = "512MiB", value_parser = memory, value_name = "SIZE", env = "DLQ_ARCHIVER_MEMORY")]
    memory: usize,

    /// How long broker and store may take to answer for the first time
    #[arg(long, default_value = "60s", value_parser = duration, value_name = "DURATION", env = "DLQ_ARCHIVER_START_TIMEOUT", help_heading = "Patience")]
    start_timeout: Duration,

    /// With --once: how long an outage is waited out (without --once: for ever)
    #[arg(long, default_value = "10m", value_parser = duration, value_name = "DURATION", env = "DLQ_ARCHIVER_WAIT", help_heading = "Patience")]
    wait: Duration,

    /// Where a topic was deleted and made anew, or its log was truncated: close what is archived of it, and archive what
    /// the log has now beside it, as another generation. Without it such a partition stops
    #[arg(long, env = "DLQ_ARCHIVER_NEW_GENERATION")]
    new_generation: bool,

    /// Whether objects are created on the condition that they are absent (If-None-Match: * on PUT)
    #[arg(long, value_enum, default_value_t, env = "DLQ_ARCHIVER_STORE_CREATE", help_heading = "Archive")]
    store_create: StoreCreateArg,

    /// First let 12 creators race for one key, 25 times, and refuse a store that lets two of them win. Leaves 25 small
    /// objects under probe/
    #[arg(long, env = "DLQ_ARCHIVER_PROBE_RACE", help_heading = "Archive")]
    probe_race: bool,

    /// How long open cuts may take to finish after the first SIGTERM or Ctrl-C
    #[arg(long, default_value = "20s", value_parser = duration, value_name = "DURATION", env = "DLQ_ARCHIVER_GRACE", help_heading = "Patience")]
    grace: Duration,

    /// Once a cut is committed, read the originals of its headers-only dead letters from the topics that they came from, as
    /// `dlq-archiver refetch` does; takes another 64MiB. No cut waits for it, and what it does not come to is left to that
    /// command
    #[arg(long, env = "DLQ_ARCHIVER_REFETCH", help_heading = "Originals")]
    refetch: bool,

    /// How long one look for originals may take; with --once, how long the last one is waited for at the end
    #[arg(long, default_value = "60s", value_parser = duration, value_name = "DURATION", env = "DLQ_ARCHIVER_REFETCH_TIMEOUT", help_heading = "Originals")]
    refetch_timeout: Duration,

    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    store: ArchiveArgs,
    #[command(flatten)]
    kafka: KafkaArgs,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum FormatArg {
    #[default]
    Parquet,
    Jsonl,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CompressionArg {
    None,
    Gzip,
    Zstd,
}

impl Args {
    #[cfg(test)]
    pub fn kafka(&self) -> &KafkaArgs {
        &self.kafka
    }

    pub fn output(&self) -> Output {
        self.output.output
    }

    pub fn is_in_s3(&self) -> bool {
        self.store.is_s3()
    }

    /// All that is known to be wrong before broker or store are asked.
    ///
    /// # Errors
    /// [`crate::Kind::Config`], with what to set.
    pub async fn prepare(&self, config: &Config) -> Result<(Options, Connection)> {
        config.dialects()?;
        let options = self.options(config)?;
        self.listen.check()?;
        self.store.check().await?;
        Ok((options, self.kafka.connection(config)?))
    }

    fn options(&self, config: &Config) -> Result<Options> {
        let format = match (self.format, self.compression) {
            (FormatArg::Parquet, None) => Format::Parquet,
            (FormatArg::Parquet, Some(_)) => {
                return Err(Error::config("--compression goes with --format jsonl; Parquet is always zstd inside"));
            }
            (FormatArg::Jsonl, None | Some(CompressionArg::Gzip)) => Format::Jsonl(Compression::Gzip),
            (FormatArg::Jsonl, Some(CompressionArg::Zstd)) => Format::Jsonl(Compression::Zstd),
            (FormatArg::Jsonl, Some(CompressionArg::None)) => Format::Jsonl(Compression::None),
        };
        if self.retention.is_some_and(|retention| retention.is_zero()) {
            return Err(Error::config("--retention must be above 0; leave it out if records are kept for ever"));
        }
        if let Some(empty) = self.topic.iter().find(|t| t.trim().is_empty() || t.as_str() == "^") {
            return Err(Error::config(format!("--topic {empty:?} names no topic")));
        }
        let looks_like_pattern = |t: &&String| !t.starts_with('^') && t.contains(|c| "*?+|()[]{}^$\\".contains(c));
        if let Some(topic) = self.topic.iter().find(looks_like_pattern) {
            return Err(Error::config(format!(
                "--topic {topic:?} is no topic's name. A regular expression begins with ^, such as '^.*-dlq$'"
            )));
        }
        for pattern in self.topic.iter().filter(|t| t.starts_with('^')) {
            crate::kafka::pattern(pattern)?;
        }
        if self.probe_race && self.store_create == StoreCreateArg::Plain {
            return Err(Error::config(
                "--probe-race tries the condition that --store-create plain does not use: leave one of them out",
            ));
        }
        Ok(Options {
            new_generation: self.new_generation,
            topics: self.topic.clone(),
            once: self.once,
            group: match self.group.as_deref() {
                Some("") => return Err(Error::config("--group is empty: leave it out for the archive's own")),
                _ => self.group.clone(),
            },
            from: parse_from(&self.from)?,
            format,
            policy: CutPolicy {
                max_records: usize::try_from(self.cut_records).unwrap_or(usize::MAX),
                max_bytes: self.cut_bytes.min(largest_cut(self.memory)),
                max_age: self.cut_age,
            },
            retention: self.retention,
            safety: self.safety,
            files_per_day: self.files_per_day,
            topics_settings: self.topics_settings(config),
            memory: self.memory,
            cut_min_age: self.cut_min_age,
            store_use: StoreUse {
                create: match self.store_create {
                    StoreCreateArg::Auto => StoreCreate::Auto,
                    StoreCreateArg::Conditional => StoreCreate::Conditional,
                    StoreCreateArg::Plain => StoreCreate::Plain,
                },
                probe_race: self.probe_race,
            },
            start_timeout: self.start_timeout,
            wait: self.wait,
            committed: None,
        })
    }

    /// How records are decoded and routed.
    pub fn tables(&self, config: &Config) -> Result<Tables> {
        let routing = |routing| config.routing(routing).with_max_pipelines(self.max_pipelines);
        Ok(Tables::of(config.dialects()?, routing))
    }

    fn topics_settings(&self, config: &Config) -> Vec<TopicSettings> {
        let mut topics = config.topics.clone();
        for topic in &mut topics {
            topic.cut_bytes = topic.cut_bytes.map(|size| size.min(largest_cut(self.memory)));
        }
        topics
    }
}

/// A cut that is on its way leaves room for what it becomes, which is a third of it or less but for values that cannot be
/// compressed: those are cut smaller. Larger objects are worth that nothing is read meanwhile. Nor may a column have more than 2 GiB
/// between two looks (Arrow's offsets are int32), or a request for an object more than 5 GiB (S3).
fn largest_cut(memory: usize) -> usize {
    (memory / 3 * 2).min(1 << 30)
}

/// A size that batches and objects fit into.
fn memory(text: &str) -> Result<usize, String> {
    match bytes(text)? {
        size if size < 4 << 20 => Err("it must be at least 4MiB".into()),
        size => Ok(size),
    }
}

fn max_pipelines(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=10_000) => Ok(n),
        _ => Err("expected a number from 1 to 10000".into()),
    }
}

fn parse_from(text: &str) -> Result<From> {
    match text {
        "earliest" => Ok(From::Earliest),
        "latest" => Ok(From::Latest),
        time => {
            crate::filter::parse_time(time, archive::now_us() / 1000).map(From::Time).map_err(|e| e.context("--from"))
        }
    }
}

pub async fn run(args: Args, config: &Config) -> Result<u8> {
    let (mut options, connection) = args.prepare(config).await?;
    let tables = Arc::new(args.tables(config)?);
    let brokers = if args.refetch { Some(Brokers::new(&connection, args.refetch_timeout)?) } else { None };
    let (counters, requests) = (Arc::new(Counters::default()), Requests::default());
    let _server = args.listen.start(&counters, &requests, &options).await?;
    let cluster = Arc::new(Kafka::new(connection)?);
    // A mistyped topic leaves no folder behind.
    archive::describe(&options, &*cluster).await?;
    let store = Arc::new(Measured::new(args.store.open(true).await?, requests));
    let stage = signals::shutdown(args.grace)?;
    let originals = match brokers {
        Some(brokers) => {
            Some(follow(&args, &mut options, brokers, (store.clone(), counters.clone()), config, stage.clone())?)
        }
        None => None,
    };
    let filter = Filter::new(FilterDoc { topic: args.topic.clone(), ..FilterDoc::default() })?;
    let watch = tokio::spawn(tell_expiry(store.clone(), cluster.clone(), filter));
    let show = tokio::spawn(show_progress(counters.clone()));
    let outcome = archive::run_on(options, store, cluster, tables, counters, stage).await;
    show.abort();
    watch.abort();
    let _ = show.await;
    let outcome = outcome?;
    if let Some(originals) = originals
        && tokio::time::timeout(args.refetch_timeout, originals).await.is_err()
    {
        tracing::warn!("not all originals were read again within --refetch-timeout: `dlq-archiver refetch` goes on");
    }
    print(&outcome, args.output.output)?;
    Ok(outcome.exit_code())
}

/// Begins to read originals beside the archiving.
fn follow(
    args: &Args,
    options: &mut Options,
    brokers: Brokers,
    (store, counters): (Arc<dyn Store>, Arc<Counters>),
    config: &Config,
    stage: StageReceiver,
) -> Result<tokio::task::JoinHandle<()>> {
    let filter = Filter::new(FilterDoc { topic: args.topic.clone(), ..FilterDoc::default() })?;
    let (told, committed) = tokio::sync::broadcast::channel(COMMITTED);
    options.committed = Some(told);
    let (dialects, timeout) = (config.dialects()?, args.refetch_timeout);
    let dialects = Arc::new(dialects);
    let follow = Follow { store, brokers, dialects, filter, memory: ORIGINALS, timeout, counters, stage };
    Ok(tokio::spawn(follow.run(committed)))
}

/// Tells which originals Kafka will delete unread, if they are not read again.
async fn tell_expiry(store: Arc<dyn Store>, cluster: Arc<Kafka>, filter: Filter) {
    let mut watch = Watch::new(cluster);
    loop {
        tokio::time::sleep(EXPIRY).await;
        let Ok(catalog) = Catalog::open(store.clone()).await else { continue };
        match watch.look(&catalog, &filter).await {
            Ok(found) => {
                let now_ms = archive::now_us() / 1000;
                for expiry in found {
                    match expiry.at_ms.saturating_sub(now_ms) < SOON_MS {
                        true => tracing::warn!(topic = expiry.topic, "{}", expiry.text(now_ms)),
                        false => tracing::info!(topic = expiry.topic, "{}", expiry.text(now_ms)),
                    }
                }
            }
            Err(e) => tracing::debug!("{e}"),
        }
    }
}

async fn show_progress(counters: Arc<Counters>) {
    let mut progress = Progress::start(None);
    let mut told = counters.get();
    loop {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let now = counters.get();
        if now == told {
            continue;
        }
        progress.update(now.archived_records, || {
            format!(
                "read {} records ({}), archived {} in {} objects ({})",
                now.read_records,
                human_bytes(now.read_bytes),
                now.archived_records,
                now.objects,
                human_bytes(now.object_bytes)
            )
        });
        told = now;
    }
}

fn print(outcome: &Outcome, output: Output) -> Result<()> {
    let c = outcome.counted;
    if output != Output::Table {
        let stopped: Vec<_> = outcome
            .stopped
            .iter()
            .map(|(tp, e)| serde_json::json!({"topic": tp.topic, "partition": tp.partition, "error": e.message()}))
            .collect();
        let document = serde_json::json!({
            "archive_id": outcome.archive.archive_id,
            "partitions": outcome.partitions,
            "records": c.archived_records,
            "bytes_read": c.read_bytes,
            "records_found": c.found_records,
            "cuts": c.cuts,
            "cuts_found": c.cuts_found,
            "objects": c.objects,
            "bytes_stored": c.object_bytes,
            "lost": c.lost,
            "stopped": stopped,
        });
        return output::line(&document.to_string());
    }
    output::line(&format!(
        "archived {} of {} in {}: {}, {}{}{}{}",
        text::count(c.archived_records, "record"),
        text::count(outcome.partitions as u64, "partition"),
        text::count(c.cuts, "cut"),
        text::count(c.objects, "object"),
        human_bytes(c.object_bytes),
        if c.cuts_found > 0 {
            format!(
                "; and {} of {} found archived already, by another archiver or by a request whose reply was lost",
                text::count(c.found_records, "record"),
                text::count(c.cuts_found, "cut")
            )
        } else {
            String::new()
        },
        c.losses().map_or_else(String::new, |told| format!("; {told}")),
        if outcome.stopped.is_empty() {
            String::new()
        } else {
            format!("; {} partitions STOPPED", outcome.stopped.len())
        },
    ))
}
