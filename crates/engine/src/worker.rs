//! What one worker holds: its lanes and its hand in each tenant's store.
//!
//! *Thread safety*: belongs to one thread. Dropping it (or [`Worker::leave`]) ends its era.

use nyx_base::{Nanos, TenantId, WorkerId};
use nyx_store::{Eras, Writer};
use nyx_tier::{Hand, Tolls};
use std::sync::Arc;

/// One worker's own state. Made by [`crate::Engine::worker`].
pub struct Worker {
    pub(crate) tolls: Tolls,
    pub(crate) writers: Vec<Writer>,
    pub(crate) eras: Arc<Eras>,
    /// Where the bounded work of [`crate::Engine::maintain`] goes on.
    pub(crate) maintained: usize,
    /// A tenant has more to do since the first of them had its turn.
    pub(crate) unfinished: bool,
}

impl Worker {
    /// Which worker.
    #[inline]
    pub fn id(&self) -> WorkerId {
        self.tolls.worker()
    }

    /// Tells how soon its driver can come back for a tenant that is held, where that is not at
    /// once: see [`Tolls::hold_at_least`].
    pub fn hold_at_least(&mut self, hold_min: Nanos) {
        self.tolls.hold_at_least(hold_min);
    }

    /// Begins a batch: items found from now on stay readable until the next `enter` or `leave`.
    #[inline]
    pub fn enter(&mut self) {
        self.eras.enter(self.tolls.worker());
    }

    /// Waits until what was read from modelled devices would have arrived. Call it after a batch,
    /// before its answers are sent.
    #[inline]
    pub fn settle(&mut self) {
        self.tolls.settle();
    }

    /// Says how many requests wait for it, beside the one that is executed: what keeps the worker
    /// keeps them.
    #[inline]
    pub fn set_waiting(&mut self, requests: u32) {
        self.tolls.set_waiting(requests);
    }

    /// Says that it was at work for so long, whatever it did: a busy worker is given less to do
    /// that is not asked for.
    #[inline]
    pub fn worked(&mut self, time: Nanos) {
        self.tolls.worked(time);
    }

    /// Its hands on deep devices, in their order, to watch their events.
    pub fn deep_hands(&mut self) -> &mut [Hand] {
        self.tolls.hands()
    }

    /// Whether [`crate::Engine::land`] is to be called again without waiting for an event.
    pub fn is_restless(&self) -> bool {
        self.tolls.is_restless()
    }

    /// Ends the last batch. Call it before waiting for events.
    #[inline]
    pub fn leave(&mut self) {
        self.eras.leave(self.tolls.worker());
    }

    #[inline]
    pub(crate) fn hands(&mut self, tenant: TenantId) -> (nyx_tier::Lane<'_>, &mut Writer) {
        (self.tolls.lane(tenant), &mut self.writers[tenant.index()])
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.leave();
    }
}
