//! What `/metrics`, `/livez` and `/readyz` say of an archiver.
//!
//! Owns the metrics' names, and how the archive's counters and board become series: at each scrape, so that nothing on a
//! record's way waits for it. Decides nothing: what is well is [`crate::health`]'s. Invariant: labels are bounded; a
//! pipeline or an error is never one.

use crate::archive::board::{Known, Standing};
use crate::archive::counters::Counted;
use crate::archive::{Counters, now_us};
use crate::cut::PROGRAM_VERSION;
use crate::format::refetched;
use crate::health::{self, Inputs, Limits, Reason};
use crate::http::Page;
use crate::ledger::GapKind;
use crate::record::TopicPartition;
use crate::retention::Log;
use crate::store::Requests;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, EncodeMetric, NoLabelSet, prometheus_text,
    text,
};
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Partitions that have series of their own; the most pressing ones, if there are more.
const PARTITIONS: usize = 1_000;
/// Reasons that `/readyz` names.
const REASONS: usize = 100;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// An archiver, seen from outside.
pub struct Monitor {
    state: Arc<State>,
    registry: Registry,
}

/// Share of the retention after which a topic's records are cut at the latest.
pub type Safety = dyn Fn(&str) -> f64 + Send + Sync;

struct State {
    counters: Arc<Counters>,
    requests: Requests,
    limits: Limits,
    safety: Box<Safety>,
    started_ms: i64,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("counters", &self.counters).finish_non_exhaustive()
    }
}

impl Monitor {
    pub fn new(counters: Arc<Counters>, requests: Requests, limits: Limits, safety: Box<Safety>) -> Self {
        let started_ms = now_us() / 1000;
        let state = Arc::new(State { counters, requests, limits, safety, started_ms });
        let mut registry = Registry::default();
        registry.register_collector(Box::new(state.clone()));
        Self { state, registry }
    }

    /// `accept`: what the client takes.
    pub fn page(&self, path: &str, accept: &str) -> Option<Page> {
        match path {
            "/metrics" => Some(self.metrics(accept)),
            "/livez" => Some(self.state.alive()),
            "/readyz" => Some(self.state.ready()),
            _ => None,
        }
    }

    fn metrics(&self, accept: &str) -> Page {
        let mut body = String::new();
        let (content_type, encoded) = if accept.contains("application/openmetrics-text") {
            (OPENMETRICS, text::encode(&mut body, &self.registry))
        } else {
            (PROMETHEUS, prometheus_text::encode(&mut body, &self.registry))
        };
        // Writing to memory does not fail.
        Page { status: if encoded.is_ok() { 200 } else { 500 }, content_type, body }
    }
}

fn json(status: u16, document: &serde_json::Value) -> Page {
    Page { status, content_type: "application/json", body: format!("{document}\n") }
}

impl State {
    fn alive(&self) -> Page {
        let (heartbeat, now) = (self.counters.vitals.heartbeat_ms(), now_us() / 1000);
        if health::is_alive(heartbeat, now) {
            return json(200, &serde_json::json!({"alive": true}));
        }
        let seconds = heartbeat.map_or(0, |at| (now - at) / 1000);
        let why =
            format!("the poll thread has not turned for {seconds} s: restart the program, and please report this");
        json(503, &serde_json::json!({"alive": false, "why": why}))
    }

    fn ready(&self) -> Page {
        let now = now_us() / 1000;
        let reasons = self.unready(&self.partitions(), now);
        let more = reasons.len().saturating_sub(REASONS);
        let named =
            reasons.iter().take(REASONS).map(|Reason { what, why }| serde_json::json!({"what": what, "why": why}));
        let document = serde_json::json!({
            "ready": reasons.is_empty(),
            "reasons": named.collect::<Vec<_>>(),
            "more_reasons": more,
        });
        json(if reasons.is_empty() { 200 } else { 503 }, &document)
    }

