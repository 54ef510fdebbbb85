//! The poll thread: polls, copies records into one batch a partition, closes batches, and does nothing else, so that
//! no slow store can make it miss a poll and lose its place in the group.
//!
//! Does not read or write the ledger. Invariant: a partition ([`super::part`]) is read only after its task said from
//! where, and each assignment has a number, so that word about an older one is ignored.

use super::balance::{self, Decision, Load, Memory, Shares};
use super::board::Board;
use super::cluster::Poll;
use super::messages::{Batch, Command, Durable, Event};
use super::part::{Part, State};
use super::telling::WAITING;
use super::{Counters, Options};
use crate::error::{Error, Result};
use crate::host;
use crate::kafka::{Polled, Rebalance};
use crate::record::TopicPartition;
use crate::stage::Stage;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;

/// Settings of the poll thread.
#[derive(Debug, Clone)]
pub struct Settings {
    pub options: Arc<Options>,
    /// Of all topics, those of other members of the group included.
    pub partitions: u64,
}

pub struct Reader {
    consumer: Box<dyn Poll>,
    settings: Settings,
    events: UnboundedSender<Event>,
    commands: Receiver<Command>,
    /// Goes with each batch, which says by it that it is done.
    to_self: Sender<Command>,
    pub(super) counters: Arc<Counters>,
    pub(super) board: Arc<Board>,
    parts: BTreeMap<String, BTreeMap<i32, Part>>,
    assignments: u64,
    /// Memory of batches that were handed over and are not done.
    handed: usize,
    /// What objects take beside the records, by topic.
    shares: Shares,
    /// Memory that was taken since it was looked at.
    unweighed: usize,
    /// Reading is paused until memory is free again.
    full: bool,
    /// Not everything can be read in time; see [`Command::Deadlines`].
    late_by: Option<i64>,
    /// Partitions were started and the consumer does not know yet.
    reassign: bool,
    stage: Stage,
    last_tick: Instant,
    failing_since: Option<Instant>,
    /// The partitions that were told last.
    pub(super) told: BTreeSet<TopicPartition>,
    /// Without any partition since then, and not told yet.
    pub(super) waiting_since: Option<Instant>,
}

/// A partition that is read and brings nothing for this long does not count as behind.
const STUCK: Duration = Duration::from_secs(30);

/// What is on its way for so long does not keep others waiting for memory.
const LONG: Duration = Duration::from_secs(60);

const TICK: Duration = Duration::from_millis(200);

impl Reader {
    pub fn new(
        consumer: Box<dyn Poll>,
        settings: Settings,
        events: UnboundedSender<Event>,
        (to_self, commands): (Sender<Command>, Receiver<Command>),
        (counters, board): (Arc<Counters>, Arc<Board>),
    ) -> Self {
        let shares = Shares::new(settings.options.format);
        Self {
            consumer,
            settings,
            events,
            commands,
            to_self,
            counters,
            board,
            parts: BTreeMap::new(),
            assignments: 0,
            handed: 0,
            shares,
            unweighed: 0,
            full: false,
            late_by: None,
            reassign: false,
            stage: Stage::Running,
            last_tick: host::now(),
            failing_since: None,
            told: BTreeSet::new(),
            waiting_since: Some(host::now()),
        }
    }

    pub(super) fn options(&self) -> &Options {
        &self.settings.options
    }

    /// One turn: takes commands, polls once, looks at the time. False once it is over: at shutdown, or with `--once`
    /// when every partition is done.
    pub fn turn(&mut self) -> bool {
        let result = match self.turn_once() {
            Ok(true) => return true,
            Ok(false) => Ok(()),
            Err(e) => Err(e),
        };
        if self.stage < Stage::Abandon {
            self.consumer.leave();
            // Lets librdkafka send the leave request and run the revocation.
            self.consumer.poll(Duration::from_millis(100), &mut |_| {});
        }
        self.counters.vitals.rest();
        // Nobody listens any more only if the program is ending anyway.
        let _ = self.events.send(Event::Ended(result));
        false
    }

