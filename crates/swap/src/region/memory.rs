//! The memory of a region: a file without a name, and a mapping of it, the *view*. The file has all
//! that is in memory; the view is what the program sees, and only what was mapped into it. "In
//! memory and not in the view" is the swap cache.
//!
//! What devices read and write is copied out of the file and into it. A second mapping, into which
//! they would read without a copy, was there and is not any more: each page of it has to be taken
//! out again, and that is told to the other CPUs, page by page, which costs more than the copy.
//!
//! Behind the region's pages the view has some more, *doorbells*: touching one is a fault like any
//! other, by which a thread that sleeps until there is a fault is woken.
//!
//! What it never does: decide which page is where; wake who waits for a page before it is
//! told to; wait for memory where the kernel has none. A child of `fork` has no view: it would read
//! zeros.
//!
//! *Thread safety*: every call is a system call.

use super::error::{RegionError, Trying};
use super::uffd::{Fault, PAGE_BYTES, Uffd};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, fstat, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
#[cfg(test)]
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// What a page holds that was never written to.
const ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
/// Pages that are unmapped by one call, at most.
const TOGETHER: usize = 64;
/// Where the kernel says which files in memory it gives huge pages, of any size.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage";

/// A mapping of the whole file.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the fields do not change; bytes are reached through raw pointers, by code that makes its
// own argument.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &OwnedFd, len: usize) -> Result<Mapping, RegionError> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice, of a file that is ours alone.
        let base = unsafe { mmap(std::ptr::null_mut(), len, access, flags, file, 0) };
        let base = base.trying("map a region's memory")?.cast();
        let base = NonNull::new(base).expect("mmap never returns null");
        let mapping = Mapping { base, len };
        for advice in [Advice::LinuxDontFork, Advice::LinuxNoHugepage] {
            // SAFETY: the mapping is ours; neither advice changes what is in it.
            let advised = unsafe { madvise(base.as_ptr().cast(), len, advice) };
            match advised {
                // A kernel without huge pages.
                Err(Errno::INVAL) if advice == Advice::LinuxNoHugepage => {}
                other => other.trying("advise on a region's memory")?,
            }
        }
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the owner goes, and with it all that knew the address.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        unmapped.expect("a mapping of ours can be unmapped");
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Memory {
    view: Mapping,
    file: OwnedFd,
    uffd: Uffd,
    /// This process.
    process: OwnedFd,
    /// So often the kernel has no memory from now on.
    #[cfg(test)]
    pub(super) shortages: AtomicU32,
}

impl Memory {
    /// So many pages, none of which is in memory, and so many doorbells.
    pub(super) fn new(
        pages: u32,
        doorbells: u32,
        in_user_mode: bool,
    ) -> Result<Memory, RegionError> {
        if let Some(reason) = huge_pages(Path::new(HUGE_PAGES)) {
            return Err(RegionError::NotSafe { reason });
        }
        let uffd = Uffd::new(in_user_mode)?;
        let len = (pages as usize + doorbells as usize) * PAGE_BYTES;
        let file = memfd_create("nyx-region", MemfdFlags::CLOEXEC);
        let file = file.trying("make a region's memory")?;
        ftruncate(&file, len as u64).trying("size a region's memory")?;
        let memory = Memory {
            view: Mapping::new(&file, len)?,
            file,
            uffd,
            process: pidfd_open(getpid(), PidfdFlags::empty()).trying("name this process")?,
            #[cfg(test)]
            shortages: AtomicU32::new(0),
        };
        memory.uffd.register(memory.at(0), len)?;
        Ok(memory)
    }

    /// Where the view begins.
    pub(super) fn view(&self) -> NonNull<u8> {
        self.view.base
    }

    /// Sleeps until a page is touched that is not in the view.
    pub(super) fn next(&self) -> io::Result<Option<(u32, Fault)>> {
        let fault = self.uffd.next()?;
        Ok(fault.map(|fault| (((fault.address - self.at(0)) / PAGE_BYTES) as u32, fault)))
    }

    /// Maps zeros where nothing is in memory.
    pub(super) fn zero(&self, pages: Range<u32>, writable: bool) -> io::Result<()> {
        let len = pages.len() * PAGE_BYTES;
        self.uffd.zero(self.at(pages.start), len, writable)
    }

    /// Takes pages that are in memory into the view, or lets them be written to where they are
    /// there.
    pub(super) fn map(&self, pages: Range<u32>, writable: bool) -> io::Result<()> {
        let len = pages.len() * PAGE_BYTES;
        self.uffd.go_on(self.at(pages.start), len, writable)
    }

