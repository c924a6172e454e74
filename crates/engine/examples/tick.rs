//! What one tick of the controller costs for a thousand tenants and four workers, by policy: CPU
//! time of the engine's look at accounts and latencies, the policy's step, and the budgets. Between
//! two ticks each tenant is asked something by each worker, and has latencies over two octaves,
//! which is not counted.
//!
//! Each policy's run is repeated, and does the same at the same tick: the least of a tick's times
//! is what the tick itself costs. What its other times have beyond that is the machine's, which
//! interrupts, and shares caches and memory with others. Both are told.
//!
//! What it never does: state a figure that it did not measure in this run.
//!
//! `cargo run --release -p nyx-engine --example tick [tenants, default 1000] [policy] [count]`
//!
//! With `count` it reads no clock, runs each policy once and prints nothing, for a tool that counts
//! instructions; the totals of the files that this writes are those of the ticks one by one:
//! `valgrind --tool=callgrind --collect-atstart=no --toggle-collect='tick::tick'
//! --dump-after='tick::tick' target/release/examples/tick 1000 share count`.

#![allow(
    clippy::disallowed_methods,
    reason = "a driver: it measures the CPU time of its thread"
)]

use nyx_base::{Bytes, Clock, DevicePs, Instant, Nanos, Now, TenantId, UnixSeconds, WorkerId};
use nyx_engine::{Binding, Engine, EngineConfig, HoldAction, Session, TenantConfig, Worker};
use nyx_gate::{CostTable, Device};
use nyx_media::Mapped;
use nyx_policy::Policy;
use nyx_policy::baselines::caladan::{self, CaladanLike};
use nyx_policy::baselines::{ByteRate, MemGuardLike, OpRate, StaticPartition, Unlimited};
use nyx_policy::mechanism::alone::Clients;
use nyx_policy::sharing::limit::{Epoch, Leased, Paper};
use nyx_policy::sharing::qos::{self, Class, Member, Qos, Target};
use nyx_policy::sharing::share::{Settings, Share};
use nyx_policy::sharing::slowdown::{self, Slowdown, Terms};
use nyx_proto::{Command, Exptime, Out, Store, StoreVerb};
use nyx_store::{Eviction, Layout};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;

const WORKERS: u16 = 4;
const TICKS: usize = 600;
/// Ticks that are not counted: caches and windows fill.
const WARM: usize = 100;
/// How often a policy runs.
const RUNS: usize = 5;
/// Tenants with a target, where the policy is about targets: one in ten.
const CRITICAL: usize = 10;

struct Still;

impl Clock for Still {
    fn now(&self) -> Instant {
        Instant(0)
    }
    fn spin_until(&self, _until: Instant) {}
}

fn cpu_us() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn engine(tenants: usize) -> Result<Engine, Box<dyn std::error::Error>> {
    let tenant = |at| TenantConfig {
        name: format!("t{at}"),
        device: 0,
        size: Bytes(2 << 20),
        segment_bytes: 64 << 10,
        item_len_max: 4096,
        eviction: Eviction::Fifo,
        layout: Layout::Split,
        hold: HoldAction::Delay,
        keep: None,
        ranges: None,
        deep: None,
    };
    let device = Device {
        name: "memory".into(),
        media: Arc::new(Mapped::anonymous(tenants as u64 * (4 << 20))?),
        cost: CostTable::from_max_iops(&[1e7; _], &[1e7; _]),
    };
    Ok(Engine::new(EngineConfig {
        devices: vec![Arc::new(device)],
        deep_devices: Vec::new(),
        tenants: (0..tenants).map(tenant).collect(),
        tenants_max: 0,
        policy: Box::new(Unlimited).into(),
        workers: WORKERS,
        hash_seed: 1,
    })?)
}

/// The policies, each with what it looks at.
fn policies(n: usize) -> Vec<(&'static str, Box<dyn Policy>)> {
    let share = || Some(DevicePs(500_000_000));
    let target = Nanos::from_micros(30);
    let member = |at: usize| Member {
        name: format!("t{at}"),
        class: match at % CRITICAL {
            0 => Class::Critical(Target::Mean(target)),
            _ => Class::BestEffort,
        },
        bounds: Default::default(),
    };
    let promised = |at: usize| {
        at.is_multiple_of(CRITICAL).then_some(caladan::Target {
            latency: target,
            quantile: None,
        })
    };
    let settings = caladan::Settings {
        window: Nanos::from_millis(10),
        step_bytes_per_s: 1e6,
        samples: 10,
    };
    let terms = |clients| Terms {
        clients,
        ..Terms::default()
    };
    let slowdown = |clients| {
        let params = slowdown::Params::default();
        Box::new(Slowdown::new(params, vec![terms(clients); n]))
    };
    let qos = Qos::new((0..n).map(member).collect(), qos::Params::default());
    vec![
        ("nobody", Box::new(Unlimited)),
        ("nobody", Box::new(Leased::new(vec![share(); n]))),
        (
            "nobody",
            Box::new(Paper::new(vec![share(); n], Epoch::default())),
        ),
        ("one in ten", Box::new(qos)),
        ("nobody", slowdown(Clients::Closed)),
        ("all", slowdown(Clients::Open)),
        (
            "all",
            Box::new(Share::new(&vec![1.0; n], Settings::default())),
        ),
        ("nobody", Box::new(ByteRate::new(vec![Some(1e6); n]))),
        ("nobody", Box::new(OpRate::new(vec![Some(1e3); n]))),
        ("nobody", Box::new(StaticPartition::new(&vec![1.0; n]))),
        (
            "nobody",
            Box::new(MemGuardLike::new(vec![1e6; n], Nanos::from_millis(10))),
        ),
        (
            "one in ten",
            Box::new(CaladanLike::new((0..n).map(promised).collect(), settings)),
        ),
    ]
}

