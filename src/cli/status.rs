//! `dlq-archiver status`.

mod print;

use super::args::{ArchiveArgs, KafkaArgs, duration};
use super::config::Config;
use super::output::{self, Out, Output, OutputArgs};
use super::{signals, text};
use crate::archive::cluster::Kafka;
use crate::error::{Error, Kind, Result};
use crate::status::report::{self, Level, Report, Rules, Threshold};
use crate::status::{Options, Watcher};
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, clap::Args)]
#[command(after_help = "Read from the ledger and the brokers alone: no archiver has to run, no group is joined.\n\n\
    States, the worst partition deciding:\n  \
    critical  less than --critical is left until Kafka may delete a record that is not archived; records were lost within \
    --lost-within; offsets are gone that the ledger does not know of yet; the topic was made anew, or its log ends below \
    what is archived; a ledger is damaged\n  \
    unknown   no answer; the topic may not be described; or nobody tells how long it keeps records while some wait \
    (--retention)\n  \
    warning   less than --warning is left; the topic keeps records for no more than --interval; an open transaction has \
    hidden records for 15 min; records wait in a partition that was never archived\n  \
    ok        anything else; a topic that Kafka does not have any more is told\n\
    With the brokers away it is unknown, or critical where the ledger alone tells that.\n\
    What is left is a share: of retention.ms, by the oldest record that waits; of retention.bytes only once it is reached. \
    WAITING is in offsets, an upper bound of records; its bytes are estimated from the first of them.\n\n\
    Exit codes: 0 ok or warning; 1 something is critical or unknown; 2 wrong usage or configuration; 3 records were lost, \
    and nothing else is critical or unknown. With --nagios: 0 ok, 1 warning, 2 critical, 3 unknown (any error too).\n\n\
    Whether the store keeps If-None-Match: * is found out as each start of `archive` does: archive.json is created again \
    with the bytes that it has. A store that keeps it refuses that; one that does not has the same bytes once more. \
    --no-probe leaves it out, and so does --nagios.\n\n\
    All manifests are read for what was lost: of a partition 4 requests, one for every hundred cuts (checkpoints) and one for \
    each cut behind them; some 550 for 50,000 cuts. --watch reads only new ones from the second time on.\n\n\
    -o json: one document: state, exit_code, text, at, archive_id, url, conditional_create (true, false or null), \
    conditional_create_unknown, brokers_error, topics, partitions, advice (topic or null, name, text). A topic: topic, \
    partitions, and as a partition: state, reasons (state, name, text), waiting_offsets, waiting_bytes, hidden_offsets, \
    gone_offsets, oldest_waiting, deleted_from, deleted_by (retention.ms or retention.bytes), left (share), last_cut, lost, \
    lost_expired, lost_unknown, compacted, lost_recently (offsets), retention_ms, retention_bytes, retention_source (brokers, \
    given, unknown); what waits, is hidden or gone is null without an answer. A partition besides: partition, generation, \
    archived_to, log_start, last_stable_offset, log_end, hidden_since. Times are RFC 3339 or null. -o jsonl: the same, one a line, each in an object named topic, partition, \
    advice, or last status.\n\n\
    Examples:\n  \
    dlq-archiver status --brokers kafka:9092 --archive s3://compliance/dlq\n  \
    dlq-archiver status --topic '^.*-dlq$' --partitions --watch\n  \
    dlq-archiver status --nagios --critical 2h --warning 6h --interval 15m")]
pub struct Args {
    /// Only this dead-letter topic, or those that match a regular expression that begins with ^, also such as the archive
    /// does not have yet; repeatable. By default those of the ledger
    #[arg(short, long, env = "DLQ_ARCHIVER_TOPIC", value_delimiter = ',')]
    topic: Vec<String>,

    /// One line a partition
    #[arg(long)]
    partitions: bool,

    /// Warning when no more than this is left of a partition's retention: a share such as 0.5, or a time such as 6h
    #[arg(id = "status_warning", long = "warning", default_value = "0.5", value_parser = threshold, value_name = "LEFT", env = "DLQ_ARCHIVER_STATUS_WARNING", help_heading = "Levels")]
    warning: Threshold,

