//! Flags of `restore`.

use super::{looking, to_file, values};
use crate::archive::{now_us, rfc3339};
use crate::catalog::Catalog;
use crate::cli::args::{ArchiveArgs, KafkaArgs, StoreCreateArg, bytes, duration};
use crate::cli::asking::user_and_host;
use crate::cli::filter::{FilterArgs, PickArgs};
use crate::cli::output::OutputArgs;
use crate::error::{Error, Result};
use crate::filter::{Filter, FilterDoc};
use crate::restore::Options;
use crate::restore::audit::Process;
use crate::restore::batch::Limits;
use crate::restore::delivery::Asked;
use crate::restore::drafts;
use crate::restore::headers::HeaderOptions;
use crate::restore::plan::{self, Delivery, Partitioning, RuleOptions, Timestamps};
use crate::restore::rate::Rate;
use crate::restore::values::Values;
use clap::ValueEnum;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, disable_help_subcommand = true)]
#[command(after_help = "Each record goes back to the topic it came from, without the headers that were added when it \
    failed. The same command again goes on where a killed one stopped, and skips what is restored. Exit code 1: not all \
    that was asked for is restored; what is skipped is told, with what to do. A dry run has the exit code that the \
    restore would have, as far as it can be known before records are sent.\n\nExamples:\n  \
    dlq-archiver restore --archive s3://compliance/dlq --error-class '^.*TimeoutException$' --since 2h --dry-run\n  \
    dlq-archiver restore --archive file:///var/dlq --record-id orders-dlq/0/42 --to orders-retry\n  \
    dlq-archiver restore --archive file:///var/dlq --all --to-file - --file-format '%k\\t%s\\n' | kcat -P -b kafka:9092 \
    -t orders-retry -K '\\t'")]
pub struct Args {
    #[command(subcommand)]
    pub(super) command: Option<looking::Command>,

    /// Every record of the archive, if no filter is given
    #[arg(long)]
    all: bool,

    /// Topic to restore to, in place of the one that each record came from
    #[arg(long, value_name = "TOPIC")]
    to: Option<String>,

    /// Show what would be restored where, and what is skipped and why; send nothing, and keep the plan for --plan. Exit
    /// code as without it
    #[arg(short = 'n', long)]
    pub(super) dry_run: bool,

