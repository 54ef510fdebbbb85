//! What looks at restores, in place of restoring; asks no brokers.

use super::{list, report, status};
use crate::error::Result;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Restores of this archive, the newest first
    List(list::Args),
    /// How far restores are that have not ended, whether they look stalled, and what to do
    Status(status::Args),
    /// All of one restore, for auditors: a table, JSON, or a page that prints well
    Report(report::Args),
}

pub async fn run(command: Command) -> Result<u8> {
    match command {
        Command::List(args) => list::run(args).await,
        Command::Status(args) => status::run(args).await,
        Command::Report(args) => report::run(args).await,
    }
}
