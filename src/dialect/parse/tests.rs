//! What is wrong in a table is named; what is documented is right; the digest is of the meaning.

use crate::dialect::table::Field;
use crate::dialect::tests::{MY_APP, batch_of, decode, h};
use crate::dialect::{BUILTIN, Dialects, restore_target};
use crate::routing::Routing;
use crate::topics::{TopicMatch, TopicSettings};
use std::borrow::Cow;

#[test]
fn mistakes_in_a_table_are_named() {
    let error = |from: &str, to: &str| {
        assert!(MY_APP.contains(from), "{from}");
        Dialects::from_tables([("w.toml", MY_APP.replace(from, to).as_str())]).unwrap_err().message().to_owned()
    };
    let starts = |is: String, start: &str| assert!(is.starts_with(start), "{is}");
    starts(error("none = ", "noen = "), "w.toml: line 6: `noen = [\"x-not-mine\"]`: unknown field `noen`");
    starts(error("failed_at = ", "failed_on = "), "w.toml: line 9: `failed_on = ");
    starts(error("decimal-or-be", "hex"), "w.toml: line 11: `origin_offset = ");
    starts(error("decimal-or-be", "text"), "w.toml: line 11: fields.origin_offset.from[0].encoding: does not fit");
    starts(error("\"my-app\"", "\"unknown\""), "w.toml: line 2: name: ");
    starts(error("\"my-app\"", "\"Wolve Rine\""), "w.toml: line 2: name: ");
    starts(error("[\"exception-type\"] }", "[] }"), "w.toml: line 8: fields.error_class.from: names no header");
    starts(error("[\"exception-type\"] }", "[\"a\", \"a\"] }"), "w.toml: line 8: fields.error_class.from[1]: ");
    starts(error("[\"exception-type\"] }", "[{ header = \"a\", hedaer = 1 }] }"), "w.toml: line 8: ");
    starts(error("[\"failed-at\"] }", "[\"failed-at\"], always = true }"), "w.toml: line 9: fields.failed_at.always: ");
    starts(error("all = [\"exception-type\", \"original-destination\"]", ""), "w.toml: line 4: detect: ");
    starts(error("names = [", "prefixes = [\"\"]\nnames = ["), "w.toml: line 13: strip.prefixes: ");
    starts(error("[detect]", "pipeline = [\"attempts\"]\n[detect]"), "w.toml: line 4: ");
    starts(error("[detect]", "replaced = [\"attempts\"]\n[detect]"), "w.toml: line 4: replaced: `attempts`");
    let key = "[failure_key]\nfields = [\"origin_group\"]\noptional = [\"origin_group\"]\n[detect]";
    starts(error("[detect]", key), "w.toml: line 5: failure_key.fields: ");
    let twice = Dialects::from_tables([("a.toml", MY_APP), ("b.toml", MY_APP)]).unwrap_err();
    starts(twice.message().to_owned(), "b.toml: name: `my-app` is another table's name too");
}

#[test]
fn the_documented_table_is_a_table() {
    let readme = include_str!("../../../schemas/dialects/README.md");
    let (_, rest) = readme.split_once("```toml\n").unwrap();
    let (table, _) = rest.split_once("```").unwrap();
    assert_eq!(Dialects::from_tables([("README.md", table)]).unwrap().names().next(), Some("my-app"));
    for field in Field::ALL {
        assert!(readme.contains(&format!("`{}`", field.name())), "{}", field.name());
    }
    assert!(BUILTIN.iter().all(|(file, text)| text.contains(&format!("name = \"{}\"", &file[..file.len() - 5]))));
}

#[test]
fn the_digest_is_of_the_meaning() {
    let digest = |text: &str| Dialects::from_tables([("w.toml", text)]).unwrap().digest();
    let commented = MY_APP.replace("generic names", "other words").replace("[detect]", "# why\n\n[detect]");
    assert_eq!(digest(MY_APP), digest(&commented));
    assert_ne!(digest(MY_APP), digest(&MY_APP.replace("failed-at", "failed")));
    assert_eq!(Dialects::builtin().digest(), Dialects::builtin().digest());
    assert_eq!(Dialects::builtin().digest().len(), 64);
    let user = Dialects::with_user_tables([("w.toml", MY_APP)]).unwrap();
    assert_ne!(Routing::for_dialects(&user).digest(), Routing::default().digest());
}

