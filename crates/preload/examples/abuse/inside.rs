//! What comes while a thread is inside the C library's `malloc`, and has its lock: a signal whose
//! handler changes maps, and a fork, which takes that lock.
//!
//! Thread safety: each case says who may touch what.
//!
//! What it never does: rest on how threads interleave; a run that hangs is ended by who runs it.

use crate::Case;
use crate::between::Over;
use crate::memory::{Block, KIB, MIB, PAGE};
use crate::protect::handle;
use crate::sys::{self, PRIVATE, RW};
use std::ffi::{c_int, c_void};
use std::os::unix::thread::JoinHandleExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

pub(crate) const CASES: &[Case] = &[
    ("signal-inside", signal_inside),
    ("fork-inside", fork_inside),
    ("fork-inside-coroutine", fork_inside_coroutine),
    ("fork-inside-signal", fork_inside_signal),
    ("fork-inside-handler", fork_inside_handler),
    ("fork-inside-trim", fork_inside_trim),
    ("fork-inside-collector", fork_inside_collector),
];

/// Takes and frees small memory, too large to be a thread's own, until it is told to end.
fn busy(is_over: &AtomicBool) {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut all = [ptr::null_mut(); 64];
    while !is_over.load(Relaxed) {
        let one = &mut all[rng.usize(..64)];
        // SAFETY: it is null, or what was given here before.
        unsafe {
            libc::free(*one);
            *one = libc::malloc(rng.usize(2 * KIB..64 * KIB));
        }
        assert!(!one.is_null());
    }
    // SAFETY: as above.
    all.into_iter().for_each(|one| unsafe { libc::free(one) });
}

/// What the handler changes, and how often it has.
static PLACE: AtomicUsize = AtomicUsize::new(0);
static CHANGED: AtomicUsize = AtomicUsize::new(0);
/// So often at most.
const CHANGES: usize = 3_000;

extern "C" fn change(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    // In its middle it is the program's own.
    let at = PLACE.load(Relaxed);
    sys::mprotect(at, MIB, libc::PROT_READ).expect("protected");
    sys::mprotect(at, MIB, RW).expect("as before");
    sys::madvise(at, MIB, libc::MADV_DONTNEED).expect("given back");
    let new = Block::map(512 * KIB);
    new.touch(1);
    sys::madvise(new.at, 256 * KIB, libc::MADV_DONTNEED).expect("given back");
    sys::munmap(new.at + 256 * KIB, 64 * KIB).expect("a hole");
    new.unmap();
    CHANGED.fetch_add(1, SeqCst);
}

/// From now on signals are handled so.
fn handle_changes() {
    let block = Block::map(MIB);
    let own = sys::mmap(
        block.at + 512 * KIB,
        PAGE,
        RW,
        PRIVATE | libc::MAP_FIXED,
        -1,
    );
    own.expect("its own");
    PLACE.store(block.at, Relaxed);
    handle(libc::SIGUSR1, change, libc::SA_RESTART);
}

/// Sends signals to a thread that is not joined yet, one after the other, until it is over
/// or there were enough.
fn signal_often(thread: libc::pthread_t, is_over: &AtomicBool) {
    let _over = Over(is_over);
    let mut rng = fastrand::Rng::with_seed(2);
    while !is_over.load(Relaxed) && CHANGED.load(SeqCst) < CHANGES {
        let changed = CHANGED.load(SeqCst);
        // SAFETY: the thread is there.
        assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
        while CHANGED.load(SeqCst) == changed && !is_over.load(Relaxed) {
            std::thread::yield_now();
        }
        (0..rng.u32(..20_000)).for_each(|_| std::hint::spin_loop());
    }
}

/// A signal comes anywhere in the C library's `malloc`, and its handler changes maps.
fn signal_inside() {
    handle_changes();
    // SAFETY: the calling thread, which outlives who sends.
    let main = unsafe { libc::pthread_self() };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| signal_often(main, &is_over));
        busy(&is_over);
    });
    assert_eq!(CHANGED.load(SeqCst), CHANGES);
}

static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Forks often, and has each child use the heap.
fn fork_often() {
    let _over = Over(&IS_OVER);
    let block = Block::filled(MIB, 3);
    for _ in 0..60 {
        let child = sys::fork(|| {
            for kib in [2, 40, 200] {
                crate::heap::free(crate::heap::malloc(kib * KIB));
            }
            i32::from(block.wrong(0..MIB, 3).is_some())
        });
        sys::passed(child);
    }
}

extern "C" fn busy_thread(_: *mut c_void) -> *mut c_void {
    busy(&IS_OVER);
    ptr::null_mut()
}

/// Threads whose stacks the program has mapped are inside `malloc` while another forks.
fn fork_inside() {
    let begin = |_| {
        let stack = Block::map(MIB);
        // SAFETY: an attribute is made before it is used, and the stack outlives its thread.
        unsafe {
            let (mut attr, mut thread) = (std::mem::zeroed(), 0);
            assert_eq!(libc::pthread_attr_init(&raw mut attr), 0);
            let first = ptr::with_exposed_provenance_mut(stack.at);
            let said = libc::pthread_attr_setstack(&raw mut attr, first, stack.len);
            assert_eq!(said, 0);
            let null = ptr::null_mut();
            let said = libc::pthread_create(&raw mut thread, &raw const attr, busy_thread, null);
            assert_eq!(said, 0);
            thread
        }
    };
    let threads = [(); 2].map(begin);
    // Not by the first thread: what the C library knows of that is in a list with these, which a
    // child of its would look at before the library has their memory there.
    std::thread::scope(|scope| scope.spawn(fork_often).join()).expect("all are well");
    for thread in threads {
        // SAFETY: a thread that nobody else waits for.
        assert_eq!(unsafe { libc::pthread_join(thread, ptr::null_mut()) }, 0);
    }
}

