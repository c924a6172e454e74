//! One set of the cache: two cache lines with a few entries, and which of them to give up.
//!
//! ```text
//! word 0        the version: odd while the set is being changed
//! word 1        LRU: for each rank, most recent first, the way, four bits each, exclusive-or the
//!               rank. LFU: for each way a count, eight bits each
//! word 2 + 2i   the key of way i, plus one; 0 for none
//! word 3 + 2i   its value
//! ```
//!
//! All zero is an empty set. Whoever changes entries holds the set's lock, which is elsewhere;
//! readers look at the version before and after. Word 1 is changed by readers too, at their
//! convenience: what was done to it since they read it is forgotten.

use super::Keep;
use nyx_media::Pmem;
use nyx_media::pmem::{Dram, Word};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Entries of a set.
pub(super) const WAYS: usize = 7;
/// Bytes of a set.
pub(super) const SET_BYTES: u64 = 128;
const WORDS: usize = SET_BYTES as usize / 8;

const VERSION: usize = 0;
const RANKS: usize = 1;
const ENTRIES: usize = 2;
/// Places are taken in their order: while the last one's key is zero there is room.
const LAST_KEY: usize = ENTRIES + 2 * (WAYS - 1);

/// Ways in the order 0, 1, 2..., most recent first.
const IN_ORDER: u64 = 0x0654_3210;
/// A count goes no higher.
const COUNT_MAX: u64 = 15;

/// The words of a set. Copies are cheap.
#[derive(Clone, Copy)]
pub(super) struct Set<'c>(&'c [Word]);

/// What a look at a set finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// The way and the value.
    Hit(usize, u64),
    /// The key is not there.
    Miss {
        /// The version that this is of.
        version: u64,
        /// Whether a place is free, as far as the last of them tells.
        has_room: bool,
    },
    /// It is being changed.
    Busy,
}

impl Look {
    /// Whether it was seen that a place is free.
    #[inline]
    pub(super) fn has_room(self) -> bool {
        matches!(self, Look::Miss { has_room: true, .. })
    }
}

impl<'c> Set<'c> {
    #[inline]
    pub(super) fn new(memory: &'c Dram, at: u64) -> Set<'c> {
        Set(memory.words(at * SET_BYTES, WORDS))
    }

    #[inline]
    pub(super) fn version(self) -> u64 {
        self.0[VERSION].load(Acquire)
    }

    fn keys(self) -> impl Iterator<Item = u64> {
        self.0[ENTRIES..]
            .iter()
            .step_by(2)
            .map(|key| key.load(Acquire))
    }

    fn way_of(self, key: u64) -> Option<usize> {
        self.keys().position(|held| held == key + 1)
    }

    fn value(self, way: usize) -> &'c Word {
        &self.0[ENTRIES + 2 * way + 1]
    }

    /// Looks for `key`.
    #[inline]
    pub(super) fn look(self, key: u64) -> Look {
        let version = self.version();
        if version & 1 != 0 {
            return Look::Busy;
        }
        let found = self.way_of(key);
        let value = found.map(|way| self.value(way).load(Acquire));
        match (found, value) {
            _ if self.version() != version => Look::Busy,
            (Some(way), Some(value)) => Look::Hit(way, value),
            _ => Look::Miss {
                version,
                has_room: self.0[LAST_KEY].load(Relaxed) == 0,
            },
        }
    }

    /// The entry of a way was of use.
    #[inline]
    pub(super) fn touch(self, way: usize, keep: Keep) {
        let ranks = self.0[RANKS].load(Relaxed);
        let now = match keep {
            Keep::Lru => to_front(ranks, way),
            Keep::Lfu => counted(ranks, way),
        };
        if now != ranks {
            self.0[RANKS].store(now, Relaxed);
        }
    }

    /// Changes entries. The lock is held.
    fn change(self, change: impl FnOnce()) {
        let version = self.0[VERSION].load(Relaxed);
        self.0[VERSION].store(version + 1, Relaxed);
        change();
        self.0[VERSION].store(version + 2, Release);
    }

    /// `key` changed in the index: its entry, if there is one, gets the value or goes, and nobody
    /// takes what was read before for new. The lock is held.
    pub(super) fn renew(self, key: u64, value: Option<u64>) {
        let way = self.way_of(key);
        self.change(|| match (way, value) {
            (Some(way), Some(value)) => self.value(way).store(value, Release),
            (Some(way), None) => self.0[ENTRIES + 2 * way].store(0, Release),
            (None, _) => {}
        });
    }

