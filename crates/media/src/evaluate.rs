//! The evaluation of a device as Han et al. made it (HybridIndex+ and ACS, section 2): what an
//! access takes and what all threads together move, by operation, order, size and number of
//! threads, and with readers and writers beside each other.
//!
//! * [`Plan`]: which sizes, how many threads, how long; [`Part`]: what of it a device is asked.
//! * [`fn@measure`]: any [`Target`] in real time.
//! * [`fn@simulate`]: a device model in virtual time.
//! * [`mod@paper`]: what was published of their device.
//! * [`Sheet`]: what came out, all of one kind of evidence.
//! * [`Disk`]: a file past the page cache, to be measured beside.
//!
//! A profile ([`crate::profile`]) is what a server charges by and is made in seconds; this is for
//! people who want to know a device, and nothing is charged by it.
//!
//! What this module never does: say what a reading means, or compare it with anything.

mod disk;
mod measure;
pub mod paper;
mod simulate;
mod target;

pub use disk::Disk;
pub use measure::measure;
pub use simulate::simulate;
pub use target::Target;

use crate::Evidence;
use crate::profile::Effort;
use nyx_base::Nanos;
use serde::Serialize;

/// The sizes of accesses in bytes, as in the paper's tables 3 to 6.
pub const SIZES_BYTES: [usize; 15] = [
    8,
    16,
    32,
    64,
    128,
    256,
    512,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
];
/// The largest of them.
pub const LARGEST_BYTES: usize = SIZES_BYTES[SIZES_BYTES.len() - 1];
/// The size at which readers and writers are measured beside each other (figures 11 to 14).
pub const MIXED_BYTES: usize = 256;
/// [`Work::WriteFenced`] has a fence behind so many bytes (figure 5).
pub const FENCED_BYTES: usize = 256;
/// A point has at least so many rounds.
pub const ROUNDS_LEAST: usize = 5;
/// The least that a disk reads or writes past the page cache.
const DISK_BYTES: usize = 4 << 10;

/// What a thread does all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Reads, as many at once as the processor likes: what a device can move.
    Read,
    /// Reads, each of which begins when the bytes of the one before are there: what one takes.
    ReadChained,
    /// Non-temporal stores with a fence behind the last.
    Write,
    /// The same with a fence behind each [`FENCED_BYTES`].
    WriteFenced,
}

/// In which order addresses come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Any multiple of the size, drawn anew for each access.
    Random,
    /// One behind the other, each thread from a place of its own.
    Sequential,
}

/// Threads that all do the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Flow {
    /// What they do.
    pub work: Work,
    /// Where.
    pub order: Order,
    /// The size of an access in bytes.
    pub bytes: usize,
    /// How many they are.
    pub threads: usize,
}

/// What is measured at once: threads, and others beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// They.
    pub flow: Flow,
    /// The others.
    pub beside: Option<Flow>,
}

/// What came out for one flow.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reading {
    /// Of whom.
    pub flow: Flow,
    /// Who was there besides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside: Option<Flow>,
    /// The mean time of an access as its thread sees it, in nanoseconds: the median of the rounds.
    pub latency_ns: f64,
    /// Bytes that all threads of the flow moved in a second: the median of the rounds.
    pub bytes_per_s: f64,
    /// How far the rounds differ: the distance of the quartiles of the latency as a part of its
    /// median.
    pub spread: f64,
    /// The rounds that count.
    pub rounds: usize,
    /// False where the machine disturbed so many rounds that all had to be counted.
    pub is_quiet: bool,
}

/// Readings of one kind of evidence. One (flow, beside) has one reading.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sheet {
    /// What kind of numbers these are.
    pub evidence: Evidence,
    /// In the order in which they were made.
    pub readings: Vec<Reading>,
}

/// How much is measured, and how long.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Numbers of threads, in rising order.
    pub thread_counts: Vec<usize>,
    /// How long a point is measured, in nanoseconds.
    pub point_ns: u64,
    /// The length of a round of it; one access of each thread may take longer.
    pub round_ns: u64,
}

/// What of an evaluation a device is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All: the device itself.
    Whole,
    /// What a model of a device can tell: no fences, which it does not know.
    Model,
    /// Neither fences nor readers beside writers: the memory to compare with.
    Memory,
    /// The same in whole blocks: the disk to compare with.
    Disk,
}

impl Plan {
    /// For up to `threads_max` threads (at least one): 1, 2, 4... and `threads_max`.
    pub fn of(effort: Effort, threads_max: usize) -> Plan {
        let (point, round) = match effort {
            Effort::Quick => (Nanos::from_millis(15), Nanos::from_millis(1)),
            Effort::Normal => (Nanos::from_millis(200), Nanos::from_millis(2)),
            Effort::Full => (Nanos::from_millis(1000), Nanos::from_millis(4)),
        };
        let powers = std::iter::successors(Some(1), |n| Some(n * 2));
        let mut thread_counts: Vec<usize> = powers.take_while(|&n| n < threads_max).collect();
        thread_counts.push(threads_max.max(1));
        Plan {
            thread_counts,
            point_ns: point.0,
            round_ns: round.0,
        }
    }

