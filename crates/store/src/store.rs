//! One tenant's items: finding, storing, removing (NyxCache section 3.5: index, headers and keys in
//! DRAM, values on the medium by non-temporal stores).
//!
//! What it never does: touch the medium except through a lane, lock on a GET, allocate on a GET or
//! a put, know of any other tenant.
//!
//! *Thread safety*: all methods take `&self` and may run on all workers at once; a worker calls
//! them within an era, with its own writer and lane. A put appends to the worker's own open segment
//! and then publishes under the lock of one bucket, where its condition is judged again; what did
//! not come to be published is taken back. Methods that take the writer may end the worker's era
//! and begin another: items that the worker found before are then no longer its to read.
//!
//! *Invariants*: what the index gives out is a whole item that is not written again before the era
//! is over. The memory in use is at most `size`, at every moment.

use crate::check;
use crate::config::{Eviction, StoreConfig, StoreError, WriteMode};
use crate::ghost::Ghost;
use crate::header::{Header, State};
use crate::item::Item;
use crate::items::{Draft, Items, Source};
use crate::journal::{Change, First, Journal, Kind, Room, Start};
use crate::kept::{Ground, Kept};
use crate::order::{Lack, Order};
use crate::reclaim::{Done, Reclaimer};
use crate::request::{Condition, DeleteOutcome, KEY_LEN_MAX, KeyHash, Put, PutOutcome};
use crate::segment::{Queue, Segment};
use crate::shape;
use crate::space::{Space, Taker};
use crate::writer::{Appended, Classes, Writer};
use nyx_base::{CachePadded, UnixSeconds, WorkerId};
use nyx_index::Eras;
use nyx_index::{Full, Guard, Hash, Place, Places, Slot};
use nyx_tier::Lane;
use std::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Arc, Mutex};

/// Segments that one call of [`Store::expire`] frees at most.
const EXPIRE_SEGMENTS: usize = 4;

/// One tenant's items, shared by all workers.
#[derive(Debug)]
pub struct Store {
    pub(crate) config: StoreConfig,
    pub(crate) eras: Arc<Eras>,
    pub(crate) items: Items,
    pub(crate) index: Hash,
    /// Where ranges are asked for.
    pub(crate) order: Option<Order>,
    pub(crate) space: Space,
    pub(crate) ghost: Option<Ghost>,
    /// Where counters of uses stop under this policy.
    pub(crate) uses_most: u8,
    classes: Classes,
    /// Written while items are moved, by one worker at a time: on lines of their own, because what
    /// stands beside them is read on every put.
    pub(crate) done: CachePadded<Done>,
    pub(crate) reclaimer: CachePadded<Mutex<Reclaimer>>,
    flush: CachePadded<Flush>,
    /// Deep items that could not be read, or were not what had been stored.
    pub(crate) lost: AtomicU64,
    /// Twins that could not be read; their items are on the fast device.
    pub(crate) lost_twins: AtomicU64,
    /// New items that were written to the deep device alone.
    pub(crate) arounds: AtomicU64,
    /// Of a store that survives.
    pub(crate) kept: Option<Box<Kept>>,
    /// Of one that survives power failures.
    pub(crate) journal: Option<Box<Journal>>,
    /// What is to be done with it first.
    pub(crate) first: Mutex<First>,
}

/// An item that is likely the one of a key, for prefetching.
#[derive(Clone, Copy, Debug)]
pub struct Likely(Place);

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
pub(crate) struct Found {
    pub(crate) place: Place,
    pub(crate) header: Header,
}

/// What an appended item is published as.
pub(crate) struct News<'a> {
    pub(crate) hash: KeyHash,
    pub(crate) expect: Expect,
    /// What the journal is told.
    pub(crate) change: Change<'a>,
}

/// Why an appended item is not published.
pub(crate) enum Refusal {
    Judged(PutOutcome),
    Lack(Lack),
}

/// What must be so at the moment of publishing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expect {
    Condition(Condition),
    /// The item that was rewritten is still the one.
    Same(Place),
}

