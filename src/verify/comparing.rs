//! A ledger's comparison with Kafka: from where to where, and what is only noted.
//!
//! Owns which partitions can be compared. Reads no records: [`super::kafka`] does.

use super::damage::What;
use super::documents::{self, Place};
use super::kafka::{self, Kafka};
use super::ledgers::Ledger;
use super::{NAMED, Run};
use crate::error::{Result, few};
use crate::host::blocking;
use crate::layout;
use crate::ledger::{Genesis, Manifest};
use crate::record::{TopicPartition, in_ranges};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::mpsc;

pub(super) type Comparing = (mpsc::Sender<kafka::Expected>, tokio::task::JoinHandle<Result<u64>>);

impl Run {
    /// What Kafka has and the archive has not yet. No damage: an archiver that runs gets there.
    pub(super) async fn tell_unarchived(&self, known: &BTreeSet<TopicPartition>) -> Result<()> {
        let Some(kafka) = self.kafka.clone() else { return Ok(()) };
        let mut behind = std::mem::take(&mut self.found().behind);
        let topics: BTreeSet<String> = known.iter().map(|tp| tp.topic.clone()).collect();
        for topic in topics {
            let archived = known.iter().filter(|tp| tp.topic == topic).map(|tp| tp.partition).collect();
            let (kafka, asked) = (kafka.clone(), topic.clone());
            let mut without = blocking(move || kafka.unarchived(&asked, &archived)).await?;
            without.retain(|(tp, _)| self.options.filter.may_match_partition(&tp.topic, tp.partition));
            if !without.is_empty() {
                let note = format!(
                    "Kafka has partitions of this topic that the archive has no ledger of: {}. No archiver has read them \
                     yet",
                    in_ranges(without.iter().map(|(tp, _)| tp), NAMED)
                );
                self.note(topic, note);
            }
            behind.extend(without);
        }
        let all: u64 = behind.values().sum();
        self.found().totals.not_archived_offsets = Some(all);
        if all > 0 {
            let mut some: Vec<_> = behind.iter().map(|(tp, n)| (*n, tp)).filter(|(n, _)| *n > 0).collect();
            some.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(b.1)));
            let each = few(some.into_iter().map(|(n, tp)| format!("{tp}: {n}")), NAMED);
            self.note("Kafka", format!("{all} offsets are not archived yet ({each})"));
        }
        Ok(())
    }

    /// A group that has committed more than the ledger has, as the archiver warns of it at its start.
    async fn compare_committed(&self, kafka: &Arc<Kafka>, tp: &TopicPartition, prefix: &str, to: i64) -> Result<()> {
        let (asked, of) = (kafka.clone(), tp.clone());
        let beyond = blocking(move || {
            Ok(asked.committed_beyond(&of, to).map(|(committed, group)| (committed, group.to_owned())))
        });
        let Some((committed, group)) = beyond.await? else { return Ok(()) };
        // An archiver may have gone on meanwhile: the group follows the ledger.
        let mut end = to;
        loop {
            let key = layout::manifest_key(prefix, end);
            let Some(bytes) = self.store.get(&key).await? else { break };
            match documents::parse::<Manifest>(What::ManifestDamaged, &key, &bytes) {
                Ok(m) if m.to > end => end = m.to,
                _ => return Ok(()),
            }
        }
        if committed > end {
            let note = format!(
                "warning: the group {group} has committed offset {committed}, and the ledger ends at {end}. If this archive \
                 had those records, the end of its ledger was lost: restore {prefix} from a copy or older versions of the \
                 bucket. Else the group was used by another program"
            );
            self.note(tp.to_string(), note);
        }
        Ok(())
    }

    async fn generation_behind(&self, genesis: &Genesis, generation: u32) -> Result<Option<Genesis>> {
        let prefix = layout::ledger_prefix(&genesis.topic, genesis.partition, generation.saturating_add(1));
        let key = layout::genesis_key(&prefix);
        let bytes = self.store.get(&key).await?;
        Ok(bytes.and_then(|bytes| documents::parse::<Genesis>(What::GenesisDamaged, &key, &bytes).ok()))
    }

    /// Starts the comparison with Kafka, to which cuts are then sent in order.
    pub(super) async fn begin_comparing(self: &Arc<Self>, place: &Place, ledger: &Ledger) -> Result<Option<Comparing>> {
        let (Some(kafka), Some(genesis)) = (&self.kafka, &place.genesis) else { return Ok(None) };
        let to = match ledger.newest() {
            None => genesis.first_offset,
            Some(newest) => {
                let key = layout::manifest_key(&ledger.prefix, newest);
                let bytes = self.store.get(&key).await?.unwrap_or_default();
                documents::parse::<Manifest>(What::ManifestDamaged, &key, &bytes).map_or(newest, |m| m.to)
            }
        };
        // What later generations have of the same topic is compared with them.
        let mut to = to;
        let mut later = genesis.generation;
        while let Some(next) = self.generation_behind(genesis, later).await? {
            (to, later) = (to.min(next.first_offset), next.generation);
        }
        let tp = TopicPartition::new(&genesis.topic, genesis.partition);
        let (asked, genesis) = (kafka.clone(), genesis.clone());
        let first = genesis.first_offset;
        let generation = genesis.generation;
        let low = match blocking(move || asked.comparable(&genesis, to)).await? {
            Ok((low, high)) => {
                if ledger.current {
                    // Retention may have taken some of it.
                    self.found().behind.insert(tp.clone(), high.abs_diff(to.max(low).min(high)));
                    // A later generation may begin at lower offsets.
                    if generation == 1 {
                        self.compare_committed(kafka, &tp, &ledger.prefix, to).await?;
                    }
                }
                low.max(first)
            }
            Err(why) => {
                self.note(tp.to_string(), why);
                return Ok(None);
            }
        };
        if ledger.newest().is_none() {
            return Ok(None);
        }
        let (sender, cuts) = mpsc::channel(1);
        let (run, kafka) = (self.clone(), kafka.clone());
        let compare =
            move || kafka.compare(&tp, low, to, cuts, |damage| run.tell(damage), |at, note| run.note(at, note));
        Ok(Some((sender, tokio::task::spawn_blocking(compare))))
    }
}
