//! HybridIndex+: a map in DRAM for look-ups of single keys, a tree on persistent memory for ranges
//! and to survive.
//!
//! A writer changes the tree first, durably, and then the map, before it returns; so a look-up
//! costs what one in DRAM does, and nothing is lost. After a restart the tree answers all at once,
//! and the map is built behind ([`HybridPlus::rebuild`], in steps, by whoever has time); then it
//! takes over.
//!
//! **Synchronous or not.** Where there is more writing than reading, changes of the map are put off
//! ([`Update::Asynchronous`]) and made later by whoever calls [`HybridPlus::settle`];
//! [`Update::Adaptive`] follows the share of writes.
//!
//! **What a reader may see.** Keys share locks; writers of a lock's keys come one after the other.
//! From before a writer changes the tree until the map says the same, the lock's keys are
//! *unsettled*, and readers of any of them ask the tree: nobody is told of an old value after
//! somebody was told of a new one.
//!
//! What it never does: lose or refuse an update because the map has no room (the tree is read for
//! its key until there is), start a thread.
//!
//! *Thread safety*: all methods take `&self`; a worker is within an era while it calls them.
//! *Invariants*: while nobody is at a lock's keys and none is unsettled, and the map is built, it
//! has for them what the tree has.
//!
//! Source: HybridIndex+ section 3.1, figure 16 and its discussion.

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::heap::{Full, Heap, Sweep};
use crate::map::{DramMap, hash_of};
use crate::ordered::{Census, END, PutError, ScanError, Unsound};
use crate::share::Share;
use crate::sync::{Locks, Mutex, lock};
use crate::{Index, Ordered, Persistent};
use crossbeam_queue::ArrayQueue;
use nyx_base::{CachePadded, WorkerId};
use nyx_media::Pmem;
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed};

/// When a change of the tree is made in the map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Update {
    /// Before it is acknowledged.
    #[default]
    Synchronous,
    /// Later.
    Asynchronous,
    /// As there is more reading or more writing.
    Adaptive,
}

/// Locks that keys share.
const LOCKS: usize = 1024;
/// Changes that are put off, at most; more are made at once.
const PUT_OFF_MAX: usize = 4096;
/// Above this share of writes changes are put off, below that one no more.
const ASYNCHRONOUS_ABOVE: f64 = 0.6;
const SYNCHRONOUS_BELOW: f64 = 0.4;
/// What an entry of a tree takes on the medium at least, in bytes.
const ENTRY_BYTES: u64 = 16;

/// See the module.
#[derive(Debug)]
pub struct HybridPlus<T> {
    tree: T,
    map: DramMap,
    locks: Locks,
    /// For each lock, changes of the tree that the map may not have yet.
    unsettled: Box<[CachePadded<AtomicU64>]>,
    put_off: ArrayQueue<u64>,
    /// From which key on the map has yet to be built.
    rebuild: Mutex<u64>,
    is_built: AtomicBool,
    update: Update,
    is_asynchronous: AtomicBool,
    /// Calls; writes are of the kind.
    writes: Share,
}

impl<T: Ordered> HybridPlus<T> {
    /// `tree` with a map, which is empty and answers after a [`HybridPlus::rebuild`]. It has its
    /// eras in common with the tree.
    pub fn new(tree: T, map: DramMap) -> HybridPlus<T> {
        HybridPlus {
            tree,
            map,
            locks: Locks::new(LOCKS),
            unsettled: (0..LOCKS).map(|_| CachePadded::default()).collect(),
            put_off: ArrayQueue::new(PUT_OFF_MAX),
            rebuild: Mutex::new(0),
            is_built: AtomicBool::new(false),
            update: Update::Synchronous,
            is_asynchronous: AtomicBool::new(false),
            writes: Share::new(),
        }
    }

    /// The same, with changes made in the map when `update` says.
    #[must_use]
    pub fn updating(mut self, update: Update) -> HybridPlus<T> {
        self.update = update;
        self.is_asynchronous = AtomicBool::new(update == Update::Asynchronous);
        self
    }

    /// The tree.
    pub fn tree(&self) -> &T {
        &self.tree
    }

    /// The map.
    pub fn map(&self) -> &DramMap {
        &self.map
    }

    /// Whether the map answers look-ups of single keys.
    pub fn is_built(&self) -> bool {
        self.is_built.load(Acquire)
    }

    /// Whether changes of the map are put off now.
    pub fn is_asynchronous(&self) -> bool {
        self.is_asynchronous.load(Relaxed)
    }

