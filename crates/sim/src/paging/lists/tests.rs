//! The lists against a memory, a device and a program that are models: each rule by itself, and
//! random runs in which no page is lost and none stands on two lists.
//!
//! What it never does: ask the lists what a page holds. *Thread safety*: one thread each.

use super::scan::{BATCH_PAGES, active_ratio};
use super::*;
use nyx_base::Rng;
use nyx_policy::paging::pager::Prefetch;

const CPUS: usize = 3;
/// The processor whose scans are of so many pages as a test says.
const BY_HAND: usize = CPUS;

/// A machine without time. Numbers stand for what pages hold.
struct World {
    lists: Lists,
    acts: Vec<Act>,
    memory: Vec<Option<u64>>,
    /// Whether a page is mapped, and may be written to.
    mapped: Vec<Option<bool>>,
    device: Vec<u64>,
    truth: Vec<u64>,
    /// Pages on their way in, and where they lie.
    reads: Vec<(u32, u32)>,
    /// Pages on their way out, where to, and what they held.
    writes: Vec<(u32, u32, u64)>,
    /// What threads of the program wait for: a page, and what they will write.
    wants: Vec<(u32, Option<u64>)>,
    /// All that was done.
    log: Vec<Act>,
}

fn shape(pages: u32, limit_pages: u32, prefetch: Prefetch) -> Shape {
    Shape {
        pages,
        limit_pages,
        slots: pages,
        prefetch,
    }
}

impl World {
    fn new(shape: Shape, writes: Writes) -> World {
        let pages = shape.pages as usize;
        World {
            lists: Lists::new(shape, writes),
            acts: Vec::new(),
            memory: vec![None; pages],
            mapped: vec![None; pages],
            device: vec![u64::MAX; shape.slots as usize],
            truth: vec![0; pages],
            reads: Vec::new(),
            writes: Vec::new(),
            wants: Vec::new(),
            log: Vec::new(),
        }
    }

    /// With so many pages written to, in their order, and memory for all.
    fn loaded(pages: u32, writes: Writes) -> World {
        let mut world = World::new(shape(pages, pages, Prefetch::Off), writes);
        for page in 0..pages {
            world.touch(page, Some(u64::from(page) + 1));
        }
        world
    }

    /// A thread touches a page; it waits where it has to.
    fn touch(&mut self, page: u32, value: Option<u64>) {
        match (self.mapped[page as usize], value) {
            (Some(true), _) | (Some(false), None) => self.access(page, value),
            _ => {
                self.wants.push((page, value));
                self.lists.fault(page, value.is_some(), &mut self.acts);
                self.carry_out();
            }
        }
    }

    fn access(&mut self, page: u32, value: Option<u64>) {
        self.lists.touched(page);
        let page = page as usize;
        assert_eq!(self.memory[page], Some(self.truth[page]), "page {page}");
        if let Some(value) = value {
            assert_eq!(self.mapped[page], Some(true));
            (self.memory[page], self.truth[page]) = (Some(value), value);
        }
    }

    /// All that wait for the page go on.
    fn wake(&mut self, page: u32) {
        let all = std::mem::take(&mut self.wants);
        let (woken, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|want| want.0 == page);
        self.wants = others;
        for (page, value) in woken {
            self.access(page, value);
        }
    }

