//! What all threads of a region share: the pager behind its lock, and the way from its acts to
//! system calls.
//!
//! One lock is held from what the pager is told of until its acts are carried out, as the pager
//! asks for. Waiting for a device is outside of it. It is one lock because it is simple: a handler
//! holds it for a few microseconds, most of them the kernel's. Who reclaims beside the faults
//! carries its acts out without it (`flux.rs`), a few pages at a time.
//!
//! Pages may be *lost*: the program has mapped something of its own there. Nothing is mapped into
//! the view of them, or taken out, and who waits for one only tries again. The pager does not know
//! of that; what it brings into memory there it is told to forget.
//!
//! What it never does: touch the view while the lock is held, since who has the lock answers the
//! fault; wait for a device.
//!
//! *Thread safety*: shared by handlers, the background's thread and callers. *Invariant*: after
//! [`Shared::settle`] no act is left that was not carried out, or put into a list in its order.

use super::bits::Bits;
use super::device::{Desk, Hurried};
use super::error::reason;
use super::flux::Flux;
use super::memory::Memory;
use nyx_base::{Clock, Instant, LatencyCounter};
use nyx_media::TscClock;
use nyx_policy::paging::pager::{Act, Pager, State, Why, Written};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::BTreeMap;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Who waits for a page spins for the lock, since being woken takes longer than it is held.
const URGENT_SPINS: u32 = 400;
/// So long the background waits for those who wait for a page: some microseconds.
const POLITE_SPINS: u32 = 200;

/// Pages that are forgotten at once.
const FORGOTTEN_TOGETHER: usize = 64;
/// Places that are unmapped together without the lock.
const PLACES: usize = 64;

/// A read or write of pages side by side, which lie side by side on the device too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) page: u32,
    pub(super) slot: u32,
    /// So many.
    pub(super) pages: u32,
    pub(super) kind: Kind,
}

impl Move {
    fn one(page: u32, slot: u32, kind: Kind) -> Move {
        let pages = 1;
        Move {
            page,
            slot,
            pages,
            kind,
        }
    }

    pub(super) fn pages(self) -> Range<u32> {
        self.page..self.page + self.pages
    }

    /// Its pages, one by one.
    pub(super) fn each(self) -> impl Iterator<Item = Move> {
        let Move {
            page, slot, kind, ..
        } = self;
        (0..self.pages).map(move |number| Move::one(page + number, slot + number, kind))
    }
}

/// What for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Somebody waits for it.
    Critical,
    /// Nobody does yet.
    Ahead,
    /// To make room.
    Write,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Shared {
    core: Mutex<Core>,
    /// Threads that want the lock for somebody who waits for a page.
    urgent: AtomicU32,
    /// A page that is being fixed was mapped, or has failed.
    answered: Condvar,
    pub(super) memory: Arc<Memory>,
    /// Whether what is read ahead may be held: the device's time is paid for.
    is_metered: bool,
    /// Somebody waits for what is read ahead; for a page that is being written.
    hurried: [AtomicBool; 2],
    flux: Flux,
    pub(super) clock: TscClock,
    /// Wakes the background's thread.
    bell: OwnedFd,
    pub(super) is_over: AtomicBool,
    /// With fewer pages free the background's thread is to reclaim.
    pub(super) low_pages: AtomicU32,
    pub(super) pages: u32,
}

/// The lock. Who is to be woken by what was done under it is woken after it is given back: he would
/// take the CPU of the thread that has it.
pub(super) struct Held<'a> {
    shared: &'a Shared,
    core: Option<MutexGuard<'a, Core>>,
}

impl Deref for Held<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        self.core.as_ref().expect("held until it is dropped")
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        self.core.as_mut().expect("held until it is dropped")
    }
}

impl<'a> Held<'a> {
    /// Sleeps until something is answered, or somebody was to be told first, without the lock.
    fn wait(mut self) -> Held<'a> {
        let shared = self.shared;
        if !self.due.is_empty() {
            drop(self);
            return shared.lock();
        }
        let core = self.core.take().expect("held until it is dropped");
        let core = shared.answered.wait(core);
        shared.held(core.expect("a holder that panics ends the process"))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(mut core) = self.core.take() {
            let due = std::mem::take(&mut core.due);
            drop(core);
            // A panic under the lock ends the process, or that of a caller is on its way.
            if !std::thread::panicking() {
                self.shared.wake(due);
            }
        }
    }
}

