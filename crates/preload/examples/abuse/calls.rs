//! System calls that read and write memory which is not there at that moment.
//!
//! What it never does: touch the memory between driving it out and the call.

use crate::Case;
use crate::maps::tempfile;
use crate::memory::{Block, KIB, MIB, PAGE, press, stamp, word};
use crate::sys;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

pub(crate) const CASES: &[Case] = &[
    ("calls-file", file),
    ("calls-vectors", vectors),
    ("calls-pipe", pipe),
    ("calls-socket", socket),
    ("calls-small", small),
    ("calls-splice", splice),
    ("calls-other", other_process),
    ("calls-other-first", other_process_first),
    ("calls-direct", direct),
    ("calls-direct-busy", direct_busy),
    ("calls-direct-numbered", direct_numbered),
    ("calls-direct-named", direct_named),
    ("calls-direct-streamed", direct_streamed),
    ("calls-direct-shared", direct_shared),
    ("calls-direct-locked", direct_locked),
    ("calls-errors", errors),
    ("calls-limit", limit),
    ("calls-refused", refused),
    ("first-ring", first_ring),
];

fn file() {
    let file = tempfile();
    let fd = file.as_raw_fd();
    // More than there may be in memory, in one call.
    let (from, to) = (Block::filled(6 * MIB, 1), Block::map(6 * MIB));
    press();
    assert_eq!(sys::pwrite(fd, from.at, from.len, 0), Ok(from.len));
    press();
    assert_eq!(sys::pread(fd, to.at, to.len, 0), Ok(to.len));
    to.check(0..to.len, 1);
    // Into the middle of pages that hold something.
    to.fill(0..to.len, 2);
    press();
    assert_eq!(sys::pread(fd, to.at + 800, 8_000, 800), Ok(8_000));
    to.check(0..800, 2);
    to.check(800..8_800, 1);
    to.check(8_800..to.len, 2);
    from.check(0..from.len, 1);
}

fn vectors() {
    let file = tempfile();
    let fd = file.as_raw_fd();
    let (from, to) = (Block::filled(2 * MIB, 3), Block::map(2 * MIB));
    let parts = |block: Block| -> Vec<libc::iovec> {
        let part = |number: usize| libc::iovec {
            iov_base: ptr::with_exposed_provenance_mut(block.at + number * 64 * KIB + number * 8),
            iov_len: 40 * KIB,
        };
        (0..31).map(part).collect()
    };
    let len = 31 * 40 * KIB;
    for round in 0..3 {
        press();
        let all = parts(from);
        // SAFETY: memory of this process that lives.
        let said = unsafe { libc::pwritev(fd, all.as_ptr(), 31, 0) };
        assert_eq!(sys::counted(said), Ok(len));
        press();
        let all = parts(to);
        // SAFETY: memory of this process that nobody else uses.
        let said = unsafe { libc::preadv(fd, all.as_ptr(), 31, 0) };
        assert_eq!(sys::counted(said), Ok(len));
        for number in 0..31 {
            let first = number * 64 * KIB + number * 8;
            to.check(first..first + 40 * KIB, 3);
        }
        sys::madvise(to.at, (round + 1) * 256 * KIB, libc::MADV_DONTNEED).expect("dropped");
    }
}

/// All of a block goes through a pair of ends, a thread at each of them.
fn through(from_fd: i32, to_fd: i32) {
    let (from, to) = (Block::filled(2 * MIB, 4), Block::map(2 * MIB));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            press();
            sys::write_all(to_fd, from.at, from.len);
            sys::close(to_fd);
        });
        sys::read_all(from_fd, to.at, to.len);
    });
    to.check(0..to.len, 4);
    sys::close(from_fd);
}

fn pipe() {
    let (from, to) = sys::pipe();
    through(from, to);
}

