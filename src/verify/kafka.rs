//! The ledger against Kafka: whether a consumer gets anything below the checkpoint that the archive does not have.
//!
//! Asks and reads, joins no group and commits nothing. Every call blocks.

use super::damage::{Damage, Offsets, What};
use super::documents::{Gaps, Rows};
use crate::error::{Error, Kind, Result};
use crate::kafka::{Admin, Connection, Message, RangeReader, TopicId};
use crate::ledger::Genesis;
use crate::record::{RawBatch, TopicPartition};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Receiver;

/// How long one question to a broker may take.
const ASK: Duration = Duration::from_secs(10);
/// How long a read may stand still.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Kafka {
    admin: Admin,
    /// Asks for the archive's group's offsets.
    group: Option<(String, Admin)>,
    connection: Connection,
}

/// What the ledger says of one cut.
pub(super) struct Expected {
    pub from: i64,
    pub to: i64,
    pub gaps: Arc<Gaps>,
    /// `None` if the intent cannot be read, which is told elsewhere.
    pub rows: Option<Arc<Vec<Rows>>>,
}

impl Kafka {
    /// # Errors
    /// [`Kind::Config`] for another cluster than the archive's; what [`Admin::wait`] says.
    pub(super) fn connect(
        connection: Connection,
        start_timeout: Duration,
        cluster_id: Option<&str>,
        group: Option<String>,
    ) -> Result<Self> {
        let admin = Admin::new(&connection)?;
        admin.wait(start_timeout)?;
        if let Some(theirs) = cluster_id
            && let Some(ours) = admin.cluster_id(ASK)
            && theirs != ours
        {
            return Err(Error::config(format!(
                "the archive is of Kafka cluster {theirs}, these brokers are of {ours}: give the brokers of that cluster, or \
                 leave --brokers out"
            )));
        }
        let group = group.map(|group| Admin::of_group(&connection, &group).map(|admin| (group, admin))).transpose()?;
        Ok(Self { admin, group, connection })
    }

    /// The group's committed offset beyond `end`, and the group's name. A hint: no answer is none.
    pub(super) fn committed_beyond(&self, tp: &TopicPartition, end: i64) -> Option<(i64, &str)> {
        let (name, admin) = self.group.as_ref()?;
        let committed = admin.committed(tp, ASK).ok().flatten()?;
        (committed > end).then_some((committed, name))
    }

    /// The topic's partitions that are not among `archived`, and how many offsets each has. A topic that is gone has none.
    pub(super) fn unarchived(&self, topic: &str, archived: &BTreeSet<i32>) -> Result<Vec<(TopicPartition, u64)>> {
        let topics = match self.admin.topics(&[topic.to_owned()], ASK) {
            Err(e) if e.kind() == Kind::Config => Vec::new(),
            other => other?,
        };
        let partitions = topics.into_iter().flat_map(|t| t.partitions).filter(|p| !archived.contains(p));
        let size = |p| {
            let tp = TopicPartition::new(topic, p);
            self.admin.watermarks(&tp, ASK).map(|(low, high)| (tp, high.abs_diff(low)))
        };
        partitions.map(size).collect()
    }

    /// Log start and last stable offset, or why this partition cannot be compared. `to`: the checkpoint.
    pub(super) fn comparable(&self, genesis: &Genesis, to: i64) -> Result<Result<(i64, i64), String>> {
        let topics = match self.admin.topics(std::slice::from_ref(&genesis.topic), ASK) {
            Err(e) if e.kind() == Kind::Config => Vec::new(),
            other => other?,
        };
        if !topics.iter().any(|t| t.partitions.contains(&genesis.partition)) {
            return Ok(Err("not comparable with Kafka: the topic or partition is not there any more".into()));
        }
        let tp = TopicPartition::new(&genesis.topic, genesis.partition);
        if let Some(known) = &genesis.topic_id
            && let TopicId::Is(now) = self.admin.topic_id(&tp, ASK)?
            && now != *known
        {
            return Ok(Err(format!(
                "not comparable with Kafka: the topic was deleted and made anew (its id was {known}, is {now})"
            )));
        }
        let (low, high) = self.admin.watermarks(&tp, ASK)?;
        if high < to {
            return Ok(Err(format!(
                "not comparable with Kafka: its log ends at {high}, below the checkpoint {to}: the topic was made anew or \
                 truncated"
            )));
        }
        Ok(Ok((low, high)))
    }

