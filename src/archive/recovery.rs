//! Finishes what was begun before: a cut whose intent has no manifest, and a checkpoint that the log has left behind.
//!
//! Reads the ledger's range from Kafka again. Invariant: every object that an intent names is created, with the rows
//! that can be proven by their checksums, or with none; what is gone is a gap in the manifest.

use super::balance::Share;
use super::messages::Reserved;
use super::writer::Writer;
use crate::cut::{self, CutRange};
use crate::error::{Error, Kind, Result};
use crate::format::Format;
use crate::host;
use crate::kafka::TopicId;
use crate::ledger::{
    Gap, GapKind, Intent, IntentObject, decode_checksums, decode_offsets,
    plan::{self, LogState},
};
use crate::record::RawBatch;
use roaring::RoaringTreemap;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a record of which nothing is known.
const TYPICAL: usize = 4 << 10;
/// And of what it is compared with.
const PROOF: usize = 64;

impl Writer<'_> {
    /// Finishes a cut that was begun: creates every object that its intent names, with the rows that Kafka still has.
    pub(super) async fn recover(&mut self, intent: Intent) -> Result<()> {
        let shared = self.shared().clone();
        let _permit = shared.recoveries.acquire().await.map_err(|_| Error::internal("semaphore closed"))?;
        let tp = self.partition.tp.clone();
        tracing::info!("{tp}: finishing the cut {}..{} that was begun before", intent.from, intent.to);
        let intent = Arc::new(intent);
        let format = Format::of_extension(&intent.extension)
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
            // How large they are nobody knows before they are read. It may have been cut by a run with more memory.
            let rows = usize::try_from(objects.iter().map(|o| o.rows).sum::<u64>()).unwrap_or(usize::MAX);
            let guess = rows.saturating_mul(TYPICAL).min(shared.options.policy_of(&tp.topic).max_bytes);
            let takes = |records| Share::unknown(format).on_its_way(records) + rows.saturating_mul(PROOF);
            let mut reserved = Reserved::new(&tp, self.partition.assignment, takes(guess), &shared.commands);
            let (records, rows) = self.read_again(&intent, &objects).await?;
            reserved.become_of(takes(records.memory()));
            if !self.other_log {
                self.check_topic_id().await?;
            }
            let created = self.create_objects(&intent, &objects, format, &Arc::new(records), rows).await?;
            found.extend(absent.into_iter().zip(created));
        }
        found.sort_by_key(|(i, _)| *i);
        self.commit(&intent, found.into_iter().map(|(_, o)| o).collect()).await
    }

    /// Reads the offsets of these objects again and checks each against the checksum in the intent. Returns what is left of
    /// them, and each object's rows of it.
    async fn read_again(&self, intent: &Arc<Intent>, objects: &[IntentObject]) -> Result<(RawBatch, Vec<Vec<u32>>)> {
        // Offset -> (object, checksum).
        let mut wanted: HashMap<i64, (usize, u64)> = HashMap::new();
        let mut all = RoaringTreemap::new();
        for (i, object) in objects.iter().enumerate() {
            let (offsets, checksums) = (decode_offsets(&object.offsets)?, decode_checksums(&object.checksums)?);
            wanted.extend(offsets.iter().zip(checksums).map(|(offset, checksum)| (offset as i64, (i, checksum))));
            all |= offsets;
        }
        let all = Arc::new(all);
        let (tp, cluster) = (&self.partition.tp, self.partition.cluster());
        let records = self
            .partition
            .ask(|| async {
                // Asked in each attempt: retention goes on while the range is read.
                let (low, high) = cluster.watermarks(tp).await?;
                let (start, end) = (intent.from.max(low), intent.to.min(high));
                if start >= end {
                    return Ok(RawBatch::new());
                }
                match cluster.read(tp, start, end, all.clone()).await {
                    Err(e) if e.kind() == Kind::Failed && cluster.watermarks(tp).await?.0 > start => {
                        Err(Error::unavailable("retention moved on while the range was read"))
                    }
                    read => read,
                }
            })
            .await?;
        let mut rows = vec![Vec::new(); objects.len()];
        let mut scratch = Vec::new();
        for (row, record) in records.iter().enumerate() {
            let Some(&(object, checksum)) = wanted.get(&record.offset) else { continue };
            if record.checksum(&mut scratch) != checksum {
                if self.other_log {
                    continue;
                }
                return Err(Error::corrupt(format!(
                    "{tp}: the record at offset {} is not the one that the intent {} names: the topic was made anew or \
                     its log was truncated. Nothing more is archived from this partition",
                    record.offset, intent.from
                )));
            }
            rows[object].push(row as u32);
        }
        Ok((records, rows))
    }

    /// Compares the checkpoint with the log, and records what retention took, as a gap of this kind. Concluded only from
    /// the leader's answers, seen twice.
    pub(super) async fn follow_log(&mut self, low: i64, high: i64, kind: GapKind) -> Result<()> {
        if plan::log_state(self.head.next, low, high) == LogState::Continues {
            return Ok(());
        }
        host::sleep(Duration::from_millis(500)).await;
        let (low, high) = self.partition.watermarks().await?;
        match plan::log_state(self.head.next, low, high) {
            LogState::Continues => Ok(()),
            // It was the right log just now: the start is made anew, and looks at it again.
            LogState::Recreated { .. } => Err(Error::fenced("the log ends below what is archived")),
            LogState::Lost { to } => {
                let gap = Gap { from: self.head.next, to, kind };
                let range = CutRange { from: gap.from, to, cut_at_us: self.shared().now_us() };
                let (format, tables) = (self.shared().options.format, &self.shared().tables);
                let intent = cut::intent(&self.genesis, range, &RawBatch::new(), &[], vec![gap], format, tables)?;
                let intent = self.announce(intent).await?;
                self.commit(&intent, Vec::new()).await
            }
        }
    }

    /// That nothing comes for a reason: after an outage a consumer may wait for ever for a topic that was made anew. A
    /// broker that does not answer is told elsewhere.
    ///
    /// # Errors
    /// [`Kind::Fenced`] if the log is another one: the start finds out what to do.
    pub(super) async fn check_idle(&self) -> Result<()> {
        let (cluster, tp) = (self.partition.cluster(), &self.partition.tp);
        if let (Some(known), Ok(TopicId::Is(now))) = (&self.genesis.topic_id, cluster.topic_id(tp).await)
            && now != *known
        {
            return Err(Error::fenced(format!("the topic was deleted and made anew (its id was {known}, is {now})")));
        }
        match cluster.watermarks(tp).await {
            Ok((_, high)) if high < self.head.next => Err(Error::fenced("the log ends below what is archived")),
            _ => Ok(()),
        }
    }

    /// That the topic is still the one that the ledger is of. Asked before each intent.
    pub(super) async fn check_topic_id(&self) -> Result<()> {
        let Some(known) = &self.genesis.topic_id else { return Ok(()) };
        let mut now = self.partition.topic_id().await?;
        if now == TopicId::NoTopic {
            // One broker's word, which may be behind the others'.
            host::sleep(Duration::from_millis(500)).await;
            now = self.partition.topic_id().await?;
        }
        let tp = &self.partition.tp;
        match now {
            TopicId::Is(now) if now != *known => {
                // The start finds out what to do.
                Err(Error::fenced(format!("the topic was deleted and made anew (its id was {known}, is {now})")))
            }
            TopicId::NoTopic => {
                tracing::warn!("{tp}: the topic was deleted: what was read of it is archived, the rest is gone");
                Ok(())
            }
            TopicId::Is(_) | TopicId::NotTold => Ok(()),
        }
    }
}
