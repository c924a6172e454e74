//! What a tenant did between two moments: rates from totals that wrap, latencies from snapshots.
//!
//! What it never does: trust a window that is too small: whoever asks says how many samples a
//! judgement needs, and waits until there are as many; take a counter that was made anew for one
//! that counted nearly for ever.

use crate::Seen;
use nyx_base::{Instant, Latencies, Nanos};

/// Where a window begins.
#[derive(Clone, Debug)]
pub struct Mark {
    at: Instant,
    seen: Seen,
}

/// What a tenant did in a window.
#[derive(Clone, Debug)]
pub struct Window {
    /// How long it was.
    pub length: Nanos,
    /// The share of the device that it used; 1 is the whole device.
    pub share: f64,
    /// The share of the device that reads of 1 KiB would have to use to do as much harm to the
    /// latency of others.
    pub harm: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Accesses per second.
    pub ops_per_s: f64,
    /// How often it was held.
    pub holds: u64,
    /// Its latencies.
    pub latencies: Latencies,
}

/// What a count that wraps has counted since. One that went back, by less than half of what it
/// holds, was made anew: nothing is known, so nothing is said.
pub(crate) fn counted(now: u64, before: u64) -> u64 {
    match now.wrapping_sub(before) {
        count if count <= u64::MAX / 2 => count,
        _ => 0,
    }
}

impl Mark {
    /// A window that begins now.
    pub fn new(at: Instant, seen: &Seen) -> Mark {
        Mark {
            at,
            seen: seen.clone(),
        }
    }

    /// The same for a window that begins anew, in the memory of this one.
    pub fn restart(&mut self, at: Instant, seen: &Seen) {
        self.at = at;
        self.seen.copy(seen);
    }

    /// How many latencies the window has by now: cheaper than the window.
    pub fn samples(&self, seen: &Seen) -> u64 {
        seen.latencies.count_since(&self.seen.latencies)
    }

    /// When it began.
    pub fn at(&self) -> Instant {
        self.at
    }

    /// What was done since. A clock that went back makes an empty window.
    pub fn window(&self, now: Instant, seen: &Seen) -> Window {
        let length = now.since(self.at);
        let per_s = |count: u64| match length.0 {
            0 => 0.0,
            ns => count as f64 / (ns as f64 / 1e9),
        };
        Window {
            length,
            share: per_s(counted(seen.used.0, self.seen.used.0)) / 1e12,
            harm: per_s(counted(seen.harm.0, self.seen.harm.0)) / 1e12,
            bytes_per_s: per_s(counted(seen.bytes, self.seen.bytes)),
            ops_per_s: per_s(counted(seen.ops, self.seen.ops)),
            holds: counted(seen.holds, self.seen.holds),
            latencies: seen.latencies.since(&self.seen.latencies),
        }
    }
}

/// Begins a window of each tenant.
pub(crate) fn mark_all(marks: &mut Vec<Mark>, now: Instant, seen: &[Seen]) {
    if marks.len() == seen.len() {
        let each = marks.iter_mut().zip(seen);
        return each.for_each(|(mark, seen)| mark.restart(now, seen));
    }
    *marks = seen.iter().map(|seen| Mark::new(now, seen)).collect();
}

/// A [`Mark`] for whoever needs no more of latencies than their mean: no histogram is copied.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    at: Instant,
    used: u64,
    bytes: u64,
    ops: u64,
    answers: u64,
    answers_ns: u64,
    took_ns: u64,
    alone_ns: u64,
}

/// What a tenant did over some stretches of time together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Total {
    /// Seconds.
    pub time_s: f64,
    /// Seconds of device time used.
    pub device_s: f64,
    /// Bytes moved.
    pub bytes: f64,
    /// Accesses.
    pub ops: f64,
    /// Requests whose latency was counted.
    pub answers: f64,
    /// The sum of those latencies in seconds.
    pub answers_s: f64,
    /// Seconds that requests took whose device tells of each.
    pub took_s: f64,
    /// Seconds that they would have taken alone.
    pub alone_s: f64,
}

