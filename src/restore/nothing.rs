//! Why a filter selects nothing.
//!
//! Owns the likely reason. It is found from the manifests: a part of the filter that no file can match by itself.

use crate::catalog::{Catalog, Selected};
use crate::error::Result;
use crate::filter::{Filter, FilterDoc};

/// What was looked at, and what rules all of it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nothing {
    /// Records in the archive.
    pub archived: u64,
    /// Records that were read, of files that might have matched.
    pub read: u64,
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
    let archived = rows(&catalog.select(&Filter::default()).await?);
    let read = rows(&catalog.select(filter).await?);
    let mut flags = Vec::new();
    for (flag, doc) in parts(filter.doc()) {
        if archived > 0 && rows(&catalog.select(&Filter::new(doc)?).await?) == 0 {
            flags.push(flag);
        }
    }
    Ok(Nothing { archived, read, flags })
}

impl Nothing {
    pub fn text(&self) -> String {
        let likely = if self.archived == 0 {
            "the archive has no records yet".to_owned()
        } else if !self.flags.is_empty() {
            format!("nothing archived matches {}", self.flags.join(", nor "))
        } else {
            "no record matches all of the filters at once".to_owned()
        };
        format!(
            "nothing selected: none of {} archived records matches ({} were read, the others are ruled out by what \
             their files hold). Likely: {likely}. `dlq-archiver summary` shows what there is",
            self.archived, self.read
        )
    }
}
