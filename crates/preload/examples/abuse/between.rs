//! What comes between: signals and a cancelled thread in the middle of a fork, descriptors that are
//! closed, calls that are refused half way.
//!
//! What it never does: ask for more than a system without the library does.

use crate::Case;
use crate::maps::tempfile;
use crate::memory::{Block, KIB, MIB, PAGE, press, word};
use crate::protect::handle;
use crate::sys::{self, End, PRIVATE, RW};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

pub(crate) const CASES: &[Case] = &[
    ("fork-signals", fork_signals),
    ("fork-cancelled", fork_cancelled),
    ("fork-moment", fork_moment),
    ("calls-closed", calls_closed),
    ("calls-direct-left", calls_direct),
    ("fixed-refused", fixed_refused),
    ("remap-none", remap_none),
    ("locked-much", locked_much),
    ("locked-direct", locked_direct),
    ("fork-direct", fork_direct),
    ("calls-direct-jump", direct_jump),
    ("calls-errors-go", errors_go),
    ("protect-fork", protect_fork),
];

/// Tells a thread to end, also where the case fails.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Where the handler writes, and how often it did.
static PLACE: AtomicUsize = AtomicUsize::new(0);
static RUNG: AtomicU64 = AtomicU64::new(0);

extern "C" fn ring(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let rung = RUNG.fetch_add(1, Relaxed);
    // Another page each time, so that some are not there.
    let page = rung as usize % 64 * PAGE;
    word(PLACE.load(Relaxed) + page).store(rung, Relaxed);
}

fn set_timer(every_us: libc::suseconds_t) {
    let time = libc::timeval {
        tv_sec: 0,
        tv_usec: every_us,
    };
    let timer = libc::itimerval {
        it_interval: time,
        it_value: time,
    };
    // SAFETY: the timer is read, and an old one not asked for.
    let said = unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut()) };
    assert_eq!(said, 0);
}

/// Calls are not taken up again after the handler, which uses paged memory.
fn fork_signals() {
    let (block, place) = (Block::filled(8 * MIB, 1), Block::filled(MIB, 2));
    PLACE.store(place.at, Relaxed);
    handle(libc::SIGALRM, ring, 0);
    let mut forks = 0;
    while forks < 6 || RUNG.load(Relaxed) < 6 {
        press();
        set_timer(300);
        let child = sys::fork(|| {
            block.check(0..block.len, 1);
            0
        });
        set_timer(0);
        sys::passed(child);
        forks += 1;
    }
    block.check(0..block.len, 1);
}

// SAFETY: such is its type in the C library.
unsafe extern "C" {
    fn pthread_setcancelstate(state: i32, old: *mut i32) -> i32;
}

/// `fork` is no place at which a thread is cancelled.
fn fork_cancelled() {
    let block = Block::filled(4 * MIB, 3);
    press();
    let thread = std::thread::spawn(move || {
        // SAFETY: the thread itself, which is cancelled nowhere here.
        unsafe { libc::pthread_cancel(libc::pthread_self()) };
        // SAFETY: the child checks memory, and ends.
        let child = unsafe { libc::fork() };
        let (disabled, mut old) = (1, 0);
        // SAFETY: the call writes to what it is given.
        unsafe { pthread_setcancelstate(disabled, &raw mut old) };
        assert_eq!(old, 0, "it was enabled");
        if child == 0 {
            sys::quit(i32::from(block.wrong(0..block.len, 3).is_some()));
        }
        sys::passed(child);
    });
    thread.join().expect("it goes on");
    block.check(0..block.len, 3);
}

/// One word is always written before the other, far from it: who has a copy of one moment does not
/// have the second alone. The system promises that of one thread only, the library of all.
fn fork_moment() {
    let block = Block::map(8 * MIB);
    let (first, second) = (word(block.at), word(block.at + block.len - 8));
    let (is_over, begun) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1.. {
                first.store(number, Release);
                second.store(number, Release);
                begun.store(true, Relaxed);
                if is_over.load(Relaxed) {
                    break;
                }
            }
        });
        let _over = Over(&is_over);
        for _ in 0..10 {
            Block {
                at: block.at + PAGE,
                len: block.len - 2 * PAGE,
            }
            .touch(10);
            begun.store(false, Relaxed);
            while !begun.load(Relaxed) {
                std::thread::yield_now();
            }
            let child = sys::fork(|| {
                let (second, first) = (second.load(Acquire), first.load(Acquire));
                i32::from(sys::is_paged() && second > first)
            });
            sys::passed(child);
        }
    });
}

/// A file of a seed's words, open past the page cache; none where this disk has no such thing.
pub(crate) fn direct_file(len: usize, seed: u64) -> Option<File> {
    let own = std::env::current_exe().expect("itself");
    let path = own.with_file_name(format!("direct-{}", std::process::id()));
    let source = Block::filled(len, seed);
    // SAFETY: so much was mapped, and nobody writes to it.
    let bytes = unsafe { std::slice::from_raw_parts(source.at as *const u8, len) };
    std::fs::write(&path, bytes).expect("room for a file");
    source.unmap();
    let mut options = File::options();
    let file = options.read(true).custom_flags(libc::O_DIRECT).open(&path);
    std::fs::remove_file(&path).expect("its name goes");
    if file.is_err() {
        eprintln!("skipped: this disk is not read past the page cache");
    }
    file.ok()
}

