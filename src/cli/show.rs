//! `dlq-archiver show`.

use super::args::ArchiveArgs;
use super::bytes::{self, Limits};
use super::config::Config;
use super::output::{Out, Output, OutputArgs};
use super::{disposition, record, text};
use crate::catalog::{Catalog, Cut, PartitionLedger, Reading, Selected};
use crate::cut::Tables;
use crate::dialect::UNKNOWN;
use crate::error::{Error, Result};
use crate::filter::{Filter, parse_id};
use crate::format::refetched::State;
use crate::format::schema::COLUMNS;
use crate::format::{ArchivedRecord, Projection};
use crate::layout;
use crate::ledger::{GapKind, Manifest};
use crate::record::{Hop, RawRecord, RecordId};
use crate::refetch::index::Index;
use crate::refetch::originals::Found as Original;
use crate::restore::past::{Disposition, Past};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fmt::Write;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dlq-archiver show --archive s3://compliance/dlq orders-dlq/0/42\n\n\
    In tables null, \"\" (empty) and 0x (bytes that are no text) stand apart.")]
pub struct Args {
    /// Record id as `list` prints it: TOPIC/PARTITION/OFFSET
    #[arg(value_name = "ID")]
    id: String,

    /// Nothing is cut: long values, headers and stack traces too
    #[arg(long)]
    full: bool,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    store: ArchiveArgs,
}

pub async fn run(args: Args, config: &Config) -> Result<u8> {
    let tables = config.tables()?;
    let id = parse_id(&args.id)?;
    let catalog = Catalog::open(args.store.read().await?).await?;
    let found = find(&catalog, &id, tables).await?;
    let mut out = Out::new();
    match args.output.output {
        Output::Table => table(&found, args.full, &mut out)?,
        Output::Json => {
            let pretty = serde_json::to_string_pretty(&found.document()).unwrap_or_default();
            out.line(&text::escaped(&pretty))?;
        }
        Output::Jsonl => out.line(&record::line(&found.document()))?,
    }
    out.flush()?;
    Ok(0)
}

/// The record alone in its cut, and where it is.
struct Found {
    cut: Cut,
    manifest_key: String,
    tables: Tables,
    /// Of a record that lacks something of its original, where that was looked for.
    original: Option<Original>,
    /// What restores and dispositions did with it.
    past: Past,
}

async fn find(catalog: &Catalog, id: &RecordId, tables: Tables) -> Result<Found> {
    let filter = Filter::of_record(id);
    let partitions = catalog.partitions(&filter).await?;
    let Some(ledger) = partitions.iter().find(|p| p.genesis.generation == id.generation) else {
        return Err(no_partition(catalog, id, &partitions).await?);
    };
    if id.offset < ledger.genesis.first_offset {
        return Err(Error::failed(format!(
            "{id} is not in the archive: it lies before its start, {} of this partition",
            ledger.genesis.first_offset
        )));
    }
    // Only the cut that the offset lies in; the last one where none does.
    let manifests = catalog.manifests(ledger, &filter).await?;
    let checkpoint = manifests.last().map_or(ledger.genesis.first_offset, |m| m.to);
    if id.offset >= checkpoint {
        return Err(Error::failed(format!(
            "{id} is not in the archive yet: this partition is archived up to {checkpoint}, excluded. Run `dlq-archiver \
             archive`"
        )));
    }
    let within = |m: &&Manifest| m.from <= id.offset && id.offset < m.to;
    let manifest = manifests.iter().find(within);
    let selected = manifest.cloned().and_then(|m| Selected::of(m, &filter));
    if let Some(selected) = selected {
        let cut = catalog.read_cut(&selected, &filter, Reading::RESTORE).await?;
        if !cut.is_empty() {
            let manifest_key = layout::manifest_key(&ledger.prefix, cut.manifest().from);
            let original = original(catalog, &cut).await?;
            let past = disposition::past(catalog, &[selected], true).await?;
            return Ok(Found { cut, manifest_key, tables, original, past });
        }
    }
    Err(not_a_record(id, manifest))
}

async fn original(catalog: &Catalog, cut: &Cut) -> Result<Option<Original>> {
    if !cut.payload_state(0).lacks_original() {
        return Ok(None);
    }
    let known = Index::new(catalog.store().clone()).of(cut.manifest()).await?;
    Original::of(&**catalog.store(), &known, cut.offset(0)).await
}

