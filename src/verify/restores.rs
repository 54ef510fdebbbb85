//! Restores: whether their order chains, and what their documents name is there as it was.
//!
//! Follows the order first, then looks into the folders: a restore that begins meanwhile is no damage.

use super::damage::{Damage, What};
use super::{ChainEnd, Run, documents};
use crate::error::{Kind, Result};
use crate::ledger::{from_bytes, sha256_hex};
use crate::restore::audit::{self, DoneDoc, Folder, ListDoc, PREFIX};
use crate::restore::chain::Chain;
use crate::restore::plan::PlanDoc;
use crate::restore::turn::{self, Event, OrderDoc};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use std::collections::BTreeSet;

/// Restores that are looked into at a time.
const AT_A_TIME: usize = 8;

pub(super) async fn verify(run: &Run) -> Result<()> {
    let chain = follow(run).await?;
    let mut ids: BTreeSet<String> = audit::ids(&*run.store, "").await?.into_iter().collect();
    ids.extend(chain.links.iter().map(|link| link.doc.restore_id.clone()).filter(|id| audit::is_id(id)));
    let looks: Vec<_> = ids.iter().map(|id| look_at(run, &chain, id).boxed()).collect();
    let mut looks = stream::iter(looks).buffer_unordered(AT_A_TIME);
    while looks.try_next().await?.is_some() {}
    run.found().restores = ChainEnd { number: chain.newest, sha256: chain.sha256.clone() };
    Ok(())
}

/// Follows the order from its first document, behind damage too.
async fn follow(run: &Run) -> Result<Chain> {
    let (mut chain, mut named) = (Chain::default(), None);
    let expect = run.receipt().and_then(|receipt| receipt.restores.as_ref());
    let documents = turn::documents(&*run.store).await?;
    let fetched = documents.into_iter().map(|(number, key)| {
        async move {
            let bytes = run.store.get(&key).await?.unwrap_or_default();
            Ok::<_, crate::Error>((number, key, bytes))
        }
        .boxed()
    });
    let mut fetched = stream::iter(fetched.collect::<Vec<_>>()).buffered(AT_A_TIME);
    while let Some((number, key, bytes)) = fetched.try_next().await? {
        if let Some(hole) = chain.hole(number) {
            let found = format!("nothing, and none up to {}", hole.end());
            let expected = "a document of the order: there are later ones";
            run.tell(Damage::new(What::RestoreMissing, turn::order_key(*hole.start()), expected, found));
        }
        if expect.is_some_and(|expect| expect.number == number) {
            named = Some(sha256_hex(&bytes));
        }
        let doc =
            documents::parse::<OrderDoc>(What::RestoreDamaged, &key, &bytes).map_err(|damage| run.tell(damage)).ok();
        if doc.as_ref().is_some_and(|doc| !audit::is_id(&doc.restore_id)) {
            run.tell(Damage::new(What::RestoreDamaged, &key, "the id of a restore", "none"));
        }
        if let Some(broken) = chain.follow(number, &bytes, doc) {
            let expected = format!("the SHA-256 of the one before: {}", broken.expected);
            run.tell(Damage::new(What::ChainBroken, &key, expected, broken.found));
        }
    }
    if let Some(expect) = expect {
        let damage = expect.compare(&turn::order_key(expect.number), chain.newest, named.as_deref());
        damage.into_iter().for_each(|damage| run.tell(damage));
    }
    Ok(chain)
}

async fn look_at(run: &Run, chain: &Chain, id: &str) -> Result<()> {
    let folder = Folder::new(&*run.store, id);
    let key = |name: &str| format!("{PREFIX}{id}/{name}");
    let (plan, done) = (folder.plan_bytes().await?, folder.done_bytes().await?);
    for link in chain.of(id) {
        let (name, bytes) = match link.doc.event {
            Event::Begun => ("plan.json", &plan),
            Event::Ended => ("done.json", &done),
        };
        let expected = format!("SHA-256 {}, as {} has it", link.doc.sha256, turn::order_key(link.number));
        match bytes.as_deref().map(sha256_hex) {
            Some(sha256) if sha256 == link.doc.sha256 => {}
            Some(sha256) => run.tell(Damage::new(What::RestoreDamaged, key(name), expected, sha256)),
            None => run.tell(Damage::new(What::RestoreMissing, key(name), expected, "nothing")),
        }
    }
    let damaged =
        |name, expected: &str, found: String| run.tell(Damage::new(What::RestoreDamaged, key(name), expected, found));
    if let Some(bytes) = plan {
        match from_bytes::<PlanDoc>(&key("plan.json"), &bytes) {
            Ok(plan) => check_plan(run, &folder, &plan, id).await?,
            Err(e) => damaged("plan.json", "a plan", e.message().to_owned()),
        }
        run.found().totals.restores += 1;
        turn_of(run, chain, &folder, id, done.is_some()).await?;
    }
    let Some(bytes) = done else { return Ok(()) };
    match from_bytes::<DoneDoc>(&key("done.json"), &bytes) {
        Ok(done) => {
            if done.restore_id != id {
                damaged("done.json", "the end of this restore", format!("that of {}", done.restore_id));
            }
            run.found().totals.restored += done.restored;
            for list in done.lists.iter().chain(&done.skipped_lists) {
                check_list(run, list).await?;
            }
        }
        Err(e) => damaged("done.json", "the end of a restore", e.message().to_owned()),
    }
    Ok(())
}

