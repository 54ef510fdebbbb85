//! What goes to standard output: tables for people, JSON and JSON lines for programs.

use crate::error::{Error, Result};
use clap::{Args, ValueEnum};
use std::io::{self, BufWriter, Stdout, Write};

/// The message of the error that says the reader of a pipe went away (`| head`): the program ends quietly.
pub const CLOSED: &str = "standard output was closed";

#[derive(Debug, Clone, Args)]
pub struct OutputArgs {
    /// How results are printed
    #[arg(short, long, value_enum, default_value_t, help_heading = "Output")]
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

/// Tells people something, on standard error. That nobody can read it is no reason to end.
pub fn tell(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Standard output for many lines: buffered, so [`Out::flush`] it.
pub struct Out {
    lines: BufWriter<Stdout>,
    /// Kept back, to be drawn at once.
    held: Option<String>,
}

impl Out {
    pub fn new() -> Self {
        Self { lines: BufWriter::with_capacity(64 << 10, io::stdout()), held: None }
    }
    /// One that prints nothing, and gives it to [`Out::take`].
    pub fn held() -> Self {
        Self { held: Some(String::new()), ..Self::new() }
    }
    pub fn take(self) -> String {
        self.held.unwrap_or_default()
    }
    pub fn text(&mut self, text: &str) -> Result<()> {
        if let Some(held) = &mut self.held {
            held.push_str(text);
            return Ok(());
        }
        written(self.lines.write_all(text.as_bytes()))
    }
    pub fn line(&mut self, text: &str) -> Result<()> {
        self.text(text)?;
        self.text("\n")
    }
    pub fn flush(&mut self) -> Result<()> {
        written(self.lines.flush())
    }
}

/// Prints documents: as one array, or one a line.
pub struct Documents {
    array: bool,
    any: bool,
}

impl Documents {
    /// `array`: one array of all.
    pub fn new(array: bool) -> Self {
        Self { array, any: false }
    }
    /// `json`: one document without line breaks.
    pub fn document(&mut self, json: &str, out: &mut Out) -> Result<()> {
        if self.array {
            out.text(if self.any { ",\n" } else { "[\n" })?;
            self.any = true;
            return out.text(json);
        }
        out.line(json)
    }
    pub fn finish(self, out: &mut Out) -> Result<()> {
        match (self.array, self.any) {
            (true, true) => out.line("\n]"),
            (true, false) => out.line("[]"),
            (false, _) => Ok(()),
        }
    }
}
