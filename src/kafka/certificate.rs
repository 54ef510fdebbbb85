//! What is wrong with a broker's certificate.
//!
//! librdkafka says only that it could not be verified. OpenSSL's reason is known to a callback, which a client of its own
//! has here: it verifies as all others do, and lets nothing pass.

use super::Connection;
use rdkafka::client::{Client, ClientContext};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::types::RDKafkaType;
use rdkafka_sys as sys;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(3);

/// OpenSSL's reason, 0 for none yet.
#[derive(Default)]
struct Verdict(AtomicI32);

impl ClientContext for Verdict {
    fn log(&self, _: RDKafkaLogLevel, _: &str, _: &str) {}
    fn error(&self, _: rdkafka::error::KafkaError, _: &str) {}
}

/// Takes note of the reason, and decides nothing: what OpenSSL refuses is refused.
///
/// # Safety
/// librdkafka calls it with a valid `x509_error`, and with the [`Verdict`] that the client was made with.
unsafe extern "C" fn verified(
    _: *mut sys::rd_kafka_t,
    _: *const c_char,
    _: i32,
    x509_error: *mut c_int,
    _: c_int,
    _: *const c_char,
    _: usize,
    _: *mut c_char,
    _: usize,
    verdict: *mut c_void,
) -> c_int {
    // SAFETY: by the caller.
    let (error, verdict) = unsafe { (*x509_error, &*verdict.cast::<Verdict>()) };
    if error != 0 {
        verdict.0.store(error, Relaxed);
    }
    c_int::from(error == 0)
}

/// Connects once more, and says why the broker's certificate is not accepted. `None` if no reason was found.
pub(super) fn why_refused(connection: &Connection) -> Option<String> {
    let config = connection.client_config();
    let native = config.create_native_config().ok()?;
    // SAFETY: the configuration is live. Of the callback's arguments the last one is the client's context.
    unsafe { sys::rd_kafka_conf_set_ssl_cert_verify_cb(native.ptr(), Some(verified)) };
    let client = Client::new(&config, native, RDKafkaType::RD_KAFKA_PRODUCER, Verdict::default()).ok()?;
    let until = Instant::now() + PATIENCE;
    while client.context().0.load(Relaxed) == 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let error = client.context().0.load(Relaxed);
    (error != 0).then(|| reason(error, connection.get("ssl.ca.location")))
}

/// Numbers of OpenSSL's `x509_vfy.h`.
fn reason(error: i32, ca: Option<&str>) -> String {
    match (error, ca) {
        (2 | 18..=21, Some(ca)) => {
            format!("no CA in ssl.ca.location ({ca}) signed it. Set the CA that did, as a PEM file")
        }
        (2 | 18..=21, None) => {
            "no CA that this system trusts signed it. Set ssl.ca.location to the PEM file of the CA that did".to_owned()
        }
        (9, _) => "it is not valid yet. Check this machine's clock, or have it made anew".to_owned(),
        (10, _) => "it has expired. Have it made anew at the broker".to_owned(),
        (23, _) => "it is revoked (ssl.crl.location). Have it made anew at the broker".to_owned(),
        (62 | 64, _) => {
            "it is for another host. Give --brokers and advertised.listeners the name that is in it, or have it made \
                         anew with this one (ssl.endpoint.identification.algorithm=none does without)"
                .to_owned()
        }
        _ => format!("OpenSSL's error {error}. `openssl s_client -connect HOST:PORT` says more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_says_what_to_set() {
        assert!(reason(19, None).contains("Set ssl.ca.location"));
        assert!(reason(20, Some("/etc/ca.pem")).contains("(/etc/ca.pem)"));
        assert!(reason(10, None).contains("has expired"));
        assert!(reason(62, None).contains("advertised.listeners"));
        assert!(reason(99, None).contains("error 99"));
    }
}
