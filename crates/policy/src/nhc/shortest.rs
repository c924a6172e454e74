//! Each request goes where it is expected to be done first.
//!
//! What is decided at a step is small: how much slower than expected either device is (from what
//! requests took, so that a device that slows down is left within some steps), whether the cache is
//! still to be filled, and whether more is to be mirrored. The rest is each request's own: backlogs
//! move with it, so that a step of the load is answered by the next request, and no measurement is
//! taken by trying what is worse.
//!
//! Two devices of which one is never asked would never be known to have recovered: while fewer than
//! 16 requests of a kind were served by a device in a step, 0.2 % of those that would go there, had
//! it recovered, do. That is less than 1 %, so that P99 does not see them.
//!
//! Filling goes on after the hit ratio is stable, as long as the fast device, and who uses it, have
//! time to spare: that is what follows a change of what is popular. Where they have none it
//! trickles on, so that a ratio that became stable because nothing was installed does not stay.
//!
//! Source: decision 8 of the design; the research's simulation (shortest expected delay).

use super::{Both, ByKind, Choice, Controller, Kind, PairSeen, Routing, Side, Stability};
use nyx_base::{Instant, Nanos};

/// See the module.
#[derive(Clone, Debug)]
pub struct ShortestDelay {
    routing: Routing,
    stability: Stability,
    is_stable: bool,
    last: Option<Instant>,
    steps: u32,
    known: ByKind<Both<Known>>,
}

/// What requests of a kind took of a device, and what was expected, the older the less.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Known {
    count: f64,
    took_ns: f64,
    expected_ns: f64,
}

/// Requests of a kind that a device has to have served for its slowness to be known.
const ENOUGH: f64 = 16.0;
/// The share of requests that goes to a device that has served too few.
const EXPLORED: f64 = 0.002;
/// Above this part of its time the fast device, or whoever uses it, is too busy for it to be filled
/// with what may be of use.
const BUSY: f64 = 0.7;
/// Then it is filled in one step of so many: a miss costs each time, an install once, and what is
/// missed often is soon met in one of them.
const TRICKLE_ONE_IN: u32 = 16;
/// Mirroring pays above this share of reads that would have been done sooner elsewhere,
const SOONER: f64 = 0.01;
/// while as good as all that is mirrored is read there already: where the next one of those had
/// rather be read from the fast device, the mirror is large enough.
const MIRROR_USED: f64 = 0.9;

impl Known {
    /// The new counts fully, the old by half for each [`ENOUGH`] of the new.
    fn add(&mut self, count: u64, took_ns: f64, expected_ns: f64) {
        let kept = 0.5f64.powf(count as f64 / ENOUGH);
        self.count = self.count * kept + count as f64;
        self.took_ns = self.took_ns * kept + took_ns;
        self.expected_ns = self.expected_ns * kept + expected_ns;
    }

    /// Nothing is thought of a device until enough is known.
    fn slowness(&self) -> Option<f64> {
        let is_known = self.count >= ENOUGH / 2.0 && self.expected_ns > 0.0;
        is_known.then(|| (self.took_ns / self.expected_ns).clamp(0.01, 1000.0))
    }
}

impl ShortestDelay {
    /// Knows the profile only.
    pub fn new() -> ShortestDelay {
        let routing = Routing {
            reads: Choice::Shortest,
            writes: Choice::Shortest,
            news: Choice::Shortest,
            explore: ByKind([Both([EXPLORED; 2]); 2]),
            ..Routing::CLASSIC
        };
        ShortestDelay {
            routing,
            stability: Stability::default(),
            is_stable: false,
            last: None,
            steps: 0,
            known: ByKind::default(),
        }
    }

    /// What is known of a kind of requests on a device.
    fn learn(&mut self, kind: Kind, side: Side, seen: &PairSeen) {
        let served = seen.served[kind][side];
        let known = &mut self.known[kind][side];
        known.add(served.count, served.took_ns, served.expected_ns);
        if let Some(slowness) = known.slowness() {
            self.routing.slowness[kind][side] = slowness;
        }
        let is_seen = served.count as f64 >= ENOUGH;
        self.routing.explore[kind][side] = if is_seen { 0.0 } else { EXPLORED };
    }

    /// Whether misses are to be copied to the fast device.
    fn data_admit(&mut self, now: Instant, seen: &PairSeen) -> bool {
        if let Some((_, is_stable)) = self.stability.add(now, seen) {
            self.is_stable = is_stable;
        }
        let Some(last) = self.last.replace(now) else {
            return true;
        };
        let device_ns: f64 = (Kind::ALL.iter())
            .map(|&kind| {
                seen.served[kind][Side::Fast].each_ns * self.routing.slowness[kind][Side::Fast]
            })
            .sum();
        let busy_ns = device_ns.max(seen.worked_ns as f64);
        self.steps = self.steps.wrapping_add(1);
        let is_busy = busy_ns >= BUSY * now.since(last).0 as f64;
        !self.is_stable || !is_busy || self.steps.is_multiple_of(TRICKLE_ONE_IN)
    }
}

impl Default for ShortestDelay {
    fn default() -> ShortestDelay {
        ShortestDelay::new()
    }
}

impl Controller for ShortestDelay {
    fn name(&self) -> &'static str {
        "shortest-delay"
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(10)
    }

    fn step(&mut self, now: Instant, seen: &PairSeen) -> Routing {
        for kind in Kind::ALL {
            for side in Side::ALL {
                self.learn(kind, side, seen);
            }
        }
        self.routing.data_admit = self.data_admit(now, seen);
        let is_used = seen.mirrored_deep as f64 >= MIRROR_USED * seen.mirrored_reads as f64;
        self.routing.mirror_more =
            is_used && seen.sooner_deep as f64 > SOONER * seen.lone_reads as f64;
        self.routing
    }

    fn start(&self) -> Routing {
        self.routing
    }
}
