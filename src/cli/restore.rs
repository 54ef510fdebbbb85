//! `dlq-archiver restore`.

mod args;
mod file_format;
mod html;
mod list;
mod looking;
mod print;
mod report;
mod sections;
mod status;
mod to_file;
mod values;
mod words;

pub use args::Args;

use super::args::StoreCreateArg;
use super::asking::Asking;
use super::config::Config;
use super::progress::{Progress, human_duration};
use super::signals;
use crate::archive::plainly;
use crate::catalog::Catalog;
use crate::error::{Error, Result};
use crate::restore::counts::Counts;
use crate::restore::plan::PlanDoc;
use crate::restore::target::Kafka;
use crate::restore::{Counters, Draft, End, Prepared, Restore};
use crate::stage::{Stage, StageReceiver};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub async fn run(mut args: Args, config: &Config) -> Result<u8> {
    if let Some(command) = args.command.take() {
        return looking::run(command).await;
    }
    args.check()?;
    if let Some(path) = &args.to_file.path {
        return to_file::run(&args, path, config).await;
    }
    let dialects = Arc::new(config.dialects()?);
    let target = Arc::new(Kafka::new(args.kafka.connection(config)?));
    let store = args.store.read().await?;
    let catalog = Catalog::open(store.clone()).await?;
    let options = args.options(&catalog).await?;
    let stage =
        signals::shutdown_saying(args.grace, "the same command again goes on where this one is known to have come to")?;
    let counters = Arc::new(Counters::default());
    let work = async {
        if args.store_create == StoreCreateArg::Plain && !args.dry_run {
            plainly(&*store, &stage).await?;
        }
        let restore = Restore::new(catalog, target, dialects, options, counters.clone(), args.start_timeout);
        let prepared = until(&stage, Stage::Finish, prepare(&args, restore, &counters)).await;
        let stopped = || Error::failed("stopped before anything was sent");
        let (restore, prepared, asked) = prepared.ok_or_else(stopped)??;
        go(&args, &restore, (prepared, asked), &counters, stage.clone()).await
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

/// What is to be done, and whether the user was asked already: with `--take-over` before others are ended.
async fn prepare(
    args: &Args,
    restore: impl Future<Output = Result<Restore>>,
    counters: &Arc<Counters>,
) -> Result<(Restore, Prepared, bool)> {
    let restore = restore.await?;
    let mut prepared = planned(&restore, counters).await?;
    let mut asked = false;
    if args.take_over && !args.dry_run {
        if let Prepared::New(draft) = &prepared
            && !draft.overlapping.is_empty()
        {
            confirm(args, &draft.counts, &draft.overlapping).await?;
            asked = true;
        }
        for id in restore.take_over().await? {
            tracing::info!("restore {id} is ended: what it sent counts as restored");
        }
        prepared = planned(&restore, counters).await?;
    }
    Ok((restore, prepared, asked))
}

async fn planned(restore: &Restore, counters: &Arc<Counters>) -> Result<Prepared> {
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
    prepared
}

async fn go(
    args: &Args,
    restore: &Restore,
    (prepared, asked): (Prepared, bool),
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
            for (flag, given, planned) in [("--by", &args.by, &plan.by), ("--reason", &args.reason, &plan.reason)] {
                if given.is_some() && given != planned {
                    let planned = planned.as_deref().unwrap_or("none");
                    tracing::warn!("{flag} is that of the plan, {planned}: what is given now is not kept");
                }
            }
            (*plan, None)
        }
        Prepared::New(draft) if args.dry_run || draft.counts.to_restore == 0 => {
            let mut more = print::More::default();
            if draft.counts.selected == 0 {
                more.nothing = Some(restore.nothing().await?);
            }
            if args.dry_run && draft.counts.to_restore > 0 {
                more.reach = restore.reach(&draft.counts).await?;
                more.kept = match &args.plan {
                    Some(_) => None,
                    None => Some(restore.keep(&draft).await),
                };
            }
            more.take_over = args.take_over;
            print::draft(&draft.counts, &draft.overlapping, &more, args.output.output)?;
            // What the restore would be refused for.
            let refused = draft.counts.to_restore > 0 && !draft.overlapping.is_empty() && !args.take_over;
            return Ok(u8::from(draft.counts.has_failures() || refused));
        }
        Prepared::New(draft) => {
            alone(&draft)?;
            failures = !draft.counts.not_found.is_empty() || !draft.counts.unused_values.is_empty();
            for line in print::warnings(&draft.counts) {
                tracing::warn!("{line}");
            }
            if let Some(line) = print::untold(&draft.counts) {
                tracing::info!("{line}");
            }
            if !asked {
                let asked = until(&stage, Stage::Finish, confirm(args, &draft.counts, &[])).await;
                asked.unwrap_or_else(|| Err(Error::failed("stopped before anything was sent")))?;
            }
            let (plan, sink) = restore.begin(*draft).await?;
            (plan, Some(sink))
        }
    };
    let (shown, total) = (counters.clone(), plan.selected);
    let progress = tokio::spawn(async move {
        let (mut progress, began) = (Progress::start(Some(total)), Instant::now());
        loop {
            tokio::time::sleep(Duration::from_millis(250)).await;
            let done = shown.done();
            let by_now = format!("{done} of {total} records done, {} sent by this run", shown.sent());
            let left = || eta(began.elapsed(), shown.done_by_this_run(), total.saturating_sub(done));
            progress.update_with_time(done, by_now, left);
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

/// How long what is left takes at the pace so far.
fn eta(elapsed: Duration, done: u64, left: u64) -> String {
    if done == 0 || elapsed < Duration::from_secs(2) {
        return String::new();
    }
    let seconds = elapsed.as_secs_f64() * left as f64 / done as f64;
    format!(", about {} left", human_duration(Duration::from_secs(seconds as u64)))
}

/// Refuses to be the second of two restores that would send the same records.
fn alone(draft: &Draft) -> Result<()> {
    let Some(other) = draft.overlapping.first() else { return Ok(()) };
    Err(Error::failed(format!("nothing was sent: {}", print::in_the_way(other))))
}

/// Asks, where there is someone to ask.
async fn confirm(args: &Args, counts: &Counts, ended: &[PlanDoc]) -> Result<()> {
    let n = counts.to_restore;
    let targets: Vec<&str> = counts.targets.iter().take(5).map(String::as_str).collect();
    let more = counts.targets.len().saturating_sub(targets.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let skipped = counts.selected - n;
    let ends: Vec<String> = ended.iter().map(|p| format!("{} of {}", p.restore_id, p.created_by)).collect();
    let ends = if ends.is_empty() { String::new() } else { format!("End restore {} for good, and r", ends.join(", ")) };
    let verb = if ends.is_empty() { "R" } else { ends.as_str() };
    let question = format!(
        "{verb}estore {n} records to {}{more} ({skipped} are skipped; --dry-run shows all)? [y/N] ",
        targets.join(", ")
    );
    let asking = Asking { records: n, done: "restored", undone: "nothing was sent", question };
    asking.confirm(args.yes).await
}
