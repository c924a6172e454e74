//! Tenants that know the policy and try to gain by it, in virtual time: one that loads the last
//! ticks of each epoch, one that stands still in stand-alone runs, one that goes quiet during
//! experiments and bursts after them, one that donates and comes back in bursts.
//!
//! Each is held against its limit or against what it has when it is honest: at most 1 % of the
//! device may be gained. All numbers are simulated.

mod rig;

use nyx_base::{DevicePs, Nanos};
use nyx_policy::Policy;
use nyx_policy::mechanism::throttle::Bounds;
use nyx_policy::sharing::limit::{Epoch, Leased, Paper};
use nyx_policy::sharing::qos::{self, Class, Member, Qos, Target};
use nyx_policy::sharing::share::{Settings, Share};
use nyx_policy::sharing::slowdown::{self, Slowdown, Terms};
use nyx_sim::client::Load;
use nyx_sim::scenario::{Behaviour, Outcome, Part, Plight, Scenario};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const WINDOW: Nanos = Nanos::from_millis(20);

fn part(name: &str, value_bytes: usize, gets: f64, clients: u16, batch: usize) -> Part {
    let load = Load::uniform(1_000, value_bytes, gets, batch);
    Part::closed(name, load, clients, Nanos(300))
}

fn run(parts: Vec<Part>, policy: Box<dyn Policy>, ms: u64) -> Outcome {
    rig::run(parts, policy, [Nanos::from_millis(ms), WINDOW], 1)
}

/// The share of the device that a tenant used from a window on.
fn share_from(outcome: &Outcome, tenant: usize, first: usize) -> f64 {
    let windows = &outcome.parts[tenant].windows[first..];
    let used: f64 = windows.iter().map(|window| window.used.as_secs_f64()).sum();
    used / (windows.len() as f64 * WINDOW.as_secs_f64())
}

/// Works in a part of each period, and rests from then on.
fn only_within(period: Nanos, from: Nanos, to: Nanos) -> Behaviour {
    Behaviour::new(move |plight: Plight| {
        let at = plight.now.0 % period.0;
        match at {
            at if at < from.0 => Nanos(from.0 - at),
            at if at < to.0 => Nanos::ZERO,
            at => Nanos(period.0 - at + from.0),
        }
    })
}

/// A limit of 5 % of the device, of which the adversary can use 82 %: of each epoch of 100 ticks it
/// loads the last seven. After six of them Algorithm 1 has seen no more than it assigned, and the
/// seventh is for nothing.
#[test]
fn the_last_ticks_of_an_epoch_are_worth_nothing() {
    const LIMIT: f64 = 0.05;
    let epoch = Epoch::default();
    let tick = epoch.tick.0;
    let late = only_within(Nanos(100 * tick), Nanos(93 * tick), Nanos(100 * tick));
    let adversary = Part {
        behaviour: Some(late),
        ..part("adversary", 4096, 1.0, 8, 32)
    };
    let limits = || vec![Some(DevicePs((LIMIT * 1e12) as u64))];
    let share = |policy| share_from(&run(vec![adversary.clone()], policy, 3_000), 0, 0);
    let paper = share(Box::new(Paper::new(limits(), epoch)));
    let leased = share(Box::new(Leased::new(limits())));
    println!("a limit of {LIMIT}: {paper:.5} by Algorithm 1, {leased:.5} by leases");
    assert!(paper > 1.1 * LIMIT, "{paper}");
    assert!(leased < 1.001 * LIMIT, "{leased}");
    // And whoever asks all the time has its limit, no more.
    let greedy = part("greedy", 4096, 1.0, 8, 32);
    let outcome = run(vec![greedy], Box::new(Leased::new(limits())), 1_000);
    let greedy = share_from(&outcome, 0, 0);
    assert!(greedy < 1.001 * LIMIT && greedy > 0.98 * LIMIT, "{greedy}");
}

/// Rests as soon as it is answered as fast as only somebody alone is, and after each long wait.
fn stops_when_alone(alone: Nanos, rest: Nanos) -> Behaviour {
    let until = AtomicU64::new(0);
    Behaviour::new(move |plight: Plight| {
        if plight.took < alone {
            until.store((plight.now + rest).0, Relaxed);
        }
        Nanos(until.load(Relaxed).saturating_sub(plight.now.0))
    })
}

/// Rests for some time after others ran alone: it was held, and for as long as such a run.
fn rests_after_a_pause(rest: Nanos) -> Behaviour {
    let until = AtomicU64::new(0);
    Behaviour::new(move |plight: Plight| {
        let was_paused = plight.took > Nanos::from_micros(1_200) && plight.holds > 0;
        if was_paused {
            until.store((plight.now + rest).0, Relaxed);
        }
        Nanos(until.load(Relaxed).saturating_sub(plight.now.0))
    })
}

