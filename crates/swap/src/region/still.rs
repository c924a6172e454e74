//! A region that stands still, for a child of `fork` to take a copy of.
//!
//! A child has neither the region's memory nor its threads. While the parent stands still the child
//! puts private memory at the place of the view and reads into it what each page holds: from the
//! file of memory or from the device, whose descriptors it opens again.
//!
//! What it never does: leave a page with zeros that could not be read: who touches that one gets
//! SIGSEGV.
//!
//! *Thread safety*: [`Frozen`] is one thread's; in the child there is only one.

use super::Region;
use super::core::Held;
use super::uffd::PAGE_BYTES;
use nyx_policy::paging::pager::{Content, Pager};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

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
    /// In the table of the thread that has the region.
    memory: RawFd,
    device: RawFd,
    is_direct: bool,
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
    pub(crate) fn still(&self) -> Still {
        let (device, is_direct, begin_bytes) = self.region.device.place();
        Still {
            pager: &raw const self.core.pager as usize,
            memory: self.region.shared.memory.file().as_raw_fd(),
            device,
            is_direct,
            begin_bytes,
            view: self.region.as_ptr() as usize,
        }
    }
}

impl Still {
    /// Reads what these pages hold to where they are in the view, where private memory is by now;
    /// `descriptors` is the directory of those of the parent's thread that has the region.
    ///
    /// # Safety
    ///
    /// This is a child of `fork` of the process that made it, which stands still; it has no other
    /// thread, and memory of zeros at these pages that nobody else uses.
    pub(crate) unsafe fn copy(&self, descriptors: &Path, pages: &[Range<u32>]) -> io::Result<()> {
        let open = |number: RawFd, flags: i32| {
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(flags);
            options.open(descriptors.join(number.to_string()))
        };
        let memory = open(self.memory, 0)?;
        let direct = if self.is_direct { libc::O_DIRECT } else { 0 };
        let device = open(self.device, direct)?;
        // SAFETY: the pager lay there in the parent under its lock when this process began.
        let pager = unsafe { &*(self.pager as *const Pager) };
        for run in pages.iter().flat_map(|range| runs(pager, range.clone())) {
            let (file, at) = match run.content {
                Content::Zeros => continue,
                Content::Memory => (&memory, u64::from(run.first) * PAGE_BYTES as u64),
                Content::Device(slot) => {
                    let at = u64::from(slot) * PAGE_BYTES as u64;
                    (&device, self.begin_bytes + at)
                }
            };
            // SAFETY: the caller's word.
            unsafe { self.read(file, at, &run) };
        }
        Ok(())
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
                unsafe { libc::mprotect(page.cast(), PAGE_BYTES, libc::PROT_NONE) };
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
