//! `mmap`, and all calls that are made on what it gave.
//!
//! What it never does: let a call of the kernel's change the arena behind its back.
//!
//! *Thread safety*: all of it.

use crate::process::{arena, arena_or_begin, never};
use crate::transfers::{BUFFERS_MOST, by_number};
use crate::{LEAST_BYTES, arena_of, errno, failed, keep_errno, memory, refuse};
use libc::{MAP_FAILED, c_int, c_long, c_uint, c_void, iovec, off_t};
use nyx_swap::arena::{Arena, Whose, is_own_thread};
use nyx_swap::region::PAGE_BYTES;
use std::ops::Range;
use std::sync::Once;

const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;
const PRIVATE: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
/// Advice that one process may give another: how memory is had, not what it holds.
const TO_OTHERS: [c_int; 4] = [
    libc::MADV_COLD,
    libc::MADV_PAGEOUT,
    libc::MADV_WILLNEED,
    libc::MADV_COLLAPSE,
];

/// The bytes that a call is about, in whole pages; none where there is no such range.
fn pages(at: *mut c_void, len: usize) -> Option<Range<usize>> {
    let (at, len) = (at as usize, len.checked_next_multiple_of(PAGE_BYTES)?);
    at.is_multiple_of(PAGE_BYTES)
        .then(|| at.checked_add(len).map(|end| at..end))?
}

/// # Safety
///
/// As `mmap`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off_t,
) -> *mut c_void {
    let is_ours = at.is_null()
        && len >= LEAST_BYTES
        && protection == READ_WRITE
        && flags & !libc::MAP_NORESERVE == PRIVATE;
    if is_ours
        && let Some(piece) = arena_or_begin().and_then(|arena| arena.allocate(len, PAGE_BYTES))
    {
        return memory::zeroed(piece, len);
    }
    if flags & libc::MAP_FIXED != 0
        && let Some(bytes) = pages(at, len)
        && let Some(arena) = arena_of(&bytes)
    {
        // SAFETY: the caller's word.
        return unsafe { over(arena, bytes, len, protection, flags, file, offset) };
    }
    // SAFETY: the caller's word.
    unsafe {
        libc::syscall(libc::SYS_mmap, at, len, protection, flags, file, offset) as *mut c_void
    }
}

/// Maps something over a part of the arena: made elsewhere first, since what is there is to stay
/// where that is refused.
///
/// # Safety
///
/// As `mmap`.
unsafe fn over(
    arena: &Arena,
    bytes: Range<usize>,
    len: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off_t,
) -> *mut c_void {
    let (anywhere, flags) = (0usize, flags & !libc::MAP_FIXED);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let made = unsafe {
        libc::syscall(
            libc::SYS_mmap,
            anywhere,
            len,
            protection,
            flags,
            file,
            offset,
        ) as *mut c_void
    };
    if made == MAP_FAILED {
        return MAP_FAILED;
    }
    // SAFETY: it was just made, and is so long.
    unsafe { put(arena, made, len, bytes) }
}

/// Moves a mapping of so many bytes over a part of the arena. Where the kernel refuses that nothing
/// is there afterwards, as with a mapping that the kernel gave up before it could make another.
///
/// # Safety
///
/// It is the caller's, who gives up what is at `to`.
unsafe fn put(arena: &Arena, made: *mut c_void, len: usize, to: Range<usize>) -> *mut c_void {
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: from where it was made to where the caller wants it.
    arena.lose(to.clone(), || unsafe {
        let moved = libc::syscall(libc::SYS_mremap, made, len, len, how, to.start) as *mut c_void;
        if moved == MAP_FAILED {
            let errno = *libc::__errno_location();
            libc::syscall(libc::SYS_munmap, made, len);
            libc::syscall(libc::SYS_munmap, to.start, to.len());
            failed(errno);
        }
        moved
    })
}

/// # Safety
///
/// As `shmat`.
#[unsafe(no_mangle)]
unsafe extern "C" fn shmat(segment: c_int, at: *const c_void, flags: c_int) -> *mut c_void {
    let at = at as usize;
    let at = match flags & libc::SHM_RND {
        0 => at,
        _ => at / PAGE_BYTES * PAGE_BYTES,
    };
    let attach = |at: usize, flags: c_int| {
        // SAFETY: the caller's word.
        unsafe { libc::syscall(libc::SYS_shmat, segment, at, flags) as *mut c_void }
    };
    if flags & libc::SHM_REMAP == 0 {
        return attach(at, flags);
    }
    // SAFETY: zeros are what is told of a segment, into which the call writes.
    let (is_told, len) = unsafe {
        let mut about = std::mem::zeroed::<libc::shmid_ds>();
        let told = libc::shmctl(segment, libc::IPC_STAT, &raw mut about);
        (told == 0, about.shm_segsz)
    };
    match pages(at as *mut c_void, len).and_then(|bytes| Some((arena_of(&bytes)?, bytes))) {
        // What is wrong the kernel says.
        None => attach(at, flags),
        Some(_) if !is_told => MAP_FAILED,
        Some((arena, bytes)) => match attach(0, flags & !libc::SHM_REMAP) {
            MAP_FAILED => MAP_FAILED,
            // SAFETY: it was just attached, and is so long.
            made => unsafe { put(arena, made, bytes.len(), bytes) },
        },
    }
}

