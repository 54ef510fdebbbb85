//! The look-out: asks how logs stand, and tells the poll thread which partitions are near their deadline, and the
//! operator what will be lost.
//!
//! Decides nothing about the archive's contents: early cuts and the order of reading are the poll thread's, the
//! arithmetic is [`crate::retention`]'s. What the brokers do not tell is done without.

use super::Shared;
use super::board::Known;
use super::messages::{Command, Due};
use super::rate::Rate;
use super::shape;
use crate::host;
use crate::kafka::Peeked;
use crate::record::TopicPartition;
use crate::retention::{self, LogSettings, Loss, Source};
use crate::topics;
use futures::{FutureExt, StreamExt, stream};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Before the next look, at most and at least; in between a twentieth of the shortest retention.
const LONGEST: Duration = Duration::from_secs(60);
const SHORTEST: Duration = Duration::from_secs(1);
/// Brokers that told no settings so often do not tell them, and are asked again after a while.
const SILENT: u32 = 3;
const SETTINGS: Duration = Duration::from_secs(300);
/// Looks from which the rate of reading is taken, and how often what was read is noted in between, at most.
const LOOKS: u32 = 8;
const NOTES: u32 = 12;
/// Topics that are asked about at a time, where all at once got no answer.
const TOPICS: usize = 16;
/// Before the same is told again.
const SILENCE: Duration = Duration::from_secs(600);

#[derive(Default)]
pub(super) struct Lookout {
    settings: BTreeMap<String, LogSettings>,
    /// As the brokers told them.
    told_settings: BTreeMap<String, LogSettings>,
    asked: Option<Instant>,
    /// Looks in a row at which the brokers told no settings.
    silent: u32,
    rate: Rate,
    may_be_late: bool,
    /// Partitions that it had last.
    last: BTreeMap<TopicPartition, Known>,
    told: BTreeMap<String, Instant>,
    /// Records of each topic that were past their retention, as it was told last.
    told_overdue: BTreeMap<String, u64>,
    /// Offsets of the forecast that was told last, and for how many looks there was none since.
    forecast: u64,
    in_time: u32,
}

impl Lookout {
    /// Until it is dropped.
    pub(super) async fn run(mut self, shared: Arc<Shared>) {
        loop {
            let known = shared.board.all();
            if known.is_empty() {
                self.rate.rest();
                // The group gave none, or a broker that stands still cost the place in it.
                ask_logs(&shared, &self.last).await;
            } else {
                self.last = known.keys().map(|tp| (tp.clone(), Known::default())).collect();
                self.look(&shared, known).await;
            }
            let new = tokio::select! {
                biased;
                () = shared.board.loaded.notified() => true,
                () = self.wait(&shared) => false,
            };
            if new {
                // Others follow.
                host::sleep(SHORTEST).await;
            }
        }
    }

    /// Until the next look.
    async fn wait(&mut self, shared: &Shared) {
        let (begin, pause) = (host::now(), self.pause());
        let step = (pause / NOTES).max(SHORTEST);
        loop {
            self.rate.note(host::now(), shared.counters.get().read_records);
            let left = pause.saturating_sub(host::since(begin));
            if left.is_zero() {
                break;
            }
            host::sleep(left.min(step)).await;
        }
    }

    fn pause(&self) -> Duration {
        let shortest = self.settings.values().filter_map(|s| s.retention_ms).min();
        let twentieth = shortest.map_or(LONGEST, |ms| Duration::from_millis(ms.unsigned_abs() / 20));
        twentieth.clamp(SHORTEST, LONGEST)
    }

