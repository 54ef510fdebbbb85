//! What restores left behind, for those who ask later: how they stand, and all of one.
//!
//! Owns what is read for that. Writes nothing and asks no brokers. Invariant: what does not fit its hash is told.

use super::audit::{self, Closing, DONE, DoneDoc, Folder, PLAN, PREFIX, RunDoc, Sent};
use super::chain::{Chain, Link};
use super::pieces::{Piece, counted};
use super::plan::PlanDoc;
use super::turn::{self, Event, OrderDoc};
use crate::error::{Error, Result};
use crate::format::restored::{self, Restored};
use crate::ledger::{from_bytes, sha256_hex};
use crate::store::Store;
use bytes::Bytes;
use chrono::DateTime;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use std::collections::BTreeMap;

/// Restores, or documents of their order, that are read at a time.
const AT_A_TIME: usize = 16;
/// Corrected values that a report has one by one.
pub const CORRECTED: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// To its plan's end.
    Done,
    /// Ended before that: taken over, or it made way.
    Closed,
    Unfinished,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Closed => "closed",
            Self::Unfinished => "unfinished",
        }
    }
}

/// How a restore stands.
#[derive(Debug)]
pub struct Overview {
    /// Without its cuts.
    pub plan: PlanDoc,
    pub cuts: usize,
    /// Of the bytes of `plan.json`.
    pub plan_sha256: String,
    pub done: Option<DoneDoc>,
    /// Of the bytes of `done.json`.
    pub done_sha256: Option<String>,
    /// `None` if it is done.
    sent: Option<Sent>,
}

impl Overview {
    /// `None` if there is no such restore.
    pub async fn read(store: &dyn Store, id: &str) -> Result<Option<Self>> {
        let folder = Folder::new(store, id);
        let bytes = if audit::is_id(id) { folder.plan_bytes().await? } else { None };
        let Some(bytes) = bytes else { return Ok(None) };
        let mut plan: PlanDoc = from_bytes(&folder.key(PLAN), &bytes)?;
        // Of a large restore many megabytes.
        let cuts = std::mem::take(&mut plan.cuts).len();
        let done_bytes = folder.done_bytes().await?;
        let done = done_bytes.as_ref().map(|bytes| from_bytes(&folder.key(DONE), bytes)).transpose()?;
        let sent = if done.is_some() { None } else { Some(folder.sent().await?) };
        let done_sha256 = done_bytes.as_deref().map(sha256_hex);
        Ok(Some(Self { plan, cuts, plan_sha256: sha256_hex(&bytes), done, done_sha256, sent }))
    }

    /// All restores, the newest first.
    pub async fn all(store: &dyn Store) -> Result<Vec<Self>> {
        let ids = audit::ids(store, "").await?;
        let read: Vec<_> = ids.iter().map(|id| Self::read(store, id).boxed()).collect();
        let read: Vec<Option<Self>> = stream::iter(read).buffered(AT_A_TIME).try_collect().await?;
        let mut all: Vec<Self> = read.into_iter().flatten().collect();
        all.sort_by(|a, b| (&b.plan.created_at, &b.plan.restore_id).cmp(&(&a.plan.created_at, &a.plan.restore_id)));
        Ok(all)
    }

    pub fn state(&self) -> State {
        match (&self.done, self.closing()) {
            (Some(done), _) if done.closed.is_none() => State::Done,
            (Some(_), _) | (None, Some(_)) => State::Closed,
            (None, None) => State::Unfinished,
        }
    }

    /// Why it was ended early.
    pub fn closed(&self) -> Option<&str> {
        let done = self.done.as_ref().and_then(|done| done.closed.as_deref());
        done.or_else(|| self.closing().map(|closing| &closing.reason[..]))
    }

    fn closing(&self) -> Option<&Closing> {
        self.sent.as_ref().and_then(|sent| sent.closing.as_ref())
    }

    /// How many records of its plan are known to be sent or skipped. `None`: its lists do not fit, as those of one that
    /// is writing may for a moment.
    pub fn reached(&self) -> Option<u64> {
        match (&self.done, &self.sent) {
            (Some(done), _) => Some(done.selected.saturating_sub(done.left)),
            (None, Some(sent)) => counted(&sent.pieces, &sent.runs).ok().map(|(_, reached)| reached),
            (None, None) => None,
        }
    }

    /// When the newest batch that it listed was acknowledged, microseconds since 1970. `None` if it is done, or no batch
    /// sent a record.
    pub async fn last_batch_us(&self, store: &dyn Store) -> Result<Option<i64>> {
        let pieces = self.sent.iter().flat_map(|sent| &sent.pieces);
        let Some(newest) = pieces.max_by_key(|piece| (piece.run, piece.end)) else { return Ok(None) };
        let key = piece_key(&self.plan.restore_id, *newest);
        let mut last = None;
        restored::read(bytes_of(store, &key).await?, |row| last = last.max(Some(row.restored_at_us)))
            .map_err(|e| e.context(&key))?;
        Ok(last)
    }

    /// Each start of it.
    pub async fn runs(&self, store: &dyn Store) -> Result<BTreeMap<u32, RunDoc>> {
        Folder::new(store, &self.plan.restore_id).runs().await
    }
}

fn piece_key(id: &str, piece: Piece) -> String {
    format!("{PREFIX}{id}/sent/{}", piece.name())
}

async fn bytes_of(store: &dyn Store, key: &str) -> Result<Bytes> {
    let bytes = store.get(key).await?;
    bytes.ok_or_else(|| Error::corrupt(format!("{key} was listed and is not there: run `dlq-archiver verify`")))
}

/// When a time was, microseconds since 1970.
pub fn micros(rfc3339: &str) -> Option<i64> {
    DateTime::parse_from_rfc3339(rfc3339).ok().map(|at| at.timestamp_micros())
}

