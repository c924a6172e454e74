//! One tenant's two devices, and who decides between them: a controller of `nyx_policy::nhc`, which
//! all of its workers feed and each of them asks for every request that either device could serve.
//!
//! **The fast device is used at once**: whoever reads it keeps its worker until the bytes are here,
//! and all who wait for that worker wait as well. So what is in flight there is who waits behind
//! the request ([`crate::Tolls::set_waiting`]), and what they take. A read of the deep device lets
//! its worker go after what it takes of the processor; those behind wait for that.
//!
//! What it never does: know of items; step a controller more often than it asks for.
//!
//! *Thread safety*: a [`Pair`] is shared; each worker writes its own cell. A [`Desk`] is one
//! worker's. *Invariants*: a desk's routing is that of the generation that it saw last.
//!
//! Source: Orthus (FAST'21) section 4: data_admit and load_admit, decided for each read.

use crate::device::Deep;
use nyx_base::{CachePadded, Counter, Instant, LatencyCounter, Nanos, Rng, WorkerId};
use nyx_gate::CostTable;
use nyx_media::Op;
use nyx_policy::mechanism::queueing::Reads;
use nyx_policy::nhc::{
    Both, Bounds, Choice, Controller, Cost, InFlight, Kind, Nhc, PairSeen, Request, Routing,
    Served, Side,
};
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex, PoisonError};

/// One read of the fast device in so many is timed, and one in so many of what only that has is
/// asked where it would have gone.
const SAMPLE_ONE_IN: u32 = 16;

/// See the module.
#[derive(Debug)]
pub struct Pair {
    deep: Arc<Deep>,
    /// Of the fast device.
    prices: CostTable,
    bounds: Bounds,
    control: Mutex<Control>,
    /// Of the routing.
    generation: AtomicU64,
    next_step: AtomicU64,
    cells: Box<[CachePadded<Cell>]>,
}

#[derive(Debug)]
struct Control {
    controller: Box<dyn Controller>,
    routing: Routing,
    before: PairSeen,
}

/// What one worker has counted.
#[derive(Debug, Default)]
struct Cell {
    looks: Counter,
    hits: Counter,
    served: [[ServedCounter; 2]; 2],
    lone_reads: Counter,
    sooner_deep: Counter,
    mirrored_reads: Counter,
    mirrored_deep: Counter,
    worked_ns: Counter,
    latencies: LatencyCounter,
}

#[derive(Debug, Default)]
struct ServedCounter {
    count: Counter,
    bytes: Counter,
    took_ns: Counter,
    expected_ns: Counter,
    each_ns: Counter,
    idle_ns: Counter,
}

impl ServedCounter {
    fn add(&self, bytes: usize, took_ns: u64, expected_ns: f64, each_ns: f64) {
        self.count.add(1);
        self.bytes.add(bytes as u64);
        self.took_ns.add(took_ns);
        self.expected_ns.add(expected_ns as u64);
        self.each_ns.add(each_ns as u64);
    }

    fn add_to(&self, sum: &mut Served) {
        sum.count += self.count.get();
        sum.bytes += self.bytes.get();
        sum.took_ns += self.took_ns.get() as f64;
        sum.expected_ns += self.expected_ns.get() as f64;
        sum.each_ns += self.each_ns.get() as f64;
    }
}

impl Cell {
    fn add_to(&self, sum: &mut PairSeen) {
        sum.looks += self.looks.get();
        sum.hits += self.hits.get();
        sum.lone_reads += self.lone_reads.get();
        sum.sooner_deep += self.sooner_deep.get();
        sum.mirrored_reads += self.mirrored_reads.get();
        sum.mirrored_deep += self.mirrored_deep.get();
        for kind in Kind::ALL {
            for side in Side::ALL {
                let served = &self.served[kind as usize][side as usize];
                served.add_to(&mut sum.served[kind][side]);
            }
        }
        self.latencies.add_to(&mut sum.latencies);
    }
}

impl Pair {
    /// A pair that `workers` use, under a controller.
    pub fn new(
        deep: Arc<Deep>,
        prices: CostTable,
        (nhc, bounds): (Nhc, Bounds),
        workers: u16,
    ) -> Pair {
        let small = crate::Costs::SMALL_BYTES as usize;
        let fast_ns = price_ns(&prices, Op::Read, small);
        let controller = nhc.controller(Both([fast_ns, deep.costs.small.alone_ns]));
        Pair {
            control: Mutex::new(Control {
                routing: controller.start(),
                controller,
                before: PairSeen::default(),
            }),
            deep,
            prices,
            bounds,
            generation: AtomicU64::new(0),
            next_step: AtomicU64::new(0),
            cells: (0..workers).map(|_| CachePadded::default()).collect(),
        }
    }

