//! A bucket: one cache line of ten tags and ten places, and the memory that buckets lie in.
//!
//! ```text
//! word 0   bit 0 lock | bit 1 linked | bits 2..32 version | tag 0 | tag 1
//! word 1   tags 2..=5
//! word 2   tags 6..=9
//! then     places 0..=9, 32 bits each; where linked, place 9 is the next bucket of the chain
//! ```
//!
//! What it never does: decide anything; the protocol is in `hash`.
//!
//! *Thread safety*: every field is atomic. Only the holder of the lock of a chain's first bucket
//! stores to the chain. Stores release and loads acquire, so that whoever sees a tag sees the place
//! stored before it, and whoever sees a place sees the lock that was taken before it was stored.
//!
//! *Invariants*: a tag of zero means an empty slot. In a linked bucket tag 9 is zero.

use crate::Place;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use Ordering::{Acquire, Relaxed, Release};

/// Slots of a bucket.
pub(super) const SLOTS: usize = 10;
/// The slot whose place is the link of a linked bucket.
pub(super) const LINK_SLOT: usize = SLOTS - 1;
/// Bytes of a bucket.
pub(super) const BUCKET_BYTES: u64 = 64;
/// Blocks of a file are allocated for this many buckets at once: 64 KiB.
#[cfg(not(loom))]
const ALLOCATE_BUCKETS: u64 = 1024;

const LOCKED: u64 = 1;
const LINKED: u64 = 2;
const VERSION: u64 = 4;
const HEADER: u64 = 0xffff_ffff;
/// A tag times this is the tag in all four lanes of a word.
const TAG_ONES: u64 = 0x0001_0001_0001_0001;
/// All bits but the highest of each lane: adding this to those carries nothing out of a lane.
const TAG_LOW_BITS: u64 = 0x7fff_7fff_7fff_7fff;

/// One cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Bucket {
    words: [AtomicU64; 3],
    places: [AtomicU32; SLOTS],
}

/// What a reader saw of a bucket's tags.
#[derive(Clone, Copy)]
pub(super) struct Tags([u64; 3]);

/// Slots that are left to look at, one bit in sixteen per slot, in the order of the words.
#[derive(Clone, Copy)]
pub(super) struct Matches([u64; 3]);

impl Tags {
    /// Header bits that change with every change of the chain.
    #[inline]
    pub(super) fn header(self) -> u32 {
        (self.0[0] & HEADER) as u32
    }

    #[inline]
    pub(super) fn is_locked(self) -> bool {
        self.0[0] & LOCKED != 0
    }

    #[inline]
    pub(super) fn is_linked(self) -> bool {
        self.0[0] & LINKED != 0
    }

    /// The slots whose tag is `tag`, exactly: the place of an empty slot must not be looked at.
    #[inline]
    pub(super) fn matches(self, tag: u16) -> Matches {
        let wanted = u64::from(tag) * TAG_ONES;
        let zeros = |word: u64| {
            let x = word ^ wanted;
            !(((x & TAG_LOW_BITS) + TAG_LOW_BITS) | x | TAG_LOW_BITS)
        };
        Matches([
            zeros(self.0[0]) & !HEADER,
            zeros(self.0[1]),
            zeros(self.0[2]),
        ])
    }
}

impl Iterator for Matches {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        for (word, bits) in self.0.iter_mut().enumerate() {
            if *bits != 0 {
                let lane = bits.trailing_zeros() as usize / 16;
                *bits &= *bits - 1;
                return Some(word * 4 + lane - 2);
            }
        }
        None
    }
}

