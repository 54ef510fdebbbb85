//! `discard`: records that are not to be restored, with who said so and why.
//!
//! All of it is under `dispositions/`: one document for each command, created only if absent and never changed. They are
//! numbered in a row and chained by hash, over all partitions. Who finds the number taken reads what is there, and takes
//! the next. A document is the whole of a command, so one that is killed did all or nothing.
//!
//! Owns the reading and writing of that chain, and the look at the records. [`documents`] is its form, [`standing`] what
//! it comes to, [`ranges`] what SQL engines read of it. Data and ledger are not touched. Invariant: a chain that has a hole, or does not hold together, is an
//! error, never a shorter answer: what was discarded would be restored.

pub mod documents;
pub mod ranges;
pub mod standing;

use crate::archive::ledger::json_meta;
use crate::archive::rfc3339;
use crate::catalog::{self, Catalog, Reading};
use crate::cut::PROGRAM_VERSION;
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::format::Projection;
use crate::host::now_us;
use crate::layout;
use crate::ledger::{LEDGER_VERSION, to_bytes};
use crate::restore::audit::Folder;
use crate::restore::past::Past;
use crate::restore::plan::{PlanCut, PlanDoc};
use crate::restore::plan_cut;
use crate::store::Created;
use bytes::Bytes;
use documents::{Action, CountDoc, DispositionDoc, End, Stored, partition_docs};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use standing::{Selection, Standing};

/// Documents that are fetched at a time.
const FETCHES: usize = 32;

/// A command.
#[derive(Debug, Clone)]
pub struct Request {
    pub action: Action,
    pub reason: String,
    /// Who decided, as given.
    pub by: Option<String>,
    /// Who gives it, as seen.
    pub user: String,
    pub host: String,
    /// Random.
    pub process: String,
    pub filter: Filter,
}

/// All dispositions of an archive.
///
/// # Errors
/// [`crate::Kind::Corrupt`] if one is missing or damaged.
pub async fn load(catalog: &Catalog) -> Result<Standing> {
    let mut standing = Standing::default();
    each(catalog, |stored| standing.add(stored)).await?;
    Ok(standing)
}

/// Hands over each disposition, in order.
///
/// # Errors
/// [`crate::Kind::Corrupt`] if one is missing or damaged.
pub async fn each(catalog: &Catalog, mut then: impl FnMut(Stored)) -> Result<()> {
    let (store, archive_id) = (catalog.store(), &catalog.archive().archive_id);
    let listed = store.list_all(layout::DISPOSITIONS_PREFIX).await?;
    let mut newest = 0;
    for object in &listed {
        let number = layout::disposition_number(&object.key).or_else(|| layout::ranges_number(&object.key));
        let number = number.ok_or_else(|| missing(&layout::disposition_key(newest + 1), &object.key))?;
        // Its Parquet is written behind a document: so one without it says that the document is gone.
        if number > newest.saturating_add(1) {
            return Err(missing(&layout::disposition_key(newest + 1), &object.key));
        }
        newest = newest.max(number);
    }
    let fetched: Vec<_> = (1..=newest)
        .map(|number| {
            async move {
                let key = layout::disposition_key(number);
                let bytes = store.get(&key).await?;
                Ok((bytes.ok_or_else(|| missing(&key, "what comes behind it"))?, key))
            }
            .boxed()
        })
        .collect();
    let mut before = End::default();
    let mut fetched = stream::iter(fetched).buffered(FETCHES);
    while let Some((bytes, key)) = fetched.try_next().await? {
        let stored = Stored::read(&key, &bytes, &before, archive_id)?;
        before = stored.end.clone();
        then(stored);
    }
    Ok(())
}

fn missing(key: &str, there: &str) -> Error {
    Error::corrupt(format!(
        "{key} is missing though {there} is there: restore it from an older version or a copy of the bucket. What was \
         discarded is not known until then"
    ))
}

