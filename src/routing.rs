//! Which pipeline a dead letter belongs to.
//!
//! Owns the default by dialect, as the dialect's table has it, and before it the pipelines that single topics have.
//! Does not escape names for paths. Pure; needs decoded columns only, so a record read back from the archive is
//! routed alike.

use crate::dialect::{Dialects, Field, PipelineSource, hex, host_label};
use crate::record::Decoded;
use crate::topics::{TopicSettings, settings_of};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// What a dialect's pipelines are named after, first one that is known. The configuration's topics come before it.
#[derive(Debug, Clone)]
pub struct Routing {
    topics: Vec<TopicSettings>,
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
        let defaults = dialects.pipelines().map(|(name, sources)| (name.to_owned(), sources.to_vec())).collect();
        Self { topics: Vec::new(), defaults }
    }

    /// The same, with the pipelines that topics have of their own.
    pub fn with_topics(self, topics: &[TopicSettings]) -> Self {
        Self { topics: topics.to_vec(), ..self }
    }

    /// The pipeline of all records of this topic, if its table names one.
    pub fn fixed(&self, topic: &str) -> Option<&str> {
        settings_of(&self.topics, topic)?.pipeline.as_deref()
    }

    /// The pipeline's exact, unescaped name: the topic's own, else what the dialect's default gives, else the
    /// dead-letter topic.
    pub fn pipeline<'a>(&'a self, topic: &'a str, d: &'a Decoded<'a>) -> Cow<'a, str> {
        Cow::Borrowed(self.fixed(topic).unwrap_or_else(|| self.by_dialect(topic, d)))
    }

    /// The same, for a topic that has none of its own.
    pub fn by_dialect<'a>(&self, topic: &'a str, d: &'a Decoded<'a>) -> &'a str {
        let sources = self.defaults.get(d.dialect.as_ref()).into_iter().flatten();
        let name = sources.filter_map(|s| named(*s, d)).find(|name| !name.is_empty());
        name.unwrap_or(topic)
    }

    /// Hex SHA-256 over all that routing depends on.
    pub fn digest(&self) -> String {
        let mut sha = Sha256::new();
        // Without a topic of its own it is what it was before there were any.
        if self.topics.iter().any(|t| t.pipeline.is_some()) {
            for t in &self.topics {
                sha.update(format!("topic {:?} {:?}\n", t.topic.as_str(), t.pipeline));
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topics::TopicMatch;

    #[test]
    fn a_topics_own_pipeline_comes_before_its_dialects_and_changes_the_digest() {
        let table = |topic: &str, pipeline: Option<&str>| TopicSettings {
            pipeline: pipeline.map(str::to_owned),
            ..TopicSettings::of(TopicMatch::parse(topic).unwrap())
        };
        let d = Decoded { dialect: "knative".into(), error_component: Some("sink".into()), ..Decoded::default() };
        let plain = Routing::default();
        assert_eq!(plain.pipeline("a-dlq", &d), "sink");
        let topics = [table("^a", Some("all of a")), table("a-x", None)];
        let own = Routing::default().with_topics(&topics);
        assert_eq!(own.pipeline("a-dlq", &d), "all of a");
        assert_eq!(own.pipeline("b-dlq", &d), "sink");
        // The first table alone counts.
        assert_eq!((own.pipeline("a-x", &d).as_ref(), own.fixed("a-x")), ("sink", None));
        assert_eq!(Routing::default().with_topics(&topics[1..]).digest(), plain.digest());
        let reversed: Vec<_> = topics.iter().rev().cloned().collect();
        let digests = [plain.digest(), own.digest(), Routing::default().with_topics(&reversed[1..]).digest()];
        assert!(digests[0] != digests[1] && digests[1] != digests[2] && digests[0] != digests[2]);
    }
}