/// # Safety
///
/// As `mmap64`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's word.
    unsafe { mmap(at, len, protection, flags, file, offset) }
}

/// # Safety
///
/// As `munmap`.
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(at: *mut c_void, len: usize) -> c_int {
    if let Some(bytes) = pages(at, len).filter(|bytes| !bytes.is_empty())
        && let Some(arena) = arena_of(&bytes)
    {
        arena.unmap(bytes);
        return 0;
    }
    // SAFETY: the caller's word.
    unsafe { libc::syscall(libc::SYS_munmap, at, len) as c_int }
}

/// What becomes of a call on a range.
enum To<'a> {
    Kernel,
    Arena(&'a Arena, Range<usize>),
    /// Each part of it by itself: some are the arena's.
    Parts(Vec<Range<usize>>),
    /// Some of it is nobody's: no call does that.
    Neither,
}

/// Makes a call on each part; the first that fails ends it, as with the kernel.
fn each(parts: Vec<Range<usize>>, call: impl Fn(*mut c_void, usize) -> c_int) -> c_int {
    let mut calls = (parts.into_iter()).map(|part| call(part.start as *mut c_void, part.len()));
    calls.find(|&said| said != 0).unwrap_or(0)
}

fn to(at: *mut c_void, len: usize) -> To<'static> {
    let Some(bytes) = pages(at, len).filter(|bytes| !bytes.is_empty()) else {
        return To::Kernel;
    };
    let Some(arena) = arena_of(&bytes) else {
        return To::Kernel;
    };
    match arena.whose(&bytes) {
        Whose::Arenas => To::Arena(arena, bytes),
        Whose::Others => To::Kernel,
        Whose::Both => arena.parts(&bytes).map_or(To::Neither, To::Parts),
    }
}

/// # Safety
///
/// As `mprotect`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(at: *mut c_void, len: usize, protection: c_int) -> c_int {
    let to = to(at, len);
    if let To::Neither = to {
        return failed(libc::ENOMEM);
    }
    if let To::Parts(parts) = to {
        // SAFETY: the caller's word.
        return each(parts, |at, len| unsafe { mprotect(at, len, protection) });
    }
    // SAFETY: the caller's word.
    let done = unsafe { libc::syscall(libc::SYS_mprotect, at, len, protection) as c_int };
    if let (To::Arena(arena, bytes), 0) = (to, done) {
        arena.protected(bytes, protection);
    }
    done
}

/// # Safety
///
/// As `pkey_mprotect`.
#[unsafe(no_mangle)]
unsafe extern "C" fn pkey_mprotect(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    key: c_int,
) -> c_int {
    match to(at, len) {
        // A key would have to be known in a child, too.
        To::Arena(..) | To::Parts(_) if key != -1 => failed(libc::EINVAL),
        To::Kernel => {
            // SAFETY: the caller's word.
            unsafe { libc::syscall(libc::SYS_pkey_mprotect, at, len, protection, key) as c_int }
        }
        // SAFETY: as above.
        _ => unsafe { mprotect(at, len, protection) },
    }
}

/// # Safety
///
/// As `madvise`.
#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    let (arena, bytes) = match to(at, len) {
        // SAFETY: the caller's word.
        To::Kernel => return unsafe { libc::syscall(libc::SYS_madvise, at, len, advice) as c_int },
        To::Neither => return failed(libc::ENOMEM),
        // SAFETY: the caller's word.
        To::Parts(parts) => return each(parts, |at, len| unsafe { madvise(at, len, advice) }),
        To::Arena(arena, bytes) => (arena, bytes),
    };
    match advice {
        libc::MADV_DONTNEED | libc::MADV_FREE => match arena.forget(bytes) {
            Ok(()) => 0,
            Err(errno) => failed(errno),
        },
        libc::MADV_WILLNEED | libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => {
            arena.will_need(bytes);
            0
        }
        // A child has a copy whether it is to or not; all else is about how, not about what.
        libc::MADV_NORMAL..=libc::MADV_SEQUENTIAL
        | libc::MADV_DONTFORK
        | libc::MADV_DOFORK
        | libc::MADV_MERGEABLE..=libc::MADV_DODUMP
        | libc::MADV_KEEPONFORK..=libc::MADV_PAGEOUT => 0,
        // What would be seen, and what is not known.
        _ => failed(libc::EINVAL),
    }
}

