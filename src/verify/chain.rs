//! A partition's manifests in order: whether they tile and chain, and whether checkpoints and receipts agree. Pure.
//!
//! Goes on behind damage, so that all of it is told.

use super::damage::{Damage, Totals, What};
use super::receipt;
use crate::layout;
use crate::ledger::{Checkpoint, Genesis, Manifest, sha256_hex, to_bytes};

/// One cut as it is in the ledger.
#[derive(Debug, Clone)]
pub(super) struct Link {
    /// By its name.
    pub from: i64,
    pub manifest: Option<Stored>,
    pub intent: Intent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Intent {
    Absent,
    Unreadable,
    To(i64),
}

#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub sha256: String,
    /// `None` if it cannot be read.
    pub said: Option<Said>,
}

#[derive(Debug, Clone)]
pub(super) struct Said {
    pub to: i64,
    pub sequence: u64,
    pub previous_sha256: String,
    pub rows: u64,
    pub objects: u64,
    pub bytes: u64,
}

impl Said {
    pub(super) fn of(m: &Manifest) -> Self {
        Self {
            to: m.to,
            sequence: m.sequence,
            previous_sha256: m.previous_sha256.clone(),
            rows: m.rows,
            objects: m.objects.len() as u64,
            bytes: m.objects.iter().fold(0, |sum, o| sum.saturating_add(o.size)),
        }
    }
}

/// Where the walk through a ledger is.
pub(super) struct Chain {
    prefix: String,
    /// `None` where the document that says it is missing or damaged.
    next: Option<i64>,
    sequence: u64,
    /// Key and hash of the document before.
    previous: Option<(String, String)>,
    genesis_sha256: Option<String>,
    /// Sequence number and beginning of the hash of each manifest.
    hashes: Vec<(u64, u128)>,
    newest: Option<(u64, i64, String)>,
    rows: u64,
    objects: u64,
    bytes: u64,
}

/// Enough of a hash to tell documents apart.
fn short(sha256: &str) -> u128 {
    sha256.get(..32).and_then(|hex| u128::from_str_radix(hex, 16).ok()).unwrap_or_default()
}

impl Chain {
    /// `genesis_sha256`: of its bytes, if there are any.
    pub(super) fn new(prefix: &str, genesis: Option<&Genesis>, genesis_sha256: Option<String>) -> Self {
        Self {
            prefix: prefix.to_owned(),
            next: genesis.map(|g| g.first_offset),
            sequence: 0,
            previous: genesis_sha256.clone().map(|sha256| (layout::genesis_key(prefix), sha256)),
            genesis_sha256,
            hashes: Vec::new(),
            newest: None,
            rows: 0,
            objects: 0,
            bytes: 0,
        }
    }

    /// Takes the next cut by name. Returns whether it is the open one: begun behind all others, and not committed.
    pub(super) fn follow(&mut self, link: &Link, last: bool, tell: &mut impl FnMut(Damage)) -> bool {
        let key = layout::manifest_key(&self.prefix, link.from);
        let Some(stored) = &link.manifest else {
            let follows = self.next.is_none_or(|next| next == link.from);
            if last && follows {
                return true;
            }
            if !follows {
                self.untiled(link.from, tell);
            }
            if !last {
                let expected = "the manifest of a cut that has an intent, and later cuts behind it";
                tell(Damage::new(What::ManifestMissing, key, expected, "nothing"));
            }
            self.next = if let Intent::To(to) = link.intent { Some(to) } else { None };
            self.sequence += 1;
            self.previous = None;
            return false;
        };
        if link.intent == Intent::Absent {
            let intent = layout::intent_key(&self.prefix, link.from);
            tell(Damage::new(What::IntentMissing, intent, format!("the intent of {key}"), "nothing"));
        }
        let Some(said) = &stored.said else {
            self.hashes.push((self.sequence, short(&stored.sha256)));
            self.next = if let Intent::To(to) = link.intent { Some(to) } else { None };
            self.sequence += 1;
            self.previous = Some((key, stored.sha256.clone()));
            return false;
        };
        let direct = said.sequence == self.sequence;
        let changed = self.previous.as_ref().filter(|(_, sha256)| direct && *sha256 != said.previous_sha256);
        if let Some((before, sha256)) = changed {
            let expected = format!("SHA-256 {}, as {key} names it", said.previous_sha256);
            tell(Damage::new(What::ChainBroken, before, expected, sha256));
        } else if self.next.is_some_and(|next| next != link.from) {
            self.untiled(link.from, tell);
        } else if !direct {
            let (kind, expected) = (What::ManifestDamaged, format!("sequence number {}", self.sequence));
            let kind = if self.next.is_none() && said.sequence > self.sequence { What::ManifestMissing } else { kind };
            tell(Damage::new(kind, &key, expected, said.sequence.to_string()));
        }
        self.hashes.push((said.sequence, short(&stored.sha256)));
        self.next = Some(said.to);
        self.sequence = said.sequence.saturating_add(1);
        self.previous = Some((key, stored.sha256.clone()));
        self.newest = Some((said.sequence, said.to, stored.sha256.clone()));
        self.rows = self.rows.saturating_add(said.rows);
        self.objects = self.objects.saturating_add(said.objects);
        self.bytes = self.bytes.saturating_add(said.bytes);
        false
    }

