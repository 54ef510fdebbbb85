//! What the golden fixtures do not show: chains, the edges of single rules, the format's errors, arbitrary bytes.

use super::*;
use crate::record::{Header, PayloadState, RawBatch, TimestampType};
use crate::routing::Routing;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::hash::{BuildHasher, RandomState};

pub(super) type H<'h> = (&'h [u8], Option<&'h [u8]>);

pub(super) fn h<'h>(name: &'h str, value: &'h str) -> H<'h> {
    (name.as_bytes(), Some(value.as_bytes()))
}

pub(super) fn batch_of(key: Option<&[u8]>, value: Option<&[u8]>, headers: &[H<'_>]) -> RawBatch {
    let mut batch = RawBatch::new();
    let headers = headers.iter().map(|(name, value)| Header { name, value: *value });
    batch.push(5, 1_760_000_000_000, TimestampType::CreateTime, -1, key, value, headers);
    batch
}

/// Decodes a record `{}` of these headers in partition 0 of topic `t-dlq`.
pub(super) fn decode(dialects: &Dialects, headers: &[H<'_>]) -> Decoded<'static> {
    dialects.decode("t-dlq", 0, &batch_of(None, Some(b"{}"), headers).get(0)).into_owned()
}

fn builtin(headers: &[H<'_>]) -> Decoded<'static> {
    decode(&Dialects::builtin(), headers)
}

fn connect<'h>(topic: &'h str, offset: &'h str, message: Option<&'h str>) -> Vec<H<'h>> {
    vec![
        h("__connect.errors.topic", topic),
        h("__connect.errors.partition", "1"),
        h("__connect.errors.offset", offset),
        h("__connect.errors.connector.name", "sink"),
        h("__connect.errors.exception.class.name", "E"),
        (b"__connect.errors.exception.message", message.map(str::as_bytes)),
    ]
}

fn key_of(fields: &[&str]) -> [u8; 16] {
    let bytes: Vec<u8> = fields.iter().flat_map(|f| [&(f.len() as u32).to_be_bytes(), f.as_bytes()].concat()).collect();
    std::array::from_fn(|i| Sha256::digest(&bytes)[i])
}

#[test]
fn connect_sets_appended_twice_are_two_hops() {
    let first = connect("orders", "4", Some("older"));
    let second = connect("orders-dlq", "9", None);
    let d = builtin(&[first.clone(), second].concat());
    assert_eq!((d.origin_topic.as_deref(), d.origin_offset), (Some("orders-dlq"), Some(9)));
    // Null in the newest failure: not the older one's.
    assert_eq!(d.error_message, None);
    assert_eq!(d.hops.len(), 2);
    assert_eq!((d.hops[0].offset, d.hops[0].error_message.as_deref()), (Some(4), Some("older")));
    assert_eq!(restore_target(&d), Some(("orders", Some(1))));
    assert_eq!(d.failure_key, builtin(&first).failure_key, "one failure, however often dead-lettered");
    assert_eq!(d.failure_key, key_of(&["failure", "connect", "sink", "orders", "1", "4"]));
}

#[test]
fn connect_without_exception_headers_in_the_first_set_keeps_them_in_the_second() {
    let first = &connect("orders", "4", None)[..4];
    let d = builtin(&[first, &connect("orders-dlq", "9", Some("newer"))].concat());
    assert_eq!(d.hops[0].error_class, None);
    assert_eq!((d.hops[1].error_class.as_deref(), d.error_message.as_deref()), (Some("E"), Some("newer")));
}

#[test]
fn spring_appends_originals_and_replaces_exceptions() {
    let (p, o1, o2) = (0i32.to_be_bytes(), 7i64.to_be_bytes(), 8i64.to_be_bytes());
    let d = builtin(&[
        h("kafka_dlt-original-topic", "mail"),
        (b"kafka_dlt-original-partition", Some(&p)),
        (b"kafka_dlt-original-offset", Some(&o1)),
        h("kafka_dlt-exception-fqcn", "Newest"),
        (b"kafka_dlt-exception-cause-fqcn", None),
        h("kafka_dlt-original-topic", "mail-dlt"),
        (b"kafka_dlt-original-partition", Some(&p)),
        (b"kafka_dlt-original-offset", Some(&o2)),
        h("kafka_dlt-original-consumer-group", "second"),
    ]);
    assert_eq!(d.hops.len(), 2);
    assert_eq!((d.hops[0].offset, d.hops[0].group.as_deref(), d.hops[0].error_class.as_deref()), (Some(7), None, None));
    assert_eq!((d.origin_topic.as_deref(), d.origin_offset), (Some("mail-dlt"), Some(8)));
    assert_eq!((d.error_class.as_deref(), d.origin_group.as_deref()), (Some("Newest"), Some("second")));
    assert_eq!(restore_target(&d), Some(("mail", Some(0))));
}

#[test]
fn spring_retry_topics_before_a_dead_letter_topic_are_the_older_hop() {
    let d = builtin(&[
        h("kafka_original-topic", "push"),
        h("kafka_dlt-original-topic", "push-retry"),
        h("kafka_dlt-original-consumer-group", "g"),
    ]);
    let topics: Vec<_> = d.hops.iter().map(|hop| hop.topic.as_deref().unwrap()).collect();
    assert_eq!(topics, ["push", "push-retry"]);
}

#[test]
fn spring_key_failures_in_retry_topics_have_a_prefix_of_their_own() {
    let dialects = Dialects::builtin();
    let headers = [h("kafka_key-exception-fqcn", "E"), h("kafka_key-exception-message", "bad key"), h("trace", "1")];
    let d = decode(&dialects, &headers);
    assert_eq!(
        (d.dialect.as_ref(), d.error_class.as_deref(), d.error_message.as_deref()),
        ("spring", Some("E"), Some("bad key"))
    );
    assert_eq!(dialects.strips("t", &batch_of(None, None, &headers).get(0)), [true, true, false]);
}

#[test]
fn a_keys_failure_is_not_told_with_the_text_of_an_earlier_listeners() {
    let (first, second) = (0i64.to_be_bytes(), 7i64.to_be_bytes());
    let d = builtin(&[
        h("kafka_dlt-exception-fqcn", "Wrapper"),
        h("kafka_dlt-exception-message", "listener"),
        h("kafka_dlt-original-topic", "mail"),
        (b"kafka_dlt-original-offset", Some(&first)),
        h("kafka_dlt-key-exception-fqcn", "E"),
        h("kafka_dlt-exception-cause-fqcn", "Cause"),
        h("kafka_dlt-key-exception-message", "bad key"),
        h("kafka_dlt-original-topic", "mail-dlt"),
        (b"kafka_dlt-original-offset", Some(&second)),
    ]);
    assert_eq!((d.error_class.as_deref(), d.error_message.as_deref()), (Some("Cause"), Some("bad key")));
    assert_eq!((d.origin_topic.as_deref(), d.origin_offset), (Some("mail-dlt"), Some(7)));
}

#[test]
fn the_newest_of_several_headers_is_the_first_where_they_are_prepended() {
    let decode = |newest: &str, headers: &[H<'_>]| {
        let text = format!(
            "name = \"t\"\ndescription = \"d\"\nnewest = \"{newest}\"\nreplaced = [\"error_message\"]\n[detect]\nany = [\"a\", \"b\"]\n\
             [fields]\nerror_message = {{ prefer = \"newest\", from = [\"a\", \"b\"] }}\n"
        );
        decode(&Dialects::from_tables([("t.toml", text.as_str())]).unwrap(), headers)
            .error_message
            .map(|m| m.into_owned())
    };
    let both = [h("a", "1"), h("b", "2")];
    assert_eq!(decode("last", &both).as_deref(), Some("2"));
    assert_eq!(decode("first", &both).as_deref(), Some("1"));
    assert_eq!(decode("last", &[h("a", "1"), (b"b", None)]).as_deref(), Some("1"), "null is passed over");
}

#[test]
fn an_empty_text_is_no_failures_identity() {
    let keys =
        |id: &str| builtin(&[h("ce_knativeerrordest", "http://x/"), h("ce_source", "s"), h("ce_id", id)]).failure_key;
    assert_eq!(keys(""), key_of(&["record", "t-dlq", "0", "5"]));
    assert_eq!(keys("7"), key_of(&["failure", "knative", "http://x/", "s", "7"]));
}

#[test]
fn a_record_of_nowhere_has_no_origin() {
    let d = builtin(&[
        h("__streams.errors.exception", "E"),
        (b"__streams.errors.topic", None),
        h("__streams.errors.partition", "-1"),
        h("__streams.errors.offset", "-1"),
    ]);
    assert_eq!((d.origin_partition, d.origin_offset, d.origin_timestamp_us), (None, None, None));
    assert!(d.problems.is_empty(), "{:?}", d.problems);
}

#[test]
fn spring_attempts_are_those_made() {
    let attempts = |value: &[u8]| builtin(&[(b"retry_topic-attempts", Some(value)), h("kafka_dlt-x", "")]);
    assert_eq!(attempts(&[4]).attempts, Some(3));
    assert_eq!(attempts(&[0, 0, 0, 4]).attempts, Some(3));
    let d = attempts(&[0]);
    assert_eq!((d.attempts, &d.problems[..]), (None, &["retry_topic-attempts: out of range".into()][..]));
    let listener = [0, 0, 0, 2];
    assert_eq!(builtin(&[(b"kafka_deliveryAttempt", Some(&listener)), h("kafka_dlt-x", "")]).attempts, Some(2));
    assert_eq!(builtin(&[(b"kafka_deliveryAttempt", Some(&listener))]).dialect, UNKNOWN, "it leaks into live records");
}

#[test]
fn of_several_dialects_the_one_appended_last_fills_the_columns() {
    let knative = [
        h("ce_source", "vastdata.com:t.1"),
        h("ce_id", "7"),
        h("ce_subject", "view.in.dots"),
        h("ce_knativeerrordest", "http://f-x.ns.svc/"),
        h("content-type", "application/json"),
    ];
    let headers = [&knative[..], &connect("vast-dlt", "9", Some("m"))].concat();
    let d = builtin(&headers);
    assert_eq!((d.dialect.as_ref(), d.origin_topic.as_deref()), ("connect", Some("vast-dlt")));
    assert_eq!((&d.error_destination, &d.error_component), (&None, &None), "the older failure's");
    assert_eq!((d.event_id.as_deref(), d.content_type.as_deref()), (Some("7"), Some("application/json")));
    assert_eq!(d.hops.iter().map(|hop| hop.dialect.as_ref()).collect::<Vec<_>>(), ["knative", "connect"]);
    assert_eq!(restore_target(&d), Some(("in.dots", None)));
    assert_eq!(d.failure_key, key_of(&["failure", "knative", "http://f-x.ns.svc/", "vastdata.com:t.1", "7"]));
    let batch = batch_of(None, Some(b"{}"), &headers);
    let left = Dialects::builtin().strips("t", &batch.get(0)).iter().filter(|s| !**s).count();
    assert_eq!(left, 4, "both dialects' headers are stripped");
}

#[test]
fn what_a_share_group_did_not_copy_stays_missing_in_a_chain() {
    let share = [h("__dlq.errors.topic", "orders"), h("__dlq.errors.partition", "0"), h("__dlq.errors.offset", "3")];
    let headers = [&share[..], &connect("dlq.billing", "9", None)].concat();
    let state = |key, value| Dialects::builtin().decode("t", 0, &batch_of(key, value, &headers).get(0)).payload_state;
    assert_eq!(state(None, None), PayloadState::NotCopied);
    assert_eq!(state(Some(b"k"), None), PayloadState::CopiedBare);
    assert_eq!(state(None, Some(b"v")), PayloadState::CopiedBare);
}

#[test]
fn streams_without_key_and_value_were_not_copied() {
    let headers = [h("__streams.errors.topic", "t")];
    let state = |key, value| Dialects::builtin().decode("t", 0, &batch_of(key, value, &headers).get(0)).payload_state;
    assert_eq!(state(None, None), PayloadState::NotCopied);
    assert_eq!(state(Some(b"k"), None), PayloadState::Tombstone);
    assert_eq!(state(None, Some(b"v")), PayloadState::Present);
}

#[test]
fn streams_before_4_2_held_class_and_message_in_one() {
    let exception = h("__streams.errors.exception", "a.B: c: d");
    let d = builtin(&[exception, (b"__streams.errors.message", None)]);
    assert_eq!((d.error_class.as_deref(), d.error_message.as_deref()), (Some("a.B"), Some("c: d")));
    let d = builtin(&[exception, h("__streams.errors.message", "own")]);
    assert_eq!((d.error_class.as_deref(), d.error_message.as_deref()), (Some("a.B"), Some("own")));
    let d = builtin(&[h("__streams.errors.exception", "a.B"), (b"__streams.errors.message", None)]);
    assert_eq!((d.error_class.as_deref(), d.error_message), (Some("a.B"), None));
}

#[test]
fn the_record_s_timestamp_means_what_its_type_says() {
    let times = |headers: &[H<'_>], ms, timestamp_type| {
        let mut raw = RawBatch::new();
        let headers = headers.iter().map(|(name, value)| Header { name, value: *value });
        raw.push(0, ms, timestamp_type, -1, None, None, headers);
        let d = Dialects::builtin().decode("t", 0, &raw.get(0)).into_owned();
        (d.failed_at_us, d.origin_timestamp_us, d.problems.len())
    };
    use TimestampType::{CreateTime, LogAppendTime};
    let connect = [h("__connect.errors.topic", "t")];
    assert_eq!(times(&connect, 5, CreateTime), (None, Some(5000), 0));
    assert_eq!(times(&connect, 5, LogAppendTime), (Some(5000), None, 0));
    let share = [h("__dlq.errors.topic", "t")];
    assert_eq!(times(&share, 5, CreateTime), (Some(5000), None, 0));
    assert_eq!(times(&share, -1, CreateTime), (None, None, 0), "Kafka's none");
    assert_eq!(times(&share, i64::MAX, CreateTime), (None, None, 1));
    assert_eq!(times(&share, -2, CreateTime), (None, None, 1));
    assert_eq!(times(&[], i64::MIN, CreateTime), (None, None, 0));
}

#[test]
fn live_events_are_not_dead_letters() {
    let d = builtin(&[h("ce_id", "1"), h("ce_knativekafkapartition", "0"), h("ce_knativekafkaoffset", "16")]);
    assert_eq!((d.dialect.as_ref(), d.origin_offset, d.hops.len()), (UNKNOWN, None, 0));
    assert_eq!(d.event_id.as_deref(), Some("1"), "what the event says of itself is read all the same");
    assert_eq!(d.failure_key, key_of(&["record", "t-dlq", "0", "5"]));
}

#[test]
fn structured_events_are_read_from_the_value() {
    let dialects = Dialects::builtin();
    let read = |content_type: &str, value: &[u8]| {
        let batch = batch_of(None, Some(value), &[h("content-type", content_type)]);
        dialects.decode("t-dlq", 0, &batch.get(0)).into_owned()
    };
    let event = r#"{"data": {"knativeerrorcode": 1, "id": "no"}, "id": "a\nb", "source": "s", "ext": [1],
        "knativeerrorcode": 503, "knativeerrordest": "http://x", "knativekafkaoffset": "12", "time": null}"#;
    let d = read("APPLICATION/CloudEvents+json", event.as_bytes());
    assert_eq!((d.dialect.as_ref(), d.error_code, d.event_id.as_deref()), ("knative", Some(503), Some("a\nb")));
    assert_eq!((d.origin_offset, d.event_time_us, d.problems.len()), (Some(12), None, 0));
    assert_eq!(read("application/json", event.as_bytes()).dialect, UNKNOWN);
    let deep = [&b"{\"data\":"[..], &[b'['; 100_000]].concat();
    for bad in [&b"[]"[..], b"", b"{\"id\": ", b"\xff", b"{} x", b"null", &deep] {
        let d = read("application/cloudevents", bad);
        assert_eq!((d.dialect.as_ref(), d.problems.len()), (UNKNOWN, 1), "{:?}", &bad[..bad.len().min(9)]);
    }
}

#[test]
fn text_is_made_valid_and_said_so() {
    let d = builtin(&[
        (b"__connect.errors.exception.message", Some(b"a\0b\xffc")),
        (b"__connect.errors.topic", Some(b"")),
        h("__connect.errors.partition", "-2"),
        h("dlq-archiver-restore-count", "1"),
        h("dlq-archiver-restore-count", "2"),
    ]);
    assert_eq!(d.error_message.as_deref(), Some("a\u{FFFD}b\u{FFFD}c"));
    assert_eq!((d.origin_topic, d.origin_partition, d.prior_restores), (None, None, 2));
    assert_eq!(
        d.problems,
        [
            "__connect.errors.exception.message: not UTF-8, U+FFFD put in",
            "__connect.errors.exception.message: has U+0000, U+FFFD put in",
            "__connect.errors.topic: an empty topic name",
            "__connect.errors.partition: out of range",
        ]
    );
    for bad in ["", "-1", "x", "99999999999"] {
        let d = builtin(&[h("dlq-archiver-restore-count", bad)]);
        assert_eq!((d.prior_restores, d.problems.len()), (0, 1), "{bad}");
    }
}

#[test]
fn pipelines_fall_back_to_the_topic() {
    let pipeline = |headers: &[H<'_>]| Routing::default().pipeline("t-dlq", &builtin(headers)).into_owned();
    let dest = |url| pipeline(&[h("ce_knativeerrordest", url)]);
    assert_eq!(dest("http://size-check.shop.svc.cluster.local/"), "size-check");
    assert_eq!(dest("http://user:secret@10.1.2.3:8080/x"), "10.1.2.3");
    assert_eq!(dest("http://[::1]:80/"), "::1");
    assert_eq!(dest("sink"), "sink");
    for nothing in ["", "http://", "http:///path", "http://.x", "://", "http://[", "http://@"] {
        assert_eq!(dest(nothing), "t-dlq", "{nothing}");
    }
    let vast = |url| pipeline(&[h("ce_source", "vastdata.com:t.1"), h("ce_knativeerrordest", url)]);
    assert_eq!(vast("http://size-check-00001.ns.svc"), "size-check");
    assert_eq!(vast("http://plain.ns.svc"), "plain");
    assert_eq!(vast("http://-x.ns.svc"), "-x");
    assert_eq!(pipeline(&[h("__connect.errors.connector.name", "")]), "t-dlq");
    assert_eq!(pipeline(&[h("__dlq.errors.group", "g")]), "g");
    assert_eq!(pipeline(&[h("kafka_original-topic", "o")]), "o");
    assert_eq!(pipeline(&[h("kafka_original-topic", "o"), h("kafka_dlt-original-consumer-group", "g")]), "g");
    assert_eq!(pipeline(&[h("x", "y")]), "t-dlq");
}

const PREPENDS: &str = r#"
name = "prepends"
description = "prepends"
newest = "first"
pipeline = ["origin_topic"]
[detect]
any_prefix = ["dead-letter-"]
[fields]
error_class = { from = ["dead-letter-cause-class-name", "dead-letter-exception-class-name"] }
error_message = { from = ["dead-letter-reason"] }
origin_topic = { from = ["dead-letter-topic"] }
origin_partition = { from = ["dead-letter-partition"] }
origin_offset = { from = ["dead-letter-offset"] }
[strip]
prefixes = ["dead-letter-"]
"#;

pub(super) const MY_APP: &str = r#"
name = "my-app"
description = "generic names"
[detect]
all = ["exception-type", "original-destination"]
none = ["x-not-mine"]
[fields]
error_class = { from = ["exception-type"] }
failed_at = { from = ["failed-at"] }
origin_topic = { from = ["original-destination"] }
origin_offset = { from = ["original-offset"], encoding = "decimal-or-be" }
[strip]
names = ["exception-type", "original-destination", "failed-at", "original-offset"]
"#;

#[test]
fn a_user_s_table_can_read_prepended_headers() {
    let dialects = Dialects::with_user_tables([("my.toml", PREPENDS)]).unwrap();
    let d = decode(
        &dialects,
        &[
            h("dead-letter-cause-class-name", "NewCause"),
            h("dead-letter-exception-class-name", "New"),
            h("dead-letter-topic", "second"),
            h("dead-letter-offset", "2"),
            h("dead-letter-exception-class-name", "Old"),
            h("dead-letter-topic", "first"),
            h("dead-letter-partition", "3"),
            h("dead-letter-offset", "1"),
        ],
    );
    assert_eq!((d.error_class.as_deref(), d.origin_offset, d.origin_partition), (Some("NewCause"), Some(2), None));
    assert_eq!(d.hops[0].error_class.as_deref(), Some("Old"));
    assert_eq!(restore_target(&d), Some(("first", Some(3))));
    assert_eq!(Routing::for_dialects(&dialects).pipeline("t", &d), "second");
    assert_eq!(dialects.names().last(), Some("prepends"));
}

#[test]
fn a_user_s_table_can_ask_for_several_generic_names() {
    let dialects = Dialects::from_tables([("w.toml", MY_APP)]).unwrap();
    let mine = [h("exception-type", "E"), h("original-destination", "q"), h("failed-at", "1760000000001")];
    let d = decode(&dialects, &mine);
    assert_eq!((d.dialect.as_ref(), d.failed_at_us), ("my-app", Some(1_760_000_000_001_000)));
    assert_eq!(decode(&dialects, &mine[..1]).dialect, UNKNOWN);
    assert_eq!(decode(&dialects, &[&mine[..], &[h("x-not-mine", "")]].concat()).dialect, UNKNOWN);
}

#[test]
fn a_user_s_table_replaces_a_built_in_one() {
    let text = MY_APP.replace("my-app", "spring");
    let dialects = Dialects::with_user_tables([("s.toml", text.as_str())]).unwrap();
    let names: Vec<_> = dialects.names().collect();
    assert_eq!((names.len(), names.last()), (BUILTIN.len(), Some(&"spring")));
    assert_eq!(dialects.show("spring"), Some(("generic names", text.as_str())));
}

/// Reads everything that is meant for others, as a record's consumers do.
fn exercise(dialects: &Dialects, batch: &RawBatch) {
    let raw = batch.get(0);
    let d = dialects.decode("t-dlq", 0, &raw);
    assert!(d.problems.len() <= 17);
    assert!(!Routing::for_dialects(dialects).pipeline("t-dlq", &d).is_empty());
    assert_eq!(dialects.strips("t-dlq", &raw).len(), raw.headers.len());
    assert_eq!(d.hops.is_empty(), d.dialect == UNKNOWN);
    for n in [d.origin_partition.map(i64::from), d.origin_offset, d.attempts.map(i64::from)].into_iter().flatten() {
        assert!(n >= 0);
    }
    let texts = [&d.error_message, &d.origin_topic, &d.event_id, &d.error_stacktrace, &d.error_destination];
    assert!(texts.into_iter().flatten().all(|t| !t.contains('\0')));
    assert_eq!(d, dialects.decode("t-dlq", 0, &raw), "decoding is a function of the record");
}

/// Names that any table looks for, and near misses.
fn names(dialects: &Dialects) -> Vec<String> {
    let mut names = vec!["dlq-archiver-restore-count".to_owned(), "ce_".to_owned(), String::new()];
    for t in &dialects.tables {
        let d = &t.detect;
        names.extend([&d.all, &d.any, &d.any_prefix, &d.none, &t.strip.names].into_iter().flatten().cloned());
        names.extend(t.fields.values().flat_map(|f| &f.from).map(|s| s.header.clone()));
    }
    names.sort();
    names.dedup();
    names
}

#[test]
fn no_bytes_make_decoding_fail() {
    let dialects = Dialects::with_user_tables([("s.toml", PREPENDS), ("w.toml", MY_APP)]).unwrap();
    let bytes = || {
        prop_oneof![
            3 => proptest::collection::vec(any::<u8>(), 0..12),
            2 => any::<i64>().prop_map(|n| n.to_string().into_bytes()),
            1 => any::<i64>().prop_map(|n| n.to_be_bytes().to_vec()),
            1 => any::<i32>().prop_map(|n| n.to_be_bytes().to_vec()),
            2 => "[ -~]{0,40}".prop_map(String::into_bytes),
            1 => Just(b"vastdata.com:a.b".to_vec()),
            1 => Just(b"application/cloudevents+json".to_vec()),
            1 => "https?://[-a-z0-9.:@/\\[\\]]{0,20}".prop_map(String::into_bytes),
            1 => "\\{\"(id|source|knativeerrordest|knativeerrorcode)\": ?(1e999|-0|\"x\\\\u0000\"|\\{\\}|null)\\}"
                .prop_map(String::into_bytes),
        ]
    };
    let null_or = |b| proptest::option::weighted(0.9, b);
    let name = prop_oneof![
        4 => proptest::sample::select(names(&dialects)).prop_map(String::into_bytes),
        1 => bytes(),
    ];
    let record = (
        null_or(bytes()),
        null_or(bytes()),
        proptest::collection::vec((name, null_or(bytes())), 0..60),
        prop_oneof![any::<i64>(), Just(-1), Just(i64::MAX)],
        any::<bool>(),
    );
    let text = std::env::var("DLQ_TEST_SEED").ok();
    let seed: u64 =
        text.map_or_else(|| RandomState::new().hash_one(0), |s| s.parse().expect("DLQ_TEST_SEED is a number"));
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases: 3000, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &key));
    let result = runner.run(&record, |(key, value, headers, timestamp_ms, log_append)| {
        let timestamp_type = if log_append { TimestampType::LogAppendTime } else { TimestampType::CreateTime };
        let headers = headers.iter().map(|(name, value)| Header { name, value: value.as_deref() });
        let mut batch = RawBatch::new();
        batch.push(0, timestamp_ms, timestamp_type, -1, key.as_deref(), value.as_deref(), headers);
        exercise(&dialects, &batch);
        Ok(())
    });
    if let Err(e) = result {
        panic!("DLQ_TEST_SEED={seed} repeats this: {e}");
    }
}

#[test]
fn large_records_are_borrowed_and_many_headers_are_no_trouble() {
    let dialects = Dialects::builtin();
    let trace = vec![b'x'; 1 << 20];
    let mut headers: Vec<H<'_>> = Vec::new();
    for _ in 0..2500 {
        headers.push(h("__connect.errors.topic", "t"));
        headers.push(h("__connect.errors.offset", "not a number"));
        headers.push(h("kafka_original-topic", "t"));
        headers.push(h("other", ""));
    }
    // Text that must be copied, on a record of many hops.
    let invalid = vec![0xff; 1 << 16];
    headers.push((b"ce_source", Some(&invalid)));
    headers.push((b"__connect.errors.exception.stacktrace", Some(&trace)));
    let batch = batch_of(None, Some(b"{}"), &headers);
    let raw = batch.get(0);
    let d = dialects.decode("t", 0, &raw);
    assert_eq!((d.hops.len(), d.dialect.as_ref()), (5000, "connect"));
    assert!(matches!(&d.error_stacktrace, Some(std::borrow::Cow::Borrowed(t)) if t.len() == trace.len()));
    exercise(&dialects, &batch);
}
