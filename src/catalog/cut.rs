//! The matching records of one cut, held in memory.
//!
//! Owns their compact form: bytes in arenas, so that a cut of a million small records stays within reach. Invariant:
//! what went in comes out as [`crate::format::read`] gave it, sorted by offset.

use super::{Reading, Selected};
use crate::error::{Error, Result};
use crate::filter::{Filter, Judgement, Unjudged};
use crate::format::{self, ArchivedRecord, Format, Projection};
use crate::ledger::{self, DataObject, Manifest};
use crate::record::{Decoded, Headers, PayloadState, RawBatch, RawRecord, RecordId};
use bytes::Bytes;
use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The matching records of one cut, in order of offsets.
pub struct Cut {
    selected: Selected,
    raw: RawBatch,
    rows: Vec<Row>,
    texts: String,
    unjudged: Option<Unjudged>,
}

/// Everything but raw parts and texts.
struct Row {
    object: u32,
    /// Index into `raw`.
    raw: u32,
    /// Where its texts begin.
    texts: usize,
    /// -1 = null.
    lens: [i32; TEXTS],
    key_size: Option<i32>,
    value_size: Option<i32>,
    archived_at_us: i64,
    failure_key: [u8; 16],
    failed_at_us: Option<i64>,
    error_code: Option<i32>,
    attempts: Option<i32>,
    origin_partition: Option<i32>,
    origin_offset: Option<i64>,
    origin_timestamp_us: Option<i64>,
    event_time_us: Option<i64>,
    payload_state: PayloadState,
    prior_restores: i32,
}

const TEXTS: usize = 17;

/// A record's texts, in the order in which [`Cut::get`] takes them.
/// `pipeline`: where its object does not tell it.
fn texts<'a>(
    r: &'a ArchivedRecord<'_>,
    problems: Option<&'a str>,
    pipeline: Option<&'a str>,
) -> [Option<&'a str>; TEXTS] {
    let d = &r.decoded;
    [
        r.cluster_id,
        pipeline,
        Some(&d.dialect),
        d.error_class.as_deref(),
        d.error_message.as_deref(),
        d.error_stage.as_deref(),
        d.error_component.as_deref(),
        d.error_destination.as_deref(),
        d.error_stacktrace.as_deref(),
        d.origin_topic.as_deref(),
        d.origin_group.as_deref(),
        d.event_id.as_deref(),
        d.event_source.as_deref(),
        d.event_type.as_deref(),
        d.event_subject.as_deref(),
        d.content_type.as_deref(),
        problems,
    ]
}

impl Cut {
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.selected.manifest
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Records of it that could not be judged.
    pub fn unjudged(&self) -> Option<&Unjudged> {
        self.unjudged.as_ref()
    }

    /// Keeps the first `n` records.
    pub(super) fn truncate(&mut self, n: u64) {
        self.rows.truncate(usize::try_from(n).unwrap_or(usize::MAX));
    }

    /// The `i`-th record, as [`crate::format::read`] gives it: without `decoded.hops`.
    ///
    /// # Panics
    /// If `i >= len()`.
    pub fn get(&self, i: usize) -> ArchivedRecord<'_> {
        let row = &self.rows[i];
        let mut at = row.texts;
        let mut lens = row.lens.iter();
        let mut next = || {
            let len = lens.next().copied().filter(|len| *len >= 0)? as usize;
            at += len;
            Some(&self.texts[at - len..at])
        };
        let (cluster_id, pipeline) = (next(), next());
        let mut next = || next().map(Cow::Borrowed);
        let decoded = Decoded {
            dialect: next().unwrap_or_default(),
            failure_key: row.failure_key,
            failed_at_us: row.failed_at_us,
            error_class: next(),
            error_message: next(),
            error_code: row.error_code,
            error_stage: next(),
            error_component: next(),
            error_destination: next(),
            error_stacktrace: next(),
            attempts: row.attempts,
            origin_topic: next(),
            origin_partition: row.origin_partition,
            origin_offset: row.origin_offset,
            origin_timestamp_us: row.origin_timestamp_us,
            origin_group: next(),
            event_id: next(),
            event_source: next(),
            event_type: next(),
            event_subject: next(),
            event_time_us: row.event_time_us,
            content_type: next(),
            payload_state: row.payload_state,
            prior_restores: row.prior_restores,
            problems: next().map_or_else(Vec::new, |all| match all {
                Cow::Borrowed(all) => all.split("; ").map(Cow::Borrowed).collect(),
                Cow::Owned(all) => vec![Cow::Owned(all)],
            }),
            hops: Vec::new(),
        };
        let (m, raw) = (&self.selected.manifest, self.raw.get(row.raw as usize));
        ArchivedRecord {
            id: RecordId {
                topic: m.topic.clone(),
                generation: m.generation,
                partition: m.partition,
                offset: raw.offset,
            },
            cluster_id,
            raw,
            key_size: row.key_size,
            value_size: row.value_size,
            decoded,
            pipeline: self.object(i).pipeline.as_deref().or(pipeline).unwrap_or_default(),
            archived_at_us: row.archived_at_us,
        }
    }

    /// Of the `i`-th record.
    ///
    /// # Panics
    /// If `i >= len()`.
    pub fn offset(&self, i: usize) -> i64 {
        self.raw.get(self.rows[i].raw as usize).offset
    }

    /// Of the `i`-th record.
    ///
    /// # Panics
    /// If `i >= len()`.
    pub fn payload_state(&self, i: usize) -> PayloadState {
        self.rows[i].payload_state
    }

    /// The data object that the `i`-th record is in.
    ///
    /// # Panics
    /// If `i >= len()`.
    pub fn object(&self, i: usize) -> &DataObject {
        &self.selected.objects[self.rows[i].object as usize]
    }

    /// About how many bytes it takes.
    pub fn memory(&self) -> usize {
        self.raw.memory() + self.texts.capacity() + self.rows.capacity() * size_of::<Row>()
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = ArchivedRecord<'_>> {
        (0..self.len()).map(|i| self.get(i))
    }
}

