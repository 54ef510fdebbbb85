//! The rules that a table cannot say: CloudEvents in structured mode, and VAST's names.
//!
//! Pure functions on bytes and text; when they apply is the tables' `code` and [`super::decode`].

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

const STRUCTURED: &[u8] = b"application/cloudevents";
const VAST_SOURCE: &str = "vastdata.com:";

/// Whether a `content-type` says that the value holds the whole event.
pub(crate) fn is_structured(content_type: &[u8]) -> bool {
    content_type.get(..STRUCTURED.len()).is_some_and(|head| head.eq_ignore_ascii_case(STRUCTURED))
}

/// Gives every scalar attribute of a structured CloudEvent to `put`, in order, as the header value that binary mode
/// would have. `wanted` keeps the rest, the event's data above all, from being copied. False if the value is no JSON
/// object.
pub(crate) fn attributes<'a>(
    value: &'a [u8],
    wanted: impl Fn(&str) -> bool,
    put: impl FnMut(&str, Option<Cow<'a, str>>),
) -> bool {
    let mut de = serde_json::Deserializer::from_slice(value);
    let read = de.deserialize_map(Attributes { wanted, put });
    read.is_ok() && de.end().is_ok()
}

struct Attributes<W, P> {
    wanted: W,
    put: P,
}

impl<'de, W: Fn(&str) -> bool, P: FnMut(&str, Option<Cow<'de, str>>)> Visitor<'de> for Attributes<W, P> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }
    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(Text(Some(name))) = map.next_key_seed(Scalar)? {
            if (self.wanted)(&name) {
                let Text(value) = map.next_value_seed(Scalar)?;
                (self.put)(&name, value);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

struct Text<'de>(Option<Cow<'de, str>>);
/// A JSON scalar as text; null, arrays and objects (no attribute has such) as null.
struct Scalar;

impl<'de> DeserializeSeed<'de> for Scalar {
    type Value = Text<'de>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Text<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Scalar {
    type Value = Text<'de>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_borrowed_str<E>(self, s: &'de str) -> Result<Text<'de>, E> {
        Ok(Text(Some(Cow::Borrowed(s))))
    }
    fn visit_str<E>(self, s: &str) -> Result<Text<'de>, E> {
        Ok(Text(Some(Cow::Owned(s.to_owned()))))
    }
    fn visit_bool<E>(self, v: bool) -> Result<Text<'de>, E> {
        Ok(Text(Some(Cow::Borrowed(if v { "true" } else { "false" }))))
    }
    fn visit_i64<E>(self, v: i64) -> Result<Text<'de>, E> {
        Ok(Text(Some(Cow::Owned(v.to_string()))))
    }
    fn visit_u64<E>(self, v: u64) -> Result<Text<'de>, E> {
        Ok(Text(Some(Cow::Owned(v.to_string()))))
    }
    fn visit_f64<E>(self, v: f64) -> Result<Text<'de>, E> {
        Ok(Text(Some(Cow::Owned(v.to_string()))))
    }
    fn visit_unit<E>(self) -> Result<Text<'de>, E> {
        Ok(Text(None))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Text<'de>, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Text(None))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Text<'de>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Text(None))
    }
}

/// Whether an event came out of VAST DataEngine.
pub(crate) fn is_vast(event_source: &str) -> bool {
    event_source.starts_with(VAST_SOURCE)
}

/// The topic in a VAST event's subject, `vast-broker-<broker view>.<topic>`: all that follows the view's name.
pub(crate) fn vast_topic(subject: &str) -> Option<&str> {
    subject.split_once('.').map(|(_, topic)| topic).filter(|topic| !topic.is_empty())
}

/// The function deployment that a VAST destination names: the first label without its last `-suffix`.
pub(crate) fn vast_function(destination: &str) -> Option<&str> {
    let label = host_label(destination)?;
    Some(label.rsplit_once('-').map_or(label, |(name, _)| name)).filter(|name| !name.is_empty())
}

/// First label of a URL's host; the whole host where it is an IP address.
pub(crate) fn host_label(url: &str) -> Option<&str> {
    // Byte by byte: for texts this short a searcher takes longer to begin than to find.
    let bytes = url.as_bytes();
    let begin = bytes.windows(3).position(|three| three == b"://").map_or(0, |at| at + 3);
    let authority = &url[begin..];
    let end = authority.bytes().position(|b| matches!(b, b'/' | b'?' | b'#')).unwrap_or(authority.len());
    let authority = &authority[..end];
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if let Some(v6) = host.strip_prefix('[') {
        return v6.split(']').next().filter(|v6| !v6.is_empty());
    }
    let host = host.split(':').next().unwrap_or_default();
    if host.starts_with(|c: char| c.is_ascii_digit()) && host.parse::<std::net::Ipv4Addr>().is_ok() {
        return Some(host);
    }
    host.split('.').next().filter(|label| !label.is_empty())
}
