//! One partition's task: loads its ledger, finishes what was begun, then writes one cut after the other.
//!
//! Owns the task's life and how it waits for store and brokers. Does not poll, and does not write cuts itself
//! ([`super::writer`]). Invariant: nothing is read from a partition before its ledger is complete.

use super::cluster::Cluster;
use super::counters::TopicCounters;
use super::generation::last_record;
use super::ledger::{self as io, Loaded};
use super::messages::{Batch, Command};
use super::patience::Patience;
use super::writer::Writer;
use super::{From, Shared};
use crate::error::{Error, Kind, Result};
use crate::kafka::TopicId;
use crate::layout;
use crate::ledger::{GapKind, Genesis, Intent, LEDGER_VERSION};
use crate::record::TopicPartition;
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedReceiver;

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
    /// Its number with the poll thread.
    pub(super) assignment: u64,
    /// Of the topic; see [`super::generation`].
    pub(super) generation: u32,
    /// Of this generation's ledger.
    pub(super) prefix: String,
    /// Of its topic.
    pub(super) counters: Arc<TopicCounters>,
    patience: Patience,
}

impl Partition {
    pub fn new(shared: Arc<Shared>, tp: TopicPartition, assignment: u64, patience: Patience) -> Self {
        let prefix = layout::ledger_prefix(&tp.topic, tp.partition, 1);
        let patience = Patience { of: Some(tp.clone()), ..patience };
        let counters = shared.counters.topic(&tp.topic);
        Self { shared, tp, assignment, generation: 1, prefix, counters, patience }
    }

    /// Runs until `batches` closes or the partition has to stop.
    pub async fn run(mut self, mut batches: UnboundedReceiver<Batch>) -> End {
        let (tp, assignment) = (self.tp.clone(), self.assignment);
        let end = match self.start().await {
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

    async fn start(&mut self) -> Result<Writer<'_>> {
        let shared = self.shared.clone();
        let _permit = shared.starts.acquire().await.map_err(|_| Error::internal("semaphore closed"))?;
        self.enter_newest_generation().await?;
        loop {
            // Before the ledger, which another archiver may be writing: it commits only what is in there.
            let committed = self.committed().await;
            let loaded = match self.load().await? {
                Some(loaded) => loaded,
                None => self.begin(None).await?,
            };
            if loaded.sealed {
                self.follow_seal(&loaded).await?;
                continue;
            }
            self.check_committed(committed, &loaded);
            let newest = self.back(&loaded).next().await?;
            if let Some(other) = self.other_log(&loaded, newest.as_ref()).await? {
                self.begin_generation(other).await?;
                continue;
            }
            return self.finish_start(loaded, newest).await;
        }
    }

    /// The ledger is of this log: what was begun is finished, and reading begins.
    async fn finish_start(&self, loaded: Loaded, newest: Option<Intent>) -> Result<Writer<'_>> {
        let mut writer = self.writer(&loaded);
        writer.last = newest.as_ref().map(last_record).transpose()?.flatten();
        writer.make_checkpoints().await?;
        if let Some(intent) = loaded.open {
            writer.recover(intent).await?;
        }
        let (low, high) = self.watermarks().await?;
        // Where every offset was a record, each one that is gone was one.
        let next = writer.head.next;
        let dense = newest.is_some_and(|cut| cut.to == next && i64::try_from(cut.rows()) == Ok(next - cut.from));
        writer.follow_log(low, high, if dense { GapKind::Lost } else { GapKind::Unknown }).await?;
        if self.shared.options.once {
            self.tell_hidden(high).await;
        }
        tracing::debug!("{}: reading from {} (log {low}..{high})", self.tp, writer.head.next);
        self.tell_archived(writer.head.next);
        self.shared.command(Command::Start {
            tp: self.tp.clone(),
            assignment: self.assignment,
            offset: writer.head.next,
            last: writer.last,
            end: high,
        });
        Ok(writer)
    }

    /// What `--once` will not come to.
    async fn tell_hidden(&self, stable: i64) {
        if let Ok(end) = self.cluster().log_end(&self.tp).await
            && end > stable
        {
            tracing::info!(
                "{}: draining to the last stable offset {stable}. A transaction is open: the {} offsets behind it cannot be \
                 read before it ends, and are for a later run",
                self.tp,
                end - stable
            );
        }
    }

    /// All below `next` is archived.
    pub(super) fn tell_archived(&self, next: i64) {
        self.shared.board.archived(&self.tp, next, self.shared.now_us() / 1000);
    }

