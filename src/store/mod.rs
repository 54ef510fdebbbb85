//! Where an archive is kept. Owns the [`Store`] trait, what an object is and what a key may look like, and
//! [`open`]. Does not own what the objects mean: that is the ledger's.
//!
//! Invariant: an object, once created, is never changed or removed. The trait has no overwrite and no delete,
//! so no code above it can do either.

mod folder;
pub mod measured;
mod memory;
mod s3;
mod url;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{Error, Result};

pub use folder::FolderStore;
pub use measured::{Measured, Requests};
pub use memory::MemoryStore;
pub use s3::S3Store;

/// Objects in one page of [`Store::list`] where no limit is given: what S3 gives.
pub const PAGE: usize = 1000;

/// Longest path segment in bytes: local disks and SeaweedFS take 255, and a temporary name may need a few.
pub const MAX_SEGMENT: usize = 200;

/// Longest key in bytes, the archive's prefix included: S3 takes 1024.
pub const MAX_KEY: usize = 900;

/// User metadata of one object, names and values together: S3's limit.
pub const MAX_META: usize = 2048;

/// Where temporary files of a local folder lie; no key may begin with it.
pub(crate) const TEMPORARY: &str = ".tmp";

/// An append-only set of objects. Keys are relative to the archive and separated by `/`.
///
/// Every error names the store and the key in one line. Its kind is `Config` where the archive's address, its
/// bucket or the credentials are wrong, `Unavailable` where trying again later may help, else `Failed`.
#[async_trait]
pub trait Store: Send + Sync + Debug {
    /// The archive's address as a user would type it, without secrets.
    fn url(&self) -> &str;

    /// Whether the store can hold this key. The others check it too; ask before promising to create it.
    fn check_key(&self, key: &str) -> Result<()>;

    /// Creates an object if the key is absent. It is durable, whole and visible when this returns `New`.
    ///
    /// `Exists` may be the answer to our own write whose reply was lost and which was sent again: a caller to
    /// whom it matters compares the bytes. So may an object exist after an `Unavailable`. A store that ignores
    /// the condition answers `New` twice: the ledger probes for it.
    async fn create(&self, key: &str, body: Bytes, meta: &ObjectMeta) -> Result<Created>;

    /// A `create` was answered that the store does not know the condition.
    fn refuses_condition(&self) -> bool {
        false
    }

    /// With `plain`, `create` looks first and then writes without a condition from now on: good for one writer at a
    /// time. Returns how long a write of a writer that is gone may still take to land. `None`: the store keeps the
    /// condition always, and nothing changes.
    fn set_plain(&self, plain: bool) -> Option<Duration> {
        let _ = plain;
        None
    }

    /// The whole object, or `None` if there is none.
    async fn get(&self, key: &str) -> Result<Option<Bytes>>;

    /// Exactly the bytes of the range; it is an error if the object is missing or shorter.
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes>;

    /// Size and metadata, or `None` if there is no such object. S3 cannot say here that the bucket is missing:
    /// to find out, `get`.
    async fn head(&self, key: &str) -> Result<Option<Head>>;

    /// One page of objects whose keys begin with `prefix` and are greater than `start_after`, subfolders
    /// included, in byte order of the keys. At most `limit` ([`PAGE`] if none). The next page starts after the
    /// last key of this one.
    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: Option<usize>) -> Result<Listing>;

    /// The distinct beginnings of keys up to the first `/` after `prefix`, that slash included, in byte order:
    /// `list_folders("data/")` gives `data/dt=2026-10-08/`. They can be given to `list` as they are. A local
    /// folder may name one without objects, left by a writer that was killed.
    async fn list_folders(&self, prefix: &str) -> Result<Vec<String>>;

    /// Every object whose key begins with `prefix`, in byte order of the keys.
    async fn list_all(&self, prefix: &str) -> Result<Vec<Listed>> {
        let mut all: Vec<Listed> = Vec::new();
        loop {
            let page = self.list(prefix, all.last().map(|last| last.key.as_str()), None).await?;
            let done = !page.truncated || page.objects.is_empty();
            all.extend(page.objects);
            if done {
                return Ok(all);
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    New,
    Exists,
}

/// What `head` tells of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub size: u64,
    /// Empty in a local folder, which stores none: read the object instead.
    pub meta: ObjectMeta,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub key: String,
    pub size: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    pub objects: Vec<Listed>,
    /// There is more after the last of these.
    pub truncated: bool,
}

/// Content type and user metadata of an object: a few short ASCII values. Names are lower case, since S3
/// folds them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectMeta {
    content_type: Option<String>,
    user: BTreeMap<String, String>,
}

impl ObjectMeta {
    pub fn new(content_type: impl Into<String>) -> Self {
        Self { content_type: Some(content_type.into()), user: BTreeMap::new() }
    }

    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.user.insert(name.into(), value.into());
        self
    }

    pub fn content_type(&self) -> Option<&str> {
        self.content_type.as_deref()
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.user.get(name).map(String::as_str)
    }

    /// User metadata in order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.user.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether every store keeps it as it is. `create` checks it too.
    pub fn check(&self) -> Result<()> {
        for (name, value) in self.iter() {
            let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
            if name.is_empty() || !name.bytes().all(plain) {
                return Err(Error::internal(format!("metadata name {name:?}: only a-z, 0-9 and '-' are kept")));
            }
            if !value.bytes().all(|c| (b' '..=b'~').contains(&c)) || value.trim() != value {
                return Err(Error::internal(format!("metadata {name}: value {value:?} is not printable ASCII")));
            }
        }
        let size: usize = self.iter().map(|(name, value)| name.len() + value.len()).sum();
        if size > MAX_META {
            return Err(Error::internal(format!("metadata of {size} bytes; a store takes {MAX_META}")));
        }
        Ok(())
    }
}

