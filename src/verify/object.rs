//! One data object's bytes against what manifest and intent say of it. Pure.

use super::damage::{Damage, Offsets, What};
use super::documents::{Gaps, Rows};
use crate::format::{self, Format, Projection};
use crate::ledger::{DataObject, sha256_hex};
use bytes::Bytes;
use std::ops::ControlFlow;

/// Where an object belongs.
pub(super) struct Cut<'a> {
    pub topic: &'a str,
    pub partition: i32,
    pub generation: u32,
    pub from: i64,
    pub to: i64,
    pub gaps: &'a Gaps,
}

pub(super) fn missing(o: &DataObject) -> Damage {
    Damage::new(What::ObjectMissing, &o.key, format!("{} rows in {} bytes", o.rows, o.size), "nothing")
}

pub(super) fn size(o: &DataObject, found: u64) -> Option<Damage> {
    (found != o.size)
        .then(|| Damage::new(What::ObjectSize, &o.key, format!("{} bytes", o.size), format!("{found} bytes")))
}

pub(super) fn sha256(o: &DataObject, found: &str) -> Option<Damage> {
    (found != o.sha256).then(|| Damage::new(What::ObjectSha256, &o.key, format!("SHA-256 {}", o.sha256), found))
}

/// Checks all of an object. `rows`: what its intent names; without it only what the manifest says is compared.
pub(super) fn check(o: &DataObject, bytes: Bytes, cut: &Cut<'_>, rows: Option<&Rows>) -> Option<Damage> {
    if let Some(damage) = size(o, bytes.len() as u64).or_else(|| sha256(o, &sha256_hex(&bytes))) {
        return Some(damage);
    }
    let bad = |kind, expected: String, found: String| Some(Damage::new(kind, &o.key, expected, found));
    let Some(format) = Format::of_key(&o.key) else {
        return bad(What::ObjectUnreadable, "a known extension".into(), "another one".into());
    };
    let named = rows.into_iter().flat_map(|r| r.offsets.iter().map(|o| o as i64).zip(r.checksums.iter().copied()));
    let mut named = named.filter(|(offset, _)| !cut.gaps.contains(*offset)).peekable();
    let (mut count, mut last, mut scratch) = (0u64, None, Vec::new());
    let (mut twice, mut foreign, mut others) = (Offsets::default(), Offsets::default(), Offsets::default());
    let mut times: Option<(i64, i64)> = None;
    let (mut absent, mut more, mut misrouted) = (Offsets::default(), Offsets::default(), Offsets::default());
    let read = format::read(format, bytes, Projection::All, &mut |r| {
        count += 1;
        let offset = r.raw.offset;
        let here = (r.id.topic.as_str(), r.id.partition, r.id.generation) == (cut.topic, cut.partition, cut.generation);
        if !here || offset < cut.from || offset >= cut.to {
            foreign.add(offset);
            return Ok(ControlFlow::Continue(()));
        }
        if last.is_some_and(|last| offset <= last) {
            twice.add(offset);
            return Ok(ControlFlow::Continue(()));
        }
        last = Some(offset);
        let at = r.raw.timestamp_ms;
        times = Some(times.map_or((at, at), |(min, max)| (at.min(min), at.max(max))));
        while let Some((before, _)) = named.next_if(|(named, _)| *named < offset) {
            absent.add(before);
        }
        match named.next_if(|(named, _)| *named == offset) {
            Some((_, checksum)) if checksum != r.raw.checksum(&mut scratch) => others.add(offset),
            Some(_) if rows.is_some_and(|rows| rows.pipelines.of(offset) != Some(r.pipeline)) => misrouted.add(offset),
            Some(_) => {}
            None if rows.is_some() => more.add(offset),
            None => {}
        }
        Ok(ControlFlow::Continue(()))
    });
    if let Err(e) = read {
        return bad(What::ObjectUnreadable, format!("{} rows", o.rows), e.message().to_owned());
    }
    named.for_each(|(offset, _)| absent.add(offset));
    let place = || format!("offsets of {}/{} in {}..{}", cut.topic, cut.partition, cut.from, cut.to);
    if !twice.is_empty() {
        bad(What::OffsetTwice, "ascending offsets, each once".into(), format!("not so: {twice}"))
    } else if !foreign.is_empty() {
        bad(What::ObjectRows, place(), format!("others: {foreign}"))
    } else if !absent.is_empty() || !more.is_empty() {
        let found = format!("missing {absent}, not named {more}");
        bad(What::ObjectRows, "the offsets that its intent names".into(), found)
    } else if count != o.rows {
        bad(What::ObjectRows, format!("{} rows", o.rows), count.to_string())
    } else if times != o.min_timestamp_ms.zip(o.max_timestamp_ms) {
        let text = |times: Option<(i64, i64)>| times.map_or("none".to_owned(), |(a, b)| format!("{a} to {b} ms"));
        bad(What::ObjectRows, text(o.min_timestamp_ms.zip(o.max_timestamp_ms)), text(times))
    } else if !others.is_empty() {
        bad(What::ObjectRecords, "records with the checksums of its intent".into(), format!("other records: {others}"))
    } else if !misrouted.is_empty() {
        bad(What::ObjectRecords, "the pipeline_name that its intent has".into(), format!("others at {misrouted}"))
    } else {
        None
    }
}
