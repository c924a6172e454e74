//! What other threads do meanwhile: they touch what is being mapped over, hold a lock of the C
//! library's in a fork, are stopped by signals. And what the C library reads for itself.
//!
//! Thread safety: each case says who may touch what.
//!
//! What it never does: rest on how threads interleave; a run that hangs is ended by who runs it.

use crate::Case;
use crate::between::{Over, direct_file};
use crate::memory::{Block, MIB, PAGE, press, word};
use crate::protect::handle;
use crate::sys::{self, PRIVATE, RW};
use std::ffi::c_int;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::thread::JoinHandleExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};

pub(crate) const CASES: &[Case] = &[
    ("maps-fixed-touched", fixed_touched),
    ("maps-remap-touched", remap_touched),
    ("fork-streams", fork_streams),
    ("fork-fork-streams", fork_fork_streams),
    ("calls-packets", packets),
    ("signal-collector", collector),
    ("calls-direct-stream", direct_stream),
    ("calls-direct-later", direct_later),
];

/// Runs it while others read in no order all over a block, and memory is short.
fn while_read(block: Block, act: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let is_over = &is_over;
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                while !is_over.load(Relaxed) {
                    let page = rng.usize(..block.len / PAGE);
                    std::hint::black_box(word(block.at + page * PAGE).load(Relaxed));
                }
            });
        }
        let _over = Over(&is_over);
        act();
    });
}

/// What the program maps over its memory stays what it is, whoever waits for a page of it.
fn fixed_touched() {
    let block = Block::map(4 * MIB);
    while_read(block, || {
        for round in 0..20 {
            block.fill(0..block.len, round);
            press();
            let flags = PRIVATE | libc::MAP_FIXED;
            // A part of it, another each time.
            let at = block.at + round as usize % 4 * MIB;
            assert_eq!(sys::mmap(at, MIB, RW, flags, -1), Ok(at));
            let own = Block { at, len: MIB };
            own.zero(0..MIB);
            own.fill(0..MIB, 100 + round);
            press();
            press();
            own.check(0..MIB, 100 + round);
        }
    });
}

/// The same where it moves something there.
fn remap_touched() {
    // Shared memory is never the library's.
    let shared = |seed| {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let at = sys::mmap(0, MIB, RW, flags, -1).expect("shared memory");
        Block { at, len: MIB }.fill(0..MIB, seed);
        at
    };
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    for round in 0..10 {
        let block = Block::filled(4 * MIB, 1);
        while_read(block, || {
            for to in (block.at..block.at + block.len).step_by(MIB) {
                let at = shared(round);
                assert_eq!(sys::mremap(at, MIB, MIB, how, to), Ok(to));
                press();
                Block { at: to, len: MIB }.check(0..MIB, round);
            }
        });
        block.unmap();
    }
    // What is not there cannot be moved, and then nothing is lost.
    let block = Block::filled(MIB, 2);
    let at = shared(3);
    sys::munmap(at, MIB).expect("gone");
    assert_eq!(sys::mremap(at, MIB, MIB, how, block.at), Err(libc::EFAULT));
    block.check(0..block.len, 2);
}

/// One thread reads into paged memory and has a stream, one waits for that stream and has the list
/// of all streams, and a third forks, which takes that list.
fn fork_streams() {
    let is_over = AtomicBool::new(false);
    let block = Block::map(8 * MIB);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: the stream is this thread's, and the block so long.
            unsafe {
                let zeros = libc::fopen(c"/dev/zero".as_ptr(), c"r".as_ptr());
                assert!(!zeros.is_null());
                while !is_over.load(Relaxed) {
                    assert_eq!(
                        libc::fread(block.at as *mut _, 1, block.len, zeros),
                        block.len
                    );
                }
                libc::fclose(zeros);
            }
        });
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                // SAFETY: null is all streams.
                unsafe { libc::fflush(ptr::null_mut()) };
            }
        });
        let _over = Over(&is_over);
        for _ in 0..20 {
            sys::passed(sys::fork(|| 0));
        }
    });
}

/// A child that forks leaves its own child no lock that a thread of that could want.
fn fork_fork_streams() {
    let block = Block::filled(MIB, 6);
    let flushed = || {
        let thread = std::thread::spawn(|| {
            // SAFETY: null is all streams.
            unsafe { libc::fflush(ptr::null_mut()) };
        });
        i32::from(thread.join().is_err())
    };
    let child = sys::fork(|| {
        block.check(0..MIB, 6);
        sys::passed(sys::fork(flushed));
        flushed()
    });
    sys::passed(child);
}