    fn unready(&self, partitions: &BTreeMap<TopicPartition, Seen>, now_ms: i64) -> Vec<Reason> {
        let vitals = &self.counters.vitals;
        let inputs = Inputs {
            brokers_answered: vitals.brokers_answered.load(Relaxed),
            store_answered: vitals.store_answered.load(Relaxed),
            store_away_since_ms: self.requests.failing_since_ms(),
            limits: self.limits,
        };
        health::unready(&inputs, partitions.iter().map(|(tp, seen)| (tp, &seen.health)), now_ms)
    }

    fn partitions(&self) -> BTreeMap<TopicPartition, Seen> {
        let all = self.counters.board.all().into_iter();
        all.map(|(tp, known)| {
            let safety = (self.safety)(&tp.topic);
            (tp, Seen::new(known, safety))
        })
        .collect()
    }
}

/// A partition at a scrape.
struct Seen {
    known: Known,
    health: health::Partition,
}

impl Seen {
    fn new(known: Known, safety: f64) -> Self {
        let log = Log { next: known.archived.unwrap_or(known.log.next), ..known.log };
        let stopped = match &known.standing {
            Standing::Stopped(why) => Some(why.clone()),
            _ => None,
        };
        let health = health::Partition {
            stopped,
            log,
            archived_at_ms: known.archived_at_ms,
            told_at_ms: known.told_at_ms,
            waiting_since_ms: known.waiting_since_ms,
            deadline: known.deadline.filter(|_| log.lag() > 0),
            settings: known.settings,
            safety,
        };
        Self { known, health }
    }

    /// The least first.
    fn leisure(&self) -> (bool, i64) {
        (self.health.stopped.is_none(), self.health.deadline.map_or(i64::MAX, |d| d.at_ms))
    }
}

