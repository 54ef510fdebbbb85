//! The report as a table, as JSON, and as a monitoring plugin's line.

use super::super::output::Out;
use super::super::paint::{Style, paint};
use super::super::progress::human_bytes;
use super::super::table::{Column, Table};
use super::super::{colour, text};
use crate::error::{Result, few};
use crate::retention::{Limit, LogSettings, Source, words};
use crate::status::facts::Conditional;
use crate::status::report::{Level, PartitionReport, Report, Rules, Standing, Threshold, TopicReport};
use serde_json::{Map, Value, json};
use std::io::IsTerminal;

pub fn table(report: &Report, by_partition: bool, out: &mut Out) -> Result<()> {
    let paints = colour(std::io::stdout().is_terminal());
    let headline = format!("{}: {}", shown(report.level), text::clean(&report.headline()));
    let style = match report.level {
        Level::Ok => Style::Strong,
        Level::Warning => Style::Message,
        Level::Unknown | Level::Critical => Style::Failure,
    };
    out.line(&paint(&headline, style, paints))?;
    let mut rows: Vec<(Level, Vec<String>)> = match by_partition {
        true => report.partitions.iter().map(|p| (p.standing.level, partition_row(p, report.at_ms))).collect(),
        false => report.topics.iter().map(|t| (t.standing.level, topic_row(t, report.at_ms))).collect(),
    };
    // Worst first; else by name.
    rows.sort_by_key(|(level, _)| std::cmp::Reverse(*level));
    let mut columns = vec![Column::wide("TOPIC")];
    if by_partition {
        columns.extend([Column::number("PARTITION"), Column::number("ARCHIVED TO"), Column::number("LOG END")]);
    } else {
        columns.push(Column::number("PARTITIONS"));
    }
    columns.extend([
        Column::whole("STATE"),
        Column::whole("WAITING"),
        Column::whole("OLDEST"),
        Column::whole("DELETED FROM"),
        Column::whole("LOST"),
        Column::optional("LAST CUT"),
    ]);
    if !rows.is_empty() {
        out.line("")?;
    }
    let mut table = Table::new(columns);
    for (_, row) in rows {
        table.row(row, out)?;
    }
    table.finish(out)?;
    if !report.advice.is_empty() {
        out.line("")?;
    }
    // What helps many topics stands once.
    let mut told: Vec<(&str, Vec<&str>)> = Vec::new();
    let level = |topic: &Option<String>| {
        let of_topic = report.topics.iter().find(|t| topic.as_ref() == Some(&t.topic));
        std::cmp::Reverse(of_topic.map(|t| t.standing.level).unwrap_or_default())
    };
    let mut all: Vec<_> = report.advice.iter().collect();
    all.sort_by_key(|advice| level(&advice.topic));
    for advice in all {
        let about = advice.topic.as_deref().unwrap_or("archive");
        match told.iter_mut().find(|(text, _)| *text == advice.text) {
            Some((_, topics)) => topics.push(about),
            None => told.push((&advice.text, vec![about])),
        }
    }
    for (advice, topics) in told {
        out.line(&format!("{}: {advice}", text::clean(&few(topics, 3))))?;
    }
    if let Conditional::Unknown(why) = &report.conditional {
        out.line(&format!("archive: whether the store keeps If-None-Match: * is unknown: {}", text::clean(why)))?;
    }
    Ok(())
}

/// As a column has it: what is critical stands out without colours too.
fn shown(level: Level) -> &'static str {
    match level {
        Level::Critical => "CRITICAL",
        other => other.name(),
    }
}

fn topic_row(t: &TopicReport, now_ms: i64) -> Vec<String> {
    let mut row = vec![text::clean(&t.topic).into_owned(), t.partitions.to_string()];
    row.extend(standing_row(&t.standing, now_ms));
    row
}

fn partition_row(p: &PartitionReport, now_ms: i64) -> Vec<String> {
    let number = |n: Option<i64>| n.map_or_else(|| "-".into(), |n| n.to_string());
    let generation = p.generation.filter(|g| *g > 1).map_or_else(String::new, |g| format!("@g{g}"));
    let mut row = vec![
        text::clean(&p.tp.topic).into_owned(),
        format!("{}{generation}", p.tp.partition),
        number(p.archived_to),
        number(p.log.map(|l| l.end)),
    ];
    row.extend(standing_row(&p.standing, now_ms));
    row
}

