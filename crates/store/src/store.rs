//! One tenant's items: finding, storing, removing (NyxCache section 3.5: index, headers and keys in
//! DRAM, values on the medium by non-temporal stores).
//!
//! What it never does: touch the medium except through a lane, lock on a GET, allocate on a GET or a
//! put, know of any other tenant.
//!
//! *Thread safety*: all methods take `&self` and may run on all workers at once; a worker calls them
//! within an era, with its own writer and lane. A put appends to the worker's own open segment and
//! then publishes under the lock of one bucket, where its condition is judged again; what did not
//! come to be published is taken back. Methods that take the writer may end the worker's era and
//! begin another: items that the worker found before are then no longer its to read.
//!
//! *Invariants*: what the index gives out is a whole item that is not written again before the era is
//! over. The memory in use is at most `size`, at every moment.

use crate::config::{StoreConfig, StoreError};
use crate::eras::Eras;
use crate::ghost::Ghost;
use crate::header::{Header, State};
use crate::item::Item;
use crate::items::{Items, Source};
use crate::reclaim::{Done, Reclaimer, Step};
use crate::request::{
    Condition, DeleteOutcome, Figures, KEY_LEN_MAX, KeyHash, Put, PutOutcome, SegmentCounts, Side,
};
use crate::segment::{Queue, Segment, SegmentState};
use crate::shape;
use crate::space::{Space, Taker};
use crate::writer::{Appended, Draft, Lot, Room, Writer};
use crossbeam_utils::Backoff;
use nyx_base::{CachePadded, UnixSeconds, WorkerId};
use nyx_gate::Lane;
use nyx_index::{Full, Hash, Index, Place};
use std::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How often a put that finds no room tries to make some, or lets other threads run, before it gives
/// up. A worker that was preempted within its era must get its turn meanwhile.
const ROOM_TRIES: u32 = 100_000;
/// Steps of reclaiming that a put makes ahead of need.
const STEPS_AHEAD: usize = 8;
/// Buckets that one put adds to the index at most.
const GROWTH_PER_PUT: usize = 2;
/// Segments that one call of [`Store::expire`] frees at most.
const EXPIRE_SEGMENTS: usize = 4;

/// One tenant's items, shared by all workers.
#[derive(Debug)]
pub struct Store {
    config: StoreConfig,
    eras: Arc<Eras>,
    pub(crate) items: Items,
    pub(crate) index: Hash,
    pub(crate) space: Space,
    pub(crate) ghost: Option<Ghost>,
    pub(crate) done: Done,
    /// Where counters of uses stop under this policy.
    pub(crate) uses_most: u8,
    classes: u32,
    reclaimer: Mutex<Reclaimer>,
    flush: CachePadded<Flush>,
}

/// What was flushed. Read on every GET, written almost never.
#[derive(Debug)]
struct Flush {
    /// Items of segments with a lower sequence number are gone.
    mark: AtomicU64,
    /// The second at which the next flush is due.
    due: AtomicU32,
}

/// An item that was found, with the header that the key was compared in.
#[derive(Clone, Copy, Debug)]
struct Found {
    place: Place,
    header: Header,
}

/// What must be so at the moment of publishing.
#[derive(Clone, Copy, Debug)]
enum Expect {
    Condition(Condition),
    /// The item that was rewritten is still the one.
    Same(Place),
}

/// A change to an item that is written again.
struct Change<'a> {
    expiry: Option<UnixSeconds>,
    invalidate: bool,
    add: Option<(Side, crate::request::Value<'a>)>,
}

