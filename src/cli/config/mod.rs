//! The configuration file beneath the command line: `--config FILE`.
//!
//! Owns which keys there are (the long names of options that have a variable), their check, and the order flag,
//! variable, file, default. Does not read values itself: the file's stand in for an option's default, so that the
//! option's own parser takes them. Invariant: what is wrong in the file is told with file, line and key, and nothing is
//! done; that includes keys of other commands.

pub mod check;
mod file;
mod routes;
mod secret;
mod topics;

pub use file::{File, Value};
pub use secret::is_secret;

use super::Cli;
use crate::cut::Tables;
use crate::dialect::Dialects;
use crate::error::{Error, Result, did_you_mean};
use crate::routing::{Routing, Rule};
use crate::topics::TopicSettings;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};
use file::Setting;
use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What the command line, the environment and the file say together.
pub struct Parsed {
    pub cli: Cli,
    pub config: Config,
}

/// Why there is nothing to do.
pub enum Refused {
    /// By the command line, or help.
    Usage(clap::Error),
    /// By the file.
    File(Error),
}

/// The configuration file in force. The default is none.
#[derive(Debug, Clone, Default)]
pub struct Config {
    pub file: File,
    pub topics: Vec<TopicSettings>,
    dialect_files: Vec<PathBuf>,
    pub rules: Vec<Rule>,
    /// Keys that neither flag nor variable stands above.
    used: BTreeSet<String>,
    /// What the command line and the environment say.
    matches: ArgMatches,
}

impl Config {
    /// # Errors
    /// [`crate::Kind::Config`] for a file that cannot be read, or has what is none of a configuration's.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|e| Error::config(format!("cannot read --config {name}: {e}")))?;
        Self::parse(&name, &text)
    }

    fn parse(name: &str, text: &str) -> Result<Self> {
        let file = File::parse(name, text)?;
        check(&file)?;
        let (topics, rules) = (topics::settings(&file)?, routes::rules(&file)?);
        Ok(Self { topics, rules, file, ..Self::default() })
    }

    /// The built-in dialects and those of `--dialect-file`, and which topics ask for which.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] with file, line and reason.
    pub fn dialects(&self) -> Result<Dialects> {
        self.dialects_with(&[])
    }

    /// The same, with more files; one of them takes the place of a `--dialect-file` with its name.
    ///
    /// # Errors
    /// As [`Self::dialects`].
    pub fn dialects_with(&self, more: &[PathBuf]) -> Result<Dialects> {
        let read = |path: &PathBuf| {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|e| Error::config(format!("cannot read --dialect-file {name}: {e}")))?;
            Ok((name, text))
        };
        let name = |text: &str| Some(toml::from_str::<toml::Table>(text).ok()?.get("name")?.as_str()?.to_owned());
        let more: Vec<(String, String)> = more.iter().map(read).collect::<Result<_>>()?;
        let mut files: Vec<(String, String)> = self.dialect_files.iter().map(read).collect::<Result<_>>()?;
        files.retain(|(_, text)| !more.iter().any(|(_, m)| name(m).is_some() && name(m) == name(text)));
        files.extend(more);
        let files = files.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        Dialects::with_user_tables(files)?.with_topics(&self.topics)
    }

    /// How records are decoded and routed: [`Self::dialects`], with the file's rules and the pipelines that it gives to
    /// topics.
    ///
    /// # Errors
    /// As [`Self::dialects`].
    pub fn tables(&self) -> Result<Tables> {
        Ok(Tables::of(self.dialects()?, |routing| self.routing(routing)))
    }

    pub fn routing(&self, of_dialects: Routing) -> Routing {
        of_dialects.with_topics(&self.topics).with_rules(&self.rules)
    }

    /// Whether the command line itself has this option: not the environment, not the file.
    pub fn is_typed(&self, id: &str) -> bool {
        leaf(&self.matches).value_source(id) == Some(ValueSource::CommandLine)
    }

    /// Where the file has a key that neither flag nor variable stands above.
    pub fn place_of(&self, key: &str) -> Option<String> {
        let setting = self.file.settings.iter().find(|s| s.key == key && self.used.contains(key));
        setting.map(|s| self.file.place(s.line))
    }

    /// What an option's parser made of its text.
    pub fn matches_of<T: Clone + Send + Sync + 'static>(&self, id: &str) -> Option<&T> {
        leaf(&self.matches).try_get_one(id).ok().flatten()
    }

    /// An error that names options says where the file sets them.
    pub fn explain(&self, e: Error) -> Error {
        let named = |key: &str| {
            e.message().match_indices(&format!("--{key}")).any(|(at, flag)| {
                !e.message()[at + flag.len()..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-')
            })
        };
        let places = self.used.iter().filter(|key| named(key)).filter_map(|key| Some((key, self.place_of(key)?)));
        let places: Vec<_> = places.map(|(key, place)| format!("{key} is set in {place}")).collect();
        match places.is_empty() {
            true => e,
            false => Error::new(e.kind(), format!("{} ({})", e.message(), places.join(", "))),
        }
    }
}

/// The key of an option that can be set in the file: its long name; of those that are one command's alone, with the
/// command's before it, as in their variables.
pub fn key(arg: &Arg) -> Option<String> {
    let variable = arg.get_env().and_then(|v| v.to_str()).unwrap_or_default();
    let long = arg.get_long().filter(|long| variable.starts_with("DLQ_ARCHIVER_") && *long != "config");
    long.map(|_| arg.get_id().as_str().replace('_', "-"))
}

