//! What the arena's threads have to say, written by a thread of its own where the program's errors
//! go: whoever writes there may have to wait for a thread of the program, and that one for a fault.
//!
//! What it never does: have who says something wait; keep more than a few lines.
//!
//! *Thread safety*: all of it.

use super::handoff::Queue;
use crate::region::{RegionError, threads};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, OnceLock};

/// Lines that wait at most; what is said beyond is lost.
const LINES: usize = 64;

static LINES_SAID: OnceLock<Arc<Queue<String>>> = OnceLock::new();

/// From now on what is said is written.
pub(super) fn start() -> Result<(), RegionError> {
    let lines = LINES_SAID.get_or_init(Queue::new).clone();
    threads::start("nyx-says", None, move || {
        loop {
            let line = lines.take();
            // The first thread's descriptors are the program's. Where they may not be opened again,
            // as those of somebody else, nothing is said.
            let mut options = OpenOptions::new();
            options.append(true).custom_flags(libc::O_NOCTTY);
            if let Ok(mut errors) = options.open("/proc/self/fd/2") {
                let _ = errors.write_all(line.as_bytes());
            }
        }
    })?;
    Ok(())
}

/// Says a line.
pub(super) fn say(line: &str) {
    if let Some(lines) = LINES_SAID.get() {
        lines.put_within(format!("nyx: {line}\n"), LINES);
    }
}
