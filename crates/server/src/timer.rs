//! A timer that wakes a worker's poll with better than millisecond precision: a held tenant's time
//! comes within microseconds, and poll time-outs are whole milliseconds.

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nyx_base::Nanos;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

pub(crate) struct Timer {
    fd: OwnedFd,
}

impl Timer {
    pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Timer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        registry.register(&mut SourceFd(&fd.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Timer { fd })
    }

    /// Wakes the poll once, `after` from now. Replaces an earlier setting.
    pub(crate) fn set(&self, after: Nanos) -> io::Result<()> {
        // Zero would disarm it.
        let ns = after.0.max(1);
        let once = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: Timespec {
                tv_sec: (ns / 1_000_000_000) as i64,
                tv_nsec: (ns % 1_000_000_000) as i64,
            },
        };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }
}
