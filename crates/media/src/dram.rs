//! Reserved memory for indexes and keys: address space now, pages when first touched, pages given
//! back on [`Region::release`]. It is anonymous, or a part of an [`crate::Image`], which survives
//! the process. This is DRAM, not the device, so it is never metered.
//!
//! What it never does: touch, zero or hand out references to the bytes, but as an [`Array`] of
//! atomics; a region is a base pointer and a length, and what lies in it is its user's business.
//!
//! *Thread safety*: `Send` and `Sync`, because the region itself has no state that changes. Users
//! of the pointer order their own accesses, including accesses to a range that is being released.

use crate::MediaError;
use crate::mapping::{Mapping, PAGE_BYTES};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::Advice;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// A span of memory that lives at one address until it is dropped.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    backing: Backing,
}

/// What a region's pages are.
#[derive(Debug)]
enum Backing {
    /// Memory.
    Anonymous,
    /// A part of this file, from there on.
    Shared(Arc<File>, u64),
    /// A file's part as it was: what is stored is in no file.
    Private,
}

impl Region {
    /// Reserves `len` bytes, rounded up to whole pages, all zero. With `huge`, the kernel is asked
    /// for 2 MiB pages, which it may decline without an error.
    ///
    /// No page is committed yet (`MAP_NORESERVE`): a machine that runs out of memory later says so
    /// by its out-of-memory killer, not here.
    pub fn reserve(len: usize, huge: bool) -> Result<Region, MediaError> {
        let failed = |source| MediaError::Reserve {
            len_bytes: len as u64,
            source,
        };
        let region = Region {
            mapping: Mapping::anonymous(len).map_err(failed)?,
            backing: Backing::Anonymous,
        };
        if huge {
            region.ask_for_huge_pages();
        }
        Ok(region)
    }

    /// A part of a file, from `at` on, which is a multiple of a page; a `private` one is the file's
    /// at first, and what is stored in it stays here.
    pub(crate) fn of_file(
        file: &Arc<File>,
        at: u64,
        len: usize,
        huge: bool,
        private: bool,
    ) -> io::Result<Region> {
        let len = len.max(1).next_multiple_of(PAGE_BYTES);
        let region = match private {
            true => Region {
                mapping: Mapping::private(file, at, len)?,
                backing: Backing::Private,
            },
            false => Region {
                mapping: Mapping::shared(file, at, len, false)?,
                backing: Backing::Shared(file.clone(), at),
            },
        };
        if huge {
            region.ask_for_huge_pages();
        }
        Ok(region)
    }

    /// Best effort: a kernel or file system without huge pages serves small ones.
    fn ask_for_huge_pages(&self) {
        let _ = self.mapping.advise(0, self.len(), Advice::LinuxHugepage);
    }

    /// Where it begins; aligned to a page.
    ///
    /// Valid for reads and writes of [`Self::len`] bytes while the region lives. Code that turns it
    /// into references must rule out a concurrent [`Self::release`] of those bytes.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    /// Its length in bytes, a whole number of pages.
    #[inline]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Whether it has no bytes; never, since a region has at least one page.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes sure that `[from, from + len)` can be touched: a part of a file gets its blocks, since
    /// a touch for which a full disk has none would be a SIGBUS. Anonymous memory has nothing to
    /// do.
    ///
    /// Panics where the range leaves the region.
    pub fn allocate(&self, from: usize, len: usize) -> io::Result<()> {
        self.end_of("allocation", from, len);
        let (Backing::Shared(file, at), true) = (&self.backing, len > 0) else {
            return Ok(());
        };
        fallocate(
            file,
            FallocateFlags::KEEP_SIZE,
            at + from as u64,
            len as u64,
        )?;
        Ok(())
    }

    /// Gives the whole pages inside `[from, from + len)` back to the kernel; they read as zero
    /// afterwards, and those of a file must be allocated again. Bytes on the pages at either end
    /// that the range only partly covers stay.
    ///
    /// Panics where the range leaves the region.
    pub fn release(&self, from: usize, len: usize) {
        let end = self.end_of("release", from, len);
        let first = from.next_multiple_of(PAGE_BYTES);
        let last = end / PAGE_BYTES * PAGE_BYTES;
        if first >= last {
            return;
        }
        let len = last - first;
        match &self.backing {
            // A file system without holes keeps the bytes, which must not be found again.
            Backing::Shared(file, at) => {
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let _ = fallocate(file, hole, at + first as u64, len as u64);
            }
            // Linux refuses this advice only for locked pages, which then simply stay.
            Backing::Anonymous => drop(self.mapping.advise(first, len, Advice::LinuxDontNeed)),
            // That advice would bring back what the file has.
            Backing::Private => drop(self.mapping.blank(first, len)),
        }
    }

    fn end_of(&self, what: &str, from: usize, len: usize) -> usize {
        let end = from.checked_add(len).filter(|&end| end <= self.len());
        end.unwrap_or_else(|| {
            panic!(
                "{what} of {len} bytes at {from} leaves a region of {} bytes",
                self.len()
            )
        })
    }
}