    fn turn_once(&mut self) -> Result<bool> {
        while let Ok(command) = self.commands.try_recv() {
            self.obey(command);
        }
        // Without the tasks' side nobody needs what is read.
        if self.is_done() || self.events.is_closed() {
            return Ok(false);
        }
        // Before the next poll: that would bring what was fetched from elsewhere, and leave out what is before it.
        if self.reassign {
            self.reassign();
        }
        self.poll()?;
        while let Some(rebalance) = self.consumer.rebalance() {
            self.rebalance(rebalance);
        }
        if host::since(self.last_tick) >= TICK {
            self.tick();
        }
        Ok(true)
    }

    /// Tells the consumer anew what to read: every partition that is being read, from its next offset. Once for all
    /// partitions that were started since the last poll, as it drops what was prefetched.
    fn reassign(&mut self) {
        let reading = self.each().filter(|(_, p)| p.state == State::Reading);
        let starts: Vec<_> = reading.map(|(tp, p)| (tp, p.next, p.leader_epoch())).collect();
        let reading: Vec<_> = starts.iter().map(|(tp, ..)| tp.clone()).collect();
        let told = self.consumer.read_from(&starts);
        // Pauses of an earlier assignment stay in force. What is not to be read yet must not be fetched and thrown away.
        if let Err(e) = told.and_then(|()| self.consumer.pause(&reading)) {
            // A rebalance is under way: it is tried again after the next poll.
            tracing::debug!("{e}");
            return;
        }
        self.reassign = false;
        for tp in &reading {
            if let Some(part) = self.part(tp) {
                (part.paused, part.placed) = (true, true);
            }
        }
        self.balance();
    }

    fn is_done(&self) -> bool {
        let mut parts = self.parts.values().flat_map(BTreeMap::values);
        match self.stage {
            Stage::Abandon => true,
            Stage::Finish => parts.all(|p| p.jobs == 0 && p.batch.is_empty()),
            Stage::Running => {
                self.options().once
                    && self.assignments > 0
                    && parts.all(|p| p.jobs == 0 && matches!(p.state, State::Finished | State::Stopped))
            }
        }
    }

