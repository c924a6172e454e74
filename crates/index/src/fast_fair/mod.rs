//! FAST-FAIR: a B+tree that lives on persistent memory and is whole at any moment, so that there is
//! nothing to recover.
//!
//! Entries of a node are in order and are shifted one store at a time (failure-atomic shift, FAST;
//! `node.rs` has the order of stores); a node is split by linking its right half before the left
//! gives it up (failure-atomic in-place rebalance, FAIR). What a crash leaves half done is a tree
//! that readers read right and writers finish: a leftover entry before they change its node, a node
//! without an entry in the level above when they come across it.
//!
//! A split: the right half is written and made durable where nobody knows of it; the left node gets
//! its address as sibling, then its first key as fence, in one line and in this order; from then on
//! it is reached by going right; last, the level above gets an entry for it. After a crash between
//! sibling and fence both halves are still the left node's, and the right node is an empty stretch
//! of the chain. A new root is durable before the word that names it.
//!
//! Differences from the published algorithm, which loses keys in 18 to 30 % of the states that a
//! crash can leave once writers go on: slots that hold are told by keys, not by pointers, so that
//! any values may stand side by side; nodes have a fence, so that nothing depends on the keys that
//! happen to be in the right sibling; writers repair what they find; locks are void after a
//! restart; a value that is not yet durable is never told.
//!
//! A node that is emptied is taken out of the tree again (`unlink.rs`), which is a split backwards;
//! its range goes to its left sibling.
//!
//! What it never does: merge nodes that have keys, take a level away, read the bytes that a value
//! may be the address of, wait for a writer while reading.
//!
//! *Thread safety*: all methods take `&self`; a worker is within an era while it calls them.
//!
//! *Invariants*: along a level the fences grow and the last is END; the keys of a node are below
//! its fence and not below that of its left sibling; every node is reached from the leftmost of its
//! level by going right; what a node names as child is a node of the level below it.
//!
//! Locks of nodes are taken from the lower level to the higher, and from left to right. Only who
//! unlinks holds more than one.
//!
//! Source: Hwang et al., "Endurable Transient Inconsistency in Byte-Addressable Persistent B+-Tree"
//! (FAST'18); Lehman and Yao (TODS'81) for fences; Lanin and Shasha (FJCC'86) for the way back from
//! a node that is gone; HybridIndex+ section 3.1, which builds on it.

mod check;
mod node;
mod scan;
mod unlink;

#[cfg(all(test, not(any(loom, shuttle))))]
mod crash;
#[cfg(test)]
mod interleavings;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::heap::{Class, Full, Heap, Sweep};
use crate::ordered::{Census, END, PutError, Steps, TOGETHER, Unsound, together};
use crate::sync::{Mutex, lock};
use crate::{Eras, Index, Persistent};
use node::{Draft, GONE, Locked, Mode, Node, Spot};
use nyx_base::WorkerId;
use nyx_media::Pmem;
use nyx_media::pmem::{Dram, LINE_BYTES};
use std::sync::Arc;

/// Levels that fit into the bits that a node has for its own.
const LEVELS_MAX: u8 = 63;
/// Slots of a node of 512 bytes: two units of persistent memory.
pub const SLOTS: usize = 30;
/// The tree. `SLOTS` is another only in tests.
#[derive(Debug)]
pub struct FastFair<P, const SLOTS: usize = { self::SLOTS }> {
    heap: Arc<Heap<P>>,
    root: usize,
    /// Held while a level is added.
    growing: Mutex<()>,
}

impl FastFair<Dram> {
    /// An empty tree in DRAM with room for so many entries, whose memory is taken as it grows.
    pub(crate) fn in_dram(entries: u64, eras: &Arc<Eras>) -> Result<FastFair<Dram>, PutError> {
        /// Of a tree whose nodes are half full, per entry.
        const ENTRY_BYTES: u64 = 40;
        let bytes = entries * ENTRY_BYTES;
        let heap = Heap::in_dram(bytes, eras.clone()).map_err(|_| Full::of_dram(bytes))?;
        FastFair::open(Arc::new(heap), 0, WorkerId(0))
    }
}

