//! The one switch between real atomics and loom's, so that a model checker can drive the very code
//! that serves. It adds nothing of its own except how to wait, and locks that many things share.

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

/// Locks. A holder that panicked ends the process or the test; nobody goes on with what it left.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder panics")
}

/// Locks that many things share, each by a number, and hold for as long as a change of them takes:
/// mostly microseconds, so that who waits does not sleep.
///
/// A lock is given back by a store, which is no barrier: what its holder reads next may be read
/// before others see what it changed. (A mutex gives it back by an exchange, for which an x86 core
/// waits until all that it stored, and wrote back, is where it belongs: some 100 ns after a change
/// of persistent memory, in which it could begin with what comes next.)
///
/// Eight are in a cache line, so that a thousand stay in the caches beside an index: a line for
/// each would be fetched from the last level again and again. Holders are few and numbers are
/// hashes, so that two seldom want a line at once.
#[derive(Debug)]
pub(crate) struct Locks(Box<[Word]>);

const FREE: u64 = 0;
const HELD: u64 = 1;
/// Its holder panicked.
const LEFT: u64 = 2;

/// One of [`Locks`], until it is dropped.
#[derive(Debug)]
#[must_use = "it is given back when this is dropped"]
pub(crate) struct Locked<'l>(&'l Word);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let after = if std::thread::panicking() { LEFT } else { FREE };
        self.0.store(after, Ordering::Release);
    }
}

impl Locks {
    /// So many, a power of two.
    pub(crate) fn new(count: usize) -> Locks {
        assert!(count.is_power_of_two(), "{count} locks");
        Locks((0..count).map(|_| Word::new(FREE)).collect())
    }

    #[inline]
    fn place(&self, of: u64) -> usize {
        of as usize & (self.0.len() - 1)
    }

    #[inline]
    pub(crate) fn lock(&self, of: u64) -> Locked<'_> {
        self.lock_at(self.place(of))
    }

    /// Has it on its way for [`Locks::is_held`].
    #[inline]
    pub(crate) fn prefetch(&self, of: u64) {
        nyx_media::prim::prefetch(std::ptr::from_ref(&self.0[self.place(of)]).cast(), 1);
    }

    /// Whether somebody holds it now. Where nobody does, all that its last holder changed is seen.
    #[inline]
    pub(crate) fn is_held(&self, of: u64) -> bool {
        self.0[self.place(of)].load(Ordering::Acquire) != FREE
    }

    /// Both, in the order of locks; they may be one.
    pub(crate) fn lock_both(&self, one: u64, other: u64) -> [Option<Locked<'_>>; 2] {
        let (one, other) = (self.place(one), self.place(other));
        let first = self.lock_at(one.min(other));
        let second = (one != other).then(|| self.lock_at(one.max(other)));
        [Some(first), second]
    }

    #[inline]
    fn lock_at(&self, place: usize) -> Locked<'_> {
        let word = &self.0[place];
        let mut wait = Wait::new();
        while let Err(now) = word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
        {
            assert!(now != LEFT, "no holder panics");
            wait.turn();
        }
        Locked(word)
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use Ordering::Relaxed;

    #[test]
    fn one_at_a_time_holds_a_lock_and_two_that_share_one_are_one() {
        const TURNS: u64 = 20_000;
        let (locks, count) = (Locks::new(2), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (locks, count) = (&locks, &count);
                scope.spawn(move || {
                    for turn in 0..TURNS {
                        // In either order, and one of them twice.
                        let _held = match turn % 3 {
                            0 => locks.lock_both(thread, 1 - thread),
                            1 => locks.lock_both(0, 2),
                            _ => [Some(locks.lock(4)), None],
                        };
                        count.store(count.load(Relaxed) + 1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 2 * TURNS);
    }

    #[test]
    fn what_a_holder_left_that_panicked_nobody_takes() {
        let locks = Locks::new(1);
        let panicked = |work: &(dyn Fn() + Sync)| {
            std::thread::scope(|scope| scope.spawn(work).join().is_err())
        };
        assert!(panicked(&|| {
            let _held = locks.lock(0);
            panic!("as it should");
        }));
        assert!(panicked(&|| drop(locks.lock(0))));
    }
}
