//! Streams of files that are read past the page cache, and the buffers that they read into.
//!
//! Thread safety: each case has one thread.
//!
//! What it never does: rest on what a buffer of the program's holds, but that with the library it
//! is left alone.

use crate::Case;
use crate::between::direct_file;
use crate::memory::{Block, KIB, MIB, PAGE, stamp};
use crate::sys;
use libc::{FILE, c_char, c_int};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;

pub(crate) const CASES: &[Case] = &[
    ("streams-buffers", buffers),
    ("streams-buffers-go", buffers_go),
    ("streams-own-buffers", own_buffers),
];

// SAFETY: the C library has these; such are their types.
unsafe extern "C" {
    fn setbuffer(stream: *mut FILE, buffer: *mut c_char, len: usize);
    fn __fbufsize(stream: *mut FILE) -> usize;
    #[link_name = "_IO_setvbuf"]
    fn other_setvbuf(stream: *mut FILE, buffer: *mut c_char, kind: c_int, len: usize) -> c_int;
    #[link_name = "_IO_setbuffer"]
    fn other_setbuffer(stream: *mut FILE, buffer: *mut c_char, len: usize);
}

/// A stream of a file that becomes direct when it is there.
fn open(file: &File) -> *mut FILE {
    let path = std::ffi::CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let path = path.expect("a path");
    // SAFETY: the strings end; it is a stream.
    unsafe {
        let stream = libc::fopen(path.as_ptr(), c"r".as_ptr());
        assert!(!stream.is_null());
        let set = libc::fcntl(libc::fileno(stream), libc::F_SETFL, libc::O_DIRECT);
        assert_eq!(set, 0);
        stream
    }
}

/// Gives a stream a block as its buffer; how much of it.
type Set = fn(*mut FILE, Block) -> usize;

fn at(block: Block) -> *mut c_char {
    ptr::with_exposed_provenance_mut(block.at)
}

const SETS: [Set; 5] = [
    |stream, block| {
        // SAFETY: the block is so long, and outlives the stream; here and below.
        let said = unsafe { libc::setvbuf(stream, at(block), libc::_IOFBF, block.len) };
        assert_eq!(said, 0);
        block.len
    },
    |stream, block| {
        // SAFETY: as above.
        let said = unsafe { other_setvbuf(stream, at(block), libc::_IOLBF, block.len) };
        assert_eq!(said, 0);
        block.len
    },
    |stream, block| {
        // SAFETY: as above.
        unsafe { setbuffer(stream, at(block), block.len) };
        block.len
    },
    |stream, block| {
        // SAFETY: as above.
        unsafe { other_setbuffer(stream, at(block), block.len) };
        block.len
    },
    |stream, block| {
        // SAFETY: as above.
        unsafe { libc::setbuf(stream, at(block)) };
        libc::BUFSIZ as usize
    },
];

/// What is read byte by byte comes by way of the buffer, and is right.
fn buffers() {
    let len = 512 * KIB;
    let Some(file) = direct_file(len, 31) else {
        return;
    };
    for set in SETS {
        let block = Block::filled(128 * KIB, 32);
        let stream = open(&file);
        let has = set(stream, block);
        // SAFETY: it is a stream, here and below.
        unsafe {
            assert_eq!(__fbufsize(stream), has);
            for place in (0..len).step_by(8) {
                let word = [(); 8].map(|()| libc::fgetc(stream) as u8);
                assert_eq!(u64::from_le_bytes(word), stamp(31, place), "at {place:x}");
            }
            assert_eq!(libc::fgetc(stream), libc::EOF);
            assert_eq!(libc::ferror(stream), 0);
            assert_eq!(libc::fclose(stream), 0);
        }
        if sys::is_paged() {
            // A device would have written into it.
            block.check(0..block.len, 32);
        }
        block.unmap();
    }
}

/// Buffers go with their streams, and with others that take their place.
fn buffers_go() {
    let Some(file) = direct_file(128 * KIB, 33) else {
        return;
    };
    let block = Block::map(MIB);
    let pages = || -> usize {
        let told = std::fs::read_to_string("/proc/self/statm").expect("read");
        let first = told.split(' ').next().expect("a number");
        first.parse().expect("a number")
    };
    let before = pages();
    for round in 0..200 {
        let stream = open(&file);
        SETS[0](stream, block);
        SETS[round % SETS.len()](stream, block);
        // SAFETY: it is a stream, which has no buffer of ours in the end.
        unsafe {
            assert_eq!(libc::fgetc(stream) as u64, stamp(33, 0) & 0xff);
            if round % 2 == 0 {
                let none = libc::setvbuf(stream, ptr::null_mut(), libc::_IONBF, 0);
                assert_eq!(none, 0);
            }
            assert_eq!(libc::fclose(stream), 0);
        }
    }
    let more = pages().saturating_sub(before);
    assert!(more < 64 * MIB / PAGE, "{more} pages are left");
}

/// What the C library takes by itself is no large memory, also where a file asks for that.
fn own_buffers() {
    // SAFETY: the name ends.
    let file = unsafe { libc::memfd_create(c"large".as_ptr(), libc::MFD_HUGETLB) };
    if file < 0 {
        return eprintln!("no files of huge pages here: errno {}", sys::errno());
    }
    // SAFETY: zeros are filled by the call; the descriptor is the stream's from then on.
    unsafe {
        let mut about = std::mem::zeroed::<libc::stat>();
        assert_eq!(libc::fstat(file, &raw mut about), 0);
        assert!(about.st_blksize as usize > MIB, "{}", about.st_blksize);
        let stream = libc::fdopen(file, c"r".as_ptr());
        assert!(!stream.is_null());
        assert_eq!(libc::fgetc(stream), libc::EOF);
        let has = __fbufsize(stream);
        assert!(has > 0 && has < 128 * KIB, "{has}");
        libc::fclose(stream);
    }
}
