//! `read` and its kin. Past the page cache (`O_DIRECT`) a device writes into memory while the
//! caller waits: what is the arena's stays in memory until then, since a page that leaves meanwhile
//! would leave without what is written.
//!
//! The same by `syscall`; streams are in `streams.rs`.
//!
//! What goes out is safe: a page that leaves while it is written somewhere keeps its bytes for
//! that. What a program would set off and wait for later (io_uring, Linux's `io_submit`) is refused
//! where the arena begins, and here what the C library reads past us: `aio_read` of what is past
//! the page cache. So is writing to another process, which may have an arena where this one has
//! none yet.
//!
//! A thread may be cancelled in any of them: they are left by unwinding then, or by `siglongjmp`
//! out of a signal's handler.
//!
//! What it never does: copy; change what a call that is not direct does.
//!
//! *Thread safety*: all of it.

use crate::process::{Real, arena, may_have_arena};
use crate::{arena_of, check_room, failed, keep_errno, limits, mappings, refuse};
use libc::{c_int, c_long, c_uint, c_void, iovec, off_t};
use nyx_swap::arena::{self, Arena, Undisturbed};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::Once;

/// So much is pinned at once; where an arena is smaller, less.
const PIECE_BYTES: usize = 256 << 10;
pub(crate) const PIECE_BYTES_MIN: usize = 16 << 10;
/// The kernel takes no more buffers at once (`UIO_MAXIOV`).
pub(crate) const BUFFERS_MOST: c_int = 1024;

/// A range that stays in memory until this is dropped, where it is, or its frame is left by
/// `siglongjmp`, which drops nothing.
struct Pinned {
    arena: &'static Arena,
    bytes: Range<usize>,
    is_pinned: bool,
    left: Left,
}

/// What the C library does where a frame is left, which has this (`_pthread_cleanup_buffer`).
#[repr(C)]
struct Left {
    // SAFETY: the C library calls it with what was pushed.
    act: Option<unsafe extern "C" fn(*mut c_void)>,
    on: *mut c_void,
    kind: c_int,
    before: *mut Left,
}

impl Pinned {
    fn not_yet(arena: &'static Arena, bytes: Range<usize>) -> Pinned {
        let left = Left {
            act: None,
            on: null_mut(),
            kind: 0,
            before: null_mut(),
        };
        Pinned {
            arena,
            bytes,
            is_pinned: false,
            left,
        }
    }

    /// It is, and not moved any more.
    fn is_now(&mut self) {
        self.is_pinned = true;
        if let (Some(push), Some(_)) = (PUSH_LEFT.get(), POP_LEFT.get()) {
            let on = (&raw mut *self).cast();
            // SAFETY: both are there until it is popped, or the frame is left.
            unsafe { push(&raw mut self.left, give_back, on) };
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if !self.is_pinned {
            return;
        }
        // It is given back once: no handler leaves the frame in between.
        let _undisturbed = Undisturbed::new();
        if let (Some(_), Some(pop)) = (PUSH_LEFT.get(), POP_LEFT.get()) {
            // SAFETY: it is the last that this thread has pushed.
            unsafe { pop(&raw mut self.left, 0) };
        }
        keep_errno(|| self.arena.unpin(self.bytes.clone()));
    }
}

/// # Safety
///
/// It is what is pinned.
unsafe extern "C" fn give_back(pinned: *mut c_void) {
    // SAFETY: the caller's word.
    let pinned = unsafe { &*pinned.cast::<Pinned>() };
    pinned.arena.unpin(pinned.bytes.clone());
}

/// Does something while a range is in memory; none where it cannot be.
fn while_pinned<T>(
    arena: &'static Arena,
    bytes: Range<usize>,
    act: impl FnOnce() -> T,
) -> Option<T> {
    let mut pinned = Pinned::not_yet(arena, bytes.clone());
    arena.pin(bytes, || pinned.is_now()).then(act)
}

/// Whether a file is read past the page cache.
pub(crate) fn is_direct(file: c_int) -> bool {
    keep_errno(|| arena::is_direct(file))
}

/// The arena, where a range of bytes meets it and this is no child's copy.
pub(crate) fn meets_arena(at: *const c_void, len: usize) -> Option<&'static Arena> {
    let begin = at as usize;
    let bytes = begin..begin.saturating_add(len);
    let arena = (!bytes.is_empty()).then(|| arena_of(&bytes)).flatten();
    arena.filter(|arena| !arena.is_plain())
}