/// Partitions that get series, with their labels.
fn shown(partitions: &BTreeMap<TopicPartition, Seen>) -> Vec<([(&'static str, String); 2], &Seen)> {
    let mut all: Vec<_> = partitions.iter().collect();
    if all.len() > PARTITIONS {
        all.sort_by_key(|(tp, seen)| (seen.leisure(), *tp));
        all.truncate(PARTITIONS);
    }
    let labels = |tp: &TopicPartition| [("topic", tp.topic.clone()), ("partition", tp.partition.to_string())];
    all.into_iter().map(|(tp, seen)| (labels(tp), seen)).collect()
}

fn seconds(ms: i64) -> f64 {
    ms as f64 / 1000.0
}

struct Families<'a, 'e>(&'a mut DescriptorEncoder<'e>);

impl Families<'_, '_> {
    /// A family of gauges; those without a value are left out.
    fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, Option<V>)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in series {
            if let Some(value) = value {
                family.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }

    fn gauge<V: EncodeGaugeValue>(&mut self, name: &str, help: &str, value: V) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    /// A family of counters; `_total` is put behind the name.
    fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in series {
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, value: impl EncodeCounterValue) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        family.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    fn metric<M: EncodeMetric + TypedMetric>(&mut self, name: &str, help: &str, metric: &M) -> fmt::Result {
        metric.encode(self.0.encode_descriptor(name, help, None, M::TYPE)?)
    }
}

impl Collector for State {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut families = Families(&mut encoder);
        let (partitions, now_ms) = (self.partitions(), now_us() / 1000);
        self.encode_topics(&mut families)?;
        self.encode_dialects(&mut families)?;
        self.encode_originals(&mut families)?;
        encode_partitions(&mut families, &partitions, now_ms)?;
        let ready = u32::from(self.unready(&partitions, now_ms).is_empty());
        families.gauge("dlq_archiver_ready", "What /readyz says: 1 ready, 0 not", ready)?;
        self.encode_process(&mut families)
    }
}

impl State {
    fn encode_topics(&self, families: &mut Families<'_, '_>) -> fmt::Result {
        let topics = self.counters.topics();
        let mut of = |name: &str, help: &str, value: fn(&Counted) -> u64| {
            families.counters(name, help, topics.iter().map(|(topic, c)| ([("topic", topic.as_str())], value(c))))
        };
        of("dlq_archiver_records_read", "Records read from Kafka", |c| c.read_records)?;
        of("dlq_archiver_read_bytes", "Keys, values and headers of records read", |c| c.read_bytes)?;
        of("dlq_archiver_records_archived", "Records in cuts that this process committed", |c| c.archived_records)?;
        of(
            "dlq_archiver_records_found",
            "Records in cuts whose manifest was there already: another archiver's, or one whose reply was lost",
            |c| c.found_records,
        )?;
        of("dlq_archiver_cuts", "Cuts that this process committed", |c| c.cuts)?;
        of("dlq_archiver_objects", "Data objects created", |c| c.objects)?;
        of("dlq_archiver_object_bytes", "Size of data objects created", |c| c.object_bytes)?;
        of(
            "dlq_archiver_shared_records",
            "Records whose pipelines share a data object, beyond --max-pipelines",
            |c| c.shared_records,
        )?;
        let gaps = topics.iter().flat_map(|(topic, counted)| {
            let kinds = GapKind::ALL.into_iter().zip(counted.gaps);
            kinds.map(move |(kind, offsets)| ([("topic", topic.as_str()), ("kind", kind.name())], offsets))
        });
        families.counters(
            "dlq_archiver_gap_offsets",
            "Offsets that were gone before they were archived; of kind compacted they are no loss",
            gaps,
        )
    }

    fn encode_dialects(&self, families: &mut Families<'_, '_>) -> fmt::Result {
        let dialects = self.counters.dialects();
        let each = || dialects.iter().map(|(dialect, d)| ([("dialect", dialect.as_str())], *d));
        families.counters(
            "dlq_archiver_records_decoded",
            "Records in data objects created, by dialect",
            each().map(|(labels, d)| (labels, d.records)),
        )?;
        families.counters(
            "dlq_archiver_decode_problem_records",
            "Of them, records with something that could not be decoded",
            each().map(|(labels, d)| (labels, d.problems)),
        )
    }

    fn encode_originals(&self, families: &mut Families<'_, '_>) -> fmt::Result {
        let Some(originals) = self.counters.originals() else { return Ok(()) };
        families.counters(
            "dlq_archiver_originals",
            "Originals that --refetch looked for in the topics that they came from, by what became of them",
            refetched::State::ALL
                .map(|state| ([("state", state.as_str())], originals.states.get(&state).copied().unwrap_or(0))),
        )?;
        families.gauge(
            "dlq_archiver_originals_unanswered",
            "Of the last look, those that got no answer and are looked for again",
            originals.unanswered,
        )
    }

    fn encode_process(&self, families: &mut Families<'_, '_>) -> fmt::Result {
        let (vitals, requests) = (&self.counters.vitals, &self.requests);
        families.gauge(
            "dlq_archiver_memory_budget_bytes",
            "What records and the objects that they become may take (--memory)",
            vitals.memory_budget.load(Relaxed) as u64,
        )?;
        families.gauge(
            "dlq_archiver_memory_used_bytes",
            "Of it, what open batches and cuts on their way take",
            vitals.memory_used.load(Relaxed) as u64,
        )?;
        families.gauge(
            "dlq_archiver_reading_paused",
            "1 while nothing is read, until memory is free",
            u32::from(vitals.paused.load(Relaxed)),
        )?;
        let away = [("store", requests.failing_since_ms()), ("kafka", vitals.kafka_failing_since_ms())];
        families.gauges(
            "dlq_archiver_unavailable_since_timestamp_seconds",
            "Since when store or brokers have not answered; 0 while they do",
            away.map(|(what, since)| ([("what", what)], Some(seconds(since.unwrap_or(0))))),
        )?;
        let asked = "Requests to the store, with those that its client repeats in one";
        families.metric("dlq_archiver_store_request_duration_seconds", asked, &requests.seconds)?;
        let cut = "From a full batch to its manifest, waiting for store and brokers included";
        families.metric("dlq_archiver_cut_duration_seconds", cut, &self.counters.cut_seconds)?;
        let mut build = families.0.encode_descriptor("dlq_archiver_build", "The program", None, MetricType::Info)?;
        build.encode_info(&[("version", PROGRAM_VERSION)])?;
        families.gauge("process_start_time_seconds", "When the process started", seconds(self.started_ms))?;
        if let Some(cpu) = cpu_seconds() {
            families.counter("process_cpu_seconds", "User and system time", cpu)?;
        }
        if let Some(bytes) = resident_bytes() {
            families.gauge("process_resident_memory_bytes", "Resident memory", bytes)?;
        }
        Ok(())
    }
}

fn encode_partitions(
    families: &mut Families<'_, '_>,
    partitions: &BTreeMap<TopicPartition, Seen>,
    now_ms: i64,
) -> fmt::Result {
    let shown = shown(partitions);
    families.gauge("dlq_archiver_partitions_assigned", "Partitions that this process has", partitions.len() as u64)?;
    families.gauge(
        "dlq_archiver_partitions_omitted",
        "Of them, those without series of their own: the ones with the most time left",
        (partitions.len() - shown.len()) as u64,
    )?;
    let stopped = partitions.values().filter(|seen| seen.health.stopped.is_some()).count();
    families.gauge("dlq_archiver_partitions_stopped", "Of them, those that cannot go on", stopped as u64)?;
    let mut of = |name: &str, help: &str, value: &dyn Fn(&Seen) -> Option<f64>| {
        families.gauges(name, help, shown.iter().map(|(labels, seen)| (labels.as_slice(), value(seen))))
    };
    of("dlq_archiver_lag_offsets", "Offsets in the log that are not archived", &|s| Some(s.health.log.lag() as f64))?;
    of("dlq_archiver_hidden_offsets", "Of them, those behind the first open transaction", &|s| {
        Some(s.health.log.hidden() as f64)
    })?;
    of("dlq_archiver_lag_bytes", "Keys, values and headers of lag_offsets, estimated", &|s| {
        let bytes = s.known.record_bytes?;
        Some(bytes.saturating_mul(s.health.log.lag()) as f64)
    })?;
    of(
        "dlq_archiver_oldest_unarchived_timestamp_seconds",
        "Kafka timestamp of the oldest record that is not archived; none while nothing waits",
        &|s| s.known.oldest_ms().filter(|ms| *ms >= 0 && s.health.log.lag() > 0).map(seconds),
    )?;
    of(
        "dlq_archiver_deadline_timestamp_seconds",
        "When Kafka may delete the first offset that is not archived; none while nothing waits or nothing deletes",
        &|s| s.health.deadline.map(|d| seconds(d.at_ms)),
    )?;
    of(
        "dlq_archiver_retention_left_ratio",
        "Of the retention, what is left for the first offset that is not archived; below 0 it is past",
        &|s| s.health.left(now_ms),
    )?;
    of("dlq_archiver_forecast_lost_offsets", "Offsets that will be deleted unread at the present rate", &|s| {
        Some(s.known.forecast.as_ref().map_or(0.0, |loss| loss.offsets as f64))
    })?;
    of("dlq_archiver_archived_offset", "Next offset to archive, by the ledger", &|s| {
        s.known.archived.map(|offset| offset as f64)
    })?;
    of("dlq_archiver_last_archived_timestamp_seconds", "When archived_offset moved, or the ledger was loaded", &|s| {
        s.known.archived.map(|_| seconds(s.known.archived_at_ms))
    })?;
    of("dlq_archiver_log_start_offset", "Log start", &|s| Some(s.known.log.start as f64))?;
    of("dlq_archiver_log_end_offset", "Log end", &|s| Some(s.known.log.end as f64))?;
    of("dlq_archiver_stopped", "1: the partition cannot go on; the log and /readyz say why", &|s| {
        Some(if s.health.stopped.is_some() { 1.0 } else { 0.0 })
    })
}

/// Linux only; its clock ticks are hundredths of a second for programs, whatever the kernel has.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name may have spaces and brackets.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((user + system) / 100.0)
}

fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests;
