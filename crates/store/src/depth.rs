//! The deep side of a space: who gets a segment of the deep device and a stage to fill it in, what
//! waits to be written there, and how much may be written in a day.
//!
//! What it never does: write, choose which items go deep, count a tenant's memory (`space` does).
//!
//! *Thread safety*: a part of `space`, under its lock.
//!
//! *Invariants*: a segment that is open or waits to be written has a stage; one that has a stage is
//! not emptied. Every stage is free, a segment's, or in limbo. In an image a segment has its stage
//! before it is open, and leaves it after all of it was written and before the stage is free: so
//! whatever moment a kill leaves, a value is where the segment says, in the stage or on the device.

use crate::chunks::CHUNK_BYTES;
use crate::items::Items;
use crate::segment::{NONE, SegmentState, has_items};
use nyx_base::UnixSeconds;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::ops::Range;

/// Free segments that are made ahead of need, and stages that a write needs beside those that are
/// filled.
pub(crate) const AHEAD_SEGMENTS: u32 = 2;
/// Segments beyond those that are kept for compaction: one part in this many, this many at most.
const COMPACT_ONE_IN: u32 = 32;
const COMPACT_AHEAD_MOST: u32 = 6;
/// What may be written in a day may come in bursts of a part in this many.
const BURSTS_PER_DAY: u64 = 24;
/// Segments that a burst has at least.
const BURST_SEGMENTS_MIN: u64 = 2;
const DAY_SECONDS: u64 = 86_400;

/// How deep a store goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DepthShape {
    /// Segments on the deep device.
    pub(crate) segments: u32,
    /// Stages to fill them in.
    pub(crate) stages: u32,
    /// Classes of expiry that are told apart there.
    pub(crate) classes: u32,
    /// Bytes that may be written in a day.
    pub(crate) day_bytes: Option<u64>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Depth {
    free: VecDeque<u32>,
    untouched: Range<u32>,
    /// Segments in limbo.
    pub(crate) limbo: u32,
    /// Chunks of keys whose segments are deep.
    pub(crate) chunks: u32,
    stages: Vec<u32>,
    stage_limbo: VecDeque<(u64, u32)>,
    /// Segments that are full and not yet written, in their order.
    pub(crate) to_write: VecDeque<u32>,
    allowance: Option<Allowance>,
    pub(crate) refused: Refused,
    /// With fewer segments left, what lives in some is written together.
    compact_below: u32,
    /// That is under way.
    pub(crate) is_compacting: bool,
}

/// How often a segment was refused, by what there was none of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) stage: u64,
    pub(crate) segment: u64,
    pub(crate) allowance: u64,
}

/// What may be written: a bucket that fills with time.
#[derive(Debug)]
struct Allowance {
    day_bytes: u64,
    burst_bytes: u64,
    /// What each segment takes.
    segment_bytes: u64,
    bytes: u64,
    at: UnixSeconds,
}

impl Depth {
    /// Segments from `first` on, none used yet.
    pub(crate) fn new(first: u32, shape: DepthShape, segment_bytes: u32) -> Depth {
        let burst = |day_bytes: u64| {
            let least = BURST_SEGMENTS_MIN * u64::from(segment_bytes);
            (day_bytes / BURSTS_PER_DAY).max(least)
        };
        Depth {
            free: VecDeque::with_capacity(shape.segments as usize),
            untouched: first..first + shape.segments,
            limbo: 0,
            chunks: 0,
            stages: (0..shape.stages).rev().collect(),
            stage_limbo: VecDeque::with_capacity(shape.stages as usize),
            to_write: VecDeque::with_capacity(shape.stages as usize),
            allowance: shape.day_bytes.map(|day_bytes| Allowance {
                day_bytes,
                burst_bytes: burst(day_bytes),
                segment_bytes: u64::from(segment_bytes),
                bytes: burst(day_bytes),
                at: UnixSeconds(0),
            }),
            refused: Refused::default(),
            compact_below: AHEAD_SEGMENTS
                + (shape.segments / COMPACT_ONE_IN).clamp(1, COMPACT_AHEAD_MOST),
            is_compacting: false,
        }
    }

    /// Takes over the segments of an image: sees which are free, and which stages are in use; those
    /// that hold items. Of two that say that they have the same stage the younger one has it: the
    /// other is damaged, and its values are looked for on the device.
    pub(crate) fn find(&mut self, items: &Items) -> Vec<u32> {
        let (segments, all) = (&items.segments, items.first_deep()..items.segments.len());
        let used = all.clone().rev().find(|&at| segments.at(at).seq() != 0);
        self.untouched = used.map_or(all.start, |last| last + 1)..all.end;
        let (mut full, free): (Vec<u32>, Vec<u32>) =
            (all.start..self.untouched.start).partition(|&at| has_items(segments.at(at)));
        for segment in free {
            let at = segments.at(segment);
            at.found_as(SegmentState::Free, NONE, 0);
            at.set_stage(None);
            self.free(segment, at.failures() > 0);
        }
        full.sort_unstable_by_key(|&segment| Reverse(segments.at(segment).seq()));
        for &segment in &full {
            let at = segments.at(segment);
            let stage = at.stage().filter(|&stage| self.claim(stage));
            at.set_stage(stage);
        }
        full
    }

