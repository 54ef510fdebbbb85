//! Which partitions are read, and which batches are cut under pressure: a pure function of sizes and positions.
//!
//! With a backlog larger than the memory budget few partitions are read at a time, so that cuts still fill. A pause
//! drops what was prefetched, so there is hysteresis.

use crate::format::{Compression, Format};
use std::collections::BTreeMap;

/// What objects take beside the batch that they are made of, in parts of it: as one was of late, and half as much again, since
/// two may differ. Those that do not compress, among many that do, are taken for less than they are, until the first of them is
/// stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    parts: usize,
    learned: bool,
}

impl Share {
    const WHOLE: usize = 256;
    const LEAST: usize = Self::WHOLE / 4;
    const MOST: usize = Self::WHOLE * 4;
    /// Footers are most of what smaller batches become.
    const TELLING: usize = 1 << 20;

    /// Where no object was yet: as much as the batch. JSON lines without compression are some times as large, and grow in a
    /// buffer that is there twice while it grows.
    pub fn unknown(format: Format) -> Self {
        let parts = if format == Format::Jsonl(Compression::None) { Self::MOST } else { Self::WHOLE };
        Self { parts, learned: false }
    }

    /// What a batch takes on its way out.
    pub fn on_its_way(self, batch: usize) -> usize {
        batch.saturating_add((batch / Self::WHOLE).saturating_mul(self.parts) + batch % Self::WHOLE)
    }

    /// The largest batch that fits into so much memory with what it becomes.
    pub fn fits(self, memory: usize) -> usize {
        memory / (Self::WHOLE + self.parts) * Self::WHOLE
    }

    /// After a batch: what grows is believed at once, as the first one is; what shrinks by a quarter each time.
    pub fn learn(&mut self, batch: usize, objects: usize) {
        if batch >= Self::TELLING {
            let seen = (objects / 2 * 3 / (batch / Self::WHOLE)).clamp(Self::LEAST, Self::MOST);
            let before = if self.learned { self.parts / 4 * 3 } else { 0 };
            *self = Self { parts: seen.max(before), learned: true };
        }
    }
}

/// What objects take, by topic.
#[derive(Debug)]
pub struct Shares {
    unknown: Share,
    topics: BTreeMap<String, Share>,
}

impl Shares {
    /// Of objects in this format.
    pub fn new(format: Format) -> Self {
        Self { unknown: Share::unknown(format), topics: BTreeMap::new() }
    }

    pub fn of(&self, topic: &str) -> Share {
        self.topics.get(topic).copied().unwrap_or(self.unknown)
    }

    /// See [`Share::learn`]. `stored`: bytes of the objects.
    pub fn learn(&mut self, topic: &str, batch: usize, stored: u64) {
        let share = self.topics.entry(topic.to_owned()).or_insert(self.unknown);
        share.learn(batch, usize::try_from(stored).unwrap_or(usize::MAX));
    }
}

/// One partition as the poll thread has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load<K> {
    pub key: K,
    /// Memory of its open batch.
    pub open: usize,
    /// Of its topic.
    pub share: Share,
    /// Told to read, not stopped or finished.
    pub reading: bool,
    /// And not paused.
    pub read_now: bool,
    /// Has not reached the log end, as it was seen last.
    pub behind: bool,
    /// Bytes up to there, as far as they can be told.
    pub left: usize,
    /// When the next of them may be deleted, ms since 1970; `i64::MAX` where nothing is known to.
    pub expires_ms: i64,
}

/// Memory: what batches take that were handed over, and what all may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    pub handed: usize,
    pub budget: usize,
    /// Reading was stopped for want of memory.
    pub full: bool,
}

