//! Reads ahead for programs whose faults are seen from outside, page by page of their address
//! space.
//!
//! The kernel reads up to eight pages beside one that is wanted, in the middle of the fault that
//! wants it. Who hears of faults can ask for what comes next before it is wanted, from a CPU of its
//! own: the page that is waited for goes first, what is read ahead comes behind it and in larger
//! pieces (Ultraswap section 3.2, without a change to the kernel).
//!
//! A *stream* is born where faults with a read lie close to each other and soon after each other,
//! or where three of them are equally far apart to the byte, as where a matrix is walked through
//! across its columns ([`course`]). Once it went on a few times, what lies ahead of it within its
//! *window* is asked for. Of what was asked for, and is behind it by now, it is looked at how much
//! was used: the window is twice as large where half of it was (four times where most was), half as
//! large where less was, and a stream whose window is too small for that is none; the next ones
//! have to go on for longer before they ask. So accesses in no order ask for nothing, and where no
//! stream is found for long, faults are not even listened to for a while: hearing of one costs the
//! program more than a microsecond.
//!
//! What was read ahead and is behind its stream by now is what makes room for what is ahead, where
//! memory is full and as long as that spares reads ([`behind`]); but not behind longer steps, which
//! come back to what lies beside that.
//!
//! *Shapes*: pages of 4 KiB, by their numbers; where a fault was, in bytes. *Thread safety*: one
//! owner. Nothing is allocated after [`Readahead::new`].
//!
//! What it never does: read a page, know what one holds, know which memory is a program's.

mod behind;
mod course;

use behind::DropBehind;
use course::{Course, PAGE_BYTES, step_to};
use nyx_base::{Instant, Nanos};

/// What is read ahead takes this part of memory at most: one in so many.
const MEMORY_ONE_IN: u64 = 8;
/// Pages of which is asked at once, at most.
pub const SPAN_PAGES_MAX: u32 = u64::BITS;
/// Streams beside each other.
const STREAMS: usize = 32;
/// Faults of no stream, beside which one may be born.
const LATELY: usize = 32;
/// So many pages apart: the kernel reads eight by itself.
const BIRTH_PAGES: u64 = 16;
/// Faults with a read that are looked through for longer steps, the last ones.
const LAST: usize = 8;
/// A stream goes on in a fault that is no further than so many places behind all that it asked for.
const REACH_PLACES: i64 = 32;
/// It asks once it went on so often, at first within so many faults each; twice as often where
/// another one ended since what it asked for was of no use, up to the most.
const STEPS_FIRST: u32 = 3;
const STEPS_MOST: u32 = 96;
const FAULTS_BETWEEN_FIRST: u64 = 64;
/// Streams that went on within so many faults share what may be read ahead.
const FAULTS_OF_LIVE: u64 = 128;
/// Whether pages were used is looked at once the stream is so far behind them: several threads may
/// be at a stream.
const BEHIND_PLACES: i64 = 16;
/// A stream asks once this part of its window is free, one in so many: pages side by side are read
/// by one request, and who catches up with what is being read waits once for each.
const ASK_ONE_IN: i64 = 4;
/// What its program asked for alone is behind a stream too, but for more pages than this.
const ALONE_PAGES: i64 = 256;
/// What a stream asked for and has not been looked at; more is forgotten.
const ASKED: usize = 64;
/// The pace of a stream is that of so long, at least.
const PACE: Nanos = Nanos::from_micros(50);
/// A pace that is slower is believed by a part of the one before, one in so many.
const PACE_SLOWER_ONE_IN: u64 = 8;
/// A stream that has not gone on for so long stands still.
const STILL: Nanos = Nanos::from_millis(10);
/// The next look is due when this part of what is ahead was used, one in so many: asking for as
/// much takes about as long as the program takes to use it.
const LOOK_ONE_IN: i64 = 8;
/// And no sooner or later than this; where nothing was heard of, twice as late each time.
const LOOK_LEAST: Nanos = Nanos::from_micros(100);
const LOOK_MOST: Nanos = Nanos::from_millis(2);
const LOOK_QUIET: Nanos = Nanos::from_millis(16);
/// Without room, after this time: looking takes the CPU on which room is made.
const LOOK_BLOCKED: Nanos = Nanos::from_micros(250);
/// After so many faults with a read while nothing was of use nobody listens for a while.
const FAULTS_IN_VAIN: u32 = 512;
/// After that pause so many are enough.
const FAULTS_IN_VAIN_AGAIN: u32 = 128;
/// The pause, at first and, twice as long each time, at most.
const PAUSE_FIRST: Nanos = Nanos::from_millis(20);
const PAUSE_MOST: Nanos = Nanos::from_millis(80);

