//! One seed's world: producers and retention, archivers that start, die, freeze and come back, and at the end quiet.

use crate::broker::Broker;
use crate::exec::{Blow, Machine, WORLD};
use crate::faults::Faults;
use crate::oracle::Oracle;
use crate::report::Report;
use crate::rng::Rng;
use crate::store::FaultyStore;
use dlq_archiver::archive::{self, Counters, From, Options, StoreUse};
use dlq_archiver::cut::{CutPolicy, Tables};
use dlq_archiver::format::{Compression, Format};
use dlq_archiver::host;
use dlq_archiver::record::TopicPartition;
use dlq_archiver::routing::{Condition, Rule};
use dlq_archiver::stage::{self, Stage};
use futures::FutureExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

/// Shortly before midnight, so that cuts have two dates. Microseconds since 1970.
const BEGIN_US: i64 = 1_790_000_000_000_000 / 86_400_000_000 * 86_400_000_000 - 1_200_000_000;

/// Each start of an archiver has one of these: rules and bound may change between a crash and its recovery.
static TABLES: LazyLock<[Arc<Tables>; 3]> = LazyLock::new(|| {
    let rule =
        |field: &str, text: &str, name: &str| Rule::new(vec![Condition::parse(field, text).unwrap()], name).unwrap();
    let by_destination = [rule("error_destination", r"^http://(p\d)", "team-${1}"), rule("topic", "?*", "rest")];
    let by_name = [rule("pipeline", r"^p(1?)", "${1}"), rule("pipeline", "^(.+)$", "no-${1}")];
    [
        Arc::new(Tables::builtin()),
        Arc::new(Tables::with_routing(|r| r.with_rules(&by_destination).with_max_pipelines(1))),
        Arc::new(Tables::with_routing(|r| r.with_rules(&by_name).with_max_pipelines(2))),
    ]
});

struct World {
    machine: Machine,
    rng: Rng,
    faults: Faults,
    broker: Broker,
    store: FaultyStore,
    oracle: Arc<Oracle>,
    format: Format,
    last_process: AtomicU32,
    topics: Vec<String>,
    /// A cut for each record or two: ledgers grow long.
    small_cuts: bool,
    /// Topics are made anew and logs truncated, and archivers go on in a new generation.
    generations: bool,
    ended: Mutex<BTreeMap<u32, Result<archive::Outcome, dlq_archiver::Error>>>,
}

pub fn run(seed: u64, without: &BTreeSet<String>) -> Report {
    let rng = Rng::new(seed);
    let faults = Faults::new(rng.clone(), without);
    let machine = Machine::new(rng.clone(), BEGIN_US);
    host::simulate(Some(Arc::new(machine.clone())));
    let oracle = Arc::new(Oracle::default());
    let topics: Vec<(&str, usize)> =
        [("a.DLT", 1 + rng.below(2) as usize), ("b", 1)][..1 + rng.below(2) as usize].to_vec();
    let (ids, generations) = (rng.chance(800), rng.chance(300));
    let broker = Broker::new(machine.clone(), rng.clone(), faults.clone(), &topics, ids, generations);
    oracle.watch(broker.clone());
    let store = FaultyStore::new(machine.clone(), rng.clone(), faults.clone(), oracle.clone(), 1000);
    let format = if rng.chance(150) { Format::Parquet } else { Format::Jsonl(Compression::None) };
    let small_cuts = rng.chance(100);
    let world = Arc::new(World {
        machine: machine.clone(),
        rng,
        faults,
        broker,
        store,
        oracle,
        format,
        last_process: AtomicU32::new(WORLD),
        topics: topics.iter().map(|(name, _)| (*name).to_owned()).collect(),
        small_cuts,
        generations,
        ended: Mutex::default(),
    });
    world.clone().go();
    let report = Report {
        violations: world.oracle.violations(),
        met: world.faults.table(),
        events: world.oracle.events(),
        checked: world.oracle.checked(),
        steps: machine.steps(),
    };
    host::simulate(None);
    report
}

