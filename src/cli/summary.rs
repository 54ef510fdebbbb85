//! `dlq-archiver summary`.

mod field;

use super::args::ArchiveArgs;
use super::disposition::{self, DispositionArgs};
use super::filter::FilterArgs;
use super::list::{Read, tell_none, tell_unjudged};
use super::output::{Documents, Out, Output, OutputArgs};
use super::progress::human_bytes;
use super::table::{Column, Table};
use super::text;
use crate::catalog::{Catalog, PartitionLedger, Reading, Selected};
use crate::dialect::Dialects;
use crate::error::Result;
use crate::filter::{Filter, has_time};
use crate::ledger::{DataObject, GapKind, Manifest, loss_words};
use crate::refetch::documents::Known;
use crate::refetch::index::Index;
use crate::refetch::may_lack;
use crate::restore::past::Past;
use field::{Cell, Field};
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Manifests alone answer where the filter and --by allow it: topic, partition, pipeline, date, dialect, \
    error-class, error-code, whole cuts. Records are read where they do not, payloads never. A time \
    with ~ is the first or last of the data objects that hold the group, which may hold others too; --exact reads what \
    is needed for the group's own. By pipeline, objects that several share (--max-pipelines of archive) are read.\n\n\
    Examples:\n  \
    dlq-archiver summary --archive s3://compliance/dlq --since 7d\n  \
    dlq-archiver summary --archive s3://compliance/dlq --by pipeline,date -o json\n  \
    dlq-archiver summary --archive s3://compliance/dlq --by pipeline --distinct"
)]
pub struct Args {
    /// What to count by. Largest groups come first; with date or partition, groups are in order of their columns
    #[arg(long, value_enum, value_delimiter = ',', default_value = "pipeline,dialect,error-class,error-code")]
    by: Vec<Field>,

    /// Read records where manifests have a group's first and last time only roughly (shown with ~)
    #[arg(long)]
    exact: bool,

    /// Count failures beside records: those with the same failure_key are one failure that was dead-lettered more than
    /// once. Reads the records; needs 16 bytes of memory and more for each failure
    #[arg(long)]
    distinct: bool,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    disposition: DispositionArgs,
    #[command(flatten)]
    store: ArchiveArgs,
}

pub async fn run(args: Args) -> Result<u8> {
    let filter = args.filter.filter()?;
    let catalog = Catalog::open(args.store.read().await?).await?;
    let partitions = catalog.partitions(&filter).await?;
    let mut summary = Summary::new(args.by, args.exact, args.distinct, args.disposition);
    let unread = summary.manifests(&catalog, &partitions, &filter).await?;
    summary.past = disposition::past(&catalog, &unread, summary.tells_dispositions()).await?;
    let standing = |p: &PartitionLedger| {
        let g = &p.genesis;
        summary.past.discards.of(&g.topic, g.generation, g.partition).records()
    };
    summary.discarded = partitions.iter().map(standing).sum();
    summary.records(&catalog, unread, &filter).await?;
    let mut out = Out::new();
    match args.output.output {
        Output::Table => summary.print(&mut out)?,
        Output::Json => out.line(&text::escaped(&summary.document().to_string()))?,
        Output::Jsonl => {
            let mut lines = Documents::new(false);
            for (key, group) in summary.sorted() {
                let document = summary.group(key, group);
                lines.document(&super::record::line(&document), &mut out)?;
            }
        }
    }
    out.flush()?;
    if summary.total.records == 0 && args.output.output == Output::Table {
        tell_none(&catalog, &filter).await?;
    }
    Ok(0)
}

/// Records of one group.
#[derive(Debug, Clone, Copy, Default)]
struct Group {
    records: u64,
    first: Option<i64>,
    last: Option<i64>,
    /// These times are those of data objects that hold other groups too.
    rough: bool,
}

