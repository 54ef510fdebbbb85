//! What was found out, before anybody judges it: of each partition its ledger, its log, its topic's settings. Pure.
//!
//! Owns the forms that [`super::report`] reads, and how a ledger's manifests become one. Asks nobody.

use crate::dialect;
use crate::ledger::{Gap, GapKind, Genesis, Manifest};
use crate::record::TopicPartition;
use crate::retention::LogSettings;

/// Everything, at one moment.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Milliseconds since 1970.
    pub now_ms: i64,
    pub archive_id: String,
    pub url: String,
    pub conditional: Conditional,
    /// Why nothing is known of the logs.
    pub brokers_error: Option<String>,
    /// In order of topic and partition.
    pub partitions: Vec<Partition>,
    /// Originals that were not read again yet, and go.
    pub originals: Vec<Expiry>,
}

/// The originals of one dead-letter topic's records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expiry {
    pub topic: String,
    /// Where the first of them goes.
    pub source: TopicPartition,
    /// Kafka may delete it from then on, milliseconds since 1970.
    pub at_ms: i64,
}

impl Expiry {
    /// For a log or a table.
    pub fn text(&self, now_ms: i64) -> String {
        let Self { topic, source, at_ms } = self;
        let left = at_ms.saturating_sub(now_ms);
        let when = match left {
            ..=0 => "Kafka deletes them already".to_owned(),
            left => format!("Kafka may delete the first of them in {}", crate::retention::words(left)),
        };
        format!(
            "the originals of headers-only records are not all read again, and {when} ({source}): `dlq-archiver refetch \
             --topic {topic}` keeps them, `archive --refetch` those to come"
        )
    }
}

/// Whether the store creates an object only if it is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Conditional {
    Kept,
    NotKept,
    /// Why it is not known.
    Unknown(String),
    #[default]
    NotAsked,
}

#[derive(Debug, Clone)]
pub struct Partition {
    pub tp: TopicPartition,
    /// In order of generations; none: never archived.
    pub ledgers: Vec<Ledger>,
    /// Why its ledger cannot be read.
    pub unreadable: Option<Unreadable>,
    pub kafka: Kafka,
    pub settings: LogSettings,
    /// The topic's id now; `None` where the brokers do not tell it.
    pub topic_id: Option<String>,
    /// A record of it that was looked at, where one was.
    pub sample: Option<Seen>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    pub why: String,
    /// It is damaged; else the store did not answer.
    pub damaged: bool,
}

/// How the brokers have it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Kafka {
    #[default]
    NoAnswer,
    /// The brokers do not name its topic, and do not say that there is none.
    NotTold,
    /// There is no such partition.
    Absent,
    Log {
        start: i64,
        stable: i64,
        end: i64,
        /// First record that is not archived.
        oldest: Oldest,
        /// First record behind the last stable offset.
        hidden: Oldest,
    },
}

/// The first of some records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Oldest {
    /// There is none: nothing, or markers only.
    None,
    Is(Seen),
    #[default]
    Unknown,
}

/// A record that was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// -1 where it has none.
    pub timestamp_ms: i64,
    /// Key, value and headers.
    pub bytes: u64,
    pub headers: usize,
}

/// Offsets in gaps, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lost {
    pub lost: u64,
    pub expired: u64,
    pub unknown: u64,
    pub compacted: u64,
}

impl Lost {
    /// Those that are (or may be) records which the archive should have.
    pub fn records(&self) -> u64 {
        self.lost.saturating_add(self.expired).saturating_add(self.unknown)
    }

    pub fn add(&mut self, other: &Self) {
        self.lost = self.lost.saturating_add(other.lost);
        self.expired = self.expired.saturating_add(other.expired);
        self.unknown = self.unknown.saturating_add(other.unknown);
        self.compacted = self.compacted.saturating_add(other.compacted);
    }

    fn of(gaps: &[Gap]) -> Self {
        let mut all = Self::default();
        for gap in gaps {
            let kind = match gap.kind {
                GapKind::Lost => &mut all.lost,
                GapKind::Expired => &mut all.expired,
                GapKind::Unknown => &mut all.unknown,
                GapKind::Compacted => &mut all.compacted,
            };
            *kind = kind.saturating_add(u64::try_from(gap.to.saturating_sub(gap.from)).unwrap_or(0));
        }
        all
    }
}

/// One cut, as far as it matters here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cut {
    pub at_ms: i64,
    pub lost: Lost,
    pub rows: u64,
    /// Rows that no dialect knows.
    pub undecoded: u64,
    pub objects: u64,
    /// Smallest Kafka timestamp in it.
    pub oldest_ms: Option<i64>,
}

/// The ledger of one generation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    pub generation: u32,
    pub topic_id: Option<String>,
    /// Next offset to archive.
    pub next: i64,
    /// In order.
    pub cuts: Vec<Cut>,
}

impl Ledger {
    pub fn of(genesis: &Genesis) -> Self {
        Self {
            generation: genesis.generation,
            topic_id: genesis.topic_id.clone(),
            next: genesis.first_offset,
            cuts: Vec::new(),
        }
    }

    /// Adds those manifests that follow; others it has already.
    pub fn add(&mut self, manifests: &[Manifest]) {
        for m in manifests {
            if m.from < self.next {
                continue;
            }
            let counts = || m.objects.iter().flat_map(|o| &o.counts);
            self.cuts.push(Cut {
                at_ms: m.cut_at_us / 1000,
                lost: Lost::of(&m.gaps),
                rows: m.rows,
                undecoded: counts().filter(|c| c.dialect == dialect::UNKNOWN).map(|c| c.rows).sum(),
                objects: m.objects.len() as u64,
                oldest_ms: m.objects.iter().filter_map(|o| o.min_timestamp_ms).filter(|ms| *ms >= 0).min(),
            });
            self.next = m.to;
        }
    }

    /// Cuts of this time and later.
    pub fn since(&self, ms: i64) -> impl Iterator<Item = &Cut> {
        self.cuts.iter().rev().take_while(move |c| c.at_ms >= ms)
    }
}
