//! One core's speed from raw records to data objects and back: `make bench`, or `cargo bench --bench encode -- ROWS`.
//!
//! The rows are like those of a VAST dead-letter topic, 1.5 KB each, the same in every run. Each step runs a few times
//! and the median counts.

use dlq_archiver::cut::{self, CutRange, Tables};
use dlq_archiver::format::{Format, Projection, read};
use dlq_archiver::ledger::{Genesis, LEDGER_VERSION};
use dlq_archiver::record::{Header, RawBatch, TimestampType};
use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

const ROUNDS: usize = 5;
const TOPIC: &str = "default-dlt";

/// SplitMix64: the same rows in every run.
struct Random(u64);
impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn uuid(&mut self) -> String {
        let (a, b) = (self.next(), self.next());
        format!(
            "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
            a >> 32,
            (a >> 16) & 0xffff,
            a & 0xfff,
            b >> 52,
            b & 0xffff_ffff_ffff
        )
    }
}

fn rows(n: usize) -> RawBatch {
    let mut random = Random(7);
    let mut batch = RawBatch::new();
    for i in 0..n {
        let (id, bucket, size) = (random.uuid(), random.next() % 40, random.next() % 50_000_000);
        let ms = 1_791_417_600_000 + i as i64 * 37;
        let key = format!(
            "ingest/{:04}/{:02}/frame-{:08}.tif",
            random.next() % 3000,
            random.next() % 28,
            random.next() % 100_000_000
        );
        let value = format!(
            "{{\"Records\":[{{\"eventVersion\":\"2.2\",\"eventSource\":\"vast:s3\",\"awsRegion\":\"us-east-1\",\
             \"eventTime\":\"2026-10-08T{:02}:{:02}:{:02}.{:03}Z\",\"eventName\":\"ObjectCreated:Put\",\
             \"userIdentity\":{{\"principalId\":\"AKIA{:016X}\"}},\
             \"requestParameters\":{{\"sourceIPAddress\":\"172.17.{}.{}\"}},\
             \"responseElements\":{{\"x-amz-request-id\":\"{}\",\"x-amz-id-2\":\"{:016x}{:016x}{:016x}\"}},\
             \"s3\":{{\"s3SchemaVersion\":\"1.0\",\"configurationId\":\"trigger-{}\",\
             \"bucket\":{{\"name\":\"instrument-{bucket}\",\"ownerIdentity\":{{\"principalId\":\"facility-data\"}},\
             \"arn\":\"arn:aws:s3:::instrument-{bucket}\"}},\
             \"object\":{{\"key\":\"{key}\",\"size\":{size},\"eTag\":\"{:016x}{:016x}\",\"versionId\":\"null\",\
             \"sequencer\":\"{:016X}\"}}}},\"glacierEventData\":null}}],\"pipeline\":{{\"attempt\":{},\
             \"deployment\":\"size-check-{}\",\"note\":\"object larger than the limit of 16 MiB for inline checks\"}}}}",
            i / 3600 % 24,
            i / 60 % 60,
            i % 60,
            i % 1000,
            random.next() % 20,
            random.next() % 256,
            random.next() % 256,
            random.uuid(),
            random.next(),
            random.next(),
            random.next(),
            bucket % 7,
            random.next(),
            random.next(),
            random.next(),
            random.next() % 5,
            random.next() % 4,
        );
        let error = match random.next() % 4 {
            0 => "HTTP 500 Internal Server Error: function returned an error after 3 attempts".to_owned(),
            1 => "context deadline exceeded while awaiting response headers".to_owned(),
            _ => format!("ValueError: size {size} over limit 16777216 for {key}"),
        };
        let (time, subject) = (
            format!("2026-10-08T{:02}:{:02}:{:02}Z", i / 3600 % 24, i / 60 % 60, i % 60),
            format!("instrument-{bucket}/{key}"),
        );
        let (trace, failed) =
            (format!("00-{:016x}{:016x}-{:016x}-01", random.next(), random.next(), random.next()), ms.to_string());
        let destination = format!("http://size-check-{}.default.svc.cluster.local", random.next() % 4);
        let source = format!("vast:s3:instrument-{bucket}");
        let headers = [
            ("ce_specversion", "1.0"),
            ("ce_id", &id),
            ("ce_source", &source),
            ("ce_type", "com.vastdata.s3.ObjectCreated:Put"),
            ("ce_subject", &subject),
            ("ce_time", &time),
            ("ce_knativeerrordest", &destination),
            ("ce_knativeerrorcode", "500"),
            ("ce_knativeerrordata", &error),
            ("ce_vasttenant", "default"),
            ("ce_vastcluster", "var-203"),
            ("ce_vasttrigger", "object-created"),
            ("content-type", "application/json"),
            ("traceparent", &trace),
            ("ce_failedat", &failed),
            ("kn-retry-count", "3"),
        ];
        let headers = headers.map(|(name, value)| Header { name: name.as_bytes(), value: Some(value.as_bytes()) });
        batch.push(
            i as i64,
            ms,
            TimestampType::CreateTime,
            1,
            Some(id.as_bytes()),
            Some(value.as_bytes()),
            headers.into_iter(),
        );
    }
    batch
}

