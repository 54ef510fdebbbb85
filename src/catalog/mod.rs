//! Looks into an archive: which partitions, cuts and records it has.
//!
//! Owns the way from a [`Filter`] to records: ledger folders, manifests, the data objects they name, rows. Reads
//! through [`Store`] only and writes nothing; Kafka is not asked. Invariant: what is not in a manifest does not exist
//! here, and what a manifest names and the store lacks is an error, never a shorter answer.

mod ahead;
mod cut;
mod sample;

pub use ahead::Cuts;
pub use cut::Cut;

use crate::archive::ledger::{self as io, read_archive};
use crate::error::{Error, Kind, Result};
use crate::filter::Filter;
use crate::format::{Format, Projection, lookup};
use crate::layout;
use crate::ledger::{self, ArchiveDoc, Checkpoint, DataObject, Genesis, Manifest};
use crate::store::Store;
use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// An archive that is there. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Catalog {
    store: Arc<dyn Store>,
    archive: ArchiveDoc,
    fetches: Arc<Semaphore>,
}

/// The ledger of one topic partition in one generation.
#[derive(Debug, Clone)]
pub struct PartitionLedger {
    /// Its folder, `/` at its end.
    pub prefix: String,
    /// Has the exact names.
    pub genesis: Genesis,
}

/// One cut that may have matching records, and the objects of it that may.
#[derive(Debug, Clone)]
pub struct Selected {
    pub manifest: Arc<Manifest>,
    /// Never empty.
    pub objects: Vec<DataObject>,
}

/// How data objects are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reading {
    pub projection: Projection,
    /// Compare each object's SHA-256 with the manifest's: for whoever acts on what is read.
    pub check_sha256: bool,
}

impl Reading {
    /// For lists and summaries: without key, value, headers and stack trace.
    pub const LIST: Self = Self { projection: Projection::NoPayload, check_sha256: false };
    /// All of a record.
    pub const ALL: Self = Self { projection: Projection::All, check_sha256: false };
    /// All of a record, and only if its object is what the manifest vouches for.
    pub const RESTORE: Self = Self { projection: Projection::All, check_sha256: true };
}

/// Ledger objects that are fetched at a time, over all partitions.
const FETCHES: usize = 32;
/// Data objects of one cut that are fetched at a time.
const OBJECTS_AT_A_TIME: usize = 4;
/// Bytes from which on it pays to look into an object before it is fetched: a row group has 7 KiB in the footer, and a
/// bloom filter of some bytes a row.
const LOOKED_INTO: u64 = 256 << 10;
/// Partitions whose ledgers are listed at a time.
const PARTITIONS_AT_A_TIME: usize = 16;

impl Catalog {
    /// # Errors
    /// [`crate::Kind::Config`] if there is no archive at the store's address.
    pub async fn open(store: Arc<dyn Store>) -> Result<Self> {
        let archive = read_archive(&*store).await?;
        Ok(Self { store, archive, fetches: Arc::new(Semaphore::new(FETCHES)) })
    }

    pub fn archive(&self) -> &ArchiveDoc {
        &self.archive
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Asked where no records are found.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] if there are data all the same, and no ledger: something deleted it.
    pub async fn check_empty(&self) -> Result<()> {
        let has = async |prefix| Ok::<_, Error>(!self.store.list(prefix, None, Some(1)).await?.objects.is_empty());
        // Data first: others may be writing.
        if has(layout::DATA_PREFIX).await? && !has(layout::LEDGER_PREFIX).await? {
            return Err(Error::corrupt(format!(
                "the archive has objects under {} and no ledger: something deleted {}. Restore it from older versions or a \
                 copy of the bucket; nothing should be archived until then",
                layout::DATA_PREFIX,
                layout::LEDGER_PREFIX
            )));
        }
        Ok(())
    }

