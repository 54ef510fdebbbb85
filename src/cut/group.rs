//! Which rows of a batch go into one data object: by date and pipeline, within a bound on pipelines.
//!
//! Owns which pipelines have objects of their own and which share one. Pure. Invariant: the groups are a function of the
//! records and the tables, and each row is in one.

use super::Tables;
use crate::layout;
use crate::ledger::Shared;
use crate::record::RawBatch;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Rows of a batch that go into one data object: indexes into the batch, ascending.
#[derive(Debug, PartialEq, Eq)]
pub struct Group {
    pub dt: String,
    /// Exact name; `None` where several share the object.
    pub pipeline: Option<String>,
    pub rows: Vec<u32>,
    /// Of which pipeline each row of a shared object is.
    pub shared: Option<Shared>,
}

/// Sorts a batch into date and pipeline, in the order of both, shared ones last. The largest pipelines of the batch have
/// objects of their own, as many as the tables allow; the others share one for each date. So does a pipeline whose path
/// name a larger one has: escaped names may be equal.
pub fn group(batch: &RawBatch, topic: &str, partition: i32, tables: &Tables) -> Vec<Group> {
    const DAY_MS: i64 = 24 * 60 * 60 * 1000;
    let mut routing = tables.routing.of_topic(topic);
    let mut decoder = tables.dialects.of_topic(topic);
    if !routing.is_ruled() {
        decoder = decoder.only(tables.routing.default_fields());
    }
    let (fixed, mut names) = (routing.fixed(), Names::default());
    let mut days: HashMap<i64, String> = HashMap::new();
    let mut rows: HashMap<(i64, u32), Vec<u32>> = HashMap::new();
    for (row, raw) in batch.iter().enumerate() {
        let name = match fixed {
            Some(name) => names.count(name),
            None => names.count(&routing.route(&decoder.decode(partition, &raw)).0),
        };
        let day = raw.timestamp_ms.div_euclid(DAY_MS);
        days.entry(day).or_insert_with(|| layout::dt(raw.timestamp_ms));
        rows.entry((day, name)).or_default().push(row as u32);
    }
    let own = names.own(tables.routing.max_pipelines());
    // By date, own ones first, and name; several days may be one date.
    let mut groups: BTreeMap<(&str, bool, &str), Vec<Named>> = BTreeMap::new();
    for ((day, name), rows) in rows {
        let dt = days.get(&day).map_or(layout::NO_DATE, String::as_str);
        let key = if own.contains(&name) { (dt, false, names.text(name)) } else { (dt, true, "") };
        groups.entry(key).or_default().extend(rows.into_iter().map(|row| (row, name)));
    }
    let groups = groups.into_iter().map(|((dt, is_shared, name), mut rows)| {
        rows.sort_unstable();
        Group {
            dt: dt.to_owned(),
            pipeline: (!is_shared).then(|| name.to_owned()),
            shared: is_shared.then(|| shared(&rows, &names)),
            rows: rows.into_iter().map(|(row, _)| row).collect(),
        }
    });
    groups.collect()
}

/// A row, and its pipeline's number.
type Named = (u32, u32);

fn shared(rows: &[Named], names: &Names) -> Shared {
    let sorted: BTreeSet<(&str, u32)> = rows.iter().map(|(_, name)| (names.text(*name), *name)).collect();
    let index: HashMap<u32, u32> = sorted.iter().zip(0..).map(|((_, name), index)| (*name, index)).collect();
    let rows: Vec<u32> = rows.iter().filter_map(|(_, name)| index.get(name).copied()).collect();
    Shared::new(sorted.into_iter().map(|(text, _)| text.to_owned()).collect(), &rows)
}

/// The pipelines of a batch, each with its number of records.
#[derive(Default)]
struct Names {
    ids: HashMap<String, u32>,
    all: Vec<(String, u64)>,
}

