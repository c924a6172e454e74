//! The ground that tenants stand on: which part of each device is given away, and what the next
//! tenant is made with; and how a running engine takes in more of them.
//!
//! A tenant gets the first range of its device that is free and long enough, and none is given
//! back. One that survives gets the ranges that its image names, on either device, before all
//! others: its values are there.
//!
//! What it never does: judge whether promises can be kept; `nyx_policy::admission` does.
//!
//! *Thread safety*: the ground is behind a lock, which is held while a store is made; nobody but
//! who takes in tenants asks for it. The controller's lock is taken for the publication alone.

use crate::config::{EngineError, TenantConfig};
use crate::control::{Policies, lock, or_nobody};
use crate::engine::Engine;
use crate::tenant::Tenant;
use nyx_base::{Bytes, TenantId};
use nyx_gate::Device;
use nyx_store::{DeepPart, Eras, Store, StoreConfig};
use nyx_tier::Deep;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// What tenants are made with.
pub(crate) struct Ground {
    pub(crate) devices: Vec<Arc<Device>>,
    pub(crate) eras: Arc<Eras>,
    pub(crate) workers: u16,
    /// Of the first tenant; each later one has the next.
    pub(crate) hash_seed: u64,
    /// How many tenants there may ever be.
    pub(crate) room: usize,
    pub(crate) deep_devices: Vec<Arc<Deep>>,
    /// What is given away.
    pub(crate) given: AllGiven,
}

/// Of each device what is given away, and of each deep one.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllGiven {
    fast: Vec<Given>,
    deep: Vec<Given>,
}

impl AllGiven {
    /// Nothing, of so many devices and so many deep ones.
    pub(crate) fn nothing(fast: usize, deep: usize) -> AllGiven {
        let nothing = |count| vec![Given::default(); count];
        AllGiven {
            fast: nothing(fast),
            deep: nothing(deep),
        }
    }
}

/// Where the ranges of a tenant begin; none where it gets what is free.
#[derive(Clone, Copy, Debug, Default)]
struct Bases {
    fast: Option<u64>,
    deep: Option<u64>,
}

/// Which ranges of a device are given away, in bytes, in the order of their begins.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given(Vec<Range<u64>>);

impl Given {
    fn take(&mut self, range: Range<u64>) {
        let at = self.0.partition_point(|one| one.start < range.start);
        self.0.insert(at, range);
    }

    /// Whether nothing of a range is given away.
    fn is_free(&self, range: &Range<u64>) -> bool {
        let meets = |one: &Range<u64>| one.start < range.end && range.start < one.end;
        !self.0.iter().any(meets)
    }

    /// Gives a range away that lies on a device of `len` bytes, if nothing of it was; its begin.
    fn take_if_free(&mut self, range: Range<u64>, len: u64) -> Option<u64> {
        let is_free = range.end <= len && self.is_free(&range);
        is_free.then(|| {
            let begin = range.start;
            self.take(range);
            begin
        })
    }

    /// The ranges that are free on a device of `len` bytes.
    fn gaps(&self, len: u64) -> impl Iterator<Item = Range<u64>> {
        let begins = std::iter::once(0).chain(self.0.iter().map(|one| one.end));
        let ends = self.0.iter().map(|one| one.start).chain([len]);
        begins.zip(ends).map(|(begin, end)| begin..end.max(begin))
    }
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
        let mut given = self.given.clone();
        let bases: Vec<Bases> = tenants
            .iter()
            .map(|tenant| self.bases_in_image(tenant, &mut given))
            .collect();
        let ids = (first..wanted).map(|at| TenantId(at as u16));
        let made = ids
            .zip(tenants.into_iter().zip(bases))
            .map(|(id, (tenant, base))| self.make(id, tenant, base, &mut given));
        let made = made.collect::<Result<Vec<Tenant>, EngineError>>()?;
        self.given = given;
        Ok(made)
    }

    fn make(
        &self,
        id: TenantId,
        tenant: TenantConfig,
        bases: Bases,
        given: &mut AllGiven,
    ) -> Result<Tenant, EngineError> {
        let device = find(&self.devices, tenant.device, &tenant)?;
        let len = medium_len(tenant.size.0, tenant.segment_bytes);
        let base = match bases.fast {
            Some(base) => base,
            None => {
                let there = (&*device.name, device.media.len());
                range_for(there, &tenant, len, &mut given.fast[tenant.device])?
            }
        };
        let deep = self.deep_part(&tenant, bases.deep, &mut given.deep)?;
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
            keep: tenant.keep.clone(),
            order: tenant.ranges.map(|ranges| ranges.tree),
            deep: deep.as_ref().map(|&(_, part)| part),
        };
        let store = Store::new(store, self.eras.clone()).map_err(|source| EngineError::Store {
            tenant: tenant.name.clone(),
            source,
        })?;
        let devices = (device.clone(), deep.map(|(deep, _)| deep));
        Ok(Tenant::new(id, tenant, store, devices, self.workers))
    }

    /// A tenant's deep device and what it gets of it; none where it has none.
    fn deep_part(
        &self,
        tenant: &TenantConfig,
        base: Option<u64>,
        given: &mut [Given],
    ) -> Result<Option<(Arc<Deep>, DeepPart)>, EngineError> {
        let Some(share) = tenant.deep else {
            return Ok(None);
        };
        let deep = find(&self.deep_devices, share.device, tenant)?;
        let len = medium_len(share.size.0, tenant.segment_bytes);
        let base = match base {
            Some(base) => base,
            None => {
                let there = (&*deep.name, deep.file().len_bytes());
                range_for(there, tenant, len, &mut given[share.device])?
            }
        };
        let part = DeepPart {
            id: deep.file().id(),
            base,
            len,
            item_len_min: share.item_len_min,
            day_bytes: share.day.map(|day| day.0),
            write: share.write,
        };
        Ok(Some((deep.clone(), part)))
    }

    /// Where the ranges of a tenant begin that its image names, which are given to it.
    fn bases_in_image(&self, tenant: &TenantConfig, given: &mut AllGiven) -> Bases {
        let keep = tenant.keep.as_ref();
        let Some((fast, deep)) = keep.and_then(nyx_store::ranges_in_image) else {
            return Bases::default();
        };
        // Whatever else is wrong with it, the store will say.
        let device = self.devices.get(tenant.device);
        let fast = device.and_then(|device| {
            let given = &mut given.fast[tenant.device];
            given.take_if_free(fast, device.media.len())
        });
        // One that is longer or shorter now begins with nothing, wherever that is.
        let deep = deep.zip(tenant.deep).and_then(|(range, share)| {
            let file = self.deep_devices.get(share.device)?.file();
            let is_it = range.id == file.id()
                && range.len == medium_len(share.size.0, tenant.segment_bytes);
            let given = given.deep.get_mut(share.device).filter(|_| is_it)?;
            given.take_if_free(range.base..range.end(), file.len_bytes())
        });
        Bases { fast, deep }
    }
}