/// A fault of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The process.
    pub process: u32,
    /// Where: its address in bytes.
    pub at: u64,
    /// Whether a device was read.
    pub is_major: bool,
}

/// Pages of a process that lie side by side, [`SPAN_PAGES_MAX`] at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The process.
    pub process: u32,
    /// The first page.
    pub first: u64,
    /// How many they are.
    pub pages: u32,
}

impl Fault {
    fn page(self) -> u64 {
        self.at / PAGE_BYTES
    }

    fn span(self) -> Span {
        Span {
            process: self.process,
            first: self.page(),
            pages: 1,
        }
    }
}

impl Span {
    /// Behind the last page.
    pub fn end(self) -> u64 {
        self.first + u64::from(self.pages)
    }

    /// Both as one, and what lies between them, where that is so many pages at most and both do not
    /// overlap.
    pub fn joined(self, other: Span, between_most: u64) -> Option<Span> {
        let (low, high) = if self.first < other.first {
            (self, other)
        } else {
            (other, self)
        };
        let between = high.first.checked_sub(low.end())?;
        let pages = u32::try_from(high.end() - low.first).ok()?;
        let is_one = self.process == other.process && between <= between_most;
        is_one.then_some(Span { pages, ..low })
    }

    /// The first of those pages, and those that follow it side by side.
    fn first_run_of(self, which: u64) -> Span {
        let before = which.trailing_zeros();
        Span {
            first: self.first + u64::from(before),
            pages: (which >> before).trailing_ones(),
            ..self
        }
    }

    /// From the first to the last page that is one of those.
    fn of(self, which: u64) -> Span {
        let (before, after) = (which.trailing_zeros(), which.leading_zeros());
        Span {
            first: self.first + u64::from(before),
            pages: SPAN_PAGES_MAX - after - before,
            ..self
        }
    }
}

/// Memory of programs, as who reads ahead has it. Of a process that is gone there is none.
pub trait Memory {
    /// Which pages of a span are on a device and mapped nowhere: bit 0 is the first.
    fn on_device(&mut self, span: Span) -> u64;
    /// Which pages of a span are mapped.
    fn mapped(&mut self, span: Span) -> u64;
    /// Begins to read what is on a device of a span, by [`Memory::submit`] at the latest; false
    /// where there is no room for it just now.
    fn will_need(&mut self, span: Span) -> bool;
    /// Sends away what is in memory of a span, by [`Memory::submit`] at the latest.
    fn send_away(&mut self, span: Span);
    /// What is to be read or sent away is told: spans side by side are one request.
    fn submit(&mut self);
    /// Whether there is little room, so that for pages that come others have to leave.
    fn is_short(&mut self) -> bool;
    /// How long the programs have worked, not counting the kernel's work for them.
    fn worked(&mut self) -> Nanos;
}

/// When to look again at what was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// After this time.
    Look(Nanos),
    /// After this time, and nobody need listen meanwhile.
    Rest(Nanos),
}

/// What it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages that were asked for.
    pub asked: u64,
    /// Of those that were looked at later, how many were used.
    pub used: u64,
    /// And how many were not.
    pub unused: u64,
    /// Pages that were sent away behind a stream.
    pub sent: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Readahead {
    streams: Box<[Stream; STREAMS]>,
    /// Faults of no stream, each of a process at a byte.
    lately: [Option<(u32, u64)>; LATELY],
    births: usize,
    /// Faults with a read, the last one first.
    last: [Option<(u32, u64)>; LAST],
    heard: u64,
    /// Pages that the windows of streams that went on lately may have together.
    budget_pages: u32,
    /// Faults with a read since what was asked for was of use.
    in_vain: u32,
    pause: Nanos,
    /// How often a stream has to go on before it asks.
    steps: u32,
    /// Faults that were heard of at the last look, and when the next one is due if there are no
    /// others.
    heard_before: u64,
    quiet: Nanos,
    counts: Counts,
    behind: DropBehind,
}

