//! A profile that is wrong by a factor of two, for reads or for writes, in virtual time: what is
//! promised by measuring is kept, what is promised in device time is kept in wrong device time.
//!
//! All numbers are simulated.

mod rig;

use nyx_base::{DevicePs, Nanos};
use nyx_gate::CostTable;
use nyx_gate::cost::STEPS;
use nyx_media::Op;
use nyx_policy::Policy;
use nyx_policy::baselines::Unlimited;
use nyx_policy::sharing::limit::Leased;
use nyx_policy::sharing::qos::{self, Class, Member, Qos, Target};
use nyx_policy::sharing::share::{Settings, Share};
use nyx_policy::sharing::slowdown::{self, Slowdown, Terms};
use nyx_sim::client::Load;
use nyx_sim::modelled::Modelled;
use nyx_sim::scenario::{Outcome, Part, Scenario};

const WINDOW: Nanos = Nanos::from_millis(100);
/// How much dearer reads and writes are than they are taken for.
const WRONG: [[f64; 2]; 2] = [[2.0, 1.0], [1.0, 2.0]];

/// A device whose prices are wrong by these factors.
fn wrong(device: Modelled, [read, write]: [f64; 2]) -> Modelled {
    let ops_per_s = |op: Op, factor: f64| -> [f64; STEPS] {
        std::array::from_fn(|i| {
            let price = device.cost.price(op, 64 * (i + 1));
            1e12 / (price.0 as f64 * factor)
        })
    };
    let cost = CostTable::from_max_iops(&ops_per_s(Op::Read, read), &ops_per_s(Op::Write, write));
    Modelled { cost, ..device }
}

fn part(name: &str, value_bytes: usize, gets: f64, clients: u16, batch: usize) -> Part {
    let load = Load::uniform(1_000, value_bytes, gets, batch);
    Part::closed(name, load, clients, Nanos(300))
}

fn run(device: Modelled, parts: Vec<Part>, policy: Box<dyn Policy>, ms: u64) -> Outcome {
    let scenario = Scenario {
        device,
        parts,
        policy,
        length: Nanos::from_millis(ms),
        window: WINDOW,
        seed: 1,
    };
    scenario.run().expect("the scenario fits")
}

/// Requests of a tenant in the last `windows`.
fn ops(outcome: &Outcome, tenant: usize, windows: usize) -> f64 {
    let all = &outcome.parts[tenant].windows;
    let tail = &all[all.len() - windows..];
    tail.iter().map(|window| window.ops as f64).sum()
}

#[test]
fn slowdowns_are_equal_whatever_the_profile_says() {
    for factors in WRONG {
        let device = wrong(rig::eighth(), factors);
        let parts = [
            part("light", 1024, 1.0, 2, 1),
            part("heavy", 4096, 0.5, 4, 1),
        ];
        let alone = parts.clone().map(|part| {
            let outcome = run(device.clone(), vec![part], Box::new(Unlimited), 200);
            ops(&outcome, 0, 2) / 2.0
        });
        let policy = Slowdown::new(slowdown::Params::default(), vec![Terms::default(); 2]);
        let outcome = run(device, parts.to_vec(), Box::new(policy), 4_000);
        let slowdown = [0, 1].map(|i| alone[i] / (ops(&outcome, i, 10) / 10.0));
        println!("prices wrong by {factors:?}: slowdowns {slowdown:.3?}");
        let apart = (slowdown[0] / slowdown[1]).ln().abs().exp();
        assert!(apart < 1.06, "{factors:?}: {slowdown:?}");
    }
}

#[test]
fn a_target_is_kept_whatever_the_profile_says() {
    const TARGET: Nanos = Nanos(2_000);
    let device = Modelled::named("optane-2dimm").expect("a preset");
    let open = |name: &str, value_bytes: usize, gets: f64, rate: f64| {
        let load = Load::uniform(2_000, value_bytes, gets, 1);
        Part {
            rate: Some(rate),
            ..Part::closed(name, load, 8, Nanos(100))
        }
    };
    for factors in WRONG {
        let parts = vec![
            open("critical", 1024, 1.0, 0.6e6),
            open("reader", 4096, 1.0, 2.4e9 / 4096.0),
            open("writer", 1024, 0.0, 1e6),
        ];
        let member = |at: usize| Member {
            name: format!("t{at}"),
            class: match at {
                0 => Class::Critical(Target::Quantile(0.99, TARGET)),
                _ => Class::BestEffort,
            },
            bounds: Default::default(),
        };
        let params = qos::Params {
            window_max: Nanos::from_millis(20),
            ..qos::Params::default()
        };
        let policy = Qos::new((0..3).map(member).collect(), params);
        let outcome = run(wrong(device.clone(), factors), parts, Box::new(policy), 400);
        let p99 = outcome.parts[0].windows[3].p99_ns;
        println!("prices wrong by {factors:?}: P99 of {p99:.0} ns");
        assert!(p99 <= TARGET.0 as f64, "{factors:?}: {p99}");
    }
}

#[test]
fn shares_and_limits_are_kept_in_the_device_time_that_is_charged() {
    for factors in WRONG {
        let device = wrong(rig::eighth(), factors);
        let gets = || part("gets", 1024, 1.0, 4, 32);
        let writes = || part("writes", 1024, 0.0, 4, 8);
        let used = |outcome: &Outcome, tenant: usize, ms: u64| {
            outcome.parts[tenant].used.as_secs_f64() / Nanos::from_millis(ms).as_secs_f64()
        };
        let limit = Some(DevicePs(200_000_000_000));
        let policy = Box::new(Leased::new(vec![limit, limit]));
        let outcome = run(device.clone(), vec![gets(), writes()], policy, 300);
        for tenant in 0..2 {
            let used = used(&outcome, tenant, 300);
            assert!((used / 0.2 - 1.0).abs() < 0.02, "{factors:?}: {used}");
        }
        let policy = Box::new(Share::new(&[1.0, 1.0], Settings::default()));
        let outcome = run(device, vec![gets(), writes()], policy, 300);
        for tenant in 0..2 {
            let used = used(&outcome, tenant, 300);
            assert!(used < 0.5 * 1.01 && used > 0.3, "{factors:?}: {used}");
        }
    }
}