/// Who is to be woken.
#[derive(Debug, Default)]
struct Due {
    pages: Vec<u32>,
    /// Of them, those that give SIGBUS: that is said before they are woken, which may be their end.
    failed: Vec<(u32, Why)>,
    is_answer: bool,
    is_ring: bool,
}

impl Due {
    fn is_empty(&self) -> bool {
        let is_nobody = self.pages.is_empty() && self.failed.is_empty();
        is_nobody && !self.is_answer && !self.is_ring
    }
}

/// What the lock guards.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) pager: Pager,
    acts: Vec<Act>,
    /// For the background's thread, in their order.
    pub(super) posted: Vec<Move>,
    /// Written without a write: all zeros.
    zeros: Vec<u32>,
    /// Where pages are that are unmapped together.
    places: Vec<usize>,
    /// Pages that are in the view.
    view: Bits,
    /// Pages where the program has something of its own.
    lost: Bits,
    /// Lost, and in memory for the pager.
    strays: Vec<u32>,
    /// Pages of which the pager was told a fault, and when: they are not answered yet.
    touched: BTreeMap<u32, Instant>,
    /// Pages that callers fix, by how many; and why it failed.
    fixing: BTreeMap<u32, (u32, Option<Why>)>,
    /// Pages that give SIGBUS.
    poisoned: BTreeMap<u32, Why>,
    /// How long faults took, from their being heard of until their answer.
    pub(super) faults: LatencyCounter,
    /// How long those waited who fixed what was not there.
    pub(super) waits: LatencyCounter,
    due: Due,
    /// Whether the background's thread is awake, or about to be.
    is_rung: bool,
}

impl Shared {
    pub(super) fn new(
        pager: Pager,
        memory: Arc<Memory>,
        pages: u32,
        is_metered: bool,
    ) -> io::Result<Shared> {
        Ok(Shared {
            is_metered,
            hurried: [AtomicBool::new(false), AtomicBool::new(false)],
            core: Mutex::new(Core {
                pager,
                acts: Vec::with_capacity(64),
                posted: Vec::with_capacity(64),
                zeros: Vec::with_capacity(64),
                places: Vec::with_capacity(64),
                view: Bits::new(pages),
                lost: Bits::new(pages),
                strays: Vec::new(),
                touched: BTreeMap::new(),
                fixing: BTreeMap::new(),
                poisoned: BTreeMap::new(),
                faults: LatencyCounter::default(),
                waits: LatencyCounter::default(),
                due: Due::default(),
                is_rung: false,
            }),
            urgent: AtomicU32::new(0),
            answered: Condvar::new(),
            memory,
            flux: Flux::new(pages),
            clock: TscClock::start(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_over: AtomicBool::new(false),
            low_pages: AtomicU32::new(0),
            pages,
        })
    }

    /// For somebody who waits for a page.
    fn lock_urgently(&self) -> Held<'_> {
        self.urgent.fetch_add(1, Relaxed);
        let spun = (0..URGENT_SPINS).find_map(|_| {
            std::hint::spin_loop();
            self.core.try_lock().ok()
        });
        let core = match spun {
            Some(core) => self.held(core),
            None => self.lock(),
        };
        self.urgent.fetch_sub(1, Relaxed);
        core
    }

