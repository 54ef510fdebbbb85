//! Of restores that overlap, at most one goes on.
//!
//! Each sends only what no other has listed, so two at once that select the same records would send them twice. A plan
//! is therefore put into the order of all plans, `restores/order-<n>.json`, each created only if absent, before its
//! first record is sent; and it makes way if one before it is not over and overlaps it. Of two that begin at the same
//! moment the second always sees the first: its number is only taken once the first's is. A plan that made way is
//! closed, so it blocks nobody; one that crashed blocks until it is resumed or taken over.
//!
//! The order is a chain, too: each document has the SHA-256 of the one before, and that of the plan that begins with it,
//! or of the end (`done.json`) that it tells of. So what was restored, and by whom, cannot be changed or taken out unseen.
//! Who dies between the end and its place in the chain is followed by whoever looks next.
//!
//! Owns the order. Decides by [`PlanDoc::overlaps`]; reads and writes through [`Folder`].

use super::audit::{Closing, DoneDoc, Folder, PREFIX, Process, Sent};
use super::plan::PlanDoc;
use crate::archive::ledger::json_meta;
use crate::error::{Error, Result};
use crate::ledger::{LEDGER_VERSION, from_bytes, sha256_hex, to_bytes};
use crate::store::{Created, Store};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// `order-<n>.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderDoc {
    pub version: u32,
    pub restore_id: String,
    pub event: Event,
    /// Hex SHA-256 of the bytes of `plan.json`, or of `done.json` at the end.
    pub sha256: String,
    /// Restores of lower numbers were over by then, and are said to be: they need not be looked at again.
    pub open_from: u64,
    /// Hex SHA-256 of the bytes of the document before; null in the first.
    pub previous_sha256: Option<String>,
}

/// What a document of the order tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A plan takes its turn.
    Begun,
    /// It is over.
    Ended,
}

pub fn order_key(number: u64) -> String {
    format!("{PREFIX}order-{number:010}.json")
}

/// The number of a document of the order.
pub fn order_number(key: &str) -> Option<u64> {
    let digits = key.strip_prefix(PREFIX)?.strip_prefix("order-")?.strip_suffix(".json")?;
    digits.parse().ok().filter(|number| order_key(*number) == key)
}

/// The documents of the order, in their order.
pub async fn documents(store: &dyn Store) -> Result<Vec<(u64, String)>> {
    let listed = store.list_all(&format!("{PREFIX}order-")).await?;
    let mut found: Vec<_> = listed.into_iter().filter_map(|o| Some((order_number(&o.key)?, o.key))).collect();
    found.sort_unstable();
    Ok(found)
}

/// The end of the order.
#[derive(Debug, Default)]
struct Order {
    /// Restores that are not over, by their number.
    open: BTreeMap<u64, String>,
    /// Those that have their last lists, and are not said to be over, by the number of their plans.
    unsaid: BTreeMap<u64, String>,
    /// Those that are said to be over.
    ended: BTreeSet<String>,
    /// 0 before the first.
    newest: u64,
    /// Of the newest's bytes.
    sha256: Option<String>,
}

impl Order {
    /// `whole`: down to the first document.
    async fn read(store: &dyn Store, whole: bool) -> Result<Self> {
        let Some((newest, _)) = documents(store).await?.pop() else { return Ok(Self::default()) };
        let mut order = Self { newest, ..Self::default() };
        let (mut n, mut from) = (newest, 1);
        while n >= from {
            let key = order_key(n);
            let bytes = store.get(&key).await?;
            let bytes =
                bytes.ok_or_else(|| Error::corrupt(format!("{key} is missing: what deletes objects there?")))?;
            let doc: OrderDoc = from_bytes(&key, &bytes)?;
            if n == newest {
                order.sha256 = Some(sha256_hex(&bytes));
            }
            if !whole {
                from = from.max(doc.open_from);
            }
            let folder = Folder::new(store, &doc.restore_id);
            match doc.event {
                Event::Ended => drop(order.ended.insert(doc.restore_id)),
                Event::Begun if order.ended.contains(&doc.restore_id) => {}
                Event::Begun if folder.is_done().await? => drop(order.unsaid.insert(n, doc.restore_id)),
                Event::Begun if folder.is_over().await? => {}
                Event::Begun => drop(order.open.insert(n, doc.restore_id)),
            }
            n -= 1;
        }
        Ok(order)
    }

    /// Puts a document behind the newest; whether it did: another may have taken the place.
    async fn append(&self, store: &dyn Store, restore_id: &str, event: Event, of: &Bytes) -> Result<bool> {
        let number = self.newest + 1;
        let open_from = self.open.keys().chain(self.unsaid.keys()).min().copied().unwrap_or(number);
        let doc = OrderDoc {
            version: LEDGER_VERSION,
            restore_id: restore_id.to_owned(),
            event,
            sha256: sha256_hex(of),
            open_from,
            previous_sha256: self.sha256.clone(),
        };
        Ok(store.create(&order_key(number), to_bytes(&doc)?.into(), &json_meta()).await? == Created::New)
    }
}