impl Store {
    /// An empty store. Reserves address space; touches only the tables.
    pub fn new(config: StoreConfig, eras: Arc<Eras>) -> Result<Store, StoreError> {
        let plan = shape::plan(&config)?;
        let index = Hash::new(plan.index)?;
        let chunks = plan.chunks()?;
        let segments = crate::segment::Segments::new(plan.segments);
        let ghost = plan.ghost_keys.map(Ghost::new);
        let used = plan.fixed_bytes + index.bytes();
        Ok(Store {
            items: Items::new(chunks, segments, config.medium_base, config.segment_bytes),
            space: Space::new(plan.space, used, plan.segments, eras.clone()),
            index,
            ghost,
            done: Done::default(),
            uses_most: config.eviction.uses_most(),
            classes: plan.classes,
            reclaimer: Mutex::new(Reclaimer::new(plan.classes)),
            flush: CachePadded(Flush {
                mark: AtomicU64::new(0),
                due: AtomicU32::new(UnixSeconds::NEVER.0),
            }),
            config,
            eras,
        })
    }

    /// What the store was made from.
    pub fn config(&self) -> &StoreConfig {
        &self.config
    }

    /// The hand of `worker`: make one per worker, once.
    pub fn writer(&self, worker: WorkerId) -> Writer {
        Writer::new(worker, Taker::Put, self.classes)
    }

