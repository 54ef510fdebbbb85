//! `dlq-archiver list`.

use super::args::ArchiveArgs;
use super::filter::{FilterArgs, PickArgs};
use super::output::{Documents, Out, Output, OutputArgs};
use super::progress::{Progress, human_bytes};
use super::table::{Column, Table};
use super::{record, text};
use crate::catalog::{Catalog, Cut, Reading, Selected};
use crate::error::{Error, Result, few};
use crate::filter::{Filter, FilterDoc, Unjudged, short_class};
use crate::format::{ArchivedRecord, Projection};
use crate::record::RecordId;
use crate::refetch::documents::Known;
use crate::refetch::index::Index;
use crate::restore::nothing;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dlq-archiver list --archive s3://compliance/dlq --since 2h\n  \
    dlq-archiver list --archive s3://compliance/dlq --pipeline size-check --error-code 500 -o jsonl\n\n\
    Records are in order of topic, partition, offset; the newest in order of their Kafka timestamp. --sample is drawn from \
    all that match the other filters; --limit and --newest take theirs from the sample.")]
pub struct Args {
    /// The first N of what matches, in order of topic, partition, offset; 0 for all
    #[arg(long, value_name = "N")]
    limit: Option<u64>,

    /// The newest N of what matches by Kafka timestamp, newest last [default: 100 for -o table without --limit and --sample]
    #[arg(long, value_name = "N", conflicts_with = "limit", value_parser = clap::value_parser!(u32).range(1..))]
    newest: Option<u32>,

    /// With -o json or jsonl: key, value, headers and stack trace too
    #[arg(long)]
    payload: bool,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    pick: PickArgs,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    store: ArchiveArgs,
}

/// Rows of a table unless told otherwise.
const TABLE_LIMIT: u32 = 100;

pub async fn run(args: Args) -> Result<u8> {
    let output = args.output.output;
    if args.payload && output == Output::Table {
        return Err(Error::config(
            "--payload goes with -o json or -o jsonl: a table has no room for it. `show ID` shows all of one record",
        ));
    }
    let limit = args.limit.filter(|n| *n > 0);
    let filter = args.filter.picked(&args.pick, limit)?;
    let default = output == Output::Table && args.limit.is_none() && args.pick == PickArgs::default();
    let newest = args.newest.or(default.then_some(TABLE_LIMIT));
    let catalog = Catalog::open(args.store.read().await?).await?;
    let projection = if args.payload { Projection::All } else { Projection::NoPayload };
    let partitions = catalog.partitions(&filter).await?;
    let selected = catalog.select_in(&partitions, &filter).await?;
    let (filter, selected, unjudged) = catalog.sampled(filter, selected).await?;
    let (progress, sink, found) = (Read::default(), Sink::new(output), BTreeSet::new());
    let index = Index::new(catalog.store().clone());
    let mut scan = Scan {
        catalog,
        filter,
        projection,
        progress,
        sink,
        out: Out::new(),
        found,
        index,
        lacking: [0; LACKING],
        unjudged,
    };
    let more = match newest {
        None => scan.all(selected).await?,
        Some(newest) => scan.newest(selected, newest as usize).await?,
    };
    let Scan { catalog, filter, progress, sink, mut out, found, lacking, unjudged, .. } = scan;
    drop(progress);
    let any = sink.finish(&mut out)?;
    out.flush()?;
    tell_missing(&filter, &found);
    tell_unjudged(unjudged.as_ref());
    if !any {
        tell_none(&catalog, &filter).await?;
    } else if let Some(newest) = newest
        && more
        && output == Output::Table
    {
        super::output::tell(&format!("These are the newest {newest}; there are more: --limit 0 lists all."));
    }
    if output == Output::Table {
        tell_lacking(lacking);
    }
    Ok(0)
}

/// Says why nothing matched: a mistyped topic is the usual reason.
pub async fn tell_none(catalog: &Catalog, filter: &Filter) -> Result<()> {
    let why = nothing::why(catalog, filter).await?;
    if why.archived == 0 {
        catalog.check_empty().await?;
        super::output::tell("The archive has no records yet.");
    } else {
        super::output::tell(&format!("No archived record matches. Likely: {}.", text::clean(&why.likely())));
    }
    Ok(())
}

/// Says of how many records it is not known whether they match.
pub fn tell_unjudged(unjudged: Option<&Unjudged>) {
    if let Some(unjudged) = unjudged {
        super::output::tell(&text::clean(&format!("{unjudged}.")));
    }
}

