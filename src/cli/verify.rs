//! `dlq-archiver verify`.

use super::args::{ArchiveArgs, KafkaArgs, duration};
use super::config::Config;
use super::output::{Documents, Out, Output, OutputArgs};
use super::progress::{Progress, human_bytes};
use super::text;
use crate::archive::{now_us, rfc3339};
use crate::error::{Error, Result};
use crate::filter::{Filter, FilterDoc};
use crate::ledger::{loss_words, to_bytes};
use crate::verify::{self, Counted, Counters, Options, Receipt, Report, Totals};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Checked: every manifest tiles and chains to the one before; intents and manifests agree; every data \
    object is there with its size, SHA-256, rows, offsets and the records' checksums; nothing else is under data/; no offset \
    is there twice; checkpoints agree; dispositions chain, are of archived records, and their Parquet says the same; the order \
    of restores chains, and plans, ends, lists and corrected values have the hashes that it and they name. With --brokers: every record of the topics below the checkpoints is in the archive, \
    and is the same; what is not archived yet is noted.\n\n\
    Nothing in the ledger hashes a partition's newest manifest: that it was edited is found only by what its intent and \
    objects say, and newest cuts that were removed with all their objects not at all. The same holds for the newest \
    disposition and the newest restore. A receipt finds all of these: write one with \
    --receipt, keep it elsewhere than in the bucket, and give it to --expect the next time.\n\n\
    Exit codes: 0 no damage, 4 damage, 1 store or brokers do not answer, 2 wrong usage or configuration.\n\n\
    Examples:\n  \
    dlq-archiver verify --archive s3://compliance/dlq --receipt last.json\n  \
    dlq-archiver verify --archive s3://compliance/dlq --expect last.json --receipt last.json\n  \
    dlq-archiver verify --archive s3://compliance/dlq --quick --brokers kafka:9092 --topic orders-dlq -o json"
)]
pub struct Args {
    /// Ask for each object's size and SHA-256 (its metadata; a local folder has the size only) instead of reading it
    #[arg(long)]
    quick: bool,

    /// Only this dead-letter topic, or those that match a regular expression that begins with ^; repeatable
    #[arg(short, long)]
    topic: Vec<String>,

    /// Compare with a receipt that an earlier run wrote: its documents must still be there, unchanged
    #[arg(long, value_name = "FILE")]
    expect: Option<PathBuf>,

    /// Write a receipt: where each partition's ledger, dispositions and the order of restores end. Only if there is no damage; replaces FILE
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,

    /// With --brokers: the archiver's consumer group; by default the archive's own
    #[arg(long, env = "DLQ_ARCHIVER_GROUP", help_heading = "Kafka")]
    group: Option<String>,

    /// With --brokers: how long they may take to answer for the first time
    #[arg(long, default_value = "60s", value_parser = duration, env = "DLQ_ARCHIVER_START_TIMEOUT", help_heading = "Kafka")]
    start_timeout: Duration,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    store: ArchiveArgs,
    #[command(flatten)]
    kafka: KafkaArgs,
}

pub async fn run(args: Args, config: &Config) -> Result<u8> {
    let filter = Filter::new(FilterDoc { topic: args.topic.clone(), ..FilterDoc::default() })?;
    let expect = args.expect.as_deref().map(read_receipt).transpose()?;
    if args.receipt.is_some() && !args.topic.is_empty() {
        return Err(Error::config(
            "--receipt is of the whole archive: one of some topics would not show that others were removed. Leave --topic \
             out, or --receipt",
        ));
    }
    if let Some(path) = &args.receipt {
        // Found out now, not after hours.
        temporary(path)?;
    }
    let with_kafka = args.kafka.brokers.as_deref().is_some_and(|b| !b.is_empty())
        || args.kafka.kafka_config.is_some()
        || !args.kafka.property.is_empty();
    let options = Options {
        filter,
        quick: args.quick,
        kafka: if with_kafka { Some(args.kafka.connection(config)?) } else { None },
        group: args.group,
        expect,
        start_timeout: args.start_timeout,
    };
    let store = args.store.read().await?;
    let (counters, began) = (Arc::new(Counters::default()), Instant::now());
    let show = tokio::spawn(show_progress(counters.clone()));
    let report = verify::run(options, store, counters.clone()).await;
    show.abort();
    let _ = show.await;
    let report = report?;
    tell_speed(counters.get(), began.elapsed());
    print(&report, args.output.output)?;
    if let Some(path) = &args.receipt {
        match report.receipt(rfc3339(now_us())) {
            Some(receipt) => write_receipt(path, &receipt)?,
            None => tracing::warn!("no receipt was written to {}: it would vouch for damage", path.display()),
        }
    }
    Ok(report.exit_code())
}

fn read_receipt(path: &Path) -> Result<Receipt> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|e| {
        Error::config(match e.kind() {
            std::io::ErrorKind::NotFound => {
                format!("--expect {name}: no earlier receipt there: write the first one with --receipt FILE alone")
            }
            _ => format!("--expect {name}: cannot be read: {e}"),
        })
    })?;
    Receipt::parse(&name, &bytes)
}

