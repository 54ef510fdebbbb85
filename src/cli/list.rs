//! `dlq-archiver list`.

use super::args::ArchiveArgs;
use super::disposition::DispositionArgs;
use super::filter::{FilterArgs, PickArgs};
use super::output::{Documents, Out, Output, OutputArgs};
use super::progress::{Progress, human_bytes};
use super::table::{Column, Table};
use super::{disposition, record, text};
use crate::catalog::{Catalog, Cut, Reading, Selected};
use crate::error::{Error, Result, few};
use crate::filter::{Filter, FilterDoc, Unjudged, short_class};
use crate::format::{ArchivedRecord, Projection};
use crate::record::RecordId;
use crate::refetch::documents::Known;
use crate::refetch::index::Index;
use crate::restore::nothing;
use crate::restore::past::{Disposition, Past, PastPartition};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dlq-archiver list --archive s3://compliance/dlq --since 2h\n  \
    dlq-archiver list --archive s3://compliance/dlq --pipeline size-check --error-code 500 -o jsonl\n  \
    dlq-archiver list --archive s3://compliance/dlq --disposition open\n\n\
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
    disposition: DispositionArgs,
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
    let wanted = args.disposition;
    let past = disposition::past(&catalog, &selected, wanted.is_given()).await?;
    let index = Index::new(catalog.store().clone());
    let mut scan = Scan {
        catalog,
        filter,
        projection,
        progress: Read::default(),
        sink: Sink::new(output, wanted.is_given()),
        out: Out::new(),
        found: BTreeSet::new(),
        index,
        told: Told::default(),
        wanted,
        past,
        unjudged,
    };
    let more = match newest {
        None => scan.all(selected).await?,
        Some(newest) => scan.newest(selected, newest as usize).await?,
    };
    let Scan { catalog, filter, progress, sink, mut out, found, told, wanted, unjudged, .. } = scan;
    drop(progress);
    let any = sink.finish(&mut out)?;
    out.flush()?;
    tell_missing(&filter, &found, wanted.is_given());
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
        tell_lacking(told.lacking);
        if told.discarded > 0 && !wanted.is_given() {
            super::output::tell(&format!(
                "{} discarded: not to be restored (--disposition discarded lists them).",
                text::count(told.discarded, "record")
            ));
        }
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
fn tell_missing(filter: &Filter, found: &BTreeSet<RecordId>, narrowed: bool) {
    let Some(asked) = filter.record_ids() else { return };
    let missing: Vec<_> = asked.difference(found).collect();
    if missing.is_empty() {
        return;
    }
    let alone = FilterDoc { record_id: filter.doc().record_id.clone(), ..FilterDoc::default() };
    let what =
        if *filter.doc() == alone && !narrowed { "not in the archive" } else { "not in the archive, or not matched" };
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

fn note(filter: &Filter, found: &mut BTreeSet<RecordId>, id: &RecordId) {
    if filter.record_ids().is_some() {
        found.insert(id.clone());
    }
}

fn past_of<'a>(past: &'a Past, cut: &Cut) -> PastPartition<'a> {
    let m = cut.manifest();
    past.of(&m.topic, m.generation, m.partition)
}

fn is_discarded(disposition: &Disposition<'_>) -> bool {
    matches!(disposition, Disposition::Discarded(_))
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
    told: Told,
    wanted: DispositionArgs,
    past: Past,
    /// Told by the sample, if one was drawn.
    unjudged: Option<Unjudged>,
}

/// What is told of the printed records.
#[derive(Default)]
struct Told {
    /// By what they lack.
    lacking: [u64; LACKING],
    discarded: u64,
}

impl Told {
    fn add(&mut self, lack: Lack, discarded: bool) {
        self.lacking[lack as usize] += 1;
        self.discarded += u64::from(discarded);
    }
}

