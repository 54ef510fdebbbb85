//! What a listing of a partition's ledger means, and what to do next. Pure.

use super::{Gap, GapKind, Genesis, Head, Intent, Manifest, decode_checksums, decode_offsets};
use crate::error::{Error, Result};
use crate::layout;
use roaring::RoaringTreemap;
use std::collections::BTreeSet;

/// The names found under one partition's ledger.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    pub genesis: bool,
    /// Where the newest checkpoint ends. Intents and manifests below it are left out.
    pub checkpoint: Option<i64>,
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
    /// Read the newest checkpoint, which ends at `to`: there is no manifest behind it yet.
    FromCheckpoint { to: i64, open: Option<i64> },
    /// Read the newest manifest. `open`: an intent behind it that has no manifest.
    FromManifest { newest: i64, open: Option<i64> },
}

/// Decides from names alone, so that a start reads one manifest and not all of them.
///
/// # Errors
/// [`crate::Kind::Corrupt`] if the names cannot come from an undamaged ledger.
pub fn step(names: &Names) -> Result<Step> {
    if !names.genesis {
        if names.intents.is_empty() && names.manifests.is_empty() && names.checkpoint.is_none() {
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
    if let Some((to, first)) = names.checkpoint.zip(names.intents.first()).filter(|(to, first)| to != *first) {
        return Err(Error::corrupt(format!(
            "intent {first} does not follow the checkpoint that ends at {to}: a manifest is missing, restore it from a copy \
             of the bucket"
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
    Ok(match (newest, names.checkpoint) {
        (Some(newest), _) => Step::FromManifest { newest, open: first_open },
        (None, Some(to)) => Step::FromCheckpoint { to, open: first_open },
        (None, None) => Step::FromGenesis { open: first_open },
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

/// Checks that an open intent continues `head`, and that it is one that a cut of this partition makes.
///
/// # Errors
/// [`crate::Kind::Corrupt`] if it does not, or is not: what it says would be written as it says.
pub fn check_open_intent(head: &Head, genesis: &Genesis, intent: &Intent) -> Result<()> {
    if intent.from != head.next || (intent.to <= intent.from && !intent.is_seal()) {
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
    if intent.archive_id != genesis.archive_id {
        return Err(Error::corrupt(format!(
            "intent {} is of archive {}, its genesis of {}: the ledger was mixed up with another one",
            intent.from, intent.archive_id, genesis.archive_id
        )));
    }
    if let (Some(theirs), Some(ours)) = (&intent.topic_id, &genesis.topic_id)
        && theirs != ours
    {
        return Err(Error::corrupt(format!(
            "intent {} is of topic id {theirs}, its genesis of {ours}: the ledger was mixed up with another one",
            intent.from
        )));
    }
    check_contents(intent).map_err(|e| {
        Error::corrupt(format!(
            "intent {}: {}. It is damaged: restore it from a copy of the bucket",
            intent.from,
            e.message()
        ))
    })
}

/// That each offset of the range is in one object, in one gap or in none.
fn check_contents(intent: &Intent) -> Result<()> {
    let range = || u64::try_from(intent.from).ok().zip(u64::try_from(intent.to).ok());
    let (from, to) = range().ok_or_else(|| Error::corrupt("its range is negative"))?;
    let (mut keys, mut taken) = (BTreeSet::new(), RoaringTreemap::new());
    for object in &intent.objects {
        let key = layout::data_key(
            &intent.topic,
            intent.partition,
            intent.generation,
            intent.from,
            intent.to,
            &object.dt,
            object.pipeline.as_deref(),
            &intent.extension,
        );
        if object.key != key {
            return Err(Error::corrupt(format!("it names an object {} that has to be {key}", object.key)));
        }
        if !keys.insert(key) {
            return Err(Error::corrupt(format!("it names {} twice", object.key)));
        }
        let (offsets, checksums) = (decode_offsets(&object.offsets)?, decode_checksums(&object.checksums)?);
        if offsets.len() != object.rows || checksums.len() as u64 != object.rows {
            return Err(Error::corrupt(format!(
                "{} has {} rows, {} offsets and {} checksums",
                object.key,
                object.rows,
                offsets.len(),
                checksums.len()
            )));
        }
        object.pipelines().map_err(|e| e.context(&object.key))?;
        if offsets.min().is_some_and(|o| o < from) || offsets.max().is_some_and(|o| o >= to) {
            return Err(Error::corrupt(format!("{} has offsets outside {from}..{to}", object.key)));
        }
        if !taken.is_disjoint(&offsets) {
            return Err(Error::corrupt(format!("{} has offsets that another object has", object.key)));
        }
        taken |= offsets;
    }
    let mut end = intent.from;
    for Gap { from, to, .. } in intent.gaps.iter().copied() {
        if from < end || to <= from || to > intent.to {
            return Err(Error::corrupt(format!("its gap {from}..{to} overlaps another one, or is outside its range")));
        }
        if taken.range_cardinality(from as u64..to as u64) > 0 {
            return Err(Error::corrupt(format!("its gap {from}..{to} has offsets that an object has")));
        }
        end = to;
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

/// All gaps of one kind in a manifest, for a line that tells them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GapSummary {
    pub kind: GapKind,
    pub offsets: u64,
    pub ranges: usize,
    /// From the first offset of the first to the end of the last.
    pub from: i64,
    pub to: i64,
}

pub fn summarise(gaps: &[Gap]) -> Vec<GapSummary> {
    let mut all: Vec<GapSummary> = Vec::new();
    for &Gap { from, to, kind } in gaps {
        let offsets = u64::try_from(to - from).unwrap_or_default();
        match all.iter_mut().find(|s| s.kind == kind) {
            Some(s) => {
                s.offsets += offsets;
                s.ranges += 1;
                (s.from, s.to) = (s.from.min(from), s.to.max(to));
            }
            None => all.push(GapSummary { kind, offsets, ranges: 1, from, to }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(genesis: bool, intents: &[i64], manifests: &[i64]) -> Names {
        let (intents, manifests) = (intents.iter().copied().collect(), manifests.iter().copied().collect());
        Names { genesis, checkpoint: None, intents, manifests }
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
    fn steps_behind_a_checkpoint() {
        let behind =
            |intents: &[i64], manifests: &[i64]| Names { checkpoint: Some(9), ..names(true, intents, manifests) };
        assert_eq!(step(&behind(&[], &[])).unwrap(), Step::FromCheckpoint { to: 9, open: None });
        assert_eq!(step(&behind(&[9], &[])).unwrap(), Step::FromCheckpoint { to: 9, open: Some(9) });
        let open = step(&behind(&[9, 12], &[9])).unwrap();
        assert_eq!(open, Step::FromManifest { newest: 9, open: Some(12) });
    }

    #[test]
    fn damaged_ledgers_stop() {
        for bad in [
            Names { checkpoint: Some(9), ..names(false, &[], &[]) },
            Names { checkpoint: Some(9), ..names(true, &[12], &[]) },
            Names { checkpoint: Some(9), ..names(true, &[12], &[12]) },
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

    #[test]
    fn many_gaps_are_one_line_a_kind() {
        let gaps = recovery_gaps([1, 2, 5, 7, 8, 11], 6);
        let summary = |kind, offsets, ranges, from, to| GapSummary { kind, offsets, ranges, from, to };
        let expired = summary(GapKind::Expired, 3, 2, 1, 6);
        assert_eq!(summarise(&gaps), [expired, summary(GapKind::Compacted, 3, 2, 7, 12)]);
        assert_eq!(summarise(&[]), []);
    }

    type Mutation = (&'static str, fn(&mut Intent));

    /// What storage, a mix-up or a hand could have made of an intent.
    const MUTATIONS: &[Mutation] = &[
        ("another checkpoint", |i| i.from += 1),
        ("no range", |i| i.to = i.from),
        ("another topic", |i| i.topic.push('x')),
        ("another partition", |i| i.partition += 1),
        ("another generation", |i| i.generation += 1),
        ("another archive", |i| i.archive_id.push('x')),
        ("another topic id", |i| i.topic_id = Some("x".into())),
        ("a newer schema", |i| i.schema_version += 1),
        ("another extension", |i| i.extension.push('x')),
        ("a longer range than its keys say", |i| i.to += 1),
        ("another key", |i| i.objects[0].key.push('x')),
        ("another date", |i| i.objects[0].dt = "2020-01-01".into()),
        ("another pipeline", |i| i.objects[0].pipeline = Some("x".into())),
        ("no pipeline", |i| i.objects[0].pipeline = None),
        ("an object twice", |i| i.objects.push(i.objects[0].clone())),
        ("an empty object of the same name", |i| {
            let empty = crate::ledger::encode_offsets(&RoaringTreemap::new()).unwrap();
            i.objects.push(crate::ledger::IntentObject {
                rows: 0,
                offsets: empty,
                checksums: String::new(),
                ..i.objects[0].clone()
            });
        }),
        ("a row too many", |i| i.objects[0].rows += 1),
        ("a checksum too few", |i| change_checksums(i, |c| c.truncate(c.len() - 1))),
        ("a checksum too many", |i| change_checksums(i, |c| c.push(0))),
        ("damaged checksums", |i| i.objects[0].checksums.truncate(3)),
        ("damaged offsets", |i| i.objects[0].offsets.truncate(5)),
        ("an offset below the range", |i| change_offset(i, 0)),
        ("an offset behind the range", |i| change_offset(i, i.to as u64)),
        ("an offset of another object", |i| {
            let other = decode_offsets(&i.objects[1].offsets).unwrap().min().unwrap();
            change_offset(i, other);
        }),
        ("a gap below the range", |i| i.gaps[0].from = i.from - 1),
        ("a gap behind the range", |i| i.gaps[1].to = i.to + 1),
        ("an empty gap", |i| i.gaps[0].to = i.gaps[0].from),
        ("gaps out of order", |i| i.gaps.swap(0, 1)),
        ("a gap twice", |i| i.gaps.insert(0, i.gaps[0])),
        ("a gap over an offset", |i| {
            let o = decode_offsets(&i.objects[0].offsets).unwrap().min().unwrap() as i64;
            i.gaps = vec![Gap { from: o, to: o + 1, kind: GapKind::Lost }];
        }),
    ];

    /// Another first offset of the first object.
    fn change_offset(intent: &mut Intent, to: u64) {
        let offsets = decode_offsets(&intent.objects[0].offsets).unwrap();
        let changed = offsets.iter().skip(1).chain([to]).collect();
        intent.objects[0].offsets = crate::ledger::encode_offsets(&changed).unwrap();
    }

    fn change_checksums(intent: &mut Intent, change: impl FnOnce(&mut Vec<u64>)) {
        let mut checksums = decode_checksums(&intent.objects[0].checksums).unwrap();
        change(&mut checksums);
        intent.objects[0].checksums = crate::ledger::encode_checksums(&checksums);
    }

    /// A cut of `records` (offset behind the one before, day) of which the first two are on different days, with a gap
    /// at each end of its range.
    fn cut_of(from: i64, records: &[(i64, i64)]) -> (Head, Genesis, Intent) {
        use crate::record::{RawBatch, TimestampType};
        let genesis = Genesis {
            version: crate::ledger::LEDGER_VERSION,
            archive_id: "a".into(),
            topic: "t".into(),
            partition: 3,
            generation: 1,
            topic_id: Some("id".into()),
            first_offset: 1,
            previous_sha256: None,
            created_at: String::new(),
        };
        let (mut batch, mut offset) = (RawBatch::new(), from + 2);
        for (step, day) in [(1, 0), (1, 1)].iter().chain(records) {
            offset += step;
            let value = offset.to_be_bytes();
            let time = TimestampType::CreateTime;
            batch.push(offset, day * 86_400_000, time, 0, None, Some(&value), std::iter::empty());
        }
        let to = offset + 5;
        let gaps = vec![
            Gap { from, to: from + 2, kind: GapKind::Lost },
            Gap { from: offset + 2, to, kind: GapKind::Compacted },
        ];
        let (range, tables) = (crate::cut::CutRange { from, to, cut_at_us: 1 }, crate::cut::Tables::builtin());
        let groups = crate::cut::group(&batch, &genesis.topic, genesis.partition, &tables);
        let format = crate::format::Format::Parquet;
        let intent = crate::cut::intent(&genesis, range, &batch, &groups, gaps, format, &tables).unwrap();
        let head = Head { next: from, sequence: 4, previous_sha256: String::new() };
        (head, genesis, intent)
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config {
            cases: 50,
            failure_persistence: None,
            ..Default::default()
        })]
        #[test]
        fn a_cuts_intent_passes_and_no_damaged_one_does(
            from in 1..1_i64 << 40,
            records in proptest::collection::vec((1..1000_i64, 0..4_i64), 0..40),
        ) {
            let (head, genesis, intent) = cut_of(from, &records);
            check_open_intent(&head, &genesis, &intent).unwrap();
            // Brokers that told no id when one of the two was written.
            let untold = Intent { topic_id: None, ..intent.clone() };
            check_open_intent(&head, &genesis, &untold).unwrap();
            for (what, mutate) in MUTATIONS {
                let mut mutated = intent.clone();
                mutate(&mut mutated);
                let error = check_open_intent(&head, &genesis, &mutated).expect_err(what);
                assert_eq!((error.kind(), error.message().lines().count()), (crate::Kind::Corrupt, 1), "{what}: {error}");
            }
        }
    }

    #[test]
    fn intents_without_objects_pass() {
        let (head, genesis, mut intent) = cut_of(7, &[]);
        intent.objects.clear();
        check_open_intent(&head, &genesis, &intent).unwrap();
        intent.gaps = vec![Gap { from: intent.from, to: intent.to, kind: GapKind::Lost }];
        check_open_intent(&head, &genesis, &intent).unwrap();
    }
}
