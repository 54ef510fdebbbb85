//! Reads a few cuts ahead of whoever looks at their records.
//!
//! Invariant: what is read ahead is bounded by [`BUDGET`], or is a single cut.

use super::{Catalog, Cut, Reading, Selected};
use crate::error::Result;
use crate::filter::{Filter, Unjudged};
use crate::host::{self, Task};
use std::collections::VecDeque;
use std::sync::Arc;

/// Cuts that are read at a time.
const CUTS: usize = 4;
/// Bytes that the cuts read ahead may take in memory, as far as their manifests let one guess.
const BUDGET: u64 = 256 << 20;

/// The matching records of several cuts, see [`Catalog::cuts`].
pub struct Cuts {
    catalog: Catalog,
    waiting: VecDeque<Selected>,
    filter: Arc<Filter>,
    reading: Reading,
    running: VecDeque<(u64, Task<Result<Cut>>)>,
    /// Records that may still be given out.
    left: Option<u64>,
    unjudged: Option<Unjudged>,
}

impl Cuts {
    pub(super) fn new(catalog: Catalog, selected: Vec<Selected>, filter: Arc<Filter>, reading: Reading) -> Self {
        Self {
            catalog,
            waiting: selected.into(),
            filter,
            reading,
            running: VecDeque::new(),
            left: None,
            unjudged: None,
        }
    }

    /// Ends after so many records, those of them that are in the cuts' order the first.
    #[must_use]
    pub fn limit(mut self, records: Option<u64>) -> Self {
        self.left = records;
        self
    }

    /// Records that could not be judged, in the cuts so far.
    pub fn unjudged(&self) -> Option<&Unjudged> {
        self.unjudged.as_ref()
    }

    /// The next cut, in the order given; it may have no matching record after all. `None` after the last.
    ///
    /// # Errors
    /// As [`Catalog::read_cut`].
    pub async fn next(&mut self) -> Result<Option<Cut>> {
        if self.left == Some(0) {
            return Ok(None);
        }
        self.start();
        let Some((_, cut)) = self.running.front_mut() else { return Ok(None) };
        let read = cut.await;
        self.running.pop_front();
        let mut cut = read??;
        Unjudged::add(&mut self.unjudged, cut.unjudged().cloned());
        if let Some(left) = &mut self.left {
            cut.truncate(*left);
            *left -= cut.len() as u64;
        }
        self.start();
        Ok(Some(cut))
    }

    fn start(&mut self) {
        while let Some(selected) = self.waiting.front() {
            let size = guess(selected);
            let ahead: u64 = self.running.iter().map(|(size, _)| size).sum();
            if self.running.len() >= CUTS || (!self.running.is_empty() && ahead + size > BUDGET) {
                return;
            }
            let Some(selected) = self.waiting.pop_front() else { return };
            let (catalog, filter, reading) = (self.catalog.clone(), self.filter.clone(), self.reading);
            let task = host::spawn(async move { catalog.read_shared(&selected, &filter, reading).await });
            self.running.push_back((size, task));
        }
    }
}

/// Compressed about one to eight, and some bytes for each row.
fn guess(selected: &Selected) -> u64 {
    selected.objects.iter().map(|o| o.size.saturating_mul(8).saturating_add(o.rows.saturating_mul(300))).sum()
}
