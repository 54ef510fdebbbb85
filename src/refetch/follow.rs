//! Originals beside a running `archive`: of each cut, once it is committed.
//!
//! Owns when it looks: at the start for all that is open, then for the cuts that it is told of, and some time after what
//! got no answer for all that is open again. Invariant: no cut waits for it, and what it does not come to is found again
//! from the ledger, by its next look or by the command.

use super::{Brokers, Counters, Options, Outcome, may_lack, refetch, run};
use crate::archive::counters::Counters as Archived;
use crate::catalog::{Catalog, Selected};
use crate::dialect::Dialects;
use crate::error::Result;
use crate::filter::Filter;
use crate::host;
use crate::ledger::Manifest;
use crate::stage::{Stage, StageReceiver};
use crate::store::Store;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

/// Before all that is open is looked for again.
const PAUSE: Duration = Duration::from_secs(60);
/// Cuts that are looked at together.
const CUTS: usize = 100;

pub struct Follow {
    pub store: Arc<dyn Store>,
    pub brokers: Brokers,
    pub dialects: Arc<Dialects>,
    /// Of the topics that are archived.
    pub filter: Filter,
    /// Bytes of originals that are held at a time.
    pub memory: usize,
    /// How long one look may take; what is left then is left to a later one.
    pub timeout: Duration,
    /// Where it is counted.
    pub counters: Arc<Archived>,
    pub stage: StageReceiver,
}

impl Follow {
    /// Until nobody tells of cuts any more, or the shutdown begins.
    pub async fn run(self, mut committed: Receiver<Arc<Manifest>>) {
        self.counters.add_originals(&BTreeMap::new(), 0);
        // An archive has none before its first cut.
        let mut all_at = Some(host::now());
        loop {
            let mut cuts = Vec::new();
            let mut closed = false;
            let wait = all_at.map_or(PAUSE * 60, |at| at.saturating_duration_since(host::now()));
            tokio::select! {
                biased;
                () = self.stage.leaves(Stage::Running) => return,
                told = committed.recv() => match told {
                    Ok(cut) => cuts.push(cut),
                    Err(RecvError::Lagged(_)) => all_at = Some(host::now()),
                    Err(RecvError::Closed) => closed = true,
                },
                () = host::sleep(wait), if all_at.is_some() => {}
            }
            while cuts.len() < CUTS {
                match committed.try_recv() {
                    Ok(cut) => cuts.push(cut),
                    Err(TryRecvError::Lagged(_)) => all_at = Some(host::now()),
                    Err(TryRecvError::Empty | TryRecvError::Closed) => break,
                }
            }
            let is_due = all_at.is_some_and(|at| at <= host::now() || closed);
            let looked = if is_due {
                all_at = None;
                self.all().await
            } else {
                self.cuts(&cuts).await
            };
            if self.tell(looked) {
                all_at = Some(host::now() + PAUSE);
            }
            if closed {
                return;
            }
        }
    }

    fn options(&self) -> Options {
        let deadline = host::now().checked_add(self.timeout);
        Options {
            filter: self.filter.clone(),
            again: false,
            memory: self.memory,
            deadline,
            dialects: self.dialects.clone(),
        }
    }

    async fn all(&self) -> Result<Outcome> {
        let catalog = match Catalog::open(self.store.clone()).await {
            Ok(catalog) => catalog,
            // It is created by who archives.
            Err(e) if e.kind() == crate::error::Kind::Config => return Ok(Outcome::default()),
            Err(e) => return Err(e),
        };
        run(&self.options(), &catalog, &self.brokers, &Counters::default(), &self.stage).await
    }

    async fn cuts(&self, cuts: &[Arc<Manifest>]) -> Result<Outcome> {
        let selected = cuts.iter().filter_map(|m| {
            let objects: Vec<_> = m.objects.iter().filter(|o| may_lack(o, &self.dialects)).cloned().collect();
            (!objects.is_empty()).then(|| Selected { manifest: m.clone(), objects })
        });
        let selected: Vec<_> = selected.collect();
        if selected.is_empty() {
            return Ok(Outcome::default());
        }
        let catalog = Catalog::open(self.store.clone()).await?;
        refetch(&self.options(), &catalog, &self.brokers, selected, &Counters::default(), &self.stage).await
    }

    /// Tells what came of a look; whether something is left to be looked for.
    fn tell(&self, looked: Result<Outcome>) -> bool {
        let outcome = match looked {
            Ok(outcome) => outcome,
            Err(e) => {
                tracing::warn!(
                    "originals were not read again: {e}. They are looked for later, and by `dlq-archiver refetch`"
                );
                return true;
            }
        };
        self.counters.add_originals(&outcome.written.states, outcome.unanswered.iter().map(|u| u.records).sum());
        if outcome.looked_for > 0 {
            let states: Vec<String> =
                outcome.written.states.iter().map(|(state, n)| format!("{n} {}", state.as_str())).collect();
            tracing::info!(looked_for = outcome.looked_for, "originals of dead letters: {}", states.join(", "));
        }
        for u in &outcome.unanswered {
            tracing::warn!(
                topic = u.topic,
                "{} originals got no answer: {}. They are looked for later, and by `dlq-archiver refetch`",
                u.records,
                u.error
            );
        }
        outcome.stopped || !outcome.unanswered.is_empty()
    }
}
