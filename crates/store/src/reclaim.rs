//! Making room: freeing what has ended, collecting garbage, evicting; and moving what stays.
//!
//! In this order: a segment in which everything has ended or died is freed; else, where the segment
//! with the most garbage has a quarter of it, what lives in it is moved (so that a tenant with room
//! never evicts because of garbage); else the policy evicts. Items that stay are read and written
//! through the lane, charged to the tenant whose room is being made.
//!
//! Where there is a deep device, what the policy evicts goes there, if there is a stage to write it
//! to; nothing waits for that. Segments of the deep device are freed ahead of need ([`compact`]);
//! where that does not keep up, one goes, whole: what of it was asked for meanwhile lies on the
//! fast one again. An item that has a twin there leaves the fast device by having the index led to
//! it.
//!
//! What it never does: wait, touch another tenant, free memory that a reader may still look at.
//!
//! *Thread safety*: one worker at a time, by the store's lock around the [`Reclaimer`]. Readers and
//! writers go on: an item is moved by appending a copy and then replacing its place under its
//! bucket's lock, if it is still there.

mod compact;
#[cfg(test)]
mod tests;

use self::compact::Compaction;
use crate::chunks::CHUNK_BYTES;
use crate::evict::Plan;
use crate::header::{Header, State};
use crate::item::Item;
use crate::items::{Draft, Items, Source};
use crate::request::KeyHash;
use crate::segment::{Queue, SegmentState, Segments};
use crate::space::Taker;
use crate::store::{Found, Store};
use crate::walk::Walk;
use crate::writer::{Appended, Classes, Room, Writer};
use arrayvec::ArrayVec;
use nyx_base::{Counter, UnixSeconds, WorkerId};
use nyx_index::{Guard, Place, Places, Slot};
use nyx_tier::Lane;

/// Segments that one search for ended or dead ones looks at.
const WINDOW_SEGMENTS: u32 = 1024;
/// A deep segment of which more is garbage, or twins of what is on the fast device, goes before
/// older ones that live.
const DEEP_GARBAGE_LEAST_PERMILLE: u32 = 500;
/// Garbage is collected where it is at least one part in this many of a segment.
const GARBAGE_ONE_IN: u32 = 4;
/// Items whose buckets are brought near together.
const BATCH_ITEMS: usize = 16;
/// The longest key, padded.
const KEY_BYTES: usize = 256;
/// Room that puts have beside a promotion: a segment of keys.
const PROMOTION_ROOM_BYTES: u64 = CHUNK_BYTES as u64;

/// What reclaiming holds between its steps. Only one worker has it at a time.
#[derive(Debug)]
pub(crate) struct Reclaimer {
    /// Where items that stay are written.
    writer: Writer,
    cursor: u32,
    /// The same of the deep device.
    deep_cursor: u32,
    compaction: Option<Compaction>,
    /// What may be written to the deep device is nearly used up.
    is_scarce: bool,
}

/// What reclaiming has done, for figures. Written under the reclaimer's lock, read by anyone.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) evictions: Counter,
    pub(crate) expirations: Counter,
    pub(crate) relocations: Counter,
    pub(crate) relocated_bytes: Counter,
    pub(crate) demotions: Counter,
    pub(crate) promotions: Counter,
    /// Items that left the fast device for their twins: nothing was written.
    pub(crate) returns: Counter,
    /// Items that were written to the deep device and stay on the fast one.
    pub(crate) mirrors: Counter,
    pub(crate) compactions: Counter,
    pub(crate) compacted_bytes: Counter,
    pub(crate) deep_evictions: Counter,
    /// Items that did not go deep since little may be written, and nobody had asked for them.
    pub(crate) spared: Counter,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A segment or more went into limbo.
    Freed,
    /// Nothing: enough is in limbo, and comes free when the era is over.
    Wait,
    /// Nothing: no segment is sealed, or the disk is full before the tenant is.
    Nothing,
}

/// An item of a segment that is being emptied.
#[derive(Clone, Copy, Debug)]
struct Resident {
    place: Place,
    header: Header,
    hash: u64,
}

/// Items whose buckets are brought near together.
type Batch = ArrayVec<Resident, BATCH_ITEMS>;

