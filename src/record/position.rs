//! Where a record is: its partition, and its id.
//!
//! Owns the text form of both, and nothing else. Pure.

use std::fmt;

/// A partition of a dead-letter topic, in one generation of that topic (1 is the first).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicPartition {
    pub topic: String,
    pub partition: i32,
}

impl TopicPartition {
    pub fn new(topic: impl Into<String>, partition: i32) -> Self {
        Self { topic: topic.into(), partition }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// Partitions in order, for people: `orders-dlq 0-11, 14; mail-dlt 0`. At most `most` ranges are told.
pub fn in_ranges<'p>(partitions: impl IntoIterator<Item = &'p TopicPartition>, most: usize) -> String {
    let mut ranges: Vec<(&str, i32, i32)> = Vec::new();
    for tp in partitions {
        match ranges.last_mut() {
            Some((topic, _, to)) if *topic == tp.topic && to.checked_add(1) == Some(tp.partition) => *to = tp.partition,
            _ => ranges.push((&tp.topic, tp.partition, tp.partition)),
        }
    }
    let (mut text, mut before) = (String::new(), None);
    for (topic, from, to) in ranges.iter().take(most) {
        match before {
            Some(before) if before == topic => text.push_str(", "),
            Some(_) => text.push_str(&format!("; {topic} ")),
            None => text.push_str(&format!("{topic} ")),
        }
        text.push_str(&if from == to { from.to_string() } else { format!("{from}-{to}") });
        before = Some(topic);
    }
    if ranges.len() > most {
        text.push_str(", ...");
    }
    text
}

/// A record's position in its dead-letter topic, and so its id: `topic/partition/offset`, with `@g2` from a
/// topic's second generation on. Kafka topic names have no `/`, so the text form parses back.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordId {
    pub topic: String,
    pub generation: u32,
    pub partition: i32,
    pub offset: i64,
}

impl RecordId {
    /// Parses `topic/partition/offset[@gN]`; `None` if it has another form.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let (topic, partition, rest) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() || topic.is_empty() {
            return None;
        }
        let (offset, generation) = match rest.split_once("@g") {
            Some((offset, generation)) => (offset, generation.parse().ok().filter(|g| *g >= 2)?),
            None => (rest, 1),
        };
        let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        if !digits(partition) || !digits(offset) {
            return None;
        }
        Some(Self {
            topic: topic.to_owned(),
            generation,
            partition: partition.parse().ok()?,
            offset: offset.parse().ok()?,
        })
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.topic, self.partition, self.offset)?;
        if self.generation > 1 {
            write!(f, "@g{}", self.generation)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_hundred_partitions_are_one_short_line() {
        let all: Vec<_> = (0..500).map(|p| TopicPartition::new("a", p)).collect();
        assert_eq!(in_ranges(&all, 8), "a 0-499");
        assert_eq!(in_ranges(all.iter().step_by(2), 3), "a 0, 2, 4, ...");
        let some = [("a", 0), ("a", 2), ("b", 3), ("b", 4), ("c", 5)].map(|(t, p)| TopicPartition::new(t, p));
        assert_eq!(in_ranges(&some, 8), "a 0, 2; b 3-4; c 5");
        assert_eq!(in_ranges(&[], 8), "");
    }

    #[test]
    fn record_ids_parse_back() {
        for id in ["default-dlt/7/0", "a.b/0/12@g2"] {
            assert_eq!(RecordId::parse(id).unwrap().to_string(), id);
        }
        for bad in ["", "a/b/c", "a/1", "a/1/2/3", "a/-1/2", "a/1/2@g1", "a/1/+2", "/1/2"] {
            assert!(RecordId::parse(bad).is_none(), "{bad}");
        }
    }
}
