//! Idle latencies and latency prices of a medium in real time: a victim on one processor,
//! aggressors at random intervals on the others. Short rounds without and with aggressors
//! alternate, so that what the machine does meanwhile meets both; aggressors without a task are as
//! busy as with one, so that the device makes the whole difference and not what a busy processor
//! does to another.
//!
//! A burst of accesses that took several times as long as most is the machine's doing, which gave
//! the processor to somebody else, and is left out.
//!
//! What it never does: run where there is one processor only, because then nobody can use the
//! device at the same time as the victim; or go on for long where the machine is so busy that
//! nothing comes of it. The profile then goes without.
//!
//! *Thread safety*: all share one word that the victim's thread alone writes: which half of which
//! round it is. Once begun nobody waits for anybody, so that a thread that lost its processor holds
//! up none.

use super::{BURST, Plan, Worker, pin};
use crate::profile::latency::{Round, median};
use crate::profile::{Delays, Latency, MEASURED_SHARE, PROBED_BYTES, STEP_BYTES, VICTIM_BYTES};
use crate::{Media, Op};
use nyx_base::{Clock, Instant, Nanos, Rng};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// There are so many times as many rounds as for MaxIOPS,
const ROUNDS: usize = 2;
/// and each half of one is so many times as short as one of those.
const SHORTER: u64 = 9;
/// Accesses in a burst on the idle device, few so that they find its buffers empty.
const IDLE_BURST: usize = 4;
/// After it the device rests for so many times the device time that it used.
const REST: f64 = 20.0;
/// A burst that took so many times the median is left out.
const DISTURBED: u64 = 8;
/// On a busy machine a contest takes at most so many times as long as on a quiet one.
const OVERTIME: u64 = 2;
/// The half of no round: the contest is over.
const OVER: usize = usize::MAX;
/// An aggressor that is more than so many intervals late does not catch up.
const LATE_MOST: f64 = 16.0;

/// Everything that [`Latency`] holds. None where there is one processor only, where no aggressor
/// came to use anything, or where it is not done at `until`. `curves` has the rates of every size.
pub(super) fn latency(
    medium: &dyn Media,
    clock: &dyn Clock,
    plan: &Plan,
    curves: &[Vec<(f64, usize)>; 2],
    until: Instant,
) -> Option<Latency> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let aggressors = processors.checked_sub(1).filter(|&n| n > 0)?;
    let mut both = [Delays::default(), Delays::default()];
    for ((op, curve), delays) in [Op::Read, Op::Write].into_iter().zip(curves).zip(&mut both) {
        for bytes in PROBED_BYTES {
            if clock.now() > until {
                return None;
            }
            let max_ops_per_s = curve[bytes / STEP_BYTES - 1].0;
            let contest = Contest {
                medium,
                clock,
                half: Nanos(plan.round.0 / SHORTER),
                rounds: ROUNDS * plan.rounds,
                op,
                bytes,
                aggressors,
                max_ops_per_s,
            };
            delays.push(contest.idle_ns()?, &contest.run())?;
        }
    }
    Some(Latency::new(both))
}

/// One kind and size of aggressors against the victim.
struct Contest<'a> {
    medium: &'a dyn Media,
    clock: &'a dyn Clock,
    half: Nanos,
    rounds: usize,
    op: Op,
    bytes: usize,
    aggressors: usize,
    max_ops_per_s: f64,
}