/// Places are those of its course.
#[derive(Clone, Copy, Debug)]
struct Stream {
    /// None where there is no stream.
    process: Option<u32>,
    course: Course,
    /// The last fault.
    at: i64,
    /// Behind all that was asked for.
    edge: i64,
    /// What came in from here to the edge was asked for by the program alone.
    alone: i64,
    window: u32,
    steps: u32,
    /// When it went on last, in faults.
    heard: u64,
    /// Whether it went on since it was acted on.
    has_gone_on: bool,
    /// When and where its pace was measured last.
    paced: (Instant, i64),
    ns_per_place: u64,
    asked: [Asked; ASKED],
    /// How many there were, and of those how many were looked at, and could leave.
    asks: u64,
    looked_at: u64,
    left: u64,
}

/// What was asked for at once.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    at: i64,
    places: u32,
    /// Which of their pages were on a device; none where the program asked for them, one by one.
    which: u64,
}

const NO_STREAM: Stream = Stream {
    process: None,
    course: Course::Pages { is_down: false },
    at: 0,
    edge: 0,
    alone: 0,
    window: 0,
    steps: 0,
    heard: 0,
    has_gone_on: false,
    paced: (Instant(0), 0),
    ns_per_place: 0,
    asked: [Asked {
        at: 0,
        places: 0,
        which: 0,
    }; ASKED],
    asks: 0,
    looked_at: 0,
    left: 0,
};

impl Readahead {
    /// Nothing is known, and the programs have memory for so many pages.
    pub fn new(memory_pages: u64) -> Readahead {
        let mut new = Readahead {
            streams: Box::new([NO_STREAM; STREAMS]),
            lately: [None; LATELY],
            births: 0,
            last: [None; LAST],
            heard: 0,
            budget_pages: 0,
            in_vain: 0,
            pause: PAUSE_FIRST,
            steps: STEPS_FIRST,
            heard_before: 0,
            quiet: LOOK_MOST,
            counts: Counts::default(),
            behind: DropBehind::new(),
        };
        new.set_memory(memory_pages);
        new
    }

    /// The programs have memory for so many pages from now on. A part of that is asked for ahead of
    /// all streams together that went on lately; one that has just stopped may have as many ahead
    /// of it still.
    pub fn set_memory(&mut self, pages: u64) {
        self.budget_pages = u32::try_from(pages / MEMORY_ONE_IN).unwrap_or(u32::MAX);
        self.behind.set_memory(pages);
    }

    /// What it did until now.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// A fault was heard of. After the last of those that were: [`Readahead::act`].
    pub fn hear(&mut self, now: Instant, fault: Fault) {
        self.heard += 1;
        if fault.is_major {
            self.in_vain = self.in_vain.saturating_add(1);
            self.behind.bring(fault.span(), 1);
        }
        let number = self.continued(now, fault);
        let is_by_steps = number.is_some_and(|number| self.streams[number].is_by_steps());
        let steps = (fault.is_major && !is_by_steps).then(|| self.steps_to(fault));
        match (steps.flatten(), number) {
            (Some(course), _) => self.begin(now, fault, course),
            (None, Some(number)) => {
                let stream = &mut self.streams[number];
                if now.since(stream.paced.0) >= stream.still() {
                    stream.begin_again(fault.at);
                }
                stream.heard = self.heard;
                stream.goes_on(now, fault.at);
            }
            (None, None) if fault.is_major => self.bear(now, fault),
            (None, None) => {}
        }
        if fault.is_major {
            self.last.rotate_right(1);
            self.last[0] = Some((fault.process, fault.at));
        }
    }

