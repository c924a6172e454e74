//! What needs a process, or a thread's rights, of its own: SIGBUS, what is left, and what is
//! missing without privilege.
//!
//! What it never does: signal this process. The test program runs itself again, with a variable.

use crate::rig::{PAGE, check, device, fill, made, page, refusing};
use nyx_media::queue::BlockOp;
use nyx_swap::region::{Region, RegionError, Shape};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const CHILD: &str = "NYX_REGION_CHILD";

/// Runs one test of this program in a process of its own.
fn again(test: &str) -> Output {
    let exe = std::env::current_exe().expect("this program has a file");
    let mut command = Command::new(exe);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(CHILD, "1").output().expect("it runs again")
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// A region without a readable device, with pages on it: the parent reads which one it touches.
fn touch_what_cannot_be_read(name: &str) {
    tracing_subscriber::fmt().with_ansi(false).init();
    let Some((region, refuses)) = refusing(name, BlockOp::Read) else {
        return;
    };
    (0..64).for_each(|at| fill(&region, at, 1));
    refuses.store(true, SeqCst);
    // The explicit way finds one that is on the device, and says so.
    let is_away = |&at: &usize| region.fix(at * PAGE..(at + 1) * PAGE).is_err();
    let away = (0..64).find(is_away).expect("most are on the device");
    let touched = page(&region, away);
    println!("touches {touched:p}");
    println!("and reads {}", touched.load(SeqCst));
}

#[test]
fn who_touches_what_cannot_be_read_gets_sigbus_and_its_address_is_logged() {
    let name = "who_touches_what_cannot_be_read";
    if is_child() {
        return touch_what_cannot_be_read(name);
    }
    let output =
        again("alone::who_touches_what_cannot_be_read_gets_sigbus_and_its_address_is_logged");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let (status, errors) = (output.status, String::from_utf8_lossy(&output.stderr));
    if errors.contains("skipped") {
        return eprint!("{errors}");
    }
    assert_eq!(
        status.signal(),
        Some(libc::SIGBUS),
        "{status}: {said}{errors}"
    );
    let touched = said.lines().find_map(|line| line.split_once("touches "));
    let address = touched.expect("it says what it touches").1.trim();
    let is_logged = |line: &str| line.contains("SIGBUS") && line.contains(address);
    assert!(said.lines().any(is_logged), "{address} in: {said}");
    assert!(!said.contains("and reads"), "{said}");
}

/// Threads, descriptors and mappings of regions of this process.
fn left() -> (usize, usize, usize) {
    let count = |dir: &str| std::fs::read_dir(dir).expect("proc is mounted").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc is mounted");
    let regions = maps.matches("nyx-region").count();
    (count("/proc/self/task"), count("/proc/self/fd"), regions)
}

fn make_and_drop(name: &str) {
    let before = left();
    for round in 0..30 {
        let made_of = Region::new(64 * PAGE as u64, 16 * PAGE as u64, &device(64));
        let Some(region) = made(name, made_of) else {
            return;
        };
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let region = &region;
                scope.spawn(move || {
                    (0..64)
                        .filter(|at| at % 2 == thread)
                        .for_each(|at| fill(region, at, round));
                });
            }
        });
        region.will_need(0..64 * PAGE).expect("within");
        assert_eq!(left().2, 1, "the view");
        // With what is on its way.
        drop(region);
        assert_eq!(left().2, 0, "no thread has it any more");
    }
    // A thread that was joined may be seen for a moment; a ring's descriptor is closed later.
    while left() != before {
        std::thread::yield_now();
    }
    println!("nothing is left");
}

