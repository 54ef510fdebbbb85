//! Flags that several commands share, and what they become.

use super::config::{Config, is_secret};
use crate::error::{Error, Result};
use crate::kafka::Connection;
use crate::store::{self, Addressing, Measured, Store, StoreOptions};
use clap::{Args, ValueEnum};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Archive")]
pub struct ArchiveArgs {
    /// Where the archive is: s3://bucket/prefix or file:///dir. Needed, here or in the variable
    #[arg(long, env = "DLQ_ARCHIVER_ARCHIVE", value_name = "URL")]
    pub archive: Option<String>,

    /// S3 endpoint that is not AWS, such as http://host:9000; AWS_ENDPOINT_URL and profiles work too
    #[arg(long, env = "DLQ_ARCHIVER_ENDPOINT_URL", value_name = "URL")]
    pub endpoint_url: Option<String>,

    /// S3 region; else from the AWS environment or profile
    #[arg(long, env = "DLQ_ARCHIVER_REGION")]
    pub region: Option<String>,

    /// Where the bucket's name goes in a request
    #[arg(long, value_enum, default_value_t, env = "DLQ_ARCHIVER_S3_ADDRESSING")]
    pub s3_addressing: S3Addressing,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum S3Addressing {
    /// Path for an endpoint of your own, virtual for AWS
    #[default]
    Auto,
    Path,
    Virtual,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum StoreCreateArg {
    /// With the condition where the store keeps it, else as plain; which one is found out at start
    #[default]
    Auto,
    /// With the condition; a store that does not keep it is refused
    Conditional,
    /// Without it: exactly once only with ONE writer at a time. A start waits a minute for what a crashed one sent
    Plain,
}

impl ArchiveArgs {
    fn url(&self) -> Result<&str> {
        self.archive.as_deref().ok_or_else(|| {
            Error::config("no archive: give --archive s3://BUCKET/PREFIX or file:///DIR (or set DLQ_ARCHIVER_ARCHIVE)")
        })
    }

    /// Whether address and endpoint are such. Asks nobody and makes nothing.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] as [`Self::open`].
    pub async fn check(&self) -> Result<()> {
        store::check(self.url()?, &self.options(false)).await
    }

    pub fn is_s3(&self) -> bool {
        self.archive.as_deref().is_some_and(|url| url.starts_with("s3://"))
    }

    fn options(&self, create_missing: bool) -> StoreOptions {
        StoreOptions {
            endpoint_url: self.endpoint_url.clone(),
            region: self.region.clone(),
            addressing: match self.s3_addressing {
                S3Addressing::Auto => Addressing::Auto,
                S3Addressing::Path => Addressing::Path,
                S3Addressing::Virtual => Addressing::Virtual,
            },
            create_missing,
        }
    }

    /// Opens the store; `create`: for writers, which may make a local folder.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] without an address or for one that is none.
    pub async fn open(&self, create: bool) -> Result<Arc<dyn Store>> {
        store::open(self.url()?, &self.options(create)).await
    }

    /// For readers, whom nobody else tells that the store is waited for.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn read(&self) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Measured::telling(self.open(false).await?)))
    }
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Kafka")]
pub struct KafkaArgs {
    /// Kafka brokers, host:port, comma-separated
    #[arg(short, long, env = "DLQ_ARCHIVER_BROKERS", value_name = "HOST:PORT")]
    pub brokers: Option<String>,

    /// What brokers know this client by, in their quotas and logs [default: dlq-archiver]
    #[arg(long, env = "DLQ_ARCHIVER_CLIENT_ID", value_name = "NAME")]
    pub client_id: Option<String>,

    /// The rack (zone) this runs in: brokers let it read from a replica there
    #[arg(long, env = "DLQ_ARCHIVER_CLIENT_RACK", value_name = "RACK")]
    pub client_rack: Option<String>,

    /// A librdkafka property, as kcat takes it; repeatable
    #[arg(short = 'X', value_name = "KEY=VALUE")]
    pub property: Vec<String>,

    /// A .properties file of librdkafka's properties (security.protocol, sasl.username, ...) or the Java client's
    #[arg(long, env = "DLQ_ARCHIVER_KAFKA_CONFIG", value_name = "FILE")]
    pub kafka_config: Option<PathBuf>,
}

impl KafkaArgs {
    /// The file's properties, `--kafka-config`, the brokers, `-X`: later ones win.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] without brokers or for a property that cannot be set.
    pub fn connection(&self, config: &Config) -> Result<Connection> {
        let mut connection = Connection::default();
        for property in &config.file.kafka {
            let place = format!("{}: [kafka] ", config.file.place(property.line));
            connection.set_from(&place, &property.key, &property.value.text())?;
        }
        if let Some(path) = &self.kafka_config {
            connection.read_properties(path)?;
        }
        for path in self.kafka_config.iter().map(PathBuf::as_path).chain([Path::new(&config.file.name)]) {
            tell_open_secrets(path, &connection);
        }
        // Above the file: else a test's brokers, given on the command line, could be production's.
        if let Some(brokers) = &self.brokers {
            connection.set_from("--brokers: ", "bootstrap.servers", brokers)?;
        }
        for (key, value) in [("client.id", &self.client_id), ("client.rack", &self.client_rack)] {
            if let Some(value) = value {
                connection.set(key, value)?;
            }
        }
        for property in &self.property {
            // Not repeated: it may be a password.
            let (key, value) = property.split_once('=').ok_or_else(|| {
                Error::config("-X takes KEY=VALUE, such as -X security.protocol=SSL: one of them has no '='")
            })?;
            connection.set(key, value)?;
        }
        if connection.brokers().is_empty() {
            return Err(Error::config("no brokers: give --brokers HOST:PORT (or set DLQ_ARCHIVER_BROKERS)"));
        }
        connection.check_brokers()?;
        connection.check_security()?;
        Ok(connection)
    }
}

/// A file that set a password, and that every user of this machine can read.
fn tell_open_secrets(path: &Path, connection: &Connection) {
    let place = format!("{}:", path.display());
    let has_secrets = connection.in_force().iter().any(|(name, _, at)| is_secret(name) && at.starts_with(&place));
    let has = |path: &Path, mode| std::fs::metadata(path).is_ok_and(|m| m.permissions().mode() & mode != 0);
    let reached =
        |path: &Path| path.canonicalize().is_ok_and(|path| path.ancestors().skip(1).all(|dir| has(dir, 0o001)));
    if has_secrets && has(path, 0o004) && reached(path) {
        let path = path.display();
        tracing::warn!("{path} has passwords or keys, and every user of this machine can read it: chmod o-r {path}");
    }
}

/// Parses `500ms`, `60s`, `15m`, `2h`, `7d`, or a bare number of seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| "expected a number and a unit, such as 60s, 15m, 2h".to_owned())?;
    let millis = match unit {
        "ms" => Some(number),
        "" | "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        "d" => number.checked_mul(86_400_000),
        _ => return Err(format!("unknown unit {unit:?}: use ms, s, m, h or d")),
    };
    millis.map(Duration::from_millis).ok_or_else(|| "too long".to_owned())
}

/// As [`duration`] takes it.
pub fn duration_text(duration: Duration) -> String {
    let ms = duration.as_millis();
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
    let unit = units.into_iter().find(|(_, size)| ms > 0 && ms.is_multiple_of(*size)).unwrap_or(("ms", 1));
    format!("{}{}", ms / unit.1, unit.0)
}

/// A duration above 0.
pub fn cut_age(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it must be above 0, or each record would be a cut of its own".into()),
        age => Ok(age),
    }
}

