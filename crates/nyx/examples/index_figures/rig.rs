//! How an index is driven and what is noted: threads with keys drawn before, a latency for each
//! operation, medians over rounds.
//!
//! What it never does: choose what is compared.

use hdrhistogram::Histogram;
use nyx_base::{Clock, Rng, WorkerId};
use nyx_index::{Eras, Index, Ordered};
use nyx_media::pmem::distant::Distant;
use nyx_media::{Mapped, TscClock};
use nyx_sim::workload::zipf::Zipf;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::ops::ControlFlow;
use std::sync::Barrier;

/// Keys of a range.
const SCAN: usize = 100;
/// Operations between two turns of what is done behind.
const BATCH: usize = 64;
/// Of so many operations one is made before the clock runs, so that caches are as they stay.
const WARM_UP: usize = 4;
/// What takes longer counts as this long, in the quantiles.
const LATENCY_NS_MAX: u64 = 10_000_000_000;
/// Ranges take so much longer that fewer of them do.
const FEWER_SCANS: usize = 20;

/// Persistent memory as the indexes here have it.
pub(crate) type Memory<C> = Distant<Mapped, C>;

/// How time passes for threads that run together.
pub(crate) trait Pace: Clock + Clone {
    /// What a thread has while it is one of them.
    type Running;

    /// So many threads are about to begin.
    fn prepare(&self, threads: u16);

    /// This is one of them from now on; until what is returned is dropped.
    fn begin(&self, thread: u16) -> Self::Running;

    /// Waits for all of them.
    fn meet(&self, barrier: &Barrier);

    /// Between two operations: lets another thread have its turn where one is behind. Nothing is
    /// between `now` and the time that it tells but others' turns.
    fn turn(&self, now: u64) -> u64;

    /// CPU time of this thread, in nanoseconds.
    fn cpu_ns(&self) -> f64;
}

/// Real time passes for all alike.
impl Pace for TscClock {
    type Running = ();

    fn prepare(&self, _: u16) {}

    fn begin(&self, _: u16) {}

    fn meet(&self, barrier: &Barrier) {
        barrier.wait();
    }

    fn turn(&self, now: u64) -> u64 {
        now
    }

    fn cpu_ns(&self) -> f64 {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
    }
}

/// The `at`th of distinct keys in random order.
pub(crate) fn key(at: u64) -> u64 {
    let mut key = at.wrapping_mul(2).wrapping_add(1);
    key = (key ^ key >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    key = (key ^ key >> 27).wrapping_mul(0x81da_def4_bc2d_d44d);
    (key ^ key >> 33) >> 1
}

/// How keys are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Law {
    /// All alike.
    Uniform,
    /// Zipf's, with this exponent.
    Zipf(f64),
}

impl Law {
    fn draws(self, keys: u64, count: usize, seed: u64) -> Vec<u64> {
        let mut rng = Rng::with_seed(seed);
        match self {
            Law::Uniform => (0..count).map(|_| rng.u64(0..keys)).collect(),
            Law::Zipf(alpha) => {
                let zipf = Zipf::new(keys, alpha);
                (0..count).map(|_| zipf.sample(&mut rng)).collect()
            }
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Law::Uniform => "uniform",
            Law::Zipf(_) => "zipf",
        }
    }
}

/// What threads do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Work {
    /// So many percent of updates, the rest are look-ups.
    Points { writes_pct: u8 },
    /// Ranges.
    Ranges,
}

impl Work {
    pub(crate) fn name(self) -> String {
        match self {
            Work::Points { writes_pct: 0 } => "read".to_owned(),
            Work::Points { writes_pct: 100 } => "update".to_owned(),
            Work::Points { writes_pct } => format!("{writes_pct} % updates"),
            Work::Ranges => format!("range of {SCAN}"),
        }
    }
}

/// An index with what is to be done behind its requests.
pub(crate) struct Subject<'a, I> {
    pub(crate) index: &'a I,
    pub(crate) eras: &'a Eras,
    /// Makes what was put off, as a server's worker does between two batches.
    pub(crate) behind: &'a (dyn Fn(WorkerId) + Sync),
}

/// What was found: nanoseconds per operation.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Found {
    /// Latency, without what is done behind.
    pub(crate) mean_ns: f64,
    pub(crate) p50_ns: f64,
    pub(crate) p99_ns: f64,
    /// CPU time of the threads, all work.
    pub(crate) cpu_ns: f64,
    /// Wall time by operations of all threads, all work.
    pub(crate) wall_ns: f64,
    /// The share of hits, where there is a cache.
    pub(crate) hits: Option<f64>,
}

/// The median of each figure.
pub(crate) fn medians(rounds: &[Found]) -> Found {
    let of = |each: fn(&Found) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(each).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    Found {
        mean_ns: of(|found| found.mean_ns),
        p50_ns: of(|found| found.p50_ns),
        p99_ns: of(|found| found.p99_ns),
        cpu_ns: of(|found| found.cpu_ns),
        wall_ns: of(|found| found.wall_ns),
        hits: (rounds.iter().all(|found| found.hits.is_some()))
            .then(|| of(|found| found.hits.unwrap_or_default())),
    }
}

