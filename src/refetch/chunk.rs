//! Some dead letters whose originals are looked for together: where those are said to be, and what was found there.
//!
//! Owns the questions in their order: topics, logs, records, and once more the topics, so that one that was made anew
//! while it was read is not taken for the one before. Writes nothing. Invariant: who got no answer is not answered.

use super::Options;
use super::brokers::Brokers;
use super::judge::{self, Failed, Identity, Sighting, Sightings};
use crate::catalog::Cut;
use crate::dialect::Dialects;
use crate::error::{Error, Result};
use crate::format::refetched::State;
use crate::host::{blocking, now_us};
use crate::kafka::{Found, Wanted};
use crate::record::{PayloadState, RawBatch, TopicPartition};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Reads in a row after which a topic is left to a later run.
const TRIES: u32 = 3;

/// The cuts of which dead letters are looked at.
pub(super) type Cuts = Arc<Vec<Arc<Cut>>>;

/// One dead letter: the cut by its number in the chunk, and its record in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Letter {
    pub cut: usize,
    pub record: usize,
}

/// What became of one.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub letter: Letter,
    pub state: State,
    pub topic: Arc<str>,
    pub topic_id: Option<Arc<str>>,
    pub partition: i32,
    pub offset: i64,
    /// The original's number in the batch.
    pub original: Option<usize>,
}

/// What was answered at a time: as much as fits into memory.
pub(super) struct Answers {
    pub all: Vec<Answer>,
    pub batch: Arc<RawBatch>,
    pub sightings: Vec<Sighting>,
}

/// Dead letters without an answer, and why.
#[derive(Debug, Clone)]
pub struct Unanswered {
    pub topic: String,
    pub records: u64,
    pub error: Error,
}

/// Where an original is said to be.
struct Origin {
    letter: Letter,
    offset: i64,
    failed: Failed,
}

/// Those of one topic, by partition, in order of offsets.
type Origins = BTreeMap<i32, Vec<Origin>>;

/// A topic as it was found.
struct Topic {
    name: Arc<str>,
    id: Option<Arc<str>>,
    partitions: BTreeSet<i32>,
    at_ms: i64,
}

impl Topic {
    fn new(found: Found, by: &str, at_ms: i64) -> Self {
        tracing::debug!("topic {by} is {}, id {}", found.topic.name, found.id.as_deref().unwrap_or("not told"));
        Self {
            name: found.topic.name.into(),
            id: found.id.map(Into::into),
            partitions: found.topic.partitions.into_iter().collect(),
            at_ms,
        }
    }
}

pub(super) struct Chunk {
    pub cuts: Cuts,
    /// Topics that are left, and what is open in each.
    topics: VecDeque<(String, Origins)>,
    /// Looks in a row at the first of them that brought nothing.
    tries: u32,
}

/// What a look brought.
pub(super) enum Step {
    Answered(Answers),
    Unanswered(Unanswered),
}

impl Chunk {
    /// Letters that do not tell where they came from are left out.
    pub fn new(cuts: Cuts, letters: &[Letter]) -> Self {
        let mut topics: BTreeMap<String, Origins> = BTreeMap::new();
        for letter in letters {
            let Some(cut) = cuts.get(letter.cut) else { continue };
            let record = cut.get(letter.record);
            let Some(((topic, partition), offset)) = origin(&record) else { continue };
            let at_ms = record.decoded.failed_at_us.map(|us| us / 1000);
            let failed = Failed { at_ms, archived_ms: record.archived_at_us / 1000 };
            let of_topic = topics.entry(topic.to_owned()).or_default();
            of_topic.entry(partition).or_default().push(Origin { letter: *letter, offset, failed });
        }
        for of_partition in topics.values_mut().flat_map(BTreeMap::values_mut) {
            of_partition.sort_by_key(|o| o.offset);
        }
        Self { cuts, topics: topics.into_iter().collect(), tries: 0 }
    }

