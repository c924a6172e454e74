//! Which device serves a read that both could: a controller of `nyx_policy::nhc`, asked for each
//! request, with what is in flight on either device.
//!
//! A copy from the fast device keeps the thread that makes it; what it has promised in this turn
//! and not answered yet is what is in flight there. What a request takes by itself was measured
//! when the export was opened ([`Costs`]); how much longer it takes than that the controller
//! learns.
//!
//! What it never does: know of lines.
//!
//! *Thread safety*: one thread's.
//!
//! Source: Orthus (FAST'21) section 4: data_admit and load_admit, decided for each read.

use nyx_base::{Clock, Instant, LatencyCounter, Nanos, Rng};
use nyx_policy::nhc::{
    Both, Bounds, Controller, Cost, InFlight, Kind, Nhc, PairSeen, Request, Routing, Served, Side,
};
use std::sync::Arc;

/// What reads of two lengths take of both devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Of [`Costs::SMALL_BYTES`].
    pub small: Both<Cost>,
    /// Of [`Costs::LARGE_BYTES`].
    pub large: Both<Cost>,
}

impl Costs {
    /// A short read.
    pub const SMALL_BYTES: u64 = nyx_tier::Costs::SMALL_BYTES;
    /// A long one.
    pub const LARGE_BYTES: u64 = nyx_tier::Costs::LARGE_BYTES;

    /// What a read of that many bytes takes of a device, on a line through both.
    pub fn of(&self, side: Side, len_bytes: u64) -> Cost {
        nyx_tier::Costs::between(self.small[side], self.large[side], len_bytes)
    }
}

impl Costs {
    /// A controller for devices of such costs.
    pub fn controller(&self, nhc: Nhc) -> Box<dyn Controller> {
        nhc.controller(Both(Side::ALL.map(|side| self.small[side].alone_ns)))
    }
}

impl Default for Costs {
    /// Persistent memory before an SSD, for tests.
    fn default() -> Costs {
        let cost = |alone_ns, each_ns| Cost { alone_ns, each_ns };
        Costs {
            small: Both([cost(1_000.0, 1_000.0), cost(80_000.0, 5_000.0)]),
            large: Both([cost(10_000.0, 10_000.0), cost(120_000.0, 30_000.0)]),
        }
    }
}

/// A request that a device has.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    side: Side,
    kind: Kind,
    len_bytes: u64,
    each_ns: f64,
    expected_ns: f64,
    began: Instant,
}

/// See the module.
pub struct Router {
    controller: Box<dyn Controller>,
    routing: Routing,
    costs: Costs,
    clock: Arc<dyn Clock>,
    rng: Rng,
    in_flight: Both<InFlight>,
    seen: PairSeen,
    before: PairSeen,
    latencies: LatencyCounter,
    next_step: Instant,
}

impl Router {
    /// One that asks this controller.
    pub fn new(
        controller: Box<dyn Controller>,
        costs: Costs,
        clock: Arc<dyn Clock>,
        rng: Rng,
    ) -> Router {
        Router {
            routing: controller.start(),
            next_step: clock.now() + controller.period(),
            controller,
            costs,
            clock,
            rng,
            in_flight: Both::default(),
            seen: PairSeen::default(),
            before: PairSeen::default(),
            latencies: LatencyCounter::default(),
        }
    }

    /// Whether what was read from the deep device is copied to the fast one.
    pub fn admits(&self) -> bool {
        self.routing.data_admit
    }

    /// Where a read of what both devices have goes.
    pub fn side(&mut self, len_bytes: u64) -> Side {
        let request = Request {
            kind: Kind::Read,
            costs: Both(Side::ALL.map(|side| self.costs.of(side, len_bytes))),
            in_flight: self.in_flight,
            bounds: Bounds::default(),
        };
        let side = self
            .routing
            .side(self.routing.reads, &request, self.rng.f64());
        self.seen.mirrored_reads += 1;
        self.seen.mirrored_deep += u64::from(side == Side::Deep);
        side
    }

    /// A read of a client found what it wanted on the fast device, or not.
    pub fn looked(&mut self, is_hit: bool) {
        self.seen.looks += 1;
        self.seen.hits += u64::from(is_hit);
    }

