//! Where a program's errors go: what is its descriptor 2, unless that is another file by now, which
//! may be one of its data.
//!
//! What it never does: write into a file that was not there when the program began, but to a
//! terminal, or where all that is written goes to the end, as of a log.
//!
//! *Thread safety*: all of it.

use libc::{c_int, stat};
use std::fs;
use std::os::fd::RawFd;
use std::sync::OnceLock;

/// The program's own.
pub(super) const ERRORS: RawFd = 2;

/// Device and inode of what it was at first; none where there was nothing.
static AT_FIRST: OnceLock<Option<(u64, u64)>> = OnceLock::new();

/// What is there now is where errors go. Until this is called all is.
pub fn remember_errors() {
    AT_FIRST.get_or_init(|| told(ERRORS).map(|about| (about.st_dev, about.st_ino)));
}

fn told(file: RawFd) -> Option<stat> {
    // SAFETY: zeros are a `stat`, into which the call writes.
    unsafe {
        let mut about = std::mem::zeroed();
        (libc::fstat(file, &raw mut about) == 0).then_some(about)
    }
}

/// Whether lines of ours may go to a file; how it is open (`O_APPEND`) is looked up where it
/// matters.
pub(super) fn are_for(file: RawFd, how: impl FnOnce() -> c_int) -> bool {
    let Some(at_first) = AT_FIRST.get() else {
        return true;
    };
    let Some(about) = told(file) else {
        return false;
    };
    *at_first == Some((about.st_dev, about.st_ino))
        || about.st_mode & libc::S_IFMT == libc::S_IFCHR
        || how() & libc::O_APPEND != 0
}

/// How the program's own is open, for a thread with other descriptors.
pub(super) fn of_program() -> c_int {
    let told = fs::read_to_string(format!("/proc/self/fdinfo/{ERRORS}")).unwrap_or_default();
    flags(&told).unwrap_or(0)
}

fn flags(told: &str) -> Option<c_int> {
    let line = told.lines().find_map(|line| line.strip_prefix("flags:"))?;
    c_int::from_str_radix(line.trim(), 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_those_that_a_file_is_open_with() {
        let told = "pos:\t0\nflags:\t0102001\nmnt_id:\t29\n";
        assert_eq!(
            flags(told).map(|all| all & libc::O_APPEND),
            Some(libc::O_APPEND)
        );
        assert_eq!(flags("pos:\t0\n"), None);
    }
}
