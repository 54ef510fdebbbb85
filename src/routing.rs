//! Which pipeline a dead letter belongs to.
//!
//! Owns the default by dialect, as the dialect's table has it, and where the configuration's rules will come in.
//! Does not escape names for paths. Pure; needs decoded columns only, so a record read back from the archive is
//! routed alike.

use crate::dialect::{Dialects, Field, PipelineSource, hex, host_label};
use crate::record::Decoded;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// What a dialect's pipelines are named after, first one that is known. The configuration's rules come before it.
#[derive(Debug, Clone)]
pub struct Routing {
    defaults: BTreeMap<String, Vec<PipelineSource>>,
}

impl Default for Routing {
    /// The defaults of the built-in dialects.
    fn default() -> Self {
        Self::for_dialects(&Dialects::builtin())
    }
}

impl Routing {
    /// The defaults that these dialects' tables have.
    pub fn for_dialects(dialects: &Dialects) -> Self {
        Self { defaults: dialects.pipelines().map(|(name, sources)| (name.to_owned(), sources.to_vec())).collect() }
    }

    /// The pipeline's exact, unescaped name: what the dialect's default gives, else the dead-letter topic.
    pub fn pipeline<'a>(&self, topic: &'a str, d: &'a Decoded<'a>) -> Cow<'a, str> {
        let sources = self.defaults.get(d.dialect.as_ref()).into_iter().flatten();
        let name = sources.filter_map(|s| named(*s, d)).find(|name| !name.is_empty());
        Cow::Borrowed(name.unwrap_or(topic))
    }

    /// Hex SHA-256 over all that routing depends on.
    pub fn digest(&self) -> String {
        let mut sha = Sha256::new();
        for (dialect, sources) in &self.defaults {
            sha.update(format!("{dialect:?}{sources:?}\n"));
        }
        hex(&sha.finalize())
    }
}

fn named<'a>(source: PipelineSource, d: &'a Decoded<'_>) -> Option<&'a str> {
    let field = match source {
        PipelineSource::DestinationHost => return host_label(d.error_destination.as_deref()?),
        PipelineSource::Field(field) => field,
    };
    let text = match field {
        Field::ErrorClass => &d.error_class,
        Field::ErrorMessage => &d.error_message,
        Field::ErrorStage => &d.error_stage,
        Field::ErrorComponent => &d.error_component,
        Field::ErrorDestination => &d.error_destination,
        Field::ErrorStacktrace => &d.error_stacktrace,
        Field::OriginTopic => &d.origin_topic,
        Field::OriginGroup => &d.origin_group,
        Field::EventId => &d.event_id,
        Field::EventSource => &d.event_source,
        Field::EventType => &d.event_type,
        Field::EventSubject => &d.event_subject,
        Field::ContentType => &d.content_type,
        // Numbers and times; the tables' parser refuses them here.
        _ => return None,
    };
    text.as_deref()
}
