//! What came of one seed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// One seed's world, without these faults.
pub type Run = fn(u64, &BTreeSet<String>) -> Report;

pub struct Report {
    pub violations: Vec<String>,
    pub met: BTreeMap<&'static str, u64>,
    pub events: Vec<String>,
    pub checked: u64,
    pub steps: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} things judged, {} steps, faults {:?}", self.checked, self.steps, self.met)
    }
}

/// Faults to leave out, from the environment.
pub fn without() -> BTreeSet<String> {
    let text = std::env::var("SIM_WITHOUT").unwrap_or_default();
    text.split(',').filter(|s| !s.is_empty()).map(str::to_owned).collect()
}

/// The same seed with as few kinds of faults as still fail.
pub fn shrink(run: Run, seed: u64) -> (Report, BTreeSet<String>) {
    let mut without = BTreeSet::new();
    let mut best = run(seed, &without);
    loop {
        let kinds: Vec<_> = best.met.keys().map(|k| (*k).to_owned()).collect();
        let fewer = kinds.into_iter().find_map(|kind| {
            let mut tried = without.clone();
            tried.insert(kind).then(|| run(seed, &tried)).filter(|r| !r.violations.is_empty()).map(|r| (r, tried))
        });
        match fewer {
            Some(found) => (best, without) = found,
            None => return (best, without),
        }
    }
}
