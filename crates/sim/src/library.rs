//! A scenario at the level of the Nyx library, as the paper's own evaluation is (NyxCache section
//! 4): each client is a thread that passes its tenant's gate and then loads or stores, without a
//! protocol, an index or a store. The device is the event model, so that tails may be claimed.
//!
//! Gate, accounts, budgets and policies are the server's own; the medium behind the lanes is a
//! `Nowhere`, because the event model moves no bytes. A client does its batches as in
//! [`crate::scenario`]: their operations overlap as far as the thread's window lets them, and the
//! next batch begins when all have arrived. Latencies are those of single operations, from when the
//! thread wanted to begin them, or in an open loop from when their batch was due.
//!
//! What it never does: block a thread where its gate is closed (it is parked, and asks again), or
//! know what a policy does. The same seed gives the same trace, on any machine. Numbers from here
//! are *simulated*.

use crate::client::Done;
use crate::clock::VirtualClock;
use crate::scenario::{HOLD_MOST, Outcome, Part, PartOutcome, Reading, Scenario, WindowOutcome};
use nyx_base::{
    CachePadded, Clock, Instant, Latencies, LatencyCounter, Nanos, Rng, TenantId, WorkerId,
};
use nyx_engine::control::{Controller, Governed};
use nyx_gate::{Account, Budget, CostTable, Device, Gate, Lane, Tolls, Usage};
use nyx_media::model::TICKS_PER_NS;
use nyx_media::model::event::{self, Kind, Next, Threads};
use nyx_media::{Evidence, Front, Media, Op, Via};
use nyx_policy::baselines::Unlimited;
use std::sync::Arc;

/// Bytes that are never looked at: what lanes copy to and from where time alone is modelled.
#[derive(Debug)]
struct Nowhere;

impl Media for Nowhere {
    fn len(&self) -> u64 {
        u64::MAX
    }

    fn read(&self, _front: &mut Front, _at: u64, _into: &mut [u8]) {}

    fn write(&self, _front: &mut Front, _at: u64, _from: &[u8], _via: Via) {}

    fn persist(&self, _front: &mut Front, _at: u64, _len: u64) {}

    fn prefetch(&self, _at: u64, _len: usize) {}

    fn evidence(&self) -> Evidence {
        Evidence::Simulated
    }
}

/// A tenant: what the controller reads of it and writes for it.
struct Tenant {
    account: Arc<CachePadded<Account>>,
    budget: Arc<Budget>,
    latencies: LatencyCounter,
    device: Arc<Device>,
}

impl Governed for Tenant {
    fn usage(&self) -> Usage {
        self.account.usage()
    }

    fn add_latencies(&self, sum: &mut Latencies) {
        self.latencies.add_to(sum);
    }

    fn budget(&self) -> &Budget {
        &self.budget
    }

    fn cost(&self) -> &CostTable {
        &self.device.cost
    }
}

impl Tenant {
    fn new(device: Arc<Device>) -> Tenant {
        Tenant {
            account: Arc::new(CachePadded(Account::default())),
            budget: Arc::new(Budget::unlimited()),
            latencies: LatencyCounter::default(),
            device,
        }
    }

    fn reading(&self) -> Reading {
        let mut latencies = Latencies::default();
        self.latencies.add_to(&mut latencies);
        Reading {
            usage: self.account.usage(),
            latencies,
        }
    }
}

/// An operation that a client wants to begin.
#[derive(Clone, Copy)]
struct Wanted {
    op: Op,
    key: u64,
    /// From when its latency counts.
    since: u64,
    /// The gate let it pass; it begins when its delay is over.
    is_let_in: bool,
}

/// One thread. Times in ticks of the model.
struct Client {
    tenant: usize,
    part: usize,
    of: Part,
    think: u64,
    /// Batches a second of this client alone, where it is an open loop.
    rate: Option<f64>,
    tolls: Tolls,
    rng: Rng,
    /// When the batch in hand was due, and when it may begin.
    due: u64,
    begins: u64,
    /// Operations of the batch that are still to begin, and those that are under way.
    left: usize,
    under_way: usize,
    wanted: Option<Wanted>,
    done: Done,
}

fn ticks_of(ns: u64) -> u64 {
    ns.saturating_mul(TICKS_PER_NS)
}

/// Rounded up, so that nobody asks a gate before its time.
fn instant_of(ticks: u64) -> Instant {
    Instant(ticks.div_ceil(TICKS_PER_NS))
}

impl Client {
    fn new(part: &Part, [tenant, at]: [usize; 2], index: u16, seed: u64, tolls: Tolls) -> Client {
        let batch = part.load.batch.max(1);
        let begin = ticks_of(part.active.start.0);
        let mut client = Client {
            tenant,
            part: at,
            of: part.clone(),
            think: ticks_of(part.think.0),
            rate: part.rate.map(|rate| rate / f64::from(part.clients)),
            tolls,
            rng: Rng::with_seed(seed.wrapping_mul(31) ^ (u64::from(index) << 32)),
            due: begin,
            begins: begin,
            left: batch,
            under_way: 0,
            wanted: None,
            done: Done::default(),
        };
        if client.rate.is_some() {
            client.next_batch(begin);
        }
        client
    }

