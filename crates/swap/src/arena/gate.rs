//! Calls of the C library's that take a lock which `fork` takes too, on a stack of the arena.
//!
//! A fork has the arena stand still first, and then takes the lock of the C library's heap: its
//! handlers are called before it takes locks, so ours cannot have that one first. A thread that has
//! it, and whose stack is in the arena, would wait with it at the next word that it writes, and the
//! fork for the lock. So such calls are counted here. A fork waits until none is under way before
//! all stands still, and those that come meanwhile wait until it is over.
//!
//! It waits before it has the arena's own lock: a signal's handler in the middle of such a call may
//! need that.
//!
//! What it never does: allocate; set `errno`; bear a call within another, which would wait for a
//! fork that waits for the outer one.
//!
//! *Thread safety*: all of it.

use rustix::thread::futex;
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// A fork waits, or is under way; beside it calls are counted.
const CLOSED: u32 = 1 << 31;

/// See the module.
#[derive(Debug)]
pub(super) struct Gate(AtomicU32);

/// A call that is under way.
#[derive(Debug)]
pub(super) struct Inside<'a>(&'a Gate);

/// No call is under way as long as this lives, in a child that begins meanwhile neither.
#[derive(Debug)]
pub(super) struct Closed<'a>(&'a Gate);

impl Gate {
    pub(super) fn new() -> Gate {
        Gate(AtomicU32::new(0))
    }

    /// Before a call.
    pub(super) fn enter(&self) -> Inside<'_> {
        self.change_when_open(|calls| calls + 1);
        Inside(self)
    }

    /// Before a fork; waits until there is no other.
    pub(super) fn close(&self) -> Closed<'_> {
        self.change_when_open(|calls| calls | CLOSED);
        loop {
            match self.0.load(Acquire) {
                CLOSED => return Closed(self),
                seen => self.wait(seen),
            }
        }
    }

    fn change_when_open(&self, to: impl Fn(u32) -> u32) {
        let mut seen = self.0.load(Relaxed);
        loop {
            if seen & CLOSED != 0 {
                self.wait(seen);
                seen = self.0.load(Relaxed);
                continue;
            }
            match self
                .0
                .compare_exchange_weak(seen, to(seen), Acquire, Relaxed)
            {
                Ok(_) => return,
                Err(other) => seen = other,
            }
        }
    }

    fn wait(&self, seen: u32) {
        // Another value, or a signal: it is looked at again.
        let _ = futex::wait(&self.0, futex::Flags::PRIVATE, seen, None);
    }

    fn wake_all(&self) {
        let woken = futex::wake(&self.0, futex::Flags::PRIVATE, i32::MAX as u32);
        woken.expect("who waits at an address of ours can be woken");
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if self.0.0.fetch_sub(1, Release) == CLOSED + 1 {
            self.0.wake_all();
        }
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.0.store(0, Release);
        self.0.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Calls are counted; who has the gate closed sees none, whatever others do.
    #[test]
    fn no_call_is_under_way_while_it_is_closed() {
        let (gate, calls) = (Gate::new(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let _inside = gate.enter();
                        calls.fetch_add(1, Relaxed);
                        std::hint::spin_loop();
                        calls.fetch_sub(1, Relaxed);
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _closed = gate.close();
                        for _ in 0..50 {
                            assert_eq!(calls.load(Relaxed), 0);
                        }
                    }
                });
            }
        });
        assert_eq!(gate.0.load(Relaxed), 0);
    }

    #[test]
    fn who_closes_it_waits_for_a_call_and_one_that_comes_for_him() {
        let gate = Gate::new();
        let inside = gate.enter();
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| gate.close());
            while gate.0.load(Relaxed) & CLOSED == 0 {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(20));
            assert!(!closing.is_finished());
            drop(inside);
            let closed = closing.join().expect("it goes on");
            let coming = scope.spawn(|| drop(gate.enter()));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!coming.is_finished());
            drop(closed);
        });
    }
}
