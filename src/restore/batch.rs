//! Records that are sent together. Pure.

use super::rules::{Made, Place};
use super::values::value_sha256;
use super::why::Skip;
use crate::format::restored::Correction;
use crate::record::{RawBatch, RecordId};

/// A batch is full when the first of these is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub records: usize,
    /// Keys, values and headers.
    pub bytes: usize,
}

/// Selected records `start..end` of a plan; those of them that are not skipped, as they will be in Kafka.
#[derive(Debug)]
pub struct Batch {
    pub start: u64,
    /// Exclusive.
    pub end: u64,
    pub raw: RawBatch,
    /// Of each record in `raw`.
    pub rows: Vec<Row>,
    /// Records that were asked for and are not sent.
    pub skipped: Vec<(RecordId, Skip)>,
}

/// What is known of a record in a batch besides its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub id: RecordId,
    pub place: Place,
    pub failure_key: [u8; 16],
    /// See [`Made`].
    pub attempt: u32,
    /// Of one with a corrected value.
    pub correction: Option<Correction>,
}

/// A batch is full with this many of them, too.
const SKIPPED: usize = 50_000;

impl Batch {
    fn at(start: u64) -> Self {
        Self { start, end: start, raw: RawBatch::new(), rows: Vec::new(), skipped: Vec::new() }
    }
}

/// Makes batches of a plan's records, which it gets in order.
pub struct Batcher {
    limits: Limits,
    open: Batch,
}

impl Batcher {
    /// `start`: number of the first record that will be pushed.
    pub fn new(limits: Limits, start: u64) -> Self {
        Self { limits, open: Batch::at(start) }
    }

    /// Takes the next record as it was judged; gives a batch when one is full.
    pub fn push(
        &mut self,
        id: &RecordId,
        failure_key: [u8; 16],
        judged: Result<(Place, Made<'_>), Skip>,
    ) -> Option<Batch> {
        match judged {
            Ok((place, Made { raw, key, value, headers, attempt, archived_value })) => {
                let correction = archived_value.map(|archived| Correction {
                    archived_sha256: value_sha256(archived.as_deref()),
                    restored_sha256: value_sha256(value.as_deref()),
                });
                self.open.raw.push(
                    raw.offset,
                    raw.timestamp_ms,
                    raw.timestamp_type,
                    raw.leader_epoch,
                    key.as_deref(),
                    value.as_deref(),
                    headers.into_iter(),
                );
                self.open.rows.push(Row { id: id.clone(), place, failure_key, attempt, correction });
            }
            Err(skip) if skip.why.is_listed() => self.open.skipped.push((id.clone(), skip)),
            Err(_) => {}
        }
        self.open.end += 1;
        let full = self.open.rows.len() >= self.limits.records
            || self.open.raw.payload_len() >= self.limits.bytes
            || self.open.skipped.len() >= SKIPPED;
        full.then(|| self.take())
    }

    /// What is left, if anything.
    pub fn finish(mut self) -> Option<Batch> {
        (self.open.end > self.open.start).then(|| self.take())
    }

    fn take(&mut self) -> Batch {
        let next = Batch::at(self.open.end);
        std::mem::replace(&mut self.open, next)
    }
}
