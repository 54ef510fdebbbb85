//! An archive in an S3 bucket. Owns every S3 request; `connect` makes the client, `answer` reads failures.
//! Nothing outside this folder uses the AWS SDK.
//!
//! Invariant: the only request that writes is PutObject with a checksum and `If-None-Match: *`. Without that condition
//! only after [`Store::set_plain`], and behind a HEAD that found nothing.

mod answer;
mod connect;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_s3::config::{Config, ProvideCredentials};
use aws_sdk_s3::operation::get_object::GetObjectOutput;
use aws_sdk_s3::primitives::ByteStream;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{Bytes, BytesMut};
use md5::Md5;
use sha2::{Digest, Sha256};

use self::answer::{Answer, Asked, innermost};
use self::connect::Connection;
pub(super) use self::connect::check;
use super::{Created, Head, Listed, Listing, ObjectMeta, PAGE, Store, StoreOptions, check_key};
use crate::error::{Error, Result};

/// Tries of a create that another writer's simultaneous create gets in the way of.
const CONFLICTS: u32 = 6;
/// Tries of a download that breaks off in the middle: the SDK repeats only what failed before its body.
const DOWNLOADS: u32 = 3;
/// The slowest link on which a large object must still get through, in bytes per second.
const SLOWEST: u64 = 128 * 1024;

pub struct S3Store {
    connection: Connection,
    url: String,
    bucket: String,
    prefix: String,
    /// `x-amz-checksum-sha256` was refused once: Content-MD5 alone from then on.
    md5_only: AtomicBool,
    /// An answer had the SHA-256 that was sent with the body, so the store has computed it: no Content-MD5 from then on.
    verifies_sha256: AtomicBool,
    /// The last create was refused for what it asks, perhaps `If-None-Match`.
    refuses_condition: AtomicBool,
    /// No condition is sent.
    plain: AtomicBool,
}

impl std::fmt::Debug for S3Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "S3Store({} at {})", self.url, self.connection.endpoint)
    }
}

impl S3Store {
    /// `prefix` without slashes at its ends.
    pub async fn open(bucket: &str, prefix: &str, options: &StoreOptions) -> Result<Self> {
        let url = if prefix.is_empty() { format!("s3://{bucket}") } else { format!("s3://{bucket}/{prefix}") };
        let connection = connect::connect(options).await?;
        Ok(Self {
            connection,
            url,
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            md5_only: AtomicBool::new(false),
            verifies_sha256: AtomicBool::new(false),
            refuses_condition: AtomicBool::new(false),
            plain: AtomicBool::new(false),
        })
    }

    /// The key in the bucket, or the beginning of keys.
    fn full(&self, key: &str) -> String {
        if self.prefix.is_empty() { key.to_owned() } else { format!("{}/{key}", self.prefix) }
    }

    /// The key in the archive. None for the placeholders that consoles make for folders.
    fn relative(&self, full: &str) -> Option<String> {
        let key = if self.prefix.is_empty() { full } else { full.strip_prefix(&self.prefix)?.strip_prefix('/')? };
        (!key.is_empty()).then(|| key.to_owned())
    }

    async fn failed(&self, doing: &str, key: &str, answer: &Answer) -> Error {
        let credentials = match answer {
            Answer::Refused { .. } => self.credentials().await,
            _ => String::new(),
        };
        let Connection { endpoint, region, .. } = &self.connection;
        let asked = Asked { bucket: &self.bucket, region, credentials: &credentials };
        let (kind, text) = answer.explain(&asked);
        let url = if key.is_empty() { self.url.clone() } else { format!("{}/{key}", self.url) };
        let message = match answer {
            // Nothing was asked of the store: what is missing comes first.
            Answer::NoCredentials | Answer::CredentialsLater { .. } => format!("{text} ({doing} {url} at {endpoint})"),
            _ => format!("{doing} {url} at {endpoint}: {text}"),
        };
        Error::new(kind, message)
    }

