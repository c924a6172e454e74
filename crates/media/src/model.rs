//! Device models: one set of parameters ([`Params`], a TOML file), two models that read it.
//!
//! * [`o1`]: constant work per line, no queues, shared by threads; laid over a real medium in real
//!   time by [`crate::Emulated`] and driven by virtual threads for exact profiles.
//! * [`event`]: the event simulation in virtual time, the reference; tails are claimed from it.
//! * [`block`]: a device of blocks, with parameters of its own.
//!
//! What the models never do: move bytes, read a clock or draw a random number without a seed. They
//! know no garbage collection, no wear and no caches; what the processor's cache absorbs in
//! reality they charge.

pub mod block;
pub mod event;
pub mod o1;
mod params;

use nyx_base::DevicePs;

pub use params::{Geometry, Loads, Params, Stores, Waste, Window, Writes};

/// Ticks of the models' clocks in a nanosecond: the shortest modelled time is still dozens of
/// ticks, and 64 bits last for 36 years.
pub const TICKS_PER_NS: u64 = 16;

pub(crate) fn ticks(ns: f64) -> u64 {
    (ns * TICKS_PER_NS as f64).round() as u64
}

/// The device time of `busy` ticks summed over all partitions. In 128 bits on the way, because the
/// sum in picoseconds would fill 64 within days.
pub(crate) fn device_time(busy: u64, partitions: usize) -> DevicePs {
    let ps = u128::from(busy) * 1000 / (partitions as u128 * u128::from(TICKS_PER_NS));
    DevicePs(ps as u64)
}

/// A 64-bit mixer (the finaliser of SplitMix64): spreads line numbers over partitions.
pub(crate) fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}
