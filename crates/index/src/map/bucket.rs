//! A bucket of the map: two cache lines of eight entries, and smaller ones for what it has no room
//! for.
//!
//! ```text
//! bucket   words 0..8   words of entries 0..=7
//!          words 8..16  values of entries 0..=7; where it is spilled the last is the link
//! spill    word 0       link
//!          words 1..7   entries 0..=2: word, value, one behind the other
//! ```
//!
//! The *word* of a key is its hash, from which nothing is lost, turned so that zero is the word of
//! no key: an empty entry has it, and the last of a bucket that is spilled. A *link* is the number
//! of a spill, how many entries it has, and a bit for each hash that is spilled; zero is none.
//!
//! What it never does: decide anything; the protocol is in `map`.
//!
//! *Thread safety*: every field is atomic. Only the holder of the lock of its stripe stores to it
//! and to its spills. Stores release and loads acquire: whoever sees the word of an entry sees the
//! value that was stored before it.

use super::stripe::Mark;
use crate::sync::{Ordering, Word};
use Ordering::{Acquire, Relaxed, Release};
#[cfg(not(any(loom, shuttle)))]
use nyx_media::prim::Line;
use nyx_media::prim::Prim;
use std::num::NonZeroU64;

/// Entries of a bucket.
pub(super) const ENTRIES: usize = 8;
/// Entries of a spill.
pub(super) const SPILL_ENTRIES: usize = 3;
/// Bytes of a spill.
pub(super) const SPILL_BYTES: u64 = 64;

/// The entry that is none where a bucket is spilled.
const LINK: usize = ENTRIES - 1;

const LINK_INDEX_SHIFT: u32 = 2;
const FILTER_SHIFT: u32 = 36;
/// The highest number of a spill.
pub(super) const LINK_INDEX_MAX: u64 = (1 << (FILTER_SHIFT - LINK_INDEX_SHIFT)) - 1;

/// Two cache lines, brought near together.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Bucket {
    /// The words of entries.
    words: Line,
    /// The values of entries.
    values: Line,
}

/// As that of `nyx_media::prim`, of atomics that a model checker knows.
#[cfg(any(loom, shuttle))]
#[derive(Debug)]
struct Line([Word; ENTRIES]);

/// A cache line of entries that a bucket has no room for.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Spill {
    link: Word,
    entries: [(Word, Word); SPILL_ENTRIES],
}

/// An entry: the word of its key, and its value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'m> {
    pub(super) word: &'m Word,
    pub(super) value: &'m Word,
}

impl Entry<'_> {
    /// Word and value. Holder of the lock only.
    #[inline]
    pub(super) fn read(self) -> (u64, u64) {
        (self.word.load(Relaxed), self.value.load(Relaxed))
    }

    /// Holder of the lock only; the word last, since it says that the entry is there.
    #[inline]
    pub(super) fn fill(self, word: u64, value: u64) {
        self.value.store(value, Release);
        self.word.store(word, Release);
    }

    /// Holder of the lock only.
    #[inline]
    pub(super) fn clear(self) {
        self.word.store(0, Release);
    }
}

/// Where the first spill of a chain is, how many entries it has, so that one is added to it without
/// a look at it, and which hashes the chain may have. All spills behind it are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link(NonZeroU64);

impl Link {
    /// To spill `index`, from 0, which has so many entries: one to [`SPILL_ENTRIES`]. The chain may
    /// have no hash.
    #[inline]
    pub(super) fn to(index: u64, entries: usize) -> Link {
        debug_assert!((1..=SPILL_ENTRIES).contains(&entries) && index <= LINK_INDEX_MAX);
        let bits = NonZeroU64::new(index << LINK_INDEX_SHIFT | entries as u64);
        Link(bits.expect("it has an entry"))
    }

    #[inline]
    fn of(bits: u64) -> Option<Link> {
        NonZeroU64::new(bits).map(Link)
    }

    #[inline]
    fn bits(link: Option<Link>) -> u64 {
        link.map_or(0, |Link(bits)| bits.get())
    }

    #[inline]
    pub(super) fn index(self) -> u64 {
        self.0.get() >> LINK_INDEX_SHIFT & LINK_INDEX_MAX
    }

    #[inline]
    pub(super) fn entries(self) -> usize {
        (self.0.get() & ((1 << LINK_INDEX_SHIFT) - 1)) as usize
    }

    /// The bit of a hash in the filter, which has 28 bits.
    #[inline]
    fn filter_bit(hash: u64) -> u64 {
        1 << (FILTER_SHIFT + (((hash >> 59) * u64::from(64 - FILTER_SHIFT)) >> 5) as u32)
    }

