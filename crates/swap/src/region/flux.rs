//! Pages of which the acts of a reclaim are being carried out without the lock.
//!
//! The pager knows already that they are unmapped or freed; the kernel is only being told. Whoever
//! has the lock and an act for one of them waits for that first, some microseconds, so that the
//! acts of each page happen in their order. Acts of different pages may change places.
//!
//! What it never does: sleep. Who brings pages out of flux needs no lock for it.
//!
//! *Thread safety*: pages come into flux under the lock, by one thread, which brings them out.
//! *Invariant*: memory that is being given back counts until it has been.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed};
use std::sync::atomic::{Ordering::Release, fence};

/// After so many looks the CPU is left to others: they may have what is waited for.
const LOOKS: u32 = 1_000;

/// See the module.
#[derive(Debug)]
pub(super) struct Flux {
    /// A bit for each page.
    pages: Box<[AtomicU64]>,
    /// Pages whose memory is being given back.
    frees: AtomicU32,
}

impl Flux {
    pub(super) fn new(pages: u32) -> Flux {
        let words = (pages as usize).div_ceil(64);
        Flux {
            pages: (0..words).map(|_| AtomicU64::new(0)).collect(),
            frees: AtomicU32::new(0),
        }
    }

    /// The page is in flux; its memory is given back, or is not.
    pub(super) fn begin(&self, page: u32, is_free: bool) {
        self.pages[page as usize / 64].fetch_or(1 << (page % 64), Relaxed);
        if is_free {
            self.frees.fetch_add(1, Relaxed);
        }
    }

    /// It is not any more.
    pub(super) fn end(&self, page: u32, is_free: bool) {
        if is_free {
            self.frees.fetch_sub(1, Release);
        }
        self.pages[page as usize / 64].fetch_and(!(1 << (page % 64)), Release);
    }

    /// Waits until a page is not in flux.
    pub(super) fn wait(&self, page: u32) {
        let word = &self.pages[page as usize / 64];
        until(|| word.load(Relaxed) & (1 << (page % 64)) == 0);
    }

    /// Waits until none is; nobody brings one into it meanwhile.
    pub(super) fn wait_for_all(&self) {
        for word in &self.pages {
            until(|| word.load(Relaxed) == 0);
        }
    }

    /// Waits until there is room: `used` pages count, and may be no more than `limit` with those
    /// that are being given back.
    pub(super) fn wait_for_room(&self, used: u32, limit: u32) {
        until(|| match self.frees.load(Relaxed) {
            0 => true,
            frees => used + frees <= limit,
        });
    }
}

fn until(mut is_so: impl FnMut() -> bool) {
    let mut looks = 0;
    while !is_so() {
        looks += 1;
        match looks < LOOKS {
            true => std::hint::spin_loop(),
            false => std::thread::yield_now(),
        }
    }
    fence(Acquire);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn who_has_an_act_for_a_page_in_flux_waits_until_it_is_out_of_it() {
        let (flux, is_out) = (Flux::new(130), AtomicBool::new(false));
        flux.begin(129, true);
        flux.wait(128);
        flux.wait_for_room(9, 10);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                is_out.store(true, Relaxed);
                flux.end(129, true);
            });
            flux.wait_for_room(10, 10);
            flux.wait(129);
            assert!(is_out.load(Relaxed));
        });
    }
}
