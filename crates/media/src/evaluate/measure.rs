//! Evaluates a target in real time: threads in a closed loop, each pinned to a processor where that
//! is allowed. A point is measured in short rounds; each begins at one moment for all threads, who
//! spin until then, and ends for each with the access that is under way when its time is over. The
//! median of the rounds counts.
//!
//! A round in which a thread lost its processor says what the machine did, not the target, and is
//! left out; where threads outnumber processors, or accesses sleep, it cannot be told and rounds
//! are long enough to have all of it in them.
//!
//! A copy goes to or from a buffer of the thread that has the size of the access, as in a server;
//! buffers larger than a cache make the processor write twice. The loop's own time, some
//! nanoseconds, is part of a reading ([`crate::evaluate`] takes nothing away).
//!
//! It **overwrites the target**. It never sleeps, and no read is one that a compiler can leave out:
//! copies are assembly or system calls.
//!
//! *Thread safety*: threads share the target, a barrier, and when a round begins: a word that one
//! of them writes between two meetings of all at the barrier.

use super::{FENCED_BYTES, Flow, Order, Plan, Point, ROUNDS_LEAST, Reading, Sheet, Target, Work};
use crate::Front;
use crate::profile::{median, pin};
use nyx_base::{Clock, Instant, Nanos, Rng};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Buffers begin at a page, which direct access to a disk asks for.
const PAGE_BYTES: usize = 4096;
/// Between two looks at the clock so many accesses are made,
const BURST: usize = 16;
/// but no more than of so many bytes.
const BURST_BYTES: usize = 4096;

/// From its announcement to the begin of a round: time for all threads to wake up.
const WAKING: Nanos = Nanos::from_micros(100);
/// A thread that had less of its processor than this part of a round lost it.
const KEPT_LEAST: f64 = 0.95;
/// The begin of no round: the point is done.
const OVER: u64 = u64::MAX;

/// Measures `points` of `plan` on a target whose pages the caller has touched, and tells of each
/// reading. The clock counts real nanoseconds. An error where an access failed.
///
/// Panics where the target is smaller than the largest access.
pub fn measure(
    target: &dyn Target,
    clock: &dyn Clock,
    plan: &Plan,
    points: &[Point],
    progress: &mut dyn FnMut(&Reading),
) -> io::Result<Sheet> {
    let mut readings = Vec::new();
    for &point in points {
        for reading in read_point(target, clock, plan, point)? {
            progress(&reading);
            readings.push(reading);
        }
    }
    Ok(Sheet {
        evidence: target.evidence(),
        readings,
    })
}

/// What one thread did in one round.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    accesses: u64,
    /// From the begin of the round, for all threads, to the end of this one's last access.
    took: Nanos,
    /// Whether it had its processor all the time.
    is_kept: bool,
}

/// When rounds of a point begin and end.
struct Rounds<'a> {
    clock: &'a dyn Clock,
    barrier: Barrier,
    begin: AtomicU64,
    length: Nanos,
    point: Nanos,
    /// Whether a lost processor is the machine's doing.
    is_told: bool,
}

impl Rounds<'_> {
    /// The begin of the next round, which is the first after `before` rounds that began at `first`;
    /// none where the point is done. All threads call it, and all get the same.
    fn next(&self, before: usize, first: Instant) -> Option<Instant> {
        if self.barrier.wait().is_leader() {
            let now = self.clock.now();
            let is_over = before >= ROUNDS_LEAST && now.since(first) >= self.point;
            let begin = if is_over { OVER } else { (now + WAKING).0 };
            self.begin.store(begin, Relaxed);
        }
        self.barrier.wait();
        Some(Instant(self.begin.load(Relaxed))).filter(|begin| begin.0 != OVER)
    }
}

/// The readings of a point: one for each of its flows.
fn read_point(
    target: &dyn Target,
    clock: &dyn Clock,
    plan: &Plan,
    point: Point,
) -> io::Result<Vec<Reading>> {
    let flows = std::iter::once(point.flow).chain(point.beside);
    let of_thread: Vec<Flow> = flows
        .flat_map(|flow| std::iter::repeat_n(flow, flow.threads))
        .collect();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let is_told = of_thread.len() <= cpus && !target.sleeps();
    let rounds = Rounds {
        clock,
        barrier: Barrier::new(of_thread.len()),
        begin: AtomicU64::new(OVER),
        length: match is_told {
            true => Nanos(plan.round_ns),
            false => Nanos(plan.point_ns / ROUNDS_LEAST as u64),
        },
        point: Nanos(plan.point_ns),
        is_told,
    };
    let done: Vec<io::Result<Vec<Done>>> = std::thread::scope(|scope| {
        let worker = |(thread, &flow): (usize, &Flow)| {
            let rounds = &rounds;
            scope.spawn(move || {
                pin(thread);
                Worker::new(target, clock, flow, thread).work(rounds)
            })
        };
        let workers: Vec<_> = of_thread.iter().enumerate().map(worker).collect();
        let joined = workers.into_iter().map(|one| one.join().expect("a worker"));
        joined.collect()
    });
    let done = done.into_iter().collect::<io::Result<Vec<_>>>()?;
    let (counted, is_quiet) = counted(&done, rounds.is_told);
    let of = |flow, beside, threads| Reading {
        is_quiet,
        ..reading(flow, beside, threads, &counted)
    };
    let (own, others) = done.split_at(point.flow.threads);
    let mut readings = vec![of(point.flow, point.beside, own)];
    if let Some(beside) = point.beside {
        readings.push(of(beside, Some(point.flow), others));
    }
    Ok(readings)
}