impl<P: Pmem, const SLOTS: usize> FastFair<P, SLOTS> {
    const NODE_BYTES: u64 = node::words(SLOTS) as u64 * 8;
    const CLASS: Class = match Class::of(Self::NODE_BYTES) {
        Some(class) => class,
        None => panic!("a node is larger than any block"),
    };
    const IS_WHOLE_LINES: () = assert!(Self::NODE_BYTES.is_multiple_of(LINE_BYTES as u64));

    fn node(&self, at: u64) -> Result<Node<'_, P>, Unsound> {
        let words = self.heap.block(at, Self::NODE_BYTES);
        let words = words.ok_or(Unsound::NoNode { at })?;
        Ok(Node::new(self.heap.pm(), at, words))
    }

    fn root_node(&self) -> Result<Node<'_, P>, Unsound> {
        self.node(self.heap.read_root(self.root))
    }

    /// How far one may go.
    fn steps(&self) -> Steps {
        Steps::among(&self.heap, Self::NODE_BYTES)
    }

    /// The sibling of a node, at the address that [`Node::right_of`] told: of one that is locked,
    /// or that is the same since.
    #[inline]
    fn sibling<'t>(&'t self, node: Node<'t, P>, at: u64) -> Result<Node<'t, P>, Unsound> {
        let next = self.node(at)?;
        match next.level() == node.level() {
            true => Ok(next),
            false => Err(Unsound::Level { at }),
        }
    }

    /// The node of `level` that `key` belongs to, or one to its left.
    fn descend(&self, key: u64, level: u8) -> Result<Node<'_, P>, Unsound> {
        self.walk(key, level, |_, _, _| {})
    }

    /// The same. `moved` hears of each node from which it went right, while nobody was at it: its
    /// level, its fence and the address to the right.
    fn walk(
        &self,
        key: u64,
        level: u8,
        mut moved: impl FnMut(u8, u64, u64),
    ) -> Result<Node<'_, P>, Unsound> {
        let mut steps = self.steps();
        let mut node = self.root_node()?;
        while let Some(next) = self.step(node, key, level, &mut moved)? {
            node = steps.to(next)?;
        }
        Ok(node)
    }

    /// The next node on that way, to the right or below; none at its end.
    #[inline]
    fn step<'t>(
        &'t self,
        node: Node<'t, P>,
        key: u64,
        level: u8,
        moved: impl FnMut(u8, u64, u64),
    ) -> Result<Option<Node<'t, P>>, Unsound> {
        match self.heading(node, key, level, moved)? {
            Heading::Here => Ok(None),
            Heading::Right(next) => Ok(Some(next)),
            Heading::Below(at) => {
                self.fetch(at);
                self.child(at, node.level()).map(Some)
            }
        }
    }

    /// Where that way leads to from `node`.
    #[inline]
    fn heading<'t>(
        &'t self,
        node: Node<'t, P>,
        key: u64,
        level: u8,
        mut moved: impl FnMut(u8, u64, u64),
    ) -> Result<Heading<'t, P>, Unsound> {
        loop {
            let seen = node.look(self.heap.generation());
            let here = node.level();
            let (fence, right) = node.right_of(key);
            if let Some(at) = right {
                if node.is_same(seen) {
                    if seen.mode.is_none() && fence != GONE {
                        moved(here, fence, at);
                    }
                    return self.sibling(node, at).map(Heading::Right);
                }
                continue;
            }
            if here <= level {
                return Ok(Heading::Here);
            }
            let (_, child) = node.child(key, seen.mode);
            if node.is_same(seen) {
                return Ok(Heading::Below(child));
            }
        }
    }

    /// The value of `key`, which belongs to this leaf or to one on its right.
    #[inline]
    fn find<'t>(&'t self, mut node: Node<'t, P>, key: u64) -> Result<Option<u64>, Unsound> {
        let mut steps = self.steps();
        loop {
            let seen = node.look(self.heap.generation());
            let (_, right) = node.right_of(key);
            let value = match right {
                Some(_) => None,
                None => node.find(key, seen.mode),
            };
            if !node.is_same(seen) {
                continue;
            }
            match right {
                Some(at) => node = steps.to(self.sibling(node, at)?)?,
                None => {
                    node.make_durable(seen);
                    return Ok(value);
                }
            }
        }
    }

    /// Has all lines of a node on their way.
    #[inline]
    fn fetch(&self, at: u64) {
        self.heap.pm().fetch(at, Self::NODE_BYTES as usize);
    }

    /// The child at `at` of a node of `level`.
    #[inline]
    fn child(&self, at: u64, level: u8) -> Result<Node<'_, P>, Unsound> {
        let child = self.node(at)?;
        match level.checked_sub(1) == Some(child.level()) {
            true => Ok(child),
            false => Err(Unsound::Level { at }),
        }
    }

    /// The same for writers, who link what a crash, or another writer's unfinished split, left to
    /// be reached by going right only.
    fn descend_mending(
        &self,
        worker: WorkerId,
        key: u64,
        level: u8,
    ) -> Result<Node<'_, P>, PutError> {
        let mut unlinked = None;
        let node = self.walk(key, level, |level, fence, at| {
            unlinked = Some((level, fence, at));
        })?;
        let Some((level, fence, at)) = unlinked else {
            return Ok(node);
        };
        // An empty stretch of the chain has no keys to be found by.
        if self.node(at)?.fence_key() > fence {
            self.link(worker, level + 1, fence, at)?;
        }
        Ok(node)
    }

    /// Locks the node that `key` belongs to, from `node` on to the right, and tells where in it;
    /// what a crash left over there is cleared away.
    fn lock<'t>(
        &'t self,
        node: Node<'t, P>,
        key: u64,
        mode: Mode,
    ) -> Result<(Locked<'t, P>, Spot), Unsound> {
        let generation = self.heap.generation();
        let mut steps = self.steps();
        let mut locked = node.lock(generation, mode);
        loop {
            if let (_, Some(at)) = locked.right_of(key) {
                let next = self.sibling(*locked, at)?;
                drop(locked);
                locked = steps.to(next)?.lock(generation, mode);
                continue;
            }
            match locked.spot(key) {
                Ok(spot) => return Ok((locked, spot)),
                Err(leftover) => {
                    locked = locked.turn(generation, Mode::Left);
                    locked.remove(leftover.0);
                    locked = locked.turn(generation, mode);
                }
            }
        }
    }

    /// A durable node that nobody knows of.
    fn draft(&self, worker: WorkerId, draft: &Draft<'_>) -> Result<Node<'_, P>, PutError> {
        let at = self.heap.take(worker, Self::CLASS)?;
        let node = self.node(at)?;
        node.write(draft, self.heap.generation());
        Ok(node)
    }

    /// Splits a full node in two and links the right one into the level above.
    fn split(&self, worker: WorkerId, left: Locked<'_, P>, spot: Spot) -> Result<(), PutError> {
        let level = left.level();
        let middle = middle(spot, left.fence_key());
        let (fence, first) = (left.key(middle), left.value(middle));
        let entries: [_; SLOTS] = std::array::from_fn(|slot| (left.key(slot), left.value(slot)));
        let (sibling, empty) = self.beyond_empty(*left)?;
        // An inner node's middle key moves up; its child becomes the leftmost.
        let (leftmost, begin) = if level == 0 {
            (0, middle)
        } else {
            (first, middle + 1)
        };
        let right = self.draft(
            worker,
            &Draft {
                level,
                leftmost,
                sibling,
                fence: left.fence_key(),
                entries: &entries[begin..spot.used],
            },
        )?;
        left.cede(right.at, fence);
        right.release(self.heap.generation());
        drop(left);
        if let Some(at) = empty {
            self.heap.retire(worker, at);
        }
        self.link(worker, level + 1, fence, right.at)
    }

    /// The address of the right sibling of a node that is locked, leaving out an empty stretch of
    /// the chain, which is told as well.
    fn beyond_empty(&self, left: Node<'_, P>) -> Result<(u64, Option<u64>), Unsound> {
        let sibling = left.sibling();
        if sibling == 0 {
            return Ok((0, None));
        }
        // Nothing is ever put into a node whose left neighbour has the same fence, or told of it to
        // the level above: nobody will lead there once it is left out.
        let next = self.node(sibling)?;
        let is_empty = next.fence_key() == left.fence_key() && sibling != left.at;
        if is_empty {
            self.heap.check(sibling, Self::CLASS)?;
        }
        match is_empty {
            true => Ok((next.sibling(), Some(sibling))),
            false => Ok((sibling, None)),
        }
    }

    /// Gives the level `level` an entry for the node at `child`, whose keys begin at `key`, unless
    /// there is one, or the child is gone meanwhile. Where the heap is full it stays without: it is
    /// reached from the left.
    fn link(&self, worker: WorkerId, level: u8, key: u64, child: u64) -> Result<(), PutError> {
        match self.try_link(worker, level, key, child) {
            Err(PutError::Full(_)) => Ok(()),
            done => done,
        }
    }

    fn try_link(&self, worker: WorkerId, level: u8, key: u64, child: u64) -> Result<(), PutError> {
        loop {
            if self.root_node()?.level() < level {
                if self.grow(worker, level, key, child)? {
                    return Ok(());
                }
                continue;
            }
            let node = self.descend(key, level)?;
            let (node, spot) = self.lock(node, key, Mode::Right)?;
            // Somebody else may have linked it, and a split made it the leftmost since. Who takes
            // it away has this lock while it does.
            let is_named = spot.found || node.leftmost() == child;
            if is_named || self.node(child)?.is_gone() {
                return Ok(());
            }
            if spot.used < SLOTS {
                node.insert(spot, key, child);
                return Ok(());
            }
            self.split(worker, node, spot)?;
        }
    }

    /// Adds a level above the root with two children. False where somebody else did.
    fn grow(&self, worker: WorkerId, level: u8, key: u64, child: u64) -> Result<bool, PutError> {
        let _growing = lock(&self.growing);
        let root = self.root_node()?;
        if root.level() >= level {
            return Ok(false);
        }
        if level >= LEVELS_MAX {
            return Err(Unsound::Level { at: root.at }.into());
        }
        let new = self.draft(
            worker,
            &Draft {
                level,
                leftmost: root.at,
                sibling: 0,
                fence: END,
                entries: &[(key, child)],
            },
        )?;
        new.release(self.heap.generation());
        self.heap.set_root(self.root, new.at);
        Ok(true)
    }
}

