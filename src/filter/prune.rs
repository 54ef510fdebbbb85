//! What of the ledger cannot hold a matching record, and what certainly does: so that few objects are read.

use super::expression::columns::{self, Value};
use super::expression::{Parsed, Subject, Verdict};
use super::{END_MS, Filter, Text, any};
use crate::format::Group;
use crate::layout;
use crate::ledger::{Counts, DataObject, Manifest};
use crate::record::RecordId;
use std::collections::BTreeSet;
use std::ops::Bound;

/// Manifests cut error classes at 200 bytes, or up to 3 before, where a character would be split.
const MAYBE_CUT: usize = 197;

/// An entry that rarer ones were folded into.
fn is_folded(c: &Counts) -> bool {
    c.dialect == "other" && c.error_class.is_none() && c.error_code.is_none()
}

fn is_cut(class: &str) -> bool {
    class.len() >= MAYBE_CUT
}

/// What a manifest tells of some of an object's rows.
struct OfCounts<'o> {
    o: &'o DataObject,
    c: &'o Counts,
}

impl Subject for OfCounts<'_> {
    fn column(&self, column: usize) -> Option<Value<'_>> {
        match columns::name(column) {
            "pipeline_name" => self.o.pipeline.as_deref().map(|name| Value::text(Some(name))),
            _ if is_folded(self.c) => None,
            "dialect" => Some(Value::text(Some(&self.c.dialect))),
            "error_code" => Some(Value::int(self.c.error_code)),
            "error_class" if !self.c.error_class.as_deref().is_some_and(is_cut) => {
                Some(Value::text(self.c.error_class.as_deref()))
            }
            _ => None,
        }
    }
    fn header(&self, _: &str) -> Option<Value<'_>> {
        None
    }
    fn json(&self) -> Parsed<'_> {
        Parsed::NotKnown
    }
}

/// Whether what lies between the first two, if they are known, has some of `[from, to)`.
fn overlap(has: Option<(i64, i64)>, from: Option<i64>, to: Option<i64>) -> bool {
    has.is_none_or(|(min, max)| from.is_none_or(|from| from <= max) && to.is_none_or(|to| min < to))
}

impl Filter {
    pub fn may_match_partition(&self, topic: &str, partition: i32) -> bool {
        any(&self.topic, Some(topic))
            && (self.doc.partition.is_empty() || self.doc.partition.contains(&partition))
            && self
                .record_ids
                .as_ref()
                .is_none_or(|ids| ids.iter().any(|id| id.topic == topic && id.partition == partition))
            && self
                .exactly
                .as_ref()
                .is_none_or(|all| all.get(topic).is_some_and(|of| of.keys().any(|(_, p)| *p == partition)))
    }

    /// The topics' names as they stand in paths, where the filter names them all.
    pub fn topic_folders(&self) -> Option<BTreeSet<String>> {
        let exact = |t: &Text| match t {
            Text::Exact(name) => Some(layout::escape(name).into_owned()),
            Text::Regex(_) => None,
        };
        if !self.topic.is_empty() {
            return self.topic.iter().map(exact).collect();
        }
        let named = |topic: &str| layout::escape(topic).into_owned();
        if let Some(positions) = &self.exactly {
            return Some(positions.keys().map(|topic| named(topic)).collect());
        }
        self.record_ids.as_ref().map(|ids| ids.iter().map(|id| named(&id.topic)).collect())
    }

    /// Whether offsets `[from, to)` of a partition can match. `to` is `i64::MAX` where it is not known: nothing is
    /// behind it then.
    pub fn may_match_offsets(&self, topic: &str, partition: i32, generation: u32, from: i64, to: i64) -> bool {
        if self.doc.offset_from.is_some_and(|first| to <= first) || self.doc.offset_to.is_some_and(|end| end <= from) {
            return false;
        }
        if let Some(positions) = &self.exactly {
            let of = positions.get(topic).and_then(|of| of.get(&(generation, partition)));
            let at = |offset: i64| u64::try_from(offset).unwrap_or(0);
            return of.is_some_and(|of| of.range_cardinality(at(from)..at(to)) > 0);
        }
        self.record_ids.as_ref().is_none_or(|ids| {
            let at = |offset| RecordId { topic: topic.to_owned(), generation, partition, offset };
            let end = match to {
                i64::MAX => Bound::Included(at(to)),
                _ => Bound::Excluded(at(to.max(from))),
            };
            ids.range((Bound::Included(at(from)), end)).next().is_some()
        })
    }

    pub fn may_match_manifest(&self, m: &Manifest) -> bool {
        self.may_match_partition(&m.topic, m.partition)
            && self.may_match_offsets(&m.topic, m.partition, m.generation, m.from, m.to)
            && m.objects.iter().any(|o| self.may_match_object(o))
    }

