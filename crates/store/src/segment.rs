//! Segments: one value area on the medium and the chunks of keys that go with it.
//!
//! ```text
//!        take            seal            claim            empty
//! Free --------> Open --------> Sealed --------> Draining --------> Limbo
//!   ^                                                                 |
//!   +-----------------------------------------------------------------+
//!                             the era is over
//! ```
//!
//! There are no other edges. An open segment is never drained: its writer seals it first. A
//! draining segment is never sealed again: what could not be moved is dropped. Nothing is freed
//! without limbo, even if it was empty: a reader may have found an item just before it died.
//!
//! What it never does: allocate after it was made, choose a victim, touch the medium.
//!
//! *Thread safety*: `dead` counts are added to by any worker; everything else is stored by the
//! segment's owner (its writer while open, the reclaimer after) or under the lock of `space`.
//!
//! *Invariants*: `dead <= written` once all workers rest. `seq` grows with each use of a segment
//! and is unique over all segments and chunks of a store.

use nyx_base::UnixSeconds;
use std::sync::atomic::{
    AtomicU8, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// No segment, no chunk.
pub(crate) const NONE: u32 = u32::MAX;

/// Where a segment stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SegmentState {
    Free,
    Open,
    Sealed,
    Draining,
    Limbo,
}

/// Which queue a segment's items are in; only S3-FIFO has a small one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Queue {
    Main,
    Small,
}

impl Queue {
    pub(crate) const COUNT: usize = 2;
}

/// One segment. A cache line, so that workers that kill items of two segments do not meet.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Segment {
    seq: AtomicU64,
    state: AtomicU8,
    queue: AtomicU8,
    class: AtomicU8,
    latest_expiry: AtomicU32,
    first_chunk: AtomicU32,
    chunks: AtomicU32,
    value_fill: AtomicU32,
    written_bytes: AtomicU32,
    written_items: AtomicU32,
    /// Items that died in the upper half, their bytes in the lower: one addition for both.
    dead: AtomicU64,
}

impl Segment {
    fn new() -> Segment {
        Segment {
            seq: AtomicU64::new(0),
            state: AtomicU8::new(SegmentState::Free as u8),
            queue: AtomicU8::new(Queue::Main as u8),
            class: AtomicU8::new(0),
            latest_expiry: AtomicU32::new(0),
            first_chunk: AtomicU32::new(NONE),
            chunks: AtomicU32::new(0),
            value_fill: AtomicU32::new(0),
            written_bytes: AtomicU32::new(0),
            written_items: AtomicU32::new(0),
            dead: AtomicU64::new(0),
        }
    }

    /// Makes a free segment an open one. Under the lock of `space`.
    pub(crate) fn open(&self, seq: u64, queue: Queue, class: u8) {
        for zero in [
            &self.latest_expiry,
            &self.chunks,
            &self.value_fill,
            &self.written_bytes,
            &self.written_items,
        ] {
            zero.store(0, Relaxed);
        }
        self.dead.store(0, Relaxed);
        self.first_chunk.store(NONE, Relaxed);
        self.queue.store(queue as u8, Relaxed);
        self.class.store(class, Relaxed);
        self.seq.store(seq, Relaxed);
        self.step(SegmentState::Free, SegmentState::Open);
    }

    /// Takes one edge of the state diagram.
    ///
    /// Panics where the segment is not in state `from`: somebody else owns it.
    pub(crate) fn step(&self, from: SegmentState, to: SegmentState) {
        let was = self.state.swap(to as u8, Release);
        assert_eq!(
            was, from as u8,
            "a segment in state {was} was to go from {from:?} to {to:?}"
        );
    }

    pub(crate) fn state(&self) -> SegmentState {
        match self.state.load(Acquire) {
            0 => SegmentState::Free,
            1 => SegmentState::Open,
            2 => SegmentState::Sealed,
            3 => SegmentState::Draining,
            _ => SegmentState::Limbo,
        }
    }

    #[inline]
    pub(crate) fn seq(&self) -> u64 {
        self.seq.load(Relaxed)
    }

    pub(crate) fn queue(&self) -> Queue {
        if self.queue.load(Relaxed) == Queue::Small as u8 {
            Queue::Small
        } else {
            Queue::Main
        }
    }

    pub(crate) fn class(&self) -> u8 {
        self.class.load(Relaxed)
    }

    pub(crate) fn first_chunk(&self) -> u32 {
        self.first_chunk.load(Relaxed)
    }

    pub(crate) fn chunks(&self) -> u32 {
        self.chunks.load(Relaxed)
    }

    /// Adds a chunk to the front of the chain. Under the lock of `space`.
    pub(crate) fn push_chunk(&self, chunk: u32) -> u32 {
        self.chunks.store(self.chunks() + 1, Relaxed);
        self.first_chunk.swap(chunk, Relaxed)
    }

    /// The value area's (inline layout: the segment's) used bytes.
    pub(crate) fn value_fill(&self) -> u32 {
        self.value_fill.load(Relaxed)
    }

    /// Counts an item that was written. The owner of the open segment only.
    #[inline]
    pub(crate) fn add(&self, bytes: u32, value_fill: u32, expiry: UnixSeconds) {
        self.value_fill.store(value_fill, Relaxed);
        self.written_bytes
            .store(self.written_bytes.load(Relaxed) + bytes, Relaxed);
        self.written_items
            .store(self.written_items.load(Relaxed) + 1, Relaxed);
        self.expire_later(expiry);
    }

    /// Takes back the count of the item written last. The owner of the open segment only.
    pub(crate) fn take_back(&self, bytes: u32, value_fill: u32) {
        self.value_fill.store(value_fill, Relaxed);
        self.written_bytes
            .store(self.written_bytes.load(Relaxed) - bytes, Relaxed);
        self.written_items
            .store(self.written_items.load(Relaxed) - 1, Relaxed);
    }

    /// Raises the latest expiry of its items.
    #[inline]
    pub(crate) fn expire_later(&self, expiry: UnixSeconds) {
        if self.latest_expiry.load(Relaxed) < expiry.0 {
            self.latest_expiry.fetch_max(expiry.0, Relaxed);
        }
    }

    /// Whether every item in it has ended.
    pub(crate) fn has_expired(&self, now: UnixSeconds) -> bool {
        self.latest_expiry.load(Relaxed) <= now.0
    }

    /// Counts an item that died.
    #[inline]
    pub(crate) fn kill(&self, bytes: u32) {
        self.dead.fetch_add(1 << 32 | u64::from(bytes), Release);
    }

    pub(crate) fn written_bytes(&self) -> u32 {
        self.written_bytes.load(Relaxed)
    }

    pub(crate) fn dead_bytes(&self) -> u32 {
        self.dead.load(Relaxed) as u32
    }

    /// Whether none of its items can be found any more.
    pub(crate) fn is_dead(&self) -> bool {
        (self.dead.load(Acquire) >> 32) as u32 == self.written_items.load(Relaxed)
    }

    /// Bytes of items that can still be found.
    pub(crate) fn live_bytes(&self) -> u32 {
        self.written_bytes().saturating_sub(self.dead_bytes())
    }
}

/// All segments of a store.
#[derive(Debug)]
pub(crate) struct Segments(Box<[Segment]>);

impl Segments {
    pub(crate) fn new(count: u32) -> Segments {
        Segments((0..count).map(|_| Segment::new()).collect())
    }

    pub(crate) fn len(&self) -> u32 {
        self.0.len() as u32
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.0.iter()
    }

    #[inline]
    pub(crate) fn at(&self, segment: u32) -> &Segment {
        &self.0[segment as usize]
    }
}
