//! How long files of this process may be (`RLIMIT_FSIZE`): pages of an arena are written to files,
//! those that are in memory too, and where these may not be as long a page could not be had.
//!
//! What it never does: refuse another limit, or one of another process; that includes a child of
//! `vfork`.
//!
//! *Thread safety*: all of it.

use crate::process::arena;
use crate::refuse;
use crate::transfers::by_number;
use libc::{c_int, c_long, c_uint, pid_t, rlimit64};
use std::ptr::null_mut;
use std::sync::Once;

/// Whether a limit is less than the arena needs.
///
/// # Safety
///
/// It is null, or one.
unsafe fn is_too_short(process: pid_t, what: c_uint, new: *const rlimit64) -> bool {
    let Some(arena) = arena().filter(|arena| !arena.is_plain()) else {
        return false;
    };
    let whose = match process {
        0 => std::process::id(),
        other => other as u32,
    };
    // SAFETY: the caller's word.
    let new = unsafe { new.as_ref() };
    what == libc::RLIMIT_FSIZE
        && whose == arena.process()
        && new.is_some_and(|new| new.rlim_cur < arena.file_bytes())
}

/// # Safety
///
/// As `prlimit64`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn prlimit64(
    process: pid_t,
    what: c_uint,
    new: *const rlimit64,
    old: *mut rlimit64,
) -> c_int {
    static SAID: Once = Once::new();
    // SAFETY: the caller's word.
    if unsafe { is_too_short(process, what, new) } {
        let call = "a limit of files' length (RLIMIT_FSIZE) below the arena's";
        return refuse(&SAID, call, libc::EPERM);
    }
    let (process, what) = (c_long::from(process), c_long::from(what));
    let all = [process, what, new as c_long, old as c_long, 0];
    // SAFETY: the caller's word.
    unsafe { by_number(libc::SYS_prlimit64, all) as c_int }
}

/// # Safety
///
/// As `prlimit`.
#[unsafe(no_mangle)]
unsafe extern "C" fn prlimit(
    process: pid_t,
    what: c_uint,
    new: *const rlimit64,
    old: *mut rlimit64,
) -> c_int {
    // SAFETY: the caller's word; both kinds of limits are the same here.
    unsafe { prlimit64(process, what, new, old) }
}

/// # Safety
///
/// As `setrlimit64`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn setrlimit64(what: c_uint, new: *const rlimit64) -> c_int {
    // SAFETY: the caller's word.
    unsafe { prlimit64(0, what, new, null_mut()) }
}

/// # Safety
///
/// As `setrlimit`.
#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit(what: c_uint, new: *const rlimit64) -> c_int {
    // SAFETY: as above.
    unsafe { setrlimit64(what, new) }
}
