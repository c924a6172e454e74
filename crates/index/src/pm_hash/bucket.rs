//! One bucket: its words, and the order in which they are stored. A bucket is one unit of
//! persistent memory, aligned to it.
//!
//! ```text
//! word 0        the lock (`latch`)
//! word 1        the span and which slots hold: see below
//! words 2-3     a byte of the hash of each slot's key (fingerprints), slot 0 in the first byte;
//!               two bytes are not used
//! word 4 + 2i   key of slot i
//! word 5 + 2i   value of slot i
//! ```
//!
//! **One word says everything**: the upper 44 bits of word 1 are those of the lowest hash that
//! belongs here, the next 6 say how many bits of a hash are the same in all that do (the depth),
//! the lowest 14 which slots hold. So one store makes an entry come or go, and one store gives half
//! of the hashes, with their entries, away:
//!
//! * put: key and value are durable before the fingerprint and then word 1 are stored, which share
//!   a line, so that the bit is never durable before the fingerprint;
//! * update: the value's word, in place;
//! * remove: word 1;
//! * cede: the entries that go lie in the other bucket durably, which nobody reads for them yet;
//!   then word 1.
//!
//! **Readers** take no lock and do not wait. In one writer's work word 1 changes at most once, and
//! a slot is written only while it holds nothing: read after word 1 was, the slots that hold are
//! those before or those after. Who reads beside a writer makes the bucket durable before it tells.

use crate::bytes::{ones, same_bytes};
use crate::latch::{self, Held, Latch};
use nyx_media::pmem::{LINE_WORDS, Pmem, Word};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Words of a bucket.
pub(super) const WORDS: usize = 32;
/// Slots that fit.
pub(super) const SLOTS_MAX: usize = (WORDS - HEADER) / 2;

/// The size of a slot.
pub(super) const SLOT_BYTES: usize = 16;

const LOCK: usize = 0;
const META: usize = 1;
const TAGS: usize = 2;
/// Words before the first slot.
const HEADER: usize = 4;

const DEPTH_SHIFT: u32 = SLOTS_MAX as u32;
const DEPTH_BITS: u32 = 6;
const LOW_SHIFT: u32 = DEPTH_SHIFT + DEPTH_BITS;
/// The most bits of a hash that can be the same in a bucket.
pub(super) const DEPTH_MAX: u32 = 64 - LOW_SHIFT;

/// What a lock says that is taken.
const TAKEN: u64 = 1;

/// The hashes from a lowest one on that have its first `depth` bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) low: u64,
    pub(super) depth: u32,
}

impl Span {
    /// All hashes.
    pub(super) const ALL: Span = Span { low: 0, depth: 0 };

    /// The bits in which its hashes differ.
    #[inline]
    fn rest(self) -> u64 {
        u64::MAX.checked_shr(self.depth).unwrap_or(0)
    }

    /// The highest.
    #[inline]
    pub(super) fn last(self) -> u64 {
        self.low | self.rest()
    }

    #[inline]
    pub(super) fn has(self, hash: u64) -> bool {
        hash ^ self.low <= self.rest()
    }

    /// Whether there can be such a one in a bucket.
    pub(super) fn is_sound(self) -> bool {
        self.depth <= DEPTH_MAX && self.low & self.rest() == 0
    }

    /// Its lower half.
    pub(super) fn lower(self) -> Span {
        Span {
            low: self.low,
            depth: self.depth + 1,
        }
    }

    /// Its upper half.
    pub(super) fn upper(self) -> Span {
        Span {
            low: self.low | 1 << (63 - self.depth),
            depth: self.depth + 1,
        }
    }
}

/// Word 1 of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta(u64);

impl Meta {
    /// `span.depth` is at most [`DEPTH_MAX`].
    fn new(span: Span, held: u64) -> Meta {
        Meta(span.low | u64::from(span.depth) << DEPTH_SHIFT | held)
    }

