//! What tells of buckets of the map, and lies elsewhere: the mark of each, and the lock that eight
//! of them share.
//!
//! ```text
//! mark     one or two bits for each hash that the bucket has, in place or spilled; maybe more
//! stripe   bits 0..8 which of the buckets are spilled | bit 8 locked | bit 9 changing
//!          bits 10..64 version
//! ```
//!
//! Marks take four bytes of a bucket's 133, and lie together: who looks for a hash that is not
//! there mostly finds out in a cache, without a look at the bucket. And no tags are compared in the
//! bucket that could match by chance: a branch that is guessed wrong after it waited for memory
//! costs all that the core had begun behind it. Stripes take one byte, so that a lock is near for
//! whoever takes it. Two who are at different buckets of one stripe keep each other waiting, which
//! is rare where there are many.
//!
//! What it never does: decide anything; the protocol is in `map`.
//!
//! *Thread safety*: every field is atomic. Only the holder of a stripe's lock stores to it, and to
//! the marks of its buckets; to those of buckets that nobody sees yet, who splits. Stores release
//! and loads acquire.

use crate::sync::{HalfWord, Ordering, Word};
use Ordering::{Acquire, Relaxed, Release};

/// Buckets that share a lock.
pub(super) const STRIPE_BUCKETS: u64 = if cfg!(any(loom, shuttle)) { 2 } else { 8 };

const LOCKED: u64 = 1 << 8;
/// Tells a reader of a change, with the version above it.
const CHANGING: u64 = 1 << CHANGING_SHIFT;
const CHANGING_SHIFT: u32 = 9;
const VERSION_SHIFT: u32 = 10;

/// The bits of hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark(u32);

impl Mark {
    /// Chosen by bits of the hash that choose no bucket.
    #[inline]
    pub(super) fn of(hash: u64) -> Mark {
        Mark(1 << (hash >> 59) | 1 << (hash >> 54 & 31))
    }

    #[inline]
    #[must_use]
    pub(super) fn and(self, other: Mark) -> Mark {
        Mark(self.0 | other.0)
    }

    /// Whether it has the bits of `hash`.
    #[inline]
    pub(super) fn may_have(self, hash: u64) -> bool {
        let Mark(bits) = Mark::of(hash);
        self.0 & bits == bits
    }
}

/// The mark of a bucket.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct MarkWord(HalfWord);

impl MarkWord {
    pub(super) fn empty() -> MarkWord {
        MarkWord(HalfWord::new(0))
    }

    #[inline]
    pub(super) fn look(&self) -> Mark {
        Mark(self.0.load(Acquire))
    }

    /// Holder of the lock only.
    #[inline]
    pub(super) fn set(&self, mark: Mark) {
        self.0.store(mark.0, Release);
    }

    /// Adds the bits of `hash`. Holder of the lock only.
    #[inline]
    pub(super) fn add(&self, hash: u64) {
        let before = Mark(self.0.load(Relaxed));
        self.set(before.and(Mark::of(hash)));
    }

    /// Asks for it to be brought near.
    #[inline]
    pub(super) fn prefetch(&self) {
        nyx_media::prim::prefetch(std::ptr::from_ref(self).cast(), 1);
    }

    /// The same for whoever is about to store to it.
    #[inline]
    pub(super) fn prefetch_write(&self) {
        nyx_media::prim::prefetch_write(std::ptr::from_ref(self).cast(), 1);
    }
}

/// The lock of [`STRIPE_BUCKETS`] buckets.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Stripe(Word);

/// A stripe as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen(u64);

impl Seen {
    #[inline]
    pub(super) fn is_changing(self) -> bool {
        self.0 & CHANGING != 0
    }

    /// Whether what was read between the two is to be believed.
    #[inline]
    pub(super) fn is_same(self, later: Seen) -> bool {
        (self.0 ^ later.0) >> CHANGING_SHIFT == 0
    }

    /// Whether the last entry of the bucket at `slot` is a link.
    #[inline]
    pub(super) fn is_spilled(self, slot: u64) -> bool {
        self.0 >> slot & 1 != 0
    }

    #[inline]
    #[must_use]
    pub(super) fn spilled(self, slot: u64, is_spilled: bool) -> Seen {
        Seen(self.0 & !(1 << slot) | u64::from(is_spilled) << slot)
    }
}

impl Stripe {
    pub(super) fn empty() -> Stripe {
        Stripe(Word::new(0))
    }

    #[inline]
    pub(super) fn look(&self) -> Seen {
        Seen(self.0.load(Acquire))
    }

    /// Takes the lock, where it is free; the stripe as it was before.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<Seen> {
        let before = self.0.load(Relaxed);
        if before & LOCKED != 0 {
            return None;
        }
        let taken = (self.0).compare_exchange(before, before | LOCKED, Acquire, Relaxed);
        taken.ok().map(Seen)
    }

    /// Says to readers that from now on nothing that they read in a bucket is to be believed.
    /// Holder only, who then calls [`Stripe::unlock_changed`].
    #[inline]
    pub(super) fn begin_change(&self, before: Seen) {
        self.0.store(before.0 | LOCKED | CHANGING, Release);
    }

    /// Gives the lock back, with a new version. Holder only.
    #[inline]
    pub(super) fn unlock_changed(&self, after: Seen) {
        let next = after.0.wrapping_add(1 << VERSION_SHIFT);
        self.0.store(next & !(CHANGING | LOCKED), Release);
    }

    /// Gives the lock back under the same version: entries were added to empty places, values
    /// replaced, or nothing was done. Holder only, or who splits where nobody sees it yet.
    #[inline]
    pub(super) fn unlock(&self, before: Seen) {
        self.0.store(before.0, Release);
    }

    /// Asks for it to be brought near.
    #[inline]
    pub(super) fn prefetch(&self) {
        nyx_media::prim::prefetch(std::ptr::from_ref(self).cast(), 1);
    }
}