#[test]
fn a_region_that_is_dropped_leaves_no_thread_descriptor_or_mapping() {
    let name = "a_region_that_is_dropped";
    if is_child() {
        return make_and_drop(name);
    }
    let output = again("alone::a_region_that_is_dropped_leaves_no_thread_descriptor_or_mapping");
    let (said, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    if errors.contains("skipped") {
        return eprint!("{errors}");
    }
    assert!(
        output.status.success() && said.contains("nothing is left"),
        "{said}{errors}"
    );
}

extern "C" fn nothing(_signal: libc::c_int) {}

#[test]
fn who_is_woken_by_signals_is_answered_and_a_region_is_dropped_beside_them() {
    let name = "who_is_woken_by_signals";
    let made_of = || Region::new(64 * PAGE as u64, 16 * PAGE as u64, &device(64));
    let Some(first) = made(name, made_of()) else {
        return;
    };
    drop(first);
    let handler: extern "C" fn(libc::c_int) = nothing;
    // SAFETY: the handler does nothing, and nobody else in this program uses the signal.
    let before = unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    assert_ne!(before, libc::SIG_ERR);
    // SAFETY: tells the calling thread, and no more.
    let toucher = unsafe { libc::pthread_self() };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                // SAFETY: the thread that made this one waits for it at the end of the scope.
                unsafe { libc::pthread_kill(toucher, libc::SIGUSR1) };
                std::thread::yield_now();
            }
        });
        for round in 1..=150 {
            let region = made_of().expect("as before");
            (0..64).for_each(|at| fill(&region, at, round));
            (0..64).for_each(|at| check(&region, at, round));
        }
        is_over.store(true, SeqCst);
    });
}

#[test]
fn a_child_of_fork_does_not_have_the_region_and_does_not_read_zeros() {
    let name = "a_child_of_fork";
    let made_of = Region::new(64 * PAGE as u64, 16 * PAGE as u64, &device(64));
    let Some(region) = made(name, made_of) else {
        return;
    };
    (0..64).for_each(|at| fill(&region, at, 1));
    let at = region.as_ptr();
    // SAFETY: the child reads a byte and ends; it takes no lock and no memory.
    let child = unsafe {
        match libc::fork() {
            0 => {
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                libc::_exit(i32::from(at.read_volatile()));
            }
            child => child,
        }
    };
    assert!(child > 0, "a child");
    let mut status = 0;
    // SAFETY: the child is ours, and the status is written to.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    let status = std::process::ExitStatus::from_raw(status);
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "{status}");
}

#[test]
fn a_temporary_device_has_no_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = nyx_swap::region::Device::temporary(dir.path(), 64 * PAGE as u64);
    let device = device.expect("room");
    assert_eq!(
        std::fs::read_dir(dir.path()).expect("it is there").count(),
        0
    );
    drop(device);
}

/// Gives up root's rights, for this thread only.
fn give_up_rights() -> bool {
    let nobody = 65_534;
    // SAFETY: the system call changes the rights of this thread and nothing else; the thread ends
    // with the closure that called this.
    unsafe { libc::syscall(libc::SYS_setresuid, nobody, nobody, nobody) == 0 }
}

fn may_anybody() -> bool {
    let path = "/proc/sys/vm/unprivileged_userfaultfd";
    std::fs::read_to_string(path).is_ok_and(|value| value.trim() == "1")
}

#[test]
fn without_privilege_it_says_what_is_missing_and_works_in_user_mode_where_that_is_asked_for() {
    let name = "without_privilege";
    let device = device(64);
    if may_anybody() {
        return eprintln!("skipped {name}: vm.unprivileged_userfaultfd is 1");
    }
    let unprivileged = std::thread::scope(|scope| {
        let work = || {
            // Who has no rights to begin with has none to give up.
            let _ = give_up_rights();
            let mut shape = Shape::new(64 * PAGE as u64, 16 * PAGE as u64);
            let refused = Region::with(shape, &device).map(drop);
            shape.in_user_mode = true;
            (refused, Region::with(shape, &device))
        };
        scope.spawn(work).join().expect("it does not panic")
    });
    let refused = unprivileged.0.expect_err("it takes privilege");
    assert!(
        matches!(refused, RegionError::NoUserfaultfd { .. }),
        "{refused}"
    );
    let said = refused.to_string();
    for part in [
        "vm.unprivileged_userfaultfd=1",
        "/dev/userfaultfd",
        "CAP_SYS_PTRACE",
        "in_user_mode",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let Some(region) = made(name, unprivileged.1) else {
        return;
    };
    (0..64).for_each(|at| page(&region, at).store(at as u64 + 1, SeqCst));
    (0..64).for_each(|at| assert_eq!(page(&region, at).load(SeqCst), at as u64 + 1));
    // The kernel's own faults are not answered: such a call fails, and does not hang.
    region.dont_need(0..PAGE).expect("within");
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    rustix::io::write(&write, b"some").expect("room");
    // SAFETY: the page lies in the region, which nobody else touches.
    let into = unsafe { std::slice::from_raw_parts_mut(region.as_ptr(), 4) };
    assert_eq!(rustix::io::read(&read, into), Err(rustix::io::Errno::FAULT));
}
