//! How an archive stands: what is safe, what is at risk and when, what was lost. From ledger and brokers alone.
//!
//! Owns the questions to both and their limit of time; what the answers mean is [`report`]'s and [`advice`]'s. Writes
//! nothing, but for the probe that every start of `archive` makes. What does not answer is unknown, never taken for good.

pub mod advice;
pub mod facts;
pub mod report;
#[cfg(test)]
mod tests;

use crate::archive::cluster::{Cluster, Described};
use crate::archive::ledger::{ARCHIVE_KEY, json_meta};
use crate::catalog::{Catalog, PartitionLedger};
use crate::dialect::Dialects;
use crate::error::{Error, Kind, Result, did_you_mean};
use crate::filter::{Filter, FilterDoc};
use crate::host;
use crate::kafka::{Peeked, TopicId};
use crate::record::TopicPartition;
use crate::refetch::expiry::Watch;
use crate::refetch::may_lack;
use crate::retention::LogSettings;
use crate::store::{Created, Store};
use crate::topics::{self, TopicSettings};
use facts::{Conditional, Expiry, Facts, Kafka, Ledger, Oldest, Partition, Seen, Unreadable};
use futures::{FutureExt, StreamExt, stream};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Ledgers that are read at a time.
const LEDGERS: usize = 32;
/// Topics that are asked for at a time.
const TOPICS: usize = 16;
/// Partitions that one client looks into.
const PEEKED: usize = 100;

#[derive(Debug, Clone)]
pub struct Options {
    /// Exact names, or regular expressions that begin with `^`; none: those of the ledger.
    pub topics: Vec<String>,
    /// Of topics whose brokers do not tell `retention.ms`.
    pub retention: Option<Duration>,
    /// What single topics have of their own.
    pub topics_settings: Vec<TopicSettings>,
    /// For all questions together.
    pub timeout: Duration,
    /// Find out whether the store keeps "create only if absent".
    pub probe: bool,
}

/// Looks, once or again and again: then only what is new of a ledger is read.
pub struct Watcher {
    options: Options,
    filter: Filter,
    store: Arc<dyn Store>,
    cluster: Arc<dyn Cluster>,
    /// By folder.
    known: Mutex<BTreeMap<String, Ledger>>,
    conditional: Mutex<Option<Conditional>>,
    originals: tokio::sync::Mutex<Watch>,
    dialects: Dialects,
    /// Some archived records may lack their originals.
    lacking: AtomicBool,
}

/// What the store has.
struct Stored {
    archive_id: String,
    cluster_id: Option<String>,
    conditional: Conditional,
    ledgers: BTreeMap<TopicPartition, (Vec<Ledger>, Option<Unreadable>)>,
}

/// What the brokers tell of some partitions.
#[derive(Default)]
struct Told {
    settings: BTreeMap<String, LogSettings>,
    ids: BTreeMap<String, String>,
    logs: BTreeMap<TopicPartition, (i64, i64, i64)>,
    oldest: BTreeMap<TopicPartition, Oldest>,
    hidden: BTreeMap<TopicPartition, Oldest>,
    samples: BTreeMap<TopicPartition, Seen>,
    /// Archived topics that they do not name, and do not deny.
    untold: BTreeSet<String>,
}

impl Watcher {
    /// # Errors
    /// [`Kind::Config`] for a topic that is no regular expression.
    pub fn new(options: Options, store: Arc<dyn Store>, cluster: Arc<dyn Cluster>) -> Result<Self> {
        let filter = Filter::new(FilterDoc { topic: options.topics.clone(), ..FilterDoc::default() })?;
        let originals = tokio::sync::Mutex::new(Watch::new(cluster.clone()));
        Ok(Self {
            options,
            filter,
            store,
            cluster,
            known: Mutex::default(),
            conditional: Mutex::default(),
            originals,
            dialects: Dialects::builtin(),
            lacking: AtomicBool::default(),
        })
    }