/// What a device reads into is there afterwards, whatever leaves memory meanwhile.
fn calls_direct() {
    let len = 2 * MIB;
    let Some(file) = direct_file(len, 11) else {
        return;
    };
    let is_over = AtomicBool::new(false);
    let block = Block::map(len);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                press();
            }
        });
        let _over = Over(&is_over);
        for _ in 0..20 {
            block.fill(0..len, 12);
            // SAFETY: so much was mapped, and nobody else uses it.
            let into = unsafe { std::slice::from_raw_parts_mut(block.at as *mut u8, len) };
            file.read_exact_at(into, 0).expect("read");
            block.check(0..len, 11);
        }
    });
}

/// As daemons do it.
fn calls_closed() {
    let block = Block::filled(4 * MIB, 4);
    // SAFETY: nothing here has a descriptor but the first three.
    let said = unsafe { libc::close_range(3, !0, 0) };
    assert_eq!(said, 0);
    press();
    block.check(0..block.len, 4);
    block.fill(0..block.len, 5);
    press();
    let child = sys::fork(|| {
        block.check(0..block.len, 5);
        0
    });
    sys::passed(child);
}

fn fixed_refused() {
    let block = Block::filled(MIB, 6);
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
    assert_eq!(
        sys::mmap(block.at, 64 * KIB, RW, flags, -1),
        Err(libc::EBADF)
    );
    block.check(0..block.len, 6);
    // Not by half of a page either.
    let said = sys::mmap(block.at + 8, PAGE, RW, PRIVATE | libc::MAP_FIXED, -1);
    assert_eq!(said, Err(libc::EINVAL));
    block.check(0..block.len, 6);
}

fn remap_none() {
    let block = Block::filled(MIB, 7);
    press();
    let said = sys::mremap(block.at, 0, MIB, libc::MREMAP_MAYMOVE, 0);
    assert_eq!(said, Err(libc::EINVAL));
    block.check(0..block.len, 7);
}

/// What may not be written to may not be in a child either.
fn protect_fork() {
    let block = Block::filled(2 * MIB, 13);
    press();
    sys::mprotect(block.at + MIB, MIB, libc::PROT_READ).expect("protected");
    let write = |place: usize| {
        sys::fork(move || {
            block.check(0..block.len, 13);
            word(block.at + place).store(1, Relaxed);
            0
        })
    };
    sys::passed(write(MIB - 8));
    assert_eq!(sys::wait(write(MIB)), End::Signal(libc::SIGSEGV));
    sys::mprotect(block.at + MIB, MIB, RW).expect("as before");
    sys::passed(write(MIB));
    block.check(0..block.len, 13);
}

/// More than there is room for: it may be refused, and then others go on.
fn locked_much() {
    let (block, other) = (Block::filled(6 * MIB, 8), Block::filled(2 * MIB, 9));
    match sys::mlock(block.at, block.len) {
        Ok(()) => sys::munlock(block.at, block.len).expect("unlocked"),
        Err(why) => assert!(why == libc::ENOMEM || why == libc::EPERM, "errno {why}"),
    }
    press();
    other.check(0..other.len, 9);
    block.check(0..block.len, 8);
}

/// As much is locked as may be, and then a device reads.
fn locked_direct() {
    let Some(file) = direct_file(512 * KIB, 3) else {
        return;
    };
    let (block, into) = (Block::filled(6 * MIB, 8), Block::map(512 * KIB));
    let places = (0..block.len).step_by(PAGE);
    let locked = places.take_while(|place| sys::mlock(block.at + place, PAGE).is_ok());
    // As many as the system lets us: some machines none.
    eprintln!("{} pages locked", locked.count());
    for place in (0..into.len).step_by(128 * KIB) {
        let said = sys::pread(file.as_raw_fd(), into.at + place, 128 * KIB, place);
        assert_eq!(said, Ok(128 * KIB));
    }
    into.check(0..into.len, 3);
    sys::munlock(block.at, block.len).expect("unlocked");
    block.check(0..block.len, 8);
}

/// What is refused is said where errors go, and nowhere else.
fn errors_go() {
    // What is refused with the library is said once each.
    let refused: [fn(); 2] = [
        || {
            let _ = sys::mlockall(libc::MCL_CURRENT);
        },
        || {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: libc::RLIM_INFINITY,
            };
            // SAFETY: it is a limit; without the library one of a child that writes nothing.
            unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const none) };
        },
    ];
    for (refused, is_log) in refused.into_iter().zip([false, true]) {
        let file = tempfile();
        if is_log {
            // SAFETY: the call takes numbers only.
            let said = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_APPEND) };
            assert_eq!(said, 0);
        }
        let act = || {
            // SAFETY: the calls take numbers only.
            unsafe {
                let own = libc::dup(2);
                libc::dup2(file.as_raw_fd(), 2);
                refused();
                libc::dup2(own, 2);
            }
            0
        };
        match sys::is_paged() {
            true => assert_eq!(act(), 0),
            false => sys::passed(sys::fork(act)),
        }
        let len = file.metadata().expect("there").len();
        assert_eq!(len > 0, sys::is_paged() && is_log, "{len} bytes");
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn direct_jump() {
    eprintln!("skipped: nothing here calls what returns twice on this machine");
}

