//! The runs of a case: every seed, and each tenant alone where that is asked for.
//!
//! What this module never does: judge what came out.

use super::file::{Case, Detail, Load};
use crate::serving::plans;
use crate::{Exit, Failure};
use nyx_base::{Latencies, Nanos, TenantId};
use nyx_policy::Policy;
use nyx_policy::baselines::Unlimited;
use nyx_policy::plan::Plan;
use nyx_sim::client;
use nyx_sim::emulated::threads_default;
use nyx_sim::modelled::Modelled;
use nyx_sim::scenario::{Outcome, Part, PartOutcome, Scenario, WindowOutcome};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What came out of a case.
#[derive(Clone, Debug)]
pub struct Result {
    /// The names of the tenants, and of the groups after them: what decisions are about.
    pub names: Vec<String>,
    /// One for each seed, from 1.
    pub runs: Vec<Run>,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its seed.
    pub seed: u64,
    /// What each tenant had after the settling.
    pub tenants: Vec<Had>,
    /// What each did alone, where that was asked for.
    pub alone: Vec<Option<PartOutcome>>,
    /// The part of the device that was busy, by the model's own count, over the whole run.
    pub busy: f64,
    /// All of it.
    pub outcome: Outcome,
}

/// What one tenant had.
#[derive(Clone, Debug)]
pub struct Had {
    /// Requests answered per second.
    pub ops_per_s: f64,
    /// Bytes to and from the device per second.
    pub bytes_per_s: f64,
    /// The share of the device's time that it was charged.
    pub share: f64,
    /// Its latencies.
    pub latencies: Latencies,
    /// By which factor it was slower than alone: in answers per second in a closed loop, in mean
    /// latency in an open one. None where nobody asked.
    pub slowdown: Option<f64>,
}

/// Devices are profiled once, however many cases have them.
#[derive(Default)]
pub struct Devices(BTreeMap<String, Modelled>);

impl Devices {
    /// The device of a case.
    pub fn of(&mut self, case: &Case) -> std::result::Result<Modelled, Failure> {
        let device = &case.config.devices[0];
        let model = device.model.clone().unwrap_or_default();
        if let Some(known) = self.0.get(&model) {
            return Ok(known.clone());
        }
        let modelled = Modelled::named(&model)
            .map_err(|error| Failure::usage(format!("device {:?}: {error}", device.name)))?;
        self.0.insert(model, modelled.clone());
        Ok(modelled)
    }
}

/// Runs every seed of every case, on all CPUs where they are simulated; `tell` hears how many runs
/// are done, and of how many.
///
/// Errors: 64 where a plan cannot be kept, 71 where the system refuses memory.
pub fn run_all(
    cases: &[Case],
    devices: &mut Devices,
    tell: &(dyn Fn(usize, usize) + Sync),
) -> std::result::Result<Vec<Result>, Failure> {
    let modelled = cases.iter().map(|case| devices.of(case));
    let modelled: Vec<Modelled> = modelled.collect::<std::result::Result<_, Failure>>()?;
    let each = cases.iter().zip(&modelled).enumerate();
    let tasks: Vec<Task<'_>> = each
        .flat_map(|(at, (case, device))| {
            (1..=case.run.seeds).map(move |seed| Task {
                at,
                case,
                device,
                seed,
            })
        })
        .collect();
    let alone = Alone::default();
    let done = AtomicUsize::new(0);
    let one = |task: &Task<'_>| {
        let run = task.run(&alone)?;
        tell(done.fetch_add(1, Ordering::Relaxed) + 1, tasks.len());
        Ok((task.at, run))
    };
    // What runs in real time has the machine for itself.
    let is_real = |case: &Case| case.run.detail == Detail::Emulated;
    let runs: std::result::Result<Vec<(usize, Run)>, Failure> = match cases.iter().any(is_real) {
        true => tasks.iter().map(one).collect(),
        false => tasks.par_iter().map(one).collect(),
    };
    let runs = runs?;
    let empty = cases.iter().zip(&modelled).map(|(case, device)| {
        let tenants = case.config.tenants.iter().map(|one| one.name.clone());
        let groups = policy(case, device)?.groups().groups.into_iter();
        Ok(Result {
            names: tenants.chain(groups.map(|group| group.name)).collect(),
            runs: Vec::new(),
        })
    });
    let mut results: Vec<Result> = empty.collect::<std::result::Result<_, Failure>>()?;
    for (at, run) in runs {
        results[at].runs.push(run);
    }
    Ok(results)
}

