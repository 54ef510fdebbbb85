//! `dlq-archiver restore`.

mod file_format;
mod print;
mod to_file;

use super::args::{ArchiveArgs, KafkaArgs, StoreCreateArg, bytes, duration};
use super::asking::{Asking, user_and_host};
use super::config::Config;
use super::filter::{FilterArgs, PickArgs};
use super::output::OutputArgs;
use super::progress::Progress;
use super::signals;
use crate::archive::{now_us, plainly, rfc3339};
use crate::catalog::Catalog;
use crate::error::{Error, Result};
use crate::restore::audit::Process;
use crate::restore::batch::Limits;
use crate::restore::counts::Counts;
use crate::restore::delivery::Asked;
use crate::restore::plan::{self, Delivery, RuleOptions, Timestamps};
use crate::restore::target::Kafka;
use crate::restore::{Counters, Draft, End, Options, Prepared, Restore};
use crate::stage::{Stage, StageReceiver};
use clap::ValueEnum;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, clap::Args)]
#[command(after_help = "Each record goes back to the topic it came from, without the headers that were added when it \
    failed. The same command again goes on where a killed one stopped, and skips what is restored. Exit code 1: not all \
    that was asked for is restored; what is skipped is told, with what to do. A dry run has the exit code that the \
    restore would have, as far as it can be known before records are sent.\n\nExamples:\n  \
    dlq-archiver restore --archive s3://compliance/dlq --error-class '^.*TimeoutException$' --since 2h --dry-run\n  \
    dlq-archiver restore --archive file:///var/dlq --record-id orders-dlq/0/42 --to orders-retry\n  \
    dlq-archiver restore --archive file:///var/dlq --all --to-file - --file-format '%k\\t%s\\n' | kcat -P -b kafka:9092 \
    -t orders-retry -K '\\t'")]
pub struct Args {
    /// Every record of the archive, if no filter is given
    #[arg(long)]
    all: bool,

    /// Topic to restore to, in place of the one that each record came from
    #[arg(long, value_name = "TOPIC")]
    to: Option<String>,

    /// Show what would be restored where, and what is skipped and why; write nothing. Exit code as without it
    #[arg(short = 'n', long)]
    dry_run: bool,

    /// Do not ask; needed above 1,000 records where there is no terminal
    #[arg(short, long)]
    yes: bool,

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
    #[arg(long, default_value_t = 500, env = "DLQ_ARCHIVER_BATCH", value_name = "RECORDS",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch: u32,

    /// Bytes that are sent together, whichever comes first
    #[arg(long, default_value = "4MiB", value_parser = bytes, env = "DLQ_ARCHIVER_BATCH_BYTES", value_name = "SIZE")]
    batch_bytes: usize,

    /// Go on with this unfinished restore, by its own filter and options
    #[arg(long, value_name = "RESTORE-ID", conflicts_with_all = ["all", "to", "include_restored",
          "include_discarded", "allow_dead_letter_target", "timestamps", "take_over", "limit", "sample"])]
    resume: Option<String>,

    /// End unfinished restores of the same records first, this command's own included: what they sent is not sent
    /// again
    #[arg(long)]
    take_over: bool,

    /// As for archive, but auto does not find out: it is conditional
    #[arg(long, value_enum, default_value_t, env = "DLQ_ARCHIVER_STORE_CREATE", help_heading = "Archive")]
    store_create: StoreCreateArg,

    /// How long brokers may take to answer for the first time
    #[arg(long, default_value = "60s", value_parser = duration, env = "DLQ_ARCHIVER_START_TIMEOUT", help_heading = "Patience")]
    start_timeout: Duration,

    /// How long the open batch may take to finish after the first SIGTERM or Ctrl-C
    #[arg(long, default_value = "20s", value_parser = duration, env = "DLQ_ARCHIVER_GRACE", help_heading = "Patience")]
    grace: Duration,

    /// The first N of what matches, in order of topic, partition, offset; of a sample, if there is one. What is skipped counts, so the same command selects the same records again
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..),
          help_heading = "Filter (a text matches exactly, or as a regular expression if it begins with ^)")]
    limit: Option<u64>,

    #[command(flatten)]
    to_file: to_file::Args,
    #[command(flatten)]
    pick: PickArgs,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    store: ArchiveArgs,
    #[command(flatten)]
    kafka: KafkaArgs,
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

