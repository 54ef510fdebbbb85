//! A receipt: where each partition's chain ended when it was verified. Pure.
//!
//! Kept apart from the bucket, it is what finds the newest manifests edited or cut off: nothing in the ledger hashes
//! those. JSON Schema: `schemas/ledger/receipt.schema.json`.

use crate::error::{Error, Result};
use crate::ledger::LEDGER_VERSION;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    pub version: u32,
    pub archive_id: String,
    /// The archive's address.
    pub url: String,
    /// RFC 3339.
    pub verified_at: String,
    pub program_version: String,
    /// Objects were not read, only asked for.
    pub quick: bool,
    pub partitions: Vec<Partition>,
    /// Sums over the partitions.
    pub rows: u64,
    pub objects: u64,
    pub bytes: u64,
}

/// One partition's chain, in one generation of its topic.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Partition {
    /// Exact name, unescaped.
    pub topic: String,
    pub partition: i32,
    pub generation: u32,
    /// Of the newest manifest; null if there is none yet.
    pub sequence: Option<u64>,
    /// The checkpoint: where the newest manifest ends, or the genesis' first offset.
    pub to: i64,
    /// Hex SHA-256 of the newest manifest's bytes, or of the genesis'.
    pub sha256: String,
    /// Of all manifests.
    pub rows: u64,
    pub objects: u64,
    pub bytes: u64,
}

impl Receipt {
    /// Reads a receipt that a user names as `from`.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] if it is none.
    pub fn parse(from: &str, bytes: &[u8]) -> Result<Self> {
        let receipt: Self = serde_json::from_slice(bytes)
            .map_err(|e| Error::config(format!("--expect {from}: not a receipt that `verify --receipt` wrote: {e}")))?;
        if receipt.version != LEDGER_VERSION {
            return Err(Error::config(format!(
                "--expect {from}: version {}, this program knows version {LEDGER_VERSION}: use the newer program",
                receipt.version
            )));
        }
        Ok(receipt)
    }
}
