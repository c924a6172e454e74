//! Which slot holds which line, and in what state: a table with a hash, and three lists.
//!
//! Each slot is in one of the lists: *free*, *clean* or *dirty*; the latter two are in order of
//! their last use. A slot that a request in flight counts on is *pinned*; it keeps its line.
//!
//! What it never does: touch a device, or allocate after it was made.
//!
//! *Thread safety*: one thread's. *Invariants*: a slot has a line exactly where it is in a list
//! other than the free one; it is in the dirty list exactly where a block of it is dirty; dirty
//! blocks are valid.

use crate::geometry::Mask;

/// No slot.
const NONE: u32 = u32::MAX;
/// Least recently used lines that are looked at for one that nobody counts on.
const TRIED: usize = 16;

/// DRAM that a line takes at most, in bytes: a slot, its heads of chains, and its places in the
/// lists of what is to be made durable or published.
pub const LINE_DRAM_BYTES: usize = 64;

/// What the fast device may say of a slot after a crash at this moment, beside "free".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Told {
    /// Nothing.
    #[default]
    Free,
    /// That it holds its line, clean.
    Clean,
    /// That these blocks are dirty.
    Dirty(Mask),
}

/// A slot.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Its line, unless it is free.
    pub line: u32,
    chain: u32,
    before: u32,
    after: u32,
    /// Blocks that it has.
    pub valid: Mask,
    /// Blocks that only it has.
    pub dirty: Mask,
    /// Those of them that were written to the deep device as they are, or are about to be.
    pub cleaning: Mask,
    /// Requests that count on it.
    pub pins: u16,
    /// What the fast device says.
    pub told: Told,
    /// It is in the list of those whose bytes are to be made durable by the next flush.
    pub is_touched: bool,
    /// It is in the list of those that are to be told of as clean.
    pub is_fresh: bool,
    list: List,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    Free = 0,
    Clean = 1,
    Dirty = 2,
}

/// The ends of a list.
#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
    count: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Lines {
    slots: Box<[Slot]>,
    heads: Box<[u32]>,
    lists: [Ends; 3],
}

impl Lines {
    /// Slots that all are free.
    pub fn new(slots: u32) -> Lines {
        let slot = Slot {
            line: 0,
            chain: NONE,
            before: NONE,
            after: NONE,
            valid: 0,
            dirty: 0,
            cleaning: 0,
            pins: 0,
            told: Told::Free,
            is_touched: false,
            is_fresh: false,
            list: List::Free,
        };
        let empty = Ends {
            first: NONE,
            last: NONE,
            count: 0,
        };
        let heads = (slots as usize).next_power_of_two();
        let mut lines = Lines {
            slots: vec![slot; slots as usize].into(),
            heads: vec![NONE; heads].into(),
            lists: [empty; 3],
        };
        for slot in (0..slots).rev() {
            lines.push_front(List::Free, slot);
        }
        lines
    }

    /// A slot's state.
    pub fn slot(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    /// The same, to be changed. Who changes what is dirty calls [`Self::sort`].
    pub fn slot_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    /// The slot of a line.
    pub fn find(&self, line: u32) -> Option<u32> {
        let mut at = self.heads[self.head(line)];
        while at != NONE {
            let slot = self.slot(at);
            if slot.line == line {
                return Some(at);
            }
            at = slot.chain;
        }
        None
    }

    /// A free slot, taken for a line that has none.
    pub fn take(&mut self, line: u32) -> Option<u32> {
        let slot = self.lists[List::Free as usize].first;
        (slot != NONE).then(|| {
            self.put(slot, line);
            slot
        })
    }

    /// The clean line to give up: of the least recently used one that nobody counts on.
    pub fn victim(&self) -> Option<u32> {
        let last = self.lists[List::Clean as usize].last;
        let mut at = last;
        for _ in 0..TRIED {
            if at == NONE {
                return None;
            }
            if self.slot(at).pins == 0 {
                return Some(at);
            }
            at = self.slot(at).before;
        }
        None
    }

    /// The least recently used dirty lines, last first.
    pub fn oldest_dirty(&self) -> impl Iterator<Item = u32> + '_ {
        let mut at = self.lists[List::Dirty as usize].last;
        std::iter::from_fn(move || {
            let slot = at;
            (slot != NONE).then(|| {
                at = self.slot(slot).before;
                slot
            })
        })
    }

    /// Gives a slot's line up.
    pub fn free(&mut self, slot: u32) {
        let Slot { line, pins, .. } = *self.slot(slot);
        assert_eq!(pins, 0, "slot {slot} is counted on");
        let head = self.head(line);
        if self.heads[head] == slot {
            self.heads[head] = self.slot(slot).chain;
        } else {
            let mut at = self.heads[head];
            while self.slot(at).chain != slot {
                at = self.slot(at).chain;
            }
            self.slot_mut(at).chain = self.slot(slot).chain;
        }
        self.unlink(slot);
        let state = self.slot_mut(slot);
        (state.valid, state.dirty, state.cleaning) = (0, 0, 0);
        self.push_front(List::Free, slot);
    }

