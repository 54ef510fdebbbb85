//! Names and values of properties: librdkafka's, and the Java client's where they mean the same.
//!
//! Owns what may be set and what a mistake is answered with. Knows no connection. Values are not repeated where they can
//! be secrets.

use crate::error::{Error, Result, did_you_mean};
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka_sys as sys;
use std::ffi::CStr;
use std::path::Path;

/// Properties that the archive's exactness hangs on.
const FIXED: &[&str] = &[
    "enable.auto.commit",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "enable.partition.eof",
    "isolation.level",
    "group.protocol",
    "partition.assignment.strategy",
    "group.id",
    "transactional.id",
    "enable.idempotence",
];

/// Properties that name a file which has to be there.
const FILES: &[&str] = &[
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.crl.location",
    "https.ca.location",
];

/// librdkafka does not list those that have no value by default. What of them is likely to be meant.
const UNLISTED: &[&str] = &[
    "bootstrap.servers",
    "client.rack",
    "debug",
    "group.instance.id",
    "https.ca.location",
    "sasl.mechanism",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.password",
    "sasl.username",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.cipher.suites",
    "ssl.crl.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.location",
    "ssl.keystore.password",
];

/// Other names of the same: librdkafka's older ones, and the Java client's.
const ALIASES: &[(&str, &str)] = &[
    ("metadata.broker.list", "bootstrap.servers"),
    ("sasl.mechanisms", "sasl.mechanism"),
    // Those that the producer sets: of two names of one property, it would be chance which is taken.
    ("compression.codec", "compression.type"),
    ("request.required.acks", "acks"),
    ("max.in.flight", "max.in.flight.requests.per.connection"),
    ("queue.buffering.max.ms", "linger.ms"),
    ("fetch.max.wait.ms", "fetch.wait.max.ms"),
    ("receive.buffer.bytes", "socket.receive.buffer.bytes"),
    ("send.buffer.bytes", "socket.send.buffer.bytes"),
    ("ssl.truststore.certificates", "ssl.ca.pem"),
    ("ssl.keystore.certificate.chain", "ssl.certificate.pem"),
    ("ssl.keystore.key", "ssl.key.pem"),
];

const CLASS: &str = "is a Java class: leave it out";
const LEAVE_OUT: &str = "is the Java client's: leave it out";
const TLS: &str = "is the Java client's: leave it out, TLS 1.2 and 1.3 are used";

/// The Java client's that mean nothing here, and what to do in their place. With `.` at its end, all that begin so.
const JAVA: &[(&str, &str)] = &[
    ("sasl.jaas.config", "is the Java client's: set sasl.username and sasl.password to what it has in quotes"),
    ("sasl.login.", "is a Java class's: for OAUTHBEARER set sasl.oauthbearer.method=oidc, else leave it out"),
    ("sasl.client.callback.handler.class", CLASS),
    ("ssl.truststore.password", "is the Java client's, and a PEM file of certificates needs none: leave it out"),
    ("ssl.protocol", TLS),
    ("ssl.enabled.protocols", TLS),
    ("ssl.provider", LEAVE_OUT),
    ("ssl.secure.random.implementation", LEAVE_OUT),
    ("ssl.keymanager.algorithm", LEAVE_OUT),
    ("ssl.trustmanager.algorithm", LEAVE_OUT),
    ("ssl.engine.factory.class", CLASS),
    ("key.deserializer", CLASS),
    ("value.deserializer", CLASS),
    ("key.serializer", CLASS),
    ("value.serializer", CLASS),
    ("interceptor.classes", CLASS),
    ("partitioner.class", CLASS),
    ("metric.reporters", CLASS),
    ("metrics.", LEAVE_OUT),
    ("auto.include.jmx.reporter", LEAVE_OUT),
    ("max.poll.records", LEAVE_OUT),
    ("default.api.timeout.ms", LEAVE_OUT),
];

/// What becomes of one property: none, one or several of librdkafka's.
///
/// # Errors
/// [`crate::Kind::Config`] for one that this program sets itself, that does not exist, or whose value is none.
pub(super) fn translate(key: &str, value: &str) -> Result<Vec<(String, String)>> {
    let key = ALIASES.iter().find(|(other, _)| *other == key).map_or(key, |(_, ours)| ours);
    if FIXED.contains(&key) {
        return Err(Error::config(format!("{key} cannot be set: the archive's exactness depends on it")));
    }
    if let Some(translated) = from_java(key, value)? {
        return Ok(translated);
    }
    check(key, value)?;
    Ok(vec![(key.to_owned(), value.to_owned())])
}

