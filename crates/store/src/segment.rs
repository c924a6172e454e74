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
//! *Thread safety*: each worker counts its own dead, in a table of its own, so that a put costs no
//! locked addition and workers do not meet; everything else is stored by the segment's owner (its
//! writer while open, the reclaimer after) or under the lock of `space`.
//!
//! *Invariants*: `dead <= written` once all workers rest. `seq` grows with each use of a segment
//! and is unique over all segments and chunks of a store.

use nyx_base::{UnixSeconds, WorkerId};
use nyx_media::Array;
use nyx_media::dram::Words;
use std::sync::atomic::{
    AtomicU8, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Sequence numbers stay below this, with a chunk every microsecond for nine years. What an image
/// says beyond is damage.
pub(crate) const SEQ_MAX: u64 = 1 << 48;

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

/// Which queue a segment's items are in; only S3-FIFO has a small one. Segments of the deep device
/// are in one of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Queue {
    Main,
    Small,
    Deep,
}

impl Queue {
    pub(crate) const COUNT: usize = 3;
}

/// One segment, in a cache line of its own; all zero is a free one that was never used.
#[derive(Debug)]
#[repr(C, align(64))]
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
    /// The stage that has its values, and one more; zero where they lie on the device.
    stage: AtomicU32,
    /// How often in a row it could not be written.
    failures: AtomicU32,
}

// SAFETY: all fields are atomics, of which any bytes are a valid value.
unsafe impl Words for Segment {}

impl Segment {
    fn open(&self, seq: u64, queue: Queue, class: u8) {
        for zero in [
            &self.latest_expiry,
            &self.chunks,
            &self.value_fill,
            &self.written_bytes,
            &self.written_items,
            &self.failures,
        ] {
            zero.store(0, Relaxed);
        }
        self.first_chunk.store(NONE, Relaxed);
        self.queue.store(queue as u8, Relaxed);
        self.class.store(class, Relaxed);
        self.seq.store(seq, Relaxed);
        self.step(SegmentState::Free, SegmentState::Open);
    }

    /// Forgets what it was: whoever was at it is gone. Only where an image is opened.
    pub(crate) fn found_as(&self, state: SegmentState, first_chunk: u32, chunks: u32) {
        self.state.store(state as u8, Relaxed);
        self.first_chunk.store(first_chunk, Relaxed);
        self.chunks.store(chunks, Relaxed);
    }

