//! What topics tell of their limits, where brokers describe configurations and this user may ask.

use super::{Connection, error};
use crate::error::Result;
use rdkafka::admin::{AdminClient, AdminOptions, OwnedResourceSpecifier, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use std::collections::BTreeMap;
use std::time::Duration;

/// `max.message.bytes` of each topic that tells it.
///
/// # Errors
/// If the brokers describe no configurations, or do not answer.
pub async fn max_message_bytes(
    connection: &Connection,
    topics: &[String],
    timeout: Duration,
) -> Result<BTreeMap<String, u64>> {
    let doing = "cannot ask for max.message.bytes";
    let admin: AdminClient<DefaultClientContext> =
        connection.client_config().create().map_err(|e| error(doing, &e, None))?;
    // Any broker knows them; not asked of the controller, which brokers with a part of Kafka's protocol may not have.
    let broker = tokio::task::block_in_place(|| {
        let metadata = admin.inner().fetch_metadata(topics.first().map(String::as_str), timeout);
        metadata.map(|m| m.brokers().first().map(|b| b.id())).map_err(|e| error(doing, &e, None))
    })?;
    let asked: Vec<_> = topics.iter().map(|t| ResourceSpecifier::Topic(t)).collect();
    let options = AdminOptions::new().request_timeout(Some(timeout)).broker_id(broker);
    let answers = admin.describe_configs(&asked, &options).await.map_err(|e| error(doing, &e, None))?;
    let mut limits = BTreeMap::new();
    for answer in answers {
        match answer {
            Ok(config) => {
                let limit = config.get("max.message.bytes").and_then(|e| e.value.as_deref()?.parse().ok());
                if let (OwnedResourceSpecifier::Topic(topic), Some(limit)) = (config.specifier, limit) {
                    limits.insert(topic, limit);
                }
            }
            Err(code) => tracing::debug!("a topic does not tell its max.message.bytes: {code}"),
        }
    }
    Ok(limits)
}