impl Group {
    fn add(&mut self, records: u64, first: i64, last: i64) {
        self.records += records;
        for ms in [first, last].into_iter().filter(|ms| has_time(*ms)) {
            self.first = Some(self.first.map_or(ms, |f| f.min(ms)));
            self.last = Some(self.last.map_or(ms, |l| l.max(ms)));
        }
    }
}

#[derive(Default)]
struct Summary {
    by: Vec<Field>,
    exact: bool,
    groups: HashMap<Vec<Cell>, Group>,
    /// The failures of each group and of all, if they are counted.
    failures: Option<(HashMap<Vec<Cell>, Failures>, Failures)>,
    total: Group,
    partitions: usize,
    cuts: u64,
    objects_counted: u64,
    objects_read: u64,
    bytes: u64,
    /// Offsets in gaps of this kind.
    lost: u64,
    expired: u64,
    compacted: u64,
    unknown: u64,
    /// Records whose originals were read again.
    refetched: u64,
    /// Of cuts that have any.
    originals: HashMap<Place, Known>,
    wanted: DispositionArgs,
    past: Past,
    /// Records of the partitions, whether they match or not.
    discarded: u64,
}

/// Their keys.
type Failures = HashSet<[u8; 16]>;

/// Of a cut: topic, partition, generation, start.
type Place = (String, i32, u32, i64);

fn place(m: &Manifest) -> Place {
    (m.topic.clone(), m.partition, m.generation, m.from)
}

impl Summary {
    fn new(mut by: Vec<Field>, exact: bool, distinct: bool, wanted: DispositionArgs) -> Self {
        let all = std::mem::take(&mut by);
        for field in all {
            if !by.contains(&field) {
                by.push(field);
            }
        }
        Self { by, exact, failures: distinct.then(Default::default), wanted, ..Self::default() }
    }

    /// Whether it is asked what became of each record.
    fn tells_dispositions(&self) -> bool {
        self.wanted.is_given() || self.by.contains(&Field::Disposition)
    }

    /// Distinct failures of a group, if they are counted.
    fn failures_of(&self, key: &[Cell]) -> Option<usize> {
        self.failures.as_ref().map(|(groups, _)| groups.get(key).map_or(0, HashSet::len))
    }

    /// Counts what manifests tell; returns what has to be read.
    async fn manifests(
        &mut self,
        catalog: &Catalog,
        partitions: &[PartitionLedger],
        filter: &Filter,
    ) -> Result<Vec<Selected>> {
        let mut unread = Vec::new();
        self.partitions = partitions.len();
        let (mut index, dialects) = (Index::new(catalog.store().clone()), Dialects::builtin());
        for partition in partitions {
            for manifest in catalog.manifests(partition, filter).await? {
                self.gaps(&manifest, filter);
                if !filter.may_match_manifest(&manifest) {
                    continue;
                }
                self.cuts += 1;
                if manifest.objects.iter().any(|o| may_lack(o, &dialects)) {
                    let known = index.of(&manifest).await?;
                    if !known.sidecars.is_empty() {
                        self.originals.insert(place(&manifest), known);
                    }
                }
                let mut objects = Vec::new();
                for object in &manifest.objects {
                    if !self.count(&manifest, object, filter) {
                        objects.push(object.clone());
                    }
                }
                if !objects.is_empty() {
                    unread.push(Selected { manifest: Arc::new(manifest), objects });
                }
            }
        }
        Ok(unread)
    }

