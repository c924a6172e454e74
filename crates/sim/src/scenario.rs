//! A scenario in virtual time: one modelled device, some tenants, their clients, a policy. Here it
//! runs through the engine, which is the server's own; only the clock and the waiting are virtual.
//! [`crate::library`] runs the same scenarios beneath the engine, on the device model from which
//! tails may be claimed; from here they may not. [`crate::emulated`] runs them in real time.
//!
//! Each client is a worker with a time of its own; the driver always runs the one that is furthest
//! behind. The same seed gives the same trace, on any machine. Numbers from here are *simulated*.

use crate::client::{Client, Done, Load};
use crate::clock::VirtualClock;
use crate::emulated::Disturbance;
use crate::modelled::Modelled;
use nyx_base::{
    Bytes, DevicePs, Instant, Latencies, Nanos, Now, Rng, TenantId, UnixSeconds, WorkerId,
};
use nyx_engine::{Engine, EngineConfig, EngineError, Tenant, TenantConfig, Worker};
use nyx_gate::{Device, Usage};
use nyx_media::model::Params;
use nyx_media::model::event::Access;
use nyx_media::{Emulated, Mapped, MediaError};
use nyx_policy::baselines::Unlimited;
use nyx_policy::{Decision, Policy};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// What a client that means to gain by it knows when a batch of it was answered.
#[derive(Clone, Copy, Debug)]
pub struct Plight {
    /// Time since the scenario's begin.
    pub now: Nanos,
    /// How long the batch took.
    pub took: Nanos,
    /// How often it was held meanwhile.
    pub holds: u64,
}

/// Decides how long a client rests before its next batch. All clients of a part share one, and
/// what it remembers.
#[derive(Clone)]
pub struct Behaviour(Arc<dyn Fn(Plight) -> Nanos + Send + Sync>);

impl Behaviour {
    /// Behaves as `rest` says.
    pub fn new(rest: impl Fn(Plight) -> Nanos + Send + Sync + 'static) -> Behaviour {
        Behaviour(Arc::new(rest))
    }
}

impl fmt::Debug for Behaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Behaviour")
    }
}

/// Days and nights: from midnight to noon the intensity grows evenly from its least to all, and
/// back until midnight. Where clients wait for answers, intensity is the part of the time in which
/// they are busy; where they do not, it is a part of their rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Day {
    /// From midnight to midnight.
    pub length: Nanos,
    /// The intensity at midnight, over 0 to 1.
    pub night: f64,
}

impl Day {
    fn intensity(&self, at: Nanos) -> f64 {
        let hour = (at.0 % self.length.0) as f64 / self.length.0 as f64;
        let light = 1.0 - (2.0 * hour - 1.0).abs();
        self.night + (1.0 - self.night) * light
    }
}

/// Some clients of one tenant. Parts of one name are of one tenant, which so may have clients that
/// come at other times, ask for other things, or at another rate.
#[derive(Clone, Debug)]
pub struct Part {
    /// The tenant's name.
    pub name: String,
    /// What each of its clients asks for; the tenant is filled in by the scenario.
    pub load: Load,
    /// How many clients.
    pub clients: u16,
    /// CPU time of one batch outside of the device.
    pub think: Nanos,
    /// When its clients begin and end, from the scenario's begin on.
    pub active: Range<Nanos>,
    /// In between they ask for so long and rest for so long, again and again.
    pub on_off: Option<[Nanos; 2]>,
    /// How its intensity goes up and down.
    pub day: Option<Day>,
    /// Batches a second of all its clients, at random times: an open loop, whose latencies count
    /// from when a batch was due. None is a closed loop.
    pub rate: Option<f64>,
    /// What its clients do beside that, where they have a mind of their own.
    pub behaviour: Option<Behaviour>,
    /// By which instructions they read and write; the library's driver alone can tell.
    pub access: [Access; 2],
}

impl Part {
    /// A closed loop of `clients` from begin to end.
    pub fn closed(name: &str, load: Load, clients: u16, think: Nanos) -> Part {
        Part {
            name: name.into(),
            load,
            clients,
            think,
            active: Nanos::ZERO..Nanos(u64::MAX),
            on_off: None,
            day: None,
            rate: None,
            behaviour: None,
            access: [Access::Load, Access::StoreNt],
        }
    }

