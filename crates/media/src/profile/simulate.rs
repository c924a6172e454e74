//! The profile of a device model in virtual time: virtual threads drive the O(1) model, so the
//! result is exact, the same on every machine, and there in about a second.
//!
//! What it never does: read a clock. Its evidence is *simulated*.

use super::{Effort, Identity, Profile, Progress, STEP_BYTES, STEPS, sweep};
use crate::model::Params;
use crate::model::o1::Model;
use crate::{Evidence, Front, Op};
use nyx_base::{Instant, Rng};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The random addresses of the threads lie in this span.
const SPAN_BYTES: u64 = 10 << 30;
/// The paper's machine has 16 cores; 24 threads saturate its device in every pattern.
const THREAD_COUNTS: [usize; 6] = [1, 2, 4, 8, 16, 24];

/// Profiles `params`. Quick takes the largest number of threads alone, which no smaller one beats
/// in this model; Full drives four times as many operations as Normal.
pub fn simulate(params: &Params, effort: Effort, progress: &mut dyn FnMut(Progress)) -> Profile {
    let (counts, lines) = match effort {
        Effort::Quick => (&THREAD_COUNTS[THREAD_COUNTS.len() - 1..], 16_000),
        Effort::Normal => (&THREAD_COUNTS[..], 16_000),
        Effort::Full => (&THREAD_COUNTS[..], 64_000),
    };
    let sizes: Vec<usize> = (1..=STEPS).map(|step| step * STEP_BYTES).collect();
    let best = sweep(&sizes, counts, progress, |op, bytes, threads| {
        rate(params, op, bytes as u64, threads, lines)
    });
    let curves = best.map(|points| points.into_iter().map(|(_, best)| best).collect());
    let device = Identity::of_model(params);
    Profile::assemble(
        device,
        Evidence::Simulated,
        effort,
        counts.to_vec(),
        sizes,
        curves,
    )
}

/// Operations per second of `threads` closed-loop threads, each at random addresses, over about
/// `lines` lines after as many again for warming up.
fn rate(params: &Params, op: Op, bytes: u64, threads: usize, lines: u64) -> f64 {
    let model = Model::new(params.clone());
    let lines_per_op = bytes.div_ceil(params.media.line_bytes) as f64 + params.waste_lines(bytes);
    let ops = (lines as f64 / lines_per_op) as u64 + threads as u64;
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
