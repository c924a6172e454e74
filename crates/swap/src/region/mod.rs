//! Engine L: a memory range that is larger than its DRAM, for programs in Rust and for Nyx's own
//! tiers (Ultraswap sections 3.1 and 3.2).
//!
//! A [`Region`] has so many bytes, of which so many may be in memory; the rest is on a [`Device`].
//!
//! * *Explicit*: [`Region::fix`] has pages in memory until its guard is dropped, and tells why
//!   where that cannot be. [`Region::read_at`] and [`Region::write_at`] copy through it.
//! * *Faulting*: [`Region::as_ptr`] is memory like any other; who touches a page that is not there
//!   waits for it. Where it cannot be had he gets SIGBUS, and its address is logged.
//!
//! ```text
//! program --touch--> fault --userfaultfd--> handler, one per CPU --critical queue--> device
//!    |                                         |  asks, under one lock
//!    +--fix, will_need, dont_need--> pager (nyx_policy::paging): which page is where
//!                                              |  acts: zero map unmap read write free fail
//!                                   background's thread --its own queue--> device
//! ```
//!
//! The pager decides all; here its acts are carried out, in their order (`core.rs`). Memory is a
//! file without a name (`memory.rs`) and its *view*, of the program, into which pages are mapped by
//! `UFFDIO_CONTINUE`. What the device reads and writes is copied into the file and out of it. A
//! page whose memory is given back is a hole in the file. What is read is mapped read only, unless
//! it was written to the last time; its first write is a fault by which the pager knows that it is
//! to be written back. Threads are in `threads.rs`.
//!
//! What it never does: hold more in memory than its limit, which is counted in the pages of the
//! file; leave a thread, a file or a mapping behind; show zeros for what it cannot read; work in
//! part where userfaultfd is not to be had: it says what is missing.
//!
//! *Thread safety*: a region is shared by reference. What is reached through [`Region::as_ptr`] is
//! the program's to order. A child of `fork` does not have the region. *Errors*: [`RegionError`].

mod bits;
mod bytes;
mod core;
mod device;
mod error;
mod flux;
mod medium;
mod memory;
mod purse;
mod short;
mod still;
pub(crate) mod threads;
mod uffd;

pub use device::Device;
pub use error::RegionError;
pub use medium::Paged;
pub use purse::{CREDIT_PS, Need, Prices, Purse, Spent, Till};
pub(crate) use still::Still;
pub use uffd::PAGE_BYTES;

use self::core::Shared;
use bytes::Words;
use device::Claim;
use error::Trying;
use memory::Memory;
use nyx_base::{Latencies, Nanos};
use nyx_policy::paging::pager::{self, Counts, Pager, Prefetch};
use nyx_policy::paging::pool::{self, Rule};
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;
use std::thread::JoinHandle;

/// Whether this process may have a region whose memory system calls may be given too: what is
/// missing, as an error.
///
/// # Errors
///
/// [`RegionError::NoUserfaultfd`].
pub fn probe() -> Result<(), RegionError> {
    uffd::Uffd::new(false).map(drop)
}

/// Pages in memory at least: an instruction may need several at once.
const LIMIT_PAGES_MIN: u32 = 16;
/// Threads that answer faults, at most.
const HANDLERS_MAX: usize = 64;
/// The pool that is kept free is no smaller, where an eighth of the limit is not.
const FLOOR_BYTES: u64 = 256 << 10;

/// What a region is like.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes that it has; rounded up to pages of 4096.
    pub len_bytes: u64,
    /// Bytes of it that may be in memory; 16 pages at least.
    pub limit_bytes: u64,
    /// What is read before it is wanted.
    pub prefetch: Prefetch,
    /// How much is kept free.
    pub pool: Rule,
    /// Threads that answer faults, 1 to 64; as many as there are CPUs, up to 8, where none is said.
    pub handlers: Option<usize>,
    /// The CPU of the thread that reclaims; any where none is said.
    pub reclaimer_cpu: Option<usize>,
    /// Whether it will do that only faults in user mode are answered, which takes no privilege:
    /// system calls that touch a page which is not in memory then fail with `EFAULT`.
    pub in_user_mode: bool,
}