    /// The part of its full intensity at that time.
    pub(crate) fn intensity(&self, at: Nanos) -> f64 {
        let since = Nanos(at.0.saturating_sub(self.active.start.0));
        self.day.map_or(1.0, |day| day.intensity(since))
    }

    /// Whether its clients ask at that time.
    pub(crate) fn is_on(&self, at: Nanos) -> bool {
        self.active.contains(&at) && self.on_from(at) == at
    }

    /// The next time at which its clients ask, if they do not end before.
    pub(crate) fn on_from(&self, at: Nanos) -> Nanos {
        let Some([on, off]) = self.on_off else {
            return at;
        };
        let begun = at.0.saturating_sub(self.active.start.0);
        let into = begun % (on.0 + off.0);
        match into < on.0 {
            true => at,
            false => Nanos(at.0 + on.0 + off.0 - into),
        }
    }

    /// When that changes after `at`.
    pub(crate) fn changes_after(&self, at: Nanos) -> Nanos {
        let ends = [self.active.start, self.active.end].into_iter();
        let toggle = self.on_off.map(|[on, off]| {
            let begun = at.0.saturating_sub(self.active.start.0);
            let into = begun % (on.0 + off.0);
            let next = if into < on.0 { on.0 } else { on.0 + off.0 };
            Nanos(at.0 + next - into)
        });
        let later = ends.chain(toggle).filter(|&change| change > at);
        later.min().unwrap_or(Nanos(u64::MAX))
    }
}

/// What is simulated.
pub struct Scenario {
    /// The device and its prices.
    pub device: Modelled,
    /// Who is on it. A tenant is as its first part keeps it.
    pub parts: Vec<Part>,
    /// Who decides.
    pub policy: Box<dyn Policy>,
    /// For how long.
    pub length: Nanos,
    /// Windows in which use and latency are recorded.
    pub window: Nanos,
    /// Seeds everything.
    pub seed: u64,
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Of each tenant, in the order in which the parts name them.
    pub parts: Vec<PartOutcome>,
    /// Device time by the model's own count, in the run and not in the fill.
    pub busy: DevicePs,
    /// What the policy did, the last of it.
    pub decisions: Vec<Decision>,
    /// Equal for equal runs in virtual time; in real time there are none, and it is 0.
    pub trace: u64,
    /// How far the run was disturbed; none in virtual time, where nothing disturbs.
    pub disturbance: Option<Disturbance>,
}

/// What came out for one tenant.
#[derive(Clone, Debug)]
pub struct PartOutcome {
    /// Its clients together.
    pub done: Done,
    /// Device time charged.
    pub used: DevicePs,
    /// What it did in each window.
    pub windows: Vec<WindowOutcome>,
    /// Latencies of the whole run.
    pub latencies: Latencies,
}

/// What one tenant did in one window.
#[derive(Clone, Debug)]
pub struct WindowOutcome {
    /// Device time charged.
    pub used: DevicePs,
    /// Bytes moved.
    pub bytes: u64,
    /// Requests answered.
    pub ops: u64,
    /// Their mean latency in nanoseconds; zero where there were none, as are the following.
    pub mean_ns: f64,
    /// Their median.
    pub p50_ns: f64,
    /// Their P99.
    pub p99_ns: f64,
    /// Their P99.9.
    pub p999_ns: f64,
    /// All of them, to be added to those of other windows.
    pub latencies: Latencies,
}

