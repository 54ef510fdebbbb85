//! A simulated cluster: partitioned logs with transactions, markers, retention, compaction and topics made anew; a
//! group whose coordinator may be wrong about who is alive; consumers that hand out what they fetched earlier.

use crate::exec::Machine;
use crate::faults::Faults;
use crate::rng::Rng;
use async_trait::async_trait;
use dlq_archiver::archive::cluster::{Checksums, Cluster, Described, Incoming, Poll};
use dlq_archiver::kafka::Peeked;
use dlq_archiver::kafka::{Polled, Rebalance, TopicId, TopicInfo};
use dlq_archiver::record::{Header, RawBatch, RawRecord, TimestampType, TopicPartition};
use dlq_archiver::retention::LogSettings;
use dlq_archiver::{Error, Result};
use roaring::RoaringTreemap;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Without a poll for this long a member is out of its group.
const SESSION: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Committed,
    Aborted,
    Open,
}

#[derive(Debug, Clone, Copy)]
enum Slot {
    Record { row: usize, state: State, compacted: bool },
    Marker,
}

/// One partition of one incarnation of a topic.
#[derive(Default, Clone)]
pub struct Log {
    slots: Vec<Slot>,
    records: Vec<Arc<RawBatch>>,
    pub start: i64,
    /// Leader epochs after the first, each with its first offset, ascending.
    epochs: Vec<(i32, i64)>,
    leader_epoch: i32,
}

/// What became of an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Readable now.
    There,
    /// A committed record below the log start.
    Expired,
    /// A committed record that compaction took.
    Compacted,
    /// Marker, or aborted: never to be read.
    Never,
    /// Of a transaction that is open, or not written yet.
    NotYet,
}

impl Log {
    pub fn end(&self) -> i64 {
        self.slots.len() as i64
    }

    /// Last stable offset.
    pub fn stable(&self) -> i64 {
        let open = |s: &Slot| matches!(s, Slot::Record { state: State::Open, .. });
        self.slots.iter().position(open).unwrap_or(self.slots.len()) as i64
    }

    pub fn fate(&self, offset: i64) -> Fate {
        match self.slots.get(offset as usize) {
            None => Fate::NotYet,
            Some(Slot::Marker | Slot::Record { state: State::Aborted, .. }) => Fate::Never,
            Some(Slot::Record { state: State::Open, .. }) => Fate::NotYet,
            // Compacted while it was in the log, whatever retention did later.
            Some(Slot::Record { compacted: true, .. }) => Fate::Compacted,
            Some(Slot::Record { .. }) if offset < self.start => Fate::Expired,
            Some(Slot::Record { .. }) => Fate::There,
        }
    }

    pub fn record(&self, offset: i64) -> Option<RawRecord<'_>> {
        match self.slots.get(offset as usize)? {
            Slot::Record { row, .. } => self.records.get(*row).map(|r| r.get(0)),
            Slot::Marker => None,
        }
    }

    /// End of a leader epoch; `None` if this log never had it.
    fn end_of(&self, epoch: i32) -> Option<i64> {
        let next = self.epochs.iter().find(|(e, _)| *e > epoch).map(|(_, start)| (*start).max(self.start));
        (epoch <= self.leader_epoch).then(|| next.unwrap_or(self.end()))
    }

    /// Whether the leader lets nobody read there.
    fn refuses(&self, offset: i64, epoch: i32) -> bool {
        offset < self.start || offset > self.end() || (epoch >= 0 && self.end_of(epoch).is_none_or(|end| end < offset))
    }

    fn elect(&mut self) {
        self.leader_epoch += 1;
        self.epochs.push((self.leader_epoch, self.end()));
    }

    /// Readable offsets in `from..stable`.
    fn readable(&self, from: i64) -> impl Iterator<Item = i64> + '_ {
        (from.max(0)..self.stable()).filter(|o| self.fate(*o) == Fate::There)
    }
}

pub struct Topic {
    pub id: String,
    pub logs: Vec<Log>,
}

#[derive(Default)]
struct Group {
    epoch: u64,
    /// Member -> when it last polled.
    members: BTreeMap<u64, Duration>,
    assigned: BTreeMap<TopicPartition, Vec<u64>>,
}

