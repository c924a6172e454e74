//! Weights on a device that works at several requests at once, under clients that wait for their
//! answers: what each of them gets, and what is left lying.
//!
//! All numbers are simulated.

use nyx_base::{CachePadded, Clock, Instant, Latencies, Nanos, TenantId, WorkerId};
use nyx_engine::control::{Controller, Governed};
use nyx_gate::{Account, Budget, CostTable, Device, Gate, Tolls, Usage};
use nyx_media::Mapped;
use nyx_media::model::block::{BlockModel, BlockParams};
use nyx_policy::mechanism::queueing::Reads;
use nyx_policy::plan::{Kind, Member, Plan, Terms, Who};
use nyx_policy::sharing::share::{Gauge, Settings};
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const LEN: usize = 8000;
/// From an answer to the next request.
const THINK: Nanos = Nanos::from_micros(20);
const LENGTH: Nanos = Nanos::from_secs(4);

#[derive(Default)]
struct VirtualClock(AtomicU64);

impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        Instant(self.0.load(Relaxed))
    }

    fn spin_until(&self, _until: Instant) {}
}

/// A tenant and its clients.
#[derive(Clone, Copy, Debug)]
struct Part {
    weight: f64,
    clients: usize,
    /// From an answer to the next request, beside [`THINK`].
    think: Nanos,
}

fn part(weight: f64, clients: usize) -> Part {
    Part {
        weight,
        clients,
        think: Nanos::ZERO,
    }
}

struct Tenant {
    account: Arc<CachePadded<Account>>,
    budget: Arc<Budget>,
    reads: Cell<Reads>,
    device: Arc<Device>,
}

impl Governed for Tenant {
    fn usage(&self) -> Usage {
        self.account.usage()
    }

    fn add_latencies(&self, _sum: &mut Latencies) {}

    fn budget(&self) -> &Budget {
        &self.budget
    }

    fn cost(&self) -> &CostTable {
        &self.device.cost
    }

    fn reads(&self) -> Option<Reads> {
        Some(self.reads.get())
    }
}

struct Plant {
    params: BlockParams,
    model: RefCell<BlockModel>,
    tenants: Vec<Tenant>,
    tolls: Tolls,
    clock: Arc<VirtualClock>,
    parts: Vec<Part>,
    /// How much later than it may a held client comes back.
    late: Nanos,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Tick,
    Asks { tenant: usize },
    Done { tenant: usize, since: Instant },
}

impl Plant {
    /// A device that takes `slower` times as long as its prices say.
    fn new(parts: &[Part], slower: f64) -> Plant {
        let params = BlockParams::preset("sata-flash/8").expect("a preset");
        let mut model = BlockModel::new(params.clone(), 7);
        model.slow_down(slower);
        let per_s = |step: usize| params.per_second(false, 64 << step);
        let rates = std::array::from_fn(per_s);
        let device = Arc::new(Device {
            name: "deep".into(),
            media: Arc::new(Mapped::anonymous(1 << 16).expect("memory")),
            cost: CostTable::from_max_iops(&rates, &rates),
        });
        let clock = Arc::new(VirtualClock::default());
        let mut tolls = Tolls::new(WorkerId(0), clock.clone());
        tolls.hold_at_least(Nanos::from_micros(50));
        let tenant = |at: usize| {
            let (account, budget) = (Arc::default(), Arc::new(Budget::unlimited()));
            let id = TenantId(at as u16);
            tolls.open(
                id,
                device.clone(),
                Arc::clone(&account),
                Arc::clone(&budget),
            );
            Tenant {
                account,
                budget,
                reads: Cell::default(),
                device: device.clone(),
            }
        };
        Plant {
            tenants: (0..parts.len()).map(tenant).collect(),
            params,
            model: model.into(),
            tolls,
            clock,
            parts: parts.to_vec(),
            late: Nanos::from_micros(60),
        }
    }

    fn plan(&self) -> Plan {
        let member = |(at, part): (usize, &Part)| Member {
            name: at.to_string(),
            who: Who::Tenant(at),
            terms: Terms {
                weight: part.weight,
                ..Terms::default()
            },
        };
        Plan {
            kind: Kind::Share(Settings {
                gauge: Gauge::Told,
                ..Settings::default()
            }),
            members: self.parts.iter().enumerate().map(member).collect(),
        }
    }

    fn done(&self, tenant: usize, took: Nanos) {
        let read = Reads {
            count: 1,
            took_ns: took.0 as f64,
            idle_ns: self.params.alone_ns(false, LEN as u64),
            each_ns: 1e9 / self.params.per_second(false, LEN as u64),
        };
        let reads = &self.tenants[tenant].reads;
        reads.set(reads.get() + read);
    }

    /// A client that asks: when something becomes of it, and what.
    fn ask(&mut self, now: Instant, tenant: usize) -> (Instant, Event) {
        let mut lane = self.tolls.lane(TenantId(tenant as u16));
        match lane.gate(now) {
            Gate::Closed { until } => (until.max(now) + self.late, Event::Asks { tenant }),
            Gate::Open => {
                lane.read(0, &mut [0; LEN]);
                let done = self.model.borrow_mut().submit(now, false, LEN as u64);
                (done, Event::Done { tenant, since: now })
            }
        }
    }

