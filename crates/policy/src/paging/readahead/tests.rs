//! A program, its memory and a kernel that are models: what is asked for is of use, and accesses
//! in no order ask for nothing.

use super::*;
use std::collections::{BTreeSet, VecDeque};

/// Minor faults are heard of one in so many.
const HEARD_ONE_IN: u64 = 8;
/// The kernel reads so many pages beside one that is wanted.
const CLUSTER: u64 = 8;
const MAPPED: Nanos = Nanos(300);
const READ: Nanos = Nanos(50_000);
const PROCESS: u32 = 7;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Page {
    #[default]
    Fresh,
    OnDevice,
    /// In memory, and wanted by nobody yet.
    Read,
    Mapped,
}

struct Pages {
    state: Vec<Page>,
    /// What came into memory, the first that came first, each with how often it had come.
    order: VecDeque<(usize, u64)>,
    came: Vec<u64>,
    held: usize,
    limit: usize,
    has_room: bool,
    refused: u64,
    asked: u64,
    /// Pages that left before they were used.
    wasted: u64,
    worked: Nanos,
    /// Pages that came in.
    brought: u64,
    /// Nobody is told that memory is full.
    is_always_roomy: bool,
    /// There is room from when something is sent away on.
    is_room_made: bool,
}

impl Pages {
    fn bring(&mut self, page: usize, state: Page) {
        let before = std::mem::replace(&mut self.state[page], state);
        if matches!(before, Page::Fresh | Page::OnDevice) {
            self.came[page] += 1;
            self.order.push_back((page, self.came[page]));
            self.held += 1;
            self.brought += 1;
        }
        while self.held > self.limit {
            let (out, came) = self.order.pop_front().unwrap();
            if self.came[out] != came || self.state[out] == Page::OnDevice {
                continue;
            }
            self.held -= 1;
            self.wasted += u64::from(self.state[out] == Page::Read);
            self.state[out] = Page::OnDevice;
        }
    }

    fn which(&self, span: Span, is_it: impl Fn(Page) -> bool) -> u64 {
        assert!((1..=SPAN_PAGES_MAX).contains(&span.pages), "{span:?}");
        let pages = (0..span.pages).map(|page| {
            let state = self.state.get((span.first + u64::from(page)) as usize);
            u64::from(span.process == PROCESS && state.is_some_and(|state| is_it(*state))) << page
        });
        pages.fold(0, |all, one| all | one)
    }
}

impl Memory for Pages {
    fn on_device(&mut self, span: Span) -> u64 {
        // One that was read and is wanted by nobody is mapped nowhere.
        self.which(span, |state| matches!(state, Page::OnDevice | Page::Read))
    }

    fn mapped(&mut self, span: Span) -> u64 {
        self.which(span, |state| state == Page::Mapped)
    }

    fn will_need(&mut self, span: Span) -> bool {
        if !self.has_room {
            self.refused += 1;
            return false;
        }
        for page in span.first..span.first + u64::from(span.pages) {
            let page = page as usize;
            if self.state.get(page) == Some(&Page::OnDevice) {
                self.asked += 1;
                self.bring(page, Page::Read);
            }
        }
        true
    }

    fn send_away(&mut self, span: Span) {
        self.has_room |= self.is_room_made;
        let pages = span.first..span.first + u64::from(span.pages);
        for page in pages.map(|page| page as usize) {
            if matches!(self.state[page], Page::Mapped | Page::Read) {
                self.state[page] = Page::OnDevice;
                self.held -= 1;
            }
        }
    }

    fn submit(&mut self) {}

    fn is_short(&mut self) -> bool {
        !self.is_always_roomy && self.held > self.limit / 8 * 7
    }

    fn worked(&mut self) -> Nanos {
        self.worked
    }
}

struct World {
    ahead: Readahead,
    pages: Pages,
    /// What the kernel reads at once.
    cluster: u64,
    now: Instant,
    /// What is heard of at the next look.
    heard: Vec<Fault>,
    look: Instant,
    listens: bool,
    majors: u64,
    minors: u64,
    rests: u64,
    heard_of: u64,
}

