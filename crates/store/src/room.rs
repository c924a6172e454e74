//! Room: for an item in its writer's open segment, for a bucket in the index.
//!
//! A little is made ahead of need, whenever a segment or a chunk is taken; who finds none all the
//! same makes some itself.
//!
//! What it never does: hold a bucket's lock, or wait without end: other workers' eras may not be
//! over for as long as they are not run.
//!
//! *Thread safety*: as `store`. The worker's era ends while it waits, so that two workers that need
//! room cannot wait for each other.

use crate::items::Footprint;
use crate::reclaim::{Reclaimer, Step};
use crate::shape;
use crate::space::Taker;
use crate::store::Store;
use crate::writer::{Lot, Room, Writer};
use crossbeam_utils::Backoff;
use nyx_base::UnixSeconds;
use nyx_index::Full;
use nyx_tier::Lane;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, PoisonError};

/// How often a put that finds no room tries to make some, or lets other threads run, before it
/// gives up. A worker that was preempted within its era must get its turn meanwhile.
const ROOM_TRIES: u32 = 100_000;
/// Steps of reclaiming that a put makes ahead of need.
const STEPS_AHEAD: usize = 8;
/// Buckets that one put adds to the index at most.
const GROWTH_PER_PUT: usize = 2;
impl Store {
    /// Makes sure that the writer's open segment has room. May end the worker's era.
    #[inline]
    pub(crate) fn make_room(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        lot: Lot,
        needs: Footprint,
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
    pub(crate) fn reclaim_ahead(&self, w: &mut Writer, lane: &mut Lane<'_>, now: UnixSeconds) {
        if let Ok(mut reclaimer) = self.reclaimer.try_lock() {
            // Ahead of need nothing is dropped for want of a stage: the deep device has time yet.
            let mut step = || {
                !self.wants_stage() && reclaimer.step(self, lane, w.worker(), now) == Step::Freed
            };
            (0..STEPS_AHEAD).take_while(|_| step()).for_each(drop);
        }
    }

    /// Reclaims until `done` says that it was enough. The worker's era ends meanwhile, so that two
    /// workers that need room cannot wait for each other.
    #[cold]
    pub(crate) fn within_reclaim(
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
            self.wants_stage();
            let step = reclaimer.step(self, lane, worker, now);
            let mut space = self.space.lock();
            space.collect(&self.items);
            let is_vain = step == Step::Nothing && space.is_starved() && !space.is_waiting();
            drop(space);
            drop(reclaimer);
            if is_vain {
                break;
            }
            if step != Step::Freed {
                backoff.snooze();
            }
        }
        if was_within {
            self.eras.enter(worker);
        }
        enough
    }

    /// Whether there is a deep device that soon will take more, and now would not, or only for what
    /// lives there: it has not yet written what it was given, or it is full, and what is dead there
    /// is being moved out of the way or not yet known.
    pub(crate) fn is_backlogged(&self) -> bool {
        if !self.is_deep() {
            return false;
        }
        let mut space = self.space.lock();
        space.is_backlogged(&self.items) || self.is_sweeping() && space.is_deep_tight()
    }

    /// The same; then what is on its way there is hurried.
    fn wants_stage(&self) -> bool {
        let is_backlogged = self.is_backlogged();
        if let (true, Some(deep)) = (is_backlogged, self.items.deep()) {
            deep.is_wanted.store(true, Relaxed);
        }
        is_backlogged
    }

    pub(crate) fn lock_reclaimer(&self) -> MutexGuard<'_, Reclaimer> {
        self.reclaimer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the index grow where it is crowded and there is memory; where there is none its chains
    /// get longer.
    #[inline]
    pub(crate) fn grow(&self, w: &mut Writer, lane: &mut Lane<'_>) {
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
            match self.index.grow(near, hash_of) {
                Err(Full::Memory) => return,
                Err(Full::Limit) if !self.extend_index(w.taker()) => return,
                _ => {}
            }
        }
    }

    /// More memory for the index, from the tenant's budget.
    pub(crate) fn extend_index(&self, taker: Taker) -> bool {
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
    pub(crate) fn grant(&self, w: &mut Writer, lane: &mut Lane<'_>, now: UnixSeconds) -> bool {
        self.extend_index(w.taker())
            || self.within_reclaim(w, lane, now, |w| self.extend_index(w.taker()))
    }
}
