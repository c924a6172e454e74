//! Eviction policies: which segments go, and which of their items stay.
//!
//! A policy makes a [`Plan`]; the reclaimer carries it out with one mechanism for all: items that
//! stay are written again at the young end, the others leave the index, the segments are freed.
//!
//! * `fifo`: the oldest segment, whole.
//! * `lru`: CLOCK, an approximation: items of the oldest segment that were accessed since they were
//!   written are written again once, as if new.
//! * `lfu`: the oldest segment, but its items that were used more often than half of a sample of
//!   the store stay; their counters are halved, so that old fame fades.
//! * `s3-fifo` (SOSP'23, Algorithm 1): the small queue has a tenth of the segments. Its items that
//!   were used at least twice go to the main queue, the rest is remembered in the ghost queue.
//!   Items of the main queue that were used stay, with one use less.
//! * `merge` (Segcache, NSDI'21, section 3.5): up to four successive segments of one class of
//!   expiry become one that keeps the items with the most uses per byte; their counters are halved.
//!
//! Whatever a policy wants to keep, at most three quarters of a segment stay (`merge`: of each four
//! segments one), so that every plan frees memory: a segment full of hot items loses some of them.
//!
//! What it never does: move an item, touch the index, draw a random number.

use crate::config::{Eviction, StoreConfig};
use crate::header::State;
use crate::items::Items;
use crate::segment::Queue;
use crate::space::{self, Space};
use crate::walk::Walk;
use arrayvec::ArrayVec;
use nyx_tier::Lane;

/// How many segments `merge` makes one of (Segcache section 3.5).
const MERGE_SEGMENTS: usize = 4;
/// A plan keeps at most this share of what it takes, in eighths.
const KEEP_EIGHTHS: u64 = 6;
/// The small queue's share of the segments is one in this many (SOSP'23 section 4: 10 %).
const SMALL_ONE_IN: u32 = 10;
/// How many uses take an item from the small to the main queue.
const PROMOTE_USES: u8 = 2;
/// Segments that a sample looks at, and items of each.
const SAMPLE_SEGMENTS: u32 = 8;
const SAMPLE_ITEMS: usize = 64;
/// Counters go up to here.
const USES_MOST: usize = 127;
/// Uses per byte are compared in powers of two; this many of them.
const SCORES: usize = 32;

/// What is to go.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The segments to empty, oldest first.
    pub(crate) victims: ArrayVec<u32, MERGE_SEGMENTS>,
    keep: Keep,
    /// Where items that stay are written to.
    pub(crate) into: Queue,
    /// Bytes that may still stay.
    keep_bytes: u64,
    /// Whether keys that go are remembered.
    pub(crate) remembers: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    All,
    Nothing,
    /// Items used more often than this; their counter after that.
    UsedMore(u8, Counter),
    /// Items of at least this score; their counters are halved.
    Score(u8),
}

/// What becomes of the counter of an item that stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counter {
    Zero,
    Less,
    Half,
}

impl StoreConfig {
    /// Where counters of uses stop: with a deep device they say what is to leave it, too.
    pub(crate) fn uses_most(&self) -> u8 {
        let least = u8::from(self.deep.is_some());
        self.eviction.uses_most().max(least)
    }
}

impl Eviction {
    /// Where the counter of uses stops.
    fn uses_most(self) -> u8 {
        match self {
            Eviction::Fifo => 0,
            Eviction::Lru => 1,
            // SOSP'23 section 4: two bits per object.
            Eviction::S3Fifo => 3,
            Eviction::Lfu | Eviction::Merge => USES_MOST as u8,
        }
    }

    /// The queue of an item that is written: that of the item which it replaces, if `old` says that
    /// there is one, else the small one, unless the key is remembered.
    #[inline]
    pub(crate) fn queue_for(
        self,
        old: impl FnOnce() -> Option<Queue>,
        is_remembered: impl FnOnce() -> bool,
    ) -> Queue {
        match self {
            Eviction::S3Fifo => old().unwrap_or_else(|| match is_remembered() {
                true => Queue::Main,
                false => Queue::Small,
            }),
            _ => Queue::Main,
        }
    }

