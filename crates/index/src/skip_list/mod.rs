//! A persistent skip list: a list on persistent memory, the levels above it in DRAM.
//!
//! A node, in words of a block of 32 bytes:
//!
//! ```text
//! word 0  the next node's address, or 0; in its low bits DIRTY, CHANGING, GONE
//! word 1  the key
//! word 2  the value
//! ```
//!
//! The root is a node that is before all others and has no key. What leads to a node is built anew
//! when the list is opened, by one walk (`towers.rs`).
//!
//! **The order of stores.** Put: the node is durable before the link to it is stored, durably.
//! Remove: the link past the node is stored, durably. Update: the value's word, in place. One store
//! of one word each, so that a crash leaves the list as it was before or after.
//!
//! **What is not durable yet says so.** A link is stored with DIRTY set, flushed, and stored
//! without; a value is changed while CHANGING is set in its node. Whoever follows a dirty link, or
//! tells a value of a node that is changing, makes it durable first: nobody is told of what a crash
//! could undo, and nothing is put behind a link that could be lost (link-and-persist). A process
//! that was killed leaves them set, and the next makes durable what they are about.
//!
//! What it never does: keep a level of links on persistent memory, wait while reading.
//!
//! *Thread safety*: all methods take `&self`; a worker is within an era while it calls them. A
//! writer locks the node before the place, and the node that it changes, by locks in DRAM.
//!
//! *Invariants*: keys grow along the list; a word 0 changes under its node's lock only; a node with
//! GONE set is not in the list any more once its lock is free.
//!
//! Source: Chen et al., "Design and implementation of skiplist-based key-value store on
//! non-volatile memory" (Cluster Computing 2019); David et al., "Log-Free Concurrent Data
//! Structures" (ATC'18) for link-and-persist; HybridIndex+ section 3.2.

mod towers;

#[cfg(all(test, not(any(loom, shuttle))))]
mod crash;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::heap::{Class, Heap, Sweep};
use crate::ordered::{Census, END, PutError, ScanError, Steps, Unsound};
use crate::sync::{Locked, Locks};
use crate::{Index, Ordered, Persistent};
use nyx_base::WorkerId;
use nyx_media::Pmem;
use nyx_media::pmem::Word;
use std::collections::BTreeMap;
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use towers::Towers;

const NODE_BYTES: u64 = 32;
const CLASS: Class = match Class::of(NODE_BYTES) {
    Some(class) => class,
    None => panic!("there are blocks of 32 bytes"),
};
const LINK: usize = 0;
const KEY: usize = 1;
const VALUE: usize = 2;
const WORDS: usize = 3;

/// The link is not durable yet.
const DIRTY: u64 = 1;
/// The value is not durable yet.
const CHANGING: u64 = 2;
/// The node is about to leave the list, or has left.
const GONE: u64 = 4;
const FLAGS: u64 = DIRTY | CHANGING | GONE;

/// Locks that nodes share.
const LOCKS: usize = 128;

/// The list.
#[derive(Debug)]
pub struct SkipList<P> {
    heap: Arc<Heap<P>>,
    root: usize,
    towers: Towers,
    locks: Locks,
}

/// The words of a node. Copies are cheap.
#[derive(Debug)]
struct Node<'p, P> {
    pm: &'p P,
    at: u64,
    words: &'p [Word],
}

impl<P> Clone for Node<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Node<'_, P> {}