/// Reads into one buffer, piece by piece where it is the arena's; `read` has what of it to read and
/// how much was read before.
fn one(
    file: c_int,
    at: *mut c_void,
    len: usize,
    read: impl Fn(*mut c_void, usize, usize) -> isize,
) -> isize {
    match meets_arena(at, len).filter(|_| is_direct(file)) {
        None => read(at, len, 0),
        Some(arena) => in_pieces(arena, (at, len), PIECE_BYTES_MIN, read),
    }
}

/// The same, in pieces of no less than so many bytes but the last.
pub(crate) fn in_pieces(
    arena: &'static Arena,
    (at, len): (*mut c_void, usize),
    least: usize,
    read: impl Fn(*mut c_void, usize, usize) -> isize,
) -> isize {
    let (mut done, mut piece) = (0, PIECE_BYTES.max(least));
    while done < len {
        let wanted = piece.min(len - done);
        let to = at.wrapping_byte_add(done);
        let bytes = to as usize..to as usize + wanted;
        let Some(read) = while_pinned(arena, bytes, || read(to, wanted, done)) else {
            if piece / 2 >= least {
                piece /= 2;
                continue;
            }
            return if done > 0 {
                done as isize
            } else {
                failed(libc::ENOMEM) as isize
            };
        };
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

/// Reads into several; one after the other where some are the arena's and past the page cache.
/// `read` has what to read into, and how much was read before.
///
/// # Safety
///
/// As `readv`.
unsafe fn several(
    file: c_int,
    buffers: *const iovec,
    count: c_int,
    read: impl Fn(*const iovec, c_int, usize) -> isize,
) -> isize {
    // What is wrong in the call the kernel says, and may be asked for it: nothing is read before.
    let is_right = (1..=BUFFERS_MOST).contains(&count) && !buffers.is_null();
    if arena().is_none() || !is_right || !is_direct(file) {
        return read(buffers, count, 0);
    }
    // SAFETY: the caller's word.
    let each = unsafe { std::slice::from_raw_parts(buffers, count as usize) };
    let meets = |buffer: &iovec| meets_arena(buffer.iov_base, buffer.iov_len).is_some();
    if !each.iter().any(meets) {
        return read(buffers, count, 0);
    }
    let mut done = 0;
    for buffer in each {
        let was = one(file, buffer.iov_base, buffer.iov_len, |at, len, before| {
            let buffer = iovec {
                iov_base: at,
                iov_len: len,
            };
            read(&raw const buffer, 1, done + before)
        });
        match was {
            ..0 if done > 0 => break,
            ..0 => return was,
            was => done += was as usize,
        }
        if (was as usize) < buffer.iov_len {
            break;
        }
    }
    done as isize
}

// SAFETY: who calls one keeps to what the C library says of it.
type Read = unsafe extern "C-unwind" fn(c_int, *mut c_void, usize) -> isize;
type ReadAt = unsafe extern "C-unwind" fn(c_int, *mut c_void, usize, off_t) -> isize;
type ReadInto = unsafe extern "C-unwind" fn(c_int, *const iovec, c_int) -> isize;
type ReadIntoAt = unsafe extern "C-unwind" fn(c_int, *const iovec, c_int, off_t) -> isize;
type ReadIntoAtWith =
    unsafe extern "C-unwind" fn(c_int, *const iovec, c_int, off_t, c_int) -> isize;

// The C library's functions, not system calls: a thread may be cancelled in them.
// SAFETY: that is its type.
static READ: Real<Read> = unsafe { Real::new(c"read") };
// SAFETY: that is its type.
static READ_AT: Real<ReadAt> = unsafe { Real::new(c"pread") };
// SAFETY: that is its type.
static READ_INTO: Real<ReadInto> = unsafe { Real::new(c"readv") };
// SAFETY: that is its type.
static READ_INTO_AT: Real<ReadIntoAt> = unsafe { Real::new(c"preadv") };
// SAFETY: that is its type.
static READ_INTO_AT_WITH: Real<ReadIntoAtWith> = unsafe { Real::new(c"preadv2") };

// SAFETY: as above.
type Call =
    unsafe extern "C-unwind" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

// SAFETY: it takes as many as a system call has, and looks at no others than that call does.
static CALL: Real<Call> = unsafe { Real::new(c"syscall") };

// SAFETY: as above.
type Set = unsafe extern "C" fn(*mut libc::aiocb) -> c_int;
type SetAll =
    unsafe extern "C" fn(c_int, *const *mut libc::aiocb, c_int, *mut libc::sigevent) -> c_int;

// SAFETY: as above.
type WriteFar = unsafe extern "C" fn(
    libc::pid_t,
    *const iovec,
    libc::c_ulong,
    *const iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

// SAFETY: as above.
type PushLeft = unsafe extern "C" fn(*mut Left, unsafe extern "C" fn(*mut c_void), *mut c_void);
type PopLeft = unsafe extern "C" fn(*mut Left, c_int);

// SAFETY: that is its type.
static PUSH_LEFT: Real<PushLeft> = unsafe { Real::new(c"_pthread_cleanup_push") };
// SAFETY: that is its type.
static POP_LEFT: Real<PopLeft> = unsafe { Real::new(c"_pthread_cleanup_pop") };

// SAFETY: that is its type.
static WRITE_FAR: Real<WriteFar> = unsafe { Real::new(c"process_vm_writev") };
// SAFETY: that is its type.
static AIO_READ: Real<Set> = unsafe { Real::new(c"aio_read") };
// SAFETY: that is its type.
static LIO_LISTIO: Real<SetAll> = unsafe { Real::new(c"lio_listio") };

/// Looks for what it needs of the C library, and where errors go.
pub(crate) fn look_up() {
    arena::remember_errors();
    crate::streams::look_up();
    let _ = PUSH_LEFT.get();
    let _ = POP_LEFT.get();
    let _ = CALL.get();
    let _ = WRITE_FAR.get();
    let _ = AIO_READ.get();
    let _ = LIO_LISTIO.get();
    let _ = READ.get();
    let _ = READ_AT.get();
    let _ = READ_INTO.get();
    let _ = READ_INTO_AT.get();
    let _ = READ_INTO_AT_WITH.get();
}

/// # Safety
///
/// As `read`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn read(file: c_int, at: *mut c_void, len: usize) -> isize {
    let Some(real) = READ.get() else {
        return failed(libc::ENOSYS) as isize;
    };
    // SAFETY: the caller's word.
    one(file, at, len, |at, len, _| unsafe { real(file, at, len) })
}

/// # Safety
///
/// As `read`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read(file: c_int, at: *mut c_void, len: usize) -> isize {
    // SAFETY: the caller's word.
    unsafe { read(file, at, len) }
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
    check_room(Some(len), room);
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
    let Some(real) = READ_AT.get() else {
        return failed(libc::ENOSYS) as isize;
    };
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
/// As `pread64`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __pread64(
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
    check_room(Some(len), room);
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
    let Some(real) = READ_INTO.get() else {
        return failed(libc::ENOSYS) as isize;
    };
    // SAFETY: the caller's word.
    unsafe {
        several(file, buffers, count, |buffers, count, _| {
            real(file, buffers, count)
        })
    }
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
    let Some(real) = READ_INTO_AT.get() else {
        return failed(libc::ENOSYS) as isize;
    };
    // SAFETY: the caller's word.
    unsafe {
        several(file, buffers, count, |buffers, count, done| {
            real(file, buffers, count, offset + done as off_t)
        })
    }
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
    let Some(real) = READ_INTO_AT_WITH.get() else {
        return failed(libc::ENOSYS) as isize;
    };
    let read = |buffers, count, done: usize| {
        // -1 is where the file stands.
        let offset = if offset == -1 {
            -1
        } else {
            offset + done as off_t
        };
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

/// A system call that is made as it is.
///
/// # Safety
///
/// As `syscall`.
pub(crate) unsafe fn by_number(number: c_long, [a, b, c, d, e]: [c_long; 5]) -> c_long {
    match CALL.get() {
        // SAFETY: the caller's word.
        Some(real) => unsafe { real(number, a, b, c, d, e, 0) },
        None => failed(libc::ENOSYS).into(),
    }
}

/// Any system call: those that are looked at are as the functions of their names, but that no
/// thread is cancelled in them.
///
/// # Safety
///
/// As `syscall`: of what the call does not have there may be anything.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let Some(real) = CALL.get() else {
        return failed(libc::ENOSYS).into();
    };
    let (file, count, at) = (a as c_int, c as c_int, b as *mut c_void);
    // Of a call that has no place in the file there is anything.
    let far = |offset: c_long, done: usize| offset.wrapping_add(done as c_long);
    // SAFETY: the caller's word, here and below.
    let one_by = |at: *mut c_void, len: usize, done| unsafe {
        real(number, a, at as c_long, len as c_long, far(d, done), e, f)
    };
    // SAFETY: as above.
    let several_by = |buffers: *const iovec, count: c_int, done| unsafe {
        // -1 is where the file stands.
        let d = if number == libc::SYS_preadv2 && d == -1 {
            d
        } else {
            far(d, done)
        };
        real(number, a, buffers as c_long, count.into(), d, e, f)
    };
    match number {
        libc::SYS_read | libc::SYS_pread64 => one(file, at, c as usize, |at, len, done| {
            one_by(at, len, done) as isize
        }) as c_long,
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => {
            let read = |buffers, count, done| several_by(buffers, count, done) as isize;
            // SAFETY: as above.
            unsafe { several(file, b as *const iovec, count, read) as c_long }
        }
        libc::SYS_process_madvise => {
            let (parts, flags) = (b as *const iovec, e as c_uint);
            // SAFETY: as above.
            unsafe {
                mappings::process_madvise(file, parts, c as usize, d as c_int, flags) as c_long
            }
        }
        // SAFETY: as above.
        libc::SYS_setrlimit => unsafe {
            limits::setrlimit64(a as c_uint, b as *const libc::rlimit64).into()
        },
        // SAFETY: as above.
        libc::SYS_prlimit64 => unsafe {
            let (new, old) = (c as *const libc::rlimit64, d as *mut libc::rlimit64);
            limits::prlimit64(file, b as c_uint, new, old).into()
        },
        libc::SYS_process_vm_writev if may_have_arena() => {
            refuse(&SAID, "process_vm_writev", libc::ENOSYS).into()
        }
        // SAFETY: as above.
        _ => unsafe { real(number, a, b, c, d, e, f) },
    }
}

/// Of those below one is said.
static SAID: Once = Once::new();

/// Not with an arena on either side: the kernel holds pages of the other process, as many as are
/// written to at once, and copies then. One that left meanwhile would be without what is written.
///
/// # Safety
///
/// As `process_vm_writev`.
#[unsafe(no_mangle)]
unsafe extern "C" fn process_vm_writev(
    process: libc::pid_t,
    from: *const iovec,
    from_count: libc::c_ulong,
    to: *const iovec,
    to_count: libc::c_ulong,
    flags: libc::c_ulong,
) -> isize {
    let Some(real) = WRITE_FAR.get() else {
        return failed(libc::ENOSYS) as isize;
    };
    if may_have_arena() {
        return refuse(&SAID, "process_vm_writev", libc::ENOSYS) as isize;
    }
    // SAFETY: the caller's word.
    unsafe { real(process, from, from_count, to, to_count, flags) }
}

/// Whether it reads into the arena past the page cache, in a thread of the C library's.
///
/// # Safety
///
/// It is null, or one.
unsafe fn is_past_us(one: *const libc::aiocb) -> bool {
    // SAFETY: the caller's word.
    let Some(one) = (unsafe { one.as_ref() }) else {
        return false;
    };
    let at = one.aio_buf.cast_const().cast();
    meets_arena(at, one.aio_nbytes).is_some() && is_direct(one.aio_fildes)
}

/// # Safety
///
/// As `aio_read`.
#[unsafe(no_mangle)]
unsafe extern "C" fn aio_read(one: *mut libc::aiocb) -> c_int {
    let Some(real) = AIO_READ.get() else {
        return failed(libc::ENOSYS);
    };
    // SAFETY: the caller's word.
    if unsafe { is_past_us(one) } {
        return refuse(
            &SAID,
            "aio_read past the page cache (O_DIRECT)",
            libc::ENOSYS,
        );
    }
    // SAFETY: the caller's word.
    unsafe { real(one) }
}

/// # Safety
///
/// As `aio_read64`.
#[unsafe(no_mangle)]
unsafe extern "C" fn aio_read64(one: *mut libc::aiocb) -> c_int {
    // SAFETY: the caller's word.
    unsafe { aio_read(one) }
}

/// # Safety
///
/// As `lio_listio`.
#[unsafe(no_mangle)]
unsafe extern "C" fn lio_listio(
    mode: c_int,
    all: *const *mut libc::aiocb,
    count: c_int,
    event: *mut libc::sigevent,
) -> c_int {
    let Some(real) = LIO_LISTIO.get() else {
        return failed(libc::ENOSYS);
    };
    let len = usize::try_from(count).unwrap_or(0);
    // SAFETY: the caller's word.
    if !all.is_null() && (0..len).any(|number| unsafe { is_past_us(*all.add(number)) }) {
        return refuse(
            &SAID,
            "lio_listio past the page cache (O_DIRECT)",
            libc::ENOSYS,
        );
    }
    // SAFETY: the caller's word.
    unsafe { real(mode, all, count, event) }
}

/// # Safety
///
/// As `lio_listio64`.
#[unsafe(no_mangle)]
unsafe extern "C" fn lio_listio64(
    mode: c_int,
    all: *const *mut libc::aiocb,
    count: c_int,
    event: *mut libc::sigevent,
) -> c_int {
    // SAFETY: the caller's word.
    unsafe { lio_listio(mode, all, count, event) }
}
