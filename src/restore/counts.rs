//! What a restore comes to, as a dry run shows it. Pure.
//!
//! Owns the counts over a plan's records. Decides nothing: see [`super::rules`].

use super::reach::KNATIVE;
use super::rules::Verdict;
use super::why::{Skip, Why};
use crate::filter::Unjudged;
use crate::format::ArchivedRecord;
use crate::format::refetched::Original;
use crate::record::{Decoded, PayloadState, RecordId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What is to be restored, in a group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    pub target: String,
    pub pipeline: String,
    pub error_class: Option<String>,
}

/// Records that are skipped for one reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skipped {
    pub records: u64,
    /// Of the first of them.
    pub ids: Vec<String>,
}

/// Different groups that are kept apart: an error class can hold anything.
const MAX_GROUPS: usize = 5000;
/// Ids that are kept for each reason.
const MAX_IDS: usize = 100;
/// Failures that are told apart, 24 bytes each.
const MAX_FAILURES: usize = 2_000_000;

/// Records that are one failure, dead-lettered more than once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Repeats {
    pub records: u64,
    pub failures: u64,
}

/// What a plan comes to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    pub selected: u64,
    pub to_restore: u64,
    pub groups: BTreeMap<Group, u64>,
    pub targets: BTreeSet<String>,
    pub skipped: BTreeMap<Skip, Skipped>,
    /// Of those to restore: their original headers and timestamp were not copied into the dead letter.
    pub bare: u64,
    /// Of `bare`, and of those that are skipped because nothing of the original was copied: the original was looked for in
    /// its topic, and was not there.
    pub looked_for: u64,
    /// Of those to restore: sent as their original, which was read again.
    pub refetched: u64,
    /// Of those to restore: null values.
    pub tombstones: u64,
    /// Of those to restore: failures that were restored before, by how often they are with this time.
    pub again: BTreeMap<u32, u64>,
    /// Of those to restore that are events of VAST: by source, the functions that failed on them.
    pub events: BTreeMap<String, BTreeSet<String>>,
    /// Of those to restore.
    pub repeats: Repeats,
    /// Record ids that were asked for, and not selected.
    pub not_found: BTreeSet<RecordId>,
    /// Of those to restore: with a corrected value.
    pub corrected: u64,
    /// Corrected values of records that are skipped.
    pub unsent_values: u64,
    /// Records that there are corrected values for, and that are not selected.
    pub unused_values: BTreeSet<RecordId>,
    /// Records that could not be judged, and so are not selected.
    pub unjudged: Option<Unjudged>,
    /// Targets of which it is not known how long they keep records.
    pub untold: BTreeSet<String>,
    /// How often each failure is to be restored, by half of its key.
    failures: HashMap<u64, u32>,
}

impl Counts {
    /// `asked`: the record ids that were named.
    pub fn new(asked: Option<&BTreeSet<RecordId>>) -> Self {
        Self { not_found: asked.cloned().unwrap_or_default(), ..Self::default() }
    }

    /// `missing`: the record's original was looked for, and was not there.
    pub fn add(
        &mut self,
        record: &ArchivedRecord<'_>,
        original: Option<&Original<'_>>,
        missing: bool,
        verdict: &Verdict,
    ) {
        self.selected += 1;
        self.not_found.remove(&record.id);
        let has_value = self.unused_values.remove(&record.id);
        match verdict {
            Verdict::Send { place, attempt, corrected, tombstone } => {
                self.corrected += u64::from(*corrected);
                self.to_restore += 1;
                if *attempt > 1 {
                    *self.again.entry(*attempt).or_default() += 1;
                }
                self.refetched += u64::from(original.is_some());
                let bare = original.is_none() && record.decoded.payload_state == PayloadState::CopiedBare;
                self.bare += u64::from(bare);
                self.looked_for += u64::from(bare && missing);
                self.tombstones += u64::from(*tombstone);
                self.count_failure(&record.decoded.failure_key);
                self.count_event(&record.decoded);
                if !self.targets.contains(&place.topic) {
                    self.targets.insert(place.topic.clone());
                }
                let mut group = Group {
                    target: place.topic.clone(),
                    pipeline: record.pipeline.to_owned(),
                    error_class: record.decoded.error_class.as_deref().map(str::to_owned),
                };
                if self.groups.len() >= MAX_GROUPS && !self.groups.contains_key(&group) {
                    group = Group { error_class: Some("(others)".into()), pipeline: "(others)".into(), ..group };
                }
                *self.groups.entry(group).or_default() += 1;
            }
            Verdict::Skip(skip) => {
                self.looked_for += u64::from(missing && skip.why == Why::NotCopied);
                let key = match self.skipped.len() {
                    0..MAX_GROUPS => skip.clone(),
                    _ => Skip { target: None, restore_id: None, ..*skip },
                };
                self.unsent_values += u64::from(has_value);
                let skipped = self.skipped.entry(key).or_default();
                skipped.records += 1;
                if skipped.ids.len() < MAX_IDS {
                    skipped.ids.push(record.id.to_string());
                }
            }
        }
    }

    fn count_event(&mut self, d: &Decoded<'_>) {
        let (Some(source), Some(function)) = (d.event_source.as_deref(), d.error_destination.as_deref()) else {
            return;
        };
        if d.dialect != KNATIVE || self.events.len() >= MAX_GROUPS && !self.events.contains_key(source) {
            return;
        }
        let functions = match self.events.get_mut(source) {
            Some(functions) => functions,
            None => self.events.entry(source.to_owned()).or_default(),
        };
        if functions.len() < MAX_GROUPS && !functions.contains(function) {
            functions.insert(function.to_owned());
        }
    }

    fn count_failure(&mut self, key: &[u8; 16]) {
        let half = u64::from_le_bytes(std::array::from_fn(|i| key[i]));
        if self.failures.len() >= MAX_FAILURES && !self.failures.contains_key(&half) {
            return;
        }
        let times = self.failures.entry(half).or_default();
        *times = times.saturating_add(1);
        match times {
            1 => {}
            2 => {
                self.repeats.failures += 1;
                self.repeats.records += 2;
            }
            _ => self.repeats.records += 1,
        }
    }

    pub fn by_reason(&self) -> BTreeMap<Why, u64> {
        let mut reasons = BTreeMap::new();
        for (skip, skipped) in &self.skipped {
            *reasons.entry(skip.why).or_default() += skipped.records;
        }
        reasons
    }

    /// Whether something was asked for and is not done, which the exit code has to say.
    pub fn has_failures(&self) -> bool {
        !self.not_found.is_empty()
            || !self.unused_values.is_empty()
            || self.skipped.keys().any(|skip| skip.why.is_failure())
    }
}