/// Fills a cut object by object.
pub(super) struct Builder(Cut);

impl Builder {
    pub(super) fn new(selected: Selected) -> Self {
        Self(Cut { selected, raw: RawBatch::new(), rows: Vec::new(), texts: String::new(), unjudged: None })
    }

    /// Adds the matching records of the `object`-th object, whose stored bytes are `bytes`.
    pub(super) fn add(&mut self, object: usize, bytes: Bytes, filter: &Filter, reading: Reading) -> Result<()> {
        let Cut { selected, raw, rows, texts: arena, unjudged } = &mut self.0;
        let o = &selected.objects[object];
        let damaged = |what: String| {
            Error::corrupt(format!(
                "data object {} is not what its manifest vouches for: {what}. Restore it from an older version or a copy \
                 of the bucket",
                o.key
            ))
        };
        if bytes.len() as u64 != o.size {
            return Err(damaged(format!("it has {} bytes, not {}", bytes.len(), o.size)));
        }
        if reading.check_sha256 {
            let sha256 = ledger::sha256_hex(&bytes);
            if sha256 != o.sha256 {
                return Err(damaged(format!("its SHA-256 is {sha256}, not {}", o.sha256)));
            }
        }
        let format = Format::of_key(&o.key).ok_or_else(|| {
            Error::corrupt(format!("data object {} has an unknown extension: use the program that wrote it", o.key))
        })?;
        let (mut found, m) = (0, &selected.manifest);
        let needed = if filter.needs_payload() { Projection::All } else { reading.projection };
        let may_match = |group: &format::Group<'_>| filter.may_match_group(m, group);
        let pruned = format::read_groups(format, bytes, needed, &may_match, &mut |mut r| {
            found += 1;
            let here = (r.id.topic.as_str(), r.id.partition, r.id.generation) == (&m.topic, m.partition, m.generation);
            if !here || r.id.offset < m.from || r.id.offset >= m.to {
                return Err(Error::corrupt(format!("record {} is in it", r.id)));
            }
            match filter.judge(&r) {
                Judgement::Yes => {
                    if needed != reading.projection {
                        r.raw = RawRecord { key: None, value: None, headers: Headers::default(), ..r.raw };
                        r.decoded.error_stacktrace = None;
                    }
                    push(object as u32, o, &r, raw, rows, arena);
                }
                Judgement::No => {}
                Judgement::Unjudged(why) => {
                    Unjudged::add(unjudged, Some(Unjudged { records: 1, first: r.id.clone(), why }));
                }
            }
            Ok(ControlFlow::Continue(()))
        })
        .map_err(|e| e.context(format!("data object {}", o.key)))?;
        if found + pruned != o.rows {
            return Err(damaged(format!("it has {} records, not {}", found + pruned, o.rows)));
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Cut> {
        let mut cut = self.0;
        let offset = |r: &Row| cut.raw.get(r.raw as usize).offset;
        cut.rows.sort_by_key(offset);
        if let Some(twice) = cut.rows.windows(2).find(|w| offset(&w[0]) == offset(&w[1])) {
            let m = &cut.selected.manifest;
            return Err(Error::corrupt(format!(
                "record {}/{}/{} is in the archive twice: in {} and in {}",
                m.topic,
                m.partition,
                offset(&twice[0]),
                cut.selected.objects[twice[0].object as usize].key,
                cut.selected.objects[twice[1].object as usize].key
            )));
        }
        Ok(cut)
    }
}

fn push(
    object: u32,
    o: &DataObject,
    r: &ArchivedRecord<'_>,
    raw: &mut RawBatch,
    rows: &mut Vec<Row>,
    arena: &mut String,
) {
    let pipeline = o.pipeline.is_none().then_some(r.pipeline);
    let (d, problems, at) = (&r.decoded, r.decoded.problems_text(), arena.len());
    let lens = texts(r, problems.as_deref(), pipeline).map(|text| {
        arena.push_str(text.unwrap_or_default());
        text.map_or(-1, |t| t.len() as i32)
    });
    rows.push(Row {
        object,
        raw: raw.len() as u32,
        texts: at,
        lens,
        key_size: r.key_size,
        value_size: r.value_size,
        archived_at_us: r.archived_at_us,
        failure_key: d.failure_key,
        failed_at_us: d.failed_at_us,
        error_code: d.error_code,
        attempts: d.attempts,
        origin_partition: d.origin_partition,
        origin_offset: d.origin_offset,
        origin_timestamp_us: d.origin_timestamp_us,
        event_time_us: d.event_time_us,
        payload_state: d.payload_state,
        prior_restores: d.prior_restores,
    });
    raw.push_record(&r.raw);
}