impl Bucket {
    #[cfg(loom)]
    pub(super) fn empty() -> Bucket {
        Bucket {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            places: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    #[inline]
    pub(super) fn tags(&self) -> Tags {
        Tags([
            self.words[0].load(Acquire),
            self.words[1].load(Acquire),
            self.words[2].load(Acquire),
        ])
    }

    /// The header as it is now.
    #[inline]
    pub(super) fn header(&self) -> u32 {
        (self.words[0].load(Acquire) & HEADER) as u32
    }

    #[inline]
    pub(super) fn place(&self, slot: usize) -> Place {
        Place(self.places[slot].load(Acquire))
    }

    /// The next bucket of the chain, where `tags` (read before) say that there is one.
    #[inline]
    pub(super) fn link(&self, tags: Tags) -> Option<u32> {
        tags.is_linked()
            .then(|| self.places[LINK_SLOT].load(Acquire))
    }

    /// Tries to take the lock; the header before that, if it was free.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<u32> {
        let word = self.words[0].load(Relaxed);
        if word & LOCKED != 0 {
            return None;
        }
        let taken = self.words[0].compare_exchange(word, word | LOCKED, Acquire, Relaxed);
        taken.ok().map(|_| (word & HEADER) as u32)
    }

    /// Gives the lock back, with a new version where the chain was `changed`. Holder only.
    #[inline]
    pub(super) fn unlock(&self, changed: bool) {
        let word = self.words[0].load(Relaxed);
        let header = (word & HEADER & !LOCKED) + if changed { VERSION } else { 0 };
        self.words[0].store((word & !HEADER) | (header & HEADER), Release);
    }

    #[inline]
    pub(super) fn tag(&self, slot: usize) -> u16 {
        let at = slot + 2;
        (self.words[at / 4].load(Relaxed) >> (at % 4 * 16)) as u16
    }

    /// Sets a tag. Holder only.
    #[inline]
    pub(super) fn set_tag(&self, slot: usize, tag: u16) {
        let at = slot + 2;
        let (word, shift) = (&self.words[at / 4], at % 4 * 16);
        let rest = word.load(Relaxed) & !(0xffff << shift);
        word.store(rest | (u64::from(tag) << shift), Release);
    }

    /// Sets a place. Holder only.
    #[inline]
    pub(super) fn set_place(&self, slot: usize, place: Place) {
        self.places[slot].store(place.0, Release);
    }

    /// Fills an empty slot: the place first, since a tag says that its place is there. Holder only.
    #[inline]
    pub(super) fn fill(&self, slot: usize, tag: u16, place: Place) {
        self.set_place(slot, place);
        self.set_tag(slot, tag);
    }

    /// Slots that hold places, now.
    #[inline]
    pub(super) fn usable(&self) -> usize {
        SLOTS - usize::from(self.next().is_some())
    }

    /// The next bucket of the chain. Holder only.
    #[inline]
    pub(super) fn next(&self) -> Option<u32> {
        let linked = self.words[0].load(Relaxed) & LINKED != 0;
        linked.then(|| self.places[LINK_SLOT].load(Relaxed))
    }

    /// Links or unlinks the next bucket; slot 9 must be empty. Holder only.
    pub(super) fn set_next(&self, next: Option<u32>) {
        let word = self.words[0].load(Relaxed);
        match next {
            Some(next) => {
                self.places[LINK_SLOT].store(next, Release);
                self.words[0].store(word | LINKED, Release);
            }
            None => self.words[0].store(word & !LINKED, Release),
        }
    }

    /// An empty usable slot. Holder only.
    #[inline]
    pub(super) fn vacancy(&self) -> Option<usize> {
        self.tags()
            .matches(0)
            .next()
            .filter(|&slot| slot < self.usable())
    }

    /// Takes away a lock that nobody holds.
    #[cfg(not(loom))]
    pub(super) fn free(&self) {
        let word = self.words[0].load(Relaxed);
        self.words[0].store(word & !LOCKED, Relaxed);
    }

    /// Forgets all. Of a bucket that is in no chain and nobody knows.
    pub(super) fn wipe(&self) {
        self.words.iter().for_each(|word| word.store(0, Release));
    }

    /// Forgets tags and link, keeps lock and version. Of a bucket that is in no chain.
    pub(super) fn clear(&self) {
        let header = self.words[0].load(Relaxed) & HEADER & !LINKED;
        self.words[0].store(header, Release);
        self.words[1].store(0, Release);
        self.words[2].store(0, Release);
    }
}

/// Reserved memory for buckets; zero bytes are an empty bucket.
#[derive(Debug)]
pub(super) struct Memory {
    #[cfg(not(loom))]
    buckets: nyx_media::Array<Bucket>,
    #[cfg(loom)]
    buckets: Box<[Bucket]>,
}

// SAFETY: all fields are atomics, of which any bytes are a valid value.
#[cfg(not(loom))]
unsafe impl nyx_media::dram::Words for Bucket {}

impl Memory {
    pub(super) fn reserve(buckets: u64, huge: bool) -> Result<Memory, nyx_media::MediaError> {
        #[cfg(loom)]
        {
            let _ = huge;
            Ok(Memory {
                buckets: (0..buckets).map(|_| Bucket::empty()).collect(),
            })
        }
        #[cfg(not(loom))]
        {
            let buckets = nyx_media::Array::reserve(buckets as usize, huge)?;
            Ok(Memory { buckets })
        }
    }