    /// Whether the manifest was enough for this object.
    fn count(&mut self, m: &Manifest, o: &DataObject, filter: &Filter) -> bool {
        if !filter.may_match_object(o) {
            return true;
        }
        let Some(counts) = filter.counted(o) else { return false };
        let mut groups: HashMap<Vec<Cell>, u64> = HashMap::new();
        for c in counts {
            let Some(key) = self.by.iter().map(|field| field.counted(m, o, c)).collect::<Option<Vec<_>>>() else {
                return false;
            };
            *groups.entry(key).or_default() += c.rows;
        }
        let (min, max) = (o.min_timestamp_ms.unwrap_or(-1), o.max_timestamp_ms.unwrap_or(-1));
        // One group that is the whole object has the object's times, if all its records have one.
        let rough = groups.values().any(|rows| *rows != o.rows) || has_time(min) != has_time(max);
        if rough && self.exact || self.failures.is_some() || self.wanted.is_given() {
            return false;
        }
        for (key, rows) in groups {
            let group = self.groups.entry(key).or_default();
            group.add(rows, min, max);
            group.rough |= rough;
            self.total.add(rows, min, max);
            self.total.rough |= rough;
        }
        let originals = self.originals.get(&place(m)).into_iter().flat_map(|known| &known.sidecars);
        let refetched = originals.filter(|s| s.doc.data_object == o.key).map(|s| s.doc.refetched_rows());
        self.refetched += refetched.sum::<u64>();
        self.objects_counted += 1;
        self.bytes += o.size;
        true
    }

    async fn records(&mut self, catalog: &Catalog, unread: Vec<Selected>, filter: &Filter) -> Result<()> {
        let mut progress = Read::default();
        progress.start(&unread);
        let sizes: Vec<(u64, u64)> = unread.iter().map(|s| (s.objects.len() as u64, s.size())).collect();
        let mut cuts = catalog.cuts(unread, filter, Reading::LIST);
        for (objects, size) in sizes {
            let Some(cut) = cuts.next().await? else { break };
            let m = cut.manifest();
            let known = self.originals.get(&place(m));
            let past = self.past.of(&m.topic, m.generation, m.partition);
            for r in cut.iter() {
                let disposition = past.disposition(r.id.offset);
                if !self.wanted.matches(&disposition) {
                    continue;
                }
                self.refetched += u64::from(known.and_then(|k| k.of(r.id.offset)) == Some(true));
                let key: Vec<Cell> = self.by.iter().map(|field| field.of(&r, &disposition)).collect();
                let ms = r.raw.timestamp_ms;
                if let Some((groups, all)) = &mut self.failures {
                    groups.entry(key.clone()).or_default().insert(r.decoded.failure_key);
                    all.insert(r.decoded.failure_key);
                }
                self.groups.entry(key).or_default().add(1, ms, ms);
                self.total.add(1, ms, ms);
            }
            self.objects_read += objects;
            self.bytes += size;
            progress.cut(size);
        }
        drop(progress);
        tell_unjudged(cuts.unjudged());
        Ok(())
    }

    fn gaps(&mut self, m: &Manifest, filter: &Filter) {
        let d = filter.doc();
        for gap in &m.gaps {
            let from = gap.from.max(d.offset_from.unwrap_or(0));
            let to = gap.to.min(d.offset_to.unwrap_or(i64::MAX));
            let offsets = u64::try_from(to - from).unwrap_or(0);
            match gap.kind {
                GapKind::Lost => self.lost += offsets,
                GapKind::Expired => self.expired += offsets,
                GapKind::Compacted => self.compacted += offsets,
                GapKind::Unknown => self.unknown += offsets,
            }
        }
    }

    /// Largest first; in order where the columns have one of their own.
    fn sorted(&self) -> Vec<(&Vec<Cell>, &Group)> {
        let mut sorted: Vec<_> = self.groups.iter().collect();
        let in_order = self.by.iter().any(|f| matches!(f, Field::Date | Field::Partition));
        let count = |group: &Group| if in_order { 0 } else { group.records };
        sorted.sort_by(|a, b| count(b.1).cmp(&count(a.1)).then_with(|| a.0.cmp(b.0)));
        sorted
    }

    fn group(&self, key: &[Cell], group: &Group) -> Map<String, Value> {
        let mut document: Map<_, _> =
            self.by.iter().zip(key).map(|(field, cell)| (field.name().to_owned(), cell.json())).collect();
        document.insert("records".into(), group.records.into());
        if let Some(failures) = self.failures_of(key) {
            document.insert("failures".into(), failures.into());
        }
        document.insert("first".into(), group.first.and_then(text::rfc3339_ms).into());
        document.insert("last".into(), group.last.and_then(text::rfc3339_ms).into());
        document.insert("times_are_exact".into(), (!group.rough).into());
        document
    }

