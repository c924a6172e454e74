//! Like Caladan's control of memory bandwidth: while a latency-critical tenant misses its target,
//! the best-effort tenant that moves the most bytes is throttled by a step; with slack, one step is
//! given back at a time (NyxCache section 3.4: "Caladan always throttles the BE tenant with the
//! maximum bandwidth"). Where those that move few bytes do the harm, it throttles the wrong one.
//!
//! The original takes cores away; here a step is a number of bytes a second, as in the policy that
//! it is compared with.
//!
//! What it never does: throttle a latency-critical tenant, or judge on too few latencies.

use super::bytes::limited;
use crate::mechanism::window::{self, Mark, Window};
use crate::{Act, Decision, Policy, Seen, Want};
use nyx_base::{Instant, Nanos};

/// Slack from which on throttles are relaxed, in parts of the target (as in NyxCache).
const SLACK: f64 = 0.2;
/// A limit so far above what is used binds nobody.
const LOOSE: f64 = 1.5;
/// Decisions kept for who does not ask.
const DECISIONS_KEPT: usize = 64;

/// What a latency-critical tenant was promised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// Its latency.
    pub latency: Nanos,
    /// Which part of its requests are to be faster, 0 to 1; `None` is about the mean.
    pub quantile: Option<f64>,
}

/// How a [`CaladanLike`] works.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How often it judges.
    pub window: Nanos,
    /// Bytes per second of a step.
    pub step_bytes_per_s: f64,
    /// Latencies that a judgement needs of each tenant with a target that asks for anything; the
    /// window is extended until it has as many.
    pub samples: u64,
}

/// Throttles by bandwidth.
#[derive(Debug)]
pub struct CaladanLike {
    settings: Settings,
    targets: Vec<Option<Target>>,
    /// Bytes per second; none is no limit.
    limits: Vec<Option<f64>>,
    marks: Vec<Mark>,
    decisions: Vec<Decision>,
}

impl CaladanLike {
    /// `targets[i]` is what tenant `i` was promised; without a target it is best-effort.
    ///
    /// Panics where a step is not positive and finite: configurations are checked before.
    pub fn new(targets: Vec<Option<Target>>, settings: Settings) -> CaladanLike {
        super::assert_positive([settings.step_bytes_per_s].iter());
        CaladanLike {
            settings,
            limits: vec![None; targets.len()],
            targets,
            marks: Vec::new(),
            decisions: Vec::new(),
        }
    }

    /// The smallest slack of a tenant with a target, in parts of it. None where nobody asks for
    /// anything; an error where there are too few latencies.
    fn slack(&self, windows: &[Window]) -> Result<Option<f64>, TooFew> {
        let mut least: Option<f64> = None;
        for (target, window) in self.targets.iter().zip(windows) {
            let (Some(target), latencies) = (target, &window.latencies) else {
                continue;
            };
            let found = match target.quantile {
                Some(quantile) => latencies.quantile_ns(quantile),
                None => latencies.mean_ns(),
            };
            let Some(ns) = found else {
                continue;
            };
            if latencies.count() < self.settings.samples {
                return Err(TooFew);
            }
            let slack = 1.0 - ns / target.latency.0 as f64;
            least = Some(least.map_or(slack, |least| least.min(slack)));
        }
        Ok(least)
    }

    /// The best-effort tenant that moves the most bytes, by a step less.
    fn throttle(&mut self, now: Instant, windows: &[Window], slack: f64) {
        let best_effort = (0..windows.len()).filter(|&i| self.targets[i].is_none());
        let most =
            best_effort.max_by(|&a, &b| windows[a].bytes_per_s.total_cmp(&windows[b].bytes_per_s));
        let Some((i, price)) = most.and_then(|i| Some((i, windows[i].share_of_byte_per_s()?)))
        else {
            return;
        };
        let step = self.settings.step_bytes_per_s;
        let used = windows[i].bytes_per_s;
        // A tenth of a step is left, so that what it needs can still be seen.
        let limit = (self.limits[i].map_or(used, |limit| limit.min(used)) - step).max(0.1 * step);
        self.limits[i] = Some(limit);
        let act = Act::Throttle {
            from: windows[i].share,
            to: limit * price,
        };
        self.decide(now, i, act, slack, windows[i].bytes_per_s);
    }

    /// The most throttled tenant, by a step more.
    fn relax(&mut self, now: Instant, windows: &[Window], slack: f64) {
        let limited = (0..windows.len()).filter_map(|i| Some((i, self.limits[i]?)));
        let Some((i, limit)) = limited.min_by(|a, b| a.1.total_cmp(&b.1)) else {
            return;
        };
        let step = self.settings.step_bytes_per_s;
        let used = windows[i].bytes_per_s;
        self.limits[i] = (limit <= LOOSE * used + step).then_some(limit + step);
        let price = windows[i].share_of_byte_per_s();
        let act = Act::Relax {
            to: self.limits[i]
                .zip(price)
                .map(|(limit, price)| limit * price),
        };
        self.decide(now, i, act, slack, used);
    }

