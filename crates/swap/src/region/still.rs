//! A region that stands still, for a child of `fork` to take a copy of.
//!
//! A child has neither the region's memory nor its threads. While the parent stands still the child
//! puts private memory at the place of the view and reads into it what each page holds: from the
//! file of memory or from the device, whose descriptors it was given.
//!
//! What it never does: leave a page with zeros that could not be read: who touches that one gets
//! SIGSEGV.
//!
//! *Thread safety*: [`Frozen`] is one thread's; in the child there is only one.

use super::Region;
use super::core::Held;
use super::uffd::PAGE_BYTES;
use nyx_policy::paging::pager::{Content, Pager};
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

/// Pages that are read by one call, at most.
const TOGETHER: u32 = 256;

/// Nothing of the region changes as long as this lives.
pub(crate) struct Frozen<'a> {
    region: &'a Region,
    core: Held<'a>,
}

/// What a copy is made of, for a child of `fork`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Still {
    pager: usize,
    begin_bytes: u64,
    view: usize,
}

impl Region {
    /// Has all stand still: who writes to the region waits.
    pub(crate) fn freeze(&self) -> Frozen<'_> {
        let core = self.shared.freeze();
        Frozen { region: self, core }
    }
}

impl Frozen<'_> {
    /// The file of memory and the device, for [`Still::copy`].
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        let memory = self.region.shared.memory.file();
        [memory.as_fd(), self.region.device.file()]
    }

    pub(crate) fn still(&self) -> Still {
        Still {
            pager: &raw const self.core.pager as usize,
            begin_bytes: self.region.device.begin_bytes(),
            view: self.region.as_ptr() as usize,
        }
    }
}

impl Still {
    /// Reads what these pages hold to where they are in the view, where private memory is by now.
    ///
    /// # Safety
    ///
    /// This is a child of `fork` of the process that made it, which stands still; it has no other
    /// thread, and memory of zeros at these pages that nobody else uses.
    pub(crate) unsafe fn copy(&self, [memory, device]: &[File; 2], pages: &[Range<u32>]) {
        // SAFETY: the pager lay there in the parent under its lock when this process began.
        let pager = unsafe { &*(self.pager as *const Pager) };
        for run in pages.iter().flat_map(|range| runs(pager, range.clone())) {
            let (file, at) = match run.content {
                Content::Zeros => continue,
                Content::Memory => (memory, u64::from(run.first) * PAGE_BYTES as u64),
                Content::Device(slot) => {
                    let at = u64::from(slot) * PAGE_BYTES as u64;
                    (device, self.begin_bytes + at)
                }
            };
            // SAFETY: the caller's word.
            unsafe { self.read(file, at, &run) };
        }
    }

    /// # Safety
    ///
    /// As [`Still::copy`].
    unsafe fn read(&self, file: &File, at: u64, run: &Run) {
        let to = self.view + run.first as usize * PAGE_BYTES;
        let len = run.pages as usize * PAGE_BYTES;
        // SAFETY: the caller's word.
        let bytes = unsafe { std::slice::from_raw_parts_mut(to as *mut u8, len) };
        if file.read_exact_at(bytes, at).is_ok() {
            return;
        }
        // One by one: nobody can have what is in those that cannot be read.
        for offset in (0..len).step_by(PAGE_BYTES) {
            let page = (to + offset) as *mut u8;
            // SAFETY: as above.
            let bytes = unsafe { std::slice::from_raw_parts_mut(page, PAGE_BYTES) };
            if file.read_exact_at(bytes, at + offset as u64).is_err() {
                // SAFETY: the page is the child's.
                unsafe { libc::syscall(libc::SYS_mprotect, page, PAGE_BYTES, libc::PROT_NONE) };
            }
        }
    }
}

/// Pages side by side whose bytes are side by side too.
struct Run {
    first: u32,
    pages: u32,
    content: Content,
}

fn runs(pager: &Pager, range: Range<u32>) -> impl Iterator<Item = Run> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        let (first, content) = (at, pager.content(at));
        let is_next = |page: u32| match (content, pager.content(page)) {
            (Content::Zeros, Content::Zeros) | (Content::Memory, Content::Memory) => true,
            (Content::Device(slot), Content::Device(other)) => other == slot + (page - first),
            _ => false,
        };
        at += 1;
        while at < range.end && at - first < TOGETHER && is_next(at) {
            at += 1;
        }
        Some(Run {
            first,
            pages: at - first,
            content,
        })
    })
}
