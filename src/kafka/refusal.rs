//! Why a broker does not let us in, in an operator's words: what is wrong, and which property to set.
//!
//! Owns what librdkafka's words mean. What they leave open is asked of the broker's port: whether it speaks TLS, whether
//! it takes no SASL, what is wrong with its certificate. Words that may pass by themselves are no refusal.

use super::{Connection, certificate};
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long a port may take to say what it speaks.
const PATIENCE: Duration = Duration::from_secs(2);

/// The refusal that librdkafka's last words about a connection tell, if they do.
pub(super) fn find(connection: &Connection, said: &str) -> Option<String> {
    let protocol = connection.protocol();
    let (tls, sasl) = (protocol.ends_with("SSL"), protocol.starts_with("SASL_"));
    let (at, why) = split(said);
    let broker = at.map_or_else(|| format!("the brokers ({})", connection.brokers()), |at| format!("broker {at}"));
    let now = format!("security.protocol is {protocol}");
    let speaks = || at.and_then(speaks);
    let lower = why.to_ascii_lowercase();
    let why = why.rsplit_once(" (after ").map_or(why, |(why, _)| why);
    let has = |text: &str| lower.contains(text);

    Some(if has("sasl oauthbearer token") || has("failed to retrieve") {
        // An endpoint that does not answer, or has trouble of its own, is waited for.
        let code = why.rsplit_once(" (").and_then(|(_, code)| code.trim_end_matches(')').parse::<i32>().ok());
        if has("failed to retrieve") && !code.is_some_and(|code| (400..500).contains(&code) && code != 429) {
            return None;
        }
        // The answer may be a page.
        let why: String = why.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300).collect();
        format!("no token for {broker}: {why}. Check the properties sasl.oauthbearer.*")
    } else if has("mechanism handshake failed") && has("not valid in current sasl state") {
        let without = if tls { "SSL" } else { "PLAINTEXT" };
        format!("{broker} takes no SASL on this port, and {now}: set {without}, or use the port of its SASL listener")
    } else if has("unsupported sasl mechanism") {
        let takes = why.split_once("supported mechanisms: ").map_or(why, |(_, mechanisms)| mechanisms);
        format!("{broker} does not take the SASL mechanism that is set: set sasl.mechanism to one of {takes}")
    } else if has("sasl authentication error") {
        let why = why.split_once("authentication error: ").map_or(why, |(_, why)| why);
        let check = match connection.get("sasl.mechanism") {
            Some("OAUTHBEARER") => "the token's issuer, audience and expiry, and the properties sasl.oauthbearer.*",
            _ => "sasl.username and sasl.password, and that the user exists for this sasl.mechanism",
        };
        format!("{broker} refuses the user: {why}. Check {check}")
    } else if has("certificate verify failed") || has("failed to verify") || has("did not provide a certificate") {
        let why = certificate::why_refused(connection);
        let why =
            why.unwrap_or_else(|| "check ssl.ca.location, and that it is for this host and not expired".to_owned());
        format!("the certificate of {broker} is not accepted: {why}")
    } else if let Some((_, alert)) = lower.split_once("alert ").filter(|_| tls) {
        // What the broker says of our certificate, or of its absence.
        let alert = alert.split(':').next().unwrap_or(alert);
        match connection.get("ssl.certificate.location").or(connection.get("ssl.keystore.location")) {
            _ if !["certificate", "unknown ca"].iter().any(|of| alert.contains(of)) => {
                format!(
                    "{broker} does not agree on TLS (alert {alert:?}). Check its TLS versions and ciphers, and ssl.*"
                )
            }
            None if connection.get("ssl.certificate.pem").is_none() => format!(
                "{broker} wants a client certificate (TLS alert {alert:?}): set ssl.certificate.location and \
                 ssl.key.location, or use the port of a listener that wants none"
            ),
            file => format!(
                "{broker} does not accept the client certificate{} (TLS alert {alert:?}). Check its expiry, and that the \
                 broker's trust store has its CA",
                file.map(|file| format!(" in {file}")).unwrap_or_default()
            ),
        }
    } else if tls && has("handshake") && speaks() == Some(Speaks::Kafka) {
        let without = if sasl { "SASL_PLAINTEXT" } else { "PLAINTEXT" };
        format!("{broker} speaks no TLS on this port, and {now}: set {without}, or use the port of its TLS listener")
    } else if !tls && closed(&lower) && speaks() == Some(Speaks::Tls) {
        let with = if sasl { "SASL_SSL" } else { "SSL" };
        format!("{broker} speaks TLS on this port, and {now}: set {with} (or SASL_SSL if it wants a password)")
            .replace("SASL_SSL (or SASL_SSL if it wants a password)", "SASL_SSL")
    } else if !sasl && closed(&lower) && has("in state up") && speaks().is_some() {
        let with = if tls { "SASL_SSL" } else { "SASL_PLAINTEXT" };
        format!(
            "{broker} closes the connection at the first request, and {now}: if it wants SASL, set {with}, and \
             sasl.mechanism, sasl.username and sasl.password"
        )
    } else {
        return None;
    })
}

