//! Random operations of several threads on a region, beside a model of what it holds: 200 runs,
//! each of another shape, some with a device that refuses requests.
//!
//! What it never does: depend on how the threads interleave; each has pages of its own.

use crate::rig::{PAGE, bytes, device, made, why};
use nyx_media::model::block::{BlockModel, BlockParams};
use nyx_media::queue::{BlockOp, Emulation, Refusals, Through};
use nyx_policy::paging::pager::{Counts, Prefetch, Why};
use nyx_policy::paging::pool::Rule;
use nyx_swap::region::{Device, Region, Shape};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

const RUNS: u64 = 200;
const OPERATIONS: usize = 250;
const PREFETCHES: [Prefetch; 5] = [
    Prefetch::Off,
    Prefetch::Cluster,
    Prefetch::Trend,
    Prefetch::Stream,
    Prefetch::Stream,
];

/// What a run's device does with requests.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moods {
    Well,
    /// Some writes are refused.
    Writes,
    /// Some writes and some reads are; then nobody touches what may not be had.
    Both,
    /// In the times of a model.
    Emulated,
}

struct Run {
    seed: u64,
    shape: Shape,
    pages: usize,
    threads: usize,
    mood: Moods,
    through: Through,
}

impl Run {
    fn draw(seed: u64) -> Run {
        let mut rng = fastrand::Rng::with_seed(seed);
        let pages = rng.usize(40..300);
        // 10 to 50 %, where that is enough for instructions.
        let limit = (pages * rng.usize(10..=50) / 100).max(16);
        let mut shape = Shape::new((pages * PAGE) as u64, (limit * PAGE) as u64);
        shape.prefetch = PREFETCHES[rng.usize(..PREFETCHES.len())];
        shape.pool = [Rule::Demand, Rule::Demand, Rule::Paper, Rule::Off][rng.usize(..4)];
        shape.handlers = [None, Some(1), Some(3)][rng.usize(..3)];
        let moods = [Moods::Well, Moods::Well, Moods::Writes, Moods::Both];
        Run {
            seed,
            shape,
            pages,
            threads: rng.usize(1..=3),
            mood: match seed % 40 {
                7 => Moods::Emulated,
                _ => moods[rng.usize(..4)],
            },
            through: match rng.u8(..4) {
                0 => Through::Threads,
                1 => Through::Calls,
                _ => Through::Auto,
            },
        }
    }

    fn device(&self) -> Device {
        let device = device(self.pages).through(self.through, self.through);
        let some = |seed| {
            let count = AtomicU64::new(seed);
            move || fastrand::Rng::with_seed(count.fetch_add(1, Relaxed)).u8(..5) == 0
        };
        let (is_write, is_read) = (some(self.seed), some(self.seed + 1));
        match self.mood {
            Moods::Well => device,
            Moods::Emulated => {
                let params = BlockParams::preset("optane-ssd").expect("known");
                let model = Emulation::new(BlockModel::new(params, self.seed));
                device.emulated(Arc::new(Mutex::new(model)))
            }
            mood => device.refusing(Refusals::new(move |op, _| {
                let is_refused = match op {
                    BlockOp::Read => mood == Moods::Both && is_read(),
                    _ => is_write(),
                };
                is_refused.then_some(libc::EIO)
            })),
        }
    }

    fn go(&self, region: &Region) -> Counts {
        std::thread::scope(|scope| {
            for number in 0..self.threads {
                scope.spawn(move || Worker::new(self, region, number).go());
            }
        });
        let counts = region.figures().counts;
        assert!(counts.failed == 0 || self.mood == Moods::Both, "{counts:?}");
        counts
    }
}

/// One thread and what it knows of its pages.
struct Worker<'a> {
    run: &'a Run,
    region: &'a Region,
    number: usize,
    rng: fastrand::Rng,
    /// What each page of this thread holds.
    model: Vec<Box<[u8; PAGE]>>,
    last: usize,
}

