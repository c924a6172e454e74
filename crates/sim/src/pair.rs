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
//! Copies (what was missed, what is mirrored) are requests to the devices like any. Where they are
//! made behind the answer ([`Installs::Behind`]) nobody waits for them, and beside too many others
//! there are none; so classic caching fares better than by the paper's formulas, where each miss is
//! installed ([`Installs::Before`]).
//!
//! What is decided and counted is the [`Desk`]'s, which `nyx model --measure` drives in real time.
//! All numbers from here are **simulated**.
//!
//! Source: Orthus, sections 3 (HFIO) and 4.

pub mod desk;

pub use desk::{Desk, Flight, Installs, Then, next_ask, pace_ns, saturating_per_s};

use crate::workload::zipf::Zipf;
use nyx_base::{Instant, Nanos, Rng};
use nyx_media::model::block::{BlockModel, BlockParams};
use nyx_policy::nhc::{Both, Controller, Cost, Kind, PairSeen, Side};
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
    /// When what was missed is cached.
    pub installs: Installs,
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
    pub fn since(&self, earlier: &PairWindow) -> PairWindow {
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

/// The same of both devices, by [`Kind`].
fn costs_of(scenario: &PairScenario) -> Both<[Cost; 2]> {
    Both(Side::ALL.map(|side| {
        Kind::ALL.map(|kind| cost_of(&scenario.devices[side], kind, scenario.len_bytes))
    }))
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
    Done(Flight, Of),
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

/// Whose a request is.
#[derive(Clone, Copy, Debug)]
enum Of {
    /// A client's, who gets this; of a read, what comes after it.
    Client {
        client: u32,
        got: Version,
        then: Then,
    },
    /// A client's that waits for what this read has missed to be cached.
    Install {
        client: u32,
        read: Flight,
        took: Nanos,
        got: Version,
    },
    /// Nobody's: a copy of this.
    Copy(Version),
}

/// An object as it was after so many writes; of a drawn one there is nothing to know.
type Version = Option<(u64, u32)>;

/// Where an object is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    /// On one device.
    One(Side),
    /// On both.
    Mirrored,
}

/// An object that is tracked.
#[derive(Clone, Copy, Debug)]
struct Tracked {
    place: Place,
    writes: u32,
}

struct Run<'s> {
    scenario: &'s PairScenario,
    desk: Desk,
    devices: Both<BlockModel>,
    queue: BinaryHeap<Reverse<Event>>,
    numbers: u64,
    now: Instant,
    rng: Rng,
    /// From one request of a client to its next.
    pace_ns: f64,
    hits: f64,
    law: Option<Zipf>,
    tracked: Vec<Tracked>,
    /// What was counted at the end of each window, and at the warm-up's end.
    at_windows: Vec<PairWindow>,
}

impl<'s> Run<'s> {
    fn new(scenario: &'s PairScenario, controller: Box<dyn Controller>) -> Run<'s> {
        let device = |side: Side| {
            let params = scenario.devices[side].clone();
            BlockModel::new(params, scenario.seed ^ (side as u64 + 1))
        };
        let (hits, law, count) = match scenario.objects {
            Objects::Drawn { hits } => (hits, None, 0),
            Objects::Tracked { count, theta } => (1.0, Some(Zipf::new(count, theta)), count),
        };
        let unwritten = Tracked {
            place: Place::One(Side::Fast),
            writes: 0,
        };
        let (costs, len_bytes) = (costs_of(scenario), scenario.len_bytes);
        let mut run = Run {
            desk: Desk::new(controller, scenario.installs, costs, len_bytes),
            devices: Both(Side::ALL.map(device)),
            queue: BinaryHeap::new(),
            numbers: 0,
            now: Instant(0),
            rng: Rng::with_seed(scenario.seed),
            pace_ns: 0.0,
            hits,
            law,
            tracked: vec![unwritten; count as usize],
            at_windows: Vec::new(),
            scenario,
        };
        run.set_load(scenario.load);
        run.begin();
        run
    }

    fn set_load(&mut self, load: f64) {
        let per_s = saturating_per_s(&costs_of(self.scenario), self.scenario.writes);
        self.pace_ns = pace_ns(load, self.scenario.clients, per_s);
    }

    fn begin(&mut self) {
        for client in 0..self.scenario.clients {
            let at = Instant((self.rng.f64() * self.pace_ns) as u64);
            self.at(at, What::Ask(client));
        }
        self.at(Instant(0) + self.desk.period(), What::Step);
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
            What::Done(flight, of) => self.done(flight, of),
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
        let draw = self.rng.f64();
        let (side, then) = match kind {
            Kind::Read => {
                let place = self.place(object);
                self.desk.read(place, draw)
            }
            Kind::Write => (self.write_to(object, draw), Then::Answer),
        };
        // What is written meanwhile is another.
        let got = object.map(|object| (object, self.tracked[object as usize].writes));
        if let Then::Copy(to) = then
            && self.desk.begin_copy(to)
        {
            let copy = self.desk.begin(Kind::Write, to, self.now);
            self.submit(copy, Of::Copy(got));
        }
        let flight = self.desk.begin(kind, side, self.now);
        let of = Of::Client { client, got, then };
        self.submit(flight, of);
    }

    fn place(&mut self, object: Option<u64>) -> Place {
        match object {
            Some(object) => self.tracked[object as usize].place,
            None if self.rng.f64() < self.hits => Place::Mirrored,
            None => Place::One(Side::Deep),
        }
    }

    fn write_to(&mut self, object: Option<u64>, draw: f64) -> Side {
        let side = self.desk.write(object.is_none(), draw);
        if let Some(object) = object {
            let tracked = &mut self.tracked[object as usize];
            tracked.place = Place::One(side);
            tracked.writes += 1;
        }
        side
    }

    fn submit(&mut self, flight: Flight, of: Of) {
        let is_write = flight.kind == Kind::Write;
        let device = &mut self.devices[flight.side];
        let done = device.submit(self.now, is_write, self.scenario.len_bytes);
        self.at(done, What::Done(flight, of));
    }

    fn done(&mut self, flight: Flight, of: Of) {
        self.desk.end(&flight);
        let took = self.now.since(flight.began);
        match of {
            Of::Copy(of) => {
                self.desk.end_copy(flight.side);
                self.copied(of);
            }
            Of::Client {
                client,
                got,
                then: Then::Install,
            } => {
                let of = Of::Install {
                    client,
                    read: flight,
                    took,
                    got,
                };
                let install = self.desk.begin_install(self.now);
                self.submit(install, of);
            }
            Of::Client { client, .. } => self.answer(client, &flight, took),
            Of::Install {
                client,
                read,
                took,
                got,
            } => {
                self.copied(got);
                self.answer(client, &read, took);
            }
        }
    }

    /// Both devices have it, unless it was written meanwhile and is elsewhere.
    fn copied(&mut self, of: Version) {
        if let Some((object, writes)) = of {
            let tracked = &mut self.tracked[object as usize];
            if tracked.writes == writes {
                tracked.place = Place::Mirrored;
            }
        }
    }

    fn answer(&mut self, client: u32, flight: &Flight, took: Nanos) {
        let asked = flight.began;
        self.desk.answered(flight, took, self.now.since(asked));
        let next = next_ask(self.pace_ns, asked, self.now, self.rng.f64());
        self.at(next, What::Ask(client));
    }

    fn step(&mut self) {
        self.desk.step(self.now);
        self.at(self.now + self.desk.period(), What::Step);
    }

    /// Begins the next window.
    fn window(&mut self) {
        self.at_windows.push(self.desk.window(self.now));
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
