//! `read` and its kin. Past the page cache (`O_DIRECT`) a device writes into memory while the
//! caller waits: what is the arena's stays in memory until then, since a page that leaves meanwhile
//! would leave without what is written.
//!
//! What goes out is safe: a page that leaves while it is written somewhere keeps its bytes for
//! that. What a program would set off and wait for later (io_uring, Linux's `io_submit`) is refused
//! where the arena begins.
//!
//! A thread may be cancelled in any of them: they are left by unwinding then.
//!
//! What it never does: copy; change what a call that is not direct does.
//!
//! *Thread safety*: all of it.

use crate::process::{arena, next};
use crate::{arena_of, failed};
use libc::{c_int, c_void, iovec, off_t};
use nyx_swap::arena::Arena;
use std::ffi::CStr;
use std::ops::Range;
use std::sync::OnceLock;

/// So much is pinned at once; where an arena is smaller, less.
const PIECE_BYTES: usize = 256 << 10;
const PIECE_BYTES_MIN: usize = 16 << 10;

/// Ranges that stay in memory until this is dropped.
struct Pinned(Vec<(&'static Arena, Range<usize>)>);

impl Drop for Pinned {
    fn drop(&mut self) {
        for (arena, bytes) in self.0.drain(..) {
            arena.unpin(bytes);
        }
    }
}

fn is_direct(file: c_int) -> bool {
    // SAFETY: the address is this thread's; asking changes nothing.
    unsafe {
        let errno = *libc::__errno_location();
        let flags = libc::fcntl(file, libc::F_GETFL);
        *libc::__errno_location() = errno;
        flags != -1 && flags & libc::O_DIRECT != 0
    }
}

fn meets_arena(at: *const c_void, len: usize) -> Option<&'static Arena> {
    let begin = at as usize;
    arena_of(&(begin..begin.saturating_add(len))).filter(|arena| !arena.is_plain())
}

/// Reads into one buffer, piece by piece where it is the arena's; `read` has what of it to read and
/// how much was read before.
fn one(
    file: c_int,
    at: *mut c_void,
    len: usize,
    read: impl Fn(*mut c_void, usize, usize) -> isize,
) -> isize {
    let Some(arena) = meets_arena(at, len).filter(|_| is_direct(file)) else {
        return read(at, len, 0);
    };
    let (mut done, mut piece) = (0, PIECE_BYTES);
    while done < len {
        let wanted = piece.min(len - done);
        let to = at.wrapping_byte_add(done);
        let bytes = to as usize..to as usize + wanted;
        if !arena.pin(bytes.clone()) {
            if piece > PIECE_BYTES_MIN {
                piece /= 2;
                continue;
            }
            return if done > 0 {
                done as isize
            } else {
                failed(libc::ENOMEM) as isize
            };
        }
        let pinned = Pinned(vec![(arena, bytes)]);
        let read = read(to, wanted, done);
        drop(pinned);
        match read {
            ..0 if done > 0 => return done as isize,
            ..0 => return read,
            read => done += read as usize,
        }
        if (read as usize) < wanted {
            break;
        }
    }
    done as isize
}

/// Reads into several; all of them are pinned at once.
///
/// # Safety
///
/// As `readv`.
unsafe fn several(
    file: c_int,
    buffers: *const iovec,
    count: c_int,
    read: impl Fn() -> isize,
) -> isize {
    if arena().is_none() || count <= 0 || buffers.is_null() || !is_direct(file) {
        return read();
    }
    // SAFETY: the caller's word.
    let buffers = unsafe { std::slice::from_raw_parts(buffers, count as usize) };
    let mut pinned = Pinned(Vec::new());
    for buffer in buffers {
        if let Some(arena) = meets_arena(buffer.iov_base, buffer.iov_len) {
            let begin = buffer.iov_base as usize;
            let bytes = begin..begin + buffer.iov_len;
            if !arena.pin(bytes.clone()) {
                return failed(libc::ENOMEM) as isize;
            }
            pinned.0.push((arena, bytes));
        }
    }
    read()
}

/// The C library's function: it may be a point of cancellation, so a system call will not do.
macro_rules! real {
    ($name:literal, $type:ty) => {{
        static REAL: OnceLock<Option<$type>> = OnceLock::new();
        const NAME: &CStr = $name;
        // SAFETY: that is its type.
        match REAL.get_or_init(|| unsafe { next::<$type>(NAME) }) {
            Some(real) => *real,
            None => return failed(libc::ENOSYS) as isize,
        }
    }};
}

// SAFETY: who calls one keeps to what the C library says of it.
type Read = unsafe extern "C-unwind" fn(c_int, *mut c_void, usize) -> isize;
type ReadAt = unsafe extern "C-unwind" fn(c_int, *mut c_void, usize, off_t) -> isize;
type ReadInto = unsafe extern "C-unwind" fn(c_int, *const iovec, c_int) -> isize;
type ReadIntoAt = unsafe extern "C-unwind" fn(c_int, *const iovec, c_int, off_t) -> isize;
type ReadIntoAtWith =
    unsafe extern "C-unwind" fn(c_int, *const iovec, c_int, off_t, c_int) -> isize;

/// # Safety
///
/// As `read`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn read(file: c_int, at: *mut c_void, len: usize) -> isize {
    let real = real!(c"read", Read);
    // SAFETY: the caller's word.
    one(file, at, len, |at, len, _| unsafe { real(file, at, len) })
}

