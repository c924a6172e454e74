//! Threads that load and store through the Nyx library, on the event model at full scale: what the
//! driver does, held against the model without it, the other driver, and the gate's promises. The
//! paper's figures on it are scenario files (`config/scenarios`). All numbers are simulated.

use nyx_base::Nanos;
use nyx_media::model::event::{Access, Thread, run as free};
use nyx_policy::Policy;
use nyx_policy::baselines::Unlimited;
use nyx_policy::sharing::limit::{Epoch, Leased, Paper};
use nyx_sim::client::Load;
use nyx_sim::modelled::Modelled;
use nyx_sim::scenario::{Outcome, Part, Scenario};
use std::sync::OnceLock;

/// The paper's device, profiled once.
fn device() -> Modelled {
    static DEVICE: OnceLock<Modelled> = OnceLock::new();
    let named = || Modelled::named("optane-2dimm").expect("a preset");
    DEVICE.get_or_init(named).clone()
}

const LENGTH: Nanos = Nanos::from_millis(20);

fn load(value_bytes: usize, gets: f64, batch: usize) -> Load {
    let keys = (10 << 30) / value_bytes as u64;
    Load::uniform(keys, value_bytes, gets, batch)
}

fn scenario(parts: Vec<Part>, policy: Box<dyn Policy>, length: Nanos, seed: u64) -> Scenario {
    Scenario {
        device: device(),
        parts,
        policy,
        length,
        window: Nanos(length.0 / 10),
        seed,
    }
}

/// Operations per second of each tenant, without the first window.
fn ops_per_s(outcome: &Outcome) -> Vec<f64> {
    let one = |part: &nyx_sim::scenario::PartOutcome| {
        let windows = &part.windows[1..];
        let ops: u64 = windows.iter().map(|window| window.ops).sum();
        ops as f64 / (LENGTH.as_secs_f64() * windows.len() as f64 / 10.0)
    };
    outcome.parts.iter().map(one).collect()
}

/// What a gate without a limit does to a thread: nothing. Table 2's threads through the library are
/// those of the model.
#[test]
fn free_threads_do_through_the_library_what_they_do_without() {
    for (access, gets) in [(Access::Load, 1.0), (Access::StoreNt, 0.0)] {
        for op_bytes in [256, 4096] {
            let thread = Thread {
                access,
                op_bytes,
                ops_per_s: None,
            };
            let bare = free(&device().params, &[thread], LENGTH.0, 1).threads[0].clone();
            // A batch that never ends: the thread never waits for what it began.
            let endless = load(op_bytes as usize, gets, usize::MAX);
            let part = Part::closed("free", endless, 1, Nanos(0));
            let outcome = scenario(vec![part], Box::new(Unlimited), LENGTH, 1).run_library();
            let (through, bare_ops) = (ops_per_s(&outcome)[0], bare.ops_per_s);
            let told = format!("{access:?} {op_bytes} B: {through} of {bare_ops}");
            assert!((through / bare_ops - 1.0).abs() < 0.01, "{told}");
            let latencies = &outcome.parts[0].latencies;
            let mean_ns = latencies.mean_ns().expect("there are some");
            let part = mean_ns / bare.latency_ns_mean;
            // Nanoseconds are cut off.
            assert!((part - 1.0).abs() < 0.02, "{access:?} {op_bytes} B: {part}");
        }
    }
}

/// The driver through the engine and the O(1) model against this one: two ways to the same numbers.
#[test]
fn the_two_drivers_agree_on_what_free_tenants_do() {
    let part = |name, bytes, gets, clients| {
        let load = Load {
            keys: 2_000,
            asked: 2_000,
            ..load(bytes, gets, 1)
        };
        Part::closed(name, load, clients, Nanos(300))
    };
    for (parts, most) in two_drivers(&part) {
        let [engine, library] = [true, false].map(|through_engine| {
            let scenario = scenario(parts.clone(), Box::new(Unlimited), LENGTH, 1);
            let outcome = match through_engine {
                true => scenario.run().expect("the scenario fits"),
                false => scenario.run_library(),
            };
            ops_per_s(&outcome)
        });
        for ((part, engine), library) in parts.iter().zip(engine).zip(library) {
            let more = engine / library - 1.0;
            println!(
                "{} of {}: engine {:.3}, library {:.3} M/s, {:+.1} %",
                part.name,
                parts.len(),
                engine / 1e6,
                library / 1e6,
                more * 100.0
            );
            assert!(more.abs() <= most, "{}: {more}", part.name);
        }
    }
}

