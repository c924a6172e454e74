//! One node: its words, and what a reader may make of them while a writer is at them.
//!
//! ```text
//! word 0        leftmost child's address (0 in a leaf) | level in the low six bits, 0 for a leaf
//! word 1        the right sibling's address, or 0; of a node that is gone, the one to go on with
//! word 2        the fence: every key here is below it, END for none; 0 where the node is gone
//! word 3        the lock: see below; never flushed on purpose
//! word 4 + 2i   key of slot i
//! word 5 + 2i   value (leaf) or child's address (inner) of slot i
//! ```
//!
//! **Which slots hold.** Keys stand in order from slot 0 on. A slot is *empty* if its key is not
//! below the fence, and then so are all behind it. A slot that is not empty *holds* unless the slot
//! to its right has the same key; then it is a leftover, and the right one holds. So one store of
//! one key moves an entry from a slot to its neighbour, in either direction:
//!
//! * right, to make room: the empty or leftover slot `i + 1` gets the value of `i`, then its key.
//!   With that store slot `i + 1` holds and slot `i` does not.
//! * left, to close a gap: slot `i` gets the key of `i + 1`, with which it ceases to hold; then the
//!   value; and holds again when slot `i + 1` gets the key of `i + 2`.
//!
//! Key and value of a slot lie on one line, which keeps their order; between lines, the line that
//! was left is flushed and fenced before the next is begun. So every prefix of these stores is a
//! node with the old entries or with the new ones. (FAST-FAIR tells leftovers by equal pointers of
//! neighbours, which loses keys whose values are equal.)
//!
//! **A node that is gone** was taken out of its level: its left sibling has its range. Its fence is
//! below every key, so that whoever is still at it goes on to its sibling, which is to the left.
//!
//! **The lock** ([`latch`]): its mode says in which direction entries move. A reader
//! that saw the work of one writer in progress reads slots in that direction and so meets each
//! entry at least once. A reader never waits.

use crate::latch::{self, Held, Latch, free};
use crate::ordered::END;
use crate::sync::Wait;
use nyx_media::pmem::{LINE_WORDS, Pmem, Word};
use std::sync::atomic::Ordering::{Acquire, Release};

const LINK: usize = 0;
const SIBLING: usize = 1;
const FENCE: usize = 2;
const LOCK: usize = 3;
/// Words before the first slot.
const HEADER: usize = 4;

/// The fence of a node that is gone.
pub(super) const GONE: u64 = 0;

/// Nodes begin at cache lines, so that these bits of an address are zero.
const LEVEL_MASK: u64 = 0x3f;

/// Words of a node with `slots` slots.
pub(super) const fn words(slots: usize) -> usize {
    HEADER + 2 * slots
}

/// What a writer does to the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Entries move to the right, or stay and one value changes.
    Right = 1,
    /// Entries move to the left.
    Left = 2,
}

/// The words of a node. Copies are cheap.
#[derive(Debug)]
pub(super) struct Node<'p, P> {
    pub(super) pm: &'p P,
    pub(super) at: u64,
    words: &'p [Word],
}

impl<P> Clone for Node<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Node<'_, P> {}

/// What a lock word says to a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    lock: latch::Seen,
    /// What is being done, if anything.
    pub(super) mode: Option<Mode>,
}

impl<'p, P: Pmem> Node<'p, P> {
    #[inline]
    pub(super) fn new(pm: &'p P, at: u64, words: &'p [Word]) -> Self {
        Node { pm, at, words }
    }

    #[inline]
    pub(super) fn level(&self) -> u8 {
        (self.words[LINK].load(Acquire) & LEVEL_MASK) as u8
    }

    #[inline]
    pub(super) fn leftmost(&self) -> u64 {
        self.words[LINK].load(Acquire) & !LEVEL_MASK
    }

    #[inline]
    pub(super) fn sibling(&self) -> u64 {
        self.words[SIBLING].load(Acquire)
    }

    #[inline]
    pub(super) fn fence_key(&self) -> u64 {
        self.words[FENCE].load(Acquire)
    }

    /// The fence, and the address to go on at where `key` is at or above it: the right sibling's,
    /// or, of a node that is gone, that of the node that has its range.
    ///
    /// Nobody goes there before the node was seen to be the same. Beside a writer who takes the
    /// last node of a level out, the fence may be the old one, and the address already none.
    #[inline]
    pub(super) fn right_of(&self, key: u64) -> (u64, Option<u64>) {
        // The sibling is stored before the fence, so that a fence that sends to the right finds it.
        let fence = self.fence_key();
        let is_here = key < fence || fence == END;
        (fence, (!is_here).then(|| self.sibling()))
    }

