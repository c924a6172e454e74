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

/// Locks. A holder that panicked ends the process or the test; nobody goes on with what it left.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder panics")
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
