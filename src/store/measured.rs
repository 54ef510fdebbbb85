//! Any store, with its requests timed and the moment kept since when it does not answer. For metrics and health.
//!
//! Changes nothing of what is asked and answered. A request that the store's own client repeats is one request. Where
//! nobody else does, it tells that an answer takes long.

use super::{Created, Head, Listed, Listing, ObjectMeta, Store};
use crate::error::{Kind, Result};
use crate::host;
use async_trait::async_trait;
use bytes::Bytes;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds in seconds: from a local folder to an attempt that times out.
const SECONDS: [f64; 13] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// `operation` (create, get, head, list) and `outcome` (ok, exists, unavailable, error).
pub type Labels = [(&'static str, &'static str); 2];

/// After this time it is told that an answer is waited for, and again after the other.
const SLOW: Duration = Duration::from_secs(5);
const SILENCE_MS: i64 = 60_000;

/// How long requests took.
#[derive(Debug, Clone)]
pub struct Requests {
    pub seconds: Family<Labels, Histogram>,
    /// ms since 1970; 0 while it answers.
    failing_since_ms: Arc<AtomicI64>,
}

impl Default for Requests {
    fn default() -> Self {
        let seconds = Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> Histogram);
        Self { seconds, failing_since_ms: Arc::default() }
    }
}

impl Requests {
    /// Since when the store has not answered, ms since 1970: when the first request was sent that failed. A refusal counts
    /// too, since credentials and bucket were right when the archive was opened.
    pub fn failing_since_ms(&self) -> Option<i64> {
        Some(self.failing_since_ms.load(Relaxed)).filter(|at| *at != 0)
    }

    fn done<T>(&self, operation: &'static str, began_ms: i64, time: Duration, result: &Result<T>, ok: &'static str) {
        let outcome = match result {
            Ok(_) => ok,
            Err(e) if e.kind() == Kind::Unavailable => "unavailable",
            Err(_) => "error",
        };
        match result {
            Err(e) if matches!(e.kind(), Kind::Unavailable | Kind::Config) => {
                let _ = self.failing_since_ms.compare_exchange(0, began_ms, Relaxed, Relaxed);
            }
            _ => self.failing_since_ms.store(0, Relaxed),
        }
        let labels = [("operation", operation), ("outcome", outcome)];
        self.seconds.get_or_create(&labels).observe(time.as_secs_f64());
    }
}

#[derive(Debug)]
pub struct Measured {
    inner: Arc<dyn Store>,
    requests: Requests,
    /// After what time it is told that an answer takes long, and when it was last, ms since 1970; `None`: it never is.
    told_ms: Option<(Duration, AtomicI64)>,
}

impl Measured {
    pub fn new(inner: Arc<dyn Store>, requests: Requests) -> Self {
        Self { inner, requests, told_ms: None }
    }

    /// One that tells the log when an answer takes long.
    pub fn telling(inner: Arc<dyn Store>) -> Self {
        Self { inner, requests: Requests::default(), told_ms: Some((SLOW, AtomicI64::new(0))) }
    }

    /// Of many requests that wait together, one tells it.
    async fn tell_if_slow<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        let Some((slow, told_ms)) = &self.told_ms else { return request.await };
        let mut request = std::pin::pin!(request);
        tokio::select! {
            biased;
            result = &mut request => return result,
            () = host::sleep(*slow) => {}
        }
        let (now, told) = (host::now_us() / 1000, told_ms.load(Relaxed));
        let is_first = || told_ms.compare_exchange(told, now, Relaxed, Relaxed).is_ok();
        if now.saturating_sub(told) >= SILENCE_MS && is_first() {
            tracing::warn!("waiting for the store at {}, for {} s so far", self.inner.url(), slow.as_secs());
        }
        request.await
    }

    async fn measure<T>(
        &self,
        operation: &'static str,
        ok: impl FnOnce(&T) -> &'static str,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let (began_ms, began) = (host::now_us() / 1000, host::now());
        let result = self.tell_if_slow(request).await;
        let ok = result.as_ref().map_or("", ok);
        self.requests.done(operation, began_ms, host::since(began), &result, ok);
        result
    }
}

fn ok<T>(_: &T) -> &'static str {
    "ok"
}

#[async_trait]
impl Store for Measured {
    fn url(&self) -> &str {
        self.inner.url()
    }

    fn check_key(&self, key: &str) -> Result<()> {
        self.inner.check_key(key)
    }

    async fn create(&self, key: &str, body: Bytes, meta: &ObjectMeta) -> Result<Created> {
        let outcome = |created: &Created| match created {
            Created::New => "ok",
            Created::Exists => "exists",
        };
        self.measure("create", outcome, self.inner.create(key, body, meta)).await
    }

    fn refuses_condition(&self) -> bool {
        self.inner.refuses_condition()
    }

    fn set_plain(&self, plain: bool) -> Option<Duration> {
        self.inner.set_plain(plain)
    }

