//! Chance from a seed.

use std::sync::{Arc, Mutex};

/// SplitMix64 (Steele, Lea, Flood 2014), shared by all that happens under one seed.
#[derive(Clone)]
pub struct Rng(Arc<Mutex<u64>>);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(seed)))
    }

    pub fn next(&self) -> u64 {
        let mut state = self.0.lock().unwrap();
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// `0..n`; 0 for `n == 0`.
    pub fn below(&self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// `from..to`.
    pub fn range(&self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from))
    }

    /// True `n` times in a thousand.
    pub fn chance(&self, n: u64) -> bool {
        self.below(1000) < n
    }
}
