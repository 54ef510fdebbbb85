//! `dlq-archiver tail`.

use super::args::{KafkaArgs, duration};
use super::config::Config;
use super::output::{Documents, Out, Output, OutputArgs};
use super::{colour, event, record, signals};
use crate::archive;
use crate::error::{Error, Result};
use crate::filter::{Filter, FilterDoc, parse_time};
use crate::format::{ArchivedRecord, Projection};
use crate::tail::{self, Options, Start};
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const FILTER: &str = "Filter (a text matches exactly, or as a regular expression if it begins with ^)";

#[derive(Debug, clap::Args)]
#[command(after_help = "One line is one dead letter. Its fields, two spaces apart, `-` where one is not known:\n  \
    time: Kafka timestamp, UTC\n  \
    record id: topic/partition/offset, as `show` and --record-id take it once it is archived\n  \
    event id\n  \
    event source and type, else the origin's topic/partition/offset\n  \
    element path, else the event's subject\n  \
    error code and class\n  \
    destination, connector or group that failed\n  \
    error message, decoded\n\n\
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
    #[arg(long, value_parser = clap::value_parser!(i32).range(0..), value_delimiter = ',', value_name = "N")]
    partition: Vec<i32>,

    /// Begin with the last N records of each topic that match (over all its partitions, by timestamp). With a filter,
    /// topics are read backwards until N are found
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10, conflicts_with_all = ["since", "from_beginning"],
          value_parser = clap::value_parser!(u32).range(..=10_000), help_heading = "Begin and end")]
    lines: u32,

    /// Begin with the first record of this time: RFC 3339, date, milliseconds since 1970, or 2h for two hours ago.
    /// Where the broker cannot seek by time, partitions are read from their start and filtered
    #[arg(
        long,
        value_name = "TIME",
        allow_hyphen_values = true,
        conflicts_with = "from_beginning",
        help_heading = "Begin and end"
    )]
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

    /// Only records with this error code; repeatable, as are all filters: any of them matches
    #[arg(long, value_delimiter = ',', allow_negative_numbers = true, value_name = "N", help_heading = FILTER)]
    error_code: Vec<i32>,

    /// Only records with this kind of error, as an exception's class: its full name or last segment
    #[arg(long, value_name = "CLASS", help_heading = FILTER)]
    error_class: Vec<String>,

    /// Only records of this pipeline
    #[arg(long, value_name = "NAME", help_heading = FILTER)]
    pipeline: Vec<String>,

    /// Only records with this header convention, such as knative or connect
    #[arg(long, value_name = "NAME", help_heading = FILTER)]
    dialect: Vec<String>,

    /// Print each record in full before its line: position, timestamp, every header, key and value. Null, empty, text
    /// and binary are told apart: null, "", "text", 0x00ff
    #[arg(long)]
    raw: bool,

    #[command(flatten)]
    output: OutputArgs,

    /// How long the brokers may take to answer for the first time (ms, s, m, h, d)
    #[arg(long, default_value = "15s", value_parser = duration, value_name = "DURATION", env = "DLQ_ARCHIVER_START_TIMEOUT")]
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
            filter: Filter::new(FilterDoc {
                since_ms: since,
                error_code: self.error_code.clone(),
                error_class: self.error_class.clone(),
                pipeline: self.pipeline.clone(),
                dialect: self.dialect.clone(),
                ..FilterDoc::default()
            })?,
            start_timeout: self.start_timeout,
            cluster_id: self.output.output != Output::Table,
        })
    }
}

pub async fn run(args: Args, config: &Config) -> Result<u8> {
    let options = args.options(archive::now_us() / 1000)?;
    let connection = args.kafka.connection(config)?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut printer = Printer::new(args.output.output, args.raw);
    let tables = config.tables()?;
    let reading = {
        let stop = stop.clone();
        tokio::task::spawn_blocking(move || {
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
    out: Out,
    shape: Shape,
    colour: bool,
    printed: u64,
}

enum Shape {
    Lines,
    Full,
    Documents(Documents),
}

impl Printer {
    fn new(output: Output, raw: bool) -> Self {
        let shape = match output {
            Output::Table if raw => Shape::Full,
            Output::Table => Shape::Lines,
            Output::Json | Output::Jsonl => Shape::Documents(Documents::new(output == Output::Json)),
        };
        Self { out: Out::new(), shape, colour: colour(io::stdout().is_terminal()), printed: 0 }
    }

    fn show(&mut self, dead_letter: Option<&ArchivedRecord<'_>>) -> Result<()> {
        let Some(r) = dead_letter else { return self.out.flush() };
        if matches!(self.shape, Shape::Full) && self.printed > 0 {
            self.out.line("")?;
        }
        self.printed += 1;
        match &mut self.shape {
            Shape::Lines => self.out.line(&event::line(r, self.colour)),
            Shape::Full => self.out.line(&event::full(r, self.colour)),
            Shape::Documents(documents) => {
                let mut columns = record::columns(r, Projection::All);
                // The one column that an archive knows and a topic does not.
                columns.insert("archived_at".to_owned(), serde_json::Value::Null);
                documents.document(&record::line(&columns), &mut self.out)
            }
        }
    }

    fn end(mut self) -> Result<()> {
        // A program sees that for itself.
        if self.printed == 0 && !matches!(self.shape, Shape::Documents(_)) {
            super::output::tell("No dead letter to show: the topics are empty, or none matches.");
        }
        if let Shape::Documents(documents) = self.shape {
            documents.finish(&mut self.out)?;
        }
        self.out.flush()
    }
}
