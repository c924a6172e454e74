//! The system's calls, with addresses as numbers and errors as values.
//!
//! What it never does: keep an address; whose memory it is, its caller knows.

use libc::{c_int, c_void, pid_t};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

/// What a call says, as a value of `errno` where it failed.
pub(crate) type Said<T> = Result<T, i32>;

pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn done(value: c_int) -> Said<()> {
    if value == 0 { Ok(()) } else { Err(errno()) }
}

pub(crate) fn counted(value: isize) -> Said<usize> {
    usize::try_from(value).map_err(|_| errno())
}

fn pointer(at: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(at)
}

fn mapped(at: *mut c_void) -> Said<usize> {
    match at {
        libc::MAP_FAILED => Err(errno()),
        at => Ok(at.expose_provenance()),
    }
}

pub(crate) const RW: c_int = libc::PROT_READ | libc::PROT_WRITE;
pub(crate) const PRIVATE: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

pub(crate) fn mmap(at: usize, len: usize, prot: c_int, flags: c_int, fd: c_int) -> Said<usize> {
    // SAFETY: with MAP_FIXED the caller gives up what was there; else nothing is touched.
    mapped(unsafe { libc::mmap(pointer(at), len, prot, flags, fd, 0) })
}

/// The same by its other name.
pub(crate) fn mmap64(len: usize) -> Said<usize> {
    // SAFETY: new memory at an address that the system chooses.
    mapped(unsafe { libc::mmap64(ptr::null_mut(), len, RW, PRIVATE, -1, 0) })
}

pub(crate) fn munmap(at: usize, len: usize) -> Said<()> {
    // SAFETY: the caller has no more use for it.
    done(unsafe { libc::munmap(pointer(at), len) })
}

pub(crate) fn mremap(
    at: usize,
    len: usize,
    new_len: usize,
    flags: c_int,
    to: usize,
) -> Said<usize> {
    // SAFETY: the caller goes on with the address that is returned.
    mapped(unsafe { libc::mremap(pointer(at), len, new_len, flags, pointer(to)) })
}

pub(crate) fn mprotect(at: usize, len: usize, prot: c_int) -> Said<()> {
    // SAFETY: the caller touches it as it may from now on.
    done(unsafe { libc::mprotect(pointer(at), len, prot) })
}

pub(crate) fn madvise(at: usize, len: usize, advice: c_int) -> Said<()> {
    // SAFETY: the caller knows what the memory holds afterwards.
    done(unsafe { libc::madvise(pointer(at), len, advice) })
}

pub(crate) fn mlock(at: usize, len: usize) -> Said<()> {
    // SAFETY: what memory holds does not change.
    done(unsafe { libc::mlock(pointer(at), len) })
}

pub(crate) fn munlock(at: usize, len: usize) -> Said<()> {
    // SAFETY: what memory holds does not change.
    done(unsafe { libc::munlock(pointer(at), len) })
}

pub(crate) fn mlockall(flags: c_int) -> Said<()> {
    // SAFETY: what memory holds does not change.
    done(unsafe { libc::mlockall(flags) })
}

pub(crate) fn mincore(at: usize, len: usize) -> Said<Vec<u8>> {
    let mut told = vec![0; len.div_ceil(4096)];
    // SAFETY: there is a byte for each page.
    done(unsafe { libc::mincore(pointer(at), len, told.as_mut_ptr()) })?;
    Ok(told)
}

/// Whether the system itself can read the byte there.
pub(crate) fn can_read(at: usize) -> bool {
    static PIPE: OnceLock<(i32, i32)> = OnceLock::new();
    let (from, to) = *PIPE.get_or_init(pipe);
    match write(to, at, 1) {
        Ok(1) => {
            let mut byte = 0u8;
            let to = (&raw mut byte).expose_provenance();
            assert_eq!(read(from, to, 1), Ok(1));
            true
        }
        said => {
            assert_eq!(said, Err(libc::EFAULT));
            false
        }
    }
}

/// Whether nothing is left at an address: with the library it may be zeros instead of nothing.
pub(crate) fn is_gone(at: usize) -> bool {
    !can_read(at) || is_paged() && crate::memory::word(at).load(Relaxed) == 0
}

pub(crate) fn pipe() -> (i32, i32) {
    let mut ends = [0; 2];
    // SAFETY: there is room for both.
    done(unsafe { libc::pipe(ends.as_mut_ptr()) }).expect("a pipe");
    (ends[0], ends[1])
}