impl<P: Pmem, const SLOTS: usize> Index for FastFair<P, SLOTS> {
    fn get(&self, key: u64) -> Result<Option<u64>, Unsound> {
        self.find(self.descend(key, 0)?, key)
    }

    /// Fetches while the node above the leaf is on its way, the first that may be far; asks `known`
    /// while the leaf is.
    fn get_beside(
        &self,
        key: u64,
        fetch: impl FnOnce(),
        known: impl FnOnce() -> Option<u64>,
    ) -> Result<Option<u64>, Unsound> {
        let mut fetch = Some(fetch);
        let mut steps = self.steps();
        let mut node = self.root_node()?;
        let leaf = loop {
            let level = node.level();
            match self.heading(node, key, 0, |_, _, _| {})? {
                Heading::Here => break None,
                Heading::Right(next) => node = steps.to(next)?,
                Heading::Below(at) => {
                    self.fetch(at);
                    if level <= 2
                        && let Some(fetch) = fetch.take()
                    {
                        fetch();
                    }
                    if level == 1 {
                        break Some(at);
                    }
                    node = steps.to(self.child(at, level)?)?;
                }
            }
        };
        fetch.into_iter().for_each(|fetch| fetch());
        if let Some(value) = known() {
            return Ok(Some(value));
        }
        let leaf = leaf.map_or(Ok(node), |at| self.child(at, 1))?;
        self.find(leaf, key)
    }

