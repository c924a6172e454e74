//! Streams (`FILE`) of files that are read past the page cache: what the C library reads for them
//! goes past us, into the caller's memory or into the stream's own buffer.
//!
//! * `fread` reads much of it into the caller's memory: what is the arena's stays in memory until
//!   that is done.
//! * A buffer that the program gives a stream (`setvbuf`) may be used, by the C standard; what is
//!   the arena's is not. The stream has another one of that length. Those that the C library takes
//!   by itself are no large memory.
//!
//! What it never does: change what a stream reads.
//!
//! *Thread safety*: all of it.

use crate::process::Real;
use crate::transfers::{PIECE_BYTES_MIN, in_pieces, is_direct, meets_arena};
use crate::{check_room, failed, keep_errno, memory};
use libc::{FILE, c_char, c_int, c_void};
use nyx_swap::region::PAGE_BYTES;

/// Of a stream that could not be read, in its flags (`_IO_ERR_SEEN`).
const HAS_FAILED: c_int = 0x20;
/// Of a stream that does not free its buffer (`_IO_USER_BUF`).
const HAS_OTHERS_BUFFER: c_int = 1;
/// What `setbuf` takes a buffer for (`BUFSIZ`).
const SETBUF_BYTES: usize = 8192;

/// How a stream begins, in all versions of the C library that there are.
#[repr(C)]
struct Stream {
    flags: c_int,
    /// Where it reads and writes in its buffer.
    places: [*mut c_char; 6],
    buffer: *mut c_void,
}

// SAFETY: who calls one keeps to what the C library says of it.
type Read = unsafe extern "C-unwind" fn(*mut c_void, usize, usize, *mut FILE) -> usize;
type SetBuffer = unsafe extern "C" fn(*mut FILE, *mut c_char, usize);
type SetKind = unsafe extern "C" fn(*mut FILE, *mut c_char, c_int, usize) -> c_int;

// SAFETY: that is its type.
static READ: Real<Read> = unsafe { Real::new(c"fread") };
// SAFETY: that is its type.
static READ_UNLOCKED: Real<Read> = unsafe { Real::new(c"fread_unlocked") };
// SAFETY: that is its type.
static SET_BUFFER: Real<SetBuffer> = unsafe { Real::new(c"setbuffer") };
// SAFETY: that is its type.
static SET_KIND: Real<SetKind> = unsafe { Real::new(c"setvbuf") };

/// Looks for what it needs of the C library.
pub(crate) fn look_up() {
    let _ = READ.get();
    let _ = READ_UNLOCKED.get();
    let _ = SET_BUFFER.get();
    let _ = SET_KIND.get();
}

// SAFETY: such are their types; who calls one keeps to what the C library says of it.
unsafe extern "C" {
    fn flockfile(stream: *mut FILE);
    fn funlockfile(stream: *mut FILE);
    fn __fbufsize(stream: *mut FILE) -> usize;
}

/// A stream that no other thread reads until this is dropped.
struct Alone(*mut FILE);

impl Alone {
    /// # Safety
    ///
    /// It is a stream, and stays one until it is dropped.
    unsafe fn with(stream: *mut FILE) -> Alone {
        // SAFETY: the caller's word.
        unsafe { flockfile(stream) };
        Alone(stream)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // SAFETY: `with` has locked it.
        unsafe { funlockfile(self.0) };
    }
}

/// What a stream reads past the page cache into the caller's memory; `real` does all else. `Locks`
/// it does where another thread may use the stream: for all of the call, as ever, and before
/// anything is pinned, since who has the lock may wait for what is pinned.
///
/// # Safety
///
/// As `fread`.
unsafe fn read_stream(
    real: &Real<Read>,
    locks: bool,
    (at, size, count): (*mut c_void, usize, usize),
    stream: *mut FILE,
) -> usize {
    let Some(real) = real.get() else {
        failed(libc::ENOSYS);
        return 0;
    };
    // SAFETY: the caller's word, here and below.
    let buffer_len = || unsafe { __fbufsize(stream) };
    let len = size.checked_mul(count);
    // What is shorter than its buffer comes by way of that.
    let arena = len.and_then(|len| meets_arena(at, len).filter(|_| len >= buffer_len()));
    // SAFETY: as above. A stream in memory has no file.
    let is_direct = || is_direct(keep_errno(|| unsafe { libc::fileno(stream) }));
    let (Some(len), Some(arena)) = (len, arena.filter(|_| is_direct())) else {
        // SAFETY: as above.
        return unsafe { real(at, size, count, stream) };
    };
    // SAFETY: as above.
    let _alone = locks.then(|| unsafe { Alone::with(stream) });
    let least = buffer_len().max(PIECE_BYTES_MIN);
    let done = in_pieces(arena, (at, len), least, |at, part, _| {
        // Elements that are begun are not told of; bytes are.
        let (size, count) = if part == len {
            (size, count)
        } else {
            (1, part)
        };
        // SAFETY: as above.
        (unsafe { real(at, size, count, stream) } * size) as isize
    });
    if done < 0 {
        // What could not be pinned is an error of the stream's: it is neither read nor at its end.
        // SAFETY: so it begins.
        unsafe { (*stream.cast::<Stream>()).flags |= HAS_FAILED };
    }
    usize::try_from(done).unwrap_or(0) / size
}