    pub(super) fn writer(&self, loaded: &Loaded) -> Writer<'_> {
        Writer {
            partition: self,
            genesis: loaded.genesis.clone(),
            head: loaded.head.clone(),
            leader_epoch: loaded.leader_epoch,
            last: None,
            checkpoint: loaded.checkpoint,
            recent: loaded.recent.clone(),
            other_log: false,
        }
    }

    pub(super) async fn load(&self) -> Result<Option<Loaded>> {
        let loaded = self.wait_out("load the ledger", || io::load(self.store(), &self.tp, self.generation)).await?;
        match &loaded {
            Some(Loaded { genesis, .. }) if genesis.archive_id != self.shared.archive.archive_id => {
                Err(Error::corrupt(format!(
                    "{}: its ledger is of archive {}, archive.json of {}: one of them is from elsewhere",
                    self.tp, genesis.archive_id, self.shared.archive.archive_id
                )))
            }
            _ => Ok(loaded),
        }
    }

    fn check_committed(&self, committed: Option<i64>, loaded: &Loaded) {
        let next = loaded.head.next;
        // A later generation may begin at lower offsets.
        if let Some(committed) = committed.filter(|c| *c > next && self.generation == 1) {
            tracing::warn!(
                "{}: the group {} has committed offset {committed}, and the ledger ends at {next}. If this archive had those \
                 records, its ledger was lost and they are archived a second time: then stop, and restore {} from a copy \
                 or older versions of the bucket. Else the group was used by another program",
                self.tp,
                self.shared.group,
                self.prefix
            );
        }
    }

    /// Creates the genesis, or follows the one that another archiver created meanwhile. `after`: the generation before,
    /// as it ended, and where this one begins.
    pub(super) async fn begin(&self, after: Option<(&Loaded, i64)>) -> Result<Loaded> {
        let (topic_id, first_offset) = self
            .ask(|| async {
                let id = self.known_topic_id().await?;
                let (low, high) = self.cluster().watermarks(&self.tp).await?;
                let first = match after {
                    Some((_, first)) => first.min(high),
                    None => self.first_offset(low, high).await?,
                };
                // Or a new topic would be archived from an old one's offset on, and what is below it never told.
                if self.known_topic_id().await? != id {
                    return Err(Error::unavailable("the topic is being made anew"));
                }
                Ok((id, first))
            })
            .await?;
        let genesis = Genesis {
            version: LEDGER_VERSION,
            archive_id: self.shared.archive.archive_id.clone(),
            topic: self.tp.topic.clone(),
            partition: self.tp.partition,
            generation: self.generation,
            topic_id,
            first_offset,
            previous_sha256: after.map(|(before, _)| before.head.previous_sha256.clone()),
            created_at: crate::archive::rfc3339(self.shared.now_us()),
        };
        let key = layout::genesis_key(&self.prefix);
        match self.wait_out("create the genesis", || io::create(self.store(), &key, &genesis)).await {
            Ok(_) => {}
            Err(e) if e.kind() == Kind::Fenced => {}
            Err(e) => return Err(e),
        }
        self.load().await?.ok_or_else(|| {
            Error::corrupt(format!("{key} was created and is not there: something deletes ledger objects"))
        })
    }

    async fn known_topic_id(&self) -> Result<Option<String>> {
        match self.cluster().topic_id(&self.tp).await? {
            TopicId::Is(id) => Ok(Some(id)),
            TopicId::NotTold => Ok(None),
            // Its log is there: a new topic that not every broker knows yet, or one that is deleted.
            TopicId::NoTopic => Err(Error::unavailable("a broker does not know the topic")),
        }
    }

    async fn first_offset(&self, low: i64, high: i64) -> Result<i64> {
        Ok(match self.shared.options.from {
            From::Earliest => low,
            From::Latest => high,
            From::Time(ms) => match self.cluster().offset_for_time(&self.tp, ms).await? {
                Some(offset) => offset,
                // "No such record", unless the brokers cannot seek by time at all: then rather too much.
                None if low < high && self.cluster().offset_for_time(&self.tp, 0).await?.is_none() => {
                    tracing::warn!("{}: the brokers cannot seek by time: beginning at the log start", self.tp);
                    low
                }
                None => high,
            },
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
        let url = self.store().url();
        self.patience
            .wait_out(&format!("the store at {url}"), &format!("{}: {doing} in {url}", self.tp), || {
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
        self.patience.wait_out("the brokers", &format!("{}: ask the brokers", self.tp), question).await
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
