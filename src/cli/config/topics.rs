//! `[topics."NAME or ^pattern"]`: the file's tables, as settings of topics.
//!
//! Owns the keys of these tables. Does not know which table is a topic's ([`crate::topics`]).

use super::file::{File, Setting, Table, Value};
use crate::cli::args::{cut_age, cut_bytes, duration, share};
use crate::error::{Error, Result, did_you_mean};
use crate::topics::{TopicMatch, TopicSettings};
use std::time::Duration;

const KEYS: [&str; 7] = ["cut-records", "cut-bytes", "cut-age", "retention", "safety", "pipeline", "dialects"];

/// # Errors
/// [`crate::Kind::Config`] with file, line and key.
pub fn settings(file: &File) -> Result<Vec<TopicSettings>> {
    file.topics.iter().map(|table| of(file, table)).collect()
}

fn of(file: &File, table: &Table) -> Result<TopicSettings> {
    let at = |line, why: String| Error::config(format!("{}: [topics.{:?}] {why}", file.place(line), table.topic));
    let topic = TopicMatch::parse(&table.topic).map_err(|why| at(table.line, why))?;
    let mut settings = TopicSettings::of(topic);
    for setting in &table.settings {
        set(&mut settings, setting).map_err(|why| at(setting.line, format!("{}: {why}", setting.key)))?;
    }
    Ok(settings)
}

fn set(settings: &mut TopicSettings, setting: &Setting) -> Result<(), String> {
    if setting.key == "dialects" {
        settings.dialects = setting.value.texts();
        return Ok(());
    }
    let Value::One(text) = &setting.value else { return Err("it takes one text or number".into()) };
    let told = |why| format!("{text:?}: {why}");
    match setting.key.as_str() {
        "cut-records" => match text.parse::<usize>() {
            Ok(n) if n > 0 => settings.cut_records = Some(n),
            _ => return Err(told("expected a number above 0".to_owned())),
        },
        "cut-bytes" => settings.cut_bytes = Some(cut_bytes(text).map_err(told)?),
        "cut-age" => settings.cut_age = Some(cut_age(text).map_err(told)?),
        "retention" => match duration(text).map_err(told)? {
            Duration::ZERO => {
                return Err(told("it must be above 0; leave it out if records are kept for ever".to_owned()));
            }
            retention => settings.retention = Some(retention),
        },
        "safety" => settings.safety = Some(share(text).map_err(told)?),
        "pipeline" if text.trim().is_empty() => return Err(told("a pipeline has a name".to_owned())),
        "pipeline" => settings.pipeline = Some(text.clone()),
        key => {
            let near = did_you_mean(&key.replace('_', "-"), KEYS);
            let keys = format!(". A topic has {}", KEYS.join(", "));
            return Err(format!("there is no such key{}", if near.is_empty() { keys } else { near }));
        }
    }
    Ok(())
}
