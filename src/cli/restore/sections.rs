//! What a report of a restore says, for people: on a terminal and on a page.

use super::words;
use crate::cli::output::Out;
use crate::cli::table::{self, Table};
use crate::cli::text;
use crate::error::Result;
use crate::format::restored::Restored;
use crate::restore::report::{CORRECTED, Report};
use crate::restore::turn::{self, Event};
use serde_json::Value;

#[derive(Debug, Clone, Copy)]
pub struct Column {
    pub title: &'static str,
    pub number: bool,
}

/// A part of a report.
#[derive(Debug, Default)]
pub struct Section {
    pub title: &'static str,
    pub problems: Vec<String>,
    pub facts: Vec<(String, String)>,
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<String>>,
    pub notes: Vec<String>,
}

const fn text_of(title: &'static str) -> Column {
    Column { title, number: false }
}

const fn number(title: &'static str) -> Column {
    Column { title, number: true }
}

pub fn all(report: &Report) -> Vec<Section> {
    let mut all = vec![outcome(report), decision(report), selection(report), targets(report), skipped(report)];
    all.extend([runs(report), lists(report), order(report), corrected(report), rows(report)]);
    all.retain(|s| !(s.facts.is_empty() && s.rows.is_empty() && s.notes.is_empty() && s.problems.is_empty()));
    all
}

