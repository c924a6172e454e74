//! One measured run: threads are started, keys stored, the load warmed up, a window measured.
//!
//! What it never does: take part in the load; the main thread only watches.

use super::LoadError;
use super::cpu::{self, Used};
use super::plan::Plan;
use super::shared::{Phase, Shared};
use super::tally::{Counts, Tally};
use super::worker::{Worker, Yield};
use std::io::{self, Write};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// How often the main thread looks.
const LOOK: Duration = Duration::from_millis(5);
/// How often it tells.
const TELL: Duration = Duration::from_secs(1);

/// When a run is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Until {
    /// After a time.
    Elapsed(Duration),
    /// After a number of keys, over all tenants and threads.
    Keys(u64),
}

/// A run's frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// How long requests go before they count.
    pub(crate) warm_up: Duration,
    /// When it ends.
    pub(crate) until: Until,
    /// Whose CPU time is measured.
    pub(crate) server_pid: Option<u32>,
    /// Whether to tell on standard error how it goes, for a terminal.
    pub(crate) progress: bool,
}

/// What one tenant got.
#[derive(Debug)]
pub(crate) struct TenantResult {
    /// Its name.
    pub(crate) name: String,
    /// What was measured.
    pub(crate) tally: Tally,
    /// What happened while its keys were stored.
    pub(crate) fill: Counts,
    /// Requests that were due when the run ended and had not been sent.
    pub(crate) unsent: u64,
}

/// What a run gave.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The length of the measured window.
    pub(crate) elapsed: Duration,
    /// How long it took to store the keys.
    pub(crate) fill: Duration,
    /// By tenant, in the plan's order.
    pub(crate) tenants: Vec<TenantResult>,
    /// How many records there are at the end of a run of YCSB.
    pub(crate) records: u64,
    /// Keys finished between the two readings of the server's CPU time.
    pub(crate) keys: u64,
    /// The server's CPU time in the window.
    pub(crate) server: Option<Used>,
    /// The generator's own.
    pub(crate) client: Used,
}

/// Makes one run.
pub(crate) fn run(plan: &Plan, frame: &Frame) -> Result<Outcome, LoadError> {
    // A process that is not there is an error now, not after the keys are stored.
    frame.server_pid.map(cpu::Reading::of).transpose()?;
    let shared = &Shared::new(plan, frame.progress);
    let quota = match frame.until {
        Until::Elapsed(_) => u64::MAX,
        Until::Keys(keys) => keys.div_ceil((plan.threads * plan.tenants.len()) as u64),
    };
    thread::scope(|scope| {
        let spawned: io::Result<Vec<_>> = (0..plan.threads)
            .map(|index| {
                thread::Builder::new()
                    .name(format!("load-{index}"))
                    .spawn_scoped(scope, move || work(plan, shared, index, quota))
            })
            .collect();
        let threads = spawned.map_err(|source| {
            shared.enter(Phase::Stop);
            let what = "cannot start a thread".into();
            LoadError::System { what, source }
        })?;
        let window = conduct(plan, frame, shared);
        shared.enter(Phase::Stop);
        let mut tenants = Vec::new();
        for thread in threads {
            let joined = thread.join();
            let yields = joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            merge(plan, &mut tenants, yields);
        }
        let window = window?;
        Ok(Outcome {
            elapsed: window.elapsed,
            fill: window.fill,
            tenants,
            records: shared.records.taken(),
            keys: window.keys,
            server: window.server,
            client: window.client,
        })
    })
}

/// Ends the run for everybody when it is dropped.
struct EndOfRun<'a>(&'a Shared);

impl Drop for EndOfRun<'_> {
    fn drop(&mut self) {
        self.0.enter(Phase::Stop);
    }
}

/// One generator thread. When it fails, or panics, the run ends.
fn work(plan: &Plan, shared: &Shared, index: usize, quota: u64) -> Result<Vec<Yield>, LoadError> {
    let _end = EndOfRun(shared);
    Worker::new(plan, shared, index, quota).and_then(Worker::run)
}

fn merge(plan: &Plan, tenants: &mut Vec<TenantResult>, yields: Vec<Yield>) {
    for (i, mut part) in yields.into_iter().enumerate() {
        match tenants.get_mut(i) {
            Some(whole) => {
                part.tally.drain_into(&mut whole.tally);
                whole.fill.add(&part.fill);
                whole.unsent += part.unsent;
            }
            None => tenants.push(TenantResult {
                name: plan.tenants[i].name.clone(),
                tally: part.tally,
                fill: part.fill,
                unsent: part.unsent,
            }),
        }
    }
}

