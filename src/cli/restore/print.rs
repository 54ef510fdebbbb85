//! What `restore` prints: what it would do, what it did, what is in its way.

use crate::cli::output::{self, Out, Output};
use crate::cli::table::{Column, Table};
use crate::cli::text;
use crate::error::{Error, Result};
use crate::restore::Reach;
use crate::restore::audit::DoneDoc;
use crate::restore::counts::Counts;
use crate::restore::nothing::Nothing;
use crate::restore::plan::{Delivery, PlanDoc};
use crate::restore::why::Why;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// Ids that are shown of one reason.
const SHOWN: usize = 20;

/// Another restore that has not ended, and how to get it out of the way.
pub fn in_the_way(other: &PlanDoc) -> String {
    format!(
        "restore {}, begun at {} by {}, has not ended and may select the same records, which would be sent twice. If \
         it runs, wait for its end. If it was killed, finish it: `dlq-archiver restore --resume {}`, with the same \
         --archive and --brokers; or end it with --take-over: what it sent is not sent again",
        other.restore_id, other.created_at, other.created_by, other.restore_id
    )
}

/// What to know before records are sent.
pub fn warnings(counts: &Counts) -> Vec<String> {
    let mut lines = Vec::new();
    let repeats = counts.repeats;
    if repeats.records > 0 {
        lines.push(format!(
            "{} records are repeats of {} (same failure_key): each goes back as often as it is archived. No \
             flag picks one of each: to do so, query the archive for one record_id of each failure_key, and give those \
             with --record-id @FILE",
            repeats.records,
            text::count(repeats.failures, "failure")
        ));
    }
    if !counts.not_found.is_empty() {
        let ids: Vec<String> = counts.not_found.iter().take(SHOWN).map(ToString::to_string).collect();
        lines.push(format!(
            "{} selected nothing: not archived (yet), or ruled out by another filter: {}{}",
            text::count(counts.not_found.len() as u64, "record id"),
            ids.join(" "),
            if counts.not_found.len() > SHOWN { " ..." } else { "" }
        ));
    }
    if counts.unsent_values > 0 {
        lines.push(format!(
            "{} not sent: the records are skipped",
            text::count(counts.unsent_values, "corrected value")
        ));
    }
    if !counts.unused_values.is_empty() {
        let ids: Vec<String> = counts.unused_values.iter().take(SHOWN).map(ToString::to_string).collect();
        lines.push(format!(
            "{} of the corrected values are for records that are not selected: {}{}",
            counts.unused_values.len(),
            ids.join(" "),
            if counts.unused_values.len() > SHOWN { " ..." } else { "" }
        ));
    }
    lines.extend(counts.unjudged.as_ref().map(ToString::to_string));
    lines
}

/// What brokers do not tell, and so could not be planned for.
pub fn untold(counts: &Counts) -> Option<String> {
    let topics: Vec<&str> = counts.untold.iter().take(SHOWN).map(String::as_str).collect();
    (!topics.is_empty()).then(|| {
        format!(
            "it is not known how long Kafka keeps records in {}{}: the brokers do not tell retention.ms there. What is \
             older than that is deleted at once; --timestamps now avoids it",
            topics.join(", "),
            if counts.untold.len() > SHOWN { " ..." } else { "" }
        )
    })
}

/// What a dry run finds out besides.
#[derive(Debug, Default)]
pub struct More {
    pub nothing: Option<Nothing>,
    /// The plan's id, or why it is not kept.
    pub kept: Option<std::result::Result<String, Error>>,
    /// See [`crate::restore::Restore::reach`].
    pub reach: Reach,
    /// Restores that are in the way are ended.
    pub take_over: bool,
}

