//! Draws a sample of what matches.
//!
//! Owns which records are in it: those with the smallest hashes of their ids. So it is the same each time, and reading once is
//! enough to know up to which hash.

use super::{Catalog, Reading, Selected};
use crate::error::Result;
use crate::filter::{Filter, Unjudged};
use std::collections::{BTreeSet, BinaryHeap};

impl Catalog {
    /// The filter with its sample drawn, the cuts that have some of it, and what could not be judged. What asks for no
    /// sample, or has it, is given back as it is.
    ///
    /// # Errors
    /// As [`Self::read_cut`].
    pub async fn sampled(
        &self,
        filter: Filter,
        selected: Vec<Selected>,
    ) -> Result<(Filter, Vec<Selected>, Option<Unjudged>)> {
        let Some(wanted) = filter.doc().sample.filter(|_| filter.doc().sample_to.is_none()) else {
            return Ok((filter, selected, None));
        };
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        // The largest is on top. With each hash the cut that has it.
        let mut kept: BinaryHeap<(u64, usize)> = BinaryHeap::new();
        let mut cuts = self.cuts(selected.clone(), &filter, Reading::LIST);
        let mut number = 0;
        while let Some(cut) = cuts.next().await? {
            for record in cut.iter() {
                kept.push((Filter::hash(&record.id), number));
                if kept.len() > wanted {
                    kept.pop();
                }
            }
            number += 1;
        }
        let unjudged = cuts.unjudged().cloned();
        let to = kept.peek().map_or(u64::MAX, |(hash, _)| *hash);
        let cuts: BTreeSet<usize> = kept.into_iter().map(|(_, cut)| cut).collect();
        let having = selected.into_iter().enumerate().filter(|(i, _)| cuts.contains(i)).map(|(_, s)| s).collect();
        Ok((filter.sampled(to), having, unjudged))
    }
}
