//! Calls of the C library's heap, whose locks `fork` takes, and forks, which wait until no such
//! call is under way.
//!
//! A fork has the arena stand still first, and then takes the locks of the heap: its handlers are
//! called before it takes locks, so ours cannot have those first. A thread that has one may wait
//! for the fork with it: in a handler that came in the middle of the call and changes mappings or
//! touches the arena, or at any word where its stack is in the arena. So each thread says in a
//! *place* of its own, which no other thread writes to, that it is inside such a call. A fork
//! closes the gate, has those that come then wait outside, and goes on when nobody is inside.
//!
//! * A handler in the middle of a call that makes another one passes: the fork waits for it anyway.
//! * Who forks handles signals while he waits, and has no lock of the arena's: a handler inside may
//!   need that, and a collector that stops all threads by signals waits for each of them.
//! * Nobody waits for good. Who is inside may wait for a thread that stands outside, so the gate is
//!   opened again every now and then, until the fork gives up on who stays inside. And the fork may
//!   wait for another lock that a thread outside has (NSS's), so a call gives up on a gate that
//!   stays closed. What they do then is what they would do without a gate.
//!
//! A call costs two stores to its thread's own line, and a look at a word that only forks write to.
//! Between the first store and the look belongs a barrier, else a processor may look first: the
//! call sees no fork, and the fork no call. The fork makes it, by `membarrier`: each thread that
//! runs then has one at some point between two instructions, and each that does not run has had
//! one. If that comes after the store the fork sees the call, else the look comes after it and sees
//! the fork. Where the system refuses `membarrier` the word is never zero ([`FENCES`]), so that
//! each call takes the long way, on which it makes the barrier itself.
//!
//! What it never does: set `errno`; free a place; bear a call that one thread begins and another
//! ends.
//!
//! *Invariants*: a place's count is written by its thread only, but for a fork that has given up
//! and a child, which has one thread; a call puts back what it found, so that either mends itself.
//!
//! *Thread safety*: all of it, in handlers of signals too, but that none may come in the middle of
//! [`Gate::take`].

#[cfg(loom)]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;

use super::Undisturbed;
#[cfg(loom)]
use ::loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, fence};
use rustix::thread::{MembarrierCommand, Timespec, membarrier, nanosleep};
use std::alloc::Layout;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::compiler_fence;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, fence};
use std::time::{Duration, Instant};

/// Calls make barriers themselves. The rest of the word is how many forks have the gate closed.
const FENCES: u32 = 1 << 31;

/// A fork has the gate closed so long, unless all leave before that,
const CLOSED_FOR: Duration = Duration::from_millis(10);
/// and then open so long, and so on.
const OPEN_FOR: Duration = Duration::from_millis(1);
/// It looks at the places that often.
const LOOK: Duration = Duration::from_micros(50);
/// It gives up on who is inside after so long: longer than slow disks take for a page.
const FORK_WAITS_MOST: Duration = match cfg!(test) {
    true => Duration::from_millis(500),
    false => Duration::from_secs(10),
};
/// A call gives up on the gate after so long: mostly longer than a fork takes until the child is
/// there.
const CALL_WAITS_MOST: Duration = Duration::from_secs(1);

/// See the module. Alone in its lines, as a place is in its own.
#[derive(Debug)]
#[repr(align(128))]
pub struct Gate {
    /// How many forks have it closed, and [`FENCES`].
    word: AtomicU32,
    /// The place that was made last, which knows the one before; none is ever taken out.
    newest: AtomicPtr<Place>,
    /// Places that no thread has: no fewer than there are, but for a moment.
    free: AtomicU32,
}

/// A thread's. Two cache lines: processors fetch them by twos.
#[derive(Debug)]
#[repr(align(128))]
pub struct Place {
    /// How many calls are under way, each in a handler in the middle of the one before.
    inside: AtomicU32,
    /// How many forks of its thread have the gate closed, likewise.
    closing: AtomicU32,
    is_taken: AtomicBool,
    older: AtomicPtr<Place>,
}

/// A call that is under way.
#[derive(Debug)]
#[must_use = "the call is over when this is dropped"]
pub struct Inside<'a> {
    place: &'a Place,
    /// As many were under way before.
    outer: u32,
}

