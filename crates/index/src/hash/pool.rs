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
use nyx_media::MediaError;

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
    pub(super) fn reserve(buckets: u64, huge: bool) -> Result<Pool, MediaError> {
        Ok(Pool {
            memory: Memory::reserve(buckets, huge)?,
            lock: CachePadded(AtomicU32::new(0)),
            free: AtomicU32::new(NONE),
            fresh: AtomicU32::new(0),
        })
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

    /// A bucket that was never used.
    pub(super) fn take_fresh(&self) -> Option<u32> {
        self.locked(|pool| {
            let at = pool.fresh.load(Relaxed);
            (u64::from(at) < pool.memory.capacity()).then(|| {
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