fn standing_row(s: &Standing, now_ms: i64) -> Vec<String> {
    let ago = |ms: Option<i64>| match ms {
        Some(ms) if ms > now_ms => text::time(ms),
        Some(ms) => format!("{} ago", words(now_ms.saturating_sub(ms))),
        None => "-".into(),
    };
    let state = match s.reasons.first() {
        Some(reason) => format!("{}: {}", shown(s.level), reason.why.short()),
        None => shown(s.level).into(),
    };
    let mut waiting = match (s.waiting, s.waiting_bytes) {
        (0, _) if s.silent => "?".to_owned(),
        (0, _) => "-".to_owned(),
        (n, None) => n.to_string(),
        (n, Some(bytes)) => format!("{n} (~{})", human_bytes(bytes)),
    };
    if s.hidden > 0 {
        waiting.push_str(&format!(", {} hidden", s.hidden));
    }
    let deleted = match s.deadline {
        None => "-".into(),
        Some(d) if d.at_ms <= now_ms => "now".into(),
        Some(d) => format!("{}, in {}", short_time(d.at_ms), words(d.at_ms - now_ms)),
    };
    let lost = match (s.lost.records().saturating_add(s.gone), s.lost_recently.saturating_add(s.gone)) {
        (0, _) => "-".to_owned(),
        (all, 0) => all.to_string(),
        (all, new) if all == new => format!("{all} new"),
        (all, new) => format!("{all}, {new} new"),
    };
    vec![state, waiting, ago(s.oldest_ms), deleted, lost, ago(s.last_cut_ms)]
}

/// `12-07 09:12Z`: how far away it is stands beside it.
fn short_time(ms: i64) -> String {
    let time = text::time(ms);
    time.get(5..16).map_or_else(|| time.clone(), |short| format!("{short}Z"))
}

/// A plugin's text: one line, and `|` begins its figures.
pub fn one_line(text_of: &str) -> String {
    text::clean(text_of).replace('|', "/")
}

pub fn nagios(report: &Report, rules: &Rules) -> String {
    let level = report.level.name().to_uppercase();
    let share = |threshold| match threshold {
        Threshold::Share(share) => format!("{}:", (share * 100.0).round()),
        Threshold::Time(_) => String::new(),
    };
    let time = |threshold| match threshold {
        Threshold::Share(_) => String::new(),
        Threshold::Time(ms) => format!("{}:", ms / 1000),
    };
    // U: it could not be found out.
    let silent = report.brokers_error.is_some() || report.topics.iter().any(|t| t.standing.silent);
    let known = |of: fn(&Standing) -> u64| match silent {
        true => "U".to_owned(),
        false => report.total(of).to_string(),
    };
    let mut figures = vec![
        format!("waiting={};;;0", known(|s| s.waiting)),
        format!("waiting_bytes={}B;;;0", known(|s| s.waiting_bytes.unwrap_or(0))).replace("UB", "U"),
        format!("hidden={};;;0", known(|s| s.hidden)),
        format!("gone={};;0;0", known(|s| s.gone)),
        format!("lost={};;;0", report.total(|s| s.lost.records())),
        format!("lost_recently={};;0;0", report.total(|s| s.lost_recently)),
    ];
    if let Some(left) = report.left() {
        figures.push(format!("left={:.1}%;{};{}", left * 100.0, share(rules.warning), share(rules.critical)));
    }
    if let Some(deadline) = report.deadline() {
        let seconds = deadline.at_ms.saturating_sub(report.at_ms) / 1000;
        figures.push(format!("time_left={seconds}s;{};{}", time(rules.warning), time(rules.critical)));
    }
    format!("DLQ {level} - {} | {}", one_line(&report.headline()), figures.join(" "))
}

pub fn document(report: &Report) -> Value {
    let mut document = status(report);
    document.insert("topics".into(), report.topics.iter().map(topic).collect());
    document.insert("partitions".into(), report.partitions.iter().map(partition).collect());
    document.insert("advice".into(), advice(report).collect());
    document.into()
}

