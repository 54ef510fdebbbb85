//! What restores leave in the bucket: `restores/<id>/`, written and read back.
//!
//! - `values.jsonl`, corrected values, then `plan.json`, before the first record is sent,
//! - `run-<n>.json` at each start of the program and, without transactions, at the end; `sent/*.parquet` with each batch
//!   (see [`super::pieces`]), `skipped/*.jsonl` for what was asked for in it and not sent,
//! - `records-*.parquet`, what went where, for SQL engines and later restores, `skipped-*.jsonl`; then `done.json`.
//!
//! Owns their names and order. Sends nothing. Invariant: each is created only if absent and never changed; a restore
//! with `done.json` has its whole list. A run that [closes](Closing) a restore is its last.

use super::attempts::Attempts;
use super::drafts::values;
use super::past::Past;
use super::pieces::{Piece, counted};
use super::plan::PlanDoc;
use super::turn;
use super::values::Values;
use super::why::{Skip, Why};
use crate::archive::ledger::{json_meta, read};
use crate::catalog::Catalog;
use crate::disposition;
use crate::error::{Error, Kind, Result};
use crate::format::restored::{self, Restored};
use crate::ledger::{LEDGER_VERSION, from_bytes, sha256_hex, to_bytes};
use crate::record::RecordId;
use crate::store::{Created, ObjectMeta, Store};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

pub const PREFIX: &str = "restores/";
pub(super) const PLAN: &str = "plan.json";
const VALUES: &str = "values.jsonl";
pub(super) const DONE: &str = "done.json";
/// Lists that are fetched at a time.
const FETCHES: usize = 16;
/// Rows of one final list.
const LIST_ROWS: usize = 250_000;

/// `run-<n>.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunDoc {
    pub version: u32,
    /// Number of the record that this run began with.
    pub start: u64,
    /// RFC 3339.
    pub started_at: String,
    pub started_by: String,
    /// Random, so that a process knows its own document.
    pub process: String,
    pub program_version: String,
    /// It sends nothing and ends the restore, finished or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closing: Option<Closing>,
}

/// The end of a restore that another one took over, or that made way for another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closing {
    /// Why.
    pub reason: String,
    /// Whether it is not known of the list that begins where this run does if its records became visible.
    pub uncertain: bool,
}

/// A line of `skipped-*.jsonl`: a record that was asked for and not sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SkippedLine {
    record_id: String,
    reason: Why,
    #[serde(default)]
    target_topic: Option<String>,
}

/// One final list, as `done.json` vouches for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListDoc {
    pub key: String,
    pub rows: u64,
    pub sha256: String,
}

/// `done.json`: the restore is finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoneDoc {
    pub version: u32,
    pub restore_id: String,
    /// RFC 3339.
    pub finished_at: String,
    pub delivery: super::plan::Delivery,
    pub selected: u64,
    pub restored: u64,
    pub restored_by_target: BTreeMap<String, u64>,
    pub skipped: u64,
    pub skipped_by_reason: BTreeMap<Why, u64>,
    pub runs: u32,
    pub lists: Vec<ListDoc>,
    /// Of what was asked for and not sent, but for what was restored before.
    #[serde(default)]
    pub skipped_lists: Vec<ListDoc>,
    /// The first of each reason.
    #[serde(default)]
    pub skipped_such_as: Vec<(String, Why)>,
    /// Records that were selected and are neither restored nor skipped: another restore took over.
    #[serde(default)]
    pub left: u64,
    /// Why it was ended early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
}

/// Ids of each reason in `done.json`.
const SUCH_AS: u64 = 100;

/// Who restores.
#[derive(Debug, Clone)]
pub struct Process {
    /// `user@host`.
    pub user: String,
    /// RFC 3339; when it was started.
    pub now: String,
    /// Random.
    pub id: String,
}

/// One restore's folder.
pub struct Folder<'s> {
    store: &'s dyn Store,
    id: String,
}

/// What is in it besides the plan.
#[derive(Debug, Default)]
pub struct Sent {
    pub pieces: Vec<Piece>,
    /// Where each run began.
    pub runs: BTreeMap<u32, u64>,
    /// Who began the last run, and when.
    pub last: Option<String>,
    /// Nothing may be sent any more.
    pub closing: Option<Closing>,
}

