//! Compaction of the deep device: what lives in segments that are partly dead is written again, so
//! that they are free.
//!
//! Where few segments are left, that one is taken of which the least would be lost. Its values are
//! read behind everything else, as many at a time as go into one piece, and put where items go that
//! leave the fast device; records that are twins are parted with. When the last of them is out it
//! is free. One segment at a time, on the hand of the worker that began with it; both ways are
//! charged to the tenant, and what is written is part of what it may write in a day.
//!
//! Of a device that is alive nearly everywhere nothing is written again: the oldest goes then. So
//! it does where new items come faster than segments are freed.
//!
//! What it never does: wait; look at what it moves: its check moves with it, and whoever reads it
//! compares.
//!
//! *Thread safety*: under the reclaimer's lock. Readers find an item in the segment that is read
//! until its copy is published.

use super::{
    Hand, Reclaimer, Resident, WINDOW_SEGMENTS, as_resident, has_expired, header_of_copy, is_item,
    part, permille_of, strike_out,
};
use crate::items::Source;
use crate::segment::{Queue, SegmentState};
use crate::store::Store;
use crate::walk::Walk;
use crate::writer::{Room, Writer};
use nyx_base::{Instant, UnixSeconds, WorkerId};
use nyx_media::queue::Buffer;
use nyx_tier::Lane;
use std::sync::atomic::Ordering::Relaxed;

/// A segment in which less is dead, twins or empty is not worth it: to free one, more than four
/// would be written.
const GARBAGE_LEAST_PERMILLE: u32 = 200;
/// Values are read together up to so many bytes: no read that somebody waits for is to find more
/// than that before it.
const READ_BYTES: u32 = 64 << 10;
/// Where there is no room for a copy, it is looked for again after this time.
const REST_SECONDS: u32 = 1;

/// A segment whose values are on their way to others.
#[derive(Debug)]
pub(super) struct Compaction {
    segment: u32,
    /// On whose hand what is read comes.
    worker: WorkerId,
    /// What is before it is out.
    walk: Walk,
    /// What is on its way.
    reading: Option<Span>,
    rests_until: UnixSeconds,
}

/// Bytes of a segment's values.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: u32,
    to: u32,
}

impl Span {
    fn of(item: &Resident) -> Span {
        let from = item.header.value_offset;
        Span {
            from,
            to: from + item.header.value_len,
        }
    }

    fn joined(self, other: Span) -> Span {
        Span {
            from: self.from.min(other.from),
            to: self.to.max(other.to),
        }
    }

    fn has(self, other: Span) -> bool {
        self.from <= other.from && other.to <= self.to
    }

    fn len(self) -> u32 {
        self.to - self.from
    }
}

impl Store {
    /// Whether there may be something for [`Store::compact`] to do. A hint.
    #[inline]
    pub fn has_to_compact(&self) -> bool {
        let deep = self.items.deep();
        deep.is_some_and(|deep| deep.to_compact.load(Relaxed))
    }

    /// Begins or goes on to free segments of the deep device, where few are left. Call it from the
    /// tick, after [`Store::compacted`], and where [`Store::has_to_compact`] says so. Costs little
    /// where there is nothing to do.
    pub fn compact(&self, w: &Writer, lane: &mut Lane<'_>, (now, unix): (Instant, UnixSeconds)) {
        let Some(deep) = self.items.deep() else {
            return;
        };
        deep.to_compact.store(false, Relaxed);
        // Another worker makes room: the next tick will do.
        if let Ok(mut reclaimer) = self.reclaimer.try_lock() {
            reclaimer.compact(self, lane, w.worker(), (now, unix));
        }
    }

    /// Takes in what was read of the segment with this sequence number; nothing where it could not
    /// be.
    pub fn compacted(
        &self,
        w: &Writer,
        lane: &mut Lane<'_>,
        (seq, bytes): (u64, Option<Buffer>),
        now: UnixSeconds,
    ) {
        let mut hand = Hand {
            store: self,
            lane,
            worker: w.worker(),
            now,
        };
        self.lock_reclaimer().take_in(&mut hand, seq, bytes);
    }
}

impl Reclaimer {
    fn compact(
        &mut self,
        store: &Store,
        lane: &mut Lane<'_>,
        worker: WorkerId,
        (now, unix): (Instant, UnixSeconds),
    ) {
        // While compaction makes room nobody else may step.
        self.earn(store, unix);
        let mut hand = Hand {
            store,
            lane,
            worker,
            now: unix,
        };
        loop {
            let next = self.compaction.take();
            let Some(it) = next.or_else(|| self.begin_compaction(store, worker)) else {
                return;
            };
            self.compaction = self.go_on(&mut hand, it, now);
            if self.compaction.is_some() {
                return;
            }
        }
    }

    /// Sets the next read off, if it is time; none where the segment was emptied.
    fn go_on(
        &mut self,
        hand: &mut Hand<'_, '_>,
        mut it: Compaction,
        now: Instant,
    ) -> Option<Compaction> {
        if it.worker != hand.worker || it.reading.is_some() || hand.now < it.rests_until {
            return Some(it);
        }
        let (store, items) = (hand.store, &hand.store.items);
        let Some(span) = it.plan(hand) else {
            store.space.lock().end_compaction(items, it.segment);
            store.done.compactions.add(1);
            return None;
        };
        // A stage comes free when a write is done, the others with time alone.
        if !store.space.lock().has_stage(items) || !hand.lane.deep_gate(now).is_open() {
            return Some(it);
        }
        if !self.room_for(hand, &it) {
            it.rest(hand.now);
            return Some(it);
        }
        let seq = items.segments.at(it.segment).seq();
        let at = items.deep_at(it.segment) + u64::from(span.from);
        let is_sent = hand.lane.read_behind(seq, at, span.len() as usize);
        it.reading = is_sent.then_some(span);
        Some(it)
    }