    /// The partitions that may match, in order of topic, partition and generation.
    pub async fn partitions(&self, filter: &Filter) -> Result<Vec<PartitionLedger>> {
        let topics: Vec<String> = match filter.topic_folders() {
            Some(names) => names.iter().map(|name| format!("{}{name}/", layout::LEDGER_PREFIX)).collect(),
            None => self.store.list_folders(layout::LEDGER_PREFIX).await?,
        };
        let in_topics: Vec<_> = topics.iter().map(|topic| self.generations(topic, filter).boxed()).collect();
        let prefixes: Vec<Vec<String>> = stream::iter(in_topics).buffered(PARTITIONS_AT_A_TIME).try_collect().await?;
        let ledgers: Vec<_> = prefixes.iter().flatten().map(|prefix| self.partition(prefix).boxed()).collect();
        let found: Vec<Option<PartitionLedger>> =
            stream::iter(ledgers).buffered(PARTITIONS_AT_A_TIME).try_collect().await?;
        let mut found: Vec<_> = found.into_iter().flatten().collect();
        found.retain(|p| filter.may_match_partition(&p.genesis.topic, p.genesis.partition));
        found.sort_by(|a, b| a.order().cmp(&b.order()));
        Ok(found)
    }

    /// The ledger folders below one topic's.
    async fn generations(&self, topic: &str, filter: &Filter) -> Result<Vec<String>> {
        let mut prefixes = Vec::new();
        for folder in self.store.list_folders(topic).await? {
            let number = folder.strip_prefix(topic).and_then(|rest| rest.strip_suffix('/')?.parse::<i32>().ok());
            let wanted = &filter.doc().partition;
            if !number.is_some_and(|n| wanted.is_empty() || wanted.contains(&n)) {
                continue;
            }
            // Asked one after the other: a listing would walk through all of the ledger.
            for generation in 2.. {
                let later = layout::generation_prefix(&folder, generation);
                if self.store.head(&layout::genesis_key(&later)).await?.is_none() {
                    break;
                }
                prefixes.push(later);
            }
            prefixes.push(folder);
        }
        Ok(prefixes)
    }

    /// `None` where a killed writer left nothing but a folder.
    async fn partition(&self, prefix: &str) -> Result<Option<PartitionLedger>> {
        let key = layout::genesis_key(prefix);
        match self.fetch(&key).await? {
            Some(bytes) => {
                Ok(Some(PartitionLedger { prefix: prefix.to_owned(), genesis: ledger::from_bytes(&key, &bytes)? }))
            }
            None if self.store.list(prefix, None, Some(1)).await?.objects.is_empty() => Ok(None),
            None => Err(Error::corrupt(format!(
                "{key} is missing though cuts are there: restore it from an older version or a copy of the bucket"
            ))),
        }
    }

    /// A partition's manifests, in order, less those whose offsets cannot match. Dates, pipelines and errors are not
    /// looked at: see [`Self::select`].
    ///
    /// # Errors
    /// [`Kind::Corrupt`] if they do not tile.
    pub async fn manifests(&self, ledger: &PartitionLedger, filter: &Filter) -> Result<Vec<Manifest>> {
        let tp = format!("{}/{}", ledger.genesis.topic, ledger.genesis.partition);
        match self.manifests_once(ledger, filter).await {
            // A writer may have created objects between two pages of the listing.
            Err(e) if e.kind() == Kind::Corrupt => {
                crate::host::sleep(Duration::from_millis(500)).await;
                self.manifests_once(ledger, filter).await
            }
            other => other,
        }
        .map_err(|e| e.context(tp))
    }

    async fn manifests_once(&self, ledger: &PartitionLedger, filter: &Filter) -> Result<Vec<Manifest>> {
        let checkpoints = io::checkpoints(&*self.store, &ledger.prefix).await?;
        let checkpoint = checkpoints.last().copied();
        let mut manifests = match self.checkpointed(ledger, filter, checkpoints).await {
            Ok(manifests) => manifests,
            // They are a help only: the manifests themselves are there.
            Err(e) if e.kind() == Kind::Corrupt => {
                tracing::warn!("{e}; reading every manifest instead. `dlq-archiver verify` tells what is damaged");
                return self.manifests_behind(ledger, filter, None).await;
            }
            Err(e) => return Err(e),
        };
        manifests.extend(self.manifests_behind(ledger, filter, checkpoint).await?);
        Ok(manifests)
    }