    /// Carry out exactly the plan of this id, which a dry run has printed: the same records, by the same options, whatever
    /// was archived since. What was restored or discarded since is skipped
    #[arg(long, value_name = "PLAN-ID", conflicts_with_all = ["all", "to", "partition_of", "include_restored",
          "include_discarded", "allow_dead_letter_target", "timestamps", "strip", "keep", "add_header",
          "no_restore_headers", "max_attempts", "value_from_dir", "value_from", "limit", "sample"])]
    pub(super) plan: Option<String>,

    /// Partition of the target: the one that each record came from (by key, where that is not known or not there), by the
    /// hash of the key, or this number
    #[arg(long = "target-partition", id = "partition_of", default_value = "origin", value_name = "origin|key|N",
          value_parser = partitioning, allow_negative_numbers = true)]
    partition_of: Partitioning,

    /// Headers to take off besides those that were added when the record failed: a name, or a regular expression if it
    /// begins with ^; repeatable
    #[arg(long, value_name = "NAME")]
    strip: Vec<String>,

    /// Headers to keep, whatever else takes them off; repeatable
    #[arg(long, value_name = "NAME")]
    keep: Vec<String>,

    /// Header to add; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = name_and_value)]
    add_header: Vec<(String, String)>,

    /// Do not add dlq-archiver-restore-id and dlq-archiver-restore-count. A record that fails again is then told by its
    /// position or failure key alone
    #[arg(long)]
    no_restore_headers: bool,

    /// Restores of one failure, all that were before counted. With --include-restored there is no limit unless it is given
    /// [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=999))]
    max_attempts: Option<u32>,

    /// Corrected values: files DIR/TOPIC/PARTITION/OFFSET, named as the record ids are. Without a filter these records are
    /// what is restored
    #[arg(long, value_name = "DIR")]
    value_from_dir: Option<PathBuf>,

    /// Corrected values: JSON lines as `list -o jsonl --payload` prints them, edited; of each record_id, kafka_value_text
    /// or kafka_value_bytes is taken. - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "value_from_dir")]
    value_from: Option<PathBuf>,

    /// Most that is sent: records, or bytes if it has a unit, such as 500/s or 4MiB/s; both may be given
    #[arg(long, value_name = "N/s", value_parser = rate, value_delimiter = ',')]
    rate: Vec<(f64, bool)>,

    /// Stop when more than N of the records that it sends fail again meanwhile: it reads the dead-letter topics that this
    /// archive drains, if they are on the same brokers. off: do not look
    #[arg(long, value_name = "N|off", default_value = "100", value_parser = failures, id = "abort_on_failures")]
    abort_on_failures: Failures,

    /// Who decided it, beside the user that is seen: kept with the restore
    #[arg(long, value_name = "WHO")]
    pub(super) by: Option<String>,

    /// Why, such as a ticket: kept with the restore
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: Option<String>,

    /// Do not ask; needed above 1,000 records where there is no terminal
    #[arg(short, long)]
    pub(super) yes: bool,

    /// Restore also what was restored before: each time that the command is given
    #[arg(long)]
    include_restored: bool,

    /// Restore also what was discarded; the discard stays, with a newer restore beside it
    #[arg(long)]
    include_discarded: bool,

    /// Restore also to topics that this archive drains, or whose names say dead letter
    #[arg(long)]
    allow_dead_letter_target: bool,

    /// Timestamps of restored records: the archived record's (what the target would delete at once for its age is
    /// skipped), or the time of the restore
    #[arg(long, value_enum, default_value_t)]
    timestamps: TimestampsArg,

    /// Transactional: each record exactly once; plain: at least once, for brokers without transactions
    #[arg(long, value_enum, default_value_t, env = "DLQ_ARCHIVER_DELIVERY")]
    delivery: DeliveryArg,

    /// Records that are sent together
    #[arg(long, default_value_t = 5000, env = "DLQ_ARCHIVER_BATCH", value_name = "RECORDS",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch: u32,

    /// Bytes that are sent together, whichever comes first
    #[arg(long, default_value = "4MiB", value_parser = bytes, env = "DLQ_ARCHIVER_BATCH_BYTES", value_name = "SIZE")]
    batch_bytes: usize,

    /// Go on with this unfinished restore, by its own filter and options
    #[arg(long, value_name = "RESTORE-ID", conflicts_with_all = ["all", "plan", "to", "partition_of", "include_restored",
          "include_discarded", "allow_dead_letter_target", "timestamps", "strip", "keep", "add_header",
          "no_restore_headers", "max_attempts", "value_from_dir", "value_from", "by", "reason", "take_over", "limit",
          "sample"])]
    resume: Option<String>,

    /// End unfinished restores of the same records first, this command's own included: what they sent is not sent
    /// again
    #[arg(long)]
    pub(super) take_over: bool,

    /// As for archive, but auto does not find out: it is conditional
    #[arg(long, value_enum, default_value_t, env = "DLQ_ARCHIVER_STORE_CREATE", help_heading = "Archive")]
    pub(super) store_create: StoreCreateArg,

    /// How long brokers may take to answer for the first time
    #[arg(long, default_value = "60s", value_parser = duration, env = "DLQ_ARCHIVER_START_TIMEOUT", help_heading = "Patience")]
    pub(super) start_timeout: Duration,

    /// How long the open batch may take to finish after the first SIGTERM or Ctrl-C
    #[arg(long, default_value = "20s", value_parser = duration, env = "DLQ_ARCHIVER_GRACE", help_heading = "Patience")]
    pub(super) grace: Duration,

    /// The first N of what matches, in order of topic, partition, offset; of a sample, if there is one. What is skipped counts, so the same command selects the same records again
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..),
          help_heading = "Filter (a text matches exactly, or as a regular expression if it begins with ^)")]
    limit: Option<u64>,

    #[command(flatten)]
    pub(super) to_file: to_file::Args,
    #[command(flatten)]
    pick: PickArgs,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) store: ArchiveArgs,
    #[command(flatten)]
    pub(super) kafka: KafkaArgs,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum TimestampsArg {
    #[default]
    Keep,
    Now,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum DeliveryArg {
    /// Transactional if the brokers have transactions
    #[default]
    Auto,
    Transactional,
    Plain,
}

fn partitioning(text: &str) -> std::result::Result<Partitioning, String> {
    match text {
        "origin" => Ok(Partitioning::Origin),
        "key" => Ok(Partitioning::Key),
        _ => match text.parse() {
            Ok(number @ 0..) => Ok(Partitioning::Number(number)),
            _ => Err("it is origin, key, or a partition's number".into()),
        },
    }
}

/// A rate a second, and whether it is of bytes.
fn rate(text: &str) -> std::result::Result<(f64, bool), String> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    let of_bytes = number.ends_with(|c: char| c.is_ascii_alphabetic());
    match bytes(number) {
        Ok(0) => Err("it must be above 0".into()),
        Ok(rate) => Ok((rate as f64, of_bytes)),
        Err(_) => Err("it is records or bytes a second, such as 500/s or 4MiB/s".into()),
    }
}

/// How many records may fail again, if it is looked for.
#[derive(Debug, Clone, Copy)]
struct Failures(Option<u64>);

fn failures(text: &str) -> std::result::Result<Failures, String> {
    match text {
        "off" => Ok(Failures(None)),
        _ => text.parse().map(|n| Failures(Some(n))).map_err(|_| "it is a number of records, or off".into()),
    }
}