    /// Becomes one that was never used: what it held is no longer whoever's. Only where an image is
    /// opened.
    pub(crate) fn forget(&self) {
        self.state.store(SegmentState::Free as u8, Release);
        for zero in [
            &self.latest_expiry,
            &self.first_chunk,
            &self.chunks,
            &self.value_fill,
            &self.written_bytes,
            &self.written_items,
            &self.stage,
            &self.failures,
        ] {
            zero.store(0, Release);
        }
        self.queue.store(Queue::Main as u8, Release);
        self.class.store(0, Release);
        self.seq.store(0, Release);
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

    /// Whether something with this sequence number was given to it in this use.
    pub(crate) fn is_since(&self, seq: u64) -> bool {
        self.state() != SegmentState::Free && seq > self.seq() && seq < SEQ_MAX
    }

    pub(crate) fn queue(&self) -> Queue {
        match self.queue.load(Relaxed) {
            1 => Queue::Small,
            2 => Queue::Deep,
            _ => Queue::Main,
        }
    }

    /// The stage that has its values, until they are on the deep device. Who finds one may read
    /// there until the end of its era.
    #[inline]
    pub(crate) fn stage(&self) -> Option<u32> {
        self.stage.load(Acquire).checked_sub(1)
    }

    /// How often in a row it could not be written to the deep device.
    pub(crate) fn failures(&self) -> u32 {
        self.failures.load(Relaxed)
    }

    pub(crate) fn set_failures(&self, failures: u32) {
        self.failures.store(failures, Relaxed);
    }

    pub(crate) fn set_stage(&self, stage: Option<u32>) {
        self.stage
            .store(stage.map_or(0, |stage| stage + 1), Release);
    }

    /// Another queue, before it is in one.
    pub(crate) fn set_queue(&self, queue: Queue) {
        self.queue.store(queue as u8, Relaxed);
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

    pub(crate) fn written_items(&self) -> u32 {
        self.written_items.load(Relaxed)
    }

    pub(crate) fn written_bytes(&self) -> u32 {
        self.written_bytes.load(Relaxed)
    }
}

/// Whether a segment of an image is in use, and says so soundly.
pub(crate) fn has_items(segment: &Segment) -> bool {
    (1..SEQ_MAX).contains(&segment.seq())
        && matches!(
            segment.state(),
            SegmentState::Open | SegmentState::Sealed | SegmentState::Draining
        )
}

/// All segments of a store.
#[derive(Debug)]
pub(crate) struct Segments {
    all: Array<Segment>,
    /// What died in each segment by each worker's hand: items in the upper half, their bytes in the
    /// lower. A worker's table is written by that worker alone, and cleared while nobody can find
    /// an item of the segment. The last table is of those that were dead when an image was opened.
    dead: Box<[Box<[AtomicU64]>]>,
    /// Bytes of records in each segment that are twins: what goes with them is not lost. A hint for
    /// who chooses a segment, nothing that has to be right or that orders anything else.
    twins: Box<[AtomicU32]>,
    /// Segments with a lower sequence number were found in an image: how many of their items died
    /// is not known for certain.
    first_seq: u64,
}

/// Bytes of one entry of one worker's table.
pub(crate) const DEAD_ENTRY_BYTES: u64 = size_of::<AtomicU64>() as u64;
/// The same of the table of twins.
pub(crate) const TWIN_ENTRY_BYTES: usize = size_of::<AtomicU32>();

impl Segments {
    pub(crate) fn over(all: Array<Segment>, workers: u16) -> Segments {
        let table = |_| (0..all.len()).map(|_| AtomicU64::new(0)).collect();
        Segments {
            dead: (0..=workers).map(table).collect(),
            twins: (0..all.len()).map(|_| AtomicU32::new(0)).collect(),
            all,
            first_seq: 0,
        }
    }

    /// Says that segments with a lower sequence number than `seq` were found.
    pub(crate) fn begin_at(&mut self, seq: u64) {
        self.first_seq = seq;
    }

    /// Whether a segment was there when the image was opened, and is still in that use.
    pub(crate) fn is_found(&self, segment: u32) -> bool {
        self.first_seq != 0 && self.at(segment).seq() < self.first_seq
    }

    pub(crate) fn len(&self) -> u32 {
        self.all.len() as u32
    }

    #[inline]
    pub(crate) fn at(&self, segment: u32) -> &Segment {
        &self.all[segment as usize]
    }

    /// Makes a free segment an open one. Under the lock of `space`.
    pub(crate) fn open(&self, segment: u32, seq: u64, queue: Queue, class: u8) {
        for table in &self.dead {
            table[segment as usize].store(0, Relaxed);
        }
        self.twins[segment as usize].store(0, Relaxed);
        self.at(segment).open(seq, queue, class);
    }

    /// Counts an item that died by the hand of `worker`, after it was taken out of the index. Only
    /// that worker, within its era: the entry is cleared only when such an era is over. Released,
    /// so that who sees the count sees the item gone.
    #[inline]
    pub(crate) fn kill(&self, worker: WorkerId, segment: u32, bytes: u32) {
        let entry = &self.dead[worker.index()][segment as usize];
        let dead = entry.load(Relaxed) + (1 << 32 | u64::from(bytes));
        entry.store(dead, Release);
    }

    /// Says what had died in a segment that was found. Under the lock of `space`.
    pub(crate) fn set_dead_before(&self, segment: u32, live: u64, segment_bytes: u32) {
        let (items, bytes) = (live >> 32, live & 0xffff_ffff);
        let at = self.at(segment);
        // What was not filled when its writer was killed is as good as dead.
        let written_bytes = at.written_bytes().max(segment_bytes);
        at.written_bytes.store(written_bytes, Relaxed);
        let written = u64::from(at.written_items.load(Relaxed));
        let dead_items = written.saturating_sub(items);
        let dead_bytes = u64::from(written_bytes).saturating_sub(bytes);
        let table = self.dead.last().expect("there is one more than workers");
        table[segment as usize].store(dead_items << 32 | dead_bytes, Release);
    }

    /// Items that died, and their bytes.
    fn dead(&self, segment: u32) -> (u32, u32) {
        let each = self.dead.iter();
        let counts = each.map(|table| table[segment as usize].load(Acquire));
        // Of a damaged image they may be anything.
        let sum = counts.fold(0, u64::wrapping_add);
        ((sum >> 32) as u32, sum as u32)
    }

    /// Bytes of items that can be found no more.
    pub(crate) fn dead_bytes(&self, segment: u32) -> u32 {
        self.dead(segment).1
    }

    /// Bytes of items that can still be found.
    pub(crate) fn live_bytes(&self, segment: u32) -> u32 {
        let written = self.at(segment).written_bytes();
        written.saturating_sub(self.dead_bytes(segment))
    }

    /// A record in a segment is an item's twin from now on.
    pub(crate) fn add_twin(&self, segment: u32, bytes: u32) {
        self.twins[segment as usize].fetch_add(bytes, Relaxed);
    }

    /// It is an item of its own, or none any more.
    pub(crate) fn remove_twin(&self, segment: u32, bytes: u32) {
        let less = |twins: u32| Some(twins.saturating_sub(bytes));
        // It always changes.
        let _ = self.twins[segment as usize].fetch_update(Relaxed, Relaxed, less);
    }

    /// Bytes of records that are twins.
    pub(crate) fn twin_bytes(&self, segment: u32) -> u32 {
        self.twins[segment as usize].load(Relaxed)
    }

    /// Bytes of items that are lost if the segment goes.
    pub(crate) fn lone_bytes(&self, segment: u32) -> u32 {
        self.live_bytes(segment)
            .saturating_sub(self.twin_bytes(segment))
    }

    /// Whether none of its items can be found any more.
    pub(crate) fn is_dead(&self, segment: u32) -> bool {
        let written = self.at(segment).written_items.load(Relaxed);
        !self.is_found(segment) && self.dead(segment).0 == written
    }
}