/// All of a restore.
#[derive(Debug)]
pub struct Report {
    pub overview: Overview,
    pub runs: BTreeMap<u32, RunDoc>,
    /// Its documents in the order of restores.
    pub links: Vec<Link>,
    /// Documents of the order.
    pub order: u64,
    /// What does not fit: in the whole order, in its own documents, in the lists that were read.
    pub problems: Vec<String>,
    /// The first rows of its lists; of one that is not done the last batch may not have become visible.
    pub rows: Vec<Restored>,
    /// The first [`CORRECTED`] that were sent with another value.
    pub corrected: Vec<Restored>,
    pub corrected_total: u64,
}

impl Report {
    /// `rows`: of its lists.
    pub async fn read(store: &dyn Store, archive_id: &str, id: &str, rows: usize) -> Result<Option<Self>> {
        let Some(overview) = Overview::read(store, id).await? else { return Ok(None) };
        let runs = overview.runs(store).await?;
        let (chain, problems) = order(store).await?;
        let links = chain.of(id).cloned().collect();
        let mut report = Self {
            overview,
            runs,
            links,
            order: chain.newest,
            problems,
            rows: Vec::new(),
            corrected: Vec::new(),
            corrected_total: 0,
        };
        report.compare(archive_id, id);
        report.read_lists(store, rows).await?;
        Ok(Some(report))
    }

    /// Its documents with what the order says of them.
    fn compare(&mut self, archive_id: &str, id: &str) {
        let Self { overview, links, problems, .. } = self;
        let (plan, done) = (&overview.plan, overview.done.as_ref());
        if (plan.archive_id.as_str(), plan.restore_id.as_str()) != (archive_id, id) {
            problems.push(format!("{PLAN} is of restore {} of archive {}", plan.restore_id, plan.archive_id));
        }
        if let Some(done) = done.filter(|done| done.restore_id != id) {
            problems.push(format!("{DONE} is of restore {}", done.restore_id));
        }
        for link in links.iter() {
            let (name, sha256) = match link.doc.event {
                Event::Begun => (PLAN, Some(&overview.plan_sha256)),
                Event::Ended => (DONE, overview.done_sha256.as_ref()),
            };
            if sha256 != Some(&link.doc.sha256) {
                let (key, of) = (turn::order_key(link.number), sha256.map_or("missing", |_| "another one"));
                problems.push(format!("{name} is {of}: {key} has SHA-256 {}", link.doc.sha256));
            }
        }
        let begun = links.iter().any(|link| link.doc.event == Event::Begun);
        if !begun && self.runs.values().any(|run| run.closing.is_none()) {
            problems
                .push("it was begun, and the order of restores does not have it: its newest documents are gone".into());
        }
    }

    async fn read_lists(&mut self, store: &dyn Store, rows: usize) -> Result<()> {
        let id = &self.overview.plan.restore_id;
        // Values are only counted where there are some.
        let all = self.overview.plan.options.values_sha256.is_some();
        let lists: Vec<(String, Option<&str>)> = match (&self.overview.done, &self.overview.sent) {
            (Some(done), _) => done.lists.iter().map(|list| (list.key.clone(), Some(&list.sha256[..]))).collect(),
            (None, Some(sent)) => {
                let pieces = counted(&sent.pieces, &sent.runs).map_or_else(|_| Vec::new(), |(pieces, _)| pieces);
                pieces.into_iter().map(|piece| (piece_key(id, piece), None)).collect()
            }
            (None, None) => Vec::new(),
        };
        for (key, sha256) in lists {
            if !all && self.rows.len() >= rows {
                break;
            }
            let bytes = match store.get(&key).await? {
                Some(bytes) if sha256.is_none_or(|sha256| sha256_hex(&bytes) == sha256) => bytes,
                found => {
                    let what = if found.is_some() { "another one" } else { "missing" };
                    self.problems.push(format!("{key} is {what}: {DONE} has SHA-256 {}", sha256.unwrap_or("of none")));
                    continue;
                }
            };
            let (first, corrected, total) = (&mut self.rows, &mut self.corrected, &mut self.corrected_total);
            let read = restored::read(bytes, |row| {
                if row.correction.is_some() {
                    *total += 1;
                    if corrected.len() < CORRECTED {
                        corrected.push(row.clone());
                    }
                }
                if first.len() < rows {
                    first.push(row);
                }
            });
            if let Err(e) = read {
                self.problems.push(format!("{key}: {}", e.message()));
            }
        }
        Ok(())
    }
}

/// Follows the order of all restores from its first document, and what is wrong with it.
async fn order(store: &dyn Store) -> Result<(Chain, Vec<String>)> {
    let (mut chain, mut problems) = (Chain::default(), Vec::new());
    let documents = turn::documents(store).await?;
    let fetched = documents.into_iter().map(|(number, key)| {
        async move {
            let bytes = store.get(&key).await?;
            Ok::<_, Error>((number, key, bytes.unwrap_or_default()))
        }
        .boxed()
    });
    let mut fetched = stream::iter(fetched.collect::<Vec<_>>()).buffered(AT_A_TIME);
    while let Some((number, key, bytes)) = fetched.try_next().await? {
        if let Some(hole) = chain.hole(number) {
            problems.push(format!("{} is missing: there are later ones", turn::order_key(*hole.start())));
        }
        let doc = from_bytes::<OrderDoc>(&key, &bytes).map_err(|e| problems.push(e.message().to_owned())).ok();
        if let Some(broken) = chain.follow(number, &bytes, doc) {
            problems.push(format!(
                "{key} or the one before it was changed: it has SHA-256 {} of the one before, which is {}",
                broken.found, broken.expected
            ));
        }
    }
    Ok((chain, problems))
}