impl World {
    /// So many pages, all on the device, and memory for so many.
    fn new(pages: usize, limit: usize) -> World {
        World {
            ahead: Readahead::new(limit as u64),
            pages: Pages {
                state: vec![Page::OnDevice; pages],
                order: VecDeque::new(),
                came: vec![0; pages],
                held: 0,
                limit,
                has_room: true,
                refused: 0,
                asked: 0,
                wasted: 0,
                worked: Nanos(0),
                brought: 0,
                is_always_roomy: false,
                is_room_made: false,
            },
            cluster: CLUSTER,
            now: Instant(0),
            heard: Vec::new(),
            look: Instant(0),
            listens: true,
            majors: 0,
            minors: 0,
            rests: 0,
            heard_of: 0,
        }
    }

    fn touch(&mut self, page: usize) {
        self.touch_at(page as u64 * PAGE_BYTES);
    }

    fn touch_at(&mut self, at: u64) {
        let page = (at / PAGE_BYTES) as usize;
        self.now += MAPPED;
        self.pages.worked.0 += MAPPED.0;
        let is_major = match self.pages.state[page] {
            Page::Mapped => return self.turn(),
            Page::OnDevice => {
                self.now += READ;
                self.majors += 1;
                let first = page as u64 / self.cluster * self.cluster;
                for beside in first..first + self.cluster {
                    if self.pages.state.get(beside as usize) == Some(&Page::OnDevice) {
                        self.pages.bring(beside as usize, Page::Read);
                    }
                }
                true
            }
            Page::Fresh | Page::Read => {
                self.minors += 1;
                false
            }
        };
        self.pages.bring(page, Page::Mapped);
        if self.listens && (is_major || self.minors.is_multiple_of(HEARD_ONE_IN)) {
            self.heard.push(Fault {
                process: PROCESS,
                at,
                is_major,
            });
        }
        self.turn();
    }

    /// Touches pages in order; how many of them had a device read.
    fn scan(&mut self, pages: std::ops::Range<usize>) -> u64 {
        let before = self.majors;
        pages.for_each(|page| self.touch(page));
        self.majors - before
    }

    fn turn(&mut self) {
        if self.now < self.look {
            return;
        }
        self.listens = true;
        for fault in std::mem::take(&mut self.heard) {
            self.heard_of += 1;
            self.ahead.hear(self.now, fault);
        }
        let next = self.ahead.act(self.now, &mut self.pages);
        let heard = self.ahead.heard;
        let streams = self.ahead.streams.iter();
        let live = streams.filter(|stream| heard - stream.heard <= FAULTS_OF_LIVE);
        // Two may have the same pages ahead.
        let read: BTreeSet<usize> = live.flat_map(|stream| stream.read(&self.pages)).collect();
        let most = read.len() as i64;
        // A window that was asked for stays where others come.
        let budget = i64::from(self.ahead.budget_pages);
        assert!(most <= 2 * budget + REACH_PLACES, "{most} of {budget}");
        self.look = match next {
            Next::Look(time) => self.now + time,
            Next::Rest(time) => {
                self.rests += 1;
                self.listens = false;
                self.now + time
            }
        };
    }
}

impl Stream {
    /// Pages ahead of it that are in memory and were not wanted yet.
    fn read(&self, pages: &Pages) -> impl Iterator<Item = usize> {
        let places = self.at + 1..self.at + 1 + self.ahead();
        let spans = places.filter_map(|place| self.span(place, 1));
        let ahead = spans.flat_map(|span| (span.first..span.end()).map(|page| page as usize));
        ahead.filter(|page| pages.state.get(*page) == Some(&Page::Read))
    }

    fn ahead(&self) -> i64 {
        match self.process {
            Some(_) => self.edge - self.at - 1,
            None => 0,
        }
    }
}

