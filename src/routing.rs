//! Which pipeline a dead letter belongs to, and how many pipelines of a cut have objects of their own.
//!
//! Owns the order: the configuration's rules, the pipelines that single topics have, the default by dialect as its table
//! has it, the dead-letter topic. Does not escape names for paths. Pure; needs decoded columns only, so a record read back
//! from the archive is routed alike.

mod answers;
mod rule;

pub use rule::{Condition, Rule};

use crate::dialect::{Dialects, Field, PipelineSource, hex, host_label};
use crate::record::Decoded;
use crate::topics::{TopicSettings, settings_of};
use answers::Place;
use rule::Subject;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Pipelines of a cut that have objects of their own, unless told otherwise. Each is an object or more a cut: with 15
/// minutes a cut that is 9,600 a day and partition at the most, which engines and listings still bear.
pub const MAX_PIPELINES: usize = 100;

/// What a dialect's pipelines are named after, first one that is known. The configuration's rules and topics come
/// before it.
#[derive(Debug, Clone)]
pub struct Routing {
    rules: Vec<Rule>,
    topics: Vec<TopicSettings>,
    defaults: BTreeMap<String, Vec<PipelineSource>>,
    max_pipelines: usize,
}

/// What named a record's pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum By {
    /// One of the rules, from 0.
    Rule(usize),
    /// The topic's own table.
    Topic,
    Dialect,
    /// Nothing: it is the dead-letter topic.
    Fallback,
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
        Self { rules: Vec::new(), topics: Vec::new(), defaults, max_pipelines: MAX_PIPELINES }
    }

    /// The same, with the pipelines that topics have of their own.
    pub fn with_topics(self, topics: &[TopicSettings]) -> Self {
        Self { topics: topics.to_vec(), ..self }
    }

    /// The same, with rules, of which the first that matches wins.
    pub fn with_rules(self, rules: &[Rule]) -> Self {
        Self { rules: rules.to_vec(), ..self }
    }

    /// The same, with so many pipelines of a cut that have objects of their own.
    pub fn with_max_pipelines(self, max_pipelines: usize) -> Self {
        Self { max_pipelines, ..self }
    }

    pub fn max_pipelines(&self) -> usize {
        self.max_pipelines
    }

    /// Whether a rule matches this field.
    pub fn asks_for(&self, field: &str) -> bool {
        self.rules.iter().any(|rule| rule.conditions().any(|(name, _)| name == field))
    }

    /// What names pipelines by default, whatever the dialect.
    pub(crate) fn default_fields(&self) -> impl Iterator<Item = Field> {
        self.defaults.values().flatten().map(|source| match source {
            PipelineSource::Field(field) => *field,
            PipelineSource::DestinationHost => Field::ErrorDestination,
        })
    }

    /// What records of this topic are routed by.
    pub fn of_topic<'r>(&'r self, topic: &'r str) -> TopicRouting<'r> {
        let own = settings_of(&self.topics, topic).and_then(|table| table.pipeline.as_deref());
        let (rules, mut fields) = (self.rules.iter().enumerate().filter(|(_, rule)| rule.is_for(topic)), Vec::new());
        let rules = rules.map(|(i, rule)| (i, rule, answers::places(rule.all(), &mut fields))).collect();
        TopicRouting { topic, own, rules, fields, defaults: &self.defaults }
    }

    /// The pipeline's exact, unescaped name. For many records of a topic, [`Self::of_topic`] is asked once.
    pub fn pipeline<'a>(&'a self, topic: &'a str, d: &'a Decoded<'a>) -> Cow<'a, str> {
        self.of_topic(topic).route(d).0
    }

    /// Hex SHA-256 over all that routing depends on.
    pub fn digest(&self) -> String {
        let mut sha = Sha256::new();
        sha.update(format!("max pipelines {}\n", self.max_pipelines));
        for rule in &self.rules {
            sha.update(format!("rule {rule} {:?}\n", rule.pipeline()));
        }
        for t in &self.topics {
            sha.update(format!("topic {:?} {:?}\n", t.topic.as_str(), t.pipeline));
        }
        for (dialect, sources) in &self.defaults {
            sha.update(format!("{dialect:?}{sources:?}\n"));
        }
        hex(&sha.finalize())
    }
}

/// The routing of one topic's records.
pub struct TopicRouting<'r> {
    topic: &'r str,
    /// The topic's own pipeline.
    own: Option<&'r str>,
    /// Those that records of the topic can match, each with its number and the places of its conditions.
    rules: Vec<(usize, &'r Rule, Vec<Place>)>,
    fields: Vec<answers::Field<'r>>,
    defaults: &'r BTreeMap<String, Vec<PipelineSource>>,
}

impl<'r> TopicRouting<'r> {
    /// Whether a rule may name pipelines of its records.
    pub fn is_ruled(&self) -> bool {
        !self.rules.is_empty()
    }

