//! A second generation of a partition's ledger, after its topic was made anew or its log truncated
//! (`archive::generation`).
//!
//! An operator starts a writer with leave to begin a new generation. It does so only where it sees that the log is
//! another one than the ledger's. First it closes the old generation: each open intent's objects are created, with what
//! the log can still prove by checksums, or empty, and its manifest. Then it seals it: the intent's name behind the last
//! manifest is taken by a document that says so; who finds an intent there closes that and tries again. Only then it
//! creates the genesis of the second generation, which names the last manifest of the first (its hash). A truncated log
//! goes on in the second generation from where it diverged, a topic made anew from its log start.
//!
//! Writers of the first generation may sleep through all of it, with records in memory, and wake at any step. Records of
//! the first log are `a`, of the second `b`; see the model `topic_change` for how writers notice.

use crate::explore::{Model, Step, breaks, full, holds};

const N: usize = 4;
const NONE: u8 = 255;
const A: u8 = 1;
const B: u8 = 2;
/// In an intent: retention took the range.
const LOST: u8 = 64;
/// An intent that ends a generation.
const SEAL: u8 = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    All,
    /// The new generation begins, whatever is open in the old one.
    NotClosed,
    /// Closed, but a writer that wakes late can go on in it.
    NotSealed,
    /// Closing leaves out objects of which nothing can be proven.
    NoEmptyObjects,
    /// Closing takes what the log has now.
    NoChecksums,
    /// After a truncation the new generation begins at the log's start.
    FromLogStart,
    /// The genesis of the new generation comes before the old one is closed.
    GenesisFirst,
    /// The topic's id is not asked before an intent.
    IdAtAssignmentOnly,
}

