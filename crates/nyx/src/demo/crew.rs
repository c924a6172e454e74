//! The threads that play: each is a worker of the engine and serves clients of every tenant, as a
//! server's worker does.
//!
//! Latencies are counted from the moment at which a request was due, so that a request that waited
//! for its thread is not forgotten. What the machine did meanwhile is not the device's fault: where
//! a thread lost its CPU to something else, the requests that it was late for are set aside, and
//! counted as such.
//!
//! What it never does: sleep, so each thread keeps a CPU busy.
//!
//! *Thread safety*: a [`Board`] is shared; each thread writes its own tallies, and the show drains
//! them. *Invariant*: no lock is held while a request is executed.

use super::cast::{Act, Pace, Part, TENANTS};
use super::stage::Stage;
use hdrhistogram::Histogram;
use nyx_base::{CachePadded, Counter, Instant, Nanos, Rng};
use nyx_engine::Worker;
use nyx_sim::client::Client;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A thread that had no CPU for this long has lost it; shorter gaps are interrupts.
const LOST_MIN: Nanos = Nanos::from_micros(50);
/// So many batches of one tenant are served before it is the next one's turn: what has become due
/// meanwhile is served together, as a server serves all connections that are ready.
const TURN: usize = 16;
/// A tenant that waits for the controller is asked again after one of its ticks.
const TICK: Nanos = Nanos::from_millis(10);
const LATENCY_NS_MAX: u64 = 10_000_000_000;

/// What one thread did for one tenant since it was last looked at.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// From due to answered.
    pub(crate) latency_ns: Histogram<u64>,
    /// Requests answered.
    pub(crate) ops: u64,
    /// Those of them whose latency was set aside.
    pub(crate) aside: u64,
}

impl Tally {
    /// Nothing.
    pub(crate) fn new() -> Tally {
        let latency_ns = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 2)
            .expect("constant bounds that the histogram accepts");
        Tally {
            latency_ns,
            ops: 0,
            aside: 0,
        }
    }

    /// Adds what `other` counted.
    pub(crate) fn add(&mut self, other: &Tally) {
        self.latency_ns
            .add(&other.latency_ns)
            .expect("all latency histograms have the same bounds");
        self.ops += other.ops;
        self.aside += other.aside;
    }

    /// Counts requests that were answered together; without a latency they are set aside.
    fn count(&mut self, ops: u64, latency: Option<Nanos>) {
        self.ops += ops;
        match latency {
            Some(latency) => self.latency_ns.saturating_record_n(latency.0, ops),
            None => self.aside += ops,
        }
    }

    /// Adds itself to `sum` and starts again from nothing.
    fn drain_into(&mut self, sum: &mut Tally) {
        sum.add(self);
        self.latency_ns.reset();
        (self.ops, self.aside) = (0, 0);
    }
}

/// What the threads and the show tell each other.
pub(crate) struct Board {
    act: AtomicU8,
    over: AtomicBool,
    seats: Vec<CachePadded<Seat>>,
}

/// What one thread tells.
struct Seat {
    /// By tenant.
    tallies: [Mutex<Tally>; TENANTS],
    /// Time for which it had no CPU.
    lost_ns: Counter,
}

impl Board {
    /// For so many threads.
    pub(crate) fn new(threads: u16) -> Board {
        let seat = || Seat {
            tallies: std::array::from_fn(|_| Mutex::new(Tally::new())),
            lost_ns: Counter::new(),
        };
        Board {
            act: AtomicU8::new(Act::Quiet as u8),
            over: AtomicBool::new(false),
            seats: (0..threads).map(|_| CachePadded(seat())).collect(),
        }
    }

    /// Begins an act.
    pub(crate) fn begin(&self, act: Act) {
        self.act.store(act as u8, Relaxed);
    }

    /// Sends everybody home.
    pub(crate) fn end(&self) {
        self.over.store(true, Relaxed);
    }

    /// What all threads did for a tenant since the last call.
    pub(crate) fn drain(&self, tenant: usize) -> Tally {
        let mut sum = Tally::new();
        for seat in &self.seats {
            lock(&seat.tallies[tenant]).drain_into(&mut sum);
        }
        sum
    }

    /// How long a thread has had no CPU so far, on average.
    pub(crate) fn lost(&self) -> Nanos {
        let lost: u64 = self.seats.iter().map(|seat| seat.lost_ns.get()).sum();
        Nanos(lost / self.seats.len().max(1) as u64)
    }

    fn noise(&self) -> bool {
        self.act.load(Relaxed) != Act::Quiet as u8
    }
}

/// A tally that a panic elsewhere left half counted is still a tally.
fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notices when the calling thread loses its CPU: time goes by that it was not charged for.
struct Watch<'s> {
    stage: &'s Stage,
    now: Instant,
    cpu: Nanos,
    resumed: Instant,
    lost: Nanos,
}

