//! A restore that is killed, resumed and started twice at once; and another one that comes later.
//!
//! | step | code |
//! |---|---|
//! | looks for a plan | `Restore::prepare` |
//! | writes the plan | `Restore::begin`: `Sink::open`, `Folder::create_plan` |
//! | takes a number | `Ahead::look`: `sent().last_run() + 1`; 1 for the process that has just written the plan |
//! | fences | `Ahead::look`: `Sink::open`, `init_transactions` |
//! | reads the progress, then lists | `Ahead::look`: `Sink::progress`, `Folder::sent` |
//! | checks | `Ahead::look`: the number; `Ahead::start`: `pieces::counted` |
//! | commits "nothing sent yet" | `Restore::take_run`: `Sink::begin_progress` |
//! | begins its run | `Restore::take_run`: `Folder::begin_run` |
//! | sends | `Going::flush`: `Sink::send`; for `plain`, `is_superseded` before |
//! | writes the list | `Folder::put_piece` |
//! | commits | `Sink::commit`: records and progress in one transaction |
//! | `plain`: begins the run that ends it | `Restore::end_plainly`, or `Restore::take_run` where all is sent |
//! | finishes | `Folder::finish` |
//! | other restore: reads the past | `audit::past` |
//!
//! A process that finds its number taken begins again with another number. A commit whose reply is lost ends the process: the same as being killed behind it. A killed process's open
//! transaction is never committed; a fenced one's neither. A batch has one or two of the plan's records: limits may differ
//! from run to run. The other restore is another command whose records are the same; it runs while no process of the
//! first does, and the first goes on only while it does not.

use crate::explore::{Model, Step, breaks, full, holds};

/// Records of the plan.
const S: u8 = 3;
const ALL: u8 = (1 << S) - 1;
const RUNS: usize = 8;
const NONE: u8 = 255;
/// In a final list: it has a record twice.
const TWICE: u8 = 128;
const P: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    All,
    /// The plan is written behind the first batch.
    PlanAfterFirstBatch,
    /// Progress is committed by itself, behind the transaction.
    ProgressOutside,
    /// A batch's list is written behind its commit.
    ListAfterCommit,
    /// A batch's list is written before it is sent.
    ListBeforeSend,
    /// A run leaves the one before alone.
    NoFencing,
    /// A run reads the progress, then fences.
    ProgressBeforeFencing,
    /// A run takes the lists as they were before it fenced.
    ListsBeforeFencing,
    /// Lists first, then the progress.
    ListsBeforeProgress,
    /// Whether another process began a run of the same number meanwhile is not looked at before the lists are judged.
    NumberNotChecked,
    /// A process whose number is taken stops.
    TakenStops,
    /// The process that wrote the plan takes its number afterwards, though what fences is open since before.
    NumberAfterFencing,
    /// `plain`: a run that has sent all writes the final list, though another may send the rest anew.
    EndWithoutRun,
    /// The last list takes every batch's list, of aborted ones too.
    AllListsCount,
    /// The other restore skips what is in the lists of finished restores alone.
    PastOfFinishedOnly,
    /// The other restore runs at the same time. The order of restores forbids it: see `turns`.
    BothAtOnce,
    /// `plain`: what is acknowledged in part counts.
    DoneWithoutAcknowledgement,
}

#[derive(Clone, Copy)]
struct Restore {
    lacks: Rule,
    transactional: bool,
    processes: usize,
    /// How often a process is started, or the other restore goes on.
    starts: u8,
    kills: u8,
    other: bool,
    /// Whether the broker may end an open transaction that takes too long.
    times_out: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum At {
    /// Not running.
    Off,
    Prepare,
    Plan,
    Number,
    Fence,
    Progress,
    List,
    First,
    Check,
    Begin,
    /// `plain`: begins the run that ends it.
    End,
    Send,
    Produce,
    Piece,
    Commit,
    CommitProgress,
    LatePiece,
    LatePlan,
    /// Writes the final list.
    Finish,
    /// Writes `done.json`.
    Done,
    /// Judged the restore to be damaged.
    Corrupt,
}

/// (start, end, run), the run from 0.
type Piece = (u8, u8, usize);

/// The lists and runs of a restore as somebody saw them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Sent {
    /// By run and start: the end, or 0.
    pieces: [[u8; S as usize]; RUNS],
    /// By run: its start.
    runs: [u8; RUNS],
}

