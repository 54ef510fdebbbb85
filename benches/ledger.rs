//! The ledger's documents, written, read and checked: `cargo bench --bench ledger`.
//!
//! They are of a cut as `benches/encode.rs` has it: of 4 pipelines as the records say, and of 40 by a rule. Items are the
//! cut's records where a document has something of each (an intent), else documents; bytes are those of the JSON.

mod common;

use bytes::Bytes;
use common::{PARTITION, TOPIC, rows_wanted};
use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use dlq_archiver::cut::{self, Tables};
use dlq_archiver::format::Format;
use dlq_archiver::ledger::{CUTS, Checkpoint, Genesis, Head, Intent, LEDGER_VERSION, Manifest, from_bytes, to_bytes};
use dlq_archiver::record::RawBatch;
use dlq_archiver::routing::{Condition, Rule};
use std::sync::LazyLock;

const WIDTHS: [&str; 2] = ["4 pipelines", "40 pipelines"];

static ROWS: LazyLock<RawBatch> = LazyLock::new(|| common::rows(rows_wanted()));
static CUTS_OF_ROWS: [LazyLock<Cut>; 2] =
    [LazyLock::new(|| Cut::new(Tables::builtin())), LazyLock::new(|| Cut::new(by_bucket()))];

fn main() {
    divan::main();
}

fn cut_of(width: &str) -> &'static Cut {
    &CUTS_OF_ROWS[usize::from(width == WIDTHS[1])]
}

/// A pipeline for each bucket.
fn by_bucket() -> Tables {
    let bucket = Condition::parse("event_source", "^vast:s3:(.*)").expect("a condition");
    let rule = Rule::new(vec![bucket], "${1}").expect("a rule");
    Tables::with_routing(|routing| routing.with_rules(&[rule]))
}

/// Documents of one cut, each with its bytes.
struct Cut {
    genesis: Genesis,
    head: Head,
    intent: (Intent, Bytes),
    manifest: (Manifest, Bytes),
}

impl Cut {
    fn new(tables: Tables) -> Self {
        let genesis = common::genesis();
        let head = Head::from_genesis(&genesis, &to_bytes(&genesis).expect("a genesis"));
        let (rows, format) = (&*ROWS, Format::Parquet);
        let groups = cut::group(rows, TOPIC, PARTITION, &tables);
        let intent = common::intent(rows, &groups, format, &tables);
        let objects = intent.objects.iter().zip(&groups).map(|(object, group)| {
            let rows = ROWS.pick(&group.rows);
            cut::encode_from(ROWS.chunks(), &intent, object, None, rows, format, &tables, "intent")
                .expect("an object")
                .object
        });
        let manifest = Manifest {
            version: LEDGER_VERSION,
            archive_id: genesis.archive_id.clone(),
            topic: genesis.topic.clone(),
            partition: genesis.partition,
            generation: genesis.generation,
            topic_id: genesis.topic_id.clone(),
            sequence: head.sequence,
            from: intent.from,
            to: intent.to,
            cut_at_us: intent.cut_at_us,
            schema_version: intent.schema_version,
            leader_epoch: intent.leader_epoch,
            rows: intent.rows(),
            objects: objects.collect(),
            gaps: Vec::new(),
            previous_sha256: head.previous_sha256.clone(),
        };
        let (intent_bytes, manifest_bytes) = (to_bytes(&intent), to_bytes(&manifest));
        let intent = (intent, intent_bytes.expect("an intent").into());
        let manifest = (manifest, manifest_bytes.expect("a manifest").into());
        Self { genesis, head, intent, manifest }
    }

    /// A checkpoint of such cuts, one behind the other, and its bytes.
    fn checkpoint(&self) -> (Checkpoint, Bytes) {
        let mut head = self.head.clone();
        let manifests = (0..CUTS).map(|_| {
            let (sequence, from, previous_sha256) = (head.sequence, head.next, head.previous_sha256.clone());
            let to = from + self.intent.0.to;
            let manifest = Manifest { sequence, from, to, previous_sha256, ..self.manifest.0.clone() };
            let bytes = to_bytes(&manifest).expect("a manifest");
            head = head.advance(&manifest, &bytes).expect("it follows");
            (manifest, bytes.into())
        });
        let previous = self.head.previous_sha256.clone();
        let checkpoint = Checkpoint::of(&self.genesis, manifests.collect(), previous).expect("a checkpoint");
        let bytes = to_bytes(&checkpoint).expect("a checkpoint").into();
        (checkpoint, bytes)
    }
}

fn counted<'a, 'b>(bencher: Bencher<'a, 'b>, items: usize, bytes: usize) -> Bencher<'a, 'b> {
    bencher.counter(ItemsCount::new(items)).counter(BytesCount::new(bytes))
}

/// Offsets and checksums of all rows are in it: some MB for a million rows.
mod intent {
    use super::*;
    use dlq_archiver::ledger::plan;

    fn of_rows<'a, 'b>(bencher: Bencher<'a, 'b>, bytes: &[u8]) -> Bencher<'a, 'b> {
        counted(bencher, ROWS.len(), bytes.len())
    }

    #[divan::bench(args = WIDTHS)]
    fn write(bencher: Bencher, width: &str) {
        let (intent, bytes) = &cut_of(width).intent;
        of_rows(bencher, bytes).bench_local(|| to_bytes(black_box(intent)));
    }

    #[divan::bench(args = WIDTHS)]
    fn read(bencher: Bencher, width: &str) {
        let (_, bytes) = &cut_of(width).intent;
        of_rows(bencher, bytes).bench_local(|| from_bytes::<Intent>("intent", black_box(bytes)).expect("an intent"));
    }

