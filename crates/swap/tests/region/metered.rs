//! Regions on a device that is shared: what is paid for, what is held first, and that nobody hangs.

use super::rig::{PAGE, check, device, fill, made, page, word};
use nyx_policy::paging::pool::Rule;
use nyx_swap::region::{CREDIT_PS, Prices, Purse, Region, Shape, Spent, Till};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const PAGES: usize = 512;
const LIMIT: usize = 64;
/// Of a page, and of each further one: a microsecond, and half of one.
const PRICES: Prices = Prices {
    read_ps: [1_000_000, 500_000],
    write_ps: [1_000_000, 500_000],
};
/// A request of 32 pages.
const REQUEST_PS: i64 = 16_500_000;

/// A region and who grants it time: nothing yet.
fn metered(name: &str) -> Option<(Region, Till)> {
    with_limit(name, LIMIT)
}

fn with_limit(name: &str, limit: usize) -> Option<(Region, Till)> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("purse");
    let till = Till::create(&path).expect("a file");
    till.set_prices(&PRICES, 1);
    till.grant(Some(0));
    let purse = Arc::new(Purse::open(&path).expect("a purse"));
    let mut shape = Shape::new((PAGES * PAGE) as u64, (limit * PAGE) as u64);
    shape.pool = Rule::Demand;
    let region = Region::with(shape, &device(PAGES).metered(purse));
    Some((made(name, region)?, till))
}

fn price_ps(spent: &Spent) -> i64 {
    let requests = spent.reads + spent.writes;
    let pages = (spent.read_bytes + spent.written_bytes) / PAGE as u64;
    (requests * 1_000_000 + (pages - requests) * 500_000) as i64
}

#[test]
fn no_more_is_used_than_was_granted_and_a_little_credit() {
    let Some((region, till)) = metered("no_more_is_used_than_was_granted") else {
        return;
    };
    let (is_over, mut granted_ps) = (AtomicBool::new(false), 0);
    // Each desk may have looked before another one paid: two handlers and the background's two.
    let desks = 2 + std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(8) as i64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = fastrand::Rng::with_seed(7);
            (0..PAGES).for_each(|at| page(&region, at).store(at as u64 + 1, SeqCst));
            for _ in 0..4_000 {
                let at = rng.usize(..PAGES);
                let before = page(&region, at).fetch_add(1 << 32, SeqCst);
                assert_eq!(before & 0xffff_ffff, at as u64 + 1);
            }
            is_over.store(true, SeqCst);
        });
        while !is_over.load(SeqCst) {
            // Grants are as many as waits, however long those take.
            granted_ps += 2_000_000;
            till.grant(Some(2_000_000));
            let least_ps = -(CREDIT_PS + desks * REQUEST_PS);
            let left_ps = till.left_ps();
            assert!(left_ps > least_ps, "{left_ps} ps are left");
            till.wait(till.rung(), Duration::from_micros(200));
        }
    });
    let (spent, counts) = (till.spent(), region.figures().counts);
    assert!(spent.holds > 20, "{spent:?}");
    assert_eq!(till.left_ps(), granted_ps - price_ps(&spent));
    let read_pages = counts.major_faults + counts.ahead;
    assert_eq!(spent.read_bytes, read_pages * PAGE as u64, "{counts:?}");
    assert!(spent.writes > 100, "{counts:?}");
}

/// One with all of its pages written and on the device, and credit that lasts for as long as a test
/// does: prices are next to nothing.
fn on_credit(name: &str) -> Option<(Region, Till)> {
    // With room for windows that are not gone before they are wanted.
    let (region, till) = with_limit(name, 4 * LIMIT)?;
    let cheap = Prices {
        read_ps: [1; 2],
        write_ps: [1; 2],
    };
    till.set_prices(&cheap, 0);
    till.grant(None);
    (0..PAGES).for_each(|at| fill(&region, at, 1));
    (0..PAGES).for_each(|at| check(&region, at, 1));
    till.grant(Some(0));
    Some((region, till))
}

fn scan(region: &Region, till: &Till, pages: std::ops::Range<usize>) {
    for at in pages {
        // Somebody is there: it is not for want of him that things go.
        till.grant(Some(0));
        assert_eq!(page(region, at).load(SeqCst), word(at, 1));
    }
}

