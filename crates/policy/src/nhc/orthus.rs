//! Orthus' Algorithm 1, as printed: a hill climber over load_admit.
//!
//! State 1: everything is as in classic caching until the hit ratio is stable. State 2: nothing is
//! admitted any more; load_admit - step, load_admit and load_admit + step are tried for an interval
//! each, in this order, and the best of the three is the next load_admit. State 1 again where
//! load_admit stays at 1, or where the hit ratio fell below (1 - alpha) of what State 2 began with.
//! Writes are as in classic caching.
//!
//! One thing differs: hits are counted in windows of 100 ms and not since the start, since a ratio
//! of a lifetime is stable whatever happens, and where a window's count is too small to tell 0.1 %
//! the ratio is stable when the windows do not differ by more than chance.
//!
//! Source: Orthus, section 4, Algorithm 1.

use super::{Choice, Controller, PairSeen, Routing, Stability};
use nyx_base::{Instant, Nanos};

/// What is to become better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// More bytes of users per second.
    Throughput,
    /// A lower mean latency.
    Mean,
    /// A lower latency at this quantile.
    Tail(f64),
}

/// How Algorithm 1 goes about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OrthusParams {
    /// By how much load_admit is changed.
    pub step: f64,
    /// For how long each of the three is tried. The paper found intervals below 5 ms useless.
    pub interval: Nanos,
    /// How far the hit ratio may fall before the cache is filled again.
    pub alpha: f64,
    /// What f(x) is.
    pub goal: Goal,
}

impl Default for OrthusParams {
    /// The paper's step; 20 ms, alpha 5 % (the paper names neither), throughput.
    fn default() -> OrthusParams {
        OrthusParams {
            step: 0.02,
            interval: Nanos::from_millis(20),
            alpha: 0.05,
            goal: Goal::Throughput,
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Orthus {
    params: OrthusParams,
    stability: Stability,
    state: State,
    /// When the last interval was over.
    last: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// State 1.
    Filling,
    /// State 2.
    Tuning {
        load_admit: f64,
        start_hit_ratio: f64,
        /// Which of the three is being tried.
        trial: usize,
        /// What those tried gave; more is better.
        gave: [f64; 3],
    },
}

/// The three that are tried, in the paper's order, as multiples of the step.
const TRIALS: [f64; 3] = [-1.0, 0.0, 1.0];

impl Orthus {
    /// In State 1.
    pub fn new(params: OrthusParams) -> Orthus {
        assert!(
            params.step > 0.0 && params.interval > Nanos(0),
            "{params:?}"
        );
        Orthus {
            params,
            stability: Stability::default(),
            state: State::Filling,
            last: None,
        }
    }

    /// State 2 begins: lines 5 to 7.
    fn tuning(start_hit_ratio: f64) -> State {
        State::Tuning {
            load_admit: 1.0,
            start_hit_ratio,
            trial: 0,
            gave: [f64::NEG_INFINITY; 3],
        }
    }

    /// f(x) of the interval that is over, which took so long, where more is better.
    fn gave(&self, seen: &PairSeen, took: Nanos) -> f64 {
        let less = |latency_ns: Option<f64>| latency_ns.map_or(f64::NEG_INFINITY, |ns| -ns);
        match self.params.goal {
            Goal::Throughput => seen.bytes() as f64 / took.0.max(1) as f64,
            Goal::Mean => less(seen.latencies.mean_ns()),
            Goal::Tail(quantile) => less(seen.latencies.quantile_ns(quantile)),
        }
    }

    /// The load_admit that a trial sets, from 0 to 1.
    fn tried(&self, load_admit: f64, trial: usize) -> f64 {
        (load_admit + TRIALS[trial] * self.params.step).clamp(0.0, 1.0)
    }

    /// An interval of State 2 is over.
    fn tune(&self, state: State, gave_now: f64) -> State {
        let State::Tuning {
            load_admit,
            start_hit_ratio,
            trial,
            mut gave,
        } = state
        else {
            return state;
        };
        gave[trial] = gave_now;
        if trial + 1 < TRIALS.len() {
            return State::Tuning {
                load_admit,
                start_hit_ratio,
                trial: trial + 1,
                gave,
            };
        }
        // Lines 8 to 16: below, above, here, in this order where they are even. Above 1 and below 0
        // there is nothing.
        let [below, here, above] = gave;
        let best = below.max(here).max(above);
        let load_admit = match () {
            () if below == best && load_admit > 0.0 => self.tried(load_admit, 0),
            () if above == best && load_admit < 1.0 => self.tried(load_admit, 2),
            () if load_admit >= 1.0 => return State::Filling,
            () => load_admit,
        };
        State::Tuning {
            load_admit,
            start_hit_ratio,
            trial: 0,
            gave,
        }
    }

    fn routing(&self) -> Routing {
        match self.state {
            State::Filling => Routing::CLASSIC,
            State::Tuning {
                load_admit, trial, ..
            } => Routing {
                data_admit: false,
                reads: Choice::Share(self.tried(load_admit, trial)),
                ..Routing::CLASSIC
            },
        }
    }
}

impl Controller for Orthus {
    fn name(&self) -> &'static str {
        "orthus"
    }

    fn period(&self) -> Nanos {
        self.params.interval
    }

    fn step(&mut self, now: Instant, seen: &PairSeen) -> Routing {
        let window = self.stability.add(now, seen);
        let took = self
            .last
            .map_or(self.params.interval, |last| now.since(last));
        self.last = Some(now);
        let before = self.state;
        self.state = match (before, window) {
            (State::Filling, Some((hit_ratio, true))) => Orthus::tuning(hit_ratio),
            (State::Filling, _) => State::Filling,
            (
                State::Tuning {
                    start_hit_ratio, ..
                },
                Some((hit_ratio, _)),
            ) if hit_ratio < (1.0 - self.params.alpha) * start_hit_ratio => State::Filling,
            // Where nobody asked for anything a trial says nothing: it is repeated.
            (tuning, _) if seen.bytes() == 0 => tuning,
            (tuning, _) => self.tune(tuning, self.gave(seen, took)),
        };
        if let (State::Tuning { .. }, State::Filling) = (before, self.state) {
            // What was seen while nothing was admitted says nothing about a cache that fills.
            self.stability = Stability::default();
        }
        self.routing()
    }

    fn start(&self) -> Routing {
        self.routing()
    }
}
