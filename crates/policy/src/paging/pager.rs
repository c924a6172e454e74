//! Which pages of a program are in memory: the core of an engine that maps, reads and writes them
//! itself (Ultraswap sections 3.1 and 3.2).
//!
//! The engine tells of a fault and of what became of reads and writes; the pager answers with
//! [`Act`]s, which are carried out in their order, before the pager is told of anything else. A
//! fault ends in one `Zero`, `Map` or `Fail` of its page, now or later.
//!
//! * The page that is waited for is read first, those that may be wanted after it ([`Prefetch`]).
//! * Along an access in order pages are had ahead, as far as memory is free, and are mapped before
//!   they are touched. One page of each window, its marker, is not: a touch of it tells that the
//!   access goes on, and the next window is had before anybody waits for it.
//! * Pages that are mapped ahead may only be read. Where they are written to in order those that
//!   follow are *allowed* writes before they see one: they count as written to from then on.
//! * A page is *unmapped* before it leaves, and stays in memory for a while: who touches it again
//!   needs no device, and by that is known to use it. It is then *active*, and leaves after those
//!   that are not (segmented FIFO; there are no accessed bits in user space).
//! * What an access in order has left behind leaves first: of a loop over more than there is memory
//!   for as much stays as fits, where first in, first out, would have nothing stay.
//! * A page is written without anybody waiting for it, and freed when it has been. One that is the
//!   same on the device is freed without a write; zeros are not written at all.
//! * [`Pager::reclaim`] is for a reclaimer on another CPU. A fault reclaims only where no memory is
//!   left, and that is counted.
//!
//! What it never does: touch a page, a device or a clock; have more pages in memory than the limit,
//! unless that was lowered; allocate on the way of a fault that finds memory.
//!
//! *Shapes*: pages are numbers from 0, slots are places of a page's size on the device.
//! *Errors*: a page that cannot be read, or for which there is no memory, fails ([`Why`]); one that
//! cannot be written stays in memory. *Thread safety*: one owner.
//!
//! *Invariants*: a slot is given back only when no write of it is on its way; a page that is being
//! written keeps its memory; a pinned page stays in memory and mapped.

mod ahead;
mod foresight;
mod slots;
mod streams;
mod table;
#[cfg(test)]
mod tests;

pub use ahead::{Ahead, CLUSTER_PAGES_MAX, Pages, Prefetch};
use foresight::Foresight;
use slots::Slots;
use std::collections::VecDeque;
use streams::{Run, Streams, WINDOW_PAGES_MAX};
pub use table::State;
use table::{AHEAD, DIRTY, FORGOTTEN, IN_LINE, Queue, TO_MAP, TO_WRITE, Table, WAITED, WRITING};

/// What the engine is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Map zeros, for who waits or before anybody does. Where it is not `writable` the first write
    /// is to be a fault.
    Zero {
        /// The page.
        page: u32,
        /// Whether it may be written to without a fault.
        writable: bool,
    },
    /// Map what is in memory, for who waits or before anybody does, or change how it is mapped.
    Map {
        /// The page.
        page: u32,
        /// As for `Zero`.
        writable: bool,
    },
    /// Let a mapped page be written to without a fault; nobody waits for that.
    Allow {
        /// The page.
        page: u32,
    },
    /// Take it out of the program's sight; it stays in memory.
    Unmap {
        /// The page.
        page: u32,
    },
    /// Read it from the device, and tell [`Pager::read_done`].
    Read {
        /// The page.
        page: u32,
        /// Where it lies.
        slot: u32,
        /// Somebody waits for it: not behind any other.
        is_critical: bool,
    },
    /// Write it to the device, and tell [`Pager::write_done`].
    Write {
        /// The page.
        page: u32,
        /// Where it is to lie.
        slot: u32,
    },
    /// Give its memory back; it is not mapped.
    Free {
        /// The page.
        page: u32,
    },
    /// Nobody can have it: whoever touches it is told so (SIGBUS).
    Fail {
        /// The page.
        page: u32,
        /// Why.
        why: Why,
    },
}

