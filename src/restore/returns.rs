//! Which of the records that a run sent have failed again, by the dead letters that come in meanwhile. Pure.
//!
//! Owns what is known of what was sent, and of dead letters that came before it was known. Who reads the topics is
//! [`super::target`]; who stops the run is [`super::going`].

use super::headers::RESTORE_ID;
use crate::dialect::Dialects;
use crate::format::restored::Restored;
use crate::record::{RawRecord, RecordId};
use roaring::RoaringTreemap;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard};

/// Dead letters that are none of this run's yet: its own may come in before the brokers' answer to what caused them.
const UNKNOWN: usize = 10_000;

/// What a dead letter tells of the record that it was.
struct Letter {
    id: RecordId,
    failure_key: [u8; 16],
    origin: Option<(String, i32, u64)>,
}

#[derive(Default)]
struct Inner {
    failures: HashSet<[u8; 16]>,
    positions: HashMap<(String, i32), RoaringTreemap>,
    unknown: VecDeque<Letter>,
    returned: u64,
    such_as: Option<RecordId>,
}

/// See the module.
pub struct Returns {
    restore_id: String,
    inner: Mutex<Inner>,
}

impl Inner {
    fn is_return(&self, letter: &Letter) -> bool {
        self.failures.contains(&letter.failure_key)
            || letter.origin.as_ref().is_some_and(|(topic, partition, offset)| {
                self.positions.get(&(topic.clone(), *partition)).is_some_and(|offsets| offsets.contains(*offset))
            })
    }

    fn count(&mut self, id: RecordId) {
        self.returned += 1;
        self.such_as.get_or_insert(id);
    }
}

impl Returns {
    pub fn new(restore_id: &str) -> Self {
        Self { restore_id: restore_id.to_owned(), inner: Mutex::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes note of records that were sent.
    pub fn sent(&self, rows: &[Restored]) {
        let mut inner = self.inner();
        for row in rows {
            inner.failures.insert(row.failure_key);
            if let Ok(offset) = u64::try_from(row.target_offset) {
                let place = (row.target_topic.clone(), row.target_partition);
                inner.positions.entry(place).or_default().insert(offset);
            }
        }
        for letter in std::mem::take(&mut inner.unknown) {
            match inner.is_return(&letter) {
                true => inner.count(letter.id),
                false => inner.unknown.push_back(letter),
            }
        }
    }

    /// A new dead letter.
    pub fn failed(&self, dialects: &Dialects, topic: &str, partition: i32, raw: &RawRecord<'_>) {
        let id = RecordId { topic: topic.to_owned(), generation: 1, partition, offset: raw.offset };
        let marked = raw.headers.iter().any(|h| {
            h.name == RESTORE_ID.as_bytes() && h.value.is_some_and(|value| value == self.restore_id.as_bytes())
        });
        let decoded = dialects.decode(topic, partition, raw);
        let origin = decoded.origin_topic.as_deref().zip(decoded.origin_partition).zip(decoded.origin_offset);
        let origin = origin
            .and_then(|((topic, partition), offset)| Some((topic.to_owned(), partition, u64::try_from(offset).ok()?)));
        let letter = Letter { id, failure_key: decoded.failure_key, origin };
        let mut inner = self.inner();
        if marked || inner.is_return(&letter) {
            return inner.count(letter.id);
        }
        if inner.unknown.len() >= UNKNOWN {
            inner.unknown.pop_front();
        }
        inner.unknown.push_back(letter);
    }

    /// How many came back, and the first of them.
    pub fn returned(&self) -> (u64, Option<RecordId>) {
        let inner = self.inner();
        (inner.returned, inner.such_as.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Header, RawBatch, TimestampType};

    fn row(offset: i64, failure: u8) -> Restored {
        Restored {
            id: RecordId { topic: "orders-dlq".into(), generation: 1, partition: 0, offset },
            target_topic: "orders".into(),
            target_partition: 1,
            target_offset: offset + 100,
            restore_id: "r-1".into(),
            restored_at_us: 0,
            failure_key: [failure; 16],
            attempt: 1,
            correction: None,
        }
    }

    fn letter(offset: i64, headers: &[(&str, &str)]) -> RawBatch {
        let mut batch = RawBatch::new();
        let headers = headers.iter().map(|(n, v)| Header { name: n.as_bytes(), value: Some(v.as_bytes()) });
        batch.push(offset, 1, TimestampType::CreateTime, -1, None, Some(b"v"), headers);
        batch
    }

    #[test]
    fn dead_letters_of_what_was_sent_are_counted_whichever_comes_first() {
        let (dialects, returns) = (Dialects::builtin(), Returns::new("r-1"));
        let of = |origin: &str| {
            let headers = [
                ("__connect.errors.topic", "orders"),
                ("__connect.errors.partition", "1"),
                ("__connect.errors.offset", origin),
            ];
            letter(7, &headers)
        };
        let fail = |batch: &RawBatch| returns.failed(&dialects, "orders-dlq", 0, &batch.get(0));
        fail(&of("105"));
        fail(&of("106"));
        assert_eq!(returns.returned().0, 0, "nothing was sent");
        returns.sent(&[row(5, 1)]);
        assert_eq!(returns.returned().0, 1);
        returns.sent(&[row(9, 2)]);
        fail(&of("109"));
        fail(&letter(8, &[("dlq-archiver-restore-id", "r-2")]));
        assert_eq!(returns.returned().0, 2);
        fail(&letter(8, &[("dlq-archiver-restore-id", "r-1")]));
        let (count, first) = returns.returned();
        assert_eq!((count, first.unwrap().to_string()), (3, "orders-dlq/0/7".to_owned()));
        let unknown = letter(3, &[]);
        let key = dialects.decode("orders-dlq", 0, &unknown.get(0)).failure_key;
        returns.sent(&[Restored { failure_key: key, ..row(11, 3) }]);
        fail(&unknown);
        assert_eq!(returns.returned().0, 4, "by its failure key");
    }
}
