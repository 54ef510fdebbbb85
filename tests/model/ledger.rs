//! One partition's ledger: genesis, intents, data objects, manifests; several writers, crashes, retention, stale
//! listings.
//!
//! | step | code |
//! |---|---|
//! | asks for the log's ends | `Partition::start`: `watermarks` |
//! | lists the ledger | `archive::ledger::load`, `ledger::plan::step` and `head` |
//! | creates the genesis | `Partition::begin` |
//! | cuts | `Reader::close`; where the position has left the log: `Writer::follow_log` |
//! | creates the intent | `Writer::announce` |
//! | reads again | `Writer::recover`: `read_again` |
//! | creates an object | `Writer::create_object` |
//! | creates the manifest | `Writer::commit` |
//! | commits the group's offset | `Reader`, after `Done` |
//!
//! A writer that finds an intent or a manifest of another one begins anew (`Kind::Fenced`). A lost reply is a retry that
//! finds its own bytes, which is a slow success; one that is not tried again is a crash, or `lost_replies`. An object
//! that a crashed process sent and that lands late is another writer that was slow.
//!
//! Offsets are 0..n. A cut has at most two records, in objects by parity, so that a cut has one or two of them.

use crate::explore::{Model, Step, breaks, full, holds};

const N: usize = 4;
const W: usize = 3;
const NONE: u8 = 255;
/// In an object's byte: it is there.
const THERE: u8 = 128;
/// In an intent's byte: it has no objects, retention took the range.
const LOST: u8 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// The protocol as it is.
    All,
    CommitBeforeUpload,
    NamesByClock,
    IntentsDeleted,
    NoGenesis,
    GenesisMadeAnew,
    NoEmptyObjects,
    IgnoresExists,
    ManifestBeforeData,
    ToIsLastOffsetAndOne,
    TrustsItsOwnRows,
}

#[derive(Clone, Copy)]
struct Ledger {
    lacks: Rule,
    n: u8,
    writers: usize,
    crashes: u8,
    /// How many of the newest names a listing may miss.
    stale: u8,
    lost_replies: bool,
    /// How often a lifecycle rule takes the genesis.
    genesis_losses: u8,
    /// The offset of a transaction marker: not a record.
    marker: u8,
}

