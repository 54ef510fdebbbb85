//! Simulated brokers that are restored to: topics, transactions with epochs and fencing, progress in them.
//!
//! Requests and replies are lost, repeated, late, and outlive who sent them. What Kafka promises, this keeps: a producer
//! that was fenced changes nothing, a transaction is visible as a whole or never, and is aborted when it takes too long.

use crate::exec::{Machine, WORLD};
use crate::faults::Faults;
use crate::rng::Rng;
use async_trait::async_trait;
use dlq_archiver::kafka::{Refusal, TopicInfo, Transactions};
use dlq_archiver::record::RawBatch;
use dlq_archiver::restore::batch::Batch;
use dlq_archiver::restore::plan::Timestamps;
use dlq_archiver::restore::rules::sent_size;
use dlq_archiver::restore::target::{Produce, Seen, Settings, Target, Told, Watching};
use dlq_archiver::{Error, Result};
use futures::FutureExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

/// Kafka's default of `transaction.timeout.ms`.
const TRANSACTION: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Open,
    Committed,
    Aborted,
}

/// An offset of a log.
pub enum Slot {
    Record { record: Arc<RawBatch>, transaction: Option<u64> },
    Marker,
}

pub struct Topic {
    pub partitions: Vec<Vec<Slot>>,
    pub max_bytes: usize,
    /// It takes no record without a key.
    pub compacted: bool,
}

struct Transaction {
    /// The transactional id.
    id: String,
    /// Open until its markers are there.
    fate: Fate,
    decided: Fate,
    places: Vec<Place>,
    /// Group, topic, offset.
    progress: Option<(String, String, i64)>,
}

/// Topic, partition, offset.
pub type Place = (String, i32, i64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Empty,
    Ongoing(u64),
    /// Decided; the markers are on their way.
    Ending(u64),
}

/// What the coordinator knows of a transactional id.
struct Coordinated {
    epoch: u64,
    state: State,
    /// Of the producer's own transactions, the one that is ongoing or was the last.
    count: u64,
    last: Option<Fate>,
}

const NEW: Coordinated = Coordinated { epoch: 0, state: State::Empty, count: 0, last: None };

#[derive(Default)]
pub struct Inner {
    pub topics: BTreeMap<String, Topic>,
    ids: BTreeMap<String, Coordinated>,
    transactions: BTreeMap<u64, Transaction>,
    progress: BTreeMap<(String, String), i64>,
    /// Requests that were answered: what is repeated in a transaction is not appended again.
    answered: BTreeMap<u64, Taken>,
    last_request: u64,
}

/// Sees what reaches the logs.
pub trait Readers: Send + Sync {
    /// A record was appended by this process; the request tells repeats from records that are sent anew.
    fn appended(&self, process: u32, request: u64, place: &Place, record: &RawBatch, transactional: bool);
    /// Readers of committed records see these from now on.
    fn visible(&self, transactional_id: &str, records: Vec<(Place, Arc<RawBatch>)>);
}

#[derive(Clone)]
pub struct Brokers {
    inner: Arc<Mutex<Inner>>,
    /// Who judges holds these brokers.
    readers: Arc<OnceLock<Weak<dyn Readers>>>,
    machine: Machine,
    rng: Rng,
    faults: Faults,
    /// Of a thousand faults so many happen.
    often: u64,
    pub transactions: bool,
    /// Whether topics tell their settings.
    pub tells: bool,
}

/// Partition and offset of each record, or why none was taken.
type Taken = std::result::Result<Vec<(i32, i64)>, Refusal>;

enum Answer<T> {
    Is(T),
    /// Ask again.
    Later,
    Not(Error),
}

fn unavailable() -> Error {
    Error::unavailable("simulated: the brokers do not answer")
}

fn fenced() -> Error {
    Error::fenced("simulated: there is a newer producer with the same transactional id")
}

impl Brokers {
    pub fn new(
        machine: Machine,
        rng: Rng,
        faults: Faults,
        often: u64,
        topics: BTreeMap<String, Topic>,
        transactions: bool,
        tells: bool,
    ) -> Self {
        let inner = Arc::new(Mutex::new(Inner { topics, ..Inner::default() }));
        Self { inner, readers: Arc::default(), machine, rng, faults, often, transactions, tells }
    }