/// What one thread noted.
struct Noted {
    latencies: Histogram<u64>,
    sum_ns: u64,
    cpu_ns: f64,
    begin_ns: u64,
    end_ns: u64,
}

impl<I: Ordered> Subject<'_, I> {
    /// Runs `ops` operations of `work` on `threads` threads together, after a warm-up.
    pub(crate) fn run(
        &self,
        (keys, law): (u64, Law),
        work: Work,
        (ops, threads): (usize, u16),
        (seed, clock): (u64, &impl Pace),
    ) -> Found {
        let ops = match work {
            Work::Ranges => ops / FEWER_SCANS,
            Work::Points { .. } => ops,
        };
        let each = (ops / usize::from(threads)).max(BATCH);
        let barrier = Barrier::new(threads.into());
        clock.prepare(threads);
        let noted: Vec<Noted> = std::thread::scope(|scope| {
            let running = (0..threads).map(|thread| {
                let barrier = &barrier;
                let seed = seed * 100 + u64::from(thread);
                scope.spawn(move || {
                    let draws = law.draws(keys, each + each / WARM_UP, seed);
                    let (warm_up, counted) = draws.split_at(each / WARM_UP);
                    let worker = WorkerId(thread);
                    barrier.wait();
                    let _running = clock.begin(thread);
                    self.pass(worker, warm_up, work, clock);
                    clock.meet(barrier);
                    self.pass(worker, counted, work, clock)
                })
            });
            let running: Vec<_> = running.collect();
            let joined = running.into_iter().map(std::thread::ScopedJoinHandle::join);
            joined.map(|noted| noted.expect("no panic")).collect()
        });
        let ops = (each * usize::from(threads)) as f64;
        let mut all = noted[0].latencies.clone();
        noted[1..].iter().for_each(|other| all += &other.latencies);
        let begin = noted.iter().map(|noted| noted.begin_ns).min();
        let end = noted.iter().map(|noted| noted.end_ns).max();
        let wall = end.unwrap_or(0) - begin.unwrap_or(0);
        Found {
            mean_ns: noted.iter().map(|noted| noted.sum_ns).sum::<u64>() as f64 / ops,
            p50_ns: all.value_at_quantile(0.5) as f64,
            p99_ns: all.value_at_quantile(0.99) as f64,
            cpu_ns: noted.iter().map(|noted| noted.cpu_ns).sum::<f64>() / ops,
            wall_ns: wall as f64 / ops,
            hits: None,
        }
    }

    fn pass(&self, worker: WorkerId, draws: &[u64], work: Work, clock: &impl Pace) -> Noted {
        let mut noted = Noted {
            latencies: Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("bounds"),
            sum_ns: 0,
            cpu_ns: clock.cpu_ns(),
            begin_ns: clock.now().0,
            end_ns: 0,
        };
        let (mut last, mut writes) = (0, 0);
        for batch in draws.chunks(BATCH) {
            self.eras.enter(worker);
            let mut before = clock.now().0;
            for &draw in batch {
                // The next key depends on what was found, as no compiler or processor can know that
                // values are below 2^63.
                let key = key(draw + (last >> 63));
                last = match work {
                    Work::Ranges => sum(self.index, key),
                    Work::Points { writes_pct } => {
                        writes += u64::from(writes_pct);
                        match writes >= 100 {
                            true => {
                                writes -= 100;
                                let put = self.index.put(worker, key, draw);
                                put.expect("room").expect("it was put")
                            }
                            false => self.index.get(key).expect("sound").expect("it was put"),
                        }
                    }
                };
                let now = clock.now().0;
                noted.latencies.saturating_record(now - before);
                noted.sum_ns += now - before;
                before = clock.turn(now);
            }
            (self.behind)(worker);
        }
        self.eras.leave(worker);
        noted.end_ns = clock.now().0;
        noted.cpu_ns = clock.cpu_ns() - noted.cpu_ns;
        noted
    }
}

/// Puts all keys, and tells nanoseconds of CPU per key.
pub(crate) fn load<I: Index>(
    index: &I,
    (keys, clock): (u64, &impl Pace),
    eras: &Eras,
    behind: impl Fn(WorkerId),
) -> f64 {
    let (worker, before) = (WorkerId(0), clock.cpu_ns());
    for at in 0..keys {
        if at.is_multiple_of(BATCH as u64) {
            eras.enter(worker);
            behind(worker);
        }
        index.put(worker, key(at), at).expect("room");
    }
    eras.leave(worker);
    (clock.cpu_ns() - before) / keys as f64
}

/// The sum of a range's values, below 2^63.
pub(crate) fn sum<I: Ordered>(index: &I, from: u64) -> u64 {
    let (mut sum, mut left) = (0u64, SCAN);
    let each = |_, value: u64| {
        sum = sum.wrapping_add(value);
        left -= 1;
        match left {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    };
    index.scan(from..=u64::MAX, each).expect("sound");
    sum >> 1
}

/// Memory for so many keys in any of the indexes, whose lines are written back.
pub(crate) fn anonymous(keys: u64) -> Mapped {
    let memory = Mapped::anonymous(keys * 40 + (64 << 20)).expect("memory");
    memory.with_flushes(true)
}