    /// All of the batch is done: when does the next one begin?
    fn next_batch(&mut self, now: u64) {
        let intensity = self.of.intensity(Nanos(now / TICKS_PER_NS));
        let rest = now.saturating_sub(self.begins) as f64 * (1.0 / intensity - 1.0);
        // A batch of misses takes no time; the clock must go on nevertheless.
        let rested = now + self.think.max(1);
        self.due = match self.rate {
            None => rested + rest as u64,
            Some(rate) => {
                let gap_s = -(1.0 - self.rng.f64()).ln() / (rate * intensity);
                self.due + ticks_of((gap_s * 1e9) as u64)
            }
        };
        let on = self.of.on_from(Nanos(self.due / TICKS_PER_NS));
        self.due = self.due.max(ticks_of(on.0));
        self.begins = self.due.max(rested);
        self.left = self.of.load.batch.max(1);
    }

    /// The operation to begin next; none where the rest of the batch misses.
    fn pick(&mut self, now: u64) -> Option<Wanted> {
        let since = match self.rate {
            None => now,
            Some(_) => self.due,
        };
        while self.left > 0 {
            let is_get = self.rng.f64() < self.of.load.gets;
            let among = if is_get {
                self.of.load.asked
            } else {
                self.of.load.keys
            };
            let key = self.rng.u64(..among);
            self.left -= 1;
            if key < self.of.load.keys {
                let op = if is_get { Op::Read } else { Op::Write };
                return Some(Wanted {
                    op,
                    key,
                    since,
                    is_let_in: false,
                });
            }
            self.done.ops += 1;
        }
        None
    }
}

/// All threads of a scenario, as the device asks them.
struct Library {
    clients: Vec<Client>,
    tenants: Vec<Tenant>,
    clock: Arc<VirtualClock>,
    /// When the controller ticks next.
    tick: Instant,
    bytes: Vec<u8>,
}

const TENANT: TenantId = TenantId(0);
/// The values of different tenants lie so far apart.
const TENANT_SHIFT: u32 = 44;

impl Library {
    fn new(scenario: &Scenario) -> Library {
        let clock = Arc::new(VirtualClock::default());
        let device = Arc::new(Device {
            name: "sim".into(),
            media: Arc::new(Nowhere),
            cost: scenario.device.cost.clone(),
        });
        let each = scenario.tenants().into_iter();
        let tenants: Vec<Tenant> = each.map(|_| Tenant::new(device.clone())).collect();
        let parts = scenario.placed().into_iter().enumerate();
        let threads =
            parts.flat_map(|(at, placed)| (0..placed.1.clients).map(move |_| (at, placed)));
        let clients = threads.zip(0u16..).map(|((at, (tenant, part)), index)| {
            let mut tolls = Tolls::new(WorkerId(index), clock.clone());
            let of = &tenants[tenant];
            let (account, budget) = (of.account.clone(), of.budget.clone());
            tolls.open(TENANT, device.clone(), account, budget);
            Client::new(part, [tenant, at], index, scenario.seed, tolls)
        });
        let longest = scenario
            .parts
            .iter()
            .map(|part| part.load.value_bytes)
            .max();
        Library {
            clients: clients.collect(),
            tenants,
            clock,
            tick: Instant(0),
            bytes: vec![0; longest.unwrap_or(0)],
        }
    }

    /// A thread passes its gate and begins, or asks again later.
    fn enter(&mut self, thread: usize, wanted: Wanted, now: u64) -> Next {
        let client = &mut self.clients[thread];
        let mut lane = client.tolls.lane(TENANT);
        if !wanted.is_let_in {
            let at = instant_of(now);
            self.clock.set(at);
            let (again, is_let_in) = match lane.gate(at) {
                // Later than it asked by the delay that it owed.
                Gate::Open => (self.clock.now(), true),
                // Who waits for the controller is asked again at its next tick.
                Gate::Closed { until } if until == Instant::NEVER => (self.tick, false),
                Gate::Closed { until } => (until.min(at + HOLD_MOST), false),
            };
            client.wanted = Some(Wanted {
                is_let_in,
                ..wanted
            });
            client.done.holds += u64::from(!is_let_in);
            if again > at || !is_let_in {
                return Next::At(ticks_of(again.0.max(at.0 + 1)));
            }
        }
        let bytes = &mut self.bytes[..client.of.load.value_bytes];
        let address = wanted.key * bytes.len() as u64 + ((client.tenant as u64) << TENANT_SHIFT);
        charge(&mut lane, wanted.op, address, bytes);
        client.wanted = None;
        client.under_way += 1;
        Next::Begin {
            kind: kind_of(client.part, wanted.op),
            address,
            tag: wanted.since,
        }
    }
}