impl Engine {
    /// Takes in more tenants, whose ids follow those that there are, under policies for all of
    /// them; workers and their connections go on meanwhile. Nobody reaches a newcomer before a door
    /// or a login leads there: let the policy step once ([`Engine::control`]) before that, so that
    /// their limits hold from their first request.
    ///
    /// Errors: where one of them has no place or cannot be made; then there are none of them and
    /// everything stays as it is.
    pub fn take_in(
        &self,
        newcomers: Vec<TenantConfig>,
        policies: impl Into<Policies>,
    ) -> Result<(), EngineError> {
        let ground = self.ground.lock();
        let mut ground = ground.unwrap_or_else(PoisonError::into_inner);
        let made = ground.settle(self.tenants.len(), newcomers)?;
        if let Some(one) = made.iter().find(|one| one.store.is_to_replay()) {
            return Err(EngineError::ToReplay {
                tenant: one.name().to_owned(),
            });
        }
        // From here on nothing can fail. What controllers know of tenants grows together with
        // the table, as ticks see it.
        let Policies { fast, deep } = policies.into();
        let deep_rules = self.deep_rules.iter();
        let all = std::iter::once(&self.controller).chain(deep_rules.map(|rule| &rule.controller));
        let policies = std::iter::once(fast).chain(or_nobody(deep));
        let take = |controller| {
            // Whoever failed with it is not asked again.
            Mutex::clear_poison(controller);
            lock(controller)
        };
        // All of them, in one order; whoever else has one has no other.
        let mut controllers: Vec<_> = all.map(take).collect();
        made.into_iter()
            .for_each(|tenant| self.tenants.push(tenant));
        for (controller, policy) in controllers.iter_mut().zip(policies) {
            controller.grow(self.tenants.len());
            controller.set_policy(policy);
        }
        Ok(())
    }
}

/// The device at a place that a tenant names.
fn find<'d, T>(
    devices: &'d [Arc<T>],
    at: usize,
    tenant: &TenantConfig,
) -> Result<&'d Arc<T>, EngineError> {
    devices.get(at).ok_or_else(|| EngineError::NoSuchDevice {
        tenant: tenant.name.clone(),
        device: at,
        devices: devices.len(),
    })
}

/// Gives a tenant the first range that is long enough, of a device with a name and so many bytes.
fn range_for(
    (device, device_len): (&str, u64),
    tenant: &TenantConfig,
    len: u64,
    given: &mut Given,
) -> Result<u64, EngineError> {
    let gaps = || given.gaps(device_len);
    let gap = gaps().find(|gap| gap.end - gap.start >= len);
    let Some(gap) = gap else {
        let left = gaps().map(|gap| gap.end - gap.start).max();
        return Err(EngineError::DeviceFull {
            device: device.to_owned(),
            len: Bytes(device_len),
            tenant: tenant.name.clone(),
            size: Bytes(len),
            left: Bytes(left.unwrap_or_default()),
        });
    };
    given.take(gap.start..gap.start + len);
    Ok(gap.start)
}

/// How much of its device a tenant's range covers: its size, in whole segments.
fn medium_len(size: u64, segment_bytes: u32) -> u64 {
    let segment = u64::from(segment_bytes.max(1));
    size.div_ceil(segment) * segment
}
