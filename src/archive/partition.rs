//! One partition's task: loads its ledger, finishes what was begun, then writes one cut after the other.
//!
//! Owns the order of the commit protocol: topic id, intent, data objects, manifest. Does not poll. Invariant: a
//! manifest is created only when every object that its intent names is durable.

use super::ledger::{self as io, Loaded};
use super::patience::Patience;
use super::reader::{Batch, Command};
use super::{Counters, From, Shared};
use crate::cut::{self, CutRange, Encoded, Group};
use crate::error::{Error, Kind, Result};
use crate::format::Format;
use crate::kafka::RangeReader;
use crate::layout;
use crate::ledger::{
    DataObject, Gap, GapKind, Genesis, Head, Intent, IntentObject, LEDGER_VERSION, Manifest, decode_checksums,
    decode_offsets,
    plan::{self, LogState},
};
use crate::record::{RawBatch, TopicPartition};
use crate::store::{Created, ObjectMeta};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use roaring::RoaringTreemap;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

/// The only generation this version writes.
const GENERATION: u32 = 1;
/// Objects of one cut that are encoded and uploaded at a time.
const OBJECTS_AT_A_TIME: usize = 4;
const ASK: Duration = Duration::from_secs(10);

/// Why a task ended.
pub enum End {
    /// Its partition was revoked, or the reader ended.
    Done,
    /// The partition cannot go on.
    Stopped(Error),
}

pub struct Partition {
    shared: Arc<Shared>,
    tp: TopicPartition,
    prefix: String,
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
            Ok(mut writer) => writer.write_all(assignment, &mut batches).await,
            Err(e) => Err(e),
        };
        let end = match end {
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
        };
        // What was read and is not written is let go: Kafka has it.
        while let Some(batch) = batches.recv().await {
            let memory = batch.records.memory();
            drop(batch.records);
            self.shared.command(Command::Done { tp: tp.clone(), assignment, memory, durable: None });
        }
        end
    }

    async fn start(&self, assignment: u64) -> Result<Writer<'_>> {
        let _permit = self.shared.starts.acquire().await.map_err(|_| Error::internal("semaphore closed"))?;
        let (low, high) = self.watermarks().await?;
        let loaded = match self.wait_out("load the ledger", || io::load(self.store(), &self.tp, GENERATION)).await? {
            Some(loaded) => loaded,
            None => self.begin(low, high).await?,
        };
        let Loaded { genesis, head, leader_epoch, open } = loaded;
        let mut writer = Writer { partition: self, genesis, head, leader_epoch };
        writer.check_topic_id().await?;
        if let Some(intent) = open {
            writer.recover(intent, low, high).await?;
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
                let found = self.ask(move |shared, tp| shared.admin.offset_for_time(tp, ms, ASK)).await?;
                found.unwrap_or(high)
            }
        };
        let genesis = Genesis {
            version: LEDGER_VERSION,
            archive_id: self.shared.archive.archive_id.clone(),
            topic: self.tp.topic.clone(),
            partition: self.tp.partition,
            generation: GENERATION,
            topic_id: self.topic_id().await?,
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

    fn store(&self) -> &dyn crate::store::Store {
        &*self.shared.store
    }

    /// Waits out a store that does not answer. Refusals count as such too: credentials and buckets were right when
    /// the archive was opened, so somebody is changing them.
    async fn wait_out<T, F>(&self, doing: &str, mut attempt: impl FnMut() -> F) -> Result<T>
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

    /// Asks the brokers, on a blocking thread, until they answer.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl Fn(&Shared, &TopicPartition) -> Result<T> + Clone + Send + 'static,
    ) -> Result<T> {
        self.wait_out("ask the brokers", || {
            let (shared, tp, question) = (self.shared.clone(), self.tp.clone(), question.clone());
            blocking(move || question(&shared, &tp))
        })
        .await
    }

    async fn watermarks(&self) -> Result<(i64, i64)> {
        self.ask(|shared, tp| shared.admin.watermarks(tp, ASK)).await
    }

    async fn topic_id(&self) -> Result<Option<String>> {
        self.ask(|shared, tp| Ok(shared.admin.topic_id(&tp.topic, ASK))).await
    }
}

/// A partition whose ledger is loaded and complete.
struct Writer<'p> {
    partition: &'p Partition,
    genesis: Genesis,
    head: Head,
    leader_epoch: i32,
}