    /// # Errors
    /// [`Kind::Config`] without an archive, for another cluster's, or for a topic that nobody knows;
    /// [`Kind::Unavailable`] if the store does not answer in time. Brokers that do not are in the answer.
    pub async fn look(&self) -> Result<Facts> {
        let deadline = Instant::now() + self.options.timeout;
        let names = ["^".to_owned()];
        // Less than all of it, so that what the connection said is told.
        let described = within(deadline, self.cluster.describe(&names, self.options.timeout * 3 / 4));
        let (stored, described) = tokio::join!(within(deadline, self.stored()), described);
        let late = || format!("no answer within {} ms (--timeout)", self.options.timeout.as_millis());
        let stored = stored.unwrap_or_else(|| Err(Error::unavailable(format!("{}: {}", self.store.url(), late()))))?;
        let (described, brokers_error) = match described {
            Some(Ok(described)) => (described, None),
            // Wrong settings are no outage.
            Some(Err(e)) if e.kind() == Kind::Config => return Err(e),
            Some(Err(e)) => (Described { cluster_id: None, topics: Vec::new() }, Some(of_timeout(&e))),
            None => (Described { cluster_id: None, topics: Vec::new() }, Some(format!("the brokers gave {}", late()))),
        };
        if let (Some(theirs), Some(ours)) = (&stored.cluster_id, &described.cluster_id)
            && theirs != ours
        {
            return Err(Error::config(format!(
                "the archive at {} is of Kafka cluster {theirs}, these brokers are of {ours}: give the brokers of that cluster",
                self.store.url()
            )));
        }
        let in_kafka = self.in_kafka(&described, &stored);
        if brokers_error.is_none() {
            self.check_topics(&described, &stored)?;
        }
        let told = match brokers_error {
            None => {
                let (told, untold) =
                    tokio::join!(self.ask(&in_kafka, &stored, deadline), self.untold(&described, &stored, deadline));
                Told { untold, ..told }
            }
            Some(_) => Told::default(),
        };
        let originals = match brokers_error {
            None => answer(within(deadline, self.originals()).await),
            Some(_) => Vec::new(),
        };
        let all: BTreeSet<&TopicPartition> = in_kafka.iter().chain(stored.ledgers.keys()).collect();
        let partitions = all.into_iter().map(|tp| {
            let (ledgers, unreadable) = stored.ledgers.get(tp).cloned().unwrap_or_default();
            Partition {
                tp: tp.clone(),
                ledgers,
                unreadable,
                kafka: match told.logs.get(tp) {
                    _ if told.untold.contains(&tp.topic) => Kafka::NotTold,
                    _ if brokers_error.is_none() && !in_kafka.contains(tp) => Kafka::Absent,
                    None => Kafka::NoAnswer,
                    Some(&(start, stable, end)) => Kafka::Log {
                        start,
                        stable,
                        end,
                        oldest: told.oldest.get(tp).copied().unwrap_or_default(),
                        hidden: told.hidden.get(tp).copied().unwrap_or_default(),
                    },
                },
                settings: topics::kept(
                    &self.options.topics_settings,
                    self.options.retention,
                    &tp.topic,
                    told.settings.get(&tp.topic).copied().unwrap_or_default(),
                ),
                topic_id: told.ids.get(&tp.topic).cloned(),
                sample: told.samples.get(tp).copied(),
            }
        });
        Ok(Facts {
            now_ms: host::now_us() / 1000,
            archive_id: stored.archive_id.clone(),
            url: self.store.url().to_owned(),
            conditional: stored.conditional.clone(),
            partitions: partitions.collect(),
            originals,
            brokers_error,
        })
    }

    async fn originals(&self) -> Result<Vec<Expiry>> {
        if !self.lacking.load(Relaxed) {
            return Ok(Vec::new());
        }
        let catalog = Catalog::open(self.store.clone()).await?;
        self.originals.lock().await.look(&catalog, &self.filter).await
    }

    /// The partitions that the brokers have, of the topics that are meant.
    fn in_kafka(&self, described: &Described, stored: &Stored) -> BTreeSet<TopicPartition> {
        let archived: BTreeSet<&str> = stored.ledgers.keys().map(|tp| tp.topic.as_str()).collect();
        let meant = described.topics.iter().filter(|t| match self.options.topics.is_empty() {
            true => archived.contains(t.name.as_str()),
            false => self.filter.may_match_partition(&t.name, 0),
        });
        meant.flat_map(|t| t.partitions.iter().map(|p| TopicPartition::new(&t.name, *p))).collect()
    }

