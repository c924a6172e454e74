//! One worker's hand in one tenant's store: its open segments, one per queue and class of expiry.
//!
//! An item is appended first and published after; until then nobody else can see it, so that an
//! append whose condition failed is simply taken back. Classes of expiry are a grouping in the
//! manner of Segcache's TTL buckets (NSDI'21, section 3.2): items that end together lie together
//! and are freed together. It is a heuristic only: each item has its exact expiry.
//!
//! What it never does: publish, evict, share: it belongs to one worker (or to the reclaimer).

use crate::chunks::{CHUNK_BYTES, Chunks};
use crate::items::{Draft, Footprint, Items};
use crate::segment::{NONE, Queue};
use crate::space::{Space, Taker};
use nyx_base::{UnixSeconds, WorkerId};
use nyx_index::Place;
use nyx_tier::Lane;

/// Values that move on the medium move in pieces of this many bytes.
const PIECE_BYTES: usize = 4096;
/// How many items ahead of the next one memory is asked for.
const AHEAD_ITEMS: u32 = 2;
/// Classes of expiry per doubling of the time to live.
const CLASSES_PER_OCTAVE: u32 = 4;
/// The most classes: every octave of 32 bits.
const CLASSES_MOST: u32 = 32 * CLASSES_PER_OCTAVE;

/// The open segments of one (worker, tenant). Made by [`crate::Store::writer`], used with that
/// store alone.
#[derive(Debug)]
pub struct Writer {
    worker: WorkerId,
    taker: Taker,
    classes: Classes,
    /// By queue, then by class.
    open: Box<[Option<Open>]>,
    /// The flush mark at which the open segments were opened.
    flush_mark: u64,
    piece: Box<[u8; PIECE_BYTES]>,
    /// What it writes to the deep device.
    pub(crate) writing: Option<Writing>,
}

/// A segment that is on its way to the deep device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writing {
    pub(crate) segment: u32,
    /// Bytes that are written, whole blocks.
    pub(crate) len: u32,
    /// Bytes that were set off.
    pub(crate) sent: u32,
    /// Pieces that are on their way.
    pub(crate) pieces: u32,
    pub(crate) has_failed: bool,
}

/// How many classes of expiry are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Classes {
    pub(crate) fast: u32,
    /// On the deep device, where each has a stage.
    pub(crate) deep: u32,
}

/// An open segment and how far it is filled.
#[derive(Clone, Copy, Debug)]
struct Open {
    segment: u32,
    medium_fill: u32,
    chunk: u32,
    chunk_fill: u32,
    /// Bytes of key memory in all of its chunks.
    dram_fill: u32,
}

/// Which of a writer's open segments an item goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lot {
    pub(crate) queue: Queue,
    pub(crate) class: u8,
}

/// Whether there is room for an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// There was.
    Had,
    /// There is, since a segment or a chunk was taken for it.
    Made,
    /// There is no space left to take: somebody has to make some.
    None,
}

/// An item that was appended and not yet published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Appended {
    pub(crate) place: Place,
    /// Its explicit CAS unique.
    pub(crate) cas: Option<u64>,
    lot: Lot,
    before: Open,
    footprint: Footprint,
}

impl Writer {
    pub(crate) fn new(worker: WorkerId, taker: Taker, classes: Classes) -> Writer {
        let most = classes.fast.max(classes.deep) as usize;
        Writer {
            worker,
            taker,
            classes,
            open: vec![None; Queue::COUNT * most].into_boxed_slice(),
            flush_mark: 0,
            piece: Box::new([0; PIECE_BYTES]),
            writing: None,
        }
    }

    /// Whose it is.
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    #[cfg(test)]
    pub(crate) fn classes(&self) -> Classes {
        self.classes
    }

    pub(crate) fn taker(&self) -> Taker {
        self.taker
    }

    /// The class of an expiry in a queue: items without one first, then by time to live.
    #[inline]
    pub(crate) fn class(&self, queue: Queue, expiry: UnixSeconds, now: UnixSeconds) -> u8 {
        let classes = match queue {
            Queue::Deep => self.classes.deep,
            _ => self.classes.fast,
        };
        if expiry == UnixSeconds::NEVER || classes <= 1 {
            return 0;
        }
        let ttl = expiry.0.saturating_sub(now.0).max(CLASSES_PER_OCTAVE);
        let octave = ttl.ilog2();
        let quarter = (ttl >> (octave - 2)) & (CLASSES_PER_OCTAVE - 1);
        let fine = octave * CLASSES_PER_OCTAVE + quarter;
        (1 + fine * (classes - 1) / CLASSES_MOST) as u8
    }

    /// Where an item with that end goes in a queue.
    #[inline]
    pub(crate) fn lot(&self, queue: Queue, expiry: UnixSeconds, now: UnixSeconds) -> Lot {
        let class = self.class(queue, expiry, now);
        Lot { queue, class }
    }

    fn slot(&mut self, lot: Lot) -> &mut Option<Open> {
        let most = self.classes.fast.max(self.classes.deep) as usize;
        let at = lot.queue as usize * most + usize::from(lot.class);
        &mut self.open[at]
    }

    /// Makes room for an item in the open segment of `lot`.
    #[inline]
    pub(crate) fn make_room(
        &mut self,
        items: &Items,
        space: &Space,
        lot: Lot,
        needs: Footprint,
    ) -> Room {
        let made = match *self.slot(lot) {
            Some(open) if open.takes(items, needs) => {
                if open.chunk_takes(items, needs) {
                    return Room::Had;
                }
                self.add_chunk(items, space, lot)
            }
            Some(_) => {
                self.seal(items, space, lot);
                self.open_segment(items, space, lot)
            }
            None => self.open_segment(items, space, lot),
        };
        if made { Room::Made } else { Room::None }
    }

