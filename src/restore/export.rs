//! The records that a restore would send, for whoever writes them elsewhere than into Kafka.
//!
//! Owns which these are: a restore's selection and rules, but for what only brokers know, which are not asked (whether a
//! target exists, what it takes, how long it keeps). Sends nothing and writes nothing: what is exported is not put back,
//! so no later restore skips it.

use super::attempts::Attempts;
use super::audit::{self, Folder};
use super::counts::Counts;
use super::headers::{HeaderOptions, HeaderRules};
use super::plan::{PlanDoc, RuleOptions, Timestamps};
use super::planning::each;
use super::rules::{Made, Place, Rules, Verdict};
use super::values::Values;
use super::why::{Skip, Why};
use super::window::Window;
use super::{Counters, check_target, nothing, place, plan_cut};
use crate::catalog::{Catalog, Reading};
use crate::dialect::Dialects;
use crate::error::Result;
use crate::filter::Filter;
use crate::record::RecordId;
use crate::refetch::documents::Known;
use crate::refetch::index::Index;
use crate::refetch::originals::Originals;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// An export of one command.
pub struct Export {
    catalog: Catalog,
    dialects: Arc<Dialects>,
    filter: Filter,
    rules: RuleOptions,
    headers: HeaderRules,
    values: Values,
    archived: BTreeSet<String>,
    counters: Arc<Counters>,
}

/// What an export came to.
#[derive(Debug)]
pub struct Exported {
    pub counts: Counts,
    /// Unfinished restores that may send the same records.
    pub overlapping: Vec<PlanDoc>,
}

impl Export {
    /// # Errors
    /// [`crate::Kind::Config`] if `--to` names a topic that is refused.
    pub async fn new(
        catalog: Catalog,
        dialects: Arc<Dialects>,
        filter: Filter,
        rules: RuleOptions,
        values: Values,
        counters: Arc<Counters>,
    ) -> Result<Self> {
        let archived = catalog.partitions(&Filter::default()).await?.into_iter().map(|p| p.genesis.topic).collect();
        // Which timestamps can be sent is Kafka's business.
        let rules = RuleOptions { timestamps: Timestamps::Now, ..rules };
        check_target(&rules, &archived)?;
        // No restore sends them.
        let headers = HeaderRules::new(&HeaderOptions { unmarked: true, ..rules.headers.clone() }, "")?;
        Ok(Self { catalog, dialects, filter, rules, headers, values, archived, counters })
    }

    fn rules<'a>(&'a self, targets: &'a BTreeMap<String, i32>, attempts: &'a Attempts) -> Rules<'a> {
        static LIMITS: BTreeMap<String, u64> = BTreeMap::new();
        static WINDOWS: BTreeMap<String, Window> = BTreeMap::new();
        static UNWRITABLE: BTreeSet<String> = BTreeSet::new();
        Rules {
            options: &self.rules,
            headers: &self.headers,
            values: &self.values,
            attempts,
            dialects: &self.dialects,
            targets,
            limits: &LIMITS,
            windows: &WINDOWS,
            unwritable: &UNWRITABLE,
            archived: &self.archived,
        }
    }

    /// Why nothing is selected.
    pub async fn nothing(&self) -> Result<nothing::Nothing> {
        nothing::why(&self.catalog, &self.filter).await
    }

    /// Hands each record over as it would be sent, in the archive's order.
    ///
    /// # Errors
    /// Those of `write`, at once; those of the archive.
    pub async fn run(&self, mut write: impl FnMut(&RecordId, &Place, &Made<'_>) -> Result<()>) -> Result<Exported> {
        let mut attempts = Attempts::default();
        let (past, open) = audit::past(&self.catalog, None, None, Some(&mut attempts)).await?;
        let mut counts = Counts::new(self.filter.record_ids());
        counts.unused_values = self.values.ids().cloned().collect();
        // Each topic is taken to be there, with any partition.
        let (mut planned, mut targets) = (Vec::new(), BTreeMap::new());
        let store = self.catalog.store().clone();
        let mut index = Index::new(store.clone());
        let selected = self.catalog.select(&self.filter).await?;
        let (filter, selected, unjudged) = self.catalog.sampled(self.filter.clone(), selected).await?;
        let mut objects: HashMap<_, _> = selected.iter().map(|s| (place(s), s.objects.clone())).collect();
        let mut cuts = self.catalog.cuts(selected, &filter, Reading::RESTORE).limit(filter.doc().limit);
        while let Some(cut) = cuts.next().await? {
            if cut.is_empty() {
                continue;
            }
            let m = cut.manifest();
            let past = past.of(&m.topic, m.generation, m.partition);
            let mut decoder = self.dialects.of_topic(&m.topic);
            let lacks = (0..cut.len()).any(|i| cut.payload_state(i).lacks_original());
            let known = if lacks { index.of(m).await? } else { Known::default() };
            let mut originals = Originals::new(store.clone(), known);
            let missing = originals.missing().clone();
            let mut written = Ok(());
            each(&cut, &mut originals, |i, original| {
                if written.is_err() {
                    return;
                }
                let record = cut.get(i);
                let verdict = loop {
                    let rules = self.rules(&targets, &attempts);
                    let topic = match rules.judge(&mut decoder, &record, original, past) {
                        Err(Skip { why: Why::MissingTarget, target: Some(topic), .. })
                            if !targets.contains_key(&topic) =>
                        {
                            topic
                        }
                        Ok((place, made)) => {
                            written = write(&record.id, &place, &made);
                            let (attempt, corrected) = (made.attempt, made.archived_value.is_some());
                            break Verdict::Send { place, attempt, corrected, tombstone: made.value.is_none() };
                        }
                        Err(skip) => break Verdict::Skip(skip),
                    };
                    targets.insert(topic, i32::MAX);
                };
                counts.add(&record, original, missing.contains(cut.offset(i).cast_unsigned()), &verdict);
            })
            .await?;
            written?;
            self.counters.scanned.fetch_add(cut.len() as u64, Relaxed);
            let objects = objects.remove(&(m.topic.clone(), m.partition, m.generation, m.from)).unwrap_or_default();
            planned.push(plan_cut(&cut, &objects, &[]));
        }
        counts.unjudged = unjudged.or_else(|| cuts.unjudged().cloned());
        let mut overlapping = Vec::new();
        for id in open {
            let plan = Folder::new(&*store, &id).plan().await?;
            overlapping.extend(plan.filter(|plan| plan.overlaps(&planned)));
        }
        Ok(Exported { counts, overlapping })
    }
}
