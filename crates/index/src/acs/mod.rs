//! ACS: a cache of entries in DRAM before an index on persistent memory, which it leaves as it is.
//!
//! A look-up asks the cache first and the index where that does not know; the entry is then wanted,
//! and put into the cache later, by whoever calls [`Acs::fill`]. An update or a removal changes
//! both before it returns. The cache is made of small sets (`set.rs`), so that keeping the order of
//! use costs nothing but a word of the line that was read.
//!
//! **Serial or parallel.** Where most look-ups miss, asking the cache first only adds to them. In
//! parallel, the set is fetched while the index looks for the place of the key, and looked at while
//! that is on its way ([`Index::get_beside`]): a miss costs next to nothing, a hit saves the last
//! wait only. [`Lookup::Adaptive`] takes the one or the other by the share of hits. (The paper has
//! a second thread look at the index; a hand-over to another thread takes longer than a look-up,
//! the processor does the same with a prefetch.) In parallel a cache that is full and still hits
//! too little to be worth it ([`Index::beside_pays_from`]) rests: one set in 64 is asked, which
//! tells when it is worth asking again, and the others' keys are looked up as if there were no
//! cache.
//!
//! **What a reader may see.** While a key is cached its entry is what counts: writers of a set come
//! one after the other, each changes the index and then the entry. A reader that missed reads the
//! index and then looks at the set again, so that nobody is told of a new value while an old one is
//! cached. One that does not ask the cache looks whether a writer is between the two instead, by
//! the set's lock: if none is, whoever asks later finds the entry renewed. What is to be filled in
//! is forgotten if the set changed since. (A range is read from the index: it may tell of a value
//! before a look-up of its key does. And a writer that reads what it just put may be told of it a
//! moment before others are: a lock is given back by a store.)
//!
//! What it never does: hold more entries than it was made for, lose or invent one, wait while
//! reading, start a thread.
//!
//! *Thread safety*: all methods take `&self`. *Invariants*: an entry of the cache is what the index
//! has for its key, unless a writer of that set is between the two.
//!
//! Source: HybridIndex+ section 3.2 ("ACS"), figures 18 to 20.

mod set;

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::ordered::{END, Ordered, PutError, ScanError, Unsound};
use crate::share::{Share, TALLIES};
use crate::sync::Locks;
use crate::{Index, map::hash_of};
use crossbeam_queue::ArrayQueue;
use nyx_base::WorkerId;
use nyx_media::pmem::Dram;
use nyx_media::{MediaError, Pmem};
use set::{Look, SET_BYTES, Set, WAYS};
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// Which entry goes where there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// The least recently used.
    Lru,
    /// The least frequently used, of late: what is read once does not push out what is read often.
    #[default]
    Lfu,
}

/// Whether the cache is asked before the index or beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lookup {
    /// Before.
    Serial,
    /// Beside.
    Parallel,
    /// As the share of hits makes it faster.
    #[default]
    Adaptive,
}

/// What a cache is made for.
#[derive(Clone, Copy, Debug)]
pub struct AcsShape {
    /// The most entries that it holds, seven at least; each takes some 18 bytes.
    pub entries: u64,
    /// Which entry goes where there is no room.
    pub keep: Keep,
    /// Whether the cache is asked before the index or beside it.
    pub lookup: Lookup,
}

/// What a cache did and has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcsFigures {
    /// Look-ups that found their entry in the cache. This and the next are not exact where several
    /// threads look up at once.
    pub hits: u64,
    /// Look-ups that asked the cache.
    pub looks: u64,
    /// Entries that were wanted and never filled in, because too many were.
    pub dropped: u64,
    /// Bytes of memory.
    pub bytes: u64,
    /// How look-ups are done now.
    pub mode: Mode,
}

/// How look-ups are done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// The cache is asked before the index.
    #[default]
    Serial,
    /// The cache is asked beside the index.
    Parallel,
    /// As in parallel, but one set in 64 only.
    Resting,
}

/// Locks that sets share.
const LOCKS: usize = 1024;
/// Entries that wait to be filled in, at most.
const WANTED_MAX: usize = 1024;
/// In parallel, of so many misses one is filled in where another entry has to go for it: a cache of
/// little use is not worth more.
const PARALLEL_FILLS: u64 = 8;
/// Below this share of hits the index is asked in parallel, above that one no more: a look-up in
/// the cache takes about a third of one in an index.
const PARALLEL_BELOW: f64 = 0.3;
const SERIAL_ABOVE: f64 = 0.4;
/// It rests no more when so many times as many hit as would pay.
const AWAKE_FROM: f64 = 1.3;
/// One set in so many is asked while it rests.
const ASKED_OF: u64 = 64;

