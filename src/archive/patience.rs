//! Waiting out what does not answer: growing pauses, told in the log, ended by a limit or by shutdown.

use crate::error::{Error, Kind, Result};
use crate::host;
use crate::stage::{Stage, StageReceiver};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Before it is told that something does not answer.
const SILENCE: Duration = Duration::from_secs(10);
const LONGEST_SILENCE: Duration = Duration::from_secs(300);
/// How long what does not answer is asked again after a shutdown began: a partition's leader may be moving.
const LAST: Duration = Duration::from_secs(3);

/// How long an unavailable broker or store is waited for.
#[derive(Clone)]
pub struct Patience {
    /// `None` = for ever.
    pub limit: Option<Duration>,
    pub stage: StageReceiver,
    /// Says what an outage puts at risk; for log lines.
    pub risk: Option<Arc<dyn Fn() -> String + Send + Sync>>,
}

impl Patience {
    fn risk(&self) -> String {
        self.risk.as_ref().map_or_else(|| "Kafka keeps the records until retention".into(), |risk| risk())
    }

    pub fn stage(&self) -> Stage {
        self.stage.get()
    }

    /// Runs `attempt` until it answers. Only [`Kind::Unavailable`] is waited out.
    ///
    /// # Errors
    /// The last error, once the limit is over, or soon after a shutdown began. An attempt that does not answer within
    /// the limit is let go: what it asked for may still happen.
    pub async fn wait_out<T, F>(&self, doing: &str, mut attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let began = host::now();
        let mut pause = FIRST_PAUSE;
        // When it is told next, since `began`.
        let mut tell = SILENCE;
        let mut told = false;
        let mut ending = None;
        loop {
            let error = match self.patiently(doing, began, &mut tell, &mut told, attempt()).await {
                Ok(value) => {
                    if told {
                        tracing::info!("{doing}: answered again after {} s", host::since(began).as_secs());
                    }
                    return Ok(value);
                }
                Err(e) if e.kind() == Kind::Unavailable => e,
                Err(e) => return Err(e),
            };
            let stage = self.stage();
            if stage > Stage::Running {
                let since = *ending.get_or_insert_with(host::now);
                if stage == Stage::Abandon || host::since(since) >= LAST {
                    return Err(error.context(format!("{doing}: given up at shutdown")));
                }
                pause = FIRST_PAUSE;
            }
            let waited = host::since(began);
            if let Some(limit) = self.limit.filter(|limit| waited >= *limit) {
                return Err(error.context(format!("{doing}: given up after {} s", limit.as_secs())));
            }
            if !told || waited >= tell {
                tracing::warn!("{doing}: {error}. Waiting (for {} s so far); {}", waited.as_secs(), self.risk());
                told = true;
                tell = waited + (waited * 2).clamp(SILENCE, LONGEST_SILENCE);
            }
            let left = self.limit.map_or(pause, |limit| limit.saturating_sub(waited));
            tokio::select! {
                biased;
                () = self.stage.leaves(stage) => {}
                () = host::sleep(pause.min(left)) => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Waits for one attempt, telling when that takes long.
    async fn patiently<T>(
        &self,
        doing: &str,
        began: Instant,
        tell: &mut Duration,
        told: &mut bool,
        attempt: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut attempt = std::pin::pin!(attempt);
        loop {
            let waited = host::since(began);
            let next = self.limit.map_or(*tell, |limit| limit.min(*tell)).saturating_sub(waited);
            tokio::select! {
                biased;
                answer = &mut attempt => return answer,
                () = host::sleep(next) => {}
            }
            let waited = host::since(began);
            if self.limit.is_some_and(|limit| waited >= limit) {
                return Err(Error::unavailable("no answer"));
            }
            tracing::warn!("{doing}: no answer for {} s. Waiting; {}", waited.as_secs(), self.risk());
            *told = true;
            *tell = waited + (waited * 2).clamp(SILENCE, LONGEST_SILENCE);
        }
    }
}
