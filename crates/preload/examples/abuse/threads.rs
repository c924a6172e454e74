//! Threads, locks, signals and stacks in memory that comes and goes.
//!
//! Thread safety: each case says who may touch what.
//!
//! What it never does: rest on how threads interleave.

use crate::Case;
use crate::memory::{Block, KIB, MIB, PAGE, press, stamp, word};
use crate::protect::handle;
use crate::sys;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

pub(crate) const CASES: &[Case] = &[
    ("threads-own", own),
    ("threads-shared", shared),
    ("threads-map", mapping),
    ("threads-ended", ended),
    ("signal-touch", signal_touch),
    ("signal-stack", signal_stack),
    ("stacks", stacks),
    ("futexes", futexes),
    ("fork-while-writing", fork_while_writing),
    ("fork-at-once", fork_at_once),
    ("fork-busy", fork_busy),
];

/// 64 threads, each with memory of its own and a model of it.
fn own() {
    std::thread::scope(|scope| {
        for number in 0..64u64 {
            scope.spawn(move || {
                let block = Block::map(256 * KIB);
                let mut model = [0u64; 64];
                let mut rng = fastrand::Rng::with_seed(number);
                for _ in 0..300 {
                    let page = rng.usize(..64);
                    let at = word(block.at + page * PAGE + page % 8 * 64);
                    assert_eq!(at.load(Relaxed), model[page], "page {page} of {number}");
                    model[page] = rng.u64(..);
                    at.store(model[page], Relaxed);
                }
                block.unmap();
            });
        }
    });
}

/// What all count on the same pages adds up.
fn shared() {
    let block = Block::map(4 * MIB);
    std::thread::scope(|scope| {
        for number in 0..8 {
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(number);
                for _ in 0..4_000 {
                    let at = block.at + rng.usize(..1024) * PAGE;
                    word(at).fetch_add(1, SeqCst);
                }
            });
        }
    });
    let pages = (0..1024).map(|page| word(block.at + page * PAGE).load(SeqCst));
    assert_eq!(pages.sum::<u64>(), 32_000);
}

/// Maps come, move, change and go in several threads at once.
fn mapping() {
    std::thread::scope(|scope| {
        for number in 0..8u64 {
            scope.spawn(move || {
                for round in 0..12 {
                    let seed = number * 100 + round;
                    let block = Block::filled(256 * KIB, seed);
                    let at = sys::mremap(block.at, block.len, MIB, libc::MREMAP_MAYMOVE, 0);
                    let block = Block {
                        at: at.expect("moved"),
                        len: MIB,
                    };
                    block.check(0..256 * KIB, seed);
                    sys::munmap(block.at + 64 * KIB, 64 * KIB).expect("a hole");
                    let advice = libc::MADV_DONTNEED;
                    sys::madvise(block.at, 16 * KIB, advice).expect("dropped");
                    block.zero(0..16 * KIB);
                    block.check(16 * KIB..64 * KIB, seed);
                    block.check(128 * KIB..256 * KIB, seed);
                    block.zero(256 * KIB..MIB);
                    // The hole may be another thread's by now.
                    sys::munmap(block.at, 64 * KIB).expect("unmapped");
                    let behind = block.len - 128 * KIB;
                    sys::munmap(block.at + 128 * KIB, behind).expect("unmapped");
                }
            });
        }
    });
}

/// Threads that ended leave nothing: not even as much as a cache line for each.
fn ended() {
    let many = |count| {
        for _ in 0..count {
            let thread = std::thread::spawn(|| std::hint::black_box(vec![1u8; 100]).len());
            assert_eq!(thread.join().ok(), Some(100));
        }
    };
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("read");
        let pages = statm.split(' ').nth(1).map(str::parse::<usize>);
        pages.and_then(Result::ok).expect("a number") * PAGE
    };
    many(500);
    let before = resident();
    many(20_000);
    let grown = resident().saturating_sub(before);
    assert!(grown < MIB, "by {grown} bytes");
}

static TARGET: AtomicUsize = AtomicUsize::new(0);
static SIGNALS: AtomicUsize = AtomicUsize::new(0);

/// Counts on a page of the block that the program pages.
extern "C" fn on_signal(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let count = SIGNALS.fetch_add(1, SeqCst);
    word(TARGET.load(SeqCst) + count % 256 * PAGE + 8).fetch_add(1, SeqCst);
}

