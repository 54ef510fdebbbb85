//! The machine under the shells: clock, pauses, tasks, blocking threads, chance.
//!
//! Owns the choice between the real machine and a simulated one, which a test puts in its place on its own thread; then
//! everything that happens is decided by that test. Does nothing else. Code under `archive` and `restore` takes time,
//! tasks and chance from here only, or a simulation could not be repeated.

use crate::error::{Error, Result};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::cell::RefCell;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot;

/// A machine in a test's hand.
pub trait Simulation: Send + Sync {
    fn now(&self) -> Instant;
    /// Microseconds since 1970.
    fn now_us(&self) -> i64;
    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()>;
    fn spawn(&self, task: BoxFuture<'static, ()>);
    /// Calls `turn` until it returns false, with pauses in between.
    fn turns(&self, turn: Box<dyn FnMut() -> bool + Send>);
    fn random(&self) -> u128;
}

thread_local! {
    static SIMULATED: RefCell<Option<Arc<dyn Simulation>>> = const { RefCell::new(None) };
}

/// Puts a simulated machine in place of the real one, for all code on this thread; `None` ends it.
pub fn simulate(simulation: Option<Arc<dyn Simulation>>) {
    SIMULATED.with(|s| *s.borrow_mut() = simulation);
}

fn simulated() -> Option<Arc<dyn Simulation>> {
    SIMULATED.with(|s| s.borrow().clone())
}

pub fn now() -> Instant {
    simulated().map_or_else(Instant::now, |s| s.now())
}

pub fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// Microseconds since 1970.
pub fn now_us() -> i64 {
    simulated().map_or_else(
        || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as i64),
        |s| s.now_us(),
    )
}

pub async fn sleep(pause: Duration) {
    match simulated() {
        None => tokio::time::sleep(pause).await,
        Some(s) => s.sleep(pause).await,
    }
}

/// A new random id (UUID, version 4).
pub fn random_id() -> String {
    simulated()
        .map_or_else(uuid::Uuid::new_v4, |s| uuid::Builder::from_random_bytes(s.random().to_be_bytes()).into_uuid())
        .to_string()
}

/// A task that runs beside its owner and ends with it: dropping this aborts it.
pub struct Task<T> {
    done: oneshot::Receiver<std::thread::Result<T>>,
    abort: Option<tokio::task::AbortHandle>,
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if let Some(abort) = &self.abort {
            abort.abort();
        }
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T>;

    /// # Errors
    /// [`crate::Kind::Internal`] if the task panicked.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.done).poll(context).map(|done| match done {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(panic)) => {
                let why = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
                let why = why.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
                Err(Error::internal(format!("a task failed: {why}. Please report this")))
            }
            Err(_) => Err(Error::internal("a task was ended from outside")),
        })
    }
}

pub fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Task<T> {
    let (sender, done) = oneshot::channel();
    let work = async move {
        // A panic is told to the owner; nothing of the task is used afterwards.
        let result = AssertUnwindSafe(work).catch_unwind().await;
        // The owner may have lost interest.
        let _ = sender.send(result);
    };
    let abort = match simulated() {
        None => Some(tokio::spawn(work).abort_handle()),
        Some(s) => {
            s.spawn(work.boxed());
            None
        }
    };
    Task { done, abort }
}

/// Runs `work` on a thread that may block.
///
/// # Errors
/// Its own, or [`crate::Kind::Internal`] if it panicked.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    if simulated().is_some() {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(e) => Err(Error::internal(format!("a worker thread failed: {e}. Please report this"))),
    }
}

/// Runs `work` here, which may block for long.
pub fn in_place<T>(work: impl FnOnce() -> T) -> T {
    if simulated().is_some() { work() } else { tokio::task::block_in_place(work) }
}

/// Calls `turn` on a thread of its own until it returns false.
///
/// # Errors
/// [`crate::Kind::Internal`] if no thread can be had.
pub fn thread(name: &str, mut turn: impl FnMut() -> bool + Send + 'static) -> Result<()> {
    if let Some(s) = simulated() {
        s.turns(Box::new(turn));
        return Ok(());
    }
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || while turn() {})
        .map(drop)
        .map_err(|e| Error::internal(format!("cannot start the {name} thread: {e}")))
}
