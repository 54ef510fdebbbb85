//! Judges every object at the moment it appears, as a user would see it: a glob of `data/`, and the manifests.
//!
//! Knows what the brokers really had; shares no decision with the code under test.

use crate::broker::{Broker, Fate};
use crate::journal::Journal;
use crate::store::Watch;
use bytes::Bytes;
use dlq_archiver::format::{self, Format, Projection};
use dlq_archiver::layout::{self, LedgerName};
use dlq_archiver::ledger::{Checkpoint, GapKind, Genesis, Intent, Manifest, decode_offsets, from_bytes, sha256_hex};
use dlq_archiver::record::TopicPartition;
use dlq_archiver::store::Created;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::{Mutex, OnceLock};

struct Object {
    sha256: String,
    size: u64,
    offsets: BTreeSet<i64>,
}

#[derive(Default)]
pub struct Ledger {
    pub genesis: Option<(Genesis, String)>,
    intents: BTreeMap<i64, Intent>,
    pub manifests: BTreeMap<i64, (Manifest, String)>,
}

impl Ledger {
    /// Where the archive reaches.
    pub fn head(&self) -> Option<i64> {
        let genesis = self.genesis.as_ref().map(|(g, _)| g.first_offset);
        self.manifests.values().map(|(m, _)| m.to).max().or(genesis)
    }
}

#[derive(Default)]
struct Inner {
    /// Every row that a glob finds: (topic, partition, generation, offset) -> object.
    rows: BTreeMap<(String, i32, u32, i64), String>,
    /// The same by content, whatever the generation: (topic, partition, offset, checksum).
    contents: BTreeMap<(String, i32, i64, u64), String>,
    objects: BTreeMap<String, Object>,
    /// By ledger prefix.
    ledgers: BTreeMap<String, Ledger>,
    /// Data object -> ledger prefix and start of the intent that names it.
    named: BTreeMap<String, (String, i64)>,
}

#[derive(Default)]
pub struct Oracle {
    journal: Journal,
    inner: Mutex<Inner>,
    broker: OnceLock<Broker>,
}

impl std::ops::Deref for Oracle {
    type Target = Journal;
    fn deref(&self) -> &Journal {
        &self.journal
    }
}

impl Watch for Oracle {
    fn create(&self, key: &str, body: &Bytes, created: Created) {
        self.event(format!("{} {key}", if created == Created::New { "created" } else { "exists " }));
        if created == Created::Exists {
            return;
        }
        let done = if key.starts_with("data/") {
            self.data(key, body)
        } else if key.starts_with("ledger/") {
            self.ledger(key, body)
        } else {
            Ok(())
        };
        if let Err(why) = done {
            self.violation(format!("{key}: {why}"));
        }
        self.check();
    }
}

impl Oracle {
    pub fn watch(&self, broker: Broker) {
        let _ = self.broker.set(broker);
    }

    fn broker(&self) -> &Broker {
        self.broker.get().unwrap()
    }

    fn data(&self, key: &str, body: &Bytes) -> Result<(), String> {
        let format = Format::of_key(key).ok_or("a name without a known format")?;
        let mut inner = self.inner.lock().unwrap();
        let inner = &mut *inner;
        let (prefix, from) = inner.named.get(key).cloned().ok_or("no intent names this object")?;
        let ledger = &inner.ledgers[&prefix];
        let intent = &ledger.intents[&from];
        let planned = intent.objects.iter().find(|o| o.key == key).ok_or("no intent names this object")?;
        let pipelines = planned.pipelines().map_err(|e| e.to_string())?;
        if planned.shared.is_some() {
            self.broker().faults.met("(object shared by pipelines)");
        }
        let planned: BTreeSet<i64> =
            decode_offsets(&planned.offsets).map_err(|e| e.to_string())?.iter().map(|o| o as i64).collect();
        let id = ledger.genesis.as_ref().and_then(|(g, _)| g.topic_id.clone());
        let tp = TopicPartition::new(&intent.topic, intent.partition);
        let mut offsets = BTreeSet::new();
        let mut wrong = None;
        let mut scratch = Vec::new();
        format::read(format, body.clone(), Projection::All, &mut |row| {
            let offset = row.raw.offset;
            let place = (row.id.topic.to_string(), row.id.partition, row.id.generation, offset);
            if (place.0.as_str(), place.1) != (tp.topic.as_str(), tp.partition) {
                wrong = Some(format!("holds a record of {}/{}", place.0, place.1));
            }
            if let Some(other) = inner.rows.insert(place, key.to_owned()) {
                wrong = Some(format!("offset {offset} is twice in the glob: also in {other}"));
            }
            if !planned.contains(&offset) {
                wrong = Some(format!("offset {offset} is not one that the intent names"));
            }
            if pipelines.of(offset) != Some(row.pipeline) {
                wrong = Some(format!("offset {offset} is of pipeline {}, and not by its intent", row.pipeline));
            }
            let sum = row.raw.checksum(&mut scratch);
            if let Some(other) = inner.contents.insert((tp.topic.clone(), tp.partition, offset, sum), key.to_owned()) {
                wrong = Some(format!("the record at offset {offset} is twice in the glob: also in {other}"));
            }
            let real = self.broker().any_log(&tp.topic, id.as_deref(), tp.partition, |log, _| {
                log.record(offset).map(|r| r.checksum(&mut scratch)) == Some(sum)
                    && matches!(log.fate(offset), Fate::There | Fate::Expired | Fate::Compacted)
            });
            if !real {
                wrong = Some(format!("offset {offset} is not what a consumer of the topic got"));
            }
            offsets.insert(offset);
            Ok(ControlFlow::Continue(()))
        })
        .map_err(|e| e.to_string())?;
        let object = Object { sha256: sha256_hex(body), size: body.len() as u64, offsets };
        inner.objects.insert(key.to_owned(), object);
        wrong.map_or(Ok(()), Err)
    }

