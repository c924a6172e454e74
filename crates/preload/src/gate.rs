//! The gate of this process between forks and calls of the C library's heap
//! ([`Gate`] says what it is for), and each thread's place at it.
//!
//! Where its place is a thread has in a word that the loader sets up with the thread ("initial
//! exec"): Rust's own thread-locals are found by a function of the dynamic linker's in a library,
//! which may call `malloc`. The place is another thread's when its thread has ended, as late as the
//! C library tells us; what the thread still frees then is not counted.
//!
//! What it never does: call the C library's heap but for what it is given to call; register
//! something to be done at a thread's end that takes a lock.
//!
//! *Thread safety*: all of it, in handlers of signals too.

use libc::c_void;
use nyx_swap::arena::{Closed, Gate, Place, Undisturbed};
use std::arch::{asm, global_asm};
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

static GATE: Gate = Gate::new();

/// In a thread's word: it has had no place yet.
const NONE: usize = 0;
/// It has given its place back, and gets no other.
const ENDED: usize = 1;

/// Of what is done at a thread's end; none before [`start`].
static KEY: AtomicU32 = AtomicU32::new(NO_KEY);
const NO_KEY: u32 = u32::MAX;
/// At a thread's end the C library goes over its keys up to four times.
const LAST_TIME: usize = 3;

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".globl nyx_gate_place",
    ".hidden nyx_gate_place",
    ".type nyx_gate_place, @tls_object",
    ".size nyx_gate_place, 8",
    ".p2align 3",
    "nyx_gate_place:",
    ".zero 8",
    ".popsection",
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .tbss,\"awT\",%nobits",
    ".globl nyx_gate_place",
    ".hidden nyx_gate_place",
    ".type nyx_gate_place, %tls_object",
    ".size nyx_gate_place, 8",
    ".p2align 3",
    "nyx_gate_place:",
    ".zero 8",
    ".popsection",
);

/// This thread's word, which lives as long as the thread.
#[inline]
fn word() -> &'static AtomicUsize {
    let at: *const AtomicUsize;
    // SAFETY: it reads where the thread's own memory begins, and how far behind that the word is.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "mov {at}, qword ptr fs:[0]",
            "add {at}, qword ptr [rip + nyx_gate_place@GOTTPOFF]",
            at = out(reg) at,
            options(pure, nomem, nostack),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "mrs {begin}, tpidr_el0",
            "adrp {at}, :gottprel:nyx_gate_place",
            "ldr {at}, [{at}, :gottprel_lo12:nyx_gate_place]",
            "add {at}, {begin}, {at}",
            begin = out(reg) _,
            at = out(reg) at,
            options(pure, nomem, nostack),
        );
    }
    // SAFETY: it is there, aligned, zero at first, and used by this thread only, which does not
    // keep it longer than it runs.
    unsafe { &*at }
}

/// Before the program's own code: what it takes is had once.
pub(crate) fn start() {
    GATE.start();
    let mut key = 0;
    // SAFETY: the call writes to what it is given; the function is there as long as this library.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(end)) } == 0 {
        KEY.store(key, Relaxed);
    }
}

/// Makes a call of the C library's heap, which has locks that `fork` takes: while no fork is under
/// way.
#[inline]
pub(crate) fn theirs<T>(call: impl FnOnce() -> T) -> T {
    let _inside = place().map(|place| GATE.enter(place));
    call()
}

/// Closes the gate before a fork; none where this thread has no place.
pub(crate) fn close() -> Option<Closed<'static>> {
    place().map(|own| GATE.close(own))
}

/// In a child, before anything else: the other threads of the parent are not there.
pub(crate) fn in_child() {
    GATE.in_child(placed(word().load(Relaxed)));
}

/// This thread's, which it gets where it has had none; none at its end, or without memory.
#[inline]
fn place() -> Option<&'static Place> {
    let at = word().load(Relaxed);
    placed(at).or_else(|| if at == NONE { take() } else { None })
}

/// What a word says.
#[inline]
fn placed(at: usize) -> Option<&'static Place> {
    // SAFETY: it is none of the two others, and so a place, which stays.
    (at > ENDED).then(|| unsafe { &*with_exposed_provenance(at) })
}

#[cold]
fn take() -> Option<&'static Place> {
    let _undisturbed = Undisturbed::new();
    let word = word();
    if word.load(Relaxed) == NONE {
        // In a handler, since it was looked at, it had one.
        let place = GATE.take()?;
        let at = (&raw const *place).expose_provenance();
        word.store(at, Relaxed);
        // It may call `malloc`, which finds the place.
        at_end(at);
    }
    placed(word.load(Relaxed))
}

/// Has [`end`] be called with that, which is not zero.
fn at_end(value: usize) {
    let key = KEY.load(Relaxed);
    if key != NO_KEY {
        let value = with_exposed_provenance_mut::<c_void>(value);
        // SAFETY: the key was made, and is never taken away.
        unsafe { libc::pthread_setspecific(key, value.cast_const()) };
    }
}

/// At a thread's end, beside what others do there, who may free what they have after this: so it is
/// asked to come again until it does not. How often that was is in the bits that the place's
/// alignment leaves.
unsafe extern "C" fn end(value: *mut c_void) {
    let times = value.addr() % align_of::<Place>();
    if times < LAST_TIME {
        at_end(value.expose_provenance() + 1);
        return;
    }
    let place = placed(word().load(Relaxed));
    word().store(ENDED, Relaxed);
    if let Some(place) = place {
        GATE.give_back(place);
    }
}