/// # Safety
///
/// As `posix_madvise`.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    // What memory holds is not thrown away by this one.
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    // SAFETY: the caller's word.
    keep_errno(|| match unsafe { madvise(at, len, advice) } {
        0 => 0,
        _ => errno(),
    })
}

/// # Safety
///
/// As `process_madvise`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn process_madvise(
    process: c_int,
    parts: *const iovec,
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    let number = libc::SYS_process_madvise;
    let (process, advised, how) = (process.into(), advice.into(), flags.into());
    let kernel = |parts: *const iovec, count: usize| {
        let all = [process, parts as c_long, count as c_long, advised, how];
        // SAFETY: the caller's word.
        unsafe { by_number(number, all) as isize }
    };
    let is_ours = arena().is_some_and(|arena| !arena.is_plain());
    // The region's own threads unmap pages by it.
    if !is_ours || is_own_thread() || TO_OTHERS.contains(&advice) {
        return kernel(parts, count);
    }
    // All else the kernel takes for the caller's own memory only: that it takes it for nothing at
    // all says whose it is.
    if count > BUFFERS_MOST as usize || parts.is_null() {
        return kernel(parts, count);
    }
    let said = kernel(std::ptr::null(), 0);
    if said != 0 {
        return said;
    }
    let mut done = 0;
    // SAFETY: the caller's word.
    for part in unsafe { std::slice::from_raw_parts(parts, count) } {
        // SAFETY: as above.
        let said = unsafe { madvise(part.iov_base, part.iov_len, advice) };
        if said != 0 {
            return if done > 0 { done } else { said as isize };
        }
        done += part.iov_len as isize;
    }
    done
}

/// # Safety
///
/// As `mlock`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlock(at: *const c_void, len: usize) -> c_int {
    // SAFETY: the caller's word.
    unsafe { mlock2(at, len, 0) }
}

/// # Safety
///
/// As `mlock2`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlock2(at: *const c_void, len: usize, flags: libc::c_uint) -> c_int {
    match whole(at, len) {
        // SAFETY: the caller's word.
        To::Kernel => unsafe { libc::syscall(libc::SYS_mlock2, at, len, flags) as c_int },
        To::Neither => failed(libc::ENOMEM),
        // SAFETY: the caller's word.
        To::Parts(parts) => each(parts, |at, len| unsafe { mlock2(at, len, flags) }),
        To::Arena(arena, bytes) => match arena.keep(bytes) {
            Ok(()) => 0,
            Err(errno) => failed(errno),
        },
    }
}

/// # Safety
///
/// As `munlock`.
#[unsafe(no_mangle)]
unsafe extern "C" fn munlock(at: *const c_void, len: usize) -> c_int {
    match whole(at, len) {
        // SAFETY: the caller's word.
        To::Kernel => unsafe { libc::syscall(libc::SYS_munlock, at, len) as c_int },
        To::Neither => failed(libc::ENOMEM),
        // SAFETY: the caller's word.
        To::Parts(parts) => each(parts, |at, len| unsafe { munlock(at, len) }),
        To::Arena(arena, bytes) => {
            arena.let_go(bytes);
            0
        }
    }
}

/// Locks are of all pages that a range meets.
fn whole(at: *const c_void, len: usize) -> To<'static> {
    let begin = at as usize / PAGE_BYTES * PAGE_BYTES;
    match (at as usize - begin).checked_add(len) {
        Some(len) => to(begin as *mut c_void, len),
        None => To::Kernel,
    }
}

/// # Safety
///
/// As `mlockall`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    static SAID: Once = Once::new();
    // All of the arena would be brought into memory.
    if !never() && arena().is_none_or(|arena| !arena.is_plain()) {
        return refuse(&SAID, "mlockall", libc::ENOMEM);
    }
    // SAFETY: the caller's word.
    unsafe { libc::syscall(libc::SYS_mlockall, flags) as c_int }
}

/// # Safety
///
/// As `munlockall`.
#[unsafe(no_mangle)]
unsafe extern "C" fn munlockall() -> c_int {
    if let Some(arena) = arena().filter(|arena| !arena.is_plain()) {
        arena.let_go(arena.range());
    }
    // SAFETY: the caller's word.
    unsafe { libc::syscall(libc::SYS_munlockall) as c_int }
}

