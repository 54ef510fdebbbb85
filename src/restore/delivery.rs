//! Gets batches into Kafka: in transactions, or plainly.
//!
//! Owns the producer and what a batch's success means. Knows no bucket: the caller writes the list of what was sent
//! between [`Sink::send`] and [`Sink::commit`]. Invariant: a batch that is not committed is not seen by readers of
//! committed records (transactional), or is sent again (plain).

use super::batch::Batch;
use super::plan::{Delivery, Timestamps, sent_size};
use crate::error::{Error, Kind, Result};
use crate::host::blocking;
use crate::kafka::{self, Connection, NewRecord, Producer, Refusal, Transactions};
use crate::record::RawRecord;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest wait for the brokers' answer to one batch. Kafka ends a transaction by itself after 60 s.
const PATIENCE: Duration = Duration::from_secs(50);
/// Starting a transaction may have to wait for the end of the one before.
const START: Duration = Duration::from_secs(90);

/// What was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Asked {
    #[default]
    Auto,
    Exactly(Delivery),
}

impl Asked {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Exactly(delivery) => delivery.as_str(),
        }
    }
}

/// What became of a record that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// In this partition, at this offset.
    Taken(i32, i64),
    /// Not now and not later.
    Refused(Refusal),
}

/// What is kept from one batch to the next.
#[derive(Debug, Default)]
struct Memory {
    /// Sizes that topics have refused: what is as large is not tried again.
    too_large: BTreeMap<String, usize>,
    /// Tokens that were given out: late answers to an attempt that was aborted are none to the next.
    tokens: usize,
}

/// The way into Kafka.
pub struct Sink {
    producer: Arc<Producer>,
    memory: Arc<Mutex<Memory>>,
    delivery: Delivery,
    group: String,
    connection: Connection,
}

impl Sink {
    /// Opens the way into Kafka, fencing an earlier process of the same restore where the brokers can. Also says why
    /// it is this delivery. `group` is the consumer group of the progress, which no member ever joins, and the
    /// transactional id. `limit` is the smallest `max.message.bytes` of the targets, where they tell it.
    ///
    /// # Errors
    /// [`Kind::Config`] if transactions were asked for and the brokers have none. That a broker does not answer is no
    /// reason to do with less.
    pub async fn open(
        connection: &Connection,
        group: &str,
        asked: Asked,
        limit: Option<u64>,
    ) -> Result<(Self, String)> {
        let group = group.to_owned();
        let sink = |producer, delivery| Self {
            producer: Arc::new(producer),
            memory: Arc::default(),
            delivery,
            group: group.clone(),
            connection: connection.clone(),
        };
        if asked == Asked::Exactly(Delivery::Plain) {
            return Ok((sink(Producer::with_limit(connection, None, limit)?, Delivery::Plain), "asked for".into()));
        }
        let (id, to) = (group.clone(), connection.clone());
        let begun = blocking(move || {
            let producer = Producer::with_limit(&to, Some(&id), limit)?;
            Ok((producer.init_transactions(START)?, producer))
        })
        .await;
        match begun {
            Ok((Transactions::Ready, producer)) => {
                let why = if asked == Asked::Auto { "the brokers have transactions" } else { "asked for" };
                Ok((sink(producer, Delivery::Transactional), why.into()))
            }
            Ok((Transactions::Unsupported(why), _)) if asked == Asked::Auto => {
                let why = format!("the brokers have no transactions: {why}");
                Ok((sink(Producer::with_limit(connection, None, limit)?, Delivery::Plain), why))
            }
            Ok((Transactions::Unsupported(why), _)) => Err(Error::config(format!(
                "the brokers have no transactions ({why}): use --delivery plain, with each record at least once"
            ))),
            Err(e) => Err(match e.kind() {
                Kind::Unavailable | Kind::Failed => e.context(
                    "cannot tell whether the brokers have transactions (--delivery plain does without, with each \
                     record at least once)",
                ),
                _ => e,
            }),
        }
    }

    pub fn delivery(&self) -> Delivery {
        self.delivery
    }