    /// Has the next write to each of these pages of the view be a fault.
    pub(super) fn protect(&self, pages: Range<u32>) -> io::Result<()> {
        self.change(pages, |at, len| self.uffd.protect(at, len))
    }

    /// Has writes to these pages of the view be no faults, where they are there.
    pub(super) fn allow_writes(&self, pages: Range<u32>) -> io::Result<()> {
        self.change(pages, |at, len| self.uffd.allow_writes(at, len))
    }

    fn change(
        &self,
        mut pages: Range<u32>,
        change: impl Fn(usize, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        // The program may have divided the mapping, and the kernel takes one at a time.
        if change(self.at(pages.start), pages.len() * PAGE_BYTES).is_ok() {
            return Ok(());
        }
        pages.try_for_each(|page| match change(self.at(page), PAGE_BYTES) {
            Err(error) if is_gone(&error) => Ok(()),
            other => other,
        })
    }

    /// The file, for a child of `fork`.
    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Lets those who wait for a page try again.
    pub(super) fn wake(&self, page: u32) -> io::Result<()> {
        self.uffd.wake(self.at(page))
    }

    /// Takes pages, each by its place in the view, out of there; what is in memory stays. Poison
    /// goes too.
    ///
    /// Places are put in order: those side by side are one range to the kernel, which tells other
    /// CPUs of each range that was written to, and that costs more than the rest.
    pub(super) fn unmap(&self, places: &mut [usize]) -> io::Result<()> {
        places.sort_unstable();
        for places in places.chunks(TOGETHER) {
            let mut ranges = [libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            }; TOGETHER];
            let runs = places.chunk_by(|a, b| a + PAGE_BYTES == *b);
            let count = runs.clone().count();
            for (into, run) in ranges.iter_mut().zip(runs) {
                into.iov_base = run[0] as *mut _;
                into.iov_len = run.len() * PAGE_BYTES;
            }
            let ranges = &ranges[..count];
            if count == 1 || !self.unmap_at_once(ranges) {
                ranges.iter().try_for_each(unmap_one)?;
            }
        }
        Ok(())
    }

    /// All of them by one call; false where this kernel does not let us (before Linux 6.13).
    fn unmap_at_once(&self, ranges: &[libc::iovec]) -> bool {
        // SAFETY: the ranges lie in the view, as below; the call reads so many.
        let advised = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                self.process.as_raw_fd(),
                ranges.as_ptr(),
                ranges.len(),
                libc::MADV_DONTNEED,
                0,
            )
        };
        let bytes: usize = ranges.iter().map(|range| range.iov_len).sum();
        advised == bytes as libc::c_long
    }

    /// Gives memory of pages back.
    pub(super) fn free(&self, pages: Range<u32>) -> io::Result<()> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let bytes = |page: u32| u64::from(page) * PAGE_BYTES as u64;
        let (at, len) = (bytes(pages.start), bytes(pages.end - pages.start));
        Ok(fallocate(&self.file, hole, at, len)?)
    }

    /// Who touches the page gets SIGBUS. There is none yet.
    pub(super) fn poison(&self, page: u32) -> io::Result<()> {
        // A page that was mapped read only leaves a mark there, which is in the way.
        let cleared = self.uffd.allow_writes(self.at(page), PAGE_BYTES);
        let poisoned = cleared.and_then(|()| self.uffd.poison(self.at(page)));
        poisoned.or_else(|error| is_gone(&error).then_some(()).ok_or(error))
    }

    /// Touches a doorbell; returns when somebody has answered.
    pub(super) fn ring(&self, page: u32) {
        // SAFETY: it lies in the view, which lives as long as this; nobody ever writes to it.
        unsafe { (self.at(page) as *const u8).read_volatile() };
    }

    /// Bytes in memory, as the kernel counts them.
    pub(super) fn resident_bytes(&self) -> io::Result<u64> {
        Ok(fstat(&self.file)?.st_blocks as u64 * 512)
    }

    /// Where a page is in the view.
    pub(super) fn at(&self, page: u32) -> usize {
        self.view.base.as_ptr() as usize + page as usize * PAGE_BYTES
    }

    /// Whether a page in memory is known to be all zeros. Where it is written to meanwhile it is
    /// either.
    pub(super) fn is_zero(&self, page: u32) -> bool {
        let mut bytes = ZEROS;
        self.load(page, &mut bytes).is_ok() && bytes == ZEROS
    }

    /// Copies what is in memory, from a page on. Where it is written to meanwhile that may be in it
    /// or not, byte by byte.
    ///
    /// # Errors
    ///
    /// Where the kernel has sent a page to its own swap, and has no memory for it ([`is_short`]) or
    /// cannot read it.
    pub(super) fn load(&self, page: u32, into: &mut [u8]) -> io::Result<()> {
        self.each(into.len(), page, |done, at| {
            pread(&self.file, &mut into[done..], at)
        })
    }

    /// Puts bytes into memory, from a page on: of pages that are not in the view.
    ///
    /// # Errors
    ///
    /// Where the kernel has no memory for them ([`is_short`]); some may be there then.
    pub(super) fn store(&self, page: u32, from: &[u8]) -> io::Result<()> {
        self.each(from.len(), page, |done, at| {
            pwrite(&self.file, &from[done..], at)
        })
    }

    /// Goes along so many bytes, from a page on; `part` has how many are done, and where it is to
    /// go on in the file.
    fn each(
        &self,
        len: usize,
        page: u32,
        mut part: impl FnMut(usize, u64) -> Result<usize, Errno>,
    ) -> io::Result<()> {
        #[cfg(test)]
        // By one step: two threads may come to the last of them at once.
        if (self.shortages)
            .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1))
            .is_ok()
        {
            return Err(Errno::NOMEM.into());
        }
        let mut done = 0;
        while done < len {
            match part(done, u64::from(page) * PAGE_BYTES as u64 + done as u64) {
                Ok(len) => done += len,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Whether the kernel has no memory just now: what is the program's and not a region's is on its
/// way to swap.
pub(super) fn is_short(error: &io::Error) -> bool {
    // The second where memory may not be promised to more than there is, the third where there is
    // none for the bytes on our side of the copy: a buffer that is new, or was sent to swap.
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOMEM | Errno::NOSPC | Errno::FAULT)
    )
}

