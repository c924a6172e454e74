//! What each mode does with a write and a miss, seen from outside: which device was asked, what is
//! cached, what is dirty; and what becomes of both when the deep device fails.

mod rig;

use nyx_base::{Clock, Instant, Rng};
use nyx_block::geometry::STRIPE_BYTES;
use nyx_block::{Cache, Costs, Geometry, Mode, Outcome, Piece, Refusal, Router, Verb};
use nyx_media::queue::{BlockError, BlockOp, Pool, Request};
use nyx_policy::nhc::Nhc;
use rig::{BLOCK, CrashDeep, CrashFast, fill};
use std::sync::Arc;

struct Still;

impl Clock for Still {
    fn now(&self) -> Instant {
        Instant(0)
    }
    fn spin_until(&self, _until: Instant) {}
}

/// A cache of four lines of 8 KiB before an image of 64 KiB, asked for one thing at a time.
struct Bench {
    cache: Cache<CrashFast>,
    deep: CrashDeep,
    pool: Pool,
    /// What the deep device was asked for since it was looked at last.
    asked: Vec<BlockOp>,
    os_error: Option<i32>,
}

impl Bench {
    fn new(mode: Mode, nhc: Nhc) -> Bench {
        let geometry = Geometry::of(8192, 4, 65_536).expect("sound");
        let fast = CrashFast::new(geometry.fast_bytes() as usize);
        let costs = Costs::default();
        let controller = costs.controller(nhc);
        let router = Router::new(controller, costs, Arc::new(Still), Rng::with_seed(1));
        let mut cache = Cache::open(fast, geometry, mode, router, true).expect("empty");
        cache.clean_from(Pool::new(4, STRIPE_BYTES as usize).expect("memory"));
        Bench {
            cache,
            deep: CrashDeep::new(65_536),
            pool: Pool::new(4, STRIPE_BYTES as usize).expect("memory"),
            asked: Vec::new(),
            os_error: None,
        }
    }

    fn ask(&mut self, verb: Verb, blocks: std::ops::Range<usize>, value: u64) -> Outcome {
        let bytes = blocks.start * BLOCK..blocks.end * BLOCK;
        let mut buffer = self.pool.take().expect("one");
        if verb == Verb::Write {
            fill(&mut buffer[bytes.clone()], value);
        }
        self.cache.submit(Piece {
            token: 1,
            verb,
            at: bytes.start as u64,
            len_bytes: bytes.len() as u64,
            buffer,
            spare: None,
        });
        self.outcome()
    }

    fn flush(&mut self) -> Result<(), Refusal> {
        self.cache.flush(2);
        self.outcome().result
    }

    fn outcome(&mut self) -> Outcome {
        loop {
            self.cache.barrier();
            if let Some(outcome) = self.cache.outcome() {
                return outcome;
            }
            assert!(self.carry_out(), "it waits for nothing");
        }
    }

    fn carry_out(&mut self) -> bool {
        let Some(command) = self.cache.command() else {
            return false;
        };
        let is_done = self.os_error.is_none();
        let (op, buffer) = match command.request {
            Request::Read { at, mut into } => {
                self.deep.read(at, &mut into);
                (BlockOp::Read, Some(into))
            }
            Request::Write { at, from, .. } => {
                self.deep.write(at, &from, || is_done);
                (BlockOp::Write, Some(from))
            }
            Request::Zero { at, len_bytes } => {
                let zeroes = vec![0; len_bytes as usize];
                self.deep.write(at, &zeroes, || is_done);
                (BlockOp::Zero, None)
            }
            Request::Flush => (BlockOp::Flush, None),
        };
        self.asked.push(op);
        let (at, len_bytes, os_error) = (0, 0, self.os_error);
        let error = BlockError {
            op,
            at,
            len_bytes,
            os_error,
        };
        let result = if is_done { Ok(()) } else { Err(error) };
        self.cache.complete(command.tag, buffer, result);
        true
    }

    /// Writes everything back, as far as the deep device lets us.
    fn clean(&mut self) {
        self.cache.resume_cleaning();
        self.cache.clean(0);
        self.cache.barrier();
        while self.carry_out() {
            self.cache.barrier();
        }
    }

    fn write(&mut self, blocks: std::ops::Range<usize>, value: u64) -> Vec<BlockOp> {
        let outcome = self.ask(Verb::Write, blocks, value);
        assert_eq!(outcome.result, Ok(()));
        std::mem::take(&mut self.asked)
    }

    /// Reads one block, which must have a value; what the deep device was asked for.
    fn read(&mut self, block: usize, value: u64) -> Vec<BlockOp> {
        let outcome = self.ask(Verb::Read, block..block + 1, 0);
        assert_eq!(outcome.result, Ok(()));
        let mut expected = vec![0; BLOCK];
        fill(&mut expected, value);
        let buffer = outcome.buffer.expect("it had one");
        assert!(buffer[block * BLOCK..(block + 1) * BLOCK] == expected);
        std::mem::take(&mut self.asked)
    }
}

const READ: [BlockOp; 1] = [BlockOp::Read];
const WRITE: [BlockOp; 1] = [BlockOp::Write];

