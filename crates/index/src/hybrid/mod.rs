//! HybridIndex: a hash on persistent memory for look-ups of single keys and to survive, a tree in
//! DRAM for ranges.
//!
//! A writer changes the hash, durably, and puts off what that means for the tree; whoever has time
//! makes it there ([`Hybrid::settle`]). After a restart single keys are there at once. The tree is
//! not: it is built from the hash ([`Hybrid::rebuild`], in steps, by whoever has time), and until
//! it has all keys a range is refused ([`ScanError::NotReady`]), because it would lack some, and
//! nobody can know which. That is what HybridIndex+ is better at, whose tree survives; here a
//! look-up reads persistent memory and a change costs less.
//!
//! **What a range may tell.** A key is put off before its change is visible in the hash, and made
//! in the tree when the writer is done with it. A range begins by making all that was put off. So
//! what anybody was told of before a range began is in it, and it never tells of a value older than
//! that. What changes while it runs may be met or not, as in any index. The price is the paper's: a
//! range waits for what is put off. There are at most [`PUT_OFF_MAX`] changes, since a writer who
//! finds no room settles some first.
//!
//! Why not look at both, tree and what is put off: those are in no order, and whoever reads a range
//! would have to sort them each time; making them is work that is to be done anyway, and is done
//! once.
//!
//! What it never does: start a thread, wait in a look-up, answer a range that it does not know
//! all of. Where DRAM has no room for the tree, writers that find no room for what is put off are
//! refused, and ranges are; look-ups go on.
//!
//! *Thread safety*: all methods take `&self`; a worker is within an era while it calls them. Locks
//! are taken in this order: `settling`, a key's.
//!
//! *Invariants*: a key of which the tree, once built, does not say what the hash says is put off,
//! or a writer or `settling` is at it. Only who holds `settling` changes the tree.
//!
//! Source: HybridIndex+ section 3.1, figure 15; Xia et al., "HiKV" (ATC'17), which it is part of.

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::fast_fair::FastFair;
use crate::heap::{Heap, Sweep};
use crate::map::hash_of;
use crate::ordered::{Census, PutError, ScanError, Unordered, Unsound};
use crate::sync::{Locks, Mutex, lock};
use crate::{Index, Ordered, Persistent};
use crossbeam_queue::ArrayQueue;
use nyx_base::WorkerId;
use nyx_media::Pmem;
use nyx_media::pmem::Dram;
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};

/// Changes that are put off, at most.
pub const PUT_OFF_MAX: usize = 4096;
/// So many are made at once by a writer who finds no room for another.
const BATCH: usize = 64;
/// Locks that keys share.
const LOCKS: usize = 1024;
/// What an entry of the hash takes on the medium at least, in bytes.
const ENTRY_BYTES: u64 = 16;
/// Whoever changes the tree: one at a time.
const SETTLER: WorkerId = WorkerId(0);

/// See the module.
#[derive(Debug)]
pub struct Hybrid<H> {
    hash: H,
    tree: FastFair<Dram>,
    /// One writer at a time for each key.
    locks: Locks,
    put_off: ArrayQueue<u64>,
    settling: Mutex<Settling>,
    is_built: AtomicBool,
}

/// How far the tree is.
#[derive(Debug, Default)]
struct Settling {
    /// A key that was put off and found no room in the tree.
    refused: Option<u64>,
    /// From which position of the hash on the tree has yet to be built.
    rebuilt: u64,
}

impl<H: Unordered> Hybrid<H> {
    /// `hash` with `tree`, which is empty and answers after a [`Hybrid::rebuild`].
    pub fn new(hash: H, tree: FastFair<Dram>) -> Hybrid<H> {
        Hybrid {
            hash,
            tree,
            locks: Locks::new(LOCKS),
            put_off: ArrayQueue::new(PUT_OFF_MAX),
            settling: Mutex::default(),
            is_built: AtomicBool::new(false),
        }
    }

    /// The hash.
    pub fn hash(&self) -> &H {
        &self.hash
    }

    /// The tree.
    pub fn tree(&self) -> &FastFair<Dram> {
        &self.tree
    }

    /// Whether ranges are answered.
    pub fn is_built(&self) -> bool {
        self.is_built.load(Acquire)
    }

    /// How many changes are put off now. Waits for whoever makes some.
    pub fn put_off(&self) -> usize {
        self.waiting(&lock(&self.settling))
    }

    fn waiting(&self, settling: &Settling) -> usize {
        usize::from(settling.refused.is_some()) + self.put_off.len()
    }

