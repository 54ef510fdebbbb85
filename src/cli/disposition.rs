//! What became of records, as `list`, `summary` and `show` tell it.
//!
//! Owns the flag that selects by it, and its words. Restores' lists are read only where it is asked for.

use super::filter::HEADING;
use crate::archive::rfc3339;
use crate::catalog::{Catalog, Selected};
use crate::disposition;
use crate::error::{Kind, Result};
use crate::layout;
use crate::restore::audit;
use crate::restore::past::{Disposition, Past};
use clap::ValueEnum;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

#[derive(Debug, Clone, Default, clap::Args)]
pub struct DispositionArgs {
    /// What became of the record, by the newest of restores and discards; repeatable. `list` shows it, too. Reads the
    /// lists of restores
    #[arg(long, value_enum, value_delimiter = ',', help_heading = HEADING)]
    disposition: Vec<DispositionArg>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
enum DispositionArg {
    /// Neither restored nor discarded
    Open,
    /// Put back into Kafka
    Restored,
    /// Not to be restored
    Discarded,
}

impl DispositionArgs {
    pub fn is_given(&self) -> bool {
        !self.disposition.is_empty()
    }

    pub fn matches(&self, disposition: &Disposition<'_>) -> bool {
        let is = match disposition {
            Disposition::Open => DispositionArg::Open,
            Disposition::Restored(_) => DispositionArg::Restored,
            Disposition::Discarded(_) => DispositionArg::Discarded,
        };
        self.disposition.is_empty() || self.disposition.contains(&is)
    }
}

/// What became of the records of these cuts. `asked`: what restores did is read, too, and damage is an error.
pub async fn past(catalog: &Catalog, selected: &[Selected], asked: bool) -> Result<Past> {
    if !asked {
        return match disposition::load(catalog).await {
            Err(e) if e.kind() == Kind::Corrupt => {
                tracing::warn!("{e}");
                Ok(Past::default())
            }
            standing => standing.map(Past::of_discards),
        };
    }
    let key = |s: &Selected| {
        let m = &s.manifest;
        layout::manifest_key(&layout::ledger_prefix(&m.topic, m.partition, m.generation), m.from)
    };
    let cuts: BTreeSet<String> = selected.iter().map(key).collect();
    Ok(audit::past(catalog, None, Some(&cuts), None).await?.0)
}

pub fn name(disposition: &Disposition<'_>) -> &'static str {
    match disposition {
        Disposition::Open => "open",
        Disposition::Restored(_) => "restored",
        Disposition::Discarded(_) => "discarded",
    }
}

/// By whom, when and why.
pub fn line(disposition: &Disposition<'_>) -> String {
    match disposition {
        Disposition::Open => "open".into(),
        Disposition::Restored(went) => format!("restored to {}, by restore {}", went.target, went.restore_id),
        Disposition::Discarded(said) => format!(
            "discarded at {} by {}: {} ({})",
            rfc3339(said.at_us),
            said.by,
            said.reason,
            layout::disposition_key(said.number)
        ),
    }
}

/// The same as columns of a document.
pub fn add_to(document: &mut Map<String, Value>, disposition: &Disposition<'_>) {
    document.insert("disposition".into(), name(disposition).into());
    let (mut restored, mut discarded) = (Value::Null, Value::Null);
    match disposition {
        Disposition::Open => {}
        Disposition::Restored(went) => {
            restored = json!({"target": went.target, "restore_id": went.restore_id});
        }
        Disposition::Discarded(said) => {
            discarded = json!({
                "at": rfc3339(said.at_us),
                "by": said.by,
                "reason": said.reason,
                "object": layout::disposition_key(said.number),
            });
        }
    }
    document.insert("restored".into(), restored);
    document.insert("discarded".into(), discarded);
}
