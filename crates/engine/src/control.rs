//! The tick: accounts in, policy, budgets out. Data and control meet in a few cache lines per
//! tenant and nowhere else.
//!
//! If ticks stop (a stalled or crashed controller) the last budgets stay in force: limits go on to
//! be kept, because leases are computed from time and not handed out by ticks.

use crate::engine::Engine;
use nyx_base::{DevicePs, Instant, Nanos};
use nyx_gate::{DELAY_INFINITE, Limit, Rate};
use nyx_policy::{Delay, Policy, Seen, Want};
use std::sync::PoisonError;

/// The policy and what it last saw and wanted.
pub(crate) struct Controller {
    policy: Box<dyn Policy>,
    seen: Vec<Seen>,
    want: Vec<Want>,
    in_force: Vec<Option<Want>>,
}

impl Controller {
    pub(crate) fn new(policy: Box<dyn Policy>, tenants: usize) -> Controller {
        Controller {
            policy,
            seen: vec![Seen::default(); tenants],
            want: vec![Want::default(); tenants],
            in_force: vec![None; tenants],
        }
    }
}

impl Engine {
    /// One tick. Returns when the policy wants the next one.
    pub fn control(&self, now: Instant) -> Nanos {
        let mut guard = self
            .controller
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let controller = &mut *guard;
        for (seen, tenant) in controller.seen.iter_mut().zip(&self.tenants) {
            let usage = tenant.usage();
            *seen = Seen {
                used: usage.used,
                bytes: usage.read_bytes.wrapping_add(usage.written_bytes),
            };
        }
        controller
            .policy
            .step(now, &controller.seen, &mut controller.want);
        let wants = controller.want.iter().zip(&mut controller.in_force);
        for ((&want, in_force), tenant) in wants.zip(&self.tenants) {
            // Buckets are not touched when nothing changes, so that a tick cannot refill them.
            if *in_force != Some(want) {
                apply(&want, tenant.budget(), now);
                *in_force = Some(want);
            }
        }
        controller.policy.period()
    }

    /// Puts another policy in charge, from its first tick on, without dropping a connection.
    pub fn set_policy(&self, policy: Box<dyn Policy>) {
        self.controller
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .policy = policy;
    }

    /// The name of the policy in charge.
    pub fn policy_name(&self) -> &'static str {
        self.controller
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .policy
            .name()
    }

    /// What the policy wants of each tenant, in their order.
    pub fn wants(&self) -> Vec<Want> {
        self.controller
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .want
            .clone()
    }
}

fn apply(want: &Want, budget: &nyx_gate::Budget, now: Instant) {
    let limit = match want.rate {
        Some(DevicePs(ps_per_s)) => Limit::sustained(Rate(ps_per_s)),
        None => Limit::NONE,
    };
    budget.set_byte_price(want.byte_price.unwrap_or(DevicePs::ZERO));
    budget.set_limit(now, limit);
    budget.set_delay(match want.delay {
        Delay::None => 0,
        Delay::Units(units) => units.min(DELAY_INFINITE - 1),
        Delay::Infinite => DELAY_INFINITE,
    });
}