    /// Which credentials are in use, without their secret.
    async fn credentials(&self) -> String {
        let Some(provider) = &self.connection.credentials else { return "credentials".into() };
        let asked = tokio::time::timeout(Duration::from_secs(2), provider.provide_credentials()).await;
        let Ok(Ok(credentials)) = asked else { return "credentials".into() };
        // Only the debug form names the source; it has the secret redacted.
        let debug = format!("{credentials:?}");
        let source = debug.split("provider_name: \"").nth(1).and_then(|rest| rest.split('"').next());
        let start: String = credentials.access_key_id().chars().take(4).collect();
        format!("credentials from {} (access key {start}…)", source.unwrap_or("an unknown source"))
    }

    /// One PutObject, repeated by the SDK where the connection fails.
    async fn put(
        &self,
        key: &str,
        body: &Bytes,
        meta: &ObjectMeta,
        sums: &Checksums,
        with_sha256: bool,
        plain: bool,
    ) -> Result<(), Answer> {
        let attempt = connect::ATTEMPT_TIMEOUT + Duration::from_secs(body.len() as u64 / SLOWEST);
        let mut request = self
            .connection
            .client
            .put_object()
            .bucket(&self.bucket)
            .key(self.full(key))
            .set_if_none_match((!plain).then(|| "*".to_owned()))
            .set_content_md5(sums.md5.clone())
            .set_content_type(meta.content_type().map(str::to_owned))
            .body(ByteStream::from(body.clone()));
        if with_sha256 {
            request = request.checksum_sha256(&sums.sha256);
        }
        for (name, value) in meta.iter() {
            request = request.metadata(name, value);
        }
        let patient = Config::builder().timeout_config(connect::timeouts(attempt));
        match request.customize().config_override(patient).send().await {
            Ok(output) => {
                if with_sha256 && output.checksum_sha256.as_ref() == Some(&sums.sha256) {
                    self.verifies_sha256.store(true, Ordering::Relaxed);
                }
                Ok(())
            }
            Err(error) => Err(Answer::read(&error)),
        }
    }

    /// A try without `x-amz-checksum-sha256` came through, and one with it did not.
    fn without_sha256(&self) {
        if !self.md5_only.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                store = self.url,
                "the store refuses x-amz-checksum-sha256: Content-MD5 alone protects uploads"
            );
        }
    }

    /// A whole body, or the part asked for. `None` if the key is absent.
    async fn download(&self, key: &str, range: Option<&Range<u64>>) -> Result<Option<Bytes>> {
        self.check_key(key)?;
        let mut last = String::new();
        for _ in 0..DOWNLOADS {
            let header = range.map(|range| format!("bytes={}-{}", range.start, range.end - 1));
            let get = self.connection.client.get_object().bucket(&self.bucket).key(self.full(key));
            let output = match get.set_range(header).send().await {
                Ok(output) => output,
                Err(error) => match Answer::read(&error) {
                    answer if answer.is_absent() => return Ok(None),
                    answer => return Err(self.failed("reading", key, &answer).await),
                },
            };
            match collect(output).await {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(why) => last = why,
            }
        }
        Err(self.failed("reading", key, &Answer::Silent { why: last }).await)
    }
}

#[async_trait]
impl Store for S3Store {
    fn url(&self) -> &str {
        &self.url
    }

    fn check_key(&self, key: &str) -> Result<()> {
        check_key(&self.prefix, key)
    }

