//! One selection of records for list, summary and restore. Pure.

use crate::error::{Error, Result};
use chrono::{DateTime, NaiveDate, TimeZone, Utc};

/// A time as users give it: RFC 3339, a date (`2026-10-08`, its first moment in UTC), milliseconds since 1970 (at
/// least 10 digits), or how long ago (`90s`, `15m`, `2h`, `7d`). Returns milliseconds since 1970.
///
/// # Errors
/// [`crate::Kind::Config`] for anything else.
pub fn parse_time(text: &str, now_ms: i64) -> Result<i64> {
    let text = text.trim();
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Ok(time.timestamp_millis());
    }
    if let Ok(date) = NaiveDate::parse_from_str(text, "%Y-%m-%d")
        && let Some(start) = date.and_hms_opt(0, 0, 0)
    {
        return Ok(Utc.from_utc_datetime(&start).timestamp_millis());
    }
    if text.len() >= 10
        && text.bytes().all(|b| b.is_ascii_digit())
        && let Ok(ms) = text.parse()
    {
        return Ok(ms);
    }
    let ago = text.char_indices().last().and_then(|(i, unit)| {
        let unit_ms = match unit {
            's' => 1000,
            'm' => 60_000,
            'h' => 3_600_000,
            'd' => 86_400_000,
            _ => return None,
        };
        text[..i].parse::<u32>().ok().map(|n| i64::from(n) * unit_ms)
    });
    ago.map(|ago| now_ms - ago).ok_or_else(|| {
        Error::config(format!(
            "{text:?} is not a time: use 2026-10-08, 2026-10-08T14:11:24Z, milliseconds since 1970, or 2h for two hours ago"
        ))
    })
}