impl Store {
    /// A store: empty, or with what its image holds. Reserves address space; touches only the
    /// tables.
    pub fn new(mut config: StoreConfig, eras: Arc<Eras>) -> Result<Store, StoreError> {
        let plan = shape::plan(&config)?;
        let ground = match config.keep {
            None => Ground::anonymous(&plan, &config)?,
            Some(_) => Ground::kept(&plan, &mut config)?,
        };
        let Ground { items, index, kept } = ground;
        let order = config
            .order
            .map(|tree| Order::new(tree, config.size, eras.clone()));
        let order = order.transpose()?;
        let segments = (plan.segments, config.segment_bytes);
        let used = plan.fixed_bytes + index.bytes() + order.as_ref().map_or(0, Order::bytes);
        let mut store = Store {
            items,
            space: Space::new(plan.space, used, segments, eras.clone()),
            index,
            order,
            ghost: plan.ghost_keys.map(Ghost::new).transpose()?,
            done: CachePadded::default(),
            uses_most: config.uses_most(),
            classes: plan.classes,
            reclaimer: CachePadded(Mutex::new(Reclaimer::new(plan.classes))),
            flush: CachePadded(Flush {
                mark: AtomicU64::new(0),
                due: AtomicU32::new(UnixSeconds::NEVER.0),
            }),
            lost: AtomicU64::new(0),
            lost_twins: AtomicU64::new(0),
            arounds: AtomicU64::new(0),
            kept,
            journal: None,
            first: Mutex::default(),
            config,
            eras,
        };
        store.go_on()?;
        store.open_journal()?;
        Ok(store)
    }

    /// Goes on with what an image holds, if there is one.
    fn go_on(&mut self) -> Result<(), StoreError> {
        let is_found = |kept: &Kept| kept.beginning().is_found();
        let Some(kept) = self.kept.as_deref().filter(|kept| is_found(kept)) else {
            return Ok(());
        };
        let has_small = self.config.eviction == Eviction::S3Fifo;
        let unclosed = self.space.find(&self.items, kept.flush_seq(), has_small);
        let next_seq = self.space.lock().next_seq();
        let (mark, due) = kept.flush(next_seq);
        self.flush.mark.store(mark, Relaxed);
        self.flush.due.store(due.0, Relaxed);
        self.items.segments.begin_at(next_seq);
        self.fill_holes(kept)?;
        self.put_right(&unclosed);
        if let Some(order) = &self.order {
            order.begin_anew();
        }
        Ok(())
    }

    /// Opens the journal of a store that has one, and sees what becomes of it.
    fn open_journal(&mut self) -> Result<(), StoreError> {
        let keep = self.config.keep.as_ref();
        let journaling = keep.and_then(|keep| keep.journal.as_ref());
        let (Some(kept), Some(journaling)) = (&self.kept, journaling) else {
            // Whoever has one later must not take up an old one.
            if let Some(kept) = &self.kept {
                kept.numbered().store(0, Release);
            }
            return Ok(());
        };
        let found = kept.beginning().is_found();
        let (journal, start, seq) = Journal::open(&self.config, journaling, kept)?;
        self.space.lock().begin_above(seq);
        let mut first = First::default();
        match start {
            Start::Replay(files) => first.files = files,
            Start::GoOn if found => {
                first.again = kept.intents();
                first.flush = !kept.is_flush_told();
                if kept.journal_is_whole().load(Acquire) == 0 {
                    journal.want_rewrite();
                }
            }
            Start::Anew => {
                kept.flush_told();
                kept.forget_intents();
                journal.want_rewrite();
            }
            Start::GoOn => kept.in_use()?,
        }
        journal.wait_for_replay(first.is_any());
        self.first = Mutex::new(first);
        self.journal = Some(Box::new(journal));
        Ok(())
    }

    /// What the store was made from.
    pub fn config(&self) -> &StoreConfig {
        &self.config
    }

