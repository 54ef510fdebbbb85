//! What is not shown of a setting: passwords, keys, tokens, and credentials inside addresses. Pure.

use std::borrow::Cow;

const HIDDEN: &str = "(hidden)";

/// Parts of names whose values are nobody's business.
const NAMES: [&str; 9] =
    ["pass", "secret", "key", "token", "jaas", "credential", "assertion", "oauthbearer.config", "ssl.engine"];

/// Whether a property or a variable of this name has what is nobody's business. Where a file is, is none of it.
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_place = [".location", "_file"].iter().any(|end| name.ends_with(end));
    !is_place && NAMES.iter().any(|part| name.contains(part))
}

/// A librdkafka property's value, as far as it is shown.
pub fn property<'v>(name: &str, value: &'v str) -> Cow<'v, str> {
    if is_secret(name) { HIDDEN.into() } else { addresses(value) }
}

/// The same of a variable of the AWS SDK. Of the access key's id, which is no secret, what tells it from others.
pub fn variable<'v>(name: &str, value: &'v str) -> Cow<'v, str> {
    match value.len().checked_sub(4).and_then(|at| value.get(at..)) {
        Some(end) if name == "AWS_ACCESS_KEY_ID" && value.len() >= 16 => format!("...{end}").into(),
        _ => property(name, value),
    }
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
        assert_eq!(property("ssl.key.location", "/etc/key.pem"), "/etc/key.pem");
        assert_eq!(variable("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE"), "...MPLE");
        for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"] {
            assert_eq!(variable(name, "x"), HIDDEN);
        }
        assert_eq!(variable("AWS_WEB_IDENTITY_TOKEN_FILE", "/a/token"), "/a/token");
        assert_eq!(variable("HTTPS_PROXY", "http://u:p@h:1"), "http://(hidden)@h:1");
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