impl Sent {
    pub fn last_run(&self) -> u32 {
        self.runs.last_key_value().map_or(0, |(run, _)| *run)
    }
}

fn parquet_meta() -> ObjectMeta {
    ObjectMeta::new("application/vnd.apache.parquet")
}

impl<'s> Folder<'s> {
    pub fn new(store: &'s dyn Store, id: &str) -> Self {
        Self { store, id: id.to_owned() }
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{PREFIX}{}/{name}", self.id)
    }

    pub async fn plan(&self) -> Result<Option<PlanDoc>> {
        let Some(bytes) = self.plan_bytes().await? else { return Ok(None) };
        from_bytes(&self.key(PLAN), &bytes).map(Some)
    }

    pub async fn plan_bytes(&self) -> Result<Option<Bytes>> {
        self.store.get(&self.key(PLAN)).await
    }

    pub async fn done_bytes(&self) -> Result<Option<Bytes>> {
        self.store.get(&self.key(DONE)).await
    }

    pub async fn values_bytes(&self) -> Result<Option<Bytes>> {
        self.store.get(&self.key(VALUES)).await
    }

    /// The corrected values of a plan.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] if they are not those that the plan has.
    pub async fn values(&self, plan: &PlanDoc) -> Result<Values> {
        values(self.store, &self.key(VALUES), plan.options.values_sha256.as_deref()).await
    }

    /// Whether nothing can be sent by it any more: it is finished, or closed.
    pub async fn is_over(&self) -> Result<bool> {
        Ok(self.is_done().await? || self.sent().await?.closing.is_some())
    }

    pub async fn is_done(&self) -> Result<bool> {
        Ok(self.store.head(&self.key(DONE)).await?.is_some())
    }

    /// # Errors
    /// [`Kind::Fenced`] if the same command has just been started elsewhere.
    pub async fn create_plan(&self, plan: &PlanDoc, values: &Values) -> Result<()> {
        let created = match values.is_empty() {
            true => Ok(()),
            false => self.create(VALUES, values.to_lines()?.into(), &lines_meta()).await,
        };
        let created = match created {
            Ok(()) => self.create(PLAN, to_bytes(plan)?.into(), &json_meta()).await,
            e => e,
        };
        created.map_err(|e| match e.kind() {
            Kind::Fenced => Error::fenced(format!(
                "nothing was sent: the same command was started by another process at the same moment, as restore {}. \
                 Wait for its end. If it was killed, the same command again, or --resume {}, goes on",
                self.id, self.id
            )),
            _ => e,
        })
    }

    /// Creates an object, or finds exactly these bytes there: an earlier try whose reply was lost.
    async fn create(&self, name: &str, bytes: Bytes, meta: &ObjectMeta) -> Result<()> {
        let key = self.key(name);
        if self.store.create(&key, bytes.clone(), meta).await? == Created::Exists
            && self.store.get(&key).await?.as_ref() != Some(&bytes)
        {
            return Err(Error::fenced(format!("{key} was created by another process")));
        }
        Ok(())
    }

    /// The pieces and runs that are there.
    pub async fn sent(&self) -> Result<Sent> {
        let mut sent = Sent::default();
        let pieces = self.key("sent/");
        for object in self.store.list_all(&pieces).await? {
            let piece = object.key.strip_prefix(&pieces).and_then(Piece::parse);
            sent.pieces.push(piece.ok_or_else(|| Error::corrupt(format!("{} is no list of a restore", object.key)))?);
        }
        for (run, doc) in self.runs().await? {
            sent.last = Some(format!("run {run}, begun at {} by {}", doc.started_at, doc.started_by));
            sent.runs.insert(run, doc.start);
            sent.closing = sent.closing.or(doc.closing);
        }
        Ok(sent)
    }

    /// The runs that have begun.
    pub async fn runs(&self) -> Result<BTreeMap<u32, RunDoc>> {
        let (prefix, mut runs) = (self.key("run-"), BTreeMap::new());
        for object in self.store.list_all(&prefix).await? {
            let name = object.key.strip_prefix(&prefix).and_then(|n| n.strip_suffix(".json"));
            let Some(run) = name.and_then(|n| n.parse().ok()) else {
                return Err(Error::corrupt(format!("{} is no run of a restore", object.key)));
            };
            runs.insert(run, read(self.store, &object.key).await?.0);
        }
        Ok(runs)
    }