    pub fn watch(&self, readers: &Arc<dyn Readers>) {
        let _ = self.readers.set(Arc::downgrade(readers));
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// A process' way to them.
    pub fn client(&self, process: u32) -> Client {
        Client { brokers: self.clone(), process }
    }

    fn strikes(&self, fault: &'static str, chance: u64) -> bool {
        self.faults.strikes(fault, chance * self.often / 1000)
    }

    /// What is at a place, with what was decided of its transaction; plain records are committed.
    pub fn at(&self, place: &Place) -> Option<(Arc<RawBatch>, Fate)> {
        let inner = self.lock();
        let slot = inner.topics.get(&place.0)?.partitions.get(place.1 as usize)?.get(place.2 as usize)?;
        let Slot::Record { record, transaction } = slot else { return None };
        Some((record.clone(), transaction.map_or(Fate::Committed, |n| inner.transactions[&n].decided)))
    }

    /// All that readers of committed records see.
    pub fn committed(&self) -> Vec<(Place, Arc<RawBatch>)> {
        let inner = self.lock();
        let mut records = Vec::new();
        for (name, topic) in &inner.topics {
            for (partition, log) in topic.partitions.iter().enumerate() {
                for (offset, slot) in log.iter().enumerate() {
                    if let Slot::Record { record, transaction } = slot
                        && transaction.is_none_or(|n| inner.transactions[&n].fate == Fate::Committed)
                    {
                        records.push(((name.clone(), partition as i32, offset as i64), record.clone()));
                    }
                }
            }
        }
        records
    }

    /// What happens days after the last commit.
    pub fn forget_progress(&self) {
        self.lock().progress.clear();
    }

    /// One request, repeated until there is an answer, as the library does it.
    async fn ask<T: Send + 'static>(
        &self,
        timeout: Duration,
        request: impl Fn(&Self) -> Answer<T> + Send + Sync + 'static,
    ) -> Result<T> {
        let end = self.machine.elapsed() + timeout;
        if self.strikes("brokers fall silent", 6) {
            match self.rng.below(3) {
                0 => {}
                1 => drop(request(self)),
                _ => {
                    self.faults.met("request arrives late");
                    let (brokers, pause) = (self.clone(), Duration::from_secs(self.rng.range(1, 200)));
                    let late = async move {
                        brokers.machine.pause(pause).await;
                        drop(request(&brokers));
                    };
                    self.machine.spawn_in(WORLD, late.boxed());
                }
            }
            self.machine.pause(timeout).await;
            return Err(unavailable());
        }
        loop {
            let slow = self.strikes("slow broker", 10);
            let most = if slow { 30_000 } else { 60 };
            self.machine.pause(Duration::from_millis(self.rng.range(1, most))).await;
            let mut pause = Duration::from_millis(200);
            if self.strikes("request to a broker lost", 20) {
                pause = Duration::from_secs(self.rng.range(1, 10));
            } else {
                match request(self) {
                    Answer::Later => {}
                    Answer::Not(e) => return Err(e),
                    Answer::Is(_) if self.strikes("broker's reply lost", 25) => {
                        pause = Duration::from_secs(self.rng.range(1, 10));
                    }
                    Answer::Is(answer) => {
                        self.machine.pause(Duration::from_millis(self.rng.range(1, 20))).await;
                        return Ok(answer);
                    }
                }
            }
            self.machine.pause(pause).await;
            if self.machine.elapsed() > end {
                return Err(unavailable());
            }
        }
    }

    /// The transaction of this producer that is ongoing; begins it.
    fn ongoing(&self, id: &str, epoch: Option<u64>, count: u64) -> Answer<u64> {
        let mut inner = self.lock();
        let number = inner.transactions.len() as u64;
        let known = inner.ids.entry(id.to_owned()).or_insert(NEW);
        // One that never asked for an epoch has whichever there is: only broken code does that.
        let any = epoch.is_none();
        if !any && epoch != Some(known.epoch) {
            return Answer::Not(fenced());
        }
        match known.state {
            State::Ending(_) => Answer::Later,
            State::Ongoing(n) if any || known.count == count => Answer::Is(n),
            State::Empty if any || known.count < count => {
                (known.state, known.count, known.last) = (State::Ongoing(number), count, None);
                let begun = Transaction {
                    id: id.to_owned(),
                    fate: Fate::Open,
                    decided: Fate::Open,
                    places: Vec::new(),
                    progress: None,
                };
                inner.transactions.insert(number, begun);
                drop(inner);
                self.time_out(id.to_owned(), number);
                Answer::Is(number)
            }
            _ => Answer::Not(Error::failed("simulated: the transaction is over")),
        }
    }

