//! The tick: accounts in, policy, budgets out. Data and control meet in a few cache lines per
//! tenant and nowhere else.
//!
//! If ticks stop (a stalled or crashed controller) the last budgets stay in force: limits go on to
//! be kept, because leases are computed from time and not handed out by ticks; only a pause ends.

use crate::engine::Engine;
use crate::tenant::Tenant;
use nyx_base::{DevicePs, Instant, Nanos, TenantId, WorkerId};
use nyx_gate::{DELAY_INFINITE, Limit, Rate};
use nyx_policy::{Decision, Delay, Policy, Seen, Want};
use std::collections::VecDeque;
use std::sync::PoisonError;

/// A pause ends after this long if no tick prolongs it. Ticks are at most 100 ms apart.
const PAUSE_MOST: Nanos = Nanos::from_millis(500);
/// How many decisions are kept for those who ask.
const DECISIONS_KEPT: usize = 256;

/// The policy and what it last saw, wanted and did.
pub(crate) struct Controller {
    policy: Box<dyn Policy>,
    seen: Vec<Seen>,
    want: Vec<Want>,
    in_force: Vec<Option<Want>>,
    decisions: VecDeque<Decision>,
    /// How many there ever were.
    decided: u64,
}

impl Controller {
    pub(crate) fn new(policy: Box<dyn Policy>, tenants: usize) -> Controller {
        Controller {
            policy,
            seen: vec![Seen::default(); tenants],
            want: vec![Want::default(); tenants],
            in_force: vec![None; tenants],
            decisions: VecDeque::with_capacity(DECISIONS_KEPT),
            decided: 0,
        }
    }

    fn look(&mut self, tenants: &[Tenant]) {
        for (at, (seen, tenant)) in self.seen.iter_mut().zip(tenants).enumerate() {
            let usage = tenant.usage();
            seen.used = usage.used;
            seen.bytes = usage.read_bytes.wrapping_add(usage.written_bytes);
            seen.ops = usage.reads.wrapping_add(usage.writes);
            seen.holds = usage.holds;
            seen.latencies.clear();
            let measured = self.policy.measures(at);
            tenant.set_measured(measured);
            if measured {
                tenant.add_latencies(&mut seen.latencies);
            }
        }
    }

    fn remember(&mut self) {
        for decision in self.policy.take_decisions() {
            if self.decisions.len() == DECISIONS_KEPT {
                self.decisions.pop_front();
            }
            self.decisions.push_back(decision);
            self.decided += 1;
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
        controller.look(&self.tenants);
        controller
            .policy
            .step(now, &controller.seen, &mut controller.want);
        controller.remember();
        let wants = controller.want.iter().zip(&mut controller.in_force);
        for ((&want, in_force), tenant) in wants.zip(&self.tenants) {
            if want.delay == Delay::Infinite {
                tenant.budget().pause_until(now + PAUSE_MOST);
            }
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

    /// The policy's decisions from the `n`-th on, oldest first, as far as they are kept; and how
    /// many there ever were, to ask for what comes next.
    pub fn decisions_since(&self, n: u64) -> (u64, Vec<Decision>) {
        let guard = self.controller.lock();
        let controller = guard.unwrap_or_else(PoisonError::into_inner);
        let new = controller.decided.saturating_sub(n) as usize;
        let kept = controller.decisions.len();
        let from = kept - new.min(kept);
        let decisions = controller.decisions.range(from..).cloned().collect();
        (controller.decided, decisions)
    }

    /// Records that `n` requests of a tenant took so long each, from when they came to when their
    /// answer was there. For the drivers, who have the clock. Only the worker's own thread.
    #[inline]
    pub fn record(&self, worker: WorkerId, tenant: TenantId, took: Nanos, n: u32) {
        let tenant = &self.tenants[tenant.index()];
        tenant.latency_counter(worker).add(took, n);
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
