//! What a store does with its deep device: fetching what somebody asks for, writing segments that
//! are full, taking back what is asked for often (docs/decisions/0011-two-tiers.md).
//!
//! What it never does: wait. Who asks for what is not here is told what to wait for.
//!
//! *Thread safety*: as `store`. What was fetched belongs to the worker's hand on the device.

use crate::check;
use crate::config::WriteMode;
use crate::item::Item;
use crate::items::{Deep, Draft, Spot};
use crate::request::{DeepFigures, KeyHash, Presence, PutOutcome};
use crate::stage::Staged;
use crate::store::{Found, News, Refusal, Store};
use crate::writer::{Writer, Writing};
use nyx_base::{Instant, UnixSeconds, WorkerId};
use nyx_gate::Gate;
use nyx_index::Place;
use nyx_tier::{Landing, Lane, Looked, Side, Wait};
use std::sync::atomic::Ordering::Relaxed;

/// A segment that could not be written so often goes back to the fast device.
const FAILURES_MOST: u32 = 3;
/// A segment is written in pieces of so many bytes, one at a time, so that no read waits behind
/// more than that; but as fast as the device takes it where somebody waits for the stage, or
/// another segment is full.
const CALM_BYTES: usize = 64 << 10;
/// The device is written in blocks of so many bytes.
const BLOCK_BYTES: u32 = 4096;

impl Store {
    /// Whether a value may lie on a deep device.
    #[inline]
    pub fn is_deep(&self) -> bool {
        self.items.deep().is_some()
    }

    /// Makes sure that the value of an item can be read, or begins to fetch it, where the gate of
    /// the deep device is open. Costs nothing where it is not deep.
    #[inline]
    pub fn fetch(
        &self,
        worker: WorkerId,
        lane: &mut Lane<'_>,
        item: &mut Item<'_>,
        now: Instant,
    ) -> Presence {
        let what = (KeyHash(item.hash), item.found());
        match item.spot {
            Spot::Deep(_) => self.fetch_found(worker, lane, what, &mut item.spot, Some(now)),
            Spot::Fast(_) if item.header.has_twin => self.choose(worker, lane, item, now),
            _ => Presence::Here,
        }
    }

    /// Tells the controller that a client's read found its item, and where: when it is answered.
    #[inline]
    pub fn answered(&self, lane: &Lane<'_>, item: &Item<'_>) {
        lane.looked(item.header.has_twin);
    }

    /// Where an item of the fast device is read from: from there, or from its twin, where it has
    /// one and the controller says so, or its tenant has had its part of the fast device.
    fn choose(
        &self,
        worker: WorkerId,
        lane: &mut Lane<'_>,
        item: &mut Item<'_>,
        now: Instant,
    ) -> Presence {
        let len = item.value_len();
        let Some(twin) = self.items.twin(item.place, &item.header) else {
            let is_often_read = item.state.frequency() > 0;
            let may_have_one = self.items.may_be_mirrored(&item.header);
            item.wants_twin = lane.lone_read(len, now) && is_often_read && may_have_one;
            return Presence::Here;
        };
        let record = Found {
            place: twin,
            header: self.items.header(lane, twin),
        };
        // From a stage it would be read no sooner than from the medium.
        let Spot::Deep(at) = self.items.spot(twin, &record.header) else {
            return Presence::Here;
        };
        let unique = self.items.unique(twin);
        let landing = match lane.look_deep(unique) {
            Looked::Here(landing) => landing,
            Looked::Failed => {
                self.part(worker, lane, item, twin);
                return Presence::Here;
            }
            looked @ (Looked::Coming(_) | Looked::None) => {
                let is_held = !lane.gate(now).is_open();
                if !is_held && lane.reads(len, now) == Side::Fast {
                    return Presence::Here;
                }
                return match looked {
                    Looked::Coming(away) => Presence::Away(away),
                    _ if !lane.deep_gate(now).is_open() => Presence::Here,
                    _ => match lane.fetch_deep(unique, at, len) {
                        // There is no buffer: what the fast device has is not waited for.
                        away if away.wait == Wait::ANY && !is_held => Presence::Here,
                        away => Presence::Away(away),
                    },
                };
            }
        };
        match self.is_right(lane, landing, KeyHash(item.hash), record) {
            true => item.spot = Spot::Landed(landing),
            false => self.part(worker, lane, item, twin),
        }
        Presence::Here
    }

