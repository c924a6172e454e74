//! The subcommands, one module each: `Args` is its part of the command line, `run` does it.
//!
//! What they never do: print a failure or exit. They return it, and `cli` reports it.

pub mod bench;
pub mod block;
pub mod check_config;
pub mod demo;
pub mod explain;
pub mod inspect;
pub mod knobs;
pub mod memcached;
pub mod model;
pub mod null_server;
pub mod profile;
pub mod replay;
pub mod serve;
pub mod sim;
pub mod swap;
pub mod top;

use crate::{Exit, Failure};
use std::io::{ErrorKind, Write};

/// Writes to standard output. A reader that has seen enough (`nyx knobs | head`) is no error.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::new(
            Exit::Io,
            format!("cannot write to standard output: {error}"),
        )),
        _ => Ok(()),
    }
}