/// On whose behalf items are moved.
struct Hand<'a, 'l> {
    store: &'a Store,
    lane: &'a mut Lane<'l>,
    worker: WorkerId,
    now: UnixSeconds,
}

/// What a search found in its window.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    ended: Option<u32>,
    most_garbage: Option<u32>,
    /// The same on the deep device, where less than half would be lost.
    most_deep_garbage: Option<u32>,
}

impl Resident {
    fn found(&self) -> Found {
        Found {
            place: self.place,
            header: self.header,
        }
    }
}

impl Reclaimer {
    pub(crate) fn new(classes: Classes) -> Reclaimer {
        Reclaimer {
            writer: Writer::new(WorkerId(0), Taker::Relocation, classes),
            cursor: 0,
            deep_cursor: 0,
            compaction: None,
            is_scarce: false,
        }
    }

    /// Makes some room, if there is need.
    pub(crate) fn step(
        &mut self,
        store: &Store,
        lane: &mut Lane<'_>,
        worker: WorkerId,
        now: UnixSeconds,
    ) -> Step {
        self.earn(store, now);
        let space = store.space.lock();
        let (is_tight, is_starved) = (space.is_tight(&store.items), space.is_starved());
        let is_deep_tight = space.is_deep_tight();
        drop(space);
        if !is_tight && !is_deep_tight && !is_starved {
            return Step::Wait;
        }
        self.writer
            .keep_up_with_flush(&store.items, &store.space, store.flush_mark());
        let found = self.search(store, now);
        let mut hand = Hand {
            store,
            lane,
            worker,
            now,
        };
        if let Some(victim) = found.ended {
            self.carry_out(&mut hand, Plan::keep_all(&store.items, victim));
            return Step::Freed;
        }
        if is_deep_tight && self.empty_deep(&mut hand, found.most_deep_garbage) {
            return Step::Freed;
        }
        // A disk that is full is somebody's to see to: nothing is evicted for it, and a move might
        // find no room either.
        if !is_tight {
            return Step::Nothing;
        }
        if let Some(victim) = found.most_garbage {
            if self.can_move(store, victim) {
                self.carry_out(&mut hand, Plan::keep_all(&store.items, victim));
                return Step::Freed;
            }
            if store.space.lock().is_waiting() {
                return Step::Wait;
            }
        }
        let eviction = store.config.eviction;
        let plan = eviction.plan(&store.items, &store.space, hand.lane, self.cursor);
        let Some(plan) = plan else {
            return Step::Nothing;
        };
        self.carry_out(&mut hand, plan);
        Step::Freed
    }

    /// Time goes on: more may be written to the deep device.
    fn earn(&mut self, store: &Store, now: UnixSeconds) {
        if let Some(depth) = store.space.lock().depth() {
            depth.earn(now);
            self.is_scarce = depth.is_scarce();
        }
    }

    /// Frees a segment of the deep device, one that is mostly garbage or else an old one; false
    /// where none is written.
    fn empty_deep(&mut self, hand: &mut Hand<'_, '_>, garbage: Option<u32>) -> bool {
        let items = &hand.store.items;
        let victim = garbage.or_else(|| hand.store.space.lock().deep_victim(items));
        if let Some(victim) = victim {
            self.carry_out(hand, Plan::keep_nothing(victim));
        }
        victim.is_some()
    }

    /// Moves what lives in a deep segment that could not be written to the fast device, as far as
    /// there is room.
    pub(crate) fn take_back(
        &mut self,
        store: &Store,
        lane: &mut Lane<'_>,
        worker: WorkerId,
        segment: u32,
        now: UnixSeconds,
    ) {
        let mut hand = Hand {
            store,
            lane,
            worker,
            now,
        };
        let mut plan = Plan::keep_all(&store.items, segment);
        plan.into = Queue::Main;
        store.space.lock().claim(&store.items, segment);
        self.empty(&mut hand, segment, &mut plan);
        let mut space = store.space.lock();
        space.leave_stage(&store.items, segment);
        space.retire(&store.items, segment);
    }

