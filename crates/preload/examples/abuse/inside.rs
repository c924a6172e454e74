//! What comes while a thread is inside the C library's `malloc`, and has its lock: a signal whose
//! handler changes maps.
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
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

pub(crate) const CASES: &[Case] = &[("signal-inside", signal_inside)];

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

/// A signal comes anywhere in the C library's `malloc`, and its handler changes maps.
fn signal_inside() {
    const ROUNDS: usize = 3_000;
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
    // SAFETY: the calling thread, which outlives who sends.
    let main = unsafe { libc::pthread_self() };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _over = Over(&is_over);
            let mut rng = fastrand::Rng::with_seed(2);
            for round in 0..ROUNDS {
                // SAFETY: a thread that lives.
                assert_eq!(unsafe { libc::pthread_kill(main, libc::SIGUSR1) }, 0);
                while CHANGED.load(SeqCst) == round {
                    std::thread::yield_now();
                }
                (0..rng.u32(..20_000)).for_each(|_| std::hint::spin_loop());
            }
        });
        busy(&is_over);
    });
    assert_eq!(CHANGED.load(SeqCst), ROUNDS);
}
