//! Reads an archive's address. Owns which addresses there are and what to type instead of a wrong one. Opens
//! nothing.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// `prefix` has no slash at its ends and may be empty.
    S3 {
        bucket: String,
        prefix: String,
    },
    Folder(PathBuf),
    Memory,
}

/// The address without what stands before its last `@`, which may be a password. What begins as a path has none.
pub(super) fn redacted(url: &str) -> Cow<'_, str> {
    let start = url.find("://").map_or(0, |at| at + 3);
    match url[start..].rsplit_once('@') {
        Some((before, rest)) if !before.starts_with(['/', '.', '~']) => {
            Cow::Owned(format!("{}***@{rest}", &url[..start]))
        }
        _ => Cow::Borrowed(url),
    }
}

/// Taken as typed: neither kind of address has percent escapes undone, as in the AWS command line.
pub(super) fn parse(url: &str) -> Result<Location> {
    if url == "memory:" {
        return Ok(Location::Memory);
    }
    if let Some(rest) = url.strip_prefix("s3://") {
        return parse_s3(url, rest);
    }
    // From here on it is only repeated.
    let url = &*redacted(url);
    if let Some(path) = url.strip_prefix("file://") {
        return parse_folder(url, path);
    }
    let hint = match url.split_once(':') {
        _ if url.trim().is_empty() => "type s3://BUCKET/PREFIX or file:///DIR".to_owned(),
        Some(("http" | "https", _)) => "type s3://BUCKET/PREFIX, and the server's address as --endpoint-url".to_owned(),
        Some((scheme, rest)) if ["s3", "s3a", "s3n"].contains(&scheme.to_ascii_lowercase().as_str()) => {
            format!("type s3://{}", rest.trim_start_matches('/'))
        }
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("file") => format!("type {}", folder_url(rest)),
        Some((scheme, _)) if scheme.len() > 1 && scheme.bytes().all(|c| c.is_ascii_alphanumeric()) => {
            format!("{scheme}: is not supported; type s3://BUCKET/PREFIX or file:///DIR")
        }
        _ => format!("type {} for a local folder, or s3://BUCKET/PREFIX", folder_url(url)),
    };
    Err(wrong(url, &hint))
}