    /// Reads `[low, to)` and compares each record with the cuts, which come in order. Returns how many records.
    pub(super) fn compare(
        &self,
        tp: &TopicPartition,
        low: i64,
        to: i64,
        cuts: Receiver<Expected>,
        tell: impl FnMut(Damage),
        note: impl FnMut(String, String),
    ) -> Result<u64> {
        let reader = RangeReader::new(&self.connection)?;
        let mut comparison = Comparison {
            tp,
            cuts,
            cut: None,
            tell,
            note,
            missing: Offsets::default(),
            in_gaps: Offsets::default(),
            differ: Offsets::default(),
            seen: 0,
            scratch: Vec::new(),
        };
        let mut position = low;
        while position < to {
            let read = reader.read(tp, position, to, PATIENCE, |m| {
                comparison.record(m)?;
                position = m.offset() + 1;
                Ok(ControlFlow::Continue(()))
            });
            match read {
                Ok(_) => break,
                // Retention goes on while the range is read.
                Err(e) if e.kind() == Kind::Failed => match self.admin.watermarks(tp, ASK)?.0 {
                    low if low > position => position = low,
                    _ => return Err(e),
                },
                Err(e) => return Err(e),
            }
        }
        comparison.flush();
        Ok(comparison.seen)
    }
}

struct Comparison<'a, T: FnMut(Damage), N: FnMut(String, String)> {
    tp: &'a TopicPartition,
    cuts: Receiver<Expected>,
    cut: Option<Expected>,
    tell: T,
    note: N,
    missing: Offsets,
    in_gaps: Offsets,
    differ: Offsets,
    seen: u64,
    scratch: Vec<u8>,
}

impl<T: FnMut(Damage), N: FnMut(String, String)> Comparison<'_, T, N> {
    fn record(&mut self, m: &Message<'_>) -> Result<()> {
        let offset = m.offset();
        self.seen += 1;
        while self.cut.as_ref().is_none_or(|cut| cut.to <= offset) {
            self.flush();
            match self.cuts.blocking_recv() {
                Some(cut) => self.cut = Some(cut),
                None => break,
            }
        }
        let cut = self.cut.as_ref().filter(|cut| cut.from <= offset && offset < cut.to);
        let Some(cut) = cut else {
            self.missing.add(offset);
            return Ok(());
        };
        if cut.gaps.contains(offset) {
            self.in_gaps.add(offset);
            return Ok(());
        }
        let Some(rows) = &cut.rows else { return Ok(()) };
        match rows.iter().find_map(|r| r.checksum(offset)) {
            Some(checksum) => {
                let mut record = RawBatch::new();
                m.copy_into(&mut record)?;
                if record.last().is_some_and(|r| r.checksum(&mut self.scratch) != checksum) {
                    self.differ.add(offset);
                }
            }
            None => self.missing.add(offset),
        }
        Ok(())
    }

    /// Tells what was found since the last cut.
    fn flush(&mut self) {
        let (missing, differ) = (std::mem::take(&mut self.missing), std::mem::take(&mut self.differ));
        let at = match &self.cut {
            Some(cut) => format!("{} {}..{}", self.tp, cut.from, cut.to),
            None => self.tp.to_string(),
        };
        if !missing.is_empty() {
            let expected = "each record of the topic in a data object or a recorded gap";
            (self.tell)(Damage::new(What::KafkaMissing, &at, expected, format!("in none: offsets {missing}")));
        }
        let in_gaps = std::mem::take(&mut self.in_gaps);
        if !in_gaps.is_empty() {
            let note = format!("Kafka has records that the ledger has in gaps, and so the archive has not: {in_gaps}");
            (self.note)(at.clone(), note);
        }
        if !differ.is_empty() {
            let expected = "the topic's records with the checksums of the intent";
            (self.tell)(Damage::new(What::KafkaDiffers, &at, expected, format!("other records: offsets {differ}")));
        }
    }
}
