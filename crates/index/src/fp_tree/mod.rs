//! FP-Tree: leaves on persistent memory, all above them in DRAM.
//!
//! The leaves are a chain, their entries in no order, found by a byte of each key's hash (`leaf.rs`
//! has the order of stores). What leads to them is a tree in DRAM, from the key at which a leaf
//! begins to its address: a [`FastFair`] on [`Dram`], so that there is one tree and not two. It is
//! built anew when the index is opened, by one walk along the chain: opening takes time in
//! proportion to the leaves, which is FP-Tree's price for cheaper writes.
//!
//! A split: the upper half is written and made durable where nobody knows of it; the leaf gets its
//! address as next, durably; then the new fence and, behind it in the same line, the bits of what
//! it keeps; last, the tree above hears of it, and until then it is reached by going right. After a
//! crash in between the new leaf is an empty stretch of the chain, or the old one holds entries
//! beyond its fence; both are put right when the tree is opened.
//!
//! Who takes a leaf's last key away unlinks the leaf, with its left neighbour and itself locked, in
//! this order: the tree above forgets it; the left neighbour's fence becomes its own, durably, so
//! that it is an empty stretch of the chain, as one that a split leaves; then the left neighbour
//! leads past it, durably. Then it says that it is gone, and is retired. Whoever is still at it is
//! within an era and goes on to the left neighbour; nobody looked into it meanwhile, since readers
//! wait. A split tells the tree above of the right half before it lets anybody at the left one, so
//! that the right half cannot be unlinked before. A leaf whose left neighbour is empty when it is
//! unlinked has that one tried next: a kill between the removal of a key and the end of all this
//! may have left it. The first leaf stays for ever.
//!
//! Differences from the published code, which leaves leaves locked for ever after a kill and cuts
//! the chain after a crash: locks are cleared when the tree is opened; there is no log, because
//! nothing is allocated durably; the next address is set before a leaf is reached; values are
//! changed in place, being one word.
//!
//! What it never does: merge leaves that have keys, read the bytes that a value may be the address
//! of.
//!
//! *Thread safety*: all methods take `&self`; a worker is within an era while it calls them. A
//! reader waits while a writer is at the leaf that it reads.
//!
//! *Invariants*: along the chain the fences grow and the last is END; the keys of a leaf are below
//! its fence and not below that of its left neighbour; the tree above names nothing but leaves.
//!
//! Locks of leaves are taken from left to right, and before those of the tree above.
//!
//! Source: Oukid et al., "FPTree: A Hybrid SCM-DRAM Persistent and Concurrent B-Tree for Storage
//! Class Memory" (SIGMOD'16); HybridIndex+ section 3.2, which puts a cache before it.

mod leaf;

#[cfg(all(test, not(any(loom, shuttle))))]
mod crash;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::bytes::ones;
use crate::fast_fair::FastFair;
use crate::heap::{Class, Heap, Sweep};
use crate::ordered::{Census, END, PutError, ScanError, Steps, Unsound};
use crate::{Index, Ordered, Persistent};
use leaf::{Draft, GONE, Leaf, Locked};
use nyx_base::WorkerId;
use nyx_media::Pmem;
use nyx_media::pmem::Dram;
use std::collections::BTreeSet;
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;

/// Slots of a leaf of 768 bytes: three units of persistent memory.
pub const SLOTS: usize = 40;
/// Fingerprints that fit into the first line of a leaf.
const SLOTS_MAX: usize = 40;

/// The tree. `SLOTS` is another only in tests.
#[derive(Debug)]
pub struct FpTree<P, const SLOTS: usize = { self::SLOTS }> {
    heap: Arc<Heap<P>>,
    root: usize,
    /// Where each leaf begins, and its address.
    above: FastFair<Dram>,
}

impl<P: Pmem, const SLOTS: usize> FpTree<P, SLOTS> {
    const LEAF_BYTES: u64 = leaf::words(SLOTS) as u64 * 8;
    const CLASS: Class = match Class::of(Self::LEAF_BYTES) {
        Some(class) => class,
        None => panic!("a leaf is larger than any block"),
    };
    const FITS: () = assert!(SLOTS >= 2 && SLOTS <= SLOTS_MAX);

