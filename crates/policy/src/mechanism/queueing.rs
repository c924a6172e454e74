//! What a device tells that works at several requests at once and says of each how long it took: by
//! which factor a tenant is slower than alone, and what there is to divide.
//!
//! By Little's law as many requests of somebody are in flight, on the mean, as the sum of the times
//! that they took, in each second. Alone on the device these would take as long as one on an idle
//! device, or as long as the device needs for all of them, whichever is longer; so nobody has to be
//! paused to know how somebody would fare alone.
//!
//! Prices are what a device does at its best. One that gives less, for a mix of reads and writes or
//! for being older than its profile, cannot be divided by them: who is held has its part, and the
//! others bear the loss. Where requests wait for each other, all that is done is all that there is
//! ([`Capacity`]); unless it is the workers that are short, who then come late for what the device
//! has done long ago.
//!
//! What it never does: know of single requests; take a device for slow that is not asked for
//! enough.

use super::window::ratio;
use nyx_base::Nanos;
use std::ops::{Add, Sub};

/// A device has enough to do where what is in flight takes so many times as long as one request on
/// an idle device.
const ENOUGH: f64 = 1.5;
/// What was done is taken for so much less than what there is: where it was limits that kept it
/// down it grows, step by step.
const MORE: f64 = 1.03;
/// Workers that are at work for such a part of the time are short.
const BUSY: f64 = 0.9;
/// By which part of the distance a capacity follows what was seen in 100 ms, and goes back to the
/// whole device while nothing was.
const FOLLOW: f64 = 0.5;
const FORGET: f64 = 0.02;
const TURN: Nanos = Nanos::from_millis(100);
/// The least that a device is taken to give.
const LEAST: f64 = 0.1;

/// Reads that are done: totals.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reads {
    /// How many.
    pub count: u64,
    /// The sum of the times that they took, in ns.
    pub took_ns: f64,
    /// The sum of what they would have taken on an idle device, in ns.
    pub idle_ns: f64,
    /// The sum of what they took of the device where it has enough to do, in ns.
    pub each_ns: f64,
}

impl Add for Reads {
    type Output = Reads;

    fn add(self, other: Reads) -> Reads {
        Reads {
            count: self.count + other.count,
            took_ns: self.took_ns + other.took_ns,
            idle_ns: self.idle_ns + other.idle_ns,
            each_ns: self.each_ns + other.each_ns,
        }
    }
}

impl Sub for Reads {
    type Output = Reads;

    fn sub(self, other: Reads) -> Reads {
        Reads {
            count: self.count.saturating_sub(other.count),
            took_ns: self.took_ns - other.took_ns,
            idle_ns: self.idle_ns - other.idle_ns,
            each_ns: self.each_ns - other.each_ns,
        }
    }
}

impl Reads {
    /// What so many would take together that are in flight at once, as a multiple of one on an idle
    /// device.
    fn load(&self, time: Nanos) -> f64 {
        let in_flight = ratio(self.took_ns, time.0 as f64).unwrap_or(0.0);
        in_flight * ratio(self.each_ns, self.idle_ns).unwrap_or(0.0)
    }

    /// The sum of what these would have taken if nobody else had been there, where they were all
    /// that was done in `time`.
    pub fn alone(&self, time: Nanos) -> Nanos {
        Nanos((self.idle_ns * self.load(time).max(1.0)) as u64)
    }
}

/// What a device gives, as a share of what its prices say.
#[derive(Clone, Debug)]
pub struct Capacity {
    share: f64,
    /// What was seen of the turn that is not over.
    time: Nanos,
    used_s: f64,
    worked: Nanos,
    reads: Reads,
}

impl Default for Capacity {
    /// All of it, until it is known better.
    fn default() -> Capacity {
        Capacity {
            share: 1.0,
            time: Nanos::ZERO,
            used_s: 0.0,
            worked: Nanos::ZERO,
            reads: Reads::default(),
        }
    }
}

