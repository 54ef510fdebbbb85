//! Waiting out what does not answer: growing pauses, told in the log, ended by a limit or by shutdown.

use crate::error::{Kind, Result};
use crate::host;
use std::future::Future;
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// How far a shutdown has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Stage {
    #[default]
    Running,
    /// Finish what is open, then leave.
    Finish,
    /// Leave now; Kafka still has what is not archived.
    Abandon,
}

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How long an unavailable broker or store is waited for.
#[derive(Clone)]
pub struct Patience {
    /// `None` = for ever.
    pub limit: Option<Duration>,
    pub stage: watch::Receiver<Stage>,
}

impl Patience {
    pub fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    /// Runs `attempt` until it answers. Only [`Kind::Unavailable`] is waited out.
    ///
    /// # Errors
    /// The last error, once the limit is over or a shutdown began while waiting.
    pub async fn wait_out<T, F>(&self, doing: &str, mut attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut since: Option<Instant> = None;
        let mut pause = FIRST_PAUSE;
        let mut told = Duration::ZERO;
        loop {
            let error = match attempt().await {
                Ok(value) => {
                    if let Some(since) = since.filter(|_| told > Duration::ZERO) {
                        tracing::info!("{doing}: answered again after {} s", host::since(since).as_secs());
                    }
                    return Ok(value);
                }
                Err(e) if e.kind() == Kind::Unavailable => e,
                Err(e) => return Err(e),
            };
            let began = *since.get_or_insert_with(host::now);
            if self.stage() > Stage::Running {
                return Err(error.context("given up at shutdown"));
            }
            if let Some(limit) = self.limit.filter(|limit| host::since(began) + pause > *limit) {
                return Err(error.context(format!("given up after {} s", limit.as_secs())));
            }
            if told.is_zero() || host::since(began) >= told {
                tracing::warn!(
                    "{doing}: {error}. Waiting (for {} s so far); Kafka keeps the records until retention",
                    host::since(began).as_secs()
                );
                told = (told * 2).clamp(Duration::from_secs(10), Duration::from_secs(300));
            }
            let mut stage = self.stage.clone();
            tokio::select! {
                biased;
                _ = stage.wait_for(|s| *s > Stage::Running) => {}
                () = host::sleep(pause) => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