fn socket() {
    let (from, to) = sys::socketpair();
    through(from, to);
    let (from, to) = sys::socketpair();
    let block = Block::filled(MIB, 5);
    press();
    // SAFETY: memory of this process, the parts of a message too, which lie in paged memory.
    unsafe {
        let at = |place: usize| block.at + place;
        let part = ptr::with_exposed_provenance_mut::<libc::iovec>(at(512 * KIB));
        let said = libc::send(to, ptr::with_exposed_provenance(at(PAGE)), 8 * KIB, 0);
        assert_eq!(sys::counted(said), Ok(8 * KIB));
        *part = libc::iovec {
            iov_base: ptr::with_exposed_provenance_mut(at(640 * KIB)),
            iov_len: 8 * KIB,
        };
        let message = ptr::with_exposed_provenance_mut::<libc::msghdr>(at(256 * KIB));
        *message = std::mem::zeroed();
        (*message).msg_iov = part;
        (*message).msg_iovlen = 1;
        press();
        assert_eq!(sys::counted(libc::recvmsg(from, message, 0)), Ok(8 * KIB));
    }
    for place in (0..8 * KIB).step_by(8) {
        let held = word(block.at + 640 * KIB + place).load(Relaxed);
        assert_eq!(held, stamp(5, PAGE + place));
    }
    block.check(768 * KIB..MIB, 5);
}

/// Calls with small things in paged memory: the system answers into it.
fn small() {
    let block = Block::map(MIB);
    let far = |page: usize| block.at + page * PAGE;
    let (from, to) = sys::pipe();
    assert_eq!(sys::write(to, block.at, 1), Ok(1));
    press();
    // SAFETY: each answer has room in a page of its own.
    unsafe {
        let time = ptr::with_exposed_provenance_mut::<libc::timespec>(far(1));
        assert_eq!(libc::clock_gettime(libc::CLOCK_MONOTONIC, time), 0);
        assert!((*time).tv_sec > 0);
        let stat = ptr::with_exposed_provenance_mut::<libc::stat>(far(2));
        assert_eq!(libc::fstat(from, stat), 0);
        assert_eq!((*stat).st_mode & libc::S_IFMT, libc::S_IFIFO);
        let random = ptr::with_exposed_provenance_mut::<u8>(far(3));
        let said = libc::syscall(libc::SYS_getrandom, random, 64 * KIB, 0);
        assert_eq!(said, 64 * KIB as i64);
        press();
        let poll = ptr::with_exposed_provenance_mut::<libc::pollfd>(far(64));
        *poll = libc::pollfd {
            fd: from,
            events: libc::POLLIN,
            revents: 0,
        };
        press();
        assert_eq!(libc::poll(poll, 1, 0), 1);
        assert_eq!((*poll).revents, libc::POLLIN);
        let epoll = libc::epoll_create1(0);
        let event = ptr::with_exposed_provenance_mut::<libc::epoll_event>(far(80));
        *event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 42,
        };
        press();
        let add = libc::EPOLL_CTL_ADD;
        assert_eq!(libc::epoll_ctl(epoll, add, from, event), 0);
        let told = ptr::with_exposed_provenance_mut::<libc::epoll_event>(far(96));
        assert_eq!(libc::epoll_wait(epoll, told, 16, 0), 1);
        assert_eq!({ (*told).u64 }, 42);
        // A path that lies in memory which is not there.
        let path = ptr::with_exposed_provenance_mut::<u8>(far(112));
        ptr::copy_nonoverlapping(c"/dev/null".as_ptr().cast(), path, 10);
        press();
        let fd = libc::open(path.cast(), libc::O_RDWR);
        assert!(fd >= 0, "errno {}", sys::errno());
        sys::close(fd);
    }
    let held = (far(3)..far(19))
        .step_by(8)
        .map(|at| word(at).load(Relaxed));
    assert!(
        held.filter(|&word| word != 0).count() > 8_000,
        "random bytes"
    );
}

/// Pages are lent to a pipe, which has them as they were; then they leave memory.
fn splice() {
    let block = Block::filled(64 * KIB * 4, 6);
    let (from, to) = sys::pipe();
    let to_block = Block::map(256 * KIB);
    let part = libc::iovec {
        iov_base: ptr::with_exposed_provenance_mut(block.at),
        iov_len: 32 * KIB,
    };
    for _ in 0..3 {
        press();
        // SAFETY: memory of this process, which is not written until it is read.
        let said = unsafe { libc::vmsplice(to, &raw const part, 1, 0) };
        assert_eq!(sys::counted(said), Ok(32 * KIB));
        press();
        sys::read_all(from, to_block.at, 32 * KIB);
        to_block.check(0..32 * KIB, 6);
        block.check(0..block.len, 6);
    }
}

