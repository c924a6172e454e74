//! How much memory a program gets, where that is not a number of bytes.
//!
//! * A share of what it has ([`share_of`]): the limit grows with the program.
//! * As little as slows it down by a part that is allowed ([`Finder`]): the limit goes down until
//!   the program stalls for memory as long as it may, and up again where it stalls longer. As TMO
//!   (ASPLOS'22, section 3.2) does it by pressure stall information.
//!
//! *Shapes*: bytes, nanoseconds, parts of the run time. *Thread safety*: one owner.

use nyx_base::{Instant, Nanos};

/// No program gets less: below it, it does not even start in reasonable time.
pub const BUDGET_BYTES_MIN: u64 = 16 << 20;

/// A limit that is so much nearer than this is not worth setting: one part in so many.
const SET_ONE_IN: u64 = 64;

/// The limit for a program that has `had` bytes in memory and on swap, and may have `percent` of
/// them in memory; none where the limit that it has will do.
pub fn share_of(percent: u8, had: u64, limit: u64) -> Option<u64> {
    let wanted = (had / 100 * u64::from(percent)).max(BUDGET_BYTES_MIN);
    (wanted.abs_diff(limit) > limit / SET_ONE_IN).then_some(wanted)
}

/// What is seen of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Bytes in memory.
    pub used: u64,
    /// How long it stalled for memory, since its start.
    pub stalled: Nanos,
}

/// Finds the least memory with which a program is slowed down by no more than it may be.
#[derive(Clone, Debug)]
pub struct Finder {
    /// Time that it may lose, as a part of the time that it would need with all of its memory.
    most: f64,
    limit: Option<u64>,
    last: Option<(Instant, Pressure)>,
    slowdown: f64,
}

/// The limit is thought over so often.
const PERIOD: Nanos = Nanos::from_secs(1);
/// Goes down by so much of itself in a period, where the program does not stall at all.
const DOWN: f64 = 0.05;
/// Goes up by so much, where it stalls for twice as long as it may, and by `UP_MOST` at most.
const UP: f64 = 0.10;
const UP_MOST: f64 = 0.50;
/// Between this part of what is allowed and all of it the limit stays.
const CALM: f64 = 0.7;

impl Finder {
    /// For a program that may need `most` more time, as a part of what it needs alone (0.05).
    pub fn new(most: f64) -> Finder {
        Finder {
            most,
            limit: None,
            last: None,
            slowdown: 0.0,
        }
    }

    /// How much the program was slowed down in the last period, as a part of its time.
    pub fn slowdown(&self) -> f64 {
        self.slowdown
    }

    /// The last one could not be set, and this one is in force: the next begins from it.
    pub fn refused(&mut self, in_force: u64) {
        self.limit = Some(in_force);
    }

