//! Which timestamps a target takes and keeps. Pure.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Which timestamps a topic takes and keeps. 0: all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Records from before it are deleted, or soon will be.
    pub keeps_from_ms: i64,
    /// Records from before it are refused.
    pub takes_from_ms: i64,
    /// Records without a key are refused: it is compacted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needs_key: bool,
}

/// A record that a topic would keep for less than this is not sent.
const MIN_KEPT_MS: i64 = 3_600_000;

impl Window {
    /// Settings of a topic that it follows from.
    pub const SETTINGS: [&str; 4] =
        ["retention.ms", "cleanup.policy", "message.timestamp.type", "message.timestamp.before.max.ms"];

    /// By a topic's settings; `None` if they do not tell how long it keeps records.
    pub fn of(settings: &BTreeMap<String, String>, now_ms: i64) -> Option<Self> {
        let number = |name: &str| settings.get(name)?.parse::<i64>().ok();
        let (retention, policy) = (number("retention.ms")?, settings.get("cleanup.policy")?);
        let has = |wanted: &str| policy.split(',').any(|p| p.trim() == wanted);
        let needs_key = has("compact");
        // The topic's own time replaces the record's.
        if settings.get("message.timestamp.type").is_some_and(|t| t == "LogAppendTime") {
            return Some(Self { needs_key, ..Self::default() });
        }
        let from = |age: i64| now_ms.saturating_sub(age).max(0);
        let deletes = retention >= 0 && has("delete");
        // Of a short retention a tenth, so that new records are sent.
        let kept = retention - MIN_KEPT_MS.min(retention / 10);
        let takes = number("message.timestamp.before.max.ms").filter(|age| *age >= 0);
        Some(Self {
            keeps_from_ms: if deletes { from(kept) } else { 0 },
            takes_from_ms: takes.map_or(0, from),
            needs_key,
        })
    }
}

/// Whether it is from before `from`. No time (-1) is before nothing.
pub fn is_before(timestamp_ms: i64, from: i64) -> bool {
    (0..from).contains(&timestamp_ms)
}