#[derive(Clone, Copy)]
struct Generations {
    lacks: Rule,
    truncated: bool,
    n: u8,
    crashes: u8,
    /// How often an operator starts a stopped writer with leave to begin a new generation.
    leaves: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum At {
    Start,
    Read,
    Announce,
    Intent,
    Again,
    AgainId,
    Object,
    Manifest,
    Close,
    CloseObject,
    CloseManifest,
    Seal,
    Genesis,
    Done,
    Stopped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Writer {
    at: At,
    generation: u8,
    /// May begin a new generation.
    leave: bool,
    from: u8,
    to: u8,
    /// What it holds: two bits for each record from `from` on.
    rows: u8,
    position: u8,
    epoch: u8,
}

impl Writer {
    fn start(leave: bool) -> Self {
        Self { at: At::Start, generation: 0, leave, from: 0, to: 0, rows: 0, position: 0, epoch: 0 }
    }

    fn to(self, at: At) -> Self {
        Self { at, ..self }
    }
}

#[derive(Clone, Copy, Hash, Default)]
struct Generation {
    /// By `from`: `to` and rows.
    intents: [(u8, u8); N + 1],
    /// By `from`: whether the object is there, and its rows.
    data: [(bool, u8); N],
    /// By `from`: `to`, and the leader epoch of the last record so far.
    manifests: [(u8, u8); N],
    gaps: [u8; N],
}

impl Generation {
    /// Where the manifests end, and their last leader epoch.
    fn head(&self, first: u8) -> (u8, u8) {
        let (mut head, mut epoch) = (first, 0);
        while (head as usize) < N && self.manifests[head as usize].0 != 0 {
            (head, epoch) = self.manifests[head as usize];
        }
        (head, epoch)
    }

    fn open(&self) -> Option<usize> {
        (0..N).find(|f| self.intents[*f].0 & !SEAL != 0 && self.manifests[*f].0 == 0)
    }

    fn archived(&self) -> [u8; N] {
        let mut archived = [0; N];
        for (from, (_, rows)) in self.data.iter().enumerate() {
            for i in (0..4).filter(|i| row(*rows, *i) != 0) {
                archived[from + i as usize] = row(*rows, i);
            }
        }
        archived
    }
}

#[derive(Clone, Hash)]
struct State {
    writers: [Writer; 2],
    log: [u8; N],
    low: u8,
    changed: bool,
    cut_at: u8,
    crashes: u8,
    leaves: u8,
    generations: [Generation; 2],
    /// Of the second generation: its first offset, and where the last manifest of the first ends that it names.
    genesis: (u8, u8),
}

fn row(rows: u8, i: u8) -> u8 {
    rows >> (2 * i) & 3
}

impl State {
    fn end(&self) -> u8 {
        (0..N).rfind(|o| self.log[*o] != 0).map_or(self.low, |o| o as u8 + 1)
    }

    fn diverged(&self, epoch: u8, position: u8) -> bool {
        self.cut_at != NONE && epoch == A && position > self.cut_at
    }

    fn head(&self, generation: u8) -> (u8, u8) {
        self.generations[generation as usize].head(if generation == 0 { 0 } else { self.genesis.0 })
    }
}

impl Generations {
    /// Whether the topic is another than the generation's.
    fn other_topic(&self, s: &State, generation: u8) -> bool {
        !self.truncated && s.changed != (generation == 1)
    }

    fn finds_change(&self, w: Writer) -> (&'static str, Writer) {
        if w.leave && w.generation == 0 {
            let at = if matches!(self.lacks, Rule::NotClosed | Rule::GenesisFirst) { At::Genesis } else { At::Close };
            ("finds another log, and begins to close the generation", Writer { at, ..Writer { ..w } })
        } else {
            ("finds another log, and stops", Writer { at: At::Stopped, ..Writer::start(false) })
        }
    }

    fn loaded(&self, s: &State, w: Writer) -> (&'static str, Writer) {
        let generation = u8::from(s.genesis.0 != NONE);
        let (head, epoch) = s.head(generation);
        let w = Writer { generation, from: head, position: head, epoch, ..w };
        let (to, rows) = s.generations[generation as usize].intents[head as usize];
        if self.other_topic(s, generation)
            || s.diverged(epoch, head)
            || s.end() < head
            || to & SEAL == 0 && s.end() < to & !LOST
        {
            return self.finds_change(w);
        }
        if head >= self.n {
            return ("has come to the end", w.to(At::Done));
        }
        if to & SEAL != 0 {
            return ("finds a sealed generation", self.finds_change(w).1);
        }
        if to != 0 {
            return ("finds an open intent", Writer { to, rows, ..w.to(At::Again) });
        }
        ("loads the ledger", w.to(At::Read))
    }

    /// What of an intent's records the log proves; `None` if the log has others.
    fn proven(&self, s: &State, from: u8, to: u8, rows: u8) -> (u8, bool) {
        let (mut proven, mut other) = (0, false);
        for i in 0..to - from {
            let (there, offset) = (s.log[(from + i) as usize], from + i);
            if offset >= s.low && there != 0 {
                let same = there == row(rows, i);
                other |= !same;
                if same || self.lacks == Rule::NoChecksums {
                    proven |= there << (2 * i);
                }
            }
        }
        (proven, other)
    }

    fn steps(&self, s: &State, w: Writer, out: &mut Vec<(&'static str, State, Writer)>) {
        let (from, g) = (w.from as usize, w.generation as usize);
        let start = Writer::start(w.leave);
        let mut push = |what, state: &State, writer| out.push((what, state.clone(), writer));
        match w.at {
            At::Done | At::Stopped => {}
            At::Start => {
                let (what, next) = self.loaded(s, w);
                push(what, s, next);
            }
            At::Read => {
                if w.position > w.from {
                    push("cuts", s, Writer { to: w.position, ..w.to(At::Announce) });
                }
                if w.position >= self.n {
                    if w.position == w.from {
                        push("has come to the end", s, w.to(At::Done));
                    }
                    return;
                }
                if w.position - w.from >= 2 {
                    return;
                }
                let record = s.log[w.position as usize];
                if s.diverged(w.epoch, w.position) {
                    let (what, next) = self.finds_change(w);
                    push(what, s, next);
                } else if w.position < s.low || w.position > s.end() {
                    if w.position == w.from && w.position < s.low {
                        push("cuts what retention took", s, Writer { to: s.low | LOST, ..w.to(At::Announce) });
                    } else {
                        push("is out of the log", s, start);
                    }
                } else if record != 0 {
                    let rows = w.rows | record << (2 * (w.position - w.from));
                    push("reads a record", s, Writer { rows, position: w.position + 1, epoch: record, ..w });
                }
            }
            At::Announce | At::AgainId
                if self.other_topic(s, w.generation) && self.lacks != Rule::IdAtAssignmentOnly =>
            {
                let (what, next) = self.finds_change(w);
                push(what, s, next);
            }
            At::Announce => push("asks for the topic's id", s, w.to(At::Intent)),
            At::AgainId => push("asks for the topic's id", s, w.to(At::Object)),
            At::Intent if s.generations[g].intents[from].0 != 0 => push("finds an intent", s, start),
            At::Intent => {
                let mut s = s.clone();
                s.generations[g].intents[from] = (w.to, w.rows);
                let at = if w.to & LOST != 0 { At::Manifest } else { At::Object };
                push("creates the intent", &s, w.to(at));
            }
            At::Again if w.to & LOST != 0 => push("has nothing to read again", s, w.to(At::Manifest)),
            At::Again => {
                let (rows, other) = self.proven(s, w.from, w.to, w.rows);
                if other {
                    let (what, next) = self.finds_change(w);
                    push(what, s, next);
                } else if s.end() < w.to {
                    push("is out of the log", s, start);
                } else {
                    push("reads the range again", s, Writer { rows, ..w.to(At::AgainId) });
                }
            }
            At::Object | At::CloseObject => {
                let mut s = s.clone();
                let object = &mut s.generations[g].data[from];
                let closes = w.at == At::CloseObject;
                let what = match object.0 {
                    true => "finds the object",
                    false if closes && w.rows == 0 && self.lacks == Rule::NoEmptyObjects => "leaves out the object",
                    false => {
                        *object = (true, w.rows);
                        if w.rows == 0 { "creates an empty object" } else { "creates the object" }
                    }
                };
                push(what, &s, w.to(if closes { At::CloseManifest } else { At::Manifest }));
            }
            At::Manifest | At::CloseManifest => {
                let closes = w.at == At::CloseManifest;
                let mut s = s.clone();
                if s.generations[g].manifests[from].0 != 0 {
                    push("finds a manifest", &s, if closes { w.to(At::Close) } else { start });
                    return;
                }
                let to = w.to & !LOST;
                let before = s.head(w.generation).1;
                let generation = &mut s.generations[g];
                let last = (0..4).rev().map(|i| row(generation.intents[from].1, i)).find(|r| *r != 0);
                let epoch = last.unwrap_or(before);
                generation.manifests[from] = (to, epoch);
                let missing = |i: &u8| row(generation.data[from].1, *i) == 0;
                generation.gaps[from] = (0..to - w.from).filter(missing).fold(0, |gaps, i| gaps | 1 << i);
                let next = Writer { generation: w.generation, from: to, position: to, epoch, ..start.to(At::Read) };
                push("creates the manifest", &s, if closes { w.to(At::Close) } else { next });
            }
            At::Close => {
                let old = &s.generations[0];
                if let Some(open) = old.open() {
                    let (to, intent) = old.intents[open];
                    // Of a topic that was made anew nothing can be read.
                    let rows = match to & LOST == 0 && self.truncated {
                        true => self.proven(s, open as u8, to, intent).0,
                        false => 0,
                    };
                    let at = if to & LOST == 0 { At::CloseObject } else { At::CloseManifest };
                    push("finds an open intent", s, Writer { from: open as u8, to, rows, ..w.to(at) });
                } else {
                    let head = s.head(0).0;
                    let after = if self.lacks == Rule::GenesisFirst { At::Start } else { At::Genesis };
                    let at = if self.lacks == Rule::NotSealed { after } else { At::Seal };
                    push("finds nothing open", s, Writer { from: head, rows: 0, ..w.to(at) });
                }
            }
            At::Seal => {
                let mut s = s.clone();
                let place = &mut s.generations[0].intents[from];
                let after = if self.lacks == Rule::GenesisFirst { start } else { w.to(At::Genesis) };
                if place.0 == 0 || place.0 & SEAL != 0 {
                    *place = (SEAL, 0);
                    push("seals the generation", &s, after);
                } else {
                    push("finds an intent", &s, w.to(At::Close));
                }
            }
            At::Genesis => {
                let mut s = s.clone();
                if s.genesis.0 == NONE {
                    let first = match self.lacks {
                        Rule::FromLogStart => s.low.min(s.cut_at),
                        _ if self.truncated => s.cut_at,
                        _ => s.low,
                    };
                    s.genesis = (first, s.head(0).0);
                }
                let next = if self.lacks == Rule::GenesisFirst { w.to(At::Close) } else { start };
                push("creates the second genesis, or finds one", &s, next);
            }
        }
    }
}

impl Model for Generations {
    type State = State;

    fn initial(&self) -> State {
        State {
            writers: [Writer::start(false); 2],
            log: [0; N],
            low: 0,
            changed: false,
            cut_at: NONE,
            crashes: self.crashes,
            leaves: self.leaves,
            generations: Default::default(),
            genesis: (NONE, 0),
        }
    }

    fn next(&self, s: &State, out: &mut Vec<(Step, State)>) {
        let mut steps = Vec::new();
        let sort = |s: &mut State| {
            if self.lacks == Rule::All {
                s.writers.sort();
            }
        };
        for i in 0..2 {
            let w = s.writers[i];
            let who = i as u8 + 1;
            self.steps(s, w, &mut steps);
            for (what, mut next, writer) in steps.drain(..) {
                next.writers[i] = writer;
                sort(&mut next);
                out.push(((who, what), next));
            }
            let mut again = |what, crashes, leaves, leave| {
                let mut next = State { crashes, leaves, ..s.clone() };
                next.writers[i] = Writer::start(leave);
                sort(&mut next);
                out.push(((who, what), next));
            };
            if s.crashes > 0 && !matches!(w.at, At::Start | At::Stopped) {
                again("crashes and starts again", s.crashes - 1, s.leaves, false);
            }
            if s.leaves > 0 && w.at == At::Stopped {
                again("is started with leave for a new generation", s.crashes, s.leaves - 1, true);
            }
        }
        let end = s.end();
        if end < self.n {
            let mut next = s.clone();
            next.log[end as usize] = if s.changed { B } else { A };
            out.push(((0, "a record is produced"), next));
        }
        if s.low < end {
            out.push(((0, "retention takes a record"), State { low: s.low + 1, ..s.clone() }));
        }
        if !s.changed && self.truncated {
            for at in s.low..end {
                let mut next = State { changed: true, cut_at: at, ..s.clone() };
                next.log[at as usize..].fill(0);
                out.push(((0, "the log is truncated"), next));
            }
        } else if !s.changed {
            let next = State { changed: true, log: [0; N], low: 0, ..s.clone() };
            out.push(((0, "the topic is deleted and made anew"), next));
        }
    }

    fn broken(&self, s: &State) -> Option<&'static str> {
        let archived = s.generations.map(|g| g.archived());
        if (0..N).any(|o| archived[0][o] != 0 && archived[0][o] == archived[1][o]) {
            return Some("a record is in the archive once");
        }
        if !self.truncated && (archived[0].contains(&B) || archived[1].contains(&A)) {
            return Some("a generation has the records of one topic");
        }
        for (generation, archived) in s.generations.iter().zip(&archived) {
            for from in (0..N).filter(|f| generation.manifests[*f].0 != 0) {
                for i in 0..generation.manifests[from].0 as usize - from {
                    if (archived[from + i] == 0) == (generation.gaps[from] >> i & 1 == 0) {
                        return Some("a record is in an object or in a gap");
                    }
                }
            }
            let dead = (s.cut_at.min(N as u8) as usize..N).find(|o| archived[*o] == A);
            if dead.is_some_and(|dead| archived[dead..].contains(&B)) {
                return Some("a generation has one history");
            }
        }
        if s.genesis.0 != NONE {
            if s.generations[0].open().is_some() {
                return Some("an old generation has nothing open");
            }
            if s.genesis.1 != s.head(0).0 {
                return Some("a genesis names the last manifest before it");
            }
            if self.truncated && s.genesis.0 > s.genesis.1 {
                return Some("no record is between generations");
            }
        }
        None
    }

    fn finished(&self, s: &State) -> bool {
        let newest = u8::from(s.genesis.0 != NONE);
        let told = s.changed && s.leaves == 0 && s.writers.iter().any(|w| w.at == At::Stopped);
        s.head(newest).0 >= self.n && s.generations.iter().all(|g| g.open().is_none()) || told
    }

    fn show(&self, s: &State) -> String {
        let name = |r: u8| [".", "a", "b", "?"][r as usize];
        let log: String = (0..self.n).map(|o| if o < s.low { "-" } else { name(s.log[o as usize]) }).collect();
        let mut text = format!("log {log}");
        for (g, generation) in s.generations.iter().enumerate() {
            if g == 1 && s.genesis.0 != NONE {
                text += &format!("; g2: genesis {} after ..{}", s.genesis.0, s.genesis.1);
            }
            for f in 0..=N {
                let rows = |rows: u8| (0..4).map(|i| row(rows, i)).filter(|r| *r != 0).map(name).collect::<String>();
                match generation.intents[f] {
                    (0, _) => {}
                    (to, _) if to & SEAL != 0 => text += &format!("; seal {f}"),
                    (to, intent) => text += &format!("; intent {f}..{} {}", to & !LOST, rows(intent)),
                }
                if f < N && generation.data[f].0 {
                    text += &format!("; object {f} {}", rows(generation.data[f].1));
                }
                if f < N && generation.manifests[f].0 != 0 {
                    text += &format!("; manifest {f}..{}", generation.manifests[f].0);
                }
            }
        }
        text
    }
}

const RECREATED: Generations = Generations { lacks: Rule::All, truncated: false, n: 2, crashes: 0, leaves: 1 };
const TRUNCATED: Generations = Generations { truncated: true, n: 3, ..RECREATED };

#[test]
fn generations_hold() {
    holds("generations, topic made anew", &RECREATED);
    holds("generations, log truncated", &TRUNCATED);
    if full() {
        holds("generations, topic made anew, 3 offsets", &Generations { n: 3, leaves: 2, ..RECREATED });
        holds("generations, topic made anew, a crash", &Generations { crashes: 1, leaves: 2, ..RECREATED });
        holds("generations, log truncated, a crash", &Generations { crashes: 1, leaves: 2, ..TRUNCATED });
    }
}

#[test]
fn generations_need_each_rule() {
    for (lacks, instance, invariant) in [
        (Rule::NotClosed, RECREATED, "an old generation has nothing open"),
        (Rule::NotSealed, RECREATED, "an old generation has nothing open"),
        (Rule::GenesisFirst, RECREATED, "an old generation has nothing open"),
        (Rule::NoEmptyObjects, RECREATED, "a record is in an object or in a gap"),
        (Rule::IdAtAssignmentOnly, RECREATED, "a generation has the records of one topic"),
        (Rule::NoChecksums, TRUNCATED, "a generation has one history"),
        (Rule::FromLogStart, TRUNCATED, "a record is in the archive once"),
    ] {
        breaks(&format!("generations, {lacks:?}"), &Generations { lacks, ..instance }, invariant);
    }
}
