//! What can be evaluated: media, modelled devices over media, files on a disk.
//!
//! What it never does: choose the cheaper way. [`crate::Media::write`] stores past the cache where
//! the medium gains by it; here every write does, as in the published measurements.

use crate::{Emulated, Evidence, Front, Mapped, Media};
use std::io;

/// A device under test.
///
/// *Thread safety*: as [`Media`]; threads share it, and a read that races with a write of the same
/// bytes gets a mixture. Accesses begin at multiples of their size, from buffers that begin at a
/// page. Media do not fail; a disk may.
pub trait Target: Sync {
    /// Its size in bytes.
    fn len_bytes(&self) -> u64;

    /// What kind of evidence numbers from here are.
    fn evidence(&self) -> Evidence;

    /// Copies `into.len()` bytes from `at`.
    fn read(&self, front: &mut Front, at: u64, into: &mut [u8]) -> io::Result<()>;

    /// Stores `from` at `at` past the cache, with a fence behind each `fence_bytes` and at the end.
    fn write(&self, front: &mut Front, at: u64, from: &[u8], fence_bytes: usize) -> io::Result<()>;

    /// Whether an access gives its processor up while it waits.
    fn sleeps(&self) -> bool {
        false
    }

    /// Waits until the bytes of all reads of this thread are there.
    fn settle(&self, front: &mut Front) {
        let _ = front;
    }
}

impl Target for Mapped {
    fn len_bytes(&self) -> u64 {
        Media::len(self)
    }

    fn evidence(&self) -> Evidence {
        Media::evidence(self)
    }

    #[inline]
    fn read(&self, front: &mut Front, at: u64, into: &mut [u8]) -> io::Result<()> {
        Media::read(self, front, at, into);
        Ok(())
    }

    #[inline]
    fn write(&self, _: &mut Front, at: u64, from: &[u8], fence_bytes: usize) -> io::Result<()> {
        self.stream(at, from, fence_bytes);
        Ok(())
    }
}

impl<M: Target + Media> Target for Emulated<M> {
    fn len_bytes(&self) -> u64 {
        Media::len(self)
    }

    fn evidence(&self) -> Evidence {
        Media::evidence(self)
    }

    fn read(&self, front: &mut Front, at: u64, into: &mut [u8]) -> io::Result<()> {
        Media::read(self, front, at, into);
        Ok(())
    }

    /// The model knows no fences: it charges the stores, and the medium beneath has the fences.
    fn write(&self, front: &mut Front, at: u64, from: &[u8], fence_bytes: usize) -> io::Result<()> {
        self.timed(
            front,
            |model, _, now| model.write_nt(now, at, from.len() as u64),
            |medium, front| Target::write(medium, front, at, from, fence_bytes),
        )
    }

    fn settle(&self, front: &mut Front) {
        Media::settle(self, front);
    }
}

impl<T: Target + Send + ?Sized> Target for std::sync::Arc<T> {
    fn len_bytes(&self) -> u64 {
        (**self).len_bytes()
    }

    fn evidence(&self) -> Evidence {
        (**self).evidence()
    }

    fn sleeps(&self) -> bool {
        (**self).sleeps()
    }

    #[inline]
    fn read(&self, front: &mut Front, at: u64, into: &mut [u8]) -> io::Result<()> {
        (**self).read(front, at, into)
    }

    #[inline]
    fn write(&self, front: &mut Front, at: u64, from: &[u8], fence_bytes: usize) -> io::Result<()> {
        (**self).write(front, at, from, fence_bytes)
    }

    fn settle(&self, front: &mut Front) {
        (**self).settle(front);
    }
}