#[test]
fn what_is_touched_in_order_is_there_before_it_is_wanted() {
    let up: Vec<usize> = (0..20_000).collect();
    let down: Vec<usize> = (0..20_000).rev().collect();
    // Two arrays at once, and every third page of one.
    let both: Vec<usize> = (0..10_000).flat_map(|page| [page, 10_000 + page]).collect();
    let dense: Vec<usize> = (0..20_000).filter(|page| page % 3 != 0).collect();
    for (name, order) in [("up", up), ("down", down), ("both", both), ("dense", dense)] {
        let mut world = World::new(20_000, 8_192);
        for &page in &order {
            world.touch(page);
        }
        let touched = order.len() as u64;
        let alone = touched / CLUSTER;
        assert!(
            world.majors * 20 < alone,
            "{name}: {} of {alone}",
            world.majors
        );
        let counts = world.ahead.counts();
        assert!(counts.used * 5 > touched * 3, "{name}: {counts:?}");
        assert!(counts.unused * 10 <= counts.used * 6, "{name}: {counts:?}");
        // What lies between the pages that are touched is in vain.
        let between = 20_000 - touched;
        let (wasted, rests) = (world.pages.wasted, world.rests);
        assert!(
            wasted <= between && rests == 0,
            "{name}: {wasted} of {between}, {rests}"
        );
    }
}

#[test]
fn touches_in_no_order_ask_for_nothing_and_are_listened_to_seldom() {
    let mut world = World::new(20_000, 8_192);
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..200_000 {
        world.touch(rng.usize(..20_000));
    }
    assert!(world.majors > 50_000, "{}", world.majors);
    assert!(
        world.pages.asked * 500 < world.majors,
        "{}",
        world.pages.asked
    );
    assert!(
        world.heard_of * 8 < world.majors,
        "{} heard",
        world.heard_of
    );
    // A program that begins to scan is heard of again.
    let before = world.majors;
    for turn in 0..40_000 {
        world.touch(turn % 20_000);
    }
    let majors = world.majors - before;
    assert!(majors * 2 < 40_000 / CLUSTER, "{majors} while it scans");
}

#[test]
fn many_scans_beside_each_other_are_found() {
    let mut world = World::new(32_000, 8_192);
    for page in 0..2_000 {
        for scan in 0..16 {
            world.touch(scan * 2_000 + page);
        }
    }
    let alone = 32_000 / CLUSTER;
    assert!(world.majors * 2 < alone, "{} of {alone}", world.majors);
    assert_eq!(world.rests, 0);
}

#[test]
fn who_stands_still_is_left_alone_without_room_too() {
    let mut world = World::new(20_000, 8_192);
    world.pages.has_room = false;
    world.scan(0..2_000);
    let mut looks = 0;
    let begin = world.now;
    while world.now < begin + Nanos::from_secs(1) {
        world.now = world.look;
        world.turn();
        looks += 1;
    }
    assert!(looks < 250, "{looks} looks in a second");
}

#[test]
fn a_budget_too_small_for_any_window_is_no_streams_fault() {
    let mut world = World::new(20_000, 8_192);
    world.ahead.set_memory(0);
    world.scan(0..4_000);
    assert_eq!(world.ahead.counts().asked, 0);
    world.ahead.set_memory(8_192);
    let majors = world.scan(4_000..20_000);
    assert!(majors * 10 < 16_000 / CLUSTER, "{majors}");
}

#[test]
fn a_scan_is_found_among_touches_in_no_order() {
    let mut world = World::new(40_000, 8_192);
    let mut rng = fastrand::Rng::with_seed(2);
    let mut scan_majors = 0;
    for page in 0..20_000 {
        let before = world.majors;
        world.touch(page);
        scan_majors += world.majors - before;
        if page % 4 == 0 {
            world.touch(20_000 + rng.usize(..20_000));
        }
    }
    assert!(scan_majors * 5 < 20_000 / CLUSTER, "{scan_majors}");
}

