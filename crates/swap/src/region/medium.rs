//! A region as a medium of Nyx's: bytes of which so many may be in DRAM, behind the seam [`Media`].
//! What is kept there need not know of it.
//!
//! An access fixes the pages that it needs, copies, and lets go of them. One whose pages are in
//! memory costs the region's lock twice and the copy; one whose pages are not waits for the device,
//! and with it the thread that makes it: a worker that does serves nobody meanwhile. Fixing tells
//! the pager of each use, so that what was used longest ago leaves first.
//!
//! **Errors.** [`Media`] has none, and bytes that cannot be had must not read as others. So nothing
//! is touched that is not fixed, and nobody gets SIGBUS. An access that fails is logged and tried
//! again for [`PATIENCE`]; then it panics, with the medium, the byte and the reason: a server ends,
//! having said so, instead of serving what is not there. A wait for memory that other accesses have
//! fixed is not such a failure.
//!
//! What it never does: hand its memory to a system call, which is why faults in user mode are
//! enough, and why it takes no privilege; survive the process; read ahead where it is asked to
//! ([`Media::prefetch`]): the pager does where accesses are in order.
//!
//! *Thread safety*: shared by all workers. Copies are made by [`Prim`], so a read that races with a
//! write of the same bytes gets some mixture. *Invariant*: a page is fixed while it is copied, and
//! no longer.

use super::device::Device;
use super::error::RegionError;
use super::uffd::PAGE_BYTES;
use super::{Figures, Fixed, Region, Shape};
use nyx_media::prim::Prim;
use nyx_media::{Evidence, Front, Media, Via};
use nyx_policy::paging::pager::Why;
use std::ops::Range;
use std::time::{Duration, Instant};

/// So long what fails is tried again. The kernel tries again itself before it says that it failed;
/// a path to a device that is switched over may take longer than that.
const PATIENCE: Duration = Duration::from_secs(1);
/// And at this distance.
const AGAIN: Duration = Duration::from_millis(10);
/// Pages that an access fixes at once, at most: they are read together.
const TOGETHER_MAX: u64 = 16;
/// And no more than one part of memory in so many, since others fix theirs meanwhile.
const TOGETHER_ONE_IN: u64 = 64;

/// See the module.
#[derive(Debug)]
pub struct Paged {
    name: String,
    region: Region,
    len: u64,
    /// Bytes, whole pages, that an access fixes at once.
    together: usize,
    prim: Prim,
}

impl Paged {
    /// A medium of so many bytes, zeros at first, of which so many may be in memory. The name is
    /// for errors.
    ///
    /// # Errors
    ///
    /// As [`Region::with`]; a userfaultfd for faults in user mode is enough.
    pub fn new(
        name: impl Into<String>,
        len_bytes: u64,
        memory_bytes: u64,
        device: &Device,
    ) -> Result<Paged, RegionError> {
        let shape = Shape {
            in_user_mode: true,
            // What is fixed is not touched before it is there, so that a fault is a rarity.
            handlers: Some(1),
            ..Shape::new(len_bytes, memory_bytes)
        };
        let region = Region::with(shape, device)?;
        let pages = memory_bytes / PAGE_BYTES as u64 / TOGETHER_ONE_IN;
        Ok(Paged {
            name: name.into(),
            region,
            len: len_bytes,
            together: pages.clamp(1, TOGETHER_MAX) as usize * PAGE_BYTES,
            prim: Prim::detect(),
        })
    }

    /// What its region did, and how it stands.
    pub fn figures(&self) -> Figures {
        self.region.figures()
    }

    /// Copies piece by piece: `copy` is given where a piece is, and which of the bytes it has.
    fn access(
        &self,
        at: u64,
        len: usize,
        is_write: bool,
        mut copy: impl FnMut(*mut u8, Range<usize>),
    ) {
        let end = at.checked_add(len as u64);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "{len} bytes at {at} leave a medium of {} bytes",
            self.len
        );
        let at = at as usize;
        let mut done = 0;
        while done < len {
            let begin = at + done;
            let bytes = (self.together - begin % self.together).min(len - done);
            let fixed = self.insist(begin..begin + bytes, is_write);
            copy(fixed.as_ptr(), done..done + bytes);
            done += bytes;
        }
    }

    /// Has a range in memory.
    ///
    /// Panics where that fails for [`PATIENCE`]; see the module.
    fn insist(&self, range: Range<usize>, is_write: bool) -> Fixed<'_> {
        let mut failing: Option<Instant> = None;
        loop {
            let error = match self.region.fix_for(range.clone(), is_write) {
                Ok(fixed) => return fixed,
                Err(error) => error,
            };
            if let RegionError::Page {
                why: Why::Pinned, ..
            } = error
            {
                // Others let go as soon as they have copied.
                std::thread::yield_now();
                continue;
            }
            let (name, bytes) = (&self.name, range.len());
            let what = if is_write { "write" } else { "read" };
            let since = failing.get_or_insert_with(|| {
                tracing::warn!(medium = name, "cannot {what} {bytes} bytes yet: {error}");
                Instant::now()
            });
            let at = range.start;
            assert!(
                since.elapsed() < PATIENCE,
                "medium {name:?} cannot {what} {bytes} bytes at {at}, tried for {PATIENCE:?}: \
                 {error}"
            );
            std::thread::sleep(AGAIN);
        }
    }
}

impl Media for Paged {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, _: &mut Front, at: u64, into: &mut [u8]) {
        self.access(at, into.len(), false, |from, bytes| {
            let into = &mut into[bytes];
            // SAFETY: the piece is fixed as long as it is copied, and lies in the region's view,
            // which is no Rust object; `into` is borrowed mutably, so nobody else touches it.
            unsafe { self.prim.copy(into.as_mut_ptr(), from, into.len()) }
        });
    }

    fn write(&self, _: &mut Front, at: u64, from: &[u8], _: Via) {
        self.access(at, from.len(), true, |into, bytes| {
            let from = &from[bytes];
            // SAFETY: as for `read`, in the other direction; the pages may be written to.
            unsafe { self.prim.copy(into, from.as_ptr(), from.len()) }
        });
    }

    fn persist(&self, _: &mut Front, _: u64, _: u64) {}

    fn prefetch(&self, _: u64, _: usize) {}

    fn evidence(&self) -> Evidence {
        Evidence::Real
    }

    fn tell(&self, figure: &mut dyn FnMut(&'static str, u64)) {
        let figures = self.figures();
        let counts = figures.counts;
        let quantile = |part| figures.waits.quantile_ns(part).map_or(0, |ns| ns as u64);
        for (name, value) in [
            ("memory_limit_bytes", figures.limit_bytes),
            ("memory_bytes", figures.used_bytes),
            ("paged_out_bytes", figures.device_bytes),
            ("major_faults", counts.major_faults),
            ("minor_faults", counts.minor_faults),
            ("read_ahead_pages", counts.ahead),
            ("written_pages", counts.writes),
            ("inline_reclaims", counts.inline_reclaims),
            ("refused_pages", counts.refused),
            ("failed_faults", counts.failed),
            ("fault_waits", figures.waits.count()),
            ("fault_wait_ns_p50", quantile(0.5)),
            ("fault_wait_ns_p99", quantile(0.99)),
            ("pager_cpu_ns", self.region.cpu_time().0),
        ] {
            figure(name, value);
        }
    }
}

#[cfg(test)]
mod tests;
