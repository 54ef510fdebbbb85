//! Writes originals, and lists what was written.
//!
//! Owns the order: a file of originals for each data object, then the cut's list. Invariant: a dead letter has one row
//! with its original, whoever looks for it at the same time, and whatever is killed. A file's name is the next number of
//! its data object, created only if absent, by who knows all files before it; who comes second takes what is there.

use super::chunk::{Answer, Answers, Cuts, origin};
use super::documents::{Known, ListDoc, ObjectDoc, Sidecar};
use super::index;
use crate::archive::ledger::json_meta;
use crate::archive::rfc3339;
use crate::catalog::Cut;
use crate::cut::PROGRAM_VERSION;
use crate::error::{Error, Result};
use crate::format::Format;
use crate::format::refetched::{self, Row, Source, State};
use crate::host::{blocking, now_us};
use crate::layout;
use crate::ledger::{LEDGER_VERSION, Manifest, encode_offsets, sha256_hex, to_bytes};
use crate::record::RawBatch;
use crate::store::{Created, ObjectMeta, Store};
use bytes::Bytes;
use roaring::RoaringTreemap;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// What was written or found, by state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    pub objects: u64,
    pub bytes: u64,
    pub states: BTreeMap<State, u64>,
    /// Of them, rows that another process wrote, or one that was killed before it listed them.
    pub found: u64,
}

impl Written {
    pub fn add(&mut self, other: &Self) {
        self.objects += other.objects;
        self.bytes += other.bytes;
        self.found += other.found;
        for (state, rows) in &other.states {
            *self.states.entry(*state).or_default() += rows;
        }
    }

    pub(super) fn note(&mut self, doc: &ObjectDoc, created: Created) {
        for (state, rows) in &doc.states {
            *self.states.entry(*state).or_default() += rows;
        }
        match created {
            Created::New => (self.objects, self.bytes) = (self.objects + 1, self.bytes + doc.size),
            Created::Exists => self.found += doc.rows,
        }
    }
}

/// Takes what is in the store and in no list yet: of a process that was killed, or is at it.
pub(super) async fn adopt(store: &dyn Store, data_object: &str, known: &mut Known) -> Result<Vec<ObjectDoc>> {
    let mut adopted = Vec::new();
    loop {
        let key = key_of(data_object, known.rounds(data_object) + 1)?;
        let Some(bytes) = store.get(&key).await? else { return Ok(adopted) };
        let doc = describe(key, data_object.to_owned(), bytes).await?;
        known.sidecars.push(Sidecar::new(doc.clone())?);
        adopted.push(doc);
    }
}

fn key_of(data_object: &str, number: u32) -> Result<String> {
    let format = format_of(data_object)?;
    Ok(layout::refetched_key(data_object, format.extension(), number))
}

fn format_of(key: &str) -> Result<Format> {
    Format::of_key(key).ok_or_else(|| {
        Error::corrupt(format!("data object {key} has an unknown extension: use the program that wrote it"))
    })
}

/// What a list says of a file as stored.
async fn describe(key: String, data_object: String, bytes: Bytes) -> Result<ObjectDoc> {
    let format = format_of(&key)?;
    blocking(move || {
        let mut rows = Rows::default();
        refetched::read(format, bytes.clone(), false, &mut |row| {
            rows.add(row.id.offset, row.state);
            Ok(ControlFlow::Continue(()))
        })
        .map_err(|e| e.context(&key))?;
        rows.describe(key, data_object, &bytes)
    })
    .await
}

#[derive(Default)]
struct Rows {
    offsets: RoaringTreemap,
    refetched: RoaringTreemap,
    states: BTreeMap<State, u64>,
}

impl Rows {
    fn add(&mut self, offset: i64, state: State) {
        let Ok(offset) = u64::try_from(offset) else { return };
        self.offsets.insert(offset);
        if state == State::Refetched {
            self.refetched.insert(offset);
        }
        *self.states.entry(state).or_default() += 1;
    }

    fn describe(self, key: String, data_object: String, bytes: &[u8]) -> Result<ObjectDoc> {
        Ok(ObjectDoc {
            key,
            data_object,
            size: bytes.len() as u64,
            rows: self.states.values().sum(),
            sha256: sha256_hex(bytes),
            offsets: encode_offsets(&self.offsets)?,
            refetched: encode_offsets(&self.refetched)?,
            states: self.states,
        })
    }
}

/// The number of each cut's record, its data object and what became of it.
type OfCut = BTreeMap<String, Vec<Answer>>;

pub(super) struct Writer<'a> {
    pub store: &'a Arc<dyn Store>,
    pub again: bool,
}

