//! Ctrl-C and SIGTERM: the first asks to finish, the second (or a deadline) to leave at once.

use crate::error::{Error, Result};
use crate::stage::{self, Stage, StageReceiver};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// A shutdown stage that follows the signals. `grace` after the first signal, what is open is abandoned.
pub fn shutdown(grace: Duration) -> Result<StageReceiver> {
    shutdown_saying(grace, "Kafka has what is not archived, and the next run goes on from the ledger")
}

/// The same for other commands; `last_words` say what becomes of what is abandoned.
pub fn shutdown_saying(grace: Duration, last_words: &'static str) -> Result<StageReceiver> {
    let (sender, receiver) = stage::channel();
    let failed = |e: std::io::Error| Error::internal(format!("cannot listen for signals: {e}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        tracing::info!("finishing what is open; another signal, or {} s, ends it at once", grace.as_secs());
        sender.send(Stage::Finish);
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {}, () = tokio::time::sleep(grace) => {} }
        tracing::warn!("leaving at once; {last_words}");
        sender.send(Stage::Abandon);
    });
    Ok(receiver)
}

/// Returns at the first Ctrl-C or SIGTERM; nothing is said.
pub async fn interrupted() -> Result<()> {
    let failed = |e: std::io::Error| Error::internal(format!("cannot listen for signals: {e}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    Ok(())
}