/// Says which of the record ids that were asked for were not found.
fn tell_missing(filter: &Filter, found: &BTreeSet<RecordId>) {
    let Some(asked) = filter.record_ids() else { return };
    let missing: Vec<_> = asked.difference(found).collect();
    if missing.is_empty() {
        return;
    }
    let alone = FilterDoc { record_id: filter.doc().record_id.clone(), ..FilterDoc::default() };
    let what = if *filter.doc() == alone { "not in the archive" } else { "not in the archive, or not matched" };
    let ids = few(missing.iter().copied(), 20);
    super::output::tell(&format!("{} of {} record ids {what}: {}", missing.len(), asked.len(), text::clean(&ids)));
}

/// What became of a record's original.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lack {
    Open,
    Absent,
    Refetched,
    /// The record has all of it.
    Nothing,
}

const LACKING: usize = Lack::Nothing as usize + 1;

fn lack(cut: &Cut, known: &Known, i: usize) -> Lack {
    match known.of(cut.offset(i)) {
        _ if !cut.payload_state(i).lacks_original() => Lack::Nothing,
        None => Lack::Open,
        Some(false) => Lack::Absent,
        Some(true) => Lack::Refetched,
    }
}

/// Says of how many records the originals were read again.
fn tell_lacking(lacking: [u64; LACKING]) {
    let of = |lack: Lack| lacking[lack as usize];
    let all = of(Lack::Open) + of(Lack::Absent) + of(Lack::Refetched);
    if all == 0 {
        return;
    }
    let mut line = format!(
        "{} without all of the original: {} read again (`show ID` has it)",
        text::count(all, "record"),
        of(Lack::Refetched)
    );
    if of(Lack::Absent) > 0 {
        line += &format!(", {} not there any more", of(Lack::Absent));
    }
    if of(Lack::Open) > 0 {
        line += &format!(", {} not looked for yet (`dlq-archiver refetch`)", of(Lack::Open));
    }
    super::output::tell(&format!("{line}."));
}

struct Scan {
    catalog: Catalog,
    filter: Filter,
    projection: Projection,
    progress: Read,
    sink: Sink,
    out: Out,
    /// Of the record ids that were asked for.
    found: BTreeSet<RecordId>,
    index: Index,
    /// Printed records, by what they lack.
    lacking: [u64; LACKING],
    /// Told by the sample, if one was drawn.
    unjudged: Option<Unjudged>,
}

impl Scan {
    async fn known(&mut self, cut: &Cut) -> Result<Known> {
        match (0..cut.len()).any(|i| cut.payload_state(i).lacks_original()) {
            true => self.index.of(cut.manifest()).await,
            false => Ok(Known::default()),
        }
    }

    fn note(&mut self, id: &RecordId) {
        if self.filter.record_ids().is_some() {
            self.found.insert(id.clone());
        }
    }

    fn reading(&self) -> Reading {
        Reading { projection: self.projection, check_sha256: false }
    }

    /// Every matching record, as it is read.
    async fn all(&mut self, selected: Vec<Selected>) -> Result<bool> {
        // On a terminal the rows themselves show that it goes on.
        if !std::io::stdout().is_terminal() {
            self.progress.start(&selected);
        }
        let mut cuts = self.catalog.cuts(selected, &self.filter, self.reading()).limit(self.filter.doc().limit);
        while let Some(cut) = cuts.next().await? {
            let known = self.known(&cut).await?;
            for (i, row) in cut.iter().enumerate() {
                self.note(&row.id);
                self.lacking[lack(&cut, &known, i) as usize] += 1;
                self.sink.print(self.sink.render(&row, self.projection), &mut self.out)?;
            }
            self.out.flush()?;
            self.progress.cut(cut.manifest().objects.iter().map(|o| o.size).sum());
        }
        self.unjudged = self.unjudged.take().or_else(|| cuts.unjudged().cloned());
        Ok(false)
    }

    /// The newest `limit` records. Cuts are read from the newest on, until older ones cannot have any of them.
    /// Returns whether there are more.
    async fn newest(&mut self, mut selected: Vec<Selected>, limit: usize) -> Result<bool> {
        let newest_of = |s: &Selected| s.objects.iter().filter_map(|o| o.max_timestamp_ms).max().unwrap_or(i64::MIN);
        selected.sort_by_key(|s| Reverse(newest_of(s)));
        let newest: Vec<i64> = selected.iter().map(newest_of).collect();
        self.progress.start(&selected);
        let mut cuts = self.catalog.cuts(selected, &self.filter, self.reading());
        // The oldest of those kept is on top.
        let mut kept: BinaryHeap<Reverse<(i64, RecordId, Rendered, Lack)>> = BinaryHeap::new();
        let mut more = false;
        for newest in newest {
            let full = kept.len() >= limit;
            if let Some(Reverse((oldest, ..))) = kept.peek()
                && full
                && newest < *oldest
                && self.filter.record_ids().is_none()
            {
                more = true;
                break;
            }
            let Some(cut) = cuts.next().await? else { break };
            let known = self.known(&cut).await?;
            for (i, row) in cut.iter().enumerate() {
                self.note(&row.id);
                let at = (row.raw.timestamp_ms, &row.id);
                if kept.len() >= limit {
                    more = true;
                    if kept.peek().is_some_and(|Reverse((ms, id, ..))| at <= (*ms, id)) {
                        continue;
                    }
                    kept.pop();
                }
                let (rendered, lack) = (self.sink.render(&row, self.projection), lack(&cut, &known, i));
                kept.push(Reverse((row.raw.timestamp_ms, row.id.clone(), rendered, lack)));
            }
            self.progress.cut(cut.manifest().objects.iter().map(|o| o.size).sum());
        }
        self.unjudged = self.unjudged.take().or_else(|| cuts.unjudged().cloned());
        let mut kept: Vec<_> = kept.into_iter().map(|Reverse(row)| row).collect();
        kept.sort();
        for (_, _, rendered, lack) in kept {
            self.lacking[lack as usize] += 1;
            self.sink.print(rendered, &mut self.out)?;
        }
        Ok(more)
    }
}