    /// Whether this process begins the run: not if another did.
    pub async fn begin_run(&self, run: u32, start: u64, by: &Process) -> Result<bool> {
        self.put_run(run, start, by, None).await
    }

    /// Ends the restore: no later run begins. Whether it did: not if another process has begun this run.
    pub async fn close(&self, run: u32, start: u64, by: &Process, closing: Closing) -> Result<bool> {
        self.put_run(run, start, by, Some(closing)).await
    }

    async fn put_run(&self, run: u32, start: u64, by: &Process, closing: Option<Closing>) -> Result<bool> {
        let doc = RunDoc {
            version: LEDGER_VERSION,
            start,
            started_at: by.now.clone(),
            started_by: by.user.clone(),
            process: by.id.clone(),
            program_version: crate::cut::PROGRAM_VERSION.to_owned(),
            closing,
        };
        let put = self.create(&format!("run-{run}.json"), to_bytes(&doc)?.into(), &json_meta()).await;
        match put {
            Err(e) if e.kind() == Kind::Fenced => Ok(false),
            put => put.map(|()| true),
        }
    }

    /// Whether a run after this one has begun, in another process.
    pub async fn is_superseded(&self, run: u32) -> Result<bool> {
        Ok(self.store.head(&self.key(&format!("run-{}.json", run + 1))).await?.is_some())
    }

    pub async fn put_piece(&self, piece: Piece, rows: &[Restored]) -> Result<()> {
        self.create(&format!("sent/{}", piece.name()), restored::encode(rows)?.into(), &parquet_meta()).await
    }

    pub async fn put_skipped(&self, piece: Piece, skipped: &[(RecordId, Skip)]) -> Result<()> {
        let lines = skipped.iter().map(|(id, skip)| SkippedLine {
            record_id: id.to_string(),
            reason: skip.why,
            target_topic: skip.target.clone(),
        });
        let body = to_lines(&lines.collect::<Vec<_>>())?;
        self.create(&skipped_name(piece), body.into(), &lines_meta()).await
    }

    async fn rows(&self, key: &str, row: impl FnMut(Restored)) -> Result<()> {
        decoded(key, self.store.get(key).await?, row)
    }

    /// Writes the final lists from the pieces that count, then `done.json`. `closed`: it ends before its plan does.
    pub async fn finish(&self, plan: &PlanDoc, sent: &Sent, now: &str, closed: Option<String>) -> Result<DoneDoc> {
        let (pieces, reached) = counted(&sent.pieces, &sent.runs)?;
        if reached != plan.selected && closed.is_none() {
            return Err(Error::corrupt(format!("the lists end at record {reached} of {}", plan.selected)));
        }
        let (mut lists, mut rows) = (Vec::new(), Vec::new());
        let mut restored_by_target: BTreeMap<String, u64> = BTreeMap::new();
        let fetch = |piece: &Piece| {
            let key = self.key(&format!("sent/{}", piece.name()));
            async move { Ok::<_, Error>((self.store.get(&key).await?, key)) }.boxed()
        };
        let fetched: Vec<_> = pieces.iter().map(fetch).collect();
        let mut fetched = stream::iter(fetched).buffered(FETCHES);
        while let Some((bytes, key)) = fetched.try_next().await? {
            decoded(&key, bytes, |row| {
                match restored_by_target.get_mut(&row.target_topic) {
                    Some(count) => *count += 1,
                    None => drop(restored_by_target.insert(row.target_topic.clone(), 1)),
                }
                rows.push(row);
            })?;
            while rows.len() >= LIST_ROWS {
                let rest = rows.split_off(LIST_ROWS);
                lists.push(self.put_list(lists.len(), &rows).await?);
                rows = rest;
            }
        }
        if !rows.is_empty() || lists.is_empty() {
            lists.push(self.put_list(lists.len(), &rows).await?);
        }
        let restored = restored_by_target.values().sum();
        let mut done = DoneDoc {
            version: LEDGER_VERSION,
            restore_id: self.id.clone(),
            finished_at: now.to_owned(),
            delivery: plan.delivery,
            selected: plan.selected,
            restored,
            restored_by_target,
            skipped: reached.saturating_sub(restored),
            skipped_by_reason: BTreeMap::new(),
            runs: sent.last_run(),
            lists,
            skipped_lists: Vec::new(),
            skipped_such_as: Vec::new(),
            left: plan.selected.saturating_sub(reached),
            closed,
        };
        self.finish_skipped(&pieces, &mut done).await?;
        let key = self.key(DONE);
        if self.store.create(&key, to_bytes(&done)?.into(), &json_meta()).await? == Created::Exists {
            return Ok(read(self.store, &key).await?.0);
        }
        Ok(done)
    }