/// Another process reads this one's memory, and writes to it where that is not refused: it would
/// hold pages that may leave.
fn other_process() {
    let block = Block::filled(MIB, 7);
    let (from, to) = sys::pipe();
    let parent = std::process::id() as i32;
    let child = sys::fork(|| {
        let mine = Block::map(MIB);
        sys::read_all(from, mine.at, 1);
        let part = |block: Block| libc::iovec {
            iov_base: ptr::with_exposed_provenance_mut(block.at),
            iov_len: MIB,
        };
        let (near, far) = (part(mine), part(block));
        // SAFETY: both are mapped, and the other process waits.
        let said =
            unsafe { libc::process_vm_readv(parent, &raw const near, 1, &raw const far, 1, 0) };
        if said == -1 && sys::errno() == libc::EPERM {
            return FORBIDDEN;
        }
        assert_eq!(sys::counted(said), Ok(MIB));
        mine.check(0..MIB, 7);
        mine.fill(0..MIB, 8);
        write_far(parent, &near, &far)
    });
    press();
    sys::write_all(to, block.at, 1);
    match sys::wait(child) {
        sys::End::Status(FORBIDDEN | REFUSED) => block.check(0..MIB, 7),
        end => {
            assert_eq!(end, sys::End::Status(0));
            block.check(0..MIB, 8);
        }
    }
}

/// What a child ends with where a machine forbids it to look at its parent's memory.
const FORBIDDEN: i32 = 9;
/// The same where the library refuses it to write there.
const REFUSED: i32 = 10;

/// Writes to a process that waits.
fn write_far(process: i32, near: &libc::iovec, far: &libc::iovec) -> i32 {
    // SAFETY: both are mapped.
    let said = unsafe { libc::process_vm_writev(process, near, 1, far, 1, 0) };
    if said == -1 && sys::errno() == libc::EPERM {
        return FORBIDDEN;
    }
    if !sys::is_paged() {
        assert_eq!(sys::counted(said), Ok(near.iov_len));
        return 0;
    }
    assert_eq!((said, sys::errno()), (-1, libc::ENOSYS));
    REFUSED
}

/// The same by one that has no arena yet, since it has no memory.
fn other_process_first() {
    let (from, to) = sys::pipe();
    let parent = std::process::id() as i32;
    let child = sys::fork(|| {
        let mut at = 0usize;
        sys::read_all(from, (&raw mut at).expose_provenance(), size_of::<usize>());
        let part = |at: usize| libc::iovec {
            iov_base: ptr::with_exposed_provenance_mut(at),
            iov_len: size_of::<usize>(),
        };
        let near = part((&raw mut at).expose_provenance());
        write_far(parent, &near, &part(at))
    });
    let block = Block::filled(MIB, 7);
    press();
    let at = block.at;
    sys::write_all(to, (&raw const at).expose_provenance(), size_of::<usize>());
    let held = match sys::wait(child) {
        sys::End::Status(FORBIDDEN | REFUSED) => return block.check(0..MIB, 7),
        end => {
            assert_eq!(end, sys::End::Status(0));
            word(block.at).load(Relaxed) as usize
        }
    };
    assert_eq!(held, block.at);
    block.check(8..MIB, 7);
}

/// A file that is read and written past the page cache; none where the file system has no such.
fn direct_file(len: usize, seed: u64) -> Option<std::fs::File> {
    let dir = tempfile::tempdir_in(".").expect("a directory");
    let path = dir.path().join("direct");
    let from = Block::filled(len, seed);
    let fd = std::fs::File::create(&path).expect("a file");
    sys::write_all(fd.as_raw_fd(), from.at, len);
    fd.sync_all().expect("written");
    from.unmap();
    let mut options = std::fs::File::options();
    options.read(true).write(true).custom_flags(libc::O_DIRECT);
    match options.open(&path) {
        Ok(file) => Some(file),
        Err(why) => {
            eprintln!("no O_DIRECT here: {why}");
            None
        }
    }
}