    fn untiled(&self, from: i64, tell: &mut impl FnMut(Damage)) {
        let Some(next) = self.next else { return };
        let (expected, found) = (format!("a cut that begins at {next}"), format!("the next one begins at {from}"));
        if from > next {
            tell(Damage::new(What::ManifestMissing, layout::manifest_key(&self.prefix, next), expected, found));
        } else {
            tell(Damage::new(What::CutsOverlap, layout::manifest_key(&self.prefix, from), expected, found));
        }
    }

    /// Compares one checkpoint with the manifests that were followed. `before`: hash of the checkpoint before, if it
    /// is there.
    pub(super) fn checkpoint(
        &self,
        key: &str,
        genesis: Option<&Genesis>,
        c: &Checkpoint,
        before: Option<&str>,
    ) -> Option<Damage> {
        let bad = |expected: String, found: String| Some(Damage::new(What::CheckpointDamaged, key, expected, found));
        if let Some(Err(e)) = genesis.map(|g| c.check(g)) {
            return bad("a checkpoint that holds together".into(), e.message().to_owned());
        }
        if layout::checkpoint_key(&self.prefix, c.to) != key {
            return bad("a checkpoint that ends where its name says".into(), c.to.to_string());
        }
        let before = if c.sequence == 0 { self.genesis_sha256.as_deref() } else { before };
        if let Some(before) = before.filter(|sha256| *sha256 != c.previous_sha256) {
            return bad(format!("the hash of the one before, {before}"), c.previous_sha256.clone());
        }
        for entry in &c.manifests {
            let m = &entry.manifest;
            let name = layout::manifest_key(&self.prefix, m.from);
            if to_bytes(m).map(|bytes| sha256_hex(&bytes)).ok().as_ref() != Some(&entry.sha256) {
                return bad(format!("a copy of {name} with its SHA-256"), "another hash".into());
            }
            if !self.has(m.sequence, &entry.sha256) {
                return bad(format!("{name} in the ledger, with SHA-256 {}", entry.sha256), self.found(m.sequence));
            }
        }
        None
    }

    fn has(&self, sequence: u64, sha256: &str) -> bool {
        let at = self.hashes.partition_point(|(s, _)| *s < sequence);
        // Damaged ledgers may have them out of order.
        self.hashes.get(at).is_some_and(|h| *h == (sequence, short(sha256)))
            || self.hashes.contains(&(sequence, short(sha256)))
    }

    fn found(&self, sequence: u64) -> String {
        let newest = self.newest.as_ref();
        match newest {
            _ if self.hashes.iter().any(|(s, _)| *s == sequence) => "another one".into(),
            Some((newest, to, _)) => format!("nothing: the newest one has number {newest} and ends at {to}"),
            None => "nothing: there is no manifest".into(),
        }
    }

    /// Compares a receipt's line with what was followed.
    pub(super) fn compare(&self, p: &receipt::Partition) -> Option<Damage> {
        let Some(sequence) = p.sequence else {
            let same = self.genesis_sha256.as_deref().is_none_or(|sha256| sha256 == p.sha256);
            let found = self.genesis_sha256.clone().unwrap_or_default();
            let (key, expected) = (layout::genesis_key(&self.prefix), format!("SHA-256 {}", p.sha256));
            return (!same).then(|| Damage::new(What::ReceiptChanged, key, expected, found));
        };
        if self.has(sequence, &p.sha256) {
            return None;
        }
        let expected = format!("manifest {sequence}, which ends at {}, with SHA-256 {}", p.to, p.sha256);
        let there = self.hashes.iter().any(|(s, _)| *s == sequence);
        let kind = if there { What::ReceiptChanged } else { What::ReceiptCutOff };
        Some(Damage::new(kind, &self.prefix, expected, self.found(sequence)))
    }

    pub(super) fn add_to(&self, totals: &mut Totals) {
        totals.partitions += 1;
        totals.cuts += self.hashes.len() as u64;
        totals.rows = totals.rows.saturating_add(self.rows);
        totals.objects = totals.objects.saturating_add(self.objects);
        totals.bytes = totals.bytes.saturating_add(self.bytes);
    }

    /// What a receipt says of this ledger. `None` without a genesis.
    pub(super) fn receipt(&self, genesis: Option<&Genesis>) -> Option<receipt::Partition> {
        let g = genesis?;
        let newest = self.newest.clone();
        Some(receipt::Partition {
            topic: g.topic.clone(),
            partition: g.partition,
            generation: g.generation,
            sequence: newest.as_ref().map(|n| n.0),
            to: newest.as_ref().map_or(g.first_offset, |n| n.1),
            sha256: newest.map(|n| n.2).or_else(|| self.genesis_sha256.clone())?,
            rows: self.rows,
            objects: self.objects,
            bytes: self.bytes,
        })
    }
}
