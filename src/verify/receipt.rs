//! A receipt: where each partition's chain ended when it was verified, and those of dispositions and restores. Pure.
//!
//! Kept apart from the bucket, it is what finds the newest documents edited or cut off: nothing in the bucket hashes
//! those. JSON Schema: `schemas/ledger/receipt.schema.json`.

use super::damage::{Damage, What};
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
    /// Absent in receipts from before it was kept, as is the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispositions: Option<ChainEnd>,
    /// The order of restores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restores: Option<ChainEnd>,
}

/// The newest document of a chain that is for the whole archive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainEnd {
    /// 0 if there is none yet.
    pub number: u64,
    /// Hex SHA-256 of its bytes; null if there is none yet.
    pub sha256: Option<String>,
}

impl ChainEnd {
    /// Compares it with a chain that now ends at `newest`. `key`: of its document; `sha256`: of that, if it is there.
    pub(super) fn compare(&self, key: &str, newest: u64, sha256: Option<&str>) -> Option<Damage> {
        let expected = format!("number {}, with SHA-256 {}", self.number, self.sha256.as_deref().unwrap_or("none"));
        match sha256 {
            _ if self.number == 0 => None,
            // Of one that is missing from the middle it is told already.
            None if newest > self.number => None,
            None => {
                Some(Damage::new(What::ReceiptCutOff, key, expected, format!("nothing: the newest one is {newest}")))
            }
            Some(_) if sha256 == self.sha256.as_deref() => None,
            Some(sha256) => Some(Damage::new(What::ReceiptChanged, key, expected, sha256)),
        }
    }
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