/// What a restore would do.
pub fn draft(counts: &Counts, overlapping: &[PlanDoc], more: &More, output: Output) -> Result<()> {
    let nothing = more.nothing.as_ref();
    if output != Output::Table {
        return draft_json(counts, overlapping, more);
    }
    let mut out = Out::new();
    match nothing {
        Some(nothing) => out.line(&nothing.text())?,
        None => out.line(&format!("{} of {} selected records to restore", counts.to_restore, counts.selected))?,
    }
    let columns = ["TARGET", "PIPELINE", "ERROR CLASS"].map(Column::new);
    let mut table = Table::new(columns.into_iter().chain([Column::number("RECORDS")]).collect());
    let cell = |text: &str| text::clean(text).into_owned();
    for (g, records) in &counts.groups {
        let class = g.error_class.as_deref().unwrap_or("-");
        table.row(vec![cell(&g.target), cell(&g.pipeline), cell(class), records.to_string()], &mut out)?;
    }
    if !counts.groups.is_empty() {
        table.finish(&mut out)?;
    }
    if counts.refetched > 0 {
        out.line(&format!("{} of them go as their originals, which were read again", counts.refetched))?;
    }
    if counts.bare > 0 {
        out.line(&format!(
            "{} of them go without their original headers and timestamp, which were not copied into the dead letter \
             (`dlq-archiver refetch` reads them again)",
            counts.bare
        ))?;
    }
    if counts.looked_for > 0 {
        out.line(&format!(
            "originals of {} were looked for before, and were not there: `show ID` says why, and `dlq-archiver refetch --again` \
             looks again",
            text::count(counts.looked_for, "record")
        ))?;
    }
    if counts.tombstones > 0 {
        out.line(&match counts.tombstones {
            1 => "1 of them is a tombstone: its value is null".to_owned(),
            n => format!("{n} of them are tombstones: their value is null"),
        })?;
    }
    if counts.corrected > 0 {
        let unchanged = counts.to_restore - counts.corrected;
        out.line(&format!("{} of them go with a corrected value, {unchanged} as they are", counts.corrected))?;
    }
    for (attempt, records) in &counts.again {
        out.line(&format!(
            "of {}, this is restore number {attempt} of the same failure",
            text::count(*records, "record")
        ))?;
    }
    for line in warnings(counts).into_iter().chain(untold(counts)) {
        out.line(&text::clean(&line))?;
    }
    skipped(counts, &mut out)?;
    for other in overlapping {
        let told = match more.take_over {
            true => format!(
                "restore {} of {} is ended first: what it sent counts as restored",
                other.restore_id, other.created_by
            ),
            false => in_the_way(other),
        };
        out.line(&text::clean(&told))?;
    }
    for (source, functions) in &more.reach {
        let named: Vec<&str> = functions.iter().take(SHOWN).map(String::as_str).collect();
        out.line(&text::clean(&format!(
            "events of {source} go to every pipeline that is linked to this trigger, and not only to the one that failed: \
             others that have failed on its events are {}{}. What an event is about may have changed since",
            named.join(", "),
            if functions.len() > SHOWN { " ..." } else { "" }
        )))?;
    }
    match &more.kept {
        Some(Ok(id)) => out.line(&format!("plan {id}: `dlq-archiver restore --plan {id}` carries out exactly this"))?,
        Some(Err(e)) => out.line(&text::clean(&format!("the plan is not kept for --plan: {e}")))?,
        None => {}
    }
    out.flush()
}

fn skipped(counts: &Counts, out: &mut Out) -> Result<()> {
    if counts.skipped.is_empty() {
        return Ok(());
    }
    out.line("")?;
    out.line("skipped")?;
    let columns = vec![
        Column::number("RECORDS"),
        Column::wide("WHY"),
        Column::new("TARGET"),
        Column::whole("BY RESTORE"),
        Column::whole("SUCH AS"),
    ];
    let mut table = Table::new(columns);
    // One line for all restores of it: JSON has each.
    let mut rows: BTreeMap<_, (u64, Option<&String>, BTreeSet<&String>)> = BTreeMap::new();
    for (skip, s) in &counts.skipped {
        let row = rows.entry((skip.why, skip.target.as_ref())).or_default();
        row.0 += s.records;
        row.1 = row.1.or(s.ids.first());
        row.2.extend(&skip.restore_id);
    }
    for ((why, target), (records, example, restores)) in &rows {
        let cell = |text: Option<&String>| text::clean(text.map_or("-", String::as_str)).into_owned();
        let by = match restores.len() {
            0 | 1 => cell(restores.first().copied()),
            n => format!("{} and {} more", cell(restores.first().copied()), n - 1),
        };
        table.row(vec![records.to_string(), why.text().into(), cell(*target), by, cell(*example)], out)?;
    }
    table.finish(out)?;
    let reasons: BTreeSet<Why> = counts.skipped.keys().map(|skip| skip.why).collect();
    out.line("")?;
    for why in reasons {
        let mut targets = rows.keys().filter(|(of, _)| *of == why).filter_map(|(_, target)| *target);
        let remedy = match (targets.next(), targets.next()) {
            (Some(target), None) => why.remedy().replace("TARGET", &text::clean(target)),
            _ => why.remedy().to_owned(),
        };
        out.line(&format!("{}: {remedy}", why.text()))?;
        let ids = counts.skipped.iter().filter(|(skip, _)| skip.why == why).flat_map(|(_, s)| &s.ids);
        if why.is_of_record() {
            such_as(ids.map(String::as_str), counts.by_reason().get(&why).copied().unwrap_or(0), out)?;
        }
    }
    Ok(())
}

fn such_as<'a>(ids: impl Iterator<Item = &'a str>, of: u64, out: &mut Out) -> Result<()> {
    let ids: Vec<_> = ids.take(SHOWN).map(text::clean).collect();
    let more = of.saturating_sub(ids.len() as u64);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    out.line(&format!("  {}{more}", ids.join(" ")))
}