    /// A twin that cannot be read is none any more; its item is read from the fast device.
    #[cold]
    fn part(&self, worker: WorkerId, lane: &mut Lane<'_>, item: &Item<'_>, twin: Place) {
        let guard = self.index.lock(worker, item.hash);
        let slot = guard.find(|place| self.items.is_twin(place, twin));
        if let Some(slot) = slot {
            let header = self.items.header(lane, slot.place);
            self.items.set_twin(slot.place, &header, None);
        }
        drop(guard);
        if slot.is_some() {
            self.bury_record(worker, KeyHash(item.hash), twin);
            self.lost_twins.fetch_add(1, Relaxed);
        }
    }

    /// Whether what has landed is what was stored; it is forgotten where it is not.
    fn is_right(
        &self,
        lane: &mut Lane<'_>,
        landing: Landing,
        hash: KeyHash,
        record: Found,
    ) -> bool {
        if lane.is_checked(landing) {
            return true;
        }
        let is = check::value(hash, lane.landed(landing).into());
        let checks = self.items.checks(record.place, &record.header);
        let is_right = checks.is_some_and(|checks| checks.value == is);
        match is_right {
            true => lane.set_checked(landing),
            false => lane.forget(landing),
        }
        is_right
    }

    /// Writes a new item to the deep device alone, where its tenant or the controller says so; none
    /// where it is to be written to the fast one, or there is no stage.
    pub(crate) fn put_around(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        draft: &Draft<'_>,
        news: &News<'_>,
        now: UnixSeconds,
    ) -> Option<PutOutcome> {
        let len = draft.header.value_len;
        let goes_around = match self.write_mode(len)? {
            WriteMode::Around => true,
            WriteMode::Back => lane.news(len as usize) == Side::Deep,
            WriteMode::Through => false,
        };
        if !goes_around {
            return None;
        }
        let mut draft = *draft;
        draft.header.has_twin = false;
        draft.header.has_checks = true;
        let mut reclaimer = self.reclaimer.try_lock().ok()?;
        let appended = reclaimer.append_deep(self, lane, w.worker(), &draft, now)?;
        let published = self.try_publish(w.worker(), lane, news, &appended, now);
        if published.is_err() {
            reclaimer.take_back_deep(self, &appended);
        }
        drop(reclaimer);
        match published {
            Ok(Some(old)) => self.kill(w.worker(), news.hash, old),
            Ok(None) => self.grow(w, lane),
            Err(Refusal::Judged(outcome)) => return Some(outcome),
            // The long way makes room for what there is too little of.
            Err(Refusal::Lack(_)) => return None,
        }
        self.arounds.fetch_add(1, Relaxed);
        let unique = || self.items.unique(appended.place);
        Some(PutOutcome::Stored {
            cas: appended.cas.unwrap_or_else(unique),
        })
    }

    /// Writes a new item to the deep device too, where there is a stage.
    pub(crate) fn put_through(
        &self,
        w: &Writer,
        lane: &mut Lane<'_>,
        (hash, place): (KeyHash, Place),
        now: UnixSeconds,
    ) {
        let header = self.items.header(lane, place);
        let found = Found { place, header };
        let mut reclaimer = self.lock_reclaimer();
        reclaimer.mirror(self, lane, w.worker(), (hash, found), now);
    }

    /// Where new values of that many bytes are written; none where they do not go deep.
    pub(crate) fn write_mode(&self, len: u32) -> Option<WriteMode> {
        let is_long = |deep: &&Deep| len >= deep.item_len_min;
        self.items.deep().filter(is_long)?;
        self.config.deep.map(|part| part.write)
    }

