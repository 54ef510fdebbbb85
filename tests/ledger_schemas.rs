//! `schemas/ledger/` against documents that the code really writes, and the other way round: every field is in the
//! schema, is required, and nothing else is let in.

mod common;

use dlq_archiver::archive::ledger as io;
use dlq_archiver::cut::{self, CutRange, Tables};
use dlq_archiver::disposition::documents::{Action, CountDoc, DispositionDoc, partition_docs};
use dlq_archiver::filter::FilterDoc;
use dlq_archiver::format::Format;
use dlq_archiver::layout;
use dlq_archiver::ledger::{
    self, Checkpoint, DataObject, Gap, GapKind, Genesis, Head, Intent, LEDGER_VERSION, Manifest, plan, to_bytes,
};
use dlq_archiver::record::{Header, RawBatch, TimestampType};
use dlq_archiver::store::{self, StoreOptions};
use dlq_archiver::verify::{ChainEnd, Partition, Receipt};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const ARCHIVE_ID: &str = "0b0e4a52-6c1f-4f5a-9d3c-7a4f2f1f9b11";
const NOW: &str = "2026-10-08T14:11:24.228703Z";

fn validator(name: &str) -> jsonschema::Validator {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("schemas/ledger/{name}.schema.json"));
    let schema: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert!(jsonschema::meta::is_valid(&schema), "{} is no schema", path.display());
    jsonschema::draft202012::new(&schema).unwrap()
}

/// Pointers to all objects in a document.
fn objects(at: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.push(at.to_owned());
            fields.iter().for_each(|(name, v)| objects(&format!("{at}/{name}"), v, found));
        }
        Value::Array(items) => items.iter().enumerate().for_each(|(i, v)| objects(&format!("{at}/{i}"), v, found)),
        _ => {}
    }
}

/// The bytes are valid; without any one of their fields, or with one more in any object, they are not.
fn check(name: &str, bytes: &[u8]) {
    check_but(name, bytes, &[]);
}

/// The same, but for fields that came later: they may be absent.
fn check_but(name: &str, bytes: &[u8], optional: &[&str]) {
    let validator = validator(name);
    let document: Value = serde_json::from_slice(bytes).unwrap();
    let problems: Vec<String> =
        validator.iter_errors(&document).map(|e| format!("{}: {e}", e.instance_path())).collect();
    assert!(problems.is_empty(), "{name}: {problems:#?}\n{document:#}");
    let mut pointers = Vec::new();
    objects("", &document, &mut pointers);
    for at in pointers {
        let fields: Vec<String> = document.pointer(&at).unwrap().as_object().unwrap().keys().cloned().collect();
        let mut with_more = document.clone();
        with_more.pointer_mut(&at).unwrap()["one_more"] = json!(1);
        assert!(!validator.is_valid(&with_more), "{name}: another field in {at:?} is let in");
        for field in fields {
            let mut without = document.clone();
            without.pointer_mut(&at).unwrap().as_object_mut().unwrap().remove(&field);
            let may = optional.contains(&&field[..]);
            assert_eq!(validator.is_valid(&without), may, "{name}: {at}/{field}: whether it is not required");
        }
    }
}

fn refused(name: &str, bytes: &[u8], pointer: &str, value: Value) {
    let mut document: Value = serde_json::from_slice(bytes).unwrap();
    *document.pointer_mut(pointer).unwrap_or_else(|| panic!("{name}: no {pointer}")) = value;
    assert!(!validator(name).is_valid(&document), "{name}: {pointer} is let in: {document:#}");
}

fn genesis(topic: &str, partition: i32, topic_id: Option<&str>) -> Genesis {
    Genesis {
        version: LEDGER_VERSION,
        archive_id: ARCHIVE_ID.into(),
        topic: topic.into(),
        partition,
        generation: 1,
        topic_id: topic_id.map(str::to_owned),
        first_offset: 0,
        previous_sha256: None,
        created_at: NOW.into(),
    }
}

