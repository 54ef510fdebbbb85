//! Writes cuts of one partition: topic id, intent, data objects, manifest, in this order.
//!
//! Owns the commit protocol's order, and the head that follows it. Recovery of a cut that was begun is in
//! [`super::recovery`]. Invariant: a manifest is created only when every object that its intent names is durable.

use super::Shared;
use super::counters::TopicCounters;
use super::hanging::{Hanging, LOOK};
use super::ledger as io;
use super::messages::{Batch, Durable, LastRecord};
use super::partition::Partition;
use crate::cut::{self, CutRange, Encoded};
use crate::error::{Error, Result};
use crate::format::Format;
use crate::host::{self, blocking};
use crate::layout;
use crate::ledger::plan::{self, GapSummary};
use crate::ledger::{
    DataObject, Gap, GapKind, Genesis, Head, Intent, IntentObject, LEDGER_VERSION, Manifest, decode_offsets,
};
use crate::record::RawBatch;
use crate::store::{Created, ObjectMeta};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use roaring::RoaringTreemap;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedReceiver;

/// Objects of one cut that are encoded and uploaded at a time.
const OBJECTS_AT_A_TIME: usize = 4;

/// A partition whose ledger is loaded and complete.
pub(super) struct Writer<'p> {
    pub(super) partition: &'p Partition,
    pub(super) genesis: Genesis,
    pub(super) head: Head,
    /// Of the last archived record; -1 where unknown.
    pub(super) leader_epoch: i32,
    /// The newest archived record, as far as known.
    pub(super) last: Option<LastRecord>,
    /// Where the newest checkpoint ends.
    pub(super) checkpoint: Option<i64>,
    /// Starts of the manifests behind it.
    pub(super) recent: Vec<i64>,
    /// The log is known to be another one: of it only what matches an intent is of this generation.
    pub(super) other_log: bool,
}

