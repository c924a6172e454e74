//! A full look at what an image holds, for people.
//!
//! What it never does: serve. Whoever looks has the store alone.

use super::Kept;
use crate::items::Spot;
use crate::store::Store;
use nyx_base::UnixSeconds;
use nyx_index::{Place, Places};
use nyx_tier::Lane;
use std::sync::atomic::Ordering::Relaxed;

/// What an image holds and whether that is sound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Items that can be found, those that have ended too.
    pub items: u64,
    /// Of them, those that have expired or were flushed.
    pub ended: u64,
    /// Of them, those that never expire.
    pub endless: u64,
    /// Bytes of their keys.
    pub key_bytes: u64,
    /// Bytes of their values.
    pub value_bytes: u64,
    /// Entries of the index that were dropped, since they led to no item: damage, or what a worker
    /// that was killed had not finished.
    pub dropped: u64,
    /// Items that were dropped, since their values are not what was stored.
    pub damaged: u64,
    /// Items that no entry of the index leads to: they are lost, but for a new index.
    pub unreachable: u64,
    /// Segments that hold items, and that there are, those of a deep device too.
    pub segments: (u64, u64),
    /// What of that is on a deep device; none where it has none.
    pub deep: Option<DeepHealth>,
    /// Bytes that the file system has for the image.
    pub image_bytes: u64,
}

/// What an image has on a deep device. Nobody looks at the values there: who fetches one does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeepHealth {
    /// Segments that hold items, and that there are.
    pub segments: (u64, u64),
    /// Stages that hold a segment, which is not on the device yet, and that there are.
    pub stages: (u64, u64),
    /// Items whose values are on the device.
    pub items: u64,
    /// Bytes of those values.
    pub value_bytes: u64,
}

impl Store {
    /// Looks at everything that its image holds, and drops what is not sound. With a lane to its
    /// medium values are read there, and in stages, and compared with their checks; without one
    /// they are believed, as are those on a deep device. None
    /// where the store does not survive. `tell` is told how many chains of how many are done.
    pub fn examine(
        &self,
        mut lane: Option<&mut Lane<'_>>,
        now: UnixSeconds,
        tell: &mut dyn FnMut(u64, u64),
    ) -> Option<Health> {
        let kept = self.kept.as_deref()?;
        let mut more = true;
        while more {
            more = match &mut lane {
                Some(lane) => self.sweep(lane),
                None => self.sweep_chains(|place| self.head_at(place).is_some()),
            };
            let revived = self.revived().unwrap_or_default();
            tell(revived.chains, revived.chains_all);
        }
        Some(self.count(kept, now))
    }

    fn count(&self, kept: &Kept, now: UnixSeconds) -> Health {
        let segments = &self.items.segments;
        let full = (0..segments.len()).filter(|&at| segments.live_bytes(at) > 0);
        let damaged = kept.damaged.load(Relaxed);
        let dropped = self.revived().map_or(0, |revived| revived.dropped);
        let mut health = Health {
            dropped: dropped - damaged,
            damaged,
            segments: (full.count() as u64, u64::from(segments.len())),
            deep: self.deep_health(),
            image_bytes: kept.image.allocated_bytes().unwrap_or_default(),
            ..Health::default()
        };
        self.items.records(|place, head| {
            let leads_there = |other: Place| other == place;
            if self.index.find(head.hash.0, leads_there).is_none() {
                let is_lost = !head.is_dead && !self.was_twin(place, head.hash.0);
                health.unreachable += u64::from(is_lost);
                return;
            }
            let header = &head.header;
            health.items += 1;
            health.ended += u64::from(self.is_ended(header, place, now));
            health.endless += u64::from(header.expiry == UnixSeconds::NEVER);
            health.key_bytes += u64::from(header.key_len);
            health.value_bytes += u64::from(header.value_len);
            if let (Some(deep), Spot::Deep(_)) = (&mut health.deep, self.items.spot(place, header))
            {
                deep.items += 1;
                deep.value_bytes += u64::from(header.value_len);
            }
        });
        health
    }

    /// Whether a record is deep and its key has an item: it was that one's twin.
    fn was_twin(&self, place: Place, hash: u64) -> bool {
        let Some(chunks) = &self.items.chunks else {
            return false;
        };
        let key = |place| chunks.key(place, &chunks.header(place));
        let has_its_key = |other: Place| key(other) == key(place);
        let is_deep = self.items.is_deep(chunks.segment_of(place));
        is_deep && self.index.find(hash, has_its_key).is_some()
    }

    /// Segments and stages of the deep device.
    fn deep_health(&self) -> Option<DeepHealth> {
        let stages = self.space.lock().depth_shape().stages;
        let all = self.items.first_deep()..self.items.segments.len();
        let segments = &self.items.segments;
        let full = all.clone().filter(|&at| segments.live_bytes(at) > 0);
        let staged = all.clone().filter(|&at| segments.at(at).stage().is_some());
        self.items.deep().map(|_| DeepHealth {
            segments: (full.count() as u64, all.len() as u64),
            stages: (staged.count() as u64, u64::from(stages)),
            ..DeepHealth::default()
        })
    }
}
