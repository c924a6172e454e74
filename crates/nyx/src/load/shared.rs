//! What the threads of a run share: the phase that it is in, and figures to watch.
//!
//! What it never does: put two writers on one cache line.

use super::plan::Plan;
use super::tally::Tally;
use super::ycsb::records::Records;
use nyx_base::{CachePadded, Counter};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Instant;

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Keys are being stored.
    Fill,
    /// Requests go, nothing counts.
    WarmUp,
    /// Requests go and count.
    Measure,
    /// No further requests.
    Stop,
}

/// What the threads of a run share.
///
/// *Thread safety*: the phase is written by the main thread alone; each thread writes its own
/// figures.
#[derive(Debug)]
pub(crate) struct Shared {
    phase: AtomicU8,
    /// How many threads have stored their keys.
    pub(crate) filled: AtomicUsize,
    /// How many threads have sent all that they should.
    pub(crate) done: AtomicUsize,
    /// By thread.
    pub(crate) figures: Vec<CachePadded<Figures>>,
    /// The records of a run of YCSB.
    pub(crate) records: Records,
    /// What all threads measure their times from.
    epoch: Instant,
    /// Whether somebody watches the run.
    pub(crate) watched: bool,
}

/// One thread's figures while it runs.
#[derive(Debug)]
pub(crate) struct Figures {
    /// Keys finished since the thread began.
    pub(crate) keys: Counter,
    /// Keys stored before it measures.
    pub(crate) filled: Counter,
    /// What was counted since somebody last took it; only while the run is watched.
    pub(crate) recent: Mutex<Tally>,
}

impl Shared {
    /// For the threads of `plan`. `watched` has them hand over figures while they run.
    pub(crate) fn new(plan: &Plan, watched: bool) -> Shared {
        let figures = || {
            CachePadded(Figures {
                keys: Counter::new(),
                filled: Counter::new(),
                recent: Mutex::new(plan.tally()),
            })
        };
        Shared {
            phase: AtomicU8::new(Phase::Fill as u8),
            filled: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            figures: (0..plan.threads).map(|_| figures()).collect(),
            records: Records::new(plan.tenants.first().map_or(0, |t| t.spec.keys)),
            epoch: Instant::now(),
            watched,
        }
    }

    /// Where the run stands.
    #[inline]
    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Fill,
            1 => Phase::WarmUp,
            2 => Phase::Measure,
            _ => Phase::Stop,
        }
    }

    /// Goes on to `phase`.
    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// Nanoseconds since the run began.
    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Keys finished so far, over all threads.
    pub(crate) fn keys(&self) -> u64 {
        self.figures.iter().map(|f| f.keys.get()).sum()
    }
}
