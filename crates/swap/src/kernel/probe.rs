//! How long a touch of a page on swap takes, for a program that cannot tell.
//!
//! A process in the program's group has some pages of its own, sends one to swap, waits until it is
//! there, touches it and looks at the clock: what it waits is what the program waits for a lone
//! page, with the limit, the device and the reclaimer that the program has. It is a sample:
//! readahead does not help it, and it does not see what many threads do to each other.
//!
//! What it never does: read the program's memory; keep more than a few pages.
//!
//! *Thread safety*: a process of its own, one thread.

use nyx_base::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::thread;
use std::time::{Duration, Instant};

const PAGE_BYTES: usize = 4096;
/// Pages that are touched in turn.
const PAGES: usize = 16;
/// They are so far apart that readahead for one does not bring another.
const STRIDE_BYTES: usize = 64 * PAGE_BYTES;
/// A page that is not out after so many looks is given up for this time.
const LOOKS_MOST: u32 = 100;
const LOOK: Duration = Duration::from_micros(200);

/// What came out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ProbeReport {
    /// Touches that were measured.
    pub samples: u64,
    /// Half of them took no longer.
    pub p50_ns: u64,
    /// Of a hundred, 99 took no longer. Zero where there are fewer than a hundred.
    pub p99_ns: u64,
}

impl ProbeReport {
    /// Of touches that took so long each.
    pub fn of(samples: &mut [u64]) -> ProbeReport {
        samples.sort_unstable();
        let at = |part: usize| samples.get(samples.len() * part / 100).copied();
        ProbeReport {
            samples: samples.len() as u64,
            p50_ns: at(50).unwrap_or(0),
            p99_ns: at(99).filter(|_| samples.len() >= 100).unwrap_or(0),
        }
    }
}

/// Touches a page every `every`, and writes a line with how long that took, in nanoseconds, until
/// nobody reads any more. For a process of its own.
pub fn probe(every: Duration, out: &mut (impl Write + AsFd)) -> io::Result<()> {
    let pages = Pages::new()?;
    for at in (0..PAGES).cycle() {
        thread::sleep(every);
        // Where no page goes out nothing is written, which would tell.
        if !is_read(out)? {
            break;
        }
        if pages.push_out(at)? {
            let took = pages.touch(at);
            writeln!(out, "{}", took.0)?;
            out.flush()?;
        }
    }
    Ok(())
}

/// Whether the other end of a pipe is there.
fn is_read(out: &impl AsFd) -> io::Result<bool> {
    let mut fds = [PollFd::new(out, PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default()))?;
    Ok(!fds[0].revents().contains(PollFlags::ERR))
}

/// Pages that are far apart.
struct Pages {
    memory: NonNull<u8>,
}

const LEN: usize = PAGES * STRIDE_BYTES;

impl Pages {
    fn new() -> io::Result<Pages> {
        // SAFETY: a new mapping of no file, at a place that the kernel chooses.
        let memory = unsafe {
            let how = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(ptr::null_mut(), LEN, how, MapFlags::PRIVATE)?
        };
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let pages = Pages { memory };
        // SAFETY: the mapping is this one's and has that length.
        unsafe { madvise(memory.as_ptr().cast(), LEN, Advice::LinuxNoHugepage)? };
        // Not all the same, or they would take no room on swap and no time to read.
        let mut rng = nyx_base::Rng::with_seed(1);
        for at in 0..PAGES {
            for offset in (0..PAGE_BYTES).step_by(8) {
                // SAFETY: within the page, aligned, and nobody else has the mapping.
                unsafe { pages.at(at).add(offset).cast::<u64>().write(rng.u64(..)) };
            }
        }
        Ok(pages)
    }

    fn at(&self, page: usize) -> *mut u8 {
        debug_assert!(page < PAGES);
        // SAFETY: page < PAGES, so this stays within the mapping.
        unsafe { self.memory.as_ptr().add(page * STRIDE_BYTES) }
    }

    /// Sends a page to swap; false where it does not go.
    fn push_out(&self, page: usize) -> io::Result<bool> {
        for _ in 0..LOOKS_MOST {
            // SAFETY: a page of this mapping; what is in it stays the same.
            let sent = unsafe {
                let at = self.at(page).cast();
                madvise(at, PAGE_BYTES, Advice::LinuxPageOut)
            };
            // Some kernels say that they could not, or do not know how.
            sent?;
            if !self.is_here(page)? {
                return Ok(true);
            }
            thread::sleep(LOOK);
        }
        Ok(false)
    }

    /// Whether a page is in memory, mapped or on its way out.
    fn is_here(&self, page: usize) -> io::Result<bool> {
        let mut resident = 0u8;
        // SAFETY: one page of this mapping, and one byte to write to.
        let code = unsafe { libc::mincore(self.at(page).cast(), PAGE_BYTES, &raw mut resident) };
        match code {
            0 => Ok(resident & 1 == 1),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn touch(&self, page: usize) -> Nanos {
        let begin = Instant::now();
        // SAFETY: within the mapping, which nobody else writes to.
        unsafe { self.at(page).read_volatile() };
        Nanos(begin.elapsed().as_nanos() as u64)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and nothing points into it any more.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), LEN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_is_told_of_a_hundred_samples_or_more_only() {
        let few = ProbeReport::of(&mut [5, 3, 4]);
        assert_eq!((few.samples, few.p50_ns, few.p99_ns), (3, 4, 0));
        let mut many: Vec<u64> = (1..=200).rev().collect();
        let many = ProbeReport::of(&mut many);
        assert_eq!((many.samples, many.p50_ns, many.p99_ns), (200, 101, 199));
        assert_eq!(ProbeReport::of(&mut []), ProbeReport::default());
    }

    #[test]
    fn pages_are_pages_and_can_be_touched() {
        let pages = Pages::new().unwrap();
        assert!((0..PAGES).all(|page| pages.is_here(page).unwrap()));
        assert!(pages.touch(PAGES - 1).0 > 0);
    }
}
