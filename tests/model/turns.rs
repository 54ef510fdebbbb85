//! Restores of the same records at the same time: the order of restores, making way, and `--take-over`.
//!
//! | step | code |
//! |---|---|
//! | looks for a plan, writes one | `Restore::prepare`, `Restore::begin` |
//! | has had its turn | `turn::take`: a run has begun |
//! | lists the order, looks who is over | `turn::open` |
//! | takes the next place | `turn::before`: `order-<n>.json`, created only if absent |
//! | makes way | `turn::take`: `Folder::close` of run 1, then `Folder::finish` |
//! | takes a number, fences, looks | `Ahead::look`, `Ahead::start`; in `restore` step by step |
//! | begins its run | `Restore::take_run` |
//! | reads what another did | `audit::past` |
//! | sends, lists, commits, finishes | as in `restore` |
//! | ends another | `Restore::end`: `Ahead::look`, `Folder::close`, `Folder::finish` |
//!
//! Each restore has a command of its own; all read the same object, one selects less of it. A batch has one record, or
//! none where it is not selected. Several processes may have the
//! same command. Transactional: what is sent twice is seen twice. That `restore` refuses at once what overlaps
//! (`Draft::overlapping`) is left out: it only spares a plan. So is `open_from`: what is over stays over.

use crate::explore::{Model, Step, breaks, full, holds};

/// Records.
const S: u8 = 2;
const ALL: u8 = (1 << S) - 1;
const RUNS: usize = 6;
const NONE: u8 = 255;
const R: usize = 3;
/// What each restore selects.
const SELECTS: [u8; R] = [ALL, 1, ALL];
const P: usize = 3;
const ORDERS: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    All,
    /// A restore sends without a look at others.
    NoTurn,
    /// It looks who is open, then takes whichever place is the next by then.
    LookThenPlace,
    /// A place that is taken is written over.
    PlaceTwice,
    /// It makes way for any open one, of a later place too.
    WayForAll,
    /// It makes way as long as nothing is listed: behind the last run.
    WayBehindRun,
    /// What others did is read before it has its turn.
    PastBeforeTurn,
    /// Who takes over leaves the other's producer alone.
    EndWithoutFencing,
    /// Who takes over looks how far the other is, then fences.
    EndLooksBeforeFencing,
    /// Who takes over writes the last list, and no run that closes.
    EndWithoutRun,
    /// Who takes over and finds its number taken takes the next, and does not fence again.
    EndAtNextNumber,
}

