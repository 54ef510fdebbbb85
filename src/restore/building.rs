//! Makes the batches of one run: reads what is left of the plan, judges it, and hands it over while the batch before is
//! on its way.
//!
//! Owns the order of records, which is the plan's. Sends nothing. Invariant: a batch has the records that the plan names,
//! or there is none.

use super::batch::{Batch, Batcher};
use super::past::Past;
use super::plan::{PlanCut, PlanDoc, positions};
use super::rules::Rules;
use super::{CutPlace, Restore, pinned};
use crate::catalog::{Cut, Cuts, Reading};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::refetch::index::Index;
use crate::refetch::originals::Originals;
use futures::SinkExt;
use futures::channel::mpsc::Sender;
use std::collections::HashMap;

/// Cuts that were read for the plan, so that the process that made it need not read them again.
#[derive(Default)]
pub struct Kept {
    cuts: HashMap<CutPlace, Cut>,
    bytes: usize,
}

/// Bytes of cuts that are kept at most.
const KEPT: usize = 64 << 20;

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} cuts of {} bytes", self.cuts.len(), self.bytes)
    }
}

impl Kept {
    /// Takes a cut, if there is room for it.
    pub fn take(&mut self, place: CutPlace, cut: Cut) {
        let bytes = cut.memory();
        if self.bytes + bytes <= KEPT {
            self.bytes += bytes;
            self.cuts.insert(place, cut);
        }
    }
}

/// See the module.
pub struct Building<'a> {
    pub restore: &'a Restore,
    pub plan: &'a PlanDoc,
    pub rules: Rules<'a>,
    pub past: &'a Past,
    /// Number of the first record.
    pub from: u64,
    pub kept: Kept,
}

impl Building<'_> {
    /// Hands over all batches, in order; or some, if nobody takes them any more.
    pub async fn run(mut self, mut to: Sender<Batch>) -> Result<()> {
        // Cuts that are done are not read again.
        let (mut number, mut left) = (0, Vec::new());
        for cut in &self.plan.cuts {
            if number + cut.selected > self.from {
                left.push((number, cut));
            }
            number += cut.selected;
        }
        let mut cuts = self.unread(&left).await?;
        let options = &self.restore.options;
        let mut batcher = Batcher::new(options.rate.within(options.limits), self.from);
        let mut index = Index::new(self.restore.catalog.store().clone());
        for (first, planned) in left {
            let cut = self.cut(planned, cuts.as_mut()).await?;
            let originals = self.restore.originals(&cut, &mut index, Some(planned)).await?;
            let skip = usize::try_from(self.from.saturating_sub(first)).unwrap_or(usize::MAX);
            if !self.cut_into(&mut batcher, (&cut, originals), skip, &mut to).await? {
                return Ok(());
            }
        }
        if let Some(batch) = batcher.finish() {
            let _ = to.send(batch).await;
        }
        Ok(())
    }

    /// What has to be read; nothing is asked where all was kept.
    async fn unread(&self, left: &[(u64, &PlanCut)]) -> Result<Option<Cuts>> {
        let unread: Vec<&PlanCut> =
            left.iter().map(|(_, cut)| *cut).filter(|cut| !self.kept.cuts.contains_key(&cut.place())).collect();
        if unread.is_empty() {
            return Ok(None);
        }
        let (catalog, filter) = (&self.restore.catalog, Filter::exactly(positions(unread.iter().copied())));
        let selected = pinned(catalog.select(&filter).await?, unread.into_iter())?;
        Ok(Some(catalog.cuts(selected, &filter, Reading::RESTORE)))
    }

    async fn cut(&mut self, planned: &PlanCut, unread: Option<&mut Cuts>) -> Result<Cut> {
        let missing = || Error::internal("fewer cuts were read than asked for");
        let cut = match (self.kept.cuts.remove(&planned.place()), unread) {
            (Some(kept), _) => kept,
            (None, Some(unread)) => unread.next().await?.ok_or_else(missing)?,
            (None, None) => return Err(missing()),
        };
        if cut.len() as u64 != planned.selected {
            return Err(Error::corrupt(format!(
                "of the records that the plan has in {}, {} of {} are there: run `dlq-archiver verify`",
                planned.manifest,
                cut.len(),
                planned.selected
            )));
        }
        Ok(cut)
    }

    /// The records of a cut from the `skip`-th on; whether more is wanted.
    async fn cut_into(
        &self,
        batcher: &mut Batcher,
        (cut, mut originals): (&Cut, Originals),
        skip: usize,
        to: &mut Sender<Batch>,
    ) -> Result<bool> {
        let m = cut.manifest();
        let past = self.past.of(&m.topic, m.generation, m.partition);
        let mut decoder = self.rules.dialects.of_topic(&m.topic);
        for i in skip.min(cut.len())..cut.len() {
            originals.load(cut.offset(i)).await?;
            let full = {
                let (record, original) = (cut.get(i), originals.at(cut.offset(i)));
                let judged = self.rules.judge(&mut decoder, &record, original.as_ref(), past);
                batcher.push(&record.id, record.decoded.failure_key, judged)
            };
            if let Some(batch) = full
                && to.send(batch).await.is_err()
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
