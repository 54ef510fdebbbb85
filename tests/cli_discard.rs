//! `discard`, and what the other commands tell of it: the real program on archives in a folder.

mod support;

use dlq_archiver::format::{Compression, Format};
use dlq_archiver::layout;
use serde_json::Value;
use support::{Rec, Run, TestArchive, batch};

const WHY: [&str; 2] = ["--reason", "INC-4711: test load"];

async fn fixtures() -> TestArchive {
    TestArchive::of_fixtures(Format::Parquet).await
}

fn discard(archive: &TestArchive, args: &[&str]) -> Run {
    archive.run(&[&["discard", "-o", "json"], args].concat())
}

fn document(archive: &TestArchive, number: u32) -> Value {
    serde_json::from_slice(&std::fs::read(archive.path(&layout::disposition_key(number))).unwrap()).unwrap()
}

fn ids(archive: &TestArchive, args: &[&str]) -> Vec<String> {
    let rows = archive.run(&[&["list", "-o", "jsonl"], args].concat()).lines();
    rows.iter().map(|row| row["record_id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_discard_leaves_who_when_where_why_and_what() {
    for format in [Format::Parquet, Format::Jsonl(Compression::Zstd)] {
        let archive = TestArchive::of_fixtures(format).await;
        let selected = ids(&archive, &["--topic", "default-dlt"]);
        let told = discard(&archive, &[&WHY[..], &["--topic", "default-dlt", "--by", "Ann"]].concat()).json();
        assert_eq!((&told["selected"], &told["records"]), (&selected.len().into(), &selected.len().into()), "{told}");
        assert_eq!(told["disposition"], layout::disposition_key(1));
        let doc = document(&archive, 1);
        assert_eq!((&doc["action"], &doc["by"], &doc["reason"]), (&"discard".into(), &"Ann".into(), &WHY[1].into()));
        assert_eq!(doc["filter"]["topic"][0], "default-dlt");
        assert!(doc["host"].as_str().is_some_and(|h| !h.is_empty()) && doc["user"].is_string(), "{doc}");
        let counted: u64 = doc["counts"].as_array().unwrap().iter().map(|c| c["records"].as_u64().unwrap()).sum();
        assert_eq!(counted, selected.len() as u64);
        assert_eq!(ids(&archive, &["--disposition", "discarded"]), selected);
        let open = ids(&archive, &["--disposition", "open"]);
        assert_eq!(open.len() + selected.len(), ids(&archive, &[]).len());
        assert!(open.iter().all(|id| !selected.contains(id)));
        assert_eq!(ids(&archive, &["--disposition", "open,discarded"]).len(), ids(&archive, &[]).len());

        let again = discard(&archive, &[&WHY[..], &["--topic", "default-dlt"]].concat()).json();
        assert_eq!((&again["records"], &again["disposition"]), (&0.into(), &Value::Null), "the same again: {again}");
        assert!(!archive.path(&layout::disposition_key(2)).exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undo_takes_back_and_says_of_what_nothing_was_to_take_back() {
    let archive = fixtures().await;
    discard(&archive, &[&WHY[..], &["--topic", "default-dlt", "--partition", "7"]].concat()).ok();
    let all = ids(&archive, &["--topic", "default-dlt", "--partition", "7"]);
    let undo =
        ["--undo", "--reason", "needed after all", "--record-id", "default-dlt/7/0", "--record-id", "mail-dlt/0/1"];
    let told = archive.run(&[&["discard"], &undo[..]].concat());
    assert!(told.ok().starts_with("1 of 2 selected records taken back\n"), "{told:?}");
    assert!(told.ok().contains("1 of the selected are not discarded\n"), "{told:?}");
    assert!(told.ok().ends_with(&format!("{}\n", layout::disposition_key(2))), "{told:?}");
    let left = ids(&archive, &["--disposition", "discarded"]);
    assert_eq!(left.len() + 1, all.len());
    assert!(!left.contains(&"default-dlt/7/0".to_owned()));
    let doc = document(&archive, 2);
    let first = std::fs::read(archive.path(&layout::disposition_key(1))).unwrap();
    assert_eq!((&doc["action"], &doc["previous_sha256"]), (&"undo".into(), &support::sha256(&first).into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_tell_what_is_discarded() {
    let archive = fixtures().await;
    assert_eq!(archive.run(&["list"]).err.matches("discarded").count(), 0);
    discard(&archive, &[&WHY[..], &["--record-id", "default-dlt/7/0", "--by", "Ann"]].concat()).ok();
    let list = archive.run(&["list", "--topic", "default-dlt"]);
    assert!(list.err.contains("1 record discarded: not to be restored (--disposition discarded lists"), "{list:?}");
    assert!(!list.ok().contains("DISPOSITION"));
    let list = archive.run(&["list", "--disposition", "open,discarded", "--topic", "default-dlt"]);
    assert!(list.ok().lines().next().unwrap().contains("DISPOSITION"), "{list:?}");
    assert_eq!(list.ok().matches(" discarded ").count(), 1, "{list:?}");
    let row = archive.run(&["list", "--disposition", "discarded", "-o", "jsonl"]).lines().remove(0);
    assert_eq!((&row["disposition"], &row["discarded"]["by"]), (&"discarded".into(), &"Ann".into()), "{row}");
    let missing = archive.run(&["list", "--disposition", "open", "--record-id", "default-dlt/7/0"]);
    assert!(missing.err.contains("1 of 1 record ids not in the archive, or not matched"), "{missing:?}");

    let show = archive.run(&["show", "default-dlt/7/0"]);
    let told = show.ok().lines().find(|line| line.starts_with("disposition")).unwrap();
    assert!(told.contains("discarded at ") && told.contains(" by Ann: INC-4711: test load (dispositions/"), "{told}");
    let show = archive.run(&["show", "mail-dlt/0/1", "-o", "json"]).json();
    assert_eq!((&show["disposition"], &show["discarded"]), (&"open".into(), &Value::Null));

    let summary = archive.run(&["summary"]);
    assert!(
        summary.ok().contains("1 record of these partitions discarded (--by disposition tells which)"),
        "{summary:?}"
    );
    let by = archive.run(&["summary", "--by", "disposition", "-o", "json"]).json();
    let groups: Vec<_> = by["groups"].as_array().unwrap().iter().map(|g| (&g["disposition"], &g["records"])).collect();
    let total = by["records"].as_u64().unwrap();
    assert_eq!(groups, [(&"open".into(), &(total - 1).into()), (&"discarded".into(), &1.into())], "{by}");
    let of = archive.run(&["summary", "--disposition", "discarded", "-o", "json"]).json();
    assert_eq!((&of["records"], &of["discarded_in_partitions"]), (&1.into(), &1.into()), "{of}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_discard_by_mistake_is_refused_and_nothing_is_written() {
    let mut archive = fixtures().await;
    let many: Vec<Rec> = (0..1001).map(|offset| Rec { offset, ..Rec::default() }).collect();
    archive.cut("many-dlt", 0, 0, 1001, batch(&many), Vec::new()).await;
    for (args, told) in [
        (&["discard", "--topic", "many-dlt"][..], "--reason TEXT is needed"),
        (&["discard", "--topic", "many-dlt", "--reason", " "], "--reason is empty"),
        (&["discard", "--topic", "many-dlt", "--reason", "x", "--by", ""], "--by is empty"),
        (&["discard", "--reason", "x"], "nothing selects records"),
        (&["discard", "--reason", "x", "--all", "--topic", "many-dlt"], "--all is for all records"),
        (
            &["discard", "--reason", "x", "--topic", "many-dlt"],
            "1001 records would be discarded: above 1000 this needs --yes",
        ),
    ] {
        let run = archive.run(args);
        assert!(run.fails(2).contains(told), "{run:?}");
    }
    let dry = archive.run(&["discard", "--topic", "many-dlt", "--dry-run"]);
    assert!(dry.ok().starts_with("1001 of 1001 selected records to be discarded\n"), "{dry:?}");
    assert!(!archive.path("dispositions").exists());
    let done = archive.run(&["discard", "--topic", "many-dlt", "--reason", "x", "--yes"]);
    assert!(done.ok().starts_with("1001 of 1001 selected records discarded\n"), "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_selection_of_nothing_is_told_with_the_likely_reason() {
    let archive = fixtures().await;
    let none = archive.run(&[&["discard", "--topic", "typo"], &WHY[..]].concat());
    assert!(none.ok().starts_with("nothing selected: none of "), "{none:?}");
    assert!(none.ok().contains("nothing archived matches --topic"), "{none:?}");
    let missing =
        discard(&archive, &[&WHY[..], &["--record-id", "default-dlt/7/0", "--record-id", "default-dlt/7/99"]].concat());
    let missing = missing.json_of_failed();
    assert_eq!((&missing["records"], &missing["not_found"][0]), (&1.into(), &"default-dlt/7/99".into()), "{missing}");
}

/// Readers that do not tell dispositions were right before, and a restore would send what is discarded.
#[tokio::test(flavor = "multi_thread")]
async fn a_disposition_that_is_gone_stops_those_who_ask_for_it() {
    let archive = fixtures().await;
    for id in ["default-dlt/7/0", "mail-dlt/0/1"] {
        discard(&archive, &[&WHY[..], &["--record-id", id]].concat()).ok();
    }
    std::fs::remove_file(archive.path(&layout::disposition_key(1))).unwrap();
    for args in [&["list", "--disposition", "open"][..], &["show", "mail-dlt/0/1"], &["discard", "--all", "--dry-run"]]
    {
        let run = archive.run(args);
        assert!(run.fails(1).contains("dispositions/0000000001.json is missing though "), "{run:?}");
    }
    for command in ["list", "summary"] {
        let run = archive.run(&[command]);
        assert!(run.code == 0 && run.err.contains("dispositions/0000000001.json is missing though "), "{run:?}");
    }
}