    /// The hash of a key.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash(xxh3_64_with_seed(key, self.config.hash_seed))
    }

    /// First stage of a batch: brings the key's bucket near.
    #[inline]
    pub fn prefetch_bucket(&self, hash: KeyHash) {
        self.index.prefetch(hash.0);
    }

    /// Second stage, when the bucket is near: brings the candidate's header and key near.
    #[inline]
    pub fn prefetch_item(&self, hash: KeyHash) {
        if let Some(place) = self.index.candidate(hash.0) {
            self.items.prefetch(place);
        }
    }

    /// Third stage, when the header is near: brings the candidate's value near.
    #[inline]
    pub fn prefetch_value(&self, lane: &Lane<'_>, hash: KeyHash) {
        if let Some(place) = self.index.candidate(hash.0) {
            self.items.prefetch_value(lane, place);
        }
    }

    /// Finds an item. Does not count an access: see [`Item::mark_access`].
    #[inline]
    pub fn get(
        &self,
        lane: &mut Lane<'_>,
        key: &[u8],
        hash: KeyHash,
        now: UnixSeconds,
    ) -> Option<Item<'_>> {
        let Found { place, header } = self.find(lane, key, hash, now)?;
        let state = self.items.state(lane, place);
        Some(Item {
            store: self,
            hash: hash.0,
            place,
            header,
            state,
        })
    }

    /// Stores an item where its condition holds.
    pub fn put(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        put: &Put<'_>,
        now: UnixSeconds,
    ) -> PutOutcome {
        self.begin(w, now);
        let Some(header) = self.header(put) else {
            return PutOutcome::TooLarge;
        };
        let needs = self.items.footprint(&header);
        if needs.medium > self.config.segment_bytes {
            return PutOutcome::TooLarge;
        }
        if put.condition != Condition::Always {
            let found = self.find(lane, put.key, put.hash, now);
            if let Err(outcome) = self.judge(put.condition, found) {
                return outcome;
            }
        }
        let lot = Lot {
            queue: self.queue_for(put.hash),
            class: w.class(put.expiry, now),
        };
        if !self.make_room(w, lane, lot, needs, now) {
            return PutOutcome::OutOfMemory;
        }
        let state = State::written(now)
            .with_stale(put.stale)
            .with_win_sent(put.win_sent);
        let value = [
            Source::Bytes(put.value.head),
            Source::Bytes(put.value.tail),
            Source::Bytes(&[]),
        ];
        let appended = w.append(
            &self.items,
            lane,
            lot,
            &Draft {
                header,
                state,
                key: put.key,
                value,
            },
        );
        self.publish(
            w,
            lane,
            put.key,
            put.hash,
            &appended,
            Expect::Condition(put.condition),
            now,
        )
    }

    /// Adds `put.value` at one end of an item's value; flags and expiry of `put` are ignored, its
    /// condition may be `Always` or `CasIs`. `NotStored` where there is no item.
    pub fn extend(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        put: &Put<'_>,
        side: Side,
        now: UnixSeconds,
    ) -> PutOutcome {
        let change = Change {
            expiry: None,
            invalidate: false,
            add: Some((side, put.value)),
        };
        match self.rewrite(w, lane, (put.key, put.hash), put.condition, &change, now) {
            PutOutcome::NotFound => PutOutcome::NotStored,
            outcome => outcome,
        }
    }

    /// Removes an item. Conditions other than `CasIs` mean `Always`.
    pub fn delete(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        key: &[u8],
        hash: KeyHash,
        condition: Condition,
        now: UnixSeconds,
    ) -> DeleteOutcome {
        self.begin(w, now);
        let mut header = None;
        let mut guard = self.index.lock(w.worker(), hash.0);
        let slot = guard.find(|place| {
            header = self.items.header_of(lane, place, key);
            header.is_some()
        });
        let (Some(slot), Some(header)) = (slot, header) else {
            return DeleteOutcome::NotFound;
        };
        let found = Found {
            place: slot.place,
            header,
        };
        let ended = self.is_ended(&header, slot.place, now);
        if !ended && matches!(condition, Condition::CasIs(cas) if cas != self.cas(found)) {
            return DeleteOutcome::Exists;
        }
        guard.remove(slot);
        drop(guard);
        self.kill(found);
        if ended {
            DeleteOutcome::NotFound
        } else {
            DeleteOutcome::Deleted
        }
    }

    /// Marks an item stale and its token to recache as not given (meta `md` with `I`), and gives it
    /// a new end where `expiry` is some. Its CAS unique changes.
    #[allow(clippy::too_many_arguments)]
    pub fn invalidate(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        key: &[u8],
        hash: KeyHash,
        condition: Condition,
        expiry: Option<UnixSeconds>,
        now: UnixSeconds,
    ) -> DeleteOutcome {
        let change = Change {
            expiry,
            invalidate: true,
            add: None,
        };
        match self.rewrite(w, lane, (key, hash), condition, &change, now) {
            PutOutcome::Stored { .. } => DeleteOutcome::Deleted,
            PutOutcome::Exists => DeleteOutcome::Exists,
            PutOutcome::OutOfMemory => self.delete(w, lane, key, hash, condition, now),
            _ => DeleteOutcome::NotFound,
        }
    }

    /// Gives an item a new end. False where there is no such item (or no room to write it again:
    /// items get room for an expiry only when they need it).
    pub fn touch(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        key: &[u8],
        hash: KeyHash,
        expiry: UnixSeconds,
        now: UnixSeconds,
    ) -> bool {
        self.begin(w, now);
        let guard = self.index.lock(w.worker(), hash.0);
        let mut header = None;
        let slot = guard.find(|place| {
            header = self.items.header_of(lane, place, key);
            header.is_some()
        });
        let (Some(slot), Some(header)) = (slot, header) else {
            return false;
        };
        if self.is_ended(&header, slot.place, now) {
            return false;
        }
        if header.expiry == expiry {
            return true;
        }
        if header.expiry != UnixSeconds::NEVER && expiry != UnixSeconds::NEVER {
            self.items.set_expiry(lane, slot.place, &header, expiry);
            return true;
        }
        drop(guard);
        let change = Change {
            expiry: Some(expiry),
            invalidate: false,
            add: None,
        };
        let outcome = self.rewrite(w, lane, (key, hash), Condition::Always, &change, now);
        matches!(outcome, PutOutcome::Stored { .. })
    }

    /// Forgets, at the second `at`, every item that was written before that second comes; at once
    /// where `at` is not after `now`. Takes the place of a flush that is still to come. Costs the same for any number of items.
    pub fn flush(&self, at: UnixSeconds, now: UnixSeconds) {
        self.meet_due_flush(now);
        match at > now {
            true => self.flush.due.store(at.0, Relaxed),
            false => {
                self.flush.due.store(UnixSeconds::NEVER.0, Relaxed);
                self.flush_now();
            }
        }
    }

    /// Frees some of what has expired or was flushed; true where there may be more. Bounded work:
    /// call it from the tick.
    pub fn expire(&self, w: &mut Writer, lane: &mut Lane<'_>, now: UnixSeconds) -> bool {
        self.begin(w, now);
        w.seal_all(&self.items, &self.space, |segment| {
            self.has_ended(self.items.segments.at(segment), now)
        });
        let Ok(mut reclaimer) = self.reclaimer.try_lock() else {
            return true;
        };
        let freed = (0..EXPIRE_SEGMENTS)
            .take_while(|_| reclaimer.free_ended(self, lane, w.worker(), now))
            .count();
        self.space.lock().collect(&self.items);
        freed == EXPIRE_SEGMENTS
    }

    /// How the store stands.
    pub fn figures(&self) -> Figures {
        let mut figures = Figures {
            items: self.index.len(),
            used_bytes: self.space.lock().used(),
            index_bytes: self.index.bytes(),
            evictions: self.done.evictions.get(),
            expirations: self.done.expirations.get(),
            relocations: self.done.relocations.get(),
            relocated_bytes: self.done.relocated_bytes.get(),
            ..Figures::default()
        };
        for segment in self.items.segments.iter() {
            let SegmentCounts {
                free,
                open,
                sealed,
                draining,
                limbo,
            } = &mut figures.segments;
            let state = segment.state();
            *match state {
                SegmentState::Free => free,
                SegmentState::Open => open,
                SegmentState::Sealed => sealed,
                SegmentState::Draining => draining,
                SegmentState::Limbo => limbo,
            } += 1;
            if state != SegmentState::Free {
                figures.value_bytes += u64::from(self.config.segment_bytes);
                figures.key_bytes +=
                    u64::from(segment.chunks()) * u64::from(crate::chunks::CHUNK_BYTES);
                figures.live_bytes += u64::from(segment.live_bytes());
                figures.dead_bytes += u64::from(segment.dead_bytes());
            }
        }
        figures
    }
}

