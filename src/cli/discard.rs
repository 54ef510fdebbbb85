//! `dlq-archiver discard`.

mod list;

use super::args::{ArchiveArgs, StoreCreateArg};
use super::asking::{Asking, user_and_host};
use super::disposition::past;
use super::filter::FilterArgs;
use super::list::Read;
use super::output::{self, Out, Output, OutputArgs};
use super::table::{Column, Table};
use super::{signals, text};
use crate::archive::plainly;
use crate::catalog::Catalog;
use crate::disposition::documents::{Action, DispositionDoc};
use crate::disposition::standing::Change;
use crate::disposition::{self, Request, Selected};
use crate::error::{Error, Result, few};
use crate::filter::Filter;
use crate::layout;
use crate::restore::audit;
use crate::restore::nothing::{self, Nothing};
use crate::restore::plan::PlanDoc;
use serde_json::json;
use std::time::Duration;

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// What was discarded and taken back, by whom and why, the newest first
    List(list::Args),
}

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true,
    after_help = "A discarded record is accepted as lost: `restore` skips it, `list --disposition discarded` has it, `show ID` \
    says by whom and why. Nothing is deleted; --undo takes it back. Each command that changes something leaves one object \
    under dispositions/ in the archive: who, when, from which host, filter, reason, counts, records, and the SHA-256 of the one \
    before; and beside it the same as ranges of offsets in Parquet, for SQL engines. The same command again changes nothing.\n\n\
    Exit codes: 0 done, or nothing to do; 1 a --record-id selected nothing, or the store does not answer; 2 wrong usage.\n\n\
    Examples:\n  \
    dlq-archiver discard --archive s3://compliance/dlq --pipeline size-check --until 2026-10-08 --reason 'INC-4711: test load'\n  \
    dlq-archiver discard --archive s3://compliance/dlq --record-id orders-dlq/0/42 --undo --reason 'needed after all'"
)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    /// Why. It is kept, and shown; needed but for --dry-run
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Who decided; kept beside the user and host that are seen
    #[arg(long, value_name = "NAME")]
    by: Option<String>,

    /// Take discards of the selected records back
    #[arg(long)]
    undo: bool,

    /// Every record of the archive, if no filter is given
    #[arg(long)]
    all: bool,

    /// Show what would be discarded; write nothing. Exit code as without it
    #[arg(short = 'n', long)]
    dry_run: bool,

    /// Do not ask; needed above 1,000 records where there is no terminal
    #[arg(short, long)]
    yes: bool,

    /// As for archive, but auto does not find out: it is conditional
    #[arg(long, value_enum, default_value_t, env = "DLQ_ARCHIVER_STORE_CREATE", help_heading = "Archive")]
    store_create: StoreCreateArg,

    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    store: ArchiveArgs,
}

/// A command is one object, which is there or is not: there is nothing to finish.
const GRACE: Duration = Duration::from_secs(20);

impl Args {
    fn action(&self) -> Action {
        if self.undo { Action::Undo } else { Action::Discard }
    }

    /// What is done, as in: 5 records discarded.
    fn done(&self) -> &'static str {
        if self.undo { "taken back" } else { "discarded" }
    }

    /// Refuses what would discard everything by mistake, and what says nothing.
    fn check(&self, filter: &Filter) -> Result<()> {
        for (flag, given) in [("--reason", &self.reason), ("--by", &self.by)] {
            if given.as_ref().is_some_and(|text| text.trim().is_empty()) {
                return Err(Error::config(format!("{flag} is empty: it is kept for those who ask later")));
            }
        }
        if self.reason.is_none() && !self.dry_run {
            return Err(Error::config(
                "--reason TEXT is needed: it is kept for those who ask later why these are not restored",
            ));
        }
        match (self.all, filter.is_all()) {
            (false, true) => Err(Error::config(
                "nothing selects records: give a filter such as --record-id, --pipeline or --until (see --help), or --all for \
                 every record of the archive",
            )),
            (true, false) => Err(Error::config("--all is for all records: leave it or the filters out")),
            _ => Ok(()),
        }
    }

    fn request(&self, filter: Filter) -> Request {
        let (user, host) = user_and_host();
        Request {
            action: self.action(),
            reason: self.reason.clone().unwrap_or_default(),
            by: self.by.clone(),
            user,
            host,
            process: uuid::Uuid::new_v4().to_string(),
            filter,
        }
    }
}

