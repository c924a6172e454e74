//! Every interleaving of a call and a fork, as the memory model allows them, where calls make the
//! barriers (a fork's cannot be told to loom; it is one between any two of a call's steps):
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p nyx-swap loom`

use super::*;
use ::loom::cell::UnsafeCell;
use ::loom::sync::Arc;
use ::loom::thread;

/// What the heap is: for who is inside, or a fork while the gate is closed.
struct Shared {
    gate: Gate,
    heap: UnsafeCell<u32>,
}

// SAFETY: loom itself says where two use it at once.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

fn shared() -> Arc<Shared> {
    Arc::new(Shared {
        gate: Gate {
            word: AtomicU32::new(FENCES),
            newest: AtomicPtr::new(std::ptr::null_mut()),
            free: AtomicU32::new(0),
        },
        heap: UnsafeCell::new(0),
    })
}

/// A call, as [`Gate::enter`] makes it but for the time.
fn call(shared: &Shared, place: &Place) {
    place.inside.store(1, Relaxed);
    while shared.gate.refuses(place).is_some() {
        place.inside.store(0, Release);
        thread::yield_now();
        place.inside.store(1, Relaxed);
    }
    let inside = Inside { place, outer: 0 };
    // SAFETY: see `Shared`.
    shared.heap.with_mut(|heap| unsafe { *heap += 1 });
    drop(inside);
}

/// A fork, as [`Gate::close`] makes it but for the time; whether it found nobody inside.
fn fork(shared: &Shared, own: &Place) -> bool {
    let closed = Closed::new(&shared.gate, own);
    let is_left = !shared.gate.is_anyone_inside(own);
    if is_left {
        // SAFETY: see `Shared`.
        shared.heap.with_mut(|heap| unsafe { *heap += 1 });
    }
    drop(closed);
    is_left
}

fn check(calls: u32) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(4);
    builder.check(move || {
        let all = shared();
        let other = all.clone();
        let thread = thread::spawn(move || {
            // Its place is made beside the fork.
            let place = other.gate.take().expect("memory");
            (0..calls).for_each(|_| call(&other, place));
        });
        let own = all.gate.take().expect("memory");
        let forks = u32::from(fork(&all, own));
        thread.join().expect("no panic");
        // SAFETY: nobody else is left.
        let uses = all.heap.with(|heap| unsafe { *heap });
        assert_eq!(uses, calls + forks);
    });
}

#[test]
fn loom_a_fork_and_a_call_are_never_at_the_heap_at_once() {
    check(1);
}

#[test]
fn loom_a_second_call_is_not_either() {
    check(2);
}