/// What may lie in an [`Array`].
///
/// # Safety
///
/// Any bytes are a valid value, and all of its fields are atomics, so that it may be shared with
/// whoever else maps the memory.
pub unsafe trait Words: Sync {}

// SAFETY: an integer, and atomic.
unsafe impl Words for AtomicU8 {}
// SAFETY: as above.
unsafe impl Words for AtomicU32 {}
// SAFETY: as above.
unsafe impl Words for AtomicU64 {}

/// The first values of a region, all zero bytes at first. Derefs to a slice; touching a value
/// commits its page.
#[derive(Debug)]
pub struct Array<T> {
    region: Region,
    len: usize,
    of: PhantomData<T>,
}

// SAFETY: nothing but shared references to `T` come of it, and `T` is `Sync`.
unsafe impl<T: Words> Send for Array<T> {}
// SAFETY: as above.
unsafe impl<T: Words> Sync for Array<T> {}

impl<T: Words> Array<T> {
    /// `len` values at the begin of a region.
    ///
    /// Panics where the region is too short.
    pub fn over(region: Region, len: usize) -> Array<T> {
        let needed = Array::<T>::bytes(len);
        let has = region.len();
        assert!(
            needed <= has,
            "{len} values take {needed} bytes of a region of {has}"
        );
        assert!(align_of::<T>() <= PAGE_BYTES);
        Array {
            region,
            len,
            of: PhantomData,
        }
    }

    /// `len` values in anonymous memory.
    pub fn reserve(len: usize, huge: bool) -> Result<Array<T>, MediaError> {
        let region = Region::reserve(Array::<T>::bytes(len), huge)?;
        Ok(Array::over(region, len))
    }

    /// Bytes that `len` values take.
    pub fn bytes(len: usize) -> usize {
        len * size_of::<T>()
    }

    /// Makes sure that the values `[from, to)` can be touched: see [`Region::allocate`].
    pub fn allocate(&self, from: usize, to: usize) -> io::Result<()> {
        let (from, to) = (Array::<T>::bytes(from), Array::<T>::bytes(to));
        self.region.allocate(from, to - from)
    }
}

impl<T: Words> Deref for Array<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        let first = self.region.base().as_ptr().cast::<T>();
        // SAFETY: the values lie within the region (asserted when it was made), which begins at a
        // page and lives as long as `self`; any bytes are a valid `T`, which is atomic.
        unsafe { std::slice::from_raw_parts(first, self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn byte(region: &Region, at: usize) -> *mut u8 {
        assert!(at < region.len());
        // SAFETY: inside the region by the assertion.
        unsafe { region.base().as_ptr().add(at) }
    }

    #[test]
    fn a_region_is_zero_writable_and_far_larger_than_what_it_uses() {
        for huge in [false, true] {
            let region = Region::reserve(64 << 30, huge).expect("address space is free");
            assert_eq!(region.len(), 64 << 30);
            assert_eq!(region.base().as_ptr() as usize % PAGE_BYTES, 0);
            for at in [0, 4095, 1 << 21, region.len() - 1] {
                // SAFETY: inside the region, and this thread is its only user.
                unsafe {
                    assert_eq!(byte(&region, at).read(), 0);
                    byte(&region, at).write(7);
                    assert_eq!(byte(&region, at).read(), 7);
                }
            }
        }
    }

    #[test]
    fn release_drops_whole_pages_and_keeps_the_edges() {
        let region = Region::reserve(8 * PAGE_BYTES, false).expect("eight pages");
        for at in 0..region.len() {
            // SAFETY: inside the region, and this thread is its only user.
            unsafe { byte(&region, at).write(1) }
        }
        region.release(PAGE_BYTES / 2, 3 * PAGE_BYTES);
        // SAFETY: as above.
        let at = |at| unsafe { byte(&region, at).read() };
        assert_eq!(
            at(PAGE_BYTES - 1),
            1,
            "the first page was only partly released"
        );
        assert_eq!(at(PAGE_BYTES), 0);
        assert_eq!(at(3 * PAGE_BYTES - 1), 0);
        assert_eq!(
            at(3 * PAGE_BYTES),
            1,
            "the last page was only partly released"
        );
        region.release(10, 0);
        region.release(10, PAGE_BYTES / 2);
        assert_eq!(at(11), 1);
    }

    #[test]
    #[should_panic(expected = "leaves a region of 4096 bytes")]
    fn a_release_outside_panics() {
        Region::reserve(1, false)
            .expect("a page")
            .release(1, PAGE_BYTES);
    }

    #[test]
    fn a_reservation_that_cannot_be_names_its_size() {
        let error = Region::reserve(usize::MAX, false).expect_err("no such address space");
        assert!(
            error.to_string().contains(&usize::MAX.to_string()),
            "{error}"
        );
        let error = Region::reserve(1 << 60, false).expect_err("no such address space");
        assert!(
            error.to_string().contains(&(1u64 << 60).to_string()),
            "{error}"
        );
    }
}
