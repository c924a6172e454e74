//! Engine P: the memory of a program that is not changed, in a range that is larger than its DRAM
//! (Ultraswap sections 3.1 and 3.2).
//!
//! ```text
//! program --malloc, mmap--> preload library (nyx-preload) --> Arena: which pages are given away
//!    |                                                                |
//!    +--touch, system calls--> userfaultfd --> Region (engine L) <----+ free, madvise, mlock, fork
//! ```
//!
//! An [`Arena`] is a [`Region`](crate::region::Region) of which ranges are given away like memory
//! of `malloc` and private memory of `mmap`, and which behaves as that does.
//!
//! * A child of `fork` has a copy, at the same addresses, that is no arena any more (`fork.rs`).
//! * What the program maps over a part of it (`MAP_FIXED`) is its own, and that part lost.
//! * What is freed is given back at once, but for a little that `malloc` may have again.
//!
//! Its memory is a shared mapping below, since pages are mapped into those by the kernel without a
//! copy. Where that could be seen it is refused: see `docs/swap.md`, "Engine P".
//!
//! What it never does: call the region from a thread of the program (`service.rs`); touch what it
//! gives away.
//!
//! *Thread safety*: all of it. *Errors*: as the system calls have them, by number.

mod budget;
mod direct;
mod errors;
mod extents;
mod fork;
mod gate;
mod guard;
mod handoff;
mod heap;
mod press;
mod says;
mod service;
mod terms;
mod undisturbed;

pub use crate::region::threads::is_own as is_own_thread;
pub use direct::is_direct;
pub use errors::remember_errors;
pub use fork::Forking;
pub use gate::{Closed, Gate, Inside, Place};
pub use heap::Heap;
pub use terms::{ArenaFigures, LIBRARY, TERMS, Terms};
pub use undisturbed::Undisturbed;

use crate::region::{PAGE_BYTES, RegionError};
use extents::Extents;
use libc::c_int;
use rustix::thread::futex::{self, Timespec};
use service::Service;
use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{
    AtomicBool, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Mutex, MutexGuard};

/// An arena has at least so much in memory.
const LIMIT_BYTES_MIN: u64 = 1 << 20;
/// So much of what is freed is kept as it is for the next who wants as much, at most.
const KEPT_BYTES_MAX: u64 = 32 << 20;
/// And no more than this part of the limit.
const KEPT_ONE_IN: u64 = 8;
/// So much of the limit may be pinned or locked, one part in so many: half of what an arena has
/// at least.
const PINNED_ONE_IN: u64 = 16;
/// In so many pieces.
const KEPT_PIECES: usize = 32;

/// Who waits for others' pins looks whether this process has become a child that often.
const LOOK_AGAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// See the module.
#[derive(Debug)]
pub struct Arena {
    service: Service,
    range: Range<usize>,
    process: u32,
    kept_pages_max: u32,
    state: Mutex<State>,
    /// Pages that may be pinned and are not: where all are, no fault finds memory. It is waited on
    /// without a lock, since who waits may be stopped by a signal.
    pinnable: AtomicU32,
    pinnable_max: u32,
    /// This is a child of `fork`: all is plain memory.
    is_plain: AtomicBool,
}

#[derive(Debug)]
struct State {
    extents: Extents,
    /// Freed, and neither given back nor given away; for `extents` they are taken.
    kept: Vec<Range<u32>>,
    /// Pages that the program has locked.
    locked: BTreeSet<u32>,
    /// Ranges whose protection the program has changed, in order.
    protected: Vec<(Range<u32>, c_int)>,
}

/// The lock. No signal is handled by who has it: a handler may need it, as may who has stopped all
/// other threads by signals, to collect garbage.
#[derive(Debug)]
struct Locked<'a> {
    state: MutexGuard<'a, State>,
    /// Dropped last.
    _undisturbed: Undisturbed,
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

/// Memory that was given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins.
    pub at: usize,
    /// Whether all of it reads as zeros.
    pub is_zero: bool,
}