/// What the methods above are made of.
impl Store {
    /// What every change begins with: a flush that came due, and open segments that were flushed.
    fn begin(&self, w: &mut Writer, now: UnixSeconds) {
        self.meet_due_flush(now);
        w.keep_up_with_flush(&self.items, &self.space, self.flush_mark());
    }

    /// Does what a flush asked for earlier, when its second has come.
    fn meet_due_flush(&self, now: UnixSeconds) {
        let due = self.flush.due.load(Relaxed);
        let never = UnixSeconds::NEVER.0;
        // One worker's exchange wins, so that no worker flushes what another wrote after the flush.
        if due <= now.0
            && self
                .flush
                .due
                .compare_exchange(due, never, AcqRel, Relaxed)
                .is_ok()
        {
            self.flush_now();
        }
    }

    fn flush_now(&self) {
        let mut space = self.space.lock();
        let mark = space.next_seq();
        self.flush.mark.store(mark, Release);
    }

    /// Items of segments with a lower sequence number were flushed.
    pub(crate) fn flush_mark(&self) -> u64 {
        self.flush.mark.load(Acquire)
    }

    fn header(&self, put: &Put<'_>) -> Option<Header> {
        let fits = !put.key.is_empty()
            && put.key.len() <= KEY_LEN_MAX
            && put.value.len() <= self.config.item_len_max as usize;
        fits.then(|| Header {
            value_offset: 0,
            value_len: put.value.len() as u32,
            key_len: put.key.len() as u8,
            flags: put.flags,
            expiry: put.expiry,
            cas: put.cas,
        })
    }

    /// The live item of a key.
    #[inline]
    fn find(
        &self,
        lane: &mut Lane<'_>,
        key: &[u8],
        hash: KeyHash,
        now: UnixSeconds,
    ) -> Option<Found> {
        let mut header = None;
        let place = self.index.find(hash.0, |place| {
            header = self.items.header_of(lane, place, key);
            header.is_some()
        })?;
        let header = header?;
        (!self.is_ended(&header, place, now)).then_some(Found { place, header })
    }

