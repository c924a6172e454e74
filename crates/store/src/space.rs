//! Space: who gets a segment, a chunk or a page of index, within the tenant's one budget.
//!
//! `used` counts all of it: segments and chunks in use or in limbo, chunks that are free but still
//! hold memory, the index and the tables. It never passes `size`. Segments of a deep device are not
//! of it, but their keys and the stages that they are filled in are. Ordinary takers leave a
//! reserve, which only relocation may use, so that a full tenant can always make room.
//!
//! What it never does: choose what is evicted, touch items, wait for an era.
//!
//! *Thread safety*: one lock around the whole, taken once per segment, chunk or page, never per
//! item and never while a bucket is locked.
//!
//! *Invariants*: `used <= size`. Every segment is in exactly one of: the free list or not yet
//! touched (`Free`), a writer's hand (`Open`), a queue (`Sealed`), the reclaimer's hand
//! (`Draining`), the limbo list (`Limbo`).

use crate::chunks::{CHUNK_BYTES, Chunks};
use crate::depth::{self, Depth, DepthShape};
use crate::items::Items;
use crate::segment::{NONE, Queue, SEQ_MAX, Segment, SegmentState, TWIN_ENTRY_BYTES, has_items};
use nyx_index::Eras;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who asks for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taker {
    /// A put: leaves the reserve alone.
    Put,
    /// The reclaimer, which gives back more than it takes.
    Relocation,
}

/// The bounds of a space, all in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// The tenant's budget.
    pub(crate) size: u64,
    /// What only relocation may take.
    pub(crate) reserve: u64,
    /// What is made free ahead of need, so that no put waits for an era.
    pub(crate) ahead: u64,
    /// Free key memory that is not given back to the system.
    pub(crate) keep_warm: u64,
    /// What there is of a deep device.
    pub(crate) depth: DepthShape,
}

/// The space of one store.
#[derive(Debug)]
pub(crate) struct Space {
    state: Mutex<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    eras: Arc<Eras>,
    shape: Shape,
    used: u64,
    next_seq: u64,
    /// Segments that were used and are free; behind them come the untouched ones.
    free: Vec<u32>,
    untouched: u32,
    limbo: VecDeque<(u64, u32)>,
    limbo_bytes: u64,
    /// Free chunks that hold memory, and free ones that do not.
    warm: List,
    cold: List,
    untouched_chunk: u32,
    /// The disk has no blocks for the chunks of an image.
    starved: Starved,
    /// The deep device's side.
    depth: Option<Depth>,
    queues: [Fifo; Queue::COUNT],
    /// Neighbours of each sealed segment in its queue.
    links: Box<[Neighbours]>,
}

/// How it goes with a disk that is full.
#[derive(Debug, Default)]
struct Starved {
    /// In a row.
    failures: u32,
    /// How often nobody asks.
    skips: u32,
}

/// Chunks, linked through the chunk table.
#[derive(Debug)]
struct List {
    first: u32,
    len: u32,
}

#[derive(Clone, Copy, Debug)]
struct Neighbours {
    older: u32,
    newer: u32,
}

/// A queue of sealed segments, by age.
#[derive(Clone, Copy, Debug)]
struct Fifo {
    oldest: u32,
    newest: u32,
    len: u32,
}

/// A disk that stays full is asked once in two to the power of this many times.
const STARVED_SKIPS_LOG2: u32 = 6;
/// Keys of deep items take at most one part in this many of the budget.
pub(crate) const DEEP_KEYS_ONE_IN: u64 = 2;
/// Compaction begins where all but one part in this many of those is used.
const COMPACT_KEYS_ONE_IN: u64 = 16;
/// Of the oldest of one part in this many of the deep queue the one with the least to lose goes.
const DEEP_CHOICE_ONE_IN: u32 = 8;
/// Key memory is nearly used up where fewer chunks than this are left (places have 32 bits).
const CHUNKS_AHEAD: u32 = 4;
/// Bytes of tables that one segment takes.
pub(crate) const SEGMENT_TABLE_BYTES: u64 =
    (size_of::<Segment>() + TWIN_ENTRY_BYTES + size_of::<Neighbours>() + 4 + 16) as u64;

