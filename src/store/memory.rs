//! A store in memory, for tests and simulation. Owns the objects; clones share them, as writers share a bucket.
//! Does not fail, wait or forget by itself: a faulty store wraps this one.
//!
//! Invariant: through [`Store`] it answers exactly as S3 does; the contract suite holds both to it. What a
//! bucket's owner can do behind the archive's back has its own methods.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use super::{Created, Head, Listed, Listing, ObjectMeta, PAGE, Store, check_key};
use crate::error::{Error, Result};

type Objects = BTreeMap<String, (Bytes, ObjectMeta)>;

#[derive(Clone, Default)]
pub struct MemoryStore {
    objects: Arc<Mutex<Objects>>,
}

impl MemoryStore {
    pub fn new() -> Self {
        Self::default()
    }

    /// What a lifecycle rule or a careless hand does; returns whether it was there.
    pub fn remove_behind_the_back(&self, key: &str) -> bool {
        self.objects().remove(key).is_some()
    }

    /// What bit rot or tampering does.
    pub fn replace_behind_the_back(&self, key: &str, body: Bytes) {
        self.objects().entry(key.to_owned()).or_default().0 = body;
    }

    /// Keys in order with their bytes, to compare whole archives in tests.
    pub fn snapshot(&self) -> Vec<(String, Bytes)> {
        self.objects().iter().map(|(key, (body, _))| (key.clone(), body.clone())).collect()
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        // The map is whole even if a holder panicked: each call makes one change.
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryStore({} objects)", self.objects().len())
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn url(&self) -> &str {
        "memory:"
    }

    fn check_key(&self, key: &str) -> Result<()> {
        check_key("", key)
    }

    async fn create(&self, key: &str, body: Bytes, meta: &ObjectMeta) -> Result<Created> {
        self.check_key(key)?;
        meta.check()?;
        let mut objects = self.objects();
        if objects.contains_key(key) {
            return Ok(Created::Exists);
        }
        objects.insert(key.to_owned(), (body, meta.clone()));
        Ok(Created::New)
    }

    async fn get(&self, key: &str) -> Result<Option<Bytes>> {
        self.check_key(key)?;
        Ok(self.objects().get(key).map(|(body, _)| body.clone()))
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        self.check_key(key)?;
        let objects = self.objects();
        let (body, _) = objects.get(key).ok_or_else(|| Error::failed(format!("memory: {key}: no such object")))?;
        let length = body.len() as u64;
        if range.start > range.end || range.end > length {
            let message = format!("memory: {key}: bytes {}..{} of {length}", range.start, range.end);
            return Err(Error::failed(message));
        }
        Ok(body.slice(range.start as usize..range.end as usize))
    }

    async fn head(&self, key: &str) -> Result<Option<Head>> {
        self.check_key(key)?;
        Ok(self.objects().get(key).map(|(body, meta)| Head { size: body.len() as u64, meta: meta.clone() }))
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: Option<usize>) -> Result<Listing> {
        let limit = limit.unwrap_or(PAGE).max(1);
        let from = match start_after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let objects = self.objects();
        let mut found = objects
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, (body, _))| Listed { key: key.clone(), size: body.len() as u64 });
        let objects = found.by_ref().take(limit).collect();
        Ok(Listing { objects, truncated: found.next().is_some() })
    }

    async fn list_folders(&self, prefix: &str) -> Result<Vec<String>> {
        let objects = self.objects();
        let folders: BTreeSet<String> = objects
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .filter_map(|(key, _)| key[prefix.len()..].find('/').map(|at| key[..=prefix.len() + at].to_owned()))
            .collect();
        Ok(folders.into_iter().collect())
    }
}
