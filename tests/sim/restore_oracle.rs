//! Judges restores as their users see them: readers of the targets, and whoever reads `restores/`.
//!
//! Knows what was archived and what the brokers really have; shares no decision with the code under test.

use crate::journal::Journal;
use crate::store::Watch;
use crate::target::{Brokers, Fate, Place, Readers, size};
use bytes::Bytes;
use dlq_archiver::format::restored::{self, Restored};
use dlq_archiver::ledger::{from_bytes, sha256_hex};
use dlq_archiver::record::{Header, RawBatch, RawRecord};
use dlq_archiver::restore::audit::{DoneDoc, PREFIX};
use dlq_archiver::restore::plan::{Delivery, PlanDoc};
use dlq_archiver::restore::why::Why;
use dlq_archiver::store::Created;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};

/// A header that no restore takes off, with the record's id: how a reader of a target knows it again.
pub const ID: &[u8] = b"rec";
/// What a restore takes off.
pub const STRIPPED: &[u8] = b"__connect.errors.";

/// One archived record.
pub struct Source {
    pub raw: RawBatch,
    /// Where it came from.
    pub origin: Option<(String, i32)>,
}

impl Source {
    fn kept(&self) -> Vec<Header<'_>> {
        self.raw.get(0).headers.iter().filter(|h| !h.name.starts_with(STRIPPED)).collect()
    }
}

struct Piece {
    end: u64,
    run: u32,
    rows: Vec<Restored>,
}

struct Run {
    start: u64,
    process: u32,
    /// Of one that ends the restore: whether it is uncertain what the last list came to.
    closing: Option<bool>,
}

#[derive(Default)]
struct Inner {
    plans: BTreeMap<String, PlanDoc>,
    pieces: BTreeMap<String, Vec<Piece>>,
    runs: BTreeMap<String, BTreeMap<u32, Run>>,
    lists: BTreeMap<String, (String, Vec<Restored>)>,
    done: BTreeMap<String, DoneDoc>,
    /// Of each plan and end, by key.
    hashes: BTreeMap<String, String>,
    /// Of each document of the order.
    order: Vec<String>,
    /// Restores that the order says have had their turn.
    begun: BTreeSet<String>,
    /// Restores that the order says are over.
    ended: BTreeSet<String>,
    /// Record -> where readers of committed records see it, and by which restore.
    visible: BTreeMap<String, Vec<(Place, String)>>,
    /// Restore, partition that was archived, partition of the target -> newest offset that went there.
    newest: BTreeMap<(String, String, String, i32), i64>,
    /// Process, record -> request.
    sent: BTreeMap<(u32, String), u64>,
    /// Plainly sent by a process after a later run had begun.
    late: BTreeMap<u32, BTreeSet<String>>,
    /// Most records of a batch of a process.
    batches: BTreeMap<u32, usize>,
}

pub struct RestoreOracle {
    journal: Journal,
    sources: BTreeMap<String, Source>,
    inner: Mutex<Inner>,
    brokers: OnceLock<Brokers>,
}

impl std::ops::Deref for RestoreOracle {
    type Target = Journal;
    fn deref(&self) -> &Journal {
        &self.journal
    }
}

type Checked = Result<(), String>;

fn id_of(raw: &RawRecord<'_>) -> String {
    let id = raw.headers.iter().find(|h| h.name == ID).and_then(|h| h.value);
    String::from_utf8_lossy(id.unwrap_or_default()).into_owned()
}

/// The name of an archived record's partition, and its offset.
fn place_of(id: &str) -> (String, i64) {
    let (tp, offset) = id.rsplit_once('/').unwrap_or_default();
    (tp.to_owned(), offset.parse().unwrap_or(-1))
}

impl RestoreOracle {
    pub fn new(sources: BTreeMap<String, Source>) -> Self {
        Self { journal: Journal::default(), sources, inner: Mutex::default(), brokers: OnceLock::new() }
    }

    pub fn watch(&self, brokers: Brokers) {
        let _ = self.brokers.set(brokers);
    }

    fn brokers(&self) -> &Brokers {
        self.brokers.get().unwrap()
    }

    /// A process is about to start that sends batches of this length.
    pub fn starts(&self, process: u32, batch: usize) {
        self.inner.lock().unwrap().batches.insert(process, batch);
    }

