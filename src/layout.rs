//! Names of objects: where a record's data and a partition's ledger lie below the archive's root.
//!
//! Owns escaping, the partition folders (`dt=`, `pipeline=`) and the reading back of ledger names. Knows no store
//! and no contents. Invariant: a name is a function of topic, partition, generation, offsets, date and pipeline
//! alone; two different ones never share a name, and no segment begins with `_` or `.` or is over 200 bytes.

use crate::error::{Error, Result};
use chrono::{DateTime, Datelike};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fmt::Write;

/// Bytes that a path segment may have: object stores and local disks refuse longer ones (255 minus suffixes).
pub const MAX_SEGMENT: usize = 200;
/// Bytes that a whole key may have, the archive's own prefix included (S3: 1024).
pub const MAX_KEY: usize = 900;

/// The date folder of records without a usable timestamp.
pub const NO_DATE: &str = "1970-01-01";

pub const ARCHIVE_KEY: &str = "archive.json";
pub const DATA_PREFIX: &str = "data/";
pub const LEDGER_PREFIX: &str = "ledger/";
/// Originals that were read again from their source topics, in the same folders as under [`DATA_PREFIX`].
pub const REFETCHED_PREFIX: &str = "refetched/";
pub const REFETCHED_LEDGER_PREFIX: &str = "refetched/ledger/";
/// What people decided about archived records.
pub const DISPOSITIONS_PREFIX: &str = "dispositions/";

/// The `pipeline` folder of objects that several pipelines share. No pipeline has it: it ends as an escaped name does, and
/// does not begin as one.
pub const SHARED: &str = "shared.00000000";

/// Words that one SQL engine or another reads as a value of another type (any case).
const WORDS: [&str; 8] = ["true", "false", "null", "none", "nan", "inf", "infinity", "epoch"];

fn is_plain(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')
}

fn is_kept(name: &str) -> bool {
    let b = name.as_bytes();
    let ends_like_escaped =
        b.len() >= 9 && b[b.len() - 9] == b'.' && b[b.len() - 8..].iter().all(u8::is_ascii_hexdigit);
    (2..=100).contains(&b.len())
        && b[..2].iter().all(u8::is_ascii_alphabetic)
        && b.iter().copied().all(is_plain)
        && !ends_like_escaped
        && !WORDS.iter().any(|w| name.eq_ignore_ascii_case(w))
}

/// A topic or pipeline name as it stands in paths: itself if every engine and store reads it as that text, else
/// `p-`, a readable rest of at most 60 bytes, and 8 hex digits of the exact name's SHA-256.
pub fn escape(name: &str) -> Cow<'_, str> {
    if is_kept(name) {
        return Cow::Borrowed(name);
    }
    let mut out = String::with_capacity(71);
    out.push_str("p-");
    let mut in_run = false;
    for c in name.chars() {
        if out.len() == 62 {
            break;
        }
        let plain = u8::try_from(c).is_ok_and(is_plain);
        if plain {
            out.push(c);
        } else if !in_run {
            out.push('-');
        }
        in_run = !plain;
    }
    out.push('.');
    for b in &Sha256::digest(name.as_bytes())[..4] {
        let _ = write!(out, "{b:02x}");
    }
    Cow::Owned(out)
}

/// The date folder's value: UTC date of a Kafka timestamp, [`NO_DATE`] where it is absent or outside 1970 to 9999.
pub fn dt(timestamp_ms: i64) -> String {
    match DateTime::from_timestamp_millis(timestamp_ms) {
        Some(t) if timestamp_ms >= 0 && t.year() <= 9999 => t.format("%Y-%m-%d").to_string(),
        _ => NO_DATE.to_owned(),
    }
}

/// What one data object holds of one topic partition: `[from, to)`, in one generation of the topic.
/// `dt` is as [`dt`] gives it, `pipeline` the exact name, `None` where several share it, `extension` without its dot.
#[allow(clippy::too_many_arguments)]
pub fn data_key(
    topic: &str,
    partition: i32,
    generation: u32,
    from: i64,
    to: i64,
    dt: &str,
    pipeline: Option<&str>,
    extension: &str,
) -> String {
    let (topic, pipeline) = (escape(topic), pipeline.map_or(SHARED.into(), escape));
    let mark = if generation > 1 { format!(".g{generation}.") } else { "-".to_owned() };
    format!("{DATA_PREFIX}dt={dt}/pipeline={pipeline}/{topic}-{partition}{mark}{from:020}-{to:020}.{extension}")
}

