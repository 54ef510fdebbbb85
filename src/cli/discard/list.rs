//! `dlq-archiver discard list`.

use crate::catalog::Catalog;
use crate::cli::args::ArchiveArgs;
use crate::cli::output::{Documents, Out, Output, OutputArgs};
use crate::cli::table::{Column, Table};
use crate::cli::text;
use crate::disposition;
use crate::disposition::documents::{Action, DispositionDoc};
use crate::error::Result;
use crate::layout;
use serde_json::json;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each command that discarded records or took discards back, the newest first. The chain is followed from the \
    first: one that is missing or changed is an error. Which records are discarded now: `list --disposition discarded`.\n\n\
    -o json: one array of objects, jsonl: one a line: number, action, at, by, user, host, reason, filter, selected, records, \
    counts, object, sha256."
)]
pub struct Args {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    store: ArchiveArgs,
}

pub async fn run(args: Args) -> Result<u8> {
    let catalog = Catalog::open(args.store.read().await?).await?;
    let mut all: Vec<(DispositionDoc, Option<String>)> = Vec::new();
    // Without the offsets, which may be many.
    disposition::each(&catalog, |stored| {
        all.push((DispositionDoc { partitions: Vec::new(), ..stored.doc }, stored.end.sha256));
    })
    .await?;
    all.reverse();
    let mut out = Out::new();
    match args.output.output {
        Output::Table => table(&all, &mut out)?,
        output => {
            let mut documents = Documents::new(output == Output::Json);
            for (d, sha256) in &all {
                let document = json!({
                    "number": d.number, "action": d.action, "at": d.at, "by": d.by, "user": d.user, "host": d.host,
                    "reason": d.reason, "filter": d.filter, "selected": d.selected, "records": d.records,
                    "counts": d.counts, "object": layout::disposition_key(d.number), "sha256": sha256,
                });
                documents.document(&text::escaped(&document.to_string()), &mut out)?;
            }
            documents.finish(&mut out)?;
        }
    }
    out.flush()?;
    Ok(0)
}

fn table(all: &[(DispositionDoc, Option<String>)], out: &mut Out) -> Result<()> {
    if all.is_empty() {
        return out.line("nothing was discarded in this archive");
    }
    let columns = vec![
        Column::number("NUMBER"),
        Column::whole("AT"),
        Column::whole("ACTION"),
        Column::new("BY"),
        Column::number("RECORDS"),
        Column::number("SELECTED"),
        Column::wide("REASON"),
    ];
    let mut table = Table::new(columns);
    for (d, _) in all {
        let action = match d.action {
            Action::Discard => "discard",
            Action::Undo => "undo",
        };
        let cell = |text: &str| text::clean(text).into_owned();
        let by = d.by.clone().unwrap_or_else(|| format!("{}@{}", d.user, d.host));
        table.row(
            vec![
                d.number.to_string(),
                cell(&d.at),
                action.to_owned(),
                cell(&by),
                d.records.to_string(),
                d.selected.to_string(),
                cell(&d.reason),
            ],
            out,
        )?;
    }
    table.finish(out)
}
