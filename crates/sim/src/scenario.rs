//! A scenario in virtual time: one modelled device, some tenants, closed-loop clients, a policy.
//! The engine is the server's own; only the clock and the waiting are virtual.
//!
//! Each client is a worker with a time of its own; the driver always runs the one that is furthest
//! behind. The same seed gives the same trace, on any machine. Numbers from here are *simulated*.

use crate::client::{Client, Done, Load};
use crate::clock::VirtualClock;
use nyx_base::{Bytes, DevicePs, Instant, Nanos, Now, TenantId, UnixSeconds, WorkerId};
use nyx_engine::{Engine, EngineConfig, EngineError, HoldAction, TenantConfig, Worker};
use nyx_gate::{CostTable, Device};
use nyx_media::model::Params;
use nyx_media::{Emulated, Mapped, MediaError};
use nyx_policy::Policy;
use nyx_store::{Eviction, Layout};
use std::sync::Arc;

/// One tenant of a scenario and its clients.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// What each of its clients asks for; the tenant is filled in by the scenario.
    pub load: Load,
    /// How many clients.
    pub clients: u16,
    /// CPU time of one operation outside of the device.
    pub think: Nanos,
}

/// What is simulated.
pub struct Scenario {
    /// The device.
    pub params: Params,
    /// Its prices.
    pub cost: CostTable,
    /// Who is on it.
    pub parts: Vec<Part>,
    /// Who decides.
    pub policy: Box<dyn Policy>,
    /// For how long.
    pub length: Nanos,
    /// Windows in which use is recorded.
    pub window: Nanos,
    /// Seeds everything.
    pub seed: u64,
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// In the order of the parts.
    pub parts: Vec<PartOutcome>,
    /// Device time by the model's own count, in the run and not in the fill.
    pub busy: DevicePs,
    /// Equal for equal runs.
    pub trace: u64,
}

/// What came out for one tenant.
#[derive(Clone, Debug)]
pub struct PartOutcome {
    /// Its clients together.
    pub done: Done,
    /// Device time charged.
    pub used: DevicePs,
    /// Device time charged in each window.
    pub windows: Vec<DevicePs>,
}

