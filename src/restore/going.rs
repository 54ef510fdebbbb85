//! One run of a plan: sends it batch by batch, as [`super::building`] makes them.
//!
//! Owns the order of a batch: records, lists, progress. Invariant: no batch becomes visible (transactional) or progress
//! (plain) before its lists are durable.

use super::attempts::Attempts;
use super::audit::{Folder, Sent};
use super::batch::Batch;
use super::building::{Building, Kept};
use super::delivery::{Answer, Sink};
use super::headers::HeaderRules;
use super::pieces::Piece;
use super::plan::{Delivery, PlanDoc};
use super::rate::Pace;
use super::returns::Returns;
use super::rules::Rules;
use super::target::Watching;
use super::why::{Skip, Why};
use super::{Restore, audit};
use crate::error::{Error, Result};
use crate::format::restored::Restored;
use crate::host::{self, now_us};
use crate::kafka::Refusal;
use crate::stage::{Stage, StageReceiver};
use futures::StreamExt;
use futures::channel::mpsc::{self, Receiver};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How often is looked, while it waits, whether it is to stop.
const LOOK: Duration = Duration::from_millis(100);

/// One run of a plan.
pub struct Going<'a> {
    pub restore: &'a Restore,
    pub plan: &'a PlanDoc,
    pub limits: BTreeMap<String, u64>,
    pub folder: Folder<'a>,
    pub sink: Sink,
    pub sent: Sent,
    pub run: u32,
    /// Records of the plan that are sent or skipped, and listed.
    pub done: u64,
    pub stage: StageReceiver,
    pub pace: Pace,
    /// Where failures that come back are looked for.
    pub returns: Option<(Arc<Returns>, Watching)>,
    pub kept: Kept,
}

impl Going<'_> {
    /// Sends what is left of the plan; whether all of it.
    pub async fn send_all(&mut self) -> Result<bool> {
        let restore = self.restore;
        let (plan, limits) = (self.plan, std::mem::take(&mut self.limits));
        let headers = HeaderRules::new(&plan.options.headers, &plan.restore_id)?;
        let values = self.folder.values(plan).await?;
        // Read by each run: what was discarded since the plan is not sent.
        let mut attempts = Attempts::default();
        let (past, _) = audit::past(&restore.catalog, Some(&plan.restore_id), None, Some(&mut attempts)).await?;
        let rules = Rules {
            options: &plan.options,
            headers: &headers,
            values: &values,
            attempts: &attempts,
            dialects: &restore.dialects,
            targets: &plan.targets,
            limits: &limits,
            windows: &plan.windows,
            // What a broker refuses stops the run: allowed again, it goes on.
            unwritable: &BTreeSet::new(),
            archived: &restore.archived,
        };
        let (from, kept) = (self.done, std::mem::take(&mut self.kept));
        let building = Building { restore, plan, rules, past: &past, from, kept };
        let (to, batches) = mpsc::channel(0);
        let (built, sent) = futures::future::join(building.run(to), self.send_each(batches)).await;
        match sent? {
            true => built.map(|()| true),
            false => Ok(false),
        }
    }

    /// Sends batches as they come; false if it was asked to stop. Takes the receiver with it when it ends, so that who makes
    /// them ends too.
    async fn send_each(&mut self, mut batches: Receiver<Batch>) -> Result<bool> {
        while let Some(batch) = batches.next().await {
            if !self.flush(batch).await? || self.stage.get() > Stage::Running {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends one batch: records, then the lists, then (in the same transaction as the records) the progress. False: it was
    /// asked to stop before.
    async fn flush(&mut self, mut batch: Batch) -> Result<bool> {
        if !self.wait().await? {
            return Ok(false);
        }
        // Without transactions nothing else stops a process that was thought to be dead.
        if self.plan.delivery == Delivery::Plain && self.folder.is_superseded(self.run).await? {
            return Err(Error::fenced("a later run has begun"));
        }
        self.pace.sends(batch.rows.len(), batch.raw.payload_len());
        let mut skipped = std::mem::take(&mut batch.skipped);
        let batch = Arc::new(batch);
        let answers = self.sink.send(&batch, self.plan.options.timestamps).await?;
        let restored_at_us = now_us();
        let (mut rows, asked_for) = (Vec::with_capacity(batch.rows.len()), skipped.len());
        for (row, answer) in batch.rows.iter().zip(answers) {
            let (id, place) = (&row.id, &row.place);
            match answer {
                Answer::Taken(target_partition, target_offset) => rows.push(Restored {
                    id: id.clone(),
                    target_topic: place.topic.clone(),
                    target_partition,
                    target_offset,
                    restore_id: self.plan.restore_id.clone(),
                    restored_at_us,
                    failure_key: row.failure_key,
                    attempt: row.attempt,
                    correction: row.correction.clone(),
                }),
                Answer::Refused(refusal) => {
                    let why = match refusal {
                        Refusal::TooLarge => Why::TooLarge,
                        Refusal::Timestamp => Why::Timestamp,
                        Refusal::Invalid => Why::Refused,
                    };
                    skipped.push((id.clone(), Skip { why, target: Some(place.topic.clone()), restore_id: None }));
                }
            }
        }
        if let Some((id, skip)) = skipped.get(asked_for) {
            let refused = skipped.len() - asked_for;
            tracing::warn!("{refused} records of a batch are skipped, such as {id}: {}", skip.why.text());
        }
        let piece = Piece { start: batch.start, end: batch.end, run: self.run };
        if !skipped.is_empty() {
            self.folder.put_skipped(piece, &skipped).await?;
        }
        self.folder.put_piece(piece, &rows).await?;
        self.sink.commit(self.plan.progress_topic()?, batch.end).await?;
        self.sent.pieces.push(piece);
        self.done = batch.end;
        self.restore.counters.done.store(self.done, Relaxed);
        self.restore.counters.sent.fetch_add(rows.len() as u64, Relaxed);
        if let Some((returns, _)) = &self.returns {
            returns.sent(&rows);
        }
        Ok(true)
    }

    /// Waits until the next batch may be sent; false if asked to stop meanwhile.
    async fn wait(&self) -> Result<bool> {
        loop {
            self.failures()?;
            if self.stage.get() > Stage::Running {
                return Ok(false);
            }
            let left = self.pace.left();
            if left.is_zero() {
                return Ok(true);
            }
            host::sleep(left.min(LOOK)).await;
        }
    }

    /// # Errors
    /// [`crate::Kind::Failed`] if too many of the records have failed again.
    fn failures(&self) -> Result<()> {
        let Some((returns, most)) = self.returns.as_ref().zip(self.restore.options.abort_on_failures) else {
            return Ok(());
        };
        let (returned, such_as) = returns.0.returned();
        if returned <= most {
            return Ok(());
        }
        let such_as = such_as.map(|id| format!(", such as {id}")).unwrap_or_default();
        Err(Error::failed(format!(
            "{returned} of the records that it sent have failed again{such_as}: more than the {most} of \
             --abort-on-failures. Look at them (`dlq-archiver tail`), and mend the cause first"
        )))
    }
}
