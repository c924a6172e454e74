//! One cache instance: its items, its budget, its figures.

use crate::config::{HoldAction, TenantConfig};
use crate::counters::{Counters, Counts};
use nyx_base::{CachePadded, Latencies, LatencyCounter, TenantId, WorkerId};
use nyx_gate::{Account, Budget, Device, Usage};
use nyx_store::{Store, StoreError};
use nyx_tier::{Deep, Pair};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// One tenant, shared by all workers.
pub struct Tenant {
    pub(crate) id: TenantId,
    pub(crate) config: TenantConfig,
    pub(crate) store: Store,
    pub(crate) budget: Arc<Budget>,
    pub(crate) device: Arc<Device>,
    pub(crate) deep: Option<DeepSide>,
    accounts: Vec<Arc<CachePadded<Account>>>,
    counters: Vec<Arc<CachePadded<Counters>>>,
    latencies: Vec<CachePadded<LatencyCounter>>,
    measured: AtomicBool,
}

/// What a tenant has on a deep device besides its values.
pub(crate) struct DeepSide {
    pub(crate) pair: Arc<Pair>,
    /// What policies leave it there that go by latencies.
    pub(crate) budget: Arc<Budget>,
    /// What the device's own policy leaves it: above that one.
    pub(crate) part: Arc<Budget>,
    accounts: Vec<Arc<CachePadded<Account>>>,
}

impl DeepSide {
    pub(crate) fn account(&self, worker: WorkerId) -> Arc<CachePadded<Account>> {
        self.accounts[worker.index()].clone()
    }

    /// What was used of the device, all workers together.
    pub(crate) fn usage(&self) -> Usage {
        let accounts = self.accounts.iter();
        accounts.fold(Usage::default(), |sum, one| sum + one.usage())
    }
}

impl Tenant {
    pub(crate) fn new(
        id: TenantId,
        config: TenantConfig,
        store: Store,
        (device, deep): (Arc<Device>, Option<Arc<Deep>>),
        workers: u16,
    ) -> Tenant {
        let deep = deep.zip(config.deep).map(|(deep, share)| {
            let rule = (share.nhc, share.bounds);
            let (budget, part) = (Budget::unlimited(), Arc::new(Budget::unlimited()));
            budget.set_above(Some(part.clone()));
            DeepSide {
                pair: Arc::new(Pair::new(deep, device.cost.clone(), rule, workers)),
                budget: Arc::new(budget),
                part,
                accounts: (0..workers).map(|_| Arc::default()).collect(),
            }
        });
        Tenant {
            id,
            config,
            store,
            budget: Arc::new(Budget::unlimited()),
            device,
            deep,
            accounts: (0..workers).map(|_| Arc::default()).collect(),
            counters: (0..workers).map(|_| Arc::default()).collect(),
            latencies: (0..workers).map(|_| CachePadded::default()).collect(),
            measured: AtomicBool::new(false),
        }
    }

    /// Its id.
    pub fn id(&self) -> TenantId {
        self.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// What it was made from.
    pub fn config(&self) -> &TenantConfig {
        &self.config
    }

    /// Its items.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// What it may use.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// What it has used of its device, all workers together.
    pub fn usage(&self) -> Usage {
        self.accounts
            .iter()
            .map(|a| a.usage())
            .fold(Usage::default(), |sum, one| sum + one)
    }

    /// What it has used of its deep device, all workers together; none where it has none.
    pub fn deep_usage(&self) -> Option<Usage> {
        self.deep.as_ref().map(DeepSide::usage)
    }

    /// Its two devices and who decides between them; none where it has one.
    pub fn pair(&self) -> Option<&Pair> {
        self.deep.as_ref().map(|deep| &*deep.pair)
    }

    /// Waits until what it has written to its deep device is durable, if it survives.
    pub(crate) fn sync_deep(&self) -> Result<(), StoreError> {
        match &self.deep {
            Some(deep) if self.config.keep.is_some() => Ok(deep.pair.deep().file().sync()?),
            _ => Ok(()),
        }
    }

    /// What one worker has used of its device on its behalf.
    pub fn usage_by(&self, worker: WorkerId) -> Usage {
        self.accounts[worker.index()].usage()
    }

    /// Adds what its drivers have recorded of its latencies, all workers together.
    pub fn add_latencies(&self, sum: &mut Latencies) {
        self.latencies
            .iter()
            .for_each(|counter| counter.add_to(sum));
    }

    /// Whether the policy in charge looks at its latencies: drivers must record them then.
    #[inline]
    pub fn is_measured(&self) -> bool {
        self.measured.load(Relaxed)
    }

    pub(crate) fn set_measured(&self, measured: bool) {
        self.measured.store(measured, Relaxed);
    }

    pub(crate) fn latency_counter(&self, worker: WorkerId) -> &LatencyCounter {
        &self.latencies[worker.index()]
    }

    /// Its figures, all workers together.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.counters.iter().for_each(|c| counts.add(c));
        counts
    }

    pub(crate) fn account(&self, worker: WorkerId) -> Arc<CachePadded<Account>> {
        self.accounts[worker.index()].clone()
    }

    pub(crate) fn counters(&self, worker: WorkerId) -> &Counters {
        &self.counters[worker.index()]
    }

    pub(crate) fn rejects(&self) -> bool {
        self.config.hold == HoldAction::Reject
    }
}
