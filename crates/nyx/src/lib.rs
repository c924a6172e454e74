//! The nyx binary as a library: command line, configuration, and one module per subcommand.
//!
//! What it never does: serve, meter or store anything itself. It is glue over the rooms below; it
//! is a library only so that tests can call what the binary calls.

pub mod cli;
pub mod cmd;
pub mod config;
pub mod demo;
pub mod evaluation;
pub mod failure;
pub mod hfio;
mod load;
pub mod log;
pub mod plot;
pub mod serving;
pub mod sim;
mod top;

pub use failure::{Exit, Failure};
