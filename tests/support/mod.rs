//! An archive in a temporary folder, written through the library as the archive loop writes it, without Kafka.
#![allow(dead_code, reason = "each test program uses a part")]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dlq_archiver::archive::ledger as io;
use dlq_archiver::cut::{self, CutRange, Tables};
use dlq_archiver::format::Format;
use dlq_archiver::layout;
use dlq_archiver::ledger::{self, ArchiveDoc, Gap, Genesis, Head, LEDGER_VERSION, Manifest};
use dlq_archiver::record::{Header, RawBatch, TimestampType};
use dlq_archiver::store::{self, Created, ObjectMeta, Store, StoreOptions};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

/// When every cut of these archives was made: 2026-12-01T00:00:00Z.
pub const CUT_AT_US: i64 = 1_796_083_200_000_000;

pub const FIXTURES: [&str; 8] = [
    "connect",
    "connect-no-context",
    "share-group-copied",
    "share-group-headers-only",
    "spring-dlt",
    "spring-retry-topics",
    "streams",
    "vast",
];

/// Topic, partition, generation.
type Log = (String, i32, u32);

pub struct TestArchive {
    /// None where it lies in another store.
    folder: Option<tempfile::TempDir>,
    pub store: Arc<dyn Store>,
    pub archive: ArchiveDoc,
    format: Format,
    /// Microseconds since 1970.
    pub cut_at_us: i64,
    tables: Arc<Tables>,
    logs: BTreeMap<Log, (Genesis, Head)>,
}

impl TestArchive {
    /// An archive without records.
    pub async fn new(format: Format) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = StoreOptions { create_missing: true, ..StoreOptions::default() };
        let store = store::open(&format!("file://{}/archive", folder.path().display()), &options).await.unwrap();
        Self { folder: Some(folder), ..Self::on(store, format).await }
    }

    /// An archive without records, in this store.
    pub async fn on(store: Arc<dyn Store>, format: Format) -> Self {
        let (id, now) = ("4c2f27f0-0000-4000-8000-000000000001", "2026-11-01T00:00:00.000000Z");
        let archive = io::open_archive(&*store, format.archive_name(), Some("cluster-1"), id, now).await.unwrap();
        let (cut_at_us, tables, logs) = (CUT_AT_US, Arc::new(Tables::builtin()), BTreeMap::new());
        Self { folder: None, store, archive, format, cut_at_us, tables, logs }
    }

    /// An archive of all records of `tests/golden/fixtures`, one cut for each topic partition.
    pub async fn of_fixtures(format: Format) -> Self {
        let mut archive = Self::new(format).await;
        for ((topic, partition), batch) in fixtures() {
            let to = batch.last().unwrap().offset + 1;
            archive.cut(&topic, partition, 0, to, batch, Vec::new()).await;
        }
        archive
    }

    pub fn url(&self) -> &str {
        self.store.url()
    }

    /// Where the objects lie.
    pub fn path(&self, key: &str) -> PathBuf {
        self.folder.as_ref().unwrap().path().join("archive").join(key)
    }

    /// Begins a partition's ledger. Left out, it begins at offset 0 with its first cut.
    pub async fn genesis(&mut self, topic: &str, partition: i32, generation: u32, first_offset: i64) {
        let before = generation.checked_sub(1).and_then(|g| self.logs.get(&(topic.to_owned(), partition, g)));
        let genesis = Genesis {
            version: LEDGER_VERSION,
            archive_id: self.archive.archive_id.clone(),
            topic: topic.to_owned(),
            partition,
            generation,
            topic_id: None,
            first_offset,
            previous_sha256: before.map(|(_, head)| head.previous_sha256.clone()),
            created_at: self.archive.created_at.clone(),
        };
        let key = layout::genesis_key(&layout::ledger_prefix(topic, partition, generation));
        let (bytes, _) = io::create(&*self.store, &key, &genesis).await.unwrap();
        let head = Head::from_genesis(&genesis, &bytes);
        self.logs.insert((topic.to_owned(), partition, generation), (genesis, head));
    }

    /// Writes the next cut of a partition's first generation: `[from, to)` with these records and gaps.
    pub async fn cut(
        &mut self,
        topic: &str,
        partition: i32,
        from: i64,
        to: i64,
        batch: RawBatch,
        gaps: Vec<Gap>,
    ) -> Manifest {
        self.cut_in(topic, partition, 1, from, to, batch, gaps).await
    }

    #[allow(clippy::too_many_arguments)]
    pub async fn cut_in(
        &mut self,
        topic: &str,
        partition: i32,
        generation: u32,
        from: i64,
        to: i64,
        batch: RawBatch,
        gaps: Vec<Gap>,
    ) -> Manifest {
        let log = (topic.to_owned(), partition, generation);
        if !self.logs.contains_key(&log) {
            self.genesis(topic, partition, generation, from).await;
        }
        let (genesis, head) = self.logs.get(&log).cloned().unwrap();
        let groups = cut::group(&batch, topic, partition, &self.tables);
        let range = CutRange { from, to, cut_at_us: self.cut_at_us };
        let intent = cut::intent(&genesis, range, &batch, &groups, gaps.clone(), self.format, &self.tables).unwrap();
        let prefix = layout::ledger_prefix(topic, partition, generation);
        let intent_key = layout::intent_key(&prefix, from);
        io::create(&*self.store, &intent_key, &intent).await.unwrap();
        let mut objects = Vec::new();
        for (object, group) in intent.objects.iter().zip(&groups) {
            let rows = group.rows.iter().map(|row| batch.get(*row as usize));
            let cluster = self.archive.kafka_cluster_id.as_deref();
            let encoded = cut::encode(&intent, object, cluster, rows, self.format, &self.tables, &intent_key).unwrap();
            let created = self.store.create(&object.key, encoded.bytes, &ObjectMeta::default()).await.unwrap();
            assert_eq!(created, Created::New);
            objects.push(encoded.object);
        }
        let manifest = Manifest {
            version: LEDGER_VERSION,
            archive_id: genesis.archive_id.clone(),
            topic: topic.to_owned(),
            partition,
            generation,
            topic_id: None,
            sequence: head.sequence,
            from,
            to,
            cut_at_us: self.cut_at_us,
            schema_version: intent.schema_version,
            leader_epoch: intent.leader_epoch,
            rows: objects.iter().map(|o| o.rows).sum(),
            objects,
            gaps,
            previous_sha256: head.previous_sha256.clone(),
        };
        let (bytes, _) = io::create(&*self.store, &layout::manifest_key(&prefix, from), &manifest).await.unwrap();
        let head = head.advance(&manifest, &bytes).unwrap();
        self.logs.insert(log, (genesis, head));
        manifest
    }

    /// Runs the program on this archive: `--archive` is added behind the command's name.
    pub fn run(&self, args: &[&str]) -> Run {
        let mut all = vec![args[0], "--archive", self.url()];
        all.extend_from_slice(&args[1..]);
        run(&all)
    }
}