#[test]
fn a_write_of_what_is_not_cached() {
    for mode in Mode::ALL {
        let mut bench = Bench::new(mode, Nhc::Classic);
        let asked = bench.write(0..2, 7);
        let is_back = mode == Mode::WriteBack;
        assert_eq!(asked.is_empty(), is_back, "{mode}: {asked:?}");
        let cached = u32::from(mode.admits_writes());
        assert_eq!(bench.cache.filled(), (cached, u32::from(is_back)), "{mode}");
        let asked = bench.read(1, 7);
        assert_eq!(asked.is_empty(), mode.admits_writes(), "{mode}: {asked:?}");
    }
}

#[test]
fn a_write_of_what_is_cached() {
    for mode in Mode::ALL {
        let mut bench = Bench::new(mode, Nhc::Classic);
        let asked = bench.read(0, 0);
        assert_eq!(asked, READ, "{mode}");
        let cached = u32::from(mode.admits_reads());
        assert_eq!(bench.cache.filled().0, cached, "{mode}");
        // Half of a line.
        let asked = bench.write(0..1, 8);
        assert_eq!(asked.is_empty(), mode == Mode::WriteBack, "{mode}");
        let asked = bench.read(0, 8);
        assert_eq!(asked.is_empty(), !mode.drops_written(), "{mode}: {asked:?}");
        bench.read(1, 0);
        let figures = bench.cache.figures();
        assert_eq!((figures.reads, figures.writes), (3, 1));
    }
}

#[test]
fn dirty_lines_are_written_back_the_oldest_first_and_only_then_given_up() {
    let mut bench = Bench::new(Mode::WriteBack, Nhc::Classic);
    for line in 0..4 {
        assert!(
            bench
                .write(2 * line..2 * line + 2, line as u64 + 1)
                .is_empty()
        );
    }
    assert_eq!(bench.cache.filled(), (4, 4));
    // All lines are dirty: what is written now goes past them, what is read is not cached.
    assert_eq!(bench.write(8..10, 9), WRITE);
    assert_eq!(bench.read(9, 9), READ);
    assert_eq!(bench.flush(), Ok(()));
    assert_eq!(std::mem::take(&mut bench.asked), [BlockOp::Flush]);
    bench.clean();
    // Neighbours in one write, flushed before they are clean.
    assert_eq!(
        std::mem::take(&mut bench.asked),
        [BlockOp::Write, BlockOp::Flush]
    );
    assert_eq!(bench.cache.filled(), (4, 0));
    assert_eq!(bench.read(9, 9), READ);
    assert!(bench.read(9, 9).is_empty(), "it has a slot now");
    assert_eq!(bench.cache.figures().evictions, 1);
}

#[test]
fn the_least_recently_used_line_goes() {
    let mut bench = Bench::new(Mode::WriteThrough, Nhc::Classic);
    for line in 0..4 {
        bench.read(2 * line, 0);
    }
    assert!(bench.read(0, 0).is_empty());
    bench.read(8, 0);
    assert!(bench.read(0, 0).is_empty(), "it was used last");
    assert_eq!(bench.read(2, 0), READ, "it was used first");
}

#[test]
fn a_controller_decides_who_reads_and_what_is_admitted() {
    let mut bench = Bench::new(Mode::WriteThrough, Nhc::Split(0.0));
    bench.write(0..2, 3);
    assert_eq!(bench.read(0, 3), READ, "a hit that the deep device serves");
    assert_eq!(bench.cache.figures().hits_deep, 1);
    assert_eq!(bench.read(6, 0), READ);
    assert_eq!(bench.cache.filled().0, 1, "nothing is admitted");
    // What is dirty only the fast device has.
    let mut bench = Bench::new(Mode::WriteBack, Nhc::Split(0.0));
    bench.write(0..2, 3);
    assert!(bench.read(0, 3).is_empty());
}

#[test]
fn a_deep_device_that_fails_is_told_of_and_loses_nothing_dirty() {
    let mut bench = Bench::new(Mode::WriteBack, Nhc::Classic);
    bench.write(0..2, 3);
    bench.os_error = Some(5);
    assert_eq!(bench.ask(Verb::Read, 4..5, 0).result, Err(Refusal::Io));
    bench.clean();
    assert_eq!(bench.cache.filled(), (1, 1), "it stays dirty");
    assert_eq!(bench.cache.figures().clean_errors, 1);
    bench.asked.clear();
    assert!(bench.read(0, 3).is_empty(), "what is dirty is served");
    assert!(bench.write(0..1, 4).is_empty());
    bench.os_error = None;
    bench.clean();
    assert_eq!(bench.cache.filled(), (1, 0));
    assert_eq!(bench.cache.figures().cleaned, 1);
    assert_eq!(bench.cache.figures().refused, 1);
    let mut through = Bench::new(Mode::WriteThrough, Nhc::Classic);
    through.write(0..2, 3);
    through.os_error = Some(28);
    let outcome = through.ask(Verb::Write, 0..1, 4);
    assert_eq!(outcome.result, Err(Refusal::NoSpace));
    through.os_error = None;
    through.asked.clear();
    assert_eq!(
        through.read(0, 3),
        READ,
        "nobody knows what was written: it is read"
    );
    assert!(through.read(1, 3).is_empty());
}
