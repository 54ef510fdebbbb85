//! Looks into an archive: which partitions, cuts and records it has.
//!
//! Owns the way from a [`Filter`] to records: ledger folders, manifests, the data objects they name, rows. Reads
//! through [`Store`] only and writes nothing; Kafka is not asked. Invariant: what is not in a manifest does not exist
//! here, and what a manifest names and the store lacks is an error, never a shorter answer.

mod ahead;
mod cut;

pub use ahead::Cuts;
pub use cut::Cut;

use crate::error::Result;
use crate::filter::Filter;
use crate::format::Projection;
use crate::ledger::{ArchiveDoc, DataObject, Genesis, Manifest};
use crate::store::Store;
use std::sync::Arc;

/// An archive that is there.
pub struct Catalog {
    store: Arc<dyn Store>,
    archive: ArchiveDoc,
}

/// The ledger of one topic partition in one generation.
#[derive(Debug, Clone)]
pub struct PartitionLedger {
    /// Its folder, `/` at its end.
    pub prefix: String,
    /// Has the exact names.
    pub genesis: Genesis,
}

/// One cut that may have matching records, and the objects of it that may.
#[derive(Debug, Clone)]
pub struct Selected {
    pub manifest: Arc<Manifest>,
    /// Never empty.
    pub objects: Vec<DataObject>,
}

/// How data objects are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    pub projection: Projection,
    /// Compare each object's SHA-256 with the manifest's: for whoever acts on what is read.
    pub check_sha256: bool,
}

impl Reading {
    /// For lists and summaries: without key, value, headers and stack trace.
    pub const LIST: Self = Self { projection: Projection::NoPayload, check_sha256: false };
    /// All of a record.
    pub const ALL: Self = Self { projection: Projection::All, check_sha256: false };
    /// All of a record, and only if its object is what the manifest vouches for.
    pub const RESTORE: Self = Self { projection: Projection::All, check_sha256: true };
}

impl Catalog {
    /// # Errors
    /// [`crate::Kind::Config`] if there is no archive at the store's address.
    pub async fn open(store: Arc<dyn Store>) -> Result<Self> {
        let _ = store;
        todo!()
    }

    pub fn archive(&self) -> &ArchiveDoc {
        &self.archive
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The partitions that may match, in order of topic, partition and generation.
    pub async fn partitions(&self, filter: &Filter) -> Result<Vec<PartitionLedger>> {
        let _ = filter;
        todo!()
    }

    /// A partition's manifests, in order, less those whose offsets cannot match. Dates, pipelines and errors are not
    /// looked at: see [`Self::select`].
    pub async fn manifests(&self, ledger: &PartitionLedger, filter: &Filter) -> Result<Vec<Manifest>> {
        let _ = (ledger, filter);
        todo!()
    }

    /// The cuts that may have matching records, in order of topic, partition, generation, offset.
    pub async fn select(&self, filter: &Filter) -> Result<Vec<Selected>> {
        let _ = filter;
        todo!()
    }

    /// The matching records of one cut, in order of offsets.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] naming the object if it is missing, damaged, or not what the manifest vouches for.
    pub async fn read_cut(&self, selected: &Selected, filter: &Filter, reading: Reading) -> Result<Cut> {
        let _ = (selected, filter, reading);
        todo!()
    }

    /// The matching records of these cuts, one cut after the other, a few read ahead:
    /// `while let Some(cut) = cuts.next().await? { for row in cut.iter() { .. } }`.
    pub fn cuts(&self, selected: Vec<Selected>, filter: &Filter, reading: Reading) -> Cuts {
        let _ = (selected, filter, reading);
        todo!()
    }
}