impl Shape {
    /// The usual one.
    pub fn new(len_bytes: u64, limit_bytes: u64) -> Shape {
        Shape {
            len_bytes,
            limit_bytes,
            prefetch: Prefetch::default(),
            pool: Rule::Demand,
            handlers: None,
            reclaimer_cpu: None,
            in_user_mode: false,
        }
    }

    /// Whether there can be such a region, as far as its sizes say.
    ///
    /// # Errors
    ///
    /// [`RegionError::Shape`].
    pub fn check(&self) -> Result<(), RegionError> {
        self.pages().map(drop)
    }

    fn pages(&self) -> Result<(u32, u32), RegionError> {
        let reason = |reason| RegionError::Shape {
            len_bytes: self.len_bytes,
            limit_bytes: self.limit_bytes,
            reason,
        };
        let pages = self.len_bytes.div_ceil(PAGE_BYTES as u64);
        if pages == 0 || pages > u64::from(u32::MAX / 2) {
            return Err(reason("it has 1 page of 4096 bytes to some 8 TiB"));
        }
        let limit = (self.limit_bytes / PAGE_BYTES as u64).min(pages.max(LIMIT_PAGES_MIN.into()));
        if limit < u64::from(LIMIT_PAGES_MIN) {
            return Err(reason(
                "an instruction may need several pages: 65536 bytes at least",
            ));
        }
        Ok((pages as u32, limit as u32))
    }
}

/// What a region did since it was made, and how it stands.
#[derive(Clone, Debug)]
pub struct Figures {
    /// What the pager counted.
    pub counts: Counts,
    /// Bytes that take memory, as the pager has it.
    pub used_bytes: u64,
    /// Bytes that may.
    pub limit_bytes: u64,
    /// Bytes on the device.
    pub device_bytes: u64,
    /// Pages that give SIGBUS to who touches them.
    pub poisoned_pages: usize,
    /// How long faults of touches took, from their being heard of until they were answered. The way
    /// through the kernel to the handler and back is not in it.
    pub faults: Latencies,
    /// How long those waited who fixed, read or wrote ([`Region::fix`]) what was not in memory;
    /// those who found it there are not among them.
    pub waits: Latencies,
}

/// See the module.
#[derive(Debug)]
pub struct Region {
    shared: Arc<Shared>,
    handlers: Vec<JoinHandle<()>>,
    background: Option<JoinHandle<()>>,
    len: usize,
    device: Device,
    /// Given back when the threads are gone.
    _claim: Claim,
}

impl Region {
    /// A region of the usual [`Shape`]: zeros, none of which take memory.
    pub fn new(len_bytes: u64, limit_bytes: u64, device: &Device) -> Result<Region, RegionError> {
        Region::with(Shape::new(len_bytes, limit_bytes), device)
    }

    /// A region.
    ///
    /// # Errors
    ///
    /// Where the shape cannot be, the device cannot be used, or this process may not have a
    /// userfaultfd; which, and what would help.
    pub fn with(shape: Shape, device: &Device) -> Result<Region, RegionError> {
        let (pages, limit_pages) = shape.pages()?;
        let handlers = shape.handlers.unwrap_or_else(threads::handlers_default);
        let handlers = handlers.clamp(1, HANDLERS_MAX);
        let claim = device.claim()?;
        let memory = Memory::new(pages, handlers as u32, shape.in_user_mode)?;
        let memory = Arc::new(memory);
        let pager = Pager::new(pager::Shape {
            pages,
            limit_pages,
            slots: device.slots().min(pages),
            prefetch: shape.prefetch,
        });
        let shared = Shared::new(pager, memory.clone(), pages, device.is_metered());
        let shared = Arc::new(shared.trying("make an event of a region")?);
        let mut region = Region {
            shared,
            handlers: Vec::new(),
            background: None,
            len: pages as usize * PAGE_BYTES,
            device: device.clone(),
            _claim: claim,
        };
        region.start(shape, device, &memory, handlers)?;
        Ok(region)
    }

