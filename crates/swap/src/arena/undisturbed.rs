//! A thread of the program that does something of ours which nothing of its own may come between:
//! a handler of a signal, which may touch the arena, or its being cancelled.
//!
//! What it never does: lose a signal; it comes afterwards.
//!
//! *Thread safety*: each is one thread's.

use crate::region::threads;
use libc::{c_int, sigset_t};

// SAFETY: such is its type in the C library.
unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// The C library's number.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// As long as this lives neither happens.
#[derive(Debug)]
pub struct Undisturbed {
    signals: sigset_t,
    cancel: c_int,
}

impl Undisturbed {
    /// From now on.
    #[expect(clippy::new_without_default, reason = "it does something")]
    pub fn new() -> Undisturbed {
        let (signals, mut cancel) = (threads::block_signals(), 0);
        // SAFETY: the call writes to what it is given.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut cancel) };
        Undisturbed { signals, cancel }
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        let mut old = 0;
        // SAFETY: both calls read what was written above, in the thread that made it.
        unsafe {
            pthread_setcancelstate(self.cancel, &raw mut old);
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.signals,
                std::ptr::null_mut(),
            );
        }
    }
}
