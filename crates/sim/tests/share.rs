//! Proportional sharing on a modelled device in virtual time (NyxCache section 4.5): what the cells
//! of figures 10 and 11, which are scenario files (`config/scenarios`), do not have.
//!
//! All numbers are simulated.

mod rig;

use nyx_base::Nanos;
use nyx_policy::Policy;
use nyx_policy::baselines::OpRate;
use nyx_policy::mechanism::alone;
use nyx_policy::sharing::limit::Epoch;
use nyx_policy::sharing::share::{Donation, Settings, Share, Steps};
use nyx_sim::client::Load;
use nyx_sim::scenario::{Outcome, Part};

const LENGTH: Nanos = Nanos::from_millis(700);
const WINDOW: Nanos = Nanos::from_millis(20);
/// Left out at the begin: limits are found meanwhile.
const SETTLING: usize = 10;

fn part(name: &str, value_bytes: usize, gets: f64, clients: u16, batch: usize) -> Part {
    let load = Load::uniform(1_000, value_bytes, gets, batch);
    Part::closed(name, load, clients, Nanos(300))
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
        ..Settings::default()
    };
    Box::new(Share::new(weights, settings))
}

/// Requests per second of a tenant after limits were found.
fn ops_per_s(outcome: &Outcome, tenant: usize) -> f64 {
    let windows = &outcome.parts[tenant].windows[SETTLING..];
    let ops: u64 = windows.iter().map(|window| window.ops).sum();
    ops as f64 / (WINDOW.as_secs_f64() * windows.len() as f64)
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
    // Beside the writer it cannot use all of its two thirds; what it leaves is lent again later.
    assert!(used(1, begins + 1) < 0.36, "{}", used(1, begins + 1));
    for window in begins + 1..begins + 5 {
        assert!(used(0, window) > 0.47, "{window}: {}", used(0, window));
    }
}

#[test]
fn a_limit_on_operations_holds_though_it_is_made_of_device_time() {
    let limit = 100_000.0;
    let parts = vec![part("mixed", 1024, 0.7, 4, 8), reader()];
    let outcome = run(parts, Box::new(OpRate::new(vec![Some(limit), None])));
    let per_s = ops_per_s(&outcome, 0);
    assert!((per_s / limit - 1.0).abs() < 0.03, "{per_s}");
}
