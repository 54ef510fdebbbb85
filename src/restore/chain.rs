//! The order of restores as it is stored: whether each document follows the one before. Pure.
//!
//! Owns that judgement alone: the documents are [`super::turn`]'s, and whoever reads them sees whether one can be read.
//! Invariant: a document that was changed or taken out is told, unless it is the newest.

use super::turn::{Event, OrderDoc};
use crate::ledger::sha256_hex;
use std::ops::RangeInclusive;

/// A document in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub number: u64,
    /// Of its own bytes.
    pub sha256: String,
    pub doc: OrderDoc,
}

/// The SHA-256 of the document before, as it is and as the next one has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    pub expected: String,
    pub found: String,
}

/// What was followed so far.
#[derive(Debug, Default)]
pub struct Chain {
    pub links: Vec<Link>,
    /// Of the last document; 0 before the first.
    pub newest: u64,
    /// Of its bytes.
    pub sha256: Option<String>,
    /// The last one cannot be compared with: it is missing or damaged.
    unknown: bool,
}

impl Chain {
    /// The numbers that are missing before this one, which is there.
    pub fn hole(&mut self, number: u64) -> Option<RangeInclusive<u64>> {
        let next = self.newest + 1;
        if number <= next {
            return None;
        }
        self.unknown = true;
        Some(next..=number - 1)
    }

    /// Goes on with the document of this number; `None` if it cannot be read. Whether it is not behind the last one.
    pub fn follow(&mut self, number: u64, bytes: &[u8], doc: Option<OrderDoc>) -> Option<Broken> {
        let (before, sha256) = (self.sha256.replace(sha256_hex(bytes)), self.sha256.clone().unwrap_or_default());
        let was_unknown = std::mem::replace(&mut self.unknown, doc.is_none());
        self.newest = number;
        let doc = doc?;
        let text = |sha256: &Option<String>| sha256.clone().unwrap_or_else(|| "none".into());
        let broken = (!was_unknown && doc.previous_sha256 != before)
            .then(|| Broken { expected: text(&before), found: text(&doc.previous_sha256) });
        self.links.push(Link { number, sha256, doc });
        broken
    }

    /// The documents of one restore.
    pub fn of<'a>(&'a self, restore_id: &'a str) -> impl Iterator<Item = &'a Link> {
        self.links.iter().filter(move |link| link.doc.restore_id == restore_id)
    }

    pub fn has(&self, restore_id: &str, event: Event) -> bool {
        self.of(restore_id).any(|link| link.doc.event == event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::to_bytes;

    fn doc(previous_sha256: Option<String>) -> OrderDoc {
        let (restore_id, sha256) = ("r-1".into(), "0".repeat(64));
        OrderDoc { version: 1, restore_id, event: Event::Begun, sha256, open_from: 1, previous_sha256 }
    }

    /// Three documents, each with its bytes.
    fn three() -> Vec<(OrderDoc, Vec<u8>)> {
        let mut docs: Vec<(OrderDoc, Vec<u8>)> = Vec::new();
        for _ in 0..3 {
            let doc = doc(docs.last().map(|(_, bytes)| sha256_hex(bytes)));
            docs.push((doc.clone(), to_bytes(&doc).unwrap()));
        }
        docs
    }

    #[test]
    fn a_whole_chain_is_followed_to_its_end() {
        let mut chain = Chain::default();
        for (number, (doc, bytes)) in (1..).zip(three()) {
            assert_eq!(chain.hole(number), None);
            assert_eq!(chain.follow(number, &bytes, Some(doc)), None);
        }
        assert_eq!((chain.newest, chain.links.len()), (3, 3));
        assert_eq!(chain.sha256, Some(sha256_hex(&three()[2].1)));
        assert_eq!(chain.links[1].sha256, sha256_hex(&three()[1].1));
        assert!(chain.has("r-1", Event::Begun) && !chain.has("r-1", Event::Ended) && !chain.has("r-2", Event::Begun));
    }

    #[test]
    fn a_document_that_was_changed_is_told_by_the_next_and_one_that_is_gone_by_its_number() {
        let docs = three();
        let mut chain = Chain::default();
        assert_eq!(chain.follow(1, b"changed", Some(docs[0].0.clone())), None);
        let broken = chain.follow(2, &docs[1].1, Some(docs[1].0.clone())).unwrap();
        assert_eq!((broken.expected, broken.found), (sha256_hex(b"changed"), sha256_hex(&docs[0].1)));
        assert_eq!(chain.follow(3, &docs[2].1, Some(docs[2].0.clone())), None, "behind the break it goes on");

        let mut chain = Chain::default();
        chain.follow(1, &docs[0].1, Some(docs[0].0.clone()));
        assert_eq!(chain.hole(3), Some(2..=2));
        assert_eq!(chain.follow(3, &docs[2].1, Some(docs[2].0.clone())), None, "told once");
        let mut chain = Chain::default();
        assert_eq!(chain.follow(1, b"{", None), None);
        assert_eq!(chain.follow(2, &docs[1].1, Some(docs[1].0.clone())), None, "it has the hash of the genuine one");
        let mut chain = Chain::default();
        assert!(chain.follow(1, &docs[1].1, Some(docs[1].0.clone())).is_some(), "the first has none before it");
    }
}
