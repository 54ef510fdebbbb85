//! Log lines on standard error: which, and in which form.
//!
//! Owns format, levels and directives. What repeats is held back by [`super::repeats`].

use super::progress::LogWriter;
use super::repeats::Repeats;
use super::{Cli, Command, colour};
use crate::error::{Error, Result, did_you_mean};
use clap::ValueEnum;
use std::io::IsTerminal;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text on a terminal, else JSON
    #[default]
    Auto,
    Text,
    /// One object a line: timestamp, level, target, message, and what else is known
    Json,
}

/// Levels of all, and of single modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directives(Vec<(Option<String>, LevelFilter)>);

/// Parses `info` or `info,dlq_archiver::archive=debug,librdkafka=debug`.
///
/// # Errors
/// The directive that is none, and why.
pub fn directives(text: &str) -> Result<Directives, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let level = |text: &str, directive: &str| match LEVELS.iter().position(|l| l.eq_ignore_ascii_case(text)) {
        Some(_) => text.parse().map_err(|_| format!("{text:?} is no level")),
        None => {
            let near = did_you_mean(text, LEVELS);
            let levels = format!(". Levels are {}; that of a module is MODULE=LEVEL", LEVELS.join(", "));
            Err(format!("{directive:?}: {text:?} is no level{}", if near.is_empty() { levels } else { near }))
        }
    };
    let module = |c: char| c.is_ascii_alphanumeric() || "_:-.".contains(c);
    let mut all = Vec::new();
    for directive in text.split(',').map(str::trim).filter(|d| !d.is_empty()) {
        all.push(match directive.split_once('=') {
            Some((target, _)) if target.is_empty() || !target.chars().all(module) => {
                return Err(format!("{directive:?}: {target:?} is no module, such as dlq_archiver::archive"));
            }
            Some((target, of_target)) => (Some(target.to_owned()), level(of_target, directive)?),
            None => (None, level(directive, directive)?),
        });
    }
    if all.is_empty() { Err("it has no level, such as info".into()) } else { Ok(Directives(all)) }
}

/// What has lines of its own beside this program, and may be meant.
const LIBRARIES: [&str; 7] =
    ["librdkafka", "rdkafka", "aws_config", "aws_sdk_s3", "aws_smithy_runtime", "hyper", "hyper_util"];

impl Directives {
    /// Modules of which no line comes, each with what may be meant. The program's are known by their first name alone;
    /// of other names only those that look like a slip.
    pub fn unknown(&self) -> Vec<String> {
        const OWN: &str = "dlq_archiver";
        let modules = include_str!("../lib.rs").lines();
        let modules =
            modules.filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';'));
        let modules: Vec<String> = modules.map(|module| format!("{OWN}::{module}")).collect();
        let known: Vec<&str> = modules.iter().map(String::as_str).chain([OWN]).chain(LIBRARIES).collect();
        let unknown = self.0.iter().filter_map(|(target, _)| {
            let target = target.as_deref()?;
            // A directive is for all whose names begin so.
            let is_known = known.iter().any(|known| match target.strip_prefix(known) {
                Some(rest) => rest.is_empty() || rest.starts_with("::") && *known != OWN,
                None => known.starts_with(target),
            });
            let near = did_you_mean(&target.replace('-', "_"), known.iter().copied());
            let is_own = target.starts_with(OWN);
            (!is_known && (is_own || !near.is_empty()))
                .then(|| format!("log-level {target}: there is no such module{near}"))
        });
        unknown.collect()
    }
}

/// Which lines are written.
fn filter(cli: &Cli, variable: Option<&str>) -> Result<Targets> {
    use LevelFilter as L;
    let levels = |all, sdk, own| {
        Targets::new().with_default(all).with_target("aws_config", sdk).with_target("dlq_archiver", own)
    };
    if let Some(text) = variable.filter(|text| !text.is_empty()) {
        let Directives(all) = directives(text).map_err(|e| Error::config(format!("DLQ_ARCHIVER_LOG: {e}")))?;
        return Ok(all.into_iter().fold(Targets::new(), |targets, (target, level)| match target {
            Some(target) => targets.with_target(target, level),
            None => targets.with_default(level),
        }));
    }
    Ok(match (cli.quiet, cli.verbose, &cli.log_level) {
        (true, ..) => levels(L::ERROR, L::ERROR, L::ERROR),
        (_, 0, Some(Directives(all))) => {
            let own = all.iter().rev().find(|(target, _)| target.is_none()).map_or(L::INFO, |(_, level)| *level);
            // Other libraries' warnings, unless less is asked for.
            let targets = levels(own.min(L::WARN), own.min(L::ERROR), own);
            let single = all.iter().filter_map(|(target, level)| Some((target.clone()?, *level)));
            single.fold(targets, |targets, (target, level)| targets.with_target(target, level))
        }
        // Its story is on standard output.
        (_, 0, None) if matches!(cli.command, Command::Demo(_)) => levels(L::WARN, L::WARN, L::WARN),
        // What the AWS SDK warns of is in our errors, in one line.
        (_, 0, None) => levels(L::WARN, L::ERROR, L::INFO),
        (_, 1, _) => levels(L::WARN, L::ERROR, L::DEBUG),
        (_, 2, _) => levels(L::WARN, L::ERROR, L::TRACE),
        _ => levels(L::DEBUG, L::DEBUG, L::TRACE).with_target("librdkafka", L::TRACE),
    })
}

