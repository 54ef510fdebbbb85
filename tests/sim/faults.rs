//! Which faults may happen, which did, and how often.

use crate::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

#[derive(Clone)]
pub struct Faults(Arc<Mutex<Inner>>);

struct Inner {
    rng: Rng,
    /// Faults of chance happen at all.
    on: bool,
    /// Never happen under this seed, to find which ones matter.
    without: BTreeSet<String>,
    met: BTreeMap<&'static str, u64>,
}

impl Faults {
    pub fn new(rng: Rng, without: &BTreeSet<String>) -> Self {
        Self(Arc::new(Mutex::new(Inner { rng, on: true, without: without.clone(), met: BTreeMap::new() })))
    }

    pub fn stop(&self) {
        self.0.lock().unwrap().on = false;
    }

    pub fn on(&self, fault: &str) -> bool {
        let inner = self.0.lock().unwrap();
        inner.on && !inner.without.contains(fault)
    }

    /// Whether this fault happens now, `chance` times in a thousand.
    pub fn strikes(&self, fault: &'static str, chance: u64) -> bool {
        let mut inner = self.0.lock().unwrap();
        let strikes = inner.rng.chance(chance) && inner.on && !inner.without.contains(fault);
        if strikes {
            *inner.met.entry(fault).or_default() += 1;
        }
        strikes
    }

    pub fn met(&self, fault: &'static str) {
        *self.0.lock().unwrap().met.entry(fault).or_default() += 1;
    }

    pub fn table(&self) -> BTreeMap<&'static str, u64> {
        self.0.lock().unwrap().met.clone()
    }
}
