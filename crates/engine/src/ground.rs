//! The ground that tenants stand on: which part of each device is given away, and what the next
//! tenant is made with; and how a running engine takes in more of them.
//!
//! Tenants are only ever appended: a range of a device begins where the one before it ends, at the
//! start and later alike, and none is given back.
//!
//! What it never does: judge whether promises can be kept; `nyx_policy::admission` does.
//!
//! *Thread safety*: the ground is behind a lock, which is held while a store is made; nobody but
//! who takes in tenants asks for it. The controller's lock is taken for the publication alone.

use crate::config::{EngineError, TenantConfig};
use crate::engine::Engine;
use crate::tenant::Tenant;
use nyx_base::{Bytes, TenantId};
use nyx_gate::Device;
use nyx_policy::Policy;
use nyx_store::{Eras, Store, StoreConfig};
use std::sync::{Arc, PoisonError};

/// What tenants are made with.
pub(crate) struct Ground {
    pub(crate) devices: Vec<Arc<Device>>,
    pub(crate) eras: Arc<Eras>,
    pub(crate) workers: u16,
    /// Of the first tenant; each later one has the next.
    pub(crate) hash_seed: u64,
    /// How many tenants there may ever be.
    pub(crate) room: usize,
    /// Of each device, in bytes from its beginning.
    pub(crate) used: Vec<u64>,
}

impl Ground {
    /// Makes tenants whose ids begin at `first`, or none of them.
    pub(crate) fn settle(
        &mut self,
        first: usize,
        tenants: Vec<TenantConfig>,
    ) -> Result<Vec<Tenant>, EngineError> {
        let wanted = first + tenants.len();
        if wanted > self.room {
            let most = self.room;
            return Err(EngineError::TooMany { wanted, most });
        }
        let mut used = self.used.clone();
        let ids = (first..wanted).map(|at| TenantId(at as u16));
        let made = ids
            .zip(tenants)
            .map(|(id, tenant)| self.make(id, tenant, &mut used));
        let made = made.collect::<Result<Vec<Tenant>, EngineError>>()?;
        self.used = used;
        Ok(made)
    }

    fn make(
        &self,
        id: TenantId,
        tenant: TenantConfig,
        used: &mut [u64],
    ) -> Result<Tenant, EngineError> {
        let Some(device) = self.devices.get(tenant.device) else {
            return Err(EngineError::NoSuchDevice {
                tenant: tenant.name,
                device: tenant.device,
                devices: self.devices.len(),
            });
        };
        let base = used[tenant.device];
        let len = medium_len(tenant.size.0, tenant.segment_bytes);
        let left = device.media.len().saturating_sub(base);
        if len > left {
            return Err(EngineError::DeviceFull {
                device: device.name.clone(),
                len: Bytes(device.media.len()),
                tenant: tenant.name,
                size: Bytes(len),
                left: Bytes(left),
            });
        }
        used[tenant.device] += len;
        let store = StoreConfig {
            size: tenant.size.0,
            medium_base: base,
            medium_len: len,
            segment_bytes: tenant.segment_bytes,
            item_len_max: tenant.item_len_max,
            eviction: tenant.eviction,
            layout: tenant.layout,
            workers: self.workers,
            hash_seed: self.hash_seed.wrapping_add(u64::from(id.0)),
            keep: None,
        };
        let store = Store::new(store, self.eras.clone()).map_err(|source| EngineError::Store {
            tenant: tenant.name.clone(),
            source,
        })?;
        Ok(Tenant::new(id, tenant, store, device.clone(), self.workers))
    }
}

impl Engine {
    /// Takes in more tenants, whose ids follow those that there are, under a policy for all of
    /// them; workers and their connections go on meanwhile. Nobody reaches a newcomer before a door
    /// or a login leads there: let the policy step once ([`Engine::control`]) before that, so that
    /// their limits hold from their first request.
    ///
    /// Errors: where one of them has no place or cannot be made; then there are none of them and
    /// everything stays as it is.
    pub fn take_in(
        &self,
        newcomers: Vec<TenantConfig>,
        policy: Box<dyn Policy>,
    ) -> Result<(), EngineError> {
        let ground = self.ground.lock();
        let mut ground = ground.unwrap_or_else(PoisonError::into_inner);
        let made = ground.settle(self.tenants.len(), newcomers)?;
        // From here on nothing can fail. What the controller knows of tenants grows together with
        // the table, as ticks see it.
        let controller = self.controller.lock();
        let mut controller = controller.unwrap_or_else(PoisonError::into_inner);
        made.into_iter()
            .for_each(|tenant| self.tenants.push(tenant));
        controller.grow(self.tenants.len());
        controller.set_policy(policy);
        Ok(())
    }
}

/// How much of its device a tenant's range covers: its size, in whole segments.
fn medium_len(size: u64, segment_bytes: u32) -> u64 {
    let segment = u64::from(segment_bytes.max(1));
    size.div_ceil(segment) * segment
}