/// The gate is closed, and nobody but this thread inside, as long as this lives.
#[derive(Debug)]
#[must_use = "the gate opens when this is dropped"]
pub struct Closed<'a> {
    gate: &'a Gate,
    own: &'a Place,
}

impl Gate {
    /// One without places.
    #[cfg(not(loom))]
    #[expect(clippy::new_without_default, reason = "it is a static's")]
    pub const fn new() -> Gate {
        Gate {
            word: AtomicU32::new(FENCES),
            newest: AtomicPtr::new(std::ptr::null_mut()),
            free: AtomicU32::new(0),
        }
    }

    /// Has forks make barriers for calls, where the system lets them; at any time, once.
    pub fn start(&self) {
        if membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok() {
            self.word.fetch_and(!FENCES, Release);
        }
    }

    /// A place for a thread that has none; none where there is no memory. The thread handles no
    /// signals meanwhile.
    pub fn take(&self) -> Option<&'static Place> {
        if self.free.load(Relaxed) > 0
            && let Some(place) = self.places().find(|place| place.is_taken_now())
        {
            self.free.fetch_sub(1, Relaxed);
            return Some(place);
        }
        // SAFETY: a place has a size.
        let at = unsafe { std::alloc::alloc(Layout::new::<Place>()) }.cast::<Place>();
        if at.is_null() {
            return None;
        }
        // SAFETY: so much was just given, and is never given back.
        let place: &'static Place = unsafe {
            at.write(Place::new());
            &*at
        };
        let mut newest = self.newest.load(Relaxed);
        loop {
            place.older.store(newest, Relaxed);
            // AcqRel: who comes by the newest to an older one is to see that one as it was made.
            match (self.newest).compare_exchange_weak(newest, at, AcqRel, Relaxed) {
                Ok(_) => return Some(place),
                Err(other) => newest = other,
            }
        }
    }

    /// Its thread ends: another may have the place.
    pub fn give_back(&self, place: &Place) {
        place.inside.store(0, Release);
        self.free.fetch_add(1, Relaxed);
        place.is_taken.store(false, Release);
    }

    /// Before a call, by the thread that has the place. Waits while a fork has the gate closed, for
    /// a while.
    #[inline]
    pub fn enter<'a>(&self, place: &'a Place) -> Inside<'a> {
        let outer = place.inside.load(Relaxed);
        place.inside.store(outer + 1, Relaxed);
        // For the compiler; the processor's is the fork's to make, or made on the long way.
        compiler_fence(SeqCst);
        if self.word.load(Acquire) != 0 && outer == 0 {
            self.enter_by_the_long_way(place);
        }
        Inside { place, outer }
    }

    #[cold]
    fn enter_by_the_long_way(&self, place: &Place) {
        let mut begun = None;
        while let Some(seen) = self.refuses(place) {
            let waited = begun.get_or_insert_with(Instant::now).elapsed();
            let Some(left) = CALL_WAITS_MOST.checked_sub(waited) else {
                return;
            };
            place.inside.store(0, Release);
            self.wait(seen, left);
            place.inside.store(1, Relaxed);
        }
    }

    /// What the word is where a call has to wait, whose place says that it is inside.
    fn refuses(&self, place: &Place) -> Option<u32> {
        fence(SeqCst);
        let seen = self.word.load(Acquire);
        // Who forks waits for no fork of his own.
        let is_closed = seen & !FENCES != 0 && place.closing.load(Relaxed) == 0;
        is_closed.then_some(seen)
    }

    /// Before a fork, by the thread that makes it and has that place. Waits until nobody else is
    /// inside, and handles signals meanwhile.
    pub fn close<'a>(&'a self, own: &'a Place) -> Closed<'a> {
        let until = Instant::now() + FORK_WAITS_MOST;
        loop {
            let closed = Closed::new(self, own);
            if self.is_left_within(CLOSED_FOR, own) {
                return closed;
            }
            if Instant::now() >= until {
                // Not to be waited for again: it may have been left by a jump out of a handler.
                let others = self.others(own);
                others.for_each(|place| place.inside.store(0, Relaxed));
                return closed;
            }
            drop(closed);
            pause(OPEN_FOR);
        }
    }

    fn is_left_within(&self, time: Duration, own: &Place) -> bool {
        let until = Instant::now() + time;
        while self.is_anyone_inside(own) {
            if Instant::now() >= until {
                return false;
            }
            pause(LOOK);
        }
        true
    }

    fn is_anyone_inside(&self, own: &Place) -> bool {
        let is_inside = |place: &Place| place.inside.load(Acquire) > 0;
        self.others(own).any(is_inside)
    }

    /// In the child of a fork, whose only thread has that place, or none: nobody else is inside, or
    /// has the gate closed.
    pub fn in_child(&self, own: Option<&'static Place>) {
        let closing = own.map_or(0, |own| own.closing.load(Relaxed));
        let word = self.word.load(Relaxed) & FENCES | closing;
        self.word.store(word, Relaxed);
        self.free.store(0, Relaxed);
        for place in self.places() {
            if own.is_none_or(|own| !std::ptr::eq(own, place)) {
                place.closing.store(0, Relaxed);
                self.give_back(place);
            }
        }
    }

    /// Makes the barrier for all calls that are under way, or about to be.
    fn barrier(&self) {
        fence(SeqCst);
        let is_ours = self.word.load(Relaxed) & FENCES == 0;
        if is_ours && membarrier(MembarrierCommand::PrivateExpedited).is_err() {
            // By a filter of system calls, from now on. What calls stored just now is seen soon:
            // no processor keeps it to itself for that long.
            self.word.fetch_or(FENCES, Relaxed);
            pause(OPEN_FOR);
        }
    }

    fn others(&self, own: &Place) -> impl Iterator<Item = &'static Place> {
        self.places()
            .filter(move |place| !std::ptr::eq(*place, own))
    }

    fn places(&self) -> impl Iterator<Item = &'static Place> + use<> {
        // SAFETY: null, or a place, which stays.
        let newest = unsafe { self.newest.load(Acquire).as_ref() };
        std::iter::successors(newest, |place| {
            // SAFETY: as above.
            unsafe { place.older.load(Relaxed).as_ref() }
        })
    }

    #[cfg(not(loom))]
    fn wait(&self, seen: u32, most: Duration) {
        use rustix::thread::futex;
        // Another value, a signal, or late: it is looked at again.
        let _ = futex::wait(
            &self.word,
            futex::Flags::PRIVATE,
            seen,
            Some(&timespec(most)),
        );
    }

    #[cfg(not(loom))]
    fn wake_all(&self) {
        use rustix::thread::futex;
        let woken = futex::wake(&self.word, futex::Flags::PRIVATE, i32::MAX as u32);
        woken.expect("who waits at an address of ours can be woken");
    }

    #[cfg(loom)]
    fn wait(&self, _: u32, _: Duration) {
        ::loom::thread::yield_now();
    }

    #[cfg(loom)]
    fn wake_all(&self) {}
}

