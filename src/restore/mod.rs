//! `restore`: puts archived records back into Kafka.
//!
//! A record's way: [`crate::catalog`] reads it from a cut that the plan names, [`plan`] decides what becomes of it,
//! [`batch`] puts it with its neighbours, [`delivery`] sends them, [`audit`] writes down what went where, and
//! [`pieces`] tells after a crash which of that counts. [`past`] is what earlier restores did, [`turn`] keeps others
//! that overlap apart, [`ahead`] two processes of one, [`limits`] asks what targets take and keep, [`nothing`] says why
//! none matches. [`planning`] finds or makes the plan, [`running`] carries it out, [`going`] is one run's sending;
//! [`target`] is all that Kafka is asked; [`export`] gives what would be sent to a file instead. Order is kept within each archived partition.
//!
//! Owns a restore's parts. Invariant: nothing is sent before the plan is durable and has its turn.

mod ahead;
pub mod audit;
pub mod batch;
pub mod counts;
pub mod delivery;
pub mod export;
mod going;
mod limits;
pub mod nothing;
pub mod past;
pub mod pieces;
pub mod plan;
mod planning;
mod running;
pub mod target;
mod turn;

pub use planning::{Draft, Prepared};
pub use running::End;

use crate::catalog::{Catalog, Cut, Selected};
use crate::dialect::Dialects;
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::layout;
use crate::ledger::{DataObject, Manifest};
use crate::refetch::documents::{Known, Sidecar};
use crate::refetch::index::Index;
use crate::refetch::originals::Originals;
use crate::store::Store;
use audit::Process;
use batch::Limits;
use delivery::Asked;
use plan::{PlanCut, PlanObject, RuleOptions, Rules, Window};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use target::Target;

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

/// A restore of one command.
pub struct Restore {
    catalog: Catalog,
    target: Arc<dyn Target>,
    dialects: Arc<Dialects>,
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
        let restore = Self {
            catalog,
            target,
            dialects,
            dialects_digest,
            options,
            archived,
            targets,
            counters,
            untold: AtomicBool::new(false),
        };
        check_target(&restore.rules(&restore.options.rules, &restore.targets, &BTreeMap::new(), &BTreeMap::new()))?;
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

    fn rules<'a>(
        &'a self,
        options: &'a RuleOptions,
        targets: &'a BTreeMap<String, i32>,
        limits: &'a BTreeMap<String, u64>,
        windows: &'a BTreeMap<String, Window>,
    ) -> Rules<'a> {
        Rules { options, dialects: &self.dialects, targets, limits, windows, archived: &self.archived }
    }
}

/// Refuses a `--to` whose records would come back as dead letters.
fn check_target(rules: &Rules<'_>) -> Result<()> {
    match &rules.options.to {
        Some(to) if rules.is_dead_letter(to) => Err(Error::config(format!(
            "--to {to} is a dead-letter topic: its records would be archived as new failures. With \
             --allow-dead-letter-target it is taken all the same"
        ))),
        _ => Ok(()),
    }
}

type CutPlace = (String, i32, u32, i64);

fn place(selected: &Selected) -> CutPlace {
    let m = &selected.manifest;
    (m.topic.clone(), m.partition, m.generation, m.from)
}

/// A cut as a plan has it.
pub(crate) fn plan_cut(m: &Manifest, selected: u64, objects: &[DataObject], originals: &[Sidecar]) -> PlanCut {
    PlanCut {
        manifest: layout::manifest_key(&layout::ledger_prefix(&m.topic, m.partition, m.generation), m.from),
        topic: m.topic.clone(),
        partition: m.partition,
        generation: m.generation,
        from: m.from,
        selected,
        objects: objects.iter().map(|o| PlanObject { key: o.key.clone(), sha256: o.sha256.clone() }).collect(),
        refetched: originals
            .iter()
            .map(|s| PlanObject { key: s.doc.key.clone(), sha256: s.doc.sha256.clone() })
            .collect(),
    }
}
