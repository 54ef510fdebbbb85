//! Questions to the brokers: topics, partitions, log start and end, topic ids, cluster id.
//!
//! Every call blocks for at most its timeout; call from a blocking thread.

use super::consumer::{Context, Polled};
use super::{Connection, Consumer, describe, error, refusal};
use crate::error::{Error, Result, did_you_mean};
use crate::record::TopicPartition;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A topic as the brokers describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicInfo {
    pub name: String,
    /// Ascending.
    pub partitions: Vec<i32>,
}

/// A client that only asks.
pub struct Admin {
    consumer: Consumer,
    connection: Connection,
    brokers: String,
    /// It was said that the brokers do not tell topic ids.
    told_no_ids: AtomicBool,
}

/// What the brokers answer when asked for a topic's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicId {
    /// As Kafka prints it: 22 characters of base64 (KIP-516).
    Is(String),
    /// They answer, but tell no ids (before Kafka 2.8).
    NotTold,
    /// There is no such topic now.
    NoTopic,
}

/// How long brokers may take to answer for the first time before it is told that they are waited for.
const QUIET: Duration = Duration::from_secs(5);
/// A topic that was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub topic: TopicInfo,
    /// `None` where the brokers tell no ids.
    pub id: Option<String>,
}

/// librdkafka's internal topics and Kafka's own, which a pattern never means.
fn is_internal(topic: &str) -> bool {
    topic.starts_with("__")
}

impl Admin {
    pub fn new(connection: &Connection) -> Result<Self> {
        Self::of_group(connection, "dlq-archiver-admin")
    }

    /// One whose [`Admin::watermarks`] go to the log end, records of open transactions included.
    pub fn read_uncommitted(connection: &Connection) -> Result<Self> {
        let mut config = connection.consumer_config("dlq-archiver-admin");
        config.set("isolation.level", "read_uncommitted");
        Self::of(connection, config)
    }

    /// One that can tell what `group` has committed. It does not join the group.
    pub fn of_group(connection: &Connection, group: &str) -> Result<Self> {
        Self::of(connection, connection.consumer_config(group))
    }

    fn of(connection: &Connection, mut config: ClientConfig) -> Result<Self> {
        // That a broker closes connections is told, too: it may be why it does not answer.
        config.set("log.connection.close", "true");
        Ok(Self {
            consumer: Consumer::of(config)?,
            connection: connection.clone(),
            brokers: connection.brokers().to_owned(),
            told_no_ids: AtomicBool::new(false),
        })
    }

    pub(super) fn client(&self) -> &BaseConsumer<Context> {
        self.consumer.inner()
    }

    pub(super) fn error(&self, doing: &str, e: &rdkafka::error::KafkaError) -> Error {
        let doing = format!("{doing} (brokers {})", self.brokers);
        error(&doing, e, self.consumer.last_error())
    }

    /// The cluster's id; `None` where the brokers do not tell it.
    pub fn cluster_id(&self, timeout: Duration) -> Option<String> {
        self.client().client().fetch_cluster_id(timeout).filter(|id| !id.is_empty())
    }