/// To a pipe `O_DIRECT` means that writes are not joined: it has streams as any other.
fn packets() {
    let mut ends = [0; 2];
    // SAFETY: the call writes two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_DIRECT) }, 0);
    let block = Block::filled(4096, 8);
    assert_eq!(sys::write(ends[1], block.at, 4096), Ok(4096));
    let block = Block::map(MIB);
    // SAFETY: the descriptor is the stream's from now on; the block is longer than what is read.
    unsafe {
        let stream = libc::fdopen(ends[0], c"r".as_ptr());
        assert!(!stream.is_null(), "errno {}", sys::errno());
        assert_eq!(libc::fread(block.at as *mut _, 1, 4096, stream), 4096);
        libc::fclose(stream);
    }
    block.check(0..4096, 8);
    sys::close(ends[1]);
}

static IS_STOPPED: AtomicBool = AtomicBool::new(false);
static MAY_GO: AtomicBool = AtomicBool::new(false);

extern "C" fn stop(_: c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    IS_STOPPED.store(true, SeqCst);
    while !MAY_GO.load(SeqCst) {
        std::hint::spin_loop();
    }
    IS_STOPPED.store(false, SeqCst);
}

/// A collector stops a thread wherever it is, and has memory mapped, freed and advised on until it
/// lets it go on.
fn collector() {
    handle(libc::SIGUSR1, stop, libc::SA_RESTART);
    let is_over: &AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let mutator = std::thread::spawn(move || {
        while !is_over.load(Relaxed) {
            let block = Block::map(2 * MIB);
            block.touch(3);
            sys::madvise(block.at, MIB, libc::MADV_DONTNEED).expect("given back");
            block.unmap();
        }
    });
    let block = Block::filled(2 * MIB, 4);
    for _ in 0..300 {
        MAY_GO.store(false, SeqCst);
        // SAFETY: the thread runs until it is told that this is over.
        let said = unsafe { libc::pthread_kill(mutator.as_pthread_t(), libc::SIGUSR1) };
        assert_eq!(said, 0);
        while !IS_STOPPED.load(SeqCst) {
            std::thread::yield_now();
        }
        let new = Block::map(MIB);
        new.touch(5);
        sys::madvise(new.at, MIB, libc::MADV_DONTNEED).expect("given back");
        new.unmap();
        MAY_GO.store(true, SeqCst);
        while IS_STOPPED.load(SeqCst) {
            std::thread::yield_now();
        }
    }
    block.check(0..block.len, 4);
    is_over.store(true, Relaxed);
    mutator.join().expect("it ends");
}

/// A stream of a file that was direct before it.
fn direct_stream() {
    let Some(file) = direct_file(MIB, 21) else {
        return;
    };
    let block = Block::filled(MIB, 22);
    // SAFETY: the descriptor is the stream's from now on; the block is so long.
    unsafe {
        let stream = libc::fdopen(file.into_raw_fd(), c"r".as_ptr());
        assert!(!stream.is_null(), "errno {}", sys::errno());
        assert_eq!(libc::fread(block.at as *mut _, 1, MIB, stream), MIB);
    }
    block.check(0..MIB, 21);
}

/// What reads by threads of its own: it is refused, or right.
fn direct_later() {
    let Some(file) = direct_file(MIB, 23) else {
        return;
    };
    let block = Block::filled(MIB, 24);
    // SAFETY: zeros are a request without a signal.
    let mut request = unsafe { std::mem::zeroed::<libc::aiocb>() };
    request.aio_fildes = file.as_raw_fd();
    request.aio_buf = block.at as *mut _;
    request.aio_nbytes = MIB;
    // SAFETY: the request and the block are there until it is done.
    let said = unsafe { libc::aio_read(&raw mut request) };
    if said != 0 {
        assert!(sys::is_paged());
        return assert_eq!(sys::errno(), libc::ENOSYS);
    }
    assert!(!sys::is_paged(), "it is past the library");
    let one: [*const libc::aiocb; 1] = [&raw const request];
    // SAFETY: as above.
    unsafe {
        while libc::aio_error(&raw const request) == libc::EINPROGRESS {
            libc::aio_suspend(one.as_ptr(), 1, ptr::null());
        }
        assert_eq!(libc::aio_return(&raw mut request), MIB as isize);
    }
    block.check(0..MIB, 23);
}
