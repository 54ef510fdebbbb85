//! `restore`: puts archived records back into Kafka.
//!
//! A record's way: [`crate::catalog`] reads it from a cut that the plan names, [`plan`] decides what becomes of it,
//! [`batch`] puts it with its neighbours, [`delivery`] sends them, [`audit`] writes down what went where, and
//! [`pieces`] tells after a crash which of that counts. [`past`] is what earlier restores did, [`turn`] keeps others
//! that overlap apart, [`ahead`] two processes of one, [`limits`] asks what targets take and keep, [`nothing`] says why
//! none matches. [`going`] is one run; this module ties them together. Order is kept within each archived partition.
//!
//! Invariant: nothing is sent before the plan is durable and has its turn.

mod ahead;
pub mod audit;
pub mod batch;
pub mod counts;
pub mod delivery;
mod going;
mod limits;
pub mod nothing;
pub mod past;
pub mod pieces;
pub mod plan;
mod turn;

use crate::archive::{Stage, now_us, rfc3339};
use crate::catalog::{Catalog, Reading, Selected};
use crate::cut::PROGRAM_VERSION;
use crate::dialect::Dialects;
use crate::error::{Error, Kind, Result};
use crate::filter::Filter;
use crate::kafka::{Admin, Connection};
use crate::layout;
use crate::ledger::{DataObject, LEDGER_VERSION, Manifest};
use crate::store::Store;
use ahead::Ahead;
use audit::{Closing, DoneDoc, Folder, Process, Sent};
use batch::Limits;
use counts::Counts;
use delivery::{Asked, Sink};
use going::Going;
use limits::{DESCRIBE, TopicLimits};
use pieces::{counted, redone};
use plan::{Delivery, PlanCut, PlanDoc, PlanObject, RuleOptions, Rules, Verdict, Window};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::watch;

/// Hex digits of the command's digest that begin a restore's id: the same command can only have one new restore.
const ID_DIGITS: usize = 12;

#[derive(Debug, Clone)]
pub struct Options {
    pub filter: Filter,
    pub rules: RuleOptions,
    pub delivery: Asked,
    pub limits: Limits,
    /// See [`plan::digest`].
    pub digest: String,
    pub process: Process,
    /// Id of an unfinished restore to go on with; filter and rules are its plan's.
    pub resume: Option<String>,
    /// End unfinished restores that overlap, of the same command too: see [`Restore::take_over`].
    pub take_over: bool,
}

/// How far it is; read by the progress display.
#[derive(Debug, Default)]
pub struct Counters {
    scanned: AtomicU64,
    done: AtomicU64,
    sent: AtomicU64,
}

impl Counters {
    /// Records looked at for the plan.
    pub fn scanned(&self) -> u64 {
        self.scanned.load(Relaxed)
    }
    /// Of the plan: sent or skipped.
    pub fn done(&self) -> u64 {
        self.done.load(Relaxed)
    }
    /// Sent by this run.
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }
}

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
    cuts: Vec<PlanCut>,
    limits: TopicLimits,
}

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

/// A restore of one command.
pub struct Restore {
    catalog: Catalog,
    connection: Connection,
    dialects: Dialects,
    dialects_digest: String,
    options: Options,
    archived: BTreeSet<String>,
    targets: BTreeMap<String, i32>,
    counters: Arc<Counters>,
    /// Set when the brokers turned out not to tell topics' settings, so that it is not waited for again.
    untold: AtomicBool,
}

impl Restore {
    /// Looks at the archive's topics and the brokers'.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] if `--to` names no topic, or one that is refused.
    pub async fn new(
        catalog: Catalog,
        connection: Connection,
        dialects: Dialects,
        options: Options,
        counters: Arc<Counters>,
        start_timeout: Duration,
    ) -> Result<Self> {
        let archived = catalog.partitions(&Filter::default()).await?.into_iter().map(|p| p.genesis.topic).collect();
        let (to, target) = (connection.clone(), options.rules.to.clone());
        let asked = tokio::task::spawn_blocking(move || {
            let admin = Admin::new(&to)?;
            admin.wait(start_timeout)?;
            admin.topics(target.as_slice(), Duration::from_secs(30)).map_err(|e| e.context("--to"))?;
            admin.topics(&["^".to_owned()], Duration::from_secs(30))
        });
        let topics = asked.await.map_err(|e| Error::internal(format!("a worker thread failed: {e}")))??;
        let partitions = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        let targets = topics.into_iter().map(|t| (t.name, partitions(t.partitions.len()))).collect();
        let dialects_digest = dialects.digest();
        let restore = Self {
            catalog,
            connection,
            dialects,
            dialects_digest,
            options,
            archived,
            targets,
            counters,
            untold: AtomicBool::new(false),
        };
        if let Some(to) = &restore.options.rules.to
            && restore
                .rules(&restore.options.rules, &restore.targets, &BTreeMap::new(), &BTreeMap::new())
                .is_dead_letter(to)
        {
            return Err(Error::config(format!(
                "--to {to} is a dead-letter topic: its records would be archived as new failures. With \
                 --allow-dead-letter-target it is taken all the same"
            )));
        }
        Ok(restore)
    }