/// Whether a set is asked while the cache rests.
#[inline]
fn is_asked_at_rest(number: u64) -> bool {
    number.is_multiple_of(ASKED_OF)
}

impl Mode {
    /// The mode after `share` of the look-ups hit, where asking in parallel pays from `pays_from`
    /// on.
    fn after(self, share: f64, lookup: Lookup, pays_from: f64, may_rest: bool) -> Mode {
        let is_adaptive = lookup == Lookup::Adaptive;
        match self {
            Mode::Serial if is_adaptive && share < PARALLEL_BELOW => Mode::Parallel,
            Mode::Parallel if is_adaptive && share > SERIAL_ABOVE => Mode::Serial,
            Mode::Parallel if share < pays_from && may_rest => Mode::Resting,
            Mode::Resting if share > AWAKE_FROM * pays_from => Mode::Parallel,
            mode => mode,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Acs<I> {
    index: I,
    memory: Dram,
    sets: u64,
    locks: Locks,
    wanted: ArrayQueue<Wanted>,
    dropped: AtomicU64,
    shape: AcsShape,
    /// A [`Mode`].
    mode: AtomicU8,
    /// Look-ups; hits are of the kind.
    hits: Share,
}

/// An entry to be filled in.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    key: u64,
    /// The value, and the version of the set before it was read; else the index is asked again.
    known: Option<(u64, u64)>,
}

impl<I: Index> Acs<I> {
    /// An empty cache before `index`.
    pub fn new(index: I, shape: AcsShape) -> Result<Acs<I>, MediaError> {
        let sets = (shape.entries / WAYS as u64).max(1);
        Ok(Acs {
            index,
            memory: Dram::new((sets * SET_BYTES).next_multiple_of(4096))?,
            sets,
            locks: Locks::new(LOCKS),
            wanted: ArrayQueue::new(WANTED_MAX),
            dropped: AtomicU64::new(0),
            shape,
            mode: AtomicU8::new(match shape.lookup {
                Lookup::Parallel => Mode::Parallel as u8,
                Lookup::Serial | Lookup::Adaptive => Mode::Serial as u8,
            }),
            hits: Share::new(),
        })
    }

    /// The index.
    pub fn index(&self) -> &I {
        &self.index
    }

    /// What it did and has.
    pub fn figures(&self) -> AcsFigures {
        let (hits, looks) = self.hits.counts();
        AcsFigures {
            hits,
            looks,
            dropped: self.dropped.load(Relaxed),
            bytes: self.memory.size_bytes(),
            mode: self.mode(),
        }
    }

    /// How many entries it holds, by looking at all.
    pub fn count(&self) -> u64 {
        let sets = (0..self.sets).map(|at| Set::new(&self.memory, at).len() as u64);
        sets.sum()
    }

    /// Fills in what was wanted, `most` entries at a time, and tells how many were looked at. To be
    /// called after answering, or by another thread, within an era of the index.
    pub fn fill(&self, most: usize) -> Result<usize, Unsound> {
        for done in 0..most {
            let Some(wanted) = self.wanted.pop() else {
                return Ok(done);
            };
            let number = self.number(wanted.key);
            let set = Set::new(&self.memory, number);
            let _lock = self.locks.lock(number);
            let value = match wanted.known {
                Some((value, version)) => (set.version() == version).then_some(value),
                None => self.index.get(wanted.key)?,
            };
            if let Some(value) = value {
                set.fill(wanted.key, value, self.shape.keep);
            }
        }
        Ok(most)
    }

    #[inline]
    fn mode(&self) -> Mode {
        match self.mode.load(Relaxed) {
            mode if mode == Mode::Parallel as u8 => Mode::Parallel,
            mode if mode == Mode::Resting as u8 => Mode::Resting,
            _ => Mode::Serial,
        }
    }

    /// The number of the set that `key` belongs to.
    #[inline]
    fn number(&self, key: u64) -> u64 {
        ((u128::from(hash_of(key)) * u128::from(self.sets)) >> 64) as u64
    }

    fn want(&self, wanted: Wanted) {
        if self.wanted.push(wanted).is_err() {
            self.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Looks `key` up in the index alone, unless that may be ahead of the cache.
    #[inline]
    fn get_past(&self, key: u64, number: u64) -> Result<Option<u64>, Unsound> {
        self.locks.prefetch(number);
        let found = self.index.get(key)?;
        if self.locks.is_held(number) {
            let set = Set::new(&self.memory, number);
            return Ok(self.settle(set, (key, number), Look::Busy, found));
        }
        Ok(found)
    }

    /// What counts of what was found in the index after a first look at the set.
    #[inline]
    fn settle(
        &self,
        set: Set<'_>,
        (key, number): (u64, u64),
        first: Look,
        found: Option<u64>,
    ) -> Option<u64> {
        let look = match first {
            Look::Miss { version, .. } if set.version() != version => set.look(key),
            Look::Busy => set.look(key),
            first => first,
        };
        // An entry that is not cached now is right: had it been old, it would have been cached when
        // the index changed, and been renewed since.
        if let Look::Hit(way, value) = look {
            set.touch(way, self.shape.keep);
            self.tell(number, look);
            return Some(value);
        }
        let looks = self.tell(number, look);
        let is_wanted =
            look.has_room() || self.mode() == Mode::Serial || looks.is_multiple_of(PARALLEL_FILLS);
        if let Some(value) = found
            && is_wanted
        {
            let known = match first {
                Look::Miss { version, .. } if look == first => Some((value, version)),
                _ => None,
            };
            self.want(Wanted { key, known });
        }
        found
    }

    /// Counts a look-up, and now and then judges. Tells how many there were.
    #[inline]
    fn tell(&self, number: u64, look: Look) -> u64 {
        // Those that are asked while it rests are counted apart: the others' entries are those from
        // before.
        let is_asked = is_asked_at_rest(number);
        let counted_with = match is_asked {
            true => 0,
            false => (number % TALLIES).max(1),
        };
        let is_hit = matches!(look, Look::Hit(..));
        let told = self.hits.tell(counted_with, is_hit);
        let tells_of_now = is_asked || self.mode() != Mode::Resting;
        if let Some(share) = told.share
            && self.shape.lookup != Lookup::Serial
            && tells_of_now
        {
            let pays_from = self.index.beside_pays_from();
            let may_rest = is_asked && !look.has_room();
            let mode = (self.mode()).after(share, self.shape.lookup, pays_from, may_rest);
            self.mode.store(mode as u8, Relaxed);
        }
        told.calls
    }

    /// Changes the index and then the cache, keeping other writers of the set out.
    fn change(
        &self,
        key: u64,
        change: impl FnOnce() -> Result<Option<u64>, PutError>,
        value: Option<u64>,
    ) -> Result<Option<u64>, PutError> {
        let number = self.number(key);
        self.memory.fetch(number * SET_BYTES, SET_BYTES as usize);
        let _lock = self.locks.lock(number);
        let done = change();
        // Of a change that failed nobody knows how far it came.
        let value = value.filter(|_| done.is_ok());
        Set::new(&self.memory, number).renew(key, value);
        done
    }
}

impl<I: Index> Index for Acs<I> {
    fn get(&self, key: u64) -> Result<Option<u64>, Unsound> {
        if key == END {
            return Ok(None);
        }
        let (number, mode) = (self.number(key), self.mode());
        if mode == Mode::Resting && !is_asked_at_rest(number) {
            return self.get_past(key, number);
        }
        let mut seen = None;
        let mut known = || {
            let set = Set::new(&self.memory, number);
            let look = set.look(key);
            seen = Some((set, look));
            match look {
                Look::Hit(_, value) => Some(value),
                _ => None,
            }
        };
        let found = match mode {
            Mode::Parallel | Mode::Resting => {
                // Few sets are looked at again soon, or the cache would be asked before: they are
                // not to push what the index needs out of the processor's caches.
                let fetch = || (self.memory).fetch_once(number * SET_BYTES, SET_BYTES as usize);
                self.index.get_beside(key, fetch, known)?
            }
            Mode::Serial => match known() {
                Some(value) => Some(value),
                None => self.index.get(key)?,
            },
        };
        let (set, first) = seen.unwrap_or_else(|| (Set::new(&self.memory, number), Look::Busy));
        Ok(self.settle(set, (key, number), first, found))
    }

    fn put(&self, worker: WorkerId, key: u64, value: u64) -> Result<Option<u64>, PutError> {
        PutError::check(key)?;
        self.change(key, || self.index.put(worker, key, value), Some(value))
    }

    fn remove(&self, worker: WorkerId, key: u64) -> Result<Option<u64>, PutError> {
        if key == END {
            return Ok(None);
        }
        self.change(key, || self.index.remove(worker, key), None)
    }
}

/// Ranges are read from the index.
impl<I: Ordered> Ordered for Acs<I> {
    fn scan(
        &self,
        range: RangeInclusive<u64>,
        each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        self.index.scan(range, each)
    }

    fn scan_back(
        &self,
        range: RangeInclusive<u64>,
        each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        self.index.scan_back(range, each)
    }
}
