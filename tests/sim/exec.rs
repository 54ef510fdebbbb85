//! A machine with one thread, a clock that jumps, and an order of tasks that the seed decides.
//!
//! Tasks belong to processes. A process can be killed or frozen at any await point: all its tasks at once, as the
//! operating system does it. Process 0 is the world, which nobody kills.

use crate::rng::Rng;
use dlq_archiver::host::Simulation;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

pub const WORLD: u32 = 0;

/// What happens to a process after so many steps of its tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    Kill,
    Freeze(Duration),
}

#[derive(Default)]
struct Process {
    frozen: bool,
    blow: Option<(u32, Blow)>,
}

struct Slot {
    process: u32,
    future: Option<BoxFuture<'static, ()>>,
}

#[derive(Default)]
struct Inner {
    now: Duration,
    tasks: BTreeMap<u64, Slot>,
    timers: BinaryHeap<Reverse<(Duration, u64)>>,
    wakers: BTreeMap<u64, Waker>,
    processes: BTreeMap<u32, Process>,
    current: u32,
    last: u64,
    steps: u64,
}

/// Tasks that can go on, without the lock of [`Inner`]: wakers fire while futures are dropped.
type Ready = Arc<Mutex<Vec<u64>>>;

struct Bell {
    task: u64,
    ready: Ready,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let mut ready = self.ready.lock().unwrap();
        if !ready.contains(&self.task) {
            ready.push(self.task);
        }
    }
}

#[derive(Clone)]
pub struct Machine {
    inner: Arc<Mutex<Inner>>,
    ready: Ready,
    rng: Rng,
    base: Instant,
    base_us: i64,
}

impl Machine {
    /// `base_us`: when the simulation begins, microseconds since 1970.
    pub fn new(rng: Rng, base_us: i64) -> Self {
        Self { inner: Arc::default(), ready: Arc::default(), rng, base: Instant::now(), base_us }
    }

    pub fn elapsed(&self) -> Duration {
        self.inner.lock().unwrap().now
    }

    pub fn steps(&self) -> u64 {
        self.inner.lock().unwrap().steps
    }

    pub fn spawn_in(&self, process: u32, task: BoxFuture<'static, ()>) {
        let mut inner = self.inner.lock().unwrap();
        inner.last += 1;
        let id = inner.last;
        inner.processes.entry(process).or_default();
        inner.tasks.insert(id, Slot { process, future: Some(task) });
        drop(inner);
        self.ready.lock().unwrap().push(id);
    }

    /// After `steps` more steps of its tasks.
    pub fn blow(&self, process: u32, steps: u32, blow: Blow) {
        if let Some(process) = self.inner.lock().unwrap().processes.get_mut(&process) {
            process.blow = Some((steps, blow));
        }
    }

    /// Whether it has tasks.
    pub fn lives(&self, process: u32) -> bool {
        self.inner.lock().unwrap().tasks.values().any(|t| t.process == process)
    }

    pub fn kill(&self, process: u32) {
        let mut inner = self.inner.lock().unwrap();
        let ids: Vec<u64> = inner.tasks.iter().filter(|(_, t)| t.process == process).map(|(id, _)| *id).collect();
        let dropped: Vec<_> = ids.iter().filter_map(|id| inner.tasks.remove(id)).collect();
        inner.processes.remove(&process);
        drop(inner);
        drop(dropped);
    }

    /// Drops all tasks, which hold this machine: many simulations in one process would need more and more memory.
    pub fn end(&self) {
        let mut inner = self.inner.lock().unwrap();
        let dropped = (std::mem::take(&mut inner.tasks), std::mem::take(&mut inner.wakers));
        drop(inner);
        drop(dropped);
    }

    /// Runs until `done`, or until nothing can happen any more, or `limit` is over; whether `done`.
    pub fn run_until(&self, limit: Duration, mut done: impl FnMut() -> bool) -> bool {
        let end = self.elapsed() + limit;
        while !done() {
            match self.take_ready() {
                Some(id) => self.step(id),
                None if !self.advance(end) => return false,
                None => {}
            }
        }
        true
    }

