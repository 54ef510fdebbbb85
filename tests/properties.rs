//! Whatever a broker can send is archived and read back byte for byte, in every format; and the same records make
//! the same object.

use bytes::Bytes;
use dlq_archiver::Kind;
use dlq_archiver::format::{Encoder, FileContext, Format, Projection, offsets, read};
use dlq_archiver::record::{Decoded, Header, PayloadState, RawBatch, RawRecord, RecordId, TimestampType};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::borrow::Cow;
use std::ops::ControlFlow;

/// 10000-01-01 in microseconds: decoded times are only written below.
const END_US: i64 = 253_402_300_800_000_000;

#[derive(Debug, Clone)]
struct Record {
    timestamp_ms: i64,
    timestamp_type: TimestampType,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    decoded: Decoded<'static>,
    pipeline: String,
}

/// Bytes as text, as binary, with U+0000, with what line readers take for a line's end, or empty.
fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..40),
        any::<String>().prop_map(String::into_bytes),
        "[a\"\\\\\u{0}\u{1}\n\r\u{7f}\u{85}\u{2028}\u{2029}\u{e000}😀é]{0,12}".prop_map(String::into_bytes),
        Just(Vec::new()),
        Just(b"null".to_vec()),
    ]
}

fn any_text() -> impl Strategy<Value = Cow<'static, str>> {
    prop_oneof![any::<String>(), "[a;\"\\\\\u{0}\n\u{85}\u{2028} ]{0,12}", Just(String::new())].prop_map(Cow::Owned)
}

fn maybe_text() -> impl Strategy<Value = Option<Cow<'static, str>>> {
    option::of(any_text())
}

fn maybe_time() -> impl Strategy<Value = Option<i64>> {
    option::of(prop_oneof![0..END_US, Just(0), Just(END_US - 1)])
}

fn any_ms() -> impl Strategy<Value = i64> {
    prop_oneof![any::<i64>(), 0..END_US / 1000, Just(-1), Just(END_US / 1000), Just(i64::MIN), Just(i64::MAX)]
}

fn any_decoded() -> impl Strategy<Value = Decoded<'static>> {
    let errors = (maybe_text(), maybe_text(), option::of(any::<i32>()), maybe_text(), maybe_text(), maybe_text());
    let more = (maybe_text(), option::of(any::<i32>()), maybe_time(), any::<[u8; 16]>(), any_text());
    let origin = (maybe_text(), option::of(any::<i32>()), option::of(any::<i64>()), maybe_time(), maybe_text());
    let event = (maybe_text(), maybe_text(), maybe_text(), maybe_text(), maybe_time(), maybe_text());
    let states = [PayloadState::Present, PayloadState::Tombstone, PayloadState::NotCopied, PayloadState::CopiedBare];
    let rest = (proptest::sample::select(states.to_vec()), any::<i32>(), vec("[a-z ]{1,9}", 0..3));
    (errors, more, origin, event, rest).prop_map(|(e, m, o, v, r)| Decoded {
        dialect: m.4,
        failure_key: m.3,
        failed_at_us: m.2,
        error_class: e.0,
        error_message: e.1,
        error_code: e.2,
        error_stage: e.3,
        error_component: e.4,
        error_destination: e.5,
        error_stacktrace: m.0,
        attempts: m.1,
        origin_topic: o.0,
        origin_partition: o.1,
        origin_offset: o.2,
        origin_timestamp_us: o.3,
        origin_group: o.4,
        event_id: v.0,
        event_source: v.1,
        event_type: v.2,
        event_subject: v.3,
        event_time_us: v.4,
        content_type: v.5,
        payload_state: r.0,
        prior_restores: r.1,
        problems: r.2.into_iter().map(Cow::Owned).collect(),
        hops: Vec::new(),
    })
}

fn any_record() -> impl Strategy<Value = Record> {
    let headers = vec((any_bytes(), option::of(any_bytes())), 0..6).prop_map(|mut headers| {
        if headers.len() > 2 {
            headers[1].0 = headers[0].0.clone(); // repeats are ordinary
        }
        headers
    });
    let ours = (any_ms(), any::<bool>(), option::of(any_bytes()), option::of(any_bytes()), headers);
    (ours, any_decoded(), any_text()).prop_map(|((timestamp_ms, create, key, value, headers), decoded, pipeline)| {
        Record {
            timestamp_ms,
            timestamp_type: if create { TimestampType::CreateTime } else { TimestampType::LogAppendTime },
            key,
            value,
            headers,
            decoded,
            pipeline: pipeline.into_owned(),
        }
    })
}

