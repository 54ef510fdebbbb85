//! All of Kafka: the only module that uses rdkafka.
//!
//! Owns connections and their settings, reading ([`Consumer`], [`RangeReader`], [`OriginalsReader`]), writing ([`Producer`]), questions to
//! the brokers ([`Admin`]) and the embedded broker of the demo ([`MockBroker`]). Knows nothing of the archive.
//! Invariant: what is read or written are the record's bytes, header names that are not UTF-8 or hold NUL included.

mod admin;
mod certificate;
mod consumer;
mod describe;
mod limits;
mod logs;
pub mod memory;
mod message;
mod mock;
mod originals;
mod producer;
mod properties;
mod range;
mod refusal;
mod transaction;
mod wake;

pub use admin::{Admin, Found, TopicId, TopicInfo, pattern};
pub use consumer::{Consumer, Polled, Rebalance};
pub use limits::topic_settings;
pub use logs::{Peeked, peek};
pub use message::Message;
pub use mock::MockBroker;
pub use originals::{OriginalsReader, Tell, Wanted};
pub use producer::{Ack, NewRecord, Producer, Refusal, UNSENDABLE_TIMESTAMP};
pub use range::{RangeEnd, RangeReader};
pub use transaction::{Transactions, committed};

use crate::error::{Error, Result};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

/// How to reach the brokers: the configuration file, then `--kafka-config`, then `--brokers`, `--client-id` and
/// `--client-rack`, then `-X`, later ones winning.
#[derive(Clone, Default)]
pub struct Connection {
    /// Each with what it is told as.
    properties: Vec<(String, String, String)>,
}

const UNSECURED: &str = "enable.sasl.oauthbearer.unsecure.jwt";

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

    /// Sets one property, by librdkafka's name as kcat's `-X` does, or by the Java client's.
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
        let translated = properties::translate(key, value);
        let translated = translated.map_err(|e| Error::config(format!("{place}{}", e.message())))?;
        let place = place.trim_end_matches([' ', ':']);
        self.properties.extend(translated.into_iter().map(|(key, value)| (key, value, place.to_owned())));
        Ok(())
    }

    /// That the settings of security are whole, as far as it can be said without a broker.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] with what is missing.
    pub fn check_security(&self) -> Result<()> {
        for (this, other) in
            [("ssl.certificate.location", "ssl.key.location"), ("ssl.key.location", "ssl.certificate.location")]
        {
            let other_too = [other.to_owned(), other.replace("location", "pem")];
            if self.get(this).is_some() && !other_too.iter().any(|key| self.get(key).is_some()) {
                return Err(Error::config(format!("{this} is set: set {other} too (one PEM file may be both)")));
            }
        }
        if !self.protocol().starts_with("SASL_") {
            return Ok(());
        }
        let is = |key: &str, value: &str| self.get(key).is_some_and(|set| set.eq_ignore_ascii_case(value));
        let missing = match self.get("sasl.mechanism").unwrap_or("GSSAPI").to_ascii_uppercase().as_str() {
            "GSSAPI" => {
                "security.protocol asks for SASL: set sasl.mechanism to SCRAM-SHA-512, SCRAM-SHA-256, PLAIN or OAUTHBEARER; \
                 GSSAPI, Kerberos, is not built in"
            }
            "OAUTHBEARER" if is("sasl.oauthbearer.method", "oidc") || is(UNSECURED, "true") => return Ok(()),
            "OAUTHBEARER" => {
                "sasl.mechanism=OAUTHBEARER: set sasl.oauthbearer.method=oidc, sasl.oauthbearer.token.endpoint.url, \
                 sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret"
            }
            _ if ["sasl.username", "sasl.password"].iter().all(|key| self.get(key).is_some()) => return Ok(()),
            _ => "security.protocol asks for SASL: set sasl.username and sasl.password",
        };
        Err(Error::config(format!("{missing}. Properties go into --kafka-config, or behind -X")))
    }

    /// PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
    fn protocol(&self) -> String {
        self.get("security.protocol").unwrap_or("PLAINTEXT").to_ascii_uppercase()
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
        // OpenSSL is built in, so that it does not know where this system has its certificates, unless it is told by these.
        if ["SSL_CERT_FILE", "SSL_CERT_DIR"].iter().all(|name| std::env::var_os(name).is_none()) {
            config.set("ssl.ca.location", "probe");
            if cfg!(feature = "oidc") {
                config.set("https.ca.location", "probe");
            }
        }
        for (key, value, _) in &self.properties {
            // librdkafka takes one of the two.
            match key.as_str() {
                "ssl.ca.pem" => config.remove("ssl.ca.location"),
                "https.ca.pem" => config.remove("https.ca.location"),
                _ => &mut config,
            }
            .set(key, value);
        }
        config
    }

    fn consumer_config(&self, group: &str) -> ClientConfig {
        let mut config = self.client_config();
        for (key, value) in [
            ("queued.max.messages.kbytes", "16384"),
            // Of one answer, over all partitions: with many of them it is held beside what is queued.
            ("fetch.max.bytes", "16777216"),
            // Once so much is queued the next request waits, by default for a second: with a queue so small that was longer
            // than all the rest.
            ("fetch.queue.backoff.ms", "10"),
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
        // It says only that each failed; why, was told before.
        if text.ends_with("brokers are down") {
            return;
        }
        let mut last = self.0.lock().unwrap_or_else(|e| e.into_inner());
        // The same of a token, whose endpoint's answer was told before.
        let told = last.as_deref().is_some_and(|told| told.starts_with("Failed to retrieve"));
        if !(told && text.starts_with("Failed to acquire SASL OAUTHBEARER token")) {
            *last = Some(text.to_owned());
        }
    }
    fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }
}

