//! Which share of the calls is of a kind, followed closely enough to switch by it.
//!
//! What it never does: lock a line of memory for a count. So whoever counts at the same time as
//! another may be forgotten: no figure of it is exact.

use nyx_base::CachePadded;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts are kept in so many places.
pub(crate) const TALLIES: u64 = 16;
/// After so many calls the share is judged.
const JUDGED: u64 = 4096;

/// See the module.
#[derive(Debug)]
pub(crate) struct Share(Box<[CachePadded<Tally>]>);

/// Some of the calls.
#[derive(Debug, Default)]
struct Tally {
    calls: AtomicU64,
    /// Calls of the kind.
    ones: AtomicU64,
    /// The same when last judged.
    judged: AtomicU64,
}

/// What is known after a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    /// Calls that were counted in the same place.
    pub(crate) calls: u64,
    /// The share of the kind among the last, now and then.
    pub(crate) share: Option<f64>,
}

impl Share {
    pub(crate) fn new() -> Share {
        Share((0..TALLIES).map(|_| CachePadded::default()).collect())
    }

    /// Counts a call, in the place of `number`.
    #[inline]
    pub(crate) fn tell(&self, number: u64, is_one: bool) -> Told {
        let tally = &self.0[(number % TALLIES) as usize];
        let calls = tally.calls.load(Relaxed) + 1;
        tally.calls.store(calls, Relaxed);
        let ones = tally.ones.load(Relaxed) + u64::from(is_one);
        tally.ones.store(ones, Relaxed);
        let share = calls.is_multiple_of(JUDGED).then(|| {
            let new = ones.saturating_sub(tally.judged.swap(ones, Relaxed));
            new as f64 / JUDGED as f64
        });
        Told { calls, share }
    }

    /// Calls of the kind, and all.
    pub(crate) fn counts(&self) -> (u64, u64) {
        self.0.iter().fold((0, 0), |(ones, calls), tally| {
            let (some, all) = (tally.ones.load(Relaxed), tally.calls.load(Relaxed));
            (ones + some, calls + all)
        })
    }
}
