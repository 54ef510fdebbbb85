//! A record's headers as they were received: names and values in order, repeats kept.
//!
//! Owns the views on them; their bytes are in [`super::RawBatch`]'s arena. Invariant: null, empty and absent stay three things.

use std::fmt;

/// One header: its name as bytes (names need not be UTF-8), and its value, `None` being Kafka's null.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    pub name: &'a [u8],
    pub value: Option<&'a [u8]>,
}

/// A record's headers, in order, repeats kept. Cheap to copy and to walk.
#[derive(Clone, Copy, Default)]
pub struct Headers<'a> {
    pub(super) names: Names<'a>,
    pub(super) values: &'a [u8],
    /// -1 = null.
    pub(super) value_lens: &'a [i32],
    /// See [`Self::are_plain`].
    pub(super) plain: bool,
}

/// The names of a record's headers, in order: most records of a topic have the same.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Names<'a> {
    /// One behind the other.
    pub(super) bytes: &'a [u8],
    pub(super) lens: &'a [u32],
}

impl<'a> Names<'a> {
    pub fn len(&self) -> usize {
        self.lens.len()
    }
    pub fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }
    /// Bytes of all of them.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        let mut bytes = self.bytes;
        self.lens.iter().map(move |len| {
            let (name, rest) = bytes.split_at(*len as usize);
            bytes = rest;
            name
        })
    }
    pub fn to_owned(&self) -> OwnedNames {
        OwnedNames { bytes: self.bytes.to_vec(), lens: self.lens.to_vec() }
    }
}

/// [`Names`] that are kept.
#[derive(Debug, Clone, Default)]
pub struct OwnedNames {
    bytes: Vec<u8>,
    lens: Vec<u32>,
}

impl OwnedNames {
    pub fn get(&self) -> Names<'_> {
        Names { bytes: &self.bytes, lens: &self.lens }
    }
}

impl<'a> Headers<'a> {
    pub fn len(&self) -> usize {
        self.value_lens.len()
    }
    pub fn is_empty(&self) -> bool {
        self.value_lens.is_empty()
    }
    pub fn names(&self) -> Names<'a> {
        self.names
    }
    pub fn values(&self) -> impl Iterator<Item = Option<&'a [u8]>> + Clone + use<'a> {
        let mut bytes = self.values;
        self.value_lens.iter().map(move |len| {
            let (value, rest) = bytes.split_at((*len).max(0) as usize);
            bytes = rest;
            (*len >= 0).then_some(value)
        })
    }
    /// That each value is null or ASCII without U+0000, and so text; one that is not may be text all the same.
    pub fn are_plain(&self) -> bool {
        self.plain
    }
    pub fn iter(&self) -> impl Iterator<Item = Header<'a>> + Clone + use<'a> {
        self.names.iter().zip(self.values()).map(|(name, value)| Header { name, value })
    }
}

impl fmt::Debug for Headers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