    fn ledger(&self, key: &str, body: &Bytes) -> Result<(), String> {
        let (prefix, _) = key.rsplit_once('/').ok_or("no folder")?;
        // The name behind the partition's or generation's folder.
        let prefix = prefix.strip_suffix("/checkpoints").unwrap_or(prefix).to_owned();
        let name = key[prefix.len() + 1..].to_owned();
        let text = |e: dlq_archiver::Error| e.to_string();
        let mut inner = self.inner.lock().unwrap();
        let inner = &mut *inner;
        let ledger = inner.ledgers.entry(prefix.clone()).or_default();
        match LedgerName::parse(&name) {
            Some(LedgerName::Genesis) => {
                let genesis: Genesis = from_bytes(key, body).map_err(text)?;
                let before = genesis.generation.checked_sub(1).filter(|g| *g > 0);
                ledger.genesis = Some((genesis.clone(), sha256_hex(body)));
                if let Some(before) = before {
                    let before = layout::ledger_prefix(&genesis.topic, genesis.partition, before);
                    let before = inner.ledgers.get(before.trim_end_matches('/')).ok_or("no generation before it")?;
                    if !before.intents.values().any(Intent::is_seal) {
                        return Err("the generation before it is not sealed".into());
                    }
                    let last = before.manifests.values().max_by_key(|(m, _)| m.from).map(|(_, sha)| sha);
                    let last = last.or(before.genesis.as_ref().map(|(_, sha)| sha));
                    if genesis.previous_sha256.as_ref() != last {
                        return Err("does not chain to the generation before".into());
                    }
                }
            }
            Some(LedgerName::Intent { from }) => {
                let intent: Intent = from_bytes(key, body).map_err(text)?;
                if intent.is_seal() {
                    self.broker().faults.met("(generation sealed)");
                }
                for object in &intent.objects {
                    if inner.named.insert(object.key.clone(), (prefix.clone(), from)).is_some() {
                        return Err(format!("{} is named by two intents", object.key));
                    }
                }
                ledger.intents.insert(from, intent);
            }
            Some(LedgerName::Manifest { from }) => {
                let manifest: Manifest = from_bytes(key, body).map_err(text)?;
                check_manifest(ledger, &inner.objects, &manifest, self.broker())?;
                ledger.manifests.insert(from, (manifest, sha256_hex(body)));
            }
            Some(LedgerName::Checkpoint { to }) => {
                self.broker().faults.met("(checkpoint made)");
                let checkpoint: Checkpoint = from_bytes(key, body).map_err(text)?;
                let entries: Vec<_> =
                    checkpoint.manifests.iter().map(|e| (e.manifest.from, &e.manifest, &e.sha256)).collect();
                let real: Vec<_> =
                    ledger.manifests.range(checkpoint.from..to).map(|(from, (m, sha))| (*from, m, sha)).collect();
                if entries != real || entries.last().map(|(_, m, _)| m.to) != Some(to) {
                    return Err("does not hold what the manifests say".into());
                }
            }
            None => return Err(format!("{name} is no name of a ledger document")),
        }
        Ok(())
    }

    /// The group's offset is only committed for what is durable.
    pub fn committed(&self) {
        let committed = self.broker().lock().committed.clone();
        for (tp, offset) in committed {
            let head = self
                .inner
                .lock()
                .unwrap()
                .ledgers
                .values()
                .filter_map(|l| {
                    let (g, _) = l.genesis.as_ref()?;
                    (g.topic == tp.topic && g.partition == tp.partition).then(|| l.head())?
                })
                .max();
            if head.is_none_or(|head| offset > head) {
                self.violation(format!("{tp}: group offset {offset} committed, the archive reaches {head:?}"));
            }
        }
    }

