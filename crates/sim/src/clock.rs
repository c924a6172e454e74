//! Virtual time: it moves only when somebody waits, and then at once.

use nyx_base::{Clock, Instant};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A clock that a driver sets. One driver, one thread; it is `Sync` only because lanes share it.
#[derive(Debug, Default)]
pub struct VirtualClock(AtomicU64);

impl VirtualClock {
    /// Sets the time. It may go back: each virtual worker has a time of its own, and the driver
    /// always runs the one that is furthest behind.
    pub fn set(&self, now: Instant) {
        self.0.store(now.0, Relaxed);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        Instant(self.0.load(Relaxed))
    }

    fn spin_until(&self, until: Instant) {
        self.0.fetch_max(until.0, Relaxed);
    }
}
