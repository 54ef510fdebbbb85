//! `[[routes]]`: the file's rules, as rules of routing.
//!
//! Owns the keys of a rule. Does not know which fields there are, nor how a rule matches ([`crate::routing`]).

use super::file::{File, Route, Setting, Value};
use crate::error::{Error, Result, did_you_mean};
use crate::routing::{Condition, Rule};

const KEYS: [&str; 2] = ["match", "pipeline"];

/// # Errors
/// [`crate::Kind::Config`] with file, line and key.
pub fn rules(file: &File) -> Result<Vec<Rule>> {
    file.routes.iter().enumerate().map(|(i, route)| of(file, i + 1, route)).collect()
}

fn of(file: &File, number: usize, route: &Route) -> Result<Rule> {
    let at = |line, why: String| Error::config(format!("{}: [[routes]] {number}: {why}", file.place(line)));
    let mut name: Option<(&Setting, &str)> = None;
    for setting in &route.settings {
        match (setting.key.as_str(), &setting.value) {
            ("pipeline", Value::One(text)) => name = Some((setting, text)),
            ("pipeline", _) => return Err(at(setting.line, "pipeline: it takes one text".into())),
            (key, _) => {
                let near = did_you_mean(key, KEYS);
                // A field that stands beside match, most likely.
                let hint = match Condition::parse(key, "x") {
                    Ok(_) => format!(". A condition is part of match: write match.{key}"),
                    Err(_) if near.is_empty() => format!(". A rule has {}", KEYS.join(" and ")),
                    Err(_) => near,
                };
                return Err(at(setting.line, format!("{key}: there is no such key{hint}")));
            }
        }
    }
    let conditions = route.conditions.iter().map(|setting| {
        let told = |why| at(setting.line, format!("match.{}: {why}", setting.key));
        let Value::One(text) = &setting.value else {
            return Err(told("it takes one text or number; a regular expression has several, as in ^(a|b)$".into()));
        };
        Condition::parse(&setting.key, text).map_err(told)
    });
    let conditions: Vec<Condition> = conditions.collect::<Result<_>>()?;
    if conditions.is_empty() {
        let why = "it has no condition: write match.topic = \"NAME\", or \"*\" for all";
        return Err(at(route.line, why.into()));
    }
    let Some((setting, text)) = name else {
        return Err(at(route.line, "it has no pipeline: write pipeline = \"NAME\"".into()));
    };
    Rule::new(conditions, text).map_err(|why| at(setting.line, format!("pipeline: {why}")))
}
