//! `dlq-archiver restore status`.

use super::list;
use crate::archive::{now_us, rfc3339};
use crate::catalog::Catalog;
use crate::cli::args::ArchiveArgs;
use crate::cli::output::{Documents, Out, Output, OutputArgs};
use crate::cli::text;
use crate::error::{Error, Result, few};
use crate::restore::audit::{self, RunDoc};
use crate::restore::report::{Overview, State, micros};
use crate::store::Store;
use serde_json::{Value, json};
use std::collections::BTreeSet;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without ID: the restores that have not ended. A batch is listed when it is sent, so what is told is what \
    is known to be done. A restore looks stalled when nothing was heard of it for 5 minutes: neither a new run nor a new \
    batch, by the clocks of the machines that restore and of this one. It cannot be seen from here whether its process lives.\n\n\
    Exit codes: 0 none of those told is unfinished; 1 some is; 2 wrong usage, or no such restore.\n\n\
    -o json: one array of objects, jsonl: one a line: what `restore list` has, and run, run_begun_at, run_begun_by, \
    last_batch_at, last_heard_at, stalled, next (what to do).\n\n\
    Examples:\n  \
    dlq-archiver restore status --archive s3://compliance/dlq\n  \
    dlq-archiver restore status 4a1f0c92be37-1 --archive s3://compliance/dlq -o json"
)]
pub struct Args {
    /// The restore to tell of, ended or not
    #[arg(value_name = "ID")]
    id: Option<String>,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    store: ArchiveArgs,
}

/// Longer than brokers and stores are waited for in the middle of a batch.
const STALLED_US: i64 = 5 * 60 * 1_000_000;

/// What is told of a restore.
struct Told {
    overview: Overview,
    run: Option<(u32, RunDoc)>,
    last_batch_us: Option<i64>,
    now_us: i64,
}

impl Told {
    async fn of(overview: Overview, store: &dyn Store) -> Result<Self> {
        let run = overview.runs(store).await?.pop_last();
        let last_batch_us = overview.last_batch_us(store).await?;
        Ok(Self { overview, run, last_batch_us, now_us: now_us() })
    }

    fn is_unfinished(&self) -> bool {
        self.overview.state() == State::Unfinished
    }

    /// The newest sign of life.
    fn heard_us(&self) -> Option<i64> {
        let begun = micros(&self.overview.plan.created_at);
        let run = self.run.as_ref().and_then(|(_, run)| micros(&run.started_at));
        begun.max(run).max(self.last_batch_us)
    }

    fn is_stalled(&self) -> bool {
        self.is_unfinished() && self.heard_us().is_none_or(|at| self.now_us.saturating_sub(at) > STALLED_US)
    }

    fn next(&self) -> Option<String> {
        if !self.is_unfinished() {
            return None;
        }
        let go_on = format!(
            "`dlq-archiver restore --resume {}` (with --archive and --brokers) goes on with it, by its own filter and \
             options; its command again with --take-over ends it, and restores what is left by a new plan",
            self.overview.plan.restore_id
        );
        Some(match self.is_stalled() {
            true => go_on,
            false => format!("wait for its end. If its process is dead: {go_on}"),
        })
    }

    fn document(&self) -> Value {
        let run = self.run.as_ref().map(|(_, run)| run);
        let mut fields = list::document(&self.overview);
        let more = [
            ("run", json!(self.run.as_ref().map(|(number, _)| number))),
            ("run_begun_at", json!(run.map(|run| &run.started_at))),
            ("run_begun_by", json!(run.map(|run| &run.started_by))),
            ("last_batch_at", json!(self.last_batch_us.map(rfc3339))),
            ("last_heard_at", json!(self.heard_us().map(rfc3339))),
            ("stalled", json!(self.is_stalled())),
            ("next", json!(self.next())),
        ];
        fields.extend(more.map(|(name, value)| (name.to_owned(), value)));
        Value::from_iter(fields)
    }