    #[inline]
    pub(super) fn span(self) -> Span {
        Span {
            low: self.0 >> LOW_SHIFT << LOW_SHIFT,
            depth: (self.0 >> DEPTH_SHIFT) as u32 & ((1 << DEPTH_BITS) - 1),
        }
    }
}

/// The hash's byte that is kept beside a key.
#[inline]
pub(super) fn tag(hash: u64) -> u8 {
    hash as u8
}

/// Where a slot begins in a bucket, in bytes.
#[inline]
pub(super) fn slot_at(slot: usize) -> u64 {
    ((HEADER + 2 * slot) * size_of::<Word>()) as u64
}

/// The words of a bucket. Copies are cheap.
#[derive(Debug)]
pub(super) struct Bucket<'p, P> {
    pm: &'p P,
    words: &'p [Word],
    slots: usize,
}

impl<P> Clone for Bucket<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Bucket<'_, P> {}

impl<'p, P: Pmem> Bucket<'p, P> {
    /// `words` are [`WORDS`], of which the first `slots` slots are used.
    #[inline]
    pub(super) fn new(pm: &'p P, words: &'p [Word], slots: usize) -> Self {
        Bucket { pm, words, slots }
    }

    #[inline]
    pub(super) fn meta(&self) -> Meta {
        Meta(self.words[META].load(Acquire))
    }

    #[inline]
    pub(super) fn span(&self) -> Span {
        self.meta().span()
    }

    /// Which slots hold.
    #[inline]
    pub(super) fn held(&self, meta: Meta) -> u64 {
        meta.0 & self.all()
    }

    /// The bits of all slots.
    fn all(&self) -> u64 {
        (1 << self.slots) - 1
    }

    #[inline]
    pub(super) fn key(&self, slot: usize) -> u64 {
        self.words[HEADER + 2 * slot].load(Acquire)
    }

    #[inline]
    pub(super) fn value(&self, slot: usize) -> u64 {
        self.words[HEADER + 2 * slot + 1].load(Acquire)
    }

    fn slot(&self, slot: usize) -> &'p [Word] {
        &self.words[HEADER + 2 * slot..][..2]
    }

    /// The line of lock, word 1 and fingerprints.
    fn first_line(&self) -> &'p [Word] {
        &self.words[..LINE_WORDS]
    }

    /// The slot that holds `key`, whose hash has this byte.
    #[inline]
    pub(super) fn find(&self, meta: Meta, tag: u8, key: u64) -> Option<usize> {
        self.alike(meta, tag).find(|&slot| self.key(slot) == key)
    }

    /// The slots that hold a key whose hash has this byte.
    #[inline]
    pub(super) fn alike(&self, meta: Meta, tag: u8) -> impl Iterator<Item = usize> + use<P> {
        let tags = self.words[TAGS..HEADER].iter().enumerate();
        let alike = tags.map(|(at, word)| same_bytes(word.load(Acquire), tag) << (8 * at));
        ones(alike.fold(0, |all, some| all | some) & self.held(meta))
    }

    /// The entries, in no order.
    pub(super) fn entries(&self, meta: Meta) -> impl Iterator<Item = (u64, u64)> {
        ones(self.held(meta)).map(|slot| (self.key(slot), self.value(slot)))
    }

    fn latch(&self) -> Latch<'p, P> {
        Latch {
            pm: self.pm,
            lock: &self.words[LOCK],
            node: self.words,
        }
    }

    /// Looks at the lock, before and after.
    #[inline]
    pub(super) fn look(&self, generation: u64) -> latch::Seen {
        self.latch().look(generation)
    }

    /// Whether what was read since `seen` is to be believed: at most one writer was at it.
    #[inline]
    pub(super) fn is_same(&self, seen: latch::Seen) -> bool {
        self.latch().is_same(seen)
    }

    /// Where a writer is at it, makes durable what was read.
    #[inline]
    pub(super) fn make_durable(&self, seen: latch::Seen) {
        self.latch().make_durable(seen);
    }

    /// Waits for other writers and keeps them out.
    pub(super) fn lock(self, generation: u64) -> Locked<'p, P> {
        let held = self.latch().hold(generation, TAKEN);
        Locked {
            bucket: self,
            _held: held,
        }
    }

    /// Makes it an empty one of a segment that nobody knows of yet. Durable after a fence.
    pub(super) fn draft(&self, span: Span, generation: u64) {
        self.words[LOCK].store(latch::free(generation, 0), Relaxed);
        self.pm.store(&self.words[META], Meta::new(span, 0).0);
        self.pm.flush(self.first_line());
    }
}