    fn start(
        &mut self,
        shape: Shape,
        device: &Device,
        memory: &Arc<Memory>,
        handlers: usize,
    ) -> Result<(), RegionError> {
        let cpus = threads::cpus();
        let background = threads::Background::new(
            self.shared.clone(),
            device.background(memory)?,
            device.background(memory)?,
            pool::Pool::new(shape.pool, FLOOR_BYTES),
        );
        let run = move || background.run();
        let background = threads::start("nyx-reclaim", shape.reclaimer_cpu, run)?;
        self.background = Some(background);
        for number in 0..handlers {
            let (shared, desk) = (self.shared.clone(), device.critical(memory)?);
            let cpu = cpus.get(number % cpus.len().max(1)).copied();
            let handle = move || threads::handle(&shared, desk);
            self.handlers
                .push(threads::start("nyx-fault", cpu, handle)?);
        }
        Ok(())
    }

    /// Its bytes, whole pages.
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    /// The faulting mode: as many bytes as [`Region::len_bytes`] tells, which may be read and
    /// written as long as the region lives. Who touches what cannot be had gets SIGBUS.
    ///
    /// A system call may be given them too, unless the region is `in_user_mode`. What goes past the
    /// CPU (`O_DIRECT`, registered buffers) is to be fixed as long as it is under way: the kernel
    /// would go on with memory that is not the region's any more.
    pub fn as_ptr(&self) -> *mut u8 {
        self.shared.memory.view().as_ptr()
    }

