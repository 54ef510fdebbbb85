//! What dry runs keep: `restores/draft-<id>.json`, and the corrected values of one beside it.
//!
//! Owns their names, and whether one is what was kept. Invariant: a draft's id is the hash of what it would do.

use super::audit::{PREFIX, is_id, lines_meta};
use super::plan::DraftDoc;
use super::values::Values;
use crate::archive::ledger::json_meta;
use crate::error::{Error, Result};
use crate::ledger::{from_bytes, sha256_hex, to_bytes};
use crate::store::{Created, Store};

fn draft_key(id: &str, name: &str) -> String {
    format!("{PREFIX}draft-{id}{name}")
}

/// Keeps what a dry run has shown. The same again changes nothing.
pub async fn keep(store: &dyn Store, id: &str, draft: &DraftDoc, values: &Values) -> Result<()> {
    if !values.is_empty() {
        store.create(&draft_key(id, ".values.jsonl"), values.to_lines()?.into(), &lines_meta()).await?;
    }
    let key = draft_key(id, ".json");
    if store.create(&key, to_bytes(draft)?.into(), &json_meta()).await? == Created::Exists {
        // Perhaps by an earlier dry run, at another time.
        read(store, &draft.archive_id, id).await.map_err(|e| e.context("it is there, and damaged: delete it"))?;
    }
    Ok(())
}

/// What a dry run has shown, with its corrected values.
///
/// # Errors
/// [`crate::Kind::Config`] if there is none, [`crate::Kind::Corrupt`] if it was changed.
pub async fn read(store: &dyn Store, archive_id: &str, id: &str) -> Result<(DraftDoc, Values)> {
    let key = draft_key(id, ".json");
    let bytes = if is_id(id) { store.get(&key).await? } else { None };
    let Some(bytes) = bytes else {
        return Err(Error::config(format!(
            "--plan {id}: there is no such plan in this archive. `restore --dry-run` makes one and prints its id"
        )));
    };
    let draft: DraftDoc = from_bytes(&key, &bytes)?;
    if draft.archive_id != archive_id || draft.content.id(archive_id)? != id {
        return Err(Error::corrupt(format!("{key} is not what the dry run wrote: plan anew with `restore --dry-run`")));
    }
    let values = values(store, &draft_key(id, ".values.jsonl"), draft.content.options.values_sha256.as_deref()).await?;
    Ok((draft, values))
}

/// Corrected values as they are stored; none where a plan has none.
///
/// # Errors
/// [`crate::Kind::Corrupt`] if they do not have the hash that the plan has.
pub(super) async fn values(store: &dyn Store, key: &str, sha256: Option<&str>) -> Result<Values> {
    let Some(sha256) = sha256 else { return Ok(Values::default()) };
    let bytes = store.get(key).await?.unwrap_or_default();
    let mut values = Values::default();
    if sha256_hex(&bytes) != sha256 {
        return Err(Error::corrupt(format!("{key} is missing, or not what the plan has: it has the corrected values")));
    }
    let text = std::str::from_utf8(&bytes).map_err(|e| Error::corrupt(format!("{key} is no text: {e}")))?;
    values.add_lines(text).map_err(|e| Error::corrupt(format!("{key} is damaged: {e}")))?;
    Ok(values)
}