    /// Whether an item has expired or was flushed.
    #[inline]
    pub(crate) fn is_ended(&self, header: &Header, place: Place, now: UnixSeconds) -> bool {
        if header.expiry <= now {
            return true;
        }
        // After a due flush nobody has met yet, everything is older than the flush.
        if self.flush.due.load(Relaxed) <= now.0 {
            return true;
        }
        let mark = self.flush_mark();
        mark != 0 && self.items.segments.at(self.items.segment_of(place)).seq() < mark
    }

    /// Whether everything in a segment has.
    pub(crate) fn has_ended(&self, segment: &Segment, now: UnixSeconds) -> bool {
        segment.has_expired(now) || segment.seq() < self.flush_mark()
    }

    fn cas(&self, found: Found) -> u64 {
        found
            .header
            .cas
            .unwrap_or_else(|| self.items.unique(found.place))
    }

    fn kill(&self, found: Found) {
        let segment = self.items.segments.at(self.items.segment_of(found.place));
        segment.kill(self.items.footprint(&found.header).total());
    }

    /// Whether a condition holds; true where it does only for a stale item.
    fn judge(&self, condition: Condition, found: Option<Found>) -> Result<bool, PutOutcome> {
        match (condition, found) {
            (Condition::Always, _) | (Condition::Absent, None) | (Condition::Present, Some(_)) => {
                Ok(false)
            }
            (Condition::Absent, Some(_)) | (Condition::Present, None) => Err(PutOutcome::NotStored),
            (Condition::CasIs(_) | Condition::CasOrStale(_), None) => Err(PutOutcome::NotFound),
            (Condition::CasIs(cas), Some(found)) => match cas == self.cas(found) {
                true => Ok(false),
                false => Err(PutOutcome::Exists),
            },
            (Condition::CasOrStale(cas), Some(found)) => match self.cas(found) {
                now if cas == now => Ok(false),
                now if cas < now => Ok(true),
                _ => Err(PutOutcome::Exists),
            },
        }
    }

    /// Publishes an appended item, or takes it back.
    #[allow(clippy::too_many_arguments)]
    fn publish(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        key: &[u8],
        hash: KeyHash,
        appended: &Appended,
        expect: Expect,
        now: UnixSeconds,
    ) -> PutOutcome {
        loop {
            let mut header = None;
            let mut guard = self.index.lock(w.worker(), hash.0);
            let slot = guard.find(|place| {
                header = self.items.header_of(lane, place, key);
                header.is_some()
            });
            let old = slot.zip(header).map(|(slot, header)| Found {
                place: slot.place,
                header,
            });
            let live = old.filter(|old| !self.is_ended(&old.header, old.place, now));
            let judged = match expect {
                Expect::Condition(condition) => self.judge(condition, live),
                Expect::Same(place) if live.is_some_and(|live| live.place == place) => Ok(false),
                Expect::Same(_) => Err(PutOutcome::Exists),
            };
            let published = match (judged, slot) {
                (Err(outcome), _) => {
                    drop(guard);
                    w.take_back(&self.items, appended);
                    return outcome;
                }
                (Ok(stale), Some(slot)) => {
                    self.inherit(lane, slot.place, appended.place, stale);
                    guard.replace(slot, appended.place);
                    Ok(())
                }
                (Ok(_), None) => guard.insert(appended.place),
            };
            drop(guard);
            match published {
                Err(Full) if !self.grant(w, lane, now) => {
                    w.take_back(&self.items, appended);
                    return PutOutcome::OutOfMemory;
                }
                Err(Full) => continue,
                Ok(()) => {}
            }
            match old {
                Some(old) => self.kill(old),
                None => self.grow(w, lane),
            }
            return PutOutcome::Stored {
                cas: self.published_cas(lane, appended.place),
            };
        }
    }