/// The measured window, as the main thread saw it.
struct Window {
    elapsed: Duration,
    fill: Duration,
    keys: u64,
    server: Option<Used>,
    client: Used,
}

/// Leads the run through its phases. Ends early where a thread has failed.
fn conduct(plan: &Plan, frame: &Frame, shared: &Shared) -> Result<Window, LoadError> {
    let failed = || shared.phase() == Phase::Stop;
    let fill = await_fill(plan, frame, shared);
    // Without a warm-up nothing may be asked before it counts.
    if !failed() && !frame.warm_up.is_zero() {
        shared.enter(Phase::WarmUp);
        let warm = Instant::now() + frame.warm_up;
        while Instant::now() < warm && !failed() {
            thread::sleep(LOOK.min(warm.saturating_duration_since(Instant::now())));
        }
    }
    let server = frame.server_pid.map(cpu::Reading::of).transpose()?;
    let client = cpu::Reading::of(std::process::id())?;
    let (start, keys) = (Instant::now(), shared.keys());
    if !failed() {
        shared.enter(Phase::Measure);
    }
    let mut told = start;
    while !failed() && !is_over(plan, frame, shared, start) {
        thread::sleep(LOOK);
        if frame.progress && told.elapsed() >= TELL {
            tell(plan, shared, start.elapsed(), told.elapsed());
            told = Instant::now();
        }
    }
    let (elapsed, keys) = (start.elapsed(), shared.keys() - keys);
    let server = match (frame.server_pid, server) {
        (Some(pid), Some(before)) if !failed() => Some(cpu::Reading::of(pid)?.since(&before)),
        _ => None,
    };
    let client = cpu::Reading::of(std::process::id())?.since(&client);
    if told > start {
        eprintln!();
    }
    Ok(Window {
        elapsed,
        fill,
        keys,
        server,
        client,
    })
}

/// Waits until the keys are stored, or a thread has failed; gives how long that took.
fn await_fill(plan: &Plan, frame: &Frame, shared: &Shared) -> Duration {
    let start = Instant::now();
    let mut told = start;
    let all: u64 = plan.tenants.iter().map(|t| t.spec.keys).sum();
    while shared.filled.load(Ordering::Acquire) < plan.threads && shared.phase() != Phase::Stop {
        thread::sleep(LOOK);
        if frame.progress && plan.fill && told.elapsed() >= TELL {
            told = Instant::now();
            let stored: u64 = shared.figures.iter().map(|f| f.filled.get()).sum();
            let per_s = stored as f64 / start.elapsed().as_secs_f64();
            eprint!("\rstored {stored} of {all} keys, {per_s:.0} a second   ");
            // A terminal that went away does not end the run.
            let _ = io::stderr().flush();
        }
    }
    if told > start {
        eprintln!();
    }
    start.elapsed()
}

fn is_over(plan: &Plan, frame: &Frame, shared: &Shared, start: Instant) -> bool {
    match frame.until {
        Until::Elapsed(time) => start.elapsed() >= time,
        Until::Keys(_) => shared.done.load(Ordering::Acquire) >= plan.threads,
    }
}

/// One line over the last one, on a terminal.
fn tell(plan: &Plan, shared: &Shared, at: Duration, span: Duration) {
    let mut recent = plan.tally();
    for figures in &shared.figures {
        let mut part = figures.recent.lock().unwrap_or_else(|e| e.into_inner());
        part.drain_into(&mut recent);
    }
    let counts = recent.counts;
    if counts.total_ops() == 0 {
        return;
    }
    let us = |ns: u64| ns as f64 / 1e3;
    let latency = recent.foremost();
    let (p50, p99) = (
        latency.value_at_quantile(0.5),
        latency.value_at_quantile(0.99),
    );
    let hits = counts
        .hit_ratio()
        .map_or("-".to_owned(), |r| format!("{:.2} %", r * 100.0));
    eprint!(
        "\r{:4.0} s  {:>9.0} ops/s  p50 {:.1} us  p99 {:.1} us  hits {hits}  errors {}   ",
        at.as_secs_f64(),
        counts.total_ops() as f64 / span.as_secs_f64(),
        us(p50),
        us(p99),
        counts.errors(),
    );
    // A terminal that went away does not end the run.
    let _ = io::stderr().flush();
}
