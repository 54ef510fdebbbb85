//! All of Kafka: the only module that uses rdkafka.
//!
//! Owns connections and their settings, reading ([`Consumer`], [`RangeReader`]), writing ([`Producer`]), questions to
//! the brokers ([`Admin`]) and the embedded broker of the demo ([`MockBroker`]). Knows nothing of the archive.
//! Invariant: what is read or written are the record's bytes, header names that are not UTF-8 or hold NUL included.

mod admin;
mod consumer;
mod limits;
mod logs;
pub mod memory;
mod message;
mod mock;
mod producer;
mod range;

pub use admin::{Admin, TopicId, TopicInfo, pattern};
pub use consumer::{Consumer, Polled, Rebalance};
pub use limits::topic_settings;
pub use logs::{Peeked, peek};
pub use message::Message;
pub use mock::MockBroker;
pub use producer::{Ack, NewRecord, Producer, Refusal, Transactions, UNSENDABLE_TIMESTAMP, committed};
pub use range::{RangeEnd, RangeReader};

use crate::error::{Error, Result};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

/// How to reach the brokers: the configuration file, then `--brokers`, then `--kafka-config`, then `-X`, later ones winning.
#[derive(Clone, Default)]
pub struct Connection {
    /// Each with what it is told as.
    properties: Vec<(String, String, String)>,
}

/// Properties that the archive's exactness hangs on.
const FIXED: &[&str] = &[
    "enable.auto.commit",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "enable.partition.eof",
    "isolation.level",
    "group.protocol",
    "partition.assignment.strategy",
    "group.id",
    "transactional.id",
    "enable.idempotence",
];

/// Properties that name a file which has to be there.
const FILES: &[&str] =
    &["ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location", "ssl.crl.location"];

impl Connection {
    pub fn new(brokers: &str) -> Self {
        Self { properties: vec![("bootstrap.servers".into(), brokers.into(), "--brokers".into())] }
    }

    pub fn brokers(&self) -> &str {
        let brokers = self.properties.iter().rev().find(|(k, ..)| k == "bootstrap.servers");
        brokers.map_or("", |(_, v, _)| v)
    }

    /// That each broker is an address: librdkafka would go on trying those that are none.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] with the one that is not.
    pub fn check_brokers(&self) -> Result<()> {
        const PROTOCOLS: [&str; 4] = ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"];
        // librdkafka skips empty ones.
        for address in self.brokers().split(',').map(str::trim).filter(|address| !address.is_empty()) {
            let wrong = |why: &str| {
                Err(Error::config(format!(
                    "--brokers (bootstrap.servers): {address:?} is not a broker's address: {why}. Give HOST:PORT, such as kafka-1:9092, several \
                     with commas between them"
                )))
            };
            let (protocol, rest) = address.split_once("://").unwrap_or(("PLAINTEXT", address));
            if !PROTOCOLS.contains(&protocol.to_ascii_uppercase().as_str()) {
                return wrong(&format!("{protocol}:// does not belong into it"));
            }
            // An IPv6 address without brackets has no port.
            let (host, port) = match rest.rsplit_once(':') {
                Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
                _ => (rest, None),
            };
            if host.is_empty() || host.contains(|c: char| c.is_whitespace() || "/@".contains(c)) {
                return wrong("it has no host name");
            }
            if let Some(port) = port
                && !port.parse::<u16>().is_ok_and(|port| port > 0)
            {
                return wrong(&format!("{port:?} is not a port"));
            }
        }
        Ok(())
    }