    /// For the background: those who wait for a page go first, for a while.
    pub(super) fn lock_politely(&self) -> Held<'_> {
        for _ in 0..POLITE_SPINS {
            if self.urgent.load(Relaxed) == 0 {
                break;
            }
            std::hint::spin_loop();
        }
        self.lock()
    }

    pub(super) fn lock(&self) -> Held<'_> {
        let core = self.core.lock();
        self.held(core.expect("a holder that panics ends the process"))
    }

    fn held<'a>(&'a self, core: MutexGuard<'a, Core>) -> Held<'a> {
        let core = Some(core);
        Held { shared: self, core }
    }

    pub(super) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    fn wake(&self, due: Due) {
        for (page, why) in due.failed {
            let address = self.memory.at(page);
            tracing::error!(
                address = format_args!("{address:#x}"),
                page,
                "SIGBUS for who touched it: {}",
                reason(why)
            );
        }
        for page in due.pages {
            done("wake who waits for a page", self.memory.wake(page));
        }
        if due.is_answer {
            self.answered.notify_all();
        }
        if due.is_ring {
            self.ring();
        }
    }

    /// Wakes the background's thread.
    pub(super) fn ring(&self) {
        // Any number but none; a counter that is full is readable.
        let _ = rustix::io::write(&self.bell, &1u64.to_le_bytes());
    }

    /// A page was touched: tells the pager, and does what it says. Reads that are waited for go to
    /// the desk of the thread that asks.
    pub(super) fn fault(&self, page: u32, is_write: bool, now: Instant, desk: &mut Desk) {
        let mut core = self.lock_urgently();
        if core.lost.has(page) {
            // What the program has there by now, or will have in a moment, is not ours to give.
            core.due.pages.push(page);
            return;
        }
        core.touched.entry(page).or_insert(now);
        self.hurry(&mut core, page);
        let Core { pager, acts, .. } = &mut *core;
        pager.fault(page, is_write, acts);
        self.settle(&mut core, Some(desk));
    }

    /// Somebody wants a page: where it waits for a read or a write, and that is held, it is held no
    /// more.
    fn hurry(&self, core: &mut Core, page: u32) {
        if self.is_metered
            && let Some(is_read) = core.pager.waits_for(page)
        {
            self.hurried[usize::from(!is_read)].store(true, Relaxed);
            core.due.is_ring = true;
        }
    }

    /// What somebody has waited for since this was asked.
    pub(super) fn hurried(&self) -> Hurried {
        let was = |flag: &AtomicBool| self.is_metered && flag.swap(false, Relaxed);
        match self.hurried.each_ref().map(was) {
            [_, true] => Hurried::All,
            [true, false] => Hurried::Reads,
            [false, false] => Hurried::Nothing,
        }
    }

    /// Reads or writes are over.
    pub(super) fn moved(&self, all: &[(Move, bool)], desk: Option<&mut Desk>) {
        let mut core = match desk {
            Some(_) => self.lock_urgently(),
            None => self.lock_politely(),
        };
        let Core { pager, acts, .. } = &mut *core;
        for &(what, is_good) in all {
            what.pages().for_each(|page| match (what.kind, is_good) {
                (Kind::Critical | Kind::Ahead, _) => pager.read_done(page, is_good, acts),
                (Kind::Write, true) => pager.write_done(page, Written::Kept, acts),
                (Kind::Write, false) => pager.write_done(page, Written::Refused, acts),
            });
        }
        self.settle(&mut core, desk);
    }

    /// Reads that another thread could not do go to the background's.
    pub(super) fn post(&self, all: impl Iterator<Item = Move>) {
        let mut core = self.lock();
        core.posted.extend(all);
        self.settle(&mut core, None);
    }

    /// Tells the pager something, and carries out what it says; the background's thread reads.
    pub(super) fn tell<T>(&self, what: impl FnOnce(&mut Pager, &mut Vec<Act>) -> T) -> T {
        let mut core = self.lock();
        let Core { pager, acts, .. } = &mut *core;
        let told = what(pager, acts);
        self.settle(&mut core, None);
        told
    }

    /// Frees pages, or begins what will; how many were freed. What is to be done for it is added to
    /// `left`, for [`Self::finish_reclaim`].
    pub(super) fn begin_reclaim(&self, core: &mut Core, pages: u32, left: &mut Vec<Act>) -> u32 {
        let is_awaited = core.pager.waiting() > 0;
        let Core { pager, acts, .. } = &mut *core;
        if is_awaited {
            // What is freed goes to somebody at once.
            let freed = pager.reclaim(pages, acts);
            self.settle(core, None);
            return freed;
        }
        let first = left.len();
        let freed = pager.reclaim(pages, left);
        // Where something is that is not the region's it stays.
        let is_not_there =
            |act: &mut Act| matches!(*act, Act::Unmap { page } if !core.view.has(page));
        left.extract_if(first.., is_not_there).for_each(drop);
        for act in &left[first..] {
            let page = page_of(act);
            self.flux.begin(page, matches!(act, Act::Free { .. }));
            if let Act::Unmap { .. } = act {
                core.view.set(page, false);
            }
        }
        freed
    }

    /// Carries out what a reclaim left, without the lock; writes go to the background's desk.
    pub(super) fn finish_reclaim(&self, left: &[Act], desk: &mut Desk) {
        let mut places = [0; PLACES];
        for acts in left.chunks(PLACES) {
            let mut count = 0;
            for at in acts.iter().filter_map(|act| self.place_of(act)) {
                places[count] = at;
                count += 1;
            }
            done("unmap pages", self.memory.unmap(&mut places[..count]));
            self.free(acts);
        }
        // What is written may be touched again from here on: it is dirty then, and written again.
        for act in left {
            self.flux.end(page_of(act), matches!(act, Act::Free { .. }));
        }
        let mut zeros = Vec::new();
        desk.push(left.iter().filter_map(|act| match *act {
            Act::Write { page, .. } if self.memory.is_zero(page) => {
                zeros.push(page);
                None
            }
            Act::Write { page, slot } => Some(Move::one(page, slot, Kind::Write)),
            _ => None,
        }));
        if !zeros.is_empty() {
            let mut core = self.lock_politely();
            core.zeros.append(&mut zeros);
            self.settle(&mut core, None);
        }
    }

    /// Gives back the memory of what so many acts free, [`PLACES`] at most; side by side by one
    /// call.
    fn free(&self, acts: &[Act]) {
        let mut pages = [0; PLACES];
        let mut count = 0;
        for act in acts {
            if let Act::Free { page } = *act {
                pages[count] = page;
                count += 1;
            }
        }
        let pages = &mut pages[..count];
        pages.sort_unstable();
        for run in pages.chunk_by(|a, b| a + 1 == *b) {
            let pages = run[0]..run[0] + run.len() as u32;
            done("give memory back", self.memory.free(pages));
        }
    }

    /// Where something is to be unmapped for an act.
    fn place_of(&self, act: &Act) -> Option<usize> {
        match *act {
            Act::Unmap { page } => Some(self.memory.at(page)),
            _ => None,
        }
    }

    /// Carries out all acts, and what comes of them.
    pub(super) fn settle(&self, core: &mut Core, mut desk: Option<&mut Desk>) {
        loop {
            let mut acts = std::mem::take(&mut core.acts);
            self.wait_for(core, &acts);
            self.unmap_together(core, &acts);
            let mut rest = acts.as_slice();
            while let Some(&act) = rest.first() {
                let (together, others) = rest.split_at(neighbours(rest));
                self.carry_out(core, act, together.len() as u32, desk.as_deref_mut());
                rest = others;
            }
            acts.clear();
            core.acts = acts;
            let Core {
                pager,
                acts,
                zeros,
                strays,
                ..
            } = &mut *core;
            if let Some(page) = zeros.pop() {
                pager.write_done(page, Written::Zeros, acts);
            } else if let Some(page) = strays.pop() {
                // One that is pinned is forgotten when it is not any more.
                pager.forget(page, acts);
            } else {
                break;
            }
        }
        if !core.is_rung && core.is_wanted(self.low_pages.load(Relaxed)) {
            core.is_rung = true;
            core.due.is_ring = true;
        }
    }

    /// Unmaps at once what is unmapped before anything is mapped: other CPUs are told of it once,
    /// which costs more than the rest. What stands before an unmap does not mind that.
    fn unmap_together(&self, core: &mut Core, acts: &[Act]) {
        let mut places = std::mem::take(&mut core.places);
        let opens =
            |act: &&Act| matches!(act, Act::Zero { .. } | Act::Map { .. } | Act::Allow { .. });
        for act in acts.iter().take_while(|act| !opens(act)) {
            match *act {
                Act::Unmap { page } if !core.view.has(page) => continue,
                Act::Unmap { page } => core.view.set(page, false),
                _ => {}
            }
            places.extend(self.place_of(act));
        }
        done("unmap pages", self.memory.unmap(&mut places));
        places.clear();
        core.places = places;
    }

    /// What is in flux comes first.
    fn wait_for(&self, core: &Core, acts: &[Act]) {
        for act in acts {
            self.flux.wait(page_of(act));
            if let Act::Zero { .. } | Act::Read { .. } = act {
                let (used, limit) = (core.pager.used_pages(), core.pager.limit_pages());
                self.flux.wait_for_room(used, limit);
            }
        }
    }

    /// Maps pages side by side by one call, unless some are lost, and answers each.
    fn map(
        &self,
        core: &mut Core,
        pages: Range<u32>,
        map: impl Fn(&Memory, Range<u32>) -> io::Result<()>,
    ) {
        pages.clone().for_each(|page| core.heal(self, page));
        for (pages, is_lost) in core.lost.pieces(pages.clone()) {
            match is_lost {
                true => core.strays.extend(pages),
                false => done("map pages", map(&self.memory, pages)),
            }
        }
        pages.for_each(|page| self.answer(core, page, None));
    }

    /// Carries out an act, and those of so many neighbours with it.
    fn carry_out(&self, core: &mut Core, act: Act, together: u32, desk: Option<&mut Desk>) {
        match act {
            Act::Zero { page, writable } => {
                let pages = page..page + together;
                self.map(core, pages, |memory, pages| memory.zero(pages, writable));
            }
            // One that is in the view may not be there: the kernel takes it out where it swaps.
            Act::Map { page, writable } => {
                let pages = page..page + together;
                self.map(core, pages, |memory, pages| memory.map(pages, writable));
            }
            // As above of one that is not there: a touch of it is a fault, and finds it so.
            Act::Allow { page } => {
                for (pages, is_lost) in core.lost.pieces(page..page + together) {
                    if !is_lost {
                        done("allow writes", self.memory.allow_writes(pages));
                    }
                }
            }
            Act::Unmap { page } if core.view.has(page) => {
                core.view.set(page, false);
                done(
                    "unmap a page",
                    self.memory.unmap(&mut [self.memory.at(page)]),
                );
            }
            Act::Unmap { .. } => {}
            Act::Read {
                page,
                slot,
                is_critical,
            } => {
                let kind = if is_critical {
                    Kind::Critical
                } else {
                    Kind::Ahead
                };
                let what = Move::one(page, slot, kind);
                match desk {
                    // Where it may not go now the background's thread waits for that: this one
                    // has others to answer.
                    Some(desk) if is_critical && desk.may_now() => desk.push([what]),
                    _ => core.posted.push(what),
                }
            }
            Act::Write { page, slot } => match self.memory.is_zero(page) {
                true => core.zeros.push(page),
                false => core.posted.push(Move::one(page, slot, Kind::Write)),
            },
            Act::Free { page } => done("give memory back", self.memory.free(page..page + 1)),
            Act::Fail { page, why } => {
                if core.touched.contains_key(&page) && !core.lost.has(page) {
                    // Another touch may have failed before.
                    core.heal(self, page);
                    done("poison a page", self.memory.poison(page));
                    core.poisoned.insert(page, why);
                    core.due.failed.push((page, why));
                }
                self.answer(core, page, Some(why));
            }
        }
    }

    /// Whoever waits for the page has it now, or never.
    fn answer(&self, core: &mut Core, page: u32, why: Option<Why>) {
        core.view.set(page, why.is_none() && !core.lost.has(page));
        // Of whose touch nobody has heard yet is answered when it is heard of.
        if let Some(began) = core.touched.remove(&page) {
            core.due.pages.push(page);
            core.faults.add(self.clock.now().since(began), 1);
        }
        if let Some((_, failed)) = core.fixing.get_mut(&page) {
            *failed = why;
            core.due.is_answer = true;
        }
    }

    /// Pins pages and waits until they are mapped, writable where they are to be written to. Where
    /// one cannot be had none is pinned.
    pub(super) fn fix(&self, first: u32, pages: u32, is_write: bool) -> Result<(), (u32, Why)> {
        let mut core = self.lock_urgently();
        let mut range = first..first + pages;
        let mut result = Ok(());
        for page in range.clone() {
            self.hurry(&mut core, page);
            let Core { pager, acts, .. } = &mut *core;
            if !pager.pin(page, acts) {
                result = Err((page, Why::PinnedMost));
                range.end = page;
                break;
            }
            let fixing = core.fixing.entry(page).or_insert((0, None));
            *fixing = (fixing.0 + 1, None);
            self.settle(&mut core, None);
        }
        let mut began = None;
        let waited = if result.is_ok() { range.clone() } else { 0..0 };
        'pages: for page in waited {
            while core.pager.state(page) != State::Resident {
                if let Some(why) = core.fixing[&page].1 {
                    result = Err((page, why));
                    break 'pages;
                }
                began = began.or_else(|| Some(self.clock.now()));
                core = core.wait();
            }
            if is_write {
                let Core { pager, acts, .. } = &mut *core;
                pager.fault(page, true, acts);
                self.settle(&mut core, None);
            }
        }
        if let Some(began) = began {
            core.waits.add(self.clock.now().since(began), 1);
        }
        for page in range {
            let fixing = core.fixing.get_mut(&page).expect("put there above");
            fixing.0 -= 1;
            if fixing.0 == 0 {
                core.fixing.remove(&page);
            }
            if result.is_err() {
                core.unpin(page);
            }
        }
        self.settle(&mut core, None);
        result
    }

    /// Takes back what [`Self::fix`] did.
    pub(super) fn unfix(&self, first: u32, pages: u32) {
        let mut core = self.lock();
        (first..first + pages).for_each(|page| core.unpin(page));
        self.settle(&mut core, None);
    }

    /// Has all stand still until the lock is given back: who writes to the view faults, and waits.
    pub(super) fn freeze(&self) -> Held<'_> {
        let core = self.lock();
        self.flux.wait_for_all();
        for run in core.view.runs() {
            done("protect pages", self.memory.protect(run));
        }
        core
    }

    /// The program will have something of its own at these pages, and nobody touches the view of
    /// them from now on.
    pub(super) fn lose(&self, first: u32, pages: u32) {
        let mut core = self.lock();
        for page in first..first + pages {
            core.heal(self, page);
            self.flux.wait(page);
            core.view.set(page, false);
            core.lost.set(page, true);
        }
        self.forget_held(&mut core, first..first + pages);
    }

    /// What is in these pages is not wanted; how many are pinned, and keep it.
    pub(super) fn forget(&self, first: u32, pages: u32) -> u32 {
        self.forget_held(&mut self.lock(), first..first + pages)
    }

    fn forget_held(&self, core: &mut Core, Range { start, end }: Range<u32>) -> u32 {
        let mut kept = 0;
        for first in (start..end).step_by(FORGOTTEN_TOGETHER) {
            let pages = first..end.min(first + FORGOTTEN_TOGETHER as u32);
            let Core { pager, acts, .. } = &mut *core;
            for page in pages.clone() {
                kept += u32::from(!pager.forget(page, acts));
            }
            self.settle(core, None);
            pages.for_each(|page| core.heal(self, page));
        }
        kept
    }
}