    /// Looks for as many as there is memory for; `None` when all were looked for.
    pub async fn next(&mut self, brokers: &Brokers, sightings: &mut Sightings, options: &Options) -> Option<Step> {
        loop {
            let (name, origins) = self.topics.front_mut()?;
            if origins.is_empty() {
                self.topics.pop_front();
                self.tries = 0;
                continue;
            }
            match look_in(&self.cuts, name, origins, brokers, sightings, options).await {
                Ok(answers) if !answers.all.is_empty() => {
                    self.tries = 0;
                    return Some(Step::Answered(answers));
                }
                Err(e) if e.is_unavailable() && self.tries + 1 < TRIES && !options.is_over() => {
                    tracing::debug!("{name}: {e}");
                    self.tries += 1;
                }
                other => {
                    let error = other.err().unwrap_or_else(|| Error::unavailable("no answer"));
                    let (topic, origins) = self.topics.pop_front()?;
                    self.tries = 0;
                    let records = origins.values().map(|o| o.len() as u64).sum();
                    return Some(Step::Unanswered(Unanswered { topic, records, error }));
                }
            }
        }
    }
}

/// Topic, partition and offset that a dead letter names, if it names all three.
pub(super) fn origin<'r>(record: &'r crate::format::ArchivedRecord<'_>) -> Option<((&'r str, i32), i64)> {
    let d = &record.decoded;
    let topic = d.origin_topic.as_deref().filter(|topic| !topic.is_empty())?;
    let (partition, offset) = (d.origin_partition.filter(|p| *p >= 0)?, d.origin_offset.filter(|o| *o >= 0)?);
    Some(((topic, partition), offset))
}

/// Whether Kafka can have a topic of this name (`Topic.validate` in its clients).
fn is_topic_name(name: &str) -> bool {
    let is_legal = |c: u8| c.is_ascii_alphanumeric() || b"._-".contains(&c);
    (1..=249).contains(&name.len()) && name != "." && name != ".." && name.bytes().all(is_legal)
}

/// Answers some of `origins`, which are taken out of it; at least one.
async fn look_in(
    cuts: &Cuts,
    name: &str,
    origins: &mut Origins,
    brokers: &Brokers,
    sightings: &mut Sightings,
    options: &Options,
) -> Result<Answers> {
    let at_ms = now_us() / 1000;
    let found = if is_topic_name(name) { brokers.find(name).await? } else { None };
    let Some(found) = found else {
        let nothing = Topic { name: name.into(), id: None, partitions: BTreeSet::new(), at_ms };
        let all = std::mem::take(origins);
        let all = all.iter().flat_map(|(p, all)| all.iter().map(move |o| (*p, o)));
        let all = all.map(|(p, o)| answer(&nothing, p, o, State::TopicMissing, None)).collect();
        return Ok(Answers { all, batch: Arc::default(), sightings: Vec::new() });
    };
    let topic = Topic::new(found, name, at_ms);
    let partitions = origins.keys().copied().filter(|p| topic.partitions.contains(p));
    let partitions = partitions.map(|p| TopicPartition::new(&*topic.name, p)).collect();
    let logs = brokers.logs(partitions).await?;
    let read = Reading {
        cuts,
        dialects: &options.dialects,
        topic: &topic,
        by_id: *topic.name != *name,
        logs: &logs,
        sightings,
    };
    let mut answers = read.unread(origins)?;
    let batch = read.read(origins, brokers, options, &mut answers).await?;
    let again = brokers.find(name).await?;
    if again.and_then(|t| t.id).as_deref() != topic.id.as_deref() {
        return Err(Error::unavailable(format!("topic {name} was made anew while it was read")));
    }
    // Only now: what got no answer is asked for again.
    let answered: BTreeSet<(usize, usize)> = answers.iter().map(|a| (a.letter.cut, a.letter.record)).collect();
    origins.retain(|_, of_partition| {
        of_partition.retain(|o| !answered.contains(&(o.letter.cut, o.letter.record)));
        !of_partition.is_empty()
    });
    let seen = topic.id.as_ref().map(|id| Sighting {
        topic: topic.name.to_string(),
        topic_id: id.to_string(),
        at_ms: topic.at_ms,
    });
    seen.iter().for_each(|s| sightings.add(s));
    Ok(Answers { all: answers, batch: Arc::new(batch), sightings: seen.into_iter().collect() })
}

fn answer(topic: &Topic, partition: i32, o: &Origin, state: State, original: Option<usize>) -> Answer {
    Answer {
        letter: o.letter,
        state,
        topic: topic.name.clone(),
        topic_id: topic.id.clone(),
        partition,
        offset: o.offset,
        original,
    }
}

/// One topic while its records are read.
struct Reading<'a> {
    cuts: &'a Cuts,
    dialects: &'a Dialects,
    topic: &'a Topic,
    /// Dead letters name it by its id, which no other topic has.
    by_id: bool,
    logs: &'a BTreeMap<TopicPartition, (i64, i64)>,
    sightings: &'a Sightings,
}

