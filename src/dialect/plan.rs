//! From the names on a record to what is to be read of it, and in which order.
//!
//! Owns the parting of a record's headers into failures, and which header fills which field. Reads no value: that is
//! [`super::decode`]. Invariant: a plan is a function of the header names (and of what key and value hold where a table
//! reads those) and of the tables alone, so that all records with the same names can share one.

use super::index::{Found, Index, Slot, Walk};
use super::table::{Field, Table, Which};

/// What is read of a record.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Oldest first; the last is the newest.
    pub failures: Vec<Failure>,
    /// The event's own fields: table by table, in the order of preference.
    pub event: Vec<(usize, Vec<Read>)>,
    /// The position of the last header that counts restores.
    pub restore_count: Option<usize>,
}

/// One failure.
#[derive(Debug)]
pub(crate) struct Failure {
    pub table: usize,
    /// The table's newest failure, to which the headers belong that are replaced each time.
    pub newest: bool,
    pub reads: Vec<Read>,
    /// Of the hits that hops are made of; none any more in a plan.
    hits: Vec<usize>,
    /// Place among the record's failures: where its last header is.
    position: usize,
}

/// One value, which fills a slot of its table. Those of a field follow each other, the preferred one first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Read {
    pub slot: usize,
    pub position: usize,
}

impl Plan {
    /// `wanted`: fields that are read at all.
    pub fn new(tables: &[Table], index: &Index, walk: &Walk, wanted: impl Fn(Field) -> bool) -> Self {
        let mut failures: Vec<Failure> = Vec::new();
        for (t, found) in walk.found.iter().enumerate() {
            if walk.matches(index, t, &tables[t]) {
                failures.extend(self::failures(t, &tables[t], &index.slots[t], found));
            }
        }
        failures.sort_by_key(|f| f.position);
        let planner = Planner { tables, index, walk };
        let event = planner.event(&failures, &wanted);
        let last = failures.len().saturating_sub(1);
        for (i, failure) in failures.iter_mut().enumerate() {
            // A stack trace is read for the columns only, where it is borrowed.
            let of_newest = |field: Field| i == last || field != Field::ErrorStacktrace;
            failure.reads = planner.failure(failure, |field| of_newest(field) && wanted(field));
            failure.hits = Vec::new();
        }
        Self { failures, event, restore_count: walk.restore_count }
    }
}

/// Splits a table's hits into failures, in header order. A new one begins where a header of the current one comes
/// again, or a second header for the origin's topic, partition or offset.
fn failures(table_index: usize, table: &Table, slots: &[Slot], found: &Found) -> Vec<Failure> {
    let failure =
        |position| Failure { table: table_index, newest: false, reads: Vec::new(), hits: Vec::new(), position };
    let mut failures: Vec<Failure> = Vec::new();
    // Who set a slot or a position field last: (failure's number from 1, header's position).
    let mut slot_seen = vec![0usize; slots.len()];
    let mut field_seen = [(0usize, 0usize); Field::ALL.len()];
    for (i, hit) in found.hits.iter().enumerate() {
        let slot = &slots[hit.slot];
        if !slot.in_hop {
            continue;
        }
        let number = failures.len();
        let (seen_in, seen_at) = field_seen[slot.field as usize];
        let second = slot.field.is_position() && seen_in == number && seen_at != hit.position;
        if number == 0 || slot_seen[hit.slot] == number || second {
            failures.push(failure(0));
        }
        let number = failures.len();
        slot_seen[hit.slot] = number;
        field_seen[slot.field as usize] = (number, hit.position);
        if let Some(failure) = failures.last_mut() {
            failure.hits.push(i);
            failure.position = hit.position;
        }
    }
    if failures.is_empty() {
        failures.push(failure(found.last_position));
    }
    if table.newest == Which::First {
        failures.reverse();
        // Prepended headers push the older ones back: keep the table's failures together.
        failures.iter_mut().for_each(|f| f.position = found.last_position);
    }
    if let Some(newest) = failures.last_mut() {
        newest.newest = true;
    }
    failures
}

struct Planner<'p> {
    tables: &'p [Table],
    index: &'p Index,
    walk: &'p Walk,
}

impl Planner<'_> {
    /// The event's own columns: by the newest failure's table first, then the others on the record, then those that
    /// read them always.
    fn event(&self, all: &[Failure], wanted: impl Fn(Field) -> bool) -> Vec<(usize, Vec<Read>)> {
        let mut on_record = vec![false; self.tables.len()];
        all.iter().for_each(|f| on_record[f.table] = true);
        let newest = all.last().map(|f| f.table);
        let mut event = Vec::new();
        for t in newest.into_iter().chain((0..self.tables.len()).filter(|t| Some(*t) != newest)) {
            if self.walk.found[t].hits.is_empty() {
                continue;
            }
            let is_wanted = |s: &Slot| {
                let rule = self.tables[t].fields.get(&s.field);
                s.field.is_event() && wanted(s.field) && (on_record[t] || rule.is_some_and(|r| r.always))
            };
            let reads = self.ordered(t, &self.pick(t, is_wanted));
            if !reads.is_empty() {
                event.push((t, reads));
            }
        }
        event
    }

    /// Of each wanted slot that is not part of a hop, the hit that counts.
    fn pick(&self, t: usize, wanted: impl Fn(&Slot) -> bool) -> Vec<Option<usize>> {
        let (table, slots) = (&self.tables[t], &self.index.slots[t]);
        let mut picked = vec![None; slots.len()];
        for (i, hit) in self.walk.found[t].hits.iter().enumerate() {
            let slot = &slots[hit.slot];
            if slot.in_hop || !wanted(slot) {
                continue;
            }
            let which = table.fields.get(&slot.field).and_then(|r| r.pick).unwrap_or(table.newest);
            if which == Which::Last || picked[hit.slot].is_none() {
                picked[hit.slot] = Some(i);
            }
        }
        picked
    }

    /// What is read of one failure, without the event's: those are the record's, and copying them for each of many
    /// failures would not be linear.
    fn failure(&self, failure: &Failure, wanted: impl Fn(Field) -> bool) -> Vec<Read> {
        let t = failure.table;
        let slots = &self.index.slots[t];
        let mut picked = if failure.newest {
            self.pick(t, |s| !s.field.is_event() && wanted(s.field))
        } else {
            vec![None; slots.len()]
        };
        for &i in &failure.hits {
            let slot = self.walk.found[t].hits[i].slot;
            if wanted(slots[slot].field) {
                picked[slot] = Some(i);
            }
        }
        self.ordered(t, &picked)
    }

    /// Picked hits, a field's in the order of preference.
    fn ordered(&self, t: usize, picked: &[Option<usize>]) -> Vec<Read> {
        let (slots, hits) = (&self.index.slots[t], &self.walk.found[t].hits);
        let picked = picked.iter().flatten().map(|&i| Read { slot: hits[i].slot, position: hits[i].position });
        let mut order: Vec<Read> = picked.collect();
        if slots.iter().any(|s| s.newest_first) {
            let newest = self.tables[t].newest;
            order.sort_by_key(|read| match (slots[read.slot].newest_first, newest) {
                (false, _) => (slots[read.slot].field, read.slot),
                (true, Which::First) => (slots[read.slot].field, read.position),
                (true, Which::Last) => (slots[read.slot].field, usize::MAX - read.position),
            });
        }
        order
    }
}
