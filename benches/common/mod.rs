//! What the benches have in common: the program's allocator, rows, the cut that they are, and a name for callgrind.
#![allow(dead_code, reason = "each bench uses a part")]

#[path = "../../src/allocator.rs"]
mod allocator;

use dlq_archiver::cut::{self, CutRange, Group, Tables};
use dlq_archiver::format::Format;
use dlq_archiver::ledger::{Genesis, Intent, LEDGER_VERSION};
use dlq_archiver::record::{Header, RawBatch, TimestampType};

pub const TOPIC: &str = "default-dlt";
pub const PARTITION: i32 = 7;

/// Does the work of one iteration, under a name of its own: `instructions.sh` counts what is done in here.
#[inline(never)]
pub fn bench_work<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// Rows of a cut: `BENCH_ROWS=1000 cargo bench` for fewer. By default a little more than a cut's 128 MiB.
pub fn rows_wanted() -> usize {
    match std::env::var("BENCH_ROWS") {
        Ok(rows) => rows.parse().ok().filter(|rows| *rows > 0).expect("BENCH_ROWS is a number of rows"),
        Err(_) => 100_000,
    }
}

pub fn genesis() -> Genesis {
    Genesis {
        version: LEDGER_VERSION,
        archive_id: "0b0e4a52-6c1f-4f5a-9d3c-7a4f2f1f9b11".into(),
        topic: TOPIC.into(),
        partition: PARTITION,
        generation: 1,
        topic_id: Some("kVn3yS1lTxW0mQ2pZr8dBA".into()),
        first_offset: 0,
        previous_sha256: None,
        created_at: "2026-10-08T14:11:24.228703Z".into(),
    }
}

/// The intent of a cut of all these rows.
pub fn intent(batch: &RawBatch, groups: &[Group], format: Format, tables: &Tables) -> Intent {
    let range = CutRange { from: 0, to: batch.len() as i64, cut_at_us: 1_791_468_684_228_703 };
    cut::intent(&genesis(), range, batch, groups, Vec::new(), format, tables).expect("an intent")
}

/// SplitMix64: the same rows in every run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
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

/// Rows like those of a VAST dead-letter topic, 1.5 KB each, the same in every run, with offsets from 0. As the archive does, it
/// takes checksums at once.
pub fn rows(n: usize) -> RawBatch {
    let mut random = Random::new(7);
    let mut batch = RawBatch::with_checksums();
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
    // As the archive closes a cut: all values are in chunks.
    batch.seal();
    batch
}