pub struct Inner {
    pub topics: BTreeMap<String, Topic>,
    /// Logs as they were before their topic was made anew, or they were truncated: (topic, id, partition, log).
    pub past: Vec<(String, String, i32, Log)>,
    groups: BTreeMap<String, Group>,
    /// (group, partition) -> committed offset.
    pub committed: BTreeMap<TopicPartition, i64>,
    last_member: u64,
    last_id: u32,
    produced: u64,
}

#[derive(Clone)]
pub struct Broker {
    inner: Arc<Mutex<Inner>>,
    machine: Machine,
    rng: Rng,
    pub faults: Faults,
    /// Whether brokers tell topic ids.
    pub ids: bool,
    /// Whether topics are made anew and logs truncated.
    pub generations: bool,
    /// Whether brokers tell leader epochs. If not, logs are not truncated: it cannot be told from compaction.
    epochs: bool,
}

impl Broker {
    pub fn new(
        machine: Machine,
        rng: Rng,
        faults: Faults,
        topics: &[(&str, usize)],
        ids: bool,
        generations: bool,
    ) -> Self {
        let inner = Inner {
            topics: BTreeMap::new(),
            past: Vec::new(),
            groups: BTreeMap::new(),
            committed: BTreeMap::new(),
            last_member: 0,
            last_id: 0,
            produced: 0,
        };
        let epochs = rng.chance(800);
        let broker = Self { inner: Arc::new(Mutex::new(inner)), machine, rng, faults, ids, generations, epochs };
        for (name, partitions) in topics {
            broker.create_topic(name, *partitions);
        }
        broker
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    fn create_topic(&self, name: &str, partitions: usize) {
        let mut inner = self.lock();
        inner.last_id += 1;
        let topic =
            Topic { id: format!("id-{}", inner.last_id), logs: (0..partitions).map(|_| Log::default()).collect() };
        inner.topics.insert(name.to_owned(), topic);
    }

    /// Deletes a topic and makes it anew, empty.
    pub fn recreate_topic(&self, name: &str) {
        let mut inner = self.lock();
        let Some(old) = inner.topics.remove(name) else { return };
        let partitions = old.logs.len();
        for (partition, log) in old.logs.into_iter().enumerate() {
            inner.past.push((name.to_owned(), old.id.clone(), partition as i32, log));
        }
        drop(inner);
        self.create_topic(name, partitions);
    }

    /// An unclean election: the new leader has less.
    pub fn truncate(&self, tp: &TopicPartition) {
        let keep = self.rng.range(0, 15) as i64;
        let mut inner = self.lock();
        let Inner { topics, past, .. } = &mut *inner;
        let Some(topic) = topics.get_mut(&tp.topic) else { return };
        let id = topic.id.clone();
        let Some(log) = topic.logs.get_mut(tp.partition as usize) else { return };
        past.push((tp.topic.clone(), id, tp.partition, log.clone()));
        let end = (log.stable() - keep).max(log.start);
        log.slots.truncate(end as usize);
        log.epochs.retain(|(_, start)| *start < end);
        log.elect();
    }

    /// Whether any log that the partition has or had, under this topic id, is as `f` says; the second argument: whether
    /// it is the one of now.
    pub fn any_log(
        &self,
        topic: &str,
        id: Option<&str>,
        partition: i32,
        mut f: impl FnMut(&Log, bool) -> bool,
    ) -> bool {
        let inner = self.lock();
        let is = |other: &str| id.is_none_or(|id| id == other);
        let now = inner.topics.get(topic).filter(|t| is(&t.id)).and_then(|t| t.logs.get(partition as usize));
        let past = inner.past.iter().filter(|(t, i, p, _)| t == topic && is(i) && *p == partition);
        now.is_some_and(|log| f(log, true)) || past.into_iter().any(|(.., log)| f(log, false))
    }

    /// The log of now.
    pub fn with_log<T>(&self, topic: &str, partition: i32, f: impl FnOnce(&Log) -> T) -> Option<T> {
        let inner = self.lock();
        inner.topics.get(topic).and_then(|t| t.logs.get(partition as usize)).map(f)
    }

    pub fn partitions(&self) -> Vec<TopicPartition> {
        let inner = self.lock();
        inner
            .topics
            .iter()
            .flat_map(|(n, t)| (0..t.logs.len()).map(move |p| TopicPartition::new(n, p as i32)))
            .collect()
    }

    /// One thing that producers, retention or compaction do.
    pub fn stir(&self, tp: &TopicPartition) {
        let roll = self.rng.below(100);
        let mut inner = self.lock();
        let Inner { topics, produced, .. } = &mut *inner;
        let Some(topic) = topics.get_mut(&tp.topic) else { return };
        let id = topic.id.clone();
        let Some(log) = topic.logs.get_mut(tp.partition as usize) else { return };
        let open: Vec<usize> =
            (0..log.slots.len()).filter(|i| matches!(log.slots[*i], Slot::Record { state: State::Open, .. })).collect();
        match roll {
            // The end of a transaction.
            _ if !open.is_empty() && roll < 40 => {
                let end = if self.rng.chance(500) { State::Aborted } else { State::Committed };
                if end == State::Aborted {
                    self.faults.met("transaction aborted");
                }
                for i in open {
                    if let Slot::Record { state, .. } = &mut log.slots[i] {
                        *state = end;
                    }
                }
                log.slots.push(Slot::Marker);
            }
            0..70 => {
                let state = if roll < 15 && open.is_empty() { State::Open } else { State::Committed };
                for _ in 0..self.rng.range(1, 6) {
                    *produced += 1;
                    self.append(log, &id, tp, *produced, state);
                }
            }
            70..78 if self.faults.on("retention") => {
                let start = log.start + self.rng.below((log.stable() - log.start) as u64 / 2 + 1) as i64;
                if start > log.start {
                    self.faults.met("retention");
                    log.start = start;
                }
            }
            84 if self.faults.strikes("leader change", 300) => log.elect(),
            82 if self.generations && self.epochs && self.faults.strikes("log truncated", 150) => {
                drop(inner);
                self.truncate(tp);
            }
            83 if self.generations && self.ids && self.faults.strikes("topic made anew", 150) => {
                drop(inner);
                self.recreate_topic(&tp.topic);
            }
            78..82 if self.faults.on("compaction") => {
                let (start, stable) = (log.start as usize, log.stable() as usize);
                for slot in log.slots.iter_mut().take(stable).skip(start) {
                    if let Slot::Record { state: State::Committed, compacted, .. } = slot
                        && self.rng.chance(200)
                    {
                        self.faults.met("compaction");
                        *compacted = true;
                    }
                }
            }
            _ => {}
        }
    }

    fn append(&self, log: &mut Log, id: &str, tp: &TopicPartition, n: u64, state: State) {
        let offset = log.slots.len() as i64;
        let timestamp = dlq_archiver::host::now_us() / 1000 - self.rng.below(3_600_000) as i64;
        let key = [None, Some(""), Some("k")][self.rng.below(3) as usize];
        let value = format!("{id}/{tp}/{offset}/{n}");
        let dest = format!("http://p{}.ns.svc", self.rng.below(3));
        let mut headers = vec![("n", None), ("n", Some(""))];
        if self.rng.chance(600) {
            headers.extend([("ce_specversion", Some("1.0")), ("ce_knativeerrordest", Some(dest.as_str()))]);
        }
        let headers: Vec<Header<'_>> =
            headers.iter().map(|(n, v)| Header { name: n.as_bytes(), value: v.map(str::as_bytes) }).collect();
        let row = log.records.len();
        let mut record = RawBatch::new();
        let value = (!self.rng.chance(50)).then_some(value.as_bytes());
        record.push(
            offset,
            timestamp,
            TimestampType::CreateTime,
            if self.epochs { log.leader_epoch } else { -1 },
            key.map(str::as_bytes),
            value,
            headers.iter().copied(),
        );
        log.records.push(Arc::new(record));
        log.slots.push(Slot::Record { row, state, compacted: false });
    }

    /// Commits what is open, so that everything can be read.
    pub fn settle(&self) {
        for topic in self.lock().topics.values_mut() {
            for log in &mut topic.logs {
                let mut any = false;
                for slot in &mut log.slots {
                    if let Slot::Record { state: state @ State::Open, .. } = slot {
                        (*state, any) = (State::Committed, true);
                    }
                }
                if any {
                    log.slots.push(Slot::Marker);
                }
            }
        }
    }

    async fn answer(&self) -> Result<()> {
        self.machine.pause(Duration::from_millis(self.rng.range(1, 60))).await;
        if self.faults.strikes("broker does not answer", 20) {
            return Err(Error::unavailable("simulated: no answer"));
        }
        Ok(())
    }

    fn log<T>(&self, tp: &TopicPartition, f: impl FnOnce(&Log) -> T) -> Result<T> {
        self.with_log(&tp.topic, tp.partition, f).ok_or_else(|| Error::unavailable("simulated: no such topic"))
    }
}

#[async_trait]
impl Cluster for Broker {
    async fn describe(&self, topics: &[String], _: Duration) -> Result<Described> {
        self.answer().await?;
        let inner = self.lock();
        let found = topics.iter().filter_map(|name| {
            let topic = inner.topics.get(name)?;
            Some(TopicInfo { name: name.clone(), partitions: (0..topic.logs.len() as i32).collect() })
        });
        Ok(Described { cluster_id: Some("sim".into()), topics: found.collect() })
    }