    /// Whether the chain may have `hash`.
    #[inline]
    pub(super) fn may_have(self, hash: u64) -> bool {
        self.0.get() & Link::filter_bit(hash) != 0
    }

    /// The same of a chain that has `hash` too.
    #[must_use]
    pub(super) fn with(self, hash: u64) -> Link {
        Link(self.0 | Link::filter_bit(hash))
    }

    /// The same of a chain that has what `other` has too.
    #[must_use]
    pub(super) fn with_all_of(self, other: Option<Link>) -> Link {
        Link(self.0 | Link::bits(other) >> FILTER_SHIFT << FILTER_SHIFT)
    }
}

impl Bucket {
    pub(super) fn empty() -> Bucket {
        let line = || Line(std::array::from_fn(|_| Word::new(0)));
        Bucket {
            words: line(),
            values: line(),
        }
    }

    #[inline]
    pub(super) fn entry(&self, at: usize) -> Entry<'_> {
        Entry {
            word: &self.words.0[at],
            value: &self.values.0[at],
        }
    }

    /// The entry with this word.
    #[inline]
    #[cfg(not(any(loom, shuttle)))]
    pub(super) fn find(&self, prim: Prim, word: u64) -> Option<Entry<'_>> {
        (prim.find_word(&self.words, word)).map(|at| self.entry(at))
    }

    /// The same in an order that is as good as any.
    #[cfg(any(loom, shuttle))]
    pub(super) fn find(&self, _: Prim, word: u64) -> Option<Entry<'_>> {
        let mut words = self.words.0.iter();
        let found = words.rposition(|other| other.load(Acquire) == word);
        found.map(|at| self.entry(at))
    }

    /// An empty entry of one that is not spilled. Holder of the lock only.
    #[inline]
    pub(super) fn vacancy(&self, prim: Prim) -> Option<Entry<'_>> {
        self.find(prim, 0)
    }

    /// The mark of those in place. Holder of the lock only.
    pub(super) fn mark(&self) -> Mark {
        let words = self.words.0.iter().map(|word| word.load(Relaxed));
        let words = words.filter(|&word| word != 0);
        words.fold(Mark::default(), |mark, word| mark.and(Mark::of(word)))
    }

    /// The entry that is not there where it is spilled. Holder of the lock only.
    pub(super) fn last(&self) -> Entry<'_> {
        self.entry(LINK)
    }

    /// Whether `hash` may be in a spill of one that is spilled.
    #[inline]
    pub(super) fn may_spill(&self, hash: u64) -> bool {
        self.values.0[LINK].load(Acquire) & Link::filter_bit(hash) != 0
    }

    /// The first spill of one that is spilled.
    #[inline]
    pub(super) fn link(&self) -> Option<Link> {
        Link::of(self.values.0[LINK].load(Acquire))
    }

    /// Holder of the lock only.
    #[inline]
    pub(super) fn set_link(&self, link: Option<Link>) {
        self.values.0[LINK].store(Link::bits(link), Release);
    }

    /// Asks for both lines to be brought near.
    #[inline]
    pub(super) fn prefetch(&self) {
        nyx_media::prim::prefetch(std::ptr::from_ref(self).cast(), size_of::<Bucket>());
    }

    /// Asks for the values, when the words are about to be waited for.
    #[inline]
    pub(super) fn prefetch_values(&self) {
        nyx_media::prim::prefetch(std::ptr::from_ref(&self.values).cast(), 1);
    }

    /// Asks for both lines, for whoever is about to store to them.
    #[inline]
    pub(super) fn prefetch_write(&self) {
        nyx_media::prim::prefetch_write(std::ptr::from_ref(self).cast(), size_of::<Bucket>());
    }
}

impl Spill {
    pub(super) fn empty() -> Spill {
        Spill {
            link: Word::new(0),
            entries: std::array::from_fn(|_| (Word::new(0), Word::new(0))),
        }
    }

    #[inline]
    pub(super) fn entry(&self, at: usize) -> Entry<'_> {
        let (word, value) = &self.entries[at];
        Entry { word, value }
    }

    #[inline]
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        (self.entries.iter()).map(|(word, value)| Entry { word, value })
    }

    #[inline]
    pub(super) fn next(&self) -> Option<Link> {
        Link::of(self.link.load(Acquire))
    }

    /// Holder of the lock of its bucket only, or of the list that it is on.
    #[inline]
    pub(super) fn set_next(&self, next: Option<Link>) {
        self.link.store(Link::bits(next), Release);
    }
}
