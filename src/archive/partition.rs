//! One partition's task: loads its ledger, finishes what was begun, then writes one cut after the other.
//!
//! Owns the task's life and how it waits for store and brokers. Does not poll, and does not write cuts itself
//! ([`super::writer`]). Invariant: nothing is read from a partition before its ledger is complete.

use super::cluster::Cluster;
use super::ledger::{self as io, Loaded};
use super::messages::{Batch, Command};
use super::patience::Patience;
use super::writer::Writer;
use super::{From, Shared};
use crate::error::{Error, Kind, Result};
use crate::kafka::TopicId;
use crate::layout;
use crate::ledger::{Genesis, LEDGER_VERSION};
use crate::record::TopicPartition;
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedReceiver;

/// The only generation this version writes.
const GENERATION: u32 = 1;

/// Why a task ended.
pub enum End {
    /// Its partition was revoked, or the reader ended.
    Done,
    /// The partition cannot go on.
    Stopped(Error),
}

pub struct Partition {
    pub(super) shared: Arc<Shared>,
    pub(super) tp: TopicPartition,
    /// Of its ledger.
    pub(super) prefix: String,
    patience: Patience,
}

impl Partition {
    pub fn new(shared: Arc<Shared>, tp: TopicPartition, patience: Patience) -> Self {
        let prefix = layout::ledger_prefix(&tp.topic, tp.partition, GENERATION);
        Self { shared, tp, prefix, patience }
    }

    /// Runs until `batches` closes or the partition has to stop.
    pub async fn run(self, assignment: u64, mut batches: UnboundedReceiver<Batch>) -> End {
        let tp = self.tp.clone();
        let end = match self.start(assignment).await {
            Ok(mut writer) => writer.write_all(&mut batches).await,
            Err(e) => Err(e),
        };
        // Batches that were not written are dropped with `batches`: Kafka has them.
        match end {
            Ok(()) => End::Done,
            Err(e) if e.kind() == Kind::Fenced => {
                tracing::info!("{tp}: {e}; following the ledger");
                self.shared.command(Command::Restart { tp: tp.clone(), assignment });
                End::Done
            }
            Err(e) => {
                self.shared.command(Command::Stop { tp: tp.clone(), assignment });
                End::Stopped(e)
            }
        }
    }