    fn consumer(&self, group: &str) -> Result<Box<dyn Poll>> {
        let mut inner = self.lock();
        inner.last_member += 1;
        Ok(Box::new(Consumer {
            broker: self.clone(),
            group: group.to_owned(),
            member: inner.last_member,
            topics: Vec::new(),
            epoch: 0,
            mine: Vec::new(),
            rebalances: VecDeque::new(),
            reading: BTreeMap::new(),
        }))
    }

    async fn watermarks(&self, tp: &TopicPartition) -> Result<(i64, i64)> {
        self.answer().await?;
        self.log(tp, |log| (log.start, log.stable()))
    }

    async fn log_end(&self, tp: &TopicPartition) -> Result<i64> {
        self.answer().await?;
        self.log(tp, Log::end)
    }

    async fn topic_id(&self, tp: &TopicPartition) -> Result<TopicId> {
        self.answer().await?;
        if !self.ids {
            return Ok(TopicId::NotTold);
        }
        Ok(self.lock().topics.get(&tp.topic).map_or(TopicId::NoTopic, |t| TopicId::Is(t.id.clone())))
    }

    async fn committed(&self, _: &str, tp: &TopicPartition) -> Result<Option<i64>> {
        self.answer().await?;
        Ok(self.lock().committed.get(tp).copied())
    }