    /// The deep device.
    pub fn deep(&self) -> &Arc<Deep> {
        &self.deep
    }

    /// What was done since the start.
    pub fn seen(&self) -> PairSeen {
        let mut seen = PairSeen::default();
        self.cells.iter().for_each(|cell| cell.add_to(&mut seen));
        seen.worked_ns = self.worked().0;
        seen
    }

    /// How long a worker was at work since the start, on the mean.
    pub fn worked(&self) -> Nanos {
        let worked_ns = self.cells.iter().map(|cell| cell.worked_ns.get());
        Nanos(worked_ns.sum::<u64>() / self.cells.len().max(1) as u64)
    }

    /// Reads of the deep device that somebody waited for, since the start.
    pub fn deep_reads(&self) -> Reads {
        let of = |cell: &CachePadded<Cell>| {
            let served = &cell.served[Kind::Read as usize][Side::Deep as usize];
            Reads {
                count: served.count.get(),
                took_ns: served.took_ns.get() as f64,
                idle_ns: served.idle_ns.get() as f64,
                each_ns: served.each_ns.get() as f64,
            }
        };
        let cells = self.cells.iter().map(of);
        cells.fold(Reads::default(), |sum, one| sum + one)
    }

    /// What is decided now, and the controller's name.
    pub fn routing(&self) -> (Routing, &'static str) {
        let control = self.control.lock();
        let control = control.unwrap_or_else(PoisonError::into_inner);
        (control.routing, control.controller.name())
    }

    /// Lets the controller step, where its period is over and nobody else does.
    #[cold]
    fn step(&self, now: Instant) {
        let Ok(mut control) = self.control.try_lock() else {
            return;
        };
        if self.next_step.load(Relaxed) > now.0 {
            return;
        }
        let next = now + control.controller.period();
        self.next_step.store(next.0, Relaxed);
        let seen = self.seen();
        let since = seen.since(&control.before);
        control.routing = control.controller.step(now, &since);
        control.before = seen;
        self.generation.fetch_add(1, Release);
    }

    fn fast(&self, kind: Kind, len: usize) -> Cost {
        let op = match kind {
            Kind::Read => Op::Read,
            Kind::Write => Op::Write,
        };
        // Where nothing has a price, nothing is expected to take time.
        let each_ns = price_ns(&self.prices, op, len).max(1.0);
        Cost {
            alone_ns: each_ns,
            each_ns,
        }
    }
}

fn price_ns(prices: &CostTable, op: Op, len: usize) -> f64 {
    prices.price(op, len).0 as f64 / 1e3
}

/// One worker's side of a pair.
#[derive(Debug)]
pub(crate) struct Desk {
    pair: Arc<Pair>,
    worker: WorkerId,
    routing: Routing,
    generation: u64,
    rng: Rng,
    until_sample: u32,
    /// What the worker had worked when it was here last.
    worked: Option<Nanos>,
}

/// What a worker says of itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Toil {
    /// Requests that wait for it, beside the one that is executed.
    pub(crate) waiting: u32,
    /// How long it was at work since its start.
    pub(crate) worked: Nanos,
}

impl Desk {
    pub(crate) fn new(pair: Arc<Pair>, worker: WorkerId) -> Desk {
        Desk {
            routing: pair.routing().0,
            generation: 0,
            rng: Rng::with_seed(u64::from(worker.0)),
            until_sample: SAMPLE_ONE_IN,
            worked: None,
            pair,
            worker,
        }
    }

    fn cell(&self) -> &Cell {
        &self.pair.cells[self.worker.index()]
    }

    /// What is decided now.
    pub(crate) fn routing(&mut self, now: Instant) -> &Routing {
        if self.pair.next_step.load(Relaxed) <= now.0 {
            self.pair.step(now);
        }
        let generation = self.pair.generation.load(Acquire);
        if generation != self.generation {
            self.routing = self.pair.routing().0;
            self.generation = generation;
        }
        &self.routing
    }

    /// Counts what the worker has worked since it was here last, for this tenant or another.
    pub(crate) fn note(&mut self, worked: Nanos) {
        let before = self.worked.replace(worked);
        let since = before.map_or(0, |before| worked.0 - before.0);
        self.cell().worked_ns.add(since);
    }