fn direct() {
    let Some(file) = direct_file(4 * MIB, 11) else {
        return;
    };
    let fd = file.as_raw_fd();
    let block = Block::map(4 * MIB);
    // More than there may be in memory may be read piece by piece: what was read counts.
    let mut have = 0;
    while have < block.len {
        let most = (block.len - have).min(MIB);
        have += match sys::pread(fd, block.at + have, most, have) {
            Ok(0) => panic!("the file ends at {have}"),
            said => said.expect("read"),
        };
    }
    block.check(0..block.len, 11);
    block.fill(0..block.len, 12);
    press();
    let mut gone = 0;
    while gone < block.len {
        let most = (block.len - gone).min(MIB);
        gone += sys::pwrite(fd, block.at + gone, most, gone).expect("written");
    }
    sys::madvise(block.at, block.len, libc::MADV_DONTNEED).expect("dropped");
    for place in (0..block.len).step_by(128 * KIB) {
        let said = sys::pread(fd, block.at + place, 128 * KIB, place);
        assert_eq!(said, Ok(128 * KIB));
    }
    block.check(0..block.len, 12);
}

/// A device reads into memory that the program would otherwise have driven out meanwhile.
fn direct_busy() {
    direct_busy_by(|fd| {
        move |at, len, place| {
            assert_eq!(sys::pread(fd, at, len, place), Ok(len));
        }
    });
}

/// The same by system calls that are made by their numbers.
fn direct_numbered() {
    direct_busy_by(|fd| {
        move |at: usize, len: usize, place: usize| {
            let [buffer, rest] = [(at, len / 2), (at + len / 2, len - len / 2)].map(|(at, len)| {
                let iov_base = at as *mut libc::c_void;
                let iov_len = len;
                libc::iovec { iov_base, iov_len }
            });
            let both = [buffer, rest];
            // SAFETY: the memory is the caller's; so many buffers are there.
            let said = unsafe {
                match place / len % 2 {
                    0 => libc::syscall(libc::SYS_pread64, fd, at, len, place),
                    _ => libc::syscall(libc::SYS_preadv2, fd, both.as_ptr(), 2, place, 0, 0),
                }
            };
            assert_eq!(said, len as i64);
        }
    });
}

// SAFETY: the C library has these, beside their usual names; such are their types.
unsafe extern "C" {
    fn __read(file: i32, at: *mut libc::c_void, len: usize) -> isize;
    fn __pread64(file: i32, at: *mut libc::c_void, len: usize, from: i64) -> isize;
    fn _IO_fread(
        at: *mut libc::c_void,
        size: usize,
        count: usize,
        stream: *mut libc::FILE,
    ) -> usize;
}

/// The same by other names.
fn direct_named() {
    direct_busy_by(|fd| {
        let mut options = std::fs::File::options();
        options.read(true).custom_flags(libc::O_DIRECT);
        let path = format!("/proc/self/fd/{fd}");
        let file = options.open(&path).expect("again");
        let path = std::ffi::CString::new(path).expect("a path");
        // SAFETY: the strings end; the stream is used by one thread.
        let stream = unsafe { libc::fopen(path.as_ptr(), c"r".as_ptr()) };
        assert!(!stream.is_null());
        // SAFETY: it is a stream.
        let set = unsafe { libc::fcntl(libc::fileno(stream), libc::F_SETFL, libc::O_DIRECT) };
        assert_eq!(set, 0);
        let stream = stream as usize;
        move |at, len, place| {
            let (file, at) = (file.as_raw_fd(), at as *mut libc::c_void);
            let stream = stream as *mut libc::FILE;
            // SAFETY: the memory is the caller's.
            let said = unsafe {
                match place / len % 3 {
                    0 => __pread64(file, at, len, place as i64),
                    1 => {
                        assert_eq!(
                            libc::lseek(file, place as i64, libc::SEEK_SET),
                            place as i64
                        );
                        __read(file, at, len)
                    }
                    _ => {
                        assert_eq!(libc::fseek(stream, place as i64, libc::SEEK_SET), 0);
                        _IO_fread(at, 1, len, stream) as isize
                    }
                }
            };
            assert_eq!(sys::counted(said), Ok(len));
        }
    });
}

