//! Lends: more memory than a program is given, on a fast device.
//!
//! * [`kernel`]: for any program, by the kernel's own swap, with a reclaimer beside it (Ultraswap
//!   section 3.2, without a change to the kernel).
//! * [`region`]: for programs in Rust that ask for it, a memory range that is larger than its DRAM.
//! * [`arena`]: for programs that are not changed, the same range behind `malloc` and `mmap`, by a
//!   library that is loaded before all others (crate `nyx-preload`).
//!
//! What this room never does: decide how much a program gets or how much is kept free (`policy`
//! does); leave something behind that the next run does not take down.

pub mod arena;
pub mod kernel;
pub mod region;

mod error;

pub use error::SwapError;

/// The programs in the documentation are built and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/swap.md")]
struct Documentation;
