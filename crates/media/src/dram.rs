//! Reserved anonymous memory for indexes and keys: address space now, pages when first touched,
//! pages given back on [`Region::release`]. This is DRAM, not the device, so it is never metered.
//!
//! What it never does: touch, zero or hand out references to the bytes; a region is a base pointer
//! and a length, and what lies in it is its user's business.
//!
//! *Thread safety*: `Send` and `Sync`, because the region itself has no state that changes. Users
//! of the pointer order their own accesses, including accesses to a range that is being released.

use crate::MediaError;
use crate::mapping::{Mapping, PAGE_BYTES};
use rustix::mm::Advice;
use std::ptr::NonNull;

/// A span of anonymous memory that lives at one address until it is dropped.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
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
        };
        if huge {
            // Best effort: a kernel without huge pages serves small ones.
            let _ = region
                .mapping
                .advise(0, region.len(), Advice::LinuxHugepage);
        }
        Ok(region)
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

    /// Gives the whole pages inside `[from, from + len)` back to the kernel; they read as zero
    /// afterwards. Bytes on the pages at either end that the range only partly covers stay.
    ///
    /// Panics where the range leaves the region.
    pub fn release(&self, from: usize, len: usize) {
        let end = from.checked_add(len).filter(|&end| end <= self.len());
        let end = end.unwrap_or_else(|| {
            panic!(
                "release of {len} bytes at {from} leaves a region of {} bytes",
                self.len()
            )
        });
        let first = from.next_multiple_of(PAGE_BYTES);
        let last = end / PAGE_BYTES * PAGE_BYTES;
        if first < last {
            // Linux refuses this advice only for locked pages, which then simply stay.
            let _ = self
                .mapping
                .advise(first, last - first, Advice::LinuxDontNeed);
        }
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
