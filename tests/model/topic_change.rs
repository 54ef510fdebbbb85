//! A topic that is deleted and made anew, or truncated by an unclean leader election, under a running archive.
//!
//! | step | code |
//! |---|---|
//! | asks for the log's ends | `Partition::start`: `watermarks` |
//! | asks for the topic's id, creates the genesis | `Partition::begin` |
//! | loads | `ledger::load`; `check_topic_id`; `recover` and `follow_log`: `plan::log_state` |
//! | reads a record | `Reader::poll`: the consumer says nothing of a topic that was made anew; librdkafka compares leader epochs from where it was told (`Consumer::read_from`) |
//! | asks for the topic's id, creates the intent | `Writer::announce` |
//! | reads again | `Writer::recover`: `read_again`, each record against its checksum |
//! | creates the object, the manifest | `Writer::create_object`, `Writer::commit` |
//!
//! Records of the first log are `a`, of the second `b`. A cut has one object; that all of them are created is the
//! matter of the model `ledger`.

use crate::explore::{Model, STUCK, Step, breaks, full, holds};

const N: usize = 4;
const NONE: u8 = 255;
const A: u8 = 1;
const B: u8 = 2;
/// In an intent: retention took the range.
const LOST: u8 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    All,
    /// The id is asked at assignment alone.
    IdAtAssignmentOnly,
    /// The brokers tell none.
    NoIds,
    /// The genesis' first offset is asked before the id, not between two questions for it.
    OffsetBeforeId,
    /// Recovery takes whatever the log has.
    NoChecksums,
    /// One checksum over a cut: what retention took makes it another.
    OneChecksumForAll,
    /// Reading goes on at an offset, whatever the leader epoch.
    NoEpochs,
    /// A truncated log is loaded anew, as one that retention has left.
    TruncationRestarts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// Deleted and made anew.
    Recreated,
    /// An unclean leader election: the log ends earlier, and goes on otherwise.
    Truncated,
}