impl Space {
    /// All of `shape.size` free but `used`; so many segments of it, and behind them those of a deep
    /// device, of so many bytes each.
    pub(crate) fn new(
        shape: Shape,
        used: u64,
        (segments, segment_bytes): (u32, u32),
        eras: Arc<Eras>,
    ) -> Space {
        let deep = shape.depth;
        let all = segments + deep.segments;
        let depth = (deep.segments > 0).then(|| Depth::new(segments, deep, segment_bytes));
        let none = Neighbours {
            older: NONE,
            newer: NONE,
        };
        let empty = Fifo {
            oldest: NONE,
            newest: NONE,
            len: 0,
        };
        let state = State {
            eras,
            shape,
            used,
            next_seq: 1,
            free: Vec::with_capacity(segments as usize),
            untouched: 0,
            limbo: VecDeque::with_capacity(all as usize),
            limbo_bytes: 0,
            warm: List {
                first: NONE,
                len: 0,
            },
            cold: List {
                first: NONE,
                len: 0,
            },
            untouched_chunk: 0,
            starved: Starved::default(),
            depth,
            queues: [empty; Queue::COUNT],
            links: vec![none; all as usize].into_boxed_slice(),
        };
        Space {
            state: Mutex::new(state),
        }
    }

    /// Takes over the segments and chunks of an image. Sequence numbers up to `seq` were given,
    /// too; without a small queue all are in the main one. Returns the chunks that nobody closed.
    pub(crate) fn find(&self, items: &Items, seq: u64, has_small: bool) -> Vec<u32> {
        let mut space = self.lock();
        for at in 0..items.segments.len() {
            let segment = items.segments.at(at);
            let is_small = has_small && segment.queue() == Queue::Small;
            let queue = match items.is_deep(at) {
                true => Queue::Deep,
                false if is_small => Queue::Small,
                false => Queue::Main,
            };
            segment.set_queue(queue);
            if queue != Queue::Deep {
                segment.set_stage(None);
            }
        }
        let mut owned = space.find_chunks(items);
        // The youngest chunk of each segment first, as its chain has them.
        owned.sort_unstable_by_key(|&(segment, seq, _)| (segment, std::cmp::Reverse(seq)));
        let unclosed = space.find_segments(items, &owned);
        space.next_seq = 1 + highest_seq(items).max(seq);
        unclosed
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// A number that was never given before.
    pub(crate) fn next_seq(&mut self) -> u64 {
        self.next_seq += 1;
        self.next_seq - 1
    }

    /// Numbers up to this one were given before.
    pub(crate) fn begin_above(&mut self, seq: u64) {
        self.next_seq = self.next_seq.max(seq + 1);
    }

    /// Sorts the chunks of an image: those in use with their segments and sequence numbers; all
    /// others are free, without memory of theirs that counts.
    fn find_chunks(&mut self, items: &Items) -> Vec<(u32, u64, u32)> {
        let Some(chunks) = &items.chunks else {
            return Vec::new();
        };
        self.untouched_chunk = chunks.used();
        let mut owned = Vec::new();
        for chunk in 0..self.untouched_chunk {
            match items
                .owner(chunk)
                .filter(|&one| has_items(items.segments.at(one)))
            {
                Some(segment) => owned.push((segment, chunks.seq(chunk), chunk)),
                None => self.cold.push(chunks, chunk),
            }
        }
        self.used += owned.len() as u64 * u64::from(CHUNK_BYTES);
        if let Some(depth) = &mut self.depth {
            let deep = owned
                .iter()
                .filter(|&&(segment, ..)| items.is_deep(segment));
            depth.chunks = deep.count() as u32;
        }
        owned
    }

    /// Seals all segments of an image that have items, the oldest first, and frees the others.
    fn find_segments(&mut self, items: &Items, owned: &[(u32, u64, u32)]) -> Vec<u32> {
        let segments = &items.segments;
        let used = (0..items.first_deep())
            .rev()
            .find(|&at| segments.at(at).seq() != 0);
        self.untouched = used.map_or(0, |last| last + 1);
        let (mut full, free): (Vec<u32>, Vec<u32>) =
            (0..self.untouched).partition(|&segment| has_items(segments.at(segment)));
        for segment in free {
            segments.at(segment).found_as(SegmentState::Free, NONE, 0);
            self.free.push(segment);
        }
        if let Some(depth) = &mut self.depth {
            full.extend(depth.find(items));
        }
        full.sort_unstable_by_key(|&segment| segments.at(segment).seq());
        let mut unclosed = Vec::new();
        for segment in full {
            let first = owned.partition_point(|&(of, ..)| of < segment);
            let chain = owned[first..].iter().take_while(|&&(of, ..)| of == segment);
            let chain: Vec<u32> = chain.map(|&(.., chunk)| chunk).collect();
            let chunks = items.chunks.as_ref().into_iter();
            chunks.for_each(|chunks| unclosed.extend(chunks.link(&chain)));
            let first = chain.first().copied().unwrap_or(NONE);
            let at = segments.at(segment);
            at.found_as(SegmentState::Open, first, chain.len() as u32);
            if !items.is_deep(segment) {
                self.used += u64::from(items.segment_bytes());
            }
            self.seal(items, segment);
        }
        unclosed
    }

    fn floor(&self, taker: Taker) -> u64 {
        match taker {
            Taker::Put => self.shape.reserve,
            Taker::Relocation => 0,
        }
    }

    /// Bytes that `taker` may still take, limbo and free chunks included if `soon`.
    pub(crate) fn room(&self, taker: Taker, soon: bool) -> u64 {
        let coming = if soon {
            self.limbo_bytes + self.surplus_bytes()
        } else {
            0
        };
        (self.shape.size + coming).saturating_sub(self.used + self.floor(taker))
    }

    /// Bytes of free chunks beyond what the next segment will likely take: those are kept warm,
    /// since giving memory back and touching it anew costs more than keeping it.
    fn surplus_bytes(&self) -> u64 {
        let held = u64::from(self.warm.len) * u64::from(CHUNK_BYTES);
        held.saturating_sub(self.shape.keep_warm)
    }

    /// Whether something must go: what puts may take, now or when the era is over, is nearly used
    /// up.
    pub(crate) fn is_tight(&self, items: &Items) -> bool {
        let deep_limbo = self.depth.as_ref().map_or(0, |depth| depth.limbo);
        let segments = self.free.len() + self.limbo.len() - deep_limbo as usize;
        let untouched = (items.first_deep() - self.untouched) as usize;
        let ahead = self.shape.ahead / u64::from(items.segment_bytes());
        let chunks_left = items.chunks.as_ref().is_none_or(|chunks| {
            let untouched = chunks.len() - self.untouched_chunk;
            untouched + self.cold.len + self.warm.len >= CHUNKS_AHEAD
        });
        self.room(Taker::Put, true) < self.shape.ahead
            || ((segments + untouched) as u64) < ahead
            || !(chunks_left || self.limbo_bytes > 0)
    }

    /// Whether something deep must go: its segments are nearly used up and more may be written, or
    /// its keys take too much.
    pub(crate) fn is_deep_tight(&self) -> bool {
        self.depth
            .as_ref()
            .is_some_and(|depth| depth.is_tight() || depth.key_bytes() > self.deep_keys_most())
    }

    /// Bytes that keys of deep items may take.
    fn deep_keys_most(&self) -> u64 {
        self.shape.size / DEEP_KEYS_ONE_IN
    }

    /// Whether the deep device will soon be able to take more, and now is not: no stage is free, or
    /// no segment while compaction makes some. One that may not write makes none: nobody is to wait
    /// for it.
    pub(crate) fn is_backlogged(&mut self, items: &Items) -> bool {
        self.collect(items);
        let is_deep_tight = self.is_deep_tight();
        let depth = self.depth.as_ref();
        depth.is_some_and(|depth| {
            let makes_room = depth.is_compacting && depth.may_write();
            depth.free_stages() == 0 || makes_room && is_deep_tight
        })
    }

    /// Whether it is time for compaction: what is left of the deep device, or for its keys, is
    /// little, and as much may be written as that takes.
    pub(crate) fn is_compaction_due(&mut self, items: &Items) -> bool {
        self.collect(items);
        let most = self.deep_keys_most();
        let depth = self.depth.as_ref();
        depth.is_some_and(|depth| {
            let are_keys_many = depth.key_bytes() > most - most / COMPACT_KEYS_ONE_IN;
            (depth.is_short() || are_keys_many) && !depth.is_scarce()
        })
    }

    /// Whether a stage is free to fill.
    pub(crate) fn has_stage(&mut self, items: &Items) -> bool {
        self.collect(items);
        let depth = self.depth.as_ref();
        depth.is_some_and(|depth| depth.free_stages() > 0)
    }

    /// Takes a deep segment to be emptied by compaction.
    pub(crate) fn begin_compaction(&mut self, items: &Items, segment: u32) {
        self.claim(items, segment);
        self.set_compacting(true);
    }

    /// It is empty.
    pub(crate) fn end_compaction(&mut self, items: &Items, segment: u32) {
        self.set_compacting(false);
        self.retire(items, segment);
    }

    fn set_compacting(&mut self, is_compacting: bool) {
        if let Some(depth) = &mut self.depth {
            depth.is_compacting = is_compacting;
        }
    }

    /// The deep segment that goes next.
    pub(crate) fn deep_victim(&self, items: &Items) -> Option<u32> {
        let oldest = self.oldest(Queue::Deep);
        let each = std::iter::successors(oldest, |&segment| self.younger(segment));
        let len = self.queue_len(Queue::Deep);
        depth::victim(items, each, len, DEEP_CHOICE_ONE_IN)
    }

    /// How deep it goes.
    pub(crate) fn depth_shape(&self) -> DepthShape {
        self.shape.depth
    }

    /// The deep device's side, where there is one.
    pub(crate) fn depth(&mut self) -> Option<&mut Depth> {
        self.depth.as_mut()
    }

    /// A segment that is full waits to be written to the deep device.
    pub(crate) fn wait_to_be_written(&mut self, items: &Items, segment: u32) {
        if let (Some(depth), Some(deep)) = (&mut self.depth, items.deep()) {
            depth.to_write.push_back(segment);
            deep.to_write.store(depth.to_write.len() as u32, Relaxed);
        }
    }

    /// The one that waits longest; it no longer does.
    pub(crate) fn next_to_write(&mut self, items: &Items) -> Option<u32> {
        let (depth, deep) = (self.depth.as_mut()?, items.deep()?);
        let next = depth.to_write.pop_front();
        deep.to_write.store(depth.to_write.len() as u32, Relaxed);
        next
    }

    /// What a segment was filled in is left: its values are on the device, or nothing lives there.
    pub(crate) fn leave_stage(&mut self, items: &Items, segment: u32) {
        let segment = items.segments.at(segment);
        let stage = segment.stage().expect("it has one until this");
        segment.set_stage(None);
        let era = self.eras.retire();
        if let Some(depth) = &mut self.depth {
            depth.leave(era, stage);
        }
        if let Some(deep) = items.deep() {
            deep.is_wanted.store(false, Relaxed);
        }
    }

    /// Whether it is the disk, not the tenant, that is full.
    pub(crate) fn is_starved(&self) -> bool {
        self.starved.failures > 0
    }

    /// Whether memory will come free when the era is over.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.limbo.is_empty()
    }