/// A cut of each record of each fixture, as the archive loop makes it: intent, objects, manifest.
fn cuts(format: Format) -> Vec<(Genesis, Intent, Vec<DataObject>)> {
    let tables = Tables::builtin();
    let mut cuts = Vec::new();
    for entry in fs::read_dir(common::folder().join("fixtures")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        for fixture in common::fixtures(name.strip_suffix(".jsonl").unwrap()) {
            let genesis = genesis(&fixture.topic, fixture.partition, Some("x7Gb1cVTQ0uZ0n0sZ2m_-w"));
            let last = fixture.batch.get(0).offset;
            let range = CutRange { from: 0, to: last + 1, cut_at_us: 1_791_468_684_228_703 };
            let gaps = if last > 0 { vec![Gap { from: 0, to: last, kind: GapKind::Lost }] } else { Vec::new() };
            let groups = cut::group(&fixture.batch, &fixture.topic, fixture.partition, &tables);
            let intent = cut::intent(&genesis, range, &fixture.batch, &groups, gaps, format, &tables).unwrap();
            let prefix = layout::ledger_prefix(&genesis.topic, genesis.partition, genesis.generation);
            let key = layout::intent_key(&prefix, intent.from);
            let encode = |object, rows: &[u32]| {
                let rows = rows.iter().map(|r| fixture.batch.get(*r as usize));
                cut::encode(&intent, object, Some("cluster"), rows, format, &tables, &key).unwrap().object
            };
            let objects = intent.objects.iter().zip(&groups).map(|(o, g)| encode(o, &g.rows)).collect();
            cuts.push((genesis, intent.clone(), objects));
        }
    }
    assert!(cuts.len() > 20, "fixtures are missing");
    cuts
}

fn manifest(head: &Head, intent: &Intent, objects: Vec<DataObject>, gaps: Vec<Gap>) -> Manifest {
    Manifest {
        version: LEDGER_VERSION,
        archive_id: intent.archive_id.clone(),
        topic: intent.topic.clone(),
        partition: intent.partition,
        generation: intent.generation,
        topic_id: intent.topic_id.clone(),
        sequence: head.sequence,
        from: intent.from,
        to: intent.to,
        cut_at_us: intent.cut_at_us,
        schema_version: intent.schema_version,
        leader_epoch: intent.leader_epoch,
        rows: objects.iter().map(|o| o.rows).sum(),
        objects,
        gaps,
        previous_sha256: head.previous_sha256.clone(),
    }
}

#[tokio::test]
async fn archive_json_as_stored() {
    for (cluster_id, format) in [(Some("MkU3OEVBNTcwNTJENDM2Qg"), "parquet"), (None, "jsonl")] {
        let store = store::open("memory:", &StoreOptions::default()).await.unwrap();
        io::open_archive(&*store, format, cluster_id, ARCHIVE_ID, NOW).await.unwrap();
        let bytes = store.get(layout::ARCHIVE_KEY).await.unwrap().unwrap();
        check("archive", &bytes);
        refused("archive", &bytes, "/format", json!("csv"));
        refused("archive", &bytes, "/version", json!(2));
        refused("archive", &bytes, "/created_at", json!("yesterday"));
    }
}

#[test]
fn genesis_with_and_without_topic_id() {
    for topic_id in [Some("x7Gb1cVTQ0uZ0n0sZ2m_-w"), None] {
        let bytes = to_bytes(&genesis("default-dlt", 7, topic_id)).unwrap();
        check("genesis", &bytes);
        refused("genesis", &bytes, "/first_offset", json!(-1));
        refused("genesis", &bytes, "/topic_id", json!("none"));
        refused("genesis", &bytes, "/generation", json!(0));
    }
}

#[test]
fn intents_and_manifests_of_every_fixture_in_every_format() {
    for format in Format::ALL {
        for (genesis, intent, objects) in cuts(format) {
            let bytes = to_bytes(&intent).unwrap();
            check("intent", &bytes);
            refused("intent", &bytes, "/extension", json!("csv"));
            refused("intent", &bytes, "/objects/0/rows", json!(0));
            refused("intent", &bytes, "/objects/0/key", json!("ledger/x.json"));

            let head = Head::from_genesis(&genesis, &to_bytes(&genesis).unwrap());
            let bytes = to_bytes(&manifest(&head, &intent, objects, intent.gaps.clone())).unwrap();
            check("manifest", &bytes);
            refused("manifest", &bytes, "/previous_sha256", json!("0"));
            refused("manifest", &bytes, "/objects/0/sha256", json!(null));
            refused("manifest", &bytes, "/objects/0/counts/0/rows", json!(0));
        }
    }
}

