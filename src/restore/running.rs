//! Carries a plan out, or ends it.
//!
//! Owns a run's beginning and its end, and what is said of one that stopped. The sending in between is [`super::going`],
//! the order of the beginning [`super::ahead`]. Invariant: a restore is over, or the same command goes on with it.

use super::ahead::Ahead;
use super::audit::{self, Closing, DoneDoc, Folder};
use super::delivery::Sink;
use super::going::Going;
use super::limits::DESCRIBE;
use super::pieces::{counted, redone};
use super::plan::{Delivery, PlanDoc};
use super::planning::{Fresh, Prepared};
use super::rate::Pace;
use super::returns::Returns;
use super::target::Watching;
use super::{Restore, turn};
use crate::archive::rfc3339;
use crate::error::{Error, Kind, Result};
use crate::host::now_us;
use crate::record::{RawRecord, TopicPartition};
use crate::stage::StageReceiver;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

#[derive(Debug)]
pub enum End {
    Done(Box<DoneDoc>),
    /// Asked to stop; this many of the plan's records are done.
    Stopped {
        restore_id: String,
        done: u64,
        selected: u64,
    },
}

impl Restore {
    /// Carries a plan out, from where earlier runs of it came to.
    ///
    /// # Errors
    /// What stopped it, with how far it is. The same command goes on from there.
    pub async fn run(&self, plan: &PlanDoc, fresh: Option<Fresh>, stage: StageReceiver) -> Result<End> {
        let folder = Folder::new(self.store(), &plan.restore_id);
        // Other tables could strip other headers, or send an envelope as the record in it.
        if plan.dialects_digest != self.dialects_digest {
            return Err(Error::config(format!(
                "restore {}: its plan was made with other dialects (program version {}). Give the --config and \
                 --dialect-file that it was begun with, or go back to that version; or end it with --take-over, and the same \
                 command restores what is left by the dialects of now",
                plan.restore_id, plan.program_version
            )));
        }
        let limits = self.limits(plan.targets.keys().cloned().collect()).await;
        if fresh.is_none() {
            turn::take(self.store(), plan, &self.options.process).await?;
        }
        let (sink, kept) = fresh.map(|fresh| (fresh.sink, fresh.kept)).unzip();
        let (ahead, start) = self.take_run(&folder, plan, sink, limits.values().min().copied()).await?;
        let Ahead { run, sink, sent, .. } = ahead;
        let returns = self.watch(plan, plan.selected.saturating_sub(start)).await;
        let (pace, kept) = (Pace::new(self.options.rate), kept.unwrap_or_default());
        let mut going =
            Going { restore: self, plan, limits, folder, sink, sent, run, done: start, stage, pace, returns, kept };
        self.counters.before.store(start, Relaxed);
        self.counters.done.store(start, Relaxed);
        if start < plan.selected {
            let whole = match going.send_all().await {
                Ok(whole) => whole,
                Err(e) => {
                    going.sink.abort().await;
                    return Err(self.stopped(&going, &e).await);
                }
            };
            if !whole {
                let (restore_id, selected) = (plan.restore_id.clone(), plan.selected);
                return Ok(End::Stopped { restore_id, done: going.done, selected });
            }
            if plan.delivery == Delivery::Plain {
                self.end_plainly(&going).await?;
            }
        }
        let done = turn::finish(&going.folder, self.store(), plan, &going.sent, &rfc3339(now_us()), None).await?;
        Ok(End::Done(Box::new(done)))
    }

