//! An archive in a local folder, NFS included. Owns how objects become files: a key is a path below the folder.
//! Stores no metadata.
//!
//! Invariant: a file appears under its name whole, durable and only once. It is written and synced under
//! `.tmp/`, then moved where nothing is; the folders on its way are synced before `create` answers.

use std::collections::HashSet;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::{Created, Head, Listed, Listing, ObjectMeta, PAGE, Store, TEMPORARY, check_key};
use crate::error::{Error, Kind, Result};

/// Temporary files older than this belong to a run that was killed.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, Clone)]
pub struct FolderStore {
    folder: Arc<Folder>,
}

#[derive(Debug)]
struct Folder {
    root: PathBuf,
    url: String,
    /// Folders whose own entry this process has made durable, with all above them.
    synced: Mutex<HashSet<PathBuf>>,
}

impl FolderStore {
    /// A writer (`create_missing`) makes the folder and finds out here whether it can write; a reader needs it
    /// to exist, and leaves no trace.
    pub async fn open(root: PathBuf, create_missing: bool) -> Result<Self> {
        let url = format!("file://{}", root.display());
        let folder = Arc::new(Folder { root, url, synced: Mutex::default() });
        let store = Self { folder };
        store.blocking(move |folder| if create_missing { folder.prepare() } else { folder.exists() }).await?;
        Ok(store)
    }

    /// File systems block, so each call runs where that is allowed.
    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce(&Folder) -> Result<T> + Send + 'static) -> Result<T> {
        let folder = Arc::clone(&self.folder);
        let done = tokio::task::spawn_blocking(move || work(&folder)).await;
        done.map_err(|error| Error::internal(format!("{}: {error}", self.url())))?
    }
}

#[async_trait]
impl Store for FolderStore {
    fn url(&self) -> &str {
        &self.folder.url
    }

    fn check_key(&self, key: &str) -> Result<()> {
        check_key("", key)
    }

    async fn create(&self, key: &str, body: Bytes, meta: &ObjectMeta) -> Result<Created> {
        self.check_key(key)?;
        meta.check()?;
        let key = key.to_owned();
        self.blocking(move |folder| {
            folder.create(&key, &body).map_err(|error| folder.failed("creating", &key, &error, Kind::Failed))
        })
        .await
    }

    async fn get(&self, key: &str) -> Result<Option<Bytes>> {
        let key = key.to_owned();
        self.blocking(move |folder| match fs::read(folder.path(&key)?) {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(folder.failed("reading", &key, &error, Kind::Failed)),
        })
        .await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        let key = key.to_owned();
        self.blocking(move |folder| {
            let wrong = |why: String| Error::failed(format!("reading {}/{key}: {why}", folder.url));
            let failed = |error: io::Error| match is_absent(&error) {
                true => wrong("no such object".into()),
                false => folder.failed("reading", &key, &error, Kind::Failed),
            };
            let file = File::open(folder.path(&key)?).map_err(failed)?;
            let size = file.metadata().map_err(failed)?.len();
            if range.start > range.end || range.end > size {
                return Err(wrong(format!("bytes {}..{} of {size}", range.start, range.end)));
            }
            let mut bytes = vec![0; (range.end - range.start) as usize];
            file.read_exact_at(&mut bytes, range.start).map_err(failed)?;
            Ok(bytes.into())
        })
        .await
    }

    async fn head(&self, key: &str) -> Result<Option<Head>> {
        let key = key.to_owned();
        self.blocking(move |folder| match fs::metadata(folder.path(&key)?) {
            Ok(found) if found.is_file() => Ok(Some(Head { size: found.len(), meta: ObjectMeta::default() })),
            Ok(_) => Ok(None),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(folder.failed("looking up", &key, &error, Kind::Failed)),
        })
        .await
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: Option<usize>) -> Result<Listing> {
        let (prefix, start_after) = (prefix.to_owned(), start_after.map(str::to_owned));
        let limit = limit.unwrap_or(PAGE).max(1);
        // One more than asked for tells whether there is more.
        let mut objects =
            self.blocking(move |folder| folder.walk(&prefix, start_after.as_deref(), limit.saturating_add(1))).await?;
        let truncated = objects.len() > limit;
        objects.truncate(limit);
        Ok(Listing { objects, truncated })
    }