/// Whose a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// All of it was given away by the arena.
    Arenas,
    /// None of it was, or this is a child.
    Others,
    /// A part of it.
    Both,
}

/// The number of an error of a system call.
pub type Errno = c_int;

impl Arena {
    /// One by these terms, of which all is free.
    ///
    /// # Errors
    ///
    /// What is missing.
    pub fn new(terms: &Terms) -> Result<Arena, RegionError> {
        let service = Service::start(terms)?;
        let range = service.range.clone();
        let kept = (terms.limit_bytes / KEPT_ONE_IN).min(KEPT_BYTES_MAX);
        let pinnable = terms.limit_bytes.max(LIMIT_BYTES_MIN) / PINNED_ONE_IN / PAGE_BYTES as u64;
        Ok(Arena {
            service,
            process: std::process::id(),
            kept_pages_max: (kept / PAGE_BYTES as u64) as u32,
            state: Mutex::new(State {
                extents: Extents::new((range.len() / PAGE_BYTES) as u32),
                kept: Vec::new(),
                locked: BTreeSet::new(),
                protected: Vec::new(),
            }),
            range,
            pinnable: AtomicU32::new(pinnable as u32),
            pinnable_max: pinnable as u32,
            is_plain: AtomicBool::new(false),
        })
    }

    /// Where it is.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Whose it is: a child of `vfork` sees it, too.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Files of its process have to be able to be so long: pages are written to such.
    pub fn file_bytes(&self) -> u64 {
        file_bytes(self.range.len() as u64)
    }

    /// Whether this is a child's copy.
    pub fn is_plain(&self) -> bool {
        self.is_plain.load(Relaxed)
    }

    /// Whether this thread's stack is here.
    fn has_stack(&self) -> bool {
        let here = 0u8;
        self.range.contains(&(&raw const here as usize))
    }

    /// So many bytes, whole pages, at a multiple of `align_bytes`, a power of two; none where there
    /// is no room, or this is a child.
    pub fn allocate(&self, len: usize, align_bytes: usize) -> Option<Piece> {
        let pages = pages(len)?;
        let mut state = self.lock();
        if self.is_plain() {
            return None;
        }
        if let Some(at) = state.reuse(pages, |page| self.is_aligned(page, align_bytes)) {
            let at = self.address(at);
            return Some(Piece { at, is_zero: false });
        }
        let place = |page| self.next_aligned(page, align_bytes);
        let taken = state.extents.take(pages, place).or_else(|| {
            self.give_back_kept(&mut state, 0);
            state.extents.take(pages, place)
        })?;
        let at = self.address(taken);
        Some(Piece { at, is_zero: true })
    }

    /// Takes back what was given away as one at that address; false where nothing was.
    pub fn free(&self, at: usize) -> bool {
        let mut state = self.lock();
        let Some(range) = self.taken_at(&state, at) else {
            return false;
        };
        if self.is_plain() {
            state.extents.lose(range.clone());
            drop(state);
            unmap(&self.bytes(&range));
            return true;
        }
        self.unlock(&mut state, &range);
        let is_protected = state.is_protected(&range);
        if is_protected || range.len() as u32 > self.kept_pages_max {
            self.give_back(&mut state, range);
            return true;
        }
        state.kept.push(range);
        self.give_back_kept(&mut state, self.kept_pages_max);
        true
    }

    /// Bytes of what was given away as one at that address.
    pub fn len_at(&self, at: usize) -> Option<usize> {
        let state = self.lock();
        let range = self.taken_at(&state, at)?;
        Some(range.len() * PAGE_BYTES)
    }

    /// Has what was given away at `at` be so many bytes, without moving; false where it cannot be.
    pub fn resize(&self, at: usize, len: usize) -> bool {
        let Some(pages) = pages(len) else {
            return false;
        };
        let mut state = self.lock();
        let Some(range) = self.taken_at(&state, at) else {
            return false;
        };
        let end = range.start.saturating_add(pages);
        if end < range.end {
            let tail = end..range.end;
            if self.is_plain() {
                state.extents.lose(tail.clone());
                unmap(&self.bytes(&tail));
            } else {
                self.give_back(&mut state, tail);
            }
            return true;
        }
        end == range.end || !self.is_plain() && state.extents.resize(range.start, pages)
    }