#[derive(Clone, Copy)]
struct Turns {
    lacks: Rule,
    restores: usize,
    processes: usize,
    starts: u8,
    kills: u8,
    /// The last restore's command has --take-over.
    take: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum At {
    Off,
    /// Looks which restore it has to end.
    Take,
    Prepare,
    Plan,
    Turn,
    Newest,
    Walk,
    Place,
    Way,
    WayFinish,
    Number,
    Fence,
    Look,
    Begin,
    Past,
    Send,
    List,
    Commit,
    Finish,
    Done,
    Close,
    CloseFinish,
    Corrupt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Process {
    at: At,
    /// Its command.
    own: u8,
    /// The restore that it ends first, or its own.
    of: u8,
    takes: bool,
    /// Has just written the plan.
    new: bool,
    number: u8,
    start: u8,
    from: u8,
    fenced: bool,
    /// What it knows to be sent by others; the next of them.
    skips: u8,
    next: u8,
    /// The order as it saw it: the last place, where it looks, and which places are open.
    newest: u8,
    look: u8,
    open: u8,
}

const OFF: Process = Process {
    at: At::Off,
    own: 0,
    of: 0,
    takes: false,
    new: false,
    number: 0,
    start: 0,
    from: 0,
    fenced: false,
    skips: 0,
    next: 0,
    newest: 0,
    look: 0,
    open: 0,
};

impl Process {
    fn to(self, at: At) -> Self {
        Self { at, ..self }
    }

    /// It has its turn.
    fn ahead(self) -> Self {
        if self.new { Self { number: 1, new: false, ..self.to(At::Look) } } else { self.to(At::Number) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Folder {
    plan: bool,
    /// By run, from 0: where it began.
    runs: [u8; RUNS],
    /// The runs that close it.
    closing: u8,
    /// By run: its lists' records, and those of them that were sent.
    pieces: [u8; RUNS],
    rows: [u8; RUNS],
    /// In Kafka.
    progress: u8,
    list: Option<u8>,
    done: bool,
    /// Made way; was taken over.
    way: bool,
    taken: bool,
}

const EMPTY: Folder = Folder {
    plan: false,
    runs: [NONE; RUNS],
    closing: 0,
    pieces: [0; RUNS],
    rows: [0; RUNS],
    progress: 0,
    list: None,
    done: false,
    way: false,
    taken: false,
};

impl Folder {
    fn is_over(&self) -> bool {
        self.done || self.closing != 0
    }

    fn last_run(&self) -> u8 {
        self.runs.iter().rposition(|start| *start != NONE).map_or(0, |i| i as u8 + 1)
    }

    /// `pieces::counted`, of the runs up to `last`, which began at `start`: where they end, and their records.
    fn counted(&self, last: u8, start: u8) -> Option<(u8, u8)> {
        let mut runs = self.runs;
        *runs.get_mut(last as usize - 1)? = start;
        let (mut reached, mut rows) = (0, 0);
        for record in 0..S {
            let mut by = (0..last as usize).filter(|run| self.pieces[*run] >> record & 1 == 1);
            let kept = by.find(|run| !runs[run + 1..last as usize].iter().any(|s| *s != NONE && *s <= record));
            let Some(run) = kept else { continue };
            if reached != record {
                return None;
            }
            reached = record + 1;
            rows |= self.rows[run] & 1 << record;
        }
        Some((reached, rows))
    }

    /// `audit::past`.
    fn did(&self) -> u8 {
        let last = self.last_run();
        match self.list {
            Some(list) if self.done => list,
            _ if self.closing != 0 => self.counted(last, self.runs[last as usize - 1]).map_or(0, |c| c.1),
            _ => self.rows.iter().fold(0, |all, rows| all | rows),
        }
    }

    /// Writes the last list; whether one that is there is the same.
    fn write(&mut self, rows: u8) -> bool {
        *self.list.get_or_insert(rows) == rows
    }
}

#[derive(Clone, Hash)]
struct State {
    processes: [Process; P],
    folders: [Folder; R],
    /// By place: the restore, from 1.
    order: [u8; ORDERS],
    visible: [u8; S as usize],
    starts: u8,
    kills: u8,
}

impl Turns {
    fn lacks(&self, rule: Rule) -> bool {
        self.lacks == rule
    }

    fn take(&self, s: &State, p: Process) -> (&'static str, Process) {
        let next =
            (p.next..R as u8).find(|q| *q != p.own && s.folders[*q as usize].plan && !s.folders[*q as usize].is_over());
        match next {
            Some(of) => {
                let at = if self.lacks(Rule::EndLooksBeforeFencing) { At::Look } else { At::Number };
                let number = s.folders[of as usize].last_run() + 1;
                ("finds a restore to take over", Process { of, number, next: of + 1, ..p.to(at) })
            }
            None => ("finds none to take over", Process { of: p.own, next: 0, takes: false, ..p.to(At::Prepare) }),
        }
    }

    fn look(&self, s: &State, p: Process) -> (&'static str, Process) {
        let folder = &s.folders[p.of as usize];
        if folder.closing != 0 {
            return ("finds it closed", if p.takes { p.to(At::Take) } else { OFF });
        }
        if folder.last_run() >= p.number {
            return ("finds another process's run", p.to(At::Number));
        }
        if p.number as usize > RUNS {
            return ("has no number left", OFF);
        }
        let start = folder.progress;
        if folder.counted(p.number, start).map(|c| c.0) != Some(start) {
            return ("finds lists that do not fit", OFF.to(At::Corrupt));
        }
        let at = match p.takes {
            true if self.lacks(Rule::EndLooksBeforeFencing) => At::Fence,
            true => At::Close,
            false if start >= S => At::Finish,
            false => At::Begin,
        };
        ("looks how far it is", Process { start, from: start, ..p.to(at) })
    }

    fn steps(&self, s: &State, i: usize, out: &mut Vec<(&'static str, State)>) {
        let p = s.processes[i];
        let of = p.of as usize;
        let folder = s.folders[of];
        let run = (p.number as usize).wrapping_sub(1);
        let mut push = |what, change: &dyn Fn(&mut State), process: Process| {
            let mut state = s.clone();
            change(&mut state);
            state.processes[i] = process;
            out.push((what, state));
        };
        let same = |_: &mut State| {};
        match p.at {
            At::Off | At::Corrupt => {}
            At::Take => {
                let (what, next) = self.take(s, p);
                push(what, &same, next);
            }
            At::Prepare if folder.is_over() => push("finds it over", &same, OFF),
            At::Prepare if folder.plan => push("finds an unfinished plan", &same, self.past_first(s, p.to(At::Turn))),
            At::Prepare => push("finds no plan", &same, p.to(At::Plan)),
            At::Plan if folder.plan => push("finds a plan", &same, OFF),
            At::Plan => {
                let next = self.past_first(s, Process { new: true, fenced: false, ..p.to(At::Turn) });
                push("writes the plan", &|s| s.folders[of].plan = true, next);
            }
            At::Turn if self.lacks(Rule::NoTurn) => push("takes no turn", &same, p.ahead()),
            At::Turn if folder.last_run() > 0 && !self.lacks(Rule::WayBehindRun) => {
                push("has had its turn", &same, p.ahead());
            }
            At::Turn => push("asks for its turn", &same, p.to(At::Newest)),
            At::Newest => {
                let newest = s.order.iter().filter(|r| **r != 0).count() as u8;
                let at = if newest == 0 { At::Place } else { At::Walk };
                push("lists the order", &same, Process { newest, look: newest, open: 0, ..p.to(at) });
            }
            At::Walk => {
                let there = s.order[p.look as usize - 1];
                let over = s.folders[there as usize - 1].is_over();
                let open = p.open | u8::from(!over) << (p.look - 1);
                let look = p.look - 1;
                let at = if look == 0 { At::Place } else { At::Walk };
                push("looks whether one is over", &same, Process { look, open, ..p.to(at) });
            }
            At::Place => self.place(s, i, out),
            At::Way => {
                let run = if self.lacks(Rule::WayBehindRun) { folder.last_run() as usize } else { 0 };
                let listed = folder.pieces.iter().any(|pieces| *pieces != 0);
                if run >= RUNS || listed || folder.runs[run] != NONE {
                    push("finds that another had its turn", &same, p.ahead());
                    return;
                }
                let close = |s: &mut State| {
                    let folder = &mut s.folders[of];
                    (folder.runs[run], folder.closing, folder.way) = (0, folder.closing | 1 << run, true);
                };
                push("makes way", &close, p.to(At::WayFinish));
            }
            At::WayFinish => self.finish(s, i, 0, OFF, out),
            At::Number => push("takes a number", &same, Process { number: folder.last_run() + 1, ..p.to(At::Fence) }),
            At::Fence => {
                let fence = |s: &mut State| {
                    for (j, other) in s.processes.iter_mut().enumerate() {
                        other.fenced |= j != i && other.at != At::Off && other.of == p.of;
                    }
                };
                let at = if p.takes && self.lacks(Rule::EndLooksBeforeFencing) { At::Close } else { At::Look };
                let next = Process { fenced: false, ..p.to(at) };
                match p.takes && self.lacks(Rule::EndWithoutFencing) {
                    true => push("does not fence", &same, next),
                    false => push("fences", &fence, next),
                }
            }
            At::Look => {
                let (what, next) = self.look(s, p);
                push(what, &same, next);
            }
            At::Begin if folder.runs[run] != NONE => push("finds another process's run", &same, p.to(At::Number)),
            At::Begin => {
                let past = if self.lacks(Rule::PastBeforeTurn) { At::Send } else { At::Past };
                push("begins its run", &|s| s.folders[of].runs[run] = p.start, Process { next: 0, ..p.to(past) });
            }
            At::Past => {
                let did = if p.next == p.own { 0 } else { s.folders[p.next as usize].did() };
                let next = p.next + 1;
                let at = if next as usize == R { At::Send } else { At::Past };
                push("reads what another did", &same, Process { skips: p.skips | did, next, ..p.to(at) });
            }
            At::Send if p.fenced => push("is fenced", &same, OFF),
            At::Send => push("sends a batch", &same, p.to(At::List)),
            At::List => {
                let sent = 1 << p.from & !p.skips & SELECTS[of];
                let list = |s: &mut State| {
                    let folder = &mut s.folders[of];
                    folder.pieces[run] |= 1 << p.from;
                    folder.rows[run] |= sent;
                };
                push("writes the batch's list", &list, p.to(At::Commit));
            }
            At::Commit if p.fenced => push("is fenced", &same, OFF),
            At::Commit => {
                let from = p.from + 1;
                let commit = |s: &mut State| {
                    s.visible[p.from as usize] += (!p.skips & SELECTS[of]) >> p.from & 1;
                    s.folders[of].progress = from;
                };
                push("commits", &commit, Process { from, ..p.to(if from == S { At::Finish } else { At::Send }) });
            }
            At::Finish => {
                let Some((S, rows)) = folder.counted(p.number, if p.start >= S { S } else { p.start }) else {
                    push("finds lists that do not fit", &same, OFF.to(At::Corrupt));
                    return;
                };
                let mut next = s.clone();
                next.processes[i] = if next.folders[of].write(rows) { p.to(At::Done) } else { OFF.to(At::Corrupt) };
                out.push(("writes the last list, or finds one", next));
            }
            At::Done => push("finishes", &|s| s.folders[of].done = true, OFF),
            At::Close if self.lacks(Rule::EndWithoutRun) => {
                push("takes it over", &|s| s.folders[of].taken = true, p.to(At::CloseFinish));
            }
            At::Close => {
                let (mut run, mut number) = (run, p.number);
                if folder.runs[run] != NONE {
                    if !self.lacks(Rule::EndAtNextNumber) || run + 1 == RUNS {
                        push("finds another process's run", &same, p.to(At::Number));
                        return;
                    }
                    (run, number) = (run + 1, number + 1);
                }
                let close = |s: &mut State| {
                    let folder = &mut s.folders[of];
                    (folder.runs[run], folder.closing, folder.taken) = (p.start, folder.closing | 1 << run, true);
                };
                push("takes it over", &close, Process { number, ..p.to(At::CloseFinish) });
            }
            At::CloseFinish => {
                let rows = folder.counted(p.number, p.start).map_or(0, |c| c.1);
                self.finish(s, i, rows, p.to(At::Take), out);
            }
        }
    }

    /// Where a variant reads what others did.
    fn past_first(&self, s: &State, p: Process) -> Process {
        if !self.lacks(Rule::PastBeforeTurn) {
            return p;
        }
        let others = (0..R as u8).filter(|q| *q != p.own);
        Process { skips: others.fold(0, |all, q| all | s.folders[q as usize].did()), ..p }
    }

    fn finish(&self, s: &State, i: usize, rows: u8, then: Process, out: &mut Vec<(&'static str, State)>) {
        let mut next = s.clone();
        let folder = &mut next.folders[s.processes[i].of as usize];
        let same = folder.write(rows);
        folder.done |= same;
        next.processes[i] = if same { then } else { OFF.to(At::Corrupt) };
        out.push(("writes the last list of what is closed", next));
    }

    /// `turn::before`, once it has looked.
    fn place(&self, s: &State, i: usize, out: &mut Vec<(&'static str, State)>) {
        let p = s.processes[i];
        let own = p.own + 1;
        let mut s = s.clone();
        let mine = (0..p.newest).find(|n| p.open >> n & 1 == 1 && s.order[*n as usize] == own);
        let mut what = "has a place";
        let before = match mine {
            Some(mine) if self.lacks(Rule::WayForAll) => p.open & !(1 << mine),
            Some(mine) => p.open & ((1 << mine) - 1),
            None => {
                what = "takes the next place";
                let mut place = p.newest as usize;
                if self.lacks(Rule::LookThenPlace) {
                    place = s.order.iter().filter(|r| **r != 0).count();
                }
                if place >= ORDERS {
                    s.processes[i] = OFF;
                    out.push(("finds no place", s));
                    return;
                }
                if s.order[place] != 0 && !self.lacks(Rule::PlaceTwice) {
                    s.processes[i] = p.to(At::Newest);
                    out.push(("finds its place taken", s));
                    return;
                }
                s.order[place] = own;
                p.open
            }
        };
        let seen = Process { newest: 0, look: 0, open: 0, ..p };
        let again = mine.is_none() && self.lacks(Rule::WayForAll);
        s.processes[i] = match before {
            _ if again => seen.to(At::Newest),
            0 => seen.ahead(),
            _ => seen.to(At::Way),
        };
        out.push((what, s));
    }
}

impl Model for Turns {
    type State = State;

    fn initial(&self) -> State {
        State {
            processes: [OFF; P],
            folders: [EMPTY; R],
            order: [0; ORDERS],
            visible: [0; S as usize],
            starts: self.starts,
            kills: self.kills,
        }
    }

    fn next(&self, s: &State, out: &mut Vec<(Step, State)>) {
        let mut steps = Vec::new();
        let off = s.processes.iter().all(|p| matches!(p.at, At::Off | At::Corrupt));
        // Which of two idle processes starts is the same.
        let idle = s.processes[..self.processes].iter().position(|p| p.at == At::Off);
        for i in 0..self.processes {
            let (p, who) = (s.processes[i], i as u8 + 1);
            self.steps(s, i, &mut steps);
            out.extend(steps.drain(..).map(|(what, next)| ((who, what), next)));
            if idle == Some(i) && (s.starts > 0 || off) {
                for own in (0..self.restores as u8).filter(|r| !s.folders[*r as usize].is_over()) {
                    let takes = self.take && own as usize + 1 == self.restores && !s.folders[own as usize].plan;
                    let mut next = s.clone();
                    next.starts = s.starts.saturating_sub(1);
                    let at = if takes { At::Take } else { At::Prepare };
                    next.processes[i] = Process { own, of: own, takes, ..OFF.to(at) };
                    out.push(((who, ["starts restore 1", "starts restore 2", "starts restore 3"][own as usize]), next));
                }
            }
            if p.at != At::Off && s.kills > 0 {
                let mut next = s.clone();
                next.kills -= 1;
                next.processes[i] = OFF;
                out.push(((who, "is killed"), next));
            }
        }
        for (_, next) in out {
            next.processes[..self.processes].sort_unstable_by(|a, b| b.cmp(a));
        }
    }

    fn broken(&self, s: &State) -> Option<&'static str> {
        if s.visible.iter().any(|times| *times > 1) {
            return Some(ONCE);
        }
        if s.processes.iter().any(|p| p.at == At::Corrupt) {
            return Some(FALSE_ALARM);
        }
        let planned = || s.folders.iter().filter(|folder| folder.plan);
        if planned().count() > 0 && planned().all(|folder| folder.way) {
            return Some(WAY);
        }
        for (folder, selects) in s.folders.iter().zip(SELECTS).filter(|(f, _)| f.done && !f.way && !f.taken) {
            let seen = s.visible.iter().enumerate().fold(0, |seen, (i, times)| seen | u8::from(*times > 0) << i);
            if folder.list.is_none_or(|list| list & !seen != 0) {
                return Some("the list of a finished restore is what it restored");
            }
            // What it left out, another had listed.
            let told = planned().fold(seen, |told, f| told | f.rows.iter().fold(0, |all, rows| all | rows));
            if selects & !told != 0 {
                return Some("every record is restored, or told");
            }
        }
        let off = s.processes.iter().all(|p| p.at == At::Off);
        // With --take-over it would make another plan.
        let again = self.take && s.folders[self.restores - 1].is_over();
        if off && s.kills == self.kills && planned().count() > 0 && !again && !self.finished(s) {
            return Some("of processes that nobody kills one finishes");
        }
        None
    }

    /// Or all were taken over: a process with --take-over that comes too late to make a plan makes another one.
    fn finished(&self, s: &State) -> bool {
        let all_over = s.folders[..self.restores].iter().all(|folder| folder.is_over());
        s.folders.iter().any(|f| f.done && !f.way && !f.taken) || all_over && s.folders.iter().any(|f| f.taken)
    }

    fn show(&self, s: &State) -> String {
        let mut text = format!("visible {:?}", s.visible);
        for (r, folder) in s.folders.iter().enumerate().filter(|(_, folder)| folder.plan) {
            text += &format!("; restore {}:", r + 1);
            for (run, start) in folder.runs.iter().enumerate().filter(|(_, start)| **start != NONE) {
                let closing = if folder.closing >> run & 1 == 1 { " closes" } else { "" };
                text += &format!(" run {} from {start} lists {:02b}{closing}", run + 1, folder.pieces[run]);
            }
            if folder.done {
                text += &format!(" done {:02b}", folder.list.unwrap_or(0));
            }
        }
        if s.order[0] != 0 {
            let order: Vec<u8> = s.order.iter().copied().filter(|r| *r != 0).collect();
            text += &format!("; order {order:?}");
        }
        text
    }
}

const ONCE: &str = "a record is restored once";
const FALSE_ALARM: &str = "nothing is called damaged that is not";
const WAY: &str = "not all make way";

const TWO: Turns = Turns { lacks: Rule::All, restores: 2, processes: 3, starts: 3, kills: 1, take: false };
const TAKE: Turns = Turns { kills: 0, take: true, ..TWO };

#[test]
fn turns_hold() {
    holds("turns, 2 restores, 3 processes", &TWO);
    holds("turns, 2 restores, one takes over", &TAKE);
    if full() {
        holds("turns, 2 restores, 2 kills", &Turns { starts: 4, kills: 2, ..TWO });
        holds("turns, 3 restores", &Turns { restores: 3, ..TWO });
        holds("turns, one takes over, 1 kill", &Turns { starts: 4, kills: 1, ..TAKE });
        holds("turns, 3 restores, one takes over", &Turns { restores: 3, ..TAKE });
    }
}

#[test]
fn turns_need_each_rule() {
    for (lacks, instance, invariant) in [
        (Rule::NoTurn, TWO, ONCE),
        (Rule::LookThenPlace, TWO, ONCE),
        (Rule::PlaceTwice, TWO, ONCE),
        (Rule::WayForAll, TWO, WAY),
        (Rule::WayBehindRun, TWO, FALSE_ALARM),
        (Rule::PastBeforeTurn, TWO, ONCE),
        (Rule::EndWithoutFencing, TAKE, FALSE_ALARM),
        (Rule::EndLooksBeforeFencing, TAKE, FALSE_ALARM),
        (Rule::EndWithoutRun, TAKE, FALSE_ALARM),
        (Rule::EndAtNextNumber, TAKE, FALSE_ALARM),
    ] {
        breaks(&format!("turns, {lacks:?}"), &Turns { lacks, ..instance }, invariant);
    }
}