    /// In one walk: a page of a folder costs as much as the whole.
    async fn list_all(&self, prefix: &str) -> Result<Vec<Listed>> {
        let prefix = prefix.to_owned();
        self.blocking(move |folder| folder.walk(&prefix, None, usize::MAX)).await
    }

    async fn list_folders(&self, prefix: &str) -> Result<Vec<String>> {
        let prefix = prefix.to_owned();
        self.blocking(move |folder| {
            let entries = folder.entries(base(&prefix))?.into_iter();
            Ok(entries.filter(|entry| entry.ends_with('/') && entry.starts_with(&prefix)).collect())
        })
        .await
    }
}

impl Folder {
    fn exists(&self) -> Result<()> {
        match fs::metadata(&self.root) {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => Err(Error::config(format!("{}: that is a file: --archive must be a folder", self.url))),
            Err(error) if is_absent(&error) => {
                Err(Error::config(format!("{}: no such folder: there is no archive there", self.url)))
            }
            Err(error) => Err(self.failed("opening", "", &error, Kind::Config)),
        }
    }

    fn prepare(&self) -> Result<()> {
        let prepared = || -> io::Result<()> {
            fs::create_dir_all(&self.root)?;
            for above in self.root.ancestors() {
                // As far as we may: some of them belong to others.
                let _ = sync_folder(above);
            }
            let temporary = self.root.join(TEMPORARY);
            fs::create_dir_all(&temporary)?;
            let probe = tempfile::Builder::new().prefix("probe-").tempfile_in(&temporary)?;
            // Not by our own clock, which may differ from a file server's.
            let now = probe.as_file().metadata()?.modified()?;
            for entry in fs::read_dir(&temporary)?.flatten() {
                let modified = entry.metadata().and_then(|found| found.modified());
                if modified.is_ok_and(|then| now.duration_since(then).is_ok_and(|age| age > ABANDONED)) {
                    // Harmless if it stays.
                    let _ = fs::remove_file(entry.path());
                }
            }
            Ok(())
        };
        prepared().map_err(|error| self.failed("opening", "", &error, Kind::Config))
    }

    fn path(&self, key: &str) -> Result<PathBuf> {
        check_key("", key)?;
        Ok(self.root.join(key))
    }

    fn create(&self, key: &str, body: &[u8]) -> io::Result<Created> {
        let path = self.root.join(key);
        let parent = path.parent().unwrap_or(&self.root);
        // Looked at first only to spare the writing; the move decides.
        let created = if fs::symlink_metadata(&path).is_ok() {
            Created::Exists
        } else {
            self.make_folders(parent)?;
            let temporary = self.root.join(TEMPORARY);
            make_folder(&temporary)?;
            // Readable for whom the umask allows; a temporary file is private otherwise.
            let mut file = tempfile::Builder::new()
                .prefix("object-")
                .permissions(Permissions::from_mode(0o666))
                .tempfile_in(&temporary)?;
            file.write_all(body)?;
            file.as_file().sync_all()?;
            match file.persist_noclobber(&path) {
                Ok(_) => Created::New,
                Err(error) if error.error.kind() == ErrorKind::AlreadyExists => Created::Exists,
                Err(error) => return Err(error.error),
            }
        };
        if created == Created::Exists && path.is_dir() {
            return Err(io::Error::from(ErrorKind::IsADirectory));
        }
        // Also for another writer's file, whose writer may have died before this.
        sync_folder(parent)?;
        Ok(created)
    }