    /// Critical when no more than this is left
    #[arg(id = "status_critical", long = "critical", default_value = "0.2", value_parser = threshold, value_name = "LEFT", env = "DLQ_ARCHIVER_STATUS_CRITICAL", help_heading = "Levels")]
    critical: Threshold,

    /// For how long a loss is critical, since the cut that recorded it
    #[arg(id = "status_lost_within", long = "lost-within", default_value = "24h", value_parser = duration, value_name = "DURATION", env = "DLQ_ARCHIVER_STATUS_LOST_WITHIN", help_heading = "Levels")]
    lost_within: Duration,

    /// How long topics keep records whose brokers do not tell retention.ms
    #[arg(long, value_parser = duration, value_name = "DURATION", env = "DLQ_ARCHIVER_RETENTION", help_heading = "Levels")]
    retention: Option<Duration>,

    /// How often a job runs `archive --once`: a topic that keeps records for no longer is a warning
    #[arg(id = "status_interval", long = "interval", value_parser = duration, value_name = "DURATION", env = "DLQ_ARCHIVER_STATUS_INTERVAL", help_heading = "Levels")]
    interval: Option<Duration>,

    /// How long broker and store may take to answer, all in all
    #[arg(id = "status_timeout", long = "timeout", default_value = "10s", value_parser = duration, value_name = "DURATION", env = "DLQ_ARCHIVER_STATUS_TIMEOUT")]
    timeout: Duration,

    /// Do not find out whether the store keeps If-None-Match: *
    #[arg(long)]
    no_probe: bool,

    /// Look again every so many seconds [default: 10] until Ctrl-C, and end with the last exit code
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "10", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    watch: Option<u64>,

    /// One line and the exit codes of a monitoring plugin (Nagios, Icinga, Zabbix)
    #[arg(long, conflicts_with_all = ["watch", "partitions", "output"])]
    nagios: bool,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    store: ArchiveArgs,
    #[command(flatten)]
    kafka: KafkaArgs,
}

/// A share of 0 to 1, or a time.
fn threshold(text: &str) -> Result<Threshold, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(Threshold::Share(share)),
        Ok(_) => Err("a share is between 0 and 1, such as 0.5; a time has a unit, such as 6h".into()),
        Err(_) => duration(text).map(|d| Threshold::Time(millis(d))),
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl Args {
    fn rules(&self) -> Result<Rules> {
        let swapped = match (self.warning, self.critical) {
            (Threshold::Share(warning), Threshold::Share(critical)) => critical > warning,
            (Threshold::Time(warning), Threshold::Time(critical)) => critical > warning,
            _ => false,
        };
        if swapped {
            return Err(Error::config("--critical is above --warning: what is left falls below --warning first"));
        }
        if self.timeout.is_zero() || self.retention.is_some_and(|r| r.is_zero()) {
            return Err(Error::config("--timeout and --retention must be above 0"));
        }
        Ok(Rules {
            warning: self.warning,
            critical: self.critical,
            lost_within_ms: millis(self.lost_within),
            interval_ms: self.interval.map(millis),
        })
    }

    async fn watcher(&self, config: &Config) -> Result<Watcher> {
        if let Some(empty) = self.topic.iter().find(|t| t.trim().is_empty() || t.as_str() == "^") {
            return Err(Error::config(format!("--topic {empty:?} names no topic")));
        }
        let options = Options {
            topics: self.topic.clone(),
            retention: self.retention,
            topics_settings: config.topics.clone(),
            timeout: self.timeout,
            probe: !self.no_probe && !self.nagios,
        };
        let cluster = Arc::new(Kafka::new(self.kafka.connection(config)?)?);
        let opened = tokio::time::timeout(self.timeout, self.store.open(false)).await;
        let store = opened.map_err(|_| Error::unavailable("the store gave no answer within --timeout"))??;
        Watcher::new(options, store, cluster)
    }
}

