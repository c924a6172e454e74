//! Bytes: one byte-addressable device.
//!
//! The seam of the house is [`Media`]: read, write (cached or non-temporal), persist. Everything
//! below it is a mapping or a device model; everything above reaches it through a metered lane
//! (`nyx-gate`) and through nothing else.
//!
//! What this room never does: know of tenants, keys, items, budgets or protocols.
//!
//! * [`mapped`]: anonymous, file and DAX mappings; [`prim`]: NT stores, clwb, copies.
//! * [`clock`]: the machine's clock.
//! * [`model`]: device models as parameters and formulas; [`Emulated`]: one over a real medium.
//! * [`profile`]: MaxIOPS by operation and size, its file and its rate card.
//! * [`evaluate`]: latency and bandwidth of a device by size, order and threads, for people.
//! * [`pmem`]: words of persistent memory for indexes that live on it, and what a crash may leave.
//! * [`queue`]: requests to devices of blocks.
//! * [`dram`]: reserved memory for indexes and keys; not the device, so never metered. [`Image`]: a
//!   file whose parts are such memory. [`LogFile`]: one that is written from its begin to its end
//!   and synced.
//! * [`observed`]: whether a simulated processor is told of what is read of DRAM.

pub mod clock;
pub mod dram;
mod emulate;
mod error;
pub mod evaluate;
mod front;
mod header;
mod image;
pub mod log;
pub mod mapped;
mod mapping;
pub mod model;
pub mod observed;
mod place;
pub mod pmem;
pub mod prim;
pub mod profile;
pub mod queue;

pub use clock::TscClock;
pub use dram::{Array, Region};
pub use emulate::Emulated;
pub use error::MediaError;
pub use front::Front;
pub use image::{Image, Left};
pub use log::{LogBytes, LogFile, LogWriter};
pub use mapped::{Durability, Mapped, Origin};
pub use place::is_in_memory;
pub use pmem::Pmem;

use serde::{Deserialize, Serialize};
use std::fmt;

/// What an access does to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A load of any kind.
    Read,
    /// A store of any kind.
    Write,
}

/// How a write reaches the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Via {
    /// Ordinary stores through the CPU cache.
    Cached,
    /// Non-temporal stores that bypass the CPU cache (NyxCache section 3.5: up to 3x on Optane).
    NonTemporal,
}

/// What kind of evidence a number got from this medium is. The kinds never share a table column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// This machine's DRAM, file or device.
    Real,
    /// Real time, modelled device.
    Emulated,
    /// Virtual time.
    Simulated,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Evidence::Real => "real",
            Evidence::Emulated => "emulated",
            Evidence::Simulated => "simulated",
        })
    }
}

/// One byte-addressable device.
///
/// *Thread safety*: shared by all workers. A read that races with a write of the same bytes returns
/// some mixture of old and new bytes and is never undefined behaviour (copies are made by
/// assembly, not by Rust references); callers exclude such races by eras where the bytes matter.
///
/// Panics where a range leaves the medium: that is a bug of the caller, never of a client.
pub trait Media: Send + Sync {
    /// Its size in bytes.
    fn len(&self) -> u64;

    /// Whether it has no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `into.len()` bytes from address `at`.
    fn read(&self, front: &mut Front, at: u64, into: &mut [u8]);

    /// Copies `from` to address `at`.
    fn write(&self, front: &mut Front, at: u64, from: &[u8], via: Via);

    /// Makes earlier writes of this thread to the range durable, as far as the medium can.
    fn persist(&self, front: &mut Front, at: u64, len: u64);

    /// Waits until every load of this thread has arrived. Loads of a modelled device overlap, so
    /// that [`Self::read`] returns when the thread may go on; a driver calls this before it hands
    /// bytes out (once per batch). Real media have nothing to wait for.
    fn settle(&self, front: &mut Front) {
        let _ = front;
    }

    /// Asks for the bytes to be brought near; costs and promises nothing.
    fn prefetch(&self, at: u64, len: usize);

    /// Asks for the place of a [`Via::Cached`] or short write that is to come; costs and promises
    /// nothing. Media whose writes of `len` bytes pass the cache have nothing to do.
    fn prefetch_write(&self, at: u64, len: usize) {
        let _ = (at, len);
    }

    /// What kind of evidence numbers from here are.
    fn evidence(&self) -> Evidence;

    /// Tells what it has done since it was made and how it stands, by names that have the unit;
    /// most media have nothing to tell.
    fn tell(&self, figure: &mut dyn FnMut(&'static str, u64)) {
        let _ = figure;
    }
}

/// A shared medium is a medium, so that a driver can keep a handle of its own.
impl<M: Media + ?Sized> Media for std::sync::Arc<M> {
    #[inline]
    fn len(&self) -> u64 {
        (**self).len()
    }

    #[inline]
    fn read(&self, front: &mut Front, at: u64, into: &mut [u8]) {
        (**self).read(front, at, into);
    }

    #[inline]
    fn write(&self, front: &mut Front, at: u64, from: &[u8], via: Via) {
        (**self).write(front, at, from, via);
    }

    #[inline]
    fn persist(&self, front: &mut Front, at: u64, len: u64) {
        (**self).persist(front, at, len);
    }

    #[inline]
    fn settle(&self, front: &mut Front) {
        (**self).settle(front);
    }

    #[inline]
    fn prefetch(&self, at: u64, len: usize) {
        (**self).prefetch(at, len);
    }

    #[inline]
    fn prefetch_write(&self, at: u64, len: usize) {
        (**self).prefetch_write(at, len);
    }

    fn evidence(&self) -> Evidence {
        (**self).evidence()
    }

    fn tell(&self, figure: &mut dyn FnMut(&'static str, u64)) {
        (**self).tell(figure);
    }
}