    /// Goes down level by level with several keys at once.
    fn get_many(&self, keys: &[u64], values: &mut [Option<u64>]) -> Result<(), Unsound> {
        for (keys, values) in together(keys, values) {
            let mut steps = self.steps();
            let mut nodes = [self.root_node()?; TOGETHER];
            let mut is_on_the_way = true;
            while is_on_the_way {
                is_on_the_way = false;
                for (node, &key) in nodes.iter_mut().zip(keys) {
                    if let Some(next) = self.step(*node, key, 0, |_, _, _| {})? {
                        *node = steps.to(next)?;
                        is_on_the_way = true;
                    }
                }
            }
            for ((&node, &key), value) in nodes.iter().zip(keys).zip(values) {
                *value = self.find(node, key)?;
            }
        }
        Ok(())
    }

    fn put(&self, worker: WorkerId, key: u64, value: u64) -> Result<Option<u64>, PutError> {
        PutError::check(key)?;
        loop {
            let leaf = self.descend_mending(worker, key, 0)?;
            let (leaf, spot) = self.lock(leaf, key, Mode::Right)?;
            if spot.found {
                let before = leaf.value(spot.slot);
                leaf.update(spot.slot, value);
                return Ok(Some(before));
            }
            if spot.used < SLOTS {
                leaf.insert(spot, key, value);
                return Ok(None);
            }
            self.split(worker, leaf, spot)?;
        }
    }

