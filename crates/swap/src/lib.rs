//! Lends: more memory than a program is given, on a fast device.
//!
//! * [`kernel`]: for any program, by the kernel's own swap, with a reclaimer beside it (Ultraswap
//!   section 3.2, without a change to the kernel).
//!
//! What this room never does: decide how much a program gets or how much is kept free (`policy`
//! does); leave something behind that the next run does not take down.

pub mod kernel;

mod error;

pub use error::SwapError;
