//! The one switch between real atomics and loom's, so that a model checker can drive the very code
//! that serves. It adds nothing of its own except how to wait.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

/// An `AtomicU32` that shuttle has too.
#[cfg(not(shuttle))]
pub(crate) use AtomicU32 as HalfWord;
/// An `AtomicU64` that shuttle has too, for what is run there.
pub(crate) use nyx_media::pmem::Word;
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::AtomicU32 as HalfWord;

use nyx_base::CachePadded;

/// Locks. A holder that panicked ends the process or the test; nobody goes on with what it left.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder panics")
}

/// Locks that many things share, each by a number.
#[derive(Debug)]
pub(crate) struct Locks(Box<[CachePadded<Mutex<()>>]>);

impl Locks {
    pub(crate) fn new(count: usize) -> Locks {
        Locks((0..count).map(|_| CachePadded(Mutex::new(()))).collect())
    }

    fn place(&self, of: u64) -> usize {
        (of % self.0.len() as u64) as usize
    }

    pub(crate) fn lock(&self, of: u64) -> MutexGuard<'_, ()> {
        lock(&self.0[self.place(of)])
    }

    /// Both, in the order of locks; they may be one.
    pub(crate) fn lock_both(&self, one: u64, other: u64) -> [Option<MutexGuard<'_, ()>>; 2] {
        let (one, other) = (self.place(one), self.place(other));
        let first = lock(&self.0[one.min(other)]);
        let second = (one != other).then(|| lock(&self.0[one.max(other)]));
        [Some(first), second]
    }
}

/// Waits a little for another thread that does bounded work; after some turns it lets the operating
/// system run that thread, since it may have been preempted.
pub(crate) struct Wait {
    #[cfg(not(any(loom, shuttle)))]
    backoff: crossbeam_utils::Backoff,
}

impl Wait {
    #[inline]
    pub(crate) fn new() -> Wait {
        Wait {
            #[cfg(not(any(loom, shuttle)))]
            backoff: crossbeam_utils::Backoff::new(),
        }
    }

    #[cold]
    pub(crate) fn turn(&mut self) {
        #[cfg(loom)]
        loom::thread::yield_now();
        #[cfg(shuttle)]
        shuttle::thread::yield_now();
        #[cfg(not(any(loom, shuttle)))]
        self.backoff.snooze();
    }
}
