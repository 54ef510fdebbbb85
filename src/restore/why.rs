//! Why records are not restored, and what to do about it. Pure.

use serde::{Deserialize, Serialize};

/// Why a record is not restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    AlreadyRestored,
    UnfinishedRestore,
    Discarded,
    Attempts,
    NotCopied,
    OtherDialects,
    WrongValue,
    UnknownOrigin,
    DeadLetterTarget,
    MissingTarget,
    MissingPartition,
    NotWritable,
    Timestamp,
    Expired,
    TooLarge,
    Refused,
}

impl Why {
    pub fn text(self) -> &'static str {
        match self {
            Self::AlreadyRestored => "already restored",
            Self::UnfinishedRestore => "perhaps restored, by a restore that did not end",
            Self::Discarded => "discarded: not to be restored",
            Self::Attempts => "its failure was restored as often as --max-attempts allows",
            Self::NotCopied => {
                "key and value of the original are not in the dead letter: headers only, or an envelope without them"
            }
            Self::OtherDialects => {
                "archived as of a dialect that is not found on it now: it could go as what it is not"
            }
            Self::WrongValue => "its corrected value is a whole dead letter, not the value of the record in it",
            Self::UnknownOrigin => "its headers do not tell where it came from",
            Self::DeadLetterTarget => "target is a dead-letter topic",
            Self::MissingTarget => "target topic does not exist",
            Self::MissingPartition => "target topic has no such partition",
            Self::NotWritable => "the target topic may not be written to",
            Self::Timestamp => "its timestamp is 0, or refused by the target",
            Self::Expired => "older than the target keeps: Kafka would delete it at once",
            Self::TooLarge => "larger than the target's max.message.bytes",
            Self::Refused => "refused by the target",
        }
    }
    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::AlreadyRestored => "a new command or dry run with --include-restored sends it again",
            Self::UnfinishedRestore => {
                "finish that restore with --resume ID. If it was taken over, compare restores/ID/sent with the target, and \
                 send what is missing there with --record-id and --include-restored"
            }
            Self::Discarded => {
                "`show ID` says by whom and why. `dlq-archiver discard --undo` takes it back; --include-discarded sends it all \
                 the same"
            }
            Self::Attempts => {
                "find out why it fails before it is sent once more: `show ID` has the failure. --max-attempts N allows N \
                 restores, all before counted; `dlq-archiver discard` says that it is given up"
            }
            Self::NotCopied => {
                "`dlq-archiver refetch` reads them from the topics that they came from, as long as those have them; then give \
                 the command again. `show ID` says what came of it. Copying is switched on where the records are dead-lettered"
            }
            Self::WrongValue => {
                "take the value from `restore --to-file FILE`, which has what is restored: `list` has the dead letter's own"
            }
            Self::UnknownOrigin => "name the target with --to TOPIC",
            Self::OtherDialects => {
                "give the --config and --dialect-file that `archive` had (`show ID` has the dialect, `dialects list` those that \
                 are known)"
            }
            Self::DeadLetterTarget => {
                "name another with --to TOPIC; --allow-dead-letter-target sends it there all the same"
            }
            Self::MissingTarget => "create the topic, or name another with --to TOPIC; then give the command again",
            Self::MissingPartition => "give --target-partition origin, key or a number that the topic has",
            Self::NotWritable => {
                "allow the user Write on the topic (kafka-acls.sh --add --allow-principal User:NAME --operation Write \
                 --topic TARGET), or name another with --to TOPIC; then give the command again"
            }
            Self::Timestamp => "--timestamps now sends it with the time of the restore",
            Self::Expired => {
                "use --timestamps now; or raise retention.ms of TARGET above the record's age (kafka-configs.sh \
                 --bootstrap-server BROKERS --alter --entity-type topics --entity-name TARGET --add-config \
                 retention.ms=MS), then give the command again"
            }
            Self::TooLarge => {
                "raise max.message.bytes on the target topic, then give the command again: what was restored is skipped \
                 (with --include-restored, name the records with --record-id)"
            }
            Self::Refused => {
                "see what the topic demands (cleanup.policy=compact: a key), or name another with --to TOPIC; then give \
                 the command again"
            }
        }
    }
    /// Whether it is about single records, so that one wants to know which.
    pub fn is_of_record(self) -> bool {
        matches!(self, Self::TooLarge | Self::Refused | Self::Timestamp | Self::UnfinishedRestore)
    }
    /// Whether the target would not take or keep it.
    pub fn is_of_target(self) -> bool {
        matches!(self, Self::TooLarge | Self::Expired | Self::Timestamp)
    }
    /// Whether the record was asked for and is not where it should be, so that the command has to say so.
    pub fn is_failure(self) -> bool {
        !matches!(self, Self::AlreadyRestored | Self::Discarded)
    }
    /// Whether a restore lists the records that it skips for it. Of those that were restored before there is a list.
    pub fn is_listed(self) -> bool {
        self != Self::AlreadyRestored
    }
}

impl Skip {
    pub fn of(why: Why, target: Option<&str>) -> Self {
        Self { why, target: target.map(str::to_owned), restore_id: None }
    }
}

/// Why a record is not restored, and what it is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Skip {
    pub why: Why,
    /// Where it would go; where it went, if it was restored.
    pub target: Option<String>,
    /// The restore that did it, or perhaps did.
    pub restore_id: Option<String>,
}
