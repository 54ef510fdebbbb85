//! Which conditions hold for a record, without asking each for each record. Pure.
//!
//! Owns what is remembered: dead letters have few different texts in most fields, so the answers of all conditions on a
//! field are kept by its text, within a bound. Invariant: an answer is that of [`Condition::matches`].

use super::rule::{Condition, Subject};
use std::collections::HashMap;

/// Answers that one field keeps, over all its texts; then it begins anew.
const KEPT: usize = 16 << 10;
/// Longer texts are asked about each time.
const LONGEST: usize = 512;

/// The conditions on one field.
pub(super) struct Field<'r> {
    field: usize,
    conditions: Vec<&'r Condition>,
    /// Where a text's answers begin, one for each condition.
    known: HashMap<String, usize>,
    answers: Vec<bool>,
    /// Those of the present record, once asked for; `None` where it has no such text.
    now: Option<Option<usize>>,
}

/// A condition's place: its field's among those in use, and its own on that field.
pub(super) type Place = (usize, usize);

/// The places of these conditions, whose fields are added to `fields`.
pub(super) fn places<'r>(conditions: &'r [Condition], fields: &mut Vec<Field<'r>>) -> Vec<Place> {
    let place = |condition: &'r Condition| {
        let at = fields.iter().position(|f| f.field == condition.field).unwrap_or_else(|| {
            let (known, answers) = (HashMap::new(), Vec::new());
            fields.push(Field { field: condition.field, conditions: Vec::new(), known, answers, now: None });
            fields.len() - 1
        });
        fields[at].conditions.push(condition);
        (at, fields[at].conditions.len() - 1)
    };
    conditions.iter().map(place).collect()
}

impl Field<'_> {
    /// Another record is asked about.
    pub fn next(&mut self) {
        self.now = None;
    }

    /// Whether a condition holds.
    pub fn holds(&mut self, condition: usize, subject: &Subject<'_>) -> bool {
        let now = match self.now {
            Some(now) => now,
            None => subject.text(self.field).map(|text| self.ask(text)),
        };
        self.now = Some(now);
        now.is_some_and(|start| self.answers.get(start + condition).copied().unwrap_or_default())
    }

    /// Where a text's answers begin.
    fn ask(&mut self, text: &str) -> usize {
        if let Some(start) = self.known.get(text) {
            return *start;
        }
        if self.answers.len() >= KEPT {
            self.known.clear();
            self.answers.clear();
        }
        let start = self.answers.len();
        self.answers.extend(self.conditions.iter().map(|condition| condition.matches(text)));
        if text.len() <= LONGEST {
            self.known.insert(text.to_owned(), start);
        }
        start
    }
}
