//! A limit on operations, as managed memcaches sell it: each access counts the same, whatever its
//! size and whether it reads or writes.
//!
//! It is a tick-wise approximation: the gate leases device time, so the limit is the operations
//! times what an access of this tenant lately cost. Where the mix changes, the limit is wrong until
//! the mean has followed, a few ticks; until the tenant's first access it has none.

use crate::mechanism::window::counted;
use crate::{Policy, Seen, Want};
use nyx_base::{DevicePs, Instant, Nanos};

/// How much of a tick's mean cost goes into what is remembered.
const NEW: f64 = 0.25;

/// A limit on operations for each tenant.
#[derive(Debug)]
pub struct OpRate {
    limits: Vec<Option<f64>>,
    tenants: Vec<Tenant>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tenant {
    used: DevicePs,
    ops: u64,
    /// Device picoseconds of an access.
    cost_ps: Option<f64>,
}

impl Tenant {
    fn see(&mut self, seen: &Seen) {
        let used_ps = counted(seen.used.0, self.used.0);
        let ops = counted(seen.ops, self.ops);
        (self.used, self.ops) = (seen.used, seen.ops);
        // A price of nothing would be a limit of nothing: one of the two counters was made anew.
        if ops > 0 && used_ps > 0 {
            let cost_ps = used_ps as f64 / ops as f64;
            let before = self.cost_ps.unwrap_or(cost_ps);
            self.cost_ps = Some(before + NEW * (cost_ps - before));
        }
    }
}

impl OpRate {
    /// `limits[i]` is the operations per second of tenant `i`; `None` is no limit.
    ///
    /// Panics where a limit is not positive and finite: configurations are checked before.
    pub fn new(limits: Vec<Option<f64>>) -> OpRate {
        super::assert_positive(limits.iter().flatten());
        OpRate {
            tenants: vec![Tenant::default(); limits.len()],
            limits,
        }
    }
}

impl Policy for OpRate {
    fn name(&self) -> &'static str {
        "ops"
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(10)
    }

    fn step(&mut self, _now: Instant, seen: &[Seen], want: &mut [Want]) {
        let tenants = self.tenants.iter_mut().zip(&self.limits);
        for ((want, seen), (tenant, limit)) in want.iter_mut().zip(seen).zip(tenants) {
            tenant.see(seen);
            let rate = limit.zip(tenant.cost_ps).map(|(ops, ps)| ops * ps);
            *want = Want {
                rate: rate.map(|rate| DevicePs(rate.max(1.0) as u64)),
                ..Want::default()
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(used_ps: u64, ops: u64) -> Seen {
        Seen {
            used: DevicePs(used_ps),
            ops,
            ..Seen::default()
        }
    }

    #[test]
    fn the_limit_follows_what_an_access_costs() {
        let mut policy = OpRate::new(vec![Some(1_000.0), None]);
        let mut want = [Want::default(); 2];
        let idle = seen(0, 0);
        policy.step(Instant(0), &[idle.clone(), idle.clone()], &mut want);
        assert_eq!(want[0].rate, None, "nothing is known of the first access");
        policy.step(Instant(1), &[seen(5_000, 10), idle.clone()], &mut want);
        assert_eq!(want[0].rate, Some(DevicePs(500_000)));
        // Accesses get four times as dear.
        for i in 1..40 {
            let dear = seen(5_000 + i * 20_000, 10 + i * 10);
            policy.step(Instant(1 + i), &[dear, idle.clone()], &mut want);
        }
        let rate = want[0].rate.expect("limited").0;
        assert!((1_999_000..=2_000_000).contains(&rate), "{rate}");
        assert_eq!(want[1], Want::default());
    }

    #[test]
    fn counters_may_wrap() {
        let mut policy = OpRate::new(vec![Some(1.0)]);
        let mut want = [Want::default()];
        policy.tenants[0].used = DevicePs(u64::MAX - 99);
        policy.tenants[0].ops = u64::MAX;
        policy.step(Instant(0), &[seen(100, 1)], &mut want);
        assert_eq!(want[0].rate, Some(DevicePs(100)));
    }
}