/// Each worker stores something for each tenant, and tells of latencies.
fn work(
    engine: &Engine,
    workers: &mut [Worker],
    sessions: &mut [Session],
    out: &mut Out,
    now: Now,
) {
    for (at, session) in sessions.iter_mut().enumerate() {
        for (w, worker) in workers.iter_mut().enumerate() {
            worker.enter();
            let command = Command::Store(Store {
                key: b"key",
                data: b"value",
                cas: 0,
                exptime: Exptime::NEVER,
                flags: 0,
                verb: StoreVerb::Set,
                noreply: false,
            });
            let request = engine.request(session, command);
            engine.execute(worker, session, &request, now, out);
            out.consume(out.len());
            worker.leave();
            for i in 0..8 {
                let took = Nanos(10_000 + 1_000 * ((at + w + i) as u64 % 40));
                engine.record(worker.id(), TenantId(at as u16), took, 4);
            }
        }
    }
}

/// What is measured, for a tool to find.
#[inline(never)]
fn tick(engine: &Engine, now: Instant) -> Nanos {
    engine.control(now)
}

/// An engine with its drivers' side.
struct Bench {
    engine: Engine,
    workers: Vec<Worker>,
    sessions: Vec<Session>,
    out: Out,
    now: Instant,
}

impl Bench {
    fn new(tenants: usize) -> Result<Bench, Box<dyn std::error::Error>> {
        let engine = engine(tenants)?;
        let clock: Arc<dyn Clock> = Arc::new(Still);
        let worker = |index| engine.worker(WorkerId(index), clock.clone());
        let session = |at: usize| Session::new(&Binding::to(TenantId(at as u16)));
        Ok(Bench {
            workers: (0..WORKERS).map(worker).collect(),
            sessions: (0..tenants).map(session).collect(),
            engine,
            out: Out::new(),
            now: Instant(1_000_000_000),
        })
    }

    /// The CPU times of the ticks of a policy's run, in order, by this clock.
    fn run(&mut self, policy: Box<dyn Policy>, clock_us: fn() -> f64) -> Vec<f64> {
        self.engine.set_policy(policy);
        let mut ticks_us = Vec::with_capacity(TICKS + WARM);
        for _ in 0..TICKS + WARM {
            let (mono, unix) = (self.now, UnixSeconds(1));
            let (workers, sessions) = (&mut self.workers, &mut self.sessions);
            let now = Now { mono, unix };
            work(&self.engine, workers, sessions, &mut self.out, now);
            let before_us = clock_us();
            let period = tick(&self.engine, self.now);
            ticks_us.push(clock_us() - before_us);
            self.now += period;
        }
        ticks_us.split_off(WARM)
    }
}

/// Mean, P50, P99 and maximum.
fn show(mut ticks_us: Vec<f64>) -> String {
    ticks_us.sort_by(f64::total_cmp);
    let n = ticks_us.len();
    let mean = ticks_us.iter().sum::<f64>() / n as f64;
    let [p50, p99, max] = [n / 2, n * 99 / 100, n - 1].map(|at| ticks_us[at]);
    format!("{mean:>7.0} {p50:>7.0} {p99:>7.0} {max:>7.0}")
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let tenants = arguments.first().map_or(Ok(1000), |text| text.parse())?;
    let is_one = |name: &str| arguments.get(1).is_none_or(|only| only == name);
    let mut bench = Bench::new(tenants)?;
    if arguments.get(2).is_some_and(|word| word == "count") {
        let all = policies(tenants).into_iter();
        for (_, policy) in all.filter(|(_, policy)| is_one(policy.name())) {
            bench.run(policy, || 0.0);
        }
        return Ok(());
    }
    println!("{tenants} tenants, {WORKERS} workers; CPU time of a tick in us (real)");
    let (each, least) = ("each tick", format!("least of {RUNS} runs"));
    println!("{:<30}{each:^32}{least:^32}", "");
    let columns = format!("{:>7} {:>7} {:>7} {:>7}", "mean", "p50", "p99", "max");
    println!(
        "{:<14} {:<15} {columns} {columns}",
        "policy", "latencies of"
    );
    let count = policies(tenants).len();
    for at in 0..count {
        let (mut all_us, mut least_us) = (Vec::new(), vec![f64::INFINITY; TICKS]);
        let (measured, policy) = policies(tenants).swap_remove(at);
        let name = policy.name();
        if !is_one(name) {
            continue;
        }
        for _ in 0..RUNS {
            let ticks_us = bench.run(policies(tenants).swap_remove(at).1, cpu_us);
            for (least, us) in least_us.iter_mut().zip(&ticks_us) {
                *least = least.min(*us);
            }
            all_us.extend(ticks_us);
        }
        let (all, least) = (show(all_us), show(least_us));
        println!("{name:<14} {measured:<15} {all} {least}");
    }
    Ok(())
}