/// More pipelines than have objects of their own.
#[test]
fn a_cut_with_an_object_that_pipelines_share() {
    let mut batch = RawBatch::new();
    for (offset, topic) in [(0, "aa"), (1, "aa"), (2, "bb"), (3, "cc")] {
        let header = Header { name: b"__streams.errors.topic", value: Some(topic.as_bytes()) };
        batch.push(offset, 0, TimestampType::CreateTime, 1, None, Some(b"v"), std::iter::once(header));
    }
    let tables = Tables::with_routing(|routing| routing.with_max_pipelines(1));
    let (genesis, range) = (genesis("t-dlq", 0, None), CutRange { from: 0, to: 4, cut_at_us: 1 });
    let groups = cut::group(&batch, "t-dlq", 0, &tables);
    let intent = cut::intent(&genesis, range, &batch, &groups, Vec::new(), Format::Parquet, &tables).unwrap();
    let bytes = to_bytes(&intent).unwrap();
    check("intent", &bytes);
    refused("intent", &bytes, "/objects/0/pipeline", json!(null));
    refused("intent", &bytes, "/objects/1/pipeline", json!("bb"));
    refused("intent", &bytes, "/objects/1/shared/names", json!([]));
    let encode = |(object, group): (_, &cut::Group)| {
        let rows = group.rows.iter().map(|row| batch.get(*row as usize));
        cut::encode(&intent, object, None, rows, Format::Parquet, &tables, "k").unwrap().object
    };
    let objects: Vec<_> = intent.objects.iter().zip(&groups).map(encode).collect();
    assert_eq!(objects.iter().map(|o| o.pipeline.as_deref()).collect::<Vec<_>>(), [Some("aa"), None]);
    let head = Head::from_genesis(&genesis, &to_bytes(&genesis).unwrap());
    let bytes = to_bytes(&manifest(&head, &intent, objects, Vec::new())).unwrap();
    check("manifest", &bytes);
    refused("manifest", &bytes, "/objects/0/pipeline", json!(7));
}

#[test]
fn a_later_generation_and_the_seal_before_it() {
    let second = Genesis { generation: 2, previous_sha256: Some("0a".repeat(32)), ..genesis("default-dlt", 7, None) };
    let bytes = to_bytes(&second).unwrap();
    check("genesis", &bytes);
    refused("genesis", &bytes, "/previous_sha256", json!("0a"));
    let (_, intent, _) = cuts(Format::Parquet).swap_remove(0);
    let seal = Intent { from: intent.to, objects: Vec::new(), gaps: Vec::new(), ..intent };
    assert!(seal.is_seal());
    check("intent", &to_bytes(&seal).unwrap());
}

#[test]
fn a_checkpoint_of_a_hundred_manifests() {
    let (genesis, intent, objects) = cuts(Format::Parquet).swap_remove(0);
    let genesis_bytes = to_bytes(&genesis).unwrap();
    let mut head = Head::from_genesis(&genesis, &genesis_bytes);
    let mut manifests = Vec::new();
    for n in 0..100 {
        let next = Intent { from: n * intent.to, to: (n + 1) * intent.to, ..intent.clone() };
        let manifest = manifest(&head, &next, objects.clone(), Vec::new());
        let bytes = to_bytes(&manifest).unwrap();
        head = head.advance(&manifest, &bytes).unwrap();
        manifests.push((manifest, bytes.into()));
    }
    let checkpoint = Checkpoint::of(&genesis, manifests, ledger::sha256_hex(&genesis_bytes)).unwrap();
    let bytes = to_bytes(&checkpoint).unwrap();
    let mut document: Value = serde_json::from_slice(&bytes).unwrap();
    assert!(validator("checkpoint").is_valid(&document));
    refused("checkpoint", &bytes, "/manifests/7/sha256", json!("0"));
    refused("checkpoint", &bytes, "/manifests/7/manifest/rows", json!(null));
    document["manifests"].as_array_mut().unwrap().truncate(99);
    assert!(!validator("checkpoint").is_valid(&document));
}

/// A cut recovered after retention or compaction took rows: its objects are there, with fewer rows or none.
#[test]
fn a_recovered_cut_and_one_without_objects() {
    let tables = Tables::builtin();
    let (genesis, intent, _) = cuts(Format::Parquet).swap_remove(0);
    let empty =
        cut::encode(&intent, &intent.objects[0], None, std::iter::empty(), Format::Parquet, &tables, "k").unwrap();
    assert_eq!((empty.object.rows, empty.object.min_offset), (0, None));
    let head = Head::from_genesis(&genesis, &to_bytes(&genesis).unwrap());
    for low in [0, i64::MAX] {
        let offsets = ledger::decode_offsets(&intent.objects[0].offsets).unwrap();
        let gaps = plan::recovery_gaps(offsets.iter().map(|o| o as i64), low);
        check("manifest", &to_bytes(&manifest(&head, &intent, vec![empty.object.clone()], gaps)).unwrap());
    }
    let bare = Intent { objects: Vec::new(), gaps: Vec::new(), topic_id: None, ..intent };
    check("intent", &to_bytes(&bare).unwrap());
    check("manifest", &to_bytes(&manifest(&head, &bare, Vec::new(), Vec::new())).unwrap());
}