/// A new file beside `path`, to be moved there.
fn temporary(path: &Path) -> Result<tempfile::NamedTempFile> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    tempfile::Builder::new()
        .prefix(".receipt-")
        .tempfile_in(folder)
        .map_err(|e| Error::config(format!("--receipt {}: cannot be written: {e}", path.display())))
}

fn write_receipt(path: &Path, receipt: &Receipt) -> Result<()> {
    let failed = |e: std::io::Error| Error::failed(format!("--receipt {}: cannot be written: {e}", path.display()));
    let mut file = temporary(path)?;
    file.write_all(&to_bytes(receipt)?).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
    file.persist(path).map_err(|e| failed(e.error))?;
    Ok(())
}

async fn show_progress(counters: Arc<Counters>) {
    let mut progress = None;
    loop {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let now = counters.get();
        if now.all_cuts == 0 {
            continue;
        }
        let progress = progress.get_or_insert_with(|| Progress::start(Some(now.all_cuts)));
        progress.update(now.cuts, || {
            let (cuts, all, objects) = (now.cuts, now.all_cuts, now.objects);
            let read = if now.bytes > 0 { format!(" ({})", human_bytes(now.bytes)) } else { String::new() };
            let damage = if now.damage > 0 { format!(", DAMAGE: {}", now.damage) } else { String::new() };
            format!("verified {cuts} of {all} cuts, {objects} objects{read}{damage}")
        });
    }
}

fn tell_speed(counted: Counted, took: Duration) {
    let seconds = took.as_secs_f64().max(0.001);
    let read = match counted.bytes {
        0 => String::new(),
        bytes => format!(", {} of them read at {:.0} MB/s", human_bytes(bytes), bytes as f64 / 1e6 / seconds),
    };
    tracing::info!("looked at {} objects of {} cuts in {seconds:.1} s{read}", counted.objects, counted.cuts);
}

fn print(report: &Report, output: Output) -> Result<()> {
    let mut out = Out::new();
    match output {
        Output::Table => table(report, &mut out)?,
        Output::Json => {
            let document = json!({
                "archive_id": report.archive_id,
                "url": report.url,
                "quick": report.quick,
                "damage": report.damage,
                "notes": report.notes,
                "totals": report.totals,
            });
            out.line(&text::escaped(&document.to_string()))?;
        }
        Output::Jsonl => {
            let mut lines = Documents::new(false);
            let mut line = |kind: &str, document: Value| {
                lines.document(&text::escaped(&json!({ kind: document }).to_string()), &mut out)
            };
            report.damage.iter().try_for_each(|damage| line("damage", value(damage)))?;
            report.notes.iter().try_for_each(|note| line("note", value(note)))?;
            line("totals", value(&report.totals))?;
            lines.finish(&mut out)?;
        }
    }
    out.flush()
}

fn value(document: &impl Serialize) -> Value {
    serde_json::to_value(document).unwrap_or_default()
}

fn table(report: &Report, out: &mut Out) -> Result<()> {
    for d in &report.damage {
        out.line(&format!("{}  {}", d.kind.name(), text::clean(&d.at)))?;
        out.line(&format!("    expected  {}", text::clean(&d.expected)))?;
        out.line(&format!("    found     {}", text::clean(&d.found)))?;
        out.line(&format!("    next      {}\n", d.next))?;
    }
    let more = report.totals.damage.saturating_sub(report.damage.len() as u64);
    if more > 0 {
        out.line(&format!("... and {more} more\n"))?;
    }
    for n in &report.notes {
        out.line(&format!("note: {}: {}", text::clean(&n.at), text::clean(&n.note)))?;
    }
    out.line(&summary(&report.totals, report.quick))
}

fn summary(t: &Totals, quick: bool) -> String {
    let kafka = match t.kafka_records {
        0 => String::new(),
        n => format!(", {n} records compared with Kafka"),
    };
    let dispositions = match t.dispositions {
        0 => String::new(),
        n => format!(", {} ({} discarded)", text::count(n, "disposition"), t.discarded),
    };
    let restores = match t.restores {
        0 => String::new(),
        n => format!(", {} ({} records)", text::count(n, "restore"), t.restored),
    };
    let lost = loss_words(t.lost_offsets, t.unknown_offsets);
    let lost = lost.map_or_else(String::new, |told| format!("; {told}"));
    let originals = match t.originals {
        0 => String::new(),
        n => format!(", {n} originals that were read again"),
    };
    format!(
        "{}: {} records in {} objects ({}) of {} cuts in {} partitions{}{originals}{dispositions}{restores}{kafka}{lost}",
        if t.damage == 0 { "no damage".to_owned() } else { format!("DAMAGE in {}", text::count(t.damage, "place")) },
        t.rows,
        t.objects,
        human_bytes(t.bytes),
        t.cuts,
        t.partitions,
        if quick { ", objects not read" } else { "" },
    )
}