/// # Safety
///
/// As `fread`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fread(
    at: *mut c_void,
    size: usize,
    count: usize,
    stream: *mut FILE,
) -> usize {
    // SAFETY: the caller's word.
    unsafe { read_stream(&READ, true, (at, size, count), stream) }
}

/// # Safety
///
/// As `fread`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _IO_fread(
    at: *mut c_void,
    size: usize,
    count: usize,
    stream: *mut FILE,
) -> usize {
    // SAFETY: the caller's word.
    unsafe { fread(at, size, count, stream) }
}

/// # Safety
///
/// As `fread_unlocked`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fread_unlocked(
    at: *mut c_void,
    size: usize,
    count: usize,
    stream: *mut FILE,
) -> usize {
    // SAFETY: the caller's word.
    unsafe { read_stream(&READ_UNLOCKED, false, (at, size, count), stream) }
}

/// # Safety
///
/// As `fread`, of a buffer of `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __fread_chk(
    at: *mut c_void,
    room: usize,
    size: usize,
    count: usize,
    stream: *mut FILE,
) -> usize {
    check_room(size.checked_mul(count), room);
    // SAFETY: the caller's word.
    unsafe { fread(at, size, count, stream) }
}

/// # Safety
///
/// As `fread_unlocked`, of a buffer of `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __fread_unlocked_chk(
    at: *mut c_void,
    room: usize,
    size: usize,
    count: usize,
    stream: *mut FILE,
) -> usize {
    check_room(size.checked_mul(count), room);
    // SAFETY: the caller's word.
    unsafe { fread_unlocked(at, size, count, stream) }
}

/// Has a stream take a buffer that is not the arena's, as long as the program's, by `set`; none
/// where there is no memory for it. It is the stream's from then on, which frees it.
///
/// # Safety
///
/// As `setvbuf`.
unsafe fn set_other<T>(
    stream: *mut FILE,
    len: usize,
    set: impl FnOnce(*mut c_char) -> T,
) -> Option<T> {
    // Whole pages, as the program's may be: past the page cache not any address will do.
    let other = memory::of_theirs(PAGE_BYTES, len);
    if other.is_null() {
        return None;
    }
    // SAFETY: the caller's word.
    let alone = unsafe { Alone::with(stream) };
    let done = set(other.cast());
    // SAFETY: so it begins, and nobody else uses it.
    let begin = unsafe { &mut *stream.cast::<Stream>() };
    let is_taken = begin.buffer == other;
    if is_taken {
        begin.flags &= !HAS_OTHERS_BUFFER;
    }
    drop(alone);
    if !is_taken {
        // Its kind has none, or it was refused.
        // SAFETY: it was just given, and nobody has it.
        keep_errno(|| unsafe { memory::free_theirs(other) });
    }
    Some(done)
}

/// # Safety
///
/// As `setvbuf`.
#[unsafe(no_mangle)]
unsafe extern "C" fn setvbuf(
    stream: *mut FILE,
    buffer: *mut c_char,
    kind: c_int,
    len: usize,
) -> c_int {
    let Some(real) = SET_KIND.get() else {
        return failed(libc::ENOSYS);
    };
    // SAFETY: the caller's word.
    let set = |buffer| unsafe { real(stream, buffer, kind, len) };
    match meets_arena(buffer.cast(), len) {
        Some(_) => {
            // SAFETY: as above.
            let done = unsafe { set_other(stream, len, set) };
            done.unwrap_or_else(|| failed(libc::ENOMEM))
        }
        None => set(buffer),
    }
}

/// # Safety
///
/// As `setvbuf`.
#[unsafe(no_mangle)]
unsafe extern "C" fn _IO_setvbuf(
    stream: *mut FILE,
    buffer: *mut c_char,
    kind: c_int,
    len: usize,
) -> c_int {
    // SAFETY: the caller's word.
    unsafe { setvbuf(stream, buffer, kind, len) }
}

/// # Safety
///
/// As `setbuffer`.
#[unsafe(no_mangle)]
unsafe extern "C" fn setbuffer(stream: *mut FILE, buffer: *mut c_char, len: usize) {
    let Some(real) = SET_BUFFER.get() else {
        return;
    };
    // SAFETY: the caller's word.
    let set = |buffer| unsafe { real(stream, buffer, len) };
    match meets_arena(buffer.cast(), len) {
        // Without memory it keeps the buffer that it has.
        // SAFETY: as above.
        Some(_) => unsafe { set_other(stream, len, set) }.unwrap_or(()),
        None => set(buffer),
    }
}

/// # Safety
///
/// As `setbuffer`.
#[unsafe(no_mangle)]
unsafe extern "C" fn _IO_setbuffer(stream: *mut FILE, buffer: *mut c_char, len: usize) {
    // SAFETY: the caller's word.
    unsafe { setbuffer(stream, buffer, len) }
}

/// # Safety
///
/// As `setbuf`.
#[unsafe(no_mangle)]
unsafe extern "C" fn setbuf(stream: *mut FILE, buffer: *mut c_char) {
    // SAFETY: the caller's word, that there is so much.
    unsafe { setbuffer(stream, buffer, SETBUF_BYTES) }
}
