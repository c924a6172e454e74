//! Time as it is handed in by a driver. There is one `Instant` in the whole tree and it counts
//! nanoseconds of the driver's clock (a monotonic clock in the server, virtual time in the
//! simulator); times to live are wall-clock seconds and have a type of their own, so that the two
//! cannot be mixed.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A point in a driver's monotonic time, in nanoseconds since that driver's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

/// A length of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

/// A wall-clock second since the Unix epoch. Times to live end at one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixSeconds(pub u32);

/// Both clocks as a driver read them, once per batch of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Monotonic time: pacing, budgets, latencies.
    pub mono: Instant,
    /// Wall-clock seconds: times to live.
    pub unix: UnixSeconds,
}

impl Instant {
    /// The last instant there is: "never".
    pub const NEVER: Instant = Instant(u64::MAX);

    /// Time since `earlier`; zero where `earlier` is later, so that a clock that jumps back
    /// (or a stale reading from another worker) cannot underflow.
    #[inline]
    pub fn since(self, earlier: Instant) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Nanos> for Instant {
    type Output = Instant;
    #[inline]
    fn add(self, d: Nanos) -> Instant {
        Instant(self.0.saturating_add(d.0))
    }
}

impl Sub<Nanos> for Instant {
    type Output = Instant;
    #[inline]
    fn sub(self, d: Nanos) -> Instant {
        Instant(self.0.saturating_sub(d.0))
    }
}

impl AddAssign<Nanos> for Instant {
    #[inline]
    fn add_assign(&mut self, d: Nanos) {
        *self = *self + d;
    }
}

impl Nanos {
    /// Nothing.
    pub const ZERO: Nanos = Nanos(0);

    /// A length of time given in microseconds.
    #[inline]
    pub const fn from_micros(us: u64) -> Nanos {
        Nanos(us * 1_000)
    }

    /// A length of time given in milliseconds.
    #[inline]
    pub const fn from_millis(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }

    /// A length of time given in seconds.
    #[inline]
    pub const fn from_secs(s: u64) -> Nanos {
        Nanos(s * 1_000_000_000)
    }

    /// In seconds, for ratios and reports.
    #[inline]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl Add for Nanos {
    type Output = Nanos;
    #[inline]
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ns if ns < 10_000 => write!(f, "{ns} ns"),
            ns if ns < 10_000_000 => write!(f, "{:.1} us", ns as f64 / 1e3),
            ns if ns < 10_000_000_000 => write!(f, "{:.1} ms", ns as f64 / 1e6),
            ns => write!(f, "{:.2} s", ns as f64 / 1e9),
        }
    }
}

impl UnixSeconds {
    /// A time to live that does not end.
    pub const NEVER: UnixSeconds = UnixSeconds(u32::MAX);
}

/// A clock, handed in by a driver: the server's counts real nanoseconds, the simulator's virtual
/// ones. Only rooms that pace accesses (media, gate) and the drivers hold one.
///
/// *Thread safety*: shared by all workers.
pub trait Clock: Send + Sync {
    /// The monotonic time.
    fn now(&self) -> Instant;

    /// Keeps the caller busy until `until`; returns at once where that has passed. Real clocks burn
    /// the CPU, so callers bound what they ask for; a virtual clock just moves on.
    fn spin_until(&self, until: Instant);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_jumps_back_gives_zero_not_underflow() {
        assert_eq!(Instant(5).since(Instant(9)), Nanos::ZERO);
        assert_eq!(Instant(9).since(Instant(5)), Nanos(4));
        assert_eq!(Instant::NEVER + Nanos(1), Instant::NEVER);
    }

    #[test]
    fn lengths_print_with_a_unit() {
        assert_eq!(Nanos(999).to_string(), "999 ns");
        assert_eq!(Nanos::from_micros(25).to_string(), "25.0 us");
        assert_eq!(Nanos::from_millis(25).to_string(), "25.0 ms");
        assert_eq!(Nanos::from_secs(25).to_string(), "25.00 s");
    }
}