pub fn lines(report: &Report, out: &mut Out) -> Result<()> {
    let mut line = |kind: &str, document: Value| out.line(&text::escaped(&json!({ kind: document }).to_string()));
    report.topics.iter().try_for_each(|t| line("topic", topic(t)))?;
    report.partitions.iter().try_for_each(|p| line("partition", partition(p)))?;
    advice(report).try_for_each(|a| line("advice", a))?;
    line("status", status(report).into())
}

fn status(report: &Report) -> Map<String, Value> {
    let (conditional, unknown) = match &report.conditional {
        Conditional::Kept => (Some(true), None),
        Conditional::NotKept => (Some(false), None),
        Conditional::Unknown(why) => (None, Some(why.as_str())),
        Conditional::NotAsked => (None, None),
    };
    let mut document = Map::new();
    let mut put = |name: &str, value: Value| document.insert(name.to_owned(), value);
    put("state", report.level.name().into());
    put("exit_code", report.exit_code().into());
    put("text", report.headline().into());
    put("at", time(Some(report.at_ms)));
    put("archive_id", report.archive_id.as_str().into());
    put("url", report.url.as_str().into());
    put("conditional_create", conditional.into());
    put("conditional_create_unknown", unknown.into());
    put("brokers_error", report.brokers_error.as_deref().into());
    document
}

fn advice(report: &Report) -> impl Iterator<Item = Value> {
    report.advice.iter().map(|a| json!({ "topic": a.topic, "name": a.name, "text": a.text }))
}

fn time(ms: Option<i64>) -> Value {
    ms.and_then(text::rfc3339_ms).into()
}

fn topic(t: &TopicReport) -> Value {
    let mut document = Map::new();
    document.insert("topic".into(), t.topic.as_str().into());
    document.insert("partitions".into(), t.partitions.into());
    standing(&t.standing, &t.settings, &mut document);
    document.into()
}

fn partition(p: &PartitionReport) -> Value {
    let mut document = Map::new();
    let mut put = |name: &str, value: Value| document.insert(name.to_owned(), value);
    put("topic", p.tp.topic.as_str().into());
    put("partition", p.tp.partition.into());
    put("generation", p.generation.into());
    put("archived_to", p.archived_to.into());
    put("log_start", p.log.map(|l| l.start).into());
    put("last_stable_offset", p.log.map(|l| l.stable).into());
    put("log_end", p.log.map(|l| l.end).into());
    put("hidden_since", time(p.hidden_since_ms));
    standing(&p.standing, &p.settings, &mut document);
    document.into()
}

fn standing(s: &Standing, settings: &LogSettings, document: &mut Map<String, Value>) {
    let reasons = s.reasons.iter().map(|r| json!({ "state": r.level.name(), "name": r.why.name(), "text": r.text }));
    let mut put = |name: &str, value: Value| document.insert(name.to_owned(), value);
    put("state", s.level.name().into());
    put("reasons", reasons.collect());
    put("waiting_offsets", (!s.silent).then_some(s.waiting).into());
    put("waiting_bytes", s.waiting_bytes.into());
    put("hidden_offsets", (!s.silent).then_some(s.hidden).into());
    put("gone_offsets", (!s.silent).then_some(s.gone).into());
    put("oldest_waiting", time(s.oldest_ms));
    put("deleted_from", time(s.deadline.map(|d| d.at_ms)));
    let by = s.deadline.map(|d| match d.limit {
        Limit::Time => "retention.ms",
        Limit::Size => "retention.bytes",
    });
    put("deleted_by", by.into());
    put("left", s.deadline.map(|d| d.left).into());
    put("last_cut", time(s.last_cut_ms));
    put("lost", s.lost.lost.into());
    put("lost_expired", s.lost.expired.into());
    put("lost_unknown", s.lost.unknown.into());
    put("compacted", s.lost.compacted.into());
    put("lost_recently", s.lost_recently.into());
    put("retention_ms", settings.retention_ms.into());
    put("retention_bytes", settings.retention_bytes.into());
    let source = match settings.source {
        Source::Unknown => "unknown",
        Source::Brokers => "brokers",
        Source::Given => "given",
    };
    put("retention_source", source.into());
}