    /// Has all pages of a range in memory until the guard is dropped.
    ///
    /// # Errors
    ///
    /// Where the range leaves the region, or one of its pages cannot be had; then none is fixed.
    pub fn fix(&self, range: Range<usize>) -> Result<Fixed<'_>, RegionError> {
        self.fix_for(range, false)
    }

    /// The same, as bytes that nobody else reaches meanwhile.
    pub fn fix_mut(&mut self, range: Range<usize>) -> Result<FixedMut<'_>, RegionError> {
        self.fix_for(range, true).map(FixedMut)
    }

    fn fix_for(&self, range: Range<usize>, is_write: bool) -> Result<Fixed<'_>, RegionError> {
        let (first, pages) = self.pages_of(&range)?;
        let page_error = |(page, why)| RegionError::Page {
            at_bytes: u64::from(page) * PAGE_BYTES as u64,
            why,
        };
        let fixed = self.shared.fix(first, pages, is_write);
        fixed.map_err(page_error)?;
        Ok(Fixed {
            region: self,
            range,
        })
    }

    /// Keeps a range in memory as long as the region lives, or until [`Region::unpin`].
    ///
    /// # Errors
    ///
    /// As [`Region::fix`].
    pub fn pin(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.fix(range).map(std::mem::forget)
    }

    /// Takes a [`Region::pin`] of the same range back.
    ///
    /// # Panics
    ///
    /// Where the range was not pinned.
    pub fn unpin(&self, range: Range<usize>) {
        let pages = self.pages_of(&range);
        let (first, pages) = pages.expect("it was pinned");
        self.shared.unfix(first, pages);
    }

    /// Copies what is at byte `at` and behind it.
    ///
    /// # Errors
    ///
    /// As [`Region::fix`]; then `into` holds what was read before.
    pub fn read_at(&self, at: usize, into: &mut [u8]) -> Result<(), RegionError> {
        let mut done = 0;
        while done < into.len() {
            let piece = self.piece(at + done, into.len() - done);
            let len = piece.len();
            let fixed = self.fix(piece)?;
            fixed.words().read(at + done, &mut into[done..done + len]);
            done += len;
        }
        Ok(())
    }

    /// Copies to byte `at` and behind it. Other threads see it word by word.
    ///
    /// # Errors
    ///
    /// As [`Region::fix`]; then what was written before is there.
    pub fn write_at(&self, at: usize, from: &[u8]) -> Result<(), RegionError> {
        let mut done = 0;
        while done < from.len() {
            let piece = self.piece(at + done, from.len() - done);
            let len = piece.len();
            let fixed = self.fix_for(piece, true)?;
            fixed.words().write(at + done, &from[done..done + len]);
            done += len;
        }
        Ok(())
    }

    /// The part of a range that lies in its first page.
    fn piece(&self, at: usize, len: usize) -> Range<usize> {
        let in_page = PAGE_BYTES - at % PAGE_BYTES;
        at..at.saturating_add(len.min(in_page))
    }

    /// A range will be touched: what of it is on the device is read, as far as memory is free.
    ///
    /// # Errors
    ///
    /// Where the range leaves the region.
    pub fn will_need(&self, range: Range<usize>) -> Result<(), RegionError> {
        let (first, pages) = self.pages_of(&range)?;
        for page in first..first + pages {
            self.shared.tell(|pager, acts| pager.will_need(page, acts));
        }
        Ok(())
    }

    /// What is in a range is not wanted any more: the pages that lie in it as a whole read as zeros
    /// from now on, and take neither memory nor place on the device. How many of them are fixed or
    /// pinned, and stay as they are.
    ///
    /// # Errors
    ///
    /// Where the range leaves the region.
    pub fn dont_need(&self, range: Range<usize>) -> Result<u32, RegionError> {
        self.pages_of(&range)?;
        let first = range.start.div_ceil(PAGE_BYTES) as u32;
        let end = (range.end / PAGE_BYTES) as u32;
        Ok(self.shared.forget(first, end.saturating_sub(first)))
    }

    /// Gives up all pages that meet a range: the program maps something of its own there, which is
    /// not touched by the region. What was in them is gone, as with [`Region::dont_need`]. Who
    /// touches one before the program's mapping is there waits for that.
    ///
    /// # Errors
    ///
    /// Where the range leaves the region.
    pub(crate) fn lose(&self, range: Range<usize>) -> Result<(), RegionError> {
        let (first, pages) = self.pages_of(&range)?;
        self.shared.lose(first, pages);
        Ok(())
    }

    /// Another limit, in bytes; faults wait while more is used.
    ///
    /// # Errors
    ///
    /// Where it is less than 16 pages.
    pub fn set_limit(&self, limit_bytes: u64) -> Result<(), RegionError> {
        let (_, pages) = Shape::new(self.len as u64, limit_bytes).pages()?;
        self.shared.tell(|pager, acts| pager.set_limit(pages, acts));
        self.shared.ring();
        Ok(())
    }

    /// What is counted in [`Self::figures`], without its tables.
    pub(crate) fn counts(&self) -> Counts {
        self.shared.lock().pager.counts()
    }

    /// What happened since it was made.
    pub fn figures(&self) -> Figures {
        let core = self.shared.lock();
        let bytes = |pages: u32| u64::from(pages) * PAGE_BYTES as u64;
        let (mut faults, mut waits) = (Latencies::default(), Latencies::default());
        core.faults.add_to(&mut faults);
        core.waits.add_to(&mut waits);
        Figures {
            counts: core.pager.counts(),
            used_bytes: bytes(core.pager.used_pages()),
            limit_bytes: bytes(core.pager.limit_pages()),
            device_bytes: bytes(core.pager.slots_taken()),
            poisoned_pages: core.poisoned_pages(),
            faults,
            waits,
        }
    }

    /// CPU time of its threads.
    pub fn cpu_time(&self) -> Nanos {
        let threads = self.handlers.iter().chain(&self.background);
        Nanos(threads.map(|thread| threads::cpu_time(thread).0).sum())
    }

    /// Bytes in memory, as the kernel counts them.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn resident_bytes(&self) -> Result<u64, RegionError> {
        let resident = self.shared.memory.resident_bytes();
        resident.trying("ask for a region's memory")
    }

    fn pages_of(&self, range: &Range<usize>) -> Result<(u32, u32), RegionError> {
        if range.start >= range.end || range.end > self.len {
            return Err(RegionError::Range {
                at_bytes: range.start as u64,
                len_bytes: range.end.saturating_sub(range.start) as u64,
                region_bytes: self.len as u64,
            });
        }
        let first = range.start / PAGE_BYTES;
        let pages = range.end.div_ceil(PAGE_BYTES) - first;
        Ok((first as u32, pages as u32))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Each handler answers one doorbell and goes.
        for number in 0..self.handlers.len() {
            self.shared.memory.ring(self.shared.pages + number as u32);
        }
        for handler in self.handlers.drain(..) {
            // One that panicked has ended the process.
            let _ = handler.join();
        }
        self.shared.is_over.store(true, Release);
        self.shared.ring();
        if let Some(background) = self.background.take() {
            let _ = background.join();
        }
    }
}