fn facts(all: impl IntoIterator<Item = (&'static str, Option<String>)>) -> Vec<(String, String)> {
    all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn outcome(report: &Report) -> Section {
    let (plan, done) = (&report.overview.plan, report.overview.done.as_ref());
    let reached = report.overview.reached().filter(|_| done.is_none());
    let facts = facts([
        ("State", Some(report.overview.state().as_str().to_owned())),
        ("Ended early", report.overview.closed().map(str::to_owned)),
        ("Selected", Some(plan.selected.to_string())),
        ("Restored", done.map(|done| done.restored.to_string())),
        ("Skipped", done.map(|done| done.skipped.to_string())),
        ("Left", done.map(|done| done.left.to_string())),
        ("Done at least", reached.map(|n| n.to_string())),
        ("Delivery", Some(format!("{}: {}", plan.delivery.as_str(), plan.delivery_reason))),
        ("Ended at", done.map(|done| done.finished_at.clone())),
    ]);
    Section { title: "Outcome", facts, ..Section::default() }
}

fn decision(report: &Report) -> Section {
    let plan = &report.overview.plan;
    let (user, host) = plan.created_by.rsplit_once('@').unwrap_or((&plan.created_by, "unknown"));
    let given = |text: &Option<String>| Some(text.clone().unwrap_or_else(|| "not given".into()));
    let facts = facts([
        ("Planned at", Some(plan.created_at.clone())),
        ("Decided by", given(&plan.by)),
        ("Reason", given(&plan.reason)),
        ("User, as seen", Some(user.to_owned())),
        ("Host, as seen", Some(host.to_owned())),
        ("Program version", Some(plan.program_version.clone())),
        ("Archive", Some(plan.archive_id.clone())),
    ]);
    Section { title: "Who and when", facts, ..Section::default() }
}

fn selection(report: &Report) -> Section {
    let plan = &report.overview.plan;
    let words = words::of(&plan.filter);
    let words = if words.is_empty() { "every record of the archive".to_owned() } else { words.join("; ") };
    let json = |value: Option<Value>| value.map(|value| value.to_string());
    let skips: Vec<String> = plan.skipped.iter().map(|(why, n)| format!("{n} {}", why.text())).collect();
    let facts = facts([
        ("Filter", Some(words)),
        ("Filter as JSON", json(serde_json::to_value(&plan.filter).ok())),
        ("Options", json(serde_json::to_value(&plan.options).ok())),
        ("Plan of a dry run", Some(plan.draft.clone().unwrap_or_else(|| "none".into()))),
        (
            "Planned",
            Some(format!("{} to restore, from {}", plan.to_restore, text::count(report.overview.cuts as u64, "cut"))),
        ),
        ("Planned skips", (!skips.is_empty()).then(|| skips.join("; "))),
        ("Dialects' digest", Some(plan.dialects_digest.clone())),
        ("SHA-256 of plan.json", Some(report.overview.plan_sha256.clone())),
        ("SHA-256 of done.json", report.overview.done_sha256.clone()),
    ]);
    Section { title: "What was asked for", facts, ..Section::default() }
}

fn targets(report: &Report) -> Section {
    let done = report.overview.done.as_ref();
    let restored = |topic: &String| match done {
        Some(done) => done.restored_by_target.get(topic).copied().unwrap_or(0).to_string(),
        None => "-".into(),
    };
    let rows = report.overview.plan.targets.iter();
    let rows = rows.map(|(topic, partitions)| vec![topic.clone(), partitions.to_string(), restored(topic)]).collect();
    Section {
        title: "Targets",
        columns: vec![text_of("TOPIC"), number("PARTITIONS"), number("RESTORED")],
        rows,
        ..Section::default()
    }
}

fn skipped(report: &Report) -> Section {
    let by_reason = report.overview.done.iter().flat_map(|done| &done.skipped_by_reason);
    Section {
        title: "Skipped",
        columns: vec![number("RECORDS"), text_of("REASON")],
        rows: by_reason.map(|(why, records)| vec![records.to_string(), why.text().to_owned()]).collect(),
        ..Section::default()
    }
}

fn runs(report: &Report) -> Section {
    let row = |(number, run): (&u32, &crate::restore::audit::RunDoc)| {
        let ends = run.closing.as_ref().map_or("-", |closing| &closing.reason);
        let (by, start) = (run.started_by.clone(), run.start.to_string());
        vec![number.to_string(), run.started_at.clone(), by, start, run.program_version.clone(), ends.to_owned()]
    };
    let columns = vec![
        number("RUN"),
        text_of("BEGUN"),
        text_of("BY"),
        number("FROM RECORD"),
        text_of("VERSION"),
        text_of("ENDS THE RESTORE"),
    ];
    let plain = report.overview.plan.delivery == crate::restore::plan::Delivery::Plain;
    let notes = match plain && report.overview.done.is_some() {
        true => vec!["without transactions the end is a run, too".to_owned()],
        false => Vec::new(),
    };
    Section { title: "Runs", columns, rows: report.runs.iter().map(row).collect(), notes, ..Section::default() }
}

fn lists(report: &Report) -> Section {
    let lists = report.overview.done.iter().flat_map(|done| done.lists.iter().chain(&done.skipped_lists));
    Section {
        title: "Lists",
        columns: vec![text_of("OBJECT"), number("ROWS"), text_of("SHA-256")],
        rows: lists.map(|list| vec![list.key.clone(), list.rows.to_string(), list.sha256.clone()]).collect(),
        ..Section::default()
    }
}

fn order(report: &Report) -> Section {
    let row = |link: &crate::restore::chain::Link| {
        let event = match link.doc.event {
            Event::Begun => "begun",
            Event::Ended => "ended",
        };
        let before = link.doc.previous_sha256.clone().unwrap_or_else(|| "none: it is the first".into());
        vec![event.to_owned(), turn::order_key(link.number), link.doc.sha256.clone(), link.sha256.clone(), before]
    };
    let columns = vec![
        text_of("EVENT"),
        text_of("OBJECT"),
        text_of("SHA-256 OF PLAN OR END"),
        text_of("ITS OWN SHA-256"),
        text_of("SHA-256 BEFORE IT"),
    ];
    let mut notes = Vec::new();
    if report.problems.is_empty() {
        notes.push(format!(
            "the order of all restores holds from its first document to the newest, number {}. Nothing hashes the newest but a \
             receipt of `dlq-archiver verify`",
            report.order
        ));
    }
    let problems = report.problems.clone();
    Section {
        title: "Place in the order of restores",
        problems,
        columns,
        rows: report.links.iter().map(row).collect(),
        notes,
        ..Section::default()
    }
}

fn corrected(report: &Report) -> Section {
    let row = |row: &Restored| {
        let sha256 = |of: Option<&String>| of.map_or("null value", String::as_str).to_owned();
        let correction = row.correction.as_ref();
        let archived = sha256(correction.and_then(|c| c.archived_sha256.as_ref()));
        vec![row.id.to_string(), archived, sha256(correction.and_then(|c| c.restored_sha256.as_ref()))]
    };
    let mut notes = Vec::new();
    if report.corrected_total > 0 {
        notes.push(format!(
            "{} were restored with another value than is archived",
            text::count(report.corrected_total, "record")
        ));
    }
    if report.corrected_total > report.corrected.len() as u64 {
        notes.push(format!("the first {CORRECTED} are above; the lists have all, in value_corrected"));
    }
    let columns = vec![text_of("RECORD"), text_of("SHA-256 ARCHIVED"), text_of("SHA-256 RESTORED")];
    Section {
        title: "Corrected values",
        columns,
        rows: report.corrected.iter().map(row).collect(),
        notes,
        ..Section::default()
    }
}

/// Where a record went: `topic/partition/offset`.
pub fn target(row: &Restored) -> String {
    format!("{}/{}/{}", row.target_topic, row.target_partition, row.target_offset)
}

fn rows(report: &Report) -> Section {
    let row = |row: &Restored| {
        vec![row.id.to_string(), target(row), crate::archive::rfc3339(row.restored_at_us), row.attempt.to_string()]
    };
    let shown = report.rows.len() as u64;
    let note = match &report.overview.done {
        Some(done) => format!("{shown} of {} restored records; the lists have all", done.restored),
        None => format!(
            "the first {shown} of what is listed so far; of the last batch it is not known whether it became visible"
        ),
    };
    Section {
        title: "What went where",
        columns: vec![text_of("FROM"), text_of("TO"), text_of("ACKNOWLEDGED"), number("ATTEMPT")],
        rows: report.rows.iter().map(row).collect(),
        notes: vec![note],
        ..Section::default()
    }
}

/// The same on a terminal.
pub fn print(sections: &[Section], out: &mut Out) -> Result<()> {
    for (i, section) in sections.iter().enumerate() {
        out.line(&format!("{}{}", if i == 0 { "" } else { "\n" }, section.title))?;
        for line in &section.problems {
            out.line(&format!("  PROBLEM: {}", text::clean(line)))?;
        }
        let width = section.facts.iter().map(|(name, _)| text::width(name)).max().unwrap_or(0);
        for (name, value) in &section.facts {
            let pad = " ".repeat(width.saturating_sub(text::width(name)));
            out.line(&format!("  {name}{pad}  {}", text::clean(value)))?;
        }
        let columns = section.columns.iter();
        let columns =
            columns.map(|c| if c.number { table::Column::number(c.title) } else { table::Column::whole(c.title) });
        let mut table = Table::new(columns.collect());
        for row in &section.rows {
            table.row(row.iter().map(|cell| text::clean(cell).into_owned()).collect(), out)?;
        }
        table.finish(out)?;
        for line in &section.notes {
            out.line(&format!("  {}", text::clean(line)))?;
        }
    }
    Ok(())
}