impl Writer<'_> {
    /// Writes what was answered, cut by cut. `known` are the cuts' own, in the order of `cuts`.
    pub async fn write(&self, cuts: &Cuts, known: &mut [Known], answers: Answers) -> Result<Written> {
        let mut of_cuts: BTreeMap<usize, OfCut> = BTreeMap::new();
        for answer in answers.all {
            let Some(cut) = cuts.get(answer.letter.cut) else { continue };
            let key = cut.object(answer.letter.record).key.clone();
            of_cuts.entry(answer.letter.cut).or_default().entry(key).or_default().push(answer);
        }
        let mut written = Written::default();
        for (number, objects) in of_cuts {
            let (Some(cut), Some(known)) = (cuts.get(number), known.get_mut(number)) else { continue };
            let mut docs = Vec::new();
            for (data_object, rows) in objects {
                docs.extend(self.create(cuts, known, data_object, rows, &answers.batch, &mut written).await?);
            }
            let (sources, whole) = (answers.sightings.clone(), whole(cut, known));
            list(&**self.store, cut.manifest(), known, docs, sources, whole).await?;
        }
        Ok(written)
    }

    /// Creates files of originals of one data object, until each of these dead letters has its row.
    async fn create(
        &self,
        cuts: &Cuts,
        known: &mut Known,
        data_object: String,
        mut rows: Vec<Answer>,
        batch: &Arc<RawBatch>,
        written: &mut Written,
    ) -> Result<Vec<ObjectDoc>> {
        let mut docs = Vec::new();
        loop {
            rows.retain(|a| {
                let offset = cuts.get(a.letter.cut).map(|cut| cut.offset(a.letter.record));
                // That something is still not there is known.
                offset.is_some_and(|offset| match known.of(offset) {
                    None => true,
                    Some(there) => self.again && !there && a.state == State::Refetched,
                })
            });
            if rows.is_empty() {
                return Ok(docs);
            }
            let key = key_of(&data_object, known.rounds(&data_object) + 1)?;
            self.store.check_key(&key)?;
            let (doc, bytes) =
                encode(cuts.clone(), key.clone(), data_object.clone(), rows.clone(), batch.clone()).await?;
            let format = format_of(&key)?;
            let meta = ObjectMeta::new(format.content_type())
                .with("sha256", doc.sha256.clone())
                .with("rows", doc.rows.to_string());
            let created = self.store.create(&key, bytes, &meta).await?;
            let doc = match created {
                Created::New => doc,
                Created::Exists => {
                    let bytes = self.store.get(&key).await?.ok_or_else(|| {
                        Error::corrupt(format!("{key} was there and is not: something deletes objects of the archive"))
                    })?;
                    describe(key, data_object.clone(), bytes).await?
                }
            };
            written.note(&doc, created);
            known.sidecars.push(Sidecar::new(doc.clone())?);
            docs.push(doc);
        }
    }
}

async fn encode(
    cuts: Cuts,
    key: String,
    data_object: String,
    mut rows: Vec<Answer>,
    batch: Arc<RawBatch>,
) -> Result<(ObjectDoc, Bytes)> {
    let format = format_of(&key)?;
    blocking(move || {
        rows.sort_by_key(|a| a.letter.record);
        let mut named = Rows::default();
        let refetched_at_us = now_us();
        let row = |a: &Answer| {
            let id = id_of(cuts.get(a.letter.cut)?, a.letter.record);
            named.add(id.offset, a.state);
            Some(Row {
                id,
                state: a.state,
                source: Source {
                    topic: a.topic.to_string().into(),
                    topic_id: a.topic_id.as_deref().map(|id| id.to_owned().into()),
                    partition: a.partition,
                    offset: a.offset,
                },
                original: a.original.map(|i| batch.get(i)),
                refetched_at_us,
            })
        };
        let bytes: Bytes = refetched::encode(format, PROGRAM_VERSION, rows.iter().filter_map(row))?.into();
        Ok((named.describe(key, data_object, &bytes)?, bytes))
    })
    .await
}

fn id_of(cut: &Cut, record: usize) -> crate::record::RecordId {
    let m = cut.manifest();
    crate::record::RecordId {
        topic: m.topic.clone(),
        generation: m.generation,
        partition: m.partition,
        offset: cut.offset(record),
    }
}

/// Data objects of which nothing is left to be looked for. Those are not among them that were read in part.
pub(super) fn whole(cut: &Cut, known: &Known) -> BTreeSet<String> {
    let mut objects: BTreeMap<&str, (u64, u64, bool)> = BTreeMap::new();
    for i in 0..cut.len() {
        let object = cut.object(i);
        let seen = objects.entry(&object.key).or_insert((object.rows, 0, true));
        seen.1 += 1;
        let is_done = |i| !cut.payload_state(i).lacks_original() || known.of(cut.offset(i)).is_some();
        seen.2 &= is_done(i) || origin(&cut.get(i)).is_none();
    }
    let whole = objects.into_iter().filter(|(_, (rows, seen, done))| rows == seen && *done);
    whole.map(|(key, _)| key.to_owned()).collect()
}

/// Lists files of originals of one cut, and data objects of which nothing is left to be looked for.
pub(super) async fn list(
    store: &dyn Store,
    m: &Manifest,
    known: &mut Known,
    mut objects: Vec<ObjectDoc>,
    sources: Vec<super::judge::Sighting>,
    mut whole: BTreeSet<String>,
) -> Result<()> {
    let prefix = layout::refetched_prefix(&m.topic, m.partition, m.generation);
    loop {
        whole.retain(|key| !known.whole.contains(key));
        if objects.is_empty() && whole.is_empty() {
            return Ok(());
        }
        let number = known.last_number + 1;
        let key = layout::refetched_list_key(&prefix, m.from, number);
        let list = ListDoc {
            version: LEDGER_VERSION,
            archive_id: m.archive_id.clone(),
            topic: m.topic.clone(),
            partition: m.partition,
            generation: m.generation,
            from: m.from,
            to: m.to,
            number,
            written_at: rfc3339(now_us()),
            program_version: PROGRAM_VERSION.to_owned(),
            sources: sources.clone(),
            objects: objects.clone(),
            whole: whole.iter().cloned().collect(),
        };
        store.check_key(&key)?;
        if store.create(&key, to_bytes(&list)?.into(), &json_meta()).await? == Created::New {
            return known.add(&list);
        }
        // Another process was faster, or the reply of this one's own request was lost.
        let theirs = index::read(store, &key, m).await?;
        objects.retain(|o| !theirs.objects.iter().any(|t| t.key == o.key));
        known.add(&theirs)?;
    }
}
