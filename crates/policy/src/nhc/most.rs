//! MOST's rule: who answers later gets less.
//!
//! Every 200 ms the mean latencies of both devices are compared, smoothed over some windows. Where
//! the fast one's is above the deep one's by more than 5 %, 2 % more of everything (reads of what
//! is mirrored, writes, new objects) goes to the deep one; where it is below by as much, 2 % less.
//! What was missed is not copied: there is no inclusive cache, only a mirror that grows while it is
//! wanted.
//!
//! Source: MOST (FAST'26), as told in its abstract and section 3; a baseline.

use super::{Both, Choice, Controller, PairSeen, Routing, Side};
use nyx_base::{Instant, Nanos};

/// See the module.
#[derive(Clone, Debug)]
pub struct Most {
    latency_ns: Both<f64>,
    offload: f64,
}

impl Most {
    const STEP: f64 = 0.02;
    const TOLERANCE: f64 = 0.05;
    /// What the newest window counts in the mean.
    const NEWEST: f64 = 0.5;

    /// For devices of which a lone read takes so long, in ns: that counts until something was seen.
    pub fn new(alone_ns: Both<f64>) -> Most {
        Most {
            latency_ns: alone_ns,
            offload: 0.0,
        }
    }

    fn routing(&self) -> Routing {
        let share = Choice::Share(1.0 - self.offload);
        Routing {
            data_admit: false,
            reads: share,
            writes: share,
            news: share,
            mirror_more: self.offload > 0.0,
            ..Routing::CLASSIC
        }
    }
}

impl Controller for Most {
    fn name(&self) -> &'static str {
        "most"
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(200)
    }

    fn step(&mut self, _now: Instant, seen: &PairSeen) -> Routing {
        for side in Side::ALL {
            if let Some(mean_ns) = seen.on(side).mean_ns() {
                let known_ns = &mut self.latency_ns[side];
                *known_ns += Most::NEWEST * (mean_ns - *known_ns);
            }
        }
        let (fast, deep) = (self.latency_ns[Side::Fast], self.latency_ns[Side::Deep]);
        if fast > deep * (1.0 + Most::TOLERANCE) {
            self.offload = (self.offload + Most::STEP).min(1.0);
        } else if fast < deep * (1.0 - Most::TOLERANCE) {
            self.offload = (self.offload - Most::STEP).max(0.0);
        }
        self.routing()
    }

    fn start(&self) -> Routing {
        self.routing()
    }
}