fn draft_json(counts: &Counts, overlapping: &[PlanDoc], more: &More) -> Result<()> {
    let nothing = more.nothing.as_ref();
    if let Some(Err(e)) = &more.kept {
        tracing::warn!("the plan is not kept for --plan: {e}");
    }
    let kept = more.kept.as_ref().and_then(|kept| kept.as_ref().ok());
    let groups = counts.groups.iter().map(|(g, records)| {
        json!({"target": g.target, "pipeline": g.pipeline, "error_class": g.error_class, "records": records})
    });
    let skipped = counts.skipped.iter().map(|(skip, s)| {
        json!({
            "reason": skip.why,
            "target": skip.target,
            "restore_id": skip.restore_id,
            "records": s.records,
            "example": s.ids.first(),
            "record_ids": s.ids,
            "meaning": skip.why.text(),
            "remedy": skip.why.remedy(),
        })
    });
    let overlapping = overlapping
        .iter()
        .map(|p| json!({"restore_id": p.restore_id, "created_at": p.created_at, "created_by": p.created_by}));
    let document = json!({
        "plan": kept,
        "also_reaches": more.reach,
        "selected": counts.selected,
        "to_restore": counts.to_restore,
        "restored_before": counts.again.iter().map(|(attempt, records)| json!({
            "attempt": attempt, "records": records
        })).collect::<Vec<_>>(),
        "groups": groups.collect::<Vec<_>>(),
        "skipped": skipped.collect::<Vec<_>>(),
        "refetched": counts.refetched,
        "without_original_headers": counts.bare,
        "originals_not_found": counts.looked_for,
        "tombstones": counts.tombstones,
        "repeats": {"records": counts.repeats.records, "failures": counts.repeats.failures},
        "retention_unknown": counts.untold,
        "not_found": counts.not_found.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "not_judged": counts.unjudged.as_ref().map(|u| json!({
            "records": u.records, "example": u.first.to_string(), "why": u.why
        })),
        "corrected": counts.corrected,
        "unsent_values": counts.unsent_values,
        "unused_values": counts.unused_values.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "nothing": nothing.map(|n| json!({
            "archived": n.archived, "read": n.read, "matching_nothing": n.flags, "meaning": n.text()
        })),
        "overlapping": overlapping.collect::<Vec<_>>(),
        "unfinished": null,
    });
    output::line(&text::escaped(&document.to_string()))
}

/// The unfinished restore that a command would go on with.
pub fn unfinished(plan: &PlanDoc, done: u64, output: Output) -> Result<()> {
    if output != Output::Table {
        let document = json!({
            "selected": plan.selected,
            "to_restore": plan.to_restore,
            "skipped": plan.skipped,
            "unfinished": {"restore_id": plan.restore_id, "created_at": plan.created_at, "done_at_least": done},
        });
        return output::line(&text::escaped(&document.to_string()));
    }
    output::line(&format!(
        "unfinished restore {}, begun at {} by {}: at least {done} of {} selected records are done. Without --dry-run \
         it goes on from there; --take-over ends it and plans anew",
        plan.restore_id,
        plan.created_at,
        text::clean(&plan.created_by),
        plan.selected
    ))
}

/// What a restore did.
pub fn done(plan: &PlanDoc, done: &DoneDoc, output: Output) -> Result<()> {
    let skipped_such_as = done.skipped_such_as.iter();
    if output != Output::Table {
        let document = json!({
            "restore_id": done.restore_id,
            "selected": done.selected,
            "restored": done.restored,
            "restored_by_target": done.restored_by_target,
            "skipped": done.skipped,
            "skipped_by_reason": done.skipped_by_reason,
            "skipped_such_as": skipped_such_as.map(|(id, why)| json!({
                "record_id": id, "reason": why, "meaning": why.text(), "remedy": why.remedy()
            })).collect::<Vec<_>>(),
            "delivery": done.delivery,
            "delivery_reason": plan.delivery_reason,
            "runs": done.runs,
            "lists": done.lists,
            "skipped_lists": done.skipped_lists,
        });
        return output::line(&text::escaped(&document.to_string()));
    }
    let mut out = Out::new();
    let promise = match done.delivery {
        Delivery::Transactional => "each exactly once",
        Delivery::Plain => "each at least once: a batch that was cut short is sent again",
    };
    out.line(&format!(
        "restored {} of {} selected records ({} delivery, {promise}; {})",
        done.restored,
        done.selected,
        done.delivery.as_str(),
        plan.delivery_reason
    ))?;
    for (topic, records) in &done.restored_by_target {
        out.line(&format!("  {records} to {}", text::clean(topic)))?;
    }
    for (why, records) in &done.skipped_by_reason {
        out.line(&format!("  {records} skipped: {}; {}", why.text(), why.remedy()))?;
        if why.is_of_record() {
            let ids = done.skipped_such_as.iter().filter(|(_, w)| w == why);
            such_as(ids.map(|(id, _)| id.as_str()), *records, &mut out)?;
        }
    }
    let lists = done.lists.iter().chain(&done.skipped_lists);
    out.line(&format!(
        "restore {}: {}",
        done.restore_id,
        lists.map(|l| l.key.as_str()).collect::<Vec<_>>().join(", ")
    ))?;
    out.flush()
}