    /// Takes a stage that is free; false where it is not, or there is none of that number.
    fn claim(&mut self, stage: u32) -> bool {
        let at = self.stages.iter().position(|&free| free == stage);
        at.map(|at| self.stages.remove(at)).is_some()
    }

    /// Bytes that keys of deep items take.
    pub(crate) fn key_bytes(&self) -> u64 {
        u64::from(self.chunks) * u64::from(CHUNK_BYTES)
    }

    /// A free segment and the stage that it is to be filled in.
    pub(crate) fn take(&mut self) -> Option<(u32, u32)> {
        if self.stages.is_empty() {
            self.refused.stage += 1;
            return None;
        }
        if self.free.is_empty() && self.untouched.is_empty() {
            self.refused.segment += 1;
            return None;
        }
        if let Some(allowance) = &mut self.allowance {
            let Some(left) = allowance.bytes.checked_sub(allowance.segment_bytes) else {
                self.refused.allowance += 1;
                return None;
            };
            allowance.bytes = left;
        }
        let segment = self.untouched.next().or_else(|| self.free.pop_front());
        segment.zip(self.stages.pop())
    }

    /// Time goes on: more may be written.
    pub(crate) fn earn(&mut self, now: UnixSeconds) {
        let Some(allowance) = &mut self.allowance else {
            return;
        };
        let seconds = u64::from(now.0.saturating_sub(allowance.at.0)).min(DAY_SECONDS);
        let earned = u128::from(allowance.day_bytes) * u128::from(seconds) / DAY_SECONDS as u128;
        // What is less than a byte is left for later.
        if earned > 0 {
            let earned = u64::try_from(earned).unwrap_or(u64::MAX);
            allowance.bytes = allowance
                .bytes
                .saturating_add(earned)
                .min(allowance.burst_bytes);
            allowance.at = now;
        }
    }

    /// Whether what may be written is nearly used up: what was never asked for stays out then.
    pub(crate) fn is_scarce(&self) -> bool {
        let allowance = self.allowance.as_ref();
        allowance.is_some_and(|allowance| allowance.bytes < allowance.burst_bytes / 2)
    }

    /// Segments that are free or will be.
    fn left(&self) -> u32 {
        self.free.len() as u32 + self.untouched.len() as u32 + self.limbo
    }

    /// Whether as much may be written as a segment takes.
    pub(crate) fn may_write(&self) -> bool {
        let allowance = self.allowance.as_ref();
        allowance.is_none_or(|allowance| allowance.bytes >= allowance.segment_bytes)
    }

    /// Whether segments are nearly used up. Not where none may be written: nothing is to go, or to
    /// wait, for one that would stay empty.
    pub(crate) fn is_tight(&self) -> bool {
        self.left() < AHEAD_SEGMENTS && self.may_write()
    }

    /// Whether there are so few left that it is time for compaction.
    pub(crate) fn is_short(&self) -> bool {
        self.left() < self.compact_below
    }

    /// A segment is free again; `last` where it is to be used after all others.
    pub(crate) fn free(&mut self, segment: u32, last: bool) {
        match last {
            false => self.free.push_front(segment),
            true => self.free.push_back(segment),
        }
    }

    /// A stage is left; readers may be at it until the era is over.
    pub(crate) fn leave(&mut self, era: u64, stage: u32) {
        self.stage_limbo.push_back((era, stage));
    }

    /// Frees stages that no worker can still look at.
    pub(crate) fn collect(&mut self, is_over: impl Fn(u64) -> bool) {
        while let Some((_, stage)) = self.stage_limbo.pop_front_if(|&mut (era, _)| is_over(era)) {
            self.stages.push(stage);
        }
    }

    /// Stages that are free.
    pub(crate) fn free_stages(&self) -> u32 {
        self.stages.len() as u32
    }
}

/// Of some of the oldest segments of the deep queue the one with the least to lose: `each` is the
/// queue from its oldest on, `len` long.
pub(crate) fn victim(
    items: &Items,
    each: impl Iterator<Item = u32>,
    len: u32,
    choice_one_in: u32,
) -> Option<u32> {
    let choice = (len / choice_one_in).max(1) as usize;
    let is_written = |&segment: &u32| {
        let at = items.segments.at(segment);
        at.stage().is_none() && at.state() == SegmentState::Sealed
    };
    let oldest = each.filter(is_written).take(choice);
    oldest.min_by_key(|&segment| items.segments.lone_bytes(segment))
}
