//! What is not shown of a setting: passwords, keys, tokens, and credentials inside addresses. Pure.

use std::borrow::Cow;

const HIDDEN: &str = "(hidden)";

/// Parts of names whose values are nobody's business.
const NAMES: [&str; 9] =
    ["pass", "secret", "key", "token", "jaas", "credential", "assertion", "oauthbearer.config", "ssl.engine"];

/// A librdkafka property's value, as far as it is shown.
pub fn property<'v>(name: &str, value: &'v str) -> Cow<'v, str> {
    let name = name.to_ascii_lowercase();
    if NAMES.iter().any(|part| name.contains(part)) { HIDDEN.into() } else { addresses(value) }
}

/// A text without the user and password of the addresses in it.
pub fn addresses(text: &str) -> Cow<'_, str> {
    if !(text.contains("://") && text.contains('@')) {
        return text.into();
    }
    text.split(',').map(address).collect::<Vec<_>>().join(",").into()
}

fn address(text: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = text.split_once("://") else { return text.into() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let port = rest[..end].rsplit_once(':').map_or("", |(_, port)| port);
    let at = match rest[..end].rfind('@') {
        Some(at) => Some(at),
        // A password that has a slash in it.
        None if !port.bytes().all(|b| b.is_ascii_digit() || b == b']') => rest.rfind('@'),
        None => None,
    };
    at.map_or(text.into(), |at| format!("{scheme}://{HIDDEN}@{}", &rest[at + 1..]).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown_and_what_is_none_is() {
        for name in [
            "sasl.password",
            "ssl.key.password",
            "ssl.key.pem",
            "ssl.keystore.password",
            "sasl.oauthbearer.client.secret",
            "sasl.jaas.config",
            "SASL.PASSWORD",
            "sasl.oauthbearer.config",
        ] {
            assert_eq!(property(name, "x"), HIDDEN, "{name}");
        }
        assert_eq!(property("sasl.username", "x"), "x");
        assert_eq!(property("security.protocol", "SASL_SSL"), "SASL_SSL");
        for (text, shown) in [
            ("http://u:p@h:9000/x", "http://(hidden)@h:9000/x"),
            ("http://token@h", "http://(hidden)@h"),
            ("http://u:p/a@ss@h:1", "http://(hidden)@h:1"),
            ("http://u:p@ss@h:1", "http://(hidden)@h:1"),
            ("SSL://a:1,SASL_SSL://u:p@b:1", "SSL://a:1,SASL_SSL://(hidden)@b:1"),
            ("s3://bucket/a@b", "s3://bucket/a@b"),
            ("http://h:9000/a@b", "http://h:9000/a@b"),
            ("http://[::1]:9000/a@b", "http://[::1]:9000/a@b"),
            ("a@b", "a@b"),
        ] {
            assert_eq!(addresses(text), shown);
        }
        assert_eq!(property("http.proxy", "http://u:p@h"), "http://(hidden)@h");
    }
}