    /// Frees one segment in which everything has ended; false where there is none in the window.
    pub(crate) fn free_ended(
        &mut self,
        store: &Store,
        lane: &mut Lane<'_>,
        worker: WorkerId,
        now: UnixSeconds,
    ) -> bool {
        self.writer
            .keep_up_with_flush(&store.items, &store.space, store.flush_mark());
        self.writer.seal_all(&store.items, &store.space, |segment| {
            store.has_ended(store.items.segments.at(segment), now)
        });
        let Some(victim) = self.search(store, now).ended else {
            return false;
        };
        let mut hand = Hand {
            store,
            lane,
            worker,
            now,
        };
        self.carry_out(&mut hand, Plan::keep_all(&store.items, victim));
        true
    }

    /// Looks at some segments, from where the last search stopped.
    fn search(&mut self, store: &Store, now: UnixSeconds) -> Seen {
        let all = store.items.segments.len();
        let mut found = Seen::default();
        let (mut most, mut most_deep) = (0, DEEP_GARBAGE_LEAST_PERMILLE);
        for _ in 0..all.min(WINDOW_SEGMENTS) {
            self.cursor = (self.cursor + 1) % all;
            let segments = &store.items.segments;
            let segment = segments.at(self.cursor);
            // What waits to be written has a stage, and is not emptied before.
            if segment.state() != SegmentState::Sealed || segment.stage().is_some() {
                continue;
            }
            if segments.live_bytes(self.cursor) == 0 || store.has_ended(segment, now) {
                found.ended = Some(self.cursor);
                return found;
            }
            if store.items.is_deep(self.cursor) {
                let lone = segments.lone_bytes(self.cursor);
                let garbage = 1000 - permille(segments, self.cursor, lone).min(1000);
                if garbage > most_deep {
                    most_deep = garbage;
                    found.most_deep_garbage = Some(self.cursor);
                }
                continue;
            }
            let dead = segments.dead_bytes(self.cursor);
            let garbage = permille(segments, self.cursor, dead);
            if garbage > most && garbage >= 1000 / GARBAGE_ONE_IN {
                most = garbage;
                found.most_garbage = Some(self.cursor);
            }
        }
        found
    }

    /// Whether there is room for everything that lives in a segment.
    fn can_move(&self, store: &Store, victim: u32) -> bool {
        let items = &store.items;
        let live = u64::from(items.segments.live_bytes(victim));
        let room = store.space.lock().room(Taker::Relocation, false);
        // The copies may need a new segment, and keys at most what lives.
        room >= u64::from(items.segment_bytes()) + live
    }

    fn carry_out(&mut self, hand: &mut Hand<'_, '_>, mut plan: Plan) {
        for victim in plan.victims.clone() {
            hand.store.space.lock().claim(&hand.store.items, victim);
            if !hand.store.items.segments.is_dead(victim) {
                self.empty(hand, victim, &mut plan);
            }
            hand.store.space.lock().retire(&hand.store.items, victim);
        }
    }

    /// Takes every item of a segment out of the index or moves it. While one batch is looked up,
    /// the buckets of the next come near.
    fn empty(&mut self, hand: &mut Hand<'_, '_>, victim: u32, plan: &mut Plan) {
        let store = hand.store;
        let mut walk = Walk::new(&store.items, victim);
        let mut next = next_batch(hand, &mut walk);
        while !next.is_empty() {
            let mut batch = std::mem::replace(&mut next, next_batch(hand, &mut walk));
            // Most of what lives will be read: its value comes near while the others are looked up.
            batch.retain(|item| {
                let lives = is_item(hand, item);
                if lives {
                    store.items.prefetch_value(hand.lane, item.place);
                } else if store.items.is_deep(victim) {
                    part(hand, item);
                }
                lives
            });
            for resident in batch {
                self.settle(hand, resident, plan);
            }
        }
    }

