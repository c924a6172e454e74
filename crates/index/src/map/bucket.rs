//! A bucket of the map: two cache lines of seven entries, and smaller ones for what a bucket has no
//! room for.
//!
//! ```text
//! bucket   word 0       filter, 32 bits | bit 32 locked | bits 33..63 version | bit 63 changing
//!          words 1..8   words of entries 0..=6
//!          word 8       link
//!          words 9..16  values of entries 0..=6
//! spill    word 0       link
//!          words 1..7   entries 0..=2: word, value, one behind the other
//! ```
//!
//! The *word* of a key is its hash, from which nothing is lost, turned so that zero is the word of
//! no key: an empty entry has it. The filter has a bit for each spilled entry, chosen by its hash,
//! and may have more. A link is the number of a spill and how many entries it has; zero is none.
//!
//! So a look-up that finds nothing needs the first line only, and no tags are compared that could
//! match by chance: a branch that is guessed wrong after it waited for memory costs all that the
//! core had begun behind it.
//!
//! What it never does: decide anything; the protocol is in `map`.
//!
//! *Thread safety*: every field is atomic. Only the holder of the lock of a bucket stores to it and
//! to its spills. Stores release and loads acquire: whoever sees the word of an entry sees the
//! value that was stored before it, and whoever sees either sees all marks in word 0 before it.

use crate::sync::{Ordering, Word};
use Ordering::{Acquire, Relaxed, Release};
#[cfg(not(any(loom, shuttle)))]
use nyx_media::prim::Line;
use nyx_media::prim::Prim;
use std::num::NonZeroU64;

/// Entries of a bucket.
pub(super) const ENTRIES: usize = 7;
/// Entries of a spill.
pub(super) const SPILL_ENTRIES: usize = 3;
/// Bytes of a bucket.
pub(super) const BUCKET_BYTES: u64 = 128;
/// Bytes of a spill.
pub(super) const SPILL_BYTES: u64 = 64;

const LOCKED: u64 = 1 << 32;
const CHANGING: u64 = 1 << 63;
/// Tells a reader of a change, with the version above it.
const VERSION_SHIFT: u32 = 33;
const FILTER_MASK: u64 = 0xffff_ffff;
const LINK_INDEX_SHIFT: u32 = 2;

/// Two cache lines, brought near together.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Bucket {
    /// The head, and the words of entries.
    words: Line,
    /// The link, and the values of entries.
    values: Line,
}

/// As that of `nyx_media::prim`, of atomics that a model checker knows.
#[cfg(any(loom, shuttle))]
#[derive(Debug)]
struct Line {
    head: Word,
    words: [Word; ENTRIES],
}

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

/// Word 0 as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head(u64);

impl Head {
    #[inline]
    pub(super) fn is_changing(self) -> bool {
        self.0 & CHANGING != 0
    }

    /// Whether what was read between the two is to be believed.
    #[inline]
    pub(super) fn is_same(self, later: Head) -> bool {
        (self.0 ^ later.0) >> VERSION_SHIFT == 0
    }

    #[inline]
    pub(super) fn filter(self) -> Filter {
        Filter((self.0 & FILTER_MASK) as u32)
    }
}

/// Which entries may be spilled.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Filter(u32);

impl Filter {
    /// Bits that do not choose the bucket.
    #[inline]
    fn bit(hash: u64) -> u32 {
        1 << (hash >> 59)
    }

    #[inline]
    pub(super) fn may_have(self, hash: u64) -> bool {
        self.0 & Filter::bit(hash) != 0
    }

    #[inline]
    #[must_use]
    pub(super) fn with(self, hash: u64) -> Filter {
        Filter(self.0 | Filter::bit(hash))
    }
}

/// Where the first spill of a chain is, and how many entries it has: an entry is added to it
/// without a look at it. All spills behind it are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link(NonZeroU64);

impl Link {
    /// To spill `index`, from 0, which has so many entries: one to [`SPILL_ENTRIES`].
    #[inline]
    pub(super) fn to(index: u64, entries: usize) -> Link {
        debug_assert!((1..=SPILL_ENTRIES).contains(&entries));
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
        self.0.get() >> LINK_INDEX_SHIFT
    }

    #[inline]
    pub(super) fn entries(self) -> usize {
        (self.0.get() & ((1 << LINK_INDEX_SHIFT) - 1)) as usize
    }
}

impl Bucket {
    pub(super) fn empty() -> Bucket {
        let line = || Line {
            head: Word::new(0),
            words: std::array::from_fn(|_| Word::new(0)),
        };
        Bucket {
            words: line(),
            values: line(),
        }
    }

    #[inline]
    pub(super) fn head(&self) -> Head {
        Head(self.words.head.load(Acquire))
    }

    #[inline]
    pub(super) fn entry(&self, at: usize) -> Entry<'_> {
        Entry {
            word: &self.words.words[at],
            value: &self.values.words[at],
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
        let mut words = self.words.words.iter();
        let found = words.rposition(|other| other.load(Acquire) == word);
        found.map(|at| self.entry(at))
    }

    /// An empty entry. Holder of the lock only.
    #[inline]
    pub(super) fn vacancy(&self, prim: Prim) -> Option<Entry<'_>> {
        self.find(prim, 0)
    }

    /// The first spill.
    #[inline]
    pub(super) fn link(&self) -> Option<Link> {
        Link::of(self.values.head.load(Acquire))
    }

    /// Holder of the lock only.
    #[inline]
    pub(super) fn set_link(&self, link: Option<Link>) {
        self.values.head.store(Link::bits(link), Release);
    }

    /// Asks for both lines to be brought near.
    #[inline]
    pub(super) fn prefetch(&self) {
        nyx_media::prim::prefetch(std::ptr::from_ref(self).cast(), BUCKET_BYTES as usize);
    }

    /// Asks for the values, when the head is about to be waited for.
    #[inline]
    pub(super) fn prefetch_values(&self) {
        nyx_media::prim::prefetch(std::ptr::from_ref(&self.values).cast(), 1);
    }

    /// Asks for both lines, for whoever is about to store to them.
    #[inline]
    pub(super) fn prefetch_write(&self) {
        nyx_media::prim::prefetch_write(std::ptr::from_ref(self).cast(), BUCKET_BYTES as usize);
    }

    /// Takes the lock, where it is free; the head as it was before.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<Head> {
        let head = self.words.head.load(Relaxed);
        if head & LOCKED != 0 {
            return None;
        }
        let taken = (self.words.head).compare_exchange(head, head | LOCKED, Acquire, Relaxed);
        taken.ok().map(Head)
    }

    /// Says to readers that from now on nothing that they read is to be believed. Holder only, who
    /// then calls [`Bucket::unlock_changed`].
    #[inline]
    pub(super) fn begin_change(&self, head: Head) {
        self.words.head.store(head.0 | LOCKED | CHANGING, Release);
    }

    /// Gives the lock back, with a new version and another filter. Holder only.
    #[inline]
    pub(super) fn unlock_changed(&self, head: Head, filter: Filter) {
        let next = head.0.wrapping_add(1 << VERSION_SHIFT);
        let version = next & !(CHANGING | LOCKED | FILTER_MASK);
        (self.words.head).store(version | u64::from(filter.0), Release);
    }

    /// Gives the lock back as it was taken: entries were added to empty places, values replaced, or
    /// nothing was done. Holder only.
    #[inline]
    pub(super) fn unlock(&self, head: Head) {
        self.words.head.store(head.0, Release);
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
