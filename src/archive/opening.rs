//! How an archive is opened: whether its store keeps "create only if absent" is given or found out, and what follows from
//! it. Owns the wait of a store without it, and the probe for lost races. What the archive is, is [`super::ledger`]'s.
//!
//! Invariant: without the condition nothing but `archive.json` is written before it was told and the longest write of a
//! writer that is gone was waited out.

use super::patience::Patience;
use super::{ledger, now_us, rfc3339};
use crate::error::{Error, Result};
use crate::host;
use crate::ledger::ArchiveDoc;
use crate::stage::{Stage, StageReceiver};
use crate::store::{Created, ObjectMeta, Store};
use bytes::Bytes;
use futures::future::join_all;

/// Whether objects are created with a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StoreCreate {
    /// With it, where the store keeps it.
    #[default]
    Auto,
    /// With it; a store that does not keep it is refused.
    Conditional,
    /// Without it, where the store is not a local folder.
    Plain,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreUse {
    pub create: StoreCreate,
    /// Let many creators race for keys under `probe/` first.
    pub probe_race: bool,
}

/// Opens the archive, or makes it under this id.
///
/// # Errors
/// Those of [`ledger::open_archive`], and of a store that loses races.
pub async fn open(
    store: &dyn Store,
    store_use: StoreUse,
    format: &str,
    cluster_id: Option<&str>,
    id: &str,
    start: &Patience,
) -> Result<ArchiveDoc> {
    if store_use.probe_race {
        probe_race(store, start).await?;
    }
    let doing = format!("open the archive {}", store.url());
    let conditional = || async { ledger::open_archive(store, format, cluster_id, id, &rfc3339(now_us())).await };
    let either = || async { ledger::try_open_archive(store, format, cluster_id, id, &rfc3339(now_us())).await };
    match store_use.create {
        StoreCreate::Conditional => {}
        StoreCreate::Plain => plainly(store, &start.stage).await?,
        StoreCreate::Auto => {
            if let Some(doc) = start.wait_out(store.url(), &doing, either).await? {
                return Ok(doc);
            }
            wait(store, "which the store does not keep", &start.stage).await?;
            // Concluded from two looks: a proxy in trouble must not put an archive of many writers at risk.
            if let Some(doc) = start.wait_out(store.url(), &doing, either).await? {
                tracing::info!("{}: the store keeps the condition after all: it is used", store.url());
                return Ok(doc);
            }
            store.set_plain(true);
        }
    }
    start.wait_out(store.url(), &doing, conditional).await
}

/// Uses a store without the condition from now on, where it is not one that keeps it always.
///
/// # Errors
/// A shutdown that began while it waited.
pub async fn plainly(store: &dyn Store, stage: &StageReceiver) -> Result<()> {
    wait(store, "as asked for", stage).await?;
    store.set_plain(true);
    Ok(())
}

/// Tells what holds without the condition, and waits until no write of an earlier writer can land any more.
async fn wait(store: &dyn Store, why: &str, stage: &StageReceiver) -> Result<()> {
    let Some(wait) = store.set_plain(false) else { return Ok(()) };
    tracing::warn!(
        "{}: objects are created without If-None-Match: *, {why}. This archive is exactly once ONLY WITH ONE WRITER AT A \
         TIME: be sure that no other archiver writes to it, and that two restores do not overlap (Kubernetes: replicas 1 \
         and strategy Recreate; cron: flock). AWS S3, MinIO, Ceph, SeaweedFS and local folders keep the condition, for \
         any number of writers. Waiting {} s for what a crashed run may have sent",
        store.url(),
        wait.as_secs()
    );
    tokio::select! {
        biased;
        () = stage.leaves(Stage::Running) => {
            Err(Error::unavailable("ended while it waited for what a crashed run may have sent: nothing is done yet"))
        }
        () = host::sleep(wait) => Ok(()),
    }
}

const ROUNDS: usize = 25;
const CREATORS: usize = 12;

