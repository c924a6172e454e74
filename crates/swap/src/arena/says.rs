//! What the arena's threads have to say, written by a thread of its own where the program's errors
//! go: whoever writes there may have to wait for a thread of the program, and that one for a fault.
//!
//! What it never does: have who says something wait for long; keep more than a few lines.
//!
//! *Thread safety*: all of it.

use super::errors;
use super::handoff::Queue;
use crate::region::{RegionError, threads};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Lines that wait at most; what is said beyond is lost.
const LINES: usize = 64;
/// Who says something waits so long for it to be written: the process may end right afterwards.
/// Where nobody reads it, he goes on.
const PATIENCE: Duration = Duration::from_millis(100);

struct Line {
    text: String,
    written: Arc<Queue<()>>,
}

static LINES_SAID: OnceLock<Arc<Queue<Line>>> = OnceLock::new();

/// From now on what is said is written.
pub(super) fn start() -> Result<(), RegionError> {
    let lines = LINES_SAID.get_or_init(Queue::new).clone();
    threads::start("nyx-says", None, move || {
        loop {
            let line = lines.take();
            write(&line.text);
            line.written.put(());
        }
    })?;
    Ok(())
}

fn write(text: &str) {
    // The first thread's descriptors are the program's. Where they may not be opened again, as
    // those of somebody else, nothing is said.
    let mut options = OpenOptions::new();
    options.append(true).custom_flags(libc::O_NOCTTY);
    if let Ok(mut errors) = options.open("/proc/self/fd/2")
        && errors::are_for(errors.as_raw_fd(), errors::of_program)
    {
        let _ = errors.write_all(text.as_bytes());
    }
}

/// Says a line.
pub(super) fn say(line: &str) {
    let Some(lines) = LINES_SAID.get() else {
        return;
    };
    let written = Queue::new();
    let line = Line {
        text: format!("nyx: {line}\n"),
        written: written.clone(),
    };
    if lines.put_within(line, LINES) {
        let _ = written.take_within(PATIENCE);
    }
}
