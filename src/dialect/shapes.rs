//! Decoding many records of one topic, whose headers mostly have the same names.
//!
//! Owns the plans that are kept, by the names that they are for. Invariant: a record is decoded as
//! [`Dialects::decode`] decodes it, whatever came before.

use super::index::Values;
use super::plan::Plan;
use super::table::{Field, FieldKind};
use super::value::Notes;
use super::{Dialects, Restorable, Walk};
use crate::record::{Decoded, Headers, Names, OwnedNames, RawRecord};
use ahash::{AHashMap, AHashSet};

/// Plans that are kept. A topic's dead letters have as many sets of names as programs write into it, and from a program that
/// writes them from a map each set comes in many orders. When there are more, all are let go.
const KEPT: usize = 64;
/// Headers that all of them are for: a plan takes some 400 bytes for each.
const KEPT_HEADERS: usize = 4096;
/// Names that came once are remembered by their hash, so many: where each record has other names, plans are made for that one
/// and not kept.
const SEEN: usize = 1024;
/// Of records with more headers, or longer names in all, no plan is kept.
const MOST_HEADERS: usize = 256;
const LONGEST: usize = 16 << 10;

/// The names of a record's headers, in order, and the plan for them.
struct Shape {
    names: OwnedNames,
    plan: Plan,
    /// The value may hold the whole event: whether it does is asked of each record.
    walk: Walk,
}

/// Decodes records of one topic; see [`Dialects::of_topic`].
pub struct TopicDecoder<'t> {
    dialects: &'t Dialects,
    topic: &'t str,
    opted: &'t [usize],
    /// `None`: all.
    wanted: Option<u32>,
    kept: Kept,
}

/// The shapes that are kept, and how they are found. Names that have a hash are not yet the names that it was made of.
#[derive(Default)]
struct Kept {
    shapes: Vec<Shape>,
    /// The one that was used last.
    last: usize,
    by_hash: AHashMap<u64, usize>,
    seen: AHashSet<u64>,
    headers: usize,
}

impl Kept {
    /// The shape for these names, made where they come again, or for the first time of all.
    fn of(&mut self, names: Names<'_>, shape: impl FnOnce() -> Shape) -> Option<&Shape> {
        if self.shapes.get(self.last).is_none_or(|last| last.names.get() != names) {
            let hash = self.by_hash.hasher().hash_one(names);
            self.last = match self.by_hash.get(&hash).copied() {
                Some(at) if self.shapes[at].names.get() == names => at,
                Some(_) => return None,
                None if self.is_new(hash) => return None,
                None => self.keep(hash, shape()),
            };
        }
        self.shapes.get(self.last)
    }

    fn is_new(&mut self, hash: u64) -> bool {
        if self.seen.len() >= SEEN {
            self.seen.clear();
        }
        !self.shapes.is_empty() && self.seen.insert(hash)
    }

    fn keep(&mut self, hash: u64, shape: Shape) -> usize {
        let headers = shape.names.get().len();
        if self.shapes.len() >= KEPT || self.headers + headers > KEPT_HEADERS {
            self.shapes.clear();
            self.by_hash.clear();
            self.headers = 0;
        }
        self.headers += headers;
        self.shapes.push(shape);
        self.by_hash.insert(hash, self.shapes.len() - 1);
        self.shapes.len() - 1
    }
}

impl<'t> TopicDecoder<'t> {
    pub(super) fn new(dialects: &'t Dialects, topic: &'t str) -> Self {
        Self { dialects, topic, opted: dialects.opted(topic), wanted: None, kept: Kept::default() }
    }

