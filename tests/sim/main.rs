//! The real archive code under a simulated machine, a lying network and a moving log: many seeds, one oracle.
//!
//! `SIM_SEEDS=10000` runs more of them, `SIM_SEED=17` one, with its trace.

mod broker;
mod exec;
mod faults;
mod oracle;
mod requests;
mod rng;
mod store;
mod world;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|n| n.parse().ok())
}

#[test]
fn no_seed_loses_doubles_or_hides_a_record() {
    if let Some(seed) = number("SIM_SEED") {
        let filter = std::env::var("SIM_LOG").unwrap_or_else(|_| "off".into());
        tracing_subscriber::fmt().with_env_filter(filter).without_time().init();
        let report = world::run(seed, &world::without());
        report.events.iter().for_each(|e| println!("{e}"));
        assert!(report.violations.is_empty(), "seed {seed}: {:#?}", report.violations);
        println!("{report}");
        return;
    }
    let (first, count) = (number("SIM_FIRST").unwrap_or(1), number("SIM_SEEDS").unwrap_or(300));
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
                    let report = world::run(seed, &Default::default());
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
        let (report, without) = world::shrink(seed);
        report.events.iter().rev().take(80).rev().for_each(|e| eprintln!("{e}"));
        let without: Vec<_> = without.into_iter().collect();
        panic!(
            "seed {seed}: {:#?}\nThe faults it needs: {:?}\nAgain: SIM_SEED={seed} SIM_WITHOUT='{}' cargo test --release --test sim",
            report.violations,
            report.met,
            without.join(",")
        );
    }
    println!(
        "{count} seeds from {first}: {} objects judged, {} steps, 0 violations",
        checked.into_inner(),
        steps.into_inner()
    );
    println!("{:32} {:>10} {:>8}", "fault", "times", "seeds");
    for (fault, (times, seeds)) in total.into_inner().unwrap() {
        println!("{fault:32} {times:>10} {seeds:>8}");
    }
}

#[test]
fn a_seed_gives_the_same_run_again() {
    let (a, b) = (world::run(7, &Default::default()), world::run(7, &Default::default()));
    assert_eq!(a.events, b.events);
    assert!(a.checked > 10, "{a}");
}
