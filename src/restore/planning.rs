//! The plan of a restore: found, made, written.
//!
//! Owns which plan a command goes on with, and what a new one is made of. Sends nothing. Invariant: a plan that was
//! written has its turn, or is closed.

use super::attempts::Attempts;
use super::audit::{self, Folder, Sent};
use super::building::Kept;
use super::counts::Counts;
use super::delivery::Sink;
use super::drafts;
use super::limits::TopicLimits;
use super::pieces::counted;
use super::plan::{DraftContent, DraftDoc, ID_DIGITS, PlanCut, PlanDoc};
use super::rules::Rules;
use super::{CutPlace, Restore, nothing, pinned, place, plan_cut, turn};
use crate::archive::rfc3339;
use crate::catalog::{Cut, Reading};
use crate::cut::PROGRAM_VERSION;
use crate::error::{Error, Result};
use crate::filter::{Filter, FilterDoc};
use crate::format::refetched::Original;
use crate::host::{in_place, now_us};
use crate::ledger::LEDGER_VERSION;
use crate::refetch::index::Index;
use crate::refetch::originals::Originals;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering::Relaxed;

/// What a run would do.
#[derive(Debug)]
pub enum Prepared {
    New(Box<Draft>),
    /// An unfinished plan of the same command, and how many of its records are known to be done.
    Unfinished(Box<PlanDoc>, u64),
}

/// A plan that is not written yet.
#[derive(Debug)]
pub struct Draft {
    pub counts: Counts,
    /// Unfinished restores that may select the same records.
    pub overlapping: Vec<PlanDoc>,
    id: String,
    /// With its sample drawn, so that each run selects the same.
    filter: Filter,
    cuts: Vec<PlanCut>,
    limits: TopicLimits,
    kept: Kept,
}

/// What the process that has just written a plan need not do again.
pub struct Fresh {
    pub(super) sink: Sink,
    pub(super) kept: Kept,
}

impl Draft {
    pub fn cuts(&self) -> &[PlanCut] {
        &self.cuts
    }
}

impl Restore {
    /// The plan that was named to go on with.
    async fn resumed(&self, id: &str) -> Result<Prepared> {
        let folder = Folder::new(self.store(), id);
        let plan = match audit::is_id(id) {
            true => folder.plan().await?,
            false => None,
        };
        let Some(plan) = plan else {
            let open = audit::open(self.store()).await?;
            let open = if open.is_empty() { "none".into() } else { open.join(", ") };
            return Err(Error::config(format!("--resume {id}: there is no such restore. Unfinished ones: {open}")));
        };
        if folder.is_done().await? {
            return Err(Error::config(format!("--resume {id}: it has ended, see restores/{id}/done.json")));
        }
        let sent = folder.sent().await?;
        if let Some(closing) = sent.closing {
            return Err(Error::config(format!("--resume {id}: it was ended: {}", closing.reason)));
        }
        Ok(Prepared::Unfinished(Box::new(plan), reached(&sent)))
    }