    fn published_cas(&self, lane: &mut Lane<'_>, place: Place) -> u64 {
        // The writer's own item: the explicit unique is in its header, the other in its place.
        match &self.items.chunks {
            Some(chunks) => chunks
                .header(place)
                .cas
                .unwrap_or_else(|| self.items.unique(place)),
            None => self
                .items
                .header(lane, place)
                .cas
                .unwrap_or_else(|| self.items.unique(place)),
        }
    }

    /// What a new item takes over from the one that it replaces: how often it was used, where the
    /// policy counts.
    fn inherit(&self, lane: &mut Lane<'_>, old: Place, new: Place, stale: bool) {
        let uses = match self.uses_most {
            0 => 0,
            _ => self.items.state(lane, old).frequency(),
        };
        if uses > 0 || stale {
            self.items.update_state(lane, new, |state| {
                state
                    .with_frequency(uses)
                    .with_stale(stale || state.is_stale())
            });
        }
    }

    /// Writes an item again with a change. `NotFound` where there is none.
    fn rewrite(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        (key, hash): (&[u8], KeyHash),
        condition: Condition,
        change: &Change<'_>,
        now: UnixSeconds,
    ) -> PutOutcome {
        self.begin(w, now);
        let mut room_for = None;
        loop {
            let Some(found) = self.find(lane, key, hash, now) else {
                return PutOutcome::NotFound;
            };
            if matches!(condition, Condition::CasIs(cas) if cas != self.cas(found)) {
                return PutOutcome::Exists;
            }
            let state = self.items.state(lane, found.place);
            let old_value = Source::Medium {
                at: self.items.value_at(found.place, &found.header),
                len: found.header.value_len,
            };
            let Some(header) = self.changed(found, state, change) else {
                return PutOutcome::TooLarge;
            };
            let needs = self.items.footprint(&header);
            let lot = Lot {
                queue: self.queue_of(found.place),
                class: w.class(header.expiry, now),
            };
            if room_for != Some((lot, needs)) {
                // Making room may end the era and with it the item that was found: look again.
                if !self.make_room(w, lane, lot, needs, now) {
                    return PutOutcome::OutOfMemory;
                }
                room_for = Some((lot, needs));
                continue;
            }
            room_for = None;
            let state = match change.invalidate {
                true => state.with_stale(true).with_win_sent(false),
                false => state,
            };
            let value = change.value(old_value);
            let appended = w.append(
                &self.items,
                lane,
                lot,
                &Draft {
                    header,
                    state,
                    key,
                    value,
                },
            );
            let expect = Expect::Same(found.place);
            match self.publish(w, lane, key, hash, &appended, expect, now) {
                // Somebody was faster: the item is another one now.
                PutOutcome::Exists => continue,
                outcome => return outcome,
            }
        }
    }

    /// The header of an item after a change; none where it grew too large.
    fn changed(&self, found: Found, state: State, change: &Change<'_>) -> Option<Header> {
        let mut header = found.header;
        header.value_offset = 0;
        if let Some((_, value)) = change.add {
            let len = header.value_len as usize + value.len();
            header.value_len = u32::try_from(len).ok()?;
            if header.value_len > self.config.item_len_max {
                return None;
            }
        }
        header.expiry = change.expiry.unwrap_or(header.expiry);
        // Touching keeps the unique that somebody may hold; a new value gets a new one.
        header.cas = match change.add.is_none() && !change.invalidate {
            true if state.is_cas_seen() => Some(self.cas(found)),
            true => header.cas,
            false => None,
        };
        (self.items.footprint(&header).medium <= self.config.segment_bytes).then_some(header)
    }

    /// The queue to write an item to. The index's candidate is nearly always the item of the key, and
    /// its bucket will be needed anyway: a look at the ghost queue's memory is left for new keys.
    #[inline]
    fn queue_for(&self, hash: KeyHash) -> Queue {
        let old = || {
            self.index
                .candidate(hash.0)
                .map(|place| self.queue_of(place))
        };
        let is_remembered = || self.ghost.as_ref().is_some_and(|ghost| ghost.take(hash.0));
        self.config.eviction.queue_for(old, is_remembered)
    }

