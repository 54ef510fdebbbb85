//! Carries out what [`crate::ledger`] decides, against the store: the archive's description, loading a partition's
//! ledger, creating its documents.
//!
//! Invariant: every document is created only if absent; what is found is followed, never overwritten.

use crate::cut::PROGRAM_VERSION;
use crate::error::{Error, Kind, Result};
use crate::layout::{self, LedgerName};
use crate::ledger::{
    ArchiveDoc, Checkpoint, Genesis, Head, Intent, LEDGER_VERSION, Manifest, from_bytes,
    plan::{self, Names, Step},
    to_bytes,
};
use crate::record::TopicPartition;
use crate::store::{Created, ObjectMeta, Store};
use bytes::Bytes;
use std::time::Duration;

pub const ARCHIVE_KEY: &str = "archive.json";

/// Metadata of ledger documents.
pub fn json_meta() -> ObjectMeta {
    ObjectMeta::new("application/json")
}

/// Reads what the archive is.
///
/// # Errors
/// [`Kind::Config`] if there is none at this address.
pub async fn read_archive(store: &dyn Store) -> Result<ArchiveDoc> {
    let Some(bytes) = store.get(ARCHIVE_KEY).await? else {
        return Err(Error::config(format!(
            "no archive at {}: it has no archive.json. Check --archive, or fill it with `dlq-archiver archive`",
            store.url()
        )));
    };
    from_bytes(ARCHIVE_KEY, &bytes)
}

/// As [`try_open_archive`].
///
/// # Errors
/// [`Kind::Config`] too if the store does not keep "create only if absent".
pub async fn open_archive(
    store: &dyn Store,
    format: &str,
    cluster_id: Option<&str>,
    archive_id: &str,
    now: &str,
) -> Result<ArchiveDoc> {
    try_open_archive(store, format, cluster_id, archive_id, now).await?.ok_or_else(|| {
        Error::config(format!(
            "{} does not keep If-None-Match: * on PUT: two archivers could overwrite what the other wrote. Use a store \
             with conditional create (AWS S3, MinIO, Ceph, SeaweedFS, a local folder), or have one archiver at a time \
             and give --store-create auto",
            store.url()
        ))
    })
}

/// Reads or creates the archive's description, and finds out whether the store keeps "create only if absent": `None` if
/// it does not. Then `archive.json` may be there, and nothing else was written.
///
/// # Errors
/// [`Kind::Config`] if the archive is of another cluster or format; [`Kind::Corrupt`] if it was there and a part of it
/// is gone.
pub async fn try_open_archive(
    store: &dyn Store,
    format: &str,
    cluster_id: Option<&str>,
    archive_id: &str,
    now: &str,
) -> Result<Option<ArchiveDoc>> {
    if store.get(ARCHIVE_KEY).await?.is_none() {
        // A second archive on top of the first one's ledger and data would be neither.
        for prefix in [layout::LEDGER_PREFIX, layout::DATA_PREFIX] {
            if let Some(found) = first(store, prefix).await? {
                return Err(Error::corrupt(format!(
                    "{}: archive.json is missing though {found} is there: restore it from an older version or a copy of \
                     the bucket, or use another --archive",
                    store.url()
                )));
            }
        }
        let doc = ArchiveDoc {
            version: LEDGER_VERSION,
            archive_id: archive_id.to_owned(),
            kafka_cluster_id: cluster_id.map(str::to_owned),
            format: format.to_owned(),
            created_at: now.to_owned(),
            program_version: PROGRAM_VERSION.to_owned(),
        };
        let created = store.create(ARCHIVE_KEY, to_bytes(&doc)?.into(), &json_meta()).await;
        if created.is_err() && store.refuses_condition() {
            return Ok(None);
        }
        created?;
    }
    let bytes = store
        .get(ARCHIVE_KEY)
        .await?
        .ok_or_else(|| Error::unavailable(format!("{}: archive.json was created and is not there", store.url())))?;
    let doc: ArchiveDoc = from_bytes(ARCHIVE_KEY, &bytes)?;
    // The same bytes again: harmless where the condition is ignored, and "exists" where it is kept.
    match store.create(ARCHIVE_KEY, bytes, &json_meta()).await {
        Ok(Created::Exists) => {}
        Ok(Created::New) => return Ok(None),
        Err(_) if store.refuses_condition() => return Ok(None),
        Err(e) => return Err(e),
    }
    if doc.format != format {
        return Err(Error::config(format!(
            "the archive at {} is {}, not {format}: an archive keeps one format, or globs would miss rows. Use \
             --format {} or another --archive",
            store.url(),
            doc.format,
            doc.format
        )));
    }
    if let (Some(theirs), Some(ours)) = (&doc.kafka_cluster_id, cluster_id)
        && theirs != ours
    {
        return Err(Error::config(format!(
            "the archive at {} is of Kafka cluster {theirs}, these brokers are of {ours}: use another --archive for \
             another cluster",
            store.url()
        )));
    }
    // Data first: others may be writing, and each writes its ledger before its data.
    if let Some(found) = first(store, layout::DATA_PREFIX).await?
        && first(store, layout::LEDGER_PREFIX).await?.is_none()
    {
        return Err(Error::corrupt(format!(
            "{}: its ledger/ is gone though {found} is there: all of it would be archived a second time. Restore ledger/ \
             from older versions or a copy of the bucket, or use another --archive",
            store.url()
        )));
    }
    Ok(Some(doc))
}

