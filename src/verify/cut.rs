//! One cut: its documents, and the data objects that they name.

use super::chain::{Intent as Named, Link, Said, Stored};
use super::damage::{Damage, What};
use super::documents::{self, Gaps, Owner, Place, Rows};
use super::kafka::Expected;
use super::{MEMORY, Run, blocking, dispositions, object, orphans};
use crate::error::{Error, Result};
use crate::layout;
use crate::ledger::{DataObject, GapKind, Intent, Manifest, sha256_hex};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Objects of one cut that are looked at at a time.
const OBJECTS_AT_A_TIME: usize = 8;
/// MiB that an object takes at least while it is read.
const LEAST: u32 = 32;

/// What the walk needs to know of a cut.
pub(super) struct Done {
    pub link: Link,
    /// Hashes of the keys that it names.
    pub named: Vec<u128>,
    pub expected: Option<Expected>,
}

struct Documents {
    link: Link,
    manifest: Option<Manifest>,
    /// `None` if the intent is not there or damaged.
    rows: Option<Arc<Vec<Rows>>>,
    named: Vec<u128>,
    damage: Vec<Damage>,
}

pub(super) async fn verify(
    run: Arc<Run>,
    place: Arc<Place>,
    from: i64,
    has_manifest: bool,
    has_intent: bool,
) -> Result<Done> {
    let _permit = run.cuts.acquire().await.map_err(|_| Error::internal("semaphore closed"))?;
    let (manifest_key, intent_key) =
        (layout::manifest_key(&place.prefix, from), layout::intent_key(&place.prefix, from));
    let get = async |there: bool, key: &str| if there { run.store.get(key).await } else { Ok(None) };
    let (manifest, intent) = futures::try_join!(get(has_manifest, &manifest_key), get(has_intent, &intent_key))?;
    let parsed = {
        let place = place.clone();
        blocking(move || Ok(parse(&place, from, manifest, intent))).await?
    };
    let Documents { link, manifest, rows, named, damage } = parsed;
    damage.into_iter().for_each(|damage| run.tell(damage));
    let gaps = Arc::new(Gaps::of(manifest.as_ref().map_or(&[], |m| &m.gaps)));
    let to = match (&manifest, link.intent) {
        (Some(m), _) => Some(m.to),
        (None, Named::To(to)) => Some(to),
        _ => None,
    };
    let named_by = manifest.as_ref().map(|m| (m.topic.clone(), m.generation, m.partition));
    let genesis = || place.genesis.as_ref().map(|g| (g.topic.clone(), g.generation, g.partition));
    if let Some(at) = named_by.or_else(genesis) {
        let rows = rows.as_ref().map(|rows| rows.as_slice());
        dispositions::seen(&mut run.found().pending, &at, (from, to.unwrap_or(i64::MAX)), rows);
    }
    if let Some(manifest) = manifest {
        count_gaps(&run, &manifest);
        let manifest = Arc::new(manifest);
        let work: Vec<_> = (0..manifest.objects.len())
            .map(|i| look_at(&run, manifest.clone(), i, gaps.clone(), rows.clone()).boxed())
            .collect();
        stream::iter(work).buffer_unordered(OBJECTS_AT_A_TIME).try_collect::<()>().await?;
    }
    let expected = to.filter(|_| run.kafka.is_some()).map(|to| Expected { from, to, gaps, rows });
    Ok(Done { link, named, expected })
}

fn count_gaps(run: &Run, m: &Manifest) {
    let totals = &mut run.found().totals;
    for gap in &m.gaps {
        let offsets = gap.from.abs_diff(gap.to);
        let sum = match gap.kind {
            GapKind::Lost | GapKind::Expired => &mut totals.lost_offsets,
            GapKind::Unknown => &mut totals.unknown_offsets,
            GapKind::Compacted => &mut totals.compacted_offsets,
        };
        *sum = sum.saturating_add(offsets);
    }
}

