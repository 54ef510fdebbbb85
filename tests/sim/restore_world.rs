//! One seed's world of restores: an archive, brokers, and processes that start, die, freeze and come back; at the end
//! quiet, and the same command once more.

use crate::exec::{Blow, Machine, WORLD};
use crate::faults::Faults;
use crate::report::Report;
use crate::restore_oracle::{ID, RestoreOracle, Source};
use crate::rng::Rng;
use crate::store::FaultyStore;
use crate::support::{TestArchive, push};
use crate::target::{Brokers, Readers, Topic};
use dlq_archiver::archive::rfc3339;
use dlq_archiver::catalog::Catalog;
use dlq_archiver::dialect::Dialects;
use dlq_archiver::filter::{Filter, FilterDoc};
use dlq_archiver::format::{Compression, Format};
use dlq_archiver::host;
use dlq_archiver::record::RawBatch;
use dlq_archiver::restore::audit::{DoneDoc, Process};
use dlq_archiver::restore::batch::Limits;
use dlq_archiver::restore::delivery::Asked;
use dlq_archiver::restore::drafts;
use dlq_archiver::restore::plan::{self, Delivery, RuleOptions};
use dlq_archiver::restore::rate::Rate;
use dlq_archiver::restore::values::Values;
use dlq_archiver::restore::why::Why;
use dlq_archiver::restore::{Counters, End, Options, Prepared, Restore};
use dlq_archiver::stage::{self, Stage, StageReceiver};
use dlq_archiver::store::MemoryStore;
use dlq_archiver::{Error, Kind, Result};
use futures::FutureExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

/// Most that are started before all is quiet.
const PROCESSES: u32 = 40;

/// 2026-12-05T00:00:00Z. Microseconds since 1970.
const BEGIN_US: i64 = 1_796_428_800_000_000;

static DIALECTS: LazyLock<Arc<Dialects>> = LazyLock::new(|| Arc::new(Dialects::builtin()));

/// What a user types.
#[derive(Clone)]
struct Command {
    filter: FilterDoc,
    to: Option<String>,
    resume: Option<String>,
    take_over: bool,
    /// A dry run, and what it has shown.
    by_plan: bool,
}

/// How a process ended.
#[derive(Debug)]
enum Outcome {
    /// Nothing was to be sent; what is skipped, and why.
    Nothing(BTreeMap<Why, u64>),
    Done(Box<DoneDoc>),
    Stopped,
}

struct World {
    machine: Machine,
    rng: Rng,
    faults: Faults,
    brokers: Brokers,
    store: FaultyStore,
    oracle: Arc<RestoreOracle>,
    /// The first has all records.
    commands: Vec<Command>,
    delivery: Asked,
    last_process: AtomicU32,
    ended: Mutex<BTreeMap<u32, Result<Outcome>>>,
    /// No process is started any more.
    over: Arc<AtomicBool>,
}

pub fn run(seed: u64, without: &BTreeSet<String>) -> Report {
    let rng = Rng::new(seed);
    let faults = Faults::new(rng.clone(), without);
    let machine = Machine::new(rng.clone(), BEGIN_US);
    host::simulate(Some(Arc::new(machine.clone())));
    let memory = MemoryStore::new();
    let sources = archive(&rng, &memory).now_or_never().unwrap();
    let oracle = Arc::new(RestoreOracle::new(sources));
    let often = || [0, 60, 200, 500][rng.below(4) as usize];
    let (transactions, tells) = (rng.chance(650), rng.chance(300));
    let brokers =
        Brokers::new(machine.clone(), rng.clone(), faults.clone(), often(), topics(&rng), transactions, tells);
    oracle.watch(brokers.clone());
    let readers: Arc<dyn Readers> = oracle.clone();
    brokers.watch(&readers);
    let mut store = FaultyStore::new(machine.clone(), rng.clone(), faults.clone(), oracle.clone(), often());
    store.memory = memory;
    let delivery = match transactions {
        true if rng.chance(100) => Asked::Exactly(Delivery::Plain),
        true if rng.chance(500) => Asked::Exactly(Delivery::Transactional),
        _ => Asked::Auto,
    };
    let world = Arc::new(World {
        machine: machine.clone(),
        commands: commands(&rng, &oracle),
        rng,
        faults,
        brokers,
        store,
        oracle,
        delivery,
        last_process: AtomicU32::new(WORLD),
        ended: Mutex::default(),
        over: Arc::default(),
    });
    world.clone().go();
    let report = Report {
        violations: world.oracle.violations(),
        met: world.faults.table(),
        events: world.oracle.events(),
        checked: world.oracle.checked(),
        steps: machine.steps(),
    };
    machine.end();
    host::simulate(None);
    report
}

