//! Resource limit (NyxCache section 3.4, Algorithm 1): no tenant uses more of the device than it
//! was assigned, whatever the pattern of its accesses.
//!
//! [`Leased`] is the default: the limit is handed to the gate, which leases it out exactly.
//! [`Paper`] is Algorithm 1 as printed: an epoch of 100 ticks of 10 ms; a tenant found above its
//! assignment at a tick is held until the epoch ends. Its overshoot is up to a tick of the *device*
//! in each epoch, not of the limit, and the tenant may stand still for most of a second; it is kept
//! to reproduce.
//! [`Kept`] is what is left of a policy that failed: its last limits.

use crate::mechanism::window::counted;
use crate::{Delay, Policy, Seen, Standing, Want};
use nyx_base::{DevicePs, Instant, Nanos};

/// Limits by exact leases.
#[derive(Debug)]
pub struct Leased {
    limits: Vec<Option<DevicePs>>,
}

impl Leased {
    /// `limits[i]` is the device time per second of tenant `i`; `None` is no limit.
    pub fn new(limits: Vec<Option<DevicePs>>) -> Leased {
        Leased { limits }
    }
}

impl Policy for Leased {
    fn name(&self) -> &'static str {
        "limit"
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(10)
    }

    fn standing(&self, tenant: usize) -> Standing {
        standing(self.limits[tenant])
    }

    fn step(&mut self, _now: Instant, _seen: &[Seen], want: &mut [Want]) {
        for (want, &rate) in want.iter_mut().zip(&self.limits) {
            *want = Want {
                rate,
                ..Want::default()
            };
        }
    }
}

/// What another policy wanted, for ever: it stands in for one that failed.
#[derive(Debug)]
pub struct Kept {
    wants: Vec<Want>,
    spans: Vec<bool>,
}

impl Kept {
    /// `wants[i]` is for tenant `i`, on each of its devices where `spans[i]`.
    pub fn new(wants: Vec<Want>, spans: Vec<bool>) -> Kept {
        Kept { wants, spans }
    }
}

impl Policy for Kept {
    fn name(&self) -> &'static str {
        "limit (kept)"
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(100)
    }

    fn spans(&self, tenant: usize) -> bool {
        self.spans[tenant]
    }

    fn step(&mut self, _now: Instant, _seen: &[Seen], want: &mut [Want]) {
        want.copy_from_slice(&self.wants);
    }
}

fn standing(limit: Option<DevicePs>) -> Standing {
    Standing {
        limit: limit.map(DevicePs::as_secs_f64),
        ..Standing::default()
    }
}

/// The epochs of Algorithm 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// `TickLen`.
    pub tick: Nanos,
    /// `EpochLen`.
    pub ticks: u32,
}

impl Default for Epoch {
    /// "Nyx uses 10 ms tick and 100 ticks per epoch to limit resource usage offset to 1%"
    /// (section 3.6).
    fn default() -> Epoch {
        Epoch {
            tick: Nanos::from_millis(10),
            ticks: 100,
        }
    }
}

/// Limits by Algorithm 1 as printed.
#[derive(Debug)]
pub struct Paper {
    limits: Vec<Option<DevicePs>>,
    epoch: Epoch,
    /// When the epoch began; none before the first step.
    began: Option<Instant>,
    at_start: Vec<DevicePs>,
}

impl Paper {
    /// `limits[i]` is the device time per second of tenant `i`; `None` is no limit.
    pub fn new(limits: Vec<Option<DevicePs>>, epoch: Epoch) -> Paper {
        let at_start = vec![DevicePs::ZERO; limits.len()];
        Paper {
            limits,
            epoch,
            began: None,
            at_start,
        }
    }

    fn length(&self) -> Nanos {
        Nanos(self.epoch.tick.0 * u64::from(self.epoch.ticks))
    }

    /// Step 1: no throttling, counters remembered.
    fn begin(&mut self, now: Instant, seen: &[Seen], want: &mut [Want]) {
        self.began = Some(now);
        for ((start, seen), want) in self.at_start.iter_mut().zip(seen).zip(want) {
            *start = seen.used;
            *want = Want::default();
        }
    }

