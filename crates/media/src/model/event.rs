//! The device model as an event simulation in virtual time: the reference for the O(1) model and
//! the only one from which tails are claimed. Partitions with queues, reads first, writes in
//! batches of K, at most M reads past a waiting batch, a buffer of Q lines per module (NyxCache
//! section 2.2, tables and figures 1 to 3).
//!
//! A [`Device`] is driven from outside: it asks its [`Threads`] what each of them does next, tells
//! them what is done, and moves as far in time as it is told. [`run`] is the simplest driver:
//! threads in a closed loop or with Poisson arrivals, and what they saw.
//!
//! What it never does: touch memory, read a clock, or give two results for one seed. Numbers from
//! here are *simulated*.

use super::{Params, TICKS_PER_NS, ticks};
use nyx_base::{DevicePs, Rng};

mod device;
mod partition;
mod queue;
mod worker;

pub use device::{Device, Next, Threads};

/// What a simulated thread does in one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Ordinary loads.
    Load,
    /// Ordinary loads, each of which needs what the one before brought.
    LoadDependent,
    /// Loads with the prefetcher switched off.
    LoadNoPrefetch,
    /// Non-temporal loads.
    LoadNt,
    /// Ordinary stores: lines are filled first and evicted later.
    Store,
    /// Ordinary stores, each followed by a flush of its lines.
    StoreClwb,
    /// Non-temporal stores.
    StoreNt,
}

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// How it accesses the device.
    pub access: Access,
    /// How many bytes, at least one.
    pub op_bytes: u64,
}

/// One simulated thread: operations of one kind and size at random addresses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thread {
    /// What it does.
    pub access: Access,
    /// On how many bytes at a time, at least one.
    pub op_bytes: u64,
    /// How often, as a Poisson process; none for a closed loop.
    pub ops_per_s: Option<f64>,
}

/// What one thread saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Completed operations per second.
    pub ops_per_s: f64,
    /// Bytes of those per second.
    pub bytes_per_s: f64,
    /// Mean latency from the intended start; not a number where nothing was completed.
    pub latency_ns_mean: f64,
    /// Its 99th percentile; not a number where nothing was completed.
    pub latency_ns_p99: f64,
}

/// The outcome of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// In the order of the threads.
    pub threads: Vec<Seen>,
    /// Device time used; a second of it is a second in which every partition is busy.
    pub busy: DevicePs,
}

/// The addresses of one thread lie in so many bytes.
const SPAN_BYTES: u64 = 10 << 30;

/// Runs `threads` against an idle device for `length_ns`, of which the first tenth warms up and
/// is not counted.
pub fn run(params: &Params, threads: &[Thread], length_ns: u64, seed: u64) -> Outcome {
    let kinds: Vec<Kind> = threads.iter().map(Thread::kind).collect();
    let mut device = Device::new(params, &kinds, threads.len(), seed);
    device.set_writers(threads.iter().filter(|t| t.access.writes()).count());
    let end = ticks(length_ns as f64);
    let mut free = Free {
        counted_from: end / 10,
        threads: threads.iter().map(|&spec| FreeThread::new(spec)).collect(),
    };
    for thread in 0..threads.len() {
        device.wake(thread, 0);
    }
    device.advance(end + 1, &mut free);
    let counted_ns = length_ns as f64 * 0.9;
    let seen = free.threads.iter_mut().map(|one| one.seen(counted_ns));
    Outcome {
        threads: seen.collect(),
        busy: device.busy(),
    }
}

/// Threads that nobody governs; the `n`-th does operations of the `n`-th kind.
struct Free {
    counted_from: u64,
    threads: Vec<FreeThread>,
}

struct FreeThread {
    spec: Thread,
    /// When the next operation is to begin, where it is an open loop.
    next_start: u64,
    latencies: Vec<u64>,
}

impl Threads for Free {
    fn next(&mut self, thread: usize, now: u64, rng: &mut Rng) -> Next {
        let one = &mut self.threads[thread];
        if one.next_start > now {
            return Next::At(one.next_start);
        }
        let bytes = one.spec.op_bytes;
        let address = rng.u64(0..SPAN_BYTES / bytes) * bytes;
        let start = match one.spec.ops_per_s {
            None => now,
            Some(rate) => {
                let start = one.next_start;
                let pause = -(1.0 - rng.f64()).ln() / rate * 1e9;
                one.next_start = start + ticks(pause);
                start
            }
        };
        Next::Begin {
            kind: thread,
            address,
            tag: start,
        }
    }

    fn done(&mut self, thread: usize, tag: u64, now: u64) {
        if now >= self.counted_from {
            self.threads[thread].latencies.push(now - tag);
        }
    }
}

impl FreeThread {
    fn new(spec: Thread) -> FreeThread {
        FreeThread {
            spec,
            next_start: 0,
            latencies: Vec::new(),
        }
    }

    fn seen(&mut self, counted_ns: f64) -> Seen {
        self.latencies.sort_unstable();
        let count = self.latencies.len();
        let ns = |ticks: u64| ticks as f64 / TICKS_PER_NS as f64;
        let ops_per_s = count as f64 / counted_ns * 1e9;
        let rank = (count * 99 / 100).min(count.saturating_sub(1));
        Seen {
            ops_per_s,
            bytes_per_s: ops_per_s * self.spec.op_bytes as f64,
            latency_ns_mean: self.latencies.iter().map(|&l| ns(l)).sum::<f64>() / count as f64,
            latency_ns_p99: self.latencies.get(rank).map_or(f64::NAN, |&l| ns(l)),
        }
    }
}

impl Thread {
    fn kind(&self) -> Kind {
        Kind {
            access: self.access,
            op_bytes: self.op_bytes,
        }
    }
}

impl Access {
    fn writes(self) -> bool {
        matches!(self, Access::Store | Access::StoreClwb | Access::StoreNt)
    }

    /// Stores whose lines the thread brings to the device itself, one after the other.
    fn is_serial(self) -> bool {
        matches!(self, Access::StoreClwb | Access::StoreNt)
    }
}

#[cfg(test)]
mod tests;