impl Capacity {
    /// What there is to divide.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// In `time` so many seconds of the device were used by everybody, for these reads among
    /// others, and its workers were at work for so long each.
    pub fn learn(&mut self, time: Nanos, used_s: f64, reads: Reads, worked: Nanos) {
        self.time = self.time + time;
        self.used_s += used_s;
        self.worked = self.worked + worked;
        self.reads = self.reads + reads;
        if self.time < TURN {
            return;
        }
        let is_busy = self.worked.as_secs_f64() > BUSY * self.time.as_secs_f64();
        let (aim, part) = match self.reads.load(self.time) >= ENOUGH && !is_busy {
            true => (MORE * self.used_s / self.time.as_secs_f64(), FOLLOW),
            false => (1.0, FORGET),
        };
        self.share = (self.share + part * (aim - self.share)).clamp(LEAST, 1.0);
        *self = Capacity {
            share: self.share,
            ..Capacity::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    /// Reads of a device that does ten at once, in 100 us each, where each took so long.
    fn reads(count: u64, each_took_us: f64) -> Reads {
        let n = count as f64;
        Reads {
            count,
            took_ns: n * each_took_us * 1e3,
            idle_ns: n * 100e3,
            each_ns: n * 10e3,
        }
    }

    #[test]
    fn who_is_alone_is_not_slowed_however_much_it_asks_for() {
        // One at a time; ten; forty, which wait for each other.
        for (per_s, took_us) in [(10_000, 100.0), (100_000, 100.0), (100_000, 400.0)] {
            let reads = reads(per_s, took_us);
            let took_ns = reads.took_ns;
            let slowdown = took_ns / reads.alone(SECOND).0 as f64;
            assert!((slowdown - 1.0).abs() < 1e-6, "{per_s}/s: {slowdown}");
        }
    }

    #[test]
    fn who_waits_for_others_is_slowed_by_what_it_waits() {
        // One at a time, behind thirty of others.
        let one = reads(2_500, 400.0);
        let slowdown = one.took_ns / one.alone(SECOND).0 as f64;
        assert!((slowdown - 4.0).abs() < 1e-6, "{slowdown}");
        // Twenty, beside twenty.
        let half = reads(50_000, 400.0);
        let slowdown = half.took_ns / half.alone(SECOND).0 as f64;
        assert!((slowdown - 2.0).abs() < 1e-6, "{slowdown}");
    }

    fn learned(capacity: &mut Capacity, turns: u32, used: f64, took_us: f64) -> f64 {
        for _ in 0..turns * 10 {
            let tick = Nanos::from_millis(10);
            let count = (used * 1000.0) as u64;
            let worked = Nanos::from_millis(6);
            capacity.learn(tick, used / 100.0, reads(count, took_us), worked);
        }
        capacity.share()
    }

    #[test]
    fn what_is_done_while_requests_wait_is_all_that_there_is() {
        let mut capacity = Capacity::default();
        // Half used and nobody waits: the other half is there.
        assert_eq!(learned(&mut capacity, 10, 0.5, 100.0), 1.0);
        // Eight tenths used and all wait: there may be a little more.
        let share = learned(&mut capacity, 10, 0.8, 400.0);
        assert!((share - 0.824).abs() < 0.01, "{share}");
        // Nobody asks for much any more; that it was slow is forgotten, but not at once.
        let share = learned(&mut capacity, 10, 0.1, 100.0);
        assert!((0.84..0.87).contains(&share), "{share}");
        let share = learned(&mut capacity, 300, 0.1, 100.0);
        assert!(share > 0.99, "{share}");
    }

    #[test]
    fn a_device_that_stands_still_is_not_taken_for_none() {
        let mut capacity = Capacity::default();
        let stuck = reads(40, 1e6);
        for _ in 0..100 {
            capacity.learn(TURN, 0.0, stuck, Nanos::ZERO);
        }
        assert_eq!(capacity.share(), LEAST);
        capacity.learn(Nanos::ZERO, 0.0, Reads::default(), Nanos::ZERO);
        assert_eq!(capacity.share(), LEAST);
    }

    #[test]
    fn workers_that_are_short_do_not_make_a_device_slow() {
        let mut capacity = Capacity::default();
        for _ in 0..100 {
            capacity.learn(TURN, 0.05, reads(5_000, 400.0), Nanos::from_millis(97));
        }
        assert_eq!(capacity.share(), 1.0);
    }
}
