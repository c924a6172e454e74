//! Figures 8 and 13 of NyxCache (sections 4.3 and 4.6) as scenarios: a latency-critical tenant with
//! a target for its P99, a best-effort one that reads much and does little harm, and one that
//! begins to write. Tests assert their anchors for some seeds; the example `figures` runs many.
//!
//! The paper names the target, the reader's 2.4 GB/s and that the burst takes the P99 from below
//! 1.5 to above 3 us; sizes, threads and the writer's rate are ours, found so that the model does
//! the same. Time is compressed: the paper's windows of 500 ms are 20 ms here, which are 12,000
//! requests of the tenant with the target, and its 12 s before the burst are 60 ms.
//!
//! What it never does: judge. It runs and measures.

use crate::client::Load;
use crate::modelled::Modelled;
use crate::scenario::{Outcome, Part, PartOutcome, Scenario};
use nyx_base::Nanos;
use nyx_policy::baselines::{CaladanLike, caladan};
use nyx_policy::mechanism::throttle::Bounds;
use nyx_policy::sharing::qos::{Class, Member, Mode, Params, Qos, Target};
use nyx_policy::{Act, Policy};

/// The P99 that the critical tenant was promised.
pub const TARGET: Nanos = Nanos(1_500);
/// What the reader moves while nobody writes, in bytes per second.
pub const READER_BYTES_PER_S: f64 = 2.4e9;
/// What the writer moves while nobody stops it, in bytes per second.
pub const WRITER_BYTES_PER_S: f64 = 1.5e9;
/// Windows of the outcome, and of policies that have windows of a fixed length.
pub const WINDOW: Nanos = Nanos::from_millis(20);
/// How much longer the paper's windows are.
pub const COMPRESSED: f64 = 25.0;
/// When the writer begins.
pub const BURST: Nanos = Nanos::from_millis(60);
/// Windows at the end in which everything has settled.
const SETTLED: usize = 5;
/// A target is kept again from the first of so many windows that keep it.
const KEPT_WINDOWS: usize = 3;

/// The places of the tenants.
pub const CRITICAL: usize = 0;
/// See [`CRITICAL`].
pub const READER: usize = 1;
/// See [`CRITICAL`].
pub const WRITER: usize = 2;
const NAMES: [&str; 3] = ["critical", "reader", "writer"];

/// How the best-effort tenants ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// So many threads that wait for each answer, as the paper's: what they may not do now they
    /// never do.
    Closed,
    /// At random times, whatever was answered: what they may not do now they do later.
    Open,
}

fn load(value_bytes: usize, gets: f64, batch: usize) -> Load {
    // Working sets of 10 GB, as the paper's.
    let keys = (10 << 30) / value_bytes as u64;
    Load::uniform(keys, value_bytes, gets, batch)
}

/// A best-effort tenant of eight threads that moves about `bytes_per_s` where nobody stops it;
/// `batch` is how long one of its batches takes then.
fn best_effort(at: usize, load: Load, bytes_per_s: f64, batch: Nanos, demand: Demand) -> Part {
    let clients = 8;
    let batches_per_s = bytes_per_s / (load.value_bytes * load.batch) as f64;
    let round_ns = f64::from(clients) / batches_per_s * 1e9;
    let (think, rate) = match demand {
        Demand::Closed => (Nanos(round_ns as u64 - batch.0), None),
        Demand::Open => (Nanos(100), Some(batches_per_s)),
    };
    Part {
        rate,
        ..Part::closed(NAMES[at], load, clients, think)
    }
}

/// The scenario of figure 8.
pub fn qos(
    device: Modelled,
    policy: Box<dyn Policy>,
    demand: Demand,
    length: Nanos,
    seed: u64,
) -> Scenario {
    let critical = Part {
        rate: Some(0.6e6),
        ..Part::closed(NAMES[CRITICAL], load(1024, 1.0, 1), 16, Nanos(100))
    };
    let (gets, sets) = (load(4096, 1.0, 1), load(1024, 0.0, 8));
    let reader = best_effort(READER, gets, READER_BYTES_PER_S, Nanos(1_250), demand);
    let writer = best_effort(WRITER, sets, WRITER_BYTES_PER_S, Nanos(3_000), demand);
    let writer = Part {
        active: BURST..Nanos(u64::MAX),
        ..writer
    };
    Scenario {
        device,
        parts: vec![critical, reader, writer],
        policy,
        length,
        window: WINDOW,
        seed,
    }
}