impl Args {
    fn options(&self, archive_id: &str) -> Result<Options> {
        let filter = self.filter.picked(&self.pick, self.limit)?;
        let rules = RuleOptions {
            to: self.to.clone(),
            timestamps: match self.timestamps {
                TimestampsArg::Keep => Timestamps::Keep,
                TimestampsArg::Now => Timestamps::Now,
            },
            include_restored: self.include_restored,
            include_discarded: self.include_discarded,
            allow_dead_letter_target: self.allow_dead_letter_target,
        };
        let delivery = match self.delivery {
            DeliveryArg::Auto => Asked::Auto,
            DeliveryArg::Transactional => Asked::Exactly(Delivery::Transactional),
            DeliveryArg::Plain => Asked::Exactly(Delivery::Plain),
        };
        let (since, until) = self.filter.times();
        let (user, host) = user_and_host();
        let digest = plan::digest(archive_id, filter.doc(), since, until, &rules, delivery.as_str())?;
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
        })
    }

    /// Refuses what would restore everything by mistake.
    fn check(&self) -> Result<()> {
        let all = self.filter.filter()?.is_all();
        if self.resume.is_some() {
            return match all {
                true => Ok(()),
                false => Err(Error::config("--resume has the filter of its plan: leave the filters out")),
            };
        }
        match (self.all, all) {
            (false, true) => Err(Error::config(
                "nothing selects records: give a filter such as --record-id, --pipeline or --since (see --help), or \
                 --all for every record of the archive",
            )),
            (true, false) => Err(Error::config("--all is for restores without a filter: leave it or the filters out")),
            _ => Ok(()),
        }
    }
}

pub async fn run(args: Args, config: &Config) -> Result<u8> {
    args.check()?;
    if let Some(path) = &args.to_file.path {
        return to_file::run(&args, path, config).await;
    }
    let dialects = Arc::new(config.dialects()?);
    let target = Arc::new(Kafka::new(args.kafka.connection(config)?));
    let store = args.store.read().await?;
    let catalog = Catalog::open(store.clone()).await?;
    let options = args.options(&catalog.archive().archive_id)?;
    let stage =
        signals::shutdown_saying(args.grace, "the same command again goes on where this one is known to have come to")?;
    let counters = Arc::new(Counters::default());
    let work = async {
        if args.store_create == StoreCreateArg::Plain && !args.dry_run {
            plainly(&*store, &stage).await?;
        }
        let restore = Restore::new(catalog, target, dialects, options, counters.clone(), args.start_timeout);
        let prepared = until(&stage, Stage::Finish, prepare(restore, args.take_over && !args.dry_run, &counters)).await;
        let stopped = || Error::failed("stopped before anything was sent");
        let (restore, prepared) = prepared.ok_or_else(stopped)??;
        go(&args, &restore, prepared, &counters, stage.clone()).await
    };
    until(&stage, Stage::Abandon, work).await.unwrap_or_else(|| {
        Err(Error::failed("left in the middle of a batch; the same command again goes on from the last finished one"))
    })
}

/// `None` if the shutdown gets to `limit` first.
async fn until<T>(stage: &StageReceiver, limit: Stage, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        done = work => Some(done),
        () = stage.reaches(limit) => None,
    }
}

async fn prepare(
    restore: impl Future<Output = Result<Restore>>,
    take_over: bool,
    counters: &Arc<Counters>,
) -> Result<(Restore, Prepared)> {
    let restore = restore.await?;
    if take_over {
        for id in restore.take_over().await? {
            tracing::info!("restore {id} is ended: what it sent counts as restored");
        }
    }
    let counters = counters.clone();
    let shown = tokio::spawn(async move {
        let mut progress = Progress::start(None);
        loop {
            tokio::time::sleep(Duration::from_millis(250)).await;
            progress.update(counters.scanned(), || format!("planning: {} records", counters.scanned()));
        }
    });
    let prepared = restore.prepare().await;
    shown.abort();
    let _ = shown.await;
    Ok((restore, prepared?))
}

