//! Which partitions are read, and which batches are cut under pressure: a pure function of sizes and positions.
//!
//! With a backlog larger than the memory budget few partitions are read at a time, so that cuts still fill. A pause
//! drops what was prefetched, so there is hysteresis.

/// What a batch takes on its way out: its records, and the objects that they are encoded into.
pub fn on_its_way(batch: usize) -> usize {
    2 * batch
}

/// One partition as the poll thread has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load<K> {
    pub key: K,
    /// Memory of its open batch.
    pub open: usize,
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
const SMALL: usize = 4 << 20;

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
            handed += on_its_way(load.open);
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
    let mut room = budget.saturating_sub(handed) / on_its_way(1);
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
            room = room.saturating_sub(l.open);
            return true;
        }
        let comes_to = l.open.saturating_add(l.left).min(cut_bytes.max(1));
        let fits = std::mem::take(&mut first) || comes_to <= room;
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
        Load { key, open, reading: true, read_now: false, behind, left: 1000, expires_ms: i64::MAX }
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
        assert_eq!((read(0), read(200), read(390)), (4, 2, 1));
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