#[test]
fn a_stream_of_which_little_is_used_ends() {
    let mut world = World::new(64_000, 8_192);
    // One page of some sixteen: fifteen of what is asked for are of no use.
    let mut rng = fastrand::Rng::with_seed(8);
    for page in (0..64_000).step_by(16) {
        world.touch(page + rng.usize(..8));
    }
    let counts = world.ahead.counts();
    assert!(counts.unused * 4 < 4_000, "a quarter a touch: {counts:?}");
    assert!(world.rests > 0, "nobody has to listen");
}

#[test]
fn what_ends_has_asked_for_a_window_at_most() {
    let mut world = World::new(40_000, 16_384);
    world.scan(0..10_000);
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..4_000 {
        world.touch(20_000 + rng.usize(..20_000));
    }
    let read = world.pages.state.iter().take(20_000).skip(10_000);
    let read = read.filter(|state| **state != Page::OnDevice).count();
    let window_most = Course::Pages { is_down: false }.windows().most;
    assert!(read as u32 <= window_most + SPAN_PAGES_MAX, "{read}");
}

#[test]
fn without_room_nothing_is_read_and_it_goes_on_where_there_is_some() {
    let mut world = World::new(20_000, 8_192);
    world.pages.has_room = false;
    world.scan(0..4_000);
    assert_eq!(world.ahead.counts().asked, 0);
    assert!(world.pages.refused > 0);
    world.pages.has_room = true;
    let majors = world.scan(4_000..20_000);
    assert!(majors * 10 < 16_000 / CLUSTER, "{majors}");
}

#[test]
fn small_memory_has_small_windows() {
    for limit in [256, 1_024, 4_096] {
        let mut world = World::new(20_000, limit);
        world.scan(0..20_000);
        assert_eq!(world.pages.wasted, 0, "of {limit} pages");
        let ahead = world.ahead.streams.iter().map(Stream::ahead).max();
        let most = (limit / 8) as i64;
        assert!(ahead <= Some(most), "{ahead:?} of {limit}");
    }
}

#[test]
fn fresh_memory_is_not_asked_for() {
    let mut world = World::new(20_000, 8_192);
    for page in 5_000..20_000 {
        world.pages.state[page] = Page::Fresh;
    }
    world.scan(0..20_000);
    let counts = world.ahead.counts();
    assert!(counts.asked <= 5_000, "{counts:?}");
}

/// Memory of any process: of each span so many pages are on a device, and mapped later.
struct Anything {
    which: u64,
    looked_at: Vec<Span>,
    asked: Vec<Span>,
    /// How many were, each time that they were told.
    told: Vec<usize>,
    sent: Vec<Span>,
    is_short: bool,
}

impl Anything {
    fn new(which: u64) -> Anything {
        Anything {
            which,
            looked_at: Vec::new(),
            asked: Vec::new(),
            told: Vec::new(),
            sent: Vec::new(),
            is_short: true,
        }
    }

    fn of(&self, span: Span) -> u64 {
        self.which & u64::MAX >> (SPAN_PAGES_MAX - span.pages)
    }
}

impl Memory for Anything {
    fn on_device(&mut self, span: Span) -> u64 {
        self.looked_at.push(span);
        self.of(span)
    }

    fn mapped(&mut self, span: Span) -> u64 {
        self.of(span)
    }

    fn will_need(&mut self, span: Span) -> bool {
        self.asked.push(span);
        true
    }

    fn send_away(&mut self, span: Span) {
        self.sent.push(span);
    }

    fn submit(&mut self) {
        self.told.push(self.asked.len());
    }

    fn is_short(&mut self) -> bool {
        self.is_short
    }

    fn worked(&mut self) -> Nanos {
        Nanos(0)
    }
}

/// Hears of faults with a read, all of one moment.
fn hear(ahead: &mut Readahead, process: u32, pages: &[u64]) {
    for &page in pages {
        let fault = Fault {
            process,
            at: page * PAGE_BYTES,
            is_major: true,
        };
        ahead.hear(Instant(0), fault);
    }
}

