//! Waiting out what does not answer: growing pauses, told in the log, ended by a limit or by shutdown.
//!
//! Owns what is told of an outage: one line for all partitions that wait for the same, not one for each. Decides nothing
//! about what is asked.

use super::board::Board;
use crate::error::{Error, Kind, Result, few};
use crate::host;
use crate::record::TopicPartition;
use crate::stage::{Stage, StageReceiver};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Before it is told that something does not answer.
const SILENCE: Duration = Duration::from_secs(10);
const LONGEST_SILENCE: Duration = Duration::from_secs(300);
/// How long what does not answer is asked again after a shutdown began: a partition's leader may be moving.
const LAST: Duration = Duration::from_secs(3);
/// Partitions that a line names.
const NAMED: usize = 3;

/// What is being waited for at the moment, by name.
#[derive(Default)]
pub struct Outages {
    all: Mutex<BTreeMap<String, Outage>>,
    /// Knows what an outage puts at risk.
    board: Option<Arc<Board>>,
}

struct Outage {
    since: Instant,
    /// When it is told next.
    tell: Instant,
    /// Waits that go on, of each partition; the start's is of none.
    waits: BTreeMap<Option<TopicPartition>, usize>,
    /// Partitions that waited, at most at a time, and when it was told last.
    most: usize,
    told: usize,
}

/// Before an outage that lasts so long is told again.
fn silence(waited: Duration) -> Duration {
    (waited * 2).clamp(SILENCE, LONGEST_SILENCE)
}

impl Outages {
    pub fn new(board: Arc<Board>) -> Self {
        Self { all: Mutex::default(), board: Some(board) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Outage>> {
        self.all.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Counts a wait for `what` from now on. Whether it begins an outage, which is to be told at once.
    fn begin(&self, what: &str, of: Option<&TopicPartition>, since: Instant) -> bool {
        let (mut all, now) = (self.lock(), host::now());
        let is_first = !all.contains_key(what);
        let outage = all.entry(what.to_owned()).or_insert_with(|| Outage {
            since,
            tell: now + silence(now.saturating_duration_since(since)),
            waits: BTreeMap::new(),
            most: 0,
            told: 1,
        });
        *outage.waits.entry(of.cloned()).or_default() += 1;
        outage.most = outage.most.max(outage.waits.len());
        // One that waited alone must not keep back for long that all do now.
        if outage.waits.len() >= outage.told * 2 {
            outage.tell = outage.tell.min(now + SILENCE);
        }
        is_first
    }

    /// A wait is over. If it was the last one: how long the outage was, and how many partitions waited.
    fn end(&self, what: &str, of: Option<&TopicPartition>) -> Option<(Duration, usize)> {
        let mut all = self.lock();
        let outage = all.get_mut(what)?;
        let of = of.cloned();
        if let Some(waits) = outage.waits.get_mut(&of) {
            *waits -= 1;
            if *waits == 0 {
                outage.waits.remove(&of);
            }
        }
        if !outage.waits.is_empty() {
            return None;
        }
        all.remove(what).map(|outage| (host::since(outage.since), outage.most))
    }

    fn next(&self, what: &str) -> Option<Instant> {
        self.lock().get(what).map(|outage| outage.tell)
    }

    /// If it is time to tell an outage again, one of those who ask is to do it: for how long it has lasted, and who waits.
    fn due(&self, what: &str) -> Option<(Duration, Vec<TopicPartition>)> {
        let (mut all, now) = (self.lock(), host::now());
        let outage = all.get_mut(what).filter(|outage| now >= outage.tell)?;
        let waited = now.saturating_duration_since(outage.since);
        (outage.tell, outage.told) = (now + silence(waited), outage.waits.len().max(1));
        Some((waited, outage.waits.keys().flatten().cloned().collect()))
    }

    fn risk(&self, waiting: &[TopicPartition]) -> String {
        let risk = self.board.as_ref().filter(|_| !waiting.is_empty());
        risk.map_or_else(
            || "Kafka keeps the records until retention".into(),
            |board| board.risk(waiting, host::now_us() / 1000),
        )
    }
}

/// A wait that is counted as long as it lives.
struct Counted<'p> {
    patience: &'p Patience,
    what: &'p str,
    over: bool,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        // Given up, or let go: who gives up says so.
        if !self.over {
            self.patience.outages.end(self.what, self.patience.of.as_ref());
        }
    }
}

/// How long an unavailable broker or store is waited for.
#[derive(Clone)]
pub struct Patience {
    /// `None` = for ever.
    pub limit: Option<Duration>,
    pub stage: StageReceiver,
    /// Whose waits these are; `None`: the start's.
    pub of: Option<TopicPartition>,
    pub outages: Arc<Outages>,
}

impl Patience {
    /// Of the start, or to be given to partitions.
    pub fn new(limit: Option<Duration>, stage: StageReceiver, outages: Arc<Outages>) -> Self {
        Self { limit, stage, of: None, outages }
    }

    pub fn stage(&self) -> Stage {
        self.stage.get()
    }

