//! The command line: flags to options, one file a command.
//!
//! Nothing but data goes to standard output; logs, progress and errors go to standard error. An error is one line
//! that says what to do next. Exit codes: 0 done, 1 failed or a partition was stopped, 2 wrong usage or
//! configuration, 3 done but records were found lost, 4 damage found.

mod archive;
mod args;
mod asking;
mod bytes;
mod config;
mod demo;
mod dialects;
mod discard;
mod disposition;
mod event;
mod filter;
mod list;
mod listen;
mod logging;
mod output;
mod paint;
mod progress;
mod record;
mod refetch;
mod repeats;
mod restore;
mod routes;
mod show;
mod signals;
mod status;
mod summary;
mod table;
mod tail;
mod text;
mod verify;

use crate::error::{Error, Result};
use clap::{Parser, Subcommand};
use config::{Config, Parsed, Refused};
use logging::{Directives, LogFormat};
use std::path::PathBuf;

#[derive(Parser)]
#[command(name = "dlq-archiver", version, about, max_term_width = 110, disable_help_subcommand = true)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed or a partition was stopped, 2 wrong usage or configuration, 3 done \
    but records were found lost, 4 damage found."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Configuration in TOML: long names of options are its keys, such as cut-age = "1h"; [kafka] has librdkafka
    /// properties, [topics."NAME"] settings of topics, [[routes]] rules that name pipelines. A flag wins over a
    /// variable, a variable over the file
    #[arg(long, global = true, env = "DLQ_ARCHIVER_CONFIG", value_name = "FILE", help_heading = "Configuration")]
    config: Option<PathBuf>,

    /// A table of your own that says how a program writes its dead letters; repeatable, see `dialects --help`
    #[arg(
        long,
        global = true,
        env = "DLQ_ARCHIVER_DIALECT_FILE",
        value_name = "FILE",
        value_delimiter = ',',
        help_heading = "Configuration"
    )]
    dialect_file: Vec<PathBuf>,

    /// Log lines on standard error
    #[arg(long, global = true, value_enum, default_value_t, env = "DLQ_ARCHIVER_LOG_FORMAT", help_heading = "Logging")]
    log_format: LogFormat,

    /// Which log lines: off, error, warn, info, debug or trace for the program, MODULE=LEVEL for a module, several with
    /// commas, such as info,dlq_archiver::archive=debug,librdkafka=debug [default: info]
    #[arg(long, global = true, value_name = "LEVELS", value_parser = logging::directives, env = "DLQ_ARCHIVER_LOG_LEVEL",
          help_heading = "Logging")]
    log_level: Option<Directives>,

    /// More log lines of the program; -vv all of them, -vvv those of librdkafka and the AWS SDK too. Wins over
    /// --log-level, as -q does. DLQ_ARCHIVER_LOG wins over all: its levels alone, for every library too
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Logging")]
    verbose: u8,

    /// Errors only
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = "Logging")]
    quiet: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Drain dead-letter topics into the archive; runs on, or --once
    Archive(archive::Args),
    /// Put archived records back into Kafka
    Restore(Box<restore::Args>),
    /// Mark archived records as not to be restored, with a reason; or take that back
    Discard(discard::Args),
    /// Read the originals of headers-only dead letters from the topics that they came from
    Refetch(refetch::Args),
    /// List archived records
    List(list::Args),
    /// Show one archived record: every column, header and the chain of failures
    Show(show::Args),
    /// Count archived records by pipeline and error
    Summary(summary::Args),
    /// What is safe, what is at risk and when, what was lost; exit codes for monitoring
    Status(status::Args),
    /// Decode a live dead-letter topic to the terminal, one line a record
    Tail(tail::Args),
    /// Check the archive against its ledger, and the ledger against Kafka
    Verify(verify::Args),
    /// The header conventions of programs that dead-letter: list them, show one, try your own
    #[command(subcommand)]
    Dialects(dialects::Command),
    /// What the configuration comes to
    #[command(subcommand)]
    Config(config::check::Command),
    /// Try the configuration's routing on records
    #[command(subcommand)]
    Routes(routes::Command),
    /// All of it on an embedded broker and a local folder
    Demo(demo::Args),
}

/// Runs the program; returns its exit code.
pub fn main() -> u8 {
    crate::kafka::memory::give_back();
    let argv: Vec<_> = std::env::args_os().collect();
    // A monitoring plugin's 2 says that something is critical, and people see its standard output alone.
    let refused = |code: u8, why: &str| match code == 2 && argv.iter().any(|a| a == "--nagios") {
        true => {
            let _ = output::line(&status::unknown(why));
            3
        }
        false => code,
    };
    let Parsed { cli, config, .. } = match config::parse(&argv) {
        Ok(parsed) => parsed,
        Err(Refused::File(e)) => return refused(report(&e), e.message()),
        Err(Refused::Usage(e)) => {
            let _ = e.print();
            // Help and version are not errors.
            return refused(if e.use_stderr() { 2 } else { 0 }, &e.to_string());
        }
    };
    let repeats = match logging::init(&cli) {
        Ok(repeats) => repeats,
        Err(e) => return refused(report(&e), e.message()),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return report(&Error::internal(format!("cannot start: {e}"))),
    };
    let done = runtime.block_on(run(cli.command, &config));
    // Blocking threads may still wait for a broker: they hold nothing that is not in the ledger.
    runtime.shutdown_background();
    repeats.tell_all();
    match done {
        Ok(code) => code,
        Err(e) => report(&config.explain(e)),
    }
}

async fn run(command: Command, config: &Config) -> Result<u8> {
    match command {
        Command::Archive(args) => archive::run(args, config).await,
        Command::Restore(args) => restore::run(*args, config).await,
        Command::Discard(args) => discard::run(args).await,
        Command::Refetch(args) => refetch::run(args, config).await,
        Command::List(args) => list::run(args).await,
        Command::Show(args) => show::run(args, config).await,
        Command::Summary(args) => summary::run(args).await,
        Command::Status(args) => status::run(args, config).await,
        Command::Tail(args) => tail::run(args, config).await,
        Command::Verify(args) => verify::run(args, config).await,
        Command::Dialects(command) => dialects::run(command, config).await,
        Command::Routes(command) => routes::run(command, config).await,
        Command::Config(command) => config::check::run(command, config).await,
        Command::Demo(args) => demo::run(args).await,
    }
}

fn report(e: &Error) -> u8 {
    // The reader of a pipe went away: not worth a word.
    if e.message() != output::CLOSED {
        // Names from Kafka and the store are in it.
        output::tell(&format!("dlq-archiver: {}", text::clean(e.message())));
    }
    if e.message() == output::CLOSED { 0 } else { e.exit_code() }
}

/// Colour only on a terminal, and never with `NO_COLOR` (<https://no-color.org>).
fn colour(terminal: bool) -> bool {
    terminal && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}