/// Why a page cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The device could not read it. What it holds stays there.
    Unreadable,
    /// No memory, and all slots are taken.
    DeviceFull,
    /// No memory, and the device refuses what is to make room.
    Unwritable,
    /// No memory, and all of it is pinned.
    Pinned,
    /// It is pinned as often as a page can be.
    PinnedMost,
}

/// Where what a page holds is to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nowhere: it is zeros.
    Zeros,
    /// In its memory, mapped or not.
    Memory,
    /// On the device, in this slot.
    Device(u32),
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is on the device.
    Kept,
    /// It was all zeros, and was not written.
    Zeros,
    /// The device refused it.
    Refused,
}

/// How large a pager is, and what it does.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Pages of the program.
    pub pages: u32,
    /// Pages that may be in memory.
    pub limit_pages: u32,
    /// Places on the device.
    pub slots: u32,
    /// What is read before it is wanted.
    pub prefetch: Prefetch,
}

/// What happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Faults that needed the device.
    pub major_faults: u64,
    /// Faults that did not.
    pub minor_faults: u64,
    /// Writes to mapped pages that could only be read.
    pub write_faults: u64,
    /// Pages that were allowed writes before they saw one.
    pub allowed_ahead: u64,
    /// Pages that were mapped to be written to since they were written to the last time.
    pub foreseen: u64,
    /// Pages that were unmapped, and touched before they left.
    pub kept: u64,
    /// Pages read ahead.
    pub ahead: u64,
    /// Of them, those that were seen to be wanted.
    pub ahead_hits: u64,
    /// Of them, those that were mapped when they had been read: their use is seen only where they
    /// are written to, or touched after they were unmapped.
    pub mapped_ahead: u64,
    /// Pages of zeros that were mapped before they were wanted.
    pub zeros_ahead: u64,
    /// Writes begun.
    pub writes: u64,
    /// Pages freed without a write.
    pub dropped: u64,
    /// Faults that had to reclaim.
    pub inline_reclaims: u64,
    /// Reads and writes that the device refused.
    pub refused: u64,
    /// Faults that failed.
    pub failed: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Pager {
    table: Table,
    slots: Slots,
    ahead: Ahead,
    /// Of pages that are read, of fresh ones and of writes, where the prefetch is by streams.
    streams: Option<[Streams; 3]>,
    foresight: Foresight,
    limit: u32,
    used: u32,
    /// Pages that are waited for and have no memory yet, in the order of their faults.
    line: VecDeque<u32>,
    /// Counts pages that might have left because they were left behind.
    turn: u32,
    writing: u32,
    reading: u32,
    /// Writes that were refused one after the other.
    refused: u32,
    counts: Counts,
}

/// Unmapped pages are so much of the limit, before one of them leaves: one part in so many. What is
/// used again within as many other pages is sure to be noticed; more would cost more faults.
const UNMAPPED_ONE_IN: u32 = 4;
/// Writes on their way at once.
const WRITING_MAX: u32 = 64;
/// Who waits for memory fails after so many writes that were refused one after the other.
const REFUSED_MAX: u32 = 16;
/// A fault without memory frees so many pages at once, so that the next finds some.
const INLINE_PAGES: u32 = 8;
/// A window is this part of the limit at most: one part in so many. Pages that are allowed writes
/// for nothing are written to the device for nothing: no more than a window.
const WINDOW_ONE_IN: u32 = 8;
/// Where pages are mapped ahead, no more are unmapped for one that leaves: each that is used again
/// costs a fault, which is to tell more than it costs.
const UNMAPPED_EACH: u32 = 4;
/// So much of the limit may be what was mapped along accesses in order before that leaves first: it
/// is not left behind yet, or several accesses are close to each other. One part in so many.
const SCANNED_ONE_IN: u32 = 8;
/// Of so many pages that leave one is another, so that what nobody wants any more leaves too: where
/// they are fewer a loop keeps more of what it has, where they are more the next one has its room
/// sooner.
const OTHERS_ONE_IN: u32 = 16;
/// Zeros that are mapped ahead take this part of what is free at most: they leave by being written
/// to the device or looked at, where what was read ahead is only dropped.
const SPARE_ONE_IN: u32 = 2;
/// A window is looked for in so many pages: some may be there already, or written to.
const LOOKS_AHEAD_MAX: usize = 2 * WINDOW_PAGES_MAX as usize;
/// Which streams.
const READS: usize = 0;
const ZEROS: usize = 1;
const WRITES: usize = 2;