#[test]
fn receipts_of_a_ledger_with_and_without_manifests() {
    let partition = |sequence| Partition {
        topic: "default-dlt".into(),
        partition: 7,
        generation: 1,
        sequence,
        to: 42,
        sha256: "0a".repeat(32),
        rows: 40,
        objects: 2,
        bytes: 4000,
    };
    for sequence in [Some(3), None] {
        let receipt = Receipt {
            version: LEDGER_VERSION,
            archive_id: ARCHIVE_ID.into(),
            url: "s3://compliance/dlq".into(),
            verified_at: NOW.into(),
            program_version: cut::PROGRAM_VERSION.into(),
            quick: false,
            partitions: vec![partition(sequence)],
            rows: 40,
            objects: 2,
            bytes: 4000,
            dispositions: Some(ChainEnd::default()),
            restores: Some(ChainEnd { number: 4, sha256: Some("0a".repeat(32)) }),
        };
        let bytes = to_bytes(&receipt).unwrap();
        check_but("receipt", &bytes, &["dispositions", "restores"]);
        refused("receipt", &bytes, "/restores/sha256", json!("0"));
        refused("receipt", &bytes, "/dispositions", json!(null));
        check("receipt", &to_bytes(&Receipt { dispositions: None, restores: None, ..receipt }).unwrap());
        refused("receipt", &bytes, "/partitions/0/sha256", json!(null));
        refused("receipt", &bytes, "/version", json!(2));
    }
}

#[test]
fn dispositions_the_first_and_one_behind_it() {
    let count = |error_class: Option<&str>| CountDoc {
        topic: "default-dlt".into(),
        pipeline: "size-check".into(),
        error_class: error_class.map(str::to_owned),
        records: 1,
    };
    for (number, previous_sha256, by) in [(1, None, None), (2, Some("0a".repeat(32)), Some("ann".to_owned()))] {
        let doc = DispositionDoc {
            version: LEDGER_VERSION,
            archive_id: ARCHIVE_ID.into(),
            number,
            previous_sha256,
            action: if number == 1 { Action::Discard } else { Action::Undo },
            at: NOW.into(),
            by,
            user: "u".into(),
            host: "h".into(),
            process: ARCHIVE_ID.into(),
            program_version: cut::PROGRAM_VERSION.into(),
            reason: "INC-4711".into(),
            filter: FilterDoc::default(),
            selected: 2,
            records: 2,
            counts: vec![count(None), count(Some("500"))],
            partitions: partition_docs(&[(("default-dlt".into(), 1, 7), [3, 5].into_iter().collect())].into()).unwrap(),
        };
        let bytes = to_bytes(&doc).unwrap();
        check("disposition", &bytes);
        refused("disposition", &bytes, "/reason", json!(""));
        refused("disposition", &bytes, "/action", json!("forget"));
        refused("disposition", &bytes, "/number", json!(0));
        refused("disposition", &bytes, "/partitions", json!([]));
        refused("disposition", &bytes, "/partitions/0/offsets", json!("!"));
        let every = FilterDoc {
            topic: vec!["t".into()],
            partition: vec![1],
            offset_from: Some(1),
            offset_to: Some(2),
            since_ms: Some(1),
            until_ms: Some(2),
            pipeline: vec!["p".into()],
            dialect: vec!["d".into()],
            error_class: vec!["c".into()],
            error_code: vec![-1],
            error_message: vec!["m".into()],
            event_id: vec!["e".into()],
            origin_topic: vec!["o".into()],
            record_id: Some(vec!["t/1/1".into()]),
            condition: Some("attempts > 3".into()),
            sample: Some(9),
            sample_to: Some(u64::MAX),
            limit: Some(5),
        };
        let document: Value = serde_json::to_value(DispositionDoc { filter: every, ..doc }).unwrap();
        assert!(validator("disposition").is_valid(&document), "a filter may have each of these");
    }
}

#[test]
fn every_field_and_entry_says_what_it_is() {
    fn described(at: &str, schema: &Value, missing: &mut Vec<String>) {
        for group in ["properties", "$defs"] {
            for (name, part) in schema[group].as_object().into_iter().flatten() {
                let at = format!("{at}/{name}");
                if part["description"].as_str().is_none_or(|d| d.len() < 10) {
                    missing.push(at.clone());
                }
                described(&at, part, missing);
            }
        }
    }
    let mut missing = Vec::new();
    for name in ["archive", "genesis", "intent", "manifest", "receipt", "disposition"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("schemas/ledger/{name}.schema.json"));
        described(name, &serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap(), &mut missing);
    }
    assert!(missing.is_empty(), "without a description: {missing:?}");
}