/// The policy of a case.
fn policy(case: &Case, device: &Modelled) -> std::result::Result<Box<dyn Policy>, Failure> {
    let plans = plans::plans(&case.config, &[&device.cost])
        .map_err(|error| Failure::usage(error.to_string()))?;
    Ok(Plan::build(&plans, case.config.tenants.len()))
}

/// One run to be done.
struct Task<'a> {
    /// The place of its case.
    at: usize,
    case: &'a Case,
    device: &'a Modelled,
    seed: u64,
}

/// What tenants do alone, which depends on no policy: once for all cases in which it is the same.
#[derive(Default)]
struct Alone(Mutex<BTreeMap<String, Arc<OnceLock<Kept>>>>);

type Kept = std::result::Result<PartOutcome, Failure>;

impl Task<'_> {
    fn run(&self, alone: &Alone) -> std::result::Result<Run, Failure> {
        let case = self.case;
        let outcome = self.simulate(policy(case, self.device)?, &|_| true)?;
        let mut tenants: Vec<Had> = outcome.parts.iter().map(|part| had(case, part)).collect();
        let mut by_itself = vec![None; tenants.len()];
        if case.run.alone {
            for (at, tenant) in tenants.iter_mut().enumerate() {
                let part = self.alone(alone, at)?;
                tenant.slowdown = slowdown(case, at, &had(case, &part), tenant);
                by_itself[at] = Some(part);
            }
        }
        Ok(Run {
            seed: self.seed,
            tenants,
            alone: by_itself,
            busy: outcome.busy.as_secs_f64() / case.run.length.as_secs_f64(),
            outcome,
        })
    }

    fn alone(&self, known: &Alone, tenant: usize) -> Kept {
        let (case, seed) = (self.case, self.seed);
        let loads: Vec<&Load> = case.loads.iter().filter(|l| l.tenant == tenant).collect();
        let (model, run) = (&case.config.devices[0].model, &case.run);
        let key = format!("{model:?} {run:?} {loads:?} {seed}");
        let cell = {
            let mut known = known.0.lock().unwrap_or_else(PoisonError::into_inner);
            known.entry(key).or_default().clone()
        };
        cell.get_or_init(|| {
            let outcome = self.simulate(Box::new(Unlimited), &|load| load.tenant == tenant)?;
            Ok(outcome.parts[0].clone())
        })
        .clone()
    }

    fn simulate(
        &self,
        policy: Box<dyn Policy>,
        among: &dyn Fn(&Load) -> bool,
    ) -> std::result::Result<Outcome, Failure> {
        let case = self.case;
        // In the order of the tenants, as the policy has them.
        let mut loads: Vec<&Load> = case.loads.iter().filter(|load| among(load)).collect();
        loads.sort_by_key(|load| load.tenant);
        let scenario = Scenario {
            device: self.device.clone(),
            parts: loads.into_iter().map(|load| part(case, load)).collect(),
            policy,
            length: case.run.length,
            window: case.run.window,
            seed: self.seed,
        };
        match case.run.detail {
            Detail::Device => Ok(scenario.run_library()),
            Detail::Engine => scenario
                .run()
                .map_err(|error| Failure::new(Exit::Os, error.to_string())),
            Detail::Emulated => scenario
                .run_emulated(threads_default())
                // Of runs alone, too, whose outcome nobody prints.
                .inspect(|run| tracing::info!(seed = self.seed, disturbance = ?run.disturbance))
                .map_err(|error| Failure::new(Exit::Os, error.to_string())),
        }
    }
}

fn part(case: &Case, load: &Load) -> Part {
    let asks = client::Load {
        tenant: TenantId(load.tenant as u16),
        keys: load.keys,
        asked: load.asked,
        value_bytes: load.value_bytes,
        gets: load.gets,
        batch: load.batch,
        layout: case.config.tenants[load.tenant].layout,
    };
    let name = &case.config.tenants[load.tenant].name;
    Part {
        active: load.from..load.to,
        on_off: load.on_off,
        day: load.day,
        rate: load.rate.map(|rate| rate / load.batch as f64),
        access: load.access,
        ..Part::closed(name, asks, load.clients, load.think)
    }
}

/// The windows after the settling.
pub fn settled<'a>(case: &Case, part: &'a PartOutcome) -> &'a [WindowOutcome] {
    let before = case.run.settle.0.div_ceil(case.run.window.0) as usize;
    &part.windows[before.min(part.windows.len())..]
}

