//! Of restores that overlap, at most one goes on.
//!
//! Each sends only what no other has listed, so two at once that select the same records would send them twice. A plan
//! is therefore put into the order of all plans, `restores/order-<n>.json`, each created only if absent, before its
//! first record is sent; and it makes way if one before it is not over and overlaps it. Of two that begin at the same
//! moment the second always sees the first: its number is only taken once the first's is. A plan that made way is
//! closed, so it blocks nobody; one that crashed blocks until it is resumed or taken over.
//!
//! Owns the order. Decides by [`PlanDoc::overlaps`]; reads and writes through [`Folder`].

use super::audit::{Closing, Folder, PREFIX, Process, Sent};
use super::plan::PlanDoc;
use crate::archive::ledger::json_meta;
use crate::error::{Error, Result};
use crate::ledger::{LEDGER_VERSION, from_bytes, to_bytes};
use crate::store::{Created, Store};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `order-<n>.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct OrderDoc {
    version: u32,
    restore_id: String,
    /// Restores of lower numbers were over by then: they need not be looked at again.
    open_from: u64,
}

fn order_key(number: u64) -> String {
    format!("{PREFIX}order-{number:010}.json")
}

/// Restores that are not over, by their number.
async fn open(store: &dyn Store) -> Result<(BTreeMap<u64, String>, u64)> {
    let prefix = format!("{PREFIX}order-");
    let number = |key: &str| key.strip_prefix(&prefix)?.strip_suffix(".json")?.parse::<u64>().ok();
    let newest = store.list_all(&prefix).await?.iter().filter_map(|object| number(&object.key)).max();
    let Some(newest) = newest else { return Ok((BTreeMap::new(), 0)) };
    let (mut open, mut n, mut from) = (BTreeMap::new(), newest, 1);
    while n >= from {
        let key = order_key(n);
        let bytes = store.get(&key).await?;
        let bytes = bytes.ok_or_else(|| Error::corrupt(format!("{key} is missing: what deletes objects there?")))?;
        let doc: OrderDoc = from_bytes(&key, &bytes)?;
        from = from.max(doc.open_from);
        if !Folder::new(store, &doc.restore_id).is_over().await? {
            open.insert(n, doc.restore_id);
        }
        n -= 1;
    }
    Ok((open, newest))
}

/// Takes the plan's turn, or finds the restore that is before it and in its way.
async fn before(store: &dyn Store, plan: &PlanDoc) -> Result<Option<PlanDoc>> {
    let own = loop {
        let (open, newest) = open(store).await?;
        if let Some((number, _)) = open.iter().find(|(_, id)| **id == plan.restore_id) {
            break open.range(..number).map(|(_, id)| id.clone()).collect::<Vec<_>>();
        }
        let number = newest + 1;
        let open_from = open.keys().next().copied().unwrap_or(number);
        let doc = OrderDoc { version: LEDGER_VERSION, restore_id: plan.restore_id.clone(), open_from };
        // If the number is taken, by another or by a try whose reply was lost: look again.
        if store.create(&order_key(number), to_bytes(&doc)?.into(), &json_meta()).await? == Created::New {
            break open.into_values().collect();
        }
    };
    for id in own {
        if let Some(other) = Folder::new(store, &id).plan().await?
            && other.overlaps(&plan.cuts, &plan.filter)
        {
            return Ok(Some(other));
        }
    }
    Ok(None)
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
    folder.finish(plan, &sent, &by.now, Some(reason)).await?;
    Err(Error::failed(format!(
        "nothing was sent: restore {} of the same records was begun at {} by {}, before this one. Give the command \
         again when it has ended; if it is dead, `dlq-archiver restore --resume {}` (with the same --archive and \
         --brokers) finishes it",
        other.restore_id, other.created_at, other.created_by, other.restore_id
    )))
}