impl Pager {
    /// All pages are fresh.
    ///
    /// # Panics
    ///
    /// Where nothing may be in memory.
    pub fn new(shape: Shape) -> Pager {
        assert!(shape.limit_pages > 0, "a program needs a page in memory");
        Pager {
            table: Table::new(shape.pages),
            slots: Slots::new(shape.slots),
            ahead: Ahead::new(shape.prefetch),
            streams: (shape.prefetch == Prefetch::Stream)
                .then(|| [true, false, false].map(Streams::new)),
            foresight: Foresight::new(),
            limit: shape.limit_pages,
            used: 0,
            line: VecDeque::new(),
            turn: 0,
            writing: 0,
            reading: 0,
            refused: 0,
            counts: Counts::default(),
        }
    }

    /// Pages in memory.
    pub fn used_pages(&self) -> u32 {
        self.used
    }

    /// Pages that may be.
    pub fn limit_pages(&self) -> u32 {
        self.limit
    }

    /// Slots that are taken.
    pub fn slots_taken(&self) -> u32 {
        self.slots.taken()
    }

    /// Faults that wait for memory.
    pub fn waiting(&self) -> usize {
        self.line.len()
    }

    /// Whether who touches a page waits for something that is on its way: a read of it (true), or a
    /// write, of a page that was forgotten meanwhile. None where he does not.
    pub fn waits_for(&self, page: u32) -> Option<bool> {
        let entry = self.table.get(page);
        match entry.state() {
            State::Reading => Some(true),
            _ if entry.is(FORGOTTEN) && entry.is(WRITING) => Some(false),
            _ => None,
        }
    }

    /// What happened.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Where a page is.
    pub fn state(&self, page: u32) -> State {
        self.table.get(page).state()
    }

    /// Where what a page holds is to be found at this moment.
    pub fn content(&self, page: u32) -> Content {
        let entry = self.table.get(page);
        match (entry.state(), entry.slot()) {
            _ if entry.is(FORGOTTEN) => Content::Zeros,
            (State::Resident | State::Unmapped, _) => Content::Memory,
            (_, Some(slot)) => Content::Device(slot),
            (_, None) => Content::Zeros,
        }
    }

    /// Another limit. Where more is used, [`Pager::reclaim`] brings it down; faults wait meanwhile.
    ///
    /// # Panics
    ///
    /// Where nothing may be in memory.
    pub fn set_limit(&mut self, pages: u32, acts: &mut Vec<Act>) {
        assert!(pages > 0, "a program needs a page in memory");
        self.limit = pages;
        self.serve(acts);
    }

    /// A page was touched that is not mapped, or written to where it may only be read.
    pub fn fault(&mut self, page: u32, is_write: bool, acts: &mut Vec<Act>) {
        let entry = self.table.at(page);
        if is_write {
            entry.set(TO_WRITE);
        }
        let is_under_way = entry.is(FORGOTTEN) || entry.is(IN_LINE);
        match entry.state() {
            State::Resident => {
                self.counts.write_faults += u64::from(is_write);
                self.map(page, acts);
            }
            // What is under way answers all that wait.
            State::Reading => {
                entry.set(WAITED);
                let _ = self.follow(page, acts);
            }
            _ if is_under_way => entry.set(WAITED),
            State::Unmapped => {
                self.take_back(page, acts);
                if self.follow(page, acts) {
                    self.keep(page, Queue::Scanned);
                }
            }
            State::Fresh | State::OnDevice => {
                entry.set(WAITED);
                self.enter(page, acts);
            }
        }
        if is_write {
            self.allow_ahead(page, acts);
        }
    }

