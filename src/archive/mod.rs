//! `archive`: drains topics into the archive.
//!
//! A record's way: the poll thread ([`reader`]) copies it into its partition's batch; the cut policy closes the batch;
//! the partition's task ([`partition`]) writes intent, data objects and manifest; the group's offset follows as a
//! hint. This module ties the two sides together.

mod balance;
pub mod board;
mod checkpoint;
pub mod cluster;
pub mod counters;
mod generation;
mod hanging;
pub mod ledger;
mod lookout;
mod messages;
mod opening;
mod part;
mod partition;
mod patience;
mod rate;
mod reader;
mod recovery;
mod shape;
mod telling;
mod writer;

pub use crate::host::now_us;
pub use counters::{Counted, Counters};
pub use opening::{StoreCreate, StoreUse, plainly};
pub use patience::Patience;

use crate::cut::{CutPolicy, Tables};
use crate::error::{Error, Kind, Result};
use crate::format::Format;
use crate::host::{self, Task};
use crate::kafka::Connection;
use crate::ledger::{ArchiveDoc, Manifest};
use crate::record::TopicPartition;
use crate::stage::{Stage, StageReceiver};
use crate::store::Store;
use crate::topics::{TopicSettings, settings_of};
use board::{Board, Standing};
use cluster::{Cluster, Described, Kafka};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use lookout::Lookout;
use messages::{Batch, Command, Event};
use partition::{End, Partition};
use patience::Outages;
use reader::{Reader, Settings};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::{Semaphore, broadcast, mpsc};

/// Where a partition begins that the archive does not have yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    Earliest,
    Latest,
    /// First record at or behind this Kafka timestamp, milliseconds since 1970.
    Time(i64),
}

#[derive(Debug, Clone)]
pub struct Options {
    /// Exact names, or regular expressions that begin with `^`.
    pub topics: Vec<String>,
    /// Drain up to the ends seen at start, then end.
    pub once: bool,
    /// Consumer group; the archive's own if `None`.
    pub group: Option<String>,
    pub from: From,
    /// Where a topic was made anew or its log truncated: close the old generation and begin another.
    pub new_generation: bool,
    pub format: Format,
    pub policy: CutPolicy,
    /// An open batch is not cut before this age because of its deadline.
    pub cut_min_age: Duration,
    /// Of topics whose brokers do not tell `retention.ms`.
    pub retention: Option<Duration>,
    /// Share of the retention at which a record is cut at the latest.
    pub safety: f64,
    /// Data objects a day, over all partitions, that cuts are made fewer for.
    pub files_per_day: Option<u64>,
    /// What single topics have of their own.
    pub topics_settings: Vec<TopicSettings>,
    /// Bytes of records and of the objects that they become, over all partitions.
    pub memory: usize,
    pub store_use: StoreUse,
    /// How long the first answer of broker and store is waited for.
    pub start_timeout: Duration,
    /// With `once`: how long an outage is waited out.
    pub wait: Duration,
    /// Told of each cut that this run committed, and never waited for.
    pub committed: Option<broadcast::Sender<Arc<Manifest>>>,
}

impl Options {
    /// The cut policy of a topic.
    pub fn policy_of(&self, topic: &str) -> CutPolicy {
        settings_of(&self.topics_settings, topic).map_or(self.policy, |own| own.policy(self.policy))
    }

    pub fn safety_of(&self, topic: &str) -> f64 {
        settings_of(&self.topics_settings, topic).and_then(|own| own.safety).unwrap_or(self.safety)
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    pub counted: Counted,
    pub archive: ArchiveDoc,
    pub partitions: usize,
    /// Partitions that could not go on, each with why.
    pub stopped: Vec<(TopicPartition, Error)>,
}

impl Outcome {
    /// Design: 1 a partition was stopped, 3 records were found lost, else 0; 1 wins.
    pub fn exit_code(&self) -> u8 {
        match (self.stopped.is_empty(), self.counted.lost) {
            (false, _) => 1,
            (true, 0) => 0,
            (true, _) => 3,
        }
    }
}

/// What all partitions' tasks share.
pub(crate) struct Shared {
    options: Arc<Options>,
    /// Of consumers: the one given, or the archive's own.
    group: String,
    archive: ArchiveDoc,
    tables: Arc<Tables>,
    store: Arc<dyn Store>,
    cluster: Arc<dyn Cluster>,
    counters: Arc<Counters>,
    board: Arc<Board>,
    commands: std::sync::mpsc::Sender<Command>,
    /// Cores for grouping, encoding, hashing.
    encoders: Semaphore,
    /// Partitions that load their ledger at a time.
    starts: Semaphore,
    /// Cuts that are recovered at a time.
    recoveries: Semaphore,
}

impl Shared {
    fn command(&self, command: Command) {
        // The reader is gone only when the run ends.
        let _ = self.commands.send(command);
    }

