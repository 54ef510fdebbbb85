//! What the poll thread and the partitions' tasks tell each other.
//!
//! Invariant: the memory of a batch that was handed over is let go exactly once, whatever becomes of the task that
//! has it: when the batch is dropped.

use crate::error::{Error, Result};
use crate::record::{RawBatch, TopicPartition};
use crate::retention::LogSettings;
use crate::stage::Stage;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// The newest record that was read or archived. Markers may follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastRecord {
    pub offset: i64,
    /// -1 where unknown.
    pub leader_epoch: i32,
}

/// What the look-out knows of a partition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Due {
    pub settings: LogSettings,
    /// Offset and timestamp of the next record to read, where it was looked at.
    pub unread: Option<(i64, i64)>,
    /// The last stable offset.
    pub end: i64,
    /// So much is waiting that `retention.bytes` is near.
    pub pressing: bool,
}

/// From the poll thread to the partitions' tasks.
pub enum Event {
    Assigned {
        tp: TopicPartition,
        assignment: u64,
    },
    Revoked {
        tp: TopicPartition,
    },
    Batch(Batch),
    /// A partition cannot go on; the others do.
    Stopped {
        tp: TopicPartition,
        error: Error,
    },
    /// The thread ended.
    Ended(Result<()>),
}

/// From the partitions' tasks to the poll thread.
pub enum Command {
    /// Read `tp` from `offset`. `end`: the log end seen at start; with `--once` the partition is done there.
    Start {
        tp: TopicPartition,
        assignment: u64,
        offset: i64,
        /// Before `offset`.
        last: Option<LastRecord>,
        end: i64,
    },
    /// A batch's memory is free.
    Done {
        tp: TopicPartition,
        assignment: u64,
        /// Of the budget.
        memory: usize,
        /// Of its records alone.
        records: usize,
        durable: Option<Durable>,
    },
    /// So much of the budget is taken for what a partition's task reads itself; see [`Reserved`].
    Reserve {
        tp: TopicPartition,
        assignment: u64,
        memory: usize,
    },
    /// And is free again.
    Free {
        tp: TopicPartition,
        assignment: u64,
        memory: usize,
    },
    /// Forget what was read and begin anew.
    Restart {
        tp: TopicPartition,
        assignment: u64,
    },
    /// This partition is stopped.
    Stop {
        tp: TopicPartition,
        assignment: u64,
    },
    Deadlines {
        due: BTreeMap<TopicPartition, Due>,
        /// Not everything can be read in time: one partition is read after the other, and another one in its place if that
        /// expires so many milliseconds earlier.
        late_by: Option<i64>,
    },
    Shutdown(Stage),
}

/// The records of `from..to` of one partition. [`Command::Done`] is sent when it is dropped: written, or let go, as
/// Kafka has its records.
pub struct Batch {
    pub tp: TopicPartition,
    pub assignment: u64,
    pub from: i64,
    pub to: i64,
    pub records: Arc<RawBatch>,
    /// Of the budget.
    pub memory: usize,
    /// Set once it is written.
    pub durable: Option<Durable>,
    pub commands: Sender<Command>,
}

/// Memory of the budget that no batch has: [`Command::Reserve`] was sent for it, and [`Command::Free`] is when it is dropped.
pub struct Reserved {
    tp: TopicPartition,
    assignment: u64,
    memory: usize,
    commands: Sender<Command>,
}

impl Reserved {
    pub fn new(tp: &TopicPartition, assignment: u64, memory: usize, commands: &Sender<Command>) -> Self {
        // The reader is gone only when the run ends.
        let _ = commands.send(Command::Reserve { tp: tp.clone(), assignment, memory });
        Self { tp: tp.clone(), assignment, memory, commands: commands.clone() }
    }

    /// When it is known better.
    pub fn become_of(&mut self, memory: usize) {
        *self = Self::new(&self.tp, self.assignment, memory, &self.commands);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let (tp, assignment, memory) = (self.tp.clone(), self.assignment, self.memory);
        let _ = self.commands.send(Command::Free { tp, assignment, memory });
    }
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Durable {
    /// Up to where the archive reaches now.
    pub next: i64,
    /// Bytes of its objects.
    pub stored: u64,
}

impl Drop for Batch {
    fn drop(&mut self) {
        // The reader is gone only when the run ends.
        let _ = self.commands.send(Command::Done {
            tp: self.tp.clone(),
            assignment: self.assignment,
            memory: self.memory,
            records: self.records.memory(),
            durable: self.durable,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_batch_is_let_go_when_its_task_panics() {
        let (commands, received) = std::sync::mpsc::channel();
        let tp = TopicPartition::new("t", 3);
        let (records, durable) = (Arc::default(), None);
        let batch = Batch { tp, assignment: 7, from: 0, to: 1, records, memory: 5, durable, commands };
        let task = std::thread::spawn(move || {
            let _batch = batch;
            panic!("as a bug would");
        });
        assert!(task.join().is_err());
        let all: Vec<_> = received.iter().collect();
        assert!(matches!(&all[..], [Command::Done { assignment: 7, memory: 5, durable: None, .. }]));
    }

    #[test]
    fn what_is_reserved_is_let_go_once() {
        let (commands, received) = std::sync::mpsc::channel();
        let mut reserved = Reserved::new(&TopicPartition::new("t", 3), 7, 5, &commands);
        reserved.become_of(9);
        drop((reserved, commands));
        let told = received.iter().map(|command| match command {
            Command::Reserve { memory, .. } => memory as i64,
            Command::Free { memory, .. } => -(memory as i64),
            _ => panic!("something else"),
        });
        assert_eq!(told.collect::<Vec<_>>(), [5, 9, -5, -9]);
    }
}