    /// A request begins.
    pub fn begin(&mut self, side: Side, kind: Kind, len_bytes: u64) -> Flight {
        let cost = self.costs.of(side, len_bytes);
        let there = &mut self.in_flight[side];
        let expected_ns = cost.expected_ns(there.each_ns);
        there.count += 1;
        there.each_ns += cost.each_ns;
        Flight {
            side,
            kind,
            len_bytes,
            each_ns: cost.each_ns,
            expected_ns,
            began: self.clock.now(),
        }
    }

    /// It is over. On the fast device it counts as in flight until the end of the turn.
    pub fn end(&mut self, flight: Flight, is_done: bool) {
        let took = self.clock.now().since(flight.began);
        if flight.side == Side::Deep {
            let there = &mut self.in_flight[Side::Deep];
            there.count -= 1;
            there.each_ns = match there.count {
                0 => 0.0,
                _ => there.each_ns - flight.each_ns,
            };
        }
        if !is_done {
            return;
        }
        let expected_ns = match flight.side {
            // Only its own copy was timed, not those before it.
            Side::Fast => flight.each_ns,
            Side::Deep => flight.expected_ns,
        };
        let served: &mut Served = &mut self.seen.served[flight.kind][flight.side];
        served.count += 1;
        served.bytes += flight.len_bytes;
        served.took_ns += took.0 as f64;
        served.expected_ns += expected_ns;
        served.each_ns += flight.each_ns;
        self.latencies.add(took, 1);
    }

    /// A turn is over: what the fast device has promised was answered.
    pub fn turn(&mut self) {
        self.in_flight[Side::Fast] = InFlight::default();
    }

    /// Lets the controller step where its period is over.
    pub fn step(&mut self) {
        let now = self.clock.now();
        if now < self.next_step {
            return;
        }
        self.next_step = now + self.controller.period();
        self.seen.latencies.clear();
        self.latencies.add_to(&mut self.seen.latencies);
        let seen = self.seen.since(&self.before);
        self.routing = self.controller.step(now, &seen);
        self.before = self.seen.clone();
    }

    /// The time from one step to the next.
    pub fn period(&self) -> Nanos {
        self.controller.period()
    }

    /// The controller's name.
    pub fn name(&self) -> &'static str {
        self.controller.name()
    }

    /// What was done since the start.
    pub fn seen(&self) -> &PairSeen {
        &self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Still;

    impl Clock for Still {
        fn now(&self) -> Instant {
            Instant(0)
        }
        fn spin_until(&self, _until: Instant) {}
    }

    fn router(nhc: Nhc) -> Router {
        let costs = Costs::default();
        let controller = costs.controller(nhc);
        Router::new(controller, costs, Arc::new(Still), Rng::with_seed(1))
    }

    #[test]
    fn costs_lie_on_a_line() {
        let costs = Costs::default();
        assert_eq!(costs.of(Side::Fast, 512).alone_ns, 1_000.0);
        assert_eq!(costs.of(Side::Fast, 64 << 10).alone_ns, 10_000.0);
        let middle = costs.of(Side::Deep, 34 << 10);
        assert!((99_000.0..101_000.0).contains(&middle.alone_ns));
    }

    #[test]
    fn a_split_is_a_share_of_reads() {
        let mut router = router(Nhc::Split(0.8));
        assert!(!router.admits());
        let deep = (0..10_000).filter(|_| router.side(4096) == Side::Deep);
        assert!((1_900..2_100).contains(&deep.count()));
    }

    #[test]
    fn a_turn_with_much_to_copy_overflows_to_the_deep_device() {
        let mut router = router(Nhc::ShortestDelay);
        let mut sides = Vec::new();
        for _ in 0..200 {
            let side = router.side(4096);
            sides.push(side);
            let flight = router.begin(side, Kind::Read, 4096);
            if side == Side::Fast {
                router.end(flight, true);
            }
        }
        assert!(sides[..50].iter().all(|&side| side == Side::Fast));
        assert!(sides.contains(&Side::Deep));
        router.turn();
        assert_eq!(router.side(4096), Side::Fast);
    }
}
