//! Generations: what happens when the log is not the one that the ledger is of, because the topic was deleted and made
//! anew or its log was truncated.
//!
//! Owns the conclusion, drawn only from the leader's answers, seen twice, and the passage to the next generation: the old
//! one is sealed (a seal takes the name of its next intent, so that no late writer begins another cut there), and the new
//! one's genesis chains to it. Without `--new-generation` the partition stops, and nothing is touched.

use super::cluster::Checksums;
use super::ledger::{self as io, Loaded};
use super::messages::LastRecord;
use super::partition::Partition;
use crate::cut::{self, CutRange};
use crate::error::{Error, Kind, Result};
use crate::host;
use crate::kafka::TopicId;
use crate::layout;
use crate::ledger::{Checkpoint, Genesis, Intent, decode_checksums, decode_offsets};
use crate::record::RawBatch;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at the log.
const AGAIN: Duration = Duration::from_millis(500);
/// Newest archived records that are compared with the log at a start.
const COMPARED: usize = 16;

/// Walks a ledger's cuts back.
pub(super) struct Back<'a> {
    partition: &'a Partition,
    /// Of the generation.
    prefix: String,
    open: Option<Intent>,
    /// Ascending.
    starts: Vec<i64>,
    checkpoint: Option<i64>,
}

impl Back<'_> {
    /// The next older cut that has records.
    pub(super) async fn next(&mut self) -> Result<Option<Intent>> {
        let (partition, prefix) = (self.partition, &self.prefix);
        if let Some(open) = self.open.take().filter(|open| !open.objects.is_empty()) {
            return Ok(Some(open));
        }
        loop {
            while let Some(from) = self.starts.pop() {
                let key = layout::intent_key(prefix, from);
                let (cut, _): (Intent, _) =
                    partition.wait_out("read an intent", || io::read(partition.store(), &key)).await?;
                if !cut.objects.is_empty() {
                    return Ok(Some(cut));
                }
            }
            let Some(to) = self.checkpoint else { return Ok(None) };
            let key = layout::checkpoint_key(prefix, to);
            let bytes = partition.wait_out("read a checkpoint", || partition.store().get(&key)).await?;
            if let Some(bytes) = bytes {
                let older: Checkpoint = crate::ledger::from_bytes(&key, &bytes)?;
                let cuts = older.manifests.iter().map(|e| &e.manifest).filter(|m| !m.objects.is_empty());
                self.starts = cuts.map(|m| m.from).collect();
                self.checkpoint = (older.sequence > 0).then_some(older.from);
            } else {
                // It may be missing: the names of cuts are all there.
                let all = partition.wait_out("list the ledger", || io::starts(partition.store(), prefix)).await?;
                self.starts = all.into_iter().filter(|from| *from < to).collect();
                self.checkpoint = None;
            }
        }
    }
}