pub async fn run(mut args: Args) -> Result<u8> {
    if let Some(Command::List(args)) = args.command.take() {
        return list::run(args).await;
    }
    let filter = args.filter.filter()?;
    args.check(&filter)?;
    let store = args.store.read().await?;
    let catalog = Catalog::open(store.clone()).await?;
    if args.store_create == StoreCreateArg::Plain && !args.dry_run {
        let stage = signals::shutdown_saying(GRACE, "nothing was written")?;
        plainly(&*store, &stage).await?;
    }
    let may_match = catalog.select(&filter).await?;
    let past = past(&catalog, &may_match, true).await?;
    let mut progress = Read::default();
    progress.start(&may_match);
    let selected = disposition::select(&catalog, may_match, &filter, &past, |bytes| progress.cut(bytes)).await?;
    drop(progress);
    let change = selected.records.change(args.action(), &past.discards);
    let mut told =
        Told { args: &args, selected: &selected, change, written: None, unfinished: Vec::new(), nothing: None };
    if selected.records.records == 0 {
        told.nothing = Some(nothing::why(&catalog, &filter).await?);
    }
    if told.change.records > 0 {
        if !args.dry_run {
            told.confirm().await?;
            told.written =
                disposition::write(&catalog, past.discards, &selected.records, &args.request(filter.clone())).await?;
        }
        if args.action() == Action::Discard {
            // After it is written: a restore that begins from now on sees it.
            let open = audit::open(&*store).await?;
            told.unfinished = disposition::may_send(&catalog, &open, &selected).await?;
        }
    }
    if !args.dry_run
        && let Err(e) = disposition::ranges::write_missing(&catalog).await
    {
        tracing::warn!(
            "the discards hold, but their Parquet for SQL engines is not all there: the next discard writes it ({e})"
        );
    }
    told.print()?;
    Ok(u8::from(!selected.records.not_found.is_empty()))
}

/// Ids that are shown.
const SHOWN: usize = 20;

/// What was done, or would be.
struct Told<'a> {
    args: &'a Args,
    selected: &'a Selected,
    change: Change,
    /// `None`: a dry run, or nothing to do.
    written: Option<DispositionDoc>,
    /// Restores that may send what is discarded.
    unfinished: Vec<PlanDoc>,
    nothing: Option<Nothing>,
}