    /// `munmap` of a range that meets the arena, of any kind.
    pub fn unmap(&self, bytes: Range<usize>) {
        let (before, pages, after) = self.split(&bytes);
        unmap(&before);
        unmap(&after);
        let mut state = self.lock();
        for lost in state.extents.lost_in(pages.clone()) {
            unmap(&self.bytes(&lost));
        }
        for part in self.given(&state, pages) {
            if self.is_plain() {
                state.extents.lose(part.clone());
                unmap(&self.bytes(&part));
            } else {
                self.give_back(&mut state, part);
            }
        }
    }

    /// Gives a range up over which `put` maps something of the program's: it is none of the arena's
    /// any more, and what was there is gone. No fork comes between the two.
    pub fn lose<T>(&self, bytes: Range<usize>, put: impl FnOnce() -> T) -> T {
        let (_, pages, _) = self.split(&bytes);
        let mut state = self.lock();
        if !self.is_plain() {
            self.give_back_kept(&mut state, 0);
            self.unlock(&mut state, &pages);
            state.forget_protection(&pages);
            self.service.lose(self.offsets(&pages));
        }
        state.extents.lose(pages);
        put()
    }

    /// Whose a range is.
    pub fn whose(&self, bytes: &Range<usize>) -> Whose {
        if self.is_plain() {
            return Whose::Others;
        }
        let (before, pages, after) = self.split(bytes);
        let state = self.lock();
        let given = self.given(&state, pages.clone());
        let lost = state.extents.lost_in(pages.clone());
        let sum = |parts: &[Range<u32>]| parts.iter().map(ExactSizeIterator::len).sum::<usize>();
        match (sum(&given), sum(&lost)) {
            (given, _) if given == pages.len() && before.is_empty() && after.is_empty() => {
                Whose::Arenas
            }
            (0, lost) if lost == pages.len() => Whose::Others,
            _ => Whose::Both,
        }
    }

    /// A range that is [`Whose::Both`], in order: its parts, each of which is the arena's or is
    /// not; none where some of it is nobody's.
    pub fn parts(&self, bytes: &Range<usize>) -> Option<Vec<Range<usize>>> {
        let (before, pages, after) = self.split(bytes);
        let state = self.lock();
        let ours = self.given(&state, pages.clone());
        let known = ours.into_iter().chain(state.extents.lost_in(pages));
        let mut parts: Vec<_> = known.map(|part| self.bytes(&part)).collect();
        parts.extend([before, after]);
        parts.retain(|part| !part.is_empty());
        parts.sort_unstable_by_key(|part| part.start);
        let len: usize = parts.iter().map(ExactSizeIterator::len).sum();
        (len == bytes.len()).then_some(parts)
    }

    /// Whether the program has changed the protection of some of a range.
    pub fn is_protected(&self, bytes: &Range<usize>) -> bool {
        let (_, pages, _) = self.split(bytes);
        self.lock().is_protected(&pages)
    }

    /// What is in whole pages of a range reads as zeros from now on.
    ///
    /// # Errors
    ///
    /// `EINVAL` where some of it is locked; `EAGAIN` where this has just become a child's.
    pub fn forget(&self, bytes: Range<usize>) -> Result<(), Errno> {
        let (_, pages, _) = self.split(&bytes);
        let state = self.lock();
        if state.locked.range(pages.clone()).next().is_some() {
            return Err(libc::EINVAL);
        }
        if self.is_plain() {
            return Err(libc::EAGAIN);
        }
        // What is pinned keeps what it has: whoever pinned it uses it.
        self.service.forget(self.offsets(&pages));
        Ok(())
    }

    /// A range will be touched.
    pub fn will_need(&self, bytes: Range<usize>) {
        let (_, pages, _) = self.split(&bytes);
        if let Some(_undisturbed) = self.undisturbed() {
            self.service.will_need(self.offsets(&pages));
        }
    }