/// Fair slowdown with somebody who spoils stand-alone runs, its own and others'.
#[test]
fn standing_still_in_stand_alone_runs_gains_nothing() {
    let honest = || part("adversary", 4096, 1.0, 4, 1);
    let others = || {
        let reads = part("reads", 1024, 1.0, 2, 1);
        vec![reads, part("mixed", 1024, 0.5, 4, 1)]
    };
    let share = |adversary: Part| {
        let mut parts = others();
        parts.push(adversary);
        let terms = vec![Terms::default(); parts.len()];
        let policy = Box::new(Slowdown::new(slowdown::Params::default(), terms));
        let outcome = run(parts, policy, 5_000);
        let windows = outcome.parts[2].windows.len();
        // The last half, and what a request takes.
        let took = outcome.parts[2].latencies.quantile_ns(0.01);
        (share_from(&outcome, 2, windows - 125), took)
    };
    let (fair, fast_ns) = share(honest());
    let alone = Nanos(fast_ns.expect("requests") as u64 + 100);
    let ms = Nanos::from_millis;
    for (what, behaviour) in [
        ("stops for a run", stops_when_alone(alone, ms(1))),
        ("rests after a pause", rests_after_a_pause(ms(2))),
    ] {
        let adversary = Part {
            behaviour: Some(behaviour),
            ..honest()
        };
        let (share, _) = share(adversary);
        println!("{what}: {share:.4} of the device, {fair:.4} when it is honest");
        assert!(share < fair + 0.01, "{what}: {share}, {fair}");
    }
}

/// Donates for some time, and comes back for some time, again and again.
#[test]
fn coming_back_in_bursts_gains_nothing_and_costs_the_others_nothing() {
    let settings = Settings::default();
    let honest = || part("adversary", 1024, 0.0, 4, 8);
    let victim = || part("victim", 1024, 1.0, 4, 32);
    let both = |adversary: Part| {
        let policy = Box::new(Share::new(&[1.0, 1.0], settings));
        let outcome = run(vec![adversary, victim()], policy, 3_000);
        let of = |tenant| share_from(&outcome, tenant, 25);
        [of(0), of(1)]
    };
    let [fair, fair_victim] = both(honest());
    println!("honest: {fair:.4}, {fair_victim:.4}");
    for (on_ms, off_ms) in [(90, 10), (50, 50), (100, 100), (30, 170), (300, 200)] {
        let (on, off) = (Nanos::from_millis(on_ms), Nanos::from_millis(off_ms));
        let bursts = only_within(on + off, Nanos::ZERO, on);
        let [share, rest] = both(Part {
            behaviour: Some(bursts),
            ..honest()
        });
        println!(
            "{on_ms} ms of {}: {share:.4}, the victim {rest:.4}",
            on_ms + off_ms
        );
        assert!(share < 0.5 * 1.01, "{on_ms}, {off_ms}: {share}");
        assert!(rest > fair_victim - 0.01, "{on_ms}, {off_ms}: {rest}");
    }
}

const TARGET: Nanos = Nanos(2_000);

/// Bursts long enough to hurt, and quiet for as long as an experiment takes.
fn bursts(on: Nanos, off: Nanos) -> Behaviour {
    only_within(on + off, Nanos::ZERO, on)
}

/// Quality of service: the writer of figure 8, but on and off. The part of the windows in the last
/// half second in which the target was missed, and the bytes per second of the reader, who does no
/// harm.
fn windows_over_target(behaviour: Behaviour, policy: Box<dyn Policy>) -> (f64, f64) {
    let open = |name: &str, value_bytes: usize, gets: f64, rate: f64| {
        let load = Load::uniform(2_000, value_bytes, gets, 1);
        Part {
            rate: Some(rate),
            ..Part::closed(name, load, 8, Nanos(100))
        }
    };
    let parts = vec![
        open("critical", 1024, 1.0, 0.6e6),
        open("reader", 4096, 1.0, 2.4e9 / 4096.0),
        Part {
            behaviour: Some(behaviour),
            ..open("writer", 1024, 0.0, 1e6)
        },
    ];
    let scenario = Scenario {
        device: nyx_sim::modelled::Modelled::named("optane-2dimm").expect("a preset"),
        parts,
        policy,
        length: Nanos::from_millis(1_000),
        window: WINDOW,
        seed: 1,
    };
    let outcome = scenario.run().expect("the scenario fits");
    let windows = &outcome.parts[0].windows[25..];
    let over = windows
        .iter()
        .filter(|window| window.p99_ns > 1.02 * TARGET.0 as f64);
    let reader = outcome.parts[1].windows[25..]
        .iter()
        .map(|window| window.bytes)
        .sum::<u64>();
    let length_s = windows.len() as f64 * WINDOW.as_secs_f64();
    (
        over.count() as f64 / windows.len() as f64,
        reader as f64 / length_s,
    )
}

fn promise() -> Box<dyn Policy> {
    let class = |at| match at {
        0 => Class::Critical(Target::Quantile(0.99, TARGET)),
        _ => Class::BestEffort,
    };
    let member = |at| Member {
        name: format!("t{at}"),
        class: class(at),
        bounds: Bounds::NONE,
    };
    let params = qos::Params {
        window_max: Nanos::from_millis(20),
        ..qos::Params::default()
    };
    Box::new(Qos::new((0..3).map(member).collect(), params))
}

#[test]
fn quiet_during_experiments_is_no_way_out() {
    for (on_ms, off_ms) in [(40, 40), (20, 60)] {
        let (on, off) = (Nanos::from_millis(on_ms), Nanos::from_millis(off_ms));
        let free = Box::new(nyx_policy::baselines::Unlimited);
        let (without, _) = windows_over_target(bursts(on, off), free);
        let (over, reader) = windows_over_target(bursts(on, off), promise());
        println!(
            "{on_ms} ms of {}: {over:.3} of the windows over the target",
            on_ms + off_ms
        );
        println!("  {without:.3} without a policy; the reader moves {reader:.3e} bytes/s");
        assert!(without > 0.2, "{without}");
        assert!(over <= 0.04, "{on_ms}, {off_ms}: {over}");
        assert!(reader > 0.95 * 2.4e9, "the innocent one: {reader}");
    }
}
