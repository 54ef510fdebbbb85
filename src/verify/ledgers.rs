//! Which ledgers there are, by the names of their objects.

use super::damage::{Damage, What};
use super::documents::{self, Owner, Place};
use crate::error::Result;
use crate::filter::Filter;
use crate::layout::{self, LedgerName};
use crate::ledger::Genesis;
use crate::ledger::plan::{self, Names};
use crate::store::Store;
use bytes::Bytes;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::time::Duration;

/// One partition's ledger, in one generation, as it was listed.
pub(super) struct Ledger {
    /// `/` at its end.
    pub prefix: String,
    /// The topic's name as it stands in paths.
    pub topic_folder: String,
    /// Its exact name, if some document says it.
    pub topic: String,
    pub partition: i32,
    /// Bytes of genesis.json.
    pub genesis: Option<Bytes>,
    pub checkpoints: BTreeSet<i64>,
    /// Of the partition's newest generation.
    pub current: bool,
    names: Names,
}

impl Ledger {
    pub(super) fn cuts(&self) -> u64 {
        self.names.intents.union(&self.names.manifests).count() as u64
    }
    /// Start of each cut, and whether manifest and intent were listed.
    pub(super) fn names(&self) -> impl Iterator<Item = (i64, bool, bool)> {
        let Names { intents, manifests, .. } = &self.names;
        intents.union(manifests).map(|from| (*from, manifests.contains(from), intents.contains(from)))
    }
    pub(super) fn last(&self) -> Option<i64> {
        self.names.intents.last().max(self.names.manifests.last()).copied()
    }
    /// Start of the newest manifest.
    pub(super) fn newest(&self) -> Option<i64> {
        self.names.manifests.last().copied()
    }
}

/// The ledgers that a filter may match. A folder without objects is none.
pub(super) async fn find(store: &dyn Store, filter: &Filter) -> Result<Vec<Ledger>> {
    let topics: Vec<String> = match filter.topic_folders() {
        Some(names) => names.iter().map(|name| format!("{}{name}/", layout::LEDGER_PREFIX)).collect(),
        None => store.list_folders(layout::LEDGER_PREFIX).await?,
    };
    let mut ledgers = Vec::new();
    for topic in topics {
        let topic_folder = topic.strip_prefix(layout::LEDGER_PREFIX).unwrap_or_default().trim_end_matches('/');
        for folder in store.list_folders(&topic).await? {
            let inside = |outer: &str, folder: &str| folder.strip_prefix(outer)?.strip_suffix('/').map(str::to_owned);
            let Some(partition) = inside(&topic, &folder).and_then(|name| name.parse::<i32>().ok()) else { continue };
            let mut prefixes = vec![(1, folder.clone())];
            for inner in store.list_folders(&folder).await? {
                let number = inside(&folder, &inner).and_then(|name| name.strip_prefix('g')?.parse::<u32>().ok());
                if let Some(number) = number.filter(|g| *g > 1) {
                    prefixes.push((number, inner));
                }
            }
            let newest = prefixes.iter().map(|(number, _)| *number).max();
            for (number, prefix) in prefixes {
                let Some(mut ledger) = listed(store, prefix, topic_folder, partition).await? else { continue };
                if let Some(name) = topic_name(store, &ledger).await? {
                    ledger.topic = name;
                }
                if filter.may_match_partition(&ledger.topic, partition) {
                    ledger.current = Some(number) == newest;
                    ledgers.push(ledger);
                }
            }
        }
    }
    Ok(ledgers)
}

async fn listed(store: &dyn Store, prefix: String, topic_folder: &str, partition: i32) -> Result<Option<Ledger>> {
    let (mut names, mut checkpoints) = list(store, &prefix).await?;
    if plan::step(&names).is_err() {
        // A writer may have created objects between two pages of the listing.
        tokio::time::sleep(Duration::from_millis(500)).await;
        (names, checkpoints) = list(store, &prefix).await?;
    }
    let genesis = store.get(&layout::genesis_key(&prefix)).await?;
    if names == Names::default() && checkpoints.is_empty() && genesis.is_none() {
        return Ok(None);
    }
    let topic = topic_folder.to_owned();
    let topic_folder = topic.clone();
    Ok(Some(Ledger { prefix, topic_folder, topic, partition, genesis, checkpoints, current: true, names }))
}

async fn list(store: &dyn Store, prefix: &str) -> Result<(Names, BTreeSet<i64>)> {
    let (mut names, mut checkpoints, mut after) = (Names::default(), BTreeSet::new(), None::<String>);
    loop {
        let page = store.list(prefix, after.as_deref(), None).await?;
        for object in &page.objects {
            match object.key.strip_prefix(prefix).and_then(LedgerName::parse) {
                Some(LedgerName::Genesis) => names.genesis = true,
                Some(LedgerName::Intent { from }) => drop(names.intents.insert(from)),
                Some(LedgerName::Manifest { from }) => drop(names.manifests.insert(from)),
                Some(LedgerName::Checkpoint { to }) => drop(checkpoints.insert(to)),
                None => {}
            }
        }
        after = page.objects.last().map(|o| o.key.clone());
        if !page.truncated || after.is_none() {
            return Ok((names, checkpoints));
        }
    }
}

/// The exact name, from the genesis or else from another document.
async fn topic_name(store: &dyn Store, ledger: &Ledger) -> Result<Option<String>> {
    #[derive(Deserialize)]
    struct Topic {
        topic: String,
    }
    let read = |bytes: &[u8]| serde_json::from_slice::<Topic>(bytes).ok().map(|t| t.topic);
    if let Some(topic) = ledger.genesis.as_deref().and_then(read) {
        return Ok(Some(topic));
    }
    let Some((from, manifest, _)) = ledger.names().next() else { return Ok(None) };
    let key = if manifest { layout::manifest_key } else { layout::intent_key }(&ledger.prefix, from);
    Ok(store.get(&key).await?.as_deref().and_then(read))
}

/// Reads a genesis; `None` if it is damaged.
pub(super) fn genesis(
    prefix: &str,
    archive_id: Option<&str>,
    bytes: &[u8],
    mut tell: impl FnMut(Damage),
) -> Option<Genesis> {
    let key = layout::genesis_key(prefix);
    let read = documents::parse::<Genesis>(What::GenesisDamaged, &key, bytes).and_then(|g| {
        let place = Place {
            prefix: prefix.to_owned(),
            archive_id: archive_id.map(str::to_owned),
            format: None,
            genesis: Some(g.clone()),
        };
        let owner = Owner {
            archive_id: &g.archive_id,
            topic: &g.topic,
            partition: g.partition,
            generation: g.generation,
            topic_id: g.topic_id.as_deref(),
        };
        place.belongs(What::GenesisDamaged, &key, &owner).map_or(Ok(g.clone()), Err)
    });
    read.map_err(&mut tell).ok()
}
