//! Proportional sharing on a modelled device in virtual time (NyxCache section 4.5, Fig. 10 and
//! 11): weights are kept in device time where bytes are not, and what is idle is lent as long as
//! the lender stays within its time-sharing bound.
//!
//! All numbers are simulated. What a tenant does alone comes from runs of its own.

mod rig;

use nyx_base::Nanos;
use nyx_media::Op;
use nyx_policy::Policy;
use nyx_policy::baselines::{ByteRate, OpRate, StaticPartition, Unlimited};
use nyx_policy::mechanism::alone;
use nyx_policy::sharing::limit::Epoch;
use nyx_policy::sharing::share::{Donation, Settings, Share, Steps};
use nyx_sim::client::Load;
use nyx_sim::scenario::{Outcome, Part, WindowOutcome};

const LENGTH: Nanos = Nanos::from_millis(700);
const WINDOW: Nanos = Nanos::from_millis(20);
/// Left out at the begin: limits are found meanwhile.
const SETTLING: usize = 10;

fn part(name: &str, value_bytes: usize, gets: f64, clients: u16, batch: usize) -> Part {
    let load = Load::uniform(1_000, value_bytes, gets, batch);
    Part::closed(name, load, clients, Nanos(300))
}

/// Takes a quarter of two thirds of the device, by an open loop.
fn light() -> Part {
    let cost = rig::eighth().cost;
    let (value_bytes, batch) = (1024, 16);
    let max_per_s = 1e12 / cost.price(Op::Read, value_bytes).0 as f64;
    Part {
        rate: Some(max_per_s * (2.0 / 3.0) * 0.25 / batch as f64),
        ..part("light", value_bytes, 1.0, 2, batch)
    }
}

fn writer() -> Part {
    part("writer", 256, 0.0, 4, 1)
}

fn reader() -> Part {
    part("reader", 4096, 1.0, 2, 1)
}

fn run(parts: Vec<Part>, policy: Box<dyn Policy>) -> Outcome {
    rig::run(parts, policy, [LENGTH, WINDOW], 1)
}

fn share(weights: &[f64], donation: Donation, steps: Steps) -> Box<dyn Policy> {
    let settings = Settings {
        donation,
        steps,
        epoch: Epoch {
            tick: Nanos::from_millis(1),
            ticks: 10,
        },
        // More often than by default, because these runs are short.
        alone: alone::Params {
            paused_most: 0.05,
            ..alone::Params::default()
        },
    };
    Box::new(Share::new(weights, settings))
}

/// Operations, share of device time and mean latency of one tenant.
#[derive(Clone, Copy, Debug)]
struct Figures {
    ops: f64,
    used: f64,
    mean_ns: f64,
}

/// What a tenant did after limits were found.
fn tenant(outcome: &Outcome, tenant: usize) -> Figures {
    let windows = &outcome.parts[tenant].windows[SETTLING..];
    let sum = |of: fn(&WindowOutcome) -> f64| windows.iter().map(of).sum::<f64>();
    let ops = sum(|window| window.ops as f64);
    let length_s = WINDOW.as_secs_f64() * windows.len() as f64;
    Figures {
        ops,
        used: sum(|window| window.used.as_secs_f64()) / length_s,
        mean_ns: sum(|window| window.mean_ns * window.ops as f64) / ops,
    }
}

/// Fig. 10a: A reads, B writes, both all they can.
#[test]
fn weights_are_kept_in_device_time_where_bytes_are_not() {
    let parts = [
        part("gets", 1024, 1.0, 4, 32),
        part("writes", 1024, 0.0, 4, 8),
    ];
    let alone = |part: Part| tenant(&run(vec![part], Box::new(Unlimited)), 0);
    let alone = parts.clone().map(alone);
    let cost = rig::eighth().cost;
    let max_bytes_per_s = 4096.0 * 1e12 / cost.price(Op::Read, 4096).0 as f64;
    for weights in [[1.0, 3.0], [1.0, 1.0], [3.0, 1.0]] {
        let entitled = weights.map(|weight| weight / (weights[0] + weights[1]));
        let under = |policy| {
            let outcome = run(parts.to_vec(), policy);
            [0, 1].map(|i| tenant(&outcome, i))
        };
        // A part of 1 is what the weight is of the performance alone.
        let of_ideal = |found: &[Figures; 2], i: usize| found[i].ops / alone[i].ops / entitled[i];
        let shared = under(share(&weights, Donation::Aware, Steps::Adaptive));
        for i in 0..2 {
            let of_ideal = of_ideal(&shared, i);
            assert!(of_ideal > 0.97, "{weights:?}, {i}: {of_ideal}, {shared:?}");
            let most = entitled[i] * 1.01;
            assert!(shared[i].used < most, "{weights:?}, {i}: {shared:?}");
        }
        let limits = entitled.map(|part| Some(part * max_bytes_per_s));
        let bytes = under(Box::new(ByteRate::new(limits.to_vec())));
        if weights[0] >= weights[1] {
            let gets = of_ideal(&bytes, 0);
            assert!(gets < 0.9, "{weights:?}: {gets}, {bytes:?}");
            assert!(bytes[1].used > 1.15 * entitled[1], "{weights:?}: {bytes:?}");
        }
    }
}

