//! Engine P of `nyx swap`: a library that is loaded before a program's own (`LD_PRELOAD`), and
//! gives it large memory from an [`Arena`].
//!
//! * `memory.rs`: `malloc` and its kin.
//! * `mappings.rs`: `mmap`, and all calls that are made on what it gave.
//! * `transfers.rs`: `read` and its kin past the page cache, which go past the CPU too, and system
//!   calls by their number. `streams.rs`: the same by streams.
//! * `limits.rs`: how long files may be, which the arena's are to be.
//! * `process.rs`: the arena of this process: when it begins, forks, its end.
//! * `gate.rs`: which threads are inside the C library's heap, whose locks a fork takes.
//!
//! Each function has the name and the meaning of the C library's, and calls that for what is not
//! the arena's. Small memory, stacks, code and files are the kernel's as ever.
//!
//! What it never does: change what a program computes. Where it cannot be right it is not there:
//! the arena does not begin, or the call says that it cannot be (docs/swap.md, "Engine P").
//!
//! *Thread safety*: all of it, in children of `fork`, and in handlers of signals. What the library
//! itself needs comes from a [`Heap`] of its own: not from the arena, whose faults it may have to
//! answer, nor from the C library, whose `malloc` a signal may have come in the middle of.

#![cfg(target_os = "linux")]

mod gate;
mod limits;
mod mappings;
mod memory;
mod process;
mod streams;
mod transfers;

use nyx_swap::arena::{self, Arena, Heap};
use std::ops::Range;
use std::sync::Once;

/// For this library itself.
#[global_allocator]
static OWN: Heap = Heap::new();

/// Less than this is not worth a page fault of its own, in bytes. It is the C library's own limit
/// from which `malloc` takes memory from `mmap`.
const LEAST_BYTES: usize = 128 << 10;

/// The arena, where a range of bytes meets it.
fn arena_of(bytes: &Range<usize>) -> Option<&'static Arena> {
    let arena = process::arena()?;
    let range = arena.range();
    (bytes.start < range.end && range.start < bytes.end).then_some(arena)
}

/// Refuses a call: says why, unless that was `said`, and fails.
fn refuse(said: &Once, what: &str, errno: libc::c_int) -> libc::c_int {
    said.call_once(|| {
        arena::complain(&format!(
            "{what} is refused: this program's memory is in an arena"
        ));
    });
    failed(errno)
}

/// Ends the process where a buffer has no room for so many bytes, or for more than there are
/// numbers, as the C library does in calls that are told of it (`_FORTIFY_SOURCE`).
fn check_room(len: Option<usize>, room: usize) {
    if len.is_none_or(|len| len > room) {
        std::process::abort();
    }
}

/// Does something of which the caller's `errno` does not tell.
fn keep_errno<T>(what: impl FnOnce() -> T) -> T {
    let before = errno();
    let done = what();
    failed(before);
    done
}

fn errno() -> libc::c_int {
    // SAFETY: the address is this thread's.
    unsafe { *libc::__errno_location() }
}

/// `-1`, and the reason where the C library has it.
fn failed(errno: libc::c_int) -> libc::c_int {
    // SAFETY: the address is this thread's.
    unsafe { *libc::__errno_location() = errno };
    -1
}