    fn open_segment(&mut self, items: &Items, space: &Space, lot: Lot) -> bool {
        let taker = self.taker;
        let taken = space
            .lock()
            .take_segment(items, taker, lot.queue, lot.class);
        let Some(segment) = taken else { return false };
        let empty = Open {
            segment,
            medium_fill: 0,
            chunk: NONE,
            chunk_fill: 0,
            dram_fill: 0,
        };
        *self.slot(lot) = Some(empty);
        items.chunks.is_none() || self.add_chunk(items, space, lot)
    }

    fn add_chunk(&mut self, items: &Items, space: &Space, lot: Lot) -> bool {
        let taker = self.taker;
        let open = self.slot(lot).as_mut().expect("the segment is open");
        let Some(chunk) = space.lock().take_chunk(items, taker, open.segment) else {
            return false;
        };
        open.close_chunk(items);
        (open.chunk, open.chunk_fill) = (chunk, 0);
        true
    }

    /// Appends an item for which [`Writer::make_room`] made room.
    #[inline]
    pub(crate) fn append(
        &mut self,
        items: &Items,
        lane: &mut Lane<'_>,
        lot: Lot,
        draft: &Draft<'_>,
    ) -> Appended {
        let mut draft = *draft;
        let footprint = items.footprint(&draft.header);
        let open = self.slot(lot).as_mut().expect("the segment is open");
        let before = *open;
        let offset = if items.chunks.is_some() {
            open.chunk_fill
        } else {
            open.medium_fill
        };
        let place = items.place(open.segment, open.chunk, offset);
        if items.chunks.is_some() {
            draft.header.value_offset = open.medium_fill;
        }
        open.chunk_fill += footprint.dram;
        open.dram_fill += footprint.dram;
        open.medium_fill += footprint.medium;
        let segment = items.segments.at(open.segment);
        segment.add(footprint.total(), open.medium_fill, draft.header.expiry);
        open.prefetch_write(items, lane, footprint);
        items.write(lane, place, &draft, &mut *self.piece);
        Appended {
            place,
            cas: draft.header.cas,
            lot,
            before,
            footprint,
        }
    }

    /// Takes back the item appended last, which was not published.
    pub(crate) fn take_back(&mut self, items: &Items, appended: &Appended) {
        let segment = items.segments.at(appended.before.segment);
        segment.take_back(appended.footprint.total(), appended.before.medium_fill);
        if let Some(chunks) = &items.chunks {
            // Whoever reads the chunk in an image is not to take it for an item.
            chunks.mark_dead(appended.place);
        }
        *self.slot(appended.lot) = Some(appended.before);
    }

    /// Seals one open segment.
    fn seal(&mut self, items: &Items, space: &Space, lot: Lot) {
        if let Some(open) = self.slot(lot).take() {
            open.close_chunk(items);
            space.lock().seal(items, open.segment);
        }
    }

    /// Leaves open segments that were opened before the flush `mark` alone: what is written from
    /// now on must not be taken for flushed.
    #[inline]
    pub(crate) fn keep_up_with_flush(&mut self, items: &Items, space: &Space, mark: u64) {
        if self.flush_mark != mark {
            self.flush_mark = mark;
            self.seal_all(items, space, |_| true);
        }
    }

    /// Seals all open segments of which `which` says so.
    pub(crate) fn seal_all(&mut self, items: &Items, space: &Space, which: impl Fn(u32) -> bool) {
        for slot in &mut self.open {
            if let Some(open) = slot.take_if(|open| which(open.segment)) {
                open.close_chunk(items);
                space.lock().seal(items, open.segment);
            }
        }
    }
}

impl Open {
    /// Asks for the lines that the next items but one will be written to. Publishing takes a lock,
    /// which waits for every store before it: what is not near then is waited for.
    #[inline]
    fn prefetch_write(&self, items: &Items, lane: &Lane<'_>, likely: Footprint) {
        let ahead = |fill: u32, len: u32, end: u32| {
            let from = fill + AHEAD_ITEMS * len;
            (from + len <= end).then_some(from)
        };
        if let Some(chunks) = &items.chunks
            && let Some(from) = ahead(self.chunk_fill, likely.dram, CHUNK_BYTES)
        {
            chunks.prefetch_write(Chunks::place(self.chunk, from), likely.dram as usize);
        }
        if let Some(from) = ahead(self.medium_fill, likely.medium, items.segment_bytes())
            && !items.is_deep(self.segment)
        {
            let at = items.segment_at(self.segment) + u64::from(from);
            lane.prefetch_write(at, likely.medium as usize);
        }
    }

    /// Whether the segment takes such an item; key memory is bounded by the segment's size as well,
    /// so that empty values do not make one segment of everything.
    #[inline]
    fn takes(&self, items: &Items, needs: Footprint) -> bool {
        let most = items.segment_bytes();
        u64::from(self.medium_fill) + u64::from(needs.medium) <= u64::from(most)
            && self.dram_fill < most
    }

    #[inline]
    fn chunk_takes(&self, items: &Items, needs: Footprint) -> bool {
        items.chunks.is_none() || self.chunk != NONE && self.chunk_fill + needs.dram <= CHUNK_BYTES
    }

    fn close_chunk(&self, items: &Items) {
        if let Some(chunks) = &items.chunks
            && self.chunk != NONE
        {
            chunks.set_fill(self.chunk, self.chunk_fill);
        }
    }
}