#[test]
fn no_process_goes_on_with_a_stream_of_another() {
    let (mut ahead, mut memory) = (Readahead::new(8_192), Anything::new(u64::MAX));
    hear(&mut ahead, 1, &[100, 108]);
    hear(&mut ahead, 2, &[116, 124, 132, 140, 148]);
    ahead.act(Instant(0), &mut memory);
    assert!(!memory.asked.is_empty());
    assert!(memory.asked.iter().all(|span| span.process == 2));
}

#[test]
fn a_request_begins_and_ends_with_a_page_on_the_device() {
    let (mut ahead, mut memory) = (Readahead::new(8_192), Anything::new(0b1_0100));
    hear(&mut ahead, 1, &[100, 108, 116, 124, 132]);
    ahead.act(Instant(0), &mut memory);
    let span = Span {
        process: 1,
        first: 133 + 2,
        pages: 3,
    };
    assert_eq!(memory.asked, [span]);
    assert_eq!(ahead.counts().asked, 2);
}

#[test]
fn after_a_stream_of_no_use_the_next_ones_are_believed_later() {
    let mut world = World::new(64_000, 8_192);
    let mut rng = fastrand::Rng::with_seed(8);
    for page in (0..32_000).step_by(16) {
        world.touch(page + rng.usize(..8));
    }
    assert!(world.ahead.steps > STEPS_FIRST);
    world.scan(32_000..64_000);
    assert_eq!(world.ahead.steps, STEPS_FIRST);
}

#[test]
fn processes_are_told_apart_and_edges_of_memory_are_no_harm() {
    let last = (1u64 << 52) - 1;
    let up: Vec<u64> = (0..200).collect();
    let down: Vec<u64> = (0..200).rev().collect();
    let top: Vec<u64> = (last - 200..=last).collect();
    for order in [up, down, top] {
        let (mut ahead, mut memory) = (Readahead::new(8_192), Anything::new(u64::MAX));
        let mut rng = fastrand::Rng::with_seed(4);
        for (turn, page) in order.iter().enumerate() {
            // Another process at other places does not go on with its streams.
            for (process, page) in [(1, *page), (2, rng.u64(..last))] {
                let fault = Fault {
                    process,
                    at: page * PAGE_BYTES,
                    is_major: true,
                };
                ahead.hear(Instant(turn as u64 * 1_000), fault);
            }
            ahead.act(Instant(turn as u64 * 1_000), &mut memory);
        }
        assert!(!memory.looked_at.is_empty());
        for span in &memory.looked_at {
            assert_eq!(span.process, 1, "{span:?}");
            assert!((1..=SPAN_PAGES_MAX).contains(&span.pages), "{span:?}");
        }
    }
}

/// Pages that came in in each of so many rounds, by the median of the later half: now and then it
/// is tried whether another way is better.
fn usual_round(world: &mut World, rounds: usize, mut round: impl FnMut(&mut World)) -> u64 {
    let mut brought = Vec::new();
    for _ in 0..rounds {
        let before = world.pages.brought;
        round(world);
        brought.push(world.pages.brought - before);
    }
    let later = &mut brought[rounds / 2..];
    later.sort_unstable();
    later[later.len() / 2]
}

#[test]
fn of_a_loop_as_much_stays_as_fits() {
    let limit = 8_192;
    for percent in [110, 125, 150, 200, 400] {
        let pages = limit * percent / 100;
        let mut world = World::new(pages, limit);
        let brought = usual_round(&mut world, 40, |world| {
            world.scan(0..pages);
        });
        // What is ahead of the loop, and behind it not yet sent away, takes memory too.
        let missing = (pages - limit + limit / 4) as u64;
        assert!(
            brought <= missing,
            "{percent} %: {brought} of {pages} pages, {missing} were missing"
        );
    }
}