    /// Sets one librdkafka property, as kcat's `-X` does.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] for a property that this program has to set itself, or that librdkafka does not know.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        self.set_from("-X ", key, value)
    }

    /// The same, for a property that stands elsewhere: `place` comes before its name in errors.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn set_from(&mut self, place: &str, key: &str, value: &str) -> Result<()> {
        let key = match key {
            "metadata.broker.list" => "bootstrap.servers",
            other => other,
        };
        if FIXED.contains(&key) {
            return Err(Error::config(format!("{place}{key} cannot be set: the archive's exactness depends on it")));
        }
        let mut probe = ClientConfig::new();
        probe.set(key, value);
        if let Err(KafkaError::ClientConfig(_, desc, ..)) = probe.create_native_config() {
            return Err(Error::config(format!("{place}{key}: {}", desc.trim())));
        }
        // librdkafka says of it only that TLS cannot be set up.
        if FILES.contains(&key) && !["", "probe"].contains(&value) && !Path::new(value).exists() {
            return Err(Error::config(format!("{place}{key}: the file {value} does not exist")));
        }
        self.properties.push((key.to_owned(), value.to_owned(), place.trim_end_matches([' ', ':']).to_owned()));
        Ok(())
    }

    /// Reads a `.properties` file as kcat and the Java tools have it: `key=value` lines, `#` comments.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] with file and line.
    pub fn read_properties(&mut self, path: &Path) -> Result<()> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| Error::config(format!("cannot read --kafka-config {}: {e}", path.display())))?;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with(['#', '!']) {
                continue;
            }
            let place = format!("{}:{}: ", path.display(), number + 1);
            let (key, value) = line
                .split_once('=')
                .ok_or_else(|| Error::config(format!("{place}expected key=value, found a line without `=`")))?;
            self.set_from(&place, key.trim(), value.trim())?;
        }
        Ok(())
    }

    fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        // Settings that fit Kafka as well as brokers with a part of its protocol; defaults change, so pinned.
        config
            .set("client.id", "dlq-archiver")
            .set("client.software.name", "dlq-archiver")
            .set("socket.keepalive.enable", "true")
            .set("log.connection.close", "false")
            .set("reconnect.backoff.max.ms", "5000")
            .set_log_level(RDKafkaLogLevel::Info);
        for (key, value, _) in &self.properties {
            config.set(key, value);
        }
        config
    }

    fn consumer_config(&self, group: &str) -> ClientConfig {
        let mut config = self.client_config();
        for (key, value) in [
            ("queued.max.messages.kbytes", "16384"),
            ("check.crcs", "true"),
            ("topic.metadata.refresh.interval.ms", "60000"),
        ] {
            if config.get(key).is_none() {
                config.set(key, value);
            }
        }
        config
            .set("group.id", group)
            .set("group.protocol", "classic")
            .set("partition.assignment.strategy", "range,roundrobin")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            // The other values skip silently where retention was faster.
            .set("auto.offset.reset", "error")
            .set("enable.partition.eof", "true")
            .set("isolation.level", "read_committed");
        config
    }

    /// A property as set, for settings that are not secret.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.properties.iter().rev().find(|(k, ..)| k == key).map(|(_, v, _)| v.as_str())
    }

    /// Properties that are set, by name: values, which may be secrets, and where each stands.
    pub fn in_force(&self) -> Vec<(&str, &str, &str)> {
        let last: BTreeMap<_, _> = self.properties.iter().map(|(k, v, place)| (k.as_str(), (v, place))).collect();
        last.into_iter().map(|(k, (v, place))| (k, v.as_str(), place.as_str())).collect()
    }
}

impl std::fmt::Debug for Connection {
    /// Names brokers and property names, never values: they can be secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keys: Vec<_> = self.properties.iter().map(|(k, ..)| k).collect();
        f.debug_struct("Connection").field("brokers", &self.brokers()).field("properties", &keys).finish()
    }
}

/// What librdkafka told last about a connection, for messages that say why a broker does not answer.
#[derive(Default)]
struct LastError(Mutex<Option<String>>);

impl LastError {
    fn set(&self, text: &str) {
        // "[thrd:...]: " prefixes are for librdkafka's developers.
        let text = text.strip_prefix("[thrd:").and_then(|t| t.split_once("]: ")).map_or(text, |(_, t)| t);
        *self.0.lock().unwrap_or_else(|e| e.into_inner()) = Some(text.to_owned());
    }
    fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }
}

