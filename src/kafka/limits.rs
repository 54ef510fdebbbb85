//! What topics tell of their settings, where brokers describe configurations and this user may ask.

use super::{Connection, error};
use crate::error::Result;
use rdkafka::admin::{AdminClient, AdminOptions, OwnedResourceSpecifier, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use std::collections::BTreeMap;
use std::time::Duration;

/// Those of the settings `names` that each topic tells, by topic and name.
///
/// # Errors
/// If the brokers describe no configurations, or do not answer.
pub async fn topic_settings(
    connection: &Connection,
    topics: &[String],
    names: &[&str],
    timeout: Duration,
) -> Result<BTreeMap<String, BTreeMap<String, String>>> {
    let doing = "cannot ask for the settings of topics";
    let admin: AdminClient<DefaultClientContext> =
        connection.client_config().create().map_err(|e| error(doing, &e, None))?;
    // Any broker knows them; not asked of the controller, which brokers with a part of Kafka's protocol may not have.
    let broker = crate::host::in_place(|| {
        let metadata = admin.inner().fetch_metadata(topics.first().map(String::as_str), timeout);
        metadata.map(|m| m.brokers().first().map(|b| b.id())).map_err(|e| error(doing, &e, None))
    })?;
    let asked: Vec<_> = topics.iter().map(|t| ResourceSpecifier::Topic(t)).collect();
    let options = AdminOptions::new().request_timeout(Some(timeout)).broker_id(broker);
    let answers = admin.describe_configs(&asked, &options).await.map_err(|e| error(doing, &e, None))?;
    let mut settings = BTreeMap::new();
    for answer in answers {
        match answer {
            Ok(config) => {
                let told = names.iter().filter_map(|name| Some(((*name).to_owned(), config.get(name)?.value.clone()?)));
                let told: BTreeMap<String, String> = told.collect();
                if let OwnedResourceSpecifier::Topic(topic) = config.specifier {
                    settings.insert(topic, told);
                }
            }
            Err(code) => tracing::debug!("a topic does not tell its settings: {code}"),
        }
    }
    Ok(settings)
}