fn closed(lower: &str) -> bool {
    ["disconnected", "broken pipe", "connection reset"].iter().any(|t| lower.contains(t))
}

/// `sasl_ssl://host:9093/bootstrap: words (after 3ms in state X)`: the address, and the words with the state.
fn split(said: &str) -> (Option<&str>, &str) {
    let Some((name, words)) = said.split_once(": ").filter(|(name, _)| name.contains('/') && !name.contains(' '))
    else {
        return (None, said);
    };
    let address = name.split_once("://").map_or(name, |(_, rest)| rest);
    let address = address.rsplit_once('/').map_or(address, |(address, _)| address);
    (Some(address), words)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speaks {
    Tls,
    Kafka,
}

/// What a port speaks. `None` if it says nothing that shows it, as a balancer without brokers.
fn speaks(address: &str) -> Option<Speaks> {
    /// The answer's first bytes, if any came.
    fn ask(address: &str, request: &[u8]) -> Option<[u8; 8]> {
        let address = address.to_socket_addrs().ok()?.next()?;
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.set_write_timeout(Some(PATIENCE)).ok()?;
        stream.write_all(request).ok()?;
        let mut answer = [0; 8];
        let mut read = 0;
        while read < answer.len() {
            match stream.read(&mut answer[read..]) {
                Ok(0) | Err(_) => break,
                Ok(n) => read += n,
            }
        }
        (read >= 5).then_some(answer)
    }
    // ApiVersions, version 0, of client "d"; the answer repeats its number.
    const API_VERSIONS: &[u8] = b"\0\0\0\x0b\0\x12\0\0dlqa\0\x01d";
    if ask(address, API_VERSIONS).is_some_and(|answer| &answer[4..] == b"dlqa") {
        return Some(Speaks::Kafka);
    }
    // An alert, a handshake: of TLS 1.x.
    let answer = ask(address, &client_hello())?;
    (matches!(answer[0], 0x15 | 0x16) && answer[1] == 3).then_some(Speaks::Tls)
}

/// A TLS 1.2 ClientHello that any server answers, with an alert if nothing else.
fn client_hello() -> Vec<u8> {
    let mut hello = vec![3, 3];
    hello.extend([0x5a; 32]); // random
    hello.push(0); // session
    hello.extend([0, 4, 0xc0, 0x2f, 0xc0, 0x2b]); // two suites
    hello.extend([1, 0]); // no compression
    let mut record = vec![0x16, 3, 1, 0, hello.len() as u8 + 4, 1, 0, 0, hello.len() as u8];
    record.extend(hello);
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(properties: &[(&str, &str)]) -> Connection {
        let mut connection = Connection::new("b:1");
        for (key, value) in properties {
            connection.set(key, value).unwrap();
        }
        connection
    }

    #[test]
    fn refusals_say_which_property_to_set() {
        let scram = connection(&[("security.protocol", "SASL_SSL"), ("sasl.mechanism", "SCRAM-SHA-512")]);
        for (said, told) in [
            (
                "sasl_ssl://k:1/bootstrap: SASL authentication error: Authentication failed: no (after 3ms in state AUTH_REQ)",
                "broker k:1 refuses the user: Authentication failed: no",
            ),
            (
                "sasl_ssl://k:1/bootstrap: SASL X mechanism handshake failed: Broker: Request not valid in current SASL state: \
                 broker's supported mechanisms:  (after 0ms in state AUTH_HANDSHAKE)",
                "broker k:1 takes no SASL on this port, and security.protocol is SASL_SSL: set SSL",
            ),
            (
                "sasl_ssl://k:1/2: SASL X mechanism handshake failed: Broker: Unsupported SASL mechanism: broker's supported \
                 mechanisms: PLAIN,SCRAM-SHA-512",
                "set sasl.mechanism to one of PLAIN,SCRAM-SHA-512",
            ),
            (
                "ssl://k:1/bootstrap: Receive failed: error:0A000412:SSL routines::ssl/tls alert bad certificate: SSL alert \
                 number 42 (after 0ms in state APIVERSION_QUERY)",
                "wants a client certificate (TLS alert \"bad certificate\"): set ssl.certificate.location",
            ),
            (
                "Failed to retrieve OIDC token from \"http://idp/token\": <html>\nno\n (401)",
                "no token for the brokers (b:1): Failed to retrieve OIDC token from \"http://idp/token\": <html> no (401)",
            ),
        ] {
            let found = find(&scram, said).unwrap_or_default();
            assert!(found.contains(told), "{found}");
        }
    }

    #[test]
    fn what_may_pass_by_itself_is_no_refusal() {
        let plain = connection(&[]);
        let tls = connection(&[("security.protocol", "SSL")]);
        for said in [
            "127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)",
            "no.invalid:9092/bootstrap: Failed to resolve 'no.invalid:9092': Name or service not known",
            // A balancer without brokers.
            "127.0.0.1:1/bootstrap: Disconnected: connection closed by peer (after 0ms in state APIVERSION_QUERY)",
            "ssl://127.0.0.1:1/bootstrap: SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?",
            "Failed to retrieve OIDC token from \"http://127.0.0.1:1\": Could not connect to server (-1)",
            "Failed to retrieve OIDC token from \"http://127.0.0.1:1\": overloaded (503)",
            // It went away meanwhile.
            "sasl_ssl://k:1/1: SASL PLAIN mechanism handshake failed: Local: Broker transport failure: broker's supported \
             mechanisms: (n/a) (after 0ms in state DOWN)",
            "1/1 brokers are down",
            "",
        ] {
            assert_eq!(find(&plain, said), None);
            assert_eq!(find(&tls, said), None);
        }
    }

    #[test]
    fn a_port_is_asked_what_it_speaks() {
        // Answers each connection with the first bytes of what it is to speak.
        let serve = |answer: fn(&[u8]) -> &'static [u8]| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap().to_string();
            std::thread::spawn(move || {
                for stream in listener.incoming().take(2) {
                    let mut stream = stream.unwrap();
                    let mut request = [0; 64];
                    let n = stream.read(&mut request).unwrap();
                    stream.write_all(answer(&request[..n])).unwrap();
                }
            });
            address
        };
        let tls = serve(|request| if request[0] == 0x16 { &[0x15, 3, 3, 0, 2, 2, 40] } else { &[] });
        assert_eq!(speaks(&tls), Some(Speaks::Tls));
        let kafka = serve(|request| if request[4..8] == [0, 18, 0, 0] { b"\0\0\0\x0adlqa\0\0" } else { &[] });
        assert_eq!(speaks(&kafka), Some(Speaks::Kafka));
        assert_eq!(speaks(&serve(|_| &[])), None);
        assert_eq!(speaks(&serve(|_| b"HTTP/1.1 400 Bad Request")), None);
        assert_eq!(speaks("127.0.0.1:1"), None);
    }
}