    /// A page will be wanted: read it now, if it is on the device and memory is free.
    pub fn will_need(&mut self, page: u32, acts: &mut Vec<Act>) {
        self.read_ahead(page, acts);
    }

    /// Keeps a page in memory, and mapped, until it is unpinned as often. It is had by a fault
    /// where it is not there. False where it is pinned 65,535 times: then nothing has changed.
    #[must_use]
    pub fn pin(&mut self, page: u32, acts: &mut Vec<Act>) -> bool {
        let entry = self.table.at(page);
        let Some(pins) = entry.pins.checked_add(1) else {
            return false;
        };
        entry.pins = pins;
        match entry.state() {
            State::Resident => self.table.leave(page),
            _ => self.fault(page, false, acts),
        }
        true
    }

    /// Takes a pin back.
    pub fn unpin(&mut self, page: u32) {
        let entry = self.table.at(page);
        entry.pins = entry.pins.checked_sub(1).expect("it is pinned");
        if entry.pins == 0 && entry.state() == State::Resident {
            self.table.push(Queue::Active, page);
        }
    }

    /// What a page holds is not wanted any more: it reads as zeros. False where it is pinned.
    pub fn forget(&mut self, page: u32, acts: &mut Vec<Act>) -> bool {
        let entry = self.table.at(page);
        if entry.pins > 0 {
            return false;
        }
        let (state, is_writing) = (entry.state(), entry.is(WRITING));
        if state == State::Resident {
            acts.push(Act::Unmap { page });
            entry.set_state(State::Unmapped);
        }
        entry.clear(DIRTY);
        self.table.leave(page);
        if is_writing || state == State::Reading {
            self.table.at(page).set(FORGOTTEN);
        } else {
            self.erase(page, acts);
        }
        self.serve(acts);
        true
    }

    /// A read is over.
    pub fn read_done(&mut self, page: u32, is_good: bool, acts: &mut Vec<Act>) {
        self.reading -= 1;
        let entry = self.table.at(page);
        assert_eq!(entry.state(), State::Reading, "page {page} is being read");
        let is_waited = entry.is(WAITED);
        let queue = match entry.is(TO_MAP) {
            true => Queue::Scanned,
            false => Queue::Inactive,
        };
        if entry.is(FORGOTTEN) {
            entry.set_state(State::Unmapped);
            self.after_forgotten(page, acts);
        } else if !is_good {
            self.counts.refused += 1;
            self.leave_memory(page, acts);
            if is_waited {
                self.fail(page, Why::Unreadable, acts);
            }
        } else if is_waited {
            self.map(page, acts);
            self.keep(page, queue);
        } else if entry.is(TO_MAP) {
            entry.clear(TO_MAP);
            entry.set_state(State::Resident);
            // Whether it is touched at all is not seen: it tells nothing of others.
            if entry.is_rewritten() && self.foresight.is_trusted() && self.streams.is_some() {
                entry.set(DIRTY);
                self.counts.foreseen += 1;
            }
            let writable = entry.is(DIRTY);
            self.counts.mapped_ahead += 1;
            acts.push(Act::Map { page, writable });
            self.keep(page, queue);
        } else {
            entry.set_state(State::Unmapped);
            // A marker leaves no earlier than the rest of its window.
            let queue = match self.streams {
                Some(_) => Queue::Inactive,
                None => Queue::Unmapped,
            };
            self.table.push(queue, page);
        }
        self.serve(acts);
    }

    /// A write is over.
    pub fn write_done(&mut self, page: u32, written: Written, acts: &mut Vec<Act>) {
        self.writing -= 1;
        let entry = self.table.at(page);
        assert!(entry.is(WRITING), "page {page} is being written");
        entry.clear(WRITING);
        if written == Written::Refused {
            self.counts.refused += 1;
            self.refused += 1;
            entry.set(DIRTY);
        } else {
            self.refused = 0;
        }
        let (is_dirty, state) = (entry.is(DIRTY), entry.state());
        if entry.is(FORGOTTEN) {
            self.after_forgotten(page, acts);
        } else {
            if written == Written::Zeros {
                self.give_slot_back(page);
            }
            if state == State::Unmapped {
                let queue = if is_dirty {
                    Queue::Unmapped
                } else {
                    Queue::Clean
                };
                self.table.push(queue, page);
            }
        }
        self.serve(acts);
    }