    fn time_out(&self, id: String, number: u64) {
        let (brokers, late) = (self.clone(), Duration::from_millis(self.rng.below(10_000)));
        let sweep = async move {
            brokers.machine.pause(TRANSACTION + late).await;
            let mut inner = brokers.lock();
            let Some(known) = inner.ids.get_mut(&id) else { return };
            if known.state == State::Ongoing(number) {
                brokers.faults.met("transaction timed out");
                known.epoch += 1;
                drop(inner);
                brokers.end(&id, number, Fate::Aborted);
            }
        };
        self.machine.spawn_in(WORLD, sweep.boxed());
    }

    /// Decides a transaction; its markers come later.
    fn end(&self, id: &str, number: u64, fate: Fate) {
        let mut inner = self.lock();
        if let Some(known) = inner.ids.get_mut(id) {
            (known.state, known.last) = (State::Ending(number), Some(fate));
        }
        if let Some(ended) = inner.transactions.get_mut(&number) {
            ended.decided = fate;
        }
        drop(inner);
        let slow = self.strikes("slow markers", 30);
        let (brokers, id) = (self.clone(), id.to_owned());
        let pause = Duration::from_millis(self.rng.range(1, if slow { 40_000 } else { 300 }));
        let markers = async move {
            brokers.machine.pause(pause).await;
            brokers.ended(&id, number, fate);
        };
        self.machine.spawn_in(WORLD, markers.boxed());
    }

    fn ended(&self, id: &str, number: u64, fate: Fate) {
        let mut inner = self.lock();
        let Inner { topics, ids, transactions, progress, .. } = &mut *inner;
        let Some(ended) = transactions.get_mut(&number) else { return };
        ended.fate = fate;
        let mut seen = Vec::new();
        for place in &ended.places {
            let log = topics.get(&place.0).and_then(|t| t.partitions.get(place.1 as usize));
            if let Some(Slot::Record { record, .. }) = log.and_then(|log| log.get(place.2 as usize)) {
                seen.push((place.clone(), record.clone()));
            }
        }
        let mut marked: Vec<_> = ended.places.iter().map(|(topic, partition, _)| (topic, *partition)).collect();
        marked.sort_unstable();
        marked.dedup();
        for (topic, partition) in marked {
            if let Some(log) = topics.get_mut(topic).and_then(|t| t.partitions.get_mut(partition as usize)) {
                log.push(Slot::Marker);
            }
        }
        if let (Fate::Committed, Some((group, topic, offset))) = (fate, &ended.progress) {
            progress.insert((group.clone(), topic.clone()), *offset);
        }
        if let Some(known) = ids.get_mut(id) {
            known.state = State::Empty;
        }
        let id = ended.id.clone();
        drop(inner);
        if fate == Fate::Committed
            && let Some(readers) = self.readers.get().and_then(Weak::upgrade)
        {
            readers.visible(&id, seen);
        }
    }

    /// A newer producer of this id: what older ones have open is aborted first.
    fn init(&self, id: &str) -> Answer<u64> {
        let mut inner = self.lock();
        let known = inner.ids.entry(id.to_owned()).or_insert(NEW);
        match known.state {
            State::Empty => {
                (known.epoch, known.count, known.last) = (known.epoch + 1, 0, None);
                Answer::Is(known.epoch)
            }
            State::Ongoing(number) => {
                self.faults.met("open transaction fenced");
                known.epoch += 1;
                drop(inner);
                self.end(id, number, Fate::Aborted);
                Answer::Later
            }
            State::Ending(_) => Answer::Later,
        }
    }

    /// Commits or aborts. A request that is repeated is answered alike.
    fn finish(&self, id: &str, epoch: Option<u64>, count: u64, fate: Fate) -> Answer<()> {
        let inner = self.lock();
        let Some(known) = inner.ids.get(id) else { return Answer::Not(fenced()) };
        if epoch.is_some_and(|epoch| epoch != known.epoch) {
            return Answer::Not(fenced());
        }
        match known.state {
            State::Ongoing(number) if epoch.is_none() || known.count == count => {
                drop(inner);
                self.end(id, number, fate);
                Answer::Is(())
            }
            State::Ending(_) | State::Empty if known.count == count && known.last == Some(fate) => Answer::Is(()),
            _ => Answer::Not(Error::failed("simulated: no such transaction is ongoing")),
        }
    }