    fn carry_out(&mut self) {
        for act in std::mem::take(&mut self.acts) {
            self.log.push(act);
            match act {
                Act::Zero { page, writable } => {
                    assert_eq!(self.memory[page as usize].replace(0), None);
                    self.mapped[page as usize] = Some(writable);
                    self.wake(page);
                }
                Act::Map { page, writable } => {
                    assert!(self.reads.iter().all(|read| read.0 != page));
                    self.mapped[page as usize] = Some(writable);
                    self.wake(page);
                }
                Act::Unmap { page } => assert!(self.mapped[page as usize].take().is_some()),
                Act::Read { page, slot, .. } => {
                    assert_eq!(self.memory[page as usize].replace(u64::MAX), None);
                    self.reads.push((page, slot));
                }
                Act::Write { page, slot } => {
                    assert_eq!(self.mapped[page as usize], None);
                    let held = self.memory[page as usize].expect("it is in memory");
                    assert!(self.writes.iter().all(|write| write.0 != page));
                    self.writes.push((page, slot, held));
                }
                Act::Free { page } => {
                    assert_eq!(self.mapped[page as usize], None);
                    assert!(self.writes.iter().all(|write| write.0 != page));
                    assert!(self.memory[page as usize].take().is_some());
                }
                Act::Fail { page, .. } => self.wants.retain(|want| want.0 != page),
                Act::Allow { .. } => unreachable!("there are dirty bits"),
            }
        }
        self.check();
    }

    /// Each page in memory stands at one place, which it knows; no slot is given twice.
    fn check(&self) {
        let lists = &self.lists;
        assert!(lists.used <= lists.limit);
        // Large ones are there to be counted.
        if self.memory.len() > 100 {
            return;
        }
        let mut standing = lists.active.pages();
        standing.extend(lists.inactive.pages());
        for (page, entry) in (0..).zip(&lists.entries) {
            let at = page as usize;
            let has_memory = entry.place != Place::Nowhere;
            assert_eq!(self.memory[at].is_some(), has_memory, "page {page}");
            assert_eq!(self.mapped[at].is_some(), entry.state == State::Resident);
            if entry.place == Place::Held {
                let mut scans = lists.scans.values();
                assert!(scans.any(|scan| scan.held.contains(&page)), "page {page}");
                standing.push(page);
            }
        }
        assert_eq!(standing.len(), lists.used as usize);
        standing.sort_unstable();
        let in_memory = (0..self.memory.len()).filter(|&page| self.memory[page].is_some());
        assert!(standing.into_iter().eq(in_memory.map(|page| page as u32)));
        let taken = lists.entries.iter().filter_map(|entry| entry.slot);
        let mut slots: Vec<u32> = taken.chain(lists.free_slots.iter().copied()).collect();
        slots.sort_unstable();
        assert!(slots.into_iter().eq(0..self.device.len() as u32));
    }

    fn read_done(&mut self, at: usize) {
        let (page, slot) = self.reads.swap_remove(at);
        self.memory[page as usize] = Some(self.device[slot as usize]);
        self.lists.read_done(page, &mut self.acts);
        self.carry_out();
    }

    fn write_done(&mut self, at: usize) {
        let (page, slot, held) = self.writes.swap_remove(at);
        self.device[slot as usize] = held;
        self.lists.write_done(page, &mut self.acts);
        self.carry_out();
    }

    fn all_written(&mut self) {
        while !self.writes.is_empty() {
            self.write_done(0);
        }
    }

    /// One step of a reclaim by this processor: pages freed, and pages whose writes were begun.
    fn reclaim(&mut self, cpu: usize) -> (u32, u32) {
        let writes = self.lists.counts.writes;
        let freed = self.lists.reclaim(cpu, BATCH_PAGES, &mut self.acts);
        self.carry_out();
        (freed, (self.lists.counts.writes - writes) as u32)
    }

    /// Until nobody waits.
    fn settle(&mut self) {
        for _ in 0..1_000 {
            if self.wants.is_empty() {
                return;
            }
            match (self.reads.len(), self.writes.len()) {
                (0, 0) => (0..CPUS).for_each(|cpu| {
                    self.reclaim(cpu);
                }),
                (0, _) => self.write_done(0),
                (_, _) => self.read_done(0),
            }
        }
        panic!("somebody waits for ever: {:?}", self.wants);
    }

    fn pages_of(&self, is_such: impl Fn(&Act) -> Option<u32>) -> Vec<u32> {
        self.log.iter().filter_map(is_such).collect()
    }