    /// Step 2: whoever used up its assignment pauses.
    fn watch(&self, seen: &[Seen], want: &mut [Want]) {
        let length = self.length().as_secs_f64();
        for (i, want) in want.iter_mut().enumerate() {
            let Some(per_second) = self.limits[i] else {
                continue;
            };
            let assigned = DevicePs((per_second.0 as f64 * length) as u64);
            if counted(seen[i].used.0, self.at_start[i].0) > assigned.0 {
                want.delay = Delay::Infinite;
            }
        }
    }
}

impl Policy for Paper {
    fn name(&self) -> &'static str {
        "limit (paper)"
    }

    fn period(&self) -> Nanos {
        self.epoch.tick
    }

    fn standing(&self, tenant: usize) -> Standing {
        standing(self.limits[tenant])
    }

    fn step(&mut self, now: Instant, seen: &[Seen], want: &mut [Want]) {
        match self.began {
            // A clock that went back begins an epoch: nobody pauses until it has caught up.
            Some(began) if began <= now && now.since(began) < self.length() => {
                self.watch(seen, want);
            }
            _ => self.begin(now, seen, want),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENTH: DevicePs = DevicePs(100_000_000_000);

    fn seen(used_ms: u64) -> Seen {
        Seen {
            used: DevicePs(used_ms * 1_000_000_000),
            ..Seen::default()
        }
    }

    #[test]
    fn leased_limits_are_handed_to_the_gate() {
        let mut want = [
            Want {
                delay: Delay::Infinite,
                ..Want::default()
            },
            Want::default(),
        ];
        Leased::new(vec![Some(TENTH), None]).step(Instant(0), &[seen(0), seen(0)], &mut want);
        assert_eq!(
            want,
            [
                Want {
                    rate: Some(TENTH),
                    ..Want::default()
                },
                Want::default()
            ]
        );
    }

    #[test]
    fn a_tenant_stands_by_its_limit() {
        let limits = vec![Some(TENTH), None];
        let leased = Leased::new(limits.clone());
        let paper = Paper::new(limits, Epoch::default());
        for policy in [&leased as &dyn Policy, &paper] {
            assert_eq!(policy.standing(0).limit, Some(0.1));
            assert_eq!(policy.standing(1), Standing::default());
        }
    }

    #[test]
    fn algorithm_1_pauses_at_the_assignment_and_resumes_with_the_epoch() {
        let mut policy = Paper::new(vec![Some(TENTH), None], Epoch::default());
        let mut want = [Want::default(); 2];
        let at = |tick: u64| Instant(tick * 10_000_000);
        policy.step(at(0), &[seen(0), seen(0)], &mut want);
        policy.step(at(1), &[seen(100), seen(900)], &mut want);
        assert_eq!(
            want[0].delay,
            Delay::None,
            "used is not above the assignment yet"
        );
        policy.step(at(2), &[seen(101), seen(900)], &mut want);
        assert_eq!(
            (want[0].delay, want[1].delay),
            (Delay::Infinite, Delay::None)
        );
        policy.step(at(99), &[seen(101), seen(900)], &mut want);
        assert_eq!(want[0].delay, Delay::Infinite);
        policy.step(at(100), &[seen(101), seen(900)], &mut want);
        assert_eq!(want[0].delay, Delay::None, "a new epoch begins");
        policy.step(at(101), &[seen(150), seen(900)], &mut want);
        assert_eq!(want[0].delay, Delay::None, "and counts from its own start");
    }

    #[test]
    fn a_counter_that_wraps_does_not_pause_anybody() {
        let mut policy = Paper::new(vec![Some(TENTH)], Epoch::default());
        let mut want = [Want::default()];
        let near_wrap = Seen {
            used: DevicePs(u64::MAX - 5),
            ..Seen::default()
        };
        policy.step(Instant(0), &[near_wrap], &mut want);
        policy.step(
            Instant(10_000_000),
            &[Seen {
                used: DevicePs(5),
                ..Seen::default()
            }],
            &mut want,
        );
        assert_eq!(want[0].delay, Delay::None);
    }
}
