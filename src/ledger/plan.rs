//! What a listing of a partition's ledger means, and what to do next. Pure.

use super::{Gap, GapKind, Genesis, Head, Intent, Manifest, decode_offsets};
use crate::error::{Error, Result};
use roaring::RoaringTreemap;
use std::collections::BTreeSet;

/// The names found under one partition's ledger.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    pub genesis: bool,
    pub intents: BTreeSet<i64>,
    pub manifests: BTreeSet<i64>,
}

/// What the names say to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing there: create the genesis.
    CreateGenesis,
    /// Read the genesis: there is no manifest yet. `open` if an intent at its first offset may wait.
    FromGenesis { open: Option<i64> },
    /// Read the newest manifest. `open`: an intent behind it that has no manifest.
    FromManifest { newest: i64, open: Option<i64> },
}

/// Decides from names alone, so that a start reads one manifest and not all of them.
///
/// # Errors
/// [`crate::Kind::Corrupt`] if the names cannot come from an undamaged ledger.
pub fn step(names: &Names) -> Result<Step> {
    if !names.genesis {
        if names.intents.is_empty() && names.manifests.is_empty() {
            return Ok(Step::CreateGenesis);
        }
        return Err(Error::corrupt(
            "genesis.json is missing though cuts are there (a lifecycle rule may have taken it): restore it from an \
             older version or a copy of the bucket; nothing is archived from this partition until then",
        ));
    }
    if let Some(from) = names.manifests.difference(&names.intents).next() {
        return Err(Error::corrupt(format!(
            "the intent of manifest {from} is missing: restore it from an older version or a copy of the bucket"
        )));
    }
    let newest = names.manifests.last().copied();
    let mut open = names.intents.difference(&names.manifests).copied();
    let first_open = open.next();
    if open.next().is_some() || first_open.zip(newest).is_some_and(|(open, newest)| open < newest) {
        return Err(Error::corrupt(format!(
            "a manifest is missing (intent {} has none, though later cuts are there): restore it from a copy of the bucket",
            first_open.unwrap_or_default()
        )));
    }
    Ok(match newest {
        None => Step::FromGenesis { open: first_open },
        Some(newest) => Step::FromManifest { newest, open: first_open },
    })
}

/// The head behind the newest manifest, which the listing named.
///
/// # Errors
/// [`crate::Kind::Corrupt`] if the manifest is of another partition, or its name and content differ.
pub fn head(genesis: &Genesis, newest: i64, manifest: &Manifest, bytes: &[u8]) -> Result<Head> {
    let same = manifest.topic == genesis.topic
        && manifest.partition == genesis.partition
        && manifest.generation == genesis.generation
        && manifest.archive_id == genesis.archive_id;
    if !same || manifest.from != newest || manifest.to <= manifest.from {
        return Err(Error::corrupt(format!(
            "manifest {newest} of {}/{} holds another cut ({}/{} {}..{}): the ledger was mixed up with another one",
            genesis.topic, genesis.partition, manifest.topic, manifest.partition, manifest.from, manifest.to
        )));
    }
    Ok(Head::after(manifest, bytes))
}

/// Checks that an open intent continues `head`.
///
/// # Errors
/// [`crate::Kind::Corrupt`] if it does not.
pub fn check_open_intent(head: &Head, genesis: &Genesis, intent: &Intent) -> Result<()> {
    if intent.from != head.next || intent.to <= intent.from {
        return Err(Error::corrupt(format!(
            "intent {}..{} does not follow checkpoint {}: the ledger does not tile",
            intent.from, intent.to, head.next
        )));
    }
    if (&intent.topic, intent.partition, intent.generation) != (&genesis.topic, genesis.partition, genesis.generation) {
        return Err(Error::corrupt(format!("intent {} is of {}/{}", intent.from, intent.topic, intent.partition)));
    }
    if intent.schema_version > crate::format::SCHEMA_VERSION {
        return Err(Error::corrupt(format!(
            "intent {} wants schema version {}, this program writes {}: finish it with the newer program",
            intent.from,
            intent.schema_version,
            crate::format::SCHEMA_VERSION
        )));
    }
    Ok(())
}