/// What the program has unmapped past us nobody can touch.
fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOENT)
}

/// Why files in memory have pages that were not asked for: the kernel gives them huge ones. A
/// region would have more than its limit then, and find pages where it has put none.
fn huge_pages(dir: &Path) -> Option<String> {
    let sizes = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = sizes.map(|entry| entry.path()).chain([dir.to_owned()]);
    let mut files = dirs.map(|dir| dir.join("shmem_enabled"));
    files.find_map(|file| {
        let text = std::fs::read_to_string(&file).ok()?;
        let chosen = text.split_once('[')?.1.split_once(']')?.0;
        matches!(chosen, "always" | "within_size" | "force").then(|| {
            let file = file.display();
            format!("{file} is {chosen:?}, which gives memory nobody asked for: advise is safe")
        })
    })
}

fn unmap_one(range: &libc::iovec) -> io::Result<()> {
    // SAFETY: the pages lie in the view, which maps a shared file: this drops their entries and no
    // bytes. Who touches them faults, or gets them again.
    let advised = unsafe { madvise(range.iov_base, range.iov_len, Advice::LinuxDontNeed) };
    match advised {
        // Some of it the program has unmapped past us; the rest is done.
        Err(Errno::NOMEM) => Ok(()),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    /// Which pages of the view are mapped, and may be written to without a fault.
    fn mapped(memory: &Memory, pages: u32) -> Vec<Option<bool>> {
        let table = File::open("/proc/self/pagemap").expect("a process may see its own");
        let entry = |page| {
            let mut bytes = [0; 8];
            let at = (memory.at(page) / PAGE_BYTES * 8) as u64;
            table.read_exact_at(&mut bytes, at).expect("it is mapped");
            let entry = u64::from_le_bytes(bytes);
            let (is_there, is_protected) = (entry >> 63 == 1, entry >> 57 & 1 == 1);
            is_there.then_some(!is_protected)
        };
        (0..pages).map(entry).collect()
    }

    fn made(name: &str) -> Option<Memory> {
        match Memory::new(40, 1, false) {
            Ok(memory) => Some(memory),
            Err(reason @ (RegionError::NoUserfaultfd { .. } | RegionError::NotSafe { .. })) => {
                eprintln!("skipped {name}: {reason}");
                None
            }
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn neighbours_are_mapped_together_and_what_is_there_already_stays() {
        let Some(memory) = made("neighbours_are_mapped_together") else {
            return;
        };
        // More than one call does.
        memory.zero(0..40, false).expect("nothing was there");
        assert_eq!(mapped(&memory, 40), [Some(false); 40]);
        let mut places = [5, 1, 39, 0].map(|page| memory.at(page));
        memory.unmap(&mut places).expect("they are ours");
        assert_eq!(mapped(&memory, 40)[..3], [None, None, Some(false)]);
        memory.map(0..40, false).expect("all are in memory");
        assert_eq!(mapped(&memory, 40), [Some(false); 40]);
        memory.unmap(&mut places).expect("they are ours");
        memory.map(0..40, true).expect("all are in memory");
        assert_eq!(mapped(&memory, 40), [Some(true); 40]);
    }

    #[test]
    fn what_is_stored_is_loaded_and_takes_memory_until_it_is_freed() {
        let Some(memory) = made("what_is_stored_is_loaded") else {
            return;
        };
        let bytes: Vec<u8> = (0..3 * PAGE_BYTES).map(|at| (at / 16) as u8 | 1).collect();
        memory.store(4, &bytes).expect("there is memory");
        assert_eq!(
            memory.resident_bytes().expect("told"),
            3 * PAGE_BYTES as u64
        );
        assert_eq!(
            mapped(&memory, 8),
            [None; 8],
            "the program does not see them"
        );
        let mut read = vec![0; 5 * PAGE_BYTES];
        memory.load(3, &mut read).expect("it is in memory");
        assert_eq!(&read[PAGE_BYTES..4 * PAGE_BYTES], bytes);
        assert!(memory.is_zero(3) && !memory.is_zero(4) && memory.is_zero(7));
        memory.free(3..8).expect("they are ours");
        assert_eq!(memory.resident_bytes().expect("told"), 0);
        assert!(memory.is_zero(4));
    }

    #[test]
    fn a_shortage_is_told_of_and_no_page_counts_as_zeros_then() {
        let Some(memory) = made("a_shortage_is_told_of") else {
            return;
        };
        for code in [libc::ENOMEM, libc::ENOSPC, libc::EFAULT] {
            assert!(is_short(&io::Error::from_raw_os_error(code)), "{code}");
        }
        assert!(!is_short(&io::Error::from_raw_os_error(libc::EIO)));
        memory.shortages.store(3, Relaxed);
        let mut bytes = ZEROS;
        assert!(is_short(&memory.load(1, &mut bytes).expect_err("none")));
        assert!(is_short(&memory.store(1, &bytes).expect_err("none")));
        assert!(!memory.is_zero(1));
        assert!(memory.is_zero(1), "it is over");
    }

    #[test]
    fn huge_pages_that_were_not_asked_for_are_named() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(huge_pages(&dir.path().join("none")), None);
        let size = dir.path().join("hugepages-64kB");
        std::fs::create_dir(&size).expect("made");
        let set = |dir: &Path, words: &str| {
            std::fs::write(dir.join("shmem_enabled"), words).expect("written");
            huge_pages(dir.parent().filter(|_| dir == size).unwrap_or(dir))
        };
        let safe = "always within_size [advise] never deny force\n";
        assert_eq!(set(dir.path(), safe), None);
        assert_eq!(
            set(&size, "always [inherit] within_size advise never\n"),
            None
        );
        let said = set(&size, "[always] inherit within_size advise never\n").expect("told");
        assert!(
            said.contains("hugepages-64kB/shmem_enabled is \"always\""),
            "{said}"
        );
        set(&size, "always inherit within_size advise [never]\n");
        for one in ["always", "within_size", "force"] {
            let words = "always within_size advise never deny force";
            let words = words.replace(one, &format!("[{one}]"));
            assert!(set(dir.path(), &words).is_some(), "{one}");
        }
    }

    #[test]
    fn a_mapping_that_was_divided_is_gone_along_and_what_was_unmapped_is_left_out() {
        let Some(memory) = made("a_mapping_that_was_divided") else {
            return;
        };
        // SAFETY: the page is ours, and nobody has a reference to it.
        let divided = unsafe {
            let at = memory.at(3) as *mut libc::c_void;
            libc::mprotect(at, PAGE_BYTES, libc::PROT_READ)
        };
        assert_eq!(divided, 0);
        memory.zero(0..8, true).expect("nothing was there");
        assert!(mapped(&memory, 8).iter().all(Option::is_some));
        // SAFETY: as above; the whole is unmapped when it goes, holes or not.
        unsafe { munmap(memory.at(20) as *mut _, PAGE_BYTES) }.expect("it is ours");
        memory.zero(16..24, true).expect("all but one");
        let mut all = [Some(true); 8];
        all[4] = None;
        assert_eq!(mapped(&memory, 24)[16..], all);
    }
}
