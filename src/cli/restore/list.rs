//! `dlq-archiver restore list`.

use crate::catalog::Catalog;
use crate::cli::args::ArchiveArgs;
use crate::cli::output::{Documents, Out, Output, OutputArgs};
use crate::cli::table::{Column, Table};
use crate::cli::text;
use crate::error::Result;
use crate::restore::report::Overview;
use serde_json::{Value, json};

#[derive(Debug, clap::Args)]
#[command(after_help = "The newest first. BY is who decided, as given with --by, else the user that was seen.\n\n\
    States: done; closed: ended early, taken over or as another one was before it; unfinished: see `restore status`.\n\n\
    -o json: one array of objects, jsonl: one a line: restore_id, state, begun_at, by, seen_by, reason, selected, to_restore, \
    restored, skipped, left (of these three null while it is unfinished), done_at_least, targets, delivery, finished_at, \
    closed, plan (its id, if it carries a dry run out).\n\n\
    Read are plan.json and done.json of each; no brokers are asked.")]
pub struct Args {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    store: ArchiveArgs,
}

pub async fn run(args: Args) -> Result<u8> {
    let store = args.store.read().await?;
    let catalog = Catalog::open(store).await?;
    let all = Overview::all(&**catalog.store()).await?;
    let mut out = Out::new();
    match args.output.output {
        Output::Table => table(&all, &mut out)?,
        output => {
            let mut documents = Documents::new(output == Output::Json);
            for overview in &all {
                documents.document(&text::escaped(&Value::from_iter(document(overview)).to_string()), &mut out)?;
            }
            documents.finish(&mut out)?;
        }
    }
    out.flush()?;
    Ok(0)
}

/// Who decided it, as given; else who was seen.
pub fn by(overview: &Overview) -> &str {
    overview.plan.by.as_deref().unwrap_or(&overview.plan.created_by)
}

/// The state, with why it was closed, or how far it is.
pub fn state(overview: &Overview) -> String {
    let (state, selected) = (overview.state().as_str(), overview.plan.selected);
    match (&overview.done, overview.closed(), overview.reached()) {
        (_, Some(why), _) => format!("{state}: {why}"),
        (None, None, Some(reached)) => format!("{state}: {reached} of {selected}"),
        _ => state.to_owned(),
    }
}

/// Its fields, in their order.
pub fn document(overview: &Overview) -> Vec<(String, Value)> {
    let (plan, done) = (&overview.plan, overview.done.as_ref());
    let fields = [
        ("restore_id", json!(plan.restore_id)),
        ("state", json!(overview.state().as_str())),
        ("begun_at", json!(plan.created_at)),
        ("by", json!(plan.by)),
        ("seen_by", json!(plan.created_by)),
        ("reason", json!(plan.reason)),
        ("selected", json!(plan.selected)),
        ("to_restore", json!(plan.to_restore)),
        ("restored", json!(done.map(|done| done.restored))),
        ("skipped", json!(done.map(|done| done.skipped))),
        ("left", json!(done.map(|done| done.left))),
        ("done_at_least", json!(overview.reached())),
        ("targets", json!(plan.targets.keys().collect::<Vec<_>>())),
        ("delivery", json!(plan.delivery)),
        ("finished_at", json!(done.map(|done| &done.finished_at))),
        ("closed", json!(overview.closed())),
        ("plan", json!(plan.draft)),
    ];
    fields.map(|(name, value)| (name.to_owned(), value)).into()
}

fn table(all: &[Overview], out: &mut Out) -> Result<()> {
    if all.is_empty() {
        return out.line("nothing was restored from this archive");
    }
    let columns = vec![
        Column::whole("ID"),
        Column::whole("PLANNED"),
        Column::new("BY"),
        Column::whole("STATE"),
        Column::number("SELECTED"),
        Column::number("RESTORED"),
        Column::number("SKIPPED"),
        Column::new("TARGETS"),
        Column::optional("DELIVERY"),
        Column::wide("REASON"),
    ];
    let mut table = Table::new(columns);
    for overview in all {
        let (plan, done) = (&overview.plan, overview.done.as_ref());
        let number = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let targets: Vec<&str> = plan.targets.keys().map(String::as_str).collect();
        let cell = |text: &str| text::clean(text).into_owned();
        let row = vec![
            cell(&plan.restore_id),
            cell(&plan.created_at),
            cell(by(overview)),
            overview.state().as_str().to_owned(),
            plan.selected.to_string(),
            number(done.map(|done| done.restored)),
            number(done.map(|done| done.skipped)),
            cell(&targets.join(", ")),
            plan.delivery.as_str().to_owned(),
            cell(plan.reason.as_deref().unwrap_or("-")),
        ];
        table.row(row, out)?;
    }
    table.finish(out)
}