/// The first key below `prefix`.
async fn first(store: &dyn Store, prefix: &str) -> Result<Option<String>> {
    Ok(store.list(prefix, None, Some(1)).await?.objects.into_iter().next().map(|o| o.key))
}

/// A partition's ledger as loaded: where it ends, and the cut that was begun and not committed.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub genesis: Genesis,
    pub head: Head,
    /// Leader epoch of the last archived record; -1 where unknown.
    pub leader_epoch: i32,
    pub open: Option<Intent>,
    /// No cut follows: a later generation does.
    pub sealed: bool,
    /// Where the newest checkpoint ends.
    pub checkpoint: Option<i64>,
    /// Starts of the manifests behind it.
    pub recent: Vec<i64>,
}

/// Loads a partition's ledger; `None` if it has none yet.
///
/// # Errors
/// [`Kind::Corrupt`] if it is damaged, concluded only from two listings.
pub async fn load(store: &dyn Store, tp: &TopicPartition, generation: u32) -> Result<Option<Loaded>> {
    let prefix = layout::ledger_prefix(&tp.topic, tp.partition, generation);
    match load_once(store, &prefix).await {
        // Another writer may have created objects between two pages of the listing.
        Err(e) if e.kind() == Kind::Corrupt => {
            crate::host::sleep(Duration::from_millis(500)).await;
            load_once(store, &prefix).await
        }
        other => other,
    }
    .map_err(|e| e.context(tp))
}

async fn load_once(store: &dyn Store, prefix: &str) -> Result<Option<Loaded>> {
    let checkpoint = checkpoints(store, prefix).await?.last().copied();
    let mut names = names_behind(store, prefix, checkpoint).await?;
    let genesis_key = layout::genesis_key(prefix);
    // After the listing, so that it is there if anything was listed.
    let genesis = store.get(&genesis_key).await?;
    names.genesis = genesis.is_some();
    let step = plan::step(&names)?;
    let Some(bytes) = genesis else { return Ok(None) };
    let genesis: Genesis = from_bytes(&genesis_key, &bytes)?;
    let (head, leader_epoch, open) = match step {
        Step::CreateGenesis => return Ok(None),
        Step::FromGenesis { open } => (Head::from_genesis(&genesis, &bytes), -1, open),
        Step::FromCheckpoint { to, open } => {
            let (checkpoint, _): (Checkpoint, _) = read(store, &layout::checkpoint_key(prefix, to)).await?;
            checkpoint.check(&genesis)?;
            let epoch = checkpoint.manifests.last().map_or(-1, |e| e.manifest.leader_epoch);
            (Head::from_checkpoint(&checkpoint), epoch, open)
        }
        Step::FromManifest { newest, open } => {
            let (manifest, bytes): (Manifest, _) = read(store, &layout::manifest_key(prefix, newest)).await?;
            (plan::head(&genesis, newest, &manifest, &bytes)?, manifest.leader_epoch, open)
        }
    };
    let open = match open {
        None => None,
        Some(from) => {
            let (intent, _): (Intent, _) = read(store, &layout::intent_key(prefix, from)).await?;
            plan::check_open_intent(&head, &genesis, &intent)?;
            Some(intent)
        }
    };
    let sealed = open.as_ref().is_some_and(Intent::is_seal);
    let open = open.filter(|_| !sealed);
    let recent = names.manifests.into_iter().collect();
    Ok(Some(Loaded { genesis, head, leader_epoch, open, sealed, checkpoint, recent }))
}

