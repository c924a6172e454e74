//! What one tick of the controller costs for a thousand tenants and four workers, by policy: CPU
//! time of the engine's look at accounts and latencies, the policy's step, and the budgets. Between
//! two ticks each tenant is asked something by each worker, and has latencies over two octaves,
//! which is not counted.
//!
//! What it never does: state a figure that it did not measure in this run.
//!
//! `cargo run --release -p nyx-engine --example tick [tenants, default 1000]`

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
    };
    let device = Device {
        name: "memory".into(),
        media: Arc::new(Mapped::anonymous(tenants as u64 * (4 << 20))?),
        cost: CostTable::from_max_iops(&[1e7; _], &[1e7; _]),
    };
    Ok(Engine::new(EngineConfig {
        devices: vec![Arc::new(device)],
        tenants: (0..tenants).map(tenant).collect(),
        tenants_max: 0,
        policy: Box::new(Unlimited),
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
        ("nobody is measured", Box::new(Unlimited)),
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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tenants = std::env::args()
        .nth(1)
        .map_or(Ok(1000), |text| text.parse())?;
    let engine = engine(tenants)?;
    let clock: Arc<dyn Clock> = Arc::new(Still);
    let worker = |index| engine.worker(WorkerId(index), clock.clone());
    let mut workers: Vec<Worker> = (0..WORKERS).map(worker).collect();
    let session = |at: usize| Session::new(&Binding::to(TenantId(at as u16)));
    let mut sessions: Vec<Session> = (0..tenants).map(session).collect();
    let (mut out, mut now) = (Out::new(), Instant(1_000_000_000));
    println!("{tenants} tenants, {WORKERS} workers; CPU time of a tick in us (real)");
    println!(
        "{:<18} {:<20} {:>8} {:>8} {:>8}",
        "policy", "latencies", "mean", "p99", "max"
    );
    for (measured, policy) in policies(tenants) {
        engine.set_policy(policy);
        let mut ticks_us = Vec::with_capacity(TICKS);
        for _ in 0..TICKS + WARM {
            let unix = UnixSeconds(1);
            work(
                &engine,
                &mut workers,
                &mut sessions,
                &mut out,
                Now { mono: now, unix },
            );
            let before_us = cpu_us();
            let period = engine.control(now);
            ticks_us.push(cpu_us() - before_us);
            now += period;
        }
        ticks_us.drain(..WARM);
        let mean = ticks_us.iter().sum::<f64>() / TICKS as f64;
        ticks_us.sort_by(f64::total_cmp);
        let (p99, max) = (ticks_us[TICKS * 99 / 100], ticks_us[TICKS - 1]);
        let name = engine.policy_name();
        println!("{name:<18} {measured:<20} {mean:>8.0} {p99:>8.0} {max:>8.0}");
    }
    Ok(())
}
