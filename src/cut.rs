//! When to cut, and what a cut consists of.
//!
//! Owns the cut policy, the intent that fixes the data objects and the encoding of one of them; which there are is in
//! [`group`](mod@group). Pure: the archive loop brings clock, records and threads. Invariant: which objects there are, which rows
//! each has, and its raw columns are functions of the offsets and of the intent.

mod group;

pub use group::{Group, group};

use crate::dialect::Dialects;
use crate::error::{Error, Result};
use crate::format::{Encoder, FileContext, Format, Projection, SCHEMA_VERSION};
use crate::layout;
use crate::ledger::{self, Counts, DataObject, Gap, Genesis, Intent, IntentObject, LEDGER_VERSION};
use crate::record::{Decoded, RawBatch, RawRecord};
use crate::routing::Routing;
use crate::topics::TopicSettings;
use bytes::Bytes;
use roaring::RoaringTreemap;
use std::ops::ControlFlow;
use std::time::Duration;

/// The program's version, as it stands in ledger and data objects.
pub const PROGRAM_VERSION: &str = env!("CARGO_PKG_VERSION");

/// A batch is cut when the first of these is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutPolicy {
    pub max_records: usize,
    /// Bytes of keys, values and headers.
    pub max_bytes: usize,
    pub max_age: Duration,
}

impl Default for CutPolicy {
    /// Design: Kafka is the durable buffer, so a cut may wait for good file sizes.
    fn default() -> Self {
        Self { max_records: 1_000_000, max_bytes: 128 << 20, max_age: Duration::from_secs(15 * 60) }
    }
}

impl CutPolicy {
    /// Whether a batch of this size, begun this long ago, is to be cut. An empty batch never is.
    pub fn due(&self, records: usize, bytes: usize, age: Duration) -> bool {
        records > 0 && (records >= self.max_records || bytes >= self.max_bytes || age >= self.max_age)
    }

    /// The age at which so many partitions stay below so many data objects a day, where each cut makes
    /// `objects_per_cut`: never shorter than the policy's, at most a day unless the policy's is longer.
    pub fn age_for(&self, files_per_day: u64, partitions: u64, objects_per_cut: u64) -> Duration {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        let ms = DAY.as_millis().saturating_mul(partitions.into()).saturating_mul(objects_per_cut.into());
        // At the quotient itself they would be as many, not fewer.
        let ms = (ms / u128::from(files_per_day.max(1))).saturating_add(1);
        let needed = u64::try_from(ms).map_or(DAY, Duration::from_millis);
        self.max_age.max(needed.min(DAY))
    }
}

/// How records are decoded and routed: what contents depend on beside offsets.
pub struct Tables {
    pub dialects: Dialects,
    pub routing: Routing,
    pub dialects_digest: String,
    pub routing_digest: String,
}

impl Tables {
    pub fn new(dialects: Dialects, routing: Routing) -> Self {
        let (dialects_digest, routing_digest) = (dialects.digest(), routing.digest());
        Self { dialects, routing, dialects_digest, routing_digest }
    }

    /// The tables that come with the program.
    pub fn builtin() -> Self {
        Self::with_topics(&[])
    }

    /// The same, with the pipelines that topics have of their own.
    pub fn with_topics(topics: &[TopicSettings]) -> Self {
        Self::with_routing(|routing| routing.with_topics(topics))
    }

    /// The same, with what the configuration changes of the dialects' routing.
    pub fn with_routing(change: impl FnOnce(Routing) -> Routing) -> Self {
        Self::of(Dialects::builtin(), change)
    }

    /// These dialects, with what the configuration changes of their routing.
    pub fn of(dialects: Dialects, change: impl FnOnce(Routing) -> Routing) -> Self {
        let routing = change(Routing::for_dialects(&dialects));
        Self::new(dialects, routing)
    }
}

/// What a cut is of.
#[derive(Debug, Clone, Copy)]
pub struct CutRange {
    pub from: i64,
    /// Exclusive.
    pub to: i64,
    /// Microseconds since 1970.
    pub cut_at_us: i64,
}

/// The intent that fixes a cut of these groups.
pub fn intent(
    genesis: &Genesis,
    range: CutRange,
    batch: &RawBatch,
    groups: &[Group],
    gaps: Vec<Gap>,
    format: Format,
    tables: &Tables,
) -> Result<Intent> {
    let mut scratch = Vec::new();
    let mut objects = Vec::with_capacity(groups.len());
    for group in groups {
        let (mut offsets, mut checksums) = (RoaringTreemap::new(), Vec::with_capacity(group.rows.len()));
        for &row in &group.rows {
            offsets.insert(batch.offset(row as usize) as u64);
            checksums.push(batch.checksum(row as usize, &mut scratch));
        }
        let key = layout::data_key(
            &genesis.topic,
            genesis.partition,
            genesis.generation,
            range.from,
            range.to,
            &group.dt,
            group.pipeline.as_deref(),
            format.extension(),
        );
        objects.push(IntentObject {
            key,
            dt: group.dt.clone(),
            pipeline: group.pipeline.clone(),
            rows: group.rows.len() as u64,
            offsets: ledger::encode_offsets(&offsets)?,
            checksums: ledger::encode_checksums(&checksums),
            shared: group.shared.clone(),
        });
    }
    Ok(Intent {
        version: LEDGER_VERSION,
        archive_id: genesis.archive_id.clone(),
        topic: genesis.topic.clone(),
        partition: genesis.partition,
        generation: genesis.generation,
        topic_id: genesis.topic_id.clone(),
        from: range.from,
        to: range.to,
        cut_at_us: range.cut_at_us,
        schema_version: SCHEMA_VERSION,
        extension: format.extension().to_owned(),
        dialects_digest: tables.dialects_digest.clone(),
        routing_digest: tables.routing_digest.clone(),
        leader_epoch: batch.last().map_or(-1, |r| r.leader_epoch),
        program_version: PROGRAM_VERSION.to_owned(),
        objects,
        gaps,
    })
}