async fn go(
    args: &Args,
    restore: &Restore,
    prepared: Prepared,
    counters: &Arc<Counters>,
    stage: StageReceiver,
) -> Result<u8> {
    let mut failures = false;
    let (plan, sink) = match prepared {
        Prepared::Unfinished(plan, done) if args.dry_run => {
            print::unfinished(&plan, done, args.output.output)?;
            return Ok(u8::from(plan.skipped.keys().any(|why| why.is_failure())));
        }
        Prepared::Unfinished(plan, done) => {
            tracing::info!(
                "resuming restore {} of {}, planned {} by {}: at least {done} of {} records are done",
                plan.restore_id,
                plan.archive_id,
                plan.created_at,
                plan.created_by,
                plan.selected
            );
            (*plan, None)
        }
        Prepared::New(draft) if args.dry_run || draft.counts.to_restore == 0 => {
            let nothing = match draft.counts.selected {
                0 => Some(restore.nothing().await?),
                _ => None,
            };
            print::draft(&draft.counts, &draft.overlapping, nothing.as_ref(), args.output.output)?;
            // What the restore would be refused for.
            let refused = draft.counts.to_restore > 0 && !draft.overlapping.is_empty() && !args.take_over;
            return Ok(u8::from(draft.counts.has_failures() || refused));
        }
        Prepared::New(draft) => {
            alone(&draft)?;
            failures = !draft.counts.not_found.is_empty();
            for line in print::warnings(&draft.counts) {
                tracing::warn!("{line}");
            }
            if let Some(line) = print::untold(&draft.counts) {
                tracing::info!("{line}");
            }
            let asked = until(&stage, Stage::Finish, confirm(args, &draft.counts)).await;
            asked.unwrap_or_else(|| Err(Error::failed("stopped before anything was sent")))?;
            let (plan, sink) = restore.begin(*draft).await?;
            (plan, Some(sink))
        }
    };
    let (shown, total) = (counters.clone(), plan.selected);
    let progress = tokio::spawn(async move {
        let mut progress = Progress::start(Some(total));
        loop {
            tokio::time::sleep(Duration::from_millis(250)).await;
            progress.update(shown.done(), || {
                format!("{} of {total} records done, {} sent by this run", shown.done(), shown.sent())
            });
        }
    });
    let end = restore.run(&plan, sink, stage).await;
    progress.abort();
    let _ = progress.await;
    match end? {
        End::Done(done) => {
            print::done(&plan, &done, args.output.output)?;
            Ok(u8::from(failures || done.skipped_by_reason.keys().any(|why| why.is_failure())))
        }
        End::Stopped { restore_id, done, selected } => Err(Error::failed(format!(
            "restore {restore_id} was stopped: {done} of {selected} records are done. Run the same command to resume, \
             or --resume {restore_id}"
        ))),
    }
}

/// Refuses to be the second of two restores that would send the same records.
fn alone(draft: &Draft) -> Result<()> {
    let Some(other) = draft.overlapping.first() else { return Ok(()) };
    Err(Error::failed(format!("nothing was sent: {}", print::in_the_way(other))))
}

/// Asks, where there is someone to ask.
async fn confirm(args: &Args, counts: &Counts) -> Result<()> {
    let n = counts.to_restore;
    let targets: Vec<&str> = counts.targets.iter().take(5).map(String::as_str).collect();
    let more = counts.targets.len().saturating_sub(targets.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let skipped = counts.selected - n;
    let question = format!(
        "Restore {n} records to {}{more} ({skipped} are skipped; --dry-run shows all)? [y/N] ",
        targets.join(", ")
    );
    let asking = Asking { records: n, done: "restored", undone: "nothing was sent", question };
    asking.confirm(args.yes).await
}
