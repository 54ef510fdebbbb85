//! What is wrong in a table is named; what is documented is right; the digest is of the meaning.

use crate::dialect::table::Field;
use crate::dialect::tests::MY_APP;
use crate::dialect::{BUILTIN, Dialects};
use crate::routing::Routing;

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
