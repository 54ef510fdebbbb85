//! Gets batches into Kafka: in transactions, or plainly.
//!
//! Owns the producer and what a batch's success means. Knows no bucket: the caller writes the list of what was sent
//! between [`Sink::send`] and [`Sink::commit`]. Invariant: a batch that is not committed is not seen by readers of
//! committed records (transactional), or is sent again (plain).

use super::batch::Batch;
use super::plan::{Delivery, Timestamps};
use crate::error::{Error, Kind, Result};
use crate::kafka::{self, Connection, NewRecord, Producer, Transactions};
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

/// The way into Kafka.
pub struct Sink {
    producer: Arc<Producer>,
    delivery: Delivery,
    group: String,
    connection: Connection,
}

async fn blocking<T: Send + 'static>(f: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(f).await.map_err(|e| Error::internal(format!("a worker thread failed: {e}")))?
}

impl Sink {
    /// Opens the way into Kafka, fencing an earlier process of the same restore where the brokers can. Also says why
    /// it is this delivery. `group` is the consumer group of the progress, which no member ever joins, and the
    /// transactional id.
    ///
    /// # Errors
    /// [`Kind::Config`] if transactions were asked for and the brokers have none. That a broker does not answer is no
    /// reason to do with less.
    pub async fn open(connection: &Connection, group: &str, asked: Asked) -> Result<(Self, String)> {
        let group = group.to_owned();
        let sink = |producer, delivery| Self {
            producer: Arc::new(producer),
            delivery,
            group: group.clone(),
            connection: connection.clone(),
        };
        if asked == Asked::Exactly(Delivery::Plain) {
            return Ok((sink(Producer::new(connection, None)?, Delivery::Plain), "asked for".into()));
        }
        let (id, to) = (group.clone(), connection.clone());
        let begun = blocking(move || {
            let producer = Producer::new(&to, Some(&id))?;
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
                Ok((sink(Producer::new(connection, None)?, Delivery::Plain), why))
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

    /// Sends a batch and waits for every acknowledgement: partition and offset of each row. With transactions, it is
    /// not to be seen before [`Sink::commit`].
    pub async fn send(&self, batch: Arc<Batch>, timestamps: Timestamps) -> Result<Vec<(i32, i64)>> {
        let (producer, transactional) = (self.producer.clone(), self.delivery == Delivery::Transactional);
        blocking(move || {
            if transactional {
                producer.begin_transaction()?;
            }
            send(&producer, &batch, timestamps)
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

fn send(producer: &Producer, batch: &Batch, timestamps: Timestamps) -> Result<Vec<(i32, i64)>> {
    let mut placed: Vec<Option<(i32, i64)>> = vec![None; batch.rows.len()];
    let named = |token: usize, e: Error| match batch.rows.get(token) {
        Some((id, _)) => e.context(format!("record {id}")),
        None => e,
    };
    let take = |placed: &mut Vec<Option<(i32, i64)>>| {
        for ack in producer.acks() {
            let place = ack.result.map_err(|e| named(ack.token, e))?;
            if let Some(slot) = placed.get_mut(ack.token) {
                *slot = Some(place);
            }
        }
        Ok(())
    };
    let sent = (|| {
        for (token, (raw, (_, place))) in batch.raw.iter().zip(&batch.rows).enumerate() {
            let record = NewRecord {
                topic: &place.topic,
                partition: place.partition,
                key: raw.key,
                value: raw.value,
                headers: raw.headers.iter(),
                timestamp_ms: (timestamps == Timestamps::Keep).then_some(raw.timestamp_ms),
                token,
            };
            producer.send(record, PATIENCE).map_err(|e| named(token, e))?;
        }
        let flushed = producer.flush(PATIENCE);
        // What a broker said of one record tells more than that not all were acknowledged.
        take(&mut placed)?;
        flushed
    })();
    // That another process took over is the reason for whatever else failed.
    sent.map_err(|e: Error| producer.fatal().unwrap_or(e))?;
    let all: Option<Vec<_>> = placed.into_iter().collect();
    all.ok_or_else(|| Error::unavailable("some records were not acknowledged"))
}
