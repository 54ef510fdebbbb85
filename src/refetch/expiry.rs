//! When Kafka deletes originals that were not read again yet, as far as a few questions tell.
//!
//! Owns how little is asked: of each dead-letter partition the oldest cut with open records is read, once; of each source
//! partition the oldest open original is looked at, at most once a minute. Reads no payloads, and writes nothing.

use super::documents::Known;
use super::index::Index;
use super::{chunk, may_lack};
use crate::archive::cluster::Cluster;
use crate::catalog::{Catalog, PartitionLedger, Reading, Selected};
use crate::dialect::Dialects;
use crate::error::Result;
use crate::filter::Filter;
use crate::host;
use crate::ledger::Manifest;
use crate::record::TopicPartition;
use crate::retention::{self, Log};
use crate::status::facts::Expiry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Before it is looked again.
const PAUSE: Duration = Duration::from_secs(60);

/// The oldest open original of each source partition.
type Oldest = BTreeMap<TopicPartition, i64>;

pub struct Watch {
    cluster: Arc<dyn Cluster>,
    dialects: Dialects,
    looked: Option<(Instant, Vec<Expiry>)>,
    /// What cuts have, by ledger folder, start, and how many lists there were.
    cuts: HashMap<(String, i64, u32), Oldest>,
}

impl Watch {
    pub fn new(cluster: Arc<dyn Cluster>) -> Self {
        Self { cluster, dialects: Dialects::builtin(), looked: None, cuts: HashMap::new() }
    }

    /// Dead-letter topics with originals that go, the earliest of each.
    ///
    /// # Errors
    /// If the store or the brokers do not answer.
    pub async fn look(&mut self, catalog: &Catalog, filter: &Filter) -> Result<Vec<Expiry>> {
        if let Some((at, known)) = &self.looked
            && host::since(*at) < PAUSE
        {
            return Ok(known.clone());
        }
        let mut index = Index::new(catalog.store().clone());
        let (mut topics, mut cuts): (BTreeMap<String, Oldest>, _) = (BTreeMap::new(), HashMap::new());
        for partition in catalog.partitions(filter).await? {
            let Some((place, oldest)) = self.partition(catalog, &mut index, &partition).await? else { continue };
            let of_topic = topics.entry(partition.genesis.topic.clone()).or_default();
            for (tp, offset) in &oldest {
                let known = of_topic.entry(tp.clone()).or_insert(*offset);
                *known = (*known).min(*offset);
            }
            cuts.insert(place, oldest);
        }
        self.cuts = cuts;
        let found = self.expiries(topics).await?;
        self.looked = Some((host::now(), found.clone()));
        Ok(found)
    }

    /// What the oldest cut with open records has.
    async fn partition(
        &self,
        catalog: &Catalog,
        index: &mut Index,
        partition: &PartitionLedger,
    ) -> Result<Option<((String, i64, u32), Oldest)>> {
        let manifests = catalog.manifests(partition, &Filter::default()).await?;
        let lacking: Vec<&Manifest> =
            manifests.iter().filter(|m| m.objects.iter().any(|o| may_lack(o, &self.dialects))).collect();
        for (m, known) in lacking.iter().zip(index.of_all(&lacking).await?) {
            let objects = m.objects.iter().filter(|o| may_lack(o, &self.dialects) && !known.whole.contains(&o.key));
            let objects: Vec<_> = objects.cloned().collect();
            if objects.is_empty() {
                continue;
            }
            let place = (partition.prefix.clone(), m.from, known.last_number);
            let oldest = match self.cuts.get(&place) {
                Some(oldest) => oldest.clone(),
                None => {
                    let selected = Selected { manifest: Arc::new((*m).clone()), objects };
                    read(catalog, &selected, &known).await?
                }
            };
            if !oldest.is_empty() {
                return Ok(Some((place, oldest)));
            }
        }
        Ok(None)
    }

    async fn expiries(&self, topics: BTreeMap<String, Oldest>) -> Result<Vec<Expiry>> {
        let mut at: Oldest = Oldest::new();
        for (tp, offset) in topics.values().flatten() {
            let known = at.entry(tp.clone()).or_insert(*offset);
            *known = (*known).min(*offset);
        }
        if at.is_empty() {
            return Ok(Vec::new());
        }
        let there = self.cluster.describe(&["^".to_owned()], PAUSE).await?.topics;
        let there: BTreeSet<TopicPartition> =
            there.iter().flat_map(|t| t.partitions.iter().map(|p| TopicPartition::new(&t.name, *p))).collect();
        let list: Vec<_> = at.keys().filter(|tp| there.contains(tp)).cloned().collect();
        let logs = self.cluster.logs(&list).await?;
        let names: BTreeSet<String> = list.iter().map(|tp| tp.topic.clone()).collect();
        let settings = self.cluster.settings(&names.into_iter().collect::<Vec<_>>()).await.unwrap_or_default();
        let still = |tp: &TopicPartition, offset: i64| {
            logs.get(tp).is_some_and(|(start, _, end)| *start <= offset && offset < *end)
        };
        let ask: Vec<_> = at.iter().filter(|(tp, o)| still(tp, **o)).map(|(tp, o)| (tp.clone(), *o)).collect();
        let peeked = self.cluster.peek(&ask).await?;
        let now_ms = host::now_us() / 1000;
        let mut found = Vec::new();
        for (topic, oldest) in topics {
            let of_source = |(tp, offset): (&TopicPartition, &i64)| {
                let (start, stable, end) = *logs.get(tp)?;
                let log = Log {
                    start,
                    next: *offset,
                    stable,
                    end,
                    oldest_ms: peeked.get(tp).map(|p| p.timestamp_ms),
                    lag_bytes: None,
                };
                let deadline = retention::deadline(&log, settings.get(&tp.topic)?, None, now_ms);
                let at_ms = if *offset < start { now_ms } else { deadline?.at_ms };
                Some(Expiry { topic: topic.clone(), source: tp.clone(), at_ms })
            };
            found.extend(oldest.iter().filter_map(of_source).min_by_key(|e| e.at_ms));
        }
        Ok(found)
    }
}

async fn read(catalog: &Catalog, selected: &Selected, known: &Known) -> Result<Oldest> {
    let cut = catalog.read_cut(selected, &Filter::default(), Reading::LIST).await?;
    let mut oldest = Oldest::new();
    for i in (0..cut.len()).filter(|i| cut.payload_state(*i).lacks_original() && known.of(cut.offset(*i)).is_none()) {
        if let Some(((topic, partition), offset)) = chunk::origin(&cut.get(i)) {
            let known = oldest.entry(TopicPartition::new(topic, partition)).or_insert(offset);
            *known = (*known).min(offset);
        }
    }
    Ok(oldest)
}