    /// The manifests in these checkpoints, given by where they end.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] if they do not hold together.
    async fn checkpointed(&self, ledger: &PartitionLedger, filter: &Filter, ends: Vec<i64>) -> Result<Vec<Manifest>> {
        let g = &ledger.genesis;
        let starts = [g.first_offset].into_iter().chain(ends.iter().copied());
        let may_match = |from, to| filter.may_match_offsets(&g.topic, g.partition, g.generation, from, to);
        let wanted: Vec<_> = starts.zip(ends.iter().copied()).filter(|(from, to)| may_match(*from, *to)).collect();
        let read: Vec<_> = wanted.iter().map(|(from, to)| self.checkpoint(ledger, *from, *to).boxed()).collect();
        let read: Vec<Checkpoint> = stream::iter(read).buffered(FETCHES).try_collect().await?;
        let manifests = read.into_iter().flat_map(|c| c.manifests).map(|e| e.manifest);
        Ok(manifests.filter(|m| may_match(m.from, m.to)).collect())
    }

    async fn checkpoint(&self, ledger: &PartitionLedger, from: i64, to: i64) -> Result<Checkpoint> {
        let key = layout::checkpoint_key(&ledger.prefix, to);
        let bytes =
            self.fetch(&key).await?.ok_or_else(|| Error::corrupt(format!("{key} was listed and is not there")))?;
        let checkpoint: Checkpoint = ledger::from_bytes(&key, &bytes)?;
        checkpoint.check(&ledger.genesis)?;
        if (checkpoint.from, checkpoint.to) != (from, to) {
            return Err(Error::corrupt(format!(
                "{key}: the checkpoint before it, or one of its own manifests, is missing"
            )));
        }
        Ok(checkpoint)
    }

    /// The manifests that begin at or behind a checkpoint; all without one.
    async fn manifests_behind(
        &self,
        ledger: &PartitionLedger,
        filter: &Filter,
        checkpoint: Option<i64>,
    ) -> Result<Vec<Manifest>> {
        let g = &ledger.genesis;
        let names = io::names_behind(&*self.store, &ledger.prefix, checkpoint).await?;
        let starts: Vec<i64> = names.manifests.into_iter().collect();
        // Manifests tile: each ends where the next one starts.
        let ends = starts.iter().skip(1).copied().map(Some).chain([None]);
        let expected = checkpoint.unwrap_or(g.first_offset);
        if starts.first().is_some_and(|first| *first != expected) {
            return Err(untiled(expected));
        }
        let ranges: Vec<_> = starts
            .iter()
            .copied()
            .zip(ends)
            .filter(|(from, to)| {
                filter.may_match_offsets(&g.topic, g.partition, g.generation, *from, to.unwrap_or(i64::MAX))
            })
            .collect();
        let read: Vec<_> = ranges.into_iter().map(|(from, to)| self.manifest(ledger, from, to).boxed()).collect();
        stream::iter(read).buffered(FETCHES).try_collect().await
    }

    async fn manifest(&self, ledger: &PartitionLedger, from: i64, to: Option<i64>) -> Result<Manifest> {
        let (key, g) = (layout::manifest_key(&ledger.prefix, from), &ledger.genesis);
        let bytes = self.fetch(&key).await?.ok_or_else(|| {
            Error::corrupt(format!("{key} was listed and is not there: something deletes ledger objects"))
        })?;
        let m: Manifest = ledger::from_bytes(&key, &bytes)?;
        if (&m.topic, m.partition, m.generation, m.from) != (&g.topic, g.partition, g.generation, from) {
            return Err(Error::corrupt(format!(
                "{key} holds another cut ({}/{} {}..{}): the ledger was mixed up with another one",
                m.topic, m.partition, m.from, m.to
            )));
        }
        if to.is_some_and(|to| to != m.to) || m.to <= m.from {
            return Err(untiled(m.to));
        }
        Ok(m)
    }

    /// The cuts that may have matching records, in order of topic, partition, generation, offset.
    pub async fn select(&self, filter: &Filter) -> Result<Vec<Selected>> {
        let partitions = self.partitions(filter).await?;
        self.select_in(&partitions, filter).await
    }

    /// As [`Self::select`], in partitions that are known already.
    pub async fn select_in(&self, partitions: &[PartitionLedger], filter: &Filter) -> Result<Vec<Selected>> {
        let selected: Vec<_> = partitions.iter().map(|p| self.select_one(p, filter).boxed()).collect();
        let selected: Vec<Vec<Selected>> = stream::iter(selected).buffered(PARTITIONS_AT_A_TIME).try_collect().await?;
        Ok(selected.into_iter().flatten().collect())
    }