/// How a run of the program ended.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Run {
    /// What it printed, after it ended well.
    #[track_caller]
    pub fn ok(&self) -> &str {
        assert_eq!(self.code, 0, "{self:?}");
        &self.out
    }

    /// Its one document.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(self.ok()).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// The same, of a command that ends with 1: not all that was asked for is done.
    #[track_caller]
    pub fn json_of_failed(&self) -> Value {
        assert_eq!(self.code, 1, "{self:?}");
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Its lines, each a document.
    #[track_caller]
    pub fn lines(&self) -> Vec<Value> {
        self.ok().lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    }

    /// Its one line of error, after it failed with this code and printed nothing else.
    #[track_caller]
    pub fn fails(&self, code: i32) -> &str {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.out, "", "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "one clear line: {self:?}");
        assert!(self.err.starts_with("dlq-archiver: "), "{self:?}");
        self.err.trim_end()
    }
}

/// The program, with nothing of this process' own settings.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlq-archiver"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DLQ_ARCHIVER_") {
            command.env_remove(name);
        }
    }
    // As on a terminal, though it is piped.
    command.env("DLQ_ARCHIVER_LOG_FORMAT", "text");
    command
}

pub fn run(args: &[&str]) -> Run {
    program().args(args).output().unwrap().into()
}

/// One record for a batch.
#[derive(Default)]
pub struct Rec<'a> {
    pub offset: i64,
    pub timestamp_ms: i64,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: Vec<(&'a [u8], Option<&'a [u8]>)>,
}

pub fn push(batch: &mut RawBatch, r: &Rec<'_>) {
    let headers = r.headers.iter().map(|(name, value)| Header { name, value: *value });
    batch.push(r.offset, r.timestamp_ms, TimestampType::CreateTime, -1, r.key, r.value, headers);
}

pub fn batch(records: &[Rec<'_>]) -> RawBatch {
    let mut batch = RawBatch::new();
    for r in records {
        push(&mut batch, r);
    }
    batch
}

/// All fixtures by topic and partition, in order of offsets.
pub fn fixtures() -> BTreeMap<(String, i32), RawBatch> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/fixtures");
    let mut records: BTreeMap<(String, i32), BTreeMap<i64, Value>> = BTreeMap::new();
    for name in FIXTURES {
        let text = std::fs::read_to_string(folder.join(format!("{name}.jsonl"))).unwrap();
        for line in text.lines() {
            let r: Value = serde_json::from_str(line).unwrap();
            let log = (r["topic"].as_str().unwrap().to_owned(), r["partition"].as_i64().unwrap() as i32);
            let before = records.entry(log).or_default().insert(r["offset"].as_i64().unwrap(), r);
            assert!(before.is_none(), "{name}: the same position twice");
        }
    }
    let bytes = |v: &Value| v.as_str().map(|s| STANDARD.decode(s).unwrap());
    let batch = |records: BTreeMap<i64, Value>| {
        let mut batch = RawBatch::new();
        for (offset, r) in records {
            let headers: Vec<(String, Option<Vec<u8>>)> = (r["headers"].as_array().unwrap().iter())
                .map(|h| (h[0].as_str().unwrap().to_owned(), bytes(&h[1])))
                .collect();
            batch.push(
                offset,
                r["timestamp"].as_i64().unwrap(),
                TimestampType::parse(r["timestamp_type"].as_str().unwrap()).unwrap(),
                -1,
                bytes(&r["key"]).as_deref(),
                bytes(&r["value"]).as_deref(),
                headers.iter().map(|(name, value)| Header { name: name.as_bytes(), value: value.as_deref() }),
            );
        }
        batch
    };
    records.into_iter().map(|(log, records)| (log, batch(records))).collect()
}

/// Lower-case hex SHA-256, as manifests have it.
pub fn sha256(bytes: &[u8]) -> String {
    ledger::sha256_hex(bytes)
}