impl Tally {
    /// A stretch that begins now.
    pub fn new(at: Instant, seen: &Seen) -> Tally {
        Tally {
            at,
            used: seen.used.0,
            bytes: seen.bytes,
            ops: seen.ops,
            answers: seen.latencies.count(),
            answers_ns: seen.latencies.sum_ns(),
            took_ns: seen.took.0,
            alone_ns: seen.alone.0,
        }
    }

    /// Whether latencies are counted at all.
    pub fn has_answers(&self) -> bool {
        self.answers > 0
    }

    /// What was done since.
    pub fn since(&self, now: Instant, seen: &Seen) -> Total {
        let then = Tally::new(now, seen);
        let answers = counted(then.answers, self.answers);
        let answers_ns = match answers {
            0 => 0,
            _ => counted(then.answers_ns, self.answers_ns),
        };
        Total {
            time_s: now.since(self.at).as_secs_f64(),
            device_s: counted(then.used, self.used) as f64 / 1e12,
            bytes: counted(then.bytes, self.bytes) as f64,
            ops: counted(then.ops, self.ops) as f64,
            answers: answers as f64,
            answers_s: answers_ns as f64 / 1e9,
            took_s: counted(then.took_ns, self.took_ns) as f64 / 1e9,
            alone_s: counted(then.alone_ns, self.alone_ns) as f64 / 1e9,
        }
    }
}

impl Total {
    /// Another stretch, too.
    pub fn add(&mut self, other: &Total) {
        self.time_s += other.time_s;
        self.device_s += other.device_s;
        self.bytes += other.bytes;
        self.ops += other.ops;
        self.answers += other.answers;
        self.answers_s += other.answers_s;
        self.took_s += other.took_s;
        self.alone_s += other.alone_s;
    }

    /// The share of the device that was used; 1 is the whole device.
    pub fn share(&self) -> f64 {
        ratio(self.device_s, self.time_s).unwrap_or(0.0)
    }
}

/// One over another, where there is another.
pub(crate) fn ratio(of: f64, to: f64) -> Option<f64> {
    (to > 0.0).then(|| of / to)
}

impl Window {
    /// What a byte per second of this tenant costs, as a share of the device. None where it moved
    /// nothing.
    pub fn share_of_byte_per_s(&self) -> Option<f64> {
        (self.bytes_per_s > 0.0).then(|| self.share / self.bytes_per_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_base::DevicePs;

    #[test]
    fn rates_are_per_second_and_survive_a_wrap() {
        let before = Seen {
            used: DevicePs(u64::MAX - 9),
            harm: DevicePs(u64::MAX - 9),
            ops: 5,
            ..Seen::default()
        };
        let after = Seen {
            used: DevicePs(2_500_000_000 - 10),
            harm: DevicePs(7_500_000_000 - 10),
            bytes: 1000,
            ops: 15,
            ..Seen::default()
        };
        let mark = Mark::new(Instant(1_000_000), &before);
        let window = mark.window(Instant(11_000_000), &after);
        assert!((window.share - 0.25).abs() < 1e-9, "{}", window.share);
        assert!((window.harm - 0.75).abs() < 1e-9, "{}", window.harm);
        assert_eq!((window.bytes_per_s, window.ops_per_s), (1e5, 1e3));
        assert!((window.share_of_byte_per_s().expect("bytes moved") - 2.5e-6).abs() < 1e-15);
    }

    #[test]
    fn a_clock_that_went_back_makes_an_empty_window() {
        let mark = Mark::new(Instant(10), &Seen::default());
        let window = mark.window(Instant(5), &Seen::default());
        assert_eq!((window.length, window.share), (Nanos(0), 0.0));
    }

    #[test]
    fn a_counter_that_was_made_anew_makes_an_empty_window() {
        let before = Seen {
            used: DevicePs(7_000_000_000),
            ops: 5,
            ..Seen::default()
        };
        let mark = Mark::new(Instant(0), &before);
        let window = mark.window(Instant(1_000_000), &Seen::default());
        assert_eq!((window.share, window.ops_per_s), (0.0, 0.0));
    }
}