async fn no_partition(catalog: &Catalog, id: &RecordId, found: &[PartitionLedger]) -> Result<Error> {
    let generations: Vec<String> = found.iter().map(|p| p.genesis.generation.to_string()).collect();
    if !generations.is_empty() {
        return Ok(Error::failed(format!(
            "{id} is not in the archive: of {}/{} it has generation {}",
            id.topic,
            id.partition,
            generations.join(", ")
        )));
    }
    let all = catalog.partitions(&Filter::default()).await?;
    let topics: BTreeSet<&str> = all.iter().map(|p| p.genesis.topic.as_str()).collect();
    if topics.contains(id.topic.as_str()) {
        return Ok(Error::failed(format!(
            "{id} is not in the archive: it has no partition {} of this topic",
            id.partition
        )));
    }
    let names: Vec<_> = topics.iter().take(20).copied().collect();
    Ok(Error::failed(match names.as_slice() {
        [] => {
            catalog.check_empty().await?;
            format!("{id} is not in the archive: it has no records yet")
        }
        names => format!("{id} is not in the archive: it has no such topic, only {}", names.join(", ")),
    }))
}

fn not_a_record(id: &RecordId, manifest: Option<&Manifest>) -> Error {
    let gap = manifest.and_then(|m| m.gaps.iter().find(|g| g.from <= id.offset && id.offset < g.to));
    let why = match gap.map(|g| g.kind) {
        Some(GapKind::Lost) => "lies in a gap: retention deleted it before it was read",
        Some(GapKind::Expired) => {
            "lies in a gap: it was read, but retention deleted it before a restarted archiver could \
             store it"
        }
        Some(GapKind::Compacted) => "lies in a gap: it was compacted away before it was stored",
        Some(GapKind::Unknown) => "lies in a gap: whether a record was there is not known",
        None => {
            "was no record: a transaction marker, a record of an aborted transaction, or one that was compacted away \
             before it was read"
        }
    };
    Error::failed(format!("{id} is not in the archive: this offset {why}"))
}

impl Found {
    fn record(&self) -> ArchivedRecord<'_> {
        self.cut.get(0)
    }

    fn disposition(&self) -> Disposition<'_> {
        let m = self.cut.manifest();
        self.past.of(&m.topic, m.generation, m.partition).disposition(self.cut.offset(0))
    }

    /// The chain of failures, oldest first.
    fn hops(&self) -> Vec<Hop<'static>> {
        let r = self.record();
        let decoded = self.tables.dialects.decode(&r.id.topic, r.id.partition, &r.raw);
        decoded.hops.into_iter().map(Hop::into_owned).collect()
    }

    fn document(&self) -> Map<String, Value> {
        let mut document = record::columns(&self.record(), Projection::All);
        let hop = |h: Hop<'_>| {
            json!({
                "dialect": h.dialect,
                "topic": h.topic,
                "partition": h.partition,
                "offset": h.offset,
                "timestamp": h.timestamp_us.map(crate::archive::rfc3339),
                "group": h.group,
                "error_class": h.error_class,
                "error_message": h.error_message,
            })
        };
        document.insert("hops".into(), self.hops().into_iter().map(hop).collect::<Vec<_>>().into());
        document.insert("original".into(), self.original.as_ref().map(|o| record::original(&o.row())).into());
        document.insert("data_object".into(), self.cut.object(0).key.clone().into());
        document.insert("manifest".into(), self.manifest_key.clone().into());
        disposition::add_to(&mut document, &self.disposition());
        document
    }
}

/// Columns that have a part of their own.
fn is_apart(column: &str) -> bool {
    let payload = ["kafka_key_text", "kafka_key_bytes", "kafka_value_text", "kafka_value_bytes"];
    payload.contains(&column) || ["kafka_headers", "error_stacktrace"].contains(&column)
}