/// Signals strike where a thread waits for a page, and touch others.
fn signal_touch() {
    let block = Block::map(MIB);
    TARGET.store(block.at, SeqCst);
    handle(libc::SIGUSR1, on_signal, libc::SA_RESTART);
    // SAFETY: the calling thread, which outlives who sends.
    let main = unsafe { libc::pthread_self() };
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sent = 0;
            while !is_done.load(SeqCst) || sent < 100 {
                // SAFETY: a thread that lives.
                assert_eq!(unsafe { libc::pthread_kill(main, libc::SIGUSR1) }, 0);
                sent += 1;
                // Signals that are not heard of one by one merge.
                let seen = SIGNALS.load(SeqCst);
                while SIGNALS.load(SeqCst) == seen && !is_done.load(SeqCst) {
                    std::thread::yield_now();
                }
            }
        });
        let other = Block::map(4 * MIB);
        for round in 0..6 {
            other.fill(0..other.len, round);
            other.check(0..other.len, round);
        }
        is_done.store(true, SeqCst);
        sender.join().expect("sent");
    });
    let pages = (0..256).map(|page| word(block.at + page * PAGE + 8).load(SeqCst));
    assert_eq!(pages.sum::<u64>(), SIGNALS.load(SeqCst) as u64);
}

/// The stack of signal handlers is paged itself.
fn signal_stack() {
    let (stack, block) = (Block::map(256 * KIB), Block::map(MIB));
    TARGET.store(block.at, SeqCst);
    let new = libc::stack_t {
        ss_sp: ptr::with_exposed_provenance_mut(stack.at),
        ss_flags: 0,
        ss_size: stack.len,
    };
    // SAFETY: memory that lives as long as the process.
    let said = unsafe { libc::sigaltstack(&raw const new, ptr::null_mut()) };
    assert_eq!(said, 0);
    handle(libc::SIGUSR2, on_signal, libc::SA_ONSTACK);
    for round in 0..20 {
        if round % 4 == 0 {
            press();
        }
        // SAFETY: a signal that is handled.
        assert_eq!(unsafe { libc::raise(libc::SIGUSR2) }, 0);
    }
    assert_eq!(SIGNALS.load(SeqCst), 20);
}

/// Goes down with something of its own on each level.
fn descend(depth: u64) -> u64 {
    let mut own = [depth; 128];
    std::hint::black_box(&mut own);
    let below = match depth {
        0 => 0,
        depth => descend(depth - 1),
    };
    std::hint::black_box(&own);
    assert!(own.iter().all(|&word| word == depth), "level {depth}");
    below + own[depth as usize % 128]
}

extern "C" fn on_own_stack(_: *mut libc::c_void) -> *mut libc::c_void {
    for _ in 0..3 {
        assert_eq!(descend(1_500), 1_500 * 1_501 / 2);
        press();
    }
    ptr::null_mut()
}

/// Threads run on stacks that the program mapped for them.
fn stacks() {
    let mut threads = Vec::new();
    for _ in 0..3 {
        let stack = Block::map(8 * MIB);
        // SAFETY: an attribute is made before it is used, and the stack outlives its thread.
        unsafe {
            let mut attr = std::mem::zeroed();
            assert_eq!(libc::pthread_attr_init(&raw mut attr), 0);
            let first = ptr::with_exposed_provenance_mut(stack.at);
            let said = libc::pthread_attr_setstack(&raw mut attr, first, stack.len);
            assert_eq!(said, 0);
            let mut thread = 0;
            let null = ptr::null_mut();
            let said = libc::pthread_create(&raw mut thread, &raw const attr, on_own_stack, null);
            assert_eq!(said, 0);
            threads.push(thread);
        }
    }
    for thread in threads {
        // SAFETY: a thread that nobody else waits for.
        assert_eq!(unsafe { libc::pthread_join(thread, ptr::null_mut()) }, 0);
    }
}

/// A ball goes round among threads that wait on a lock and a condition in paged memory.
fn futexes() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 60;
    let block = Block::map(MIB);
    let lock = ptr::with_exposed_provenance_mut::<libc::pthread_mutex_t>(block.at);
    let condition = ptr::with_exposed_provenance_mut::<libc::pthread_cond_t>(block.at + 512 * KIB);
    // SAFETY: room that nobody uses yet.
    unsafe {
        assert_eq!(libc::pthread_mutex_init(lock, ptr::null()), 0);
        assert_eq!(libc::pthread_cond_init(condition, ptr::null()), 0);
    }
    let (lock, condition) = (lock.expose_provenance(), condition.expose_provenance());
    let ball = word(block.at + MIB - 8);
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            scope.spawn(move || {
                let lock = ptr::with_exposed_provenance_mut(lock);
                let condition = ptr::with_exposed_provenance_mut(condition);
                let other = Block::map(512 * KIB);
                for round in 0..ROUNDS {
                    other.touch(round);
                    // SAFETY: both are made and outlive this thread.
                    unsafe {
                        assert_eq!(libc::pthread_mutex_lock(lock), 0);
                        while ball.load(Relaxed) % THREADS != number {
                            assert_eq!(libc::pthread_cond_wait(condition, lock), 0);
                        }
                        ball.store(ball.load(Relaxed) + 1, Relaxed);
                        assert_eq!(libc::pthread_cond_broadcast(condition), 0);
                        assert_eq!(libc::pthread_mutex_unlock(lock), 0);
                    }
                }
            });
        }
    });
    assert_eq!(ball.load(Relaxed), THREADS * ROUNDS);
}

