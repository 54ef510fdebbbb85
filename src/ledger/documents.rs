//! The ledger's documents as they are stored. JSON Schemas of them are in `schemas/ledger/`.

use crate::error::{Error, Result};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use roaring::RoaringTreemap;
use serde::{Deserialize, Serialize};

/// `archive.json`: what all of an archive has in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveDoc {
    pub version: u32,
    /// Random UUID; its first 8 hex digits end the default consumer group's name.
    pub archive_id: String,
    /// Kafka's cluster id; null where the broker does not tell one.
    pub kafka_cluster_id: Option<String>,
    /// `parquet` or `jsonl`: one archive has one, or a `*.parquet` glob would miss rows.
    pub format: String,
    /// RFC 3339.
    pub created_at: String,
    pub program_version: String,
}

impl ArchiveDoc {
    /// The consumer group of this archive unless another is given: two archives in one group would share the
    /// partitions out between them, and each would miss the other's.
    pub fn default_group(&self) -> String {
        format!("dlq-archiver-{}", self.archive_id.chars().filter(|c| *c != '-').take(8).collect::<String>())
    }
}

/// `genesis.json` of a topic partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Genesis {
    pub version: u32,
    pub archive_id: String,
    /// Exact name, unescaped.
    pub topic: String,
    pub partition: i32,
    pub generation: u32,
    /// Base64 UUID as Kafka prints it; null where the broker does not tell it.
    pub topic_id: Option<String>,
    /// Offsets below this one were never meant to be in this archive.
    pub first_offset: i64,
    /// From the second generation on: hex SHA-256 of the bytes of the last manifest (or the genesis) of the one before.
    pub previous_sha256: Option<String>,
    /// RFC 3339.
    pub created_at: String,
}

/// One data object that an intent fixes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentObject {
    pub key: String,
    /// `YYYY-MM-DD`, the partition folder.
    pub dt: String,
    /// Exact pipeline name, unescaped; null where several share the object.
    pub pipeline: Option<String>,
    pub rows: u64,
    /// The exact offsets: a roaring treemap in its portable format, base64.
    pub offsets: String,
    /// XXH3-64 of each record in offset order, little-endian, base64.
    pub checksums: String,
    /// Of an object that several pipelines share, and of no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<Shared>,
}

/// Which pipeline each row of a shared object is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shared {
    /// Exact names, each once, ascending.
    pub names: Vec<String>,
    /// For each row in offset order its name's index from 0: 4 bytes, little-endian, base64.
    pub rows: String,
}

/// An object's pipelines, by offset.
pub enum Pipelines {
    One(String),
    Shared { names: Vec<String>, offsets: RoaringTreemap, rows: Vec<u32> },
}

impl Pipelines {
    /// The exact name of the row with this offset, if the object has it.
    pub fn of(&self, offset: i64) -> Option<&str> {
        match self {
            Self::One(name) => Some(name),
            Self::Shared { names, offsets, rows } => {
                let offset = u64::try_from(offset).ok().filter(|o| offsets.contains(*o))?;
                let row = usize::try_from(offsets.rank(offset)).ok()?.checked_sub(1)?;
                names.get(*rows.get(row)? as usize).map(String::as_str)
            }
        }
    }
}

impl IntentObject {
    /// # Errors
    /// [`crate::Kind::Corrupt`] if it does not say of each row of which pipeline it is.
    pub fn pipelines(&self) -> Result<Pipelines> {
        let bad = |what: &str| Err(Error::corrupt(format!("an intent's pipelines are damaged: {what}")));
        let shared = match (&self.pipeline, &self.shared) {
            (Some(name), None) => return Ok(Pipelines::One(name.clone())),
            (None, Some(shared)) => shared,
            _ => return bad("an object is of one, or shared"),
        };
        let Ok(bytes) = BASE64.decode(&shared.rows) else { return bad("no base64") };
        let (rows, rest) = bytes.as_chunks::<4>();
        let rows: Vec<u32> = rows.iter().map(|row| u32::from_le_bytes(*row)).collect();
        let names = shared.names.clone();
        if !rest.is_empty() || rows.len() as u64 != self.rows || rows.iter().any(|row| *row as usize >= names.len()) {
            return bad("not one of its names for each row");
        }
        if !names.is_sorted_by(|a, b| a < b) {
            return bad("names out of order");
        }
        Ok(Pipelines::Shared { names, offsets: decode_offsets(&self.offsets)?, rows })
    }
}