impl Told<'_> {
    async fn confirm(&self) -> Result<()> {
        let (n, selected) = (self.change.records, self.selected.records.records);
        let question = match self.args.undo {
            false => format!("Discard {n} of {selected} selected records (--dry-run shows which)? [y/N] "),
            true => format!("Take the discards of {n} of {selected} selected records back? [y/N] "),
        };
        let asking = Asking { records: n, done: self.args.done(), undone: "nothing was written", question };
        asking.confirm(self.args.yes).await
    }

    /// Of the selected records: in how many nothing changes.
    fn unchanged(&self) -> u64 {
        self.selected.records.records - self.records()
    }

    fn records(&self) -> u64 {
        match &self.written {
            Some(doc) => doc.records,
            // Others did it meanwhile.
            None if !self.args.dry_run => 0,
            None => self.change.records,
        }
    }

    /// Topic, pipeline, error class, records.
    fn groups(&self) -> Vec<(&str, &str, Option<&str>, u64)> {
        match &self.written {
            Some(doc) => {
                let counts = doc.counts.iter();
                counts.map(|c| (c.topic.as_str(), c.pipeline.as_str(), c.error_class.as_deref(), c.records)).collect()
            }
            None if self.records() == 0 => Vec::new(),
            None => {
                let groups = self.change.groups.iter();
                groups.map(|(g, n)| (g.topic.as_str(), g.pipeline.as_str(), g.error_class.as_deref(), *n)).collect()
            }
        }
    }

    fn warnings(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let not_found = &self.selected.records.not_found;
        if !not_found.is_empty() {
            lines.push(format!(
                "{} selected nothing: not archived (yet), or ruled out by another filter: {}",
                text::count(not_found.len() as u64, "record id"),
                few(not_found, SHOWN)
            ));
        }
        for plan in &self.unfinished {
            lines.push(format!(
                "restore {}, begun at {} by {}, has not ended and may send some of them: if it runs, it does not look again. \
                 Its next run skips what is discarded by then",
                plan.restore_id, plan.created_at, plan.created_by
            ));
        }
        lines
    }

    fn print(&self) -> Result<()> {
        if self.args.output.output != Output::Table {
            return self.json();
        }
        let mut out = Out::new();
        let (done, records, selected) = (self.args.done(), self.records(), self.selected.records.records);
        match &self.nothing {
            Some(nothing) => out.line(&text::clean(&nothing.text()))?,
            None => {
                let to_be = if self.args.dry_run { "to be " } else { "" };
                out.line(&format!("{records} of {selected} selected records {to_be}{done}"))?;
            }
        }
        let groups = self.groups();
        if !groups.is_empty() {
            let columns = ["TOPIC", "PIPELINE", "ERROR CLASS"].map(Column::new);
            let mut table = Table::new(columns.into_iter().chain([Column::number("RECORDS")]).collect());
            let cell = |text: &str| text::clean(text).into_owned();
            for (topic, pipeline, class, records) in groups {
                table.row(
                    vec![cell(topic), cell(pipeline), cell(class.unwrap_or("-")), records.to_string()],
                    &mut out,
                )?;
            }
            table.finish(&mut out)?;
        }
        if self.unchanged() > 0 {
            let already = if self.args.undo { "are not discarded" } else { "are discarded already" };
            out.line(&format!("{} of the selected {already}", self.unchanged()))?;
        }
        if records > 0 && !self.args.undo && self.change.restored > 0 {
            out.line(&format!(
                "{} of them were restored before: --include-restored would send them again",
                self.change.restored
            ))?;
        }
        for line in self.warnings() {
            out.line(&text::clean(&line))?;
        }
        if let Some(doc) = &self.written {
            out.line(&layout::disposition_key(doc.number))?;
        }
        out.flush()
    }

    fn json(&self) -> Result<()> {
        let groups = self.groups().into_iter().map(|(topic, pipeline, error_class, records)| {
            json!({"topic": topic, "pipeline": pipeline, "error_class": error_class, "records": records})
        });
        let unfinished = self
            .unfinished
            .iter()
            .map(|p| json!({"restore_id": p.restore_id, "created_at": p.created_at, "created_by": p.created_by}));
        let document = json!({
            "action": self.args.action(),
            "dry_run": self.args.dry_run,
            "selected": self.selected.records.records,
            "records": self.records(),
            "unchanged": self.unchanged(),
            "restored_before": self.change.restored,
            "groups": groups.collect::<Vec<_>>(),
            "not_found": self.selected.records.not_found.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "nothing": self.nothing.as_ref().map(|n| json!({
                "archived": n.archived, "read": n.read, "matching_nothing": n.flags, "meaning": n.text()
            })),
            "unfinished_restores": unfinished.collect::<Vec<_>>(),
            "disposition": self.written.as_ref().map(|doc| layout::disposition_key(doc.number)),
        });
        output::line(&text::escaped(&document.to_string()))
    }
}
