//! The profile of a medium in real time: threads in a closed loop at random addresses, the best
//! rate over several numbers of threads, each rate the median of several short rounds.
//!
//! It **overwrites the medium**. It never sleeps and never takes longer than its effort says, by
//! more than the time of one operation per thread and round.

use super::{Best, Effort, Identity, Profile, Progress, STEP_BYTES, STEPS, sweep};
use crate::{Front, Media, Op, Via};
use nyx_base::{Clock, Nanos, Rng};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::Barrier;

mod victim;

/// Operations between two looks at the clock.
const BURST: usize = 16;
/// Latencies take at most so much of the time that MaxIOPS took, and half of it on a quiet machine.
const LATENCY_PERCENT: u64 = 30;
/// The sizes that a quick profile measures.
const QUICK_BYTES: [usize; 7] = [64, 128, 256, 512, 1024, 2048, 4096];

/// What an effort comes to for one point.
struct Plan {
    sizes: Vec<usize>,
    rounds: usize,
    round: Nanos,
}

impl Plan {
    fn of(effort: Effort) -> Plan {
        let all = || (1..=STEPS).map(|step| step * STEP_BYTES).collect();
        let (sizes, rounds, round) = match effort {
            Effort::Quick => (QUICK_BYTES.to_vec(), 5, Nanos::from_millis(8)),
            Effort::Normal => (all(), 5, Nanos::from_millis(12)),
            Effort::Full => (all(), 9, Nanos::from_millis(30)),
        };
        Plan {
            sizes,
            rounds,
            round,
        }
    }
}

/// Profiles `medium`, whose pages the caller has touched, and which is 4 KiB or more. The clock
/// counts real nanoseconds. Writes go past the cache where the medium gains by it.
///
/// Panics where the medium is smaller than 4 KiB.
pub fn measure(
    medium: &dyn Media,
    device: Identity,
    clock: &dyn Clock,
    effort: Effort,
    progress: &mut dyn FnMut(Progress),
) -> Profile {
    let largest = (STEPS * STEP_BYTES) as u64;
    assert!(
        medium.len() >= largest,
        "a medium of {} bytes cannot be profiled",
        medium.len()
    );
    let (plan, counts) = (Plan::of(effort), thread_counts());
    let rate = |op, bytes, threads| point(medium, clock, &plan, op, bytes, threads);
    let begin = clock.now();
    let best = sweep(&plan.sizes, &counts, progress, rate);
    let curves = best.map(|measured| interpolate(&measured));
    let now = clock.now();
    let until = now + Nanos(now.since(begin).0 * LATENCY_PERCENT / 100);
    let latency = victim::latency(medium, clock, &plan, &curves, until);
    Profile::assemble(
        device,
        medium.evidence(),
        effort,
        counts,
        plan.sizes,
        curves,
        latency,
    )
}

/// 1, 2, 4, ... and the number of processors that this process may use.
fn thread_counts() -> Vec<usize> {
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let mut counts: Vec<usize> = std::iter::successors(Some(1), |n| Some(n * 2))
        .take_while(|&n| n < most)
        .collect();
    counts.push(most);
    counts
}

/// The median over the rounds of what all threads together did in a second.
fn point(
    medium: &dyn Media,
    clock: &dyn Clock,
    plan: &Plan,
    op: Op,
    bytes: usize,
    threads: usize,
) -> f64 {
    let barrier = Barrier::new(threads);
    let rates: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    pin(thread);
                    let mut worker = Worker::new(medium, clock, op, bytes, thread);
                    let mut round = || {
                        barrier.wait();
                        worker.round(plan.round)
                    };
                    (0..plan.rounds).map(|_| round()).collect()
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker"))
            .collect()
    });
    let sum = |round: usize| rates.iter().map(|thread| thread[round]).sum();
    let mut sums: Vec<f64> = (0..plan.rounds).map(sum).collect();
    sums.sort_by(f64::total_cmp);
    sums[plan.rounds / 2]
}

/// Best effort: a thread that may not be pinned floats.
pub(crate) fn pin(thread: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .collect();
    if let Some(&cpu) = cpus.get(thread % cpus.len().max(1)) {
        let mut one = CpuSet::new();
        one.set(cpu);
        let _ = sched_setaffinity(None, &one);
    }
}

/// One closed-loop thread.
struct Worker<'a> {
    medium: &'a dyn Media,
    clock: &'a dyn Clock,
    op: Op,
    slots: u64,
    buffer: Vec<u8>,
    front: Front,
    rng: Rng,
    /// Zero, which the compiler does not know.
    nothing: u64,
}