    /// Takes `bytes` for the index or a table.
    pub(crate) fn charge(&mut self, items: &Items, taker: Taker, bytes: u64) -> bool {
        self.cool(items, bytes + self.floor(taker));
        let granted = self.room(taker, false) >= bytes;
        if granted {
            self.used += bytes;
        }
        granted
    }

    /// Opens a free segment.
    pub(crate) fn take_segment(
        &mut self,
        items: &Items,
        taker: Taker,
        queue: Queue,
        class: u8,
    ) -> Option<u32> {
        self.collect(items);
        if queue == Queue::Deep {
            return self.take_deep(items, class);
        }
        let bytes = u64::from(items.segment_bytes());
        if self.free.is_empty() && self.untouched == items.first_deep() {
            return None;
        }
        if !self.charge(items, taker, bytes) {
            return None;
        }
        let segment = self.free.pop().unwrap_or_else(|| {
            self.untouched += 1;
            self.untouched - 1
        });
        let seq = self.next_seq();
        items.segments.open(segment, seq, queue, class);
        Some(segment)
    }

    /// Opens a free segment of the deep device, with a stage to fill it in.
    fn take_deep(&mut self, items: &Items, class: u8) -> Option<u32> {
        let (segment, stage) = self.depth.as_mut()?.take()?;
        let seq = self.next_seq();
        if let Some(deep) = items.deep() {
            deep.to_compact.store(true, Relaxed);
        }
        items.segments.at(segment).set_stage(Some(stage));
        items.segments.open(segment, seq, Queue::Deep, class);
        Some(segment)
    }