    fn append(&self, request: &Request) -> Answer<Taken> {
        let transaction = match &request.transaction {
            None => None,
            Some((id, epoch, count)) => match self.ongoing(id, *epoch, *count) {
                Answer::Is(number) => Some(number),
                Answer::Later => return Answer::Later,
                Answer::Not(e) => return Answer::Not(e),
            },
        };
        let mut inner = self.lock();
        let Inner { topics, transactions, answered, .. } = &mut *inner;
        if let Some(answer) = answered.get(&request.number) {
            if transaction.is_some() {
                return Answer::Is(answer.clone());
            }
            self.faults.met("record doubled");
        }
        let Some(topic) = topics.get_mut(&request.topic) else {
            return Answer::Not(Error::failed(format!("simulated: no topic {}", request.topic)));
        };
        let sizes = request.records.iter().map(|r| size(r));
        let refusal = if sizes.sum::<usize>() > topic.max_bytes {
            Some(Refusal::TooLarge)
        } else if topic.compacted && request.records.iter().any(|r| r.get(0).key.is_none()) {
            Some(Refusal::Invalid)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.faults.met("(batch refused)");
            answered.insert(request.number, Err(refusal));
            return Answer::Is(Err(refusal));
        }
        let Some(log) = topic.partitions.get_mut(request.partition as usize) else {
            return Answer::Not(Error::failed("simulated: no such partition"));
        };
        let mut taken = Vec::new();
        for record in &request.records {
            taken.push((request.partition, log.len() as i64));
            log.push(Slot::Record { record: record.clone(), transaction });
        }
        let places: Vec<Place> = taken.iter().map(|(p, offset)| (request.topic.clone(), *p, *offset)).collect();
        if let Some(open) = transaction.and_then(|n| transactions.get_mut(&n)) {
            open.places.extend(places.iter().cloned());
        }
        answered.insert(request.number, Ok(taken.clone()));
        drop(inner);
        if let Some(readers) = self.readers.get().and_then(Weak::upgrade) {
            for (place, record) in places.iter().zip(&request.records) {
                readers.appended(request.process, request.number, place, record, transaction.is_some());
            }
        }
        Answer::Is(Ok(taken))
    }
}

/// Bytes of a record that is sent alone.
pub fn size(record: &RawBatch) -> usize {
    let raw = record.get(0);
    sent_size(raw.key, raw.value, &raw.headers.iter().collect::<Vec<_>>())
}

pub struct Client {
    brokers: Brokers,
    process: u32,
}

#[async_trait]
impl Target for Client {
    async fn describe(&self, to: Option<&str>, timeout: Duration) -> Result<Vec<TopicInfo>> {
        let topics = self.topics(timeout).await?;
        match to.filter(|to| !topics.iter().any(|t| t.name == *to)) {
            Some(to) => Err(Error::config(format!("simulated: no topic {to}"))),
            None => Ok(topics),
        }
    }

    async fn topics(&self, timeout: Duration) -> Result<Vec<TopicInfo>> {
        let ask = |brokers: &Brokers| {
            let inner = brokers.lock();
            let partitions = |topic: &Topic| (0..topic.partitions.len() as i32).collect();
            let info =
                |(name, topic): (&String, &Topic)| TopicInfo { name: name.clone(), partitions: partitions(topic) };
            Answer::Is(inner.topics.iter().map(info).collect())
        };
        self.brokers.ask(timeout, ask).await
    }

    async fn watch(&self, _: Vec<String>, _: Seen, _: Duration) -> Result<Watching> {
        Ok(Watching::default())
    }

    async fn unwritable(&self, _: &[String], _: Duration) -> Result<BTreeSet<String>> {
        Ok(BTreeSet::new())
    }

    async fn settings(&self, topics: &[String], _: &[&str], timeout: Duration) -> Result<Settings> {
        let topics = topics.to_vec();
        let ask = move |brokers: &Brokers| {
            if !brokers.tells {
                return Answer::Not(Error::failed("simulated: settings are not told"));
            }
            let inner = brokers.lock();
            let told = topics.iter().filter_map(|name| {
                let max = inner.topics.get(name)?.max_bytes.to_string();
                let told = [("max.message.bytes", max.as_str()), ("retention.ms", "-1"), ("cleanup.policy", "delete")];
                Some((name.clone(), told.map(|(k, v)| (k.to_owned(), v.to_owned())).into()))
            });
            Answer::Is(told.collect())
        };
        self.brokers.ask(timeout, ask).await
    }

