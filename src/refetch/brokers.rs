//! What a refetch asks of the brokers: topics, how logs stand, records at offsets.
//!
//! Decides nothing. What does not answer is told as such, and is no answer.

use crate::error::{Error, Result};
use crate::host::{self, blocking};
use crate::kafka::{Admin, Connection, Found, OriginalsReader, Tell, Wanted};
use crate::record::TopicPartition;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long brokers may take to answer a question.
const ASK: Duration = Duration::from_secs(10);
/// Before a topic that is not there is asked for again.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub struct Brokers {
    admin: Arc<Admin>,
    reader: Arc<OriginalsReader>,
    /// How long a read may get nothing.
    patience: Duration,
}

impl Brokers {
    /// # Errors
    /// [`crate::Kind::Config`] if librdkafka refuses the settings.
    pub fn new(connection: &Connection, patience: Duration) -> Result<Self> {
        let admin = Arc::new(Admin::read_uncommitted(connection)?);
        Ok(Self { admin, reader: Arc::new(OriginalsReader::new(connection)?), patience })
    }

    /// Waits until one answers, and that they are of the archive's cluster.
    ///
    /// # Errors
    /// As [`Admin::wait`]; [`crate::Kind::Config`] for another cluster.
    pub async fn check(&self, cluster_id: Option<&str>, timeout: Duration) -> Result<()> {
        let admin = self.admin.clone();
        let ours = blocking(move || {
            admin.wait(timeout)?;
            Ok(admin.cluster_id(ASK))
        });
        if let (Some(theirs), Some(ours)) = (cluster_id, ours.await?)
            && theirs != ours
        {
            return Err(Error::config(format!(
                "the archive is of Kafka cluster {theirs}, these brokers are of {ours}: give the brokers of that cluster, or \
                 originals of others would be read"
            )));
        }
        Ok(())
    }

    /// A topic by name or id; that there is none is concluded from two answers.
    ///
    /// # Errors
    /// As [`Admin::find`].
    pub async fn find(&self, name_or_id: &str) -> Result<Option<Found>> {
        let found = self.find_once(name_or_id).await?;
        if found.is_some() {
            return Ok(found);
        }
        host::sleep(AGAIN).await;
        self.find_once(name_or_id).await
    }

    async fn find_once(&self, name_or_id: &str) -> Result<Option<Found>> {
        let (admin, name) = (self.admin.clone(), name_or_id.to_owned());
        blocking(move || admin.find(&name, ASK)).await
    }

    /// Log start and end of each partition whose leader answers.
    ///
    /// # Errors
    /// [`crate::Kind::Unavailable`] if none does.
    pub async fn logs(&self, partitions: Vec<TopicPartition>) -> Result<BTreeMap<TopicPartition, (i64, i64)>> {
        let admin = self.admin.clone();
        blocking(move || admin.watermarks_of(&partitions, ASK)).await
    }

    /// As [`OriginalsReader::read`]; blocks.
    pub fn read(&self, wanted: Vec<Wanted>, tell: &mut Tell<'_>) -> Result<()> {
        self.reader.read(wanted, self.patience, tell)
    }

    /// Fetch requests that were sent so far; blocks for a moment.
    pub fn fetches(&self) -> u64 {
        self.reader.fetches()
    }
}
