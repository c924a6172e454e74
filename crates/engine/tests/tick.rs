//! What a tick costs, by what it touches: of a thousand tenants it reads the latencies of a few.
//! Counts are the same on every machine.
//!
//! What it never does: measure time.

use nyx_base::{DevicePs, Instant, Latencies, LatencyCounter, Nanos};
use nyx_engine::control::{Controller, Governed};
use nyx_gate::{Budget, CostTable, DELAY_INFINITE, Usage};
use nyx_policy::Policy;
use nyx_policy::mechanism::alone::Clients;
use nyx_policy::sharing::share::{Settings, Share};
use nyx_policy::sharing::slowdown::{Params, Slowdown, Terms};
use std::cell::Cell;

const TENANTS: usize = 1000;
const TICKS: usize = 400;
/// The most tenants whose latencies one tick may read.
const READS_MOST: u64 = 128;

/// A tenant that always does something, and counts how often its latencies were read.
struct Busy {
    usage: Cell<Usage>,
    latencies: LatencyCounter,
    reads: Cell<u64>,
    budget: Budget,
    cost: CostTable,
}

impl Busy {
    fn new() -> Busy {
        Busy {
            usage: Cell::default(),
            latencies: LatencyCounter::default(),
            reads: Cell::default(),
            budget: Budget::unlimited(),
            cost: CostTable::from_max_iops(&[1e6; _], &[1e6; _]),
        }
    }

    /// A tick's length of work: half of an equal part of the device, or half as much again and
    /// held.
    fn run(&self, length: Nanos, is_greedy: bool) {
        let half_ps = length.0 * 1000 / TENANTS as u64 / 2;
        let reads = 20 + length.0 / 100_000;
        let more = Usage {
            read_used: DevicePs(if is_greedy { 3 * half_ps } else { half_ps }),
            reads,
            read_bytes: reads * 1024,
            holds: u64::from(is_greedy),
            ..Usage::default()
        };
        self.usage.set(self.usage.get() + more);
        self.latencies.add(Nanos(20_000), reads as u32);
    }
}

impl Governed for Busy {
    fn usage(&self) -> Usage {
        self.usage.get()
    }

    fn add_latencies(&self, sum: &mut Latencies) {
        self.reads.set(self.reads.get() + 1);
        self.latencies.add_to(sum);
    }

    fn budget(&self) -> &Budget {
        &self.budget
    }

    fn cost(&self) -> &CostTable {
        &self.cost
    }
}

/// Ticks of a policy: in none, stand-alone runs included, are more read than may be, and nobody is
/// forgotten.
fn few_are_read(policy: Box<dyn Policy>) {
    let name = policy.name();
    let tenants: Vec<Busy> = (0..TENANTS).map(|_| Busy::new()).collect();
    let mut controller = Controller::new(policy, TENANTS);
    let (mut now, mut reads, mut paused) = (Instant(1_000_000_000), 0, 0);
    for tick in 0..TICKS {
        let period = controller.tick(now, tenants.iter());
        let all: u64 = tenants.iter().map(|tenant| tenant.reads.get()).sum();
        let new = all - std::mem::replace(&mut reads, all);
        assert!(new <= READS_MOST, "{name}: {new} were read in tick {tick}");
        let is_paused = |one: &&Busy| one.budget.delay_units() == DELAY_INFINITE;
        paused += usize::from(tenants.iter().any(|one| is_paused(&one)));
        for (at, one) in tenants.iter().enumerate() {
            one.run(period, at % 2 == 1);
        }
        now += period;
    }
    assert!(paused > 0, "{name}: nobody ran alone");
    let least = tenants.iter().map(|one| one.reads.get()).min();
    assert!(
        least > Some(10),
        "{name}: somebody was read {least:?} times"
    );
}

#[test]
fn of_a_thousand_tenants_no_tick_of_share_reads_many() {
    few_are_read(Box::new(Share::new(&[1.0; TENANTS], Settings::default())));
}

#[test]
fn of_a_thousand_tenants_no_tick_of_slowdown_reads_many() {
    let terms = Terms {
        clients: Clients::Open,
        ..Terms::default()
    };
    let policy = Slowdown::new(Params::default(), vec![terms; TENANTS]);
    few_are_read(Box::new(policy));
}