    /// Asks for what follows from what was heard; when to do so again.
    pub fn act(&mut self, now: Instant, memory: &mut impl Memory) -> Next {
        let window_most = self.window_most();
        let mut is_blocked = false;
        self.behind.think(now, || memory.worked());
        for number in 0..STREAMS {
            let stream = &mut self.streams[number];
            if !stream.has_gone_on || stream.steps < self.steps && stream.asks == 0 {
                continue;
            }
            stream.has_gone_on = false;
            let (used, unused) = stream.judge(memory);
            self.counts.used += used;
            self.counts.unused += unused;
            if stream.process.is_none() {
                self.steps = (self.steps * 2).min(STEPS_MOST);
            } else if used > unused {
                self.steps = STEPS_FIRST;
                (self.in_vain, self.pause) = (0, PAUSE_FIRST);
            }
            // What comes is waited for; what leaves makes room for it, or for what comes next.
            let (mut asked, mut is_room) = stream.ask(window_most, &mut self.behind, memory);
            memory.submit();
            let sent = stream.leave(&mut self.behind, memory);
            memory.submit();
            if !is_room && sent > 0 {
                let again;
                (again, is_room) = stream.ask(window_most, &mut self.behind, memory);
                memory.submit();
                asked += again;
            }
            self.counts.asked += asked;
            self.counts.sent += sent;
            // One whose program stands still asks again once that goes on.
            let is_waiting = !is_room && !stream.stands_still(now);
            stream.has_gone_on |= is_waiting;
            is_blocked |= is_waiting;
        }
        self.next(now, is_blocked)
    }

    fn next(&mut self, now: Instant, is_blocked: bool) -> Next {
        if self.in_vain >= FAULTS_IN_VAIN {
            self.in_vain = FAULTS_IN_VAIN - FAULTS_IN_VAIN_AGAIN;
            let pause = self.pause;
            self.pause = Nanos(pause.0 * 2).min(PAUSE_MOST);
            return Next::Rest(pause);
        }
        if is_blocked {
            return Next::Look(LOOK_BLOCKED);
        }
        let is_quiet = self.heard == self.heard_before;
        self.heard_before = self.heard;
        self.quiet = match is_quiet {
            true => Nanos(self.quiet.0 * 2).min(LOOK_QUIET),
            false => LOOK_MOST,
        };
        let moving = self.streams.iter().filter(|stream| stream.moves(now));
        let due = moving.map(|stream| stream.due().clamp(LOOK_LEAST, LOOK_MOST));
        Next::Look(due.min().unwrap_or(self.quiet))
    }

    /// The stream that goes on with a fault: of several one that went on lately, and of those the
    /// nearest.
    fn continued(&self, now: Instant, fault: Fault) -> Option<usize> {
        let streams = self.streams.iter().enumerate();
        let reached = streams.filter_map(|(number, stream)| {
            let is_its = stream.process == Some(fault.process);
            let is_in_time =
                stream.steps >= STEPS_FIRST || self.heard - stream.heard <= FAULTS_BETWEEN_FIRST;
            let off = stream.course.place(fault.at)? - stream.at;
            let reach = (stream.edge - stream.at).max(0) + REACH_PLACES;
            let is_still = stream.stands_still(now);
            let goes_on = is_its && is_in_time && (stream.back()..=reach).contains(&off);
            goes_on.then_some((is_still, off.abs(), number))
        });
        reached.min().map(|(_, _, number)| number)
    }

    /// A stream goes page by page from this fault on, where one was close to it lately.
    fn bear(&mut self, now: Instant, fault: Fault) {
        let Fault { process, at, .. } = fault;
        let is_close = |other: &&mut Option<(u32, u64)>| {
            other.is_some_and(|(its, other)| {
                let apart = (other / PAGE_BYTES).abs_diff(fault.page());
                its == process && (1..=BIRTH_PAGES).contains(&apart)
            })
        };
        let Some(other) = self.lately.iter_mut().find(is_close) else {
            self.lately[self.births % LATELY] = Some((process, at));
            self.births = self.births.wrapping_add(1);
            return;
        };
        let is_down = other.take().is_some_and(|(_, other)| other > at);
        self.begin(now, fault, Course::Pages { is_down });
    }