/// Dead letters of one or two partitions, in short cuts.
async fn archive(rng: &Rng, memory: &MemoryStore) -> BTreeMap<String, Source> {
    let format = if rng.chance(100) { Format::Parquet } else { Format::Jsonl(Compression::None) };
    let mut archive = TestArchive::on(Arc::new(memory.clone()), format).await;
    let mut sources = BTreeMap::new();
    for partition in 0..rng.range(1, 3) as i32 {
        let mut offset = 0;
        for _ in 0..rng.range(1, 5) {
            let (from, mut batch) = (offset, RawBatch::new());
            for _ in 0..rng.range(1, 8) {
                let (id, source) = dead_letter(rng, partition, offset);
                batch.push_record(&source.raw.get(0));
                sources.insert(id, source);
                offset += 1;
            }
            archive.cut("a-dlq", partition, from, offset, batch, Vec::new()).await;
        }
    }
    sources
}

fn dead_letter(rng: &Rng, partition: i32, offset: i64) -> (String, Source) {
    let id = format!("a-dlq/{partition}/{offset}");
    let origin = match rng.below(20) {
        0 => None,
        1 => Some(("gone".to_owned(), 0)),
        n => Some((["orders", "bills"][(n > 16) as usize].to_owned(), rng.below(4) as i32)),
    };
    let value = if rng.chance(40) { "x".repeat(3000) } else { format!("value of {id}") };
    let value = (!rng.chance(50)).then_some(value.as_bytes());
    let key = [None, Some(&b""[..]), Some(&b"k"[..]), Some(id.as_bytes())][rng.below(4) as usize];
    let number = origin.as_ref().map(|o| o.1.to_string()).unwrap_or_default();
    let mut headers: Vec<(&[u8], Option<&[u8]>)> = vec![(b"n", None), (ID, Some(id.as_bytes())), (b"n", Some(b""))];
    if let Some((topic, _)) = &origin {
        headers.insert(1, (b"__connect.errors.topic", Some(topic.as_bytes())));
        headers.push((b"__connect.errors.partition", Some(number.as_bytes())));
    }
    let timestamp_ms = if rng.chance(20) { 0 } else { BEGIN_US / 1000 - rng.below(1 << 40) as i64 };
    let mut raw = RawBatch::new();
    push(&mut raw, &crate::support::Rec { offset, timestamp_ms, key, value, headers });
    (id, Source { raw, origin })
}

fn topics(rng: &Rng) -> BTreeMap<String, Topic> {
    let topic = |name: &str, compacted: bool| {
        let partitions = (0..rng.range(1, 4)).map(|_| Vec::new()).collect();
        let max_bytes = if rng.chance(500) { 1_000_000 } else { rng.range(700, 2000) as usize };
        (name.to_owned(), Topic { partitions, max_bytes, compacted })
    };
    let compacted = rng.chance(150);
    [topic("orders", false), topic("bills", compacted), topic("retry", false)].into()
}

fn commands(rng: &Rng, oracle: &RestoreOracle) -> Vec<Command> {
    let to = |chance| rng.chance(chance).then(|| "retry".to_owned());
    let command = |filter, to| Command { filter, to, resume: None, take_over: false, by_plan: false };
    let mut commands = vec![command(FilterDoc::default(), to(300))];
    if rng.chance(400) {
        let filter = match rng.below(3) {
            0 => FilterDoc { partition: vec![0], ..FilterDoc::default() },
            1 => FilterDoc { topic: vec!["a-dlq".into()], ..FilterDoc::default() },
            _ => {
                let some = oracle.ids().filter(|_| rng.chance(400)).cloned().collect::<Vec<_>>();
                FilterDoc { record_id: (!some.is_empty()).then_some(some), ..FilterDoc::default() }
            }
        };
        let (first, other) = (commands[0].to.clone(), to(300));
        commands.push(command(filter, if rng.chance(700) { first } else { other }));
    }
    commands
}

impl World {
    fn go(self: Arc<Self>) {
        let over = self.over.clone();
        let length = Duration::from_secs(self.rng.range(20, 900));
        let supervisors = self.rng.range(1, 4);
        // Some begin in the same moment.
        let pause = [30, 3000, 60_000][self.rng.below(3) as usize];
        for _ in 0..supervisors {
            self.machine.spawn_in(WORLD, self.clone().supervise(pause).boxed());
        }
        if self.faults.strikes("progress expires", 80) {
            let (world, at) = (self.clone(), Duration::from_secs(self.rng.range(1, 900)));
            let expire = async move {
                world.machine.pause(at).await;
                world.brokers.forget_progress();
            };
            self.machine.spawn_in(WORLD, expire.boxed());
        }
        self.machine.run_until(length, || over.load(Relaxed) || !self.oracle.violations().is_empty());
        over.store(true, Relaxed);
        self.oracle.event("faults end".into());
        self.faults.stop();
        // Requests under way arrive, frozen processes wake: nothing of it may do harm.
        self.machine.run_until(Duration::from_secs(2000), || !self.oracle.violations().is_empty());
        for process in 1..=self.last_process.load(Relaxed) {
            // It failed, and what it began for that goes on for ever; or it waits for what nobody does.
            if self.machine.lives(process) {
                self.oracle.violation(format!("process {process} does not end"));
            }
            self.machine.kill(process);
        }
        if self.oracle.violations().is_empty() {
            self.quiet();
        }
    }

