//! Fills a topic with dead letters like VAST DataEngine's, for end-to-end tests and benchmarks. Deterministic: the
//! same arguments give the same records.
//!
//! usage: produce BROKERS TOPIC PARTITIONS COUNT [--transactions] [--append] [--slowly] [--spring]
//!
//! The topic is created, unless `--append` says that it is there. `--slowly`: at most 5,000 records a second.
//! `--spring`: the same events as a Spring consumer of them dead-letters them, with error classes ([`CLASSES`]) and over
//! the 10 days from 2026-10-01 (UTC) on.
//!
//! Records have about 0.9 KB of value, 16 headers, 20 function deployments and 3 days of timestamps. With
//! `--transactions`, batches of 1,000 records are committed and aborted in turns (of every three, the second is
//! aborted): a reader with read_committed must find exactly the committed ones, COUNT in all.

use dlq_archiver::kafka::{Admin, Connection, NewRecord, Producer};
use dlq_archiver::record::Header;
use std::time::Duration;

const FIRST_TIMESTAMP_MS: i64 = 1_791_300_000_000;
const SPAN_MS: i64 = 3 * 24 * 3_600_000;
const BATCH: u64 = 1000;

/// Of `--spring`: 2026-10-01, and ten days.
const SPRING_FIRST_MS: i64 = 1_790_812_800_000;
const SPRING_SPAN_MS: i64 = 10 * 24 * 3_600_000;

/// Error classes with how many of 1,000 records have them, in each pipeline and on each day. The rest has one that only
/// its pipeline has.
const CLASSES: [(&str, u64); 5] = [
    ("java.lang.IllegalArgumentException", 400),
    ("com.fasterxml.jackson.core.JsonParseException", 300),
    ("java.net.SocketTimeoutException", 100),
    ("java.util.concurrent.RejectedExecutionException", 9),
    ("java.lang.OutOfMemoryError", 1),
];

/// SplitMix64: the records' chance, from their number alone.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

struct Letter {
    value: String,
    headers: Vec<(&'static str, Vec<u8>)>,
    timestamp_ms: i64,
}

/// The `n`-th event.
fn letter(n: u64, count: u64) -> Letter {
    use base64::Engine as _;
    let r = mix(n);
    let function = r % 20;
    let code = [500, 502, 503, 504, 400][(r >> 8) as usize % 5];
    let size = (r >> 16) % 100_000;
    let path = format!("docs-src/checked/{:06x}/file-{n}.txt", r >> 40);
    let time =
        format!("2026-10-08T{:02}:{:02}:{:02}.{:06}Z", (r >> 3) % 24, (r >> 11) % 60, (r >> 19) % 60, r % 1_000_000);
    let message = format!("{path} is {size} bytes, need at least {}", size + 10);
    let filler: String = (0..16).map(|i| format!("{:016x}", mix(r ^ i))).collect();
    let value = format!(
        concat!(
            r#"{{"Records": [{{"eventVersion": "2.2", "eventSource": "vast:s3", "awsRegion": "cluster-1", "eventTime": "{time}", "#,
            r#""eventName": "ObjectCreated:Put", "userIdentity": {{"principalId": "{p:032x}"}}, "requestParameters": {{"sourceIPAddress": "10.{a}.{b}.{c}"}}, "#,
            r#""s3": {{"s3SchemaVersion": "1.0", "configurationId": "checked-uploads", "bucket": {{"name": "docs-src", "arn": "arn:aws:s3:::docs-src"}}, "#,
            r#""object": {{"key": "{path}", "size": {size}, "eTag": "{e:032x}", "sequencer": "{n:016X}"}}}}, "trace": "{filler}"}}]}}"#
        ),
        time = time,
        p = u128::from(mix(r + 1)) << 64 | u128::from(r),
        a = r % 250,
        b = (r >> 9) % 250,
        c = (r >> 17) % 250,
        path = path,
        size = size,
        e = u128::from(mix(r + 2)) << 64 | u128::from(mix(r + 3)),
        n = n,
        filler = filler,
    );
    let headers: Vec<(&str, String)> = vec![
        ("ce_specversion", "1.0".into()),
        ("ce_id", format!("8798{:010}", n)),
        ("ce_source", "vastdata.com:checked-uploads.f1c78fd2-63e7-408c-9e7b-0bd4a3fd3341".into()),
        ("ce_type", "vastdata.com:Element.ElementCreated".into()),
        ("content-type", "application/json".into()),
        ("ce_subject", "vast-broker-docs-kafka.default".into()),
        ("ce_time", time),
        ("ce_knativeerrorcode", format!("{code}")),
        ("ce_elementsourcetype", "vast:s3".into()),
        ("ce_knativeerrordata", base64::engine::general_purpose::STANDARD.encode(message)),
        ("ce_elementparenthandle", format!("{}", r >> 6)),
        ("ce_elementpath", path),
        ("ce_knativekafkapartition", format!("{}", r % 8)),
        ("ce_knativekafkaoffset", format!("{n}")),
        (
            "ce_knativeerrordest",
            format!(
                "http://function-{function:02}-nbdpm6d3aaaaa.dataengine-ns-da47bae0-aefd-4e85-a5a9-2020d6a2cb91.svc.cluster.local"
            ),
        ),
        ("ce_elementhandle", format!("{}", mix(r + 4) >> 1)),
    ];
    let headers = headers.into_iter().map(|(name, value)| (name, value.into_bytes())).collect();
    Letter { value, headers, timestamp_ms: FIRST_TIMESTAMP_MS + (n as i64 * SPAN_MS) / count.max(1) as i64 }
}

/// The `n`-th event as a Spring consumer of it dead-letters it.
fn spring_letter(n: u64, count: u64, partition: i32) -> Letter {
    let mut letter = letter(n, count);
    let r = mix(n);
    let function = r % 20;
    let mut chance = mix(r ^ 0x5EED) % 1000;
    let class = CLASSES.iter().find(|(_, share)| {
        let has = chance < *share;
        chance = chance.wrapping_sub(*share);
        has
    });
    let class =
        class.map_or_else(|| format!("com.example.function{function:02}.QuotaException"), |(class, _)| (*class).into());
    letter.timestamp_ms = SPRING_FIRST_MS + (n as i64 * SPRING_SPAN_MS) / count.max(1) as i64;
    letter.headers.retain(|(name, _)| {
        !name.starts_with("ce_knative") && !matches!(*name, "ce_elementparenthandle" | "ce_elementhandle")
    });
    letter.headers.extend([
        ("kafka_dlt-original-topic", b"vast-broker-docs".to_vec()),
        ("kafka_dlt-original-partition", partition.to_be_bytes().to_vec()),
        ("kafka_dlt-original-offset", n.to_be_bytes().to_vec()),
        ("kafka_dlt-original-timestamp", (letter.timestamp_ms - 700).to_be_bytes().to_vec()),
        ("kafka_dlt-original-consumer-group", format!("function-{function:02}").into_bytes()),
        ("kafka_dlt-exception-message", format!("{class}: element {n} after {} ms", r % 30_000).into_bytes()),
        ("kafka_dlt-exception-fqcn", class.into_bytes()),
    ]);
    letter
}

/// What is produced, and where.
struct To<'a> {
    topic: &'a str,
    partitions: i32,
    count: u64,
    spring: bool,
}