    /// Restores that are not over.
    pub fn open(&self) -> Vec<String> {
        let inner = self.inner.lock().unwrap();
        let over = |id: &String| {
            inner.done.contains_key(id)
                || inner.runs.get(id).is_some_and(|runs| runs.values().any(|run| run.closing.is_some()))
        };
        inner.plans.keys().filter(|id| !over(id)).cloned().collect()
    }

    /// Restores that were ended, and have no last list though all is known of them.
    pub fn unlisted(&self) -> Vec<String> {
        let inner = self.inner.lock().unwrap();
        let closed = inner.runs.iter().filter(|(_, runs)| runs.values().any(|run| run.closing == Some(false)));
        closed.map(|(id, _)| id).filter(|id| !inner.done.contains_key(*id)).cloned().collect()
    }

    fn judge(&self, what: impl FnOnce() -> String, checked: Checked) {
        if let Err(why) = checked {
            self.violation(format!("{}: {why}", what()));
        }
        self.check();
    }

    /// Whether a record in a target is the archived one, less what its failure added.
    fn same(&self, restore: &str, place: &Place, record: &RawBatch) -> Result<String, String> {
        let raw = record.get(0);
        let id = id_of(&raw);
        let source = self.sources.get(&id).ok_or_else(|| format!("{id} was never archived"))?;
        let archived = source.raw.get(0);
        let marks = [("dlq-archiver-restore-id", restore), ("dlq-archiver-restore-count", "1")];
        let marks = marks.map(|(n, v)| Header { name: n.as_bytes(), value: Some(v.as_bytes()) });
        if (raw.key, raw.value, raw.timestamp_ms) != (archived.key, archived.value, archived.timestamp_ms)
            || raw.headers.iter().collect::<Vec<_>>() != [source.kept(), marks.to_vec()].concat()
        {
            return Err(format!("{id} is not what was archived"));
        }
        let partitions = self.brokers().lock().topics.get(&place.0).map_or(0, |t| t.partitions.len() as i32);
        match &source.origin {
            Some((_, partition)) if (0..partitions).contains(partition) && *partition != place.1 => {
                Err(format!("{id} is of partition {partition} and went to {}", place.1))
            }
            _ => Ok(id),
        }
    }

    /// Whether a list's row says where the record is.
    fn truthful(&self, restore: &str, row: &Restored) -> Result<Fate, String> {
        let place = (row.target_topic.clone(), row.target_partition, row.target_offset);
        let (record, fate) = self.brokers().at(&place).ok_or_else(|| format!("nothing is at {place:?}"))?;
        let id = self.same(restore, &place, &record)?;
        if id != row.id.to_string() || row.restore_id != restore {
            return Err(format!("at {place:?} is {id}, not {} of restore {}", row.id, row.restore_id));
        }
        Ok(fate)
    }

    fn object(&self, key: &str, body: &Bytes) -> Checked {
        let text = |e: dlq_archiver::Error| e.to_string();
        if key.strip_prefix(PREFIX).is_some_and(|name| name.starts_with("order-")) {
            return self.order(key, body);
        }
        let Some((restore, name)) = key.strip_prefix(PREFIX).and_then(|rest| rest.split_once('/')) else {
            return Ok(());
        };
        let rows = || {
            let mut rows = Vec::new();
            restored::read(body.clone(), |row| rows.push(row)).map(|()| rows).map_err(text)
        };
        let restore = restore.to_owned();
        if ["plan.json", "done.json"].contains(&name) {
            self.inner.lock().unwrap().hashes.insert(key.to_owned(), sha256_hex(body));
        }
        if name == "plan.json" {
            let plan: PlanDoc = from_bytes(key, body).map_err(text)?;
            self.inner.lock().unwrap().plans.insert(restore, plan);
        } else if let Some(run) = name.strip_prefix("run-").and_then(|n| n.strip_suffix(".json")) {
            let doc: Value = serde_json::from_slice(body).map_err(|e| e.to_string())?;
            let process = doc["process"].as_str().and_then(|p| p.get(..8)?.parse().ok());
            let run_of = Run {
                start: doc["start"].as_u64().ok_or("no start")?,
                process: process.ok_or("no process")?,
                closing: doc.get("closing").map(|c| c["uncertain"] == true),
            };
            let run = run.parse().map_err(|_| "no number")?;
            self.inner.lock().unwrap().runs.entry(restore).or_default().insert(run, run_of);
        } else if let Some(piece) = name.strip_prefix("sent/").and_then(|n| n.strip_suffix(".parquet")) {
            let rows = rows()?;
            for row in &rows {
                self.truthful(&restore, row)?;
            }
            let mut numbers = piece.split('-').map(|n| n.parse::<u64>().unwrap_or_default());
            let mut number = || numbers.next().unwrap_or_default();
            number();
            let piece = Piece { end: number(), run: number() as u32, rows };
            self.inner.lock().unwrap().pieces.entry(restore).or_default().push(piece);
        } else if name.starts_with("records-") {
            self.inner.lock().unwrap().lists.insert(key.to_owned(), (sha256_hex(body), rows()?));
        } else if name == "done.json" {
            let done: DoneDoc = from_bytes(key, body).map_err(text)?;
            let checked = self.done(&restore, &done);
            self.inner.lock().unwrap().done.insert(restore, done);
            checked?;
        }
        Ok(())
    }