impl Reading<'_> {
    fn identity(&self, o: &Origin) -> Identity {
        match self.by_id {
            true => Identity::Same,
            false => self.sightings.identity(&self.topic.name, self.topic.id.as_deref(), o.failed),
        }
    }

    fn is_to_be_read(&self, o: &Origin, log: Option<(i64, i64)>) -> bool {
        judge::before_reading(self.identity(o), o.offset, log).is_none()
    }

    /// The partition's log; outer `None`: its leader did not answer.
    fn log(&self, partition: i32) -> Option<Option<(i64, i64)>> {
        let log = self.logs.get(&TopicPartition::new(&*self.topic.name, partition)).copied();
        match self.topic.partitions.contains(&partition) {
            true => log.map(Some),
            false => Some(None),
        }
    }

    /// Answers that need no reading.
    fn unread(&self, origins: &Origins) -> Result<Vec<Answer>> {
        let mut answers = Vec::new();
        let mut silent = None;
        for (partition, of_partition) in origins {
            let Some(log) = self.log(*partition) else {
                silent = Some(*partition);
                continue;
            };
            for o in of_partition {
                if let Some(state) = judge::before_reading(self.identity(o), o.offset, log) {
                    answers.push(answer(self.topic, *partition, o, state, None));
                }
            }
        }
        match silent {
            Some(partition) if origins.keys().all(|p| self.log(*p).is_none()) => {
                Err(Error::unavailable(format!("the leader of {}/{partition} does not answer", self.topic.name)))
            }
            _ => Ok(answers),
        }
    }

    /// Reads until `memory` is full, and judges what came.
    async fn read(
        &self,
        origins: &Origins,
        brokers: &Brokers,
        options: &Options,
        answers: &mut Vec<Answer>,
    ) -> Result<RawBatch> {
        let mut wanted = Vec::new();
        for (partition, of_partition) in origins {
            let Some(log) = self.log(*partition) else { continue };
            let mut offsets: Vec<i64> =
                of_partition.iter().filter(|o| self.is_to_be_read(o, log)).map(|o| o.offset).collect();
            offsets.dedup();
            wanted.push(Wanted { tp: TopicPartition::new(&*self.topic.name, *partition), offsets });
        }
        let (brokers, options) = (brokers.clone(), options.clone());
        let (batch, found, failed) = blocking(move || {
            let (mut batch, mut found) = (RawBatch::new(), HashMap::new());
            let read = brokers.read(wanted, &mut |tp, offset, message| {
                if let Some(message) = message {
                    message.copy_into(&mut batch)?;
                }
                found.insert((tp.partition, offset), message.map(|_| batch.len() - 1));
                let full = batch.memory() >= options.memory || options.is_over();
                Ok(if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            });
            Ok((batch, found, read.err()))
        })
        .await?;
        if let Some(e) = failed
            && found.is_empty()
            && answers.is_empty()
        {
            return Err(e);
        }
        for (partition, of_partition) in origins {
            let log = self.log(*partition).flatten();
            for o in of_partition.iter().filter(|o| self.is_to_be_read(o, log)) {
                let Some(original) = found.get(&(*partition, o.offset)) else { continue };
                let state = match original {
                    None => State::Gone,
                    Some(i) => self.judge(o, &batch, *i),
                };
                let original = original.filter(|_| state == State::Refetched);
                answers.push(answer(self.topic, *partition, o, state, original));
            }
        }
        Ok(batch)
    }

    fn judge(&self, o: &Origin, batch: &RawBatch, original: usize) -> State {
        let Some(cut) = self.cuts.get(o.letter.cut) else { return State::Mismatch };
        let letter = cut.get(o.letter.record);
        let state = letter.decoded.payload_state;
        // Without the table that it was decoded with, it is not known where the copy is.
        let known = || {
            let decoded = self.dialects.decode(&letter.id.topic, letter.id.partition, &letter.raw);
            decoded.hops.iter().any(|hop| hop.dialect == letter.decoded.dialect)
        };
        let copy = match state {
            PayloadState::CopiedBare if known() => self.dialects.original(&letter.id.topic, &letter.raw),
            _ => None,
        };
        judge::of_record(self.identity(o), o.failed, copy.as_ref(), &batch.get(original))
    }
}