/// `None` for what is to be librdkafka's, by the same name.
fn from_java(key: &str, value: &str) -> Result<Option<Vec<(String, String)>>> {
    let wrong = |what: &str| Err(Error::config(format!("{key} {what}")));
    let to = |key: &str| (key.to_owned(), value.to_owned());
    Ok(Some(match key {
        "ssl.truststore.type" if value.eq_ignore_ascii_case("pem") => Vec::new(),
        "ssl.truststore.type" => return wrong(&truststore("STORE")),
        "ssl.keystore.type" if value.eq_ignore_ascii_case("jks") => return wrong(&keystore("STORE")),
        "ssl.keystore.type" => Vec::new(),
        "ssl.truststore.location" | "ssl.keystore.location" => {
            let begin = match begin(value) {
                Ok(begin) => begin,
                Err(e) => return wrong(&format!("names a file that cannot be read, {value}: {e}")),
            };
            match (key, is_pem(&begin)) {
                ("ssl.truststore.location", true) => vec![to("ssl.ca.location")],
                ("ssl.truststore.location", false) => return wrong(&truststore(value)),
                // A PEM key store is one file with both.
                (_, true) => vec![to("ssl.certificate.location"), to("ssl.key.location")],
                (_, false) if begin.starts_with(&[0xFE, 0xED, 0xFE, 0xED]) => return wrong(&keystore(value)),
                (_, false) => return Ok(None), // PKCS#12
            }
        }
        // Java's way to say that host names are not checked.
        "ssl.endpoint.identification.algorithm" if value.is_empty() => vec![(key.to_owned(), "none".to_owned())],
        _ => match JAVA.iter().find(|(name, _)| key == *name || (name.ends_with('.') && key.starts_with(name))) {
            Some((_, what)) => return wrong(what),
            None => return Ok(None),
        },
    }))
}

fn truststore(file: &str) -> String {
    format!(
        "is the Java client's, and a Java key store is not read here: `keytool -list -rfc -keystore {file} > ca.pem` makes a \
         PEM file of it, for ssl.ca.location"
    )
}

fn keystore(file: &str) -> String {
    format!(
        "is a Java key store (JKS), which is not read here: `keytool -importkeystore -srckeystore {file} -destkeystore \
         client.p12 -deststoretype PKCS12` makes one that is"
    )
}

/// The first bytes of a file.
fn begin(path: &str) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(64 << 10).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Text may come before the first certificate.
fn is_pem(bytes: &[u8]) -> bool {
    bytes.windows(11).any(|w| w == b"-----BEGIN ")
}

fn check(key: &str, value: &str) -> Result<()> {
    if key == "sasl.oauthbearer.method" && value.eq_ignore_ascii_case("oidc") && !cfg!(feature = "oidc") {
        return Err(Error::config(format!(
            "{key}={value} is not in this build: build it with `cargo build --release --features oidc`, which needs cmake. The              container image has it"
        )));
    }
    let mut probe = ClientConfig::new();
    probe.set(key, value);
    if let Err(KafkaError::ClientConfig(result, desc, ..)) = probe.create_native_config() {
        let why = match desc.trim() {
            _ if result == sys::rd_kafka_conf_res_t::RD_KAFKA_CONF_UNKNOWN => {
                let near = did_you_mean(key, names().iter().map(String::as_str));
                format!("librdkafka has no such property{near}")
            }
            // librdkafka's words repeat some values.
            why if !value.is_empty() => why.replace(value, "the value"),
            why => why.to_owned(),
        };
        return Err(Error::config(format!("{key}: {why}")));
    }
    // librdkafka says of it only that TLS cannot be set up.
    if FILES.contains(&key) && !["", "probe"].contains(&value) && !Path::new(value).exists() {
        return Err(Error::config(format!("{key}: the file {value} does not exist")));
    }
    Ok(())
}