fn table(found: &Found, full: bool, out: &mut Out) -> Result<()> {
    let limits = if full { Limits::NONE } else { Limits::TERMINAL };
    let r = found.record();
    let document = record::columns(&r, Projection::All);
    let wide = COLUMNS.iter().map(|c| c.name.len()).max().unwrap_or(0);
    for column in COLUMNS.iter().filter(|c| !is_apart(c.name)) {
        let value = match document.get(column.name) {
            None | Some(Value::Null) => "null".to_owned(),
            Some(Value::String(s)) if s.is_empty() => "\"\"".to_owned(),
            Some(Value::String(s)) => limits.line(&text::clean(s)).into_owned(),
            Some(other) => other.to_string(),
        };
        out.line(&format!("{:wide$}  {value}", column.name))?;
    }
    out.line(&format!("{:wide$}  {}", "data object", found.cut.object(0).key))?;
    out.line(&format!("{:wide$}  {}", "manifest", found.manifest_key))?;
    out.line(&format!("{:wide$}  {}", "disposition", text::clean(&disposition::line(&found.disposition()))))?;

    original_table(found, limits, out)?;
    let hops = found.hops();
    out.line(&format!("\nfailures ({}), oldest first", hops.len()))?;
    if hops.is_empty() && r.decoded.dialect != UNKNOWN {
        let dialect = text::clean(&r.decoded.dialect);
        out.line(&format!(
            "  not known without the table of {dialect}: give its --dialect-file, or the --config that names it"
        ))?;
    }
    for (i, hop) in hops.iter().enumerate() {
        out.line(&format!("  {}  {}", i + 1, limits.line(&hop_line(hop))))?;
    }

    headers("headers", &r.raw, limits, out)?;
    payload("", &r.raw, limits, out)?;
    if let Some(trace) = r.decoded.error_stacktrace.as_deref() {
        out.line("\nstack trace")?;
        out.text(&limits.lines(&text::clean_lines(trace)))?;
    }
    Ok(())
}
/// What became of the original, where the dead letter lacks something of it.
fn original_table(found: &Found, limits: Limits, out: &mut Out) -> Result<()> {
    if !found.cut.payload_state(0).lacks_original() {
        return Ok(());
    }
    let Some(original) = &found.original else {
        return out.line("\noriginal: not looked for yet (`dlq-archiver refetch` reads it from its topic)");
    };
    let (row, s) = (original.row(), &original.source);
    out.line(&format!(
        "\noriginal {}/{}/{}: {}, looked for at {} ({})",
        text::clean(&s.topic),
        s.partition,
        s.offset,
        original.state.as_str(),
        crate::archive::rfc3339(original.refetched_at_us),
        original.key
    ))?;
    if let (State::Refetched, Some(raw)) = (original.state, row.original) {
        out.line(&format!("  timestamp  {}", text::time(raw.timestamp_ms)))?;
        headers("original headers", &raw, limits, out)?;
        payload("original ", &raw, limits, out)?;
    }
    Ok(())
}

fn headers(title: &str, raw: &RawRecord<'_>, limits: Limits, out: &mut Out) -> Result<()> {
    out.line(&format!("\n{title} ({})", raw.headers.len()))?;
    let names: Vec<String> = raw.headers.iter().map(|h| bytes::name(h.name)).collect();
    let wide = names.iter().map(|n| text::width(n)).max().unwrap_or(0).min(40);
    for (name, header) in names.iter().zip(raw.headers.iter()) {
        let pad = wide.saturating_sub(text::width(name));
        out.line(&format!("  {name}{}  {}", " ".repeat(pad), bytes::inline(header.value, limits)))?;
    }
    Ok(())
}

fn payload(of: &str, raw: &RawRecord<'_>, limits: Limits, out: &mut Out) -> Result<()> {
    for (name, value) in [("key", raw.key), ("value", raw.value)] {
        out.text(&bytes::block(&format!("{of}{name}"), value, limits))?;
    }
    Ok(())
}

fn hop_line(h: &Hop<'_>) -> String {
    let mut line = text::clean(&h.dialect).into_owned();
    let number = |n: Option<i64>| n.map_or_else(|| "?".to_owned(), |n| n.to_string());
    if let Some(topic) = &h.topic {
        let at = (number(h.partition.map(i64::from)), number(h.offset));
        let _ = write!(line, "  from {}/{}/{}", text::clean(topic), at.0, at.1);
    }
    if let Some(us) = h.timestamp_us {
        let _ = write!(line, "  {}", text::time(us / 1000));
    }
    for (name, value) in [("by", &h.group), ("", &h.error_class), ("", &h.error_message)] {
        if let Some(value) = value {
            let gap = if name.is_empty() { "  " } else { "  by " };
            let _ = write!(line, "{gap}{}", text::clean(value));
        }
    }
    line
}
