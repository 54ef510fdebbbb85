//! The originals of one cut's dead letters, for whoever shows or restores them.
//!
//! Reads files of originals when their first record is asked for, and lets go of those that were not asked for longest.
//! Invariants: what is given is what the list vouches for; what is held is bounded by [`BUDGET`], or is a single file.

use super::documents::{Known, Sidecar};
use crate::error::{Error, Result};
use crate::format::Format;
use crate::format::refetched::{self, Original, Row, Source, State};
use crate::host::blocking;
use crate::ledger::sha256_hex;
use crate::record::{RawBatch, RecordId};
use crate::store::Store;
use bytes::Bytes;
use roaring::RoaringTreemap;
use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Bytes of originals that are held, in memory.
const BUDGET: usize = 256 << 20;

pub struct Originals {
    store: Arc<dyn Store>,
    /// Dead letters whose originals were looked for and not found.
    missing: RoaringTreemap,
    sidecars: Vec<Sidecar>,
    /// By number of the sidecar; the one that was asked for last is at the end.
    loaded: VecDeque<(usize, Loaded)>,
}

struct Loaded {
    batch: RawBatch,
    sources: Vec<(String, i32)>,
    /// By offset of the dead letter: numbers of source and record.
    rows: HashMap<i64, (usize, usize)>,
}

impl Originals {
    pub fn new(store: Arc<dyn Store>, known: Known) -> Self {
        let union = |of: fn(&Sidecar) -> &RoaringTreemap| {
            known.sidecars.iter().fold(RoaringTreemap::new(), |all, s| all | of(s))
        };
        let missing = union(|s| &s.offsets) - union(|s| &s.refetched);
        let sidecars = known.sidecars.into_iter().filter(|s| !s.refetched.is_empty()).collect();
        Self { store, missing, sidecars, loaded: VecDeque::new() }
    }

    /// Offsets of dead letters whose originals were looked for, and were not there.
    pub fn missing(&self) -> &RoaringTreemap {
        &self.missing
    }

    /// The files that have originals.
    pub fn sidecars(&self) -> &[Sidecar] {
        &self.sidecars
    }

    fn number(&self, offset: i64) -> Option<usize> {
        let offset = u64::try_from(offset).ok()?;
        self.sidecars.iter().position(|s| s.refetched.contains(offset))
    }

    /// Whether [`Self::at`] can answer for the dead letter at `offset`: its original is loaded, or there is none.
    pub fn is_ready(&self, offset: i64) -> bool {
        self.number(offset).is_none_or(|number| self.loaded.iter().any(|(n, _)| *n == number))
    }

    /// Loads what [`Self::at`] needs to answer for the dead letter at `offset`.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] if the file is missing, or not what its list vouches for.
    pub async fn load(&mut self, offset: i64) -> Result<()> {
        let Some(number) = self.number(offset) else { return Ok(()) };
        if let Some(i) = self.loaded.iter().position(|(n, _)| *n == number) {
            let last = self.loaded.remove(i);
            self.loaded.extend(last);
            return Ok(());
        }
        let Some(sidecar) = self.sidecars.get(number) else { return Ok(()) };
        let key = &sidecar.doc.key;
        let bytes = self.store.get(key).await?.ok_or_else(|| missing(key))?;
        let (key, sha256) = (key.clone(), sidecar.doc.sha256.clone());
        let loaded = blocking(move || read(&key, &sha256, bytes)).await?;
        let held = |loaded: &VecDeque<(usize, Loaded)>| loaded.iter().map(|(_, l)| l.batch.memory()).sum::<usize>();
        while !self.loaded.is_empty() && held(&self.loaded) + loaded.batch.memory() > BUDGET {
            self.loaded.pop_front();
        }
        self.loaded.push_back((number, loaded));
        Ok(())
    }