    /// Runs `attempt` until it answers. Only [`Kind::Unavailable`] is waited out. `what` is asked, and `doing` says for
    /// what.
    ///
    /// # Errors
    /// The last error, once the limit is over, or soon after a shutdown began. An attempt that does not answer within
    /// the limit is let go: what it asked for may still happen.
    pub async fn wait_out<T, F>(&self, what: &str, doing: &str, mut attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let began = host::now();
        let mut pause = FIRST_PAUSE;
        let mut counted = None;
        let mut ending = None;
        loop {
            let error = match self.patiently(what, doing, began, &mut counted, attempt()).await {
                Ok(value) => {
                    if let Some(wait) = counted {
                        self.over(wait, doing);
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
            self.tell(what, doing, began, &mut counted, &error.to_string());
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
    async fn patiently<'p, T>(
        &'p self,
        what: &'p str,
        doing: &str,
        began: Instant,
        counted: &mut Option<Counted<'p>>,
        attempt: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut attempt = std::pin::pin!(attempt);
        loop {
            let tell = counted.as_ref().and_then(|_| self.outages.next(what)).unwrap_or(began + SILENCE);
            let (waited, tell) = (host::since(began), tell.saturating_duration_since(host::now()));
            let next = self.limit.map_or(tell, |limit| limit.saturating_sub(waited).min(tell));
            tokio::select! {
                biased;
                answer = &mut attempt => return answer,
                () = host::sleep(next) => {}
            }
            let waited = host::since(began);
            if self.limit.is_some_and(|limit| waited >= limit) {
                return Err(Error::unavailable("no answer"));
            }
            self.tell(what, doing, began, counted, &format!("no answer for {} s", waited.as_secs()));
        }
    }

    /// Tells that it is waited: at once where it is the first wait of an outage, then now and then with the others.
    fn tell<'p>(&'p self, what: &'p str, doing: &str, began: Instant, counted: &mut Option<Counted<'p>>, why: &str) {
        let outages = &self.outages;
        if counted.is_none() {
            *counted = Some(Counted { patience: self, what, over: false });
            if outages.begin(what, self.of.as_ref(), began) {
                let waited = host::since(began).as_secs();
                let risk = outages.risk(self.of.as_slice());
                tracing::warn!("{doing}: {why}. Waiting (for {waited} s so far); {risk}");
                return;
            }
        }
        let Some((waited, waiting)) = outages.due(what) else { return };
        let (seconds, risk) = (waited.as_secs(), outages.risk(&waiting));
        match waiting.len() {
            0 | 1 => tracing::warn!("{doing}: {why}. Waiting (for {seconds} s so far); {risk}"),
            n => tracing::warn!(
                partitions = n,
                "{n} partitions wait for {what}, for {seconds} s so far ({}): {why}; {risk}",
                few(waiting, NAMED)
            ),
        }
    }

    fn over(&self, mut wait: Counted<'_>, doing: &str) {
        wait.over = true;
        match self.outages.end(wait.what, self.of.as_ref()) {
            None => {}
            Some((time, 0 | 1)) => tracing::info!("{doing}: answered again after {} s", time.as_secs()),
            Some((time, n)) => {
                tracing::info!("{} answered again after {} s; {n} partitions waited", wait.what, time.as_secs());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An outage of a store was a line for each of 500 partitions.
    #[test]
    fn an_outage_is_told_once_for_all_that_wait() {
        let (outages, now) = (Outages::default(), host::now());
        let tp = |partition| TopicPartition::new("t", partition);
        assert!(outages.begin("the store", Some(&tp(0)), now), "the first tells it");
        assert!(!outages.begin("the store", Some(&tp(1)), now) && !outages.begin("the store", Some(&tp(1)), now));
        assert!(outages.begin("the brokers", Some(&tp(1)), now), "another outage");
        assert_eq!(outages.due("the store"), None, "just told");
        outages.lock().get_mut("the store").unwrap().tell = now;
        let (_, waiting) = outages.due("the store").unwrap();
        assert_eq!((waiting, outages.due("the store")), (vec![tp(0), tp(1)], None), "one of them tells it");
        assert_eq!(outages.end("the store", Some(&tp(1))), None);
        assert_eq!(outages.end("the store", Some(&tp(0))), None);
        // One waits for hours; then many do.
        outages.lock().get_mut("the brokers").unwrap().tell = now + LONGEST_SILENCE;
        assert!(!outages.begin("the brokers", Some(&tp(2)), now));
        assert!(outages.next("the brokers").unwrap() <= host::now() + SILENCE);
        // With the last one it is over, and the next is another.
        assert_eq!(outages.end("the store", Some(&tp(1))).map(|(_, most)| most), Some(2));
        assert!(outages.begin("the store", Some(&tp(0)), now));
    }

    #[tokio::test]
    async fn a_wait_that_is_given_up_does_not_count_any_more() {
        let (_sender, stage) = crate::stage::channel();
        let patience = Patience::new(Some(Duration::from_millis(50)), stage, Arc::default());
        let never = || async { Err::<(), _>(Error::unavailable("503")) };
        let error = patience.wait_out("the store", "t/0: look", never).await.unwrap_err();
        assert!(error.message().starts_with("t/0: look: given up after 0 s: 503"), "{error}");
        assert!(patience.outages.lock().is_empty());
    }

    #[test]
    fn an_outage_is_told_at_growing_intervals() {
        let all = [0, 10, 20, 1000].map(|s| silence(Duration::from_secs(s)).as_secs());
        assert_eq!(all, [10, 20, 40, 300]);
    }
}