    /// The order of restores is a chain: each document follows the one before it, and tells of what is there.
    fn order(&self, key: &str, body: &Bytes) -> Checked {
        let doc: Value = serde_json::from_slice(body).map_err(|e| e.to_string())?;
        let mut inner = self.inner.lock().unwrap();
        let expected = format!("{PREFIX}order-{:010}.json", inner.order.len() + 1);
        if key != expected || doc["previous_sha256"].as_str() != inner.order.last().map(String::as_str) {
            return Err(format!("it does not follow {} others", inner.order.len()));
        }
        let restore = doc["restore_id"].as_str().unwrap_or_default().to_owned();
        let of = match doc["event"].as_str() {
            Some("begun") => inner.hashes.get(&format!("{PREFIX}{restore}/plan.json")),
            Some("ended") => inner.hashes.get(&format!("{PREFIX}{restore}/done.json")),
            other => return Err(format!("it tells of {other:?}")),
        };
        if of.map(String::as_str) != doc["sha256"].as_str() {
            return Err(format!("it does not vouch for what restore {restore} wrote"));
        }
        let ended = doc["event"] == "ended";
        let first = if ended { inner.ended.insert(restore.clone()) } else { inner.begun.insert(restore.clone()) };
        if !first || ended && !inner.begun.contains(&restore) {
            return Err(format!("restore {restore} begins or ends a second time, or ends before it begins"));
        }
        inner.order.push(sha256_hex(body));
        Ok(())
    }

    /// Restores that had their turn, with an end that the order does not tell of.
    pub fn unsaid(&self) -> Vec<String> {
        let inner = self.inner.lock().unwrap();
        inner.done.keys().filter(|id| inner.begun.contains(*id) && !inner.ended.contains(*id)).cloned().collect()
    }

    /// Whether a restore that sent it plainly was ended before its list was.
    fn was_cut_off(&self, id: &str) -> bool {
        let inner = self.inner.lock().unwrap();
        inner.done.iter().any(|(restore, done)| {
            let sent = |run: &Run| inner.sent.contains_key(&(run.process, id.to_owned()));
            done.delivery == Delivery::Plain && done.left > 0 && inner.runs[restore].values().any(sent)
        })
    }

    fn done(&self, restore: &str, done: &DoneDoc) -> Checked {
        let mut inner = self.inner.lock().unwrap();
        let inner = &mut *inner;
        let plan = inner.plans.get(restore).ok_or("done without a plan")?;
        let mut listed: BTreeMap<String, Place> = BTreeMap::new();
        for list in &done.lists {
            let (sha256, rows) = inner.lists.get(&list.key).ok_or_else(|| format!("{} is not there", list.key))?;
            if (sha256, rows.len() as u64) != (&list.sha256, list.rows) {
                return Err(format!("{} is not as it says", list.key));
            }
            for row in rows {
                let fate = self.truthful(restore, row)?;
                if fate != Fate::Committed {
                    return Err(format!("{} is listed, and {fate:?}", row.id));
                }
                let place = (row.target_topic.clone(), row.target_partition, row.target_offset);
                if listed.insert(row.id.to_string(), place).is_some() {
                    return Err(format!("{} is listed twice", row.id));
                }
            }
        }
        if done.restored != listed.len() as u64 || done.restored + done.skipped + done.left != plan.selected {
            return Err(format!("{} are listed, of {done:?}", listed.len()));
        }
        if done.closed.is_none() && done.left > 0 {
            return Err(format!("{} are left", done.left));
        }
        if plan.delivery == Delivery::Transactional {
            let seen = inner.visible.iter().flat_map(|(id, places)| places.iter().map(move |at| (id, at)));
            let seen: BTreeMap<String, Place> =
                seen.filter(|(_, (_, by))| by == restore).map(|(id, (place, _))| (id.clone(), place.clone())).collect();
            if let Some(id) = seen.iter().find(|(id, place)| listed.get(*id) != Some(place)).map(|(id, _)| id) {
                return Err(format!("{id} was restored by it and is not in its last list"));
            }
        }
        Ok(())
    }

