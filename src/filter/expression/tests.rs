//! What conditions mean, what is refused, and that none of them can do harm.

use super::columns::OfRecord;
use super::*;
use crate::error::Kind;
use crate::format::ArchivedRecord;
use crate::format::schema::COLUMNS;
use crate::record::{Decoded, Header, PayloadState, RawBatch, RecordId, TimestampType};
use proptest::prelude::*;

const VALUE: &str = r#"{"order": {"id": 5, "total": 9.5, "paid": true, "note": null}, "items": [{"sku": "a"}], "at": "2026-10-08T14:00:00Z", "select": "x"}"#;

/// Judges a record that has this value.
fn judge_of(value: Option<&[u8]>, condition: &str) -> String {
    let mut batch = RawBatch::new();
    let headers = [("x-tries", "1"), ("x-tries", "2"), ("odd name", "Ä")]
        .map(|(name, value)| Header { name: name.as_bytes(), value: Some(value.as_bytes()) });
    let ms = 1_791_468_000_000;
    batch.push(7, ms, TimestampType::CreateTime, -1, Some(b"\xff"), value, headers.into_iter());
    let record = ArchivedRecord {
        id: RecordId::parse("orders-dlq/0/7").unwrap(),
        cluster_id: None,
        raw: batch.get(0),
        key_size: Some(1),
        value_size: value.map(|v| v.len() as i32),
        decoded: Decoded {
            dialect: "streams".into(),
            error_class: Some("java.sql.SQLException".into()),
            error_message: Some("100% of a_b\nfailed".into()),
            error_code: Some(500),
            payload_state: PayloadState::Present,
            ..Decoded::default()
        },
        pipeline: "pipe",
        archived_at_us: ms * 1000,
    };
    match Expression::new(condition).unwrap_or_else(|e| panic!("{condition}: {e}")).judge(&OfRecord::new(&record)) {
        Verdict::True => "true".into(),
        Verdict::False => "false".into(),
        Verdict::Null => "null".into(),
        Verdict::Unjudged(why) => why.to_string(),
    }
}

fn judge(condition: &str) -> String {
    judge_of(Some(VALUE.as_bytes()), condition)
}

#[test]
fn conditions_hold_as_in_sql() {
    for condition in [
        "error_code = 500",
        "error_code >= 500 AND error_code < 501.5 AND NOT error_code <> 500",
        "ERROR_CODE == 500",
        "error_code BETWEEN 400 AND 599",
        "error_code NOT BETWEEN 1 AND 2 AND error_code > -1.5e3",
        "error_code IN (404, 500) AND dialect NOT IN ('knative', 'connect')",
        "(error_code = 1 OR dialect = 'streams') AND pipeline_name = 'pipe'",
        "error_class LIKE '%SQL_xception' AND error_class NOT LIKE '%Sql%'",
        "error_class ILIKE '%sqlexception'",
        "error_message LIKE '100!% of a!_b%' ESCAPE '!'",
        "error_message LIKE '100%'",
        "error_class ~ '^java[.]' AND error_class !~ '^sql' AND error_class ~* 'SQLEXCEPTION$'",
        "error_class REGEXP 'sql'",
        "lower(error_class) = 'java.sql.sqlexception' AND upper(dialect) = 'STREAMS' AND length(dialect) = 7",
        "kafka_timestamp >= '2026-10-08' AND kafka_timestamp < TIMESTAMP '2026-10-09 00:00:00'",
        "'2026-10-08T13:59:59.999Z' < kafka_timestamp AND kafka_timestamp_ms = 1791468000000",
        "record_id = 'orders-dlq/0/7' AND kafka_topic = 'orders-dlq' AND kafka_offset = 7",
        "origin_topic IS NULL AND error_code IS NOT NULL",
        "key IS NULL AND kafka_key_text IS NULL AND kafka_key_bytes IS NOT NULL AND kafka_key_size = 1",
        "value LIKE '%\"sku\": \"a\"%' AND value = kafka_value_text",
        "value_json.order.id = 5 AND value_json['order']['total'] > 9 AND value_json.order.total = 9.5",
        "value_json.order.paid AND value_json.order.paid = TRUE AND NOT value_json.order.paid = false",
        "value_json.items[0].sku = 'a' AND value_json.items[1] IS NULL AND value_json.items IS NOT NULL",
        "value_json.order.note IS NULL AND value_json.nothing.here IS NULL",
        "value_json.at = kafka_timestamp AND value_json.at = '2026-10-08T14:00:00Z' AND value_json.select = 'x'",
        "headers['x-tries'] = '2' AND headers.\"odd name\" = 'Ä' AND kafka_headers['x'] IS NULL",
        "dialect = 'it''s' OR TRUE",
    ] {
        assert_eq!(judge(condition), "true", "{condition}");
        assert_eq!(judge(&format!("NOT ({condition})")), "false", "{condition}");
    }
}