    fn lines(&self) -> Vec<String> {
        let plan = &self.overview.plan;
        let stalled = if self.is_stalled() { ", looks stalled" } else { "" };
        let mut lines = vec![format!("restore {}: {}{stalled}", plan.restore_id, list::state(&self.overview))];
        let reason = plan.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let given = plan.by.as_deref().map(|by| format!(", decided by {by}")).unwrap_or_default();
        lines.push(format!("  planned at {} by {}{given}{reason}", plan.created_at, plan.created_by));
        let targets: Vec<&str> = plan.targets.keys().map(String::as_str).collect();
        lines.push(format!("  to {}, {} delivery", targets.join(", "), plan.delivery.as_str()));
        if let Some(done) = &self.overview.done {
            lines.push(format!(
                "  {} restored, {} skipped, {} left of {} selected records; ended at {}",
                done.restored, done.skipped, done.left, done.selected, done.finished_at
            ));
        } else if self.is_unfinished() {
            lines.push(match self.overview.reached() {
                Some(reached) => format!(
                    "  at least {reached} of {} selected records are done ({} %)",
                    plan.selected,
                    reached.saturating_mul(100).checked_div(plan.selected).unwrap_or(100)
                ),
                None => {
                    "  how far it is cannot be told now: its lists do not follow each other. It may be writing: ask \
                         again. If that stays, run `dlq-archiver verify`"
                        .to_owned()
                }
            });
        }
        match &self.run {
            Some((number, run)) => {
                lines.push(format!("  run {number}, begun at {} by {}", run.started_at, run.started_by))
            }
            None => lines.push("  no run has begun: nothing was sent".to_owned()),
        }
        if let Some(at) = self.last_batch_us {
            lines.push(format!("  last batch listed at {} ({} ago)", rfc3339(at), ago(self.now_us.saturating_sub(at))));
        }
        lines.extend(self.next().map(|next| format!("  next: {next}")));
        lines
    }
}

fn ago(us: i64) -> String {
    match us.max(0) / 1_000_000 {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7200 => format!("{} min", s / 60),
        s @ 7200..172_800 => format!("{} h", s / 3600),
        s => format!("{} d", s / 86_400),
    }
}

pub async fn run(args: Args) -> Result<u8> {
    let store = args.store.read().await?;
    let catalog = Catalog::open(store).await?;
    let store = &**catalog.store();
    let overviews = match &args.id {
        Some(id) => match Overview::read(store, id).await? {
            Some(overview) => vec![overview],
            None => return Err(no_such(store, id).await?),
        },
        None => {
            let mut all = Overview::all(store).await?;
            all.retain(|overview| overview.state() == State::Unfinished);
            all
        }
    };
    let mut all = Vec::new();
    for overview in overviews {
        all.push(Told::of(overview, store).await?);
    }
    let mut out = Out::new();
    match args.output.output {
        Output::Table if all.is_empty() => out.line("no restore is unfinished")?,
        Output::Table => {
            all.iter().flat_map(Told::lines).try_for_each(|line| out.line(&text::clean(&line)))?;
        }
        output => {
            let mut documents = Documents::new(output == Output::Json);
            for told in &all {
                documents.document(&text::escaped(&told.document().to_string()), &mut out)?;
            }
            documents.finish(&mut out)?;
        }
    }
    out.flush()?;
    Ok(u8::from(all.iter().any(Told::is_unfinished)))
}

/// What to say of an id that no restore has.
pub async fn no_such(store: &dyn Store, id: &str) -> Result<Error> {
    let ids: BTreeSet<String> = audit::ids(store, "").await?.into_iter().collect();
    let there = if ids.is_empty() { "none yet".to_owned() } else { few(&ids, 20) };
    Ok(Error::config(format!("there is no restore {id} in this archive. It has {there}; `restore list` tells of each")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_passed_are_short() {
        let seconds = [-1, 119, 120, 7199, 7200, 200_000];
        assert_eq!(seconds.map(|s| ago(s * 1_000_000)), ["0 s", "119 s", "2 min", "119 min", "2 h", "2 d"]);
    }
}
