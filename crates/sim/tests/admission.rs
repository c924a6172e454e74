//! Admission held against what then happens: a latency-critical tenant beside a best-effort one
//! that takes all it gets and is guaranteed a minimum, under qos, at the level of the Nyx library,
//! on the event model. A target that admission calls sound is met, one that it refuses is missed
//! whatever the policy does. All numbers are simulated.
//!
//! What these tests do not show: a CPU. Latencies are the device's, and so is what is predicted.

use nyx_base::Nanos;
use nyx_gate::CostTable;
use nyx_media::Op;
use nyx_media::model::Params;
use nyx_media::profile::{Effort, MEASURED_SHARE, Profile, VICTIM_BYTES, simulate};
use nyx_policy::admission::{Ask, Device, Finding, Known, Verdict, judge};
use nyx_policy::mechanism::forecast::{Access, Basis, Load as Uses, Used};
use nyx_policy::mechanism::throttle::Bounds;
use nyx_policy::plan::{Kind, Plan, Terms};
use nyx_policy::sharing::qos::{Params as Qos, Target};
use nyx_sim::client::Load;
use nyx_sim::modelled::Modelled;
use nyx_sim::scenario::{Part, Scenario, WindowOutcome};

/// The critical tenant reads 1 KiB so often.
const RATE: f64 = 0.3e6;
const BYTES: usize = 1024;
const LENGTH: Nanos = Nanos::from_millis(240);
const WINDOW: Nanos = Nanos::from_millis(20);
/// Windows at the end in which everything has settled.
const SETTLED: usize = 4;

/// What a best-effort tenant does: operation, bytes, batch; and what it is guaranteed.
#[derive(Clone, Copy, Debug)]
struct Guaranteed {
    op: Op,
    bytes: usize,
    batch: usize,
    min: f64,
}

const WRITER: Guaranteed = Guaranteed {
    op: Op::Write,
    bytes: 1024,
    batch: 8,
    min: 0.0,
};
const READER: Guaranteed = Guaranteed {
    op: Op::Read,
    bytes: 4096,
    batch: 4,
    min: 0.0,
};

struct Rig {
    device: Modelled,
    profile: Profile,
}

impl Rig {
    fn new() -> Rig {
        let params = Params::resolve("optane-2dimm").expect("a preset");
        let profile = simulate(&params, Effort::Quick, &mut |_| {});
        let cost = CostTable::of_profile(&profile);
        let device = Modelled { params, cost };
        Rig { device, profile }
    }

    fn used(&self, op: Op, bytes: usize, share: f64) -> Uses {
        let used = Used {
            share,
            harm: share * self.device.cost.latency_price(op, bytes),
        };
        match op {
            Op::Read => Uses {
                reads: used,
                ..Uses::default()
            },
            Op::Write => Uses {
                writes: used,
                ..Uses::default()
            },
        }
    }

    /// What a running server would know: what the critical tenant asks for and uses, and what the
    /// other's use is made of.
    fn known(&self, other: Guaranteed) -> Device {
        let latency = self.profile.latency().expect("simulated");
        let idle_ns = latency.idle_ns(Op::Read, BYTES);
        let line_ns = latency.idle_ns(Op::Read, VICTIM_BYTES);
        let price = self.device.cost.price(Op::Read, BYTES);
        let asks = vec![Ask {
            part: 1.0,
            what: "reads of 1024 B".into(),
            price,
            access: Some(Access::read(BYTES, VICTIM_BYTES, idle_ns, line_ns)),
        }];
        let known = |used| Known {
            asks: asks.clone(),
            used: Some(used),
        };
        Device {
            basis: Some(Basis {
                standard_growth_ns: latency.standard_growth_ns(),
                measured_share: MEASURED_SHARE,
            }),
            cpu_ns: 0.0,
            tenants: vec![
                known(self.used(Op::Read, BYTES, RATE * price.as_secs_f64())),
                known(self.used(other.op, other.bytes, 0.5)),
            ],
            typical: asks.clone(),
        }
    }