/// The rounds that count: those in which every thread kept its processor, if that can be told and
/// there are enough of them, or else all; and whether they are what they should be.
fn counted(threads: &[Vec<Done>], is_told: bool) -> (Vec<usize>, bool) {
    let all: Vec<usize> = (0..threads[0].len()).collect();
    if !is_told {
        return (all, true);
    }
    let is_kept = |round: &usize| threads.iter().all(|rounds| rounds[*round].is_kept);
    let kept: Vec<usize> = all.iter().copied().filter(is_kept).collect();
    match kept.len() >= ROUNDS_LEAST {
        true => (kept, true),
        false => (all, false),
    }
}

/// Puts together what the threads of a flow did in these rounds.
fn reading(flow: Flow, beside: Option<Flow>, threads: &[Vec<Done>], rounds: &[usize]) -> Reading {
    let round = |&at: &usize| {
        let all = || threads.iter().map(move |rounds| rounds[at]);
        let accesses: u64 = all().map(|done| done.accesses).sum();
        let took: u64 = all().map(|done| done.took.0).sum();
        let rate = |done: Done| done.accesses as f64 / done.took.as_secs_f64();
        let bytes_per_s = all().map(rate).sum::<f64>() * flow.bytes as f64;
        (took as f64 / accesses as f64, bytes_per_s)
    };
    let (mut latencies, rates): (Vec<f64>, Vec<f64>) = rounds.iter().map(round).unzip();
    let middle = |values: &[f64]| median(values).expect("a round");
    let latency_ns = middle(&latencies);
    latencies.sort_by(f64::total_cmp);
    let quarter = latencies.len() / 4;
    let between = latencies[latencies.len() - 1 - quarter] - latencies[quarter];
    Reading {
        flow,
        beside,
        latency_ns,
        bytes_per_s: middle(&rates),
        spread: between / latency_ns,
        rounds: rounds.len(),
        is_quiet: true,
    }
}

/// How long this thread had a processor.
fn cpu_time() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Bytes that begin at a page.
#[derive(Debug)]
pub(super) struct Buffer {
    whole: Vec<u8>,
    from: usize,
    len: usize,
}

impl Buffer {
    /// `len` bytes, all touched.
    pub(super) fn new(len: usize) -> Buffer {
        let whole = vec![1; len + PAGE_BYTES];
        let from = whole.as_ptr().align_offset(PAGE_BYTES);
        Buffer { whole, from, len }
    }

    #[inline]
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.whole[self.from..self.from + self.len]
    }
}

/// One closed-loop thread.
struct Worker<'a> {
    target: &'a dyn Target,
    clock: &'a dyn Clock,
    flow: Flow,
    burst: usize,
    fence_bytes: usize,
    slots: u64,
    /// The next place of a sequence.
    slot: u64,
    buffer: Buffer,
    front: Front,
    rng: Rng,
    /// Zero, which the compiler does not know.
    nothing: u64,
}