/// All names that librdkafka lists, and those that it does not.
fn names() -> Vec<String> {
    // SAFETY: the list is a copy that lives until it is freed, behind its last use; of each pair in it the first is a text
    // that ends with NUL.
    unsafe {
        let conf = sys::rd_kafka_conf_new();
        let mut count = 0;
        let list = sys::rd_kafka_conf_dump(conf, &mut count);
        let pairs = std::slice::from_raw_parts(list, count);
        let listed = pairs.chunks(2).map(|pair| CStr::from_ptr(pair[0]).to_string_lossy().into_owned());
        let names = listed.chain(UNLISTED.iter().map(|name| (*name).to_owned())).collect();
        sys::rd_kafka_conf_dump_free(list, count);
        sys::rd_kafka_conf_destroy(conf);
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(key: &str, value: &str) -> (String, String) {
        let mut all = translate(key, value).unwrap();
        assert_eq!(all.len(), 1, "{key}");
        all.remove(0)
    }

    fn refused(key: &str, value: &str) -> String {
        let e = translate(key, value).unwrap_err();
        assert_eq!(e.exit_code(), 2);
        e.message().to_owned()
    }

    #[test]
    fn names_of_the_java_client_are_taken_where_they_mean_the_same() {
        assert_eq!(one("sasl.mechanisms", "PLAIN").0, "sasl.mechanism");
        assert_eq!(one("fetch.max.wait.ms", "100").0, "fetch.wait.max.ms");
        assert_eq!(one("compression.codec", "zstd").0, "compression.type");
        assert_eq!(one("ssl.endpoint.identification.algorithm", "").1, "none");
        assert_eq!(one("client.rack", "a").0, "client.rack");
        for ours in ALIASES.iter().map(|(_, ours)| ours).chain(UNLISTED) {
            assert!(!check(ours, "x").is_err_and(|e| e.message().contains("no such property")), "{ours}");
        }
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let pem = file("a.pem", b"subject=x\n-----BEGIN CERTIFICATE-----\n");
        assert_eq!(one("ssl.truststore.location", &pem), ("ssl.ca.location".into(), pem.clone()));
        let both = translate("ssl.keystore.location", &pem).unwrap();
        assert_eq!(
            both.iter().map(|(k, _)| &**k).collect::<Vec<_>>(),
            ["ssl.certificate.location", "ssl.key.location"]
        );
        let jks = file("a.jks", &[0xFE, 0xED, 0xFE, 0xED, 0, 0, 0, 2]);
        assert!(refused("ssl.truststore.location", &jks).contains(&format!("keytool -list -rfc -keystore {jks}")));
        assert!(refused("ssl.keystore.location", &jks).contains("-deststoretype PKCS12"));
        assert_eq!(one("ssl.keystore.location", &file("a.p12", &[0x30, 0x82])).0, "ssl.keystore.location");
        assert!(refused("ssl.truststore.location", "/no/such").contains("/no/such"));
    }

    #[test]
    fn names_of_the_java_client_that_mean_nothing_here_are_told_with_what_to_set() {
        let secret = "org.apache...ScramLoginModule required username=\"u\" password=\"hunter2\";";
        let told = refused("sasl.jaas.config", secret);
        assert!(told.contains("sasl.username and sasl.password") && !told.contains("hunter2"), "{told}");
        assert!(refused("sasl.login.callback.handler.class", "X").contains("sasl.oauthbearer.method=oidc"));
        assert!(refused("ssl.truststore.type", "JKS").contains("ssl.ca.location"));
        assert!(translate("ssl.truststore.type", "PEM").unwrap().is_empty());
        for (name, _) in JAVA {
            assert!(
                !names().iter().any(|n| n == name || (name.ends_with('.') && n.starts_with(name))),
                "{name} is known"
            );
        }
    }

    #[test]
    fn an_unknown_property_is_told_with_the_nearest_one() {
        for (wrong, near) in [
            ("security.protcol", "security.protocol"),
            ("sasl.user", "sasl.username"),
            ("ssl.calocation", "ssl.ca.location"),
            ("boostrap.servers", "bootstrap.servers"),
        ] {
            let told = refused(wrong, "s3cr3t");
            assert!(told.ends_with(&format!("did you mean {near:?}?")) && !told.contains("s3cr3t"), "{told}");
        }
        assert_eq!(refused("nonsense", ""), "nonsense: librdkafka has no such property");
    }

    #[test]
    fn a_value_that_is_none_is_not_repeated() {
        assert!(!refused("socket.timeout.ms", "hunter2").contains("hunter2"));
    }

    #[test]
    fn a_ca_file_that_is_not_there_is_told() {
        assert_eq!(refused("ssl.ca.location", "/no/such.pem"), "ssl.ca.location: the file /no/such.pem does not exist");
        assert_eq!(one("ssl.ca.location", "probe").1, "probe");
    }
}