pub async fn run(args: Args, config: &Config) -> Result<u8> {
    if args.nagios {
        return nagios(&args, config).await;
    }
    let rules = args.rules()?;
    let watcher = args.watcher(config).await?;
    match args.watch {
        None => {
            let report = report::judge(&watcher.look().await?, &rules);
            let mut out = Out::new();
            show(&args, &report, &mut out)?;
            out.flush()?;
            Ok(report.exit_code())
        }
        Some(seconds) => watch(&args, &rules, &watcher, Duration::from_secs(seconds)).await,
    }
}

fn show(args: &Args, report: &Report, out: &mut Out) -> Result<()> {
    match args.output.output {
        Output::Table => print::table(report, args.partitions, out),
        Output::Json => out.line(&text::escaped(&print::document(report).to_string())),
        Output::Jsonl => print::lines(report, out),
    }
}

/// Any outcome in the plugin's form: an error too is one line and a code.
async fn nagios(args: &Args, config: &Config) -> Result<u8> {
    let found = async {
        let rules = args.rules()?;
        let facts = args.watcher(config).await?.look().await?;
        Ok::<_, Error>((report::judge(&facts, &rules), rules))
    };
    match found.await {
        Ok((report, rules)) => {
            output::line(&print::nagios(&report, &rules))?;
            Ok(match report.level {
                Level::Ok => 0,
                Level::Warning => 1,
                Level::Critical => 2,
                Level::Unknown => 3,
            })
        }
        Err(e) => {
            output::line(&unknown(e.message()))?;
            Ok(3)
        }
    }
}

/// A plugin's line where nothing could be found out.
pub fn unknown(why: &str) -> String {
    format!("DLQ UNKNOWN - {}", print::one_line(why))
}

/// Until Ctrl-C. What does not answer is shown, and asked again.
async fn watch(args: &Args, rules: &Rules, watcher: &Watcher, pause: Duration) -> Result<u8> {
    let mut code = 1;
    let looks = async {
        loop {
            let report = watcher.look().await.map(|facts| report::judge(&facts, rules));
            code = match &report {
                Ok(report) => report.exit_code(),
                Err(e) if e.kind() == Kind::Config => return Err(e.clone()),
                Err(_) => 1,
            };
            draw(args, &report)?;
            tokio::time::sleep(pause).await;
        }
    };
    tokio::select! {
        ended = looks => ended,
        interrupted = signals::interrupted() => interrupted.map(|()| code),
    }
}

/// On a terminal over what was drawn before, as much as fits; elsewhere below it.
fn draw(args: &Args, report: &Result<Report>) -> Result<()> {
    let mut held = Out::held();
    let now_ms = crate::host::now_us() / 1000;
    let table = args.output.output == Output::Table;
    if table {
        held.line(&format!("{}  {}", text::time(now_ms), "dlq-archiver status"))?;
    }
    match report {
        Ok(report) => show(args, report, &mut held)?,
        Err(e) => held.line(&format!("unknown: {}", text::clean(e.message())))?,
    }
    let (drawn, mut out) = (held.take(), Out::new());
    if table && io::stdout().is_terminal() {
        let (columns, rows) = terminal_size::terminal_size().map_or((80, 24), |(w, h)| (w.0.max(1), h.0));
        let mut used = 0;
        out.text("\u{1b}[H")?;
        for line in drawn.lines() {
            used += text::width(line).div_ceil(usize::from(columns)).max(1);
            if used >= usize::from(rows) {
                break;
            }
            out.text(line)?;
            out.text("\u{1b}[K\n")?;
        }
        out.text("\u{1b}[J")?;
    } else {
        out.text(&drawn)?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_a_share_or_a_time() {
        assert_eq!(threshold("0.5"), Ok(Threshold::Share(0.5)));
        assert_eq!(threshold("1"), Ok(Threshold::Share(1.0)));
        assert_eq!(threshold("6h"), Ok(Threshold::Time(6 * 3_600_000)));
        assert!(threshold("6").is_err() && threshold("-1").is_err() && threshold("NaN").is_err());
        assert!(threshold("x").is_err() && threshold("").is_err());
    }
}
