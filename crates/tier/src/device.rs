//! A deep device as all of its tenants and workers share it.
//!
//! What it never does: carry out a request; that is a [`crate::Hand`]'s.
//!
//! *Thread safety*: shared; counters and drills are atomics.

use crate::costs::Costs;
use nyx_base::{CachePadded, Instant, Nanos};
use nyx_gate::CostTable;
use nyx_media::queue::{BLOCK_BYTES, DeepFile, Emulation, Pool, Queue, QueueShape, Through};
use nyx_media::{Evidence, MediaError};
use nyx_policy::nhc::InFlight;
use std::fmt;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed,
};
use std::sync::{Arc, Mutex};

/// Writes that fail in a row until nothing is written any more for a while.
const FAILURES_MOST: u32 = 4;
/// How long that is at first; each time that it ends in vain it is twice as long.
const REST_MIN: Nanos = Nanos::from_secs(1);
/// Doublings of that, at most.
const REST_DOUBLINGS_MOST: u32 = 6;

/// One deep device.
pub struct Deep {
    /// Its name in configuration and figures.
    pub name: String,
    /// Its prices.
    pub cost: CostTable,
    /// What requests take of it.
    pub costs: Costs,
    /// Breaks it, for tests and drills.
    pub drill: Drill,
    file: DeepFile,
    through: Through,
    model: Option<Arc<Mutex<Emulation>>>,
    health: Health,
    in_flight: Flights,
}

/// What is to go wrong with a device, for tests and drills. Nothing, where it is made.
#[derive(Debug, Default)]
pub struct Drill {
    read_error: AtomicI32,
    write_error: AtomicI32,
    stalls: AtomicBool,
}

/// What all workers have on their way. On a line of its own: who chooses a device reads it.
#[derive(Debug, Default)]
struct Flights {
    count: CachePadded<AtomicU64>,
    /// The sum of what each takes of the device, in ns.
    each_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct Health {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    read_errors: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    write_errors: AtomicU64,
    /// Writes that failed in a row.
    failures: AtomicU32,
    /// How often in a row it was left alone.
    rests: AtomicU32,
    /// Nothing is written before.
    rests_until: AtomicU64,
}

/// What was done on a deep device since it was opened, by all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeepFigures {
    /// Reads that were done.
    pub reads: u64,
    /// Bytes of those, whole blocks.
    pub read_bytes: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes that were done.
    pub writes: u64,
    /// Bytes of those.
    pub written_bytes: u64,
    /// Writes that failed.
    pub write_errors: u64,
}

impl fmt::Debug for Deep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.file.blocks().path();
        write!(f, "Deep({:?}, {})", self.name, path.display())
    }
}

impl Deep {
    /// One over a file; with a model, requests take as long as the model says, at least.
    pub fn new(
        name: String,
        file: DeepFile,
        cost: CostTable,
        through: Through,
        model: Option<Emulation>,
    ) -> Deep {
        Deep {
            name,
            costs: Costs::of_prices(&cost),
            cost,
            drill: Drill::default(),
            file,
            through,
            model: model.map(|model| Arc::new(Mutex::new(model))),
            health: Health::default(),
            in_flight: Flights::default(),
        }
    }

    /// Its file.
    pub fn file(&self) -> &DeepFile {
        &self.file
    }

    /// What its figures are worth.
    pub fn evidence(&self) -> Evidence {
        match self.model {
            Some(_) => Evidence::Emulated,
            None => Evidence::Real,
        }
    }

    /// What was done.
    pub fn figures(&self) -> DeepFigures {
        let health = &self.health;
        DeepFigures {
            reads: health.reads.load(Relaxed),
            read_bytes: health.read_bytes.load(Relaxed),
            read_errors: health.read_errors.load(Relaxed),
            writes: health.writes.load(Relaxed),
            written_bytes: health.written_bytes.load(Relaxed),
            write_errors: health.write_errors.load(Relaxed),
        }
    }

    /// Whether something may be written: not for a while after several writes have failed in a row.
    pub fn takes_writes(&self, now: Instant) -> bool {
        self.health.failures.load(Acquire) < FAILURES_MOST
            || self.health.rests_until.load(Relaxed) <= now.0
    }

    /// Whether its queues are polled and have no events.
    pub(crate) fn is_polled(&self) -> bool {
        self.through == Through::UringPolled && self.model.is_none()
    }

