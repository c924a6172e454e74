//! What requests take of a deep device, and of the worker that makes them: measured when the device
//! is opened, for those who choose between it and another.
//!
//! What it never does: write. What a write takes is taken for what a read does, until the
//! controller has learned better.

use nyx_base::{Clock, Nanos};
use nyx_gate::CostTable;
use nyx_media::queue::{Pool, Queue, Request};
use nyx_media::{MediaError, Op, TscClock};
use nyx_policy::nhc::Cost;
use rustix::time::{ClockId, clock_gettime};
use std::ops::Range;

/// Reads of a length: one at a time, and many.
const READS_ALONE: u64 = 64;
const READS: u64 = 4096;
/// Of them at once, where a device is to have enough to do.
const DEPTH: u32 = 64;
/// Reads of a length take so long, at most.
const TIME_MOST: Nanos = Nanos::from_millis(100);
/// A prime: a device's places one after the other, far from each other.
const SCATTER: u64 = 2_654_435_761;
/// A device of which nothing was measured takes so many times longer alone than behind others: an
/// SSD does some ten requests at once.
const PARALLEL_ASSUMED: f64 = 10.0;

/// What a request takes, on a line through two lengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Of [`Costs::SMALL_BYTES`].
    pub small: Cost,
    /// Of [`Costs::LARGE_BYTES`].
    pub large: Cost,
    /// What it takes of its worker's processor beside the copy, in ns.
    pub cpu_ns: f64,
}

impl Costs {
    /// A short request.
    pub const SMALL_BYTES: u64 = 4096;
    /// A long one.
    pub const LARGE_BYTES: u64 = 64 << 10;

    /// What a request of that many bytes takes.
    pub fn of(&self, len_bytes: u64) -> Cost {
        Costs::between(self.small, self.large, len_bytes)
    }

    /// The same, where a short and a long request take so much.
    pub fn between(small: Cost, large: Cost, len_bytes: u64) -> Cost {
        let beyond = len_bytes.saturating_sub(Costs::SMALL_BYTES) as f64;
        let part = beyond / (Costs::LARGE_BYTES - Costs::SMALL_BYTES) as f64;
        let between = |small: f64, large: f64| small + (large - small).max(0.0) * part;
        Cost {
            alone_ns: between(small.alone_ns, large.alone_ns),
            each_ns: between(small.each_ns, large.each_ns),
        }
    }

    /// Of a device of which only the prices are known.
    pub fn of_prices(cost: &CostTable) -> Costs {
        let of = |len: u64| {
            let each_ns = cost.price(Op::Read, len as usize).as_secs_f64() * 1e9;
            Cost {
                alone_ns: each_ns * PARALLEL_ASSUMED,
                each_ns,
            }
        };
        Costs {
            small: of(Costs::SMALL_BYTES),
            large: of(Costs::LARGE_BYTES),
            cpu_ns: 0.0,
        }
    }

    /// Reads whole blocks within a range of a device through queues that `queue` makes for a pool
    /// and a depth. Takes half a second at most, on a hard disk; reads that fail count as long as
    /// they took.
    ///
    /// Errors: where there is no memory or no queue.
    pub fn measure(
        within: Range<u64>,
        queue: impl FnOnce(&[Pool], u32) -> Result<Queue, MediaError>,
    ) -> Result<Costs, MediaError> {
        let pool = Pool::new(DEPTH, Costs::LARGE_BYTES as usize)?;
        let mut reader = Reader {
            queue: queue(std::slice::from_ref(&pool), DEPTH)?,
            pool,
            clock: TscClock::start(),
            within,
        };
        let mut of = |len_bytes| {
            let (alone_ns, _) = reader.mean_ns(len_bytes, READS_ALONE, 1);
            let (each_ns, cpu_ns) = reader.mean_ns(len_bytes, READS, DEPTH);
            let each_ns = each_ns.min(alone_ns);
            (Cost { alone_ns, each_ns }, cpu_ns)
        };
        let (small, cpu_ns) = of(Costs::SMALL_BYTES);
        let (large, _) = of(Costs::LARGE_BYTES);
        Ok(Costs {
            small,
            large,
            cpu_ns,
        })
    }
}

struct Reader {
    queue: Queue,
    pool: Pool,
    clock: TscClock,
    within: Range<u64>,
}

impl Reader {
    /// The mean time of one of so many reads with some at once, and of the processor's for it, in
    /// ns.
    fn mean_ns(&mut self, len_bytes: u64, reads: u64, depth: u32) -> (f64, f64) {
        let all = self.within.end - self.within.start;
        let len_bytes = len_bytes.min(all);
        let places = all / len_bytes;
        let (began, cpu_began_ns) = (self.clock.now(), thread_cpu_ns());
        let mut next = 0;
        loop {
            let goes_on = next < reads && self.clock.now().since(began) < TIME_MOST;
            if !goes_on && self.queue.in_flight() == 0 {
                break;
            }
            while goes_on && next < reads && self.queue.in_flight() < depth {
                let mut into = self.pool.take().expect("as many as are in flight");
                into.narrow(0..len_bytes as usize);
                let place = next * SCATTER % places;
                let at = self.within.start + place * len_bytes;
                let submitted = self.queue.submit(Request::Read { at, into }, 0);
                submitted.expect("it is deep enough");
                next += 1;
            }
            self.queue.rest();
            while self.queue.reap().is_some() {}
        }
        let mean = |ns: u64| (ns as f64 / next as f64).max(1.0);
        let took_ns = self.clock.now().since(began).0;
        (mean(took_ns), mean(thread_cpu_ns() - cpu_began_ns))
    }
}

fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_media::queue::{BlockFile, QueueShape, Through};
    use std::sync::Arc;

    #[test]
    fn costs_lie_on_a_line() {
        let cost = |alone_ns, each_ns| Cost { alone_ns, each_ns };
        let costs = Costs {
            small: cost(80_000.0, 5_000.0),
            large: cost(120_000.0, 30_000.0),
            cpu_ns: 0.0,
        };
        assert_eq!(costs.of(512), costs.small);
        assert_eq!(costs.of(64 << 10), costs.large);
        let middle = costs.of(34 << 10).alone_ns;
        assert!((99_000.0..101_000.0).contains(&middle), "{middle}");
    }

    #[test]
    fn a_file_is_measured_without_being_changed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("blocks");
        let bytes: Vec<u8> = (0..1u32 << 18).flat_map(u32::to_le_bytes).collect();
        std::fs::write(&path, &bytes).expect("room");
        let file = Arc::new(BlockFile::open(&path).expect("a file"));
        let through = Through::Auto;
        let costs = Costs::measure(4096..file.len_bytes(), |pools, depth| {
            Queue::new(&file, pools, QueueShape { depth, through })
        });
        let costs = costs.expect("a queue");
        assert!(costs.small.each_ns <= costs.small.alone_ns, "{costs:?}");
        assert!(costs.cpu_ns > 0.0, "{costs:?}");
        assert!(std::fs::read(&path).expect("a file") == bytes);
    }
}