type MakePart<'a> = &'a dyn Fn(&'static str, usize, f64, u16) -> Part;

/// Free scenarios, and how far the drivers may be apart: the O(1) model lets 4 KiB readers that
/// wait for each answer wait too little, and who is beside them too much.
fn two_drivers(part: MakePart<'_>) -> Vec<(Vec<Part>, f64)> {
    vec![
        (vec![part("4 x get 256 B", 256, 1.0, 4)], 0.02),
        (vec![part("4 x get 1 KiB", 1024, 1.0, 4)], 0.07),
        (vec![part("4 x get 4 KiB", 4096, 1.0, 4)], 0.16),
        (vec![part("4 x set 1 KiB", 1024, 0.0, 4)], 0.04),
        (
            vec![
                part("2 x get 256 B", 256, 1.0, 2),
                part("4 x get 4 KiB", 4096, 1.0, 4),
            ],
            0.16,
        ),
        (
            vec![
                part("2 x get 1 KiB", 1024, 1.0, 2),
                part("4 x set 256 B", 256, 0.0, 4),
            ],
            0.11,
        ),
    ]
}

fn share(outcome: &Outcome, tenant: usize, length: Nanos) -> f64 {
    outcome.parts[tenant].used.as_secs_f64() / length.as_secs_f64()
}

/// The gate's leases hold here as they do under the engine, and what is charged is what the event
/// model was busy with.
#[test]
fn a_limit_holds_and_charges_agree_with_the_devices_own_count() {
    let length = Nanos::from_millis(300);
    for (bytes, gets) in [(4096, 1.0), (1024, 0.0)] {
        let limited = Part::closed("limited", load(bytes, gets, 8), 4, Nanos(100));
        let policy = Leased::new(vec![Some(nyx_base::DevicePs(420_000_000_000))]);
        let outcome = scenario(vec![limited], Box::new(policy), length, 1).run_library();
        let (used, busy) = (
            share(&outcome, 0, length),
            outcome.busy.as_secs_f64() / length.as_secs_f64(),
        );
        assert!((used - 0.42).abs() < 0.42 * 0.01, "{bytes} B: {used}");
        assert!(
            (used / busy - 1.0).abs() < 0.12,
            "{bytes} B: {used}, busy {busy}"
        );
        assert!(outcome.parts[0].done.holds > 100);
    }
}

/// Algorithm 1 stops a tenant for the rest of its epoch: held clients are asked again at a tick.
#[test]
fn an_infinite_delay_holds_until_the_controller_ends_it() {
    let length = Nanos::from_millis(400);
    let epoch = Epoch {
        ticks: 20,
        ..Epoch::default()
    };
    let policy = Paper::new(vec![Some(nyx_base::DevicePs(200_000_000_000))], epoch);
    let limited = Part::closed("limited", load(4096, 1.0, 8), 4, Nanos(100));
    let outcome = scenario(vec![limited], Box::new(policy), length, 1).run_library();
    let used = share(&outcome, 0, length);
    assert!((0.19..0.26).contains(&used), "{used}");
    let idle = outcome.parts[0]
        .windows
        .iter()
        .filter(|window| window.ops == 0);
    assert!(idle.count() >= 2, "whole windows in which it is stopped");
}

#[test]
fn phases_misses_and_seeds() {
    let late = Part {
        active: Nanos::from_millis(4)..Nanos::from_millis(12),
        ..Part::closed("late", load(1024, 0.5, 4), 2, Nanos(100))
    };
    let missing = Load {
        asked: load(256, 1.0, 1).keys * 4,
        ..load(256, 1.0, 1)
    };
    let missing = Part::closed("missing", missing, 1, Nanos(500));
    let run = |seed| {
        let parts = vec![late.clone(), missing.clone()];
        scenario(parts, Box::new(Unlimited), LENGTH, seed).run_library()
    };
    let outcome = run(1);
    // What was begun in time may end later.
    let active = outcome.parts[0].windows.iter().map(|window| window.ops > 8);
    let active: Vec<bool> = active.collect();
    let expected: Vec<bool> = (0..10).map(|window| (2..6).contains(&window)).collect();
    assert_eq!(active, expected);
    let done = outcome.parts[1].done;
    let ratio = done.hits as f64 / done.ops as f64;
    assert!((ratio - 0.25).abs() < 0.02, "{ratio}");
    assert_eq!(outcome.trace, run(1).trace);
    assert_ne!(outcome.trace, run(2).trace);
    for window in &outcome.parts[1].windows {
        assert!(window.p50_ns <= window.p99_ns && window.p99_ns <= window.p999_ns);
    }
}