/// How much was read; shown once it takes a while.
#[derive(Default)]
pub struct Read {
    began: Option<Instant>,
    shown: Option<Progress>,
    cuts: u64,
    of: u64,
    bytes: u64,
}

impl Read {
    pub fn start(&mut self, selected: &[Selected]) {
        self.of = selected.len() as u64;
        self.began = Some(Instant::now());
    }
    pub fn cut(&mut self, bytes: u64) {
        self.cuts += 1;
        self.bytes += bytes;
        let (cuts, of, bytes) = (self.cuts, self.of, self.bytes);
        if self.began.is_some_and(|began| began.elapsed() > Duration::from_millis(500)) {
            let shown = self.shown.get_or_insert_with(|| Progress::start(Some(of)));
            shown.update(cuts, || format!("read {cuts} of {of} cuts ({})", human_bytes(bytes)));
        }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rendered {
    Cells(Vec<String>),
    Json(String),
}

enum Sink {
    Table(Box<Table>, bool),
    Documents(Documents),
}

impl Sink {
    fn new(output: Output) -> Self {
        if output != Output::Table {
            return Self::Documents(Documents::new(output == Output::Json));
        }
        let columns = vec![
            Column::whole("TIME"),
            Column::whole("RECORD ID"),
            Column::new("PIPELINE"),
            Column::optional("DIALECT"),
            Column::new("ERROR"),
            Column::wide("MESSAGE"),
        ];
        Self::Table(Box::new(Table::new(columns)), false)
    }

    fn render(&self, r: &ArchivedRecord<'_>, projection: Projection) -> Rendered {
        match self {
            Self::Table(..) => Rendered::Cells(cells(r)),
            Self::Documents(_) => Rendered::Json(record::line(&record::columns(r, projection))),
        }
    }

    fn print(&mut self, row: Rendered, out: &mut Out) -> Result<()> {
        match (self, row) {
            (Self::Table(table, any), Rendered::Cells(cells)) => {
                *any = true;
                table.row(cells, out)
            }
            (Self::Documents(documents), Rendered::Json(json)) => documents.document(&json, out),
            _ => Ok(()),
        }
    }

    /// Returns whether something was printed, which a program need not be told.
    fn finish(self, out: &mut Out) -> Result<bool> {
        match self {
            Self::Table(table, any) => table.finish(out).map(|()| any),
            Self::Documents(documents) => documents.finish(out).map(|()| true),
        }
    }
}

fn cells(r: &ArchivedRecord<'_>) -> Vec<String> {
    let d = &r.decoded;
    let clean = |text: &str| text::clean(text).into_owned();
    vec![
        text::time(r.raw.timestamp_ms),
        clean(&r.id.to_string()),
        clean(r.pipeline),
        clean(&d.dialect),
        clean(&error(d.error_class.as_deref(), d.error_code)),
        clean(d.error_message.as_deref().unwrap_or("-")),
    ]
}

/// `IllegalStateException`, `500`, or both; a class without its package, which `show` has.
fn error(class: Option<&str>, code: Option<i32>) -> String {
    match (class.map(short_class), code) {
        (None, None) => "-".into(),
        (Some(class), None) => class.to_owned(),
        (None, Some(code)) => code.to_string(),
        (Some(class), Some(code)) => format!("{class}/{code}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_short() {
        assert_eq!(error(Some("java.lang.IllegalStateException"), None), "IllegalStateException");
        assert_eq!(error(Some("A b. c"), Some(5)), "A b. c/5");
        assert_eq!(error(Some("x."), None), "x.");
        assert_eq!(error(None, Some(500)), "500");
        assert_eq!(error(None, None), "-");
    }
}
