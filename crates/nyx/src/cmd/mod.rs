//! The subcommands, one module each: `Args` is its part of the command line, `run` does it.
//!
//! What they never do: print a failure or exit. They return it, and `cli` reports it.

pub mod bench;
pub mod demo;
pub mod profile;
pub mod replay;
pub mod serve;
