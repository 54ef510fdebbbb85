//! One core's speed from raw records to data objects and back: `cargo bench --bench encode`, with `-- parquet` for one format.
//!
//! The rows are like those of a VAST dead-letter topic, 1.5 KB each, the same in every run; all of them are one cut. Items
//! are records, bytes those of their keys, values and headers, whatever is stored of them.

mod common;

use bytes::Bytes;
use common::{PARTITION, TOPIC, bench_work, rows_wanted};
use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use dlq_archiver::cut::{self, Group, Tables};
use dlq_archiver::format::Format;
use dlq_archiver::ledger::Intent;
use dlq_archiver::record::RawBatch;
use std::hint::black_box;
use std::sync::{LazyLock, OnceLock};

static ROWS: LazyLock<RawBatch> = LazyLock::new(|| common::rows(rows_wanted()));
static TABLES: LazyLock<Tables> = LazyLock::new(Tables::builtin);
static GROUPS: LazyLock<Vec<Group>> = LazyLock::new(|| cut::group(&ROWS, TOPIC, PARTITION, &TABLES));
static OBJECTS: [OnceLock<Vec<Bytes>>; Format::ALL.len()] = [const { OnceLock::new() }; Format::ALL.len()];

fn main() {
    divan::main();
    for (format, objects) in Format::ALL.iter().zip(&OBJECTS) {
        let Some(objects) = objects.get() else { continue };
        let (raw, stored) = (ROWS.payload_len() as f64, objects.iter().map(Bytes::len).sum::<usize>() as f64);
        let (rows, count, name) = (ROWS.len(), objects.len(), format.extension());
        println!(
            "{name}: {rows} rows, {raw:.0} bytes, stored as {stored:.0} in {count} objects, {:.1}:1",
            raw / stored
        );
    }
}

/// File name extensions.
fn formats() -> [&'static str; Format::ALL.len()] {
    Format::ALL.map(Format::extension)
}

fn format_of(extension: &str) -> Format {
    Format::of_extension(extension).expect("a format")
}

/// One iteration is the whole cut.
fn of_rows<'a, 'b>(bencher: Bencher<'a, 'b>) -> Bencher<'a, 'b> {
    bencher.counter(ItemsCount::new(ROWS.len())).counter(BytesCount::new(ROWS.payload_len()))
}

fn encoded(intent: &Intent, format: Format) -> Vec<Bytes> {
    let objects = intent.objects.iter().zip(&*GROUPS).map(|(object, group)| {
        let rows = ROWS.pick(&group.rows);
        cut::encode_from(ROWS.chunks(), intent, object, None, rows, format, &TABLES, "intent").expect("an object").bytes
    });
    objects.collect()
}

/// The cut in this format, once it was encoded.
fn kept(format: Format) -> &'static OnceLock<Vec<Bytes>> {
    &OBJECTS[Format::ALL.iter().position(|f| *f == format).expect("a format")]
}

/// All columns of each row, and nothing done with them.
#[divan::bench(sample_count = 10, sample_size = 1)]
fn decode(bencher: Bencher) {
    of_rows(bencher).bench_local(|| {
        bench_work(|| {
            let mut decoder = TABLES.dialects.of_topic(TOPIC);
            ROWS.iter().for_each(|raw| drop(black_box(decoder.decode(PARTITION, &raw))));
        });
    });
}

/// Which rows go into which object.
#[divan::bench(sample_count = 10, sample_size = 1)]
fn group(bencher: Bencher) {
    LazyLock::force(&TABLES);
    of_rows(bencher).bench_local(|| bench_work(|| cut::group(&ROWS, TOPIC, PARTITION, &TABLES)));
}

/// Offsets of the rows, and the checksums that they came with, which is the same for all formats.
#[divan::bench(sample_count = 10, sample_size = 1)]
fn intent(bencher: Bencher) {
    LazyLock::force(&GROUPS);
    of_rows(bencher).bench_local(|| bench_work(|| common::intent(&ROWS, &GROUPS, Format::Parquet, &TABLES)));
}

#[divan::bench(args = formats(), sample_count = 5, sample_size = 1)]
fn encode(bencher: Bencher, extension: &str) {
    let format = format_of(extension);
    let intent = common::intent(&ROWS, &GROUPS, format, &TABLES);
    of_rows(bencher).bench_local(|| {
        let made = bench_work(|| encoded(&intent, format));
        kept(format).get_or_init(|| made.clone());
        made
    });
}

mod read {
    use super::*;
    use dlq_archiver::format::{Projection, read};
    use std::ops::ControlFlow;

    #[divan::bench(args = formats(), sample_count = 5, sample_size = 1)]
    fn all(bencher: Bencher, extension: &str) {
        rows(bencher, format_of(extension), Projection::All);
    }

    /// As lists and summaries do.
    #[divan::bench(args = formats(), sample_count = 5, sample_size = 1)]
    fn no_payload(bencher: Bencher, extension: &str) {
        rows(bencher, format_of(extension), Projection::NoPayload);
    }

    fn rows(bencher: Bencher, format: Format, projection: Projection) {
        let objects = kept(format).get_or_init(|| encoded(&common::intent(&ROWS, &GROUPS, format, &TABLES), format));
        of_rows(bencher).bench_local(|| {
            let mut count = 0;
            bench_work(|| {
                for object in objects {
                    read(format, object.clone(), projection, &mut |row| {
                        count += usize::from(black_box(row).raw.offset >= 0);
                        Ok(ControlFlow::Continue(()))
                    })
                    .expect("what was written is read");
                }
            });
            assert_eq!(count, ROWS.len());
        });
    }
}