    /// The same for what was found at a spot. Who does not say what time it is has asked a gate
    /// before, and pays for this one afterwards.
    pub(crate) fn fetch_found(
        &self,
        worker: WorkerId,
        lane: &mut Lane<'_>,
        (hash, found): (KeyHash, Found),
        spot: &mut Spot,
        now: Option<Instant>,
    ) -> Presence {
        let &mut Spot::Deep(at) = spot else {
            return Presence::Here;
        };
        let unique = self.items.unique(found.place);
        let landing = match lane.look_deep(unique) {
            Looked::Here(landing) => landing,
            Looked::Coming(away) => return Presence::Away(away),
            Looked::Failed => return self.lose(worker, lane, hash, found),
            Looked::None => {
                let gate = now.map_or(Gate::Open, |now| lane.deep_gate(now));
                if !gate.is_open() {
                    return Presence::Closed(gate);
                }
                let len = found.header.value_len as usize;
                return Presence::Away(lane.fetch_deep(unique, at, len));
            }
        };
        if !self.is_right(lane, landing, hash, found) {
            return self.lose(worker, lane, hash, found);
        }
        *spot = Spot::Landed(landing);
        Presence::Here
    }

    /// Drops an item whose value cannot be had, if it is still the one of its key.
    #[cold]
    fn lose(&self, worker: WorkerId, lane: &mut Lane<'_>, hash: KeyHash, found: Found) -> Presence {
        let mut guard = self.index.lock(worker, hash.0);
        if let Some(slot) = guard.find(|place| place == found.place) {
            self.note(worker, found.place);
            self.items
                .with_key(lane, found.place, &found.header, |key| {
                    self.strike(&mut guard, slot, worker, key);
                });
            drop(guard);
            self.kill(worker, hash, found);
            self.lost.fetch_add(1, Relaxed);
        }
        Presence::Lost
    }

    /// Takes an item that was fetched back to the fast device, if it was asked for before since it
    /// went deep, the controller admits it and there is room; writes one of the fast device deep
    /// too, if more is to be read from there. Call it when the value was read; the item is not to
    /// be used afterwards.
    pub fn promote(
        &self,
        w: &Writer,
        lane: &mut Lane<'_>,
        item: &Item<'_>,
        now: UnixSeconds,
    ) -> bool {
        let is_wanted = item.state.frequency() > 0;
        let landed = matches!(item.spot, Spot::Landed(_)) && !item.header.has_twin;
        let comes = landed && is_wanted && lane.admits();
        if !comes && !item.wants_twin {
            return false;
        }
        let what = (KeyHash(item.hash), item.found());
        match self.reclaimer.try_lock() {
            Ok(mut reclaimer) if comes => reclaimer.promote(lane, w.worker(), item, now),
            Ok(mut reclaimer) => reclaimer.mirror(self, lane, w.worker(), what, now),
            // Another worker makes room: the next who asks will do.
            Err(_) => false,
        }
    }

    /// Whether a writer has begun to write to the deep device, or something waits for that.
    #[inline]
    pub fn has_to_write(&self, w: &Writer) -> bool {
        let waits = |deep: &Deep| deep.to_write.load(Relaxed) > 0;
        self.items.deep().is_some_and(waits) || w.writing.is_some()
    }

    /// Writes what is full to the deep device, as far as that takes it now. True where there is
    /// more to be written. Call it from the tick, and when a write was told of.
    pub fn write_back(&self, w: &mut Writer, lane: &mut Lane<'_>, now: Instant) -> bool {
        let Some(deep) = self.items.deep() else {
            return false;
        };
        loop {
            let Some(writing) = w.writing.or_else(|| self.next_to_write()) else {
                return false;
            };
            let writing = w.writing.insert(writing);
            while writing.sent < writing.len {
                let is_late = deep.is_wanted.load(Relaxed) || deep.to_write.load(Relaxed) > 0;
                if !is_late && writing.pieces > 0 {
                    return true;
                }
                if !lane.takes_deep(now) || !lane.deep_gate(now).is_open() {
                    return true;
                }
                let left = (writing.len - writing.sent) as usize;
                let len = left.min(if is_late {
                    Lane::PIECE_BYTES
                } else {
                    CALM_BYTES
                });
                let segment = self.items.segments.at(writing.segment);
                let stage = segment.stage().expect("it is to be written");
                let at = self.items.deep_at(writing.segment) + u64::from(writing.sent);
                let from = Staged {
                    stage,
                    at: writing.sent,
                };
                let bytes = deep.stages.bytes_of(from, len);
                lane.write_deep(segment.seq(), at, len, |into| into.copy_from_slice(bytes));
                writing.sent += len as u32;
                writing.pieces += 1;
            }
            if writing.pieces > 0 {
                return true;
            }
            w.writing = None;
        }
    }

