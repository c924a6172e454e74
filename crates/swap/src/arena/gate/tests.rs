//! The gate on real threads, with barriers of forks and with those of calls.

use super::*;
use std::thread;

/// One whose forks make barriers, where this system has them, and one whose calls do.
fn both() -> [Gate; 2] {
    let gates = [Gate::new(), Gate::new()];
    gates[0].start();
    gates
}

/// Wakes one call that waits; how many that were.
fn wake_one(gate: &Gate) -> usize {
    use rustix::thread::futex;
    futex::wake(&gate.word, futex::Flags::PRIVATE, 1).expect("an address of ours")
}

/// Calls and forks at random, which count the calls that are under way.
fn calls_beside_forks(gate: &Gate) {
    let calls = std::sync::atomic::AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let place = gate.take().expect("memory");
                for _ in 0..50_000 {
                    let _inside = gate.enter(place);
                    calls.fetch_add(1, Relaxed);
                    // As in a handler.
                    drop(gate.enter(place));
                    calls.fetch_sub(1, Relaxed);
                }
                gate.give_back(place);
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let own = gate.take().expect("memory");
                for _ in 0..200 {
                    let _closed = gate.close(own);
                    for _ in 0..50 {
                        assert_eq!(calls.load(Relaxed), 0);
                    }
                }
                gate.give_back(own);
            });
        }
    });
    assert_eq!(gate.word.load(Relaxed) & !FENCES, 0);
    assert_eq!(gate.places().count(), gate.free.load(Relaxed) as usize);
}

#[test]
fn no_call_is_under_way_while_it_is_closed() {
    for gate in both() {
        calls_beside_forks(&gate);
    }
}

#[test]
fn a_call_in_another_passes_a_gate_that_waits_for_it() {
    for gate in both() {
        let [own, other] = [(); 2].map(|()| gate.take().expect("memory"));
        let inside = gate.enter(own);
        let closed = Closed::new(&gate, other);
        let begun = Instant::now();
        let nested = gate.enter(own);
        assert!(begun.elapsed() < CALL_WAITS_MOST, "it waited");
        assert!(gate.is_anyone_inside(other));
        drop(nested);
        assert!(gate.is_anyone_inside(other));
        drop(inside);
        assert!(!gate.is_anyone_inside(other));
        drop(closed);
    }
}

#[test]
fn a_call_waits_until_it_is_opened() {
    for gate in both() {
        let [own, other] = [(); 2].map(|()| gate.take().expect("memory"));
        let closed = gate.close(other);
        let is_open = AtomicBool::new(false);
        let begun = Instant::now();
        thread::scope(|scope| {
            let coming = scope.spawn(|| {
                let _inside = gate.enter(own);
                // Or it has given up, on a machine that stood still.
                assert!(is_open.load(Relaxed) || begun.elapsed() >= CALL_WAITS_MOST);
            });
            // Who is woken has waited, and waits again.
            while 0 == wake_one(&gate) && !coming.is_finished() {
                thread::yield_now();
            }
            is_open.store(true, Relaxed);
            drop(closed);
        });
        assert!(!gate.is_anyone_inside(other));
    }
}

#[test]
fn a_call_gives_up_on_a_gate_that_stays_closed() {
    let gate = Gate::new();
    let [own, other] = [(); 2].map(|()| gate.take().expect("memory"));
    let _closed = gate.close(other);
    let inside = gate.enter(own);
    assert!(gate.is_anyone_inside(other));
    drop(inside);
}

#[test]
fn a_fork_gives_up_on_who_stays_inside_once() {
    for gate in both() {
        let [own, other] = [(); 2].map(|()| gate.take().expect("memory"));
        std::mem::forget(gate.enter(other));
        drop(gate.close(own));
        // It is not waited for again,
        assert!(!gate.is_anyone_inside(own));
        // and what comes is seen.
        let _inside = gate.enter(other);
        assert!(gate.is_anyone_inside(own));
    }
}

#[test]
fn who_forks_passes_his_own_gate_and_the_child_has_only_what_is_his() {
    for gate in both() {
        let [own, other] = [(); 2].map(|()| gate.take().expect("memory"));
        std::mem::forget(Closed::new(&gate, other));
        std::mem::forget(gate.enter(other));
        // A fork, a handler in its middle that forks, and that one's child.
        let outer = Closed::new(&gate, own);
        let inner = Closed::new(&gate, own);
        gate.in_child(Some(own));
        assert!(!gate.is_anyone_inside(own));
        let begun = Instant::now();
        drop(gate.enter(own));
        assert!(begun.elapsed() < CALL_WAITS_MOST, "it waited");
        drop(inner);
        assert_eq!(gate.word.load(Relaxed) & !FENCES, 1);
        drop(outer);
        assert_eq!(gate.word.load(Relaxed) & !FENCES, 0);
        // What the others had is free.
        assert!(gate.take().is_some_and(|place| std::ptr::eq(place, other)));
        assert_eq!(gate.places().count(), 2);
    }
}

#[test]
fn places_of_threads_that_ended_are_taken_again() {
    let gate = Gate::new();
    for _ in 0..100 {
        let places = [(); 3].map(|()| gate.take().expect("memory"));
        places.into_iter().for_each(|place| gate.give_back(place));
    }
    assert_eq!(gate.places().count(), 3);
}