/// Fig. 11: A has two thirds and leaves three quarters of that idle; B writes.
#[test]
fn a_writer_is_lent_what_the_lender_can_bear() {
    let alone = tenant(&run(vec![light()], Box::new(Unlimited)), 0);
    let weights = [2.0, 1.0];
    let beside_writer = |policy| {
        let outcome = run(vec![light(), writer()], policy);
        let (a, b) = (tenant(&outcome, 0), tenant(&outcome, 1));
        (alone.mean_ns / a.mean_ns, b)
    };
    let (kept, without) = beside_writer(Box::new(StaticPartition::new(&weights)));
    assert!(kept > 2.0 / 3.0, "without donation: {kept}");
    let (kept, naive) = beside_writer(share(&weights, Donation::Naive, Steps::Adaptive));
    assert!(kept < 0.5, "naive: {kept}");
    assert!(naive.ops > 2.0 * without.ops, "{naive:?}, {without:?}");
    let (kept, aware) = beside_writer(share(&weights, Donation::Aware, Steps::Adaptive));
    println!(
        "aware: {kept:.3}, {:.2} times the operations",
        aware.ops / without.ops
    );
    assert!(kept > 2.0 / 3.0, "aware: {kept}");
    assert!(aware.ops > 1.1 * without.ops, "{aware:?}, {without:?}");
    // As printed there is no margin: it walks about the bound.
    let paper = Steps::Paper { donate_step: 0.1 };
    let (kept, paper) = beside_writer(share(&weights, Donation::Aware, paper));
    println!(
        "paper: {kept:.3}, {:.2} times the operations",
        paper.ops / without.ops
    );
    assert!(kept > 0.6, "paper: {kept}");
    assert!(paper.ops > 1.1 * without.ops, "{paper:?}, {without:?}");
}

/// Fig. 11: the same, but B reads.
#[test]
fn a_reader_is_lent_as_much_as_without_care() {
    let alone = tenant(&run(vec![light()], Box::new(Unlimited)), 0);
    let beside_reader = |donation| {
        let policy = share(&[2.0, 1.0], donation, Steps::Adaptive);
        let outcome = run(vec![light(), reader()], policy);
        let (a, b) = (tenant(&outcome, 0), tenant(&outcome, 1));
        assert!(alone.mean_ns / a.mean_ns > 2.0 / 3.0, "{donation:?}: {a:?}");
        b
    };
    let (naive, aware) = (
        beside_reader(Donation::Naive),
        beside_reader(Donation::Aware),
    );
    println!("a reader: {:.3} of naive", aware.ops / naive.ops);
    assert!(aware.ops > 0.97 * naive.ops, "{aware:?}, {naive:?}");
    assert!(aware.used > 0.6, "{aware:?}");
}

#[test]
fn who_comes_back_has_its_part_within_an_epoch() {
    let begins = 12;
    let late = Part {
        active: Nanos(WINDOW.0 * begins as u64)..Nanos(u64::MAX),
        ..part("late", 1024, 1.0, 4, 32)
    };
    let policy = share(&[2.0, 1.0], Donation::Aware, Steps::Adaptive);
    let outcome = run(vec![late, part("writer", 1024, 0.0, 4, 8)], policy);
    let used = |tenant: usize, window: usize| {
        let window = &outcome.parts[tenant].windows[window];
        window.used.as_secs_f64() / WINDOW.as_secs_f64()
    };
    assert!(used(1, begins - 1) > 0.95, "{}", used(1, begins - 1));
    for window in begins + 1..begins + 5 {
        let (late, writer) = (used(0, window), used(1, window));
        assert!(late > 0.5 && writer < 0.36, "{window}: {late}, {writer}");
    }
}

#[test]
fn a_limit_on_operations_holds_though_it_is_made_of_device_time() {
    let limit = 100_000.0;
    let parts = vec![part("mixed", 1024, 0.7, 4, 8), reader()];
    let outcome = run(parts, Box::new(OpRate::new(vec![Some(limit), None])));
    let per_s = tenant(&outcome, 0).ops
        / (WINDOW.as_secs_f64() * (LENGTH.0 / WINDOW.0 - SETTLING as u64) as f64);
    assert!((per_s / limit - 1.0).abs() < 0.03, "{per_s}");
}