    fn document(&self) -> Value {
        let groups: Vec<_> = self.sorted().into_iter().map(|(key, group)| self.group(key, group)).collect();
        let mut document = json!({
            "records": self.total.records,
            "first": self.total.first.and_then(text::rfc3339_ms),
            "last": self.total.last.and_then(text::rfc3339_ms),
            "partitions": self.partitions,
            "cuts": self.cuts,
            "bytes_stored": self.bytes,
            "refetched": self.refetched,
            "discarded_in_partitions": self.discarded,
            "offsets_lost": self.lost,
            "offsets_expired": self.expired,
            "offsets_compacted": self.compacted,
            "offsets_unknown": self.unknown,
            "objects_counted_from_manifests": self.objects_counted,
            "objects_read": self.objects_read,
            "times_are_exact": !self.total.rough,
            "groups": groups,
        });
        if let Some((_, all)) = &self.failures {
            document["failures"] = all.len().into();
        }
        document
    }

    fn print(&self, out: &mut Out) -> Result<()> {
        let mut columns: Vec<Column> = self
            .by
            .iter()
            .map(|f| match f {
                _ if f.is_number() => Column::number(f.title()),
                Field::ErrorMessage | Field::ErrorClass => Column::wide(f.title()),
                _ => Column::new(f.title()),
            })
            .collect();
        columns.push(Column::number("RECORDS"));
        columns.extend(self.failures.is_some().then(|| Column::number("FAILURES")));
        columns.extend([Column::whole("FIRST"), Column::whole("LAST")]);
        let mut table = Table::new(columns);
        let time = |ms: Option<i64>| text::time(ms.unwrap_or(-1));
        for (key, group) in self.sorted() {
            let mut cells: Vec<String> = key.iter().map(Cell::shown).collect();
            let about = |ms: Option<i64>| format!("{}{}", if group.rough && ms.is_some() { "~" } else { "" }, time(ms));
            cells.push(group.records.to_string());
            cells.extend(self.failures_of(key).map(|n| n.to_string()));
            cells.extend([about(group.first), about(group.last)]);
            table.row(cells, out)?;
        }
        table.finish(out)?;
        if self.total.records > 0 {
            out.line(&format!(
                "\n{} from {} to {} in {} of {}, {} stored",
                text::count(self.total.records, "record"),
                time(self.total.first),
                time(self.total.last),
                text::count(self.cuts, "cut"),
                text::count(self.partitions as u64, "partition"),
                human_bytes(self.bytes)
            ))?;
            if let Some((_, all)) = &self.failures {
                out.line(&format!("{}, by failure_key", text::count(all.len() as u64, "failure")))?;
            }
            let how = match (self.objects_counted, self.objects_read) {
                (_, 0) => "counted from manifests".to_owned(),
                (0, _) => "counted from the records".to_owned(),
                (a, b) => format!("{a} data objects counted from manifests, {b} read"),
            };
            let rough = "; ~ a time of the data object, not of the group: --exact has the group's own";
            out.line(&format!("{how}{}", if self.total.rough { rough } else { "" }))?;
        }
        if self.refetched > 0 {
            out.line(&format!("of {} the originals were read again", text::count(self.refetched, "record")))?;
        }
        if self.discarded > 0 && !self.tells_dispositions() {
            out.line(&format!(
                "{} of these partitions discarded (--by disposition tells which)",
                text::count(self.discarded, "record")
            ))?;
        }
        if let Some(told) = loss_words(self.lost + self.expired, self.unknown) {
            out.line(&told)?;
        }
        if self.compacted > 0 {
            out.line(&GapKind::Compacted.words(&format!("{} offsets", self.compacted)))?;
        }
        Ok(())
    }
}