fn charge(lane: &mut Lane<'_>, op: Op, address: u64, bytes: &mut [u8]) {
    match op {
        Op::Read => lane.read(address, bytes),
        Op::Write => lane.write(address, bytes),
    }
}

fn kind_of(part: usize, op: Op) -> usize {
    2 * part + usize::from(op == Op::Write)
}

impl Threads for Library {
    fn next(&mut self, thread: usize, now: u64, _rng: &mut Rng) -> Next {
        let client = &mut self.clients[thread];
        if now >= ticks_of(client.of.active.end.0) {
            return Next::Idle;
        }
        let wanted = match client.wanted {
            Some(wanted) => wanted,
            None if client.left == 0 => return Next::Idle,
            None if client.begins > now => return Next::At(client.begins),
            None => {
                let (answered, picked) = (client.done.ops, client.pick(now));
                // Misses are answered at once.
                let misses = (client.done.ops - answered) as u32;
                let latencies = &self.tenants[client.tenant].latencies;
                latencies.add(Nanos::ZERO, misses);
                match picked {
                    Some(wanted) => wanted,
                    None if client.under_way > 0 => return Next::Idle,
                    None => {
                        client.next_batch(now);
                        return Next::At(client.begins);
                    }
                }
            }
        };
        self.enter(thread, wanted, now)
    }

    fn done(&mut self, thread: usize, since: u64, now: u64) {
        let client = &mut self.clients[thread];
        client.under_way -= 1;
        client.done.ops += 1;
        client.done.hits += 1;
        let took = now - since;
        client.done.trace = client.done.trace.rotate_left(7) ^ took;
        let latencies = &self.tenants[client.tenant].latencies;
        latencies.add(Nanos(took / TICKS_PER_NS), 1);
        if client.under_way == 0 && client.left == 0 && client.wanted.is_none() {
            client.next_batch(now);
        }
    }
}

impl Scenario {
    /// Runs it beneath the engine, on the event model. See [`crate::library`].
    pub fn run_library(mut self) -> Outcome {
        let mut library = Library::new(&self);
        let kind = |part: &Part| {
            let op_bytes = part.load.value_bytes as u64;
            part.access.map(|access| Kind { access, op_bytes })
        };
        let kinds: Vec<Kind> = self.parts.iter().flat_map(kind).collect();
        let threads = library.clients.len();
        let mut device = event::Device::new(&self.device.params, &kinds, threads, self.seed);
        for (thread, client) in library.clients.iter().enumerate() {
            device.wake(thread, client.begins);
        }
        let policy = std::mem::replace(&mut self.policy, Box::new(Unlimited));
        let mut controller = Controller::new(policy, library.tenants.len());
        let windows = self.drive(&mut device, &mut library, &mut controller);
        let parts = library.tenants.iter().enumerate().map(|(at, tenant)| {
            let clients = library.clients.iter().filter(|client| client.tenant == at);
            let reading = tenant.reading();
            PartOutcome {
                done: crate::scenario::sum(clients.map(|client| client.done)),
                used: reading.usage.used(),
                windows: windows.iter().map(|window| window[at].clone()).collect(),
                latencies: reading.latencies,
            }
        });
        let parts: Vec<PartOutcome> = parts.collect();
        Outcome {
            busy: device.busy(),
            decisions: controller.decisions().cloned().collect(),
            trace: crate::scenario::trace(&parts),
            disturbance: None,
            parts,
        }
    }

    /// Moves the device from tick to tick; gives what each tenant did in each window.
    fn drive(
        &self,
        device: &mut event::Device,
        library: &mut Library,
        controller: &mut Controller,
    ) -> Vec<Vec<WindowOutcome>> {
        let read = |library: &Library| -> Vec<Reading> {
            library.tenants.iter().map(Tenant::reading).collect()
        };
        let end = Instant(self.length.0);
        let (mut before, mut windows) = (read(library), Vec::new());
        let (mut now, mut close) = (Instant(0), Instant(0) + self.window);
        while now < end {
            if library.tick <= now {
                library.tick = now + controller.tick(now, library.tenants.iter());
            }
            device.set_writers(self.writers(now));
            let phase = self.next_phase(now);
            let until = library.tick.min(close).min(phase).min(end);
            device.advance(ticks_of(until.0), library);
            now = until;
            if close <= now {
                let after = read(library);
                windows.push(Reading::windows_since(&after, &before));
                before = after;
                close += self.window;
            }
        }
        windows
    }

    /// Clients that write at that time.
    fn writers(&self, now: Instant) -> usize {
        let writes = |part: &&Part| part.load.gets < 1.0 && part.is_on(Nanos(now.0));
        let writing = self.parts.iter().filter(writes);
        writing.map(|part| usize::from(part.clients)).sum()
    }

    /// When the next tenant begins, rests or ends.
    fn next_phase(&self, now: Instant) -> Instant {
        let changes = self.parts.iter();
        let changes = changes.map(|part| part.changes_after(Nanos(now.0)).0);
        changes.min().map_or(Instant::NEVER, Instant)
    }
}