    /// Whether it was taken out of its level.
    pub(super) fn is_gone(&self) -> bool {
        self.fence_key() == GONE
    }

    #[inline]
    pub(super) fn slots(&self) -> usize {
        (self.words.len() - HEADER) / 2
    }

    /// The key of a slot; END behind the last.
    #[inline]
    pub(super) fn key(&self, slot: usize) -> u64 {
        match self.words.get(HEADER + 2 * slot) {
            Some(word) => word.load(Acquire),
            None => END,
        }
    }

    #[inline]
    pub(super) fn value(&self, slot: usize) -> u64 {
        self.words[HEADER + 2 * slot + 1].load(Acquire)
    }

    /// The entry of a slot, if it holds. Of a slot that changes meanwhile it is the entry before or
    /// after, or none where the entry has moved on: the value is read between two looks at the key.
    #[inline]
    pub(super) fn entry(&self, slot: usize) -> Option<(u64, u64)> {
        let key = self.key(slot);
        let value = self.value(slot);
        let holds = self.key(slot) == key && self.key(slot + 1) != key;
        holds.then_some((key, value))
    }

    fn header(&self) -> &'p [Word] {
        &self.words[..HEADER]
    }

    /// All slots, as key and value.
    #[inline]
    fn pairs(&self) -> &'p [[Word; 2]] {
        self.words[HEADER..].as_chunks().0
    }

    fn slot(&self, slot: usize) -> &'p [Word] {
        &self.words[HEADER + 2 * slot..][..2]
    }
}

/// Reading.
impl<'p, P: Pmem> Node<'p, P> {
    fn latch(&self) -> Latch<'p, P> {
        Latch {
            pm: self.pm,
            lock: &self.words[LOCK],
            node: self.words,
        }
    }

    /// Looks at the lock, before and after.
    #[inline]
    pub(super) fn look(&self, generation: u64) -> Seen {
        let lock = self.latch().look(generation);
        let mode = match lock.mode() {
            0 => None,
            1 => Some(Mode::Right),
            _ => Some(Mode::Left),
        };
        Seen { lock, mode }
    }

    /// Whether what was read since `seen` is to be believed: at most one writer was at it.
    #[inline]
    pub(super) fn is_same(&self, seen: Seen) -> bool {
        self.latch().is_same(seen.lock)
    }

    /// Where a writer is at it, makes durable what was read: nobody is told of what a crash could
    /// undo.
    #[inline]
    pub(super) fn make_durable(&self, seen: Seen) {
        self.latch().make_durable(seen.lock);
    }

    /// The fence and the sibling when no writer is at it: waits for one who is.
    pub(super) fn settled(&self, generation: u64) -> (u64, u64) {
        let mut wait = Wait::new();
        loop {
            let seen = self.look(generation);
            let found = (self.fence_key(), self.sibling());
            if seen.mode.is_none() && self.is_same(seen) {
                return found;
            }
            wait.turn();
        }
    }

    /// The value of `key` (below the fence) in a leaf.
    pub(super) fn find(&self, key: u64, mode: Option<Mode>) -> Option<u64> {
        let slots = self.slots();
        if mode == Some(Mode::Left) {
            return (0..slots).rev().find_map(|slot| self.is_it(slot, key));
        }
        for (slot, pair) in self.pairs().iter().enumerate() {
            let at = pair[0].load(Acquire);
            if at < key {
                continue;
            }
            if at > key {
                return None;
            }
            if let Some(value) = self.is_it(slot, key) {
                return Some(value);
            }
        }
        None
    }

    #[inline]
    fn is_it(&self, slot: usize, key: u64) -> Option<u64> {
        let (found, value) = self.entry(slot)?;
        (found == key).then_some(value)
    }

    /// The child of an inner node that `key` (below the fence) leads to: that of the greatest key
    /// not above it, or one to its left. Also that greatest key; 0 for the leftmost child.
    #[inline]
    pub(super) fn child(&self, key: u64, mode: Option<Mode>) -> (u64, u64) {
        self.floor(key, mode).unwrap_or((0, self.leftmost()))
    }

    /// The entry with the greatest key not above `key` (below the fence), or one to its left.
    pub(super) fn floor(&self, key: u64, mode: Option<Mode>) -> Option<(u64, u64)> {
        if mode == Some(Mode::Left) {
            let mut entries = (0..self.slots()).rev().filter_map(|slot| self.entry(slot));
            return entries.find(|&(at, _)| at <= key);
        }
        let keys = self.pairs().iter().map(|pair| pair[0].load(Acquire));
        let mut slot = keys.take_while(|&at| at <= key).count();
        // The last of them holds, unless it has just moved on; then one to its left does.
        while slot > 0 {
            slot -= 1;
            let entry = self.entry(slot).filter(|&(at, _)| at <= key);
            if entry.is_some() {
                return entry;
            }
        }
        None
    }

    /// Puts the entries with keys from `from` to below the fence into `into`, in order, and tells
    /// the fence.
    pub(super) fn collect(&self, from: u64, mode: Option<Mode>, into: &mut Vec<(u64, u64)>) -> u64 {
        let fence = self.fence_key();
        into.clear();
        if mode.is_none() {
            self.collect_still(from, fence, into);
            return fence;
        }
        let push = |slot| {
            let entry = self.entry(slot);
            let entry = entry.filter(|&(key, _)| key >= from && key < fence);
            // An entry that moves may be met twice.
            into.extend(entry.filter(|(key, _)| into.last().is_none_or(|(last, _)| last != key)));
        };
        let slots = 0..self.slots();
        if mode == Some(Mode::Left) {
            slots.rev().for_each(push);
            into.reverse();
        } else {
            slots.for_each(push);
        }
        fence
    }

    /// The same where nobody is at it: of two slots with the same key the right one is taken.
    fn collect_still(&self, from: u64, fence: u64, into: &mut Vec<(u64, u64)>) {
        for pair in self.pairs() {
            let key = pair[0].load(Acquire);
            if key >= fence {
                return;
            }
            if key < from {
                continue;
            }
            let entry = (key, pair[1].load(Acquire));
            match into.last_mut().filter(|last| last.0 == key) {
                Some(leftover) => *leftover = entry,
                None => into.push(entry),
            }
        }
    }
}