/// The same by streams that became direct when they were there.
fn direct_streamed() {
    direct_busy_by(|fd| {
        let path = std::ffi::CString::new(format!("/proc/self/fd/{fd}")).expect("a path");
        // SAFETY: the strings end; the stream is used by one thread.
        let stream = unsafe { libc::fopen(path.as_ptr(), c"r".as_ptr()) };
        assert!(!stream.is_null());
        let stream = stream as usize;
        move |at, len, place| {
            let stream = stream as *mut libc::FILE;
            // SAFETY: as above; the memory is the caller's.
            unsafe {
                let set = libc::fcntl(libc::fileno(stream), libc::F_SETFL, libc::O_DIRECT);
                assert_eq!(set, 0);
                assert_eq!(libc::fseek(stream, place as i64, libc::SEEK_SET), 0);
                let read = libc::fread(at as *mut libc::c_void, 512, len / 512, stream);
                assert_eq!(read, len / 512);
            }
        }
    });
}

/// A stream that is past the page cache.
fn direct_stream(len: usize, seed: u64) -> Option<usize> {
    let file = direct_file(len, seed)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let path = std::ffi::CString::new(path).expect("a path");
    // SAFETY: the strings end; the stream stays as long as the process.
    unsafe {
        let stream = libc::fopen(path.as_ptr(), c"r".as_ptr());
        assert!(!stream.is_null());
        assert_eq!(
            libc::fcntl(libc::fileno(stream), libc::F_SETFL, libc::O_DIRECT),
            0
        );
        Some(stream as usize)
    }
}

/// Threads read records from one stream: each is whole, and all are read.
fn direct_shared() {
    const RECORDS: usize = 16;
    let Some(stream) = direct_stream(RECORDS * MIB, 15) else {
        return;
    };
    let read = || {
        let block = Block::map(MIB);
        let mut records = Vec::new();
        loop {
            let stream = stream as *mut libc::FILE;
            // SAFETY: the block is this thread's, and so long; the stream has a lock.
            let said = unsafe { libc::fread(block.at as *mut libc::c_void, MIB, 1, stream) };
            if said == 0 {
                return records;
            }
            let record = (0..RECORDS).find(|record| {
                let is_of = |place: usize| {
                    word(block.at + place).load(Relaxed) == stamp(15, record * MIB + place)
                };
                (0..MIB).step_by(8).all(is_of)
            });
            records.push(record.expect("a record in one piece"));
        }
    };
    let mut records: Vec<usize> = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3).map(|_| scope.spawn(read)).collect();
        let records = readers.into_iter().map(|one| one.join().expect("read"));
        records.flatten().collect()
    });
    records.sort_unstable();
    assert_eq!(records, (0..RECORDS).collect::<Vec<_>>());
}

/// Who has a stream's lock needs memory while others wait for the stream.
fn direct_locked() {
    const THREADS: usize = 8;
    let Some(stream) = direct_stream((THREADS + 1) * 2 * MIB, 16) else {
        return;
    };
    // SAFETY: the C library has these; such are their types.
    unsafe extern "C" {
        fn flockfile(stream: *mut libc::FILE);
        fn funlockfile(stream: *mut libc::FILE);
    }
    let read = |by: Read| {
        let block = Block::map(2 * MIB);
        // SAFETY: the block is this thread's, and so long; the stream is locked, or does it.
        let said = unsafe {
            by(
                block.at as *mut libc::c_void,
                1,
                block.len,
                stream as *mut libc::FILE,
            )
        };
        assert_eq!(said, block.len);
    };
    let begun = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        // SAFETY: it is a stream.
        unsafe { flockfile(stream as *mut libc::FILE) };
        for _ in 0..THREADS {
            scope.spawn(|| {
                begun.fetch_add(1, SeqCst);
                read(libc::fread);
            });
        }
        while begun.load(SeqCst) < THREADS {
            std::thread::yield_now();
        }
        // More than there may be in memory: what waits for the stream keeps nothing of it.
        press();
        read(fread_unlocked);
        // SAFETY: as above.
        unsafe { funlockfile(stream as *mut libc::FILE) };
    });
}

