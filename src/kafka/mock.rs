//! The embedded broker of the demo and of tests that need no Java: librdkafka's mock cluster.
//!
//! It keeps about 4 MiB a partition and trims older records, knows no transactions' markers.

use super::error;
use crate::error::Result;
use rdkafka::mocking::{MockCluster, MockCoordinator};
use rdkafka::producer::DefaultProducerContext;
use rdkafka_sys::types::{RDKafkaApiKey, RDKafkaRespErr};

/// A broker on loopback in this process; gone when dropped.
pub struct MockBroker {
    cluster: MockCluster<'static, DefaultProducerContext>,
}

impl MockBroker {
    /// # Errors
    /// [`crate::Kind::Failed`] if it cannot listen on loopback.
    pub fn start() -> Result<Self> {
        Self::start_brokers(1)
    }

    /// A cluster of so many brokers, whose topics with one replica lie on the first. For tests.
    ///
    /// # Errors
    /// As [`MockBroker::start`].
    pub fn start_brokers(brokers: i32) -> Result<Self> {
        let cluster = MockCluster::new(brokers).map_err(|e| error("cannot start the embedded broker", &e, None))?;
        Ok(Self { cluster })
    }

    pub fn brokers(&self) -> String {
        self.cluster.bootstrap_servers()
    }

    /// From now on it is a broker that knows neither transactions nor idempotence.
    pub fn without_transactions(&self) -> Result<()> {
        use RDKafkaApiKey::{AddOffsetsToTxn, AddPartitionsToTxn, EndTxn, InitProducerId, TxnOffsetCommit};
        [InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit]
            .into_iter()
            .try_for_each(|api| self.cluster.apiversion(api, None, None))
            .map_err(|e| error("cannot switch transactions off", &e, None))
    }

    /// From now on it says that it has transactions, and refuses to begin one. For tests.
    pub fn refuses_transactions(&self) {
        self.cluster.request_errors(
            RDKafkaApiKey::InitProducerId,
            &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNSUPPORTED_VERSION; 1000],
        );
    }

    /// From now on it answers everything but fetches. For tests.
    pub fn without_fetches(&self) {
        self.cluster
            .request_errors(RDKafkaApiKey::Fetch, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT; 10_000]);
    }

    /// Broker 1 coordinates the transactions of this id, broker 2 the group of the same name. For tests.
    pub fn part_coordinators(&self, name: &str) -> Result<()> {
        self.cluster
            .coordinator(MockCoordinator::Transaction(name.to_owned()), 1)
            .and_then(|()| self.cluster.coordinator(MockCoordinator::Group(name.to_owned()), 2))
            .map_err(|e| error("cannot place coordinators", &e, None))
    }

    /// From now on this broker is gone. For tests.
    pub fn stop_broker(&self, id: i32) -> Result<()> {
        self.cluster.broker_down(id).map_err(|e| error("cannot stop a broker", &e, None))
    }

    /// From now on each answer takes this long. For tests.
    pub fn slow(&self, each: std::time::Duration) -> Result<()> {
        self.cluster.broker_round_trip_time(1, each).map_err(|e| error("cannot slow the broker down", &e, None))
    }

    /// From now on it is a broker from before topic ids. For tests.
    pub fn without_topic_ids(&self) -> Result<()> {
        self.cluster
            .apiversion(RDKafkaApiKey::Metadata, Some(0), Some(9))
            .map_err(|e| error("cannot switch topic ids off", &e, None))
    }

    pub fn create_topic(&self, topic: &str, partitions: i32) -> Result<()> {
        self.cluster
            .create_topic(topic, partitions, 1)
            .and_then(|()| (0..partitions).try_for_each(|p| self.cluster.partition_leader(topic, p, Some(1))))
            .map_err(|e| error(&format!("cannot create topic {topic}"), &e, None))
    }
}
