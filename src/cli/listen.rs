//! `--listen`: flags of the metrics and health server, and its start.

use super::args::share;
use crate::archive::{Counters, Options};
use crate::error::{Error, Result};
use crate::health::Limits;
use crate::host::{self, Task};
use crate::http;
use crate::metrics::Monitor;
use crate::store::Requests;
use clap::Args;
use std::sync::Arc;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Monitoring")]
pub struct ListenArgs {
    /// Serve /metrics for Prometheus, /livez and /readyz on this address, such as 0.0.0.0:9464. Whoever reaches it reads
    /// names of topics and counts, without a password
    #[arg(long, env = "DLQ_ARCHIVER_LISTEN", value_name = "ADDR")]
    listen: Option<String>,

    /// /readyz answers 503 where less than this share of the retention is left and nothing is archived for a minute
    #[arg(long, default_value = "0.1", value_parser = share, env = "DLQ_ARCHIVER_READY_BELOW", value_name = "SHARE")]
    ready_below: f64,
}

impl ListenArgs {
    /// Whether the address is one. Whether it is free shows when it is listened to.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] with what to type.
    pub fn check(&self) -> Result<()> {
        let Some(address) = &self.listen else { return Ok(()) };
        let is_one = address.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c == '/') && port.parse::<u16>().is_ok()
        });
        match is_one {
            true => Ok(()),
            false => Err(Error::config(format!(
                "--listen {address:?} is not an address: it takes HOST:PORT, such as 0.0.0.0:9464 or 127.0.0.1:9464"
            ))),
        }
    }

    /// Listens, if asked to; until the task is dropped.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] for an address that cannot be had.
    pub async fn start(
        &self,
        counters: &Arc<Counters>,
        requests: &Requests,
        options: &Options,
    ) -> Result<Option<Task<()>>> {
        let Some(address) = &self.listen else { return Ok(None) };
        let listener = http::listen(address).await?;
        if let Some(address) = http::address(&listener) {
            tracing::info!("listening on http://{address}: /metrics, /livez, /readyz");
        }
        let cut_min_age_ms = i64::try_from(options.cut_min_age.as_millis()).unwrap_or(i64::MAX);
        let limits = Limits { ready_below: self.ready_below, cut_min_age_ms };
        let options = options.clone();
        let safety = Box::new(move |topic: &str| options.safety_of(topic));
        let monitor = Monitor::new(counters.clone(), requests.clone(), limits, safety);
        let pages = move |path: &str, accept: &str| monitor.page(path, accept);
        Ok(Some(host::spawn(http::serve(listener, Arc::new(pages)))))
    }
}