    /// Where a request goes that either device could serve, while `waiting` others wait for the
    /// worker.
    fn request(&self, kind: Kind, len: usize, waiting: u32) -> Request {
        let pair = &*self.pair;
        let fast = pair.fast(kind, len);
        let mut deep = pair.deep.costs.of(len as u64);
        deep.alone_ns += f64::from(waiting) * pair.deep.costs.cpu_ns;
        deep.each_ns = deep.each_ns.max(pair.deep.costs.cpu_ns);
        let behind = InFlight {
            count: waiting,
            each_ns: f64::from(waiting) * fast.each_ns,
        };
        Request {
            kind,
            costs: Both([fast, deep]),
            in_flight: Both([behind, pair.deep.in_flight()]),
            bounds: pair.bounds,
        }
    }

    fn side(&mut self, choice: Choice, request: &Request) -> Side {
        let draw = self.rng.f64();
        self.routing.side(choice, request, draw)
    }

    /// Where a read goes of what both devices have.
    pub(crate) fn reads(&mut self, len: usize, toil: Toil, now: Instant) -> Side {
        self.note(toil.worked);
        let choice = self.routing(now).reads;
        let request = self.request(Kind::Read, len, toil.waiting);
        let side = self.side(choice, &request);
        self.cell().mirrored_reads.add(1);
        self.cell().mirrored_deep.add(u64::from(side == Side::Deep));
        side
    }

    /// Where a new object goes.
    pub(crate) fn news(&mut self, len: usize, waiting: u32, now: Instant) -> Side {
        let choice = self.routing(now).news;
        let request = self.request(Kind::Write, len, waiting);
        self.side(choice, &request)
    }

    /// A read of what only the fast device has; whether that is to be mirrored.
    pub(crate) fn lone_read(&mut self, len: usize, toil: Toil, now: Instant) -> bool {
        self.note(toil.worked);
        let mirror_more = self.routing(now).mirror_more;
        if self.until_sample == 1 {
            let request = self.request(Kind::Read, len, toil.waiting);
            let is_sooner = self.routing.shortest(&request) == Side::Deep;
            let sample = u64::from(SAMPLE_ONE_IN);
            self.cell().lone_reads.add(sample);
            self.cell().sooner_deep.add(sample * u64::from(is_sooner));
        }
        mirror_more
    }

    /// A read of a client's found its item, on the fast device or not.
    pub(crate) fn looked(&self, is_hit: bool) {
        self.cell().looks.add(1);
        self.cell().hits.add(u64::from(is_hit));
    }

    /// Whether the next read of the fast device is to be timed.
    pub(crate) fn is_timed(&mut self) -> bool {
        self.until_sample -= 1;
        let is_timed = self.until_sample == 0;
        if is_timed {
            self.until_sample = SAMPLE_ONE_IN;
        }
        is_timed
    }

    /// Something was done on the fast device, and took so long where that was timed, which counts
    /// for those that were not.
    pub(crate) fn did_fast(&self, kind: Kind, len: usize, took: Option<Nanos>) {
        let each_ns = self.pair.fast(kind, len).each_ns;
        let sample = f64::from(SAMPLE_ONE_IN);
        let (took_ns, expected_ns) = match took {
            Some(took) => (took.0 * u64::from(SAMPLE_ONE_IN), each_ns * sample),
            None => (0, 0.0),
        };
        let served = &self.cell().served[kind as usize][Side::Fast as usize];
        served.add(len, took_ns, expected_ns, each_ns);
        if let Some(took) = took {
            self.cell().latencies.add(took, SAMPLE_ONE_IN);
        }
    }

    /// A read of the deep device is done.
    pub(crate) fn read_deep(&self, len: usize, took: Nanos, expected_ns: f64) {
        let cost = self.pair.deep.costs.of(len as u64);
        let served = &self.cell().served[Kind::Read as usize][Side::Deep as usize];
        served.add(len, took.0, expected_ns, cost.each_ns);
        served.idle_ns.add(cost.alone_ns as u64);
        self.cell().latencies.add(took, 1);
    }

    /// Something was written to the deep device; nobody waited for it.
    pub(crate) fn wrote_deep(&self, len: usize) {
        let each_ns = self.pair.deep.costs.of(len as u64).each_ns;
        let served = &self.cell().served[Kind::Write as usize][Side::Deep as usize];
        served.each_ns.add(each_ns as u64);
        served.bytes.add(len as u64);
    }
}
