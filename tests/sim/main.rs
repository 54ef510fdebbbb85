//! The real code of `archive/` and `restore/` under a simulated machine, a lying network, and brokers that move, fence and
//! fall silent: many seeds, an oracle for each of the two.
//!
//! `SIM_SEEDS=10000` runs more of them, `SIM_SEED=17` one, with its trace. Give the test's name with it.

mod broker;
mod exec;
mod faults;
mod journal;
mod oracle;
mod report;
mod requests;
mod restore_oracle;
mod restore_world;
mod rng;
mod store;
#[path = "../support/mod.rs"]
mod support;
mod target;
mod world;

use report::{Run, shrink, without};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|n| n.parse().ok())
}

#[test]
fn no_seed_loses_doubles_or_hides_a_record() {
    seeds("no_seed_loses", world::run, 300);
}

#[test]
fn no_seed_restores_twice_or_hides_where_to() {
    seeds("no_seed_restores", restore_world::run, 300);
}

/// `test`: a part of its name that no other has.
fn seeds(test: &str, run: Run, few: u64) {
    if let Some(seed) = number("SIM_SEED") {
        let filter: Targets = std::env::var("SIM_LOG").unwrap_or_else(|_| "off".into()).parse().unwrap();
        tracing_subscriber::registry().with(filter).with(tracing_subscriber::fmt::layer().without_time()).init();
        let report = run(seed, &without());
        report.events.iter().for_each(|e| println!("{e}"));
        assert!(report.violations.is_empty(), "seed {seed}: {:#?}", report.violations);
        println!("{report}");
        return;
    }
    let (first, count) = (number("SIM_FIRST").unwrap_or(1), number("SIM_SEEDS").unwrap_or(few));
    let next = AtomicU64::new(first);
    let total: Mutex<BTreeMap<&'static str, (u64, u64)>> = Mutex::default();
    let (checked, steps) = (AtomicU64::new(0), AtomicU64::new(0));
    let failed: Mutex<Option<u64>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count || failed.lock().unwrap().is_some() {
                        return;
                    }
                    let report = run(seed, &Default::default());
                    if !report.violations.is_empty() {
                        failed.lock().unwrap().get_or_insert(seed);
                        return;
                    }
                    checked.fetch_add(report.checked, Ordering::Relaxed);
                    steps.fetch_add(report.steps, Ordering::Relaxed);
                    for (fault, n) in report.met {
                        let mut total = total.lock().unwrap();
                        let entry = total.entry(fault).or_default();
                        *entry = (entry.0 + n, entry.1 + 1);
                    }
                }
            });
        }
    });
    if let Some(seed) = *failed.lock().unwrap() {
        let (report, without) = shrink(run, seed);
        report.events.iter().rev().take(80).rev().for_each(|e| eprintln!("{e}"));
        let without: Vec<_> = without.into_iter().collect();
        panic!(
            "seed {seed}: {:#?}\nThe faults it needs: {:?}\nAgain: SIM_SEED={seed} SIM_WITHOUT='{}' cargo test --release --test sim {test}",
            report.violations,
            report.met,
            without.join(",")
        );
    }
    println!(
        "{test}: {count} seeds from {first}: {} things judged, {} steps, 0 violations",
        checked.into_inner(),
        steps.into_inner()
    );
    println!("{:32} {:>10} {:>8}", "fault", "times", "seeds");
    for (fault, (times, seeds)) in total.into_inner().unwrap() {
        println!("{fault:32} {times:>10} {seeds:>8}");
    }
}

/// Chance that comes from elsewhere differs from thread to thread: hash maps, tokio's own.
#[test]
fn a_seed_gives_the_same_run_again() {
    for run in [world::run as Run, restore_world::run] {
        let mut checked = 0;
        for seed in 1..=60 {
            let again = || std::thread::spawn(move || run(seed, &Default::default())).join().unwrap();
            let (a, b) = (again(), again());
            assert_eq!(a.events, b.events, "seed {seed}");
            checked += a.checked;
        }
        assert!(checked > 600, "{checked}");
    }
}