/// A data object ready to be created.
pub struct Encoded {
    pub bytes: Bytes,
    pub object: DataObject,
    pub tally: Tally,
}

/// How many records are of which dialect, and of how many of them something could not be decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally(Vec<(String, u64, u64)>);

impl Tally {
    pub fn add(&mut self, dialect: &str, problem: bool) {
        let at = self.0.iter().position(|(name, ..)| name == dialect).unwrap_or_else(|| {
            self.0.push((dialect.to_owned(), 0, 0));
            self.0.len() - 1
        });
        self.0[at].1 += 1;
        self.0[at].2 += u64::from(problem);
    }

    /// Dialect, records, records with a problem.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        self.0.iter().map(|(dialect, records, problems)| (dialect.as_str(), *records, *problems))
    }
}

/// Encodes the rows of one object. `rows` must be those that `object` names, less what could not be read again.
pub fn encode<'b>(
    intent: &'b Intent,
    object: &IntentObject,
    cluster_id: Option<&str>,
    rows: impl Iterator<Item = RawRecord<'b>>,
    format: Format,
    tables: &'b Tables,
    intent_key: &str,
) -> Result<Encoded> {
    encode_from(&[], intent, object, cluster_id, rows, format, tables, intent_key)
}

/// As [`encode`], of rows whose bytes are in `arena` for the most part: they are not copied from there.
#[allow(clippy::too_many_arguments)]
pub fn encode_from<'b>(
    arena: &[Bytes],
    intent: &'b Intent,
    object: &IntentObject,
    cluster_id: Option<&str>,
    rows: impl Iterator<Item = RawRecord<'b>>,
    format: Format,
    tables: &'b Tables,
    intent_key: &str,
) -> Result<Encoded> {
    let context = FileContext {
        cluster_id,
        topic: &intent.topic,
        partition: intent.partition,
        generation: intent.generation,
        archived_at_us: intent.cut_at_us,
        intent_key,
        program_version: PROGRAM_VERSION,
    };
    let mut encoder = Encoder::of_rows(format, &context, object.rows, arena)?;
    let (mut stats, mut tally) = (Stats::default(), Tally::default());
    let pipelines = object.pipelines()?;
    let mut decoder = tables.dialects.of_topic(&intent.topic);
    for raw in rows {
        let decoded = decoder.decode(intent.partition, &raw);
        // Fixed by the intent: another version's routing, or another configuration's, does not move a row.
        let pipeline = pipelines.of(raw.offset).ok_or_else(|| {
            Error::internal(format!("offset {} is none of {}. Please report this", raw.offset, object.key))
        })?;
        encoder.push(&raw, &decoded, pipeline)?;
        stats.add(raw.offset, raw.timestamp_ms, &decoded);
        tally.add(&decoded.dialect, !decoded.problems.is_empty());
    }
    let bytes = Bytes::from(encoder.finish()?);
    let object = stats.object(object, bytes.len() as u64, ledger::sha256_hex(&bytes));
    Ok(Encoded { bytes, object, tally })
}

/// What the manifest says of an object that was found in the store, and the offsets it has.
///
/// # Errors
/// [`crate::Kind::Corrupt`] if it cannot be read, or holds rows that the intent does not name for it.
pub fn describe(object: &IntentObject, bytes: Bytes) -> Result<(DataObject, RoaringTreemap)> {
    let at = |e: Error| e.context(format!("data object {}", object.key));
    let format = Format::of_key(&object.key)
        .ok_or_else(|| Error::corrupt(format!("data object {}: unknown extension", object.key)))?;
    let (size, sha256) = (bytes.len() as u64, ledger::sha256_hex(&bytes));
    let (mut stats, mut offsets) = (Stats::default(), RoaringTreemap::new());
    crate::format::read(format, bytes, Projection::NoPayload, &mut |row| {
        if !offsets.insert(row.raw.offset as u64) {
            return Err(Error::corrupt(format!("offset {} stands in it twice", row.raw.offset)));
        }
        stats.add(row.raw.offset, row.raw.timestamp_ms, &row.decoded);
        Ok(ControlFlow::Continue(()))
    })
    .map_err(at)?;
    if !offsets.is_subset(&ledger::decode_offsets(&object.offsets)?) {
        return Err(at(Error::corrupt(
            "it has rows that its intent does not name: something else wrote under this name. Stop other writers of \
             this bucket and run `dlq-archiver verify`",
        )));
    }
    Ok((stats.object(object, size, sha256), offsets))
}

