//! Names of objects, made and read back: `cargo bench --bench layout`. A listing has a thousand of them in each answer.

mod common;

use common::{PARTITION, TOPIC};
use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use dlq_archiver::layout::{self, LedgerName};

/// Names of a bench. One iteration is all of them, so that no two that follow each other are the same.
const NAMES: i64 = 1_000;

fn main() {
    divan::main();
}

/// A name that is kept as it is, and those that are not.
const NAMES_OF_PIPELINES: [(&str, &str); 4] = [
    ("kept", "size-check"),
    ("escaped", "fleet/size check"),
    (
        "long",
        "a-team-with-a-very-long-name.and-a-function-with-a-very-long-name.of-which-there-are-two-hundred-bytes.in-all",
    ),
    ("unicode", "größenprüfung 大きさ"),
];

fn pipelines() -> [&'static str; 4] {
    NAMES_OF_PIPELINES.map(|(what, _)| what)
}

fn pipeline(what: &str) -> &'static str {
    NAMES_OF_PIPELINES.iter().find(|(of, _)| *of == what).map_or("", |(_, name)| name)
}

#[divan::bench(args = pipelines())]
fn escape(bencher: Bencher, what: &str) {
    let name = pipeline(what);
    bencher.counter(ItemsCount::new(1_u32)).bench_local(|| layout::escape(black_box(name)));
}

/// Milliseconds of a day, a record each 86 s.
#[divan::bench]
fn dt(bencher: Bencher) {
    of_names(bencher).bench_local(|| {
        (0..NAMES).for_each(|i| drop(black_box(layout::dt(black_box(1_791_417_600_000 + i * 86_399)))));
    });
}

mod data {
    use super::*;

    fn key(i: i64, pipeline: Option<&str>) -> String {
        let (from, to) = (i * 87_000, (i + 1) * 87_000);
        layout::data_key(black_box(TOPIC), PARTITION, 1, from, to, "2026-10-08", black_box(pipeline), "parquet")
    }

    #[divan::bench(args = pipelines())]
    fn data_key(bencher: Bencher, what: &str) {
        let name = pipeline(what);
        of_names(bencher).bench_local(|| (0..NAMES).for_each(|i| drop(black_box(key(i, Some(name))))));
    }

    /// Of several pipelines.
    #[divan::bench]
    fn shared_data_key(bencher: Bencher) {
        of_names(bencher).bench_local(|| (0..NAMES).for_each(|i| drop(black_box(key(i, None)))));
    }

    #[divan::bench]
    fn refetched_key(bencher: Bencher) {
        let keys: Vec<String> = (0..NAMES).map(|i| key(i, Some("size-check"))).collect();
        of_names(bencher).bench_local(|| {
            keys.iter().for_each(|key| drop(black_box(layout::refetched_key(key, "parquet", 1))));
        });
    }

    /// Whether stores take it.
    #[divan::bench]
    fn check_key(bencher: Bencher) {
        let keys: Vec<String> = (0..NAMES).map(|i| format!("compliance/dlq/{}", key(i, Some("size-check")))).collect();
        of_names(bencher).bench_local(|| keys.iter().all(|key| black_box(layout::check_key(key)).is_ok()));
    }
}

mod ledger {
    use super::*;

    /// What a listing of a partition's ledger gives: two documents a cut.
    fn keys(prefix: &str) -> Vec<String> {
        let cuts = (0..NAMES / 2).map(|i| i * 87_000);
        cuts.flat_map(|from| [layout::intent_key(prefix, from), layout::manifest_key(prefix, from)]).collect()
    }

    #[divan::bench]
    fn make(bencher: Bencher) {
        let prefix = layout::ledger_prefix(TOPIC, PARTITION, 1);
        of_names(bencher).bench_local(|| keys(black_box(&prefix)));
    }

    fn parsed(bencher: Bencher, keys: &[String], prefix: &str) {
        of_names(bencher).bench_local(|| {
            let names = keys.iter().filter_map(|key| key.strip_prefix(prefix).and_then(LedgerName::parse));
            assert_eq!(names.map(black_box).count(), keys.len());
        });
    }

    /// Intents and manifests.
    #[divan::bench]
    fn parse(bencher: Bencher) {
        let prefix = layout::ledger_prefix(TOPIC, PARTITION, 1);
        parsed(bencher, &keys(&prefix), &prefix);
    }

    #[divan::bench]
    fn parse_checkpoints(bencher: Bencher) {
        let prefix = layout::ledger_prefix(TOPIC, PARTITION, 1);
        let keys: Vec<String> = (1..=NAMES).map(|i| layout::checkpoint_key(&prefix, i * 8_700_000)).collect();
        parsed(bencher, &keys, &prefix);
    }

    /// Lists of originals.
    #[divan::bench]
    fn parse_refetched(bencher: Bencher) {
        let names: Vec<String> = (0..NAMES).map(|i| layout::refetched_list_key("", i * 87_000, 1)).collect();
        of_names(bencher).bench_local(|| {
            assert_eq!(names.iter().filter_map(|name| black_box(layout::refetched_list(name))).count(), names.len());
        });
    }

    #[divan::bench]
    fn parse_dispositions(bencher: Bencher) {
        let keys: Vec<String> = (1..=NAMES as u32).map(layout::disposition_key).collect();
        of_names(bencher).bench_local(|| {
            assert_eq!(keys.iter().filter_map(|key| black_box(layout::disposition_number(key))).count(), keys.len());
        });
    }
}

fn of_names<'a, 'b>(bencher: Bencher<'a, 'b>) -> Bencher<'a, 'b> {
    bencher.counter(ItemsCount::new(NAMES as u32))
}
