//! A store whose network lies: requests and replies are lost, late or doubled, and outlive who sent them.

use crate::exec::{Machine, WORLD};
use crate::faults::Faults;
use crate::rng::Rng;
use async_trait::async_trait;
use bytes::Bytes;
use dlq_archiver::store::{Created, Head, Listing, MemoryStore, ObjectMeta, Store};
use dlq_archiver::{Error, Result};
use futures::FutureExt;
use futures::channel::oneshot;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Sees what becomes of each object.
pub trait Watch: Send + Sync {
    /// Called when the store has carried a create out.
    fn create(&self, key: &str, body: &Bytes, created: Created);
}

#[derive(Clone)]
pub struct FaultyStore {
    pub memory: MemoryStore,
    machine: Machine,
    rng: Rng,
    faults: Faults,
    oracle: Arc<dyn Watch>,
    /// Of a thousand faults so many happen.
    often: u64,
}

impl std::fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FaultyStore")
    }
}

impl FaultyStore {
    pub fn new(machine: Machine, rng: Rng, faults: Faults, oracle: Arc<dyn Watch>, often: u64) -> Self {
        Self { memory: MemoryStore::new(), machine, rng, faults, oracle, often }
    }

    fn strikes(&self, fault: &'static str, chance: u64) -> bool {
        self.faults.strikes(fault, chance * self.often / 1000)
    }

    fn latency(&self) -> Duration {
        if self.strikes("slow answer", 10) {
            return Duration::from_secs(self.rng.range(5, 120));
        }
        Duration::from_millis(self.rng.range(1, 80))
    }

    async fn ask(&self) -> Result<()> {
        self.machine.pause(self.latency()).await;
        if self.strikes("503 on a read", 20) {
            return Err(Error::unavailable("simulated: 503"));
        }
        Ok(())
    }

    async fn apply(&self, key: &str, body: &Bytes, meta: &ObjectMeta) -> Result<Created> {
        let created = self.memory.create(key, body.clone(), meta).await?;
        self.oracle.create(key, body, created);
        Ok(created)
    }

    /// The request on its way, whatever becomes of its sender.
    fn send(&self, key: &str, body: &Bytes, meta: &ObjectMeta, delay: Duration) -> oneshot::Receiver<Result<Created>> {
        let (reply, received) = oneshot::channel();
        let (store, key, body, meta) = (self.clone(), key.to_owned(), body.clone(), meta.clone());
        let request = async move {
            store.machine.pause(delay).await;
            let _ = reply.send(store.apply(&key, &body, &meta).await);
        };
        self.machine.spawn_in(WORLD, request.boxed());
        received
    }
}

#[async_trait]
impl Store for FaultyStore {
    fn url(&self) -> &str {
        "simulated:"
    }

    fn check_key(&self, key: &str) -> Result<()> {
        self.memory.check_key(key)
    }

    async fn create(&self, key: &str, body: Bytes, meta: &ObjectMeta) -> Result<Created> {
        let lost = || Error::unavailable("simulated: no reply");
        let delay = self.latency();
        if self.strikes("request lost", 20) {
            self.machine.pause(delay).await;
            return Err(lost());
        }
        if self.strikes("503 on a write", 20) {
            self.machine.pause(delay).await;
            return Err(Error::unavailable("simulated: 503"));
        }
        if self.strikes("request late", 15) {
            // It arrives long after its sender gave up.
            drop(self.send(key, &body, meta, Duration::from_secs(self.rng.range(1, 900))));
            self.machine.pause(Duration::from_secs(30)).await;
            return Err(lost());
        }
        let first = self.send(key, &body, meta, delay);
        if self.strikes("reply lost", 25) {
            self.machine.pause(Duration::from_secs(30)).await;
            return Err(lost());
        }
        let mut answer = first.await.map_err(|_| lost())?;
        if self.strikes("request doubled", 25) {
            let delay = self.latency();
            answer = self.send(key, &body, meta, delay).await.map_err(|_| lost())?;
        }
        self.machine.pause(Duration::from_millis(self.rng.range(1, 40))).await;
        answer
    }

    async fn get(&self, key: &str) -> Result<Option<Bytes>> {
        self.ask().await?;
        self.memory.get(key).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        self.ask().await?;
        self.memory.get_range(key, range).await
    }

    async fn head(&self, key: &str) -> Result<Option<Head>> {
        self.ask().await?;
        self.memory.head(key).await
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: Option<usize>) -> Result<Listing> {
        self.ask().await?;
        // Short pages, so that others write between two of them.
        let limit = limit.unwrap_or(usize::MAX).min(self.rng.range(2, 20) as usize);
        self.memory.list(prefix, start_after, Some(limit)).await
    }

    async fn list_folders(&self, prefix: &str) -> Result<Vec<String>> {
        self.ask().await?;
        self.memory.list_folders(prefix).await
    }
}