fn context(cluster_id: Option<&str>, generation: u32) -> FileContext<'_> {
    FileContext {
        cluster_id,
        topic: "orders.DLT",
        partition: 3,
        generation,
        archived_at_us: 1_791_417_600_123_456,
        intent_key: "ledger/orders.DLT/3/00000000000000000000.intent.json",
        program_version: "0.1.0",
    }
}

fn batch(records: &[Record]) -> RawBatch {
    let mut batch = RawBatch::new();
    for (i, r) in records.iter().enumerate() {
        let headers = r.headers.iter().map(|(name, value)| Header { name, value: value.as_deref() });
        let (key, value) = (r.key.as_deref(), r.value.as_deref());
        batch.push(offset(i), r.timestamp_ms, r.timestamp_type, 5, key, value, headers);
    }
    batch
}

/// With gaps, as a log with transaction markers has them.
fn offset(i: usize) -> i64 {
    i as i64 * 3
}

fn encode(format: Format, context: &FileContext<'_>, records: &[Record]) -> Bytes {
    let mut encoder = Encoder::new(format, context).unwrap();
    for (raw, r) in batch(records).iter().zip(records) {
        encoder.push(&raw, &r.decoded, &r.pipeline).unwrap();
    }
    assert!(encoder.estimated_len() < 64 << 20);
    encoder.finish().unwrap().into()
}

fn assert_same_raw(got: &RawRecord<'_>, want: &RawRecord<'_>) {
    assert_eq!((got.offset, got.timestamp_ms), (want.offset, want.timestamp_ms));
    assert_eq!(got.timestamp_type, want.timestamp_type);
    assert_eq!((got.key, got.value), (want.key, want.value));
    assert_eq!(got.headers.iter().collect::<Vec<_>>(), want.headers.iter().collect::<Vec<_>>());
    let mut scratch = Vec::new();
    assert_eq!(got.checksum(&mut scratch), want.checksum(&mut scratch));
}

fn assert_read_back(format: Format, context: &FileContext<'_>, records: &[Record], data: &Bytes) {
    let raws = batch(records);
    let mut seen = 0;
    read(format, data.clone(), Projection::All, &mut |got| {
        let (raw, want) = (raws.get(seen), &records[seen]);
        assert_same_raw(&got.raw, &raw);
        assert_eq!((&got.decoded, got.pipeline), (&want.decoded, &*want.pipeline));
        assert_eq!((got.cluster_id, got.archived_at_us), (context.cluster_id, context.archived_at_us));
        let topic = context.topic.to_owned();
        let id = RecordId { topic, generation: context.generation, partition: 3, offset: raw.offset };
        assert_eq!(got.id, id);
        seen += 1;
        Ok(ControlFlow::Continue(()))
    })
    .unwrap();
    assert_eq!(seen, records.len());

    seen = 0;
    read(format, data.clone(), Projection::NoPayload, &mut |got| {
        let (raw, want) = (raws.get(seen), &records[seen]);
        let expected = Decoded { error_stacktrace: None, ..want.decoded.clone() };
        assert_eq!((&got.decoded, got.raw.offset), (&expected, raw.offset));
        assert_eq!((got.raw.key, got.raw.value, got.raw.headers.len()), (None, None, 0));
        let size = |b: Option<&[u8]>| b.map(|b| b.len() as i32);
        assert_eq!((got.key_size, got.value_size), (size(raw.key), size(raw.value)));
        seen += 1;
        Ok(ControlFlow::Continue(()))
    })
    .unwrap();
    assert_eq!(seen, records.len());
    assert_eq!(offsets(format, data.clone()).unwrap(), (0..records.len()).map(offset).collect::<Vec<_>>());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn records_are_read_back_byte_for_byte(
        records in vec(any_record(), 0..8),
        cluster in option::of("[a-zA-Z0-9_-]{1,22}"),
        generation in 1u32..4,
    ) {
        let context = context(cluster.as_deref(), generation);
        for format in Format::ALL {
            let data = encode(format, &context, &records);
            prop_assert!(data == encode(format, &context, &records), "{format:?} differs between two runs");
            assert_read_back(format, &context, &records, &data);
        }
    }

    /// Two archivers make the same object, whatever their arenas look like.
    #[test]
    fn an_object_does_not_depend_on_where_its_records_bytes_lie(
        records in vec(any_record(), 1..8),
        times in proptest::sample::select(vec![1, 3, 600]),
    ) {
        let context = context(None, 1);
        let records: Vec<Record> = std::iter::repeat_n(records, times).flatten().collect();
        let open = batch(&records);
        let mut sealed = batch(&records);
        sealed.seal();
        // In another order, with others between them.
        let mut shuffled = RawBatch::with_checksums();
        for i in (0..records.len()).rev() {
            shuffled.push_record(&open.get(i));
            shuffled.push(-1, 0, TimestampType::CreateTime, 0, Some(b"between"), None, std::iter::empty());
            if i % 3 == 0 {
                shuffled.seal();
            }
        }
        let encode = |raws: &RawBatch, number: &dyn Fn(usize) -> u32| {
            let mut encoder = Encoder::of_rows(Format::Parquet, &context, records.len() as u64, raws.chunks()).unwrap();
            let numbers: Vec<u32> = (0..records.len()).map(number).collect();
            for (raw, r) in raws.pick(&numbers).zip(&records) {
                encoder.push(&raw, &r.decoded, &r.pipeline).unwrap();
            }
            encoder.finish().unwrap()
        };
        let expected = encode(&open, &|i| i as u32);
        prop_assert!(encode(&sealed, &|i| i as u32) == expected);
        prop_assert!(encode(&shuffled, &|i| 2 * (records.len() - 1 - i) as u32) == expected);
    }

    #[test]
    fn damaged_objects_are_errors_of_kind_corrupt(
        records in vec(any_record(), 1..6),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in option::of(any::<prop::sample::Index>()),
    ) {
        for format in Format::ALL {
            let mut data = encode(format, &context(None, 1), &records).to_vec();
            for (at, byte) in &damage {
                let at = at.index(data.len());
                data[at] = *byte;
            }
            if let Some(cut) = cut {
                data.truncate(cut.index(data.len()));
            }
            for projection in [Projection::All, Projection::NoPayload] {
                let data = Bytes::from(data.clone());
                if let Err(e) = read(format, data, projection, &mut |_| Ok(ControlFlow::Continue(()))) {
                    prop_assert_eq!(e.kind(), Kind::Corrupt, "{}", e);
                }
            }
            if let Err(e) = offsets(format, data.into()) {
                prop_assert_eq!(e.kind(), Kind::Corrupt, "{}", e);
            }
        }
    }
}