/// The folder of one partition's ledger, `/` at its end; from the second generation on a folder inside it.
pub fn ledger_prefix(topic: &str, partition: i32, generation: u32) -> String {
    generation_prefix(&format!("{LEDGER_PREFIX}{}/{partition}/", escape(topic)), generation)
}

/// A generation's ledger folder inside the partition's, which is `folder`.
pub fn generation_prefix(folder: &str, generation: u32) -> String {
    match generation {
        0 | 1 => folder.to_owned(),
        g => format!("{folder}g{g}/"),
    }
}

/// `prefix` in these is a [`ledger_prefix`].
pub fn genesis_key(prefix: &str) -> String {
    format!("{prefix}genesis.json")
}
pub fn intent_key(prefix: &str, from: i64) -> String {
    format!("{prefix}{from:020}.intent.json")
}
pub fn manifest_key(prefix: &str, from: i64) -> String {
    format!("{prefix}{from:020}.json")
}
pub fn checkpoints_prefix(prefix: &str) -> String {
    format!("{prefix}checkpoints/")
}
/// A checkpoint is named by the offset up to which it vouches.
pub fn checkpoint_key(prefix: &str, to: i64) -> String {
    format!("{prefix}checkpoints/{to:020}.json")
}

/// Listing behind this key gives what begins at `from` or later: no key is equal to it.
pub fn before_key(prefix: &str, from: i64) -> String {
    format!("{prefix}{from:020}")
}

/// What a name in a partition's ledger folder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerName {
    Genesis,
    Intent { from: i64 },
    Manifest { from: i64 },
    Checkpoint { to: i64 },
}

impl LedgerName {
    /// Reads the part of a key after its [`ledger_prefix`]; `None` for anything that is not of this generation's
    /// ledger (a later generation's folder among them).
    pub fn parse(name: &str) -> Option<Self> {
        if name == "genesis.json" {
            return Some(Self::Genesis);
        }
        if let Some(name) = name.strip_prefix("checkpoints/") {
            return Some(Self::Checkpoint { to: offset(name.strip_suffix(".json")?)? });
        }
        let stem = name.strip_suffix(".json")?;
        match stem.strip_suffix(".intent") {
            Some(from) => Some(Self::Intent { from: offset(from)? }),
            None => Some(Self::Manifest { from: offset(stem)? }),
        }
    }
}

fn offset(digits: &str) -> Option<i64> {
    let is_name = digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit());
    is_name.then(|| digits.parse().ok()).flatten()
}

/// Originals of records of the data object `key`, which ends in `extension`. The first file of them is number 1.
pub fn refetched_key(key: &str, extension: &str, number: u32) -> String {
    let below = key.strip_prefix(DATA_PREFIX).unwrap_or(key);
    let stem = below.strip_suffix(extension).unwrap_or(below);
    format!("{REFETCHED_PREFIX}{stem}r{number}.{extension}")
}

/// The folder of what lists one partition's originals, `/` at its end.
pub fn refetched_prefix(topic: &str, partition: i32, generation: u32) -> String {
    format!("{REFETCHED_PREFIX}{}", ledger_prefix(topic, partition, generation))
}

/// The `number`-th list, from 1, of originals of the cut that begins at `from`.
pub fn refetched_list_key(prefix: &str, from: i64, number: u32) -> String {
    format!("{prefix}{from:020}.{number:04}.json")
}

/// Reads the part of a key after its [`refetched_prefix`]: where the cut begins, and the list's number. `None` for
/// anything else, a later generation's folder among them.
pub fn refetched_list(name: &str) -> Option<(i64, u32)> {
    let (from, number) = name.strip_suffix(".json")?.split_once('.')?;
    let is_number = number.len() >= 4 && number.bytes().all(|b| b.is_ascii_digit());
    Some((offset(from)?, is_number.then(|| number.parse().ok()).flatten()?))
}

/// The `number`-th disposition, from 1.
pub fn disposition_key(number: u32) -> String {
    format!("{DISPOSITIONS_PREFIX}{number:010}.json")
}

/// Reads back the number of a [`disposition_key`].
pub fn disposition_number(key: &str) -> Option<u32> {
    let digits = key.strip_prefix(DISPOSITIONS_PREFIX)?.strip_suffix(".json")?;
    let is_name = digits.len() == 10 && digits.bytes().all(|b| b.is_ascii_digit());
    is_name.then(|| digits.parse().ok()).flatten()
}