    async fn settings(&self, topics: &[String]) -> Result<BTreeMap<String, LogSettings>> {
        self.answer().await?;
        let half_an_hour = LogSettings { retention_ms: Some(1_800_000), ..LogSettings::default() };
        Ok(topics.iter().map(|t| (t.clone(), half_an_hour)).collect())
    }

    async fn logs(&self, partitions: &[TopicPartition]) -> Result<BTreeMap<TopicPartition, (i64, i64, i64)>> {
        self.answer().await?;
        let log = |tp: &TopicPartition| self.log(tp, |log| (log.start, log.stable(), log.end())).ok();
        Ok(partitions.iter().filter_map(|tp| Some((tp.clone(), log(tp)?))).collect())
    }

    async fn peek(&self, at: &[(TopicPartition, i64)]) -> Result<BTreeMap<TopicPartition, Peeked>> {
        self.answer().await?;
        let first = |tp: &TopicPartition, from: i64| {
            self.log(tp, |log| {
                let offset = log.readable(from.max(log.start)).next()?;
                let timestamp_ms = log.record(offset)?.timestamp_ms;
                Some(Peeked { offset, timestamp_ms, bytes: 50, headers: 0 })
            })
        };
        Ok(at.iter().filter_map(|(tp, from)| Some((tp.clone(), first(tp, *from).ok()??))).collect())
    }

    async fn offsets_for_times(&self, at: &[(TopicPartition, i64)]) -> Result<BTreeMap<TopicPartition, Option<i64>>> {
        self.answer().await?;
        let first = |tp: &TopicPartition, ms: i64| {
            self.log(tp, |log| log.readable(log.start).find(|o| log.record(*o).is_some_and(|r| r.timestamp_ms >= ms)))
        };
        Ok(at.iter().filter_map(|(tp, ms)| Some((tp.clone(), first(tp, *ms).ok()?))).collect())
    }

    async fn offset_for_time(&self, tp: &TopicPartition, ms: i64) -> Result<Option<i64>> {
        self.answer().await?;
        self.log(tp, |log| log.readable(log.start).find(|o| log.record(*o).is_some_and(|r| r.timestamp_ms >= ms)))
    }

