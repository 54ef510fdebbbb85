//! Gets batches into Kafka: in transactions, or plainly.
//!
//! Owns the producer and what a batch's success means. Knows no bucket: the caller writes the list of what was sent
//! between [`Sink::send`] and [`Sink::commit`]. Invariant: a batch that is not committed is not seen by readers of
//! committed records (transactional), or is sent again (plain).

use super::batch::Batch;
use super::plan::{Delivery, Timestamps};
use super::rules::sent_size;
use super::target::{Produce, Target};
use crate::error::{Error, Kind, Result};
use crate::kafka::{Refusal, Transactions};
use crate::record::RawRecord;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

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

/// The way into Kafka.
pub struct Sink {
    target: Arc<dyn Target>,
    producer: Box<dyn Produce>,
    delivery: Delivery,
    group: String,
    /// Sizes that topics have refused: what is as large is not tried again.
    too_large: BTreeMap<String, usize>,
    /// The library counts on behind a refused record, and the broker does not: it notices in a later transaction, of this
    /// batch or another, which is lost by that. Then both begin to count anew.
    miscounts: bool,
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
        target: &Arc<dyn Target>,
        group: &str,
        asked: Asked,
        limit: Option<u64>,
    ) -> Result<(Self, String)> {
        let sink = |producer, delivery| Self {
            target: target.clone(),
            producer,
            delivery,
            group: group.to_owned(),
            too_large: BTreeMap::new(),
            miscounts: false,
        };
        if asked == Asked::Exactly(Delivery::Plain) {
            return Ok((sink(target.producer(None, limit).await?, Delivery::Plain), "asked for".into()));
        }
        let begun: Result<_> = async {
            let producer = target.producer(Some(group), limit).await?;
            Ok((producer.init_transactions(START).await?, producer))
        }
        .await;
        match begun {
            Ok((Transactions::Ready, producer)) => {
                let why = if asked == Asked::Auto { "the brokers have transactions" } else { "asked for" };
                Ok((sink(producer, Delivery::Transactional), why.into()))
            }
            Ok((Transactions::Unsupported(why), _)) if asked == Asked::Auto => {
                let why = format!("the brokers have no transactions: {why}");
                Ok((sink(target.producer(None, limit).await?, Delivery::Plain), why))
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
        let offset = self.target.committed(&self.group, topic, PATIENCE).await;
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
        self.producer.begin().await?;
        self.commit(topic, 0).await
    }

    /// Sends a batch and waits for every acknowledgement: what became of each row. With transactions, nothing of it is
    /// to be seen before [`Sink::commit`], and a transaction is open at the end that has what was taken.
    ///
    /// Brokers refuse all records that were sent together when one of them is not to be taken. So a batch in which
    /// something was refused is sent again one by one, and what is refused then is left out. A transaction in which
    /// something was refused cannot be committed: each is aborted and redone. Without transactions what was taken stays
    /// taken, and what was refused with it goes behind it: its order is lost, which is better than to have it twice.
    ///
    /// # Errors
    /// What stopped it. That a topic refuses a record for its own sake is none.
    pub async fn send(&mut self, batch: &Arc<Batch>, timestamps: Timestamps) -> Result<Vec<Answer>> {
        let transactional = self.delivery == Delivery::Transactional;
        let mut answers: Vec<Option<Answer>> =
            rows(batch).map(|(raw, topic)| known(&self.too_large, topic, &raw)).collect();
        let mut one_by_one = false;
        loop {
            if transactional {
                self.producer.begin().await?;
            }
            let refused = match self.once(batch, timestamps, &mut answers, one_by_one).await {
                Ok(refused) if refused.is_empty() && answers.iter().all(Option::is_some) => {
                    return Ok(answers.into_iter().flatten().collect());
                }
                Ok(refused) if !refused.is_empty() => refused,
                failed => {
                    let missing = || Error::unavailable("some records were not acknowledged");
                    let e = failed.err().unwrap_or_else(missing);
                    if !std::mem::take(&mut self.miscounts) || self.producer.fatal().is_some() {
                        // That another process took over is the reason for whatever else failed.
                        return Err(self.producer.fatal().unwrap_or(e));
                    }
                    Vec::new()
                }
            };
            if transactional {
                self.miscounts |= !refused.is_empty();
                self.producer.abort(PATIENCE).await?;
                answers.iter_mut().filter(|a| matches!(a, Some(Answer::Taken(..)))).for_each(|a| *a = None);
            }
            if one_by_one {
                for (row, refusal) in refused {
                    if let (Refusal::TooLarge, Some(of)) = (refusal, batch.rows.get(row)) {
                        self.too_large.insert(of.place.topic.clone(), size(&batch.raw.get(row)));
                    }
                    if let Some(answer) = answers.get_mut(row) {
                        *answer = Some(Answer::Refused(refusal));
                    }
                }
                for (answer, (raw, topic)) in answers.iter_mut().zip(rows(batch)) {
                    *answer = answer.or_else(|| known(&self.too_large, topic, &raw));
                }
            }
            one_by_one = true;
        }
    }

    /// Sends what has no answer yet; what was refused. Ends early where that makes the rest pointless.
    async fn once(
        &self,
        batch: &Arc<Batch>,
        timestamps: Timestamps,
        answers: &mut [Option<Answer>],
        one_by_one: bool,
    ) -> Result<Vec<(usize, Refusal)>> {
        let left: Vec<usize> =
            answers.iter().enumerate().filter(|(_, answer)| answer.is_none()).map(|(row, _)| row).collect();
        let mut refused = Vec::new();
        for rows in left.chunks(if one_by_one { 1 } else { left.len().max(1) }) {
            let told = self.producer.send(batch, rows, timestamps, PATIENCE).await;
            for (row, partition, offset) in told.taken {
                if let Some(answer) = answers.get_mut(row) {
                    *answer = Some(Answer::Taken(partition, offset));
                }
            }
            refused.extend(told.refused);
            if self.delivery == Delivery::Transactional && !refused.is_empty() {
                break;
            }
            if let Some(e) = told.failed {
                return Err(e);
            }
        }
        Ok(refused)
    }

    /// Makes the batch visible, and `end` the progress.
    pub async fn commit(&self, topic: &str, end: u64) -> Result<()> {
        if self.delivery == Delivery::Plain {
            return Ok(());
        }
        let offset = i64::try_from(end).map_err(|_| Error::internal("more records than Kafka has offsets"))?;
        self.producer.commit(&self.group, topic, offset, PATIENCE).await
    }

    /// Ends an open transaction without its records, as far as the brokers can be reached: they do it by themselves
    /// otherwise, when the next run begins or time is up.
    pub async fn abort(&self) {
        if self.delivery == Delivery::Plain {
            return;
        }
        if let Err(e) = self.producer.abort(Duration::from_secs(10)).await {
            tracing::debug!("the open transaction was not aborted: {e}");
        }
    }
}

/// Records of a batch, each with its target.
fn rows(batch: &Batch) -> impl Iterator<Item = (RawRecord<'_>, &str)> {
    batch.raw.iter().zip(batch.rows.iter().map(|row| row.place.topic.as_str()))
}

fn size(raw: &RawRecord<'_>) -> usize {
    sent_size(raw.key, raw.value, &raw.headers.iter().collect::<Vec<_>>())
}

/// The answer to a record that is as large as one that was refused.
fn known(too_large: &BTreeMap<String, usize>, topic: &str, raw: &RawRecord<'_>) -> Option<Answer> {
    let limit = too_large.get(topic)?;
    (size(raw) >= *limit).then_some(Answer::Refused(Refusal::TooLarge))
}