    async fn producer(&self, transactional_id: Option<&str>, limit: Option<u64>) -> Result<Box<dyn Produce>> {
        Ok(Box::new(Producer {
            brokers: self.brokers.clone(),
            process: self.process,
            id: transactional_id.map(str::to_owned),
            limit: limit.unwrap_or(1_000_000) as usize,
            local: Mutex::default(),
        }))
    }

    async fn committed(&self, group: &str, topic: &str, timeout: Duration) -> Result<Option<i64>> {
        let key = (group.to_owned(), topic.to_owned());
        let ask = move |brokers: &Brokers| {
            let inner = brokers.lock();
            let is = |t: &&Transaction| {
                t.fate == Fate::Open && t.progress.as_ref().is_some_and(|p| (&p.0, &p.1) == (&key.0, &key.1))
            };
            match inner.transactions.values().find(is) {
                Some(_) => Answer::Later,
                None => Answer::Is(inner.progress.get(&key).copied()),
            }
        };
        self.brokers.ask(timeout, ask).await
    }
}

/// What the library keeps of a producer.
#[derive(Default)]
struct Local {
    epoch: Option<u64>,
    /// Number of its transaction.
    count: u64,
    /// The transaction can only be aborted.
    failed: bool,
    /// Partitions where it counts on behind a refused record, and the broker does not: a later transaction finds out.
    miscounts: BTreeSet<(String, i32)>,
    /// Of a commit it is not known what became: it cannot be aborted.
    unknown: bool,
    fatal: Option<Error>,
}

struct Producer {
    brokers: Brokers,
    process: u32,
    id: Option<String>,
    limit: usize,
    local: Mutex<Local>,
}

/// Records of one partition that are sent together.
struct Request {
    number: u64,
    process: u32,
    topic: String,
    partition: i32,
    rows: Vec<usize>,
    records: Vec<Arc<RawBatch>>,
    /// Transactional id, epoch, number of the producer's transaction.
    transaction: Option<(String, Option<u64>, u64)>,
}

impl Producer {
    fn local(&self) -> MutexGuard<'_, Local> {
        self.local.lock().unwrap()
    }

    /// What an error means for what follows.
    fn failed<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(e) = &result {
            let mut local = self.local();
            local.failed = true;
            if e.kind() == dlq_archiver::Kind::Fenced {
                local.fatal = Some(e.clone());
            }
        }
        result
    }

    fn able(&self) -> Result<()> {
        let local = self.local();
        match &local.fatal {
            Some(e) => Err(e.clone()),
            None if local.failed => Err(Error::failed("simulated: the transaction must be aborted")),
            None => Ok(()),
        }
    }

    fn id(&self) -> Result<(String, Option<u64>, u64)> {
        let local = self.local();
        let id = self.id.clone().ok_or_else(|| Error::internal("simulated: no transactional id"))?;
        Ok((id, local.epoch, local.count))
    }

    fn requests(&self, batch: &Batch, rows: &[usize], timestamps: Timestamps) -> Vec<Request> {
        let (mut done, mut open): (Vec<Request>, BTreeMap<(String, i32), Request>) = Default::default();
        for row in rows {
            let to = &batch.rows[*row].place;
            let raw = batch.raw.get(*row);
            let mut record = RawBatch::new();
            let now = dlq_archiver::host::now_us() / 1000;
            let timestamp = if timestamps == Timestamps::Keep { raw.timestamp_ms } else { now };
            record.push(0, timestamp, raw.timestamp_type, -1, raw.key, raw.value, raw.headers.iter());
            let partitions = self.brokers.lock().topics.get(&to.topic).map_or(1, |t| t.partitions.len());
            let by_key = |key: &[u8]| key.iter().map(|b| u64::from(*b)).sum::<u64>();
            let chosen = raw.key.map_or_else(|| self.brokers.rng.next(), by_key) % partitions as u64;
            let partition = to.partition.unwrap_or(chosen as i32);
            let place = (to.topic.clone(), partition);
            let sum: usize = open.get(&place).map_or(0, |r| r.records.iter().map(|r| size(r)).sum());
            if sum + size(&record) > self.limit || self.brokers.rng.chance(200) {
                done.extend(open.remove(&place));
            }
            let request = open.entry(place).or_insert_with(|| Request {
                number: 0,
                process: self.process,
                topic: to.topic.clone(),
                partition,
                rows: Vec::new(),
                records: Vec::new(),
                transaction: None,
            });
            request.rows.push(*row);
            request.records.push(Arc::new(record));
        }
        done.extend(open.into_values());
        for request in &mut done {
            let mut inner = self.brokers.lock();
            inner.last_request += 1;
            request.number = inner.last_request;
        }
        done
    }
}

