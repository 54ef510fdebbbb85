//! Tests of what dispositions come to.

use super::*;
use crate::disposition::documents::sample;
use crate::record::{Decoded, RawRecord, TimestampType};

const AT: &str = "2026-12-01T00:00:00.000000Z";

fn standing(all: &[(Action, &[u64])]) -> Standing {
    let mut standing = Standing::default();
    for (action, offsets) in all {
        let stored = sample(standing.end(), *action, AT, offsets).1;
        standing.add(stored);
    }
    standing
}

fn numbers(standing: &Standing, offsets: std::ops::Range<i64>) -> Vec<u32> {
    let of = standing.of("failures", 1, 0);
    offsets.map(|offset| of.of(offset).map_or(0, |said| said.number)).collect()
}

#[test]
fn of_several_dispositions_of_a_record_the_newest_holds() {
    let all = standing(&[(Action::Discard, &[1, 2, 3]), (Action::Undo, &[2, 3]), (Action::Discard, &[3])]);
    assert_eq!(numbers(&all, -1..5), [0, 0, 1, 0, 3, 0]);
    assert_eq!((all.records(), all.of("failures", 1, 0).records()), (2, 2));
    assert_eq!(all.of("failures", 1, 0).of(3).unwrap().reason, "reason 3");
    assert_eq!(all.of("failures", 1, 0).of(3).unwrap().by, "u@h");
    for (topic, generation, partition) in [("failures", 2, 0), ("failures", 1, 1), ("other", 1, 0)] {
        assert!(all.of(topic, generation, partition).of(1).is_none(), "another log's offsets");
    }
}

fn selection(offsets: std::ops::Range<i64>, restored: i64) -> Selection {
    let mut selection = Selection::default();
    for offset in offsets {
        let record = ArchivedRecord {
            id: RecordId { topic: "failures".into(), generation: 1, partition: 0, offset },
            cluster_id: None,
            raw: RawRecord {
                offset,
                timestamp_ms: 0,
                timestamp_type: TimestampType::CreateTime,
                leader_epoch: -1,
                key: None,
                value: None,
                headers: Default::default(),
            },
            key_size: None,
            value_size: None,
            decoded: Decoded { error_class: (offset % 2 == 0).then(|| "Even".into()), ..Decoded::default() },
            pipeline: "p",
            archived_at_us: 0,
        };
        selection.add(&record, offset == restored);
    }
    selection
}

#[test]
fn a_discard_changes_what_is_not_discarded_and_an_undo_what_is() {
    let selection = selection(0..5, 4);
    let all = standing(&[(Action::Discard, &[0, 1, 9])]);
    let place = ("failures".to_owned(), 1, 0);
    let discard = selection.change(Action::Discard, &all);
    assert_eq!((discard.records, discard.restored), (3, 1));
    assert_eq!(discard.offsets[&place], [2, 3, 4].into_iter().collect());
    assert_eq!(discard.groups.values().copied().collect::<Vec<_>>(), [1, 2]);
    let undo = selection.change(Action::Undo, &all);
    assert_eq!((undo.records, undo.restored), (2, 0));
    assert_eq!(undo.offsets[&place], [0, 1].into_iter().collect());
    assert_eq!(selection.change(Action::Undo, &Standing::default()), Change::default());
}