impl Writer<'_> {
    fn shared(&self) -> &Arc<Shared> {
        &self.partition.shared
    }

    fn counters(&self) -> &Counters {
        &self.partition.shared.counters
    }

    async fn write_all(&mut self, assignment: u64, batches: &mut UnboundedReceiver<Batch>) -> Result<()> {
        while let Some(batch) = batches.recv().await {
            let Batch { tp, from, to, records, .. } = batch;
            let memory = records.memory();
            let done = self.write(from, to, records).await;
            let durable = done.is_ok().then_some(self.head.next);
            self.shared().command(Command::Done { tp, assignment, memory, durable });
            done?;
        }
        Ok(())
    }

    /// Writes one cut.
    async fn write(&mut self, from: i64, to: i64, records: Arc<RawBatch>) -> Result<()> {
        if from != self.head.next || to <= from {
            return Err(Error::internal(format!(
                "{}: a batch {from}..{to} came where {} was expected",
                self.partition.tp, self.head.next
            )));
        }
        let (genesis, shared) = (self.genesis.clone(), self.shared().clone());
        let range = CutRange { from, to, cut_at_us: shared.now_us() };
        let batch = records.clone();
        let (intent, groups) = self
            .encode_thread(move || {
                let groups = cut::group(&batch, &genesis.topic, genesis.partition, &shared.tables);
                let intent =
                    cut::intent(&genesis, range, &batch, &groups, Vec::new(), shared.options.format, &shared.tables)?;
                Ok((intent, groups))
            })
            .await?;
        let intent = self.announce(intent).await?;
        let format = self.shared().options.format;
        let objects = self.create_objects(&intent, &intent.objects, format, &records, &groups).await?;
        self.commit(&intent, objects, intent.gaps.clone()).await
    }

    /// Creates the intent, after asking whether the topic is still the same one.
    async fn announce(&self, intent: Intent) -> Result<Arc<Intent>> {
        for object in &intent.objects {
            self.partition.store().check_key(&object.key)?;
        }
        self.check_topic_id().await?;
        let key = layout::intent_key(&self.partition.prefix, intent.from);
        self.partition.wait_out("create an intent", || io::create(self.partition.store(), &key, &intent)).await?;
        Ok(Arc::new(intent))
    }

    /// Encodes and creates objects of an intent, whose rows are groups of `records`.
    async fn create_objects(
        &self,
        intent: &Arc<Intent>,
        objects: &[IntentObject],
        format: Format,
        records: &Arc<RawBatch>,
        groups: &[Group],
    ) -> Result<Vec<(DataObject, RoaringTreemap)>> {
        let work: Vec<_> = objects
            .iter()
            .zip(groups)
            .map(|(object, group)| {
                let rows = group.rows.clone();
                self.encode_and_create(intent.clone(), object.clone(), rows, format, records.clone()).boxed()
            })
            .collect();
        stream::iter(work).buffered(OBJECTS_AT_A_TIME).try_collect().await
    }

    async fn encode_and_create(
        &self,
        intent: Arc<Intent>,
        object: IntentObject,
        rows: Vec<u32>,
        format: Format,
        records: Arc<RawBatch>,
    ) -> Result<(DataObject, RoaringTreemap)> {
        let (shared, planned) = (self.shared().clone(), object.clone());
        let intent_key = layout::intent_key(&self.partition.prefix, intent.from);
        let encoded = self
            .encode_thread(move || {
                let rows = rows.iter().map(|&row| records.get(row as usize));
                let cluster_id = shared.archive.kafka_cluster_id.as_deref();
                cut::encode(&intent, &planned, cluster_id, rows, format, &shared.tables, &intent_key)
            })
            .await?;
        self.create_object(&object, encoded).await
    }

    /// Creates one object, or finds what is there under its name. Returns what the manifest says of it and the
    /// offsets it has.
    async fn create_object(&self, planned: &IntentObject, encoded: Encoded) -> Result<(DataObject, RoaringTreemap)> {
        let Encoded { bytes, object } = encoded;
        let format = Format::of_key(&object.key).unwrap_or_default();
        let missing = planned.rows - object.rows;
        let mut meta = ObjectMeta::new(format.content_type())
            .with("sha256", object.sha256.clone())
            .with("rows", object.rows.to_string());
        if missing > 0 {
            meta = meta.with("missing", missing.to_string());
        }
        let key = object.key.clone();
        let store = self.partition.store();
        let created =
            self.partition.wait_out("create a data object", || store.create(&key, bytes.clone(), &meta)).await?;
        let ours = match created {
            Created::New => true,
            Created::Exists => {
                let head = self.partition.wait_out("look at a data object", || store.head(&key)).await?;
                head.is_some_and(|h| h.meta.get("sha256") == Some(object.sha256.as_str()))
            }
        };
        if ours && missing == 0 {
            self.counters().object(object.size);
            return Ok((object, decode_offsets(&planned.offsets)?));
        }
        self.found_object(planned).await
    }

    /// Reads an object of an intent that is in the store.
    async fn found_object(&self, planned: &IntentObject) -> Result<(DataObject, RoaringTreemap)> {
        let store = self.partition.store();
        let bytes =
            self.partition.wait_out("read a data object", || store.get(&planned.key)).await?.ok_or_else(|| {
                Error::corrupt(format!("data object {} was there and is not: something deletes objects", planned.key))
            })?;
        let planned = planned.clone();
        self.encode_thread(move || cut::describe(&planned, bytes)).await
    }

    /// Creates the manifest and moves the head.
    async fn commit(
        &mut self,
        intent: &Intent,
        objects: Vec<(DataObject, RoaringTreemap)>,
        gaps: Vec<Gap>,
    ) -> Result<()> {
        let manifest = Manifest {
            version: LEDGER_VERSION,
            archive_id: intent.archive_id.clone(),
            topic: intent.topic.clone(),
            partition: intent.partition,
            generation: intent.generation,
            topic_id: intent.topic_id.clone(),
            sequence: self.head.sequence,
            from: intent.from,
            to: intent.to,
            cut_at_us: intent.cut_at_us,
            schema_version: intent.schema_version,
            leader_epoch: if intent.leader_epoch >= 0 { intent.leader_epoch } else { self.leader_epoch },
            rows: objects.iter().map(|(o, _)| o.rows).sum(),
            objects: objects.into_iter().map(|(o, _)| o).collect(),
            gaps,
            previous_sha256: self.head.previous_sha256.clone(),
        };
        let key = layout::manifest_key(&self.partition.prefix, manifest.from);
        let store = self.partition.store();
        let bytes = self.partition.wait_out("create a manifest", || io::create(store, &key, &manifest)).await?;
        self.head = self.head.advance(&manifest, &bytes)?;
        self.leader_epoch = manifest.leader_epoch;
        self.counters().cut(manifest.rows);
        for gap in &manifest.gaps {
            self.tell_gap(gap);
        }
        tracing::info!(
            topic = manifest.topic,
            partition = manifest.partition,
            from = manifest.from,
            to = manifest.to,
            rows = manifest.rows,
            objects = manifest.objects.len(),
            bytes = manifest.objects.iter().map(|o| o.size).sum::<u64>(),
            "archived"
        );
        Ok(())
    }

    fn tell_gap(&self, gap: &Gap) {
        let Gap { from, to, kind } = *gap;
        if kind.is_loss() {
            self.counters().lost((to - from) as u64);
            tracing::error!(
                "{}: offsets {from}..{to} are lost: retention deleted them before they were archived. The gap is in the \
                 ledger; archive more often, or raise the topic's retention.ms",
                self.partition.tp
            );
        } else {
            tracing::info!("{}: offsets {from}..{to} were compacted away before they were archived", self.partition.tp);
        }
    }

    /// Finishes a cut that was begun: creates every object that its intent names, with the rows that Kafka still has.
    async fn recover(&mut self, intent: Intent, low: i64, high: i64) -> Result<()> {
        let tp = self.partition.tp.clone();
        tracing::info!("{tp}: finishing the cut {}..{} that was begun before", intent.from, intent.to);
        if high < intent.to {
            return Err(self.recreated(high));
        }
        let intent = Arc::new(intent);
        let format = Format::parse(&intent.extension)
            .or_else(|| (intent.extension == "jsonl").then_some(Format::Jsonl(crate::format::Compression::None)))
            .filter(|f| f.extension() == intent.extension)
            .ok_or_else(|| Error::corrupt(format!("{tp}: intent {} has an unknown format", intent.from)))?;
        let store = self.partition.store();
        let mut found = Vec::with_capacity(intent.objects.len());
        let mut absent = Vec::new();
        for (i, object) in intent.objects.iter().enumerate() {
            match self.partition.wait_out("look at a data object", || store.head(&object.key)).await? {
                Some(_) => found.push((i, self.found_object(object).await?)),
                None => absent.push(i),
            }
        }
        if !absent.is_empty() {
            let objects: Vec<IntentObject> = absent.iter().map(|&i| intent.objects[i].clone()).collect();
            let (records, groups) = self.read_again(&intent, &objects, low).await?;
            self.check_topic_id().await?;
            let created = self.create_objects(&intent, &objects, format, &Arc::new(records), &groups).await?;
            found.extend(absent.into_iter().zip(created));
        }
        found.sort_by_key(|(i, _)| *i);
        let mut missing = RoaringTreemap::new();
        for (i, (_, offsets)) in &found {
            missing |= decode_offsets(&intent.objects[*i].offsets)? - offsets;
        }
        // Asked again: the log start may have moved while the range was read.
        let (low, _) = self.partition.watermarks().await?;
        let mut gaps = intent.gaps.clone();
        gaps.extend(plan::recovery_gaps(missing.iter().map(|o| o as i64), low));
        self.commit(&intent, found.into_iter().map(|(_, o)| o).collect(), gaps).await
    }

    /// Reads the offsets of these objects again and checks each against the checksum in the intent.
    async fn read_again(
        &self,
        intent: &Arc<Intent>,
        objects: &[IntentObject],
        low: i64,
    ) -> Result<(RawBatch, Vec<Group>)> {
        // Offset -> (object, checksum).
        let mut wanted: HashMap<i64, (usize, u64)> = HashMap::new();
        for (i, object) in objects.iter().enumerate() {
            let (offsets, checksums) = (decode_offsets(&object.offsets)?, decode_checksums(&object.checksums)?);
            if offsets.len() != checksums.len() as u64 {
                return Err(Error::corrupt(format!("intent {}: as many checksums as offsets expected", intent.from)));
            }
            wanted.extend(offsets.iter().zip(checksums).map(|(offset, checksum)| (offset as i64, (i, checksum))));
        }
        let wanted = Arc::new(wanted);
        let (from, to) = (intent.from.max(low), intent.to);
        let count = objects.len();
        if from >= to {
            let groups = objects.iter().map(|o| Group { dt: o.dt.clone(), pipeline: o.pipeline.clone(), rows: vec![] });
            return Ok((RawBatch::new(), groups.collect()));
        }
        let (records, rows) = self
            .partition
            .ask(move |shared, tp| {
                let mut records = RawBatch::new();
                let mut rows = vec![Vec::new(); count];
                let mut scratch = Vec::new();
                let reader = RangeReader::new(&shared.connection)?;
                reader.read(tp, from, to, Duration::from_secs(60), |message| {
                    if let Some(&(object, checksum)) = wanted.get(&message.offset()) {
                        message.copy_into(&mut records)?;
                        let row = records.len() - 1;
                        if records.get(row).checksum(&mut scratch) != checksum {
                            return Err(Error::corrupt(format!(
                                "{tp}: the record at offset {} is not the one that the intent {} names: the topic was \
                                 made anew or its log was truncated. Nothing more is archived from this partition",
                                message.offset(),
                                from
                            )));
                        }
                        rows[object].push(row as u32);
                    }
                    Ok(ControlFlow::Continue(()))
                })?;
                Ok((records, rows))
            })
            .await?;
        let groups = objects.iter().zip(rows);
        let groups = groups.map(|(o, rows)| Group { dt: o.dt.clone(), pipeline: o.pipeline.clone(), rows }).collect();
        Ok((records, groups))
    }

    /// Compares the checkpoint with the log, and records what retention took. Concluded only from the leader's
    /// answers, seen twice.
    async fn follow_log(&mut self, low: i64, high: i64) -> Result<()> {
        if plan::log_state(self.head.next, low, high) == LogState::Continues {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (low, high) = self.partition.watermarks().await?;
        match plan::log_state(self.head.next, low, high) {
            LogState::Continues => Ok(()),
            LogState::Recreated { high } => Err(self.recreated(high)),
            LogState::Lost { to } => {
                let gap = Gap { from: self.head.next, to, kind: GapKind::Lost };
                let range = CutRange { from: gap.from, to, cut_at_us: self.shared().now_us() };
                let (format, tables) = (self.shared().options.format, &self.shared().tables);
                let intent = cut::intent(&self.genesis, range, &RawBatch::new(), &[], vec![gap], format, tables)?;
                let intent = self.announce(intent).await?;
                self.commit(&intent, Vec::new(), vec![gap]).await
            }
        }
    }

    async fn check_topic_id(&self) -> Result<()> {
        let Some(known) = &self.genesis.topic_id else { return Ok(()) };
        match self.partition.topic_id().await? {
            Some(now) if now != *known => Err(Error::corrupt(format!(
                "{}: the topic was deleted and made anew (its id was {known}, is {now}). Nothing of the old archive is \
                 touched. Archive the new topic under another --archive address",
                self.partition.tp
            ))),
            _ => Ok(()),
        }
    }

    fn recreated(&self, high: i64) -> Error {
        Error::corrupt(format!(
            "{}: the log ends at {high}, below the archive's checkpoint {}: the topic was deleted and made anew, or its \
             log was truncated. Nothing of the old archive is touched. Archive the new topic under another --archive \
             address",
            self.partition.tp, self.head.next
        ))
    }

    /// Runs `work` on a blocking thread, as many at a time as there are cores.
    async fn encode_thread<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let _permit = self.shared().encoders.acquire().await.map_err(|_| Error::internal("semaphore closed"))?;
        blocking(work).await
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(e) => Err(Error::internal(format!("a worker thread failed: {e}. Please report this"))),
    }
}