fn name_and_value(text: &str) -> std::result::Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    parts.map(|(name, value)| (name.to_owned(), value.to_owned())).ok_or_else(|| "it is NAME=VALUE".into())
}

/// Restores of one failure.
const MAX_ATTEMPTS: u32 = 3;

impl Args {
    pub(super) async fn options(&self, catalog: &Catalog) -> Result<Options> {
        let archive_id = catalog.archive().archive_id.as_str();
        for of_bytes in [false, true] {
            if self.rate.iter().filter(|(_, of)| *of == of_bytes).count() > 1 {
                return Err(Error::config("--rate: give one of records and one of bytes at most"));
            }
        }
        let delivery = match self.delivery {
            DeliveryArg::Auto => Asked::Auto,
            DeliveryArg::Transactional => Asked::Exactly(Delivery::Transactional),
            DeliveryArg::Plain => Asked::Exactly(Delivery::Plain),
        };
        let (user, host) = user_and_host();
        let (filter, rules, digest, values, draft) = match &self.plan {
            Some(id) => {
                let (draft, values) = drafts::read(&**catalog.store(), archive_id, id).await?;
                let digest = plan::draft_digest(archive_id, &draft.content.id(archive_id)?, delivery.as_str())?;
                let filter = Filter::exactly(plan::positions(&draft.content.cuts));
                (filter, draft.content.options.clone(), digest, values, Some(draft))
            }
            None => {
                let values = values::read(self.value_from_dir.as_deref(), self.value_from.as_deref())?;
                let mut filter = self.filter.picked(&self.pick, self.limit)?;
                if filter.is_all() && !self.all && !values.is_empty() {
                    let ids = values.ids().map(ToString::to_string).collect();
                    filter = Filter::new(FilterDoc { record_id: Some(ids), ..filter.doc().clone() })?;
                }
                let rules = self.rules(&values)?;
                let (since, until) = self.filter.times();
                let digest = plan::digest(archive_id, filter.doc(), since, until, &rules, delivery.as_str())?;
                (filter, rules, digest, values, None)
            }
        };
        Ok(Options {
            filter,
            rules,
            delivery,
            limits: Limits { records: self.batch as usize, bytes: self.batch_bytes.max(1) },
            digest,
            process: Process {
                user: format!("{user}@{host}"),
                now: rfc3339(now_us()),
                id: uuid::Uuid::new_v4().to_string(),
            },
            resume: self.resume.clone(),
            take_over: self.take_over,
            draft,
            values,
            rate: Rate {
                records: self.rate.iter().filter(|(_, of_bytes)| !of_bytes).map(|(rate, _)| *rate).reduce(f64::min),
                bytes: self.rate.iter().filter(|(_, of_bytes)| *of_bytes).map(|(rate, _)| *rate).reduce(f64::min),
            },
            abort_on_failures: self.abort_on_failures.0,
            by: self.by.clone(),
            reason: self.reason.clone(),
        })
    }

    fn rules(&self, values: &Values) -> Result<RuleOptions> {
        let no_cap = self.include_restored && self.max_attempts.is_none();
        Ok(RuleOptions {
            to: self.to.clone(),
            partition: self.partition_of,
            headers: HeaderOptions {
                strip: self.strip.clone(),
                keep: self.keep.clone(),
                add: self.add_header.clone(),
                unmarked: self.no_restore_headers,
            },
            max_attempts: (!no_cap).then(|| self.max_attempts.unwrap_or(MAX_ATTEMPTS)),
            values_sha256: values.sha256()?,
            timestamps: match self.timestamps {
                TimestampsArg::Keep => Timestamps::Keep,
                TimestampsArg::Now => Timestamps::Now,
            },
            include_restored: self.include_restored,
            include_discarded: self.include_discarded,
            allow_dead_letter_target: self.allow_dead_letter_target,
        })
    }

    /// Refuses what would restore everything by mistake.
    pub(super) fn check(&self) -> Result<()> {
        let all = self.filter.filter()?.is_all();
        if let Some(flag) = self.resume.as_ref().map(|_| "--resume").or(self.plan.as_ref().map(|_| "--plan")) {
            return match all {
                true => Ok(()),
                false => Err(Error::config(format!("{flag} has the filter of its plan: leave the filters out"))),
            };
        }
        let has_values = self.value_from_dir.is_some() || self.value_from.is_some();
        match (self.all, all) {
            (false, true) if !has_values => Err(Error::config(
                "nothing selects records: give a filter such as --record-id, --pipeline or --since (see --help), or \
                 --all for every record of the archive",
            )),
            (true, false) => Err(Error::config("--all is for restores without a filter: leave it or the filters out")),
            _ => Ok(()),
        }
    }
}