    /// What to evict now; none where nothing is sealed.
    pub(crate) fn plan(
        self,
        items: &Items,
        space: &Space,
        lane: &mut Lane<'_>,
        cursor: u32,
    ) -> Option<Plan> {
        // The lock is given back before any item is looked at.
        let (queue, victims) = self.victims(items, &space.lock())?;
        let oldest = victims[0];
        let whole = u64::from(items.segments.live_bytes(oldest));
        let mut plan = Plan {
            victims,
            keep: Keep::Nothing,
            into: Queue::Main,
            keep_bytes: whole * KEEP_EIGHTHS / 8,
            remembers: false,
        };
        plan.keep = match (self, queue) {
            (Eviction::Fifo, _) => Keep::Nothing,
            (Eviction::Lru, _) => Keep::UsedMore(0, Counter::Zero),
            (Eviction::S3Fifo, Queue::Main | Queue::Deep) => Keep::UsedMore(0, Counter::Less),
            (Eviction::S3Fifo, Queue::Small) => {
                plan.remembers = true;
                Keep::UsedMore(PROMOTE_USES - 1, Counter::Zero)
            }
            (Eviction::Lfu, _) => Keep::UsedMore(median_uses(items, lane, cursor), Counter::Half),
            (Eviction::Merge, _) => {
                // One segment of values and its keys may stay of all of them, or less of fewer.
                plan.keep_bytes = plan.victims.iter().fold(0, |sum, &victim| {
                    sum + u64::from(items.segments.live_bytes(victim)) / MERGE_SEGMENTS as u64
                });
                Keep::Score(score_cutoff(items, lane, &plan.victims, plan.keep_bytes))
            }
        };
        Some(plan)
    }

    /// The queue to evict from and the segments to empty, oldest first.
    fn victims(
        self,
        items: &Items,
        space: &space::State,
    ) -> Option<(Queue, ArrayVec<u32, MERGE_SEGMENTS>)> {
        let queue = match self {
            Eviction::S3Fifo => next_queue(space),
            _ => Queue::Main,
        };
        let oldest = space.oldest(queue)?;
        let victims = match self {
            Eviction::Merge => successive(items, space, oldest),
            _ => [oldest].into_iter().collect(),
        };
        Some((queue, victims))
    }
}

impl Plan {
    /// Everything that lives stays: garbage is collected, or what has ended is freed.
    pub(crate) fn keep_all(items: &Items, victim: u32) -> Plan {
        Plan {
            victims: [victim].into_iter().collect(),
            keep: Keep::All,
            into: items.segments.at(victim).queue(),
            keep_bytes: u64::MAX,
            remembers: false,
        }
    }

    /// Everything goes.
    pub(crate) fn keep_nothing(victim: u32) -> Plan {
        Plan {
            victims: [victim].into_iter().collect(),
            keep: Keep::Nothing,
            into: Queue::Main,
            keep_bytes: 0,
            remembers: false,
        }
    }

    /// Whether an item of `bytes` stays, and with which counter.
    pub(crate) fn keeps(&mut self, state: State, bytes: u32) -> Option<u8> {
        let uses = state.frequency();
        let after = match self.keep {
            Keep::All => Some(uses),
            Keep::Nothing => None,
            Keep::UsedMore(cutoff, counter) => (uses > cutoff).then(|| counter.after(uses)),
            Keep::Score(cutoff) => {
                (score(uses, bytes) >= cutoff).then(|| Counter::Half.after(uses))
            }
        }?;
        let left = self.keep_bytes.checked_sub(u64::from(bytes))?;
        self.keep_bytes = left;
        Some(after)
    }
}

impl Counter {
    fn after(self, uses: u8) -> u8 {
        match self {
            Counter::Zero => 0,
            Counter::Less => uses - 1,
            Counter::Half => uses / 2,
        }
    }
}