fn log(level: RDKafkaLogLevel, facility: &str, message: &str, last: &LastError) {
    use RDKafkaLogLevel as L;
    // FAIL: of a connection; of a lower level where the broker closed it.
    if facility == "FAIL" || matches!(level, L::Emerg | L::Alert | L::Critical | L::Error) {
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
        (
            Some(last),
            Some(
                Code::BrokerTransportFailure
                | Code::AllBrokersDown
                | Code::OperationTimedOut
                | Code::Authentication
                | Code::SSL,
            ),
        ) => last.clone(),
        (_, Some(code)) => code.to_string(),
        _ => e.to_string(),
    };
    classify(doing, code, &detail)
}

fn classify(doing: &str, code: Option<Code>, detail: &str) -> Error {
    let lacks = |acl: &str| Error::config(format!("{doing}: {detail}. The user lacks an ACL: {acl}"));
    match code {
        Some(Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch) => {
            Error::fenced(format!("{doing}: {detail} (another process took over)"))
        }
        Some(Code::TopicAuthorizationFailed) => lacks("Read and Describe on the topic (a restore: Write and Describe)"),
        Some(Code::GroupAuthorizationFailed) => lacks("Read on the consumer group"),
        Some(Code::TransactionalIdAuthorizationFailed) => lacks("Write and Describe on the transactional id"),
        Some(Code::ClusterAuthorizationFailed) => lacks("this operation on the cluster"),
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
            | Code::TransactionCoordinatorFenced
            // Before the first answer it is a refusal, which [`Admin::wait`] finds. Later it is a password or a
            // certificate that is being changed: waited out.
            | Code::SaslAuthenticationFailed
            | Code::Authentication
            | Code::UnsupportedSASLMechanism
            | Code::SSL,
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
    fn settings_of_security_that_are_not_whole_are_refused_before_a_broker_is_asked() {
        let of = |properties: &[(&str, &str)]| {
            let mut connection = Connection::new("b:1");
            for (key, value) in properties {
                connection.set(key, value).unwrap();
            }
            connection.check_security().map_err(|e| e.message().to_owned())
        };
        let sasl = ("security.protocol", "sasl_ssl");
        assert_eq!(of(&[]), Ok(()));
        let certificate = ("ssl.certificate.location", "/dev/null");
        assert!(of(&[certificate]).unwrap_err().contains("set ssl.key.location too"));
        assert_eq!(of(&[certificate, ("ssl.key.location", "/dev/null")]), Ok(()));
        assert!(of(&[sasl]).unwrap_err().contains("Kerberos, is not built in"));
        assert!(of(&[sasl, ("sasl.mechanisms", "PLAIN")]).unwrap_err().contains("set sasl.username and sasl.password"));
        let user = [sasl, ("sasl.mechanism", "SCRAM-SHA-512"), ("sasl.username", "u"), ("sasl.password", "p")];
        assert_eq!(of(&user), Ok(()));
        let token = ("sasl.mechanism", "OAUTHBEARER");
        assert!(of(&[sasl, token]).unwrap_err().contains("sasl.oauthbearer.token.endpoint.url"));
        if cfg!(feature = "oidc") {
            assert_eq!(of(&[sasl, token, ("sasl.oauthbearer.method", "oidc")]), Ok(()));
        }
        assert_eq!(of(&[sasl, token, (UNSECURED, "true")]), Ok(()));
    }

    #[test]
    fn why_a_connection_failed_is_not_forgotten_when_all_brokers_are_down() {
        let last = LastError::default();
        last.set("[thrd:ssl://b:1/bootstrap]: ssl://b:1/bootstrap: no");
        last.set("1/1 brokers are down");
        assert_eq!(last.get().as_deref(), Some("ssl://b:1/bootstrap: no"));
    }
}
