//! A bit for each page of a region.
//!
//! What it never does: take memory for words in which none was ever set.
//!
//! *Thread safety*: one owner.

use std::ops::Range;

/// See the module.
#[derive(Debug)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    /// None is set.
    pub(super) fn new(pages: u32) -> Bits {
        Bits(vec![0; (pages as usize).div_ceil(64)])
    }

    pub(super) fn has(&self, page: u32) -> bool {
        self.0[page as usize / 64] & (1 << (page % 64)) != 0
    }

    pub(super) fn set(&mut self, page: u32, is_set: bool) {
        let word = &mut self.0[page as usize / 64];
        match is_set {
            true => *word |= 1 << (page % 64),
            false => *word &= !(1 << (page % 64)),
        }
    }

    /// Pages that have it, in runs.
    pub(super) fn runs(&self) -> impl Iterator<Item = Range<u32>> {
        let mut at = 0;
        let pages = self.0.len() as u32 * u64::BITS;
        std::iter::from_fn(move || {
            while at < pages && !self.has(at) {
                // Words without any are most.
                let is_empty = at.is_multiple_of(u64::BITS) && self.0[at as usize / 64] == 0;
                at += if is_empty { u64::BITS } else { 1 };
            }
            let first = at;
            while at < pages && self.has(at) {
                at += 1;
            }
            (first < at).then_some(first..at)
        })
    }

    /// A range in pieces of which all pages have it, or none.
    pub(super) fn pieces(&self, range: Range<u32>) -> impl Iterator<Item = (Range<u32>, bool)> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let first = at;
            let is_set = first < range.end && self.has(first);
            while at < range.end && self.has(at) == is_set {
                at += 1;
            }
            (first < at).then_some((first..at, is_set))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_pieces_are_of_what_was_set() {
        let mut bits = Bits::new(300);
        for page in [0, 1, 63, 64, 65, 200] {
            bits.set(page, true);
        }
        bits.set(64, false);
        assert!(bits.has(63) && !bits.has(64) && bits.has(65));
        let runs: Vec<_> = bits.runs().collect();
        assert_eq!(runs, [0..2, 63..64, 65..66, 200..201]);
        let pieces: Vec<_> = bits.pieces(1..66).collect();
        let expected = [
            (1..2, true),
            (2..63, false),
            (63..64, true),
            (64..65, false),
            (65..66, true),
        ];
        assert_eq!(pieces, expected);
        assert_eq!(bits.pieces(5..5).count(), 0);
    }
}