/// What the broker's answers mean for a partition whose checkpoint is `next`. `low` and `high` are the log start and
/// the log end as the leader told them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogState {
    /// Reading goes on at the checkpoint.
    Continues,
    /// Kafka deleted `next..to` before it was read.
    Lost { to: i64 },
    /// The log ends below the checkpoint: the topic was deleted and made anew.
    Recreated { high: i64 },
}

pub fn log_state(next: i64, low: i64, high: i64) -> LogState {
    if high < next {
        LogState::Recreated { high }
    } else if low > next {
        LogState::Lost { to: low }
    } else {
        LogState::Continues
    }
}

/// The offsets that an intent names and its objects lack; `found` has the offsets of each object, in the intent's order.
///
/// # Errors
/// [`crate::Kind::Corrupt`] if the intent's offsets are damaged.
pub fn missing<'o>(intent: &Intent, found: impl IntoIterator<Item = &'o RoaringTreemap>) -> Result<RoaringTreemap> {
    let mut missing = RoaringTreemap::new();
    for (planned, found) in intent.objects.iter().zip(found) {
        missing |= decode_offsets(&planned.offsets)? - found;
    }
    Ok(missing)
}

/// Gaps for offsets that an intent names and that were gone when the cut was recovered: `missing`, ascending; `low` is the log start.
pub fn recovery_gaps(missing: impl IntoIterator<Item = i64>, low: i64) -> Vec<Gap> {
    let mut gaps: Vec<Gap> = Vec::new();
    for offset in missing {
        let kind = if offset < low { GapKind::Expired } else { GapKind::Compacted };
        match gaps.last_mut() {
            Some(gap) if gap.to == offset && gap.kind == kind => gap.to += 1,
            _ => gaps.push(Gap { from: offset, to: offset + 1, kind }),
        }
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(genesis: bool, intents: &[i64], manifests: &[i64]) -> Names {
        Names { genesis, intents: intents.iter().copied().collect(), manifests: manifests.iter().copied().collect() }
    }

    #[test]
    fn steps_of_sound_ledgers() {
        assert_eq!(step(&names(false, &[], &[])).unwrap(), Step::CreateGenesis);
        assert_eq!(step(&names(true, &[], &[])).unwrap(), Step::FromGenesis { open: None });
        assert_eq!(step(&names(true, &[5], &[])).unwrap(), Step::FromGenesis { open: Some(5) });
        let done = step(&names(true, &[5, 9], &[5, 9])).unwrap();
        assert_eq!(done, Step::FromManifest { newest: 9, open: None });
        let open = step(&names(true, &[5, 9, 12], &[5, 9])).unwrap();
        assert_eq!(open, Step::FromManifest { newest: 9, open: Some(12) });
    }

    #[test]
    fn damaged_ledgers_stop() {
        for bad in [
            names(false, &[5], &[]),
            names(false, &[], &[5]),
            names(true, &[], &[5]),
            names(true, &[5, 9], &[9]),
            names(true, &[5, 9], &[]),
        ] {
            assert_eq!(step(&bad).unwrap_err().kind(), crate::Kind::Corrupt, "{bad:?}");
        }
    }

    #[test]
    fn log_states() {
        assert_eq!(log_state(10, 0, 10), LogState::Continues);
        assert_eq!(log_state(10, 10, 10), LogState::Continues);
        assert_eq!(log_state(10, 11, 20), LogState::Lost { to: 11 });
        assert_eq!(log_state(10, 0, 9), LogState::Recreated { high: 9 });
    }

    #[test]
    fn gaps_are_ranges_by_kind() {
        let gaps = recovery_gaps([1, 2, 3, 7, 8], 3);
        let kinds: Vec<_> = gaps.iter().map(|g| (g.from, g.to, g.kind)).collect();
        assert_eq!(kinds, [(1, 3, GapKind::Expired), (3, 4, GapKind::Compacted), (7, 9, GapKind::Compacted)]);
    }
}
