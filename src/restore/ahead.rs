//! How a run of a restore comes about: what keeps two processes of one restore apart.
//!
//! The order is the protocol; `tests/model/restore.rs` has what each wrong one leads to.
//!
//! 1. It takes a number, one above the last run's. The process that has just written the plan takes 1: what it fences
//!    with is older than the plan, and so than any run.
//! 2. It fences, where the brokers can.
//! 3. It reads the progress, then the lists: what is committed was listed before.
//! 4. A run of its number by then is another process's, which may have fenced this one since, and gone on: again from 1.
//! 5. It creates the run's document. If that is there by now: again from 1.
//!
//! So of processes that begin at once one goes on: the last. Each that begins again does so because another went ahead,
//! and no other begins twice.
//!
//! Owns 1 to 4, and where a run begins. Writes nothing.

use super::audit::{Folder, Sent};
use super::delivery::{Asked, Sink};
use super::pieces::counted;
use super::plan::{Delivery, PlanDoc};
use super::target::Target;
use crate::error::{Error, Result};
use std::sync::Arc;

/// A run that is to begin.
pub struct Ahead {
    pub run: u32,
    pub sink: Sink,
    /// What was sent, as far as it is listed.
    pub sent: Sent,
    /// What Kafka says was committed.
    progress: Option<u64>,
}

impl Ahead {
    /// `sink`: that of the process which has just written the plan. `limit`: see [`Sink::open`].
    pub async fn look(
        target: &Arc<dyn Target>,
        folder: &Folder<'_>,
        plan: &PlanDoc,
        mut sink: Option<Sink>,
        limit: Option<u64>,
    ) -> Result<Self> {
        loop {
            let (run, sink) = match sink.take() {
                Some(sink) => (1, sink),
                None => {
                    let run = folder.sent().await?.last_run() + 1;
                    (run, Sink::open(target, &plan.group, Asked::Exactly(plan.delivery), limit).await?.0)
                }
            };
            let progress = sink.progress(plan.progress_topic()?).await?;
            let sent = folder.sent().await?;
            if sent.last_run() < run || sent.closing.is_some() {
                return Ok(Self { run, sink, sent, progress });
            }
        }
    }

    /// The record of the plan that it begins with. `None`: the progress is gone from Kafka.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] if the lists do not fit.
    pub fn start(&self, plan: &PlanDoc) -> Result<Option<u64>> {
        let start = match (plan.delivery, self.progress) {
            (Delivery::Plain, _) => counted(&self.sent.pieces, &self.sent.runs)?.1,
            (Delivery::Transactional, Some(progress)) => progress,
            (Delivery::Transactional, None) if self.sent.pieces.is_empty() => 0,
            (Delivery::Transactional, None) => return Ok(None),
        };
        let mut runs = self.sent.runs.clone();
        runs.insert(self.run, start);
        let (_, listed) = counted(&self.sent.pieces, &runs)?;
        if listed != start || start > plan.selected {
            let id = &plan.restore_id;
            return Err(Error::corrupt(format!(
                "restore {id}: {start} records are committed, but the lists in restores/{id}/sent end at {listed}: some \
                 were deleted. What was sent is not known: look into the target topics before restoring again"
            )));
        }
        Ok(Some(start))
    }

    /// Whether Kafka is still to be told that nothing is sent.
    pub fn is_first(&self) -> bool {
        self.progress.is_none() && self.sent.pieces.is_empty()
    }
}

#[cfg(test)]
mod tests;