    /// Protection of a range was changed, and is to be so in a child too.
    pub fn protected(&self, bytes: Range<usize>, protection: c_int) {
        let (_, pages, _) = self.split(&bytes);
        let mut state = self.lock();
        state.forget_protection(&pages);
        if protection != READ_WRITE {
            state.protected.push((pages, protection));
        }
    }

    /// Keeps a range in memory (`mlock`).
    ///
    /// # Errors
    ///
    /// `ENOMEM` where it cannot be: half of what may be pinned is left to those who give it back.
    pub fn keep(&self, bytes: Range<usize>) -> Result<(), Errno> {
        let (_, pages, _) = self.split(&bytes);
        let mut state = self.lock();
        let new: Vec<u32> = pages.filter(|page| !state.locked.contains(page)).collect();
        let is_much = state.locked.len() + new.len() > self.pinnable_max as usize / 2;
        if is_much || self.reserve(new.len()).is_err() {
            return Err(libc::ENOMEM);
        }
        for (done, &page) in new.iter().enumerate() {
            if !self.service.pin(self.offsets(&(page..page + 1))) {
                self.release(new.len() - done);
                new[..done]
                    .iter()
                    .for_each(|&page| self.unlock(&mut state, &(page..page + 1)));
                return Err(libc::ENOMEM);
            }
            state.locked.insert(page);
        }
        Ok(())
    }

    /// Takes [`Arena::keep`] back.
    pub fn let_go(&self, bytes: Range<usize>) {
        let (_, pages, _) = self.split(&bytes);
        self.unlock(&mut self.lock(), &pages);
    }

    /// Has a range in memory until [`Arena::unpin`]; false where it cannot be. Waits for others
    /// that have pinned too much for it. Where there is something to take back `pinned` is called,
    /// before any signal is handled.
    pub fn pin(&self, bytes: Range<usize>, pinned: impl FnOnce()) -> bool {
        let (_, pages, _) = self.split(&bytes);
        let _undisturbed = loop {
            // A child has no need of it, also one of a signal's handler while this waits.
            let Some(undisturbed) = self.undisturbed() else {
                return true;
            };
            match self.reserve(pages.len()) {
                Ok(()) => break undisturbed,
                Err(None) => return false,
                Err(Some(left)) => {
                    drop(undisturbed);
                    // Another value, a signal, or late: it is looked at again.
                    let time = Some(&LOOK_AGAIN);
                    let _ = futex::wait(&self.pinnable, futex::Flags::PRIVATE, left, time);
                }
            }
        };
        let is_pinned = self.service.pin(self.offsets(&pages));
        match is_pinned {
            true => pinned(),
            false => self.release(pages.len()),
        }
        is_pinned
    }

    /// Takes so many of the pages that may be pinned, no more than half; an error where they cannot
    /// be had: how many are left, where they may be later.
    fn reserve(&self, pages: usize) -> Result<(), Option<u32>> {
        let most = self.pinnable_max / 2;
        let pages = u32::try_from(pages).ok().filter(|&pages| pages <= most);
        let pages = pages.ok_or(None)?;
        let took = |left: u32| left.checked_sub(pages);
        let taken = self.pinnable.fetch_update(Acquire, Relaxed, took);
        taken.map(drop).map_err(Some)
    }

    fn release(&self, pages: usize) {
        self.pinnable.fetch_add(pages as u32, Release);
        let all = i32::MAX as u32;
        let woken = futex::wake(&self.pinnable, futex::Flags::PRIVATE, all);
        woken.expect("who waits at an address of ours can be woken");
    }

    /// Takes a [`Arena::pin`] of the same range back.
    pub fn unpin(&self, bytes: Range<usize>) {
        // In a child of a signal's handler nobody has it.
        let Some(_undisturbed) = self.undisturbed() else {
            return;
        };
        let (_, pages, _) = self.split(&bytes);
        self.service.unpin(self.offsets(&pages));
        self.release(pages.len());
    }

