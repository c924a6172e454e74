//! Desks that have no memory, on a clock that is set by hand: none of it takes time.

use super::super::purse::{Prices, Till};
use super::super::short::{AGAIN, PATIENCE};
use super::*;
use nyx_base::{Instant, Nanos};
use nyx_media::queue::BlockOp;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Pages of the region.
const PAGES: u32 = 256;

/// A clock that stands until it is moved.
#[derive(Clone, Debug, Default)]
struct Hand(Arc<AtomicU64>);

impl Hand {
    fn pass(&self, time: Nanos) {
        self.0.fetch_add(time.0, SeqCst);
    }
}

impl Clock for Hand {
    fn now(&self) -> Instant {
        Instant(self.0.load(SeqCst))
    }

    fn spin_until(&self, until: Instant) {
        self.0.fetch_max(until.0, SeqCst);
    }
}

/// A desk for many pages, whose device and memory refuse what a test says.
struct Bench {
    desk: Desk<Hand>,
    memory: Arc<Memory>,
    clock: Hand,
    refusals: Arc<Refused>,
}

/// What the device is asked, and refuses.
#[derive(Default)]
struct Refused {
    /// So many from now on are refused, reads and writes, with this number.
    left: [AtomicU32; 2],
    code: AtomicU32,
    asked: [AtomicU32; 2],
}

impl Refused {
    fn rule(&self, op: BlockOp) -> Option<i32> {
        let of = usize::from(op != BlockOp::Read);
        self.asked[of].fetch_add(1, SeqCst);
        let left = self.left[of].fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        left.is_ok().then(|| self.code.load(SeqCst) as i32)
    }
}

impl Bench {
    /// None where userfaultfd is not to be had.
    fn made(name: &str, through: Through, purse: Option<Arc<Purse>>) -> Option<Bench> {
        let memory = match Memory::new(PAGES, 1, false) {
            Err(reason @ (RegionError::NoUserfaultfd { .. } | RegionError::NotSafe { .. })) => {
                eprintln!("skipped {name}: {reason}");
                return None;
            }
            memory => Arc::new(memory.expect("made")),
        };
        let (clock, refusals) = (Hand::default(), Arc::new(Refused::default()));
        let asked = refusals.clone();
        let device = Device::temporary(&std::env::temp_dir(), u64::from(PAGES) * 4096);
        let device = device.expect("a file").through(through, through);
        let mut device = device.refusing(Refusals::new(move |op, _| asked.rule(op)));
        device.purse = purse;
        Some(Bench {
            desk: device.for_many(&memory, clock.clone()).expect("a desk"),
            memory,
            clock,
            refusals,
        })
    }

    /// The device refuses so many of these, with a number.
    fn refuse(&self, op: BlockOp, count: u32, code: i32) {
        self.refusals.code.store(code as u32, SeqCst);
        self.refusals.left[usize::from(op != BlockOp::Read)].store(count, SeqCst);
    }

    /// Reads and writes that the device was asked for.
    fn asked(&self) -> [u32; 2] {
        self.refusals
            .asked
            .each_ref()
            .map(|count| count.load(SeqCst))
    }

    /// All that is done while the clock stands.
    fn done(&mut self) -> Vec<(u32, bool)> {
        // As the background's thread does.
        self.desk.push([]);
        let mut done = Vec::new();
        loop {
            done.extend(
                std::iter::from_fn(|| self.desk.next()).map(|(what, is_good)| {
                    assert_eq!(what.pages, 1, "the tests' are told of one by one");
                    (what.page, is_good)
                }),
            );
            if self.desk.moving.is_empty() {
                return done;
            }
            self.desk.queue.rest();
        }
    }

    /// What is done after another moment.
    fn later(&mut self) -> Vec<(u32, bool)> {
        self.clock.pass(AGAIN);
        self.done()
    }
}

/// Pages that are not side by side, each by itself.
fn moves(kind: Kind, pages: impl IntoIterator<Item = u32>) -> Vec<Move> {
    let one = |page| Move {
        page,
        slot: page,
        pages: 1,
        kind,
    };
    pages.into_iter().map(one).collect()
}