    fn decide(&mut self, at: Instant, tenant: usize, act: Act, slack: f64, bytes_per_s: f64) {
        self.decisions.truncate(DECISIONS_KEPT - 1);
        let why = format!(
            "the least slack is {:.0} % of the target; this one moves {:.0} MB/s",
            slack * 100.0,
            bytes_per_s / 1e6
        );
        self.decisions.push(Decision {
            at,
            tenant,
            act,
            why,
        });
    }
}

/// There are too few latencies to judge.
#[derive(Debug)]
struct TooFew;

impl Policy for CaladanLike {
    fn name(&self) -> &'static str {
        "caladan-like"
    }

    fn period(&self) -> Nanos {
        self.settings.window
    }

    fn measures(&self, tenant: usize) -> bool {
        self.targets[tenant].is_some()
    }

    fn step(&mut self, now: Instant, seen: &[Seen], want: &mut [Want]) {
        let marks = self.marks.iter().zip(seen);
        let windows: Vec<Window> = marks.map(|(mark, seen)| mark.window(now, seen)).collect();
        if let Ok(slack) = self.slack(&windows) {
            match slack {
                Some(slack) if slack < 0.0 => self.throttle(now, &windows, slack),
                Some(slack) if slack > SLACK => self.relax(now, &windows, slack),
                Some(_) => {}
                // Nobody to protect asks for anything.
                None => self.relax(now, &windows, 1.0),
            }
            window::mark_all(&mut self.marks, now, seen);
        }
        for (want, &limit) in want.iter_mut().zip(&self.limits) {
            *want = limit.map_or(Want::default(), limited);
        }
    }

    fn take_decisions(&mut self) -> Vec<Decision> {
        std::mem::take(&mut self.decisions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_base::{DevicePs, LatencyCounter};

    const WINDOW: Nanos = Nanos::from_millis(100);

    /// Tenant 0 is latency-critical. Tenant 1 reads much and hurts nobody; tenant 2 writes little,
    /// and each byte a second of it costs tenant 0 a thousandth of a nanosecond.
    struct Plant {
        policy: CaladanLike,
        seen: Vec<Seen>,
        counter: LatencyCounter,
        now: Instant,
        writes: f64,
    }

    impl Plant {
        fn new(samples: u64) -> Plant {
            let settings = Settings {
                window: WINDOW,
                step_bytes_per_s: 1e8,
                samples,
            };
            let target = Target {
                latency: Nanos(1_000),
                quantile: None,
            };
            Plant {
                policy: CaladanLike::new(vec![Some(target), None, None], settings),
                seen: vec![Seen::default(); 3],
                counter: LatencyCounter::default(),
                now: Instant(0),
                writes: 1e6,
            }
        }

        fn run(&mut self, windows: u32) {
            for _ in 0..windows {
                let limit = |i: usize| self.policy.limits[i].unwrap_or(f64::INFINITY);
                let moved = [1e8, limit(1).min(1e9), limit(2).min(self.writes)];
                for (seen, bytes_per_s) in self.seen.iter_mut().zip(moved) {
                    let bytes = (bytes_per_s * WINDOW.as_secs_f64()) as u64;
                    seen.bytes = seen.bytes.wrapping_add(bytes);
                    seen.used = DevicePs(seen.used.0.wrapping_add(bytes * 500));
                }
                self.counter.add(Nanos(500 + (moved[2] / 1e3) as u64), 10);
                self.seen[0].latencies = Default::default();
                self.counter.add_to(&mut self.seen[0].latencies);
                self.now += WINDOW;
                let mut want = [Want::default(); 3];
                self.policy.step(self.now, &self.seen, &mut want);
                assert_eq!(want[0], Want::default());
            }
        }
    }

    #[test]
    fn it_throttles_by_bytes_though_another_does_the_harm() {
        let mut plant = Plant::new(10);
        plant.run(5);
        let limits = &plant.policy.limits;
        assert!(limits[1].expect("throttled") < 7e8, "{limits:?}");
        assert_eq!(limits[2], None);
        let decisions = plant.policy.take_decisions();
        assert!(decisions.iter().all(|decision| decision.tenant == 1));
        assert!(plant.policy.take_decisions().is_empty());
    }

    #[test]
    fn it_relaxes_by_steps_until_nothing_binds() {
        let mut plant = Plant::new(10);
        plant.run(5);
        plant.writes = 0.0;
        let before = plant.policy.limits[1].expect("throttled");
        plant.run(1);
        assert_eq!(plant.policy.limits[1], Some(before + 1e8));
        plant.run(40);
        assert_eq!(plant.policy.limits, [None; 3]);
    }

    #[test]
    fn a_window_with_few_latencies_is_extended() {
        let mut plant = Plant::new(25);
        plant.run(3);
        assert_eq!(plant.policy.limits[1], None, "ten and twenty are too few");
        plant.run(1);
        assert!(plant.policy.limits[1].is_some());
    }

    #[test]
    fn decisions_that_nobody_takes_are_bounded() {
        let mut plant = Plant::new(10);
        plant.run(500);
        assert_eq!(plant.policy.decisions.len(), DECISIONS_KEPT);
    }
}
