//! Any record, with headers that dialects look for, is decoded by every dialect, routed, stripped and made whole again:
//! nothing panics, and what comes out keeps its promises.
#![no_main]

use arbitrary::Arbitrary;
use dlq_archiver::dialect::Dialects;
use dlq_archiver::record::{Header, RawBatch, TimestampType};
use dlq_archiver::routing::Routing;
use dlq_archiver::topics::{TopicMatch, TopicSettings};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

#[derive(Debug, Arbitrary)]
struct Record<'a> {
    topic: u8,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
    headers: Vec<(Name<'a>, Option<&'a [u8]>)>,
    timestamp_ms: i64,
    log_append: bool,
}

#[derive(Debug, Arbitrary)]
enum Name<'a> {
    /// Of the names that tables have.
    Known(u16),
    Other(&'a [u8]),
}

/// The second asks for all that is read of keys and values.
const TOPICS: [&str; 2] = ["t-dlq", "all-dlq"];

static DIALECTS: LazyLock<Dialects> = LazyLock::new(|| {
    let all = TopicSettings {
        dialects: vec!["uber".to_owned(), "lambda".to_owned()],
        ..TopicSettings::of(TopicMatch::parse(TOPICS[1]).unwrap())
    };
    Dialects::builtin().with_topics(&[all]).unwrap()
});
static ROUTING: LazyLock<Routing> = LazyLock::new(|| Routing::for_dialects(&DIALECTS));

/// Every quoted text of the tables: header names, prefixes, and some that are neither.
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let texts = DIALECTS.names().filter_map(|name| DIALECTS.show(name)).map(|(_, text)| text);
    let quoted = texts.flat_map(|text| text.split('"').skip(1).step_by(2));
    let mut names: Vec<String> = quoted.map(str::to_owned).collect();
    names.extend(["content-type", "dlq-archiver-restore-count"].map(str::to_owned));
    names
});

fuzz_target!(|record: Record<'_>| {
    let topic = TOPICS[usize::from(record.topic) % TOPICS.len()];
    let name = |name: &Name<'_>| match name {
        Name::Known(i) => NAMES[usize::from(*i) % NAMES.len()].as_bytes().to_vec(),
        Name::Other(name) => name.to_vec(),
    };
    let headers: Vec<_> = record.headers.iter().map(|(n, value)| (name(n), *value)).collect();
    let timestamp_type = if record.log_append { TimestampType::LogAppendTime } else { TimestampType::CreateTime };
    let mut batch = RawBatch::new();
    let all = headers.iter().map(|(name, value)| Header { name, value: *value });
    batch.push(7, record.timestamp_ms, timestamp_type, -1, record.key, record.value, all);
    let raw = batch.get(0);
    let decoded = DIALECTS.decode(topic, 0, &raw);
    assert!(decoded.problems.len() <= 17);
    assert_eq!(decoded.hops.is_empty(), decoded.dialect == "unknown");
    for n in [decoded.origin_partition.map(i64::from), decoded.origin_offset, decoded.attempts.map(i64::from)] {
        assert!(n.is_none_or(|n| n >= 0));
    }
    for text in [&decoded.error_message, &decoded.origin_topic, &decoded.error_stacktrace].into_iter().flatten() {
        assert!(!text.contains('\0'));
    }
    assert!(!ROUTING.pipeline(topic, &decoded).is_empty());
    assert_eq!(DIALECTS.strips(topic, &raw).len(), raw.headers.len());
    let _ = DIALECTS.original(topic, &raw);
    assert_eq!(decoded, DIALECTS.decode(topic, 0, &raw));
});