    /// Watches the dead-letter topics that this archive drains, if that can stop a run that sends `left` more records.
    async fn watch(&self, plan: &PlanDoc, left: u64) -> Option<(Arc<Returns>, Watching)> {
        self.options.abort_on_failures.filter(|most| *most < left)?;
        let topics: Vec<String> = self.archived.iter().filter(|t| self.targets.contains_key(*t)).cloned().collect();
        if topics.is_empty() {
            tracing::info!(
                "records that fail again are not looked for: of the topics that this archive drains, none is on these brokers"
            );
            return None;
        }
        let returns = Arc::new(Returns::new(&plan.restore_id));
        let (seen, dialects) = (returns.clone(), self.dialects.clone());
        let seen = Box::new(move |tp: &TopicPartition, raw: &RawRecord<'_>| {
            seen.failed(&dialects, &tp.topic, tp.partition, raw);
        });
        match self.target.watch(topics, seen, DESCRIBE).await {
            Ok(watching) => Some((returns, watching)),
            Err(e) => {
                tracing::warn!("records that fail again are not looked for: {e}");
                None
            }
        }
    }

    /// Begins a run, unless nothing is left to send; and the record that it begins with.
    async fn take_run(
        &self,
        folder: &Folder<'_>,
        plan: &PlanDoc,
        mut sink: Option<Sink>,
        limit: Option<u64>,
    ) -> Result<(Ahead, u64)> {
        let id = &plan.restore_id;
        loop {
            let mut ahead = Ahead::look(&self.target, folder, plan, sink.take(), limit).await?;
            if let Some(closing) = &ahead.sent.closing {
                return Err(Error::fenced(format!(
                    "restore {id} was ended: {}. The same command again restores what is left",
                    closing.reason
                )));
            }
            let Some(start) = ahead.start(plan)? else {
                return Err(Error::failed(format!(
                    "the progress of restore {id} is gone from Kafka (group {}, topic {}: it expires some days after the \
                     last batch, or with the topic), so it is not known whether its last batch became visible. Give the \
                     command with --take-over: the records of the last list in restores/{id}/sent are skipped then as \
                     perhaps restored; compare it with the topic, and send what is missing with --record-id and \
                     --include-restored",
                    plan.group,
                    plan.progress_topic()?
                )));
            };
            // Without transactions the end is a run, too, see `pieces`.
            let ended = match plan.delivery {
                Delivery::Plain => ahead.sent.runs.values().next_back() == Some(&start),
                Delivery::Transactional => true,
            };
            if start == plan.selected && ended {
                return Ok((ahead, start));
            }
            if ahead.is_first() {
                let begun = ahead.sink.begin_progress(plan.progress_topic()?).await;
                begun.map_err(|e| stopped(plan, start, &e, None, None))?;
            }
            if !folder.begin_run(ahead.run, start, &self.options.process).await? {
                continue;
            }
            if let Some(last) = &ahead.sent.last {
                let twice = match plan.delivery {
                    Delivery::Plain => ", and what it sent since its last list arrives twice",
                    Delivery::Transactional => "",
                };
                tracing::warn!("takes over from {last}: if that is still running, it stops now{twice}");
            }
            ahead.sent.runs.insert(ahead.run, start);
            return Ok((ahead, start));
        }
    }

    /// Fixes that what this run sent is what the last list has: a run that begins behind the last record.
    async fn end_plainly(&self, going: &Going<'_>) -> Result<()> {
        let (plan, run) = (going.plan, going.run + 1);
        if !going.folder.begin_run(run, plan.selected, &self.options.process).await? {
            return Err(self.stopped(going, &Error::fenced("a later run has begun")).await);
        }
        let sent = going.folder.sent().await?;
        let twice = redone(&sent.pieces, &sent.runs);
        if twice > 0 {
            tracing::warn!(
                "restore {}: at least {twice} records were sent again by a later run: the targets have them twice",
                plan.restore_id
            );
        }
        Ok(())
    }

    /// What stopped a run, with what is known about why.
    async fn stopped(&self, going: &Going<'_>, e: &Error) -> Error {
        let plan = going.plan;
        if e.kind() == Kind::Fenced {
            let later = going.folder.sent().await.ok().filter(|sent| sent.last_run() > going.run);
            return stopped(plan, going.done, e, None, later.and_then(|sent| sent.last).as_deref());
        }
        stopped(plan, going.done, e, self.gone(plan).await.as_deref(), None)
    }

    /// Ends the unfinished restores that may select the same records, this command's own included: fences them, and
    /// writes their last lists, so that what they sent is not sent again. Also lists that one which was killed at this
    /// did not write. Their ids.
    pub async fn take_over(&self) -> Result<Vec<String>> {
        let Prepared::New(draft) = self.prepare().await? else { return Ok(Vec::new()) };
        let mut ended = Vec::new();
        for id in audit::ids(self.store(), "").await? {
            let folder = Folder::new(self.store(), &id);
            if folder.is_done().await? || folder.sent().await?.closing.is_some_and(|closing| closing.uncertain) {
                continue;
            }
            let plan = folder.plan().await?;
            if let Some(plan) = plan.filter(|p| p.overlaps(draft.cuts())) {
                self.end(&folder, &plan).await.map_err(|e| e.context(format!("--take-over of restore {id}")))?;
                ended.push(id);
            }
        }
        turn::say(self.store(), true).await?;
        Ok(ended)
    }

    async fn end(&self, folder: &Folder<'_>, plan: &PlanDoc) -> Result<()> {
        let reason = format!("taken over by {} at {}", self.options.process.user, self.options.process.now);
        loop {
            let ahead = Ahead::look(&self.target, folder, plan, None, None).await?;
            if let Some(closing) = &ahead.sent.closing {
                // Who ended it may have died before its last list.
                if !closing.uncertain {
                    let (now, reason) = (rfc3339(now_us()), Some(closing.reason.clone()));
                    turn::finish(folder, self.store(), plan, &ahead.sent, &now, reason).await?;
                }
                return Ok(());
            }
            let start = ahead.start(plan)?;
            let (run, mut sent) = (ahead.run, ahead.sent);
            // Its progress is gone: of the last batch it is not known whether it became visible.
            let uncertain = start.is_none();
            let start = match start {
                Some(start) => start,
                None => counted(&sent.pieces, &sent.runs)?.0.last().map_or(0, |piece| piece.start),
            };
            let closing = Closing { reason: reason.clone(), uncertain };
            if !folder.close(run, start, &self.options.process, closing).await? {
                continue;
            }
            if !uncertain {
                sent.runs.insert(run, start);
                turn::finish(folder, self.store(), plan, &sent, &rfc3339(now_us()), Some(reason)).await?;
            }
            return Ok(());
        }
    }

    /// A target of the plan that is not there any more, as far as the brokers tell.
    async fn gone(&self, plan: &PlanDoc) -> Option<String> {
        let there = self.target.topics(DESCRIBE).await.ok()?;
        let there: BTreeSet<String> = there.into_iter().map(|topic| topic.name).collect();
        plan.targets.keys().find(|topic| !there.contains(*topic)).cloned()
    }
}

/// What stopped a run, how far it is, and what goes on.
fn stopped(plan: &PlanDoc, done: u64, e: &Error, gone: Option<&str>, later: Option<&str>) -> Error {
    let (id, what) = (&plan.restore_id, e.message());
    let of = format!("{done} of {} selected records are done and listed", plan.selected);
    if e.kind() == Kind::Fenced {
        let later = later.map(|later| format!(" ({later})")).unwrap_or_default();
        let message = format!(
            "restore {id}: another run of it took over{later}, by the same command, --resume or --take-over. This one \
             stopped and leaves the rest to it; {of}. Wait for that one's end. If there is none, a transaction took \
             longer than the brokers allow: the same command, or --resume {id}, goes on ({what})"
        );
        return Error::new(e.kind(), message);
    }
    // Nothing is wrong with the command that an exit code of its own would say.
    let kind = if e.kind() == Kind::Config { Kind::Failed } else { e.kind() };
    let hint = gone.map(|topic| format!(" Target topic {topic} was deleted: create it again as it was."));
    let hint = hint.unwrap_or_default();
    Error::new(
        kind,
        format!("restore {id} stopped: {what}.{hint} {of}; the same command, or --resume {id}, goes on from there"),
    )
}