/// Begins to log. What is returned tells at the end what was held back.
///
/// # Errors
/// [`crate::Kind::Config`] for a directive that is none.
pub fn init(cli: &Cli) -> Result<Repeats> {
    let filter = filter(cli, std::env::var("DLQ_ARCHIVER_LOG").ok().as_deref())?;
    let terminal = std::io::stderr().is_terminal();
    let format = fmt::layer().with_writer(|| LogWriter);
    let format = match cli.log_format {
        LogFormat::Auto if !terminal => format.json().flatten_event(true).with_current_span(false).boxed(),
        LogFormat::Json => format.json().flatten_event(true).with_current_span(false).boxed(),
        LogFormat::Auto | LogFormat::Text => format.with_target(cli.verbose > 1).with_ansi(colour(terminal)).boxed(),
    };
    let repeats = Repeats::default();
    tracing_subscriber::registry().with(filter).with(repeats.clone()).with(format).init();
    Ok(repeats)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use tracing::Level;

    #[test]
    fn a_wrong_directive_is_refused_by_name() {
        for (text, told) in [
            ("inf", "\"inf\": \"inf\" is no level; did you mean \"info\"?"),
            ("info,librdkafka=debg", "\"librdkafka=debg\": \"debg\" is no level; did you mean \"debug\"?"),
            ("dlq_archiver", "\"dlq_archiver\": \"dlq_archiver\" is no level"),
            ("3", "\"3\": \"3\" is no level"),
            ("=info", "\"=info\": \"\" is no module"),
            ("a b=info", "\"a b=info\": \"a b\" is no module"),
            (" ,", "it has no level"),
        ] {
            let e = directives(text).unwrap_err();
            assert!(e.starts_with(told), "{text}: {e}");
        }
        let cli = Cli::parse_from(["dlq-archiver", "summary"]);
        let e = filter(&cli, Some("nonsense")).unwrap_err();
        assert!(e.exit_code() == 2 && e.message().starts_with("DLQ_ARCHIVER_LOG: \"nonsense\""), "{e}");
    }

    #[test]
    fn a_module_that_does_not_exist_is_told_and_one_that_does_is_not() {
        let unknown = |text: &str| directives(text).unwrap().unknown().join("; ");
        for known in [
            "info",
            "dlq_archiver=debug",
            "dlq_archiver::archive=debug",
            "dlq_archiver::archive::reader=debug",
            "dlq_archiver::arch=debug",
            "librdkafka=debug",
            "aws_sdk_s3::operation=debug",
            "h2=info",
        ] {
            assert_eq!(unknown(known), "", "{known}");
        }
        assert_eq!(
            unknown("info,dlq_archiver::archve=debug"),
            "log-level dlq_archiver::archve: there is no such module; did you mean \"dlq_archiver::archive\"?"
        );
        assert!(unknown("dlq-archiver=debug").ends_with("did you mean \"dlq_archiver\"?"));
        assert!(unknown("librdkafk2=debug").ends_with("did you mean \"librdkafka\"?"));
    }

    #[test]
    fn what_is_logged() {
        let enabled = |args: &[&str], variable, target: &str| {
            let cli = Cli::parse_from([&["dlq-archiver"], args].concat());
            let filter = filter(&cli, variable).unwrap();
            let levels = [Level::TRACE, Level::DEBUG, Level::INFO, Level::WARN, Level::ERROR];
            levels.into_iter().find(|level| filter.would_enable(target, level)).map_or("off", |l| match l {
                Level::TRACE => "trace",
                Level::DEBUG => "debug",
                Level::INFO => "info",
                Level::WARN => "warn",
                _ => "error",
            })
        };
        let archive = "dlq_archiver::archive::reader";
        for (args, variable, own, other) in [
            (&["summary"][..], None, "info", "warn"),
            (&["summary", "--log-level", "info"], None, "info", "warn"),
            (&["summary", "--log-level", "ERROR"], None, "error", "error"),
            (&["summary", "--log-level", "debug"], None, "debug", "warn"),
            (&["summary", "--log-level", "off"], None, "off", "off"),
            (&["summary", "--log-level", "dlq_archiver::archive=debug"], None, "debug", "warn"),
            (&["summary", "--log-level", "warn,hyper=trace"], None, "warn", "trace"),
            // -v and -q are typed at the moment.
            (&["summary", "-q", "--log-level", "debug"], None, "error", "error"),
            (&["summary", "-v", "--log-level", "error"], None, "debug", "warn"),
            (&["summary", "-vvv"], None, "trace", "debug"),
            (&["summary", "-v"], Some("warn,hyper=debug"), "warn", "debug"),
            (&["demo"], None, "warn", "warn"),
        ] {
            assert_eq!((enabled(args, variable, archive), enabled(args, variable, "hyper")), (own, other), "{args:?}");
        }
        let cli = &["summary", "--log-level", "info,dlq_archiver::archive=trace"];
        assert_eq!((enabled(cli, None, archive), enabled(cli, None, "dlq_archiver::store")), ("trace", "info"));
        assert_eq!(enabled(&["summary"], None, "aws_config::x"), "error");
    }
}