/// Why a scenario cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The medium cannot be had.
    #[error("scenario's medium: {0}")]
    Media(#[from] MediaError),
    /// The values are more than the machine holds.
    #[error(
        "the tenants' values take {}, and this machine has {} of memory: fewer keys, or \
         run.detail = \"device\", which keeps no values",
        Bytes(*.asked_bytes),
        Bytes(*.machine_bytes)
    )]
    Memory {
        /// What the tenants ask for.
        asked_bytes: u64,
        /// What there is in all.
        machine_bytes: u64,
    },
    /// The engine refused.
    #[error("scenario's engine: {0}")]
    Engine(#[from] EngineError),
    /// A thread cannot be started.
    #[error("scenario's thread: {0}")]
    Thread(#[source] std::io::Error),
}

/// A client, and when it comes. Whoever runs it has a worker and the time.
pub(crate) struct Caller {
    pub(crate) client: Client,
    /// The place of its tenant.
    pub(crate) tenant: usize,
    pub(crate) of: Part,
    /// Holds up to the batch in hand.
    holds: u64,
    rng: Rng,
    /// When the batch in hand was due.
    pub(crate) due: Instant,
    /// Whether its thread has begun with it, where threads are shared.
    in_hand: bool,
    /// How much of its thread's time it has had, where threads are shared.
    pub(crate) had: Nanos,
    /// When it can go on.
    pub(crate) time: Instant,
}

impl Caller {
    /// Lets it begin when it is to, in a scenario that starts at `start`.
    pub(crate) fn begin(&mut self, start: Instant) {
        self.due = start + self.of.active.start;
        self.time = self.due;
    }

    /// Its thread has time for it. In a closed loop that is when a batch begins, unless it is in
    /// hand already.
    pub(crate) fn take_up(&mut self, now: Instant) {
        if !self.in_hand && self.of.rate.is_none() {
            self.due = now;
        }
        self.in_hand = true;
    }

    /// The batch in hand is answered: when is the next one due?
    pub(crate) fn next_batch(&mut self, now: Instant, start: Instant) {
        let holds = self.client.done().holds;
        let plight = Plight {
            now: now.since(start),
            took: now.since(self.due),
            holds: holds - self.holds,
        };
        (self.holds, self.in_hand) = (holds, false);
        let intensity = self.of.intensity(plight.now);
        self.due = match self.of.rate {
            None => {
                let rest_ns = plight.took.0 as f64 * (1.0 / intensity - 1.0);
                now + self.of.think + Nanos(rest_ns as u64)
            }
            Some(rate) => {
                let rate = rate * intensity / f64::from(self.of.clients);
                let gap_s = -(1.0 - self.rng.f64()).ln() / rate;
                self.due + Nanos((gap_s * 1e9) as u64)
            }
        };
        if let Some(Behaviour(rest)) = &self.of.behaviour {
            self.due = self.due.max(now + rest(plight));
        }
        self.due = start + self.of.on_from(self.due.since(start));
        self.time = self.due.max(now + self.of.think);
    }
}

/// As many bytes of values, unless they would have the process killed instead of refused.
fn affordable(asked_bytes: u64) -> Result<u64, ScenarioError> {
    let system = rustix::system::sysinfo();
    let machine_bytes = system.totalram as u64 * u64::from(system.mem_unit);
    match asked_bytes <= machine_bytes {
        true => Ok(asked_bytes),
        false => Err(ScenarioError::Memory {
            asked_bytes,
            machine_bytes,
        }),
    }
}

impl Scenario {
    /// Runs it.
    pub fn run(mut self) -> Result<Outcome, ScenarioError> {
        let policy = std::mem::replace(&mut self.policy, Box::new(Unlimited));
        let clock = Arc::new(VirtualClock::default());
        let (engine, media) = self.build(None, |medium, params| {
            Emulated::in_virtual_time(medium, params, clock.clone())
        })?;
        let callers = self.callers().into_iter().zip(0u16..);
        let mut runners: Vec<Runner> = callers
            .map(|(caller, index)| Runner {
                caller,
                worker: engine.worker(WorkerId(index), clock.clone()),
            })
            .collect();
        for tenant in 0..engine.tenants().len() {
            let mut of = runners.iter_mut();
            if let Some(Runner { caller, worker }) = of.find(|r| r.caller.tenant == tenant) {
                caller.client.fill(&engine, worker, Now::default());
            }
        }
        let start = Instant(clock_of(&clock).0 + 1_000_000);
        let callers = runners.iter_mut().map(|runner| &mut runner.caller);
        callers.for_each(|caller| caller.begin(start));
        engine.set_policy(policy);
        let busy_before = media.busy();
        let before = Reading::of(&engine);
        let run = Run {
            engine: &engine,
            clock: &clock,
            start,
            end: start + self.length,
            window: self.window,
        };
        let windows = run.drive(&mut runners);
        let callers: Vec<&Caller> = runners.iter().map(|runner| &runner.caller).collect();
        let parts = parts_of(&callers, [&before, &Reading::of(&engine)], &windows);
        Ok(Outcome {
            busy: media.busy().saturating_sub(busy_before),
            decisions: engine.decisions_since(0).1,
            disturbance: None,
            trace: trace(&parts),
            parts,
        })
    }

    /// The engine, and the device that `emulate` makes of memory and a model. Without a number of
    /// `workers` each client is one.
    pub(crate) fn build(
        &self,
        workers: Option<u16>,
        emulate: impl FnOnce(Mapped, Params) -> Emulated<Mapped>,
    ) -> Result<(Engine, Arc<Emulated<Mapped>>), ScenarioError> {
        let tenant = |part: &Part| {
            let of = self.parts.iter().filter(|other| other.name == part.name);
            let own = || of.map(|of| of.clients).sum();
            part.load.tenant(&part.name, workers.unwrap_or_else(own))
        };
        let tenants: Vec<TenantConfig> = self.tenants().into_iter().map(tenant).collect();
        let medium = Mapped::anonymous(affordable(tenants.iter().map(|t| t.size.0).sum())?)?;
        let media = Arc::new(emulate(medium, self.device.params.clone()));
        let device = Device {
            name: "sim".into(),
            media: media.clone(),
            cost: self.device.cost.clone(),
        };
        let engine = Engine::new(EngineConfig {
            devices: vec![Arc::new(device)],
            deep_devices: Vec::new(),
            tenants,
            tenants_max: 0,
            policy: Box::new(Unlimited).into(),
            workers: workers.unwrap_or_else(|| self.parts.iter().map(|part| part.clients).sum()),
            hash_seed: self.seed,
        })?;
        Ok((engine, media))
    }

    /// The first part of each tenant.
    pub(crate) fn tenants(&self) -> Vec<&Part> {
        let mut firsts: Vec<&Part> = Vec::new();
        for part in &self.parts {
            if firsts.iter().all(|first| first.name != part.name) {
                firsts.push(part);
            }
        }
        firsts
    }

    /// The parts, each with its tenant's place.
    pub(crate) fn placed(&self) -> Vec<(usize, &Part)> {
        let tenants = self.tenants();
        let place = |part: &Part| tenants.iter().position(|first| first.name == part.name);
        let placed = self
            .parts
            .iter()
            .filter_map(|part| Some((place(part)?, part)));
        placed.collect()
    }

    /// Every client, in the order of the parts.
    pub(crate) fn callers(&self) -> Vec<Caller> {
        let each = self.placed().into_iter();
        let clients = each.flat_map(|(at, part)| (0..part.clients).map(move |_| (at, part)));
        clients
            .zip(0u16..)
            .map(|((at, part), index)| {
                let load = Load {
                    tenant: TenantId(at as u16),
                    ..part.load.clone()
                };
                Caller {
                    client: Client::new(load, self.seed ^ (u64::from(index) << 32)),
                    tenant: at,
                    of: part.clone(),
                    holds: 0,
                    rng: Rng::with_seed(self.seed.wrapping_mul(31) ^ u64::from(index)),
                    due: Instant(0),
                    in_hand: false,
                    had: Nanos::ZERO,
                    time: Instant(0),
                }
            })
            .collect()
    }
}

/// A client that is a worker.
struct Runner {
    caller: Caller,
    worker: Worker,
}

fn clock_of(clock: &VirtualClock) -> Instant {
    nyx_base::Clock::now(clock)
}

/// One hash for what all tenants did.
pub(crate) fn trace(parts: &[PartOutcome]) -> u64 {
    let each = parts.iter().map(|part| part.done.trace);
    each.fold(0, |hash: u64, trace| hash.rotate_left(11) ^ trace)
}

pub(crate) fn sum(done: impl Iterator<Item = Done>) -> Done {
    done.fold(Done::default(), |sum, one| Done {
        ops: sum.ops + one.ops,
        hits: sum.hits + one.hits,
        holds: sum.holds + one.holds,
        trace: sum.trace.rotate_left(13) ^ one.trace,
    })
}

/// What each tenant did between two readings.
pub(crate) fn parts_of(
    callers: &[&Caller],
    [before, after]: [&[Reading]; 2],
    windows: &[Vec<WindowOutcome>],
) -> Vec<PartOutcome> {
    let part = |at: usize| {
        let of = callers.iter().filter(|caller| caller.tenant == at);
        PartOutcome {
            done: sum(of.map(|caller| caller.client.done())),
            used: after[at].usage.used() - before[at].usage.used(),
            windows: windows.iter().map(|window| window[at].clone()).collect(),
            latencies: after[at].latencies.since(&before[at].latencies),
        }
    };
    (0..after.len()).map(part).collect()
}

/// What one tenant did so far.
#[derive(Clone)]
pub(crate) struct Reading {
    pub(crate) usage: Usage,
    pub(crate) latencies: Latencies,
}

impl Reading {
    /// Of every tenant.
    pub(crate) fn of(engine: &Engine) -> Vec<Reading> {
        let one = |tenant: &Tenant| {
            let mut latencies = Latencies::default();
            tenant.add_latencies(&mut latencies);
            Reading {
                usage: tenant.usage(),
                latencies,
            }
        };
        engine.tenants().iter().map(one).collect()
    }

    /// What every tenant did since an earlier reading.
    pub(crate) fn windows_since(now: &[Reading], before: &[Reading]) -> Vec<WindowOutcome> {
        let each = now.iter().zip(before);
        each.map(|(now, was)| now.window_since(was)).collect()
    }

    fn window_since(&self, before: &Reading) -> WindowOutcome {
        let usage = self.usage - before.usage;
        let latencies = self.latencies.since(&before.latencies);
        let quantile = |q| latencies.quantile_ns(q).unwrap_or(0.0);
        WindowOutcome {
            used: usage.used(),
            bytes: usage.read_bytes + usage.written_bytes,
            ops: latencies.count(),
            mean_ns: latencies.mean_ns().unwrap_or(0.0),
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            p999_ns: quantile(0.999),
            latencies,
        }
    }
}

/// The frame of a run.
struct Run<'a> {
    engine: &'a Engine,
    clock: &'a VirtualClock,
    start: Instant,
    end: Instant,
    window: Nanos,
}

