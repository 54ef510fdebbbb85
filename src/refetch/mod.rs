//! `refetch`: reads the originals of dead letters that have nothing but headers, or not all of their original, from the
//! topics that they came from, and keeps them beside the data.
//!
//! An original's way: [`crate::catalog`] reads the dead letters, a [`chunk`] of them at a time looks in the source topics
//! ([`brokers`]), [`judge`] says whether what is there is the original, [`writing`] keeps it. [`documents`] are the lists of
//! what is kept, [`index`] reads them, and [`originals`] what is kept.
//!
//! Owns what is looked for, and how much at a time. Invariants: data objects and the ledger stay as they are; what was not
//! answered is looked for again by the next run.

mod brokers;
mod chunk;
pub mod documents;
pub mod expiry;
pub mod follow;
pub mod index;
pub mod judge;
pub mod originals;
mod writing;

pub use brokers::Brokers;
pub use chunk::Unanswered;
pub use writing::Written;

use crate::catalog::{Catalog, Cut, Reading, Selected};
use crate::dialect::Dialects;
use crate::error::Result;
use crate::filter::{Filter, is_exact};
use crate::format::refetched::State;
use crate::host;
use crate::ledger::{DataObject, Manifest};
use crate::stage::{Stage, StageReceiver};
use crate::store::Created;
use chunk::{Answers, Chunk, Letter, Step};
use documents::Known;
use index::Index;
use judge::Sightings;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use writing::Writer;

/// Dead letters that are looked at together before the size of an original is known, and at most.
const FIRST: usize = 10_000;
const MOST: usize = 200_000;

#[derive(Debug, Clone)]
pub struct Options {
    pub filter: Filter,
    /// Look also for what was looked for before and was not there.
    pub again: bool,
    /// Bytes of originals that are held at a time.
    pub memory: usize,
    /// What was not looked for by then is left to the next run.
    pub deadline: Option<Instant>,
    /// What says where a dead letter has its original's key and value.
    pub dialects: Arc<Dialects>,
}

impl Options {
    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| host::now() >= deadline)
    }
}

/// How far it is; read by the progress display.
#[derive(Debug, Default)]
pub struct Counters {
    found: AtomicU64,
    answered: AtomicU64,
}

impl Counters {
    /// Dead letters that lack an original.
    pub fn found(&self) -> u64 {
        self.found.load(Relaxed)
    }
    pub fn answered(&self) -> u64 {
        self.answered.load(Relaxed)
    }
}

/// How a run ended.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Dead letters that lack something of their original, and had no row before.
    pub looked_for: u64,
    pub written: Written,
    /// With [`Options::again`]: not there before, and not there now. Nothing is written of them.
    pub still: BTreeMap<State, u64>,
    /// They do not tell where they came from.
    pub without_origin: u64,
    pub unanswered: Vec<Unanswered>,
    /// Fetch requests to the brokers.
    pub fetches: u64,
    /// Asked to stop before the end, or out of time.
    pub stopped: bool,
}

/// Looks for the originals of all that the options select.
///
/// # Errors
/// What keeps the run from going on: the store, or wrong configuration. Topics that do not answer are in the outcome.
pub async fn run(
    options: &Options,
    catalog: &Catalog,
    brokers: &Brokers,
    counters: &Counters,
    stage: &StageReceiver,
) -> Result<Outcome> {
    let mut selected = catalog.select(&options.filter).await?;
    for s in &mut selected {
        s.objects.retain(|o| may_lack(o, &options.dialects));
    }
    selected.retain(|s| !s.objects.is_empty());
    refetch(options, catalog, brokers, selected, counters, stage).await
}

/// Whether records of this data object may lack their originals.
pub fn may_lack(o: &DataObject, dialects: &Dialects) -> bool {
    o.counts.iter().any(|c| !is_exact(c) || dialects.may_lack_original(&c.dialect))
}

async fn refetch(
    options: &Options,
    catalog: &Catalog,
    brokers: &Brokers,
    mut selected: Vec<Selected>,
    counters: &Counters,
    stage: &StageReceiver,
) -> Result<Outcome> {
    let manifests: Vec<Arc<Manifest>> = selected.iter().map(|s| s.manifest.clone()).collect();
    let manifests: Vec<&Manifest> = manifests.iter().map(|m| &**m).collect();
    let mut known = Index::new(catalog.store().clone()).of_all(&manifests).await?;
    let mut sightings = Sightings::default();
    known.iter().flat_map(|k| &k.sources).for_each(|s| sightings.add(s));
    for (s, known) in selected.iter_mut().zip(&known) {
        let missing = |key: &str| known.sidecars.iter().any(|k| k.doc.data_object == key && k.offsets != k.refetched);
        s.objects.retain(|o| !known.whole.contains(&o.key) || options.again && missing(&o.key));
    }
    let mut known = known.iter_mut();
    let mut open = Vec::new();
    for s in selected {
        let known = known.next().map(std::mem::take).unwrap_or_default();
        if !s.objects.is_empty() {
            open.push((s, known));
        }
    }
    let (selected, known): (Vec<_>, Vec<_>) = open.into_iter().unzip();
    let mut run = Run {
        options,
        brokers,
        catalog,
        sightings,
        counters,
        stage,
        outcome: Outcome::default(),
        seen: (0, 0),
        cuts: Vec::new(),
        known: Vec::new(),
        letters: Vec::new(),
    };
    let mut cuts = catalog.cuts(selected, &options.filter, Reading::RESTORE);
    for known in known {
        let Some(cut) = cuts.next().await? else { break };
        if run.add(cut, known).await?.is_break() {
            break;
        }
    }
    if !run.outcome.stopped {
        let _ = run.look().await?;
    }
    if let Some(unjudged) = cuts.unjudged() {
        tracing::warn!("{unjudged}");
    }
    let brokers = brokers.clone();
    run.outcome.fetches = host::blocking(move || Ok(brokers.fetches())).await?;
    Ok(run.outcome)
}