    /// Frees so many pages, or begins what will free them; how many were freed. Nothing is waited
    /// for: what is written now is freed at a later call (U7).
    pub fn reclaim(&mut self, pages: u32, acts: &mut Vec<Act>) -> u32 {
        let freed = self.make_room(pages, acts);
        self.serve(acts);
        freed
    }

    fn make_room(&mut self, pages: u32, acts: &mut Vec<Act>) -> u32 {
        let (mut freed, mut begun, mut homeless) = (0, self.writing, 0);
        // Each page is looked at once: what is put back stands behind these.
        let mut looks = self.used;
        while freed < pages && looks > 0 {
            looks -= 1;
            if let Some(page) = self.table.first(Queue::Clean) {
                self.drop_clean(page, acts);
                freed += 1;
                continue;
            }
            if self.drop_behind(acts) {
                freed += 1;
                continue;
            }
            if freed + begun >= pages {
                break;
            }
            self.unmap_some(homeless, acts);
            let Some(page) = self.table.first(Queue::Unmapped) else {
                break;
            };
            if !self.table.get(page).is(DIRTY) {
                self.drop_clean(page, acts);
                freed += 1;
            } else if self.writing >= WRITING_MAX {
                break;
            } else if self.write(page, acts) {
                begun += 1;
            } else {
                // Behind it may be some that need no slot.
                self.table.push(Queue::Unmapped, page);
                homeless += 1;
            }
        }
        freed
    }

    /// Frees a page that an access in order has left behind, where there is one and it may go
    /// before others.
    fn drop_behind(&mut self, acts: &mut Vec<Act>) -> bool {
        if self.table.len(Queue::Scanned) <= self.limit / SCANNED_ONE_IN {
            return false;
        }
        self.turn = (self.turn + 1) % OTHERS_ONE_IN;
        let Some(page) = self.table.first(Queue::Scanned).filter(|_| self.turn > 0) else {
            return false;
        };
        self.unmap(page, acts);
        // One that was written to goes the way of all others.
        let is_clean = !self.table.get(page).is(DIRTY | WRITING);
        if is_clean {
            self.drop_clean(page, acts);
        }
        is_clean
    }

    /// Takes a page out of sight, if it is not, and puts it behind those that are.
    fn unmap(&mut self, page: u32, acts: &mut Vec<Act>) {
        let entry = self.table.at(page);
        if entry.state() == State::Resident {
            acts.push(Act::Unmap { page });
            entry.set_state(State::Unmapped);
            if entry.is_tried() {
                entry.set_rewritten(false, false);
                self.foresight.learn(false);
            }
        }
        // One that is still being written is put into a queue when it has been.
        match entry.is(WRITING) {
            true => self.table.leave(page),
            false => self.table.push(Queue::Unmapped, page),
        }
    }

    /// Keeps enough pages unmapped, so that those which are used are touched before they leave;
    /// so many of them cannot.
    fn unmap_some(&mut self, homeless: u32, acts: &mut Vec<Act>) {
        let wanted = (self.limit / UNMAPPED_ONE_IN).max(1) + homeless;
        let mut left = match self.streams {
            Some(_) => UNMAPPED_EACH + homeless,
            None => u32::MAX,
        };
        while self.table.len(Queue::Unmapped) < wanted && left > 0 {
            if self.table.len(Queue::Active) > self.table.len(Queue::Inactive)
                && let Some(page) = self.table.first(Queue::Active)
            {
                self.table.push(Queue::Inactive, page);
                continue;
            }
            let inactive = self.table.first(Queue::Inactive);
            let Some(page) = inactive.or_else(|| self.table.first(Queue::Scanned)) else {
                return;
            };
            self.unmap(page, acts);
            left -= 1;
        }
    }

