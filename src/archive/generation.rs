//! Generations: what happens when the log is not the one that the ledger is of, because the topic was deleted and made
//! anew or its log was truncated.
//!
//! Owns the conclusion, drawn only from the leader's answers, seen twice, and the passage to the next generation: the old
//! one is sealed (a seal takes the name of its next intent, so that no late writer begins another cut there), and the new
//! one's genesis chains to it. Without `--new-generation` the partition stops, and nothing is touched.

use super::ledger::{self as io, Loaded};
use super::partition::Partition;
use crate::cut::{self, CutRange};
use crate::error::{Error, Kind, Result};
use crate::host;
use crate::kafka::TopicId;
use crate::layout;
use crate::ledger::{Intent, decode_checksums, decode_offsets};
use crate::record::RawBatch;
use roaring::RoaringTreemap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at the log.
const AGAIN: Duration = Duration::from_millis(500);
/// Newest archived records that are compared with the log at a start.
const COMPARED: usize = 16;

/// The log is another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Other {
    why: String,
    /// It has nothing of the old log: its topic has another id.
    wholly: bool,
}

impl Partition {
    /// Takes the newest generation that has a genesis.
    pub(super) async fn enter_newest_generation(&mut self) -> Result<()> {
        loop {
            let next = layout::ledger_prefix(&self.tp.topic, self.tp.partition, self.generation + 1);
            let key = layout::genesis_key(&next);
            if self.wait_out("look for generations", || self.store().head(&key)).await?.is_none() {
                return Ok(());
            }
            (self.generation, self.prefix) = (self.generation + 1, next);
        }
    }

    /// Whether the log is another one than the ledger's; `None` if it is the same as far as can be told.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] if it is another one and no new generation is wanted.
    pub(super) async fn other_log(&self, loaded: &Loaded) -> Result<Option<Other>> {
        if self.look(loaded).await?.is_none() {
            return Ok(None);
        }
        host::sleep(AGAIN).await;
        let Some(other) = self.look(loaded).await? else { return Ok(None) };
        if self.shared.options.new_generation {
            return Ok(Some(other));
        }
        Err(Error::corrupt(format!(
            "{}: {}. Nothing of the archive is touched, and nothing more is archived from this partition. With \
             --new-generation what the log has now is archived beside it",
            self.tp, other.why
        )))
    }

    async fn look(&self, loaded: &Loaded) -> Result<Option<Other>> {
        let id = self.topic_id().await?;
        let (low, high) = self.watermarks().await?;
        let known = &loaded.genesis.topic_id;
        if let (TopicId::Is(now), Some(known)) = (&id, known)
            && now != known
        {
            let why = format!("the topic was deleted and made anew (its id was {known}, is {now})");
            return Ok(Some(Other { why, wholly: true }));
        }
        if id == TopicId::NoTopic {
            return Ok(None);
        }
        let end = loaded.open.as_ref().map_or(loaded.head.next, |open| open.to);
        let same_id = matches!(id, TopicId::Is(_));
        let what = if same_id { "its log was truncated" } else { "the topic was made anew, or its log was truncated" };
        if high < end {
            let why = format!("the log ends at {high}, below {end}, to where it is archived: {what}");
            return Ok(Some(Other { why, wholly: false }));
        }
        let Some(newest) = self.newest_with_records(loaded).await? else { return Ok(None) };
        let Some(differs) = self.first_difference(&newest, low, high).await? else { return Ok(None) };
        let why = format!("the record at offset {differs} is not the one that is archived: {what}");
        Ok(Some(Other { why, wholly: false }))
    }