    /// What the critical tenant had at the end.
    fn run(&self, plan: Plan, other: Guaranteed) -> Vec<WindowOutcome> {
        let load = |op, value_bytes: usize, batch| {
            let keys = (10 << 30) / value_bytes as u64;
            Load::uniform(keys, value_bytes, f64::from(op == Op::Read), batch)
        };
        let critical = Part {
            rate: Some(RATE),
            ..Part::closed("critical", load(Op::Read, BYTES, 1), 16, Nanos(100))
        };
        let greedy = load(other.op, other.bytes, other.batch);
        let scenario = Scenario {
            device: self.device.clone(),
            parts: vec![critical, Part::closed("greedy", greedy, 4, Nanos(100))],
            policy: Plan::build(&[plan], 2),
            length: LENGTH,
            window: WINDOW,
            seed: 1,
        };
        let mut outcome = scenario.run_library();
        let windows = &mut outcome.parts[0].windows;
        windows.split_off(windows.len() - SETTLED)
    }
}

fn plan(target: Target, min: f64) -> Plan {
    let critical = Terms {
        target: Some(target),
        ..Terms::default()
    };
    let greedy = Terms {
        bounds: Bounds { min, max: None },
        ..Terms::default()
    };
    let params = Qos {
        window_max: WINDOW,
        ..Qos::default()
    };
    let members = [("critical".to_owned(), critical), ("greedy".into(), greedy)];
    Plan::flat(Kind::Qos(params), members)
}

/// The loosest target that is refused and the tightest that is sound, in steps of a twentieth.
fn edges(known: &Device, min: f64, target: impl Fn(Nanos) -> Target) -> [Target; 2] {
    let steps = (0..60).map(|step| target(Nanos((500.0 * 1.05f64.powi(step)) as u64)));
    let judged: Vec<(Target, Finding)> = steps
        .map(|target| (target, judge(&plan(target, min), known).swap_remove(0)))
        .collect();
    let refused = judged
        .iter()
        .rfind(|(_, found)| matches!(found.verdict, Verdict::Broken { .. }));
    let sound = judged
        .iter()
        .find(|(_, found)| found.verdict == Verdict::Sound);
    println!("{}", refused.expect("one is refused").1);
    println!("{}", sound.expect("one is sound").1);
    [refused, sound].map(|edge| edge.expect("both are there").0)
}

fn average(windows: &[WindowOutcome], of: impl Fn(&WindowOutcome) -> f64) -> f64 {
    windows.iter().map(of).sum::<f64>() / windows.len() as f64
}

/// Finds the edges of what `target` makes, and runs both; the critical tenant `has` so much of it.
fn assert_told_right(
    rig: &Rig,
    other: Guaranteed,
    target: impl Fn(Nanos) -> Target,
    has: impl Fn(&WindowOutcome) -> f64,
) {
    let [refused, sound] = edges(&rig.known(other), other.min, target);
    let had_ns = |target| average(&rig.run(plan(target, other.min), other), &has);
    let most_ns = |target| match target {
        Target::Mean(most) | Target::Quantile(_, most) => most.0 as f64,
        Target::OpsPerS(_) => unreachable!("no such target is asked about"),
    };
    let (missed, kept) = (had_ns(refused), had_ns(sound));
    println!("{other:?}: {missed:.0} ns for {refused}, {kept:.0} ns for {sound}");
    assert!(
        missed > most_ns(refused),
        "{other:?}: {missed} ns, {refused}"
    );
    assert!(kept <= most_ns(sound), "{other:?}: {kept} ns, {sound}");
}

#[test]
fn means_that_are_sound_are_kept_and_refused_ones_are_missed() {
    let rig = Rig::new();
    for (other, min) in [(WRITER, 0.15), (WRITER, 0.3), (READER, 0.6)] {
        let other = Guaranteed { min, ..other };
        assert_told_right(&rig, other, Target::Mean, |window| window.mean_ns);
    }
}

#[test]
fn p99s_that_are_sound_are_kept_and_refused_ones_are_missed() {
    let rig = Rig::new();
    let p99 = |most| Target::Quantile(0.99, most);
    for (other, min) in [(WRITER, 0.15), (WRITER, 0.3), (READER, 0.33)] {
        let other = Guaranteed { min, ..other };
        assert_told_right(&rig, other, p99, |window| window.p99_ns);
    }
}