/// How the log differs from what is archived.
enum Difference {
    /// Not up to this record's offset what was read.
    Epoch(i64),
    /// At this offset.
    Record(i64),
}

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

    /// Whether the log is another one than the ledger's, whose newest cut with records is `newest`; `None` if it is the
    /// same as far as can be told.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] if it is another one and no new generation is wanted.
    pub(super) async fn other_log(&self, loaded: &Loaded, newest: Option<&Intent>) -> Result<Option<Other>> {
        if self.look(loaded, newest).await?.is_none() {
            return Ok(None);
        }
        host::sleep(AGAIN).await;
        let Some(other) = self.look(loaded, newest).await? else { return Ok(None) };
        if self.shared.options.new_generation {
            return Ok(Some(other));
        }
        Err(Error::corrupt(format!(
            "{}: {}. Nothing of the archive is touched, and nothing more is archived from this partition. With \
             --new-generation what the log has now is archived beside it",
            self.tp, other.why
        )))
    }

    async fn look(&self, loaded: &Loaded, newest: Option<&Intent>) -> Result<Option<Other>> {
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
        let Some(newest) = newest else { return Ok(None) };
        let why = match self.first_difference(newest, low, end).await? {
            Some(Difference::Epoch(offset)) => format!("the leader's log has another leader epoch at {offset}: {what}"),
            Some(Difference::Record(offset)) => {
                format!("the record at offset {offset} is not as it is archived: {what}")
            }
            None => return Ok(None),
        };
        Ok(Some(Other { why, wholly: false }))
    }

    /// The cuts that have records, newest first: what only passed markers tells nothing of the log.
    pub(super) fn back<'a>(&'a self, loaded: &Loaded) -> Back<'a> {
        Back {
            partition: self,
            prefix: layout::ledger_prefix(&self.tp.topic, self.tp.partition, loaded.genesis.generation),
            open: loaded.open.clone(),
            starts: loaded.recent.clone(),
            checkpoint: loaded.checkpoint,
        }
    }

    /// Whether the log, before `end`, has what a cut's last records and what follows them were archived as. What
    /// retention or compaction took does not count.
    async fn first_difference(&self, cut: &Intent, low: i64, end: i64) -> Result<Option<Difference>> {
        let sums = checksums(cut, COMPARED)?;
        let Some(last) = sums.last().map(|(offset, _)| *offset) else { return Ok(None) };
        // The epoch of the last record vouches for all before it; but markers behind it may have a later one.
        let vouched = cut.leader_epoch >= 0 && !self.diverged(end, cut.leader_epoch).await?;
        if cut.leader_epoch >= 0 && !vouched && self.diverged(last + 1, cut.leader_epoch).await? {
            return Ok(Some(Difference::Epoch(last)));
        }
        let sums: Checksums = sums.into_iter().rev().take(COMPARED).filter(|(o, _)| *o >= low).collect();
        let from = sums.first().map_or(last + 1, |(offset, _)| *offset);
        let to = if vouched { last + 1 } else { end };
        match self.first_other(from, to, Arc::new(sums)).await {
            // What cannot be read tells nothing.
            Err(e) if e.kind() == Kind::Failed => Ok(None),
            other => Ok(other?.map(Difference::Record)),
        }
    }

    /// Whether the log that a cut was read from is another one by now, or none.
    pub(super) async fn is_gone(&self, cut: &Intent) -> Result<bool> {
        match (self.topic_id().await?, &cut.topic_id) {
            (TopicId::NoTopic, _) => return Ok(true),
            (TopicId::Is(now), Some(known)) if now != *known => return Ok(true),
            _ => {}
        }
        let (low, high) = self.watermarks().await?;
        Ok(high < cut.to || self.first_difference(cut, low, cut.to).await?.is_some())
    }

    /// Whether the leader's log does not have this epoch up to `offset`, which is in the log.
    async fn diverged(&self, offset: i64, leader_epoch: i32) -> Result<bool> {
        let asked = self.ask_of_log(|| async move {
            if !self.cluster().refuses(&self.tp, offset, leader_epoch).await? {
                return Ok(false);
            }
            // Or it was refused since retention took it meanwhile.
            let (low, high) = self.cluster().watermarks(&self.tp).await?;
            Ok(low <= offset && offset <= high)
        });
        Ok(asked.await?.unwrap_or(false))
    }

    /// Asks until there is an answer; `None` once the topic is gone, of whose log nothing can be asked any more.
    async fn ask_of_log<T, F>(&self, mut question: impl FnMut() -> F) -> Result<Option<T>>
    where
        F: Future<Output = Result<T>>,
    {
        self.ask(|| {
            let answer = question();
            async move {
                match answer.await {
                    Ok(answer) => Ok(Some(answer)),
                    // What is not told may be said of the topic as wrong usage.
                    Err(e) if e.is_unavailable() || e.kind() == Kind::Config => {
                        match self.cluster().topic_id(&self.tp).await {
                            Ok(TopicId::NoTopic) => Ok(None),
                            _ => Err(e),
                        }
                    }
                    Err(e) => Err(e),
                }
            }
        })
        .await
    }

    /// First record of `from..to` that the log has and `sums` has not, or otherwise.
    async fn first_other(&self, from: i64, to: i64, sums: Arc<Checksums>) -> Result<Option<i64>> {
        let asked = self.ask_of_log(|| {
            let sums = sums.clone();
            async move {
                let (low, high) = self.cluster().watermarks(&self.tp).await?;
                let (from, to) = (from.max(low), to.min(high));
                if from >= to {
                    return Ok(None);
                }
                match self.cluster().first_other(&self.tp, from, to, sums).await {
                    Err(e) if e.kind() == Kind::Failed && self.cluster().watermarks(&self.tp).await?.0 > from => {
                        Err(Error::unavailable("retention moved on while the range was read"))
                    }
                    found => found,
                }
            }
        });
        Ok(asked.await?.flatten())
    }

    /// Where the leader epoch changes from one record to the next, whether nothing was cut off in between: behind a
    /// truncation that took markers only, a consumer reads on where it was.
    ///
    /// # Errors
    /// [`Kind::Fenced`] if something may have been: the start looks again.
    pub(super) async fn check_leader_epochs(
        &self,
        last: Option<LastRecord>,
        records: &RawBatch,
        to: i64,
    ) -> Result<()> {
        let mut before = last;
        for record in records.iter() {
            let (offset, leader_epoch) = (record.offset, record.leader_epoch);
            if let Some(before) = before.filter(|b| b.leader_epoch >= 0 && b.leader_epoch != leader_epoch) {
                let behind = before.offset + 1;
                if self.diverged(behind, before.leader_epoch).await? {
                    return Err(self.may_be_truncated(behind, offset));
                }
                self.check_without_records(behind, offset).await?;
            }
            before = Some(LastRecord { offset, leader_epoch });
        }
        // A cut of markers has no epoch that could have changed.
        if records.is_empty()
            && let Some(last) = last.filter(|last| last.leader_epoch >= 0 && last.offset + 1 < to)
            && self.diverged(to, last.leader_epoch).await?
        {
            self.check_without_records(last.offset + 1, to).await?;
        }
        Ok(())
    }

    /// That the log has no record in `from..to`, where none was read.
    async fn check_without_records(&self, from: i64, to: i64) -> Result<()> {
        match self.first_other(from, to, Arc::default()).await? {
            None => Ok(()),
            Some(_) => Err(self.may_be_truncated(from, to)),
        }
    }

    fn may_be_truncated(&self, from: i64, to: i64) -> Error {
        let why = format!("its log may have been truncated between {from} and {to}");
        tracing::warn!("{}: {why}: beginning anew", self.tp);
        Error::fenced(why)
    }

    /// Where the next generation begins: at the first record that is not archived as it is, so that nothing is left out
    /// and nothing that both logs have is archived twice. What retention took of it meanwhile becomes its first gap.
    async fn first_of_next(&self, loaded: &Loaded, other: &Other) -> Result<i64> {
        if other.wholly {
            return Ok(0);
        }
        let (low, high) = self.watermarks().await?;
        // Of the cuts behind the newest that both logs have.
        let mut later = Checksums::new();
        let (mut back, mut genesis) = (self.back(loaded), loaded.genesis.clone());
        let from = loop {
            let Some(cut) = back.next().await? else {
                // What was cut off may reach into the generation before, if that is of the same topic.
                match self.generation_before(&genesis).await? {
                    Some(before) if before.genesis.topic_id == genesis.topic_id => {
                        (back, genesis) = (self.back(&before), before.genesis);
                        continue;
                    }
                    _ => break low.max(genesis.first_offset.min(high)),
                }
            };
            let sums = checksums(&cut, usize::MAX)?;
            let Some((last, sum)) = sums.last().copied() else { continue };
            if last < low {
                break low;
            }
            if last < high && self.is_in_both(last, sum, cut.leader_epoch).await? {
                break last + 1;
            }
            later.extend(sums);
        };
        Ok(self.first_other(from, high, Arc::new(later)).await?.unwrap_or(high))
    }

    async fn generation_before(&self, genesis: &Genesis) -> Result<Option<Loaded>> {
        match genesis.generation {
            0 | 1 => Ok(None),
            g => self.wait_out("load the ledger", || io::load(self.store(), &self.tp, g - 1)).await,
        }
    }

    /// Whether the log has all that was archived up to a cut's last record. Where the brokers have no leader epochs,
    /// what it has at that record's offset has to do.
    async fn is_in_both(&self, last: i64, sum: u64, leader_epoch: i32) -> Result<bool> {
        if leader_epoch >= 0 && self.diverged(last + 1, leader_epoch).await? {
            return Ok(false);
        }
        if self.first_other(last, last + 1, Arc::new(Checksums::from([(last, sum)]))).await?.is_some() {
            return Ok(false);
        }
        // It is there, or compaction took it: then only the epoch tells.
        Ok(leader_epoch >= 0 || self.first_other(last, last + 1, Arc::default()).await?.is_some())
    }

    /// Closes this generation and begins the next one.
    pub(super) async fn begin_generation(&mut self, other: Other) -> Result<()> {
        let before = self.seal().await?;
        // Not before the seal: another archiver, to which the logs look the same by now, may have gone on until then.
        let first = self.first_of_next(&before, &other).await?;
        tracing::warn!(
            "{}: {}. Generation {} is closed, the next one begins at offset {first}",
            self.tp,
            other.why,
            self.generation
        );
        self.enter_next(&before, first).await
    }

    /// This generation was sealed by another archiver, which may have come no further.
    pub(super) async fn follow_seal(&mut self, before: &Loaded) -> Result<()> {
        let key = layout::genesis_key(&layout::ledger_prefix(&self.tp.topic, self.tp.partition, self.generation + 1));
        if self.wait_out("look for generations", || self.store().head(&key)).await?.is_some() {
            return self.enter_newest_generation().await;
        }
        // Whoever sealed it had seen that the log is another one, be it as it may by now.
        let newest = self.back(before).next().await?;
        let other = self
            .look(before, newest.as_ref())
            .await?
            .unwrap_or_else(|| Other { why: "it is sealed".into(), wholly: false });
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

/// The last record that an intent names.
///
/// # Errors
/// [`Kind::Corrupt`] if it cannot be decoded.
pub(super) fn last_record(cut: &Intent) -> Result<Option<LastRecord>> {
    let mut last = None;
    for object in &cut.objects {
        last = last.max(decode_offsets(&object.offsets)?.max());
    }
    Ok(last.map(|offset| LastRecord { offset: offset as i64, leader_epoch: cut.leader_epoch }))
}

/// Offset and checksum of records that an intent names: of each object's last ones, at most so many.
fn checksums(intent: &Intent, most: usize) -> Result<Checksums> {
    let mut sums = Checksums::new();
    for object in &intent.objects {
        let (offsets, checksums) = (decode_offsets(&object.offsets)?, decode_checksums(&object.checksums)?);
        sums.extend(offsets.iter().map(|o| o as i64).rev().zip(checksums.into_iter().rev()).take(most));
    }
    Ok(sums)
}