    /// Waits until a broker answers.
    ///
    /// # Errors
    /// [`crate::Kind::Unavailable`] with what the connection said, if none does within `timeout`;
    /// [`crate::Kind::Config`] if one refuses, twice.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        let (began, deadline) = (Instant::now(), Instant::now() + timeout);
        let mut attempts = 0;
        let mut told = false;
        loop {
            attempts += 1;
            let step = Duration::from_secs(if attempts < 4 { 1 } else { 5 });
            let step = step.min(deadline.saturating_duration_since(Instant::now())).max(Duration::from_millis(100));
            let Err(e) = self.client().fetch_metadata(Some("__dlq_archiver_probe"), step) else { return Ok(()) };
            // Serves what the connections said; asking alone does not.
            while matches!(self.consumer.poll(Duration::from_millis(50), |_| {}), Polled::Failed(_)) {}
            let over = Instant::now() >= deadline;
            // Another broker may answer, or this one once it has read who its users are.
            if attempts > 1 || over {
                let said = self.consumer.last_error();
                if let Some(refusal) = said.and_then(|said| refusal::find(&self.connection, &said)) {
                    return Err(Error::config(refusal));
                }
            }
            if over {
                return Err(Error::unavailable(format!(
                    "{}. Check --brokers and whether they run (waited {} s, --start-timeout)",
                    self.error("no broker answers", &e).message(),
                    timeout.as_secs()
                )));
            }
            // Where the wait is over soon, its end says all.
            if !told && timeout >= QUIET * 3 && began.elapsed() >= QUIET {
                told = true;
                let error = self.error("no broker answers yet", &e);
                tracing::warn!("{error}. Waiting for {} s at most (--start-timeout)", timeout.as_secs());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Topics by exact name, or by regular expression if the name begins with `^` (Kafka's own topics left out).
    ///
    /// # Errors
    /// [`crate::Kind::Config`] for a name that does not exist, or a pattern that is not a regular expression.
    pub fn topics(&self, names: &[String], timeout: Duration) -> Result<Vec<TopicInfo>> {
        let metadata = self.client().fetch_metadata(None, timeout).map_err(|e| self.error("cannot list topics", &e))?;
        let mut all: Vec<TopicInfo> = metadata
            .topics()
            .iter()
            .filter(|t| t.error().is_none())
            .map(|t| {
                let mut partitions: Vec<i32> = t.partitions().iter().map(|p| p.id()).collect();
                partitions.sort_unstable();
                TopicInfo { name: t.name().to_owned(), partitions }
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        let mut chosen = Vec::new();
        for name in names {
            if name.starts_with('^') {
                let pattern = pattern(name)?;
                chosen.extend(all.iter().filter(|t| !is_internal(&t.name) && pattern.is_match(&t.name)).cloned());
            } else {
                let found = all.iter().find(|t| t.name == *name).cloned();
                chosen.push(found.ok_or_else(|| self.unknown_topic(name, &all))?);
            }
        }
        chosen.sort_by(|a, b| a.name.cmp(&b.name));
        chosen.dedup();
        Ok(chosen)
    }

    fn unknown_topic(&self, name: &str, all: &[TopicInfo]) -> Error {
        let hint = did_you_mean(name, all.iter().map(|t| t.name.as_str()).filter(|t| !is_internal(t)));
        Error::config(format!(
            "topic {name:?} does not exist on {} (or this user may not describe it){hint}",
            self.brokers
        ))
    }

    /// Log start and last stable offset of a partition, asked from its leader.
    ///
    /// # Errors
    /// [`crate::Kind::Unavailable`] if the leader does not answer.
    pub fn watermarks(&self, tp: &TopicPartition, timeout: Duration) -> Result<(i64, i64)> {
        self.client()
            .fetch_watermarks(&tp.topic, tp.partition, timeout)
            .map_err(|e| self.error(&format!("cannot ask for the offsets of {tp}"), &e))
    }

    /// First offset whose record is at or behind `timestamp_ms`; `None` if there is none.
    ///
    /// # Errors
    /// As [`Admin::watermarks`]; brokers that cannot seek by time answer with an error of their own.
    pub fn offset_for_time(&self, tp: &TopicPartition, timestamp_ms: i64, timeout: Duration) -> Result<Option<i64>> {
        let doing = format!("cannot find an offset of {tp} by time");
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&tp.topic, tp.partition, Offset::Offset(timestamp_ms))
            .map_err(|e| error(&doing, &e, None))?;
        let list = self.client().offsets_for_times(list, timeout).map_err(|e| self.error(&doing, &e))?;
        let elements = list.elements();
        let element = elements.first().ok_or_else(|| Error::unavailable(doing.clone()))?;
        element.error().map_err(|e| self.error(&doing, &e))?;
        Ok(match element.offset() {
            Offset::Offset(offset) => Some(offset),
            _ => None,
        })
    }

    /// The topic's id, asked from the partition's leader: it knows of a topic made anew before it hands out the first
    /// of its records. Asked each time; only brokers that have no ids are taken at their word.
    ///
    /// # Errors
    /// [`crate::Kind::Unavailable`] if there is no answer: it says nothing about the topic.
    pub fn topic_id(&self, tp: &TopicPartition, timeout: Duration) -> Result<TopicId> {
        let doing = format!("cannot ask for the id of topic {}", tp.topic);
        let unavailable = |why: String| Error::unavailable(format!("{doing} (brokers {}): {why}", self.brokers));
        let metadata =
            self.client().fetch_metadata(Some(&tp.topic), timeout).map_err(|e| unavailable(e.to_string()))?;
        let Some(topic) = metadata.topics().iter().find(|t| t.name() == tp.topic) else {
            return Ok(TopicId::NoTopic);
        };
        match topic.error().map(Code::from) {
            None => {}
            Some(code) if is_no_topic(code) => return Ok(TopicId::NoTopic),
            Some(code) => return Err(unavailable(code.to_string())),
        }
        // A topic made anew may have fewer partitions: any leader tells.
        let part = topic.partitions().iter().find(|p| p.id() == tp.partition).or(topic.partitions().first());
        let leader = part.map(|p| p.leader()).filter(|l| *l >= 0);
        let leader = leader.ok_or_else(|| unavailable(format!("partition {} has no leader", tp.partition)))?;
        match describe::topic_id(self.client(), &tp.topic, leader, timeout) {
            Ok(Some(id)) => Ok(TopicId::Is(id)),
            Ok(None) | Err(Code::UnsupportedFeature | Code::UnsupportedVersion) => {
                if !self.told_no_ids.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "the brokers do not tell topic ids: a topic that is deleted and made anew can only be noticed \
                         while its log is shorter than the archive"
                    );
                }
                Ok(TopicId::NotTold)
            }
            Err(code) if is_no_topic(code) => Ok(TopicId::NoTopic),
            Err(code) => Err(unavailable(code.to_string())),
        }
    }

    /// A topic by its name, or by its id as Kafka prints it where none has that name; `None` if there is neither.
    ///
    /// # Errors
    /// [`crate::Kind::Unavailable`] if there is no answer, or this user may not describe it: it says nothing about the
    /// topic.
    pub fn find(&self, name_or_id: &str, timeout: Duration) -> Result<Option<Found>> {
        let name = match self.topic_id(&TopicPartition::new(name_or_id, 0), timeout)? {
            TopicId::NoTopic => match self.named(name_or_id, timeout)? {
                Some(name) => name,
                None => return Ok(None),
            },
            _ => name_or_id.to_owned(),
        };
        let id = match self.topic_id(&TopicPartition::new(&name, 0), timeout)? {
            TopicId::Is(id) => Some(id),
            TopicId::NotTold => None,
            TopicId::NoTopic => return Ok(None),
        };
        let topic = self.topics(std::slice::from_ref(&name), timeout)?.into_iter().next();
        Ok(topic.map(|topic| Found { topic, id }))
    }

    /// The name of the topic with this id. Brokers are not asked by id, which librdkafka has no call for: all topics are
    /// described.
    fn named(&self, id: &str, timeout: Duration) -> Result<Option<String>> {
        let is_id = id.len() == 22 && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
        if !is_id {
            return Ok(None);
        }
        let unavailable = |why: String| Error::unavailable(format!("cannot find the topic with id {id}: {why}"));
        let metadata = self.client().fetch_metadata(None, timeout).map_err(|e| unavailable(e.to_string()))?;
        let Some(broker) = metadata.brokers().first().map(|b| b.id()) else {
            return Err(unavailable("no broker answers".into()));
        };
        let there = metadata.topics().iter().filter(|t| t.error().is_none());
        let names: Vec<&str> = there.map(rdkafka::metadata::MetadataTopic::name).collect();
        for names in names.chunks(describe::AT_A_TIME) {
            let told = describe::topic_ids(self.client(), names, broker, timeout);
            let told = told.map_err(|e| unavailable(e.to_string()))?;
            if let Some((name, _)) = told.into_iter().find(|(_, told)| matches!(told, Ok(Some(told)) if told == id)) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Those of the topics that this user may not write to, as far as the brokers tell what it may.
    ///
    /// # Errors
    /// If they do not answer.
    pub fn unwritable(&self, topics: &[String], timeout: Duration) -> Result<BTreeSet<String>> {
        let doing = "cannot ask what may be written to";
        let metadata = self.client().fetch_metadata(topics.first().map(String::as_str), timeout);
        let metadata = metadata.map_err(|e| self.error(doing, &e))?;
        let Some(broker) = metadata.brokers().first().map(|b| b.id()) else { return Ok(BTreeSet::new()) };
        let names: Vec<&str> = topics.iter().map(String::as_str).collect();
        let mut unwritable = BTreeSet::new();
        for names in names.chunks(describe::AT_A_TIME) {
            let told = describe::writable(self.client(), names, broker, timeout);
            let told = told.map_err(|e| Error::unavailable(format!("{doing}: {e}")))?;
            unwritable.extend(told.into_iter().filter(|(_, may)| *may == Some(false)).map(|(name, _)| name));
        }
        Ok(unwritable)
    }

    /// The offset that the group of [`Admin::of_group`] has committed; `None` if none.
    ///
    /// # Errors
    /// [`crate::Kind::Unavailable`] if the group's coordinator does not answer.
    pub fn committed(&self, tp: &TopicPartition, timeout: Duration) -> Result<Option<i64>> {
        let doing = format!("cannot ask for the group's offset of {tp}");
        let mut list = TopicPartitionList::new();
        list.add_partition(&tp.topic, tp.partition);
        let list = self.client().committed_offsets(list, timeout).map_err(|e| self.error(&doing, &e))?;
        Ok(match list.elements().first().map(|e| e.offset()) {
            Some(Offset::Offset(offset)) => Some(offset),
            _ => None,
        })
    }

    /// Deletes a topic. For tests.
    pub async fn delete_topic(connection: &Connection, name: &str) -> Result<()> {
        use rdkafka::admin::{AdminClient, AdminOptions};
        let doing = format!("cannot delete topic {name}");
        let admin: AdminClient<rdkafka::client::DefaultClientContext> =
            connection.client_config().create().map_err(|e| error(&doing, &e, None))?;
        let results = admin.delete_topics(&[name], &AdminOptions::new()).await.map_err(|e| error(&doing, &e, None))?;
        match results.into_iter().next() {
            Some(Err((_, code))) => Err(Error::failed(format!("{doing}: {code}"))),
            _ => Ok(()),
        }
    }

    /// Deletes a partition's records below `before`, as retention does. For tests.
    pub async fn delete_records(connection: &Connection, tp: &TopicPartition, before: i64) -> Result<()> {
        use rdkafka::admin::{AdminClient, AdminOptions};
        let doing = format!("cannot delete records of {tp}");
        let admin: AdminClient<rdkafka::client::DefaultClientContext> =
            connection.client_config().create().map_err(|e| error(&doing, &e, None))?;
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&tp.topic, tp.partition, Offset::Offset(before))
            .map_err(|e| error(&doing, &e, None))?;
        let done = admin.delete_records(&list, &AdminOptions::new()).await.map_err(|e| error(&doing, &e, None))?;
        done.elements().iter().try_for_each(|e| e.error().map_err(|e| error(&doing, &e, None)))
    }

    /// Makes a topic with replication factor 1 and these settings. For tests and benches.
    pub async fn create_topic(
        connection: &Connection,
        name: &str,
        partitions: i32,
        config: &[(&str, &str)],
    ) -> Result<()> {
        use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
        let doing = format!("cannot create topic {name}");
        let admin: AdminClient<rdkafka::client::DefaultClientContext> =
            connection.client_config().create().map_err(|e| error(&doing, &e, None))?;
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        for (key, value) in config {
            topic = topic.set(key, value);
        }
        let results = admin.create_topics([&topic], &AdminOptions::new()).await.map_err(|e| error(&doing, &e, None))?;
        match results.into_iter().next() {
            Some(Err((_, code))) => Err(Error::failed(format!("{doing}: {code}"))),
            _ => Ok(()),
        }
    }
}

/// A topic's regular expression.
///
/// # Errors
/// [`crate::Kind::Config`] in one line.
pub fn pattern(text: &str) -> Result<regex::Regex> {
    regex::Regex::new(text).map_err(|e| {
        let why = e.to_string();
        let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ");
        Error::config(format!("--topic {text:?} is not a regular expression: {why}"))
    })
}

fn is_no_topic(code: Code) -> bool {
    matches!(code, Code::UnknownTopicOrPartition | Code::UnknownTopic)
}