    async fn first_other(
        &self,
        tp: &TopicPartition,
        from: i64,
        to: i64,
        checksums: Arc<Checksums>,
    ) -> Result<Option<i64>> {
        let all = self.read(tp, from, to, Arc::new(RoaringTreemap::from_iter(from as u64..to as u64))).await?;
        let mut scratch = Vec::new();
        let other = all.iter().find(|r| !checksums.contains(&(r.offset, r.checksum(&mut scratch))));
        Ok(other.map(|r| r.offset))
    }

    async fn refuses(&self, tp: &TopicPartition, offset: i64, leader_epoch: i32) -> Result<bool> {
        self.answer().await?;
        self.log(tp, |log| log.refuses(offset, leader_epoch))
    }

    async fn read(&self, tp: &TopicPartition, from: i64, to: i64, offsets: Arc<RoaringTreemap>) -> Result<RawBatch> {
        self.answer().await?;
        self.log(tp, |log| {
            if from < log.start {
                return Err(Error::failed("simulated: the log no longer has these offsets"));
            }
            let mut batch = RawBatch::new();
            for offset in log.readable(from).take_while(|o| *o < to).filter(|o| offsets.contains(*o as u64)) {
                if let Some(record) = log.record(offset) {
                    batch.push_record(&record);
                }
            }
            Ok(batch)
        })?
    }
}

/// Fetched and not handed out: kept whatever happens to the log meanwhile.
struct Reading {
    next: i64,
    paused: bool,
    told_end: bool,
    /// Behind the last record that was handed out, and its epoch: what is validated when the leader changed.
    validated: (i64, i32),
    /// The leader's that it knows of.
    leader_epoch: Option<i32>,
    fetched: RawBatch,
    handed: usize,
}

struct Consumer {
    broker: Broker,
    group: String,
    member: u64,
    topics: Vec<String>,
    epoch: u64,
    mine: Vec<TopicPartition>,
    rebalances: VecDeque<Rebalance>,
    reading: BTreeMap<TopicPartition, Reading>,
}

struct Message<'a> {
    tp: &'a TopicPartition,
    record: RawRecord<'a>,
}

impl Incoming for Message<'_> {
    fn topic(&self) -> &str {
        &self.tp.topic
    }
    fn partition(&self) -> i32 {
        self.tp.partition
    }
    fn offset(&self) -> i64 {
        self.record.offset
    }
    fn copy_into(&self, batch: &mut RawBatch) -> Result<()> {
        batch.push_record(&self.record);
        Ok(())
    }
}

impl Consumer {
    /// What the coordinator says.
    fn heartbeat(&mut self) {
        if self.topics.is_empty() {
            return;
        }
        let (now, rng) = (self.broker.machine.elapsed(), &self.broker.rng);
        let mut inner = self.broker.lock();
        let inner = &mut *inner;
        let group = inner.groups.entry(self.group.clone()).or_default();
        let members = group.members.len();
        let was_in = group.members.insert(self.member, now).is_some();
        group.members.retain(|_, polled| now.saturating_sub(*polled) < SESSION);
        let whim = self.broker.faults.strikes("rebalance", 2);
        if !was_in || group.members.len() != members || whim {
            group.epoch += 1;
            group.assigned.clear();
            let alive: Vec<u64> = group.members.keys().copied().collect();
            for topic in &self.topics {
                let count = inner.topics.get(topic).map_or(0, |t| t.logs.len());
                for partition in 0..count as i32 {
                    let mut owners = vec![alive[rng.below(alive.len() as u64) as usize]];
                    if self.broker.faults.strikes("two owners", 50) {
                        owners.push(alive[rng.below(alive.len() as u64) as usize]);
                    }
                    group.assigned.insert(TopicPartition::new(topic, partition), owners);
                }
            }
        }
        if group.epoch != self.epoch {
            self.epoch = group.epoch;
            let given = group.assigned.iter().filter(|(_, owners)| owners.contains(&self.member));
            let given: Vec<_> = given.map(|(tp, _)| tp.clone()).collect();
            let taken = std::mem::replace(&mut self.mine, given.clone());
            self.reading.clear();
            self.rebalances.extend([Rebalance::Revoked(taken), Rebalance::Assigned(given)]);
        }
    }

    fn list(&mut self, tps: &[TopicPartition], paused: bool) {
        for tp in tps {
            if let Some(reading) = self.reading.get_mut(tp) {
                reading.paused = paused;
                // What was fetched is fetched again.
                reading.fetched = RawBatch::new();
                reading.handed = 0;
            }
        }
    }
}