    async fn start(&self, assignment: u64) -> Result<Writer<'_>> {
        let _permit = self.shared.starts.acquire().await.map_err(|_| Error::internal("semaphore closed"))?;
        let (low, high) = self.watermarks().await?;
        // Before the ledger, which another archiver may be writing: it commits only what is in there.
        let committed = self.committed().await;
        let loaded = match self.wait_out("load the ledger", || io::load(self.store(), &self.tp, GENERATION)).await? {
            Some(loaded) => loaded,
            None => self.begin(low, high).await?,
        };
        if let Some(committed) = committed.filter(|c| *c > loaded.head.next) {
            tracing::warn!(
                "{}: the group {} has committed offset {committed}, and the ledger ends at {}. If this archive had those \
                 records, its ledger was lost and they are archived a second time: then stop, and restore {} from a copy \
                 or older versions of the bucket. Else the group was used by another program",
                self.tp,
                self.shared.group,
                loaded.head.next,
                self.prefix
            );
        }
        let Loaded { genesis, head, leader_epoch, open, checkpoint, recent } = loaded;
        if genesis.archive_id != self.shared.archive.archive_id {
            return Err(Error::corrupt(format!(
                "{}: its ledger is of archive {}, archive.json of {}: one of them is from elsewhere",
                self.tp, genesis.archive_id, self.shared.archive.archive_id
            )));
        }
        let mut writer = Writer { partition: self, genesis, head, leader_epoch, checkpoint, recent };
        writer.check_topic_id().await?;
        writer.make_checkpoints().await?;
        if let Some(intent) = open {
            writer.recover(intent, high).await?;
        }
        writer.follow_log(low, high).await?;
        tracing::debug!("{}: reading from {} (log {low}..{high})", self.tp, writer.head.next);
        self.shared.command(Command::Start {
            tp: self.tp.clone(),
            assignment,
            offset: writer.head.next,
            leader_epoch: writer.leader_epoch,
            end: high,
        });
        Ok(writer)
    }

    /// Creates the genesis, or follows the one that another archiver created meanwhile.
    async fn begin(&self, low: i64, high: i64) -> Result<Loaded> {
        let first_offset = match self.shared.options.from {
            From::Earliest => low,
            From::Latest => high,
            From::Time(ms) => {
                let time = |ms| self.ask(move || self.cluster().offset_for_time(&self.tp, ms));
                match time(ms).await? {
                    Some(offset) => offset,
                    // "No such record", unless the brokers cannot seek by time at all: then rather too much.
                    None if low < high && time(0).await?.is_none() => {
                        tracing::warn!("{}: the brokers cannot seek by time: beginning at the log start", self.tp);
                        low
                    }
                    None => high,
                }
            }
        };
        let topic_id = self
            .ask(|| async {
                match self.cluster().topic_id(&self.tp).await? {
                    TopicId::Is(id) => Ok(Some(id)),
                    TopicId::NotTold => Ok(None),
                    // Its log was there just now: a new topic that not every broker knows yet, or one that is deleted.
                    TopicId::NoTopic => Err(Error::unavailable("a broker does not know the topic")),
                }
            })
            .await?;
        let genesis = Genesis {
            version: LEDGER_VERSION,
            archive_id: self.shared.archive.archive_id.clone(),
            topic: self.tp.topic.clone(),
            partition: self.tp.partition,
            generation: GENERATION,
            topic_id,
            first_offset,
            created_at: crate::archive::rfc3339(self.shared.now_us()),
        };
        let key = layout::genesis_key(&self.prefix);
        match self.wait_out("create the genesis", || io::create(self.store(), &key, &genesis)).await {
            Ok(_) => {}
            Err(e) if e.kind() == Kind::Fenced => {}
            Err(e) => return Err(e),
        }
        self.wait_out("load the ledger", || io::load(self.store(), &self.tp, GENERATION)).await?.ok_or_else(|| {
            Error::corrupt(format!("{key} was created and is not there: something deletes ledger objects"))
        })
    }

    pub(super) fn store(&self) -> &dyn crate::store::Store {
        &*self.shared.store
    }

    /// Waits out a store that does not answer. Refusals count as such too: credentials and buckets were right when
    /// the archive was opened, so somebody is changing them.
    pub(super) async fn wait_out<T, F>(&self, doing: &str, mut attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.patience
            .wait_out(&format!("{}: {doing}", self.tp), || {
                let attempt = attempt();
                async {
                    attempt
                        .await
                        .map_err(|e| if e.kind() == Kind::Config { Error::unavailable(e.message()) } else { e })
                }
            })
            .await
    }

    /// Asks the brokers until they answer.
    pub(super) async fn ask<T, F>(&self, question: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.wait_out("ask the brokers", question).await
    }

    pub(super) fn cluster(&self) -> &dyn Cluster {
        &*self.shared.cluster
    }

    pub(super) async fn watermarks(&self) -> Result<(i64, i64)> {
        self.ask(|| self.cluster().watermarks(&self.tp)).await
    }

    /// The group's offset, a hint: `None` if it has none, or is not told at the first asking.
    async fn committed(&self) -> Option<i64> {
        let asked = self.cluster().committed(&self.shared.group, &self.tp).await;
        asked.inspect_err(|e| tracing::debug!("{e}")).ok().flatten()
    }

    pub(super) async fn topic_id(&self) -> Result<TopicId> {
        self.ask(|| self.cluster().topic_id(&self.tp)).await
    }
}