fn send(producer: &Producer, to: &To<'_>, n: u64) -> dlq_archiver::Result<()> {
    let partition = (mix(n ^ 0xABCD) % to.partitions as u64) as i32;
    let letter = if to.spring { spring_letter(n, to.count, partition) } else { letter(n, to.count) };
    let headers = letter.headers.iter().map(|(name, value)| Header { name: name.as_bytes(), value: Some(value) });
    producer.send(
        NewRecord {
            topic: to.topic,
            partition: Some(partition),
            key: None,
            value: Some(letter.value.as_bytes()),
            headers,
            timestamp_ms: Some(letter.timestamp_ms),
            token: 0,
        },
        Duration::from_secs(60),
    )
}

#[tokio::main]
async fn main() -> dlq_archiver::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [brokers, topic, partitions, count, rest @ ..] = &args[..] else {
        eprintln!("usage: produce BROKERS TOPIC PARTITIONS COUNT [--transactions] [--append] [--slowly] [--spring]");
        std::process::exit(2);
    };
    let transactions = rest.iter().any(|a| a == "--transactions");
    let (partitions, count): (i32, u64) = (partitions.parse().unwrap_or(8), count.parse().unwrap_or(1000));
    let to = To { topic, partitions, count, spring: rest.iter().any(|a| a == "--spring") };
    let connection = Connection::new(brokers);
    if !rest.iter().any(|a| a == "--append") {
        let config = [("retention.ms", "-1"), ("max.message.bytes", "10485760")];
        Admin::create_topic(&connection, topic, partitions, &config).await?;
    }
    let producer = Producer::new(&connection, transactions.then_some(topic.as_str()))?;
    let timeout = Duration::from_secs(60);
    if transactions {
        producer.init_transactions(timeout)?;
        let mut n = 0;
        let mut turn = 0;
        while n < count {
            producer.begin_transaction()?;
            let end = (n + BATCH).min(count);
            for i in n..end {
                send(&producer, &to, i)?;
            }
            producer.flush(timeout)?;
            if turn % 3 == 1 {
                producer.abort_transaction(timeout)?;
            } else {
                producer.commit_plain(timeout)?;
                n = end;
            }
            turn += 1;
        }
        // What is aborted last leaves markers behind the last record.
        producer.begin_transaction()?;
        send(&producer, &to, count)?;
        producer.flush(timeout)?;
        producer.abort_transaction(timeout)?;
    } else {
        for n in 0..count {
            send(&producer, &to, n)?;
            if n % BATCH == 0 {
                fail_on_first(&producer)?;
                if rest.iter().any(|a| a == "--slowly") {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
        producer.flush(timeout)?;
    }
    fail_on_first(&producer)
}

fn fail_on_first(producer: &Producer) -> dlq_archiver::Result<()> {
    producer.acks().into_iter().try_for_each(|ack| ack.result.map(drop))
}