impl Poll for Consumer {
    fn subscribe(&mut self, topics: &[String]) -> Result<()> {
        self.topics = topics.to_vec();
        Ok(())
    }

    fn take(&mut self, partitions: &[TopicPartition]) {
        self.rebalances.push_back(Rebalance::Assigned(partitions.to_vec()));
    }

    fn poll(&mut self, _: Duration, record: &mut dyn FnMut(&dyn Incoming)) -> Polled {
        self.heartbeat();
        if self.broker.faults.strikes("fetch fails", 5) {
            return Polled::Failed(Error::unavailable("simulated: fetch failed"));
        }
        let rng = self.broker.rng.clone();
        let able: Vec<_> = self.reading.iter().filter(|(_, r)| !r.paused).map(|(tp, _)| tp.clone()).collect();
        let Some(tp) = able.get(rng.below(able.len() as u64) as usize) else { return Polled::Idle };
        let Some(reading) = self.reading.get_mut(tp) else { return Polled::Idle };
        if reading.handed == reading.fetched.len() {
            reading.fetched = RawBatch::new();
            reading.handed = 0;
            let (count, next) = (rng.range(1, 12) as usize, reading.next);
            let (validated, known) = (reading.validated, reading.leader_epoch);
            let fetched = self.broker.log(tp, |log| {
                let (offset, epoch) = validated;
                let diverged =
                    epoch >= 0 && known != Some(log.leader_epoch) && log.end_of(epoch).is_none_or(|end| end < offset);
                if log.refuses(next, -1) || diverged {
                    return None;
                }
                let mut batch = RawBatch::new();
                for offset in log.readable(next).take(count) {
                    batch.push_record(&log.record(offset)?);
                }
                Some((batch, log.stable(), log.leader_epoch))
            });
            match fetched {
                Err(e) => return Polled::Failed(e),
                Ok(None) => {
                    self.broker.faults.met("position out of range");
                    return Polled::OutOfRange;
                }
                Ok(Some((batch, stable, epoch))) if batch.is_empty() => {
                    reading.leader_epoch = Some(epoch);
                    // Markers, aborted and compacted records are passed at the end of the log.
                    reading.next = reading.next.max(stable);
                    let told = std::mem::replace(&mut reading.told_end, true);
                    return if told { Polled::Idle } else { Polled::End };
                }
                Ok(Some((batch, _, epoch))) => {
                    reading.leader_epoch = Some(epoch);
                    reading.fetched = batch;
                }
            }
        }
        let message = Message { tp, record: reading.fetched.get(reading.handed) };
        record(&message);
        reading.next = message.record.offset + 1;
        reading.validated = (reading.next, message.record.leader_epoch);
        reading.handed += 1;
        reading.told_end = false;
        Polled::Record
    }

    fn rebalance(&mut self) -> Option<Rebalance> {
        self.rebalances.pop_front()
    }

    fn read_from(&mut self, starts: &[(TopicPartition, i64, i32)]) -> Result<()> {
        self.reading = starts
            .iter()
            .map(|(tp, next, epoch)| {
                let reading = Reading {
                    next: *next,
                    paused: false,
                    told_end: false,
                    validated: (*next, *epoch),
                    leader_epoch: None,
                    fetched: RawBatch::new(),
                    handed: 0,
                };
                (tp.clone(), reading)
            })
            .collect();
        Ok(())
    }

    fn pause(&mut self, tps: &[TopicPartition]) -> Result<()> {
        self.list(tps, true);
        Ok(())
    }

    fn resume(&mut self, tps: &[TopicPartition]) -> Result<()> {
        self.list(tps, false);
        Ok(())
    }

    fn positions(&self) -> Vec<(TopicPartition, i64)> {
        self.reading.iter().map(|(tp, r)| (tp.clone(), r.next)).collect()
    }

    fn commit(&mut self, tp: &TopicPartition, offset: i64, _: bool) {
        self.broker.lock().committed.insert(tp.clone(), offset);
    }

    fn leave(&mut self) {
        let mut inner = self.broker.lock();
        if let Some(group) = inner.groups.get_mut(&self.group) {
            group.members.remove(&self.member);
        }
        drop(inner);
        self.topics.clear();
    }

    fn last_error(&self) -> Option<String> {
        None
    }
}