impl Place {
    fn new() -> Place {
        Place {
            inside: AtomicU32::new(0),
            closing: AtomicU32::new(0),
            is_taken: AtomicBool::new(true),
            older: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Takes it where nobody has it.
    fn is_taken_now(&self) -> bool {
        !self.is_taken.load(Relaxed) && !self.is_taken.swap(true, Acquire)
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.place.inside.store(self.outer, Release);
    }
}

impl<'a> Closed<'a> {
    fn new(gate: &'a Gate, own: &'a Place) -> Closed<'a> {
        // A handler that forks is to see both or neither.
        let undisturbed = Undisturbed::new();
        own.closing.store(own.closing.load(Relaxed) + 1, Relaxed);
        gate.word.fetch_add(1, AcqRel);
        drop(undisturbed);
        gate.barrier();
        Closed { gate, own }
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let _undisturbed = Undisturbed::new();
        let closing = self.own.closing.load(Relaxed);
        self.own.closing.store(closing - 1, Relaxed);
        let seen = self.gate.word.fetch_sub(1, Release);
        if seen & !FENCES == 1 {
            self.gate.wake_all();
        }
    }
}

/// By the system's call, at which no thread is cancelled.
fn pause(time: Duration) {
    // A signal may end it early: who calls looks again.
    let _ = nanosleep(&timespec(time));
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    }
}