/// A size above 0.
pub fn cut_bytes(text: &str) -> Result<usize, String> {
    match bytes(text)? {
        0 => Err("it must be above 0".into()),
        size => Ok(size),
    }
}

/// A share from 0 to 1, such as 0.5.
pub fn share(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "expected a share from 0 to 1, such as 0.5".into())
}

/// Parses a size in bytes: `1000`, `64KiB`, `128MiB`, `1GiB` (and k, m, g for the same).
pub fn bytes(text: &str) -> Result<usize, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: usize = number.parse().map_err(|_| "expected a number and a unit, such as 128MiB".to_owned())?;
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(format!("unknown unit {unit:?}: use KiB, MiB or GiB")),
    };
    number.checked_mul(1 << shift).ok_or_else(|| "too large".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes() {
        assert_eq!(duration("15m"), Ok(Duration::from_secs(900)));
        assert_eq!(duration("7"), Ok(Duration::from_secs(7)));
        assert!(duration("m").is_err() && duration("5y").is_err() && duration("99999999999999999d").is_err());
        for text in ["15m", "90s", "36h", "7d", "1500ms", "0ms"] {
            assert_eq!(duration_text(duration(text).unwrap()), text);
        }
        assert_eq!(bytes("128MiB"), Ok(128 << 20));
        assert_eq!(bytes("10"), Ok(10));
        assert!(cut_age("0").is_err() && cut_bytes("0k").is_err());
        assert_eq!(share("0.5"), Ok(0.5));
        assert!(share("1.1").is_err() && share("-0.1").is_err() && share("NaN").is_err() && share("half").is_err());
        assert!(bytes("MiB").is_err() && bytes("1TB").is_err());
    }
}