    /// The new limit, where there is to be one.
    pub fn step(&mut self, now: Instant, seen: Pressure) -> Option<u64> {
        let (at, before) = *self.last.get_or_insert((now, seen));
        let time = now.since(at);
        if time < PERIOD {
            return None;
        }
        self.last = Some((now, seen));
        let stalled = seen.stalled.0.saturating_sub(before.stalled.0) as f64;
        let share = (stalled / time.0 as f64).min(0.99);
        self.slowdown = share / (1.0 - share);
        // The limit begins where the program is.
        let limit = self.limit.unwrap_or(seen.used) as f64;
        let of_allowed = self.slowdown / self.most;
        let factor = match of_allowed {
            x if x > 1.0 => 1.0 + (UP * (x - 1.0)).min(UP_MOST),
            x if x > CALM => 1.0,
            x => 1.0 - DOWN * (1.0 - x / CALM),
        };
        // What it does not use need not be reclaimed, and a limit far above would not bind.
        let wanted = (limit * factor).min(seen.used as f64 * (1.0 + UP_MOST));
        let wanted = (wanted as u64).max(BUDGET_BYTES_MIN);
        let is_new = self.limit != Some(wanted);
        self.limit = Some(wanted);
        is_new.then_some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A program that goes over `hot` bytes evenly, so many times a second, and has more that it
    /// does not touch. A fault takes 10 us.
    struct Program {
        hot: u64,
        cold: u64,
        touches_per_s: f64,
    }

    impl Program {
        /// Runs under the finder for so many seconds; the limit and the slowdown, over the last
        /// quarter.
        fn run(&self, finder: &mut Finder, seconds: std::ops::Range<u64>) -> (f64, f64) {
            let mut limit = u64::MAX;
            let (mut stalled_ns, mut sum, mut count) = (0.0, (0.0, 0.0), 0.0);
            for second in seconds.clone() {
                let used = limit.min(self.hot + self.cold);
                let missing = 1.0 - (used.min(self.hot) as f64 / self.hot as f64);
                let slowdown = self.touches_per_s * missing * 10e-6;
                stalled_ns += slowdown / (1.0 + slowdown) * 1e9;
                let stalled = Nanos(stalled_ns as u64);
                let now = Instant(second * 1_000_000_000);
                if let Some(new) = finder.step(now, Pressure { used, stalled }) {
                    limit = new;
                }
                if second >= seconds.end - seconds.clone().count() as u64 / 4 {
                    sum = (sum.0 + limit as f64, sum.1 + slowdown);
                    count += 1.0;
                }
            }
            (sum.0 / count, sum.1 / count)
        }
    }

    #[test]
    fn a_limit_that_could_not_be_set_is_not_gone_on_from() {
        let in_force = 1024 * MIB;
        let mut finder = Finder::new(0.05);
        // Nothing stalls: it goes down.
        let mut wanted = |second: u64, is_refused: bool| {
            let seen = Pressure {
                used: in_force,
                stalled: Nanos(0),
            };
            let limit = finder.step(Instant(second * 1_000_000_000), seen);
            if is_refused {
                finder.refused(in_force);
            }
            limit
        };
        assert_eq!(wanted(0, false), None);
        let first = wanted(1, true).unwrap();
        assert!(first < in_force);
        for second in 2..60 {
            assert_eq!(wanted(second, true), Some(first));
        }
        assert_eq!(wanted(60, false), Some(first));
        assert!(wanted(61, false).unwrap() < first);
    }

    #[test]
    fn it_finds_the_least_memory_that_slows_down_no_more_than_allowed() {
        for most in [0.01, 0.05, 0.2] {
            let program = Program {
                hot: 400 * MIB,
                cold: 600 * MIB,
                touches_per_s: 50_000.0,
            };
            let (limit, slowdown) = program.run(&mut Finder::new(most), 0..200);
            assert!(slowdown <= most * 1.1, "{slowdown} of {most}");
            // What is cold is not paid for, and of what is hot as much as is missing may be.
            let least = 400.0 * MIB as f64 * (1.0 - most / 0.5);
            assert!((0.95..=1.2).contains(&(limit / least)), "{limit} {least}");
        }
    }

    #[test]
    fn a_program_that_comes_to_need_more_gets_it_within_seconds() {
        let (before, after) = (
            Program {
                hot: 100 * MIB,
                cold: 900 * MIB,
                touches_per_s: 50_000.0,
            },
            Program {
                hot: 800 * MIB,
                cold: 200 * MIB,
                touches_per_s: 50_000.0,
            },
        );
        let mut finder = Finder::new(0.05);
        before.run(&mut finder, 0..100);
        let (limit, slowdown) = after.run(&mut finder, 100..160);
        assert!(slowdown < 0.06, "{slowdown}");
        assert!(limit > 650.0 * MIB as f64, "{limit}");
    }

    #[test]
    fn a_share_follows_what_the_program_has_and_is_not_set_for_trifles() {
        assert_eq!(
            share_of(20, 1_000 * MIB, 100 * MIB),
            Some(1_000 * MIB / 100 * 20)
        );
        assert_eq!(share_of(20, 1_000 * MIB, 199 * MIB), None);
        assert_eq!(share_of(20, MIB, 100 * MIB), Some(BUDGET_BYTES_MIN));
        assert_eq!(share_of(20, MIB, BUDGET_BYTES_MIN), None);
    }
}