async fn check_plan(run: &Run, folder: &Folder<'_>, plan: &PlanDoc, id: &str) -> Result<()> {
    let is_archive = run.archive_id.as_ref().is_none_or(|archive| *archive == plan.archive_id);
    if plan.restore_id != id || !is_archive {
        let (at, found) =
            (format!("{PREFIX}{id}/plan.json"), format!("{} of archive {}", plan.restore_id, plan.archive_id));
        run.tell(Damage::new(What::RestoreDamaged, at, "the plan of this restore", found));
    }
    let Some(sha256) = plan.options.values_sha256.as_deref() else { return Ok(()) };
    let (at, found) = (format!("{PREFIX}{id}/values.jsonl"), folder.values_bytes().await?);
    let expected = format!("SHA-256 {sha256}, as the plan has it");
    compare(run, &at, &expected, sha256, found.as_deref());
    Ok(())
}

fn compare(run: &Run, at: &str, expected: &str, sha256: &str, bytes: Option<&[u8]>) {
    match bytes.map(sha256_hex) {
        Some(found) if found == sha256 => {}
        Some(found) => run.tell(Damage::new(What::RestoreDamaged, at, expected, found)),
        None => run.tell(Damage::new(What::RestoreMissing, at, expected, "nothing")),
    }
}

async fn check_list(run: &Run, list: &ListDoc) -> Result<()> {
    let expected = format!("{} rows, SHA-256 {}", list.rows, list.sha256);
    if run.options.quick {
        if run.store.head(&list.key).await?.is_none() {
            run.tell(Damage::new(What::RestoreMissing, &list.key, expected, "nothing"));
        }
        return Ok(());
    }
    let bytes = run.store.get(&list.key).await?;
    compare(run, &list.key, &expected, &list.sha256, bytes.as_deref());
    Ok(())
}

/// Whether it stands in the order as it should. What a killed command left out is no damage.
async fn turn_of(run: &Run, chain: &Chain, folder: &Folder<'_>, id: &str, is_done: bool) -> Result<()> {
    let at = format!("{PREFIX}{id}/plan.json");
    let runs = match folder.runs().await {
        Err(e) if e.kind() == Kind::Corrupt => {
            let expected = "documents of the restore's runs";
            run.tell(Damage::new(What::RestoreDamaged, format!("{PREFIX}{id}/run-"), expected, e.message()));
            return Ok(());
        }
        runs => runs?,
    };
    if !chain.has(id, Event::Begun) {
        // Who ends a plan that has no turn writes a run, too.
        let sends = runs.values().any(|run| run.closing.is_none());
        if sends && !begun_since(run, chain.newest, id).await? {
            let expected = format!("that restore {id} was begun: it has runs");
            run.tell(Damage::new(What::RestoreMissing, turn::order_key(chain.newest + 1), expected, "nothing"));
        } else if !sends {
            run.note(&at, "a plan that never had its turn: its command was killed before, or is about to begin. Nothing was sent by it");
        }
        return Ok(());
    }
    if is_done && !chain.has(id, Event::Ended) {
        run.note(&at, "it has ended, and the order of restores does not say so yet: the next restore writes it");
    }
    if !is_done && runs.values().all(|run| run.closing.is_none()) {
        run.note(&at, format!("it has not ended: `dlq-archiver restore status {id}` says how far it is"));
    }
    Ok(())
}

/// Whether it began while the order was read.
async fn begun_since(run: &Run, newest: u64, id: &str) -> Result<bool> {
    for (_, key) in turn::documents(&*run.store).await?.into_iter().filter(|(number, _)| *number > newest) {
        let bytes = run.store.get(&key).await?.unwrap_or_default();
        if from_bytes::<OrderDoc>(&key, &bytes).is_ok_and(|doc| doc.restore_id == id) {
            return Ok(true);
        }
    }
    Ok(false)
}