/// Parses the command line, with the environment and the file that they name beneath it.
pub fn parse(argv: &[OsString]) -> Result<Parsed, Refused> {
    let strict = || Cli::command().try_get_matches_from(argv).map_err(Refused::Usage);
    // What the file may have need not be there yet.
    let relaxed = each_arg(Cli::command(), &|arg| if key(&arg).is_some() { arg.required(false) } else { arg });
    let Ok(matches) = relaxed.try_get_matches_from(argv) else { return finish(strict()?, Config::default()) };
    let Some(path) = matches.get_one::<PathBuf>("config") else {
        return finish(strict()?, Config::default());
    };
    let config = Config::read(path).map_err(Refused::File)?;
    let above = explicit(&matches);
    let command = each_arg(Cli::command(), &|arg| match setting_of(&config.file, &arg) {
        Some(setting) if !above.contains(arg.get_id().as_str()) => with_default(arg, &setting.value),
        _ => arg,
    });
    finish(command.try_get_matches_from(argv).map_err(Refused::Usage)?, config)
}

fn finish(matches: ArgMatches, mut config: Config) -> Result<Parsed, Refused> {
    let cli = Cli::from_arg_matches(&matches).map_err(Refused::Usage)?;
    let (of_command, above) = (leaf(&matches), explicit(&matches));
    let set: BTreeSet<&str> = of_command.ids().map(|id| id.as_str()).filter(|id| !above.contains(*id)).collect();
    let used = config.file.settings.iter().filter(|s| set.contains(id(&s.key).as_str()));
    config.used = used.map(|s| s.key.clone()).collect();
    let dialect_files = cli.dialect_file.clone();
    Ok(Parsed { cli, config: Config { matches, dialect_files, ..config } })
}

/// Clap's name of a key's option.
fn id(key: &str) -> String {
    key.replace('-', "_")
}

/// What was parsed of the command itself.
pub fn leaf(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, deeper)| leaf(deeper))
}

/// Options that a flag or a variable sets.
fn explicit(matches: &ArgMatches) -> HashSet<String> {
    let matches = leaf(matches);
    let set = |id: &&str| matches!(matches.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable));
    matches.ids().map(|id| id.as_str()).filter(set).map(str::to_owned).collect()
}

fn each_arg(command: Command, change: &impl Fn(Arg) -> Arg) -> Command {
    command.mut_args(change).mut_subcommands(|deeper| each_arg(deeper, change))
}

fn setting_of<'f>(file: &'f File, arg: &Arg) -> Option<&'f Setting> {
    key(arg).and_then(|key| file.settings.iter().find(|s| s.key == key))
}

/// The option with the file's value in place of its default. A list is one already: commas belong to its texts.
fn with_default(arg: Arg, value: &Value) -> Arg {
    let arg = arg.required(false).default_values(value.texts());
    if matches!(value, Value::List(_)) { arg.value_delimiter(None) } else { arg }
}

/// Refuses a file that says anything that no command understands.
fn check(file: &File) -> Result<()> {
    let mut commands = vec![Cli::command()];
    let mut known: BTreeSet<String> = BTreeSet::new();
    while let Some(command) = commands.pop() {
        commands.extend(command.get_subcommands().cloned());
        // Alone: nothing is required, and the environment is not looked at.
        let alone = Command::new("file").no_binary_name(true).disable_help_flag(true).disable_version_flag(true);
        let alone = alone.args(command.get_arguments().map(|arg| {
            let arg = arg.clone().required(false);
            let lists = setting_of(file, &arg).is_some_and(|s| matches!(s.value, Value::List(_)));
            let arg = if lists { arg.value_delimiter(None) } else { arg };
            arg.env(None::<&'static str>)
        }));
        for arg in command.get_arguments() {
            known.extend(key(arg));
            let Some(setting) = setting_of(file, arg) else { continue };
            check_value(arg, setting, &alone)
                .map_err(|why| Error::config(format!("{}: {}: {why}", file.place(setting.line), setting.key)))?;
        }
    }
    if let Some(setting) = file.settings.iter().find(|s| !known.contains(&s.key)) {
        let near = did_you_mean(&setting.key.replace('_', "-"), known.iter().map(String::as_str));
        let of_topics = ["pipeline", "dialects"].contains(&setting.key.as_str());
        let hint = match near.is_empty() {
            _ if of_topics => ". It belongs into a table of a topic, [topics.\"NAME\"], or a rule, [[routes]]",
            true => ". Keys are the long names of options that have a variable DLQ_ARCHIVER_*",
            false => near.as_str(),
        };
        return Err(Error::config(format!(
            "{}: {}: there is no such key{hint}",
            file.place(setting.line),
            setting.key
        )));
    }
    Ok(())
}

fn check_value(arg: &Arg, setting: &Setting, alone: &Command) -> Result<(), String> {
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return match setting.value {
            Value::Bool(_) => Ok(()),
            _ => Err("it takes true or false".into()),
        };
    }
    if matches!(setting.value, Value::List(_)) && !matches!(arg.get_action(), ArgAction::Append) {
        return Err("it takes one value, not a list".into());
    }
    let long = arg.get_long().unwrap_or_default();
    let words = setting.value.texts().into_iter().map(|value| format!("--{long}={value}"));
    alone.clone().try_get_matches_from(words).map(|_| ()).map_err(|e| reason(&e))
}

/// What is wrong with a value, without what the command line has to do with it.
fn reason(e: &clap::Error) -> String {
    use clap::error::{ContextKind, ContextValue};
    let value = match e.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => format!("{value:?}: "),
        _ => String::new(),
    };
    if let Some(ContextValue::Strings(all)) = e.get(ContextKind::ValidValue) {
        return format!("{value}it is one of {}", all.join(", "));
    }
    match std::error::Error::source(e) {
        Some(why) if why.is::<std::num::ParseIntError>() => format!("{value}expected a whole number"),
        Some(why) => format!("{value}{why}"),
        None => format!("{value}{}", e.kind()),
    }
}

#[cfg(test)]
mod tests;