    /// The hand of `worker`: make one per worker, once, since what it has open stays open. The
    /// worker is one of the [`StoreConfig::workers`] first; others panic when they write.
    pub fn writer(&self, worker: WorkerId) -> Writer {
        Writer::new(worker, Taker::Put, self.classes)
    }

    /// The hash of a key.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.items.hash(key)
    }

    /// First stage of a batch: brings the key's bucket near.
    #[inline]
    pub fn prefetch_bucket(&self, hash: KeyHash) {
        self.index.prefetch(hash.0);
    }

    /// Second stage, when the bucket is near: brings near the header and key of the item that is
    /// likely the one, and says which.
    #[inline]
    pub fn prefetch_item(&self, hash: KeyHash) -> Option<Likely> {
        let place = self.candidate(hash)?;
        self.items.prefetch(place);
        Some(Likely(place))
    }

    /// Third stage, when the header is near: brings near the value that it states. Within the era
    /// of the second stage.
    #[inline]
    pub fn prefetch_value(&self, lane: &Lane<'_>, Likely(place): Likely) {
        self.items.prefetch_value(lane, place);
    }

    /// Finds an item. Does not count an access: see [`Item::mark_access`]. Where the store has a
    /// deep device, ask [`Store::fetch`] before it is read.
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
            spot: self.items.spot(place, &header),
            wants_twin: false,
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
        let state = State::written(now)
            .with_stale(put.stale)
            .with_win_sent(put.win_sent);
        let value = [
            Source::Bytes(put.value.head),
            Source::Bytes(put.value.tail),
            Source::Bytes(&[]),
        ];
        let key = put.key;
        let draft = Draft {
            header,
            state,
            key,
            hash: put.hash,
            check: header.has_checks.then(|| check::value(put.hash, put.value)),
            value,
        };
        let news = News {
            hash: put.hash,
            expect: Expect::Condition(put.condition),
            change: Change {
                value: put.value,
                flags: put.flags,
                expiry: Some(put.expiry),
                cas: put.cas,
                stale: put.stale,
                win_sent: put.win_sent,
                ..Change::new(Kind::Set, put.key, now)
            },
        };
        if self.is_deep()
            && let Some(outcome) = self.put_around(w, lane, &draft, &news, now)
        {
            return outcome;
        }
        self.put_fast(w, lane, &draft, &news, now)
    }

    /// Writes a new item to the medium and publishes it.
    fn put_fast(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        draft: &Draft<'_>,
        news: &News<'_>,
        now: UnixSeconds,
    ) -> PutOutcome {
        let queue = self.queue_for(news.hash);
        let lot = w.lot(queue, draft.header.expiry, now);
        let needs = self.items.footprint(&draft.header);
        if !self.make_room(w, lane, lot, needs, now) {
            return PutOutcome::OutOfMemory;
        }
        let began = lane.begin();
        let appended = w.append(&self.items, lane, lot, draft);
        lane.written(began, draft.header.value_len as usize);
        let outcome = self.publish(w, lane, news, &appended, now);
        let goes_through = self.write_mode(draft.header.value_len) == Some(WriteMode::Through);
        if goes_through && matches!(outcome, PutOutcome::Stored { .. }) {
            self.put_through(w, lane, (news.hash, appended.place), now);
        }
        outcome
    }

    /// Removes an item; with `Absent` only what has ended, and the journal is told that there is
    /// none (`Exists` where there is). Conditions other than that and `CasIs` mean `Always`.
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
        let whole = self.approach(hash.0);
        let mut guard = self.index.lock(w.worker(), hash.0);
        let Some((slot, found)) = self.find_locked(lane, &guard, key) else {
            // The journal may have an item that was evicted since.
            if !matches!(condition, Condition::CasIs(_)) {
                self.tell_journal(&Change::new(Kind::Delete, key, now));
            }
            return DeleteOutcome::NotFound;
        };
        let ended = self.is_ended(&found.header, found.place, now)
            || !whole && !self.is_whole(lane, hash, found);
        let must_stay = match condition {
            Condition::CasIs(cas) => cas != self.cas(found),
            Condition::Absent => true,
            _ => false,
        };
        if must_stay && !ended {
            return DeleteOutcome::Exists;
        }
        self.intend(w.worker(), hash);
        self.tell_journal(&Change::new(Kind::Delete, key, now));
        self.note(w.worker(), found.place);
        self.strike(&mut guard, slot, w.worker(), key);
        self.intended(w.worker());
        drop(guard);
        self.kill(w.worker(), hash, found);
        if ended {
            DeleteOutcome::NotFound
        } else {
            DeleteOutcome::Deleted
        }
    }

    /// Forgets, at the second `at`, every item that was written before that second comes; at once
    /// where `at` is not after `now`. Takes the place of a flush that is still to come. Costs the
    /// same for any number of items.
    pub fn flush(&self, at: UnixSeconds, now: UnixSeconds) {
        self.meet_due_flush(now);
        match at > now {
            true => {
                // Under the lock no other flush is kept between that mark and this.
                let _space = self.space.lock();
                self.flush.due.store(at.0, Relaxed);
                if let Some(kept) = &self.kept {
                    kept.keep_flush(self.flush_mark(), at);
                }
                self.tell_journal(&Change {
                    expiry: Some(at),
                    ..Change::new(Kind::FlushLater, &[], now)
                });
            }
            false => {
                self.flush.due.store(UnixSeconds::NEVER.0, Relaxed);
                self.flush_now(now);
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
}

/// What the methods above are made of.
impl Store {
    /// What every change begins with: a flush that came due, and open segments that were flushed.
    pub(crate) fn begin(&self, w: &mut Writer, now: UnixSeconds) {
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
            self.flush_now(now);
        }
    }

    fn flush_now(&self, now: UnixSeconds) {
        let mut space = self.space.lock();
        let mark = space.next_seq();
        if let Some(kept) = &self.kept {
            kept.keep_flush(mark, UnixSeconds::NEVER);
        }
        self.flush.mark.store(mark, Release);
        // After that: see `Store::journalize`.
        self.tell_journal(&Change::new(Kind::Flush, &[], now));
        if let Some(kept) = &self.kept {
            kept.flush_told();
        }
    }

    /// The journal that changes go to.
    #[inline]
    fn journaled(&self) -> Option<&Journal> {
        let journal = self.journal.as_deref();
        journal.filter(|journal| !journal.is_replaying())
    }

    /// Appends a change to the journal, if there is one. Under the lock of its key's bucket.
    #[inline]
    pub(crate) fn tell_journal(&self, change: &Change<'_>) {
        if let Some(journal) = self.journaled() {
            journal.append(change);
        }
    }

    /// Before a key is changed in image and journal, of which a kill may leave one.
    #[inline]
    pub(crate) fn intend(&self, worker: WorkerId, hash: KeyHash) {
        if let (Some(kept), Some(_)) = (&self.kept, &self.journal) {
            kept.intend(worker, hash.0);
        }
    }

    /// After that.
    #[inline]
    pub(crate) fn intended(&self, worker: WorkerId) {
        if let (Some(kept), Some(_)) = (&self.kept, &self.journal) {
            kept.intended(worker);
        }
    }

    /// When a flush is due.
    pub(crate) fn flush_due(&self) -> UnixSeconds {
        UnixSeconds(self.flush.due.load(Relaxed))
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
            has_twin: self.is_deep(),
            has_checks: self.kept.is_some(),
        })
    }

    /// The live item of a key.
    #[inline]
    pub(crate) fn find(
        &self,
        lane: &mut Lane<'_>,
        key: &[u8],
        hash: KeyHash,
        now: UnixSeconds,
    ) -> Option<Found> {
        let whole = self.approach(hash.0);
        let mut header = None;
        let place = self.index.find(hash.0, |place| {
            header = self.items.header_of(lane, place, key);
            header.is_some()
        })?;
        let header = header?;
        let found = Found { place, header };
        let gone =
            self.is_ended(&header, place, now) || !whole && !self.is_whole(lane, hash, found);
        (!gone).then_some(found)
    }

    /// The item of a key, ended or not, in a chain that is locked.
    #[inline]
    pub(crate) fn find_locked(
        &self,
        lane: &mut Lane<'_>,
        guard: &Guard<'_>,
        key: &[u8],
    ) -> Option<(Slot, Found)> {
        let mut header = None;
        let slot = guard.find(|place| {
            header = self.items.header_of(lane, place, key);
            header.is_some()
        })?;
        Some((
            slot,
            Found {
                place: slot.place,
                header: header?,
            },
        ))
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

    pub(crate) fn cas(&self, found: Found) -> u64 {
        found
            .header
            .cas
            .unwrap_or_else(|| self.items.unique(found.place))
    }

    /// Before an item is taken out of the index: whoever finds the image of a process that was
    /// killed between this and [`Store::noted`] does the rest.
    #[inline]
    pub(crate) fn note(&self, worker: WorkerId, place: Place) {
        if let Some(kept) = &self.kept {
            kept.note(worker, place);
        }
    }

    /// What was noted is out, and it and its twin are marked.
    #[inline]
    pub(crate) fn noted(&self, worker: WorkerId) {
        if let Some(kept) = &self.kept {
            kept.noted(worker);
        }
    }

    /// Counts an item that was taken out of the index. Its header is near: its key was compared.
    pub(crate) fn kill(&self, worker: WorkerId, hash: KeyHash, found: Found) {
        if let (Some(chunks), None) = (&self.items.chunks, &self.kept) {
            chunks.mark_dead(found.place);
        }
        let bytes = self.items.footprint(&found.header).total();
        self.bury(worker, hash, found.place, bytes);
        self.bury_twin(worker, hash, found);
        self.noted(worker);
    }

    /// The twin of an item that was taken out of the index dies with it. No lock is needed: nobody
    /// finds the item any more to take the twin away from it.
    pub(crate) fn bury_twin(&self, worker: WorkerId, hash: KeyHash, found: Found) {
        if let Some(twin) = self.items.twin(found.place, &found.header) {
            self.bury_record(worker, hash, twin);
        }
    }

    /// Counts a deep record whose item has let go of it.
    pub(crate) fn bury_record(&self, worker: WorkerId, hash: KeyHash, twin: Place) {
        let Some(chunks) = &self.items.chunks else {
            return;
        };
        chunks.mark_dead(twin);
        let bytes = self.items.footprint(&chunks.header(twin)).total();
        let segments = &self.items.segments;
        segments.remove_twin(self.items.segment_of(twin), bytes);
        self.bury(worker, hash, twin, bytes);
    }

    /// The same for an item of a segment that is being emptied, whose mark nobody will look at but
    /// who finds it in an image.
    pub(crate) fn bury(&self, worker: WorkerId, hash: KeyHash, place: Place, bytes: u32) {
        if let (Some(chunks), Some(_)) = (&self.items.chunks, &self.kept) {
            chunks.mark_dead(place);
        }
        let segment = self.items.segment_of(place);
        // What died in a segment that was found is counted by the sweep, up to the chain that it
        // has come to.
        if !self.items.segments.is_found(segment) || self.approach(hash.0) {
            self.items.segments.kill(worker, segment, bytes);
        }
    }

    /// The place of an item that is likely the one.
    #[inline]
    fn candidate(&self, hash: KeyHash) -> Option<Place> {
        match self.index.is_reviving() {
            // What a chain that nobody looked at holds need not be a place.
            true => None,
            false => self.index.candidate(hash.0),
        }
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
    pub(crate) fn publish(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        news: &News<'_>,
        appended: &Appended,
        now: UnixSeconds,
    ) -> PutOutcome {
        loop {
            match self.try_publish(w.worker(), lane, news, appended, now) {
                Ok(Some(old)) => self.kill(w.worker(), news.hash, old),
                Ok(None) => self.grow(w, lane),
                Err(Refusal::Lack(Lack::Index(Full::Limit))) if self.grant(w, lane, now) => {
                    continue;
                }
                Err(Refusal::Lack(Lack::Order)) if self.grant_order(w, lane, now) => continue,
                Err(refusal) => {
                    w.take_back(&self.items, appended);
                    return match refusal {
                        Refusal::Judged(outcome) => outcome,
                        Refusal::Lack(_) => PutOutcome::OutOfMemory,
                    };
                }
            }
            let unique = || self.items.unique(appended.place);
            return PutOutcome::Stored {
                cas: appended.cas.unwrap_or_else(unique),
            };
        }
    }

    /// Publishes an appended item, if it may be; gives the one that it replaces.
    pub(crate) fn try_publish(
        &self,
        worker: WorkerId,
        lane: &mut Lane<'_>,
        news: &News<'_>,
        appended: &Appended,
        now: UnixSeconds,
    ) -> Result<Option<Found>, Refusal> {
        let &News {
            hash,
            expect,
            ref change,
        } = news;
        let whole = self.approach(hash.0);
        let mut guard = self.index.lock(worker, hash.0);
        let (slot, old) = self.find_locked(lane, &guard, change.key).unzip();
        let live = old.filter(|&old| {
            !self.is_ended(&old.header, old.place, now) && (whole || self.is_whole(lane, hash, old))
        });
        let stale = match expect {
            Expect::Condition(condition) => self.judge(condition, live),
            Expect::Same(place) if live.is_some_and(|live| live.place == place) => Ok(false),
            Expect::Same(_) => Err(PutOutcome::Exists),
        };
        let stale = stale.map_err(Refusal::Judged)?;
        let room = self.journaled().map(|journal| journal.room(change.len()));
        let room = match room {
            Some(None) => return Err(Refusal::Lack(Lack::Journal)),
            room => room.flatten(),
        };
        self.intend(worker, hash);
        let published = match slot {
            Some(slot) => {
                self.inherit(lane, slot.place, appended.place, stale);
                self.note(worker, slot.place);
                guard.replace(slot, appended.place);
                Ok(old)
            }
            None => {
                let enlisted = self.enlist(&mut guard, worker, change.key, appended.place);
                enlisted.map(|()| None).map_err(Refusal::Lack)
            }
        };
        if let (Some(room), Ok(_)) = (room, &published) {
            self.journalize(room, change, appended, stale);
        }
        self.intended(worker);
        published
    }

    /// Appends what was published to the journal. What is older than a flush that is to be appended
    /// has ended, and so has what it replaced: that is told instead, because whoever made the
    /// change may be answered before the flush is durable.
    fn journalize(&self, room: Room<'_>, change: &Change<'_>, appended: &Appended, stale: bool) {
        let segment = self.items.segment_of(appended.place);
        // The mark is set before the flush is appended, and this is asked with the journal's lock.
        let has_ended = self.items.segments.at(segment).seq() < self.flush_mark();
        room.write(&match has_ended {
            true => Change::new(Kind::Delete, change.key, change.at),
            false => Change {
                stale: change.stale || stale,
                ..*change
            },
        });
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

    /// The queue to write an item to. The index's candidate is nearly always the item of the key,
    /// and its bucket will be needed anyway: a look at the ghost queue's memory is left for new
    /// keys.
    #[inline]
    fn queue_for(&self, hash: KeyHash) -> Queue {
        let old = || self.candidate(hash).map(|place| self.young_queue_of(place));
        let is_remembered = || self.ghost.as_ref().is_some_and(|ghost| ghost.take(hash.0));
        self.config.eviction.queue_for(old, is_remembered)
    }

    /// The queue for an item that takes the place of another: nothing is put deep.
    pub(crate) fn young_queue_of(&self, place: Place) -> Queue {
        match self.items.segments.at(self.items.segment_of(place)).queue() {
            Queue::Deep => Queue::Main,
            queue => queue,
        }
    }
}