    /// The number of records that were committed with their progress; `None` if that is not kept in Kafka, or not
    /// there. Asked after [`Sink::open`], so that no older process can change it any more.
    pub async fn progress(&self, topic: &str) -> Result<Option<u64>> {
        if self.delivery == Delivery::Plain {
            return Ok(None);
        }
        let (connection, group, topic) = (self.connection.clone(), self.group.clone(), topic.to_owned());
        let offset = blocking(move || kafka::committed(&connection, &group, &topic, PATIENCE)).await;
        let offset = offset.map_err(|e| match e.kind() {
            // Seen after a lone broker was cut off in the middle of a commit: its markers were never written.
            Kind::Unavailable => Error::unavailable(format!(
                "{e}. If it stays so, a transaction may be hanging: find it with Kafka's `kafka-transactions.sh \
                 find-hanging`, abort it there, then run the same command again; what it held is sent again"
            )),
            _ => e,
        })?;
        Ok(offset.and_then(|o| u64::try_from(o).ok()))
    }

    /// Commits "nothing sent yet", so that progress that is missing later means that it was lost.
    pub async fn begin_progress(&self, topic: &str) -> Result<()> {
        if self.delivery == Delivery::Plain {
            return Ok(());
        }
        let producer = self.producer.clone();
        blocking(move || producer.begin_transaction()).await?;
        self.commit(topic, 0).await
    }

    /// Sends a batch and waits for every acknowledgement: what became of each row. With transactions, nothing of it is
    /// to be seen before [`Sink::commit`], and a transaction is open at the end that has what was taken.
    ///
    /// # Errors
    /// What stopped it. That a topic refuses a record for its own sake is none.
    pub async fn send(&self, batch: Arc<Batch>, timestamps: Timestamps) -> Result<Vec<Answer>> {
        let (producer, memory) = (self.producer.clone(), self.memory.clone());
        let transactional = self.delivery == Delivery::Transactional;
        blocking(move || {
            let mut memory = memory.lock().unwrap_or_else(|e| e.into_inner());
            Sending { producer: &producer, batch: &batch, timestamps, transactional, first_token: 0 }.all(&mut memory)
        })
        .await
    }

    /// Makes the batch visible, and `end` the progress.
    pub async fn commit(&self, topic: &str, end: u64) -> Result<()> {
        if self.delivery == Delivery::Plain {
            return Ok(());
        }
        let (producer, group, topic) = (self.producer.clone(), self.group.clone(), topic.to_owned());
        let offset = i64::try_from(end).map_err(|_| Error::internal("more records than Kafka has offsets"))?;
        blocking(move || producer.commit_transaction(&group, &topic, offset, PATIENCE)).await
    }

    /// Ends an open transaction without its records, as far as the brokers can be reached: they do it by themselves
    /// otherwise, when the next run begins or time is up.
    pub async fn abort(&self) {
        if self.delivery == Delivery::Plain {
            return;
        }
        let producer = self.producer.clone();
        if let Err(e) = blocking(move || producer.abort_transaction(Duration::from_secs(10))).await {
            tracing::debug!("the open transaction was not aborted: {e}");
        }
    }
}

/// One batch on its way.
struct Sending<'a> {
    producer: &'a Producer,
    batch: &'a Batch,
    timestamps: Timestamps,
    transactional: bool,
    /// Of this attempt.
    first_token: usize,
}

