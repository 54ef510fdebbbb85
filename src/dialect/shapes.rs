//! Decoding many records of one topic, whose headers mostly have the same names.
//!
//! Owns the plans that are kept, by the names that they are for. Invariant: a record is decoded as
//! [`Dialects::decode`] decodes it, whatever came before.

use super::index::{Index, Values};
use super::plan::Plan;
use super::table::Field;
use super::value::Notes;
use super::{Dialects, Walk};
use crate::record::{Decoded, Headers, OwnedNames, RawRecord};

/// Plans that are kept. A topic's dead letters have as many sets of names as programs write into it.
const KEPT: usize = 16;
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
    /// The one that was used last comes first.
    shapes: Vec<Shape>,
}

impl<'t> TopicDecoder<'t> {
    pub(super) fn new(dialects: &'t Dialects, topic: &'t str) -> Self {
        Self { dialects, topic, opted: dialects.opted(topic), wanted: None, shapes: Vec::new() }
    }

    /// The same, reading no more than these fields and what they depend on: of the decoded record only they and the dialect
    /// are as they should be.
    pub(crate) fn only(self, fields: impl IntoIterator<Item = Field>) -> Self {
        let mut wanted = 0;
        for field in fields {
            wanted |= bit(field);
            // What VAST's rules read: `Decoder::vast`.
            match field {
                Field::ErrorComponent => wanted |= bit(Field::EventSource) | bit(Field::ErrorDestination),
                Field::OriginTopic => wanted |= bit(Field::EventSource) | bit(Field::EventSubject),
                _ => {}
            }
        }
        Self { wanted: Some(wanted), shapes: Vec::new(), ..self }
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
        let values = Values::of_headers(raw);
        if let Some(plan) = self.kept(raw.headers, &values) {
            return decode(plan, &values, Notes::default());
        }
        let wanted = self.wanted;
        let (plan, values, notes) = dialects.plan(self.opted, raw, |field| is_wanted(wanted, field));
        decode(&plan, &values, notes)
    }

    /// The plan for a record with these names, if it depends on nothing else.
    fn kept(&mut self, headers: Headers<'_>, values: &Values<'_>) -> Option<&Plan> {
        let index: &Index = &self.dialects.index;
        if index.reads_payload_for(self.opted) {
            return None;
        }
        match self.shapes.iter().position(|shape| shape.names.get() == headers.names()) {
            Some(at) => self.shapes[..=at].rotate_right(1),
            None => {
                let shape = self.shape(headers)?;
                self.shapes.truncate(KEPT - 1);
                self.shapes.insert(0, shape);
            }
        }
        let shape = self.shapes.first()?;
        (!index.is_structured(&shape.walk, values)).then_some(&shape.plan)
    }

    fn shape(&self, headers: Headers<'_>) -> Option<Shape> {
        let names = headers.names();
        if names.len() > MOST_HEADERS || names.bytes() > LONGEST {
            return None;
        }
        let Dialects { tables, index, .. } = self.dialects;
        let mut walk = index.walk_headers(headers);
        index.leave_out(&mut walk, self.opted);
        let wanted = self.wanted;
        let plan = Plan::new(tables, index, &walk, |field| is_wanted(wanted, field));
        Some(Shape { names: names.to_owned(), plan, walk })
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
                }
            }
        }

        #[test]
        fn what_is_read_of_few_fields_is_what_is_read_of_all(records in records(), fields in 0..1_u32 << Field::ALL.len()) {
            let batch = batch(&records);
            let dialects = Dialects::builtin();
            let some: Vec<Field> = Field::ALL.into_iter().filter(|f| fields & bit(*f) != 0).collect();
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