/// What a filter selects.
#[derive(Debug, Default)]
pub struct Selected {
    pub records: Selection,
    /// Where they are, as a restore's plan has it.
    cuts: Vec<PlanCut>,
}

/// Looks at the records that a filter selects, in cuts that may have them. `read` is called with the stored bytes of each.
///
/// # Errors
/// As [`Catalog::read_cut`].
pub async fn select(
    catalog: &Catalog,
    may_match: Vec<catalog::Selected>,
    filter: &Filter,
    past: &Past,
    mut read: impl FnMut(u64),
) -> Result<Selected> {
    let mut selected = Selected { records: Selection::new(filter.record_ids()), cuts: Vec::new() };
    let reading = Reading { projection: Projection::NoPayload, check_sha256: true };
    let mut cuts = catalog.cuts(may_match.clone(), filter, reading);
    for of_cut in &may_match {
        let Some(cut) = cuts.next().await? else { break };
        let m = cut.manifest();
        let past = past.of(&m.topic, m.generation, m.partition);
        for record in cut.iter() {
            selected.records.add(&record, past.finished(record.id.offset).is_some());
        }
        if !cut.is_empty() {
            selected.cuts.push(plan_cut(&cut, &of_cut.objects, &[]));
        }
        read(of_cut.size());
    }
    Ok(selected)
}

/// Writes what the command changes, as the next disposition. `None`: nothing, as others have done it.
///
/// # Errors
/// [`crate::Kind::Corrupt`] if what another process wrote meanwhile is damaged.
pub async fn write(
    catalog: &Catalog,
    mut standing: Standing,
    selection: &Selection,
    request: &Request,
) -> Result<Option<DispositionDoc>> {
    let (store, archive_id) = (catalog.store(), &catalog.archive().archive_id);
    loop {
        let change = selection.change(request.action, &standing);
        if change.records == 0 {
            return Ok(None);
        }
        let before = standing.end().clone();
        let number =
            before.number.checked_add(1).ok_or_else(|| Error::failed("no number is left for a disposition"))?;
        let counts = change.groups.into_iter().map(|(group, records)| CountDoc {
            topic: group.topic,
            pipeline: group.pipeline,
            error_class: group.error_class,
            records,
        });
        let doc = DispositionDoc {
            version: LEDGER_VERSION,
            archive_id: archive_id.clone(),
            number,
            previous_sha256: before.sha256.clone(),
            action: request.action,
            at: rfc3339(now_us()),
            by: request.by.clone(),
            user: request.user.clone(),
            host: request.host.clone(),
            process: request.process.clone(),
            program_version: PROGRAM_VERSION.to_owned(),
            reason: request.reason.clone(),
            filter: request.filter.doc().clone(),
            selected: selection.records,
            records: change.records,
            counts: counts.collect(),
            partitions: partition_docs(&change.offsets)?,
        };
        let (key, bytes) = (layout::disposition_key(number), Bytes::from(to_bytes(&doc)?));
        if store.create(&key, bytes.clone(), &json_meta()).await? == Created::New {
            return Ok(Some(doc));
        }
        let there = store.get(&key).await?.ok_or_else(|| missing(&key, "an answer that says so"))?;
        // An earlier try whose reply was lost.
        if there == bytes {
            return Ok(Some(doc));
        }
        standing.add(Stored::read(&key, &there, &before, archive_id)?);
    }
}

/// Of the unfinished restores, `open`, those that may send one of the records: a run of theirs looks at dispositions when
/// it begins, and not again. Asked when the disposition is written: of two at once, one sees the other.
///
/// # Errors
/// [`crate::Kind::Corrupt`] if a plan is damaged.
pub async fn may_send(catalog: &Catalog, open: &[String], selected: &Selected) -> Result<Vec<PlanDoc>> {
    let mut plans = Vec::new();
    for id in open {
        let Some(plan) = Folder::new(&**catalog.store(), id).plan().await? else { continue };
        if plan.overlaps(&selected.cuts) {
            plans.push(plan);
        }
    }
    Ok(plans)
}

#[cfg(test)]
mod tests;