#[test]
fn an_object_without_records_is_a_valid_one() {
    for format in Format::ALL {
        let data = encode(format, &context(None, 1), &[]);
        assert_read_back(format, &context(None, 1), &[], &data);
    }
}

#[test]
fn many_row_groups_are_read_back_in_order() {
    let value = vec![b'x'; 1000];
    let rows = 140_000;
    for format in [Format::Parquet, Format::Jsonl(Default::default())] {
        let mut encoder = Encoder::new(format, &context(None, 1)).unwrap();
        let mut one = RawBatch::new();
        one.push(0, 1, TimestampType::CreateTime, 0, None, Some(&value), std::iter::empty());
        for i in 0..rows {
            let raw = RawRecord { offset: i, ..one.get(0) };
            encoder.push(&raw, &Decoded::default(), "orders").unwrap();
        }
        let data = Bytes::from(encoder.finish().unwrap());
        assert_eq!(offsets(format, data.clone()).unwrap(), (0..rows).collect::<Vec<_>>());
        let mut seen = 0;
        read(format, data, Projection::All, &mut |got| {
            assert_eq!((got.raw.offset, got.raw.value), (seen, Some(&value[..])));
            seen += 1;
            Ok(if seen == rows - 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })
        .unwrap();
        assert_eq!(seen, rows - 1, "stops where the visitor says");
    }
}

#[test]
fn foreign_objects_are_refused_with_a_reason() {
    for format in Format::ALL {
        for foreign in [&b""[..], b"PAR1", b"{\"a\":1}\n", b"\x1f\x8b", b"[]\n", b"{}\n"] {
            if format != Format::Parquet && foreign.is_empty() {
                continue; // an uncompressed object without records
            }
            let read =
                read(format, Bytes::from_static(foreign), Projection::All, &mut |_| Ok(ControlFlow::Continue(())));
            assert_eq!(read.unwrap_err().kind(), Kind::Corrupt, "{format:?} {foreign:?}");
        }
    }
}

#[test]
fn a_decoded_time_that_engines_cannot_read_is_left_out() {
    let decoded = Decoded { event_time_us: Some(END_US), failed_at_us: Some(-1), ..Decoded::default() };
    for format in Format::ALL {
        let mut encoder = Encoder::new(format, &context(None, 1)).unwrap();
        let mut one = RawBatch::new();
        one.push(0, i64::MAX, TimestampType::CreateTime, 0, None, None, std::iter::empty());
        encoder.push(&one.get(0), &decoded, "orders").unwrap();
        read(format, encoder.finish().unwrap().into(), Projection::All, &mut |got| {
            assert_eq!((got.decoded.event_time_us, got.decoded.failed_at_us), (None, None));
            assert_eq!(got.raw.timestamp_ms, i64::MAX);
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    }
}