impl Shared {
    /// `rows`: the index of each row's name, in offset order.
    pub fn new(names: Vec<String>, rows: &[u32]) -> Self {
        let bytes: Vec<u8> = rows.iter().flat_map(|row| row.to_le_bytes()).collect();
        Self { names, rows: BASE64.encode(bytes) }
    }
}

/// `<from>.intent.json`: fixes what a cut's objects contain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    pub version: u32,
    pub archive_id: String,
    pub topic: String,
    pub partition: i32,
    pub generation: u32,
    pub topic_id: Option<String>,
    pub from: i64,
    /// Exclusive; the consumer's position when the cut was closed.
    pub to: i64,
    /// Cut time, microseconds since 1970: the `archived_at` of every row.
    pub cut_at_us: i64,
    pub schema_version: u32,
    /// File name extension of the objects, such as `parquet` or `jsonl.gz`.
    pub extension: String,
    pub dialects_digest: String,
    pub routing_digest: String,
    /// Leader epoch of the last record; -1 where unknown or without a record.
    pub leader_epoch: i32,
    pub program_version: String,
    pub objects: Vec<IntentObject>,
    /// Offsets that Kafka had already deleted when the cut was made.
    pub gaps: Vec<Gap>,
}

impl Intent {
    pub fn rows(&self) -> u64 {
        self.objects.iter().map(|o| o.rows).fold(0, u64::saturating_add)
    }

    /// Takes the place of the next cut behind a generation's last one, so that no late writer can begin it.
    pub fn is_seal(&self) -> bool {
        self.from == self.to && self.objects.is_empty() && self.gaps.is_empty()
    }
}

/// Why offsets are not in the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GapKind {
    /// Below the log start before they were read.
    Lost,
    /// Named by an intent, but below the log start when recovery read them again.
    Expired,
    /// Named by an intent, but compacted away when recovery read them again.
    Compacted,
    /// Below the log start before they were read, in a log where not every offset is a record.
    Unknown,
}

impl GapKind {
    pub const ALL: [Self; 4] = [Self::Lost, Self::Expired, Self::Compacted, Self::Unknown];

    /// As documents have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Expired => "expired",
            Self::Compacted => "compacted",
            Self::Unknown => "unknown",
        }
    }

    /// Whether records are (or may be) gone that the archive should have had.
    pub fn is_loss(self) -> bool {
        !matches!(self, Self::Compacted)
    }

    /// What became of `what`, such as `offsets 3..8`, in the words that every command has for it.
    pub fn words(self, what: &str) -> String {
        match self {
            Self::Lost | Self::Expired => format!("{what} are lost: {DELETED}"),
            Self::Unknown => format!("{what} may be lost: {DELETED}, and {UNSURE}"),
            Self::Compacted => format!("{what} were compacted away before they were archived"),
        }
    }
}

const DELETED: &str = "retention deleted them before they were archived";
const UNSURE: &str = "whether all of them were records is not known";

/// So many offsets in gaps that are losses, and that may be, in the same words; `None` if there are none.
pub fn loss_words(lost: u64, unknown: u64) -> Option<String> {
    match (lost, unknown) {
        (0, 0) => None,
        (n, 0) => Some(GapKind::Lost.words(&format!("{n} offsets"))),
        (0, n) => Some(GapKind::Unknown.words(&format!("{n} offsets"))),
        (a, b) => Some(format!("{a} offsets are lost, and {b} more may be: {DELETED}")),
    }
}

/// Offsets `from..to` that are in no data object though they may have been records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    pub from: i64,
    pub to: i64,
    pub kind: GapKind,
}

/// Rows of one object with the same dialect, error class and error code.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Counts {
    pub dialect: String,
    pub error_class: Option<String>,
    pub error_code: Option<i32>,
    pub rows: u64,
}

/// One data object as the manifest vouches for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataObject {
    pub key: String,
    pub dt: String,
    /// Exact name, unescaped; null where several share the object, whose column `pipeline_name` has each row's.
    pub pipeline: Option<String>,
    /// Bytes as stored.
    pub size: u64,
    pub rows: u64,
    /// Hex SHA-256 of the bytes as stored.
    pub sha256: String,
    /// Null for an object without rows.
    pub min_offset: Option<i64>,
    pub max_offset: Option<i64>,
    /// Kafka timestamps, milliseconds since 1970.
    pub min_timestamp_ms: Option<i64>,
    pub max_timestamp_ms: Option<i64>,
    /// Sums up to `rows`; rarest ones are folded into one entry of dialect `other` beyond a bound.
    pub counts: Vec<Counts>,
}

