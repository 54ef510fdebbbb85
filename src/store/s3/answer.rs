//! What a failed request means. Owns the reading of SDK errors and S3 error codes, and their messages. Sends
//! nothing.
//!
//! Invariant: a message is one line and tells what to do next; only what a person must change is `Config`.

use std::error::Error as StdError;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};

use crate::error::Kind;

/// An SDK error reduced to what decisions are made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// The store answered with an error.
    Refused {
        status: u16,
        code: String,
        message: String,
        region: Option<String>,
    },
    /// Something answered that does not speak S3.
    NotS3 {
        status: u16,
    },
    /// No answer, or not a whole one.
    Silent {
        why: String,
    },
    NoCredentials,
    /// The profile or the like has a mistake.
    WrongCredentials {
        why: String,
    },
    /// The credentials are configured, but cannot be had at the moment.
    CredentialsLater {
        why: String,
    },
    /// The request could not be made.
    Unsent {
        why: String,
    },
}

/// Who asked whom for what, for the message.
pub(super) struct Asked<'a> {
    pub bucket: &'a str,
    pub region: &'a str,
    /// "credentials from ... (access key ...)"
    pub credentials: &'a str,
}

impl Answer {
    pub(super) fn read<E>(error: &SdkError<E, HttpResponse>) -> Self
    where
        E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
    {
        if let Some(credentials) = causes(error).find_map(|cause| cause.downcast_ref::<CredentialsError>()) {
            return match credentials {
                CredentialsError::CredentialsNotLoaded(_) => Answer::NoCredentials,
                CredentialsError::InvalidConfiguration(_) => Answer::WrongCredentials { why: innermost(credentials) },
                _ => Answer::CredentialsLater { why: innermost(credentials) },
            };
        }
        match error {
            SdkError::ServiceError(service) => {
                let (status, region) = head(service.raw());
                let error = service.err();
                let code = error.code().unwrap_or_default().to_owned();
                let message = error.message().unwrap_or_default().to_owned();
                let html = service.raw().headers().get("content-type").is_some_and(|kind| kind.contains("html"));
                if code.is_empty() && html && status < 500 {
                    return Answer::NotS3 { status };
                }
                Answer::Refused { status, code, message, region }
            }
            SdkError::ResponseError(response) => match head(response.raw()).0 {
                status @ 500.. => Answer::Refused { status, code: String::new(), message: String::new(), region: None },
                status => Answer::NotS3 { status },
            },
            SdkError::ConstructionFailure(_) => Answer::Unsent { why: innermost(error) },
            SdkError::DispatchFailure(failure) if failure.is_user() => Answer::Unsent { why: innermost(error) },
            _ => Answer::Silent { why: innermost(error) },
        }
    }

