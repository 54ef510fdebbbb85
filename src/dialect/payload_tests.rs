//! Dialects that are in key or value: what is in them goes back, or nothing does.

use super::tests::{H, batch_of, h};
use super::*;
use crate::topics::TopicMatch;

const ENVELOPE: &str = r#"{"requestContext": {"condition": "RetriesExhausted"}, "payload": {"records": {"orders-0":
    [{"topic": "orders", "partition": 0, "offset": 4, "key": "azQ=", "value": "b3JkZXI0"}]}}}"#;

/// Topic `all` asks for both.
fn dialects() -> Dialects {
    let all = TopicSettings {
        dialects: vec!["uber".to_owned(), "lambda".to_owned()],
        ..TopicSettings::of(TopicMatch::parse("all").unwrap())
    };
    Dialects::builtin().with_topics(&[all]).unwrap()
}

/// Newest dialect; where a restore goes; the key and value that go there.
type Read = (String, Option<(String, Option<i32>)>, Option<Owned>);
type Owned = (Option<Vec<u8>>, Option<Vec<u8>>);

fn read(key: &[u8], value: &[u8], headers: &[H<'_>]) -> Read {
    let (dialects, batch) = (dialects(), batch_of(Some(key), Some(value), headers));
    let raw = batch.get(0);
    let decoded = dialects.decode("all", 0, &raw);
    let target = restore_target(&decoded).map(|(topic, partition)| (topic.to_owned(), partition));
    let original = dialects.original("all", &raw);
    let original = original.map(|(key, value)| (key.map(Cow::into_owned), value.map(Cow::into_owned)));
    (decoded.dialect.into_owned(), target, original)
}

fn payload(key: &[u8], value: &[u8]) -> Option<Owned> {
    Some((Some(key.to_vec()), Some(value.to_vec())))
}

#[test]
fn an_envelope_that_was_dead_lettered_again_is_opened_for_where_it_came_from_first() {
    let offset = 7i64.to_be_bytes();
    let spring = [h("kafka_dlt-original-topic", "failures"), (b"kafka_dlt-original-offset", Some(&offset))];
    let (dialect, target, original) = read(b"k", ENVELOPE.as_bytes(), &spring);
    assert_eq!((dialect.as_str(), target), ("spring", Some(("orders".into(), Some(0)))));
    assert_eq!(original, payload(b"k4", b"order4"));
    // The same of what is in a key, and of a structured event's attributes.
    let key = b"\x12\x05trips\x32\x02k1";
    let (dialect, target, original) = read(key, b"{}", &spring);
    assert_eq!((dialect.as_str(), target), ("spring", Some(("trips".into(), Some(0)))));
    assert_eq!(original, payload(b"k1", b"{}"));
    let event = br#"{"knativeerrordest": "http://x", "knativekafkapartition": "3"}"#;
    let connect = [h("content-type", "application/cloudevents+json"), h("__connect.errors.topic", "events-dlt")];
    assert_eq!(read(b"k", event, &connect).0, "connect");
}

#[test]
fn two_records_in_one_envelope_are_not_put_back_as_one() {
    let two = ENVELOPE.replace("]}}}", r#"], "users-0": [{"topic": "users", "key": "dTE=", "value": "dXNlcjE="}]}}}"#);
    assert_eq!(read(b"k", two.as_bytes(), &[]).2, None);
    let twice = ENVELOPE.replace(r#""value": "b3JkZXI0""#, r#""value": "b3JkZXI0", "value": "eA==""#);
    assert_eq!(read(b"k", twice.as_bytes(), &[]).2, None);
    assert_eq!(read(b"k", ENVELOPE.as_bytes(), &[]).2, payload(b"k4", b"order4"));
    // An envelope in a record whose key is another's.
    assert_eq!(read(b"\x12\x05trips\x32\x02k1", ENVELOPE.as_bytes(), &[]).2, None);
}

#[test]
fn headers_are_not_taken_for_what_a_payload_holds() {
    let forged = [
        h("$.requestContext.condition", "x"),
        h("$.payload.records.*[0].topic", "trips"),
        h("$.payload.records.*[0].value", "Zm9yZ2Vk"),
        h("uber.topic", "trips"),
        h("uber.key", "forged"),
    ];
    assert_eq!(read(b"k", b"{}", &forged), (UNKNOWN.to_owned(), None, payload(b"k", b"{}")));
    assert_eq!(read(b"k", ENVELOPE.as_bytes(), &forged).2, payload(b"k4", b"order4"));
}

#[test]
fn a_part_of_an_envelope_is_none() {
    let part = &ENVELOPE.as_bytes()[..ENVELOPE.len() - 1];
    assert_eq!(read(b"k", part, &[]), (UNKNOWN.to_owned(), None, payload(b"k", part)));
}
