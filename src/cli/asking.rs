//! Who gives a command, and whether they mean it.

use super::text;
use crate::error::{Error, Result};
use std::io::{self, IsTerminal, Write};

/// Without a terminal to ask on, more records than this want `--yes`.
const UNASKED: u64 = 1000;

/// What is about to be done.
pub struct Asking {
    pub records: u64,
    /// The verb, as in: 5 records would be restored.
    pub done: &'static str,
    /// What holds if it is not meant.
    pub undone: &'static str,
    pub question: String,
}

impl Asking {
    /// Asks, where there is someone to ask.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] for many records, without a terminal and without `--yes`.
    pub async fn confirm(self, yes: bool) -> Result<()> {
        let Self { records, done, undone, question } = self;
        if yes {
            return Ok(());
        }
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            if records > UNASKED {
                return Err(Error::config(format!(
                    "{records} records would be {done}: above {UNASKED} this needs --yes where there is no terminal to ask \
                     on (--dry-run shows which)"
                )));
            }
            return Ok(());
        }
        let answer = tokio::task::spawn_blocking(move || {
            write!(io::stderr(), "{}", text::clean(&question))?;
            io::stderr().flush()?;
            let mut answer = String::new();
            io::stdin().read_line(&mut answer).map(|_| answer)
        });
        let answer = answer.await.map_err(|e| Error::internal(format!("a worker thread failed: {e}")))?;
        let answer = answer.map_err(|e| Error::failed(format!("cannot read the answer: {e}")))?;
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => Err(Error::failed(format!("not confirmed: {undone}"))),
        }
    }
}

/// The user and the machine, as far as the environment tells.
pub fn user_and_host() -> (String, String) {
    let from = |names: &[&str]| names.iter().find_map(|n| std::env::var(n).ok().filter(|v| !v.is_empty()));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|h| h.trim().to_owned());
    let host = host.filter(|h| !h.is_empty()).or_else(|| from(&["HOSTNAME"]));
    let unknown = || "unknown".to_owned();
    (from(&["USER", "LOGNAME"]).unwrap_or_else(unknown), host.unwrap_or_else(unknown))
}