#[test]
fn what_the_device_has_no_memory_for_is_tried_again_after_a_moment() {
    for through in [Through::Calls, Through::Threads] {
        let Some(mut bench) = Bench::made("what_the_device_has_no_memory_for", through, None)
        else {
            return;
        };
        for (kind, op) in [
            (Kind::Critical, BlockOp::Read),
            (Kind::Ahead, BlockOp::Read),
            (Kind::Write, BlockOp::Write),
        ] {
            for code in [libc::ENOMEM, libc::EFAULT] {
                let before = bench.asked();
                bench.refuse(op, 2, code);
                bench.desk.push(moves(kind, [7]));
                for asked in 1..3 {
                    assert_eq!(bench.done(), [], "{kind:?}");
                    assert_eq!(bench.done(), [], "no time has passed");
                    let since: u32 = bench.asked().iter().sum::<u32>() - before.iter().sum::<u32>();
                    assert_eq!(since, asked, "{kind:?}");
                    assert!(bench.desk.has_to_look());
                    bench.clock.pass(AGAIN);
                }
                assert_eq!(bench.done(), [(7, true)], "{kind:?}");
                assert!(!bench.desk.has_to_look());
            }
        }
        // No room on the disk: that may stay so.
        bench.refuse(BlockOp::Write, 1, libc::ENOSPC);
        bench.desk.push(moves(Kind::Write, [7]));
        assert_eq!(bench.done(), [(7, false)]);
    }
}

#[test]
fn writes_go_on_where_there_is_no_memory_for_reads_and_one_of_those_is_tried_at_a_time() {
    let name = "writes_go_on_where_there_is_no_memory";
    let Some(mut bench) = Bench::made(name, Through::Calls, None) else {
        return;
    };
    bench.refuse(BlockOp::Read, u32::MAX, libc::ENOMEM);
    bench.desk.push(moves(Kind::Critical, [1, 3, 5, 7]));
    assert_eq!(bench.done(), []);
    let mut reads = bench.asked()[0];
    for round in 0..50 {
        // A write, for which there is memory, says nothing of reads.
        bench.desk.push(moves(Kind::Write, [9]));
        assert_eq!(bench.done(), [(9, true)]);
        assert_eq!(bench.asked(), [reads, round + 1]);
        assert_eq!(bench.later(), []);
        reads += 1;
        assert_eq!(bench.asked(), [reads, round + 1], "one is tried");
    }
    bench.clock.pass(PATIENCE);
    for _ in 0..4 {
        let done = bench.later();
        assert!(matches!(done[..], [(_, false)]), "{done:?}");
    }
    assert_eq!(bench.desk.pending(), 0);
}

#[test]
fn a_page_that_was_given_up_leaves_the_next_its_minute() {
    let Some(mut bench) = Bench::made("a_page_that_was_given_up", Through::Calls, None) else {
        return;
    };
    for page in 1..4 {
        bench.memory.shortages.store(2, SeqCst);
        bench.desk.push(moves(Kind::Critical, [page]));
        assert_eq!(bench.done(), [], "page {page}");
        bench.clock.pass(PATIENCE);
        assert_eq!(bench.later(), [(page, false)]);
    }
    bench.memory.shortages.store(1, SeqCst);
    bench.desk.push(moves(Kind::Critical, [4]));
    assert_eq!((bench.done(), bench.later()), (vec![], vec![(4, true)]));
}

#[test]
fn a_read_that_takes_long_to_be_refused_rests_all_the_same() {
    let Some(mut bench) = Bench::made("a_read_that_takes_long", Through::Calls, None) else {
        return;
    };
    for tried in 1..10 {
        bench.memory.shortages.store(1, SeqCst);
        bench
            .desk
            .push(moves(Kind::Critical, (tried == 1).then_some(1)));
        // It is done by now, and that is not seen yet.
        bench.clock.pass(Nanos(AGAIN.0 * 3));
        assert_eq!(bench.done(), []);
        assert_eq!(bench.asked()[0], tried);
        bench.clock.pass(AGAIN);
    }
    assert_eq!(bench.done(), [(1, true)]);
}

#[test]
fn who_pays_for_requests_does_not_pay_more_often_and_is_not_held_for_want_of_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("purse");
    let till = Till::create(&path).expect("a file");
    let (read_ps, write_ps) = ([1; 2], [1; 2]);
    till.set_prices(&Prices { read_ps, write_ps }, 0);
    let purse = Some(Arc::new(Purse::open(&path).expect("a purse")));
    let name = "who_pays_for_requests";
    let Some(mut bench) = Bench::made(name, Through::Calls, purse) else {
        return;
    };
    // There is credit only, for what somebody waits for.
    let rung = till.rung();
    bench.memory.shortages.store(20, SeqCst);
    bench.desk.push(moves(Kind::Critical, [1]));
    for tried in 1..=20 {
        assert_eq!((bench.done(), bench.done()), (vec![], vec![]));
        assert!(!bench.desk.is_held() && bench.desk.has_to_look());
        assert_eq!(till.spent().reads, tried);
        bench.clock.pass(AGAIN);
    }
    assert_eq!(bench.done(), [(1, true)]);
    let spent = till.spent();
    assert_eq!((spent.reads, spent.holds), (21, 0));
    // Once, as less was left than it wants to be told of.
    assert_eq!(till.rung(), rung + 1);
    bench.desk.push(moves(Kind::Ahead, [3]));
    assert!(bench.desk.is_held(), "for that there is no credit");
    assert_eq!(till.spent().holds, 1);
}

