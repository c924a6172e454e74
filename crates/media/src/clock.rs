//! The machine's clock: nanoseconds from the processor's time-stamp counter where that counter is
//! invariant, from the operating system's monotonic clock elsewhere. This is the clock that the
//! server hands to every room below it.
//!
//! What it never does: jump. The counter's frequency is measured once per process against
//! `CLOCK_MONOTONIC` and then kept; a counter that the kernel holds for unstable, or whose two
//! measurements disagree, is not used.
//!
//! *Thread safety*: immutable after construction. *Invariant*: readings of one clock never go
//! back on one thread; an invariant counter is synchronised between cores, and a reading that
//! would lie before the clock's start is its start.

use nyx_base::{Clock, Instant, Now, UnixSeconds};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Binary digits after the point in [`Scale::ns_per_tick`].
const FRACTION_BITS: u32 = 32;
/// How long one measurement of the counter's frequency takes. Two of them are made; a bracket of
/// 50 ns at either end leaves an error of 10 parts per million.
const CALIBRATION: Duration = Duration::from_millis(5);
/// Two measurements that differ by more than this part are not believed.
const DISAGREEMENT_MAX: f64 = 1e-3;
/// A wait shorter than this is spun without a pause instruction, which alone can take 50 ns.
const PAUSE_FROM_NS: u64 = 400;

/// Nanoseconds per tick of the counter, as a fixed-point number.
#[derive(Clone, Copy, Debug)]
struct Scale {
    ns_per_tick: u64,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Tsc { start: u64, scale: Scale },
    Os { start: std::time::Instant },
}

/// A clock that starts at zero when it is made. See the module.
#[derive(Clone, Copy, Debug)]
pub struct TscClock {
    source: Source,
}

impl TscClock {
    /// A clock that starts now. The first one in a process measures the counter's frequency, which
    /// takes about 10 ms.
    pub fn start() -> TscClock {
        static SCALE: OnceLock<Option<Scale>> = OnceLock::new();
        let source = match *SCALE.get_or_init(calibrate) {
            Some(scale) => Source::Tsc {
                start: counter::read(),
                scale,
            },
            None => Source::Os {
                start: std::time::Instant::now(),
            },
        };
        TscClock { source }
    }

    /// Where its readings come from, for logs.
    pub fn describe(&self) -> String {
        match self.source {
            Source::Tsc { scale, .. } => {
                let ghz = (1u64 << FRACTION_BITS) as f64 / scale.ns_per_tick as f64;
                format!("time-stamp counter at {ghz:.3} GHz")
            }
            Source::Os { .. } => "the system's monotonic clock".to_owned(),
        }
    }

    /// The wall-clock second, from the system: a step of the system's time shows here, and only
    /// here.
    pub fn unix_seconds(&self) -> UnixSeconds {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        UnixSeconds(u32::try_from(since.as_secs()).unwrap_or(u32::MAX - 1))
    }

    /// Both times at once, as a driver reads them once per batch of events.
    pub fn both(&self) -> Now {
        Now {
            mono: self.now(),
            unix: self.unix_seconds(),
        }
    }
}

