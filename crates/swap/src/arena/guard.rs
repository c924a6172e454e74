//! What a program must not do that has an arena, since it would go past the pager: have somebody
//! else write into pages that are held for that, and may leave meanwhile.
//!
//! Rings (`io_uring_setup`) and contexts (`io_setup`), by which devices write, and
//! `process_vm_writev`, which holds up to a thousand pages of another process and then copies, are
//! refused to the whole process, and to what it starts, by a filter of system calls: they say
//! `ENOSYS`, as on a kernel without them, and programs do as they do there. Where there is a ring
//! or a context already no arena begins.
//!
//! What it never does: refuse anything else.

use std::fs;
use std::io;
use std::mem::offset_of;

/// The number of this processor in a filter (`AUDIT_ARCH_`).
#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;

/// The descriptors of this thread, those of the program as long as they are no others.
pub(super) const OURS: &str = "/proc/thread-self/fd";
/// Those of the process's first thread.
pub(super) const PROGRAMS: &str = "/proc/self/fd";

/// Why no arena can begin, by these descriptors; none where it can.
pub(super) fn obstacle(descriptors: &str) -> Option<&'static str> {
    let links = fs::read_dir(descriptors).ok()?.flatten();
    let is_ring = |path: std::path::PathBuf| path.to_string_lossy().contains("io_uring");
    if links
        .filter_map(|link| fs::read_link(link.path()).ok())
        .any(is_ring)
    {
        return Some("the program has an io_uring, by which devices write into memory");
    }
    let maps = super::press::maps();
    let has_context = maps.lines().any(|line| line.contains("/[aio]"));
    has_context
        .then_some("the program has a context of io_setup, by which devices write into memory")
}

/// What is refused.
const REFUSED: [libc::c_long; 3] = [
    libc::SYS_io_uring_setup,
    libc::SYS_io_setup,
    libc::SYS_process_vm_writev,
];

/// From now on all threads are refused all of them.
///
/// # Errors
///
/// What the kernel says: another filter of one thread alone, for one.
pub(super) fn refuse() -> io::Result<()> {
    let data = |offset: usize| filter(BPF_LOAD, 0, 0, offset as u32);
    let [ring, context, other] = REFUSED.map(|call| call as u32);
    let no = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    let program = [
        data(offset_of!(libc::seccomp_data, arch)),
        filter(BPF_EQUAL, 0, 4, ARCH),
        data(offset_of!(libc::seccomp_data, nr)),
        filter(BPF_EQUAL, 3, 0, ring),
        filter(BPF_EQUAL, 2, 0, context),
        filter(BPF_EQUAL, 1, 0, other),
        filter(BPF_RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        filter(BPF_RETURN, 0, 0, no),
    ];
    let all = libc::SECCOMP_FILTER_FLAG_TSYNC;
    match install(&program, all) {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            // Without the privilege a thread has to give up what executing a file could give it.
            // SAFETY: the call takes numbers only.
            unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            install(&program, all)
        }
        other => other,
    }
}

const BPF_LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const BPF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const BPF_RETURN: u32 = libc::BPF_RET | libc::BPF_K;

fn filter(code: u32, is_so: u8, is_not: u8, value: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: is_so,
        jf: is_not,
        k: value,
    }
}

fn install(program: &[libc::sock_filter], flags: libc::c_ulong) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the kernel copies the program, which lies there meanwhile.
    match unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) } {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!(
            "thread {thread} has a filter of system calls of its own"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a child, which ends by how many are refused as they are to be.
    fn refused() -> i32 {
        // SAFETY: the child makes system calls only, none of which gets an address, and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let is_set = refuse().is_ok();
                let is_refused = |call: &&libc::c_long| {
                    let told = libc::syscall(**call, 0, 0, 0, 0, 0, 0);
                    told == -1 && *libc::__errno_location() == libc::ENOSYS
                };
                let refused = REFUSED.iter().filter(is_refused).count();
                let is_right = is_set && libc::syscall(libc::SYS_getppid) > 0;
                libc::_exit(if is_right { refused as i32 } else { 0 });
            }
            let mut status = 0;
            libc::waitpid(child, &raw mut status, 0);
            libc::WEXITSTATUS(status)
        }
    }

    #[test]
    fn what_writes_past_the_pager_is_refused_and_nothing_else_is() {
        assert_eq!(refused(), REFUSED.len() as i32);
    }
}
