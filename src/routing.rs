//! Which pipeline a dead letter belongs to.

use crate::dialect::Dialects;
use crate::record::Decoded;
use std::borrow::Cow;

/// The defaults per dialect; the configuration's rules come before them.
#[derive(Debug, Clone)]
pub struct Routing;

impl Default for Routing {
    /// The defaults of the built-in dialects.
    fn default() -> Self {
        Self::for_dialects(&Dialects::builtin())
    }
}

impl Routing {
    /// The defaults of these dialects' tables.
    pub fn for_dialects(_dialects: &Dialects) -> Self {
        todo!()
    }
    /// The pipeline's exact, unescaped name; the dead-letter topic where nothing else is known. Never empty
    /// unless the topic is.
    pub fn pipeline<'a>(&self, _topic: &'a str, _d: &'a Decoded<'a>) -> Cow<'a, str> {
        todo!()
    }
    /// Hex SHA-256 over the rules.
    pub fn digest(&self) -> String {
        todo!()
    }
}