#[async_trait]
impl Produce for Producer {
    async fn init_transactions(&self, timeout: Duration) -> Result<Transactions> {
        if !self.brokers.transactions {
            return Ok(Transactions::Unsupported("simulated".into()));
        }
        let (id, ..) = self.id()?;
        let epoch = self.brokers.ask(timeout, move |brokers| brokers.init(&id)).await?;
        self.local().epoch = Some(epoch);
        Ok(Transactions::Ready)
    }

    async fn begin(&self) -> Result<()> {
        self.able()?;
        self.local().count += 1;
        Ok(())
    }

    async fn send(&self, batch: &Arc<Batch>, rows: &[usize], timestamps: Timestamps, timeout: Duration) -> Told {
        let mut told = Told::default();
        if let Err(e) = self.able() {
            return Told { failed: Some(e), ..told };
        }
        for mut request in self.requests(batch, rows, timestamps) {
            if self.id.is_some() {
                request.transaction = self.id().ok();
            }
            let (rows, place) = (request.rows.clone(), (request.topic.clone(), request.partition));
            if self.local().miscounts.contains(&place) {
                self.local().miscounts.clear();
                let e = self.failed::<()>(Err(Error::unavailable("simulated: sequence numbers out of order")));
                return Told { failed: e.err(), ..told };
            }
            let answer = self.brokers.ask(timeout, move |brokers| brokers.append(&request)).await;
            match self.failed(answer) {
                Ok(Ok(taken)) => told.taken.extend(rows.iter().zip(taken).map(|(row, (p, offset))| (*row, p, offset))),
                Ok(Err(refusal)) => {
                    told.refused.extend(rows.iter().map(|row| (*row, refusal)));
                    if self.id.is_some() {
                        let mut local = self.local();
                        local.failed = true;
                        if self.brokers.rng.chance(700) {
                            local.miscounts.insert(place);
                        }
                        return told;
                    }
                }
                Err(e) => return Told { failed: Some(e), ..told },
            }
        }
        told
    }

    async fn commit(&self, group: &str, topic: &str, offset: i64, timeout: Duration) -> Result<()> {
        self.able()?;
        let (id, epoch, count) = self.id()?;
        let progress = (group.to_owned(), topic.to_owned(), offset);
        let ask = {
            let id = id.clone();
            move |brokers: &Brokers| match brokers.ongoing(&id, epoch, count) {
                Answer::Is(number) => {
                    let mut inner = brokers.lock();
                    if let Some(open) = inner.transactions.get_mut(&number) {
                        open.progress = Some(progress.clone());
                    }
                    Answer::Is(())
                }
                Answer::Later => Answer::Later,
                Answer::Not(e) => Answer::Not(e),
            }
        };
        self.failed(self.brokers.ask(timeout, ask).await)?;
        let ask = move |brokers: &Brokers| brokers.finish(&id, epoch, count, Fate::Committed);
        let committed = self.brokers.ask(timeout, ask).await;
        self.local().unknown = committed.is_err();
        self.failed(committed)
    }

    async fn abort(&self, timeout: Duration) -> Result<()> {
        let (id, epoch, count) = self.id()?;
        let fatal = self.local().fatal.clone();
        if let Some(e) = fatal {
            return Err(e);
        }
        if self.local().unknown {
            return Err(Error::failed("simulated: a commit is under way"));
        }
        // Nothing reached the coordinator: nothing is to be aborted.
        let begun = move |brokers: &Brokers| {
            let inner = brokers.lock();
            inner.ids.get(&id).is_some_and(|known| known.count == count) || epoch.is_none()
        };
        if begun(&self.brokers) {
            let (id, ..) = self.id()?;
            let ask = move |brokers: &Brokers| brokers.finish(&id, epoch, count, Fate::Aborted);
            self.failed(self.brokers.ask(timeout, ask).await)?;
        }
        self.local().failed = false;
        Ok(())
    }

    fn fatal(&self) -> Option<Error> {
        self.local().fatal.clone()
    }
}
