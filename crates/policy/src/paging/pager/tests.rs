//! The pager against a memory, a device and a program that are models: whatever happens, a page
//! holds what was written to it last, and no more pages are in memory than may be.

use super::*;

/// An engine, and the program that it serves. Numbers stand for what pages hold.
struct World {
    pager: Pager,
    acts: Vec<Act>,
    memory: Vec<Option<u64>>,
    /// Whether a page is mapped, and may be written to.
    mapped: Vec<Option<bool>>,
    device: Vec<u64>,
    truth: Vec<u64>,
    pins: Vec<u32>,
    reads: Vec<(u32, u32)>,
    writes: Vec<(u32, u32)>,
    /// What threads of the program wait for: a page, and what they will write.
    wants: Vec<(u32, Option<u64>)>,
    /// All that was done.
    log: Vec<Act>,
    failed: Vec<Why>,
}

impl World {
    fn new(shape: Shape) -> World {
        let pages = shape.pages as usize;
        World {
            pager: Pager::new(shape),
            acts: Vec::new(),
            memory: vec![None; pages],
            mapped: vec![None; pages],
            device: vec![u64::MAX; shape.slots as usize],
            truth: vec![0; pages],
            pins: vec![0; pages],
            reads: Vec::new(),
            writes: Vec::new(),
            wants: Vec::new(),
            log: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// A thread touches a page; it waits where it has to.
    fn touch(&mut self, page: u32, value: Option<u64>) {
        match (self.mapped[page as usize], value) {
            (Some(true), _) | (Some(false), None) => self.access(page, value),
            _ => {
                self.wants.push((page, value));
                self.pager.fault(page, value.is_some(), &mut self.acts);
                self.carry_out();
            }
        }
    }

    fn access(&mut self, page: u32, value: Option<u64>) {
        let page = page as usize;
        assert_eq!(self.memory[page], Some(self.truth[page]), "page {page}");
        if let Some(value) = value {
            (self.memory[page], self.truth[page]) = (Some(value), value);
        }
    }

    fn carry_out(&mut self) {
        let mut done = 0;
        while let Some(&act) = self.acts.get(done) {
            done += 1;
            self.log.push(act);
            self.carry_out_one(act);
        }
        self.acts.clear();
        self.check();
    }

    fn carry_out_one(&mut self, act: Act) {
        match act {
            Act::Zero { page, writable } => {
                assert_eq!(self.truth[page as usize], 0, "page {page} was lost");
                assert!(self.memory[page as usize].replace(0).is_none());
                self.map(page, writable);
            }
            Act::Map { page, writable } => self.map(page, writable),
            Act::Allow { page } => {
                let was = self.mapped[page as usize].replace(true);
                assert_eq!(was, Some(false), "page {page}");
            }
            Act::Unmap { page } => {
                assert_eq!(self.pins[page as usize], 0, "page {page} is pinned");
                assert!(self.mapped[page as usize].take().is_some());
            }
            Act::Read { page, slot, .. } => {
                assert!(self.memory[page as usize].replace(u64::MAX - 1).is_none());
                self.reads.push((page, slot));
            }
            Act::Write { page, slot } => {
                assert!(self.writes.iter().all(|&(_, other)| other != slot));
                self.writes.push((page, slot));
            }
            Act::Free { page } => {
                assert_eq!(self.mapped[page as usize], None, "page {page} is mapped");
                assert!(self.writes.iter().all(|&(other, _)| other != page));
                assert!(self.memory[page as usize].take().is_some());
            }
            Act::Fail { page, why } => {
                self.failed.push(why);
                self.wants.retain(|&(other, _)| other != page);
            }
        }
    }

    /// All that wait for the page go on; one that may not write yet faults again.
    fn map(&mut self, page: u32, writable: bool) {
        self.mapped[page as usize] = Some(writable);
        let (served, others) = std::mem::take(&mut self.wants)
            .into_iter()
            .partition(|&(other, _)| other == page);
        self.wants = others;
        let served: Vec<(u32, Option<u64>)> = served;
        for (page, value) in served {
            match value.is_some() && !writable {
                true => {
                    self.wants.push((page, value));
                    self.pager.fault(page, true, &mut self.acts);
                }
                false => self.access(page, value),
            }
        }
    }

    fn check(&self) {
        let used = self.memory.iter().flatten().count();
        assert_eq!(used, self.pager.used_pages() as usize);
        let slots = (0..self.pager.table.pages())
            .filter(|&page| self.pager.table.get(page).slot().is_some())
            .count();
        assert_eq!(slots, self.pager.slots_taken() as usize);
        for page in 0..self.pager.table.pages() {
            let held = match self.pager.content(page) {
                Content::Zeros => Some(0),
                Content::Memory => self.memory[page as usize],
                Content::Device(slot) => Some(self.device[slot as usize]),
            };
            assert_eq!(held, Some(self.truth[page as usize]), "page {page}");
            let (entry, mapped) = (self.pager.table.get(page), self.mapped[page as usize]);
            assert_eq!(mapped.is_some(), entry.state() == State::Resident);
            assert!(mapped != Some(true) || entry.is(DIRTY), "page {page}");
            assert!(!entry.is(TO_MAP) || entry.state() == State::Reading);
            assert!(!entry.is(AHEAD) || entry.has_frame());
        }
    }

    fn read_done(&mut self, index: usize, is_good: bool) {
        let (page, slot) = self.reads.swap_remove(index);
        if is_good {
            self.memory[page as usize] = Some(self.device[slot as usize]);
        }
        self.pager.read_done(page, is_good, &mut self.acts);
        self.carry_out();
    }

    /// The device has what the page holds by now, however late that was written.
    fn write_done(&mut self, index: usize, is_good: bool) {
        let (page, slot) = self.writes.swap_remove(index);
        let value = self.memory[page as usize].expect("it keeps its memory");
        let written = match (is_good, value) {
            (false, _) => Written::Refused,
            (true, 0) => Written::Zeros,
            (true, _) => Written::Kept,
        };
        // What stood there is lost where it was refused too.
        self.device[slot as usize] = if is_good { value } else { u64::MAX };
        self.pager.write_done(page, written, &mut self.acts);
        self.carry_out();
    }

    /// The device does all that it was asked for.
    fn settle(&mut self) {
        while !self.reads.is_empty() || !self.writes.is_empty() {
            while !self.reads.is_empty() {
                self.read_done(0, true);
            }
            while !self.writes.is_empty() {
                self.write_done(0, true);
            }
        }
    }

    fn touch_and_settle(&mut self, page: u32, value: Option<u64>) {
        self.touch(page, value);
        self.settle();
        assert_eq!(self.wants, [], "page {page} never came");
    }

    fn reclaim(&mut self, pages: u32) -> u32 {
        let freed = self.pager.reclaim(pages, &mut self.acts);
        self.carry_out();
        freed
    }

    /// As a reclaimer does that keeps so many pages free.
    fn keep_free(&mut self, pages: u32) {
        while self.pager.used_pages() + pages > self.pager.limit_pages() {
            self.reclaim(pages);
            self.settle();
        }
    }

    /// All pages leave memory.
    fn empty(&mut self) {
        for _ in 0..1_000 {
            self.reclaim(64);
            self.settle();
        }
        assert_eq!(self.pager.used_pages(), 0);
        self.log.clear();
    }
}

const SHAPE: Shape = Shape {
    pages: 64,
    limit_pages: 16,
    slots: 64,
    prefetch: Prefetch::Off,
};

/// A world whose pages were all written, and are on the device.
fn written(shape: Shape) -> World {
    let mut world = World::new(shape);
    for page in 0..shape.pages {
        world.touch_and_settle(page, Some(u64::from(page) + 1));
    }
    world.empty();
    world
}

const PREFETCHES: [Prefetch; 5] = [
    Prefetch::Off,
    Prefetch::Cluster,
    Prefetch::Trend,
    Prefetch::Stream,
    Prefetch::Stream,
];

fn random_run(seed: u64) -> Counts {
    let mut rng = fastrand::Rng::with_seed(seed);
    let pages = rng.u32(2..200);
    let limit = rng.u32(1..=pages);
    let mut world = World::new(Shape {
        pages,
        limit_pages: limit,
        slots: rng.u32(1..=pages * 2),
        prefetch: PREFETCHES[rng.usize(0..PREFETCHES.len())],
    });
    let bad = [0.0, 0.02, 0.3][rng.usize(0..3)];
    let (in_order, is_down) = ([1, 2, 9][rng.usize(0..3)], rng.bool());
    let mut next = 0;
    for step in 1..3_000 {
        next = match rng.u8(0..2 + in_order) {
            0 | 1 => rng.u32(0..pages),
            _ if is_down => (next + pages - 1) % pages,
            _ => (next + 1) % pages,
        };
        let page = next;
        let is_pinned = world.pins[page as usize] > 0;
        match rng.u8(0..20) {
            0..6 => world.touch(page, None),
            6..10 => world.touch(page, Some([0, step][rng.usize(0..2)])),
            10..13 if !world.reads.is_empty() => {
                world.read_done(rng.usize(..world.reads.len()), rng.f64() >= bad);
            }
            13..16 if !world.writes.is_empty() => {
                world.write_done(rng.usize(..world.writes.len()), rng.f64() >= bad);
            }
            16 => drop(world.reclaim(rng.u32(1..20))),
            17 => forget(&mut world, page),
            18 if is_pinned => unpin(&mut world, page),
            18 if world.pins.iter().sum::<u32>() < limit / 2 => pin(&mut world, page),
            19 => {
                world.pager.will_need(page, &mut world.acts);
                world.carry_out();
            }
            _ => {}
        }
        assert!(world.pager.used_pages() <= limit, "seed {seed}");
    }
    world.settle();
    assert_eq!(world.wants, [], "seed {seed}: somebody waits for ever");
    for page in 0..pages {
        world.touch(page, None);
        world.settle();
    }
    world.pager.counts()
}

fn forget(world: &mut World, page: u32) {
    let is_gone = world.pager.forget(page, &mut world.acts);
    assert_eq!(is_gone, world.pins[page as usize] == 0);
    if is_gone {
        world.truth[page as usize] = 0;
    }
    world.carry_out();
}

fn pin(world: &mut World, page: u32) {
    world.pins[page as usize] += 1;
    assert!(world.pager.pin(page, &mut world.acts));
    world.carry_out();
}

fn unpin(world: &mut World, page: u32) {
    world.pins[page as usize] -= 1;
    world.pager.unpin(page);
}

#[test]
fn whatever_happens_a_page_holds_what_was_written_last() {
    let mut all = Counts::default();
    for seed in 0..200 {
        let counts = random_run(seed);
        all.major_faults += counts.major_faults;
        all.ahead_hits += counts.ahead_hits;
        all.kept += counts.kept;
        all.failed += counts.failed;
        all.refused += counts.refused;
        all.mapped_ahead += counts.mapped_ahead;
        all.zeros_ahead += counts.zeros_ahead;
        all.allowed_ahead += counts.allowed_ahead;
    }
    // All of it happened.
    let Counts {
        major_faults,
        ahead_hits,
        kept,
        failed,
        refused,
        mapped_ahead,
        zeros_ahead,
        allowed_ahead,
        ..
    } = all;
    let ahead = [ahead_hits, mapped_ahead, zeros_ahead, allowed_ahead];
    let least = [[major_faults, kept, failed].as_slice(), &[refused], &ahead].concat();
    assert!(least.iter().all(|&count| count > 100), "{all:?}");
}

#[test]
fn the_page_that_is_waited_for_is_read_first_and_the_others_of_its_cluster_after_it() {
    let mut world = written(Shape {
        prefetch: Prefetch::Cluster,
        ..SHAPE
    });
    for page in 0..24 {
        world.touch_and_settle(page, None);
    }
    world.empty();
    world.touch(37, None);
    let pages: Vec<(u32, bool)> = world
        .log
        .iter()
        .filter_map(|act| match *act {
            Act::Read {
                page, is_critical, ..
            } => Some((page, is_critical)),
            _ => None,
        })
        .collect();
    assert_eq!(pages[0], (37, true));
    assert!(pages.len() > 1, "what was read ahead was used: {pages:?}");
    let others = &pages[1..];
    assert!(
        others
            .iter()
            .all(|&(page, is_critical)| page / 8 == 37 / 8 && !is_critical)
    );
}

#[test]
fn two_who_touch_a_page_at_once_wait_for_one_read() {
    let mut world = written(SHAPE);
    world.touch(5, None);
    world.touch(5, Some(70));
    world.touch(5, None);
    assert_eq!(world.reads.len(), 1);
    world.settle();
    assert_eq!(world.wants, []);
    assert_eq!(world.truth[5], 70);
    let maps = world.log.iter();
    let maps = maps.filter(|act| matches!(act, Act::Map { page: 5, .. }));
    assert_eq!(maps.count(), 1, "who writes is remembered");
}

#[test]
fn reclaim_waits_for_no_write_and_frees_what_was_written_later() {
    let mut world = World::new(SHAPE);
    for page in 0..16 {
        world.touch(page, Some(1));
    }
    assert_eq!(world.reclaim(4), 0);
    assert_eq!(world.writes.len(), 4);
    assert_eq!(world.reclaim(4), 0, "what is on its way is counted");
    assert_eq!(world.writes.len(), 4);
    world.write_done(0, true);
    world.write_done(0, true);
    assert_eq!(world.reclaim(4), 2);
    assert_eq!(world.pager.counts().inline_reclaims, 0);
}

#[test]
fn a_fault_without_memory_reclaims_and_is_counted() {
    let mut world = World::new(SHAPE);
    for page in 0..17 {
        world.touch_and_settle(page, Some(9));
        assert!(world.pager.used_pages() <= 16);
    }
    assert_eq!(world.pager.counts().inline_reclaims, 1);
}

#[test]
fn what_is_the_same_on_the_device_leaves_without_a_write() {
    let mut world = written(SHAPE);
    let writes = world.pager.counts().writes;
    for page in 0..10 {
        world.touch_and_settle(page, None);
    }
    world.empty();
    assert_eq!(world.pager.counts().writes, writes);
    world.touch_and_settle(3, Some(5));
    world.empty();
    assert_eq!(world.pager.counts().writes, writes + 1);
    world.touch_and_settle(3, None);
    world.empty();
    assert_eq!(world.pager.counts().writes, writes + 1, "it was only read");
}

#[test]
fn it_is_told_for_what_who_touches_a_page_waits() {
    let mut world = written(SHAPE);
    world.touch(0, None);
    assert_eq!(world.pager.waits_for(0), Some(true), "a read");
    world.settle();
    assert_eq!(world.pager.waits_for(0), None);
    world.touch_and_settle(0, Some(7));
    while world.writes.iter().all(|&(page, _)| page != 0) {
        world.reclaim(1);
    }
    assert_eq!(world.pager.waits_for(0), None, "it is there");
    forget(&mut world, 0);
    assert_eq!(world.pager.waits_for(0), Some(false), "a write");
    world.settle();
    assert_eq!(world.pager.waits_for(0), None);
}

#[test]
fn zeros_take_neither_a_read_nor_a_slot() {
    let mut world = World::new(SHAPE);
    for page in 0..10 {
        world.touch_and_settle(page, None);
        world.touch_and_settle(page + 20, Some(0));
    }
    world.empty();
    assert_eq!(world.pager.slots_taken(), 0);
    world.touch_and_settle(4, None);
    world.touch_and_settle(24, None);
    assert_eq!(world.pager.counts().major_faults, 0);
}

#[test]
fn where_the_device_is_full_who_needs_memory_is_told_and_nobody_loses_a_page() {
    let mut world = World::new(Shape { slots: 10, ..SHAPE });
    for page in 0..64 {
        world.touch(page, Some(7));
        world.settle();
    }
    assert_eq!(world.failed, [Why::DeviceFull; 64 - 26]);
    forget(&mut world, 0);
    world.touch_and_settle(63, Some(8));
    for page in 1..20 {
        world.touch_and_settle(page, None);
    }
}

#[test]
fn pages_that_need_no_slot_leave_where_the_device_is_full() {
    let mut world = World::new(Shape { slots: 4, ..SHAPE });
    for page in 0..12 {
        world.touch_and_settle(page, Some(1));
    }
    // Zeros that were read only stand behind those for which there is no slot.
    for page in 20..40 {
        world.touch_and_settle(page, None);
    }
    assert_eq!(world.failed, []);
}

#[test]
fn a_device_that_refuses_all_writes_fails_who_needs_memory_and_keeps_what_is_there() {
    let mut world = World::new(SHAPE);
    for page in 0..16 {
        world.touch(page, Some(3));
    }
    world.touch(16, Some(4));
    for _ in 0..100 {
        if !world.writes.is_empty() {
            world.write_done(0, false);
        }
    }
    assert_eq!(world.failed, [Why::Unwritable]);
    for page in 0..16 {
        world.touch_and_settle(page, None);
    }
}

#[test]
fn a_page_that_cannot_be_read_fails_and_can_be_tried_again() {
    let mut world = written(SHAPE);
    world.touch(9, None);
    world.read_done(0, false);
    assert_eq!(world.failed, [Why::Unreadable]);
    assert_eq!(world.pager.state(9), State::OnDevice);
    world.touch_and_settle(9, None);
}

#[test]
fn where_all_memory_is_pinned_who_needs_some_is_told() {
    let mut world = World::new(SHAPE);
    (0..16).for_each(|page| pin(&mut world, page));
    world.touch(16, None);
    assert_eq!(world.failed, [Why::Pinned]);
    unpin(&mut world, 3);
    world.touch_and_settle(16, None);
}

#[test]
fn a_page_is_pinned_as_often_as_can_be_counted_and_no_more() {
    let mut world = World::new(SHAPE);
    (0..u16::MAX).for_each(|_| pin(&mut world, 5));
    assert!(!world.pager.pin(5, &mut world.acts));
    assert!(world.acts.is_empty());
    // And is given back as often.
    (0..u16::MAX).for_each(|_| unpin(&mut world, 5));
    assert!(world.pager.forget(5, &mut world.acts));
}

#[test]
fn pages_that_are_used_again_and_again_stay_beside_those_that_are_used_once() {
    let mut world = written(Shape {
        pages: 4_000,
        limit_pages: 160,
        slots: 4_000,
        prefetch: Prefetch::Off,
    });
    // Eight pages in turn, and four others for each of them that are used once: 3,200 in all.
    let before = world.pager.counts().major_faults;
    let mut cold = 100..;
    for _ in 0..100 {
        for hot in 0..8 {
            world.touch_and_settle(hot, None);
            for page in cold.by_ref().take(4) {
                world.touch_and_settle(page, None);
            }
        }
    }
    let read = world.pager.counts().major_faults - before - 3_200;
    // First in, first out would read each of the eight once in four rounds, 200 in all.
    assert!(read <= 16, "{read}");

    // And they stay where as many others are used once as take all memory several times.
    for page in cold.take(400) {
        world.touch_and_settle(page, None);
    }
    let before = world.pager.counts().major_faults;
    (0..8).for_each(|hot| world.touch_and_settle(hot, None));
    assert_eq!(world.pager.counts().major_faults, before);
}

#[test]
fn a_lower_limit_is_reached_by_reclaiming() {
    let mut world = written(SHAPE);
    for page in 0..16 {
        world.touch_and_settle(page, Some(2));
    }
    world.pager.set_limit(4, &mut world.acts);
    world.carry_out();
    for _ in 0..4 {
        let above = world.pager.used_pages().saturating_sub(4);
        world.reclaim(above);
        world.settle();
    }
    assert!(world.pager.used_pages() <= 4);
    for page in 0..64 {
        world.touch_and_settle(page, None);
        assert!(world.pager.used_pages() <= 4);
    }
}

#[test]
fn who_touches_a_page_after_the_limit_was_lowered_waits_until_it_is_reached() {
    for value in [None, Some(3)] {
        let mut world = World::new(Shape {
            limit_pages: 60,
            ..SHAPE
        });
        for page in 0..60 {
            world.touch_and_settle(page, None);
        }
        world.pager.set_limit(4, &mut world.acts);
        world.carry_out();
        world.touch(62, value);
        world.settle();
        assert_eq!(world.failed, []);
        assert_eq!(world.wants, [(62, value)]);
        while world.pager.used_pages() > 4 {
            assert!(world.reclaim(8) > 0);
            world.settle();
        }
        assert_eq!((world.failed.len(), world.wants.len()), (0, 0));
    }
}

const STREAM: Shape = Shape {
    pages: 4_000,
    limit_pages: 800,
    slots: 4_000,
    prefetch: Prefetch::Stream,
};

/// Faults since then, with and without a read.
fn faults_since(world: &World, before: Counts) -> (u64, u64) {
    let counts = world.pager.counts();
    (
        counts.major_faults - before.major_faults,
        counts.minor_faults - before.minor_faults,
    )
}

#[test]
fn a_scan_has_one_fault_for_each_window_and_waits_for_the_first_two_pages_only() {
    for is_down in [false, true] {
        let mut world = written(STREAM);
        let before = world.pager.counts();
        for count in 0..4_000 {
            let page = if is_down { 3_999 - count } else { count };
            world.touch_and_settle(page, None);
            world.keep_free(64);
        }
        let (major, minor) = faults_since(&world, before);
        assert_eq!(major, 2);
        // 1, 2, 4, 8 and 16 pages come before windows of 32.
        assert!((4_000 / 32..4_000 / 32 + 6).contains(&minor), "{minor}");
        let counts = world.pager.counts();
        assert_eq!(counts.ahead_hits - before.ahead_hits, minor);
        assert_eq!(counts.ahead, 3_998);
        assert_eq!(counts.mapped_ahead, 3_998 - minor);
        assert_eq!(counts.inline_reclaims, before.inline_reclaims);
    }
}

#[test]
fn the_next_window_is_read_when_the_marker_is_touched_also_while_that_is_being_read() {
    let mut world = written(STREAM);
    (0..10).for_each(|page| world.touch_and_settle(page, None));
    // Behind 0 and 1 stand windows of 1, 2, 4 and 8 pages: 2, 3..5, 5..9 and 9..17.
    let is_at = |world: &World, page| (world.pager.state(page), world.reads.len());
    assert_eq!(is_at(&world, 17), (State::Unmapped, 0));
    assert_eq!(is_at(&world, 18), (State::Resident, 0));
    world.log.clear();
    world.touch(17, None);
    let writable = false;
    assert_eq!(world.log[0], Act::Map { page: 17, writable });
    assert_eq!(is_at(&world, 33), (State::Reading, 32));
    let major = world.pager.counts().major_faults;
    world.touch(33, None);
    assert_eq!(is_at(&world, 33), (State::Reading, 64));
    world.settle();
    assert_eq!(world.wants, []);
    assert_eq!(world.pager.counts().major_faults, major);
}

#[test]
fn what_is_read_ahead_takes_no_memory_that_is_not_free() {
    let mut world = written(STREAM);
    // In no order: 2 and 7 pages apart.
    let apart = (0..790).map(|at| 300 + 9 * (at / 2) + 2 * (at % 2));
    apart.for_each(|page| world.touch_and_settle(page, Some(1)));
    let before = world.pager.counts();
    for page in 0..6 {
        world.touch_and_settle(page, None);
    }
    let counts = world.pager.counts();
    assert_eq!(world.pager.used_pages(), 800);
    assert_eq!(counts.inline_reclaims, before.inline_reclaims);
    // 2, 3..5, and of 5..9 that for which there is room.
    assert_eq!(faults_since(&world, before).0, 2);
    assert_eq!(counts.ahead - before.ahead, 7 + 1);
}

#[test]
fn what_was_mapped_ahead_leaves_first_and_is_not_taken_for_used() {
    let mut world = written(STREAM);
    (0..10).for_each(|page| world.touch_and_settle(page, None));
    let before = world.pager.counts();
    assert_eq!(world.pager.state(12), State::Resident);
    while world.pager.state(12) == State::Resident {
        world.reclaim(1);
    }
    assert_eq!(world.pager.state(12), State::Unmapped);
    world.touch(12, None);
    let counts = world.pager.counts();
    assert_eq!(counts.kept, before.kept);
    assert_eq!(counts.ahead_hits, before.ahead_hits + 1);
    // A write to what was mapped ahead is a fault, and a use that is seen.
    world.touch_and_settle(13, None);
    world.touch_and_settle(13, Some(77));
    assert_eq!(world.mapped[13], Some(true));
    assert!(world.pager.counts().ahead_hits > counts.ahead_hits);
}

#[test]
fn fresh_pages_that_are_touched_in_order_are_zeros_ahead_where_memory_is_to_spare() {
    let mut world = World::new(STREAM);
    let fill = |world: &mut World, pages: std::ops::Range<u32>| {
        let before = world.pager.counts();
        pages.for_each(|page| world.touch_and_settle(page, Some(u64::from(page) + 1)));
        faults_since(world, before)
    };
    // 2 faults, 1, 2, 4, 8 and 16 pages, then 32 for each fault.
    let (_, minor) = fill(&mut world, 0..640);
    assert!((640 / 33..640 / 33 + 7).contains(&minor), "{minor}");
    let counts = world.pager.counts();
    assert!(
        (620..660).contains(&counts.zeros_ahead),
        "{}",
        counts.zeros_ahead
    );
    // They have half of what is free at most.
    for page in 640..799 {
        let free = 800 - world.pager.used_pages();
        let (_, minor) = fill(&mut world, page..page + 1);
        let left = 800 - world.pager.used_pages();
        assert!(left >= (free - minor as u32) / 2, "{free} {left}");
    }
    fill(&mut world, 799..800);
    let counts = world.pager.counts();
    assert_eq!((counts.inline_reclaims, counts.major_faults), (0, 0));
    world.empty();
    // What was never written to takes no place.
    assert_eq!(world.pager.slots_taken(), 800);
}

#[test]
fn what_is_written_to_in_order_is_a_fault_for_each_window() {
    // Each page is read first; written to at once; up and down.
    let (up, down): (Vec<u32>, Vec<u32>) = ((0..640).collect(), (0..640).rev().collect());
    for (order, is_read) in [(&up, true), (&up, false), (&down, true), (&down, false)] {
        let mut world = written(STREAM);
        let before = world.pager.counts();
        for &page in order {
            if is_read {
                world.touch_and_settle(page, None);
            }
            world.touch_and_settle(page, Some(u64::from(page) + 9));
        }
        let counts = world.pager.counts();
        let write_faults = counts.write_faults - before.write_faults;
        // One for each window and two or three for its marker, and some until it is so large.
        assert!(write_faults < 4 * 640 / 32 + 10, "{write_faults}");
        assert!(counts.allowed_ahead - before.allowed_ahead > 640 - 120);
    }
}

#[test]
fn what_is_written_to_here_and_there_is_allowed_no_more() {
    let mut world = written(STREAM);
    (0..640).for_each(|page| world.touch_and_settle(page, None));
    let before = world.pager.counts();
    let mut rng = fastrand::Rng::with_seed(5);
    for _ in 0..100 {
        // Never two side by side.
        world.touch_and_settle(2 * rng.u32(..320), Some(9));
    }
    let counts = world.pager.counts();
    assert_eq!(counts.allowed_ahead, before.allowed_ahead);
    assert!(counts.write_faults - before.write_faults > 80);
}

#[test]
fn what_is_allowed_for_nothing_is_no_more_than_a_window() {
    let mut world = written(STREAM);
    (0..640).for_each(|page| world.touch_and_settle(page, None));
    let before = world.pager.counts().writes;
    (0..200).for_each(|page| world.touch_and_settle(page, Some(9)));
    world.empty();
    let writes = world.pager.counts().writes - before;
    assert!((200..=232).contains(&writes), "{writes}");
}

/// Touches all pages in no order, as many times, each read and then written to if `writes`;
/// whether faults, writes to the device and pages that were mapped to be written to.
fn rounds(world: &mut World, pages: u32, times: u32, writes: bool) -> Counts {
    let before = world.pager.counts();
    let mut rng = fastrand::Rng::with_seed(11);
    let mut order: Vec<u32> = (0..pages).collect();
    for time in 0..times {
        rng.shuffle(&mut order);
        for &page in &order {
            world.touch_and_settle(page, None);
            if writes {
                world.touch_and_settle(page, Some(u64::from(time) + 1));
            }
            world.keep_free(16);
        }
    }
    let counts = world.pager.counts();
    Counts {
        write_faults: counts.write_faults - before.write_faults,
        writes: counts.writes - before.writes,
        foreseen: counts.foreseen - before.foreseen,
        ..Counts::default()
    }
}

#[test]
fn what_was_written_to_the_last_time_is_mapped_to_be_written_to() {
    let mut world = written(STREAM);
    let first = rounds(&mut world, 4_000, 1, true);
    assert!(first.write_faults > 3_000, "{first:?}");
    let later = rounds(&mut world, 4_000, 3, true);
    // One in sixteen is tried, and what is unmapped and comes back is none of them.
    assert!(later.write_faults < 12_000 / 8, "{later:?}");
    assert!(
        later.foreseen > 10_000 && later.writes < 12_500,
        "{later:?}"
    );
}

#[test]
fn what_is_only_read_any_more_is_soon_written_no_more() {
    let mut world = written(STREAM);
    rounds(&mut world, 4_000, 2, true);
    let first = rounds(&mut world, 4_000, 1, false);
    // What was in memory and changed, and what was mapped before that was noticed.
    assert!(first.writes < 800 + 400, "{first:?}");
    let later = rounds(&mut world, 4_000, 2, false);
    assert_eq!((later.foreseen, later.write_faults), (0, 0));
    assert!(later.writes < 100, "{later:?}");
    // What was written once, and read since, never was mapped so, nor where its first touch was to
    // read.
    let mut world = World::new(STREAM);
    for page in 0..4_000 {
        world.touch_and_settle(page, None);
        world.touch_and_settle(page, Some(1));
        world.keep_free(16);
    }
    let read = rounds(&mut world, 4_000, 3, false);
    assert_eq!((read.foreseen, read.write_faults), (0, 0));
    assert!(read.writes < 1_000, "{read:?}");
}

/// Reads while all pages of a range are touched in order.
fn pass(world: &mut World, pages: std::ops::Range<u32>) -> u64 {
    let reads = |world: &World| world.pager.counts().ahead + world.pager.counts().major_faults;
    let before = reads(world);
    for page in pages {
        world.touch_and_settle(page, None);
        world.keep_free(16);
    }
    reads(world) - before
}

#[test]
fn of_a_loop_over_more_than_memory_as_much_stays_as_fits() {
    let mut world = written(STREAM);
    for _ in 0..6 {
        pass(&mut world, 0..1_200);
    }
    // 800 pages are in memory, of which an eighth to a quarter is for what comes and goes; all
    // would be read again by first in, first out.
    let read = pass(&mut world, 0..1_200);
    assert!((400..800).contains(&read), "{read}");
}

#[test]
fn what_stayed_of_a_loop_leaves_when_another_one_fits() {
    let mut world = written(STREAM);
    for _ in 0..6 {
        pass(&mut world, 0..1_200);
    }
    let all: Vec<u64> = (0..40).map(|_| pass(&mut world, 2_000..2_600)).collect();
    assert!(all.ends_with(&[0, 0, 0]), "{all:?}");
}

#[test]
fn a_scan_leaves_what_is_used_again_and_again_where_it_is() {
    let mut world = written(STREAM);
    let mut rng = fastrand::Rng::with_seed(5);
    let mut major = 0;
    for count in 0..9_000 {
        pass(&mut world, count % 3_000..count % 3_000 + 1);
        let before = world.pager.counts();
        world.touch_and_settle(3_200 + rng.u32(..400), None);
        major += faults_since(&world, before).0;
    }
    // Each of them was read once, and few again.
    assert!((350..700).contains(&major), "{major}");
}

#[test]
fn on_random_access_nothing_is_mapped_ahead_and_next_to_nothing_read() {
    let mut world = written(STREAM);
    let mut rng = fastrand::Rng::with_seed(11);
    let before = world.pager.counts();
    for _ in 0..4_000 {
        world.touch_and_settle(rng.u32(..4_000), None);
        world.keep_free(64);
    }
    let counts = world.pager.counts();
    let (major, _) = faults_since(&world, before);
    // Of 4,000 pages some stand beside each other.
    assert!(counts.ahead - before.ahead < major / 50, "{counts:?}");
    assert!(counts.mapped_ahead - before.mapped_ahead < 10, "{counts:?}");

    let mut world = World::new(STREAM);
    for _ in 0..500 {
        world.touch_and_settle(rng.u32(..4_000), Some(1));
    }
    assert!(world.pager.counts().zeros_ahead < 20);
}