/// How the store is reached; what is `None` comes from the AWS environment and profiles.
#[derive(Debug, Clone, Default)]
pub struct StoreOptions {
    /// `--endpoint-url`: goes before `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL` and the profile.
    pub endpoint_url: Option<String>,
    pub region: Option<String>,
    pub addressing: Addressing,
    /// For writers: a local folder is created, checked to be writable, and rid of old temporary files. Readers
    /// leave it off: a missing folder is an error then, and nothing is written.
    pub create_missing: bool,
}

/// Where the bucket stands in the request's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Addressing {
    /// In the path for an endpoint that is not AWS, in the host name for AWS.
    #[default]
    Auto,
    Path,
    Virtual,
}

/// Whether [`open`] would take it, as far as that can be said without asking a server; makes nothing.
///
/// # Errors
/// [`crate::Kind::Config`] as [`open`]: for an address that is none, an endpoint or a file of certificates.
pub async fn check(url: &str, options: &StoreOptions) -> Result<()> {
    match url::parse(url)? {
        url::Location::S3 { .. } => s3::check(options).await,
        url::Location::Folder(_) | url::Location::Memory => Ok(()),
    }
}

/// Opens the store at `url`: `s3://bucket/prefix`, `file:///dir`, or `memory:` for tests. Asks the S3 server
/// nothing yet: whether bucket and credentials are right shows in the first request.
pub async fn open(url: &str, options: &StoreOptions) -> Result<Arc<dyn Store>> {
    Ok(match url::parse(url)? {
        url::Location::S3 { bucket, prefix } => Arc::new(S3Store::open(&bucket, &prefix, options).await?),
        url::Location::Folder(path) => Arc::new(FolderStore::open(path, options.create_missing).await?),
        url::Location::Memory => Arc::new(MemoryStore::new()),
    })
}

/// The rules for keys, the same for every store so that an archive can be copied between them.
pub(crate) fn check_key(prefix: &str, key: &str) -> Result<()> {
    let bad = |why: String| Err(Error::failed(format!("object name {key:?} cannot be stored: {why}")));
    for segment in key.split('/') {
        match segment {
            "" => return bad("it has an empty part between slashes".into()),
            "." | ".." => return bad(format!("{segment:?} is not a name")),
            _ if segment.len() > MAX_SEGMENT => {
                return bad(format!("the part {segment:?} has {} bytes; stores take {MAX_SEGMENT}", segment.len()));
            }
            // SeaweedFS makes a folder of it.
            _ if segment.contains('\\') => return bad("it has a backslash".into()),
            _ if segment.chars().any(char::is_control) => return bad("it has a control character".into()),
            _ => {}
        }
    }
    if key.split('/').next() == Some(TEMPORARY) {
        return bad(format!("{TEMPORARY:?} is kept for temporary files"));
    }
    let length = if prefix.is_empty() { key.len() } else { prefix.len() + 1 + key.len() };
    if length > MAX_KEY {
        return bad(format!("with the archive's prefix it has {length} bytes; stores take {MAX_KEY}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn keys_that_every_store_takes() {
        for key in ["a", "a/b", "data/dt=2026-10-08/pipeline=x/t-7-0-42.parquet", "ä ö/+%3D", "a/.tmp", "a..b/..c"] {
            check_key("", key).unwrap();
        }
        check_key("", &"x".repeat(MAX_SEGMENT)).unwrap();
    }

    #[test]
    fn keys_that_some_store_refuses() {
        let long = "x".repeat(MAX_SEGMENT + 1);
        for key in ["", "/a", "a/", "a//b", ".", "a/../b", "a/./b", "a\nb", "a\\b", ".tmp/x", ".tmp", &long] {
            let error = check_key("", key).unwrap_err();
            assert_eq!(error.kind(), Kind::Failed, "{key:?}");
            assert!(!error.message().contains('\n'));
        }
        // Bytes count, not characters.
        assert!(check_key("", &"ä".repeat(101)).is_err());
    }

    #[test]
    fn the_prefix_counts_towards_the_length_of_a_key() {
        let key = ["x".repeat(200), "y".repeat(200), "z".repeat(200), "u".repeat(200)].join("/");
        assert_eq!(key.len(), 803);
        check_key(&"p".repeat(96), &key).unwrap();
        let error = check_key(&"p".repeat(97), &key).unwrap_err();
        assert!(error.message().contains("901 bytes"), "{error}");
    }

    #[test]
    fn metadata_is_short_printable_and_lower_case() {
        ObjectMeta::new("application/json").with("sha256", "ab").with("rows", "3").check().unwrap();
        assert!(ObjectMeta::default().with("Rows", "3").check().is_err());
        assert!(ObjectMeta::default().with("rows", "ä").check().is_err());
        assert!(ObjectMeta::default().with("rows", " 3").check().is_err());
        assert!(ObjectMeta::default().with("missing", "1".repeat(MAX_META)).check().is_err());
    }
}