    /// It was used just now: it is the last of its list to go.
    pub fn used(&mut self, slot: u32) {
        let list = self.slot(slot).list;
        self.unlink(slot);
        self.push_front(list, slot);
    }

    /// Puts a slot into the list that its dirty blocks say, as the most recently used.
    pub fn sort(&mut self, slot: u32) {
        let list = match self.slot(slot).dirty {
            0 => List::Clean,
            _ => List::Dirty,
        };
        self.unlink(slot);
        self.push_front(list, slot);
    }

    /// Lines that are cached.
    pub fn used_count(&self) -> u32 {
        self.slots.len() as u32 - self.lists[List::Free as usize].count
    }

    /// Lines with dirty blocks.
    pub fn dirty_count(&self) -> u32 {
        self.lists[List::Dirty as usize].count
    }

    /// Slots.
    pub fn count(&self) -> u32 {
        self.slots.len() as u32
    }

    /// DRAM that the table takes, in bytes.
    pub fn dram_bytes(&self) -> usize {
        size_of_val(&*self.slots) + size_of_val(&*self.heads)
    }

    /// Gives a free slot to a line.
    pub fn put(&mut self, slot: u32, line: u32) {
        debug_assert!(self.find(line).is_none(), "line {line} is there already");
        assert_eq!(self.slot(slot).list, List::Free, "slot {slot} is in use");
        let head = self.head(line);
        let chain = std::mem::replace(&mut self.heads[head], slot);
        self.unlink(slot);
        let state = self.slot_mut(slot);
        (state.line, state.chain) = (line, chain);
        self.push_front(List::Clean, slot);
    }

    /// Neighbours, of which there are many, go to different chains.
    fn head(&self, line: u32) -> usize {
        line.wrapping_mul(0x9e37_79b1) as usize >> 7 & (self.heads.len() - 1)
    }

    fn unlink(&mut self, slot: u32) {
        let Slot {
            before,
            after,
            list,
            ..
        } = *self.slot(slot);
        match before {
            NONE => self.lists[list as usize].first = after,
            before => self.slot_mut(before).after = after,
        }
        match after {
            NONE => self.lists[list as usize].last = before,
            after => self.slot_mut(after).before = before,
        }
        self.lists[list as usize].count -= 1;
    }

    fn push_front(&mut self, list: List, slot: u32) {
        let ends = &mut self.lists[list as usize];
        let after = std::mem::replace(&mut ends.first, slot);
        if after == NONE {
            ends.last = slot;
        }
        ends.count += 1;
        if after != NONE {
            self.slot_mut(after).before = slot;
        }
        let state = self.slot_mut(slot);
        (state.list, state.before, state.after) = (list, NONE, after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, VecDeque};

    #[test]
    fn a_line_takes_as_much_memory_as_is_told() {
        let lines = Lines::new(100_000);
        // Two lists of the cache's may hold each slot, in vectors that have grown by doubling.
        let lists = 2 * 2 * size_of::<u32>();
        let each = lines.dram_bytes() as f64 / 100_000.0 + lists as f64;
        assert!(each <= LINE_DRAM_BYTES as f64, "{each} bytes");
    }

    proptest! {
        /// Against a map and a queue.
        #[test]
        fn it_finds_what_it_took_and_gives_up_the_oldest(
            ops in proptest::collection::vec((0u8..4, 0u32..20), 0..200)
        ) {
            let mut lines = Lines::new(6);
            let mut model: BTreeMap<u32, u32> = BTreeMap::new();
            let mut order: VecDeque<u32> = VecDeque::new();
            for (op, line) in ops {
                let found = lines.find(line);
                prop_assert_eq!(found, model.get(&line).copied());
                match (op, found) {
                    (0, Some(slot)) => {
                        lines.used(slot);
                        order.retain(|&other| other != slot);
                        order.push_front(slot);
                    }
                    (1, Some(slot)) => {
                        lines.free(slot);
                        model.remove(&line);
                        order.retain(|&other| other != slot);
                    }
                    (_, None) => {
                        if model.len() == 6 {
                            let victim = lines.victim().expect("nobody counts on any");
                            prop_assert_eq!(Some(victim), order.pop_back());
                            model.retain(|_, slot| *slot != victim);
                            lines.free(victim);
                        }
                        let slot = lines.take(line).expect("one is free");
                        model.insert(line, slot);
                        order.push_front(slot);
                    }
                    (_, Some(slot)) => {
                        let dirty = lines.slot(slot).dirty ^ 1;
                        let state = lines.slot_mut(slot);
                        (state.dirty, state.valid) = (dirty, 1);
                        lines.sort(slot);
                        prop_assert_eq!(lines.oldest_dirty().any(|at| at == slot), dirty == 1);
                        let state = lines.slot_mut(slot);
                        state.dirty = 0;
                        lines.sort(slot);
                        order.retain(|&other| other != slot);
                        order.push_front(slot);
                    }
                }
                prop_assert_eq!(lines.used_count() as usize, model.len());
                prop_assert_eq!(lines.dirty_count(), 0);
            }
        }
    }
}