#[derive(Clone, Copy)]
struct TopicChange {
    lacks: Rule,
    event: Event,
    n: u8,
    crashes: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum At {
    Start,
    Load,
    Id,
    Genesis,
    Read,
    Announce,
    Intent,
    Again,
    AgainId,
    Object,
    Manifest,
    Done,
    /// For a reason that is a change of the topic.
    Stopped,
    /// Without one.
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Writer {
    at: At,
    /// Topic id and log start as told.
    id: u8,
    low: u8,
    from: u8,
    to: u8,
    /// What it holds: two bits for each record from `from` on.
    rows: u8,
    /// Where its consumer is, and the leader epoch (A or B) of the record before.
    position: u8,
    epoch: u8,
}

impl Writer {
    fn at(at: At) -> Self {
        Self { at, id: 0, low: 0, from: 0, to: 0, rows: 0, position: 0, epoch: 0 }
    }

    fn to(self, at: At) -> Self {
        Self { at, ..self }
    }
}

#[derive(Clone, Hash)]
struct State {
    writers: [Writer; 2],
    log: [u8; N],
    low: u8,
    /// Of the topic: 0, then 1.
    id: u8,
    /// Where it was truncated.
    cut_at: u8,
    changed: bool,
    crashes: u8,
    /// First offset and topic id.
    genesis: (u8, u8),
    /// By `from`: `to` and rows.
    intents: [(u8, u8); N],
    data: [(bool, u8); N],
    /// By `from`: `to`, and the leader epoch of the last record so far.
    manifests: [(u8, u8); N],
    /// By `from`: rows of the range that are told to be missing.
    gaps: [u8; N],
}

fn row(rows: u8, i: u8) -> u8 {
    rows >> (2 * i) & 3
}

impl State {
    fn end(&self) -> u8 {
        (0..N).rfind(|o| self.log[*o] != 0).map_or(self.low, |o| o as u8 + 1)
    }

    /// Where the ledger ends, and its last leader epoch.
    fn head(&self) -> (u8, u8) {
        let (mut head, mut epoch) = (self.genesis.0, 0);
        while (head as usize) < N && self.manifests[head as usize].0 != 0 {
            (head, epoch) = self.manifests[head as usize];
        }
        (head, epoch)
    }

    /// Whether a consumer behind a record of this epoch is where the log is not what it was.
    fn diverged(&self, epoch: u8, position: u8) -> bool {
        self.cut_at != NONE && epoch == A && position > self.cut_at
    }
}

impl TopicChange {
    fn is_other(&self, id: u8, now: u8) -> bool {
        self.lacks != Rule::NoIds && id != now
    }

    fn loaded(&self, s: &State, w: Writer) -> (&'static str, Writer) {
        let stopped = Writer::at(At::Stopped);
        if s.genesis.0 == NONE {
            return ("finds no ledger", w.to(At::Id));
        }
        if self.is_other(s.genesis.1, s.id) {
            return ("finds another topic id, and stops", stopped);
        }
        let (head, epoch) = s.head();
        if head >= self.n {
            return ("has come to the end", Writer::at(At::Done));
        }
        let w = Writer { from: head, position: head, epoch, ..Writer::at(At::Read) };
        let (to, rows) = s.intents[head as usize];
        // With ids and leader epochs this is told anyway, later; without, it is what can be seen.
        if s.end() < to & !LOST || s.end() < head {
            return ("finds that the log ends too early, and stops", stopped);
        }
        if to != 0 {
            return ("finds an open intent", Writer { at: At::Again, to, rows, ..w });
        }
        ("loads the ledger", w)
    }

    fn steps(&self, s: &State, w: Writer, out: &mut Vec<(&'static str, State, Writer)>) {
        let from = w.from as usize;
        let (start, stopped) = (Writer::at(At::Start), Writer::at(At::Stopped));
        let mut push = |what, state: &State, writer| out.push((what, state.clone(), writer));
        match w.at {
            At::Done | At::Stopped | At::Failed => {}
            At::Start => {
                push("asks for the topic's id", s, Writer { id: s.id, low: s.low, ..Writer::at(At::Load) });
            }
            At::Load => {
                let (what, next) = self.loaded(s, w);
                push(what, s, next);
            }
            // Between the first question for the id and this one, the log's ends were asked.
            At::Id if self.lacks == Rule::OffsetBeforeId => {
                push("asks for the topic's id", s, Writer { id: s.id, ..w.to(At::Genesis) });
            }
            At::Id if self.is_other(w.id, s.id) => push("finds another topic id", s, start),
            At::Id => push("asks for the topic's id again", s, w.to(At::Genesis)),
            At::Genesis => {
                let mut s = s.clone();
                if s.genesis.0 == NONE {
                    s.genesis = (w.low, w.id);
                }
                push("creates the genesis, or finds one", &s, w.to(At::Load));
            }
            At::Read => {
                if w.position > w.from {
                    push("cuts", s, Writer { at: At::Announce, to: w.position, ..w });
                }
                if w.position >= self.n || w.position - w.from >= 2 {
                    return;
                }
                let record = s.log[w.position as usize];
                if self.lacks != Rule::NoEpochs && s.diverged(w.epoch, w.position) {
                    if self.lacks == Rule::TruncationRestarts {
                        push("finds that the log was truncated, and begins anew", s, start);
                    } else {
                        push("finds that the log was truncated, and stops", s, stopped);
                    }
                } else if w.position < s.low || w.position > s.end() {
                    // What was read so far is cut by the step above.
                    if w.position == w.from && w.position < s.low {
                        push("cuts what retention took", s, Writer { at: At::Announce, to: s.low | LOST, ..w });
                    } else {
                        push("is out of the log", s, start);
                    }
                } else if record != 0 {
                    let rows = w.rows | record << (2 * (w.position - w.from));
                    push("reads a record", s, Writer { rows, position: w.position + 1, epoch: record, ..w });
                }
            }
            At::Announce if self.lacks != Rule::IdAtAssignmentOnly && self.is_other(s.genesis.1, s.id) => {
                push("finds another topic id, and stops", s, stopped);
            }
            At::Announce => push("asks for the topic's id", s, w.to(At::Intent)),
            At::Intent if s.intents[from].0 != 0 => push("finds an intent", s, start),
            At::Intent => {
                let mut s = s.clone();
                s.intents[from] = (w.to, w.rows);
                let at = if w.to & LOST != 0 { At::Manifest } else { At::Object };
                push("creates the intent", &s, w.to(at));
            }
            At::Again if w.to & LOST != 0 => push("has nothing to read again", s, w.to(At::Manifest)),
            At::Again => {
                let (mut rows, mut gone, mut other) = (0, false, false);
                for i in 0..w.to - w.from {
                    let (there, offset) = (s.log[(w.from + i) as usize], w.from + i);
                    if offset < s.low {
                        gone = true;
                    } else if there == 0 {
                        push("is out of the log", s, start);
                        return;
                    } else {
                        other |= there != row(w.rows, i);
                        rows |= there << (2 * i);
                    }
                }
                let stops = match self.lacks {
                    Rule::NoChecksums => false,
                    Rule::OneChecksumForAll => other || gone,
                    _ => other,
                };
                if stops {
                    let end = if other { stopped } else { Writer::at(At::Failed) };
                    push("reads other records than the intent names, and stops", s, end);
                } else {
                    push("reads the range again", s, Writer { rows, ..w.to(At::AgainId) });
                }
            }
            At::AgainId if self.lacks != Rule::IdAtAssignmentOnly && self.is_other(s.genesis.1, s.id) => {
                push("finds another topic id, and stops", s, stopped);
            }
            At::AgainId => push("asks for the topic's id", s, w.to(At::Object)),
            At::Object => {
                let mut s = s.clone();
                let what = if s.data[from].0 { "finds the object" } else { "creates the object" };
                if !s.data[from].0 {
                    s.data[from] = (true, w.rows);
                }
                push(what, &s, w.to(At::Manifest));
            }
            At::Manifest if s.manifests[from].0 != 0 => push("finds a manifest", s, start),
            At::Manifest => {
                let (mut s, to) = (s.clone(), w.to & !LOST);
                let last = (0..4).rev().map(|i| row(s.intents[from].1, i)).find(|r| *r != 0);
                s.manifests[from] = (to, last.unwrap_or(s.head().1));
                let missing = |i: &u8| row(s.data[from].1, *i) == 0;
                s.gaps[from] = (0..to - w.from).filter(missing).fold(0, |gaps, i| gaps | 1 << i);
                // A writer that recovered reads from there as one that did not.
                let epoch = s.manifests[from].1;
                let next = Writer { from: to, position: to, epoch, ..Writer::at(At::Read) };
                push("creates the manifest", &s, if to >= self.n { Writer::at(At::Done) } else { next });
            }
        }
    }
}

impl Model for TopicChange {
    type State = State;

    fn initial(&self) -> State {
        State {
            writers: [Writer::at(At::Start); 2],
            log: [0; N],
            low: 0,
            id: 0,
            cut_at: NONE,
            changed: false,
            crashes: self.crashes,
            genesis: (NONE, 0),
            intents: Default::default(),
            data: Default::default(),
            manifests: Default::default(),
            gaps: Default::default(),
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
            self.steps(s, w, &mut steps);
            for (what, mut next, writer) in steps.drain(..) {
                next.writers[i] = writer;
                sort(&mut next);
                out.push(((i as u8 + 1, what), next));
            }
            if s.crashes > 0 && w.at != At::Start {
                let mut next = s.clone();
                next.crashes -= 1;
                next.writers[i] = Writer::at(At::Start);
                sort(&mut next);
                out.push(((i as u8 + 1, "crashes and starts again"), next));
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
        if !s.changed && self.event == Event::Recreated {
            let next = State { changed: true, log: [0; N], low: 0, id: 1, ..s.clone() };
            out.push(((0, "the topic is deleted and made anew"), next));
        }
        if !s.changed && self.event == Event::Truncated {
            for at in s.low..end {
                let mut next = State { changed: true, cut_at: at, ..s.clone() };
                next.log[at as usize..].fill(0);
                out.push(((0, "the log is truncated"), next));
            }
        }
    }

    fn broken(&self, s: &State) -> Option<&'static str> {
        let mut archived = [0; N];
        for (from, (_, rows)) in s.data.iter().enumerate() {
            for i in 0..4 {
                if row(*rows, i) != 0 {
                    archived[from + i as usize] = row(*rows, i);
                }
            }
        }
        let strange = if s.genesis.1 == 0 { B } else { A };
        if self.event == Event::Recreated && archived.contains(&strange) {
            return Some("an archive has the records of one topic");
        }
        if s.cut_at != NONE {
            let dead = (s.cut_at as usize..N).find(|o| archived[*o] == A);
            if dead.is_some_and(|dead| archived[dead..].contains(&B)) {
                return Some("an archive has one history");
            }
        }
        if s.genesis.0 != NONE && s.genesis.1 == s.id && s.low < s.genesis.0 {
            return Some("an archive begins at the log's start");
        }
        for (from, (to, _)) in s.manifests.iter().enumerate().filter(|(_, m)| m.0 != 0) {
            for i in 0..*to as usize - from {
                if (archived[from + i] == 0) == (s.gaps[from] >> i & 1 == 0) {
                    return Some("a record is in an object or in a gap");
                }
            }
        }
        None
    }

    fn finished(&self, s: &State) -> bool {
        let open = (0..N).any(|f| s.intents[f].0 != 0 && s.manifests[f].0 == 0);
        let told = s.changed && s.writers.iter().any(|w| w.at == At::Stopped);
        s.genesis.0 != NONE && s.head().0 >= self.n && !open || told
    }

    fn show(&self, s: &State) -> String {
        let name = |r: u8| [".", "a", "b", "?"][r as usize];
        let log: String = (0..self.n).map(|o| if o < s.low { "-" } else { name(s.log[o as usize]) }).collect();
        let mut text = format!("log {log}");
        if s.genesis.0 != NONE {
            text += &format!("; genesis {} of topic {}", s.genesis.0, s.genesis.1);
        }
        for f in 0..N {
            let rows = |rows: u8| (0..4).map(|i| row(rows, i)).filter(|r| *r != 0).map(name).collect::<String>();
            if s.intents[f].0 != 0 {
                text += &format!("; intent {f}..{} {}", s.intents[f].0 & !LOST, rows(s.intents[f].1));
            }
            if s.data[f].0 {
                text += &format!("; object {f} {}", rows(s.data[f].1));
            }
            if s.manifests[f].0 != 0 {
                text += &format!("; manifest {f}..{}", s.manifests[f].0);
            }
        }
        text
    }
}

const RECREATED: TopicChange = TopicChange { lacks: Rule::All, event: Event::Recreated, n: 3, crashes: 0 };
const TRUNCATED: TopicChange = TopicChange { event: Event::Truncated, ..RECREATED };

#[test]
fn a_topic_that_changes_is_noticed() {
    holds("topic made anew", &RECREATED);
    holds("log truncated", &TRUNCATED);
    if full() {
        holds("topic made anew, a crash", &TopicChange { crashes: 1, ..RECREATED });
        holds("log truncated, a crash", &TopicChange { crashes: 1, ..TRUNCATED });
        holds("topic made anew, 4 offsets", &TopicChange { n: 4, ..RECREATED });
        holds("log truncated, 4 offsets", &TopicChange { n: 4, ..TRUNCATED });
    }
}

#[test]
fn noticing_needs_each_rule() {
    for (lacks, instance, invariant) in [
        (Rule::IdAtAssignmentOnly, RECREATED, "an archive has the records of one topic"),
        (Rule::NoIds, RECREATED, "an archive has the records of one topic"),
        (Rule::OffsetBeforeId, RECREATED, "an archive begins at the log's start"),
        (Rule::NoChecksums, TRUNCATED, "an archive has one history"),
        (Rule::OneChecksumForAll, TopicChange { crashes: 1, ..RECREATED }, STUCK),
        (Rule::NoEpochs, TRUNCATED, "an archive has one history"),
        (Rule::TruncationRestarts, TRUNCATED, STUCK),
    ] {
        breaks(&format!("topic change, {lacks:?}"), &TopicChange { lacks, ..instance }, invariant);
    }
}