    /// A queue of one worker's to it.
    pub(crate) fn queue(&self, pools: &[Pool], depth: u32) -> Result<Queue, MediaError> {
        let shape = QueueShape {
            depth,
            through: self.through,
        };
        match &self.model {
            None => Queue::new(self.file.blocks(), pools, shape),
            Some(model) => Queue::emulated(self.file.blocks(), pools, shape, model),
        }
    }

    /// Where a range of its bytes lies in whole blocks: where those begin on the device, how long
    /// they are, and where in them the range begins.
    ///
    /// Panics where the range leaves the device.
    pub(crate) fn blocks_of(&self, at: u64, len: usize) -> (u64, usize, usize) {
        let end = at + len as u64;
        let max = self.file.len_bytes();
        assert!(
            end <= max,
            "bytes {at}..{end} of a deep device of {max} bytes"
        );
        let begin = at - at % BLOCK_BYTES;
        let blocks = end.next_multiple_of(BLOCK_BYTES) - begin;
        let from = self.file.begin_bytes() + begin;
        (from, blocks as usize, (at - begin) as usize)
    }

    /// What is on its way.
    pub fn in_flight(&self) -> InFlight {
        InFlight {
            count: self.in_flight.count.load(Relaxed) as u32,
            each_ns: self.in_flight.each_ns.load(Relaxed) as f64,
        }
    }

    /// A request of that many bytes is set off; when it is expected to be done, in ns from now.
    pub(crate) fn set_off(&self, bytes: usize) -> f64 {
        let cost = self.costs.of(bytes as u64);
        let expected_ns = cost.expected_ns(self.in_flight().each_ns);
        self.in_flight.count.fetch_add(1, Relaxed);
        let each_ns = cost.each_ns as u64;
        self.in_flight.each_ns.fetch_add(each_ns, Relaxed);
        expected_ns
    }

    /// It is done, or has failed.
    pub(crate) fn come_back(&self, bytes: usize) {
        let each_ns = self.costs.of(bytes as u64).each_ns as u64;
        self.in_flight.count.fetch_sub(1, Relaxed);
        self.in_flight.each_ns.fetch_sub(each_ns, Relaxed);
    }

    pub(crate) fn count_read(&self, bytes: usize, is_done: bool) {
        if is_done {
            self.health.reads.fetch_add(1, Relaxed);
            self.health.read_bytes.fetch_add(bytes as u64, Relaxed);
        } else {
            self.health.read_errors.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn count_write(&self, bytes: usize, is_done: bool, now: Instant) {
        let health = &self.health;
        if is_done {
            health.writes.fetch_add(1, Relaxed);
            health.written_bytes.fetch_add(bytes as u64, Relaxed);
            if health.failures.load(Relaxed) != 0 {
                health.rests.store(0, Relaxed);
                health.failures.store(0, Relaxed);
            }
            return;
        }
        health.write_errors.fetch_add(1, Relaxed);
        let failures = 1 + health.failures.fetch_add(1, Relaxed);
        let rests_until = health.rests_until.load(Relaxed);
        // What was on its way when a rest began makes it no longer.
        if failures >= FAILURES_MOST && rests_until <= now.0 {
            let doublings = health.rests.load(Relaxed).min(REST_DOUBLINGS_MOST);
            let until = now + Nanos(REST_MIN.0 << doublings);
            let ends = &health.rests_until;
            let begins = ends.compare_exchange(rests_until, until.0, Relaxed, Relaxed);
            health.rests.fetch_add(u32::from(begins.is_ok()), Relaxed);
        }
    }
}

impl Drill {
    /// Reads fail from now on with this number of the system's; with none they do no longer.
    pub fn fail_reads(&self, os_error: Option<i32>) {
        self.read_error.store(os_error.unwrap_or(0), Relaxed);
    }

    /// Writes fail from now on.
    pub fn fail_writes(&self, os_error: Option<i32>) {
        self.write_error.store(os_error.unwrap_or(0), Relaxed);
    }

    /// Whether requests take for ever from now on, or are told of.
    pub fn stall(&self, stalls: bool) {
        self.stalls.store(stalls, Relaxed);
    }

    pub(crate) fn read_error(&self) -> Option<i32> {
        Some(self.read_error.load(Relaxed)).filter(|&error| error != 0)
    }

    pub(crate) fn write_error(&self) -> Option<i32> {
        Some(self.write_error.load(Relaxed)).filter(|&error| error != 0)
    }

    pub(crate) fn is_stalled(&self) -> bool {
        self.stalls.load(Relaxed)
    }
}