// SAFETY: who calls one keeps to what the C library says of it.
type Read = unsafe extern "C" fn(*mut libc::c_void, usize, usize, *mut libc::FILE) -> usize;

// SAFETY: the C library has it; such is its type.
unsafe extern "C" {
    fn fread_unlocked(
        at: *mut libc::c_void,
        size: usize,
        count: usize,
        stream: *mut libc::FILE,
    ) -> usize;
}

/// What is wrong is said as it ever is.
fn errors() {
    let block = Block::map(MIB);
    let zero = std::fs::File::open("/dev/zero").expect("zeros");
    // SAFETY: the system looks at the address, and says that nothing is there.
    let said = unsafe { libc::syscall(libc::SYS_readv, zero.as_raw_fd(), 16, 1) };
    assert_eq!((said, sys::errno()), (-1, libc::EFAULT));
    // SAFETY: as above; so many are refused before they are looked at.
    let said = unsafe { libc::readv(zero.as_raw_fd(), 16 as *const libc::iovec, 1 << 20) };
    assert_eq!((said, sys::errno()), (-1, libc::EINVAL));
    let mut text = *b"what a stream in memory has";
    // SAFETY: the stream is of these bytes, which are fewer than the block has.
    unsafe {
        *libc::__errno_location() = 0;
        let stream = libc::fmemopen(text.as_mut_ptr().cast(), text.len(), c"r".as_ptr());
        let at = block.at as *mut libc::c_void;
        assert_eq!(libc::fread(at, 1, 4096, stream), text.len());
        assert_eq!(sys::errno(), 0, "nothing went wrong");
        libc::fclose(stream);
    }
    let Some(file) = direct_file(MIB, 17) else {
        return;
    };
    // Of nothing, too.
    assert_eq!(sys::pread(file.as_raw_fd(), block.at + 1, 0, 0), Ok(0));
    let none = libc::iovec {
        iov_base: ptr::with_exposed_provenance_mut(block.at),
        iov_len: 0,
    };
    // SAFETY: one that has nothing.
    let said = unsafe { libc::readv(file.as_raw_fd(), &raw const none, 1) };
    assert_eq!(said, 0);
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut options = std::fs::File::options();
    let written = options.write(true).custom_flags(libc::O_DIRECT).open(path);
    let written = written.expect("may be written to");
    let said = sys::pread(written.as_raw_fd(), block.at + PAGE, 0, 0);
    assert_eq!(said, Err(libc::EBADF));
    // Others pin the same pages.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5_000 {
                    let said = sys::pread(file.as_raw_fd(), block.at + 1, 512, 0);
                    assert!(matches!(said, Err(libc::EINVAL) | Ok(512)), "{said:?}");
                }
            });
        }
    });
}

/// Sets a limit, by one of its names.
// SAFETY: who calls one has a limit there.
type SetLimit = unsafe fn(*const libc::rlimit) -> i64;

const SET_LIMITS: [SetLimit; 5] = [
    // SAFETY: the caller's word, here and below.
    |limit| unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, limit).into() },
    // SAFETY: as above; both kinds of limits are the same on these machines.
    |limit| unsafe { libc::setrlimit64(libc::RLIMIT_FSIZE, limit.cast()).into() },
    // SAFETY: as above.
    |limit| unsafe { libc::prlimit(0, libc::RLIMIT_FSIZE, limit, ptr::null_mut()).into() },
    // SAFETY: as above.
    |limit| unsafe {
        let own = std::process::id() as i32;
        libc::prlimit64(own, libc::RLIMIT_FSIZE, limit.cast(), ptr::null_mut()).into()
    },
    // SAFETY: as above.
    |limit| unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_FSIZE, limit, 0) },
];