fn parse_s3(url: &str, rest: &str) -> Result<Location> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(wrong(url, "the bucket is missing; type s3://BUCKET/PREFIX"));
    }
    let plain = |c: u8| c.is_ascii_alphanumeric() || b".-_".contains(&c);
    if !bucket.bytes().all(plain) || !(3..=255).contains(&bucket.len()) {
        if rest.contains('@') {
            return Err(wrong(
                url,
                "keys do not belong into it; type s3://BUCKET/PREFIX, and set AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
            ));
        }
        return Err(wrong(url, &format!("{bucket:?} is not a bucket's name; type s3://BUCKET/PREFIX")));
    }
    let prefix = prefix.trim_end_matches('/');
    if !prefix.is_empty() {
        super::check_key("", prefix).map_err(|error| wrong(url, &format!("its prefix is no good: {error}")))?;
        // Room for the names of the archive's own objects.
        if prefix.len() > 300 {
            return Err(wrong(url, "its prefix is longer than 300 bytes; shorten it"));
        }
    }
    Ok(Location::S3 { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
}

fn parse_folder(url: &str, path: &str) -> Result<Location> {
    // `localhost` is the one host that a file URL may name.
    let path = path.strip_prefix("localhost").filter(|rest| rest.starts_with('/')).unwrap_or(path);
    if path.is_empty() {
        return Err(wrong(url, "the folder is missing; type file:///DIR"));
    }
    if path.contains('\0') {
        return Err(wrong(url, "it has a NUL character"));
    }
    if !path.starts_with('/') {
        return Err(wrong(url, &format!("a local folder begins with three slashes; type {}", folder_url(path))));
    }
    Ok(Location::Folder(PathBuf::from(path)))
}

/// What to type for a path, seen from the current folder.
fn folder_url(path: &str) -> String {
    let path = path.trim_start_matches("./");
    match path.strip_prefix("~/").and_then(|rest| Some(std::env::home_dir()?.join(rest))) {
        Some(home) => format!("file://{}", home.display()),
        None => match std::path::absolute(Path::new(path)) {
            Ok(absolute) => format!("file://{}", absolute.display()),
            Err(_) => "file:///DIR".to_owned(),
        },
    }
}

fn wrong(url: &str, hint: &str) -> Error {
    Error::config(format!("--archive {:?} is not an archive's address: {hint}", redacted(url)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn addresses() {
        let s3 = |bucket: &str, prefix: &str| Location::S3 { bucket: bucket.into(), prefix: prefix.into() };
        assert_eq!(parse("s3://dlq").unwrap(), s3("dlq", ""));
        assert_eq!(parse("s3://dlq/").unwrap(), s3("dlq", ""));
        assert_eq!(parse("s3://dlq/prod/a b/").unwrap(), s3("dlq", "prod/a b"));
        assert_eq!(parse("file:///var/dlq").unwrap(), Location::Folder("/var/dlq".into()));
        assert_eq!(parse("file://localhost/var/dlq").unwrap(), Location::Folder("/var/dlq".into()));
        assert_eq!(parse("memory:").unwrap(), Location::Memory);
    }

    #[test]
    fn keys_in_an_address_are_not_repeated() {
        for typed in [
            "s3://AKIAKEY:s3cr3t@bucket/x",
            "s3://AKIAKEY:SEC/s3cr3t@bucket/x",
            "s3://s3cr3t@bucket",
            "s3a://AKIAKEY:s3cr3t@bucket/x",
            "S3://AKIAKEY:s3cr3t@bucket/x",
            "s3:AKIAKEY:s3cr3t@bucket/x",
            "https://AKIAKEY:s3cr3t@host/bucket",
            "http://AKIAKEY:p@s3cr3t@host/bucket",
            "gs://AKIAKEY:s3cr3t@bucket",
            "file://AKIAKEY:s3cr3t@host/x",
            "AKIAKEY:s3cr3t@bucket/x",
            "AKIAKEY/s3cr3t@bucket/x",
        ] {
            let error = parse(typed).unwrap_err();
            assert_eq!(error.kind(), Kind::Config, "{typed}");
            assert!(!error.message().contains("AKIA") && !error.message().contains("s3cr3t"), "{typed}: {error}");
            assert!(error.message().contains("***@"), "{typed}: {error}");
        }
        let error = parse("s3://AKIAKEY:s3cr3t@bucket/x").unwrap_err();
        assert!(error.message().contains("AWS_ACCESS_KEY_ID"), "{error}");
        // No password, and what to type has it all.
        assert!(parse("/var/dlq@home").unwrap_err().message().contains("type file:///var/dlq@home"));
    }

    #[test]
    fn a_mistyped_address_is_answered_with_what_to_type() {
        for (typed, hint) in [
            ("", "s3://BUCKET/PREFIX"),
            ("s3:/bucket/x", "type s3://bucket/x"),
            ("s3:bucket", "type s3://bucket"),
            ("S3://bucket/x", "type s3://bucket/x"),
            ("s3a://bucket/x", "type s3://bucket/x"),
            ("s3://", "bucket is missing"),
            ("s3:///x", "bucket is missing"),
            ("s3://a", "not a bucket's name"),
            ("s3://host:9000/bucket", "not a bucket's name"),
            ("s3://bucket//x", "empty part"),
            ("s3://bucket/../x", "not a name"),
            ("http://localhost:9000/bucket", "--endpoint-url"),
            ("https://bucket.s3.amazonaws.com/x", "--endpoint-url"),
            ("gs://bucket/x", "gs: is not supported"),
            ("/var/dlq", "type file:///var/dlq"),
            ("dlq", "type file:///"),
            ("./dlq", "/dlq for a local folder"),
            ("file:/var/dlq", "type file:///var/dlq"),
            ("file://var/dlq", "three slashes"),
            ("file://", "folder is missing"),
        ] {
            let error = parse(typed).unwrap_err();
            assert_eq!(error.kind(), Kind::Config, "{typed}");
            assert!(error.message().contains(hint), "{typed}: {error}");
            assert!(!error.message().contains('\n'), "{typed}: {error}");
        }
    }
}