    /// Gives `key` an entry, in the place of one that is free or of least use. The lock is held.
    pub(super) fn fill(self, key: u64, value: u64, keep: Keep) {
        let free = self.keys().position(|held| held == 0);
        let way = self.way_of(key).or(free);
        let way = way.unwrap_or_else(|| self.victim(keep));
        self.change(|| {
            self.value(way).store(value, Release);
            self.0[ENTRIES + 2 * way].store(key + 1, Release);
        });
        let ranks = self.0[RANKS].load(Relaxed);
        let now = match keep {
            Keep::Lru => to_front(ranks, way),
            // New ones have to prove themselves.
            Keep::Lfu => ranks & !(0xff << (8 * way)),
        };
        self.0[RANKS].store(now, Relaxed);
    }

    /// The way to give up.
    fn victim(self, keep: Keep) -> usize {
        let ranks = self.0[RANKS].load(Relaxed);
        match keep {
            Keep::Lru => way_at(ranks, WAYS - 1),
            Keep::Lfu => {
                let count = |way: &usize| ranks >> (8 * way) & 0xff;
                let least = (0..WAYS).min_by_key(count).expect("there are ways");
                // What was of use long ago is of less use now.
                let aged = count(&least) * 0x0001_0101_0101_0101;
                self.0[RANKS].store(ranks - aged, Relaxed);
                least
            }
        }
    }

    /// How many entries there are.
    pub(super) fn len(self) -> usize {
        self.keys().filter(|&key| key != 0).count()
    }
}

/// The way at a rank.
#[inline]
fn way_at(ranks: u64, rank: usize) -> usize {
    ((ranks ^ IN_ORDER) >> (4 * rank) & 0xf) as usize
}

/// The same ranks with `way` as the most recent.
#[inline]
fn to_front(ranks: u64, way: usize) -> u64 {
    if way_at(ranks, 0) == way {
        return ranks;
    }
    let rank = (0..WAYS).find(|&rank| way_at(ranks, rank) == way);
    let below = 4 * rank.unwrap_or(WAYS - 1);
    let order = ranks ^ IN_ORDER;
    let younger = order & ((1 << below) - 1);
    let older = order & !((1 << (below + 4)) - 1);
    (older | younger << 4 | way as u64) ^ IN_ORDER
}

/// The same counts with one more for `way`.
#[inline]
fn counted(counts: u64, way: usize) -> u64 {
    match counts >> (8 * way) & 0xff {
        COUNT_MAX.. => counts,
        _ => counts + (1 << (8 * way)),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_those_of_a_list() {
        let mut rng = nyx_base::Rng::with_seed(1);
        let mut list: Vec<usize> = (0..WAYS).collect();
        let mut ranks = 0;
        for _ in 0..1000 {
            let way = rng.usize(0..WAYS);
            list.retain(|&other| other != way);
            list.insert(0, way);
            ranks = to_front(ranks, way);
            let found: Vec<usize> = (0..WAYS).map(|rank| way_at(ranks, rank)).collect();
            assert_eq!(found, list);
        }
    }

    #[test]
    fn the_least_recent_goes_or_the_least_used() {
        for (keep, expected) in [(Keep::Lru, 1), (Keep::Lfu, 3)] {
            let memory = Dram::new(4096).expect("memory");
            let set = Set::new(&memory, 3);
            (0..WAYS as u64).for_each(|key| set.fill(key, key * 10, keep));
            for key in [0, 0, 1, 1, 1, 2, 2, 3, 4, 4, 5, 5, 6, 6, 2, 0] {
                match set.look(key) {
                    Look::Hit(way, value) if value == key * 10 => set.touch(way, keep),
                    other => panic!("{key}: {other:?}"),
                }
            }
            set.fill(100, 1, keep);
            assert!(matches!(set.look(expected), Look::Miss { .. }), "{keep:?}");
            assert_eq!(set.len(), WAYS);
            set.renew(100, Some(2));
            assert!(matches!(set.look(100), Look::Hit(_, 2)));
            set.renew(100, None);
            assert_eq!(set.len(), WAYS - 1);
        }
    }
}