#[test]
fn on_credit_what_is_read_ahead_goes_when_it_is_wanted_and_as_one() {
    let Some((region, till)) = on_credit("on_credit_what_is_read_ahead") else {
        return;
    };
    let (before, spent) = (region.figures().counts, till.spent());
    scan(&region, &till, 0..PAGES);
    let (after, since) = (region.figures().counts, till.spent().since(&spent));
    assert!(since.holds > 0, "{since:?}");
    let ahead = after.ahead - before.ahead;
    assert!(ahead > PAGES as u64 / 2, "{ahead} pages");
    let pages = since.read_bytes / PAGE as u64;
    assert!(since.reads * 2 < pages, "{since:?}");
    assert_eq!(since.writes, 0, "what was read leaves without: {since:?}");
}

#[test]
fn on_credit_what_nobody_wants_is_never_read_or_written() {
    let Some((region, till)) = on_credit("on_credit_what_nobody_wants") else {
        return;
    };
    let begun = || {
        let counts = region.figures().counts;
        (counts.major_faults + counts.ahead) * PAGE as u64
    };
    // Its thread has looked many times by then.
    let long = || {
        for _ in 0..50 {
            till.grant(Some(0));
            till.wait(till.rung(), Duration::from_millis(1));
        }
    };
    // As far as a touch that has begun a window behind it, unless somebody waited for the one
    // before just then.
    let is_held = |at: usize| {
        let ahead = region.figures().counts.ahead;
        scan(&region, &till, at..at + 1);
        let begins = at > 100 && region.figures().counts.ahead > ahead;
        begins && {
            long();
            begun() > till.spent().read_bytes
        }
    };
    assert!((0..PAGES).any(is_held), "nothing is held");
    let (spent, begun) = (till.spent(), begun());
    long();
    let since = till.spent().since(&spent);
    assert_eq!((since.reads, since.writes), (0, 0), "{since:?}");
    // With something to spend it goes.
    till.grant(Some(1 << 30));
    while till.spent().read_bytes < begun {
        till.grant(Some(1));
        std::thread::yield_now();
    }
}

#[test]
fn who_needs_memory_gets_it_where_only_credit_is_left() {
    let Some((region, till)) = metered("who_needs_memory_gets_it") else {
        return;
    };
    let cheap = Prices {
        read_ps: [1; 2],
        write_ps: [1; 2],
    };
    till.set_prices(&cheap, 0);
    // All of it is dirty and more than memory: each page needs another one's.
    for round in 0..3 {
        for at in 0..PAGES {
            till.grant(Some(0));
            fill(&region, at, round);
        }
        (0..PAGES).for_each(|at| {
            till.grant(Some(0));
            check(&region, at, round);
        });
    }
    assert!(till.spent().writes > 0 && till.left_ps() < 0);
}

#[test]
fn a_region_that_is_held_can_be_dropped_and_one_that_nobody_grants_goes_on() {
    let Some((region, till)) = metered("a_region_that_is_held") else {
        return;
    };
    let dear = Prices {
        read_ps: [CREDIT_PS as u64 * 10; 2],
        write_ps: [CREDIT_PS as u64 * 10; 2],
    };
    till.set_prices(&dear, 0);
    till.grant(Some(1));
    // Nobody speaks any more: each write waits until that is noticed, and then none does.
    (0..PAGES).for_each(|at| fill(&region, at, 5));
    (0..PAGES).for_each(|at| check(&region, at, 5));
    let spent = till.spent();
    assert!(spent.writes > 1 && spent.holds > 0, "{spent:?}");
    // Somebody does, and grants nothing: what waits is dropped with the region.
    till.grant(Some(0));
    drop(region);
}

#[test]
fn who_wants_a_page_that_was_forgotten_while_it_waits_to_be_written_gets_it() {
    let Some((region, till)) = on_credit("who_wants_a_page_that_was_forgotten") else {
        return;
    };
    let mut held = 0;
    for round in 0..20 {
        (0..PAGES).for_each(|at| {
            till.grant(Some(0));
            page(&region, at).store(round + 1, SeqCst);
        });
        // Writes that nobody waits for are begun, and held.
        held += u32::from((0..50).any(|_| {
            till.grant(Some(0));
            till.wait(till.rung(), Duration::from_millis(1));
            region.figures().counts.writes * PAGE as u64 > till.spent().written_bytes
        }));
        region.dont_need(0..PAGES * PAGE).expect("within");
        // Somebody is there also while this waits.
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    till.grant(Some(0));
                    till.wait(till.rung(), Duration::from_millis(1));
                }
            });
            let zeros = (0..PAGES)
                .rev()
                .filter(|&at| page(&region, at).load(SeqCst) == 0);
            assert_eq!(zeros.count(), PAGES);
            is_over.store(true, SeqCst);
        });
    }
    assert!(held > 0, "no write was ever held");
}
