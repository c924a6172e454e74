//! One memory mapping: a base address and a length that are given back when it is dropped. The
//! common ground of reserved DRAM and of media.
//!
//! What it never does: read or write the mapped bytes, or know what they are for.
//!
//! *Thread safety*: `Send` and `Sync`; nothing in it changes after construction, and advice is a
//! system call that the kernel serialises.

use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags};
use rustix::mm::{madvise, mmap, mmap_anonymous, msync, munmap};
use std::fs::File;
use std::io;
use std::ptr::NonNull;

/// The page size of every platform that this room is built for, in bytes.
pub(crate) const PAGE_BYTES: usize = 4096;

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// See the module.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned here alone and neither field changes after construction; the bytes
// are reached only through the raw pointer, by code that makes its own argument.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Anonymous zero bytes that commit no memory before they are touched; whole pages.
    pub(crate) fn anonymous(len: usize) -> io::Result<Mapping> {
        let whole = len.max(1).checked_next_multiple_of(PAGE_BYTES);
        let whole = whole.ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing else.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), whole, READ_WRITE, flags) }?;
        Ok(Mapping::own(base.cast(), whole))
    }

    /// The `len` bytes of a file from `at` on, shared with it; `at` is a multiple of a page. With
    /// `sync`, only where the file's pages are persistent memory, mapped so that a flushed cache
    /// line is durable (`MAP_SYNC`).
    pub(crate) fn shared(file: &File, at: u64, len: usize, sync: bool) -> io::Result<Mapping> {
        let flags = match sync {
            true => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            false => MapFlags::SHARED,
        };
        // SAFETY: a mapping at an address of the kernel's choice. The file may change under it,
        // which is why its bytes are never turned into Rust references.
        let base = unsafe { mmap(std::ptr::null_mut(), len, READ_WRITE, flags, file, at) }?;
        Ok(Mapping::own(base.cast(), len))
    }

    /// The `len` bytes of a file from `at` on, a multiple of a page, as they are: what is stored
    /// here stays here.
    pub(crate) fn private(file: &File, at: u64, len: usize) -> io::Result<Mapping> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: as above.
        let base = unsafe { mmap(std::ptr::null_mut(), len, READ_WRITE, flags, file, at) }?;
        Ok(Mapping::own(base.cast(), len))
    }

    fn own(base: *mut u8, len: usize) -> Mapping {
        Mapping {
            base: NonNull::new(base).expect("mmap never returns null"),
            len,
        }
    }

    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Gives advice on a range that begins at a page. Kernels may decline or not know it.
    pub(crate) fn advise(&self, from: usize, len: usize, advice: Advice) -> io::Result<()> {
        // SAFETY: the range is checked to lie inside our own mapping, and no advice unmaps it;
        // `DontNeed` replaces bytes, which the callers that use it announce as their purpose.
        Ok(unsafe { madvise(self.at(from, len), len, advice) }?)
    }

    /// Replaces the pages of a range, which begins at one, by zeros that are in no file.
    pub(crate) fn blank(&self, from: usize, len: usize) -> io::Result<()> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the range is checked to lie inside our own mapping, of which nobody has Rust
        // references to other than atomics; that its bytes become zero is its purpose.
        unsafe { mmap_anonymous(self.at(from, len), len, READ_WRITE, flags) }?;
        Ok(())
    }

    /// Waits until the pages of a range are on the file's disk.
    pub(crate) fn sync(&self, from: usize, len: usize) -> io::Result<()> {
        let first = from / PAGE_BYTES * PAGE_BYTES;
        let len = len + (from - first);
        // SAFETY: the range is checked to lie inside our own mapping; no byte changes.
        Ok(unsafe { msync(self.at(first, len), len, MsyncFlags::SYNC) }?)
    }

    fn at(&self, from: usize, len: usize) -> *mut std::ffi::c_void {
        let inside = from.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(
            inside,
            "{len} bytes at {from} leave a mapping of {} bytes",
            self.len
        );
        self.base.as_ptr().wrapping_add(from).cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone and `&mut self` proves that no borrow of it is left.
        // A failure would mean a range that was never mapped, which the constructors rule out.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
