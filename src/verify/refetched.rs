//! Originals that were read again: their lists, and the files that those name.
//!
//! A file that is in no list is no damage: it is of a refetch that was killed or is at it, and the next one lists it.

use super::damage::{Damage, Offsets, What};
use super::{MEMORY, Run, blocking, documents, orphans};
use crate::error::{Error, Result};
use crate::format::Format;
use crate::format::refetched;
use crate::layout;
use crate::ledger::sha256_hex;
use crate::refetch::documents::{ListDoc, ObjectDoc, Sidecar};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// `named`: hashes of the keys that the ledgers name, in order.
pub(super) async fn verify(run: &Run, named: &[u128]) -> Result<()> {
    let (mut seen, mut unlisted) = (BTreeSet::new(), 0u64);
    let listed = run.store.list_all(layout::REFETCHED_PREFIX).await?;
    // Files come first, `dt=` being before `ledger/`.
    let (lists, files): (Vec<_>, Vec<_>) =
        listed.into_iter().partition(|o| o.key.starts_with(layout::REFETCHED_LEDGER_PREFIX));
    for object in lists {
        let Some(bytes) = run.store.get(&object.key).await? else { continue };
        let list = match read_list(&object.key, run.archive_id.as_deref(), &bytes) {
            Ok(list) => list,
            Err(damage) => {
                run.tell(damage);
                continue;
            }
        };
        if !run.options.filter.may_match_partition(&list.topic, list.partition) {
            continue;
        }
        for doc in &list.objects {
            // Two lists may have the same file.
            if !seen.insert(orphans::hash(&doc.key)) {
                continue;
            }
            if named.binary_search(&orphans::hash(&doc.data_object)).is_err() {
                let found = format!("data object {}, which no manifest names", doc.data_object);
                run.tell(Damage::new(What::RefetchListDamaged, &object.key, "originals of archived records", found));
            }
            look_at(run, &list, doc).await?;
            let totals = &mut run.found().totals;
            totals.originals += doc.refetched_rows();
        }
    }
    if run.options.filter.is_all() {
        unlisted += files.iter().filter(|o| !seen.contains(&orphans::hash(&o.key))).count() as u64;
    }
    if unlisted > 0 {
        run.note(
            layout::REFETCHED_PREFIX,
            format!("{unlisted} files of originals are in no list: of a refetch that runs, or was killed; the next one lists them"),
        );
    }
    Ok(())
}

fn read_list(key: &str, archive_id: Option<&str>, bytes: &[u8]) -> Result<ListDoc, Damage> {
    let list: ListDoc = documents::parse(What::RefetchListDamaged, key, bytes)?;
    let prefix = layout::refetched_prefix(&list.topic, list.partition, list.generation);
    let name = layout::refetched_list_key(&prefix, list.from, list.number);
    if name != key {
        return Err(Damage::new(What::RefetchListDamaged, key, "a list of this name", format!("the list {name}")));
    }
    if let Some(id) = archive_id.filter(|id| *id != list.archive_id) {
        let found = format!("one of archive {}", list.archive_id);
        return Err(Damage::new(What::RefetchListDamaged, key, format!("a list of archive {id}"), found));
    }
    Ok(list)
}

async fn look_at(run: &Run, list: &ListDoc, doc: &ObjectDoc) -> Result<()> {
    let damage = if run.options.quick {
        match run.store.head(&doc.key).await? {
            None => Some(missing(doc)),
            Some(head) => size(doc, head.size).or_else(|| head.meta.get("sha256").and_then(|found| sha256(doc, found))),
        }
    } else {
        let mib = u32::try_from(doc.size >> 20).unwrap_or(MEMORY).clamp(1, MEMORY);
        let _permit = run.memory.acquire_many(mib).await.map_err(|_| Error::internal("semaphore closed"))?;
        match run.store.get(&doc.key).await? {
            None => Some(missing(doc)),
            Some(bytes) => {
                let (list, doc) = (list.clone(), doc.clone());
                blocking(move || Ok(check(&list, &doc, bytes))).await?
            }
        }
    };
    damage.into_iter().for_each(|damage| run.tell(damage));
    Ok(())
}

fn missing(doc: &ObjectDoc) -> Damage {
    Damage::new(What::ObjectMissing, &doc.key, format!("{} rows in {} bytes", doc.rows, doc.size), "nothing")
}

fn size(doc: &ObjectDoc, found: u64) -> Option<Damage> {
    (found != doc.size)
        .then(|| Damage::new(What::ObjectSize, &doc.key, format!("{} bytes", doc.size), format!("{found} bytes")))
}

fn sha256(doc: &ObjectDoc, found: &str) -> Option<Damage> {
    (found != doc.sha256).then(|| Damage::new(What::ObjectSha256, &doc.key, format!("SHA-256 {}", doc.sha256), found))
}

/// Its rows against what the list says of them.
fn check(list: &ListDoc, doc: &ObjectDoc, bytes: Bytes) -> Option<Damage> {
    if let Some(damage) = size(doc, bytes.len() as u64).or_else(|| sha256(doc, &sha256_hex(&bytes))) {
        return Some(damage);
    }
    let bad = |kind, expected: String, found: String| Some(Damage::new(kind, &doc.key, expected, found));
    let Some(format) = Format::of_key(&doc.key) else {
        return bad(What::ObjectUnreadable, "a known extension".into(), "another one".into());
    };
    let named = match Sidecar::new(doc.clone()) {
        Ok(named) => named,
        Err(e) => return bad(What::ObjectRows, "offsets in its list".into(), e.message().to_owned()),
    };
    let (mut wrong, mut last, mut states) = (Offsets::default(), -1, BTreeMap::new());
    let read = refetched::read(format, bytes, true, &mut |row| {
        let (id, offset) = (&row.id, row.id.offset);
        let here = (&id.topic, id.partition, id.generation) == (&list.topic, list.partition, list.generation)
            && (list.from..list.to).contains(&offset)
            && offset > last;
        let there = u64::try_from(offset)
            .is_ok_and(|o| named.offsets.contains(o) && named.refetched.contains(o) == row.original.is_some());
        if !here || !there {
            wrong.add(offset);
        }
        last = offset;
        *states.entry(row.state).or_insert(0u64) += 1;
        Ok(ControlFlow::Continue(()))
    });
    if let Err(e) = read {
        return bad(What::ObjectUnreadable, format!("{} rows", doc.rows), e.message().to_owned());
    }
    if !wrong.is_empty() {
        return bad(What::ObjectRows, "the offsets and states that its list names".into(), format!("others: {wrong}"));
    }
    (states != doc.states || named.offsets.len() != doc.rows).then(|| {
        Damage::new(What::ObjectRows, &doc.key, format!("{} rows, {:?}", doc.rows, doc.states), format!("{states:?}"))
    })
}
