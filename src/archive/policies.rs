//! The cut policy of each topic that is read.
//!
//! Looks a topic up once, as the poll thread asks for each record. Which table is whose is [`crate::topics`]'.

use super::Options;
use crate::cut::CutPolicy;
use crate::topics::{TopicSettings, settings_of};
use std::collections::HashMap;

#[derive(Debug, Clone)]
pub struct Policies {
    base: CutPolicy,
    tables: Vec<TopicSettings>,
    /// Of topics that have a table.
    own: HashMap<String, CutPolicy>,
}

impl Policies {
    pub fn new(options: &Options) -> Self {
        Self { base: options.policy, tables: options.topics_settings.clone(), own: HashMap::new() }
    }

    /// A topic that will be asked for.
    pub fn learn(&mut self, topic: &str) {
        if let Some(table) = settings_of(&self.tables, topic)
            && !self.own.contains_key(topic)
        {
            self.own.insert(topic.to_owned(), table.policy(self.base));
        }
    }

    pub fn of(&self, topic: &str) -> CutPolicy {
        self.own.get(topic).copied().unwrap_or(self.base)
    }

    /// Bytes of the largest cut that is not made under pressure.
    pub fn max_bytes(&self) -> usize {
        self.own.values().map(|policy| policy.max_bytes).fold(self.base.max_bytes, usize::max)
    }
}