impl<'a> Worker<'a> {
    fn new(run: &'a Run, region: &'a Region, number: usize) -> Worker<'a> {
        let own = (run.pages - number).div_ceil(run.threads);
        Worker {
            run,
            region,
            number,
            rng: fastrand::Rng::with_seed(run.seed * 10 + number as u64),
            model: vec![Box::new([0; PAGE]); own],
            last: 0,
        }
    }

    /// Where one of this thread's pages lies.
    fn at(&self, own: usize) -> usize {
        (own * self.run.threads + self.number) * PAGE
    }

    /// One of its pages: the next, or any.
    fn pick(&mut self) -> usize {
        let own = self.model.len();
        self.last = match self.rng.u8(..4) {
            0 => self.rng.usize(..own),
            _ => (self.last + 1) % own,
        };
        self.last
    }

    fn go(mut self) {
        for _ in 0..OPERATIONS {
            let own = self.pick();
            match self.rng.u8(..20) {
                0..=6 if self.run.mood != Moods::Both => self.touch(own),
                0..=9 => self.read(own),
                10..=15 => self.write(own),
                16 => {
                    let at = self.at(own);
                    let kept = self.region.dont_need(at..at + PAGE);
                    assert_eq!(kept.ok(), Some(0), "nobody else fixes it");
                    self.model[own].fill(0);
                }
                17 => {
                    let begin = self.rng.usize(..self.region.len_bytes());
                    let len = self.rng.usize(1..=self.region.len_bytes() - begin);
                    let len = len.min(10 * PAGE);
                    self.region.will_need(begin..begin + len).expect("within");
                }
                _ => self.fix(own),
            }
            let resident = self.region.resident_bytes().expect("told");
            assert!(resident <= self.run.shape.limit_bytes, "{resident}");
        }
        for own in 0..self.model.len() {
            self.read(own);
        }
    }

    /// As a program does: a word is read, and another one sometimes written.
    fn touch(&mut self, own: usize) {
        let at = self.rng.usize(..PAGE / 8);
        let place = self.region.as_ptr().wrapping_add(self.at(own) + at * 8);
        // SAFETY: the word lies in the region, and threads reach it by atomics only.
        let word = unsafe { &*place.cast::<AtomicU64>() };
        let expected = self.model[own][at * 8..][..8].try_into().expect("eight");
        let found = word.load(Relaxed);
        assert_eq!(
            found,
            u64::from_le_bytes(expected),
            "own page {own}, word {at}"
        );
        if self.rng.bool() {
            let new = self.rng.u64(..);
            word.store(new, Relaxed);
            self.model[own][at * 8..][..8].copy_from_slice(&new.to_le_bytes());
        }
    }

    fn read(&mut self, own: usize) {
        let mut into = [0; PAGE];
        self.retry(|region, at| region.read_at(at, &mut into), own);
        assert!(into == *self.model[own], "own page {own}");
    }

    fn write(&mut self, own: usize) {
        let begin = self.rng.usize(..PAGE);
        let end = self.rng.usize(begin..=PAGE);
        let from = match self.rng.u8(..8) {
            0 => [0; PAGE],
            _ => bytes(own, self.rng.u64(..1000)),
        };
        let part = &from[begin..end];
        self.retry(|region, at| region.write_at(at + begin, part), own);
        self.model[own][begin..end].copy_from_slice(part);
    }

    fn fix(&mut self, own: usize) {
        let at = self.at(own);
        match self.region.fix(at..at + PAGE) {
            Ok(fixed) => {
                // Not on the way of a fault, and still there.
                self.read(own);
                drop(fixed);
            }
            Err(error) => self.excuse(&error, own),
        }
    }

    /// Again, where the device refused and is known to.
    fn retry(
        &self,
        mut what: impl FnMut(&Region, usize) -> Result<(), nyx_swap::region::RegionError>,
        own: usize,
    ) {
        while let Err(error) = what(self.region, self.at(own)) {
            self.excuse(&error, own);
        }
    }

    fn excuse(&self, error: &nyx_swap::region::RegionError, own: usize) {
        assert_eq!(self.run.mood, Moods::Both, "{error}");
        assert_eq!(why(error), (self.at(own), Why::Unreadable), "{error}");
    }
}

#[test]
fn it_holds_what_a_model_holds_in_200_runs_of_random_operations() {
    let mut seen = Vec::new();
    for seed in 0..RUNS {
        let run = Run::draw(seed);
        let region = Region::with(run.shape, &run.device());
        let Some(region) = made("it_holds_what_a_model_holds", region) else {
            return;
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.go(&region)));
        let counts = result.unwrap_or_else(|panic| {
            let Run {
                shape,
                mood,
                threads,
                ..
            } = run;
            eprintln!("run {seed}: {shape:?}, {mood:?}, {threads} threads");
            std::panic::resume_unwind(panic)
        });
        seen.push(counts);
        // It goes with whatever is on its way: pages that are written, and some read ahead.
        region.will_need(0..region.len_bytes()).expect("within");
    }
    // All of it happened, and often.
    let sum = |of: fn(&Counts) -> u64| seen.iter().map(of).sum::<u64>();
    for (what, least, happened) in [
        (
            "faults that read",
            10_000,
            sum(|counts| counts.major_faults),
        ),
        (
            "faults that did not",
            5_000,
            sum(|counts| counts.minor_faults),
        ),
        ("pages taken back", 1_000, sum(|counts| counts.kept)),
        (
            "pages read ahead and wanted",
            1_000,
            sum(|counts| counts.ahead_hits),
        ),
        ("pages mapped ahead", 100, sum(|counts| counts.mapped_ahead)),
        ("zeros ahead", 100, sum(|counts| counts.zeros_ahead)),
        (
            "writes allowed ahead",
            100,
            sum(|counts| counts.allowed_ahead),
        ),
        ("writes", 5_000, sum(|counts| counts.writes)),
        ("inline reclaims", 100, sum(|counts| counts.inline_reclaims)),
        ("refusals", 500, sum(|counts| counts.refused)),
        ("failures", 100, sum(|counts| counts.failed)),
    ] {
        println!("{what}: {happened}");
        assert!(happened >= least, "{what}: {happened}");
    }
}