    async fn create(&self, key: &str, body: Bytes, meta: &ObjectMeta) -> Result<Created> {
        self.check_key(key)?;
        meta.check()?;
        let mut with_sha256 = !self.md5_only.load(Ordering::Relaxed);
        let with_md5 = !(with_sha256 && self.verifies_sha256.load(Ordering::Relaxed));
        let mut sums = Checksums::of(&body, meta, with_md5).await?;
        let mut conflicts = 0;
        loop {
            let plain = self.plain.load(Ordering::Relaxed);
            if plain && self.head(key).await?.is_some() {
                return Ok(Created::Exists);
            }
            let answer = self.put(key, &body, meta, &sums, with_sha256, plain).await;
            let refused = answer.as_ref().err().is_some_and(Answer::is_condition_unknown);
            self.refuses_condition.store(refused && !plain, Ordering::Relaxed);
            if !with_sha256 && answer.as_ref().err().is_none_or(Answer::is_exists) {
                self.without_sha256();
            }
            match answer {
                Ok(()) => return Ok(Created::New),
                Err(answer) if answer.is_exists() => return Ok(Created::Exists),
                Err(answer) if answer.is_conflict() && conflicts < CONFLICTS => {
                    tokio::time::sleep(Duration::from_millis(100 << conflicts)).await;
                    conflicts += 1;
                }
                // The condition stays: without it this would be an overwrite.
                Err(answer) if with_sha256 && answer.is_checksum_unknown() => {
                    with_sha256 = false;
                    sums = Checksums::of(&body, meta, true).await?;
                }
                // Broken on the way it may come through later, but not if it was told a wrong sum.
                Err(answer)
                    if answer.is_bad_digest()
                        && sums.sha256 != Checksums::of(&body, &ObjectMeta::default(), false).await?.sha256 =>
                {
                    let text = format!("creating {}/{key}: the sha256 in the metadata is not the body's", self.url);
                    return Err(Error::internal(text));
                }
                Err(answer) => return Err(self.failed("creating", key, &answer).await),
            }
        }
    }

    fn refuses_condition(&self) -> bool {
        self.refuses_condition.load(Ordering::Relaxed)
    }

    fn set_plain(&self, plain: bool) -> Option<Duration> {
        self.plain.store(plain, Ordering::Relaxed);
        Some(connect::LONGEST_REQUEST)
    }

    async fn get(&self, key: &str) -> Result<Option<Bytes>> {
        self.download(key, None).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        let wrong = |why: String| Error::failed(format!("reading {}/{key}: {why}", self.url));
        if range.start >= range.end {
            // S3 cannot be asked for nothing; the object must be there and long enough all the same.
            return match self.head(key).await? {
                None => Err(wrong("no such object".into())),
                Some(head) if range.start > range.end || range.end > head.size => {
                    Err(wrong(format!("bytes {}..{} of {}", range.start, range.end, head.size)))
                }
                Some(_) => Ok(Bytes::new()),
            };
        }
        let bytes = self.download(key, Some(&range)).await?.ok_or_else(|| wrong("no such object".into()))?;
        if bytes.len() as u64 != range.end - range.start {
            return Err(wrong(format!("asked for bytes {}..{}, got {} bytes", range.start, range.end, bytes.len())));
        }
        Ok(bytes)
    }

    async fn head(&self, key: &str) -> Result<Option<Head>> {
        self.check_key(key)?;
        match self.connection.client.head_object().bucket(&self.bucket).key(self.full(key)).send().await {
            Ok(output) => {
                // Some servers give the names back with capitals, as HTTP headers are often written.
                let user = output.metadata.unwrap_or_default().into_iter();
                let user = user.map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
                let meta = ObjectMeta { content_type: output.content_type, user };
                Ok(Some(Head { size: output.content_length.unwrap_or_default().max(0) as u64, meta }))
            }
            Err(error) => match Answer::read(&error) {
                answer if answer.is_absent() => Ok(None),
                answer => Err(self.failed("looking up", key, &answer).await),
            },
        }
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: Option<usize>) -> Result<Listing> {
        let limit = limit.unwrap_or(PAGE).max(1);
        // Older SeaweedFS answers nothing to a start that lies before the prefix.
        let start_after = start_after.filter(|after| *after >= prefix);
        let mut listing = Listing::default();
        let mut token = None;
        loop {
            let wanted = (limit - listing.objects.len()).min(PAGE);
            let request = self.connection.client.list_objects_v2().bucket(&self.bucket).prefix(self.full(prefix));
            let request = match token.take() {
                Some(token) => request.continuation_token(token),
                None => request.set_start_after(start_after.map(|after| self.full(after))),
            };
            let page = match request.max_keys(wanted as i32).send().await {
                Ok(page) => page,
                Err(error) => return Err(self.failed("listing", prefix, &Answer::read(&error)).await),
            };
            for object in page.contents.unwrap_or_default() {
                let key =
                    object.key.as_deref().filter(|full| !full.ends_with('/')).and_then(|full| self.relative(full));
                if let Some(key) = key {
                    listing.objects.push(Listed { key, size: object.size.unwrap_or_default().max(0) as u64 });
                }
            }
            token = page.next_continuation_token;
            listing.truncated = page.is_truncated.unwrap_or_default() && token.is_some();
            // Placeholders do not count, so that a page is empty only at the end.
            if !listing.truncated || listing.objects.len() >= limit {
                return Ok(listing);
            }
        }
    }