/// Where a partition's checkpoints end, ascending.
pub async fn checkpoints(store: &dyn Store, prefix: &str) -> Result<Vec<i64>> {
    let listed = store.list_all(&layout::checkpoints_prefix(prefix)).await?;
    let name = |key: &str| match key.strip_prefix(prefix).and_then(LedgerName::parse) {
        Some(LedgerName::Checkpoint { to }) => Some(to),
        _ => None,
    };
    Ok(listed.iter().filter_map(|o| name(&o.key)).collect())
}

/// The names of intents and manifests that begin at or behind a checkpoint; all without one.
pub async fn names_behind(store: &dyn Store, prefix: &str, checkpoint: Option<i64>) -> Result<Names> {
    let mut names = Names { checkpoint, ..Names::default() };
    // Before all names that begin with this offset.
    let mut after = checkpoint.map(|to| layout::before_key(prefix, to));
    loop {
        let page = store.list(prefix, after.as_deref(), None).await?;
        for object in &page.objects {
            match object.key.strip_prefix(prefix).and_then(LedgerName::parse) {
                Some(LedgerName::Intent { from }) => drop(names.intents.insert(from)),
                Some(LedgerName::Manifest { from }) => drop(names.manifests.insert(from)),
                Some(LedgerName::Genesis) => names.genesis = true,
                // Checkpoints and later generations come behind all of these.
                Some(LedgerName::Checkpoint { .. }) => return Ok(names),
                None if object.key[prefix.len()..].starts_with('g') => return Ok(names),
                None => {}
            }
        }
        match page.objects.last().filter(|_| page.truncated) {
            Some(last) => after = Some(last.key.clone()),
            None => return Ok(names),
        }
    }
}

/// Where all committed cuts begin, ascending.
pub async fn starts(store: &dyn Store, prefix: &str) -> Result<Vec<i64>> {
    Ok(names_behind(store, prefix, None).await?.manifests.into_iter().collect())
}

/// Reads a document that a listing named.
pub async fn read<T: serde::de::DeserializeOwned>(store: &dyn Store, key: &str) -> Result<(T, Bytes)> {
    let bytes = store.get(key).await?.ok_or_else(|| {
        Error::corrupt(format!("{key} was listed and is not there: something deletes ledger objects"))
    })?;
    Ok((from_bytes(key, &bytes)?, bytes))
}

/// Creates a document, or finds that exactly these bytes are there already (an earlier try whose reply was lost).
///
/// # Errors
/// [`Kind::Fenced`] if other bytes are there.
pub async fn create<T: serde::Serialize>(store: &dyn Store, key: &str, document: &T) -> Result<(Bytes, Created)> {
    let bytes = Bytes::from(to_bytes(document)?);
    let created = store.create(key, bytes.clone(), &json_meta()).await?;
    if created == Created::Exists {
        let found = store.get(key).await?;
        if found.as_ref() != Some(&bytes) {
            return Err(Error::fenced(format!("{key} was created by another archiver")));
        }
    }
    Ok((bytes, created))
}
