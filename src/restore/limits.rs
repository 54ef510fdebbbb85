//! What targets tell of what they take and keep.
//!
//! Owns the asking, and what was told. Decides nothing: see [`super::rules`].

use super::Restore;
use super::plan::Timestamps;
use super::rules::Verdict;
use super::window::Window;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How long brokers may take to tell a topic's settings.
pub const DESCRIBE: Duration = Duration::from_secs(5);

const MAX_MESSAGE_BYTES: &str = "max.message.bytes";

/// What is known of targets.
#[derive(Debug)]
pub struct TopicLimits {
    /// The plan's time.
    now_ms: i64,
    asked: BTreeSet<String>,
    /// `max.message.bytes`.
    pub sizes: BTreeMap<String, u64>,
    pub windows: BTreeMap<String, Window>,
    /// That may not be written to.
    pub unwritable: BTreeSet<String>,
}

impl TopicLimits {
    pub fn new(now_ms: i64) -> Self {
        Self {
            now_ms,
            asked: BTreeSet::new(),
            sizes: BTreeMap::new(),
            windows: BTreeMap::new(),
            unwritable: BTreeSet::new(),
        }
    }
}

impl Restore {
    /// Asks for the limits of topics that are sent to for the first time; whether it learned any.
    pub(super) async fn ask_limits(&self, verdicts: &[Verdict], limits: &mut TopicLimits) -> bool {
        let new = verdicts.iter().filter_map(|verdict| match verdict {
            Verdict::Send { place, .. } if !limits.asked.contains(&place.topic) => Some(place.topic.clone()),
            _ => None,
        });
        let new: BTreeSet<String> = new.collect();
        if new.is_empty() {
            return false;
        }
        let names: Vec<String> = new.iter().cloned().collect();
        let told = self.settings(names.clone()).await;
        let unwritable = self.target.unwritable(&names, DESCRIBE).await.unwrap_or_else(|e| {
            tracing::debug!("{e}; what may not be written to is found when records are sent");
            BTreeSet::new()
        });
        limits.asked.extend(new);
        let learned = !told.is_empty() || !unwritable.is_empty();
        limits.unwritable.extend(unwritable);
        for (topic, settings) in &told {
            limits.sizes.extend(size(settings).map(|size| (topic.clone(), size)));
            limits.windows.extend(Window::of(settings, limits.now_ms).map(|window| (topic.clone(), window)));
        }
        learned
    }

    /// Those of the targets of which it matters how long they keep records, and is not known.
    pub(super) fn untold(&self, targets: &BTreeSet<String>, limits: &TopicLimits) -> BTreeSet<String> {
        match self.options.rules.timestamps {
            Timestamps::Keep => targets.iter().filter(|t| !limits.windows.contains_key(*t)).cloned().collect(),
            Timestamps::Now => BTreeSet::new(),
        }
    }

    /// `max.message.bytes` of those topics that tell it.
    pub(super) async fn limits(&self, topics: Vec<String>) -> BTreeMap<String, u64> {
        let told = self.settings(topics).await;
        told.into_iter().filter_map(|(topic, settings)| Some((topic, size(&settings)?))).collect()
    }

    async fn settings(&self, topics: Vec<String>) -> BTreeMap<String, BTreeMap<String, String>> {
        if self.untold.load(Relaxed) {
            return BTreeMap::new();
        }
        let names = [&[MAX_MESSAGE_BYTES], &Window::SETTINGS[..]].concat();
        let told = self.target.settings(&topics, &names, DESCRIBE).await;
        told.unwrap_or_else(|e| {
            tracing::debug!("{e}; records that a target refuses are found when they are sent");
            self.untold.store(true, Relaxed);
            BTreeMap::new()
        })
    }
}

fn size(settings: &BTreeMap<String, String>) -> Option<u64> {
    settings.get(MAX_MESSAGE_BYTES)?.parse().ok()
}
