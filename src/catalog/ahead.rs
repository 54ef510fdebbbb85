//! Reads a few cuts ahead of whoever looks at their records.

use super::Cut;
use crate::error::Result;

/// The matching records of several cuts, see [`super::Catalog::cuts`].
pub struct Cuts {}

impl Cuts {
    /// The next cut; it may have no matching record after all. `None` after the last.
    pub async fn next(&mut self) -> Result<Option<Cut>> {
        todo!()
    }
}