    fn now_us(&self) -> i64 {
        now_us()
    }
}

/// The brokers answered.
fn brokers_answer(counters: &Counters) {
    if let Some(ms) = counters.vitals.kafka(true) {
        tracing::info!("the brokers answer again, after {}", crate::retention::words(ms));
    }
}

/// A time as the ledger's documents have it: RFC 3339, UTC, microseconds.
pub fn rfc3339(us: i64) -> String {
    chrono::DateTime::from_timestamp_micros(us)
        .map_or_else(String::new, |t| t.to_rfc3339_opts(chrono::SecondsFormat::Micros, true))
}

/// Runs until shutdown, or with `once` until everything that was there at start is archived.
///
/// # Errors
/// What keeps the run from starting, or ends it for all partitions: wrong configuration, nothing answers. A partition
/// that cannot go on alone is in the outcome.
pub async fn run(
    options: Options,
    store: Arc<dyn Store>,
    connection: Connection,
    tables: Tables,
    counters: Arc<Counters>,
    stage: StageReceiver,
) -> Result<Outcome> {
    let cluster = Arc::new(Kafka::new(connection)?);
    run_on(options, store, cluster, Arc::new(tables), counters, stage).await
}

/// Waits for the brokers, and finds the topics.
///
/// # Errors
/// [`Kind::Config`] for a topic that is not there, and with `once` for a pattern that none matches.
pub async fn describe(options: &Options, cluster: &dyn Cluster) -> Result<Described> {
    let described = cluster.describe(&options.topics, options.start_timeout).await?;
    if options.once && described.topics.is_empty() {
        return Err(Error::config(format!("no topic matches {}: nothing to archive", options.topics.join(", "))));
    }
    Ok(described)
}

/// As [`run`], on any cluster.
pub async fn run_on(
    options: Options,
    store: Arc<dyn Store>,
    cluster: Arc<dyn Cluster>,
    tables: Arc<Tables>,
    counters: Arc<Counters>,
    stage: StageReceiver,
) -> Result<Outcome> {
    let outages = Arc::new(Outages::new(counters.board.clone()));
    let start = Patience::new(Some(options.start_timeout), stage.clone(), outages.clone());
    let Described { cluster_id, topics } = describe(&options, &*cluster).await?;
    counters.vitals.brokers_answered.store(true, Relaxed);
    let (id, format) = (host::random_id(), options.format.archive_name());
    let archive = opening::open(&*store, options.store_use, format, cluster_id.as_deref(), &id, &start).await?;
    counters.vitals.store_answered.store(true, Relaxed);
    counters.vitals.memory_budget.store(options.memory, Relaxed);
    let group = options.group.clone().unwrap_or_else(|| archive.default_group());
    tracing::info!(
        archive = store.url(),
        archive_id = archive.archive_id,
        group,
        once = options.once,
        "{}",
        if archive.archive_id == id { "archive created" } else { "archive opened" }
    );

    let mut consumer = cluster.consumer(&group)?;
    let partitions: Vec<TopicPartition> =
        topics.iter().flat_map(|t| t.partitions.iter().map(|p| TopicPartition::new(&t.name, *p))).collect();
    if options.once {
        consumer.take(&partitions);
    } else {
        consumer.subscribe(&options.topics)?;
    }
    let (commands, received) = std::sync::mpsc::channel();
    let (event_sender, events) = mpsc::unbounded_channel();
    let options = Arc::new(options);
    let settings = Settings { options: options.clone(), partitions: partitions.len() as u64 };
    let board = counters.board.clone();
    let shown = (counters.clone(), board.clone());
    let mut reader = Reader::new(consumer, settings, event_sender, (commands.clone(), received), shown);
    host::thread("poll", move || reader.turn())?;

    let patience = Patience::new(options.once.then_some(options.wait), stage.clone(), outages);
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    // Each reads a cut anew, and makes its objects.
    let largest = topics.iter().map(|t| options.policy_of(&t.name).max_bytes).max().unwrap_or_default();
    let recoveries = (options.memory / balance::Share::unknown(options.format).on_its_way(largest).max(1)).clamp(1, 2);
    let shared = Arc::new(Shared {
        options,
        group,
        archive: archive.clone(),
        tables,
        store,
        cluster,
        counters: counters.clone(),
        board,
        commands,
        encoders: Semaphore::new(cores),
        starts: Semaphore::new(16),
        recoveries: Semaphore::new(recoveries),
    });
    let _lookout = host::spawn(Lookout::default().run(shared.clone()));
    let (partitions, stopped) = Tasks::new(shared, patience).run(events, stage).await?;
    Ok(Outcome { counted: counters.get(), archive, partitions, stopped })
}

/// A partition's task that ended: which one, of which assignment, and how.
type Ended = (TopicPartition, u64, Result<End>);

/// The running tasks, one a partition.
struct Tasks {
    shared: Arc<Shared>,
    patience: Patience,
    senders: HashMap<TopicPartition, mpsc::UnboundedSender<Batch>>,
    /// Task after task of one partition: the next begins when the one before has ended.
    turns: HashMap<TopicPartition, Arc<tokio::sync::Mutex<()>>>,
    running: FuturesUnordered<BoxFuture<'static, Ended>>,
    stopped: Vec<(TopicPartition, Error)>,
}

impl Tasks {
    fn new(shared: Arc<Shared>, patience: Patience) -> Self {
        Self {
            shared,
            patience,
            senders: HashMap::new(),
            turns: HashMap::new(),
            running: FuturesUnordered::new(),
            stopped: Vec::new(),
        }
    }