    fn settle(&mut self, hand: &mut Hand<'_, '_>, item: Resident, plan: &mut Plan) {
        if has_expired(hand, &item) {
            return;
        }
        let store = hand.store;
        let state = store.items.state(hand.lane, item.place);
        let bytes = store.items.footprint(&item.header).total();
        let stays = plan.keeps(state, bytes).map(|uses| (plan.into, uses));
        if stays.is_none() && lead_to_twin(hand, &item) {
            return;
        }
        let to = stays.or_else(|| {
            self.goes_deep(store, &item, state)
                .then_some((Queue::Deep, 0))
        });
        let items = &store.items;
        let spot = items.spot(item.place, &item.header);
        if let Some((queue, uses)) = to
            && let Some(value) = items.source(spot, item.header.value_len)
            && self.relocate(hand, item, value, queue, uses)
        {
            return;
        }
        // A flush may have come meanwhile.
        if has_expired(hand, &item) || !strike_out(hand, &item) {
            return;
        }
        match store.items.is_deep(store.items.segment_of(item.place)) {
            true => store.done.deep_evictions.add(1),
            false => store.done.evictions.add(1),
        }
        if plan.remembers
            && let Some(ghost) = &store.ghost
        {
            ghost.insert(item.hash);
        }
    }

    /// Whether an item that leaves the fast device is to go to the deep one.
    fn goes_deep(&self, store: &Store, item: &Resident, state: State) -> bool {
        let items = &store.items;
        let is_one = items.deep().is_some_and(|deep| {
            item.header.value_len >= deep.item_len_min
                && !items.is_deep(items.segment_of(item.place))
        });
        let is_spared = is_one && self.is_scarce && !state.is_fetched();
        if is_spared {
            store.done.spared.add(1);
        }
        is_one && !is_spared
    }

    /// Writes a deep item that was fetched to the fast device, where there is room; false where
    /// there is none.
    pub(crate) fn promote(
        &mut self,
        lane: &mut Lane<'_>,
        worker: WorkerId,
        item: &Item<'_>,
        now: UnixSeconds,
    ) -> bool {
        let store = item.store;
        // Whoever had to make room for it might be dropped.
        if store.is_backlogged() {
            return false;
        }
        self.step(store, lane, worker, now);
        let needs = store.items.footprint(&item.header).total();
        // What is kept for moves that make room is not for this.
        if store.space.lock().room(Taker::Put, false) < u64::from(needs) + PROMOTION_ROOM_BYTES {
            return false;
        }
        let mut hand = Hand {
            store,
            lane,
            worker,
            now,
        };
        let resident = Resident {
            place: item.place,
            header: item.header,
            hash: item.hash,
        };
        let value = store.items.source(item.spot, item.header.value_len);
        value.is_some_and(|value| self.relocate(&mut hand, resident, value, Queue::Main, 0))
    }

    /// Writes an item of the fast device to the deep one too; false where it has a twin, or there
    /// is no stage or no room to write it.
    pub(crate) fn mirror(
        &mut self,
        store: &Store,
        lane: &mut Lane<'_>,
        worker: WorkerId,
        (hash, found): (KeyHash, Found),
        now: UnixSeconds,
    ) -> bool {
        let items = &store.items;
        let Some(value) = items.source(
            items.spot(found.place, &found.header),
            found.header.value_len,
        ) else {
            return false;
        };
        let may_have_one = items.may_be_mirrored(&found.header) && !self.is_scarce;
        if !may_have_one || items.twin(found.place, &found.header).is_some() {
            return false;
        }
        self.make_deep_room(store, lane, worker, now);
        // With the unique of the item, so that the one may take the place of the other.
        let header = Header {
            cas: Some(store.cas(found)),
            has_twin: false,
            has_checks: true,
            ..found.header
        };
        let lot = self.writer.lot(Queue::Deep, header.expiry, now);
        let needs = items.footprint(&header);
        if self.writer.make_room(items, &store.space, lot, needs) == Room::None {
            return false;
        }
        let mut key = [0; KEY_BYTES];
        let key = &mut key[..usize::from(header.key_len)];
        items.with_key(lane, found.place, &found.header, |from| {
            key.copy_from_slice(from)
        });
        let draft = Draft {
            header,
            state: items.state(lane, found.place).with_frequency(0),
            key,
            hash,
            check: items
                .checks(found.place, &found.header)
                .map(|checks| checks.value),
            value: [value, Source::Bytes(&[]), Source::Bytes(&[])],
        };
        let appended = self.writer.append(items, lane, lot, &draft);
        let guard = store.index.lock(worker, hash.0);
        let is_there = guard.find(|place| place == found.place).is_some();
        if !is_there || store.is_ended(&found.header, found.place, now) {
            drop(guard);
            self.writer.take_back(items, &appended);
            return false;
        }
        items.set_twin(found.place, &found.header, Some(appended.place));
        items
            .segments
            .add_twin(items.segment_of(appended.place), needs.total());
        drop(guard);
        store.done.mirrors.add(1);
        true
    }