    fn written(&self) -> Vec<u32> {
        self.pages_of(|act| match act {
            Act::Write { page, .. } => Some(*page),
            _ => None,
        })
    }

    fn freed(&self) -> Vec<u32> {
        self.pages_of(|act| match act {
            Act::Free { page } => Some(*page),
            _ => None,
        })
    }

    /// A batch of so many pages, by a scan that still holds them.
    fn hold(&mut self, pages: u32) {
        let mut scan = self.lists.begin_scan();
        scan.inactive = pages;
        self.lists.shrink_inactive(&mut scan, &mut self.acts);
        self.lists.scans.insert(BY_HAND, scan);
        self.carry_out();
    }

    fn put_back(&mut self) {
        let mut scan = self.lists.scans.remove(&BY_HAND).expect("it holds them");
        self.lists.end_batch(&mut scan);
        self.check();
    }

    /// Both.
    fn scan(&mut self, pages: u32) {
        self.hold(pages);
        self.put_back();
    }

    fn active(&self) -> Vec<u32> {
        self.lists.active.pages()
    }

    fn inactive(&self) -> Vec<u32> {
        self.lists.inactive.pages()
    }
}

#[test]
fn active_pages_are_deactivated_from_the_tail_whether_accessed_or_not() {
    let mut world = World::loaded(8, Writes::Asynchronous);
    assert_eq!(world.active(), (0..8).collect::<Vec<_>>());
    world.touch(1, None);
    world.lists.deactivate(3);
    assert_eq!(world.inactive(), [0, 1, 2]);
    let is_accessed = |page| world.lists.get(page).is_accessed;
    assert!(!is_accessed(1) && is_accessed(3));
    world.lists.deactivate(2);
    assert_eq!(world.inactive(), [0, 1, 2, 3, 4]);
    // As many there as here, or more: nothing moves.
    world.lists.deactivate(2);
    assert_eq!(world.active(), [5, 6, 7]);
}

#[test]
fn the_active_list_may_be_longer_where_there_are_gibibytes() {
    let gib = 1 << 18;
    let ratios = [1, gib - 1, gib, 10 * gib, 100 * gib].map(active_ratio);
    assert_eq!(ratios, [1, 1, 3, 10, 31]);
}

#[test]
fn an_inactive_page_has_a_second_chance_if_it_was_accessed_and_only_then() {
    let mut world = World::loaded(8, Writes::Asynchronous);
    world.lists.deactivate(4);
    world.touch(1, None);
    // A touch alone moves nothing.
    assert_eq!(world.inactive(), [0, 1, 2, 3]);
    world.scan(4);
    assert_eq!(world.written(), [0, 2, 3]);
    assert_eq!(world.active(), [4, 5, 6, 7, 1]);
    // It has used its chance up.
    assert!(!world.lists.get(1).is_accessed);
}

#[test]
fn a_page_that_is_written_asynchronously_is_freed_by_a_later_scan() {
    let mut world = World::loaded(8, Writes::Asynchronous);
    world.lists.deactivate(4);
    world.scan(2);
    assert_eq!(world.inactive(), [2, 3, 0, 1]);
    // Its completion frees nothing, but brings it to the tail.
    world.all_written();
    assert_eq!(
        (world.inactive(), world.freed()),
        (vec![1, 0, 2, 3], vec![])
    );
    world.scan(2);
    assert_eq!(world.freed(), [1, 0]);
    assert_eq!(world.written(), [0, 1]);
}

#[test]
fn a_page_whose_write_is_over_while_the_scan_holds_it_comes_down_the_list_again() {
    let mut world = World::loaded(8, Writes::Asynchronous);
    world.lists.deactivate(4);
    world.hold(2);
    world.write_done(0);
    assert_eq!(world.inactive(), [2, 3]);
    world.put_back();
    assert_eq!(world.inactive(), [2, 3, 0, 1]);
    world.write_done(0);
    assert_eq!(world.inactive(), [1, 2, 3, 0]);
}

