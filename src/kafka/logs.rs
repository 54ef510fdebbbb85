//! How logs stand, asked for many partitions at a time: watermarks, offsets by time, timestamps at offsets.
//!
//! What cannot be had of a partition is left out of the answer, and the others are told all the same: this is for
//! looking, and nothing is concluded from it that is written down.

use super::{Admin, Connection, Consumer, Polled, error};
use crate::error::Result;
use crate::record::{RawBatch, TopicPartition};
use rdkafka::consumer::Consumer as _;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

impl Admin {
    /// Log start and end of each partition; the end is the last stable offset, or for [`Admin::read_uncommitted`] the log
    /// end. One request to each leader for each of the two.
    ///
    /// # Errors
    /// [`crate::Kind::Unavailable`] if no leader answers.
    pub fn watermarks_of(
        &self,
        partitions: &[TopicPartition],
        timeout: Duration,
    ) -> Result<BTreeMap<TopicPartition, (i64, i64)>> {
        let starts = self.offsets(partitions, Offset::Beginning, timeout)?;
        let ends = self.offsets(partitions, Offset::End, timeout)?;
        Ok(starts.into_iter().filter_map(|(tp, start)| Some((tp.clone(), (start, *ends.get(&tp)?)))).collect())
    }

    /// First offset of each partition whose record is at or behind its timestamp (ms since 1970), `None` where there is no
    /// such record.
    ///
    /// # Errors
    /// As [`Admin::watermarks_of`].
    pub fn offsets_for_times(
        &self,
        at: &[(TopicPartition, i64)],
        timeout: Duration,
    ) -> Result<BTreeMap<TopicPartition, Option<i64>>> {
        self.list_offsets(at.iter().map(|(tp, ms)| (tp, Offset::Offset(*ms))), timeout)
    }

    /// `at`: one of Kafka's two special timestamps (ListOffsets: -2 the log start, -1 the end).
    fn offsets(
        &self,
        partitions: &[TopicPartition],
        at: Offset,
        timeout: Duration,
    ) -> Result<BTreeMap<TopicPartition, i64>> {
        let told = self.list_offsets(partitions.iter().map(|tp| (tp, at)), timeout)?;
        Ok(told.into_iter().filter_map(|(tp, offset)| Some((tp, offset?))).collect())
    }

    fn list_offsets<'a>(
        &self,
        at: impl Iterator<Item = (&'a TopicPartition, Offset)>,
        timeout: Duration,
    ) -> Result<BTreeMap<TopicPartition, Option<i64>>> {
        let doing = "cannot ask how logs stand";
        let mut list = TopicPartitionList::new();
        for (tp, at) in at {
            list.add_partition_offset(&tp.topic, tp.partition, at).map_err(|e| error(doing, &e, None))?;
        }
        if list.count() == 0 {
            return Ok(BTreeMap::new());
        }
        let list = self.client().offsets_for_times(list, timeout).map_err(|e| self.error(doing, &e))?;
        let told = list.elements().into_iter().filter_map(|e| {
            let offset = match (e.error(), e.offset()) {
                (Ok(()), Offset::Offset(offset)) => Some(offset),
                // -1: no record is so late.
                (Ok(()), Offset::End) => None,
                _ => return None,
            };
            Some((TopicPartition::new(e.topic(), e.partition()), offset))
        });
        Ok(told.collect())
    }
}

/// A record that was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peeked {
    pub offset: i64,
    /// Milliseconds since 1970; -1 where it has none.
    pub timestamp_ms: i64,
    /// Key, value and headers.
    pub bytes: u64,
    pub headers: usize,
}

/// The first record at or behind each offset, of open transactions too; what has none within `patience` is left out.
///
/// # Errors
/// If no client can be made, or the brokers refuse it.
pub fn peek(
    connection: &Connection,
    at: &[(TopicPartition, i64)],
    patience: Duration,
) -> Result<BTreeMap<TopicPartition, Peeked>> {
    let mut seen = BTreeMap::new();
    if at.is_empty() {
        return Ok(seen);
    }
    let mut config = connection.consumer_config("dlq-archiver-peek");
    // One record of each is wanted, and as little else as can be.
    for (key, value) in [
        ("isolation.level", "read_uncommitted"),
        ("fetch.wait.max.ms", "50"),
        ("fetch.message.max.bytes", "16384"),
        ("queued.min.messages", "1"),
        ("queued.max.messages.kbytes", "1024"),
    ] {
        config.set(key, value);
    }
    let consumer = Consumer::of(config)?;
    consumer.read_from(at.iter().map(|(tp, offset)| (tp, *offset, -1)))?;
    let since = Instant::now();
    let mut batch = RawBatch::new();
    let mut ended = 0;
    while seen.len() + ended < at.len() && since.elapsed() < patience {
        let mut new = None;
        let polled = consumer.poll(Duration::from_millis(50), |message| {
            let tp = TopicPartition::new(message.topic(), message.partition());
            if seen.contains_key(&tp) {
                return;
            }
            let before = batch.payload_len();
            // Headers that cannot be parsed: its place and time are known all the same.
            let _ = message.copy_into(&mut batch);
            let (bytes, last) = ((batch.payload_len() - before) as u64, batch.last());
            if let Some(record) = last.filter(|r| r.offset == message.offset()) {
                let headers = record.headers.iter().count();
                let peeked = Peeked { offset: record.offset, timestamp_ms: record.timestamp_ms, bytes, headers };
                new = Some((tp, peeked));
            }
        });
        if let Some((tp, peeked)) = new {
            // No more of it.
            let _ = consumer.pause(std::slice::from_ref(&tp));
            seen.insert(tp, peeked);
            batch = RawBatch::new();
        }
        match polled {
            Polled::End => ended += 1,
            Polled::Failed(e) if !e.is_unavailable() => return Err(e),
            _ => {}
        }
    }
    Ok(seen)
}
