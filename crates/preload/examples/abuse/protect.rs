//! mprotect, faults that a program catches, and code that it writes for itself.
//!
//! Thread safety: one handler for a process, whose cases run alone.
//!
//! What it never does: leave a fault that it did not ask for; the handler ends the process then.

use crate::Case;
use crate::memory::{Block, KIB, MIB, PAGE, press, word};
use crate::sys::{self, RW};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

pub(crate) const CASES: &[Case] = &[
    ("protect-read-only", read_only),
    ("protect-none", none),
    ("protect-parts", parts),
    ("protect-moved", moved),
    ("protect-system", system_calls),
    ("protect-code", code),
    ("protect-barrier", barrier),
    ("touch-unmapped", touch_unmapped),
];

static FAULTS: AtomicUsize = AtomicUsize::new(0);
static LAST: AtomicUsize = AtomicUsize::new(0);
static CODE: AtomicI32 = AtomicI32::new(0);
static FIRST: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// Allows the page of a fault within the range that is watched.
extern "C" fn on_fault(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system gives a whole one.
    let (at, code) = unsafe { ((*info).si_addr().expose_provenance(), (*info).si_code) };
    if at < FIRST.load(SeqCst) || at >= END.load(SeqCst) {
        sys::quit(77);
    }
    LAST.store(at, SeqCst);
    CODE.store(code, SeqCst);
    FAULTS.fetch_add(1, SeqCst);
    if sys::mprotect(at / PAGE * PAGE, PAGE, RW).is_err() {
        sys::quit(78);
    }
}

/// Takes a signal's default away.
pub(crate) fn handle(
    signal: i32,
    handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void),
    flags: i32,
) {
    // SAFETY: all zeros are an action without flags and signals.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | flags;
    // SAFETY: a handler that calls only what signals may interrupt.
    let said = unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
    assert_eq!(said, 0);
}

fn watch(block: Block) {
    FIRST.store(block.at, SeqCst);
    END.store(block.at + block.len, SeqCst);
    FAULTS.store(0, SeqCst);
    handle(libc::SIGSEGV, on_fault, 0);
}

/// What a touch of a word did: faults, and then where the last one was and what it was told as.
fn touched(touch: impl FnOnce()) -> (usize, usize, i32) {
    let before = FAULTS.load(SeqCst);
    touch();
    let told = (LAST.load(SeqCst), CODE.load(SeqCst));
    (FAULTS.load(SeqCst) - before, told.0, told.1)
}

/// `SEGV_ACCERR`: there is memory, which may not be touched so.
const REFUSED: i32 = 2;

fn read_only() {
    let block = Block::filled(MIB, 1);
    watch(block);
    for is_out in [false, true] {
        sys::mprotect(block.at, MIB, libc::PROT_READ).expect("protected");
        if is_out {
            press();
        }
        block.check(0..MIB, 1);
        for place in [0, 512 * KIB + 8, MIB - 8] {
            let at = block.at + place;
            let same = word(at).load(Relaxed);
            assert_eq!(touched(|| word(at).store(same, Relaxed)), (1, at, REFUSED));
            assert_eq!(touched(|| word(at).store(same, Relaxed)).0, 0);
        }
        block.check(0..MIB, 1);
        sys::mprotect(block.at, MIB, RW).expect("allowed");
        assert_eq!(touched(|| block.fill(0..MIB, 1)).0, 0);
    }
}

fn none() {
    let block = Block::filled(MIB, 2);
    watch(block);
    for is_out in [false, true] {
        sys::mprotect(block.at, MIB, libc::PROT_NONE).expect("protected");
        if is_out {
            press();
        }
        assert!(!sys::can_read(block.at + 8));
        for place in [8, 256 * KIB, MIB - 8] {
            let at = block.at + place;
            let touch = || _ = std::hint::black_box(word(at).load(Relaxed));
            assert_eq!(touched(touch), (1, at, REFUSED));
            assert_eq!(touched(touch).0, 0);
        }
        sys::mprotect(block.at, MIB, RW).expect("allowed");
        block.check(0..MIB, 2);
    }
    // Untouched memory, too.
    let block = Block::map(MIB);
    watch(block);
    sys::mprotect(block.at, MIB, libc::PROT_NONE).expect("protected");
    sys::mprotect(block.at, MIB, libc::PROT_READ).expect("to be read");
    block.zero(0..MIB);
    sys::mprotect(block.at, MIB, RW).expect("allowed");
    assert_eq!(touched(|| block.fill(0..MIB, 3)).0, 0);
    press();
    block.check(0..MIB, 3);
}

/// Neighbours are what they were.
fn parts() {
    let block = Block::filled(2 * MIB, 4);
    watch(block);
    let guard = MIB..MIB + 2 * PAGE;
    sys::mprotect(block.at + guard.start, guard.len(), libc::PROT_NONE).expect("a guard");
    press();
    assert_eq!(touched(|| block.fill(0..guard.start, 5)).0, 0);
    assert_eq!(touched(|| block.fill(guard.end..2 * MIB, 5)).0, 0);
    press();
    assert_eq!(touched(|| block.check(guard.clone(), 4)).0, 2);
    block.check(0..guard.start, 5);
    block.check(guard.end..2 * MIB, 5);
    // Given up while it is protected: the next one there has no guard.
    sys::mprotect(block.at, 64 * KIB, libc::PROT_NONE).expect("protected");
    block.unmap();
    let again = Block::map(2 * MIB);
    watch(again);
    assert_eq!(touched(|| again.fill(0..2 * MIB, 6)).0, 0);
    again.check(0..2 * MIB, 6);
}