impl Worker<'_> {
    fn new<'a>(
        target: &'a dyn Target,
        clock: &'a dyn Clock,
        flow: Flow,
        thread: usize,
    ) -> Worker<'a> {
        let slots = target.len_bytes() / flow.bytes as u64;
        assert!(
            slots > 0,
            "an access of {} bytes to {} bytes",
            flow.bytes,
            target.len_bytes()
        );
        Worker {
            target,
            clock,
            flow,
            burst: (BURST_BYTES / flow.bytes).clamp(1, BURST),
            fence_bytes: match flow.work {
                Work::WriteFenced => FENCED_BYTES,
                _ => flow.bytes,
            },
            slots,
            slot: slots * (thread % flow.threads) as u64 / flow.threads as u64,
            buffer: Buffer::new(flow.bytes),
            front: Front::default(),
            rng: Rng::with_seed((flow.bytes * 1000 + thread) as u64),
            nothing: std::hint::black_box(0),
        }
    }

    /// All rounds. A thread whose access failed goes on meeting the others at the barrier.
    fn work(mut self, rounds: &Rounds<'_>) -> io::Result<Vec<Done>> {
        let mut failed = Ok(());
        let mut done = Vec::new();
        let first = self.clock.now();
        let mut before = 0;
        while let Some(begin) = rounds.next(before, first) {
            if failed.is_ok() {
                match self.round(begin, rounds.length) {
                    Ok(one) => done.push(one),
                    Err(error) => failed = Err(error),
                }
            }
            before += 1;
        }
        failed.map(|()| done)
    }

    /// Works from `begin` on for `length`, at least one burst.
    fn round(&mut self, begin: Instant, length: Nanos) -> io::Result<Done> {
        self.clock.spin_until(begin);
        let cpu_before = cpu_time();
        let mut accesses = 0;
        loop {
            for _ in 0..self.burst {
                self.access()?;
            }
            accesses += self.burst as u64;
            if self.clock.now().since(begin) >= length {
                self.target.settle(&mut self.front);
                let took = self.clock.now().since(begin);
                let cpu = cpu_time().0.saturating_sub(cpu_before.0);
                return Ok(Done {
                    accesses,
                    took,
                    is_kept: cpu as f64 >= KEPT_LEAST * took.0 as f64,
                });
            }
        }
    }

    #[inline]
    fn access(&mut self) -> io::Result<()> {
        let (at, buffer) = (self.next(), self.buffer.bytes());
        match self.flow.work {
            Work::Write | Work::WriteFenced => {
                let (target, fence_bytes) = (self.target, self.fence_bytes);
                target.write(&mut self.front, at, buffer, fence_bytes)
            }
            Work::Read => self.target.read(&mut self.front, at, buffer),
            Work::ReadChained => {
                self.target.read(&mut self.front, at, buffer)?;
                self.target.settle(&mut self.front);
                Ok(())
            }
        }
    }

    /// Where the next access goes. That of a chained read depends on the bytes of the one before.
    #[inline]
    fn next(&mut self) -> u64 {
        let slot = match self.flow.order {
            Order::Random => self.rng.u64(0..self.slots),
            Order::Sequential => {
                let slot = self.slot;
                self.slot = if slot + 1 == self.slots { 0 } else { slot + 1 };
                slot
            }
        };
        let chained = match self.flow.work {
            Work::ReadChained => {
                let bytes = self.buffer.bytes();
                u64::from(bytes[0] ^ bytes[bytes.len() - 1]) & self.nothing
            }
            _ => 0,
        };
        (slot + chained) * self.flow.bytes as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::{Part, SIZES_BYTES};
    use crate::model::Params;
    use crate::profile::Effort;
    use crate::{Emulated, Evidence, Mapped, TscClock};
    use nyx_base::Instant;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    fn flow(work: Work, order: Order, bytes: usize, threads: usize) -> Flow {
        Flow {
            work,
            order,
            bytes,
            threads,
        }
    }

    /// Notes what it is asked, and takes 100 ns for an access.
    #[derive(Default)]
    struct Notes {
        now: AtomicU64,
        reads: std::sync::Mutex<Vec<u64>>,
        writes: std::sync::Mutex<Vec<(u64, usize)>>,
        fails: bool,
    }

    impl Clock for Notes {
        fn now(&self) -> Instant {
            Instant(self.now.load(Relaxed))
        }
        fn spin_until(&self, until: Instant) {
            self.now.fetch_max(until.0, Relaxed);
        }
    }

    impl Target for Notes {
        fn len_bytes(&self) -> u64 {
            1 << 12
        }
        fn evidence(&self) -> Evidence {
            Evidence::Simulated
        }
        fn sleeps(&self) -> bool {
            // Its clock is not the processor's.
            true
        }
        fn read(&self, _: &mut Front, at: u64, _: &mut [u8]) -> io::Result<()> {
            self.now.fetch_add(100, Relaxed);
            self.reads.lock().expect("a lock").push(at);
            match self.fails {
                true => Err(io::ErrorKind::BrokenPipe.into()),
                false => Ok(()),
            }
        }
        fn write(&self, _: &mut Front, at: u64, _: &[u8], fence_bytes: usize) -> io::Result<()> {
            self.now.fetch_add(100, Relaxed);
            let mut writes = self.writes.lock().expect("a lock");
            writes.push((at, fence_bytes));
            Ok(())
        }
    }

    fn plan() -> Plan {
        Plan::of(Effort::Quick, 1).lasting(Nanos(50_000), 1)
    }

    fn alone(flow: Flow) -> Point {
        Point { flow, beside: None }
    }

    #[test]
    fn a_reading_is_what_the_clock_says() {
        let notes = Notes::default();
        let point = alone(flow(Work::Read, Order::Random, 256, 1));
        let [reading] = read_point(&notes, &notes, &plan(), point).expect("read")[..] else {
            panic!("one flow");
        };
        assert_eq!((reading.latency_ns, reading.spread), (100.0, 0.0));
        assert!((reading.bytes_per_s - 256.0 / 100e-9).abs() < 1.0);
        let reads = notes.reads.lock().expect("a lock");
        assert!(reads.len() >= 500, "five rounds of 10 us");
        assert!(reads.iter().all(|at| at % 256 == 0 && at + 256 <= 4096));
        assert!((0..16).all(|slot| reads.contains(&(slot * 256))));
    }

    #[test]
    fn a_sequence_goes_round_and_a_fenced_write_says_where_its_fences_are() {
        let notes = Notes::default();
        let sequence = alone(flow(Work::ReadChained, Order::Sequential, 512, 1));
        read_point(&notes, &notes, &plan(), sequence).expect("read");
        let reads = notes.reads.lock().expect("a lock");
        let expected: Vec<u64> = (0..9).map(|i| i % 8 * 512).collect();
        assert_eq!(&reads[..9], &expected);
        for (work, fence_bytes) in [(Work::Write, 1024), (Work::WriteFenced, FENCED_BYTES)] {
            let point = alone(flow(work, Order::Random, 1024, 1));
            read_point(&notes, &notes, &plan(), point).expect("written");
            let writes = notes.writes.lock().expect("a lock");
            assert_eq!(writes.last().expect("some").1, fence_bytes);
        }
    }

    #[test]
    fn a_failed_access_ends_it_with_its_error() {
        let notes = Notes {
            fails: true,
            ..Notes::default()
        };
        let both = Point {
            flow: Flow::mixed(Work::Read, 2),
            beside: Some(Flow::mixed(Work::Write, 2)),
        };
        let error = measure(&notes, &notes, &plan(), &[both], &mut |_| {}).expect_err("it fails");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn latencies_are_means_over_threads_and_bandwidths_sums() {
        let threads = [
            vec![done(10, 1000), done(10, 1000), done(10, 9000)],
            vec![done(30, 1000), done(30, 1000), done(30, 9000)],
        ];
        let of = flow(Work::Read, Order::Random, 64, 2);
        let reading = reading(of, None, &threads, &[0, 1, 2]);
        assert_eq!((reading.latency_ns, reading.rounds), (50.0, 3));
        assert!((reading.bytes_per_s - 40.0 * 64.0 / 1e-6).abs() < 1.0);
        assert_eq!(reading.spread, 8.0, "450 ns in the worst of three rounds");
    }

    fn done(accesses: u64, took: u64) -> Done {
        Done {
            accesses,
            took: Nanos(took),
            is_kept: took <= 1000,
        }
    }

    #[test]
    fn rounds_in_which_a_processor_was_lost_are_left_out_while_enough_are_left() {
        let kept = vec![done(1, 1000); 7];
        let mut lost = kept.clone();
        (lost[1], lost[4]) = (done(1, 9000), done(1, 9000));
        let threads = [kept.clone(), lost.clone()];
        assert_eq!(counted(&threads, true), (vec![0, 2, 3, 5, 6], true));
        assert_eq!(counted(&threads, false), ((0..7).collect(), true));
        lost[0] = done(1, 9000);
        assert_eq!(counted(&[kept, lost], true), ((0..7).collect(), false));
    }

    /// The whole of it on real memory and on a modelled device, as short as it can be.
    #[test]
    fn memory_and_a_modelled_device_can_be_evaluated() {
        let clock = Arc::new(TscClock::start());
        let plan = Plan::of(Effort::Quick, 2).lasting(Nanos::from_millis(1), 1000);
        let points: Vec<Point> = plan
            .points(Part::Whole)
            .into_iter()
            .filter(|point| point.flow.bytes <= 4096)
            .collect();
        let medium = Arc::new(Mapped::anonymous(4 << 20).expect("memory"));
        medium.pretouch(1);
        let mut told = 0;
        let real = measure(&medium, &*clock, &plan, &points, &mut |_| told += 1).expect("memory");
        assert_eq!((real.evidence, told), (Evidence::Real, real.readings.len()));
        let params = Params::resolve("ull-ssd").expect("a preset");
        let emulated = Emulated::in_real_time(medium, params, clock.clone());
        let emulated = measure(&emulated, &*clock, &plan, &points, &mut |_| {}).expect("a model");
        assert_eq!(emulated.evidence, Evidence::Emulated);
        for one in real.readings.iter().chain(&emulated.readings) {
            assert!(one.latency_ns > 0.0 && one.bytes_per_s > 0.0, "{one:?}");
        }
        let read = flow(Work::ReadChained, Order::Random, SIZES_BYTES[0], 1);
        let page = emulated.get(read, None).expect("it was measured");
        assert!(page.latency_ns >= 8_900.0, "a page takes 8.9 us: {page:?}");
    }
}