#[test]
fn no_write_that_could_not_begin_is_left_untold() {
    let Some(mut bench) = Bench::made("no_write_that_could_not_begin", Through::Calls, None) else {
        return;
    };
    bench.memory.shortages.store(1, SeqCst);
    bench.desk.push(moves(Kind::Write, [5, 6]));
    assert_eq!(bench.done(), []);
    // Together they are refused, one by one they cannot be read any more.
    bench.clock.pass(Nanos(PATIENCE.0 + 1));
    bench.refuse(BlockOp::Write, 1, libc::EIO);
    bench.desk.push([]);
    bench.memory.shortages.store(2, SeqCst);
    let first = bench
        .desk
        .next()
        .map(|(what, is_good)| (what.page, is_good));
    assert_eq!(first, Some((6, false)));
    assert_eq!(bench.later(), [(5, false)]);
    assert_eq!(bench.desk.pending(), 0);
}

#[test]
fn what_was_refused_together_waits_for_memory_as_others_do() {
    let Some(mut bench) = Bench::made("what_was_refused_together", Through::Calls, None) else {
        return;
    };
    // The one for which there is no memory is told of first, then those two.
    bench.refuse(BlockOp::Read, 2, libc::ENOMEM);
    bench.desk.push(moves(Kind::Critical, [1]));
    bench.refusals.code.store(libc::EIO as u32, SeqCst);
    bench.desk.push(moves(Kind::Ahead, [10, 11]));
    bench.memory.shortages.store(1, SeqCst);
    bench.desk.push(moves(Kind::Write, [20]));
    assert_eq!(bench.done(), []);
    assert_eq!((bench.asked(), bench.desk.pending()), ([2, 0], 4));
    let mut done = bench.later();
    done.sort_unstable();
    assert_eq!(done, [(1, true), (10, true), (11, true), (20, true)]);
}

#[test]
fn pages_of_one_read_are_given_up_one_by_one() {
    let Some(mut bench) = Bench::made("pages_of_one_read", Through::Calls, None) else {
        return;
    };
    bench.memory.shortages.store(3, SeqCst);
    bench.desk.push(moves(Kind::Ahead, 32..64));
    assert_eq!(bench.done(), []);
    bench.clock.pass(PATIENCE);
    // All together, and the first of them.
    let mut done = bench.later();
    done.extend(bench.later());
    done.extend(bench.later());
    let bad: Vec<u32> = done
        .iter()
        .filter(|done| !done.1)
        .map(|done| done.0)
        .collect();
    assert_eq!((done.len(), bad.len()), (32, 1), "{bad:?}");
}

#[test]
fn the_buffer_that_was_used_last_is_used_first() {
    let Some(mut bench) = Bench::made("the_buffer_that_was_used_last", Through::Calls, None) else {
        return;
    };
    for page in 1..20 {
        // Whatever is written leaves something in its buffer.
        bench
            .memory
            .store(page, &[1; PAGE_BYTES])
            .expect("there is memory");
        let kind = if page % 2 == 0 {
            Kind::Write
        } else {
            Kind::Critical
        };
        bench.desk.push(moves(kind, [page]));
        assert_eq!(bench.done(), [(page, true)]);
        bench.desk.push(moves(Kind::Ahead, [32, 33]));
        assert_eq!(
            bench
                .desk
                .next()
                .map(|(what, is_good)| (what.pages, is_good)),
            Some((2, true))
        );
        // One that is not sent off.
        bench.memory.shortages.store(1, SeqCst);
        bench.desk.push(moves(Kind::Write, [page]));
        assert_eq!((bench.done(), bench.later()), (vec![], vec![(page, true)]));
    }
    let Desk { small, large, .. } = &bench.desk;
    for (pool, count) in [
        (&small.pool, DEPTH),
        (&large.as_ref().expect("many").pool, LARGE),
    ] {
        let others: Vec<Buffer> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(others.len(), count as usize - 1);
        assert!(
            others
                .iter()
                .all(|other| other.iter().all(|&byte| byte == 0))
        );
    }
}
