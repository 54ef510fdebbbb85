//! Settings of single topics: which table is whose, and what it changes.
//!
//! Owns the match of a topic against tables. Does not read the configuration file, and does not know which settings
//! come from elsewhere. Pure. Invariant: which table is a topic's depends on its name and the tables alone.

use crate::cut::CutPolicy;
use crate::retention::{LogSettings, Source};
use regex::Regex;
use std::time::Duration;

/// Which topics a table is for.
#[derive(Debug, Clone)]
pub enum TopicMatch {
    Name(String),
    /// Found in the topic's name; it begins with `^`.
    Pattern(Regex),
}

impl TopicMatch {
    /// An exact name, or a regular expression that begins with `^`.
    ///
    /// # Errors
    /// Why it is neither.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() || text == "^" {
            return Err("it names no topic".into());
        }
        if text.starts_with('^') {
            return Regex::new(text).map(Self::Pattern).map_err(|e| {
                let why = e.to_string();
                let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ");
                format!("it is not a regular expression: {why}")
            });
        }
        if text.contains(|c| "*?+|()[]{}^$\\".contains(c)) {
            return Err("it is no topic's name. A regular expression begins with ^, such as ^.*-dlq$".into());
        }
        Ok(Self::Name(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        match self {
            Self::Name(name) => name,
            Self::Pattern(pattern) => pattern.as_str(),
        }
    }
}

/// What is set for some topics alone; `None`: as for all.
#[derive(Debug, Clone)]
pub struct TopicSettings {
    pub topic: TopicMatch,
    pub cut_records: Option<usize>,
    pub cut_bytes: Option<usize>,
    pub cut_age: Option<Duration>,
    /// In place of the topic's `retention.ms`.
    pub retention: Option<Duration>,
    /// Cuts come early where less than this share of the retention is left.
    pub safety: Option<f64>,
    /// Of all records of the topic.
    pub pipeline: Option<String>,
    /// Dialects that are read on its records only if it names them.
    pub dialects: Vec<String>,
}

impl TopicSettings {
    /// A table that sets nothing.
    pub fn of(topic: TopicMatch) -> Self {
        Self {
            topic,
            cut_records: None,
            cut_bytes: None,
            cut_age: None,
            retention: None,
            safety: None,
            pipeline: None,
            dialects: Vec::new(),
        }
    }

    /// The cut policy of its topics, where `base` is that of all.
    pub fn policy(&self, base: CutPolicy) -> CutPolicy {
        CutPolicy {
            max_records: self.cut_records.unwrap_or(base.max_records),
            max_bytes: self.cut_bytes.unwrap_or(base.max_bytes),
            max_age: self.cut_age.unwrap_or(base.max_age),
        }
    }
}

/// What brokers told of a topic, with the retention of its own table in place of it; `assumed` is that of topics whose
/// brokers tell none.
pub fn kept(tables: &[TopicSettings], assumed: Option<Duration>, topic: &str, told: LogSettings) -> LogSettings {
    let own = settings_of(tables, topic).and_then(|table| table.retention);
    let given = own.or(assumed.filter(|_| told.source == Source::Unknown));
    told.given(given.and_then(|g| i64::try_from(g.as_millis()).ok()))
}

/// The table of a topic: the one of its exact name, else the first whose pattern matches.
pub fn settings_of<'t>(tables: &'t [TopicSettings], topic: &str) -> Option<&'t TopicSettings> {
    position_of(tables, topic).map(|i| &tables[i])
}

/// Its place among the tables.
pub fn position_of(tables: &[TopicSettings], topic: &str) -> Option<usize> {
    let named = tables.iter().position(|t| matches!(&t.topic, TopicMatch::Name(name) if name == topic));
    named.or_else(|| tables.iter().position(|t| matches!(&t.topic, TopicMatch::Pattern(p) if p.is_match(topic))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(topics: &[&str]) -> Vec<TopicSettings> {
        topics.iter().map(|t| TopicSettings::of(TopicMatch::parse(t).unwrap())).collect()
    }

    #[test]
    fn an_exact_name_wins_then_the_first_pattern() {
        let tables = tables(&["^orders", "^.*-dlq$", "orders-dlq", "^o"]);
        let of = |topic| settings_of(&tables, topic).map(|t| t.topic.as_str());
        assert_eq!(of("orders-dlq"), Some("orders-dlq"));
        assert_eq!(of("orders-dlt"), Some("^orders"));
        assert_eq!(of("a-dlq"), Some("^.*-dlq$"));
        assert_eq!(of("other"), Some("^o"));
        assert_eq!(of("a"), None);
    }

    #[test]
    fn a_table_changes_only_what_it_sets() {
        let base = CutPolicy::default();
        let table = TopicSettings { cut_records: Some(7), ..tables(&["t"]).remove(0) };
        assert_eq!(table.policy(base), CutPolicy { max_records: 7, ..base });
    }

    #[test]
    fn what_names_no_topic_is_refused() {
        for (bad, why) in [("", "no topic"), ("^", "no topic"), ("^(", "unclosed group"), ("a*", "begins with ^")] {
            assert!(TopicMatch::parse(bad).unwrap_err().contains(why), "{bad}");
        }
    }
}
