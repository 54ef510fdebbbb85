//! One cut's documents: whether each is what the program writes, and whether intent and manifest agree. Pure.

use super::damage::{Damage, What};
use crate::format::Format;
use crate::layout;
use crate::ledger::{Gap, GapKind, Genesis, Intent, IntentObject, LEDGER_VERSION, Manifest, Pipelines};
use crate::ledger::{decode_checksums, decode_offsets, to_bytes};
use roaring::RoaringTreemap;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// What is known of a ledger before its cuts are looked at.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub prefix: String,
    /// As archive.json says; `None` if that is damaged.
    pub archive_id: Option<String>,
    /// The same.
    pub format: Option<String>,
    /// `None` if it is missing or damaged.
    pub genesis: Option<Genesis>,
}

/// Reads a document; whatever is not byte for byte what the program writes is damage.
pub(super) fn parse<T: Serialize + DeserializeOwned>(kind: What, key: &str, bytes: &[u8]) -> Result<T, Damage> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let bad = |found: String| Damage::new(kind, key, "a ledger document", found);
    let Version { version } = serde_json::from_slice(bytes).map_err(|e| bad(format!("not one: {e}")))?;
    if version != LEDGER_VERSION {
        let expected = format!("version {LEDGER_VERSION}");
        return Err(Damage::new(What::UnknownVersion, key, expected, format!("version {version}")));
    }
    let document: T = serde_json::from_slice(bytes).map_err(|e| bad(format!("not one: {e}")))?;
    match to_bytes(&document) {
        Ok(same) if same == bytes => Ok(document),
        Ok(_) => Err(bad("one that was written by something else: fields, their order or spaces differ".into())),
        Err(e) => Err(bad(e.to_string())),
    }
}

/// To whom a document says that it belongs.
pub(super) struct Owner<'a> {
    pub archive_id: &'a str,
    pub topic: &'a str,
    pub partition: i32,
    pub generation: u32,
    pub topic_id: Option<&'a str>,
}

impl Place {
    pub(super) fn belongs(&self, kind: What, key: &str, owner: &Owner<'_>) -> Option<Damage> {
        let bad = |expected: String, found: String| Some(Damage::new(kind, key, expected, found));
        if let Some(id) = self.archive_id.as_deref().filter(|id| *id != owner.archive_id) {
            return bad(format!("a document of archive {id}"), format!("one of archive {}", owner.archive_id));
        }
        let place = layout::ledger_prefix(owner.topic, owner.partition, owner.generation);
        if place != self.prefix {
            return bad(format!("a document of {}", self.prefix), format!("one of {place}"));
        }
        let known = self.genesis.as_ref();
        if let Some(g) = known.filter(|g| g.topic != owner.topic || g.topic_id.as_deref() != owner.topic_id) {
            let name = |topic: &str, id: Option<&str>| format!("topic {topic}, id {}", id.unwrap_or("-"));
            return bad(name(&g.topic, g.topic_id.as_deref()), name(owner.topic, owner.topic_id));
        }
        None
    }
}

/// An object's records as its intent names them.
pub(super) struct Rows {
    pub key: String,
    pub offsets: RoaringTreemap,
    /// In the order of offsets.
    pub checksums: Vec<u64>,
    pub pipelines: Pipelines,
}

impl Rows {
    pub(super) fn of(object: &IntentObject) -> Result<Self, String> {
        let offsets = decode_offsets(&object.offsets).map_err(|e| e.to_string())?;
        let checksums = decode_checksums(&object.checksums).map_err(|e| e.to_string())?;
        if offsets.len() != checksums.len() as u64 || offsets.len() != object.rows {
            let (rows, offsets, checksums) = (object.rows, offsets.len(), checksums.len());
            return Err(format!("{rows} rows, {offsets} offsets, {checksums} checksums"));
        }
        let pipelines = object.pipelines().map_err(|e| e.to_string())?;
        Ok(Self { key: object.key.clone(), offsets, checksums, pipelines })
    }

    /// The record's checksum if the object has this offset.
    pub(super) fn checksum(&self, offset: i64) -> Option<u64> {
        let offset = u64::try_from(offset).ok().filter(|o| self.offsets.contains(*o))?;
        self.checksums.get(usize::try_from(self.offsets.rank(offset)).ok()?.checked_sub(1)?).copied()
    }