/// The queue of S3-FIFO to evict from: the small one while it has its share.
fn next_queue(space: &space::State) -> Queue {
    let (small, main) = (space.queue_len(Queue::Small), space.queue_len(Queue::Main));
    let has_share = small * SMALL_ONE_IN >= small + main;
    if has_share && small > 0 || main == 0 {
        Queue::Small
    } else {
        Queue::Main
    }
}

/// The oldest segment and up to three after it of the same class of expiry.
fn successive(items: &Items, space: &space::State, oldest: u32) -> ArrayVec<u32, MERGE_SEGMENTS> {
    let class = items.segments.at(oldest).class();
    std::iter::successors(Some(oldest), |&segment| space.younger(segment))
        .filter(|&segment| items.segments.at(segment).class() == class)
        .take(MERGE_SEGMENTS)
        .collect()
}

/// Uses per byte as a power of two; zero for an item that was never used, and for no other.
fn score(uses: u8, bytes: u32) -> u8 {
    match uses {
        0 => 0,
        uses => ((u64::from(uses) << 24) / u64::from(bytes)).max(1).ilog2() as u8 + 1,
    }
}

/// The lowest score above zero at which no more than `bytes` stay.
fn score_cutoff(items: &Items, lane: &mut Lane<'_>, victims: &[u32], bytes: u64) -> u8 {
    let mut bytes_of = [0u64; SCORES + 1];
    for &victim in victims {
        let mut walk = Walk::new(items, victim);
        while let Some((place, header)) = walk.next(items, lane) {
            let total = items.footprint(&header).total();
            bytes_of[usize::from(score(items.state(lane, place).frequency(), total))] +=
                u64::from(total);
        }
    }
    let (mut cutoff, mut kept) = (SCORES, 0);
    for score in (1..=SCORES).rev().filter(|&score| bytes_of[score] > 0) {
        // The best score is kept in any case; the plan's bound on bytes cuts what is too much.
        if kept > 0 && kept + bytes_of[score] > bytes {
            break;
        }
        kept += bytes_of[score];
        cutoff = score;
    }
    cutoff as u8
}

/// The median of the uses of a sample: some items of some segments, from `cursor` on.
fn median_uses(items: &Items, lane: &mut Lane<'_>, cursor: u32) -> u8 {
    let mut count_of = [0u32; USES_MOST + 1];
    let all = items.first_deep();
    let sealed = (0..all)
        .map(|step| (cursor % all + step) % all)
        .filter(|&at| items.segments.at(at).state() == crate::segment::SegmentState::Sealed)
        .take(SAMPLE_SEGMENTS as usize);
    for segment in sealed {
        let mut walk = Walk::new(items, segment);
        for _ in 0..SAMPLE_ITEMS {
            let Some((place, _)) = walk.next(items, lane) else {
                break;
            };
            count_of[usize::from(items.state(lane, place).frequency())] += 1;
        }
    }
    let half = count_of.iter().sum::<u32>().div_ceil(2);
    let mut seen = 0;
    let at_most_half = |&(_, &count): &(usize, &u32)| {
        seen += count;
        seen < half
    };
    count_of.iter().enumerate().take_while(at_most_half).count() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_often_used_items_score_higher() {
        assert_eq!(score(0, 100), 0);
        assert!(score(1, u32::MAX) > 0);
        assert!(score(8, 100) > score(1, 100));
        assert!(score(1, 100) > score(1, 10_000));
        assert!(usize::from(score(127, 1)) <= SCORES);
    }

    #[test]
    fn a_plan_keeps_no_more_than_its_share() {
        let mut plan = Plan {
            victims: ArrayVec::new(),
            keep: Keep::UsedMore(0, Counter::Less),
            into: Queue::Main,
            keep_bytes: 250,
            remembers: false,
        };
        let used = State::default().with_frequency(3);
        assert_eq!(plan.keeps(State::default(), 100), None);
        assert_eq!(plan.keeps(used, 100), Some(2));
        assert_eq!(plan.keeps(used, 100), Some(2));
        assert_eq!(plan.keeps(used, 100), None);
        assert_eq!(plan.keeps(used, 50), Some(2));
    }
}