    /// Makes a folder and those above it, up to the archive's, and their entries durable, once per process:
    /// also of folders that another writer made and has not synced yet. The archive's own folder is not made
    /// again: if it is gone, so is the disk it was on.
    fn make_folders(&self, folder: &Path) -> io::Result<()> {
        let known = self.synced.lock().unwrap_or_else(PoisonError::into_inner).contains(folder);
        if folder == self.root || known && folder.is_dir() {
            return Ok(());
        }
        let parent = folder.parent().unwrap_or(&self.root);
        self.make_folders(parent)?;
        make_folder(folder)?;
        sync_folder(parent)?;
        self.synced.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.to_owned());
        Ok(())
    }

    /// Objects in byte order of their keys: a folder sorts as its name with the slash, after `a.b` and `a-b`.
    fn walk(&self, prefix: &str, start_after: Option<&str>, limit: usize) -> Result<Vec<Listed>> {
        let mut found = Vec::new();
        self.walk_folder(base(prefix), prefix, start_after, limit, &mut found)?;
        Ok(found)
    }

    fn walk_folder(
        &self,
        folder: &str,
        prefix: &str,
        start_after: Option<&str>,
        limit: usize,
        found: &mut Vec<Listed>,
    ) -> Result<()> {
        for entry in self.entries(folder)? {
            if found.len() >= limit {
                break;
            }
            let after = start_after.is_none_or(|after| *entry > *after);
            if entry.ends_with('/') {
                // What lies below begins with the entry, so it can come after a start that does as well.
                let below = after || start_after.is_some_and(|after| after.starts_with(&entry));
                if below && (entry.starts_with(prefix) || prefix.starts_with(&entry)) {
                    self.walk_folder(&entry, prefix, start_after, limit, found)?;
                }
            } else if after && entry.starts_with(prefix) {
                match fs::metadata(self.root.join(&entry)) {
                    Ok(file) => found.push(Listed { size: file.len(), key: entry }),
                    Err(error) if is_absent(&error) => {}
                    Err(error) => return Err(self.failed("listing", &entry, &error, Kind::Failed)),
                }
            }
        }
        Ok(())
    }

    /// What lies in a folder, by full keys in byte order; subfolders end in a slash.
    fn entries(&self, folder: &str) -> Result<Vec<String>> {
        let failed = |error: io::Error| self.failed("listing", folder, &error, Kind::Failed);
        // `..` in a prefix matches no key, and must not lead out of the archive.
        if folder.split('/').any(|part| part == ".." || part == ".") || folder.starts_with('/') {
            return Ok(Vec::new());
        }
        let listed = match fs::read_dir(self.root.join(folder)) {
            Ok(listed) => listed,
            Err(error) if is_absent(&error) => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut entries = Vec::new();
        for entry in listed {
            let entry = entry.map_err(failed)?;
            // A name that is not UTF-8 is not ours.
            let Ok(name) = entry.file_name().into_string() else { continue };
            if folder.is_empty() && name == TEMPORARY {
                continue;
            }
            let mut kind = entry.file_type().map_err(failed)?;
            if kind.is_symlink() {
                let Ok(target) = fs::metadata(entry.path()) else { continue };
                kind = target.file_type();
            }
            match kind {
                kind if kind.is_dir() => entries.push(format!("{folder}{name}/")),
                kind if kind.is_file() => entries.push(format!("{folder}{name}")),
                _ => {}
            }
        }
        entries.sort_unstable();
        Ok(entries)
    }

    /// `otherwise` is the kind of an error that neither passes by itself nor is about rights.
    fn failed(&self, doing: &str, key: &str, error: &io::Error, otherwise: Kind) -> Error {
        let (kind, hint) = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => (Kind::Unavailable, ": make room on that disk"),
            ErrorKind::PermissionDenied => (Kind::Config, ": give this user the right to read and write the folder"),
            ErrorKind::ReadOnlyFilesystem => (Kind::Config, ": the folder is not writable"),
            ErrorKind::NotADirectory => (otherwise, ": a file stands where a folder is needed"),
            ErrorKind::IsADirectory => (otherwise, ": a folder stands where a file is needed"),
            ErrorKind::InvalidFilename => (Kind::Failed, ": the name is too long for that file system"),
            ErrorKind::StaleNetworkFileHandle | ErrorKind::TimedOut | ErrorKind::HostUnreachable => {
                (Kind::Unavailable, ": is the file server there?")
            }
            ErrorKind::NotFound if doing == "opening" => (otherwise, ": no folder can be made there"),
            ErrorKind::NotFound => (Kind::Unavailable, ": is the disk still mounted?"),
            // EIO, ENFILE and EMFILE have no kind of their own.
            _ if matches!(error.raw_os_error(), Some(5 | 23 | 24)) => (Kind::Unavailable, ""),
            _ => (otherwise, ""),
        };
        let url = if key.is_empty() { self.url.clone() } else { format!("{}/{key}", self.url) };
        Error::new(kind, format!("{doing} {url}: {error}{hint}"))
    }
}

/// One folder, whoever is first.
fn make_folder(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && !folder.is_dir() => {
            Err(ErrorKind::NotADirectory.into())
        }
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Makes the names in a folder durable. Some network and user-space file systems cannot be asked to.
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        synced => synced,
    }
}

/// The folder in which keys with this prefix begin.
fn base(prefix: &str) -> &str {
    &prefix[..prefix.rfind('/').map_or(0, |at| at + 1)]
}

