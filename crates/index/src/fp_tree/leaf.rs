//! One leaf: its words, and the order in which they are stored.
//!
//! ```text
//! word 0        the lock: count << 1 | taken; never flushed on purpose
//! word 1        which slots hold, one bit each
//! word 2        the fence: every key here is below it, END for none; 0 where the leaf is gone
//! words 3-7     a byte of the hash of each slot's key (fingerprints)
//! word 8        the next leaf's address, or 0; of a leaf that is gone, the one to go on with
//! word 9        the key at which it begins: every key here is at or above it
//! word 10 + 2i  key of slot i
//! word 11 + 2i  value of slot i
//! ```
//!
//! The first eight words are one cache line: a look-up reads that and, mostly, one slot.
//!
//! **Which slots hold** is one word, so one store makes an entry come or go:
//!
//! * put: the slot is durable before its fingerprint and then its bit are stored, which share a
//!   line, so that the bit is never durable before the fingerprint;
//! * update: the value's word, in place;
//! * remove: the bit.
//!
//! **The lock** is taken by one writer at a time. A reader that finds it free, with the same count
//! before and after, has seen a leaf that nobody was changing, all of it durable; else it reads
//! again. What a process that is gone left in it is cleared when the tree is opened, before anybody
//! reads.

use super::SLOTS_MAX;
use crate::bytes::{ones, same_bytes};
use crate::ordered::END;
use crate::sync::Wait;
use nyx_media::pmem::{Pmem, Word};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

const LOCK: usize = 0;
const BITMAP: usize = 1;
const FENCE: usize = 2;
const TAGS: usize = 3;
const TAG_WORDS: usize = SLOTS_MAX / 8;
const NEXT: usize = TAGS + TAG_WORDS;
const LOW: usize = NEXT + 1;
/// Words before the first slot.
const HEADER: usize = LOW + 1;
/// Words of the line that a look-up reads.
const FIRST_LINE: usize = NEXT;

const TAKEN: u64 = 1;
/// The fence of a leaf that was taken out of the chain: whoever is still at it goes on to the next,
/// which is the one to its left that has its range.
pub(super) const GONE: u64 = 0;

/// Words of a leaf with `slots` slots.
pub(super) const fn words(slots: usize) -> usize {
    HEADER + 2 * slots
}

/// The words of a leaf. Copies are cheap.
#[derive(Debug)]
pub(super) struct Leaf<'p, P> {
    pm: &'p P,
    pub(super) at: u64,
    words: &'p [Word],
}

impl<P> Clone for Leaf<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Leaf<'_, P> {}

/// The count of a lock that was free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen(u64);

/// The byte of a key's hash that is kept beside it.
#[inline]
pub(super) fn tag(key: u64) -> u8 {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl<'p, P: Pmem> Leaf<'p, P> {
    #[inline]
    pub(super) fn new(pm: &'p P, at: u64, words: &'p [Word]) -> Self {
        Leaf { pm, at, words }
    }

    #[inline]
    pub(super) fn fence_key(&self) -> u64 {
        self.words[FENCE].load(Acquire)
    }

    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.words[NEXT].load(Acquire)
    }

    /// The address to go on at where `key` is at or above the fence: the next leaf's, or, of one
    /// that is gone, that of the leaf that has its range.
    ///
    /// Nobody goes there before the leaf was seen to be the same. Beside a writer who takes the
    /// last leaf out, the fence may be the old one, and the address already none.
    #[inline]
    pub(super) fn right_of(&self, key: u64) -> Option<u64> {
        let fence = self.fence_key();
        let is_here = key < fence || fence == END;
        (!is_here).then(|| self.next())
    }

    #[inline]
    pub(super) fn low(&self) -> u64 {
        self.words[LOW].load(Acquire)
    }

    /// The bits of all slots.
    fn all(&self) -> u64 {
        let slots = (self.words.len() - HEADER) / 2;
        u64::MAX >> (64 - slots)
    }

    /// Which slots hold.
    #[inline]
    pub(super) fn held(&self) -> u64 {
        self.words[BITMAP].load(Acquire) & self.all()
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

    /// The slot that holds `key`.
    #[inline]
    pub(super) fn find(&self, key: u64) -> Option<usize> {
        let tag = tag(key);
        let tags = self.words[TAGS..NEXT].iter().enumerate();
        let alike = tags.map(|(at, word)| same_bytes(word.load(Acquire), tag) << (8 * at));
        let alike = alike.fold(0, |all, some| all | some) & self.held();
        ones(alike).find(|&slot| self.key(slot) == key)
    }

    /// The entries, in no order.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, u64)> {
        ones(self.held()).map(|slot| (self.key(slot), self.value(slot)))
    }

    /// Waits until no writer is at it.
    #[inline]
    pub(super) fn look(&self) -> Seen {
        let mut wait = Wait::new();
        loop {
            let lock = self.words[LOCK].load(Acquire);
            if lock & TAKEN == 0 {
                return Seen(lock);
            }
            wait.turn();
        }
    }

    /// Whether nobody changed it since.
    #[inline]
    pub(super) fn is_same(&self, seen: Seen) -> bool {
        self.words[LOCK].load(Acquire) == seen.0
    }

    /// The fence and the next leaf's address when no writer is at it.
    pub(super) fn settled(&self) -> (u64, u64) {
        loop {
            let seen = self.look();
            let found = (self.fence_key(), self.next());
            if self.is_same(seen) {
                return found;
            }
        }
    }

    /// Waits for other writers and keeps them out, and readers.
    pub(super) fn lock(self) -> Locked<'p, P> {
        loop {
            let Seen(free) = self.look();
            let lock = &self.words[LOCK];
            let taken = lock.compare_exchange_weak(free, free | TAKEN, AcqRel, Relaxed);
            if taken.is_ok() {
                let free = free.wrapping_add(2);
                return Locked { leaf: self, free };
            }
        }
    }

    /// After a restart, before anybody else is there: a writer that is gone may have left stores
    /// that are not durable yet, or a split's upper half here as well as where it belongs. Taken
    /// until that is put right, so that the next process knows if this one is killed meanwhile.
    pub(super) fn settle(&self) {
        let (held, fence) = (self.held(), self.fence_key());
        let beyond = ones(held).filter(|&slot| self.key(slot) >= fence);
        let beyond = beyond.fold(0, |bits, slot| bits | 1 << slot);
        if beyond == 0 && self.words[LOCK].load(Relaxed) & TAKEN == 0 {
            return;
        }
        self.words[LOCK].store(TAKEN, Relaxed);
        self.pm.persist(self.words);
        if beyond != 0 {
            self.store_header(BITMAP, held & !beyond);
        }
        self.words[LOCK].store(0, Release);
    }

    /// Stores one word of the header durably.
    #[track_caller]
    fn store_header(&self, word: usize, value: u64) {
        self.pm.store(&self.words[word], value);
        self.pm.persist(&self.words[..FIRST_LINE]);
    }

    /// Writes a leaf that nobody knows of yet, durably.
    pub(super) fn write(&self, draft: &Draft<'_>) {
        self.words[LOCK].store(0, Relaxed);
        let mut tags = [[0; 8]; TAG_WORDS];
        for (slot, &(key, value)) in draft.entries.iter().enumerate() {
            let words = self.slot(slot);
            self.pm.store(&words[0], key);
            self.pm.store(&words[1], value);
            tags[slot / 8][slot % 8] = tag(key);
        }
        let held = (1 << draft.entries.len()) - 1;
        let tags = tags.into_iter().map(u64::from_le_bytes);
        let header = [held, draft.fence].into_iter().chain(tags);
        let header = header.chain([draft.next, draft.low]);
        for (word, value) in self.words[BITMAP..].iter().zip(header) {
            self.pm.store(word, value);
        }
        self.pm.persist(self.words);
    }
}