/// Why a scenario cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The medium cannot be had.
    #[error("scenario's medium: {0}")]
    Media(#[from] MediaError),
    /// The engine refused.
    #[error("scenario's engine: {0}")]
    Engine(#[from] EngineError),
}

const SEGMENT_BYTES: u32 = 1 << 20;

/// Room for `load`'s values, keys and the segments that clients keep open.
fn size_of(part: &Part) -> Bytes {
    let item = part.load.value_bytes as u64 + 96;
    let live = part.load.keys * item;
    Bytes(
        (live * 2 + (u64::from(part.clients) + 8) * 4 * u64::from(SEGMENT_BYTES))
            .next_multiple_of(u64::from(SEGMENT_BYTES)),
    )
}

struct Runner {
    client: Client,
    worker: Worker,
    part: usize,
    think: Nanos,
    time: Instant,
}

impl Scenario {
    /// Runs it.
    pub fn run(self) -> Result<Outcome, ScenarioError> {
        let clock = Arc::new(VirtualClock::default());
        let (engine, media) = self.build(&clock)?;
        let mut runners = self.runners(&engine, &clock);
        for part in 0..self.parts.len() {
            let filler = runners.iter_mut().find(|runner| runner.part == part);
            if let Some(runner) = filler {
                runner
                    .client
                    .fill(&engine, &mut runner.worker, Now::default());
            }
        }
        let start = Instant(clock_of(&clock).0 + 1_000_000);
        runners.iter_mut().for_each(|runner| runner.time = start);
        engine.set_policy(self.policy);
        let busy_before = media.busy();
        let used_before: Vec<DevicePs> = engine.tenants().iter().map(|t| t.usage().used).collect();
        let windows = drive(
            &engine,
            &clock,
            &mut runners,
            start,
            self.length,
            self.window,
        );
        let parts: Vec<PartOutcome> = (0..self.parts.len())
            .map(|part| PartOutcome {
                done: sum(runners
                    .iter()
                    .filter(|r| r.part == part)
                    .map(|r| r.client.done())),
                used: engine.tenants()[part]
                    .usage()
                    .used
                    .saturating_sub(used_before[part]),
                windows: windows.iter().map(|window| window[part]).collect(),
            })
            .collect();
        let trace = parts
            .iter()
            .fold(0, |hash: u64, p| hash.rotate_left(11) ^ p.done.trace);
        Ok(Outcome {
            parts,
            busy: media.busy().saturating_sub(busy_before),
            trace,
        })
    }

    fn build(
        &self,
        clock: &Arc<VirtualClock>,
    ) -> Result<(Engine, Arc<Emulated<Mapped>>), ScenarioError> {
        let sizes: Vec<Bytes> = self.parts.iter().map(size_of).collect();
        let medium = Mapped::anonymous(sizes.iter().map(|size| size.0).sum())?;
        let params = self.params.clone();
        let media = Arc::new(Emulated::in_virtual_time(medium, params, clock.clone()));
        let device = Device {
            name: "sim".into(),
            media: media.clone(),
            cost: self.cost.clone(),
        };
        let tenants = self
            .parts
            .iter()
            .zip(&sizes)
            .map(|(part, &size)| TenantConfig {
                name: part.name.clone(),
                device: 0,
                size,
                segment_bytes: SEGMENT_BYTES,
                item_len_max: SEGMENT_BYTES,
                eviction: Eviction::Fifo,
                layout: Layout::Split,
                hold: HoldAction::Delay,
            });
        let engine = Engine::new(EngineConfig {
            devices: vec![Arc::new(device)],
            tenants: tenants.collect(),
            policy: Box::new(nyx_policy::baselines::Unlimited),
            workers: self.parts.iter().map(|part| part.clients).sum(),
            hash_seed: self.seed,
        })?;
        Ok((engine, media))
    }

    fn runners(&self, engine: &Engine, clock: &Arc<VirtualClock>) -> Vec<Runner> {
        let each = self.parts.iter().enumerate();
        let clients = each.flat_map(|(at, part)| (0..part.clients).map(move |_| (at, part)));
        clients
            .zip(0u16..)
            .map(|((at, part), index)| {
                let load = Load {
                    tenant: TenantId(at as u16),
                    ..part.load.clone()
                };
                Runner {
                    client: Client::new(load, self.seed ^ (u64::from(index) << 32)),
                    worker: engine.worker(WorkerId(index), clock.clone()),
                    part: at,
                    think: part.think,
                    time: Instant(0),
                }
            })
            .collect()
    }
}

fn clock_of(clock: &VirtualClock) -> Instant {
    nyx_base::Clock::now(clock)
}

fn sum(done: impl Iterator<Item = Done>) -> Done {
    done.fold(Done::default(), |sum, one| Done {
        ops: sum.ops + one.ops,
        hits: sum.hits + one.hits,
        holds: sum.holds + one.holds,
        trace: sum.trace.rotate_left(13) ^ one.trace,
    })
}

/// Runs the clients; gives the device time that each tenant was charged in each window.
fn drive(
    engine: &Engine,
    clock: &VirtualClock,
    runners: &mut [Runner],
    start: Instant,
    length: Nanos,
    window: Nanos,
) -> Vec<Vec<DevicePs>> {
    let used = || -> Vec<DevicePs> { engine.tenants().iter().map(|t| t.usage().used).collect() };
    let (mut before, mut windows) = (used(), Vec::new());
    let (mut tick, mut close) = (start, start + window);
    while let Some(runner) = runners.iter_mut().min_by_key(|runner| runner.time) {
        let at = runner.time;
        while tick <= at {
            tick += engine.control(tick);
        }
        while close <= at {
            let now_used = used();
            let differences = now_used.iter().zip(&before).map(|(now, was)| *now - *was);
            windows.push(differences.collect());
            before = now_used;
            close += window;
        }
        if at >= start + length {
            return windows;
        }
        clock.set(at);
        let unix = UnixSeconds((at.0 / 1_000_000_000) as u32 + 1);
        let wait = runner
            .client
            .step(engine, &mut runner.worker, Now { mono: at, unix });
        let spent = clock_of(clock) + runner.think;
        // Who waits for the controller is asked again at its next tick.
        runner.time = match wait {
            Some(until) if until == Instant::NEVER => tick,
            Some(until) => until.max(spent),
            None => spent,
        };
    }
    windows
}
