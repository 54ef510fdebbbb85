//! `--listen`: flags of the metrics and health server, and its start.

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
    #[arg(long, default_value_t = 0.1, env = "DLQ_ARCHIVER_READY_BELOW", value_name = "SHARE")]
    ready_below: f64,
}

impl ListenArgs {
    /// Listens, if asked to; until the task is dropped.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] for an address that cannot be had, or a share that is none.
    pub async fn start(
        &self,
        counters: &Arc<Counters>,
        requests: &Requests,
        options: &Options,
    ) -> Result<Option<Task<()>>> {
        if !(0.0..=1.0).contains(&self.ready_below) {
            return Err(Error::config("--ready-below is a share of the retention: 0 to 1, such as 0.1"));
        }
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
