//! Dispositions: whether they chain, are of archived records, and SQL engines read the same.

use super::damage::{Damage, What};
use super::documents::{self, Rows};
use super::{ChainEnd, Found, Run};
use crate::disposition::documents::{DispositionDoc, End, Place, Stored};
use crate::disposition::standing::Standing;
use crate::error::Result;
use crate::format::ranges;
use crate::host::in_place;
use crate::layout;
use roaring::RoaringTreemap;
use std::collections::{BTreeSet, HashMap};

/// Offsets that dispositions name and no cut was found to have, and the first disposition that names some.
pub(super) type Pending = HashMap<Place, (u32, RoaringTreemap)>;

/// Follows the chain from its beginning, behind damage too. Left to find are the offsets that it names.
pub(super) async fn verify(run: &Run) -> Result<()> {
    let (mut before, mut whole, mut standing) = (End::default(), true, Standing::default());
    let expect = run.receipt().and_then(|receipt| receipt.dispositions.as_ref());
    let (mut named, mut no_ranges) = (None, Vec::new());
    let listed = run.store.list_all(layout::DISPOSITIONS_PREFIX).await?;
    let ranges: BTreeSet<u32> = listed.iter().filter_map(|object| layout::ranges_number(&object.key)).collect();
    let mut numbers = ranges.clone();
    for object in &listed {
        if let Some(number) = layout::disposition_number(&object.key) {
            numbers.insert(number);
        } else if layout::ranges_number(&object.key).is_none() {
            let expected = "nothing but dispositions here";
            run.tell(Damage::new(What::DispositionDamaged, &object.key, expected, "an object of another name"));
        }
    }
    for number in numbers {
        while before.number.checked_add(1).is_some_and(|next| next < number) {
            before = End { number: before.number + 1, sha256: None };
            whole = false;
            missing(run, before.number);
        }
        let key = layout::disposition_key(number);
        // Its Parquet is written behind it.
        let Some(bytes) = run.store.get(&key).await? else {
            (before, whole) = (End { number, sha256: None }, false);
            missing(run, number);
            continue;
        };
        let end = End::behind(number, &bytes);
        if expect.is_some_and(|expect| expect.number == u64::from(number)) {
            named.clone_from(&end.sha256);
        }
        match read(run, &key, number, whole.then_some(&before), &bytes) {
            Ok(stored) => {
                if !ranges.contains(&number) {
                    no_ranges.push(number);
                } else if !run.options.quick {
                    compare_ranges(run, &stored).await?;
                }
                pend(&mut run.found(), &stored);
                standing.add(stored);
                whole = true;
            }
            Err(damage) => {
                // Its successor has the hash of the genuine one.
                whole = damage.kind == What::ChainBroken;
                run.tell(damage);
            }
        }
        before = end;
    }
    if let Some(expect) = expect {
        let key = layout::disposition_key(u32::try_from(expect.number).unwrap_or(u32::MAX));
        expect.compare(&key, before.number.into(), named.as_deref()).into_iter().for_each(|damage| run.tell(damage));
    }
    if let Some(first) = no_ranges.first() {
        let note =
            format!("{} dispositions have no Parquet for SQL engines: the next `discard` writes it", no_ranges.len());
        run.note(layout::ranges_key(*first), note);
    }
    let mut found = run.found();
    found.totals.dispositions = before.number.into();
    found.totals.discarded = standing.records();
    found.dispositions = ChainEnd { number: before.number.into(), sha256: before.sha256 };
    Ok(())
}

fn missing(run: &Run, number: u32) {
    let expected = "a disposition: there are later ones, or its Parquet";
    run.tell(Damage::new(What::DispositionMissing, layout::disposition_key(number), expected, "nothing"));
}

/// What SQL engines read against the document.
async fn compare_ranges(run: &Run, stored: &Stored) -> Result<()> {
    let key = layout::ranges_key(stored.doc.number);
    let Some(bytes) = run.store.get(&key).await? else { return Ok(()) };
    let (said, mut rest) = (stored.said(), stored.ranges());
    let mut differs = None;
    let read = in_place(|| {
        ranges::read(bytes, |row, range| {
            let expected = rest.next();
            if differs.is_none() && (*row != said || expected.as_ref() != Some(&range)) {
                differs = Some(format!(
                    "{}..{} of {}/{}, {}",
                    range.from, range.to, range.topic, range.partition, row.action
                ));
            }
        })
    });
    let found = match read {
        Err(e) => Some(e.message().to_owned()),
        Ok(()) => differs.or_else(|| rest.next().map(|_| "fewer".to_owned())),
    };
    if let Some(found) = found {
        let expected = format!("the ranges that {} has", layout::disposition_key(stored.doc.number));
        run.tell(Damage::new(What::DispositionRanges, key, expected, found));
    }
    Ok(())
}

/// `before`: where the chain ends, if that is known.
fn read(run: &Run, key: &str, number: u32, before: Option<&End>, bytes: &[u8]) -> Result<Stored, Damage> {
    let bad = |kind, expected: String, found: String| Err(Damage::new(kind, key, expected, found));
    let doc: DispositionDoc = documents::parse(What::DispositionDamaged, key, bytes)?;
    if doc.number != number {
        return bad(What::DispositionDamaged, format!("number {number}"), format!("number {}", doc.number));
    }
    if let Some(id) = run.archive_id.as_deref().filter(|id| *id != doc.archive_id) {
        let (expected, found) =
            (format!("a disposition of archive {id}"), format!("one of archive {}", doc.archive_id));
        return bad(What::DispositionDamaged, expected, found);
    }
    if let Some(before) = before.filter(|before| before.sha256 != doc.previous_sha256) {
        let sha256 = |of: &Option<String>| of.clone().unwrap_or_else(|| "none".into());
        let expected = format!("the SHA-256 of the one before: {}", sha256(&before.sha256));
        return bad(What::ChainBroken, expected, sha256(&doc.previous_sha256));
    }
    let expected = "offsets and counts that agree";
    Stored::of(doc, End::behind(number, bytes))
        .or_else(|e| bad(What::DispositionDamaged, expected.into(), e.message().to_owned()))
}

fn pend(found: &mut Found, stored: &Stored) {
    for (place, offsets) in &stored.offsets {
        let pending = found.pending.entry(place.clone()).or_insert_with(|| (stored.doc.number, RoaringTreemap::new()));
        pending.1 |= offsets;
    }
}

/// A cut has these offsets; all of its range if that cannot be read.
pub(super) fn seen(pending: &mut Pending, place: &Place, (from, to): (i64, i64), rows: Option<&[Rows]>) {
    let Some((_, offsets)) = pending.get_mut(place) else { return };
    match rows {
        Some(rows) => rows.iter().for_each(|rows| *offsets -= &rows.offsets),
        None => drop(offsets.remove_range(from.max(0).unsigned_abs()..to.max(0).unsigned_abs())),
    }
}

/// Tells what no cut has. `walked`: whether this partition was looked at.
pub(super) fn finish(run: &Run, walked: impl Fn(&str, i32) -> bool) {
    let pending = std::mem::take(&mut run.found().pending);
    for ((topic, generation, partition), (number, offsets)) in pending {
        let (Some(first), Some(last)) = (offsets.min(), offsets.max()) else { continue };
        if !walked(&topic, partition) {
            continue;
        }
        let found = format!(
            "{} offsets of {topic}/{partition} (generation {generation}) that are not, in {first}..={last}",
            offsets.len()
        );
        let key = layout::disposition_key(number);
        run.tell(Damage::new(What::DispositionDamaged, key, "offsets of archived records, from here on", found));
    }
}
