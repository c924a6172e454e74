//! Deep devices: a controller for each, to which a tenant is what it does there.
//!
//! What it never does: look at latencies of requests, in which every device of a tenant has its
//! part; the device's own tell how a tenant fares there.

use super::{Controller, Governed, lock};
use crate::tenant::{DeepSide, Tenant};
use crate::tenants::Tenants;
use nyx_base::{Instant, Latencies, Nanos};
use nyx_gate::{Budget, CostTable, Usage};
use nyx_policy::Policy;
use nyx_policy::baselines::Unlimited;
use nyx_policy::mechanism::queueing::Reads;
use std::sync::Mutex;

/// The controller of a deep device.
pub(crate) struct DeepRule {
    pub(crate) controller: Mutex<Controller>,
    /// Of whom has no part of it.
    idle: Budget,
}

impl DeepRule {
    /// For each of so many devices.
    pub(crate) fn each(
        policies: Vec<Box<dyn Policy>>,
        devices: usize,
        tenants: usize,
    ) -> Vec<DeepRule> {
        let policies = or_nobody(policies).take(devices);
        let rule = |policy| DeepRule {
            controller: Mutex::new(Controller::new(policy, tenants)),
            idle: Budget::unlimited(),
        };
        policies.map(rule).collect()
    }

    pub(super) fn tick(&self, now: Instant, device: usize, tenants: &Tenants) -> Nanos {
        let mut controller = lock(&self.controller);
        let on_deep = |tenant| OnDeep {
            tenant,
            device,
            idle: &self.idle,
        };
        controller.tick(now, tenants.iter().map(on_deep))
    }
}

/// These, and then policies that decide nothing.
pub(crate) fn or_nobody(policies: Vec<Box<dyn Policy>>) -> impl Iterator<Item = Box<dyn Policy>> {
    let nobody = || -> Box<dyn Policy> { Box::new(Unlimited) };
    policies.into_iter().chain(std::iter::repeat_with(nobody))
}

/// A tenant as the policy of a deep device sees it.
struct OnDeep<'a> {
    tenant: &'a Tenant,
    device: usize,
    idle: &'a Budget,
}

impl OnDeep<'_> {
    fn side(&self) -> Option<&DeepSide> {
        let is_here = self
            .tenant
            .config
            .deep
            .is_some_and(|share| share.device == self.device);
        self.tenant.deep.as_ref().filter(|_| is_here)
    }
}

impl Governed for OnDeep<'_> {
    fn usage(&self) -> Usage {
        self.side().map_or_else(Usage::default, DeepSide::usage)
    }

    /// Policies of deep devices divide time.
    fn add_latencies(&self, _sum: &mut Latencies) {}

    fn budget(&self) -> &Budget {
        self.side().map_or(self.idle, |side| &side.part)
    }

    fn reads(&self) -> Option<Reads> {
        self.side().map(|side| side.pair.deep_reads())
    }

    fn worked(&self) -> Nanos {
        self.side().map_or(Nanos::ZERO, |side| side.pair.worked())
    }

    fn cost(&self) -> &CostTable {
        self.side()
            .map_or(&self.tenant.device.cost, |side| &side.pair.deep().cost)
    }
}