impl Contest<'_> {
    fn worker(&self, op: Op, bytes: usize, thread: usize) -> Worker<'_> {
        Worker::new(self.medium, self.clock, op, bytes, thread)
    }

    /// The median over the rounds of one such access alone.
    fn idle_ns(&self) -> Option<f64> {
        let mut worker = self.worker(self.op, self.bytes, 0);
        let rest_s = REST * IDLE_BURST as f64 / self.max_ops_per_s;
        let rest = Nanos((rest_s * 1e9) as u64);
        let mut round = || worker.bursts(self.half, IDLE_BURST, rest).mean_ns();
        let rounds: Vec<f64> = (0..self.rounds / ROUNDS).map(|_| round()).collect();
        let clock_ns = clock_ns(self.clock) / IDLE_BURST as f64;
        median(&rounds).map(|ns| (ns - clock_ns).max(0.0))
    }

    fn run(&self) -> Vec<Round> {
        let (ready, half) = (Barrier::new(self.aggressors + 1), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let aggressors: Vec<_> = (1..=self.aggressors)
                .map(|thread| {
                    let (ready, half) = (&ready, &half);
                    scope.spawn(move || self.attack_all(thread, ready, half))
                })
                .collect();
            // The victim's thread is one of its own, because it is pinned.
            let victim = scope.spawn(|| self.suffer_all(&ready, &half));
            let suffered = victim.join().expect("the victim");
            let ops: Vec<Vec<u64>> = aggressors
                .into_iter()
                .map(|one| one.join().expect("an aggressor"))
                .collect();
            let round = |(at, [without, with]): (usize, [Bursts; 2])| {
                let ops: u64 = ops.iter().map(|of| of[at]).sum();
                Round {
                    without_ns: without.mean_ns(),
                    with_ns: with.mean_ns(),
                    share: ops as f64 / with.length.as_secs_f64() / self.max_ops_per_s,
                }
            };
            suffered.into_iter().enumerate().map(round).collect()
        })
    }

    /// What the victim suffers without and with aggressors, round by round; fewer where the machine
    /// is so busy that they take much longer than they should.
    fn suffer_all(&self, ready: &Barrier, half: &AtomicUsize) -> Vec<[Bursts; 2]> {
        pin(0);
        let mut victim = self.worker(Op::Read, VICTIM_BYTES, 0);
        let mut next = || {
            let bursts = victim.bursts(self.half, BURST, Nanos::ZERO);
            half.fetch_add(1, Relaxed);
            bursts
        };
        ready.wait();
        let nominal = 2 * self.half.0 * self.rounds as u64;
        let end = self.clock.now() + Nanos(OVERTIME * nominal);
        let mut suffered = vec![[next(), next()]];
        while suffered.len() < self.rounds && self.clock.now() < end {
            suffered.push([next(), next()]);
        }
        half.store(OVER, Relaxed);
        suffered
    }

    /// How often one aggressor accessed the device, round by round.
    fn attack_all(&self, thread: usize, ready: &Barrier, half: &AtomicUsize) -> Vec<u64> {
        pin(thread);
        let mut worker = self.worker(self.op, self.bytes, thread);
        let mut intervals = Rng::with_seed(thread as u64);
        let ops_per_s = MEASURED_SHARE * self.max_ops_per_s / self.aggressors as f64;
        let late_most = Nanos((LATE_MOST / ops_per_s * 1e9) as u64);
        let mut ops = vec![0; self.rounds];
        ready.wait();
        let mut due = self.clock.now();
        loop {
            let interval_s = -(1.0 - intervals.f64()).ln() / ops_per_s;
            due += Nanos((interval_s * 1e9).round() as u64);
            self.clock.spin_until(due);
            let half = half.load(Relaxed);
            match ops.get_mut(half / 2) {
                None => return ops,
                Some(ops) if half % 2 == 1 => {
                    worker.access();
                    *ops += 1;
                }
                Some(_) => {}
            }
            let now = self.clock.now();
            if now.since(due) > late_most {
                due = now;
            }
        }
    }
}

/// Bursts of accesses, each alone.
struct Bursts {
    /// How many accesses each has.
    accesses: usize,
    took_ns: Vec<u64>,
    /// From the begin of the first to the end of the last.
    length: Nanos,
}

impl Bursts {
    /// The mean latency of an access, without the bursts that the machine disturbed.
    fn mean_ns(&self) -> f64 {
        let mut took_ns = self.took_ns.clone();
        took_ns.sort_unstable();
        let most = DISTURBED * took_ns[took_ns.len() / 2];
        let kept = took_ns.partition_point(|&ns| ns <= most);
        let sum: u64 = took_ns[..kept].iter().sum();
        sum as f64 / (kept * self.accesses) as f64
    }
}

/// What one reading of the clock takes.
fn clock_ns(clock: &dyn Clock) -> f64 {
    let mut pairs: Vec<u64> = (0..100)
        .map(|_| clock.now())
        .map(|begin| clock.now().since(begin).0)
        .collect();
    pairs.sort_unstable();
    pairs[pairs.len() / 2] as f64
}

impl Worker<'_> {
    /// Bursts of accesses, at least one, for about `length`, with a rest after each.
    fn bursts(&mut self, length: Nanos, accesses: usize, rest: Nanos) -> Bursts {
        let start = self.clock.now();
        let mut took_ns = Vec::with_capacity(4096);
        loop {
            let begin = self.clock.now();
            (0..accesses).for_each(|_| self.access_alone());
            let end = self.clock.now();
            took_ns.push(end.since(begin).0);
            let length_now = end.since(start);
            if length_now >= length {
                return Bursts {
                    accesses,
                    took_ns,
                    length: length_now,
                };
            }
            if rest > Nanos::ZERO {
                self.clock.spin_until(end + rest);
            }
        }
    }

    /// An access whose bytes have arrived before the next begins: its address depends on them, and
    /// a modelled device is waited for.
    #[inline]
    fn access_alone(&mut self) {
        let bytes = self.buffer[0] ^ self.buffer[self.buffer.len() - 1];
        let nothing = u64::from(bytes) & self.nothing;
        let at = (self.rng.u64(0..self.slots) + nothing) * self.buffer.len() as u64;
        self.access_at(at);
        self.medium.settle(&mut self.front);
    }
}
