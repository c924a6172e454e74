//! Overflow buckets: fresh ones in the order of their memory, used ones from a free list.
//!
//! What it never does: count bytes (the table does) or give memory back: an index that shrank grows
//! again soon.
//!
//! *Thread safety*: a short spin lock guards the list. Taken while a chain is locked, never the
//! other way round.
//!
//! *Invariants*: a bucket on the free list is empty and unlinked; a stale reader that walks it
//! meets the changed version of the chain that it came from.

use super::bucket::{Bucket, Memory};
use crate::Place;
use crate::sync::{AtomicU32, Ordering, Wait};
use Ordering::{Acquire, Relaxed, Release};
use nyx_base::CachePadded;

/// No bucket.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Pool {
    memory: Memory,
    lock: CachePadded<AtomicU32>,
    free: AtomicU32,
    fresh: AtomicU32,
}

impl Pool {
    /// A pool of which the first `fresh` buckets were used before and none is free.
    pub(super) fn over(memory: Memory, fresh: u32) -> Pool {
        Pool {
            memory,
            lock: CachePadded(AtomicU32::new(0)),
            free: AtomicU32::new(NONE),
            fresh: AtomicU32::new(fresh),
        }
    }

    /// How many buckets there are.
    #[cfg(not(loom))]
    pub(super) fn len(&self) -> u64 {
        self.memory.capacity()
    }

    /// How many were ever used.
    #[cfg(not(loom))]
    pub(super) fn fresh(&self) -> u64 {
        u64::from(self.fresh.load(Relaxed))
    }

    /// The memory that they lie in.
    #[cfg(not(loom))]
    pub(super) fn into_memory(self) -> Memory {
        self.memory
    }

    /// Makes sure that the first buckets, so many, can be touched.
    #[cfg(not(loom))]
    pub(super) fn allocate_all(&self, count: u64) -> std::io::Result<()> {
        self.memory.allocate_all(count)
    }

    #[inline]
    pub(super) fn bucket(&self, at: u32) -> &Bucket {
        self.memory.bucket(u64::from(at))
    }

    #[inline]
    pub(super) fn prefetch(&self, at: u32) {
        if u64::from(at) < self.memory.capacity() {
            self.memory.prefetch(u64::from(at));
        }
    }

    /// A bucket that was given back.
    pub(super) fn take_used(&self) -> Option<u32> {
        if self.free.load(Relaxed) == NONE {
            return None;
        }
        self.locked(|pool| {
            let at = pool.free.load(Relaxed);
            (at != NONE).then(|| {
                pool.free.store(pool.bucket(at).place(0).0, Relaxed);
                at
            })
        })
    }

    /// A bucket that was never used; `keep` is told how many were, before it is. None where there
    /// is none left, or the disk is full.
    pub(super) fn take_fresh(&self, keep: impl FnOnce(u32)) -> Option<u32> {
        self.locked(|pool| {
            let at = pool.fresh.load(Relaxed);
            let is_there = u64::from(at) < pool.memory.capacity();
            (is_there && pool.memory.allocate(u64::from(at))).then(|| {
                keep(at + 1);
                pool.bucket(at).wipe();
                pool.fresh.store(at + 1, Relaxed);
                at
            })
        })
    }

    /// Takes back an empty bucket that is in no chain.
    pub(super) fn give_back(&self, at: u32) {
        self.locked(|pool| {
            pool.bucket(at).set_place(0, Place(pool.free.load(Relaxed)));
            pool.free.store(at, Relaxed);
        });
    }

    fn locked<T>(&self, work: impl FnOnce(&Pool) -> T) -> T {
        let mut wait = Wait::new();
        while self.lock.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            wait.turn();
        }
        let result = work(self);
        self.lock.store(0, Release);
        result
    }
}