    fn store(&self) -> &dyn Store {
        &**self.catalog.store()
    }

    fn rules<'a>(
        &'a self,
        options: &'a RuleOptions,
        targets: &'a BTreeMap<String, i32>,
        limits: &'a BTreeMap<String, u64>,
        windows: &'a BTreeMap<String, Window>,
    ) -> Rules<'a> {
        Rules { options, dialects: &self.dialects, targets, limits, windows, archived: &self.archived }
    }

    /// The plan that was named to go on with.
    async fn resumed(&self, id: &str) -> Result<Prepared> {
        let folder = Folder::new(self.store(), id);
        let plan = match audit::is_id(id) {
            true => folder.plan().await?,
            false => None,
        };
        let Some(plan) = plan else {
            let open: Vec<String> = audit::past(self.store(), None).await?.1;
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
        let (past, open) = audit::past(self.store(), None).await?;
        let mut counts = Counts::new(self.options.filter.record_ids());
        let (mut planned, mut limits) = (Vec::new(), TopicLimits::new(now_us() / 1000));
        let selected = self.catalog.select(&self.options.filter).await?;
        let mut objects: HashMap<_, _> = selected.iter().map(|s| (place(s), s.objects.clone())).collect();
        let mut cuts = self.catalog.cuts(selected, &self.options.filter, Reading::RESTORE);
        while let Some(cut) = cuts.next().await? {
            if cut.is_empty() {
                continue;
            }
            let m = cut.manifest();
            let past = past.of(&m.topic, m.generation, m.partition);
            let decide = |limits: &TopicLimits| -> Vec<Verdict> {
                let rules = self.rules(&self.options.rules, &self.targets, &limits.sizes, &limits.windows);
                tokio::task::block_in_place(|| cut.iter().map(|record| rules.decide(&record, past)).collect())
            };
            let mut verdicts = decide(&limits);
            if self.ask_limits(&verdicts, &mut limits).await {
                verdicts = decide(&limits);
            }
            cut.iter().zip(&verdicts).for_each(|(record, verdict)| counts.add(&record, verdict));
            self.counters.scanned.fetch_add(cut.len() as u64, Relaxed);
            let objects = objects.remove(&(m.topic.clone(), m.partition, m.generation, m.from)).unwrap_or_default();
            planned.push(plan_cut(m, cut.len() as u64, &objects));
        }
        let mut overlapping = Vec::new();
        for id in open {
            let plan = Folder::new(self.store(), &id).plan().await?;
            overlapping.extend(plan.filter(|plan| plan.overlaps(&planned, self.options.filter.doc())));
        }
        counts.untold = self.untold(&counts.targets, &limits);
        let id = format!("{prefix}{}", number + 1);
        Ok(Prepared::New(Box::new(Draft { counts, overlapping, id, cuts: planned, limits })))
    }

    /// A target of the plan that is not there any more, as far as the brokers tell.
    async fn gone(&self, plan: &PlanDoc) -> Option<String> {
        let to = self.connection.clone();
        let asked = tokio::task::spawn_blocking(move || Admin::new(&to)?.topics(&["^".to_owned()], DESCRIBE)).await;
        let there: BTreeSet<String> = asked.ok()?.ok()?.into_iter().map(|topic| topic.name).collect();
        plan.targets.keys().find(|topic| !there.contains(*topic)).cloned()
    }

    /// Ends the unfinished restores that may select the same records, this command's own included: fences them, and
    /// writes their last lists, so that what they sent is not sent again. Their ids.
    pub async fn take_over(&self) -> Result<Vec<String>> {
        let selected = self.catalog.select(&self.options.filter).await?;
        let cuts: Vec<PlanCut> = selected.iter().map(|s| plan_cut(&s.manifest, 0, &s.objects)).collect();
        let mut ended = Vec::new();
        for id in audit::past(self.store(), None).await?.1 {
            let folder = Folder::new(self.store(), &id);
            let plan = folder.plan().await?;
            if let Some(plan) = plan.filter(|p| p.overlaps(&cuts, self.options.filter.doc())) {
                self.end(&folder, &plan).await.map_err(|e| e.context(format!("--take-over of restore {id}")))?;
                ended.push(id);
            }
        }
        Ok(ended)
    }

    async fn end(&self, folder: &Folder<'_>, plan: &PlanDoc) -> Result<()> {
        let reason = format!("taken over by {} at {}", self.options.process.user, self.options.process.now);
        loop {
            let ahead = Ahead::look(&self.connection, folder, plan, None, None).await?;
            if ahead.sent.closing.is_some() {
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
                folder.finish(plan, &sent, &rfc3339(now_us()), Some(reason)).await?;
            }
            return Ok(());
        }
    }

    /// Why nothing is selected.
    pub async fn nothing(&self) -> Result<nothing::Nothing> {
        nothing::why(&self.catalog, &self.options.filter).await
    }

    /// Writes the plan. Nothing is sent yet.
    pub async fn begin(&self, draft: Draft) -> Result<(PlanDoc, Sink)> {
        let random = self.options.process.id.get(..8).unwrap_or_default();
        let group = format!("dlq-archiver-restore-{}-{random}", draft.id);
        let (sink, delivery_reason) =
            Sink::open(&self.connection, &group, self.options.delivery, draft.limits.sizes.values().min().copied())
                .await?;
        // What is too large now may fit when the restore is resumed; and what is skipped has the same reason then.
        let not_taken = draft.counts.skipped.keys().filter(|skip| skip.why.is_of_target());
        let targets: BTreeSet<&String> =
            draft.counts.targets.iter().chain(not_taken.filter_map(|skip| skip.target.as_ref())).collect();
        let targets = targets.into_iter().map(|t| (t.clone(), self.targets.get(t).copied().unwrap_or(0)));
        let plan = PlanDoc {
            version: LEDGER_VERSION,
            restore_id: draft.id.clone(),
            archive_id: self.catalog.archive().archive_id.clone(),
            digest: self.options.digest.clone(),
            created_at: rfc3339(now_us()),
            created_by: self.options.process.user.clone(),
            program_version: PROGRAM_VERSION.to_owned(),
            dialects_digest: self.dialects_digest.clone(),
            filter: self.options.filter.doc().clone(),
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
        Folder::new(self.store(), &draft.id).create_plan(&plan).await?;
        turn::take(self.store(), &plan, &self.options.process).await?;
        tracing::info!(
            restore_id = plan.restore_id,
            delivery = plan.delivery.as_str(),
            "plan written; {}",
            plan.delivery_reason
        );
        Ok((plan, sink))
    }

    /// Carries a plan out, from where earlier runs of it came to.
    ///
    /// # Errors
    /// What stopped it, with how far it is. The same command goes on from there.
    pub async fn run(&self, plan: &PlanDoc, sink: Option<Sink>, stage: watch::Receiver<Stage>) -> Result<End> {
        let folder = Folder::new(self.store(), &plan.restore_id);
        if plan.dialects_digest != self.dialects_digest {
            tracing::warn!(
                "the plan was made with other dialect tables (program version {}): headers may be stripped otherwise",
                plan.program_version
            );
        }
        let limits = self.limits(plan.targets.keys().cloned().collect()).await;
        if sink.is_none() {
            turn::take(self.store(), plan, &self.options.process).await?;
        }
        let (ahead, start) = self.take_run(&folder, plan, sink, limits.values().min().copied()).await?;
        let Ahead { run, sink, sent, .. } = ahead;
        let mut going = Going { restore: self, plan, limits, folder, sink, sent, run, done: start, stage };
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
        let done = going.folder.finish(plan, &going.sent, &rfc3339(now_us()), None).await?;
        Ok(End::Done(Box::new(done)))
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
            let mut ahead = Ahead::look(&self.connection, folder, plan, sink.take(), limit).await?;
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

/// How many records of the plan are known to be done. A process that is alive writes while this is listed, so what does
/// not fit is not judged here.
fn reached(sent: &Sent) -> u64 {
    counted(&sent.pieces, &sent.runs).map_or(0, |(_, reached)| reached)
}

type CutPlace = (String, i32, u32, i64);

fn place(selected: &Selected) -> CutPlace {
    let m = &selected.manifest;
    (m.topic.clone(), m.partition, m.generation, m.from)
}

fn plan_cut(m: &Manifest, selected: u64, objects: &[DataObject]) -> PlanCut {
    PlanCut {
        manifest: layout::manifest_key(&layout::ledger_prefix(&m.topic, m.partition, m.generation), m.from),
        topic: m.topic.clone(),
        partition: m.partition,
        generation: m.generation,
        from: m.from,
        selected,
        objects: objects.iter().map(|o| PlanObject { key: o.key.clone(), sha256: o.sha256.clone() }).collect(),
    }
}