/// Lets many creators race for one key, many times. The keys are told, as nothing here can delete them.
async fn probe_race(store: &dyn Store, start: &Patience) -> Result<()> {
    let folder = format!("probe/{}", host::random_id());
    tracing::info!("{}: {ROUNDS} rounds of {CREATORS} creators race for objects under {folder}/", store.url());
    for _ in 0..ROUNDS {
        // A name of its own for each attempt: an attempt that failed may have left its object.
        let attempt = || race(store, format!("{folder}/race-{}.txt", host::random_id()));
        start.wait_out(store.url(), "probe the store for lost races", attempt).await?;
    }
    tracing::info!(
        "{}: no race was lost: each had one winner, and all creators read its bytes. {folder}/ may be deleted",
        store.url()
    );
    Ok(())
}

async fn race(store: &dyn Store, key: String) -> Result<()> {
    let (key, meta) = (key.as_str(), &ObjectMeta::new("text/plain"));
    let body = |creator| Bytes::from(format!("archive --probe-race, creator {creator}. May be deleted.\n"));
    let bodies: Vec<Bytes> = (0..CREATORS).map(body).collect();
    let creators = bodies.iter().map(|body| async move {
        let created = store.create(key, body.clone(), meta).await?;
        Ok((created, store.get(key).await?))
    });
    let seen: Vec<(Created, Option<Bytes>)> = join_all(creators).await.into_iter().collect::<Result<_>>()?;
    judge(&bodies, &seen, store.get(key).await?.as_ref()).map_err(|why| {
        Error::config(format!(
            "{} loses races: {why} ({key}). Two archivers could overwrite what the other wrote. Use a store whose \
             conditional create is atomic (AWS S3, MinIO, Ceph, SeaweedFS, a local folder), or have one archiver at a \
             time and give --store-create plain without --probe-race",
            store.url()
        ))
    })
}

/// What the creators of one key were told and read. That nobody won is a reply that was lost, if the bytes are right.
fn judge(bodies: &[Bytes], seen: &[(Created, Option<Bytes>)], last: Option<&Bytes>) -> Result<(), String> {
    let winners: Vec<&Bytes> =
        bodies.iter().zip(seen).filter(|(_, (created, _))| *created == Created::New).map(|(body, _)| body).collect();
    let last = last.ok_or("an object was created and is not there")?;
    if winners.len() > 1 {
        return Err(format!("{} of {} creators were told that they created one object", winners.len(), bodies.len()));
    }
    if winners.first().is_some_and(|winner| *winner != last) || !bodies.contains(last) {
        return Err("an object does not have the bytes of who created it".into());
    }
    if seen.iter().any(|(_, read)| read.as_ref() != Some(last)) {
        return Err("creators of one object read different bytes of it".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use Created::{Exists, New};

    #[test]
    fn a_race_has_one_winner_whose_bytes_all_read() {
        let (a, b) = (Bytes::from_static(b"a"), Bytes::from_static(b"b"));
        let bodies = [a.clone(), b.clone()];
        let race = |first: (Created, &Bytes), second: (Created, &Bytes), last: &Bytes| {
            let seen = [(first.0, Some(first.1.clone())), (second.0, Some(second.1.clone()))];
            judge(&bodies, &seen, Some(last))
        };
        race((New, &a), (Exists, &a), &a).unwrap();
        // The winner's reply was lost, and it tried again.
        race((Exists, &b), (Exists, &b), &b).unwrap();
        race((New, &a), (New, &a), &a).unwrap_err();
        race((New, &a), (Exists, &a), &b).unwrap_err();
        race((New, &a), (Exists, &b), &a).unwrap_err();
        race((Exists, &a), (Exists, &a), &Bytes::new()).unwrap_err();
        judge(&bodies, &[(New, None), (Exists, None)], None).unwrap_err();
    }

    #[tokio::test]
    async fn a_store_that_keeps_the_condition_passes_the_probe() {
        let store = crate::store::MemoryStore::new();
        let (_stage, stage) = crate::stage::channel();
        probe_race(&store, &Patience::new(None, stage, std::sync::Arc::default())).await.unwrap();
        assert_eq!(store.snapshot().len(), ROUNDS);
    }
}