impl World {
    fn go(self: Arc<Self>) {
        let over = Arc::new(AtomicBool::new(false));
        let length = Duration::from_secs(self.rng.range(60, 900));
        let supervisors = self.rng.range(1, 4);
        for _ in 0..supervisors {
            self.machine.spawn_in(WORLD, self.clone().supervise(over.clone()).boxed());
        }
        self.machine.spawn_in(WORLD, self.clone().stir(over.clone()).boxed());
        self.machine.run_until(length, || !self.oracle.violations().is_empty());
        over.store(true, Relaxed);
        self.oracle.event("faults end".into());
        self.faults.stop();
        self.broker.settle();
        // Requests under way arrive, frozen processes wake: nothing of it may do harm.
        self.machine.run_until(Duration::from_secs(2000), || !self.oracle.violations().is_empty());
        for process in 1..=self.last_process.load(Relaxed) {
            self.machine.kill(process);
        }
        let last = self.start(true);
        self.machine.run_until(Duration::from_secs(3600), || !self.machine.lives(last));
        self.machine.run_until(Duration::from_secs(2000), || false);
        match self.ended.lock().unwrap().get(&last) {
            Some(Ok(outcome)) if outcome.stopped.is_empty() => {}
            Some(Ok(outcome)) => self.oracle.violation(format!("the last run stopped: {:?}", outcome.stopped)),
            Some(Err(e)) => self.oracle.violation(format!("the last run failed: {e}")),
            None => self.oracle.violation("the last run did not end".into()),
        }
        self.oracle.committed();
        for tp in self.broker.partitions() {
            self.oracle.complete(&tp);
        }
    }

    /// Starts archivers one after the other, each with its fate.
    async fn supervise(self: Arc<Self>, over: Arc<AtomicBool>) {
        while !over.load(Relaxed) {
            self.machine.pause(Duration::from_millis(self.rng.range(1, 20_000))).await;
            let process = self.start(self.rng.chance(300));
            let steps = self.rng.range(1, 3000) as u32;
            if self.faults.strikes("kill", 500) {
                self.machine.blow(process, steps, Blow::Kill);
            } else if self.faults.strikes("freeze", 500) {
                self.machine.blow(process, steps, Blow::Freeze(Duration::from_secs(self.rng.range(5, 600))));
            }
            let limit = self.machine.elapsed() + Duration::from_secs(self.rng.range(5, 300));
            while self.machine.lives(process) && (self.machine.elapsed() < limit || over.load(Relaxed)) {
                self.machine.pause(Duration::from_millis(500)).await;
                self.oracle.committed();
            }
            if !self.faults.strikes("left running", 300) {
                self.machine.kill(process);
            }
        }
    }

    async fn stir(self: Arc<Self>, over: Arc<AtomicBool>) {
        let partitions = self.broker.partitions();
        let pace = if self.small_cuts { 1200 } else { self.rng.range(100, 8000) };
        while !over.load(Relaxed) {
            self.machine.pause(Duration::from_millis(self.rng.range(10, pace))).await;
            let tp: &TopicPartition = &partitions[self.rng.below(partitions.len() as u64) as usize];
            self.broker.stir(tp);
        }
    }

    fn start(self: &Arc<Self>, once: bool) -> u32 {
        let process = self.last_process.fetch_add(1, Relaxed) + 1;
        let rng = &self.rng;
        let options = Options {
            topics: self.topics.clone(),
            once,
            group: None,
            from: From::Earliest,
            new_generation: self.generations,
            format: self.format,
            policy: CutPolicy {
                max_records: rng.range(1, if self.small_cuts { 3 } else { 20 }) as usize,
                max_bytes: rng.range(200, 20_000) as usize,
                max_age: Duration::from_secs(rng.range(1, 60)),
            },
            retention: None,
            safety: 0.5,
            files_per_day: None,
            topics_settings: Vec::new(),
            memory: rng.range(2_000, 200_000) as usize,
            cut_min_age: Duration::from_secs(rng.range(1, 10)),
            store_use: StoreUse::default(),
            start_timeout: Duration::from_secs(600),
            wait: Duration::from_secs(600),
        };
        self.oracle.event(format!("process {process} starts, once: {once}"));
        let (stage, receiver) = stage::channel();
        let finish = self.faults.strikes("shutdown", 200).then(|| Duration::from_secs(rng.range(1, 200)));
        let world = self.clone();
        let tables = TABLES[rng.below(3) as usize].clone();
        let archiver = async move {
            let (store, cluster) = (Arc::new(world.store.clone()), Arc::new(world.broker.clone()));
            let counters = Arc::new(Counters::default());
            let run = archive::run_on(options, store, cluster, tables, counters, receiver);
            let ask = async {
                match finish {
                    Some(pause) => {
                        host::sleep(pause).await;
                        stage.send(Stage::Finish);
                        futures::future::pending::<()>().await;
                    }
                    None => futures::future::pending::<()>().await,
                }
            };
            let outcome = futures::future::select(run.boxed(), ask.boxed()).await;
            if let futures::future::Either::Left((outcome, _)) = outcome {
                world.oracle.event(format!("process {process} ends: {outcome:?}"));
                world.ended.lock().unwrap().insert(process, outcome);
            }
        };
        self.machine.spawn_in(process, archiver.boxed());
        process
    }
}
