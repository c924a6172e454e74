//! Two devices as one, in virtual time: clients, a [`Controller`] and two [`BlockModel`]s.
//!
//! Clients are many and paced: each waits for its answer, and asks again when its time has come, or
//! at once where that is over; it never catches up. So a load below what the devices give is
//! served as it is offered, a load above finds as many requests in flight as there are clients, and
//! a load of 1 is the least that saturates the fast device.
//!
//! Objects are either *drawn* (a read finds its object on both devices with the hit ratio that is
//! asked for, a write is of something new; HFIO's way) or *tracked*: each has a place, writes and
//! copies move it.
//!
//! Copies (what was missed, what is mirrored) are requests to the devices like any, but nobody
//! waits for them, and beside too many others there are none. So classic caching fares better here
//! than by the paper's formulas, where each miss is installed. All numbers are **simulated**.
//!
//! Source: Orthus, sections 3 (HFIO) and 4.

use crate::workload::zipf::Zipf;
use nyx_base::{Instant, LatencyCounter, Nanos, Rng};
use nyx_media::model::block::{BlockModel, BlockParams};
use nyx_policy::nhc::{
    Both, Bounds, Controller, Cost, InFlight, Kind, PairSeen, Request, Routing, Side,
};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What is run.
#[derive(Clone, Debug)]
pub struct PairScenario {
    /// The two devices.
    pub devices: Both<BlockParams>,
    /// Clients, each with one request at a time.
    pub clients: u32,
    /// What is offered, in multiples of what saturates the fast device.
    pub load: f64,
    /// The size of an object.
    pub len_bytes: u64,
    /// The share of requests that write.
    pub writes: f64,
    /// What is asked for.
    pub objects: Objects,
    /// What happens meanwhile, in the order of time.
    pub changes: Vec<(Instant, Change)>,
    /// Nothing before counts.
    pub warm_up: Nanos,
    /// For how long is measured.
    pub length: Nanos,
    /// What is told of each of these.
    pub window: Nanos,
    /// Of all draws.
    pub seed: u64,
}

/// What clients ask for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Objects {
    /// Reads find their object on both devices with this probability, else on the deep one; writes
    /// are of objects that nobody reads soon.
    Drawn {
        /// The hit ratio.
        hits: f64,
    },
    /// So many objects, all on the fast device at first, asked for by Zipf's law.
    Tracked {
        /// How many.
        count: u64,
        /// The exponent; 0 is uniform.
        theta: f64,
    },
}

/// What happens meanwhile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// The load is another one.
    Load(f64),
    /// A device takes so many times as long for everything.
    Slow(Side, f64),
    /// A device begins with nothing for so long.
    Stall(Side, Nanos),
    /// The hit ratio of drawn objects is another one.
    Hits(f64),
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct PairRun {
    /// Of everything that was measured.
    pub total: PairWindow,
    /// Of each window.
    pub windows: Vec<PairWindow>,
    /// Objects that both devices have at the end, of those that are tracked.
    pub mirrored: u64,
}

/// A part of a run.
#[derive(Clone, Debug, Default)]
pub struct PairWindow {
    /// When it began, since the beginning of the run.
    pub from: Instant,
    /// How long it was.
    pub length: Nanos,
    /// What was done in it.
    pub seen: PairSeen,
    /// Bytes that were copied to either device.
    pub copied_bytes: Both<u64>,
}

impl PairWindow {
    /// Users' requests per second.
    pub fn ops_per_s(&self) -> f64 {
        self.seen.count() as f64 / self.length.as_secs_f64()
    }

    /// Users' bytes per second.
    pub fn bytes_per_s(&self) -> f64 {
        self.seen.bytes() as f64 / self.length.as_secs_f64()
    }

    /// A quantile of the latency of users' requests, in ns.
    pub fn quantile_ns(&self, q: f64) -> Option<f64> {
        self.seen.latencies.quantile_ns(q)
    }

    /// What was done from `earlier` to now, both counted since the beginning.
    fn since(&self, earlier: &PairWindow) -> PairWindow {
        let copied = |side| self.copied_bytes[side] - earlier.copied_bytes[side];
        PairWindow {
            from: earlier.from,
            length: self.from.since(earlier.from),
            seen: self.seen.since(&earlier.seen),
            copied_bytes: Both(Side::ALL.map(copied)),
        }
    }
}