/// Different counts a manifest keeps apart in one object.
const MAX_COUNTS: usize = 200;
/// Longest error class in a manifest, in bytes.
const MAX_CLASS: usize = 200;

#[derive(Default)]
struct Stats {
    rows: u64,
    offsets: Option<(i64, i64)>,
    timestamps: Option<(i64, i64)>,
    counts: Vec<Counts>,
    last: usize,
}

impl Stats {
    fn add(&mut self, offset: i64, timestamp_ms: i64, decoded: &Decoded<'_>) {
        let widen = |range: &mut Option<(i64, i64)>, x: i64| {
            *range = Some(range.map_or((x, x), |(min, max)| (min.min(x), max.max(x))));
        };
        self.rows += 1;
        widen(&mut self.offsets, offset);
        widen(&mut self.timestamps, timestamp_ms);
        let class = decoded.error_class.as_deref().map(|c| &c[..c.floor_char_boundary(MAX_CLASS)]);
        let same = |c: &Counts| {
            c.dialect == decoded.dialect && c.error_class.as_deref() == class && c.error_code == decoded.error_code
        };
        // Failures come in runs.
        let found = if self.counts.get(self.last).is_some_and(same) {
            Some(self.last)
        } else {
            self.counts.iter().position(same)
        };
        self.last = match found {
            Some(i) => i,
            None if self.counts.len() < MAX_COUNTS => {
                self.counts.push(Counts {
                    dialect: decoded.dialect.clone().into_owned(),
                    error_class: class.map(str::to_owned),
                    error_code: decoded.error_code,
                    rows: 0,
                });
                self.counts.len() - 1
            }
            None => {
                if self.counts.len() == MAX_COUNTS {
                    self.counts.push(Counts { dialect: "other".into(), error_class: None, error_code: None, rows: 0 });
                }
                MAX_COUNTS
            }
        };
        self.counts[self.last].rows += 1;
    }

    fn object(mut self, object: &IntentObject, size: u64, sha256: String) -> DataObject {
        self.counts.sort_unstable();
        DataObject {
            key: object.key.clone(),
            dt: object.dt.clone(),
            pipeline: object.pipeline.clone(),
            size,
            rows: self.rows,
            sha256,
            min_offset: self.offsets.map(|o| o.0),
            max_offset: self.offsets.map(|o| o.1),
            min_timestamp_ms: self.timestamps.map(|t| t.0),
            max_timestamp_ms: self.timestamps.map(|t| t.1),
            counts: self.counts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_by_records_bytes_or_age_but_never_empty() {
        let p = CutPolicy { max_records: 10, max_bytes: 100, max_age: Duration::from_secs(5) };
        assert!(!p.due(0, 1000, Duration::from_secs(9)));
        assert!(!p.due(9, 99, Duration::from_secs(4)));
        assert!(p.due(10, 0, Duration::ZERO) && p.due(1, 100, Duration::ZERO) && p.due(1, 1, Duration::from_secs(5)));
    }

    #[test]
    fn files_per_day_lengthen_the_age_up_to_a_day_and_never_shorten_it() {
        let (minute, day) = (60, 24 * 60 * 60);
        let policy = |age| CutPolicy { max_age: Duration::from_secs(age), ..CutPolicy::default() };
        // 10 partitions of 3 pipelines each, every 15 minutes: 2,880.
        assert_eq!(policy(15 * minute).age_for(10_000, 10, 3), Duration::from_secs(15 * minute));
        let age = policy(15 * minute).age_for(1_000, 10, 3);
        assert_eq!(age.as_secs(), day * 30 / 1_000);
        for (files, partitions, objects) in [(1_000, 10, 3), (2_880, 10, 3), (31, 10, 3), (86_400, 7, 1)] {
            let age = policy(1).age_for(files, partitions, objects);
            let made = (partitions * objects) as f64 * day as f64 / age.as_secs_f64();
            assert!(made < files as f64 && made > files as f64 * 0.999, "{files}: {made}");
        }
        assert_eq!(policy(minute).age_for(1, 500, 20), Duration::from_secs(day));
        assert_eq!(policy(2 * day).age_for(1, 500, 20), Duration::from_secs(2 * day));
        assert_eq!(policy(minute).age_for(0, u64::MAX, u64::MAX), Duration::from_secs(day));
        assert_eq!(policy(minute).age_for(10, 0, 0), Duration::from_secs(minute));
    }

    #[test]
    fn counts_stay_bounded() {
        let mut stats = Stats::default();
        for i in 0..1000 {
            let class = Some(format!("E{i}").into());
            stats.add(i, 0, &Decoded { dialect: "d".into(), error_class: class, ..Decoded::default() });
        }
        assert_eq!(stats.counts.len(), MAX_COUNTS + 1);
        assert_eq!(stats.counts.iter().map(|c| c.rows).sum::<u64>(), 1000);
    }
}
