//! How far a shutdown has gone, and waiting for it.
//!
//! Waiters are woken in the order in which they came: tokio's `watch` wakes them in one that chance decides, and a
//! simulation could not be repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use tokio::sync::Notify;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Stage {
    #[default]
    Running,
    /// Finish what is open, then leave.
    Finish,
    /// Leave now; Kafka still has what is not archived.
    Abandon,
}

#[derive(Debug, Default)]
struct Shared {
    stage: AtomicU8,
    moved: Notify,
}

/// Moves the stage.
#[derive(Debug)]
pub struct StageSender(Arc<Shared>);

/// Sees the stage. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StageReceiver(Arc<Shared>);

/// At [`Stage::Running`].
pub fn channel() -> (StageSender, StageReceiver) {
    let shared = Arc::<Shared>::default();
    (StageSender(shared.clone()), StageReceiver(shared))
}

impl StageSender {
    /// A stage is never left for an earlier one.
    pub fn send(&self, stage: Stage) {
        self.0.stage.fetch_max(stage as u8, SeqCst);
        self.0.moved.notify_waiters();
    }
}

impl StageReceiver {
    pub fn get(&self) -> Stage {
        match self.0.stage.load(SeqCst) {
            0 => Stage::Running,
            1 => Stage::Finish,
            _ => Stage::Abandon,
        }
    }

    /// Returns once the stage is `stage` or a later one.
    pub async fn reaches(&self, stage: Stage) {
        loop {
            let mut moved = std::pin::pin!(self.0.moved.notified());
            // Before the look, or a move right behind it would be missed.
            moved.as_mut().enable();
            if self.get() >= stage {
                return;
            }
            moved.await;
        }
    }

    /// Returns once the stage is a later one than `stage`.
    pub async fn leaves(&self, stage: Stage) {
        match stage {
            Stage::Running => self.reaches(Stage::Finish).await,
            Stage::Finish => self.reaches(Stage::Abandon).await,
            Stage::Abandon => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn who_waits_is_woken_and_the_stage_never_goes_back() {
        let (sender, receiver) = channel();
        let (mut finish, mut abandon) =
            (Box::pin(receiver.reaches(Stage::Finish)), Box::pin(receiver.leaves(Stage::Finish)));
        assert!(finish.as_mut().now_or_never().is_none() && abandon.as_mut().now_or_never().is_none());
        sender.send(Stage::Finish);
        assert!(finish.now_or_never().is_some() && abandon.as_mut().now_or_never().is_none());
        sender.send(Stage::Abandon);
        sender.send(Stage::Running);
        assert!(abandon.now_or_never().is_some() && receiver.get() == Stage::Abandon);
    }
}