impl Names {
    /// Counts one record more; returns its pipeline's number.
    fn count(&mut self, name: &str) -> u32 {
        let id = self.ids.get(name).copied().unwrap_or_else(|| {
            let id = self.all.len() as u32;
            self.ids.insert(name.to_owned(), id);
            self.all.push((name.to_owned(), 0));
            id
        });
        self.all[id as usize].1 += 1;
        id
    }

    fn text(&self, id: u32) -> &str {
        &self.all[id as usize].0
    }

    /// Those that have objects of their own: by records, most first, then by name.
    fn own(&self, max: usize) -> HashSet<u32> {
        let mut ranked: Vec<_> =
            self.all.iter().zip(0..).map(|((name, records), id)| (Reverse(*records), name, id)).collect();
        ranked.sort_unstable();
        let mut paths = HashSet::new();
        ranked
            .into_iter()
            .take(max)
            .filter(|(_, name, _)| paths.insert(layout::escape(name)))
            .map(|(.., id)| id)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Genesis;
    use crate::record::{Header, TimestampType};
    use crate::routing::{Condition, Rule};
    use proptest::prelude::*;

    /// Pipelines are named after the event's type.
    fn tables(max: usize) -> Tables {
        let rule = Rule::new(vec![Condition::parse("event_type", "^(?s)(.*)").unwrap()], "${1}").unwrap();
        Tables::with_routing(|r| r.with_rules(&[rule]).with_max_pipelines(max))
    }

    /// Records of these days and pipelines, with gaps between their offsets.
    fn batch(records: &[(i64, &str)]) -> RawBatch {
        let mut batch = RawBatch::new();
        for (i, (day, name)) in records.iter().enumerate() {
            let headers = [("ce_specversion", "1.0"), ("ce_id", "x"), ("ce_source", "s"), ("ce_type", name)]
                .map(|(name, value)| Header { name: name.as_bytes(), value: Some(value.as_bytes()) });
            batch.push(
                3 * i as i64,
                day * 86_400_000,
                TimestampType::CreateTime,
                0,
                None,
                Some(b"x"),
                headers.into_iter(),
            );
        }
        batch
    }

    /// Date, pipeline, and each row's name as the intent has it.
    type Grouped = (String, Option<String>, Vec<(u32, String)>);

    fn grouped(records: &[(i64, &str)], max: usize) -> Vec<Grouped> {
        let (batch, tables) = (batch(records), tables(max));
        let genesis = Genesis {
            version: 1,
            archive_id: "a".into(),
            topic: "t".into(),
            partition: 0,
            generation: 1,
            topic_id: None,
            first_offset: 0,
            previous_sha256: None,
            created_at: String::new(),
        };
        let range = crate::cut::CutRange { from: 0, to: 3 * records.len() as i64, cut_at_us: 0 };
        let groups = group(&batch, "t", 0, &tables);
        let format = crate::format::Format::Parquet;
        let intent = crate::cut::intent(&genesis, range, &batch, &groups, Vec::new(), format, &tables).unwrap();
        let keys: HashSet<&String> = intent.objects.iter().map(|o| &o.key).collect();
        assert_eq!(keys.len(), groups.len());
        let named = groups.iter().zip(&intent.objects).map(|(g, o)| {
            let pipelines = o.pipelines().unwrap();
            let name = |row: &u32| (*row, pipelines.of(i64::from(*row) * 3).unwrap().to_owned());
            (g.dt.clone(), g.pipeline.clone(), g.rows.iter().map(name).collect())
        });
        named.collect()
    }

    #[test]
    fn every_row_is_in_exactly_one_group_in_order() {
        let mut batch = RawBatch::new();
        for (offset, ts) in [(5, -1), (6, 86_400_000), (7, 0), (9, i64::MAX), (10, 86_399_999)] {
            batch.push(offset, ts, TimestampType::CreateTime, 0, None, Some(b"x"), std::iter::empty());
        }
        let groups = group(&batch, "t", 0, &Tables::builtin());
        let flat: Vec<_> = groups.iter().map(|g| (g.dt.as_str(), g.pipeline.as_deref(), g.rows.clone())).collect();
        assert_eq!(flat, [("1970-01-01", Some("t"), vec![0, 2, 3, 4]), ("1970-01-02", Some("t"), vec![1])]);
    }

    #[test]
    fn the_largest_pipelines_of_a_cut_have_objects_of_their_own_and_the_others_share_one_a_date() {
        let records =
            [(0, "cc"), (0, "bb"), (1, "aa"), (1, "dd"), (0, "dd"), (1, "ee"), (0, "ee"), (0, "aa"), (1, "ff")];
        // aa, dd and ee have two each: by name.
        let row = |row, name: &str| (row, name.to_owned());
        let (first, second) = ("1970-01-01".to_owned(), "1970-01-02".to_owned());
        let expected = [
            (first.clone(), Some("aa".into()), vec![row(7, "aa")]),
            (first.clone(), Some("dd".into()), vec![row(4, "dd")]),
            (first, None, vec![row(0, "cc"), row(1, "bb"), row(6, "ee")]),
            (second.clone(), Some("aa".into()), vec![row(2, "aa")]),
            (second.clone(), Some("dd".into()), vec![row(3, "dd")]),
            (second, None, vec![row(5, "ee"), row(8, "ff")]),
        ];
        assert_eq!(grouped(&records, 2), expected);
        assert!(grouped(&records, 6).iter().all(|(_, name, _)| name.is_some()));
    }

    /// Escaped names have 32 bits of a hash. Two objects of one name would stop the partition.
    #[test]
    fn pipelines_whose_path_names_are_equal_do_not_take_one_objects_name() {
        let (mut seen, mut n) = (HashMap::new(), 0_u32);
        let (a, b) = loop {
            let name: String = n.to_string().chars().map(|c| char::from_u32(0x4e00 + c as u32).unwrap()).collect();
            if let Some(other) = seen.insert(layout::escape(&name).into_owned(), name.clone()) {
                break (other, name);
            }
            n += 1;
        };
        assert_ne!(a, b);
        let groups = grouped(&[(0, &a), (0, &b), (0, &b), (0, "zz")], 100);
        let names: Vec<_> = groups.iter().map(|(_, name, rows)| (name.as_deref(), rows.clone())).collect();
        let rows = |name: &str, rows: &[u32]| rows.iter().map(|row| (*row, name.to_owned())).collect::<Vec<_>>();
        let expected = [(Some("zz"), rows("zz", &[3])), (Some(b.as_str()), rows(&b, &[1, 2])), (None, rows(&a, &[0]))];
        assert_eq!(names, expected);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() })]
        #[test]
        fn each_row_keeps_its_pipelines_name_whatever_the_bound(
            records in proptest::collection::vec((0..3_i64, "[a-c]{1,2}|[ä-ü]|\\PC{1,8}"), 0..60),
            max in 1..12_usize,
        ) {
            // An empty name is none, and the topic's.
            let named = |name: &str| if name.trim().is_empty() { "t".to_owned() } else { name.to_owned() };
            let given: Vec<_> = records.iter().map(|(day, name)| (*day, name.as_str())).collect();
            let groups = grouped(&given, max);
            let mut rows: Vec<_> = groups.iter().flat_map(|(_, _, rows)| rows.clone()).collect();
            rows.sort_unstable();
            let expected: Vec<_> = records.iter().enumerate().map(|(i, (_, name))| (i as u32, named(name))).collect();
            prop_assert_eq!(rows, expected);
            for dt in ["1970-01-01", "1970-01-02", "1970-01-03"] {
                prop_assert!(groups.iter().filter(|g| g.0 == dt).count() <= max + 1);
                prop_assert!(groups.iter().filter(|g| g.0 == dt && g.1.is_none()).count() <= 1);
            }
            for (_, own, rows) in &groups {
                prop_assert!(rows.is_sorted() && own.iter().all(|own| rows.iter().all(|(_, name)| name == own)));
            }
        }
    }
}