    /// Puts some `most` keys more into the map; true when it has all. Others may use the index, and
    /// do the same, meanwhile.
    pub fn rebuild(&self, worker: WorkerId, most: usize) -> Result<bool, PutError> {
        let mut from = lock(&self.rebuild);
        if self.is_built() {
            return Ok(true);
        }
        let (most, mut keys) = (most.max(1), Vec::new());
        let scanned = self.tree.scan(*from..=END - 1, |key, _| {
            keys.push(key);
            match keys.len() < most {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        match scanned {
            Ok(()) => {}
            Err(ScanError::NotReady) => return Ok(false),
            Err(ScanError::Unsound(error)) => return Err(error.into()),
        }
        for &key in &keys {
            let _lock = self.locks.lock(hash_of(key));
            // Read again: it may have changed, and the map have been told.
            if let Some(value) = self.tree.get(key)? {
                self.map.put_new(worker, key, value)?;
            }
        }
        match keys.last() {
            Some(&last) if keys.len() == most && last + 1 < END => *from = last + 1,
            _ => self.is_built.store(true, Release),
        }
        Ok(self.is_built())
    }

    /// Makes changes in the map that were put off, `most` of them; tells how many.
    pub fn settle(&self, worker: WorkerId, most: usize) -> Result<usize, PutError> {
        for done in 0..most {
            let Some(key) = self.put_off.pop() else {
                return Ok(done);
            };
            let _lock = self.locks.lock(hash_of(key));
            let made = match self.tree.get(key)? {
                Some(value) => self.map.put(worker, key, value),
                None => self.map.remove(worker, key),
            };
            if let Err(error) = made {
                // Once more, later. Where that has no room either, the tree is read for good.
                let _ = self.put_off.push(key);
                return Err(error);
            }
            self.settled(key);
        }
        Ok(most)
    }

    fn unsettled(&self, key: u64) -> &AtomicU64 {
        &self.unsettled[(hash_of(key) % LOCKS as u64) as usize]
    }

    /// A change of the tree that the map has. Holder of the key's lock only, as nobody else counts.
    #[inline]
    fn settled(&self, key: u64) {
        let unsettled = self.unsettled(key);
        unsettled.store(unsettled.load(Relaxed) - 1, Release);
    }

    /// Changes the tree and then the map, or puts that off.
    fn change(
        &self,
        key: u64,
        tree: impl FnOnce() -> Result<Option<u64>, PutError>,
        map: impl FnOnce() -> Result<Option<u64>, PutError>,
    ) -> Result<Option<u64>, PutError> {
        self.map.prefetch(key);
        self.tell(key, true);
        let _lock = self.locks.lock(hash_of(key));
        let unsettled = self.unsettled(key);
        // Whoever is told of what the tree has from now on was told of this, and tells of it.
        unsettled.store(unsettled.load(Relaxed) + 1, Release);
        let before = match tree() {
            Ok(before) => before,
            Err(error) => {
                self.settled(key);
                return Err(error);
            }
        };
        if self.is_asynchronous.load(Relaxed) && self.put_off.push(key).is_ok() {
            return Ok(before);
        }
        match map() {
            Ok(_) => self.settled(key),
            // The map has no room: the tree has it, durably, and is read until there is.
            Err(_) => drop(self.put_off.push(key)),
        }
        Ok(before)
    }

    /// Counts a call, and now and then judges.
    #[inline]
    fn tell(&self, key: u64, is_write: bool) {
        if self.update != Update::Adaptive {
            return;
        }
        let Some(share) = self.writes.tell(hash_of(key), is_write).share else {
            return;
        };
        if share > ASYNCHRONOUS_ABOVE {
            self.is_asynchronous.store(true, Relaxed);
        } else if share < SYNCHRONOUS_BELOW {
            self.is_asynchronous.store(false, Relaxed);
        }
    }
}

impl<T: Ordered> Index for HybridPlus<T> {
    #[inline]
    fn get(&self, key: u64) -> Result<Option<u64>, Unsound> {
        self.tell(key, false);
        match self.is_built() && self.unsettled(key).load(Acquire) == 0 {
            true => self.map.get(key),
            false => self.tree.get(key),
        }
    }

    fn get_many(&self, keys: &[u64], values: &mut [Option<u64>]) -> Result<(), Unsound> {
        keys.iter().for_each(|&key| self.tell(key, false));
        let is_settled = |&key: &u64| self.unsettled(key).load(Acquire) == 0;
        match self.is_built() && keys.iter().all(is_settled) {
            true => self.map.get_many(keys, values),
            false => self.tree.get_many(keys, values),
        }
    }

    fn put(&self, worker: WorkerId, key: u64, value: u64) -> Result<Option<u64>, PutError> {
        PutError::check(key)?;
        let tree = || self.tree.put(worker, key, value);
        self.change(key, tree, || self.map.put(worker, key, value))
    }

    fn remove(&self, worker: WorkerId, key: u64) -> Result<Option<u64>, PutError> {
        let tree = || self.tree.remove(worker, key);
        self.change(key, tree, || self.map.remove(worker, key))
    }
}

/// Ranges are read from the tree.
impl<T: Ordered> Ordered for HybridPlus<T> {
    fn scan(
        &self,
        range: RangeInclusive<u64>,
        each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        self.tree.scan(range, each)
    }

    fn scan_back(
        &self,
        range: RangeInclusive<u64>,
        each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        self.tree.scan_back(range, each)
    }
}

impl<P: Pmem, T: Persistent<P> + Ordered> Persistent<P> for HybridPlus<T> {
    /// With a map for as many keys as there may be in the tree; an empty one is built at once.
    fn open(heap: Arc<Heap<P>>, root: usize, worker: WorkerId) -> Result<Self, PutError> {
        let keys_max = heap.pm().size_bytes() / ENTRY_BYTES;
        let is_new = heap.read_root(root) == 0;
        let map = DramMap::new(keys_max, heap.eras().workers());
        let map = map.map_err(|_| Full::of_dram(keys_max * ENTRY_BYTES))?;
        let index = HybridPlus::new(T::open(heap, root, worker)?, map);
        index.is_built.store(is_new, Release);
        Ok(index)
    }

    fn heap(&self) -> &Arc<Heap<P>> {
        self.tree.heap()
    }

    fn mark(&self, sweep: &mut Sweep<'_, P>) -> Result<u64, Unsound> {
        self.tree.mark(sweep)
    }

    fn check(&self) -> Result<Census, Unsound> {
        self.tree.check()
    }
}
