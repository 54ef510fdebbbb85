//! `verify`: checks an archive against its ledger, and the ledger against Kafka.
//!
//! Owns the walk through all ledgers, and what is found on it. Changes nothing and stops at no damage: all of it is
//! told. Invariant: an archive that the archiver wrote has no damage, also while an archiver writes on.

mod chain;
mod comparing;
mod cut;
mod damage;
mod dispositions;
mod documents;
mod kafka;
mod ledgers;
mod object;
mod orphans;
mod receipt;
mod refetched;
mod restores;

pub use damage::{Damage, Note, Totals, What};
pub use receipt::{ChainEnd, Partition, Receipt};

use crate::cut::PROGRAM_VERSION;
use crate::error::{Error, Result, did_you_mean, few};
use crate::filter::{Filter, FilterDoc};
use crate::host::blocking;
use crate::kafka::Connection;
use crate::layout;
use crate::ledger::{ArchiveDoc, Checkpoint, Genesis, LEDGER_VERSION, sha256_hex};
use crate::record::TopicPartition;
use crate::store::Store;
use chain::Chain;
use documents::Place;
use futures::{StreamExt, stream};
use kafka::Kafka;
use ledgers::Ledger;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Only topics and partitions of it are looked at.
    pub filter: Filter,
    /// Ask for each object's size and hash, and do not read it.
    pub quick: bool,
    /// Compare with this Kafka too.
    pub kafka: Option<Connection>,
    /// The archiver's consumer group; the archive's own if `None`.
    pub group: Option<String>,
    /// What was there before.
    pub expect: Option<Receipt>,
    /// How long the brokers may take to answer for the first time.
    pub start_timeout: Duration,
}

/// What was done so far; read by progress display while the verification runs.
#[derive(Debug, Default)]
pub struct Counters {
    cuts: AtomicU64,
    all_cuts: AtomicU64,
    objects: AtomicU64,
    bytes: AtomicU64,
    damage: AtomicU64,
}

/// A moment's [`Counters`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    pub cuts: u64,
    /// 0 until all ledgers are listed.
    pub all_cuts: u64,
    pub objects: u64,
    /// Of data objects that were read.
    pub bytes: u64,
    pub damage: u64,
}

