//! The poll thread: polls, copies records into one batch a partition, closes batches, and does nothing else, so that
//! no slow store can make it miss a poll and lose its place in the group.
//!
//! Does not read or write the ledger: a partition is read only after its task said from where, and each assignment
//! has a number, so that word about an older one is ignored. Invariant: a batch holds every record of its range that
//! a read_committed consumer is given, in order.

use crate::cut::CutPolicy;
use crate::error::{Error, Result};
use crate::kafka::{Consumer, Message, Polled, Rebalance};
use crate::record::{RawBatch, TopicPartition};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;

use super::Counters;
use super::balance::{self, Decision, Load, Memory};
use super::patience::Stage;

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

/// The records of `from..to` of one partition.
pub struct Batch {
    pub tp: TopicPartition,
    pub assignment: u64,
    pub from: i64,
    pub to: i64,
    pub records: Arc<RawBatch>,
}

/// From the partitions' tasks to the poll thread.
pub enum Command {
    /// Read `tp` from `offset`. `end`: the log end seen at start; with `--once` the partition is done there.
    Start {
        tp: TopicPartition,
        assignment: u64,
        offset: i64,
        leader_epoch: i32,
        end: i64,
    },
    /// A batch's memory is free; `durable`: up to where the archive reaches now.
    Done {
        tp: TopicPartition,
        assignment: u64,
        memory: usize,
        durable: Option<i64>,
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
    Shutdown(Stage),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its task reads the ledger.
    Starting,
    Reading,
    /// Read to the end that was seen at start (`--once`).
    Finished,
    Stopped,
}

struct Part {
    assignment: u64,
    state: State,
    /// Start of the open batch.
    from: i64,
    /// Next offset expected.
    next: i64,
    /// Log end seen at start.
    end: i64,
    /// Of the record before the first one read; -1 where unknown.
    leader_epoch: i32,
    batch: RawBatch,
    /// Since when the open batch, or a position without records, waits.
    since: Instant,
    /// When something came last, or reading was resumed.
    moved: Instant,
    paused: bool,
    jobs: usize,
}

impl Part {
    fn starting(assignment: u64) -> Self {
        Self {
            assignment,
            state: State::Starting,
            from: 0,
            next: 0,
            end: 0,
            leader_epoch: -1,
            batch: RawBatch::new(),
            since: Instant::now(),
            moved: Instant::now(),
            paused: true,
            jobs: 0,
        }
    }
}

/// Settings of the poll thread.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub policy: CutPolicy,
    /// Bytes of raw records that may be held, over all partitions.
    pub memory: usize,
    pub once: bool,
    /// With `once`: a partition that is read and brings nothing for this long, short of its end, is stopped.
    pub wait: Duration,
}

pub struct Reader {
    consumer: Consumer,
    settings: Settings,
    events: UnboundedSender<Event>,
    commands: Receiver<Command>,
    counters: Arc<Counters>,
    parts: HashMap<String, HashMap<i32, Part>>,
    assignments: u64,
    /// Memory of batches that were handed over and are not done.
    handed: usize,
    /// Reading is paused until memory is free again.
    full: bool,
    /// Partitions were started and the consumer does not know yet.
    reassign: bool,
    stage: Stage,
    last_tick: Instant,
    failing_since: Option<Instant>,
}

/// A partition that is read and brings nothing for this long does not count as behind.
const STUCK: Duration = Duration::from_secs(30);

const TICK: Duration = Duration::from_millis(200);

