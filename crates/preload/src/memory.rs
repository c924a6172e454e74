//! `malloc` and its kin: large memory from the arena, all else from the C library.
//!
//! What it never does: hand to the C library what is the arena's, or the other way; call its heap
//! while a fork waits for that (`theirs`).
//!
//! *Thread safety*: all of it.

use crate::gate::theirs;
use crate::process::{Real, arena, arena_or_begin};
use crate::{LEAST_BYTES, failed, keep_errno};
use libc::{c_int, c_void};
use nyx_swap::arena::{Arena, Piece};
use nyx_swap::region::PAGE_BYTES;
use std::ptr::null_mut;

// SAFETY: the C library has these for whoever takes the place of `malloc`; such are their types.
unsafe extern "C" {
    fn __libc_malloc(len: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, len: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, len: usize) -> *mut c_void;
    fn __libc_memalign(align: usize, len: usize) -> *mut c_void;
    fn __libc_free(old: *mut c_void);
}

// SAFETY: who calls it keeps to what the C library says of it.
type Usable = unsafe extern "C" fn(*mut c_void) -> usize;
// SAFETY: that is its type.
static USABLE: Real<Usable> = unsafe { Real::new(c"malloc_usable_size") };

// SAFETY: as above.
type Trim = unsafe extern "C" fn(usize) -> c_int;
type Tell = unsafe extern "C" fn() -> libc::mallinfo;
type TellMore = unsafe extern "C" fn() -> libc::mallinfo2;
// SAFETY: that is its type.
static TRIM: Real<Trim> = unsafe { Real::new(c"malloc_trim") };
// SAFETY: that is its type.
static TELL: Real<Tell> = unsafe { Real::new(c"mallinfo") };
// SAFETY: that is its type.
static TELL_MORE: Real<TellMore> = unsafe { Real::new(c"mallinfo2") };

/// Looks for what it needs of the C library.
pub(crate) fn look_up() {
    let _ = USABLE.get();
    let _ = TRIM.get();
    let _ = TELL.get();
    let _ = TELL_MORE.get();
}

/// A multiple of it is what `malloc` gives.
const ALIGN_BYTES: usize = 16;

/// Memory of the C library's, however large it is; null where there is none.
pub(crate) fn of_theirs(align: usize, len: usize) -> *mut c_void {
    // SAFETY: the call takes numbers only, and says what is wrong with them.
    theirs(|| unsafe { __libc_memalign(align, len) })
}

/// Gives back memory of the C library's.
///
/// # Safety
///
/// As `free`, and it is not the arena's.
#[inline]
pub(crate) unsafe fn free_theirs(at: *mut c_void) {
    // SAFETY: the caller's word.
    theirs(|| unsafe { __libc_free(at) });
}

/// Large memory, where the arena has it.
fn large(len: usize, align: usize) -> Option<Piece> {
    if len < LEAST_BYTES {
        return None;
    }
    arena_or_begin()?.allocate(len, align)
}

/// The arena, where this lies in it. In a child other memory may be there too.
fn arena_at(at: *mut c_void) -> Option<&'static Arena> {
    arena().filter(|arena| arena.range().contains(&(at as usize)))
}

/// The arena, where this is memory of it that was given as one; and how much.
fn of_arena(at: *mut c_void) -> Option<(&'static Arena, usize)> {
    let arena = arena_at(at)?;
    Some((arena, arena.len_at(at as usize)?))
}

/// # Safety
///
/// As `malloc`.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(len: usize) -> *mut c_void {
    match large(len, ALIGN_BYTES) {
        Some(piece) => piece.at as *mut c_void,
        // SAFETY: the caller's word.
        None => theirs(|| unsafe { __libc_malloc(len) }),
    }
}

/// # Safety
///
/// As `calloc`.
#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: usize, len: usize) -> *mut c_void {
    let all = count.checked_mul(len);
    match all.and_then(|all| large(all, ALIGN_BYTES)) {
        Some(piece) => zeroed(piece, count * len),
        // SAFETY: the caller's word.
        None => theirs(|| unsafe { __libc_calloc(count, len) }),
    }
}

/// The same memory, as zeros.
pub(crate) fn zeroed(piece: Piece, len: usize) -> *mut c_void {
    let at = piece.at as *mut c_void;
    if !piece.is_zero {
        // SAFETY: so much was just given, to this thread.
        unsafe { at.write_bytes(0, len) };
    }
    at
}