    /// By longer steps than a page: by one that a stream has from where the program was lately, or
    /// by another one from there.
    fn steps_to(&self, fault: Fault) -> Option<Course> {
        let Fault { process, at, .. } = fault;
        let last = self.last.iter().flatten();
        let last = last.filter(|(its, _)| *its == process).map(|(_, at)| *at);
        let streams = self.streams.iter();
        let streams = streams.filter(|stream| stream.process == Some(process));
        let known = streams.filter_map(|stream| stream.course.step());
        Course::by(step_to(at, last, known)?, at)
    }

    fn begin(&mut self, now: Instant, fault: Fault, course: Course) {
        let oldest = self.streams.iter_mut().min_by_key(|stream| {
            let is_there = stream.process.is_some();
            (is_there, stream.heard)
        });
        let stream = oldest.expect("there are some");
        *stream = Stream {
            process: Some(fault.process),
            course,
            window: course.windows().first,
            heard: self.heard,
            ..NO_STREAM
        };
        stream.at = course.place(fault.at).unwrap_or(0);
        stream.edge = stream.at + 1;
        stream.alone = stream.at;
        stream.paced = (now, stream.at);
    }

    /// Pages that one window may have, where those that went on lately share.
    fn window_most(&self) -> u32 {
        let is_live = |stream: &&Stream| {
            stream.process.is_some()
                && stream.steps >= STEPS_FIRST
                && self.heard - stream.heard <= FAULTS_OF_LIVE
        };
        let live = self.streams.iter().filter(is_live).count().max(1) as u32;
        self.budget_pages / live
    }
}

impl Stream {
    /// From a place on so many; none where there are none.
    fn span(&self, at: i64, places: u32) -> Option<Span> {
        self.course.span(self.process?, at, places)
    }

    /// It is where it was long ago: what it asked for then has been used, and may have left again.
    fn begin_again(&mut self, at: u64) {
        self.edge = self.course.place(at).unwrap_or(self.at) + 1;
        self.alone = self.edge;
        (self.looked_at, self.left) = (self.asks, self.asks);
    }

    /// A fault so far behind it is its own too: columns may be gone through in turns.
    fn back(&self) -> i64 {
        match self.course {
            Course::Pages { .. } => 0,
            Course::Steps { .. } => -REACH_PLACES,
        }
    }

    fn is_by_steps(&self) -> bool {
        self.course.step().is_some()
    }

    /// After this time it is not just slow.
    fn still(&self) -> Nanos {
        STILL.max(Nanos(
            self.ns_per_place.saturating_mul(u64::from(SPAN_PAGES_MAX)),
        ))
    }

    fn goes_on(&mut self, now: Instant, at: u64) {
        self.course.was_at(at);
        let at = self.course.place(at).unwrap_or(self.at);
        if at <= self.at {
            return;
        }
        self.has_gone_on = true;
        self.at = at;
        self.steps = self.steps.saturating_add(1);
        let (since, from) = self.paced;
        let time = now.since(since);
        if time >= PACE {
            let ns = time.0 / (at - from).max(1) as u64;
            // Who waited just now goes on faster: what is ahead is there.
            self.ns_per_place = match self.ns_per_place {
                0 => ns,
                before => ns.min(before + before.div_ceil(PACE_SLOWER_ONE_IN)),
            };
            self.paced = (now, at);
        }
    }

    /// Asks for what is not asked for yet of its window, of so many pages at most, once that is
    /// worth it; how many pages, and whether there was room for all of them.
    fn ask(
        &mut self,
        pages_most: u32,
        behind: &mut DropBehind,
        memory: &mut impl Memory,
    ) -> (u64, bool) {
        let mut asked = 0;
        self.edge = self.edge.max(self.at + 1);
        let windows = self.course.windows();
        let window = self.window.min(windows.most);
        let window = window.min(pages_most / self.course.pages_each());
        let end = self.at + 1 + i64::from(window);
        let least = i64::from(window) / ASK_ONE_IN;
        let is_none = self.process.is_none() || window < windows.least;
        if is_none || end - self.edge < least {
            return (asked, true);
        }
        while self.edge < end {
            let places = (end - self.edge).min(i64::from(windows.at_once)) as u32;
            let Some(span) = self.span(self.edge, places) else {
                break;
            };
            let which = memory.on_device(span);
            if which != 0 {
                if !memory.will_need(span.of(which)) {
                    // What is behind may make some.
                    self.note_alone(self.at + 1);
                    return (asked, false);
                }
                let count = u64::from(which.count_ones());
                behind.bring(span.of(which), count);
                asked += count;
                self.note_alone(self.edge);
                self.note(Asked {
                    at: self.edge,
                    places,
                    which,
                });
            }
            if self.is_by_steps() {
                // What lies between two elements is not wanted.
                memory.submit();
            }
            self.edge += i64::from(places);
            self.alone = self.edge;
        }
        (asked, true)
    }