    /// Appends a new item to the deep device; none where there is no stage or no room.
    pub(crate) fn append_deep(
        &mut self,
        store: &Store,
        lane: &mut Lane<'_>,
        worker: WorkerId,
        draft: &Draft<'_>,
        now: UnixSeconds,
    ) -> Option<Appended> {
        self.make_deep_room(store, lane, worker, now);
        let lot = self.writer.lot(Queue::Deep, draft.header.expiry, now);
        let needs = store.items.footprint(&draft.header);
        match self
            .writer
            .make_room(&store.items, &store.space, lot, needs)
        {
            Room::None => None,
            Room::Had | Room::Made => Some(self.writer.append(&store.items, lane, lot, draft)),
        }
    }

    /// Takes back what [`Reclaimer::append_deep`] appended last.
    pub(crate) fn take_back_deep(&mut self, store: &Store, appended: &Appended) {
        self.writer.take_back(&store.items, appended);
    }

    /// Sees that there is a segment to write to on the deep device, and that what is written now is
    /// not taken for flushed.
    fn make_deep_room(
        &mut self,
        store: &Store,
        lane: &mut Lane<'_>,
        worker: WorkerId,
        now: UnixSeconds,
    ) {
        let is_tight = store.space.lock().is_deep_tight();
        // Without a stage it is written elsewhere anyway, and nobody is to leave for it.
        if is_tight && !store.is_backlogged() {
            self.step(store, lane, worker, now);
        }
        let mark = store.flush_mark();
        self.writer
            .keep_up_with_flush(&store.items, &store.space, mark);
    }

    /// Writes an item again and publishes the copy in its stead. True where that is done, or where
    /// the item is no longer there; false where there is no room, or where it has ended meanwhile.
    fn relocate(
        &mut self,
        hand: &mut Hand<'_, '_>,
        item: Resident,
        value: Source<'_>,
        queue: Queue,
        uses: u8,
    ) -> bool {
        let (store, items) = (hand.store, &hand.store.items);
        let Resident {
            place: old,
            header,
            hash,
        } = item;
        let lot = self.writer.lot(queue, header.expiry, hand.now);
        let mut key = [0; KEY_BYTES];
        let key = &mut key[..usize::from(header.key_len)];
        items.with_key(hand.lane, old, &header, |from| key.copy_from_slice(from));
        let check = items.checks(old, &header).map(|checks| checks.value);
        loop {
            let state = items.state(hand.lane, old);
            let header = header_of_copy(store, &item, state, queue);
            let needs = items.footprint(&header);
            if self.writer.make_room(items, &store.space, lot, needs) == Room::None {
                return false;
            }
            let draft = Draft {
                header,
                state: state.with_frequency(uses),
                key,
                hash: KeyHash(hash),
                check,
                value: [value, Source::Bytes(&[]), Source::Bytes(&[])],
            };
            let appended = self.writer.append(items, hand.lane, lot, &draft);
            let mut guard = store.index.lock(hand.worker, hash);
            let Some(slot) = guard.find(|place| place == old) else {
                self.writer.take_back(items, &appended);
                return true;
            };
            let state = items.state(hand.lane, old);
            // Its expiry may have been changed since its header was read.
            let expiry = items.header(hand.lane, old).expiry;
            let has_ended = store.is_ended(&Header { expiry, ..header }, old, hand.now);
            if has_ended || state.is_cas_seen() && header.cas.is_none() {
                // The copy is younger than a flush that came meanwhile, or lacks its unique.
                drop(guard);
                self.writer.take_back(items, &appended);
                if has_ended {
                    return false;
                }
                continue;
            }
            carry_over(hand, appended.place, state.with_frequency(uses), expiry);
            let left = hand_twin_on(items, &item, (appended.place, &header));
            store.note(hand.worker, old);
            guard.replace(slot, appended.place);
            drop(guard);
            bury_all(hand, hash, left);
            store.done.count_move(items, old, queue, needs.total());
            return true;
        }
    }
}

