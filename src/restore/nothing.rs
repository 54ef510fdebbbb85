//! Why a filter selects nothing, in restores and in what reads the archive.
//!
//! Owns the likely reason. It is found from the manifests: a part of the filter that no file can match by itself.

use crate::catalog::{Catalog, Selected};
use crate::error::{Result, few};
use crate::filter::{Filter, FilterDoc, has_time, rfc3339_ms};
use std::collections::BTreeSet;

/// What was looked at, and what rules all of it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nothing {
    /// Records in the archive.
    pub archived: u64,
    /// Records that were read, of files that might have matched.
    pub read: u64,
    /// First and last Kafka timestamp in the archive, milliseconds since 1970.
    pub times: Option<(i64, i64)>,
    /// The archive's topics.
    pub topics: BTreeSet<String>,
    /// Flags that match nothing even alone.
    pub flags: Vec<&'static str>,
}

/// Each part of a filter by itself, with its flag.
fn parts(doc: &FilterDoc) -> Vec<(&'static str, FilterDoc)> {
    let mut parts = Vec::new();
    let mut part = |flag, set: bool, doc| {
        if set {
            parts.push((flag, doc));
        }
    };
    let none = FilterDoc::default;
    part("--topic", !doc.topic.is_empty(), FilterDoc { topic: doc.topic.clone(), ..none() });
    part("--partition", !doc.partition.is_empty(), FilterDoc { partition: doc.partition.clone(), ..none() });
    let (offset_from, offset_to) = (doc.offset_from, doc.offset_to);
    part("--offsets", offset_from.or(offset_to).is_some(), FilterDoc { offset_from, offset_to, ..none() });
    part("--since", doc.since_ms.is_some(), FilterDoc { since_ms: doc.since_ms, ..none() });
    part("--until", doc.until_ms.is_some(), FilterDoc { until_ms: doc.until_ms, ..none() });
    part("--pipeline", !doc.pipeline.is_empty(), FilterDoc { pipeline: doc.pipeline.clone(), ..none() });
    part("--dialect", !doc.dialect.is_empty(), FilterDoc { dialect: doc.dialect.clone(), ..none() });
    part("--error-class", !doc.error_class.is_empty(), FilterDoc { error_class: doc.error_class.clone(), ..none() });
    part("--error-code", !doc.error_code.is_empty(), FilterDoc { error_code: doc.error_code.clone(), ..none() });
    part("--record-id", doc.record_id.is_some(), FilterDoc { record_id: doc.record_id.clone(), ..none() });
    parts
}

fn rows(selected: &[Selected]) -> u64 {
    selected.iter().flat_map(|s| &s.objects).map(|o| o.rows).sum()
}

/// Looks for the reason why `filter` selects nothing.
pub async fn why(catalog: &Catalog, filter: &Filter) -> Result<Nothing> {
    let all = catalog.select(&Filter::default()).await?;
    let archived = rows(&all);
    let objects = || all.iter().flat_map(|s| &s.objects);
    let first = objects().filter_map(|o| o.min_timestamp_ms).filter(|ms| has_time(*ms)).min();
    let last = objects().filter_map(|o| o.max_timestamp_ms).filter(|ms| has_time(*ms)).max();
    let topics = all.iter().map(|s| s.manifest.topic.clone()).collect();
    let read = rows(&catalog.select(filter).await?);
    let mut flags = Vec::new();
    for (flag, doc) in parts(filter.doc()) {
        if archived > 0 && rows(&catalog.select(&Filter::new(doc)?).await?) == 0 {
            flags.push(flag);
        }
    }
    Ok(Nothing { archived, read, times: first.zip(last), topics, flags })
}

impl Nothing {
    /// The likely reason, and what there is instead.
    pub fn likely(&self) -> String {
        if self.archived == 0 {
            return "the archive has no records yet".to_owned();
        }
        let mut likely = match self.flags.as_slice() {
            [] => "no record matches all of the filters at once".to_owned(),
            flags => format!("nothing archived matches {}", flags.join(", nor ")),
        };
        if self.flags.contains(&"--topic") {
            likely.push_str(&format!("; the archive has topics {}", few(&self.topics, 20)));
        }
        if let Some((first, last)) = self.times {
            likely.push_str(&format!("; archived records are from {} to {}", rfc3339_ms(first), rfc3339_ms(last)));
        }
        likely
    }

    pub fn text(&self) -> String {
        let likely = self.likely();
        format!(
            "nothing selected: none of {} archived records matches ({} were read, the others are ruled out by what \
             their files hold). Likely: {likely}. `dlq-archiver summary` shows what there is",
            self.archived, self.read
        )
    }
}