    pub fn topic(&self) -> &'t str {
        self.topic
    }

    /// The same, reading no more than these fields, which are texts, and what they depend on: of the decoded record only they
    /// and the dialect are as they should be.
    pub(crate) fn only(self, fields: impl IntoIterator<Item = Field>) -> Self {
        let mut wanted = 0;
        for field in fields {
            // Times that tables take from Kafka's timestamp are not looked at.
            debug_assert!(field.kind() == FieldKind::Text);
            wanted |= bit(field);
            // What VAST's rules read: `Decoder::vast`.
            match field {
                Field::ErrorComponent => wanted |= bit(Field::EventSource) | bit(Field::ErrorDestination),
                Field::OriginTopic => wanted |= bit(Field::EventSource) | bit(Field::EventSubject),
                _ => {}
            }
        }
        Self { wanted: Some(wanted), kept: Kept::default(), ..self }
    }

    /// As [`Dialects::decode`].
    pub fn decode<'a>(&mut self, partition: i32, raw: &RawRecord<'a>) -> Decoded<'a>
    where
        't: 'a,
    {
        let (dialects, topic, whole) = (self.dialects, self.topic, self.wanted.is_none());
        let decode = |plan: &Plan, values: &Values<'a>, notes| {
            let decoder = dialects.decoder(plan, values, notes);
            if whole { decoder.decode(topic, partition, raw) } else { decoder.newest_only() }
        };
        if let Some((shape, values)) = self.kept(raw) {
            return decode(&shape.plan, &values, Notes::default());
        }
        let wanted = self.wanted;
        let (plan, values, notes) = dialects.plan(self.opted, raw, |field| is_wanted(wanted, field));
        decode(&plan, &values, notes)
    }

    /// As [`Dialects::restorable`].
    pub(crate) fn restorable<'a>(&mut self, raw: &RawRecord<'a>) -> Option<Restorable<'a>> {
        let dialects = self.dialects;
        if let Some((shape, values)) = self.kept(raw) {
            return dialects.restorable_of(&shape.walk, &values, raw);
        }
        dialects.restorable(self.topic, raw)
    }

    /// What is kept for a record with these names, if nothing else decides, and its values.
    fn kept<'a>(&mut self, raw: &RawRecord<'a>) -> Option<(&Shape, Values<'a>)> {
        let (dialects, opted, wanted) = (self.dialects, self.opted, self.wanted);
        let (headers, names) = (raw.headers, raw.headers.names());
        if dialects.index.reads_payload_for(opted) || names.len() > MOST_HEADERS || names.bytes() > LONGEST {
            return None;
        }
        let shape = self.kept.of(names, || Shape::new(dialects, opted, wanted, headers))?;
        let values = Values::of_headers(raw);
        (!dialects.index.is_structured(&shape.walk, &values)).then_some((shape, values))
    }
}

impl Shape {
    fn new(dialects: &Dialects, opted: &[usize], wanted: Option<u32>, headers: Headers<'_>) -> Self {
        let Dialects { tables, index, .. } = dialects;
        let mut walk = index.walk_headers(headers);
        index.leave_out(&mut walk, opted);
        let plan = Plan::new(tables, index, &walk, |field| is_wanted(wanted, field));
        Self { names: headers.names().to_owned(), plan, walk }
    }
}

fn bit(field: Field) -> u32 {
    1 << field as u32
}