    /// Writes down how it fares.
    pub fn tell(&self) {
        if let Some(_undisturbed) = self.undisturbed() {
            self.service.tell();
        }
    }

    /// No signal's handler has this be a child as long as that lives; none where it is one.
    fn undisturbed(&self) -> Option<Undisturbed> {
        let undisturbed = Undisturbed::new();
        (!self.is_plain()).then_some(undisturbed)
    }

    fn lock(&self) -> Locked<'_> {
        let _undisturbed = Undisturbed::new();
        let state = self.state.lock().expect("nobody panics with it");
        Locked {
            state,
            _undisturbed,
        }
    }

    /// The parts of a range that the program has.
    fn given(&self, state: &State, pages: Range<u32>) -> Vec<Range<u32>> {
        without_all(state.extents.taken_in(pages), &state.kept)
    }

    fn taken_at(&self, state: &State, at: usize) -> Option<Range<u32>> {
        if !self.range.contains(&at) || !at.is_multiple_of(PAGE_BYTES) {
            return None;
        }
        let first = self.page(at);
        let pages = state.extents.taken_at(first)?;
        let is_kept = state.kept.iter().any(|kept| kept.contains(&first));
        (!is_kept).then(|| first..first + pages)
    }

    fn give_back(&self, state: &mut State, range: Range<u32>) {
        self.unlock(state, &range);
        let is_usable = self.unprotect(state, &range);
        let pinned = self.service.forget(self.offsets(&range));
        if is_usable && pinned == 0 {
            state.extents.give_back(range);
        } else {
            // Nobody is to have it again: he could not use it, or a device still writes there.
            self.service.lose(self.offsets(&range));
            state.extents.lose(range);
        }
    }

    /// Gives the oldest of what is kept back until no more than `pages` are.
    fn give_back_kept(&self, state: &mut State, pages: u32) {
        let sum = |kept: &[Range<u32>]| kept.iter().map(|kept| kept.len() as u32).sum::<u32>();
        while sum(&state.kept) > pages || state.kept.len() > KEPT_PIECES {
            let oldest = state.kept.remove(0);
            self.give_back(state, oldest);
        }
    }

    fn unlock(&self, state: &mut State, range: &Range<u32>) {
        if self.is_plain() {
            return;
        }
        let locked: Vec<u32> = state.locked.range(range.clone()).copied().collect();
        for page in locked {
            state.locked.remove(&page);
            self.service.unpin(self.offsets(&(page..page + 1)));
            self.release(1);
        }
    }

    /// Whether the next who has the range may read and write it: the system may refuse that.
    fn unprotect(&self, state: &mut State, range: &Range<u32>) -> bool {
        if !state.is_protected(range) {
            return true;
        }
        state.forget_protection(range);
        protect(&self.bytes(range), READ_WRITE)
    }

    fn page(&self, at: usize) -> u32 {
        ((at - self.range.start) / PAGE_BYTES) as u32
    }

    fn address(&self, page: u32) -> usize {
        self.range.start + page as usize * PAGE_BYTES
    }

    fn bytes(&self, pages: &Range<u32>) -> Range<usize> {
        self.address(pages.start)..self.address(pages.end)
    }

    /// As the region counts them.
    fn offsets(&self, pages: &Range<u32>) -> Range<usize> {
        pages.start as usize * PAGE_BYTES..pages.end as usize * PAGE_BYTES
    }

    fn is_aligned(&self, page: u32, align_bytes: usize) -> bool {
        self.address(page).is_multiple_of(align_bytes)
    }

    fn next_aligned(&self, page: u32, align_bytes: usize) -> Option<u32> {
        let at = self.address(page);
        let at = at.checked_next_multiple_of(align_bytes)?;
        self.range.contains(&at).then(|| self.page(at))
    }

    /// What of a range of bytes lies before the arena, the pages that it meets, and what is behind.
    fn split(&self, bytes: &Range<usize>) -> (Range<usize>, Range<u32>, Range<usize>) {
        let begin = bytes.start.clamp(self.range.start, self.range.end);
        let end = bytes.end.clamp(begin, self.range.end);
        let pages = self.page(begin)..self.page(end.next_multiple_of(PAGE_BYTES));
        let before = bytes.start..bytes.end.min(self.range.start).max(bytes.start);
        let after = bytes.start.max(self.range.end).min(bytes.end)..bytes.end;
        (before, pages, after)
    }
}