    /// Gives a segment another chunk.
    pub(crate) fn take_chunk(&mut self, items: &Items, taker: Taker, segment: u32) -> Option<u32> {
        let chunks = items.chunks.as_ref()?;
        let chunk = match self.warm.pop(chunks) {
            Some(chunk) => {
                self.starved = Starved::default();
                chunk
            }
            None if self.room(taker, false) < u64::from(CHUNK_BYTES) => return None,
            None => {
                let chunk = self.new_chunk(chunks, taker)?;
                self.used += u64::from(CHUNK_BYTES);
                chunk
            }
        };
        let seq = self.next_seq();
        chunks.assign(chunk, seq, segment);
        let rest = items.segments.at(segment).push_chunk(chunk);
        chunks.set_next(chunk, rest);
        if let Some(depth) = self.depth.as_mut().filter(|_| items.is_deep(segment)) {
            depth.chunks += 1;
        }
        Some(chunk)
    }

    /// A chunk that gets memory of its own. A disk that was full is not asked each time: that costs
    /// up to a millisecond. It is for an item that moves, which would be dropped.
    fn new_chunk(&mut self, chunks: &Chunks, taker: Taker) -> Option<u32> {
        if taker == Taker::Put && self.starved.is_hopeless() {
            return None;
        }
        let chunk = self
            .cold_chunk(chunks)
            .or_else(|| self.untouched_chunk(chunks));
        let has_places = self.cold.len > 0 || self.untouched_chunk < chunks.len();
        self.starved.is(chunk.is_none() && has_places);
        chunk
    }

