//! Where the requests of a pair ask, in virtual and in real time alike: what is in flight on either
//! device, what a [`Controller`] decided, which copies there are, and what was done.
//!
//! Whoever drives it has the devices, the clock and the chance; it says what happens and is told
//! where to go. So the simulated and the measured figures of a controller differ in their devices
//! and in nothing else.
//!
//! What it never does: read a clock, draw a number, know a device.
//!
//! Source: Orthus, sections 3 (HFIO) and 4.

use super::{PairWindow, Place};
use nyx_base::{Instant, LatencyCounter, Nanos};
use nyx_policy::nhc::{
    Both, Bounds, Controller, Cost, InFlight, Kind, PairSeen, Request, Routing, Side,
};

/// When what was missed and is to be cached is written to the fast device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Installs {
    /// Behind the answer: nobody waits for it, and beside [`Desk::COPIES_MAX`] others there is
    /// none.
    #[default]
    Behind,
    /// Before the answer, whatever else there is: HFIO's, and the paper's T_miss.
    Before,
}

/// What becomes of what a read has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Nothing more.
    Answer,
    /// It is copied to that device behind the answer, where [`Desk::begin_copy`] lets it.
    Copy(Side),
    /// It is written to the fast device, and then it is the answer.
    Install,
}

/// A request that a device has.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    /// What it does.
    pub kind: Kind,
    /// Where.
    pub side: Side,
    /// When it was submitted.
    pub began: Instant,
    each_ns: f64,
    expected_ns: f64,
}

/// See the module.
#[derive(Debug)]
pub struct Desk {
    controller: Box<dyn Controller>,
    routing: Routing,
    installs: Installs,
    /// By device and [`Kind`].
    costs: Both<[Cost; 2]>,
    len_bytes: u64,
    in_flight: Both<InFlight>,
    copies: Both<u32>,
    /// Since the beginning; latencies apart.
    so_far: PairSeen,
    copied_bytes: Both<u64>,
    latencies: LatencyCounter,
    /// What was counted at the last step.
    at_step: PairSeen,
}

impl Desk {
    /// Copies that may be under way to either device at once: fills are many in a classic cache,
    /// the mirror grows slowly, so that what is read often comes first.
    pub const COPIES_MAX: Both<u32> = Both([16, 4]);

    /// Before anything was asked, for requests of one size that take so much of the devices.
    pub fn new(
        controller: Box<dyn Controller>,
        installs: Installs,
        costs: Both<[Cost; 2]>,
        len_bytes: u64,
    ) -> Desk {
        Desk {
            routing: controller.start(),
            controller,
            installs,
            costs,
            len_bytes,
            in_flight: Both::default(),
            copies: Both::default(),
            so_far: PairSeen::default(),
            copied_bytes: Both::default(),
            latencies: LatencyCounter::default(),
            at_step: PairSeen::default(),
        }
    }

    /// The time from one step of the controller to the next.
    pub fn period(&self) -> Nanos {
        self.controller.period()
    }

    fn request(&self, kind: Kind) -> Request {
        Request {
            kind,
            costs: Both(Side::ALL.map(|side| self.costs[side][kind as usize])),
            in_flight: self.in_flight,
            bounds: Bounds::default(),
        }
    }

    /// Where a read of what lies there goes, and what comes after it. `draw` is from 0 to 1.
    pub fn read(&mut self, place: Place, draw: f64) -> (Side, Then) {
        let request = self.request(Kind::Read);
        let seen = &mut self.so_far;
        seen.looks += 1;
        seen.hits += u64::from(place != Place::One(Side::Deep));
        match place {
            Place::Mirrored => {
                let side = self.routing.side(self.routing.reads, &request, draw);
                seen.mirrored_reads += 1;
                seen.mirrored_deep += u64::from(side == Side::Deep);
                (side, Then::Answer)
            }
            Place::One(Side::Fast) => {
                seen.lone_reads += 1;
                let is_sooner = self.routing.shortest(&request) == Side::Deep;
                seen.sooner_deep += u64::from(is_sooner);
                match is_sooner && self.routing.mirror_more {
                    true => (Side::Fast, Then::Copy(Side::Deep)),
                    false => (Side::Fast, Then::Answer),
                }
            }
            Place::One(Side::Deep) => {
                let then = match (self.routing.data_admit, self.installs) {
                    (false, _) => Then::Answer,
                    (true, Installs::Behind) => Then::Copy(Side::Fast),
                    (true, Installs::Before) => Then::Install,
                };
                (Side::Deep, then)
            }
        }
    }