#[test]
fn what_is_wanted_all_the_time_is_not_pushed_out_by_a_scan() {
    let (limit, hot) = (8_192, 4_096);
    let brought = |sends: bool| {
        let mut world = World::new(60_000, limit);
        world.pages.is_always_roomy = !sends;
        let mut rng = fastrand::Rng::with_seed(5);
        usual_round(&mut world, 4, |world| {
            for page in hot..60_000 {
                world.touch(page);
                if page % 16 == 0 {
                    world.touch(rng.usize(..hot));
                }
            }
        })
    };
    let (with, without) = (brought(true), brought(false));
    let scanned = 60_000 - hot as u64;
    assert!(with < scanned + 1_000, "{with} of {scanned}");
    assert!(
        without > scanned + 2_000,
        "{without}, or this tests nothing"
    );
}

#[test]
fn a_part_that_is_gone_through_again_and_again_stays() {
    let limit = 8_192;
    let mut world = World::new(60_000, limit);
    // Memory is full of what is wanted once.
    world.scan(20_000..60_000);
    for part in [0..4_000, 4_000..10_000, 10_000..14_000] {
        let pages = part.len() as u64;
        let begin = world.pages.brought;
        let last = usual_round(&mut world, 100, |world| {
            world.scan(part.clone());
        });
        assert!(last < 200, "{last} in a round of {part:?}");
        // It is doubted once a part came back, and then tried.
        let most = 3 * pages + limit as u64;
        let all = world.pages.brought - begin;
        assert!(all < most, "{all} of {part:?}");
    }
}

#[test]
fn nothing_is_sent_away_where_there_is_room_nor_of_what_is_no_swap() {
    let (mut ahead, mut memory) = (Readahead::new(8_192), Anything::new(u64::MAX));
    let pages: Vec<u64> = (100..1_000).step_by(8).collect();
    memory.is_short = false;
    hear(&mut ahead, 1, &pages);
    ahead.act(Instant(0), &mut memory);
    hear(&mut ahead, 1, &[1_008]);
    ahead.act(Instant(0), &mut memory);
    assert!(!memory.asked.is_empty() && memory.sent.is_empty());
    // A file that is gone through has majors too, and nothing on swap.
    let (mut ahead, mut files) = (Readahead::new(8_192), Anything::new(0));
    for page in pages {
        hear(&mut ahead, 1, &[page]);
        ahead.act(Instant(0), &mut files);
    }
    assert!(files.sent.is_empty(), "{:?}", files.sent);
}

#[test]
fn what_leaves_is_behind_a_stream_and_was_read_for_it() {
    for is_down in [false, true] {
        let (mut ahead, mut memory) = (Readahead::new(8_192), Anything::new(u64::MAX));
        for step in 0..200u64 {
            let page = 4_000 + 8 * step;
            let page = if is_down { 10_000 - page } else { page };
            hear(&mut ahead, 1, &[page]);
            ahead.act(Instant(0), &mut memory);
            for span in memory.sent.drain(..) {
                let end = span.first + u64::from(span.pages);
                let is_behind = match is_down {
                    false => span.first >= 4_000 && end + BEHIND_PLACES as u64 <= page + 1,
                    true => end <= 6_001 && span.first >= page + BEHIND_PLACES as u64,
                };
                assert!(is_behind, "{span:?} at {page}");
            }
        }
        assert!(ahead.counts().sent > 1_000, "{:?}", ahead.counts());
        assert!(ahead.counts().sent < 1_600, "{:?}", ahead.counts());
    }
}

#[test]
fn without_room_what_is_behind_makes_some() {
    let mut world = World::new(20_000, 8_192);
    world.pages.has_room = false;
    world.pages.is_room_made = true;
    world.scan(0..8_192);
    let majors = world.scan(8_192..20_000);
    assert!(majors * 5 < 12_000 / CLUSTER, "{majors}");
}