    /// Whether it follows, and each offset is in one object.
    #[divan::bench(args = WIDTHS)]
    fn check(bencher: Bencher, width: &str) {
        let Cut { genesis, head, intent: (intent, bytes), .. } = cut_of(width);
        of_rows(bencher, bytes)
            .bench_local(|| plan::check_open_intent(head, genesis, black_box(intent)).expect("it fits"));
    }
}

mod manifest {
    use super::*;

    #[divan::bench(args = WIDTHS)]
    fn write(bencher: Bencher, width: &str) {
        let (manifest, bytes) = &cut_of(width).manifest;
        counted(bencher, 1, bytes.len()).bench_local(|| to_bytes(black_box(manifest)));
    }

    #[divan::bench(args = WIDTHS)]
    fn read(bencher: Bencher, width: &str) {
        let (_, bytes) = &cut_of(width).manifest;
        counted(bencher, 1, bytes.len())
            .bench_local(|| from_bytes::<Manifest>("manifest", black_box(bytes)).expect("a manifest"));
    }

    /// Whether it follows, and the hash that the next one has to have.
    #[divan::bench(args = WIDTHS)]
    fn check(bencher: Bencher, width: &str) {
        let Cut { head, manifest: (manifest, bytes), .. } = cut_of(width);
        counted(bencher, 1, bytes.len()).bench_local(|| head.advance(black_box(manifest), bytes).expect("it follows"));
    }
}

/// A hundred manifests.
mod checkpoint {
    use super::*;

    #[divan::bench(args = WIDTHS)]
    fn write(bencher: Bencher, width: &str) {
        let (checkpoint, bytes) = cut_of(width).checkpoint();
        counted(bencher, CUTS as usize, bytes.len()).bench_local(|| to_bytes(black_box(&checkpoint)));
    }

    #[divan::bench(args = WIDTHS)]
    fn read(bencher: Bencher, width: &str) {
        let (_, bytes) = cut_of(width).checkpoint();
        counted(bencher, CUTS as usize, bytes.len())
            .bench_local(|| from_bytes::<Checkpoint>("checkpoint", black_box(&bytes)).expect("a checkpoint"));
    }

    #[divan::bench(args = WIDTHS)]
    fn check(bencher: Bencher, width: &str) {
        let cut = cut_of(width);
        let (checkpoint, bytes) = cut.checkpoint();
        counted(bencher, CUTS as usize, bytes.len())
            .bench_local(|| black_box(&checkpoint).check(&cut.genesis).expect("it fits"));
    }
}

/// Bitmaps of the offsets of one object. Items are offsets, bytes those of the base64.
mod offsets {
    use super::*;
    use common::Random;
    use dlq_archiver::ledger::{decode_offsets, encode_offsets};
    use roaring::RoaringTreemap;

    const SHAPES: [&str; 4] = ["all", "1 of 4", "1 of 40", "1 of 1000"];

    /// Offsets behind each other, and those that one of several pipelines has.
    fn offsets(shape: &str) -> RoaringTreemap {
        let one_of: u64 = shape.strip_prefix("1 of ").map_or(1, |n| n.parse().expect("a number"));
        let mut random = Random::new(11);
        (0..rows_wanted() as u64).map(|o| (1 << 33) + o).filter(|_| random.next().is_multiple_of(one_of)).collect()
    }

    #[divan::bench(args = SHAPES)]
    fn encode(bencher: Bencher, shape: &str) {
        let offsets = offsets(shape);
        let text = encode_offsets(&offsets).expect("offsets");
        counted(bencher, offsets.len() as usize, text.len()).bench_local(|| encode_offsets(black_box(&offsets)));
    }

    #[divan::bench(args = SHAPES)]
    fn decode(bencher: Bencher, shape: &str) {
        let offsets = offsets(shape);
        let text = encode_offsets(&offsets).expect("offsets");
        counted(bencher, offsets.len() as usize, text.len())
            .bench_local(|| decode_offsets(black_box(&text)).expect("offsets"));
    }
}

mod checksums {
    use super::*;
    use dlq_archiver::ledger::{decode_checksums, encode_checksums, sha256_hex};

    fn checksums() -> Vec<u64> {
        let mut scratch = Vec::new();
        ROWS.iter().map(|raw| raw.checksum(&mut scratch)).collect()
    }

    /// XXH3 of each record; bytes are the records'.
    #[divan::bench]
    fn of_records(bencher: Bencher) {
        let mut scratch = Vec::new();
        counted(bencher, ROWS.len(), ROWS.payload_len())
            .bench_local(|| ROWS.iter().fold(0, |sum, raw| sum ^ raw.checksum(&mut scratch)));
    }

    #[divan::bench]
    fn encode(bencher: Bencher) {
        let checksums = checksums();
        counted(bencher, checksums.len(), 8 * checksums.len()).bench_local(|| encode_checksums(black_box(&checksums)));
    }

    #[divan::bench]
    fn decode(bencher: Bencher) {
        let text = encode_checksums(&checksums());
        counted(bencher, ROWS.len(), text.len()).bench_local(|| decode_checksums(black_box(&text)).expect("checksums"));
    }

    /// SHA-256, of documents and of data objects.
    #[divan::bench]
    fn sha256(bencher: Bencher) {
        let (_, bytes) = &cut_of(WIDTHS[0]).intent;
        bencher.counter(BytesCount::new(bytes.len())).bench_local(|| sha256_hex(black_box(bytes)));
    }
}
