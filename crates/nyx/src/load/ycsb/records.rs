//! The records of a run of YCSB: which numbers are there, while clients insert further ones.
//!
//! Inserts that are under way may be done in any order; only what lies below all of them is there
//! for readers (the acknowledged counter of YCSB's workload D).
//!
//! *Thread safety*: any thread may do anything at any time. *Invariant*: a number below
//! [`Records::there`] was stored, or its insert was refused.
//!
//! What it never does: give a number twice.

use nyx_sim::workload::ycsb;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The records of a run.
#[derive(Debug)]
pub(crate) struct Records {
    there: AtomicU64,
    inserts: Mutex<Inserts>,
}

#[derive(Debug)]
struct Inserts {
    /// The number of the next one.
    next: u64,
    /// Those without a reply: few, since they are few of the requests that are under way.
    under_way: Vec<u64>,
}

impl Records {
    /// Records `0..count`.
    pub(crate) fn new(count: u64) -> Records {
        Records {
            there: AtomicU64::new(count),
            inserts: Mutex::new(Inserts {
                next: count,
                under_way: Vec::new(),
            }),
        }
    }

    /// All records below this number are there.
    #[inline]
    pub(crate) fn there(&self) -> u64 {
        self.there.load(Ordering::Acquire)
    }

    /// All numbers below this one were given.
    pub(crate) fn taken(&self) -> u64 {
        self.lock().next
    }

    /// The number of a record that is to be inserted.
    pub(crate) fn take(&self) -> u64 {
        let mut inserts = self.lock();
        let number = inserts.next;
        inserts.next += 1;
        inserts.under_way.push(number);
        number
    }

    /// The insert of the record with this key has its reply.
    pub(crate) fn done(&self, key: u64) {
        let mut inserts = self.lock();
        inserts.under_way.retain(|&number| ycsb::key(number) != key);
        let oldest = inserts.under_way.iter().min().copied();
        let there = oldest.unwrap_or(inserts.next);
        self.there.store(there, Ordering::Release);
    }

    /// The lock of a thread that panicked in here cannot be half changed.
    fn lock(&self) -> MutexGuard<'_, Inserts> {
        self.inserts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_there_when_all_before_it_are() {
        let records = Records::new(10);
        assert_eq!((records.there(), records.taken()), (10, 10));
        let numbers = [records.take(), records.take(), records.take()];
        assert_eq!(numbers, [10, 11, 12]);
        for (number, there) in [(11, 10), (10, 12), (12, 13)] {
            records.done(ycsb::key(number));
            assert_eq!(records.there(), there, "after {number}");
        }
        assert_eq!(records.taken(), 13);
    }
}
