//! A child that is stopped after each instruction, and memory that it shares with us.
//!
//! What it never does: know what the child works on.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(dead_code, reason = "each test uses its part")]

use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64};

const PAGE: usize = 4096;

/// What the child tells, in memory that both see.
pub(crate) struct Progress {
    pub(crate) begun: AtomicU32,
    pub(crate) done: AtomicU32,
}

pub(crate) fn shared_progress() -> &'static Progress {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a mapping at an address of the kernel's choice, never unmapped; zero bytes are a
    // valid `Progress`.
    unsafe {
        let page = mmap_anonymous(std::ptr::null_mut(), PAGE, access, MapFlags::SHARED);
        &*page.expect("a page").cast::<Progress>()
    }
}

/// Runs `program` in a child, which is stopped after each instruction if `each` is there, from
/// where it calls what it is given. False where the machine does not allow that.
pub(crate) fn in_child(program: impl FnOnce(&dyn Fn()), each: Option<&mut dyn FnMut()>) -> bool {
    // To hand the CPU from one to the other and back is quicker than to wake another.
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    let _ = sched_setaffinity(None, &here);
    // SAFETY: plain system calls. The child goes on with a copy of this thread alone, which takes
    // no lock that another thread may have held but the allocator's, which glibc hands over.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0, "a child");
        if child == 0 {
            let is_stepped = each.is_some();
            program(&|| {
                if is_stepped {
                    libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                    libc::raise(libc::SIGSTOP);
                }
            });
            libc::_exit(0);
        }
        let mut status = 0;
        let wait = |status: &mut i32| assert_eq!(libc::waitpid(child, status, 0), child);
        wait(&mut status);
        if let Some(each) = each {
            if !libc::WIFSTOPPED(status) {
                return false;
            }
            while libc::WIFSTOPPED(status) {
                let stepped = libc::ptrace(libc::PTRACE_SINGLESTEP, child, 0, 0);
                assert_eq!(stepped, 0, "a step");
                wait(&mut status);
                each();
            }
        }
        assert!(
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
            "the child's work"
        );
    }
    true
}

/// The bytes of a file, shared with whoever else has mapped it.
pub(crate) fn map(path: &Path) -> &'static [AtomicU64] {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let file = File::options().read(true).write(true).open(path);
    let file = file.expect("the file");
    let len = file.metadata().expect("its size").len() as usize;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a mapping at an address of the kernel's choice, never unmapped; words that others
    // store to are looked at as atomics.
    unsafe {
        let first = mmap(
            std::ptr::null_mut(),
            len,
            access,
            MapFlags::SHARED,
            &file,
            0,
        );
        std::slice::from_raw_parts(first.expect("a mapping").cast::<AtomicU64>(), len / 8)
    }
}