    fn poll(&mut self) -> Result<()> {
        let once = self.options().once;
        let (parts, unweighed) = (&mut self.parts, &mut self.unweighed);
        let mut full_batch: Option<TopicPartition> = None;
        let mut broken: Option<(TopicPartition, Error)> = None;
        let polled = self.consumer.poll(Duration::from_millis(50), &mut |message| {
            let Some(part) = parts.get_mut(message.topic()).and_then(|p| p.get_mut(&message.partition())) else {
                return;
            };
            let before = part.batch.memory();
            match part.take(message, once) {
                Ok(true) => {
                    *unweighed += part.batch.memory() - before;
                    if part.is_full() {
                        full_batch = Some(TopicPartition::new(message.topic(), message.partition()));
                    }
                }
                Ok(false) => {}
                Err(e) => broken = Some((TopicPartition::new(message.topic(), message.partition()), e)),
            }
        });
        match polled {
            Polled::Record => {
                if self.failing_since.take().is_some() {
                    super::brokers_answer(&self.counters);
                }
            }
            Polled::Idle => {}
            // The next tick sees it, whichever it is: with many partitions there are as many ends as records.
            Polled::End => {}
            Polled::OutOfRange => self.restart_out_of_range(),
            Polled::Failed(e) if e.is_unavailable() => {
                self.counters.vitals.kafka(false);
                if self.failing_since.is_none() {
                    tracing::warn!("{e}. Waiting; the place in the group is kept as long as the broker allows");
                    self.failing_since = Some(host::now());
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
        // Much is read between two ticks.
        if self.unweighed > self.options().memory / 16 {
            self.balance();
        }
        Ok(())
    }

    /// The leader no longer has some position. Which partition is not told: all that are fetched ask their leader again,
    /// and their tasks conclude what was lost.
    fn restart_out_of_range(&mut self) {
        let fetched = |p: &&Part| p.state == State::Reading && !p.paused;
        let reading: Vec<_> = self.each().filter(|(_, p)| fetched(p)).map(|(tp, _)| tp).collect();
        // One that was paused since stands still until it is told anew from where to read.
        self.reassign = true;
        for tp in reading {
            // What is read so far stays archived; the task follows the log from there.
            self.close(&tp);
            self.restart(&tp);
        }
    }

    fn starting(&self, tp: &TopicPartition, assignment: u64) -> Part {
        let options = self.options();
        let counters = self.counters.topic(&tp.topic);
        Part::starting(assignment, counters, options.policy_of(&tp.topic), options.safety_of(&tp.topic))
    }

    /// Begins a partition anew, under a new number: its task reads the ledger again and says from where to read.
    fn restart(&mut self, tp: &TopicPartition) {
        self.assignments += 1;
        let assignment = self.assignments;
        let Some(part) = self.part(tp) else { return };
        *part = part.anew(assignment);
        self.reassign = true;
        self.send(Event::Assigned { tp: tp.clone(), assignment });
    }

    fn rebalance(&mut self, rebalance: Rebalance) {
        match rebalance {
            Rebalance::Assigned(tps) => {
                // Without partitions nobody else finds out that the brokers are back.
                super::brokers_answer(&self.counters);
                for tp in tps {
                    self.assignments += 1;
                    let part = self.starting(&tp, self.assignments);
                    self.board.add(&tp);
                    self.parts.entry(tp.topic.clone()).or_default().insert(tp.partition, part);
                    self.send(Event::Assigned { tp, assignment: self.assignments });
                }
                self.tell_partitions();
            }
            Rebalance::Revoked(tps) => {
                for tp in tps {
                    // The open batch is dropped: Kafka has it, and the next owner reads it again.
                    if let Some(parts) = self.parts.get_mut(&tp.topic) {
                        parts.remove(&tp.partition);
                    }
                    self.board.remove(&tp);
                    self.send(Event::Revoked { tp });
                }
                // Told with what comes in their place, as each rebalance takes all of them first.
                self.waiting_since = Some(host::now());
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Start { tp, assignment, offset, last, end } => {
                let (once, running) = (self.options().once, self.stage == Stage::Running);
                if let Some(part) = self.current(&tp, assignment).filter(|_| running) {
                    part.start(offset, last, end, once);
                    self.reassign |= part.state == State::Reading;
                }
            }
            Command::Done { tp, assignment, memory, records, durable } => {
                self.handed -= memory;
                if let Some(durable) = durable {
                    self.shares.learn(&tp.topic, records, durable.stored);
                }
                if let Some(part) = self.current(&tp, assignment) {
                    part.jobs -= 1;
                    part.let_go(memory);
                    if let Some(Durable { next, .. }) = durable {
                        part.archived(next);
                        self.consumer.commit(&tp, next, self.stage > Stage::Running);
                    }
                }
                self.balance();
            }
            Command::Reserve { tp, assignment, memory } => {
                self.handed += memory;
                if let Some(part) = self.current(&tp, assignment) {
                    part.hand_over(memory);
                }
                self.balance();
            }
            Command::Free { tp, assignment, memory } => {
                self.handed -= memory;
                if let Some(part) = self.current(&tp, assignment) {
                    part.let_go(memory);
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
            Command::Deadlines { due, late_by } => {
                self.late_by = late_by;
                let once = self.options().once;
                for (tp, due) in &due {
                    if let Some(part) = self.part(tp) {
                        part.heed(due, once);
                    }
                }
                self.balance();
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
                            part.stop();
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
            part.stop();
            part.paused = true;
        }
        self.balance();
    }

    /// What time and positions alone bring about: positions that moved without records, ends, ages.
    fn tick(&mut self) {
        self.last_tick = host::now();
        self.counters.vitals.beat();
        if self.parts.values().all(BTreeMap::is_empty)
            && !self.options().once
            && self.stage == Stage::Running
            && self.waiting_since.is_some_and(|since| host::since(since) >= WAITING)
        {
            self.waiting_since = None;
            self.tell_waiting("");
            // That they are read again is told then, the same ones too.
            self.told.clear();
        }
        let options = self.settings.options.clone();
        let (once, partitions) = (options.once, self.settings.partitions);
        let counted = self.counters.get();
        for (tp, position) in self.consumer.positions() {
            if let Some(part) = self.part(&tp) {
                part.follow(position, once);
            }
        }
        let mut close = Vec::new();
        // Data objects of a cut so far.
        let objects = counted.objects.checked_div(counted.cuts).unwrap_or(1).max(1);
        for (tp, part) in self.each_mut() {
            if part.state != State::Reading {
                continue;
            }
            if once && part.next >= part.end {
                part.state = State::Finished;
                close.push(tp);
            } else if part.next > part.from {
                let (age, policy) = (host::since(part.since), part.policy);
                let max_age = options.files_per_day.map_or(policy.max_age, |n| policy.age_for(n, partitions, objects));
                if age >= max_age || age >= options.cut_min_age && part.is_urgent() {
                    close.push(tp);
                }
            }
        }
        for tp in &close {
            self.close(tp);
        }
        self.stop_silent();
        self.balance();
        self.publish();
    }

    /// With `--once`: brokers that went away, or a topic that was deleted, must not be waited for without end.
    fn stop_silent(&mut self) {
        let wait = self.options().wait;
        if !self.options().once {
            return;
        }
        let silent = self.each().filter(|(_, p)| p.is_silent(wait));
        let silent: Vec<_> = silent.map(|(tp, p)| (tp, p.next, p.end)).collect();
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
        let commands = self.to_self.clone();
        let Some(part) = self.part(tp).filter(read) else { return };
        let assignment = part.assignment;
        let (from, to, records) = part.close();
        let (memory, records) = (self.shares.of(&tp.topic).on_its_way(records.memory()), Arc::new(records));
        let batch = Batch { tp: tp.clone(), assignment, from, to, records, memory, durable: None, commands };
        self.handed += memory;
        if let Some(part) = self.part(tp) {
            part.hand_over(memory);
        }
        self.send(Event::Batch(batch));
    }

    /// Cuts, pauses and resumes as [`balance::decide`] says.
    fn balance(&mut self) {
        self.unweighed = 0;
        let parts: Vec<TopicPartition> = self.each().map(|(tp, _)| tp).collect();
        let read = self.counters.get();
        let mean = read.read_bytes.checked_div(read.read_records);
        let used = self.handed + self.each().map(|(_, p)| p.batch.memory()).sum::<usize>();
        let budget = self.options().memory;
        let load = |(key, (tp, p)): (usize, (TopicPartition, &Part))| Load {
            key,
            open: p.batch.memory(),
            share: self.shares.of(&tp.topic),
            // What waits for its store is read no further once half of the memory is taken.
            reading: p.state == State::Reading && (used <= budget / 2 || p.waiting(LONG) == 0),
            read_now: !p.paused,
            // What does not move though it is read must not keep others waiting.
            behind: p.next < p.end && (p.paused || host::since(p.moved) < STUCK),
            left: left(p, mean),
            expires_ms: p.expires_ms(),
        };
        let loads: Vec<_> = self.each().enumerate().map(load).collect();
        self.counters.vitals.memory_used.store(used, Relaxed);
        let waiting = self.each().map(|(_, p)| p.waiting(LONG)).sum();
        let memory = Memory { handed: self.handed, budget, full: self.full }.beside(waiting);
        for (topic, parts) in &mut self.parts {
            let room = self.shares.of(topic).fits(memory.budget);
            parts.values_mut().for_each(|p| p.room = room);
        }
        let cut_bytes = self.each().map(|(_, p)| p.policy.max_bytes).max().unwrap_or(self.options().policy.max_bytes);
        let Decision { full, cut, read } = balance::decide(loads, memory, cut_bytes, self.late_by);
        self.full = full;
        self.counters.vitals.paused.store(full, Relaxed);
        for i in cut {
            self.close(&parts[i]);
        }
        let read: HashSet<usize> = read.into_iter().collect();
        let (mut pause, mut resume) = (Vec::new(), Vec::new());
        for (i, tp) in parts.into_iter().enumerate() {
            let Some(part) = self.part(&tp).filter(|p| p.paused == read.contains(&i)) else { continue };
            part.paused = !part.paused;
            part.moved = host::now();
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

    pub(super) fn each(&self) -> impl Iterator<Item = (TopicPartition, &Part)> {
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

/// Bytes that are left to read of a partition: as many as a cut has where nothing is known yet.
fn left(part: &Part, mean: Option<u64>) -> usize {
    let offsets = u64::try_from(part.end.saturating_sub(part.next)).unwrap_or(0);
    let bytes = part.record_bytes().or(mean).map_or(u64::MAX, |bytes| bytes.saturating_mul(offsets));
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