    fn leaf(&self, at: u64) -> Result<Leaf<'_, P>, Unsound> {
        let words = self.heap.block(at, Self::CLASS.bytes());
        let words = words.ok_or(Unsound::NoNode { at })?;
        Ok(Leaf::new(self.heap.pm(), at, &words[..leaf::words(SLOTS)]))
    }

    fn first(&self) -> Result<Leaf<'_, P>, Unsound> {
        self.leaf(self.heap.read_root(self.root))
    }

    /// A durable leaf that nobody knows of.
    fn draft(&self, worker: WorkerId, draft: &Draft<'_>) -> Result<Leaf<'_, P>, PutError> {
        let at = self.heap.take(worker, Self::CLASS)?;
        let leaf = self.leaf(at)?;
        leaf.write(draft);
        Ok(leaf)
    }

    /// Walks along the chain, puts right what a crash left, and builds the tree above.
    fn recover(&self, worker: WorkerId) -> Result<(), PutError> {
        let mut steps = self.steps();
        let (mut leaf, mut low) = (self.first()?, 0);
        loop {
            self.heap
                .check(leaf.at, Self::CLASS)
                .map_err(Unsound::from)?;
            leaf.settle();
            let (at, fence, next) = (leaf.at, leaf.fence_key(), leaf.next());
            if leaf.low() != low || fence <= low || (fence < END && next == 0) {
                return Err(Unsound::Fence { at, fence }.into());
            }
            if next == 0 {
                self.above.put(worker, low, at)?;
                return Ok(());
            }
            let right = steps.to(self.leaf(next)?)?;
            if right.fence_key() == fence {
                // Empty, and reached by nobody but from here.
                leaf.lock().lead_to(right.next());
                continue;
            }
            self.above.put(worker, low, at)?;
            (leaf, low) = (right, fence);
        }
    }

    fn steps(&self) -> Steps {
        Steps::among(&self.heap, Self::LEAF_BYTES)
    }

    /// The address of the leaf that `key` belongs to, or of one to its left.
    #[inline]
    fn way(&self, key: u64) -> Result<u64, Unsound> {
        let (_, at) = self.above.floor(key)?.ok_or(Unsound::NoNode { at: 0 })?;
        Ok(at)
    }

    /// That leaf.
    #[inline]
    fn descend(&self, key: u64) -> Result<Leaf<'_, P>, Unsound> {
        self.leaf(self.way(key)?)
    }

    /// What `read` finds in the leaf that `key` belongs to, while nobody changes it.
    #[inline]
    fn read<T>(&self, key: u64, read: impl FnMut(Leaf<'_, P>) -> T) -> Result<T, Unsound> {
        self.read_from(self.descend(key)?, key, read)
    }

    /// The same, from a leaf on that [`FpTree::descend`] led to.
    fn read_from<'t, T>(
        &'t self,
        mut leaf: Leaf<'t, P>,
        key: u64,
        mut read: impl FnMut(Leaf<'_, P>) -> T,
    ) -> Result<T, Unsound> {
        let mut steps = self.steps();
        loop {
            let seen = leaf.look();
            let next = leaf.right_of(key);
            let found = match next {
                Some(_) => None,
                None => Some(read(leaf)),
            };
            if !leaf.is_same(seen) {
                continue;
            }
            match (found, next) {
                (Some(found), _) => return Ok(found),
                (None, Some(at)) => leaf = steps.to(self.leaf(at)?)?,
                (None, None) => {}
            }
        }
    }

    /// Locks the leaf that `key` belongs to.
    fn lock(&self, key: u64) -> Result<Locked<'_, P>, Unsound> {
        let mut steps = self.steps();
        let mut locked = self.descend(key)?.lock();
        while let Some(at) = locked.right_of(key) {
            let next = self.leaf(at)?;
            drop(locked);
            locked = steps.to(next)?.lock();
        }
        Ok(locked)
    }

    /// Splits a full leaf in two, in the middle; where keys come in ascending order at the end, so
    /// that leaves are left full.
    fn split(&self, worker: WorkerId, left: Locked<'_, P>, key: u64) -> Result<(), PutError> {
        let mut entries = [(END, 0); SLOTS];
        for (entry, held) in entries.iter_mut().zip(left.entries()) {
            *entry = held;
        }
        entries.sort_unstable();
        let is_last = left.fence_key() == END && entries[SLOTS - 1].0 < key;
        let middle = if is_last { SLOTS - 1 } else { SLOTS / 2 };
        let low = entries[middle].0;
        let right = self.draft(
            worker,
            &Draft {
                next: left.next(),
                low,
                fence: left.fence_key(),
                entries: &entries[middle..],
            },
        )?;
        left.cede(right.at, low);
        match self.above.put(worker, low, right.at) {
            // It is reached from the left.
            Ok(_) | Err(PutError::Full(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Unlinks the leaf that `key` belongs to, unless it has keys or is the first; then those to
    /// its left that have none.
    fn prune(&self, worker: WorkerId, mut key: u64) -> Result<(), PutError> {
        let mut steps = self.steps();
        loop {
            let low = steps.to(self.read(key, |leaf| leaf.low())?)?;
            let Some(below) = low.checked_sub(1) else {
                return Ok(());
            };
            let left = self.lock(below)?;
            if left.fence_key() != low {
                // Somebody else was there first.
                continue;
            }
            let leaf = self.leaf(left.next())?.lock();
            if leaf.held() != 0 {
                return Ok(());
            }
            self.above.remove(worker, low)?;
            let (at, is_alone) = (leaf.at, left.held() != 0);
            left.absorb(&leaf);
            drop((left, leaf));
            self.heap.retire(worker, at);
            if is_alone {
                return Ok(());
            }
            key = below;
        }
    }
}

impl<P: Pmem, const SLOTS: usize> Index for FpTree<P, SLOTS> {
    fn get(&self, key: u64) -> Result<Option<u64>, Unsound> {
        self.get_beside(key, || (), || None)
    }

    /// Asks `known` while the leaf is on its way.
    #[inline]
    fn get_beside(
        &self,
        key: u64,
        fetch: impl FnOnce(),
        known: impl FnOnce() -> Option<u64>,
    ) -> Result<Option<u64>, Unsound> {
        fetch();
        let at = self.way(key)?;
        // The slot is known when the first line is there; most are on the next few.
        self.heap.pm().fetch(at, Self::LEAF_BYTES as usize);
        if let Some(value) = known() {
            return Ok(Some(value));
        }
        self.read_from(self.leaf(at)?, key, |leaf| {
            leaf.find(key).map(|slot| leaf.value(slot))
        })
    }

    fn put(&self, worker: WorkerId, key: u64, value: u64) -> Result<Option<u64>, PutError> {
        PutError::check(key)?;
        loop {
            let leaf = self.lock(key)?;
            if let Some(slot) = leaf.find(key) {
                let before = leaf.value(slot);
                leaf.update(slot, value);
                return Ok(Some(before));
            }
            if let Some(slot) = leaf.vacancy() {
                leaf.insert(slot, key, value);
                return Ok(None);
            }
            self.split(worker, leaf, key)?;
        }
    }

    fn remove(&self, worker: WorkerId, key: u64) -> Result<Option<u64>, PutError> {
        let leaf = self.lock(key)?;
        let Some(slot) = leaf.find(key) else {
            return Ok(None);
        };
        let before = leaf.value(slot);
        leaf.remove(slot);
        let is_empty = leaf.held() == 0;
        drop(leaf);
        if is_empty {
            self.prune(worker, key)?;
        }
        Ok(Some(before))
    }
}

impl<P: Pmem, const SLOTS: usize> Ordered for FpTree<P, SLOTS> {
    fn scan(
        &self,
        range: RangeInclusive<u64>,
        mut each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        let mut entries = Vec::with_capacity(SLOTS);
        let (mut from, to) = range.into_inner();
        while from <= to {
            let fence = self.read(from, |leaf| {
                entries.clear();
                entries.extend(leaf.entries());
                self.heap.pm().fetch(leaf.next(), Self::LEAF_BYTES as usize);
                leaf.fence_key()
            })?;
            entries.sort_unstable();
            for &(key, value) in entries.iter().filter(|entry| entry.0 >= from) {
                if key > to || each(key, value).is_break() {
                    return Ok(());
                }
            }
            if fence == END {
                return Ok(());
            }
            from = fence;
        }
        Ok(())
    }

    fn scan_back(
        &self,
        range: RangeInclusive<u64>,
        mut each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        let mut entries = Vec::with_capacity(SLOTS);
        let (from, mut to) = range.into_inner();
        while from <= to {
            let low = self.read(to, |leaf| {
                entries.clear();
                entries.extend(leaf.entries());
                leaf.low()
            })?;
            entries.sort_unstable();
            for &(key, value) in entries.iter().rev().filter(|entry| entry.0 <= to) {
                if key < from || each(key, value).is_break() {
                    return Ok(());
                }
            }
            // A leaf that begins above what it was found by is a damaged one.
            match low.checked_sub(1) {
                Some(next) if next < to => to = next,
                Some(_) => return Err(Unsound::Endless.into()),
                None => return Ok(()),
            }
        }
        Ok(())
    }
}

impl<P: Pmem, const SLOTS: usize> Persistent<P> for FpTree<P, SLOTS> {
    fn open(heap: Arc<Heap<P>>, root: usize, worker: WorkerId) -> Result<Self, PutError> {
        let () = Self::FITS;
        let leaves = heap.pm().size_bytes() / Self::LEAF_BYTES;
        let above = FastFair::in_dram(leaves, heap.eras())?;
        let tree = FpTree { heap, root, above };
        if tree.heap.read_root(root) == 0 {
            let leaf = tree.draft(
                worker,
                &Draft {
                    next: 0,
                    low: 0,
                    fence: END,
                    entries: &[],
                },
            )?;
            tree.heap.set_root(root, leaf.at);
        }
        tree.recover(worker)?;
        Ok(tree)
    }

    fn heap(&self) -> &Arc<Heap<P>> {
        &self.heap
    }

    fn dram_bytes(&self) -> u64 {
        self.above.heap().claimed_bytes()
    }

    fn mark(&self, sweep: &mut Sweep<'_, P>) -> Result<u64, Unsound> {
        let mut steps = self.steps();
        let (mut leaf, mut leaves, mut is_marked) = (self.first()?, 0, false);
        loop {
            if !is_marked {
                sweep.mark(leaf.at, Self::CLASS)?;
                leaves += 1;
            }
            let (fence, next) = leaf.settled();
            if next == 0 {
                return Ok(leaves);
            }
            // From a leaf that is gone it goes back to where it was.
            is_marked = fence == GONE;
            leaf = steps.to(self.leaf(next)?)?;
        }
    }

    fn check(&self) -> Result<Census, Unsound> {
        let mut census = Census {
            levels: 1,
            ..Census::default()
        };
        let mut steps = self.steps();
        let (mut leaf, mut low) = (self.first()?, 0);
        loop {
            self.check_leaf(leaf, low)?;
            census.nodes += 1;
            census.entries += leaf.entries().count() as u64;
            let named = self.above.floor(low)?;
            census.unlinked += u64::from(named != Some((low, leaf.at)));
            if leaf.next() == 0 {
                return Ok(census);
            }
            low = leaf.fence_key();
            leaf = steps.to(self.leaf(leaf.next())?)?;
        }
    }
}

impl<P: Pmem, const SLOTS: usize> FpTree<P, SLOTS> {
    fn check_leaf(&self, leaf: Leaf<'_, P>, low: u64) -> Result<(), Unsound> {
        let (at, fence) = (leaf.at, leaf.fence_key());
        if fence <= low || leaf.low() != low || (fence < END) == (leaf.next() == 0) {
            return Err(Unsound::Fence { at, fence });
        }
        let mut keys = BTreeSet::new();
        for slot in ones(leaf.held()) {
            let key = leaf.key(slot);
            let is_found = leaf.find(key) == Some(slot);
            if key < low || key >= fence || !is_found || !keys.insert(key) {
                return Err(Unsound::Key { at, slot, key });
            }
        }
        Ok(())
    }
}
