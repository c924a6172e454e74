//! What a store does with its deep device: fetching what somebody asks for, writing segments that
//! are full, taking back what is asked for often (docs/decisions/0011-two-tiers.md).
//!
//! What it never does: wait. Who asks for what is not here is told what to wait for.
//!
//! *Thread safety*: as `store`. What was fetched belongs to the worker's hand on the device.

use crate::check;
use crate::item::Item;
use crate::items::{Deep, Spot};
use crate::request::{DeepFigures, KeyHash, Presence};
use crate::stage::Staged;
use crate::store::{Found, Store};
use crate::writer::{Writer, Writing};
use nyx_base::{Instant, UnixSeconds, WorkerId};
use nyx_gate::Gate;
use nyx_tier::{Lane, Looked};
use std::sync::atomic::Ordering::Relaxed;

/// A segment that could not be written so often goes back to the fast device.
const FAILURES_MOST: u32 = 3;
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
        match item.spot {
            Spot::Deep(_) => {
                let found = Found {
                    place: item.place,
                    header: item.header,
                };
                let what = (KeyHash(item.hash), found);
                self.fetch_found(worker, lane, what, &mut item.spot, Some(now))
            }
            _ => Presence::Here,
        }
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
        if !lane.is_checked(landing) {
            let is = check::value(hash, lane.landed(landing).into());
            let checks = self.items.checks(found.place, &found.header);
            if checks.is_none_or(|checks| checks.value != is) {
                lane.forget(landing);
                return self.lose(worker, lane, hash, found);
            }
            lane.set_checked(landing);
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
    /// went deep and there is room. Call it when the value was read; the item is not to be used
    /// afterwards.
    pub fn promote(
        &self,
        w: &Writer,
        lane: &mut Lane<'_>,
        item: &Item<'_>,
        now: UnixSeconds,
    ) -> bool {
        let is_wanted = item.state.frequency() > 0;
        let landed = matches!(item.spot, Spot::Landed(_));
        if !is_wanted || !landed {
            return false;
        }
        match self.reclaimer.try_lock() {
            Ok(mut reclaimer) => reclaimer.promote(lane, w.worker(), item, now),
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
                if !lane.takes_deep(now) || !lane.deep_gate(now).is_open() {
                    return true;
                }
                let left = (writing.len - writing.sent) as usize;
                let len = left.min(Lane::PIECE_BYTES);
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
            if !self.items.segments.is_dead(segment) {
                let fill = self.items.segments.at(segment).value_fill();
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
            key_bytes: u64::from(depth.chunks) * u64::from(crate::chunks::CHUNK_BYTES),
            segments: (0, all.segments),
            demotions: self.done.demotions.get(),
            promotions: self.done.promotions.get(),
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
                figures.dead_bytes += u64::from(segments.dead_bytes(at));
            }
        }
        Some(figures)
    }
}