/// What a new leaf has.
pub(super) struct Draft<'a> {
    pub(super) next: u64,
    pub(super) low: u64,
    pub(super) fence: u64,
    pub(super) entries: &'a [(u64, u64)],
}

/// A leaf that this thread may change. Dropping it lets others.
#[derive(Debug)]
pub(super) struct Locked<'p, P: Pmem> {
    leaf: Leaf<'p, P>,
    free: u64,
}

impl<'p, P: Pmem> std::ops::Deref for Locked<'p, P> {
    type Target = Leaf<'p, P>;

    #[inline]
    fn deref(&self) -> &Leaf<'p, P> {
        &self.leaf
    }
}

impl<P: Pmem> Drop for Locked<'_, P> {
    #[inline]
    fn drop(&mut self) {
        // A leaf that is half written stays locked, as if the process had been killed; and so it
        // will be.
        if !std::thread::panicking() {
            self.words[LOCK].store(self.free, Release);
        }
    }
}

/// Changing. The order of stores, flushes and fences in here is what a crash is survived by.
impl<P: Pmem> Locked<'_, P> {
    /// A slot that holds nothing.
    pub(super) fn vacancy(&self) -> Option<usize> {
        ones(!self.held() & self.all()).next()
    }

    /// Puts a new entry into a slot that holds nothing.
    pub(super) fn insert(&self, slot: usize, key: u64, value: u64) {
        let words = self.slot(slot);
        self.pm.store(&words[0], key);
        self.pm.store(&words[1], value);
        self.pm.persist(words);
        let tags = &self.words[TAGS + slot / 8];
        let mut bytes = tags.load(Relaxed).to_le_bytes();
        bytes[slot % 8] = tag(key);
        self.pm.store(tags, u64::from_le_bytes(bytes));
        self.store_header(BITMAP, self.held() | 1 << slot);
    }

    /// Changes the value of a slot that holds.
    pub(super) fn update(&self, slot: usize, value: u64) {
        let words = self.slot(slot);
        self.pm.store(&words[1], value);
        self.pm.persist(words);
    }

    /// Takes the entry of a slot away.
    pub(super) fn remove(&self, slot: usize) {
        self.store_header(BITMAP, self.held() & !(1 << slot));
    }

    /// Makes `beyond` the next leaf.
    #[track_caller]
    pub(super) fn lead_to(&self, beyond: u64) {
        self.pm.store(&self.words[NEXT], beyond);
        self.pm.persist(&self.words[NEXT..=NEXT]);
    }

    /// Gives the entries from `fence` on, which lie in the leaf at `right` already, to that one.
    /// It is reached, and durably so, before they are found there.
    pub(super) fn cede(&self, right: u64, fence: u64) {
        self.lead_to(right);
        let low = ones(self.held()).filter(|&slot| self.key(slot) < fence);
        let low = low.fold(0, |bits, slot| bits | 1 << slot);
        self.pm.store(&self.words[FENCE], fence);
        self.store_header(BITMAP, low);
    }

    /// Takes over the range of `right`, the next leaf, which holds nothing and is then gone. The
    /// fence is durable before the address, so that in between `right` is an empty stretch of the
    /// chain.
    pub(super) fn absorb(&self, right: &Locked<'_, P>) {
        self.store_header(FENCE, right.fence_key());
        self.lead_to(right.next());
        right.pm.store(&right.words[NEXT], self.at);
        right.pm.store(&right.words[FENCE], GONE);
    }
}