/// What files may have does not touch memory, which is no file to a program.
fn limit() {
    let block = Block::filled(6 * MIB, 18);
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the call writes to what it is given.
    let said = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    assert_eq!(said, 0);
    let (usual, short) = (
        limit,
        libc::rlimit {
            rlim_cur: 64 << 10,
            ..limit
        },
    );
    for set in SET_LIMITS {
        // SAFETY: it is a limit, here and below.
        let said = unsafe { set(&raw const short) };
        match sys::is_paged() {
            true => assert_eq!((said, sys::errno()), (-1, libc::EPERM)),
            false => assert_eq!(said, 0),
        }
        block.fill(0..block.len, 19);
        press();
        block.check(0..block.len, 19);
        // As it was.
        // SAFETY: as above.
        assert_eq!(unsafe { set(&raw const usual) }, 0);
    }
    // A child may, whose memory is in no file; so may one that shares its parent's, and another
    // limit may be set.
    let child = sys::fork(|| {
        block.fill(0..block.len, 20);
        // SAFETY: as above.
        unsafe { SET_LIMITS[0](&raw const short) as i32 }
    });
    sys::passed(child);
    sys::passed(sharing(short));
    // SAFETY: as above.
    let said = unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const short) };
    assert_eq!(said, 0);
    block.check(0..block.len, 19);
}

/// A child that shares this one's memory until it ends, as `vfork` makes them: it sets a limit.
fn sharing(limit: libc::rlimit) -> i32 {
    extern "C" fn child(limit: *mut libc::c_void) -> i32 {
        // SAFETY: the parent, which has it, waits.
        unsafe { SET_LIMITS[0](limit.cast()) as i32 }
    }
    let (stack, limit) = (crate::heap::malloc(64 * KIB), limit);
    let top = (stack.at + stack.len) as *mut libc::c_void;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is the child's, and both live until it has ended.
    let pid = unsafe { libc::clone(child, top, flags, (&raw const limit) as *mut libc::c_void) };
    assert!(pid > 0, "clone: errno {}", sys::errno());
    crate::heap::free(stack);
    pid
}

/// For each of two threads `reader` makes what reads from a descriptor into memory: at an address,
/// so many bytes, from a place in the file.
fn direct_busy_by<R: Fn(usize, usize, usize) + Send>(reader: impl Fn(i32) -> R) {
    let Some(file) = direct_file(2 * MIB, 13) else {
        return;
    };
    let fd = file.as_raw_fd();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Where what was read is wrong the other ends too.
        let _done = Done(&is_done);
        scope.spawn(|| {
            let other = Block::map(4 * MIB);
            while !is_done.load(SeqCst) {
                other.touch(1);
            }
        });
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let read = reader(fd);
                scope.spawn(move || {
                    let block = Block::map(2 * MIB);
                    for _ in 0..4 {
                        for place in (0..block.len).step_by(256 * KIB) {
                            read(block.at + place, 256 * KIB, place);
                        }
                        block.check(0..block.len, 13);
                        block.fill(0..block.len, 14);
                    }
                })
            })
            .collect();
        readers
            .into_iter()
            .for_each(|one| one.join().expect("read"));
    });
}

/// Is set when this is dropped.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// What would write past the CPU without a word is refused with the library, in the usual way of a
/// system that has no such call.
fn refused() {
    let mut params = [0u8; 120];
    // SAFETY: room for the parameters of a ring.
    let said = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, params.as_mut_ptr()) };
    if sys::is_paged() {
        assert_eq!((said, sys::errno()), (-1, libc::ENOSYS), "io_uring_setup");
    } else if said >= 0 {
        sys::close(said as i32);
    }
    let mut context = 0u64;
    // SAFETY: room for a context.
    let said = unsafe { libc::syscall(libc::SYS_io_setup, 4, &raw mut context) };
    if sys::is_paged() {
        assert_eq!((said, sys::errno()), (-1, libc::ENOSYS), "io_setup");
    }
}

/// With a ring there is no arena; the program goes on.
fn first_ring() {
    let mut params = [0u8; 120];
    // SAFETY: room for the parameters of a ring.
    let said = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, params.as_mut_ptr()) };
    if said < 0 {
        return eprintln!("no io_uring here: errno {}", sys::errno());
    }
    let block = Block::filled(4 * MIB, 9);
    press();
    sys::passed(sys::fork(|| {
        i32::from(block.wrong(0..block.len, 9).is_some())
    }));
    block.check(0..block.len, 9);
}