    fn untouched_chunk(&mut self, chunks: &Chunks) -> Option<u32> {
        let chunk = self.untouched_chunk;
        (chunk < chunks.len() && chunks.allocate(chunk, true)).then(|| {
            self.untouched_chunk += 1;
            chunk
        })
    }

    fn cold_chunk(&mut self, chunks: &Chunks) -> Option<u32> {
        let chunk = self.cold.pop(chunks)?;
        if chunks.allocate(chunk, false) {
            return Some(chunk);
        }
        self.cold.push(chunks, chunk);
        None
    }

    /// Gives surplus chunks' memory back to the system until `bytes` are free.
    fn cool(&mut self, items: &Items, bytes: u64) {
        let Some(chunks) = &items.chunks else { return };
        while self.shape.size < self.used + bytes && self.surplus_bytes() > 0 {
            let Some(chunk) = self.warm.pop(chunks) else {
                return;
            };
            chunks.release(chunk);
            self.cold.push(chunks, chunk);
            self.used -= u64::from(CHUNK_BYTES);
        }
    }

    /// Puts an open segment into its queue.
    pub(crate) fn seal(&mut self, items: &Items, segment: u32) {
        items
            .segments
            .at(segment)
            .step(SegmentState::Open, SegmentState::Sealed);
        let fifo = &mut self.queues[items.segments.at(segment).queue() as usize];
        self.links[segment as usize] = Neighbours {
            older: fifo.newest,
            newer: NONE,
        };
        match fifo.newest {
            NONE => fifo.oldest = segment,
            newest => self.links[newest as usize].newer = segment,
        }
        fifo.newest = segment;
        fifo.len += 1;
        // Of an image there may be some that were written before.
        if items.segments.at(segment).stage().is_some() {
            self.wait_to_be_written(items, segment);
        }
    }