    /// Memory that outlives the process.
    #[cfg(not(loom))]
    pub(super) fn over(buckets: nyx_media::Array<Bucket>) -> Memory {
        Memory { buckets }
    }

    /// How many buckets there is room for.
    pub(super) fn capacity(&self) -> u64 {
        self.buckets.len() as u64
    }

    /// Panics where there is no such bucket.
    #[inline]
    pub(super) fn bucket(&self, at: u64) -> &Bucket {
        &self.buckets[at as usize]
    }

    /// Makes sure that a bucket can be touched, and those behind it up to a boundary of
    /// [`ALLOCATE_BUCKETS`]. False where the disk is full. To be asked for each bucket once, in the
    /// order of their numbers.
    pub(super) fn allocate(&self, at: u64) -> bool {
        #[cfg(not(loom))]
        if at.is_multiple_of(ALLOCATE_BUCKETS) {
            let end = (at + ALLOCATE_BUCKETS).min(self.capacity());
            return self.buckets.allocate(at as usize, end as usize).is_ok();
        }
        let _ = at;
        true
    }

    /// How many buckets are allocated where so many are in use.
    #[cfg(not(loom))]
    pub(super) fn allocated(&self, used: u64) -> u64 {
        used.next_multiple_of(ALLOCATE_BUCKETS).min(self.capacity())
    }

    /// Makes sure that so many can be touched, and what is allocated ahead.
    #[cfg(not(loom))]
    pub(super) fn allocate_all(&self, used: u64) -> std::io::Result<()> {
        self.buckets.allocate(0, self.allocated(used) as usize)
    }

    /// Asks for a bucket to be brought near.
    #[inline]
    pub(super) fn prefetch(&self, at: u64) {
        let line = std::ptr::from_ref(self.bucket(at)).cast();
        nyx_media::prim::prefetch(line, BUCKET_BYTES as usize);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equal_tags_match_and_no_others(tags in prop::array::uniform10(0u16..4), tag in 1u16..4) {
            let memory = Memory::reserve(1, false).expect("a page");
            let bucket = memory.bucket(0);
            for (slot, &tag) in tags.iter().enumerate() {
                bucket.fill(slot, tag, Place(slot as u32));
            }
            let matched: Vec<usize> = bucket.tags().matches(tag).collect();
            for (slot, &held) in tags.iter().enumerate() {
                prop_assert_eq!(bucket.tag(slot), held);
                prop_assert_eq!(held == tag, matched.contains(&slot));
            }
            prop_assert!(matched.is_sorted());
        }
    }

    #[test]
    fn a_header_is_no_tag() {
        let memory = Memory::reserve(1, false).expect("a page");
        let bucket = memory.bucket(0);
        for _ in 0..0x2_0003 {
            bucket.try_lock().expect("free");
            bucket.unlock(true);
        }
        for tag in 1..=u16::MAX {
            assert_eq!(bucket.tags().matches(tag).next(), None);
        }
    }
}