    /// Under the weights, or under nobody: what each tenant has of the device in the second half of
    /// the time.
    fn run(mut self, is_divided: bool) -> Vec<f64> {
        let plans = if is_divided {
            vec![self.plan()]
        } else {
            vec![]
        };
        let policy = Plan::build(&plans, self.parts.len());
        let mut controller = Controller::new(policy, self.parts.len());
        let mut events = BinaryHeap::new();
        events.push(Reverse((Instant(1_000_000), Event::Tick)));
        for tenant in 0..self.parts.len() {
            for at in 0..self.parts[tenant].clients {
                let first = Instant(1_000_000 + 10_000 * at as u64);
                events.push(Reverse((first, Event::Asks { tenant })));
            }
        }
        let half = Instant(1_000_000 + LENGTH.0 / 2);
        let end = half + Nanos(LENGTH.0 / 2);
        let mut before = Vec::new();
        while let Some(Reverse((now, event))) = events.pop() {
            if now >= half && before.is_empty() {
                before = self.used_s();
            }
            if now >= end {
                break;
            }
            self.clock.0.store(now.0, Relaxed);
            let next = match event {
                Event::Tick => (now + controller.tick(now, self.tenants.iter()), Event::Tick),
                Event::Asks { tenant } => self.ask(now, tenant),
                Event::Done { tenant, since } => {
                    self.done(tenant, now.since(since));
                    let think = THINK + self.parts[tenant].think;
                    (now + think, Event::Asks { tenant })
                }
            };
            events.push(Reverse(next));
        }
        let after = self.used_s();
        let pairs = before.into_iter().zip(after);
        pairs
            .map(|(before, after)| (after - before) / (LENGTH.as_secs_f64() / 2.0))
            .collect()
    }

    /// Seconds of the device that each has used.
    fn used_s(&self) -> Vec<f64> {
        let used = |one: &Tenant| one.usage().used().as_secs_f64();
        self.tenants.iter().map(used).collect()
    }
}

/// By which factor each is slower than alone.
fn slowdowns(parts: &[Part], slower: f64, shares: &[f64]) -> Vec<f64> {
    let alone = |part: &Part| Plant::new(&[*part], slower).run(false)[0];
    let pairs = parts.iter().zip(shares);
    pairs.map(|(part, share)| alone(part) / share).collect()
}

fn sum(shares: &[f64]) -> f64 {
    shares.iter().sum()
}

/// As many as the device does at once, and more; the device as it was profiled, and slower; workers
/// that are late after a hold by less than an access takes, and by ten.
#[test]
fn who_want_more_than_there_is_have_their_weights() {
    for (slower, late_us) in [(1.0, 60), (1.27, 60), (1.0, 1500)] {
        for clients in [16, 32, 64] {
            let parts = [part(3.0, clients), part(1.0, clients)];
            let free = sum(&Plant::new(&parts, slower).run(false));
            let mut plant = Plant::new(&parts, slower);
            plant.late = Nanos::from_micros(late_us);
            let shares = plant.run(true);
            let what = format!("{clients} each x{slower}: {shares:?}, {free:.3} without weights");
            let ratio = shares[0] / shares[1];
            assert!((ratio - 3.0).abs() < 0.15, "{ratio:.2} {what}");
            assert!(sum(&shares) > 0.97 * free, "{what}");
            let slowdowns = slowdowns(&parts, slower, &shares);
            assert!(
                slowdowns[0] < 1.38 && slowdowns[1] < 4.15,
                "{slowdowns:?} {what}"
            );
        }
    }
}

#[test]
fn three_divide_a_device_too() {
    let parts = [part(3.0, 48), part(2.0, 48), part(1.0, 48)];
    let shares = Plant::new(&parts, 1.0).run(true);
    for (one, weight) in shares.iter().zip([3.0, 2.0, 1.0]) {
        let part = one / sum(&shares);
        assert!((part - weight / 6.0).abs() < 0.02, "{shares:?}");
    }
}

/// Who asks for little leaves the rest to the others, as long as it fares no worse than with its
/// part of the time.
#[test]
fn what_is_idle_is_lent_and_the_owner_keeps_its_part() {
    let slow = Part {
        think: Nanos::from_millis(20),
        ..part(3.0, 8)
    };
    let first = [2, 4, 8].map(|clients| [part(3.0, clients), part(1.0, 64)]);
    for parts in first
        .into_iter()
        .chain([[slow, part(1.0, 64)], [part(3.0, 64), part(1.0, 8)]])
    {
        let free = sum(&Plant::new(&parts, 1.0).run(false));
        let shares = Plant::new(&parts, 1.0).run(true);
        let slowdowns = slowdowns(&parts, 1.0, &shares);
        let what = format!("{parts:?}: {shares:?} {slowdowns:?}, {free:.3} without weights");
        assert!(slowdowns[0] < 1.38 && slowdowns[1] < 4.15, "{what}");
        assert!(sum(&shares) > 0.85 * free, "{what}");
    }
}

#[test]
fn nobody_is_held_where_there_is_enough_for_all() {
    for clients in [2, 4] {
        let parts = [part(3.0, clients), part(1.0, clients)];
        let free = Plant::new(&parts, 1.0).run(false);
        let shares = Plant::new(&parts, 1.0).run(true);
        for (free, one) in free.iter().zip(&shares) {
            assert!(*one > 0.98 * free, "{free:?} {shares:?}");
        }
    }
}