    async fn finish_skipped(&self, pieces: &[Piece], done: &mut DoneDoc) -> Result<()> {
        let there = self.store.list_all(&self.key("skipped/")).await?;
        let there: BTreeSet<String> = there.into_iter().map(|object| object.key).collect();
        let (mut lines, mut listed): (Vec<SkippedLine>, u64) = (Vec::new(), 0);
        for piece in pieces {
            let key = self.key(&skipped_name(*piece));
            if there.contains(&key) {
                let bytes = self.store.get(&key).await?;
                let bytes = bytes.ok_or_else(|| Error::corrupt(format!("{key} was listed and is not there")))?;
                for line in bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
                    let line: SkippedLine = serde_json::from_slice(line)
                        .map_err(|e| Error::corrupt(format!("{key} is no list of skipped records: {e}")))?;
                    let count = done.skipped_by_reason.entry(line.reason).or_default();
                    *count += 1;
                    if *count <= SUCH_AS {
                        done.skipped_such_as.push((line.record_id.clone(), line.reason));
                    }
                    lines.push(line);
                }
            }
            if lines.len() >= LIST_ROWS {
                listed += lines.len() as u64;
                done.skipped_lists.push(self.put_skipped_list(done.skipped_lists.len(), &lines).await?);
                lines.clear();
            }
        }
        if !lines.is_empty() {
            listed += lines.len() as u64;
            done.skipped_lists.push(self.put_skipped_list(done.skipped_lists.len(), &lines).await?);
        }
        let before = done.skipped.saturating_sub(listed);
        if before > 0 {
            done.skipped_by_reason.insert(Why::AlreadyRestored, before);
        }
        Ok(())
    }

    async fn put_skipped_list(&self, number: usize, lines: &[SkippedLine]) -> Result<ListDoc> {
        let name = format!("skipped-{number:05}.jsonl");
        let bytes = to_lines(lines)?;
        let sha256 = sha256_hex(&bytes);
        self.create(&name, bytes.into(), &lines_meta()).await?;
        Ok(ListDoc { key: self.key(&name), rows: lines.len() as u64, sha256 })
    }

    async fn put_list(&self, number: usize, rows: &[Restored]) -> Result<ListDoc> {
        let name = format!("records-{number:05}.parquet");
        let key = self.key(&name);
        let mut bytes = Bytes::from(restored::encode(rows)?);
        if self.store.create(&key, bytes.clone(), &parquet_meta()).await? == Created::Exists {
            // An earlier try at finishing: its rows are the same, its bytes may be another version's.
            let there = self.store.get(&key).await?;
            bytes = there.ok_or_else(|| Error::corrupt(format!("{key} was there and is not")))?;
            let mut same = Vec::with_capacity(rows.len());
            restored::read(bytes.clone(), |row| same.push(row)).map_err(|e| e.context(&key))?;
            if same != rows {
                return Err(Error::corrupt(format!("{key} lists other records than were sent")));
            }
        }
        Ok(ListDoc { key, rows: rows.len() as u64, sha256: sha256_hex(&bytes) })
    }
}

/// The rows of a list that was fetched.
fn decoded(key: &str, bytes: Option<Bytes>, row: impl FnMut(Restored)) -> Result<()> {
    let bytes = bytes.ok_or_else(|| Error::corrupt(format!("{key} was listed and is not there")))?;
    restored::read(bytes, row).map_err(|e| e.context(key))
}