    /// The same for as long that measuring `points` points takes `length`.
    pub fn lasting(self, length: Nanos, points: usize) -> Plan {
        let point_ns = length.0 / points.max(1) as u64;
        Plan {
            point_ns,
            round_ns: self.round_ns.min(point_ns / ROUNDS_LEAST as u64),
            ..self
        }
    }

    /// How long measuring `points` points takes, but for accesses that are so long that
    /// [`ROUNDS_LEAST`] of them take longer than a point.
    pub fn length(&self, points: usize) -> Nanos {
        Nanos(self.point_ns * points as u64)
    }

    /// The points of a part, in the order in which they are measured.
    pub fn points(&self, part: Part) -> Vec<Point> {
        use Order::{Random, Sequential};
        use Work::{Read, ReadChained, Write, WriteFenced};
        let least_bytes = match part {
            Part::Whole | Part::Model | Part::Memory => 0,
            Part::Disk => DISK_BYTES,
        };
        let mut points = Vec::new();
        for order in [Random, Sequential] {
            for work in [ReadChained, Read, Write] {
                points.extend(self.sweep(work, order, least_bytes));
            }
        }
        if part == Part::Whole {
            points.extend(self.sweep(WriteFenced, Random, 2 * FENCED_BYTES));
        }
        if matches!(part, Part::Whole | Part::Model) {
            points.extend(self.mixed());
        }
        points
    }

    /// All sizes from `least_bytes` on with all numbers of threads.
    fn sweep(&self, work: Work, order: Order, least_bytes: usize) -> impl Iterator<Item = Point> {
        let sizes = SIZES_BYTES.into_iter().filter(move |&b| b >= least_bytes);
        sizes.flat_map(move |bytes| {
            let flow = move |&threads: &usize| Flow {
                work,
                order,
                bytes,
                threads,
            };
            self.thread_counts.iter().map(move |threads| Point {
                flow: flow(threads),
                beside: None,
            })
        })
    }

    /// All numbers of readers beside all numbers of writers.
    fn mixed(&self) -> impl Iterator<Item = Point> {
        let counts = &self.thread_counts;
        let pairs = counts
            .iter()
            .flat_map(move |&readers| counts.iter().map(move |&writers| (readers, writers)));
        pairs.flat_map(|(readers, writers)| {
            [Work::ReadChained, Work::Read].map(|work| Point {
                flow: Flow::mixed(work, readers),
                beside: Some(Flow::mixed(Work::Write, writers)),
            })
        })
    }
}

impl Flow {
    /// `threads` threads at random addresses, [`MIXED_BYTES`] at a time.
    pub fn mixed(work: Work, threads: usize) -> Flow {
        Flow {
            work,
            order: Order::Random,
            bytes: MIXED_BYTES,
            threads,
        }
    }
}

impl Sheet {
    /// The reading of a flow, where there is one.
    pub fn get(&self, flow: Flow, beside: Option<Flow>) -> Option<&Reading> {
        let is_it = |one: &&Reading| one.flow == flow && one.beside == beside;
        self.readings.iter().find(is_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_counts_double_up_to_the_most() {
        let counts = |most| Plan::of(Effort::Quick, most).thread_counts;
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(4), [1, 2, 4]);
        assert_eq!(counts(6), [1, 2, 4, 6]);
        assert_eq!(counts(0), [1]);
    }

    #[test]
    fn no_point_is_measured_twice_and_parts_are_of_the_whole() {
        let plan = Plan::of(Effort::Quick, 4);
        let all = plan.points(Part::Whole);
        for (at, point) in all.iter().enumerate() {
            assert!(!all[..at].contains(point), "{point:?} twice");
        }
        // Two orders of three works at 15 sizes, fences at nine, and nine mixtures of two reads.
        assert_eq!(all.len(), 3 * (2 * 3 * 15 + 9) + 9 * 2);
        for part in [Part::Model, Part::Memory, Part::Disk] {
            let some = plan.points(part);
            assert!(some.iter().all(|point| all.contains(point)), "{part:?}");
            assert!(some.len() < all.len(), "{part:?}");
        }
        let blocks = |p: &Point| p.flow.bytes.is_multiple_of(DISK_BYTES);
        assert!(plan.points(Part::Disk).iter().all(blocks));
    }

    #[test]
    fn a_length_is_spread_over_the_points() {
        let plan = Plan::of(Effort::Normal, 2).lasting(Nanos::from_secs(10), 100);
        assert_eq!((plan.point_ns, plan.round_ns), (100_000_000, 2_000_000));
        assert_eq!(
            plan.clone().lasting(Nanos::from_millis(5), 1).round_ns,
            1_000_000
        );
        assert_eq!(plan.length(100), Nanos::from_secs(10));
    }
}