    /// Takes a sealed segment out of its queue, to be emptied.
    pub(crate) fn claim(&mut self, items: &Items, segment: u32) {
        items
            .segments
            .at(segment)
            .step(SegmentState::Sealed, SegmentState::Draining);
        let fifo = &mut self.queues[items.segments.at(segment).queue() as usize];
        let Neighbours { older, newer } = self.links[segment as usize];
        match older {
            NONE => fifo.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        match newer {
            NONE => fifo.newest = older,
            newer => self.links[newer as usize].older = older,
        }
        fifo.len -= 1;
    }

    /// The oldest sealed segment of a queue.
    pub(crate) fn oldest(&self, queue: Queue) -> Option<u32> {
        let oldest = self.queues[queue as usize].oldest;
        (oldest != NONE).then_some(oldest)
    }

    /// The next younger segment of the same queue.
    pub(crate) fn younger(&self, segment: u32) -> Option<u32> {
        let newer = self.links[segment as usize].newer;
        (newer != NONE).then_some(newer)
    }

    /// How many sealed segments a queue has.
    pub(crate) fn queue_len(&self, queue: Queue) -> u32 {
        self.queues[queue as usize].len
    }

    /// Puts an empty segment into limbo.
    pub(crate) fn retire(&mut self, items: &Items, segment: u32) {
        let entry = items.segments.at(segment);
        entry.step(SegmentState::Draining, SegmentState::Limbo);
        self.limbo_bytes += held_bytes(items, segment);
        if let Some(depth) = self.depth.as_mut().filter(|_| items.is_deep(segment)) {
            depth.limbo += 1;
            // Now, and not when the era is over: until then the next one would go for them as well.
            depth.chunks -= entry.chunks();
        }
        self.limbo.push_back((self.eras.retire(), segment));
    }

    /// Frees what no worker can still look at.
    pub(crate) fn collect(&mut self, items: &Items) {
        if let Some(depth) = &mut self.depth {
            depth.collect(|era| self.eras.is_over(era));
        }
        while let Some(&(era, segment)) = self.limbo.front() {
            if !self.eras.is_over(era) {
                return;
            }
            self.limbo.pop_front();
            self.limbo_bytes -= held_bytes(items, segment);
            self.free_chunks(items, segment);
            let entry = items.segments.at(segment);
            entry.step(SegmentState::Limbo, SegmentState::Free);
            match self.depth.as_mut().filter(|_| items.is_deep(segment)) {
                Some(depth) => {
                    depth.limbo -= 1;
                    depth.free(segment, entry.failures() > 0);
                }
                None => {
                    self.used -= u64::from(items.segment_bytes());
                    self.free.push(segment);
                }
            }
        }
    }

    fn free_chunks(&mut self, items: &Items, segment: u32) {
        let Some(chunks) = &items.chunks else { return };
        let mut chunk = items.segments.at(segment).first_chunk();
        while chunk != NONE {
            let next = chunks.next(chunk);
            self.warm.push(chunks, chunk);
            chunk = next;
        }
    }
}

/// The highest sequence number that an image knows of.
fn highest_seq(items: &Items) -> u64 {
    let segments = (0..items.segments.len()).map(|segment| items.segments.at(segment).seq());
    let chunks = items.chunks.iter();
    let chunks = chunks.flat_map(|chunks| (0..chunks.len()).map(|chunk| chunks.seq(chunk)));
    let sound = segments.chain(chunks).filter(|&seq| seq < SEQ_MAX);
    sound.max().unwrap_or_default()
}

/// Bytes that freeing a segment will give back.
fn held_bytes(items: &Items, segment: u32) -> u64 {
    let chunks = u64::from(items.segments.at(segment).chunks());
    let values = match items.is_deep(segment) {
        true => 0,
        false => u64::from(items.segment_bytes()),
    };
    values + chunks * u64::from(CHUNK_BYTES)
}

impl Starved {
    /// How it went this time.
    fn is(&mut self, failed: bool) {
        self.failures = match failed {
            true => self.failures + 1,
            false => 0,
        };
        self.skips = (1 << self.failures.min(STARVED_SKIPS_LOG2)) - 1;
    }

    /// Whether to ask the disk would be too soon.
    fn is_hopeless(&mut self) -> bool {
        let skips = self.skips;
        self.skips = skips.saturating_sub(1);
        skips > 0
    }
}

impl List {
    fn push(&mut self, chunks: &Chunks, chunk: u32) {
        chunks.set_next(chunk, self.first);
        self.first = chunk;
        self.len += 1;
    }

    fn pop(&mut self, chunks: &Chunks) -> Option<u32> {
        if self.first == NONE {
            return None;
        }
        let chunk = self.first;
        self.first = chunks.next(chunk);
        self.len -= 1;
        Some(chunk)
    }
}