    /// A mistyped name must not look like nothing to do.
    fn check_topics(&self, described: &Described, stored: &Stored) -> Result<()> {
        let all: BTreeSet<&str> = (described.topics.iter().map(|t| t.name.as_str()))
            .chain(stored.ledgers.keys().map(|tp| tp.topic.as_str()))
            .collect();
        for name in self.options.topics.iter().filter(|name| !name.starts_with('^')) {
            if !all.contains(name.as_str()) {
                let hint = did_you_mean(name, all.iter().copied());
                return Err(Error::config(format!(
                    "topic {name:?} is neither in the archive nor on the brokers (or this user may not describe it){hint}"
                )));
            }
        }
        Ok(())
    }

    async fn stored(&self) -> Result<Stored> {
        let catalog = Catalog::open(self.store.clone()).await?;
        let conditional = self.conditional().await;
        let found = catalog.partitions(&self.filter).await?;
        let read: Vec<_> = found.iter().map(|p| self.ledger(&catalog, p).boxed()).collect();
        let read: Vec<_> = stream::iter(read).buffered(LEDGERS).collect().await;
        let mut ledgers: BTreeMap<TopicPartition, (Vec<Ledger>, Option<Unreadable>)> = BTreeMap::new();
        for (partition, ledger) in found.iter().zip(read) {
            let tp = TopicPartition::new(&partition.genesis.topic, partition.genesis.partition);
            let entry = ledgers.entry(tp).or_default();
            match ledger {
                Ok(ledger) => entry.0.push(ledger),
                Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Unavailable) => {
                    let damaged = e.kind() == Kind::Corrupt;
                    entry.1 = Some(Unreadable { why: e.message().to_owned(), damaged });
                }
                Err(e) => return Err(e),
            }
        }
        if ledgers.is_empty() && self.options.topics.is_empty() {
            catalog.check_empty().await?;
        }
        let archive = catalog.archive();
        Ok(Stored {
            archive_id: archive.archive_id.clone(),
            cluster_id: archive.kafka_cluster_id.clone(),
            conditional,
            ledgers,
        })
    }

    /// What was read before stays: manifests never change.
    async fn ledger(&self, catalog: &Catalog, partition: &PartitionLedger) -> Result<Ledger> {
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ledger = lock().get(&partition.prefix).cloned().unwrap_or_else(|| Ledger::of(&partition.genesis));
        let filter = match ledger.cuts.is_empty() {
            true => Filter::default(),
            false => Filter::new(FilterDoc { offset_from: Some(ledger.next), ..FilterDoc::default() })?,
        };
        let manifests = catalog.manifests(partition, &filter).await?;
        if manifests.iter().flat_map(|m| &m.objects).any(|o| may_lack(o, &self.dialects)) {
            self.lacking.store(true, Relaxed);
        }
        ledger.add(&manifests);
        lock().insert(partition.prefix.clone(), ledger.clone());
        Ok(ledger)
    }

    /// As every start of `archive` finds it out: `archive.json` is created again, with the bytes that it has.
    async fn conditional(&self) -> Conditional {
        if !self.options.probe {
            return Conditional::NotAsked;
        }
        let lock = || self.conditional.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().clone() {
            return known;
        }
        let found = match self.store.set_plain(false) {
            None => Conditional::Kept,
            Some(_) => self.probe().await,
        };
        lock().get_or_insert(found).clone()
    }

    async fn probe(&self) -> Conditional {
        let created = match self.store.get(ARCHIVE_KEY).await {
            Ok(Some(bytes)) => self.store.create(ARCHIVE_KEY, bytes, &json_meta()).await,
            Ok(None) => return Conditional::Unknown("archive.json is not there".into()),
            Err(e) => Err(e),
        };
        match created {
            Ok(Created::Exists) => Conditional::Kept,
            Ok(Created::New) => Conditional::NotKept,
            Err(_) if self.store.refuses_condition() => Conditional::NotKept,
            Err(e) if e.is_unavailable() => Conditional::Unknown("the store did not answer".into()),
            Err(_) => Conditional::Unknown("these credentials may not write".into()),
        }
    }

    /// Archived topics that the brokers do not name: a user who may not describe one is told of all but it. Asked for by
    /// name, they say that there is none, or refuse.
    async fn untold(&self, described: &Described, stored: &Stored, deadline: Instant) -> BTreeSet<String> {
        let named: BTreeSet<&str> = described.topics.iter().map(|t| t.name.as_str()).collect();
        let mut unnamed: Vec<&TopicPartition> =
            stored.ledgers.keys().filter(|tp| !named.contains(tp.topic.as_str())).collect();
        unnamed.dedup_by(|a, b| a.topic == b.topic);
        let ask = |tp| async move { (tp, within(deadline, self.cluster.topic_id(tp)).await) };
        let told: Vec<_> = stream::iter(unnamed.into_iter().map(|tp| ask(tp).boxed()).collect::<Vec<_>>())
            .buffered(TOPICS)
            .collect()
            .await;
        let untold =
            told.into_iter().filter(|(_, id): &(&TopicPartition, _)| !matches!(id, Some(Ok(TopicId::NoTopic))));
        untold.map(|(tp, _)| tp.topic.clone()).collect()
    }

    /// All questions about these partitions. What is not answered by the deadline is left out.
    async fn ask(&self, partitions: &BTreeSet<TopicPartition>, stored: &Stored, deadline: Instant) -> Told {
        let list: Vec<TopicPartition> = partitions.iter().cloned().collect();
        let (mut told, settings) =
            tokio::join!(self.ask_logs(&list, stored, deadline), self.settings(&list, half(deadline)));
        told.settings = settings;
        told
    }

    async fn ask_logs(&self, list: &[TopicPartition], stored: &Stored, deadline: Instant) -> Told {
        let (logs, ids) = tokio::join!(self.logs(list, deadline), self.topic_ids(list, deadline));
        let mut told = Told { ids, logs, ..Told::default() };
        let next = |tp: &TopicPartition| stored.ledgers.get(tp).and_then(|(ledgers, _)| ledgers.last()).map(|l| l.next);
        let (mut oldest, mut hidden) = (Vec::new(), Vec::new());
        for (tp, &(start, stable, end)) in &told.logs {
            let next = next(tp).unwrap_or(start).max(start);
            if next < end {
                oldest.push((tp.clone(), next));
            }
            if next < stable && stable < end {
                hidden.push((tp.clone(), stable));
            }
        }
        let samples = sampled(stored, &told.logs);
        let until = |questions| self.firsts(questions, deadline);
        let (firsts, behind, samples) = tokio::join!(until(oldest), until(hidden), until(samples));
        // An open transaction may begin with what is not archived.
        told.hidden = firsts.clone();
        told.hidden.extend(behind);
        told.oldest = firsts;
        told.samples = samples
            .into_iter()
            .filter_map(|(tp, o)| match o {
                Oldest::Is(seen) => Some((tp, seen)),
                _ => None,
            })
            .collect();
        told
    }

    /// All at once; if a leader that is away leaves that without an answer, topic by topic.
    async fn logs(&self, list: &[TopicPartition], deadline: Instant) -> BTreeMap<TopicPartition, (i64, i64, i64)> {
        let logs = answer(within(half(deadline), self.cluster.logs(list)).await);
        if !logs.is_empty() || list.is_empty() {
            return logs;
        }
        let of_topics = list.chunk_by(|a, b| a.topic == b.topic);
        let asked: Vec<_> =
            of_topics.map(|of_topic| within(half(deadline), self.cluster.logs(of_topic)).boxed()).collect();
        let told: Vec<_> = stream::iter(asked).buffered(TOPICS).collect().await;
        told.into_iter().flat_map(answer).collect()
    }

    async fn settings(&self, partitions: &[TopicPartition], deadline: Instant) -> BTreeMap<String, LogSettings> {
        let topics: BTreeSet<String> = partitions.iter().map(|tp| tp.topic.clone()).collect();
        let (cluster, topics) = (self.cluster.clone(), topics.into_iter().collect::<Vec<_>>());
        if topics.is_empty() {
            return BTreeMap::new();
        }
        // It may block the thread that it is polled on.
        let asked = tokio::spawn(async move { cluster.settings(&topics).await });
        answer(within(deadline, asked).await.and_then(std::result::Result::ok))
    }

    async fn topic_ids(&self, partitions: &[TopicPartition], deadline: Instant) -> BTreeMap<String, String> {
        let one_each = partitions.chunk_by(|a, b| a.topic == b.topic).filter_map(|of_topic| of_topic.first());
        let ask = |tp| async move { (tp, within(half(deadline), self.cluster.topic_id(tp)).await) };
        let told: Vec<_> =
            stream::iter(one_each.map(|tp| ask(tp).boxed()).collect::<Vec<_>>()).buffered(TOPICS).collect().await;
        told.into_iter()
            .filter_map(|(tp, id): (&TopicPartition, _)| match id {
                Some(Ok(TopicId::Is(id))) => Some((tp.topic.clone(), id)),
                _ => None,
            })
            .collect()
    }

    /// The first record at or behind each of these offsets.
    async fn firsts(&self, at: Vec<(TopicPartition, i64)>, deadline: Instant) -> BTreeMap<TopicPartition, Oldest> {
        let chunks: Vec<_> = at.chunks(PEEKED).map(|chunk| self.peek(chunk, deadline).boxed()).collect();
        let peeked: Vec<_> = stream::iter(chunks).buffered(LEDGERS).collect().await;
        peeked.into_iter().flatten().collect()
    }

    async fn peek(&self, at: &[(TopicPartition, i64)], deadline: Instant) -> BTreeMap<TopicPartition, Oldest> {
        let began = Instant::now();
        let Some(Ok(seen)) = within(deadline, self.cluster.peek(at)).await else { return BTreeMap::new() };
        // All of them were read to their ends, unless its patience was over first.
        let whole = began.elapsed() < PEEK_PATIENCE;
        let missing = if whole { Oldest::None } else { Oldest::Unknown };
        at.iter().map(|(tp, _)| (tp.clone(), seen.get(tp).map_or(missing, of_peeked))).collect()
    }
}

