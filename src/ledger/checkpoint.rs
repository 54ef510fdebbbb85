//! Checkpoints: the manifests of a hundred cuts in one object, so that neither a start nor a reader walks through a
//! ledger of years. Pure.
//!
//! A checkpoint says nothing that the manifests do not say: it may be created late, or be missing, and nothing is lost.
//! Which manifests are in one follows from their sequence numbers, so that all writers would create the same.

use super::{Genesis, LEDGER_VERSION, Manifest, sha256_hex};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// Manifests in one checkpoint.
pub const CUTS: u64 = 100;

/// One manifest, and the hash of its bytes as stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub sha256: String,
    pub manifest: Manifest,
}

/// `checkpoints/<to>.json`: the manifests with sequence numbers `n * CUTS .. (n + 1) * CUTS`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub version: u32,
    pub archive_id: String,
    /// Exact name, unescaped.
    pub topic: String,
    pub partition: i32,
    pub generation: u32,
    /// From 0, one up for each checkpoint of this partition and generation.
    pub sequence: u64,
    pub from: i64,
    /// Exclusive: where the last of the manifests ends.
    pub to: i64,
    /// In order, [`CUTS`] of them.
    pub manifests: Vec<Entry>,
    /// Hex SHA-256 of the bytes of the checkpoint before; the first: of the genesis.
    pub previous_sha256: String,
}

impl Checkpoint {
    /// Whether a checkpoint is to be made behind the manifest before `sequence`.
    pub fn due(sequence: u64) -> bool {
        sequence > 0 && sequence.is_multiple_of(CUTS)
    }

    /// The checkpoint of these manifests, each with its stored bytes. `previous_sha256`: see the field.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] if they are not a hundred that follow each other and belong to the genesis.
    pub fn of(genesis: &Genesis, manifests: Vec<(Manifest, bytes::Bytes)>, previous_sha256: String) -> Result<Self> {
        let place = format!("{}/{}", genesis.topic, genesis.partition);
        let (Some((first, _)), Some((last, _))) = (manifests.first(), manifests.last()) else {
            return Err(Error::internal("a checkpoint of nothing"));
        };
        let (from, to, sequence) = (first.from, last.to, first.sequence / CUTS);
        let entries: Vec<Entry> =
            manifests.into_iter().map(|(manifest, bytes)| Entry { sha256: sha256_hex(&bytes), manifest }).collect();
        let checkpoint = Self {
            version: LEDGER_VERSION,
            archive_id: genesis.archive_id.clone(),
            topic: genesis.topic.clone(),
            partition: genesis.partition,
            generation: genesis.generation,
            sequence,
            from,
            to,
            manifests: entries,
            previous_sha256,
        };
        checkpoint.check(genesis).map_err(|e| e.context(place))?;
        Ok(checkpoint)
    }

    /// Whether it belongs to this genesis, and its manifests follow each other.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] if not.
    pub fn check(&self, genesis: &Genesis) -> Result<()> {
        let bad = |why: String| Err(Error::corrupt(format!("checkpoint {}..{}: {why}", self.from, self.to)));
        let ours = (&self.archive_id, &self.topic, self.partition, self.generation);
        if ours != (&genesis.archive_id, &genesis.topic, genesis.partition, genesis.generation) {
            return bad(format!("it is of {}/{} of archive {}", self.topic, self.partition, self.archive_id));
        }
        if self.manifests.len() as u64 != CUTS {
            return bad(format!("it has {} manifests, not {CUTS}", self.manifests.len()));
        }
        let (mut next, mut sequence) = (self.from, self.sequence * CUTS);
        let mut previous: Option<&str> = None;
        for Entry { sha256, manifest: m } in &self.manifests {
            let place = (&m.archive_id, &m.topic, m.partition, m.generation);
            if (m.from, m.sequence) != (next, sequence) || m.to <= m.from || place != ours {
                return bad(format!("manifest {}..{} does not follow at {next}", m.from, m.to));
            }
            if previous.is_some_and(|previous| previous != m.previous_sha256) {
                return bad(format!("manifest {} does not chain to the one before it", m.from));
            }
            (next, sequence, previous) = (m.to, sequence + 1, Some(sha256.as_str()));
        }
        if next != self.to {
            return bad(format!("its last manifest ends at {next}"));
        }
        Ok(())
    }

    /// Hash of the last manifest's bytes.
    pub fn last_sha256(&self) -> &str {
        self.manifests.last().map_or("", |e| &e.sha256)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Head, to_bytes};

    fn genesis() -> Genesis {
        Genesis {
            version: LEDGER_VERSION,
            archive_id: "a".into(),
            topic: "t".into(),
            partition: 3,
            generation: 1,
            topic_id: None,
            first_offset: 7,
            previous_sha256: None,
            created_at: String::new(),
        }
    }

    fn chain(genesis: &Genesis, cuts: u64) -> Vec<(Manifest, bytes::Bytes)> {
        let mut head = Head::from_genesis(genesis, &to_bytes(genesis).unwrap());
        (0..cuts)
            .map(|_| {
                let m = Manifest {
                    version: LEDGER_VERSION,
                    archive_id: genesis.archive_id.clone(),
                    topic: genesis.topic.clone(),
                    partition: genesis.partition,
                    generation: genesis.generation,
                    topic_id: None,
                    sequence: head.sequence,
                    from: head.next,
                    to: head.next + 2,
                    cut_at_us: 1,
                    schema_version: 1,
                    leader_epoch: -1,
                    rows: 0,
                    objects: Vec::new(),
                    gaps: Vec::new(),
                    previous_sha256: head.previous_sha256.clone(),
                };
                let bytes = to_bytes(&m).unwrap();
                head = head.advance(&m, &bytes).unwrap();
                (m, bytes.into())
            })
            .collect()
    }

    #[test]
    fn a_checkpoint_has_a_hundred_manifests_that_follow_each_other() {
        let (genesis, manifests) = (genesis(), chain(&genesis(), 200));
        let first = Checkpoint::of(&genesis, manifests[..100].to_vec(), "x".into()).unwrap();
        assert_eq!((first.from, first.to, first.sequence), (7, 207, 0));
        let second = Checkpoint::of(&genesis, manifests[100..].to_vec(), "y".into()).unwrap();
        assert_eq!((second.from, second.to, second.sequence), (207, 407, 1));
        assert_eq!(second.last_sha256(), sha256_hex(&manifests[199].1));
        assert!(Checkpoint::of(&genesis, manifests[..99].to_vec(), String::new()).is_err());
        assert!(Checkpoint::of(&genesis, manifests[1..101].to_vec(), String::new()).is_err());
    }

    #[test]
    fn a_changed_manifest_is_found_by_the_next_one() {
        let genesis = genesis();
        let mut checkpoint = Checkpoint::of(&genesis, chain(&genesis, 100), String::new()).unwrap();
        checkpoint.manifests[40].sha256 = "0".repeat(64);
        assert!(checkpoint.check(&genesis).unwrap_err().message().contains("chain"));
        assert!(checkpoint.check(&Genesis { partition: 4, ..genesis }).is_err());
    }
}
