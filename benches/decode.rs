//! What decoding costs, by dialect, against walking the headers once: `cargo bench --bench decode`.
//!
//! The records are the golden fixtures'. A walk reads each header's name and value and hashes the name, as whoever looks
//! for one by its name has to. Each figure is the median of some rounds, walk and decode in turns.

#[path = "../tests/common/mod.rs"]
mod common;

use dlq_archiver::dialect::Dialects;
use dlq_archiver::record::RawRecord;
use dlq_archiver::topics::{TopicMatch, TopicSettings};
use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 21;
/// Records of a round.
const RECORDS: usize = 20_000;

fn walk(raw: &RawRecord<'_>, hasher: &RandomState) -> u64 {
    raw.headers.iter().fold(0, |sum, h| sum ^ hasher.hash_one(h.name) ^ h.value.map_or(0, <[u8]>::len) as u64)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let asks = |topic: &str, dialect: &str| TopicSettings {
        dialects: vec![dialect.to_owned()],
        ..TopicSettings::of(TopicMatch::parse(topic).expect("a topic"))
    };
    let topics = [asks("trips-dlq", "uber"), asks("failed-records", "lambda")];
    let dialects = Dialects::builtin().with_topics(&topics).expect("built-in dialects");
    let hasher = RandomState::new();
    println!("{:<26} {:>8} {:>9} {:>10} {:>7}", "records of", "headers", "walk ns", "decode ns", "ratio");
    let folder = common::folder().join("fixtures");
    let files = std::fs::read_dir(folder).expect("fixtures").map(|f| f.expect("a file").file_name());
    let mut names: Vec<String> =
        files.filter_map(|f| f.to_str().and_then(|f| f.strip_suffix(".jsonl")).map(str::to_owned)).collect();
    names.sort();
    for name in names {
        let fixtures = common::fixtures(&name);
        let records: Vec<_> = fixtures.iter().map(|f| (f.topic.as_str(), f.partition, f.batch.get(0))).collect();
        let headers: usize = records.iter().map(|(.., raw)| raw.headers.len()).sum();
        let rounds = RECORDS / records.len();
        let timed = |work: &mut dyn FnMut()| {
            let start = Instant::now();
            (0..rounds).for_each(|_| work());
            start.elapsed().as_secs_f64() * 1e9 / (rounds * records.len()) as f64
        };
        let (mut walked, mut decoded) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            walked.push(timed(&mut || {
                let sum = records.iter().fold(0, |sum, (.., raw)| sum ^ walk(raw, &hasher));
                black_box(sum);
            }));
            decoded.push(timed(&mut || {
                records
                    .iter()
                    .for_each(|(topic, partition, raw)| drop(black_box(dialects.decode(topic, *partition, raw))));
            }));
        }
        let (walk, decode) = (median(walked), median(decoded));
        let headers = headers as f64 / records.len() as f64;
        println!("{name:<26} {headers:>8.1} {walk:>9.0} {decode:>10.0} {:>7.1}", decode / walk);
    }
}