impl Sent {
    const EMPTY: Self = Self { pieces: [[0; S as usize]; RUNS], runs: [NONE; RUNS] };

    fn last_run(&self) -> u8 {
        self.runs.iter().rposition(|start| *start != NONE).map_or(0, |i| i as u8 + 1)
    }

    /// Whether the last run begins behind the last record.
    fn ends(&self) -> bool {
        self.runs.iter().rfind(|start| **start != NONE) == Some(&S)
    }

    fn has_piece(&self) -> bool {
        !self.pieces().is_empty()
    }

    /// Each piece, in order.
    fn pieces(&self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (run, ends) in self.pieces.iter().enumerate() {
            let there = ends.iter().enumerate().filter(|(_, end)| **end != 0);
            pieces.extend(there.map(|(start, end)| (start as u8, *end, run)));
        }
        pieces.sort_unstable();
        pieces
    }

    /// `pieces::counted`: where the pieces that count end, and which they are.
    fn counted(&self) -> Option<(u8, Vec<Piece>)> {
        let redone = |start, run: usize| self.runs[run + 1..].iter().any(|s| *s != NONE && *s <= start);
        let mut kept = self.pieces();
        kept.retain(|(start, _, run)| !redone(*start, *run));
        let mut reached = 0;
        for (start, end, run) in &kept {
            if *start != reached || self.runs[*run] == NONE {
                return None;
            }
            reached = *end;
        }
        Some((reached, kept))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Process {
    at: At,
    number: u8,
    start: u8,
    /// It holds records from..to of the plan, and sent up to `produced` of them.
    from: u8,
    to: u8,
    produced: u8,
    /// Records in its open transaction.
    open: u8,
    fenced: bool,
    /// Has just written the plan.
    new: bool,
    /// What it skips: sent by the other restore.
    skips: u8,
    seen: Sent,
}

const OFF: Process = Process {
    at: At::Off,
    number: 0,
    start: 0,
    from: 0,
    to: 0,
    produced: 0,
    open: 0,
    fenced: false,
    new: false,
    skips: 0,
    seen: Sent::EMPTY,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Other {
    Off,
    Past,
    Send,
    Piece,
    Commit,
    Finish,
}

#[derive(Clone, Hash)]
struct State {
    processes: [Process; P],
    starts: u8,
    kills: u8,
    plan: bool,
    /// The group's offset; NONE before the first commit.
    progress: u8,
    store: Sent,
    /// By run: what it skipped.
    skipped: [u8; RUNS],
    /// The final list: its records, and the run that sent each.
    list: Option<(u8, [u8; S as usize])>,
    done: bool,
    /// How often a reader of committed records sees each record, and who sent it: by the first restore, by the other.
    visible: [[u8; S as usize]; 2],
    other: Other,
    other_skips: u8,
    other_listed: u8,
    other_done: Option<u8>,
}

fn range(from: u8, to: u8) -> u8 {
    ((1 << to) - 1) & !((1 << from) - 1)
}

impl State {
    /// Rows of the pieces that a later restore sees.
    fn listed(&self) -> u8 {
        let rows = |(start, end, run): Piece| range(start, end) & !self.skipped[run];
        self.store.pieces().into_iter().map(rows).fold(0, |listed, rows| listed | rows)
    }

    fn see(&mut self, by: usize, rows: u8) {
        for (i, count) in self.visible[by].iter_mut().enumerate() {
            *count = (*count + (rows >> i & 1)).min(2);
        }
    }

    fn seen(&self, by: usize) -> u8 {
        self.visible[by].iter().enumerate().fold(0, |seen, (i, count)| seen | u8::from(*count > 0) << i)
    }
}

impl Restore {
    /// The second question of `Restore::run`, and the first of `Going::start`.
    fn judged(&self, p: Process) -> (&'static str, Process) {
        let corrupt = ("finds lists that do not fit", Process { at: At::Corrupt, ..OFF });
        let mut seen = p.seen;
        let last = seen.last_run();
        if last >= p.number && self.lacks != Rule::NumberNotChecked {
            let next = if self.lacks == Rule::TakenStops { OFF } else { p.to(At::Number) };
            return ("finds another process's run", next);
        }
        let start = if self.transactional {
            match p.start {
                NONE if !seen.has_piece() => return ("finds no progress and no list", p.to(At::First)),
                NONE => return corrupt,
                progress => progress,
            }
        } else {
            match seen.counted() {
                Some((reached, _)) => reached,
                None => return corrupt,
            }
        };
        self.checked(Process { start, ..p }, &mut seen)
    }

    fn checked(&self, p: Process, seen: &mut Sent) -> (&'static str, Process) {
        let Some(run) = seen.runs.get_mut(p.number as usize - 1) else { return ("has no number left", OFF) };
        *run = p.start;
        if seen.counted().map(|c| c.0) != Some(p.start) {
            return ("finds lists that do not fit", Process { at: At::Corrupt, ..OFF });
        }
        let ended = self.transactional || self.lacks == Rule::EndWithoutRun || p.seen.ends();
        let at = if p.start >= S && ended { At::Finish } else { At::Begin };
        ("knows where to go on", p.to(at))
    }

    fn steps(&self, s: &State, i: usize, out: &mut Vec<(&'static str, State)>) {
        let p = s.processes[i];
        let run = (p.number as usize).saturating_sub(1);
        let mut push = |what, mut state: State, process: Process| {
            state.processes[i] = process;
            out.push((what, state));
        };
        let fenced = p.fenced && self.transactional;
        match p.at {
            At::Off | At::Corrupt => {}
            At::Prepare if s.done => push("finds the restore done", s.clone(), OFF),
            At::Prepare if s.plan => push("finds an unfinished plan", s.clone(), p.to(At::Number)),
            At::Prepare if self.lacks == Rule::PlanAfterFirstBatch => {
                // Its group is its own: nobody else knows it.
                let next = Process { number: 1, start: 0, from: 0, ..p.to(At::Send) };
                push("finds no plan", s.clone(), next);
            }
            At::Prepare => push("finds no plan", s.clone(), p.to(At::Plan)),
            At::Plan if s.plan => push("finds a plan", s.clone(), OFF),
            At::Plan => {
                let next = match self.lacks {
                    Rule::NumberAfterFencing => Process { new: true, ..p.to(At::Number) },
                    Rule::ListsBeforeProgress => Process { number: 1, ..p.to(At::List) },
                    _ => Process { number: 1, ..p.to(At::Progress) },
                };
                push("writes the plan", State { plan: true, ..s.clone() }, next);
            }
            At::Number => {
                let (number, seen) = (s.store.last_run() + 1, s.store);
                let seen = if self.lacks == Rule::ListsBeforeFencing { seen } else { Sent::EMPTY };
                let at = match self.lacks {
                    // What fences is open since before the plan.
                    Rule::NumberAfterFencing if p.new => At::Progress,
                    Rule::ProgressBeforeFencing => At::Progress,
                    _ => At::Fence,
                };
                push("takes a number", s.clone(), Process { number, seen, ..p.to(at) });
            }
            At::Fence => {
                let mut s = s.clone();
                if self.lacks != Rule::NoFencing {
                    for (j, other) in s.processes.iter_mut().enumerate() {
                        if j != i && other.at != At::Off && other.at != At::Prepare && other.at != At::Plan {
                            (other.fenced, other.open) = (true, 0);
                        }
                    }
                }
                let at = match self.lacks {
                    Rule::ProgressBeforeFencing | Rule::ListsBeforeProgress => At::List,
                    _ => At::Progress,
                };
                push("fences", s, Process { fenced: false, ..p.to(at) });
            }
            At::Progress => {
                let at = match self.lacks {
                    Rule::ProgressBeforeFencing => At::Fence,
                    Rule::ListsBeforeFencing | Rule::ListsBeforeProgress => At::Check,
                    _ => At::List,
                };
                push("reads the progress", s.clone(), Process { start: s.progress, ..p.to(at) });
            }
            At::List => {
                let at = match self.lacks {
                    Rule::ListsBeforeProgress => At::Progress,
                    _ => At::Check,
                };
                push("lists what was sent", s.clone(), Process { seen: s.store, ..p.to(at) });
            }
            At::Check => {
                let (what, next) = self.judged(p);
                push(what, s.clone(), next);
            }
            At::First if fenced => push("is fenced", s.clone(), OFF),
            At::First => {
                let mut seen = p.seen;
                let (_, next) = self.checked(Process { start: 0, ..p }, &mut seen);
                push("commits that nothing is sent", State { progress: 0, ..s.clone() }, next);
            }
            At::Begin if s.store.runs[run] != NONE => {
                let next = if self.lacks == Rule::TakenStops { OFF } else { p.to(At::Number) };
                push("finds another process's run", s.clone(), next);
            }
            At::Begin => {
                let mut s = s.clone();
                let mut seen = p.seen;
                s.store.runs[run] = p.start;
                seen.runs[run] = p.start;
                let skips = s.other_done.unwrap_or(0) | s.other_listed;
                s.skipped[run] = skips;
                let at = if p.start >= S { At::Finish } else { At::Send };
                push("begins its run", s, Process { skips, from: p.start, seen, ..p.to(at) });
            }
            At::End if run + 1 >= RUNS => push("has no number left", s.clone(), OFF),
            At::End if s.store.runs[run + 1] != NONE => push("finds a later run, and stops", s.clone(), OFF),
            At::End => {
                let mut s = s.clone();
                s.store.runs[run + 1] = S;
                push("begins the run that ends it", s, p.to(At::Finish));
            }
            At::Send if !self.transactional && s.store.last_run() > p.number => {
                push("finds a later run, and stops", s.clone(), OFF);
            }
            At::Send => {
                for to in p.from + 1..=(p.from + 2).min(S) {
                    let next = Process { to, produced: p.from, ..p };
                    let at = if self.lacks == Rule::ListBeforeSend { At::Piece } else { At::Produce };
                    push("takes a batch", s.clone(), next.to(at));
                }
            }
            At::Produce if fenced => push("is fenced", s.clone(), OFF),
            At::Produce if self.transactional => {
                let open = range(p.from, p.to) & !p.skips;
                let at = if self.lacks == Rule::ListAfterCommit { At::Commit } else { At::Piece };
                push("sends the batch", s.clone(), Process { open, ..p.to(at) });
            }
            At::Produce => {
                let mut s = s.clone();
                s.see(0, range(p.produced, p.produced + 1) & !p.skips);
                let produced = p.produced + 1;
                let all = produced == p.to || self.lacks == Rule::DoneWithoutAcknowledgement;
                let at = if all && self.lacks == Rule::ListBeforeSend {
                    At::Commit
                } else if all {
                    At::Piece
                } else {
                    At::Produce
                };
                push("sends a record", s, Process { produced, ..p.to(at) });
            }
            At::Piece | At::LatePiece => {
                let (mut s, mut seen) = (s.clone(), p.seen);
                s.store.pieces[run][p.from as usize] = p.to;
                seen.pieces[run][p.from as usize] = p.to;
                let next = Process { seen, ..p };
                let next = match p.at {
                    At::LatePiece => self.batch_done(next),
                    _ if self.lacks == Rule::ListBeforeSend => next.to(At::Produce),
                    _ => next.to(At::Commit),
                };
                push("writes the batch's list", s, next);
            }
            At::Commit if fenced => push("is fenced", s.clone(), OFF),
            At::Commit => {
                let mut s = s.clone();
                s.see(0, p.open);
                let next = Process { open: 0, ..p };
                if self.transactional && self.lacks != Rule::ProgressOutside {
                    s.progress = p.to;
                }
                let next = match self.lacks {
                    Rule::ProgressOutside => next.to(At::CommitProgress),
                    Rule::ListAfterCommit => next.to(At::LatePiece),
                    Rule::PlanAfterFirstBatch if p.from == 0 && !s.plan => next.to(At::LatePlan),
                    _ => self.batch_done(next),
                };
                push(if self.transactional { "commits" } else { "has the batch sent and listed" }, s, next);
            }
            At::CommitProgress if fenced => push("is fenced", s.clone(), OFF),
            At::CommitProgress => {
                push("commits the progress", State { progress: p.to, ..s.clone() }, self.batch_done(p));
            }
            At::LatePlan if s.plan => push("finds a plan", s.clone(), OFF),
            At::LatePlan => {
                let mut s = s.clone();
                (s.plan, s.store.runs[0]) = (true, 0);
                let mut next = self.batch_done(p);
                next.seen.runs[0] = 0;
                push("writes the plan", s, next);
            }
            At::Finish => {
                let kept = if self.lacks == Rule::AllListsCount {
                    Some((S, p.seen.pieces()))
                } else {
                    let mut seen = p.seen;
                    if let Some(run) = seen.runs.get_mut(run).filter(|start| **start == NONE) {
                        *run = p.start;
                    }
                    seen.counted()
                };
                let Some((S, kept)) = kept else {
                    push("finds lists that do not fit", s.clone(), Process { at: At::Corrupt, ..OFF });
                    return;
                };
                let (mut list, mut by) = (0, [0; S as usize]);
                for (start, end, run) in kept {
                    let rows = range(start, end) & !s.skipped[run];
                    list |= rows | if list & rows != 0 { TWICE } else { 0 };
                    for (_, by) in by.iter_mut().enumerate().filter(|(i, _)| rows >> i & 1 == 1) {
                        *by = run as u8 + 1;
                    }
                }
                let mut s = s.clone();
                let other = s.list.is_some_and(|there| there != (list, by));
                if other {
                    push("finds another final list", s, Process { at: At::Corrupt, ..OFF });
                    return;
                }
                s.list = s.list.or(Some((list, by)));
                push("writes the final list, or finds one", s, p.to(At::Done));
            }
            At::Done => push("finishes", State { done: true, ..s.clone() }, OFF),
        }
    }

    fn batch_done(&self, p: Process) -> Process {
        let at = match p.to < S {
            true => At::Send,
            false if self.transactional || self.lacks == Rule::EndWithoutRun => At::Finish,
            false => At::End,
        };
        Process { from: p.to, ..p.to(at) }
    }

    fn other(&self, s: &State, out: &mut Vec<(Step, State)>) {
        let to = |what, change: &dyn Fn(&mut State)| {
            let mut next = s.clone();
            change(&mut next);
            ((P as u8 + 1, what), next)
        };
        let off = s.processes.iter().all(|p| matches!(p.at, At::Off | At::Corrupt));
        out.push(match s.other {
            Other::Off => {
                if s.other_done.is_some() || s.starts == 0 || !off && self.lacks != Rule::BothAtOnce {
                    return;
                }
                to("other restore starts", &|s| (s.other, s.starts) = (Other::Past, s.starts - 1))
            }
            Other::Past => to("other restore reads what earlier ones listed", &|s| {
                s.other = Other::Send;
                s.other_skips = match s.list {
                    Some((list, _)) if s.done => list,
                    _ if self.lacks == Rule::PastOfFinishedOnly => 0,
                    _ => s.listed(),
                };
            }),
            Other::Send => to("other restore sends", &|s| s.other = Other::Piece),
            Other::Piece => to("other restore writes its list", &|s| {
                s.other = Other::Commit;
                s.other_listed |= ALL & !s.other_skips;
            }),
            Other::Commit => to("other restore commits", &|s| {
                s.other = Other::Finish;
                s.see(1, ALL & !s.other_skips);
            }),
            Other::Finish => to("other restore finishes", &|s| {
                (s.other, s.other_done) = (Other::Off, Some(ALL & !s.other_skips));
                s.other_listed = 0;
            }),
        });
        if s.kills > 0 && matches!(s.other, Other::Send | Other::Piece | Other::Commit) {
            out.push(to("other restore is killed", &|s| (s.other, s.kills) = (Other::Off, s.kills - 1)));
        }
    }
}

impl Process {
    fn to(self, at: At) -> Self {
        Self { at, ..self }
    }
}

impl Model for Restore {
    type State = State;

    fn initial(&self) -> State {
        State {
            processes: [OFF; P],
            starts: self.starts,
            kills: self.kills,
            plan: false,
            progress: NONE,
            store: Sent::EMPTY,
            skipped: [0; RUNS],
            list: None,
            done: false,
            visible: Default::default(),
            other: Other::Off,
            other_skips: 0,
            other_listed: 0,
            other_done: None,
        }
    }

    fn next(&self, s: &State, out: &mut Vec<(Step, State)>) {
        let mut steps = Vec::new();
        let sort = |s: &mut State| {
            if self.lacks == Rule::All {
                s.processes[..self.processes].sort();
            }
        };
        for i in 0..self.processes {
            let (p, who) = (s.processes[i], i as u8 + 1);
            self.steps(s, i, &mut steps);
            for (what, mut next) in steps.drain(..) {
                sort(&mut next);
                out.push(((who, what), next));
            }
            let mut change = |what, next: State, process| {
                let mut next = next;
                next.processes[i] = process;
                sort(&mut next);
                out.push(((who, what), next));
            };
            let free = s.other == Other::Off || self.lacks == Rule::BothAtOnce;
            // When all others have ended, the command is given once more.
            let last = s.processes.iter().all(|p| matches!(p.at, At::Off | At::Corrupt));
            if p.at == At::Off && (s.starts > 0 || last) && !s.done && free {
                let starts = s.starts.saturating_sub(1);
                change("starts", State { starts, ..s.clone() }, OFF.to(At::Prepare));
            }
            if p.at != At::Off && s.kills > 0 {
                change("is killed", State { kills: s.kills - 1, ..s.clone() }, OFF);
            }
            if p.open != 0 && s.kills > 0 && self.times_out {
                let next = State { kills: s.kills - 1, ..s.clone() };
                change("waits too long: its transaction is aborted", next, Process { fenced: true, open: 0, ..p });
            }
        }
        if self.other {
            self.other(s, out);
        }
    }

    fn broken(&self, s: &State) -> Option<&'static str> {
        let (ours, others) = (s.seen(0), s.seen(1));
        if self.transactional {
            let twice = (0..S as usize).any(|i| s.visible[0][i] + s.visible[1][i] > 1);
            if twice {
                return Some("a record is restored once");
            }
        }
        if s.processes.iter().any(|p| p.at == At::Corrupt) {
            return Some("nothing is called damaged that is not");
        }
        let over = s.processes.iter().all(|p| p.at == At::Off);
        if s.plan && over && s.other == Other::Off && s.kills == self.kills && !s.done {
            return Some("of processes that nobody kills one finishes");
        }
        if let Some((list, _)) = s.list.filter(|_| s.done) {
            if list & !ours != 0 || self.transactional && ours & !list != 0 {
                return Some("the list of a finished restore is what it restored");
            }
            // What it left to the other restore, it told.
            let told = s.skipped.iter().fold(0, |told, skipped| told | skipped);
            if (ours | told) != ALL {
                return Some("every record is restored, or told");
            }
            if s.other_done.is_some() && (ours | others) != ALL {
                return Some("every record is restored, or told");
            }
        }
        None
    }

    fn finished(&self, s: &State) -> bool {
        s.done
    }

    fn show(&self, s: &State) -> String {
        let mut text = format!("visible {:?}", s.visible[0]);
        if self.other {
            text += &format!(" {:?}", s.visible[1]);
        }
        if s.plan {
            text += "; plan";
        }
        if s.progress != NONE {
            text += &format!("; progress {}", s.progress);
        }
        for run in 0..RUNS {
            if s.store.runs[run] != NONE {
                text += &format!("; run {} from {}", run + 1, s.store.runs[run]);
            }
            for (start, end, _) in s.store.pieces().into_iter().filter(|piece| piece.2 == run) {
                text += &format!("; list {start}..{end} of run {}", run + 1);
            }
        }
        if let Some((_, by)) = s.list {
            text += &format!("; final list, by run {by:?}");
        }
        if s.done {
            text += "; done";
        }
        text
    }
}

const TRANSACTIONAL: Restore =
    Restore { lacks: Rule::All, transactional: true, processes: 2, starts: 4, kills: 2, other: false, times_out: true };
const PLAIN: Restore = Restore { transactional: false, times_out: false, ..TRANSACTIONAL };
const OTHER: Restore = Restore { other: true, times_out: false, ..TRANSACTIONAL };

#[test]
fn a_restore_holds() {
    holds("restore, transactional", &TRANSACTIONAL);
    holds("restore, plain", &PLAIN);
    holds("restore, another later", &OTHER);
    if full() {
        holds("restore, transactional, 3 processes", &Restore { processes: 3, ..TRANSACTIONAL });
        holds("restore, plain, 3 processes", &Restore { processes: 3, kills: 1, ..PLAIN });
        holds("restore, another later, 5 starts", &Restore { starts: 5, ..OTHER });
    }
}

#[test]
fn a_restore_needs_each_rule() {
    let once = "a record is restored once";
    let false_alarm = "nothing is called damaged that is not";
    let goes_on = "of processes that nobody kills one finishes";
    let list = "the list of a finished restore is what it restored";
    for (lacks, instance, invariant) in [
        (Rule::PlanAfterFirstBatch, TRANSACTIONAL, once),
        (Rule::ProgressOutside, TRANSACTIONAL, once),
        (Rule::ListAfterCommit, OTHER, once),
        (Rule::ListBeforeSend, PLAIN, list),
        (Rule::NoFencing, TRANSACTIONAL, once),
        (Rule::ProgressBeforeFencing, TRANSACTIONAL, once),
        (Rule::ListsBeforeFencing, TRANSACTIONAL, false_alarm),
        (Rule::ListsBeforeProgress, TRANSACTIONAL, false_alarm),
        (Rule::NumberNotChecked, TRANSACTIONAL, false_alarm),
        (Rule::TakenStops, TRANSACTIONAL, goes_on),
        (Rule::NumberAfterFencing, TRANSACTIONAL, false_alarm),
        (Rule::EndWithoutRun, PLAIN, false_alarm),
        (Rule::AllListsCount, TRANSACTIONAL, list),
        (Rule::PastOfFinishedOnly, OTHER, once),
        (Rule::BothAtOnce, OTHER, once),
        (Rule::DoneWithoutAcknowledgement, PLAIN, list),
    ] {
        breaks(&format!("restore, {lacks:?}"), &Restore { lacks, ..instance }, invariant);
    }
}
