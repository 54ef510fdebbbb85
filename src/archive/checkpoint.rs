//! Creates checkpoints behind a writer's manifests.
//!
//! Invariant: a checkpoint holds only manifests that are durable. It is a help for starts and readers, so a fault in it
//! stops nothing: it is told, and tried again a hundred cuts later.

use super::ledger as io;
use super::writer::Writer;
use crate::error::{Error, Kind, Result};
use crate::layout;
use crate::ledger::{CUTS, Checkpoint, Manifest, sha256_hex, to_bytes};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};

/// Manifests that are fetched at a time.
const FETCHES: usize = 16;

impl Writer<'_> {
    /// Creates the checkpoints that are due: usually none, one after every [`CUTS`] cuts, or one that an archiver that
    /// crashed had not come to.
    ///
    /// # Errors
    /// What ends the partition in any case: a store that is not to be waited for any longer.
    pub(super) async fn make_checkpoints(&mut self) -> Result<()> {
        // Manifests behind the newest checkpoint, and not a hundred of them, or of the wrong ones: nothing to do.
        while self.recent.len() as u64 >= CUTS && self.head.sequence % CUTS == self.recent.len() as u64 % CUTS {
            match self.make_checkpoint().await {
                Ok(to) => {
                    tracing::debug!("{}: checkpoint at {to}", self.partition.tp);
                    self.checkpoint = Some(to);
                    self.recent.drain(..CUTS as usize);
                }
                Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Failed | Kind::Internal) => {
                    tracing::error!(
                        "{}: no checkpoint could be made: {e}. Nothing is lost by it; `dlq-archiver verify` tells what is \
                         damaged",
                        self.partition.tp
                    );
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    async fn make_checkpoint(&self) -> Result<i64> {
        let prefix = &self.partition.prefix;
        let starts = &self.recent[..CUTS as usize];
        let reads: Vec<_> =
            starts.iter().map(|from| self.manifest(layout::manifest_key(prefix, *from)).boxed()).collect();
        let manifests: Vec<(Manifest, Bytes)> = stream::iter(reads).buffered(FETCHES).try_collect().await?;
        let before = match self.checkpoint {
            None => layout::genesis_key(prefix),
            Some(to) => layout::checkpoint_key(prefix, to),
        };
        let previous = self.stored(&before).await?;
        let checkpoint = Checkpoint::of(&self.genesis, manifests, sha256_hex(&previous))?;
        let key = layout::checkpoint_key(prefix, checkpoint.to);
        let bytes = Bytes::from(to_bytes(&checkpoint)?);
        let (store, meta) = (self.partition.store(), io::json_meta());
        // One that is there already says the same.
        self.partition
            .wait_out("create a checkpoint", || store.create(&key, bytes.clone(), &meta))
            .await
            .map(|_| checkpoint.to)
    }

    async fn manifest(&self, key: String) -> Result<(Manifest, Bytes)> {
        let bytes = self.stored(&key).await?;
        Ok((crate::ledger::from_bytes(&key, &bytes)?, bytes))
    }

    async fn stored(&self, key: &str) -> Result<Bytes> {
        let store = self.partition.store();
        self.partition.wait_out("read the ledger", || store.get(key)).await?.ok_or_else(|| {
            Error::corrupt(format!("{key} was created and is not there: something deletes ledger objects"))
        })
    }
}
