//! Fair slowdown (NyxCache section 4.4) in virtual time: true slowdowns, computed from separate
//! runs of each tenant alone on the same device with the same seed, are held against each other.
//!
//! The cells of Fig. 9 are scenario files (`config/scenarios`); here is what they do not have.
//!
//! All numbers are simulated.

mod rig;

use nyx_base::Nanos;
use nyx_policy::Policy;
use nyx_policy::baselines::Unlimited;
use nyx_policy::sharing::slowdown::{self, Slowdown, Terms};
use nyx_sim::client::Load;
use nyx_sim::scenario::{Outcome, Part};

const WINDOW: Nanos = Nanos::from_millis(100);
/// Long enough for a speed: tens of thousands of requests.
const ALONE: Nanos = Nanos::from_millis(200);
/// Long enough to measure, to converge, and to be looked at for a while.
const LENGTH: Nanos = Nanos::from_millis(3_500);
/// The windows at the end that are looked at: the last second.
const TAIL: usize = 10;

fn part(name: &str, gets: f64, value_bytes: usize, clients: u16) -> Part {
    let load = Load::uniform(1_000, value_bytes, gets, 1);
    Part::closed(name, load, clients, Nanos(300))
}

fn light() -> Part {
    part("light", 1.0, 1024, 2)
}

fn run(parts: &[Part], policy: Box<dyn Policy>, length: Nanos, seed: u64) -> Outcome {
    rig::run(parts.to_vec(), policy, [length, WINDOW], seed)
}

/// Requests per second of each part in the last `windows`.
fn speeds(outcome: &Outcome, windows: usize) -> Vec<f64> {
    let speed = |part: &nyx_sim::scenario::PartOutcome| {
        let tail = &part.windows[part.windows.len() - windows..];
        tail.iter().map(|window| window.ops).sum::<u64>() as f64
            / (windows as f64 * WINDOW.as_secs_f64())
    };
    outcome.parts.iter().map(speed).collect()
}

/// Requests per second of each part when it has the device for itself.
fn speeds_alone(parts: &[Part], seed: u64) -> Vec<f64> {
    let windows = (ALONE.0 / WINDOW.0) as usize;
    let one = |part: &Part| {
        let part = std::slice::from_ref(part);
        speeds(&run(part, Box::new(Unlimited), ALONE, seed), windows)[0]
    };
    parts.iter().map(one).collect()
}

/// True slowdowns in the last `windows` of a run.
fn slowdowns(alone: &[f64], outcome: &Outcome, windows: usize) -> Vec<f64> {
    let each = alone.iter().zip(speeds(outcome, windows));
    each.map(|(alone, shared)| alone / shared).collect()
}

fn unfairness(slowdowns: &[f64]) -> f64 {
    let most = slowdowns.iter().fold(f64::MIN, |a, &b| a.max(b));
    let least = slowdowns.iter().fold(f64::MAX, |a, &b| a.min(b));
    most / least
}

fn fair(tenants: usize) -> Box<dyn Policy> {
    let terms = vec![Terms::default(); tenants];
    Box::new(Slowdown::new(slowdown::Params::default(), terms))
}

#[test]
fn four_tenants_that_differ_a_hundredfold_become_fair() {
    let parts = [
        part("one", 1.0, 256, 1),
        light(),
        part("mixed", 0.5, 1024, 4),
        part("writer", 0.0, 4096, 8),
    ];
    let outcome = run(&parts, fair(4), Nanos::from_millis(6_000), 1);
    let slowdowns = slowdowns(&speeds_alone(&parts, 1), &outcome, TAIL);
    println!(
        "four tenants: {:.3} {slowdowns:.3?}",
        unfairness(&slowdowns)
    );
    assert!(unfairness(&slowdowns) <= 1.05, "{slowdowns:.3?}");
}

/// Fig. 12b: one tenant is critical, and slowed by half at most.
#[test]
fn a_hard_limit_of_the_slowdown_holds() {
    let parts = [light(), part("heavy", 0.5, 4096, 8)];
    let critical = Terms {
        slowdown_most: Some(1.5),
        ..Terms::default()
    };
    let terms = vec![critical, Terms::default()];
    let policy = Slowdown::new(slowdown::Params::default(), terms);
    let outcome = run(&parts, Box::new(policy), LENGTH, 1);
    let slowdowns = slowdowns(&speeds_alone(&parts, 1), &outcome, TAIL);
    println!("hard limit 1.5: {slowdowns:.3?}");
    assert!(slowdowns[0] < 1.5, "{slowdowns:.3?}");
    // What the critical one does not need is not withheld from the other.
    assert!(slowdowns[0] > 1.3, "{slowdowns:.3?}");
}

#[test]
fn the_papers_steps_come_near() {
    let parts = [light(), part("heavy", 0.5, 4096, 8)];
    let policy = Slowdown::new(slowdown::Params::paper(), vec![Terms::default(); 2]);
    let outcome = run(&parts, Box::new(policy), Nanos::from_millis(5_000), 1);
    let slowdowns = slowdowns(&speeds_alone(&parts, 1), &outcome, TAIL);
    println!("paper: {:.3} {slowdowns:.3?}", unfairness(&slowdowns));
    // From 16 without control. It hunts: a step of 2 % of the device is 4 % of what each has, one
    // run of 1 ms is all that it knows, and it loosens limits that fairness needs.
    assert!(unfairness(&slowdowns) < 1.15, "{slowdowns:.3?}");
}
