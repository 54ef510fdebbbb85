//! Reads one offset range of one partition, without a group: for recovery, `tail` and `verify`.

use super::{Connection, Consumer, Message, Polled, error};
use crate::error::{Error, Result};
use crate::record::TopicPartition;
use rdkafka::consumer::Consumer as _;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// How a read ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeEnd {
    /// The position passed the end of the range.
    Reached,
    /// The callback said so.
    Stopped,
}

/// A consumer of its own with a dummy group that is never joined or committed.
pub struct RangeReader {
    consumer: Consumer,
}

impl RangeReader {
    pub fn new(connection: &Connection) -> Result<Self> {
        let mut config = connection.consumer_config("dlq-archiver-range");
        // At the log end there is nothing to wait for.
        config.set("fetch.wait.max.ms", "50");
        Ok(Self { consumer: Consumer::of(config)? })
    }

    /// Hands every record with `from <= offset < to` to `record`, in order, until the position is at or behind `to`.
    /// `from` must be in the log.
    ///
    /// # Errors
    /// [`crate::Kind::Unavailable`] if nothing moves for `patience`; [`crate::Kind::Failed`] if `from` is out of range.
    pub fn read(
        &self,
        tp: &TopicPartition,
        from: i64,
        to: i64,
        patience: Duration,
        mut record: impl FnMut(&Message<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<RangeEnd> {
        let doing = format!("cannot read {tp} {from}..{to}");
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&tp.topic, tp.partition, Offset::Offset(from))
            .map_err(|e| error(&doing, &e, None))?;
        let inner = self.consumer.inner();
        inner.assign(&list).map_err(|e| error(&doing, &e, None))?;
        let end = self.drain(tp, to, patience, &doing, &mut record);
        if let Err(e) = inner.unassign() {
            tracing::debug!("cannot unassign {tp}: {e}");
        }
        end
    }

    /// Whether the leader refuses to let read from `offset`, behind a record of `leader_epoch`. Asked by beginning to, and
    /// moving to the same place: an assignment alone asks only in a client that knows nothing of the topic yet.
    ///
    /// # Errors
    /// [`crate::Kind::Unavailable`] if there is no answer within `patience`.
    pub fn is_refused(&self, tp: &TopicPartition, offset: i64, leader_epoch: i32, patience: Duration) -> Result<bool> {
        let doing = format!("cannot ask for leader epoch {leader_epoch} of {tp} at {offset}");
        self.consumer.read_from([(tp, offset, leader_epoch)])?;
        let since = Instant::now();
        let mut moved = leader_epoch < 0;
        loop {
            if !moved {
                match self.consumer.seek(tp, offset, leader_epoch, patience) {
                    Ok(()) => moved = true,
                    Err(e) => tracing::trace!("{e}"),
                }
            }
            match self.consumer.poll(Duration::from_millis(50), |_| {}) {
                Polled::Record | Polled::End if moved => return Ok(false),
                Polled::OutOfRange => return Ok(true),
                Polled::Record | Polled::End => {}
                Polled::Failed(e) if !e.is_unavailable() => return Err(e.context(doing)),
                Polled::Failed(_) | Polled::Idle => {}
            }
            if since.elapsed() > patience {
                let why = self.consumer.last_error().map_or(String::new(), |e| format!(" ({e})"));
                return Err(Error::unavailable(format!("{doing}: no answer for {} s{why}", patience.as_secs())));
            }
        }
    }

    fn drain(
        &self,
        tp: &TopicPartition,
        to: i64,
        patience: Duration,
        doing: &str,
        record: &mut impl FnMut(&Message<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<RangeEnd> {
        let mut moved = Instant::now();
        let mut last_position = -1;
        loop {
            let mut flow = Ok(ControlFlow::Continue(()));
            let mut seen = -1;
            let polled = self.consumer.poll(Duration::from_millis(100), |m| {
                seen = m.offset();
                if m.offset() < to {
                    flow = record(m);
                }
            });
            if flow?.is_break() {
                return Ok(RangeEnd::Stopped);
            }
            match polled {
                Polled::Record => {
                    moved = Instant::now();
                    if seen + 1 >= to {
                        return Ok(RangeEnd::Reached);
                    }
                    continue;
                }
                Polled::OutOfRange => {
                    return Err(Error::failed(format!("{doing}: the log no longer has these offsets")));
                }
                Polled::Failed(e) if !e.is_unavailable() => return Err(e.context(doing)),
                Polled::Failed(_) | Polled::Idle | Polled::End => {}
            }
            let position = self.consumer.positions().iter().find(|(p, _)| p == tp).map_or(-1, |(_, offset)| *offset);
            if position >= to {
                return Ok(RangeEnd::Reached);
            }
            if position > last_position {
                (last_position, moved) = (position, Instant::now());
            }
            if moved.elapsed() > patience {
                let why = self.consumer.last_error().map_or(String::new(), |e| format!(" ({e})"));
                return Err(Error::unavailable(format!("{doing}: nothing came for {} s{why}", patience.as_secs())));
            }
        }
    }
}
