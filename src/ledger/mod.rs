//! The ledger: the only truth about what is archived. This is the file to proofread, with [`plan`].
//!
//! Owns the documents (their JSON, names and hashes) and the decisions taken from them. Reads and writes nothing:
//! the archive loop carries out what is decided here. Pure.
//!
//! Per topic partition, each object created only if absent and never changed:
//!
//! 0. `genesis.json` fixes the first offset.
//! 1. `<from>.intent.json` fixes a cut: its range, its data objects, the offsets in each and a checksum a record.
//! 2. the data objects, all that the intent names, by recovery too.
//! 3. `<from>.json`, the manifest, commits: it exists only if all its data is durable. Manifests tile, and each
//!    holds the SHA-256 of the one before.
//!
//! The consumer group's offset is a hint for people and monitors. No offset moves for bytes that are not durable:
//! only [`Head::advance`] and [`plan::head`] make a [`Head`], and both want a manifest.

mod checkpoint;
mod documents;
pub mod plan;

pub use checkpoint::{CUTS, Checkpoint, Entry};
pub use documents::{
    ArchiveDoc, Counts, DataObject, Gap, GapKind, Genesis, Intent, IntentObject, Manifest, Pipelines, Shared,
    decode_checksums, decode_offsets, encode_checksums, encode_offsets, loss_words,
};

use crate::error::{Error, Result};
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

/// Version of the ledger's documents. A reader stops at a version it does not know.
pub const LEDGER_VERSION: u32 = 1;

/// Lower-case hex SHA-256.
pub fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// The bytes of a document as stored: one line of JSON with a final newline, keys in the order of the type.
pub fn to_bytes<T: Serialize>(document: &T) -> Result<Vec<u8>> {
    let mut bytes =
        serde_json::to_vec(document).map_err(|e| Error::internal(format!("cannot write a ledger document: {e}")))?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Reads a document and checks its `version` first, so that a newer one is told as such.
///
/// # Errors
/// [`crate::Kind::Corrupt`] if it is not a document of a known version.
pub fn from_bytes<T: DeserializeOwned>(key: &str, bytes: &[u8]) -> Result<T> {
    #[derive(serde::Deserialize)]
    struct Version {
        version: u32,
    }
    let Version { version } = serde_json::from_slice(bytes).map_err(|e| {
        Error::corrupt(format!("{key} is not a ledger document ({e}): restore it from a copy of the bucket"))
    })?;
    if version != LEDGER_VERSION {
        return Err(Error::corrupt(format!(
            "{key} has version {version}, this program knows version {LEDGER_VERSION}: use the newer program that wrote it"
        )));
    }
    serde_json::from_slice(bytes)
        .map_err(|e| Error::corrupt(format!("{key} is damaged ({e}): restore it from a copy of the bucket")))
}

/// Where a partition's ledger ends: what the next cut has to follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The checkpoint: every offset below it is archived or in a recorded gap.
    pub next: i64,
    /// Sequence number of the next manifest, from 0.
    pub sequence: u64,
    /// SHA-256 of the last manifest's bytes, or of the genesis'.
    pub previous_sha256: String,
}

impl Head {
    /// The head of a ledger that has only its genesis.
    pub fn from_genesis(genesis: &Genesis, bytes: &[u8]) -> Self {
        Self { next: genesis.first_offset, sequence: 0, previous_sha256: sha256_hex(bytes) }
    }

    /// The head behind a checkpoint, which has been checked.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Self {
        let previous_sha256 = checkpoint.last_sha256().to_owned();
        Self { next: checkpoint.to, sequence: (checkpoint.sequence + 1) * CUTS, previous_sha256 }
    }

    /// The head behind `manifest`, whose stored bytes are `bytes`.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] if it does not follow this head.
    pub fn advance(&self, manifest: &Manifest, bytes: &[u8]) -> Result<Self> {
        if manifest.from != self.next || manifest.to <= manifest.from {
            return Err(Error::corrupt(format!(
                "manifest {}..{} does not follow checkpoint {}: the ledger does not tile, run `dlq-archiver verify`",
                manifest.from, manifest.to, self.next
            )));
        }
        if manifest.sequence != self.sequence || manifest.previous_sha256 != self.previous_sha256 {
            return Err(Error::corrupt(format!(
                "manifest {}..{} does not chain to the one before it (sequence {}, expected {}): a ledger object was \
                 changed or replaced, run `dlq-archiver verify`",
                manifest.from, manifest.to, manifest.sequence, self.sequence
            )));
        }
        Ok(Self::after(manifest, bytes))
    }

    fn after(manifest: &Manifest, bytes: &[u8]) -> Self {
        Self { next: manifest.to, sequence: manifest.sequence + 1, previous_sha256: sha256_hex(bytes) }
    }
}
