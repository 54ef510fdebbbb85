//! `restore`: puts archived records back into Kafka.
//!
//! A record's way: [`crate::catalog`] reads it from a cut that the plan names, [`plan`] decides what becomes of it,
//! [`batch`] puts it with its neighbours, [`delivery`] sends them, [`audit`] writes down what went where, and
//! [`pieces`] tells after a crash which of that counts. [`past`] is what earlier restores did. This module ties them
//! together. Order is kept within each archived partition.
//!
//! Invariant: nothing is sent before the plan is durable, and no batch becomes visible (transactional) or progress
//! (plain) before its list is durable.

pub mod audit;
pub mod batch;
pub mod delivery;
pub mod past;
pub mod pieces;
pub mod plan;

use crate::archive::{Stage, now_us, rfc3339};
use crate::catalog::{Catalog, Cut, Reading, Selected};
use crate::cut::PROGRAM_VERSION;
use crate::dialect::Dialects;
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::format::restored::Restored;
use crate::kafka::{Admin, Connection};
use crate::layout;
use crate::ledger::LEDGER_VERSION;
use crate::store::Store;
use audit::{DoneDoc, Folder, Process, Sent};
use batch::{Batch, Batcher, Limits};
use delivery::{Asked, Sink};
use past::Past;
use pieces::{Piece, counted};
use plan::{Counts, Delivery, PlanCut, PlanDoc, PlanObject, RuleOptions, Rules};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
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
    /// Leave an unfinished plan of the same command alone and make another.
    pub new_plan: bool,
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
    New(Draft),
    /// An unfinished plan of the same command, and how many of its records are known to be done.
    Unfinished(Box<PlanDoc>, u64),
}

/// A plan that is not written yet.
#[derive(Debug)]
pub struct Draft {
    pub counts: Counts,
    id: String,
    cuts: Vec<PlanCut>,
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
        let restore = Self { catalog, connection, dialects, dialects_digest, options, archived, targets, counters };
        if let Some(to) = &restore.options.rules.to
            && restore.rules(&restore.options.rules, &restore.targets).is_dead_letter(to)
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

    fn rules<'a>(&'a self, options: &'a RuleOptions, targets: &'a BTreeMap<String, i32>) -> Rules<'a> {
        Rules { options, dialects: &self.dialects, targets, archived: &self.archived }
    }

    /// Finds the command's unfinished plan, or looks at every selected record for a new one. Writes nothing.
    pub async fn prepare(&self) -> Result<Prepared> {
        let prefix = format!("{}-", &self.options.digest[..ID_DIGITS]);
        let mut number = 0;
        for id in audit::ids(self.store(), &prefix).await? {
            number = number.max(id.strip_prefix(&prefix).and_then(|n| n.parse().ok()).unwrap_or(0u32));
            let folder = Folder::new(self.store(), &id);
            if self.options.new_plan || folder.is_done().await? {
                continue;
            }
            if let Some(plan) = folder.plan().await?.filter(|p| p.digest == self.options.digest) {
                let sent = folder.sent().await?;
                let (_, reached) = counted(&sent.pieces, &sent.runs)?;
                return Ok(Prepared::Unfinished(Box::new(plan), reached));
            }
        }
        let past = audit::past(self.store(), None).await?;
        let rules = self.rules(&self.options.rules, &self.targets);
        let (mut counts, mut planned) = (Counts::default(), Vec::new());
        let selected = self.catalog.select(&self.options.filter).await?;
        let mut objects: HashMap<_, _> = selected.iter().map(|s| (place(s), s.objects.clone())).collect();
        let mut cuts = self.catalog.cuts(selected, &self.options.filter, Reading::RESTORE);
        while let Some(cut) = cuts.next().await? {
            if cut.is_empty() {
                continue;
            }
            let m = cut.manifest();
            let past = past.of(&m.topic, m.generation, m.partition);
            tokio::task::block_in_place(|| {
                for record in cut.iter() {
                    counts.add(&record, &rules.decide(&record, past));
                }
            });
            self.counters.scanned.fetch_add(cut.len() as u64, Relaxed);
            let objects = objects.remove(&(m.topic.clone(), m.partition, m.generation, m.from)).unwrap_or_default();
            planned.push(plan_cut(&cut, &objects));
        }
        Ok(Prepared::New(Draft { counts, id: format!("{prefix}{}", number + 1), cuts: planned }))
    }

    /// Writes the plan. Nothing is sent yet.
    pub async fn begin(&self, draft: Draft) -> Result<(PlanDoc, Sink)> {
        let random = self.options.process.id.get(..8).unwrap_or_default();
        let group = format!("dlq-archiver-restore-{}-{random}", draft.id);
        let (sink, delivery_reason) = Sink::open(&self.connection, &group, self.options.delivery).await?;
        let targets = draft.counts.targets.iter().map(|t| (t.clone(), self.targets.get(t).copied().unwrap_or(0)));
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
            selected: draft.counts.selected,
            to_restore: draft.counts.to_restore,
            skipped: draft.counts.by_reason(),
            cuts: draft.cuts,
        };
        Folder::new(self.store(), &draft.id).create_plan(&plan).await?;
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
        // The number before fencing, see `pieces`; what was sent is only certain after it.
        let run = folder.sent().await?.last_run() + 1;
        if plan.dialects_digest != self.dialects_digest {
            tracing::warn!(
                "the plan was made with other dialect tables (program version {}): headers may be stripped otherwise",
                plan.program_version
            );
        }
        let sink = match sink {
            Some(sink) => sink,
            None => Sink::open(&self.connection, &plan.group, Asked::Exactly(plan.delivery)).await?.0,
        };
        let sent = folder.sent().await?;
        let mut going = Going { restore: self, plan, folder, sink, sent, run, done: 0, stage };
        going.done = going.start().await?;
        self.counters.done.store(going.done, Relaxed);
        if going.done < plan.selected {
            going.folder.begin_run(run, going.done, &self.options.process).await?;
            going.sent.runs.insert(run, going.done);
            let whole = match going.send_all().await {
                Ok(whole) => whole,
                Err(e) => {
                    going.sink.abort().await;
                    return Err(Error::new(
                        e.kind(),
                        format!(
                            "restore {} stopped: {}. {} of {} selected records are done and listed; the same command \
                             goes on from there",
                            plan.restore_id,
                            e.message(),
                            going.done,
                            plan.selected
                        ),
                    ));
                }
            };
            if !whole {
                let (restore_id, selected) = (plan.restore_id.clone(), plan.selected);
                return Ok(End::Stopped { restore_id, done: going.done, selected });
            }
        }
        let done = going.folder.finish(plan, &going.sent, &rfc3339(now_us())).await?;
        Ok(End::Done(Box::new(done)))
    }
}

