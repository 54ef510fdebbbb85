//! `dlq-archiver restore report`.

use super::{html, list, sections, status};
use crate::archive::{now_us, rfc3339};
use crate::catalog::Catalog;
use crate::cli::args::ArchiveArgs;
use crate::cli::output::{self, Out};
use crate::cli::text;
use crate::cut::PROGRAM_VERSION;
use crate::error::Result;
use crate::restore::report::Report;
use crate::restore::turn;
use clap::ValueEnum;
use serde_json::{Value, json};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Who, when, from which host, filter, options, counts, runs, lists with their SHA-256, the restore's place in \
    the order of all restores with its hashes, corrected values, and where the first records went. The order is followed from \
    its first document: whether it holds is told.\n\n\
    Exit codes: 0 all of it fits its hashes; 4 something does not, see PROBLEM; 1 the store does not answer; 2 wrong usage, or \
    no such restore.\n\n\
    Examples:\n  \
    dlq-archiver restore report 4a1f0c92be37-1 --archive s3://compliance/dlq\n  \
    dlq-archiver restore report 4a1f0c92be37-1 --archive s3://compliance/dlq -o html > restore.html"
)]
pub struct Args {
    /// The restore, as `restore list` has it
    #[arg(value_name = "ID")]
    id: String,

    /// How many records' ways to show: from where, to where
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    rows: u32,

    /// How it is printed
    #[arg(id = "report_output", short = 'o', long = "output", value_enum, default_value_t, help_heading = "Output")]
    output: ReportOutput,

    #[command(flatten)]
    store: ArchiveArgs,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum ReportOutput {
    /// For people
    #[default]
    Table,
    /// One document
    Json,
    /// One page without scripts, to keep or to print
    Html,
}

pub async fn run(args: Args) -> Result<u8> {
    let store = args.store.read().await?;
    let catalog = Catalog::open(store).await?;
    let (store, archive_id) = (&**catalog.store(), &catalog.archive().archive_id);
    let Some(report) = Report::read(store, archive_id, &args.id, args.rows as usize).await? else {
        return Err(status::no_such(store, &args.id).await?);
    };
    match args.output {
        ReportOutput::Table => {
            let mut out = Out::new();
            out.line(&format!("Restore {} of {}\n", args.id, text::clean(store.url())))?;
            sections::print(&sections::all(&report), &mut out)?;
            out.flush()?;
        }
        ReportOutput::Json => output::line(&text::escaped(&document(&report).to_string()))?,
        ReportOutput::Html => {
            let title = format!("Restore {} of {}", args.id, store.url());
            let made =
                format!("made at {} by dlq-archiver {PROGRAM_VERSION}, from restores/{}/", rfc3339(now_us()), args.id);
            let mut out = Out::new();
            out.text(&html::page(&title, &made, &sections::all(&report)))?;
            out.flush()?;
        }
    }
    Ok(if report.problems.is_empty() { 0 } else { 4 })
}

fn document(report: &Report) -> Value {
    let (plan, done) = (&report.overview.plan, report.overview.done.as_ref());
    let skipped = done.map(|done| {
        let each = done.skipped_by_reason.iter();
        each.map(|(why, n)| json!({"reason": why, "meaning": why.text(), "records": n})).collect::<Vec<_>>()
    });
    let runs = report.runs.iter().map(|(number, run)| {
        json!({
            "run": number, "begun_at": run.started_at, "begun_by": run.started_by, "from_record": run.start,
            "program_version": run.program_version, "closing": run.closing
        })
    });
    let entries = report.links.iter().map(|link| {
        json!({
            "number": link.number, "object": turn::order_key(link.number), "event": link.doc.event,
            "of_sha256": link.doc.sha256, "sha256": link.sha256, "previous_sha256": link.doc.previous_sha256
        })
    });
    let corrected = report.corrected.iter().map(|row| {
        let correction = row.correction.as_ref();
        json!({
            "record_id": row.id.to_string(),
            "archived_value_sha256": correction.and_then(|c| c.archived_sha256.as_ref()),
            "restored_value_sha256": correction.and_then(|c| c.restored_sha256.as_ref())
        })
    });
    let rows = report.rows.iter().map(|row| {
        json!({
            "record_id": row.id.to_string(), "target_topic": row.target_topic, "target_partition": row.target_partition,
            "target_offset": row.target_offset, "restored_at": rfc3339(row.restored_at_us), "attempt": row.attempt
        })
    });
    let more = [
        ("archive_id", json!(plan.archive_id)),
        ("program_version", json!(plan.program_version)),
        ("dialects_digest", json!(plan.dialects_digest)),
        ("filter", json!(plan.filter)),
        ("options", json!(plan.options)),
        ("delivery_reason", json!(plan.delivery_reason)),
        ("cuts", json!(report.overview.cuts)),
        ("plan_sha256", json!(report.overview.plan_sha256)),
        ("done_sha256", json!(report.overview.done_sha256)),
        ("planned_skips", json!(plan.skipped)),
        ("partitions_by_target", json!(plan.targets)),
        ("restored_by_target", json!(done.map(|done| &done.restored_by_target))),
        ("skipped_by_reason", json!(skipped)),
        ("runs", json!(runs.collect::<Vec<_>>())),
        ("lists", json!(done.map(|done| &done.lists))),
        ("skipped_lists", json!(done.map(|done| &done.skipped_lists))),
        (
            "order",
            json!({
                "holds": report.problems.is_empty(), "documents": report.order,
                "problems": report.problems, "entries": entries.collect::<Vec<_>>()
            }),
        ),
        ("corrected", json!({"records": report.corrected_total, "first": corrected.collect::<Vec<_>>()})),
        ("rows", json!(rows.collect::<Vec<_>>())),
    ];
    let mut fields = list::document(&report.overview);
    fields.extend(more.map(|(name, value)| (name.to_owned(), value)));
    Value::from_iter(fields)
}
