//! Which dead letters `tail` shows, by decoded columns; and which records are a topic's last. Pure.

use super::Event;
use crate::error::{Error, Result};
use regex::Regex;

/// A text that matches exactly, or as a regular expression if it begins with `^`.
#[derive(Debug, Clone)]
pub enum Pattern {
    Exact(String),
    Regex(Regex),
}

impl Pattern {
    /// # Errors
    /// [`crate::Kind::Config`] for what begins with `^` and is no regular expression; `flag` is named.
    pub fn parse(flag: &str, text: &str) -> Result<Self> {
        if !text.starts_with('^') {
            return Ok(Self::Exact(text.to_owned()));
        }
        let regex = Regex::new(text);
        regex.map(Self::Regex).map_err(|e| Error::config(format!("{flag} {text:?} is not a regular expression: {e}")))
    }

    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == text,
            Self::Regex(regex) => regex.is_match(text),
        }
    }
}

/// Each list that is not empty must have one that matches.
#[derive(Debug, Clone, Default)]
pub struct Select {
    pub since_ms: Option<i64>,
    pub error_codes: Vec<i32>,
    pub error_classes: Vec<Pattern>,
    pub pipelines: Vec<Pattern>,
    pub dialects: Vec<Pattern>,
}

impl Select {
    pub fn matches(&self, event: &Event<'_>) -> bool {
        let d = &event.decoded;
        let any = |patterns: &[Pattern], text: Option<&str>| {
            patterns.is_empty() || text.is_some_and(|t| patterns.iter().any(|p| p.matches(t)))
        };
        self.since_ms.is_none_or(|since| event.raw.timestamp_ms >= since)
            && (self.error_codes.is_empty() || d.error_code.is_some_and(|c| self.error_codes.contains(&c)))
            && any(&self.error_classes, d.error_class.as_deref())
            && any(&self.pipelines, Some(&event.pipeline))
            && any(&self.dialects, Some(&d.dialect))
    }
}

/// The last `n` of several sequences, merged by time; none is taken out of its own order.
pub fn last_merged<T>(mut sequences: Vec<Vec<T>>, n: usize, time: impl Fn(&T) -> i64) -> Vec<T> {
    let mut merged = Vec::new();
    while merged.len() < n {
        let newest = sequences.iter_mut().filter(|s| !s.is_empty()).max_by_key(|s| s.last().map(&time));
        let Some(record) = newest.and_then(Vec::pop) else { break };
        merged.push(record);
    }
    merged.reverse();
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_exact_or_regular_expressions() {
        assert!(Pattern::parse("--dialect", "spring").unwrap().matches("spring"));
        assert!(!Pattern::parse("--dialect", "spring").unwrap().matches("springs"));
        assert!(Pattern::parse("--error-class", "^java\\.sql").unwrap().matches("java.sql.SQLException"));
        assert_eq!(Pattern::parse("--pipeline", "^(").unwrap_err().kind(), crate::Kind::Config);
    }

    #[test]
    fn the_last_records_keep_their_partitions_order() {
        let time = |t: &(char, i64)| t.1;
        // Connect keeps the source's timestamps: within a partition they need not ascend.
        let partitions = || vec![vec![('a', 5), ('a', 1), ('a', 9)], vec![('b', 2), ('b', 7)], vec![]];
        assert_eq!(last_merged(partitions(), 3, time), [('b', 2), ('b', 7), ('a', 9)]);
        assert_eq!(last_merged(partitions(), 9, time), [('a', 5), ('a', 1), ('b', 2), ('b', 7), ('a', 9)]);
        assert!(last_merged(partitions(), 0, time).is_empty());
    }
}
