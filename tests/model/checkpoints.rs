//! Checkpoints of a partition's ledger (`archive::checkpoint`, `ledger::checkpoint`). More is allowed here than the code does:
//! there, sequence numbers say where each one ends, so that writers cannot disagree.
//!
//! Every K manifests or so a writer creates `checkpoints/<to>`, only if absent: the entries of the manifests since the
//! previous checkpoint that it knows, and that one's key. A start takes the newest, by `to`, and lists the ledger from
//! there; a reader walks from the newest back and adds the ledger behind it. Writers disagree on where checkpoints end:
//! each counts from the one that it found at its start, and one that slept creates an older one late.
//!
//! Data objects are left out: they are the matter of the model `ledger`. A manifest's content is who won: a cut's own
//! writer, or a recovery.

use crate::explore::{Model, STUCK, Step, breaks, full, holds};

const N: usize = 7;
const W: usize = 3;
/// In a manifest: it is a recovery's.
const RECOVERED: u8 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    All,
    /// The checkpoint comes before the last manifest in it.
    BeforeItsManifests,
    /// Its name is a number, one more than the newest.
    NamesByNumber,
    /// A reader takes the entries of all checkpoints.
    ReaderTakesAll,
    /// The list begins behind names that begin with the checkpoint's `to`.
    ListBeginsLate,
    /// A writer that lost a manifest to another puts its own into a checkpoint.
    OwnManifestThoughExists,
    /// A checkpoint holds the last K entries, whatever the previous one ends with.
    LastEntriesOnly,
}