impl Memory {
    /// Beside what has been on its way for long, as a store refuses it or a leader is gone, and may be for hours: others are
    /// read in what it leaves, and in a quarter of the budget if it leaves less. Where it takes all of the budget there is
    /// nothing to give.
    pub fn beside(self, waiting: usize) -> Self {
        if waiting == 0 || waiting > self.budget {
            return self;
        }
        let budget = (self.budget - waiting).max(self.budget / 4);
        Self { handed: self.handed.saturating_sub(waiting), budget, ..self }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Decision<K> {
    /// Memory is full: nothing is read until half of it is free.
    pub full: bool,
    /// Batches to cut now, largest first.
    pub cut: Vec<K>,
    /// Partitions to read; the rest is paused.
    pub read: Vec<K>,
}

/// What may be read beside the nearest when it is late: small ones, which would take longer one by one.
const SMALL: usize = 8 << 20;

/// `cut_bytes`: size of a cut that is not made under pressure. `late_by`: not everything can be read in time, so one
/// partition is read at a time, and another in its place if that expires so many milliseconds earlier.
pub fn decide<K: Copy + Ord>(
    mut loads: Vec<Load<K>>,
    memory: Memory,
    cut_bytes: usize,
    late_by: Option<i64>,
) -> Decision<K> {
    let Memory { mut handed, budget, mut full } = memory;
    let used = handed + loads.iter().map(|l| l.open).sum::<usize>();
    let mut cut = Vec::new();
    // Full, with nothing on its way that would free memory: what is open has to go, whatever its age.
    let stuck = full && handed == 0 && used > budget / 2;
    if !full && used > budget || stuck {
        full = true;
        loads.sort_unstable_by(|a, b| (b.open, a.key).cmp(&(a.open, b.key)));
        for load in loads.iter().take_while(|l| l.open > 0) {
            // Half the budget on its way out is enough: smaller batches may still fill.
            if handed * 2 >= budget {
                break;
            }
            handed += load.share.on_its_way(load.open);
            cut.push(load.key);
        }
    } else if full && used <= budget / 2 {
        full = false;
    }
    match late_by {
        // A batch that was begun is finished first; then the nearest deadline.
        None => loads.sort_unstable_by_key(|l| (l.open == 0, l.expires_ms, l.key)),
        Some(margin) => loads.sort_unstable_by_key(|l| {
            (if l.read_now { l.expires_ms.saturating_sub(margin) } else { l.expires_ms }, l.key)
        }),
    }
    // What those that are read may come to, when it is on its way beside what is there already.
    let mut room = budget.saturating_sub(handed);
    if late_by.is_some() {
        room = room.min(SMALL);
    }
    let mut first = true;
    let read = loads.iter().filter(|l| {
        if !l.reading || full {
            return false;
        }
        if !l.behind {
            // It is at its end, and goes on its way soon.
            room = room.saturating_sub(l.share.on_its_way(l.open));
            return true;
        }
        let records = l.open.saturating_add(l.left).min(cut_bytes.max(l.open).max(1));
        let comes_to = l.share.on_its_way(records);
        // One is read though its objects may not fit beside what is on its way, which makes room before they are there; or
        // its records, unless much is on its way, for then that is done soon.
        let begins = late_by.is_some() || handed <= budget / 2 || handed.saturating_add(records) <= budget;
        let fits = std::mem::take(&mut first) && begins || comes_to <= room;
        // Later ones do not overtake.
        room = if fits { room.saturating_sub(comes_to) } else { 0 };
        fits
    });
    Decision { full, cut, read: read.map(|l| l.key).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(key: u32, open: usize, behind: bool) -> Load<u32> {
        let share = Share::unknown(Format::Parquet);
        Load { key, open, share, reading: true, read_now: false, behind, left: 1000, expires_ms: i64::MAX }
    }

    #[test]
    fn a_backlog_is_read_a_few_partitions_at_a_time_begun_ones_first() {
        let loads = vec![load(0, 0, true), load(1, 10, true), load(2, 0, true), load(3, 0, false)];
        let memory = Memory { handed: 0, budget: 400, full: false };
        let decision = decide(loads.clone(), memory, 100, None);
        assert_eq!(decision, Decision { full: false, cut: vec![], read: vec![1, 0, 3] });
        // Partitions at their end are read in any case.
        assert_eq!(decide(loads, memory, 300, None).read, [1, 3]);
    }

    #[test]
    fn the_nearest_deadline_is_read_first_but_for_batches_that_were_begun() {
        let at = |key, open, expires_ms| Load { expires_ms, ..load(key, open, true) };
        let memory = Memory { handed: 0, budget: 400, full: false };
        let loads = vec![at(0, 0, i64::MAX), at(1, 0, 500), at(2, 0, 100), at(3, 10, 900)];
        assert_eq!(decide(loads, memory, 100, None).read, [3, 2]);
    }

    #[test]
    fn when_it_is_late_one_is_read_at_a_time_the_nearest_to_its_deadline() {
        let left = 8 << 20;
        let at = |key, open, expires_ms| Load { expires_ms, left, read_now: open > 0, ..load(key, open, true) };
        let memory = Memory { handed: 0, budget: 64 << 20, full: false };
        let loads = |begun| vec![at(0, 0, i64::MAX), at(1, 0, 500), at(2, 5, begun), load(3, 0, false)];
        let read = |begun| decide(loads(begun), memory, 8 << 20, Some(50)).read;
        assert_eq!((read(400), read(540), read(560)), (vec![2, 3], vec![2, 3], vec![1, 3]));
        // Small ones do not wait for each other.
        assert_eq!(decide((0..9).map(|key| load(key, 0, true)).collect(), memory, 8 << 20, Some(50)).read.len(), 9);
    }

    /// What was open came on its way all at once: with a budget of 256 MiB 419 were counted.
    #[test]
    fn what_is_on_its_way_leaves_less_to_be_read() {
        let read = |handed| {
            let loads = (0..9).map(|key| Load { left: 50, ..load(key, 0, true) }).collect();
            decide(loads, Memory { handed, budget: 400, full: false }, 100, None).read.len()
        };
        assert_eq!((read(0), read(200), read(290), read(350), read(390)), (4, 2, 1, 1, 0));
        // So does what is open of those that are at their end.
        let mut loads: Vec<_> = (0..9).map(|key| Load { left: 50, ..load(key, 0, true) }).collect();
        loads.push(load(9, 100, false));
        let memory = Memory { handed: 0, budget: 400, full: false };
        assert_eq!(decide(loads, memory, 100, None).read.len(), 3);
    }

    /// Two at a time took three times as long as all of them.
    #[test]
    fn partitions_with_little_left_are_read_together() {
        let little = |key| Load { left: 10, ..load(key, 0, true) };
        let memory = Memory { handed: 0, budget: 400, full: false };
        assert_eq!(decide((0..50).map(little).collect(), memory, 100, None).read.len(), 20);
        let loads = vec![little(0), load(1, 0, true), load(2, 0, true), little(3)];
        assert_eq!(
            decide(loads, memory, 100, None).read,
            [0, 1],
            "a small one behind a large one does not overtake it"
        );
    }

    /// A cut of 128 MiB in a budget of 192 was not begun as long as any little one of another partition was on its way.
    #[test]
    fn one_that_does_not_fit_is_read_unless_much_is_on_its_way() {
        let read = |handed| decide(vec![load(0, 0, true)], Memory { handed, budget: 192, full: false }, 128, None).read;
        assert_eq!((read(0), read(96), read(97)), (vec![0], vec![0], vec![]));
    }

    #[test]
    fn what_objects_took_of_late_tells_how_many_are_read_beside_those_on_their_way() {
        const MIB: usize = 1 << 20;
        let mut share = Share::unknown(Format::Parquet);
        assert_eq!(share.on_its_way(128 * MIB), 256 * MIB);
        share.learn(100, 1);
        assert_eq!(share, Share::unknown(Format::Parquet), "a footer tells nothing");
        assert_eq!([share.fits(192 * MIB) / MIB, share.fits(512 * MIB) / MIB], [96, 256]);
        let learned = |share: &mut Share, objects| {
            share.learn(128 * MIB, objects * MIB);
            share.on_its_way(128 * MIB) / MIB
        };
        assert_eq!([28, 28, 2].map(|mib| learned(&mut share, mib)), [170, 170, 160], "some room is left");
        assert_eq!(share.fits(192 * MIB) / MIB, 153);
        assert_eq!([60, 85, 28, 28].map(|mib| learned(&mut share, mib)), [218, 255, 222, 198], "the largest of late");
        // As JSON lines do without compression.
        assert_eq!(learned(&mut share, 256), 512);
        assert_eq!(share.fits(512 * MIB) / MIB, 128);
        assert_eq!(learned(&mut share, 9000), 640, "no more is believed");
        // A first cut of 96 MiB took 389 MiB with a budget of 192.
        let plain = Shares::new(Format::Jsonl(Compression::None)).of("t");
        assert_eq!(plain.fits(192 * MIB) / MIB, 38);
        let loads = |share| (0..9).map(|key| Load { left: 400 * MIB, share, ..load(key, 0, true) }).collect::<Vec<_>>();
        let memory = |handed| Memory { handed: handed * MIB, budget: 512 * MIB, full: false };
        (0..19).for_each(|_| share.learn(128 * MIB, 0));
        let read = |share, handed| decide(loads(share), memory(handed), 128 * MIB, None).read.len();
        assert_eq!((read(Share::unknown(Format::Parquet), 256), read(share, 256)), (1, 1));
        assert_eq!((read(Share::unknown(Format::Parquet), 0), read(share, 0)), (2, 3));
    }

    /// A bucket refused one pipeline's objects: with 169 of 192 MiB on their way for ever, no other partition was read.
    #[test]
    fn what_is_on_its_way_for_long_does_not_keep_others_from_being_read() {
        let read = |memory| decide(vec![load(0, 0, true), load(1, 0, true)], memory, 128, None).read.len();
        let memory = Memory { handed: 169, budget: 192, full: false };
        assert_eq!(memory.beside(0), memory);
        assert_eq!((read(memory), read(memory.beside(169))), (0, 1));
        let beside = memory.beside(169);
        assert_eq!((beside.handed, beside.budget), (0, 48));
        // What is read then is cut, and goes its way.
        let full = decide(vec![load(0, 49, true)], beside, 128, None);
        assert_eq!((full.full, full.cut), (true, vec![0]));
        assert_eq!(Memory { handed: 200, ..memory }.beside(100).budget, 92);
        // Nothing at all comes through: a budget and a quarter, and then it is enough.
        let all = Memory { handed: 217, ..memory };
        assert_eq!((all.beside(217), read(all.beside(217))), (all, 0));
    }

    #[test]
    fn pressure_cuts_the_largest_until_half_is_on_its_way() {
        let loads = vec![load(0, 100, false), load(1, 300, false), load(2, 50, false)];
        let decision = decide(loads, Memory { handed: 0, budget: 400, full: false }, 100, None);
        assert_eq!(decision, Decision { full: true, cut: vec![1], read: vec![] });
    }

    /// Arenas double: what stays open when half is on its way may be more than the other half.
    #[test]
    fn memory_that_stays_full_of_open_batches_is_cut_and_not_waited_for() {
        let loads = vec![load(0, 80, false), load(1, 80, false), load(2, 80, false)];
        let full = Memory { handed: 0, budget: 400, full: true };
        let decision = decide(loads, full, 100, None);
        assert_eq!((decision.full, &decision.cut[..]), (true, &[0, 1][..]));
        // Something is on its way: wait for it.
        let waiting = decide(vec![load(0, 250, false)], Memory { handed: 10, ..full }, 100, None);
        assert_eq!((waiting.full, waiting.cut.len()), (true, 0));
    }

    #[test]
    fn reading_goes_on_when_half_is_free() {
        let full = Memory { handed: 201, budget: 400, full: true };
        assert!(decide(vec![load(0, 0, false)], full, 100, None).full);
        let free = decide(vec![load(0, 0, false)], Memory { handed: 200, ..full }, 100, None);
        assert_eq!(free, Decision { full: false, cut: vec![], read: vec![0] });
    }
}