    /// When all is quiet: every record that can be read is in the glob, and the ledger reaches the log end.
    pub fn complete(&self, tp: &TopicPartition) {
        let found = {
            let inner = self.inner.lock().unwrap();
            let ours = |l: &&Ledger| {
                l.genesis.as_ref().is_some_and(|(g, _)| g.topic == tp.topic && g.partition == tp.partition)
            };
            let generation = |l: &&Ledger| l.genesis.as_ref().map_or(0, |(g, _)| g.generation);
            let Some(newest) = inner.ledgers.values().filter(ours).max_by_key(generation) else { return };
            let first = inner.ledgers.values().filter(ours).filter_map(|l| l.genesis.as_ref());
            let first = first.map(|(g, _)| g.first_offset).min().unwrap_or(0);
            self.broker().with_log(&tp.topic, tp.partition, |log| {
                if newest.head() != Some(log.stable()) {
                    return Some(format!("{tp}: archived to {:?}, the log ends at {}", newest.head(), log.stable()));
                }
                let mut scratch = Vec::new();
                let hidden = (first..log.stable()).find(|o| {
                    let Some(record) = log.record(*o).filter(|_| log.fate(*o) == Fate::There) else { return false };
                    let content = (tp.topic.clone(), tp.partition, *o, record.checksum(&mut scratch));
                    !inner.contents.contains_key(&content)
                });
                hidden.map(|o| format!("{tp}: offset {o} is in the topic and not in the archive"))
            })
        };
        if let Some(Some(why)) = found {
            self.violation(why);
        }
    }
}

fn check_manifest(
    ledger: &Ledger,
    objects: &BTreeMap<String, Object>,
    m: &Manifest,
    broker: &Broker,
) -> Result<(), String> {
    let (genesis, genesis_sha) = ledger.genesis.as_ref().ok_or("a manifest without genesis")?;
    let intent = ledger.intents.get(&m.from).ok_or("a manifest without intent")?;
    let before = ledger.manifests.values().max_by_key(|(m, _)| m.from);
    let (next, sha, sequence) =
        before.map_or((genesis.first_offset, genesis_sha, 0), |(m, sha)| (m.to, sha, m.sequence + 1));
    if (m.from, m.to) != (next, intent.to) || m.to <= m.from {
        return Err(format!("{}..{} does not tile: expected {next}..{}", m.from, m.to, intent.to));
    }
    if (&m.previous_sha256, m.sequence) != (sha, sequence) {
        return Err("the chain is broken".into());
    }
    let named: BTreeSet<&str> = intent.objects.iter().map(|o| o.key.as_str()).collect();
    let listed: BTreeSet<&str> = m.objects.iter().map(|o| o.key.as_str()).collect();
    if named != listed {
        return Err(format!("lists objects {listed:?}, its intent {named:?}"));
    }
    let mut rows = BTreeSet::new();
    for object in &m.objects {
        let found = objects.get(&object.key).ok_or_else(|| format!("{} is not there", object.key))?;
        if (&found.sha256, found.size, found.offsets.len() as u64) != (&object.sha256, object.size, object.rows) {
            return Err(format!("{} is not as the manifest says", object.key));
        }
        rows.extend(found.offsets.iter().copied());
    }
    let mut why = "of a topic that never was".to_owned();
    let right = broker.any_log(&m.topic, genesis.topic_id.as_deref(), m.partition, |log, now| {
        for offset in m.from..m.to {
            let gap = m.gaps.iter().find(|g| (g.from..g.to).contains(&offset)).map(|g| g.kind);
            let fate = log.fate(offset);
            let right = match (rows.contains(&offset), gap, fate) {
                (true, None, _) => true,
                (true, Some(_), _) => false,
                // Lost is said of whole ranges below the log start, whatever was in them.
                (false, Some(GapKind::Lost), _) => offset < log.start,
                // Of a log that is gone, nothing can be read again.
                (false, Some(GapKind::Expired), _) => offset < log.start || !now,
                (false, Some(GapKind::Compacted), fate) => matches!(fate, Fate::Compacted | Fate::Expired),
                (false, Some(GapKind::Unknown), _) => offset < log.start,
                (false, None, fate) => matches!(fate, Fate::Never | Fate::Compacted),
            };
            if !right {
                why = format!(
                    "offset {offset}: in an object: {}, gap {gap:?}, in truth {fate:?} (log {}..{})",
                    rows.contains(&offset),
                    log.start,
                    log.stable()
                );
                return false;
            }
        }
        true
    });
    if right { Ok(()) } else { Err(why) }
}
