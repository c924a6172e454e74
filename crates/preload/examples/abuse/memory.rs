//! Memory that holds what its place and a seed say, and memory that drives other memory out.
//!
//! Thread safety: all words are atomic; who fills and who checks is the caller's to order.
//!
//! What it never does: free memory by itself.

use crate::sys::{self, PRIVATE, RW};
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(crate) const PAGE: usize = 4096;
pub(crate) const KIB: usize = 1 << 10;
pub(crate) const MIB: usize = 1 << 20;

/// A word of memory that lives.
pub(crate) fn word(at: usize) -> &'static AtomicU64 {
    debug_assert!(at.is_multiple_of(8));
    // SAFETY: every caller names an aligned word of memory that it has mapped or allocated and uses
    // only while it has; or it expects the fault.
    unsafe { &*ptr::with_exposed_provenance::<AtomicU64>(at) }
}

/// What the word at a place holds; never zero.
pub(crate) fn stamp(seed: u64, place: usize) -> u64 {
    let mixed = (seed ^ (place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).rotate_left(29);
    mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) | 1
}

/// A range of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl Block {
    /// New private memory.
    pub(crate) fn map(len: usize) -> Block {
        let at = sys::mmap(0, len, RW, PRIVATE, -1);
        let at = at.unwrap_or_else(|why| panic!("mmap of {len} bytes: errno {why}"));
        Block { at, len }
    }

    /// New private memory that holds a seed's words.
    pub(crate) fn filled(len: usize, seed: u64) -> Block {
        let block = Block::map(len);
        block.fill(0..len, seed);
        block
    }

    pub(crate) fn unmap(self) {
        sys::munmap(self.at, self.len).expect("unmapped");
    }

    pub(crate) fn fill(&self, range: Range<usize>, seed: u64) {
        for place in range.step_by(8) {
            word(self.at + place).store(stamp(seed, place), Relaxed);
        }
    }

    /// The first place that does not hold what `fill` wrote, with what it holds.
    pub(crate) fn wrong(&self, range: Range<usize>, seed: u64) -> Option<(usize, u64)> {
        let held = |place: usize| (place, word(self.at + place).load(Relaxed));
        let mut held = range.step_by(8).map(held);
        held.find(|&(place, value)| value != stamp(seed, place))
    }

    pub(crate) fn check(&self, range: Range<usize>, seed: u64) {
        if let Some((place, value)) = self.wrong(range.clone(), seed) {
            let want = stamp(seed, place);
            panic!("{self:x?}[{range:x?}], seed {seed}: {value:x} and not {want:x} at {place:x}");
        }
    }

    /// It holds zeros.
    pub(crate) fn zero(&self, range: Range<usize>) {
        for place in range.step_by(8) {
            let value = word(self.at + place).load(Relaxed);
            assert_eq!(value, 0, "{self:x?} at {place:x} is not zero");
        }
    }

    /// One word of each page is touched.
    pub(crate) fn touch(&self, seed: u64) {
        for place in (0..self.len).step_by(PAGE) {
            word(self.at + place).store(stamp(seed, place), Relaxed);
        }
    }
}

/// Touches so much other memory that what was used before it leaves memory.
pub(crate) fn press() {
    static BALLAST: OnceLock<Block> = OnceLock::new();
    let ballast = BALLAST.get_or_init(|| Block::map(4 * MIB));
    ballast.touch(7);
}