    fn seen(&self, restore: &str, place: &Place, record: &RawBatch) -> Checked {
        let id = self.same(restore, place, record)?;
        let mut inner = self.inner.lock().unwrap();
        let is = |row: &Restored| {
            row.id.to_string() == id
                && (&row.target_topic, row.target_partition, row.target_offset) == (&place.0, place.1, place.2)
        };
        let pieces = inner.pieces.get(restore).into_iter().flatten();
        if !pieces.into_iter().any(|piece| piece.rows.iter().any(is)) {
            return Err(format!("{id} is visible at {place:?} and in no list of restore {restore}"));
        }
        let again = inner.plans.get(restore).is_some_and(|plan| plan.options.include_restored);
        let seen = inner.visible.entry(id.clone()).or_default();
        let twice = seen.iter().find(|(_, by)| !again || by == restore).cloned();
        seen.push((place.clone(), restore.to_owned()));
        if let Some((other, by)) = twice {
            return Err(format!("{id} is restored twice: at {place:?} by {restore}, at {other:?} by {by}"));
        }
        let (tp, offset) = place_of(&id);
        let newest = inner.newest.entry((restore.to_owned(), tp, place.0.clone(), place.1)).or_insert(-1);
        if offset < *newest {
            return Err(format!("{id} is behind a record that was archived behind it"));
        }
        *newest = offset;
        Ok(())
    }

    fn plainly(&self, process: u32, request: u64, place: &Place, record: &RawBatch) -> Checked {
        let restore = {
            let inner = self.inner.lock().unwrap();
            let of = |runs: &BTreeMap<u32, Run>| runs.values().any(|d| d.process == process && d.closing.is_none());
            inner.runs.iter().find(|(_, runs)| of(runs)).map(|(restore, _)| restore.clone())
        };
        let restore = restore.ok_or_else(|| format!("process {process} sends without a run"))?;
        let id = self.same(&restore, place, record)?;
        let mut inner = self.inner.lock().unwrap();
        let inner = &mut *inner;
        if inner.sent.insert((process, id.clone()), request).is_some_and(|before| before != request) {
            return Err(format!("process {process} sends {id} a second time"));
        }
        let Some((restore, run, start)) = inner.runs.iter().find_map(|(restore, runs)| {
            let (run, doc) = runs.iter().find(|(_, doc)| doc.process == process && doc.closing.is_none())?;
            Some((restore, *run, doc.start))
        }) else {
            return Err(format!("process {process} sends without a run"));
        };
        let pieces = inner.pieces.get(restore).into_iter().flatten();
        let mut before = pieces.filter(|p| p.run < run && p.end <= start).flat_map(|p| &p.rows);
        if before.any(|row| row.id.to_string() == id) {
            return Err(format!("{id} was listed before run {run}, which sends it again"));
        }
        if inner.runs[restore].keys().any(|later| *later > run) {
            let late = inner.late.entry(process).or_default();
            late.insert(id);
            if late.len() > inner.batches[&process] {
                return Err(format!("run {run} goes on though a later one has begun"));
            }
        }
        Ok(())
    }

    /// What must become of a record by a command with this target, if no other restore had it.
    pub fn fate(&self, id: &str, to: Option<&str>) -> Result<String, Why> {
        let source = &self.sources[id];
        let topic = to.or(source.origin.as_ref().map(|o| o.0.as_str())).ok_or(Why::UnknownOrigin)?;
        let inner = self.brokers().lock();
        let target = inner.topics.get(topic).ok_or(Why::MissingTarget)?;
        let raw = source.raw.get(0);
        if raw.timestamp_ms == 0 {
            return Err(Why::Timestamp);
        }
        let mut kept = RawBatch::new();
        kept.push(0, 0, raw.timestamp_type, -1, raw.key, raw.value, source.kept().into_iter());
        if size(&kept) > target.max_bytes {
            return Err(Why::TooLarge);
        }
        if target.compacted && raw.key.is_none() {
            return Err(Why::Refused);
        }
        Ok(topic.to_owned())
    }

