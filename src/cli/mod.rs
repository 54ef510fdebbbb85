//! The command line: flags to options, one file a command.
//!
//! Nothing but data goes to standard output; logs, progress and errors go to standard error. An error is one line
//! that says what to do next. Exit codes: 0 done, 1 failed or a partition was stopped, 2 wrong usage or
//! configuration, 3 done but records were found lost, 4 damage found.

mod archive;
mod args;
mod bytes;
mod demo;
mod event;
mod filter;
mod list;
mod listen;
mod output;
mod paint;
mod progress;
mod record;
mod restore;
mod show;
mod signals;
mod summary;
mod table;
mod tail;
mod text;
mod verify;

use crate::error::{Error, Result};
use clap::{Parser, Subcommand, ValueEnum};
use std::io::IsTerminal;

#[derive(Parser)]
#[command(name = "dlq-archiver", version, about, max_term_width = 110, disable_help_subcommand = true)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed or a partition was stopped, 2 wrong usage or configuration, 3 done \
    but records were found lost, 4 damage found."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Log lines on standard error
    #[arg(long, global = true, value_enum, default_value_t, env = "DLQ_ARCHIVER_LOG_FORMAT", help_heading = "Logging")]
    log_format: LogFormat,

    /// More log lines of the program; -vv all of them, -vvv those of librdkafka and the AWS SDK too. DLQ_ARCHIVER_LOG
    /// takes a filter instead, such as warn,librdkafka=debug
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
    Restore(restore::Args),
    /// List archived records
    List(list::Args),
    /// Show one archived record: every column, header and the chain of failures
    Show(show::Args),
    /// Count archived records by pipeline and error
    Summary(summary::Args),
    /// Decode a live dead-letter topic to the terminal, one line a record
    Tail(tail::Args),
    /// Check the archive against its ledger, and the ledger against Kafka
    Verify(verify::Args),
    /// All of it on an embedded broker and a local folder
    Demo(demo::Args),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Runs the program; returns its exit code.
pub fn main() -> u8 {
    crate::kafka::memory::give_back();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are not errors.
            let code = if e.use_stderr() { 2 } else { 0 };
            let _ = e.print();
            return code;
        }
    };
    init_logging(&cli);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return report(&Error::internal(format!("cannot start: {e}"))),
    };
    let done = runtime.block_on(run(cli.command));
    // Blocking threads may still wait for a broker: they hold nothing that is not in the ledger.
    runtime.shutdown_background();
    match done {
        Ok(code) => code,
        Err(e) => report(&e),
    }
}

async fn run(command: Command) -> Result<u8> {
    match command {
        Command::Archive(args) => archive::run(args).await,
        Command::Restore(args) => restore::run(args).await,
        Command::List(args) => list::run(args).await,
        Command::Show(args) => show::run(args).await,
        Command::Summary(args) => summary::run(args).await,
        Command::Tail(args) => tail::run(args).await,
        Command::Verify(args) => verify::run(args).await,
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

fn init_logging(cli: &Cli) {
    use tracing_subscriber::{EnvFilter, fmt};
    let level = match (cli.quiet, cli.verbose) {
        (true, _) => "error",
        // Its story is on standard output.
        (_, 0) if matches!(cli.command, Command::Demo(_)) => "warn",
        // What the AWS SDK warns of is in our errors, in one line.
        (_, 0) => "warn,aws_config=error,dlq_archiver=info",
        (_, 1) => "warn,aws_config=error,dlq_archiver=debug",
        (_, 2) => "warn,aws_config=error,dlq_archiver=trace",
        (_, _) => "debug,dlq_archiver=trace,librdkafka=trace",
    };
    let filter = EnvFilter::try_from_env("DLQ_ARCHIVER_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let writer = progress::LogWriter;
    let format = fmt().with_env_filter(filter).with_writer(writer).with_target(cli.verbose > 1);
    match cli.log_format {
        LogFormat::Json => format.json().flatten_event(true).with_target(true).init(),
        LogFormat::Text => format.with_ansi(colour(std::io::stderr().is_terminal())).init(),
    }
}

/// Colour only on a terminal, and never with `NO_COLOR` (<https://no-color.org>).
fn colour(terminal: bool) -> bool {
    terminal && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}