/// Whether it can be a restore's id: what a user types is not to lead elsewhere.
pub fn is_id(id: &str) -> bool {
    !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// The ids of restores whose id begins with `prefix`, in order.
pub async fn ids(store: &dyn Store, prefix: &str) -> Result<Vec<String>> {
    let folders = store.list_folders(&format!("{PREFIX}{prefix}")).await?;
    let id = |f: &String| Some(f.strip_prefix(PREFIX)?.strip_suffix('/')?.to_owned());
    Ok(folders.iter().filter_map(id).collect())
}

/// The ids of restores that are not over.
pub async fn open(store: &dyn Store) -> Result<Vec<String>> {
    let mut open = Vec::new();
    for id in ids(store, "").await? {
        if !Folder::new(store, &id).is_over().await? {
            open.push(id);
        }
    }
    Ok(open)
}

fn skipped_name(piece: Piece) -> String {
    format!("skipped/{}.jsonl", piece.name().trim_end_matches(".parquet"))
}

pub(super) fn lines_meta() -> ObjectMeta {
    ObjectMeta::new("application/x-ndjson")
}

fn to_lines(lines: &[SkippedLine]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut bytes, line)
            .map_err(|e| Error::internal(format!("a list of skipped records could not be encoded: {e}")))?;
        bytes.push(b'\n');
    }
    Ok(bytes)
}

/// A shorter answer would send records again.
fn unknown(what: &str) -> Error {
    Error::corrupt(format!(
        "{what}: what was restored is not known until it is back from an older version or a copy of the bucket. \
         `dlq-archiver verify` tells all that is damaged"
    ))
}

/// What all restores but `own` did, those of them that are not over, and what is discarded. `cuts`: keys of manifests, of
/// whose records it is asked; of all if `None`. `attempts`: filled from the same lists.
pub async fn past(
    catalog: &Catalog,
    own: Option<&str>,
    cuts: Option<&BTreeSet<String>>,
    mut attempts: Option<&mut Attempts>,
) -> Result<(Past, Vec<String>)> {
    let store: &dyn Store = &**catalog.store();
    let (mut past, mut open) = (Past::of_discards(disposition::load(catalog).await?), Vec::new());
    let mut add = |row: &Restored, finished: bool| {
        past.add(row, finished);
        if let Some(attempts) = attempts.as_deref_mut() {
            attempts.add(row);
        }
    };
    // In this order: a plan is there before its place in the order.
    let begun = turn::begun(store).await?;
    let there = ids(store, "").await?;
    if let Some(gone) = begun.into_iter().find(|id| !there.contains(id)) {
        return Err(unknown(&format!("{PREFIX}{gone}/ is gone, though it is in the order of restores")));
    }
    for id in there {
        if Some(id.as_str()) == own {
            continue;
        }
        let folder = Folder::new(store, &id);
        if let Some(cuts) = cuts {
            let plan = folder.plan().await?;
            if !plan.is_some_and(|plan| plan.cuts.iter().any(|cut| cuts.contains(&cut.manifest))) {
                continue;
            }
        }
        if let Some(bytes) = folder.done_bytes().await? {
            let done: DoneDoc = from_bytes(&folder.key(DONE), &bytes)?;
            for list in &done.lists {
                let bytes = store.get(&list.key).await?;
                if bytes.as_ref().is_none_or(|bytes| sha256_hex(bytes) != list.sha256) {
                    return Err(unknown(&format!("{} is missing, or not what done.json vouches for", list.key)));
                }
                decoded(&list.key, bytes, |row| add(&row, true))?;
            }
            continue;
        }
        let sent = folder.sent().await?;
        // Without the last word on which batches became visible, each of them may have.
        let (mut certain, mut perhaps) = (Vec::new(), sent.pieces.clone());
        if let Some(closing) = &sent.closing {
            let mut before = sent.runs.clone();
            before.pop_last();
            certain = counted(&sent.pieces, &sent.runs)?.0;
            perhaps = counted(&sent.pieces, &before)?.0;
            perhaps.retain(|piece| closing.uncertain && !certain.contains(piece));
        } else {
            open.push(id.clone());
        }
        for (pieces, finished) in [(certain, true), (perhaps, false)] {
            for piece in pieces {
                let key = folder.key(&format!("sent/{}", piece.name()));
                folder.rows(&key, |row| add(&row, finished)).await?;
            }
        }
    }
    Ok((past, open))
}