pub(crate) fn socketpair() -> (i32, i32) {
    let mut ends = [0; 2];
    // SAFETY: there is room for both.
    let said = unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) };
    done(said).expect("two sockets");
    (ends[0], ends[1])
}

pub(crate) fn close(fd: i32) {
    // SAFETY: the caller has no more use for it.
    done(unsafe { libc::close(fd) }).expect("closed");
}

pub(crate) fn read(fd: i32, at: usize, len: usize) -> Said<usize> {
    // SAFETY: the caller's memory, or the system says EFAULT.
    counted(unsafe { libc::read(fd, pointer(at), len) })
}

pub(crate) fn write(fd: i32, at: usize, len: usize) -> Said<usize> {
    // SAFETY: the caller's memory, or the system says EFAULT.
    counted(unsafe { libc::write(fd, pointer(at), len) })
}

pub(crate) fn pread(fd: i32, at: usize, len: usize, from: usize) -> Said<usize> {
    // SAFETY: the caller's memory, or the system says EFAULT.
    counted(unsafe { libc::pread(fd, pointer(at), len, from as i64) })
}

pub(crate) fn pwrite(fd: i32, at: usize, len: usize, to: usize) -> Said<usize> {
    // SAFETY: the caller's memory, or the system says EFAULT.
    counted(unsafe { libc::pwrite(fd, pointer(at), len, to as i64) })
}

/// Reads until all is there.
pub(crate) fn read_all(fd: i32, at: usize, len: usize) {
    let mut have = 0;
    while have < len {
        match read(fd, at + have, len - have) {
            Ok(0) => panic!("it ended after {have} of {len} bytes"),
            Ok(more) => have += more,
            Err(libc::EINTR) => {}
            Err(why) => panic!("reading into paged memory: errno {why}"),
        }
    }
}

/// Writes until all is gone.
pub(crate) fn write_all(fd: i32, at: usize, len: usize) {
    let mut gone = 0;
    while gone < len {
        match write(fd, at + gone, len - gone) {
            Ok(more) => gone += more,
            Err(libc::EINTR) => {}
            Err(why) => panic!("writing from paged memory: errno {why}"),
        }
    }
}

/// How a child came to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fork {
    /// By the library's call.
    Usual,
    /// By the one that runs no handlers.
    Bare,
    /// By the system's call.
    Raw,
}

// SAFETY: as glibc (2.34 and later) declares it.
unsafe extern "C" {
    #[link_name = "_Fork"]
    fn bare_fork() -> pid_t;
}

/// Runs `child` in a child of this process and ends it with what it returns; 101 where it panics.
pub(crate) fn fork_by(how: Fork, child: impl FnOnce() -> i32) -> pid_t {
    // The child has this thread alone; what it calls needs no lock that another one has, but those
    // that the library frees in it (malloc's).
    let pid = match how {
        // SAFETY: what the child calls may be called there.
        Fork::Usual => unsafe { libc::fork() },
        // SAFETY: as above.
        Fork::Bare => unsafe { bare_fork() },
        // SAFETY: as above.
        Fork::Raw => unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as pid_t },
    };
    if pid != 0 {
        assert!(pid > 0, "fork: errno {}", errno());
        return pid;
    }
    let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
    quit(status)
}

pub(crate) fn fork(child: impl FnOnce() -> i32) -> pid_t {
    fork_by(Fork::Usual, child)
}

/// Ends at once.
pub(crate) fn quit(status: i32) -> ! {
    // SAFETY: no destructor of this process is needed by another.
    unsafe { libc::_exit(status) }
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Status(i32),
    Signal(i32),
}

pub(crate) fn wait(pid: pid_t) -> End {
    let mut status = 0;
    loop {
        // SAFETY: a child of this process, which nobody else waits for.
        let said = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        match said {
            -1 if errno() == libc::EINTR => {}
            -1 => panic!("waitpid: errno {}", errno()),
            _ => break,
        }
    }
    match libc::WIFEXITED(status) {
        true => End::Status(libc::WEXITSTATUS(status)),
        false => End::Signal(libc::WTERMSIG(status)),
    }
}

/// The child's checks passed.
pub(crate) fn passed(pid: pid_t) {
    assert_eq!(wait(pid), End::Status(0), "child {pid}");
}

/// Whether the suite runs this with the library.
pub(crate) fn is_paged() -> bool {
    std::env::var_os("NYX_SWAP_ARENA").is_some()
}