    /// The next segment that waits to be written; those in which nothing lives are not.
    fn next_to_write(&self) -> Option<Writing> {
        let mut space = self.space.lock();
        loop {
            let segment = space.next_to_write(&self.items)?;
            // In an image that is damaged it may be anything.
            let fill = self.items.segments.at(segment).value_fill();
            let fill = fill.min(self.config.segment_bytes);
            if fill > 0 && !self.items.segments.is_dead(segment) {
                return Some(Writing {
                    segment,
                    len: fill.next_multiple_of(BLOCK_BYTES),
                    sent: 0,
                    pieces: 0,
                    has_failed: false,
                });
            }
            space.leave_stage(&self.items, segment);
        }
    }

    /// Takes in that a write was done, or failed: of the segment with this sequence number.
    pub fn written(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        (seq, is_done): (u64, bool),
        now: UnixSeconds,
    ) {
        let segments = &self.items.segments;
        let is_it = |writing: &&mut Writing| segments.at(writing.segment).seq() == seq;
        let Some(writing) = w.writing.as_mut().filter(is_it) else {
            return;
        };
        writing.pieces -= 1;
        writing.has_failed |= !is_done;
        if writing.pieces > 0 || writing.sent < writing.len {
            return;
        }
        let &mut Writing {
            segment,
            has_failed,
            ..
        } = writing;
        w.writing = None;
        match has_failed {
            false => self.space.lock().leave_stage(&self.items, segment),
            true => self.fail(w.worker(), lane, segment, now),
        }
    }

    /// A segment could not be written: it is tried again, and after some times what lives in it
    /// goes back to the fast device, as far as there is room.
    #[cold]
    fn fail(&self, worker: WorkerId, lane: &mut Lane<'_>, segment: u32, now: UnixSeconds) {
        let at = self.items.segments.at(segment);
        at.set_failures(at.failures() + 1);
        if at.failures() < FAILURES_MOST {
            self.space.lock().wait_to_be_written(&self.items, segment);
            return;
        }
        self.lock_reclaimer()
            .take_back(self, lane, worker, segment, now);
    }

    /// What is deep; none where there is no deep device. Looks at every segment's entry.
    pub(crate) fn deep_figures(&self) -> Option<DeepFigures> {
        self.items.deep()?;
        let mut space = self.space.lock();
        let all = space.depth_shape();
        let depth = space.depth()?;
        let refused = depth.refused;
        let mut figures = DeepFigures {
            stages: (all.stages - depth.free_stages(), all.stages),
            key_bytes: depth.key_bytes(),
            segments: (0, all.segments),
            demotions: self.done.demotions.get(),
            returns: self.done.returns.get(),
            promotions: self.done.promotions.get(),
            mirrors: self.done.mirrors.get(),
            arounds: self.arounds.load(Relaxed),
            lost_twins: self.lost_twins.load(Relaxed),
            compactions: self.done.compactions.get(),
            compacted_bytes: self.done.compacted_bytes.get(),
            evictions: self.done.deep_evictions.get(),
            refused_stage: refused.stage,
            refused_segment: refused.segment,
            refused_allowance: refused.allowance + self.done.spared.get(),
            lost: self.lost.load(Relaxed),
            ..DeepFigures::default()
        };
        drop(space);
        let segments = &self.items.segments;
        for at in self.items.first_deep()..segments.len() {
            if segments.at(at).state() != crate::segment::SegmentState::Free {
                figures.segments.0 += 1;
                figures.live_bytes += u64::from(segments.live_bytes(at));
                figures.twin_bytes += u64::from(segments.twin_bytes(at));
                figures.dead_bytes += u64::from(segments.dead_bytes(at));
            }
        }
        Some(figures)
    }
}