    async fn look(&mut self, shared: &Shared, known: BTreeMap<TopicPartition, Known>) {
        self.ask_settings(shared, &known).await;
        let logs = ask_logs(shared, &known).await;
        let peeked = self.peek(shared, &known, &logs).await;
        let now_ms = host::now_us() / 1000;
        let mean = mean_bytes(&known);
        for tp in known.keys() {
            let settings = self.settings.get(&tp.topic).copied().unwrap_or_default();
            let peeked = peeked.get(tp).copied();
            shared.board.update(tp, |k| note(k, settings, peeked, logs.get(tp).copied(), mean, now_ms));
        }
        let known = shared.board.all();
        let behind: BTreeMap<_, _> = known.iter().filter(|(_, k)| k.is_behind()).collect();
        self.rate.note(host::now(), shared.counters.get().read_records);
        self.rate.look(!behind.is_empty(), self.pause() * LOOKS);
        let rate = self.rate.per_second().filter(|_| !behind.is_empty());
        let late = self.is_late_still(rate.is_some_and(|rate| is_late(&behind, rate, now_ms)));
        let shortest = behind.values().filter_map(|k| k.settings.retention_ms).min();
        let due = known.iter().map(|(tp, k)| {
            let safety = shared.options.safety_of(&tp.topic);
            let pressing = retention::pressing(&k.log, &k.settings, safety);
            let unread = peeked.get(tp).map(|record| (record.offset, record.timestamp_ms));
            (tp.clone(), Due { settings: k.settings, unread, end: k.log.stable, pressing })
        });
        let late_by = shortest.filter(|_| late).map(retention::margin_ms);
        shared.command(Command::Deadlines { due: due.collect(), late_by });
        self.overdue(&known).into_iter().for_each(|told| tracing::warn!("{told}"));
        let losses = match rate {
            Some(rate) if late => {
                let backlogs = shape::backlogs(&*shared.cluster, &behind, now_ms).await;
                host::blocking(move || Ok(retention::forecast(backlogs, rate, now_ms))).await.unwrap_or_default()
            }
            _ => Vec::new(),
        };
        let (read, lost) = (shared.counters.get().read_records, losses.iter().map(|l| l.offsets).sum::<u64>());
        tracing::debug!("{read} records were read so far, {rate:?} a second; late: {late}; {lost} will be lost");
        self.tell_forecast(&losses, rate.unwrap_or_default());
        let mut losses: BTreeMap<_, _> = losses.into_iter().map(|loss| (loss.tp.clone(), loss)).collect();
        for tp in known.keys() {
            shared.board.update(tp, |k| k.forecast = losses.remove(tp));
        }
    }

    /// The next record of each partition of which its time is not known: nothing was read yet, or what was read last is
    /// older than what waits behind it.
    async fn peek(
        &self,
        shared: &Shared,
        known: &BTreeMap<TopicPartition, Known>,
        logs: &BTreeMap<TopicPartition, (i64, i64, i64)>,
    ) -> BTreeMap<TopicPartition, Peeked> {
        let unseen = known.iter().filter_map(|(tp, k)| {
            let (start, _, end) = *logs.get(tp)?;
            let stands = k.unread_ms.is_none() || k.read_then == Some(k.read) && k.peeked_at != Some(k.read);
            (stands && k.archived.is_some() && end > k.read).then(|| (tp.clone(), k.read.max(start)))
        });
        let unseen: Vec<_> = unseen.collect();
        shared.cluster.peek(&unseen).await.inspect_err(|e| tracing::debug!("{e}")).unwrap_or_default()
    }

