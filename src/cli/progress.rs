//! Progress of long work: a bar on a terminal, log lines elsewhere; and log lines that do not break the bar.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tracing_subscriber::fmt::MakeWriter;

static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

fn bar() -> Option<ProgressBar> {
    BAR.lock().unwrap_or_else(|e| e.into_inner()).clone()
}

/// Standard error for log lines: the bar steps aside for each.
pub struct LogWriter;

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        Self
    }
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A full disk or a log collector that went away must not end an archiver: the line is lost, and nothing else.
        let _ = match bar() {
            Some(bar) => bar.suspend(|| io::stderr().write_all(bytes)),
            None => io::stderr().write_all(bytes),
        };
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Shows how far something is. Gone from the terminal when dropped.
pub struct Progress {
    bar: Option<ProgressBar>,
    told: Instant,
}

const LINE_EVERY: Duration = Duration::from_secs(10);

impl Progress {
    /// `total`: in whatever is counted; `None` if unknown.
    pub fn start(total: Option<u64>) -> Self {
        let mut shown = None;
        if io::stderr().is_terminal() {
            let template = match total {
                Some(_) => "{bar:30} {percent}% {msg} ({eta} left)",
                None => "{spinner} {msg}",
            };
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr()).with_style(style);
            *BAR.lock().unwrap_or_else(|e| e.into_inner()) = Some(bar.clone());
            shown = Some(bar);
        }
        Self { bar: shown, told: Instant::now() }
    }

    /// Tells how far it is; the message is made only if it is shown.
    pub fn update(&mut self, position: u64, message: impl FnOnce() -> String) {
        match &self.bar {
            Some(bar) => {
                bar.set_position(position);
                bar.set_message(message());
            }
            None if self.told.elapsed() >= LINE_EVERY => {
                self.told = Instant::now();
                tracing::info!("{}", message());
            }
            None => {}
        }
    }

    /// The same, with the time that is left: the bar reckons it itself.
    pub fn update_with_time(&mut self, position: u64, message: String, left: impl FnOnce() -> String) {
        let left = if self.bar.is_some() { String::new() } else { left() };
        self.update(position, || format!("{message}{left}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            *BAR.lock().unwrap_or_else(|e| e.into_inner()) = None;
            bar.finish_and_clear();
        }
    }
}

/// `1.5 GiB`, `12 KiB`, `7 B`.
pub fn human_bytes(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

/// `3 minutes`, `2 hours`.
pub fn human_duration(duration: Duration) -> String {
    indicatif::HumanDuration(duration).to_string()
}