    /// Begins to write a page; false where there is no slot for it.
    fn write(&mut self, page: u32, acts: &mut Vec<Act>) -> bool {
        let slot = self
            .table
            .get(page)
            .slot()
            .or_else(|| self.slots.take(page));
        let Some(slot) = slot else {
            return false;
        };
        self.table.leave(page);
        let entry = self.table.at(page);
        entry.set_slot(Some(slot));
        entry.set(WRITING);
        entry.clear(DIRTY);
        self.writing += 1;
        self.counts.writes += 1;
        acts.push(Act::Write { page, slot });
        true
    }

    fn drop_clean(&mut self, page: u32, acts: &mut Vec<Act>) {
        self.counts.dropped += 1;
        self.leave_memory(page, acts);
    }

    /// Its memory is given back, and what it holds is on the device, or zeros.
    fn leave_memory(&mut self, page: u32, acts: &mut Vec<Act>) {
        self.table.leave(page);
        let entry = self.table.at(page);
        let state = match entry.slot() {
            Some(_) => State::OnDevice,
            None => State::Fresh,
        };
        entry.set_state(state);
        entry.clear(AHEAD | TO_MAP);
        self.used -= 1;
        acts.push(Act::Free { page });
    }

    /// Gives back all that a page has; nothing of it is on its way.
    fn erase(&mut self, page: u32, acts: &mut Vec<Act>) {
        self.give_slot_back(page);
        if self.table.get(page).has_frame() {
            self.leave_memory(page, acts);
        }
        let entry = self.table.at(page);
        entry.set_state(State::Fresh);
        entry.set_rewritten(false, false);
    }

    fn give_slot_back(&mut self, page: u32) {
        let entry = self.table.at(page);
        if let Some(slot) = entry.slot() {
            entry.set_slot(None);
            self.slots.give_back(slot);
        }
    }

    /// What was on its way for a page that was forgotten is over.
    fn after_forgotten(&mut self, page: u32, acts: &mut Vec<Act>) {
        let entry = self.table.at(page);
        entry.clear(FORGOTTEN | DIRTY);
        let is_waited = entry.is(WAITED);
        self.erase(page, acts);
        if is_waited {
            self.enter(page, acts);
        }
    }

    /// Gets memory for a page that is waited for, and what it holds.
    fn enter(&mut self, page: u32, acts: &mut Vec<Act>) {
        if self.used >= self.limit {
            self.counts.inline_reclaims += 1;
            self.make_room(INLINE_PAGES, acts);
        }
        // Nobody goes before those that wait already.
        if self.used >= self.limit || !self.line.is_empty() {
            self.table.at(page).set(IN_LINE);
            self.line.push_back(page);
            self.serve(acts);
            return;
        }
        self.fill(page, acts);
    }

    /// Fills a page that is waited for; there is memory.
    fn fill(&mut self, page: u32, acts: &mut Vec<Act>) {
        self.used += 1;
        let entry = self.table.at(page);
        let Some(slot) = entry.slot() else {
            let writable = entry.is(TO_WRITE);
            entry.clear(WAITED | TO_WRITE);
            entry.set_state(State::Resident);
            if writable {
                entry.set(DIRTY);
            }
            self.counts.minor_faults += 1;
            acts.push(Act::Zero { page, writable });
            self.keep(page, Queue::Inactive);
            return self.zero_ahead(page, acts);
        };
        self.counts.major_faults += 1;
        self.read(page, slot, true, acts);
        let others: Pages = self.ahead.fault(page, self.table.pages());
        for &other in others.as_slice() {
            self.read_ahead(other, acts);
        }
        let most = self.window_pages_max();
        let streams = self.streams.as_mut();
        if let Some(run) = streams.and_then(|streams| streams[READS].want(page, most)) {
            self.read_run(run, acts);
        }
    }

    /// Where a page is a marker the next window is read; whether it is one.
    fn follow(&mut self, page: u32, acts: &mut Vec<Act>) -> bool {
        let most = self.window_pages_max();
        let streams = self.streams.as_mut();
        let run = streams.and_then(|streams| streams[READS].touch(page, most));
        if let Some(run) = run {
            self.read_run(run, acts);
        }
        run.is_some()
    }