    fn queue_of(&self, place: Place) -> Queue {
        self.items.segments.at(self.items.segment_of(place)).queue()
    }

    /// Makes sure that the writer's open segment has room. May end the worker's era.
    #[inline]
    fn make_room(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        lot: Lot,
        needs: crate::items::Footprint,
        now: UnixSeconds,
    ) -> bool {
        match w.make_room(&self.items, &self.space, lot, needs) {
            Room::Had => true,
            Room::Made => {
                self.reclaim_ahead(w, lane, now);
                true
            }
            Room::None => self.within_reclaim(w, lane, now, |w| {
                w.make_room(&self.items, &self.space, lot, needs) != Room::None
            }),
        }
    }

    /// Makes some room before it is needed, unless another worker is at it.
    #[cold]
    fn reclaim_ahead(&self, w: &mut Writer, lane: &mut Lane<'_>, now: UnixSeconds) {
        if let Ok(mut reclaimer) = self.reclaimer.try_lock() {
            let mut step = || reclaimer.step(self, lane, w.worker(), now);
            (0..STEPS_AHEAD)
                .take_while(|_| step() == Step::Freed)
                .for_each(drop);
        }
    }

    /// Reclaims until `done` says that it was enough. The worker's era ends meanwhile, so that two
    /// workers that need room cannot wait for each other.
    #[cold]
    fn within_reclaim(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        now: UnixSeconds,
        done: impl Fn(&mut Writer) -> bool,
    ) -> bool {
        let worker = w.worker();
        let was_within = self.eras.is_within(worker);
        self.eras.leave(worker);
        let backoff = Backoff::new();
        let mut enough = false;
        for _ in 0..ROOM_TRIES {
            let mut reclaimer = self.lock_reclaimer();
            enough = done(w);
            if enough {
                break;
            }
            let step = reclaimer.step(self, lane, worker, now);
            self.space.lock().collect(&self.items);
            drop(reclaimer);
            if step != Step::Freed {
                backoff.snooze();
            }
        }
        if was_within {
            self.eras.enter(worker);
        }
        enough
    }

    fn lock_reclaimer(&self) -> MutexGuard<'_, Reclaimer> {
        self.reclaimer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the index grow where it is crowded and there is memory; where there is none its chains
    /// get longer.
    #[inline]
    fn grow(&self, w: &mut Writer, lane: &mut Lane<'_>) {
        for _ in 0..GROWTH_PER_PUT {
            if !self.index.is_crowded() {
                return;
            }
            let near = |place| self.items.prefetch(place);
            let hash_of = |place| {
                let header = self.items.header(lane, place);
                self.items
                    .with_key(lane, place, &header, |key| self.hash(key).0)
            };
            if self.index.grow(near, hash_of) == Err(Full) && !self.extend_index(w.taker()) {
                return;
            }
        }
    }

    /// More memory for the index, from the tenant's budget.
    fn extend_index(&self, taker: Taker) -> bool {
        let mut space = self.space.lock();
        let granted = space.charge(&self.items, taker, shape::INDEX_STEP_BYTES);
        if granted {
            self.index
                .set_limit(self.index.limit() + shape::INDEX_STEP_BYTES);
        }
        granted
    }

    /// More memory for the index, even if something must go for it.
    #[cold]
    fn grant(&self, w: &mut Writer, lane: &mut Lane<'_>, now: UnixSeconds) -> bool {
        self.extend_index(w.taker())
            || self.within_reclaim(w, lane, now, |w| self.extend_index(w.taker()))
    }
}

impl<'a> Change<'a> {
    /// The pieces of the changed value, given the old one.
    fn value(&self, old: Source<'a>) -> [Source<'a>; 3] {
        match self.add {
            None => [old, Source::Bytes(&[]), Source::Bytes(&[])],
            Some((Side::Append, new)) => [old, Source::Bytes(new.head), Source::Bytes(new.tail)],
            Some((Side::Prepend, new)) => [Source::Bytes(new.head), Source::Bytes(new.tail), old],
        }
    }
}
