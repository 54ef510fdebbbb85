//! What lies under `data/` and is named by no manifest and no intent.
//!
//! Holds 16 bytes for each named object, so that millions of them stay within reach.

use super::damage::{Damage, What};
use super::documents;
use crate::error::Result;
use crate::filter::Filter;
use crate::format::Format;
use crate::layout;
use crate::ledger::Intent;
use crate::store::Store;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;

/// A key's hash: nobody makes two keys with the same one.
pub(super) fn hash(key: &str) -> u128 {
    let mut first = [0; 16];
    first.copy_from_slice(&Sha256::digest(key.as_bytes())[..16]);
    u128::from_be_bytes(first)
}

/// The ledger folder that an object's name points to, the topic in it as it stands in paths, and where its cut begins.
struct Home {
    prefix: String,
    topic: String,
    partition: i32,
    from: i64,
}

fn home(key: &str) -> Option<Home> {
    let name = key.rsplit('/').next()?;
    let stem = name.strip_suffix(Format::of_key(name)?.extension())?.strip_suffix('.')?;
    let digits = |text: &str| text.len() == 20 && text.bytes().all(|b| b.is_ascii_digit());
    let (stem, _) = stem.rsplit_once('-').filter(|(_, to)| digits(to))?;
    let (stem, from) = stem.split_at_checked(stem.len().checked_sub(20)?).filter(|(_, from)| digits(from))?;
    let (stem, generation) = match stem.strip_suffix('-') {
        Some(stem) => (stem, String::new()),
        None => stem.strip_suffix('.')?.rsplit_once(".g").map(|(stem, g)| (stem, format!("g{g}/")))?,
    };
    let (topic, partition) = stem.rsplit_once('-')?;
    let partition: i32 = partition.parse().ok()?;
    Some(Home {
        prefix: format!("{}{topic}/{partition}/{generation}", layout::LEDGER_PREFIX),
        topic: topic.to_owned(),
        partition,
        from: from.parse().ok()?,
    })
}

/// Lists all of `data/`. `named`: hashes of the keys that the ledgers name, in order. `topics`: names of the verified
/// topics as they stand in paths.
pub(super) async fn find(
    store: &dyn Store,
    filter: &Filter,
    topics: &BTreeSet<String>,
    named: &[u128],
    mut tell: impl FnMut(Damage),
) -> Result<()> {
    let mut after: Option<String> = None;
    let mut last: Option<(String, Vec<String>)> = None;
    loop {
        let page = store.list(layout::DATA_PREFIX, after.as_deref(), None).await?;
        for object in page.objects.iter().filter(|o| named.binary_search(&hash(&o.key)).is_err()) {
            let home = home(&object.key);
            let ours = |home: &Home| {
                topics.contains(&home.topic)
                    || filter.topic_folders().is_some_and(|folders| folders.contains(&home.topic))
                    || filter.may_match_partition(&home.topic, home.partition)
            };
            if !filter.is_all() && !home.as_ref().is_some_and(ours) {
                continue;
            }
            // A cut that was begun since its ledger was listed.
            if let Some(home) = home {
                let key = layout::intent_key(&home.prefix, home.from);
                if last.as_ref().is_none_or(|(known, _)| *known != key) {
                    let bytes = store.get(&key).await?.unwrap_or_default();
                    let intent = documents::parse::<Intent>(What::IntentDamaged, &key, &bytes).ok();
                    let keys = intent.map_or_else(Vec::new, |i| i.objects.into_iter().map(|o| o.key).collect());
                    last = Some((key, keys));
                }
                if last.as_ref().is_some_and(|(_, keys)| keys.contains(&object.key)) {
                    continue;
                }
            }
            let expected = "no object that no manifest and no intent names";
            tell(Damage::new(What::Orphan, &object.key, expected, format!("{} bytes", object.size)));
        }
        after = page.objects.last().map(|o| o.key.clone());
        if !page.truncated || after.is_none() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_to_its_ledger() {
        for (topic, partition, generation) in [("default-dlt", 7, 1), ("default-dlt", 7, 2), ("größe", 0, 12)] {
            let key = layout::data_key(topic, partition, generation, 5, 9, "2026-10-08", Some("x"), "jsonl.gz");
            let home = home(&key).unwrap();
            assert_eq!(home.prefix, layout::ledger_prefix(topic, partition, generation));
            assert_eq!((home.topic.as_str(), home.partition, home.from), (&*layout::escape(topic), partition, 5));
        }
        for odd in ["data/x", "data/x.parquet", "data/é-1.parquet", "data/-0-00000000000000000001.parquet"] {
            assert!(home(odd).is_none(), "{odd}");
        }
    }
}