impl Core {
    /// Takes what is for the background's thread, which is awake.
    pub(super) fn take_posted(&mut self, into: &mut Vec<Move>) {
        self.is_rung = true;
        into.append(&mut self.posted);
    }

    /// Whether the background's thread may sleep: then the next that wants it rings.
    pub(super) fn may_sleep(&mut self, low_pages: u32) -> bool {
        self.is_rung = self.is_wanted(low_pages);
        !self.is_rung
    }

    fn unpin(&mut self, page: u32) {
        self.pager.unpin(page);
        if self.lost.has(page) {
            self.strays.push(page);
        }
    }

    fn is_wanted(&self, low_pages: u32) -> bool {
        let free = self
            .pager
            .limit_pages()
            .saturating_sub(self.pager.used_pages());
        !self.posted.is_empty() || free < low_pages
    }

    /// Pages that give SIGBUS.
    pub(super) fn poisoned_pages(&self) -> usize {
        self.poisoned.len()
    }

    /// Takes the poison off a page.
    fn heal(&mut self, shared: &Shared, page: u32) {
        if self.poisoned.remove(&page).is_some() {
            shared.flux.wait(page);
            done(
                "take poison off a page",
                shared.memory.unmap(&mut [shared.memory.at(page)]),
            );
        }
    }
}

/// How many acts, from the first on, are carried out by one call: pages side by side that are
/// mapped alike.
fn neighbours(acts: &[Act]) -> usize {
    let is_next = |pair: &&[Act]| match (pair[0], pair[1]) {
        (
            Act::Zero { page, writable },
            Act::Zero {
                page: next,
                writable: other,
            },
        )
        | (
            Act::Map { page, writable },
            Act::Map {
                page: next,
                writable: other,
            },
        ) => next == page + 1 && writable == other,
        (Act::Allow { page }, Act::Allow { page: next }) => next == page + 1,
        _ => false,
    };
    1 + acts.windows(2).take_while(is_next).count()
}

/// Which page an act is about.
fn page_of(act: &Act) -> u32 {
    match *act {
        Act::Zero { page, .. }
        | Act::Map { page, .. }
        | Act::Allow { page }
        | Act::Unmap { page }
        | Act::Read { page, .. }
        | Act::Write { page, .. }
        | Act::Free { page }
        | Act::Fail { page, .. } => page,
    }
}

/// Ends the process (see [`super::threads`]) where the kernel refuses what it has promised: who
/// waits for the page would wait for ever, and its bytes may be gone.
fn done(what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        panic!("a region cannot {what}: {error}");
    }
}