/// Whether this slot is the first of its cache line.
fn begins_line(slot: usize) -> bool {
    (HEADER + 2 * slot).is_multiple_of(LINE_WORDS)
}

/// A node that this thread may change. Dropping it lets others.
#[derive(Debug)]
pub(super) struct Locked<'p, P: Pmem> {
    node: Node<'p, P>,
    held: Held<'p>,
}

impl<'p, P: Pmem> std::ops::Deref for Locked<'p, P> {
    type Target = Node<'p, P>;

    #[inline]
    fn deref(&self) -> &Node<'p, P> {
        &self.node
    }
}

impl<'p, P: Pmem> Node<'p, P> {
    /// Waits for other writers, then keeps them out and says to readers what is going to be done.
    pub(super) fn lock(self, generation: u64, mode: Mode) -> Locked<'p, P> {
        let held = self.latch().hold(generation, mode as u64);
        Locked { node: self, held }
    }
}

/// Where a key is or would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    /// The slot that holds it, or that it belongs into.
    pub(super) slot: usize,
    /// Whether it is there.
    pub(super) found: bool,
    /// How many slots hold or are leftovers.
    pub(super) used: usize,
}

/// The slot of an entry that a crash left in two slots: the left one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leftover(pub(super) usize);

/// Changing. The order of stores, flushes and fences in here is what a crash is survived by.
impl<'p, P: Pmem> Locked<'p, P> {
    /// The same lock, held for a change in the other direction.
    pub(super) fn turn(mut self, generation: u64, mode: Mode) -> Locked<'p, P> {
        self.held.turn(generation, mode as u64);
        self
    }

    /// Where `key` is or belongs. The slots of a node with a leftover are told when it is gone.
    pub(super) fn spot(&self, key: u64) -> Result<Spot, Leftover> {
        let fence = self.fence_key();
        let (mut slot, mut used, mut last) = (0, 0, END);
        let mut found = false;
        for pair in self.pairs() {
            let at = pair[0].load(Acquire);
            if at >= fence {
                break;
            }
            if at == last {
                return Err(Leftover(used - 1));
            }
            slot += usize::from(at < key);
            found |= at == key;
            (last, used) = (at, used + 1);
        }
        Ok(Spot { slot, found, used })
    }

    /// Puts a new entry into its slot; there is room for it. Mode [`Mode::Right`].
    pub(super) fn insert(&self, spot: Spot, key: u64, value: u64) {
        for slot in (spot.slot..spot.used).rev() {
            self.fill(slot + 1, self.key(slot), self.value(slot));
            if begins_line(slot + 1) {
                self.pm.persist(self.slot(slot + 1));
            }
        }
        self.fill(spot.slot, key, value);
        self.pm.persist(self.slot(spot.slot));
    }

    /// Value first: the key makes the slot hold.
    fn fill(&self, slot: usize, key: u64, value: u64) {
        let words = self.slot(slot);
        self.pm.store(&words[1], value);
        self.pm.store(&words[0], key);
    }

    /// Changes the value of a slot that holds.
    pub(super) fn update(&self, slot: usize, value: u64) {
        let words = self.slot(slot);
        self.pm.store(&words[1], value);
        self.pm.persist(words);
    }

    /// Takes the entry of a slot away, or a leftover. Mode [`Mode::Left`].
    pub(super) fn remove(&self, slot: usize) {
        let fence = self.fence_key();
        for slot in slot..self.slots() {
            let (words, next) = (self.slot(slot), self.key(slot + 1));
            self.pm.store(&words[0], next);
            if next >= fence {
                self.pm.persist(words);
                return;
            }
            self.pm.store(&words[1], self.value(slot + 1));
            if begins_line(slot + 1) {
                self.pm.persist(words);
            }
        }
    }

    /// Makes the right part, which lies in `right` already, that node's. Mode [`Mode::Right`].
    pub(super) fn cede(&self, right: u64, fence: u64) {
        self.pm.store(&self.words[SIBLING], right);
        self.pm.store(&self.words[FENCE], fence);
        self.pm.persist(self.header());
    }

    /// Takes over the range of `right`, its sibling, which holds nothing and is then gone; `used`
    /// slots of its own hold. Mode [`Mode::Right`].
    pub(super) fn absorb(mut self, right: &Locked<'_, P>, used: usize, generation: u64) {
        self.wipe(used);
        let (fence, beyond) = (right.fence_key(), right.sibling());
        self.pm.store(&self.words[FENCE], fence);
        // A reader that saw the old fence and the new sibling would be too far right. This lets it
        // notice.
        self = self.turn(generation, Mode::Right);
        self.lead_to(beyond);
        right.pm.store(&right.words[SIBLING], self.at);
        right.pm.store(&right.words[FENCE], GONE);
    }

    /// Clears the keys at or above the fence that splits left in the slots behind `used`, which
    /// would hold when the fence rises.
    fn wipe(&self, used: usize) {
        let stale = self.words[HEADER + 2 * used..].chunks_exact(2);
        let mut stale = stale
            .filter(|words| words[0].load(Acquire) != END)
            .peekable();
        if stale.peek().is_some() {
            stale.for_each(|words| self.pm.store(&words[0], END));
            self.pm.persist(&self.words[HEADER + 2 * used..]);
        }
    }

    /// Makes `beyond` the sibling, leaving out what is between.
    pub(super) fn lead_to(&self, beyond: u64) {
        self.pm.store(&self.words[SIBLING], beyond);
        self.pm.persist(self.header());
    }
}