    /// The key, or the bucket of a HEAD, is absent.
    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Answer::Refused { status: 404, code, .. } if code != "NoSuchBucket")
    }

    pub(super) fn is_exists(&self) -> bool {
        matches!(self, Answer::Refused { status: 412, .. })
    }

    /// Somebody else is writing the same key at this moment.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Answer::Refused { status: 409, .. })
    }

    /// The body that arrived does not fit its checksum.
    pub(super) fn is_bad_digest(&self) -> bool {
        matches!(self, Answer::Refused { code, .. } if code == "BadDigest" || code == "XAmzContentChecksumMismatch")
    }

    /// `If-None-Match` is not known there, if it was not `x-amz-checksum-sha256`: 501 does not say which header it is.
    pub(super) fn is_condition_unknown(&self) -> bool {
        match self {
            Answer::Refused { status: 501, .. } => true,
            Answer::Refused { status: 400, message, .. } => message.to_ascii_lowercase().contains("if-none-match"),
            _ => false,
        }
    }

    /// `x-amz-checksum-sha256` may be what is not known there (Backblaze: 400 and the header's name; others: 501): a try
    /// without it tells.
    pub(super) fn is_checksum_unknown(&self) -> bool {
        match self {
            Answer::Refused { status: 501, .. } => true,
            Answer::Refused { status: 400, code, message, .. } => {
                // One that lacks Content-MD5 gets it without this one.
                let about = |what| message.to_ascii_lowercase().contains(what);
                !self.is_bad_digest() && code != "InvalidDigest" && (about("checksum") || about("content-md5"))
            }
            _ => false,
        }
    }

    /// What to do about it, and a text without "who and where".
    pub(super) fn explain(&self, asked: &Asked<'_>) -> (Kind, String) {
        let Asked { bucket, region, credentials } = asked;
        let config = |text: String| (Kind::Config, text);
        match self {
            Answer::Refused { status, code, message, region: other } => {
                let said = said(*status, code, message);
                match (*status, code.as_str()) {
                    (_, "NoSuchBucket") => {
                        config(format!("bucket {bucket} does not exist: create it, or correct --archive"))
                    }
                    (_, "InvalidBucketName") => config(format!("{bucket} is not a bucket's name: correct --archive")),
                    (
                        _,
                        "PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException",
                    )
                    | (301 | 307, _) => match other {
                        Some(other) => config(format!("bucket {bucket} is in region {other}: set AWS_REGION={other}")),
                        None => {
                            config(format!("bucket {bucket} is not in region {region}: correct AWS_REGION ({said})"))
                        }
                    },
                    (_, "InvalidAccessKeyId" | "InvalidClientTokenId") => config(format!(
                        "the store does not know the {credentials}: check AWS_PROFILE, AWS_ACCESS_KEY_ID, \
                         and that the endpoint is the right one ({said})"
                    )),
                    (_, "SignatureDoesNotMatch") => config(format!(
                        "wrong secret key in the {credentials}: check AWS_SECRET_ACCESS_KEY or the profile ({said})"
                    )),
                    (_, "RequestTimeTooSkewed") => config(format!("this machine's clock is wrong: set it ({said})")),
                    (_, "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired") => {
                        config(format!("the session of the {credentials} is over: log in again ({said})"))
                    }
                    (_, "QuotaExceeded" | "InsufficientStorage" | "XMinioStorageFull") | (507, _) => {
                        (Kind::Unavailable, format!("the store is full: make room ({said})"))
                    }
                    (401 | 403, _) => config(format!(
                        "access denied to the {credentials}: check them, and the policy, which must allow \
                         s3:GetObject, s3:PutObject and, on the bucket, s3:ListBucket (without it even an absent \
                         object answers 403) ({said})"
                    )),
                    (501, _) => config(format!(
                        "the store cannot do this; If-None-Match on PutObject and ListObjectsV2 are needed ({said}). \
                         Without the former --store-create plain works, with one writer at a time"
                    )),
                    (_, "SlowDown" | "RequestTimeout" | "BadDigest" | "OperationAborted" | "IncompleteBody")
                    | (408 | 409 | 429 | 500.., _) => (Kind::Unavailable, format!("try later ({said})")),
                    (404 | 405, _) if code.is_empty() => {
                        config(format!("that is no S3 server ({said}): correct --endpoint-url"))
                    }
                    _ => (Kind::Failed, format!("refused ({said})")),
                }
            }
            Answer::NotS3 { status } => {
                config(format!("that is no S3 server (HTTP {status} without an S3 answer): correct --endpoint-url"))
            }
            Answer::Silent { why } if why.contains("invalid peer certificate") => config(format!(
                "its certificate is not trusted ({why}): name your CA's PEM file in AWS_CA_BUNDLE, \
                 or correct the host name"
            )),
            Answer::Silent { why } if why.contains("InvalidContentType") => {
                config(format!("it does not speak TLS ({why}): type http:// in --endpoint-url"))
            }
            Answer::Silent { why } => (Kind::Unavailable, format!("no answer ({why})")),
            Answer::NoCredentials => {
                config("no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE".into())
            }
            Answer::WrongCredentials { why } => config(format!("the AWS credentials are set up wrongly ({why})")),
            Answer::CredentialsLater { why } => (
                Kind::Unavailable,
                format!(
                    "no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE. Last asked: {why}"
                ),
            ),
            Answer::Unsent { why } => (Kind::Failed, format!("the request cannot be sent ({why})")),
        }
    }
}

fn head(response: &HttpResponse) -> (u16, Option<String>) {
    (response.status().as_u16(), response.headers().get("x-amz-bucket-region").map(str::to_owned))
}