/// # Safety
///
/// As `free`.
#[unsafe(no_mangle)]
unsafe extern "C" fn free(at: *mut c_void) {
    if let Some(arena) = arena_at(at) {
        // `free` leaves it as it is.
        if keep_errno(|| arena.free(at as usize)) {
            return;
        }
    }
    // SAFETY: the caller's word, that it is the C library's or null.
    unsafe { free_theirs(at) };
}

/// # Safety
///
/// As `realloc`.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(old: *mut c_void, len: usize) -> *mut c_void {
    let ours = of_arena(old);
    if ours.is_none() && (len < LEAST_BYTES || arena_or_begin().is_none()) {
        // SAFETY: the caller's word.
        return theirs(|| unsafe { __libc_realloc(old, len) });
    }
    if let Some((arena, _)) = ours {
        if len == 0 {
            // SAFETY: as above.
            unsafe { free(old) };
            return null_mut();
        }
        if len >= LEAST_BYTES && arena.resize(old as usize, len) {
            return old;
        }
    }
    // SAFETY: as above; no more is copied than either has.
    unsafe {
        let has = match ours {
            Some((_, has)) => has,
            None => malloc_usable_size(old),
        };
        let new = malloc(len);
        if !new.is_null() {
            new.copy_from_nonoverlapping(old, has.min(len));
            free(old);
        }
        new
    }
}

/// # Safety
///
/// As `reallocarray`.
#[unsafe(no_mangle)]
unsafe extern "C" fn reallocarray(old: *mut c_void, count: usize, len: usize) -> *mut c_void {
    let Some(all) = count.checked_mul(len) else {
        failed(libc::ENOMEM);
        return null_mut();
    };
    // SAFETY: the caller's word.
    unsafe { realloc(old, all) }
}

/// # Safety
///
/// As `memalign`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memalign(align: usize, len: usize) -> *mut c_void {
    let piece = align.is_power_of_two().then(|| large(len, align)).flatten();
    match piece {
        Some(piece) => piece.at as *mut c_void,
        None => of_theirs(align, len),
    }
}

/// # Safety
///
/// As `aligned_alloc`.
#[unsafe(no_mangle)]
unsafe extern "C" fn aligned_alloc(align: usize, len: usize) -> *mut c_void {
    // SAFETY: the caller's word.
    unsafe { memalign(align, len) }
}

/// # Safety
///
/// As `posix_memalign`.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(into: *mut *mut c_void, align: usize, len: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    // SAFETY: the caller's word.
    let at = unsafe { memalign(align, len) };
    if at.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: as above.
    unsafe { into.write(at) };
    0
}

/// # Safety
///
/// As `valloc`.
#[unsafe(no_mangle)]
unsafe extern "C" fn valloc(len: usize) -> *mut c_void {
    // SAFETY: the caller's word.
    unsafe { memalign(PAGE_BYTES, len) }
}

/// # Safety
///
/// As `pvalloc`.
#[unsafe(no_mangle)]
unsafe extern "C" fn pvalloc(len: usize) -> *mut c_void {
    let Some(len) = len.checked_next_multiple_of(PAGE_BYTES) else {
        failed(libc::ENOMEM);
        return null_mut();
    };
    // SAFETY: the caller's word.
    unsafe { memalign(PAGE_BYTES, len) }
}

/// # Safety
///
/// As `malloc_usable_size`.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(at: *mut c_void) -> usize {
    if let Some((_, len)) = of_arena(at) {
        return len;
    }
    // SAFETY: the caller's word.
    USABLE.get().map_or(0, |real| unsafe { real(at) })
}

/// # Safety
///
/// As `malloc_trim`.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_trim(pad: usize) -> c_int {
    // SAFETY: the caller's word.
    TRIM.get().map_or(0, |real| theirs(|| unsafe { real(pad) }))
}

/// # Safety
///
/// As `mallinfo`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mallinfo() -> libc::mallinfo {
    match TELL.get() {
        // SAFETY: the caller's word.
        Some(real) => theirs(|| unsafe { real() }),
        // SAFETY: numbers, of which zeros are some.
        None => unsafe { std::mem::zeroed() },
    }
}

/// # Safety
///
/// As `mallinfo2`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mallinfo2() -> libc::mallinfo2 {
    match TELL_MORE.get() {
        // SAFETY: the caller's word.
        Some(real) => theirs(|| unsafe { real() }),
        // SAFETY: as above.
        None => unsafe { std::mem::zeroed() },
    }
}
