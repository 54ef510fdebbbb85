//! Dispositions for SQL engines: `dispositions/<number>.parquet`, beside each document.
//!
//! A function of the document, and written behind it: so whoever globs them sees nothing that is not in the chain, also
//! where two commands raced for a number. A command that was killed between the two leaves one out; the next `discard`
//! writes it. Nothing of the program acts on them.
//!
//! Owns what of a document is in its Parquet, and the writing. [`crate::format::ranges`] has the columns.

use super::documents::{Action, DispositionDoc, End, Stored};
use crate::catalog::Catalog;
use crate::error::Result;
use crate::format::ranges::{self, Range, Said};
use crate::host::in_place;
use crate::layout;
use crate::ledger::from_bytes;
use crate::store::ObjectMeta;
use roaring::RoaringTreemap;
use std::collections::BTreeSet;

impl Stored {
    /// What each row of its Parquet says.
    pub fn said(&self) -> Said {
        let doc = &self.doc;
        let action = match doc.action {
            Action::Discard => "discard",
            Action::Undo => "undo",
        };
        Said {
            number: doc.number,
            action: action.into(),
            at_us: self.at_us,
            by: doc.by.clone(),
            user: doc.user.clone(),
            host: doc.host.clone(),
            reason: doc.reason.clone(),
        }
    }

    /// The rows of its Parquet.
    pub fn ranges(&self) -> impl Iterator<Item = Range> {
        self.offsets.iter().flat_map(|((topic, generation, partition), offsets)| {
            runs(offsets).map(|(from, to)| Range {
                topic: topic.clone(),
                generation: *generation,
                partition: *partition,
                from,
                to,
            })
        })
    }
}

/// Offsets in a row, as first and end. A run ends where its upper 32 bits do.
fn runs(offsets: &RoaringTreemap) -> impl Iterator<Item = (i64, i64)> {
    offsets.bitmaps().flat_map(|(high, bitmap)| {
        let (mut lows, base) = (bitmap.iter(), i64::from(high) << 32);
        std::iter::from_fn(move || {
            let range = lows.next_range()?;
            Some((base + i64::from(*range.start()), (base + i64::from(*range.end())).saturating_add(1)))
        })
    })
}

/// Writes the Parquet of each disposition that has none. How many that were.
///
/// # Errors
/// [`crate::Kind::Corrupt`] if such a disposition is damaged.
pub async fn write_missing(catalog: &Catalog) -> Result<u32> {
    let (store, mut missing) = (catalog.store(), BTreeSet::new());
    for object in store.list_all(layout::DISPOSITIONS_PREFIX).await? {
        missing.extend(layout::disposition_number(&object.key));
        if let Some(number) = layout::ranges_number(&object.key) {
            missing.remove(&number);
        }
    }
    let mut written = 0;
    for number in missing {
        let key = layout::disposition_key(number);
        let bytes = store.get(&key).await?.unwrap_or_default();
        let stored = Stored::of(from_bytes::<DispositionDoc>(&key, &bytes)?, End::behind(number, &bytes))?;
        let parquet = in_place(|| ranges::encode(&stored.said(), stored.ranges()))?;
        let meta = ObjectMeta::new("application/vnd.apache.parquet");
        // What another command made of it is as good.
        store.create(&layout::ranges_key(number), parquet.into(), &meta).await?;
        written += 1;
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disposition::documents::sample;

    #[test]
    fn ranges_are_what_the_bitmap_has() {
        let offsets: Vec<u64> = [1, 2, 3, 7, 65_535, 65_536, (1 << 32) - 1, 1 << 32, (1 << 32) + 1].to_vec();
        let stored = sample(&End::default(), Action::Discard, "2026-12-01T00:00:00.000000Z", &offsets).1;
        let ranges: Vec<(i64, i64)> = stored.ranges().map(|r| (r.from, r.to)).collect();
        let edge = 1i64 << 32;
        assert_eq!(ranges, [(1, 4), (7, 8), (65_535, 65_537), (edge - 1, edge), (edge, edge + 2)]);
        assert_eq!(ranges.iter().map(|(from, to)| to - from).sum::<i64>(), offsets.len() as i64);
    }

    #[test]
    fn a_hundred_million_in_a_row_are_one_small_row() {
        let mut stored = sample(&End::default(), Action::Discard, "2026-12-01T00:00:00.000000Z", &[1]).1;
        let mut all = RoaringTreemap::new();
        all.insert_range(5..100_000_005);
        stored.offsets.values_mut().for_each(|of| *of = all.clone());
        assert_eq!(stored.ranges().map(|r| (r.from, r.to)).collect::<Vec<_>>(), [(5, 100_000_005)]);
        assert!(ranges::encode(&stored.said(), stored.ranges()).unwrap().len() < 8192);
    }
}