const SMALL: Ledger = Ledger {
    lacks: Rule::All,
    n: 3,
    writers: 2,
    crashes: 1,
    stale: 0,
    lost_replies: false,
    genesis_losses: 0,
    marker: NONE,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum At {
    /// This writer is not part of the instance.
    Nowhere,
    Start,
    Load,
    Genesis,
    Read,
    Intent,
    Again,
    Upload,
    Manifest,
    Hint,
    Delete,
    Done,
    Stopped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Writer {
    at: At,
    from: u8,
    to: u8,
    /// Log start as it was told.
    low: u8,
    /// Offsets that it has in memory.
    rows: u8,
    /// The next object to create.
    object: u8,
    recovers: bool,
}

impl Writer {
    fn at(at: At) -> Self {
        Self { at, from: 0, to: 0, low: 0, rows: 0, object: 0, recovers: false }
    }
}

#[derive(Clone, Hash)]
struct State {
    writers: [Writer; W],
    low: u8,
    crashes: u8,
    genesis_losses: u8,
    genesis: u8,
    /// By `from`: `to`.
    intents: [u8; N],
    /// By name, which is (clock, from, length, group): THERE and the offsets in it.
    data: [[[[u8; 2]; 3]; N]; 2],
    /// By `from`: `to`.
    manifests: [u8; N],
    /// By `from`: the groups that the manifest names.
    named: [u8; N],
    /// By `from`: offsets in gaps.
    gaps: [u8; N],
    committed: u8,
}

/// Offsets `from..to`.
fn range(from: u8, to: u8) -> u8 {
    (((1u16 << to) - 1) & !((1u16 << from) - 1)) as u8
}

const EVEN: u8 = 0b0101_0101;

fn group(rows: u8, group: usize) -> u8 {
    rows & if group == 0 { EVEN } else { !EVEN }
}

impl Ledger {
    fn records(&self, from: u8, to: u8) -> u8 {
        let marker = if self.marker == NONE { 0 } else { 1 << self.marker };
        range(from, to) & !marker
    }

    /// The groups of rows that a cut has.
    fn groups(&self, from: u8, to: u8) -> impl Iterator<Item = usize> {
        let records = self.records(from, to);
        (0..2).filter(move |g| group(records, *g) != 0)
    }

    /// Where a walk over manifests comes to.
    fn head(&self, genesis: u8, manifests: &[u8; N]) -> u8 {
        let mut head = genesis;
        while head < self.n && manifests[head as usize] != 0 {
            head = manifests[head as usize];
        }
        head
    }

    /// The intent at `from` as a listing shows it: that it has no manifest, or that the ledger is damaged.
    fn load(&self, s: &State, w: Writer, out: &mut Vec<(Step, Writer)>) {
        // The newest names may be missing from a listing.
        for lost_manifests in 0..=self.stale {
            for lost_intents in 0..=self.stale {
                let (mut manifests, mut intents) = (s.manifests, s.intents);
                for (names, lost) in [(&mut manifests, lost_manifests), (&mut intents, lost_intents)] {
                    for _ in 0..lost {
                        if let Some(newest) = names.iter().rposition(|to| *to != 0) {
                            names[newest] = 0;
                        }
                    }
                }
                let what = if lost_manifests + lost_intents > 0 {
                    "lists a ledger that is behind"
                } else {
                    "lists the ledger"
                };
                if let Some(next) = self.loaded(s, w, &manifests, &intents) {
                    out.push(((0, what), next));
                }
            }
        }
    }

    fn loaded(&self, s: &State, mut w: Writer, manifests: &[u8; N], intents: &[u8; N]) -> Option<Writer> {
        let any = |names: &[u8; N]| names.iter().position(|to| *to != 0);
        let genesis = match s.genesis {
            NONE if self.lacks == Rule::NoGenesis => {
                let first = any(manifests).into_iter().chain(any(intents)).min();
                first.map_or(w.low, |f| f as u8)
            }
            NONE if any(manifests).or(any(intents)).is_some() && self.lacks != Rule::GenesisMadeAnew => {
                return Some(Writer::at(At::Stopped));
            }
            NONE => {
                w.at = At::Genesis;
                return Some(w);
            }
            genesis => genesis,
        };
        let open: Vec<usize> = (0..N).filter(|f| intents[*f] != 0 && manifests[*f] == 0).collect();
        let newest = (0..N).rfind(|f| manifests[*f] != 0);
        // Damaged, as far as this listing goes: it is listed again.
        let damaged = open.len() > 1
            || open.first().is_some_and(|open| newest.is_some_and(|newest| *open < newest))
            || (0..N).any(|f| manifests[f] != 0 && intents[f] == 0 && self.lacks != Rule::IntentsDeleted);
        if damaged {
            return None;
        }
        let mut head = newest.map_or(genesis, |newest| manifests[newest]);
        if self.lacks == Rule::CommitBeforeUpload {
            head = head.max(s.committed);
        }
        (w.from, w.rows, w.object) = (head, 0, 0);
        if let Some(open) = open.first() {
            if *open != head as usize {
                return Some(Writer::at(At::Stopped));
            }
            (w.to, w.at, w.recovers) = (intents[head as usize], At::Again, true);
        } else {
            (w.to, w.at, w.recovers) = (0, At::Read, false);
        }
        w.low = 0;
        Some(w)
    }

    /// What one writer can do next.
    fn steps(&self, s: &State, w: Writer, out: &mut Vec<(&'static str, State, Writer)>) {
        let (from, n) = (w.from as usize, self.n);
        let start = Writer::at(At::Start);
        let mut push = |what, state: &State, writer| out.push((what, state.clone(), writer));
        match w.at {
            At::Nowhere | At::Done | At::Stopped => {}
            At::Start => push("asks for the log's ends", s, Writer { at: At::Load, low: s.low, ..start }),
            At::Load => {
                let mut views = Vec::new();
                self.load(s, w, &mut views);
                for ((_, what), next) in views {
                    push(what, s, next);
                }
            }
            At::Genesis => {
                let mut s = s.clone();
                if s.genesis == NONE {
                    s.genesis = w.low;
                }
                push("creates the genesis, or finds one", &s, Writer { at: At::Load, ..w });
            }
            At::Read if w.from >= n => push("has come to the end", s, Writer::at(At::Done)),
            At::Read if s.low > w.from => {
                // The position has left the log: what is gone is a cut of its own.
                let lost = Writer { at: At::Intent, to: s.low | LOST, ..w };
                push("cuts what retention took", s, lost);
            }
            At::Read => {
                let mut last = 0;
                for read in w.from + 1..=(w.from + 2).min(n) {
                    // The consumer's position is behind a marker that follows.
                    let mut to = if read == self.marker { read + 1 } else { read };
                    if self.lacks == Rule::ToIsLastOffsetAndOne {
                        to = 8 - self.records(w.from, to).leading_zeros() as u8;
                    }
                    if to > w.from && to != last {
                        last = to;
                        let rows = self.records(w.from, to);
                        push("cuts", s, Writer { at: At::Intent, to, rows, ..w });
                    }
                }
            }
            At::Intent => {
                let mut next = w;
                next.at = match self.lacks {
                    _ if w.to & LOST != 0 => At::Manifest,
                    Rule::ManifestBeforeData => At::Manifest,
                    _ => At::Upload,
                };
                let mut s = s.clone();
                if self.lacks == Rule::CommitBeforeUpload {
                    s.committed = w.to & !LOST;
                }
                if s.intents[from] == 0 {
                    s.intents[from] = w.to;
                    push("creates the intent", &s, next);
                    if self.lost_replies {
                        push("creates the intent, and is not told so", &s, start);
                    }
                } else if self.lacks == Rule::IgnoresExists {
                    push("finds an intent, and goes on", &s, next);
                } else {
                    push("finds an intent", &s, start);
                }
            }
            At::Again if w.to & LOST != 0 => push("has nothing to read again", s, Writer { at: At::Manifest, ..w }),
            At::Again => {
                let rows = self.records(w.from.max(s.low.min(w.to)), w.to);
                push("reads the range again", s, Writer { at: At::Upload, rows, ..w });
            }
            At::Upload => {
                let Some(g) = self.groups(w.from, w.to).find(|g| *g >= w.object as usize) else {
                    let at = if self.lacks == Rule::ManifestBeforeData { At::Read } else { At::Manifest };
                    let next = Writer { at, ..w };
                    push("has created all objects", s, if at == At::Read { self.after(w) } else { next });
                    return;
                };
                let mut s = s.clone();
                let clock = usize::from(self.lacks == Rule::NamesByClock && w.recovers);
                let object = &mut s.data[clock][from][(w.to - w.from - 1) as usize][g];
                let rows = group(w.rows, g);
                let what = match *object {
                    0 if rows == 0 && self.lacks == Rule::NoEmptyObjects => "leaves out an empty object",
                    0 => {
                        *object = THERE | rows;
                        if rows == 0 { "creates an empty object" } else { "creates an object" }
                    }
                    _ => "finds an object",
                };
                push(what, &s, Writer { object: g as u8 + 1, ..w });
            }
            At::Manifest => {
                let to = w.to & !LOST;
                let then = if self.lacks == Rule::ManifestBeforeData && w.to & LOST == 0 {
                    Writer { at: At::Upload, ..w }
                } else if self.lacks == Rule::IntentsDeleted {
                    Writer { at: At::Delete, ..w }
                } else {
                    Writer { at: At::Hint, ..w }
                };
                if s.manifests[from] != 0 {
                    push("finds a manifest", s, start);
                    return;
                }
                let mut s = s.clone();
                s.manifests[from] = to;
                if w.to & LOST != 0 {
                    s.gaps[from] = range(w.from, to);
                } else {
                    let clock = usize::from(self.lacks == Rule::NamesByClock && w.recovers);
                    for g in self.groups(w.from, to) {
                        let object = s.data[clock][from][(to - w.from - 1) as usize][g];
                        let planned = group(self.records(w.from, to), g);
                        if self.lacks == Rule::ManifestBeforeData {
                            s.named[from] |= 1 << g;
                            s.gaps[from] |= planned & !w.rows;
                        } else {
                            s.named[from] |= u8::from(object != 0) << g;
                            // Without this rule a cut's own writer looks at nothing but the names.
                            if w.recovers || self.lacks != Rule::TrustsItsOwnRows {
                                s.gaps[from] |= planned & !object;
                            }
                        }
                    }
                }
                push("creates the manifest", &s, then);
                if self.lost_replies {
                    push("creates the manifest, and is not told so", &s, start);
                }
            }
            At::Hint => {
                let mut s = s.clone();
                s.committed = w.to & !LOST;
                push("commits the group's offset", &s, self.after(w));
            }
            At::Delete => {
                let mut s = s.clone();
                s.intents[from] = 0;
                push("deletes the intent", &s, self.after(w));
            }
        }
    }

    /// Behind its own manifest a writer reads on without listing anew.
    fn after(&self, w: Writer) -> Writer {
        Writer { from: w.to & !LOST, ..Writer::at(At::Read) }
    }

    fn objects<'s>(&self, s: &'s State) -> impl Iterator<Item = u8> + 's {
        s.data.iter().flatten().flatten().flatten().copied().filter(|o| *o != 0)
    }
}

impl Model for Ledger {
    type State = State;

    fn initial(&self) -> State {
        let mut writers = [Writer::at(At::Nowhere); W];
        writers[..self.writers].fill(Writer::at(At::Start));
        State {
            writers,
            low: 0,
            crashes: self.crashes,
            genesis_losses: self.genesis_losses,
            genesis: NONE,
            intents: [0; N],
            data: Default::default(),
            manifests: [0; N],
            named: [0; N],
            gaps: [0; N],
            committed: 0,
        }
    }

    fn next(&self, s: &State, out: &mut Vec<(Step, State)>) {
        let mut steps = Vec::new();
        for i in 0..W {
            let w = s.writers[i];
            self.steps(s, w, &mut steps);
            let who = i as u8 + 1;
            for (what, mut next, writer) in steps.drain(..) {
                next.writers[i] = writer;
                self.sort(&mut next);
                out.push(((who, what), next));
            }
            if s.crashes > 0 && !matches!(w.at, At::Nowhere | At::Start) {
                let mut next = s.clone();
                next.crashes -= 1;
                next.writers[i] = Writer::at(At::Start);
                self.sort(&mut next);
                out.push(((who, "crashes and starts again"), next));
            }
        }
        if s.low < self.n {
            out.push(((0, "retention takes a record"), State { low: s.low + 1, ..s.clone() }));
        }
        // Not while a writer that has seen none is about to create one: nothing could stop that.
        let creating = s.writers.iter().any(|w| w.at == At::Genesis);
        if s.genesis_losses > 0 && s.genesis != NONE && s.intents != [0; N] && !creating {
            let next = State { genesis_losses: s.genesis_losses - 1, genesis: NONE, ..s.clone() };
            out.push(((0, "somebody deletes the genesis"), next));
        }
    }

    fn broken(&self, s: &State) -> Option<&'static str> {
        let (mut seen, mut twice) = (0, 0);
        for object in self.objects(s) {
            twice |= seen & object & !THERE;
            seen |= object & !THERE;
        }
        if twice != 0 {
            return Some("an offset is in one object");
        }
        let mut read = false;
        let mut expected = if self.lacks == Rule::NoGenesis { NONE } else { s.genesis };
        for from in (0..N).filter(|f| s.manifests[*f] != 0) {
            let to = s.manifests[from];
            if expected != NONE && from != expected as usize {
                return Some("manifests tile");
            }
            expected = to;
            let planned = self.records(from as u8, to);
            let lost = s.intents[from] & LOST != 0;
            let named = (0..2).filter(|g| s.named[from] >> g & 1 == 1);
            let there = |g: usize| s.data.iter().any(|clock| clock[from][to as usize - from - 1][g] != 0);
            if self.lacks != Rule::IgnoresExists && !lost && !named.clone().all(there) {
                return Some("a manifest's objects are durable");
            }
            if planned & !seen & !s.gaps[from] != 0 {
                return Some("a record is in an object or in a gap");
            }
            if seen & s.gaps[from] != 0 {
                return Some("a record in a gap is in no object");
            }
            if s.gaps[from] & !range(0, s.low) != 0 {
                return Some("what a gap calls lost is gone from Kafka");
            }
            if lost && planned == 0 && read {
                return Some("a gap behind a cut has a record");
            }
            read = !lost;
        }
        (s.committed > self.durable(s)).then_some("the group's offset is durable")
    }

    fn show(&self, s: &State) -> String {
        let mut text = format!("log from {}", s.low);
        if s.genesis != NONE {
            text += &format!("; genesis {}", s.genesis);
        }
        for f in 0..N {
            if s.intents[f] != 0 {
                text += &format!("; intent {f}..{}", s.intents[f] & !LOST);
            }
            for (clock, objects) in s.data.iter().enumerate() {
                for (len, objects) in objects[f].iter().enumerate() {
                    for object in objects.iter().filter(|o| **o != 0) {
                        let rows: Vec<u8> = (0..self.n).filter(|o| object >> o & 1 == 1).collect();
                        text += &format!("; object {f}..{}{} {rows:?}", f + len + 1, ["", "'"][clock]);
                    }
                }
            }
            if s.manifests[f] != 0 {
                let gap: Vec<u8> = (0..self.n).filter(|o| s.gaps[f] >> o & 1 == 1).collect();
                text += &format!("; manifest {f}..{} without {gap:?}", s.manifests[f]);
            }
        }
        text
    }

    fn finished(&self, s: &State) -> bool {
        let open = (0..N).any(|f| s.intents[f] != 0 && s.manifests[f] == 0);
        let stopped = s.genesis == NONE && s.writers.iter().any(|w| w.at == At::Stopped);
        self.durable(s) >= self.n && !open || stopped
    }
}