impl Sending<'_> {
    /// Brokers refuse all records that were sent together when one of them is not to be taken. So a batch in which
    /// something was refused is sent again one by one, and what is refused then is left out. A transaction in which
    /// something was refused cannot be committed: each is aborted and redone. Without transactions what was taken stays
    /// taken, and what was refused with it goes behind it: its order is lost, which is better than to have it twice.
    fn all(mut self, memory: &mut Memory) -> Result<Vec<Answer>> {
        let too_large = &mut memory.too_large;
        let mut answers: Vec<Option<Answer>> = self.rows().map(|(raw, topic)| known(too_large, topic, &raw)).collect();
        let (mut one_by_one, mut after_refusal) = (false, false);
        loop {
            self.first_token = memory.tokens;
            memory.tokens += answers.len();
            if self.transactional {
                self.producer.begin_transaction()?;
            }
            let refused = match self.once(&mut answers, one_by_one) {
                Ok(refused) if refused.is_empty() && answers.iter().all(Option::is_some) => {
                    return Ok(answers.into_iter().flatten().collect());
                }
                Ok(refused) if !refused.is_empty() => refused,
                failed => {
                    let missing = || Error::unavailable("some records were not acknowledged");
                    let e = failed.err().unwrap_or_else(missing);
                    // The library counts on behind a refused record, and the broker does not: it notices in the next
                    // transaction, which is lost by that, and begins to count anew.
                    if !(self.transactional && after_refusal) || self.producer.fatal().is_some() {
                        // That another process took over is the reason for whatever else failed.
                        return Err(self.producer.fatal().unwrap_or(e));
                    }
                    Vec::new()
                }
            };
            after_refusal = !refused.is_empty();
            if self.transactional {
                self.producer.abort_transaction(PATIENCE)?;
                answers.iter_mut().filter(|a| matches!(a, Some(Answer::Taken(..)))).for_each(|a| *a = None);
            }
            if one_by_one {
                for (token, refusal) in refused {
                    if let (Refusal::TooLarge, Some((_, place))) = (refusal, self.batch.rows.get(token)) {
                        too_large.insert(place.topic.clone(), size(&self.batch.raw.get(token)));
                    }
                    if let Some(answer) = answers.get_mut(token) {
                        *answer = Some(Answer::Refused(refusal));
                    }
                }
                for (answer, (raw, topic)) in answers.iter_mut().zip(self.rows()) {
                    *answer = answer.or_else(|| known(too_large, topic, &raw));
                }
            }
            one_by_one = true;
        }
    }

    fn rows(&self) -> impl Iterator<Item = (RawRecord<'_>, &str)> {
        self.batch.raw.iter().zip(self.batch.rows.iter().map(|(_, place)| place.topic.as_str()))
    }

    /// Sends what has no answer yet; what was refused. Ends early where that makes the rest pointless.
    fn once(&self, answers: &mut [Option<Answer>], one_by_one: bool) -> Result<Vec<(usize, Refusal)>> {
        let mut refused = Vec::new();
        let named = |token: usize, e: Error| match self.batch.rows.get(token) {
            Some((id, _)) => e.context(format!("record {id}")),
            None => e,
        };
        for (token, (raw, (_, place))) in self.batch.raw.iter().zip(&self.batch.rows).enumerate() {
            if answers.get(token).is_none_or(Option::is_some) {
                continue;
            }
            let record = NewRecord {
                topic: &place.topic,
                partition: place.partition,
                key: raw.key,
                value: raw.value,
                headers: raw.headers.iter(),
                timestamp_ms: (self.timestamps == Timestamps::Keep).then_some(raw.timestamp_ms),
                token: self.first_token + token,
            };
            let sent = self.producer.send(record, PATIENCE);
            if one_by_one || sent.is_err() {
                self.acknowledged(answers, &mut refused)?;
            }
            if self.transactional && !refused.is_empty() {
                return Ok(refused);
            }
            sent.map_err(|e| named(token, e))?;
        }
        self.acknowledged(answers, &mut refused)?;
        Ok(refused)
    }

    /// Waits for the answers to what was sent.
    fn acknowledged(&self, answers: &mut [Option<Answer>], refused: &mut Vec<(usize, Refusal)>) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let flushed = self.producer.flush_step();
            // What a broker said of one record tells more than that not all were acknowledged.
            let mut failed = None;
            for ack in self.producer.acks() {
                let Some(token) = ack.token.checked_sub(self.first_token) else { continue };
                let Some(slot) = answers.get_mut(token) else { continue };
                match (ack.result, ack.refusal) {
                    (Ok((partition, offset)), _) => *slot = Some(Answer::Taken(partition, offset)),
                    (Err(_), Some(refusal)) => refused.push((token, refusal)),
                    (Err(e), None) => failed = failed.or(Some((token, e))),
                }
            }
            // With transactions one refusal ends all: the library sends no more, and what it had is to be redone.
            if self.transactional && !refused.is_empty() {
                return Ok(());
            }
            if let Some((token, e)) = failed {
                return Err(match self.batch.rows.get(token) {
                    Some((id, _)) => e.context(format!("record {id}")),
                    None => e,
                });
            }
            if flushed? {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(self.producer.unacknowledged());
            }
        }
    }
}

fn size(raw: &RawRecord<'_>) -> usize {
    sent_size(raw.key, raw.value, &raw.headers.iter().collect::<Vec<_>>())
}

/// The answer to a record that is as large as one that was refused.
fn known(too_large: &BTreeMap<String, usize>, topic: &str, raw: &RawRecord<'_>) -> Option<Answer> {
    let limit = too_large.get(topic)?;
    (size(raw) >= *limit).then_some(Answer::Refused(Refusal::TooLarge))
}
