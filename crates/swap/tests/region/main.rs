//! Regions as a program has them: contents against a model, the limit, errors of the device,
//! SIGBUS, what is missing without privilege, and that nothing is left.
//!
//! What it never does: pass where a region is to be had and does not do what it says. Where none is
//! to be had a test says why and is skipped.

mod alone;
mod metered;
mod rig;
mod runs;

use nyx_media::queue::{BlockOp, Refusals};
use nyx_policy::paging::pager::{Prefetch, Why};
use nyx_policy::paging::pool::Rule;
use nyx_swap::region::{Device, Region, RegionError, Shape};
use rig::{PAGE, check, device, fill, made, page, refusing, why};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

/// A region of so many pages, with as many of them in memory and on the device.
fn region(name: &str, pages: usize, limit: usize, slots: usize) -> Option<Region> {
    made(
        name,
        Region::new((pages * PAGE) as u64, (limit * PAGE) as u64, &device(slots)),
    )
}

#[test]
fn what_is_written_is_read_and_no_more_is_in_memory_than_may_be() {
    let name = "what_is_written_is_read";
    let Some(region) = region(name, 256, 32, 256) else {
        return;
    };
    for round in 0..3 {
        for at in 0..256 {
            fill(&region, at, round);
            assert!(region.resident_bytes().expect("told") <= 32 * PAGE as u64);
        }
        for at in 0..256 {
            check(&region, at, round);
        }
    }
    let figures = region.figures();
    let read = figures.counts.major_faults + figures.counts.ahead;
    assert!(read > 512, "{figures:?}");
    assert!(figures.used_bytes <= figures.limit_bytes);
    assert_eq!(
        figures.faults.count(),
        0,
        "what is fixed is not touched before it is there"
    );
    assert!(figures.device_bytes > 0);
}

#[test]
fn a_touch_waits_for_its_page_and_faults_are_timed() {
    let name = "a_touch_waits_for_its_page";
    let mut shape = Shape::new(128 * PAGE as u64, 16 * PAGE as u64);
    shape.prefetch = Prefetch::Off;
    let Some(region) = made(name, Region::with(shape, &device(128))) else {
        return;
    };
    for at in 0..128 {
        page(&region, at).store(at as u64 + 1, SeqCst);
    }
    for at in 0..128 {
        assert_eq!(page(&region, at).load(SeqCst), at as u64 + 1);
    }
    let figures = region.figures();
    assert!(figures.faults.count() >= 240, "{figures:?}");
    assert!(figures.faults.quantile_ns(0.99) >= figures.faults.quantile_ns(0.5));
    assert!(figures.counts.major_faults > 0);
}

#[test]
fn what_several_threads_count_on_the_same_pages_adds_up() {
    let name = "what_several_threads_count";
    let Some(region) = region(name, 64, 16, 64) else {
        return;
    };
    let count = |seed| {
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..4_000 {
            page(&region, rng.usize(..64)).fetch_add(1, SeqCst);
        }
    };
    std::thread::scope(|scope| {
        (0..3).for_each(|seed| drop(scope.spawn(move || count(seed))));
    });
    let sum: u64 = (0..64).map(|at| page(&region, at).load(SeqCst)).sum();
    assert_eq!(sum, 12_000);
    let counts = region.figures().counts;
    assert!(
        counts.major_faults > 500 && counts.writes > 500,
        "{counts:?}"
    );
}

#[test]
fn a_page_that_the_kernel_took_out_of_sight_is_mapped_again() {
    let name = "a_page_that_the_kernel_took_out_of_sight";
    let mut shape = Shape::new(64 * PAGE as u64, 64 * PAGE as u64);
    shape.pool = Rule::Off;
    let Some(region) = made(name, Region::with(shape, &device(64))) else {
        return;
    };
    // As where it swaps memory itself: what is in the file stays, and the entry is gone.
    let take_out = || {
        let (at, len) = (region.as_ptr().cast(), region.len_bytes());
        // SAFETY: the range is the region's, which maps a file: bytes stay.
        let done = unsafe { rustix::mm::madvise(at, len, rustix::mm::Advice::LinuxDontNeed) };
        done.expect("the memory may be advised on");
    };
    // Written to, and only read: of every second page.
    for at in 0..64 {
        match at % 2 {
            0 => page(&region, at).store(at as u64 + 1, SeqCst),
            _ => assert_eq!(page(&region, at).load(SeqCst), 0),
        }
    }
    for round in 1..4 {
        take_out();
        for at in 0..64 {
            let held = page(&region, at).load(SeqCst);
            let written = at % 2 == 0 || round == 3;
            assert_eq!(held, if written { at as u64 + 1 } else { 0 }, "page {at}");
        }
        if round == 2 {
            take_out();
            (0..64).for_each(|at| page(&region, at).store(at as u64 + 1, SeqCst));
        }
    }
    assert_eq!(region.figures().counts.major_faults, 0);
}