/// What a request of that size takes of a modelled device.
pub fn cost_of(device: &BlockParams, kind: Kind, len_bytes: u64) -> Cost {
    let is_write = kind == Kind::Write;
    Cost {
        alone_ns: device.alone_ns(is_write, len_bytes),
        each_ns: 1e9 / device.per_second(is_write, len_bytes),
    }
}

/// Requests per second that saturate the fast device.
pub fn saturating_per_s(scenario: &PairScenario) -> f64 {
    let fast = &scenario.devices[Side::Fast];
    let each_ns = |kind| cost_of(fast, kind, scenario.len_bytes).each_ns;
    let writes = scenario.writes;
    1e9 / ((1.0 - writes) * each_ns(Kind::Read) + writes * each_ns(Kind::Write))
}

/// Runs it.
pub fn run(scenario: &PairScenario, controller: Box<dyn Controller>) -> PairRun {
    let mut run = Run::new(scenario, controller);
    let end = Instant(0) + scenario.warm_up + scenario.length;
    while let Some(Reverse(next)) = run.queue.pop() {
        if next.at > end {
            break;
        }
        run.now = next.at;
        run.happens(next.what);
    }
    run.outcome()
}

/// Something that happens, by time; what was put in first comes first.
#[derive(Clone, Copy, Debug)]
struct Event {
    at: Instant,
    number: u64,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// A client asks.
    Ask(u32),
    /// A request is done.
    Done(Flight),
    /// The controller is stepped.
    Step,
    /// A window is over.
    Window,
    /// The next change.
    Change(usize),
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.number == other.number
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Event) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// A request that a device has.
#[derive(Clone, Copy, Debug)]
struct Flight {
    kind: Kind,
    side: Side,
    each_ns: f64,
    of: Of,
}

/// Whose it is.
#[derive(Clone, Copy, Debug)]
enum Of {
    /// A client's, with what was expected and when it was asked for.
    Client {
        client: u32,
        asked: Instant,
        expected_ns: f64,
    },
    /// A copy of this object as it was after so many writes; of a drawn one there is nothing to
    /// know.
    Copy(Option<(u64, u32)>),
}

/// Where an object is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    One(Side),
    Mirrored,
}

/// An object that is tracked.
#[derive(Clone, Copy, Debug)]
struct Tracked {
    place: Place,
    writes: u32,
}

/// Copies that may be under way to either device at once: fills are many in a classic cache, the
/// mirror grows slowly, so that what is read often comes first.
const COPIES_MAX: Both<u32> = Both([16, 4]);

struct Run<'s> {
    scenario: &'s PairScenario,
    controller: Box<dyn Controller>,
    routing: Routing,
    devices: Both<BlockModel>,
    costs: Both<[Cost; 2]>,
    in_flight: Both<InFlight>,
    queue: BinaryHeap<Reverse<Event>>,
    numbers: u64,
    now: Instant,
    rng: Rng,
    /// From one request of a client to its next.
    pace_ns: f64,
    hits: f64,
    law: Option<Zipf>,
    tracked: Vec<Tracked>,
    copies: Both<u32>,
    /// Since the beginning; latencies apart.
    so_far: PairSeen,
    copied_bytes: Both<u64>,
    latencies: LatencyCounter,
    /// What was counted at the last step, at the end of each window, and at the warm-up's end.
    at_step: PairSeen,
    at_windows: Vec<PairWindow>,
}

