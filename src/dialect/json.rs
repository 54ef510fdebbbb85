//! Values that are JSON documents, read as if what they hold were headers: `$.a.b[0]`, `$.a.*.b`.
//!
//! Owns the paths and the one walk over a document with all of them. Does not know which tables ask: that is
//! [`super::index`]. Invariants: what no path leads to is skipped, not kept; a hit is a scalar; depth is serde_json's.

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// What a path begins with.
pub(crate) const ROOT: &str = "$";

/// A place in a document, and the places below it that are asked for.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    /// The header's name, if this place itself is asked for.
    name: Option<String>,
    members: BTreeMap<String, Paths>,
    /// `*`: every member that `members` does not have.
    any: Option<Box<Paths>>,
    elements: BTreeMap<usize, Paths>,
}

#[derive(Debug, PartialEq, Eq)]
enum Step<'p> {
    Member(&'p str),
    Any,
    Element(usize),
}

/// The steps of a path below its root; `None` if it is not one.
fn steps(path: &str) -> Option<Vec<Step<'_>>> {
    let mut rest = path.strip_prefix(ROOT)?;
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(element) = rest.strip_prefix('[') {
            let (digits, after) = element.split_once(']')?;
            steps.push(Step::Element(digits.parse().ok()?));
            rest = after;
            continue;
        }
        let member = rest.strip_prefix('.')?;
        let (name, after) = member.split_at(member.find(['.', '[']).unwrap_or(member.len()));
        steps.push(match name {
            "" => return None,
            "*" => Step::Any,
            name => Step::Member(name),
        });
        rest = after;
    }
    (!steps.is_empty()).then_some(steps)
}

/// Whether `name` is a path into a document.
pub(crate) fn is_path(name: &str) -> bool {
    steps(name).is_some()
}

impl Paths {
    /// Asks for a path; false if it is none.
    pub fn add(&mut self, path: &str) -> bool {
        let Some(steps) = steps(path) else { return false };
        let mut at = self;
        for step in steps {
            at = match step {
                Step::Member(name) => at.members.entry(name.to_owned()).or_default(),
                Step::Any => at.any.get_or_insert_default(),
                Step::Element(i) => at.elements.entry(i).or_default(),
            };
        }
        at.name = Some(path.to_owned());
        true
    }

    fn member(&self, name: &str) -> Option<&Self> {
        self.members.get(name).or(self.any.as_deref())
    }

    /// Gives what `value` holds at the paths to `put`, in the document's order, as text; null is `None`. False if it is
    /// no JSON document; what was found before is given all the same.
    pub fn read<'a>(&self, value: &'a [u8], mut put: impl FnMut(&str, Option<Cow<'a, str>>)) -> bool {
        let mut de = serde_json::Deserializer::from_slice(value);
        At { paths: self, put: &mut put }.deserialize(&mut de).is_ok() && de.end().is_ok()
    }
}

struct At<'p, F> {
    paths: &'p Paths,
    put: &'p mut F,
}

impl<'de, F: FnMut(&str, Option<Cow<'de, str>>)> At<'_, F> {
    fn scalar<E>(self, text: Cow<'de, str>) -> Result<(), E> {
        if let Some(name) = &self.paths.name {
            (self.put)(name, Some(text));
        }
        Ok(())
    }
}

impl<'de, F: FnMut(&str, Option<Cow<'de, str>>)> DeserializeSeed<'de> for At<'_, F> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, F: FnMut(&str, Option<Cow<'de, str>>)> Visitor<'de> for At<'_, F> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_borrowed_str<E>(self, s: &'de str) -> Result<(), E> {
        self.scalar(Cow::Borrowed(s))
    }
    fn visit_str<E>(self, s: &str) -> Result<(), E> {
        self.scalar(Cow::Owned(s.to_owned()))
    }
    fn visit_bool<E>(self, v: bool) -> Result<(), E> {
        self.scalar(Cow::Borrowed(if v { "true" } else { "false" }))
    }
    fn visit_i64<E>(self, v: i64) -> Result<(), E> {
        self.scalar(Cow::Owned(v.to_string()))
    }
    fn visit_u64<E>(self, v: u64) -> Result<(), E> {
        self.scalar(Cow::Owned(v.to_string()))
    }
    fn visit_f64<E>(self, v: f64) -> Result<(), E> {
        self.scalar(Cow::Owned(v.to_string()))
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        if let Some(name) = &self.paths.name {
            (self.put)(name, None);
        }
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            match self.paths.member(&name) {
                Some(paths) => map.next_value_seed(At { paths, put: &mut *self.put })?,
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        for i in 0.. {
            let more = match self.paths.elements.get(&i) {
                Some(paths) => seq.next_element_seed(At { paths, put: &mut *self.put })?.is_some(),
                None => seq.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(paths: &[&str], value: &str) -> (bool, Vec<(String, Option<String>)>) {
        let mut asked = Paths::default();
        assert!(paths.iter().all(|path| asked.add(path)));
        let mut found = Vec::new();
        let whole = asked.read(value.as_bytes(), |name, text| found.push((name.to_owned(), text.map(Cow::into_owned))));
        (whole, found)
    }

    #[test]
    fn scalars_are_found_by_their_path() {
        let value = r#"{"a": {"b": "x\ny", "c": [1, {"d": null}], "b2": true}, "e": {"k-0": [{"t": -1.5}], "z": 3}}"#;
        let (whole, found) = read(&["$.a.b", "$.a.c[0]", "$.a.c[1].d", "$.e.*[0].t", "$.e.z", "$.a", "$.no.x"], value);
        let text = |s: &str| Some(s.to_owned());
        assert!(whole);
        assert_eq!(
            found,
            [
                ("$.a.b".to_owned(), text("x\ny")),
                ("$.a.c[0]".to_owned(), text("1")),
                ("$.a.c[1].d".to_owned(), None),
                ("$.e.*[0].t".to_owned(), text("-1.5")),
                ("$.e.z".to_owned(), text("3")),
            ]
        );
    }

    #[test]
    fn what_is_no_document_is_told_and_deep_ones_are_no_trouble() {
        let deep = "[".repeat(100_000);
        for bad in ["", "{", "{} x", "nul", deep.as_str()] {
            assert!(!read(&["$.a"], bad).0, "{}", &bad[..bad.len().min(9)]);
        }
        assert_eq!(read(&["$.a"], r#"{"a": 1, "a": 2, "b": "#).1.len(), 2, "repeats are kept in order");
        assert!(read(&["$.a"], "17").0);
    }

    #[test]
    fn what_is_no_path_is_told() {
        for bad in ["", "$", "a", "$a", "$.", "$..a", "$.a[", "$.a[x]", "$.a[-1]"] {
            assert!(!is_path(bad), "{bad}");
        }
        assert!(is_path("$[0].a.*.b[17]"));
    }
}