#[test]
fn fresh_pages_in_order_are_one_fault_for_each_window() {
    let name = "fresh_pages_in_order";
    let Some(region) = region(name, 1_000, 1_200, 1_000) else {
        return;
    };
    for at in 0..900 {
        page(&region, at).store(at as u64 + 1, SeqCst);
    }
    let figures = region.figures();
    // 2 faults, 1, 2, 4, 8 and 16 pages, then 32 for each fault; memory is to spare until the end.
    let faults = figures.faults.count();
    assert!((27..27 + 50).contains(&faults), "{faults}");
    assert!(
        figures.counts.zeros_ahead > 800 - 4 * 32,
        "{:?}",
        figures.counts
    );
    (0..900).for_each(|at| assert_eq!(page(&region, at).load(SeqCst), at as u64 + 1));
    (900..1_000).for_each(|at| assert_eq!(page(&region, at).load(SeqCst), 0));
}

#[test]
fn what_is_read_and_written_in_order_is_allowed_writes_ahead() {
    let name = "what_is_read_and_written_in_order";
    let pages = 2_000;
    let Some(region) = region(name, pages, 500, pages) else {
        return;
    };
    for round in 1..4u64 {
        for at in 0..pages {
            let (word, number) = (page(&region, at), at as u64);
            let was = if round > 1 { number + round - 1 } else { 0 };
            assert_eq!(word.load(SeqCst), was, "page {at}");
            word.store(number + round, SeqCst);
        }
    }
    let counts = region.figures().counts;
    assert!(counts.allowed_ahead > 500, "{counts:?}");
    assert!(counts.write_faults < counts.allowed_ahead, "{counts:?}");
}

#[test]
fn a_scan_of_what_is_on_the_device_is_mapped_ahead_for_several_threads_at_once() {
    let name = "a_scan_of_what_is_on_the_device";
    let pages = 2_000;
    let Some(region) = region(name, pages, 500, pages) else {
        return;
    };
    (0..pages).for_each(|at| page(&region, at).store(at as u64 + 1, SeqCst));
    let before = region.figures();
    // All at the same pages: whoever comes first, the others find them, or wait and are woken.
    let scan =
        || (0..pages).for_each(|at| assert_eq!(page(&region, at).load(SeqCst), at as u64 + 1));
    for _ in 0..4 {
        std::thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(scan))));
    }
    let after = region.figures();
    assert!(after.counts.mapped_ahead > before.counts.mapped_ahead);
    assert_eq!(after.counts.failed, 0);
}

#[test]
fn without_a_place_on_the_device_as_much_as_fits_in_memory_is_kept() {
    let name = "without_a_place";
    let none = device(1).part(0, 0);
    let made_of = Region::new(64 * PAGE as u64, 16 * PAGE as u64, &none);
    let Some(region) = made(name, made_of) else {
        return;
    };
    (0..16).for_each(|at| fill(&region, at, 1));
    let refused = region.write_at(16 * PAGE, &[1]).expect_err("no room");
    assert_eq!(why(&refused), (16 * PAGE, Why::DeviceFull), "{refused}");
    (0..16).for_each(|at| check(&region, at, 1));
}

#[test]
fn the_kernel_may_read_from_it_and_write_to_it() {
    let name = "the_kernel_may_read_from_it";
    let Some(region) = region(name, 64, 16, 64) else {
        return;
    };
    (0..64).for_each(|at| fill(&region, at, 9));
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    for at in 0..64 {
        // SAFETY: the page lies in the region, which nobody else touches.
        let bytes = unsafe { std::slice::from_raw_parts(region.as_ptr().add(at * PAGE), PAGE) };
        assert_eq!(rustix::io::write(&write, bytes), Ok(PAGE));
        let to = (at + 32) % 64;
        // SAFETY: as above.
        let into = unsafe { std::slice::from_raw_parts_mut(region.as_ptr().add(to * PAGE), PAGE) };
        assert_eq!(rustix::io::read(&read, &mut *into), Ok(PAGE));
        assert_eq!(into, rig::bytes(at % 32, 9).as_slice(), "page {at}");
        if at < 32 {
            continue;
        }
        check(&region, to, 9);
    }
}

