//! Visits every state that a model can reach, breadth first.
//!
//! A state is kept as a 64-bit fingerprint; only the current and the next level are kept in full. Two states that share
//! a fingerprint would be taken for one: with ten million states the chance is about one in half a million. The path to
//! a state is kept as parents and walked again for the trace, which is a shortest one.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::time::Instant;

/// Who does what; 0 is the world around.
pub type Step = (u8, &'static str);

pub trait Model {
    type State: Clone + Hash;

    fn initial(&self) -> Self::State;

    /// Every state that one step leads to.
    fn next(&self, state: &Self::State, out: &mut Vec<(Step, Self::State)>);

    /// The invariant that does not hold in this state.
    fn broken(&self, state: &Self::State) -> Option<&'static str>;

    /// Whether the work is done, or was stopped for a reason that a person has to see. One such state must be reachable
    /// from every state, or the model is [`STUCK`].
    fn finished(&self, state: &Self::State) -> bool;

    /// What a trace shows of a state, in one line.
    fn show(&self, state: &Self::State) -> String;
}

/// The invariant that [`Model::finished`] stands for.
pub const STUCK: &str = "stuck";

/// What an exploration came to.
pub struct Outcome {
    pub states: usize,
    /// Steps on the longest of all shortest paths.
    pub depth: usize,
    pub seconds: f64,
    pub broken: Option<Broken>,
}

pub struct Broken {
    pub invariant: &'static str,
    /// Each step, and what it led to.
    pub trace: Vec<(Step, String)>,
}

/// Larger instances: `make sim`.
pub fn full() -> bool {
    std::env::var_os("MODEL").is_some_and(|v| v == "full")
}

/// Asserts that every reachable state is sound.
#[track_caller]
pub fn holds<M: Model>(name: &str, model: &M) {
    let outcome = explore(model);
    let Outcome { states, depth, seconds, .. } = outcome;
    println!("{name}: holds over {states} states, depth {depth}, {seconds:.1} s");
    if let Some(broken) = outcome.broken {
        panic!("{name}: {}", broken.tell());
    }
}

/// Asserts that a variant without one of the rules breaks `invariant`.
#[track_caller]
pub fn breaks<M: Model>(name: &str, model: &M, invariant: &str) {
    let Outcome { states, broken, .. } = explore(model);
    let Some(broken) = broken else { panic!("{name}: nothing broke over {states} states: the model sees too little") };
    println!("{name}, after {states} states: {}", broken.tell());
    assert_eq!(broken.invariant, invariant, "{name}: another invariant broke than expected");
}

impl Broken {
    fn tell(&self) -> String {
        let mut text = format!("`{}` is broken after {} steps", self.invariant, self.trace.len());
        let mut before = "";
        for ((who, what), state) in &self.trace {
            let who = if *who == 0 { "-".to_owned() } else { who.to_string() };
            text += &format!("\n    {who} {what}");
            if state != before {
                text += &format!("  [{state}]");
            }
            before = state;
        }
        text
    }
}

pub fn explore<M: Model>(model: &M) -> Outcome {
    let begun = Instant::now();
    let initial = model.initial();
    let mut seen = Seen::default();
    seen.insert(fingerprint(&initial), 0);
    let mut parents: Vec<u32> = vec![0];
    // Of each state in the order of visits: where its successors begin, and whether it is a finished one.
    let (mut successors, mut starts, mut finished): (Vec<u32>, Vec<usize>, Vec<bool>) = Default::default();
    let (mut level, mut depth, mut first) = (vec![initial], 0, 0);
    let mut out = Vec::new();
    loop {
        let mut next_level = Vec::new();
        for (i, state) in (first..).zip(&level) {
            if let Some(invariant) = model.broken(state) {
                let broken = Some(trace(model, &seen, &parents, i, invariant));
                return Outcome { states: parents.len(), depth, seconds: begun.elapsed().as_secs_f64(), broken };
            }
            starts.push(successors.len());
            finished.push(model.finished(state));
            out.clear();
            model.next(state, &mut out);
            for (_, next) in out.drain(..) {
                let new = u32::try_from(parents.len()).expect("a smaller model");
                let at = *seen.entry(fingerprint(&next)).or_insert(new);
                if at == new {
                    parents.push(u32::try_from(i).expect("a smaller model"));
                    next_level.push(next);
                }
                successors.push(at);
            }
        }
        if next_level.is_empty() {
            break;
        }
        first += level.len();
        level = next_level;
        depth += 1;
    }
    let stuck = stuck(&successors, &mut starts, finished);
    let broken = stuck.map(|i| trace(model, &seen, &parents, i, STUCK));
    Outcome { states: parents.len(), depth, seconds: begun.elapsed().as_secs_f64(), broken }
}

/// The first state from which no finished one can be reached.
fn stuck(successors: &[u32], starts: &mut Vec<usize>, mut good: Vec<bool>) -> Option<usize> {
    starts.push(successors.len());
    loop {
        let mut changed = false;
        for i in (0..good.len()).rev() {
            if !good[i] && successors[starts[i]..starts[i + 1]].iter().any(|&next| good[next as usize]) {
                good[i] = true;
                changed = true;
            }
        }
        if !changed {
            return good.iter().position(|good| !good);
        }
    }
}

/// Walks from the first state to the one numbered `to`.
fn trace<M: Model>(model: &M, seen: &Seen, parents: &[u32], to: usize, invariant: &'static str) -> Broken {
    let mut path = Vec::new();
    let mut i = to;
    while i != 0 {
        path.push(i);
        i = parents[i] as usize;
    }
    let (mut state, mut trace, mut out) = (model.initial(), Vec::new(), Vec::new());
    for want in path.into_iter().rev() {
        out.clear();
        model.next(&state, &mut out);
        let found = out.drain(..).find(|(_, next)| seen.get(&fingerprint(next)) == Some(&(want as u32)));
        let (step, next) = found.expect("a model's steps depend on the state alone");
        trace.push((step, model.show(&next)));
        state = next;
    }
    Broken { invariant, trace }
}

type Seen = HashMap<u64, u32, BuildHasherDefault<AsIs>>;

/// Takes a fingerprint for its own hash.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are looked up")
    }
    fn write_u64(&mut self, print: u64) {
        self.0 = print;
    }
}

fn fingerprint<S: Hash>(state: &S) -> u64 {
    let mut hasher = Folded(0x9e37_79b9_7f4a_7c15);
    state.hash(&mut hasher);
    hasher.finish()
}

/// Multiplies and folds each word into the state, as wyhash does: the same in every run.
struct Folded(u64);

impl Folded {
    fn add(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0xa076_1d64_78bd_642f;
        self.0 = self.0.rotate_left(23) ^ (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }
    fn write_u8(&mut self, word: u8) {
        self.add(word.into());
    }
    fn write_u16(&mut self, word: u16) {
        self.add(word.into());
    }
    fn write_u32(&mut self, word: u32) {
        self.add(word.into());
    }
    fn write_u64(&mut self, word: u64) {
        self.add(word);
    }
    fn write_usize(&mut self, word: usize) {
        self.add(word as u64);
    }
    fn write_isize(&mut self, word: isize) {
        self.add(word as u64);
    }
}