/// Pages that are in memory as long as this lives.
#[derive(Debug)]
pub struct Fixed<'a> {
    region: &'a Region,
    range: Range<usize>,
}

impl Fixed<'_> {
    /// Where the range begins.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region.as_ptr().wrapping_add(self.range.start)
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// A range has a byte.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    fn words(&self) -> Words<'_> {
        // SAFETY: the view has as many bytes, begins at a page, and lives as long as the region.
        // Slices of it are given out for `&mut Region` only; who uses the raw pointer has to do so
        // by atomics where others may write. Only pages that are fixed are reached.
        unsafe { Words::at(self.region.shared.memory.view(), self.region.len) }
    }
}

impl Drop for Fixed<'_> {
    fn drop(&mut self) {
        let pages = self.region.pages_of(&self.range);
        let (first, pages) = pages.expect("it was fixed");
        self.region.shared.unfix(first, pages);
    }
}

/// Bytes of pages that are in memory as long as this lives.
#[derive(Debug)]
pub struct FixedMut<'a>(Fixed<'a>);

impl Deref for FixedMut<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies in the view; the region is borrowed alone, so that nobody else
        // reaches it but through a raw pointer, whose user has to keep off.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len()) }
    }
}

impl DerefMut for FixedMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), self.0.len()) }
    }
}