    pub fn ids(&self) -> impl Iterator<Item = &String> {
        self.sources.keys()
    }

    /// When all is quiet, and the command that has all records and this target found nothing left to do: each record is
    /// where it should be, or told.
    pub fn complete(&self, to: Option<&str>, told: &BTreeMap<Why, u64>) {
        let mut expected: BTreeMap<Why, u64> = BTreeMap::new();
        let committed = self.brokers().committed();
        let seen: BTreeSet<String> = committed.iter().map(|(_, record)| id_of(&record.get(0))).collect();
        let (certain, perhaps) = self.listed();
        for id in self.sources.keys() {
            let why = match self.fate(id, to) {
                _ if certain.contains(id) && seen.contains(id) => Why::AlreadyRestored,
                _ if certain.contains(id) => {
                    self.violation(format!("{id} is listed, and in no target"));
                    continue;
                }
                _ if perhaps.contains(id) => Why::UnfinishedRestore,
                Err(why) => why,
                Ok(topic) => {
                    self.violation(format!("{id} was not restored to {topic}, and nothing tells why"));
                    continue;
                }
            };
            *expected.entry(why).or_default() += 1;
        }
        if self.violations().is_empty() && expected != *told {
            self.violation(format!("it tells {told:?}, and should tell {expected:?}"));
        }
        for (place, record) in &committed {
            let id = id_of(&record.get(0));
            let listed = certain.contains(&id) || perhaps.contains(&id);
            // Without transactions: what a run was sending when another command ended it, and does not send itself.
            let cut_off = self.fate(&id, to).is_err() && self.was_cut_off(&id);
            if !listed && !cut_off {
                self.violation(format!("{id} is visible at {place:?} and in no list"));
            }
        }
    }

    /// Records in the last lists of restores, and those that a restore which was ended early may have restored.
    fn listed(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        let inner = self.inner.lock().unwrap();
        let (mut certain, mut perhaps) = (BTreeSet::new(), BTreeSet::new());
        for done in inner.done.values() {
            let rows = done.lists.iter().flat_map(|list| &inner.lists[&list.key].1);
            certain.extend(rows.map(|row| row.id.to_string()));
        }
        for (restore, runs) in &inner.runs {
            let Some((start, uncertain)) = runs.values().find_map(|run| Some((run.start, run.closing?))) else {
                continue;
            };
            // It may have died between its closing and its last list: the pieces tell.
            for piece in inner.pieces.get(restore).into_iter().flatten() {
                let rows = piece.rows.iter().map(|row| row.id.to_string());
                if piece.end <= start {
                    certain.extend(rows);
                } else if uncertain {
                    perhaps.extend(rows);
                }
            }
        }
        (certain, perhaps)
    }
}

impl Watch for RestoreOracle {
    fn create(&self, key: &str, body: &Bytes, created: Created) {
        self.event(format!("{} {key}", if created == Created::New { "created" } else { "exists " }));
        if created == Created::New {
            self.judge(|| key.to_owned(), self.object(key, body));
        }
    }
}

impl Readers for RestoreOracle {
    fn appended(&self, process: u32, request: u64, place: &Place, record: &RawBatch, transactional: bool) {
        self.event(format!("process {process} sends {} to {place:?}", id_of(&record.get(0))));
        if !transactional {
            self.judge(|| "sent plainly".into(), self.plainly(process, request, place, record));
        }
    }

    fn visible(&self, transactional_id: &str, records: Vec<(Place, Arc<RawBatch>)>) {
        let restore = {
            let inner = self.inner.lock().unwrap();
            inner.plans.iter().find(|(_, plan)| plan.group == transactional_id).map(|(id, _)| id.clone())
        };
        self.event(format!("{} records of {transactional_id} are visible", records.len()));
        let Some(restore) = restore else {
            return self.violation(format!("{transactional_id} commits, and no plan has it"));
        };
        for (place, record) in &records {
            self.judge(|| "committed".into(), self.seen(&restore, place, record));
        }
    }
}
