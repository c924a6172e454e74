//! Virtual time for threads that run together: each has its own, and the one that is furthest
//! behind runs, for one operation at least. So what they share, the device's bandwidth, is shared
//! as it would be; that one waits for a lock that another holds is left out, because operations are
//! not interrupted.
//!
//! What it never does: read a clock.

use crate::THREADS_MAX;
use crate::rig::Pace;
use nyx_base::{Clock, Instant};
use nyx_media::observed::{Observer, observe};
use std::cell::Cell;
use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// How far one may run ahead of another, in nanoseconds: about an operation.
const AHEAD_NS: u64 = 1_000;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
    static THREAD: Cell<usize> = const { Cell::new(0) };
}

/// See the module.
#[derive(Clone, Default)]
pub(crate) struct Virtual(Arc<Shared>);

#[derive(Default)]
struct Shared {
    turns: Mutex<Turns>,
    /// One for each thread: it is its turn.
    its_turn: [Condvar; THREADS_MAX],
    /// Who is told of reads of DRAM.
    observer: OnceLock<Arc<dyn Observer + Send + Sync>>,
}

#[derive(Default)]
struct Turns {
    /// The time of each thread that has more to do.
    times: Vec<Option<u64>>,
    running: usize,
    /// All time before this is over.
    past: u64,
}

impl Turns {
    /// The thread that is furthest behind, and its time.
    fn last(&self) -> Option<(u64, usize)> {
        let times = self.times.iter().enumerate();
        times
            .filter_map(|(thread, time)| time.map(|time| (time, thread)))
            .min()
    }
}

impl Virtual {
    /// Threads that begin have their reads of DRAM told to `observer`. To be said once.
    pub(crate) fn tell(&self, observer: Arc<dyn Observer + Send + Sync>) {
        assert!(self.0.observer.set(observer).is_ok(), "said twice");
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.0.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the thread that is furthest behind run.
    fn pass_on(&self, turns: &mut Turns) {
        if let Some((_, last)) = turns.last() {
            turns.running = last;
            self.0.its_turn[last].notify_one();
        }
    }

    fn wait<'t>(&self, mut turns: MutexGuard<'t, Turns>, thread: usize) {
        while turns.running != thread {
            turns = (self.0.its_turn[thread].wait(turns)).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Clock for Virtual {
    fn now(&self) -> Instant {
        Instant(NOW.get())
    }

    fn spin_until(&self, until: Instant) {
        NOW.set(NOW.get().max(until.0));
    }
}

/// A thread that has its turns until this is dropped.
pub(crate) struct Running(Virtual);

impl Drop for Running {
    fn drop(&mut self) {
        observe(None);
        let mut turns = self.0.turns();
        turns.past = turns.past.max(NOW.get());
        turns.times[THREAD.get()] = None;
        self.0.pass_on(&mut turns);
    }
}

impl Pace for Virtual {
    type Running = Running;

    fn prepare(&self, threads: u16) {
        let mut turns = self.turns();
        turns.past = turns.past.max(NOW.get());
        turns.times = vec![Some(turns.past); threads.into()];
        turns.running = 0;
    }

    fn begin(&self, thread: u16) -> Running {
        let turns = self.turns();
        NOW.set(turns.times[usize::from(thread)].unwrap_or(turns.past));
        THREAD.set(thread.into());
        self.wait(turns, thread.into());
        let observer = self.0.observer.get().cloned();
        observe(observer.map(|observer| observer as Arc<dyn Observer>));
        Running(self.clone())
    }

    /// Threads need not meet: none gets far ahead.
    fn meet(&self, _: &Barrier) {}

    fn turn(&self, now: u64) -> u64 {
        let thread = THREAD.get();
        let mut turns = self.turns();
        turns.times[thread] = Some(now);
        if turns.last().is_some_and(|(time, _)| now > time + AHEAD_NS) {
            self.pass_on(&mut turns);
            self.wait(turns, thread);
        }
        NOW.get()
    }

    fn cpu_ns(&self) -> f64 {
        NOW.get() as f64
    }
}