impl<P: Pmem> Node<'_, P> {
    #[inline]
    fn link(&self) -> u64 {
        self.words[LINK].load(Acquire)
    }

    #[inline]
    fn key(&self) -> u64 {
        self.words[KEY].load(Acquire)
    }

    /// The value. Durable.
    fn value(&self) -> u64 {
        let value = self.words[VALUE].load(Acquire);
        if self.link() & CHANGING != 0 {
            self.pm.persist(self.words);
        }
        value
    }

    /// The next node's address, after the link is durable.
    #[inline]
    fn next(&self) -> u64 {
        let link = self.link();
        if link & DIRTY != 0 {
            self.pm.persist(&self.words[..=LINK]);
        }
        link & !FLAGS
    }

    #[track_caller]
    fn store_link(&self, link: u64) {
        self.pm.store(&self.words[LINK], link);
    }

    /// Makes `to` the next node, durably. Its lock is held.
    fn lead_to(&self, to: u64) {
        let flags = self.link() & FLAGS;
        self.store_link(to | flags | DIRTY);
        self.pm.persist(&self.words[..=LINK]);
        self.store_link(to | flags);
    }

    /// Changes the value, durably. Its lock is held.
    fn update(&self, value: u64) {
        let link = self.link();
        self.store_link(link | CHANGING);
        self.pm.store(&self.words[VALUE], value);
        self.pm.persist(self.words);
        self.store_link(link);
    }

    /// Writes a node that nobody knows of yet, durably.
    fn write(&self, next: u64, key: u64, value: u64) {
        for (word, value) in self.words.iter().zip([next, key, value]) {
            self.pm.store(word, value);
        }
        self.pm.persist(self.words);
    }
}

/// Where a key is or would be: the node before it, and the one after that.
type Place<'p, P> = (Node<'p, P>, Option<Node<'p, P>>);

impl<P: Pmem> SkipList<P> {
    #[inline]
    fn node(&self, at: u64) -> Result<Node<'_, P>, Unsound> {
        let words = self.heap.block(at, NODE_BYTES);
        let words = &words.ok_or(Unsound::NoNode { at })?[..WORDS];
        let pm = self.heap.pm();
        Ok(Node { pm, at, words })
    }

    /// The node after `node`, if there is one.
    #[inline]
    fn after(&self, node: Node<'_, P>) -> Result<Option<Node<'_, P>>, Unsound> {
        match node.next() {
            0 => Ok(None),
            next => self.node(next).map(Some),
        }
    }

    /// The last node before `key`, and the node after it.
    fn find(&self, key: u64) -> Result<Place<'_, P>, Unsound> {
        self.walk(self.towers.before(key), key, |_| {})
    }

    /// The same, from the node at `begin` on; `passed` hears of each node on the way but the first.
    fn walk<'t>(
        &'t self,
        begin: u64,
        key: u64,
        mut passed: impl FnMut(Node<'t, P>),
    ) -> Result<Place<'t, P>, Unsound> {
        let mut steps = self.steps();
        let mut node = self.node(begin)?;
        loop {
            let next = self.after(node)?;
            match next.filter(|next| next.key() < key) {
                None => return Ok((node, next)),
                Some(next) => {
                    passed(next);
                    node = steps.to(next)?;
                }
            }
        }
    }

    fn steps(&self) -> Steps {
        Steps::among(&self.heap, NODE_BYTES)
    }

    fn lock(&self, node: Node<'_, P>) -> Locked<'_> {
        self.locks.lock(node.at / NODE_BYTES)
    }

    /// Puts an entry between two nodes, in a block of its own, unless the list changed there. Tells
    /// whether it did.
    fn insert(
        &self,
        worker: WorkerId,
        (before, after): Place<'_, P>,
        new: Node<'_, P>,
        (key, value): (u64, u64),
    ) -> bool {
        let next = after.map_or(0, |after| after.at);
        let place = self.lock(before);
        if before.link() & GONE != 0 || before.link() & !FLAGS != next {
            return false;
        }
        new.write(next, key, value);
        before.lead_to(new.at);
        drop(place);
        if self.towers.height(key) > 0 {
            // Somebody may have taken it away again.
            let _lock = self.lock(new);
            if new.link() & GONE == 0 {
                self.towers.add(worker, key, new.at);
            }
        }
        true
    }

    /// Takes a node out, unless the list changed there. Tells whether it did.
    fn unlink(&self, worker: WorkerId, before: Node<'_, P>, node: Node<'_, P>) -> bool {
        let numbers = [before.at, node.at].map(|at| at / NODE_BYTES);
        let _both = self.locks.lock_both(numbers[0], numbers[1]);
        if before.link() & GONE != 0 || before.link() & !FLAGS != node.at {
            return false;
        }
        node.store_link(node.link() | GONE);
        // Before it leaves the list: nobody who comes later begins at it.
        self.towers.remove(worker, node.key());
        before.lead_to(node.link() & !FLAGS);
        true
    }

    /// Walks along the list, makes durable what a process that is gone left, and adds towers.
    fn recover(&self, worker: WorkerId) -> Result<(), PutError> {
        let mut steps = self.steps();
        let mut node = self.node(self.heap.read_root(self.root))?;
        let mut last = None;
        loop {
            self.heap.check(node.at, CLASS).map_err(Unsound::from)?;
            if node.link() & FLAGS != 0 {
                node.pm.persist(node.words);
                // What was to leave the list and did not stays: nobody was told that it left.
                node.store_link(node.link() & !FLAGS);
            }
            let Some(next) = self.after(node)? else {
                return Ok(());
            };
            let (at, key) = (next.at, next.key());
            if key == END || last.is_some_and(|last| key <= last) {
                return Err(Unsound::Key { at, slot: 0, key }.into());
            }
            self.towers.add(worker, key, at);
            (node, last) = (steps.to(next)?, Some(key));
        }
    }
}

