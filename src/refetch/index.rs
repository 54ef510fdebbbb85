//! Reads what lists of originals an archive has.
//!
//! Owns the way from a cut to its lists: each partition's folder is listed once, and only where something may be in it.

use super::documents::{Known, ListDoc};
use crate::error::{Error, Result};
use crate::layout;
use crate::ledger::{self, Manifest};
use crate::store::Store;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Lists that are fetched at a time.
const FETCHES: usize = 32;

/// The numbers of a partition's lists, by the start of the cut.
type Numbers = BTreeMap<i64, Vec<u32>>;

pub struct Index {
    store: Arc<dyn Store>,
    /// Whether the archive has any lists; `None` before it was asked.
    any: Option<bool>,
    partitions: HashMap<String, Arc<Numbers>>,
}

impl Index {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, any: None, partitions: HashMap::new() }
    }

    /// What is known of this cut's originals.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] if a list is damaged.
    pub async fn of(&mut self, m: &Manifest) -> Result<Known> {
        Ok(self.of_all(&[m]).await?.pop().unwrap_or_default())
    }

    /// The same for several cuts, in their order.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub async fn of_all(&mut self, manifests: &[&Manifest]) -> Result<Vec<Known>> {
        let mut keys = Vec::new();
        for (i, m) in manifests.iter().enumerate() {
            let prefix = layout::refetched_prefix(&m.topic, m.partition, m.generation);
            let numbers = self.numbers(&prefix).await?;
            let of_cut = numbers.get(&m.from).into_iter().flatten();
            keys.extend(of_cut.map(|number| (i, *m, layout::refetched_list_key(&prefix, m.from, *number))));
        }
        let store = &*self.store;
        let reads: Vec<_> =
            keys.iter().map(|(i, m, key)| async move { Ok((*i, read(store, key, m).await?)) }.boxed()).collect();
        let mut known: Vec<Known> = manifests.iter().map(|_| Known::default()).collect();
        let mut lists = stream::iter(reads).buffered(FETCHES);
        while let Some((i, list)) = lists.try_next().await? {
            known[i].add(&list)?;
        }
        Ok(known)
    }

    async fn numbers(&mut self, prefix: &str) -> Result<Arc<Numbers>> {
        if let Some(known) = self.partitions.get(prefix) {
            return Ok(known.clone());
        }
        let any = match self.any {
            Some(any) => any,
            None => !self.store.list(layout::REFETCHED_LEDGER_PREFIX, None, Some(1)).await?.objects.is_empty(),
        };
        self.any = Some(any);
        let mut numbers = Numbers::new();
        if any {
            for object in self.store.list_all(prefix).await? {
                if let Some((from, number)) = object.key.strip_prefix(prefix).and_then(layout::refetched_list) {
                    numbers.entry(from).or_default().push(number);
                }
            }
        }
        numbers.values_mut().for_each(|n| n.sort_unstable());
        let numbers = Arc::new(numbers);
        self.partitions.insert(prefix.to_owned(), numbers.clone());
        Ok(numbers)
    }
}

/// One list, which must be of this cut.
pub(super) async fn read(store: &dyn Store, key: &str, m: &Manifest) -> Result<ListDoc> {
    let bytes = store.get(key).await?.ok_or_else(|| {
        Error::corrupt(format!("{key} was listed and is not there: something deletes objects of the archive"))
    })?;
    let list: ListDoc = ledger::from_bytes(key, &bytes)?;
    let (is, of) = (
        (&list.archive_id, &list.topic, list.partition, list.generation, list.from, list.to),
        (&m.archive_id, &m.topic, m.partition, m.generation, m.from, m.to),
    );
    if is != of {
        return Err(Error::corrupt(format!(
            "{key} is a list of another cut ({}/{} {}..{}): run `dlq-archiver verify`",
            list.topic, list.partition, list.from, list.to
        )));
    }
    Ok(list)
}