fn is_wanted(wanted: Option<u32>, field: Field) -> bool {
    wanted.is_none_or(|wanted| wanted & bit(field) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Header, RawBatch, TimestampType};
    use crate::topics::{TopicMatch, TopicSettings};
    use proptest::prelude::*;

    /// Names that tables know, so that records have dialects, several of them, and hops.
    const NAMES: [&str; 26] = [
        "ce_specversion",
        "ce_id",
        "ce_source",
        "ce_type",
        "ce_subject",
        "ce_knativeerrorcode",
        "ce_knativeerrordest",
        "ce_knativeerrordata",
        "content-type",
        "__connect.errors.topic",
        "__connect.errors.partition",
        "__connect.errors.offset",
        "__connect.errors.exception.class.name",
        "__streams.errors.topic",
        "__streams.errors.exception",
        "kafka_dlt-original-topic",
        "kafka_dlt-original-partition",
        "kafka_dlt-original-offset",
        "kafka_dlt-exception-fqcn",
        "kafka_dlt-exception-stacktrace",
        "kafka_original-topic",
        "dead-letter-reason",
        "dlq-archiver-restore-count",
        "__dlq.errors.topic",
        "x",
        "",
    ];
    const VALUES: [Option<&str>; 10] = [
        None,
        Some(""),
        Some("orders"),
        Some("7"),
        Some("vastdata.com:trigger.1"),
        Some("http://u@size-check-1.ns.svc:80/x"),
        Some("vast-broker-view.orders"),
        Some("application/cloudevents+json"),
        Some("aGVsbG8="),
        Some("\u{0}\u{7f}"),
    ];

    type Drawn = (Vec<(usize, usize)>, bool);

    fn batch(records: &[Drawn]) -> RawBatch {
        let mut batch = RawBatch::new();
        for (i, (headers, is_json)) in records.iter().enumerate() {
            let headers = headers.iter().map(|(name, value)| Header {
                name: NAMES[*name].as_bytes(),
                value: VALUES[*value].map(str::as_bytes),
            });
            let value: &[u8] =
                if *is_json { br#"{"id":"1","source":"s","specversion":"1.0","type":"t"}"# } else { b"x" };
            batch.push(i as i64, 1000, TimestampType::CreateTime, 0, None, Some(value), headers);
        }
        batch
    }

    fn records() -> impl Strategy<Value = Vec<Drawn>> {
        let headers = proptest::collection::vec((0..NAMES.len(), 0..VALUES.len()), 0..9);
        // Few sets of names, each with many values, and now and then more of them than are kept.
        let sets = proptest::collection::vec(proptest::collection::vec(0..NAMES.len(), 0..9), 1..30);
        let same = sets.prop_flat_map(|sets| {
            let record = (proptest::sample::select(sets), proptest::collection::vec(0..VALUES.len(), 9), any::<bool>());
            let of = record.prop_map(|(names, values, json)| (names.into_iter().zip(values).collect(), json));
            proptest::collection::vec(of, 1..60)
        });
        prop_oneof![same, proptest::collection::vec((headers, any::<bool>()), 1..20)]
    }

    /// Programs in Go write headers from a map: the same names in ever other orders were planned anew for each record.
    #[test]
    fn names_in_many_orders_are_planned_once_each_and_names_that_never_come_again_are_not_kept() {
        let dialects = Dialects::builtin();
        let mut decoder = dialects.of_topic("t");
        let push = |batch: &mut RawBatch, names: &[String]| {
            let headers = names.iter().map(|name| Header { name: name.as_bytes(), value: Some(b"v") });
            batch.push(0, 0, TimestampType::CreateTime, 0, None, None, headers);
        };
        let mut batch = RawBatch::new();
        let names: Vec<String> = ["ce_id", "topic_poisoned", "reason_poisoned", "x"].map(String::from).into();
        for turn in 0..12 {
            let mut names = names.clone();
            names.rotate_left(turn % 4);
            names.swap(0, turn % 3);
            push(&mut batch, &names);
        }
        (0..3).for_each(|_| batch.iter().for_each(|raw| drop(decoder.decode(3, &raw))));
        assert_eq!(decoder.kept.shapes.len(), 12);
        let mut others = RawBatch::new();
        (0..3000).for_each(|n| push(&mut others, &[format!("n{n}")]));
        others.iter().for_each(|raw| drop(decoder.decode(3, &raw)));
        assert_eq!(decoder.kept.shapes.len(), 12);
        assert!(decoder.kept.seen.len() <= SEEN);
        // Ones that come again take their place, as many as there is room for.
        let many: Vec<String> = (0..MOST_HEADERS).map(|_| "x".into()).collect();
        let mut large = RawBatch::new();
        for n in 0..KEPT {
            push(&mut large, &[&many[1..], &[format!("n{n}")]].concat());
        }
        (0..2).for_each(|_| large.iter().for_each(|raw| drop(decoder.decode(3, &raw))));
        assert!(decoder.kept.headers <= KEPT_HEADERS && !decoder.kept.shapes.is_empty());
        let kept = decoder.kept.shapes.len();
        let mut too_many = RawBatch::new();
        push(&mut too_many, &[&many[..], &["x".into()]].concat());
        (0..2).for_each(|_| too_many.iter().for_each(|raw| drop(decoder.decode(3, &raw))));
        assert_eq!(decoder.kept.shapes.len(), kept);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]
        #[test]
        fn a_kept_plan_decodes_each_record_as_a_plan_of_its_own(records in records()) {
            let batch = batch(&records);
            let asks = TopicSettings {
                dialects: vec!["lambda".into()],
                ..TopicSettings::of(TopicMatch::parse("asks").unwrap())
            };
            let dialects = Dialects::builtin().with_topics(&[asks]).unwrap();
            for topic in ["t", "asks"] {
                let mut decoder = dialects.of_topic(topic);
                for raw in batch.iter() {
                    prop_assert_eq!(decoder.decode(3, &raw), dialects.decode(topic, 3, &raw));
                    prop_assert_eq!(decoder.restorable(&raw), dialects.restorable(topic, &raw));
                }
            }
        }

        #[test]
        fn what_is_read_of_few_fields_is_what_is_read_of_all(records in records(), fields in 0..1_u32 << Field::ALL.len()) {
            let batch = batch(&records);
            let dialects = Dialects::builtin();
            let is_drawn = |f: &Field| f.kind() == FieldKind::Text && fields & bit(*f) != 0;
            let some: Vec<Field> = Field::ALL.into_iter().filter(is_drawn).collect();
            let mut decoder = dialects.of_topic("t").only(some.iter().copied());
            for raw in batch.iter() {
                let (few, all) = (decoder.decode(3, &raw), dialects.decode("t", 3, &raw));
                prop_assert_eq!(&few.dialect, &all.dialect);
                for field in &some {
                    let texts = |d: &Decoded<'_>| match field {
                        Field::ErrorClass => d.error_class.as_deref().map(str::to_owned),
                        Field::ErrorMessage => d.error_message.as_deref().map(str::to_owned),
                        Field::ErrorComponent => d.error_component.as_deref().map(str::to_owned),
                        Field::ErrorDestination => d.error_destination.as_deref().map(str::to_owned),
                        Field::OriginTopic => d.origin_topic.as_deref().map(str::to_owned),
                        Field::EventSource => d.event_source.as_deref().map(str::to_owned),
                        Field::EventSubject => d.event_subject.as_deref().map(str::to_owned),
                        Field::ContentType => d.content_type.as_deref().map(str::to_owned),
                        _ => None,
                    };
                    prop_assert_eq!(texts(&few), texts(&all), "{:?}", field);
                }
            }
        }
    }
}
