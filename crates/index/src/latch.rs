//! Locks of nodes on a medium, which are never flushed on purpose: a lock of another generation of
//! the heap is that of a writer that is gone, and void.
//!
//! A lock word counts: `generation << 40 | count << 2 | mode`. Writers change it from free (mode 0)
//! to what they do and back to free with the next count. A reader that finds the same word before
//! and after has seen the work of at most one writer, perhaps in progress. Readers never wait.
//!
//! A writer that is gone left its mode: if the machine lived on, its stores are all there, and some
//! are not durable, which nobody else would make up for. Whoever comes first makes the node durable
//! as it is and frees the lock.

use crate::sync::Wait;
use nyx_media::pmem::{Pmem, Word};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

const MODE_MASK: u64 = 0b11;
const COUNT_BITS: u32 = 38;
const GENERATION_SHIFT: u32 = COUNT_BITS + 2;

/// The lock of a node, and the node.
#[derive(Debug)]
pub(crate) struct Latch<'p, P> {
    pub(crate) pm: &'p P,
    pub(crate) lock: &'p Word,
    /// All that is made durable, the lock's line too.
    pub(crate) node: &'p [Word],
}

/// What a lock word says to a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen(u64);

impl Seen {
    /// What is being done; 0 for nothing.
    #[inline]
    pub(crate) fn mode(self) -> u64 {
        self.0 & MODE_MASK
    }
}

/// The bits of a generation that a lock carries.
fn tag(generation: u64) -> u64 {
    generation & (u64::MAX >> GENERATION_SHIFT)
}

/// The lock word that says: free, so many times.
pub(crate) fn free(generation: u64, count: u64) -> u64 {
    tag(generation) << GENERATION_SHIFT | (count & ((1 << COUNT_BITS) - 1)) << 2
}

impl<'p, P: Pmem> Latch<'p, P> {
    /// Looks at the lock, before and after.
    #[inline]
    pub(crate) fn look(&self, generation: u64) -> Seen {
        let mut word = self.lock.load(Acquire);
        while word & MODE_MASK != 0 && word >> GENERATION_SHIFT != tag(generation) {
            word = self.adopt(word, generation);
        }
        Seen(word)
    }

    #[cold]
    fn adopt(&self, word: u64, generation: u64) -> u64 {
        self.pm.persist(self.node);
        let free = free(generation, word >> 2);
        match self.lock.compare_exchange(word, free, AcqRel, Acquire) {
            Ok(_) => free,
            Err(now) => now,
        }
    }

    /// Whether what was read since `seen` is to be believed: at most one writer was at it.
    #[inline]
    pub(crate) fn is_same(&self, seen: Seen) -> bool {
        self.lock.load(Acquire) == seen.0
    }

    /// Where a writer is at it, makes durable what was read: nobody is told of what a crash could
    /// undo.
    #[inline]
    pub(crate) fn make_durable(&self, seen: Seen) {
        if seen.mode() != 0 {
            self.pm.persist(self.node);
        }
    }

    /// Waits for other writers, then keeps them out and says to readers what is going to be done.
    pub(crate) fn hold(&self, generation: u64, mode: u64) -> Held<'p> {
        let mut wait = Wait::new();
        loop {
            let seen = self.look(generation);
            if seen.mode() != 0 {
                wait.turn();
                continue;
            }
            let now = free(generation, seen.0 >> 2);
            let taken = (self.lock).compare_exchange_weak(seen.0, now | mode, AcqRel, Relaxed);
            if taken.is_ok() {
                return Held {
                    lock: self.lock,
                    free: free(generation, (now >> 2) + 1),
                };
            }
        }
    }
}

/// A lock that this thread has. Dropping it lets others.
#[derive(Debug)]
pub(crate) struct Held<'p> {
    lock: &'p Word,
    free: u64,
}

impl Held<'_> {
    /// The same lock, for something else.
    pub(crate) fn turn(&mut self, generation: u64, mode: u64) {
        self.lock.store(self.free | mode, Release);
        self.free = free(generation, (self.free >> 2) + 1);
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        // A node that is half written stays locked, as if the process had been killed; and so it
        // will be.
        if !std::thread::panicking() {
            self.lock.store(self.free, Release);
        }
    }
}
