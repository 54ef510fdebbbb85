//! `dlq-archiver tail`.

use super::args::{KafkaArgs, duration};
use super::output::{Output, OutputArgs, written};
use super::{colour, signals};
use crate::archive;
use crate::cut::Tables;
use crate::error::{Error, Result};
use crate::filter::parse_time;
use crate::tail::{self, Event, Options, Pattern, Select, Start};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(Debug, clap::Args)]
#[command(after_help = "One line is one dead letter. Its fields, two spaces apart, `-` where one is not known:\n  \
    time (Kafka timestamp, UTC), event id (else topic/partition/offset), source and type (else the origin\n  \
    topic/partition/offset), element path or subject, error code and class, destination, connector or group,\n  \
    error message, decoded.\n\n\
    No consumer group is joined and no offset committed. Without --once it follows until Ctrl-C.\n\n\
    Examples:\n  \
    dlq-archiver tail --brokers kafka:9092 --topic default-dlt\n  \
    dlq-archiver tail -t '^.*-dlq$' --since 2h --error-code 500 --once\n  \
    dlq-archiver tail -t orders-dlq --from-beginning --once -o jsonl | jq .error_message")]
pub struct Args {
    /// Dead-letter topic, or a regular expression that begins with ^; repeatable
    #[arg(short, long, required = true, env = "DLQ_ARCHIVER_TOPIC", value_delimiter = ',')]
    topic: Vec<String>,

    /// Only this partition; repeatable
    #[arg(short, long, value_parser = clap::value_parser!(i32).range(0..))]
    partition: Vec<i32>,

    /// Begin with the last N records of each topic (over all its partitions, by timestamp)
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10, conflicts_with_all = ["since", "from_beginning"],
          value_parser = clap::value_parser!(u32).range(..=10_000), help_heading = "Begin and end")]
    lines: u32,

    /// Begin with the first record of this time: RFC 3339, date, milliseconds since 1970, or 2h for two hours ago.
    /// Where the broker cannot seek by time, partitions are read from their start and filtered
    #[arg(long, value_name = "TIME", conflicts_with = "from_beginning", help_heading = "Begin and end")]
    since: Option<String>,

    /// Begin with the oldest record there is
    #[arg(long, help_heading = "Begin and end")]
    from_beginning: bool,

    /// End where the topics ended at start, instead of following
    #[arg(long, help_heading = "Begin and end")]
    once: bool,

    /// End after this many records
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Begin and end")]
    limit: Option<u64>,

    /// Only records with this error code; repeatable
    #[arg(long, value_name = "CODE", help_heading = "Filter")]
    error_code: Vec<i32>,

    /// Only records with this error class, or one that matches a regular expression that begins with ^; repeatable
    #[arg(long, value_name = "CLASS", help_heading = "Filter")]
    error_class: Vec<String>,

    /// Only records of this pipeline, or of those that match a regular expression that begins with ^; repeatable
    #[arg(long, value_name = "NAME", help_heading = "Filter")]
    pipeline: Vec<String>,

    /// Only records of this dialect: knative, connect, share-group, streams, spring, unknown; repeatable
    #[arg(long, value_name = "NAME", help_heading = "Filter")]
    dialect: Vec<String>,

    /// Print each record in full before its line: position, timestamp, every header, key and value. Null, empty, text
    /// and binary are told apart: null, "", "text", hex 00ff
    #[arg(long)]
    raw: bool,

    #[command(flatten)]
    output: OutputArgs,

    /// How long the brokers may take to answer for the first time
    #[arg(long, default_value = "15s", value_parser = duration, env = "DLQ_ARCHIVER_START_TIMEOUT")]
    start_timeout: Duration,

    #[command(flatten)]
    kafka: KafkaArgs,
}

impl Args {
    fn options(&self, now_ms: i64) -> Result<Options> {
        if self.raw && self.output.output != Output::Table {
            return Err(Error::config(
                "--raw is for people; -o json and -o jsonl have all headers, key and value anyway",
            ));
        }
        if let Some(empty) = self.topic.iter().find(|t| t.trim().is_empty() || t.as_str() == "^") {
            return Err(Error::config(format!("--topic {empty:?} names no topic")));
        }
        let since =
            self.since.as_deref().map(|t| parse_time(t, now_ms).map_err(|e| e.context("--since"))).transpose()?;
        let patterns =
            |flag: &str, texts: &[String]| texts.iter().map(|t| Pattern::parse(flag, t)).collect::<Result<Vec<_>>>();
        Ok(Options {
            topics: self.topic.clone(),
            partitions: self.partition.clone(),
            start: match since {
                Some(since) => Start::Since(since),
                None if self.from_beginning => Start::Beginning,
                None => Start::Last(self.lines as usize),
            },
            once: self.once,
            limit: self.limit,
            select: Select {
                since_ms: since,
                error_codes: self.error_code.clone(),
                error_classes: patterns("--error-class", &self.error_class)?,
                pipelines: patterns("--pipeline", &self.pipeline)?,
                dialects: patterns("--dialect", &self.dialect)?,
            },
            start_timeout: self.start_timeout,
            cluster_id: self.output.output != Output::Table,
        })
    }
}

pub async fn run(args: Args) -> Result<u8> {
    let options = args.options(archive::now_us() / 1000)?;
    let connection = args.kafka.connection()?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut printer = Printer::new(args.output.output, args.raw);
    let reading = {
        let stop = stop.clone();
        tokio::task::spawn_blocking(move || {
            let tables = Tables::builtin();
            tail::run(&options, &connection, &tables, &stop, &mut |event| printer.show(event))?;
            printer.end()
        })
    };
    tokio::pin!(reading);
    let failed = |e| Error::internal(format!("the reading thread failed: {e}"));
    tokio::select! {
        done = &mut reading => done.map_err(failed)??,
        interrupted = signals::interrupted() => {
            interrupted?;
            stop.store(true, Ordering::Relaxed);
            // A question to a broker may still be open; nothing is lost with it.
            if let Ok(done) = tokio::time::timeout(Duration::from_secs(2), &mut reading).await {
                done.map_err(failed)??;
            }
        }
    }
    Ok(0)
}

/// Standard output, written through whenever there is nothing more at hand.
struct Printer {
    out: BufWriter<io::Stdout>,
    output: Output,
    raw: bool,
    colour: bool,
    printed: u64,
}

impl Printer {
    fn new(output: Output, raw: bool) -> Self {
        let out = io::stdout();
        let colour = colour(out.is_terminal());
        Self { out: BufWriter::new(out), output, raw, colour, printed: 0 }
    }

    fn show(&mut self, event: Option<&Event<'_>>) -> Result<()> {
        let Some(event) = event else { return written(self.out.flush()) };
        let first = self.printed == 0;
        self.printed += 1;
        written(match self.output {
            Output::Table if self.raw => {
                writeln!(self.out, "{}{}", if first { "" } else { "\n" }, event.full(self.colour))
            }
            Output::Table => writeln!(self.out, "{}", event.line(self.colour)),
            Output::Jsonl => writeln!(self.out, "{}", event.json()?),
            Output::Json => write!(self.out, "{}{}", if first { "[\n" } else { ",\n" }, event.json()?),
        })
    }

    fn end(&mut self) -> Result<()> {
        if self.output == Output::Json {
            written(self.out.write_all(if self.printed == 0 { b"[]\n" } else { b"\n]\n" }))?;
        }
        written(self.out.flush())
    }
}