#[test]
fn a_loop_after_parts_that_stayed_is_found_out() {
    let (limit, pages) = (8_192, 12_000);
    let mut world = World::new(60_000, limit);
    for part in [20_000..24_000, 30_000..36_000] {
        usual_round(&mut world, 100, |world| {
            world.scan(part.clone());
        });
    }
    assert!(!world.ahead.behind.sends());
    let brought = usual_round(&mut world, 60, |world| {
        world.scan(0..pages);
    });
    assert!(brought < (pages - limit + limit / 4) as u64, "{brought}");
}

#[test]
fn a_part_that_fits_is_found_out_after_a_loop_that_did_not() {
    let (limit, pages) = (8_192, 10_240);
    let mut world = World::new(60_000, limit);
    usual_round(&mut world, 20, |world| {
        world.scan(0..pages);
    });
    let usual = usual_round(&mut world, 400, |world| {
        world.scan(20_000..24_000);
    });
    assert!(usual < 200, "{usual}");
}

#[test]
fn who_pauses_keeps_its_stream() {
    let mut world = World::new(60_000, 8_192);
    for first in (0..60_000).step_by(200) {
        world.scan(first..first + 200);
        world.now += Nanos::from_millis(20);
        world.turn();
    }
    let alone = 60_000 / CLUSTER;
    let counts = world.ahead.counts();
    assert!(world.majors * 4 < alone, "{} of {alone}", world.majors);
    assert!(counts.unused * 10 < counts.used, "{counts:?}");
    assert_eq!(world.ahead.steps, STEPS_FIRST);
}

#[test]
fn what_was_there_before_a_stream_came_by_stays() {
    let (mut ahead, mut memory) = (Readahead::new(8_192), Anything::new(0b1001_0110));
    for page in (100..2_000).step_by(8) {
        hear(&mut ahead, 1, &[page]);
        ahead.act(Instant(0), &mut memory);
    }
    let runs = memory.sent.iter().filter(|span| span.pages < 3).count();
    assert!(runs > 10, "{:?}", memory.sent);
    let long = memory.sent.iter().filter(|span| span.pages > 2);
    // What the program asked for before the stream did.
    assert!(long.count() <= 2, "{:?}", memory.sent);
}

#[test]
fn a_stream_that_stood_still_asks_anew_for_what_may_have_left_again() {
    let (mut ahead, mut memory) = (Readahead::new(8_192), Anything::new(u64::MAX));
    let pages: Vec<u64> = (100..=300).step_by(8).collect();
    hear(&mut ahead, 1, &pages);
    ahead.act(Instant(0), &mut memory);
    let goes_on = |page, millis| {
        let now = Instant(0) + Nanos::from_millis(millis);
        let fault = Fault {
            process: 1,
            at: page * PAGE_BYTES,
            is_major: true,
        };
        let (mut ahead, mut memory) = (ahead.clone(), Anything::new(u64::MAX));
        ahead.hear(now, fault);
        ahead.act(now, &mut memory);
        memory.asked.first().map(|span| span.first)
    };
    let edge = memory
        .asked
        .last()
        .map(|span| span.first + u64::from(span.pages));
    assert_eq!(goes_on(308, 1), edge, "what was asked for comes");
    assert_eq!(goes_on(308, 20), Some(309));
}

/// A matrix in columns of so many bytes, of which tiles are walked through across the columns: so
/// many bytes of each. Where each begins, tile by tile.
fn tiles(column: u64, columns: u64, tile: u64) -> impl Iterator<Item = Vec<u64>> {
    let places = move |row: u64| (0..columns).map(move |at| at * column + row);
    (0..column / tile).map(move |row| places(row * tile).collect())
}

/// Touches all pages of a tile's part of a column.
fn touch_part(world: &mut World, from: u64, bytes: u64) {
    world.touch_at(from);
    let pages = from / PAGE_BYTES + 1..(from + bytes).div_ceil(PAGE_BYTES);
    pages.for_each(|page| world.touch(page as usize));
}

/// A world of a matrix, of which nothing is read but what is asked for: where nobody uses what lies
/// beside a page the kernel soon reads no more than that.
fn matrix(column: u64, columns: u64, limit: usize) -> World {
    let pages = column * columns / PAGE_BYTES + 1;
    World {
        cluster: 1,
        ..World::new(pages as usize, limit)
    }
}