#[test]
fn what_is_null_does_not_match_and_neither_does_its_opposite() {
    for condition in ["origin_topic = 'a'", "origin_topic LIKE '%'", "attempts > 1", "value_json.order.note = 1"] {
        assert_eq!(judge(condition), "null", "{condition}");
        assert_eq!(judge(&format!("NOT {condition}")), "null", "{condition}");
        assert_eq!(judge(&format!("{condition} OR error_code = 500")), "true", "{condition}");
        assert_eq!(judge(&format!("{condition} AND error_code = 1")), "false", "{condition}");
    }
    assert_eq!(judge_of(None, "value_json.a = 1"), "null");
    assert_eq!(judge_of(None, "value_json IS NULL AND value IS NULL"), "true");
}

#[test]
fn other_types_cannot_be_judged_unless_something_else_decides() {
    let text = "value_json.order.id is a number, where the condition wants text";
    for condition in [
        "value_json.order.id = '5'",
        "value_json.order.id LIKE '5'",
        "length(value_json.order.id) = 1",
        "'5' = value_json.order.id",
        "value_json.order.id IN ('5')",
    ] {
        assert_eq!(judge(condition), text, "{condition}");
        assert_eq!(judge(&format!("NOT ({condition})")), text, "{condition}");
        assert_eq!(judge(&format!("{condition} OR dialect = 'streams'")), "true", "{condition}");
        assert_eq!(judge(&format!("({condition}) AND dialect = 'x'")), "false", "{condition}");
    }
    // It would not match, whatever the other part is; its opposite might.
    assert_eq!(judge("value_json.order.id = 'x' AND origin_topic = 'a'"), "null");
    assert_eq!(judge("NOT (value_json.order.id = 'x' AND origin_topic = 'a')"), text);
    assert_eq!(judge("value_json.order"), "value_json.order is an object, where the condition wants true or false");
    assert_eq!(judge("value_json.at < 5"), "value_json.at is text, where the condition wants a number");
    assert_eq!(
        judge("value_json.select < kafka_timestamp"),
        "value_json.select is text, where the condition wants a time"
    );
    for bytes in [&b"no json"[..], b"", b"\xff", "[".repeat(100_000).as_bytes()] {
        assert_eq!(judge_of(Some(bytes), "value_json.a IS NULL"), "its value is not JSON");
    }
}

#[test]
fn what_is_not_understood_is_told_with_its_place() {
    for (condition, told) in [
        ("", " is empty: leave it out"),
        ("  ", " is empty: leave it out"),
        ("error_clas = 'x'", " at character 1: there is no column \"error_clas\"; did you mean \"error_class\"?"),
        (
            "dialect = 'a' AND topic_ = 'x'",
            " at character 19: there is no column \"topic_\"; did you mean \"topic_generation\"?",
        ),
        ("xyz = 1", " at character 1: there is no column \"xyz\". Columns are those of schemas/record.md; key"),
        ("dialect = \"knative\"", " at character 11: there is no column \"knative\"; constants are in single quotes"),
        ("error_code = '500'", " at character 1: error_code is a number, a constant is text: constants in single"),
        ("dialect = 5", " at character 1: dialect is text, a constant is a number"),
        ("dialect = NULL", " at character 11: nothing is equal to NULL: use IS NULL"),
        ("kafka_timestamp > '2h'", " at character 1: \"2h\" is not a time: use '2026-10-08'"),
        ("error_code LIKE '5%'", " at character 1: error_code is a number, not text"),
        ("dialect ~ '('", " at character 11: \"(\" is not a regular expression: unclosed group"),
        ("dialect ~ '(((a{100}){100}){100})'", " at character 11: "),
        ("dialect LIKE error_class", " at character 14: a pattern of LIKE has to be a constant text"),
        ("dialect", " at character 1: dialect is text, not a condition"),
        ("error_code + 1 = 2", " at character 1: this part of SQL is not taken: taken are columns"),
        ("error_code = 1; DROP TABLE x", " at character 15: ; is not expected here"),
        ("error_code = 1 error_code", " at character 16: error_code is not expected here: join conditions by AND"),
        ("error_code = ", ": Expected: an expression, but it ends there"),
        ("(error_code = 1", ": Expected: ), but it ends there"),
        ("dialect = 'open", " at character 11: Unterminated string literal"),
        ("error_code =\n  )", " at line 2, character 3: Expected: an expression, found: )"),
        ("error_code IN (SELECT 1)", " at character 1: this part of SQL is not taken"),
        ("error_code IN (attempts)", " at character 16: IN takes constants only"),
        ("exists(dialect)", ""),
        ("now() > kafka_timestamp", " at character 1: no such function; taken are"),
        ("headers = 'x'", " at character 1: headers are asked for by name: headers['x-retries']"),
        ("headers['a'].b = 'x'", " at character 1: a header is asked for by its name alone"),
        ("dialect.x = 'x'", " at character 1: dialect has no fields"),
        ("dialet.x = 'x'", " at character 1: there is no column \"dialet\"; did you mean \"dialect\"?"),
        ("kafka_value_bytes = 'x'", " at character 1: bytes can be compared with nothing"),
        ("value_json[1:2] = 1", ""),
        ("error_code = 1e999", " at character 14: this constant is not taken"),
    ] {
        let error = Expression::new(condition).unwrap_err();
        assert_eq!(error.kind(), Kind::Config);
        let expected = format!("--where{told}");
        assert!(error.message().starts_with(&expected), "{condition}: {error}");
        assert!(!error.message().contains('\n'), "{error}");
    }
}