impl<P: Pmem> Index for SkipList<P> {
    fn get(&self, key: u64) -> Result<Option<u64>, Unsound> {
        self.get_beside(key, || (), || None)
    }

    /// Asks `known` while the first node of the way along the list is on its way.
    #[inline]
    /// Every wait but the first is saved, and there are many.
    fn beside_pays_from(&self) -> f64 {
        0.02
    }

    fn get_beside(
        &self,
        key: u64,
        fetch: impl FnOnce(),
        known: impl FnOnce() -> Option<u64>,
    ) -> Result<Option<u64>, Unsound> {
        fetch();
        let begin = self.towers.before(key);
        self.heap.pm().fetch(begin, NODE_BYTES as usize);
        if let Some(value) = known() {
            return Ok(Some(value));
        }
        // From a node that has left meanwhile what came since cannot be reached.
        let (_, found) = match self.node(begin)?.link() & GONE {
            0 => self.walk(begin, key, |_| {})?,
            _ => self.find(key)?,
        };
        let found = found.filter(|found| found.key() == key);
        Ok(found.map(|found| found.value()))
    }

    fn put(&self, worker: WorkerId, key: u64, value: u64) -> Result<Option<u64>, PutError> {
        PutError::check(key)?;
        let mut new = None;
        let before = loop {
            let place = self.find(key)?;
            if let Some(node) = place.1.filter(|node| node.key() == key) {
                let _lock = self.lock(node);
                if node.link() & GONE != 0 {
                    continue;
                }
                let before = node.value();
                node.update(value);
                break Some(before);
            }
            let node = match new {
                Some(node) => node,
                None => *new.insert(self.node(self.heap.take(worker, CLASS)?)?),
            };
            if self.insert(worker, place, node, (key, value)) {
                return Ok(None);
            }
        };
        if let Some(unused) = new {
            self.heap.give_back(worker, unused.at);
        }
        Ok(before)
    }

    fn remove(&self, worker: WorkerId, key: u64) -> Result<Option<u64>, PutError> {
        loop {
            let (before, found) = self.find(key)?;
            let Some(node) = found.filter(|node| node.key() == key) else {
                return Ok(None);
            };
            if self.unlink(worker, before, node) {
                let value = node.value();
                self.heap.retire(worker, node.at);
                return Ok(Some(value));
            }
        }
    }
}

