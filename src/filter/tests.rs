//! What a filter matches and prunes, one rule a test, and against records drawn by chance.

use super::*;
use crate::cut::{self, CutRange, Tables};
use crate::error::Kind;
use crate::format::{self, Format, Projection};
use crate::ledger::{DataObject, Genesis, LEDGER_VERSION, Manifest, Shared};
use crate::record::{Header, RawBatch, TimestampType};
use bytes::Bytes;
use proptest::prelude::*;
use std::ops::ControlFlow;
use std::sync::LazyLock;

fn refused(doc: FilterDoc) -> String {
    let error = Filter::new(doc).unwrap_err();
    assert_eq!(error.kind(), Kind::Config);
    assert!(!error.message().contains('\n'), "one line: {error}");
    error.message().to_owned()
}

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(|t| (*t).to_owned()).collect()
}

#[test]
fn what_selects_nothing_is_refused() {
    let doc = FilterDoc::default;
    let offsets = |from, to| refused(FilterDoc { offset_from: from, offset_to: to, ..doc() });
    assert!(offsets(Some(5), Some(5)).contains("5..5 selects nothing"));
    assert!(offsets(Some(6), Some(5)).contains("6..5 selects nothing"));
    assert!(offsets(None, Some(0)).contains("..0 selects nothing"));
    assert!(offsets(Some(-1), None).contains("not negative"));
    let times = refused(FilterDoc { since_ms: Some(2000), until_ms: Some(2000), ..doc() });
    assert!(times.contains("1970-01-01T00:00:02Z is not before"), "{times}");
    assert!(refused(FilterDoc { record_id: Some(vec![]), ..doc() }).contains("names no record"));
    assert!(refused(FilterDoc { record_id: Some(texts(&["a/b"])), ..doc() }).contains("TOPIC/PARTITION/OFFSET"));
    let regex = refused(FilterDoc { error_message: texts(&["("]), ..doc() });
    assert_eq!(regex, r#"--error-message "(" is not a regular expression: unclosed group"#);
    assert!(refused(FilterDoc { topic: texts(&["^["]), ..doc() }).starts_with("--topic \"^[\""));
    for contradiction in [
        FilterDoc { topic: texts(&["b"]), ..doc() },
        FilterDoc { partition: vec![1], ..doc() },
        FilterDoc { offset_from: Some(8), ..doc() },
    ] {
        let why = refused(FilterDoc { record_id: Some(texts(&["a/0/7"])), ..contradiction });
        assert!(why.contains("contradicts"), "{why}");
    }
}

#[test]
fn equal_selections_have_equal_bytes() {
    let one = Filter::new(FilterDoc {
        topic: texts(&["b", "a", "b"]),
        error_code: vec![500, 404, 500],
        record_id: Some(texts(&["b/0/10", "a/1/2", "b/0/9"])),
        since_ms: Some(0),
        ..FilterDoc::default()
    })
    .unwrap();
    let json = serde_json::to_string(&one).unwrap();
    assert_eq!(
        json,
        r#"{"topic":["a","b"],"since_ms":0,"error_code":[404,500],"record_id":["a/1/2","b/0/9","b/0/10"]}"#
    );
    assert_eq!(serde_json::from_str::<Filter>(&json).unwrap(), one);
    assert_eq!(serde_json::to_string(&Filter::default()).unwrap(), "{}");
    assert!(
        serde_json::from_str::<Filter>(r#"{"topics":["a"]}"#).is_err(),
        "a filter of a newer version is not cut short"
    );
    assert!(serde_json::from_str::<Filter>(r#"{"topic":["^("]}"#).is_err());
}

#[test]
fn offsets_as_typed() {
    for (text, want) in
        [("5..9", (Some(5), Some(9))), ("5..", (Some(5), None)), ("..9", (None, Some(9))), ("7", (Some(7), Some(8)))]
    {
        assert_eq!(parse_offsets(text).unwrap(), want, "{text}");
    }
    for bad in ["", "..", "a..b", "-1..5", "1...5", "1-5", "99999999999999999999.."] {
        assert_eq!(parse_offsets(bad).unwrap_err().kind(), Kind::Config, "{bad}");
    }
}

#[test]
fn topics_prune_folders_only_where_all_are_named() {
    let of = |topics: &[&str]| Filter::new(FilterDoc { topic: texts(topics), ..FilterDoc::default() }).unwrap();
    let folders: Vec<_> = of(&["ab", "007"]).topic_folders().unwrap().into_iter().collect();
    assert_eq!(folders, ["ab", "p-007.629f4cf9"]);
    assert_eq!(of(&["ab", "^x"]).topic_folders(), None);
    assert_eq!(of(&[]).topic_folders(), None);
}

#[test]
fn generations_are_different_records() {
    let id = RecordId::parse("ab/0/7@g2").unwrap();
    let filter = Filter::of_record(&id);
    assert!(filter.may_match_offsets("ab", 0, 2, 7, 8) && !filter.may_match_offsets("ab", 0, 1, 0, 100));
    assert!(!filter.may_match_offsets("ab", 0, 2, 8, i64::MAX) && !filter.may_match_offsets("ab", 0, 2, 0, 7));
    assert_eq!(Filter::new(filter.doc().clone()).unwrap(), filter);
}

/// `show` then took the partition for one without cuts.
#[test]
fn the_largest_offset_is_not_pruned_with_the_last_cut() {
    let filter = Filter::of_record(&RecordId::parse(&format!("ab/0/{}", i64::MAX)).unwrap());
    assert!(filter.may_match_offsets("ab", 0, 1, 7, i64::MAX) && !filter.may_match_offsets("ab", 0, 1, 0, 7));
    assert!(!filter.may_match_offsets("ab", 0, 2, 7, i64::MAX));
}

#[test]
fn a_class_is_named_in_full_or_by_its_last_segment() {
    let matches = |wanted: &str, class: &str| {
        let filter = Filter::new(FilterDoc { error_class: texts(&[wanted]), ..FilterDoc::default() }).unwrap();
        filter.class_matches(Some(class))
    };
    assert!(matches("java.sql.SQLException", "java.sql.SQLException"));
    assert!(matches("SQLException", "java.sql.SQLException") && matches("SQLException", "SQLException"));
    assert!(!matches("sql.SQLException", "java.sql.SQLException") && !matches("Exception", "java.sql.SQLException"));
    assert!(!matches("java.sql.SQLException", "SQLException") && !matches("^SQL", "java.sql.SQLException"));
    assert!(matches("A b. c", "A b. c") && !matches(" c", "A b. c") && matches("x.", "x."));
}

#[test]
fn seconds_are_not_taken_for_milliseconds() {
    assert_eq!(parse_time("1700000000000", 0).unwrap(), 1_700_000_000_000);
    assert_eq!(parse_time("100000000000", 0).unwrap(), LEAST_MS);
    for (typed, meant) in [("1700000000", "1700000000000 (2023-11-14T22:13:20Z)?"), ("99999999999", "99999999999000 (")]
    {
        let error = parse_time(typed, 0).unwrap_err();
        assert_eq!(error.kind(), Kind::Config);
        let message = error.message();
        assert!(message.contains(&format!("did you mean {meant}")) && message.contains("milliseconds"), "{message}");
    }
    assert!(parse_time("20261008", 0).unwrap_err().message().contains("2026-10-08"));
    assert!(parse_time("99999999999999999999", 0).is_err());
}

#[test]
fn exact_texts_and_regular_expressions() {
    let text = |t: &str| Text::parse("--topic", t).unwrap();
    assert!(text("a.b").matches("a.b") && !text("a.b").matches("axb"));
    assert!(text("^a.b").matches("axbc") && text("^a.b$").matches("axb") && !text("^a").matches("ba"));
    assert!(super::any(&[], None) && !super::any(&[text("^")], None));
    assert!(super::any(&[text("x"), text("^")], Some("")));
}

static TABLES: LazyLock<Tables> = LazyLock::new(Tables::builtin);

/// A Streams dead letter (class, message) or one of no dialect.
type Parts = (i64, Option<(String, String)>);

fn object(parts: &[Parts]) -> (Manifest, DataObject, Bytes) {
    object_of(parts, false)
}

/// `shared`: by two pipelines, whose rows take turns.
fn object_of(parts: &[Parts], shared: bool) -> (Manifest, DataObject, Bytes) {
    let mut batch = RawBatch::new();
    for (i, (ms, error)) in parts.iter().enumerate() {
        let headers = error.iter().flat_map(|(class, message)| {
            [("__streams.errors.exception", class), ("__streams.errors.message", message)]
                .map(|(name, value)| Header { name: name.as_bytes(), value: Some(value.as_bytes()) })
        });
        let headers: Vec<_> = headers.collect();
        batch.push(i as i64, *ms, TimestampType::CreateTime, -1, None, Some(b"v"), headers.iter().copied());
    }
    let genesis = Genesis {
        version: LEDGER_VERSION,
        archive_id: "a".into(),
        topic: "ab".into(),
        partition: 0,
        generation: 1,
        topic_id: None,
        first_offset: 0,
        previous_sha256: None,
        created_at: String::new(),
    };
    let rows: Vec<u32> = (0..parts.len() as u32).collect();
    let turns: Vec<u32> = rows.iter().map(|row| row % 2).collect();
    let groups = [cut::Group {
        dt: "1970-01-01".into(),
        pipeline: (!shared).then(|| "pipe".into()),
        shared: shared.then(|| Shared::new(texts(&["other", "pipe"]), &turns)),
        rows,
    }];
    let range = CutRange { from: 0, to: parts.len() as i64, cut_at_us: 0 };
    let intent = cut::intent(&genesis, range, &batch, &groups, Vec::new(), Format::Parquet, &TABLES).unwrap();
    let encoded = cut::encode(&intent, &intent.objects[0], None, batch.iter(), Format::Parquet, &TABLES, "i").unwrap();
    let manifest = Manifest {
        version: LEDGER_VERSION,
        archive_id: "a".into(),
        topic: "ab".into(),
        partition: 0,
        generation: 1,
        topic_id: None,
        sequence: 0,
        from: 0,
        to: parts.len() as i64,
        cut_at_us: 0,
        schema_version: intent.schema_version,
        leader_epoch: -1,
        rows: parts.len() as u64,
        objects: vec![encoded.object.clone()],
        gaps: Vec::new(),
        previous_sha256: String::new(),
    };
    (manifest, encoded.object, encoded.bytes)
}

fn matching(filter: &Filter, bytes: Bytes) -> u64 {
    let mut matching = 0;
    format::read(Format::Parquet, bytes, Projection::NoPayload, &mut |r| {
        matching += u64::from(filter.matches(&r));
        Ok(ControlFlow::Continue(()))
    })
    .unwrap();
    matching
}

#[test]
fn classes_cut_in_manifests_and_folded_counts_still_match() {
    let long = format!("x.{}", "ä".repeat(150));
    let error = |class: &str| Some((class.to_owned(), "m".to_owned()));
    let (_, o, _) = object(&[(0, error(&long))]);
    let class = |c: &str| Filter::new(FilterDoc { error_class: texts(&[c]), ..FilterDoc::default() }).unwrap();
    for wanted in [long.as_str(), "^.*ä$"] {
        assert!(class(wanted).may_match_object(&o), "{wanted}");
        assert_eq!(class(wanted).counted(&o), None, "the manifest cannot tell");
    }
    assert!(!class("x.y").may_match_object(&o));
    assert!(class("ä").may_match_object(&o), "a last segment may lie behind the cut");

    let many: Vec<Parts> = (0..300).map(|i| (0, error(&format!("E{i}")))).collect();
    let (_, o, bytes) = object(&many);
    for wanted in ["E0", "E299"] {
        assert!(class(wanted).may_match_object(&o));
        assert_eq!(class(wanted).counted(&o), None);
        assert_eq!(matching(&class(wanted), bytes.clone()), 1);
    }
    assert_eq!(Filter::default().counted(&o).unwrap().iter().map(|c| c.rows).sum::<u64>(), 300);
}

fn parts() -> impl Strategy<Value = Parts> {
    let ms = prop_oneof![Just(-1), 0..5i64, Just(END_MS - 1), Just(END_MS), Just(i64::MAX)];
    let error = ("(p[.])?[AB]", "[xy]{1,2}");
    (ms, proptest::option::of(error))
}

fn docs() -> impl Strategy<Value = FilterDoc> {
    let time = || proptest::option::of(0..6i64);
    let some = |all: &'static [&'static str]| {
        proptest::collection::vec(proptest::sample::select(all).prop_map(str::to_owned), 0..2)
    };
    (
        (time(), time(), time(), time()),
        some(&["streams", "unknown", "^s", "other"]),
        some(&["A", "p.B", "^[AB]", "C"]),
        some(&["x", "y$"]),
        some(&["pipe", "^p", "other"]),
        some(&["ab", "^a", "other"]),
        proptest::option::of(proptest::collection::vec(
            proptest::sample::select(&["ab/0/0", "ab/0/3", "ab/0/2@g2"][..]),
            1..3,
        )),
        proptest::option::of(proptest::sample::select(
            &[
                "error_class = 'A'",
                "error_class <> 'p.B' AND error_class IS NOT NULL",
                "dialect <> 'streams' OR error_message = 'x'",
                "NOT (error_class IN ('p.B', 'A'))",
                "pipeline_name LIKE 'p%' AND error_code IS NULL",
                "error_code = 5 OR kafka_offset > 1",
                "error_code = 5 AND kafka_offset > 1",
            ][..],
        )),
    )
        .prop_map(
            |(
                (offset_from, offset_to, since_ms, until_ms),
                dialect,
                error_class,
                error_message,
                pipeline,
                topic,
                ids,
                condition,
            )| {
                FilterDoc {
                    offset_from,
                    offset_to,
                    since_ms,
                    until_ms,
                    dialect,
                    error_class,
                    error_message,
                    pipeline,
                    topic,
                    record_id: ids.map(|ids| texts(&ids)),
                    condition: condition.map(str::to_owned),
                    ..FilterDoc::default()
                }
            },
        )
}

proptest! {
    #[test]
    fn pruning_leaves_no_matching_record_out(
        parts in proptest::collection::vec(parts(), 1..6),
        shared in proptest::bool::ANY,
        doc in docs(),
    ) {
        let Ok(filter) = Filter::new(doc) else { return Ok(()) };
        let (manifest, object, bytes) = object_of(&parts, shared);
        let matching = matching(&filter, bytes);
        if matching > 0 {
            prop_assert!(filter.may_match_partition("ab", 0));
            prop_assert!(filter.may_match_manifest(&manifest));
            prop_assert!(filter.may_match_object(&object));
            prop_assert!(filter.topic_folders().is_none_or(|folders| folders.contains("ab")));
        }
        if filter.may_match_manifest(&manifest) && let Some(counts) = filter.counted(&object) {
            prop_assert_eq!(counts.iter().map(|c| c.rows).sum::<u64>(), matching);
        }
    }
}

/// The same filter in SQL's words.
fn in_sql(doc: &FilterDoc) -> String {
    let mut all = vec!["TRUE".to_owned()];
    let any_of = |column: &str, texts: &[String], exact: fn(&str, &str) -> String| {
        let of = |text: &String| match text.starts_with('^') {
            true => format!("{column} ~ '{text}'"),
            false => exact(column, text),
        };
        let each: Vec<_> = texts.iter().map(of).collect();
        (!each.is_empty()).then(|| format!("({})", each.join(" OR ")))
    };
    let equal: fn(&str, &str) -> String = |column, text| format!("{column} = '{text}'");
    all.extend(any_of("kafka_topic", &doc.topic, equal));
    all.extend(any_of("pipeline_name", &doc.pipeline, equal));
    all.extend(any_of("dialect", &doc.dialect, equal));
    all.extend(any_of("error_class", &doc.error_class, |c, text| format!("{c} = '{text}' OR {c} LIKE '%.{text}'")));
    all.extend(any_of("error_message", &doc.error_message, |column, text| format!("{column} ~ '{text}'")));
    let bound = |column: &str, op: &str, at: Option<i64>| at.map(|at| format!("{column} {op} {at}"));
    all.extend(bound("kafka_offset", ">=", doc.offset_from));
    all.extend(bound("kafka_offset", "<", doc.offset_to));
    all.extend(bound("kafka_timestamp IS NOT NULL AND kafka_timestamp_ms", ">=", doc.since_ms));
    all.extend(bound("kafka_timestamp IS NOT NULL AND kafka_timestamp_ms", "<", doc.until_ms));
    all.extend(doc.record_id.as_ref().map(|ids| format!("record_id IN ('{}')", ids.join("', '"))));
    all.extend(doc.condition.as_ref().map(|condition| format!("({condition})")));
    all.join(" AND ")
}

proptest! {
    /// Each reads the same records as the other, and neither prunes one away.
    #[test]
    fn a_condition_that_says_the_same_selects_the_same(
        parts in proptest::collection::vec(parts(), 1..6),
        shared in proptest::bool::ANY,
        doc in docs(),
    ) {
        let condition = Some(in_sql(&doc));
        let Ok(filter) = Filter::new(doc) else { return Ok(()) };
        let same = Filter::new(FilterDoc { condition, ..FilterDoc::default() }).unwrap();
        let (_, object, bytes) = object_of(&parts, shared);
        let mut matching = 0;
        format::read(Format::Parquet, bytes, Projection::NoPayload, &mut |r| {
            assert_eq!(filter.matches(&r), same.matches(&r), "{}: {:?}", r.id, same.doc().condition);
            matching += usize::from(same.matches(&r));
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
        prop_assert!(matching == 0 || same.may_match_object(&object));
    }
}

#[test]
fn manifests_prune_by_a_condition_over_what_they_tell() {
    let error = |class: &str| Some((class.to_owned(), "m".to_owned()));
    let (_, o, _) = object(&[(0, error("A")), (0, error("B")), (0, None)]);
    let may = |condition: &str| {
        let condition = Some(condition.to_owned());
        Filter::new(FilterDoc { condition, ..FilterDoc::default() }).unwrap().may_match_object(&o)
    };
    assert!(may("error_class = 'A'") && may("error_class IS NULL") && may("error_message = 'x'"));
    assert!(!may("error_class = 'C'") && !may("error_class = 'C' AND error_message = 'x'"));
    assert!(!may("error_class = 'C' AND NOT value_json.a = 1"), "null and what is not known is never true");
    assert!(may("NOT (error_class = 'C' AND error_message = 'x')"));
    assert!(may("error_class = 'C' OR error_message = 'x'") && may("NOT error_class = 'C'"));
    assert!(!may("error_class = 'A' AND dialect = 'unknown'"), "no row has both");
    assert!(!may("pipeline_name = 'other'") && !may("error_code > 0") && !may("value_json.a = 1 AND dialect = 'x'"));
    let (_, shared, _) = object_of(&[(0, None), (0, None)], true);
    let condition = Some("pipeline_name = 'other'".to_owned());
    assert!(Filter::new(FilterDoc { condition, ..FilterDoc::default() }).unwrap().may_match_object(&shared));
}

/// Plans keep them: a hash or a name that changes would let a restore go on with other records.
#[test]
fn samples_and_conditions_stay_what_they_are_in_stored_plans() {
    assert_eq!(Filter::hash(&RecordId::parse("orders-dlq/0/42").unwrap()), HASH);
    let doc =
        FilterDoc { condition: Some("error_code = 5".into()), sample: Some(3), limit: Some(2), ..FilterDoc::default() };
    let filter = Filter::new(doc).unwrap().sampled(7);
    let json = serde_json::to_string(&filter).unwrap();
    assert_eq!(json, r#"{"where":"error_code = 5","sample":3,"sample_to":7,"limit":2}"#);
    assert_eq!(serde_json::from_str::<Filter>(&json).unwrap(), filter);
    assert!(serde_json::from_str::<Filter>(r#"{"where":"error_code = "}"#).is_err());
    let only = |sample, limit| Filter::new(FilterDoc { sample, limit, ..FilterDoc::default() });
    assert!(only(Some(3), Some(2)).unwrap().is_all(), "they select from all");
    assert!(only(Some(0), None).is_err() && only(None, Some(0)).is_err());
}

const HASH: u64 = 7_873_015_507_134_442_482;

#[test]
fn an_empty_text_is_no_filter() {
    let edits: [fn(&mut FilterDoc); 3] = [
        |d| d.topic = vec![String::new()],
        |d| d.error_message = vec!["a".into(), String::new()],
        |d| d.pipeline = vec![String::new()],
    ];
    for edit in edits {
        let mut doc = FilterDoc::default();
        edit(&mut doc);
        let error = Filter::new(doc).unwrap_err();
        assert_eq!(error.kind(), crate::Kind::Config);
        assert!(error.message().contains("is empty"), "{error}");
    }
}
