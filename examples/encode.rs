//! Encodes and reads back rows like those of a VAST dead-letter topic, and prints how fast: `cargo run --release
//! --example encode [rows] [folder to write into]`.

use dlq_archiver::format::{Encoder, FileContext, Format, Projection, read};
use dlq_archiver::record::{Decoded, Header, RawBatch, TimestampType};
use std::borrow::Cow;
use std::ops::ControlFlow;
use std::time::Instant;

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

/// As a dialect's table would do it: borrowed from the headers.
fn decode<'a>(raw: &dlq_archiver::record::RawRecord<'a>) -> Decoded<'a> {
    let mut d = Decoded { dialect: "knative".into(), ..Decoded::default() };
    d.failure_key[..8].copy_from_slice(&(raw.offset as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    d.failure_key[8..].copy_from_slice(&(raw.offset as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_be_bytes());
    for h in raw.headers.iter() {
        let text = || h.value.and_then(|v| std::str::from_utf8(v).ok()).map(Cow::Borrowed);
        match h.name {
            b"ce_id" => d.event_id = text(),
            b"ce_source" => d.event_source = text(),
            b"ce_type" => d.event_type = text(),
            b"ce_subject" => d.event_subject = text(),
            b"ce_knativeerrordest" => d.error_destination = text(),
            b"ce_knativeerrordata" => d.error_message = text(),
            b"content-type" => d.content_type = text(),
            _ => {}
        }
    }
    d.error_class = Some("http".into());
    d.error_code = Some(500);
    d.attempts = Some(3);
    d.event_time_us = Some(raw.timestamp_ms * 1000);
    d.failed_at_us = Some(raw.timestamp_ms * 1000 + 1234);
    d
}

fn main() {
    let arg = |i| std::env::args().nth(i);
    let n: usize = arg(1).and_then(|a| a.parse().ok()).unwrap_or(200_000);
    let batch = rows(n);
    let mb = batch.payload_len() as f64 / 1e6;
    println!("{n} rows, {mb:.0} MB raw, {:.0} bytes a row", mb * 1e6 / n as f64);
    let context = FileContext {
        cluster_id: Some("MkU3OEVBNTcwNTJENDM2Qg"),
        topic: "default-dlt",
        partition: 7,
        generation: 1,
        archived_at_us: 1_791_417_600_000_000,
        intent_key: "ledger/default-dlt/7/00000000000000000000.intent.json",
        program_version: "0.1.0",
    };
    for format in Format::ALL {
        let start = Instant::now();
        let mut encoder = Encoder::new(format, &context).unwrap();
        for raw in batch.iter() {
            encoder.push(&raw, &decode(&raw), "size-check").unwrap();
        }
        let bytes = encoder.finish().unwrap();
        let took = start.elapsed().as_secs_f64();
        let size = bytes.len() as f64 / 1e6;
        if let Some(folder) = arg(2) {
            std::fs::write(format!("{folder}/rows.{}", format.extension()), &bytes).unwrap();
        }
        print!(
            "{:9} write {:7.0} rows/s {:4.0} MB/s, {size:6.1} MB ({:.1}:1)",
            format.extension(),
            n as f64 / took,
            mb / took,
            mb / size
        );
        for projection in [Projection::All, Projection::NoPayload] {
            let start = Instant::now();
            let mut count = 0;
            let data = bytes::Bytes::from(bytes.clone());
            read(format, data, projection, &mut |r| {
                count += usize::from(r.raw.offset >= 0);
                Ok(ControlFlow::Continue(()))
            })
            .unwrap();
            let took = start.elapsed().as_secs_f64();
            print!("; read {projection:?} {:7.0} rows/s", count as f64 / took);
        }
        println!();
    }
}
