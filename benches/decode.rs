//! What decoding one record costs, by dialect: `cargo bench --bench decode`, with `-- vast` for one of them.
//!
//! The records are the golden fixtures', in turns. `of_topic` is a decoder that keeps plans, as the archive decodes;
//! `decode` makes a plan for each record. `walk` is what any decoder has to do: it reads each header's name and value and
//! hashes the name, as whoever looks for one by its name has to.

mod common;
#[path = "../tests/common/mod.rs"]
mod golden;

use common::bench_work;
use divan::Bencher;
use divan::counter::ItemsCount;
use dlq_archiver::dialect::{Dialects, TopicDecoder};
use dlq_archiver::record::RawRecord;
use dlq_archiver::topics::{TopicMatch, TopicSettings};
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::hint::black_box;
use std::sync::LazyLock;

/// Records of a sample. Fixtures have 1 to 8, 10 or 12: each sample is whole rounds of them, so that all are of the same work.
const SAMPLE: u32 = 840;

static DIALECTS: LazyLock<Dialects> = LazyLock::new(|| {
    let asks = |topic: &str, dialect: &str| TopicSettings {
        dialects: vec![dialect.to_owned()],
        ..TopicSettings::of(TopicMatch::parse(topic).expect("a topic"))
    };
    let topics = [asks("trips-dlq", "uber"), asks("failed-records", "lambda")];
    Dialects::builtin().with_topics(&topics).expect("built-in dialects")
});

fn main() {
    divan::main();
}

#[derive(Debug, Clone, Copy)]
enum Way {
    Decode,
    OfTopic,
    Walk,
}

/// A fixture, and what is done with its records.
struct Case(String, Way);

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.1 {
            Way::Decode => "decode",
            Way::OfTopic => "of_topic",
            Way::Walk => "walk",
        };
        write!(f, "{}/{way}", self.0)
    }
}

fn cases() -> Vec<Case> {
    let files = std::fs::read_dir(golden::folder().join("fixtures")).expect("fixtures");
    let files = files.map(|f| f.expect("a file").file_name());
    let mut names: Vec<String> =
        files.filter_map(|f| f.to_str().and_then(|f| f.strip_suffix(".jsonl")).map(str::to_owned)).collect();
    names.sort();
    let ways = [Way::Decode, Way::OfTopic, Way::Walk];
    names.iter().flat_map(|name| ways.map(|way| Case(name.clone(), way))).collect()
}

/// What it finds is dropped within the time: so is it in the archive, record by record.
#[divan::bench(args = cases(), sample_size = SAMPLE)]
fn record(bencher: Bencher, Case(name, way): &Case) {
    let fixtures = golden::fixtures(name);
    let bencher = bencher.counter(ItemsCount::new(1_u32));
    let mut records = fixtures.iter().map(|f| (f.topic.as_str(), f.partition, f.batch.get(0))).cycle();
    let mut next = || records.next().expect("records");
    match way {
        Way::Walk => bencher.bench_local(|| {
            let (.., raw) = next();
            bench_work(|| walk(&raw))
        }),
        Way::Decode => bencher.bench_local(|| {
            let (topic, partition, raw) = next();
            bench_work(|| drop(black_box(DIALECTS.decode(topic, partition, &raw))));
        }),
        Way::OfTopic => {
            let mut topics: Vec<&str> = fixtures.iter().map(|f| f.topic.as_str()).collect();
            topics.sort_unstable();
            topics.dedup();
            let mut decoders: Vec<TopicDecoder<'_>> = topics.iter().map(|topic| DIALECTS.of_topic(topic)).collect();
            let mut decode = |(topic, partition, raw): (&str, i32, RawRecord<'_>)| {
                let at = topics.binary_search(&topic).expect("one of them");
                let decoder = &mut decoders[at];
                bench_work(|| drop(black_box(decoder.decode(partition, &raw))));
            };
            // The plans are there: a cut is of many records.
            fixtures.iter().for_each(|f| decode((&f.topic, f.partition, f.batch.get(0))));
            bencher.bench_local(|| decode(next()));
        }
    }
}

fn walk(raw: &RawRecord<'_>) -> u64 {
    // Keys that are the same in every run.
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    raw.headers.iter().fold(0, |sum, h| sum ^ hasher.hash_one(h.name) ^ h.value.map_or(0, <[u8]>::len) as u64)
}
