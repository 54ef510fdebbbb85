//! Which of a restore's batches count. Pure.
//!
//! Each batch leaves a piece: a list of what went where, `sent/<start>-<end>-<run>.parquet`, over the selected records
//! numbered `start..end`. Every start of the program is a run, which fixes in `run-<n>.json` with which record it
//! began.
//!
//! With transactions a piece is written before its transaction commits, so the last piece of a run that crashed may be
//! of a batch that was aborted. The next run finds out: it fences the one before, then reads the progress that was
//! committed, and begins there. So a piece counts unless a later run began at or below its start. That the order of
//! runs is the order of fencing needs care, see [`super::ahead`].
//!
//! Without transactions nothing is aborted, and a run that was taken over may send a last batch behind that. What a
//! restore's end lists must not depend on who wins. So the end is a run of its own, which begins behind the plan's last
//! record: who begins it first fixes which pieces count.

use crate::error::{Error, Result};
use std::collections::BTreeMap;

/// Records `start..end` of a plan, sent in this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Piece {
    pub start: u64,
    /// Exclusive.
    pub end: u64,
    pub run: u32,
}

impl Piece {
    pub fn name(&self) -> String {
        format!("{:020}-{:020}-{}.parquet", self.start, self.end, self.run)
    }

    pub fn parse(name: &str) -> Option<Self> {
        let mut parts = name.strip_suffix(".parquet")?.split('-');
        let mut number = || parts.next()?.parse::<u64>().ok();
        let (start, end, run) = (number()?, number()?, number()?);
        let piece = Self { start, end, run: u32::try_from(run).ok()? };
        (piece.name() == name).then_some(piece)
    }
}

fn is_redone(piece: &Piece, runs: &BTreeMap<u32, u64>) -> bool {
    runs.range(piece.run + 1..).any(|(_, start)| *start <= piece.start)
}

/// Records of pieces that do not count.
pub fn redone(pieces: &[Piece], runs: &BTreeMap<u32, u64>) -> u64 {
    pieces.iter().filter(|p| is_redone(p, runs)).map(|p| p.end.saturating_sub(p.start)).sum()
}

/// The pieces that count, in order, and the record behind the last of them. `runs` has the start of each run.
///
/// # Errors
/// [`crate::Kind::Corrupt`] if what counts does not lie end to end from record 0 on.
pub fn counted(pieces: &[Piece], runs: &BTreeMap<u32, u64>) -> Result<(Vec<Piece>, u64)> {
    let mut kept: Vec<Piece> = pieces.iter().filter(|p| !is_redone(p, runs)).copied().collect();
    kept.sort_unstable();
    let mut reached = 0;
    for piece in &kept {
        if piece.start != reached || piece.end <= piece.start || !runs.contains_key(&piece.run) {
            return Err(Error::corrupt(format!(
                "the lists of sent records do not follow each other (record {reached}, then {}): some were deleted or \
                 changed. What was sent is not known: look into the target topics before restoring again",
                piece.name()
            )));
        }
        reached = piece.end;
    }
    Ok((kept, reached))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_parse_back() {
        let piece = Piece { start: 500, end: 1000, run: 3 };
        assert_eq!(piece.name(), "00000000000000000500-00000000000000001000-3.parquet");
        assert_eq!(Piece::parse(&piece.name()), Some(piece));
        for odd in ["1-2-3.parquet", "x", "00000000000000000500-00000000000000001000-03.parquet"] {
            assert_eq!(Piece::parse(odd), None, "{odd}");
        }
    }

    #[test]
    fn missing_pieces_are_noticed() {
        let runs = BTreeMap::from([(1, 0)]);
        let piece = |start, end| Piece { start, end, run: 1 };
        assert_eq!(counted(&[piece(0, 2), piece(2, 3)], &runs).unwrap().1, 3);
        assert!(counted(&[piece(2, 3)], &runs).is_err());
        assert!(counted(&[piece(0, 2), piece(3, 4)], &runs).is_err());
        assert!(counted(&[Piece { start: 0, end: 2, run: 2 }], &runs).is_err());
    }

    /// One batch: its length, and how far it gets before the program dies (2 = it does not die).
    fn history() -> impl Strategy<Value = Vec<Vec<(u64, u8)>>> {
        prop::collection::vec(prop::collection::vec((1..5u64, 0..3u8), 0..6), 1..6)
    }

    proptest! {
        /// Whatever crashes there were, what counts is what was committed.
        #[test]
        fn what_counts_is_what_was_committed(runs in history()) {
            let (mut progress, mut committed, mut pieces, mut starts) = (0, Vec::new(), Vec::new(), BTreeMap::new());
            for (n, batches) in runs.iter().enumerate() {
                let run = n as u32 + 1;
                starts.insert(run, progress);
                let before: Vec<Piece> = counted(&pieces, &starts).unwrap().0;
                prop_assert_eq!(&before, &committed);
                for (length, fate) in batches {
                    let piece = Piece { start: progress, end: progress + length, run };
                    if *fate >= 1 {
                        pieces.push(piece);
                    }
                    if *fate < 2 {
                        break;
                    }
                    committed.push(piece);
                    progress = piece.end;
                }
            }
        }
    }
}