/// As in a bucket, where a key that another one goes through (`a` and `a/b`) is just another absent key.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn store() -> (tempfile::TempDir, FolderStore) {
        let dir = tempfile::tempdir().unwrap();
        let store = FolderStore::open(dir.path().join("archive"), true).await.unwrap();
        (dir, store)
    }

    #[tokio::test]
    async fn a_reader_needs_the_folder_and_leaves_no_trace() {
        let dir = tempfile::tempdir().unwrap();
        let error = FolderStore::open(dir.path().join("absent"), false).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Config);
        assert!(error.message().contains("there is no archive there"), "{error}");
        FolderStore::open(dir.path().to_owned(), false).await.unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_written_is_found_out_at_start() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        for root in [dir.path().join("file"), dir.path().join("file/below"), PathBuf::from("/proc/dlq-archive")] {
            let error = FolderStore::open(root, true).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Config, "{error}");
            assert!(!error.message().contains('\n'), "{error}");
        }
    }

    #[tokio::test]
    async fn temporary_files_of_a_killed_run_go_after_a_day() {
        let (dir, _) = store().await;
        let temporary = dir.path().join("archive/.tmp");
        let now = std::time::SystemTime::now();
        for (name, age) in [("object-old", ABANDONED + Duration::from_secs(60)), ("object-new", Duration::ZERO)] {
            let file = File::create(temporary.join(name)).unwrap();
            file.set_modified(now - age).unwrap();
        }
        FolderStore::open(dir.path().join("archive"), true).await.unwrap();
        assert!(!temporary.join("object-old").exists());
        assert!(temporary.join("object-new").exists());
    }

    #[tokio::test]
    async fn files_are_readable_for_whom_the_umask_allows() {
        let (dir, store) = store().await;
        store.create("data/x", Bytes::from_static(b"x"), &ObjectMeta::default()).await.unwrap();
        let plain = dir.path().join("plain");
        File::create(&plain).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&dir.path().join("archive/data/x")), mode(&plain));
        assert_eq!(fs::read_dir(dir.path().join("archive/.tmp")).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_file_where_a_folder_is_needed_and_the_other_way_round() {
        let (_dir, store) = store().await;
        let meta = ObjectMeta::default();
        store.create("a/b", Bytes::new(), &meta).await.unwrap();
        let error = store.create("a", Bytes::new(), &meta).await.unwrap_err();
        assert!(error.message().contains("a folder stands"), "{error}");
        let error = store.create("a/b/c", Bytes::new(), &meta).await.unwrap_err();
        assert!(error.message().contains("a file stands"), "{error}");
        assert_eq!(store.get("a").await.unwrap(), None);
        assert_eq!(store.get("a/b/c").await.unwrap(), None);
        assert_eq!(store.head("a").await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_folder_that_vanishes_is_not_made_again() {
        let (dir, store) = store().await;
        fs::remove_dir_all(dir.path().join("archive")).unwrap();
        let error = store.create("a/b", Bytes::new(), &ObjectMeta::default()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        assert!(!dir.path().join("archive").exists());
    }

    #[tokio::test]
    async fn a_prefix_does_not_lead_out_of_the_archive() {
        let (dir, store) = store().await;
        fs::write(dir.path().join("secret"), "").unwrap();
        assert!(store.list("../", None, None).await.unwrap().objects.is_empty());
        assert!(store.list_folders("../").await.unwrap().is_empty());
        assert!(store.get("../secret").await.is_err());
    }

    #[test]
    fn what_the_operating_system_says() {
        let folder = Folder { root: "/a".into(), url: "file:///a".into(), synced: Mutex::default() };
        for (errno, kind, hint) in [
            (28, Kind::Unavailable, "make room"),
            (122, Kind::Unavailable, "make room"),
            (13, Kind::Config, "right to read and write"),
            (30, Kind::Config, "not writable"),
            (116, Kind::Unavailable, "file server"),
            (5, Kind::Unavailable, "file:///a/k"),
            (24, Kind::Unavailable, "file:///a/k"),
            (36, Kind::Failed, "too long"),
            (20, Kind::Failed, "a file stands"),
        ] {
            let error = folder.failed("creating", "k", &io::Error::from_raw_os_error(errno), Kind::Failed);
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.message().contains(hint), "{error}");
        }
    }
}