    /// Whether an object of a manifest that may match can hold a matching record.
    pub fn may_match_object(&self, o: &DataObject) -> bool {
        o.rows > 0
            // A shared object may have any.
            && o.pipeline.as_deref().is_none_or(|name| any(&self.pipeline, Some(name)))
            && self.offsets_overlap(o)
            && self.times_overlap(o)
            && o.counts.iter().any(|c| self.may_match_counts(c) && self.may_hold(o, c))
    }

    /// Whether `--where` may hold for rows of these counts.
    fn may_hold(&self, o: &DataObject, c: &Counts) -> bool {
        let judged = self.expression.as_ref().map(|e| e.judge(&OfCounts { o, c }));
        !matches!(judged, Some(Verdict::False | Verdict::Null))
    }

    /// The events that are looked for, where the filter names them.
    pub fn events(&self) -> Option<Vec<&str>> {
        fn exact(text: &Text) -> Option<&str> {
            match text {
                Text::Exact(id) => Some(id),
                Text::Regex(_) => None,
            }
        }
        if self.event_id.is_empty() { None } else { self.event_id.iter().map(exact).collect() }
    }

    /// Whether a row group of an object that may match can hold a matching record.
    pub fn may_match_group(&self, m: &Manifest, group: &Group<'_>) -> bool {
        let may_have = |text: &Text| match text {
            Text::Exact(id) => group.may_have_event(id),
            Text::Regex(_) => true,
        };
        let offsets = |(min, max): (i64, i64)| {
            self.may_match_offsets(&m.topic, m.partition, m.generation, min, max.saturating_add(1))
        };
        group.offsets.is_none_or(offsets)
            && overlap(group.timestamps_ms, self.doc.since_ms, self.doc.until_ms)
            && (self.event_id.is_empty() || self.event_id.iter().any(may_have))
    }

    fn offsets_overlap(&self, o: &DataObject) -> bool {
        let has = o.min_offset.zip(o.max_offset);
        let has_asked = |(min, max)| self.offsets.range(min..=max).next().is_some();
        overlap(has, self.doc.offset_from, self.doc.offset_to)
            && (self.record_ids.is_none() || has.is_none_or(|(min, max)| min > max || has_asked((min, max))))
    }

    fn times_overlap(&self, o: &DataObject) -> bool {
        overlap(o.min_timestamp_ms.zip(o.max_timestamp_ms), self.doc.since_ms, self.doc.until_ms)
    }

    fn may_match_counts(&self, c: &Counts) -> bool {
        if is_folded(c) {
            return true;
        }
        let class = match c.error_class.as_deref() {
            Some(class) if is_cut(class) => {
                self.error_class.is_empty()
                    || self.error_class.iter().any(|t| match t {
                        // The last segment lies behind the cut.
                        Text::Exact(text) => text.starts_with(class) || !text.contains('.'),
                        Text::Regex(_) => true,
                    })
            }
            class => self.class_matches(class),
        };
        class && any(&self.dialect, Some(&c.dialect)) && self.code_matches(c.error_code)
    }

    /// The counts of an object's matching rows, if its manifest alone tells them exactly. The object's manifest has
    /// to be of a partition that may match.
    pub fn counted<'o>(&self, o: &'o DataObject) -> Option<Vec<&'o Counts>> {
        let d = &self.doc;
        let other_columns = !self.error_message.is_empty()
            || !self.event_id.is_empty()
            || !self.origin_topic.is_empty()
            || self.record_ids.is_some()
            || self.exactly.is_some()
            || self.expression.is_some()
            || d.sample.is_some();
        if other_columns {
            return None;
        }
        if !self.may_match_object(o) {
            return Some(Vec::new());
        }
        if !self.pipeline.is_empty() && o.pipeline.is_none() {
            return None;
        }
        let inside = |min: Option<i64>, max: Option<i64>, from: Option<i64>, to: Option<i64>| {
            min.zip(max).is_some_and(|(min, max)| from.is_none_or(|f| f <= min) && to.is_none_or(|t| max < t))
        };
        let timed = d.since_ms.is_some() || d.until_ms.is_some();
        let usable = inside(o.min_timestamp_ms, o.max_timestamp_ms, Some(0), Some(END_MS));
        if !inside(o.min_offset, o.max_offset, d.offset_from, d.offset_to)
            || timed && !(usable && inside(o.min_timestamp_ms, o.max_timestamp_ms, d.since_ms, d.until_ms))
        {
            return None;
        }
        let narrowed = !self.dialect.is_empty() || !self.error_class.is_empty() || !d.error_code.is_empty();
        let vague =
            |c: &Counts| is_folded(c) || !self.error_class.is_empty() && c.error_class.as_deref().is_some_and(is_cut);
        if narrowed && o.counts.iter().any(vague) {
            return None;
        }
        Some(o.counts.iter().filter(|c| self.may_match_counts(c)).collect())
    }
}

/// Whether an entry stands for rows of exactly this dialect, error class and code.
pub fn is_exact(c: &Counts) -> bool {
    !is_folded(c) && !c.error_class.as_deref().is_some_and(is_cut)
}