    /// What brokers tell of topics, and in its place what the operator gave.
    async fn ask_settings(&mut self, shared: &Shared, known: &BTreeMap<TopicPartition, Known>) {
        let mut topics: Vec<String> = known.keys().map(|tp| tp.topic.clone()).collect();
        topics.dedup();
        self.settings.retain(|topic, _| topics.contains(topic));
        // Brokers that have not told any for some looks are not asked at each.
        let ask = self.silent < SILENT || self.asked.is_none_or(|at| host::since(at) >= SETTINGS);
        let mut told = BTreeMap::new();
        if ask {
            self.asked = Some(host::now());
            match shared.cluster.settings(&topics).await {
                Ok(settings) => (told, self.silent) = (settings, 0),
                Err(e) => {
                    tracing::debug!("{e}");
                    self.silent += 1;
                }
            }
        }
        // A broker in trouble is told elsewhere: what it told before holds.
        let answered = self.silent == 0 || self.silent >= SILENT;
        let (options, mut unknown) = (&shared.options, Vec::new());
        for topic in topics {
            let settings = told.get(&topic).or(self.told_settings.get(&topic)).copied().unwrap_or_default();
            self.told_settings.insert(topic.clone(), settings);
            let settings = topics::kept(&options.topics_settings, options.retention, &topic, settings);
            if settings.source == Source::Unknown && answered && self.is_new(&format!("settings of {topic}")) {
                unknown.push(topic.clone());
            }
            self.settings.insert(topic, settings);
        }
        // What is drained at once does not wait for a cut.
        if !unknown.is_empty() && !options.once {
            tracing::warn!(
                "the brokers do not tell retention.ms of {}: cuts come by --cut-age alone, and nothing warns before records \
                 go. Give --retention, or let this user describe the topics' configurations",
                unknown.join(", ")
            );
        }
    }

    /// Whether it was not told lately.
    fn is_new(&mut self, what: &str) -> bool {
        if self.told.get(what).is_some_and(|at| host::since(*at) < SILENCE) {
            return false;
        }
        self.told.insert(what.to_owned(), host::now());
        true
    }

    /// One look alone proves little: late is what two say, one after the other.
    fn is_late_still(&mut self, may_be_late: bool) -> bool {
        std::mem::replace(&mut self.may_be_late, may_be_late) && may_be_late
    }

    /// What is told of records that were past their retention when they were read: nothing, until there are others.
    fn overdue(&mut self, known: &BTreeMap<TopicPartition, Known>) -> Vec<String> {
        let mut topics: BTreeMap<&str, (u64, LogSettings)> = BTreeMap::new();
        for (tp, k) in known.iter().filter(|(_, k)| k.overdue > 0) {
            let topic = topics.entry(&tp.topic).or_insert((0, k.settings));
            topic.0 += k.overdue;
        }
        let mut told = Vec::new();
        for (topic, (records, settings)) in topics {
            if self.told_overdue.get(topic) == Some(&records) || !self.is_new(&format!("overdue of {topic}")) {
                continue;
            }
            self.told_overdue.insert(topic.to_owned(), records);
            told.push(format!(
                "{topic}: {records} records were past retention.ms ({}) when they were read, and Kafka deletes such within \
                 minutes. They are cut at once. {}",
                retention::words(settings.retention_ms.unwrap_or_default()),
                retention::OVERDUE_CURE
            ));
        }
        told
    }

    fn tell_forecast(&mut self, losses: &[Loss], rate: f64) {
        let total: u64 = losses.iter().map(|l| l.offsets).sum();
        if total == 0 {
            self.in_time += 1;
            // Not at every turn of the rate.
            if self.forecast > 0 && self.in_time == 3 {
                tracing::info!("what is left is read in time at the present rate of {rate:.0} records/s");
                self.told.remove("forecast");
                self.forecast = 0;
            }
            return;
        }
        self.in_time = 0;
        // By a tenth: told again at once.
        let moved = total.abs_diff(self.forecast) > self.forecast / 10;
        if !self.is_new("forecast") && !moved {
            return;
        }
        self.told.insert("forecast".into(), host::now());
        self.forecast = total;
        let at = |ms: i64| super::rfc3339(ms.saturating_mul(1000));
        let each = losses.iter().take(10).map(|l| {
            let (first, last) = l.timestamps;
            format!("{}: {} from {} on (written {} to {})", l.tp, l.offsets, at(l.from_ms), at(first), at(last))
        });
        tracing::warn!(
            forecast_lost = total,
            "at the present rate of {rate:.0} records/s, {total} offsets of {} partitions will be deleted before they are read. \
             Raise retention.ms of the topic now (kafka-configs.sh --alter), or start more archivers in the same group. {}{}",
            losses.len(),
            each.collect::<Vec<_>>().join("; "),
            if losses.len() > 10 { "; ..." } else { "" }
        );
    }
}