    /// Reads a window ahead, past pages that are there; the first that is read is its marker.
    fn read_run(&mut self, run: Run, acts: &mut Vec<Act>) {
        let (mut looked_at, mut begun, mut marker) = (0, 0, None);
        for page in run.within(self.table.pages()).take(LOOKS_AHEAD_MAX) {
            if begun == run.len || !self.has_room() {
                break;
            }
            looked_at += 1;
            if self.read_ahead(page, acts) {
                begun += 1;
                match marker {
                    None => marker = Some(page),
                    Some(_) => self.table.at(page).set(TO_MAP),
                }
            }
        }
        if let Some(streams) = &mut self.streams {
            streams[READS].had(run, looked_at, marker);
        }
    }

    /// Maps zeros behind a fresh page, where fresh ones are touched in order.
    fn zero_ahead(&mut self, page: u32, acts: &mut Vec<Act>) {
        let most = self.window_pages_max();
        let streams = self.streams.as_mut();
        let Some(run) = streams.and_then(|streams| streams[ZEROS].want(page, most)) else {
            return;
        };
        let mut count = 0;
        let spare = self.limit.saturating_sub(self.used) / SPARE_ONE_IN;
        for page in run.within(self.table.pages()).take(run.len as usize) {
            let entry = self.table.at(page);
            // One that failed may be pinned, and is touched again for that.
            if count == spare || !self.line.is_empty() || entry.state() != State::Fresh {
                break;
            }
            entry.set_state(State::Resident);
            entry.set(DIRTY);
            self.used += 1;
            count += 1;
            self.counts.zeros_ahead += 1;
            let writable = true;
            acts.push(Act::Zero { page, writable });
            self.keep(page, Queue::Inactive);
        }
        if let Some(streams) = &mut self.streams {
            streams[ZEROS].had(run, count, None);
        }
    }

    /// Lets pages behind one that is written to be written to as well, where that goes on in order,
    /// as far as they are mapped.
    fn allow_ahead(&mut self, page: u32, acts: &mut Vec<Act>) {
        let most = self.window_pages_max();
        let streams = self.streams.as_mut();
        let Some(run) = streams.and_then(|streams| streams[WRITES].want(page, most)) else {
            return;
        };
        let (mut looked_at, mut allowed) = (0, 0);
        for page in run.within(self.table.pages()).take(LOOKS_AHEAD_MAX) {
            let entry = self.table.at(page);
            if allowed == run.len || entry.state() != State::Resident {
                break;
            }
            looked_at += 1;
            if !entry.is(DIRTY) {
                entry.set(DIRTY);
                allowed += 1;
                acts.push(Act::Allow { page });
            }
        }
        self.counts.allowed_ahead += u64::from(allowed);
        if let Some(streams) = &mut self.streams {
            streams[WRITES].had(run, looked_at, None);
        }
    }

    fn window_pages_max(&self) -> u32 {
        (self.limit / WINDOW_ONE_IN).clamp(1, WINDOW_PAGES_MAX)
    }

    /// Whether memory is free that nobody waits for.
    fn has_room(&self) -> bool {
        self.used < self.limit && self.line.is_empty()
    }

    /// Never takes memory that is not free; whether the page is read.
    fn read_ahead(&mut self, page: u32, acts: &mut Vec<Act>) -> bool {
        let entry = self.table.get(page);
        let is_there = entry.state() != State::OnDevice || entry.is(IN_LINE);
        let slot = entry.slot().filter(|_| !is_there && self.has_room());
        let Some(slot) = slot else {
            return false;
        };
        self.table.at(page).set(AHEAD);
        self.used += 1;
        self.counts.ahead += 1;
        self.read(page, slot, false, acts);
        true
    }

    /// Begins to read a page, which has its memory.
    fn read(&mut self, page: u32, slot: u32, is_critical: bool, acts: &mut Vec<Act>) {
        self.table.at(page).set_state(State::Reading);
        self.reading += 1;
        acts.push(Act::Read {
            page,
            slot,
            is_critical,
        });
    }