/// Median of a few runs, and what the last one made.
fn timed<T>(mut work: impl FnMut() -> T) -> (Duration, T) {
    let mut times = Vec::new();
    loop {
        let start = Instant::now();
        let made = black_box(work());
        times.push(start.elapsed());
        if times.len() == ROUNDS {
            times.sort_unstable();
            return (times[ROUNDS / 2], made);
        }
    }
}

fn main() {
    // cargo adds --bench.
    let rows_wanted = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(100_000);
    let batch = rows(rows_wanted);
    let bytes = batch.payload_len() as f64;
    println!("{rows_wanted} rows, {:.0} MB raw, {:.0} bytes a row", bytes / 1e6, bytes / rows_wanted as f64);
    let report = |step: &str, took: Duration, note: &str| {
        let s = took.as_secs_f64();
        println!("{step:<24} {:>9.0} rows/s {:>6.0} MB/s{note}", rows_wanted as f64 / s, bytes / s / 1e6);
    };

    let tables = Tables::builtin();
    let (took, _) =
        timed(|| batch.iter().map(|raw| tables.dialects.decode(TOPIC, 7, &raw).problems.len()).sum::<usize>());
    report("decode", took, "");
    let (took, groups) = timed(|| cut::group(&batch, TOPIC, 7, &tables));
    report("decode, route, group", took, &format!(", {} objects", groups.len()));

    let genesis = Genesis {
        version: LEDGER_VERSION,
        archive_id: "0b0e4a52-6c1f-4f5a-9d3c-7a4f2f1f9b11".into(),
        topic: TOPIC.into(),
        partition: 7,
        generation: 1,
        topic_id: None,
        first_offset: 0,
        previous_sha256: None,
        created_at: "2026-10-08T14:11:24.228703Z".into(),
    };
    let range = CutRange { from: 0, to: rows_wanted as i64, cut_at_us: 1_791_468_684_228_703 };
    for format in Format::ALL {
        let intent = || cut::intent(&genesis, range, &batch, &groups, Vec::new(), format, &tables).expect("an intent");
        if format == Format::Parquet {
            let (took, _) = timed(intent);
            report("intent", took, "");
        }
        let intent = intent();
        let (took, objects) = timed(|| {
            let objects = intent.objects.iter().zip(&groups).map(|(object, group)| {
                let rows = group.rows.iter().map(|row| batch.get(*row as usize));
                cut::encode(&intent, object, None, rows, format, &tables, "intent").expect("an object").bytes
            });
            objects.collect::<Vec<_>>()
        });
        let stored: usize = objects.iter().map(|o| o.len()).sum();
        let note = format!(", {:.1} MB stored, {:.1}:1", stored as f64 / 1e6, bytes / stored as f64);
        report(&format!("encode {}", format.extension()), took, &note);
        for projection in [Projection::All, Projection::NoPayload] {
            let (took, count) = timed(|| {
                let mut count = 0;
                for object in &objects {
                    read(format, object.clone(), projection, &mut |_| {
                        count += 1;
                        Ok(ControlFlow::Continue(()))
                    })
                    .expect("what was written is read");
                }
                count
            });
            assert_eq!(count, rows_wanted);
            let what = if projection == Projection::All { "read" } else { "read columns of" };
            report(&format!("{what} {}", format.extension()), took, "");
        }
    }
}