#[test]
fn a_page_that_is_written_synchronously_is_freed_by_the_scan_that_wrote_it() {
    let mut world = World::loaded(8, Writes::Synchronous);
    world.lists.deactivate(4);
    world.hold(2);
    assert_eq!(world.lists.scans[&BY_HAND].freed, 2);
    world.all_written();
    assert_eq!(world.freed(), [0, 1]);
    world.put_back();
    assert_eq!(world.inactive(), [2, 3]);
}

#[test]
fn a_touch_of_a_page_that_is_being_written_is_a_hit_of_the_swap_cache() {
    for writes in [Writes::Asynchronous, Writes::Synchronous] {
        for value in [None, Some(9)] {
            let mut world = World::loaded(8, writes);
            world.lists.deactivate(4);
            world.hold(2);
            world.touch(0, value);
            world.put_back();
            world.touch(1, value);
            assert!(world.wants.is_empty() && world.reads.is_empty());
            // A scan held the one, so it only has its bit.
            assert_eq!(world.inactive(), [2, 3, 0]);
            assert_eq!(world.active().last(), Some(&1));
            world.all_written();
            assert!(world.freed().is_empty(), "{writes:?}");
            assert_eq!(world.lists.counts.kept, 2);
            // What was written to meanwhile has to be written again, to the same place.
            let (page, is_dirty) = (world.lists.get(1), value.is_some());
            assert_eq!((page.is_dirty, page.slot.is_some()), (is_dirty, true));
        }
    }
}

#[test]
fn a_page_that_was_only_read_leaves_without_a_write_and_one_that_was_written_to_with_one() {
    let mut world = World::loaded(4, Writes::Synchronous);
    world.lists.deactivate(4);
    world.scan(2);
    world.all_written();
    for (page, value) in [(0, None), (1, Some(7))] {
        world.touch(page, value);
        world.read_done(0);
    }
    assert_eq!(world.written(), [0, 1]);
    assert!(world.lists.get(0).slot.is_some() && world.lists.get(1).slot.is_none());
    // Both are active, as what is read for who waits is; nothing of it was accessed since.
    assert_eq!(world.active(), [0, 1]);
    for page in [0, 1] {
        world.lists.put_inactive(page);
        world.lists.at(page).is_accessed = false;
    }
    world.scan(4);
    world.all_written();
    assert_eq!(world.written(), [0, 1, 2, 3, 1]);
    assert_eq!(world.lists.used, 0);
}

#[test]
fn what_is_read_ahead_begins_on_the_inactive_list_and_is_active_once_touched() {
    let mut world = World::new(shape(16, 16, Prefetch::Cluster), Writes::Synchronous);
    for page in 0..16 {
        world.touch(page, Some(1));
    }
    world.lists.deactivate(16);
    world.scan(16);
    world.all_written();
    assert_eq!(world.lists.used, 0);
    // Windows of one, one (its other page is there), two and four.
    for page in 4..9 {
        world.touch(page, None);
        while !world.reads.is_empty() {
            world.read_done(0);
        }
    }
    assert_eq!(world.active(), [4, 5, 6, 7, 8]);
    assert_eq!(world.inactive(), [9, 10, 11]);
    assert_eq!(world.mapped[9..12], [None; 3]);
    assert_eq!(
        (world.lists.counts.ahead, world.lists.counts.ahead_hits),
        (4, 1)
    );
    // Nobody wants them: they are freed at the first look.
    let writes = world.lists.counts.writes;
    world.scan(16);
    assert!(world.inactive().is_empty());
    assert_eq!(world.lists.counts.writes, writes);
}

