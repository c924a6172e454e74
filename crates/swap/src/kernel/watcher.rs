//! Who takes down what a launcher made where that is killed: a process outside of the group, at the
//! end of a pipe that only the launcher has ([`super::watch`]).
//!
//! It lets the kernel decide what becomes of a program that waits for memory, since nobody would
//! wake it any more.
//!
//! What it never does: get signals of the launcher's terminal; write anything.
//!
//! *Thread safety*: one owner.

use super::record::Process;
use crate::error::{SwapError, Trying};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// See the module; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Watcher(Option<Child>);

impl Watcher {
    pub(super) fn start(mut command: Command) -> Result<Watcher, SwapError> {
        command.stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.process_group(0).spawn();
        let child = child.trying("start", Path::new(command.get_program()))?;
        Ok(Watcher(Some(child)))
    }

    pub(super) fn process(&self) -> Option<Process> {
        self.0.as_ref().and_then(|child| Process::of(child.id()))
    }

    /// Lets it take down what is left, once that can be.
    pub(super) fn leave(mut self) {
        // The launcher's end of the pipe goes with it.
        self.0 = None;
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // One that has ended needs neither.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