    /// The newest cut that has records: one that only passed markers tells nothing of the log.
    async fn newest_with_records(&self, loaded: &Loaded) -> Result<Option<Intent>> {
        if let Some(open) = loaded.open.as_ref().filter(|open| !open.objects.is_empty()) {
            return Ok(Some(open.clone()));
        }
        let starts = loaded.recent.iter().rev().copied();
        // Right behind a checkpoint there is none but the one in it.
        for from in starts.chain(loaded.newest.filter(|_| loaded.recent.is_empty())) {
            if let Some(intent) = self.intent(Some(from)).await?.filter(|i| !i.objects.is_empty()) {
                return Ok(Some(intent));
            }
        }
        Ok(None)
    }

    async fn intent(&self, from: Option<i64>) -> Result<Option<Intent>> {
        let Some(from) = from else { return Ok(None) };
        let key = layout::intent_key(&self.prefix, from);
        let (intent, _) = self.wait_out("read an intent", || io::read(self.store(), &key)).await?;
        Ok(Some(intent))
    }

    /// First of the last records of a cut that the log has otherwise, or does not reach any more. What retention
    /// or compaction took does not count.
    async fn first_difference(&self, intent: &Intent, low: i64, high: i64) -> Result<Option<i64>> {
        let newest = checksums(intent)?.into_iter().rev().take(COMPARED);
        let sums: BTreeMap<i64, u64> = newest.filter(|(o, _)| *o >= low).collect();
        let (Some(first), Some(last)) = (sums.keys().next(), sums.keys().last()) else { return Ok(None) };
        let wanted: Arc<RoaringTreemap> = Arc::new(sums.keys().filter(|o| **o < high).map(|o| *o as u64).collect());
        let records = if wanted.is_empty() {
            RawBatch::new()
        } else {
            let read = self.ask(|| self.cluster().read(&self.tp, *first, high.min(last + 1), wanted.clone())).await;
            match read {
                // Retention moved on: what is not there tells nothing.
                Err(e) if e.kind() == Kind::Failed => RawBatch::new(),
                read => read?,
            }
        };
        let mut scratch = Vec::new();
        let other = records.iter().find(|r| sums.get(&r.offset) != Some(&r.checksum(&mut scratch))).map(|r| r.offset);
        let beyond = sums.keys().find(|o| **o >= high).copied();
        Ok([other, beyond].into_iter().flatten().min())
    }

    /// Where the next generation begins: where the log begins to differ from the archive, so that nothing that both have
    /// is archived twice.
    async fn first_of_next(&self, loaded: &Loaded, other: &Other) -> Result<i64> {
        let (low, high) = self.watermarks().await?;
        if other.wholly {
            return Ok(low);
        }
        let mut starts = loaded.recent.clone();
        starts.extend(loaded.open.as_ref().map(|open| open.from));
        // Newest first, until a record is found that both have.
        let mut checkpoint = loaded.checkpoint;
        loop {
            while let Some(from) = starts.pop() {
                let Some(intent) = self.intent(Some(from)).await? else { continue };
                if intent.to <= low {
                    return Ok(low);
                }
                if let Some(last) = self.last_in_both(&intent, high).await? {
                    return Ok((last + 1).max(low));
                }
            }
            let Some(to) = checkpoint else { return Ok(low) };
            let key = layout::checkpoint_key(&self.prefix, to);
            let (older, _): (crate::ledger::Checkpoint, _) =
                self.wait_out("read a checkpoint", || io::read(self.store(), &key)).await?;
            starts = older.manifests.iter().map(|e| e.manifest.from).collect();
            checkpoint = (older.sequence > 0).then_some(older.from);
        }
    }