/// Nyx's policy for it. `ExperimentStep` in bytes per second. The windows of the adaptive mode end
/// when they have samples enough, so they are not compressed.
pub fn nyx(mode: Mode, step_bytes_per_s: f64) -> Box<dyn Policy> {
    let member = |(at, name): (usize, &str)| Member {
        name: name.into(),
        class: match at {
            CRITICAL => Class::Critical(Target::Quantile(0.99, TARGET)),
            _ => Class::BestEffort,
        },
        bounds: Bounds::NONE,
    };
    let params = Params {
        mode,
        step_bytes_per_s,
        window_max: match mode {
            Mode::Adaptive => Params::default().window_max,
            Mode::Paper => WINDOW,
        },
        ..Params::default()
    };
    Box::new(Qos::new(
        NAMES.into_iter().enumerate().map(member).collect(),
        params,
    ))
}

/// What it is compared with.
pub fn caladan_like(step_bytes_per_s: f64) -> Box<dyn Policy> {
    let target = caladan::Target {
        latency: TARGET,
        quantile: Some(0.99),
    };
    let settings = caladan::Settings {
        window: WINDOW,
        step_bytes_per_s,
        samples: 2_000,
    };
    let targets = vec![Some(target), None, None];
    Box::new(CaladanLike::new(targets, settings))
}

/// What is to be looked at in an outcome of [`qos`].
#[derive(Clone, Debug)]
pub struct Findings {
    /// The critical tenant's P99 in the window before the burst, in nanoseconds.
    pub before_ns_p99: f64,
    /// The medians over the last windows of its P50, P99 and P99.9, in nanoseconds.
    pub settled_ns: [f64; 3],
    /// From the burst until its target was kept again for some windows; none where it was not.
    pub kept_after: Option<Nanos>,
    /// What the reader moves at the end, in bytes per second.
    pub reader_bytes_per_s: f64,
    /// What the writer moves at the end, in bytes per second.
    pub writer_bytes_per_s: f64,
    /// Who was throttled, each time.
    pub throttled: Vec<usize>,
}

impl Findings {
    /// Of an outcome with at least as many windows as settle.
    pub fn of(outcome: &Outcome) -> Findings {
        let windows = &outcome.parts[CRITICAL].windows;
        let burst = (BURST.0 / WINDOW.0) as usize;
        let is_kept = |at: &usize| {
            let next = &windows[*at..*at + KEPT_WINDOWS];
            next.iter().all(|window| window.p99_ns <= TARGET.0 as f64)
        };
        let kept_at = (burst..=windows.len() - KEPT_WINDOWS).find(is_kept);
        let settled = &windows[windows.len() - SETTLED..];
        let throttled = outcome.decisions.iter().filter_map(|decision| {
            matches!(decision.act, Act::Throttle { .. }).then_some(decision.tenant)
        });
        Findings {
            before_ns_p99: windows[burst - 1].p99_ns,
            settled_ns: [
                median(settled.iter().map(|window| window.p50_ns)),
                median(settled.iter().map(|window| window.p99_ns)),
                median(settled.iter().map(|window| window.p999_ns)),
            ],
            kept_after: kept_at.map(|at| Nanos((at - burst + 1) as u64 * WINDOW.0)),
            reader_bytes_per_s: bytes_per_s(&outcome.parts[READER]),
            writer_bytes_per_s: bytes_per_s(&outcome.parts[WRITER]),
            throttled: throttled.collect(),
        }
    }

    /// Somebody was throttled, and nobody but the writer.
    pub fn only_the_writer_was_throttled(&self) -> bool {
        !self.throttled.is_empty() && self.throttled.iter().all(|&tenant| tenant == WRITER)
    }
}

fn bytes_per_s(part: &PartOutcome) -> f64 {
    let settled = &part.windows[part.windows.len() - SETTLED..];
    let bytes: u64 = settled.iter().map(|window| window.bytes).sum();
    bytes as f64 / (WINDOW.as_secs_f64() * SETTLED as f64)
}

/// The middle one, or the upper of the two in the middle; not a number where there are none.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