/// Reads that a signal's handler leaves, and never comes back to.
#[cfg(target_arch = "x86_64")]
fn direct_jump() {
    let Some(file) = direct_file(MIB, 5) else {
        return;
    };
    let into = Block::filled(MIB, 6);
    RUNG.store(0, Relaxed);
    handle(libc::SIGALRM, jump, libc::SA_RESTART);
    FILE.store(file.as_raw_fd() as usize, Relaxed);
    set_timer(700);
    let mut left = 0;
    while left < 100 {
        // SAFETY: no more is called there than what a handler may leave.
        left += i32::from(unsafe { until_jump(PLACE_OF_JUMP.as_ptr(), read_to, into.at) });
    }
    set_timer(0);
    // More than may be pinned was, each time.
    into.fill(0..MIB, 6);
    assert_eq!(sys::pread(file.as_raw_fd(), into.at, MIB, 0), Ok(MIB));
    into.check(0..MIB, 5);
}

#[cfg(target_arch = "x86_64")]
extern "C" fn read_to(at: usize) {
    let file = FILE.load(Relaxed) as i32;
    IS_READING.store(true, Relaxed);
    assert_eq!(sys::pread(file, at, MIB, 0), Ok(MIB));
    IS_READING.store(false, Relaxed);
}

#[cfg(target_arch = "x86_64")]
static FILE: AtomicUsize = AtomicUsize::new(0);

/// Where a handler jumps to: more than `sigjmp_buf` has.
#[cfg(target_arch = "x86_64")]
static PLACE_OF_JUMP: Place = Place(std::cell::UnsafeCell::new([0; 64]));

#[cfg(target_arch = "x86_64")]
#[repr(align(16))]
struct Place(std::cell::UnsafeCell<[u64; 64]>);

// SAFETY: one thread uses it.
#[cfg(target_arch = "x86_64")]
unsafe impl Sync for Place {}

#[cfg(target_arch = "x86_64")]
impl Place {
    fn as_ptr(&self) -> *mut u64 {
        self.0.get().cast()
    }
}

// SAFETY: such are their types.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn siglongjmp(place: *mut u64, value: i32) -> !;
    fn until_jump(place: *mut u64, act: extern "C" fn(usize), on: usize) -> bool;
}

// Calls something, and is back when that is over or somebody has jumped to the place: whether that.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".globl until_jump",
    ".type until_jump, @function",
    "until_jump:",
    "push rbx",
    "push r12",
    "push r13",
    "mov r12, rsi",
    "mov r13, rdx",
    "mov esi, 1",
    "call __sigsetjmp@PLT",
    "test eax, eax",
    "jne 2f",
    "mov rdi, r13",
    "call r12",
    "xor eax, eax",
    "2:",
    "pop r13",
    "pop r12",
    "pop rbx",
    "ret",
);

#[cfg(target_arch = "x86_64")]
extern "C" fn jump(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    if IS_READING.swap(false, Relaxed) {
        // SAFETY: it is where the read began, which has nothing that is to be dropped.
        unsafe { siglongjmp(PLACE_OF_JUMP.as_ptr(), 1) };
    }
}

/// Forks in a signal's handler: which process this was, and children that are not waited for yet.
extern "C" fn forks(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    if IS_READING.load(Relaxed) && RUNG.load(Relaxed) < 20 {
        RUNG.fetch_add(1, Relaxed);
        // SAFETY: parent and child go on where the signal came.
        if unsafe { libc::fork() } == 0 {
            IS_CHILD.store(true, Relaxed);
        }
    }
}

static IS_READING: AtomicBool = AtomicBool::new(false);
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Children begin in the middle of a device's reads, and go on there.
fn fork_direct() {
    let Some(file) = direct_file(MIB, 4) else {
        return;
    };
    let into = Block::map(MIB);
    RUNG.store(0, Relaxed);
    handle(libc::SIGALRM, forks, libc::SA_RESTART);
    set_timer(700);
    while RUNG.load(Relaxed) < 20 {
        IS_READING.store(true, Relaxed);
        let said = sys::pread(file.as_raw_fd(), into.at, MIB, 0);
        IS_READING.store(false, Relaxed);
        if IS_CHILD.load(Relaxed) {
            // What a device reads into a parent is not a child's: how much of it came is open.
            sys::quit(i32::from(said.is_err()));
        }
        assert_eq!(said, Ok(MIB));
        into.check(0..MIB, 4);
    }
    set_timer(0);
    (0..20).for_each(|_| sys::passed(-1));
}