    /// The command again, and each restore that is open, until nothing is left to do.
    fn quiet(self: &Arc<Self>) {
        let command = &self.commands[0];
        for _ in 0..8 {
            let (told, all) = match self.last(command.clone()) {
                Ok(Outcome::Nothing(told)) => (told, true),
                // What a target refuses is tried each time.
                Ok(Outcome::Done(done)) => (done.skipped_by_reason, done.restored == 0),
                Ok(Outcome::Stopped) => return self.oracle.violation("stopped by nobody".into()),
                Err(e) => {
                    self.excused(command, &e);
                    (BTreeMap::new(), false)
                }
            };
            let open = self.oracle.open();
            if all && open.is_empty() {
                self.oracle.complete(command.to.as_deref(), &told);
                // A process was killed between ending a restore and its last list.
                if !self.oracle.unlisted().is_empty() || !self.oracle.unsaid().is_empty() {
                    self.faults.met("(ended without a list)");
                    let _ = self.last(Command { take_over: true, ..command.clone() });
                }
                for id in self.oracle.unsaid() {
                    self.oracle.violation(format!("{id} has ended, and the order never tells of it"));
                }
                for id in self.oracle.unlisted() {
                    self.oracle.violation(format!("{id} was ended, and never gets its last list"));
                }
                return;
            }
            for id in open {
                let (filter, resume) = (FilterDoc::default(), Some(id));
                if let Err(e) = self.last(Command { filter, to: None, resume, take_over: false, by_plan: false }) {
                    self.excused(command, &e);
                }
            }
            if !self.oracle.violations().is_empty() {
                return;
            }
        }
        self.oracle.violation("the command comes to no end".into());
    }

    /// An undisturbed process may only fail for another restore, or for progress that is gone.
    fn excused(self: &Arc<Self>, command: &Command, e: &Error) {
        if e.message().contains("is gone from Kafka") {
            let _ = self.last(Command { take_over: true, ..command.clone() });
        } else if !e.message().contains("nothing was sent: ") {
            self.oracle.violation(format!("the last process failed: {e}"));
        }
    }

    /// One process, undisturbed, to its end.
    fn last(self: &Arc<Self>, command: Command) -> Result<Outcome> {
        let process = self.start(command);
        self.machine.run_until(Duration::from_secs(3600), || !self.machine.lives(process));
        let ended = self.ended.lock().unwrap().remove(&process);
        // What it began goes on: markers, time-outs.
        self.machine.run_until(Duration::from_secs(300), || false);
        ended.unwrap_or_else(|| Err(Error::internal("it does not end")))
    }

    /// Starts processes one after the other, each with its fate.
    async fn supervise(self: Arc<Self>, pause: u64) {
        let rng = &self.rng;
        while !self.over.load(Relaxed) && self.last_process.load(Relaxed) < PROCESSES {
            self.machine.pause(Duration::from_millis(rng.range(1, pause))).await;
            let mut command = self.commands[rng.below(self.commands.len() as u64) as usize].clone();
            let open = self.oracle.open();
            if !open.is_empty() && self.faults.strikes("(--resume)", 150) {
                let id = open[rng.below(open.len() as u64) as usize].clone();
                command = Command {
                    filter: FilterDoc::default(),
                    to: None,
                    resume: Some(id),
                    take_over: false,
                    by_plan: false,
                };
            } else if self.faults.strikes("(--take-over)", 60) {
                command.take_over = true;
            } else if self.faults.strikes("(--plan)", 200) {
                command.by_plan = true;
            }
            let process = self.start(command);
            let steps = rng.range(1, [60, 200, 600][rng.below(3) as usize]) as u32;
            if self.faults.strikes("kill", 400) {
                self.machine.blow(process, steps, Blow::Kill);
            } else if self.faults.strikes("freeze", 400) {
                self.machine.blow(process, steps, Blow::Freeze(Duration::from_secs(rng.range(1, 400))));
            }
            let limit = self.machine.elapsed() + Duration::from_secs(rng.range(1, 200));
            while self.machine.lives(process) && self.machine.elapsed() < limit {
                self.machine.pause(Duration::from_millis(200)).await;
            }
            if !self.faults.strikes("left running", 500) {
                self.machine.kill(process);
            }
        }
    }