#[test]
fn a_matrix_walked_through_across_its_columns_is_there_before_it_is_wanted() {
    let columns = 400;
    for (column, tile) in [(120_000, 3_000), (60_000, 3_000), (65_536, 2_048)] {
        for is_down in [false, true] {
            let majors = |budget: u64| {
                let mut world = matrix(column, columns, 1_500);
                world.ahead.set_memory(budget);
                for mut tile_of in tiles(column, columns, tile) {
                    if is_down {
                        tile_of.reverse();
                    }
                    for from in tile_of {
                        touch_part(&mut world, from, tile);
                    }
                }
                (world.majors, world.ahead.counts())
            };
            let ((with, counts), (without, _)) = (majors(1_500), majors(0));
            assert!(with * 3 < without, "{column} {tile}: {with} of {without}");
            assert!(
                counts.unused * 4 < counts.used,
                "{column} {tile}: {counts:?}"
            );
        }
    }
}

#[test]
fn columns_in_turns_are_walks_beside_each_other() {
    let (column, columns) = (60_000, 1_200);
    let majors = |budget: u64| {
        let mut world = matrix(column, columns, 4_000);
        world.ahead.set_memory(budget);
        for tile in tiles(column, columns, 6_000) {
            // As LAPACK has them: every third of twelve columns, then the next of them.
            for twelve in tile.chunks(12) {
                for first in 0..3 {
                    for from in twelve.iter().skip(first).step_by(3) {
                        touch_part(&mut world, *from, 500);
                    }
                }
            }
        }
        world.majors
    };
    let (with, without) = (majors(4_000), majors(0));
    assert!(with * 3 < without, "{with} of {without}");
}

#[test]
fn bytes_in_no_order_are_no_steps() {
    let mut world = World::new(40_000, 8_192);
    let mut rng = fastrand::Rng::with_seed(6);
    for _ in 0..200_000 {
        world.touch_at(rng.u64(..40_000 * PAGE_BYTES / 8) * 8);
    }
    assert!(world.majors > 100_000, "{}", world.majors);
    let asked = world.pages.asked;
    assert!(asked * 500 < world.majors, "{asked} of {}", world.majors);
}

/// A fault of a walk by steps of more than a page, which are no whole number of pages.
fn element_of_longer_steps(element: u64) -> Fault {
    Fault {
        process: 1,
        at: (1 << 30) + element * 120_000,
        is_major: true,
    }
}

#[test]
fn each_element_of_longer_steps_is_asked_for_alone() {
    let (mut ahead, mut memory) = (Readahead::new(8_192), Anything::new(u64::MAX));
    for element in 0..8 {
        ahead.hear(Instant(0), element_of_longer_steps(element));
    }
    ahead.act(Instant(0), &mut memory);
    let asked: Vec<Span> = (8..8 + 16)
        .map(|element| Span {
            process: 1,
            first: element_of_longer_steps(element).at / PAGE_BYTES,
            pages: 1,
        })
        .collect();
    assert_eq!(memory.asked, asked);
    // What lies between them is not read with them.
    assert!(
        (1..=16).all(|count| memory.told.contains(&count)),
        "{:?}",
        memory.told
    );
}

#[test]
fn behind_longer_steps_nothing_leaves_and_no_other_stream_begins() {
    let (mut ahead, mut memory) = (Readahead::new(8_192), Anything::new(u64::MAX));
    for element in (0..100).chain([98, 95, 92, 90]) {
        ahead.hear(Instant(0), element_of_longer_steps(element));
        ahead.act(Instant(0), &mut memory);
    }
    let streams = ahead.streams.iter();
    assert_eq!(streams.filter(|stream| stream.process.is_some()).count(), 1);
    assert!(ahead.counts().used > 64, "{:?}", ahead.counts());
    assert!(memory.sent.is_empty(), "{:?}", memory.sent);
}