#[derive(Clone, Copy)]
struct Checkpoints {
    lacks: Rule,
    n: u8,
    /// Manifests in a checkpoint.
    every: u8,
    writers: usize,
    crashes: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum At {
    Nowhere,
    /// Lists `checkpoints/`.
    Newest,
    /// Lists the ledger behind it.
    List,
    Cut,
    Manifest,
    Checkpoint,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Writer {
    at: At,
    from: u8,
    to: u8,
    recovers: bool,
    /// The newest checkpoint that it knows: its `to` and number.
    newest: u8,
    number: u8,
    /// Manifests behind it, by `from`, and which of them are a recovery's.
    entries: u8,
    recovered: u8,
}

impl Writer {
    fn at(at: At) -> Self {
        Self { at, from: 0, to: 0, recovers: false, newest: 0, number: 0, entries: 0, recovered: 0 }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Checkpoint {
    to: u8,
    /// `to` of the previous one; 0 is the genesis.
    previous: u8,
    entries: u8,
    recovered: u8,
}

#[derive(Clone, Hash)]
struct State {
    writers: [Writer; W],
    crashes: u8,
    intents: [u8; N],
    manifests: [u8; N],
    /// By name.
    checkpoints: [Checkpoint; N + 1],
}

impl State {
    /// Where manifests that tile from `from` on end.
    fn head(&self, mut from: u8) -> u8 {
        while (from as usize) < N && self.manifests[from as usize] != 0 {
            from = self.manifests[from as usize] & !RECOVERED;
        }
        from
    }

    fn newest(&self) -> Option<usize> {
        self.checkpoints.iter().rposition(|c| c.to != 0)
    }

    fn entries(&self, from: u8, to: u8) -> (u8, u8) {
        let (mut entries, mut recovered) = (0, 0);
        for f in from as usize..to as usize {
            if self.manifests[f] != 0 {
                entries |= 1 << f;
                recovered |= u8::from(self.manifests[f] & RECOVERED != 0) << f;
            }
        }
        (entries, recovered)
    }
}

impl Checkpoints {
    fn steps(&self, s: &State, w: Writer, out: &mut Vec<(&'static str, State, Writer)>) {
        let (from, start) = (w.from as usize, Writer::at(At::Newest));
        let mut push = |what, state: &State, writer| out.push((what, state.clone(), writer));
        match w.at {
            At::Nowhere | At::Done => {}
            At::Newest => {
                let (newest, number) = s.newest().map_or((0, 0), |i| (s.checkpoints[i].to, i as u8));
                push("lists the checkpoints", s, Writer { newest, number, ..Writer::at(At::List) });
            }
            At::List => {
                let mut seen = s.clone();
                if self.lacks == Rule::ListBeginsLate && w.newest > 0 && (w.newest as usize) < N {
                    seen.manifests[w.newest as usize] = 0;
                    seen.intents[w.newest as usize] = 0;
                }
                let from = seen.head(w.newest);
                let (entries, recovered) = s.entries(w.newest, from);
                let to = seen.intents.get(from as usize).copied().unwrap_or(0);
                let at = if from >= self.n {
                    At::Done
                } else if to != 0 {
                    At::Manifest
                } else {
                    At::Cut
                };
                push("lists the ledger", s, Writer { at, from, to, recovers: to != 0, entries, recovered, ..w });
            }
            At::Cut if w.from >= self.n => push("has come to the end", s, Writer::at(At::Done)),
            At::Cut if s.intents[from] != 0 => push("finds an intent", s, start),
            At::Cut => {
                for to in w.from + 1..=(w.from + 2).min(self.n) {
                    let mut s = s.clone();
                    s.intents[from] = to;
                    let early =
                        self.lacks == Rule::BeforeItsManifests && w.entries.count_ones() as u8 + 1 >= self.every;
                    let at = if early { At::Checkpoint } else { At::Manifest };
                    push("creates the intent", &s, Writer { at, to, ..w });
                }
            }
            At::Manifest => {
                let own = w.to | if w.recovers { RECOVERED } else { 0 };
                let mut s = s.clone();
                let exists = s.manifests[from] != 0;
                if exists && self.lacks != Rule::OwnManifestThoughExists {
                    push("finds a manifest", &s, start);
                    return;
                }
                if !exists {
                    s.manifests[from] = own;
                }
                let entries = w.entries | 1 << from;
                let recovered = w.recovered | u8::from(w.recovers) << from;
                let full = entries.count_ones() as u8 >= self.every && self.lacks != Rule::BeforeItsManifests;
                let next = Writer { from: w.to, to: 0, recovers: false, entries, recovered, ..w };
                let at = if full { At::Checkpoint } else { At::Cut };
                let what = if exists { "finds a manifest, and goes on" } else { "creates the manifest" };
                push(what, &s, Writer { at, ..next });
            }
            At::Checkpoint => {
                let early = self.lacks == Rule::BeforeItsManifests;
                let to = if early { w.to } else { w.from };
                let by_number = self.lacks == Rule::NamesByNumber;
                let name = if by_number { w.number + 1 } else { to };
                let (mut entries, mut previous) = (w.entries, w.newest);
                if early {
                    entries |= 1 << from;
                }
                if self.lacks == Rule::LastEntriesOnly {
                    while entries.count_ones() as u8 > self.every {
                        entries &= entries - 1;
                    }
                    previous = entries.trailing_zeros() as u8;
                }
                let mut s = s.clone();
                let place = &mut s.checkpoints[name as usize];
                let what = if place.to == 0 { "creates a checkpoint" } else { "finds a checkpoint" };
                if place.to == 0 {
                    *place = Checkpoint { to, previous, entries, recovered: w.recovered };
                }
                let next = Writer { newest: to, number: name, entries: 0, recovered: 0, ..w };
                push(what, &s, Writer { at: if early { At::Manifest } else { At::Cut }, ..next });
            }
        }
    }

    /// What a reader sees: by `from`, how often and whether as it is; or that a checkpoint is missing.
    fn read(&self, s: &State) -> Option<Vec<(u8, bool)>> {
        let mut seen = Vec::new();
        let mut add = |entries: u8, recovered: u8| {
            let entries = (0..N as u8).filter(|f| entries >> f & 1 == 1);
            seen.extend(entries.map(|f| (f, recovered >> f & 1 == 1)));
        };
        let newest = s.newest();
        let tail = newest.map_or(0, |i| s.checkpoints[i].to);
        let (entries, recovered) = s.entries(tail, N as u8);
        add(entries, recovered);
        if self.lacks == Rule::ReaderTakesAll {
            s.checkpoints.iter().filter(|c| c.to != 0).for_each(|c| add(c.entries, c.recovered));
            return Some(seen);
        }
        let mut at = newest;
        while let Some(i) = at {
            let checkpoint = s.checkpoints[i];
            add(checkpoint.entries, checkpoint.recovered);
            let previous = if self.lacks == Rule::NamesByNumber { i - 1 } else { checkpoint.previous as usize };
            at = (previous > 0 && checkpoint.previous > 0).then_some(previous);
            if at.is_some_and(|i| s.checkpoints[i].to == 0) {
                return None;
            }
        }
        Some(seen)
    }
}

impl Model for Checkpoints {
    type State = State;

    fn initial(&self) -> State {
        let mut writers = [Writer::at(At::Nowhere); W];
        writers[..self.writers].fill(Writer::at(At::Newest));
        State { writers, crashes: self.crashes, intents: [0; N], manifests: [0; N], checkpoints: Default::default() }
    }

    fn next(&self, s: &State, out: &mut Vec<(Step, State)>) {
        let mut steps = Vec::new();
        let sort = |s: &mut State| {
            if self.lacks == Rule::All {
                s.writers.sort();
            }
        };
        for i in 0..W {
            let w = s.writers[i];
            self.steps(s, w, &mut steps);
            for (what, mut next, writer) in steps.drain(..) {
                next.writers[i] = writer;
                sort(&mut next);
                out.push(((i as u8 + 1, what), next));
            }
            if s.crashes > 0 && !matches!(w.at, At::Nowhere | At::Newest) {
                let mut next = s.clone();
                next.crashes -= 1;
                next.writers[i] = Writer::at(At::Newest);
                sort(&mut next);
                out.push(((i as u8 + 1, "crashes and starts again"), next));
            }
        }
    }

    fn broken(&self, s: &State) -> Option<&'static str> {
        let head = s.head(0);
        for checkpoint in s.checkpoints.iter().filter(|c| c.to != 0) {
            if s.head(checkpoint.to) != head || checkpoint.to > head {
                return Some("a start from a checkpoint comes to the ledger's head");
            }
        }
        let Some(mut seen) = self.read(s) else { return Some("a reader finds every checkpoint") };
        seen.sort_unstable();
        if seen.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Some("a reader sees a manifest once");
        }
        let there: Vec<(u8, bool)> = (0..N as u8)
            .map(|f| (f, s.manifests[f as usize]))
            .filter(|m| m.1 != 0)
            .map(|(f, m)| (f, m & RECOVERED != 0))
            .collect();
        if seen.len() != there.len() {
            return Some("a reader sees every manifest");
        }
        (seen != there).then_some("a checkpoint has manifests as they are")
    }

    fn finished(&self, s: &State) -> bool {
        s.head(0) >= self.n
    }

    fn show(&self, s: &State) -> String {
        let mut text = Vec::new();
        for f in 0..N {
            if s.intents[f] != 0 {
                text.push(format!("intent {f}..{}", s.intents[f]));
            }
            if s.manifests[f] != 0 {
                text.push(format!("manifest {f}..{}", s.manifests[f] & !RECOVERED));
            }
        }
        for (name, c) in s.checkpoints.iter().enumerate().filter(|(_, c)| c.to != 0) {
            text.push(format!("checkpoint {name}: {}..{}", c.previous, c.to));
        }
        text.join("; ")
    }
}

const SMALL: Checkpoints = Checkpoints { lacks: Rule::All, n: 5, every: 2, writers: 2, crashes: 1 };

#[test]
fn checkpoints_hold() {
    holds("checkpoints, 5 offsets", &SMALL);
    holds("checkpoints, 4 offsets, 3 writers", &Checkpoints { n: 4, writers: 3, crashes: 0, ..SMALL });
    if full() {
        holds("checkpoints, 7 offsets", &Checkpoints { n: 7, ..SMALL });
        holds("checkpoints, 6 offsets, 2 crashes", &Checkpoints { n: 6, crashes: 2, ..SMALL });
        holds("checkpoints, 5 offsets, 3 writers", &Checkpoints { writers: 3, ..SMALL });
        holds("checkpoints, of 3 manifests", &Checkpoints { n: 7, every: 3, ..SMALL });
    }
}

#[test]
fn checkpoints_need_each_rule() {
    for (lacks, invariant) in [
        (Rule::BeforeItsManifests, "a start from a checkpoint comes to the ledger's head"),
        (Rule::NamesByNumber, "a reader sees every manifest"),
        (Rule::ReaderTakesAll, "a reader sees a manifest once"),
        (Rule::ListBeginsLate, STUCK),
        (Rule::OwnManifestThoughExists, "a checkpoint has manifests as they are"),
        (Rule::LastEntriesOnly, "a reader finds every checkpoint"),
    ] {
        breaks(&format!("checkpoints, {lacks:?}"), &Checkpoints { lacks, ..SMALL }, invariant);
    }
}