impl Ledger {
    /// Writers are alike, so their order says nothing. A trace is easier to read if they keep it.
    fn sort(&self, s: &mut State) {
        if self.lacks == Rule::All {
            s.writers.sort();
        }
    }

    /// To where offsets are archived or in a gap.
    fn durable(&self, s: &State) -> u8 {
        let first = if s.genesis != NONE { Some(s.genesis) } else { None };
        let first = first.or((0..N).find(|f| s.manifests[*f] != 0).map(|f| f as u8));
        first.map_or(0, |first| self.head(first, &s.manifests))
    }
}

#[test]
fn the_ledger_holds() {
    holds("ledger", &SMALL);
    holds("ledger, a transaction marker", &Ledger { marker: 1, ..SMALL });
    holds("ledger, stale listings", &Ledger { stale: 1, ..SMALL });
    holds("ledger, lost replies", &Ledger { lost_replies: true, ..SMALL });
    holds("ledger, the genesis deleted", &Ledger { genesis_losses: 1, ..SMALL });
    if full() {
        let four = Ledger { n: 4, ..SMALL };
        holds("ledger, 4 offsets, 2 crashes", &Ledger { crashes: 2, ..four });
        holds("ledger, 4 offsets, stale listings, lost replies", &Ledger { stale: 2, lost_replies: true, ..four });
        holds("ledger, 3 writers", &Ledger { writers: 3, ..SMALL });
        holds("ledger, 3 writers, 2 crashes", &Ledger { writers: 3, crashes: 2, ..SMALL });
        holds("ledger, 4 offsets, a marker, 3 writers", &Ledger { writers: 3, marker: 2, ..four });
    }
}

#[test]
fn the_ledger_needs_each_rule() {
    let marker = Ledger { marker: 1, ..SMALL };
    let genesis_lost = Ledger { genesis_losses: 1, ..SMALL };
    for (lacks, instance, invariant) in [
        (Rule::CommitBeforeUpload, SMALL, "the group's offset is durable"),
        (Rule::NamesByClock, SMALL, "an offset is in one object"),
        (Rule::IntentsDeleted, SMALL, "a record in a gap is in no object"),
        (Rule::NoGenesis, SMALL, "an offset is in one object"),
        (Rule::GenesisMadeAnew, genesis_lost, "manifests tile"),
        (Rule::NoEmptyObjects, SMALL, "a record in a gap is in no object"),
        (Rule::IgnoresExists, SMALL, "an offset is in one object"),
        (Rule::ManifestBeforeData, SMALL, "a manifest's objects are durable"),
        (Rule::ToIsLastOffsetAndOne, marker, "a gap behind a cut has a record"),
        (Rule::TrustsItsOwnRows, SMALL, "a record is in an object or in a gap"),
    ] {
        breaks(&format!("ledger, {lacks:?}"), &Ledger { lacks, ..instance }, invariant);
    }
}