/// How the partitions' logs stand. One topic that cannot be asked does not hide the others.
async fn ask_logs(
    shared: &Shared,
    known: &BTreeMap<TopicPartition, Known>,
) -> BTreeMap<TopicPartition, (i64, i64, i64)> {
    let partitions: Vec<TopicPartition> = known.keys().cloned().collect();
    let asked = shared.cluster.logs(&partitions).await.inspect_err(|e| tracing::debug!("{e}"));
    let unavailable = asked.as_ref().err().filter(|e| e.is_unavailable()).map(ToString::to_string);
    let logs = match asked {
        Ok(logs) => logs,
        Err(_) => {
            // Each may take all of the patience: one after the other, an outage were known long after it began.
            let of_topics = partitions.chunk_by(|a, b| a.topic == b.topic);
            let asked: Vec<_> = of_topics.map(|of_topic| shared.cluster.logs(of_topic).boxed()).collect();
            let told: Vec<_> = stream::iter(asked).buffered(TOPICS).collect().await;
            let told = told.into_iter().filter_map(|told| told.inspect_err(|e| tracing::debug!("{e}")).ok());
            told.flatten().collect()
        }
    };
    let was_away = shared.counters.vitals.kafka_failing_since_ms().is_some();
    if !logs.is_empty() {
        super::brokers_answer(&shared.counters);
    } else if let Some(e) = unavailable {
        shared.counters.vitals.kafka(false);
        if !was_away {
            tracing::warn!("{e}. Waiting: what is written meanwhile is read when they answer again");
        }
    }
    logs
}

/// Takes down what a look found out about a partition.
fn note(
    k: &mut Known,
    settings: LogSettings,
    peeked: Option<Peeked>,
    log: Option<(i64, i64, i64)>,
    mean: Option<u64>,
    now_ms: i64,
) {
    k.settings = settings;
    if let Some(record) = peeked {
        if record.offset >= k.read {
            (k.unread_ms, k.peeked_at) = (Some(record.timestamp_ms), Some(k.read));
        }
        k.record_bytes.get_or_insert(record.bytes);
    }
    k.read_then = Some(k.read);
    if let Some((start, stable, end)) = log {
        if let Some(seconds) = k.told_at_ms.map(|at| (now_ms - at) as f64 / 1000.0).filter(|s| *s > 0.0) {
            k.growth = Some((end - k.log.end).max(0) as f64 / seconds);
        }
        k.told_at_ms = Some(now_ms);
        k.log = retention::Log { start, next: k.log.next, stable, end, ..k.log };
    }
    k.log.next = k.archived.unwrap_or(k.log.start);
    k.log.oldest_ms = k.oldest_ms();
    k.waiting_since_ms = (k.log.lag() > 0).then(|| k.waiting_since_ms.unwrap_or(now_ms));
    let bytes = k.record_bytes.or(mean);
    k.log.lag_bytes = bytes.map(|bytes| bytes.saturating_mul(k.log.lag()));
    let growth = k.growth.zip(bytes).map(|(offsets, bytes)| retention::growth(offsets, bytes));
    k.deadline = retention::deadline(&k.log, &k.settings, growth, now_ms);
}

/// Whether the earliest deadline may come before all is read.
fn is_late(behind: &BTreeMap<&TopicPartition, &Known>, rate: f64, now_ms: i64) -> bool {
    let left: i64 = behind.values().map(|k| k.end() - k.read).sum();
    let timed = behind.values().filter(|k| k.unread_ms.is_some_and(|ms| ms >= 0));
    let first = timed.filter_map(|k| Some(k.unread_ms?.saturating_add(k.settings.retention_ms?))).min();
    let seconds = if rate > 0.0 { left as f64 / rate } else { f64::INFINITY };
    first.is_some_and(|first| (first.saturating_sub(now_ms)) as f64 / 1000.0 <= seconds)
}