impl Reader {
    pub fn new(
        consumer: Consumer,
        settings: Settings,
        events: UnboundedSender<Event>,
        commands: Receiver<Command>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            consumer,
            settings,
            events,
            commands,
            counters,
            parts: HashMap::new(),
            assignments: 0,
            handed: 0,
            full: false,
            reassign: false,
            stage: Stage::Running,
            last_tick: Instant::now(),
            failing_since: None,
        }
    }

    /// Runs until shutdown, or with `--once` until every partition is done.
    pub fn run(mut self) {
        let result = self.poll_until_done();
        if self.stage < Stage::Abandon {
            self.consumer.leave();
            // Lets librdkafka send the leave request and run the revocation.
            self.consumer.poll(Duration::from_millis(100), |_| {});
        }
        // Nobody listens any more only if the program is ending anyway.
        let _ = self.events.send(Event::Ended(result));
    }

    fn poll_until_done(&mut self) -> Result<()> {
        loop {
            if !self.take_commands() || self.is_done() {
                return Ok(());
            }
            if self.reassign {
                self.reassign();
            }
            self.poll()?;
            while let Some(rebalance) = self.consumer.rebalance() {
                self.rebalance(rebalance);
            }
            if self.last_tick.elapsed() >= TICK {
                self.tick();
            }
        }
    }

    /// Tells the consumer anew what to read: every partition that is being read, from its next offset. Once for all
    /// partitions that were started since the last poll, as it drops what was prefetched.
    fn reassign(&mut self) {
        let reading: Vec<_> = self.each().filter(|(_, p)| p.state == State::Reading).map(|(tp, _)| tp).collect();
        let starts: Vec<_> = self
            .each()
            .filter(|(_, p)| p.state == State::Reading)
            .map(|(tp, p)| (tp, p.next, p.batch.last().map_or(p.leader_epoch, |r| r.leader_epoch)))
            .collect();
        let told = self.consumer.read_from(starts.iter().map(|(tp, offset, epoch)| (tp, *offset, *epoch)));
        // Pauses of an earlier assignment stay in force.
        if let Err(e) = told.and_then(|()| self.consumer.resume(&reading)) {
            // A rebalance is under way: it is tried again after the next poll.
            tracing::debug!("{e}");
            return;
        }
        self.reassign = false;
        for tp in &reading {
            if let Some(part) = self.part(tp) {
                part.paused = false;
            }
        }
        self.balance();
    }

    fn is_done(&self) -> bool {
        let mut parts = self.parts.values().flat_map(HashMap::values);
        match self.stage {
            Stage::Abandon => true,
            Stage::Finish => parts.all(|p| p.jobs == 0 && p.batch.is_empty()),
            Stage::Running => {
                self.settings.once
                    && self.assignments > 0
                    && parts.all(|p| p.jobs == 0 && matches!(p.state, State::Finished | State::Stopped))
            }
        }
    }

    fn poll(&mut self) -> Result<()> {
        let (parts, counters) = (&mut self.parts, &self.counters);
        let mut full_batch: Option<TopicPartition> = None;
        let mut broken: Option<(TopicPartition, Error)> = None;
        let (policy, once) = (self.settings.policy, self.settings.once);
        let polled = self.consumer.poll(Duration::from_millis(50), |message| {
            let Some(part) = parts.get_mut(message.topic()).and_then(|p| p.get_mut(&message.partition())) else {
                return;
            };
            match take(part, message, once, counters) {
                Ok(()) if policy.due(part.batch.len(), part.batch.payload_len(), Duration::ZERO) => {
                    full_batch = Some(TopicPartition::new(message.topic(), message.partition()));
                }
                Ok(()) => {}
                Err(e) => broken = Some((TopicPartition::new(message.topic(), message.partition()), e)),
            }
        });
        match polled {
            Polled::Record => self.failing_since = None,
            Polled::Idle => {}
            Polled::End => self.tick(),
            Polled::OutOfRange => self.restart_out_of_range(),
            Polled::Failed(e) if e.is_unavailable() => {
                if self.failing_since.is_none() {
                    tracing::warn!("{e}. Waiting; the place in the group is kept as long as the broker allows");
                    self.failing_since = Some(Instant::now());
                }
            }
            Polled::Failed(e) => return Err(e),
        }
        if let Some((tp, error)) = broken {
            self.stop(&tp);
            self.send(Event::Stopped { tp, error });
        }
        if let Some(tp) = full_batch {
            self.close(&tp);
            self.balance();
        }
        Ok(())
    }

    /// The leader no longer has some position. Which partition is not told: all of them ask their leader again, and
    /// their tasks conclude what was lost.
    fn restart_out_of_range(&mut self) {
        let reading: Vec<_> = self.each().filter(|(_, p)| p.state == State::Reading).map(|(tp, _)| tp).collect();
        for tp in reading {
            // What is read so far stays archived; the task follows the log from there.
            self.close(&tp);
            self.restart(&tp);
        }
    }

    /// Begins a partition anew, under a new number: its task reads the ledger again and says from where to read.
    fn restart(&mut self, tp: &TopicPartition) {
        self.assignments += 1;
        let assignment = self.assignments;
        let Some(part) = self.part(tp) else { return };
        *part = Part::starting(assignment);
        self.reassign = true;
        self.send(Event::Assigned { tp: tp.clone(), assignment });
    }

    fn rebalance(&mut self, rebalance: Rebalance) {
        match rebalance {
            Rebalance::Assigned(tps) => {
                for tp in tps {
                    self.assignments += 1;
                    let part = Part::starting(self.assignments);
                    self.parts.entry(tp.topic.clone()).or_default().insert(tp.partition, part);
                    self.send(Event::Assigned { tp, assignment: self.assignments });
                }
            }
            Rebalance::Revoked(tps) => {
                for tp in tps {
                    // The open batch is dropped: Kafka has it, and the next owner reads it again.
                    if let Some(parts) = self.parts.get_mut(&tp.topic) {
                        parts.remove(&tp.partition);
                    }
                    self.send(Event::Revoked { tp });
                }
            }
        }
    }

    /// Returns false when the tasks' side is gone.
    fn take_commands(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Start { tp, assignment, offset, leader_epoch, end } => {
                if self.current(&tp, assignment).is_none() || self.stage > Stage::Running {
                    return;
                }
                let done = self.settings.once && offset >= end;
                if let Some(part) = self.part(&tp) {
                    part.state = if done { State::Finished } else { State::Reading };
                    (part.from, part.next, part.end) = (offset, offset, end);
                    part.leader_epoch = leader_epoch;
                    part.batch = RawBatch::new();
                    part.since = Instant::now();
                }
                self.reassign |= !done;
            }
            Command::Done { tp, assignment, memory, durable } => {
                self.handed -= memory;
                if let Some(part) = self.current(&tp, assignment) {
                    part.jobs -= 1;
                    if let Some(offset) = durable {
                        self.consumer.commit(&tp, offset, self.stage > Stage::Running);
                    }
                }
                self.balance();
            }
            Command::Restart { tp, assignment } => {
                if self.current(&tp, assignment).is_some() {
                    self.restart(&tp);
                }
            }
            Command::Stop { tp, assignment } => {
                if self.current(&tp, assignment).is_some() {
                    self.stop(&tp);
                }
            }
            Command::Shutdown(stage) => {
                if stage > self.stage && self.stage == Stage::Running {
                    let all: Vec<_> = self.each().map(|(tp, _)| tp).collect();
                    let _ = self.consumer.pause(&all);
                    for tp in &all {
                        if stage == Stage::Finish {
                            self.close(tp);
                        }
                        if let Some(part) = self.part(tp) {
                            part.state = State::Stopped;
                            part.batch = RawBatch::new();
                        }
                    }
                }
                self.stage = self.stage.max(stage);
            }
        }
    }

    fn stop(&mut self, tp: &TopicPartition) {
        self.reassign = true;
        if let Some(part) = self.part(tp) {
            part.state = State::Stopped;
            part.batch = RawBatch::new();
            part.paused = true;
        }
        self.balance();
    }

    /// What time and positions alone bring about: positions that moved without records, ends, ages.
    fn tick(&mut self) {
        self.last_tick = Instant::now();
        let (policy, once) = (self.settings.policy, self.settings.once);
        for (tp, position) in self.consumer.positions() {
            if let Some(part) = self.part(&tp).filter(|p| p.state == State::Reading) {
                // Records behind the end were handed out too, and let go: the position is behind them.
                let position = if once { position.min(part.end) } else { position };
                if position > part.next {
                    (part.next, part.moved) = (position, Instant::now());
                }
            }
        }
        let mut close = Vec::new();
        for (tp, part) in self.each_mut() {
            if part.state != State::Reading {
                continue;
            }
            if once && part.next >= part.end {
                part.state = State::Finished;
                close.push(tp);
            } else if part.next > part.from && part.since.elapsed() >= policy.max_age {
                close.push(tp);
            }
        }
        for tp in &close {
            self.close(tp);
        }
        self.stop_silent();
        self.balance();
    }

    /// With `--once`: brokers that went away, or a topic that was deleted, must not be waited for without end.
    fn stop_silent(&mut self) {
        let wait = self.settings.wait;
        if !self.settings.once {
            return;
        }
        let silent = |p: &Part| p.state == State::Reading && !p.paused && p.moved.elapsed() > wait;
        let silent: Vec<_> = self.each().filter(|(_, p)| silent(p)).map(|(tp, p)| (tp, p.next, p.end)).collect();
        for (tp, next, end) in silent {
            let why = self.consumer.last_error().map_or_else(String::new, |e| format!(" ({e})"));
            let error = Error::unavailable(format!(
                "nothing came from offset {next} on, short of {end}, for {} s{why}. What is archived is safe: run it again",
                wait.as_secs()
            ));
            // What was read is archived; the rest is for the next run.
            self.close(&tp);
            self.stop(&tp);
            self.send(Event::Stopped { tp, error });
        }
    }

    /// Hands the open batch over, if its range is not empty.
    fn close(&mut self, tp: &TopicPartition) {
        let read = |p: &&mut Part| p.next > p.from && matches!(p.state, State::Reading | State::Finished);
        let Some(part) = self.part(tp).filter(read) else { return };
        let records = Arc::new(std::mem::take(&mut part.batch));
        let memory = records.memory();
        let batch = Batch { tp: tp.clone(), assignment: part.assignment, from: part.from, to: part.next, records };
        part.jobs += 1;
        part.from = part.next;
        part.since = Instant::now();
        self.handed += memory;
        self.send(Event::Batch(batch));
    }

    /// Cuts, pauses and resumes as [`balance::decide`] says.
    fn balance(&mut self) {
        let parts: Vec<TopicPartition> = self.each().map(|(tp, _)| tp).collect();
        let load = |(key, (_, p)): (usize, (TopicPartition, &Part))| Load {
            key,
            open: p.batch.memory(),
            reading: p.state == State::Reading,
            // What does not move though it is read must not keep others waiting.
            behind: p.next < p.end && (p.paused || p.moved.elapsed() < STUCK),
        };
        let loads = self.each().enumerate().map(load).collect();
        let memory = Memory { handed: self.handed, budget: self.settings.memory, full: self.full };
        let Decision { full, cut, read } = balance::decide(loads, memory, self.settings.policy.max_bytes);
        self.full = full;
        for i in cut {
            self.close(&parts[i]);
        }
        let read: HashSet<usize> = read.into_iter().collect();
        let (mut pause, mut resume) = (Vec::new(), Vec::new());
        for (i, tp) in parts.into_iter().enumerate() {
            let Some(part) = self.part(&tp).filter(|p| p.paused == read.contains(&i)) else { continue };
            part.paused = !part.paused;
            part.moved = Instant::now();
            if part.paused { pause.push(tp) } else { resume.push(tp) }
        }
        for (what, result) in [
            ("pause", (!pause.is_empty()).then(|| self.consumer.pause(&pause))),
            ("resume", (!resume.is_empty()).then(|| self.consumer.resume(&resume))),
        ] {
            if let Some(Err(e)) = result {
                tracing::warn!("cannot {what} partitions: {e}");
            }
        }
    }

    fn send(&self, event: Event) {
        // The receiver ends only with the program.
        let _ = self.events.send(event);
    }

    fn part(&mut self, tp: &TopicPartition) -> Option<&mut Part> {
        self.parts.get_mut(&tp.topic)?.get_mut(&tp.partition)
    }

    fn current(&mut self, tp: &TopicPartition, assignment: u64) -> Option<&mut Part> {
        self.part(tp).filter(|p| p.assignment == assignment)
    }

    fn each(&self) -> impl Iterator<Item = (TopicPartition, &Part)> {
        self.parts
            .iter()
            .flat_map(|(topic, parts)| parts.iter().map(move |(p, part)| (TopicPartition::new(topic, *p), part)))
    }

    fn each_mut(&mut self) -> impl Iterator<Item = (TopicPartition, &mut Part)> {
        self.parts
            .iter_mut()
            .flat_map(|(topic, parts)| parts.iter_mut().map(move |(p, part)| (TopicPartition::new(topic, *p), part)))
    }
}

fn take(part: &mut Part, message: &Message<'_>, once: bool, counters: &Counters) -> Result<()> {
    let offset = message.offset();
    // Not told to read yet, or fetched before it was told to read from elsewhere.
    if part.state != State::Reading || offset < part.next {
        return Ok(());
    }
    if once && offset >= part.end {
        // Everything below the end was read: what is left below it are markers and the like.
        part.next = part.end;
        return Ok(());
    }
    if part.batch.is_empty() {
        part.since = Instant::now();
    }
    let before = part.batch.payload_len();
    message.copy_into(&mut part.batch)?;
    part.next = offset + 1;
    part.moved = Instant::now();
    counters.read(1, (part.batch.payload_len() - before) as u64);
    Ok(())
}