fn log(level: RDKafkaLogLevel, facility: &str, message: &str, last: &LastError) {
    use RDKafkaLogLevel as L;
    if matches!(level, L::Emerg | L::Alert | L::Critical | L::Error) {
        last.set(message);
    }
    match level {
        L::Emerg | L::Alert | L::Critical | L::Error | L::Warning => {
            tracing::debug!(target: "librdkafka", facility, "{message}")
        }
        _ => tracing::trace!(target: "librdkafka", facility, "{message}"),
    }
}

/// Turns a librdkafka error into one whose kind says what to do. `doing` names what was asked for.
fn error(doing: &str, e: &KafkaError, last: Option<String>) -> Error {
    let code = e.rdkafka_error_code();
    let detail = match (&last, code) {
        (Some(last), Some(Code::BrokerTransportFailure | Code::AllBrokersDown | Code::OperationTimedOut)) => {
            last.clone()
        }
        (_, Some(code)) => code.to_string(),
        _ => e.to_string(),
    };
    classify(doing, code, &detail)
}

fn classify(doing: &str, code: Option<Code>, detail: &str) -> Error {
    match code {
        Some(Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch) => {
            Error::fenced(format!("{doing}: {detail} (another process took over)"))
        }
        Some(
            Code::SaslAuthenticationFailed
            | Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::TransactionalIdAuthorizationFailed
            | Code::Authentication
            | Code::UnsupportedSASLMechanism
            | Code::SSL,
        ) => Error::config(format!("{doing}: {detail}. Check the security settings (-X, --kafka-config) and the ACLs")),
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition | Code::InvalidTopic) => {
            Error::config(format!("{doing}: {detail}"))
        }
        Some(
            Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::OperationTimedOut
            | Code::Resolve
            | Code::RequestTimedOut
            | Code::NetworkException
            | Code::LeaderNotAvailable
            | Code::NotLeaderForPartition
            | Code::CoordinatorNotAvailable
            | Code::CoordinatorLoadInProgress
            | Code::NotCoordinator
            | Code::BrokerNotAvailable
            | Code::State
            | Code::InProgress
            | Code::MessageTimedOut
            | Code::NotEnoughReplicas
            | Code::NotEnoughReplicasAfterAppend
            | Code::UnknownBroker
            | Code::OffsetNotAvailable
            | Code::ReplicaNotAvailable
            | Code::FencedLeaderEpoch
            | Code::UnknownLeaderEpoch
            | Code::ConcurrentTransactions
            | Code::TransactionCoordinatorFenced,
        ) => Error::unavailable(format!("{doing}: {detail}")),
        _ => Error::failed(format!("{doing}: {detail}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_none_is_refused_and_not_waited_for() {
        for good in ["kafka", "kafka:9092", "a:1, b:65535,", "SASL_SSL://k:9093", "[::1]:9092", "::1", "10.0.0.1:9092"]
        {
            Connection::new(good).check_brokers().unwrap();
        }
        for (bad, why) in [
            ("127.0.0.1:99999", "not a port"),
            ("k:0", "not a port"),
            ("k:", "not a port"),
            ("kafka://k:9092", "kafka:// does not belong"),
            ("http://k", "http:// does not belong"),
            (":9092", "no host name"),
            ("a b:1", "no host name"),
            ("a/b:1", "no host name"),
        ] {
            let e = Connection::new(bad).check_brokers().unwrap_err();
            assert!(e.exit_code() == 2 && e.message().contains(why), "{bad}: {e}");
        }
    }

    #[test]
    fn a_ca_file_that_is_not_there_is_told() {
        let mut connection = Connection::new("b:1");
        let e = connection.set("ssl.ca.location", "/no/such.pem").unwrap_err();
        assert_eq!((e.exit_code(), e.message()), (2, "-X ssl.ca.location: the file /no/such.pem does not exist"));
        connection.set("ssl.ca.location", "probe").unwrap();
    }
}