    async fn select_one(&self, partition: &PartitionLedger, filter: &Filter) -> Result<Vec<Selected>> {
        let manifests = self.manifests(partition, filter).await?;
        Ok(manifests.into_iter().filter_map(|m| Selected::of(m, filter)).collect())
    }

    /// The matching records of one cut, in order of offsets.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] naming the object if it is missing, damaged, or not what the manifest vouches for.
    pub async fn read_cut(&self, selected: &Selected, filter: &Filter, reading: Reading) -> Result<Cut> {
        self.read_shared(selected, &Arc::new(filter.clone()), reading).await
    }

    async fn read_shared(&self, selected: &Selected, filter: &Arc<Filter>, reading: Reading) -> Result<Cut> {
        let mut cut = cut::Builder::new(selected.clone());
        let fetch = async |o: &DataObject| match reading.check_sha256 || self.may_have_events(o, filter).await {
            true => self.data(o).await.map(Some),
            false => Ok(None),
        };
        let fetched: Vec<_> = selected.objects.iter().map(|o| fetch(o).boxed()).collect();
        let mut fetched = stream::iter(fetched).buffered(OBJECTS_AT_A_TIME);
        let mut object = 0;
        while let Some(bytes) = fetched.try_next().await? {
            if let Some(bytes) = bytes {
                let filter = filter.clone();
                cut = crate::host::blocking(move || {
                    cut.add(object, bytes, &filter, reading)?;
                    Ok(cut)
                })
                .await?;
            }
            object += 1;
        }
        cut.finish()
    }

    /// Whether an object may have an event that is looked for, by the bloom filters in it. What does not answer rules
    /// nothing out.
    async fn may_have_events(&self, o: &DataObject, filter: &Filter) -> bool {
        let Some(events) = filter.events() else { return true };
        if o.size < LOOKED_INTO || Format::of_key(&o.key) != Some(Format::Parquet) {
            return true;
        }
        let mut tail = lookup::TAIL.min(o.size);
        // A second time where the footer is longer.
        for _ in 0..2 {
            let Ok(bytes) = self.store.get_range(&o.key, o.size - tail..o.size).await else { return true };
            match lookup::event_filters(&bytes, o.size) {
                None => return true,
                Some(lookup::Tail::Short(needed)) => tail = needed,
                Some(lookup::Tail::Filters(filters)) => {
                    for range in filters {
                        match self.store.get_range(&o.key, range).await {
                            Ok(bytes) if !lookup::may_have(&bytes, &events) => {}
                            _ => return true,
                        }
                    }
                    return false;
                }
            }
        }
        true
    }

    async fn data(&self, object: &DataObject) -> Result<Bytes> {
        self.store.get(&object.key).await?.ok_or_else(|| {
            Error::corrupt(format!(
                "data object {} is missing though its manifest vouches for it: restore it from an older version or a \
                 copy of the bucket, and see what deletes objects there (a lifecycle rule?)",
                object.key
            ))
        })
    }

    async fn fetch(&self, key: &str) -> Result<Option<Bytes>> {
        let _permit = self.fetches.acquire().await.map_err(|_| Error::internal("semaphore closed"))?;
        self.store.get(key).await
    }

    /// The matching records of these cuts, one cut after the other, a few read ahead:
    /// `while let Some(cut) = cuts.next().await? { for row in cut.iter() { .. } }`.
    pub fn cuts(&self, selected: Vec<Selected>, filter: &Filter, reading: Reading) -> Cuts {
        Cuts::new(self.clone(), selected, Arc::new(filter.clone()), reading)
    }
}

fn untiled(at: i64) -> Error {
    Error::corrupt(format!(
        "the ledger does not tile: no manifest begins at {at}. Restore it from an older version or a copy of the bucket"
    ))
}

impl PartitionLedger {
    fn order(&self) -> (&str, i32, u32) {
        (&self.genesis.topic, self.genesis.partition, self.genesis.generation)
    }
}

impl Selected {
    /// `None` if the manifest has no object that may match.
    pub fn of(manifest: Manifest, filter: &Filter) -> Option<Self> {
        if !filter.may_match_manifest(&manifest) {
            return None;
        }
        let objects = manifest.objects.iter().filter(|o| filter.may_match_object(o)).cloned().collect();
        Some(Self { manifest: Arc::new(manifest), objects })
    }

    /// Bytes as stored.
    pub fn size(&self) -> u64 {
        self.objects.iter().map(|o| o.size).sum()
    }
}