    /// Where a write goes: of something new, or of what is there already.
    pub fn write(&self, is_new: bool, draw: f64) -> Side {
        let choice = match is_new {
            true => self.routing.news,
            false => self.routing.writes,
        };
        self.routing.side(choice, &self.request(Kind::Write), draw)
    }

    /// Whether a copy to that device may begin, beside those that are under way; it counts as one
    /// until [`Self::end_copy`].
    #[must_use]
    pub fn begin_copy(&mut self, to: Side) -> bool {
        let may = self.copies[to] < Desk::COPIES_MAX[to];
        if may {
            self.copies[to] += 1;
            self.copied_bytes[to] += self.len_bytes;
        }
        may
    }

    /// It is over.
    pub fn end_copy(&mut self, to: Side) {
        self.copies[to] -= 1;
    }

    /// What was missed is written to the fast device, and somebody waits for it.
    pub fn begin_install(&mut self, now: Instant) -> Flight {
        self.copied_bytes[Side::Fast] += self.len_bytes;
        self.begin(Kind::Write, Side::Fast, now)
    }

    /// A request is given to a device, whoever wants it.
    pub fn begin(&mut self, kind: Kind, side: Side, now: Instant) -> Flight {
        let cost = self.costs[side][kind as usize];
        let there = &mut self.in_flight[side];
        let expected_ns = cost.expected_ns(there.each_ns);
        there.each_ns += cost.each_ns;
        there.count += 1;
        self.so_far.served[kind][side].each_ns += cost.each_ns;
        Flight {
            kind,
            side,
            began: now,
            each_ns: cost.each_ns,
            expected_ns,
        }
    }

    /// The device is done with it.
    pub fn end(&mut self, flight: &Flight) {
        let there = &mut self.in_flight[flight.side];
        there.count -= 1;
        there.each_ns = match there.count {
            0 => 0.0,
            _ => there.each_ns - flight.each_ns,
        };
    }

    /// A user has the answer, which one request to a device gave: that `took` so long, the user
    /// `waited` for that and what came behind it.
    pub fn answered(&mut self, flight: &Flight, took: Nanos, waited: Nanos) {
        self.latencies.add(waited, 1);
        let served = &mut self.so_far.served[flight.kind][flight.side];
        served.count += 1;
        served.bytes += self.len_bytes;
        served.took_ns += took.0 as f64;
        served.expected_ns += flight.expected_ns;
    }

    /// Lets the controller step.
    pub fn step(&mut self, now: Instant) {
        let seen = self.counted();
        self.routing = self.controller.step(now, &seen.since(&self.at_step));
        self.at_step = seen;
    }

    /// A window that begins now, with all that was done before it: what was done in it is its end's
    /// difference from it ([`PairWindow::since`]).
    pub fn window(&self, now: Instant) -> PairWindow {
        PairWindow {
            from: now,
            length: Nanos(0),
            seen: self.counted(),
            copied_bytes: self.copied_bytes,
        }
    }

    /// What was done since the beginning.
    fn counted(&self) -> PairSeen {
        let mut seen = self.so_far.clone();
        self.latencies.add_to(&mut seen.latencies);
        seen
    }
}

/// When a client asks again that asked then and has its answer now: its pace later, or at once
/// where that is over; it never catches up. `draw` is from 0 to 1, so that clients do not march in
/// step: the pace is from half of itself to one and a half.
pub fn next_ask(pace_ns: f64, asked: Instant, now: Instant, draw: f64) -> Instant {
    let pace_ns = pace_ns * (0.5 + draw);
    (asked + Nanos(pace_ns as u64)).max(now)
}

/// From one request of a client to its next, in ns, where so many clients together offer that
/// multiple of what saturates the fast device.
pub fn pace_ns(load: f64, clients: u32, saturating_per_s: f64) -> f64 {
    f64::from(clients) * 1e9 / (load * saturating_per_s)
}

/// Requests per second that saturate the fast device, of which this share writes.
pub fn saturating_per_s(costs: &Both<[Cost; 2]>, writes: f64) -> f64 {
    let [read, write] = costs[Side::Fast].map(|cost| cost.each_ns);
    1e9 / ((1.0 - writes) * read + writes * write)
}