impl<'s> Run<'s> {
    fn new(scenario: &'s PairScenario, controller: Box<dyn Controller>) -> Run<'s> {
        let device = |side: Side| {
            let params = scenario.devices[side].clone();
            BlockModel::new(params, scenario.seed ^ (side as u64 + 1))
        };
        let costs = Both(Side::ALL.map(|side| {
            Kind::ALL.map(|kind| cost_of(&scenario.devices[side], kind, scenario.len_bytes))
        }));
        let (hits, law, count) = match scenario.objects {
            Objects::Drawn { hits } => (hits, None, 0),
            Objects::Tracked { count, theta } => (1.0, Some(Zipf::new(count, theta)), count),
        };
        let unwritten = Tracked {
            place: Place::One(Side::Fast),
            writes: 0,
        };
        let mut run = Run {
            routing: controller.start(),
            controller,
            devices: Both(Side::ALL.map(device)),
            costs,
            in_flight: Both::default(),
            queue: BinaryHeap::new(),
            numbers: 0,
            now: Instant(0),
            rng: Rng::with_seed(scenario.seed),
            pace_ns: 0.0,
            hits,
            law,
            tracked: vec![unwritten; count as usize],
            copies: Both::default(),
            so_far: PairSeen::default(),
            copied_bytes: Both::default(),
            latencies: LatencyCounter::default(),
            at_step: PairSeen::default(),
            at_windows: Vec::new(),
            scenario,
        };
        run.set_load(scenario.load);
        run.begin();
        run
    }

    fn set_load(&mut self, load: f64) {
        let per_s = load * saturating_per_s(self.scenario);
        self.pace_ns = f64::from(self.scenario.clients) * 1e9 / per_s;
    }

    fn begin(&mut self) {
        for client in 0..self.scenario.clients {
            let at = Instant((self.rng.f64() * self.pace_ns) as u64);
            self.at(at, What::Ask(client));
        }
        self.at(Instant(0) + self.controller.period(), What::Step);
        self.at(Instant(0) + self.scenario.warm_up, What::Window);
        for (number, (at, _)) in self.scenario.changes.iter().enumerate() {
            self.at(*at, What::Change(number));
        }
    }

    fn at(&mut self, at: Instant, what: What) {
        let number = self.numbers;
        self.numbers += 1;
        self.queue.push(Reverse(Event { at, number, what }));
    }

    fn happens(&mut self, what: What) {
        match what {
            What::Ask(client) => self.ask(client),
            What::Done(flight) => self.done(flight),
            What::Step => self.step(),
            What::Window => self.window(),
            What::Change(number) => self.change(self.scenario.changes[number].1),
        }
    }

    fn ask(&mut self, client: u32) {
        let kind = match self.rng.f64() < self.scenario.writes {
            true => Kind::Write,
            false => Kind::Read,
        };
        let object = self.law.as_ref().map(|law| law.sample(&mut self.rng));
        let request = self.request(kind);
        let side = match kind {
            Kind::Read => self.read_from(object, &request),
            Kind::Write => self.write_to(object, &request),
        };
        let expected_ns = request.costs[side].expected_ns(self.in_flight[side].each_ns);
        let of = Of::Client {
            client,
            asked: self.now,
            expected_ns,
        };
        self.submit(kind, side, of);
    }

    fn request(&self, kind: Kind) -> Request {
        Request {
            kind,
            costs: Both(Side::ALL.map(|side| self.costs[side][kind as usize])),
            in_flight: self.in_flight,
            bounds: Bounds::default(),
        }
    }

    fn place(&mut self, object: Option<u64>) -> Place {
        match object {
            Some(object) => self.tracked[object as usize].place,
            None if self.rng.f64() < self.hits => Place::Mirrored,
            None => Place::One(Side::Deep),
        }
    }

    fn read_from(&mut self, object: Option<u64>, request: &Request) -> Side {
        self.so_far.looks += 1;
        let draw = self.rng.f64();
        let place = self.place(object);
        if place != Place::One(Side::Deep) {
            self.so_far.hits += 1;
        }
        match place {
            Place::Mirrored => {
                let side = self.routing.side(self.routing.reads, request, draw);
                self.so_far.mirrored_reads += 1;
                self.so_far.mirrored_deep += u64::from(side == Side::Deep);
                side
            }
            Place::One(Side::Fast) => {
                self.so_far.lone_reads += 1;
                if self.routing.shortest(request) == Side::Deep {
                    self.so_far.sooner_deep += 1;
                    if self.routing.mirror_more {
                        self.copy(Side::Deep, object);
                    }
                }
                Side::Fast
            }
            Place::One(Side::Deep) => {
                if self.routing.data_admit {
                    self.copy(Side::Fast, object);
                }
                Side::Deep
            }
        }
    }

    fn write_to(&mut self, object: Option<u64>, request: &Request) -> Side {
        let draw = self.rng.f64();
        let choice = match object {
            Some(_) => self.routing.writes,
            None => self.routing.news,
        };
        let side = self.routing.side(choice, request, draw);
        if let Some(object) = object {
            let tracked = &mut self.tracked[object as usize];
            tracked.place = Place::One(side);
            tracked.writes += 1;
        }
        side
    }

    /// Copies an object that is at hand; not beside too many others.
    fn copy(&mut self, to: Side, object: Option<u64>) {
        if self.copies[to] < COPIES_MAX[to] {
            self.copies[to] += 1;
            self.copied_bytes[to] += self.scenario.len_bytes;
            let of = object.map(|object| (object, self.tracked[object as usize].writes));
            self.submit(Kind::Write, to, Of::Copy(of));
        }
    }

    fn submit(&mut self, kind: Kind, side: Side, of: Of) {
        let each_ns = self.costs[side][kind as usize].each_ns;
        self.in_flight[side].each_ns += each_ns;
        self.in_flight[side].count += 1;
        self.so_far.served[kind][side].each_ns += each_ns;
        let is_write = kind == Kind::Write;
        let done = self.devices[side].submit(self.now, is_write, self.scenario.len_bytes);
        let flight = Flight {
            kind,
            side,
            each_ns,
            of,
        };
        self.at(done, What::Done(flight));
    }

    fn done(&mut self, flight: Flight) {
        let in_flight = &mut self.in_flight[flight.side];
        in_flight.count -= 1;
        in_flight.each_ns = match in_flight.count {
            0 => 0.0,
            _ => in_flight.each_ns - flight.each_ns,
        };
        match flight.of {
            Of::Copy(object) => {
                self.copies[flight.side] -= 1;
                // What was written meanwhile is elsewhere.
                if let Some((object, writes)) = object {
                    let tracked = &mut self.tracked[object as usize];
                    if tracked.writes == writes {
                        tracked.place = Place::Mirrored;
                    }
                }
            }
            Of::Client {
                client,
                asked,
                expected_ns,
            } => {
                let took = self.now.since(asked);
                self.latencies.add(took, 1);
                let served = &mut self.so_far.served[flight.kind][flight.side];
                served.count += 1;
                served.bytes += self.scenario.len_bytes;
                served.took_ns += took.0 as f64;
                served.expected_ns += expected_ns;
                // From half of the pace to one and a half: clients do not march in step.
                let pace_ns = self.pace_ns * (0.5 + self.rng.f64());
                let next = (asked + Nanos(pace_ns as u64)).max(self.now);
                self.at(next, What::Ask(client));
            }
        }
    }

    fn step(&mut self) {
        let seen = self.counted();
        self.routing = self.controller.step(self.now, &seen.since(&self.at_step));
        self.at_step = seen;
        self.at(self.now + self.controller.period(), What::Step);
    }

    /// What was done since the beginning.
    fn counted(&self) -> PairSeen {
        let mut seen = self.so_far.clone();
        self.latencies.add_to(&mut seen.latencies);
        seen
    }

    /// Begins the next window.
    fn window(&mut self) {
        self.at_windows.push(PairWindow {
            from: self.now,
            length: Nanos(0),
            seen: self.counted(),
            copied_bytes: self.copied_bytes,
        });
        self.at(self.now + self.scenario.window, What::Window);
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Load(load) => self.set_load(load),
            Change::Slow(side, times) => self.devices[side].slow_down(times),
            Change::Stall(side, length) => self.devices[side].stall(self.now, length),
            Change::Hits(hits) => self.hits = hits,
        }
    }

    fn outcome(self) -> PairRun {
        let ends = &self.at_windows;
        let (first, last) = (ends.first(), ends.last());
        let (first, last) = first.zip(last).expect("longer than the warm-up");
        let is_mirrored = |tracked: &&Tracked| tracked.place == Place::Mirrored;
        let mirrored = self.tracked.iter().filter(is_mirrored);
        PairRun {
            total: last.since(first),
            windows: (ends.windows(2))
                .map(|pair| pair[1].since(&pair[0]))
                .collect(),
            mirrored: mirrored.count() as u64,
        }
    }
}