fn had(case: &Case, part: &PartOutcome) -> Had {
    let windows = settled(case, part);
    let time_s = Nanos(case.run.window.0 * windows.len() as u64)
        .as_secs_f64()
        .max(1e-9);
    let mut latencies = Latencies::default();
    windows
        .iter()
        .for_each(|window| latencies.add(&window.latencies));
    let sum = |of: fn(&WindowOutcome) -> f64| windows.iter().map(of).sum::<f64>() / time_s;
    Had {
        ops_per_s: sum(|window| window.ops as f64),
        bytes_per_s: sum(|window| window.bytes as f64),
        share: sum(|window| window.used.as_secs_f64()),
        latencies,
        slowdown: None,
    }
}

/// Whether a tenant's clients come at times of their own.
pub fn is_open(case: &Case, tenant: usize) -> bool {
    let mut of = case.loads.iter().filter(|load| load.tenant == tenant);
    of.any(|load| load.rate.is_some())
}

fn slowdown(case: &Case, tenant: usize, alone: &Had, now: &Had) -> Option<f64> {
    match is_open(case, tenant) {
        true => Some(now.latencies.mean_ns()? / alone.latencies.mean_ns()?),
        false => (now.ops_per_s > 0.0).then(|| alone.ops_per_s / now.ops_per_s),
    }
}

/// The mean of a figure over runs, and half the width of an interval in which it lies with 95 %
/// certainty, by the bootstrap over runs; none of a single run.
pub fn over_runs(runs: &[f64]) -> (f64, Option<f64>) {
    const RESAMPLES: usize = 2_000;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    if runs.len() < 2 {
        return (mean(runs), None);
    }
    let mut rng = nyx_base::Rng::with_seed(1);
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let sum: f64 = (0..runs.len()).map(|_| runs[rng.usize(..runs.len())]).sum();
            sum / runs.len() as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    let (low, high) = (means[RESAMPLES / 40], means[RESAMPLES - 1 - RESAMPLES / 40]);
    (mean(runs), Some((high - low) / 2.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::file::{Instead, scenario};

    const TWO: &str = "
[run]
length = \"60ms\"
settle = \"20ms\"
window = \"10ms\"
seeds = 2
alone = true
[policy]
kind = \"limit\"
[[device]]
model = \"optane-2dimm/8\"
[[tenant]]
name = \"a\"
key_prefix = \"a:\"
limit = \"30%\"
[[tenant]]
name = \"b\"
[[load]]
tenant = \"b\"
gets = 0.5
[[load]]
tenant = \"a\"
clients = 4
batch = 8
[[load]]
tenant = \"a\"
name = \"more\"
clients = 2
from = \"40ms\"
";

    #[test]
    fn limits_of_the_file_hold_on_both_simulators() {
        let mut devices = Devices::default();
        for detail in ["engine", "device"] {
            let text = TWO.replacen("[run]", &format!("[run]\ndetail = \"{detail}\""), 1);
            let cases = scenario(&text, &Instead::default()).expect("sound").cases;
            let result = &run_all(&cases, &mut devices, &|_, _| ()).expect("it runs")[0];
            assert_eq!(result.names, ["a", "b"]);
            assert_eq!(result.runs.len(), 2);
            for run in &result.runs {
                let [a, b] = &run.tenants[..] else {
                    panic!("two tenants")
                };
                assert!((a.share - 0.3).abs() < 0.01, "{detail}: {}", a.share);
                assert!(b.share > 0.1 && b.ops_per_s > 0.0, "{detail}: {}", b.share);
                assert!(
                    a.slowdown.expect("alone") > 1.5,
                    "{detail}: {:?}",
                    a.slowdown
                );
                assert!(
                    b.slowdown.expect("alone") >= 0.99,
                    "{detail}: {:?}",
                    b.slowdown
                );
            }
        }
    }

    #[test]
    fn an_interval_narrows_with_runs_and_holds_the_mean() {
        let mut rng = nyx_base::Rng::with_seed(7);
        let mut interval = |runs: usize| {
            let values: Vec<f64> = (0..runs).map(|_| 10.0 + rng.f64()).collect();
            over_runs(&values).1.expect("several runs")
        };
        let (few, many) = (interval(10), interval(1000));
        assert!(many < few / 3.0 && many > 0.0, "{few}, {many}");
        assert_eq!(over_runs(&[3.0]), (3.0, None));
    }
}