    async fn list_folders(&self, prefix: &str) -> Result<Vec<String>> {
        let client = &self.connection.client;
        let request = client.list_objects_v2().bucket(&self.bucket).prefix(self.full(prefix)).delimiter("/");
        let mut pages = request.into_paginator().send();
        let mut folders = Vec::new();
        while let Some(page) = pages.next().await {
            let page = match page {
                Ok(page) => page,
                Err(error) => return Err(self.failed("listing", prefix, &Answer::read(&error)).await),
            };
            let found = page.common_prefixes.unwrap_or_default();
            folders.extend(found.into_iter().filter_map(|folder| self.relative(&folder.prefix?)));
        }
        folders.sort_unstable();
        folders.dedup();
        Ok(folders)
    }
}

/// Both sums in the form of their headers.
struct Checksums {
    md5: Option<String>,
    sha256: String,
}

impl Checksums {
    /// The SHA-256 in the metadata, where there is one, is taken as the checksum: so the store checks that the
    /// metadata tells the truth, and the body is hashed once less.
    async fn of(body: &Bytes, meta: &ObjectMeta, with_md5: bool) -> Result<Self> {
        let known = meta.get("sha256").and_then(unhex);
        let body = body.clone();
        let sums = move || Self {
            md5: with_md5.then(|| BASE64.encode(Md5::digest(&body))),
            sha256: BASE64.encode(known.unwrap_or_else(|| Sha256::digest(&body).into())),
        };
        tokio::task::spawn_blocking(sums).await.map_err(|error| Error::internal(format!("checksums: {error}")))
    }
}

fn unhex(hex: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

/// The body in one piece; an error tells why it is not whole.
async fn collect(output: GetObjectOutput) -> Result<Bytes, String> {
    let length = output.content_length.and_then(|length| usize::try_from(length).ok());
    let mut body = output.body;
    // A wrong length in the header must not make us take all memory at once.
    let mut bytes = BytesMut::with_capacity(length.unwrap_or_default().min(256 << 20));
    while let Some(chunk) = body.next().await {
        bytes.extend_from_slice(&chunk.map_err(|error| innermost(&error))?);
    }
    match length {
        Some(length) if length != bytes.len() => Err(format!("{} of {length} bytes came", bytes.len())),
        _ => Ok(bytes.freeze()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_of_a_sha256() {
        assert_eq!(unhex(&"0f".repeat(32)), Some([15; 32]));
        for wrong in ["", "0f", &"zz".repeat(32), &"é".repeat(32), &"+1".repeat(31)] {
            assert_eq!(unhex(wrong), None);
        }
    }

    #[tokio::test]
    async fn the_sum_in_the_metadata_is_the_one_that_is_sent() {
        let body = Bytes::from_static(b"abc");
        let plain = Checksums::of(&body, &ObjectMeta::default(), true).await.unwrap();
        assert_eq!(plain.md5.as_deref(), Some("kAFQmDzST7DWlj99KOF/cg=="));
        assert_eq!(plain.sha256, "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
        let told = ObjectMeta::default().with("sha256", "00".repeat(32));
        assert_eq!(Checksums::of(&body, &told, false).await.unwrap().sha256, BASE64.encode([0; 32]));
    }
}