    fn within(&self, from: i64, to: i64) -> u64 {
        let below = |offset: i64| match u64::try_from(offset) {
            Ok(offset) if offset > 0 => self.offsets.rank(offset - 1),
            _ => 0,
        };
        below(to).saturating_sub(below(from))
    }
}

/// Gaps to look offsets up in.
pub(super) struct Gaps(Vec<Gap>);

impl Gaps {
    pub(super) fn of(gaps: &[Gap]) -> Self {
        let mut gaps = gaps.to_vec();
        gaps.sort_by_key(|g| g.from);
        Self(gaps)
    }
    pub(super) fn contains(&self, offset: i64) -> bool {
        let behind = self.0.partition_point(|g| g.from <= offset);
        behind.checked_sub(1).and_then(|i| self.0.get(i)).is_some_and(|g| offset < g.to)
    }
}

/// What an intent says by itself: its objects' names, ranges and offsets. Returns each object's rows.
pub(super) fn intent(key: &str, i: &Intent) -> Result<Vec<Rows>, Damage> {
    let bad = |expected: String, found: String| Err(Damage::new(What::IntentDamaged, key, expected, found));
    if i.to <= i.from && !i.is_seal() {
        return bad("a range".into(), format!("{}..{}", i.from, i.to));
    }
    let (mut all, mut sum, mut objects) = (RoaringTreemap::new(), 0, Vec::with_capacity(i.objects.len()));
    for o in &i.objects {
        let name = layout::data_key(
            &i.topic,
            i.partition,
            i.generation,
            i.from,
            i.to,
            &o.dt,
            o.pipeline.as_deref(),
            &i.extension,
        );
        if name != o.key {
            return bad(format!("object {name}"), format!("object {}", o.key));
        }
        let rows = match Rows::of(o) {
            Ok(rows) => rows,
            Err(why) => return bad(format!("offsets, checksums and pipelines of as many rows for {}", o.key), why),
        };
        if rows.within(i.from, i.to) != rows.offsets.len() {
            return bad(format!("offsets in {}..{}", i.from, i.to), format!("others for {}", o.key));
        }
        all |= &rows.offsets;
        sum += rows.offsets.len();
        objects.push(rows);
    }
    if all.len() != sum {
        let expected = "each offset in one object".to_owned();
        return Err(Damage::new(What::OffsetTwice, key, expected, format!("{} in more", sum - all.len())));
    }
    Ok(objects)
}

/// What a manifest says by itself.
pub(super) fn manifest(key: &str, name_from: i64, m: &Manifest, archive_format: Option<&str>) -> Option<Damage> {
    let bad = |expected: String, found: String| Some(Damage::new(What::ManifestDamaged, key, expected, found));
    if m.from != name_from || m.to <= m.from {
        return bad(format!("a cut that begins at {name_from}"), format!("{}..{}", m.from, m.to));
    }
    let rows = m.objects.iter().fold(0u64, |sum, o| sum.saturating_add(o.rows));
    if rows != m.rows {
        return bad(format!("{} rows in its objects", m.rows), rows.to_string());
    }
    for o in &m.objects {
        if let (Some(wanted), Some(is)) = (archive_format, Format::of_key(&o.key).map(Format::archive_name))
            && wanted != is
        {
            return bad(format!("objects in {wanted}, as archive.json says"), format!("{} in {is}", o.key));
        }
        let counted = o.counts.iter().fold(0u64, |sum, c| sum.saturating_add(c.rows));
        if counted != o.rows {
            return bad(format!("{} rows counted in {}", o.rows, o.key), counted.to_string());
        }
    }
    if let Some(g) = m.gaps.iter().find(|g| g.to <= g.from || g.from < m.from || g.to > m.to) {
        return bad(format!("gaps in {}..{}", m.from, m.to), format!("{}..{}", g.from, g.to));
    }
    None
}