    /// Last record of a cut that the log has as it is archived. Not where they begin to differ: what lies in between was a
    /// marker or an aborted record once, and may be a record now.
    async fn last_in_both(&self, intent: &Intent, high: i64) -> Result<Option<i64>> {
        let sums = checksums(intent)?;
        let (Some(first), Some(last)) = (sums.keys().next(), sums.keys().last()) else { return Ok(None) };
        let wanted: Arc<RoaringTreemap> = Arc::new(sums.keys().map(|o| *o as u64).collect());
        let records = self
            .ask(|| async {
                let (low, _) = self.cluster().watermarks(&self.tp).await?;
                let (from, to) = (low.max(*first), high.min(last + 1));
                if from >= to {
                    return Ok(RawBatch::new());
                }
                match self.cluster().read(&self.tp, from, to, wanted.clone()).await {
                    Err(e) if e.kind() == Kind::Failed => Err(Error::unavailable("retention moved on")),
                    read => read,
                }
            })
            .await?;
        let mut scratch = Vec::new();
        let both = records.iter().filter(|r| sums.get(&r.offset) == Some(&r.checksum(&mut scratch)));
        Ok(both.map(|r| r.offset).max())
    }

    /// Closes this generation and begins the next one.
    pub(super) async fn begin_generation(&mut self, loaded: &Loaded, other: Other) -> Result<()> {
        // Before sealing, which drops what is open of the old one.
        let first = self.first_of_next(loaded, &other).await?;
        tracing::warn!(
            "{}: {}. Generation {} is closed, the next one begins at offset {first}",
            self.tp,
            other.why,
            self.generation
        );
        let before = self.seal().await?;
        self.enter_next(&before, first).await
    }

    /// This generation was sealed by another archiver, which may have come no further.
    pub(super) async fn follow_seal(&mut self, before: &Loaded) -> Result<()> {
        let key = layout::genesis_key(&layout::ledger_prefix(&self.tp.topic, self.tp.partition, self.generation + 1));
        if self.wait_out("look for generations", || self.store().head(&key)).await?.is_some() {
            return self.enter_newest_generation().await;
        }
        // Whoever sealed it had seen that the log is another one, be it as it may by now.
        let other = self.look(before).await?.unwrap_or_else(|| Other { why: "it is sealed".into(), wholly: false });
        let first = self.first_of_next(before, &other).await?;
        self.enter_next(before, first).await
    }

    async fn enter_next(&mut self, before: &Loaded, first: i64) -> Result<()> {
        self.generation += 1;
        self.prefix = layout::ledger_prefix(&self.tp.topic, self.tp.partition, self.generation);
        self.begin(Some((before, first))).await.map(drop)
    }

    /// Finishes what is open in this generation and takes the place of its next cut.
    async fn seal(&self) -> Result<Loaded> {
        loop {
            let Some(mut loaded) = self.load().await? else {
                return Err(Error::corrupt(format!(
                    "{}: its ledger is gone: something deletes ledger objects",
                    self.tp
                )));
            };
            if loaded.sealed {
                return Ok(loaded);
            }
            if let Some(intent) = loaded.open.take() {
                let mut writer = self.writer(&loaded);
                writer.other_log = true;
                match writer.recover(intent).await {
                    Err(e) if e.kind() != Kind::Fenced => return Err(e),
                    // Done, or another archiver was faster: look again.
                    _ => continue,
                }
            }
            let at = loaded.head.next;
            let range = CutRange { from: at, to: at, cut_at_us: self.shared.now_us() };
            let (format, tables) = (self.shared.options.format, &self.shared.tables);
            let seal = cut::intent(&loaded.genesis, range, &RawBatch::new(), &[], Vec::new(), format, tables)?;
            let key = layout::intent_key(&self.prefix, at);
            match self.wait_out("seal the generation", || io::create(self.store(), &key, &seal)).await {
                Ok(_) => return Ok(loaded),
                Err(e) if e.kind() == Kind::Fenced => {}
                Err(e) => return Err(e),
            }
        }
    }
}

/// Offset -> checksum of every record that an intent names.
fn checksums(intent: &Intent) -> Result<BTreeMap<i64, u64>> {
    let mut sums = BTreeMap::new();
    for object in &intent.objects {
        let (offsets, checksums) = (decode_offsets(&object.offsets)?, decode_checksums(&object.checksums)?);
        sums.extend(offsets.iter().map(|o| o as i64).zip(checksums));
    }
    Ok(sums)
}
