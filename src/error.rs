//! One error type. Its kind is the operator's next move, nothing else.

use std::fmt;

/// What to do about an error. A kind exists only where someone acts differently on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The command line, the configuration or the environment is wrong: ends at once, exit code 2.
    Config,
    /// Broker or store does not answer, or answers "later": waited out with growing pauses.
    Unavailable,
    /// Another archiver was faster: load the ledger anew and follow what is there.
    Fenced,
    /// What is stored contradicts itself or the topic: stop this partition, keep the others.
    Corrupt,
    /// A request was refused, or something cannot be done as asked: exit code 1.
    Failed,
    /// A bug in this program.
    Internal,
}

/// An error with a message that says what is wrong and what to do next.
#[derive(Clone)]
pub struct Error {
    kind: Kind,
    message: String,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(Kind::Config, message)
    }
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Kind::Unavailable, message)
    }
    pub fn fenced(message: impl Into<String>) -> Self {
        Self::new(Kind::Fenced, message)
    }
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(Kind::Corrupt, message)
    }
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Kind::Failed, message)
    }
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Kind::Internal, message)
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }
    pub fn message(&self) -> &str {
        &self.message
    }
    pub fn is_unavailable(&self) -> bool {
        self.kind == Kind::Unavailable
    }

    /// The same error with what was being done in front: `context: message`.
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }

    /// Exit code of a command that ends with this error (design: 2 wrong usage or configuration, 1 failed).
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            Kind::Config => 2,
            _ => 1,
        }
    }
}

/// The candidate with the longest common start, if that is most of the name; else one that two mistakes make of it.
fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let candidates: Vec<&str> = candidates.into_iter().collect();
    let common = |c: &str| name.bytes().zip(c.bytes()).take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count();
    let begins = candidates.iter().max_by_key(|c| common(c)).filter(|c| common(c) * 2 > name.len());
    let mistaken = candidates.iter().filter(|_| name.len() > 5).min_by_key(|c| mistakes(name, c));
    mistaken.filter(|c| mistakes(name, c) <= 2).or(begins).copied()
}

/// How many characters have to be put in, left out or replaced to make one of the other.
fn mistakes(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let cost = (before + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            before = std::mem::replace(&mut row[j + 1], cost);
        }
    }
    row[b.len()]
}

/// `; did you mean "orders-dlq"?`, or nothing where no candidate is near.
pub fn did_you_mean<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, candidates).map_or_else(String::new, |near| format!("; did you mean {near:?}?"))
}

/// The first few of many, and how many more there are.
pub fn few<T: fmt::Display>(all: impl IntoIterator<Item = T>, most: usize) -> String {
    let mut all = all.into_iter();
    let mut text = all.by_ref().take(most).map(|one| one.to_string()).collect::<Vec<_>>().join(", ");
    let more = all.count();
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_name_is_told_and_a_far_one_is_not() {
        assert_eq!(did_you_mean("orders-dlt", ["a", "orders-dlq"]), "; did you mean \"orders-dlq\"?");
        assert_eq!(did_you_mean("x", ["orders-dlq"]), "");
        assert_eq!(did_you_mean("oders-dlq", ["orders-dlq"]), "; did you mean \"orders-dlq\"?");
        assert_eq!(did_you_mean("abc", ["abd", "xbc"]), "; did you mean \"abd\"?");
        assert_eq!(mistakes("kitten", "sitting"), 3);
    }

    #[test]
    fn of_many_the_first_are_told() {
        assert_eq!(few([1, 2], 2), "1, 2");
        assert_eq!(few(0..10, 3), "0, 1, 2 and 7 more");
    }
}
