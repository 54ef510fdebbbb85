//! Whom else a replay reaches: on VAST an event goes to every pipeline that is linked to its trigger, not only to the
//! function that failed on it.
//!
//! Owns the look for other functions that have failed on events of the same source. To find all would be to read the
//! archive; of each pipeline some of the newest files are read. Decides nothing.

use super::Restore;
use super::counts::Counts;
use crate::catalog::{Reading, Selected};
use crate::error::Result;
use crate::filter::{Filter, FilterDoc};
use std::collections::{BTreeMap, BTreeSet};

/// The dialect that VAST writes.
pub const KNATIVE: &str = "knative";
/// Newest objects that are thought of for each pipeline; the smallest of them is read.
const NEWEST: usize = 8;
/// Pipelines that are looked at.
const PIPELINES: usize = 100;
/// Objects that are larger are not read.
const LARGEST: u64 = 16 << 20;

/// Functions that have failed on events of a source, by source.
pub type Reach = BTreeMap<String, BTreeSet<String>>;

impl Restore {
    /// Of the sources of the events that are to be restored: other functions that have failed on events of theirs, as far
    /// as the newest files tell.
    ///
    /// # Errors
    /// As [`crate::catalog::Catalog::read_cut`].
    pub async fn reach(&self, counts: &Counts) -> Result<Reach> {
        let mut reach = Reach::new();
        if counts.events.is_empty() {
            return Ok(reach);
        }
        let filter = Filter::new(FilterDoc { dialect: vec![KNATIVE.into()], ..FilterDoc::default() })?;
        let mut newest: BTreeMap<Option<String>, Vec<Selected>> = BTreeMap::new();
        for selected in self.catalog.select(&filter).await?.into_iter().rev() {
            for object in &selected.objects {
                let of = newest.entry(object.pipeline.clone()).or_default();
                if of.len() < NEWEST && object.size <= LARGEST {
                    of.push(Selected { manifest: selected.manifest.clone(), objects: vec![object.clone()] });
                }
            }
        }
        let smallest = newest.into_values().filter_map(|of| of.into_iter().min_by_key(Selected::size));
        let mut cuts = self.catalog.cuts(smallest.take(PIPELINES).collect(), &filter, Reading::LIST);
        while let Some(cut) = cuts.next().await? {
            for record in cut.iter() {
                let d = &record.decoded;
                let (Some(source), Some(function)) = (d.event_source.as_deref(), d.error_destination.as_deref()) else {
                    continue;
                };
                if counts.events.get(source).is_some_and(|own| !own.contains(function)) {
                    reach.entry(source.to_owned()).or_default().insert(function.to_owned());
                }
            }
        }
        Ok(reach)
    }
}