#[test]
fn a_scan_waits_for_a_write_at_the_tail_and_then_frees_the_page() {
    let mut world = World::loaded(8, Writes::Asynchronous);
    world.lists.deactivate(4);
    world.scan(4);
    assert_eq!(world.written(), [0, 1, 2, 3]);
    world.scan(4);
    assert!(world.freed().is_empty());
    assert_eq!(world.inactive(), [0, 1, 2, 3]);
    world.write_done(0);
    world.scan(4);
    assert_eq!(world.freed(), [0]);
}

/// Writes begun by each step of a reclaim of a group that has 2,100 inactive pages.
fn rounds(writes: Writes) -> Vec<u32> {
    let mut world = World::loaded(4_200, writes);
    world.lists.deactivate(2_100);
    let mut begun = Vec::new();
    for _ in 0..8 {
        begun.push(world.reclaim(0).1);
        // Too late for the scan, which holds them.
        world.all_written();
    }
    begun
}

#[test]
fn a_reclaim_scans_more_each_round_until_it_has_freed_32_pages() {
    // 2,100 >> 11, and so on, in batches. Nothing is freed, so that it goes on.
    let begun = rounds(Writes::Asynchronous);
    assert_eq!(begun, [1, 2, 4, 8, 16, 32, 32, 32]);
    // What is written is free: after 63 it has what it wants, and the next one begins anew.
    let begun = rounds(Writes::Synchronous);
    assert_eq!(begun[..7], [1, 2, 4, 8, 16, 32, 1]);
}

#[test]
fn each_round_ends_with_a_batch_of_active_pages_while_there_are_more_of_them() {
    let mut world = World::loaded(1_000, Writes::Synchronous);
    // All are active. The first rounds only deactivate, 32 pages each; in the sixth there are
    // 160, and 160 >> 7 is the first page to be scanned.
    assert_eq!(world.reclaim(0), (0, 1));
    assert_eq!(world.inactive().len(), 159);
    assert_eq!(world.active().len(), 840);
}

#[test]
fn without_slots_pages_stay_active_and_who_waits_is_told() {
    let tight = Shape {
        slots: 0,
        ..shape(8, 4, Prefetch::Off)
    };
    let mut world = World::new(tight, Writes::Asynchronous);
    for page in 0..5 {
        world.touch(page, Some(1));
    }
    assert!(world.lists.wants_room(4));
    while world.reclaim(0) != (0, 0) {}
    assert_eq!(
        world.log.last(),
        Some(&Act::Fail {
            page: 4,
            why: Why::DeviceFull
        })
    );
    assert!(world.wants.is_empty() && world.written().is_empty());
}

fn random_run(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let pages = rng.u32(2..60);
    let writes = [Writes::Asynchronous, Writes::Synchronous][rng.usize(0..2)];
    let prefetch = [Prefetch::Off, Prefetch::Cluster, Prefetch::Trend][rng.usize(0..3)];
    let shape = shape(pages, rng.u32(1..=pages), prefetch);
    let mut world = World::new(shape, writes);
    for step in 1..600 {
        match rng.u32(0..10) {
            0..=4 => {
                let page = rng.u32(0..pages);
                world.touch(page, rng.bool().then_some(step));
                while world.lists.wants_room(page) && world.reclaim(0) != (0, 0) {}
            }
            5 | 6 if !world.reads.is_empty() => world.read_done(rng.usize(0..world.reads.len())),
            7 if !world.writes.is_empty() => world.write_done(rng.usize(0..world.writes.len())),
            8 => {
                world.reclaim(rng.usize(0..CPUS));
            }
            9 => {
                world.lists.reclaimed(rng.usize(0..CPUS));
                world.check();
            }
            _ => {}
        }
    }
    world.settle();
    for page in 0..pages {
        world.touch(page, None);
        world.settle();
    }
    let failed = world.log.iter().any(|act| matches!(act, Act::Fail { .. }));
    assert!(!failed, "there is a slot for each page");
}

#[test]
fn in_random_runs_no_page_is_lost_and_each_stands_on_one_list() {
    for seed in 0..400 {
        random_run(seed);
    }
}