    /// Makes room for the copy of the item that is next, so that nothing is read that cannot be
    /// written. What is read with it may find none: then it is not read again before there is.
    fn room_for(&mut self, hand: &mut Hand<'_, '_>, it: &Compaction) -> bool {
        let (store, items) = (hand.store, &hand.store.items);
        let mut walk = it.walk;
        let Some((place, header)) = walk.next(items, hand.lane) else {
            return true;
        };
        let item = as_resident(hand, place, header);
        let state = items.state(hand.lane, place);
        let needs = items.footprint(&header_of_copy(store, &item, state, Queue::Deep));
        let lot = self.writer.lot(Queue::Deep, header.expiry, hand.now);
        self.writer.make_room(items, &store.space, lot, needs) != Room::None
    }

    /// The segment that is worth most, if it is time.
    fn begin_compaction(&mut self, store: &Store, worker: WorkerId) -> Option<Compaction> {
        let items = &store.items;
        if !store.space.lock().is_compaction_due(items) {
            return None;
        }
        let segment = self.least_alive(store)?;
        store.space.lock().begin_compaction(items, segment);
        Some(Compaction {
            segment,
            worker,
            walk: Walk::new(items, segment),
            reading: None,
            rests_until: UnixSeconds(0),
        })
    }

    /// Of some deep segments, from where the last search stopped, the one of which the least would
    /// be lost; none where that is too much of each.
    fn least_alive(&mut self, store: &Store) -> Option<u32> {
        let (items, segments) = (&store.items, &store.items.segments);
        let all = segments.len() - items.first_deep();
        let (mut least, mut found) = (1000 - GARBAGE_LEAST_PERMILLE, None);
        for _ in 0..all.min(WINDOW_SEGMENTS) {
            self.deep_cursor = (self.deep_cursor + 1) % all;
            let at = items.first_deep() + self.deep_cursor;
            let segment = segments.at(at);
            if segment.state() != SegmentState::Sealed || segment.stage().is_some() {
                continue;
            }
            // What was never filled is as good as dead.
            let room = segment.written_bytes().max(items.segment_bytes());
            let alive = permille_of(segments.lone_bytes(at), room);
            if alive < least {
                (least, found) = (alive, Some(at));
            }
        }
        found
    }

    /// Writes again what lives of what was read, as far as there is room; what could not be read is
    /// lost.
    fn take_in(&mut self, hand: &mut Hand<'_, '_>, seq: u64, bytes: Option<Buffer>) {
        let items = &hand.store.items;
        let is_its = |it: &mut Compaction| {
            it.worker == hand.worker && items.segments.at(it.segment).seq() == seq
        };
        let Some(mut it) = self.compaction.take_if(is_its) else {
            return;
        };
        if let Some(span) = it.reading.take()
            && !self.write_again(hand, &mut it, span, bytes.as_deref())
            && hand.store.space.lock().has_stage(items)
        {
            it.rest(hand.now);
        }
        self.compaction = Some(it);
    }

    /// False where there is no room for something: it and what follows are to be read again.
    fn write_again(
        &mut self,
        hand: &mut Hand<'_, '_>,
        it: &mut Compaction,
        span: Span,
        bytes: Option<&[u8]>,
    ) -> bool {
        let store = hand.store;
        // A copy that lies among what was flushed would be taken for flushed.
        self.writer
            .keep_up_with_flush(&store.items, &store.space, store.flush_mark());
        loop {
            let before = it.walk;
            let Some((place, header)) = it.walk.next(&store.items, hand.lane) else {
                return true;
            };
            let item = as_resident(hand, place, header);
            let value = Span::of(&item);
            if !span.has(value) {
                it.walk = before;
                return true;
            }
            if !is_item(hand, &item) {
                continue;
            }
            let Some(bytes) = bytes else {
                let is_lost = strike_out(hand, &item);
                store.lost.fetch_add(u64::from(is_lost), Relaxed);
                continue;
            };
            let from = (value.from - span.from) as usize;
            let source = Source::Bytes(&bytes[from..][..value.len() as usize]);
            let uses = store.items.state(hand.lane, place).frequency();
            if self.relocate(hand, item, source, Queue::Deep, uses) {
                continue;
            }
            if !has_expired(hand, &item) {
                it.walk = before;
                return false;
            }
        }
    }
}

impl Compaction {
    fn rest(&mut self, now: UnixSeconds) {
        self.rests_until = UnixSeconds(now.0.saturating_add(REST_SECONDS));
    }

    /// What is to be read next: values of items that live, as many as go together. Where it begins
    /// is where the walk stands afterwards; none where nothing lives any more.
    fn plan(&mut self, hand: &mut Hand<'_, '_>) -> Option<Span> {
        let store = hand.store;
        let mut planned: Option<(Span, Walk)> = None;
        loop {
            let before = self.walk;
            let Some((place, header)) = self.walk.next(&store.items, hand.lane) else {
                break;
            };
            let item = as_resident(hand, place, header);
            if !is_item(hand, &item) {
                part(hand, &item);
                continue;
            }
            if has_expired(hand, &item) {
                continue;
            }
            let value = Span::of(&item);
            let Some((span, begin)) = planned else {
                planned = Some((value, before));
                continue;
            };
            let joined = span.joined(value);
            if joined.len() > READ_BYTES {
                break;
            }
            planned = Some((joined, begin));
        }
        let (span, begin) = planned?;
        self.walk = begin;
        Some(span)
    }
}