    /// Finds the command's unfinished plan, or looks at every selected record for a new one. Writes nothing.
    pub async fn prepare(&self) -> Result<Prepared> {
        if let Some(id) = &self.options.resume {
            return self.resumed(id).await;
        }
        if let Some(draft) = self.options.draft.as_ref().filter(|d| d.content.dialects_digest != self.dialects_digest) {
            return Err(Error::config(format!(
                "--plan: it was made with other dialects (program version {}). Give the --config and --dialect-file that it \
                 was made with, or go back to that version; or plan anew with --dry-run",
                draft.program_version
            )));
        }
        // Of the command's digest: so the same command can only have one new restore.
        let prefix = format!("{}-", &self.options.digest[..ID_DIGITS]);
        let mut number = 0;
        for id in audit::ids(self.store(), &prefix).await? {
            number = number.max(id.strip_prefix(&prefix).and_then(|n| n.parse().ok()).unwrap_or(0u32));
            let folder = Folder::new(self.store(), &id);
            if self.options.take_over || folder.is_over().await? {
                continue;
            }
            if let Some(plan) = folder.plan().await?.filter(|p| p.digest == self.options.digest) {
                let sent = folder.sent().await?;
                return Ok(Prepared::Unfinished(Box::new(plan), reached(&sent)));
            }
        }
        let mut attempts = Attempts::default();
        let (past, open) = audit::past(&self.catalog, None, None, Some(&mut attempts)).await?;
        let mut counts = Counts::new(self.options.filter.record_ids());
        counts.unused_values = self.options.values.ids().cloned().collect();
        let (mut planned, mut limits, mut kept) = (Vec::new(), TopicLimits::new(now_us() / 1000), Kept::default());
        let mut index = Index::new(self.catalog.store().clone());
        let mut selected = self.catalog.select(&self.options.filter).await?;
        let drafted = self.options.draft.as_ref().map(|draft| &draft.content);
        if let Some(drafted) = drafted {
            selected = pinned(selected, drafted.cuts.iter())?;
        }
        let drafted_cuts = drafted.iter().flat_map(|drafted| &drafted.cuts);
        let drafted_cuts: HashMap<CutPlace, &PlanCut> = drafted_cuts.map(|c| (c.place(), c)).collect();
        let (filter, selected, unjudged) = self.catalog.sampled(self.options.filter.clone(), selected).await?;
        let mut objects: HashMap<_, _> = selected.iter().map(|s| (place(s), s.objects.clone())).collect();
        let mut cuts = self.catalog.cuts(selected, &filter, Reading::RESTORE).limit(filter.doc().limit);
        while let Some(cut) = cuts.next().await? {
            if cut.is_empty() {
                continue;
            }
            let m = cut.manifest();
            let past = past.of(&m.topic, m.generation, m.partition);
            let mut decoder = self.dialects.of_topic(&m.topic);
            let place = (m.topic.clone(), m.partition, m.generation, m.from);
            let drafted = drafted_cuts.get(&place).copied();
            if drafted.is_some_and(|drafted| drafted.selected != cut.len() as u64) {
                return Err(Error::corrupt(format!(
                    "of the records that the plan has in {}, only {} are there: run `dlq-archiver verify`",
                    m.topic,
                    cut.len()
                )));
            }
            let mut originals = self.originals(&cut, &mut index, drafted).await?;
            let mut decide = |limits: &TopicLimits, i: usize, original: Option<&Original<'_>>| {
                let rules = Rules {
                    options: &self.options.rules,
                    headers: &self.headers,
                    values: &self.options.values,
                    attempts: &attempts,
                    dialects: &self.dialects,
                    targets: &self.targets,
                    limits: &limits.sizes,
                    windows: &limits.windows,
                    unwritable: &limits.unwritable,
                    archived: &self.archived,
                };
                rules.decide(&mut decoder, &cut.get(i), original, past)
            };
            let mut verdicts = Vec::with_capacity(cut.len());
            each(&cut, &mut originals, |i, original| verdicts.push(decide(&limits, i, original))).await?;
            if self.ask_limits(&verdicts, &mut limits).await {
                verdicts.clear();
                each(&cut, &mut originals, |i, original| verdicts.push(decide(&limits, i, original))).await?;
            }
            let missing = originals.missing().clone();
            each(&cut, &mut originals, |i, original| {
                if let Some(verdict) = verdicts.get(i) {
                    let missing = missing.contains(cut.offset(i).cast_unsigned());
                    counts.add(&cut.get(i), original, missing, verdict);
                }
            })
            .await?;
            self.counters.scanned.fetch_add(cut.len() as u64, Relaxed);
            let objects = objects.remove(&place).unwrap_or_default();
            planned.push(plan_cut(&cut, &objects, originals.sidecars()));
            kept.take(place, cut);
        }
        counts.unjudged = unjudged.or_else(|| cuts.unjudged().cloned());
        let mut overlapping = Vec::new();
        for id in open {
            let folder = Folder::new(self.store(), &id);
            let Some(plan) = folder.plan().await? else { continue };
            // The same command, begun by another process since this one looked for it.
            if plan.digest == self.options.digest && !self.options.take_over {
                let sent = folder.sent().await?;
                return Ok(Prepared::Unfinished(Box::new(plan), reached(&sent)));
            }
            if plan.overlaps(&planned) {
                overlapping.push(plan);
            }
        }
        counts.untold = self.untold(&counts.targets, &limits);
        let id = format!("{prefix}{}", number + 1);
        Ok(Prepared::New(Box::new(Draft { counts, overlapping, id, filter, cuts: planned, limits, kept })))
    }

    /// Why nothing is selected.
    pub async fn nothing(&self) -> Result<nothing::Nothing> {
        nothing::why(&self.catalog, &self.options.filter).await
    }

    /// Keeps what a dry run shows, so that `--plan` can carry out exactly that; its id. A draft that was kept is what it
    /// is.
    pub async fn keep(&self, draft: &Draft) -> Result<String> {
        let archive_id = &self.catalog.archive().archive_id;
        let content = DraftContent {
            dialects_digest: self.dialects_digest.clone(),
            filter: self.asked_for(draft),
            options: self.options.rules.clone(),
            selected: draft.counts.selected,
            to_restore: draft.counts.to_restore,
            skipped: draft.counts.by_reason(),
            cuts: draft.cuts.clone(),
        };
        let id = content.id(archive_id)?;
        let doc = DraftDoc {
            version: LEDGER_VERSION,
            archive_id: archive_id.clone(),
            created_at: rfc3339(now_us()),
            created_by: self.options.process.user.clone(),
            program_version: PROGRAM_VERSION.to_owned(),
            content,
        };
        drafts::keep(self.store(), &id, &doc, &self.options.values).await?;
        Ok(id)
    }

    /// What selected a draft's records in the first place.
    fn asked_for(&self, draft: &Draft) -> FilterDoc {
        let drafted = self.options.draft.as_ref();
        drafted.map_or_else(|| draft.filter.doc().clone(), |drafted| drafted.content.filter.clone())
    }

    /// Writes the plan. Nothing is sent yet.
    pub async fn begin(&self, draft: Draft) -> Result<(PlanDoc, Fresh)> {
        let random = self.options.process.id.get(..8).unwrap_or_default();
        let group = format!("dlq-archiver-restore-{}-{random}", draft.id);
        let (sink, delivery_reason) =
            Sink::open(&self.target, &group, self.options.delivery, draft.limits.sizes.values().min().copied()).await?;
        // What is too large now may fit when the restore is resumed; and what is skipped has the same reason then.
        let not_taken = draft.counts.skipped.keys().filter(|skip| skip.why.is_of_target());
        let targets: BTreeSet<&String> =
            draft.counts.targets.iter().chain(not_taken.filter_map(|skip| skip.target.as_ref())).collect();
        let targets = targets.into_iter().map(|t| (t.clone(), self.targets.get(t).copied().unwrap_or(0)));
        let archive_id = &self.catalog.archive().archive_id;
        let drafted = self.options.draft.as_ref().map(|drafted| drafted.content.id(archive_id));
        let plan = PlanDoc {
            version: LEDGER_VERSION,
            restore_id: draft.id.clone(),
            archive_id: self.catalog.archive().archive_id.clone(),
            digest: self.options.digest.clone(),
            created_at: rfc3339(now_us()),
            created_by: self.options.process.user.clone(),
            by: self.options.by.clone(),
            reason: self.options.reason.clone(),
            program_version: PROGRAM_VERSION.to_owned(),
            dialects_digest: self.dialects_digest.clone(),
            draft: drafted.transpose()?,
            filter: self.asked_for(&draft),
            options: self.options.rules.clone(),
            delivery: sink.delivery(),
            group,
            delivery_reason,
            targets: targets.collect(),
            windows: draft.limits.windows,
            selected: draft.counts.selected,
            to_restore: draft.counts.to_restore,
            skipped: draft.counts.by_reason(),
            cuts: draft.cuts,
        };
        Folder::new(self.store(), &draft.id).create_plan(&plan, &self.options.values).await?;
        turn::take(self.store(), &plan, &self.options.process).await?;
        tracing::info!(
            restore_id = plan.restore_id,
            delivery = plan.delivery.as_str(),
            "plan written; {}",
            plan.delivery_reason
        );
        Ok((plan, Fresh { sink, kept: draft.kept }))
    }
}

/// Each record of a cut, with its original where that was read again.
pub(super) async fn each(
    cut: &Cut,
    originals: &mut Originals,
    mut then: impl FnMut(usize, Option<&Original<'_>>),
) -> Result<()> {
    let mut next = 0;
    while next < cut.len() {
        originals.load(cut.offset(next)).await?;
        let (loaded, from) = (&*originals, next);
        let unready = || (from + 1..cut.len()).find(|i| !loaded.is_ready(cut.offset(*i)));
        next = in_place(|| {
            let to = unready().unwrap_or(cut.len());
            (from..to).for_each(|i| then(i, loaded.at(cut.offset(i)).as_ref()));
            to
        });
    }
    Ok(())
}

/// How many records of the plan are known to be done. A process that is alive writes while this is listed, so what does
/// not fit is not judged here.
fn reached(sent: &Sent) -> u64 {
    counted(&sent.pieces, &sent.runs).map_or(0, |(_, reached)| reached)
}