impl Run<'_> {
    /// Runs the clients; gives what each tenant did in each window.
    fn drive(&self, runners: &mut [Runner]) -> Vec<Vec<WindowOutcome>> {
        let (mut before, mut windows) = (Reading::of(self.engine), Vec::new());
        let (mut tick, mut close) = (self.start, self.start + self.window);
        while let Some(runner) = runners.iter_mut().min_by_key(|runner| runner.caller.time) {
            let at = runner.caller.time.min(self.end);
            while tick <= at {
                tick += self.engine.control(tick);
            }
            while close <= at {
                let now = Reading::of(self.engine);
                windows.push(Reading::windows_since(&now, &before));
                before = now;
                close += self.window;
            }
            if at >= self.end {
                return windows;
            }
            self.step(runner, tick);
        }
        windows
    }

    fn step(&self, Runner { caller, worker }: &mut Runner, tick: Instant) {
        let at = caller.time;
        if at.since(self.start) >= caller.of.active.end {
            caller.time = Instant::NEVER;
            return;
        }
        self.clock.set(at);
        let before = caller.client.done().ops;
        let wait = caller.client.step(self.engine, worker, both_at(at));
        let spent = clock_of(self.clock);
        let done = (caller.client.done().ops - before) as u32;
        if done > 0 {
            let (tenant, took) = (TenantId(caller.tenant as u16), spent.since(caller.due));
            self.engine.record(worker.id(), tenant, took, done);
        }
        match wait {
            // Who waits for the controller is asked again at its next tick.
            Some(Instant::NEVER) => caller.time = tick,
            Some(until) => caller.time = until.max(spent).min(spent + HOLD_MOST),
            None => caller.next_batch(spent, self.start),
        }
    }
}

