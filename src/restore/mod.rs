//! `restore`: puts archived records back into Kafka.
//!
//! A record's way: [`crate::catalog`] reads it from a cut that the [`plan`] names, [`rules`] decide what becomes of it,
//! [`batch`] puts it with its neighbours, [`delivery`] sends them, [`audit`] writes down what went where, and
//! [`pieces`] tells after a crash which of that counts. [`past`] is what earlier restores did, [`turn`] keeps others
//! that overlap apart, [`ahead`] two processes of one, [`limits`] asks what targets take and keep, [`nothing`] says why
//! none matches. [`export`] hands what would be sent to a file instead. [`planning`] finds or makes the plan, [`running`]
//! carries it out, [`building`] makes its batches, [`going`] is one run's sending; [`target`] is all that Kafka is asked,
//! [`returns`] what failed again meanwhile. [`report`] reads what restores left, [`chain`] whether their order holds. Order
//! is kept within each archived partition.
//!
//! Owns a restore's parts. Invariant: nothing is sent before the plan is durable and has its turn.

mod ahead;
pub mod attempts;
pub mod audit;
pub mod batch;
mod building;
pub mod chain;
pub mod counts;
pub mod delivery;
pub mod drafts;
pub mod export;
mod going;
pub mod headers;
mod limits;
pub mod nothing;
pub mod past;
pub mod pieces;
pub mod plan;
mod planning;
pub mod rate;
mod reach;
pub mod report;
pub mod returns;
pub mod rules;
mod running;
pub mod target;
pub mod turn;
pub mod values;
pub mod why;
pub mod window;

pub use planning::{Draft, Fresh, Prepared};
pub use reach::Reach;
pub use running::End;

use crate::catalog::{Catalog, Cut, Selected};
use crate::dialect::Dialects;
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::layout;
use crate::ledger::DataObject;
use crate::refetch::documents::{Known, Sidecar};
use crate::refetch::index::Index;
use crate::refetch::originals::Originals;
use crate::store::Store;
use audit::Process;
use batch::Limits;
use delivery::Asked;
use headers::HeaderRules;
use plan::{DraftDoc, PlanCut, PlanObject, RuleOptions};
use rate::Rate;
use roaring::RoaringTreemap;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use target::Target;
use values::Values;

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
    /// Carry out exactly what this dry run has shown; filter and rules are its own.
    pub draft: Option<DraftDoc>,
    /// Corrected values.
    pub values: Values,
    pub rate: Rate,
    /// Stop when more than so many of the records that this run sent have failed again.
    pub abort_on_failures: Option<u64>,
    /// Who decided, and why, as given.
    pub by: Option<String>,
    pub reason: Option<String>,
}

/// How far it is; read by the progress display.
#[derive(Debug, Default)]
pub struct Counters {
    scanned: AtomicU64,
    done: AtomicU64,
    /// Of `done`: by earlier runs.
    before: AtomicU64,
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
    pub fn done_by_this_run(&self) -> u64 {
        self.done().saturating_sub(self.before.load(Relaxed))
    }
    /// Sent by this run.
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }
}