fn said(status: u16, code: &str, message: &str) -> String {
    let text = format!("HTTP {status} {code}");
    match one_line(message) {
        message if message.is_empty() => text.trim_end().to_owned(),
        message => format!("{}: {message}", text.trim_end()),
    }
}

fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn StdError + 'static)| (*error).source())
}

/// The first cause in the chain says what happened; the layers above it say where in the SDK.
pub(super) fn innermost(error: &(dyn StdError + 'static)) -> String {
    one_line(&causes(error).last().map(ToString::to_string).unwrap_or_default())
}

fn one_line(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match words.char_indices().nth(200) {
        Some((at, _)) => format!("{}…", &words[..at]),
        None => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Asked<'_> =
        Asked { bucket: "dlq", region: "eu-west-1", credentials: "credentials from Environment (access key AKIA…)" };

    fn refused(status: u16, code: &str) -> Answer {
        Answer::Refused { status, code: code.into(), message: "Told\n  so.".into(), region: None }
    }

    #[test]
    fn what_an_operator_does_about_an_answer() {
        use Kind::{Config, Failed, Unavailable};
        for (status, code, kind, hint) in [
            (404, "NoSuchBucket", Config, "bucket dlq does not exist: create it, or correct --archive"),
            (403, "AccessDenied", Config, "s3:ListBucket"),
            (403, "", Config, "s3:ListBucket"),
            (403, "InvalidAccessKeyId", Config, "access key AKIA…"),
            (403, "SignatureDoesNotMatch", Config, "AWS_SECRET_ACCESS_KEY"),
            (403, "RequestTimeTooSkewed", Config, "clock"),
            (400, "ExpiredToken", Config, "log in again"),
            (301, "PermanentRedirect", Config, "not in region eu-west-1"),
            (501, "NotImplemented", Config, "If-None-Match"),
            (503, "SlowDown", Unavailable, "SlowDown"),
            (500, "InternalError", Unavailable, "HTTP 500"),
            (502, "", Unavailable, "HTTP 502"),
            (429, "", Unavailable, "HTTP 429"),
            (507, "", Unavailable, "full"),
            (400, "BadDigest", Unavailable, "BadDigest"),
            (400, "EntityTooLarge", Failed, "EntityTooLarge"),
        ] {
            let (found, text) = refused(status, code).explain(&ASKED);
            assert_eq!(found, kind, "{status} {code}");
            assert!(text.contains(hint), "{status} {code}: {text}");
            assert!(!text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn the_region_of_a_redirect_is_named() {
        let answer = Answer::Refused {
            status: 301,
            code: "PermanentRedirect".into(),
            message: String::new(),
            region: Some("eu-north-1".into()),
        };
        let (kind, text) = answer.explain(&ASKED);
        assert_eq!(kind, Kind::Config);
        assert_eq!(text, "bucket dlq is in region eu-north-1: set AWS_REGION=eu-north-1");
    }

    #[test]
    fn a_store_that_does_not_know_the_checksum_header_is_told_from_a_broken_body() {
        let backblaze = Answer::Refused {
            status: 400,
            code: "InvalidArgument".into(),
            message: "Unsupported header 'x-amz-checksum-sha256' received for this API call.".into(),
            region: None,
        };
        assert!(backblaze.is_checksum_unknown());
        assert!(refused(501, "NotImplemented").is_checksum_unknown());
        let broken = Answer::Refused {
            status: 400,
            code: "BadDigest".into(),
            message: "The SHA256 checksum you specified did not match".into(),
            region: None,
        };
        assert!(!broken.is_checksum_unknown());
        assert!(!broken.is_condition_unknown() && !backblaze.is_condition_unknown());
        assert!(refused(501, "NotImplemented").is_condition_unknown());
    }

    #[test]
    fn absent_is_a_key_not_a_bucket() {
        assert!(refused(404, "NoSuchKey").is_absent());
        assert!(refused(404, "NotFound").is_absent());
        assert!(!refused(404, "NoSuchBucket").is_absent());
    }

    #[test]
    fn a_long_answer_stays_one_line() {
        let text = one_line(&"wörd\n".repeat(500));
        assert!(text.chars().count() == 201 && !text.contains('\n'));
    }
}