impl Clock for TscClock {
    #[inline]
    fn now(&self) -> Instant {
        match self.source {
            Source::Tsc { start, scale } => scale.to_ns(counter::read().saturating_sub(start)),
            Source::Os { start } => {
                Instant(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
            }
        }
    }

    fn spin_until(&self, until: Instant) {
        loop {
            let left = until.since(self.now());
            if left.0 == 0 {
                return;
            }
            if left.0 >= PAUSE_FROM_NS {
                std::hint::spin_loop();
            }
        }
    }
}

impl Scale {
    #[inline]
    fn to_ns(self, ticks: u64) -> Instant {
        let product = u128::from(ticks) * u128::from(self.ns_per_tick);
        Instant((product >> FRACTION_BITS) as u64)
    }
}

/// Nanoseconds per tick, or nothing where the counter cannot be trusted.
fn calibrate() -> Option<Scale> {
    if !counter::is_invariant() || !kernel_trusts_the_counter() {
        return None;
    }
    let marks = [mark(), wait_then_mark(), wait_then_mark()];
    let rate = |a: (f64, u64), b: (f64, u64)| (b.0 - a.0) / b.1.saturating_sub(a.1) as f64;
    let (first, second) = (rate(marks[0], marks[1]), rate(marks[1], marks[2]));
    let whole = rate(marks[0], marks[2]);
    let credible = whole.is_finite() && whole > 0.01 && whole < 100.0;
    if !credible || ((first - second) / whole).abs() > DISAGREEMENT_MAX {
        return None;
    }
    let ns_per_tick = (whole * (1u64 << FRACTION_BITS) as f64).round() as u64;
    Some(Scale { ns_per_tick })
}

fn wait_then_mark() -> (f64, u64) {
    std::thread::sleep(CALIBRATION);
    mark()
}

/// The system's time in nanoseconds and the counter at the same moment: of several readings, the
/// one that the counter brackets most closely.
fn mark() -> (f64, u64) {
    static ORIGIN: OnceLock<std::time::Instant> = OnceLock::new();
    let origin = *ORIGIN.get_or_init(std::time::Instant::now);
    let reading = || {
        let before = counter::read();
        let ns = origin.elapsed().as_nanos() as f64;
        let after = counter::read();
        (
            after.saturating_sub(before),
            ns,
            before + after.saturating_sub(before) / 2,
        )
    };
    let best = (0..32).map(|_| reading()).min_by_key(|&(width, ..)| width);
    let (_, ns, ticks) = best.expect("32 readings");
    (ns, ticks)
}

/// Whether Linux still offers the counter as a clock: it withdraws one that it saw misbehave.
/// No list, no trust.
fn kernel_trusts_the_counter() -> bool {
    let list = "/sys/devices/system/clocksource/clocksource0/available_clocksource";
    std::fs::read_to_string(list).is_ok_and(|s| s.split_whitespace().any(|name| name == "tsc"))
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod counter {
    //! The time-stamp counter of x86-64.
    use std::arch::x86_64::{__cpuid, _rdtsc};

    /// The counter. Not ordered with the instructions around it, which costs a few nanoseconds of
    /// accuracy and saves a fence.
    #[inline]
    pub(super) fn read() -> u64 {
        // SAFETY: every x86-64 processor has the instruction, and it touches no memory.
        unsafe { _rdtsc() }
    }

    /// Whether it counts at one rate in all power states (CPUID 8000_0007h, EDX bit 8).
    pub(super) fn is_invariant() -> bool {
        let largest = __cpuid(0x8000_0000).eax;
        largest >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod counter {
    //! No counter that this room knows: the system's clock is used.

    /// Never used for time, because [`is_invariant`] is false.
    pub(super) fn read() -> u64 {
        0
    }

    pub(super) fn is_invariant() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_base::Nanos;

    #[test]
    fn it_starts_near_zero_and_never_goes_back() {
        let clock = TscClock::start();
        let mut last = clock.now();
        assert!(last.0 < 1_000_000_000, "{last:?}");
        for _ in 0..100_000 {
            let now = clock.now();
            assert!(now >= last, "{now:?} after {last:?}");
            last = now;
        }
    }

    #[test]
    fn it_runs_at_the_speed_of_the_systems_clock() {
        let clock = TscClock::start();
        let (os, own) = (std::time::Instant::now(), clock.now());
        clock.spin_until(own + Nanos::from_millis(50));
        // Read in this order, the own time can only come out too short, by a preemption between
        // the two; a wrong scale would be off by a factor.
        let (own, os) = (
            clock.now().since(own).0 as f64,
            os.elapsed().as_nanos() as f64,
        );
        assert!(own >= 50e6, "spun {own} ns of 50 ms");
        assert!(own <= os * 1.001 + 1e4, "own {own} ns, system {os} ns");
    }

    #[test]
    fn both_sources_keep_the_contract() {
        let os = TscClock {
            source: Source::Os {
                start: std::time::Instant::now(),
            },
        };
        for clock in [os, TscClock::start()] {
            let until = clock.now() + Nanos::from_micros(30);
            clock.spin_until(until);
            assert!(clock.now() >= until, "{}", clock.describe());
            clock.spin_until(Instant(0));
        }
    }

    #[test]
    fn threads_see_one_time() {
        let clock = TscClock::start();
        let before = clock.now();
        let other = std::thread::spawn(move || clock.now())
            .join()
            .expect("a reading");
        let after = clock.now();
        assert!(
            before <= other && other <= after,
            "{before:?} {other:?} {after:?}"
        );
    }

    #[test]
    fn wall_clock_seconds_are_of_this_century() {
        let unix = TscClock::start().both().unix;
        assert!(
            unix > UnixSeconds(1_700_000_000) && unix < UnixSeconds::NEVER,
            "{unix:?}"
        );
    }
}