impl Writer<'_> {
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.partition.shared
    }

    fn counters(&self) -> &TopicCounters {
        &self.partition.counters
    }

    pub(super) async fn write_all(&mut self, batches: &mut UnboundedReceiver<Batch>) -> Result<()> {
        let mut hanging = Hanging::default();
        loop {
            let received = tokio::select! {
                biased;
                received = batches.recv() => received,
                () = host::sleep(LOOK) => {
                    hanging.look(self.partition).await;
                    self.check_idle().await?;
                    continue;
                }
            };
            let Some(mut batch) = received else { return Ok(()) };
            let stored = self.write(batch.from, batch.to, batch.records.clone()).await?;
            batch.durable = Some(Durable { next: self.head.next, stored });
        }
    }

    /// Writes one cut. Returns how many bytes its objects have.
    async fn write(&mut self, from: i64, to: i64, records: Arc<RawBatch>) -> Result<u64> {
        if from != self.head.next || to <= from {
            return Err(Error::internal(format!(
                "{}: a batch {from}..{to} came where {} was expected",
                self.partition.tp, self.head.next
            )));
        }
        let began = host::now();
        let (genesis, shared) = (self.genesis.clone(), self.shared().clone());
        let range = CutRange { from, to, cut_at_us: shared.now_us() };
        let batch = records.clone();
        let (intent, rows) = self
            .encode_thread(move || {
                let groups = cut::group(&batch, &genesis.topic, genesis.partition, &shared.tables);
                let intent =
                    cut::intent(&genesis, range, &batch, &groups, Vec::new(), shared.options.format, &shared.tables)?;
                Ok((intent, groups.into_iter().map(|group| group.rows).collect()))
            })
            .await?;
        self.partition.check_leader_epochs(self.last, &records, to).await?;
        let intent = self.announce(intent).await?;
        let format = self.shared().options.format;
        let objects = self.create_objects(&intent, &intent.objects, format, &records, rows).await?;
        let stored = objects.iter().map(|(o, _)| o.size).sum();
        self.commit(&intent, objects).await?;
        self.shared().counters.cut_took(host::since(began));
        Ok(stored)
    }

    /// Creates the intent, after asking whether the topic is still the same one.
    pub(super) async fn announce(&self, intent: Intent) -> Result<Arc<Intent>> {
        for object in &intent.objects {
            self.partition.store().check_key(&object.key)?;
        }
        self.check_topic_id().await?;
        let key = layout::intent_key(&self.partition.prefix, intent.from);
        self.partition.wait_out("create an intent", || io::create(self.partition.store(), &key, &intent)).await?;
        Ok(Arc::new(intent))
    }

    /// Encodes and creates objects of an intent; `rows`: those of each, in `records`.
    pub(super) async fn create_objects(
        &self,
        intent: &Arc<Intent>,
        objects: &[IntentObject],
        format: Format,
        records: &Arc<RawBatch>,
        rows: Vec<Vec<u32>>,
    ) -> Result<Vec<(DataObject, RoaringTreemap)>> {
        let work: Vec<_> = objects
            .iter()
            .zip(rows)
            .map(|(object, rows)| {
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
                let arena = records.chunks();
                let rows = records.pick(&rows);
                let cluster_id = shared.archive.kafka_cluster_id.as_deref();
                cut::encode_from(arena, &intent, &planned, cluster_id, rows, format, &shared.tables, &intent_key)
            })
            .await?;
        self.create_object(&object, encoded).await
    }

    /// Creates one object, or finds what is there under its name. Returns what the manifest says of it and the
    /// offsets it has.
    async fn create_object(&self, planned: &IntentObject, encoded: Encoded) -> Result<(DataObject, RoaringTreemap)> {
        let Encoded { bytes, object, tally } = encoded;
        let format = Format::of_key(&object.key).unwrap_or_default();
        let missing = planned.rows.saturating_sub(object.rows);
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
        if ours {
            // Here and not where it is encoded: a cut that another archiver took is encoded for nothing.
            self.shared().counters.decoded(&tally);
        }
        if ours && missing == 0 {
            self.counters().object(object.size);
            return Ok((object, decode_offsets(&planned.offsets)?));
        }
        self.found_object(planned).await
    }

    /// Reads an object of an intent that is in the store.
    pub(super) async fn found_object(&self, planned: &IntentObject) -> Result<(DataObject, RoaringTreemap)> {
        let store = self.partition.store();
        let bytes =
            self.partition.wait_out("read a data object", || store.get(&planned.key)).await?.ok_or_else(|| {
                Error::corrupt(format!("data object {} was there and is not: something deletes objects", planned.key))
            })?;
        let planned = planned.clone();
        self.encode_thread(move || cut::describe(&planned, bytes)).await
    }

    /// The gaps of a cut: its intent's, and what its objects lack. A cut's own writer asks too: an archiver that
    /// recovered the cut meanwhile may have created an object without rows that Kafka no longer had.
    async fn gaps(&self, intent: &Intent, objects: &[(DataObject, RoaringTreemap)]) -> Result<Vec<Gap>> {
        let missing = plan::missing(intent, objects.iter().map(|(_, offsets)| offsets))?;
        let mut gaps = intent.gaps.clone();
        if !missing.is_empty() {
            // What another log lacks was not compacted. Another archiver may have known of it, and recovered the cut.
            let gone = self.other_log || self.partition.is_gone(intent).await?;
            let low = if gone { i64::MAX } else { self.partition.watermarks().await?.0 };
            gaps.extend(plan::recovery_gaps(missing.iter().map(|o| o as i64), low));
        }
        Ok(gaps)
    }

    /// Creates the manifest and moves the head.
    pub(super) async fn commit(&mut self, intent: &Intent, objects: Vec<(DataObject, RoaringTreemap)>) -> Result<()> {
        let gaps = self.gaps(intent, &objects).await?;
        if let Some(offset) = objects.iter().filter_map(|(_, offsets)| offsets.max()).max() {
            self.last = Some(LastRecord { offset: offset as i64, leader_epoch: intent.leader_epoch });
        }
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
        let (bytes, created) =
            self.partition.wait_out("create a manifest", || io::create(store, &key, &manifest)).await?;
        self.head = self.head.advance(&manifest, &bytes)?;
        self.leader_epoch = manifest.leader_epoch;
        self.partition.tell_archived(self.head.next);
        self.counters().cut(manifest.rows, created);
        if created == Created::New {
            self.tell_shared(intent, &manifest);
        }
        self.tell_gaps(&manifest.gaps);
        tracing::info!(
            topic = manifest.topic,
            partition = manifest.partition,
            from = manifest.from,
            to = manifest.to,
            rows = manifest.rows,
            objects = manifest.objects.len(),
            bytes = manifest.objects.iter().map(|o| o.size).sum::<u64>(),
            "{}",
            if created == Created::New { "archived" } else { "found archived already" }
        );
        self.recent.push(manifest.from);
        if let Some(told) = &self.shared().options.committed {
            // Nobody may listen.
            let _ = told.send(Arc::new(manifest));
        }
        self.make_checkpoints().await
    }

    /// Counts the records of pipelines that share objects; told once an hour and topic.
    fn tell_shared(&self, intent: &Intent, manifest: &Manifest) {
        let rows = manifest.objects.iter().filter(|o| o.pipeline.is_none()).map(|o| o.rows).sum();
        self.counters().shared(rows);
        if rows == 0 || !self.counters().tells_shared() {
            return;
        }
        let (tp, max) = (&self.partition.tp, self.shared().tables.routing.max_pipelines());
        let names = intent.objects.iter().filter_map(|o| o.shared.as_ref()).flat_map(|shared| &shared.names);
        let pipelines = names.collect::<BTreeSet<_>>().len();
        tracing::warn!(
            topic = tp.topic,
            partition = tp.partition,
            pipelines,
            rows,
            "{tp}: {pipelines} pipelines of a cut share an object for each date, in pipeline={}, beside the largest, which \
             have their own (--max-pipelines {max}). Nothing is lost, and pipeline_name has each record's own. If a rule or \
             a dialect makes too many names, [[routes]] can make fewer; `dlq-archiver routes try` shows them",
            layout::SHARED
        );
    }

    /// One line for each kind: a compacted or half-expired range can be many gaps.
    fn tell_gaps(&self, gaps: &[Gap]) {
        let tp = &self.partition.tp;
        for GapSummary { kind, offsets, ranges, from, to } in plan::summarise(gaps) {
            let what = match ranges {
                1 => format!("offsets {from}..{to}"),
                _ => format!("{offsets} offsets in {from}..{to}, in {ranges} ranges,"),
            };
            self.counters().gap(kind, offsets);
            let told = kind.words(&what);
            if kind.is_loss() {
                let unsure =
                    if kind == GapKind::Unknown { " (markers and aborted records take offsets too)" } else { "" };
                tracing::error!(
                    topic = tp.topic,
                    partition = tp.partition,
                    offsets,
                    "{tp}: {told}{unsure}. The gap is in the ledger; archive more often, or raise the topic's retention.ms"
                );
            } else {
                tracing::info!("{tp}: {told}");
            }
        }
    }

    /// Runs `work` on a blocking thread, as many at a time as there are cores.
    async fn encode_thread<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let _permit = self.shared().encoders.acquire().await.map_err(|_| Error::internal("semaphore closed"))?;
        blocking(work).await
    }
}