    /// The original of the dead letter at `offset`, as far as it is loaded.
    pub fn at(&self, offset: i64) -> Option<Original<'_>> {
        let number = self.number(offset)?;
        let (_, loaded) = self.loaded.iter().find(|(n, _)| *n == number)?;
        let (source, record) = loaded.rows.get(&offset)?;
        let (topic, partition) = loaded.sources.get(*source)?;
        Some(Original { topic, partition: *partition, raw: loaded.batch.get(*record) })
    }
}

/// The newest row of one dead letter, and the file that it is in.
pub struct Found {
    pub key: String,
    pub id: RecordId,
    pub state: State,
    pub source: Source<'static>,
    pub refetched_at_us: i64,
    /// One record, or none.
    original: RawBatch,
}

impl Found {
    /// The row of the dead letter at `offset`, if it was looked for.
    ///
    /// # Errors
    /// As [`Originals::load`].
    pub async fn of(store: &dyn Store, known: &Known, offset: i64) -> Result<Option<Self>> {
        let Ok(number) = u64::try_from(offset) else { return Ok(None) };
        let Some(sidecar) = known.sidecars.iter().rfind(|s| s.offsets.contains(number)) else { return Ok(None) };
        let key = sidecar.doc.key.clone();
        let bytes = store.get(&key).await?.ok_or_else(|| missing(&key))?;
        let sha256 = sidecar.doc.sha256.clone();
        blocking(move || {
            let format = checked(&key, &sha256, &bytes)?;
            let mut found = None;
            refetched::read(format, bytes, true, &mut |row| {
                if row.id.offset != offset {
                    return Ok(ControlFlow::Continue(()));
                }
                let mut original = RawBatch::new();
                row.original.iter().for_each(|o| original.push_record(o));
                let source = row.source.into_owned();
                let (id, state, refetched_at_us) = (row.id, row.state, row.refetched_at_us);
                found = Some(Self { key: key.clone(), id, state, source, refetched_at_us, original });
                Ok(ControlFlow::Break(()))
            })
            .map_err(|e| e.context(&key))?;
            Ok(found)
        })
        .await
    }

    pub fn row(&self) -> Row<'_> {
        Row {
            id: self.id.clone(),
            state: self.state,
            source: self.source.clone(),
            original: (!self.original.is_empty()).then(|| self.original.get(0)),
            refetched_at_us: self.refetched_at_us,
        }
    }
}

fn missing(key: &str) -> Error {
    Error::corrupt(format!(
        "{key} is missing though its list vouches for it: restore it from an older version or a copy of the bucket"
    ))
}

/// The format of a file that is what its list vouches for.
fn checked(key: &str, sha256: &str, bytes: &[u8]) -> Result<Format> {
    let found = sha256_hex(bytes);
    if found != sha256 {
        return Err(Error::corrupt(format!(
            "{key} is not what its list vouches for: its SHA-256 is {found}, not {sha256}. Restore it from an older version or \
             a copy of the bucket"
        )));
    }
    Format::of_key(key).ok_or_else(|| Error::corrupt(format!("{key} has an unknown extension")))
}

fn read(key: &str, sha256: &str, bytes: Bytes) -> Result<Loaded> {
    let format = checked(key, sha256, &bytes)?;
    let mut loaded = Loaded { batch: RawBatch::new(), sources: Vec::new(), rows: HashMap::new() };
    refetched::read(format, bytes, true, &mut |row| {
        let Some(original) = &row.original else { return Ok(ControlFlow::Continue(())) };
        let Source { topic, partition, .. } = &row.source;
        let known = loaded.sources.iter().rposition(|(t, p)| t == topic && p == partition);
        let source = known.unwrap_or_else(|| {
            loaded.sources.push((topic.to_string(), *partition));
            loaded.sources.len() - 1
        });
        loaded.rows.insert(row.id.offset, (source, loaded.batch.len()));
        loaded.batch.push_record(original);
        Ok(ControlFlow::Continue(()))
    })
    .map_err(|e| e.context(key))?;
    Ok(loaded)
}