/// # Safety
///
/// As `read`, of a buffer of `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(
    file: c_int,
    at: *mut c_void,
    len: usize,
    room: usize,
) -> isize {
    if len > room {
        std::process::abort();
    }
    // SAFETY: the caller's word.
    unsafe { read(file, at, len) }
}

/// # Safety
///
/// As `pread`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pread(
    file: c_int,
    at: *mut c_void,
    len: usize,
    offset: off_t,
) -> isize {
    let real = real!(c"pread", ReadAt);
    let read = |at, len, done: usize| {
        // SAFETY: the caller's word.
        unsafe { real(file, at, len, offset + done as off_t) }
    };
    one(file, at, len, read)
}

/// # Safety
///
/// As `pread64`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pread64(
    file: c_int,
    at: *mut c_void,
    len: usize,
    offset: off_t,
) -> isize {
    // SAFETY: the caller's word.
    unsafe { pread(file, at, len, offset) }
}

/// # Safety
///
/// As `pread`, of a buffer of `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __pread_chk(
    file: c_int,
    at: *mut c_void,
    len: usize,
    offset: off_t,
    room: usize,
) -> isize {
    if len > room {
        std::process::abort();
    }
    // SAFETY: the caller's word.
    unsafe { pread(file, at, len, offset) }
}

/// # Safety
///
/// As `pread64`, of a buffer of `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __pread64_chk(
    file: c_int,
    at: *mut c_void,
    len: usize,
    offset: off_t,
    room: usize,
) -> isize {
    // SAFETY: the caller's word.
    unsafe { __pread_chk(file, at, len, offset, room) }
}

/// # Safety
///
/// As `readv`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readv(file: c_int, buffers: *const iovec, count: c_int) -> isize {
    let real = real!(c"readv", ReadInto);
    // SAFETY: the caller's word.
    unsafe { several(file, buffers, count, || real(file, buffers, count)) }
}

/// # Safety
///
/// As `preadv`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv(
    file: c_int,
    buffers: *const iovec,
    count: c_int,
    offset: off_t,
) -> isize {
    let real = real!(c"preadv", ReadIntoAt);
    // SAFETY: the caller's word.
    unsafe { several(file, buffers, count, || real(file, buffers, count, offset)) }
}

/// # Safety
///
/// As `preadv64`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv64(
    file: c_int,
    buffers: *const iovec,
    count: c_int,
    offset: off_t,
) -> isize {
    // SAFETY: the caller's word.
    unsafe { preadv(file, buffers, count, offset) }
}

/// # Safety
///
/// As `preadv2`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv2(
    file: c_int,
    buffers: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> isize {
    let real = real!(c"preadv2", ReadIntoAtWith);
    let read = || {
        // SAFETY: the caller's word.
        unsafe { real(file, buffers, count, offset, flags) }
    };
    // SAFETY: as above.
    unsafe { several(file, buffers, count, read) }
}

/// # Safety
///
/// As `preadv64v2`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv64v2(
    file: c_int,
    buffers: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> isize {
    // SAFETY: the caller's word.
    unsafe { preadv2(file, buffers, count, offset, flags) }
}