/// A bucket that this thread may change. Dropping it lets others.
#[derive(Debug)]
pub(super) struct Locked<'p, P: Pmem> {
    bucket: Bucket<'p, P>,
    _held: Held<'p>,
}

impl<'p, P: Pmem> std::ops::Deref for Locked<'p, P> {
    type Target = Bucket<'p, P>;

    #[inline]
    fn deref(&self) -> &Bucket<'p, P> {
        &self.bucket
    }
}

/// Changing. The order of stores, flushes and fences in here is what a crash is survived by.
impl<P: Pmem> Locked<'_, P> {
    /// How many slots hold nothing.
    pub(super) fn vacancies(&self) -> u32 {
        (!self.held(self.meta()) & self.all()).count_ones()
    }

    /// Puts a new entry, whose key's hash has this byte, into a slot that holds nothing: there is
    /// one.
    pub(super) fn insert(&self, tag: u8, key: u64, value: u64) {
        let meta = self.meta();
        let slot = ones(!self.held(meta) & self.all()).next();
        let slot = slot.expect("there is a vacancy");
        let words = self.slot(slot);
        self.pm.store(&words[0], key);
        self.pm.store(&words[1], value);
        self.pm.persist(words);
        self.store_tag(slot, tag);
        self.store_meta(Meta(meta.0 | 1 << slot));
    }

    /// Changes the value of a slot that holds.
    pub(super) fn update(&self, slot: usize, value: u64) {
        let words = self.slot(slot);
        self.pm.store(&words[1], value);
        self.pm.persist(words);
    }

    /// Takes the entry of a slot away.
    pub(super) fn remove(&self, slot: usize) {
        self.store_meta(Meta(self.meta().0 & !(1 << slot)));
    }

    /// Gives the upper half of the span to `right`, whatever that one has: it counts for nothing so
    /// far. `hash` is that of a key.
    pub(super) fn cede(&self, right: Bucket<'_, P>, hash: impl Fn(u64) -> u64) {
        let meta = self.meta();
        let (lower, upper) = (meta.span().lower(), meta.span().upper());
        let held = self.held(meta);
        let goes = ones(held).filter(|&slot| upper.has(hash(self.key(slot))));
        let goes = goes.fold(0, |bits, slot| bits | 1 << slot);
        for slot in ones(goes) {
            let words = right.slot(slot);
            self.pm.store(&words[0], self.key(slot));
            self.pm.store(&words[1], self.value(slot));
            right.store_tag(slot, tag(hash(self.key(slot))));
        }
        self.pm.store(&right.words[META], Meta::new(upper, goes).0);
        self.pm.persist(right.words);
        self.store_meta(Meta::new(lower, held & !goes));
    }

    /// Stores word 1 durably, and the fingerprints with it.
    fn store_meta(&self, meta: Meta) {
        self.pm.store(&self.words[META], meta.0);
        self.pm.persist(self.first_line());
    }
}

impl<P: Pmem> Bucket<'_, P> {
    fn store_tag(&self, slot: usize, tag: u8) {
        let word = &self.words[TAGS + slot / 8];
        let mut bytes = word.load(Relaxed).to_le_bytes();
        bytes[slot % 8] = tag;
        self.pm.store(word, u64::from_le_bytes(bytes));
    }
}
