//! What goes to standard output: tables for people, JSON and JSON lines for programs.

use crate::error::{Error, Result};
use clap::{Args, ValueEnum};
use std::io::{self, Write};

/// The message of the error that says the reader of a pipe went away (`| head`): the program ends quietly.
pub const CLOSED: &str = "standard output was closed";

#[derive(Debug, Clone, Args)]
pub struct OutputArgs {
    /// How results are printed
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    #[default]
    Table,
    /// One document
    Json,
    /// One document a line
    Jsonl,
}

/// Turns an error of writing to standard output into ours.
pub fn written(result: io::Result<()>) -> Result<()> {
    result.map_err(|e| match e.kind() {
        io::ErrorKind::BrokenPipe => Error::failed(CLOSED),
        _ => Error::failed(format!("cannot write to standard output: {e}")),
    })
}

/// Prints one line.
pub fn line(text: &str) -> Result<()> {
    written(writeln!(io::stdout(), "{text}"))
}