/// A restore of one command.
pub struct Restore {
    catalog: Catalog,
    target: Arc<dyn Target>,
    dialects: Arc<Dialects>,
    dialects_digest: String,
    options: Options,
    archived: BTreeSet<String>,
    targets: BTreeMap<String, i32>,
    headers: HeaderRules,
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
        target: Arc<dyn Target>,
        dialects: Arc<Dialects>,
        options: Options,
        counters: Arc<Counters>,
        start_timeout: Duration,
    ) -> Result<Self> {
        let archived = catalog.partitions(&Filter::default()).await?.into_iter().map(|p| p.genesis.topic).collect();
        let topics = target.describe(options.rules.to.as_deref(), start_timeout).await?;
        let partitions = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        let targets = topics.into_iter().map(|t| (t.name, partitions(t.partitions.len()))).collect();
        let dialects_digest = dialects.digest();
        // The id that it will have is as long.
        let headers = HeaderRules::new(&options.rules.headers, &format!("{}-1", "0".repeat(plan::ID_DIGITS)))?;
        let restore = Self {
            catalog,
            target,
            dialects,
            dialects_digest,
            options,
            archived,
            targets,
            headers,
            counters,
            untold: AtomicBool::new(false),
        };
        check_target(&restore.options.rules, &restore.archived)?;
        Ok(restore)
    }

    fn store(&self) -> &dyn Store {
        &**self.catalog.store()
    }

    /// The originals of a cut's dead letters; with a plan those that it has, so that each run of it sends the same.
    async fn originals(&self, cut: &Cut, index: &mut Index, plan: Option<&PlanCut>) -> Result<Originals> {
        let lacks = (0..cut.len()).any(|i| cut.payload_state(i).lacks_original());
        let wanted = plan.is_none_or(|plan| !plan.refetched.is_empty());
        let mut known = if lacks && wanted { index.of(cut.manifest()).await? } else { Known::default() };
        if let Some(plan) = plan {
            let is_planned =
                |s: &Sidecar| plan.refetched.iter().any(|o| o.key == s.doc.key && o.sha256 == s.doc.sha256);
            known.sidecars.retain(is_planned);
            if known.sidecars.len() != plan.refetched.len() {
                return Err(Error::corrupt(format!(
                    "of the originals that the plan has for {}, not all are listed any more: run `dlq-archiver verify`",
                    plan.manifest
                )));
            }
        }
        Ok(Originals::new(self.catalog.store().clone(), known))
    }
}

/// Refuses a `--to` whose records would come back as dead letters. `archived`: topics of this archive's ledger.
fn check_target(rules: &RuleOptions, archived: &BTreeSet<String>) -> Result<()> {
    match &rules.to {
        Some(to) if rules::is_dead_letter(to, rules, archived) => Err(Error::config(format!(
            "--to {to} is a dead-letter topic: its records would be archived as new failures. With \
             --allow-dead-letter-target it is taken all the same"
        ))),
        _ => Ok(()),
    }
}

/// Topic, partition, generation, first offset.
type CutPlace = (String, i32, u32, i64);

fn place(selected: &Selected) -> CutPlace {
    let m = &selected.manifest;
    (m.topic.clone(), m.partition, m.generation, m.from)
}

/// A cut, with the records that were selected of it, as a plan has it.
pub(crate) fn plan_cut(cut: &Cut, objects: &[DataObject], originals: &[Sidecar]) -> PlanCut {
    let m = cut.manifest();
    let mut offsets: RoaringTreemap = (0..cut.len()).map(|i| cut.offset(i).cast_unsigned()).collect();
    offsets.optimize();
    PlanCut {
        manifest: layout::manifest_key(&layout::ledger_prefix(&m.topic, m.partition, m.generation), m.from),
        topic: m.topic.clone(),
        partition: m.partition,
        generation: m.generation,
        from: m.from,
        selected: cut.len() as u64,
        offsets,
        objects: objects.iter().map(|o| PlanObject { key: o.key.clone(), sha256: o.sha256.clone() }).collect(),
        refetched: originals
            .iter()
            .map(|s| PlanObject { key: s.doc.key.clone(), sha256: s.doc.sha256.clone() })
            .collect(),
    }
}

/// The cuts that a plan names, as the catalog has them now, with the objects that the plan names.
///
/// # Errors
/// [`crate::Kind::Corrupt`] if they are not what they were.
fn pinned<'p>(found: Vec<Selected>, cuts: impl Iterator<Item = &'p PlanCut>) -> Result<Vec<Selected>> {
    let mut found: HashMap<CutPlace, Selected> = found.into_iter().map(|s| (place(&s), s)).collect();
    cuts.map(|cut| {
        let changed = || {
            Error::corrupt(format!(
                "{} is not what it was when the plan was made: run `dlq-archiver verify`",
                cut.manifest
            ))
        };
        let mut selected = found.remove(&cut.place()).ok_or_else(changed)?;
        let named: HashMap<&str, &str> = cut.objects.iter().map(|o| (&o.key[..], &o.sha256[..])).collect();
        selected.objects.retain(|o| named.get(&o.key[..]).is_some_and(|sha256| *sha256 == o.sha256));
        if selected.objects.len() == named.len() { Ok(selected) } else { Err(changed()) }
    })
    .collect()
}