    /// Puts some `most` keys more into the tree; true when it has all. Others may use the index,
    /// and do the same, meanwhile.
    pub fn rebuild(&self, most: usize) -> Result<bool, PutError> {
        let mut settling = lock(&self.settling);
        let (mut entries, mut done) = (Vec::new(), 0);
        while !self.is_built() && done < most.max(1) {
            let next = self.hash.walk(settling.rebuilt, &mut entries)?;
            for &(key, _) in &entries {
                self.make(key)?;
            }
            done += entries.len().max(1);
            match next {
                Some(next) => settling.rebuilt = next,
                None => self.is_built.store(true, Release),
            }
        }
        Ok(self.is_built())
    }

    /// Makes changes in the tree that were put off, `most` of them; tells how many.
    pub fn settle(&self, most: usize) -> Result<usize, PutError> {
        self.settle_some(&mut lock(&self.settling), most)
    }

    fn settle_some(&self, settling: &mut Settling, most: usize) -> Result<usize, PutError> {
        for done in 0..most {
            let Some(key) = settling.refused.take().or_else(|| self.put_off.pop()) else {
                return Ok(done);
            };
            if let Err(error) = self.make(key) {
                settling.refused = Some(key);
                return Err(error);
            }
        }
        Ok(most)
    }

    /// Makes the tree say of `key` what the hash says, when the writer that is at it is done.
    /// Whoever calls it holds `settling`.
    fn make(&self, key: u64) -> Result<(), PutError> {
        let _lock = self.locks.lock(hash_of(key));
        match self.hash.get(key)? {
            Some(value) => self.tree.put(SETTLER, key, value)?,
            None => self.tree.remove(SETTLER, key)?,
        };
        Ok(())
    }

    /// Changes the hash, and puts off what that means for the tree.
    fn change(
        &self,
        key: u64,
        hash: impl Fn() -> Result<Option<u64>, PutError>,
    ) -> Result<Option<u64>, PutError> {
        loop {
            let writer = self.locks.lock(hash_of(key));
            // First: who sees the change in the hash can rely on it.
            if self.put_off.push(key).is_ok() {
                return hash();
            }
            drop(writer);
            self.settle(BATCH)?;
        }
    }

    /// Makes all that was put off before.
    fn catch_up(&self) -> Result<(), ScanError> {
        if !self.is_built() {
            return Err(ScanError::NotReady);
        }
        let settling = &mut *lock(&self.settling);
        let before = self.waiting(settling);
        match self.settle_some(settling, before) {
            Ok(_) => Ok(()),
            Err(PutError::Unsound(error)) => Err(error.into()),
            Err(_) => Err(ScanError::NotReady),
        }
    }
}

impl<H: Unordered> Index for Hybrid<H> {
    #[inline]
    fn get(&self, key: u64) -> Result<Option<u64>, Unsound> {
        self.hash.get(key)
    }

    fn get_many(&self, keys: &[u64], values: &mut [Option<u64>]) -> Result<(), Unsound> {
        self.hash.get_many(keys, values)
    }

    fn put(&self, worker: WorkerId, key: u64, value: u64) -> Result<Option<u64>, PutError> {
        PutError::check(key)?;
        self.change(key, || self.hash.put(worker, key, value))
    }

    fn remove(&self, worker: WorkerId, key: u64) -> Result<Option<u64>, PutError> {
        self.change(key, || self.hash.remove(worker, key))
    }
}

/// Ranges are read from the tree, when it is built and all that was put off before is in it.
impl<H: Unordered> Ordered for Hybrid<H> {
    fn scan(
        &self,
        range: RangeInclusive<u64>,
        each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        self.catch_up()?;
        self.tree.scan(range, each)
    }

    fn scan_back(
        &self,
        range: RangeInclusive<u64>,
        each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        self.catch_up()?;
        self.tree.scan_back(range, each)
    }
}

impl<P: Pmem, H: Persistent<P> + Unordered> Persistent<P> for Hybrid<H> {
    /// With a tree for as many keys as there may be in the hash; an empty one is built at once.
    fn open(heap: Arc<Heap<P>>, root: usize, worker: WorkerId) -> Result<Self, PutError> {
        let is_new = heap.read_root(root) == 0;
        let tree = FastFair::in_dram(heap.pm().size_bytes() / ENTRY_BYTES, heap.eras())?;
        let index = Hybrid::new(H::open(heap, root, worker)?, tree);
        index.is_built.store(is_new, Release);
        Ok(index)
    }

    fn heap(&self) -> &Arc<Heap<P>> {
        self.hash.heap()
    }

    fn mark(&self, sweep: &mut Sweep<'_, P>) -> Result<u64, Unsound> {
        self.hash.mark(sweep)
    }

    fn check(&self) -> Result<Census, Unsound> {
        self.hash.check()
    }
}