/// Whether a manifest's objects have the names that a cut gives them. Asked where no intent tells.
pub(super) fn names(key: &str, m: &Manifest) -> Option<Damage> {
    m.objects.iter().find_map(|o| {
        let extension = Format::of_key(&o.key).map_or("parquet", Format::extension);
        let name = layout::data_key(
            &m.topic,
            m.partition,
            m.generation,
            m.from,
            m.to,
            &o.dt,
            o.pipeline.as_deref(),
            extension,
        );
        let bad = || Damage::new(What::ManifestDamaged, key, format!("object {name}"), format!("object {}", o.key));
        (name != o.key).then(bad)
    })
}

/// Whether a manifest commits what its intent fixed: the same objects, with all offsets but those in its gaps.
pub(super) fn agree(key: &str, m: &Manifest, i: &Intent, rows: &[Rows]) -> Option<Damage> {
    let bad = |expected: String, found: String| Some(Damage::new(What::CutDisagrees, key, expected, found));
    let fixed = (i.from, i.to, i.cut_at_us, i.schema_version);
    let committed = (m.from, m.to, m.cut_at_us, m.schema_version);
    if fixed != committed {
        let text = |(from, to, at, schema)| format!("{from}..{to} cut at {at} us in schema {schema}");
        return bad(format!("{}, as its intent has it", text(fixed)), text(committed));
    }
    let named: Vec<_> = i.objects.iter().map(|o| (&o.key, &o.dt, &o.pipeline)).collect();
    let there: Vec<_> = m.objects.iter().map(|o| (&o.key, &o.dt, &o.pipeline)).collect();
    if named != there {
        let other = there.iter().find(|o| !named.contains(o)).map_or("fewer, or in another order", |o| o.0);
        return bad(format!("the {} objects of its intent", named.len()), other.to_owned());
    }
    let (known, added): (Vec<Gap>, Vec<Gap>) = m.gaps.iter().partition(|g| i.gaps.contains(g));
    if known.len() != i.gaps.len() {
        return bad(format!("the {} gaps of its intent", i.gaps.len()), format!("{} of them", known.len()));
    }
    for g in added {
        let named: u64 = rows.iter().map(|r| r.within(g.from, g.to)).sum();
        if g.kind == GapKind::Lost || named != g.from.abs_diff(g.to) {
            let found = format!("gap {}..{} with {named} of them", g.from, g.to);
            return bad("gaps of offsets that its intent names".into(), found);
        }
    }
    let gaps = Gaps::of(&m.gaps);
    for (o, r) in m.objects.iter().zip(rows) {
        let gone: u64 = m.gaps.iter().map(|g| r.within(g.from, g.to)).sum();
        let left = r.offsets.len().saturating_sub(gone);
        if left != o.rows {
            return bad(format!("{left} rows of its intent, less its gaps, in {}", o.key), o.rows.to_string());
        }
        let kept = |offset: &u64| !gaps.contains(*offset as i64);
        let ends = (r.offsets.iter().find(kept), r.offsets.iter().rev().find(kept));
        let said = (o.min_offset.map(|x| x as u64), o.max_offset.map(|x| x as u64));
        if ends != said {
            let text = |(a, b): (Option<u64>, Option<u64>)| {
                let one = |x: Option<u64>| x.map_or("-".to_owned(), |x| x.to_string());
                format!("offsets {} to {} in {}", one(a), one(b), o.key)
            };
            return bad(text(ends), text(said));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_hold_their_offsets_and_no_other() {
        let gap = |from, to| Gap { from, to, kind: GapKind::Expired };
        let gaps = Gaps::of(&[gap(8, 9), gap(2, 5)]);
        let inside: Vec<i64> = (0..12).filter(|o| gaps.contains(*o)).collect();
        assert_eq!(inside, [2, 3, 4, 8]);
    }

    #[test]
    fn rows_are_counted_by_range_and_found_by_offset() {
        let rows = Rows {
            key: String::new(),
            offsets: [0, 3, 4, 9].into_iter().collect(),
            checksums: vec![10, 13, 14, 19],
            pipelines: Pipelines::One("p".into()),
        };
        assert_eq!((rows.within(0, 10), rows.within(1, 4), rows.within(5, 9)), (4, 1, 0));
        assert_eq!((rows.checksum(4), rows.checksum(5), rows.checksum(-1)), (Some(14), None, None));
    }
}