impl Done {
    fn count_move(&self, items: &Items, old: Place, queue: Queue, bytes: u32) {
        let was_deep = items.is_deep(items.segment_of(old));
        if queue == Queue::Deep && was_deep {
            self.compacted_bytes.add(u64::from(bytes));
        } else if queue == Queue::Deep {
            self.demotions.add(1);
        } else if was_deep {
            self.promotions.add(1);
        } else {
            self.relocations.add(1);
            self.relocated_bytes.add(u64::from(bytes));
        }
    }
}

/// The header of a copy of an item that is to lie in `queue`, but for what its writer sets.
fn header_of_copy(store: &Store, item: &Resident, state: State, queue: Queue) -> Header {
    // A unique that was handed out must not change because the item moves.
    let seen = state.is_cas_seen().then(|| store.items.unique(item.place));
    Header {
        cas: item.header.cas.or(seen),
        has_twin: store.is_deep() && queue != Queue::Deep,
        has_checks: store.kept.is_some() || queue == Queue::Deep,
        ..item.header
    }
}

/// Gives the copy of an item the twin that it has from now on: the item itself, where that lies on
/// the deep device and stays there. What is left of the item and its twin. Under the bucket's lock.
fn hand_twin_on(
    items: &Items,
    item: &Resident,
    (copy, header): (Place, &Header),
) -> ArrayVec<Place, 2> {
    let twin = items.twin(item.place, &item.header);
    let old = items.segment_of(item.place);
    let stays = items.is_deep(old) && items.segments.at(old).state() == SegmentState::Sealed;
    if !header.has_twin {
        return [item.place].into_iter().chain(twin).collect();
    }
    let (twin, left) = match stays {
        true => {
            let bytes = items.footprint(&item.header).total();
            items.segments.add_twin(old, bytes);
            (Some(item.place), None)
        }
        false => (twin, Some(item.place)),
    };
    items.set_twin(copy, header, twin);
    left.into_iter().collect()
}

/// Counts what an item that was replaced leaves behind.
fn bury_all(hand: &Hand<'_, '_>, hash: u64, records: ArrayVec<Place, 2>) {
    for record in records {
        hand.store.bury_record(hand.worker, KeyHash(hash), record);
    }
    hand.store.noted(hand.worker);
}

/// Leads the index from an item to its twin: it leaves the fast device and nothing is written. True
/// also where the item is no longer there; false where it has no twin.
fn lead_to_twin(hand: &mut Hand<'_, '_>, item: &Resident) -> bool {
    if !item.header.has_twin {
        return false;
    }
    let (store, items) = (hand.store, &hand.store.items);
    let mut guard = store.index.lock(hand.worker, item.hash);
    let Some(slot) = guard.find(|place| place == item.place) else {
        return true;
    };
    let Some(place) = items.twin(item.place, &item.header) else {
        return false;
    };
    let header = items.header(hand.lane, place);
    let state = items.state(hand.lane, item.place);
    // A unique that was handed out must not change because the item leaves.
    if state.is_cas_seen() && store.cas(item.found()) != store.cas(Found { place, header }) {
        return false;
    }
    let expiry = items.header(hand.lane, item.place).expiry;
    carry_over(hand, place, state.with_frequency(0), expiry);
    store.note(hand.worker, item.place);
    guard.replace(slot, place);
    drop(guard);
    let twin_bytes = items.footprint(&header).total();
    let segments = &items.segments;
    segments.remove_twin(items.segment_of(place), twin_bytes);
    let bytes = items.footprint(&item.header).total();
    store.bury(hand.worker, KeyHash(item.hash), item.place, bytes);
    store.noted(hand.worker);
    store.done.returns.add(1);
    true
}