#[test]
fn a_table_can_be_another_one_with_other_names() {
    let text = r#"
name = "spring-acme"
description = "Spring with our own header names"
extends = "spring"
[rename]
"kafka_dlt-" = "x-acme-"
"kafka_dlt-exception-message" = "x-why"
"#;
    let dialects = Dialects::with_user_tables([("acme.toml", text)]).unwrap();
    let partition = 3i32.to_be_bytes();
    let headers =
        [h("x-acme-original-topic", "mail"), (b"x-acme-original-partition", Some(&partition)), h("x-why", "smtp")];
    let d = decode(&dialects, &headers);
    assert_eq!((d.dialect.as_ref(), d.error_message.as_deref()), ("spring-acme", Some("smtp")));
    assert_eq!(restore_target(&d), Some(("mail", Some(3))));
    // The longer name's rule is the one that counts; what has no prefix in common is stripped as in the other.
    assert_eq!(dialects.strips("t", &batch_of(None, None, &headers).get(0)), [true, true, false]);
    assert_eq!(decode(&dialects, &[h("kafka_dlt-original-topic", "mail")]).dialect, "spring");
    assert_ne!(
        dialects.digest(),
        Dialects::with_user_tables([("a.toml", text.replace("x-why", "y").as_str())]).unwrap().digest()
    );
    let error = |from: &str, to: &str| {
        Dialects::with_user_tables([("acme.toml", text.replace(from, to).as_str())]).unwrap_err().message().to_owned()
    };
    let starts = |is: String, start: &str| assert!(is.starts_with(start), "{is}");
    starts(error("\"spring\"", "\"sprang\""), "acme.toml: line 4: extends: `sprang` is no built-in dialect");
    starts(error("\"kafka_dlt-\"", "\"kafka-dlt-\""), "acme.toml: line 5: rename: `spring` has no header that begins");
    starts(error("[rename]", "replaced = []\n[rename]"), "acme.toml: line 5: `replaced = []`: unknown field");
}

#[test]
fn what_reads_keys_and_values_is_for_topics_that_ask() {
    let json = r#"
name = "envelope"
description = "JSON"
opt_in = true
code = ["json-value"]
[detect]
all = ["$.error"]
[fields]
error_message = { from = ["$.error"] }
[restore]
value = { header = "$.original", encoding = "base64" }
"#;
    let asks = TopicSettings {
        dialects: vec!["envelope".to_owned()],
        ..TopicSettings::of(TopicMatch::parse("mine").unwrap())
    };
    let dialects =
        Dialects::with_user_tables([("e.toml", json)]).unwrap().with_topics(std::slice::from_ref(&asks)).unwrap();
    let batch = batch_of(Some(b"k"), Some(br#"{"error": "no", "original": "eA=="}"#), &[]);
    let read = |topic: &str| dialects.decode(topic, 0, &batch.get(0)).error_message.map(Cow::into_owned);
    assert_eq!((read("mine"), read("other")), (Some("no".to_owned()), None));
    let original = |topic: &str, value: &[u8]| {
        let batch = batch_of(Some(b"k"), Some(value), &[]);
        let (key, value) = dialects.original(topic, &batch.get(0))?;
        Some((key.unwrap().into_owned(), value.map(Cow::into_owned)))
    };
    let value = br#"{"error": "no", "original": "eA=="}"#;
    assert_eq!(original("mine", value), Some((b"k".to_vec(), Some(b"x".to_vec()))));
    assert_eq!(original("other", value), Some((b"k".to_vec(), Some(value.to_vec()))));
    // What it does not hold is never made up: nothing, what is not base64, null apart.
    assert_eq!(original("mine", br#"{"error": "no"}"#), None);
    assert_eq!(original("mine", br#"{"error": "no", "original": "?"}"#), None);
    assert_eq!(original("mine", br#"{"error": "no", "original": null}"#), Some((b"k".to_vec(), None)));
    assert_ne!(dialects.digest(), Dialects::with_user_tables([("e.toml", json)]).unwrap().digest());
    let wrong = Dialects::builtin().with_topics(&[asks]).unwrap_err();
    assert_eq!(wrong.message(), "[topics.\"mine\"] dialects: there is no dialect \"envelope\"");
    let error = |from: &str, to: &str| {
        Dialects::from_tables([("e.toml", json.replace(from, to).as_str())]).unwrap_err().message().to_owned()
    };
    assert!(error("opt_in = true", "").starts_with("e.toml: line 5: code: "));
    assert!(error("$.original", "$original").starts_with("e.toml: line 5: code: `$original` is no path"));
}