impl<'s> Watch<'s> {
    fn start(stage: &'s Stage) -> Watch<'s> {
        let now = stage.clock.now();
        Watch {
            stage,
            now,
            cpu: cpu(),
            resumed: now,
            lost: Nanos::ZERO,
        }
    }

    /// Looks at the clock again; says whether the CPU was lost since the last look.
    fn look(&mut self) -> bool {
        let (now, cpu) = (self.stage.clock.now(), cpu());
        let off_ns = now.since(self.now).0.saturating_sub(cpu.0 - self.cpu.0);
        (self.now, self.cpu) = (now, cpu);
        let lost = off_ns > LOST_MIN.0;
        if lost {
            self.resumed = now;
            self.lost = self.lost + Nanos(off_ns);
        }
        lost
    }
}

fn cpu() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// One tenant's clients on one thread.
struct Caller {
    client: Client,
    /// Between batches of a paced tenant, on average; nothing where it is greedy.
    gap_ns: Option<f64>,
    /// When the batch in hand was due.
    due: Instant,
    /// When to ask for what is left of it.
    ask: Instant,
}

impl Caller {
    fn new(part: &Part, thread: u16, threads: u16, now: Instant) -> Caller {
        let gap_ns = match part.pace {
            Pace::PerSecond(ops) => Some(1e9 * part.load.batch as f64 * f64::from(threads) / ops),
            Pace::Greedy => None,
        };
        let seed = u64::from(thread) << 16 | u64::from(part.load.tenant.0);
        Caller {
            client: Client::new(part.load.clone(), seed),
            gap_ns,
            due: now,
            ask: now,
        }
    }

    /// Asks for what is due, and notes how long it took.
    fn call(
        &mut self,
        worker: &mut Worker,
        watch: &mut Watch<'_>,
        rng: &mut Rng,
    ) -> (u64, Option<Nanos>) {
        self.due = self.due.max(watch.resumed);
        let before = self.client.done().ops;
        let stage = watch.stage;
        let wait = self.client.step(&stage.engine, worker, stage.at(watch.now));
        let lost = watch.look();
        let latency = (!lost).then(|| watch.now.since(self.due));
        if let Some(until) = wait {
            self.ask = until.min(watch.now + TICK);
        } else {
            self.due = match self.gap_ns {
                // Random arrivals: the time to the next is exponential.
                Some(gap_ns) => self.due + Nanos((-(1.0 - rng.f64()).ln() * gap_ns) as u64),
                None => watch.now,
            };
            self.ask = self.due;
        }
        (self.client.done().ops - before, latency)
    }
}

/// Serves every tenant's clients until the end. `thread` counts from 0.
pub(crate) fn work(stage: &Stage, parts: &[Part; TENANTS], board: &Board, thread: u16) {
    let mut worker = stage.worker(thread);
    let mut rng = Rng::with_seed(u64::from(thread));
    let mut watch = Watch::start(stage);
    let threads = stage.engine.workers();
    let mut callers = parts
        .each_ref()
        .map(|part| Caller::new(part, thread, threads, watch.now));
    let seat = &board.seats[usize::from(thread)];
    while !board.over.load(Relaxed) {
        let noise = board.noise();
        for (caller, tally) in callers.iter_mut().zip(&seat.tallies) {
            let greedy = caller.gap_ns.is_none();
            if greedy && !noise {
                (caller.due, caller.ask) = (watch.now, watch.now);
                continue;
            }
            for _ in 0..if greedy { 1 } else { TURN } {
                if caller.ask > watch.now {
                    break;
                }
                let (ops, latency) = caller.call(&mut worker, &mut watch, &mut rng);
                lock(tally).count(ops, latency);
            }
        }
        watch.look();
        seat.lost_ns.add(std::mem::take(&mut watch.lost).0);
    }
    worker.leave();
}

/// Stores every tenant's values, before anybody counts.
pub(crate) fn fill(stage: &Stage, parts: &[Part; TENANTS]) {
    let mut worker = stage.worker(0);
    for part in parts {
        let now = stage.at(stage.clock.now());
        Client::new(part.load.clone(), 0).fill(&stage.engine, &mut worker, now);
    }
}

#[cfg(test)]
mod tests {
    use super::super::cast::{NOISY, cast};
    use super::super::stage::{Medium, modelled};
    use super::*;

    /// Not how fast, which is the machine's affair, but who was served at all.
    #[test]
    fn the_noisy_tenant_is_silent_in_the_first_act_only() {
        let device = modelled("optane-2dimm/8").expect("a preset");
        let parts = cast(&device);
        let loads: Vec<_> = parts.iter().map(|part| ("t", part.load.clone())).collect();
        let stage = Stage::new(Medium::Modelled(&device), &loads, 1).expect("memory");
        fill(&stage, &parts);
        let board = Board::new(1);
        let served = |act, tenant: usize| {
            board.begin(act);
            let end = stage.clock.now() + Nanos::from_secs(10);
            let mut sum = Tally::new();
            while sum.ops == 0 && stage.clock.now() < end {
                sum.add(&board.drain(tenant));
            }
            assert_eq!(sum.latency_ns.len() + sum.aside, sum.ops);
            sum.ops
        };
        std::thread::scope(|scope| {
            scope.spawn(|| work(&stage, &parts, &board, 0));
            assert!(served(Act::Quiet, 0) > 0 && served(Act::Quiet, 1) > 0);
            assert_eq!(board.drain(NOISY).ops, 0);
            assert!(served(Act::Free, NOISY) > 0);
            board.end();
        });
    }
}