impl Counters {
    pub fn get(&self) -> Counted {
        Counted {
            cuts: self.cuts.load(Relaxed),
            all_cuts: self.all_cuts.load(Relaxed),
            objects: self.objects.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            damage: self.damage.load(Relaxed),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Report {
    /// `None` if archive.json is missing or damaged.
    pub archive_id: Option<String>,
    pub url: String,
    pub quick: bool,
    /// At most [`LISTED`], in order of where they are. `totals.damage` counts all.
    pub damage: Vec<Damage>,
    pub notes: Vec<Note>,
    pub totals: Totals,
    /// Where each chain ends.
    pub partitions: Vec<Partition>,
    pub dispositions: ChainEnd,
    pub restores: ChainEnd,
}

impl Report {
    /// 0 or 4.
    pub fn exit_code(&self) -> u8 {
        if self.totals.damage > 0 { 4 } else { 0 }
    }

    /// A receipt, `None` if there is damage: it would vouch for it. `now`: RFC 3339.
    pub fn receipt(&self, now: String) -> Option<Receipt> {
        let archive_id = self.archive_id.clone().filter(|_| self.totals.damage == 0)?;
        Some(Receipt {
            version: LEDGER_VERSION,
            archive_id,
            url: self.url.clone(),
            verified_at: now,
            program_version: PROGRAM_VERSION.to_owned(),
            quick: self.quick,
            partitions: self.partitions.clone(),
            rows: self.totals.rows,
            objects: self.totals.objects,
            bytes: self.totals.bytes,
            dispositions: Some(self.dispositions.clone()),
            restores: Some(self.restores.clone()),
        })
    }
}

/// Damage that is listed; more is counted.
pub const LISTED: usize = 100_000;
/// Partitions that are walked at a time.
const PARTITIONS_AT_A_TIME: usize = 4;
/// Cuts of one partition that are begun at a time.
const CUTS_AHEAD: usize = 4;
/// Ranges of partitions, or partitions, that a note names.
const NAMED: usize = 20;
/// Cuts in work at a time, over all partitions. One with a million records takes some 30 MB.
const CUTS: usize = 6;
/// MiB of data objects in memory.
const MEMORY: u32 = 256;

#[derive(Default)]
struct Found {
    damage: Vec<Damage>,
    notes: Vec<Note>,
    totals: Totals,
    partitions: Vec<Partition>,
    dispositions: ChainEnd,
    restores: ChainEnd,
    /// Genesis documents of second and later generations.
    generations: Vec<Genesis>,
    /// How many offsets Kafka has behind the archive's end.
    behind: BTreeMap<TopicPartition, u64>,
    /// Hashes of the keys that ledgers name.
    named: Vec<u128>,
    /// Offsets of dispositions that are not found yet.
    pending: dispositions::Pending,
}

/// What all of a run's tasks share.
struct Run {
    store: Arc<dyn Store>,
    options: Options,
    archive_id: Option<String>,
    /// As archive.json says.
    format: Option<String>,
    kafka: Option<Arc<Kafka>>,
    counters: Arc<Counters>,
    found: Mutex<Found>,
    cuts: Semaphore,
    memory: Semaphore,
}

/// Verifies all that the options select.
///
/// # Errors
/// [`crate::Kind::Config`] if there is no archive, or the brokers are of another cluster;
/// [`crate::Kind::Unavailable`] if store or brokers do not answer. Damage is in the report.
pub async fn run(options: Options, store: Arc<dyn Store>, counters: Arc<Counters>) -> Result<Report> {
    let mut found = Found::default();
    let archive = archive(&*store, &mut found).await?;
    let (archive_id, format) = archive.as_ref().map(|a| (a.archive_id.clone(), a.format.clone())).unzip();
    let kafka = match options.kafka.clone() {
        None => None,
        Some(connection) => {
            let timeout = options.start_timeout;
            let group = options.group.clone().or_else(|| archive.as_ref().map(ArchiveDoc::default_group));
            let cluster_id = archive.and_then(|a| a.kafka_cluster_id);
            let connect = move || Kafka::connect(connection, timeout, cluster_id.as_deref(), group);
            Some(Arc::new(blocking(connect).await?))
        }
    };
    let run = Arc::new(Run {
        store,
        options,
        archive_id,
        format,
        kafka,
        counters,
        found: Mutex::new(found),
        cuts: Semaphore::new(CUTS),
        memory: Semaphore::new(MEMORY as usize),
    });
    // Before the ledgers: a disposition is written after the cuts of its records.
    dispositions::verify(&run).await?;
    restores::verify(&run).await?;
    let ledgers = ledgers::find(&*run.store, &run.options.filter).await?;
    run.check_topics(&ledgers).await?;
    run.counters.all_cuts.store(ledgers.iter().map(Ledger::cuts).sum(), Relaxed);
    let topics: BTreeSet<String> = ledgers.iter().map(|l| l.topic_folder.clone()).collect();
    let known = ledgers.iter().map(|l| TopicPartition::new(&l.topic, l.partition)).collect();
    run.compare_partitions(&ledgers);
    let walks = ledgers.into_iter().map(|ledger| tokio::spawn(run.clone().walk(ledger)));
    let mut walks = stream::iter(walks).buffered(PARTITIONS_AT_A_TIME);
    while let Some(walked) = walks.next().await {
        joined(walked)?;
    }
    run.compare_generations();
    dispositions::finish(&run, |topic, partition| run.options.filter.may_match_partition(topic, partition));
    run.tell_unarchived(&known).await?;
    let mut named = std::mem::take(&mut run.found().named);
    named.sort_unstable();
    orphans::find(&*run.store, &run.options.filter, &topics, &named, |damage| run.tell(damage)).await?;
    refetched::verify(&run, &named).await?;
    let found = std::mem::take(&mut *run.found());
    let Found { mut damage, mut notes, totals, mut partitions, dispositions, restores, .. } = found;
    damage.sort();
    notes.sort();
    partitions.sort();
    Ok(Report {
        archive_id: run.archive_id.clone(),
        url: run.store.url().to_owned(),
        quick: run.options.quick,
        damage,
        notes,
        totals,
        partitions,
        dispositions,
        restores,
    })
}

/// Reads archive.json. That it is missing is damage if a ledger is there, else there is no archive.
async fn archive(store: &dyn Store, found: &mut Found) -> Result<Option<ArchiveDoc>> {
    let key = layout::ARCHIVE_KEY;
    let damage = match store.get(key).await? {
        Some(bytes) => match documents::parse::<ArchiveDoc>(What::ArchiveDamaged, key, &bytes) {
            Ok(archive) => return Ok(Some(archive)),
            Err(damage) => damage,
        },
        None if store.list(layout::LEDGER_PREFIX, None, Some(1)).await?.objects.is_empty() => {
            return Err(Error::config(format!(
                "no archive at {}: it has no archive.json. Check --archive, or fill it with `dlq-archiver archive`",
                store.url()
            )));
        }
        None => Damage::new(What::ArchiveMissing, key, "what the archive is", "nothing"),
    };
    found.totals.damage += 1;
    found.damage.push(damage);
    Ok(None)
}

impl Run {
    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, damage: Damage) {
        self.counters.damage.fetch_add(1, Relaxed);
        let mut found = self.found();
        found.totals.damage += 1;
        if found.damage.len() < LISTED {
            found.damage.push(damage);
        }
    }

    fn note(&self, at: impl Into<String>, note: impl Into<String>) {
        self.found().notes.push(Note { at: at.into(), note: note.into() });
    }

    /// What the receipt says, if it is of this archive.
    fn receipt(&self) -> Option<&Receipt> {
        self.options.expect.as_ref().filter(|receipt| self.archive_id.as_ref() == Some(&receipt.archive_id))
    }

    /// That each topic asked for is in the archive, or in the receipt.
    async fn check_topics(&self, ledgers: &[Ledger]) -> Result<()> {
        let names = |ledgers: &[Ledger]| ledgers.iter().map(|l| l.topic.clone()).collect::<BTreeSet<String>>();
        let mut there = names(ledgers);
        there.extend(self.options.expect.iter().flat_map(|r| &r.partitions).map(|p| p.topic.clone()));
        for topic in &self.options.filter.doc().topic {
            let only = Filter::new(FilterDoc { topic: vec![topic.clone()], ..FilterDoc::default() })?;
            if there.iter().any(|name| only.may_match_partition(name, 0)) {
                continue;
            }
            let all = names(&ledgers::find(&*self.store, &Filter::default()).await?);
            let has = if all.is_empty() { "no topics yet".to_owned() } else { few(&all, 20) };
            let hint = did_you_mean(topic, all.iter().map(String::as_str));
            return Err(Error::config(format!("no topic {topic} in this archive; it has {has}{hint}")));
        }
        Ok(())
    }

    /// Whether each generation's genesis names the end of the one before.
    fn compare_generations(&self) {
        let (generations, partitions) = {
            let mut found = self.found();
            (std::mem::take(&mut found.generations), found.partitions.clone())
        };
        for g in generations {
            let before =
                |p: &&Partition| (&p.topic, p.partition, p.generation + 1) == (&g.topic, g.partition, g.generation);
            let Some(before) = partitions.iter().find(before) else { continue };
            if g.previous_sha256.as_ref() != Some(&before.sha256) {
                let key = layout::genesis_key(&layout::ledger_prefix(&g.topic, g.partition, g.generation));
                let expected = format!("the SHA-256 of the end of generation {}: {}", before.generation, before.sha256);
                self.tell(Damage::new(
                    What::ChainBroken,
                    key,
                    expected,
                    g.previous_sha256.unwrap_or_else(|| "none".into()),
                ));
            }
        }
    }

    /// Whether all ledgers of the receipt are still there.
    fn compare_partitions(&self, ledgers: &[Ledger]) {
        let Some(receipt) = &self.options.expect else { return };
        if let Some(id) = self.archive_id.as_deref().filter(|id| *id != receipt.archive_id) {
            let expected = format!("archive {}", receipt.archive_id);
            return self.tell(Damage::new(
                What::ReceiptArchive,
                layout::ARCHIVE_KEY,
                expected,
                format!("archive {id}"),
            ));
        }
        let prefixes: BTreeSet<&str> = ledgers.iter().map(|l| l.prefix.as_str()).collect();
        for p in receipt.partitions.iter().filter(|p| self.options.filter.may_match_partition(&p.topic, p.partition)) {
            let prefix = layout::ledger_prefix(&p.topic, p.partition, p.generation);
            if !prefixes.contains(prefix.as_str()) {
                let expected = format!("the ledger of {}/{} up to {}", p.topic, p.partition, p.to);
                self.tell(Damage::new(What::ReceiptPartition, prefix, expected, "nothing"));
            }
        }
    }

    /// Follows one partition's ledger from its genesis to its end.
    async fn walk(self: Arc<Self>, ledger: Ledger) -> Result<()> {
        let genesis = match &ledger.genesis {
            None => {
                let key = layout::genesis_key(&ledger.prefix);
                self.tell(Damage::new(What::GenesisMissing, key, "where this ledger begins", "nothing"));
                None
            }
            Some(bytes) => ledgers::genesis(&ledger.prefix, self.archive_id.as_deref(), bytes, |d| self.tell(d)),
        };
        let place = Arc::new(Place {
            prefix: ledger.prefix.clone(),
            archive_id: self.archive_id.clone(),
            format: self.format.clone(),
            genesis: genesis.clone(),
        });
        let mut chain = Chain::new(&ledger.prefix, genesis.as_ref(), ledger.genesis.as_deref().map(sha256_hex));
        let comparing = self.begin_comparing(&place, &ledger).await?;
        let (sender, comparison) = comparing.unzip();
        let last = ledger.last();
        let cuts = ledger.names().map(|(from, manifest, intent)| {
            tokio::spawn(cut::verify(self.clone(), place.clone(), from, manifest, intent))
        });
        let mut cuts = stream::iter(cuts).buffered(CUTS_AHEAD);
        while let Some(done) = cuts.next().await {
            let cut = joined(done)?;
            let from = cut.link.from;
            if chain.follow(&cut.link, last == Some(from), &mut |damage| self.tell(damage)) {
                let note = if cut.link.intent == chain::Intent::To(from) {
                    "the seal of this generation: a later one follows".to_owned()
                } else {
                    self.found().totals.open_cuts += 1;
                    format!(
                        "an open cut: begun and not committed. A running archiver, or the next start of one, finishes it \
                         ({} objects)",
                        cut.named.len()
                    )
                };
                self.note(layout::intent_key(&ledger.prefix, from), note);
            }
            self.counters.cuts.fetch_add(1, Relaxed);
            self.found().named.extend(cut.named);
            if let (Some(sender), Some(expected)) = (&sender, cut.expected) {
                // The other end is gone if it failed, which is told below.
                let _ = sender.send(expected).await;
            }
        }
        drop(sender);
        self.checkpoints(&chain, &place, &ledger).await?;
        if let Some(receipt) = self.receipt() {
            let ours = |p: &&Partition| layout::ledger_prefix(&p.topic, p.partition, p.generation) == ledger.prefix;
            if let Some(damage) = receipt.partitions.iter().find(ours).and_then(|p| chain.compare(p)) {
                self.tell(damage);
            }
        }
        if let Some(comparison) = comparison {
            let seen = joined(comparison.await)?;
            self.found().totals.kafka_records += seen;
        }
        let mut found = self.found();
        chain.add_to(&mut found.totals);
        found.partitions.extend(chain.receipt(genesis.as_ref()));
        found.generations.extend(genesis.filter(|g| g.generation > 1));
        Ok(())
    }

    /// Checkpoints may be missing; those that are there agree with the manifests.
    async fn checkpoints(&self, chain: &Chain, place: &Place, ledger: &Ledger) -> Result<()> {
        let mut before: Option<(u64, String)> = None;
        for to in &ledger.checkpoints {
            let key = layout::checkpoint_key(&ledger.prefix, *to);
            let Some(bytes) = self.store.get(&key).await? else { continue };
            let read = documents::parse::<Checkpoint>(What::CheckpointDamaged, &key, &bytes);
            let checked = read.and_then(|c| {
                let follows = |b: &&(u64, String)| b.0.checked_add(1) == Some(c.sequence);
                let previous = before.as_ref().filter(follows).map(|b| b.1.as_str());
                chain.checkpoint(&key, place.genesis.as_ref(), &c, previous).map_or(Ok(c.sequence), Err)
            });
            match checked {
                Ok(sequence) => before = Some((sequence, sha256_hex(&bytes))),
                Err(damage) => self.tell(damage),
            }
        }
        Ok(())
    }
}

fn joined<T>(done: Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    done.unwrap_or_else(|e| Err(Error::internal(format!("a worker failed: {e}. Please report this"))))
}