/// Writes a node that nobody knows of yet, durably but for the fence; taken by `generation` until
/// [`Node::release`].
pub(super) struct Draft<'a> {
    pub(super) level: u8,
    pub(super) leftmost: u64,
    pub(super) sibling: u64,
    pub(super) fence: u64,
    pub(super) entries: &'a [(u64, u64)],
}

impl<P: Pmem> Node<'_, P> {
    pub(super) fn write(&self, draft: &Draft<'_>, generation: u64) {
        let header = [
            draft.leftmost | u64::from(draft.level),
            draft.sibling,
            draft.fence,
        ];
        for (word, value) in self.words.iter().zip(header) {
            self.pm.store(word, value);
        }
        let taken = free(generation, 0) | Mode::Right as u64;
        self.words[LOCK].store(taken, Release);
        let rest = std::iter::repeat(&(END, 0));
        let slots = self.words[HEADER..].chunks_exact(2);
        for (words, &(key, value)) in slots.zip(draft.entries.iter().chain(rest)) {
            self.pm.store(&words[0], key);
            self.pm.store(&words[1], value);
        }
        self.pm.persist(self.words);
    }

    /// Lets others at a node that was drafted.
    pub(super) fn release(&self, generation: u64) {
        self.words[LOCK].store(free(generation, 1), Release);
    }
}