    fn take_ready(&self) -> Option<u64> {
        let inner = self.inner.lock().unwrap();
        let mut ready = self.ready.lock().unwrap();
        ready.retain(|id| inner.tasks.contains_key(id));
        let able: Vec<usize> = (0..ready.len())
            .filter(|&i| {
                let process = inner.tasks.get(&ready[i]).map(|t| t.process);
                process.and_then(|p| inner.processes.get(&p)).is_some_and(|p| !p.frozen)
            })
            .collect();
        let chosen = able.get(self.rng.below(able.len() as u64) as usize)?;
        Some(ready.swap_remove(*chosen))
    }

    fn step(&self, id: u64) {
        let (mut future, process) = {
            let mut inner = self.inner.lock().unwrap();
            inner.steps += 1;
            let Some(slot) = inner.tasks.get_mut(&id) else { return };
            let Some(future) = slot.future.take() else { return };
            let process = slot.process;
            inner.current = process;
            (future, process)
        };
        let waker = Waker::from(Arc::new(Bell { task: id, ready: self.ready.clone() }));
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        let mut finished = Some(future);
        let mut inner = self.inner.lock().unwrap();
        inner.current = WORLD;
        if polled.is_ready() {
            inner.tasks.remove(&id);
        } else if let Some(slot) = inner.tasks.get_mut(&id) {
            slot.future = finished.take();
        }
        let blow = inner.processes.get_mut(&process).and_then(|p| match &mut p.blow {
            Some((0, _)) => p.blow.take(),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        });
        if let Some((_, Blow::Freeze(_))) = blow
            && let Some(p) = inner.processes.get_mut(&process)
        {
            p.frozen = true;
        }
        drop(inner);
        drop(finished);
        match blow {
            Some((_, Blow::Kill)) => self.kill(process),
            Some((_, Blow::Freeze(pause))) => {
                let machine = self.clone();
                self.spawn_in(
                    WORLD,
                    async move {
                        machine.pause(pause).await;
                        if let Some(p) = machine.inner.lock().unwrap().processes.get_mut(&process) {
                            p.frozen = false;
                        }
                    }
                    .boxed(),
                );
            }
            None => {}
        }
    }

    /// Jumps to the next timer.
    fn advance(&self, end: Duration) -> bool {
        let mut inner = self.inner.lock().unwrap();
        let Some(Reverse((at, _))) = inner.timers.peek().copied() else { return false };
        if at > end {
            return false;
        }
        inner.now = inner.now.max(at);
        let mut wake = Vec::new();
        while let Some(Reverse((next, id))) = inner.timers.peek().copied() {
            if next > at {
                break;
            }
            inner.timers.pop();
            wake.extend(inner.wakers.remove(&id));
        }
        drop(inner);
        wake.into_iter().for_each(Waker::wake);
        true
    }

    pub fn pause(&self, pause: Duration) -> Pause {
        let mut inner = self.inner.lock().unwrap();
        inner.last += 1;
        Pause { machine: self.clone(), at: inner.now + pause, id: inner.last, set: false }
    }
}

/// Ends when the clock is there.
pub struct Pause {
    machine: Machine,
    at: Duration,
    id: u64,
    set: bool,
}

impl Future for Pause {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut inner = this.machine.inner.lock().unwrap();
        if inner.now >= this.at {
            return Poll::Ready(());
        }
        if !this.set {
            inner.timers.push(Reverse((this.at, this.id)));
            this.set = true;
        }
        inner.wakers.insert(this.id, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        let waker = self.machine.inner.lock().unwrap().wakers.remove(&self.id);
        drop(waker);
    }
}

impl Simulation for Machine {
    fn now(&self) -> Instant {
        self.base + self.elapsed()
    }
    fn now_us(&self) -> i64 {
        self.base_us + self.elapsed().as_micros() as i64
    }
    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()> {
        self.pause(pause).boxed()
    }
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        let process = self.inner.lock().unwrap().current;
        self.spawn_in(process, task);
    }
    fn turns(&self, mut turn: Box<dyn FnMut() -> bool + Send>) {
        let machine = self.clone();
        self.spawn(
            async move {
                while turn() {
                    machine.pause(Duration::from_millis(machine.rng.range(5, 400))).await;
                }
            }
            .boxed(),
        );
    }
    fn random(&self) -> u128 {
        u128::from(self.rng.next()) << 64 | u128::from(self.rng.next())
    }
}
