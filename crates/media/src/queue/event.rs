//! A descriptor that becomes readable when a request is done.
//!
//! What it never does: say which one.

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// One that is not readable yet.
pub(super) fn make() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Makes it readable.
pub(super) fn signal(event: impl AsFd) {
    // Any number but none will do, in either order of bytes. A counter that is full is readable.
    let _ = rustix::io::write(event, &1u64.to_le_bytes());
}

/// Sleeps until it, or a timer, is readable, and makes it unreadable again. Interrupted or not: who
/// was asleep looks at what has landed.
pub(super) fn sleep(event: impl AsFd) {
    let _ = poll(&mut [PollFd::new(&event, PollFlags::IN)], None);
    let _ = rustix::io::read(&event, &mut [0; 8]);
}
