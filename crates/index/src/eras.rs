//! Eras: when memory that was freed may be used again.
//!
//! A reader takes no lock, so it may still look at an item whose segment another worker has just
//! freed. Each worker therefore announces once per batch of events that it begins anew
//! ([`Eras::enter`]) or holds nothing ([`Eras::leave`]); memory retired in era `e` is used again
//! when every worker has left or entered after `e`. Nothing is paid per operation. (Epoch-based
//! reclamation; DESIGN decision 6.)
//!
//! What it never does: free anything itself, wait, allocate after it was made.
//!
//! *Thread safety*: all methods take `&self`; `enter` and `leave` of one worker are called by that
//! worker alone.
//!
//! *Invariants*: the era only grows. A worker's slot is zero (it holds nothing) or the era at which
//! it entered. Either a retiring worker sees another's slot, or that other, entering later, sees
//! the index without the retired items: both sides put a sequentially consistent fence between
//! their store and their load.

use nyx_base::{CachePadded, WorkerId};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence};

/// Where a worker that holds nothing stands.
const AWAY: u64 = 0;

/// The eras of one process: shared by all tenants and all workers.
#[derive(Debug)]
pub struct Eras {
    era: CachePadded<AtomicU64>,
    workers: Box<[CachePadded<AtomicU64>]>,
}

impl Eras {
    /// Eras for `workers` workers, all of them away.
    pub fn new(workers: u16) -> Eras {
        Eras {
            era: CachePadded(AtomicU64::new(AWAY + 1)),
            workers: (0..workers)
                .map(|_| CachePadded(AtomicU64::new(AWAY)))
                .collect(),
        }
    }

    /// How many workers there are.
    pub fn workers(&self) -> u16 {
        self.workers.len() as u16
    }

    /// `worker` begins a batch: what it held before, it holds no more.
    ///
    /// Panics where the worker is not one of those that the eras were made for.
    #[inline]
    pub fn enter(&self, worker: WorkerId) {
        self.workers[worker.index()].store(self.era.load(Relaxed), Release);
        fence(SeqCst);
    }

    /// `worker` holds nothing until it enters again: call it before going idle.
    #[inline]
    pub fn leave(&self, worker: WorkerId) {
        self.workers[worker.index()].store(AWAY, Release);
    }

    /// Whether `worker` is within an era.
    #[inline]
    pub fn is_within(&self, worker: WorkerId) -> bool {
        self.workers[worker.index()].load(Relaxed) != AWAY
    }

    /// Ends the era: what was unlinked before this call may be used again once [`Eras::is_over`]
    /// says so of the era returned.
    pub fn retire(&self) -> u64 {
        self.era.fetch_add(1, SeqCst)
    }

    /// Whether no worker can still look at what was retired in `era`.
    pub fn is_over(&self, era: u64) -> bool {
        fence(SeqCst);
        self.workers.iter().all(|slot| {
            let entered = slot.load(SeqCst);
            entered == AWAY || entered > era
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_waits_for_every_worker_that_was_within() {
        let eras = Eras::new(2);
        let (a, b) = (WorkerId(0), WorkerId(1));
        eras.enter(a);
        let era = eras.retire();
        assert!(
            !eras.is_over(era),
            "a entered before the memory was retired"
        );
        eras.enter(b);
        assert!(!eras.is_over(era), "b does not matter, a still does");
        eras.enter(a);
        assert!(eras.is_over(era), "both entered after");
    }

    #[test]
    fn a_worker_that_left_holds_nothing() {
        let eras = Eras::new(1);
        eras.enter(WorkerId(0));
        let era = eras.retire();
        eras.leave(WorkerId(0));
        assert!(eras.is_over(era));
        assert!(!eras.is_within(WorkerId(0)));
    }
}
