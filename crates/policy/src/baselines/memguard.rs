//! Like MemGuard: each tenant has a budget of bytes in each period, and what it will not need is
//! lent. What it will need is predicted from the last period: a part of its budget a little above
//! that is left to it, the rest goes into a pool; who used up what it had gets all of its own
//! budget back and a part of the pool.
//!
//! It is oblivious of the device as any limit on bytes. Unlike the original, which hands out the
//! pool in an interrupt as soon as somebody needs it, loans begin with a period.
//!
//! *Invariants*: the limits sum to the budgets at most; who uses all that it has has at least its
//! own budget in the next period.

use super::bytes::limited;
use crate::mechanism::window::{self, Mark};
use crate::{Policy, Seen, Want};
use nyx_base::{Instant, Nanos};

/// What is left to a tenant, in parts of what it used.
const HEADROOM: f64 = 1.25;
/// Who used this part of what it had used it up.
const USED_UP: f64 = 0.9;
/// The least part of its budget that a tenant is left, so that its coming back is seen.
const LEFT_MIN: f64 = 0.01;

/// Budgets of bytes, lent period by period.
#[derive(Debug)]
pub struct MemGuardLike {
    budgets: Vec<f64>,
    period: Nanos,
    limits: Vec<f64>,
    marks: Vec<Mark>,
}

impl MemGuardLike {
    /// `budgets[i]` is the bytes per second of tenant `i`.
    ///
    /// Panics where a budget is not positive and finite: configurations are checked before.
    pub fn new(budgets: Vec<f64>, period: Nanos) -> MemGuardLike {
        super::assert_positive(budgets.iter());
        MemGuardLike {
            limits: budgets.clone(),
            budgets,
            period,
            marks: Vec::new(),
        }
    }

    fn lend(&mut self, now: Instant, seen: &[Seen]) {
        let windows = self.marks.iter().zip(seen);
        let used: Vec<f64> = windows
            .map(|(mark, seen)| mark.window(now, seen).bytes_per_s)
            .collect();
        let used_up: Vec<bool> = used
            .iter()
            .zip(&self.limits)
            .map(|(used, limit)| *used >= USED_UP * limit)
            .collect();
        for (i, limit) in self.limits.iter_mut().enumerate() {
            let budget = self.budgets[i];
            *limit = match used_up[i] {
                true => budget,
                false => (used[i] * HEADROOM).clamp(budget * LEFT_MIN, budget),
            };
        }
        let pool = self.budgets.iter().sum::<f64>() - self.limits.iter().sum::<f64>();
        let takers = || (0..used_up.len()).filter(|&i| used_up[i]);
        let budget_of_takers: f64 = takers().map(|i| self.budgets[i]).sum();
        for i in takers() {
            self.limits[i] += pool * self.budgets[i] / budget_of_takers;
        }
    }
}

impl Policy for MemGuardLike {
    fn name(&self) -> &'static str {
        "memguard-like"
    }

    fn period(&self) -> Nanos {
        self.period
    }

    fn step(&mut self, now: Instant, seen: &[Seen], want: &mut [Want]) {
        if !self.marks.is_empty() {
            self.lend(now, seen);
        }
        window::mark_all(&mut self.marks, now, seen);
        for (want, &limit) in want.iter_mut().zip(&self.limits) {
            *want = limited(limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Nanos = Nanos::from_millis(10);

    /// Tenants that ask for so many bytes a second and get at most their limit.
    struct Plant {
        policy: MemGuardLike,
        seen: Vec<Seen>,
        now: Instant,
    }

    impl Plant {
        fn new(budgets: &[f64], begin: u64) -> Plant {
            let bytes = |_: &f64| Seen {
                bytes: begin,
                ..Seen::default()
            };
            let mut plant = Plant {
                policy: MemGuardLike::new(budgets.to_vec(), PERIOD),
                seen: budgets.iter().map(bytes).collect(),
                now: Instant(0),
            };
            plant.run(&vec![0.0; budgets.len()]);
            plant
        }

        /// One period; gives the limits after it.
        fn run(&mut self, asked: &[f64]) -> Vec<f64> {
            let moved = asked.iter().zip(&self.policy.limits);
            for (seen, (asked, limit)) in self.seen.iter_mut().zip(moved) {
                let bytes = asked.min(*limit) * PERIOD.as_secs_f64();
                seen.bytes = seen.bytes.wrapping_add(bytes as u64);
            }
            let mut want = vec![Want::default(); asked.len()];
            self.policy.step(self.now, &self.seen, &mut want);
            assert!(want.iter().all(|want| want.byte_price.is_some()));
            self.now += PERIOD;
            let sum = |of: &[f64]| of.iter().sum::<f64>();
            assert!(sum(&self.policy.limits) <= sum(&self.policy.budgets) + 1.0);
            self.policy.limits.clone()
        }
    }

    #[test]
    fn what_is_idle_is_lent_and_comes_back_in_one_period() {
        for begin in [0, u64::MAX - 1_000_000] {
            let mut plant = Plant::new(&[6e8, 3e8, 3e8], begin);
            let asked = [2e8, 9e9, 9e9];
            plant.run(&asked);
            let limits = plant.run(&asked);
            assert!((limits[0] - 2.5e8).abs() < 1e3, "{limits:?}");
            assert!((limits[1] - 4.75e8).abs() < 1e3, "{limits:?}");
            let limits = plant.run(&[9e9; 3]);
            assert_eq!(limits, [6e8, 3e8, 3e8]);
        }
    }

    #[test]
    fn who_is_idle_keeps_enough_to_be_seen() {
        let mut plant = Plant::new(&[6e8, 3e8], 0);
        plant.run(&[0.0, 9e9]);
        let limits = plant.run(&[0.0, 9e9]);
        assert!((limits[0] - 6e6).abs() < 1.0 && (limits[1] - 8.94e8).abs() < 1e3);
    }
}