/// # Safety
///
/// As `mremap`; the address behind `flags` counts with `MREMAP_FIXED` only.
#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    at: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new_at: *mut c_void,
) -> *mut c_void {
    let is_fixed = flags & libc::MREMAP_FIXED != 0;
    let refused = |errno| {
        failed(errno);
        MAP_FAILED
    };
    if old_len == 0 && arena_of(&(at as usize..at as usize + 1)).is_some_and(|one| !one.is_plain())
    {
        // Another view of a shared mapping; to the program it is private.
        return refused(libc::EINVAL);
    }
    match to(at, old_len) {
        To::Kernel => {
            if is_fixed
                && flags & libc::MREMAP_MAYMOVE != 0
                && let Some(new) = pages(new_at, new_len)
                && let Some(arena) = arena_of(&new)
            {
                // SAFETY: the caller's word.
                return unsafe { move_over(arena, at, old_len, flags, new) };
            }
            // SAFETY: the caller's word.
            unsafe {
                libc::syscall(libc::SYS_mremap, at, old_len, new_len, flags, new_at) as *mut c_void
            }
        }
        // As the kernel says of several mappings.
        To::Neither | To::Parts(_) => refused(libc::EFAULT),
        To::Arena(arena, old) => {
            let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            let Some(new_len) = new_len.checked_next_multiple_of(PAGE_BYTES) else {
                return refused(libc::EINVAL);
            };
            if new_len == 0 || flags & !known != 0 || flags == libc::MREMAP_FIXED {
                return refused(libc::EINVAL);
            }
            if !is_fixed && new_len <= old.len() {
                arena.unmap(old.start + new_len..old.end);
                return at;
            }
            let is_whole = arena.len_at(old.start) == Some(old.len());
            if !is_fixed && is_whole && arena.resize(old.start, new_len) {
                return at;
            }
            if flags & libc::MREMAP_MAYMOVE == 0 || arena.is_protected(&old) {
                return refused(libc::ENOMEM);
            }
            // SAFETY: the caller's word.
            unsafe { move_to(arena, old, new_len, is_fixed.then_some(new_at)) }
        }
    }
}

/// Moves a mapping that is not the arena's over a part of it: anywhere first, since what is there
/// is to stay where that is refused.
///
/// # Safety
///
/// As `mremap`.
unsafe fn move_over(
    arena: &Arena,
    at: *mut c_void,
    old_len: usize,
    flags: c_int,
    new: Range<usize>,
) -> *mut c_void {
    let old = at as usize..(at as usize).saturating_add(old_len);
    if old.start < new.end && new.start < old.end {
        failed(libc::EINVAL);
        return MAP_FAILED;
    }
    let len = new.len();
    // SAFETY: the caller's word.
    unsafe {
        let anywhere = flags & !libc::MREMAP_FIXED;
        let moved = libc::syscall(libc::SYS_mremap, at, old_len, len, anywhere) as *mut c_void;
        match moved {
            MAP_FAILED => MAP_FAILED,
            moved => put(arena, moved, len, new),
        }
    }
}

/// Copies a range to a new one, or over what is at that address, and gives it up.
///
/// # Safety
///
/// As `mremap`.
unsafe fn move_to(
    arena: &Arena,
    old: Range<usize>,
    new_len: usize,
    new_at: Option<*mut c_void>,
) -> *mut c_void {
    let (new_at, flags) = match new_at {
        None => (std::ptr::null_mut(), PRIVATE),
        Some(new_at) => {
            let is_apart = pages(new_at, new_len)
                .is_some_and(|new| new.end <= old.start || old.end <= new.start);
            if !is_apart {
                failed(libc::EINVAL);
                return MAP_FAILED;
            }
            (new_at, PRIVATE | libc::MAP_FIXED)
        }
    };
    // SAFETY: the caller's word.
    let new = unsafe { mmap(new_at, new_len, READ_WRITE, flags, -1, 0) };
    if new != MAP_FAILED {
        // SAFETY: both have so much, and do not overlap.
        unsafe { new.copy_from_nonoverlapping(old.start as *const c_void, new_len.min(old.len())) };
        arena.unmap(old);
    }
    new
}

/// # Safety
///
/// As `remap_file_pages`.
#[unsafe(no_mangle)]
unsafe extern "C" fn remap_file_pages(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    offset: usize,
    flags: c_int,
) -> c_int {
    // To the program its memory is private, of which there is no such thing.
    if !matches!(to(at, len), To::Kernel) {
        return failed(libc::EINVAL);
    }
    // SAFETY: the caller's word.
    unsafe {
        libc::syscall(
            libc::SYS_remap_file_pages,
            at,
            len,
            protection,
            offset,
            flags,
        ) as c_int
    }
}