impl Scan {
    async fn known(&mut self, cut: &Cut) -> Result<Known> {
        match (0..cut.len()).any(|i| cut.payload_state(i).lacks_original()) {
            true => self.index.of(cut.manifest()).await,
            false => Ok(Known::default()),
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
        // Of those with the disposition that is asked for, which cuts do not know.
        let (limit, narrowed) = (self.filter.doc().limit, self.wanted.is_given());
        let mut cuts = self.catalog.cuts(selected, &self.filter, self.reading()).limit(limit.filter(|_| !narrowed));
        let mut printed = 0;
        'cuts: while let Some(cut) = cuts.next().await? {
            let known = self.known(&cut).await?;
            let past = past_of(&self.past, &cut);
            for (i, row) in cut.iter().enumerate() {
                let disposition = past.disposition(row.id.offset);
                if !self.wanted.matches(&disposition) {
                    continue;
                }
                if narrowed && limit.is_some_and(|limit| printed >= limit) {
                    break 'cuts;
                }
                printed += 1;
                note(&self.filter, &mut self.found, &row.id);
                self.told.add(lack(&cut, &known, i), is_discarded(&disposition));
                self.sink.print(self.sink.render(&row, self.projection, &disposition), &mut self.out)?;
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
        let mut kept: BinaryHeap<Reverse<Kept>> = BinaryHeap::new();
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
            let past = past_of(&self.past, &cut);
            for (i, row) in cut.iter().enumerate() {
                let disposition = past.disposition(row.id.offset);
                if !self.wanted.matches(&disposition) {
                    continue;
                }
                note(&self.filter, &mut self.found, &row.id);
                let at = (row.raw.timestamp_ms, &row.id);
                if kept.len() >= limit {
                    more = true;
                    if kept.peek().is_some_and(|Reverse((ms, id, ..))| at <= (*ms, id)) {
                        continue;
                    }
                    kept.pop();
                }
                let rendered = self.sink.render(&row, self.projection, &disposition);
                let lack = lack(&cut, &known, i);
                kept.push(Reverse((row.raw.timestamp_ms, row.id.clone(), rendered, lack, is_discarded(&disposition))));
            }
            self.progress.cut(cut.manifest().objects.iter().map(|o| o.size).sum());
        }
        self.unjudged = self.unjudged.take().or_else(|| cuts.unjudged().cloned());
        let mut kept: Vec<_> = kept.into_iter().map(|Reverse(row)| row).collect();
        kept.sort();
        for (_, _, rendered, lack, discarded) in kept {
            self.told.add(lack, discarded);
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

/// Time, id, what is printed, what is told of it: see [`Told::add`].
type Kept = (i64, RecordId, Rendered, Lack, bool);

enum Rows {
    Table(Box<Table>, bool),
    Documents(Documents),
}

struct Sink {
    rows: Rows,
    /// With what became of each record.
    dispositions: bool,
}

impl Sink {
    fn new(output: Output, dispositions: bool) -> Self {
        if output != Output::Table {
            return Self { rows: Rows::Documents(Documents::new(output == Output::Json)), dispositions };
        }
        let mut columns = vec![Column::whole("TIME"), Column::whole("RECORD ID")];
        columns.extend(dispositions.then(|| Column::whole("DISPOSITION")));
        columns.extend([
            Column::new("PIPELINE"),
            Column::optional("DIALECT"),
            Column::new("ERROR"),
            Column::wide("MESSAGE"),
        ]);
        Self { rows: Rows::Table(Box::new(Table::new(columns)), false), dispositions }
    }

    fn render(&self, r: &ArchivedRecord<'_>, projection: Projection, disposition: &Disposition<'_>) -> Rendered {
        match self.rows {
            Rows::Table(..) => {
                let mut cells = cells(r);
                if self.dispositions {
                    cells.insert(2, disposition::name(disposition).to_owned());
                }
                Rendered::Cells(cells)
            }
            Rows::Documents(_) => {
                let mut document = record::columns(r, projection);
                if self.dispositions {
                    disposition::add_to(&mut document, disposition);
                }
                Rendered::Json(record::line(&document))
            }
        }
    }

    fn print(&mut self, row: Rendered, out: &mut Out) -> Result<()> {
        match (&mut self.rows, row) {
            (Rows::Table(table, any), Rendered::Cells(cells)) => {
                *any = true;
                table.row(cells, out)
            }
            (Rows::Documents(documents), Rendered::Json(json)) => documents.document(&json, out),
            _ => Ok(()),
        }
    }

    /// Returns whether something was printed, which a program need not be told.
    fn finish(self, out: &mut Out) -> Result<bool> {
        match self.rows {
            Rows::Table(table, any) => table.finish(out).map(|()| any),
            Rows::Documents(documents) => documents.finish(out).map(|()| true),
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