/// A deep record goes that is no item of its own: the item whose twin it is has none any more.
fn part(hand: &mut Hand<'_, '_>, record: &Resident) {
    let (store, items) = (hand.store, &hand.store.items);
    let is_its = |place| items.is_twin(place, record.place);
    if store.index.find(record.hash, is_its).is_none() {
        return;
    }
    let guard = store.index.lock(hand.worker, record.hash);
    if let Some(slot) = guard.find(is_its) {
        let header = items.header(hand.lane, slot.place);
        items.set_twin(slot.place, &header, None);
    }
}

/// The next items of a walk; asks for their buckets.
fn next_batch(hand: &mut Hand<'_, '_>, walk: &mut Walk) -> Batch {
    let store = hand.store;
    let items = std::iter::from_fn(|| {
        let (place, header) = walk.next(&store.items, hand.lane)?;
        let item = as_resident(hand, place, header);
        store.index.prefetch(item.hash);
        Some(item)
    });
    items.take(BATCH_ITEMS).collect()
}

/// What a walk came to.
fn as_resident(hand: &mut Hand<'_, '_>, place: Place, header: Header) -> Resident {
    let hash_of = |key: &[u8]| hand.store.hash(key).0;
    let hash = hand
        .store
        .items
        .with_key(hand.lane, place, &header, hash_of);
    Resident {
        place,
        header,
        hash,
    }
}

/// Whether a record is an item: the index leads to it.
fn is_item(hand: &Hand<'_, '_>, record: &Resident) -> bool {
    hand.store.approach(record.hash);
    let find = |place| place == record.place;
    hand.store.index.find(record.hash, find).is_some()
}

/// Takes an item out of the index, and counts it and its twin as dead; false where somebody else
/// did.
fn strike_out(hand: &mut Hand<'_, '_>, item: &Resident) -> bool {
    let guard = hand.store.index.lock(hand.worker, item.hash);
    let Some(slot) = guard.find(|place| place == item.place) else {
        return false;
    };
    strike(hand, item, guard, slot);
    true
}

/// Whether an item has ended; then it is taken out, unless somebody else did.
fn has_expired(hand: &mut Hand<'_, '_>, item: &Resident) -> bool {
    let store = hand.store;
    if !store.is_ended(&item.header, item.place, hand.now) {
        return false;
    }
    let guard = store.index.lock(hand.worker, item.hash);
    let Some(slot) = guard.find(|place| place == item.place) else {
        return true;
    };
    // Its expiry may have been changed since its header was read.
    let header = store.items.header(hand.lane, item.place);
    if !store.is_ended(&header, item.place, hand.now) {
        return false;
    }
    strike(hand, item, guard, slot);
    store.done.expirations.add(1);
    true
}

/// Takes an item that was found out of the index, and counts it and its twin as dead.
fn strike(hand: &mut Hand<'_, '_>, item: &Resident, mut guard: Guard<'_>, slot: Slot) {
    let store = hand.store;
    store.note(hand.worker, item.place);
    store
        .items
        .with_key(hand.lane, item.place, &item.header, |key| {
            store.strike(&mut guard, slot, hand.worker, key);
        });
    drop(guard);
    let bytes = store.items.footprint(&item.header).total();
    store.bury(hand.worker, KeyHash(item.hash), item.place, bytes);
    store.bury_twin(hand.worker, KeyHash(item.hash), item.found());
    store.noted(hand.worker);
}

/// Takes over what may have changed in place while the copy was made. Under the bucket's lock.
fn carry_over(hand: &mut Hand<'_, '_>, new: Place, state: State, expiry: UnixSeconds) {
    let items = &hand.store.items;
    items.update_state(hand.lane, new, |_| state);
    let copy = items.header(hand.lane, new);
    if expiry != copy.expiry {
        items.set_expiry(hand.lane, new, &copy, expiry);
    }
}

/// So many of a segment's bytes as a share of all that were written to it.
fn permille(segments: &Segments, segment: u32, bytes: u32) -> u32 {
    permille_of(bytes, segments.at(segment).written_bytes())
}

fn permille_of(bytes: u32, all: u32) -> u32 {
    (u64::from(bytes) * 1000 / u64::from(all).max(1)) as u32
}