const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Region>();
};

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_base::Clock;
    use nyx_media::queue::{BlockOp, Refusals};
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    const BYTES: u64 = PAGE_BYTES as u64;

    /// A region of 64 pages in 16 of memory that reads nothing ahead and has one handler, its
    /// device, and what has that refuse reads; none where it cannot be had here.
    fn made(name: &str) -> Option<(Region, Device, Arc<AtomicBool>)> {
        let refuse = Arc::new(AtomicBool::new(false));
        let asked = refuse.clone();
        let rule = move |op, _| (op == BlockOp::Read && asked.load(SeqCst)).then_some(libc::EIO);
        let device = Device::temporary(&std::env::temp_dir(), 64 * BYTES).expect("a file");
        let device = device.refusing(Refusals::new(rule));
        let mut shape = Shape::new(64 * BYTES, 16 * BYTES);
        shape.prefetch = Prefetch::Off;
        shape.handlers = Some(1);
        match Region::with(shape, &device) {
            Err(reason @ (RegionError::NoUserfaultfd { .. } | RegionError::NotSafe { .. })) => {
                eprintln!("skipped {name}: {reason}");
                None
            }
            region => Some((region.expect("made"), device, refuse)),
        }
    }

    fn fill(region: &Region, round: u8) {
        for page in 1..64usize {
            let bytes = [page as u8 + round; PAGE_BYTES];
            region.write_at(page * PAGE_BYTES, &bytes).expect("room");
        }
    }

    /// Another thread may have heard of a touch of the same page before it failed.
    #[test]
    fn a_page_that_cannot_be_read_fails_as_often_as_it_is_touched() {
        let Some((region, device, refuse)) = made("a_page_that_cannot_be_read") else {
            return;
        };
        (0..2).for_each(|round| fill(&region, round));
        let shared = &region.shared;
        let mut desk = device.critical(&shared.memory).expect("a desk");
        refuse.store(true, SeqCst);
        for _ in 0..3 {
            shared.fault(1, false, shared.clock.now(), &mut desk);
            while let Some(moved) = desk.wait() {
                assert_eq!((moved.0.page, moved.1), (1, false));
                shared.moved(&[moved], Some(&mut desk));
            }
        }
        assert!(region.fix(PAGE_BYTES..2 * PAGE_BYTES).is_err());
        refuse.store(false, SeqCst);
        let mut bytes = [0; PAGE_BYTES];
        region
            .read_at(PAGE_BYTES, &mut bytes)
            .expect("it can be read again");
        assert_eq!(bytes, [2; PAGE_BYTES]);
    }

    #[test]
    fn where_the_kernel_has_no_memory_pages_come_late_and_are_right() {
        let Some((region, ..)) = made("where_the_kernel_has_no_memory") else {
            return;
        };
        let shortages = &region.shared.memory.shortages;
        for round in 0..8 {
            shortages.store(30, SeqCst);
            fill(&region, round);
            shortages.store(30, SeqCst);
            for page in 1..64usize {
                let mut bytes = [0; PAGE_BYTES];
                // By fixing it, and by a touch.
                region
                    .read_at(page * PAGE_BYTES, &mut bytes)
                    .expect("it comes");
                assert_eq!(bytes, [page as u8 + round; PAGE_BYTES]);
                let other = 64 - page;
                // SAFETY: a byte of the region, to which nobody writes now.
                let byte = unsafe { region.as_ptr().add(other * PAGE_BYTES).read_volatile() };
                assert_eq!(byte, other as u8 + round);
            }
            assert_eq!(shortages.load(SeqCst), 0, "it came to that");
        }
    }

    #[test]
    fn a_page_that_waits_for_memory_keeps_no_handler_from_others() {
        let Some((region, ..)) = made("a_page_that_waits_for_memory") else {
            return;
        };
        fill(&region, 1);
        // Room for those that need no more than a place.
        region
            .dont_need(40 * PAGE_BYTES..region.len_bytes())
            .expect("within");
        let touch = |page: usize| {
            // SAFETY: a byte of the region, to which nobody writes now.
            unsafe { region.as_ptr().add(page * PAGE_BYTES).read_volatile() }
        };
        let faults = || region.figures().counts.major_faults;
        let (before, shortages) = (faults(), &region.shared.memory.shortages);
        shortages.store(u32::MAX, SeqCst);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| touch(1));
            while faults() == before {
                std::thread::yield_now();
            }
            // It was refused, and is again.
            while shortages.load(SeqCst) > u32::MAX - 3 {
                std::thread::yield_now();
            }
            (40..48).for_each(|page| assert_eq!(touch(page), 0));
            assert!(!waiting.is_finished() && shortages.load(SeqCst) > 0);
            shortages.store(0, SeqCst);
            assert_eq!(waiting.join().expect("it comes"), 2);
        });
    }

    #[test]
    fn a_page_that_is_the_programs_stays_its_own_where_its_neighbour_cannot_be_fixed() {
        let Some((region, _, refuse)) = made("a_page_that_is_the_programs") else {
            return;
        };
        // The second page leaves memory.
        (0..2).for_each(|round| fill(&region, round));
        region.lose(0..PAGE_BYTES).expect("within the region");
        let at = region.as_ptr();
        // SAFETY: the page is the program's from here on, and goes with the region.
        unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            let own = libc::mmap(at.cast(), PAGE_BYTES, access, how, -1, 0);
            assert_eq!(own, at.cast());
            at.write_bytes(0x55, PAGE_BYTES);
        }
        refuse.store(true, SeqCst);
        assert!(region.fix(0..2 * PAGE_BYTES).is_err());
        refuse.store(false, SeqCst);
        for round in 2..12 {
            fill(&region, round);
            // SAFETY: as above.
            assert_eq!(unsafe { at.read_volatile() }, 0x55, "round {round}");
        }
    }
}