    async fn get(&self, key: &str) -> Result<Option<Bytes>> {
        self.measure("get", ok, self.inner.get(key)).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        self.measure("get", ok, self.inner.get_range(key, range)).await
    }

    async fn head(&self, key: &str) -> Result<Option<Head>> {
        self.measure("head", ok, self.inner.head(key)).await
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: Option<usize>) -> Result<Listing> {
        self.measure("list", ok, self.inner.list(prefix, start_after, limit)).await
    }

    async fn list_folders(&self, prefix: &str) -> Result<Vec<String>> {
        self.measure("list", ok, self.inner.list_folders(prefix)).await
    }

    /// All pages count as one request.
    async fn list_all(&self, prefix: &str) -> Result<Vec<Listed>> {
        self.measure("list", ok, self.inner.list_all(prefix)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::store::MemoryStore;
    use prometheus_client::registry::Registry;

    #[tokio::test]
    async fn what_was_asked_is_answered_and_timed() {
        let requests = Requests::default();
        let store = Measured::new(Arc::new(MemoryStore::new()), requests.clone());
        let (body, meta) = (Bytes::from_static(b"x"), ObjectMeta::default());
        assert_eq!(store.create("a/b", body.clone(), &meta).await.unwrap(), Created::New);
        assert_eq!(store.create("a/b", body.clone(), &meta).await.unwrap(), Created::Exists);
        assert_eq!(store.get("a/b").await.unwrap(), Some(body));
        assert_eq!((store.url(), store.list_all("").await.unwrap().len()), ("memory:", 1));
        let (mut registry, mut text) = (Registry::default(), String::new());
        registry.register("x", "x", requests.seconds.clone());
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for (operation, outcome) in [("create", "ok"), ("create", "exists"), ("get", "ok"), ("list", "ok")] {
            let line = format!("x_count{{operation=\"{operation}\",outcome=\"{outcome}\"}} 1");
            assert!(text.lines().any(|l| l == line), "{line} is not in {text}");
        }
        assert_eq!((text.matches("x_count").count(), requests.failing_since_ms()), (4, None));
    }

    /// A store that answers late.
    #[derive(Debug)]
    struct Late(MemoryStore);

    #[async_trait]
    impl Store for Late {
        fn url(&self) -> &str {
            "s3://late"
        }
        fn check_key(&self, _: &str) -> Result<()> {
            Ok(())
        }
        fn set_plain(&self, _: bool) -> Option<Duration> {
            None
        }
        async fn create(&self, key: &str, body: Bytes, meta: &ObjectMeta) -> Result<Created> {
            self.0.create(key, body, meta).await
        }
        async fn get(&self, key: &str) -> Result<Option<Bytes>> {
            tokio::time::sleep(Duration::from_millis(50)).await;
            self.0.get(key).await
        }
        async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
            self.0.get_range(key, range).await
        }
        async fn head(&self, key: &str) -> Result<Option<Head>> {
            self.0.head(key).await
        }
        async fn list(&self, prefix: &str, start_after: Option<&str>, limit: Option<usize>) -> Result<Listing> {
            self.0.list(prefix, start_after, limit).await
        }
        async fn list_folders(&self, prefix: &str) -> Result<Vec<String>> {
            self.0.list_folders(prefix).await
        }
    }

    /// `list` said nothing for a minute while the store did not answer.
    #[tokio::test]
    async fn readers_are_told_once_that_the_store_is_waited_for() {
        let store = |telling| {
            let inner: Arc<dyn Store> = Arc::new(Late(MemoryStore::new()));
            match telling {
                true => Measured {
                    told_ms: Some((Duration::from_millis(5), AtomicI64::new(0))),
                    ..Measured::telling(inner)
                },
                false => Measured::new(inner, Requests::default()),
            }
        };
        let told = |store: &Measured| store.told_ms.as_ref().map(|(_, ms)| ms.load(Relaxed));
        let slow = store(true);
        slow.head("a").await.unwrap();
        assert_eq!(told(&slow), Some(0), "it answered at once");
        let (a, b) = tokio::join!(slow.get("a"), slow.get("b"));
        assert_eq!((a.unwrap(), b.unwrap()), (None, None));
        assert!(told(&slow).is_some_and(|ms| ms > 0));
        let silent = store(false);
        silent.get("a").await.unwrap();
        assert_eq!(told(&silent), None);
    }

    #[test]
    fn an_outage_begins_with_the_first_request_that_fails_and_ends_with_an_answer() {
        let requests = Requests::default();
        let tell = |at, result: Result<()>| requests.done("head", at, Duration::ZERO, &result, "ok");
        tell(5, Err(Error::unavailable("gone")));
        tell(9, Err(Error::config("refused")));
        assert_eq!(requests.failing_since_ms(), Some(5));
        tell(10, Err(Error::failed("no such range")));
        assert_eq!(requests.failing_since_ms(), None);
        tell(11, Err(Error::config("refused")));
        tell(12, Ok(()));
        assert_eq!(requests.failing_since_ms(), None);
    }
}
