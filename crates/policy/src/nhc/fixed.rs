//! Controllers that never change their mind: classic caching, and a fixed split.
//!
//! Source: Orthus, sections 2 and 3 (the formulas of caching and of splitting).

use super::{Choice, Controller, PairSeen, Routing};
use nyx_base::{Instant, Nanos};

/// Whatever is cached is served by the fast device, whatever was missed is copied there.
#[derive(Clone, Copy, Debug)]
pub struct Classic;

impl Controller for Classic {
    fn name(&self) -> &'static str {
        "classic"
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(100)
    }

    fn step(&mut self, _now: Instant, _seen: &PairSeen) -> Routing {
        self.start()
    }

    fn start(&self) -> Routing {
        Routing::CLASSIC
    }
}

/// A share of everything belongs to the fast device; nothing is copied.
#[derive(Clone, Copy, Debug)]
pub struct Split {
    share: f64,
}

impl Split {
    /// With this share of the fast device, from 0 to 1.
    pub fn new(share: f64) -> Split {
        assert!((0.0..=1.0).contains(&share), "a share of {share}");
        Split { share }
    }
}

impl Controller for Split {
    fn name(&self) -> &'static str {
        "split"
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(100)
    }

    fn step(&mut self, _now: Instant, _seen: &PairSeen) -> Routing {
        self.start()
    }

    fn start(&self) -> Routing {
        let share = Choice::Share(self.share);
        Routing {
            data_admit: false,
            reads: share,
            writes: share,
            news: share,
            ..Routing::CLASSIC
        }
    }
}
