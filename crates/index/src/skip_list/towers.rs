//! The levels above the list, in DRAM: towers of one in four keys, of which one in four is higher,
//! and so on. They only say where in the list to begin: without them it is slower and not wrong.
//!
//! A tower, in words of a block of a heap of its own: its key, the address of its node in the list,
//! and for each of its levels the next tower.
//!
//! *Thread safety*: readers follow links without a lock, within an era; whoever adds or takes a
//! tower holds the lock.
//!
//! *Invariants*: a tower is taken away before its node leaves the list, so that who begins at one
//! begins at a node that was in the list after it began to look.

use crate::Eras;
use crate::heap::{Class, Full, Heap};
use crate::map::hash_of;
use crate::sync::{AtomicU64, Mutex, Ordering::Relaxed, lock};
use nyx_base::WorkerId;
use nyx_media::Pmem;
use nyx_media::pmem::{Dram, Word};
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;

/// More levels than any list needs that fits into memory.
const LEVELS: usize = 16;
/// The level at which a stretch begins: some sixteen entries of the list.
const STRETCH: usize = 1;

const KEY: usize = 0;
const NODE: usize = 1;
/// Words before the links.
const HEADER: usize = 2;

/// See the module.
#[derive(Debug)]
pub(super) struct Towers {
    heap: Heap<Dram>,
    /// The tower that is before all others.
    head: u64,
    /// Mixed into heights, so that nobody can choose keys that have none.
    seed: u64,
    /// Levels that have a tower.
    top: AtomicU64,
    changing: Mutex<()>,
}

/// One of them.
#[derive(Clone, Copy)]
struct Tower<'t> {
    at: u64,
    words: &'t [Word],
}

impl Tower<'_> {
    fn key(self) -> u64 {
        self.words[KEY].load(Acquire)
    }

    fn node(self) -> u64 {
        self.words[NODE].load(Acquire)
    }

    fn next(self, level: usize) -> u64 {
        self.words[HEADER + level].load(Acquire)
    }
}

fn class_of(height: usize) -> Class {
    let bytes = (HEADER + height) as u64 * 8;
    Class::of(bytes).expect("there are few levels")
}

impl Towers {
    /// None yet, with room for those of so many keys; `node` is the one before all others.
    pub(super) fn new(keys: u64, node: u64, seed: u64, eras: Arc<Eras>) -> Result<Towers, Full> {
        /// What towers take, on average, per key of the list; and a little more.
        const KEY_BYTES: u64 = 12;
        let bytes = keys * KEY_BYTES;
        let heap = Heap::in_dram(bytes, eras).map_err(|_| Full::of_dram(bytes))?;
        let head = heap.take(WorkerId(0), class_of(LEVELS))?;
        let towers = Towers {
            heap,
            head,
            seed,
            top: AtomicU64::new(0),
            changing: Mutex::new(()),
        };
        towers.write(head, 0, node, &[0; LEVELS]);
        Ok(towers)
    }

    /// Bytes of DRAM in use.
    pub(super) fn bytes(&self) -> u64 {
        self.heap.claimed_bytes()
    }

    /// How many levels the tower of `key` has.
    pub(super) fn height(&self, key: u64) -> usize {
        let zeros = hash_of(key ^ self.seed).trailing_zeros() as usize;
        (zeros / 2).min(LEVELS)
    }

    /// A tower of a height that is known to whoever asks, or any part of it.
    #[inline]
    fn tower(&self, at: u64, height: usize) -> Tower<'_> {
        let words = self.heap.pm().words(at, HEADER + height);
        Tower { at, words }
    }

    fn write(&self, at: u64, key: u64, node: u64, links: &[u64]) {
        let words = self.heap.pm().words(at, HEADER + links.len());
        let values = [key, node].into_iter().chain(links.iter().copied());
        for (word, value) in words.iter().zip(values) {
            self.heap.pm().store(word, value);
        }
    }

    /// The node of the last tower before `key`, or the one that is before all.
    pub(super) fn before(&self, key: u64) -> u64 {
        self.descend(key, 0, |_, _| {}).node()
    }

    /// The same, some entries of the list earlier.
    pub(super) fn long_before(&self, key: u64) -> u64 {
        self.descend(key, STRETCH, |_, _| {}).node()
    }

    /// The last tower before `key` on the level `lowest`; `passed` hears of it on each level from
    /// the top.
    #[inline]
    fn descend(&self, key: u64, lowest: usize, mut passed: impl FnMut(usize, u64)) -> Tower<'_> {
        let top = self.top.load(Relaxed) as usize;
        let mut tower = self.tower(self.head, LEVELS);
        for level in (lowest..top.max(lowest)).rev() {
            loop {
                let next = tower.next(level);
                if next == 0 {
                    break;
                }
                let next = self.tower(next, level + 1);
                if next.key() >= key {
                    break;
                }
                tower = next;
            }
            passed(level, tower.at);
        }
        tower
    }

    /// Adds the tower of `key`, whose node is at `node`, if it has one; without room it has not.
    pub(super) fn add(&self, worker: WorkerId, key: u64, node: u64) {
        let height = self.height(key);
        if height == 0 {
            return;
        }
        let Ok(at) = self.heap.take(worker, class_of(height)) else {
            return;
        };
        let _changing = lock(&self.changing);
        let top = self.top.load(Relaxed).max(height as u64);
        self.top.store(top, Relaxed);
        let mut before = [self.head; LEVELS];
        self.descend(key, 0, |level, tower| before[level] = tower);
        let next = |level| self.tower(before[level], level + 1).next(level);
        let links: [u64; LEVELS] = std::array::from_fn(|level| match level < height {
            true => next(level),
            false => 0,
        });
        self.write(at, key, node, &links[..height]);
        for (level, &before) in before[..height].iter().enumerate() {
            self.link(before, level, at);
        }
    }

    /// Takes the tower of `key` away, if it has one.
    pub(super) fn remove(&self, worker: WorkerId, key: u64) {
        let height = self.height(key);
        if height == 0 {
            return;
        }
        let changing = lock(&self.changing);
        let mut before = [self.head; LEVELS];
        self.descend(key, 0, |level, tower| before[level] = tower);
        let at = self.tower(before[0], 1).next(0);
        if at == 0 || self.tower(at, 0).key() != key {
            return;
        }
        let tower = self.tower(at, height);
        for (level, &before) in before[..height].iter().enumerate().rev() {
            self.link(before, level, tower.next(level));
        }
        drop(changing);
        self.heap.retire(worker, at);
    }

    fn link(&self, from: u64, level: usize, to: u64) {
        let tower = self.tower(from, level + 1);
        self.heap.pm().store(&tower.words[HEADER + level], to);
    }

    /// The keys and nodes of all, in order.
    pub(super) fn all(&self) -> impl Iterator<Item = (u64, u64)> {
        let first = self.tower(self.head, 1).next(0);
        let tower = |at: u64| (at != 0).then(|| self.tower(at, 1));
        let towers = std::iter::successors(tower(first), move |last| tower(last.next(0)));
        towers.map(|tower| (tower.key(), tower.node()))
    }
}
