//! What happened under a seed, and what was wrong with it.

use std::sync::Mutex;

#[derive(Default)]
struct Inner {
    violations: Vec<String>,
    events: Vec<String>,
    checked: u64,
}

#[derive(Default)]
pub struct Journal(Mutex<Inner>);

impl Journal {
    pub fn event(&self, text: String) {
        let at = dlq_archiver::host::now_us() / 1000 % 100_000_000;
        self.0.lock().unwrap().events.push(format!("{at:>10} {text}"));
    }

    pub fn events(&self) -> Vec<String> {
        self.0.lock().unwrap().events.clone()
    }

    pub fn violations(&self) -> Vec<String> {
        self.0.lock().unwrap().violations.clone()
    }

    pub fn violation(&self, text: String) {
        self.event(format!("VIOLATION {text}"));
        self.0.lock().unwrap().violations.push(text);
    }

    /// One more thing was judged.
    pub fn check(&self) {
        self.0.lock().unwrap().checked += 1;
    }

    pub fn checked(&self) -> u64 {
        self.0.lock().unwrap().checked
    }
}