/// What is protected stays so where it moves.
fn moved() {
    let block = Block::filled(MIB, 7);
    sys::mprotect(block.at, MIB, libc::PROT_READ).expect("protected");
    press();
    let at = match sys::mremap(block.at, MIB, 4 * MIB, libc::MREMAP_MAYMOVE, 0) {
        // The library refuses it: protection would be lost.
        Err(libc::ENOMEM) if sys::is_paged() => return block.check(0..MIB, 7),
        said => said.expect("moved"),
    };
    let moved = Block { at, len: 4 * MIB };
    watch(moved);
    moved.check(0..MIB, 7);
    let same = word(at + MIB / 2).load(Relaxed);
    let (faults, ..) = touched(|| word(at + MIB / 2).store(same, Relaxed));
    assert_eq!(faults, 1, "protection is lost");
    let (faults, ..) = touched(|| word(at + 2 * MIB).store(1, Relaxed));
    assert_eq!(faults, 1, "what is new is not protected");
    sys::mprotect(at, 4 * MIB, RW).expect("allowed");
    moved.check(0..MIB, 7);
    // In a child too.
    sys::mprotect(at, MIB, libc::PROT_READ).expect("protected");
    sys::passed(sys::fork(|| {
        watch(moved);
        let touch = || word(at + 8).store(crate::memory::stamp(7, 8), Relaxed);
        let (faults, ..) = touched(touch);
        moved.check(0..MIB, 7);
        i32::from(faults != 1)
    }));
}

/// The system is refused what the program is.
fn system_calls() {
    let block = Block::filled(MIB, 8);
    let (from, to) = sys::pipe();
    sys::mprotect(block.at, 512 * KIB, libc::PROT_READ).expect("protected");
    press();
    sys::write_all(to, block.at, 64);
    assert_eq!(sys::read(from, block.at, 64), Err(libc::EFAULT));
    block.check(0..MIB, 8);
    sys::read_all(from, block.at + 512 * KIB, 64);
    sys::mprotect(block.at, 512 * KIB, libc::PROT_NONE).expect("protected");
    assert_eq!(sys::write(to, block.at, 64), Err(libc::EFAULT));
    sys::mprotect(block.at, 512 * KIB, RW).expect("allowed");
    block.check(0..512 * KIB, 8);
}

/// Functions are written to memory and called, as compilers at run time do.
fn code() {
    if !cfg!(target_arch = "x86_64") {
        return;
    }
    let block = Block::map(MIB);
    // mov eax, 42; ret
    let program = [0xb8, 42, 0, 0, 0, 0xc3, 0x90, 0x90];
    for place in (0..MIB).step_by(PAGE) {
        word(block.at + place).store(u64::from_le_bytes(program), Relaxed);
    }
    sys::mprotect(block.at, MIB, libc::PROT_READ | libc::PROT_EXEC).expect("to be run");
    press();
    for place in (0..MIB).step_by(PAGE) {
        let first = ptr::with_exposed_provenance::<()>(block.at + place);
        // SAFETY: the page begins with a function without arguments that returns a number.
        let function: extern "C" fn() -> i32 = unsafe { std::mem::transmute(first) };
        assert_eq!(function(), 42);
    }
    sys::mprotect(block.at, MIB, RW).expect("allowed");
    block.fill(0..MIB, 9);
    block.check(0..MIB, 9);
}

/// A collector's write barrier: protects all, and hears of each page that is written.
fn barrier() {
    let block = Block::filled(2 * MIB, 10);
    watch(block);
    let mut rng = fastrand::Rng::with_seed(4);
    for _ in 0..4 {
        sys::mprotect(block.at, block.len, libc::PROT_READ).expect("protected");
        let mut pages: Vec<usize> = (0..512).collect();
        rng.shuffle(&mut pages);
        for &page in &pages[..200] {
            let at = block.at + page * PAGE + 64;
            let same = word(at).load(Relaxed);
            assert_eq!(touched(|| word(at).store(same, Relaxed)), (1, at, REFUSED));
        }
    }
    block.check(0..2 * MIB, 10);
}

/// Memory that is gone is no way to a hang, and none to what was there.
fn touch_unmapped() {
    let block = Block::filled(MIB, 11);
    press();
    block.unmap();
    let child = sys::fork(|| i32::from(word(block.at + PAGE).load(Relaxed) != 0));
    match sys::wait(child) {
        sys::End::Signal(libc::SIGSEGV) => {}
        end => assert!(sys::is_paged() && end == sys::End::Status(0), "{end:?}"),
    }
    assert!(sys::is_gone(block.at));
}
