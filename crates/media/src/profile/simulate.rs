//! The profile of a device model in virtual time: virtual threads drive the O(1) model, so the
//! result is exact, the same on every machine, and there in about a second. Latencies come from the
//! event model, which knows more of waiting.
//!
//! What it never does: read a clock. Its evidence is *simulated*.

use super::latency::{Round, STANDARD_BYTES};
use super::{
    Delays, Effort, Identity, Latency, MEASURED_SHARE, PROBED_BYTES, Profile, Progress, STEP_BYTES,
    STEPS, VICTIM_BYTES, sweep,
};
use crate::model::Params;
use crate::model::event::{Access, Thread, run};
use crate::model::o1::Model;
use crate::{Evidence, Front, Op};
use nyx_base::{Instant, Rng};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The random addresses of the threads lie in this span.
const SPAN_BYTES: u64 = 10 << 30;
/// The paper's machine has 16 cores; 24 threads saturate its device in every pattern.
const THREAD_COUNTS: [usize; 6] = [1, 2, 4, 8, 16, 24];

/// Threads that use the device beside the victim: few enough that a module's writers do not disturb
/// each other, enough that a quarter of the device is not too much for them.
const AGGRESSORS: usize = 8;
/// Each growth is measured so often, by other seeds.
const ROUNDS: u64 = 5;

/// Profiles `params`. Quick takes the largest number of threads alone, which no smaller one beats
/// in this model; Full drives four times as many operations as Normal.
pub fn simulate(params: &Params, effort: Effort, progress: &mut dyn FnMut(Progress)) -> Profile {
    let (counts, lines, latency_lines) = match effort {
        Effort::Quick => (&THREAD_COUNTS[THREAD_COUNTS.len() - 1..], 16_000, 18_000),
        Effort::Normal => (&THREAD_COUNTS[..], 16_000, 96_000),
        Effort::Full => (&THREAD_COUNTS[..], 64_000, 384_000),
    };
    let sizes: Vec<usize> = (1..=STEPS).map(|step| step * STEP_BYTES).collect();
    let best = sweep(&sizes, counts, progress, |op, bytes, threads| {
        rate(params, op, bytes as u64, threads, lines)
    });
    let curves = best.map(|points| points.into_iter().map(|(_, best)| best).collect());
    let latency = latency(params, &curves, latency_lines / ROUNDS);
    let device = Identity::of_model(params);
    Profile::assemble(
        device,
        Evidence::Simulated,
        effort,
        counts.to_vec(),
        sizes,
        curves,
        latency,
    )
}

/// Operations per second of `threads` closed-loop threads, each at random addresses, over about
/// `lines` lines after as many again for warming up.
fn rate(params: &Params, op: Op, bytes: u64, threads: usize, lines: u64) -> f64 {
    let model = Model::new(params.clone());
    let ops = (lines as f64 / lines_per_op(params, bytes)) as u64 + threads as u64;
    let mut fronts: Vec<Front> = (0..threads).map(|_| Front::default()).collect();
    let mut rng = Rng::with_seed(bytes);
    let mut ready: BinaryHeap<_> = (0..threads)
        .map(|thread| Reverse((Instant(0), thread)))
        .collect();
    let mut issue = |count: u64| {
        let mut last = Instant(0);
        for _ in 0..count {
            let Reverse((now, thread)) = ready.pop().expect("every thread is in the heap");
            let at = rng.u64(0..SPAN_BYTES / bytes) * bytes;
            let timing = match op {
                Op::Read => model.read(&mut fronts[thread], now, at, bytes),
                Op::Write => model.write_nt(now, at, bytes),
            };
            ready.push(Reverse((timing.free, thread)));
            last = now;
        }
        last
    };
    let from = issue(ops);
    let to = issue(ops);
    ops as f64 / to.since(from).as_secs_f64()
}

/// Idle latencies and growths, each of the latter by rounds of about `lines` lines; of the
/// standard operation, by which all others are divided, of twice as many.
fn latency(params: &Params, curves: &[Vec<(f64, usize)>; 2], lines: u64) -> Option<Latency> {
    let victim_ns = idle_ns(params, Access::LoadDependent, VICTIM_BYTES);
    let mut both = [Delays::default(), Delays::default()];
    for ((access, curve), delays) in accesses().into_iter().zip(curves).zip(&mut both) {
        for bytes in PROBED_BYTES {
            let max_ops_per_s = curve[bytes / STEP_BYTES - 1].0;
            let ops_per_s = MEASURED_SHARE * max_ops_per_s;
            let aggressors = ops_per_s * lines_per_op(params, bytes as u64);
            // It runs twice, without aggressors and with them.
            let victims = 2.0 * 1e9 / victim_ns;
            let is_standard = (access, bytes) == (Access::Load, STANDARD_BYTES);
            let lines = if is_standard { 2 * lines } else { lines };
            let length_ns = (lines as f64 / (aggressors + victims) * 1e9) as u64;
            let aggressor = thread(access, bytes, Some(ops_per_s / AGGRESSORS as f64));
            let rounds: Vec<Round> = (0..ROUNDS)
                .map(|seed| round(params, aggressor, max_ops_per_s, length_ns, seed))
                .collect();
            delays.push(idle_ns(params, access, bytes), &rounds)?;
        }
    }
    Some(Latency::new(both))
}

/// The victim without and with aggressors.
fn round(
    params: &Params,
    aggressor: Thread,
    max_ops_per_s: f64,
    length_ns: u64,
    seed: u64,
) -> Round {
    let victim = thread(Access::LoadDependent, VICTIM_BYTES, None);
    let threads = [vec![victim], vec![aggressor; AGGRESSORS]].concat();
    let with = run(params, &threads, length_ns, seed);
    let without = run(params, &threads[..1], length_ns, seed);
    let ops_per_s: f64 = with.threads[1..].iter().map(|one| one.ops_per_s).sum();
    Round {
        without_ns: without.threads[0].latency_ns_mean,
        with_ns: with.threads[0].latency_ns_mean,
        share: ops_per_s / max_ops_per_s,
    }
}

/// About so many lines an operation moves: writes read none in vain and are counted as if they did.
fn lines_per_op(params: &Params, bytes: u64) -> f64 {
    bytes.div_ceil(params.media.line_bytes) as f64 + params.waste_lines(bytes)
}

fn accesses() -> [Access; 2] {
    [Access::Load, Access::StoreNt]
}

fn thread(access: Access, bytes: usize, ops_per_s: Option<f64>) -> Thread {
    Thread {
        access,
        op_bytes: bytes as u64,
        ops_per_s,
    }
}

/// The mean latency of one thread whose accesses come so seldom that they do not meet.
fn idle_ns(params: &Params, access: Access, bytes: usize) -> f64 {
    const OPS: f64 = 100.0;
    const APART: f64 = 100.0;
    let long_ns = params.load.latency_ns.max(params.media.write_ns) * APART;
    let one = thread(access, bytes, Some(1e9 / long_ns));
    let outcome = run(params, &[one], (OPS * long_ns) as u64, 1);
    outcome.threads[0].latency_ns_mean
}