impl<P: Pmem> Ordered for SkipList<P> {
    fn scan(
        &self,
        range: RangeInclusive<u64>,
        mut each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        let (from, to) = range.into_inner();
        let mut steps = self.steps();
        let (_, mut next) = self.find(from)?;
        while let Some(node) = next {
            let key = node.key();
            if key > to || each(key, node.value()).is_break() {
                return Ok(());
            }
            next = steps.to(self.after(node)?)?;
        }
        Ok(())
    }

    fn scan_back(
        &self,
        range: RangeInclusive<u64>,
        mut each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        let (from, to) = range.into_inner();
        let root = self.heap.read_root(self.root);
        let mut entries = Vec::new();
        // The first key that was told already.
        let mut told = to.saturating_add(1);
        while from < told {
            // Links lead up only: a stretch is read, and told from its end.
            let begin = self.node(self.towers.long_before(told))?;
            entries.clear();
            if begin.at != root {
                entries.push((begin.key(), begin.value()));
            }
            self.walk(begin.at, told, |node| {
                entries.push((node.key(), node.value()))
            })?;
            for &(key, value) in entries.iter().rev() {
                if key < from || each(key, value).is_break() {
                    return Ok(());
                }
            }
            if begin.at == root {
                return Ok(());
            }
            told = begin.key();
        }
        Ok(())
    }
}

impl<P: Pmem> Persistent<P> for SkipList<P> {
    fn open(heap: Arc<Heap<P>>, root: usize, worker: WorkerId) -> Result<Self, PutError> {
        if heap.read_root(root) == 0 {
            let at = heap.take(worker, CLASS)?;
            let words = heap.block(at, NODE_BYTES);
            let words = &words.ok_or(Unsound::NoNode { at })?[..WORDS];
            let pm = heap.pm();
            Node { pm, at, words }.write(0, 0, 0);
            heap.set_root(root, at);
        }
        let keys = heap.pm().size_bytes() / NODE_BYTES;
        let first = heap.read_root(root);
        let list = SkipList {
            towers: Towers::new(keys, first, heap.id(), heap.eras().clone())?,
            heap,
            root,
            locks: Locks::new(LOCKS),
        };
        list.recover(worker)?;
        Ok(list)
    }

    fn heap(&self) -> &Arc<Heap<P>> {
        &self.heap
    }

    fn dram_bytes(&self) -> u64 {
        self.towers.bytes()
    }

    fn mark(&self, sweep: &mut Sweep<'_, P>) -> Result<u64, Unsound> {
        let mut steps = self.steps();
        let (mut node, mut nodes) = (self.node(self.heap.read_root(self.root))?, 0);
        loop {
            sweep.mark(node.at, CLASS)?;
            nodes += 1;
            match self.after(node)? {
                None => return Ok(nodes),
                Some(next) => node = steps.to(next)?,
            }
        }
    }

    fn check(&self) -> Result<Census, Unsound> {
        let mut census = Census {
            levels: 1,
            nodes: 1,
            ..Census::default()
        };
        let mut towers: BTreeMap<u64, u64> = self.towers.all().collect();
        let mut last = None;
        let mut wrong = None;
        self.walk(self.heap.read_root(self.root), END, |node| {
            let (at, key) = (node.at, node.key());
            census.nodes += 1;
            census.entries += 1;
            let tower = towers.remove(&key);
            census.unlinked += u64::from(tower.is_none() && self.towers.height(key) > 0);
            let is_wrong = last.is_some_and(|last| key <= last);
            if is_wrong || tower.is_some_and(|node| node != at) {
                wrong = Some(Unsound::Key { at, slot: 0, key });
            }
            last = Some(key);
        })?;
        // A tower of a node that is not in the list.
        let stray = towers.first_key_value();
        let stray = stray.map(|(&key, &at)| Unsound::Key { at, slot: 0, key });
        wrong.or(stray).map_or(Ok(census), Err)
    }
}