fn parse(place: &Place, from: i64, manifest: Option<Bytes>, intent: Option<Bytes>) -> Documents {
    let mut damage = Vec::new();
    let manifest_key = layout::manifest_key(&place.prefix, from);
    let intent_key = layout::intent_key(&place.prefix, from);
    let stored = manifest.map(|bytes| (sha256_hex(&bytes), read_manifest(place, &manifest_key, from, &bytes)));
    let (sha256, manifest) = match stored {
        Some((sha256, Ok(m))) => (Some(sha256), Some(m)),
        Some((sha256, Err(d))) => {
            damage.push(d);
            (Some(sha256), None)
        }
        None => (None, None),
    };
    let (named_intent, intent, rows) = match intent {
        None => (Named::Absent, None, None),
        Some(bytes) => match read_intent(place, &intent_key, from, &bytes) {
            Ok((i, rows)) => (Named::To(i.to), Some(i), Some(rows)),
            Err(d) => {
                damage.push(d);
                (Named::Unreadable, None, None)
            }
        },
    };
    if let (Some(m), Some(i), Some(rows)) = (&manifest, &intent, &rows) {
        damage.extend(documents::agree(&manifest_key, m, i, rows));
    } else if let Some(m) = &manifest {
        damage.extend(documents::names(&manifest_key, m));
    }
    let keys: BTreeSet<&str> = (manifest.iter().flat_map(|m| &m.objects).map(|o| o.key.as_str()))
        .chain(intent.iter().flat_map(|i| &i.objects).map(|o| o.key.as_str()))
        .collect();
    let named = keys.into_iter().map(orphans::hash).collect();
    let stored = sha256.map(|sha256| Stored { sha256, said: manifest.as_ref().map(Said::of) });
    let link = Link { from, manifest: stored, intent: named_intent };
    Documents { link, manifest, rows: rows.map(Arc::new), named, damage }
}

fn read_manifest(place: &Place, key: &str, from: i64, bytes: &[u8]) -> Result<Manifest, Damage> {
    let m: Manifest = documents::parse(What::ManifestDamaged, key, bytes)?;
    let owner = Owner {
        archive_id: &m.archive_id,
        topic: &m.topic,
        partition: m.partition,
        generation: m.generation,
        topic_id: m.topic_id.as_deref(),
    };
    let damage = place
        .belongs(What::ManifestDamaged, key, &owner)
        .or_else(|| documents::manifest(key, from, &m, place.format.as_deref()));
    damage.map_or(Ok(m), Err)
}

fn read_intent(place: &Place, key: &str, from: i64, bytes: &[u8]) -> Result<(Intent, Vec<Rows>), Damage> {
    let i: Intent = documents::parse(What::IntentDamaged, key, bytes)?;
    let owner = Owner {
        archive_id: &i.archive_id,
        topic: &i.topic,
        partition: i.partition,
        generation: i.generation,
        topic_id: i.topic_id.as_deref(),
    };
    if let Some(damage) = place.belongs(What::IntentDamaged, key, &owner) {
        return Err(damage);
    }
    if i.from != from {
        let found = format!("{}..{}", i.from, i.to);
        return Err(Damage::new(What::IntentDamaged, key, format!("a cut that begins at {from}"), found));
    }
    let rows = documents::intent(key, &i)?;
    Ok((i, rows))
}

/// Checks one data object, by asking for it or by reading it.
async fn look_at(
    run: &Run,
    manifest: Arc<Manifest>,
    index: usize,
    gaps: Arc<Gaps>,
    rows: Option<Arc<Vec<Rows>>>,
) -> Result<()> {
    let Some(o) = manifest.objects.get(index) else { return Ok(()) };
    // What no store takes is in none.
    let damage = if run.store.check_key(&o.key).is_err() {
        Some(object::missing(o))
    } else if run.options.quick {
        ask(run, o).await?
    } else {
        let mib = u32::try_from(o.size >> 20).unwrap_or(MEMORY).clamp(LEAST, MEMORY);
        let _permit = run.memory.acquire_many(mib).await.map_err(|_| Error::internal("semaphore closed"))?;
        match run.store.get(&o.key).await? {
            None => Some(object::missing(o)),
            Some(bytes) => {
                run.counters.bytes.fetch_add(bytes.len() as u64, Relaxed);
                let manifest = manifest.clone();
                blocking(move || Ok(read(&manifest, index, bytes, &gaps, rows.as_deref()))).await?
            }
        }
    };
    run.counters.objects.fetch_add(1, Relaxed);
    damage.into_iter().for_each(|damage| run.tell(damage));
    Ok(())
}

fn read(m: &Manifest, index: usize, bytes: Bytes, gaps: &Gaps, rows: Option<&Vec<Rows>>) -> Option<Damage> {
    let o = m.objects.get(index)?;
    let cut =
        object::Cut { topic: &m.topic, partition: m.partition, generation: m.generation, from: m.from, to: m.to, gaps };
    let rows = rows.and_then(|rows| rows.iter().find(|r| r.key == o.key));
    object::check(o, bytes, &cut, rows)
}

async fn ask(run: &Run, o: &DataObject) -> Result<Option<Damage>> {
    let Some(head) = run.store.head(&o.key).await? else { return Ok(Some(object::missing(o))) };
    Ok(object::size(o, head.size).or_else(|| head.meta.get("sha256").and_then(|found| object::sha256(o, found))))
}