/// Each in a thread with the smallest stack that the program has.
#[test]
fn neither_length_nor_depth_exhausts_the_stack() {
    let long = |part: &str| part.repeat(8192 / part.len());
    let deep = [
        long("("),
        long("NOT "),
        format!("{}error_code = 1", "(".repeat(4000)),
        format!("{}1 = 1", long("1=1 OR ").get(..8100).unwrap().rsplit_once("1=1").unwrap().0),
        format!("{}1", long("1+")),
        format!("{}1", long("1=").get(..8190).unwrap()),
        format!("dialect{}", " IS NULL".repeat(1000)),
        format!("dialect{}", "::text".repeat(1000)),
        format!("value_json{} = 1", ".a".repeat(4000)),
        format!("value_json{} = 1", "[0]".repeat(2500)),
        format!("{}dialect{} = ''", "lower(".repeat(700), ")".repeat(700)),
        format!("dialect IN ({}'')", "'a',".repeat(2000)),
        format!("{}1", long("-")),
        format!("CASE {}", long("CASE ")),
    ];
    for condition in deep {
        let judged = std::thread::spawn(move || {
            if let Ok(expression) = Expression::new(&condition) {
                let _ = expression.judge(&Nothing);
                drop(expression.clone());
            }
        });
        judged.join().unwrap();
    }
    assert!(Expression::new(&"x".repeat(8193)).unwrap_err().message().contains("at most 8192"));
    let deepest = format!("{}error_code = 1{}", "(".repeat(200), ")".repeat(200));
    assert!(Expression::new(&deepest).unwrap_err().message().contains("nested deeper than 50"));
}

/// Of which nothing is known.
struct Nothing;

impl Subject for Nothing {
    fn column(&self, _: usize) -> Option<Value<'_>> {
        None
    }
    fn header(&self, _: &str) -> Option<Value<'_>> {
        None
    }
    fn json(&self) -> Parsed<'_> {
        Parsed::NotKnown
    }
}

#[test]
fn every_column_can_be_asked_for_by_its_name() {
    for column in COLUMNS.iter().filter(|c| c.name != "kafka_headers") {
        assert!(columns::find(column.name).is_some(), "{}", column.name);
        assert!(judge(&format!("{} IS NULL OR {0} IS NOT NULL", column.name)) == "true");
        let needs = Expression::new(&format!("{} IS NULL", column.name)).unwrap().needs_payload();
        assert_eq!(needs, column.is_payload(), "{}", column.name);
    }
    for payload in ["key = 'a'", "value = 'a'", "headers['a'] = 'a'", "dialect = 'a' OR NOT value_json.a IN (1)"] {
        assert!(Expression::new(payload).unwrap().needs_payload(), "{payload}");
    }
}

#[test]
fn large_numbers_of_json_are_not_rounded() {
    let json = br#"{"id": 9007199254740993, "most": 18446744073709551615}"#;
    assert_eq!(judge_of(Some(json), "value_json.id = 9007199254740993 AND value_json.id <> 9007199254740992"), "true");
    assert_eq!(judge_of(Some(json), "value_json.most = 18446744073709551615"), "true");
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[a-z_.'\"()\\[\\]=<>~0-9 \\-%;:{}$@\n]{0,40}", tail in any::<String>()) {
        for condition in [text.clone(), tail.clone(), format!("error_class {text}"), format!("value_json.{text}{tail}")] {
            if let Ok(expression) = Expression::new(&condition) {
                let _ = expression.judge(&Nothing);
            }
        }
    }

    #[test]
    fn words_in_any_order_do_not_make_it_panic(words in proptest::collection::vec(proptest::sample::select(&[
        "error_code", "dialect", "value_json.a", "headers['x']", "AND", "OR", "NOT", "(", ")", "=", "<", "LIKE", "~", "IN", "IS",
        "NULL", "'a'", "'%'", "5", "-", "BETWEEN", ",", "lower(", "TIMESTAMP", "CASE", "SELECT", "[", "]", "CAST(", "AS", "INTERVAL",
        "ESCAPE", "kafka_timestamp",
    ][..]), 0..14)) {
        if let Ok(expression) = Expression::new(&words.join(" ")) {
            let _ = expression.judge(&Nothing);
        }
    }
}