/// Documents that are fetched at a time.
const FETCHES: usize = 32;

/// All restores that have had their turn.
///
/// # Errors
/// [`crate::Kind::Corrupt`] if a document of the order is missing or damaged.
pub async fn begun(store: &dyn Store) -> Result<BTreeSet<String>> {
    let prefix = format!("{PREFIX}order-");
    let newest = store.list_all(&prefix).await?.iter().filter_map(|object| order_number(&object.key)).max();
    let fetch = |number| {
        async move {
            let key = order_key(number);
            let bytes = store.get(&key).await?;
            let bytes =
                bytes.ok_or_else(|| Error::corrupt(format!("{key} is missing: what deletes objects there?")))?;
            from_bytes::<OrderDoc>(&key, &bytes)
        }
        .boxed()
    };
    let fetched: Vec<_> = (1..=newest.unwrap_or(0)).map(fetch).collect();
    let docs: Vec<OrderDoc> = stream::iter(fetched).buffered(FETCHES).try_collect().await?;
    Ok(docs.into_iter().filter(|doc| doc.event == Event::Begun).map(|doc| doc.restore_id).collect())
}

/// Says of each restore that has its last lists that it is over. `whole`: also of those that the order has passed, which
/// were closed long before they got their lists.
pub async fn say(store: &dyn Store, whole: bool) -> Result<()> {
    loop {
        let order = Order::read(store, whole).await?;
        let Some(id) = order.unsaid.values().next() else { return Ok(()) };
        let done = Folder::new(store, id).done_bytes().await?;
        let done = done.ok_or_else(|| Error::corrupt(format!("the end of restore {id} is gone")))?;
        order.append(store, id, Event::Ended, &done).await?;
    }
}

/// Takes the plan's turn, or finds the restore that is before it and in its way.
async fn before(store: &dyn Store, plan: &PlanDoc) -> Result<Option<PlanDoc>> {
    let own = loop {
        say(store, false).await?;
        let order = Order::read(store, false).await?;
        if let Some((number, _)) = order.open.iter().find(|(_, id)| **id == plan.restore_id) {
            break order.open.range(..number).map(|(_, id)| id.clone()).collect::<Vec<_>>();
        }
        let folder = Folder::new(store, &plan.restore_id);
        // It has had its turn: a process that slept through it would begin it once more.
        if folder.is_over().await? {
            return Ok(None);
        }
        let bytes = folder.plan_bytes().await?;
        let bytes = bytes.ok_or_else(|| Error::corrupt(format!("the plan of restore {} is gone", plan.restore_id)))?;
        // If the number is taken, by another or by a try whose reply was lost: look again.
        if order.append(store, &plan.restore_id, Event::Begun, &bytes).await? {
            break order.open.into_values().collect();
        }
    };
    for id in own {
        if let Some(other) = Folder::new(store, &id).plan().await?
            && other.overlaps(&plan.cuts)
        {
            return Ok(Some(other));
        }
    }
    Ok(None)
}

/// Writes a restore's last lists and its end, and says so in the order.
pub async fn finish(
    folder: &Folder<'_>,
    store: &dyn Store,
    plan: &PlanDoc,
    sent: &Sent,
    now: &str,
    closed: Option<String>,
) -> Result<DoneDoc> {
    let whole = closed.is_some();
    let done = folder.finish(plan, sent, now, closed).await?;
    say(store, whole).await?;
    Ok(done)
}

/// Takes the plan's turn; to be called before anything is sent, by each run. Whoever began a run had its turn, and who
/// is before it is over for good: so a restore makes way in place of its first run, or not at all.
///
/// # Errors
/// [`crate::Kind::Failed`] if it has to make way for another restore. It is closed then.
pub async fn take(store: &dyn Store, plan: &PlanDoc, by: &Process) -> Result<()> {
    let folder = Folder::new(store, &plan.restore_id);
    if folder.sent().await?.last_run() > 0 {
        return Ok(());
    }
    let Some(other) = before(store, plan).await? else { return Ok(()) };
    let reason = format!("made way for restore {}", other.restore_id);
    // Another process of this restore may have looked later, and had its turn.
    if !folder.close(1, 0, by, Closing { reason: reason.clone(), uncertain: false }).await? {
        return Ok(());
    }
    let sent = Sent { runs: BTreeMap::from([(1, 0)]), ..Sent::default() };
    finish(&folder, store, plan, &sent, &by.now, Some(reason)).await?;
    Err(Error::failed(format!(
        "nothing was sent: restore {} of the same records was begun at {} by {}, before this one. Give the command \
         again when it has ended; if it is dead, `dlq-archiver restore --resume {}` (with the same --archive and \
         --brokers) finishes it",
        other.restore_id, other.created_at, other.created_by, other.restore_id
    )))
}