    /// Notes what the program has asked for until a place since the stream last did. Of longer
    /// steps nothing is sent away.
    fn note_alone(&mut self, end: i64) {
        let mut at = match self.course {
            Course::Pages { .. } => self.alone.max(end - ALONE_PAGES),
            Course::Steps { .. } => end,
        };
        while at < end {
            let pages = (end - at).min(i64::from(SPAN_PAGES_MAX));
            self.note(Asked {
                at,
                places: pages as u32,
                which: 0,
            });
            at += pages;
        }
        self.alone = self.alone.max(end);
    }

    fn note(&mut self, asked: Asked) {
        self.asked[self.asks as usize % ASKED] = asked;
        self.asks += 1;
        let kept = self.asks.saturating_sub(ASKED as u64);
        self.looked_at = self.looked_at.max(kept);
        self.left = self.left.max(kept);
    }

    /// Looks at what is behind it, and has its window follow from that, or ends; how many pages
    /// were used, and how many were not.
    fn judge(&mut self, memory: &mut impl Memory) -> (u64, u64) {
        let (mut used, mut asked) = (0, 0);
        while self.looked_at < self.asks {
            let one = self.asked[self.looked_at as usize % ASKED];
            if self.at - one.at - i64::from(one.places) < BEHIND_PLACES {
                break;
            }
            self.looked_at += 1;
            let Some(span) = self.span(one.at, one.places) else {
                continue;
            };
            used += u64::from((memory.mapped(span) & one.which).count_ones());
            asked += u64::from(one.which.count_ones());
        }
        if used * 2 < asked {
            self.window /= 2;
        } else if used * 4 >= asked * 3 && asked > 0 {
            self.window *= 4;
        } else if asked > 0 {
            self.window *= 2;
        }
        let windows = self.course.windows();
        self.window = self.window.min(windows.most);
        if self.window < windows.least {
            self.process = None;
        }
        (used, asked - used)
    }

    /// Sends away what is behind it, as far as it was looked at, where memory is full and that
    /// spares reads; how many pages.
    fn leave(&mut self, behind: &mut DropBehind, memory: &mut impl Memory) -> u64 {
        let mut sent = 0;
        while self.left < self.looked_at {
            let one = self.asked[self.left as usize % ASKED];
            self.left += 1;
            let span = match self.course {
                Course::Pages { .. } => self.span(one.at, one.places),
                Course::Steps { .. } => None,
            };
            let Some(span) = span.filter(|_| behind.sends() && memory.is_short()) else {
                continue;
            };
            let mut which = match one.which {
                0 => u64::MAX >> (SPAN_PAGES_MAX - span.pages),
                which => which,
            };
            // What was there before stays: somebody may want it all the time.
            while which != 0 {
                let run = span.first_run_of(which);
                memory.send_away(run);
                behind.send(run);
                sent += u64::from(run.pages);
                let end = run.end() - span.first;
                which &= u64::MAX.checked_shl(end as u32).unwrap_or(0);
            }
        }
        sent
    }

    /// Whether something is ahead of it that is being used up.
    fn moves(&self, now: Instant) -> bool {
        let is_ahead = self.asks > 0 || self.edge > self.at + 1;
        self.process.is_some() && is_ahead && !self.stands_still(now)
    }

    fn stands_still(&self, now: Instant) -> bool {
        now.since(self.paced.0) >= STILL
    }

    /// When a part of what is ahead will have been used; at once where its pace is not known.
    fn due(&self) -> Nanos {
        let places = (self.edge - self.at).max(0) / LOOK_ONE_IN;
        Nanos((places as u64).saturating_mul(self.ns_per_place))
    }
}

#[cfg(test)]
mod tests;