fn mean_bytes(known: &BTreeMap<TopicPartition, Known>) -> Option<u64> {
    let each = || known.values().filter_map(|k| k.record_bytes);
    let n = each().count() as u64;
    (n > 0).then(|| each().sum::<u64>() / n)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tp(partition: i32) -> TopicPartition {
        TopicPartition::new("t", partition)
    }

    /// Archived and read up to 10 of 110, the next record of 1,000 s, kept for 100 s.
    fn known() -> Known {
        let log = retention::Log { stable: 110, end: 110, ..retention::Log::default() };
        let settings = LogSettings { retention_ms: Some(100_000), ..LogSettings::default() };
        Known { archived: Some(10), read: 10, unread_ms: Some(1_000_000), log, settings, ..Known::default() }
    }

    #[test]
    fn it_is_late_when_two_looks_say_so_one_after_the_other() {
        let mut lookout = Lookout::default();
        let late = [true, false, true, true, true, false].map(|may_be| lookout.is_late_still(may_be));
        assert_eq!(late, [false, false, false, true, true, false]);
    }

    #[test]
    fn it_may_be_late_when_the_first_deadline_comes_before_all_is_read() {
        let (tp, k) = (tp(0), known());
        // 100 offsets are left, and the first goes at 1,100 s.
        let late = |k: &Known, rate, now_ms| is_late(&BTreeMap::from([(&tp, k)]), rate, now_ms);
        assert!(!late(&k, 2.0, 1_040_000) && late(&k, 1.0, 1_040_000));
        assert!(late(&k, 0.0, 0), "nothing is read");
        assert!(!late(&Known { unread_ms: Some(-1), ..k.clone() }, 0.0, 0), "without a timestamp");
        let forever = LogSettings { retention_ms: None, ..k.settings };
        assert!(!late(&Known { settings: forever, ..k }, 0.0, 0));
    }

    /// One old record was told every ten minutes for as long as the archiver ran.
    #[test]
    fn records_that_were_old_on_arrival_are_told_again_only_if_others_came() {
        let (mut lookout, mut all) = (Lookout::default(), BTreeMap::from([(tp(0), known()), (tp(1), known())]));
        let mut overdue = |lookout: &mut Lookout, records| {
            all.get_mut(&tp(1)).unwrap().overdue = records;
            // As if the silence were over.
            lookout.told.clear();
            lookout.overdue(&all)
        };
        assert_eq!(overdue(&mut lookout, 0), [""; 0]);
        let told = overdue(&mut lookout, 3);
        assert!(told.len() == 1 && told[0].starts_with("t: 3 records were past retention.ms (1 min)"), "{told:?}");
        assert_eq!(overdue(&mut lookout, 3), [""; 0]);
        assert_eq!(overdue(&mut lookout, 4).len(), 1);
    }

    #[test]
    fn a_look_takes_down_growth_lag_and_deadline() {
        let mut k = Known { record_bytes: Some(20), ..known() };
        let settings = LogSettings { retention_bytes: Some(90_000), ..k.settings };
        note(&mut k, settings, None, Some((0, 110, 110)), None, 1_010_000);
        assert_eq!((k.growth, k.log.lag(), k.waiting_since_ms), (None, 100, Some(1_010_000)));
        assert_eq!(k.deadline.map(|d| d.at_ms), Some(1_100_000));
        note(&mut k, settings, None, Some((0, 210, 210)), None, 1_020_000);
        // 10 offsets a second: 1,000 bytes of the 70,000 that are left.
        assert_eq!((k.growth, k.told_at_ms, k.waiting_since_ms), (Some(10.0), Some(1_020_000), Some(1_010_000)));
        assert_eq!(k.deadline.map(|d| (d.at_ms, d.limit)), Some((1_090_000, retention::Limit::Size)));
        // A leader that is away: what was known stays.
        note(&mut k, settings, None, None, None, 1_090_000);
        assert_eq!((k.log.end, k.told_at_ms), (210, Some(1_020_000)));
        // All of it is archived.
        k.archived = Some(210);
        note(&mut k, settings, None, Some((0, 210, 210)), None, 1_091_000);
        assert_eq!((k.waiting_since_ms, k.deadline), (None, None));
    }
}
