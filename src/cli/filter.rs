//! The filter flags that list, summary, discard and restore share.

use crate::archive::now_us;
use crate::error::{Error, Result};
use crate::filter::{Filter, FilterDoc, parse_offsets, parse_time};
use std::io::Read;

/// Above the flags that select records, in a command's help.
pub const HEADING: &str = "Filter (a text matches exactly, or as a regular expression if it begins with ^)";

#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = HEADING)]
pub struct FilterArgs {
    /// Dead-letter topic; repeatable, as are all filters but ranges: any of them matches
    #[arg(short, long)]
    topic: Vec<String>,

    /// Partition of the dead-letter topic
    #[arg(long, value_parser = clap::value_parser!(i32).range(0..), value_delimiter = ',', value_name = "N")]
    partition: Vec<i32>,

    /// Offsets from A up to B, B excluded; either may be left out
    #[arg(long, value_name = "A..B")]
    offsets: Option<String>,

    /// Kafka timestamp at or after: RFC 3339, a date (UTC), or how long ago (s, m, h, d), such as 2h; milliseconds since 1970 too. Records without a timestamp match neither this nor --until
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    since: Option<String>,

    /// Kafka timestamp before, in the same forms
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    until: Option<String>,

    /// Pipeline that the record was routed to
    #[arg(long)]
    pipeline: Vec<String>,

    /// Header convention, such as knative or connect
    #[arg(long)]
    dialect: Vec<String>,

    /// Kind of error, as an exception's class: its full name, or the last segment as `list` shows it. A regular expression is for the full name
    #[arg(long, value_name = "CLASS")]
    error_class: Vec<String>,

    /// Numeric error code, as an HTTP status
    #[arg(long, value_delimiter = ',', allow_negative_numbers = true, value_name = "N")]
    error_code: Vec<i32>,

    /// Regular expression that is found in the error's message
    #[arg(long, value_name = "REGEX")]
    error_message: Vec<String>,

    /// CloudEvents id
    #[arg(long, value_name = "ID")]
    event_id: Vec<String>,

    /// Record id as `list` prints it, or @FILE with one a line (@- for standard input)
    #[arg(long, value_name = "ID")]
    record_id: Vec<String>,

    /// Topic that the record came from
    #[arg(long, value_name = "TOPIC")]
    origin_topic: Vec<String>,

    /// Condition in SQL's words, over the archive's columns, key, value, value_json.FIELD and headers['NAME'], such as "value_json.order.id = 5 AND error_code >= 500". What is null does not match. Records of other types than it asks for do not match, and are told
    #[arg(long = "where", value_name = "CONDITION", id = "where")]
    condition: Option<String>,
}

/// How many of what matches.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Filter (a text matches exactly, or as a regular expression if it begins with ^)")]
pub struct PickArgs {
    /// Of what matches, N records chosen by a hash of their ids: the same ones each time, as long as the same match
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    sample: Option<u64>,
}

impl FilterArgs {
    /// # Errors
    /// [`crate::Kind::Config`] for what is not understood, cannot be read, or selects nothing.
    pub fn filter(&self) -> Result<Filter> {
        Filter::new(self.doc()?)
    }

    /// As [`Self::filter`], of which only some are picked.
    pub fn picked(&self, pick: &PickArgs, limit: Option<u64>) -> Result<Filter> {
        Filter::new(FilterDoc { sample: pick.sample, limit, ..self.doc()? })
    }

    fn doc(&self) -> Result<FilterDoc> {
        let now_ms = now_us() / 1000;
        let time = |flag: &str, text: &Option<String>| {
            text.as_deref().map(|t| parse_time(t, now_ms).map_err(|e| e.context(flag))).transpose()
        };
        let (offset_from, offset_to) = self.offsets.as_deref().map(parse_offsets).transpose()?.unwrap_or_default();
        Ok(FilterDoc {
            topic: self.topic.clone(),
            partition: self.partition.clone(),
            offset_from,
            offset_to,
            since_ms: time("--since", &self.since)?,
            until_ms: time("--until", &self.until)?,
            pipeline: self.pipeline.clone(),
            dialect: self.dialect.clone(),
            error_class: self.error_class.clone(),
            error_code: self.error_code.clone(),
            error_message: self.error_message.clone(),
            event_id: self.event_id.clone(),
            origin_topic: self.origin_topic.clone(),
            record_id: if self.record_id.is_empty() { None } else { Some(self.record_ids()?) },
            condition: self.condition.clone(),
            ..FilterDoc::default()
        })
    }

    /// `--since` and `--until` as typed.
    pub fn times(&self) -> (Option<&str>, Option<&str>) {
        (self.since.as_deref(), self.until.as_deref())
    }

    fn record_ids(&self) -> Result<Vec<String>> {
        let mut ids = Vec::new();
        for given in &self.record_id {
            let Some(file) = given.strip_prefix('@') else {
                ids.push(given.clone());
                continue;
            };
            let mut text = String::new();
            let read = match file {
                "-" => std::io::stdin().read_to_string(&mut text).map(drop),
                path => std::fs::read_to_string(path).map(|read| text = read),
            };
            read.map_err(|e| Error::config(format!("--record-id @{file}: cannot be read: {e}")))?;
            let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
            ids.extend(lines.map(str::to_owned));
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        filter: FilterArgs,
    }

    fn parse(args: &[&str]) -> Result<Filter> {
        Cli::try_parse_from([&["x"], args].concat()).unwrap().filter.filter()
    }

    #[test]
    fn flags_become_a_filter() {
        assert!(parse(&[]).unwrap().is_all());
        let args = ["-t", "b", "--topic", "a", "--offsets", "5..", "--until", "2026-10-08", "--error-code", "500,-1"];
        let filter = parse(&args).unwrap();
        let doc = filter.doc();
        assert_eq!(doc.topic, ["a", "b"]);
        assert_eq!((doc.offset_from, doc.offset_to, doc.since_ms), (Some(5), None, None));
        assert_eq!((doc.until_ms, &doc.error_code[..]), (Some(1_791_417_600_000), &[-1, 500][..]));
    }

    #[test]
    fn record_ids_from_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let at = format!("@{}", file.path().display());
        let empty = parse(&["--record-id", &at]).unwrap_err();
        assert_eq!(empty.kind(), Kind::Config);
        std::fs::write(file.path(), "# from a ticket\na/0/1\n\n  b/1/2@g3 \n").unwrap();
        let filter = parse(&["--record-id", &at, "--record-id", "c/0/0"]).unwrap();
        assert_eq!(filter.doc().record_id.as_deref().unwrap(), ["a/0/1", "b/1/2@g3", "c/0/0"]);
        let missing = parse(&["--record-id", "@/no/such/file"]).unwrap_err();
        assert!(missing.message().starts_with("--record-id @/no/such/file: cannot be read"), "{missing}");
    }
}
