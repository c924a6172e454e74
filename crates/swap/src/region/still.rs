//! A region that stands still, for a child of `fork` to take a copy of.
//!
//! A child has neither the region's memory nor its threads. While the parent stands still the child
//! puts private memory at the place of the view and reads into it what each page holds: from the
//! file of memory or from the device, whose descriptors it was given.
//!
//! Where the kernel has no memory for the copy the child waits, a minute in all, and cannot have it
//! then.
//!
//! What it never does: leave a page with zeros that could not be read: who touches that one gets
//! SIGSEGV; take want of memory for a page that cannot be read.
//!
//! *Thread safety*: [`Frozen`] is one thread's; in the child there is only one.

use super::Region;
use super::core::Held;
use super::memory::is_short;
use super::short::{AGAIN, PATIENCE};
use super::uffd::PAGE_BYTES;
use nyx_policy::paging::pager::{Content, Pager};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

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
    /// # Errors
    ///
    /// Where the kernel has no memory for them, for long.
    ///
    /// # Safety
    ///
    /// This is a child of `fork` of the process that made it, which stands still; it has no other
    /// thread, and memory of zeros at these pages that nobody else uses.
    pub(crate) unsafe fn copy(
        &self,
        [memory, device]: &[File; 2],
        pages: &[Range<u32>],
    ) -> io::Result<()> {
        // In all: who made the child stands still meanwhile.
        let mut began = None;
        let mut wait = || {
            // What is refused may take long to be.
            let began = began.get_or_insert_with(Instant::now);
            std::thread::sleep(Duration::from_nanos(AGAIN.0));
            began.elapsed() < Duration::from_nanos(PATIENCE.0)
        };
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
            unsafe { self.read(file, at, &run, &mut wait) }?;
        }
        Ok(())
    }

    /// `wait` rests where there is no memory, and says whether it is to be tried again.
    ///
    /// # Safety
    ///
    /// As [`Still::copy`].
    unsafe fn read(
        &self,
        file: &File,
        at: u64,
        run: &Run,
        wait: &mut impl FnMut() -> bool,
    ) -> io::Result<()> {
        let to = self.view + run.first as usize * PAGE_BYTES;
        let len = run.pages as usize * PAGE_BYTES;
        // SAFETY: the caller's word.
        let bytes = unsafe { std::slice::from_raw_parts_mut(to as *mut u8, len) };
        if is_read(file, bytes, at, wait)? {
            return Ok(());
        }
        // One by one: nobody can have what is in those that cannot be read.
        for offset in (0..len).step_by(PAGE_BYTES) {
            let page = (to + offset) as *mut u8;
            // SAFETY: as above.
            let bytes = unsafe { std::slice::from_raw_parts_mut(page, PAGE_BYTES) };
            if !is_read(file, bytes, at + offset as u64, wait)? {
                // SAFETY: the page is the child's.
                unsafe { libc::syscall(libc::SYS_mprotect, page, PAGE_BYTES, libc::PROT_NONE) };
            }
        }
        Ok(())
    }
}

/// Whether bytes could be read.
///
/// # Errors
///
/// That there is no memory for them, and `wait` has enough of that.
fn is_read(
    file: &File,
    bytes: &mut [u8],
    at: u64,
    wait: &mut impl FnMut() -> bool,
) -> io::Result<bool> {
    loop {
        match file.read_exact_at(bytes, at) {
            Ok(()) => return Ok(true),
            Err(error) if !is_short(&error) => return Ok(false),
            Err(_) if wait() => {}
            Err(error) => {
                let why = format!("the kernel has no memory for it: {error}");
                return Err(io::Error::new(error.kind(), why));
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    /// Memory that the kernel has none for as long as nobody may reach it.
    struct Private(*mut libc::c_void);

    impl Private {
        fn of(pages: usize) -> Private {
            let (how, len) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, pages * PAGE_BYTES);
            // SAFETY: a new mapping at an address of the kernel's choice; it stays.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, how, -1, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            Private(at)
        }

        fn open(&self, pages: usize) {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: the mapping is ours.
            let opened = unsafe { libc::mprotect(self.0, pages * PAGE_BYTES, access) };
            assert_eq!(opened, 0);
        }

        /// Reads so many pages of a file to it.
        fn read(&self, file: &File, pages: u32, mut wait: impl FnMut() -> bool) -> io::Result<()> {
            let still = Still {
                pager: 0,
                begin_bytes: 0,
                view: self.0 as usize,
            };
            let run = Run {
                first: 0,
                pages,
                content: Content::Memory,
            };
            // SAFETY: the pages are ours alone.
            unsafe { still.read(file, 0, &run, &mut wait) }
        }
    }

    #[test]
    fn a_copy_waits_for_memory_and_is_none_where_that_does_not_come() {
        let mut file = tempfile::tempfile().expect("a file");
        let bytes: Vec<u8> = (0..2 * PAGE_BYTES).map(|at| (at / 16) as u8 | 1).collect();
        file.write_all(&bytes).expect("room");
        let (memory, mut waits) = (Private::of(2), 0);
        let wait = || {
            waits += 1;
            // The second page comes later than the first, the others never.
            if let 2 | 4 = waits {
                memory.open(waits / 2);
            }
            waits < 9
        };
        memory.read(&file, 2, wait).expect("it comes");
        assert_eq!(waits, 4);
        // SAFETY: both pages may be read by now, and nobody writes to them.
        let copied = unsafe { std::slice::from_raw_parts(memory.0.cast::<u8>(), bytes.len()) };
        assert!(copied == bytes);

        waits = 0;
        let never = Private::of(1).read(&file, 1, || {
            waits += 1;
            waits < 7
        });
        let said = never.expect_err("it never comes").to_string();
        assert!(
            said.starts_with("the kernel has no memory for it"),
            "{said}"
        );
        assert_eq!(waits, 7);

        // What cannot be read nobody has, and the others are there.
        let part = Private::of(3);
        part.open(3);
        part.read(&file, 3, || panic!("nothing is short"))
            .expect("two of three");
        let into = tempfile::tempfile().expect("a file");
        let can_read = |page: usize| {
            let at = part.0.wrapping_byte_add(page * PAGE_BYTES);
            // SAFETY: the kernel reads the page, or says that nobody may.
            unsafe { libc::write(into.as_raw_fd(), at, PAGE_BYTES) == PAGE_BYTES as isize }
        };
        assert_eq!([0, 1, 2].map(can_read), [true, true, false]);
    }
}
