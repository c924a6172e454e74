//! One tenant's items.

use crate::config::{StoreConfig, StoreError};
use crate::eras::Eras;
use crate::item::Item;
use crate::request::{Condition, DeleteOutcome, Figures, KeyHash, Put, PutOutcome, Side};
use crate::writer::Writer;
use nyx_base::{UnixSeconds, WorkerId};
use nyx_gate::Lane;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// One tenant's items, shared by all workers.
#[derive(Debug)]
pub struct Store {
    config: StoreConfig,
    eras: Arc<Eras>,
}

impl Store {
    /// An empty store. Reserves address space, touches little memory.
    pub fn new(config: StoreConfig, eras: Arc<Eras>) -> Result<Store, StoreError> {
        Ok(Store { config, eras })
    }

    /// What the store was made from.
    pub fn config(&self) -> &StoreConfig {
        &self.config
    }

    /// The hand of `worker`: make one per worker, once.
    pub fn writer(&self, worker: WorkerId) -> Writer {
        let _ = &self.eras;
        Writer::new(worker)
    }

    /// The hash of a key.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash(xxh3_64_with_seed(key, self.config.hash_seed))
    }

    /// First stage of a batch: brings the key's bucket near.
    #[inline]
    pub fn prefetch_bucket(&self, hash: KeyHash) {
        let _ = hash;
    }

    /// Second stage, when the bucket is near: brings the candidate's header and key near.
    #[inline]
    pub fn prefetch_item(&self, hash: KeyHash) {
        let _ = hash;
    }

    /// Third stage, when the header is near: brings the candidate's value near.
    #[inline]
    pub fn prefetch_value(&self, lane: &Lane<'_>, hash: KeyHash) {
        let _ = (lane, hash);
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
        let _ = (lane, key, hash, now);
        None
    }

    /// Stores an item where its condition holds.
    pub fn put(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        put: &Put<'_>,
        now: UnixSeconds,
    ) -> PutOutcome {
        let _ = (w, lane, put, now);
        PutOutcome::OutOfMemory
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
        let _ = (w, lane, put, side, now);
        PutOutcome::OutOfMemory
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
        let _ = (w, lane, key, hash, condition, now);
        DeleteOutcome::NotFound
    }

    /// Marks an item stale and its token to recache as not given (meta `md` with `I`), and gives it
    /// a new end where `expiry` is some.
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
        let _ = (w, lane, key, hash, condition, expiry, now);
        DeleteOutcome::NotFound
    }

    /// Gives an item a new end. False where there is no such item.
    pub fn touch(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        key: &[u8],
        hash: KeyHash,
        expiry: UnixSeconds,
        now: UnixSeconds,
    ) -> bool {
        let _ = (w, lane, key, hash, expiry, now);
        false
    }

    /// Forgets, at the second `at`, every item that was written before that second comes; at once
    /// where `at` is not after `now`. Costs the same for any number of items.
    pub fn flush(&self, at: UnixSeconds, now: UnixSeconds) {
        let _ = (at, now);
    }

    /// Frees some of what has expired or was flushed; true where there may be more. Bounded work:
    /// call it from the tick.
    pub fn expire(&self, w: &mut Writer, lane: &mut Lane<'_>, now: UnixSeconds) -> bool {
        let _ = (w, lane, now);
        false
    }

    /// How the store stands.
    pub fn figures(&self) -> Figures {
        Figures::default()
    }
}