extern "C" fn busy_coroutine() {
    busy(&IS_OVER);
}

/// The same on a stack from the heap, to which a thread goes and from which it comes back.
fn coroutine() {
    let stack = crate::heap::malloc(512 * KIB);
    // SAFETY: zeros are filled by the call; the stack is there until this comes back.
    unsafe {
        let mut own = std::mem::zeroed::<libc::ucontext_t>();
        let mut other = std::mem::zeroed::<libc::ucontext_t>();
        assert_eq!(libc::getcontext(&raw mut other), 0);
        other.uc_stack.ss_sp = ptr::with_exposed_provenance_mut(stack.at);
        other.uc_stack.ss_size = stack.len;
        other.uc_link = &raw mut own;
        libc::makecontext(&raw mut other, busy_coroutine, 0);
        assert_eq!(libc::swapcontext(&raw mut own, &raw const other), 0);
    }
    crate::heap::free(stack);
}

fn fork_inside_coroutine() {
    let threads = [(); 2].map(|()| std::thread::spawn(coroutine));
    fork_often();
    for thread in threads {
        thread.join().expect("it ends");
    }
}

/// And a handler that changes maps comes there, while another forks.
fn fork_inside_signal() {
    handle_changes();
    let inside = std::thread::spawn(coroutine);
    std::thread::scope(|scope| {
        scope.spawn(|| signal_often(inside.as_pthread_t(), &IS_OVER));
        fork_often();
    });
    inside.join().expect("it ends");
}

/// The same on a thread's usual stack, where it is the handler alone that waits.
fn fork_inside_handler() {
    handle_changes();
    let inside = std::thread::spawn(|| busy(&IS_OVER));
    std::thread::scope(|scope| {
        scope.spawn(|| busy(&IS_OVER));
        scope.spawn(|| signal_often(inside.as_pthread_t(), &IS_OVER));
        fork_often();
    });
    inside.join().expect("it ends");
}

/// Gives back what the heap has free, and asks how much it has, until it is told to end.
fn trim() {
    while !IS_OVER.load(Relaxed) {
        let block = crate::heap::malloc(100 * KIB);
        // SAFETY: the calls change nothing that anybody uses.
        unsafe {
            libc::malloc_trim(0);
            assert!(libc::mallinfo2().uordblks >= block.len);
        }
        crate::heap::free(block);
    }
}

/// The same where a thread is inside what else has the heap's lock.
fn fork_inside_trim() {
    handle_changes();
    let inside = std::thread::spawn(trim);
    std::thread::scope(|scope| {
        scope.spawn(|| signal_often(inside.as_pthread_t(), &IS_OVER));
        fork_often();
    });
    inside.join().expect("it ends");
}

/// How many are stopped, and whether they are to go on.
static STOPPED: AtomicUsize = AtomicUsize::new(0);
static MAY_GO: AtomicBool = AtomicBool::new(false);

extern "C" fn stop(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    STOPPED.fetch_add(1, SeqCst);
    while !MAY_GO.load(SeqCst) {
        // SAFETY: the call takes nothing, and any handler may make it.
        unsafe { libc::sched_yield() };
    }
    STOPPED.fetch_sub(1, SeqCst);
}

/// Stops both threads, changes maps, and has them go on, until it is told to end.
fn collect(threads: [libc::pthread_t; 2]) {
    let mut rng = fastrand::Rng::with_seed(4);
    while !IS_OVER.load(Relaxed) {
        MAY_GO.store(false, SeqCst);
        for thread in threads {
            // SAFETY: it is not joined yet.
            assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
        }
        while STOPPED.load(SeqCst) < threads.len() && !IS_OVER.load(Relaxed) {
            std::thread::yield_now();
        }
        let new = Block::map(512 * KIB);
        new.touch(1);
        sys::madvise(new.at, 256 * KIB, libc::MADV_DONTNEED).expect("given back");
        new.unmap();
        MAY_GO.store(true, SeqCst);
        while STOPPED.load(SeqCst) > 0 {
            std::thread::yield_now();
        }
        (0..rng.u32(..50_000)).for_each(|_| std::hint::spin_loop());
    }
}

/// A collector stops a thread that is inside and one that forks, and waits for each of them.
fn fork_inside_collector() {
    handle(libc::SIGUSR1, stop, libc::SA_RESTART);
    let inside = std::thread::spawn(|| busy(&IS_OVER));
    // SAFETY: the calling thread, which outlives who sends.
    let threads = [inside.as_pthread_t(), unsafe { libc::pthread_self() }];
    std::thread::scope(|scope| {
        scope.spawn(|| collect(threads));
        fork_often();
    });
    inside.join().expect("it ends");
}