/// Both times, in a scenario in which nothing expires.
pub(crate) fn both_at(mono: Instant) -> Now {
    let unix = UnixSeconds((mono.0 / 1_000_000_000) as u32 + 1);
    Now { mono, unix }
}

/// How long a client sleeps under a limit that may be raised meanwhile, as in the server.
pub(crate) const HOLD_MOST: Nanos = Nanos::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(rate: Option<f64>) -> Caller {
        let part = Part {
            rate,
            ..Part::closed("a", Load::uniform(10, 64, 1.0, 1), 1, Nanos(300))
        };
        let scenario = Scenario {
            device: Modelled {
                params: Params::resolve("optane-2dimm/8").expect("a preset"),
                cost: nyx_gate::CostTable::unpriced(),
            },
            parts: vec![part],
            policy: Box::new(nyx_policy::baselines::Unlimited),
            length: Nanos::from_secs(1),
            window: Nanos::from_secs(1),
            seed: 1,
        };
        scenario.callers().remove(0)
    }

    #[test]
    fn a_closed_loop_on_a_shared_thread_counts_from_when_its_batch_began() {
        let mut caller = caller(None);
        caller.begin(Instant(1_000));
        caller.take_up(Instant(5_000));
        assert_eq!(caller.due, Instant(5_000));
        caller.take_up(Instant(7_000));
        assert_eq!(caller.due, Instant(5_000), "the same batch, after a hold");
        caller.next_batch(Instant(8_000), Instant(1_000));
        assert_eq!(caller.time, Instant(8_300));
        caller.take_up(Instant(9_000));
        assert_eq!(caller.due, Instant(9_000));
    }

    #[test]
    fn an_open_loop_counts_from_when_its_batch_was_due() {
        let mut caller = caller(Some(1e9));
        caller.begin(Instant(1_000));
        caller.take_up(Instant(5_000));
        assert_eq!(caller.due, Instant(1_000));
        caller.next_batch(Instant(90_000), Instant(1_000));
        let due = caller.due;
        assert!(due < Instant(2_000), "a batch every nanosecond: {due:?}");
        assert_eq!(caller.time, Instant(90_300));
        caller.take_up(Instant(95_000));
        assert_eq!(caller.due, due);
    }

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    fn part() -> Part {
        let load = Load::uniform(1, 64, 1.0, 1);
        Part {
            active: ms(10)..ms(100),
            ..Part::closed("p", load, 1, Nanos::ZERO)
        }
    }

    #[test]
    fn a_part_that_rests_asks_in_between_and_says_when_that_changes() {
        let part = Part {
            on_off: Some([ms(5), ms(15)]),
            ..part()
        };
        let on: Vec<u64> = (0..110).filter(|&at| part.is_on(ms(at))).collect();
        let bursts = [10..15, 30..35, 50..55, 70..75, 90..95];
        assert_eq!(on, bursts.into_iter().flatten().collect::<Vec<u64>>());
        assert_eq!(part.on_from(ms(16)), ms(30));
        assert_eq!(part.on_from(ms(31)), ms(31));
        for (at, next) in [(10, 15), (15, 30), (33, 35), (94, 95), (96, 100)] {
            assert_eq!(part.changes_after(ms(at)), ms(next), "{at} ms");
        }
    }

    #[test]
    fn a_day_is_quiet_at_midnight_and_busy_at_noon() {
        let day = Day {
            length: ms(40),
            night: 0.2,
        };
        let part = Part {
            day: Some(day),
            ..part()
        };
        for (at, intensity) in [(10, 0.2), (20, 0.6), (30, 1.0), (40, 0.6), (50, 0.2)] {
            let found = part.intensity(ms(at));
            assert!((found - intensity).abs() < 1e-9, "{at} ms: {found}");
        }
    }
}
