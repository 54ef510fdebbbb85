//! The matching records of one cut, held in memory.

use crate::format::ArchivedRecord;
use crate::ledger::{DataObject, Manifest};
use std::sync::Arc;

/// The matching records of one cut, in order of offsets.
pub struct Cut {
    manifest: Arc<Manifest>,
}

impl Cut {
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }
    pub fn len(&self) -> usize {
        todo!()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The `i`-th record. Its `decoded.hops` is empty, as [`crate::format::read`] has it.
    pub fn get(&self, i: usize) -> ArchivedRecord<'_> {
        let _ = i;
        todo!()
    }
    /// The data object that the `i`-th record is in.
    pub fn object(&self, i: usize) -> &DataObject {
        let _ = i;
        todo!()
    }
    pub fn iter(&self) -> impl ExactSizeIterator<Item = ArchivedRecord<'_>> {
        (0..self.len()).map(|i| self.get(i))
    }
}