/// `<from>.json`: a committed cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub version: u32,
    pub archive_id: String,
    pub topic: String,
    pub partition: i32,
    pub generation: u32,
    pub topic_id: Option<String>,
    /// From 0, one up for each manifest of this partition and generation.
    pub sequence: u64,
    pub from: i64,
    pub to: i64,
    pub cut_at_us: i64,
    pub schema_version: u32,
    pub leader_epoch: i32,
    pub rows: u64,
    pub objects: Vec<DataObject>,
    pub gaps: Vec<Gap>,
    /// Hex SHA-256 of the bytes of the manifest before, or of the genesis.
    pub previous_sha256: String,
}

pub fn encode_offsets(offsets: &RoaringTreemap) -> Result<String> {
    let mut bytes = Vec::with_capacity(offsets.serialized_size());
    offsets.serialize_into(&mut bytes).map_err(|e| Error::internal(format!("cannot write a bitmap: {e}")))?;
    Ok(BASE64.encode(bytes))
}

/// # Errors
/// [`crate::Kind::Corrupt`] if `text` is not what [`encode_offsets`] writes.
pub fn decode_offsets(text: &str) -> Result<RoaringTreemap> {
    let bytes = BASE64.decode(text).map_err(|e| Error::corrupt(format!("an intent's offsets are damaged: {e}")))?;
    RoaringTreemap::deserialize_from(&bytes[..])
        .map_err(|e| Error::corrupt(format!("an intent's offsets are damaged: {e}")))
}

pub fn encode_checksums(checksums: &[u64]) -> String {
    let bytes: Vec<u8> = checksums.iter().flat_map(|c| c.to_le_bytes()).collect();
    BASE64.encode(bytes)
}

/// # Errors
/// [`crate::Kind::Corrupt`] if `text` is not what [`encode_checksums`] writes.
pub fn decode_checksums(text: &str) -> Result<Vec<u64>> {
    let bytes = BASE64.decode(text).map_err(|e| Error::corrupt(format!("an intent's checksums are damaged: {e}")))?;
    if bytes.len() % 8 != 0 {
        return Err(Error::corrupt("an intent's checksums are damaged: not a multiple of 8 bytes"));
    }
    Ok(bytes.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("8 bytes"))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Mutation = (&'static str, fn(&mut IntentObject));

    #[test]
    fn an_object_says_of_each_row_of_which_pipeline_it_is() {
        let object = |pipeline: Option<&str>, shared| IntentObject {
            key: "k".into(),
            dt: "d".into(),
            pipeline: pipeline.map(str::to_owned),
            rows: 3,
            offsets: encode_offsets(&[2, 5, 1 << 40].into_iter().collect()).unwrap(),
            checksums: String::new(),
            shared,
        };
        assert_eq!(object(Some("a"), None).pipelines().unwrap().of(7), Some("a"));
        let shared = object(None, Some(Shared::new(vec!["a".into(), "b".into()], &[1, 0, 1])));
        let pipelines = shared.pipelines().unwrap();
        let of = |offset| pipelines.of(offset);
        assert_eq!([of(2), of(5), of(1 << 40), of(3), of(-1)], [Some("b"), Some("a"), Some("b"), None, None]);
        let mutations: &[Mutation] = &[
            ("of one and shared", |o| o.pipeline = Some("a".into())),
            ("of none", |o| o.shared = None),
            ("a row too many", |o| o.rows += 1),
            ("no base64", |o| change(o, |s| s.rows.push('!'))),
            ("half a row", |o| change(o, |s| s.rows = BASE64.encode([0; 11]))),
            ("a name that is not there", |o| change(o, |s| s.names.truncate(1))),
            ("a name twice", |o| change(o, |s| s.names = vec!["a".into(), "a".into()])),
            ("names out of order", |o| change(o, |s| s.names.reverse())),
        ];
        for (what, mutate) in mutations {
            let mut damaged = shared.clone();
            mutate(&mut damaged);
            assert_eq!(damaged.pipelines().err().expect(what).kind(), crate::Kind::Corrupt, "{what}");
        }
    }

    fn change(object: &mut IntentObject, change: impl FnOnce(&mut Shared)) {
        change(object.shared.as_mut().unwrap());
    }
}