    fn start(self: &Arc<Self>, command: Command) -> u32 {
        let process = self.last_process.fetch_add(1, Relaxed) + 1;
        let batch = self.rng.range(1, 9) as usize;
        self.oracle.starts(process, batch);
        self.oracle.event(format!(
            "process {process} starts: {:?} to {:?}, resume {:?}, take over: {}, by plan: {}",
            command.filter, command.to, command.resume, command.take_over, command.by_plan
        ));
        let (stage, receiver) = stage::channel();
        let stop = self.faults.strikes("shutdown", 100).then(|| Duration::from_millis(self.rng.range(1, 20_000)));
        let limits = Limits { records: batch, bytes: self.rng.range(100, 6000) as usize };
        let (world, filter, resume) = (self.clone(), command.filter.clone(), command.resume.is_some());
        let restorer = async move {
            let run = world.restore(process, command, limits, receiver).boxed();
            let ask = async {
                if let Some(pause) = stop {
                    host::sleep(pause).await;
                    stage.send(Stage::Finish);
                }
                futures::future::pending::<()>().await;
            };
            let ended = futures::future::select(run, ask.boxed()).await;
            if let futures::future::Either::Left((outcome, _)) = ended {
                world.oracle.event(format!("process {process} ends: {outcome:?}"));
                if let Err(e) = &outcome
                    && matches!(e.kind(), Kind::Corrupt | Kind::Internal | Kind::Config)
                    && !e.message().starts_with("--resume")
                {
                    world.oracle.violation(format!("process {process} calls damaged what is not: {e}"));
                }
                let all = filter == FilterDoc::default() && !resume;
                match &outcome {
                    Ok(Outcome::Nothing(_)) if all => world.over.store(true, Relaxed),
                    Ok(Outcome::Done(done)) if all && done.restored == 0 => world.over.store(true, Relaxed),
                    _ => {}
                }
                world.ended.lock().unwrap().insert(process, outcome);
            }
        };
        self.machine.spawn_in(process, restorer.boxed());
        process
    }

    /// The program, without its flags and tables.
    async fn restore(&self, process: u32, command: Command, limits: Limits, stage: StageReceiver) -> Result<Outcome> {
        let catalog = Catalog::open(Arc::new(self.store.clone())).await?;
        let rules = RuleOptions { to: command.to, ..RuleOptions::default() };
        let archive_id = &catalog.archive().archive_id;
        let digest = plan::digest(archive_id, &command.filter, None, None, &rules, self.delivery.as_str())?;
        let mut options = Options {
            filter: Filter::new(command.filter)?,
            rules,
            delivery: self.delivery,
            limits,
            digest,
            process: Process {
                user: format!("process {process}"),
                now: rfc3339(host::now_us()),
                id: format!("{process:08}-{}", host::random_id()),
            },
            resume: command.resume,
            take_over: command.take_over,
            draft: None,
            values: Values::default(),
            rate: Rate::default(),
            abort_on_failures: None,
            by: None,
            reason: None,
        };
        let (target, patience) = (Arc::new(self.brokers.client(process)), Duration::from_secs(60));
        let counters = Arc::new(Counters::default());
        let restore = async |options: &Options| {
            let (catalog, target, counters) = (catalog.clone(), target.clone(), counters.clone());
            Restore::new(catalog, target, DIALECTS.clone(), options.clone(), counters, patience).await
        };
        if command.by_plan {
            let dry = restore(&options).await?;
            if let Prepared::New(draft) = dry.prepare().await?
                && draft.counts.to_restore > 0
            {
                let id = dry.keep(&draft).await?;
                host::sleep(Duration::from_secs(self.rng.below(60))).await;
                let (draft, _) = drafts::read(&self.store, archive_id, &id).await?;
                options.digest = plan::draft_digest(archive_id, &id, self.delivery.as_str())?;
                options.filter = Filter::exactly(plan::positions(&draft.content.cuts));
                options.draft = Some(draft);
            }
        }
        let restore = restore(&options).await?;
        if command.take_over {
            restore.take_over().await?;
        }
        let (plan, sink) = match restore.prepare().await? {
            Prepared::Unfinished(plan, _) => (*plan, None),
            Prepared::New(draft) if draft.counts.to_restore == 0 => {
                return Ok(Outcome::Nothing(draft.counts.by_reason()));
            }
            Prepared::New(draft) => {
                if let Some(other) = draft.overlapping.first() {
                    return Err(Error::failed(format!("nothing was sent: --resume {}", other.restore_id)));
                }
                let (plan, sink) = restore.begin(*draft).await?;
                (plan, Some(sink))
            }
        };
        match restore.run(&plan, sink, stage).await? {
            End::Done(done) => Ok(Outcome::Done(done)),
            End::Stopped { .. } => Ok(Outcome::Stopped),
        }
    }
}
