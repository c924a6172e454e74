//! Every interleaving of a few workers and a controller on one chain of budgets, as the memory
//! model allows them:
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p nyx-gate loom`
#![cfg(loom)]

use super::*;
use ::loom::thread;

/// The time of everything here, long after limits were set.
const NOW: Instant = Instant(1_000_000_000);
/// The whole device: 1,000 ps in a nanosecond.
const WHOLE_PS: u64 = 1_000;

/// Buckets that hold what was earned in `held_ns`, at so many parts of a thousand of the device.
fn limit(part: u64) -> Limit {
    Limit {
        sustained: Rate(part * 1_000_000_000),
        memory: Nanos::from_secs(1),
        peak: Rate(part * 1_000_000_000),
        burst: DevicePs::SECOND,
    }
}

/// With so much in its buckets.
fn budget(held_ns: u64) -> Arc<Budget> {
    let budget = Budget::unlimited();
    budget.set_limit(NOW - Nanos(held_ns), limit(1_000));
    Arc::new(budget)
}

/// The times at which the buckets of a budget are empty, as lengths before now.
fn held_ns(budget: &Budget) -> [u64; 2] {
    let buckets = budget.buckets.empty_ns();
    buckets.map(|empty| NOW.0.wrapping_sub(empty.load(Relaxed)))
}

fn model(program: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(program);
}

#[test]
fn loom_two_tenants_lease_what_their_group_has_and_keep_the_rest() {
    model(|| {
        let group = budget(5);
        let tenants = [budget(4), budget(4)];
        tenants
            .iter()
            .for_each(|tenant| tenant.set_above(Some(group.clone())));
        let other = tenants[1].clone();
        let second = thread::spawn(move || other.lease(NOW, 4 * WHOLE_PS));
        let first = tenants[0].lease(NOW, 4 * WHOLE_PS);
        let granted = [first, second.join().expect("no panic")].map(|ps| ps / WHOLE_PS);
        assert_eq!(granted[0] + granted[1], 5, "all that the group has");
        assert_eq!(held_ns(&group), [0; 2]);
        for (tenant, granted) in tenants.iter().zip(granted) {
            assert_eq!(held_ns(tenant), [4 - granted; 2], "nothing lost or made");
        }
    });
}

#[test]
fn loom_a_limit_set_while_a_lease_is_refused_starts_empty() {
    model(|| {
        let (group, tenant) = (budget(0), Arc::new(Budget::unlimited()));
        tenant.set_above(Some(group.clone()));
        let other = tenant.clone();
        let worker = thread::spawn(move || other.lease(NOW, 4 * WHOLE_PS));
        tenant.set_limit(NOW, limit(1_000));
        assert_eq!(worker.join().expect("no panic"), 0);
        assert_eq!(held_ns(&tenant), [0; 2]);
    });
}

#[test]
fn loom_what_is_reserved_while_the_limit_changes_comes_once_and_in_order() {
    for part in [500, 2_000] {
        model(move || {
            let budget = budget(0);
            let others = [budget.clone(), budget.clone()];
            let [first, second] =
                others.map(|budget| thread::spawn(move || budget.reserve(NOW, 4 * WHOLE_PS)));
            budget.set_limit(NOW, limit(part));
            let reserved = [first, second].map(|worker| worker.join().expect("no panic"));
            let mut waits_ns = [0; 2];
            for (wait_ns, reserved) in waits_ns.iter_mut().zip(&reserved) {
                let from = budget.redeem(NOW, reserved).expect_err("nothing is there");
                assert!(budget.redeem(from, reserved).is_ok());
                *wait_ns = from.since(NOW).0;
            }
            waits_ns.sort();
            assert_eq!(waits_ns, [4_000 / part, 8_000 / part]);
            // No more is booked than was reserved.
            let owed_ns = 0u64.wrapping_sub(8_000 / part);
            assert_eq!(held_ns(&budget), [owed_ns; 2]);
        });
    }
}

#[test]
fn loom_no_more_than_a_lease_is_made_where_one_meets_a_change() {
    model(|| {
        let budget = budget(4);
        let other = budget.clone();
        let worker = thread::spawn(move || other.lease(NOW, 4 * WHOLE_PS));
        budget.set_limit(NOW, limit(500));
        let granted = worker.join().expect("no panic");
        let left = budget.lease(NOW, 100 * WHOLE_PS);
        assert!(granted + left <= 2 * 4 * WHOLE_PS, "{granted} and {left}");
    });
}