    async fn run(
        mut self,
        mut events: mpsc::UnboundedReceiver<Event>,
        stage: StageReceiver,
    ) -> Result<(usize, Vec<(TopicPartition, Error)>)> {
        let mut told = Stage::Running;
        loop {
            tokio::select! {
                // In this order, for a simulation to be repeatable.
                biased;
                () = stage.leaves(told) => {
                    told = stage.get();
                    self.shared.command(Command::Shutdown(told));
                }
                Some(done) = self.running.next() => self.finished(done),
                event = events.recv() => match event {
                    Some(Event::Ended(result)) => {
                        result?;
                        break;
                    }
                    Some(event) => self.take(event),
                    None => return Err(Error::internal("the poll thread ended unexpectedly. Please report this")),
                },
            }
        }
        self.senders.clear();
        while told < Stage::Abandon {
            tokio::select! {
                biased;
                done = self.running.next() => match done {
                    Some(done) => self.finished(done),
                    None => break,
                },
                () = stage.leaves(told) => told = stage.get(),
            }
        }
        Ok((self.turns.len(), self.stopped))
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Assigned { tp, assignment } => {
                let (sender, batches) = mpsc::unbounded_channel();
                self.senders.insert(tp.clone(), sender);
                let turn = self.turns.entry(tp.clone()).or_default().clone();
                let partition = Partition::new(self.shared.clone(), tp.clone(), assignment, self.patience.clone());
                let task: Task<End> = host::spawn(async move {
                    let _turn = turn.lock().await;
                    partition.run(batches).await
                });
                self.running.push(async move { (tp, assignment, task.await) }.boxed());
            }
            Event::Revoked { tp } => drop(self.senders.remove(&tp)),
            Event::Batch(batch) => {
                // Without its task it is dropped.
                if let Some(sender) = self.senders.get(&batch.tp) {
                    let _ = sender.send(batch);
                }
            }
            Event::Stopped { tp, error } => {
                // Its task still writes what was handed over, and then ends.
                self.senders.remove(&tp);
                self.stop(tp, None, error);
            }
            Event::Ended(_) => {}
        }
    }

    fn finished(&mut self, (tp, assignment, end): Ended) {
        match end {
            Ok(End::Done) => {}
            Ok(End::Stopped(error)) => self.stop(tp, Some(assignment), error),
            // It panicked.
            Err(error) => {
                self.shared.command(Command::Stop { tp: tp.clone(), assignment });
                self.stop(tp, Some(assignment), error.context("its task failed. What is archived is safe"));
            }
        }
    }

    /// `assignment`: whose task ended so; `None` where the poll thread stopped it.
    fn stop(&mut self, tp: TopicPartition, assignment: Option<u64>, error: Error) {
        // At shutdown an outage that was being waited out is no fault of the partition's.
        if error.kind() == Kind::Unavailable && self.patience.stage() > Stage::Running {
            tracing::warn!(
                "{tp}: not everything that was read is archived: {error}. Kafka has it, the next run goes on"
            );
            return;
        }
        tracing::error!("{tp}: stopped: {error}");
        self.shared.board.update(&tp, |known| {
            (known.standing, known.ended) = (Standing::Stopped(error.message().to_owned()), assignment);
        });
        // The poll thread and its task may both have found out.
        if !self.stopped.iter().any(|(other, _)| *other == tp) {
            self.stopped.push((tp, error));
        }
    }
}