/// Below what [`Cluster::peek`] waits for a record.
const PEEK_PATIENCE: Duration = Duration::from_secs(8);

fn of_peeked(p: &Peeked) -> Oldest {
    Oldest::Is(Seen { timestamp_ms: p.timestamp_ms, bytes: p.bytes, headers: p.headers })
}

/// Of topics whose newest records nobody could decode, the newest archived one that is still in a log.
fn sampled(stored: &Stored, logs: &BTreeMap<TopicPartition, (i64, i64, i64)>) -> Vec<(TopicPartition, i64)> {
    let mut at: Vec<(TopicPartition, i64)> = Vec::new();
    for (tp, (ledgers, _)) in &stored.ledgers {
        let (Some(ledger), Some((start, _, end))) = (ledgers.last(), logs.get(tp)) else { continue };
        let offset = ledger.next - 1;
        let is_new = at.last().is_none_or(|(before, _)| before.topic != tp.topic);
        if is_new && *start <= offset && offset < *end && advice::wants_sample(ledger) {
            at.push((tp.clone(), offset));
        }
    }
    at
}

async fn within<T>(deadline: Instant, answer: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout_at(deadline, answer).await.ok()
}

/// Half of the time that is left: brokers that do not know a question give no answer to it.
fn half(deadline: Instant) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now) / 2
}

/// It was not the flag of other commands that was waited for.
fn of_timeout(e: &Error) -> String {
    e.message().replace("--start-timeout", "--timeout")
}

/// What was answered; nothing if nobody answered.
fn answer<T: Default>(answered: Option<Result<T>>) -> T {
    match answered {
        Some(Ok(answer)) => answer,
        Some(Err(e)) => {
            tracing::debug!("{e}");
            T::default()
        }
        None => T::default(),
    }
}
