//! Scenarios in real time on a modelled device: what holds however slow or busy the machine is.
//!
//! Numbers are emulated. No test here says how quick anything is.

mod rig;

use nyx_base::{DevicePs, Instant, Nanos};
use nyx_policy::baselines::Unlimited;
use nyx_policy::sharing::limit::Leased;
use nyx_policy::{Delay, Policy, Seen, Want};
use nyx_sim::client::Load;
use nyx_sim::scenario::{Behaviour, Outcome, Part, Plight, Scenario, ScenarioError};
use std::sync::{Arc, Mutex};

const LENGTH: Nanos = Nanos::from_millis(600);
const WINDOW: Nanos = Nanos::from_millis(50);
const BATCH: usize = 32;

fn part(name: &str, clients: u16) -> Part {
    let load = Load::uniform(1_000, 4096, 1.0, BATCH);
    Part::closed(name, load, clients, Nanos(300))
}

fn run(parts: Vec<Part>, policy: Box<dyn Policy>, threads: u16) -> Outcome {
    let scenario = Scenario {
        device: rig::eighth(),
        parts,
        policy,
        length: LENGTH,
        window: WINDOW,
        seed: 1,
    };
    let outcome = scenario.run_emulated(threads).expect("memory and threads");
    for part in &outcome.parts {
        assert_eq!(part.windows.len(), 12, "a window is missing");
        let sum = part.windows.iter().map(|window| window.used.0).sum::<u64>();
        assert!(sum <= part.used.0, "{sum} of {} in windows", part.used.0);
        let ops = part.windows.iter().map(|window| window.ops).sum::<u64>();
        assert!(ops <= part.done.ops && part.done.hits == part.done.ops);
    }
    outcome
}

fn limits(shares: &[Option<f64>]) -> Box<dyn Policy> {
    let rate = |share: &f64| DevicePs((share * 1e12) as u64);
    let rates = shares.iter().map(|share| share.as_ref().map(rate));
    Box::new(Leased::new(rates.collect()))
}

fn share(used: DevicePs) -> f64 {
    used.as_secs_f64() / LENGTH.as_secs_f64()
}

#[test]
fn more_values_than_there_is_memory_are_refused_before_anything_is_filled() {
    let load = Load::uniform(1 << 36, 4096, 1.0, BATCH);
    let scenario = Scenario {
        device: rig::eighth(),
        parts: vec![Part::closed("huge", load, 1, Nanos(300))],
        policy: Box::new(Unlimited),
        length: LENGTH,
        window: WINDOW,
        seed: 1,
    };
    let refused = scenario.run_emulated(1).expect_err("no machine holds that");
    let ScenarioError::Memory {
        asked_bytes,
        machine_bytes,
    } = refused
    else {
        panic!("{refused}");
    };
    assert!(asked_bytes >= 1 << 48 && machine_bytes < asked_bytes);
}

#[test]
fn a_limit_of_42_percent_is_kept_and_is_what_bound_the_tenant() {
    let parts = vec![part("limited", 4), part("other", 1)];
    let outcome = run(parts, limits(&[Some(0.42), None]), 2);
    let used = share(outcome.parts[0].used);
    assert!(used < 0.42 * 1.04, "{used} of the device");
    let disturbance = outcome.disturbance.expect("it was in real time");
    assert_eq!(disturbance.threads, 2);
    let waited = &disturbance.waited;
    assert!(
        waited.iter().all(|part| (0.0..=1.0).contains(part)),
        "{waited:?}"
    );
    // A thread that has no CPU cannot use what it may.
    let is_bound = used > 0.42 * 0.96 && outcome.parts[0].done.holds > 0;
    assert!(
        is_bound || disturbance.lost > 0.1,
        "{used}, {disturbance:?}"
    );
    // Charged and as the device counts it.
    let charged: f64 = outcome.parts.iter().map(|part| share(part.used)).sum();
    let busy = share(outcome.busy);
    assert!((0.9..1.1).contains(&(charged / busy)), "{charged}, {busy}");
}

/// Pauses the first tenant for ever.
struct Pause;

impl Policy for Pause {
    fn name(&self) -> &'static str {
        "pause"
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(5)
    }

    fn step(&mut self, _now: Instant, _seen: &[Seen], want: &mut [Want]) {
        want[0].delay = Delay::Infinite;
    }
}

#[test]
fn a_held_tenant_keeps_nobody_else_on_its_thread_from_going_on() {
    let outcome = run(vec![part("held", 3), part("free", 3)], Box::new(Pause), 1);
    let [held, free] = [0, 1].map(|at| outcome.parts[at].done);
    assert!(held.holds > 0 && held.ops == 0, "{held:?}");
    assert!(free.holds == 0 && free.ops > 3 * BATCH as u64, "{free:?}");
}

#[test]
fn clients_begin_batches_while_they_are_there() {
    let there = [
        Nanos::ZERO..Nanos::from_millis(300),
        Nanos::from_millis(300)..Nanos(u64::MAX),
    ];
    let begun: Arc<[Mutex<Vec<Nanos>>; 2]> = Arc::default();
    let parts = ["early", "late"].into_iter().zip(&there).enumerate();
    let parts = parts.map(|(at, (name, active))| {
        let begun = begun.clone();
        let note = move |plight: Plight| {
            let began = Nanos(plight.now.0 - plight.took.0);
            begun[at].lock().expect("no panic").push(began);
            Nanos::ZERO
        };
        Part {
            active: active.clone(),
            behaviour: Some(Behaviour::new(note)),
            ..part(name, 2)
        }
    });
    run(parts.collect(), Box::new(Unlimited), 2);
    for (there, begun) in there.iter().zip(&*begun) {
        let begun = begun.lock().expect("no panic");
        assert!(!begun.is_empty(), "nobody came in {there:?}");
        let beyond = begun
            .iter()
            .find(|at| !there.contains(at) || **at >= LENGTH);
        assert_eq!(beyond, None, "{there:?}");
    }
}

#[test]
fn there_are_no_more_threads_than_clients_and_one_at_least() {
    for (asked, had) in [(0, 1), (64, 3)] {
        let outcome = run(vec![part("a", 3)], Box::new(Unlimited), asked);
        let disturbance = outcome.disturbance.expect("it was in real time");
        assert_eq!((disturbance.threads, outcome.trace), (had, 0));
    }
}