impl Worker<'_> {
    fn new<'a>(
        medium: &'a dyn Media,
        clock: &'a dyn Clock,
        op: Op,
        bytes: usize,
        thread: usize,
    ) -> Worker<'a> {
        let (slots, buffer) = (medium.len() / bytes as u64, vec![1; bytes]);
        let rng = Rng::with_seed((bytes * 1000 + thread) as u64);
        Worker {
            medium,
            clock,
            op,
            slots,
            buffer,
            front: Front::default(),
            rng,
            nothing: std::hint::black_box(0),
        }
    }

    /// Works for `length`; returns operations per second.
    fn round(&mut self, length: Nanos) -> f64 {
        let start = self.clock.now();
        let mut ops = 0;
        loop {
            (0..BURST).for_each(|_| self.access());
            ops += BURST;
            let took = self.clock.now().since(start);
            if took >= length {
                return ops as f64 / took.as_secs_f64();
            }
        }
    }

    #[inline]
    fn access(&mut self) {
        let at = self.rng.u64(0..self.slots) * self.buffer.len() as u64;
        self.access_at(at);
    }

    #[inline]
    fn access_at(&mut self, at: u64) {
        match self.op {
            Op::Read => self.medium.read(&mut self.front, at, &mut self.buffer),
            Op::Write => self
                .medium
                .write(&mut self.front, at, &self.buffer, Via::NonTemporal),
        }
    }
}

/// Rates of all sizes from those of some, which begin with the smallest size and end with the
/// largest: the time of an operation is taken as linear between two measured sizes, so that it
/// never leaves the range of its neighbours.
fn interpolate(measured: &[Best]) -> Vec<(f64, usize)> {
    let at = |bytes: usize| {
        let above = measured
            .iter()
            .position(|&(size, _)| size >= bytes)
            .expect("up to the largest");
        let (size, (rate, threads)) = measured[above];
        if size == bytes {
            return (rate, threads);
        }
        let (below_size, (below_rate, _)) = measured[above - 1];
        let part = (bytes - below_size) as f64 / (size - below_size) as f64;
        let time = (1.0 - part) / below_rate + part / rate;
        (1.0 / time, threads)
    };
    (1..=STEPS).map(|step| at(step * STEP_BYTES)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn interpolation_keeps_what_was_measured_and_never_overshoots(
            rates in proptest::collection::vec(1.0f64..1e9, QUICK_BYTES.len())
        ) {
            let rates = rates.iter().map(|&rate| (rate, 1));
            let measured: Vec<_> = QUICK_BYTES.into_iter().zip(rates).collect();
            let all = interpolate(&measured);
            prop_assert_eq!(all.len(), STEPS);
            for pair in measured.windows(2) {
                let ((from, (a, _)), (to, (b, _))) = (pair[0], pair[1]);
                prop_assert_eq!(all[from / STEP_BYTES - 1].0, a);
                prop_assert_eq!(all[to / STEP_BYTES - 1].0, b);
                for bytes in (from..to).step_by(STEP_BYTES) {
                    let rate = all[bytes / STEP_BYTES - 1].0;
                    let (low, high) = (a.min(b), a.max(b));
                    prop_assert!(rate >= low * (1.0 - 1e-9) && rate <= high * (1.0 + 1e-9));
                }
            }
        }
    }

    #[test]
    fn thread_counts_end_with_all_processors() {
        let counts = thread_counts();
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        assert_eq!((counts[0], counts[counts.len() - 1]), (1, all));
        assert!(
            counts.windows(2).all(|pair| pair[0] < pair[1]),
            "{counts:?}"
        );
    }

    /// A medium that takes a known time in a virtual clock, so that the arithmetic is exact.
    #[test]
    fn a_round_counts_operations_per_second() {
        use crate::emulate::tests::Virtual;
        use crate::model::Params;
        use crate::{Emulated, Mapped};
        use std::sync::Arc;
        let clock = Arc::new(Virtual::default());
        let params = Params::resolve("ull-ssd").expect("a preset");
        let medium = Mapped::anonymous(1 << 20).expect("memory");
        let device = Emulated::in_virtual_time(medium, params, clock.clone());
        let mut worker = Worker::new(&device, &*clock, Op::Read, 64, 0);
        let rate = worker.round(Nanos::from_millis(100));
        assert!(
            (rate - 1e9 / 8900.0).abs() < 1.0,
            "one page read in 8.9 us, {rate}/s"
        );
    }
}