/// A child sees one moment: who writes first one word and then another far away is never seen to
/// have written the other alone.
fn fork_while_writing() {
    const WRITERS: usize = 3;
    let block = Block::map(4 * MIB);
    let pairs = block.len / PAGE / 2;
    let is_done = AtomicBool::new(false);
    let first = |pair: usize| word(block.at + pair * PAGE);
    let second = |pair: usize| word(block.at + (2 * pairs - 1 - pair) * PAGE + 16);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (is_done, first, second) = (&is_done, &first, &second);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(writer as u64);
                while !is_done.load(SeqCst) {
                    let pair = rng.usize(..pairs / WRITERS) * WRITERS + writer;
                    let next = first(pair).load(SeqCst) + 1;
                    first(pair).store(next, SeqCst);
                    second(pair).store(next, SeqCst);
                }
            });
        }
        for _ in 0..8 {
            let child = sys::fork(|| {
                let read = |pair| (first(pair).load(SeqCst), second(pair).load(SeqCst));
                let is_torn = |(a, b): (u64, u64)| a != b && a != b + 1;
                let torn = (0..pairs).filter(|&pair| is_torn(read(pair))).count();
                // Only one pair of each writer is half written.
                let half = (0..pairs).filter(|&pair| read(pair).0 != read(pair).1);
                let is_right = torn == 0 && half.count() <= WRITERS;
                // Nobody writes in a child but the child.
                (0..pairs).for_each(|pair| first(pair).store(7, SeqCst));
                let is_own = (0..pairs).all(|pair| first(pair).load(SeqCst) == 7);
                i32::from(!is_right) + 2 * i32::from(!is_own)
            });
            sys::passed(child);
        }
        is_done.store(true, SeqCst);
    });
    for pair in 0..pairs {
        assert_eq!(first(pair).load(SeqCst), second(pair).load(SeqCst));
    }
}

/// Several threads fork at once; children fork again.
fn fork_at_once() {
    std::thread::scope(|scope| {
        for number in 0..4u64 {
            scope.spawn(move || {
                let block = Block::filled(512 * KIB, number);
                for round in 0..3 {
                    sys::passed(sys::fork(|| {
                        block.check(0..block.len, number);
                        block.fill(0..block.len, number + 100);
                        sys::passed(sys::fork(|| {
                            block.check(0..block.len, number + 100);
                            block.fill(0..block.len, number + 200);
                            0
                        }));
                        block.check(0..block.len, number + 100);
                        // New memory of a child, all ways.
                        let new = Block::filled(MIB, round);
                        let heap = crate::heap::malloc(MIB);
                        heap.fill(0..MIB, round);
                        new.check(0..MIB, round);
                        heap.check(0..MIB, round);
                        crate::heap::free(heap);
                        new.unmap();
                        block.unmap();
                        0
                    }));
                    block.check(0..block.len, number);
                }
            });
        }
    });
}

/// Others map, unmap and move while one forks.
fn fork_busy() {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..3u64 {
            let is_done = &is_done;
            scope.spawn(move || {
                let mut round = 0;
                while !is_done.load(SeqCst) {
                    round += 1;
                    let block = Block::filled(256 * KIB, number + round);
                    let at = sys::mremap(block.at, block.len, MIB, libc::MREMAP_MAYMOVE, 0);
                    let moved = Block {
                        at: at.expect("moved"),
                        len: MIB,
                    };
                    moved.check(0..256 * KIB, number + round);
                    let heap = crate::heap::malloc(200 * KIB);
                    heap.fill(0..heap.len, round);
                    heap.check(0..heap.len, round);
                    crate::heap::free(heap);
                    moved.unmap();
                }
            });
        }
        let kept = Block::filled(2 * MIB, 5);
        for _ in 0..10 {
            sys::passed(sys::fork(|| {
                kept.check(0..kept.len, 5);
                word(kept.at).store(stamp(6, 0), Relaxed);
                0
            }));
            kept.check(0..kept.len, 5);
        }
        is_done.store(true, SeqCst);
    });
}