#[test]
fn a_page_that_cannot_be_read_is_an_error_and_is_there_when_it_can_be() {
    let name = "a_page_that_cannot_be_read";
    let Some((region, refuses)) = refusing(name, BlockOp::Read) else {
        return;
    };
    (0..64).for_each(|at| fill(&region, at, 1));
    refuses.store(true, SeqCst);
    let mut refused = 0;
    for at in 0..64 {
        let mut into = [0; PAGE];
        match region.read_at(at * PAGE, &mut into) {
            Ok(()) => assert_eq!(into, rig::bytes(at, 1), "page {at}"),
            Err(error) => {
                assert_eq!(why(&error), (at * PAGE, Why::Unreadable), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused >= 48, "{refused}");
    assert_eq!(region.figures().poisoned_pages, 0, "nobody touched them");
    refuses.store(false, SeqCst);
    (0..64).for_each(|at| check(&region, at, 1));
}

#[test]
fn a_page_that_was_poisoned_is_had_again_by_fixing_it_or_as_zeros() {
    let name = "a_page_that_was_poisoned";
    let Some((region, refuses)) = refusing(name, BlockOp::Read) else {
        return;
    };
    (0..64).for_each(|at| fill(&region, at, 1));
    refuses.store(true, SeqCst);
    let (_read, write) = rustix::pipe::pipe().expect("a pipe");
    // Where a thread would get SIGBUS the kernel says EFAULT.
    let touch = |at: usize| {
        // SAFETY: the page lies in the region, which nobody else touches.
        let bytes = unsafe { std::slice::from_raw_parts(region.as_ptr().add(at * PAGE), 8) };
        rustix::io::write(&write, bytes).map(drop)
    };
    let poisoned: Vec<usize> = (0..64).filter(|&at| touch(at).is_err()).collect();
    assert!(poisoned.len() >= 48, "{poisoned:?}");
    assert_eq!(region.figures().poisoned_pages, poisoned.len());
    refuses.store(false, SeqCst);
    let (gone, wanted) = poisoned.split_at(10);
    assert!(touch(wanted[0]).is_err(), "until it is fixed");
    wanted.iter().for_each(|&at| check(&region, at, 1));
    for &at in gone {
        assert!(region.dont_need(at * PAGE..(at + 1) * PAGE).is_ok());
        assert_eq!(page(&region, at).load(SeqCst), 0);
    }
    assert_eq!(region.figures().poisoned_pages, 0);
}

#[test]
fn what_cannot_be_written_back_stays_and_who_needs_room_is_told() {
    let name = "what_cannot_be_written_back";
    let Some((region, refuses)) = refusing(name, BlockOp::Write) else {
        return;
    };
    refuses.store(true, SeqCst);
    let mut kept = Vec::new();
    for at in 0..64 {
        match region.write_at(at * PAGE, &rig::bytes(at, 2)) {
            Ok(()) => kept.push(at),
            Err(error) => assert_eq!(why(&error), (at * PAGE, Why::Unwritable), "{error}"),
        }
    }
    assert_eq!(kept, (0..16).collect::<Vec<_>>());
    kept.iter().for_each(|&at| check(&region, at, 2));
    assert!(region.figures().counts.refused >= 16);
    refuses.store(false, SeqCst);
    for at in 16..64 {
        // What was refused last may still be told to the first.
        while let Err(error) = region.write_at(at * PAGE, &rig::bytes(at, 2)) {
            assert_eq!(why(&error), (at * PAGE, Why::Unwritable), "{error}");
        }
    }
    (0..64).for_each(|at| check(&region, at, 2));
}

#[test]
fn a_full_device_is_an_error_and_what_is_not_wanted_makes_room() {
    let name = "a_full_device";
    let Some(region) = region(name, 64, 16, 20) else {
        return;
    };
    let mut kept = Vec::new();
    for at in 0..64 {
        match region.write_at(at * PAGE, &rig::bytes(at, 3)) {
            Ok(()) => kept.push(at),
            Err(error) => assert_eq!(why(&error), (at * PAGE, Why::DeviceFull), "{error}"),
        }
    }
    // Pages that were read back keep their slots, so that it may be fewer than both together.
    assert!((20..=36).contains(&kept.len()), "{kept:?}");
    assert!(region.resident_bytes().expect("told") <= 16 * PAGE as u64);
    let (gone, left) = kept.split_at(kept.len() / 2);
    for &at in gone {
        assert_eq!(region.dont_need(at * PAGE..(at + 1) * PAGE).ok(), Some(0));
    }
    left.iter().for_each(|&at| check(&region, at, 3));
    fill(&region, gone[0], 4);
    check(&region, gone[0], 4);
}

#[test]
fn a_page_that_is_fixed_as_often_as_can_be_counted_is_refused_and_stays() {
    let name = "a_page_that_is_fixed_as_often_as_can_be_counted";
    let Some(region) = region(name, 64, 16, 64) else {
        return;
    };
    let page = 3 * PAGE..4 * PAGE;
    fill(&region, 3, 5);
    (0..u16::MAX).for_each(|_| region.pin(page.clone()).expect("pinned"));
    // With its neighbours, one of which is had before it.
    let refused = region.fix(2 * PAGE..5 * PAGE).expect_err("once too often");
    assert_eq!(why(&refused), (3 * PAGE, Why::PinnedMost), "{refused}");
    let kept = region.dont_need(2 * PAGE..5 * PAGE);
    assert_eq!(kept.ok(), Some(1), "its neighbours are not fixed");
    region.unpin(page.clone());
    check(&region, 3, 5);
    (1..u16::MAX).for_each(|_| region.unpin(page.clone()));
    assert_eq!(region.dont_need(page).ok(), Some(0));
}

#[test]
fn fixed_pages_stay_and_the_last_memory_is_not_fixed_away() {
    let name = "fixed_pages_stay";
    let Some(mut region) = region(name, 64, 16, 64) else {
        return;
    };
    (0..64).for_each(|at| fill(&region, at, 5));
    {
        let fixed = region.fix(0..16 * PAGE).expect("as many as may be");
        assert_eq!((fixed.len(), fixed.is_empty()), (16 * PAGE, false));
        assert_eq!(fixed.as_ptr(), region.as_ptr());
        let refused = region.fix(20 * PAGE..21 * PAGE).expect_err("none is left");
        assert_eq!(why(&refused), (20 * PAGE, Why::Pinned), "{refused}");
        let faults = region.figures().counts;
        (0..16).for_each(|at| check(&region, at, 5));
        assert_eq!(region.figures().counts.major_faults, faults.major_faults);
        assert_eq!(
            region.dont_need(0..2 * PAGE).ok(),
            Some(2),
            "they are fixed"
        );
    }
    check(&region, 20, 5);
    let mut fixed = region
        .fix_mut(10 * PAGE + 5..12 * PAGE)
        .expect("there is room");
    assert_eq!(fixed.len(), 2 * PAGE - 5);
    assert_eq!(fixed[0], rig::bytes(10, 5)[5]);
    fixed.fill(0xab);
    drop(fixed);
    (12..64).for_each(|at| check(&region, at, 5));
    let mut into = [0; 2 * PAGE];
    region.read_at(10 * PAGE, &mut into).expect("it is there");
    assert_eq!(into[..5], rig::bytes(10, 5)[..5]);
    assert!(into[5..].iter().all(|&byte| byte == 0xab));
    region.pin(30 * PAGE..31 * PAGE).expect("there is room");
    let faults = region.figures().counts.major_faults;
    (40..64).for_each(|at| check(&region, at, 5));
    let before = region.figures().counts.major_faults;
    check(&region, 30, 5);
    assert!(before > faults && region.figures().counts.major_faults == before);
}

#[test]
fn what_will_be_needed_is_read_before_it_is_touched() {
    let name = "what_will_be_needed";
    let mut shape = Shape::new(64 * PAGE as u64, 32 * PAGE as u64);
    shape.prefetch = Prefetch::Off;
    let Some(region) = made(name, Region::with(shape, &device(64))) else {
        return;
    };
    (0..64).for_each(|at| fill(&region, at, 6));
    // Room for what is read.
    region.dont_need(32 * PAGE..64 * PAGE).expect("within");
    let before = region.figures().counts;
    region.will_need(0..8 * PAGE).expect("within");
    let wanted = region.figures().counts;
    assert!(wanted.ahead > before.ahead, "{wanted:?}");
    (0..8).for_each(|at| assert_eq!(page(&region, at).load(SeqCst), rig::word(at, 6)));
    let after = region.figures().counts;
    assert_eq!(after.major_faults, before.major_faults);
    assert_eq!(
        after.ahead_hits - before.ahead_hits,
        wanted.ahead - before.ahead
    );
    (0..8).for_each(|at| check(&region, at, 6));
}

#[test]
fn what_is_not_needed_reads_as_zeros_and_takes_nothing() {
    let name = "what_is_not_needed";
    let Some(region) = region(name, 64, 16, 64) else {
        return;
    };
    (0..64).for_each(|at| fill(&region, at, 7));
    assert_eq!(region.dont_need(PAGE - 1..63 * PAGE + 1).ok(), Some(0));
    check(&region, 0, 7);
    check(&region, 63, 7);
    for at in 1..63 {
        assert_eq!(page(&region, at).load(SeqCst), 0, "page {at}");
    }
    region.dont_need(0..64 * PAGE).expect("within");
    let told = |region: &Region| (region.resident_bytes().ok(), region.figures().device_bytes);
    // Pages that are still being written are given back when they have been.
    while told(&region) != (Some(0), 0) {
        std::thread::yield_now();
    }
}

#[test]
fn pages_of_zeros_are_not_written() {
    let name = "pages_of_zeros";
    let Some(region) = region(name, 128, 16, 128) else {
        return;
    };
    (0..128).for_each(|at| page(&region, at).store(0, SeqCst));
    (0..128).for_each(|at| assert_eq!(page(&region, at).load(SeqCst), 0));
    let figures = region.figures();
    assert_eq!(
        (figures.counts.refused, figures.counts.major_faults),
        (0, 0)
    );
}

#[test]
fn who_is_waited_for_is_read_by_a_handler_and_the_others_beside_it() {
    let name = "who_is_waited_for";
    let read_by = Arc::new(Mutex::new(Vec::new()));
    let log = read_by.clone();
    let refusals = Refusals::new(move |op, _| {
        if op == BlockOp::Read {
            let thread = std::thread::current().name().unwrap_or_default().to_owned();
            log.lock().expect("no holder panics").push(thread);
        }
        None
    });
    let mut shape = Shape::new(256 * PAGE as u64, 64 * PAGE as u64);
    shape.pool = Rule::Off;
    let made_of = Region::with(shape, &device(256).refusing(refusals));
    let Some(region) = made(name, made_of) else {
        return;
    };
    (0..256).for_each(|at| fill(&region, at, 8));
    read_by.lock().expect("no holder panics").clear();
    let before = region.figures().counts;
    // Room, so that what is read ahead finds some.
    region.dont_need(192 * PAGE..256 * PAGE).expect("within");
    for at in 0..192 {
        assert_eq!(page(&region, at).load(SeqCst), rig::word(at, 8));
        region
            .dont_need(at * PAGE..(at + 1) * PAGE)
            .expect("within");
    }
    let after = region.figures().counts;
    drop(region);
    let (ahead, major) = (
        (after.ahead - before.ahead) as usize,
        (after.major_faults - before.major_faults) as usize,
    );
    let read_by = read_by.lock().expect("no holder panics");
    let by = |name: &str| read_by.iter().filter(|thread| *thread == name).count();
    let (handlers, background) = (by("nyx-fault"), by("nyx-reclaim"));
    assert_eq!(read_by.first().map(String::as_str), Some("nyx-fault"));
    assert_eq!(handlers + background, ahead + major);
    assert!(ahead > 0 && background >= ahead, "{ahead} by {background}");
    assert!(handlers > 0 && handlers <= major, "{handlers} of {major}");
}

#[test]
fn shapes_and_ranges_that_cannot_be_are_refused_with_their_reason() {
    let device = device(16);
    for (len, limit, said) in [
        (
            0,
            1 << 20,
            "a region of 0 bytes in 1048576 bytes of memory: it has 1 page",
        ),
        (1 << 20, 4096, "65536 bytes at least"),
        (u64::MAX, 1 << 20, "it has 1 page of 4096 bytes to"),
    ] {
        let refused = Region::new(len, limit, &device).expect_err("it cannot be");
        assert!(refused.to_string().contains(said), "{refused}");
    }
    let Some(region) = region("ranges_that_cannot_be", 16, 16, 16) else {
        return;
    };
    for range in [0..0, 16 * PAGE..16 * PAGE + 1, 0..usize::MAX] {
        let refused = region.fix(range.clone()).expect_err("no such range");
        assert!(matches!(refused, RegionError::Range { .. }), "{refused}");
        assert!(region.will_need(range.clone()).is_err());
        assert!(region.dont_need(range).is_err());
    }
    assert!(region.write_at(16 * PAGE - 1, &[1, 2]).is_err());
    assert!(region.set_limit(1).is_err());
}

#[test]
fn a_limit_that_is_lowered_is_kept_to() {
    let name = "a_limit_that_is_lowered";
    let Some(region) = region(name, 128, 128, 128) else {
        return;
    };
    (0..128).for_each(|at| fill(&region, at, 1));
    region.set_limit(16 * PAGE as u64).expect("enough");
    while region.resident_bytes().expect("told") > 16 * PAGE as u64 {
        std::thread::yield_now();
    }
    (0..128).for_each(|at| check(&region, at, 1));
    assert!(region.resident_bytes().expect("told") <= 16 * PAGE as u64);
}

#[test]
fn no_two_regions_have_one_place_on_a_device() {
    let name = "no_two_regions";
    let device = device(128);
    let of = |begin: usize| {
        let part = device.clone().part((begin * PAGE) as u64, 64 * PAGE as u64);
        Region::new(64 * PAGE as u64, 16 * PAGE as u64, &part)
    };
    let Some(first) = made(name, of(0)) else {
        return;
    };
    let second = made(name, of(64)).expect("the first was to be had");
    let refused = of(63).expect_err("both have some of it");
    assert!(matches!(refused, RegionError::InUse { .. }), "{refused}");
    for round in 0..2 {
        (0..64).for_each(|at| fill(&first, at, round));
        (0..64).for_each(|at| fill(&second, at, round + 2));
        (0..64).for_each(|at| check(&first, at, round));
        (0..64).for_each(|at| check(&second, at, round + 2));
    }
    drop((first, second));
    let third = made(name, of(63)).expect("the others are gone");
    (0..64).for_each(|at| fill(&third, at, 5));
    (0..64).for_each(|at| check(&third, at, 5));
}

#[test]
fn memory_is_freed_before_a_fault_needs_it() {
    let name = "memory_is_freed";
    let mut shape = Shape::new(128 * PAGE as u64, 64 * PAGE as u64);
    shape.pool = Rule::Paper;
    let Some(region) = made(name, Region::with(shape, &device(128))) else {
        return;
    };
    (0..128).for_each(|at| fill(&region, at, 1));
    // Nobody asks for it: 70 % of the limit are 44 pages.
    while region.resident_bytes().expect("told") > 44 * PAGE as u64 {
        std::thread::yield_now();
    }
    let before = region.figures().counts.inline_reclaims;
    (0..16).for_each(|at| check(&region, at, 1));
    assert_eq!(region.figures().counts.inline_reclaims, before);
}

#[test]
fn a_part_of_a_device_is_all_that_is_written_to() {
    let name = "a_part_of_a_device";
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("device");
    std::fs::write(&path, vec![0x77; 80 * PAGE]).expect("room");
    let blocks = nyx_media::queue::BlockFile::open(&path).expect("it is there");
    let part = Device::new(Arc::new(blocks)).part(8 * PAGE as u64, 64 * PAGE as u64);
    let made_of = Region::new(64 * PAGE as u64, 16 * PAGE as u64, &part);
    let Some(region) = made(name, made_of) else {
        return;
    };
    (0..64).for_each(|at| fill(&region, at, 1));
    (0..64).for_each(|at| check(&region, at, 1));
    drop(region);
    let bytes = std::fs::read(&path).expect("it is there");
    let (before, rest) = bytes.split_at(8 * PAGE);
    let (part, behind) = rest.split_at(64 * PAGE);
    assert!(before.iter().chain(behind).all(|&byte| byte == 0x77));
    assert!(part.iter().any(|&byte| byte != 0x77));
}