struct Run<'a> {
    options: &'a Options,
    brokers: &'a Brokers,
    catalog: &'a Catalog,
    sightings: Sightings,
    counters: &'a Counters,
    stage: &'a StageReceiver,
    outcome: Outcome,
    /// Originals that were read, and their bytes.
    seen: (u64, u64),
    /// Of the chunk that is being filled.
    cuts: Vec<Arc<Cut>>,
    /// Of each of the cuts.
    known: Vec<Known>,
    letters: Vec<Letter>,
}

impl Run<'_> {
    /// Dead letters whose originals fit into half of the memory, as far as it can be guessed.
    fn room(&self) -> usize {
        let Some(mean) = self.seen.1.checked_div(self.seen.0) else { return FIRST };
        let fit = self.options.memory as u64 / 2 / mean.max(1);
        usize::try_from(fit).unwrap_or(MOST).clamp(1, MOST)
    }

    /// Takes the open dead letters of one cut; looks for originals whenever enough of them have come together.
    async fn add(&mut self, cut: Cut, known: Known) -> Result<ControlFlow<()>> {
        let cut = Arc::new(cut);
        let known = self.adopt(&cut, known).await?;
        let mut open = self.open(&cut, &known).into_iter().peekable();
        if open.peek().is_none() {
            return Ok(ControlFlow::Continue(()));
        }
        self.cuts.push(cut.clone());
        self.known.push(known);
        while open.peek().is_some() {
            let number = self.cuts.len().saturating_sub(1);
            let room = self.room().saturating_sub(self.letters.len());
            for record in open.by_ref().take(room) {
                self.counters.found.fetch_add(1, Relaxed);
                match chunk::origin(&cut.get(record)) {
                    Some(_) => self.letters.push(Letter { cut: number, record }),
                    None => self.outcome.without_origin += 1,
                }
            }
            // Cuts are held too.
            let held: usize = self.cuts.iter().map(|cut| cut.len()).sum();
            let full = self.letters.len() >= self.room() || open.peek().is_none() && held >= MOST;
            if full && self.look().await?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Records of a cut that are to be looked for.
    fn open(&self, cut: &Cut, known: &Known) -> Vec<usize> {
        let is_open =
            |i: &usize| cut.payload_state(*i).lacks_original() && known.is_open(cut.offset(*i), self.options.again);
        (0..cut.len()).filter(is_open).collect()
    }

    /// What another process wrote and did not list yet, or one that was killed.
    async fn adopt(&mut self, cut: &Cut, mut known: Known) -> Result<Known> {
        let store = &**self.catalog.store();
        let open: BTreeSet<String> = self.open(cut, &known).into_iter().map(|i| cut.object(i).key.clone()).collect();
        let mut adopted = Vec::new();
        for data_object in &open {
            adopted.extend(writing::adopt(store, data_object, &mut known).await?);
        }
        for object in &adopted {
            self.outcome.looked_for += object.rows;
            self.outcome.written.note(object, Created::Exists);
        }
        let whole = writing::whole(cut, &known);
        writing::list(store, cut.manifest(), &mut known, adopted, Vec::new(), whole).await?;
        Ok(known)
    }

    fn note_still(&mut self, chunk: &Chunk, answers: &Answers) {
        for a in answers.all.iter().filter(|a| a.state != State::Refetched) {
            let (cut, known) = (chunk.cuts.get(a.letter.cut), self.known.get(a.letter.cut));
            if cut.zip(known).is_some_and(|(cut, known)| known.of(cut.offset(a.letter.record)) == Some(false)) {
                *self.outcome.still.entry(a.state).or_default() += 1;
            }
        }
    }

    /// Looks for the originals of what has come together, and writes them. The last cut stays: it may have more.
    async fn look(&mut self) -> Result<ControlFlow<()>> {
        let letters = std::mem::take(&mut self.letters);
        self.outcome.looked_for += letters.len() as u64;
        let mut chunk = Chunk::new(Arc::new(self.cuts.clone()), &letters);
        let writer = Writer { store: self.catalog.store(), again: self.options.again };
        while let Some(step) = chunk.next(self.brokers, &mut self.sightings, self.options).await {
            let answers = match step {
                Step::Answered(answers) => answers,
                Step::Unanswered(unanswered) => {
                    self.outcome.unanswered.push(unanswered);
                    continue;
                }
            };
            let (records, bytes) = (answers.all.len() as u64, answers.batch.memory() as u64);
            self.seen = (self.seen.0 + records, self.seen.1 + bytes);
            self.note_still(&chunk, &answers);
            self.outcome.written.add(&writer.write(&chunk.cuts, &mut self.known, answers).await?);
            self.counters.answered.fetch_add(records, Relaxed);
            self.outcome.stopped |= self.stage.get() > Stage::Running || self.options.is_over();
            if self.outcome.stopped {
                return Ok(ControlFlow::Break(()));
            }
        }
        let done = self.cuts.len().saturating_sub(1);
        self.cuts.drain(..done);
        self.known.drain(..done);
        Ok(ControlFlow::Continue(()))
    }
}