    /// A page is touched that was unmapped or read ahead.
    fn take_back(&mut self, page: u32, acts: &mut Vec<Act>) {
        self.counts.minor_faults += 1;
        let queue = match self.table.get(page).is(AHEAD) {
            // The first use of it: nothing is known yet.
            true => Queue::Inactive,
            false => {
                self.counts.kept += 1;
                Queue::Active
            }
        };
        self.map(page, acts);
        self.keep(page, queue);
    }

    /// Maps a page that is in memory, for all that wait for it.
    fn map(&mut self, page: u32, acts: &mut Vec<Act>) {
        let entry = self.table.at(page);
        if entry.is(AHEAD) {
            self.counts.ahead_hits += 1;
            self.ahead.hit(page);
        }
        self.foresee(page);
        let entry = self.table.at(page);
        if entry.is(TO_WRITE) {
            entry.set(DIRTY);
        }
        entry.clear(WAITED | TO_WRITE | AHEAD | TO_MAP);
        entry.set_state(State::Resident);
        let writable = entry.is(DIRTY);
        acts.push(Act::Map { page, writable });
    }

    /// A page is to be mapped for who touched it: whether he will write to it.
    fn foresee(&mut self, page: u32) {
        let entry = self.table.at(page);
        if self.streams.is_none() || entry.is(DIRTY) {
            return;
        }
        let is_mapped = entry.state() == State::Resident;
        if is_mapped && entry.is(TO_WRITE) {
            if entry.is_tried() {
                self.foresight.learn(true);
            }
            // What is new is written to first, and tells nothing.
            entry.set_rewritten(entry.slot().is_some(), false);
        } else if !is_mapped && entry.is_rewritten() && !entry.is(TO_WRITE) {
            if self.foresight.tries() {
                entry.set_rewritten(true, true);
            } else {
                entry.set(DIRTY);
                self.counts.foreseen += 1;
            }
        }
    }

    /// Puts a mapped page into a queue, unless it is pinned.
    fn keep(&mut self, page: u32, queue: Queue) {
        match self.table.get(page).pins {
            0 => self.table.push(queue, page),
            _ => self.table.leave(page),
        }
        // Nobody needed the memory of what was left behind so long ago: it stays.
        if self.table.len(Queue::Scanned) > 2 * self.limit / SCANNED_ONE_IN
            && let Some(oldest) = self.table.first(Queue::Scanned)
        {
            self.table.push(Queue::Inactive, oldest);
        }
    }

    fn fail(&mut self, page: u32, why: Why, acts: &mut Vec<Act>) {
        self.counts.failed += 1;
        self.table.at(page).clear(WAITED | TO_WRITE | IN_LINE);
        acts.push(Act::Fail { page, why });
    }

    /// Memory may have come free: for those that wait, in their order.
    fn serve(&mut self, acts: &mut Vec<Act>) {
        while let Some(&page) = self.line.front() {
            let mut freed = 0;
            if self.used >= self.limit {
                freed = self.make_room(INLINE_PAGES.min(self.line.len() as u32), acts);
            }
            if self.used < self.limit {
                self.line.pop_front();
                self.table.at(page).clear(IN_LINE);
                self.fill(page, acts);
            } else if freed > 0 {
                // The limit was lowered, and who brings that about goes on.
                return;
            } else if let Some(why) = self.why_never() {
                self.line.pop_front();
                self.refused = 0;
                self.fail(page, why, acts);
            } else {
                return;
            }
        }
    }

    /// Why no memory will come free, where none will.
    fn why_never(&self) -> Option<Why> {
        if self.refused >= REFUSED_MAX {
            return Some(Why::Unwritable);
        }
        if self.writing > 0 || self.reading > 0 {
            return None;
        }
        match self.table.first(Queue::Unmapped) {
            Some(_) => Some(Why::DeviceFull),
            None => Some(Why::Pinned),
        }
    }
}