const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

impl State {
    /// Of what was freed, the newest piece that is large enough and not much larger.
    fn reuse(&mut self, pages: u32, is_aligned: impl Fn(u32) -> bool) -> Option<u32> {
        let fits = |kept: &Range<u32>| {
            let len = kept.len() as u32;
            (pages..=pages.saturating_mul(2)).contains(&len) && is_aligned(kept.start)
        };
        let index = self.kept.iter().rposition(fits)?;
        let kept = self.kept.remove(index);
        let end = kept.start + pages;
        if end < kept.end {
            // Two from now on, of which the second is still kept.
            self.extents.divide(kept.start, pages);
            self.kept.insert(index, end..kept.end);
        }
        Some(kept.start)
    }

    fn is_protected(&self, range: &Range<u32>) -> bool {
        let meets = |other: &Range<u32>| other.start < range.end && range.start < other.end;
        self.protected.iter().any(|(other, _)| meets(other))
    }

    fn forget_protection(&mut self, range: &Range<u32>) {
        let old = std::mem::take(&mut self.protected);
        for (other, protection) in old {
            let left = without(&other, range);
            self.protected
                .extend(left.into_iter().map(|part| (part, protection)));
        }
    }
}

/// `range` without what `other` has of it.
fn without(range: &Range<u32>, other: &Range<u32>) -> Vec<Range<u32>> {
    let before = range.start..range.end.min(other.start).max(range.start);
    let after = range.start.max(other.end).min(range.end)..range.end;
    let parts = [before, after].into_iter();
    parts.filter(|part| !part.is_empty()).collect()
}

/// `ranges` without what `others` have of them.
fn without_all(mut ranges: Vec<Range<u32>>, others: &[Range<u32>]) -> Vec<Range<u32>> {
    for other in others {
        ranges = ranges
            .iter()
            .flat_map(|range| without(range, other))
            .collect();
    }
    ranges
}

/// How long the longest file is of an arena of so many bytes; one may begin with a header.
fn file_bytes(len_bytes: u64) -> u64 {
    len_bytes.saturating_add(PAGE_BYTES as u64)
}

fn pages(len: usize) -> Option<u32> {
    u32::try_from(len.checked_add(PAGE_BYTES - 1)? / PAGE_BYTES).ok()
}

fn unmap(bytes: &Range<usize>) {
    if !bytes.is_empty() {
        // SAFETY: the program has asked for that, or it is memory of a child's that it has freed.
        unsafe { libc::syscall(libc::SYS_munmap, bytes.start, bytes.len()) };
    }
}

/// Whether it was done.
fn protect(bytes: &Range<usize>, protection: c_int) -> bool {
    // By the system's call: the C library's is the preload library's here, which asks whose the
    // range is, and the arena's lock is held.
    // SAFETY: as the program had it, or the range is the arena's and was just given back.
    unsafe { libc::syscall(libc::SYS_mprotect, bytes.start, bytes.len(), protection) == 0 }
}

/// Writes a line where the program's errors go, from a thread of the program.
pub fn complain(line: &str) {
    // At once, past every lock and buffer, and no place to be cancelled at: this may be a fork.
    let line = format!("nyx: {line}\n");
    // SAFETY: the call takes numbers only.
    if errors::are_for(errors::ERRORS, || unsafe {
        libc::fcntl(errors::ERRORS, libc::F_GETFL)
    }) {
        // SAFETY: so many bytes lie there.
        unsafe { libc::syscall(libc::SYS_write, errors::ERRORS, line.as_ptr(), line.len()) };
    }
}

/// The same, from a thread of the arena.
pub fn complain_from_inside(line: &str) {
    says::say(line);
}