type CutPlace = (String, i32, u32, i64);

fn place(selected: &Selected) -> CutPlace {
    let m = &selected.manifest;
    (m.topic.clone(), m.partition, m.generation, m.from)
}

fn plan_cut(cut: &Cut, objects: &[crate::ledger::DataObject]) -> PlanCut {
    let m = cut.manifest();
    PlanCut {
        manifest: layout::manifest_key(&layout::ledger_prefix(&m.topic, m.partition, m.generation), m.from),
        topic: m.topic.clone(),
        partition: m.partition,
        generation: m.generation,
        from: m.from,
        selected: cut.len() as u64,
        objects: objects.iter().map(|o| PlanObject { key: o.key.clone(), sha256: o.sha256.clone() }).collect(),
    }
}

/// One run of a plan.
struct Going<'a> {
    restore: &'a Restore,
    plan: &'a PlanDoc,
    folder: Folder<'a>,
    sink: Sink,
    sent: Sent,
    run: u32,
    /// Records of the plan that are sent or skipped, and listed.
    done: u64,
    stage: watch::Receiver<Stage>,
}

impl Going<'_> {
    /// Where this run begins.
    async fn start(&mut self) -> Result<u64> {
        let id = &self.plan.restore_id;
        let start = match self.plan.delivery {
            Delivery::Plain => counted(&self.sent.pieces, &self.sent.runs)?.1,
            Delivery::Transactional => {
                let topic = self.plan.progress_topic()?;
                match self.sink.progress(topic).await? {
                    Some(progress) => progress,
                    None if self.sent.pieces.is_empty() => {
                        self.sink.begin_progress(topic).await?;
                        0
                    }
                    None => {
                        return Err(Error::failed(format!(
                            "the progress of restore {id} is gone from Kafka (group {}, topic {topic}: it expires some \
                             days after the last batch, or with the topic), so it is not known whether its last batch \
                             became visible. Run the command with --new-plan: what is listed in restores/{id}/sent is \
                             skipped then as perhaps restored; compare the last list with the topic, and add \
                             --include-restored for what is missing",
                            self.plan.group
                        )));
                    }
                }
            }
        };
        let mut runs = self.sent.runs.clone();
        runs.insert(self.run, start);
        let (_, listed) = counted(&self.sent.pieces, &runs)?;
        if listed != start || start > self.plan.selected {
            return Err(Error::corrupt(format!(
                "restore {id}: {start} records are committed, but the lists in restores/{id}/sent end at {listed}: some \
                 were deleted. What was sent is not known: look into the target topics before restoring again"
            )));
        }
        Ok(start)
    }

    /// Sends what is left of the plan; whether all of it.
    async fn send_all(&mut self) -> Result<bool> {
        let restore = self.restore;
        let rules = restore.rules(&self.plan.options, &self.plan.targets);
        let filter = Filter::new(self.plan.filter.clone())?;
        let past = audit::past(restore.store(), Some(&self.plan.restore_id)).await?;
        // Cuts that are done are not read again.
        let (mut number, mut left) = (0, Vec::new());
        for cut in &self.plan.cuts {
            if number + cut.selected > self.done {
                left.push((number, cut));
            }
            number += cut.selected;
        }
        let selected = self.planned(&filter, &left).await?;
        let mut cuts = restore.catalog.cuts(selected, &filter, Reading::RESTORE);
        let mut batcher = Batcher::new(restore.options.limits, self.done);
        for (first, planned) in left {
            let cut = cuts.next().await?.ok_or_else(|| Error::internal("fewer cuts were read than asked for"))?;
            if cut.len() as u64 != planned.selected {
                return Err(Error::corrupt(format!(
                    "{} has {} matching records, the plan counted {}: the archive or the program changed since",
                    planned.manifest,
                    cut.len(),
                    planned.selected
                )));
            }
            if !self.send_cut(&rules, &past, &cut, self.done.saturating_sub(first), &mut batcher).await? {
                return Ok(false);
            }
        }
        match batcher.finish() {
            Some(batch) => self.flush(batch).await.map(|()| true),
            None => Ok(true),
        }
    }

    /// The cuts as the catalog has them now, which must be what the plan has.
    async fn planned(&self, filter: &Filter, left: &[(u64, &PlanCut)]) -> Result<Vec<Selected>> {
        let found = self.restore.catalog.select(filter).await?;
        let mut found: HashMap<CutPlace, Selected> = found.into_iter().map(|s| (place(&s), s)).collect();
        left.iter()
            .map(|(_, cut)| {
                let place = (cut.topic.clone(), cut.partition, cut.generation, cut.from);
                let same = |s: &Selected| {
                    s.objects.len() == cut.objects.len()
                        && s.objects.iter().zip(&cut.objects).all(|(a, b)| a.key == b.key && a.sha256 == b.sha256)
                };
                found.remove(&place).filter(same).ok_or_else(|| {
                    Error::corrupt(format!(
                        "{} is not what it was when the plan was made: run `dlq-archiver verify`",
                        cut.manifest
                    ))
                })
            })
            .collect()
    }

    async fn send_cut(
        &mut self,
        rules: &Rules<'_>,
        past: &Past,
        cut: &Cut,
        skip: u64,
        batcher: &mut Batcher,
    ) -> Result<bool> {
        let m = cut.manifest();
        let past = past.of(&m.topic, m.generation, m.partition);
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        for i in skip.min(cut.len())..cut.len() {
            let full = {
                let record = cut.get(i);
                let verdict = rules.decide(&record, past);
                batcher.push(rules, &record, verdict)
            };
            if let Some(batch) = full {
                self.flush(batch).await?;
                if *self.stage.borrow() > Stage::Running {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Sends one batch: records, then their list, then (in the same transaction as the records) the progress.
    async fn flush(&mut self, batch: Batch) -> Result<()> {
        // Without transactions nothing else stops a process that was thought to be dead.
        if self.plan.delivery == Delivery::Plain && self.folder.is_superseded(self.run).await? {
            return Err(Error::fenced("another process runs this restore"));
        }
        let batch = Arc::new(batch);
        let places = self.sink.send(batch.clone(), self.plan.options.timestamps).await?;
        let restored_at_us = now_us();
        let rows: Vec<Restored> = (batch.rows.iter().zip(places))
            .map(|((id, place), (target_partition, target_offset))| Restored {
                id: id.clone(),
                target_topic: place.topic.clone(),
                target_partition,
                target_offset,
                restore_id: self.plan.restore_id.clone(),
                restored_at_us,
            })
            .collect();
        let piece = Piece { start: batch.start, end: batch.end, run: self.run };
        self.folder.put_piece(piece, &rows).await?;
        self.sink.commit(self.plan.progress_topic()?, batch.end).await?;
        self.sent.pieces.push(piece);
        self.done = batch.end;
        self.restore.counters.done.store(self.done, Relaxed);
        self.restore.counters.sent.fetch_add(rows.len() as u64, Relaxed);
        Ok(())
    }
}