    fn remove(&self, worker: WorkerId, key: u64) -> Result<Option<u64>, PutError> {
        let leaf = self.descend_mending(worker, key, 0)?;
        let (leaf, spot) = self.lock(leaf, key, Mode::Left)?;
        if !spot.found {
            return Ok(None);
        }
        let value = leaf.value(spot.slot);
        leaf.remove(spot.slot);
        drop(leaf);
        if spot.used == 1 {
            self.prune(worker, key)?;
        }
        Ok(Some(value))
    }
}

impl<P: Pmem, const SLOTS: usize> Persistent<P> for FastFair<P, SLOTS> {
    fn open(heap: Arc<Heap<P>>, root: usize, worker: WorkerId) -> Result<Self, PutError> {
        let () = Self::IS_WHOLE_LINES;
        let tree = FastFair {
            heap,
            root,
            growing: Mutex::new(()),
        };
        if tree.heap.read_root(root) == 0 {
            let leaf = tree.draft(
                worker,
                &Draft {
                    level: 0,
                    leftmost: 0,
                    sibling: 0,
                    fence: END,
                    entries: &[],
                },
            )?;
            leaf.release(tree.heap.generation());
            tree.heap.set_root(root, leaf.at);
        }
        tree.root_node()?;
        Ok(tree)
    }

    fn heap(&self) -> &Arc<Heap<P>> {
        &self.heap
    }

    fn mark(&self, sweep: &mut Sweep<'_, P>) -> Result<u64, Unsound> {
        self.mark_all(sweep)
    }

    fn check(&self) -> Result<Census, Unsound> {
        self.count_all()
    }
}

/// Where a way down the tree leads to next.
enum Heading<'t, P> {
    /// It is at its end.
    Here,
    /// To a sibling.
    Right(Node<'t, P>),
    /// To the child at this address.
    Below(u64),
}

/// The slot where a full node is split. In the middle; where keys come in ascending order at the
/// end, so that nodes are left full.
fn middle(spot: Spot, fence: u64) -> usize {
    if fence == END && spot.slot == spot.used {
        spot.used - 1
    } else {
        spot.used / 2
    }
}