/// The ranges of the `number`-th disposition, for SQL engines.
pub fn ranges_key(number: u32) -> String {
    format!("{DISPOSITIONS_PREFIX}{number:010}.parquet")
}

/// Reads back the number of a [`ranges_key`].
pub fn ranges_number(key: &str) -> Option<u32> {
    key.strip_suffix(".parquet").and_then(|stem| disposition_number(&format!("{stem}.json")))
}

/// Checked before an intent is written: the archive's own prefix may make a key too long for a store.
pub fn check_key(key: &str) -> Result<()> {
    if let Some(long) = key.split('/').find(|s| s.len() > MAX_SEGMENT) {
        return Err(Error::config(format!(
            "path segment of {} bytes ({MAX_SEGMENT} are safe on all stores): {long}; choose a shorter archive prefix",
            long.len()
        )));
    }
    if key.len() > MAX_KEY {
        return Err(Error::config(format!(
            "object key of {} bytes ({MAX_KEY} are safe on all stores): {key}; choose a shorter archive prefix",
            key.len()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_are_kept() {
        for name in ["default-dlt", "size-check", "orders.DLT", "my_topic", "ab", "TF1", "nano", "ab.deadbee"] {
            assert_eq!(escape(name), name);
        }
        let longest = "a".repeat(100);
        assert_eq!(escape(&longest), longest);
    }

    #[test]
    fn names_that_engines_read_as_something_else_are_escaped() {
        for name in [
            "007",
            "1e3",
            "1d",
            "2f",
            "0x1F",
            "-5",
            "T1",
            "e5",
            "a",
            "",
            "epoch",
            "Epoch",
            "NaN",
            "inf",
            "INFINITY",
            "true",
            "False",
            "NULL",
            "none",
            "_x",
            ".x",
            "x_",
            "a.b",
            "__HIVE_DEFAULT_PARTITION__",
            "ab/cd",
            "ab cd",
            "ab=cd",
            "ab%20",
            "ab:c",
            "ab.deadbeef",
            "ab.DEADBEEF",
            "größe",
            "日本語",
            "a\0b",
            "..",
            "p-x.0123abcd",
        ] {
            let escaped = escape(name);
            assert!(escaped.starts_with("p-"), "{name} -> {escaped}");
            assert!(!is_kept(&escaped), "an escaped name must not be some other name's plain form: {escaped}");
            let hash = escaped.rsplit_once('.').unwrap().1;
            assert!(hash.len() == 8 && hash.bytes().all(|b| b.is_ascii_hexdigit()), "{escaped}");
            assert!(escaped.bytes().all(is_plain) && escaped.len() <= 71, "{escaped}");
        }
    }

    /// Neither a name that is kept nor an escaped one, and engines read it as text.
    #[test]
    fn no_pipeline_has_the_shared_folder() {
        assert!(!is_kept(SHARED) && !SHARED.starts_with("p-"));
        assert_eq!(escape(SHARED), "p-shared.00000000.26d97793");
        assert!(SHARED.as_bytes()[..2].iter().all(u8::is_ascii_alphabetic) && SHARED.bytes().all(is_plain));
        let key = data_key("default-dlt", 7, 1, 0, 42, NO_DATE, None, "parquet");
        assert!(key.starts_with("data/dt=1970-01-01/pipeline=shared.00000000/default-dlt-7-"), "{key}");
    }

    #[test]
    fn the_escaped_form_is_fixed_for_good() {
        assert_eq!(escape(""), "p-.e3b0c442");
        assert_eq!(escape("007"), "p-007.629f4cf9");
        assert_eq!(escape("größe / x"), "p-gr-e-x.ba35736b");
        let topic = "t".repeat(249);
        assert_eq!(escape(&topic), format!("p-{}.{}", "t".repeat(60), &hex(&topic)[..8]));
        assert_ne!(escape(&"t".repeat(248)), escape(&topic));
    }

    fn hex(s: &str) -> String {
        Sha256::digest(s.as_bytes()).iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn dates_stay_within_four_digit_years() {
        for (ms, want) in [
            (-1, NO_DATE),
            (0, "1970-01-01"),
            (1_791_417_600_000, "2026-10-08"),
            (1_791_417_599_999, "2026-10-07"),
            (253_402_300_799_999, "9999-12-31"),
            (253_402_300_800_000, NO_DATE),
            (i64::MAX, NO_DATE),
            (i64::MIN, NO_DATE),
        ] {
            assert_eq!(dt(ms), want, "{ms}");
        }
    }

    #[test]
    fn data_keys() {
        assert_eq!(
            data_key("default-dlt", 7, 1, 0, 42, "2026-10-08", Some("size-check"), "parquet"),
            "data/dt=2026-10-08/pipeline=size-check/default-dlt-7-00000000000000000000-00000000000000000042.parquet"
        );
        assert_eq!(
            data_key("default-dlt", 7, 2, 5, 42, "2026-10-08", Some("007"), "jsonl.gz"),
            "data/dt=2026-10-08/pipeline=p-007.629f4cf9/\
             default-dlt-7.g2.00000000000000000005-00000000000000000042.jsonl.gz"
        );
    }

    #[test]
    fn no_topic_imitates_a_later_generation() {
        let key = |topic, partition, generation| {
            data_key(topic, partition, generation, 0, 1, NO_DATE, Some("pipe"), "parquet")
        };
        let second = key("ab", 7, 2);
        for (topic, partition) in [("ab-7.g2", 7), ("ab-7.g2.", 0), ("ab", 7), ("ab-7", 2)] {
            assert_ne!(key(topic, partition, 1), second);
        }
    }

    #[test]
    fn longest_names_fit_everywhere() {
        for topic in ["t".repeat(249), "t".repeat(100), "\u{10ffff}".repeat(300)] {
            let key = data_key(&topic, i32::MAX, u32::MAX, i64::MAX, i64::MAX, NO_DATE, Some(&topic), "jsonl.zst");
            check_key(&key).unwrap();
            check_key(&intent_key(&ledger_prefix(&topic, i32::MAX, u32::MAX), i64::MAX)).unwrap();
        }
        check_key(&"x".repeat(201)).unwrap_err();
        check_key(&"x/".repeat(451)).unwrap_err();
    }

    #[test]
    fn originals_lie_in_the_folders_of_their_data() {
        let key = data_key("default-dlt", 7, 2, 5, 42, "2026-10-08", Some("size-check"), "jsonl.gz");
        assert_eq!(
            refetched_key(&key, "jsonl.gz", 3),
            "refetched/dt=2026-10-08/pipeline=size-check/\
             default-dlt-7.g2.00000000000000000005-00000000000000000042.r3.jsonl.gz"
        );
        let prefix = refetched_prefix("default-dlt", 7, 2);
        assert_eq!(prefix, "refetched/ledger/default-dlt/7/g2/");
        for (from, number) in [(0, 1), (i64::MAX, 12_345)] {
            let key = refetched_list_key(&prefix, from, number);
            assert_eq!(refetched_list(key.strip_prefix(&prefix).unwrap()), Some((from, number)));
        }
        for odd in ["g2/00000000000000000005.0001.json", "00000000000000000005.json", "00000000000000000005.x.json"] {
            assert_eq!(refetched_list(odd), None);
        }
    }

    #[test]
    fn dispositions_are_listed_in_their_order() {
        assert_eq!(disposition_key(1), "dispositions/0000000001.json");
        for number in [1, 10, u32::MAX] {
            assert_eq!(disposition_number(&disposition_key(number)), Some(number));
        }
        assert!(disposition_key(9) < disposition_key(10) && disposition_key(99_999_999) < disposition_key(u32::MAX));
        for odd in ["dispositions/1.json", "dispositions/0000000001", "dispositions/9999999999.json", "x"] {
            assert_eq!(disposition_number(odd), None);
        }
    }

    #[test]
    fn ledger_names_parse_back() {
        let prefix = ledger_prefix("default-dlt", 7, 1);
        assert_eq!(prefix, "ledger/default-dlt/7/");
        assert_eq!(ledger_prefix("default-dlt", 7, 2), "ledger/default-dlt/7/g2/");
        assert_eq!(checkpoints_prefix(&prefix), "ledger/default-dlt/7/checkpoints/");
        let parse = |key: String| LedgerName::parse(key.strip_prefix(&prefix).unwrap());
        assert_eq!(parse(genesis_key(&prefix)), Some(LedgerName::Genesis));
        assert_eq!(parse(intent_key(&prefix, 42)), Some(LedgerName::Intent { from: 42 }));
        assert_eq!(parse(manifest_key(&prefix, i64::MAX)), Some(LedgerName::Manifest { from: i64::MAX }));
        assert_eq!(parse(checkpoint_key(&prefix, 7)), Some(LedgerName::Checkpoint { to: 7 }));
        for odd in ["g2/genesis.json", "42.json", "99999999999999999999.json", "-0000000000000000001.json", "x", ""] {
            assert_eq!(LedgerName::parse(odd), None, "{odd}");
        }
    }
}