    /// The pipeline of all records of the topic, if it depends on nothing else.
    pub fn fixed(&self) -> Option<&'r str> {
        self.own.filter(|_| self.rules.is_empty())
    }

    /// A record's pipeline, and what named it.
    pub fn route<'a>(&mut self, d: &'a Decoded<'a>) -> (Cow<'a, str>, By)
    where
        'r: 'a,
    {
        let (default, by) = self.default(d);
        let subject = Subject::new(self.topic, default, d);
        let fields = &mut self.fields;
        fields.iter_mut().for_each(answers::Field::next);
        let mut holds =
            |&(field, condition): &Place| fields.get_mut(field).is_some_and(|f| f.holds(condition, &subject));
        let ruled = self.rules.iter().find_map(|(i, rule, places)| match places.iter().all(&mut holds) {
            true => Some((rule.name(&subject)?.into(), By::Rule(*i))),
            false => None,
        });
        ruled.unwrap_or((default.into(), by))
    }

    /// The same without any rule.
    fn default<'a>(&self, d: &'a Decoded<'a>) -> (&'a str, By)
    where
        'r: 'a,
    {
        if let Some(own) = self.own {
            return (own, By::Topic);
        }
        let sources = self.defaults.get(d.dialect.as_ref()).into_iter().flatten();
        let name = sources.filter_map(|s| named(*s, d)).find(|name| !name.is_empty());
        name.map_or((self.topic, By::Fallback), |name| (name, By::Dialect))
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
        assert_eq!((own.pipeline("a-x", &d).as_ref(), own.of_topic("a-x").fixed()), ("sink", None));
        assert_eq!(own.of_topic("a-dlq").fixed(), Some("all of a"));
        let reversed: Vec<_> = topics.iter().rev().cloned().collect();
        let digests = [plain.digest(), own.digest(), Routing::default().with_topics(&reversed[1..]).digest()];
        assert!(digests[0] != digests[1] && digests[1] != digests[2] && digests[0] != digests[2]);
    }
    fn rule(conditions: &[(&str, &str)], name: &str) -> Rule {
        let conditions = conditions.iter().map(|(field, text)| Condition::parse(field, text).unwrap());
        Rule::new(conditions.collect(), name).unwrap()
    }

    #[test]
    fn the_first_rule_that_gives_a_name_wins_then_the_topics_own_the_dialect_and_the_topic() {
        let own = TopicSettings {
            pipeline: Some("all of a".into()),
            ..TopicSettings::of(TopicMatch::parse("a-dlq").unwrap())
        };
        let rules = [
            rule(&[("error_code", "5??"), ("topic", "*-dlq")], "outages"),
            // Of what is named without a rule.
            rule(&[("pipeline", "^s(ink)?$")], "${1}"),
            rule(&[("pipeline", "s")], "second"),
            rule(&[("error_code", "500")], "never"),
        ];
        let routing = Routing::default().with_topics(&[own]).with_rules(&rules);
        let of = |topic: &str, component: &str, code: Option<i32>| {
            let component = (!component.is_empty()).then(|| component.to_owned().into());
            let d = Decoded {
                dialect: "knative".into(),
                error_component: component,
                error_code: code,
                ..Decoded::default()
            };
            let (name, by) = routing.of_topic(topic).route(&d);
            assert_eq!(name, routing.pipeline(topic, &d));
            (name.into_owned(), by)
        };
        let expect = |name: &str, by| (name.to_owned(), by);
        assert_eq!(of("a-dlq", "sink", Some(503)), expect("outages", By::Rule(0)));
        assert_eq!(of("a-dlq", "sink", Some(404)), expect("all of a", By::Topic));
        assert_eq!(of("b-dlq", "sink", None), expect("ink", By::Rule(1)));
        assert_eq!(of("b-dlq", "s", None), expect("second", By::Rule(2)));
        assert_eq!(of("b-dlq", "other", None), expect("other", By::Dialect));
        assert_eq!(of("b-dlq", "", None), expect("b-dlq", By::Fallback));
        assert_eq!(of("b", "", Some(500)), expect("never", By::Rule(3)));
        // Only what no rule can change is one name for all.
        assert_eq!(routing.of_topic("a-dlq").fixed(), None);
    }

    #[test]
    fn rules_their_order_and_the_bound_are_part_of_the_digest() {
        let (a, b) = (rule(&[("topic", "a*")], "x"), rule(&[("topic", "a*"), ("dialect", "spring")], "y"));
        let other = rule(&[("topic", "a*")], "y");
        let of =
            |rules: &[&Rule]| Routing::default().with_rules(&rules.iter().map(|r| (*r).clone()).collect::<Vec<_>>());
        let mut digests = vec![of(&[]), of(&[&a]), of(&[&b]), of(&[&a, &b]), of(&[&b, &a]), of(&[&other])];
        digests.push(of(&[]).with_max_pipelines(7));
        let digests: Vec<_> = digests.iter().map(Routing::digest).collect();
        assert_eq!(std::collections::BTreeSet::from_iter(&digests).len(), digests.len(), "{digests:?}");
    }

    /// Answers are kept by a field's text: none may be another text's, whatever came before.
    #[test]
    fn what_was_asked_before_does_not_change_a_records_pipeline() {
        let rules: Vec<_> = (0..9)
            .map(|n| rule(&[("error_message", &format!("*{n}*")), ("error_code", "^[0-4]")], &format!("p{n}")))
            .collect();
        let routing = Routing::default().with_rules(&rules);
        let mut of_topic = routing.of_topic("t");
        for i in 0..40_000_u32 {
            // Some are too long to be kept, some are null.
            let message = match i % 7 {
                0 => None,
                1 => Some(format!("{:>600}", i / 3)),
                _ => Some((i % 20_000).to_string()),
            };
            let digit = message.as_ref().and_then(|m| (0..9).find(|n| m.contains(&n.to_string())));
            let d = Decoded {
                error_code: (i % 5 != 0).then_some((i % 10) as i32),
                error_message: message.map(Into::into),
                ..Decoded::default()
            };
            let expected = digit.filter(|_| i % 5 != 0 && i % 10 < 5).map(|n| By::Rule(n as usize));
            let (name, by) = of_topic.route(&d);
            assert_eq!(by, expected.unwrap_or(By::Fallback), "{i}: {name}");
        }
    }
}
